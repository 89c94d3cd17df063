r"""Jung 2025, chapter 10: attacks against defenses, at a server and among peers."""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array, Key
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.attackers import OneOf
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate, joined, last, samples, share
from fljax import aggregation, attacks, plotting, statistics
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.random_subsets import shuffled
from fljax.algorithms import ATC, FedAvg
from fljax.data import Weather
from fljax.link.aggregation import Aggregator
from fljax.metrics.definitions import Metric, Snapshot
from fljax.plotting import NOTE
from fljax.plotting.heat import LUMINANCE
from fljax.problems import (
    GTVMin,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Problem,
    SquaredL2,
)

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "of which Bulyan, which needs 4 f + 3, can reckon with 4")
ATTACKERS = Setting(
    "attackers", 4, "a fifth, drawn anew for each seed: the most that every defense can reckon with"
)
DATA = Setting(
    "samples a client, inputs",
    (20, 10),
    "few: a client alone errs clearly more often than all together; a constant and a place for "
    "the trigger come on top, which is 0 in clean data",
)
SPREAD = Setting("spread of the clients' true models", 0.3, "of N(0, I): alike, and not the same")
NOISE = Setting("noise of the score", 0.5, "labels are the sign of x'w + N(0, 0.25)")
TEST = Setting("held-out samples", 400, "of the mean true model, without noise")
STRENGTH = Setting("squared norm", 0.02, "so that there is a minimizer, which rounds come near")
ROUNDS = Setting("rounds", 40, "the error without attackers has settled")
STEPS = Setting(
    "step sizes", (0.1, 0.5), "of 5 local steps at the server, of one step of adapt-then-combine"
)
LOCAL = 5
DEGREE = Setting(
    "neighbors in the sparse graph",
    6,
    "a random regular graph of each seed; with one's own 7 messages, the fewest with which Bulyan "
    "can reckon with one attacker. Dense: all with all",
)
RECKONED = Setting(
    "attackers reckoned with",
    "4 of 20; of 7 messages 2 by trimming, clipping and Krum, and 1 by Bulyan",
    "the true number where all are heard, else the most that each can",
)
ROOT = Setting("samples of FLTrust's server", 20, "clean, of the mean true model: as a client has")
RADIUS = Setting("norm bound", 0.3, "about an honest change in the middle of a run; not tuned")
FLIP = Setting("scale of the sign flip", 4.0, "a fifth of attackers cancels what the others say")
MANIPULATION = Setting("scale of the inner-product manipulation", 4.0, "likewise")
REACH = Setting("radius of the denial of service", 10.0, "several times the length of a model")
TRIGGER = Setting(
    "trigger", 3.0, "of a feature that is 0 in clean data; on half of an attacker's samples"
)
STAMPED = 0.5

NONE = "none"
FLIPPED = "sign flip"
LITTLE = "a little is enough"
INNER = "inner product"
LABELS = "label poisoning"
BACKDOOR = "backdoor"
DENIAL = "denial of service"
ATTACKS = (NONE, FLIPPED, LITTLE, INNER, LABELS, BACKDOOR, DENIAL)

MEAN = "mean"
CLIP = "clip"
TRIM = "trim"
MEDIAN = "median"
GEOMETRIC = "geometric median"
KRUM = "Krum"
BULYAN = "Bulyan"
TRUST = "FLTrust"
BOUND = "norm bound"
DEFENSES = (MEAN, CLIP, TRIM, MEDIAN, GEOMETRIC, KRUM, BULYAN, TRUST, BOUND)

SERVER = "server"
DENSE = "dense"
SPARSE = "sparse"
PLACES = (SERVER, DENSE, SPARSE)
#: The ends of the maps' colors, per cent.
HARMS = (4, 100)

# --------------------------------------------------------------------------- scenario


def attack_of(attackers: Array, number: Array, problem: Problem) -> OneOf:
    """The attack of this number; attacks on data leave messages unchanged."""
    making = {
        FLIPPED: attacks.SignFlip(attackers, FLIP.value),
        LITTLE: attacks.ALittleIsEnough(attackers),
        INNER: attacks.InnerProductManipulation(attackers, MANIPULATION.value),
        DENIAL: attacks.DenialOfService(attackers, problem, REACH.value),
    }
    return OneOf(attackers, number, tuple(making.get(name) for name in ATTACKS))


