"""Li et al. 2020 (FedProx): stragglers and unlike clients on Synthetic(alpha, beta) (Figures 1, 2).

A round has ten participants, some of them late: FedAvg drops them, FedProx averages their partial
work. Participants are in random order and the last ones are late, so FedAvg without them is FedAvg
with the same, fewer participants.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Int
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import SIGNIFICANTLY
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
from fljax import plotting
from fljax.algorithms import FedProx
from fljax.metrics.definitions import Metric, Snapshot, as_metric
from fljax.problems.batches import Batch, Batches, Shuffled, check_size

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 30, "section 5.1", given=True)
CHOSEN = Setting("clients a round", 10, "section 5.1", given=True)
EPOCHS = Setting("passes E of who is in time", 20, "section 5.2", given=True)
BATCH = Setting("samples a step", 10, "appendix C", given=True)
STEP = Setting("step size", 0.01, "appendix C", given=True)
ROUNDS = Setting("rounds", 200, "figure 1", given=True)
ATTRACTION = Setting(
    "μ", 1.0, "the best of 0.001, 0.01, 0.1 and 1 on Synthetic, appendix C", given=True
)
LATE = Setting("late participants of ten", (0, 5, 9), "section 5.2", given=True)
WORK = Setting(
    "passes of who is late",
    "uniform on 1 to E",
    "section 5.2; the authors' program draws from 1 to E - 1",
    given=True,
)
SPREADS = Setting("alpha = beta", (0.0, 0.5, 1.0), "section 5.1", given=True)
WEIGHTS = Setting(
    "weights at the server", "numbers of samples", "with uniform sampling, section 5.1", given=True
)
SIZES = Setting(
    "fewest and most samples of a client",
    (50, 10_200),
    "the authors' program has 50 and no end. None of the clients that these seeds draw has as many "
    "as this end, which the study checks: sizes are the source's",
)
SHORT = Setting(
    "most samples of a client, shorter",
    250,
    "a fourth of the clients are cut: to see what long local work has to do with it",
)
TEST = Setting(
    "held-out samples of a client",
    50,
    "the source holds out a tenth of each client's, five at least",
)
SEEDS = Setting(
    "seeds at most",
    6,
    "data, participants, batches and who is late anew for each, the same for all methods; the "
    "source has one data set. Intervals are Student's t of the jackknife over paired seeds",
)
EVERY = Setting("recorded", 2, "every so many rounds")
END = Setting("records that are read", 20, "the mean over the last fifth of the rounds")

LOSS = "loss"
DISSIMILARITY = "dissimilarity"
ACCURACY = "weighted_accuracy"
IID = "IID"
FEDAVG = "FedAvg"
PARTIAL = "FedProx, μ = 0"
PROX = f"FedProx, μ = {ATTRACTION.value:g}"
METHODS = (FEDAVG, PARTIAL, PROX)


def named(spread: float) -> str:
    return f"({spread:g}, {spread:g})"


DATA = (IID, *map(named, SPREADS.value))
MOST = named(SPREADS.value[-1])
CUT_SHORT = f"{MOST}, sizes to {SHORT.value}"

# --------------------------------------------------------------------------- the scenario


@fl.module
class Unfinished(Batches):
    """Epochs; late participants do a uniformly drawn number of them, from the first on.

    Args:
      size: samples in a batch, >= 1.
      late: the number of late participants, the last ones.
      epochs: of participants in time.
    """

    size: int = fl.static()
    late: int = fl.static()
    epochs: int = fl.static()

    def check(self, problem: Any) -> None:
        check_size(self.size, problem)

    def draw(
        self,
        key: Array,
        real: Bool[Array, "chosen samples"],
        clients: Int[Array, " chosen"],
        steps: int,
    ) -> Batch:
        k_order, k_work = jax.random.split(key)
        rows = Shuffled(self.size).draw(k_order, real, clients, steps).rows
        chosen, samples = real.shape
        work = jax.random.randint(k_work, (chosen,), 1, self.epochs + 1, jnp.int32)
        in_time = jnp.arange(chosen, dtype=jnp.int32) < chosen - self.late
        work = jnp.where(in_time, self.epochs, work)
        epoch = jnp.arange(steps, dtype=jnp.int32) // (steps // self.epochs)
        return Batch(jnp.where((epoch[None] < work[:, None])[..., None], rows, samples))


def shares(now: Snapshot) -> Array:
    """``[K]``: of each client's samples in all."""
    return now.problem.importance / jnp.sum(now.problem.importance)


def loss(now: Snapshot) -> Array:
    return jnp.sum(now.problem.objective(now.model)) / len(now.model)


