"""The literature, executable: published figures, their settings and their claims as code.

Each document has a folder with a module ``figure_*`` for each figure and modules that the figures
of a chapter share. Figures import the shared modules, never the reverse: a figure is registered
under its name.
"""
