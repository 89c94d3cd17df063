"""Rizk 2023, figure 2.7: private uploads by step size and by noise variance (section 2.6.4)."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import BETTER, MOST, at_most_order, order
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate, exponent, gap, samples, share
from experiments.rizk import chapter2 as ch2
from fljax import plotting, statistics

STEP_SIZES = Setting(
    "(a), (b) step sizes mu",
    (0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "not given; factors of two to either side of figure 2.6's",
)
VARIANCES = Setting(
    "(c), (d) privacy noise variances sigma_g^2",
    (0.01, 0.05, 0.1, 0.5),
    "section 2.6.4 on figure 2.7",
    given=True,
)
ROUNDS = Setting("iterations", 400, "not given; enough for the smallest step's steady state")
FEW = Setting("seeds", 40, "steady states are means over 130 iterations of each")
SHARED = {"updates": ch2.UPDATES, "models": ch2.MODELS}
NAMES = {"step_size": "step size μ", "variance": "noise variance σ²"}


def study(effort: Effort) -> Studies:
    shared = tuple(SHARED.values())
    grids: dict[str, dict[str, Any]] = {
        "step": {"step_size": effort.thin(STEP_SIZES.value)},
        "variance": {"variance": effort.thin(VARIANCES.value)},
    }
    studies = {}
    for name, grid in grids.items():
        predicted = f"{name}-predicted"
        few = min(effort.seeds, FEW.value)
        extra = [ch2.BEST_STEP] if name == "step" else []
        studies[name] = ch2.private_study(name, effort, ROUNDS.value, shared, few, **grid)
        studies[predicted] = ch2.private_prediction(predicted, effort, shared, extra, **grid)
        for axis in grid:
            for result in (studies[name], studies[predicted]):
                result[axis].attrs["long_name"] = NAMES[axis]
    return studies


# --------------------------------------------------------------------------- the claims


def axis_of(data: xr.Dataset) -> str:
    """The axis of a study."""
    return next(name for name in NAMES if name in data.dims)


def rest(data: xr.Dataset, method: str, value: float) -> np.ndarray:
    """``[S]``: the mean of each run's steady state."""
    which = {"algorithm": method, axis_of(data): value}
    return samples(ch2.steady(data), which, ch2.METRIC).mean(axis=1)


def rises(study: str, *shared: str) -> Callable[[Studies], dict[str, Estimate]]:
    """The gap from one value to the next, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[study]
        values = data[axis_of(data)].values.tolist()
        return {
            f"{method}, {more:g} above {less:g}": gap(
                rest(data, method, more), rest(data, method, less)
            )
            for method in shared
            for less, more in itertools.pairwise(values)
        }

    return measure


def trade_off(studies: Studies) -> dict[str, Estimate]:
    """The smallest and the largest step over the best."""
    data = studies["step"]
    values = data["step_size"].values.tolist()
    result = {value: rest(data, ch2.MODELS, value) for value in values}
    best = min(values, key=lambda value: result[value].mean())
    return {
        f"μ = {end:g} above μ = {best:g}": gap(result[end], result[best])
        for end in (values[0], values[-1])
    }


def harder(studies: Studies) -> dict[str, Estimate]:
    """How much more noise raises models' deviation than updates', dB."""
    data = studies["variance"]
    values = data["variance"].values.tolist()

    def more(*means: np.ndarray) -> np.ndarray:
        return statistics.decibels(means[0] / means[1] * means[3] / means[2])

    ends = (values[-1], values[0])
    result = [rest(data, method, value) for method in (ch2.MODELS, ch2.UPDATES) for value in ends]
    return {f"from {values[0]:g} to {values[-1]:g}": estimate(more, *result)}


def diverging(studies: Studies) -> dict[str, Estimate]:
    """Runs with shared models that overflow, at each variance."""
    data = studies["variance"]
    return {
        f"σ² = {value:g}": share(
            (data["diverged"].sel(algorithm=ch2.MODELS, variance=value) > 0).values
        )
        for value in data["variance"].values.tolist()[-1:]
    }


def no_divergence(studies: Studies) -> str:
    data = studies["variance"]
    value = data["variance"].values.tolist()[-1]
    levels = (
        f"{method} {float(statistics.decibels(rest(data, method, value).mean())):.1f} dB"
        for method in SHARED.values()
    )
    return (
        "Noise that is added does not make an affine recursion diverge, however large: at "
        f"σ² = {value:g} there are steady states, {', '.join(levels)}. The one of models is as "
        f"high as another {statistics.decibels(1 / ch2.PRIVATE_STEP.value**2):.0f} dB of noise "
        "would make that of updates."
    )


def slopes(of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Measure:
    """The power of the step size with which a function of both deviations grows."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["step"]
        steps = data["step_size"].values[:3]

        def power(*means: np.ndarray) -> np.ndarray:
            updates = np.stack(means[:3], axis=-1)
            models = np.stack(means[3:], axis=-1)
            return exponent(of(updates, models), steps)

        rests = [rest(data, method, step) for method in SHARED.values() for step in steps]
        return {f"μ from {steps[0]:g} to {steps[-1]:g}": estimate(power, *rests, unit="")}

    return measure


