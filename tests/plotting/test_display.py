"""How plans, graphs and simulations are shown in notebooks."""

import re
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import fljax as fl


def rendered(graph):
    """The text, and the elements of the drawing by their name."""
    html = graph._repr_html_()
    tree = ElementTree.fromstring(f"<div>{html}</div>")
    elements = {
        name: [e for e in tree.iter() if e.tag.endswith(name)] for name in ("circle", "path")
    }
    return tree.find("p").text, elements


def test_a_graph_is_drawn_with_each_node_and_edge():
    graph = fl.graphs.from_edges(5, [(0, 1), (0, 2), (3, 4)], allow_disconnected=True)
    text, elements = rendered(graph)
    assert text == "Graph of 5 nodes and 3 edges, 2 components; 1 to 2 neighbors, 1.2 in the mean"
    at = [(circle.get("cx"), circle.get("cy")) for circle in elements["circle"]]
    assert len(set(at)) == 5
    (path,) = elements["path"]
    ends = re.findall(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", path.get("d"))
    assert [(at.index(end[:2]), at.index(end[2:])) for end in ends] == graph.edge_list()
    assert [circle[0].text for circle in elements["circle"]][:2] == [
        "node 0: 2 neighbors",
        "node 1: 1 neighbors",
    ]


@pytest.mark.parametrize(
    "graph",
    [fl.graphs.ring(301), fl.graphs.complete(100)],
    ids=["nodes", "edges"],
)
def test_a_large_graph_is_described_in_words(graph):
    text, elements = rendered(graph)
    assert text.startswith(f"Graph of {graph.nodes} nodes and {len(graph.edges)} edges, connected")
    assert elements == {"circle": [], "path": []}


def test_a_graph_without_edges_is_drawn():
    alone = fl.graphs.from_adjacency(np.zeros((3, 3)), allow_disconnected=True)
    text, elements = rendered(alone)
    assert text == "Graph of 3 nodes and 0 edges, 3 components; 0 to 0 neighbors, 0 in the mean"
    assert len(elements["circle"]) == 3


def test_traced_and_batched_graphs_are_left_to_their_text():
    def traced(factor):
        graph = fl.graphs.ring(4).reweighted(lambda k, m: factor)
        assert graph._repr_html_() is None
        return graph.degree

    jax.jit(traced)(1.0)
    keys = jax.random.split(jax.random.key(0), 3)
    batch = jax.vmap(lambda key: fl.graphs.random_connected(key, nodes=6, mean_degree=3))(keys)
    assert batch._repr_html_() is None


@pytest.mark.slow
def test_a_plan_is_a_table_with_a_row_for_each_structure():
    def scenario(key, clients):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=clients, samples=5, dim=2),
            algorithm=fl.algorithms.FedAvg(0.05, epochs=1),
            metrics=["normalized_error"],
        )

    plan = fl.plan(scenario, rounds=4, seeds=2, grid={"clients": fl.static([3, 5])})
    tree = ElementTree.fromstring(f"<div>{plan._repr_html_()}</div>")
    text = str(plan).splitlines()
    assert [p.text for p in tree.iter("p")] == [text[0], text[-1]]
    head, *rows = tree.iter("tr")
    assert len(rows) == 2
    for row, part in zip(rows, plan.parts, strict=True):
        cells = [cell.text for cell in row]
        assert len(cells) == len(head)
        assert cells[:3] == [f"like {part.example}", "1", str(part.blocks)]
        assert all(size in str(plan) for size in cells[6:])


def test_a_simulation_shows_the_stages_of_a_message_in_order():
    simulation = fl.Simulation(
        problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=5, dim=2),
        network=fl.graphs.ring(5),
        algorithm=fl.algorithms.ZCDPGradNFL(0.05),
        aggregation=fl.aggregation.Median(),
        losses=fl.link.Independent(0.1),
        attack=fl.attacks.SignFlip(np.arange(5) < 1),
        metrics=["normalized_error"],
    )
    tree = ElementTree.fromstring(f"<div>{simulation._repr_html_()}</div>")
    heads = [row[0].text for row in tree.iter("tr")]
    assert heads == ["problem", "algorithm", "attack", "losses", "aggregation"]
    assert [row[1].text for row in tree.iter("tr")][3] == repr(simulation.losses)
    assert len([e for e in tree.iter() if e.tag.endswith("circle")]) == 5
    assert [p.text for p in tree.iter("p")][-1] == "records normalized_error"
    alone = fl.Simulation(simulation.problem, fl.algorithms.FedAvg(0.1))
    tree = ElementTree.fromstring(f"<div>{alone._repr_html_()}</div>")
    assert [row[0].text for row in tree.iter("tr")] == ["problem", "algorithm"]
    assert not [*tree.iter("p")]
