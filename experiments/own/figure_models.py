r"""A network learned federatedly: six algorithms on digits, from dissimilar to similar clients.

Each client draws what share of its images shows which digit from :math:`\mathrm{Dir}(\alpha\mathbf
1)` and then its images, independently for every seed (Hsu et al. 2019). The clients'
concentration :math:`\alpha` and all tuned parameters of an algorithm are traced numbers, so an
algorithm is one compiled program. A second study gives clients different numbers of local steps, to
compare FedNova with FedAvg, which coincide for equal numbers. A third asks why SCAFFOLD breaks down
at FedAvg's step: in it all clients take part, so that no variate is old.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullFormatter

import fljax as fl
from experiments import picture
from experiments.conventions import CLOSE, LITTLE
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined
from experiments.measures import of_few as estimate
from experiments.pixels import halved
from experiments.tuning import SEEDS as TUNING_SEEDS
from experiments.tuning import seeds as tuning_seeds
from fljax import plotting
from fljax._core.module import float_dtype
from fljax.algorithms import SCAFFOLD, Algorithm, FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedProx
from fljax.data.images import Images
from fljax.problems import Model, Softmax

# --------------------------------------------------------------------------- settings

CONCENTRATIONS = Setting(
    "concentration, alpha, of the clients' digits",
    (0.1, 1.0, 100.0),
    "at 0.1 a client has two or three digits in numbers that count, at 100 all in about equal ones",
)
CLIENTS = Setting("clients K", 50, "of which a fifth is many enough for a mean")
CHOSEN = Setting(
    "clients a round", 10, "a fifth, as in SCAFFOLD's experiments (Karimireddy et al. 2020)"
)
SAMPLES = Setting(
    "images a client",
    200,
    "the same of all, as of Hsu et al. 2019: weights by samples and equal ones, which SCAFFOLD and "
    "FedDyn need, are then one. Drawn from MNIST's 60,000 with replacement",
)
HALVED = Setting(
    "pixels", "14 x 14", "means of 2 x 2: a fourth of the work, and digits are still told apart"
)
NETWORK = Setting(
    "hidden widths",
    (32,),
    "fully connected, as in SCAFFOLD's experiments: two convolutions of as many parameters take "
    "fifteen times as long, and the seeds that they cost decided little",
)
TEST = Setting(
    "test images",
    1000,
    "every tenth of MNIST's, whose first half is easier than its second; the same for all, after "
    "every other round: all of them would cost more than the training",
)
BATCH = Setting("images a step", 20, "ten steps of a client a round")
EPOCHS = Setting("passes over a client's images a round", 1, "ten steps: enough to drift apart")
ROUNDS = Setting("rounds", 40, "each client takes part in eight of them")
EVERY = Setting("recorded", 2, "every so many rounds")
SEEDS = Setting(
    "seeds at most",
    10,
    "data, participants, batches and start anew for each, and the same for all algorithms; as many "
    "others for tuning, so that both are one program. Intervals are Student's t of the jackknife "
    "over paired seeds, since the bootstrap's are too narrow with so few",
)
STEPS = Setting(
    "local step sizes that are tried",
    (0.03, 0.1, 0.3, 1.0, 3.0),
    "the same for every algorithm and concentration, each with the one that is best for it, as "
    "Karimireddy et al. 2020 and Reddi et al. 2021 do; no algorithm does best with the least or "
    "the greatest",
)
ATTRACTIONS = Setting(
    "FedProx's μ, tried",
    (0.001, 0.01, 0.1, 1.0),
    "those of Li et al. 2020; where the least is best, less still may be: in its limit is FedAvg",
)
BENDS = Setting(
    "FedDyn's attraction, tried",
    (0.001, 0.01, 0.1, 1.0),
    "those of Acar et al. 2021, and a decade more",
)
SERVER_STEPS = Setting(
    "FedAdam's η, tried", (0.01, 0.03, 0.1, 0.3), "half decades, so that the best is inside"
)
MOMENTUM = Setting("FedAvgM's β", 0.9, "the usual one; not tuned")
RULE = Setting(
    "tuned by",
    "accuracy",
    "its mean over the second half of the rounds, which a single lucky round does not decide, on "
    "the tuning seeds, for each concentration",
)
UNEQUAL = Setting(
    "local steps of unequal clients",
    (2, 18),
    "from the first client to the last, evenly; ten in the mean, as of equal ones. At FedAvg's "
    "step size, for FedNova too",
)
LATE = Setting(
    "records that are read",
    5,
    "the mean of so many: the last, and of FedAvg those around the middle, whose accuracy is what "
    "rounds are counted to; who never has it is counted as two rounds longer than all",
)

ACCURACY = "accuracy"
ALPHA = "concentration"
ALL = CONCENTRATIONS.value
UNLIKE = ALL[0]
ALIKE = ALL[-1]

FEDAVG = "FedAvg"
FEDPROX = "FedProx"
SCAFFOLDS = "SCAFFOLD"
FEDDYN = "FedDyn"
FEDAVGM = "FedAvgM"
FEDADAM = "FedAdam"
FEDNOVA = "FedNova"
OPTION_I = "SCAFFOLD-I"


class Method(NamedTuple):
    """Makes an algorithm from its clients' step and a second parameter, with candidates for it."""

    make: Callable[..., Algorithm]
    own: Sequence[float] = (0.0,)
    called: str = ""


