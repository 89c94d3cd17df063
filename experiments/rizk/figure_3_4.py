"""Rizk 2023, figure 3.4: noise between servers at several step sizes (section 3.5.1)."""

import itertools
import math

import numpy as np
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import (
    INFINITE,
    Claim,
    Effort,
    Estimate,
    Figure,
    Measure,
    Setting,
    Studies,
)
from experiments.measures import estimate, samples
from experiments.rizk import chapter3 as ch3
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, NONE, RANDOM
from fljax import plotting, statistics
from fljax._module import replace
from fljax.theory import multiagent

STEPS = Setting("step sizes", (0.1, 0.5, 1.0, 5.0), "section 3.5.1", given=True)
MORE = Setting(
    "more step sizes", (0.05, 0.2, 2.0), "for the curves against the step size; no claim is on them"
)
SMALL = Setting(
    "step sizes of the orders", (0.05, 0.1, 0.2, 0.5), "orders in mu are of small steps"
)
ROUNDS = Setting(
    "iterations",
    600,
    "not given; at the step 0.1 what is left of the start in the last half is 30 dB below all else",
)
FIRST = Setting(
    "iterations of the rate", 100, "the first; with noise or not, all have half arrived"
)
THIN = 5
ERROR = "centroid_error"
SEEDS = Setting("seeds of this figure", 20, "at most: each is a mean over 300 iterations")
SCHEMES = (NONE, RANDOM, HOMOMORPHIC)
ALL = tuple(sorted((*STEPS.value, *MORE.value)))


def study(effort: Effort) -> Studies:
    variance = ch3.VARIANCE.value
    results = ch3.study(
        "study",
        effort,
        variances=[variance],
        grid={"step_size": list(ALL)},
        rounds=ROUNDS.value,
        seeds=SEEDS.value,
    )
    theory = ch3.predicted(SCHEMES, variance=[variance], step_size=ALL)
    optimum = np.asarray(fl.problems.optimum(ch3.world()[0]))
    errors = results[net.MODELS].mean("node") - optimum
    start = results[["diverged"]].assign({ERROR: errors}).sel(step_size=list(STEPS.value))
    kept = net.curves(results, net.CENTROID).isel(round=slice(THIN - 1, None, THIN))
    parts = {"a": kept, "noise": net.noise_parts(results), "theory": theory}
    parts["start"] = start.drop_sel(scheme=NONE).isel(round=slice(FIRST.value))
    for name, part in parts.items():
        part["step_size"].attrs["long_name"] = "step size μ"
        parts[name] = part.squeeze("variance", drop=True)
    parts["theory"].attrs["best"] = best_step()
    return parts


def best_step() -> float:
    """Where the centroid's MSD under random noise is least, to leading order."""
    problem, servers = ch3.world()
    assert servers.graph is not None
    over = servers.graph.mixing("metropolis")
    algorithm = ch3.algorithm(ch3.STEP.value)
    noise = net.SCHEMES[RANDOM]
    left = multiagent.noise_covariance(over, replace(noise, variance=ch3.VARIANCE.value))
    gradient = multiagent.gradient_noise(problem, algorithm, servers)
    best = multiagent.best_step(multiagent.hessian(problem), gradient, left.mean() / left.shape[0])
    return float(best.step_size)


def plot(studies: Studies) -> Picture:
    data, theory = studies["a"], studies["theory"]
    titles = ("random", "homomorphic", "steady state", "the noise alone")
    drawing, axes = picture.panels(titles, columns=2, height=2.3)
    steps = {v: f"μ = {v:g}" for v in STEPS.value}
    for ax, scheme in zip(axes, (RANDOM, HOMOMORPHIC), strict=False):
        part = data.sel(scheme=scheme, step_size=list(STEPS.value), drop=True)
        plotting.learning_curves(part, net.CENTROID, "step_size", ax, labels=steps)
        picture.fade(ax)
    low, high = (f(ax.get_ylim()[i] for ax in axes[:2]) for i, f in ((0, min), (1, max)))
    for ax in axes[:2]:
        ax.set_ylim(low, high)
    net.draw_levels(axes[2], data, theory, net.CENTROID, "step_size")
    best = theory.attrs["best"]
    text = f"best step, leading order: {best:.2g}"
    axes[2].axvline(best, color="#333333", linewidth=0.8, label=text)
    plotting.trade_off(studies["noise"], "step_size", net.CENTROID_NOISE, "scheme", axes[3])
    silent = theory[net.CENTROID].sel(scheme=NONE)
    for scheme in (RANDOM, HOMOMORPHIC):
        part = statistics.decibels((theory[net.CENTROID].sel(scheme=scheme) - silent).values)
        first = "theory" if scheme == RANDOM else "_"
        picture.predicted_curve(axes[3], theory["step_size"].values, part, first)
    return picture.finish(drawing, f"MSD of the centroid, σ² = {ch3.VARIANCE.value:g}")


# --------------------------------------------------------------------------- claims


def orders(*schemes: str) -> Measure:
    """The power of the step size with which the noise in the centroid grows."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["noise"].sel(step_size=list(SMALL.value))
        return {
            scheme: net.slope(data, net.CENTROID_NOISE, "step_size", scheme=scheme)
            for scheme in schemes
        }

    return measure


def extremes(studies: Studies) -> dict[str, Estimate]:
    """How far random noise's least and largest step are above the better of those between."""
    data = net.late(studies["a"])
    least, *between, largest = STEPS.value
    level = data[net.CENTROID].sel(scheme=RANDOM, step_size=between).mean("seed").values
    best = between[int(level.argmin())]
    cases = {
        f"step {step:g} above {best:g}": (
            {"scheme": RANDOM, "step_size": step},
            {"scheme": RANDOM, "step_size": best},
        )
        for step in (least, largest)
    }
    return {name: net.gap(data, *pair, net.CENTROID) for name, pair in cases.items()}


