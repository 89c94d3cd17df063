"""Gauthier 2024, the thesis: its figures, by chapter. Line numbers refer to its text."""