#: In the order of the legend.
METHODS = {
    FEDAVG: Method(lambda step, extra, **rest: FedAvg(step, **rest)),
    FEDPROX: Method(
        lambda step, extra, **rest: FedProx(step, attraction=extra, **rest),
        ATTRACTIONS.value,
        "μ",
    ),
    SCAFFOLDS: Method(lambda step, extra, **rest: SCAFFOLD(step, **rest)),
    FEDDYN: Method(
        lambda step, extra, **rest: FedDyn(step, attraction=extra, **rest),
        BENDS.value,
        "attraction",
    ),
    FEDAVGM: Method(lambda step, extra, **rest: FedAvgM(step, momentum=MOMENTUM.value, **rest)),
    FEDADAM: Method(
        lambda step, extra, **rest: FedAdam(step, server_step_size=extra, **rest),
        SERVER_STEPS.value,
        "η",
    ),
}
NOVA = Method(lambda step, extra, **rest: FedNova(step, **rest))
#: SCAFFOLD with the gradient where a client starts for its variate.
GRADIENTS = Method(lambda step, extra, **rest: SCAFFOLD(step, variate="gradient", **rest))


class Size(NamedTuple):
    """The size of the learning problem."""

    images: Callable[[], Images]
    clients: int
    chosen: int
    samples: int
    rounds: int
    network: Any
    test: int  # stride through the test images

    @property
    def unequal(self) -> tuple[int, ...]:
        """Local steps of each client."""
        least, most = UNEQUAL.value
        return tuple(np.linspace(least, most, self.clients).round().astype(int).tolist())


FULL = Size(
    fl.data.mnist,
    *(CLIENTS.value, CHOSEN.value, SAMPLES.value, ROUNDS.value),
    fl.models.mlp(10, NETWORK.value),
    10,
)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, 6, 3, 40, 2 * LATE.value * EVERY.value, fl.models.mlp(10, [4]), 5)

# --------------------------------------------------------------------------- the scenario


class Pool(NamedTuple):
    """Images to draw from, by digit."""

    images: np.ndarray  # [n, 14, 14]  in [0, 1]
    rows: np.ndarray  # [C, most]  of each digit, padded
    counts: np.ndarray  # [C]
    test: Model


@functools.cache
def pool(size: Size) -> Pool:
    result = size.images()
    rows = [np.flatnonzero(result.train_labels == c) for c in range(len(result.classes))]
    counts = np.asarray([len(r) for r in rows], np.int32)
    table = np.stack([np.pad(r, (0, counts.max() - len(r))) for r in rows]).astype(np.int32)
    test = Model(
        halved(result.test_images[:: size.test])[None],
        result.test_labels[None, :: size.test].astype(np.float32),
        Softmax(len(result.classes)),
        architecture=size.network,
    )
    return Pool(halved(result.train_images), table, counts, test)


