"""One server whose clients share a model."""
