"""Gauthier 2024, figure 5.5: MNIST (section 5.4.2; the journal's figures 8-10)."""

from collections.abc import Callable
from dataclasses import replace

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import SIGNIFICANTLY
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter5_images as ch5
from fljax import plotting
from fljax.data import SINGLE_DIGITS, TRIPLETS, mnist

CLIENTS = Setting("clients per server", 15, "section 5.4.1; “identical”, section 5.4.2", given=True)
DRAWN = Setting("clients drawn a round", 3, "of each server's 15, section 5.4.1", given=True)
SINGLE = Setting(
    "data samples of single digits", (2, 4), "section 5.4.2 on figure 5.5; pairs", given=True
)
TRIPLET = Setting(
    "data samples of triplets", (6, 12), "section 5.4.2 on figure 5.5; of six images", given=True
)
TAUS = Setting(
    "tau of (c)",
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "the whole range; from 2/3 on a cluster's model counts less than the others'",
)

EVERY = ch5.EVERY.value[1]
MOST_SEEDS = Setting(
    "plotted seeds",
    60,
    "at most: runs are costly, and most intervals are far from the borders of their claims",
)

DIGITS = ch5.Setup(mnist, SINGLE_DIGITS, CLIENTS.value, SINGLE.value, DRAWN.value, EVERY)
#: The same with the labels of cluster 3 exchanged.
FLIPPED = DIGITS._replace(tasks=(*SINGLE_DIGITS[:2], SINGLE_DIGITS[2][::-1]))
THREES = ch5.Setup(mnist, TRIPLETS, CLIENTS.value, TRIPLET.value, DRAWN.value, EVERY)

MIXED = ch5.label(ch5.MEDIUM.value)
LARGE = ch5.label(ch5.LARGE.value)
PAIR = (MIXED, ch5.ALONE)
VERY_LARGE = [ch5.label(tau) for tau in TAUS.value if tau > 2 / 3]


def study(effort: Effort) -> Studies:
    effort = replace(effort, seeds=min(effort.seeds, MOST_SEEDS.value))
    every = {ch5.label(tau): tau for tau in TAUS.value}
    two = {text: every[text] for text in PAIR}
    result = {}
    rounds = ch5.length(effort)
    for panel, setup, methods, length in (
        ("a", DIGITS, two, rounds),
        ("b", THREES, every, rounds),
        ("flipped", FLIPPED, two, ch5.READ),
    ):
        tuning = ch5.tune(f"tuning-{panel}", setup, methods, effort)
        result[panel] = ch5.study(panel, setup, ch5.chosen(tuning), methods, effort, length)
        result[f"tuning-{panel}"] = tuning
    result["flipped"] = result["flipped"].drop_vars("privacy_rho")  # as in (a)
    return result


def plot(studies: Studies) -> Picture:
    two = [*reversed(PAIR)]
    at_read = studies["b"].sel(round=ch5.READ)
    titles = [
        ch5.title(name, bound)
        for bound in ch5.BOUNDS
        for name in ("digits", "triplets", f"n = {ch5.READ}")
    ]
    few = studies["tuning-a"].sizes["seed"]
    titles += [f"{name}, {few} tuning seeds" for name in ("digits", "triplets", "8 against 7")]
    drawing, axes = picture.panels(titles)
    for bound, (digits, triplets, sweep) in zip(ch5.BOUNDS, (axes[:3], axes[3:6]), strict=True):
        ch5.curves(studies["a"].sel(algorithm=two), bound, digits)
        ch5.curves(studies["b"].sel(algorithm=two), bound, triplets)
        numbers = at_read.sel(bound=bound).rename(algorithm="tau").assign_coords(tau=[*TAUS.value])
        plotting.trade_off(numbers, "tau", ch5.METRIC, ax=sweep)
        sweep.set_xlabel("inter-cluster τ")
    for panel, ax in zip(("a", "b", "flipped"), axes[6:], strict=True):
        ch5.against_penalty(studies[f"tuning-{panel}"], two, ax)
    return picture.finish(
        drawing, "MNIST, 150 clients on 10 servers, 3 of 15 drawn a round", legend_width=0.75
    )


#: The task's images that a client has, and the clients that share a cluster's.
IMAGES = sum(TRIPLET.value) // 2 * THREES.classes
SHARING = CLIENTS.value * ch5.SERVERS.value // ch5.CLUSTERS.value
CONFLICT = (
    "Seven looks like nine, and they are on different sides in clusters 3 and 2: what one cluster "
    "learns misleads the other."
)
FLIPPED_CONFLICT = "Now 8 itself is on different sides in clusters 1 and 3."
ENOUGH = (
    f"With so little noise a cluster's own images, {IMAGES} on average at each of its {SHARING} "
    "clients, are enough: there is no scarcity to make up for."
)


def weaker(studies: Studies) -> str:
    """A note: the gain of mixing at later iterations."""
    early, late = (ch5.gain(studies["b"], *PAIR, ch5.BOUND.value, n) for n in (ch5.READ, None))
    return (
        f"Mixing averages the noise away. It gives {early.value:.1f} points at n = {ch5.READ}; "
        f"the noise falls, and at the end {late.value:.1f} points are left."
    )


