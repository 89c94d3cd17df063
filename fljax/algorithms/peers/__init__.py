"""Clients that communicate with each other over a network."""

__all__: list[str] = []