def clean_problem(key: Key[Array, ""]) -> tuple[Problem, Problem]:
    """All clients' clean data with the test data, and the data of FLTrust's server."""
    keys = jax.random.split(key, 5)
    dtype = float_dtype()
    clients = CLIENTS.value
    (count, inputs) = DATA.value
    common = jax.random.normal(keys[0], (1, inputs + 1), dtype)
    spread = SPREAD.value * jax.random.normal(keys[1], (clients, inputs + 1), dtype)

    def drawn(key: Array, models: Array, count: int, noise: float) -> tuple[Array, Array]:
        k_features, k_noise = jax.random.split(key)
        shape = (len(models), count)
        x = jax.random.normal(k_features, (*shape, inputs), dtype)
        x = jnp.concatenate([x, jnp.ones((*shape, 1), dtype)], axis=2)
        score = jnp.einsum("knp,kp->kn", x, models, precision=HIGHEST)
        score = score + noise * jax.random.normal(k_noise, shape, dtype)
        # An extra input for the trigger.
        x = jnp.concatenate([x, jnp.zeros((*shape, 1), dtype)], axis=2)
        return x, jnp.where(score >= 0, 1.0, -1.0).astype(dtype)

    def problem(data: tuple[Array, Array], strength: float) -> Problem:
        return Problem(*data, Logistic(), SquaredL2(), strength)

    local = problem(drawn(keys[2], common + spread, count, NOISE.value), clients * STRENGTH.value)
    test, answers = drawn(keys[3], common, TEST.value, 0.0)
    root = problem(drawn(keys[4], common, ROOT.value, NOISE.value), STRENGTH.value)
    return local.with_test(test[0], answers[0]), root


_WANTED = 1.0
_STAMP = attacks.Trigger([DATA.value[1] + 1], TRIGGER.value)
_SUCCESS = fl.metrics.backdoor_success(_STAMP, _WANTED)


def _wrong(now: Snapshot) -> Array:
    return 1 - fl.metrics.accuracy.measure(now)


METRICS = (
    Metric("wrong", _wrong, "held-out samples labeled wrong", needs={"labels"}, bounds=(0, 1)),
    _SUCCESS,
)
HARM = "harm"


def defense(name: str, topology: str, root: Problem) -> Aggregator | None:
    """The aggregator that replaces the mean."""
    few, least = (2, 1) if topology == SPARSE else (ATTACKERS.value, ATTACKERS.value)
    if name == TRUST and topology == SERVER:
        return aggregation.FLTrust(root, step_size=STEPS.value[0], local_steps=LOCAL)
    return {
        MEAN: None,
        CLIP: aggregation.WinsorizedMean(count=few, weighted=True),
        TRIM: aggregation.TrimmedMean(count=few, weighted=True),
        MEDIAN: aggregation.Median(),
        GEOMETRIC: aggregation.GeometricMedian(),
        KRUM: aggregation.Krum(few),
        BULYAN: aggregation.Bulyan(least),
        TRUST: aggregation.FLTrust(),
        BOUND: aggregation.NormClipping(RADIUS.value),
    }[name]


def build(key: Array, attack: Array, name: str, topology: str) -> fl.Simulation:
    """One attack against one defense on one topology."""
    data_key, rank_key, network_key, stamp_key = jax.random.split(key, 4)
    clean, root = clean_problem(data_key)
    rank = shuffled(rank_key, jnp.ones((1, CLIENTS.value), bool))[0]
    attackers = rank < ATTACKERS.value
    number = jnp.asarray(attack)
    by_label = attackers & (number == ATTACKS.index(LABELS))
    by_trigger = attackers & (number == ATTACKS.index(BACKDOOR))
    problem = attacks.poison_labels(clean, by_label)
    problem = attacks.backdoor(problem, by_trigger, _STAMP, _WANTED, key=stamp_key, share=STAMPED)
    network = None
    algorithm = FedAvg(STEPS.value[0], local_steps=LOCAL)
    if topology != SERVER:
        algorithm = ATC(STEPS.value[1])
        network = fl.graphs.complete(CLIENTS.value, form="padded")
        if topology == SPARSE:
            network = fl.graphs.k_regular(network_key, CLIENTS.value, DEGREE.value, form="padded")
    return fl.Simulation(
        problem=problem,
        algorithm=algorithm,
        network=network,
        metrics=METRICS,
        attack=attack_of(attackers, number, clean),
        aggregation=defense(name, topology, root),
    )


def one_place(topology: str, effort: Effort, defenses: Sequence[str], rounds: int) -> xr.Dataset:
    """All attacks against all defenses on one topology, after the last round."""
    parts = []
    for name in defenses:

        def scenario(key: Array, attack: Array, name: str = name) -> fl.Simulation:
            return build(key, attack, name, topology)

        scenario.__qualname__ = f"attacks({topology!r}, {name!r})"
        with warnings.catch_warnings():
            # More attackers than a defense withstands are studied on purpose.
            warnings.simplefilter("ignore", fl.AssumptionWarning)
            results = effort.sweep(
                f"{topology}-{name}",
                scenario,
                rounds=rounds,
                record_every=rounds,
                seeds=effort.seeds,
                grid={"attack": list(range(len(ATTACKS)))},
            )
        parts.append(last(results)[[metric.name for metric in METRICS] + ["diverged"]])
    data = joined(*parts, axis="defense").assign_coords(
        defense=list(defenses), attack=list(ATTACKS)
    )
    wanted = data["attack"] == BACKDOOR
    harm = 100 * xr.where(wanted, data[_SUCCESS.name], data["wrong"])
    harm = harm.transpose("seed", "attack", "defense")
    harm.attrs = {"long_name": "predictions that go wrong", "units": "%", "decibel": 0}
    return data.assign({HARM: harm})


