"""What every public callable says of bad input: each parameter in turn is given None, text, NaN ...

A call must end in a `TypeError` or `ValueError` of one line, raised by fljax itself or naming the
parameter; or be listed below as accepted. A public callable or parameter without an entry fails.
"""

import dataclasses
import functools
import inspect
import operator
import tempfile
import traceback
import types
from pathlib import Path

import flax.linen
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import networkx
import numpy as np
import optax
import pytest
import xarray as xr
from matplotlib.figure import Figure
from scipy import sparse

import fljax as fl
from fljax._core import checks, memory
from fljax.privacy import ZCDP
from fljax.study import batched_program, grid
from fljax.study.request import Request, Study
from tests.cases import CASES
from tests.cases.mechanisms import MECHANISMS

PACKAGE_FOLDER = Path(fl.__file__).parent

PACKAGES = {
    "": fl,
    "aggregation": fl.aggregation,
    "algorithms": fl.algorithms,
    "attacks": fl.attacks,
    "augmentations": fl.augmentations,
    "audit": fl.audit,
    "batches": fl.batches,
    "clock": fl.clock,
    "clustering": fl.clustering,
    "contrib": fl.contrib,
    "data": fl.data,
    "descent": fl.descent,
    "executors": fl.executors,
    "fairness": fl.fairness,
    "federation": fl.federation,
    "graphs": fl.graphs,
    "link": fl.link,
    "metrics": fl.metrics,
    "models": fl.models,
    "monitoring": fl.monitoring,
    "optimizers": fl.optimizers,
    "participation": fl.participation,
    "partitions": fl.partitions,
    "plotting": fl.plotting,
    "privacy": fl.privacy,
    "privacy.accounting": fl.privacy.accounting,
    "privacy.matrices": fl.privacy.matrices,
    "problems": fl.problems,
    "schedules": fl.schedules,
    "statistics": fl.statistics,
    "streams": fl.streams,
    "theory.compression": fl.theory.compression,
    "study_files": fl.study_files,
    "theory.multiagent": fl.theory.multiagent,
    "theory.multiagent_privacy": fl.theory.multiagent_privacy,
    "theory.network_rates": fl.theory.network_rates,
    "theory.networks": fl.theory.networks,
    "theory.operators": fl.theory.operators,
    "theory.step_bounds": fl.theory.step_bounds,
    "theory.pao_fed": fl.theory.pao_fed,
    "theory.pgfl": fl.theory.pgfl,
    "theory.zcdp_nfl": fl.theory.zcdp_nfl,
    "track": fl.track,
}

#: Not covered here: objects that the library creates and returns; and `module`, which takes any
#: class and reports errors when it is constructed.
NOT_COVERED = {"Comparison", "Interrupted", "Plan", "Tuned", "module"}

#: Created by the library inside a run or for its results, not by users: records, and functions
#: whose arrays were checked on their way in.
INSIDE = {
    "contrib.Tradeoff",
    "algorithms.Needs",
    "algorithms.NetworkState",
    "algorithms.server_start",
    "algorithms.start_models",
    "audit.OneRun",
    "partitions.Heterogeneity",
    "partitions.Partition",
    "partitions.Pool",
    "partitions.OwnedSamples",
    "contrib.TrainedAttack",
    "audit.Overheard",
    "audit.Protection",
    "batches.Batch",
    "batches.per_client",
    "batches.taken",
    "audit.Report",
    "audit.TwoWorlds",
    "audit.WorstNeighbors",
    "audit.gaussian_misses",
    "clustering.Clusters",
    "clustering.GaussianMixture",
    "clustering.Quality",
    "data.CalCOFI",
    "data.Images",
    "data.Nodes",
    "data.Samples",
    "data.SampleTable",
    "data.Users",
    "data.Weather",
    "graphs.Combination",
    "graphs.Critical",
    "graphs.Graph",
    "graphs.Overflow",
    "graphs.Resilience",
    "link.Arrived",
    "link.HashFunctions",
    "link.Inbox",
    "link.Line",
    "link.Link",
    "link.Memory",
    "link.Noise",  # which must be subclassed
    "link.Stages",
    "link.Traffic",
    "link.begin",
    "link.empty_line",
    "link.receivers_of",
    "link.wide",
    "link.wide_sum",
    "metrics.Snapshot",
    "metrics.held_out",
    "models.Autoencoder",
    "models.Layout",
    "models.layout_of",
    "monitoring.Alarm",
    "monitoring.Alarms",
    "monitoring.AlarmReport",
    "monitoring.Silence",
    "clock.Choice",
    "clock.Profile",
    "clock.Rates",
    "clock.Times",
    "clock.Work",
    "participation.Law",
    "participation.Participants",
    "participation.everyone_or",
    "privacy.Gap",
    "privacy.Release",
    "problems.Certificate",
    "problems.Reading",
    "contrib.Interval",
    "contrib.Prediction",
    "problems.Solution",
    "problems.ClusteredNetwork",
    "problems.factorize",
    "problems.prox",
    "streams.StreamState",
    "streams.classical_target",
    "streams.printed_target",
    "streams.samples",
    "theory.multiagent.BestStep",
    "theory.multiagent.Curves",
    "theory.multiagent.DrawMoments",
    "theory.multiagent.SteadyState",
    "theory.network_rates.Asynchronous",
    "descent.Extremes",
    "theory.network_rates.LargestBound",
    "theory.networks.ConnectivityBound",
    "theory.networks.Curvature",
    "theory.networks.ErdosRenyi",
    "theory.compression.Accelerated",
    "theory.compression.CompressedRate",
    "theory.compression.ConvexRate",
    "theory.step_bounds.FedAvgBound",
    "theory.step_bounds.Gossip",
    "theory.step_bounds.Rate",
    "theory.operators.Evidence",
    "theory.operators.FixedPoint",
    "theory.pao_fed.Extended",
    "contrib.EstimationError",
    "contrib.LabelShiftBound",
    "theory.pgfl.Bias",
    "theory.pgfl.RidgeRound",
    "theory.zcdp_nfl.Arcs",
    "theory.zcdp_nfl.Operators",
    "theory.zcdp_nfl.Sides",
    "theory.zcdp_nfl.TheoremTwoBound",
    "theory.zcdp_nfl.Transcript",
    "study_files.StudyFile",  # made by read
    "track.Curve",
    "track.Point",
    "track.Summary",
    # of files and downloads, which tests/data holds
    "data.Population",
    "data.avazu",
    "data.calcofi",
    "data.cifar10",
    "data.cifar100",
    "data.download",
    "data.fmi",
    "data.fmi_records",
    "data.femnist",
    "data.ijcnn1",
    "data.leaf",
    "data.clients_of_leaf",
    "data.libsvm",
    "data.locate",
    "data.mnist",
    "data.mnist_sample",
    "data.organamnist",
    "data.read_cifar",
    "data.read_idx",
    "data.shakespeare",
    "data.write_population",
}

BAD = {
    "none": None,
    "text": "text",
    "objects": [object(), object()],
    "nan": float("nan"),
    "infinity": float("inf"),
    "negative": -2,
    "list": [0.1, 0.2],
    "ragged": [[1.0], [1.0, 2.0]],
    "shape": np.ones((2, 3, 1, 2)),
    "complex": 1j,
    "complexes": np.array([1j, 2.0]),
    "object": object(),
    "true": True,
    "empty": np.zeros(0),
    "masked": np.ma.array([0.1, 0.2], mask=[False, True]),
    "duration": np.timedelta64(5, "s"),
}

K = 4
KEY = jax.random.key(0)
FOLDER = tempfile.TemporaryDirectory()  # removed at the end of the process
MASK = np.array([True, False, False, False])
CLUSTER = np.array([0, 1, 0, 1])
IMAGES = fl.data.Images(
    "digits",
    np.arange(8 * 4, dtype=np.uint8).reshape(8, 2, 2),
    np.repeat([0, 1], 4),
    np.arange(8 * 4, dtype=np.uint8).reshape(8, 2, 2),
    np.repeat([0, 1], 4),
    ("0", "1"),
    "here",
)


class Columns:
    """What `from_huggingface` asks of a data set."""

    column_names = ("x", "y")
    features = dict.fromkeys(column_names)

    def __len__(self):
        return 2

    def __getitem__(self, rows):
        return dict.fromkeys(self.column_names, np.arange(2))

    def with_format(self, kind, dtype=None):
        return self

    def select_columns(self, names):
        return self


@functools.cache
def problem(samples=5, clients=K):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(clients, samples, 2))
    targets = rng.normal(size=(clients, samples))
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares())


def generator_arguments(**more):
    return {"key": KEY, "clients": K, "samples": 5, "dim": 2, **more}


def private(**more):
    return {"decay": 0.9, "gradient_bound": 1.0, "neighbors": "replace", **more}


SIMULATION = fl.Simulation(
    problem=problem(), algorithm=fl.algorithms.ZCDPNFL(1.0, 0.1), network=fl.graphs.ring(K)
)
DEVICES = fl.clock.Devices(seconds_per_step=1.0)
STEP = {"step_size": 0.1}
ADMM = {"penalty": 1.0}
CLIP = {"noise_multiplier": 1.0, "clip": 1.0}
RELEASE = {"epsilon": 1.0, "delta": 1e-5}
CALLS = {"releases": 2}
CYCLE = {"strategy": fl.privacy.matrices.square_root(2), "rounds": 4, "rate": 0.1, "cycle": 2}
CYCLES = {**CYCLE, "noise_multiplier": 1.0}
SAMPLED = {
    "strategy": fl.privacy.matrices.square_root(2),
    "rounds": 4,
    "bins": 2,
    "samples": 1000,
}
BINS = {**SAMPLED, "noise_multiplier": 1.0}
TRIALS = {"shape": 1.0, "stop": 0.1}
RESULTS = xr.Dataset(
    {
        "error": (("algorithm", "seed", "round"), np.ones((2, 3, 2)), {"decibel": 1}),
        "diverged": (("algorithm", "seed"), np.zeros((2, 3), int)),
    },
    coords={"algorithm": ["one", "two"], "round": [1, 2]},
)
BUDGETS = RESULTS.rename(algorithm="budget").assign_coords(budget=[0.1, 1.0])
ON_CLOCK = RESULTS.assign(
    seconds=(("seed", "round"), np.tile([1.0, 2.0], (3, 1))),
    timeline=(("round", "client", "phase"), np.ones((2, K, 5))),
)
STUDY = {"dataset": RESULTS}
MEASURED = {**STUDY, "metric": "error"}
DRAWN = {"key": KEY, "clients": K, "samples": 5, "dim": 2}
AR = {"memory": np.full(K, 0.5), "mean": np.zeros(K), "variance": np.ones(K), "noise": np.ones(K)}
ATTACK = {"attackers": MASK}

SERVED = fl.Simulation(
    problem=fl.problems.clustered_ridge(KEY, CLUSTER, 2, (3, 3), 2, 0.1, 1.0),
    algorithm=fl.algorithms.PGFL(1.0),
    network=fl.federation.balanced(2, fl.graphs.path(2)),
)
CASE = {
    "correlations": np.stack([np.eye(2), 0.5 * np.eye(2)]),
    "noise_variances": np.array([0.01, 0.01]),
    "participation": np.array([0.9, 0.5]),
    "delays": np.array([0.8, 0.16]),
    "weights": np.array([1.0, 0.2]),
    "portion": 1,
    "step_size": 0.05,
}
DIFFUSED = fl.Simulation(problem(), fl.algorithms.ATC(0.1), fl.graphs.ring(K))
FAILING = {
    "network": fl.graphs.ring(K),
    "nodes": np.arange(K) == 0,
    "edges": np.zeros((K, K), bool),
}
COUPLED = {"problem": problem(), "network": fl.graphs.ring(K), "coupling": 0.5}
PAIRS = {"operator": jnp.tanh, "center": np.ones((K, 2)), "key": KEY, "scale": 1.0, "pairs": 2}
INSTANCE = {"instance": fl.theory.pao_fed.Instance(**CASE)}
COMBINATION = fl.graphs.ring(K).mixing()
TRANSCRIPT = fl.theory.zcdp_nfl.Transcript(*[jnp.zeros((3, K, 2))] * 3)
RECORDED = {"simulation": SIMULATION, "transcript": TRANSCRIPT}
PRIVATE = dataclasses.replace(SIMULATION, problem=problem().clipped(1.0), privacy=ZCDP(1.0))
PROBABILITIES = {"delta": 1e-5, "confidence": 0.95}


def study(key, penalty=1.0):
    return SIMULATION


