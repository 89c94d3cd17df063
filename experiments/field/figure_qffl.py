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
from experiments.conventions import CLOSE, about
from experiments.figure import INFINITE, Claim, Effort, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
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
    (50, 250),
    "the authors' program has 50 and no end, and a round takes as long as its largest client; a "
    "fourth of the clients are cut",
)
TEST = Setting(
    "held-out samples of a client",
    50,
    "the source holds out a tenth, five at least, of which accuracies vary by themselves",
)
ROUNDS = Setting("rounds", 8000, "the authors advise 20,000; fewer for the time that they take")
EVERY = Setting("recorded", 400, "every so many rounds")
END = Setting("records that are read", 5, "the mean over the last quarter of the rounds")
SEEDS = Setting(
    "seeds at most",
    4,
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
    "by q: mean accuracy and that of the worst tenth, per cent, and variance; table 1, appendix C",
    given=True,
)

ACCURACY = "client_accuracy"
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
            *(key, CLIENTS.value, (SIZES.value[0], most), 1.0, 1.0), test_samples=TEST.value
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
        return result.rename(power="algorithm")

    all_powers = joined(run(False, list(POWERS.value)), run(True, [0.0]))
    return {"clients": all_powers.assign_coords(algorithm=[*LABELS])}


# --------------------------------------------------------------------------- readings

Reading = Callable[[Float[np.ndarray, "*some clients"]], np.ndarray]


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
    readings = {"best tenth": best_tenth, "mean": mean, "worst tenth": tenth}
    for index, (label, reading) in enumerate(readings.items()):
        _with_bars(axes[1], at, studies, reading, label, index)
    _with_bars(axes[2], at, studies, variance, "here", 0)
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
    ax: Any, at: np.ndarray, studies: Studies, reading: Reading, label: str, index: int
) -> None:
    """A reading by q, with its 95 % intervals."""
    estimates = [of_few(float, read(studies, named(q), reading), unit="") for q in POWERS.value]
    bars = np.abs([[e.value - e.low, e.high - e.value] for e in estimates]).T
    look = {"color": plotting.LOOKS[index]["color"], "marker": plotting.LOOKS[index]["marker"]}
    ax.errorbar(at, [e.value for e in estimates], bars, label=label, capsize=2, **look)


# --------------------------------------------------------------------------- the claims


def more(over: str, under: str, reading: Reading) -> Measure:
    """By how many points one is above the other."""
    return lambda studies: {
        f"{over} above {under}": of_few(
            lambda a, b: a - b,
            *(read(studies, name, reading) for name in (over, under)),
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


def level(name: str, reading: Reading, unit: str) -> Measure:
    return lambda studies: {name: of_few(float, read(studies, name, reading), unit=unit)}


def table(studies: Studies) -> str:
    rows = (
        f"{name}: {read(studies, name, mean).mean():.1f} %, "
        f"{read(studies, name, tenth).mean():.1f} %, {read(studies, name, variance).mean():.0f}"
        for name in LABELS
    )
    return f"Mean, worst tenth and variance of the accuracies: {'; '.join(rows)}."


def moving(studies: Studies) -> str:
    """A note: whether the runs have converged."""
    half = studies["clients"][ACCURACY].sel(algorithm=FAIR).sizes["round"] // 2
    early = studies["clients"].isel(round=slice(half))
    then, now = (read(s, FAIR, mean).mean() for s in ({"clients": early}, studies))
    return (
        f"After half of the rounds the mean is {then:.1f} % at q = 1, at the end {now:.1f} %. "
        "Every seed has clients of its own, and fifty held-out samples of each; the published "
        "numbers are of one data set, some of whose clients have far more samples, and most five "
        "held out."
    )


def numbers() -> list[Claim]:
    """A note: table 1's numbers for q = 0 and q = 1."""
    parts = (
        ("mean", "mean accuracy", mean, 0, "%"),
        ("worst", "accuracy of the worst tenth of the clients", tenth, 1, "%"),
        ("variance", "variance of the accuracies over clients", variance, 2, "squared points"),
    )
    return [
        Claim(
            f"{kind}-at-q-{q:g}",
            f"the {text} is {REPORTED.value[q][column]:g} {unit} at q = {q:g}",
            "Li et al. 2020 (fair), table 1",
            level(named(q), reading, unit),
            *about(REPORTED.value[q][column]),
            DRAWN,
            note=moving,
        )
        for q in (0.0, 1.0)
        for kind, text, reading, column, unit in parts
    ]


DRAWN = (
    f"ours: sizes of clients end at {SIZES.value[1]}, and there are {ROUNDS.value:,} rounds; "
    "clients are drawn uniformly and weighted"
)
PAIRS = [*zip(LABELS[1:-1], LABELS[:-2], strict=True)]

FIGURE = Figure(
    name="field-qffl",
    title="q-FFL: fairness to clients on Synthetic(1, 1)",
    source="Li et al. 2020 (fair), figure 1 and table 1",
    caption="(a) Clients in the order of their test accuracies, (b) the mean over them and over "
    "the worst and the best tenth, (c) the variance over them, by q. Uniform is q = 0 with equal "
    f"weights of clients. Means of {SEEDS.value} seeds with 95 % intervals; crosses are published "
    "numbers.",
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
            more(FAIR, PLAIN, mean),
            *CLOSE.points.when("q = 1; the published difference is itself 1.8 points down"),
            DRAWN,
            note=table,
        ),
        Claim(
            "worst-clients-gain",
            "the worst tenth of the clients is served better",
            "Li et al. 2020 (fair), table 1",
            more(FAIR, PLAIN, tenth),
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
            less((FAIR, UNIFORM)),
            (0, INFINITE),
            "less variance with q = 1",
            DRAWN,
            note=table,
        ),
        *numbers(),
    ],
    settings=(
        *(CLIENTS, CHOSEN, BATCH, EPOCHS, STEP, POWERS, WEIGHTS, SIZES, TEST, ROUNDS, EVERY, END),
        *(SEEDS, REPORTED),
    ),
)
