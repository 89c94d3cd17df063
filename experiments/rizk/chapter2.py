"""Shared by the figures of Rizk 2023, chapter 2: settings, scenarios, theory, measures of claims.

The source gives sizes, step sizes and ranges of batches and local steps. Every value that it leaves
open is in this file, once, with its reason.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes

import fljax as fl
from experiments import picture
from experiments.figure import Effort, Estimate, Setting, Studies
from experiments.measures import estimate, gap, last_part, samples, two
from experiments.rizk import data
from fljax import plotting, statistics
from fljax._core.module import replace
from fljax.algorithms import Algorithm, FedAvg, ISFedAvg
from fljax.link import UploadNoise
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems.batches import Uniform
from fljax.theory import multiagent as theory

# --------------------------------------------------------------------------- settings

AGENTS = Setting("agents K", 300, "section 2.6.1", given=True)
SAMPLES = Setting("samples of an agent N_k", 100, "section 2.6.1", given=True)
DIM = Setting("parameters M", 2, "section 2.6.1", given=True)
RHO = Setting("regularization rho", 0.001, "section 2.6.1", given=True)
BATCHES = Setting("batch sizes B_k", (1, 10), "uniform integers, section 2.6.1", given=True)
STEPS = Setting("local steps E_k", (1, 5), "uniform integers, section 2.6.1", given=True)
DRAWN = Setting("agents L of a round", 6, "section 2.6.1", given=True)
STEP = Setting("step size mu", 0.01, "section 2.6.1 on figure 2.1", given=True)

EIGENVALUES = Setting(
    "eigenvalues of the features' covariances",
    (0.5, 2.0),
    "not given; log-uniform, with directions of each agent's own. Around one, so that a step of "
    "0.01 converges in some hundred iterations and single samples are stable",
)
NOISE = Setting(
    "median variance of the observations' noise",
    0.01,
    "not given; it shifts all steady states alike, here to where curves fall by 30 dB and more",
)
SPREAD = Setting(
    "spread s_v of the noise's deviations",
    1.7,
    "not given; the agents' deviations are log-normal quantiles in random order, of this "
    "logarithmic deviation. Chosen by theory, before any run: (2.23) with the probabilities that "
    "are optimal, against equal ones, then predicts the source's 13.1 dB",
)
MODEL = Setting("w* and w_0", "standard normal, zero", "“randomly generated”; w_0 is not given")
DATA = Setting(
    "data of a run",
    "drawn anew",
    "whether the source redraws them is not said; so no verdict hangs on one data set",
)
SIZES = Setting("B_k and E_k", "drawn once", "they are sizes of arrays, the same in all runs")
REPLACED = Setting(
    "FedAvg's draws",
    "agents without replacement, samples with it",
    "samples: section 2.6.1 on figure 2.1; of agents it is not said",
)
FLOOR = Setting(
    "share of every probability that stays uniform",
    1e-3,
    "none in the source: a sample whose gradient vanishes once would not be seen again",
)
CAP = Setting(
    "largest probabilities", "1/L and 1/B_k", "not discussed; beyond, one is drawn twice at a time"
)
RULE = Setting(
    "ISFedAvg's probabilities, beyond figure 2.1",
    "(2.46)-(2.48)",
    "not given; the true ones, of which the theory speaks. Figure 2.1 compares the others",
)
ROUNDS = Setting("iterations", 1500, "not given; a multiple of the time to the steady state")
STEADY = Setting("steady state", "last third", "of the iterations, the mean of each run")

COMMON = (
    *(AGENTS, SAMPLES, DIM, RHO, BATCHES, STEPS, STEP, EIGENVALUES, NOISE, SPREAD, MODEL, DATA),
    *(SIZES, REPLACED, FLOOR, CAP, STEADY),
)

METRIC = "mean_square_deviation"
FEDAVG = "FedAvg"
TRUE = "true probabilities"
FULL = "all agents' norms"
SAMPLED = "norms of those drawn"
RULES = {TRUE: "optimal", FULL: "full", SAMPLED: "sampled"}
IS = "ISFedAvg"

#: The rounds in which levels are read.
RESTING = "steady states"

# --------------------------------------------------------------------------- scenario


def whole_numbers(between: tuple[int, int], count: int, seed: int) -> tuple[int, ...]:
    """A uniformly drawn integer for each agent, from a fixed seed."""
    least, most = between
    return tuple(np.random.default_rng(seed).integers(least, most + 1, count).tolist())


def batches(between: tuple[int, int] = BATCHES.value, agents: int = AGENTS.value):
    """``B_k``."""
    return whole_numbers(between, agents, 1)


def local_steps(between: tuple[int, int] = STEPS.value, agents: int = AGENTS.value):
    """``E_k``."""
    return whole_numbers(between, agents, 2)


def fedavg(
    step_size: Array | float = STEP.value,
    drawn: int = DRAWN.value,
    batch: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    normalized: bool = True,
) -> FedAvg:
    """The source's federated averaging (1.30), or the original (1.26)."""
    return FedAvg(
        step_size,
        drawn,
        batches=Uniform(batches() if batch is None else batch, replacement=True),
        local_steps=local_steps() if steps is None else steps,
        normalized=normalized,
    )


