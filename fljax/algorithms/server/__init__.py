"""One server whose clients share a model."""

__all__: list[str] = []