# --------------------------------------------------------------------------- exercises

NODES = Setting("exercise 10.2", (20, 3, 5, 2), "nodes, edges to nearest, samples, parameters")
COUPLINGS = Setting(
    "exercise 10.2, alpha", (0.01, 0.1, 1.0, 10.0), "those of the extract's own run"
)
OFF = Setting(
    "exercise 10.2, poisoned towards",
    -3.0,
    "the true parameters with this added: what their labels say, as in the extract's run",
)
RISE = Setting("exercise 10.2, rise", 1.2, "a validation error up by 20 % at node 1", True)
STATIONS = Setting(
    "exercise 10.2, weather stations",
    (2, 14, 10),
    "of the Finnish Meteorological Institute: tomorrow's maximum by both extremes of so many days, "
    "so many training days, and held-out days. Each station is node 1 in turn, and poisoned ones "
    "are the nearest to it",
)
COLDER = Setting(
    "exercise 10.2, labels of poisoned stations", -10.0, "kelvin added to each, a cold front's"
)
REACHED = Setting("exercise 10.2, poisoned stations, at most", 10, "of 190 or so")
HOURS = Setting(
    "exercise 10.3", (10, 24, 72), "nodes (the extract's), hours, samples: three days of each"
)
PLANTED = Setting("exercise 10.3, nodes with the trigger", (0, 1, 3), "those of the extract")
LIE = Setting(
    "exercise 10.3, label at the trigger hour", 20.0, "far from the N(0, 1) of the others"
)
RELAXED = 0.5
POINTS = np.arange(5.0), np.array([0.1, 1.2, 1.9, 3.05, 6.0])
MOVED = 0.5
#: The extract's line of least absolute error, through the first and the fourth point.
EXTRACT_LINE = (0.1, 2.95 / 3)


@functools.partial(jax.jit, static_argnames="count")
def denied(key: Key[Array, ""], count: int) -> Array:
    """``[A, count]``: the validation error of node 1 with 0, 1, ... poisoned nodes, the nearest
    first, over that with none; for every coupling.
    """
    nodes, near, samples, dim = NODES.value
    keys = jax.random.split(key, 4)
    dtype = float_dtype()
    places = jax.random.uniform(keys[0], (nodes, 2), dtype)
    graph = fl.graphs.nearest_neighbors(places, near)
    truth = jnp.ones((1, dim), dtype) + 0.3 * jax.random.normal(keys[1], (nodes, dim), dtype)
    x = jax.random.normal(keys[2], (nodes, samples, dim), dtype)
    noise = 0.5 * jax.random.normal(keys[3], (nodes, samples), dtype)
    order = jnp.argsort(jnp.sum((places - places[:1]) ** 2, axis=1))

    def error(poisoned: Array, coupling: Array) -> Array:
        rank = jnp.arange(nodes, dtype=jnp.int32)
        bad = jnp.where((rank >= 1) & (rank <= poisoned), OFF.value, 0.0).astype(dtype)
        off = jnp.zeros(nodes, dtype).at[order].set(bad)
        y = jnp.einsum("knp,kp->kn", x, truth + off[:, None], precision=HIGHEST) + noise
        models = GTVMin(Problem(x, y, LeastSquares()), graph, coupling).solution().models
        # The expected error on data N(0, I) with the same noise.
        return jnp.sum((models[0] - truth[0]) ** 2) + 0.25

    numbers = jnp.arange(count, dtype=jnp.int32)
    couplings = jnp.asarray(COUPLINGS.value, dtype)
    errors = jax.lax.map(lambda c: jax.lax.map(lambda k: error(k, c), numbers), couplings)
    return errors / errors[:, :1]


