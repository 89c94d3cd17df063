"""Li et al. 2020 (fair): q-FFL on Synthetic(1, 1), how accuracies spread over clients (Table 1)."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import CLOSE, about, about_points
from experiments.figure import INFINITE, Claim, Effort, Figure, Measure, Setting, Studies
from experiments.measures import if_long_enough, joined, of_few
from fljax import plotting
from fljax.algorithms import QFedAvg

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 100, "appendix B", given=True)
CHOSEN = Setting("clients a round", 10, "appendix B", given=True)
BATCH = Setting("samples a step", 10, "appendix B", given=True)
EPOCHS = Setting("passes over a client's samples a round", 1, "appendix B", given=True)
STEP = Setting("step size", 0.1, "appendix B, of Synthetic; 1/L of the server, too", given=True)
POWERS = Setting("q", (0.0, 0.1, 1.0, 2.0, 5.0), "appendix C, of Synthetic", given=True)
WEIGHTS = Setting(
    "who takes part",
    "uniformly drawn, weighted by samples",
    "the source draws by numbers of samples and weights equally: the same objective. Its baseline "
    "of uniform sampling has equal weights",
)
SIZES = Setting(
    "fewest and most samples of a client",
    (50, 1000),
    "the authors' program has 50 and no end, and a round takes as long as its largest participant: "
    "one client in thirteen is cut",
)
TEST = Setting(
    "held-out samples of a client",
    50,
    "the source holds out a tenth, five at least, of which accuracies vary by themselves",
)
ROUNDS = Setting("rounds", 4000, "fewer than the source's, for the time that they take")
ADVISED = Setting("rounds of the source", 20_000, "advised by the authors' program", given=True)
EVERY = Setting("recorded", 200, "every so many rounds")
END = Setting("records that are read", 5, "the mean over the last quarter of the rounds")
SEEDS = Setting(
    "seeds at most",
    5,
    "data, participants and batches anew for each, the same for all methods; the source has five "
    "splits of one data set. Intervals are Student's t of the jackknife over paired seeds",
)
REPORTED = Setting(
    "published",
    {
        0.0: (80.8, 18.8, 724.0),
        0.1: (81.1, 22.1, 666.0),
        1.0: (79.0, 31.1, 472.0),
        2.0: (74.7, 32.2, 410.0),
        5.0: (67.2, 30.0, 369.0),
    },
    "by q: mean accuracy over all held-out samples (as the authors' program averages) and that of "
    "the worst tenth of the clients, per cent, and variance over clients; table 1, appendix C",
    given=True,
)

ACCURACY = "client_accuracy"
SIZE = "client_samples"
POWER = "q"
PLAIN = "q = 0"
FAIR = "q = 1"
UNIFORM = "uniform"


def named(power: float) -> str:
    return f"q = {power:g}"


LABELS = (*map(named, POWERS.value), UNIFORM)

# --------------------------------------------------------------------------- study


@functools.cache
def scenario(uniform: bool, most: int) -> Callable[..., fl.Simulation]:
    """With equal weights of clients, or weights by samples."""

    def build(key: Array, power: Array) -> fl.Simulation:
        problem = fl.problems.heterogeneous_softmax(
            *(key, CLIENTS.value, (SIZES.value[0], most), 1.0, 1.0),
            test_samples=TEST.value,
            pooled=True,
        )
        algorithm = QFedAvg(
            STEP.value,
            fairness=power,
            clients_per_round=CHOSEN.value,
            epochs=EPOCHS.value,
            batch=BATCH.value,
        )
        problem = problem if uniform else problem.weighing("samples")
        return fl.Simulation(problem, algorithm, metrics=[ACCURACY])

    build.__qualname__ = f"qffl({uniform}, {most})"
    return build


def study(effort: Effort) -> Studies:
    most = SIZES.value[0] if effort.quick else SIZES.value[1]
    every = 2 if effort.quick else EVERY.value

    def run(uniform: bool, powers: list[float]) -> xr.Dataset:
        result = effort.sweep(
            UNIFORM if uniform else "weighted",
            scenario(uniform, most),
            rounds=2 * END.value * every if effort.quick else ROUNDS.value,
            record_every=every,
            seeds=min(effort.seeds, SEEDS.value),
            grid={"power": powers},
        )
        return result[[ACCURACY, SIZE, "diverged"]].rename(power="algorithm")

    all_powers = joined(run(False, list(POWERS.value)), run(True, [0.0]))
    return {"clients": all_powers.assign_coords(algorithm=[*LABELS])}


# --------------------------------------------------------------------------- readings

Reading = Callable[[Float[np.ndarray, "*some clients"]], np.ndarray]
#: A number ``[S]`` of a method in a study.
Number = Callable[[Studies, str], Float[np.ndarray, " seeds"]]


def mean(values: np.ndarray) -> np.ndarray:
    return values.mean(axis=-1)


def variance(values: np.ndarray) -> np.ndarray:
    return values.var(axis=-1)


def tenth(values: np.ndarray, *, best: bool = False) -> np.ndarray:
    """The mean over the worst, or the best, tenth of the clients."""
    count = max(values.shape[-1] // 10, 1)
    ordered = np.sort(values, axis=-1)
    return (ordered[..., -count:] if best else ordered[..., :count]).mean(axis=-1)


def best_tenth(values: np.ndarray) -> np.ndarray:
    return tenth(values, best=True)


def read(studies: Studies, name: str, reading: Reading) -> np.ndarray:
    """``[S]``: of clients' accuracies in per cent, the mean over the records that are read."""
    late = studies["clients"][ACCURACY].sel(algorithm=name).isel(round=slice(-END.value, None))
    return reading(100 * late.transpose("seed", "round", "client").values.astype(float)).mean(1)


