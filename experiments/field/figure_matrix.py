"""Matrix mechanisms at a trusted server: accuracy of DP-SGD, DP-FTRL, BandMF, BLT by epsilon."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture, tuning
from experiments.conventions import BETTER, CLOSE
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
from experiments.pixels import low_frequencies
from fljax import plotting
from fljax.data.images import Images
from fljax.participation.selectors import Cyclic, Fraction, Selector
from fljax.privacy import CentralGaussian, matrices
from fljax.privacy.matrices import Strategy
from fljax.problems import Problem

# --------------------------------------------------------------------------- settings

CLIENTS = Setting(
    "clients",
    600,
    "of 100 images each, dealt at random once; so few that noise matters at every budget: among "
    "3,000 clients all methods are within 0.03 points at epsilon 8",
)
SIDE = Setting("lowest frequencies of an image", 8, "to each side, 64 numbers; 650 parameters")
ROUNDS = Setting("rounds", 100, "each with one gradient step of every participant")
COHORT = Setting(
    "participants a round",
    60,
    "a tenth of the clients, so that each takes part 10 times; on average where they are drawn",
)
TURNS = Setting("rounds between two participations", 10, "clients / participants")
CLIP = Setting("clip of a gradient", 1.0, "most gradients are longer")
DELTA = Setting("delta", 1e-5, "far below one in the number of clients")
BUDGETS = Setting("epsilon", (0.5, 2.0, 8.0), "of a client, in all rounds")
STEPS = Setting(
    "step sizes tried",
    (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "for each method and budget, by the mean error of the last rounds",
)
BANDS = Setting("bands where clients are drawn by turns", (2, 5), "and one, which is DP-SGD")
EVERY = Setting("recorded", 5, "every so many rounds")
END = Setting("records that are read", 4, "the mean over the last fifth of the rounds")
TUNING_SEEDS = Setting("tuning seeds at most", 2, tuning.SEEDS.value)
SEEDS = Setting(
    "seeds at most",
    10,
    "participants and noise anew for each, the same participants for methods of one sampling. "
    "Intervals are Student's t of the jackknife over paired seeds",
)

ERROR = "error_rate"
DPSGD = "independent"
FTRL = "square root"
BANDMF = "BandMF"
BLT = "BLT"
SAMPLED = "DP-SGD"

# --------------------------------------------------------------------------- study


class Method(NamedTuple):
    """A strategy, and how clients are chosen; no strategy is independent noise."""

    strategy: Strategy | None
    selector: Selector


def by_turns(rounds: int) -> dict[str, Method]:
    """Cohorts in turn, with all of their clients; participation may be public."""
    horizon = {"rounds": rounds, "separation": TURNS.value}
    strategies = {
        DPSGD: None,
        FTRL: matrices.square_root(TURNS.value),
        BANDMF: matrices.optimize_banded_toeplitz(bands=TURNS.value, **horizon),
        BLT: matrices.optimize_buffered_toeplitz(**horizon),
    }
    return {name: Method(strategy, Cyclic(TURNS.value)) for name, strategy in strategies.items()}


def drawn(rounds: int) -> dict[str, Method]:
    """Clients are drawn in secret: from all of them, or from a cohort that takes its turn."""
    methods = {SAMPLED: Method(None, Fraction(1 / TURNS.value))}
    for bands in BANDS.value:
        strategy = matrices.optimize_banded_toeplitz(rounds, bands=bands, separation=bands)
        methods[banded(bands)] = Method(strategy, Cyclic(bands, fraction=bands / TURNS.value))
    return methods


def banded(bands: int) -> str:
    return f"{BANDMF} of {bands} bands"


SAMPLINGS = {"turns": by_turns, "drawn": drawn}
NAMES = {
    "turns": (DPSGD, FTRL, BANDMF, BLT),
    "drawn": (SAMPLED, *map(banded, BANDS.value)),
}


def mechanism(method: Method, epsilon: float, rounds: int) -> CentralGaussian:
    return CentralGaussian.for_budget(
        epsilon,
        DELTA.value,
        rounds,
        method.selector,
        CLIENTS.value,
        strategy=method.strategy,
    )


@functools.cache
def dealt(images: Callable[[], Images]) -> Problem:
    """All images, dealt to the clients at random."""
    dataset = images()

    def features(raw: np.ndarray) -> np.ndarray:
        waves = low_frequencies(raw, SIDE.value)
        return np.concatenate([waves, np.ones((len(waves), 1), np.float32)], axis=1)

    order = np.random.default_rng(0).permutation(len(dataset.train_labels))
    per_client = max(1, len(order) // CLIENTS.value)
    order = np.resize(order, CLIENTS.value * per_client).reshape(CLIENTS.value, per_client)
    problem = Problem(
        features(dataset.train_images)[order],
        dataset.train_labels.astype(np.float32)[order],
        fl.problems.Softmax(10),
    )
    return problem.with_test(features(dataset.test_images), dataset.test_labels.astype(np.float32))


@functools.cache
def scenario(
    method: Method, multipliers: tuple[float, ...], images: Callable[[], Images]
) -> Callable[..., fl.Simulation]:
    problem = dealt(images)

    def build(key: Array, budget: Array, step: Array) -> fl.Simulation:
        steps = jnp.asarray(step)
        # A study has a step for each budget; a search tries one step for all.
        step = jnp.broadcast_to(steps, (len(multipliers),))[budget]
        return fl.Simulation(
            problem,
            fl.algorithms.FedAvg(step, weighting="equal", selector=method.selector),
            privacy=CentralGaussian(
                jnp.asarray(multipliers)[budget], CLIP.value * step, strategy=method.strategy
            ),
            metrics=[ERROR],
        )

    return build


def ending(data: xr.Dataset) -> xr.DataArray:
    """The mean error rates at the end."""
    return data[ERROR].isel(round=slice(-END.value, None)).mean("round")


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    rounds = 2 * TURNS.value if effort.quick else ROUNDS.value
    every = 2 if effort.quick else EVERY.value
    budgets = range(len(BUDGETS.value))

    def run(kind: str, number: int, method: Method) -> xr.Dataset:
        noise = tuple(float(mechanism(method, e, rounds).noise_multiplier) for e in BUDGETS.value)
        common = {"rounds": rounds, "record_every": every}
        build = scenario(method, noise, images)
        best = [STEPS.value[0] for _ in budgets]
        if not effort.quick:
            tried = effort.sweep(
                f"tuning-{kind}-{number}",
                build,
                seeds=tuning.seeds(min(effort.tuning_seeds, TUNING_SEEDS.value)),
                grid={"budget": [*budgets], "step": [*STEPS.value]},
                **common,
            )
            late = ending(tried).to_dataset().assign(diverged=tried["diverged"])
            errors = tuning.means(late, ERROR)
            best = [STEPS.value[int(errors.sel(budget=b).argmin("step"))] for b in budgets]

        def chosen(key: Array, budget: Array) -> fl.Simulation:
            return build(key, budget, jnp.asarray(best))

        chosen.__qualname__ = f"matrix({kind}, {number}, {best})"
        results = effort.sweep(
            f"{kind}-{number}",
            chosen,
            seeds=min(effort.seeds, SEEDS.value),
            grid={"budget": [*budgets]},
            **common,
        )
        spent = fl.privacy.spent(results, delta=DELTA.value).epsilon.isel(round=-1).max("seed")
        strategy = method.strategy or matrices.identity()
        left = float(np.sqrt(strategy.error(rounds))) * np.asarray(noise)
        stored = results[[ERROR]].assign(
            spent=spent,
            step=("budget", best),
            left=("budget", left),
            nominal=("budget", results["nominal"].max("seed").values.astype(float)),
        )
        return stored.assign_coords(budget=[*BUDGETS.value])

    def of(kind: str) -> xr.Dataset:
        methods = SAMPLINGS[kind](rounds)
        parts = [run(kind, number, method) for number, method in enumerate(methods.values())]
        return joined(*parts).assign_coords(algorithm=[*methods])

    return {kind: of(kind) for kind in SAMPLINGS}


# --------------------------------------------------------------------------- the picture


def accuracy(studies: Studies, kind: str, name: str, epsilon: float) -> np.ndarray:
    """``[S]``, in per cent."""
    data = studies[kind].sel(algorithm=name, budget=epsilon)
    return 100 * (1 - ending(data).transpose("seed").values.astype(float))


TITLES = {"turns": "clients in turns, known", "drawn": "clients drawn, secret"}


def plot(studies: Studies) -> Picture:
    titles = (*TITLES.values(), "noise in prefix sums")
    drawing, axes = picture.panels(titles, height=2.4)
    at = np.arange(len(BUDGETS.value))
    for ax, kind in zip(axes[:2], NAMES, strict=True):
        for index, name in enumerate(NAMES[kind]):
            estimates = [
                of_few(float, accuracy(studies, kind, name, e), unit="") for e in BUDGETS.value
            ]
            bars = np.abs([[e.value - e.low, e.high - e.value] for e in estimates]).T
            look = {k: plotting.LOOKS[index][k] for k in ("color", "marker")}
            middle = at + 0.06 * (index - (len(NAMES[kind]) - 1) / 2)
            ax.errorbar(middle, [e.value for e in estimates], bars, label=name, capsize=2, **look)
        ax.set(ylabel="test accuracy [%]")
    for kind, names in NAMES.items():
        for index, name in enumerate(names):
            left = studies[kind]["left"].sel(algorithm=name) / COHORT.value
            style = "-" if kind == "turns" else "--"
            look = {k: plotting.LOOKS[index][k] for k in ("color", "marker")}
            axes[2].plot(at, left, style, label=name, **look)
    axes[2].set(yscale="log", ylabel="deviation [clips]")
    for ax in axes:
        ax.set(
            xlabel=f"epsilon at delta = {DELTA.value:g}",
            xticks=at,
            xticklabels=[f"{e:g}" for e in BUDGETS.value],
        )
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims


def more(kind: str, over: str, under: str, *budgets: float) -> Measure:
    """By how many points one is above the other, by budget."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        return {
            f"{over} above {under}, epsilon {epsilon:g}": of_few(
                lambda a, b: a - b,
                *(accuracy(studies, kind, name, epsilon) for name in (over, under)),
                unit="points",
            )
            for epsilon in budgets or BUDGETS.value
        }

    return measure