#: One valid call of every public callable.
VALID = {
    "citation": {"subject": SIMULATION},
    "load": {"path": "results.nc"},
    "merge": {"into": "whole"},
    "plan": {"scenario": study, "rounds": 2},
    "report": {"results": RESULTS, "path": "study.html"},
    "save": {"dataset": xr.Dataset(), "path": "results.nc"},
    "field": {"converter": float},
    "static": {"values": [1, 2]},
    "sweep": {"scenario": study, "rounds": 2},
    "study_files.example": {},
    "study_files.read": {"source": {"scenario": "mine.py:scenario", "rounds": 2}},
    "executors.dask": {},
    "executors.executor_of": {"description": "processes"},
    "executors.mpi": {},
    "executors.processes": {},
    "executors.ray": {},
    "executors.submitit": {"folder": "jobs"},
    "track.csv": {"folder": "files"},
    "track.mlflow": {},
    "track.tensorboard": {},
    "track.wandb": {"project": "networks"},
    "audit.claimed_epsilon": {"ledger": {"rho": 1.0}, "delta": 1e-5},
    "audit.corners": {"problem": problem()},
    "audit.counted_epsilon": {"hits": 5, "false_alarms": 1, "of": 10, **PROBABILITIES},
    "audit.measured_rho": {
        **dict.fromkeys(("noise", "gap", "rho"), np.ones((2, 3))),
        "dim": 4,
        "confidence": 0.95,
    },
    "audit.without": {"problem": problem(), "client": 1, "sample": 0},
    "audit.guessed_epsilon": {"right": 5, "guesses": 6, "canaries": 10, **PROBABILITIES},
    "audit.one_run": {"simulation": PRIVATE, "canaries": problem(), "rounds": 2, "delta": 1e-5},
    "audit.overheard": {
        "noise": fl.link.PerEdge(1.0),
        "over": COMBINATION,
        "victim": 0,
        "attackers": 1,
    },
    "audit.overheard_upload": {"clients": K, "victim": 0},
    "audit.protection": {"over": COMBINATION, "victim": 0},
    "audit.shaped_epsilon": {
        "scores": np.random.default_rng(0).normal(size=(2, 99)),
        **PROBABILITIES,
    },
    "audit.twins": {"simulation": SIMULATION, "neighbor": problem(), "rounds": 2},
    "audit.two_worlds": {
        "simulation": PRIVATE,
        "neighbor": problem(),
        "rounds": 2,
        "delta": 1e-5,
    },
    "audit.unperturbed": {"simulation": PRIVATE},
    "audit.upload_protection": {"clients": K},
    "audit.within": {
        "results": xr.Dataset(
            dict.fromkeys(
                ["deviation", "error", "other_error"], (("seed", "round"), np.ones((2, 3)))
            )
            | {"optima": 1.0},
            attrs={"nodes": 2},
        ),
        "error": 1.0,
        "other_error": 1.0,
    },
    "theory.multiagent_privacy.bound_probability": {
        "mean_square": np.ones(3),
        "other_mean_square": np.ones(3),
        "error": 1.0,
        "other_error": 1.0,
    },
    "theory.multiagent_privacy.neighbor_deviation_bound": {
        "error": 1.0,
        "other_error": 1.0,
        "optima": 1.0,
    },
    "theory.multiagent_privacy.epsilon": {"deviation": np.ones(3), "variance": 1.0},
    "theory.multiagent_privacy.noise_variance": {"deviation": np.ones(3), "epsilon": 1.0},
    "theory.multiagent.best_step": {
        "hessian": np.eye(2),
        "noise": np.eye(2),
        "variance": 0.1,
    },
    "theory.multiagent.centroid_floor": {
        "problem": problem(),
        "combination": fl.graphs.ring(K).mixing(),
        "noise": fl.link.PerEdge(0.1),
        "step_size": 0.1,
    },
    "theory.multiagent.crossover": {
        "simulation": DIFFUSED,
        "one": fl.link.GraphHomomorphic(0.1),
        "other": fl.link.PerEdge(0.1),
        "between": (0.01, 0.4),
    },
    "theory.multiagent.disagreement_floor": {
        "combination": fl.graphs.ring(K).mixing(),
        "noise": fl.link.PerEdge(0.1),
        "dim": 2,
    },
    "theory.multiagent.drift": {"problem": problem()},
    "theory.multiagent.gradient_noise": {
        "problem": problem(),
        "draws": fl.algorithms.FedAvg(0.1, 2),
        "at": np.ones(2),
    },
    "theory.multiagent.hessian": {"problem": problem(), "weights": np.ones(K)},
    "theory.multiagent.importance": {
        "problem": problem(),
        "clients": np.full(K, 1 / K),
        "samples": np.full((K, 5), 1 / 5),
        "clients_per_round": 2,
    },
    "theory.multiagent.learning_curve": {"simulation": DIFFUSED, "rounds": 2},
    "theory.multiagent.local_minimizers": {"problem": problem()},
    "theory.multiagent.minimizer": {"problem": problem(), "weights": np.ones(K)},
    "theory.multiagent.neighbor_importance": {
        "simulation": dataclasses.replace(DIFFUSED, algorithm=fl.algorithms.SampledDiffusion(0.1))
    },
    "theory.multiagent.noise_covariance": {
        "combination": fl.graphs.ring(K).mixing(),
        "noise": fl.link.PerEdge(0.1),
    },
    "theory.multiagent.noise_gain": {"hessian": np.eye(2), "step_size": 0.1},
    "theory.multiagent.sampling": {
        "problem": problem(),
        "algorithm": fl.algorithms.FedAvg(0.1, 2),
    },
    "theory.multiagent.stable_step": {"simulation": DIFFUSED},
    "theory.multiagent.stationary": {
        "hessian": np.eye(2),
        "step_size": 0.1,
        "noise": np.eye(2),
    },
    "theory.multiagent.steady_state": {"simulation": DIFFUSED},
    "theory.multiagent.upload_floor": {
        "hessian": np.eye(2),
        "step_size": 0.1,
        "variance": 0.1,
        "clients_per_round": 2,
    },
    "theory.network_rates.asynchronous_bound": {
        "factor": 0.5,
        "events": 3,
        "delay": 2,
        "activity": 2,
    },
    "theory.network_rates.consensus_extremes": {"network": fl.graphs.ring(K)},
    "theory.network_rates.excited": {**COUPLED, "start": np.ones((K, 2))},
    "theory.network_rates.extremes": COUPLED,
    "theory.network_rates.fedrelax_factors": COUPLED,
    "theory.network_rates.fedrelax_rate": COUPLED,
    "theory.network_rates.largest_bound": COUPLED,
    "theory.network_rates.perturbed_bound": {
        "factor": 0.5,
        "distance": 1.0,
        "perturbations": np.ones(3),
        "printed": False,
    },
    "theory.network_rates.prox_factor": {"convexity": 1.0, "weight": 1.0},
    "theory.network_rates.smallest_bound": COUPLED,
    "theory.compression.adiana": {
        "smoothness": 2.0,
        "convexity": 1.0,
        "variance": 3.0,
        "clients": 5,
    },
    "theory.compression.canita": {"smoothness": 2.0, "variance": 3.0, "clients": 5},
    "theory.compression.dasha": {
        "smoothness": 2.0,
        "variance": 3.0,
        "clients": 5,
        "convexity": 1.0,
        "client_smoothness": 3.0,
    },
    "theory.compression.diana": {
        "smoothness": 2.0,
        "variance": 3.0,
        "clients": 5,
        "convexity": 1.0,
    },
    "theory.compression.ef21": {
        "smoothness": 2.0,
        "contraction": 0.5,
        "convexity": 1.0,
        "client_smoothness": 3.0,
    },
    "theory.compression.marina": {
        "smoothness": 2.0,
        "variance": 3.0,
        "clients": 5,
        "probability": 0.5,
        "convexity": 1.0,
        "participants": 3,
    },
    "theory.step_bounds.choco_consensus": {
        "weights": fl.graphs.ring(K).mixing(),
        "contraction": 0.5,
    },
    "theory.step_bounds.easgd_step": {"smoothness": 2.0, "moving_rate": 0.1, "clients": 5},
    "theory.step_bounds.fedavg_bound": {
        "smoothness": 2.0,
        "convexity": 1.0,
        "local_steps": 2,
        "steps": 9,
        "heterogeneity": 0.1,
        "gradient_bound": 1.0,
        "noise": 0.1,
        "distance": 1.0,
    },
    "theory.step_bounds.gradient_tracking_step": {
        "smoothness": 2.0,
        "weights": fl.graphs.ring(K).mixing(),
        "form": "DIGing",
    },
    "theory.step_bounds.proxskip": {"smoothness": 2.0, "convexity": 1.0, "probability": 0.5},
    "theory.step_bounds.saga": {"smoothness": 2.0, "convexity": 1.0, "samples": 5},
    "theory.step_bounds.scaffold_step": {
        "smoothness": 2.0,
        "convexity": 1.0,
        "local_steps": 2,
        "clients": 5,
        "participants": 3,
        "server_step_size": 1.0,
    },
    "theory.networks.cluster_deviation_bound": {
        **COUPLED,
        "members": CLUSTER == 0,
        "truth": np.ones(2),
        "solution": np.ones((K, 2)),
    },
    "theory.networks.common_error_bound": {**COUPLED, "truth": np.ones(2)},
    "theory.networks.connectivity_bound": {"network": fl.graphs.ring(K)},
    "theory.networks.curvature": {"problem": problem()},
    "theory.networks.deviation_bound": {**COUPLED, "truth": np.ones(2)},
    "theory.networks.erdos_renyi_estimates": {"nodes": 3, "edge_probability": 0.5},
    "theory.networks.laplacian_bound": {"network": fl.graphs.ring(K)},
    "theory.networks.local_error_bound": {"problem": problem(), "truth": np.ones(2)},
    "theory.operators.contractive": {**PAIRS, "factor": 0.5, "norm": "block"},
    "theory.operators.firmly_non_expansive": PAIRS,
    "theory.operators.fixed_point": {
        "operator": jnp.tanh,
        "start": np.ones((K, 2)),
        "tolerance": 0.5,
        "most": 3,
    },
    "theory.operators.lipschitz": {**PAIRS, "norm": "block"},
    "theory.operators.operator": {"simulation": DIFFUSED},
    "contrib.median_residual": {
        "point": np.ones(2),
        "messages": np.eye(3, 2),
        "weights": np.ones(3),
    },
    "contrib.robustness_ratio": {
        "simulation": DIFFUSED,
        "models": np.ones((K, 2)),
        "perturbed": np.zeros((K, 2)),
    },
    "contrib.estimation_error": {"models": np.eye(3, 2), "truth": np.ones(2)},
    "contrib.label_shift": {**COUPLED, "change": np.ones((K, 5))},
    "contrib.label_shift_bound": {**COUPLED, "change": np.ones((K, 5))},
    "theory.pao_fed.Instance": CASE,
    "theory.pao_fed.expected_matrices": INSTANCE,
    "theory.pao_fed.extended_matrices": {
        "available": MASK,
        "received": np.ones((K, 2), bool),
        "sent": np.ones((1, K, 2), bool),
        "arrives": np.ones((1, K), bool),
        "weights": np.ones(1),
    },
    "theory.pao_fed.mean_bound": {"correlations": CASE["correlations"]},
    "theory.pao_fed.mean_matrix": INSTANCE,
    "theory.pao_fed.mean_radius": INSTANCE,
    "theory.pao_fed.mean_square_bound": {"correlations": CASE["correlations"]},
    "theory.pao_fed.mean_square_matrix": INSTANCE,
    "theory.pao_fed.mean_square_radius": INSTANCE,
    "theory.pao_fed.noise_vector": INSTANCE,
    "theory.pao_fed.second_moments": INSTANCE,
    "theory.pao_fed.stable_step": {**INSTANCE, "sense": "mean"},
    "theory.pao_fed.steady_state": INSTANCE,
    "theory.pao_fed.transient": {**INSTANCE, "optimum": np.ones(2), "rounds": 2},
    "theory.pgfl.affine_round": {"simulation": SERVED},
    "theory.pgfl.bias": {"simulation": SERVED},
    "theory.pgfl.cluster_distance": {"optima": np.eye(2)},
    "theory.pgfl.cluster_optima": {"problem": SERVED.problem},
    "theory.pgfl.fixed_point": {"simulation": SERVED},
    "theory.pgfl.inter_cluster_bound": {"inter_cluster": 0.1, "rounds": 2, "distance": 1.0},
    "theory.pgfl.large_penalty_limit": {"simulation": SERVED},
    "theory.pgfl.rate": {"simulation": SERVED},
    "theory.pgfl.sensitivity": {"gradient_bound": 1.0, "penalty": 1.0, "samples": 5},
    "theory.pgfl.server_models": {"simulation": SERVED, "key": KEY, "rounds": 2},
    "theory.pgfl.zcdp_total": {"initial": 1.0, "decay": 0.9, "rounds": 2},
    "theory.zcdp_nfl.arcs": {"network": fl.graphs.ring(K)},
    "theory.zcdp_nfl.convergence_rate": {"gap": jnp.ones(3)},
    "theory.zcdp_nfl.ergodic_gap": {**RECORDED, "optimum": jnp.ones(2)},
    "theory.zcdp_nfl.lemma_two": {
        **RECORDED,
        "optimum": jnp.ones(2),
        "multiplier": jnp.ones((K, 2)),
    },
    "theory.zcdp_nfl.noise_constant": {
        "operators": fl.theory.zcdp_nfl.operators(fl.graphs.ring(K)),
        "penalty": 1.0,
    },
    "theory.zcdp_nfl.operators": {"network": fl.graphs.ring(K)},
    "theory.zcdp_nfl.privacy_accuracy_bound": {"simulation": PRIVATE, "rounds": 2},
    "theory.zcdp_nfl.theorem_two_bound": {**RECORDED, "optimum": jnp.ones(2)},
    "theory.zcdp_nfl.transcript": {"simulation": SIMULATION, "key": KEY, "rounds": 2},
    "Simulation": {
        "problem": problem(),
        "algorithm": fl.algorithms.ZCDPNFL(1.0, 0.1),
        "network": fl.graphs.ring(K),
    },
    "random_key": {},
    "run": {"simulation": SIMULATION, "rounds": 2},
    "best": {**MEASURED, "over": "algorithm"},
    "tune": {"scenario": study, "methods": ["CTA"], "metric": "normalized_error", "rounds": 2},
    "compare": {
        "scenario": study,
        "methods": ["CTA", "EXTRA"],
        "metric": "normalized_error",
        "rounds": 2,
    },
    "table": STUDY,
    "PrivateTuning": {"delta": 1e-5, "score": "public"},
    "view": {"simulation": SIMULATION},
    "aggregation.CenteredClipping": {"radius": 1.0},
    "aggregation.GeometricMedian": {},
    "aggregation.Krum": {"attackers": 1},
    "aggregation.NormClipping": {"radius": 1.0},
    "aggregation.TrimmedMean": {"share": 0.2},
    "aggregation.WinsorizedMean": {"share": 0.2},
    "augmentations.Crop": {"padding": 2},
    "augmentations.Cutout": {"size": 3},
    "augmentations.InOrder": {"steps": (fl.augmentations.Flip(),)},
    "batches.CyclicBatches": {"size": 2},
    "batches.Shuffled": {"size": 2},
    "batches.Uniform": {"size": 2},
    "batches.Weighted": {"size": 2, "probability": np.full((2, 4), 0.25)},
    "algorithms.ADMMTracking": STEP,
    "algorithms.APFL": STEP,
    "algorithms.AFL": {**STEP, "mixture_step_size": 0.1},
    "algorithms.FedDF": {
        **STEP,
        "public": np.ones((8, 2)),
        "public_batch": 4,
        "distillation_step_size": 0.1,
    },
    "algorithms.FedMD": {**STEP, "public": np.ones((8, 2))},
    "algorithms.FjORD": STEP,
    "algorithms.FLoRA": STEP,
    "algorithms.HeteroFL": STEP,
    "algorithms.ATC": STEP,
    "algorithms.ATCTracking": STEP,
    "algorithms.AugDGM": STEP,
    "algorithms.CTA": STEP,
    "algorithms.ADIANA": {
        **STEP,
        "compression": fl.link.Natural(),
        "convexity": 1.0,
        "probability": 0.5,
    },
    **{
        f"algorithms.{name}": {
            **STEP,
            "compression": fl.link.Sign(),
            "consensus_step_size": 0.5,
        }
        for name in ("BEER", "CEDAS", "ChocoSGD", "LEAD", "MoTEF")
    },
    "algorithms.CANITA": {**STEP, "compression": fl.link.Natural()},
    "algorithms.ClusterFL": ADMM,
    "algorithms.DASHA": {**STEP, "compression": fl.link.Natural()},
    "algorithms.DIANA": {**STEP, "compression": fl.link.Natural()},
    "algorithms.EF21": {**STEP, "compression": fl.link.Sign()},
    "algorithms.EF21BC": {
        **STEP,
        "compression": fl.link.Sign(),
        "downlink": fl.link.Sign(),
    },
    "algorithms.EFSGD": {**STEP, "compression": fl.link.Sign()},
    "algorithms.FetchSGD": {**STEP, "sketch": fl.link.CountSketch(2, 4), "count": 1},
    "algorithms.MARINA": {**STEP, "compression": fl.link.Natural(), "probability": 0.5},
    "algorithms.Consensus": STEP,
    "algorithms.ConventionalFL": STEP,
    "algorithms.DIGing": STEP,
    "algorithms.DLM": {**ADMM, **STEP},
    "algorithms.DGD": STEP,
    "algorithms.FedDPSGD": STEP,
    "algorithms.DeTAG": STEP,
    "algorithms.DeterministicPolicyGradient": {"step_size": 0.1},
    "algorithms.Diffusion": {**STEP, "after": "metropolis"},
    "algorithms.DiNNO": {**ADMM, **STEP},
    "algorithms.Ditto": {**STEP, "solver": fl.algorithms.FedAvg(0.1), "attraction": 0.1},
    "algorithms.EXTRA": STEP,
    "algorithms.EpidemicLearning": STEP,
    "algorithms.EpsilonDeltaNFL": {**ADMM, **STEP},
    "algorithms.ExactDiffusion": STEP,
    "algorithms.FedALA": STEP,
    "algorithms.FedAMP": {**STEP, "attraction": 0.1, "attention_step_size": 0.1, "scale": 1.0},
    "algorithms.FedAsync": STEP,
    "algorithms.FedAvg": STEP,
    "algorithms.FedBABU": {**STEP, "personal": [0], "tuning_step_size": 0.1},
    "algorithms.FedBN": {**STEP, "personal": [0]},
    "algorithms.FedBuff": STEP,
    "algorithms.FedExP": STEP,
    "algorithms.FedGD": {"coupling": 0.1},
    "algorithms.FedPer": {**STEP, "personal": [0]},
    "algorithms.FedAdagrad": {**STEP, "server_step_size": 0.1},
    "algorithms.FedAdam": {**STEP, "server_step_size": 0.1},
    "algorithms.FedAvgM": STEP,
    "algorithms.FedDyn": {**STEP, "attraction": 0.1},
    "algorithms.FedLT": {**STEP, "penalty": 0.1},
    "algorithms.FedNova": STEP,
    "algorithms.FedOpt": {**STEP, "server": optax.sgd(1.0)},
    "algorithms.FedADMM": {**STEP, "penalty": 0.1},
    "algorithms.FedCross": STEP,
    "algorithms.EASGD": {**STEP, "moving_rate": 0.1},
    "algorithms.FedPD": {**STEP, "penalty": 0.1},
    "algorithms.ExactFedProx": STEP,
    "algorithms.FedRelax": {"coupling": 0.1},
    "algorithms.FedRep": {**STEP, "personal": [0]},
    "algorithms.FedSAM": STEP,
    "algorithms.NetworkedFedSGD": {"coupling": 0.1, "batches": fl.batches.Uniform(2)},
    "algorithms.FedYogi": {**STEP, "server_step_size": 0.1},
    "algorithms.FineTunedFedAvg": {**STEP, "solver": fl.algorithms.FedAvg(0.1)},
    "algorithms.GFL": ADMM,
    "algorithms.GTSAGA": STEP,
    "algorithms.GTSARAH": {**STEP, "period": 5},
    "algorithms.GTSVRG": {**STEP, "period": 5},
    "algorithms.GeneralizedGradient": STEP,
    "algorithms.GossipSGD": STEP,
    "algorithms.ADPSGD": STEP,
    "algorithms.RandomWalk": STEP,
    "algorithms.SwarmSGD": STEP,
    "algorithms.SampledDiffusion": STEP,
    "algorithms.GraphFedAvg": STEP,
    "algorithms.HierFAVG": STEP,
    "algorithms.HierLocalQSGD": {**STEP, "compressors_up": fl.link.Quantize(4)},
    "algorithms.HingeStaleness": {"slope": 1.0, "patience": 1.0},
    "algorithms.CFL": {
        **STEP,
        "clusters": 2,
        "mean_threshold": 0.1,
        "client_threshold": 0.2,
    },
    "algorithms.FedEM": {**STEP, "components": 2},
    "algorithms.KNNPer": {"solver": fl.algorithms.FedAvg(0.1)},
    "algorithms.IFCA": {**STEP, "clusters": 2},
    "algorithms.ISFedAvg": {**STEP, "clients_per_round": 2},
    "algorithms.KGT": STEP,
    "algorithms.LED": STEP,
    "algorithms.LTADMM": {**ADMM, **STEP, "pull": 0.1},
    "algorithms.LTADMMVR": {**ADMM, **STEP, "pull": 0.1},
    "algorithms.LGFedAvg": {**STEP, "personal": [0]},
    "algorithms.FedProx": {**STEP, "attraction": 0.1},
    "algorithms.LocalOnly": STEP,
    "algorithms.MIME": STEP,
    "algorithms.MIMELite": STEP,
    "algorithms.ModelAgnosticFedRelax": {"coupling": 0.1, "test_set": np.ones((3, 2))},
    "algorithms.NIDS": STEP,
    "algorithms.NPFL": ADMM,
    "algorithms.NPFLByGradient": {**ADMM, "clusters": 2, "step_size": 0.5},
    "algorithms.NPFLByLoss": {**ADMM, "clusters": 2},
    "algorithms.NPFLByParameters": {
        **ADMM,
        "policy": fl.algorithms.RandomProbe(0.1, 0.1),
        "threshold": 0.1,
    },
    "algorithms.NPFLRL": {**ADMM, "policy": fl.algorithms.RandomProbe(0.1, 0.1)},
    "algorithms.NetworkedADMM": ADMM,
    "algorithms.OnlineFed": STEP,
    "algorithms.PADMM": ADMM,
    "algorithms.PAOFed": {**STEP, "sharing": fl.link.Circular(1)},
    "algorithms.PAOFedGraph": {
        **STEP,
        "sharing": fl.link.Circular(1),
        "between": fl.link.Circular(1),
    },
    "algorithms.PFedMe": {**STEP, "attraction": 0.1},
    "algorithms.PFedMeByGradient": {**STEP, "attraction": 0.1, "personal_step_size": 0.1},
    "algorithms.PGEXTRA": STEP,
    "algorithms.PGFL": ADMM,
    "algorithms.PGFLByGradient": {**ADMM, "clusters": 2, "step_size": 0.5},
    "algorithms.PGFLByLoss": {**ADMM, "clusters": 2},
    "algorithms.PGFLSingleStep": ADMM,
    "algorithms.PowerSGD": STEP,
    "algorithms.PSOFed": {**STEP, "sharing": fl.link.Circular(1)},
    "algorithms.ProxSkip": {**STEP, "probability": 0.5},
    "algorithms.PerFedAvg": {**STEP, "personal_step_size": 0.1},
    "algorithms.PolynomialStaleness": {"power": 1.0},
    "algorithms.RandomProbe": {"step_size": 0.1, "width": 0.1},
    "algorithms.SGP": STEP,
    "algorithms.Teleportation": {**STEP, "topology": fl.graphs.path(2)},
    "algorithms.Scaffnew": {**STEP, "probability": 0.5},
    "algorithms.QFedAvg": {**STEP, "fairness": 1.0},
    "algorithms.SCAFFOLD": STEP,
    "algorithms.SharingADMM": {"penalty": 1.0},
    "algorithms.SignSGD": STEP,
    "algorithms.WangElia": STEP,
    "algorithms.SuPerFed": STEP,
    "algorithms.TAMUNA": {**STEP, "sparsity": 2},
    "algorithms.ZCDPGradNFL": STEP,
    "algorithms.ZCDPNFL": {**ADMM, **STEP},
    "algorithms.algorithm": {
        "label": "own",
        "reference": "nobody2026",
        "needs": fl.algorithms.Needs(),
    },
    "attacks.ALittleIsEnough": ATTACK,
    "attacks.Attack": ATTACK,
    "attacks.ConstantMessage": {**ATTACK, "value": 1.0},
    "attacks.InnerProductManipulation": {**ATTACK, "scale": 1.0},
    "attacks.LargeNoise": {**ATTACK, "scale": 1.0},
    "attacks.SignFlip": ATTACK,
    "attacks.first": {"count": 1, "clients": K},
    "attacks.poison_labels": {"problem": problem(), **ATTACK},
    "attacks.random_attackers": {"key": KEY, "clients": K, "count": 1},
    "data.RandomFourier": {"frequencies": np.ones((3, 2)), "phases": np.ones(3)},
    "data.binary_tasks": {
        "key": KEY,
        "images": IMAGES,
        "tasks": [((0,), (1,)), ((1,), (0,))],
        "cluster": CLUSTER,
        "samples": (1, 1),
        "test": 1,
    },
    "data.by_label": {"labels": np.repeat([0, 1], 8), "clients": K, "shards": 2, "seed": 0},
    "data.by_user": {"users": ["eve", "ada", "eve"]},
    "data.detectors": {"labels": np.repeat([0, 1], 8), "shots": 2, "seed": 0},
    "data.dirichlet": {
        "labels": np.repeat([0, 1], 8),
        "clients": K,
        "concentration": 10.0,
        "seed": 0,
    },
    "data.dirichlet_sizes": {"rows": 99, "clients": K, "concentration": 10.0, "seed": 0},
    "data.few_shot": {"key": KEY, "problem": problem(), "samples": 2},
    "data.from_table": {
        "table": {"who": [1, 2, 1], "x": [0.1, 0.2, 0.3], "y": [1.0, 2.0, 3.0]},
        "node": "who",
        "features": ["x"],
        "target": "y",
    },
    "data.SourcePopulation": {
        "source": [{"who": who, "x": [1.0, 2.0], "y": 1} for who in "aabb"],
        "client": "who",
        "features": "x",
        "target": "y",
        "version": "of today",
    },
    "data.clients_of_dataset": {
        "dataset": {"who": ["b", "a"], "x": [[1.0], [2.0]], "y": [0, 1]},
        "client": "who",
        "features": "x",
        "target": "y",
    },
    "data.from_huggingface": {"dataset": Columns(), "features": "x", "target": "y"},
    "data.from_sklearn": {"data": (np.eye(2), [0, 1])},
    "data.iid": {"rows": 8, "clients": K, "seed": 0},
    "data.noisy": {"clients": [(np.ones((3, 2)), np.ones(3))], "deviation": 1.0, "seed": 0},
    "data.power_law": {"rows": 8, "clients": K, "exponent": 1.0, "seed": 0},
    "data.random_fourier": {"key": KEY, "inputs": 2, "features": 4},
    "data.rotated": {"clients": [(np.ones((3, 2, 2)), np.ones(3))], "degrees": 30.0},
    "data.click_log": {"key": KEY, "rows": 4, "fields": 2, "categories": 3},
    "descent.backtracking": {},
    "descent.minimize": {
        "objective": lambda w: jnp.sum(w**2),
        "start": np.ones(2),
        "step": 0.1,
        "rounds": 2,
    },
    "descent.optimal_step": {"smallest": 1.0, "largest": 2.0},
    "descent.rounds_needed": {"distance": 1.0, "accuracy": 0.1, "factor": 0.5},
    "federation.Federation": {"server": [0, 0, 1, 1], "graph": fl.graphs.path(2)},
    "federation.balanced": {"clients_per_server": 2, "graph": fl.graphs.path(2)},
    "graphs.DrawnGraphs": {"draw": lambda key: fl.graphs.ring(K)},
    "graphs.Mixing": {"rule": "laplacian", "step": 0.1},
    "graphs.Relearned": {"candidates": fl.graphs.ring(K), "neighbors": 1},
    "graphs.GraphSchedule": {"graphs": [fl.graphs.ring(K), fl.graphs.complete(K)]},
    "graphs.MixingSchedule": {"matrices": [np.eye(K)]},
    "graphs.RandomMatchings": {
        "graph": fl.graphs.ring(K),
        "matching": fl.graphs.edge_coloring(fl.graphs.ring(K)),
        "probabilities": [0.5, 0.5],
        "step": 0.4,
    },
    "graphs.base_graphs": {"nodes": K},
    "graphs.complete": {"nodes": K},
    "graphs.edge_coloring": {"graph": fl.graphs.ring(K)},
    "graphs.matcha": {"graph": fl.graphs.ring(K), "budget": 0.5},
    "graphs.one_peer_exponential": {"nodes": K},
    "graphs.consensus": {
        "combination": fl.graphs.ring(K).mixing(),
        "models": jnp.ones((K, 2)),
    },
    "graphs.erdos_renyi": {"key": KEY, "nodes": K, "probability": 0.5},
    "graphs.from_adjacency": {"matrix": np.ones((K, K)) - np.eye(K)},
    "graphs.from_edges": {"nodes": 3, "edges": [(0, 1), (1, 2)]},
    "graphs.from_networkx": {"graph": networkx.path_graph(3)},
    "graphs.from_stochastic": {"matrix": np.full((3, 3), 1 / 3), "convention": "right"},
    "graphs.grid": {"rows": 3, "columns": 3},
    "graphs.k_regular": {"key": KEY, "nodes": 6, "degree": 2},
    "graphs.critical_edges": {"network": fl.graphs.ring(K)},
    "graphs.critical_nodes": {"network": fl.graphs.ring(K)},
    "graphs.distances": {"points": np.eye(3)},
    "clustering.adjusted_rand": {"estimate": CLUSTER, "truth": CLUSTER},
    "graphs.pruned": FAILING,
    "graphs.random_failures": {"key": KEY, "network": fl.graphs.ring(K), "draws": 2},
    "graphs.resilience": FAILING,
    "clustering.detect": {"network": fl.graphs.ring(K), "models": np.eye(K), "tolerance": 0.1},
    "clustering.gaussian_mixture": {"key": KEY, "points": np.eye(3), "clusters": 2},
    "clustering.kmeans": {"key": KEY, "points": np.eye(3), "clusters": 2},
    "clustering.misassigned": {"estimate": CLUSTER, "truth": CLUSTER},
    "clustering.pooled_models": {"problem": problem(), "cluster": CLUSTER, "clusters": 2},
    "clustering.quality": {"network": fl.graphs.ring(K), "members": CLUSTER == 0},
    "problems.mean_codes": {
        "problem": fl.problems.reconstruction(problem(), fl.models.autoencoder(1), KEY),
        "model": np.zeros(fl.problems.reconstruction(problem(), fl.models.autoencoder(1), KEY).dim),
    },
    "problems.reconstruction": {
        "problem": problem(),
        "network": fl.models.autoencoder(1),
        "key": KEY,
    },
    "problems.label_histograms": {"problem": problem(), "labels": [0.0, 1.0]},
    "problems.label_overlap": {"problem": problem(), "labels": [0.0, 1.0]},
    "problems.local_gradients": {"problem": problem()},
    "problems.prediction_discrepancy": {"predictions": np.eye(3)},
    "graphs.agreed": {"models": np.eye(3)},
    "graphs.null_space": {"graph": fl.graphs.ring(K)},
    "contrib.edge_budget": {"points": np.eye(3), "edges": 1},
    "contrib.project_regular": {"matrix": np.eye(3), "degree": 1.0},
    "contrib.regular_similarity": {"points": np.eye(3), "degree": 1.0},
    "graphs.nearest_neighbors": {"points": np.eye(3), "neighbors": 1},
    "graphs.path": {"nodes": K},
    "graphs.perron_vector": {"matrix": np.full((3, 3), 1 / 3)},
    "graphs.random_connected": {"key": KEY, "nodes": K, "mean_degree": 2},
    "graphs.random_geometric": {"key": KEY, "nodes": K, "radius": 0.5},
    "graphs.ring": {"nodes": K},
    "graphs.small_world": {"key": KEY, "nodes": 6, "degree": 2, "rewire": 0.1},
    "graphs.star": {"nodes": K},
    "graphs.Tree": {"server": [0, 0, 1, 1], "parents": ((0, 0),)},
    "graphs.from_parents": {"parents": [4, 4, 5, 5, 6, 6, -1], "clients": 4},
    "graphs.tree": {"branches": [2, 2]},
    "graphs.stochastic_block_model": {
        "key": KEY,
        "sizes": (2, 2),
        "probabilities": np.full((2, 2), 0.5),
    },
    "contrib.agreed_laplace": {"key": KEY, "variance": 0.1},
    "contrib.log_ratio": {"key": KEY},
    "contrib.public_number": {"secret": 6, "base": 5, "modulus": 23},
    "contrib.shared_number": {"secret": 6, "public": 8, "modulus": 23},
    "link.Circular": {"size": 1},
    "link.Contractive": {"compressor": fl.link.Natural()},
    "link.CountSketch": {"rows": 2, "columns": 4},
    "link.DelayTrace": {"table": np.zeros((3, K), np.int32), "longest": 1},
    "link.EdgeDelays": {"table": np.zeros((K, K), np.int32), "longest": 1},
    "link.Fixed": {},
    "link.Geometric": {"delta": 0.2, "longest": 2},
    "link.GilbertElliott": {"fail": 0.1, "recover": 0.5},
    "link.GraphHomomorphic": {"variance": 0.1},
    "link.Independent": {"probability": 0.1},
    "link.LocalGraphHomomorphic": {"variance": 0.1},
    "link.PerEdge": {"variance": 0.1},
    "link.PerMessage": {"variance": 0.1},
    "link.Quantize": {"bits_each": 4},
    "link.Random": {"size": 1},
    "link.RandomK": {"count": 1},
    "link.SecureAggregation": {"range": 1.0},
    "link.Sign": {},
    "link.StochasticSign": {"bound": 1.0},
    "link.TopK": {"count": 1},
    "link.UniformDelay": {"longest": 2},
    "link.UploadNoise": {"variance": 0.1},
    "fairness.augmented": {
        "problem": fl.problems.Problem(np.eye(2)[None], np.ones((1, 2)), fl.problems.Logistic()),
        "feature": 0,
    },
    "fairness.flip_effect": {"feature": 0},
    "fairness.group_rates": {"rate": "accuracy", "feature": 0},
    "fairness.parity_difference": {"rate": "accuracy", "feature": 0},
    "fairness.spread": {"metric": "client_accuracy"},
    "fairness.worst": {"metric": "client_accuracy"},
    "metrics.Metric": {"name": "own", "measure": lambda now: 0.0, "label": "own"},
    "metrics.Quantity": {"lacking": lambda simulation, problem: ""},
    "metrics.as_metric": {"metric": "objective"},
    "metrics.f1_score": {"label": 1.0},
    "metrics.perplexity": {},
    "metrics.precision": {"label": 1.0},
    "metrics.token_accuracy": {},
    "metrics.recall": {"label": 1.0},
    "metrics.explanation": {"signal": np.ones(2), "features": np.eye(2)},
    "metrics.gtv_objective": {"coupling": 1.0},
    "metrics.trajectory": {"name": "model"},
    "monitoring.calibrated_threshold": {
        "errors": np.ones((40, K)),
        "tolerance": 0.1,
        "false_alarms": 0.1,
    },
    "monitoring.detection_delay": {"raised": np.ones((3, K), bool), "onset": np.ones(K)},
    "monitoring.false_alarm_rate": {"raised": np.ones((3, K), bool), "onset": np.ones(K)},
    "monitoring.page_hinkley": {"errors": np.ones((40, K)), "tolerance": 0.1, "threshold": 1.0},
    "monitoring.report": {"errors": np.ones((40, K)), "tolerance": 0.1, "threshold": 1.0},
    "clock.AdaptiveTiers": {"devices": DEVICES, "tiers": 2, "count": 1},
    "clock.Asynchronous": {"devices": DEVICES},
    "clock.Between": {"low": 1.0, "high": 2.0},
    "clock.Deadline": {"devices": DEVICES, "seconds": 10.0},
    "clock.Devices": {"seconds_per_step": 1.0},
    "clock.Exponential": {"mean": 1.0},
    "clock.FirstArrivals": {"devices": DEVICES, "count": 2},
    "clock.Guided": {"devices": DEVICES, "count": 2, "preferred_seconds": 1.0},
    "clock.HalfNormal": {"scale": 1.0},
    "clock.Intervals": {"start": np.zeros((K, 1)), "end": np.ones((K, 1))},
    "clock.LogNormal": {"median": 1.0, "spread": 0.5},
    "clock.Pareto": {"least": 1.0, "power": 2.0},
    "clock.Synchronous": {"devices": DEVICES},
    "clock.Ticks": {"devices": DEVICES, "seconds": 1.0, "longest": 2},
    "clock.Tiers": {"devices": DEVICES, "tiers": 2, "count": 1},
    "clock.seconds_per_sample": {"problem": problem(), "device": 1e9},
    "participation.ActiveSampling": {"count": 2, "sharpness": 0.1},
    "participation.Bernoulli": {"probability": 0.5},
    "participation.Bounded": {"bound": 2, "probability": 0.5},
    "participation.Cyclic": {"cohorts": 2},
    "participation.Drawn": {"count": 2},
    "participation.PowerOfChoice": {"count": 2, "candidates": 3},
    "participation.Fraction": {"fraction": 0.5},
    "participation.Markov": {"fail": 0.1, "recover": 0.5},
    "participation.PerServer": {"count": 1},
    "participation.Periodic": {},
    "participation.Subset": {"count": 1},
    "participation.Trace": {"table": np.ones((3, K), bool)},
    "participation.Unequal": {"count": 1, "probability": np.full(K, 0.25)},
    "participation.Until": {"last": 5},
    "participation.groups": {"values": [0.1, 0.5], "clients": K},
    "partitions.AtLeast": {"rule": fl.partitions.IID(), "rows": 2},
    "partitions.AtMost": {"rule": fl.partitions.IID(), "rows": 8},
    "partitions.ByColumn": {"values": np.linspace(0.0, 1.0, 8)},
    "partitions.ById": {"values": np.array(["a", "b", "a", "c"])},
    "partitions.Dirichlet": {"concentration": 0.5},
    "partitions.DirichletSizes": {"concentration": 0.5},
    "partitions.EqualDirichlet": {"concentration": 0.5},
    "partitions.LabelsPerClient": {"labels": 2},
    "partitions.LogNormalSizes": {"sigma": 0.5},
    "partitions.Mixed": {
        "shares": (0.2, 0.8),
        "rules": (fl.partitions.IID(), fl.partitions.SortedByLabel()),
    },
    "partitions.PowerLawSizes": {"exponent": 1.0},
    "partitions.FeatureNoise": {"deviation": 0.5},
    "partitions.LabelNoise": {"rate": 0.2},
    "partitions.PermutedFeatures": {"groups": 2},
    "partitions.PermutedLabels": {"groups": 2},
    "partitions.Rotation": {"quarters": [0, 1, 2, 3]},
    "partitions.Shards": {"per_client": 2},
    "partitions.Shared": {"rule": fl.partitions.IID(), "rows": 2, "each": 1},
    "partitions.Style": {"contrast": 0.1, "brightness": 0.1},
    "partitions.heterogeneity": {"counts": np.array([[3, 1], [0, 4]])},
    "partitions.similar": {"similarity": 0.3},
    "plotting.by_client": {
        "dataset": RESULTS.expand_dims(client=[0, 1]),
        "metric": "error",
    },
    "plotting.draw_graph": {"graph": fl.graphs.ring(K)},
    "plotting.draw_partition": {"labels": np.repeat([0, 1], 4), "parts": [np.arange(8)]},
    "plotting.performance_profile": {"cost": RESULTS.error.isel(round=-1)},
    "plotting.heat_map": {"dataset": BUDGETS.expand_dims(algorithm=["a", "b"]), "metric": "error"},
    "plotting.learning_curves": MEASURED,
    "plotting.network_map": {"graph": fl.graphs.ring(K), "coordinates": np.eye(K)[:, :2]},
    "plotting.save_figure": {"picture": Figure(), "path": "picture.png"},
    "plotting.timeline": {"results": ON_CLOCK.isel(algorithm=0, seed=0), "clients": [0, 1]},
    "plotting.trade_off": {"dataset": BUDGETS, "metric": "error"},
    "privacy.AdaptiveClip": {},
    "privacy.CentralGaussian": CLIP,
    "privacy.NoisyGradients": CLIP,
    "privacy.assumptions": {"dataset": None},
    "privacy.events": {"results": None},
    "privacy.not_covered": {"dataset": None},
    "privacy.spent": {"results": None, "delta": 1e-5},
    "privacy.accounting.advanced_composition": {**RELEASE, "rounds": 2, "slack": 1e-5},
    "privacy.accounting.advanced_epsilon": {"total": 1.0, "rounds": 2, "slack": 1e-5},
    "privacy.accounting.allocate": {**RELEASE, "rounds": 2, "rule": "geometric", "decay": 0.5},
    "privacy.accounting.analytic_gaussian_sigma": {**RELEASE, "sensitivity": 1.0},
    "privacy.accounting.balls_in_bins_delta": {**BINS, "epsilon": 1.0},
    "privacy.accounting.balls_in_bins_epsilon": {**BINS, "delta": 1e-5},
    "privacy.accounting.balls_in_bins_multiplier": {**RELEASE, **SAMPLED},
    "privacy.accounting.basic_composition": {"epsilon": [0.1, 0.2], "delta": [1e-5, 1e-5]},
    "privacy.accounting.classical_gaussian_sigma": {
        "sensitivity": 1.0,
        "epsilon": 0.5,
        "delta": 1e-5,
    },
    "privacy.accounting.cyclic_poisson_epsilon": {**CYCLES, "delta": 1e-5},
    "privacy.accounting.cyclic_poisson_event": CYCLES,
    "privacy.accounting.cyclic_poisson_multiplier": {**CYCLE, **RELEASE},
    "privacy.accounting.dynamic_zcdp_curve": {"initial": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.dynamic_zcdp_initial": {"total": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.dynamic_zcdp_total": {"initial": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.gaussian_event": {"rho": 1.0},
    "privacy.accounting.zcdp_event": {"rho": 1.0},
    "privacy.accounting.gaussian_sigma": {"sensitivity": 1.0, "rho": 1.0},
    "privacy.accounting.gaussian_zcdp": {"sensitivity": 1.0, "sigma": 1.0},
    "privacy.accounting.kairouz_composition": {
        "epsilon": [0.1, 0.2],
        "delta": [1e-5, 1e-5],
        "slack": 1e-5,
    },
    "privacy.accounting.laplace_epsilon": {"sensitivity": 1.0, "scale": 1.0},
    "privacy.accounting.laplace_scale": {"sensitivity": 1.0, "epsilon": 1.0},
    "privacy.accounting.monte_carlo_delta": {"losses": [0.0, 1.0], "epsilon": 1.0},
    "privacy.accounting.monte_carlo_epsilon": {"losses": [0.0, 1.0], "delta": 0.1},
    "privacy.accounting.pure_composition": {"epsilon": [0.1, 0.2]},
    "privacy.accounting.pure_to_zcdp": {"epsilon": 1.0},
    "privacy.accounting.renyi_delta": {"orders": [2.0, 3.0], "rdp": [1.0, 1.0], "epsilon": 1.0},
    "privacy.accounting.renyi_epsilon": {"orders": [2.0, 3.0], "rdp": [1.0, 1.0], "delta": 1e-5},
    "privacy.accounting.renyi_gaussian": {"orders": 2.0, "sensitivity": 1.0, "sigma": 1.0},
    "privacy.accounting.renyi_laplace": {"orders": 2.0, "sensitivity": 1.0, "scale": 1.0},
    "privacy.accounting.renyi_pure": {"orders": 2.0, "epsilon": 1.0},
    "privacy.accounting.sampled_gaussian_epsilon": {
        "noise_multiplier": 1.0,
        "delta": 1e-5,
        **CALLS,
    },
    "privacy.accounting.sampled_gaussian_event": {"noise_multiplier": 1.0, **CALLS},
    "privacy.accounting.sampled_gaussian_multiplier": {**RELEASE, **CALLS},
    "privacy.accounting.draw_trials": {"uniform": lambda: 0.5, "shape": 1.0, "stop": 0.1},
    "privacy.accounting.poisson_selection_epsilon": {"rho": 0.1, "delta": 1e-5, "mean": 9.0},
    "privacy.accounting.poisson_selection_renyi": {
        "orders": [2.0, 3.0],
        "rdp": [0.1, 0.1],
        "mean": 9.0,
    },
    "privacy.accounting.selection_epsilon": {"rho": 0.1, "delta": 1e-5, **TRIALS},
    "privacy.accounting.selection_mean": TRIALS,
    "privacy.accounting.selection_probabilities": {"most": 3, **TRIALS},
    "privacy.accounting.selection_renyi": {"orders": [2.0, 3.0], "rdp": [0.1, 0.1], **TRIALS},
    "privacy.accounting.selection_stop": {"mean": 9.0},
    "privacy.accounting.zcdp_delta": {"rho": 1.0, "epsilon": 1.0},
    "privacy.accounting.zcdp_epsilon": {"rho": 1.0, "delta": 1e-5},
    "privacy.accounting.zcdp_rho": RELEASE,
    "problems.with_ridge_samples": {"problem": problem(), "penalty": 0.1},
    "privacy.matrices.Banded": {"columns": np.ones((3, 2))},
    "privacy.matrices.BufferedToeplitz": {"scale": [0.1], "decay": [0.5]},
    "privacy.matrices.InverseToeplitz": {"coefficients": [1.0, -0.5]},
    "privacy.matrices.Toeplitz": {"coefficients": [1.0, 0.5]},
    "privacy.matrices.column_normalized": {
        "strategy": fl.privacy.matrices.square_root(2),
        "rounds": 3,
    },
    "privacy.matrices.inverse_square_root": {"bands": 2},
    "privacy.matrices.optimize_banded": {"rounds": 3, "bands": 2},
    "privacy.matrices.optimize_banded_toeplitz": {"rounds": 3, "bands": 2},
    "privacy.matrices.optimize_buffered_toeplitz": {"rounds": 3, "buffers": 1},
    "privacy.matrices.optimize_inverse_toeplitz": {"rounds": 3, "bands": 2},
    "privacy.matrices.square_root": {"bands": 2},
    "problems.diagnose": {"train_error": 1.0, "validation_error": 1.0, "reference": 1.0},
    "problems.jittered": {"key": KEY, "problem": problem(), "variance": 0.1, "copies": 2},
    "problems.train": {"problem": problem()},
    "problems.vertical": {
        "features": np.ones((4, 3)),
        "targets": np.ones(4),
        "columns": [[0, 2], [1]],
    },
    "problems.vertical_consensus": {
        "problem": fl.problems.vertical(np.ones((4, 3)), np.ones(4), [[0, 2], [1]]),
        "strictness": 1.0,
    },
    "problems.explained": {
        "problem": problem(),
        "signal": np.ones(2),
        "features": np.eye(2),
        "strength": 1.0,
    },
    "problems.explanation_error": {
        "models": np.ones((K, 2)),
        "signal": np.ones(2),
        "features": np.eye(2),
    },
    "contrib.predict": {
        "coupled": fl.problems.GTVMin(problem(), fl.graphs.ring(K), 1.0),
        "features": np.eye(2),
    },
    "problems.validate": {"problem": problem().split(KEY)},
    "problems.Blocks": {"sizes": (1, 1), "penalties": (fl.problems.Norm(), None)},
    "problems.ElasticNet": {"l1": 0.1, "l2": 0.1},
    "problems.GTVMin": {"problem": problem(), "network": fl.graphs.ring(K), "coupling": 1.0},
    "problems.Huber": {},
    "problems.Mixture": {"strengths": [1.0], "penalties": (fl.problems.Norm(),)},
    "problems.PNorm": {"p": 3.0},
    "problems.FunctionLoss": {"function": jnp.subtract, "right": jnp.equal},
    "problems.Model": {
        "features": np.ones((K, 5, 2)),
        "targets": np.zeros((K, 5)),
        "loss": fl.problems.LeastSquares(),
        "architecture": fl.models.mlp(1, [3]),
    },
    "problems.Problem": {
        "features": np.ones((K, 5, 2)),
        "targets": np.ones((K, 5)),
        "loss": fl.problems.LeastSquares(),
    },
    "problems.Softmax": {"classes": 2},
    "problems.TokenCrossEntropy": {"vocabulary": 9},
    "problems.Tasks": {"cluster": CLUSTER, "clusters": 2},
    "problems.clustered_network": {
        "key": KEY,
        "sizes": (2, 2),
        "samples": 3,
        "dim": 2,
        "within": 0.9,
        "between": 0.1,
    },
    "problems.clustered_ridge": {
        "key": KEY,
        "cluster": CLUSTER,
        "clusters": 2,
        "samples": (2, 3),
        "dim": 2,
        "spread": 0.1,
        "strength": 1.0,
    },
    "problems.elastic_net": DRAWN,
    "problems.from_clients": {
        "data": [(np.ones((n, 2)), np.ones(n)) for n in (2, 3, 2)],
        "loss": fl.problems.LeastSquares(),
    },
    "problems.from_pool": {
        "features": np.ones((8, 2)),
        "targets": np.repeat([0, 1], 4),
        "loss": fl.problems.Softmax(2),
        "partition": fl.partitions.IID(),
        "clients": 2,
    },
    "problems.from_population": {
        "population": fl.data.write_population(
            f"{FOLDER.name}/p", [(np.ones((n, 2)), np.ones(n)) for n in (2, 3, 2)]
        ),
        "loss": fl.problems.LeastSquares(),
    },
    "problems.group_share": {"strength": 1.0, "index": CLUSTER, "groups": 2},
    "problems.heterogeneous_softmax": {"key": KEY, "clients": K, "samples": (2, 5)},
    "problems.huber": DRAWN,
    "problems.least_absolute_deviation": DRAWN,
    "problems.least_squares": DRAWN,
    "problems.linear": {**DRAWN, "loss": fl.problems.LeastSquares()},
    "problems.logistic": DRAWN,
    "problems.optimum": {"problem": problem()},
    "problems.random_clusters": {"key": KEY, "clients": K, "clusters": 2},
    "problems.ridge": DRAWN,
    "problems.softmax": DRAWN,
    "schedules.Constant": {"value": 0.1},
    "schedules.Warmup": {"initial": 0.1, "final": 0.2, "rounds": 3.0},
    "schedules.GeometricDecay": {"initial": 0.1},
    "schedules.PowerDecay": {"initial": 0.1},
    "schedules.as_schedule": {"value": 0.1},
    "schedules.from_optax": {"make": optax.linear_schedule},
    "models.autoencoder": {"code": 2},
    "models.cnn": {"outputs": 3},
    "models.dropout_cnn": {"outputs": 3},
    "models.lenet": {"outputs": 3},
    "models.lora": {"network": fl.models.mlp(3), "rank": 1},
    "models.nested": {"networks": [fl.models.mlp(3), fl.models.mlp(3, hidden=[2])]},
    "models.several": {"networks": [fl.models.mlp(3), fl.models.mlp(3, hidden=[])]},
    "models.lstm": {"vocabulary": 9},
    "models.resnet": {"outputs": 3},
    "models.transformer": {"vocabulary": 9},
    "models.vgg": {"outputs": 3},
    "models.equinox": {"make": jnp.ones},
    "models.headed": {"body": fl.models.mlp(3), "head": fl.models.mlp(2)},
    "models.haiku": {"function": jnp.ones},
    "models.linen": {"module": flax.linen.Dense(3)},
    "models.load": {"path": "models.safetensors", "problem": problem()},
    "models.mlp": {"outputs": 3},
    "models.nnx": {"make": jnp.ones},
    "models.plain": {"init": jnp.ones, "apply": jnp.matmul},
    "models.save": {"models": np.zeros(2), "path": "models.safetensors", "problem": problem()},
    "optimizers.as_optimizer": {"value": optax.sgd(0.1)},
    "optimizers.as_step": {"value": 0.1},
    "optimizers.from_optax": {"make": optax.adam},
    "statistics.at_round": STUDY,
    "statistics.at_seconds": {"dataset": ON_CLOCK, "seconds": 1.5},
    "statistics.best": {**MEASURED, "over": "algorithm"},
    "statistics.bootstrap": {"statistic": lambda mean: mean},
    "statistics.paired_differences": MEASURED,
    "statistics.profile": {"cost": RESULTS.error.isel(round=-1)},
    "statistics.ranks": MEASURED,
    "statistics.remarks": STUDY,
    "statistics.until": {**MEASURED, "target": 1.0},
    "statistics.variance_shares": {
        "values": RESULTS.error.isel(round=-1, drop=True),
        "sources": ["seed"],
    },
    "statistics.decibels": {"value": 1.0},
    "statistics.is_decibel": MEASURED,
    "statistics.keep_finite": MEASURED,
    "statistics.label_of": MEASURED,
    "statistics.metric_names": STUDY,
    "statistics.named": MEASURED,
    "statistics.nominal": STUDY,
    "statistics.summary": MEASURED,
    "streams.Autoregressive": AR,
    "streams.Drifting": {
        "stream": fl.streams.Replay(problem()),
        "onset": 2,
        "features": np.ones(2),
        "labels": np.ones(2),
    },
    "streams.Linear": {
        "roots": np.ones((K, 2, 2)),
        "truth": np.ones(2),
        "noise": np.ones(K),
    },
    "audit.worst_neighbors": {"simulation": PRIVATE},
    "streams.Replay": {"data": problem()},
    "streams.from_observations": {"features": np.ones((K, 3, 2)), "targets": np.ones((K, 3))},
    "streams.autoregressive": {"key": KEY, "clients": K, "test_samples": 3},
}

#: Chapters 8 to 10 of the book.
TABLE = np.random.default_rng(0).dirichlet(np.ones(8)).reshape(2, 2, 2)
TRIGGER = fl.attacks.Trigger([0], 1.0)
COLUMN = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
COLUMN = COLUMN - COLUMN.mean(axis=0, keepdims=True)
POISONED = {"problem": problem(), "attackers": MASK}
DESCENDED = fl.Simulation(problem(), fl.algorithms.FedGD(0.1, 0.5), fl.graphs.ring(K))
DIGITS = fl.problems.Problem(np.ones((K, 5, 2)), np.zeros((K, 5)), fl.problems.Softmax(2))
NETWORK = fl.problems.Model.of(DIGITS, fl.models.mlp(2, hidden=(3,)), KEY)
TRUSTWORTHY = {
    "aggregation.Bulyan": {"attackers": 1},
    "aggregation.FLTrust": {},
    "aggregation.MedianOfMeans": {"groups": 3},
    "attacks.DenialOfService": {**POISONED, "radius": 1.0},
    "attacks.Trigger": {"features": [0], "values": 1.0},
    "attacks.backdoor": {**POISONED, "trigger": TRIGGER, "target": 1.0, "key": KEY, "share": 0.5},
    "attacks.copy_attack": {
        "problem": problem(),
        "network": fl.graphs.ring(K),
        "copier": 0,
        "victim": 1,
    },
    "attacks.poison_features": {**POISONED, "shift": 1.0},
    "contrib.gaussian_region": {"shift": 1.0, "sigma": 1.0, "threshold": 0.5},
    "contrib.matched_client": {
        "problem": problem(),
        "quadratic": np.eye(2),
        "linear": np.zeros(2),
    },
    "contrib.most_accurate": {"epsilon": 1.0, "delta": 0.0},
    "contrib.queried_loss": {
        "models": np.eye(3, 2),
        "messages": np.ones((2, 2)),
        "step_size": 0.1,
        "pull": 1.0,
    },
    "contrib.reach": {"attacked": DESCENDED, "clean": DESCENDED, "rounds": 2},
    "audit.invert": {
        "problem": NETWORK,
        "model": NETWORK.initial,
        "gradient": NETWORK.initial,
        "key": KEY,
        "steps": 2,
    },
    "audit.membership": {"key": KEY, "pool": problem(20, 1), "models": 20},
    "audit.quadratic": {"models": np.eye(3, 2), "gradients": np.ones((3, 2))},
    "audit.peak_ratio": {"estimate": np.zeros((2, 3)), "truth": np.ones((2, 3))},
    "contrib.region_errors": {
        "one": np.zeros(9),
        "other": np.ones(9),
        "region": lambda value: value < 0.5,
    },
    "contrib.trained_attack": {
        "release": lambda key, data: data + jax.random.normal(key),
        "one": np.zeros(()),
        "other": np.ones(()),
        "epsilon": 1.0,
        "delta": 0.0,
        "trials": 40,
    },
    "contrib.noisy_inputs": {
        "key": KEY,
        "features": np.ones((4, 2)),
        "targets": np.ones(4),
        "feature_deviation": 0.1,
        "target_deviation": 0.1,
    },
    "contrib.randomized_labels": {
        "key": KEY,
        "labels": np.arange(4) % 2,
        "classes": np.arange(2),
        "probability": 0.5,
    },
    "contrib.replaced_features": {"key": KEY, "features": np.ones((4, 2))},
    "contrib.subsample": {
        "key": KEY,
        "features": np.ones((4, 2)),
        "targets": np.ones(4),
        "count": 2,
    },
    "metrics.backdoor_success": {"trigger": TRIGGER, "target": 1.0},
    "privacy.accounting.randomized_response_epsilon": {"probability": 0.5, "classes": 2},
    "privacy.accounting.randomized_response_probability": {"epsilon": 1.0, "classes": 2},
    "privacy.accounting.subsampled": {"epsilon": 1.0, "delta": 1e-5, "fraction": 0.5},
    "privacy.gaussian_release": {
        "key": KEY,
        "models": np.ones((2, 3)),
        "sensitivity": 1.0,
        "epsilon": 0.5,
        "delta": 1e-5,
    },
    "privacy.laplace_release": {
        "key": KEY,
        "models": np.ones((2, 3)),
        "sensitivity": 1.0,
        "epsilon": 0.5,
    },
    "contrib.joint_table": {
        "private": np.array([0, 1]),
        "features": np.array([0, 1]),
        "useful": np.array([0, 1]),
    },
    "contrib.label_sensitivity": COUPLED,
    "contrib.sharing_noise": {
        **COUPLED,
        "step_size": 0.01,
        "rounds": 3,
        "change": 1.0,
        "epsilon": 1.0,
        "delta": 1e-5,
    },
    "contrib.mutual_information": {"table": np.full((2, 2), 0.25)},
    "contrib.privacy_funnel": {"table": TABLE, "slopes": 3, "restarts": 1, "iterations": 20},
    "contrib.private_map": {"features": COLUMN, "attributes": COLUMN[:, 0]},
    "contrib.reconstruction_error": {"features": COLUMN, "attributes": COLUMN[:, 0]},
    "contrib.quantized": {"values": np.arange(6.0), "levels": 2},
    "contrib.GaussianFunnel": {
        "covariance": np.eye(2),
        "private": np.array([[0.5], [0.0]]),
        "useful": np.array([0.0, 0.5]),
        "private_covariance": np.eye(1),
        "useful_variance": 1.0,
    },
}
#: Other algorithms, and privacy mechanisms, with the parts that their test cases need.
REGISTERED = {
    f"algorithms.{type(case.algorithm).__name__}": case.algorithm for case in CASES.values()
}
REGISTERED |= {f"privacy.{type(mechanism).__name__}": mechanism for mechanism in MECHANISMS}
VALID = {
    label: {
        field.name: getattr(valid, field.name)
        for field in dataclasses.fields(valid)
        if field.default is dataclasses.MISSING
    }
    for label, valid in REGISTERED.items()
} | (VALID | TRUSTWORTHY)

#: The valid calls that are not made: they would compile a run, or read results.
UNTRIED = {
    *("compare", "load", "merge", "plan", "report", "run", "save", "sweep", "tune"),
    *(
        "audit.one_run",
        "audit.membership",
        "executors.dask",
        "executors.mpi",
        "executors.ray",
        "executors.submitit",
        "contrib.reach",
        "contrib.trained_attack",
        "audit.twins",
        "audit.two_worlds",
        "audit.unperturbed",
        "audit.worst_neighbors",
        "audit.worst_neighbors",
        "theory.pgfl.server_models",
    ),
    "plotting.save_figure",  # a file
    "privacy.assumptions",
    "contrib.privacy_funnel",
    "privacy.events",
    "privacy.not_covered",
    "privacy.spent",
    *("models.load", "models.save"),  # files
    "problems.optimum",
    "study_files.read",  # a file
    "schedules.from_optax",
    "optimizers.from_optax",
    "statistics.bootstrap",  # of samples, which have no names
}

#: Switches that ask for another argument to be given too.
ASKING = {("algorithms.FedAvg", "keeps_optimizer")}

#: What a parameter takes although it looks bad, by callable (``*`` for all) and name.
ACCEPTED = {
    ("contrib.label_sensitivity", "coupling"): "list",
    ("contrib.sharing_noise", "coupling"): "list",
    ("data.SourcePopulation", "version"): "text",
    ("metrics.Metric", "needs"): "empty",
    # Public samples, whose shape is compared with the clients' by a simulation.
    ("algorithms.FedMD", "public"): "shape",
    # One number of each client, which meets the clients when a partition is drawn.
    ("partitions.FeatureNoise", "deviation"): "list shape empty",
    ("partitions.LabelNoise", "rate"): "list shape empty",
    ("partitions.Rotation", "quarters"): "negative",
    ("theory.multiagent.gradient_noise", "at"): "list",
    ("theory.multiagent.learning_curve", "reference"): "list",
    ("theory.multiagent.steady_state", "reference"): "list",
    ("random_key", "seed"): "negative",
    ("models.autoencoder", "hidden"): "empty",
    ("models.cnn", "channels"): "empty",
    ("metrics.token_accuracy", "left_out"): "empty",
    ("metrics.token_accuracy", "never"): "empty",
    ("metrics.token_accuracy", "name"): "text",
    ("models.dropout_cnn", "rates"): "list",
    ("models.load", "path"): "text",
    ("models.lora", "targets"): "text",
    ("models.save", "models"): "list",  # a row
    ("models.save", "path"): "text",
    ("models.vgg", "channels"): "empty",
    ("models.vgg", "hidden"): "empty",
    ("models.cnn", "hidden"): "empty",
    ("models.mlp", "hidden"): "empty",
    ("run", "key"): "negative",
    ("view", "key"): "negative",
    ("theory.operators.operator", "key"): "negative",
    ("sweep", "root"): "negative",
    ("sweep", "store"): "text",
    ("sweep", "progress"): "true",
    ("study_files.example", "name"): "text",
    ("study_files.example", "schema"): "text",
    ("study_files.read", "overrides"): "empty",
    ("study_files.read", "source"): "text",
    ("executors.submitit", "folder"): "text",
    ("track.csv", "folder"): "text",
    ("track.mlflow", "artifacts"): "text",
    ("track.mlflow", "experiment"): "text",
    ("track.mlflow", "name"): "text",
    ("track.tensorboard", "folder"): "text",
    ("track.tensorboard", "name"): "text",
    ("track.wandb", "entity"): "text",
    ("track.wandb", "folder"): "text",
    ("track.wandb", "name"): "text",
    ("track.wandb", "project"): "text",
    ("compare", "store"): "text",
    ("compare", "target"): "negative",
    ("statistics.until", "target"): "negative",
    ("tune", "store"): "text",
    ("Simulation", "metrics"): "empty",
    ("load", "path"): "text",
    ("merge", "into"): "text",
    ("save", "path"): "text",
    ("report", "metrics"): "empty",  # all of them
    ("report", "title"): "text",
    ("static", "values"): "objects list ragged complexes empty",  # of a scenario's own
    ("algorithms.APFL", "interpolation"): "list",  # one for each client
    ("algorithms.KNNPer", "interpolation"): "list",
    ("audit.corners", "targets"): "list",
    ("attacks.Trigger", "values"): "negative",
    ("attacks.backdoor", "target"): "negative",
    ("attacks.poison_features", "shift"): "negative list",  # of each feature
    ("metrics.backdoor_success", "target"): "negative",
    ("metrics.f1_score", "label"): "negative",
    ("metrics.precision", "label"): "negative",
    ("metrics.recall", "label"): "negative",
    ("problems.explained", "signal"): "list",
    ("contrib.region_errors", "one"): "list",
    ("contrib.region_errors", "other"): "list",
    ("contrib.GaussianFunnel", "private"): "list",
    ("contrib.GaussianFunnel", "useful"): "list",
    ("contrib.gaussian_region", "shift"): "list shape",
    ("contrib.gaussian_region", "sigma"): "list shape",
    ("contrib.gaussian_region", "threshold"): "negative list shape",
    ("contrib.most_accurate", "epsilon"): "list shape",
    ("contrib.most_accurate", "delta"): "list",
    ("contrib.matched_client", "linear"): "list",
    ("contrib.reach", "key"): "negative",
    ("contrib.trained_attack", "one"): "negative",
    ("contrib.trained_attack", "other"): "negative",
    ("contrib.trained_attack", "epsilon"): "list shape",
    ("contrib.trained_attack", "delta"): "list",
    ("contrib.trained_attack", "key"): "negative",
    ("contrib.noisy_inputs", "key"): "negative",
    ("contrib.randomized_labels", "key"): "negative",
    ("contrib.randomized_labels", "labels"): "shape",
    ("contrib.replaced_features", "key"): "negative",
    ("contrib.subsample", "key"): "negative",
    ("privacy.gaussian_release", "key"): "negative",
    ("privacy.gaussian_release", "models"): "list shape",
    ("privacy.laplace_release", "key"): "negative",
    ("privacy.laplace_release", "models"): "list shape",
    ("contrib.privacy_funnel", "key"): "negative",
    ("contrib.quantized", "values"): "list shape",
    ("privacy.accounting.randomized_response_epsilon", "probability"): "list shape",
    ("privacy.accounting.subsampled", "fraction"): "list shape",
    ("audit.counted_epsilon", "hits"): "shape",
    ("audit.counted_epsilon", "false_alarms"): "shape",
    ("audit.one_run", "key"): "negative",
    ("audit.overheard", "noise"): "none",
    ("audit.overheard_upload", "attackers"): "empty",
    ("audit.twins", "key"): "negative",
    ("audit.two_worlds", "key"): "negative",
    ("audit.worst_neighbors", "key"): "negative",
    **dict.fromkeys(
        [
            *(("theory.multiagent_privacy.bound_probability", n) for n in ("error", "other_error")),
            *(
                ("theory.multiagent_privacy.neighbor_deviation_bound", n)
                for n in ("error", "other_error", "optima")
            ),
            *(("theory.multiagent_privacy.epsilon", n) for n in ("deviation", "variance")),
            *(("theory.multiagent_privacy.noise_variance", n) for n in ("deviation", "epsilon")),
        ],
        "list shape",  # elementwise
    ),
    ("theory.network_rates.excited", "coupling"): "list",
    ("theory.network_rates.extremes", "coupling"): "list",
    ("theory.network_rates.fedrelax_rate", "coupling"): "list",
    ("theory.network_rates.largest_bound", "coupling"): "list",
    ("theory.network_rates.smallest_bound", "coupling"): "list",
    ("theory.networks.cluster_deviation_bound", "coupling"): "list",
    ("theory.networks.cluster_deviation_bound", "truth"): "list",
    ("theory.networks.common_error_bound", "coupling"): "list",
    ("theory.networks.common_error_bound", "truth"): "list",
    ("theory.networks.deviation_bound", "coupling"): "list",
    ("theory.networks.deviation_bound", "truth"): "list",
    ("theory.networks.local_error_bound", "truth"): "list",
    ("descent.rounds_needed", "factor"): "list",
    ("descent.rounds_needed", "distance"): "list",
    ("descent.rounds_needed", "accuracy"): "list",
    ("theory.network_rates.perturbed_bound", "perturbations"): "list",
    ("theory.network_rates.prox_factor", "convexity"): "list",
    ("theory.network_rates.prox_factor", "weight"): "list",
    ("theory.pao_fed.Instance", "noise_variances"): "list",
    ("theory.pao_fed.Instance", "participation"): "list",
    ("theory.pao_fed.Instance", "delays"): "list",
    ("theory.pao_fed.Instance", "weights"): "list",
    ("theory.pao_fed.transient", "optimum"): "list",
    ("theory.pgfl.sensitivity", "gradient_bound"): "list shape",  # elementwise
    ("theory.pgfl.sensitivity", "penalty"): "list shape",
    ("theory.pgfl.sensitivity", "samples"): "list shape",
    ("theory.zcdp_nfl.ergodic_gap", "optimum"): "list",
    ("theory.zcdp_nfl.lemma_two", "optimum"): "list",
    ("theory.zcdp_nfl.theorem_two_bound", "optimum"): "list",
    ("theory.zcdp_nfl.privacy_accuracy_bound", "constant"): "negative",
    ("theory.zcdp_nfl.transcript", "key"): "negative",
    ("algorithms.DeterministicPolicyGradient", "cap"): "infinity",
    ("algorithms.APFL", "mixing"): "list",
    **{
        (f"algorithms.{name}", "personal"): "text empty"  # names of parameters; none of them
        for name in ("FedBABU", "FedBN", "FedPer", "FedRep", "LGFedAvg")
    },
    ("algorithms.FedALA", "blended"): "text empty",
    ("algorithms.FedGD", "coupling"): "list",
    ("algorithms.FedGD", "step_size"): "list",
    ("algorithms.FedRelax", "coupling"): "list",
    ("algorithms.NetworkedFedSGD", "coupling"): "list",
    ("algorithms.NetworkedFedSGD", "step_size"): "list",
    ("algorithms.NIDS", "step_size"): "list",
    ("algorithms.NPFL", "inter_cluster"): "list",  # one for each client, as all lists below
    ("algorithms.NPFLByGradient", "inter_cluster"): "list",
    ("algorithms.NPFLByLoss", "inter_cluster"): "list",
    ("algorithms.NPFLRL", "initial"): "list",
    **{(f"algorithms.{name}", "fractions"): "list" for name in ("HierFAVG", "HierLocalQSGD")},
    ("algorithms.PAOFed", "discount"): "list",
    ("algorithms.PAOFedGraph", "discount"): "list",
    ("algorithms.PSOFed", "discount"): "list",
    ("algorithms.algorithm", "label"): "text",
    ("algorithms.algorithm", "reference"): "text",
    ("attacks.ConstantMessage", "value"): "list negative",
    ("graphs.from_edges", "weights"): "list",
    ("problems.label_histograms", "labels"): "list",
    ("problems.label_overlap", "labels"): "list",
    ("problems.local_gradients", "at"): "list",
    ("contrib.agreed_laplace", "shape"): "empty",  # one number
    ("contrib.log_ratio", "shape"): "empty",
    ("fairness.group_rates", "groups"): "list",
    ("fairness.group_rates", "positive"): "negative",
    ("fairness.parity_difference", "groups"): "list",
    ("fairness.parity_difference", "positive"): "negative",
    ("fairness.worst", "largest"): "true",
    ("monitoring.page_hinkley", "errors"): "list shape",
    ("metrics.Metric", "bounds"): "list",
    ("metrics.Metric", "dims"): "empty",
    ("metrics.Metric", "label"): "text",
    ("metrics.Metric", "name"): "text",
    ("metrics.explanation", "signal"): "list",
    ("metrics.gtv_objective", "coupling"): "list",
    ("problems.explanation_error", "signal"): "list",
    ("contrib.median_residual", "point"): "list",
    ("contrib.estimation_error", "truth"): "list",
    ("contrib.label_shift", "coupling"): "list",
    ("contrib.label_shift_bound", "coupling"): "list",
    ("metrics.trajectory", "dims"): "empty",
    ("metrics.trajectory", "name"): "text",
    ("graphs.RandomMatchings", "probabilities"): "list",
    ("clock.Devices", "seconds_per_step"): "list",
    ("clock.Devices", "seconds_per_sample"): "list",
    ("clock.Devices", "upload_bits_per_second"): "list",
    ("clock.Devices", "download_bits_per_second"): "list",
    ("clock.Devices", "latency_seconds"): "list",
    ("clock.Devices", "watts"): "list",
    ("clock.Devices", "joules_per_bit"): "list",
    ("participation.Bernoulli", "probability"): "list",
    ("participation.Bounded", "probability"): "list",
    ("participation.Markov", "fail"): "list",
    ("participation.Markov", "recover"): "list",
    ("participation.Until", "last"): "list",
    ("participation.groups", "values"): "list",
    ("privacy.accounting.balls_in_bins_delta", "seed"): "negative",
    ("privacy.accounting.balls_in_bins_epsilon", "seed"): "negative",
    ("privacy.accounting.balls_in_bins_multiplier", "seed"): "negative",
    ("privacy.accounting.monte_carlo_delta", "losses"): "list",
    ("privacy.accounting.monte_carlo_epsilon", "losses"): "list",
    ("privacy.matrices.InverseToeplitz", "coefficients"): "list",
    ("privacy.matrices.Toeplitz", "coefficients"): "list",
    ("data.from_table", "coordinates"): "empty",  # none
    ("data.rotated", "degrees"): "negative",  # clockwise
    ("plotting.draw_graph", "label"): "text",
    ("plotting.network_map", "label"): "text",
    ("plotting.network_map", "unit"): "text",
    ("statistics.decibels", "value"): "empty nan infinity negative list shape",
    ("descent.minimize", "start"): "list negative shape",  # a point of any shape
    ("problems.GTVMin", "coupling"): "list",  # of each of two parameters
    ("problems.PNorm", "p"): "infinity",
    ("problems.Problem", "initial"): "list",
    ("problems.with_ridge_samples", "towards"): "list",
    ("problems.diagnose", "reference"): "list",
    ("problems.diagnose", "train_error"): "list",
    ("problems.diagnose", "validation_error"): "list",
    ("streams.Drifting", "features"): "list",
    ("streams.Drifting", "labels"): "list",
    ("streams.Linear", "initial"): "list",
    ("streams.Linear", "truth"): "list",
    ("streams.Replay", "initial"): "list",
    ("streams.Replay", "truth"): "list",
    ("partitions.ByColumn", "values"): "list",
    ("partitions.ById", "values"): "list",
    ("problems.from_pool", "key"): "negative",
    ("problems.from_pool", "strength"): "list",
    ("streams.from_observations", "truth"): "list",
}

#: Accounting is elementwise: numbers of any shape; probabilities below one.
ACCOUNTED = {
    **dict.fromkeys(["delta", "slack"], "list"),
    **dict.fromkeys(
        ["epsilon", "initial", "rdp", "rho", "scale", "sensitivity", "sigma", "total", "decay"],
        "list shape",
    ),
}


#: Classes without fields that users construct.
OTHER_CLASSES = {"data.SourcePopulation"}


def public():
    """Every public callable with parameters, by room and name."""
    for module_name, module_ in PACKAGES.items():
        for name in module_.__all__:
            result = getattr(module_, name)
            label = f"{module_name}.{name}" if module_name else name
            if not isinstance(result, type | types.FunctionType) or label in INSIDE:
                continue
            if module_name == "" and name in NOT_COVERED:
                continue
            if isinstance(result, type) and not (is_record(result) or label in OTHER_CLASSES):
                continue
            if parameters(result):
                yield label, result


def is_record(cls):
    """Whether users construct a class with fields: neither a base class nor an exception."""
    is_base = getattr(cls, "_is_protocol", False) or checks.missing_method(cls)
    return dataclasses.is_dataclass(cls) and not is_base


def parameters(function):
    kinds = inspect.Parameter
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    }


PUBLIC = dict(public())


def call(label, arguments):
    """The call; abstract where it would compile random draws."""
    if "key" not in arguments:
        return PUBLIC[label](**arguments)
    return jax.eval_shape(lambda: [PUBLIC[label](**arguments), None][1])


def judge(label, parameter, arguments):
    """``"accepted"``, ``"clear"``, or the reason why the error is obscure."""
    try:
        call(label, arguments)
    except (TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        text = str(error)
        filename = frame.f_code.co_filename
        if "\n" in text or not (Path(filename).is_relative_to(PACKAGE_FOLDER) or parameter in text):
            return f"{type(error).__name__} of {filename}: {text[:150]}"
        return "clear"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "accepted"


def expected(label, name, kind):
    """What may become of a bad value: defaults of None and accounting's arrays may fit or not."""
    if kind in ACCEPTED.get((label, name), "").split():
        return {"accepted"}
    default = parameters(PUBLIC[label])[name].default
    switch = isinstance(default, bool) or parameters(PUBLIC[label])[name].annotation is bool
    if kind == "true" and switch:
        is_asking = (label, name) in ASKING or (
            name == "drop_last" and "batch" in parameters(PUBLIC[label])
        )
        return {"clear"} if is_asking else {"accepted"}
    elementwise = label.startswith("privacy.accounting.") and kind in ACCOUNTED.get(name, "")
    either = elementwise or (kind == "none" and default is None)
    return {"accepted", "clear"} if either else {"clear"}


def verdicts(label):
    """``(parameter, kind of bad value, verdict)`` of every bad call."""
    for name in parameters(PUBLIC[label]):
        for kind, value in BAD.items():
            if label not in UNTRIED or "accepted" not in expected(label, name, kind):
                yield name, kind, judge(label, name, VALID[label] | {name: value})


pytestmark = pytest.mark.usefixtures("annotations_unchecked")


@pytest.fixture(autouse=True)
def _pictures_closed():
    yield
    plt.close("all")


def test_every_public_callable_has_an_entry():
    assert not PUBLIC.keys() - VALID.keys(), "give these a valid call in VALID"
    assert not VALID.keys() - PUBLIC.keys(), "these are no longer public"
    names = {name for name in fl.__all__ if isinstance(getattr(fl, name), types.ModuleType)}
    assert names <= NOT_COVERED | {module_name.partition(".")[0] for module_name in PACKAGES}
    assert set(fl.__all__) >= NOT_COVERED


@pytest.mark.parametrize("label", PUBLIC)
@pytest.mark.thin(50)
def test_bad_input_is_refused_in_words(label):
    if label not in UNTRIED:
        call(label, VALID[label])
    wrong = [
        f"{name} = {kind}: {verdict}"
        for name, kind, verdict in verdicts(label)
        if verdict not in expected(label, name, kind)
    ]
    assert not wrong, "\n".join(wrong)


def test_custom_parts_without_a_method_are_named():
    for base, method in (
        (fl.aggregation.Aggregator, "combine"),
        (fl.algorithms.Policy, "step"),
        (fl.link.Compressor, "bits"),
        (fl.link.DelayLaw, "draw"),
        (fl.link.Losses, "draw"),
        (fl.participation.Pattern, "draw"),
        (fl.participation.Selector, "choose"),
        (fl.problems.Loss, "derivative"),
        (fl.problems.Penalty, "value"),
        (fl.streams.Stream, "clients"),
    ):
        incomplete = fl.module(type("Own", (base,), {"__annotations__": {}}))
        with pytest.raises(TypeError, match=f"Own has no method '{method}': .*Give its class one"):
            incomplete()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda: 0.1, "function of the round, too many positional"),
        (lambda n: "text", "one number for a round, got 'text'"),
        (lambda n: np.ones(3), r"one number for a round, got an array of shape \(3,\)"),
        (fl.schedules.Constant, "got the class Constant"),
    ],
)
def test_a_schedule_is_a_function_of_the_round(schedule, message):
    with pytest.raises(TypeError, match=message):
        fl.algorithms.FedAvg(schedule)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (None, "got None"),
        ("text", "got 'text'"),
        (1j, "got 1j"),
        (np.ones(3), r"got an array of shape \(3,\)"),
    ],
)
def test_a_metric_is_one_number(measured, message):
    metric = fl.metrics.Metric("own", lambda now: measured, "own")
    with pytest.raises(TypeError, match=f"metric 'own' must be one number, {message}"):
        fl.run(dataclasses.replace(SIMULATION, metrics=metric), rounds=2)


