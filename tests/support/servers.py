"""Algorithms with servers, and the models of their servers."""

import numpy as np

import fljax as fl
from fljax._core.prng import as_key
from tests.cases import CASES, make_problem

#: Rounds of the runs of servers.
ROUNDS = 6

#: Algorithms with one server or several.
WITH_SERVERS = [
    label for label, case in CASES.items() if case.algorithm.needs.network is not fl.graphs.Graph
]


def server_models(algorithm, rounds=ROUNDS, network=None, **options):
    """The servers' models of every round: ``[T, P, D]``, or ``[T, 1, D]`` of one server."""
    of = ("server", ("server", "parameter")) if network else ("model",)
    simulation = fl.Simulation(
        make_problem(), algorithm, network, metrics=[fl.metrics.trajectory(*of)], **options
    )
    results = np.asarray(fl.run(simulation, rounds, as_key(1))[f"{of[0]}_trajectory"])
    return results if network else results[:, :1]
