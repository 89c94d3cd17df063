"""Shared by the figures of Gauthier 2024, chapter 4: settings, environments, tuning, claims.

The source gives the sizes, the data's distribution, participation, delays and one step size. Every
value that it leaves open is in this file, once, with its reason.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes

import fljax as fl
from experiments import measures, picture
from experiments.figure import Effort, Estimate, Measure, Setting
from experiments.measures import curve_gap, estimate, first_part, last, last_part, samples, two
from experiments.tuning import SEEDS, Protocol, Tuning
from fljax import plotting, statistics
from fljax.algorithms import Algorithm, OnlineFed, PAOFed, PSOFed
from fljax.data import RandomFourier, random_fourier
from fljax.link import Circular
from fljax.participation.patterns import Bernoulli, Pattern, groups
from fljax.participation.selectors import Fraction
from fljax.results.dataset import provenance

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 256, "section 4.4.1", given=True)
INPUTS = Setting("inputs L", 4, "section 4.4.1", given=True)
DIM = Setting("random Fourier features D", 200, "section 4.4.1", given=True)
SIZES = Setting(
    "samples per client, by group", (500, 1000, 1500, 2000), "section 4.4.1", given=True
)
ROUNDS = Setting(
    "iterations", 2000, "“after 2000 iterations”, section 4.4.3 on figure 4.3", given=True
)
PORTION = Setting("shared parameters m", 4, "section 4.4.2", given=True)
AVAILABILITY = Setting(
    "availability p, by group", (0.25, 0.1, 0.025, 0.005), "section 4.4.1", given=True
)
DELTA = Setting("delay parameter delta", 0.2, "section 4.4.1; “l iterations or more”", given=True)
LONGEST = Setting("longest delay", 10, "section 4.4.1; later messages are discarded", given=True)
DISCOUNT = Setting("weights of late messages", "0.2^l", "variants 2, section 4.4.2", given=True)

BANDWIDTH = Setting(
    "bandwidth of the Gaussian kernel",
    2.0,
    "least squares on these features has its least test error near it (-11.7 dB; -10.8 at 1, -11.2 "
    "at 5)",
)
SCALE = Setting(
    "scale of the features",
    1.08,
    "the largest eigenvalue of the clients' correlations is 0.88 without it and the source's 1.02 "
    "with it; scale and step matter through their product alone",
)
STEP = Setting(
    "step size of PAO-Fed", 0.4, "section 4.4.1, with the eigenvalue of 1.02", given=True
)
ARRIVALS = Setting(
    "arrival of data",
    "D_k/2000 a round",
    "“progressively made available”: a sample in each round with this probability, which keeps "
    "the stream stationary and gives each client its number of samples on average",
)
CELLS = Setting(
    "groups",
    "4 x 4 cells of 16",
    "availability groups within each data group (Gauthier et al. 2023 (PAO-Fed), section V-A)",
)
TEST = Setting(
    "test set", 1000, "from the mixture of the clients' streams, noisy responses (section 4.4.1)"
)
EARLY = Setting("iterations of the early match", "first tenth", "where the curves fall fastest")
LATE = Setting(
    "iterations of the steady state",
    "last tenth",
    "their mean: a single iteration has more noise",
)
EVERY = Setting("recorded", "every 10th iteration", "curves are smooth on that scale")

DRAWS = Setting("draws behind the level of least squares", 4, "they differ by one or two per cent")
SAMPLES = Setting(
    "samples behind the level of least squares", 40_000, "200 a feature, and as many to test on"
)
MOST_SEEDS = Setting(
    "seeds", 40, "at most: intervals are of a tenth of a dB, and claims of half a dB or more"
)
TUNING_SEEDS = Setting(
    "tuning seeds used", 8, "the scores compare mean curves of 256 clients, which hardly vary"
)

COMMON = (
    *(CLIENTS, INPUTS, DIM, SIZES, ROUNDS, PORTION, AVAILABILITY, DELTA, LONGEST, DISCOUNT),
    *(
        BANDWIDTH,
        SCALE,
        STEP,
        ARRIVALS,
        CELLS,
        TEST,
        EARLY,
        LATE,
        MOST_SEEDS,
        SEEDS,
        TUNING_SEEDS,
        EVERY,
    ),
)
LEAST_SQUARES = (DRAWS, SAMPLES)

METRIC = "test_error"
RECORD_EVERY = 10
WORD = 32

ONE_MEANING = "“Significantly” is 3 dB and more in all documents now, before 1 dB here."

#: Why verdicts that depend on a matched step may have changed.
REMATCHED = (
    "PAO-Fed now has the source's own step with the source's eigenvalue, and the comparators' "
    "steps, matched to it, have candidates nearer to each other."
)

EACH_WAY = {"bits_up": "clients to server", "bits_down": "server to clients"}

#: Candidates of the tuning, log-spaced over stable values; neighboring candidates differ by
#: tenths of a dB in the steady state.
STEPS = (
    *(0.02, 0.025, 0.03, 0.04, 0.05, 0.063, 0.08, 0.1, 0.125),
    *(0.16, 0.2, 0.25, 0.32, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25),
)
SIGN_STEPS = (0.001, 0.002, 0.003, 0.005, 0.008, 0.0125, 0.02, 0.03)

FEDSGD = "Online-FedSGD"
U1 = "PAO-Fed-U1"
C2 = "PAO-Fed-C2"
PSO_FED = "PSO-Fed"
ONLINE_FED = "Online-Fed"
SIGN_SGD = "SignSGD"

_BLUE, _RED, _GREEN, _PINK, _BLACK, _AMBER, _SKY = plotting.LOOKS
_DOTTED = {"linestyle": ":"}
#: The look of every method in the chapter's figures, by the beginning of its name; each method has
#: a color, and its variants are dotted.
LOOKS: dict[str, dict[str, Any]] = {
    U1: _BLUE,
    "PAO-Fed-U": _BLUE,
    "PAO-Fed-U0": _BLUE | _DOTTED | {"marker": "D"},
    "PAO-Fed-U2": _SKY,
    "PAO-Fed-C": _AMBER,
    "PAO-Fed-C0": _AMBER | _DOTTED | {"marker": "v"},
    "PAO-Fed-C1": _AMBER,
    C2: _RED,
    FEDSGD: _BLACK,
    f"{FEDSGD}, step {STEP.value:g}": _BLACK | _DOTTED | {"marker": "X"},
    ONLINE_FED: _PINK | {"linestyle": (0, (8, 2))},
    f"{ONLINE_FED}, step {STEP.value:g}": _PINK | {"marker": "X"},
    PSO_FED: _GREEN,
    SIGN_SGD: _SKY | {"marker": "P"},
}

# --------------------------------------------------------------------------- environments


class Environment(NamedTuple):
    """Participation and delays."""

    availability: tuple[float, ...] | None = AVAILABILITY.value  # None: always with data
    delta: float | None = DELTA.value  # None: no delays
    longest: int = LONGEST.value
    step: int = 1
    beyond: str = "discard"

    def participation(self) -> Pattern | None:
        if self.availability is None:
            return None
        cells = len(SIZES.value)
        return Bernoulli(groups(self.availability, CLIENTS.value, nested=cells))

    def delays(self) -> fl.link.DelayLaw | None:
        if self.delta is None:
            return None
        return fl.link.Geometric(self.delta, self.longest, self.step, self.beyond)


DEFAULT = Environment()
#: 0 % stragglers, section 4.4.3 on figure 4.3.
IDEAL = Environment(None, None)


class Kernel(NamedTuple):
    """The random features of the synthetic streams."""

    bandwidth: float = BANDWIDTH.value
    scale: float = SCALE.value

    def draw(self, key: Array, features: int = DIM.value) -> RandomFourier:
        return random_fourier(key, INPUTS.value, features, self.bandwidth, scale=self.scale)


KERNEL = Kernel()


def stream(
    key: Array, kernel: Kernel = KERNEL, clients: int = CLIENTS.value, features: int = DIM.value
) -> fl.streams.Autoregressive:
    """The clients' data (section 4.4.1), drawn from a run's key."""
    k_features, k_stream = jax.random.split(key)
    rates = groups(np.asarray(SIZES.value) / max(SIZES.value), clients)
    drawn = kernel.draw(k_features, features)
    return fl.streams.autoregressive(
        k_stream, clients, drawn, Bernoulli(rates), test_samples=TEST.value
    )


@functools.cache
def scenario(environment: Environment, kernel: Kernel = KERNEL) -> Callable[..., fl.Simulation]:
    """One run of the synthetic setting (section 4.4.1): everything drawn from its key."""

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        return fl.Simulation(
            problem=stream(key, kernel),
            algorithm=algorithm,
            participation=environment.participation(),
            delays=environment.delays(),
            metrics=[METRIC],
        )

    build.__qualname__ = f"scenario({environment!r}, {kernel!r})"
    return build


def study(
    name: str,
    environment: Environment,
    methods: Mapping[str, Algorithm],
    effort: Effort,
    rounds: int = ROUNDS.value,
    build: Callable[[Environment], Callable[..., fl.Simulation]] = scenario,
    seeds: Sequence[int] | None = None,
) -> xr.Dataset:
    """All methods on common data, participation and delays."""
    return effort.sweep(
        name,
        build(environment),
        rounds=rounds,
        seeds=min(effort.seeds, MOST_SEEDS.value) if seeds is None else seeds,
        grid={"algorithm": dict(methods)},
        record_every=RECORD_EVERY,
    )


# --------------------------------------------------------------------------- what theory needs


class Draw(NamedTuple):
    """A stream with the figures' distribution, and keys for samples of it."""

    stream: fl.streams.Autoregressive
    train: Array
    test: Array


