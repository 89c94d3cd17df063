r"""Attackers on PAO-Fed and on PGFL, and robust forms of both: future work of Gauthier 2024.

Attackers send messages other than their models. On PAO-Fed they are random clients, and the harm
is compared between sharing few and all parameters; on PGFL they are in one cluster, and the harm
to the other clusters is measured.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.attackers import OneOf
from experiments.conventions import LITTLE, SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter4 as ch4
from experiments.gauthier import chapter5 as ch5
from experiments.measures import estimate, gap, samples
from fljax import attacks, statistics
from fljax._core.random_subsets import shuffled
from fljax.algorithms import Algorithm
from fljax.link.aggregation import (
    Aggregator,
    GeometricMedian,
    Krum,
    Median,
    NormClipping,
    TrimmedMean,
)
from fljax.metrics.definitions import Metric, Snapshot
from fljax.participation.patterns import Bernoulli
from fljax.plotting.house_style import look_of

# --------------------------------------------------------------------------- settings

CLIENTS = Setting(
    "PAO-Fed: clients K, features D",
    (64, 100),
    "a fourth and half of figure 4.2's: an aggregator looks at every message whole",
)
PRESENT = Setting(
    "PAO-Fed: availability",
    0.5,
    "of all who have data: 20 messages an iteration, of which a majority is honest",
)
LATE = Setting(
    "PAO-Fed: delta, longest delay", (0.2, 5), "figure 4.2's; longer ones are one in 16,000"
)
ROUNDS = Setting(
    "iterations of PAO-Fed, of PGFL",
    (400, 100),
    "every portion is shared 16 times; without attackers PGFL has arrived (figure 5.1)",
)
SHARES = Setting("shares of attackers", (0.0, 0.1, 0.2, 0.4), "of PAO-Fed's clients, of a cluster")
FLIP = Setting(
    "scale of the sign flip",
    (4.0, 1.0),
    "of PAO-Fed's change, of PGFL's whole model: a fifth of attackers cancels the honest change; "
    "the opposite model",
)
LOUD = Setting("deviation of the large noise", 1.0, "several times that of a model's coordinates")
RECKONED = Setting(
    "attackers reckoned with",
    0.3,
    "of the 20 messages of an iteration: trimmed at each end, and Krum's 6; in PGFL 1 of the 5 of "
    "a cell. Receivers do not know the true share",
)
RADIUS = Setting(
    "radius of norm clipping",
    0.2,
    "about the length of PAO-Fed's honest changes, step 0.4 times errors of a half",
)
SEEDS = Setting("seeds", 4, "at most: what attackers do is decibels, and gaps are paired by seed")
LARGEST = Setting(
    "largest error",
    30,
    "dB; a run that ends worse, or beyond what a number can hold, counts as this, or one seed's "
    "explosion would be the mean of all",
)

LOST = 10 ** (LARGEST.value / 10)

NONE = "none"
FLIPPED = "sign flip"
NOISY = "large noise"
LITTLE_IS = "a little is enough"
ATTACKS = (FLIPPED, NOISY, LITTLE_IS)
PORTION = f"{100 * ch4.PORTION.value // CLIENTS.value[1]} %"
C2 = f"C2, {PORTION}"
U2 = f"U2, {PORTION}"
WHOLE = "whole models"
MEAN = "mean"
MEDIAN = "median"
TRIMMED = "trimmed mean"
GEOMETRIC = "geometric median"
KRUM = "multi-Krum"
CLIPPED = "norm clipping"
ROBUST = (MEDIAN, TRIMMED, GEOMETRIC, KRUM, CLIPPED)
#: For PGFL, whose messages are whole models without a bounded norm.
ROBUST_CELLS = (MEDIAN, TRIMMED, GEOMETRIC)
OWN = "their own cluster"
OTHERS = "the other clusters"


def aggregators(messages: int) -> dict[str, Aggregator]:
    """Aggregators for about ``messages`` messages at a receiver."""
    count = int(RECKONED.value * messages)
    return {
        MEDIAN: Median(),
        TRIMMED: TrimmedMean(RECKONED.value),
        GEOMETRIC: GeometricMedian(),
        KRUM: Krum(count, messages - count - 2),
        CLIPPED: NormClipping(RADIUS.value),
    }


def points(names: Sequence[str], shares: Sequence[float]) -> dict[str, tuple[int, float]]:
    """Every attack and share once: its number, and the share; without attackers all are one."""
    result = {NONE: (0, 0.0)}
    for name, share in itertools.product(names, filter(None, shares)):
        result[f"{name} {share:g}"] = ATTACKS.index(name), share
    return result


def attack_of(number: Array, attackers: Bool[Array, " clients"], flip: float) -> OneOf:
    """The attack of this number, compiled once for all."""
    choices = (
        attacks.SignFlip(attackers, flip),
        attacks.LargeNoise(attackers, LOUD.value),
        attacks.ALittleIsEnough(attackers),
    )
    return OneOf(attackers, number, choices)


def chosen(key: Array, among: Bool[Array, " clients"], share: Array) -> Bool[Array, " clients"]:
    """A random share of some clients; the choice grows with the share."""
    order = shuffled(key, among[None])[0]
    share = jnp.asarray(share)
    count = jnp.round(share * jnp.sum(among, dtype=share.dtype)).astype(jnp.int32)
    first = jnp.arange(len(among), dtype=jnp.int32) < count
    return jnp.zeros(len(among), bool).at[order].set(first)


# --------------------------------------------------------------------------- PAO-Fed


def pao_scenario(
    key: Array, algorithm: Algorithm, number: Array, share: Array, aggregator: Aggregator | None
) -> fl.Simulation:
    clients, features = CLIENTS.value
    k_data, k_who = jax.random.split(key)
    attackers = chosen(k_who, jnp.ones(clients, bool), share)
    return fl.Simulation(
        problem=ch4.stream(k_data, ch4.KERNEL, clients, features),
        algorithm=algorithm,
        participation=Bernoulli(PRESENT.value),
        delays=fl.link.Geometric(*LATE.value),
        attack=attack_of(number, attackers, FLIP.value[0]),
        aggregation=aggregator,
        metrics=[ch4.METRIC],
    )


def swept(
    name: str,
    effort: Effort,
    scenario: Any,
    methods: Mapping[str, Any],
    attacked: Mapping[str, tuple[int, float]],
    rounds: int,
    aggregated: Mapping[str, Aggregator | None],
    most_seeds: int = SEEDS.value,
) -> xr.Dataset:
    """The last tenth of the rounds of every method under every attack; capped."""
    numbers, shares = (np.array(column) for column in zip(*attacked.values(), strict=True))

    def build(key: Array, algorithm: Any, point: Array, aggregator: Any) -> fl.Simulation:
        which = jnp.asarray(point).astype(jnp.int32)
        number = jnp.asarray(numbers)[which]
        share = jnp.asarray(shares)[which]
        return scenario(key, algorithm, number, share, aggregator)

    build.__qualname__ = f"poisoned({name!r}, {attacked!r})"
    results = effort.sweep(
        name,
        build,
        rounds=rounds,
        seeds=min(effort.seeds, most_seeds),
        grid={
            "algorithm": dict(methods),
            "point": {label: float(at) for at, label in enumerate(attacked)},
            "aggregator": dict(aggregated),
        },
        record_every=rounds // 50,
    )
    tail = results.isel(round=slice(-5, None)).mean("round", keep_attrs=True)
    for metric in (m for m in tail.data_vars if tail[m].attrs.get("decibel")):
        tail[metric] = tail[metric].fillna(LOST).clip(max=LOST, keep_attrs=True)
    return tail.assign(diverged=xr.zeros_like(results["diverged"]))


# --------------------------------------------------------------------------- PGFL


def _deviation(now: Snapshot, attacked: bool) -> Array:
    """The NMSD of honest clients in the attacked cluster or in the others, capped at ``LOST``."""
    tasks = now.problem.tasks
    truth = jnp.asarray(tasks.truth)[tasks.cluster]
    squared_error = jnp.sum((now.model - truth) ** 2, axis=1) / jnp.sum(truth**2, axis=1)
    of = now.honest & ((jnp.asarray(tasks.cluster) == 0) == attacked)
    squared_error = jnp.where(of & ~(squared_error < LOST), LOST, squared_error)
    return jnp.sum(jnp.where(of, squared_error, 0)) / jnp.sum(of, dtype=squared_error.dtype)


WITHIN = Metric(
    "own", lambda now: _deviation(now, True), "NMSD", decibel=True, needs={"tasks.truth"}
)
BEYOND = Metric(
    "others", lambda now: _deviation(now, False), "NMSD", decibel=True, needs={"tasks.truth"}
)


def pgfl_scenario(
    key: Array, algorithm: Algorithm, number: Array, share: Array, aggregator: Aggregator | None
) -> fl.Simulation:
    k_run, k_who = jax.random.split(key)
    clean = ch5.scenario(k_run, algorithm, private=False, metrics=[WITHIN, BEYOND])
    attackers = chosen(k_who, jnp.asarray(clean.fixed_problem.tasks.cluster) == 0, share)
    attack = attack_of(number, attackers, FLIP.value[1])
    return replace(clean, attack=attack, aggregation=aggregator)


def study(effort: Effort) -> Studies:
    shares = (0.0, 0.1, 0.4) if effort.quick else SHARES.value
    portions = {C2: ch4.pao("C2"), U2: ch4.pao("U2")}
    full = {WHOLE: ch4.pao("C2", CLIENTS.value[1])}
    mixings = {ch5.PGFL_0: ch5.pgfl(0.0, False), ch5.PGFL_MIXED: ch5.pgfl(ch5.MIXED.value, False)}
    mixed = {ch5.PGFL_MIXED: mixings[ch5.PGFL_MIXED]}
    every = points(ATTACKS, shares)
    most = points(ATTACKS, (0.0, shares[-1]))
    ends = points(ATTACKS, (0.0, shares[1], shares[-1]))
    plain: dict[str, Aggregator | None] = {MEAN: None}
    robust = {name: aggregators(20)[name] for name in ROBUST}
    cells = {name: aggregators(5)[name] for name in ROBUST_CELLS}
    pao, pgfl = ROUNDS.value
    return {
        "portions": swept("portions", effort, pao_scenario, portions | full, every, pao, plain),
        "robust": swept("robust", effort, pao_scenario, portions, most, pao, robust),
        "clusters": swept("clusters", effort, pgfl_scenario, mixings, every, pgfl, plain),
        "cells": swept("cells", effort, pgfl_scenario, mixed, ends, pgfl, cells),
    }


# --------------------------------------------------------------------------- measures


def errors(
    data: xr.Dataset, method: str, point: str, aggregator: str = MEAN, metric: str = ch4.METRIC
) -> np.ndarray:
    """``[S]``."""
    return samples(data, {"algorithm": method, "point": point, "aggregator": aggregator}, metric)


def shares_of(data: xr.Dataset) -> list[str]:
    """The shares of attackers that were run, ascending, as in the names of points."""
    return [*dict.fromkeys(str(p).split()[-1] for p in data["point"].values if p != NONE)]


def harm(
    panel: str,
    methods: Sequence[str],
    aggregator: str = MEAN,
    metric: str = ch4.METRIC,
    share: float | None = None,
) -> Measure:
    """How far the error with a share of attackers, by default the largest, is above that without,
    for each attack.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[panel]
        share_of = shares_of(data)[-1] if share is None else f"{share:g}"
        return {
            f"{method}, {attack}": gap(
                errors(data, method, f"{attack} {share_of}", aggregator, metric),
                errors(data, method, NONE, aggregator, metric),
            )
            for method in methods
            for attack in ATTACKS
        }

    return measure


