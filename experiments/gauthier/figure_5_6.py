"""Gauthier 2024, figure 5.6: OrganAMNIST (section 5.4.3; the journal's figures 11 and 12)."""

from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import about
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.gauthier import chapter5_images as ch5
from fljax.data import DISSIMILAR_ORGANS, SIMILAR_ORGANS, organamnist
from fljax.optimization.schedules import GeometricDecay

CLIENTS = Setting("clients per server", 3, "section 5.4.3", given=True)
SAMPLES = Setting(
    "data samples a client", 2, "section 5.4.3; taken to be pairs, as in 5.5", given=True
)
DRAWN = Setting("clients drawn a round", "all", "no scheduling is mentioned for these data")
TAUS = Setting("tau of (a)", (0.0, 0.2, 0.4, 0.6), "none to almost the mean of all clusters")
MEDIUM_RATE = Setting(
    "a medium decay rate",
    0.98,
    "tau = 0.4 · 0.98^n, the chapter's only decaying schedule (section 5.4.1)",
)
RATES = Setting(
    "decay rates of (b)",
    (1.0, 0.98, 0.8),
    "none, medium, and so fast that tau is below 0.05 from the 10th iteration on",
)

UNTUNED = Setting(
    "an untuned penalty",
    ch5.PENALTIES.value[0],
    "the smallest that is tried, for both methods: the gain of mixing where the noise is largest",
)

EVERY = ch5.EVERY.value[0]
SIMILAR = ch5.Setup(organamnist, SIMILAR_ORGANS, CLIENTS.value, (SAMPLES.value,) * 2, None, EVERY)
DISSIMILAR = SIMILAR._replace(tasks=DISSIMILAR_ORGANS)

LARGE = ch5.label(ch5.LARGE.value)
MEDIUM = ch5.label(ch5.MEDIUM.value, MEDIUM_RATE.value)
EARLY = slice(1, 50)
SPEED = "“learning speed”: the mean over the first 50 iterations"


#: The compared methods of each panel.
PAIRS = {"a": (LARGE, ch5.ALONE), "b": (MEDIUM, ch5.ALONE)}


def study(effort: Effort) -> Studies:
    fixed = {ch5.label(tau): tau for tau in effort.thin(TAUS.value)}
    decaying = {ch5.ALONE: 0.0} | {
        ch5.label(ch5.MEDIUM.value, rate): GeometricDecay(ch5.MEDIUM.value, rate)
        for rate in RATES.value
    }
    result = {}
    rounds = ch5.length(effort)
    for panel, setup, methods in (("a", SIMILAR, fixed), ("b", DISSIMILAR, decaying)):
        tuning = ch5.tune(f"tuning-{panel}", setup, methods, effort)
        result[panel] = ch5.study(panel, setup, ch5.chosen(tuning), methods, effort, rounds)
        result[f"tuning-{panel}"] = tuning
    two = {text: fixed[text] for text in PAIRS["a"]}
    untuned = {ch5.NOMINAL.value: dict.fromkeys(two, float(UNTUNED.value))}
    result["untuned"] = ch5.study("untuned", SIMILAR, untuned, two, effort, rounds)
    return result


#: Names of the panels.
NAMES = {"a": "similar", "b": "dissimilar"}


def plot(studies: Studies) -> Picture:
    titles = [ch5.title(f"{name} organs", bound) for bound in ch5.BOUNDS for name in NAMES.values()]
    titles += [ch5.title(f"gain over {ch5.ALONE}", bound) for bound in ch5.BOUNDS]
    few = studies["tuning-a"].sizes["seed"]
    titles += [f"{name} organs, {few} tuning seeds" for name in NAMES.values()]
    drawing, axes = picture.panels(titles, columns=2, height=1.6)
    for at, bound in enumerate(ch5.BOUNDS):
        for panel, ax in zip(NAMES, axes[2 * at :], strict=False):
            ch5.curves(studies[panel], bound, ax, bands=False)
        ch5.gain_curves(studies, PAIRS, NAMES, bound, axes[4 + at])
    for (panel, pair), ax in zip(PAIRS.items(), axes[6:], strict=True):
        ch5.against_penalty(studies[f"tuning-{panel}"], pair[::-1], ax)
    return picture.finish(
        drawing, "OrganAMNIST, 30 clients on 10 servers, two pairs of images", legend_width=0.75
    )


