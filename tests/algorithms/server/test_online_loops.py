"""Servers of streams with absences and delays against message-by-message loops."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import link as links
from fljax._core.prng import key_of
from fljax._core.random_subsets import subset
from fljax.algorithms import ConventionalFL, FedAvg, OnlineFed, PAOFed, PSOFed, SignSGD
from fljax.link import Circular, Geometric, Sign
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Bernoulli, Markov
from fljax.participation.selectors import Everyone, Fraction, Subset
from fljax.problems import LeastSquares, SquaredL2, from_clients
from tests.cases import online_loop
from tests.reference import nfl, online
from tests.support.online_world import (
    EVERY,
    MU,
    QUICK,
    agree,
    compare,
    few,
    library_draws,
    make_data,
    mapped,
    models,
    new_key,
    run_of,
    some_data,
    stream_of,
    wide,
    world,
    world_from,
)


@pytest.mark.thin(2)
@pytest.mark.core
@pytest.mark.parametrize("name", EVERY)
def test_every_round_is_that_of_the_loops(name):
    case = world()
    algorithm = EVERY[name]
    active = (case.environment.fresh & case.environment.available).sum(axis=1)
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, participants=active)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (few, "U2"),
        (few, "Online-Fed, per delay"),
        (wide, "U2"),
        (wide, "Online-Fed, per delay"),
        (mapped, "U2"),
    ],
)
def test_other_worlds_equal_the_loops(make, name):
    """A few clients, each with several messages on their way; many; features of a map."""
    case = make()
    algorithm = EVERY[name]
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected)


def test_the_worlds_distinguish_the_rules():
    """The injected environment would show each rule of the algorithm if it were another."""
    environment = world().environment
    sent = (environment.fresh & environment.available).sum(axis=1)
    assert sent.max() > links.sender_groups.GROUP > sent.min() == 0
    wide_environment = wide().environment
    assert (wide_environment.fresh & wide_environment.available).sum(
        axis=1
    ).max() > 2 * links.sender_groups.GROUP
    settings = [
        {},
        {"conflict": "none"},
        {"autonomous": False},
        {"receive": "all"},
        {"aggregation": "pooled"},
        {"send_next": False},
        {"coordinated": True},
        {"weights": lambda lag: 0.2**lag},
        {"weights": lambda lag: 0.0**lag},
        {"longest": 9},
    ]
    common = {"step": MU, "size": 4, "coordinated": False, "longest": 10}
    runs = [online.pao_fed(environment, **(common | change)).server for change in settings]
    for i, first in enumerate(runs):
        for second in runs[:i]:
            assert np.abs(first - second).max() > 1e-2


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "beyond"),
    [("U1", "discard"), ("every class", "clip"), ("Online-Fed, per delay", "discard")],
)
def test_lags_in_steps(name, beyond):
    """Figure 4.6(c)'s law, drawn again with the link's key."""
    case = world()
    key = new_key(4)
    delays = Geometric(0.6, longest=30, step=10, beyond=beyond)
    algorithm = EVERY[name]
    rounds = case.environment.rounds
    lags = np.array([*delays.lags, -1])
    delay = lags[library_draws(delays, key, "delays", rounds, case.environment.clients)]
    assert set(np.unique(delay)) == {0, 10, 20, 30} | ({-1} if beyond == "discard" else set())
    environment = dataclasses.replace(case.environment, delay=delay)
    expected = online_loop(algorithm, environment, delays.lags)
    compare(case.simulate(algorithm, delays=delays), expected, key)


def averaged_run(environment, descend, longest, weight=lambda k: 1.0):
    """``descend(n, k, server)`` of the active clients, then the mean of the models that arrive."""
    server = np.zeros(environment.dim)
    in_flight = []
    models = []
    all_entries = np.ones(environment.dim, bool)
    for n in range(1, environment.rounds + 1):
        for k in range(environment.clients):
            if environment.participates(n, k):
                model = descend(n, k, server)
                delay = int(environment.delay[n - 1, k])
                in_flight.append(online.Message(k, n, delay, all_entries, model))
        arrived = online.arrivals(in_flight, n, longest)
        if arrived:
            weights = np.array([weight(m.sender) for m in arrived])
            server = weights @ np.array([m.values for m in arrived]) / weights.sum()
        models.append(server)
    sent = np.array(
        [
            sum(environment.participates(n, k) for k in range(environment.clients))
            for n in range(1, environment.rounds + 1)
        ]
    )
    bits = 32 * environment.dim * sent
    return online.Run(np.array(models), None, bits, bits)


def drawn_clients(algorithm, key, rounds, clients):
    """``[T, K]``: whom federated averaging draws, by the library's own draws."""

    @jax.vmap
    def picked(n):
        now = key_of(jax.random.fold_in(key, n), "participation")
        chosen = subset(now, clients, algorithm.clients_per_round)
        return jnp.zeros(clients, bool).at[chosen].set(True)

    return np.asarray(picked(jnp.arange(1, rounds + 1)))


