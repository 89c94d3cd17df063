"""Rizk 2023, section 5.2: the number of local steps, exactly and to first order."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import conventions as words
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.rizk import chapter5 as ch5
from experiments.rizk import network as net
from fljax import plotting, statistics
from fljax.algorithms import FedAvg
from fljax.problems.batches import Uniform
from fljax.theory import multiagent as theory

LOCAL_STEPS = Setting("local steps E", (1, 2, 4, 8, 16, 32, 64), "of all agents alike")
STEPS = Setting(
    "step sizes", (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02), "so small that orders tell"
)
STEP = Setting("step size of (a) to (c), (e), (f)", 0.02, "the largest of them")
HALF = Setting("agents drawn in (c)", 5, "half of them, without replacement")
ROUNDS = Setting("rounds of (e)", (10, 30, 100), "from the first rounds to where all are at rest")
EVALUATIONS = Setting(
    "gradient evaluations of (f)", (64, 256, 1024), "of each agent, in rounds of E each; likewise"
)
RUNS = Setting("runs", 1500, "iterations, the last half at rest; 20 seeds, points of (a) to (c)")
SEEDS = 20

ORIGINAL = "original"
NORMALIZED = "normalized"
DRAWN = "original, half drawn"
FORMS = (ORIGINAL, NORMALIZED, DRAWN)
FIRST = "first_order"
BIAS = "bias"


def scenario(
    key: Array,
    form: str,
    local_steps: int,
    unlike: Array | float,
    step_size: Array | float = STEP.value,
) -> fl.Simulation:
    """Federated averaging with local steps on single samples."""
    algorithm = FedAvg(
        step_size,
        HALF.value if form == DRAWN else None,
        batches=Uniform(1, replacement=True),
        local_steps=local_steps,
        normalized=form == NORMALIZED,
    )
    return fl.Simulation(ch5.world(unlike), algorithm, metrics=[ch5.METRIC])


def levels(simulation: fl.Simulation) -> dict[str, Array]:
    """The steady state: exact, its bias, and to first order in the step size."""
    problem = simulation.fixed_problem
    algorithm = simulation.algorithm
    assert isinstance(algorithm, FedAvg)
    state = theory.steady_state(simulation)
    scale = 1 if algorithm.normalized else cast(Any, algorithm.local_steps)
    step: Any = algorithm.step_size
    noise = theory.gradient_noise(problem, algorithm)
    first = jnp.trace(jnp.linalg.solve(theory.hessian(problem), noise))
    return {
        ch5.METRIC: state.individual,
        BIAS: jnp.sum(state.mean**2),
        FIRST: step.value * first / (2 * scale),
    }


def study(effort: Effort) -> Studies:
    steps = effort.thin(LOCAL_STEPS.value)
    unlike = list(ch5.UNLIKE.value.values())
    grid = {"form": list(FORMS), "local_steps": steps, "unlike": unlike}
    exact = ch5.predicted(scenario, grid | {"step_size": effort.thin(STEPS.value)}, levels)
    axes = {"form": [ORIGINAL], "local_steps": steps, "unlike": unlike}
    longest = max(*ROUNDS.value, *EVALUATIONS.value)
    curves = ch5.predicted(scenario, axes, ch5.on_the_way(longest)).squeeze("form", drop=True)
    level = curves[ch5.METRIC]
    spent = [
        level.sel(local_steps=n, round=[most // n for most in EVALUATIONS.value]).values
        for n in steps
    ]
    few = [n for n in effort.thin((1, 8, 64), 2) if n in steps]
    runs = effort.sweep(
        "runs",
        scenario,
        rounds=RUNS.value,
        seeds=min(effort.seeds, SEEDS),
        grid={"form": list(FORMS), "local_steps": fl.static(few), "unlike": unlike},
        record_every=10,
    )
    studies = {
        "exact": exact,
        "rounds": level.sel(round=list(ROUNDS.value)).rename(round="budget").to_dataset(),
        "gradients": xr.Dataset(
            {ch5.METRIC: (["local_steps", "unlike", "budget"], np.stack(spent))},
            {"local_steps": steps, "unlike": unlike, "budget": list(EVALUATIONS.value)},
        ),
        "runs": net.late(runs),
    }
    return {name: ch5.labeled(data) for name, data in studies.items()}


# --------------------------------------------------------------------------- the claims


def steps_do(form: str) -> Measure:
    """How far many local steps are above one at the smallest step size, dB, by theory."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["exact"][ch5.METRIC].sel(form=form).isel(step_size=0)
        many = max(data["local_steps"].values)
        gap = statistics.decibels(data.sel(local_steps=many) / data.sel(local_steps=1))
        return {
            f"{form}, {unlike}, {many} above 1": Estimate.exact(float(gap.sel(unlike=unlike)))
            for unlike in data["unlike"].values
        }

    return measure