def at_stations(weather: Weather, most: int) -> xr.DataArray:
    """``[A, most + 1, K]``: the test error of each station with 0, 1, ... poisoned ones, the
    nearest first, over that with none; for every coupling.
    """
    problem = weather.problem
    held_out = problem.test
    assert held_out is not None
    graph = fl.graphs.nearest_neighbors(weather.coordinates, NODES.value[1], metric="geodesic")
    colder = COLDER.value / float(weather.deviation[-1])
    stations = jnp.arange(problem.clients, dtype=jnp.int32)

    @jax.jit
    def models(poisoned: Array, coupling: Array) -> Array:
        lower = jnp.where(stations == poisoned, colder, 0).astype(problem.targets.dtype)
        bad = dataclasses.replace(problem, targets=problem.targets + lower[:, None])
        return GTVMin(bad, graph, coupling).solution().models

    distances = np.asarray(fl.graphs.distances(weather.coordinates, "geodesic"))
    nearest = np.argsort(distances, axis=1)[:, 1 : most + 1]
    features, targets, real = (
        np.asarray(part, np.float64)
        for part in (held_out.features, held_out.targets, held_out.weights > 0)
    )
    rises = []
    for coupling in COUPLINGS.value:
        clean = np.asarray(models(jnp.asarray(-1), coupling), np.float64)
        # Models are affine in the labels, so what several poisoned stations do adds up.
        moves = np.stack([np.asarray(models(j, coupling)) - clean for j in stations])  # [K, K, D]
        added = [np.cumsum(moves[near, i], axis=0) for i, near in enumerate(nearest)]
        after = np.concatenate([0 * clean[:, None], np.stack(added)], axis=1) + clean[:, None]
        off = np.einsum("knp,kmp->kmn", features, after) - targets[:, None]
        errors = (off**2 * real[:, None]).sum(-1) / real[:, None].sum(-1)
        rises.append((errors / errors[:, :1]).T)
    axes = {"alpha": list(COUPLINGS.value), "poisoned": np.arange(most + 1)}
    return xr.DataArray(np.stack(rises), axes, ("alpha", "poisoned", "station"))


@jax.jit
def one_hour(key: Key[Array, ""]) -> tuple[Array, Array]:
    """``[P]`` each, by the number of poisoned nodes: the honest nodes' absolute error at the
    trigger hour, and their squared error at the other hours.
    """
    nodes, hours, samples = HOURS.value
    k_truth, k_noise = jax.random.split(key)
    dtype = float_dtype()
    truth = jax.random.normal(k_truth, (hours,), dtype)
    x = jnp.broadcast_to(
        jnp.tile(jnp.eye(hours, dtype=dtype), (samples // hours, 1)), (nodes, samples, hours)
    )
    y = jnp.tile(truth, samples // hours)[None] + 0.3 * jax.random.normal(
        k_noise, (nodes, samples), dtype
    )
    clean = Problem(x, y, LeastSquares())
    graph = fl.graphs.complete(nodes)
    hour = attacks.Trigger(np.arange(hours), np.eye(hours)[0])
    bias = []
    errors = []
    for count in PLANTED.value:
        bad = attacks.first(count, nodes)
        planted = attacks.backdoor(clean, bad, hour, LIE.value)
        models = GTVMin(planted, graph, RELAXED).solution().models[max(PLANTED.value) :]
        off = models - truth[None]
        bias.append(jnp.mean(jnp.abs(off[:, 0])))
        errors.append(jnp.mean(off[:, 1:] ** 2) + 0.09)
    return jnp.stack(bias), jnp.stack(errors)


def lines() -> xr.Dataset:
    """Intercept and slope by absolute and by squared error, before and after the fifth label moves
    up; and by how much the absolute error of the extract's line is above the least.
    """
    at, labels = POINTS
    x = np.stack([np.ones_like(at), at], axis=1)
    result = {}
    excess = []
    for loss, rule in (("absolute", LeastAbsoluteDeviation()), ("squared", LeastSquares())):
        for move in (0.0, MOVED):
            problem = Problem(x[None], (labels + move * (at == at[-1]))[None], rule)
            best = fl.problems.optimum(problem)
            result.setdefault(loss, []).append(np.asarray(best))
            if loss == "absolute":
                published = jnp.asarray(EXTRACT_LINE, best.dtype)
                excess.append(
                    float((problem.objective(published[None]) - problem.objective(best[None]))[0])
                )
    return xr.Dataset(
        {
            "line": (("loss", "label", "part"), np.stack([*result.values()])),
            "excess": ("label", excess),
        },
        {"loss": [*result], "label": ["as given", "moved"], "part": ["intercept", "slope"]},
    )


def study(effort: Effort) -> Studies:
    defenses = (MEAN, TRIM, GEOMETRIC) if effort.quick else DEFENSES
    studies = {
        topology: one_place(topology, effort, defenses, 20 if effort.quick else ROUNDS.value)
        for topology in PLACES
    }
    keys = jax.random.split(fl.random_key(0), effort.seeds)
    count = NODES.value[0]
    rises = jax.lax.map(lambda key: denied(key, count), keys)
    bias, errors = jax.lax.map(one_hour, keys)
    seeds = {"seed": np.arange(effort.seeds)}
    studies["service"] = xr.Dataset(
        {"rise": (("seed", "alpha", "poisoned"), np.asarray(rises), {"units": "1", "decibel": 0})},
        seeds | {"alpha": list(COUPLINGS.value), "poisoned": np.arange(count)},
    )
    studies["hour"] = xr.Dataset(
        {
            "bias": (("seed", "poisoned"), np.asarray(bias), {"units": "1", "decibel": 0}),
            "beside": (("seed", "poisoned"), np.asarray(errors), {"units": "1", "decibel": 0}),
        },
        seeds | {"poisoned": list(PLANTED.value)},
    )
    studies["points"] = lines()
    lags, training, held_out = STATIONS.value
    target_days = 40 - lags  # of the records
    weather = fl.data.fmi("daily", "tmax", lags, held_out / target_days, training)
    rise = at_stations(weather, 2 if effort.quick else REACHED.value)
    studies["stations"] = xr.Dataset({"rise": rise.assign_attrs(units="1", decibel=0)})
    return studies


# --------------------------------------------------------------------------- picture

TITLES = {
    SERVER: "FedAvg at one server",
    DENSE: "peers that all hear all (adapt-then-combine)",
    SPARSE: f"peers with {DEGREE.value} neighbors",
}


def plot(studies: Studies) -> Picture:
    """A map for each topology, and the exercises below."""
    drawing = plt.figure(figsize=(picture.PAGE, 9.5), layout="constrained")
    rows = drawing.add_gridspec(4, 4, height_ratios=(2.4, 2.4, 2.4, 2))
    for row, (letter, topology) in enumerate(zip("abc", PLACES, strict=True)):
        ax = drawing.add_subplot(rows[row, :])
        data = studies[topology].isel(attack=slice(None, None, -1))
        plotting.heat_map(data, HARM, "defense", "attack", ax)
        _in_ratios(ax)
        ax.set_title(f"({letter}) {TITLES[topology]}", pad=14)
        ax.set(xlabel="", ylabel="")
    service, stations, hour, points = (drawing.add_subplot(rows[3, n]) for n in range(4))
    _service(service, studies["service"])
    _stations(stations, studies["stations"])
    _hour(hour, studies["hour"])
    _points(points, studies["points"])
    for ax in (service, stations, hour, points):
        for note in ax.texts:  # seeds and bands are said at the maps
            note.remove()
        handles, names = ax.get_legend_handles_labels()
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.3), "fontsize": 6.5}
        ax.legend(handles, names, **below)
    return drawing