def test_a_state_has_models_and_a_sensitivity_is_of_each_client():
    @fl.module
    class Own(fl.algorithms.Algorithm):
        needs = fl.algorithms.Needs(privacy=("message",))

        def init(self, problem, network):
            return ()

        def step(self, state, now):
            return state

        def sensitivity(self, problem, network, round, gap):
            return 1.0

    custom = dataclasses.replace(SIMULATION, algorithm=Own())
    with pytest.raises(TypeError, match=r"Own\.init must return a state with a field model"):
        fl.run(custom, rounds=2)
    with pytest.raises(TypeError, match=r"Own\.sensitivity must return one number of each"):
        fl.run(dataclasses.replace(custom, privacy=fl.privacy.ZCDP(1.0)), rounds=2)


def test_one_hot_labels_are_refused():
    with pytest.raises(ValueError, match=r"one-hot rows take labels\.argmax"):
        fl.data.dirichlet(np.eye(4), clients=2, concentration=1.0, seed=0)


def simulation(key, penalty=1.0, **parts):
    """A small one, whose parts are given or drawn from the key."""
    defaults = {
        "problem": fl.problems.ridge(key, clients=K, samples=3, dim=2),
        "network": fl.graphs.ring(K),
        "algorithm": fl.algorithms.ZCDPNFL(penalty, 0.1),
    }
    return fl.Simulation(**defaults | parts)


