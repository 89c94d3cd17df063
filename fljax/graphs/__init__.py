"""Network topologies as pytrees: neighborhood sums, Laplacians, mixing weights and spectra.

A :class:`Graph` is held as a matrix or as a table of neighbors, whichever is faster for its size
(:mod:`fljax.graphs.neighbor_tables`), and is built from edges, matrices and networkx, by name, or
at random on the device. A :class:`Combination` is a stochastic matrix over the nodes, directed or
not: from a graph by a rule (:meth:`Graph.mixing`), or given (:func:`from_stochastic`). All shapes
are static, so that every seed of a study may have its own topology.

Shapes: ``K`` nodes (clients), ``E`` undirected edges, ``S`` slots of the neighbor table, ``M``
rows of its overflow.

Read :mod:`~fljax.graphs.undirected` first. Messages over a graph are in :mod:`fljax.link`, drawings
in :mod:`fljax.plotting`.
"""

from fljax.graphs.averaging import consensus
from fljax.graphs.builders import (
    complete,
    from_adjacency,
    from_edges,
    from_networkx,
    grid,
    path,
    ring,
    star,
)
from fljax.graphs.combination import Combination, Mixing, from_stochastic
from fljax.graphs.failures import (
    Critical,
    Resilience,
    critical_edges,
    critical_nodes,
    pruned,
    random_failures,
    resilience,
)
from fljax.graphs.finite_time import base_graphs, one_peer_exponential
from fljax.graphs.hierarchies import Tree, from_parents, tree
from fljax.graphs.matchings import RandomMatchings, edge_coloring, matcha
from fljax.graphs.nearest import EARTH_RADIUS, distances, nearest_neighbors
from fljax.graphs.neighbor_tables import DENSE_BELOW, Overflow
from fljax.graphs.random_graphs import (
    erdos_renyi,
    k_regular,
    random_connected,
    random_geometric,
    small_world,
    stochastic_block_model,
)
from fljax.graphs.relearned import Relearned
from fljax.graphs.spectra import perron_vector
from fljax.graphs.subspace import agreed, null_space
from fljax.graphs.undirected import Graph
from fljax.graphs.varying import DrawnGraphs, GraphSchedule, MixingSchedule, Varying

__all__ = [
    "DENSE_BELOW",
    "EARTH_RADIUS",
    "Combination",
    "Critical",
    "DrawnGraphs",
    "Graph",
    "GraphSchedule",
    "Mixing",
    "MixingSchedule",
    "Overflow",
    "RandomMatchings",
    "Relearned",
    "Resilience",
    "Tree",
    "Varying",
    "agreed",
    "base_graphs",
    "complete",
    "consensus",
    "critical_edges",
    "critical_nodes",
    "distances",
    "edge_coloring",
    "erdos_renyi",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "from_parents",
    "from_stochastic",
    "grid",
    "k_regular",
    "matcha",
    "nearest_neighbors",
    "null_space",
    "one_peer_exponential",
    "path",
    "perron_vector",
    "pruned",
    "random_connected",
    "random_failures",
    "random_geometric",
    "resilience",
    "ring",
    "small_world",
    "star",
    "stochastic_block_model",
    "tree",
]
