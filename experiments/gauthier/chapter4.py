"""What the figures of Gauthier 2024, chapter 4, share: settings, environments, tuning, claims.

The source gives the sizes, the data's law, the participation, the delays and one step size. Every
value that it leaves open is in this file, once, with its reason.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

import fljax as fl
from experiments.figure import Effort, Estimate, Setting, Studies
from fljax import statistics
from fljax.algorithms import Algorithm, OnlineFed, PAOFed, PSOFed
from fljax.channel import Circular
from fljax.data import random_fourier
from fljax.participation import Bernoulli, Fraction, Pattern, groups

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 256, "line 1080", given=True)
INPUTS = Setting("inputs L", 4, "line 1087", given=True)
DIM = Setting("random Fourier features D", 200, "line 1087", given=True)
SIZES = Setting("samples per client, by group", (500, 1000, 1500, 2000), "line 1080", given=True)
ROUNDS = Setting("iterations", 2000, "“after 2000 iterations”, line 1137", given=True)
PORTION = Setting("shared parameters m", 4, "line 1109", given=True)
AVAILABILITY = Setting(
    "availability p, by group", (0.25, 0.1, 0.025, 0.005), "line 1095", given=True
)
DELTA = Setting("delay parameter delta", 0.2, "line 1097; “l iterations or more”", given=True)
LONGEST = Setting("longest delay", 10, "line 1097; later messages are discarded", given=True)
DISCOUNT = Setting("weights of late messages", "0.2^l", "variants 2, line 1107", given=True)

BANDWIDTH = Setting(
    "bandwidth of the Gaussian kernel",
    2.0,
    "least squares on these features has its least test error near it (-11.7 dB; -10.8 at 1, -11.2 "
    "at 5), and its largest eigenvalue, about 0.8, is nearer to the source's 1.02 than that of "
    "narrower kernels",
)
STEP = Setting(
    "step size of PAO-Fed",
    0.5,
    "the source's 0.4 goes with a largest eigenvalue of 1.02; on these features, where it is about "
    "0.82, the same product 0.41 needs 0.5",
)
ARRIVALS = Setting(
    "arrival of data",
    "D_k/2000 a round",
    "“progressively made available”: a sample in each round with this probability, which keeps "
    "the stream stationary and gives each client its number of samples on average",
)
CELLS = Setting(
    "groups", "4 x 4 cells of 16", "availability groups within each data group, P4 line 2801"
)
TEST = Setting(
    "test set", 1000, "from the mixture of the clients' streams, noisy responses (line 1091)"
)
EARLY = Setting("iterations of the early match", "first tenth", "where the curves fall fastest")
LATE = Setting(
    "iterations of the steady state",
    "last tenth",
    "their mean: a single iteration has more noise",
)
TUNING_SEEDS = Setting("tuning seeds", "from 10000", "no run that is plotted was tuned on")
EVERY = Setting("recorded", "every 10th iteration", "curves are smooth on that scale")

COMMON = (
    *(CLIENTS, INPUTS, DIM, SIZES, ROUNDS, PORTION, AVAILABILITY, DELTA, LONGEST, DISCOUNT),
    *(BANDWIDTH, STEP, ARRIVALS, CELLS, TEST, EARLY, LATE, TUNING_SEEDS, EVERY),
)

FIRST_TUNING_SEED = 10_000
RECORD_EVERY = 10
WORD = 32
INFINITE = float("inf")

#: What some words of the source are taken to mean, in dB.
SIGNIFICANTLY, SAME, SLIGHTLY = 1.0, (-0.5, 0.5), (0.0, 2.0)
SIGNIFICANT = f"“significantly”: at least {SIGNIFICANTLY:g} dB"
SIMILAR = "“same”, “similar”: within 0.5 dB"

EACH_WAY = {"bits_up": "clients to server", "bits_down": "server to clients"}

#: Candidates of the tuning, log-spaced over what is stable.
STEPS = (0.02, 0.03, 0.05, 0.08, 0.125, 0.2, 0.3, 0.5, 0.8, 1.2)
SIGN_STEPS = (0.001, 0.002, 0.003, 0.005, 0.008, 0.0125, 0.02, 0.03)

FEDSGD = "Online-FedSGD"
U1, C2 = "PAO-Fed-U1", "PAO-Fed-C2"

# --------------------------------------------------------------------------- environments


class Environment(NamedTuple):
    """Who is there, and how late messages are."""

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

    def delays(self) -> fl.channel.DelayLaw | None:
        if self.delta is None:
            return None
        return fl.channel.Geometric(self.delta, self.longest, self.step, self.beyond)


DEFAULT = Environment()
#: 0 % stragglers, line 1139.
IDEAL = Environment(None, None)


@functools.cache
def scenario(environment: Environment) -> Callable[..., fl.Simulation]:
    """One run of the synthetic setting (section 4.4.1): everything drawn anew from its key."""

    def build(key: Array, algorithm: Algorithm) -> fl.Simulation:
        k_features, k_stream = jax.random.split(key)
        rates = groups(np.asarray(SIZES.value) / max(SIZES.value), CLIENTS.value)
        return fl.Simulation(
            problem=fl.streams.autoregressive(
                k_stream,
                CLIENTS.value,
                random_fourier(k_features, INPUTS.value, DIM.value, BANDWIDTH.value),
                Bernoulli(rates),
                test_samples=TEST.value,
            ),
            algorithm=algorithm,
            participation=environment.participation(),
            delays=environment.delays(),
            metrics=["test_error"],
        )

    build.__qualname__ = f"scenario({environment!r})"
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
        seeds=effort.seeds if seeds is None else seeds,
        grid={"algorithm": dict(methods)},
        record_every=RECORD_EVERY,
    )


def joined(*studies: xr.Dataset) -> xr.Dataset:
    """Studies of different methods as one."""
    return xr.concat(studies, "algorithm", combine_attrs="override")


# --------------------------------------------------------------------------- methods


def pao(name: str, size: int = PORTION.value, step: float = STEP.value, **changes: Any) -> PAOFed:
    return PAOFed.variant(name, step, size, **changes)


def online_fed(fraction: float) -> Callable[[float], OnlineFed]:
    """Of a step size. At a fraction of one it is Online-FedSGD."""
    return lambda step: OnlineFed(step, Fraction(fraction))


def pso(fraction: float, size: int) -> Callable[[float], PSOFed]:
    return lambda step: PSOFed(step, Circular(size), scheduler=Fraction(fraction))


# --------------------------------------------------------------------------- tuning


class Tuning(NamedTuple):
    """The step size of one comparator, and what is tried."""

    method: str
    build: Callable[[float], Algorithm]
    candidates: Sequence[float] = STEPS


def tune(
    name: str,
    environment: Environment,
    tunings: Sequence[Tuning],
    effort: Effort,
    rounds: int = ROUNDS.value,
    build: Callable[[Environment], Callable[..., fl.Simulation]] = scenario,
) -> xr.Dataset:
    """Mean learning curves of PAO-Fed-U1 and of every candidate, on the tuning seeds.

    Step sizes are set "to yield identical initial convergence rates" (line 1093).
    """
    rows = [(t, value) for t in tunings for value in effort.thin(t.candidates, 4)]
    methods = {U1: pao("U1")} | {f"{t.method} {v:g}": t.build(v) for t, v in rows}
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + effort.tuning_seeds)
    found = study(name, environment, methods, effort, rounds, build, seeds)
    numbers = statistics.summary(found, "test_error")
    # A candidate that ever diverged is no candidate.
    curves = numbers["mean"].where(numbers["diverged"] == 0, np.inf)
    curves = curves.transpose("algorithm", "round").values
    coords = {
        "round": found["round"].values,
        "tuned": ("candidate", [t.method for t, _ in rows]),
        "value": ("candidate", np.asarray([value for _, value in rows])),
    }
    return xr.Dataset(
        {"target": ("round", curves[0]), "curve": (("candidate", "round"), curves[1:])},
        coords=coords,
        attrs=found.attrs | {"tuning_seeds": effort.tuning_seeds},
    )


def early(data: xr.Dataset) -> xr.Dataset:
    """The first tenth of the iterations."""
    return data.sel(round=slice(1, _tenth(data)))


def _tenth(data: xr.Dataset) -> int:
    return int(data["round"].values[-1]) // 10


def scores(tuning: xr.Dataset) -> np.ndarray:
    """Mean distance in dB of each candidate's early curve from PAO-Fed-U1's."""
    kept = early(tuning)
    with np.errstate(divide="ignore"):
        apart = statistics.decibels(kept["curve"].values / kept["target"].values)
    return np.abs(apart).mean(axis=1)


def chosen(tuning: xr.Dataset, method: str) -> float:
    """The step size of a comparator."""
    score = np.where(tuning["tuned"].values == method, scores(tuning), np.inf)
    return float(tuning["value"].values[score.argmin()])


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """Every candidate with its score, for the record."""
    rows = []
    for name, tuning in studies.items():
        if not name.startswith("tuning"):
            continue
        place = name.removeprefix("tuning").strip("-")
        final = _last_tenth(tuning)["curve"].mean("round").values
        for i, method in enumerate(tuning["tuned"].values.tolist()):
            value = float(tuning["value"].values[i])
            rows.append(
                {
                    "method": f"{method} ({place})" if place else method,
                    "parameter": "step size",
                    "value": value,
                    "rule": "early",
                    "score": float(scores(tuning)[i]),
                    "final_error": float(final[i]),
                    "chosen": chosen(tuning, method) == value,
                }
            )
    return rows


# --------------------------------------------------------------------------- claims


def _last_tenth(data: xr.Dataset) -> xr.Dataset:
    return data.sel(round=slice(int(data["round"].values[-1]) - _tenth(data) + 1, None))


def late(data: xr.Dataset) -> xr.Dataset:
    """The steady state: means over the last iterations, one seed at a time."""
    kept = _last_tenth(data)
    mean = kept[["test_error"]].mean("round", keep_attrs=True)
    return mean.assign(diverged=data["diverged"])


def gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one method's error is above another's in the steady state, dB, paired by seed."""
    return direct_gap(late(data), over, under)


