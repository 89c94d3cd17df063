"""Jung 2025: monitoring of validation errors while data drift (section 8.1)."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture, tuning
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung.solutions import dataset
from experiments.measures import estimate, samples, share
from fljax import monitoring, plotting
from fljax.algorithms import OnlineFed

CLIENTS = Setting("nodes", 10, "not given")
DIM = Setting("parameters", 4, "not given; features are N(0, I), one truth for all nodes")
NOISE = Setting("noise variance", 0.1, "as in the other synthetic figures")
HELD_OUT = Setting("held-out samples of a node", 20, "few, as validation sets of nodes are")
STEP = Setting(
    "step size of Online-Fed", 0.05, "one sample a node and round; the error fluctuates visibly"
)
ROUNDS = Setting("rounds", 600, "200 before, 400 after the drift")
WATCHED = Setting("watched from round", 101, "the model has settled by then")
NODE = Setting("nodes that drift", (2, 7), "of ten, one after the other")
ONSET = Setting("rounds in which they begin", (301, 401), "not given")
KINDS = Setting(
    "drifts", ("labels", "features", "both"), "the law of the labels, the sensors, or both"
)
SIZES = Setting(
    "lengths of a change", (0.25, 0.5, 1.0), "of a truth of length 1, in a random direction"
)
DURATIONS = Setting("rounds until a drift is complete", (1.0, 100.0), "abrupt, and slow")
TOLERANCE = Setting("tolerance of the test", 0.01, "a tenth of the noise variance")
LEVELS = Setting(
    "shares of false alarms", (0.01, 0.02, 0.05, 0.1, 0.2, 0.5), "of runs of a node without drift"
)
LEVEL = 0.05
CALIBRATED = Setting("seeds without a drift", 160, "as many that calibrate as are then watched")
SEEDS = Setting("seeds", 160, "at most")

ABRUPT, SLOW = DURATIONS.value
NAMES = {ABRUPT: "abrupt", SLOW: "slow"}

ONSETS = np.zeros(CLIENTS.value)
ONSETS[[*NODE.value]] = ONSET.value
DRIFTING = np.flatnonzero(ONSETS)
CALM = np.flatnonzero(ONSETS == 0)


# --------------------------------------------------------------------------- scenarios


def watched(key: Array, size: Array, duration: Array, kind: str) -> fl.Simulation:
    """Nodes that share a model; some drift."""
    k_truth, k_test, k_noise, *k_changes = jax.random.split(key, 5)
    clients = CLIENTS.value
    dim = DIM.value

    def unit(key: Array, *shape: int) -> Array:
        drawn = jax.random.normal(key, (*shape, dim))
        return drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)

    truth = unit(k_truth)
    x = jax.random.normal(k_test, (clients, HELD_OUT.value, dim))
    noise = jnp.sqrt(NOISE.value) * jax.random.normal(k_noise, x.shape[:2])
    test = fl.problems.Problem(x, x @ truth + noise, fl.problems.LeastSquares())
    eye = jnp.broadcast_to(jnp.eye(dim)[None], (clients, dim, dim))
    base = fl.streams.Linear(eye, truth, jnp.full(clients, NOISE.value), test=test)
    features, labels = (size * unit(k, clients) for k in k_changes)
    stream = fl.streams.Drifting(
        base.starting_at(truth),
        ONSETS,
        features if kind != "labels" else None,
        labels if kind != "features" else None,
        duration,
    )
    return fl.Simulation(stream, OnlineFed(STEP.value), metrics=["validation_error"])


def followed(errors: xr.DataArray, thresholds: Array) -> dict[str, np.ndarray]:
    """The test's results on runs, by threshold.

    Args:
      errors: ``[size, duration, seed, round, client]``.
      thresholds: ``[L]``.
    """
    order = ("size", "duration", "seed", "round", "client")
    values = jnp.asarray(errors.transpose(*order).values)
    rounds = jnp.asarray(errors["round"].values)

    def one_run(run: Array, threshold: Array) -> dict[str, Array]:
        raised = monitoring.page_hinkley(run, TOLERANCE.value, threshold).raised
        delay = monitoring.detection_delay(raised, ONSETS, rounds)[DRIFTING]
        last = ROUNDS.value + 1 - jnp.asarray(ONSET.value)
        ever = jnp.any(raised, axis=0)
        first = jnp.where(ever, jnp.argmax(raised, axis=0), len(rounds))
        return {
            "delay": jnp.mean(jnp.minimum(delay, last)),
            "noticed": jnp.mean(jnp.isfinite(delay), dtype=run.dtype),
            "named": (jnp.min(first[DRIFTING]) < jnp.min(first[CALM])).astype(run.dtype),
            "alarms": jnp.mean(ever[CALM], dtype=run.dtype),
        }

    every = one_run
    for axis in ((None, 0), (0, None), (0, None), (0, None)):
        every = jax.vmap(every, axis)
    result = jax.tree.map(np.asarray, jax.jit(every)(values, thresholds))
    return {name: np.moveaxis(value, 2, 0) for name, value in result.items()}  # seeds first


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)
    calm = 8 if effort.quick else CALIBRATED.value

    def run(kind: str, name: str, **given: Any) -> xr.DataArray:
        def build(key: Array, size: Array, duration: Array) -> fl.Simulation:
            return watched(key, size, duration, kind)

        build.__qualname__ = f"watched({kind})"
        result = effort.sweep(name, build, rounds=ROUNDS.value, **given)
        return result["validation_error"].sel(round=slice(WATCHED.value, None))

    grid = {"size": [0.0], "duration": [1.0]}
    quiet = run(KINDS.value[0], "calm", seeds=tuning.seeds(calm), grid=grid)
    quiet = jnp.asarray(quiet.transpose("round", ...).values)
    thresholds = jnp.stack(
        [monitoring.calibrated_threshold(quiet, TOLERANCE.value, level) for level in LEVELS.value]
    )
    grid = {"size": [0.0, *SIZES.value], "duration": list(DURATIONS.value)}
    errors = {k: run(k, f"drift-{k}", seeds=seeds, grid=grid) for k in KINDS.value}
    traces = [followed(errors[kind], thresholds) for kind in KINDS.value]
    result = {name: np.stack([trace[name] for trace in traces], axis=1) for name in traces[0]}
    axes = ("kind", "size", "duration", "level")
    names = {
        "delay": (axes, "rounds until it is noticed", False),
        "noticed": (axes, "share that is noticed", False),
        "named": (axes, "first alarm at a node that drifts", False),
        "alarms": (axes, "alarms at nodes that do not drift", False),
    }
    coords = {"kind": list(KINDS.value), "level": list(LEVELS.value)} | grid
    labels = {"size": "length of the change", "level": "share of false alarms, asked"}
    parts = {"detection": dataset(result, names, coords, labels)}
    largest = errors["labels"].sel(size=SIZES.value[-1])
    by_duration = [largest.sel(duration=d, client=NODE.value[0]) for d in DURATIONS.value]
    calm_nodes = largest.sel(duration=DURATIONS.value[0], client=CALM)
    curves = np.stack([part.transpose("seed", "round").values for part in by_duration], axis=1)
    rest = calm_nodes.mean("client").transpose("seed", "round").values
    curves = np.concatenate([curves, rest[:, None]], axis=1)[..., ::4]
    parts["curves"] = dataset(
        {"error": curves},
        {"error": (("node", "round"), "validation error", True)},
        {"node": ["abrupt", "slow", "no drift"], "round": largest["round"].values[::4].tolist()},
        {"node": "node with"},
    )
    return parts


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("a drift of the labels", "what the drift is of", "delay and false alarms")
    drawing, (curves, kinds, levels) = picture.panels(titles, height=2.3)
    plotting.learning_curves(studies["curves"], "error", "node", curves)
    data = studies["detection"]
    drifting = data.sel(size=list(SIZES.value))
    abrupt = drifting.sel(duration=DURATIONS.value[0], level=LEVEL)
    plotting.trade_off(abrupt, "size", "delay", "kind", kinds)
    half = drifting.sel(kind="labels", size=SIZES.value[1])
    plotting.trade_off(half, "level", "delay", "duration", levels, labels=NAMES)
    for ax in (kinds, levels):
        ax.set_ylabel("delay [rounds]")
    return picture.finish(
        drawing, "Nodes that drift, noticed by their validation errors", legend_width=0.95
    )


# --------------------------------------------------------------------------- claims


def level_of(variable: str, *kinds: str) -> Measure:
    """The percentage of runs in which ``variable`` is true, for the largest change."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["detection"].sel(level=LEVEL, size=SIZES.value[-1])
        return {
            f"{kind}, {name}": share(samples(data, {"kind": kind, "duration": at}, variable))
            for kind, (at, name) in itertools.product(kinds, NAMES.items())
        }

    return measure


