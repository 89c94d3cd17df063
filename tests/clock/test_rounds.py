"""Rounds on a clock: against an event loop, equal to rounds without one, and bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import GENERATOR, GENERATORS, key_of, round_key
from fljax.algorithms import FedAvg, FedNova, FedProx
from fljax.clock import (
    Between,
    Deadline,
    Devices,
    FirstArrivals,
    Intervals,
    LogNormal,
    Synchronous,
    Ticks,
    Tiers,
)
from fljax.simulation.workload import work_of
from tests.cases import SERVED, simulate
from tests.reference import clock as loop

CLIENTS = 8
DIM = 3
STEPS = 4
ROUNDS = 30
SECONDS = np.sqrt([2, 3, 5, 7, 11, 13, 17, 19])


@pytest.fixture(scope="module")
def problem():
    return fl.problems.ridge(jax.random.key(3), clients=CLIENTS, samples=8, dim=DIM)


def devices(**more):
    return Devices(seconds_per_step=SECONDS / STEPS, **more)


def run(problem, clock, algorithm=None, rounds=ROUNDS, metrics=("normalized_error",), **more):
    algorithm = FedAvg(0.05, local_steps=STEPS) if algorithm is None else algorithm
    simulation = fl.Simulation(problem, algorithm, clock=clock, metrics=metrics, **more)
    return fl.run(simulation, rounds=rounds)


# Time ---------------------------------------------------------------------------------------------


def test_a_run_ends_when_its_seconds_are_over():
    """Or when its metrics have reached their tolerances, whichever comes first."""

    def timed(key, slowness):
        problem = fl.problems.ridge(key, clients=CLIENTS, samples=8, dim=DIM)
        algorithm = FedAvg(0.05, local_steps=STEPS)
        clock = Synchronous(Devices(seconds_per_step=slowness * SECONDS / STEPS))
        return fl.Simulation(problem, algorithm, clock=clock, metrics=["normalized_error"])

    slowest = SECONDS.max()
    study = {"rounds": 40, "seeds": 2, "segment": 4, "progress": False}
    unlimited = fl.sweep(timed, grid={"slowness": [2.0]}, **study)

    def ending(slowness, **until):
        return fl.sweep(timed, grid={"slowness": slowness}, until=until, **study)

    limited = ending([2.0], seconds=17 * slowest)
    assert (limited.stopped == 12).all()
    for name in ("normalized_error", "seconds", "bits"):
        until_then = unlimited[name].isel(round=np.minimum(np.arange(40), 11))
        np.testing.assert_array_equal(limited[name], until_then, err_msg=name)
    assert (ending([1.0, 2.0], seconds=17 * slowest).stopped == 20).all()  # both are one block
    level = float(unlimited.normalized_error.sel(round=8).max())
    either = ending([2.0], normalized_error=level, seconds=17 * slowest)
    assert (either.stopped <= 8).all()
    neither = ending([2.0], normalized_error=0.0, seconds=17 * slowest)
    assert (neither.stopped == 12).all()


def times_of(devices, simulation):
    """The seconds of each client's part of each round, as a run draws them."""
    key = jax.random.key(0, impl=GENERATORS[GENERATOR])
    rates = devices.draw(key_of(round_key(key, 0), "clock"), CLIENTS)
    work = work_of(simulation, simulation.problem)
    everyone = jnp.arange(CLIENTS, dtype=jnp.int32)
    for n in range(1, ROUNDS + 1):
        now = key_of(round_key(key, n), "clock")
        times = devices.times(now, jnp.int32(n), rates, work, everyone)
        yield [*zip(np.asarray(times.planned), np.asarray(times.fails_at), strict=True)]