def less_harm(over: str, reference: str) -> Measure:
    """By how much more harm attackers do to one method than to another, dB, for each attack: at the
    largest share, and for sign flips at the second largest, because the largest drives every
    method to the capped error.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["portions"]
        *_, fewer, most = shares_of(data)
        under = {attack: fewer if attack == FLIPPED else most for attack in ATTACKS}
        return {
            f"{attack} {share}": estimate(
                lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d),
                *(
                    errors(data, method, point)
                    for method in (over, reference)
                    for point in (f"{attack} {share}", NONE)
                ),
            )
            for attack, share in under.items()
        }

    return measure


def contained(share: float) -> Measure:
    """The harm to the other clusters with aggregators in each cell."""
    return lambda studies: {
        f"{name}, {case}": one
        for name in ROBUST_CELLS
        for case, one in harm("cells", (ch5.PGFL_MIXED,), name, BEYOND.name, share)(studies).items()
    }


def outnumbered(studies: Studies, share: float, draws: int = 1000) -> str:
    """In how many runs some cell has no honest majority, and how many are lost, as a note."""
    clients = ch5.SERVERS.value * ch5.PER_SERVER.value
    per_server = ch5.PER_SERVER.value
    members = clients // ch5.CLUSTERS.value
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(clients), (draws, 1)), axis=1)
    home = orders[:, :members, None] // per_server == np.arange(ch5.SERVERS.value)
    size = home.sum(axis=1)
    lying = home[:, : round(share * members)].sum(axis=1)
    often = 100 * np.mean(np.any((lying > 0) & (2 * lying >= size), axis=1))
    point = f"{FLIPPED} {share:g}"
    values = errors(studies["cells"], ch5.PGFL_MIXED, point, MEDIAN, BEYOND.name)
    return (
        f"Cells are small: in {often:.0f} % of all possible runs half or more of some cell are "
        "attackers, and what one cell takes from them, servers and clusters mix into all. Of "
        f"sign flips against the median {np.sum(values >= 0.9 * LOST)} of {len(values)} runs are "
        "lost."
    )


def price(methods: Sequence[str], names: Sequence[str]) -> Measure:
    """How far an aggregator is above the mean without attackers."""
    return lambda studies: {
        f"{method}, {name}": gap(
            errors(studies["robust"], method, NONE, name), errors(studies["portions"], method, NONE)
        )
        for method in methods
        for name in names
    }


def price_of_cells(studies: Studies) -> dict[str, Estimate]:
    """The same of PGFL, over all honest clients' clusters that are never attacked."""
    return {
        name: gap(
            errors(studies["cells"], ch5.PGFL_MIXED, NONE, name, BEYOND.name),
            errors(studies["clusters"], ch5.PGFL_MIXED, NONE, MEAN, BEYOND.name),
        )
        for name in ROBUST_CELLS
    }