def labeled(key):
    features = jax.random.normal(key, (K, 3, 2))
    labels = jnp.floor(3 * jax.random.uniform(key, (K, 3)))
    return fl.problems.Problem(features, labels, fl.problems.Logistic())


def directed(key):
    return fl.graphs.from_adjacency(jnp.triu(jax.random.uniform(key, (K, K)), 1))


#: Scenarios with values that are bad for some keys, and the error before compilation.
DRAWN_BADLY = {
    "strength must be finite and >= 0, got -": lambda key: simulation(
        key,
        problem=fl.problems.ridge(
            key, clients=K, samples=3, dim=2, strength=jax.random.normal(key, (K,))
        ),
    ),
    "probability must be finite and >= 0 and <= 1, got ": lambda key: simulation(
        key,
        algorithm=fl.algorithms.FedAvg(0.1),
        participation=fl.participation.Bernoulli(5 * jax.random.uniform(key)),
    ),
    "targets must be labels among -1, 1 for the logistic loss, got [02]": lambda key: simulation(
        key, problem=labeled(key)
    ),
    "the adjacency matrix is asymmetric": lambda key: simulation(key, network=directed(key)),
    "features holds .* NaN or infinite entries": lambda key: simulation(
        key,
        problem=fl.problems.Problem(
            jnp.log(jax.random.normal(key, (K, 3, 2))), np.ones((K, 3)), fl.problems.LeastSquares()
        ),
    ),
    f"all {K} clients are attackers": lambda key: simulation(
        key, attack=fl.attacks.SignFlip(jax.random.uniform(key, (K,)) > -1)
    ),
    "client 0 has no samples": lambda key: simulation(
        key,
        problem=fl.problems.Problem(
            np.ones((K, 3, 2)),
            np.ones((K, 3)),
            fl.problems.LeastSquares(),
            weights=jnp.where(jax.random.uniform(key, (K, 3)) > 2, 1 / 3, 0.0),
        ),
    ),
}


