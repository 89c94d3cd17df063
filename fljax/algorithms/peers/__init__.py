"""Clients that talk to each other over a network."""

__all__: list[str] = []