def draw(seed: int, kernel: Kernel = KERNEL) -> Draw:
    k_features, k_stream, *other_keys = jax.random.split(jax.random.key(seed), 4)
    stream = fl.streams.autoregressive(k_stream, CLIENTS.value, kernel.draw(k_features))
    return Draw(stream, *other_keys)


@functools.cache
def floor(kernel: Kernel = KERNEL) -> xr.Dataset:
    """The test error of least squares, a lower bound for linear models of the features."""
    result = []
    for stream, *keys in (draw(seed, kernel) for seed in range(DRAWS.value)):
        train, test = (stream.held_out(key, SAMPLES.value) for key in keys)
        z, y = (np.asarray(v[0], float) for v in (train.design, train.targets))
        model = np.linalg.solve(z.T @ z, z.T @ y)
        z, y = (np.asarray(v[0], float) for v in (test.design, test.targets))
        result.append(np.mean((y - z @ model) ** 2))
    return xr.Dataset({"floor": ("draw", result)}, attrs=provenance())


def moment(stream: fl.streams.Autoregressive, order: int) -> np.ndarray:
    r"""Of the features of each client, :math:`E[z_a z_b\cdots]`, ``[K, D, ..., D]``: exactly.

    Inputs are Gaussian, and a product of cosines is the mean of the cosines of all sums and
    differences of their angles: :math:`E\cos(a^\top x+\phi)=e^{-a^\top\Sigma a/2}
    \cos(a^\top\mathbb E x+\phi)`.
    """
    features = cast(RandomFourier, stream.feature_map)
    frequencies, phases = (np.asarray(v, float) for v in (features.frequencies, features.phases))
    memory, variance, mean = (
        np.asarray(v, float) for v in (stream.memory, stream.variance, stream.mean)
    )
    center = mean * np.sqrt(1 - memory**2) / (1 - memory)
    lags = np.asarray(stream.lags)
    distance = np.abs(lags[:, None] - lags)
    # Combinations of signs; the first may be taken as +.
    signs = [np.array((1, *rest)) for rest in itertools.product((1, -1), repeat=order - 1)]
    indices = np.indices(order * (len(phases),))
    result = np.zeros((len(memory), *indices.shape[1:]))
    for sign in signs:
        angle = np.tensordot(sign, frequencies[indices], 1)  # [D, ..., D, L]
        phase = np.tensordot(sign, phases[indices], 1)
        for k in range(len(memory)):
            spread = np.sum((angle @ (variance[k] * memory[k] ** distance)) * angle, axis=-1)
            result[k] += np.exp(-spread / 2) * np.cos(center[k] * angle.sum(axis=-1) + phase)
    scale = np.sqrt(2 / len(phases)) * float(features.scale)
    return scale**order * result / len(signs)