@pytest.mark.parametrize("message", DRAWN_BADLY)
def test_drawn_values_are_checked_before_compilation(message, monkeypatch):
    monkeypatch.setattr(batched_program.Program, "compile", None)
    with pytest.raises(ValueError, match=message):
        fl.sweep(DRAWN_BADLY[message], rounds=2)


def test_valid_draws_compile_nothing(monkeypatch):
    """Only where a check waits for values is anything computed."""
    monkeypatch.setattr(grid, "_check_values", None)
    groups = grid.groups_of(simulation, grid.axes_of({"penalty": [1.0, 2.0]}), 2)
    assert len(groups) == 1


def test_checks_that_do_not_depend_on_numbers_run_once(monkeypatch):
    """Once per process and length of runs; a store needs certainty, and checks again."""
    checked = []
    check = grid._check_values

    def counted(*arguments):
        checked.append(check(*arguments))
        return checked[-1]

    monkeypatch.setattr(grid, "_check_values", counted)

    def scenario(key, algorithm, scale):
        drawn = fl.problems.Problem(
            scale * jax.random.normal(key, (K, 3, 2)), np.ones((K, 3)), fl.problems.LeastSquares()
        )
        return simulation(key, algorithm=algorithm, problem=drawn)

    def of(*penalties, scale, renewed=False):
        algorithms = {str(penalty): fl.algorithms.ZCDPNFL(penalty, 0.1) for penalty in penalties}
        grid = {"algorithm": algorithms, "scale": scale}
        Study.of(Request(scenario=scenario, rounds=2, grid=grid, retrace=renewed))

    one_scale = fl.static([1.0])
    of(1.0, scale=one_scale)
    of(2.0, 3.0, scale=one_scale)
    assert checked == [False]
    of(4.0, scale=one_scale, renewed=True)
    assert checked == [False] * 2
    for last in (2.0, 3.0):  # another structure, whose numbers enter the draws
        of(5.0, scale=[1.0, last])
    assert checked == [False] * 2 + [True] * 2
    with pytest.raises(ValueError, match=r"features holds .* NaN or infinite entries"):
        of(6.0, scale=[1.0, np.inf])


