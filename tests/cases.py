"""One table of cases: a small world, and in it an instance of every registered algorithm."""

import dataclasses

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import (
    GFL,
    IFCA,
    NPFL,
    NPFLRL,
    PADMM,
    PGFL,
    REGISTRY,
    ZCDPNFL,
    ClusterFL,
    ConventionalFL,
    Ditto,
    EpsilonDeltaNFL,
    FedAvg,
    FineTunedFedAvg,
    GraphFedAvg,
    LocalOnly,
    NetworkedADMM,
    PFedMe,
    PGFLSingleStep,
    RandomProbe,
    SignSGD,
    ZCDPGradNFL,
)
from fljax.metrics import Metric
from fljax.privacy import ZCDP, ApproximateDP, Gap
from fljax.problems import (
    ElasticNet,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegulariser,
    SquaredL2,
    from_clients,
)
from fljax.schedules import GeometricDecay, PowerDecay
from tests.reference import nfl

SIZES = (4, 9, 6, 12, 7)
CLIENTS = len(SIZES)
DIM = 3
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)]
ROUNDS = 12
EXACT = Metric("exact", lambda now: now.model, "the models themselves")

#: name -> loss, regulariser, and the same to the reference: loss, l1, l2
PROBLEMS = {
    "ridge": (LeastSquares(), SquaredL2(), "squared", 0.0, 1.0),
    "elastic": (LeastSquares(), ElasticNet(0.4, 0.2), "squared", 0.4, 0.2),
    "lad": (LeastAbsoluteDeviation(), NoRegulariser(), "absolute", 0.0, 0.0),
    "logistic": (Logistic(), SquaredL2(), "logistic", 0.0, 1.0),
}
STRENGTH = 0.8


def make_data(name="ridge", seed=0, sizes=SIZES, dim=DIM):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim)
    data = []
    for size in sizes:
        X = rng.normal(size=(size, dim))
        y = X @ truth + 0.5 * rng.normal(size=size)
        data.append((X, np.sign(y) if name == "logistic" else y))
    return tuple(data)


def make_problem(name="ridge", clip=None, data=None, **kwargs):
    loss, regulariser, *_ = PROBLEMS[name]
    problem = from_clients(data or make_data(name, **kwargs), loss, regulariser, STRENGTH)
    return problem if clip is None else problem.clipped(clip)


def make_objective(name="ridge", clip=None, **kwargs):
    _, _, loss, l1, l2 = PROBLEMS[name]
    return nfl.Objective(make_data(name, **kwargs), loss, l1, l2, STRENGTH, clip)


def gap_of(problem, bound=1.0, neighbors="replace"):
    return Gap.of(ZCDP(1.0, gradient_bound=bound, neighbors=neighbors), problem)


def make_network(form="dense", nodes=CLIENTS, edges=EDGES):
    return fl.graphs.from_edges(nodes, edges, form=form)


#: A small instance of every registered algorithm and a budget it runs under (None: it has none).
INSTANCES = {
    "zCDP-NFL": (ZCDPNFL(0.9, PowerDecay(0.5)), ZCDP(2.0, 0.9)),
    "(eps,delta)DP-NFL": (EpsilonDeltaNFL(0.9, PowerDecay(0.5)), ApproximateDP(2.0, 1e-3, 0.9)),
    "zCDP-grad-NFL": (ZCDPGradNFL(0.05), ZCDP(2.0, 0.9)),
    "ADMM": (NetworkedADMM(0.9), None),
    "P-ADMM": (PADMM(0.9), ZCDP(2.0, 0.9)),
    "FL": (ConventionalFL(0.05), ZCDP(2.0, 0.9)),
    "FedAvg": (FedAvg(0.05, weighting="equal"), None),
    "SignSGD": (SignSGD(0.05), None),
    "Local only": (LocalOnly(0.05), None),
    "FedAvg-FT": (FineTunedFedAvg(FedAvg(0.05), 0.05), None),
    "Ditto": (Ditto(FedAvg(0.05), 0.05, 1.0), None),
    "pFedMe": (PFedMe(0.05, 1.0), None),
    "IFCA": (IFCA(0.05, 2), None),
    "PGFL": (PGFL(0.9, GeometricDecay(0.3, 0.9), 2), ZCDP(2.0, 0.9)),
    "GFL": (GFL(0.9), ZCDP(2.0, 0.9)),
    "ClusterFL": (ClusterFL(0.9, 0.3), ZCDP(2.0, 0.9)),
    "PGFL, single step": (PGFLSingleStep(0.9, GeometricDecay(0.3, 0.9)), None),
    "GFL, gradient": (GraphFedAvg(0.05), ZCDP(2.0, 0.9)),
    "NPFL": (NPFL(0.9, 0.3), None),
    "NPFL-RL": (NPFLRL(0.9, RandomProbe(0.1, 0.05)), None),
}
PRIVATE = [label for label, (_, privacy) in INSTANCES.items() if privacy is not None]
LABELS = list(INSTANCES)
SERVED = [label for label in LABELS if REGISTRY[label].needs.network is None]
#: With one server and a model of each client beside its own: more of them in test_personal.
PERSONAL = ["Local only", "FedAvg-FT", "Ditto", "pFedMe", "IFCA"]
#: With servers on a graph, or clusters: more of them in test_pgfl and test_npfl.
CLUSTERED = ["PGFL", "GFL", "ClusterFL", "PGFL, single step", "GFL, gradient", "NPFL", "NPFL-RL"]
PLAIN = [label for label in LABELS if label not in (*PERSONAL, *CLUSTERED)]
#: Each step once: GFL and ClusterFL are PGFL with a switch.
STEPS = [label for label in LABELS if label not in ("GFL", "ClusterFL")]
quiet = pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")


def simulate(label, problem=None, network=None, private=True, metrics=()):
    algorithm, privacy = INSTANCES[label]
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    if label in CLUSTERED:
        tasks = fl.problems.Tasks([0, 1, 0, 1, 1], 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    if REGISTRY[label].needs.network is fl.federation.Federation:
        network = fl.federation.Federation([0, 0, 1, 1, 1], make_network("dense", 2, [(0, 1)]))
    return fl.Simulation(
        problem=problem,
        algorithm=algorithm,
        network=network,
        privacy=privacy if private else None,
        metrics=metrics,
    )
