"""Network topologies as pytrees: neighborhood sums, Laplacians, mixing weights and spectra.

A :class:`Graph` is held as a matrix or as a table of neighbors, whichever is faster for its size
(:mod:`fljax.graphs.tables`), and is built from edges, matrices and networkx, by name, or at random
on the device. A :class:`Combination` is a stochastic matrix over the nodes, directed or not: from
a graph by a rule (:meth:`Graph.mixing`), or given (:func:`from_stochastic`). All shapes are static,
so that every seed of a study may have its own topology.

Shapes: ``K`` nodes (clients), ``E`` undirected edges, ``S`` slots of the neighbor table, ``M``
rows of its overflow.
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
from fljax.graphs.graph import Graph
from fljax.graphs.learning import edge_budget, project_regular, regular_similarity
from fljax.graphs.nearest import EARTH_RADIUS, distances, nearest_neighbors
from fljax.graphs.random import (
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
from fljax.graphs.tables import DENSE_BELOW, Overflow
from fljax.graphs.varying import Drawn, Schedule, Varying

__all__ = [
    "DENSE_BELOW",
    "EARTH_RADIUS",
    "Combination",
    "Critical",
    "Drawn",
    "Graph",
    "Mixing",
    "Overflow",
    "Relearned",
    "Resilience",
    "Schedule",
    "Varying",
    "agreed",
    "complete",
    "consensus",
    "critical_edges",
    "critical_nodes",
    "distances",
    "edge_budget",
    "erdos_renyi",
    "from_adjacency",
    "from_edges",
    "from_networkx",
    "from_stochastic",
    "grid",
    "k_regular",
    "nearest_neighbors",
    "null_space",
    "path",
    "perron_vector",
    "project_regular",
    "pruned",
    "random_connected",
    "random_failures",
    "random_geometric",
    "regular_similarity",
    "resilience",
    "ring",
    "small_world",
    "star",
    "stochastic_block_model",
]
