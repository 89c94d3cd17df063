"""Servers that do not wait, against rounds that last as long as their slowest client."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import METRIC, chosen, compared, unlike
from experiments.measures import of_median, samples
from fljax import algorithms as A
from fljax import statistics

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 50, "of least squares in five parameters, 20 samples each")
SPREAD = Setting(
    "spread of the clients' models",
    0.1,
    "so that the error that drawn clients leave, of all four methods, is below the target",
)
LOCAL = Setting("local steps", 5, "on all samples of a client")
DELAYS = Setting(
    "probability of one unit of time more, and most of them",
    (0.9, 80),
    "geometric delays of mean 9: a few are late by far. Computing and sending together",
)
WAITING = Setting(
    "clients of a synchronous round", 10, "its round lasts as long as the slowest of them"
)
STARTED = Setting(
    "clients that start in a unit of time, asynchronously",
    1,
    "so that ten are at work at a time, as in a synchronous round",
)
BUFFER = Setting("updates in FedBuff's buffer", 10, "as many as a synchronous round has")
TARGET = Setting("target", -15.0, "dB of the normalized error")
EVERY = Setting("records of servers that do not wait", 5, "every so many units of time")
WINDOW = Setting(
    "records whose mean must be at the target",
    (10, 2),
    "of servers that do not wait, 50 units of time, and of those that do, whose two rounds last 56 "
    "on average: a noisy curve touches the line long before it stays below",
)
UNITS = Setting("units of time", 1500, "all are there")
ROUNDS = Setting("rounds of the synchronous server", 100, "longer than the others, in time")
TRIED = Setting(
    "numbers that are searched",
    ((0.003, 0.1), (0.03, 0.9)),
    "step sizes of all, and FedAsync's weight of a model that arrives; chosen by the time until "
    "the mean of a window is at the target, on ten seeds of their own",
)
SEEDS = Setting("seeds", 30, "at most")

WAITS = ("FedAvg", "FedAvgM")
LATE = ("FedBuff", "FedAsync")
#: Stands for an infinite time, which medians cannot handle.
NEVER = 1e9
LAW = fl.link.Geometric(DELAYS.value[0], longest=DELAYS.value[1], beyond="clip")
STEPS: dict[str, Any] = {"local_steps": LOCAL.value}
_STEP = {"step_size": TRIED.value[0]}


def buffered(step_size: float) -> A.Algorithm:
    return A.FedBuff(step_size, clients_per_round=STARTED.value, buffer_size=BUFFER.value, **STEPS)


def mixed(step_size: float, server_step_size: float) -> A.Algorithm:
    return A.FedAsync(
        step_size, clients_per_round=STARTED.value, server_step_size=server_step_size, **STEPS
    )


def waiting(step_size: float) -> A.Algorithm:
    return A.FedAvg(step_size, clients_per_round=WAITING.value, **STEPS)


def momentum(step_size: float) -> A.Algorithm:
    return A.FedAvgM(step_size, clients_per_round=WAITING.value, momentum=0.9, **STEPS)


# --------------------------------------------------------------------------- scenarios


def without_delays(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    problem = unlike(key, CLIENTS.value, 20, 5, SPREAD.value)
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


def with_delays(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    problem = unlike(key, CLIENTS.value, 20, 5, SPREAD.value)
    return fl.Simulation(problem, algorithm, delays=LAW, metrics=[METRIC])


def lasting(seed: int, rounds: int) -> np.ndarray:
    """``[rounds]``: when each synchronous round ends, in units of time."""

    def slowest(number: Array) -> Array:
        key = jax.random.fold_in(fl.random_key(seed), number)
        drawn = LAW.draw(key, number, WAITING.value)
        return 1 + jnp.max(drawn)

    numbers = jnp.arange(rounds, dtype=jnp.int32)
    return np.cumsum(np.asarray(jax.vmap(slowest)(numbers)))


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)
    units, rounds = (300, 30) if effort.quick else (UNITS.value, ROUNDS.value)
    common: dict[str, Any] = {
        "metric": METRIC,
        "seeds": seeds,
        "tuning_seeds": 10,
        "points": 5,
        "goal": "rounds",
        "target": 10 ** (TARGET.value / 10),
    }
    weight = _STEP | {"server_step_size": TRIED.value[1]}
    late = compared(
        effort,
        "late",
        with_delays,
        {"FedBuff": (buffered, _STEP), "FedAsync": (mixed, weight)},
        rounds=units,
        record_every=EVERY.value,
        window=WINDOW.value[0],
        **common,
    )
    waits = {"FedAvg": (waiting, _STEP), "FedAvgM": (momentum, _STEP)}
    synchronous = compared(
        effort,
        "waits",
        without_delays,
        waits,
        rounds=rounds,
        record_every=1,
        window=WINDOW.value[1],
        **common,
    )
    times = np.stack([lasting(seed, rounds) for seed in synchronous["seed"].values.tolist()])
    return {"late": late, "waits": synchronous.assign(time=(("seed", "round"), times))}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    drawing, (ax,) = picture.panels(("the median run; a few clients are late by far",))
    waits = studies["waits"]
    late = studies["late"]
    middle = waits["time"].median("seed").values
    for index, name in enumerate((*LATE, *WAITS)):
        data = late if name in LATE else waits
        times = data["round"].values if name in LATE else middle
        curves = statistics.decibels(samples(data, name, METRIC))
        ax.plot(times, np.median(curves, axis=0), label=name, **picture.look(index))
    ax.axhline(TARGET.value, color="#999999", linewidth=0.8)
    ax.set_xlim(0, 600)
    ax.set_xlabel("units of time")
    ax.set_ylabel("normalized error [dB]")
    ax.legend()
    return picture.finish(drawing, "Servers that do not wait")


# --------------------------------------------------------------------------- claims

INSTANCE = "least squares of fifty clients, geometric delays, ten clients at work at a time"


TOUCHED = (
    "Each model that arrives moves FedAsync's at once: the first touch of the line, by which it "
    "was judged and tuned, came long before it stayed below."
)


def until_target(studies: Studies, name: str) -> np.ndarray:
    """``[S]``: units of time until the mean of a window is at the target; very many where it never
    is.
    """
    study, of, window = (
        ("late", "round", WINDOW.value[0]) if name in LATE else ("waits", "time", WINDOW.value[1])
    )
    data = studies[study].sel(algorithm=[name])
    times = statistics.until(data, METRIC, 10 ** (TARGET.value / 10), of, window=window)
    times = times.isel(algorithm=0).transpose("seed").values.astype(float)
    return np.where(np.isinf(times), NEVER, times)


def sooner(over: str, under: str) -> Measure:
    """The ratio of times to the target, in the median of the runs in which at least one method
    reaches it.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        two = until_target(studies, over), until_target(studies, under)
        ratio = np.where((two[0] == NEVER) & (two[1] == NEVER), np.nan, two[0] / two[1])
        if np.isnan(ratio).all():
            return {f"{over} over {under}": Estimate(np.nan, np.nan, np.nan, "times")}
        middle = of_median(lambda medians: medians[:, 0], ratio[:, None], unit="times")
        return {f"{over} over {under}": middle}

    return measure


