"""Peers on a graph without a server: graph shapes, link failures, participation."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

import fljax as fl
from experiments.atlas.convex import CLIENTS, DISSIMILARITY, ROUNDS, TARGET, squares
from experiments.atlas.links import ABSENT, COMPRESSORS, LATE, WIDE, rounds_within
from experiments.atlas.scenario import LOCAL_STEPS, Scenario

DEGREE = 4
LIKENESS = "strongly unlike"


def ring(_: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.ring(CLIENTS)


def grid(_: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.grid(5, CLIENTS // 5)


@jax.jit
def random(key: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.random_connected(key, nodes=CLIENTS, mean_degree=DEGREE)


@jax.jit
def expander(key: jax.Array) -> fl.graphs.Graph:
    return fl.graphs.k_regular(key, nodes=CLIENTS, degree=DEGREE)


def exponential() -> np.ndarray:
    """Weights of the directed exponential graph: each hears those 1, 2, 4, ... places before it."""
    reach = [0, *(2**i for i in range(int(np.log2(CLIENTS - 1)) + 1))]
    return np.mean([np.roll(np.eye(CLIENTS), step, axis=0) for step in reach], axis=0)


WEIGHTS = exponential()


def undirected(_: jax.Array) -> fl.graphs.Graph:
    """The edges of the directed graph, on which messages go in one direction."""
    joined = (WEIGHTS + WEIGHTS.T > 0) & ~np.eye(CLIENTS, dtype=bool)
    return fl.graphs.from_adjacency(joined.astype(float))


def peers(
    key: jax.Array,
    graph: Callable[[jax.Array], fl.graphs.Graph] = random,
    more: Mapping[str, Any] | None = None,
    likeness: str = LIKENESS,
    **given: Any,
) -> dict[str, Any]:
    """Least squares of the clients, their graph, and other parts that all runs have."""
    k_graph, k_data = jax.random.split(key)
    problem = squares(k_data, likeness, **given)
    return {"problem": problem, "network": graph(k_graph), **(more or {})}


SHAPES: dict[str, tuple[Callable[[jax.Array], fl.graphs.Graph], str, str]] = {
    "ring": (
        ring,
        "a ring",
        "The worst connected regular graph: a gap of 1/K^2 (Nedic et al. 2018; Lian et al. 2017).",
    ),
    "grid": (grid, "a grid", "Sensors and machines on a plane: a gap of 1/K (Nedic et al. 2018)."),
    "random": (
        random,
        "a random graph",
        "A random connected graph with four neighbors on average, of unequal degree (Sayed 2014).",
    ),
    "expander": (
        expander,
        "an expander",
        "A random regular graph, whose gap does not vanish with its size (Friedman 2008).",
    ),
}

for _name, (_graph, _words, _reason) in SHAPES.items():
    Scenario(
        f"peers-{_name}",
        f"Peers on {_words}",
        _reason,
        f"Least squares; strongly unlike peers on {_words}",
        partial(peers, graph=_graph),
        "normalized_error",
        target=TARGET,
        rounds=ROUNDS,
        axes={"graph": _name, "dissimilarity": DISSIMILARITY[LIKENESS]},
        talks="peers",
    )

Scenario(
    "peers-directed",
    "Peers on a directed graph",
    "Links in one direction, as of radios of unequal power; the directed exponential graph mixes "
    "in log K rounds (Assran et al. 2019; Ying et al. 2021).",
    "Least squares; strongly unlike peers on a directed graph",
    partial(peers, graph=undirected),
    "normalized_error",
    target=TARGET,
    rounds=ROUNDS,
    axes={"graph": "directed exponential", "dissimilarity": DISSIMILARITY[LIKENESS]},
    talks="peers",
    given={
        "local_steps": LOCAL_STEPS,
        "mixing": fl.graphs.from_stochastic(WEIGHTS, convention="right"),
        "shares": WEIGHTS,
    },
    directed=True,
)

for _likeness in ("alike", "mildly unlike"):
    Scenario(
        f"peers-{_likeness.split()[0]}",
        f"{_likeness.capitalize()} peers on a random graph",
        "Correcting for dissimilarity pays where peers are unlike (Tang et al. 2018), which shows "
        "beside peers that are alike.",
        f"Least squares; {_likeness} peers on a random graph",
        partial(peers, likeness=_likeness),
        "normalized_error",
        target=TARGET,
        rounds=ROUNDS,
        axes={"graph": "random", "dissimilarity": DISSIMILARITY[_likeness]},
        talks="peers",
    )

for _name, _title, _reason, _more in (
    (
        "lossy",
        "links that lose a tenth of all messages in bursts",
        "Radio links fail in bursts (Gilbert 1960; Elliott 1963).",
        {"losses": fl.link.GilbertElliott(fail=0.05, recover=0.45)},
    ),
    (
        "late",
        "links that deliver half of all messages late",
        "Peers that do not wait for each other work with old copies (Wu et al. 2018).",
        {"delays": LATE},
    ),
    (
        "absent",
        "peers that are away half of the time",
        "Devices sleep; their neighbors go on with what they received last (Zhao and Sayed 2015).",
        {"participation": ABSENT},
    ),
):
    Scenario(
        f"peers-{_name}",
        f"A random graph with {_title}",
        _reason,
        f"Least squares; mildly unlike peers on a random graph with {_title}",
        partial(peers, more=_more, likeness="mildly unlike"),
        "normalized_error",
        target=TARGET,
        rounds=2 * ROUNDS,
        axes={"graph": "random", "link": _name},
        talks="peers",
        record_every=4,
    )

for _name in ("quantized", "top"):
    _words, _compressor = COMPRESSORS[_name]
    Scenario(
        f"peers-bits-{_name}",
        f"Peers on a random graph send {_words}",
        "Choco-SGD (Koloskova et al. 2019) and others promise that peers may compress; beside them "
        "stands every method whose messages the link compresses, at equal bits of a model.",
        f"Least squares; mildly unlike peers on a random graph may send few bits: {_words}",
        partial(peers, more={"compression": _compressor}, likeness="mildly unlike", dim=WIDE),
        "normalized_error",
        target=CLIENTS * 1e-1,
        rounds=rounds_within(_compressor),
        axes={"graph": "random", "compression": _words},
        talks="peers",
        given={"local_steps": LOCAL_STEPS, "compression": _compressor},
    )