def order(studies: Studies) -> dict[str, Estimate]:
    """The power of the step size with which the exact deviation leaves the first order."""
    data = studies["exact"].sel(form=ORIGINAL).isel(step_size=slice(0, 3), local_steps=-1)
    rest = abs(data[ch5.METRIC] - data[FIRST]).transpose("unlike", "step_size")
    at = np.log(data["step_size"].values)
    slopes = np.polyfit(at, np.log(rest.values).T, 1)[0]
    return {
        f"{name}, {int(data['local_steps'])} local steps": Estimate.exact(float(exponent), "")
        for name, exponent in zip(data["unlike"].values, slopes, strict=True)
    }


def best(budget: str) -> Measure:
    """The number of local steps with the least deviation, by budget."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        level = studies[budget][ch5.METRIC]
        return {
            f"{most} {budget}, {unlike}": Estimate.exact(
                float(level.sel(unlike=unlike, budget=most).idxmin()), "steps"
            )
            for most in level["budget"].values
            for unlike in level["unlike"].values
        }

    return measure


def inside(budget: str) -> Measure:
    """In how many cases neither one local step nor the most that were tried are best."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        numbers = [e.value for e in best(budget)(studies).values()]
        count = sum(1 < number < LOCAL_STEPS.value[-1] for number in numbers)
        return {f"of {len(numbers)} cases": Estimate.exact(float(count), "cases")}

    return measure


COULD = (
    "The source says that there could be one, which one case shows; it was asked of every case, at "
    "every budget."
)


def numbers_of(budget: str) -> Callable[[Studies], str]:
    """A note: the best numbers."""

    def note(studies: Studies) -> str:
        cases = best(budget)(studies).items()
        return "; ".join(f"{case}: {estimate}" for case, estimate in cases) + "."

    return note


def falls_late(studies: Studies) -> str:
    """Where one step is best."""
    cases = [case for case, e in best("gradients")(studies).items() if e.value < 2]
    return (
        f"One step is best for {', '.join(cases) or 'none'}: as long as models are on their way, "
        "steps toward own minimizers are worth less than steps from a common model."
    )


def shares(studies: Studies) -> str:
    """The share of bias in the deviation at the largest step."""
    data = studies["exact"].sel(form=ORIGINAL, unlike="unlike").isel(step_size=-1)
    share = 100 * data[BIAS] / data[ch5.METRIC]
    return "; ".join(
        f"E = {count}: {float(share.sel(local_steps=count)):.3g} %"
        for count in data["local_steps"].values
    )


# --------------------------------------------------------------------------- the picture


def _lines(ax: Axes, data: xr.DataArray, axis: str, text: str = "", **given: Any) -> None:
    """Curves with a color for each kind of dissimilarity."""
    for index, name in enumerate(data["unlike"].values):
        look = {key: plotting.LOOKS[index][key] for key in ("color", "linestyle")} | given
        level = statistics.decibels(data.sel(unlike=name).values)
        ax.plot(data[axis], level, label=f"{name}{text}", **look)