# --------------------------------------------------------------------------- methods


def pao(name: str, size: int = PORTION.value, step: float = STEP.value, **changes: Any) -> PAOFed:
    return PAOFed.variant(name, step, size, **changes)


def online_fed(fraction: float) -> Callable[[float], OnlineFed]:
    """Makes Online-Fed from a step size; with a fraction of one it is Online-FedSGD."""
    return lambda step: OnlineFed(step, Fraction(fraction))


def pso(fraction: float, size: int) -> Callable[[float], PSOFed]:
    return lambda step: PSOFed(step, Circular(size), selector=Fraction(fraction))


# --------------------------------------------------------------------------- tuning

#: The first tenth of the iterations.
early = first_part(10)
_last_tenth = last_part(10)

#: Step sizes are set "to yield identical initial convergence rates" (section 4.4.1).
PROTOCOL = Protocol(METRIC, early, _last_tenth)
chosen = PROTOCOL.chosen
tuning_table = PROTOCOL.table


def stepped(
    method: str, build: Callable[[float], Algorithm], candidates: Sequence[float] = STEPS
) -> Tuning:
    """A comparator whose step size is tuned."""
    return Tuning(method, build, candidates)


def tune(
    name: str,
    environment: Environment,
    tunings: Sequence[Tuning],
    effort: Effort,
    rounds: int = ROUNDS.value,
    build: Callable[[Environment], Callable[..., fl.Simulation]] = scenario,
) -> xr.Dataset:
    """Mean learning curves of PAO-Fed-U1 and of every candidate, on the tuning seeds."""
    effort = replace(effort, tuning_seeds=min(effort.tuning_seeds, TUNING_SEEDS.value))
    return PROTOCOL.tune(
        lambda methods, seeds: study(name, environment, methods, effort, rounds, build, seeds),
        {U1: pao("U1")},
        tunings,
        effort,
    )


