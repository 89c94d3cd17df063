"""Servers on a graph, each with clients."""

__all__: list[str] = []