SERVED = {
    "FL": (ConventionalFL(PowerDecay(0.3)), 1),
    "FL, 3 steps": (ConventionalFL(0.2, 3), 3),
    "FedAvg": (FedAvg(0.2, epochs=2), 2),
    "FedAvg of 17": (FedAvg(PowerDecay(0.3), 17, 2), 2),
    "FedAvg of 17 in batches": (FedAvg(PowerDecay(0.3), 17, 2, 1), 2),
}


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("name", SERVED)
def test_averaging_over_a_stream_equals_the_loop(name):
    case = world()
    key = new_key(7)
    (algorithm, steps) = SERVED[name]
    environment = case.environment
    rounds = 48
    clients = 40
    if getattr(algorithm, "clients_per_round", None) is not None:
        picked = drawn_clients(algorithm, key, rounds, clients)
        assert (picked & ~environment.available).any()
        environment = dataclasses.replace(environment, scheduled=picked)

    def descend(n, k, model):
        z, y = environment.sample(n, k)
        step = float(algorithm.step_size(jnp.asarray(n)))
        for _ in range(steps):
            model = model + 2 * step * (y - model @ z) * z
        return model

    compare(case.simulate(algorithm), averaged_run(environment, descend, case.longest), key)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("algorithm", "delayed"),
    [
        (ConventionalFL(0.2, 2), False),
        (ConventionalFL(0.2, 2), True),
        (FedAvg(0.2, 3, 2, weighting="samples"), True),
        (FedAvg(0.2, epochs=2), False),
    ],
)
def test_averaging_over_a_problem_with_absent_clients_equals_the_loop(algorithm, delayed):
    """Fixed data of unequal clients with a regularizer: absent clients are left out of the mean."""
    case = few()
    key = new_key(8)
    data = make_data(5, (4, 9, 6, 12, 7), 9, 1)
    problem = from_clients(data, LeastSquares(), SquaredL2(), 0.8)
    objective = nfl.Objective(data, "squared", 0.0, 1.0, 0.8, None)
    everywhere = np.ones_like(case.environment.fresh)
    environment = dataclasses.replace(case.environment, fresh=everywhere)
    if not delayed:
        environment = dataclasses.replace(environment, delay=np.zeros_like(environment.delay))
    if getattr(algorithm, "clients_per_round", None) is not None:
        environment = dataclasses.replace(
            environment, scheduled=drawn_clients(algorithm, key, 48, 5)
        )

    def descend(n, k, model):
        for _ in range(2):
            model = model - 0.2 * objective.gradient(k, model)
        return model

    by_samples = getattr(algorithm, "weighting", "equal") == "samples"
    weight = (lambda k: len(data[k][1])) if by_samples else (lambda k: 1.0)
    expected = averaged_run(environment, descend, case.longest, weight)
    simulation = fl.Simulation(
        problem,
        algorithm,
        participation=case.participation,
        delays=case.delays if delayed else None,
    )
    compare(simulation, expected, key)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "algorithm",
    [OnlineFed(MU), PAOFed(MU, Circular(9), aggregation="pooled")],
    ids=["whole", "cut"],
)
def test_differences_from_the_published_model_are_compressed(algorithm):
    """One bit a parameter and one number, of the move from the model that was received."""
    case = world()

    def descend(n, k, server):
        z, y = case.environment.sample(n, k)
        move = MU * (y - server @ z) * z
        return server + np.abs(move).mean() * np.sign(move)

    expected = averaged_run(case.environment, descend, case.longest)
    expected = expected._replace(up=expected.up * (9 + 32) // (9 * 32))
    compare(case.simulate(algorithm, compression=Sign()), expected)


@pytest.mark.parametrize("name", ["U0", "U2", "Online-Fed, per delay"])
def test_sums_of_a_lag_are_a_buffer_of_every_client_s_messages(name):
    """Eleven messages of one client arrive in one round, one of each lag; others meet them."""
    rounds = np.arange(48)
    lags = np.arange(11)
    everywhere = np.ones((48, 5), bool)
    delay = np.full((48, 5), -1)
    delay[:, 1] = 10 - rounds % 11
    delay[:, 2] = np.where(rounds % 7 == 3, 4, -1)
    case = world_from(some_data(5), everywhere, everywhere, delay, 10)
    arrival = (rounds + delay[:, 1])[:11]
    assert set(arrival) == {10}
    assert set(delay[:11, 1]) == set(lags)
    expected = online_loop(EVERY[name], case.environment, case.delays.lags)
    assert np.abs(np.diff(expected.server, axis=0)[9]).max() > 0.01
    compare(case.simulate(EVERY[name]), expected)


@pytest.mark.thin(1)
@pytest.mark.parametrize(("name", "size"), [("U2", 7), ("U2", 1000), ("Online-Fed", 1000)])
def test_groups_of_senders_equal_a_single_batch(monkeypatch, name, size):
    """Some senders after the other, or all together as on an accelerator."""
    simulation = world().simulate(EVERY[name])
    expected = models(simulation)
    monkeypatch.setattr(links.sender_groups, "GROUP", size)
    anew = jax.jit(lambda *arguments: run_of.__wrapped__(*arguments, 48), compiler_options=QUICK)
    agree(anew(simulation, new_key(1))[0].model, expected)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("make", "selector"),
    [
        (functools.partial(OnlineFed, MU), Fraction(0.4)),
        (functools.partial(OnlineFed, MU, aggregation="per delay"), Subset(5)),
        (functools.partial(PSOFed, MU, Circular(4)), Fraction(0.4)),
        (functools.partial(SignSGD, 0.05), Subset(5)),
    ],
)
def test_the_server_chooses_among_the_available(make, selector):
    case = world()
    key = new_key(9)
    algorithm = make(selector=selector)
    available = case.environment.fresh & case.environment.available
    now = jax.vmap(lambda n: key_of(jax.random.fold_in(key, n), "participation"))
    choose = jax.vmap(lambda key, mask: selector.choose(key, mask, None).here)
    chosen = np.asarray(choose(now(jnp.arange(1, 49)), available))
    assert not (chosen & ~available).any()
    if isinstance(selector, Subset):
        np.testing.assert_array_equal(chosen.sum(axis=1), np.minimum(available.sum(axis=1), 5))
    else:
        assert abs(chosen.sum() / available.sum() - 0.4) < 0.1
    environment = dataclasses.replace(case.environment, scheduled=chosen)
    expected = online_loop(algorithm, environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, key, chosen.sum(axis=1))


