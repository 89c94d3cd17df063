"""Single arrivals: against an event loop with a heap, ties, staleness, conservation of time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of, round_key
from fljax.algorithms import (
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedProx,
    HingeStaleness,
    PolynomialStaleness,
)
from fljax.clock import Asynchronous, Between, Devices, Intervals, LogNormal
from fljax.clock.arrivals import idle_clients
from fljax.clock.round_clock import ClockState
from fljax.simulation.workload import work_of
from tests.reference import clock as loop

CLIENTS = 6
DIM = 3
STEPS = 4
STEP_SIZE = 0.05
EVENTS = 200


@pytest.fixture(scope="module")
def problem():
    return fl.problems.ridge(jax.random.key(3), clients=CLIENTS, samples=8, dim=DIM)


def steps_of(problem, attraction=0.0):
    """A client's model after its steps, in NumPy."""
    features, targets = np.asarray(problem.features), np.asarray(problem.targets)
    strength = float(problem.strength) / CLIENTS

    def local(n, k, start):
        w = start
        for _ in range(STEPS):
            residual = features[k] @ w - targets[k]
            gradient = 2 * features[k].T @ residual / len(residual) + 2 * strength * w
            w = w - STEP_SIZE * (gradient + attraction * (w - start))
        return w

    return local


def of_constant(seconds):
    def duration(n, k):
        return seconds[k], False

    duration.clients = CLIENTS
    return duration


def run(problem, algorithm, clock, rounds=EVENTS, **more):
    simulation = fl.Simulation(problem, algorithm, clock=clock, metrics=[MODEL], **more)
    return fl.run(simulation, rounds=rounds)


MODEL = fl.metrics.Metric(
    "server", lambda now: now.shared, label="server's model", dims=("parameter",)
)

SLOW = [math.sqrt(p) / 4 for p in (5, 2, 13, 3, 97, 7)]
TIES = [0.25, 0.5, 0.25, 1.0, 0.5, 0.25]