@pytest.mark.core
@pytest.mark.parametrize("failure", [None, 0.3])
@pytest.mark.parametrize(
    ("mode", "make"),
    [
        (("all",), Synchronous),
        (("first", 3), lambda devices: FirstArrivals(devices, count=3)),
        (("first", 5), lambda devices: FirstArrivals(devices, count=5)),
        (("deadline", 0.6), lambda devices: Deadline(devices, seconds=0.6)),
    ],
)
def test_rounds_are_those_of_an_event_loop(problem, mode, make, failure):
    devices = Devices(
        seconds_per_step=LogNormal(0.05, spread=0.7),
        seconds_per_sample=0.001,
        upload_bits_per_second=Between(500.0, 5000.0),
        download_bits_per_second=10_000.0,
        latency_seconds=0.02,
        variation=LogNormal(1.0, spread=0.3),
        failure=failure,
    )
    algorithm = FedAvg(0.05, 6, local_steps=STEPS)
    simulation = fl.Simulation(
        problem, algorithm, clock=make(devices), metrics=["timeline", "participation"]
    )
    result = fl.run(simulation, rounds=ROUNDS)
    now = 0.0
    for n, times in enumerate(times_of(devices, simulation)):
        invited = np.flatnonzero(~np.isnan(result.timeline.values[n, :, 0])).tolist()
        assert len(invited) == 6
        seconds, counted = loop.synchronous(times, invited, mode)
        np.testing.assert_allclose(result.timeline.values[n, invited, 0], now, rtol=1e-12)
        now += seconds
        np.testing.assert_allclose(result.seconds[n], now, rtol=1e-12)
        assert np.flatnonzero(result.timeline.values[n, :, 4] == 1).tolist() == sorted(counted)
        worked = result.timeline.values[n, invited, 1:4].sum(axis=1)
        np.testing.assert_allclose(worked, [min(*times[k], seconds) for k in invited])
    np.testing.assert_allclose(result.client_busy_seconds + result.client_idle_seconds, now)
    assert int(result.bits_up[-1]) == 32 * DIM * 6 * ROUNDS  # what comes too late was sent


@pytest.mark.core
def test_a_clock_that_waits_for_all_changes_no_number(problem):
    for algorithm in (
        FedAvg(0.05, 3, local_steps=STEPS),
        FedNova(0.05, 5, epochs=2, batch=3),
        FedProx(0.05, attraction=0.1, local_steps=[1, 2, 3, 4, 1, 2, 3, 4]),
    ):
        plain = run(problem, None, algorithm)
        timed = run(problem, Synchronous(devices()), algorithm)
        np.testing.assert_array_equal(plain.normalized_error, timed.normalized_error)
        np.testing.assert_array_equal(plain.model, timed.model)
        np.testing.assert_array_equal(plain.bits, timed.bits)


def test_what_is_too_late_is_not_averaged(problem):
    """The four fastest of eight clients are always first: as if there were no others."""
    in_time = run(problem, FirstArrivals(devices(), count=4))
    data = {name: getattr(problem, name)[:4] for name in ("features", "targets", "weights")}
    fastest = dataclasses.replace(problem, **data, strength=problem.strength / 2)
    alone = run(fastest, None, metrics=())
    np.testing.assert_allclose(in_time.model[0], alone.model[0], rtol=1e-12)


def test_partial_work_is_what_fits(problem):
    clock = Deadline(devices(latency_seconds=0.1), seconds=2.0, partial=True)
    result = run(problem, clock, metrics=["timeline"])
    steps = np.minimum(np.floor((2.0 - 0.2) / (SECONDS / STEPS) + 1e-9), STEPS).astype(int)
    assert steps.tolist() == [4, 4, 3, 2, 2, 1, 1, 1]
    same = run(problem, None, FedAvg(0.05, local_steps=steps.tolist()), metrics=())
    np.testing.assert_allclose(result.model, same.model, rtol=1e-12)
    np.testing.assert_allclose(result.timeline.values[0, :, 2], steps * SECONDS / STEPS)
    dropped = run(
        problem, Deadline(devices(latency_seconds=0.1), seconds=2.0), metrics=["timeline"]
    )
    assert dropped.timeline.values[0, :, 4].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(dropped.seconds[0], 2.0)


def test_a_step_that_fits_exactly_is_taken(problem):
    clock = Deadline(Devices(seconds_per_step=0.1), seconds=0.3, partial=True)
    result = run(problem, clock, metrics=())
    same = run(problem, None, FedAvg(0.05, local_steps=3), metrics=())
    np.testing.assert_allclose(result.model, same.model, rtol=1e-12)