def early_gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one mean learning curve is above another over the early iterations, dB."""
    samples = (_seeds(early(data), one) for one in (over, under))
    return Estimate(
        *statistics.bootstrap(lambda a, b: statistics.decibels(a / b).mean(axis=-1), *samples)
    )


def direct_gap(data: xr.Dataset, over: Any, under: Any) -> Estimate:
    """How far one method's error is above another's in data without iterations, dB."""
    samples = (_seeds(data, one) for one in (over, under))
    return Estimate(*statistics.bootstrap(lambda a, b: statistics.decibels(a / b), *samples))


def _seeds(data: xr.Dataset, method: Any) -> np.ndarray:
    """``[S]`` or ``[S, rounds]`` of one method, a label or labels of several axes."""
    where = method if isinstance(method, dict) else {"algorithm": method}
    chosen = statistics.keep_finite(data, "test_error").sel(where)
    return chosen.transpose("seed", ...).values


def difference_of_gaps(data: xr.Dataset, other: xr.Dataset, over: str, under: str) -> Estimate:
    """By how much the steady-state gap of two methods is larger in ``data`` than in ``other``."""
    samples = (_seeds(late(d), one) for d in (data, other) for one in (over, under))
    return Estimate(
        *statistics.bootstrap(
            lambda a, b, c, d: statistics.decibels(a / b) - statistics.decibels(c / d), *samples
        )
    )


def gaps(panel: str, *pairs: tuple[str, str]) -> Callable[[Studies], dict[str, Estimate]]:
    """For every (over, under) how far the first is above the second in the steady state."""
    return lambda studies: {
        f"{over} above {under}": gap(studies[panel], over, under) for over, under in pairs
    }


def early_gaps(panel: str, *pairs: tuple[str, str]) -> Callable[[Studies], dict[str, Estimate]]:
    """The same over the early iterations."""
    return lambda studies: {
        f"{over} above {under}": early_gap(studies[panel], over, under) for over, under in pairs
    }


def saving(
    panel: str, method: str, reference: str, ways: Mapping[str, str]
) -> Callable[[Studies], dict[str, Estimate]]:
    """By how much less a method communicates, per cent of the reference."""

    def saved(data: xr.DataArray) -> Estimate:
        ours, theirs = (data.sel(algorithm=which).values for which in (method, reference))
        return Estimate(
            *statistics.bootstrap(lambda a, b: 100 * (1 - a / b), ours, theirs), unit="%"
        )

    return lambda studies: {
        name: saved(studies[panel].isel(round=-1)[way].astype(float)) for way, name in ways.items()
    }