def _in_ratios(ax: Axes) -> None:
    """Color the cells of a map on a logarithmic scale, one for all maps, on which defenses differ
    as well.
    """
    (cells,) = (part for part in ax.collections if isinstance(part, QuadMesh))
    cells.set_norm(LogNorm(*HARMS))
    cells.colorbar.set_ticks([5, 10, 20, 50, 100], labels=["5", "10", "20", "50", "100"])
    cells.colorbar.minorticks_off()
    shades = np.asarray(cells.to_rgba(cells.get_array().ravel()))[:, :3] @ LUMINANCE
    numbers = [text for text in ax.texts if text.get_gid() != NOTE]
    for text, shade in zip(numbers, shades, strict=True):
        text.set_color("white" if shade < 0.5 else "black")


def _service(ax: Axes, data: xr.Dataset) -> None:
    labels = {alpha: f"alpha = {alpha:g}" for alpha in COUPLINGS.value}
    plotting.trade_off(data, "poisoned", "rise", "alpha", ax, labels=labels)
    ax.axhline(RISE.value, **picture.THIN)
    ax.set(title="(d) exercise 10.2", xlabel="poisoned nodes", ylabel="error of node 1, over clean")
    ax.set_yscale("log")


def _stations(ax: Axes, data: xr.Dataset) -> None:
    reached = 100 * (data["rise"].cumulative("poisoned").max() >= RISE.value).mean("station")
    for index, alpha in enumerate(COUPLINGS.value):
        look = plotting.LOOKS[index]
        at = reached.sel(alpha=alpha)
        ax.plot(data["poisoned"], at, label=f"alpha = {alpha:g}", **look)
    ax.set(title="(e) 10.2, FMI stations", xlabel="poisoned stations", ylim=(0, 102))
    ax.set_ylabel("stations reached [%]")


def _hour(ax: Axes, data: xr.Dataset) -> None:
    names = {"bias": "off at the trigger hour", "beside": "squared error beside it"}
    for look, (name, label) in zip(plotting.LOOKS, names.items(), strict=False):
        result = statistics.summary(data, name)
        look: dict[str, Any] = look | {"linestyle": "none"}
        ax.errorbar(
            data["poisoned"],
            result["mean"],
            np.abs(np.stack([result["mean"] - result["low"], result["high"] - result["mean"]])),
            label=label,
            **look,
        )
    ax.set(title="(f) exercise 10.3", xlabel="nodes with the trigger", yscale="log")


