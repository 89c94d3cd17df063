"""One table of cases: a small world, and in it an instance of every registered algorithm."""

import dataclasses

import fljax as fl
from fljax.algorithms import REGISTRY
from fljax.privacy import Notion
from fljax.problems import SquaredL2
from tests.cases import graph, peers, personalized, reading, server
from tests.cases.peers import meetings_of, probes, reaching
from tests.cases.reading import make_read
from tests.cases.server import SERVER_LOOPS, alike, online_loop, served
from tests.cases.world import (
    CLIENTS,
    CLUSTER,
    COLUMNS,
    DIM,
    EDGES,
    EXACT,
    LINE,
    MEMBERS,
    METROPOLIS,
    OBJECTIVE,
    PROBLEMS,
    ROUNDS,
    SERVER,
    SIZES,
    START,
    STRENGTH,
    TABLE,
    Case,
    coins_of,
    gap_of,
    keys_of,
    make_data,
    make_network,
    make_objective,
    make_problem,
    make_servers,
    sampled,
    some_of,
    step_of,
    whole,
)

__all__ = [
    "ADAPTED",
    "APART",
    "ASYNCHRONOUS",
    "CASES",
    "CLIENTS",
    "CLUSTER",
    "CLUSTERED",
    "COLUMNS",
    "DIM",
    "EDGES",
    "EXACT",
    "LABELS",
    "LINE",
    "MEMBERS",
    "METROPOLIS",
    "OBJECTIVE",
    "PERSONAL",
    "PLAIN",
    "PREDICTING",
    "PRIVATE",
    "PROBLEMS",
    "READING",
    "ROUNDS",
    "SAVING",
    "SENT",
    "SERVED",
    "SERVER",
    "SERVER_LOOPS",
    "SIZES",
    "START",
    "STEPS",
    "STREAMED",
    "STRENGTH",
    "TABLE",
    "Case",
    "alike",
    "coins_of",
    "gap_of",
    "keys_of",
    "make_data",
    "make_network",
    "make_objective",
    "make_problem",
    "make_read",
    "make_servers",
    "meetings_of",
    "online_loop",
    "probes",
    "reaching",
    "sampled",
    "served",
    "simulate",
    "some_of",
    "step_of",
    "whole",
]

#: By the literature's name: what is registered is tested, and measured, by what stands here.
CASES = server.CASES | personalized.CASES | graph.CASES | peers.CASES | reading.CASES

LABELS = list(CASES)
#: What a client of a server sends and gets in a round where it is not one model each: how many
#: messages, and models in them (DIM + 1 numbers where a number goes with one).
SENT = {
    "FedNova": (2, 2 + 1 / DIM),
    "SCAFFOLD": (2, 4),
    "DANE": (4, 4),
    "MIME": (4, 5),
    "MIMELite": (2, 4),
    "q-FedAvg": (2, 2 + 1 / DIM),
    "AFL": (2, 2 + 1 / DIM),
    "FedExP": (2, 2 + 1 / DIM),
}
PRIVATE = [label for label, case in CASES.items() if isinstance(case.privacy, Notion)]
STREAMED = [label for label in LABELS if REGISTRY[label].needs.data == "stream"]
SERVED = [label for label in LABELS if REGISTRY[label].needs.network is None]
#: With one server and a model of each client beside its own: more of them in test_personal.
#: The others in test_adapted.
ADAPTED = [
    *("Per-FedAvg", "APFL", "FedPer", "LG-FedAvg", "FedBN", "FedRep", "FedBABU"),
    *("FedALA", "FedAMP", "FedFomo", "APPLE", "SuPerFed"),
]
PERSONAL = ["Local only", "FedAvg-FT", "Ditto", "pFedMe", "IFCA", *ADAPTED]
#: That do not wait: more of them in test_asynchronous.
ASYNCHRONOUS = ["FedBuff", "FedAsync"]
#: With sizes of batches of each client: ISFedAvg, more of it in test_isfedavg.
#: With servers on a graph, or clusters: more of them in test_pgfl and test_npfl.
CLUSTERED = [
    *("PGFL", "GFL", "ClusterFL", "PGFL, single step", "GFL, gradient", "NPFL", "NPFL-RL"),
    *("PGFL, by loss", "PGFL, by gradient"),
    *("NPFL, by loss", "NPFL, by gradient", "NPFL, by parameters"),
]
#: Whose messages are predictions: more of them in test_model_agnostic and test_vertical.
PREDICTING = ["Model-agnostic FedRelax", "Generalized gradient", "Sharing ADMM"]
#: Whose gradients or messages are saved, most by draws: more of them in test_saving_peers.
SAVING = [
    *("GT-SAGA", "GT-SVRG", "GT-SARAH", "LT-ADMM", "LT-ADMM-VR", "Scaffnew", "ProxSkip"),
    *("Choco-SGD", "Gossip SGD", "Sampled diffusion", "SGP", "GT-VR", "ATC-GT-SAGA"),
    *("Network-SVRG", "Network-SARAH", "DESTRESS"),
]
#: Of a network's logits or representation: more of them in test_readings.
READING = list(reading.CASES)
APART = (
    *(*PERSONAL, *ASYNCHRONOUS, *CLUSTERED, *STREAMED, *PREDICTING, *SAVING, *READING),
    "ISFedAvg",
)
PLAIN = [label for label in LABELS if label not in APART]
#: Each step once: GFL and ClusterFL are PGFL with a switch, LG-FedAvg and FedBN are FedPer.
STEPS = [label for label in LABELS if label not in ("GFL", "ClusterFL", "LG-FedAvg", "FedBN")]


def simulate(label, problem=None, network=None, private=True, metrics=()):
    algorithm, privacy, *_ = CASES[label]
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    if label in CLUSTERED:
        tasks = fl.problems.Tasks(CLUSTER, 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    if label in READING:
        problem = make_read()
    if label == "Sharing ADMM":
        regularized = SquaredL2(), STRENGTH
        problem = fl.problems.vertical(TABLE[:, :-1], TABLE[:, -1], COLUMNS, *regularized)
    if label in STREAMED:
        problem = fl.streams.Replay(dataclasses.replace(problem, strength=0.0))
    if REGISTRY[label].needs.network is fl.federation.Federation:
        network = make_servers()
    return fl.Simulation(
        problem=problem,
        algorithm=algorithm,
        network=network,
        privacy=privacy if private else None,
        metrics=metrics,
    )
