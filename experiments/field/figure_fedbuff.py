"""Nguyen et al. 2022: FedBuff, FedAsync and synchronous averaging by the time to an accuracy.

A tenth of the source's concurrency, on MNIST: a thousand clients with two shards of one digit each,
of whom a hundred work at a time. How long a client trains is drawn each time that it does.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE, SIGNIFICANTLY, about
from experiments.field.averaging import Rounds, ratio
from experiments.figure import INFINITE, Claim, Effort, Figure, Measure, Setting, Studies
from experiments.measures import joined, of_few
from experiments.pixels import network_of_halved
from experiments.tuning import SEEDS as TUNING_SEEDS
from experiments.tuning import seeds as tuning_seeds
from fljax import plotting, statistics
from fljax._core.module import float_dtype
from fljax.algorithms import Algorithm, FedAsync, FedAvg, FedAvgM, FedBuff
from fljax.clock import (
    Asynchronous,
    Clock,
    Devices,
    Distribution,
    FirstArrivals,
    HalfNormal,
    LogNormal,
    Synchronous,
)
from fljax.data import partition
from fljax.data.images import Images
from fljax.problems import Model

# --------------------------------------------------------------------------- settings

DATA = Setting(
    "data", "MNIST", "at hand, instead of CelebA, Sent140 and CIFAR-10; clients are not users"
)
CLIENTS = Setting("clients", 1000, "of 60 images each, as many as MNIST has")
SHARDS = Setting("shards of a client", 2, "of one digit each, so that clients differ")
NETWORK = Setting("hidden width", (32,), "instead of convolutions and an LSTM, to save time")
HALVED = Setting("pixels", "14 x 14", "means of 2 x 2: a fourth of the work")
AT_WORK = Setting(
    "clients at work at a time",
    100,
    "a tenth of the source's 1000, for the time that it takes",
)
CROWD = Setting(
    "of FedBuff and FedAvgM, also: clients, and how many work at a time and are invited",
    (2000, 1000, 1300),
    "the source's concurrency, with 30 images each",
)
CROWD_LONGEST = Setting(
    "then arrivals, and synchronous rounds, after which a run ends",
    (8000, 40),
    "7 seconds and 48, recorded after each hundred arrivals or round",
)
INVITED = Setting(
    "clients that a synchronous round invites",
    130,
    "1.3 times as many as it waits for, as in the source; the others' work is lost",
)
BUFFER = Setting("updates in FedBuff's buffer", 10, "the source's K", given=True)
EPOCHS = Setting("local passes", 1, "of the authors' simulator, FLSim", given=True)
BATCH = Setting("images of a step", 20, "three steps of a pass; in FLSim's examples it is 32")
MOMENTUM = Setting(
    "momentum of FedAvgM", 0.9, "of FLSim's examples. There FedBuff's server has it too, not here"
)
TIMES = Setting(
    "seconds of a client's training",
    "|N(0, 1)|",
    "drawn each time that a client trains, as in FLSim; the source fitted it to phones",
    given=True,
)
TAIL = Setting(
    "heavy-tailed seconds",
    1.0,
    "log-normal with this spread, and the mean of the others: the slowest of a hundred takes "
    "twice as long. With the steps of the others",
)
TARGET = Setting("accuracy that is asked", 0.85, "of 1000 test images, every tenth of MNIST's")
WINDOW = Setting(
    "records whose mean must be at the target",
    3,
    "of a synchronous round or a hundred arrivals each, about one second: a noisy curve touches a "
    "line before it stays below",
)
LONGEST = Setting(
    "arrivals, and synchronous rounds, after which a run ends",
    (6000, 80),
    "48 seconds and 80 to 100; a run that is not at the target then bounds the time from below",
)
FIRST = Setting(
    "step sizes that are tried first",
    {
        "FedBuff": [(0.2, 1.0), (0.2, 2.0), (0.4, 1.0)],
        "FedAsync": [(0.1, 1.0), (0.2, 1.0), (0.2, 0.5)],
        "FedAvgM": [(0.1, 1.0), (0.2, 1.0)],
        "FedAvg": [(0.4, 1.0), (0.8, 1.0)],
    },
    "of clients and of the server, which FedAvg and FedAvgM do not have",
)
MOST = Setting(
    "step sizes of a method, at most",
    12,
    "half and double of either of the best pair are tried until none is better; FedAsync's server "
    "has at most 1. The best has the least mean time to the target on the tuning seeds",
)
SEEDS = Setting(
    "seeds at most",
    8,
    "start, participants, times and batches anew for each; the partition is one. Intervals are "
    "Student's t of the jackknife over paired seeds",
)
TUNED = Setting("seeds of tuning at most", 2, "the first of those below")
NOT_RUN = Setting(
    "of the source, not run",
    "the other methods with 1000 clients at work, FedProx, its data and networks, private training",
    "for the time that they take",
)

ERROR = "error_rate"
BUFFERED = "FedBuff"
ASYNCHRONOUS = "FedAsync"
MOMENTUM_SERVER = "FedAvgM"
AVERAGING = "FedAvg"
WAITING = "FedAvgM, waits for all"
METHODS = (BUFFERED, ASYNCHRONOUS, MOMENTUM_SERVER, AVERAGING)
ASYNCHRONOUS_ONES = (BUFFERED, ASYNCHRONOUS)
CROWDED_METHODS = (BUFFERED, MOMENTUM_SERVER)
HALF_NORMAL = "half-normal"
HEAVY = "heavy-tailed"
#: Half-normal times, with the source's concurrency.
CROWDED = f"{CROWD.value[1]} at work"
#: The mean of both is that of a half-normal number.
DISTRIBUTIONS: dict[str, Distribution] = {
    HALF_NORMAL: HalfNormal(1.0),
    HEAVY: LogNormal(math.sqrt(2 / math.pi) * math.exp(-(TAIL.value**2) / 2), spread=TAIL.value),
}


class Size(NamedTuple):
    """The learning problem, and how long runs are."""

    images: Callable[[], Images]
    clients: int
    at_work: int
    invited: int
    hidden: tuple[int, ...]
    arrivals: int
    rounds: int
    every: int  # arrivals between records
    test: int  # stride through the test images


FULL = Size(
    fl.data.mnist,
    *(CLIENTS.value, AT_WORK.value, INVITED.value, NETWORK.value),
    *(LONGEST.value[0], LONGEST.value[1], 100, 10),
)
#: With the source's concurrency.
LARGE = FULL._replace(
    clients=CROWD.value[0],
    at_work=CROWD.value[1],
    invited=CROWD.value[2],
    arrivals=CROWD_LONGEST.value[0],
    rounds=CROWD_LONGEST.value[1],
)
#: For tests: the package's own sample.
TINY = Size(fl.data.mnist_sample, 20, 8, 10, (4,), 40, 6, 8, 5)

# --------------------------------------------------------------------------- scenarios


class Steps(NamedTuple):
    """The step sizes of clients and of the server."""

    client: Any
    server: Any

    def __str__(self) -> str:
        return f"{self.client:g}, {self.server:g}"

    @classmethod
    def of(cls, text: str) -> "Steps":
        """The inverse of ``str``."""
        client, server = map(float, text.split(","))
        return cls(client, server)


@functools.cache
def dealt(size: Size) -> Model:
    dataset = size.images()
    parts = partition.by_label(dataset.train_labels, size.clients, SHARDS.value, 0)
    rows = np.stack([part[: min(map(len, parts))] for part in parts])
    return network_of_halved(dataset, rows, fl.models.mlp(10, size.hidden), size.test)


def method(name: str, steps: Steps, size: Size) -> Algorithm:
    local: dict[str, Any] = {
        "epochs": EPOCHS.value,
        "batch": min(BATCH.value, dealt(size).samples),
    }
    if name == BUFFERED:
        buffer = min(BUFFER.value, size.at_work // 2)
        return FedBuff(steps.client, buffer_size=buffer, server_step_size=steps.server, **local)
    if name == ASYNCHRONOUS:
        return FedAsync(steps.client, server_step_size=steps.server, **local)
    local["clients_per_round"] = size.at_work if name == WAITING else size.invited
    if name == AVERAGING:
        return FedAvg(steps.client, **local)
    return FedAvgM(steps.client, momentum=MOMENTUM.value, **local)


def clock(name: str, distribution: Distribution, size: Size) -> Clock:
    batches = -(-dealt(size).samples // min(BATCH.value, dealt(size).samples))
    devices = Devices(seconds_per_step=1 / (EPOCHS.value * batches), variation=distribution)
    if name in ASYNCHRONOUS_ONES:
        return Asynchronous(devices, concurrency=size.at_work)
    if name == WAITING:
        return Synchronous(devices)
    return FirstArrivals(devices, count=size.at_work)


@functools.cache
def scenario(name: str, distribution: str, size: Size) -> Callable[..., fl.Simulation]:
    def build(key: Array, steps: Steps) -> fl.Simulation:
        return fl.Simulation(
            dealt(size).initialized(key),
            method(name, steps, size),
            clock=clock(name, DISTRIBUTIONS.get(distribution, HalfNormal(1.0)), size),
            metrics=[ERROR],
        )

    build.__qualname__ = f"fedbuff({name}, {distribution}, {size.clients})"
    return build


def run(
    name: str, distribution: str, steps: Sequence[Steps], seeds: Any, size: Size, effort: Effort
) -> xr.Dataset:
    """``[steps, seed, round]``, where a round of an asynchronous method is an arrival."""
    is_asynchronous = name in ASYNCHRONOUS_ONES
    return effort.sweep(
        f"{name}-{distribution}-{'-'.join(map(str, steps))}".replace(", ", "_"),
        scenario(name, distribution, size),
        rounds=size.arrivals if is_asynchronous else size.rounds,
        record_every=size.every if is_asynchronous else 1,
        seeds=seeds,
        block=1,
        grid={"steps": {str(s): Steps(*np.asarray(s, float_dtype())) for s in steps}},
    )[[ERROR, "seconds", "diverged"]]


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    size = TINY if effort.quick else FULL
    target = 0.7 if effort.quick else 1 - TARGET.value
    seeds = min(effort.seeds, SEEDS.value)
    studies: dict[str, xr.Dataset] = {}

    def add(name: str, distribution: str, size: Size) -> None:
        tuning = tuning_of(name, distribution)
        if tuning not in studies:
            studies[tuning] = tuned(name, distribution, target, size, effort)
        steps = best(studies[tuning])
        result = run(name, distribution, [steps], seeds, size, effort).isel(steps=0, drop=True)
        updates = 1
        if name not in ASYNCHRONOUS_ONES:
            updates = size.at_work if name == WAITING else size.invited
        studies[of(name, distribution)] = result.assign_attrs(target=target, updates=updates)

    for distribution, name in itertools.product(DISTRIBUTIONS, (*METHODS, WAITING)):
        add(name, distribution, size)
    for name in CROWDED_METHODS:
        add(name, CROWDED, TINY if effort.quick else LARGE)
    return studies


def of(name: str, distribution: str) -> str:
    """The name of a study."""
    return f"{name}, {distribution}"


def tuning_of(name: str, distribution: str) -> str:
    """The name of the study by which a method's steps were chosen."""
    name = MOMENTUM_SERVER if name == WAITING else name
    return f"tuning-{of(name, CROWDED) if distribution == CROWDED else name}"