def private_point(key, penalty=1.0, budget=1.0, clip=1.0):
    return simulation(
        key,
        penalty,
        problem=problem().clipped(clip),
        privacy=fl.privacy.ZCDP(budget, gradient_bound=1.0),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("penalty", -3.0, "penalty must be finite and > 0, got -3"),
        ("budget", 0.0, "total_rho must be finite and > 0, got 0"),
        ("clip", 1.5, "clips gradients to 1.5, above the bound 1"),
    ],
)
def test_every_point_of_a_large_grid_is_checked(name, value, message):
    """Quickly: one of ten thousand points is built, and the bad ones are in the last row."""
    second = "budget" if name == "penalty" else name
    values = {axis: np.linspace(0.5, 0.9, 100) for axis in ("penalty", second)}
    values[name][-1] = value
    built = []

    def scenario(key, **point):
        built.append(point)
        return private_point(key, **point)

    with pytest.raises(ValueError, match=message) as caught:
        grid.groups_of(scenario, grid.axes_of(values), 5)
    assert any(f"{name!r}: {value}" in note for note in caught.value.__notes__)
    assert len(built) == 2  # once with its numbers, once for all


HUGE = {"key": KEY, "clients": 100_000, "samples": 10_000, "dim": 100}

#: Calls of what cannot fit any machine: nothing is allocated, and the size is said.
TOO_LARGE = {
    **{
        f"problems.{name}": (HUGE, "100000 clients x 10000 samples x 100 features takes 400 GB")
        for name in (
            *("elastic_net", "huber", "least_absolute_deviation", "least_squares"),
            *("logistic", "ridge", "softmax"),
        )
    },
    "problems.linear": (HUGE | {"loss": fl.problems.LeastSquares()}, "takes 400 GB"),
    "problems.clustered_network": (
        {"key": KEY, "sizes": (10**5,), "samples": 10**4, "dim": 100, "within": 0, "between": 0},
        "takes 400 GB",
    ),
    "problems.clustered_ridge": (
        {
            "key": KEY,
            "cluster": np.zeros(10**5, int),
            "clusters": 1,
            "dim": 100,
            "samples": (1, 10**4),
            "spread": 0.1,
            "strength": 1.0,
        },
        "takes 400 GB",
    ),
    "problems.heterogeneous_softmax": (
        {"key": KEY, "clients": 10**5, "samples": (1, 10**4), "dim": 99},
        "takes 400 GB",
    ),
    "data.random_fourier": ({"key": KEY, "inputs": 10**6, "features": 10**6}, "takes 4 TB"),
    "data.click_log": ({"key": KEY, "rows": 10**6, "categories": 10**5}, "takes 6 TB"),
    "streams.autoregressive": ({"key": KEY, "clients": 10, "test_samples": 2 * 10**9}, "32 GB"),
    "graphs.complete": ({"nodes": 200_000}, "200000 nodes and 19999900000 edges takes 2 TB"),
    "graphs.star": ({"nodes": 2 * 10**9}, "takes 200 GB"),
    "graphs.ring": ({"nodes": 300_000, "form": "dense"}, "300000 entries each takes 360 GB"),
    "graphs.grid": ({"rows": 50_000, "columns": 40_000}, "takes 200 GB"),
    "graphs.erdos_renyi": (
        {"key": KEY, "nodes": 300_000, "probability": 0.5},
        "300000 entries each takes 360 GB",
    ),
    "graphs.random_geometric": (
        {"key": KEY, "nodes": 300_000, "radius": 0.9},
        "300000 entries each takes 360 GB",
    ),
    "graphs.k_regular": ({"key": KEY, "nodes": 2 * 10**9, "degree": 2}, "takes 200 GB"),
}


