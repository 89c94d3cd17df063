"""Clients that compute and communicate at their own speeds: the time until a target."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.atlas.convex import CLIENTS, logistic, parts
from experiments.atlas.graphs import peers
from experiments.atlas.scenario import COSTS_ON_A_CLOCK, Rule, Scenario
from fljax._core.module import float_dtype, module
from fljax._core.random_subsets import shuffled
from fljax.clock import (
    DAY,
    Asynchronous,
    Deadline,
    Devices,
    Distribution,
    FirstArrivals,
    Intervals,
    LogNormal,
    Synchronous,
    Tiers,
)
from fljax.participation import Participants, Subset

DIM = 20
LIKENESS = "mildly unlike"
#: Clients whose answers a round waits for, that is as many as work at a time where the server waits
#: for no one.
WORKING = 10
#: Clients that a round invites where it does not wait for all of them.
INVITED = 13
#: Updates for which FedBuff and the server of K-async wait.
BUFFER = 5
TIERS = 5
#: Between the clients of two quantiles that are next to each other; it has no divisor in common
#: with the number of clients.
STRIDE = 21
#: The normalized error is a sum over clients: this is a relative error of each of -18 dB.
TARGET = CLIENTS * 1.6e-2


def quantiles(distribution: Distribution) -> np.ndarray:
    """A number of each client: evenly spaced quantiles, so that all seeds have the same devices,
    and the methods' last values are at nearly the same round in each. Their order is scattered, so
    that it has nothing to do with other numbers of the clients.
    """
    scattered = np.arange(CLIENTS) * STRIDE % CLIENTS
    shares = (scattered.astype(float_dtype()) + 0.5) / CLIENTS
    return np.asarray(distribution.quantile(jnp.asarray(shares)))


@module
class Present(Subset):
    """The same choice by the clients' numbers: only the gradients of participants are
    computed, and counted.
    """

    def choose(
        self, key: jax.Array, available: jax.Array, network: object, round: jax.Array | int = 1
    ) -> Participants:
        chosen = shuffled(key, available[None], self.count)[0]
        return Participants(chosen, available[chosen])


def with_server(devices: Devices, deadline: float, rounds: Mapping[str, int]) -> dict[str, Rule]:
    """The methods with a server, which has at most a quarter of the clients at work.

    Args:
      devices: of the clients.
      deadline: the most seconds of a round, where it has such a limit.
      rounds: of each kind of round, until the scenario's seconds have passed.
    """
    some = {"selector": Present(WORKING)}
    more = {"selector": Present(INVITED)}
    invited = f"invites {INVITED} available clients, and ends"
    late = f"{invited} after {deadline:g} seconds if not all have answered before"
    first = Rule(
        f"a round {invited} when the first {WORKING} have answered",
        FirstArrivals(devices, count=WORKING),
        rounds["first"],
        2,
        more,
    )
    on_arrival = Rule(
        f"{WORKING} clients work at a time, and a round is the arrival of one's update",
        Asynchronous(devices, concurrency=WORKING),
        rounds["arrival"],
        10,
    )
    return {
        "FedAvg (all)": Rule(
            f"a round invites {WORKING} available clients, and ends when all have answered or "
            "failed",
            Synchronous(devices),
            rounds["all"],
            1,
            some,
        ),
        "FedAvg (first answers)": first,
        "FedAvgM (first answers)": first,
        "FedAvg (deadline)": Rule(
            f"a round {late}; later answers are ignored",
            Deadline(devices, seconds=deadline),
            rounds["deadline"],
            2,
            more,
        ),
        "FedProx (deadline)": Rule(
            f"a round {late}; who would be late takes fewer steps",
            Deadline(devices, seconds=deadline, partial=True),
            rounds["fewer steps"],
            2,
            more,
        ),
        "FedAvg (tiers)": Rule(
            f"a round has the available clients of one of {TIERS} tiers of about equal speed, and "
            "ends when all have answered or failed",
            Tiers(devices, tiers=TIERS, count=WORKING),
            rounds["tiers"],
            1,
        ),
        "FedAsync": on_arrival,
        "FedBuff": replace(
            on_arrival,
            words=f"{on_arrival.words}; the server's model moves after {BUFFER} of them",
            given={"buffer_size": BUFFER},
        ),
        "FedAvg (K-async)": Rule(
            f"{WORKING} clients work at a time, and a round ends with the arrival of {BUFFER} "
            "updates",
            Asynchronous(devices, concurrency=WORKING, arrivals=BUFFER),
            rounds["arrival"] // BUFFER,
            2,
        ),
    }


WHO = "Logistic regression; clients of one server"
LATENCY = 0.05


Scenario(
    "clock-equal",
    "Time until a target with equally fast clients",
    "Where all devices are alike, what remains of a clock is the variation from round to round: "
    "synchronous rounds are then as good as any (Dutta et al. 2018 analyze both kinds of rounds "
    "where the times of all clients have one distribution).",
    f"{WHO} whose devices are equally fast; time is scarce",
    partial(parts, logistic, likeness=LIKENESS, dim=DIM),
    "normalized_error",
    target=TARGET,
    rounds=100,
    axes={"clock": "equal speeds"},
    seconds=120.0,
    costs=COSTS_ON_A_CLOCK,
    rules=with_server(
        Devices(
            seconds_per_step=0.2, variation=LogNormal(1.0, spread=0.1), latency_seconds=LATENCY
        ),
        deadline=1.2,
        rounds={
            "all": 99,
            "first": 108,
            "deadline": 104,
            "fewer steps": 114,
            "tiers": 99,
            "arrival": 1140,
        },
    ),
)

#: The slowest of fifty clients takes ten times as long as the median one.
HEAVY = LogNormal(0.2, spread=1.0)

Scenario(
    "clock-heavy",
    "Time until a target with a few very slow clients",
    "Speeds of phones have a heavy tail, and a synchronous round lasts as long as its slowest "
    "client, for which buffered asynchronous averaging was made (Nguyen et al. 2022). The slow "
    "clients' data are missing where no one waits for them.",
    f"{WHO}, a few of which are very slow; time is scarce",
    partial(parts, logistic, likeness=LIKENESS, dim=DIM),
    "normalized_error",
    target=TARGET,
    rounds=100,
    axes={"clock": "heavy-tailed speeds"},
    seconds=400.0,
    costs=COSTS_ON_A_CLOCK,
    rules=with_server(
        Devices(
            seconds_per_step=quantiles(HEAVY),
            variation=LogNormal(1.0, spread=0.3),
            latency_seconds=LATENCY,
        ),
        deadline=4.0,
        rounds={
            "all": 84,
            "first": 208,
            "deadline": 112,
            "fewer steps": 126,
            "tiers": 160,
            "arrival": 2850,
        },
    ),
)

#: Seconds of a local step, and of how long each client is available every night.
SLOW = LogNormal(120.0, spread=0.5)
NIGHT = 8 * 3600.0
#: When each client's night begins: over eight time zones, from the first to the last client.
EVENING = np.arange(CLIENTS)[:, None] * NIGHT / CLIENTS
DAYS = 3

Scenario(
    "clock-diurnal",
    "Time until a target with clients that are available at night",
    "Phones train when they are charged at night, so who is available goes with the time zones "
    "(Eichner et al. 2019 call such data semi-cyclic). In a third "
    "of the day nobody is there.",
    f"{WHO} in eight time zones, each available for eight hours of its night; time is scarce",
    partial(parts, logistic, likeness=LIKENESS, dim=DIM),
    "normalized_error",
    target=TARGET,
    rounds=100,
    axes={"clock": "time of day"},
    seconds=DAYS * DAY,
    costs=COSTS_ON_A_CLOCK,
    rules=with_server(
        Devices(
            seconds_per_step=quantiles(SLOW),
            variation=LogNormal(1.0, spread=0.3),
            latency_seconds=1.0,
            availability=Intervals(EVENING, EVENING + NIGHT, period=DAY),
        ),
        deadline=1200.0,
        rounds={
            "all": 156,
            "first": 216,
            "deadline": 180,
            "fewer steps": 204,
            "tiers": 350,
            "arrival": 2700,
        },
    ),
)

#: Bits per second of an upload; the slowest of fifty clients has a tenth of the median one's.
UPLOAD = LogNormal(300.0, spread=1.0)

Scenario(
    "clock-links",
    "Time until a target with slow links that fail",
    "Clients' uploads, not their computations, are what a round waits for (Konecny et al. 2016), "
    "and clients drop out in the middle of a round (Bonawitz et al. 2019).",
    f"{WHO} with slow links that fail; time is scarce",
    partial(parts, logistic, likeness=LIKENESS, dim=DIM),
    "normalized_error",
    target=TARGET,
    rounds=100,
    axes={"clock": "poor links"},
    seconds=1000.0,
    costs=COSTS_ON_A_CLOCK,
    rules=with_server(
        Devices(
            seconds_per_step=0.04,
            upload_bits_per_second=quantiles(UPLOAD),
            download_bits_per_second=3000.0,
            latency_seconds=0.5,
            variation=LogNormal(1.0, spread=0.3),
            failure=0.1,
        ),
        deadline=10.0,
        rounds={
            "all": 100,
            "first": 164,
            "deadline": 116,
            "fewer steps": 122,
            "tiers": 178,
            "arrival": 2550,
        },
    ),
)

#: Devices of the peers: as of the clients of a server, with messages that take as long as a step.
AMONG_PEERS = Devices(
    seconds_per_step=quantiles(HEAVY),
    variation=LogNormal(1.0, spread=0.3),
    latency_seconds=0.2,
)
TOGETHER = "a round lasts until the last message has arrived"
ALONE = "peers work at their own speeds, and a round is the moment at which one completes its work"
ROUNDS_TOGETHER = 48

Scenario(
    "clock-peers",
    "Time until a target among peers, a few of which are very slow",
    "Peers in synchronous rounds wait for the slowest, which asynchronous gossip was made to avoid "
    "(Lian et al. 2018; Nadiradze et al. 2021).",
    "Least squares; peers on a random graph, a few of which are very slow; time is scarce",
    partial(peers, likeness=LIKENESS),
    "normalized_error",
    target=TARGET,
    rounds=ROUNDS_TOGETHER,
    axes={"clock": "heavy-tailed speeds", "graph": "random"},
    talks="peers",
    seconds=100.0,
    costs=COSTS_ON_A_CLOCK,
    rules={
        "AD-PSGD": Rule(ALONE, Asynchronous(AMONG_PEERS), 8200, 100),
        "SwarmSGD": Rule(ALONE, Asynchronous(AMONG_PEERS), 4000, 50),
        "Consensus": Rule(TOGETHER, Synchronous(AMONG_PEERS), ROUNDS_TOGETHER),
        "ATC": Rule(TOGETHER, Synchronous(AMONG_PEERS), ROUNDS_TOGETHER),
        "EXTRA": Rule(TOGETHER, Synchronous(AMONG_PEERS), ROUNDS_TOGETHER),
    },
)