def tuned(name: str, distribution: str, target: float, size: Size, effort: Effort) -> xr.Dataset:
    """The seconds of all pairs of steps that are tried for a method, ``[steps, seed]``, infinite
    where the target is not reached, and the last seconds of the runs.
    """
    seeds = tuning_seeds(min(effort.tuning_seeds, TUNED.value))

    def tried(steps: Sequence[Steps]) -> xr.Dataset:
        results = run(name, distribution, steps, seeds, size, effort)
        needed = statistics.until(results, ERROR, target, "seconds", window=WINDOW.value)
        last = results["seconds"].isel(round=-1, drop=True)
        return xr.Dataset({"needed": needed, "last": last})

    first = [Steps(*map(float, steps)) for steps in FIRST.value[name]]
    every = tried(effort.thin(first, 2))
    while not effort.quick and every.sizes["steps"] < MOST.value:
        further = beyond(name, every)
        if not further:
            break
        room = MOST.value - every.sizes["steps"]
        every = joined(every, tried(further[:room]), axis="steps")
    return every


def scores(tuning: xr.Dataset) -> dict[Steps, float]:
    """The mean seconds of each pair of steps, where runs that were not at the target count twice
    their length.
    """
    needed = tuning["needed"]
    mean = needed.where(np.isfinite(needed), 2 * tuning["last"]).mean("seed")
    return {Steps.of(str(row["steps"].values)): float(row) for row in mean}