Note = str | Callable[[Studies], str]


def digits(
    name: str,
    panel: str = "a",
    when: int | None = ch5.READ,
    bound: float = ch5.BOUND.value,
    conditions: tuple[str, ...] = (),
    note: str = CONFLICT,
) -> Claim:
    """A claim about single digits."""
    return Claim(
        f"digits-improve{name}",
        "inter-cluster learning improves the accuracy though similarity is limited",
        "section 5.4.2",
        ch5.gains(panel, [PAIR], [when], bound),
        (0, INFINITE),
        ch5.AT_READ if when else "",
        condition="; ".join(conditions),
        note=ch5.notes(note, ch5.penalties_of(panel, PAIR, bound)),
        changed=ch5.OWN_PENALTY,
    )


def triplets(
    name: str,
    when: int | None = ch5.READ,
    bound: float = ch5.BOUND.value,
    conditions: tuple[str, ...] = (),
    note: Note = weaker,
) -> Claim:
    """A claim about triplets of digits."""
    return Claim(
        f"triplets-improve{name}",
        "with similar tasks inter-cluster learning significantly improves the accuracy",
        "section 5.4.2",
        ch5.gains("b", [PAIR], [when], bound),
        *SIGNIFICANTLY.points.when(ch5.AT_READ if when else "at the last iteration"),
        condition="; ".join(conditions),
        note=ch5.notes(note, ch5.penalties_of("b", PAIR, bound)),
        changed=f"{ch5.OWN_PENALTY} {ch5.ONE_MEANING}",
    )


def medium_and_large(name: str, bound: float, condition: str, note: Note) -> Claim:
    """The claims of panel (c)."""
    return Claim(
        f"medium-and-large-tau{name}",
        "medium and large tau improve the accuracy significantly",
        "section 5.4.2",
        ch5.gains("b", [PAIR, (LARGE, ch5.ALONE)], bound=bound),
        *SIGNIFICANTLY.points.when("medium 0.4, large 0.6"),
        condition=condition,
        note=ch5.notes(note, ch5.penalties_of("b", (*PAIR, LARGE), bound)),
        changed=f"{ch5.OWN_PENALTY} {ch5.ONE_MEANING}",
    )


def common(claim: Claim, panel: str, bound: float) -> Claim:
    """A claim with one penalty for both methods."""
    return ch5.at_common_penalty(claim, panel, PAIR, bound)


EXCHANGED = (
    "8 against 7 in cluster 3. The source does not say which class of a pair has which label"
)
NOMINAL = ch5.NOMINAL.value
UNDER = ch5.UNDER_NOMINAL
DIGITS_CLAIM = digits("")
DIGITS_NOMINAL = digits("-nominal", bound=NOMINAL, conditions=(UNDER,))
TRIPLETS_CLAIM = triplets("")
TRIPLETS_NOMINAL = triplets("-nominal", bound=NOMINAL, conditions=(UNDER,), note=ENOUGH)

FIGURE = Figure(
    name="gauthier-5.5",
    title="PGFL on MNIST: single digits, triplets, the inter-cluster parameter",
    source="Gauthier 2024, figure 5.5 (journal, figures 8-10)",
    caption=ch5.CAPTION.format(units="2 of single digits, 6 of triplets"),
    study=study,
    plot=plot,
    claims=[
        DIGITS_CLAIM,
        digits("-at-the-end", when=None, conditions=(ch5.AT_THE_END,)),
        DIGITS_NOMINAL,
        digits("-flipped", "flipped", conditions=(EXCHANGED,), note=FLIPPED_CONFLICT),
        digits(
            "-flipped-nominal",
            "flipped",
            bound=NOMINAL,
            conditions=(EXCHANGED, UNDER),
            note=FLIPPED_CONFLICT,
        ),
        TRIPLETS_CLAIM,
        triplets("-at-the-end", when=None, conditions=(ch5.AT_THE_END,)),
        TRIPLETS_NOMINAL,
        medium_and_large("", ch5.BOUND.value, "", weaker),
        Claim(
            "very-large-tau",
            "very large tau degrades it",
            "section 5.4.2",
            ch5.gains("b", [(tau, LARGE) for tau in VERY_LARGE]),
            (-INFINITE, 0),
            "very large 0.8 and 1, against large 0.6; however little",
            note=ch5.penalties_of("b", (*VERY_LARGE, LARGE), ch5.BOUND.value),
            changed=ch5.OWN_PENALTY,
        ),
        medium_and_large("-nominal", NOMINAL, UNDER, ENOUGH),
        common(DIGITS_CLAIM, "a", ch5.BOUND.value),
        common(DIGITS_NOMINAL, "a", NOMINAL),
        common(TRIPLETS_CLAIM, "b", ch5.BOUND.value),
        common(TRIPLETS_NOMINAL, "b", NOMINAL),
    ],
    settings=(CLIENTS, DRAWN, SINGLE, TRIPLET, TAUS, MOST_SEEDS, *ch5.COMMON),
    tuning=ch5.tuning_table,
    table=ch5.sample_privacy({"a": DIGITS.classes, "b": THREES.classes}),
)
