"""Shared by the image figures of Gauthier 2024, chapter 5: settings, scenario, tuning, claims.

The source gives the tasks, the numbers of servers, clients and images, and the privacy parameters.
Every value that it leaves open is in this file, once, with its reason.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes

import fljax as fl
from experiments import picture
from experiments.figure import Claim, Effort, Estimate, Measure, Setting, Studies
from experiments.gauthier import chapter5 as ch5
from experiments.measures import bound_held, each_mean, estimate, joined, samples, two
from experiments.tuning import SEEDS, seeds
from fljax import plotting, statistics
from fljax.algorithms import PGFL
from fljax.data import binary_tasks
from fljax.data.images import Images, Task
from fljax.privacy import ZCDP
from fljax.privacy.accounting import zcdp_epsilon
from fljax.problems import SquaredL2, group_share, random_clusters

# --------------------------------------------------------------------------- settings

SERVERS = Setting("servers S", 10, "section 5.4.1; “identical”, section 5.4.2", given=True)
MEAN_DEGREE = Setting(
    "mean degree", 3, "section 5.4.1; a random tree plus random links", given=True
)
CLUSTERS = Setting(
    "clusters Q", 3, "section 5.4.1 for regression; equal, members at random", given=True
)
INITIAL = Setting(
    "phi(1)", 1e-3, "section 5.4.1 on figure 5.1, for the regression figures", given=True
)
DECAY = Setting(
    "variance decrease rate zeta", 0.99, "section 5.4.1 on figure 5.1, likewise", given=True
)
BOUND = Setting(
    "gradient bound C",
    1.0,
    "images are scaled to length 1, so no logistic per-sample gradient is longer: the guarantee "
    "is real, for one replaced image",
)
NOMINAL = Setting(
    "nominal gradient bound",
    0.03,
    "second rows of panels: regression with C = 0.03 behaves as the source says and with a bound "
    "that holds it does not, so the source's noise may be as weak. Here it is (1/0.03)² = 1111 "
    "times cheaper in phi than what it really spends",
)
DELTA = Setting("delta", 1e-5, "below one over all training images that are dealt out, 10,800")
ROUNDS = Setting(
    "iterations",
    300,
    "those of the chapter's regression (section 5.4.1 on figure 5.1); 5.5(c) is read after 100 "
    "(section 5.4.2)",
)
STRENGTH = Setting(
    "lambda",
    1e-5,
    "the regularizer is not given; (5.4) has lambda/|C_s|. Models of images of length 1 are long: "
    "more would shrink them",
)
PENALTIES = Setting(
    "penalties rho that are tried",
    (0.1, 0.3, 1.0, 3.0, 10.0),
    "rho is not given. The noise is 2C/(rho M D): small ones learn fast and are noisy. Each method "
    "has the one of its own best accuracy at n = 100, for each task and noise",
)
MOST_TUNING_SEEDS = 12
TUNING_SEEDS = SEEDS._replace(value=f"{MOST_TUNING_SEEDS} {SEEDS.value}")
INNER = Setting(
    "inner iterations",
    20,
    "gradient steps of a public size, from the last model; each leaves 1/(1 + 4 rho) of the error: "
    "0.12 % are left at rho = 0.1, below 1e-6 from rho = 0.3 on",
)
CELLS = Setting("empty cells", "keep", "a server without clients of a cluster keeps its model")
TEST = Setting("test images", 256, "a cluster, other ones for every seed; accuracy is w_k's, (5.4)")
EVERY = Setting(
    "recorded",
    (10, 20),
    "every so many iterations, of 30 and of 150 clients: measuring costs more than an iteration",
)
MEDIUM = Setting(
    "a medium tau", 0.4, "the chapter's fixed value, section 5.4.2 on figure 5.5", given=True
)
LARGE = Setting("a large tau", 0.6, "almost the mean of all clusters' models, which is 2/3")

COMMON = (
    *(SERVERS, MEAN_DEGREE, CLUSTERS, INITIAL, DECAY, BOUND, NOMINAL, DELTA, ROUNDS, STRENGTH),
    *(PENALTIES, TUNING_SEEDS, INNER, CELLS, TEST, EVERY, MEDIUM, LARGE),
)

METRIC = "accuracy"
READ = 100  # iterations after which accuracy is read, section 5.4.2
BOUNDS = (BOUND.value, NOMINAL.value)

ALONE = "τ = 0"
AT_READ = f"after {READ} iterations, where section 5.4.2 reads"
AT_THE_END = f"after {ROUNDS.value} iterations"
UNDER_NOMINAL = f"the noise of a nominal C = {NOMINAL.value:g}"
COMMON_PENALTY = (
    "one penalty for both, as section 5.4.2 suggests where it varies tau alone; its value is not "
    "given, so every one that is tried is a case, on the tuning seeds"
)
ONE_MEANING = (
    "A word means the same in all documents now: “significantly” five points and more, before 2.5, "
    "and “about” within a fourth, before within a half."
)
OWN_PENALTY = (
    "Each method is at its own best penalty; before, all had the one that was best without "
    "inter-cluster learning."
)


def label(tau: float, factor: float = 1.0) -> str:
    return f"τ = {tau:g}" if factor == 1 else f"τ = {tau:g} · {factor:g}ⁿ"


# --------------------------------------------------------------------------- scenario


class Setup(NamedTuple):
    """The clusters' tasks, and the clients' amounts of data.

    Attributes:
      images: loads the data.
      tasks: of the clusters.
      clients: per server.
      samples: least and greatest number of data samples a client.
      drawn: clients a server draws a round; ``None`` for all.
      every: iterations a record.
      test: images a cluster.
    """

    images: Callable[[], Images]
    tasks: tuple[Task, ...]
    clients: int
    samples: tuple[int, int]
    drawn: int | None
    every: int
    test: int = TEST.value

    @property
    def classes(self) -> int:
        """Images of a data sample."""
        return sum(map(len, self.tasks[0]))


def length(effort: Effort) -> int:
    """Iterations of a learning curve."""
    return READ if effort.quick else ROUNDS.value


@fl.module
class Case:
    """The parameters that differ between runs of one program on the same data, draws and noise."""

    bound: Any
    algorithm: PGFL


@functools.cache
def scenario(setup: Setup, rounds: int) -> Callable[..., fl.Simulation]:
    """One run: graph, clusters, images, draws and noise from its key.

    ``rounds`` only determines how far the noise is planned.
    """
    images = setup.images()

    def build(key: Array, case: Case) -> fl.Simulation:
        k_graph, k_clusters, k_data = jax.random.split(key, 3)
        graph = fl.graphs.random_connected(k_graph, SERVERS.value, MEAN_DEGREE.value)
        network = fl.federation.balanced(setup.clients, graph)
        problem = binary_tasks(
            k_data,
            images,
            setup.tasks,
            random_clusters(k_clusters, network.nodes, CLUSTERS.value),
            setup.samples,
            setup.test,
            SquaredL2(),
            group_share(STRENGTH.value, network.server, network.servers),
        )
        return fl.Simulation(
            problem=problem,
            network=network,
            algorithm=case.algorithm,
            privacy=ZCDP.from_initial(
                INITIAL.value, DECAY.value, rounds, gradient_bound=case.bound
            ),
            metrics=[METRIC],
        )

    build.__qualname__ = f"images({setup.tasks!r}, {rounds})"
    return build


#: tau(n) of every method, by its label.
Methods = Mapping[str, Any]
#: The penalty of every method under every gradient bound.
Penalties = Mapping[float, Mapping[str, float]]


def study(
    name: str, setup: Setup, penalties: Penalties, methods: Methods, effort: Effort, rounds: int
) -> xr.Dataset:
    """PGFL with each inter-cluster schedule, each at a penalty of its own, on common data, draws
    and noise.

    Args:
      name: under which unfinished work is kept.
      setup: data and network.
      penalties: for each gradient bound and method.
      methods: the methods to run.
      effort: seeds.
      rounds: iterations.
    """
    cases = [
        (bound, of_each[text], schedule)
        for bound, of_each in penalties.items()
        for text, schedule in methods.items()
    ]
    result = _swept(name, setup, cases, effort, effort.seeds, rounds)
    return _regrouped(result, bound=list(penalties), algorithm=list(methods))


def _swept(
    name: str,
    setup: Setup,
    cases: Sequence[tuple[float, float, Any]],
    effort: Effort,
    seeds: int | range,
    rounds: int,
) -> xr.Dataset:
    """All cases in one sweep, so that a seed's images, draws and noise are computed once.

    ``cases`` are gradient bounds, penalties and schedules; they are numbered on the axis ``case``.
    """
    runs = {
        str(i): Case(bound, PGFL(penalty, schedule, clients_per_server=setup.drawn))
        for i, (bound, penalty, schedule) in enumerate(cases)
    }
    return effort.sweep(
        name,
        scenario(setup, rounds),
        rounds=rounds,
        seeds=seeds,
        grid={"case": runs},
        record_every=setup.every,
    )


def _regrouped(results: xr.Dataset, **axes: Sequence[Any]) -> xr.Dataset:
    """Reshape the axis of cases into these axes, the last varying fastest."""
    (axis, values), *inner = axes.items()
    if not inner:
        return results.rename(case=axis).assign_coords({axis: list(values)})
    size = results.sizes["case"] // len(values)
    parts = [results.isel(case=slice(i * size, (i + 1) * size)) for i in range(len(values))]
    result = joined(*(_regrouped(part, **dict(inner)) for part in parts), axis=axis)
    return result.assign_coords({axis: list(values)})


# --------------------------------------------------------------------------- tuning


def tune(name: str, setup: Setup, methods: Methods, effort: Effort) -> xr.Dataset:
    """Test accuracy of every method where it is read, with each penalty, on the tuning seeds."""
    penalties = effort.thin(PENALTIES.value)
    count = min(effort.tuning_seeds, MOST_TUNING_SEEDS)
    cases = [
        (b, rho, schedule) for b in BOUNDS for rho in penalties for schedule in methods.values()
    ]
    result = _swept(name, setup, cases, effort, seeds(count), READ)[[METRIC, "diverged"]]
    result = _regrouped(
        result.sel(round=[READ]), bound=BOUNDS, penalty=penalties, algorithm=list(methods)
    )
    return result.assign_attrs(tuning_seeds=count)


def _errors(tuning: xr.Dataset) -> xr.DataArray:
    """``[bound, penalty, algorithm]``, the mean share of wrong labels; infinite where a run
    diverged.
    """
    numbers = statistics.summary(tuning.isel(round=-1), METRIC)
    return (1 - numbers["mean"]).where(numbers["diverged"] == 0, np.inf)


def chosen(tuning: xr.Dataset) -> dict[float, dict[str, float]]:
    """The penalty of each method under each gradient bound."""
    errors = _errors(tuning)
    best = errors["penalty"][errors.argmin("penalty")]
    return {
        float(bound): {str(text): float(best.sel(bound=bound, algorithm=text)) for text in texts}
        for texts in [tuning["algorithm"].values]
        for bound in tuning["bound"].values
    }


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """Every penalty with its error, for the record."""
    rows = []
    for name, tuning in studies.items():
        if not name.startswith("tuning-"):
            continue
        errors = _errors(tuning)
        for bound, penalties in chosen(tuning).items():
            for text, best in penalties.items():
                for penalty in tuning["penalty"].values:
                    error = float(errors.sel(bound=bound, algorithm=text, penalty=penalty))
                    rows.append(
                        {
                            "method": f"{text} ({name.removeprefix('tuning-')}), C = {bound:g}",
                            "parameter": "penalty rho",
                            "value": float(penalty),
                            "rule": "final",
                            "score": error,
                            "final_error": error,
                            "chosen": best == penalty,
                        }
                    )
    return rows


# --------------------------------------------------------------------------- claims


def gain(data: xr.Dataset, over: str, under: str, bound: float, when: Any) -> Estimate:
    """By how many points the first is more accurate than the other, paired by seed.

    ``when`` is an iteration, a slice of some whose mean is taken, or ``None`` for the last.
    """
    rounds = data["round"].values[-1] if when is None else when
    right = map(each_mean, two(data.sel(bound=bound, round=rounds), over, under, METRIC))
    return estimate(lambda a, b: 100 * (a - b), *right, unit="points")


def gains(
    panel: str,
    pairs: Sequence[tuple[str, str]],
    times: Sequence[int | slice | None] = (READ,),
    bound: float = BOUND.value,
) -> Measure:
    """:func:`gain` of every pair at each of some times."""
    return lambda studies: {
        f"{one} over {other}, {_time(when)}": gain(studies[panel], one, other, bound, when)
        for one, other in pairs
        for when in times
    }


def _time(when: int | slice | None) -> str:
    if when is None:
        return "at the end"
    return f"n ≤ {when.stop}" if isinstance(when, slice) else f"n = {when}"


def common_gains(panel: str, pair: tuple[str, str], bound: float) -> Measure:
    """:func:`gain` on the tuning seeds with one penalty for both, for each penalty."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        tuning = studies[f"tuning-{panel}"]
        return {
            f"rho = {penalty:g}": gain(tuning.sel(penalty=penalty), *pair, bound, READ)
            for penalty in tuning["penalty"].values
        }

    return measure