def dissimilarity(now: Snapshot) -> Array:
    """How far clients' gradients are from that of all samples: the mean squared distance."""
    gradients = now.problem.unweighted().gradient(now.model)
    mean = jnp.sum(shares(now)[:, None] * gradients, axis=0)
    return jnp.mean(jnp.sum((gradients - mean[None]) ** 2, axis=1))


def weighted_accuracy(now: Snapshot) -> Array:
    return jnp.sum(shares(now) * as_metric("client_accuracy").measure(now))


METRICS = [
    Metric(LOSS, loss, "training loss"),
    Metric(DISSIMILARITY, dissimilarity, "variance of gradients", needs={"data"}),
    Metric(ACCURACY, weighted_accuracy, "test accuracy", needs={"labels"}, bounds=(0, 1)),
]


@functools.cache
def scenario(chosen: int, late: int, identical: bool, most: int) -> Callable[..., fl.Simulation]:
    """The scenario with late participants."""

    def build(key: Array, spread: Array, attraction: Array) -> fl.Simulation:
        problem = fl.problems.heterogeneous_softmax(
            *(key, CLIENTS.value, (SIZES.value[0], most), spread, spread),
            identical=identical,
            test_samples=TEST.value,
            pooled=True,
        )
        steps = EPOCHS.value * Shuffled(BATCH.value).steps(most)
        return fl.Simulation(
            problem.weighing("samples"),
            FedProx(
                STEP.value,
                attraction=attraction,
                clients_per_round=chosen,
                batches=Unfinished(BATCH.value, late, EPOCHS.value),
                local_steps=steps,
            ),
            metrics=METRICS,
        )

    build.__qualname__ = f"fedprox({chosen}, {late}, {identical}, {most})"
    return build


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)
    rounds = 12 * EVERY.value if effort.quick else ROUNDS.value
    longest = SIZES.value[0] + 20 if effort.quick else SIZES.value[1]
    shorter = SIZES.value[0] + 10 if effort.quick else SHORT.value

    def run(
        chosen: int,
        late: int,
        spreads: Any,
        attractions: Any,
        identical: bool = False,
        most: int = longest,
    ) -> xr.Dataset:
        result = effort.sweep(
            f"{chosen}-{late}-{identical}-{most}",
            scenario(chosen, late, identical, most),
            rounds=rounds,
            record_every=EVERY.value,
            seeds=seeds,
            grid={"spread": list(spreads), "attraction": list(attractions)},
        )
        if most == SIZES.value[1] and int(result["client_samples"].max()) >= most:
            raise ValueError(f"a client has {most} samples or more; SIZES must have a larger end.")
        return result.rename(attraction="algorithm")

    pair = (0.0, ATTRACTION.value)
    iid = run(CHOSEN.value, 0, [0.0], pair, identical=True)
    unlike = run(CHOSEN.value, 0, SPREADS.value, pair)
    data = joined(iid, unlike, axis="spread").rename(spread="data")
    data = data.assign_coords(data=[*DATA], algorithm=[FEDAVG, PROX])

    most_unlike = data.sel(data=MOST, drop=True)
    # If no participant is late, FedProx with μ = 0 is FedAvg.
    parts = [most_unlike.sel(algorithm=[FEDAVG, FEDAVG, PROX]).assign_coords(algorithm=[*METHODS])]
    for late in LATE.value[1:]:
        hasty = run(CHOSEN.value - late, 0, SPREADS.value[-1:], [0.0])
        patient = run(CHOSEN.value, late, SPREADS.value[-1:], pair)
        part = joined(hasty, patient).isel(spread=0, drop=True)
        parts.append(part.assign_coords(algorithm=[*METHODS]))
    late = joined(*parts, axis="late").assign_coords(late=[*LATE.value])
    short = run(CHOSEN.value, 0, SPREADS.value[-1:], pair, most=shorter).isel(spread=0, drop=True)
    return {"data": data, "late": late, "short": short.assign_coords(algorithm=[FEDAVG, PROX])}


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    """A row of stragglers; a row of losses and one of dissimilarities, by the data."""
    drawing, grid = plt.subplots(3, 4, figsize=(picture.PAGE, 5.6))
    letters = iter("abcdefghijkl")
    looks = dict(zip(METHODS, plotting.LOOKS, strict=False))

    def panel(ax: Any, data: xr.Dataset, metric: str, title: str) -> None:
        plotting.learning_curves(data, metric, "algorithm", ax, legend=False)
        for line, band, name in zip(
            ax.lines, ax.collections, data["algorithm"].values.tolist(), strict=True
        ):
            line.set(**looks[name], label="_", markevery=10)
            band.set_color(line.get_color())
        picture.fade(ax)
        ax.set(title=f"({next(letters)}) {title}", xlabel="round")

    late = studies["late"]
    for ax, few in zip(grid[0], LATE.value, strict=False):
        methods = [FEDAVG, PROX] if few == 0 else [*METHODS]
        panel(ax, late.sel(late=few, algorithm=methods), LOSS, f"{MOST}, {10 * few} % late")
        ax.set_ylim(*_range(late[LOSS]))
    panel(grid[0, 3], late.sel(late=LATE.value[-1]), ACCURACY, f"{10 * LATE.value[-1]} % late")
    for axes, metric in zip(grid[1:], (LOSS, DISSIMILARITY), strict=True):
        for ax, data in zip(axes, DATA, strict=True):
            panel(ax, studies["data"].sel(data=data), metric, data)
            ax.set_ylim(*_range(studies["data"][metric]))
    for name, look in looks.items():
        grid[0, 0].plot([], [], **look, label=name)
    picture.share_legend(list(grid.flat))
    return picture.finish(drawing)