# --------------------------------------------------------------------------- the picture


def attacked_axis(data: xr.Dataset, attack: str) -> tuple[list[float], list[str]]:
    """The shares of attackers that were run, and the names of their points."""
    names = [NONE] + [str(p) for p in data["point"].values if str(p).startswith(attack)]
    return [0.0 if name == NONE else float(name.split()[-1]) for name in names], names


def curve(ax: Axes, data: xr.Dataset, attack: str, label: str, index: int, **which: str) -> None:
    """An error along the share of attackers, with its band; of two shares, points with bars."""
    shares, names = attacked_axis(data, attack)
    rows = [estimate(statistics.decibels, errors(data, point=name, **which)) for name in names]
    look = look_of(index)
    values = np.array([e.value for e in rows])
    low = np.array([e.low for e in rows])
    high = np.array([e.high for e in rows])
    if len(rows) < 3:
        beside = np.asarray(shares) + 0.008 * (index - 3)  # so that bars do not hide each other
        bars = np.abs(np.stack([values - low, high - values]))
        points_only: dict[str, Any] = look | {"linestyle": "none"}
        ax.errorbar(beside, values, bars, label=label, capsize=2, **points_only)
        return
    ax.plot(shares, values, label=label, **look)
    ax.fill_between(shares, low, high, color=look["color"], alpha=0.2, linewidth=0)