def beyond(name: str, tuning: xr.Dataset) -> list[Steps]:
    """The neighbors of the best pair of steps that were not tried."""
    every = scores(tuning)
    best_one = min(every, key=lambda steps: every[steps])
    neighbors = [best_one._replace(client=factor * best_one.client) for factor in (2, 0.5)]
    if name in ASYNCHRONOUS_ONES:
        neighbors += [best_one._replace(server=factor * best_one.server) for factor in (2, 0.5)]
    return [
        steps
        for steps in neighbors
        if steps not in every and not (name == ASYNCHRONOUS and steps.server > 1)
    ]


def best(tuning: xr.Dataset) -> Steps:
    """The steps of the least mean time."""
    every = scores(tuning)
    return min(every, key=lambda steps: every[steps])


def at_edge(studies: Studies, name: str, distribution: str) -> bool:
    """Whether a pair of steps that was not tried may be better."""
    return bool(beyond(name, studies[tuning_of(name, distribution)]))


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """Every pair of steps with its time, for the record."""
    rows = []
    searched = [
        *itertools.product(METHODS, [HALF_NORMAL]),
        *itertools.product(CROWDED_METHODS, [CROWDED]),
    ]
    for name, distribution in searched:
        tuning = studies[tuning_of(name, distribution)]
        every = scores(tuning)
        edge = "; at an edge" if at_edge(studies, name, distribution) else ""
        for steps, seconds in every.items():
            chosen = steps == best(tuning)
            numbers = f"steps {steps}: {seconds:.1f} s on the tuning seeds"
            rows.append(
                {
                    "method": of(name, distribution),
                    "numbers": f"{numbers}, the best of {len(every)}{edge}" if chosen else numbers,
                    "chosen": chosen,
                }
            )
    return rows


