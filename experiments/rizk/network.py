"""Shared by chapters 3 and 4 of Rizk 2023: noise between servers or peers, and its measures.

The nodes are the servers of chapter 3 or the peers of chapter 4.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.axes import Axes

import fljax as fl
from experiments import measures, picture
from experiments.conventions import CLOSE
from experiments.figure import Claim, Effort, Estimate, Measure, Setting, Studies
from experiments.measures import estimate, exponent, joined, last_part, samples, two
from fljax import plotting, statistics
from fljax._core.module import float_dtype
from fljax.link import GraphHomomorphic, LocalGraphHomomorphic, Noise, PerEdge
from fljax.metrics.definitions import Metric, Snapshot
from fljax.theory import multiagent

# --------------------------------------------------------------------------- settings

MIXING = Setting(
    "combination",
    "Metropolis",
    "no rule is given; symmetric and doubly stochastic (Assumption 3.1)",
)
EDGES = Setting(
    "weight of every edge",
    (1.0, 0.1),
    "Metropolis weights of these are open, too: a node keeps a fifth or a fourth of its own, as "
    "mostly here, or more than half. Where it decides, both are run",
)
DRAWN_ONCE = Setting(
    "network and data",
    "drawn once",
    "the source shows one network (figure 4.3) and repeats the run on it; so the interval of a "
    "claim is over runs, not over networks",
)
OWN_PART = Setting(
    "noise of a node to itself",
    "none under random noise, or a draw of its own",
    "the sums of (3.8) and (4.26) have it, Definitions 3.1 and 4.1 do not: a node sends itself no "
    "message. Where it decides, both are run",
)
PER_COORDINATE = Setting(
    "noise",
    "Laplace, this variance in each coordinate",
    "section 3.3.3; what “variance” is of a vector is not said",
)
STEADY = Setting("iterations of the steady state", "last half", "their mean; all curves are flat")
CONSENSUS = Setting(
    "combinations without noise, at the end",
    40,
    "“a consensus-type step”, section 3.5.1; how many is not given",
)
MOST_SEEDS = Setting("seeds", 40, "at most: intervals are of a tenth of a dB")

COMMON = (MIXING, EDGES, DRAWN_ONCE, OWN_PART, PER_COORDINATE, STEADY, MOST_SEEDS)

# --------------------------------------------------------------------------- schemes


@fl.module
class Masks(LocalGraphHomomorphic):
    """Local graph-homomorphic noise whose masks are drawn, sent and summed, though they cancel:
    that nothing is left is then measured, and not assumed.
    """

    @property
    def cancels(self) -> Any:
        return ""


NONE = "none"
RANDOM = "random"
HOMOMORPHIC = "homomorphic"
LOCAL = "local"
OWN = "random, own part too"
#: The noise by scheme, of zero variance; a scenario sets the variance.
SCHEMES: dict[str, Noise] = {
    RANDOM: PerEdge(0.0),
    HOMOMORPHIC: GraphHomomorphic(0.0),
    LOCAL: Masks(0.0),
    OWN: PerEdge(0.0, own=True),
}
#: The look of a scheme in all figures.
LOOKS = dict(zip((NONE, *SCHEMES), plotting.LOOKS, strict=False))
#: The look of markers without a line.
DOTS: dict[str, Any] = {"linestyle": ""}

Scenario = Callable[..., fl.Simulation]
World = TypeVar("World")


def of_laws(
    draw: Callable[[tuple[float, float], float], fl.problems.Problem],
    eigenvalues: Sequence[tuple[float, float]],
    noises: Sequence[float],
) -> dict[str, fl.problems.Problem]:
    """Data for every pair of distributions, of the features and of the responses' noise."""
    return {
        f"λ {least:g} to {most:g}, noise {noise:g}": draw((least, most), noise)
        for least, most in eigenvalues
        for noise in noises
    }


def weighted(graph: fl.graphs.Graph, edge: Array | float) -> fl.graphs.Graph:
    """The same edges, of this weight each."""
    return graph.reweighted(lambda *_: jnp.asarray(edge, float_dtype()))


def drawn_once(draw: Callable[[], World]) -> Callable[[], World]:
    """What all runs have in common: numbers of a program, drawn before it is compiled."""

    @functools.cache
    def of(dtype: Any) -> World:
        with jax.ensure_compile_time_eval():
            return draw()

    return lambda: of(float_dtype())


