"""What every public callable says of bad input: each parameter in turn is given None, text, NaN ...

A call must end in a `TypeError` or `ValueError` of one line, raised by fljax itself or naming the
parameter; or be listed below as accepted. A public callable or parameter without an entry fails.
"""

import dataclasses
import functools
import inspect
import traceback
import types
from pathlib import Path

import jax
import jaxtyping
import networkx
import numpy as np
import optax
import pytest

import fljax as fl

HERE = Path(fl.__file__).parent

ROOMS = {
    "": fl,
    "aggregation": fl.aggregation,
    "algorithms": fl.algorithms,
    "attacks": fl.attacks,
    "data": fl.data,
    "federation": fl.federation,
    "graphs": fl.graphs,
    "link": fl.link,
    "metrics": fl.metrics,
    "participation": fl.participation,
    "privacy": fl.privacy,
    "privacy.accounting": fl.privacy.accounting,
    "problems": fl.problems,
    "schedules": fl.schedules,
    "streams": fl.streams,
}

#: Not yet covered: these rooms, and of the package's own names these.
NOT_COVERED = {
    "audit",
    "plotting",
    "theory",
    "Interrupted",
    "Plan",
    "citation",
    "load",
    "merge",
    "module",
    "plan",
    "save",
    "static",
    "sweep",
}

#: Made by the library inside a run or for its results, not by users: records, and what is called
#: with arrays that were checked on their way in.
INSIDE = {
    "algorithms.Needs",
    "algorithms.no_models",
    "data.CalCOFI",
    "data.Images",
    "graphs.Combination",
    "graphs.Graph",
    "graphs.Overflow",
    "link.Arrived",
    "link.Inbox",
    "link.Line",
    "link.Link",
    "link.Memory",
    "link.Stages",
    "link.Traffic",
    "link.begin",
    "link.empty_line",
    "link.receivers_of",
    "link.wide",
    "link.wide_sum",
    "metrics.Snapshot",
    "participation.Law",
    "participation.Participants",
    "participation.everyone_or",
    "participation.shuffled",
    "participation.subset",
    "privacy.Gap",
    "problems.factorise",
    "problems.prox",
    "streams.StreamState",
    "streams.classical_target",
    "streams.printed_target",
    "streams.samples",
    # of files and downloads, which tests/data holds
    "data.calcofi",
    "data.download",
    "data.locate",
    "data.mnist",
    "data.mnist_sample",
    "data.organamnist",
    "data.read_idx",
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
}

K = 4
KEY = jax.random.key(0)
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


@functools.cache
def problem(samples=5, clients=K):
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(clients, samples, 2)), rng.normal(size=(clients, samples))
    return fl.problems.Problem(features, targets, fl.problems.LeastSquares())


def drawn(**more):
    return {"key": KEY, "clients": K, "samples": 5, "dim": 2, **more}


def private(**more):
    return {"decay": 0.9, "gradient_bound": 1.0, "neighbors": "replace", **more}


SIMULATION = fl.Simulation(
    problem=problem(), algorithm=fl.algorithms.ZCDPNFL(1.0, 0.1), network=fl.graphs.ring(K)
)
STEP = {"step_size": 0.1}
ADMM = {"penalty": 1.0}
CLIP = {"noise_multiplier": 1.0, "clip": 1.0}
RELEASE = {"epsilon": 1.0, "delta": 1e-5}
CALLS = {"releases": 2}
DRAWN = {"key": KEY, "clients": K, "samples": 5, "dim": 2}
AR = {"memory": np.full(K, 0.5), "mean": np.zeros(K), "variance": np.ones(K), "noise": np.ones(K)}
LAW = {"attackers": MASK}