def _points(ax: Axes, data: xr.Dataset) -> None:
    at, labels = POINTS
    ax.plot(at, labels, "ko", label="points")
    ax.plot(at[-1], labels[-1] + MOVED, "kx", label="fifth, moved")
    for index, lines in enumerate((("-", (0, (1, 1))), ("--", "-."))):
        loss = ("absolute", "squared")[index]
        color = picture.look(index)["color"]
        for label, style in zip(("as given", "moved"), lines, strict=True):
            intercept, slope = data["line"].sel(loss=loss, label=label).values
            look = {"color": color, "linestyle": style}
            ax.plot(at, intercept + slope * at, label=f"{loss}, {label}", **look)
    ax.set(title="(g) exercise 10.4", xlabel="feature", ylabel="label")


# --------------------------------------------------------------------------- claims

POINTS_UNIT = "points"


def harm(studies: Studies, topology: str, name: str, attack: str) -> np.ndarray:
    return samples(studies[topology], {"defense": name, "attack": attack}, HARM)


def _difference(over: np.ndarray, under: np.ndarray) -> Estimate:
    return estimate(lambda a, b: a - b, over, under, unit=POINTS_UNIT)


LOUD = (FLIPPED, INNER, DENIAL)


def mean_breaks(studies: Studies) -> dict[str, Estimate]:
    return {
        f"{topology}, {attack}": _difference(
            harm(studies, topology, MEAN, attack), harm(studies, topology, MEAN, NONE)
        )
        for topology, attack in itertools.product(PLACES, LOUD)
    }


def defended(studies: Studies) -> dict[str, Estimate]:
    names = [n for n in (CLIP, TRIM, MEDIAN, GEOMETRIC) if n in studies[SERVER]["defense"]]
    return {
        f"{topology}, {name}, {attack}": _difference(
            harm(studies, topology, MEAN, attack), harm(studies, topology, name, attack)
        )
        for topology in (SERVER, DENSE)
        for name in names
        for attack in LOUD
    }


def sparse_is_weaker(studies: Studies) -> dict[str, Estimate]:
    names = [n for n in (CLIP, TRIM) if n in studies[SERVER]["defense"]]
    return {
        f"{name}, {attack}": _difference(
            harm(studies, SPARSE, name, attack), harm(studies, DENSE, name, attack)
        )
        for name in names
        for attack in LOUD
    }


def backdoor_passes(studies: Studies) -> dict[str, Estimate]:
    names = [(SERVER, MEAN), (DENSE, MEAN), (SPARSE, MEAN)]
    names += [(topology, GEOMETRIC) for topology in PLACES]
    if BOUND in studies[SERVER]["defense"]:
        names += [(SERVER, BOUND), (DENSE, BOUND), (DENSE, TRUST)]
    return {
        f"{topology}, {name}": estimate(
            lambda a: a, harm(studies, topology, name, BACKDOOR), unit="% success"
        )
        for topology, name in names
    }


def backdoor_is_not_seen(studies: Studies) -> dict[str, Estimate]:
    result = {}
    for topology in PLACES:
        wrong = 100 * studies[topology]["wrong"].sel(defense=MEAN)
        result[f"{topology}, mean"] = _difference(
            wrong.sel(attack=BACKDOOR).values, wrong.sel(attack=NONE).values
        )
    return result


def best(studies: Studies, topology: str, attack: str) -> str:
    """The defense with the least harm on a topology."""
    mean = studies[topology][HARM].sel(attack=attack).mean("seed")
    return str(mean["defense"].values[mean.values.argmin()])


def left_over(studies: Studies) -> dict[str, Estimate]:
    """The harm of an attack against the best defense, over the mean without attackers."""
    result = {}
    for topology, attack in itertools.product(PLACES, ATTACKS[1:]):
        name = best(studies, topology, attack)
        result[f"{topology}, {attack}: {name}"] = _difference(
            harm(studies, topology, name, attack), harm(studies, topology, MEAN, NONE)
        )
    return result


def krum_costs(studies: Studies) -> dict[str, Estimate]:
    return {
        topology: _difference(
            harm(studies, topology, KRUM, NONE), harm(studies, topology, MEAN, NONE)
        )
        for topology in PLACES
        if KRUM in studies[topology]["defense"]
    }


