"""Asynchronous online algorithms against message-by-message loops, their limits, the engine."""

import dataclasses
import functools
import re
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import link as links
from fljax._numerics import key_of
from fljax.algorithms import (
    ConventionalFL,
    FedAvg,
    NetworkedADMM,
    OnlineFed,
    PAOFed,
    PSOFed,
    SignSGD,
)
from fljax.data import RandomFourier
from fljax.engine import advance, begin, prepare, trace
from fljax.link import (
    Circular,
    DelayLaw,
    DelayTrace,
    Fixed,
    Geometric,
    Random,
    Sign,
    StochasticSign,
)
from fljax.participation import (
    Always,
    Bernoulli,
    Everyone,
    Fraction,
    Markov,
    Periodic,
    Subset,
    Trace,
    Until,
    groups,
    subset,
)
from fljax.problems import LeastSquares, SquaredL2, from_clients
from fljax.schedules import PowerDecay
from fljax.streams import Replay
from tests.cases import CASES, STREAMED, online_loop
from tests.reference import nfl, online

close = np.testing.assert_allclose

MU = 0.5
VARIANTS = list(PAOFed.VARIANTS)


def new_key(seed):
    return fl.random_key(seed)


# What happens to the clients, told to the library and to the loops -------------------------------


class World(NamedTuple):
    """One environment, told to both sides; the loops see the same samples, row by row."""

    stream: Replay
    participation: Trace
    delays: DelayTrace
    environment: online.Environment

    @property
    def longest(self):
        return self.delays.longest

    def simulate(self, algorithm, **changes):
        settings = {"participation": self.participation, "delays": self.delays} | changes
        return fl.Simulation(self.stream, algorithm, **settings)


def make_data(clients, sizes, inputs, seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(clients, inputs)) + 2  # clients that disagree: nobody stands still
    data = []
    for k in range(clients):
        x = rng.normal(size=(sizes[k], inputs)) / np.sqrt(inputs)
        data.append((x, x @ truth[k] + 0.1 * rng.normal(size=sizes[k])))
    return tuple(data)


def stream_of(data, arrivals, feature_map=None):
    problem = from_clients(data, LeastSquares(), strength=0.0)
    return Replay(dataclasses.replace(problem, feature_map=feature_map), arrivals)


def fourier(inputs, features, seed=0):
    rng = np.random.default_rng(seed)
    phases = rng.uniform(0, 2 * np.pi, features)
    return RandomFourier(rng.normal(size=(features, inputs)), phases, 1.3)