def table(studies: Studies) -> str:
    """Accuracies, steps and noise."""
    rows = []
    for kind, names in NAMES.items():
        data = studies[kind]
        for name in names:
            parts = (
                f"{accuracy(studies, kind, name, e).mean():.1f} % (step "
                f"{float(data['step'].sel(algorithm=name, budget=e)):g}, "
                f"{float(data['left'].sel(algorithm=name, budget=e)) / COHORT.value:.2g} clips)"
                for e in BUDGETS.value
            )
            rows.append(f"{name}: {', '.join(parts)}")
    return (
        f"Accuracy at epsilon {', '.join(f'{e:g}' for e in BUDGETS.value)}, with the step and the "
        f"deviation of the noise that is left in a prefix sum of mean gradients: {'; '.join(rows)}."
    )


def tuned(studies: Studies) -> list[dict[str, Any]]:
    """A note: the chosen steps."""
    return [
        {
            "method": f"{name} ({TITLES[kind]})",
            "numbers": "; ".join(
                f"step size {step:g} at epsilon {epsilon:g}"
                for epsilon, step in zip(
                    BUDGETS.value, studies[kind]["step"].sel(algorithm=name).values, strict=True
                )
            ),
            "chosen": True,
        }
        for kind, names in NAMES.items()
        for name in names
    ]