# --------------------------------------------------------------------------- reading


def seconds(studies: Studies, name: str, distribution: str) -> Rounds:
    """The time until runs are at the target."""
    data = studies[of(name, distribution)]
    needed = until(data, "seconds")
    last = data["seconds"].isel(round=-1).values.astype(float)
    return Rounds(needed, float(last.min()), at_edge(studies, name, distribution))


def updates(studies: Studies, name: str, distribution: str) -> Rounds:
    """The client updates that were computed by then: arrivals, or all that rounds invited."""
    data = studies[of(name, distribution)]
    per_record = data.attrs["updates"]
    longest = per_record * float(data["round"][-1])
    return Rounds(per_record * until(data, "round"), longest, at_edge(studies, name, distribution))


def until(data: xr.Dataset, cost: str) -> np.ndarray:
    """``[S]``."""
    needed = statistics.until(data, ERROR, data.attrs["target"], cost, window=WINDOW.value)
    return needed.transpose("seed").values.astype(float)


Reading = Callable[[Studies, str, str], Rounds]


def times(
    *pairs: tuple[str, str], distribution: str = HALF_NORMAL, read: Reading = seconds
) -> Measure:
    """How many times as long the first of each pair needs as the second."""
    return lambda studies: {
        f"{slow} over {fast}": ratio(
            read(studies, slow, distribution), read(studies, fast, distribution)
        )
        for slow, fast in pairs
    }