def test_tiers_are_of_similar_speed(problem):
    clock = Tiers(devices(), tiers=4, count=2, probabilities=[0.5, 0.0, 0.0, 0.5])
    result = run(problem, clock, metrics=["participation"], rounds=60)
    pairs = {tuple(np.flatnonzero(row)) for row in result.participation.values}
    assert pairs == {(0, 1), (6, 7)}
    duration = np.diff(result.seconds, prepend=0)
    slow = result.participation.values[:, 7]
    np.testing.assert_allclose(duration, np.where(slow, SECONDS[7], SECONDS[1]))
    assert 15 < slow.sum() < 45


def test_ticks_are_delays_of_the_seconds(problem):
    clock = Ticks(devices(), seconds=1.5, longest=2)
    result = run(problem, clock)
    lags = np.floor(SECONDS / 1.5).astype(int)
    assert lags.tolist() == [0, 1, 1, 1, 2, 2, 2, 2]
    table = np.tile(np.where(lags <= 2, lags, -1), (ROUNDS, 1))
    delayed = run(problem, None, delays=fl.link.DelayTrace(table, longest=2))
    np.testing.assert_array_equal(result.normalized_error, delayed.normalized_error)
    np.testing.assert_allclose(result.seconds, 1.5 * np.arange(1, ROUNDS + 1))


def test_a_client_that_is_not_available_does_not_take_part(problem):
    """Half of the clients at a time; a round without participants lasts until one is available."""
    start = [[0.0]] * 4 + [[20.0]] * 4
    shifts = Intervals(start, [[10.0]] * 4 + [[30.0]] * 4, period=40.0)
    devices = Devices(seconds_per_step=1.0 / STEPS, availability=shifts)
    result = run(problem, Synchronous(devices), metrics=["participation"], rounds=44)
    took_part = result.participation.values
    assert took_part[:10].tolist() == [[True] * 4 + [False] * 4] * 10
    assert not took_part[10].any()
    assert float(result.seconds[10]) == 20
    assert took_part[11:21].tolist() == [[False] * 4 + [True] * 4] * 10
    assert float(result.seconds[21]) == 40
    assert float(result.seconds[-1]) == 80


def test_what_is_not_complete_when_a_client_leaves_is_lost(problem):
    shifts = Intervals([[0.0]] * CLIENTS, [[3.0]] * CLIENTS, period=10.0)
    result = run(problem, Synchronous(devices(availability=shifts)), metrics=["timeline"], rounds=2)
    assert result.timeline.values[0, :, 4].tolist() == (SECONDS <= 3).astype(int).tolist()
    assert result.seconds.values.tolist() == [3.0, 10.0]


def test_energy_is_of_what_was_done(problem):
    devices = Devices(
        seconds_per_step=SECONDS / STEPS,
        upload_bits_per_second=96.0,
        watts=2.0,
        joules_per_bit=0.01,
    )
    result = run(problem, Synchronous(devices), rounds=3)
    np.testing.assert_allclose(result.client_joules, 3 * (2 * SECONDS + 0.01 * 2 * 96))
    np.testing.assert_allclose(result.joules[-1], result.client_joules.sum())
    stopped = run(problem, Deadline(devices, seconds=2.5), rounds=1)
    # The first is in time, the second stops in its upload, the last in its computations.
    expected = 2 * SECONDS[0] + 0.01 * 192, 2 * SECONDS[1] + 0.96 + 0.96 * (2.5 - SECONDS[1]), 5.96
    np.testing.assert_allclose(stopped.client_joules[[0, 1, 7]], expected)