def at_common_penalty(claim: Claim, panel: str, pair: tuple[str, str], bound: float) -> Claim:
    """The claim with one penalty for both methods, on the tuning seeds."""
    return replace(
        claim,
        name=f"{claim.name}-common",
        measure=common_gains(panel, pair, bound),
        condition="; ".join(filter(None, (COMMON_PENALTY, claim.condition))),
        note=where_common(panel, pair, bound),
        changed="New: the other reading, in which all methods have the same penalty. "
        + (ONE_MEANING if ONE_MEANING in claim.changed else ""),
    )


def levels(
    panel: str, methods: Sequence[str], bound: float, when: int | slice | None
) -> Callable[[Studies], str]:
    """A note: how accurate the methods are, at an iteration or as in :func:`gain`."""

    def note(studies: Studies) -> str:
        rounds = studies[panel]["round"].values[-1] if when is None else when
        data = studies[panel].sel(bound=bound, round=rounds)
        shares = [np.nanmean(samples(data, method, METRIC)) for method in methods]
        text = ", ".join(f"{100 * x:.1f} % of {m}" for m, x in zip(methods, shares, strict=True))
        return f"Right ({_time(when)}): {text}."

    return note


def where_common(panel: str, pair: tuple[str, str], bound: float) -> Callable[[Studies], str]:
    """A note: at which common penalties the first is better and worse, beyond the intervals."""

    def note(studies: Studies) -> str:
        result = common_gains(panel, pair, bound)(studies)
        better = [name for name, e in result.items() if e.low > 0]
        worse = [name for name, e in result.items() if e.high < 0]
        return (
            f"{pair[0]} is better than {pair[1]} with {_listed(better)} and worse with "
            f"{_listed(worse)}, beyond the intervals of "
            f"{studies[f'tuning-{panel}'].sizes['seed']} seeds."
        )

    return note


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none of the penalties"


