"""Jung 2025, the book: what it says, by topic, as figures. Lines are those of its text."""