def arrival(studies: Studies) -> dict[str, Estimate]:
    """How many times as many iterations a step needs as the next larger one."""
    result, data = {}, studies["start"]
    for scheme in (RANDOM, HOMOMORPHIC):
        for small, large in itertools.pairwise(STEPS.value):
            pair = (
                data[ERROR].sel(scheme=scheme, step_size=step).transpose("seed", ...).values
                for step in (small, large)
            )
            result[f"{scheme}, step {small:g} over {large:g}"] = estimate(
                lambda a, b: arrived(a) / arrived(b), *pair, unit="times"
            )
    return result


def arrived(errors: np.ndarray) -> np.ndarray:
    """``[B]``: iterations until the mean error ``[B, rounds, D]`` is half as long as at first."""
    length = np.sum(errors**2, axis=2)
    return 1 + (length > length[:, :1] / 4).cumprod(axis=1).sum(axis=1)


def optimum(studies: Studies) -> dict[str, Estimate]:
    """The best of all steps over the predicted one."""
    data = net.late(studies["a"])
    each = [
        samples(data, {"scheme": RANDOM, "step_size": step}, net.CENTROID)
        for step in data["step_size"].values
    ]
    steps = data["step_size"].values

    def best(*means: np.ndarray) -> np.ndarray:
        return steps[np.argmin(np.stack(means, axis=-1), axis=-1)] / studies["theory"].attrs["best"]

    return {"measured over predicted": estimate(best, *each, unit="times")}


CASES = {
    f"{scheme}, step {step:g}": {"scheme": scheme, "step_size": step}
    for scheme in SCHEMES
    for step in STEPS.value[1:]  # at the least one a run is a few independent numbers
}

FIGURE = Figure(
    name="rizk-3.4",
    title="Noise between servers at several step sizes",
    source="Rizk 2023, figure 3.4",
    caption="Thin lines are the exact steady states of theory. (d) has what the noise alone does "
    "to the centroid: the squared distance from the run of the same seed without noise. It falls "
    "as 1/μ under random noise and grows as μ under homomorphic noise, for which Corollary 3.1 has "
    "O(1) as a bound and section 3.3.3 that smaller steps mitigate it.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "homomorphic-grows",
            "under homomorphic perturbations the final MSD increases with the step size",
            "section 3.5.1 on figure 3.4",
            net.gaps("a", net.CENTROID, net.rising("step_size", STEPS.value, scheme=HOMOMORPHIC)),
            (0, INFINITE),
        ),
        Claim(
            "random-worse-at-both-ends",
            "under random perturbations performance decreases for small and for large steps",
            "section 3.5.1 on figure 3.4",
            extremes,
            (0, INFINITE),
            "the least and the largest of the source's steps above the best of them",
            note=lambda studies: (
                "To leading order the noise of gradients and this one balance at a step of "
                f"{studies['theory'].attrs['best']:.2g}: on these data, whose gradients are quiet, "
                "the largest of the source's steps is not beyond it by enough."
            ),
        ),
        Claim(
            "slower-for-smaller-steps",
            "for both schemes the rate of convergence slows down with the step size",
            "section 3.5.1",
            arrival,
            (1.01, INFINITE),
            "iterations until the error of the mean centroid is half as long as after the first; "
            "more of them",
            note="The mean's recursion does not depend on the noise, so both schemes have the same "
            "rates; under random noise so few runs hardly show them.",
        ),
        Claim(
            "optimal-step",
            "there is an optimal step size: the best measured one is near what theory says",
            "section 3.5.1",
            optimum,
            (1 / math.sqrt(10), math.sqrt(10)),
            "the measured best is the predicted one within half a decade; it may be the largest",
            condition="the prediction, sqrt(b/a) of a mu + b/mu, is ours",
        ),
        Claim(
            "random-order",
            "the noise in the centroid is O(1/mu) under random perturbations",
            "section 3.5.1, Theorem 3.1",
            orders(RANDOM),
            (-1.2, -0.8),
            "slope of the logarithms over small steps",
        ),
        Claim(
            "homomorphic-controlled-by-step",
            "what homomorphic perturbations leave is controlled by the step size",
            "section 3.3.3, section 3.5.1 on figure 3.3",
            orders(HOMOMORPHIC),
            (0.5, INFINITE),
            "slope of the logarithms over small steps; at least the square root",
        ),
        Claim(
            "homomorphic-order-one",
            "under homomorphic perturbations the error converges to O(1) of the variance",
            "section 3.3.3, Corollary 3.1",
            orders(HOMOMORPHIC),
            (-0.2, 0.2),
            "slope of the logarithms over small steps: none",
            note=lambda studies: (
                f"The measured slope is {orders(HOMOMORPHIC)(studies)[HOMOMORPHIC]}: O(mu), as the "
                "source's own prose has it. The corollary is an upper bound that Jensen's "
                "inequality makes loose."
            ),
        ),
        net.agreement("a", {"centroid": net.CENTROID}, CASES),
    ],
    settings=(*ch3.COMMON, ch3.VARIANCE, STEPS, MORE, SMALL, ROUNDS, FIRST, SEEDS),
)