def reading_of(reading: Reading) -> Number:
    return functools.partial(read, reading=reading)


def over_samples(studies: Studies, name: str) -> np.ndarray:
    """``[S]``: the accuracy over all samples, per cent, clients weighted by how many they have; the
    mean over the records that are read.
    """
    data = studies["clients"].sel(algorithm=name).isel(round=slice(-END.value, None))
    accuracy = 100 * data[ACCURACY].weighted(data[SIZE].astype(float)).mean("client")
    return accuracy.transpose("seed", "round").values.astype(float).mean(1)


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = ("clients in order", "accuracy", "variance over clients")
    drawing, axes = picture.panels(titles, height=2.3)
    data = studies["clients"][ACCURACY].isel(round=slice(-END.value, None))
    clients = data.sizes["client"]
    share = 100 * (np.arange(clients) + 0.5) / clients
    drawn = [PLAIN, FAIR, named(POWERS.value[-1]), UNIFORM]
    for index, name in enumerate(drawn):
        ranked = 100 * np.sort(data.sel(algorithm=name).transpose(..., "client").values, axis=-1)
        line = ranked.reshape(-1, clients).mean(axis=0)
        axes[0].plot(share, line, label=name, **picture.look(index))
    axes[0].set(xlabel="clients [%]", ylabel="test accuracy [%]")

    powers = list(POWERS.value)
    at = np.arange(len(POWERS.value))
    numbers = {
        "best tenth": reading_of(best_tenth),
        "over samples": over_samples,
        "over clients": reading_of(mean),
        "worst tenth": reading_of(tenth),
    }
    for index, (label, of) in enumerate(numbers.items()):
        _with_bars(axes[1], at, studies, of, label, index)
    _with_bars(axes[2], at, studies, reading_of(variance), "here", 0)
    for ax, column in ((axes[1], 0), (axes[1], 1), (axes[2], 2)):
        published = [REPORTED.value[q][column] for q in powers]
        label = "published" if column != 1 else "_"
        ax.plot(at, published, label=label, marker="x", **picture.THIN)
    for ax in axes[1:]:
        ax.set(xlabel="q", xticks=at, xticklabels=[f"{q:g}" for q in powers])
    axes[1].set_ylabel("test accuracy [%]")
    axes[2].set(ylabel="squared points", ylim=(0, None))
    return picture.finish(drawing)


def _with_bars(
    ax: Any, at: np.ndarray, studies: Studies, of: Number, label: str, index: int
) -> None:
    """A number by q, with its 95 % intervals."""
    estimates = [of_few(float, of(studies, named(q)), unit="") for q in POWERS.value]
    bars = np.abs([[e.value - e.low, e.high - e.value] for e in estimates]).T
    look = {"color": plotting.LOOKS[index]["color"], "marker": plotting.LOOKS[index]["marker"]}
    ax.errorbar(at, [e.value for e in estimates], bars, label=label, capsize=2, **look)


# --------------------------------------------------------------------------- the claims


def more(over: str, under: str, of: Number) -> Measure:
    """By how many points one is above the other."""
    return lambda studies: {
        f"{over} above {under}": of_few(
            lambda a, b: a - b,
            *(of(studies, name) for name in (over, under)),
            unit="points",
        )
    }


def less(*pairs: tuple[str, str]) -> Measure:
    """By how much less the first's variance is, per cent."""
    return lambda studies: {
        f"{one} for {other}": of_few(
            lambda a, b: 100 * (1 - a / b),
            *(read(studies, name, variance) for name in (one, other)),
            unit="%",
        )
        for one, other in pairs
    }


def reached(measure: Measure, accept: tuple[float, float]) -> Measure:
    """The measure; what fails is not run, as runs are shorter than the source's."""
    long_enough = ROUNDS.value >= ADVISED.value
    return lambda studies: {
        case: if_long_enough(of, accept, long_enough=long_enough)
        for case, of in measure(studies).items()
    }


def level(name: str, of: Number, unit: str) -> Measure:
    return lambda studies: {name: of_few(float, of(studies, name), unit=unit)}