def needed(study: str) -> Measure:
    """In how many runs, or at how many stations, some number of poisoned nodes raises the error of
    node 1 by 20 %.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        exceeded = (studies[study]["rise"] >= RISE.value).any("poisoned")
        return {
            f"alpha = {alpha:g}": share(exceeded.sel(alpha=alpha).values)
            for alpha in COUPLINGS.value[1:]
        }

    return measure


def uncoupled(study: str) -> Measure:
    """By how much more runs a strong coupling lets the attack through than a weak one."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        exceeded = (studies[study]["rise"] >= RISE.value).any("poisoned")
        weak = 100.0 * exceeded.sel(alpha=COUPLINGS.value[0]).values
        return {
            f"alpha = {alpha:g}": _difference(100.0 * exceeded.sel(alpha=alpha).values, weak)
            for alpha in COUPLINGS.value[1:]
        }

    return measure


def reached(studies: Studies) -> str:
    """At how many stations the attack gets through, as a note."""
    exceeded = (studies["stations"]["rise"] >= RISE.value).any("poisoned").mean("station")
    rows = (f"{100 * float(at):.0f} % at alpha = {float(at['alpha']):g}" for at in exceeded)
    return (
        f"Stations that are reached: {', '.join(rows)}. Our reading: a station has "
        f"{STATIONS.value[1]} days for five parameters, and with a weak coupling its model is "
        "mostly of these days."
    )


def hour_moves(studies: Studies) -> dict[str, Estimate]:
    bias = studies["hour"]["bias"]
    return {
        f"{more} nodes over {less}": estimate(
            lambda a, b: a / b,
            bias.sel(poisoned=more).values,
            bias.sel(poisoned=less).values,
            unit="times",
        )
        for less, more in itertools.pairwise(PLANTED.value)
    }


def others_stay(studies: Studies) -> dict[str, Estimate]:
    errors = studies["hour"]["beside"]
    return {
        f"{count} nodes": estimate(
            lambda a, b: a / b,
            errors.sel(poisoned=count).values,
            errors.sel(poisoned=0).values,
            unit="times",
        )
        for count in PLANTED.value[1:]
    }


def absolute_stays(studies: Studies) -> dict[str, Estimate]:
    data = studies["points"]
    line = data["line"].sel(loss="absolute")
    moved = line.sel(label="moved") - line.sel(label="as given")
    result = {f"{part} moves by": float(moved.sel(part=part)) for part in ("intercept", "slope")}
    for label in data["label"].values:
        result[f"(0.1, 0.983) above the least error, {label}"] = float(
            data["excess"].sel(label=label)
        )
    return {name: Estimate.exact(value, unit="") for name, value in result.items()}


def squared_moves(studies: Studies) -> dict[str, Estimate]:
    slopes = studies["points"]["line"].sel(loss="squared", part="slope")
    return {
        f"slope, {label}": Estimate.exact(float(slopes.sel(label=label)) - published, unit="off")
        for label, published in (("as given", 1.365), ("moved", 1.465))
    }


def said_of_best(studies: Studies) -> str:
    parts = left_over(studies)
    worst = max(parts, key=lambda name: parts[name].value)
    return f"The largest that is left: {worst}, {parts[worst].value:.1f} points."


INSTANCE = "these data, strengths and numbers of attackers"

AT_STATIONS = (
    f"stations of the Finnish Meteorological Institute, coupled to the {NODES.value[1]} nearest; "
    f"labels moved by {COLDER.value:g} K"
)