def dealt(key: Array, concentration: Array, size: Size) -> Model:
    """Every client's digits, and its images of them."""
    source = pool(size)
    dtype = float_dtype()
    k_shares, k_digits, k_images, k_start = jax.random.split(key, 4)
    clients = size.clients
    samples = size.samples
    digits = len(source.counts)
    concentrations = jnp.full(digits, concentration, dtype)
    shares = jax.random.dirichlet(k_shares, concentrations, (clients,), dtype)
    digit = jax.random.categorical(
        k_digits, jnp.log(shares)[:, None], shape=(clients, samples)
    ).astype(jnp.int32)
    counts = jnp.asarray(source.counts)[digit]
    index = jax.random.uniform(k_images, (clients, samples), dtype) * counts.astype(dtype)
    # In single precision the product may be rounded up to the count.
    index = jnp.minimum(index.astype(jnp.int32), counts - 1)
    images = jnp.asarray(source.images)[jnp.asarray(source.rows)[digit, index]]
    problem = Model(
        images.astype(dtype),
        digit.astype(dtype),
        source.test.loss,
        architecture=size.network,
        test=source.test,
    )
    return problem.initialized(k_start)


class Point(NamedTuple):
    """The parameters that differ between runs of one program."""

    concentration: Any
    step: Any
    own: Any


@functools.cache
def scenario(
    name: str, method: Method, size: Size, unequal: bool = False
) -> Callable[..., fl.Simulation]:
    """The scenario of one algorithm; ``unequal``: with different numbers of local steps."""

    def build(key: Array, point: Point) -> fl.Simulation:
        rest: dict[str, Any] = {"clients_per_round": size.chosen, "batch": BATCH.value}
        rest |= {"local_steps": size.unequal} if unequal else {"epochs": EPOCHS.value}
        return fl.Simulation(
            problem=dealt(key, point.concentration, size),
            algorithm=method.make(point.step, point.own, **rest),
            metrics=[ACCURACY],
        )

    build.__qualname__ = f"models({name!r}, {unequal}, {size[1:5]!r})"
    return build


def run(
    store: str,
    name: str,
    method: Method,
    points: Sequence[Point],
    seeds: Any,
    size: Size,
    effort: Effort,
    unequal: bool = False,
) -> xr.Dataset:
    """One algorithm at one point for each concentration, by a single compiled program."""
    dtype = float_dtype()
    arrays = [Point(*(np.asarray(number, dtype) for number in point)) for point in points]
    results = effort.sweep(
        store,
        scenario(name, method, size, unequal),
        rounds=size.rounds,
        record_every=EVERY.value,
        seeds=seeds,
        grid={"point": dict(zip(map(str, ALL), arrays, strict=True))},
    )
    return judged(results.rename(point=ALPHA).assign_coords({ALPHA: [*ALL]}))


def judged(results: xr.Dataset) -> xr.Dataset:
    """The stored variables; a diverged run counts as guessing in all of its rounds."""
    accuracy = results[ACCURACY].where(results["diverged"] == 0, 0.1)
    accuracy.attrs = results[ACCURACY].attrs
    return results.assign({ACCURACY: accuracy})[[ACCURACY, "bits"]]


# --------------------------------------------------------------------------- study


def tried(method: Method, effort: Effort) -> list[tuple[float, float]]:
    """Pairs of a local step size and the second parameter."""
    keep = 1 if effort.quick else len(STEPS.value)
    return [*itertools.product(effort.thin(STEPS.value, keep), effort.thin(method.own, keep))]