# --------------------------------------------------------------------------- pictures


def show_curves(data: xr.Dataset, ax: Axes, floor: xr.Dataset | None = None) -> None:
    """Learning curves, and the level of least squares."""
    plotting.learning_curves(data, METRIC, ax=ax)
    picture.recolor(ax, LOOKS)
    if floor is not None:
        show_floor(floor, ax)


def show_floor(floor: xr.Dataset, ax: Axes) -> None:
    picture.theory(ax, statistics.decibels(float(floor["floor"].mean())), "least squares")


def show_distances(data: xr.Dataset, reference: str, ax: Axes) -> None:
    """Learning curves above that of one method."""
    plotting.learning_curves(measures.above(data, METRIC, reference), measures.ABOVE, ax=ax)
    picture.recolor(ax, LOOKS)


# --------------------------------------------------------------------------- claims


def late(data: xr.Dataset) -> xr.Dataset:
    """The steady state: means over the last iterations, one seed at a time."""
    tail = _last_tenth(data)
    mean = tail[[METRIC]].mean("round", keep_attrs=True)
    return mean.assign(diverged=data["diverged"])


def gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one method's error is above another's in the steady state, dB, paired by seed."""
    return direct_gap(late(data), over, under)


def early_gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one mean learning curve is above another over the early iterations, dB."""
    return curve_gap(*two(early(data), over, under, METRIC))


def direct_gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one method's error is above another's in data without iterations, dB."""
    return measures.gap(*two(data, over, under, METRIC))


def difference_of_gaps(data: xr.Dataset, other: xr.Dataset, over: str, under: str) -> Estimate:
    """By how much the steady-state gap of two methods is larger in ``data`` than in ``other``."""
    return estimate(
        lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d),
        *(samples(late(part), name, METRIC) for part in (data, other) for name in (over, under)),
    )


def gaps(panel: str, *pairs: tuple[str, str]) -> Measure:
    """For every (over, under) how far the first is above the second in the steady state."""
    return measures.gaps(panel, *pairs, measure=gap)


def early_gaps(panel: str, *pairs: tuple[str, str]) -> Measure:
    """The same over the early iterations."""
    return measures.gaps(panel, *pairs, measure=early_gap)


def saving(panel: str, method: str, reference: str, ways: Mapping[str, str]) -> Measure:
    """By how much less a method communicates, per cent of the reference."""
    return lambda studies: {
        name: measures.saving(*two(last(studies[panel]), method, reference, way))
        for way, name in ways.items()
    }