OURS = (
    f"ours: softmax regression on MNIST by {CLIENTS.value:,} clients, {ROUNDS.value} rounds; the "
    "sources train language models of phones, and networks on CIFAR-10"
)
SMALL, *_, LARGE = BUDGETS.value

FIGURE = Figure(
    name="field-matrix",
    title="Matrix mechanisms: accuracy at equal epsilon",
    source="Choquette-Choo et al. 2023; Kalinin & Lampert 2024; McMahan, Xu & Zhang 2024",
    caption="Softmax regression on MNIST, at each client 100 images, whose gradients are clipped, "
    "summed and perturbed by a server. (a) A tenth of the clients in turn, (b) a tenth of the "
    "clients drawn in secret. (c) Deviation of the noise that is left in a prefix sum of the mean "
    "gradients, (a) solid and (b) dashed. Every step size is tuned on other seeds. Means of "
    f"{SEEDS.value} seeds with 95 % intervals.",
    study=study,
    plot=plot,
    tuning=tuned,
    double=True,
    claims=[
        Claim(
            "correlated-beats-independent",
            "where no sampling amplifies, correlated noise is better than independent noise",
            "Kairouz et al. 2021, introduction",
            more("turns", FTRL, DPSGD),
            *BETTER.points,
            OURS,
            note=table,
        ),
        Claim(
            "optimized-beats-independent",
            "BandMF is better than DP-SGD without amplification, at every epsilon",
            "Choquette-Choo et al. 2023, abstract (cross-device federated learning)",
            more("turns", BANDMF, DPSGD),
            *BETTER.points,
            OURS,
            note=table,
        ),
        Claim(
            "blt-tracks-bandmf",
            "BLT is close to BandMF, with a memory of a few rows",
            "McMahan, Xu & Zhang 2024, abstract",
            more("turns", BLT, BANDMF),
            *CLOSE.points,
            OURS,
            note=table,
        ),
        Claim(
            "square-root-tracks-bandmf",
            "the banded square root, which nobody has to optimize, is close to BandMF",
            "Kalinin & Lampert 2024, abstract",
            more("turns", FTRL, BANDMF),
            *CLOSE.points,
            OURS,
            note=table,
        ),
        Claim(
            "amplified-bandmf-wins-at-large-epsilon",
            "amplified BandMF is better than amplified DP-SGD at larger epsilon",
            "Choquette-Choo et al. 2023, abstract",
            more("drawn", banded(BANDS.value[0]), SAMPLED, LARGE),
            *BETTER.points,
            OURS,
            note=table,
        ),
        Claim(
            "sampling-wins-at-small-epsilon",
            "at small epsilon amplification by sampling is worth more than correlation: DP-SGD is "
            "better than BandMF without it",
            "Choquette-Choo et al. 2023, abstract",
            lambda studies: {
                f"{SAMPLED} above {BANDMF} in turns, epsilon {SMALL:g}": of_few(
                    lambda a, b: a - b,
                    accuracy(studies, "drawn", SAMPLED, SMALL),
                    accuracy(studies, "turns", BANDMF, SMALL),
                    unit="points",
                )
            },
            *BETTER.points,
            OURS,
            note=table,
        ),
    ],
    settings=(
        *(CLIENTS, SIDE, ROUNDS, COHORT, TURNS, CLIP, DELTA, BUDGETS, STEPS, BANDS, EVERY, END),
        *(TUNING_SEEDS, SEEDS),
    ),
)
