"""The literature, executable: published figures, their settings and their claims as code."""
