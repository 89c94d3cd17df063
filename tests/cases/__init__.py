"""One table of cases: a small world, and in it an instance of every registered algorithm."""

import dataclasses

import fljax as fl
from fljax.algorithms import REGISTRY
from fljax.problems import SquaredL2
from tests.cases import graph, peers, personalized, reading, server
from tests.cases.peers import (
    drawn_to_complete,
    exact_peer_models,
    meetings_of,
    neighbors_of,
    probes,
)
from tests.cases.reading import make_read
from tests.cases.server import SERVER_LOOPS, full_participation_world, online_loop, server_loop
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
    batch_gradient,
    coins_of,
    full_batches,
    gap_of,
    keys_of,
    make_data,
    make_network,
    make_objective,
    make_problem,
    make_servers,
    sample_gradient_of,
    step_of,
)

__all__ = [
    "ADAPTED",
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
    "PROXIMAL",
    "READING",
    "ROUNDS",
    "SAVING",
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
    "batch_gradient",
    "coins_of",
    "drawn_to_complete",
    "exact_peer_models",
    "full_batches",
    "full_participation_world",
    "gap_of",
    "keys_of",
    "make_data",
    "make_network",
    "make_objective",
    "make_problem",
    "make_read",
    "make_servers",
    "meetings_of",
    "neighbors_of",
    "network_of",
    "online_loop",
    "probes",
    "sample_gradient_of",
    "server_loop",
    "simulate",
    "step_of",
]

#: Every registered algorithm by its name in the literature; each is tested and measured by its
#: entry.
CASES = server.CASES | personalized.CASES | graph.CASES | peers.CASES | reading.CASES

LABELS = list(CASES)
PRIVATE = [
    label
    for label, case in CASES.items()
    if case.privacy is not None and case.privacy.scope == "message"
]
STREAMED = [label for label in LABELS if REGISTRY[label].needs.data == "stream"]
SERVED = [label for label in LABELS if REGISTRY[label].needs.network is None]
#: Algorithms with one server and an additional model of each client.
ADAPTED = [
    *("Per-FedAvg", "APFL", "pFedMe, by gradient", "FedPer", "LG-FedAvg", "FedBN", "FedRep"),
    *("FedBABU", "FedALA", "FedAMP", "FedFomo", "APPLE", "SuPerFed"),
]
PERSONAL = ["Local only", "FedAvg-FT", "Ditto", "pFedMe", "IFCA", "CFL", "FedEM", *ADAPTED]
#: Servers that do not wait.
ASYNCHRONOUS = ["FedBuff", "FedAsync"]
#: Algorithms with servers on a graph, or clusters: more of them in test_pgfl and test_npfl.
CLUSTERED = [
    *("PGFL", "GFL", "ClusterFL", "PGFL, single step", "GFL, gradient", "NPFL", "NPFL-RL"),
    *("PGFL, by loss", "PGFL, by gradient"),
    *("NPFL, by loss", "NPFL, by gradient", "NPFL, by parameters"),
]
#: Algorithms whose messages are predictions: more of them in test_model_agnostic.
PREDICTING = ["Model-agnostic FedRelax", "Generalized gradient", "Sharing ADMM"]
#: Algorithms that save gradients or messages, most of them by draws.
SAVING = [
    *("GT-SAGA", "GT-SVRG", "GT-SARAH", "LT-ADMM", "LT-ADMM-VR", "Scaffnew", "ProxSkip"),
    *("Choco-SGD", "Gossip SGD", "Sampled diffusion", "SGP", "GT-VR", "ATC-GT-SAGA"),
    *("Network-SVRG", "Network-SARAH", "DESTRESS", "AD-PSGD", "SwarmSGD"),
    "Random walk",
    *("BEER", "MoTEF", "LEAD", "CEDAS", "DeTAG", "Epidemic learning", "Teleportation"),
]
#: Algorithms that compress by draws of each client: more of them in test_compressing.
COMPRESSING = ["DIANA", "MARINA", "DASHA", "ADIANA", "CANITA", "TAMUNA"]
#: Algorithms that read logits or representations of a network: more of them in test_predictions.
READING = list(reading.CASES)
PROXIMAL = (
    *(*PERSONAL, *ASYNCHRONOUS, *CLUSTERED, *STREAMED, *PREDICTING, *SAVING, *READING),
    *COMPRESSING,
    "ISFedAvg",
)
PLAIN = [label for label in LABELS if label not in PROXIMAL]
#: Each step once: GFL and ClusterFL are PGFL with a switch, LG-FedAvg and FedBN are FedPer.
STEPS = [label for label in LABELS if label not in ("GFL", "ClusterFL", "LG-FedAvg", "FedBN")]


def network_of(algorithm):
    """The small network of the cases, or one of all edges if the algorithm needs them."""
    return fl.graphs.complete(CLIENTS) if algorithm.needs.complete else make_network()


def simulate(label, problem=None, network=None, private=True, metrics=()):
    algorithm, privacy, *_ = CASES[label]
    problem = make_problem() if problem is None else problem
    network = network_of(algorithm) if network is None else network
    if label in CLUSTERED:
        tasks = fl.problems.Tasks(CLUSTER, 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    if label in READING:
        problem = make_read(label=label)
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