@functools.cache
def some_data(clients=40, rounds=48, inputs=9, seed=0):
    """Some clients run out of samples before the end; one never does."""
    sizes = np.random.default_rng(seed).integers(rounds // 2, rounds, clients)
    sizes[-1] = rounds
    return make_data(clients, sizes, inputs, seed)


def build(data, arrived, available, delay, longest, feature_map=None):
    return World(
        stream_of(data, Trace(arrived), feature_map),
        Trace(available),
        DelayTrace(delay, longest),
        online.environment_of(data, arrived, available, delay, feature_map),
    )


@functools.cache
def world(clients=40, rounds=48, dim=9, longest=10, mapped=False, seed=0):
    """Full rounds and empty ones, clients without data, delays of all lengths, losses."""
    rng = np.random.default_rng(seed)
    arrived = rng.uniform(size=(rounds, clients)) < 0.85
    share = rng.choice([0.0, 0.05, 0.3, 1.0], size=(rounds, 1))
    share[:2], arrived[:2] = 1, True
    available = rng.uniform(size=(rounds, clients)) < share
    delay = rng.integers(-1, longest + 2, size=(rounds, clients))
    delay = np.where(rng.uniform(size=delay.shape) < 0.4, 0, delay)
    data = some_data(clients, rounds, 3 if mapped else dim)
    return build(data, arrived, available, delay, longest, fourier(3, dim) if mapped else None)


def few():
    return world(clients=5)


def wide():
    """More than two groups of senders in a round."""
    return world(clients=70, rounds=12, dim=6, longest=3)


#: LLVM's passes are a good third of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}


@functools.partial(jax.jit, static_argnums=2, compiler_options=QUICK)
def path(simulation, key, rounds):
    """The state after every round, and what is recorded of it."""
    prepared = prepare(simulation, rounds)

    def one(carry, done):
        carry, record = advance(simulation, prepared, key, carry, done, 1, 1, rounds)
        return carry, (carry.state, record)

    done = jnp.arange(rounds, dtype=jnp.int32)
    return jax.lax.scan(one, begin(simulation, prepared, key), done)[1]


def follow(simulation, rounds, key=None):
    return path(simulation, new_key(1) if key is None else key, rounds)


def counts(wide):
    """Counts of 62 bits as numbers, round by round."""
    wide = np.asarray(wide, np.int64).reshape(-1, 2)
    return (wide[:, 0] << 31) + wide[:, 1]


def compare(simulation, expected, key=None, participants=None):
    """Models of the server and of the clients, and the bits each way, in every round."""
    state, record = follow(simulation, len(expected.server), key)
    scale = np.abs(expected.server).max()
    assert 0.1 < scale < 1e3
    close(state.model, expected.server, rtol=0, atol=1e-11 * scale)
    if expected.local is not None:
        close(state.local, expected.local, rtol=0, atol=1e-11 * np.abs(expected.local).max())
    np.testing.assert_array_equal(counts(record["bits_up"]), expected.up)
    np.testing.assert_array_equal(counts(record["bits_down"]), expected.down)
    if participants is not None:
        np.testing.assert_array_equal(counts(record["messages"]), 2 * participants)


# Against the loops -------------------------------------------------------------------------------

#: One weight a lag. What arrives after two rounds has none, yet takes the place of what is older.
FALLING = np.array([0.9, 0.7, 0, *np.linspace(0.6, 0, 8)])
PAO = {
    **{name: PAOFed.variant(name, MU) for name in VARIANTS},  # 4 does not divide 9
    "3 of 9": PAOFed(MU, Circular(3)),
    "1 of 9": PAOFed(MU, Circular(1, coordinated=True)),
    "9 of 9": PAOFed(MU, Circular(9)),
    "receive all": PAOFed(MU, received="all"),
    "receive all, C2": PAOFed.variant("C2", MU, received="all"),
    "not autonomous": PAOFed(MU, autonomous=False),
    "every class": PAOFed(MU, discount=0.3, freshest=False),
    "pooled": PAOFed(MU, discount=0.8, aggregation="pooled"),
    "weights": PAOFed(MU, discount=FALLING),
    "weights as a list": PAOFed(MU, discount=FALLING.tolist(), send_next=False),
    "no discounted": PAOFed(MU, Circular(4), discount=0.0),
}
REST = {
    "Online-Fed": OnlineFed(MU),
    "Online-Fed, per delay": OnlineFed(MU, aggregation="per delay"),
    "PSO-Fed": PSOFed(MU, Circular(4)),
    "PSO-Fed, coordinated": PSOFed(MU, Circular(3, coordinated=True)),
    "SignSGD": SignSGD(0.05),
    "SignSGD, mean": SignSGD(0.1, vote=False),
}
EVERY = PAO | REST


@pytest.mark.thin(2)
@pytest.mark.core
@pytest.mark.parametrize("name", EVERY)
def test_every_round_is_that_of_the_loops(name):
    case, algorithm = world(), EVERY[name]
    there = (case.environment.fresh & case.environment.available).sum(axis=1)
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, participants=there)


def mapped():
    return world(mapped=True)


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
def test_other_worlds(make, name):
    """A few clients, each with several messages on their way; many; features of a map."""
    case, algorithm = make(), EVERY[name]
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected)


def test_the_worlds_tell_the_rules_apart():
    """The injected environment would show each rule of the algorithm if it were another."""
    environment = world().environment
    sent = (environment.fresh & environment.available).sum(axis=1)
    assert sent.max() > links.server.GROUP > sent.min() == 0
    there = wide().environment
    assert (there.fresh & there.available).sum(axis=1).max() > 2 * links.server.GROUP
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
    for i, one in enumerate(runs):
        for other in runs[:i]:
            assert np.abs(one - other).max() > 1e-2


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "beyond"),
    [("U1", "discard"), ("every class", "clip"), ("Online-Fed, per delay", "discard")],
)
def test_lags_in_steps(name, beyond):
    """Figure 4.6(c)'s law, drawn again with the link's key."""
    case, key = world(), new_key(4)
    law = Geometric(0.6, longest=30, step=10, beyond=beyond)
    algorithm, rounds = EVERY[name], case.environment.rounds
    lags = np.array([*law.lags, -1])
    delay = lags[redrawn(law, key, "delays", rounds, case.environment.clients)]
    assert set(np.unique(delay)) == {0, 10, 20, 30} | ({-1} if beyond == "discard" else set())
    environment = dataclasses.replace(case.environment, delay=delay)
    expected = online_loop(algorithm, environment, law.lags)
    compare(case.simulate(algorithm, delays=law), expected, key)