def table(studies: Studies) -> str:
    rows = (
        f"{name}: {over_samples(studies, name).mean():.1f} %, "
        f"{read(studies, name, mean).mean():.1f} %, {read(studies, name, tenth).mean():.1f} %, "
        f"{read(studies, name, variance).mean():.0f}"
        for name in LABELS
    )
    return (
        "Mean over samples, mean over clients, worst tenth of the clients and variance over them: "
        f"{'; '.join(rows)}."
    )


def moving(studies: Studies) -> str:
    """A note: whether the runs have converged."""
    half = studies["clients"][ACCURACY].sel(algorithm=FAIR).sizes["round"] // 2
    early = studies["clients"].isel(round=slice(half))
    then, now = (read(s, FAIR, mean).mean() for s in ({"clients": early}, studies))
    return (
        f"What fails is not run: runs have {ROUNDS.value:,} rounds of {ADVISED.value:,}, and go "
        f"on. After half of them the mean over clients is {then:.1f} % at q = 1, at the end "
        f"{now:.1f} %. {table(studies)} Every seed has clients of its own, and fifty held-out "
        "samples of each; the published numbers are of one data set, some of whose clients have "
        "far more samples, and most five held out."
    )


def numbers() -> list[Claim]:
    """A note: table 1's numbers for q = 0 and q = 1."""
    worst = reading_of(tenth)
    spread = reading_of(variance)
    parts = (
        ("mean", "mean accuracy", over_samples, "%", about_points),
        ("worst", "accuracy of the worst tenth of the clients", worst, "%", about_points),
        ("variance", "variance over clients", spread, "squared points", about),
    )
    return [
        Claim(
            f"{kind}-at-q-{q:g}",
            f"the {text} is {REPORTED.value[q][column]:g} {unit} at q = {q:g}",
            "Li et al. 2020 (fair), table 1",
            reached(level(named(q), of, unit), near(REPORTED.value[q][column]).accept),
            *near(REPORTED.value[q][column]),
            DRAWN,
            note=moving,
            changed=RANGES,
        )
        for q in (0.0, 1.0)
        for column, (kind, text, of, unit, near) in enumerate(parts)
    ]


RANGES = (
    "“About” was within a fourth of a number, 60.6 to 101 % of 80.8 %; the mean was over clients, "
    "and the source's is over samples; sizes ended at 250."
)
DRAWN = (
    f"ours: sizes of clients end at {SIZES.value[1]}, and there are {ROUNDS.value:,} rounds; "
    "clients are drawn uniformly and weighted"
)
PAIRS = [*zip(LABELS[1:-1], LABELS[:-2], strict=True)]

FIGURE = Figure(
    name="field-qffl",
    title="q-FFL: fairness to clients on Synthetic(1, 1)",
    source="Li et al. 2020 (fair), figure 1 and table 1",
    caption="(a) Clients in the order of their test accuracies, (b) the accuracy over all samples, "
    "and the mean over clients and over the worst and the best tenth of them, (c) the variance "
    "over clients, by q. Uniform is q = 0 with equal weights of clients. Means of "
    f"{SEEDS.value} seeds with 95 % intervals; crosses are published numbers.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "variance-falls",
            "with q > 0 the variance of the accuracies falls, on average over data sets by 45 %",
            "Li et al. 2020 (fair), section 4.2, figure 1 and table 1",
            less((FAIR, PLAIN)),
            (0, INFINITE),
            "less variance with q = 1 than with q = 0",
            DRAWN,
            note=table,
        ),
        Claim(
            "mean-is-similar",
            "while the mean accuracy remains similar",
            "Li et al. 2020 (fair), section 4.2 and table 1",
            more(FAIR, PLAIN, over_samples),
            *CLOSE.points.when("q = 1; the published difference is itself 1.8 points down"),
            DRAWN,
            note=table,
        ),
        Claim(
            "worst-clients-gain",
            "the worst tenth of the clients is served better",
            "Li et al. 2020 (fair), table 1",
            more(FAIR, PLAIN, reading_of(tenth)),
            (0, INFINITE),
            "q = 1 above q = 0",
            DRAWN,
            note=table,
        ),
        Claim(
            "more-q-is-more-uniform",
            "the larger q, the smaller the variance",
            "Li et al. 2020 (fair), appendix C, Synthetic",
            less(*PAIRS),
            (0, INFINITE),
            "from q to q",
            DRAWN,
            note=table,
        ),
        Claim(
            "fairer-than-uniform",
            "q-FFL is fairer than uniform weights of the clients",
            "Li et al. 2020 (fair), section 4.2, table of uniform sampling",
            reached(less((FAIR, UNIFORM)), (0, INFINITE)),
            (0, INFINITE),
            "less variance with q = 1",
            DRAWN,
            note=moving,
        ),
        *numbers(),
    ],
    settings=(
        *(CLIENTS, CHOSEN, BATCH, EPOCHS, STEP, POWERS, WEIGHTS, SIZES, TEST, ROUNDS, ADVISED),
        *(EVERY, END, SEEDS, REPORTED),
    ),
)