def by_distribution(read: Reading, *names: str) -> Measure:
    """How many times as much methods need where times are heavy-tailed."""

    def needed(studies: Studies, name: str, distribution: str) -> Rounds:
        # With the same steps under both: the edge of a search bounds neither.
        return read(studies, name, distribution)._replace(at_edge=False)

    return lambda studies: {
        f"{name}, {HEAVY} over {HALF_NORMAL}": ratio(
            needed(studies, name, HEAVY), needed(studies, name, HALF_NORMAL)
        )
        for name in names
    }


def counts(studies: Studies) -> str:
    """A note: seconds and updates of all methods."""
    rows = []
    for distribution, name in itertools.product(DISTRIBUTIONS, (*METHODS, WAITING)):
        time = seconds(studies, name, distribution)
        count = updates(studies, name, distribution)
        late = int((~np.isfinite(time.needed)).sum())
        value = f"{time.at_least.mean():.1f} s, {count.at_least.mean():.0f} updates"
        rows.append(f"{name} {value}" + (f" ({late} not at the target by then)" if late else ""))
    half = len(rows) // 2
    edges = [name for name in METHODS if at_edge(studies, name, HALF_NORMAL)]
    bounded = f" At an edge of the steps that were tried: {'; '.join(edges)}." if edges else ""
    return f"{HALF_NORMAL}: {'; '.join(rows[:half])}. {HEAVY}: {'; '.join(rows[half:])}.{bounded}"


def crowded(studies: Studies) -> str:
    """A note: seconds of the source's concurrency, and how the factor grows."""
    values = (
        f"{name} {seconds(studies, name, CROWDED).at_least.mean():.1f} s"
        for name in CROWDED_METHODS
    )
    ((name, fewer),) = times((MOMENTUM_SERVER, BUFFERED))(studies).items()
    edges = [name for name in CROWDED_METHODS if at_edge(studies, name, CROWDED)]
    bounded = f" At an edge of the steps that were tried: {'; '.join(edges)}." if edges else ""
    return (
        f"With {CROWDED}: {'; '.join(values)}. With {AT_WORK.value} at work: {name} "
        f"{fewer}.{bounded}"
    )


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    titles = [f"{distribution} times" for distribution in DISTRIBUTIONS]
    drawing, axes = picture.panels([*titles, "time to 85 %", "updates to 85 %"], 4, height=2.2)
    names = (*METHODS, WAITING)
    for ax, distribution in zip(axes, DISTRIBUTIONS, strict=False):
        for index, name in enumerate(names):
            data = studies[of(name, distribution)].transpose("seed", "round", ...)
            at = data["seconds"].mean("seed")
            ax.plot(at, 100 * data[ERROR].mean("seed"), label=name, **picture.look(index))
        ax.axhline(100 * data.attrs["target"], **picture.THIN)
        ax.set(xlabel="seconds", ylabel="test error [%]", yscale="log")
        ax.set_xlim(0, float(studies[of(BUFFERED, distribution)]["seconds"].max()))
        ax.set_yticks([10, 20, 40, 80], labels=["10", "20", "40", "80"])
        ax.minorticks_off()
    readings: Mapping[str, Reading] = {"seconds": seconds, "client updates": updates}
    for ax, (label, read) in zip(axes[2:], readings.items(), strict=True):
        for index, name in enumerate(names):
            estimates = [
                of_few(float, read(studies, name, distribution).at_least, unit="")
                for distribution in DISTRIBUTIONS
            ]
            bars = np.abs([[e.value - e.low, e.high - e.value] for e in estimates]).T
            look = {k: plotting.LOOKS[index][k] for k in ("color", "marker")}
            at = np.arange(len(DISTRIBUTIONS)) + 0.1 * (index - 2)
            values = [e.value for e in estimates]
            ax.errorbar(at, values, bars, linestyle="none", capsize=2, **look)
        short = [name.replace("-", "-\n") for name in DISTRIBUTIONS]
        ax.set(xticks=range(len(short)), xticklabels=short, ylabel=label, ylim=(0, None))
        ax.set_xlim(-0.5, len(short) - 0.5)
    picture.share_legend(axes)
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the claims