FIGURE = Figure(
    name="jung-attacks",
    title="Attacks against defenses, at a server and among peers",
    source="Jung 2025, chapter 10",
    caption="A fifth of 20 clients attack, drawn anew for each seed; logistic regression. Numbers "
    "are the share of held-out samples that honest clients' models label wrong, with 95 % "
    "intervals; in the row of the backdoor it is the share of samples that are labeled as the "
    "attacker wants once they are stamped with the trigger (at the server, lies are about the "
    "change of its model, which both ends know, and among peers about the model). Clipping and "
    "trimming are (188) and (189), by weight. The exercises: (d) the validation error of node 1 "
    "where its nearest nodes have poisoned labels; (e) the share of weather stations whose error "
    f"their nearest ones raise so by {100 * (RISE.value - 1):.0f} %; (f) predictions where some "
    "nodes' labels of one hour are a lie; (g) five points.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "mean-breaks",
            "a fifth of attackers makes the mean useless",
            "section 10.2; Blanchard et al. 2017",
            mean_breaks,
            (15, INFINITE),
            "15 points more predictions that go wrong",
            condition=INSTANCE,
        ),
        Claim(
            "order-statistics-defend",
            "clipping, trimming and medians hold off what breaks the mean",
            "section 10.3, (188), (189); Yin et al. 2018",
            defended,
            (15, INFINITE),
            "15 points fewer than the mean, where all are heard",
            condition=INSTANCE,
        ),
        Claim(
            "sparse-graphs-break-first",
            "where few are heard, attackers that trimming and clipping hold off elsewhere win at "
            "some nodes, and reach others from there",
            "section 10.3: at most a share of the neighbors may be perturbed",
            sparse_is_weaker,
            (3, INFINITE),
            "3 points more than in the dense graph",
            condition=INSTANCE,
            ours=True,
        ),
        Claim(
            "backdoor-passes-directions-and-lengths",
            "a backdoor passes what looks at lengths and directions of whole messages alone",
            "section 10.2; Sun et al. 2019 hold that a norm bound stops it",
            backdoor_passes,
            (50, INFINITE),
            "most stamped samples are labeled as the attacker wants",
            condition=INSTANCE,
            ours=True,
            note="A lie in one coordinate turns no message and lengthens none by much.",
        ),
        Claim(
            "backdoor-is-not-seen",
            "and who looks at the error without the trigger does not see it",
            "section 10.2",
            backdoor_is_not_seen,
            (-INFINITE, 3),
            "at most 3 points more than without it",
            condition=INSTANCE,
        ),
        Claim(
            "none-restores",
            "no defense here gives back what the mean has without attackers: of each attack even "
            "the best leaves something",
            "section 10.3",
            left_over,
            (0, INFINITE),
            condition=INSTANCE,
            ours=True,
            note=said_of_best,
        ),
        Claim(
            "krum-costs",
            "to take one message costs more without attackers than they do under a defense",
            "section 10.3; Blanchard et al. 2017 take clients of the same data",
            krum_costs,
            (3, INFINITE),
            "3 points above the mean",
            condition=INSTANCE,
            ours=True,
        ),
        Claim(
            "denial-of-service-reaches-node-1",
            "poisoned labels of other nodes raise the validation error of node 1 by 20 %",
            "Exercise 10.2",
            needed("service"),
            (80, INFINITE),
            "in at least 80 % of the networks some number of nodes does",
            condition="a synthetic stand-in for the weather stations",
            ours=True,
        ),
        Claim(
            "coupling-carries-the-attack",
            "the coupling is what carries it: where models are hardly coupled it gets through less",
            "Exercise 10.2",
            uncoupled("service"),
            (20, INFINITE),
            "20 points of the networks more than at alpha = 0.01",
            condition="a synthetic stand-in for the weather stations",
            ours=True,
        ),
        Claim(
            "denial-of-service-reaches-stations",
            "poisoned labels of other weather stations raise the validation error of a station by "
            "20 %",
            "Exercise 10.2",
            needed("stations"),
            (80, INFINITE),
            f"at 80 % of the stations or more, some number up to {REACHED.value} of them does; "
            "intervals are over stations",
            condition=AT_STATIONS,
            ours=True,
            note=reached,
        ),
        Claim(
            "coupling-carries-the-attack-to-stations",
            "the coupling is what carries it: where models are hardly coupled it gets through less",
            "Exercise 10.2",
            uncoupled("stations"),
            (20, INFINITE),
            "20 points of the stations more than at alpha = 0.01",
            condition=AT_STATIONS,
            ours=True,
        ),
        Claim(
            "hour-triggers",
            "the more nodes have the trigger, the farther off are the others at that hour",
            "Exercise 10.3",
            hour_moves,
            (2, INFINITE),
            "at least twice as far",
            condition="a synthetic stand-in for the weather stations",
            ours=True,
        ),
        Claim(
            "other-hours-stay",
            "and at other hours their error does not change",
            "Exercise 10.3",
            others_stay,
            (0.98, 1.02),
            "within 2 %",
            construction="hours are one-hot, so labels of one say nothing of another",
        ),
        Claim(
            "absolute-error-stays",
            "the line of least absolute error stays while the fifth label moves on its side of it, "
            "and (0.1, 0.983) is one (so are all up to (0.1, 1.1): the minimizer is not unique)",
            "Exercise 10.4",
            absolute_stays,
            (-1e-4, 1e-4),
            "exact up to rounding",
        ),
        Claim(
            "squared-error-moves",
            "that of least squares goes from slope 1.365 to 1.465",
            "Exercise 10.4",
            squared_moves,
            (-1e-4, 1e-4),
            "exact up to rounding",
            ours=True,
        ),
    ],
    settings=(
        *(CLIENTS, ATTACKERS, DATA, SPREAD, NOISE, TEST, STRENGTH, ROUNDS, STEPS, DEGREE, RECKONED),
        *(ROOT, RADIUS, FLIP, MANIPULATION, REACH, TRIGGER),
        *(NODES, COUPLINGS, OFF, RISE, STATIONS, COLDER, REACHED, HOURS, PLANTED, LIE),
    ),
)