def study(
    name: str,
    effort: Effort,
    scenario: Scenario,
    variances: Sequence[float],
    schemes: Sequence[str] = (RANDOM, HOMOMORPHIC),
    grid: Mapping[str, Any] | None = None,
    seeds: int = MOST_SEEDS.value,
    **sweep: Any,
) -> xr.Dataset:
    """Schemes of noise and none, with common participants and batches.

    Args:
      name: of the study.
      effort: as asked for.
      scenario: ``(key, scheme, variance, ...)``.
      variances: of the noise.
      schemes: the first also without noise.
      grid: the other axes.
      seeds: at most.
      sweep: as for :func:`fljax.sweep`.
    """
    parts = []
    for scheme in schemes:
        levels = [0.0, *variances] if scheme == schemes[0] else list(variances)
        result = effort.sweep(
            f"{name}-{scheme}",
            scenario,
            seeds=min(effort.seeds, seeds),
            grid={"scheme": {scheme: SCHEMES[scheme]}, "variance": levels, **(grid or {})},
            **sweep,
        )
        if levels[0] == 0:
            silent = result.sel(variance=[0.0]).assign_coords(scheme=[NONE])
            parts += [silent.assign_coords(variance=[v]) for v in variances[:1]]
            result = result.sel(variance=list(variances))
        parts.append(result)
    silent, *noisy = parts
    filled = silent.reindex(variance=list(variances), method="ffill")
    return joined(filled, *noisy, axis="scheme")


# --------------------------------------------------------------------------- metrics


def nodes(now: Snapshot) -> Float[Array, "nodes dim"]:
    """The models of the servers where there are some, else of the peers."""
    return getattr(now.state, "server", now.model)


def _centroid(now: Snapshot) -> Array:
    assert now.optimum is not None
    return jnp.sum((jnp.mean(nodes(now), axis=0) - now.optimum) ** 2)


_CENTROID = Metric(
    "centroid_deviation", _centroid, "MSD of the centroid", decibel=True, needs={"optimum"}
)
_MODELS = Metric("nodes", nodes, "models of the nodes", decibel=False, dims=("node", "parameter"))
CENTROID = _CENTROID.name
MODELS = _MODELS.name
INDIVIDUAL = "mean_square_deviation"
DISAGREEMENT = "consensus_error"
METRICS = (_CENTROID, INDIVIDUAL, DISAGREEMENT, _MODELS)
RECOVERED = "recovered_deviation"
CENTROID_NOISE = "centroid_noise"
INDIVIDUAL_NOISE = "individual_noise"

# --------------------------------------------------------------------------- parts of a study

_last_half = last_part(2)


def curves(data: xr.Dataset, *metrics: str) -> xr.Dataset:
    """The drawn metrics, without the models."""
    return data[[*(metrics or (CENTROID, INDIVIDUAL, DISAGREEMENT)), "diverged"]]


def late(data: xr.Dataset) -> xr.Dataset:
    """The steady state: the mean over the last half of the rounds, one seed at a time."""
    recorded = data[[name for name in data.data_vars if "round" in data[name].dims]]
    mean = _last_half(recorded).mean("round", keep_attrs=True) if recorded else data
    return mean.assign(data[[name for name in ("diverged",) if name in data]])


def noise_parts(data: xr.Dataset) -> xr.Dataset:
    """The effect of noise alone on centroid and nodes in the steady state: the squared distance
    from the run with the same seed, batches and participants without noise. Gradients of squared
    losses are affine, so this distance contains nothing else.
    """
    models = _last_half(data[[MODELS]])[MODELS]
    deviation = models.drop_sel(scheme=NONE) - models.sel(scheme=NONE, drop=True)
    parts = {
        CENTROID_NOISE: ("centroid", (deviation.mean("node") ** 2).sum("parameter").mean("round")),
        INDIVIDUAL_NOISE: ("models", (deviation**2).sum("parameter").mean(["node", "round"])),
    }
    result = data[["diverged"]].drop_sel(scheme=NONE)
    for name, (of, value) in parts.items():
        result[name] = value.assign_attrs(long_name=f"noise in the {of}", units="1", decibel=1)
    return result


def recovered(data: xr.Dataset, over: np.ndarray, optimum: np.ndarray) -> xr.Dataset:
    """The individual MSD after some combinations without noise, had training ended in a round of
    the steady state: its mean over these rounds.

    Args:
      data: with the nodes' models.
      over: ``[nodes, nodes]``, the weights.
      optimum: ``[D]``.
    """
    models = _last_half(data[[MODELS]])[MODELS].transpose(..., "node", "parameter")
    errors = models - optimum
    stages = np.arange(CONSENSUS.value + 1)
    result = []
    for _ in stages:
        result.append((errors**2).sum("parameter").mean(["node", "round"]))
        errors = errors.copy(data=np.einsum("kl,...lp->...kp", over, errors.values))
    error = xr.concat(result, "stage").assign_coords(stage=stages)
    error.attrs = {"long_name": "MSD of the models", "units": "1", "decibel": 1}
    error["stage"].attrs["long_name"] = "combinations without noise"
    return data[["diverged"]].assign({RECOVERED: error})


# --------------------------------------------------------------------------- theory