def plot(studies: Studies) -> Picture:
    drawing, axes = picture.panels(
        [*FORMS, "beyond first order", "at equal rounds", "at equal gradients"]
    )
    exact = studies["exact"].isel(step_size=-1)
    for ax, form in zip(axes, FORMS, strict=False):
        data = exact.sel(form=form)
        _lines(ax, data[ch5.METRIC], "local_steps")
        for index, name in enumerate(data["unlike"].values):
            first = statistics.decibels(data[FIRST].sel(unlike=name).values)
            text = "_" if index else "first order"
            picture.predicted_curve(ax, data["local_steps"].values, first, text)
            mean = studies["runs"][ch5.METRIC].sel(form=form, unlike=name).mean("seed")
            look = {key: plotting.LOOKS[index][key] for key in ("color", "marker")}
            at = studies["runs"]["local_steps"]
            ax.plot(at, statistics.decibels(mean.values), linestyle="none", **look)
    rest = studies["exact"].sel(form=ORIGINAL).isel(local_steps=-1)
    _lines(axes[3], abs(rest[ch5.METRIC] - rest[FIRST]), "step_size")
    axes[3].set(xscale="log", xlabel="step size μ", ylabel="distance of MSD [dB]")
    for ax, budget in zip(axes[4:], ("rounds", "gradients"), strict=True):
        level = studies[budget][ch5.METRIC]
        for most, shape in zip(level["budget"].values, (":", "-.", "-"), strict=True):
            _lines(ax, level.sel(budget=most), "local_steps", f", {most}", linestyle=shape)
    for ax in [*axes[:3], *axes[4:]]:
        ax.set(xlabel="local steps E", ylabel="MSD [dB]")
        ax.set_xscale("log", base=2)
    runs = studies["runs"].sizes["seed"]
    heading = f"μ = {STEP.value:g}; lines: exact moments; points: means of {runs} runs"
    return picture.finish(drawing, heading)


NOT_NORMALIZED = (
    "A normalized round is a step along the mean of E gradients, whose noise is an E-th: (2.23) to "
    "(2.25) have 1/(E_k B_k) in them, the expression that does not hold E is the original's."
)


FIGURE = Figure(
    name="rizk-5.2",
    title="The best number of local steps",
    source="Rizk 2023, section 5.2, its third question",
    caption="Federated averaging of E local steps on single samples. Lines are exact moments of "
    "the data, thin ones the first order in the step size, points are runs. (a) the original, (b) "
    "with steps of 1/E of the length, (c) the original of whose agents half are drawn. (d): the "
    "distance of the exact deviation from the first order, of (a) with most local steps. (e), (f): "
    "on the way of (a), at equal rounds and at equal numbers of gradients. All curves ours.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "not-in-the-expression",
            "the number of local steps does not affect the MSD expression",
            "section 5.2",
            steps_do(ORIGINAL),
            *words.SAME.db.when("at the smallest step size, exactly"),
            condition="the original, not normalized, all agents taking part",
        ),
        Claim(
            "not-in-the-expression-normalized",
            "the number of local steps does not affect the MSD expression",
            "section 5.2",
            steps_do(NORMALIZED),
            *words.SAME.db.when("at the smallest step size, exactly"),
            condition="normalized, as the source's own algorithms are, (1.30)",
            note=NOT_NORMALIZED,
        ),
        Claim(
            "not-in-the-expression-drawn",
            "the number of local steps does not affect the MSD expression",
            "section 5.2",
            steps_do(DRAWN),
            *words.SAME.db.when("at the smallest step size, exactly"),
            condition="the original, half of the agents drawn",
            note="A drawn set leans to its own minimizers, by as much as a round is long, and more "
            "steps do not average that out: E is in the first order.",
        ),
        Claim(
            "in-higher-order-terms",
            "its effect appears in higher-order terms of the step size",
            "section 5.2",
            order,
            *words.at_most_order(2),
            condition="the original, not normalized, all agents taking part",
        ),
        Claim(
            "optimal-number-at-equal-rounds",
            "there could be an optimal number of local steps",
            "section 5.2",
            inside("rounds"),
            (0.5, INFINITE),
            "some case in which neither one nor the most that were tried is best",
            condition="at equal rounds of the original",
            changed=COULD,
            note=lambda studies: f"Of the steady state of unlike agents bias is {shares(studies)}.",
        ),
        Claim(
            "optimal-number-at-equal-gradients",
            "there could be an optimal number of local steps",
            "section 5.2",
            inside("gradients"),
            (0.5, INFINITE),
            "some case in which neither one nor the most that were tried is best",
            condition="at equal gradient evaluations of the original",
            changed=COULD,
            note=falls_late,
        ),
    ],
    settings=(
        *ch5.COMMON,
        *(LOCAL_STEPS, STEPS, STEP, HALF, ROUNDS, EVALUATIONS, RUNS),
    ),
    double=True,
)