def _range(values: xr.DataArray) -> tuple[float, float]:
    """Axis limits around all means."""
    mean = values.mean("seed")
    least = float(mean.min())
    greatest = float(mean.max())
    return max(0.0, least - 0.1 * (greatest - least)), greatest + 0.1 * (greatest - least)


# --------------------------------------------------------------------------- the claims


def end(curves: xr.DataArray) -> np.ndarray:
    """``[S]``."""
    return curves.isel(round=slice(-END.value, None)).mean("round").values.astype(float)


def unrest(curves: xr.DataArray) -> np.ndarray:
    """``[S]``: the mean change from record to record in the second half of a curve."""
    later = curves.isel(round=slice(curves.sizes["round"] // 2, None))
    return abs(later.diff("round")).mean("round").values.astype(float)


Reading = Callable[[xr.DataArray], np.ndarray]


def of(studies: Studies, where: Any, metric: str = LOSS) -> xr.DataArray:
    """Curves of some data and method, or of some late ones and a method, ``[seed, round]``."""
    first, method = where
    study = "short" if first == CUT_SHORT else "late" if isinstance(first, int) else "data"
    curves = studies[study][metric].sel(algorithm=method)
    return (curves if study == "short" else curves.sel({study: first})).transpose("seed", "round")


def label(where: Any) -> str:
    first, method = where
    return f"{method} at {10 * first} % late" if isinstance(first, int) else f"{method} on {first}"


def more(
    *pairs: tuple[Any, Any],
    metric: str = LOSS,
    read: Reading = end,
    factor: float = 1,
    unit: str = "",
) -> Measure:
    """By how much the first is above the second."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        return {
            f"{label(over)} above {label(under)}": of_few(
                lambda over, under: factor * (over - under),
                read(of(studies, over, metric)),
                read(of(studies, under, metric)),
                unit=unit,
            )
            for over, under in pairs
        }

    return measure


def ends(*where: tuple[Any, str], read: Reading = end) -> Callable[[Studies], str]:
    """The final values, for notes."""

    def note(studies: Studies) -> str:
        final_errors = ", ".join(f"{label(w)} {read(of(studies, w)).mean():.3f}" for w in where)
        return f"Means: {final_errors}."

    return note


def features(studies: Studies) -> str:
    """Why the loss hardly depends on the clients' dissimilarity."""
    return (
        f"{ends(*OF_DATA)(studies)} Our reading: alpha decides no label, so that beta alone tells "
        "the last three apart; and features of IID data, whose mean is zero, are a fourth as "
        "long, so that the data sets are not equally hard for a step of 0.01."
    )


OF_LATE = [*itertools.product(LATE.value, METHODS)]
OF_DATA = [*itertools.product(DATA, (FEDAVG, PROX))]
PAPER = "Li et al. 2020 (FedProx), section"
FEW, MANY = LATE.value[1:]

FIGURE = Figure(
    name="field-fedprox",
    title="FedProx: stragglers, and clients that are unlike",
    source="Li et al. 2020 (FedProx), figures 1 and 2, Synthetic data",
    caption="Training loss on Synthetic(1, 1) with (a) no, (b) half and (c) nine of ten "
    "participants late, and (d) the test accuracy of (c). FedAvg drops who is late. Without late "
    "ones FedProx with μ = 0 is FedAvg. (e)-(h) the loss on four data sets with nobody late, "
    "(i)-(l) the mean squared distance of clients' gradients from that of all samples. Only beta "
    "tells the three data sets that are not IID apart: alpha moves all scores of a sample alike. "
    f"Means of {SEEDS.value} seeds with 95 % bands.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "stragglers-hurt-fedavg",
            "the more participants are late and dropped, the worse FedAvg converges",
            f"{PAPER} 5.2 on figure 1",
            more(((FEW, FEDAVG), (0, FEDAVG)), ((MANY, FEDAVG), (FEW, FEDAVG))),
            (0, np.inf),
            "loss at the end",
            note=ends(*OF_LATE),
        ),
        Claim(
            "partial-work-is-better-than-none",
            "taking what late participants have is better than to drop them",
            f"{PAPER} 5.2 on figure 1",
            more(*(((late, FEDAVG), (late, PARTIAL)) for late in (FEW, MANY))),
            (0, np.inf),
            "loss at the end, μ = 0",
            note=ends(*OF_LATE),
        ),
        Claim(
            "proximal-term-helps",
            "on the most unlike clients a positive μ improves convergence, however many are late",
            f"{PAPER} 5.2 on figure 1",
            more(*(((late, PARTIAL), (late, PROX)) for late in LATE.value)),
            (0, np.inf),
            "loss at the end",
            note=ends(*OF_LATE),
        ),
        Claim(
            "proximal-term-steadies",
            "a positive μ makes methods more stable",
            f"{PAPER} 5.2 on figure 1",
            more(*(((late, PARTIAL), (late, PROX)) for late in LATE.value), read=unrest),
            (0, np.inf),
            "how far the loss goes from record to record in the second half",
            note=ends(*OF_LATE, read=unrest),
        ),
        Claim(
            "far-more-accurate-with-many-late",
            "with nine of ten late, FedProx is far more accurate than FedAvg; on average over five "
            "data sets by 22 points",
            "Li et al. 2020 (FedProx), abstract and section 5.2",
            more(((MANY, PROX), (MANY, FEDAVG)), metric=ACCURACY, factor=100, unit="points"),
            *SIGNIFICANTLY.points.when("at the end, of Synthetic(1, 1) alone"),
        ),
        Claim(
            "unlike-clients-hurt-fedavg",
            "the more unlike clients are, the worse FedAvg converges",
            f"{PAPER} 5.3 on figure 2",
            more(*(((b, FEDAVG), (a, FEDAVG)) for a, b in itertools.pairwise(DATA))),
            (0, np.inf),
            "loss at the end, from data set to data set",
            note=features,
        ),
        Claim(
            "proximal-term-helps-unlike-clients",
            "a positive μ combats this",
            f"{PAPER} 5.3 on figure 2",
            more(*(((data, FEDAVG), (data, PROX)) for data in DATA[1:])),
            (0, np.inf),
            "loss at the end, on data that are not IID",
            note=ends(*OF_DATA),
        ),
        Claim(
            "proximal-term-slows-alike-clients",
            "where clients are alike, a positive μ may slow convergence",
            f"{PAPER} 5.3 on figure 2",
            more(((IID, PROX), (IID, FEDAVG))),
            (0, np.inf),
            "loss at the end",
            note=ends(*OF_DATA),
        ),
        Claim(
            "dissimilarity-tells-data-apart",
            "the variance of gradients captures how unlike clients are",
            f"{PAPER} 5.3 on figure 2",
            more(
                *(((b, FEDAVG), (a, FEDAVG)) for a, b in itertools.pairwise(DATA)),
                metric=DISSIMILARITY,
            ),
            (0, np.inf),
            "at the end, from data set to data set",
        ),
        Claim(
            "proximal-term-lowers-dissimilarity",
            "with a positive μ the variance of gradients is less",
            f"{PAPER} 5.3 on figure 2",
            more(*(((data, FEDAVG), (data, PROX)) for data in DATA[1:]), metric=DISSIMILARITY),
            (0, np.inf),
            "at the end, on data that are not IID",
        ),
        Claim(
            "proximal-term-is-for-large-clients",
            "a positive μ helps against the drift of large clients: where sizes end at "
            f"{SHORT.value} it slows convergence instead",
            "this library",
            more(((CUT_SHORT, PROX), (CUT_SHORT, FEDAVG))),
            (0, np.inf),
            "loss at the end",
            ours=True,
            note=ends((CUT_SHORT, FEDAVG), (CUT_SHORT, PROX)),
        ),
    ],
    settings=(
        *(CLIENTS, CHOSEN, EPOCHS, BATCH, STEP, ROUNDS, ATTRACTION, LATE, WORK, SPREADS, WEIGHTS),
        *(SIZES, SHORT, TEST, SEEDS, EVERY, END),
    ),
)
