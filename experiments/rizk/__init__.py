"""Rizk 2023, the thesis: its figures, by chapter. Lines are those of its text."""
