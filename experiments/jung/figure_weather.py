"""Jung 2025: the temperature at weather stations, coupled to near ones (sections 2.1 and 3.3)."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from fljax import plotting, statistics
from fljax.algorithms import FedGD, FedRelax, ModelAgnosticFedRelax
from fljax.graphs import Graph
from fljax.problems import GTVMin, LeastSquares, Problem, train
from fljax.results.dataset import provenance

RECORDS = Setting(
    "data",
    "Finnish Meteorological Institute, open data, CC BY 4.0",
    "the stations of the source; its own file is not given. Daily extremes of 40 days of 2026",
)
TARGETS = Setting(
    "target",
    ("tmin", "tmax"),
    "the maximum is the source's label (section 2.1); the minimum differs more between stations",
)
LAGS = Setting("days before, as inputs", 2, "both extremes of each, and the constant: 5 parameters")
WINDOW = Setting(
    "training days",
    14,
    "the last before a forecast: few for 5 parameters, and 24 days are left to be forecast",
)
PERIOD = Setting(
    "days of a period",
    6,
    "all days that are forecast are tested: the coupling and the ridge of a period are those with "
    "the least error on the days of the three others",
)
COUPLINGS = Setting(
    "alpha", tuple(np.geomspace(1e-3, 1e3, 13).tolist()), "two a decade, from one end to the other"
)
RIDGES = Setting(
    "ridge", tuple(np.geomspace(1e-4, 10, 21).tolist()), "four a decade, of learning alone"
)
LIKE = Setting("ridge of compared models", 0.1, "what makes local models comparable; not tuned")
ROUNDS = Setting("rounds", 1000, "of FedRelax and FedGD, on the last window")
TRIED = Setting(
    "alpha of the rounds", 1.0, "in the middle of the good ones; none is chosen by test"
)
POINTS = Setting(
    "points on which models are compared by their predictions",
    50,
    "of model-agnostic FedRelax: inputs of the training days, drawn among those of all stations",
)
BLOCK = Setting(
    "days of a block",
    3,
    "weather lasts some days: intervals are of a bootstrap over such blocks of days. Stations "
    "share the days, so they are not resampled",
)
ENDS = Setting("the ends of alpha", 0.15, "kelvin within which they are learning alone, one model")
NEARLY = Setting("as good", 0.2, "kelvin")

DAYS = 38  # with a target and both days before
THREE = "3 nearest"
FIVE = "5 nearest"
ALIKE = "5 most alike"
SHUFFLED = "5 at random"
PREDICTED = "3 nearest, by predictions"
GRAPHS = (THREE, FIVE, ALIKE, SHUFFLED, PREDICTED)
PLACED = (THREE, FIVE, ALIKE)
ALONE = "alone"
RIDGE = "alone, ridge"
ONE = "one model"
PERSISTENCE = "persistence"
METHODS = (ALONE, RIDGE, ONE, PERSISTENCE)
LINES = dict(
    zip(METHODS, ((0, (1, 1.5)), (0, (3, 1)), (0, (7, 2)), (0, (6, 1, 1, 1))), strict=True)
)
AGNOSTIC = "model-agnostic FedRelax"
RESAMPLES = 2000

# --------------------------------------------------------------------------- data


@functools.cache
def data(target: str, days: int) -> fl.data.Weather:
    """The stations' windows that end ``days`` days before the last record; the next day is the
    first of the test.
    """
    return fl.data.fmi("daily", target, LAGS.value, days / DAYS, WINDOW.value)


@functools.cache
def windows(target: str) -> tuple[Any, ...]:
    """For every forecast day: training features ``[T, K, N, P]`` and targets, the day's own, the
    kelvin of a unit ``[T]``, and the error of persistence ``[T, K]``.
    """
    result = [data(target, days) for days in range(DAYS - WINDOW.value, 0, -1)]
    last = result[0].features.index(f"{target}, 1 d before")
    parts = []
    for weather in result:
        (features, targets), test = (
            (weather.problem.features, weather.problem.targets),
            weather.problem.test,
        )
        assert test is not None
        inputs = np.asarray(test.features)[:, 0]
        answer = np.asarray(test.targets)[:, 0]
        unit = weather.deviation[-1]
        before = weather.mean[last] + weather.deviation[last] * inputs[:, last]
        off = before - weather.mean[-1] - unit * answer
        parts.append((features, targets, inputs, answer, unit, off))
    return tuple(np.stack(part) for part in zip(*parts, strict=True))


def fixed_graphs(places: np.ndarray) -> dict[str, Graph]:
    """The graphs that do not depend on data; one is the second with permuted stations."""
    order = np.random.default_rng(0).permutation(len(places))
    nearest = functools.partial(fl.graphs.nearest_neighbors, metric="geodesic")
    return {
        THREE: nearest(places, 3),
        FIVE: nearest(places, 5),
        SHUFFLED: nearest(places[order], 5),
        PREDICTED: nearest(places, 3),
    }


def compared_on(features: Array) -> Array:
    """``[m', P]``: the points of model-agnostic FedRelax, among the inputs of all stations."""
    inputs = features.reshape(-1, features.shape[-1])
    rows = np.random.default_rng(0).choice(len(inputs), POINTS.value, replace=False)
    return inputs[np.sort(rows)]


def in_predictions(features: Array) -> Array:
    """``[P, P]``: the map of inputs after which parameters are as far apart as predictions on
    average over the points.

    For linear models the penalty (124) is (123) in the norm of the points' second moment.
    """
    points = compared_on(features)
    root = jnp.linalg.cholesky(points.T @ points / len(points))
    return jnp.linalg.inv(root).T


# --------------------------------------------------------------------------- forecasts


def coupled(places: np.ndarray, couplings: list[float], parts: Any) -> dict[str, np.ndarray]:
    """The errors of forecasts in kelvin, ``[T, A, K]`` of each graph."""
    features, targets, inputs, answers, unit, _ = (jnp.asarray(part) for part in parts)
    of = fixed_graphs(places)

    def day(name: str, *given: Array) -> Array:
        x, y, new, answer, kelvin = given
        if name == PREDICTED:
            view = in_predictions(x)
            x = x @ view
            new = new @ view
        problem = Problem(x, y, LeastSquares(), strength=0.0)
        # A station's local models use its window alone, so the graph differs between windows.
        graph = of.get(name)
        if graph is None:
            graph = fl.graphs.nearest_neighbors(train(problem, ridge=LIKE.value), 5)

        def at(coupling: Array) -> Array:
            models = GTVMin(problem, graph, coupling).solution().models
            return kelvin * (jnp.sum(new * models, axis=1) - answer)

        return jax.lax.map(at, jnp.asarray(couplings))

    def all_days(name: str) -> np.ndarray:
        run = jax.jit(lambda days: jax.lax.map(lambda arrays: day(name, *arrays), days))
        return np.asarray(run((features, targets, inputs, answers, unit)))

    return {name: all_days(name) for name in GRAPHS}


def alone(parts: Any, ridges: list[float]) -> np.ndarray:
    """The errors of the stations' own models, ``[R, T, K]`` in kelvin; of ridge zero the least
    squares of least length.
    """
    features, targets, inputs, answers, unit, _ = (np.asarray(part, np.float64) for part in parts)
    moment = np.einsum("tknp,tknq->tkpq", features, features) / WINDOW.value
    right = np.einsum("tknp,tkn->tkp", features, targets) / WINDOW.value
    result = []
    for ridge in ridges:
        inverse = np.linalg.pinv(moment + ridge * np.eye(features.shape[-1]), hermitian=True)
        models = np.einsum("tkpq,tkq->tkp", inverse, right)
        result.append(unit[:, None] * ((inputs * models).sum(-1) - answers))
    return np.stack(result)


def of_other_periods(errors: np.ndarray) -> np.ndarray:
    """``[T]``: for every day the option with the least mean error on the days of other periods.

    Args:
      errors: squared, ``[T, options]``.
    """
    period = np.arange(len(errors)) // PERIOD.value
    best = [errors[period != held_out].mean(axis=0).argmin() for held_out in np.unique(period)]
    return np.asarray(best)[period]


def one_model(parts: Any) -> np.ndarray:
    """The errors of one model of all stations' samples, ``[T, K]`` in kelvin."""
    features, targets, inputs, answers, unit, _ = (np.asarray(part, np.float64) for part in parts)
    moment = np.einsum("tknp,tknq->tpq", features, features)
    right = np.einsum("tknp,tkn->tp", features, targets)
    models = np.linalg.solve(moment, right[..., None])[..., 0]
    return unit[:, None] * (np.einsum("tkp,tp->tk", inputs, models) - answers)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    couplings = effort.thin(COUPLINGS.value, 4)
    days = np.arange(DAYS - WINDOW.value)
    curves = []
    levels = []
    stations = []
    places = data(TARGETS.value[0], 1).coordinates
    parts_of = [windows(target) for target in TARGETS.value]
    # One program for both targets.
    result = coupled(
        places, couplings, [np.concatenate(part) for part in zip(*parts_of, strict=True)]
    )
    errors_of = np.stack([result[name] for name in GRAPHS])  # [G, 2 T, A, K]
    for parts, errors in zip(parts_of, np.split(errors_of, len(parts_of), axis=1), strict=True):
        curves.append((errors**2).mean(axis=-1))
        ridged = alone(parts, list(RIDGES.value))
        ridge = ridged[of_other_periods((ridged**2).mean(axis=2).T), days]
        fixed = np.stack([alone(parts, [0.0])[0], ridge, one_model(parts), parts[-1]])
        levels.append((fixed**2).mean(axis=-1))
        each_chosen = [of_other_periods(curve) for curve in curves[-1]]
        at = [of[days, a] for of, a in zip(errors, each_chosen, strict=True)]
        stations.append(np.sqrt((np.concatenate([at, fixed]) ** 2).mean(axis=1)))
    square = {"long_name": "mean squared error", "units": "K²"}
    coords = {"target": list(TARGETS.value), "day": days}
    curve = xr.Dataset(
        {"error": (("target", "graph", "day", "coupling"), np.stack(curves), square)},
        {**coords, "graph": list(GRAPHS), "coupling": couplings},
        provenance(dtype=str(jnp.result_type(float))),
    )
    level = xr.Dataset(
        {"error": (("target", "learner", "day"), np.stack(levels), square)},
        {**coords, "learner": list(METHODS)},
    )
    station = xr.Dataset(
        {
            "error": (("target", "learner", "station"), np.stack(stations), {"units": "K"}),
            "place": (("station", "axis"), places),
        },
        {"target": list(TARGETS.value), "learner": [*GRAPHS, *METHODS]},
    )
    return {"curves": curve, "levels": level, "stations": station, "rounds": training(effort)}


def training(effort: Effort) -> xr.Dataset:
    """How far FedRelax and FedGD are from the solution."""
    last = data(TARGETS.value[0], 1)
    graphs = fixed_graphs(last.coordinates)
    points = compared_on(last.problem.features)
    algorithms = {
        "FedRelax": FedRelax(TRIED.value),
        "FedGD": FedGD(TRIED.value),
        AGNOSTIC: ModelAgnosticFedRelax(TRIED.value, points),
    }
    result = []
    for name in (THREE, FIVE):

        def scenario(key: Array, algorithm: Any, graph: Graph = graphs[name]) -> fl.Simulation:
            return fl.Simulation(
                last.problem,
                algorithm,
                graph,
                metrics=["normalized_error"],
                allow_disconnected=True,
            )

        result.append(
            effort.sweep(
                f"rounds-{name[0]}",
                scenario,
                seeds=1,
                rounds=ROUNDS.value // (10 if effort.quick else 1),
                grid={"algorithm": algorithms},
            )
        )
    return xr.concat(result, "graph", combine_attrs="override").assign_coords(graph=[THREE, FIVE])


# --------------------------------------------------------------------------- readings


def chosen(studies: Studies, target: str, graph: str) -> np.ndarray:
    """``[T]``: the coupling of every day, by the other periods."""
    curve = studies["curves"]["error"].sel(target=target, graph=graph)
    return curve["coupling"].values[of_other_periods(curve.transpose("day", "coupling").values)]


def daily(studies: Studies, target: str, method: str, coupling: float | None = None) -> np.ndarray:
    """``[T]``: the mean squared error of every day, of a graph's chosen couplings unless one is
    given.
    """
    if method in METHODS:
        return studies["levels"]["error"].sel(target=target, learner=method).values
    result = studies["curves"]["error"].sel(target=target, graph=method)
    if coupling is None:
        couplings = xr.DataArray(chosen(studies, target, method), dims="day")
        return result.sel(coupling=couplings, day=result["day"]).values
    return result.sel(coupling=coupling, method="nearest").values


def best(studies: Studies, target: str, graph: str) -> float:
    """The coupling that turned out to be the best of all days."""
    result = studies["curves"]["error"].sel(target=target, graph=graph).mean("day")
    return float(result["coupling"][int(result.values.argmin())])


def block_bootstrap(over: np.ndarray, under: np.ndarray) -> tuple[float, float, float]:
    """How much larger one root of a mean squared error is than another, ``[T]`` of days each, with
    its 95 % interval by a circular bootstrap over blocks of days, paired.
    """
    days = len(over)
    rng = np.random.default_rng(0)
    count = -(-days // BLOCK.value)
    start = rng.integers(days, size=(RESAMPLES, count, 1))
    rows = ((start + np.arange(BLOCK.value)) % days).reshape(RESAMPLES, -1)[:, :days]
    shifts = np.sqrt(over[rows].mean(axis=1)) - np.sqrt(under[rows].mean(axis=1))
    low, high = np.percentile(shifts, [50 * (1 - statistics.LEVEL), 50 * (1 + statistics.LEVEL)])
    return math.sqrt(over.mean()) - math.sqrt(under.mean()), float(low), float(high)


def gap(studies: Studies, target: str, over: Any, under: Any) -> Estimate:
    """The gap of two methods; a pair stands for a graph and a coupling."""
    pairs = ((m, None) if isinstance(m, str) else m for m in (over, under))
    pair = [daily(studies, target, method, coupling) for method, coupling in pairs]
    return Estimate(*block_bootstrap(*pair), unit="K")


def root(studies: Studies, target: str, method: str) -> float:
    """In kelvin."""
    return math.sqrt(daily(studies, target, method).mean())


# --------------------------------------------------------------------------- picture

LOOKS = {graph: picture.look(i) for graph, i in zip(GRAPHS, (0, 1, 2, 3, 5), strict=True)}
NAMES = {"tmin": "tomorrow's minimum", "tmax": "tomorrow's maximum"}


def plot(studies: Studies) -> Picture:
    titles = (
        NAMES["tmin"],
        "gain over learning alone",
        NAMES["tmax"],
        "error of the stations",
        "gain of the stations",
        "three algorithms",
    )
    drawing, axes = picture.panels(titles, height=2.6)
    low, gain, high, where, scatter, rounds = axes
    for ax, target in ((low, "tmin"), (high, "tmax")):
        _draw_errors(ax, studies, target)
    _draw_gains(gain, studies)
    _draw_map(where, studies)
    _draw_stations(scatter, studies)
    _draw_rounds(rounds, studies["rounds"])
    picture.finish(
        drawing,
        f"{RECORDS.value}; {studies['stations'].sizes['station']} stations, "
        f"{studies['curves'].sizes['day']} days; bands 95 %",
    )
    return drawing


def _draw_errors(ax: Axes, studies: Studies, target: str) -> None:
    result = studies["curves"]["error"].sel(target=target).mean("day") ** 0.5
    for graph in GRAPHS:
        at = np.unique(chosen(studies, target, graph))
        ax.plot(result["coupling"], result.sel(graph=graph), label=graph, **LOOKS[graph])
        level = result.sel(graph=graph, coupling=at)
        last = "chosen" if graph == GRAPHS[-1] else "_"
        color = LOOKS[graph]["color"]
        ax.plot(at, level, "o", color=color, markeredgecolor="black", label=last)
    for method in METHODS:
        picture.theory(
            ax, root(studies, target, method), method, unit=" K", linestyle=LINES[method]
        )
    ax.set(xscale="log", xlabel=r"coupling $\alpha$", ylabel="root of mean squared error [K]")


def _draw_gains(ax: Axes, studies: Studies) -> None:
    couplings = studies["curves"]["coupling"].values
    for graph in (THREE, SHUFFLED):
        result = [
            block_bootstrap(daily(studies, "tmin", RIDGE), daily(studies, "tmin", graph, coupling))
            for coupling in couplings
        ]
        middle, low, high = np.array(result).T
        ax.plot(couplings, middle, label=graph, **LOOKS[graph])
        color = LOOKS[graph]["color"]
        ax.fill_between(couplings, low, high, color=color, alpha=0.12, linewidth=0)
    reduction, _, _ = block_bootstrap(daily(studies, "tmin", RIDGE), daily(studies, "tmin", ONE))
    picture.theory(ax, reduction, ONE, unit=" K", linestyle=LINES[ONE])
    ax.axhline(0, color="#999999", linewidth=0.6)
    ax.set(xscale="log", xlabel=r"coupling $\alpha$", ylabel="below the error of ridge [K]")


def _draw_map(ax: Axes, studies: Studies) -> None:
    data = studies["stations"]
    places = data["place"].values.astype(np.float64)
    graph = fl.graphs.nearest_neighbors(places, 3, metric="geodesic")
    error = data["error"].sel(target="tmin", learner=THREE).values
    title = ax.get_title()
    plotting.network_map(graph, places, error, metric="geodesic", ax=ax, label="error [K]")
    ax.set_title(f"{title}, {THREE}")
    for line in ax.lines:
        line.set_linewidth(0.4)
    for points in ax.collections:
        points.set(sizes=[9], linewidth=0.3)


def _draw_stations(ax: Axes, studies: Studies) -> None:
    data = studies["stations"]["error"].sel(target="tmin")
    errors = data.sel(learner=RIDGE).values
    for name, marker, color in ((THREE, "o", LOOKS[THREE]["color"]), (ONE, "x", "#333333")):
        together = data.sel(learner=name).values
        look = {"color": color, "markersize": 2.2, "markeredgewidth": 0.6}
        ax.plot(errors, together, marker, label=name, **look)
    ends = [float(data.sel(learner=[RIDGE, THREE, ONE]).reduce(f)) for f in (np.min, np.max)]
    ax.plot(ends, ends, label="no gain", **picture.THIN)
    ax.set(xlabel="a station's error by ridge, alone [K]", ylabel="its error together [K]")


def _draw_rounds(ax: Axes, data: xr.Dataset) -> None:
    for i, algorithm in enumerate(data["algorithm"].values):
        lines = (("-", (0, (3, 1))), ("-.", ":"), ((0, (8, 2)), (0, (5, 1, 1, 1, 1, 1))))[i]
        color = picture.look((6, 4, 5)[i])["color"]
        for graph, line in zip(data["graph"].values, lines, strict=True):
            where = {"graph": graph, "algorithm": algorithm, "seed": 0}
            curve = statistics.decibels(data["normalized_error"].sel(where).values)
            text = f"{algorithm}, {graph}"
            ax.plot(data["round"], curve, color=color, linestyle=line, label=text)
    ax.set(xscale="log", xlabel="round", ylabel="distance from the solution [dB]")


# --------------------------------------------------------------------------- claims


def gaps(target: str, pairs: dict[str, tuple[Any, Any]]) -> Measure:
    return lambda studies: {
        name: gap(studies, target, over, under) for name, (over, under) in pairs.items()
    }


def ends(studies: Studies) -> dict[str, Estimate]:
    """How far the least coupling is from learning alone, the largest from one model."""
    first, *_, last = studies["curves"]["coupling"].values
    alone = {f"{g}, least alpha": gap(studies, "tmin", (g, first), ALONE) for g in PLACED}
    # The graphs of three nearest and of most similar stations are not connected.
    joined = {f"{g}, largest alpha": gap(studies, "tmin", (g, last), ONE) for g in (FIVE, SHUFFLED)}
    return alone | joined


def regret(studies: Studies) -> dict[str, Estimate]:
    """How far the chosen coupling is above the best one."""
    return {
        f"{target}, {graph}": gap(studies, target, graph, (graph, best(studies, target, graph)))
        for target in TARGETS.value
        for graph in PLACED
    }


def fall(studies: Studies) -> dict[str, Estimate]:
    """By how much the distance from the solution falls, dB."""
    data = statistics.decibels(studies["rounds"]["normalized_error"].sel(seed=0))
    fallen = data.isel(round=0) - data.isel(round=-1)
    return {
        f"{algorithm}, {graph}": Estimate.exact(float(fallen.sel(algorithm=algorithm, graph=graph)))
        for algorithm in data["algorithm"].values
        for graph in data["graph"].values
    }


def errors(target: str) -> Callable[[Studies], str]:
    """A note: the errors of all methods."""

    def note(studies: Studies) -> str:
        listing = ", ".join(
            f"{method} {root(studies, target, method):.2f} K" for method in (*GRAPHS, *METHODS)
        )
        return f"Of {NAMES[target]} the errors are: {listing}."

    return note


def pooled(target: str) -> Callable[[Studies], str]:
    """A note on one model for all."""

    def note(studies: Studies) -> str:
        return (
            f"{errors(target)(studies)} One model learns from the samples of all stations, which "
            f"differ by less than {WINDOW.value} days tell."
        )

    return note


def choices(studies: Studies) -> str:
    """A note: the chosen couplings, and the best in hindsight."""
    parts = []
    for target, graph in itertools.product(TARGETS.value, PLACED):
        listing = ", ".join(f"{a:.2g}" for a in np.unique(chosen(studies, target, graph)))
        parts.append(f"{target}, {graph}: {listing}, and {best(studies, target, graph):.2g}")
    return f"Chosen by other periods, and best of all days: {'; '.join(parts)}."


INSTANCE = "target, inputs, days, number of neighbors and choice of alpha as in the settings"

FIGURE = Figure(
    name="jung-weather",
    title="Temperature at weather stations, coupled to near ones",
    source="Jung 2025, sections 2.1 and 3.3",
    caption=f"Real records: {RECORDS.value}. Each station forecasts tomorrow's extreme from those "
    "of the last two days, by a linear model of 14 days; stations are joined to their nearest on "
    "the Earth, by parameters or by predictions, to those whose own models are most alike, or, as "
    "a control, to as many with all places exchanged. Dots are at the alphas that are chosen for "
    "one period on the days of the others. (d) and (e) are of tomorrow's minimum at those alphas; "
    "the bands of (b) are over blocks of days. The three nearest leave three components. In (f) "
    "FedRelax ends at the rounding of single precision.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "ends-of-alpha",
            "without coupling stations learn alone; a large alpha leaves one model",
            "section 3.3",
            ends,
            (-ENDS.value, ENDS.value),
            f"errors within {ENDS.value:g} K at the ends of alpha",
        ),
        Claim(
            "better-than-alone",
            "coupled to near stations, a station forecasts better than alone",
            "section 3.3",
            gaps("tmin", {f"alone above {g}": (ALONE, g) for g in PLACED}),
            (0, INFINITE),
            "the error of least squares above that of the chosen alpha",
            condition=INSTANCE,
            note=errors("tmin"),
        ),
        Claim(
            "better-than-ridge",
            "coupled to near stations, a station forecasts better than alone with a ridge",
            "sections 2.5 to 2.7, section 3.3, which does not compare with ridge",
            gaps("tmin", {f"{RIDGE} above {g}": (RIDGE, g) for g in PLACED}),
            (0, INFINITE),
            "the error of ridge, chosen as alpha is, above that of the chosen alpha",
            condition=INSTANCE,
            ours=True,
            note=errors("tmin"),
        ),
        Claim(
            "better-than-one-model",
            "models of their own, coupled, forecast better than one model for all",
            "section 3.3",
            gaps("tmin", {f"one model above {g}": (ONE, g) for g in PLACED}),
            (0, INFINITE),
            "the error of one model above that of the chosen alpha",
            condition=INSTANCE,
            note=pooled("tmin"),
        ),
        Claim(
            "maximum-better-than-alone",
            "likewise of the maximum, the source's own label",
            "sections 2.1 and 3.3",
            gaps("tmax", {f"{m} above {g}": (m, g) for m in (ALONE, RIDGE) for g in PLACED}),
            (0, INFINITE),
            "their errors above that of the chosen alpha",
            condition=INSTANCE,
            note=errors("tmax"),
        ),
        Claim(
            "maximum-better-than-one-model",
            "likewise of the maximum, against one model for all and against no change",
            "sections 2.1 and 3.3",
            gaps(
                "tmax",
                {f"{m} above {g}": (m, g) for m in (ONE, PERSISTENCE) for g in PLACED},
            ),
            (0, INFINITE),
            "their errors above that of the chosen alpha",
            condition=INSTANCE,
            note=pooled("tmax"),
        ),
        Claim(
            "near-stations-rather-than-others",
            "near stations are useful neighbors: better than as many at random",
            "section 3.3",
            gaps("tmin", {f"{SHUFFLED} above {FIVE}": (SHUFFLED, FIVE)}),
            (0, INFINITE),
            "the error at random above that of the nearest, each at the alpha chosen for it",
            condition=INSTANCE,
            note=lambda studies: (
                f"{errors('tmin')(studies)} On these days coupling helps most by tying down models "
                "that have few samples, whoever the neighbors are."
            ),
        ),
        Claim(
            "by-predictions-as-by-parameters",
            "coupled by what their models predict, stations forecast as well as coupled by their "
            "parameters",
            "section 5.6, (124), which says that it applies to more models",
            lambda studies: {
                NAMES[target]: gap(studies, target, PREDICTED, THREE) for target in TARGETS.value
            },
            (-NEARLY.value, NEARLY.value),
            f"within {NEARLY.value:g} K, each at the alpha chosen for it",
            condition=INSTANCE,
            ours=True,
            note=errors("tmin"),
        ),
        Claim(
            "by-predictions-better-than-alone",
            "coupled by what their models predict, stations forecast better than alone",
            "section 5.6, (124)",
            lambda studies: {
                NAMES[target]: gap(studies, target, ALONE, PREDICTED) for target in TARGETS.value
            },
            (0, INFINITE),
            "the error of least squares above that of the chosen alpha",
            condition=INSTANCE,
            note=errors("tmin"),
        ),
        Claim(
            "alpha-by-validation",
            "the choice of alpha can be guided by validation",
            "section 3.3",
            regret,
            (-INFINITE, NEARLY.value),
            f"at most {NEARLY.value:g} K above the best alpha in hindsight",
            condition=INSTANCE,
            note=choices,
        ),
        Claim(
            "trained-in-rounds",
            "message passing with neighbors alone approaches the solution, the network in "
            "pieces or not",
            "sections 5.2 and 5.6",
            fall,
            (20, INFINITE),
            "its squared distance falls by a factor of 100",
        ),
    ],
    settings=(
        *(RECORDS, TARGETS, LAGS, WINDOW, PERIOD, COUPLINGS, RIDGES, LIKE, ROUNDS, TRIED),
        *(POINTS, BLOCK, ENDS, NEARLY),
    ),
)
