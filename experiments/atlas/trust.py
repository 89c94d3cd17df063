"""Attackers with robust aggregation and privacy at three budgets, with a server and among peers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

import fljax as fl
from experiments.atlas.convex import CLIENTS, ROUNDS
from experiments.atlas.graphs import peers
from experiments.atlas.links import with_parts
from experiments.atlas.scenario import LOCAL_STEPS, Scenario

#: A fifth of all clients, spread evenly.
ATTACKERS = np.arange(CLIENTS) % 5 == 0
#: Reach of peers on the ring under attack: at most three of the thirteen messages that each peer
#: combines come from attackers, which the aggregators withstand.
REACH = 6

#: Attacks with an aggregator, and the reason for the combination.
ATTACKS: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "flip": (
        "turn their updates around; trimmed mean",
        {
            "attack": fl.attacks.SignFlip(ATTACKERS, scale=3.0),
            "aggregation": fl.aggregation.TrimmedMean(0.25),
        },
        "The plainest attack (Li et al. 2019), and the mean without its tails (Yin et al. 2018).",
    ),
    "hidden": (
        "hide within the honest spread; median",
        {
            "attack": fl.attacks.ALittleIsEnough(ATTACKERS, deviations=1.5),
            "aggregation": fl.aggregation.Median(),
        },
        "The attack that robust aggregators do not see (Baruch et al. 2019).",
    ),
}


def crowd(_: jax.Array) -> fl.graphs.Graph:
    """A ring on which every peer has the neighbors within a reach."""
    pairs = [(k, (k + far) % CLIENTS) for k in range(CLIENTS) for far in range(1, REACH + 1)]
    return fl.graphs.from_edges(CLIENTS, pairs, form="padded")  # of 13 messages each, not of 50


for _name, (_words, _more, _reason) in ATTACKS.items():
    for _talks, _who in (("server", "clients of one server"), ("peers", "peers")):
        _make: Callable[..., dict[str, Any]] = (
            partial(with_parts, more=_more, likeness="mildly unlike")
            if _talks == "server"
            else partial(peers, graph=crowd, more=_more, likeness="mildly unlike")
        )
        Scenario(
            f"attack-{_name}-{_talks}",
            f"A fifth of {_who} {_words}",
            _reason,
            f"Least squares; mildly unlike {_who}, a fifth of which {_words}",
            _make,
            "normalized_error",
            target=CLIENTS * 4e-2,
            rounds=ROUNDS,
            axes={"attack": _words.split(";")[0], "attackers": 0.2},
            talks=_talks,
        )

#: Clients in a private server's sum, and the number of rounds that share a budget.
MANY = 200
FEW_ROUNDS = 50
DELTA = 1e-5
#: Largest norm of a client's update, and of a sample's gradient.
CLIP = 1.0

for _epsilon in (1.0, 4.0, 16.0):
    Scenario(
        f"private-server-{_epsilon:g}",
        f"A trusted server, client-level privacy with epsilon {_epsilon:g}",
        "Client-level differential privacy by a trusted server (McMahan et al. 2018) at the "
        "budgets that are reported: 1 is strong, 4 usual, 16 weak; delta is 1e-5.",
        f"Least squares; {MANY} alike clients, client-level privacy of epsilon {_epsilon:g} "
        "by a trusted server",
        partial(
            with_parts,
            more={
                "privacy": fl.privacy.CentralGaussian.for_budget(
                    _epsilon, DELTA, rounds=FEW_ROUNDS, clip=CLIP
                )
            },
            likeness="alike",
            clients=MANY,
        ),
        "normalized_error",
        target=MANY * 1e-2,
        rounds=FEW_ROUNDS,
        axes={"epsilon": _epsilon, "privacy": "of clients, by a server"},
        given={"local_steps": LOCAL_STEPS},
    )


def private_peers(key: jax.Array, rho: float) -> dict[str, Any]:
    """Peers whose per-sample gradients are clipped to the bound that the budget assumes."""
    parts = peers(key, likeness="alike")
    budget = fl.privacy.ZCDP(total_rho=rho, gradient_bound=CLIP)
    return parts | {"problem": parts["problem"].clipped(CLIP), "privacy": budget}


for _rho in (0.1, 1.0, 10.0):
    Scenario(
        f"private-peers-{_rho:g}",
        f"Peers under sample-level privacy of {_rho:g}-zCDP",
        "Messages between peers are seen by all, so each protects its own samples "
        "(Gauthier 2024, chapter 3, whose range of budgets this is).",
        f"Least squares; alike peers on a random graph, sample-level privacy of {_rho:g}-zCDP",
        partial(private_peers, rho=_rho),
        "normalized_error",
        target=CLIENTS * 1e-1,
        rounds=FEW_ROUNDS,
        axes={"rho": _rho, "privacy": "of samples, among peers"},
        talks="peers",
    )
