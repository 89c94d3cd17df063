"""Rizk 2023, figure 3.5: noise between servers in a classification (section 3.5.2)."""

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import CLOSE, LITTLE, SIGNIFICANTLY
from experiments.figure import Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.measures import estimate, samples
from experiments.rizk import clicks
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, NONE, RANDOM
from fljax._core.module import replace
from fljax.algorithms import GraphFedAvg
from fljax.link import Noise
from fljax.problems.batches import Uniform

SERVERS = Setting("servers P", 5, "section 3.5.2 on figure 3.5", given=True)
CLIENTS = Setting("agents a server K", 10, "section 3.5.2 on figure 3.5", given=True)
STEP = Setting("step size mu", 0.5, "section 3.5.2 on figure 3.5", given=True)
RHO = Setting("regularizer rho", 0.03, "section 3.5.2 on figure 3.5", given=True)
VARIANCE = Setting("variance of the noise", 0.6, "section 3.5.2 on figure 3.5", given=True)
LEVELS = Setting(
    "(b) variances of the noise",
    (0.002, 0.006, 0.02, 0.06, 0.2, 0.6),
    "“multiple levels of privacy”, which are not given; two a decade",
)
CHOSEN = Setting("agents a round and server L", 5, "not given; half")
EPOCHS = Setting("local steps E_k", (1, 5), "not given; uniform, drawn once")
BATCH = Setting("samples a step", 10, "not given; the most of the regression")
DEGREE = Setting("mean degree of the servers' graph", 2.4, "not given; six links, connected")

ALL = SERVERS.value * CLIENTS.value
STEPS_OF = tuple(np.random.default_rng(0).integers(*EPOCHS.value, size=ALL, endpoint=True).tolist())
WORLD = clicks.world(ALL, RHO.value)


def scenario(key: Array, scheme: Noise, variance: Array) -> fl.Simulation:
    """One run (section 3.5.2)."""
    graph = fl.graphs.random_connected(fl.random_key(0), SERVERS.value, DEGREE.value)
    return fl.Simulation(
        problem=WORLD(),
        algorithm=GraphFedAvg(STEP.value, STEPS_OF, CHOSEN.value, Uniform(BATCH.value, True)),
        network=fl.federation.balanced(CLIENTS.value, graph),
        noise=replace(scheme, variance=variance),
        metrics=clicks.ERROR,
    )


def study(effort: Effort) -> Studies:
    results = net.study(
        "study",
        effort,
        scenario,
        LEVELS.value,
        seeds=clicks.SEEDS.value,
        rounds=clicks.ROUNDS.value,
        record_every=clicks.EVERY,
    )
    return {
        "a": results.sel(variance=VARIANCE.value, drop=True),
        "levels": net.late(results).assign_attrs(constant=clicks.share_of_the_rarer(WORLD())),
    }


def plot(studies: Studies) -> Picture:
    titles = [f"synthetic click log, σ² = {VARIANCE.value:g}", "last half, by the noise"]
    drawing, (left, right) = picture.panels(titles, columns=2, height=2.3)
    net.draw_curves(left, studies["a"], clicks.ERROR.name)
    levels = studies["levels"]
    net.draw_levels(right, levels, clicks.ERROR.name, "variance")
    right.set_xlabel("variance of the noise σ²")
    picture.theory(right, levels.attrs["constant"], "better constant answer", " %")
    right.set_ylim(left.get_ylim())
    return picture.finish(drawing, f"GFL, μ = {STEP.value:g}")


def errors(data: xr.Dataset, **where: float) -> np.ndarray:
    """``[S]``: under random noise."""
    return samples(data, {"scheme": RANDOM} | where, clicks.ERROR.name)


def learned(studies: Studies) -> dict[str, Estimate]:
    """How much less often than the better constant answer it errs, at each variance."""
    data = studies["levels"]
    return {
        f"variance {v:g}": estimate(
            lambda a: data.attrs["constant"] - a, errors(data, variance=v), unit="points"
        )
        for v in data["variance"].values
    }