def penalties_of(panel: str, methods: Sequence[str], bound: float) -> Callable[[Studies], str]:
    """A note: the best penalties of the methods."""

    def note(studies: Studies) -> str:
        best = chosen(studies[f"tuning-{panel}"])[bound]
        return "Best penalties: " + ", ".join(f"{best[m]:g} of {m}" for m in methods) + "."

    return note


def notes(*parts: str | Callable[[Studies], str]) -> Callable[[Studies], str]:
    """Joins some notes."""
    return lambda studies: " ".join(p if isinstance(p, str) else p(studies) for p in parts)


def sample_privacy(panels: Mapping[str, int]) -> Callable[[Studies], list[dict[str, Any]]]:
    """The privacy that the worst client of any run spent under the enforced bound, by panel.

    For one replaced image, and for a whole data sample of as many images as ``panels`` gives:
    its replacement multiplies the mean gradient's change by that number, and the zCDP parameter
    by its square.
    """

    def table(studies: Studies) -> list[dict[str, Any]]:
        rows = []
        for panel, count in panels.items():
            private = studies[panel].sel(bound=BOUND.value)
            respected = bound_held(float(private["gradient_norm"].max()), BOUND.value)
            for images in (1, count):
                rho = float(private["privacy_rho"].max()) * images**2
                rows.append(
                    {
                        "panel": panel,
                        "images replaced": images,
                        "rho": rho,
                        "epsilon": float(zcdp_epsilon(rho, DELTA.value, "gaussian")),
                        "bound held": respected,
                    }
                )
        return rows

    return table


