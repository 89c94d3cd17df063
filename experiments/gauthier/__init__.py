"""Gauthier 2024, the thesis: its figures, by chapter. Lines are those of its text."""