@pytest.mark.parametrize("label", TOO_LARGE)
def test_studies_beyond_memory_are_refused_with_their_size(label, monkeypatch):
    monkeypatch.setattr(memory, "memory_at_hand", lambda: 10**10)
    arguments, size = TOO_LARGE[label]
    with jax.enable_x64(False), pytest.raises(MemoryError, match=f"{size}.* at hand; take fewer"):
        PUBLIC[label](**arguments)


def test_numbers_beyond_32_bits_are_refused():
    for label, name in (("graphs.ring", "nodes"), ("problems.ridge", "clients")):
        with pytest.raises(ValueError, match=rf"{name} must be <= 2147483647, got 10000000000"):
            call(label, VALID[label] | {name: 10**10})


def plainly(base):
    """A class of one's own, with all methods and without the decorator."""
    methods = {m: lambda self, *_: None for m in dir(base) if is_required(getattr(base, m))}
    return type("Own", (base,), methods)


def is_required(method):
    return getattr(getattr(method, "fget", method), "__required__", False)


@pytest.mark.parametrize(
    ("base", "use"),
    [
        (
            fl.problems.Loss,
            lambda part: problem().__class__(np.ones((2, 2, 1)), np.ones((2, 2)), part),
        ),
        (fl.algorithms.Policy, lambda part: fl.algorithms.NPFLRL(1.0, policy=part)),
        (fl.participation.Selector, lambda part: fl.algorithms.FedAvg(0.1, selector=part)),
        (fl.streams.Stream, lambda part: dataclasses.replace(SIMULATION, problem=part)),
        (fl.algorithms.Algorithm, lambda part: dataclasses.replace(SIMULATION, algorithm=part)),
        (fl.aggregation.Aggregator, lambda part: dataclasses.replace(SIMULATION, aggregation=part)),
        (fl.link.Compressor, lambda part: dataclasses.replace(SIMULATION, compression=part)),
        (fl.link.DelayLaw, lambda part: dataclasses.replace(SIMULATION, delays=part)),
        (fl.link.Losses, lambda part: dataclasses.replace(SIMULATION, losses=part)),
        (
            fl.participation.Pattern,
            lambda part: dataclasses.replace(SIMULATION, participation=part),
        ),
    ],
)
def test_a_forgotten_decorator_is_named(base, use):
    with pytest.raises(TypeError, match=r"of class Own, .* Decorate the class with fl\.module"):
        use(plainly(base)())