# --------------------------------------------------------------------------- pictures


def title(name: str, bound: float) -> str:
    """A panel's title."""
    return f"{name}, C = {bound:g}" + ("" if bound == BOUND.value else " nominal")


#: How every inter-cluster schedule looks, as in the chapter's other figures.
LOOKS = {
    ALONE: ch5.LOOKS[ch5.PGFL_0],
    label(MEDIUM.value): ch5.LOOKS[ch5.PGFL_MIXED],
    label(MEDIUM.value, 0.98): ch5.LOOKS[ch5.DECAYING],
    label(0.2): ch5.LOOKS[ch5.GFL_ADMM],
    label(LARGE.value): plotting.LOOKS[6],
    label(MEDIUM.value, 0.8): ch5.LOOKS[ch5.CLUSTER_FL],
}


def curves(data: xr.Dataset, bound: float, ax: Axes, bands: bool = True) -> None:
    """Accuracy against the iteration; bands that lie on each other would merge to gray."""
    plotting.learning_curves(data.sel(bound=bound), METRIC, "algorithm", ax=ax)
    picture.recolor(ax, LOOKS)
    if not bands:
        _without_bands(ax)


def _without_bands(ax: Axes) -> None:
    for band in list(ax.collections):
        band.remove()
    ax.relim()
    ax.autoscale_view()


