"""The literature, executable: published figures, their settings and their claims as code.

A folder per document holds a module ``figure_*`` per figure, and what the figures of a chapter
share. A document's modules import these, never the other way round: a figure is found by its name.
"""