SOURCE = "Nguyen et al. 2022"
SCALED = "ours: MNIST, 100 clients at work, no momentum in FedBuff"
SYNCHRONOUS = (MOMENTUM_SERVER, AVERAGING)
FASTER = (1, INFINITE)

FIGURE = Figure(
    name="field-fedbuff",
    title="FedBuff: time to an accuracy, against waiting and not buffering",
    source="Nguyen et al. 2022, sections 5 and 6, on MNIST",
    caption="Test errors of a small network on MNIST by the seconds of a virtual clock, where a "
    "client's training takes (a) a half-normal or (b) a log-normal time of the same mean; (c) "
    "seconds and (d) client updates until 85 % are right, updates that were ignored included. A "
    "hundred clients work at a time; synchronous rounds invite 130 and wait for the first hundred, "
    f"or invite a hundred and wait for all. FedBuff and FedAvgM were also run with 1000 clients at "
    f"work, for the second claim. Means of {SEEDS.value} seeds, with 95 % intervals in "
    "(c) and (d).",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "fedbuff-is-faster-than-synchronous",
            "FedBuff reaches the target accuracy sooner than synchronous averaging",
            f"{SOURCE}, abstract",
            times(*((name, BUFFERED) for name in SYNCHRONOUS)),
            FASTER,
            "seconds, half-normal times",
            SCALED,
            note=counts,
        ),
        Claim(
            "fedbuff-is-three-times-as-efficient",
            "FedBuff is 3.3 times more efficient than synchronous averaging",
            f"{SOURCE}, abstract",
            times((MOMENTUM_SERVER, BUFFERED), distribution=CROWDED),
            *about(3.3).when("seconds of FedAvgM over FedBuff's, 1000 clients at work"),
            "ours: MNIST, no momentum in FedBuff",
            note=crowded,
        ),
        Claim(
            "fedbuff-is-faster-than-fedasync",
            "FedBuff is up to 2.5 times more efficient than FedAsync",
            f"{SOURCE}, abstract",
            times((ASYNCHRONOUS, BUFFERED)),
            FASTER,
            "“up to”: any advantage; seconds, half-normal times",
            SCALED,
            note=counts,
        ),
        Claim(
            "fedbuff-does-not-mind-the-times",
            "FedBuff is robust to the distribution of the staleness",
            f"{SOURCE}, abstract of the first version",
            by_distribution(updates, BUFFERED),
            *LITTLE.factor.when("updates under heavy-tailed over half-normal times"),
            SCALED,
            note=counts,
        ),
        Claim(
            "fedbuff-needs-fewer-updates",
            "FedBuff needs fewer client updates than synchronous averaging",
            "this library",
            times(*((name, BUFFERED) for name in SYNCHRONOUS), read=updates),
            FASTER,
            "updates that over-selection wastes included; half-normal times",
            ours=True,
            note=counts,
        ),
        Claim(
            "heavy-tails-cost-who-waits-for-all",
            "where times are heavy-tailed a server that waits for all needs significantly more "
            "seconds than with half-normal ones",
            "this library",
            by_distribution(seconds, WAITING),
            *SIGNIFICANTLY.factor.when("FedAvgM"),
            ours=True,
            note=counts,
        ),
        Claim(
            "over-selection-protects-against-heavy-tails",
            "a server that waits for the first hundred of 130 needs no more seconds where times "
            "are heavy-tailed",
            "this library",
            by_distribution(seconds, *SYNCHRONOUS),
            *LITTLE.factor,
            ours=True,
            note=counts,
        ),
    ],
    settings=(
        *(DATA, CLIENTS, SHARDS, NETWORK, HALVED, AT_WORK, INVITED, BUFFER, EPOCHS, BATCH),
        *(MOMENTUM, TIMES, TAIL, TARGET, WINDOW, LONGEST, CROWD, CROWD_LONGEST),
        *(FIRST, MOST, SEEDS, TUNED, TUNING_SEEDS, NOT_RUN),
    ),
    tuning=tuning_table,
    diverged="count as not at the target",
)
