"""Helpers that several files of tests share."""