def isfedavg(
    step_size: Array | float = STEP.value,
    drawn: int = DRAWN.value,
    batch: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    rule: str = "optimal",
) -> ISFedAvg:
    """Algorithm 2.1 with one of its three rules."""
    batch = batches() if batch is None else batch
    steps = local_steps() if steps is None else steps
    return ISFedAvg(step_size, drawn, batch, steps, rule, floor=FLOOR.value)


def fedavg_and_is(**given: Any) -> dict[str, Algorithm]:
    """The two methods that every later figure compares."""
    return {FEDAVG: fedavg(**given), IS: isfedavg(**given)}


def scenario(
    key: Array,
    algorithm: Algorithm,
    noise: Array | float = NOISE.value,
    noise_spread: Array | float = SPREAD.value,
    feature_spread: Array | float = 0.0,
    metrics: Sequence[str | Metric] = (METRIC,),
) -> fl.Simulation:
    """One run of section 2.6.1, its data drawn from the key."""
    problem = data.regression(
        key,
        AGENTS.value,
        SAMPLES.value,
        DIM.value,
        RHO.value,
        eigenvalues=EIGENVALUES.value,
        noise=noise,
        feature_spread=feature_spread,
        noise_spread=noise_spread,
    )
    return fl.Simulation(problem=problem, algorithm=algorithm, metrics=list(metrics))


def study(
    name: str,
    methods: Mapping[str, Algorithm],
    effort: Effort,
    rounds: int = ROUNDS.value,
    record_every: int = 10,
    seeds: int | None = None,
    build: Callable[..., fl.Simulation] = scenario,
    **grid: Any,
) -> xr.Dataset:
    """All methods on common data, with common draws of agents if they use the same scheme."""
    return effort.sweep(
        name,
        build,
        rounds=rounds,
        seeds=effort.seeds if seeds is None else seeds,
        grid={"algorithm": dict(methods)} | grid,
        record_every=record_every,
    )


# --------------------------------------------------------------------------- theory

PREDICTED = "predicted"
DRIFT = "drift"


def _drift(now: Snapshot) -> Array:
    return theory.drift(now.problem)


XI = Metric(DRIFT, _drift, "ξ", decibel=False, needs={"data"})


def predicted(
    build: Callable[..., fl.Simulation], axis: str, methods: Mapping[str, Any], extra: Sequence
) -> Callable[..., fl.Simulation]:
    """A scenario whose metrics are the methods' theoretical steady states, all in one program, on
    the data that ``build`` has in each run.
    """

    def scenario(key: Array, **point: Any) -> fl.Simulation:
        ours = [build(key, **{axis: method}, **point) for method in methods.values()]

        def levels(now: Snapshot) -> Array:
            same = (replace(simulation, problem=now.problem, metrics=()) for simulation in ours)
            return jnp.stack([theory.steady_state(simulation).centroid for simulation in same])

        metric = Metric(
            PREDICTED, levels, "predicted", decibel=True, needs={"data"}, dims=("curve",)
        )
        return replace(ours[0], metrics=(metric, *extra))

    scenario.__qualname__ = f"predicted({build.__qualname__}, {methods!r})"
    return scenario


def prediction(
    name: str,
    methods: Mapping[str, Any],
    effort: Effort,
    seeds: int | None = None,
    build: Callable[..., fl.Simulation] = scenario,
    axis: str = "algorithm",
    extra: Sequence[Metric] = (),
    **grid: Any,
) -> xr.Dataset:
    """The theoretical results of :func:`study`, on each of its data sets."""
    results = effort.sweep(
        name,
        predicted(build, axis, methods, extra),
        rounds=1,
        seeds=effort.seeds if seeds is None else seeds,
        grid={name: list(values) for name, values in grid.items()},
    )
    return (
        results.isel(round=-1, drop=True)
        .rename(curve="algorithm")
        .assign_coords(algorithm=list(methods))
    )


# --------------------------------------------------------------------------- measures

