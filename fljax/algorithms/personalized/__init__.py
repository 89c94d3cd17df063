"""One server whose clients have models of their own."""

__all__: list[str] = []
