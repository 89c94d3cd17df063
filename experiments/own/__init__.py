"""Figures of our own: measurements of this library that no document has."""