def alarms_over_level(studies: Studies) -> dict[str, Estimate]:
    """Alarms in runs without drift minus the requested rate, in points of per cent."""
    data = studies["detection"].sel(kind="labels", size=0.0, duration=ABRUPT)
    return {
        f"{100 * level:g} %": estimate(
            lambda a, level=level: 100 * (a - level),
            samples(data, {"level": level}, "alarms"),
            unit="points",
        )
        for level in LEVELS.value
    }


def carried(studies: Studies) -> dict[str, Estimate]:
    """Alarms at nodes that do not drift, above the rate in runs without drift."""
    data = studies["detection"].sel(level=LEVEL, duration=ABRUPT)
    return {
        kind: estimate(
            lambda a, b: 100 * (a - b),
            samples(data, {"kind": kind, "size": SIZES.value[-1]}, "alarms"),
            samples(data, {"kind": kind, "size": 0.0}, "alarms"),
            unit="points",
        )
        for kind in ("labels", "both")
    }


def later(axis: str, first: Any, second: Any, **where: Any) -> Measure:
    """By how many rounds the first is noticed later than the other, by kind."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["detection"].sel(level=LEVEL)
        return {
            kind: estimate(
                lambda a, b: a - b,
                samples(data, {"kind": kind, **where, axis: first}, "delay"),
                samples(data, {"kind": kind, **where, axis: second}, "delay"),
                unit="rounds",
            )
            for kind in KINDS.value
        }

    return measure


def costs(studies: Studies) -> dict[str, Estimate]:
    """By how many rounds a drift is noticed later with fewer false alarms."""
    data = studies["detection"].sel(kind="labels", size=SIZES.value[1], duration=1.0)
    return {
        f"{100 * less:g} % rather than {100 * more:g} %": estimate(
            lambda a, b: a - b,
            samples(data, {"level": less}, "delay"),
            samples(data, {"level": more}, "delay"),
            unit="rounds",
        )
        for less, more in itertools.pairwise((LEVELS.value[0], 0.1, LEVELS.value[-1]))
    }


FIGURE = Figure(
    name="jung-monitor",
    title="Continuous monitoring of validation errors under drift",
    source="Jung 2025, section 8.1",
    caption="Ten nodes learn one model from streams (Online-Fed); two drift, from round 301 and "
    "401 on. The Page-Hinkley test watches each node's validation error, with a threshold "
    "calibrated on other runs without a drift. (a) the error of a node that drifts, by whether it "
    "does so at once or within 100 rounds, and the mean of those that do not. (b) rounds from the "
    "onset until the test notices, by the length of the change, for an abrupt drift; one that is "
    "never noticed counts as all that is left of the run. (c) the same of a change of length one "
    "half, against the share of false alarms that was asked for.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "drift-raises-validation-errors",
            "a drift of what features say of labels is seen in validation errors that keep being "
            "computed: large changes are all noticed",
            "section 8.1",
            level_of("noticed", "labels", "both"),
            (99, 100),
            f"per cent of the drifts, at {100 * LEVEL:g} % false alarms",
            condition="noticed by the Page-Hinkley test",
        ),
        Claim(
            "sensors-may-drift-unseen",
            "a shift of the features alone is not always seen: a model has no error of one that is "
            "orthogonal to it",
            "section 8.1",
            level_of("noticed", "features"),
            (50, 99),
            "per cent of the drifts, in directions at random",
            ours=True,
        ),
        Claim(
            "drift-is-carried",
            "a model that all share carries a drift to nodes that do not: they raise alarms, too",
            "section 8.1",
            carried,
            (0, INFINITE),
            f"at {100 * LEVEL:g} % false alarms",
            condition="one server; the model goes on learning",
            ours=True,
        ),
        Claim(
            "nodes-are-named",
            "the first alarm is at a node that drifts",
            "section 8.1",
            level_of("named", "labels", "both"),
            (84, 100),
            "per cent of the runs; 5 % of the runs of eight other nodes have a false alarm, two "
            "fifths of these before the first drift: 84 % are left",
            ours=True,
        ),
        Claim(
            "false-alarms-as-asked",
            "without a drift alarms are as frequent as they were asked to be",
            "section 8.1, which has no detector",
            alarms_over_level,
            (-10, 10),
            "within ten points of per cent",
            condition="a threshold from as many other runs",
            ours=True,
        ),
        Claim(
            "slow-drifts-later",
            "a slow drift is noticed later than an abrupt one",
            "section 8.1: statistics that drift",
            later("duration", SLOW, ABRUPT, size=SIZES.value[-1]),
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "small-drifts-later",
            "the smaller a change, the later it is noticed",
            "section 8.1",
            later("size", SIZES.value[0], SIZES.value[-1], duration=ABRUPT),
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "fewer-false-alarms-cost-delay",
            "fewer false alarms are paid for by longer delays",
            "section 8.1; Page 1954",
            costs,
            (0, INFINITE),
            condition="abrupt drift of the labels, a change of length one half",
            ours=True,
            note="With a low threshold the test has often just begun anew when the drift comes, "
            "and raises no alarm within its burn-in: many false alarms cost delay, too.",
        ),
    ],
    settings=(
        *(CLIENTS, DIM, NOISE, HELD_OUT, STEP, ROUNDS, WATCHED, NODE, ONSET, KINDS, SIZES),
        *(DURATIONS, TOLERANCE, LEVELS, CALIBRATED, SEEDS, tuning.SEEDS),
    ),
    seeds=SEEDS.value,
)