def best_step(studies: Studies) -> float:
    """The best step for shared models, by theory."""
    return float(studies["step-predicted"][ch2.BEST_STEP.name].mean())


# --------------------------------------------------------------------------- the picture


def against(ax: Axes, studies: Studies, study: str) -> None:
    """Steady states, measured and predicted."""
    data = studies[study]
    predicted = studies[f"{study}-predicted"]
    mean = ch2.steady(data).mean("round", keep_attrs=True)
    mean["diverged"] = data["diverged"]
    plotting.trade_off(mean, axis_of(data), ch2.METRIC, ax=ax)
    ch2.dress(ax, [ch2.LOOKS[name] for name in mean["algorithm"].values.tolist()])
    for method in SHARED.values():
        curve = predicted[ch2.PREDICTED].sel(algorithm=method).mean("seed").values
        at = predicted[axis_of(data)].values
        text = "theory" if method == ch2.UPDATES else ""
        picture.predicted_curve(ax, at, statistics.decibels(curve), text)


def plot(studies: Studies) -> Picture:
    titles = (
        *(f"{name}, step sizes" for name in SHARED),
        "steady states by step size",
        *(f"{name}, noise variances" for name in SHARED),
        "steady states by variance",
    )
    drawing, axes = picture.panels(titles)
    for row, study in zip((axes[:3], axes[3:]), ("step", "variance"), strict=True):
        for ax, method in zip(row, SHARED.values(), strict=False):
            data = studies[study].sel(algorithm=method)
            plotting.learning_curves(data, ch2.METRIC, hue=axis_of(data), ax=ax)
            picture.fade(ax)
        against(row[2], studies, study)
    best = best_step(studies)
    axes[2].axvline(best, label=f"best for models, theory: {best:.2g}", **picture.THIN)
    return picture.finish(drawing, "private uploads, 1000 agents, 30 a round", legend_width=0.8)


FIGURE = Figure(
    "rizk-2.7",
    "Private uploads by step size and noise",
    "Rizk 2023, figure 2.7, section 2.6.4",
    "(a), (b) curves for several step sizes, (d), (e) for several variances of the noise, which "
    "are the source's (a) to (d). (c), (f) are ours: their steady states and exact second moments.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "updates-rise-with-the-step",
            "when updates are shared, the deviation increases with mu",
            "section 2.6.4 on figure 2.7",
            rises("step", ch2.UPDATES),
            *BETTER.db.when("steady states from one step size to the next"),
        ),
        Claim(
            "models-have-a-best-step",
            "when models are shared there is a trade-off: small and large mu are both worse",
            "section 2.6.4 on figure 2.7",
            trade_off,
            *BETTER.db.when("the smallest and the largest step size above the best"),
        ),
        Claim(
            "worse-with-more-noise",
            "in both cases the performance diminishes as sigma_g^2 increases",
            "section 2.6.4 on figure 2.7",
            rises("variance", *SHARED.values()),
            *BETTER.db.when("steady states from one variance to the next"),
        ),
        Claim(
            "models-are-hurt-more",
            "larger variances affect models more than updates",
            "section 2.6.4 on figure 2.7",
            harder,
            *BETTER.db.when("the rise from the least to the largest variance"),
        ),
        Claim(
            "models-diverge-first",
            "with models shared the algorithm diverges at lower sigma_g^2 than with updates",
            "section 2.6.4 on figure 2.7",
            diverging,
            *MOST.when("with models, they overflow at the largest variance"),
            note=no_divergence,
        ),
        Claim(
            "updates-of-the-order-of-the-step",
            "in the limit the deviation with noise on updates is at most O(mu)",
            "Theorem 2.2, (2.62)",
            slopes(lambda updates, models: updates),
            *at_most_order(1).when("steady states at the three smallest step sizes"),
            changed="New: the theorem, which was left out.",
        ),
        Claim(
            "noise-on-models-of-the-order-of-one-over-the-step",
            "noise on models adds a term O(mu^-1) to the deviation",
            "section 2.5",
            slopes(lambda updates, models: models - updates),
            *order(-1).when(
                "models' steady states above those of updates, at the three smallest step sizes"
            ),
            changed="New: what the theorem of updates is set against.",
        ),
    ],
    settings=(*ch2.PRIVATE, STEP_SIZES, VARIANCES, ROUNDS, FEW, ch2.PREDICTED_SEEDS),
    table=ch2.quantiles("step", "variance"),
)