def redrawn(law, key, purpose, rounds, clients):
    """The library's own draws of a pattern or a law of delays, ``[T, K]``."""

    def one(state, n):
        now = key_of(jax.random.fold_in(key, n), purpose)
        if isinstance(law, DelayLaw):
            return state, law.draw(now, n, clients)
        return law.draw(state, now, n, clients)

    start = ()
    if not isinstance(law, DelayLaw):
        start = law.begin(key_of(jax.random.fold_in(key, 0), purpose), clients)
    return np.asarray(jax.lax.scan(one, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1])


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("coordinated", [False, True])
@pytest.mark.parametrize("send_next", [False, True])
def test_both_ends_know_what_is_drawn_to_be_shared(monkeypatch, coordinated, send_next):
    """Random portions: those of the next round are the ones that are received in it."""
    case, key, sharing = few(), new_key(5), Random(4, coordinated)

    draw = functools.partial(
        sharing.mask, key_of(jax.random.fold_in(key, 0), "sharing"), clients=jnp.arange(5), dim=9
    )
    masks = np.asarray(jax.vmap(lambda n: draw(round=n))(jnp.arange(50)))
    monkeypatch.setattr(online, "portion", lambda n, k, *_: masks[n, k])
    algorithm = PAOFed(MU, sharing, send_next, discount=0.5)
    expected = online_loop(algorithm, case.environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, key)


@pytest.mark.slow
def test_stochastic_signs():
    case, key, algorithm = world(), new_key(6), SignSGD(0.05, True, StochasticSign(0.8))
    rounds, clients, dim = case.environment.features.shape

    @jax.vmap
    def uniforms(n):
        now = key_of(jax.random.fold_in(key, n), "compression")
        keys = jax.vmap(lambda k: jax.random.fold_in(now, k))(jnp.arange(clients))
        return jax.vmap(lambda key: jax.random.uniform(key, (dim,), float))(keys)

    drawn = np.asarray(uniforms(jnp.arange(1, rounds + 1)))
    expected = online.sign_sgd(
        case.environment, 0.05, uniforms=drawn, bound=0.8, longest=case.longest
    )
    compare(case.simulate(algorithm), expected, key)


