"""Trees of servers: how they are numbered, and which are refused."""

import numpy as np
import pytest

import fljax as fl
from fljax.graphs import Tree, from_parents, tree


def test_a_balanced_tree_is_numbered_in_order():
    network = tree([2, 3, 4])
    assert network.server == tuple(np.repeat(range(6), 4).tolist())
    assert network.parents == ((0, 0, 0, 1, 1, 1), (0, 0))
    assert (network.nodes, network.servers, network.levels) == (24, 6, 3)
    assert [below.tolist() for below in network.clients_below] == [[4] * 6, [12, 12], [24]]
    assert bool(network.connected())
    assert tree([5]).levels == 1


def test_a_list_of_parents_is_the_tree_that_it_says():
    """Servers in any order, unequal numbers of clients; by following each client's parents up."""
    parents = np.array([7, 7, 5, 9, 8, 11, -1, 10, 10, 11, 6, 6])
    network = from_parents(parents, clients=5)
    edges = sorted(set(parents[:5].tolist()))
    assert [edges[edge] for edge in network.server] == parents[:5].tolist()
    above = sorted({int(parents[edge]) for edge in edges})
    assert [above[p] for p in network.parents[0]] == [int(parents[edge]) for edge in edges]
    assert network.parents[1] == (0, 0)


BAD = {
    "two roots": (
        lambda: from_parents([3, 3, 4, -1, -1], 3),
        r"a tree has one root, a server, and nodes \[3, 4\] have parent -1",
    ),
    "several servers at the top": (
        lambda: Tree([0, 0, 1, 2], None, ((0, 0, 1),)),
        "a tree has one root, and the 2 servers of level 2 have none above them",
    ),
    "edges without a root": (
        lambda: Tree([0, 0, 1]),
        "the 2 servers of level 1 have none above them; .*or a graph along which",
    ),
    "no root": (lambda: from_parents([3, 3, 3, 4, 3], 3), "parents have a cycle: node 0"),
    "a cycle beside the root": (
        lambda: from_parents([3, 3, 4, -1, 5, 4], 3),
        "parents have a cycle: node 2",
    ),
    "an edge without clients": (
        lambda: from_parents([3, 3, 3, 5, 5, -1], 3),
        "server 4 has no clients below it",
    ),
    "an edge of no client": (
        lambda: Tree([0, 0, 2], None, ((0, 0, 0),)),
        "server 1 has no clients",
    ),
    "a server above nobody": (
        lambda: Tree([0, 0, 1], None, ((0, 2), (0, 0, 0))),
        "server 1 of level 2 has none of the 2 servers of level 1 below it",
    ),
    "clients at different depths": (
        lambda: from_parents([3, 3, 4, 4, -1], 3),
        "client 2 has 1 servers above it and client 0 has 2",
    ),
    "a client as parent": (
        lambda: from_parents([2, 2, 3, -1], 3),
        "node 0 has client 2 as its parent",
    ),
    "no such node": (lambda: from_parents([7, 3, 3, -1], 3), "got 7"),
    "clients alone": (lambda: from_parents([-1, 0], 2), "the 2 clients and the servers above"),
    "too few parents": (
        lambda: Tree([0, 1, 2], None, ((0, 0),)),
        "3 servers of level 1 .* got 2 numbers",
    ),
    "no branches": (lambda: tree([]), "branches must have a number of children for each level"),
    "no children": (lambda: tree([2, 0]), "branches must be >= 1"),
    "a graph of other edges": (lambda: tree([3, 2], fl.graphs.ring(4)), "server"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_tree_is_refused(name):
    refused, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        refused()
