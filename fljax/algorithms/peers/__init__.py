"""Clients that talk to each other over a network."""
