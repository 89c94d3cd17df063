"""Attackers on zCDP-NFL and zCDP-grad-NFL: robustness to model poisoning, future work in its paper.

Attackers are random clients of the network of chapter 3 and send false messages.
zCDP-NFL adds up messages, so that no aggregator can stand in for its sums; zCDP-grad-NFL averages.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.gauthier import chapter3 as ch3
from experiments.gauthier import figure_7_poisoning as poisoning
from experiments.gauthier.figure_7_poisoning import ATTACKS, MEAN, NONE, TRIMMED, errors, harm
from experiments.measures import estimate
from fljax import statistics
from fljax.link.aggregation import Aggregator, TrimmedMean

OBJECTIVE = Setting("objective", "least absolute deviation", "nonsmooth, as the paper's title has")
STEP = Setting("step of zCDP-grad-NFL", 0.075, "as tuned in gauthier-3.2, under the enforced bound")
SHARES = Setting("shares of attackers", (0.0, 0.1, 0.2, 0.4), "of all clients, drawn for each seed")
FLIP = Setting("scale of the sign flip", 1.0, "the opposite model")
TRIMMING = Setting(
    "trimmed at each end", 0.3, "of the messages of a client's neighbors and its model"
)
SEEDS = Setting("seeds", 20, "at most")

OURS = ch3.OURS
GRADIENT = ch3.GRADIENT
PRIVATE = "private"
ROBUST = "robust"
METHODS = {
    OURS: ch3.Method(ch3.proposed(step=ch3.STEP_LAD.value), ch3.DECAY.value),
    GRADIENT: ch3.Method(ch3.subgradient(STEP.value), ch3.DECAY.value),
}


def scenario(
    key: Array, algorithm: ch3.Method, number: Array, share: Array, aggregator: Aggregator | None
) -> fl.Simulation:
    """Chapter 3's, with attackers; privacy is then of honest clients alone."""
    k_run, k_who = jax.random.split(key)
    clean = ch3.scenario(OBJECTIVE.value, ch3.CLIP_ABSOLUTE.value)(
        k_run, ch3.CURVE_BUDGET.value, algorithm
    )
    attackers = poisoning.chosen(k_who, jnp.ones(ch3.CLIENTS.value, bool), share)
    attack = poisoning.attack_of(number, attackers, FLIP.value)
    return replace(clean, attack=attack, aggregation=aggregator, honest_only=True)


def study(effort: Effort) -> Studies:
    shares = effort.thin(SHARES.value, 3)
    attacked = poisoning.points(ATTACKS, shares)
    runs = {
        PRIVATE: (METHODS, {MEAN: None}),
        ROBUST: ({GRADIENT: METHODS[GRADIENT]}, {TRIMMED: TrimmedMean(TRIMMING.value)}),
    }
    rounds = 50 if effort.quick else ch3.ROUNDS.value
    return {
        name: poisoning.swept(
            name, effort, scenario, methods, attacked, rounds, aggregators, SEEDS.value
        )
        for name, (methods, aggregators) in runs.items()
    }


def plot(studies: Studies) -> Picture:
    drawing, axes = picture.panels(ATTACKS, height=2.2)
    curves = [(method, PRIVATE, {"method": method}) for method in METHODS]
    robust = {"method": GRADIENT, "aggregator": TRIMMED}
    curves.append((f"{GRADIENT}, {TRIMMED}", ROBUST, robust))
    for attack, ax in zip(ATTACKS, axes, strict=True):
        for index, (label, panel, which) in enumerate(curves):
            chosen = which | {"metric": ch3.METRIC}
            poisoning.curve(ax, studies[panel], attack, label, index, **chosen)
        ax.set(xlabel="share of attackers", ylabel="normalized error [dB]")
    return picture.finish(drawing, f"{studies[PRIVATE].sizes['seed']} seeds, mean and 95 % band")


# --------------------------------------------------------------------------- the claims


def more_harm(studies: Studies) -> dict[str, Estimate]:
    """How much more the fewest attackers harm zCDP-NFL than zCDP-grad-NFL, dB, for each attack."""
    data = studies[PRIVATE]
    share = poisoning.shares_of(data)[0]

    def difference(attack: str) -> Estimate:
        values = (
            errors(data, method, point, metric=ch3.METRIC)
            for method in METHODS
            for point in (f"{attack} {share}", NONE)
        )
        return estimate(
            lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d), *values
        )

    return {f"{attack} {share}": difference(attack) for attack in ATTACKS}


def levels(studies: Studies) -> str:
    """The errors at the end, as a note."""
    data = studies[PRIVATE]

    def level(method: str, point: str) -> str:
        error = np.mean(errors(data, method, point, metric=ch3.METRIC))
        return f"{float(statistics.decibels(error)):.1f}"

    rows = (
        f"{method}, {attack}: "
        + ", ".join(level(method, p) for p in poisoning.attacked_axis(data, attack)[1])
        for method in METHODS
        for attack in ATTACKS
    )
    return f"Errors in dB by the share of attackers: {'; '.join(rows)}."


ASKED = "Gauthier et al. 2023 (zCDP-NFL), section 6 (future work: robustness to model poisoning)"

FIGURE = Figure(
    name="gauthier-7.private",
    title="Model poisoning of zCDP-NFL",
    source="Gauthier et al. 2023 (zCDP-NFL), section 6 (future work); the study is ours",
    caption="Errors of honest clients after attackers have replaced their messages in every "
    "iteration, under one privacy budget of the honest ones. zCDP-NFL adds up its neighbors' "
    "messages, in its dual variables too; zCDP-grad-NFL averages them, and can trim the average. "
    "A run that ends worse than "
    f"{poisoning.LARGEST.value} dB counts as that.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "attackers-do-harm",
            "attackers do significant harm to zCDP-NFL and to zCDP-grad-NFL",
            ASKED,
            harm(PRIVATE, (OURS, GRADIENT), metric=ch3.METRIC),
            *SIGNIFICANTLY.db.when("with the most attackers above without any"),
            ours=True,
            note=levels,
        ),
        Claim(
            "dual-variables-carry-more-harm",
            "zCDP-NFL, whose dual variables add up the messages of attackers, is harmed more",
            ASKED,
            more_harm,
            (0, INFINITE),
            "of the fewest attackers; more drive errors to the largest that is counted",
            ours=True,
            note=levels,
        ),
        Claim(
            "trimmed-means-leave-little-harm",
            "with trimmed means zCDP-grad-NFL is hardly harmed by a tenth of attackers",
            ASKED,
            harm(ROBUST, (GRADIENT,), TRIMMED, ch3.METRIC, SHARES.value[1]),
            *LITTLE.db.when("with 10 % of attackers above without any"),
            ours=True,
            note="A client has three neighbors on average: where two of them attack, trimming 30 % "
            "of four messages leaves one.",
        ),
    ],
    settings=(
        *(ch3.CLIENTS, ch3.SAMPLES, ch3.DIM, ch3.MEAN_DEGREE, ch3.ROUNDS, ch3.DELTA, OBJECTIVE),
        *(ch3.CURVE_BUDGET, ch3.PENALTY, ch3.STEP_LAD, ch3.DECAY, ch3.CLIP_ABSOLUTE, STEP, SHARES),
        *(FLIP, poisoning.LOUD, TRIMMING, SEEDS, poisoning.LARGEST),
    ),
)