def gain_curves(
    studies: Studies,
    pairs: Mapping[str, tuple[str, str]],
    names: Mapping[str, str],
    bound: float,
    ax: Axes,
) -> None:
    """By how much the first of each panel's pair is more accurate, against the iteration."""
    for panel, (over, under) in pairs.items():
        look = LOOKS[over]
        data = studies[panel]
        at = data["round"].values
        result = [gain(data, over, under, bound, n) for n in at]
        ax.plot(at, [e.value for e in result], label=f"{names[panel]}, {over}", markevery=4, **look)
        low, high = zip(*((e.low, e.high) for e in result), strict=True)
        ax.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)
    ax.axhline(0, color="#333333", linewidth=0.6)
    ax.set_xlabel("iteration")
    ax.set_ylabel("gain [points]")


def against_penalty(tuning: xr.Dataset, methods: Sequence[str], ax: Axes) -> None:
    """Accuracy where it is read against the penalty, with both noises, on the tuning seeds."""
    parts = [
        tuning.sel(bound=bound, algorithm=list(methods), drop=True).assign_coords(
            algorithm=[f"{text}, C = {bound:g}" for text in methods]
        )
        for bound in BOUNDS
    ]
    plotting.trade_off(joined(*parts), "penalty", METRIC, "algorithm", ax=ax)
    for line, (bound, text) in zip(ax.lines, itertools.product(BOUNDS, methods), strict=True):
        line.set(**LOOKS[text] | {"linestyle": "-" if bound == BOUND.value else "--"})
    _without_bands(ax)
    for note in list(ax.texts):  # notes on the tuning seeds; the heading has the curves' seeds
        note.remove()
    ax.set_xlabel("penalty rho")


#: The caption of both figures.
CAPTION = (
    "Every curve is at its own best penalty; the last row has the means of all penalties that were "
    "tried, on the tuning seeds after 100 iterations. Where C = 1 the gradient bound holds, so the "
    "zCDP guarantee is real, for one image replaced; for a whole data sample ({units} images) the "
    "zCDP parameter is the square of its number of images times as large. Where C = 0.03 the noise "
    "is that of a nominal bound, in the place of the source's own, which is not given; the bound "
    "is broken and the true parameter 1111 times the one that is booked. Accuracy is that of the "
    "clients' unperturbed models w_k on test images of their cluster's classes; every seed has a "
    "graph, clusters and images of its own. No accuracy is predicted by the chapter's theory."
)
