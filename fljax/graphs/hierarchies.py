r"""Servers above servers: a tree with clients as its leaves (client, edge, cloud).

The servers of the clients are the *edges*, level 1; each has one server of level 2 above it, and so
on up to the root, the cloud. A :class:`Tree` is the :class:`~fljax.federation.Federation` of its
edges, with the servers above them in addition. Shapes: ``K`` clients, ``P`` servers of a level.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import module, static
from fljax.graphs.federation import Federation, numbered
from fljax.graphs.undirected import Graph

__all__ = ["Tree", "from_parents", "tree"]

#: The parent of the root in :func:`from_parents`.
NOBODY = -1


@module
class Tree(Federation):
    """A hierarchy of servers above the clients; :func:`tree` and :func:`from_parents` build one.

    Args:
      server: ``[K]``, the edge of each client, numbers from 0; structure, never traced.
      graph: graph along which the edges communicate, besides with the servers above them; ``None``
        if they do not.
      parents: of each level of servers below the root, edges first, the server of the level above
        of each server, numbers from 0.

    Raises:
      ValueError: a server without clients below it, several roots, numbers out of range, a graph of
        another size.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.tree([2, 3]).server  # a cloud with two edges of three clients
      (0, 0, 0, 1, 1, 1)
    """

    parents: Any = static(default=())

    def validate(self) -> None:
        super().validate()
        parents = checks.plain(self.parents)
        is_table = isinstance(parents, np.ndarray) and parents.ndim == 2
        if not is_table and (isinstance(parents, str) or not isinstance(parents, Sequence)):
            raise ValueError(
                "parents must have one sequence of numbers for each level of servers below the "
                f"root, as ((0, 0, 1), (0, 0)), got {checks.shown(parents)}."
            )
        count = self.servers
        levels = []
        for level, parents_of_level in enumerate(parents, 1):
            name = f"parents[{level - 1}]"
            above = np.asarray(checks.array(name, parents_of_level))
            if above.shape != (count,):
                raise ValueError(
                    f"{name} must give each of the {count} servers of level {level} the server "
                    f"above it, got {above.size} numbers."
                )
            lower = count
            count = numbered(above)
            checks.group_numbers(name, above, count)
            if unused := sorted({*range(count)} - {*above.tolist()}):
                raise ValueError(
                    f"server {unused[0]} of level {level + 1} has none of the {lower} servers of "
                    f"level {level} below it; leave it out, or number servers without gaps."
                )
            levels.append(tuple(above.tolist()))
        if count > 1 and (levels or self.graph is None):
            mend = "give them one server above, parents=(*parents, (0, ..., 0))"
            raise ValueError(
                f"a tree has one root, and the {count} servers of level {len(levels) + 1} have "
                f"none above them; {mend}"
                + ("." if levels else ", or a graph along which they communicate.")
            )
        object.__setattr__(self, "parents", tuple(levels))

    def connected(self) -> Bool[Array, ""]:
        """Whether models reach all servers: under a root, or if the graph connects them."""
        return jnp.asarray(True) if self.parents else super().connected()

    def require_connected(self) -> "Tree":
        """The tree; raise ``ValueError`` if it has no root and its graph is disconnected."""
        if not self.parents:
            super().require_connected()
        return self

    @property
    def levels(self) -> int:
        """The number of levels of servers, from the edges to the root."""
        return 1 + len(self.parents)

    @property
    def clients_below(self) -> tuple[Int[np.ndarray, " servers"], ...]:
        """The number of clients below each server, for each level."""
        counts = [self.sizes]
        for above in self.parents:
            counts.append(np.bincount(above, counts[-1]).astype(counts[-1].dtype))
        return tuple(counts)


@checked
def tree(branches: Sequence[int], graph: Graph | None = None) -> Tree:
    """A balanced tree: how many children a server has, from the root down to the clients.

    Clients and servers of a level are numbered in the order of the servers above them.

    Args:
      branches: one number >= 1 for each level: ``[5, 10]`` is a cloud with 5 edges of 10 clients
        each, ``[2, 5, 10]`` has two servers of 5 edges each below the cloud, and ``[10]`` is one
        server of 10 clients.
      graph: graph along which the edges communicate; ``None`` if they do not.

    Raises:
      ValueError: no branches, numbers below 1, a graph of another size.

    Example:
      >>> import fljax as fl
      >>> network = fl.graphs.tree([2, 3, 10])
      >>> network.nodes, network.servers, network.parents
      (60, 6, ((0, 0, 0, 1, 1, 1), (0, 0)))
    """
    if not branches:
        raise ValueError(
            "branches must have a number of children for each level, from the root down, as "
            "[5, 10] for a cloud with 5 edges of 10 clients each; got none."
        )
    for number in branches:
        checks.count("branches", number)
    above = []
    count = 1
    for number in branches:
        above.append(np.repeat(np.arange(count, dtype=np.int32), number).tolist())
        count *= int(number)
    server, *parents = reversed(above)
    return Tree(server, graph, tuple(parents))


@checked
def from_parents(parents: Int[Array, " nodes"] | Sequence[int], clients: int) -> Tree:
    """The tree of a list of parents.

    Args:
      parents: for each node the number of the node above it, and -1 for the root. Nodes
        ``0..clients-1`` are the clients, the others servers, in any order; all clients are equally
        far below the root.
      clients: ``K``.

    Raises:
      ValueError: no root or several, a parent that is a client or no node, a cycle, a server
        without clients below it, clients at different depths.

    Example:
      >>> import fljax as fl
      >>> fl.graphs.from_parents([4, 4, 5, 5, 6, 6, -1], clients=4).parents
      ((0, 0),)
    """
    checks.count("clients", clients)
    above = np.asarray(checks.as_integers(checks.filled("parents", parents, axes=1)))
    nodes = len(above)
    if nodes <= clients:
        raise ValueError(
            f"parents must have the {clients} clients and the servers above them, got {nodes} "
            "nodes; append the servers."
        )
    _check_parents(above, clients)
    depth = _depths(above)
    unused = sorted({*range(clients, nodes)} - {*above.tolist()})
    if unused:
        raise ValueError(
            f"server {unused[0]} has no clients below it: no node has this parent; leave it out."
        )
    uneven = np.flatnonzero(depth[:clients] != depth[0])
    if uneven.size:
        raise ValueError(
            f"all clients must be equally far below the root, but client {uneven[0]} has "
            f"{depth[uneven[0]]} servers above it and client 0 has {depth[0]}; put a server "
            "between where there are fewer."
        )
    # Servers of a level are numbered in the order of their nodes.
    by_level = [np.flatnonzero(depth == d) for d in range(int(depth[0]) + 1)]
    number = np.zeros(nodes, np.int32)
    for members in by_level:
        number[members] = np.arange(len(members), dtype=np.int32)
    levels = [number[above[members]].tolist() for members in by_level[1:]]
    server, *rest = reversed(levels)
    return Tree(server, None, tuple(rest))


def _check_parents(above: np.ndarray, clients: int) -> None:
    """Raise ``ValueError`` unless all parents are servers, but for that of one root."""
    nodes = len(above)
    if np.any((above < NOBODY) | (above >= nodes)):
        raise ValueError(
            f"parents must be numbers of nodes, 0 to {nodes - 1}, and -1 for the root, got "
            f"{above[(above < NOBODY) | (above >= nodes)][0]}."
        )
    below_clients = np.flatnonzero((above >= 0) & (above < clients))
    if below_clients.size:
        node = below_clients[0]
        raise ValueError(
            f"node {node} has client {above[node]} as its parent; only servers, numbered from "
            f"{clients}, have nodes below them."
        )
    roots = np.flatnonzero(above == NOBODY)
    if len(roots) > 1 or (len(roots) and roots[0] < clients):
        raise ValueError(
            f"a tree has one root, a server, and nodes {roots.tolist()} have parent -1; give all "
            "but one server a parent."
        )


def _depths(above: np.ndarray) -> Int[np.ndarray, " nodes"]:
    """How many nodes are above each; ``ValueError`` where nodes are above each other in a circle.

    In as many steps as there are nodes every path has ended at the root, or never does.
    """
    node = np.arange(len(above))
    depth = np.zeros(len(above), np.int32)
    for _ in range(len(above)):
        moving = above[node] != NOBODY
        depth = depth + moving
        node = np.where(moving, above[node], node)
        if not np.any(above[node] != NOBODY):
            return depth
    circle = np.flatnonzero(above[node] != NOBODY)
    raise ValueError(
        f"parents have a cycle: node {circle[0]} has no root above it; let every path of parents "
        "end at one node with parent -1."
    )