RAISES = "a large amount of inter-cluster learning raises the accuracy by about 5 %"
FASTER = "with dissimilar organs a medium decay rate improves the learning speed"
BOOSTS = "with dissimilar organs a medium decay rate raises the accuracy by about 2 %"
FIVE = about(5)
TWO = about(2)


TUNED = f"{ch5.OWN_PENALTY} It is chosen at n = {ch5.READ}, before at the end of the runs."
REREAD = f"{TUNED} {ch5.ONE_MEANING}"
SCARCE = "The honest noise drowns two pairs of images a client."


def claims(bound: float, ending: str, condition: str) -> list[Claim]:
    """The claims under one noise level."""

    def claim(name, text, panel, when, meaning, further="", changed=REREAD) -> Claim:
        pair = PAIRS[panel]
        explained = [
            *[SCARCE] * (bound == ch5.BOUND.value),
            ch5.levels(panel, pair, bound, when),
            ch5.penalties_of(panel, pair, bound),
        ]
        return Claim(
            name + ending,
            text,
            "section 5.4.3 on figure 5.6",
            ch5.gains(panel, [pair], [when], bound),
            *meaning,
            condition="; ".join(filter(None, (further, condition))),
            note=ch5.notes(*explained),
            changed=changed,
        )

    end = ch5.AT_THE_END
    large = claim("large-tau", RAISES, "a", ch5.READ, FIVE.when(ch5.AT_READ))
    medium = claim("medium-rate", BOOSTS, "b", ch5.READ, TWO.when(ch5.AT_READ))
    return [
        large,
        claim("large-tau-at-the-end", RAISES, "a", None, FIVE, end),
        claim("medium-rate-speed", FASTER, "b", EARLY, ((0, INFINITE), SPEED), changed=TUNED),
        medium,
        claim("medium-rate-at-the-end", BOOSTS, "b", None, TWO, end),
        ch5.at_common_penalty(large, "a", PAIRS["a"], bound),
        ch5.at_common_penalty(medium, "b", PAIRS["b"], bound),
    ]


FIGURE = Figure(
    name="gauthier-5.6",
    title="PGFL on OrganAMNIST: similar and dissimilar organs",
    source="Gauthier 2024, figure 5.6 (journal, figures 11 and 12)",
    caption=ch5.CAPTION.format(units="2")
    + f" Where C = 1 the accuracies still rise after {ch5.ROUNDS.value} iterations: claims are "
    f"read after {ch5.READ}, as the source's are, and again at the end, which is no steady state.",
    study=study,
    plot=plot,
    claims=[
        *claims(ch5.BOUND.value, "", ""),
        *claims(ch5.NOMINAL.value, "-nominal", ch5.UNDER_NOMINAL),
        Claim(
            "large-tau-untuned",
            RAISES,
            "section 5.4.3 on figure 5.6",
            ch5.gains("untuned", [PAIRS["a"]], [ch5.READ, None], ch5.NOMINAL.value),
            *FIVE,
            condition=f"rho = {UNTUNED.value:g} for both; {ch5.UNDER_NOMINAL}",
            changed=ch5.ONE_MEANING,
        ),
    ],
    settings=(CLIENTS, SAMPLES, DRAWN, TAUS, MEDIUM_RATE, RATES, UNTUNED, *ch5.COMMON),
    tuning=ch5.tuning_table,
    table=ch5.sample_privacy({"a": SIMILAR.classes}),
    seeds=250,
)