#: The rounds of the steady state.
steady = last_part(3)


def steady_gap(data: xr.Dataset, over: Any, under: Any, metric: str = METRIC) -> Estimate:
    """How far one steady state is above another, dB."""
    return gap(*two(steady(data), over, under, metric))


def level(data: xr.Dataset, which: str | Mapping[str, Any]) -> float:
    """The level of a steady state, dB."""
    return float(statistics.decibels(samples(steady(data), which, METRIC).mean()))


def predicted_level(data: xr.Dataset, which: str | Mapping[str, Any]) -> float:
    """The theoretical level of a steady state, dB."""
    return float(statistics.decibels(samples(data, which, PREDICTED).mean()))


def exponential(*methods: str) -> Callable[[Studies], dict[str, Estimate]]:
    """The slope in dB of the second half of a fall over that of the first."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for name in methods:
            curve = samples(studies["a"], name, METRIC)
            rest = samples(steady(studies["a"]), name, METRIC).mean()
            falling = curve[:, : int(np.argmax(curve.mean(axis=0) < 10 * rest))]
            middle = (falling.shape[1] - 1) // 2

            def ratio(mean: np.ndarray, middle: int = middle) -> np.ndarray:
                db = statistics.decibels(mean)
                first = db[:, 0] - db[:, middle]
                second = db[:, middle] - db[:, 2 * middle]
                return second / first

            result[name] = estimate(ratio, falling, unit="")
        return result

    return measure


#: Our meaning of "falls exponentially".
STRAIGHT = (
    "until they are 10 dB above their steady states, the second half of the fall is as steep in dB "
    "as the first, within a fourth"
)


def quantiles(*panels: str) -> Callable[[Studies], list[dict[str, Any]]]:
    """A table of the runs' steady states, dB: quantiles and the mean, which a few runs dominate
    if agents' noise differs as much as here.
    """

    def table(studies: Studies) -> list[dict[str, Any]]:
        rows = []
        for panel in panels:
            rests = steady(studies[panel])[METRIC].mean("round")
            free = [str(d) for d in rests.dims if d != "seed"]
            for values in itertools.product(*(rests[d].values.tolist() for d in free)):
                at = dict(zip(free, values, strict=True))
                runs = rests.sel(at).values
                runs = runs[np.isfinite(runs)]
                parts = {"mean": runs.mean()} if len(runs) else {}
                for share in (5, 25, 50, 75, 95) if len(runs) else ():
                    parts[f"{share} %"] = np.percentile(runs, share)
                levels = {k: round(float(statistics.decibels(v)), 2) for k, v in parts.items()}
                rows.append({"panel": panel} | at | {"finite runs": len(runs)} | levels)
        return rows

    return table


# --------------------------------------------------------------------------- pictures


def dress(ax: Axes, looks: Sequence[Mapping[str, Any]]) -> None:
    """Curves and their bands, in order, as they look in the other panels."""
    for look, line, band in zip(looks, ax.lines, ax.collections, strict=True):
        line.set(**look)
        band.set_color(look["color"])


def draw(ax: Axes, data: xr.Dataset) -> None:
    """Learning curves, each method as in all panels."""
    plotting.learning_curves(data, METRIC, ax=ax)
    dress(ax, [LOOKS[name] for name in data["algorithm"].values.tolist()])
    picture.fade(ax)


def draw_medians(ax: Axes, data: xr.Dataset) -> None:
    """Medians of the runs, thin, in the colors of the means."""
    text = "medians"
    for name in data["algorithm"].values.tolist():
        curve = statistics.decibels(np.median(samples(data, name, METRIC), axis=0))
        look = {"color": LOOKS[name]["color"], "linewidth": 0.6}
        ax.plot(data["round"].values, curve, label=text, **look)
        text = ""


def seeds(data: xr.Dataset) -> str:
    return f"{data.sizes['seed']} seeds"


# --------------------------------------------------------------------------- private uploads

PRIVATE_AGENTS = Setting("agents K", 1000, "section 2.6.4 on figure 2.6", given=True)
PRIVATE_DRAWN = Setting("agents L of a round", 30, "section 2.6.4 on figure 2.6", given=True)
PRIVATE_STEPS = Setting("local steps E_k", (1, 10), "section 2.6.4 on figure 2.6", given=True)
PRIVATE_BATCHES = Setting("batch sizes B_k", BATCHES.value, "not given; as in the regression")
PRIVATE_SIZES = Setting(
    "samples of an agent N_k", (50, 150), "“of varying size”, not given; about those of before"
)
PRIVATE_STEP = Setting("step size mu", 0.2, "section 2.6.4 on figure 2.6", given=True)
PRIVATE_RHO = Setting("regularization rho", 0.007, "section 2.6.4 on figure 2.6", given=True)
VARIANCE = Setting(
    "privacy noise variance sigma_g^2", 0.02, "section 2.6.4 on figure 2.6", given=True
)
LAW = Setting(
    "privacy noise",
    "Laplace, of this variance in each parameter",
    "section 3.3.3; whether of each or of all together is not said",
)
PRIVATE_EIGENVALUES = Setting(
    "eigenvalues of the features' covariances",
    (0.1, 0.4),
    "not given; small enough for single samples to be stable with the largest step, 1.6",
)
PREDICTED_SEEDS = Setting(
    "seeds of the theory", 20, "the moments of a run of 1000 agents hardly vary with their data"
)
PRIVATE = (
    *(PRIVATE_AGENTS, PRIVATE_DRAWN, DIM, PRIVATE_STEPS, PRIVATE_BATCHES, PRIVATE_SIZES),
    *(PRIVATE_STEP, PRIVATE_RHO, VARIANCE, LAW, PRIVATE_EIGENVALUES, NOISE, SPREAD, MODEL, DATA),
    *(SIZES, REPLACED, STEADY),
)

STANDARD = "standard"
MODELS = "models shared"
UPDATES = "updates shared"

#: The look of a method in all panels.
LOOKS = {
    name: plotting.LOOKS[place]
    for place, names in enumerate(
        ((FEDAVG, STANDARD), (IS, TRUE, MODELS), (FULL, UPDATES), (SAMPLED,))
    )
    for name in names
}


def uploads(variance: Array | float = VARIANCE.value) -> dict[str, Any]:
    """The quantity that clients' noise is added to, by curve."""
    return {
        STANDARD: None,
        MODELS: UploadNoise(variance, on="models"),
        UPDATES: UploadNoise(variance, on="updates"),
    }