@pytest.mark.core
@pytest.mark.parametrize("seconds", [SLOW, TIES])
@pytest.mark.parametrize(
    ("algorithm", "use", "attraction"),
    [
        (
            FedAsync(STEP_SIZE, local_steps=STEPS, server_step_size=0.6, attraction=0.3),
            lambda: loop.fedasync(0.6, lambda versions, seconds: (1 + versions) ** -0.5),
            0.3,
        ),
        (
            FedAsync(
                STEP_SIZE,
                local_steps=STEPS,
                staleness=HingeStaleness(2.0, patience=1.5, of="seconds"),
            ),
            lambda: loop.fedasync(
                0.9, lambda versions, seconds: 1 / (2 * max(seconds - 1.5, 0) + 1)
            ),
            0.0,
        ),
        (
            FedBuff(STEP_SIZE, local_steps=STEPS, buffer_size=3, server_step_size=1.5),
            lambda: loop.FedBuff(3, 1.5, lambda versions, seconds: (1 + versions) ** -0.5),
            0.0,
        ),
        (FedAvg(STEP_SIZE, local_steps=STEPS), lambda: loop.mean_of_updates, 0.0),
        (
            FedProx(STEP_SIZE, local_steps=STEPS, attraction=0.3),
            lambda: loop.mean_of_updates,
            0.3,
        ),
    ],
)
def test_arrivals_are_those_of_an_event_loop(problem, algorithm, use, attraction, seconds):
    devices = Devices(seconds_per_step=[s / STEPS for s in seconds])
    result = run(problem, algorithm, Asynchronous(devices))
    at, models, _, busy_seconds = loop.arrivals(
        of_constant(seconds), steps_of(problem, attraction), use(), np.zeros(DIM), EVENTS
    )
    np.testing.assert_allclose(result.seconds, at, rtol=1e-10)
    np.testing.assert_allclose(result.server, models, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(
        result.client_busy_seconds, [busy_seconds[k] for k in range(CLIENTS)]
    )
    total = result.client_busy_seconds + result.client_idle_seconds
    np.testing.assert_allclose(total, at[-1])


def test_several_arrivals_of_a_round_wait_for_the_last(problem):
    devices = Devices(seconds_per_step=[s / STEPS for s in SLOW])
    algorithm = FedAvg(STEP_SIZE, local_steps=STEPS)
    result = run(problem, algorithm, Asynchronous(devices, arrivals=3))
    at, models, ended, busy_seconds = loop.arrivals(
        of_constant(SLOW), steps_of(problem), loop.mean_of_updates, np.zeros(DIM), EVENTS, 3
    )
    np.testing.assert_allclose(result.seconds, at, rtol=1e-10)
    np.testing.assert_allclose(result.server, models, atol=1e-10)
    np.testing.assert_allclose(
        result.client_busy_seconds, [busy_seconds[k] for k in range(CLIENTS)]
    )
    assert {len(set(clients)) for clients in ended} == {3}
    assert (result.client_idle_seconds > 0.1).any()


def draws(devices, concurrency, simulation):
    """The rates, the clients that begin and the seconds of their parts, as a run draws them."""
    key = jax.random.key(0, impl=fl._core.prng.GENERATORS[fl._core.prng.GENERATOR])
    zeroth = key_of(round_key(key, 0), "clock")
    rates = devices.draw(zeroth, CLIENTS)
    clock = Asynchronous(devices, concurrency=concurrency)
    work = work_of(simulation, simulation.problem)

    def key_of_round(n):
        return key_of(round_key(key, n), "clock")

    def begin(n, now, works):
        state = ClockState.at_start(rates)
        state = state._replace(seconds=jnp.array([now, 0.0]))
        is_busy = jnp.zeros(CLIENTS, bool).at[jnp.array([*works], jnp.int32)].set(True)
        count = 1 if n else concurrency
        chosen = idle_clients(
            clock, key_of(key_of_round(n), "participation"), state, is_busy, count
        )
        return np.asarray(chosen).tolist()

    def duration(n, k):
        clients = jnp.array([k], jnp.int32)
        times = devices.times(key_of_round(n), jnp.int32(n), rates, work, clients)
        return float(times.ended[0]), bool(times.fails_at[0] < times.planned[0])

    duration.clients = CLIENTS
    return begin, duration


@pytest.mark.parametrize("concurrency", [2, CLIENTS])
def test_drawn_clients_speeds_and_failures_are_those_of_an_event_loop(problem, concurrency):
    devices = Devices(
        seconds_per_step=LogNormal(0.1, spread=1.0),
        upload_bits_per_second=Between(50.0, 500.0),
        download_bits_per_second=1000.0,
        latency_seconds=0.01,
        variation=LogNormal(1.0, spread=0.3),
        failure=0.2,
    )
    algorithm = FedAsync(STEP_SIZE, local_steps=STEPS, server_step_size=0.6)
    clock = Asynchronous(devices, concurrency=concurrency)
    simulation = fl.Simulation(problem, algorithm, clock=clock, metrics=[MODEL])
    result = fl.run(simulation, rounds=EVENTS)
    begin, duration = draws(devices, concurrency, simulation)
    at, models, ended, busy_seconds = loop.arrivals(
        duration,
        steps_of(problem),
        loop.fedasync(0.6, lambda versions, seconds: (1 + versions) ** -0.5),
        np.zeros(DIM),
        EVENTS,
        first=begin(0, 0.0, ()) if concurrency < CLIENTS else None,
        next_clients=begin if concurrency < CLIENTS else None,
    )
    np.testing.assert_allclose(result.seconds, at, rtol=1e-10)
    np.testing.assert_allclose(result.server, models, atol=1e-10)
    busy_seconds = [busy_seconds.get(k, 0.0) for k in range(CLIENTS)]
    np.testing.assert_allclose(result.client_busy_seconds, busy_seconds, rtol=1e-10)
    assert len({k for clients in ended for k in clients}) == CLIENTS
    lost = 2 * EVENTS - int(result.messages[-1])  # a failed client has received and sends nothing
    assert 20 < lost < 70
    assert int(result.bits_down[-1]) == 32 * DIM * EVENTS


def test_clients_begin_when_they_are_available(problem):
    """The first is there in the first half of every ten seconds, the others in the second."""
    shifts = Intervals([[0.0]] + [[5.0]] * 5, [[5.0]] + [[10.0]] * 5, period=10.0)
    devices = Devices(seconds_per_step=1.0 / STEPS, availability=shifts)
    result = run(problem, FedAsync(STEP_SIZE, local_steps=STEPS), Asynchronous(devices), 60)
    first = result.seconds.values[:5]
    np.testing.assert_allclose(first, [1, 2, 3, 4, 5])
    assert ((result.seconds.values[5:30] % 10 > 5) | (result.seconds.values[5:30] % 10 == 0)).all()
    np.testing.assert_allclose(
        result.client_idle_seconds + result.client_busy_seconds, result.seconds[-1]
    )


def test_time_stands_still_when_no_client_will_be_available_again(problem):
    once = Intervals([[0.0]] * CLIENTS, [[2.5]] * CLIENTS)
    devices = Devices(seconds_per_step=1.0 / STEPS, availability=once)
    with pytest.warns(fl.AssumptionWarning, match="then stood still"):
        result = run(problem, FedAsync(STEP_SIZE, local_steps=STEPS), Asynchronous(devices), 30)
    assert float(result.seconds[-1]) == pytest.approx(2.5)
    assert int(result.messages[-1]) == 2 * 12 + 6  # two parts of each of the six, and one begun
    np.testing.assert_array_equal(result.server[-1], result.server[17])


def test_a_model_is_a_version_only_if_it_differs(problem):
    """A buffer of four: staleness counts its steps and not arrivals."""
    values = []

    @fl.module
    class Recorded(PolynomialStaleness):
        def __call__(self, late):
            jax.debug.callback(lambda value: values.append(value.copy()), late)
            return super().__call__(late)

    algorithm = FedBuff(STEP_SIZE, local_steps=STEPS, buffer_size=4, staleness=Recorded())
    devices = Devices(seconds_per_step=[1.0] * 5 + [100.0])
    run(problem, algorithm, Asynchronous(devices), 40)
    jax.effects_barrier()
    assert len(values) == 40
    assert max(value.item() for value in values) <= 2


def test_a_momentum_of_the_server_is_of_updates(problem):
    devices = Devices(seconds_per_step=[s / STEPS for s in SLOW])
    algorithm = FedAvgM(STEP_SIZE, local_steps=STEPS, momentum=0.5)
    result = run(problem, algorithm, Asynchronous(devices))
    velocity = np.zeros(DIM)

    def use(server, arrived):
        nonlocal velocity
        velocity = 0.5 * velocity + sum(model - start for _, start, model, *_ in arrived)
        return server + velocity

    models = loop.arrivals(of_constant(SLOW), steps_of(problem), use, np.zeros(DIM), EVENTS)[1]
    np.testing.assert_allclose(result.server, models, atol=1e-10)


def test_seeds_and_a_grid_of_speeds_are_one_program(problem):
    def scenario(key, slowest):
        devices = Devices(seconds_per_step=LogNormal(1.0, slowest))
        return fl.Simulation(
            problem, FedAsync(STEP_SIZE), clock=Asynchronous(devices), metrics=["normalized_error"]
        )

    results = fl.sweep(scenario, rounds=20, seeds=3, grid={"slowest": [0.1, 2.0]})
    assert results.attrs["compilations"] == 1
    assert results.seconds.dims == ("slowest", "seed", "round")
    assert len(np.unique(results.seconds.isel(round=-1))) == 6
    alone = fl.sweep(scenario, rounds=20, seeds=[1], grid={"slowest": [2.0]})
    np.testing.assert_array_equal(alone.seconds.squeeze(), results.seconds.sel(slowest=2.0, seed=1))


def test_a_study_goes_on_where_it_stopped(problem, tmp_path):
    def scenario(key):
        devices = Devices(seconds_per_step=LogNormal(1.0, 1.0), failure=0.1)
        clock = Asynchronous(devices, concurrency=3)
        return fl.Simulation(problem, FedAsync(STEP_SIZE), clock=clock, metrics=[MODEL])

    at_once = fl.sweep(scenario, rounds=40, seeds=3)
    fl.sweep(scenario, rounds=20, seeds=2, store=tmp_path / "store")
    longer = fl.sweep(scenario, rounds=40, seeds=3, store=tmp_path / "store")
    for name in ("seconds", "server", "joules", "client_busy_seconds", "client_idle_seconds"):
        np.testing.assert_array_equal(at_once[name], longer[name])


CLOCK = Asynchronous(Devices(seconds_per_step=1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: run(p, fl.algorithms.SCAFFOLD(0.1), CLOCK), "has no form in which each client"),
        (lambda p: run(p, FedAsync(0.1, 2), CLOCK), "is given Drawn, but with Asynchronous"),
        (lambda p: Asynchronous(Devices(seconds_per_step=1.0), arrivals=0), "arrivals must be"),
        (
            lambda p: Asynchronous(Devices(seconds_per_step=1.0), concurrency=2, arrivals=3),
            "arrivals must be at most the 2 clients that work at a time",
        ),
        (
            lambda p: run(
                p, FedAsync(0.1), Asynchronous(Devices(seconds_per_step=1.0), concurrency=7)
            ),
            "concurrency must be at most the 6 clients",
        ),
        (lambda p: run(p, FedAsync(0.1), CLOCK, delays=fl.link.Fixed(1)), "latency or a bandwidth"),
        (
            lambda p: run(p, FedAsync(0.1), CLOCK, losses=fl.link.Independent(0.1)),
            "give the clock's devices failure=",
        ),
        (
            lambda p: run(p, FedAsync(0.1), CLOCK, participation=fl.participation.Bernoulli(0.5)),
            "give the clock's devices availability=",
        ),
        (
            lambda p: run(p, FedAvg(0.1), CLOCK, privacy=fl.privacy.CentralGaussian(1.0)),
            "no theorem covers who arrives when",
        ),
        (
            lambda p: run(p, FedAsync(0.1, staleness=PolynomialStaleness(of="seconds")), None),
            "which only a clock knows",
        ),
        (lambda p: PolynomialStaleness(of="minutes"), "unknown of .minutes"),
    ],
)
def test_what_has_no_meaning_with_single_arrivals_is_refused(problem, make, message):
    with pytest.raises(ValueError, match=message):
        make(problem)


def test_models_that_do_not_fit_into_memory_are_refused(monkeypatch, problem):
    monkeypatch.setattr(fl._core.memory, "SMALL_BYTES", 0)
    monkeypatch.setattr(fl._core.memory, "memory_at_hand", lambda: 100)
    with pytest.raises(MemoryError, match="the models that 6 clients work from takes"):
        run(problem, FedAsync(0.1), CLOCK)


def test_an_algorithm_that_asks_for_no_participants_is_refused(problem):
    @fl.module
    class Stubborn(FedAvg):
        def step(self, state, now):
            return state

    with pytest.raises(TypeError, match="chooses no participants"):
        run(problem, Stubborn(0.1), CLOCK)