def test_more_samples_take_longer(problem):
    real = np.arange(16)[None] < np.array([4, 8, 16])[:, None]
    features = np.random.default_rng(0).normal(size=(3, 16, DIM)) * real[:, :, None]
    problem = fl.problems.Problem(
        features,
        features[:, :, 0],
        fl.problems.LeastSquares(),
        weights=real / real.sum(axis=1, keepdims=True),
    )
    devices = Devices(seconds_per_sample=0.5, seconds_per_step=1.0)
    for algorithm, seconds in (
        (FedAvg(0.05, epochs=2), [6.0, 10.0, 18.0]),
        (FedAvg(0.05, epochs=2, batch=4), [6.0, 12.0, 24.0]),
        (FedAvg(0.05, batch=8, local_steps=3), [9.0, 15.0, 15.0]),
    ):
        result = run(problem, Synchronous(devices), algorithm, rounds=1, metrics=["timeline"])
        np.testing.assert_allclose(result.timeline.values[0, :, 2], seconds)


# Bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", SERVED)
def test_the_clock_knows_the_bits_that_are_counted(label):
    simulation = simulate(label, private=False)
    stated = simulation.algorithm.exchanged(simulation.problem)
    if stated is None:
        return
    counted = fl.run(simulation, rounds=1)
    took_part = int(counted.messages[0]) // 2 or 1
    bits = int(counted.bits_up[0]), int(counted.bits_down[0])
    if simulation.algorithm.message_size_of(simulation.problem) == 0:
        assert bits == (0, 0)
    else:
        assert bits == tuple(32 * numbers * took_part for numbers in stated)


@pytest.mark.parametrize("label", ["MIME", "FedGen", "SignSGD", "Scaffnew"])
def test_messages_of_other_lengths_are_counted_where_all_are_waited_for(label):
    simulation = simulate(label, private=False)
    devices = Devices(upload_bits_per_second=1.0, download_bits_per_second=1.0)
    timed = dataclasses.replace(simulation, clock=Synchronous(devices))
    result = fl.run(timed, rounds=20)
    participants = simulation.problem.clients
    np.testing.assert_allclose(
        result.seconds[-1], (result.bits_up[-1] + result.bits_down[-1]) / participants
    )
    with pytest.raises(ValueError, match="messages of different lengths, by which FirstArrivals"):
        dataclasses.replace(simulation, clock=FirstArrivals(devices, count=1))


def test_compressed_messages_take_less_time(problem):
    devices = Devices(upload_bits_per_second=1.0)
    compression = fl.link.TopK(1)
    for clock in (Synchronous(devices), FirstArrivals(devices, count=8)):
        result = run(problem, clock, rounds=1, compression=compression)
        np.testing.assert_allclose(result.seconds, compression.bits(DIM))


def test_an_algorithm_that_says_other_lengths_is_warned_of(problem):
    @fl.module
    class Wrong(FedAvg):
        def exchanged(self, problem):
            return 1, 1

    with pytest.warns(fl.AssumptionWarning, match="other lengths than the algorithm's method"):
        run(problem, FirstArrivals(devices(), count=3), Wrong(0.05), rounds=2)


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Devices(), "takes no time have no use for a clock"),
        (lambda p: Devices(seconds_per_step=-1.0), "seconds_per_step must be finite and >= 0"),
        (
            lambda p: Devices(upload_bits_per_second=0.0),
            "upload_bits_per_second must be finite and > 0, got 0. It is in bits, not bytes",
        ),
        (lambda p: devices(failure=1.0), "failure must be finite and >= 0 and < 1"),
        (lambda p: LogNormal(0.0, 1.0), "median must be finite and > 0"),
        (lambda p: Between(2.0, 1.0), "high must be above low=2"),
        (lambda p: FirstArrivals(devices(), count=0), "count must be"),
        (
            lambda p: run(p, FirstArrivals(devices(), count=5), FedAvg(0.1, 4)),
            "at most 4 participants in a round, and the clock waits for the first 5",
        ),
        (
            lambda p: run(p, Deadline(devices(), seconds=1.0)),
            "no client can meet the deadline of 1 s: the fastest takes 1.41421 s",
        ),
        (
            lambda p: run(p, Synchronous(Devices(seconds_per_step=[1.0, 2.0]))),
            "seconds_per_step must be one number or one for each of the 8 clients",
        ),
        (
            lambda p: run(p, Synchronous(devices(variation=np.ones((5, CLIENTS))))),
            "the trace of variations has 5 rounds of 8 clients; the run has 30",
        ),
        (lambda p: run(p, Tiers(devices(), tiers=4, count=3)), "at most the 2 clients of a tier"),
        (
            lambda p: Tiers(devices(), tiers=2, count=1, probabilities=[0.5, 0.6]),
            "probabilities must be 2 that sum to one",
        ),
        (
            lambda p: run(
                p,
                FirstArrivals(devices(), count=3),
                privacy=fl.privacy.CentralGaussian(1.0, clip=1.0),
            ),
            "amplified by sampling that FirstArrivals decides on",
        ),
        (
            lambda p: run(p, Ticks(devices(), seconds=1.0, longest=1), delays=fl.link.Fixed(1)),
            "delays from the seconds of messages",
        ),
        (lambda p: Intervals([[3.0]], [[2.0]]), "each interval must end after its start"),
        (lambda p: Intervals([[0.0, 1.0]], [[2.0, 3.0]]), "must not overlap"),
        (lambda p: Intervals([[0.0]], [[20.0]], period=10.0), "after the period of 10 s"),
        (lambda p: Intervals([[np.nan]], [[np.nan]]), "client 0 is never available"),
    ],
)
def test_bad_arguments_are_refused(problem, make, message):
    with pytest.raises(ValueError, match=message):
        make(problem)