def predicted(
    scenario: Scenario,
    schemes: Sequence[str],
    rounds: int | None = None,
    **axes: Sequence[float] | Mapping[str, Any],
) -> xr.Dataset:
    """The mean-square deviations by :mod:`fljax.theory.multiagent`, exactly.

    Args:
      scenario: whose noise is one of the schemes.
      schemes: including none.
      rounds: of the learning curves; of the steady state by default.
      axes: of the scenario, as in a grid: numbers, or pytrees of one structure by label.
    """
    values = [list(v.values() if isinstance(v, Mapping) else v) for v in axes.values()]
    points = [dict(zip(axes, p, strict=True)) for p in itertools.product(*values)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)

    @functools.partial(jax.jit, static_argnums=0)
    def of(scheme: str, points: Any) -> tuple[Array, Array]:
        def deviation_of(point: dict[str, Any]) -> tuple[Array, Array]:
            simulation = scenario(fl.random_key(0), scheme=SCHEMES[scheme], **point)
            if rounds is None:
                state = multiagent.steady_state(simulation)
            else:
                state = multiagent.learning_curve(simulation, rounds)
            return state.centroid, state.individual

        return jax.lax.map(deviation_of, points)

    result = []
    for scheme in schemes:
        # One program for no noise and the random one.
        silent = {"variance": jnp.zeros_like(stacked["variance"])} if scheme == NONE else {}
        levels = of(RANDOM if scheme == NONE else scheme, stacked | silent)
        shape = [len(value) for value in values]
        dims = [*axes, *(() if rounds is None else ("round",))]
        pair = zip((CENTROID, INDIVIDUAL), levels, strict=True)
        result.append(
            xr.Dataset({m: (dims, np.reshape(v, (*shape, *v.shape[1:]))) for m, v in pair})
        )
    data = xr.concat(result, "scheme").assign_coords(scheme=list(schemes))
    data = data.assign_coords({name: list(value) for name, value in axes.items()})
    return data if rounds is None else data.assign_coords(round=np.arange(1, rounds + 1))


# --------------------------------------------------------------------------- estimates


def gap(data: xr.Dataset, over: Any, under: Any, metric: str) -> Estimate:
    """How far one mean is above another, dB, paired by seed; labels of several axes each."""
    return measures.gap(*two(data, over, under, metric))


def gaps(study: str, metric: str, cases: Mapping[str, tuple[Any, Any]]) -> Measure:
    """For every case how far the first is above the second in the steady state."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = late(studies[study])
        return {name: gap(data, *pair, metric) for name, pair in cases.items()}

    return measure


def pairs(*names: tuple[str, str], **where: Any) -> dict[str, tuple[Any, Any]]:
    """Cases of schemes, the first above the second."""
    return {
        f"{over} above {under}": ({"scheme": over} | where, {"scheme": under} | where)
        for over, under in names
    }


def rising(axis: str, values: Sequence[float], **where: str) -> dict[str, tuple[Any, Any]]:
    """Cases along an axis, each value above the one before."""
    named = ", ".join(where.values())
    return {
        f"{named}, {after:g} above {before:g}": (where | {axis: after}, where | {axis: before})
        for before, after in itertools.pairwise(values)
    }


def power_of(data: xr.Dataset, metric: str, axis: str, **where: Any) -> Estimate:
    """The power of an axis with which a quantity grows, by least squares of its logarithm."""
    at = data[axis].values
    levels = (samples(data, where | {axis: value}, metric) for value in at)
    return estimate(lambda *means: exponent(np.stack(means, axis=-1), at), *levels, unit="")


def agreement(
    study: str, metrics: Mapping[str, str], cases: Mapping[str, Mapping[str, Any]]
) -> Claim:
    """The claim that simulations agree with theory."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = late(studies[study])
        theory = late(studies["theory"])
        result = {}
        for case, where in cases.items():
            for name, metric in metrics.items():
                level = np.full(data.sizes["seed"], float(theory[metric].sel(where)))
                result[f"{case}, {name}"] = measures.gap(samples(data, where, metric), level)
        return result

    return Claim(
        "as-theory-says",
        "the steady states are those of the exact recursion of means and covariances",
        "in the place of the bounds of Theorem 3.1 and Lemma 3.3, which are orders of magnitude",
        measure,
        *CLOSE.db.when("which is what seeds leave open at the smallest steps"),
        ours=True,
    )


def by_theory(metric: str, over: str, under: str) -> Callable[[Studies], str]:
    """A note: how far two schemes are apart by theory."""

    def note(studies: Studies) -> str:
        level = late(studies["theory"])[metric]
        gap = float(statistics.decibels(level.sel(scheme=over) / level.sel(scheme=under)))
        return f"By theory, {over} noise is {gap:.2f} dB above {under} on these data."

    return note