def private_fedavg(step_size: Array | float = PRIVATE_STEP.value) -> FedAvg:
    """Federated averaging with equal probabilities, as section 2.5 has it."""
    return fedavg(
        step_size,
        PRIVATE_DRAWN.value,
        batches(PRIVATE_BATCHES.value, PRIVATE_AGENTS.value),
        local_steps(PRIVATE_STEPS.value, PRIVATE_AGENTS.value),
    )


def private_scenario(
    key: Array,
    shared: str,
    step_size: Array | float = PRIVATE_STEP.value,
    variance: Array | float = VARIANCE.value,
    metrics: Sequence[str | Metric] = (METRIC,),
) -> fl.Simulation:
    """One run of section 2.6.4."""
    problem = data.regression(
        key,
        PRIVATE_AGENTS.value,
        PRIVATE_SIZES.value,
        DIM.value,
        PRIVATE_RHO.value,
        eigenvalues=PRIVATE_EIGENVALUES.value,
        noise=NOISE.value,
        noise_spread=SPREAD.value,
    )
    noise = uploads(variance)[shared]
    algorithm = private_fedavg(step_size)
    return fl.Simulation(problem, algorithm, upload_noise=noise, metrics=list(metrics))


def private_study(
    name: str,
    effort: Effort,
    rounds: int,
    shared: Sequence[str],
    seeds: int | None = None,
    build: Callable[..., fl.Simulation] = private_scenario,
    **grid: Any,
) -> xr.Dataset:
    """A study by the shared quantity, over a grid of step sizes or variances."""
    results = effort.sweep(
        name,
        build,
        rounds=rounds,
        seeds=effort.seeds if seeds is None else seeds,
        grid={"shared": list(shared)} | grid,
        record_every=4,
    )
    return results.rename(shared="algorithm")


def _best_step(now: Snapshot) -> Array:
    draws = theory.sampling(now.problem, private_fedavg())
    noise = theory.gradient_noise(now.problem, draws)
    per_draw = VARIANCE.value / PRIVATE_DRAWN.value
    return theory.best_step(theory.hessian(now.problem), noise, per_draw).step_size


#: With shared models, where gradient noise and privacy noise balance.
BEST_STEP = Metric("best_step", _best_step, "best step size", decibel=False, needs={"data"})


def private_prediction(
    name: str, effort: Effort, shared: Sequence[str], extra: Sequence[Metric] = (), **grid: Any
) -> xr.Dataset:
    """The theoretical results of :func:`private_study`, on some of its data sets."""
    few = min(effort.seeds, PREDICTED_SEEDS.value)
    named = {label: label for label in shared}
    return prediction(name, named, effort, few, private_scenario, "shared", extra, **grid)