def test_a_drawn_deadline_that_nobody_meets_is_warned_of(problem):
    clock = Deadline(Devices(seconds_per_step=LogNormal(10.0, 0.1)), seconds=1.0)
    with pytest.warns(fl.AssumptionWarning, match="no message arrived in time in 1 of 1 runs"):
        run(problem, clock, rounds=2)


def test_intervals_that_end_are_warned_of(problem):
    once = Intervals([[0.0]] * CLIENTS, [[5.0]] * CLIENTS)
    with pytest.warns(fl.AssumptionWarning, match="which then stood still; give Intervals"):
        result = run(problem, Synchronous(devices(availability=once)), rounds=5)
    assert float(result.seconds[-1]) == 5


def test_partial_work_needs_local_steps(problem):
    clock = Deadline(devices(), seconds=10.0, partial=True)
    with pytest.raises(TypeError, match="limits local steps, and the algorithm takes none"):
        run(problem, clock, fl.algorithms.ExactFedProx(0.1))


def test_what_was_sent_too_late_is_booked():
    """The noisy gradients of all six clients, though a round is of the first three."""
    problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=DIM)
    budget = fl.privacy.NoisyGradients(1.0, clip=1.0)
    devices = Devices(seconds_per_step=[1.0, 2, 3, 4, 5, 6])
    spent = {}
    for clock in (None, FirstArrivals(devices, count=3)):
        result = run(problem, clock, fl.algorithms.FedDPSGD(0.1), 5, (), privacy=budget)
        spent[clock is None] = result.client_rho.values
    np.testing.assert_array_equal(spent[True], spent[False])
    assert (spent[False] > 0).all()


def test_the_first_tier_is_the_fastest(problem):
    clock = Tiers(devices(), tiers=4, count=2, probabilities=[0.0, 1.0, 0.0, 0.0])
    result = run(problem, clock, rounds=4, metrics=["participation"])
    assert {tuple(np.flatnonzero(row)) for row in result.participation.values} == {(2, 3)}
    np.testing.assert_allclose(np.diff(result.seconds, prepend=0), SECONDS[3])


def test_a_message_in_time_may_be_lost(problem):
    """With a link that never works nothing is averaged, whoever is first."""
    clock = FirstArrivals(devices(), count=4)
    lost = run(problem, clock, rounds=3, losses=fl.link.Independent(1.0))
    np.testing.assert_array_equal(lost.model, 0)
    lossless = run(problem, clock, rounds=3, losses=fl.link.Independent(0.0))
    np.testing.assert_array_equal(lossless.model, run(problem, clock, rounds=3).model)
    assert (lossless.model != 0).any()
