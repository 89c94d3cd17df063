"""Servers on a graph, each with clients."""