def averaged(environment, descend, longest, weight=lambda k: 1.0):
    """``descend(n, k, server)`` of those who are there, then the mean of the models that arrive."""
    server, in_flight, models = np.zeros(environment.dim), [], []
    whole = np.ones(environment.dim, bool)
    for n in range(1, environment.rounds + 1):
        for k in range(environment.clients):
            if environment.participates(n, k):
                model, delay = descend(n, k, server), int(environment.delay[n - 1, k])
                in_flight.append(online.Message(k, n, delay, whole, model))
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
def test_averaging_over_a_stream_is_the_loop(name):
    case, key, (algorithm, steps) = world(), new_key(7), SERVED[name]
    environment, rounds, clients = case.environment, 48, 40
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

    compare(case.simulate(algorithm), averaged(environment, descend, case.longest), key)


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
def test_averaging_over_a_problem_with_absent_clients_is_the_loop(algorithm, delayed):
    """Fixed data of unequal clients with a regularizer: who is away is left out of the mean."""
    case, key = few(), new_key(8)
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
    expected = averaged(environment, descend, case.longest, weight)
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
def test_what_is_compressed_is_the_difference_from_what_the_server_published(algorithm):
    """One bit a parameter and one number, of the move from the model that was received."""
    case = world()

    def descend(n, k, server):
        z, y = case.environment.sample(n, k)
        move = MU * (y - server @ z) * z
        return server + np.abs(move).mean() * np.sign(move)

    expected = averaged(case.environment, descend, case.longest)
    expected = expected._replace(up=expected.up * (9 + 32) // (9 * 32))
    compare(case.simulate(algorithm, compression=Sign()), expected)


# Limits ------------------------------------------------------------------------------------------


def models(simulation, key=None):
    return np.asarray(follow(simulation, 48, key)[0].model)


def agree(one, other):
    assert np.abs(other).max() > 0.1
    close(one, other, rtol=0, atol=1e-12 * np.abs(other).max())


@pytest.mark.thin(1)
@pytest.mark.parametrize("aggregation", ["per delay", "pooled"])
@pytest.mark.slow
def test_whole_models_shared_partially_are_online_fed(aggregation):
    """``m = D``: what clients learn on their own is overwritten before it is sent."""
    partial = PAOFed(MU, Circular(9), aggregation=aggregation)
    whole = OnlineFed(MU, aggregation=aggregation)
    agree(models(world().simulate(partial)), models(world().simulate(whole)))


@pytest.mark.slow
def test_whole_models_of_everyone_at_once_are_online_fedsgd():
    """No delay, nobody absent: one sequence of means, under a step that falls."""
    stream, step, data = world().stream, PowerDecay(0.9, 0.3), some_data()
    stream = dataclasses.replace(stream, arrivals=Always())
    expected = [np.zeros(9)]
    for n in range(1, 49):
        met = [(x[n - 1], y[n - 1]) for x, y in data if len(y) >= n]
        w, mu = expected[-1], 0.9 * n**-0.3
        expected.append(np.mean([w + mu * (y - w @ z) * z for z, y in met], axis=0))
    for algorithm in (OnlineFed(step), PAOFed(step, Circular(9)), ConventionalFL(halved(step))):
        agree(models(fl.Simulation(stream, algorithm)), expected[1:])


def halved(step):
    return dataclasses.replace(step, initial=float(step.initial) / 2)


@pytest.mark.slow
def test_half_the_step_of_federated_learning_is_that_of_online_fed():
    """The gradient of the squared error is twice the direction of least mean squares."""
    agree(models(world().simulate(ConventionalFL(MU / 2))), models(world().simulate(OnlineFed(MU))))


def test_without_weight_late_messages_do_not_count():
    case, algorithm = world(), PAO["no discounted"]
    table = np.asarray(case.delays.table)
    lost = case.simulate(algorithm, delays=DelayTrace(np.where(table > 0, -1, table), 10))
    agree(models(case.simulate(algorithm)), models(lost))


@pytest.mark.slow
def test_no_delay_is_a_delay_of_zero():
    case, algorithm = world(), EVERY["U2"]
    none = models(case.simulate(algorithm, delays=None))
    at_once = DelayTrace(np.zeros((48, 40), int), 10)
    for law in (Fixed(0), at_once):
        agree(models(case.simulate(algorithm, delays=law)), none)


@pytest.mark.slow
def test_a_fixed_delay_shifts():
    """Until the first messages arrive everyone starts from zero."""
    case, algorithm = world(), EVERY["Online-Fed"]
    late = models(case.simulate(algorithm, delays=Fixed(3)))
    assert not late[:3].any()
    agree(late[3], models(case.simulate(algorithm, delays=None))[0])
    agree(
        late,
        models(case.simulate(algorithm, delays=DelayTrace(np.full((48, 40), 3), case.longest))),
    )
    weighed = PAOFed(MU, discount=0.5)  # 1/8 of each deviation
    weights = np.full(11, 0.125)
    agree(
        models(case.simulate(weighed, delays=Fixed(3))),
        models(
            case.simulate(PAOFed(MU, discount=weights), delays=DelayTrace(np.full((48, 40), 3), 10))
        ),
    )


@pytest.mark.parametrize("name", ["U0", "U2", "Online-Fed, per delay"])
def test_sums_of_a_lag_are_a_buffer_of_every_client_s_messages(name):
    """Eleven messages of one client arrive in one round, one of each lag; others meet them."""
    rounds, lags = np.arange(48), np.arange(11)
    everywhere = np.ones((48, 5), bool)
    delay = np.full((48, 5), -1)
    delay[:, 1] = 10 - rounds % 11
    delay[:, 2] = np.where(rounds % 7 == 3, 4, -1)
    case = build(some_data(5), everywhere, everywhere, delay, 10)
    arrival = (rounds + delay[:, 1])[:11]
    assert set(arrival) == {10}
    assert set(delay[:11, 1]) == set(lags)
    expected = online_loop(EVERY[name], case.environment, case.delays.lags)
    assert np.abs(np.diff(expected.server, axis=0)[9]).max() > 0.01
    compare(case.simulate(EVERY[name]), expected)


@pytest.mark.thin(1)
@pytest.mark.parametrize(("name", "size"), [("U2", 7), ("U2", 1000), ("Online-Fed", 1000)])
def test_groups_of_senders_are_all_at_once(monkeypatch, name, size):
    """Some senders after the other, or all together as on an accelerator."""
    simulation = world().simulate(EVERY[name])
    known = models(simulation)
    monkeypatch.setattr(links.server, "GROUP", size)
    anew = jax.jit(lambda *given: path.__wrapped__(*given, 48), compiler_options=QUICK)
    agree(anew(simulation, new_key(1))[0].model, known)


# Scheduling and common random numbers ------------------------------------------------------------


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
    case, key, algorithm = world(), new_key(9), make(selector=selector)
    there = case.environment.fresh & case.environment.available
    now = jax.vmap(lambda n: key_of(jax.random.fold_in(key, n), "participation"))
    choose = jax.vmap(lambda key, there: selector.choose(key, there, None).here)
    chosen = np.asarray(choose(now(jnp.arange(1, 49)), there))
    assert not (chosen & ~there).any()
    if isinstance(selector, Subset):
        np.testing.assert_array_equal(chosen.sum(axis=1), np.minimum(there.sum(axis=1), 5))
    else:
        assert abs(chosen.sum() / there.sum() - 0.4) < 0.1
    environment = dataclasses.replace(case.environment, scheduled=chosen)
    expected = online_loop(algorithm, environment, case.delays.lags)
    compare(case.simulate(algorithm), expected, key, chosen.sum(axis=1))


def test_everyone_is_scheduled_by_default():
    for algorithm in (OnlineFed(MU), PAOFed(MU), PSOFed(MU), SignSGD(MU)):
        assert isinstance(algorithm.selector, Everyone)


@pytest.mark.slow
def test_under_one_seed_all_algorithms_meet_one_network():
    """Same arrivals, absences and delays whatever the algorithm and its settings."""
    key, data = new_key(10), some_data()
    laws = {
        "arrivals": Bernoulli(0.8),
        "availability": Markov(0.4, 0.3),
        "delays": Geometric(0.5, 4),
    }
    arrived, available, lags = (redrawn(law, key, name, 48, 40) for name, law in laws.items())
    delay = np.where(lags > 4, -1, lags)
    assert set(np.unique(delay)) == {-1, 0, 1, 2, 3, 4}
    environment = online.environment_of(data, arrived, available, delay)
    stream = stream_of(data, laws["arrivals"])
    there = (environment.fresh & environment.available).sum(axis=1)
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
        compare(simulation, online_loop(algorithm, environment, range(5)), key, there)


# The engine's contract ---------------------------------------------------------------------------

T = 12
ONLINE = [*STREAMED, "SignSGD"]
#: What the instances leave out: draws of the algorithm's own.
DRAWS = {
    "Online-Fed": {"selector": Fraction(0.6)},
    "PSO-Fed": {"selector": Subset(3)},
    "SignSGD": {"signs": StochasticSign(1.0)},
}


def drawing(label):
    return dataclasses.replace(CASES[label].algorithm, **DRAWS.get(label, {}))


def scenario(key, algorithm, probability=0.7, delta=0.4):
    """Data, absences and delays all of the key."""
    data = some_data(5)
    shift = jax.random.normal(key, (5, 1), float)
    stream = stream_of(data, Always())
    problem = dataclasses.replace(stream.data, targets=jnp.asarray(stream.data.targets) + shift)
    test = from_clients([data[0]], LeastSquares(), strength=0.0)
    return fl.Simulation(
        Replay(problem, test=test),
        algorithm,
        metrics="test_error",
        participation=Markov(0.3, probability),
        delays=Geometric(delta, 3),
    )


@functools.partial(jax.jit, compiler_options=QUICK)
def ready(simulation, key):
    return begin(simulation, prepare(simulation, T), key)


@functools.partial(jax.jit, static_argnums=4, compiler_options=QUICK)
def stretch(simulation, key, carry, done, records):
    return advance(simulation, prepare(simulation, T), key, carry, done, records, 1, T)


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("label", ONLINE)
def test_batches_and_stretches_are_whole_runs_one_by_one(label):
    """Under vmap several runs from end to end; alone each in two stretches, line and all."""
    simulation, keys = scenario(jax.random.key(0), drawing(label)), jax.random.split(new_key(11), 3)

    def run(key):
        carry = ready.__wrapped__(simulation, key)
        return stretch.__wrapped__(simulation, key, carry, jnp.asarray(0), T)

    carries, records = jax.jit(jax.vmap(run), compiler_options=QUICK)(keys)
    for i, key in enumerate(keys):
        carry, parts = ready(simulation, key), []
        for done in (0, T // 2):
            carry, part = stretch(simulation, key, carry, jnp.asarray(done), T // 2)
            parts.append(part)
        parts = jax.tree.map(lambda *both: jnp.concatenate(both), *parts)
        pairs = jax.tree.leaves((carry, parts)), jax.tree.leaves((carries, records))
        for alone, together in zip(*pairs, strict=True):
            close(alone, together[i], rtol=1e-9, atol=1e-12)
    assert np.abs(np.diff(carries.state.model, axis=0)).max() > 1e-3
    assert np.abs(carries.memory.line.total).max() > 1e-3
    x, y = some_data(5)[0]
    mse = ((y - np.asarray(carries.state.model) @ x.T) ** 2).mean(axis=1)
    close(records["test_error"][:, -1], mse, rtol=1e-12)
    programs = stretch._cache_size()
    other = scenario(jax.random.key(1), halve(drawing(label)), 0.2, 0.7)
    stretch(other, new_key(12), ready(other, new_key(12)), jnp.asarray(0), T // 2)
    assert stretch._cache_size() == programs


def halve(node):
    """Every real number of an algorithm by two, built anew."""
    if dataclasses.is_dataclass(node):
        fields = {f.name: halve(getattr(node, f.name)) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    real = not isinstance(node, int) and np.issubdtype(np.asarray(node).dtype, np.floating)
    return float(node) / 2 if real else node


@pytest.mark.slow
def test_the_six_variants_are_one_program():
    variants = {name: PAOFed.variant(name, 0.3) for name in VARIANTS}
    study = fl.sweep(scenario, rounds=T, seeds=2, grid={"algorithm": variants})
    assert study.attrs["compilations"] == 1
    last = study.test_error.isel(round=-1, seed=0).values
    assert len(np.unique(last)) == 6
    root = fl.random_key(0, study.attrs["prng"])
    k_scenario, k_run = jax.random.split(jax.random.fold_in(root, 1))
    for name in ("U1", "C2"):
        one = fl.run(scenario(k_scenario, variants[name]), T, k_run)
        for what in ("test_error", "messages", "bits_up", "bits_down"):
            close(study[what].sel(seed=1, algorithm=name), one[what], rtol=1e-9)


@pytest.mark.slow
def test_numbers_of_a_sweep_compile_once():
    def numbers(key, discount, step_size, probability, delta):
        return scenario(key, PAOFed(step_size, Circular(2), discount=discount), probability, delta)

    grid = {
        "discount": [0.2, 1.0],
        "step_size": [0.1, 0.4],
        "probability": [0.3, 0.9],
        "delta": [0.2, 0.6],
    }
    study = fl.sweep(numbers, rounds=T, seeds=2, grid=grid)
    assert study.attrs["compilations"] == 1
    for axis in grid:
        low, high = (study.test_error.isel({axis: i}, drop=True) for i in (0, 1))
        assert bool((low != high).any()), axis
    moved = {name: [0.9 * value for value in values] for name, values in grid.items()}
    assert fl.sweep(numbers, rounds=T, seeds=2, grid=moved).attrs["compilations"] == 0


def test_what_is_on_its_way_does_not_grow_with_clients():
    lines = []
    for clients in (5, 50):
        stream = stream_of(some_data(clients), Always())
        simulation = fl.Simulation(stream, PAOFed(MU), delays=Geometric(0.5, 10))
        carry = jax.eval_shape(lambda s: begin(s, prepare(s, 3), new_key(0)), simulation)
        lines.append([leaf.shape for leaf in carry.memory.line])
    assert lines[0] == lines[1] == [(11, 9), (11, 9), (11, 1)]


@pytest.mark.slow
def test_memory_does_not_grow_with_rounds():
    simulation, sizes = scenario(jax.random.key(0), drawing("PAO-Fed")), []
    for rounds in (20, 2000):
        made = jax.jit(trace, static_argnums=(2, 3)).lower(simulation, new_key(0), rounds, rounds)
        memory = made.compile(compiler_options=QUICK).memory_analysis()
        sizes.append(memory.temp_size_in_bytes + memory.output_size_in_bytes)
    assert sizes[0] == sizes[1] > 0


# What is refused ---------------------------------------------------------------------------------

DATA = some_data(5, 6, 4)
STREAM = stream_of(DATA, Always())
FIXED = from_clients(DATA, LeastSquares())
RING = fl.graphs.ring(5)


def refused(algorithm=None, problem=STREAM, rounds=4, **settings):
    """Construct and run."""
    return lambda: fl.run(fl.Simulation(problem, algorithm or PAOFed(MU), **settings), rounds)


REFUSED = [
    # partial sharing
    (ValueError, lambda: Circular(0), "size must be >= 1, got 0. It is the number of parameters"),
    (ValueError, lambda: Random(-1), "size must be >= 1, got -1"),
    (TypeError, lambda: Circular(2.5), "size must be an integer, got 2.5"),
    (ValueError, refused(PAOFed(MU, Circular(5))), "1 to 4 of the model's 4 parameters.*size=5"),
    (ValueError, refused(PSOFed(MU, Random(5))), "1 to 4 of the model's 4 parameters.*size=5"),
    (ValueError, lambda: PAOFed.variant("C3", MU), "unknown variant 'C3'; known: C0, U0"),
    # weights of delays
    (ValueError, lambda: PAOFed(MU, discount=1.2), "discount must be finite and >= 0 and <= 1"),
    (ValueError, lambda: PAOFed(MU, discount=-0.1), "discount must be .* >= 0 .*got -0.1"),
    (ValueError, lambda: PAOFed(MU, discount=[1, 0.5, 2]), "discount must be .* <= 1, got 2"),
    (
        ValueError,
        refused(PAOFed(MU, discount=[1.0, 0.5]), delays=Geometric(0.5, 3)),
        "discount.*4.*2",
    ),
    (ValueError, refused(PAOFed(MU, discount=[0.5]), delays=Geometric(0.5, 3)), "discount.*4.*1"),
    (ValueError, refused(PAOFed(MU, discount=[1.0, 0.5])), "discount.*1.*2"),
    # other settings of algorithms
    (ValueError, lambda: PAOFed(0.0), "step size must be finite and > 0, got 0"),
    (ValueError, lambda: OnlineFed(-MU), "step size must be finite and > 0, got -0.5"),
    (ValueError, lambda: SignSGD(np.inf), "step size must be finite and > 0, got inf"),
    (ValueError, lambda: PAOFed(MU, received="portions"), "Did you mean 'portion'"),
    (ValueError, lambda: PAOFed(MU, aggregation="per_delay"), "Did you mean 'per delay'"),
    (ValueError, lambda: OnlineFed(MU, aggregation="mean"), "unknown aggregation 'mean'"),
    (TypeError, lambda: SignSGD(MU, signs="sign"), "signs must be .*Compressor"),
    (ValueError, lambda: StochasticSign(0.0), "bound must be finite and > 0, got 0"),
    # who is there
    (ValueError, lambda: Bernoulli(1.5), "probability must be .* <= 1, got 1.5"),
    (ValueError, lambda: Bernoulli([0.5, -0.1]), "probability must be .* >= 0 .*got -0.1"),
    (ValueError, lambda: Markov(1.2, 0.5), "fail must be .* <= 1, got 1.2"),
    (ValueError, lambda: Markov(0.2, 0.0), "recover must be .* > 0 .*never comes back"),
    (ValueError, lambda: Periodic(0), "period must be whole rounds >= 1, got 0"),
    (ValueError, lambda: Until(-1), "last must be finite and >= 0, got -1"),
    (ValueError, lambda: Fraction(1.1), "fraction must be .* <= 1, got 1.1"),
    (ValueError, lambda: Subset(0), "count must be >= 1, got 0"),
    (ValueError, refused(OnlineFed(MU, Subset(6))), "count must be at most the 5 clients.*got 6"),
    (ValueError, lambda: groups([0.1, 0.2], 5), "5 clients cannot be cut into 2 groups"),
    (ValueError, lambda: groups([0.1, 0.2], 6, nested=2), "cut into 4 groups.*multiple of 4"),
    (
        ValueError,
        refused(participation=Bernoulli([0.5, 0.1])),
        r"probability must be one number or one for each of the 5 clients, got shape \(2,\)",
    ),
    (ValueError, lambda: Trace(np.full((4, 5), 0.5)), "table must be booleans of shape .*float64"),
    (ValueError, lambda: Trace(np.ones(5, bool)), r"table must be booleans.*got shape \(5,\)"),
    (
        ValueError,
        refused(participation=Trace(np.ones((3, 5), bool))),
        "participation trace has 3 rounds of 5 clients; the run has 4 rounds of 5",
    ),
    (
        ValueError,
        refused(participation=Trace(np.ones((4, 6), bool))),
        "participation trace has 4 rounds of 6 clients; the run has 4 rounds of 5",
    ),
    (
        ValueError,
        refused(problem=stream_of(DATA, Trace(np.ones((3, 5), bool)))),
        "participation trace has 3 rounds of 5 clients",
    ),
    # delays
    (ValueError, lambda: Geometric(1.0, 3), "delta must be finite and >= 0 and < 1, got 1"),
    (ValueError, lambda: Geometric(-0.1, 3), "delta must be .* >= 0 .*got -0.1"),
    (ValueError, lambda: Geometric(0.5, -1), "longest must be >= 0, got -1"),
    (ValueError, lambda: Geometric(0.5, 25, 10), "longest must be a multiple of step=10, got 25"),
    (ValueError, lambda: Geometric(0.5, 3, beyond="drop"), "unknown beyond 'drop'"),
    (ValueError, lambda: Fixed(-1), "lag must be >= 0, got -1. A message cannot arrive before"),
    (ValueError, lambda: DelayTrace(np.full((4, 5), 0.5), 3), "table must be integers .*float64"),
    (ValueError, lambda: DelayTrace(np.ones((4, 5), int), -1), "longest must be >= 0, got -1"),
    (
        ValueError,
        refused(delays=DelayTrace(np.ones((4, 4), int), 3)),
        "trace of delays has 4 rounds of 4 clients; the run has 4 rounds of 5",
    ),
    # what does not go together
    (
        ValueError,
        refused(problem=FIXED),
        "PAO-Fed learns from a stream, got a fixed problem.*Replay",
    ),
    (ValueError, refused(OnlineFed(MU), FIXED), "Online-Fed learns from a stream"),
    (
        ValueError,
        refused(NetworkedADMM(1.0), network=RING),
        r"ADMM needs all data at once and cannot learn from a stream\. These can: .*Consensus, ",
    ),
    (
        ValueError,
        refused(NetworkedADMM(1.0), FIXED, network=RING, participation=Bernoulli(0.5)),
        r"ADMM has no rule for absent clients; leave out participation=\. These can: Consensus, ",
    ),
    (
        ValueError,
        refused(NetworkedADMM(1.0), FIXED, network=RING, delays=Fixed(1)),
        r"ADMM has no rule for late messages; leave out delays=\. These can: Consensus, ",
    ),
    (
        ValueError,
        refused(ConventionalFL(0.1), privacy=fl.privacy.ZCDP(1.0)),
        "for fixed data, .* and messages without delay only; leave out privacy=, or a stream",
    ),
    (ValueError, refused(metrics="objective"), "'objective' needs all data at once.*test_error"),
    (ValueError, refused(metrics="suboptimality"), "'suboptimality' needs all data at once"),
    (ValueError, refused(metrics="normalized_error"), "needs an optimum, .*use test_error"),
    (ValueError, refused(metrics="test_error"), "'test_error' needs held-out data"),
    (
        ValueError,
        refused(ConventionalFL(0.1), FIXED, metrics="test_error"),
        "'test_error' needs held-out data; give the problem or the stream test=",
    ),
    (
        ValueError,
        refused(SignSGD(MU), compression=Sign()),
        "SignSGD compresses its messages itself; leave out compression=",
    ),
    (TypeError, refused(participation=0.5), "participation must be .*Pattern, got 0.5"),
    (TypeError, refused(delays=3), "delays must be .*DelayLaw, got 3"),
    (TypeError, refused(compression="sign"), "compression must be .*Compressor, got 'sign'"),
    (TypeError, lambda: OnlineFed(MU, 0.5), "selector must be .*Selector, got 0.5"),
    (TypeError, lambda: PAOFed(MU, 4), "sharing must be .*Sharing, got 4"),
]


@pytest.mark.parametrize(("error", "make", "message"), REFUSED)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_a_step_above_the_bound_of_the_theory_is_named():
    """And one below it is not: the bound is 1 / 2 on features of second moment 2 I."""
    rng = np.random.default_rng(0)
    axes = np.tile(np.sqrt(2 * 4) * np.eye(4), (5, 10, 1))
    data = fl.problems.Problem(axes, rng.normal(size=axes.shape[:2]), LeastSquares(), strength=0.0)
    stream = Replay(data, test=data.pooled())
    for step, warns in ((0.55, True), (0.45, False)):
        simulation = fl.Simulation(stream, OnlineFed(step), metrics=["test_error"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = fl.run(simulation, 2)
        close(results.step_bound, 0.5, rtol=1e-6)
        close(results.first_step, step)
        told = [str(w.message) for w in caught if w.category is fl.AssumptionWarning]
        assert len(told) == warns
        if warns:
            assert re.search(r"a step size up to 0.55, above the bound 0.5, .*\(4.31\)", told[0])