FIGURE = Figure(
    name="headline-late",
    title="Asynchronous averaging against rounds as long as their slowest client",
    source="the papers of the algorithms, cited at each claim",
    caption="The error along time of servers that wait for all ten clients of a round (FedAvg, and "
    "with momentum) and of servers that do not, of which ten clients are at work at a time as "
    "well. Each method's numbers are those whose mean over a window of 50 units is first at the "
    "line, on other seeds.",
    study=study,
    plot=plot,
    tuning=chosen("late", "waits"),
    claims=[
        Claim(
            "fedbuff-is-faster",
            "with stragglers FedBuff needs less time than synchronous averaging",
            "Nguyen et al. 2022, abstract",
            sooner("FedAvg", "FedBuff"),
            (1, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "fedbuff-is-three-times-as-fast",
            "up to 3.3 times as fast",
            "Nguyen et al. 2022, abstract",
            sooner("FedAvg", "FedBuff"),
            (3, INFINITE),
            "three times or more",
            condition=INSTANCE,
            note="What is gained is at most what waiting costs, and that is the delays' law: a "
            "synchronous round lasts as long as the longest of ten delays, which here is about "
            "2.8 times their mean.",
        ),
        Claim(
            "fedbuff-beats-fedasync",
            "and less than asynchronous averaging without a buffer",
            "Nguyen et al. 2022, abstract",
            sooner("FedAsync", "FedBuff"),
            (1, INFINITE),
            condition=INSTANCE,
            changed=TOUCHED,
        ),
        Claim(
            "fedasync-is-faster",
            "with stragglers FedAsync needs less time than synchronous averaging",
            "Xie, Koyejo and Gupta 2019, abstract",
            sooner("FedAvg", "FedAsync"),
            (1, INFINITE),
            condition=INSTANCE,
            changed=TOUCHED,
        ),
    ],
    settings=[
        *(CLIENTS, SPREAD, LOCAL, DELAYS, WAITING, STARTED, BUFFER, TARGET, EVERY, WINDOW, UNITS),
        *(ROUNDS, TRIED, SEEDS),
    ],
)