def test_everyone_is_scheduled_by_default():
    for algorithm in (OnlineFed(MU), PAOFed(MU), PSOFed(MU), SignSGD(MU)):
        assert isinstance(algorithm.selector, Everyone)


@pytest.mark.slow
def test_under_one_seed_all_algorithms_meet_one_network():
    """Same arrivals, absences and delays for any algorithm and settings."""
    key = new_key(10)
    data = some_data()
    laws = {
        "arrivals": Bernoulli(0.8),
        "availability": Markov(0.4, 0.3),
        "delays": Geometric(0.5, 4),
    }
    arrived, available, lags = (
        library_draws(process, key, name, 48, 40) for name, process in laws.items()
    )
    delay = np.where(lags > 4, -1, lags)
    assert set(np.unique(delay)) == {-1, 0, 1, 2, 3, 4}
    environment = online.environment_of(data, arrived, available, delay)
    stream = stream_of(data, laws["arrivals"])
    active = (environment.fresh & environment.available).sum(axis=1)
    algorithms = [
        OnlineFed(0.2),
        OnlineFed(0.7),
        PAOFed.variant("U2", 0.4, 2),
        PAOFed.variant("C0", 0.1, 2),
        SignSGD(0.05),
    ]
    for algorithm in algorithms:
        simulation = fl.Simulation(
            stream, algorithm, participation=laws["availability"], delays=laws["delays"]
        )
        compare(simulation, online_loop(algorithm, environment, range(5)), key, active)
