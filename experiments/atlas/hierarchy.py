"""Clients below edges below a cloud: the bits that edges save, and their price in accuracy."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from experiments.atlas.convex import (
    CLIENTS,
    CONDITION,
    DIM,
    DISSIMILARITY,
    NOISE,
    ROUNDS,
    features_of,
)
from experiments.atlas.scenario import COSTS_OF_LEVELS, LOCAL_STEPS, Rule, Scenario
from fljax.graphs import Graph, Tree
from fljax.graphs.federation import Federation
from fljax.link import Quantize

EDGES = 5
REGIONS = 5
#: Edges of each region where there are three levels.
EDGES_OF_REGION = 2
#: Rounds between two averages of the cloud.
OFTEN = 2
RARELY = 10
#: Participants of each edge in a round, where some take part.
PARTICIPANTS = 2
#: Deviation of models from the common one, in units of its own.
STRENGTH = DISSIMILARITY["strongly unlike"]
#: Bits of a number that clients and edges round at random.
ROUNDED = 8
#: The normalized error is a sum over clients: this is a relative error of each of -17 dB.
TARGET = CLIENTS * 2e-2

ONE_SERVER = {"network": None}
DIRECTLY = "clients send to the cloud, and there are no edges"
TWO_LEVELS = fl.graphs.tree([EDGES, CLIENTS // EDGES])


def ring_of(network: Tree) -> Graph:
    return fl.graphs.ring(network.servers)


def groups_of(network: Tree, level: int) -> np.ndarray:
    """The server of each client on a level; the edges are level 1."""
    group = np.asarray(network.server)
    for above in network.parents[: level - 1]:
        group = np.asarray(above)[group]
    return group


@partial(jax.jit, static_argnames=("unit", "within"))
def data(
    key: jax.Array, unit: tuple[int, ...], within: tuple[int, ...] | None
) -> tuple[jax.Array, jax.Array]:
    """Features and targets of clients whose true models differ.

    Args:
      key: random key.
      unit: a number of each client; those with the same one have the same model.
      within: a wider group of each client, in which the models have the common one as their mean;
        ``None`` for none.
    """
    k_features, k_common, k_own, k_noise = jax.random.split(key, 4)
    deviation = jax.random.normal(k_own, (max(unit) + 1, DIM))[jnp.asarray(unit)]
    if within is not None:
        members = jax.nn.one_hot(jnp.asarray(within), max(within) + 1, axis=0)  # [groups, K]
        means = members @ deviation / jnp.sum(members, axis=1, keepdims=True)
        deviation = deviation - members.T @ means
    models = jax.random.normal(k_common, (1, DIM)) + STRENGTH * deviation
    features = features_of(k_features, CONDITION["well"], CLIENTS, DIM)
    clean = jnp.einsum("knd,kd->kn", features, models)
    return features, clean + NOISE**0.5 * jax.random.normal(k_noise, clean.shape)


def below_a_cloud(
    key: jax.Array, network: Tree, unit: int, within: int | None = None
) -> dict[str, Any]:
    """Least squares of clients on a tree.

    Args:
      key: random key.
      network: the tree.
      unit: the level whose members have one model: 0 for clients, 1 for edges.
      within: the level whose members do not differ; ``None`` if they differ on every level.
    """
    groups = [np.arange(CLIENTS), *(groups_of(network, level) for level in (1, 2))]
    numbers = [tuple(group.tolist()) for group in groups]
    drawn = data(key, numbers[unit], None if within is None else numbers[within])
    problem = fl.problems.Problem(drawn[0], drawn[1], fl.problems.LeastSquares())
    return {"problem": problem, "network": network}


def every(rounds: int) -> str:
    return f"clients send to their edge in each round, and edges to the cloud every {rounds} rounds"


def rule(
    words: str,
    parts: Mapping[str, Any] | None = None,
    participation: Mapping[str, Any] | None = None,
    **given: Any,
) -> Rule:
    """A rule with the rounds of all methods.

    Args:
      words: the rule's.
      parts: parts of the simulation in place of the scenario's, such as a network.
      participation: further arguments, which choose participants.
      given: further arguments.
    """
    steps = {"local_steps": LOCAL_STEPS}
    return Rule(words, None, ROUNDS, OFTEN, steps | given | dict(participation or {}), parts or {})


def compared(network: Tree, participants: int | None = None) -> dict[str, Rule]:
    """The methods of two levels, with as many local steps in a round.

    Args:
      network: the tree.
      participants: of each edge, all of its clients by default.
    """
    if participants is None:
        at_cloud = {}
        at_edges = {}
        at_servers = {}
    else:
        at_cloud = {"clients_per_round": participants * network.servers}
        at_edges = {"selector": fl.participation.PerServer(participants)}
        at_servers = {"clients_per_server": participants}
    without_cloud = {"network": Federation(network.server, ring_of(network))}
    with_ring = {"network": Tree(network.server, ring_of(network), network.parents)}
    return {
        "FedAvg": rule(DIRECTLY, ONE_SERVER, at_cloud),
        "SCAFFOLD": rule(f"{DIRECTLY}; a message has a control variate", ONE_SERVER, at_cloud),
        f"HierFAVG (every {OFTEN} rounds)": rule(
            every(OFTEN), participation=at_edges, intervals=OFTEN
        ),
        f"HierFAVG (every {RARELY} rounds)": rule(
            every(RARELY), participation=at_edges, intervals=RARELY
        ),
        "HierFAVG (edges on a ring)": rule(
            f"{every(RARELY)}; besides each edge averages with two neighbors in each round",
            with_ring,
            at_edges,
            intervals=RARELY,
        ),
        "Hier-Local-QSGD": rule(
            f"{every(OFTEN)}, up in differences of {ROUNDED} bits a number",
            participation=at_edges,
            intervals=OFTEN,
            compressors_up=Quantize(ROUNDED),
        ),
        "GFL, gradient": rule(
            "clients send to their edge, and edges average with two neighbors on a ring; there is "
            "no cloud",
            without_cloud,
            at_servers,
        ),
    }


for _name, _unit, _within, _clients in (
    ("alike", 0, 1, "the clients of each are not"),
    ("unlike", 1, None, "the clients of each are alike"),
):
    Scenario(
        f"edges-{_name}",
        f"Edges below a cloud: edges are {_name}, {_clients}",
        "How often edges have to reach the cloud depends on where clients differ (Liu et al. 2020 "
        "compare edges with all labels to edges with a few): within edges, which average it away, "
        "or from edge to edge.",
        f"Least squares; clients of five edges below a cloud; edges are {_name}, and {_clients}",
        partial(below_a_cloud, network=TWO_LEVELS, unit=_unit, within=_within),
        "normalized_error",
        target=TARGET,
        rounds=ROUNDS,
        axes={"edges": _name},
        talks="servers",
        costs=COSTS_OF_LEVELS,
        rules=compared(TWO_LEVELS),
    )

Scenario(
    "edges-some",
    "Edges below a cloud: two clients of each edge take part",
    "Servers of many clients reach few of them in a round (McMahan et al. 2017), and then edges "
    "are unlike in it even if all of their clients together are alike.",
    "Least squares; two of ten unlike clients of each of five edges below a cloud take part",
    partial(below_a_cloud, network=TWO_LEVELS, unit=0, within=1),
    "normalized_error",
    target=CLIENTS * 1e-1,
    rounds=ROUNDS,
    axes={"edges": "alike", "participation": PARTICIPANTS * EDGES / CLIENTS},
    talks="servers",
    costs=COSTS_OF_LEVELS,
    rules=compared(TWO_LEVELS, PARTICIPANTS),
)

THREE_LEVELS = fl.graphs.tree([REGIONS, EDGES_OF_REGION, CLIENTS // (REGIONS * EDGES_OF_REGION)])
UP = (
    f"clients send to their edge in each round, edges to their region every {OFTEN} rounds, and "
    f"regions to the cloud every {RARELY}"
)


def through_regions(rounds: int) -> str:
    return (
        f"clients send to their edge in each round, edges to their region every {rounds} rounds, "
        "and regions to the cloud at the same time"
    )


Scenario(
    "edges-regions",
    "Edges below regions below a cloud: edges are unlike, regions are not",
    "Telephone networks have base stations below regional centers below a core. A level between "
    "edges and cloud averages more often than the cloud (as levels do in Liu et al. 2020), which "
    "helps as far as regions are alike.",
    "Least squares; clients of ten edges of five regions below a cloud; edges are unlike, and "
    "regions are alike",
    partial(below_a_cloud, network=THREE_LEVELS, unit=1, within=2),
    "normalized_error",
    target=TARGET,
    rounds=ROUNDS,
    axes={"levels": 3},
    talks="servers",
    costs=COSTS_OF_LEVELS,
    rules={
        "FedAvg": rule(DIRECTLY, ONE_SERVER),
        "SCAFFOLD": rule(f"{DIRECTLY}; a message has a control variate", ONE_SERVER),
        f"HierFAVG (every {OFTEN} rounds)": rule(through_regions(OFTEN), intervals=(OFTEN, 1)),
        f"HierFAVG (every {RARELY} rounds)": rule(through_regions(RARELY), intervals=(RARELY, 1)),
        "HierFAVG (regions more often)": rule(UP, intervals=(OFTEN, RARELY // OFTEN)),
        "Hier-Local-QSGD": rule(
            f"{UP}, up in differences of {ROUNDED} bits a number",
            intervals=(OFTEN, RARELY // OFTEN),
            compressors_up=Quantize(ROUNDED),
        ),
    },
)