#: The curves of each row of panels: a label, the study, and a selection of its runs.
def rows_of_panels() -> list[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    pao: list[tuple[str, str, dict[str, str]]] = [
        (name, "portions", {"method": name}) for name in (WHOLE, C2, U2)
    ]
    coordinated, uncoordinated = (
        [(MEAN, "portions", {"method": method})]
        + [(name, "robust", {"method": method, "aggregator": name}) for name in ROBUST]
        for method in (C2, U2)
    )
    clusters = [
        (f"{method}: {where}", "clusters", {"method": method, "metric": metric})
        for metric, where in ((WITHIN.name, OWN), (BEYOND.name, OTHERS))
        for method in (ch5.PGFL_0, ch5.PGFL_MIXED)
    ]
    clusters += [
        (
            f"{name}: {OWN}",
            "cells",
            {"method": ch5.PGFL_MIXED, "aggregator": name, "metric": WITHIN.name},
        )
        for name in ROBUST_CELLS
    ]
    return [
        ("PAO-Fed", pao),
        ("PAO-Fed-C2", coordinated),
        ("PAO-Fed-U2", uncoordinated),
        ("PGFL", clusters),
    ]


def plot(studies: Studies) -> Picture:
    rows = rows_of_panels()
    titles = [f"{title}: {attack}" for title, _ in rows for attack in ATTACKS]
    drawing, axes = picture.panels(titles, height=1.9)
    for (title, curves), places in zip(rows, np.reshape(np.array(axes), (-1, 3)), strict=True):
        for attack, ax in zip(ATTACKS, places, strict=True):
            for index, (label, panel, which) in enumerate(curves):
                named = label if attack == NOISY else "_nolegend_"  # a legend for each row
                curve(ax, studies[panel], attack, named, index, **which)
            ax.set_xlabel("share of attackers" + " in a cluster" * (title == "PGFL"))
            ax.set_ylabel("NMSD (dB)" if title == "PGFL" else "test error (dB)")
    seeds = studies["portions"].sizes["seed"]
    return picture.finish(
        drawing,
        "Attackers on PAO-Fed and PGFL, and robust aggregators: "
        f"mean and 95 % band of {seeds} seeds",
        legend_width=0.8,
    )


# --------------------------------------------------------------------------- the figure

ASKED = "Gauthier et al. 2023 (zCDP-NFL), section 6 (future work), and chapter 7"
HARMED = (
    "how far the error rises, of the first less of the second; with 40 % of attackers, of sign "
    "flips 20 %"
)
MOST = "with the most attackers above without any"

FIGURE = Figure(
    name="gauthier-7.poisoning",
    title="Model poisoning of PAO-Fed and PGFL, and their robust forms",
    source="Gauthier et al. 2023 (zCDP-NFL), section 6 (future work names its robustness to model "
    "poisoning); the study of PAO-Fed and PGFL is ours",
    caption="Errors after attackers have replaced their messages in every iteration: of PAO-Fed "
    "that of the server's model, of PGFL that of honest clients. A message of PAO-Fed is completed "
    "by the server's own model before an aggregator sees it, and all that arrive in an iteration "
    "are combined at once. In PGFL attackers are of one of three clusters; aggregators are of the "
    "messages of a server's clients of a cluster. Robust forms of PAO-Fed were run with no "
    "attackers and with 40 %, of PGFL with 10 % too. A run that overflows has the largest error "
    "everywhere, as one of PGFL without mixing under sign flips.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "portions-bound-the-harm",
            "attackers do less harm where portions are shared than where whole models are",
            ASKED,
            lambda studies: {
                f"{method}: {name}": one
                for method in (C2, U2)
                for name, one in less_harm(WHOLE, method)(studies).items()
            },
            (0, INFINITE),
            HARMED,
            ours=True,
        ),
        Claim(
            "uncoordinated-is-harder-to-harm",
            "uncoordinated portions are harmed less than coordinated ones",
            ASKED,
            less_harm(C2, U2),
            (0, INFINITE),
            HARMED,
            note="Lies about some parameters are few beside what others say of the same; where "
            "nobody else says anything of them an omniscient lie is not diluted.",
            ours=True,
        ),
        Claim(
            "portions-are-no-protection",
            "portions alone do not protect: attackers do significant harm to each form",
            ASKED,
            harm("portions", (C2, U2)),
            *SIGNIFICANTLY.db,
            ours=True,
            note="What is noise, or hides among the honest, is averaged over many iterations on a "
            "few parameters each; sign flips are in one direction in all of them.",
        ),
        Claim(
            "coordination-lets-aggregators-work",
            "with coordinated portions medians and trimmed means leave little harm",
            ASKED,
            lambda studies: {
                f"{name}: {case}": one
                for name in (MEDIAN, TRIMMED, GEOMETRIC)
                for case, one in harm("robust", (C2,), name)(studies).items()
            },
            *LITTLE.db,
            ours=True,
            note="40 % of all clients are more than half of those who are heard in some "
            "iterations, and more than the 30 % that a trimmed mean cuts off.",
        ),
        Claim(
            "medians-cost-little-with-coordination",
            "without attackers every aggregator costs little where portions are coordinated",
            ASKED,
            price((C2,), ROBUST),
            *LITTLE.db,
            ours=True,
        ),
        Claim(
            "medians-stop-learning-without-coordination",
            "medians and trimmed means stop learning where portions are not coordinated",
            ASKED,
            price((U2,), (MEDIAN, TRIMMED)),
            *SIGNIFICANTLY.db.when("without attackers, above the mean"),
            ours=True,
        ),
        Claim(
            "mixing-carries-the-harm",
            "inter-cluster learning carries the harm from one cluster to the others",
            ASKED,
            harm("clusters", (ch5.PGFL_MIXED,), metric=BEYOND.name),
            (0, INFINITE),
            f"of honest clients of the other clusters, {MOST}",
            ours=True,
        ),
        Claim(
            "no-mixing-no-harm",
            "without inter-cluster learning the other clusters are not harmed",
            ASKED,
            harm("clusters", (ch5.PGFL_0,), metric=BEYOND.name, share=SHARES.value[1]),
            (-1e-3, 1e-3),
            "of honest clients of the other clusters, with 10 % of attackers above without any: "
            "more make the attacked cluster overflow in some runs, and zero times infinity is no "
            "number",
            construction="servers combine models of one cluster alone",
        ),
        *(
            Claim(
                f"robust-cells-contain-{name}",
                "aggregators in each cell leave little harm in the other clusters",
                ASKED,
                contained(share),
                *LITTLE.db,
                condition=f"{100 * share:g} % of a cluster are attackers",
                ours=True,
                note=functools.partial(outnumbered, share=share),
            )
            for name, share in (("few", SHARES.value[1]), ("many", SHARES.value[-1]))
        ),
        Claim(
            "robust-cells-cost-little",
            "without attackers aggregators cost PGFL little",
            ASKED,
            price_of_cells,
            *LITTLE.db,
            ours=True,
        ),
    ],
    settings=(
        *ch4.COMMON,
        *ch5.COMMON,
        ch5.MIXED,
        CLIENTS,
        PRESENT,
        LATE,
        ROUNDS,
        SHARES,
        FLIP,
        LOUD,
        RECKONED,
        RADIUS,
        SEEDS,
        LARGEST,
    ),
)