@pytest.mark.parametrize("decorated", [lambda x: x, None, 3])
def test_module_decorates_classes(decorated):
    with pytest.raises(TypeError, match=r"fl\.module decorates a class, got"):
        fl.module(decorated)


def test_annotations_that_are_strings_are_checked():
    custom = fl.module(type("Own", (), {"__annotations__": {"width": "float"}}))
    with pytest.raises(ValueError, match="width must be a number, got an array"):
        custom(np.ones(3))


@pytest.mark.parametrize(
    "key",
    [jnp.zeros(3, jnp.uint32), jnp.zeros((3, 2), jnp.uint32), jax.random.split(KEY, 3)],
    ids=["length", "old batch", "batch"],
)
def test_a_key_is_one_key(key):
    for label in ("problems.ridge", "graphs.random_connected", "view"):
        with pytest.raises((TypeError, ValueError), match="key must be a random key, such as"):
            PUBLIC[label](**VALID[label] | {"key": key})


@pytest.mark.parametrize("name", ["features", "targets"])
def test_data_with_overflowing_squares_are_refused(name):
    data = {"features": np.ones((K, 3, 2)), "targets": np.ones((K, 3))}
    data[name] = data[name] * 1e160
    large = fl.problems.Problem(**data, loss=fl.problems.LeastSquares())
    with pytest.raises(ValueError, match=f"{name} holds entries up to 1e.160, whose squares"):
        dataclasses.replace(SIMULATION, problem=large)
    dataclasses.replace(SIMULATION, problem=large.clipped(1.0))


def test_a_zero_optimum_does_not_divide_metrics():
    nothing = fl.problems.Problem(np.ones((K, 3, 2)), np.zeros((K, 3)), fl.problems.Huber())
    with pytest.raises(ValueError, match="divides by the optimum, which is zero"):
        dataclasses.replace(SIMULATION, problem=nothing, metrics="normalized_error")
    dataclasses.replace(SIMULATION, problem=nothing, metrics="mean_square_deviation")


def test_messages_that_never_arrive_are_refused():
    late = fl.Simulation(
        problem=problem(),
        algorithm=fl.algorithms.FedAvg(0.1),
        delays=fl.link.DelayTrace(np.array([[3] * K, [-1] * K, [1] * K]), longest=9),
    )
    with pytest.raises(ValueError, match="no message of the 3 rounds arrives before they are over"):
        fl.run(late, rounds=3)


@pytest.mark.parametrize(
    ("grid_", "message"),
    [
        ({"nothing": [1.0]}, r"study\(key, penalty=1.0\) cannot be called .* \(nothing\)"),
        ({"penalty": [2**40]}, "must have 32 bits, got 1099511627776"),
        ({"penalty": [True]}, "penalty must be a number, got True"),
    ],
)
def test_a_grid_fits_its_scenario(grid_, message):
    def study(key, penalty=1.0):
        return simulation(key, penalty)

    with pytest.raises((TypeError, ValueError), match=message):
        fl.sweep(study, rounds=2, grid=grid_)


RING = np.roll(np.eye(K), 1, 1) + np.roll(np.eye(K), -1, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fl.graphs.from_edges(3, np.ma.array([(0, 1), (1, 2)])), "got a masked array"),
        (lambda: fl.graphs.from_edges(3, sparse.eye(3)), "edges must be concrete pairs of nodes"),
        (lambda: fl.graphs.from_adjacency(RING * 1e309), "must be finite"),
        (lambda: fl.graphs.from_adjacency(np.ma.array(RING, mask=RING == 0)), "a masked array"),
        (
            lambda: fl.graphs.from_networkx(networkx.path_graph(3), weight="cost"),
            "no edge of the networkx graph has an attribute 'cost'",
        ),
        (
            lambda: fl.data.by_label(np.full(8, np.nan), 2, 2, 0),
            "labels must be a label of each row, got nan in row 0",
        ),
        (lambda: fl.algorithms.ZCDPNFL(1e-320, 0.1), "penalty must be a number that float64"),
        (lambda: fl.algorithms.ZCDPNFL(10**400, 0.1), "penalty must be a number"),
        (lambda: fl.algorithms.FedAvg(float), "got the class float"),
        (lambda: fl.sweep(study, rounds=1, seeds=b"12"), "seeds must be a list of integers"),
    ],
)
def test_objects_of_other_libraries_are_not_misread(build, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build()


@pytest.mark.parametrize("truth", [True, np.True_, np.array(True), jnp.array(True)], ids=str)
@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("aggregation.CenteredClipping", "radius"),
        ("algorithms.ZCDPNFL", "penalty"),
        ("attacks.ConstantMessage", "value"),
        ("privacy.ZCDP", "total_rho"),
        ("privacy.accounting.gaussian_zcdp", "sigma"),
        ("schedules.Constant", "value"),
    ],
)
def test_a_boolean_is_refused_as_a_number(label, name, truth):
    with pytest.raises(TypeError, match=f"{name} must be a.* number"):
        call(label, VALID[label] | {name: truth})


@pytest.mark.parametrize("key", [KEY, jax.random.split(KEY, 2)], ids=["key", "keys"])
@pytest.mark.parametrize(
    ("label", "name"),
    [("algorithms.FedPer", "personal"), ("algorithms.FedALA", "blended")]
    + [("attacks.Trigger", "features")],
)
def test_random_keys_are_refused_as_indices(label, name, key):
    with pytest.raises(TypeError, match=f"{name} must be"):
        call(label, VALID[label] | {name: key})


def test_a_graph_without_edges_needs_no_weights():
    alone = fl.graphs.from_adjacency(np.zeros((3, 3)), allow_disconnected=True)
    assert float(alone.degree.sum()) == 0


def test_a_number_used_as_structure_in_a_large_grid_names_the_remedy():
    def branching(key, penalty):
        return simulation(key, 2 * penalty if penalty > 3 else penalty)

    with pytest.raises(jax.errors.JAXTypeError) as caught:
        fl.sweep(branching, rounds=1, grid={"penalty": np.linspace(1, 9, 200)})
    assert any("fljax.static" in note for note in caught.value.__notes__)


class Unprintable:
    """Its text fails."""

    def __repr__(self):
        raise RuntimeError("no text")


def deleted_array():
    array = jnp.arange(4.0) + 0
    array.delete()
    return array


def nested_list(levels):
    return functools.reduce(lambda inner, _: [inner], range(levels), 1.0)


def recursive_list():
    result = []
    result.append(result)
    return result


#: Values that NumPy, JAX or Python cannot convert or print.
UNCONVERTIBLE = {
    "list of a key": [KEY],
    "range beyond memory": range(10**12),
    "list of itself": recursive_list(),
    "three thousand levels": nested_list(3000),
    "object without a text": Unprintable(),
    "deleted array": deleted_array(),
}


@pytest.mark.parametrize("kind", UNCONVERTIBLE)
@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("aggregation.CenteredClipping", "radius"),  # a number
        ("aggregation.Krum", "attackers"),  # an integer
        ("attacks.SignFlip", "attackers"),  # booleans
        ("metrics.Metric", "name"),  # text
        ("Simulation", "problem"),  # an object
        ("Simulation", "metrics"),  # a sequence
        ("graphs.from_edges", "edges"),  # pairs
        ("graphs.from_edges", "weights"),
        ("graphs.GraphSchedule", "graphs"),
        ("graphs.DrawnGraphs", "draw"),  # a function
        ("statistics.decibels", "value"),  # a number or an array
        ("fairness.group_rates", "groups"),
    ],
)
def test_unconvertible_values_are_refused_in_words(label, name, kind):
    assert judge(label, name, VALID[label] | {name: UNCONVERTIBLE[kind]}) == "clear"


@pytest.mark.parametrize("draw", [lambda: 1, len, lambda key: "text", operator.itemgetter("graph")])
def test_a_draw_of_graphs_that_fails_is_named(draw):
    with pytest.raises(TypeError, match="draw must be a function key -> Graph that can be traced"):
        fl.graphs.DrawnGraphs(draw)


def test_long_doubles_are_doubles():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0]])
    extended = fl.graphs.distances(points.astype(np.longdouble))
    np.testing.assert_array_equal(extended, fl.graphs.distances(points))
    graph = fl.graphs.erdos_renyi(KEY, 8, np.longdouble(0.8))
    np.testing.assert_array_equal(graph.adjacency, fl.graphs.erdos_renyi(KEY, 8, 0.8).adjacency)


@pytest.mark.parametrize("seed", [2**70, -(2**70), 2**32])
def test_a_seed_of_more_than_32_bits_is_refused(seed):
    """Without double precision JAX takes the lower 32 bits: 2^32 would be the key of seed 0."""
    with pytest.raises(ValueError, match="seed must be an integer of 32 bits"):
        fl.random_key(seed)


@pytest.mark.parametrize("store", ["a\0b", "x" * 5000])
def test_a_store_whose_name_no_folder_can_have_is_refused(store):
    with pytest.raises(fl.StoreError, match="cannot be a folder"):
        fl.sweep(simulation, rounds=1, store=store)


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ({1: [1.0]}, "names of grid axes must be strings"),
        ({"penalty": jax.random.split(KEY, 2)}, "random keys cannot be values of a grid"),
    ],
)
def test_axes_of_other_kinds_are_named(grid, text):
    with pytest.raises(TypeError, match=text):
        fl.sweep(simulation, rounds=1, grid=grid)


def test_numbers_in_another_byte_order_are_taken():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0]])
    swapped = points.astype(points.dtype.newbyteorder())
    np.testing.assert_array_equal(fl.graphs.distances(swapped), fl.graphs.distances(points))


def test_the_nearest_round_of_any_number_is_named():
    with pytest.raises(ValueError, match="the nearest is 2"):
        fl.statistics.at_round(VALID["statistics.at_round"]["dataset"], 2**70)
