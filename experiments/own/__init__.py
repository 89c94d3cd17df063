"""Figures of no document: what this library can measure that none of them does."""
