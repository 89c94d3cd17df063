"""Jung 2025, the book: its statements as figures, by topic. Line numbers refer to its text."""