#: One call of every public callable: what it must be given.
VALID = {
    "Simulation": {
        "problem": problem(),
        "algorithm": fl.algorithms.ZCDPNFL(1.0, 0.1),
        "network": fl.graphs.ring(K),
    },
    "random_key": {},
    "run": {"simulation": SIMULATION, "rounds": 2},
    "view": {"simulation": SIMULATION},
    "aggregation.CenteredClipping": {"radius": 1.0},
    "aggregation.GeometricMedian": {},
    "aggregation.Krum": {"attackers": 1},
    "aggregation.NormClipping": {"radius": 1.0},
    "aggregation.TrimmedMean": {"share": 0.2},
    "aggregation.WinsorisedMean": {"share": 0.2},
    "algorithms.ClusterFL": ADMM,
    "algorithms.ConventionalFL": STEP,
    "algorithms.DPSGD": STEP,
    "algorithms.DeterministicPolicyGradient": {"rate": 0.1},
    "algorithms.Ditto": {**STEP, "solver": fl.algorithms.FedAvg(0.1), "attraction": 0.1},
    "algorithms.EpsilonDeltaNFL": {**ADMM, **STEP},
    "algorithms.FedAvg": STEP,
    "algorithms.FineTunedFedAvg": {**STEP, "solver": fl.algorithms.FedAvg(0.1)},
    "algorithms.GFL": ADMM,
    "algorithms.GraphFedAvg": STEP,
    "algorithms.IFCA": {**STEP, "clusters": 2},
    "algorithms.LocalOnly": STEP,
    "algorithms.NPFL": ADMM,
    "algorithms.NPFLRL": {**ADMM, "policy": fl.algorithms.RandomProbe(0.1, 0.1)},
    "algorithms.NetworkedADMM": ADMM,
    "algorithms.OnlineFed": STEP,
    "algorithms.PADMM": ADMM,
    "algorithms.PAOFed": {**STEP, "sharing": fl.link.Circular(1)},
    "algorithms.PFedMe": {**STEP, "attraction": 0.1},
    "algorithms.PGFL": ADMM,
    "algorithms.PGFLSingleStep": ADMM,
    "algorithms.PSOFed": {**STEP, "sharing": fl.link.Circular(1)},
    "algorithms.RandomProbe": {"rate": 0.1, "width": 0.1},
    "algorithms.SignSGD": STEP,
    "algorithms.ZCDPGradNFL": STEP,
    "algorithms.ZCDPNFL": {**ADMM, **STEP},
    "algorithms.algorithm": {
        "label": "own",
        "reference": "nobody2026",
        "needs": fl.algorithms.Needs(),
    },
    "attacks.ALittleIsEnough": LAW,
    "attacks.Attack": LAW,
    "attacks.Constant": {**LAW, "value": 1.0},
    "attacks.InnerProductManipulation": {**LAW, "scale": 1.0},
    "attacks.LargeNoise": {**LAW, "scale": 1.0},
    "attacks.SignFlip": LAW,
    "attacks.first": {"count": 1, "clients": K},
    "attacks.poison_labels": {"problem": problem(), **LAW},
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
    "data.dirichlet": {
        "labels": np.repeat([0, 1], 8),
        "clients": K,
        "concentration": 10.0,
        "seed": 0,
    },
    "data.iid": {"rows": 8, "clients": K, "seed": 0},
    "data.random_fourier": {"key": KEY, "inputs": 2, "features": 4},
    "federation.Federation": {"server": [0, 0, 1, 1], "graph": fl.graphs.path(2)},
    "federation.balanced": {"clients_per_server": 2, "graph": fl.graphs.path(2)},
    "graphs.Drawn": {"draw": lambda key: fl.graphs.ring(K)},
    "graphs.Schedule": {"graphs": [fl.graphs.ring(K), fl.graphs.complete(K)]},
    "graphs.complete": {"nodes": K},
    "graphs.erdos_renyi": {"key": KEY, "nodes": K, "probability": 0.5},
    "graphs.from_adjacency": {"matrix": np.ones((K, K)) - np.eye(K)},
    "graphs.from_edges": {"nodes": 3, "edges": [(0, 1), (1, 2)]},
    "graphs.from_networkx": {"graph": networkx.path_graph(3)},
    "graphs.from_stochastic": {"matrix": np.full((3, 3), 1 / 3), "convention": "right"},
    "graphs.grid": {"rows": 2, "columns": 3},
    "graphs.k_regular": {"key": KEY, "nodes": 6, "degree": 2},
    "graphs.path": {"nodes": K},
    "graphs.perron_vector": {"matrix": np.full((3, 3), 1 / 3)},
    "graphs.random_connected": {"key": KEY, "nodes": K, "mean_degree": 2},
    "graphs.random_geometric": {"key": KEY, "nodes": K, "radius": 0.5},
    "graphs.ring": {"nodes": K},
    "graphs.small_world": {"key": KEY, "nodes": 6, "degree": 2, "rewire": 0.1},
    "graphs.star": {"nodes": K},
    "graphs.stochastic_block_model": {
        "key": KEY,
        "sizes": (2, 2),
        "probabilities": np.full((2, 2), 0.5),
    },
    "link.Circular": {"size": 1},
    "link.DelayTrace": {"table": np.zeros((3, K), np.int32), "longest": 1},
    "link.Fixed": {},
    "link.Geometric": {"delta": 0.2, "longest": 2},
    "link.GilbertElliott": {"fail": 0.1, "recover": 0.5},
    "link.Independent": {"probability": 0.1},
    "link.Quantise": {"bits_each": 4},
    "link.Random": {"size": 1},
    "link.RandomK": {"count": 1},
    "link.Sign": {},
    "link.StochasticSign": {"bound": 1.0},
    "link.TopK": {"count": 1},
    "metrics.Metric": {"name": "own", "measure": lambda now: 0.0, "label": "own"},
    "metrics.as_metric": {"metric": "objective"},
    "participation.Bernoulli": {"probability": 0.5},
    "participation.Cyclic": {"cohorts": 2},
    "participation.Drawn": {"count": 2},
    "participation.Fraction": {"fraction": 0.5},
    "participation.Markov": {"fail": 0.1, "recover": 0.5},
    "participation.PerServer": {"count": 1},
    "participation.Periodic": {},
    "participation.Subset": {"count": 1},
    "participation.Trace": {"table": np.ones((3, K), bool)},
    "participation.Unequal": {"count": 1, "probability": np.full(K, 0.25)},
    "participation.Until": {"last": 5},
    "participation.groups": {"values": [0.1, 0.5], "clients": K},
    "privacy.AdaptiveClip": {},
    "privacy.ApproximateDP": RELEASE,
    "privacy.CentralGaussian": CLIP,
    "privacy.DiscreteZCDP": {"total_rho": 1.0},
    "privacy.NoisyGradients": CLIP,
    "privacy.PureDP": {"epsilon": 1.0},
    "privacy.ZCDP": {"total_rho": 1.0},
    "privacy.events": {"results": None},
    "privacy.spent": {"results": None, "delta": 1e-5},
    "privacy.accounting.advanced_composition": {**RELEASE, "rounds": 2, "slack": 1e-5},
    "privacy.accounting.advanced_epsilon": {"total": 1.0, "rounds": 2, "slack": 1e-5},
    "privacy.accounting.allocate": {**RELEASE, "rounds": 2, "rule": "geometric", "decay": 0.5},
    "privacy.accounting.analytic_gaussian_sigma": {**RELEASE, "sensitivity": 1.0},
    "privacy.accounting.basic_composition": {"epsilon": [0.1, 0.2], "delta": [1e-5, 1e-5]},
    "privacy.accounting.classical_gaussian_sigma": {
        "sensitivity": 1.0,
        "epsilon": 0.5,
        "delta": 1e-5,
    },
    "privacy.accounting.dynamic_zcdp_curve": {"initial": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.dynamic_zcdp_initial": {"total": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.dynamic_zcdp_total": {"initial": 1.0, "decay": 0.9, "rounds": 2},
    "privacy.accounting.gaussian_event": {"rho": 1.0},
    "privacy.accounting.gaussian_sigma": {"sensitivity": 1.0, "rho": 1.0},
    "privacy.accounting.gaussian_zcdp": {"sensitivity": 1.0, "sigma": 1.0},
    "privacy.accounting.kairouz_composition": {
        "epsilon": [0.1, 0.2],
        "delta": [1e-5, 1e-5],
        "slack": 1e-5,
    },
    "privacy.accounting.laplace_epsilon": {"sensitivity": 1.0, "scale": 1.0},
    "privacy.accounting.laplace_scale": {"sensitivity": 1.0, "epsilon": 1.0},
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
    "privacy.accounting.zcdp_delta": {"rho": 1.0, "epsilon": 1.0},
    "privacy.accounting.zcdp_epsilon": {"rho": 1.0, "delta": 1e-5},
    "privacy.accounting.zcdp_rho": RELEASE,
    "problems.ElasticNet": {"l1": 0.1, "l2": 0.1},
    "problems.Huber": {},
    "problems.Problem": {
        "features": np.ones((K, 5, 2)),
        "targets": np.ones((K, 5)),
        "loss": fl.problems.LeastSquares(),
    },
    "problems.Softmax": {"classes": 2},
    "problems.Tasks": {"cluster": CLUSTER, "clusters": 2},
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
    "problems.group_share": {"strength": 1.0, "index": CLUSTER, "groups": 2},
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
    "schedules.GeometricDecay": {"initial": 0.1},
    "schedules.PowerDecay": {"initial": 0.1},
    "schedules.as_schedule": {"value": 0.1},
    "schedules.from_optax": {"make": optax.linear_schedule},
    "streams.Autoregressive": AR,
    "streams.Linear": {
        "roots": np.ones((K, 2, 2)),
        "truth": np.ones(2),
        "noise": np.ones(K),
    },
    "streams.Replay": {"data": problem()},
    "streams.autoregressive": {"key": KEY, "clients": K, "test_samples": 3},
}

#: The valid calls that are not made: they would compile a run, or read results.
UNTRIED = {
    "run",
    "privacy.events",
    "privacy.spent",
    "problems.optimum",
    "schedules.from_optax",
}

#: What a parameter takes although it looks bad, by callable (``*`` for all) and name.
ACCEPTED = {
    ("random_key", "seed"): "negative",
    ("run", "key"): "negative",
    ("view", "key"): "negative",
    ("algorithms.DeterministicPolicyGradient", "cap"): "infinity",
    ("algorithms.NPFL", "inter_cluster"): "list",  # one of each client, as all lists below
    ("algorithms.NPFLRL", "initial"): "list",
    ("algorithms.PAOFed", "discount"): "list",
    ("algorithms.PSOFed", "discount"): "list",
    ("algorithms.algorithm", "label"): "text",
    ("algorithms.algorithm", "reference"): "text",
    ("attacks.Constant", "value"): "list negative",
    ("graphs.from_edges", "weights"): "list",
    ("graphs.from_networkx", "weight"): "text",
    ("metrics.Metric", "label"): "text",
    ("metrics.Metric", "name"): "text",
    ("participation.Bernoulli", "probability"): "list",
    ("participation.Markov", "fail"): "list",
    ("participation.Markov", "recover"): "list",
    ("participation.Until", "last"): "list",
    ("participation.groups", "values"): "list",
    ("streams.Autoregressive", "truth"): "list",
    ("streams.Linear", "truth"): "list",
    ("streams.Replay", "truth"): "list",
}

#: Accounting is elementwise: numbers of any shape, those of a probability below one.
ACCOUNTED = {
    **dict.fromkeys(["delta", "slack"], "list"),
    **dict.fromkeys(
        ["epsilon", "initial", "rdp", "rho", "scale", "sensitivity", "sigma", "total", "decay"],
        "list shape",
    ),
}


def public():
    """Every public callable with parameters, by room and name."""
    for room, place in ROOMS.items():
        for name in place.__all__:
            found, label = getattr(place, name), f"{room}.{name}" if room else name
            if not isinstance(found, type | types.FunctionType) or label in INSIDE:
                continue
            if room == "" and name in NOT_COVERED:
                continue
            if isinstance(found, type) and not is_record(found):
                continue
            if parameters(found):
                yield label, found


def is_record(cls):
    """Whether a class is made with fields: neither a base to be subclassed nor an exception."""
    return dataclasses.is_dataclass(cls) and not getattr(cls, "_is_protocol", False)


def parameters(found):
    kinds = inspect.Parameter
    return {
        name: parameter
        for name, parameter in inspect.signature(found).parameters.items()
        if parameter.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    }


PUBLIC = dict(public())


def call(label, arguments):
    """The call, abstract where it would compile what it draws."""
    if "key" not in arguments:
        return PUBLIC[label](**arguments)
    return jax.eval_shape(lambda: [PUBLIC[label](**arguments), None][1])


def judge(label, parameter, arguments):
    """``"accepted"``, ``"clear"``, or what is obscure about the error."""
    try:
        call(label, arguments)
    except (TypeError, ValueError) as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        text, place = str(error), frame.f_code.co_filename
        if "\n" in text or not (Path(place).is_relative_to(HERE) or parameter in text):
            return f"{type(error).__name__} of {place}: {text[:150]}"
        return "clear"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return "accepted"


def expected(label, name, kind):
    """What may become of a bad value: defaults of None and accounting's arrays may fit or not."""
    if kind in ACCEPTED.get((label, name), "").split():
        return {"accepted"}
    default = parameters(PUBLIC[label])[name].default
    elementwise = label.startswith("privacy.accounting.") and kind in ACCOUNTED.get(name, "")
    either = elementwise or (kind == "none" and default is None)
    return {"accepted", "clear"} if either else {"clear"}


def verdicts(label):
    """``(parameter, kind of bad value, verdict)`` of every bad call."""
    for name in parameters(PUBLIC[label]):
        for kind, value in BAD.items():
            if label not in UNTRIED or "accepted" not in expected(label, name, kind):
                yield name, kind, judge(label, name, VALID[label] | {name: value})


@pytest.fixture(autouse=True)
def _annotations_unchecked():
    """The functions find bad values themselves, without the tests' import hook."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_every_public_callable_has_an_entry():
    assert not PUBLIC.keys() - VALID.keys(), "give these a valid call in VALID"
    assert not VALID.keys() - PUBLIC.keys(), "these are no longer public"
    names = {name for name in fl.__all__ if isinstance(getattr(fl, name), types.ModuleType)}
    assert names <= NOT_COVERED | {room.partition(".")[0] for room in ROOMS} | {"streams"}


@pytest.mark.parametrize("label", PUBLIC)
def test_bad_input_is_refused_in_words(label):
    if label not in UNTRIED:
        call(label, VALID[label])
    wrong = [
        f"{name} = {kind}: {verdict}"
        for name, kind, verdict in verdicts(label)
        if verdict not in expected(label, name, kind)
    ]
    assert not wrong, "\n".join(wrong)


def test_parts_of_ones_own_that_lack_a_method_are_named():
    for base, method in (
        (fl.aggregation.Aggregator, "combine"),
        (fl.algorithms.Policy, "step"),
        (fl.link.Compressor, "bits"),
        (fl.link.DelayLaw, "draw"),
        (fl.link.Losses, "draw"),
        (fl.participation.Pattern, "draw"),
        (fl.participation.Selector, "choose"),
        (fl.problems.Loss, "derivative"),
        (fl.streams.Stream, "clients"),
    ):
        own = fl.module(type("Own", (base,), {"__annotations__": {}}))
        with pytest.raises(TypeError, match=f"Own has no method '{method}': .*Give its class one"):
            own()


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
        needs = fl.algorithms.Needs(privacy=(fl.privacy.ZCDP,))

        def init(self, problem, network):
            return ()

        def step(self, state, now):
            return state

        def sensitivity(self, problem, network, round, gap):
            return 1.0

    own = dataclasses.replace(SIMULATION, algorithm=Own())
    with pytest.raises(TypeError, match=r"Own\.init must return a state with a field model"):
        fl.run(own, rounds=2)
    with pytest.raises(TypeError, match=r"Own\.sensitivity must return one number of each"):
        fl.run(dataclasses.replace(own, privacy=fl.privacy.ZCDP(1.0)), rounds=2)


def test_one_hot_labels_are_no_labels():
    with pytest.raises(ValueError, match=r"one-hot rows take labels\.argmax"):
        fl.data.dirichlet(np.eye(4), clients=2, concentration=1.0, seed=0)
