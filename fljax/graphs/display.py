"""Display of a graph in a notebook: a line of text, and a drawing if the graph is small."""

from typing import Any

import numpy as np

#: Graphs with more nodes or edges are not drawn.
MOST_NODES = 300
MOST_EDGES = 3000

#: Pixels of a drawing's side, of a node, at most, and of the free margin around it.
SIDE = 240
NODE = 5.0
MARGIN = 8

DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" width="{side}" height="{side}">\
<path d="{links}" stroke="#999999" stroke-width="0.8" fill="none"/>\
<g fill="#0072B2" stroke="white" stroke-width="0.6">{nodes}</g></svg>"""


def html_of(graph: Any) -> str:
    """HTML of a concrete graph: its numbers of nodes, edges, components and neighbors, and for up
    to a few hundred nodes a drawing of them on a circle.

    Example:
      >>> import fljax as fl
      >>> html_of(fl.graphs.star(4)).split("<svg")[0]
      '<p>Graph of 4 nodes and 3 edges, connected; 1 to 3 neighbors, 1.5 in the mean</p>'
    """
    edges = graph.edges
    counts = np.asarray(graph.neighbor_counts())
    parts = len(np.unique(np.asarray(graph.components())))
    connection = "connected" if parts == 1 else f"{parts} components"
    text = (
        f"<p>Graph of {graph.nodes} nodes and {len(edges)} edges, {connection}; {counts.min()} to "
        f"{counts.max()} neighbors, {counts.mean():.3g} in the mean</p>"
    )
    if graph.nodes > MOST_NODES or len(edges) > MOST_EDGES:
        return text
    angle = 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    circle = np.stack([np.sin(angle), -np.cos(angle)], axis=1)  # clockwise from the top
    positions = SIDE / 2 + (SIDE / 2 - MARGIN) * circle
    links = "".join("M{:.1f} {:.1f}L{:.1f} {:.1f}".format(*ends.flat) for ends in positions[edges])
    radius = min(NODE, max(1.5, SIDE / graph.nodes))
    dots = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.3g}"><title>node {node}: {count} neighbors'
        "</title></circle>"
        for node, ((x, y), count) in enumerate(zip(positions, counts, strict=True))
    )
    return text + DRAWING.format(side=SIDE, links=links, nodes="".join(dots))