def at_the_source_s(studies: Studies) -> dict[str, Estimate]:
    """The same at the variance of the source."""
    name = f"variance {VARIANCE.value:g}"
    return {name: learned(studies)[name]}


def settled(studies: Studies) -> dict[str, Estimate]:
    """How much more often it errs in the last quarter than in the one before."""
    rounds = studies["a"]["round"]
    last = rounds > 0.75 * clicks.ROUNDS.value
    before = (rounds > 0.5 * clicks.ROUNDS.value) & ~last
    pair = (errors(studies["a"].sel(round=window)).mean(axis=1) for window in (last, before))
    return {RANDOM: estimate(lambda a, b: a - b, *pair, unit="points")}


def wrong(studies: Studies) -> str:
    """How wrong it is, by means and by medians."""
    result = errors(studies["levels"], variance=VARIANCE.value)
    low, middle, high = np.percentile(result, [25, 50, 75])
    return (
        f"It errs on {result.mean():.1f} % of the rows (median of the runs {middle:.1f}, quartiles "
        f"{low:.1f} and {high:.1f}), the better constant answer on "
        f"{studies['levels'].attrs['constant']:.1f} %: it has learned next to nothing. Levels "
        "of noise are in units of features and weights, which the surrogate does not share."
    )


FIGURE = Figure(
    name="rizk-3.5",
    title="Noise between servers in a classification",
    source="Rizk 2023, figure 3.5",
    caption="A synthetic click log in the place of Avazu's, which may not be passed on: the sizes, "
    "the step, the regularizer and the noise are the source's, the data are not, and no level is "
    "comparable. Each agent's features have noise of its own; the 256 test rows are clean.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "homomorphic-does-not-hinder",
            "homomorphic perturbations do not hinder the performance",
            "section 3.5.2 on figure 3.5",
            clicks.differences(net.pairs((HOMOMORPHIC, NONE))),
            *LITTLE.points,
            condition=clicks.SURROGATE,
        ),
        Claim(
            "random-reduces-utility",
            "random perturbations significantly reduce the utility of the model",
            "section 3.5.2 on figure 3.5",
            clicks.differences(net.pairs((RANDOM, NONE))),
            *SIGNIFICANTLY.points,
            condition=clicks.SURROGATE,
        ),
        Claim(
            "random-still-converges",
            "at this variance the algorithm with random perturbations still converges",
            "section 3.5.2 on figure 3.5",
            at_the_source_s,
            *SIGNIFICANTLY.points.when("fewer errors in the last half than the better constant"),
            condition=clicks.SURROGATE,
            note=wrong,
            changed="By whether it has learned anything of use; before anything better than a coin "
            "passed, which is why it held.",
        ),
        Claim(
            "random-settles",
            "at this variance the algorithm with random perturbations converges to some error",
            "section 3.5.2 on figure 3.5, to the letter",
            settled,
            *CLOSE.points.when("the last quarter of the iterations and the one before"),
            condition=clicks.SURROGATE,
            note="Its error wanders over the iterations, by several points within a run.",
            changed="New: the other meaning of the sentence.",
        ),
        Claim(
            "random-converges-at-less-noise",
            "with random perturbations it converges at every level of the noise",
            "section 3.5.2 on figure 3.5, “multiple levels of privacy”",
            learned,
            *SIGNIFICANTLY.points.when("fewer errors in the last half than the better constant"),
            ours=True,
            note=net.parts_that_hold(learned, SIGNIFICANTLY.points.accept, ""),
            changed="New: from which level on it does not.",
        ),
    ],
    settings=(
        *clicks.COMMON,
        *(SERVERS, CLIENTS, CHOSEN, STEP, RHO, VARIANCE, LEVELS, EPOCHS, BATCH, DEGREE),
    ),
)