def parts_that_hold(
    measure: Measure, accept: tuple[float, float], why: str
) -> Callable[[Studies], str]:
    """A note: the part of the open settings in which a statement holds, and the reason."""

    def note(studies: Studies) -> str:
        cases = measure(studies)
        good = [name for name, e in cases.items() if accept[0] <= e.low and e.high <= accept[1]]
        listing = "; ".join(good) if good else "none"
        return f"It holds in {len(good)} of {len(cases)} settings ({listing}). {why}".strip()

    return note


#: Schemes of random draws: for messages alone, or for a node's own part, too.
DRAWS = {"messages alone": RANDOM, "own part too": OWN}


#: The nodes' self-weights, by the weight of the edges.
KEPT: tuple[str, ...] = ("a_pp about 1/4", "a_pp > 1/2")
MUCH_KEPT = KEPT[1]


#: What is open is judged by the exact recursion, which loops and runs agree with.
EXACTLY = "by the exact recursion"


def open_parts(
    study: str,
    axis: str,
    labels: Mapping[str, Any],
    draws: Mapping[str, str] = DRAWS,
    **where: Any,
) -> Measure:
    """How far single models under random noise are above models under homomorphic noise, by
    theory: for every scheme of draws and every self-weight of nodes.

    Args:
      study: predicted steady states by scheme along an axis of self-weights.
      axis: that one.
      labels: its values.
      draws: the schemes of drawing, by label.
      where: else.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        level = studies[study][INDIVIDUAL].sel(where)
        ratio = level / level.sel(scheme=HOMOMORPHIC, drop=True)
        return {
            f"{named}, {whose}": Estimate.exact(
                float(statistics.decibels(ratio.sel({"scheme": scheme, axis: value}).values))
            )
            for named, value in labels.items()
            for whose, scheme in draws.items()
        }

    return measure


# --------------------------------------------------------------------------- pictures


def _in_their_looks(ax: Axes, schemes: Sequence[str]) -> None:
    """The newest curves of some axes, one a scheme, as these look everywhere."""
    lines = list(ax.lines)[-len(schemes) :]
    bands = list(ax.collections)[-len(schemes) :]
    for scheme, line, band in zip(schemes, lines, bands, strict=True):
        line.set(**LOOKS[scheme])
        band.set_facecolor(LOOKS[scheme]["color"])


def draw_curves(ax: Axes, data: xr.Dataset, metric: str, named: bool = True) -> None:
    """Learning curves by scheme, in a legend or not."""
    schemes = [str(scheme) for scheme in data["scheme"].values]
    labels = {scheme: scheme if named else f"_{scheme}" for scheme in schemes}
    plotting.learning_curves(data, metric, "scheme", ax, labels=labels, legend=named)
    _in_their_looks(ax, schemes)


def draw_theory(ax: Axes, theory: xr.Dataset, metric: str) -> None:
    """Add predicted curves by scheme as thin lines."""
    for index, scheme in enumerate(theory["scheme"].values):
        curve = statistics.decibels(theory[metric].sel(scheme=scheme).values)
        text = "_" if index else "theory"
        picture.predicted_curve(ax, theory["round"].values, curve, text)


def draw_levels(
    ax: Axes, data: xr.Dataset, metric: str, axis: str, theory: xr.Dataset | None = None
) -> None:
    """Steady states against a number, by scheme; thin: theory."""
    schemes = [str(scheme) for scheme in data["scheme"].values]
    plotting.trade_off(late(data), axis, metric, "scheme", ax)
    _in_their_looks(ax, schemes)
    if theory is None:
        return
    for scheme in schemes:
        curve = statistics.decibels(theory[metric].sel(scheme=scheme).values)
        text = "theory" if scheme == schemes[0] else "_"
        picture.predicted_curve(ax, theory[axis].values, curve, text)


def draw_noise(ax: Axes, noise: xr.Dataset, theory: xr.Dataset) -> None:
    """The effect of noise alone on the centroid, by scheme; thin: theory."""
    level = theory[CENTROID]
    alone = (level - level.sel(scheme=NONE)).sel(scheme=noise["scheme"].values)
    predicted = alone.to_dataset(name=CENTROID_NOISE)
    draw_levels(ax, noise, CENTROID_NOISE, "step_size", predicted)


def draw_parts(ax: Axes, cases: Mapping[str, Estimate]) -> None:
    """The differences of :func:`open_parts`, and where they turn."""
    for whose, scheme in DRAWS.items():
        heights = [case.value for name, case in cases.items() if name.endswith(whose)]
        ax.plot(heights, label=whose, **LOOKS[scheme] | DOTS)
    ax.axhline(0, color="#999999", linewidth=0.8)
    ax.set_xticks(range(len(KEPT)), KEPT)
    ax.margins(x=0.3)
    ax.set_ylabel("above homomorphic [dB]")