def tune(name: str, method: Method, size: Size, effort: Effort) -> xr.Dataset:
    """Every candidate's accuracy, ``[candidate, concentration, seed]``."""
    seeds = tuning_seeds(min(effort.tuning_seeds, SEEDS.value))
    parts = []
    for step, extra in tried(method, effort):
        points = [Point(a, step, extra) for a in ALL]
        store = f"tuning-{name}-{step:g}-{extra:g}"
        results = run(store, name, method, points, seeds, size, effort)
        late = results[[ACCURACY]].sel(round=slice(size.rounds // 2 + 1, None)).mean("round")
        of = {"tuned": name, "step": step, "own": extra}
        parts.append(
            late.expand_dims("candidate").assign_coords(
                {k: ("candidate", [v]) for k, v in of.items()}
            )
        )
    return joined(*parts, axis="candidate")


def chosen(tuning: xr.Dataset, name: str) -> list[Point]:
    """The best candidate of an algorithm, for every concentration."""
    ours = tuning.isel(candidate=np.flatnonzero(tuning["tuned"].values == name))
    best = ours[ACCURACY].mean("seed").argmax("candidate").values
    steps, extras = (ours[kind].values[best] for kind in ("step", "own"))
    return [Point(*row) for row in zip(ALL, steps, extras, strict=True)]


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    seeds = min(effort.seeds, SEEDS.value)

    rows = []
    parts = {}
    for name, method in METHODS.items():
        rows.append(tune(name, method, size, effort))
        points = chosen(rows[-1], name)
        parts[name] = run(f"a-{name}", name, method, points, seeds, size, effort)
    as_fedavg = chosen(rows[0], FEDAVG)
    unequal = {
        name: run(f"steps-{name}", name, method, as_fedavg, seeds, size, effort, unequal=True)
        for name, method in {FEDAVG: METHODS[FEDAVG], FEDNOVA: NOVA}.items()
    }
    everyone = size._replace(chosen=size.clients)
    present = {
        name: run(f"present-{name}", name, method, as_fedavg, seeds, everyone, effort)
        for name, method in {SCAFFOLDS: METHODS[SCAFFOLDS], OPTION_I: GRADIENTS}.items()
    }

    def full_participation(of: dict[str, xr.Dataset]) -> xr.Dataset:
        return joined(*of.values()).assign_coords(algorithm=[*of])

    tuning = joined(*rows, axis="candidate")
    return {
        "a": full_participation(parts),
        "steps": full_participation(unequal),
        "present": full_participation(present),
        "tuning": tuning,
    }


# --------------------------------------------------------------------------- the picture

#: Lower accuracies occur only in the first rounds.
SHOWN = (0.4, 1.0)


def plot(studies: Studies) -> Picture:
    """A column a concentration; accuracy by rounds, by bits, and with unequal local steps."""
    rows = [("a", "round"), ("a", "bits"), ("steps", "round")]
    drawing, grid = plt.subplots(3, 3, figsize=(picture.PAGE, 5.4), sharey=True)
    looks = dict(zip([*METHODS, FEDNOVA], plotting.LOOKS, strict=True))
    letters = iter("abcdefghi")
    for axes, (name, x) in zip(grid, rows, strict=True):
        for ax, concentration in zip(axes, ALL, strict=True):
            data = studies[name].sel({ALPHA: concentration})
            plotting.learning_curves(data, ACCURACY, "algorithm", ax, x=x, legend=False)
            # One legend for all panels is below the picture.
            for line, algorithm in zip(ax.lines, data["algorithm"].values, strict=True):
                line.set(**looks[str(algorithm)], markevery=3, label="_")
            for band, line in zip(ax.collections, ax.lines, strict=True):
                band.set_color(line.get_color())
            picture.fade(ax)
            what = ", unequal local steps" if name == "steps" else ""
            ax.set(ylim=SHOWN, title=f"({next(letters)}) alpha = {concentration:g}{what}")
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel("round" if x == "round" else "bits of all clients, up and down [bit]")
    for ax in grid[0]:
        for algorithm, look in looks.items():
            ax.plot([], [], **look, label=algorithm)
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def runs(studies: Studies, name: str, concentration: float, study: str = "a") -> xr.DataArray:
    """``[seed, round]``."""
    result = studies[study][ACCURACY].sel({"algorithm": name, ALPHA: concentration})
    return result.transpose("seed", "round")


def end(curves: xr.DataArray) -> np.ndarray:
    """``[S]``."""
    return curves.isel(round=slice(-LATE.value, None)).mean("round").values.astype(float)


def halfway(curves: xr.DataArray) -> np.ndarray:
    """``[S]``."""
    first = (curves.sizes["round"] - LATE.value) // 2
    middle = curves.isel(round=slice(first, first + LATE.value))
    return middle.mean("round").values.astype(float)


def needed(studies: Studies, name: str, concentration: float) -> np.ndarray:
    """``[S]``: rounds until a seed's accuracy reaches FedAvg's halfway; if it does not, one record
    more than the run has.
    """
    level = halfway(runs(studies, FEDAVG, concentration))
    curves = runs(studies, name, concentration)
    at_level = curves.values >= level[:, None]
    rounds = np.append(curves["round"].values, curves["round"].values[-1] + EVERY.value)
    return rounds[np.where(at_level.any(axis=1), at_level.argmax(axis=1), -1)].astype(float)


def bits_of(studies: Studies, name: str, concentration: float) -> np.ndarray:
    """``[S]``: bits of a round, both directions together."""
    sent = studies["a"]["bits"].sel({"algorithm": name, ALPHA: concentration}).isel(round=-1)
    return np.asarray(sent / int(studies["a"]["round"][-1]), float)


def gain(over: str, under: str, *concentrations: float, study: str = "a") -> Measure:
    """By how many points the first is more accurate at the end."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for a in concentrations:
            final_accuracies = (end(runs(studies, name, a, study)) for name in (over, under))
            result[f"{over} above {under}, alpha = {a:g}"] = estimate(
                lambda over, under: 100 * (over - under), *final_accuracies, unit="points"
            )
        return result

    return measure


def saved(
    ours: str, theirs: str, *concentrations: float, of: Callable[..., Any] = lambda *_: 1.0
) -> Measure:
    """The saving of ``ours`` over ``theirs`` in rounds, or in a cost of rounds, per cent."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for a in concentrations:
            costs = (needed(studies, n, a) * of(studies, n, a) for n in (ours, theirs))
            result[f"{ours} for {theirs}, alpha = {a:g}"] = estimate(
                lambda ours, theirs: 100 * (1 - ours / theirs), *costs, unit="%"
            )
        return result

    return measure


def merged(*measures: Measure) -> Measure:
    return lambda studies: {k: v for m in measures for k, v in m(studies).items()}


def twice(studies: Studies) -> dict[str, Estimate]:
    return {
        f"alpha = {a:g}": estimate(
            lambda over, under: over / under,
            bits_of(studies, SCAFFOLDS, a),
            bits_of(studies, FEDAVG, a),
            unit="",
        )
        for a in ALL
    }


def dropped(studies: Studies) -> dict[str, Estimate]:
    """The accuracy that every algorithm loses if clients are dissimilar."""
    return {
        name: estimate(
            lambda over, under: 100 * (over - under),
            *(end(runs(studies, name, a)) for a in (ALIKE, UNLIKE)),
            unit="points",
        )
        for name in METHODS
    }


def ends(studies: Studies, concentration: float) -> str:
    """How accurate all are at the end."""
    result = {n: 100 * end(runs(studies, n, concentration)) for n in METHODS}
    return ", ".join(f"{n} {v.mean():.1f} % ({np.median(v):.1f})" for n, v in result.items())


def accurate(concentration: float) -> Callable[[Studies], str]:
    return lambda studies: (
        f"Means (medians) at the end, at alpha = {concentration:g}: {ends(studies, concentration)}."
    )


def rounds_to(concentration: float) -> Callable[[Studies], str]:
    def note(studies: Studies) -> str:
        result = {n: needed(studies, n, concentration) for n in METHODS}
        listed = ", ".join(f"{n} {v.mean():.1f} ({np.median(v):g})" for n, v in result.items())
        return (
            f"Mean (median) rounds until FedAvg's accuracy halfway, at alpha = {concentration:g}: "
            f"{listed}."
        )

    return note


def unsteady(concentration: float) -> Callable[[Studies], str]:
    """The steps at which SCAFFOLD is stable, and whether absent clients are the reason."""

    def note(studies: Studies) -> str:
        tuning = studies["tuning"]
        of = {
            name: next(p.step for p in chosen(tuning, name) if p.concentration == concentration)
            for name in (FEDAVG, SCAFFOLDS)
        }

        def tried(name: str, step: float) -> float:
            same = (tuning["tuned"] == name) & (tuning["step"] == step)
            result = tuning[ACCURACY].isel(candidate=np.flatnonzero(same.values))
            return 100 * float(result.sel({ALPHA: concentration}).mean())

        least = float(tuning["step"].min())
        updates, gradients = (
            100 * end(runs(studies, name, concentration, "present")).mean()
            for name in (SCAFFOLDS, OPTION_I)
        )
        return (
            f"{rounds_to(concentration)(studies)} FedAvg is best with a step of {of[FEDAVG]:g}, "
            f"SCAFFOLD with {of[SCAFFOLDS]:g}. On the tuning seeds, over the later rounds, "
            f"SCAFFOLD with FedAvg's step came to {tried(SCAFFOLDS, of[FEDAVG]):.1f} %, with "
            f"{least:g} to {tried(SCAFFOLDS, least):.1f} %, where FedAvg came to "
            f"{tried(FEDAVG, least):.1f} %. At FedAvg's step, with all clients in every round, so "
            f"that no variate is old, it ends at {updates:.1f} %, and with gradients for variates "
            f"(option I of the paper) at {gradients:.1f} %. {READING}"
        )

    return note


def with_one_step(studies: Studies) -> str:
    """Where FedAvg and FedNova end with unequal local steps."""
    result = (
        f"{name} {100 * end(runs(studies, name, UNLIKE, 'steps')).mean():.1f} %"
        for name in (FEDAVG, FEDNOVA)
    )
    return (
        f"At alpha = {UNLIKE:g} they end at {' and '.join(result)}, with the step that is best for "
        "FedAvg with equal numbers of steps. Our reading: who takes many steps is no matter of "
        "its digits here, and over the rounds most of what FedAvg weighs wrongly evens out."
    )


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """Every candidate with its accuracy, for the record."""
    tuning = studies["tuning"]
    scores = 1 - tuning[ACCURACY].mean("seed")
    rows = []
    for name, method in METHODS.items():
        for point in chosen(tuning, name):
            for i in np.flatnonzero(tuning["tuned"].values == name):
                candidate = tuning.isel(candidate=i)
                step = float(candidate["step"])
                extra = float(candidate["own"])
                score = float(scores.isel(candidate=i).sel({ALPHA: point.concentration}))
                also = f" with {method.called} = {extra:g}" if method.called else ""
                rows.append(
                    {
                        "method": f"{name} (alpha = {point.concentration:g})",
                        "parameter": f"local step{also}",
                        "value": step,
                        "rule": "final",
                        "score": score,
                        "final_error": score,
                        "chosen": (step, extra) == (point.step, point.own),
                    }
                )
    return rows


OURS = "this library"
READING = (
    "Our reading: a variate is the mean of gradients along a way that it bends itself, and its "
    "error grows from visit to visit where curvature is negative and the way is long (see "
    "SCAFFOLD's documentation; the paper's theorems ask for shorter ones). Option I has no such "
    "loop, but the gradient of two or three digits is soon another."
)
SMALL = "ours: MNIST, a network of 6,600 parameters, 40 rounds"
REACHED = "rounds until the accuracy that FedAvg has halfway, seed by seed"
NO_WORSE = LITTLE.points.when("of FedAvg: the other is “at least as good”")

FIGURE = Figure(
    name="models",
    title="A network learned federatedly: six algorithms from unlike to like clients",
    source="ours; claims of the papers that introduced the algorithms",
    caption="Columns are concentrations of the Dirichlet law of the clients' digits. (a)-(c) test "
    "accuracy of the server's model by rounds, (d)-(f) the same by bits sent, both directions "
    "together, (g)-(i) with clients that take from 2 to 18 local steps. Means of "
    f"{SEEDS.value} seeds with 95 % bands. Step sizes are tuned, for every algorithm and "
    "concentration by the same grid, on other seeds. Intervals of the claims are Student's t of "
    "the jackknife, here alone: with few seeds the bootstrap's would be too narrow.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "unlike-clients-cost-accuracy",
            "accuracy is lower the more clients' digits differ",
            "Hsu et al. 2019, abstract",
            lambda studies: {FEDAVG: dropped(studies)[FEDAVG]},
            (0, INFINITE),
            f"FedAvg at alpha = {ALIKE:g} above itself at alpha = {UNLIKE:g}",
            SMALL,
            note=accurate(UNLIKE),
        ),
        Claim(
            "scaffold-saves-rounds-where-clients-differ",
            "SCAFFOLD needs fewer rounds than FedAvg where clients differ",
            "Karimireddy et al. 2020, abstract",
            saved(SCAFFOLDS, FEDAVG, UNLIKE),
            (0, INFINITE),
            f"{REACHED}, alpha = {UNLIKE:g}",
            SMALL,
            note=unsteady(UNLIKE),
        ),
        Claim(
            "scaffold-is-fedavg-where-clients-are-alike",
            "where they are alike it needs about as many",
            "Karimireddy et al. 2020, experiments",
            saved(SCAFFOLDS, FEDAVG, ALIKE),
            (-25, 25),
            "“about”: within a fourth; " + REACHED,
            SMALL,
            note=unsteady(ALIKE),
        ),
        Claim(
            "scaffold-sends-twice-the-bits",
            "SCAFFOLD sends twice the bits a round",
            "Karimireddy et al. 2020, Algorithm 1",
            twice,
            (2, 2),
            construction="a model and a control variate, both ways",
        ),
        Claim(
            "scaffold-saves-bits-where-clients-differ",
            "what SCAFFOLD saves in rounds outweighs that it sends twice as much in each",
            OURS,
            saved(SCAFFOLDS, FEDAVG, UNLIKE, of=bits_of),
            (0, INFINITE),
            f"{REACHED}, times bits a round",
            ours=True,
            note=unsteady(UNLIKE),
        ),
        Claim(
            "feddyn-saves-rounds",
            "FedDyn needs fewer rounds than FedAvg, FedProx and SCAFFOLD",
            "Acar et al. 2021, experiments",
            merged(*(saved(FEDDYN, o, *ALL) for o in (FEDAVG, FEDPROX, SCAFFOLDS))),
            (0, INFINITE),
            f"{REACHED}, at every concentration",
            SMALL,
            note=rounds_to(UNLIKE),
        ),
        Claim(
            "feddyn-saves-bits",
            "FedDyn needs fewer bits than SCAFFOLD",
            "Acar et al. 2021, experiments",
            saved(FEDDYN, SCAFFOLDS, *ALL, of=bits_of),
            (0, INFINITE),
            f"{REACHED}, times bits a round",
            SMALL,
            note=rounds_to(UNLIKE),
        ),
        Claim(
            "fedprox-is-no-worse",
            "FedProx is at least as good as FedAvg where clients differ",
            "Li et al. 2020, experiments",
            gain(FEDAVG, FEDPROX, UNLIKE),
            *NO_WORSE,
            "ours: MNIST, 40 rounds, and nobody who drops out or takes fewer steps",
            note=accurate(UNLIKE),
            changed="μ from 0.001 on and steps up to 3 are tried, where 0.01 and 1 had been the "
            "ends; the best μ is now the least, of which FedProx is nearly FedAvg.",
        ),
        Claim(
            "momentum-helps-where-clients-differ",
            "momentum at the server makes up for much of what unlike clients cost",
            "Hsu et al. 2019, abstract",
            gain(FEDAVGM, FEDAVG, UNLIKE),
            (0, INFINITE),
            "FedAvgM ends above FedAvg",
            SMALL,
            note=accurate(UNLIKE),
        ),
        Claim(
            "adam-is-no-worse",
            "an adaptive server is at least as good as plain averaging",
            "Reddi et al. 2021, experiments",
            gain(FEDAVG, FEDADAM, *ALL),
            *NO_WORSE,
            SMALL,
            note=accurate(UNLIKE),
        ),
        Claim(
            "fednova-corrects-unequal-steps",
            "where clients differ and take unequal numbers of local steps, FedNova ends better "
            "than FedAvg",
            "Wang et al. 2020, experiments",
            gain(FEDNOVA, FEDAVG, UNLIKE, study="steps"),
            (0, INFINITE),
            "",
            "ours: MNIST, from 2 to 18 steps, one step size for both",
            note=with_one_step,
        ),
        Claim(
            "fednova-is-fedavg-where-clients-are-alike",
            "where clients are alike, weights by steps do no harm, and FedNova ends like FedAvg",
            "Wang et al. 2020",
            gain(FEDNOVA, FEDAVG, ALIKE, study="steps"),
            *CLOSE.points,
            "ours: MNIST, from 2 to 18 steps, one step size for both",
            note="Local steps of unequal clients drift unequally even where their data are alike.",
        ),
    ],
    settings=(
        *(CONCENTRATIONS, CLIENTS, CHOSEN, SAMPLES, HALVED, NETWORK, TEST, BATCH, EPOCHS, ROUNDS),
        *(EVERY, SEEDS, STEPS, ATTRACTIONS, BENDS, SERVER_STEPS, MOMENTUM, RULE),
        *(TUNING_SEEDS._replace(value=f"{SEEDS.value} {TUNING_SEEDS.value}"), UNEQUAL, LATE),
    ),
    tuning=tuning_table,
    keep=("bits",),
)
