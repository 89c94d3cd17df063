"""A world of streams, absences and delays, told to the library and to message-by-message loops."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import OnlineFed, PAOFed, PSOFed, SignSGD
from fljax.data import RandomFourier
from fljax.link import Circular, DelayLaw, DelayTrace
from fljax.participation.patterns import Always, Trace
from fljax.problems import LeastSquares, from_clients
from fljax.problems.streams import Replay
from fljax.simulation.scan import advance, begin, prepare
from tests.reference import online

close = np.testing.assert_allclose

MU = 0.5


def new_key(seed):
    """The key of a run."""
    return fl.random_key(seed)


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
        """The library's simulation of it."""
        settings = {"participation": self.participation, "delays": self.delays} | changes
        return fl.Simulation(self.stream, algorithm, **settings)


def make_data(clients, sizes, inputs, seed):
    """Features and targets of each client."""
    rng = np.random.default_rng(seed)
    # clients disagree, so that all models keep moving
    truth = rng.normal(size=(clients, inputs)) + 2
    data = []
    for k in range(clients):
        x = rng.normal(size=(sizes[k], inputs)) / np.sqrt(inputs)
        data.append((x, x @ truth[k] + 0.1 * rng.normal(size=sizes[k])))
    return tuple(data)


def stream_of(data, arrivals, feature_map=None):
    """These samples one by one, without a regularizer."""
    problem = from_clients(data, LeastSquares(), strength=0.0)
    return Replay(dataclasses.replace(problem, feature_map=feature_map), arrivals)


def fourier(inputs, features, seed=0):
    """A map of random features."""
    rng = np.random.default_rng(seed)
    phases = rng.uniform(0, 2 * np.pi, features)
    return RandomFourier(rng.normal(size=(features, inputs)), phases, 1.3)


@functools.cache
def some_data(clients=40, rounds=48, inputs=9, seed=0):
    """Some clients run out of samples before the end; one never does."""
    sizes = np.random.default_rng(seed).integers(rounds // 2, rounds, clients)
    sizes[-1] = rounds
    return make_data(clients, sizes, inputs, seed)


def world_from(data, arrived, available, delay, longest, feature_map=None):
    """The same samples, absences and delays for both sides."""
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
    share[:2] = 1
    arrived[:2] = True
    available = rng.uniform(size=(rounds, clients)) < share
    delay = rng.integers(-1, longest + 2, size=(rounds, clients))
    delay = np.where(rng.uniform(size=delay.shape) < 0.4, 0, delay)
    data = some_data(clients, rounds, 3 if mapped else dim)
    return world_from(data, arrived, available, delay, longest, fourier(3, dim) if mapped else None)


def few():
    """Five clients."""
    return world(clients=5)


def wide():
    """More than two groups of senders in a round."""
    return world(clients=70, rounds=12, dim=6, longest=3)


def mapped():
    """Features of a map."""
    return world(mapped=True)


#: LLVM's passes are a good third of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}


@functools.partial(jax.jit, static_argnums=2, compiler_options=QUICK)
def run_of(simulation, key, rounds):
    """The state after every round, and its records."""
    prepared = prepare(simulation, rounds)

    def step(carry, done):
        carry, record = advance(simulation, prepared, key, carry, done, 1, 1, rounds)
        return carry, (carry.state, record)

    done = jnp.arange(rounds, dtype=jnp.int32)
    return jax.lax.scan(step, begin(simulation, prepared, key), done)[1]


def states_and_records(simulation, rounds, key=None):
    """The state and the record of every round."""
    return run_of(simulation, new_key(1) if key is None else key, rounds)


def counts(wide):
    """Counts of 62 bits as numbers, round by round."""
    wide = np.asarray(wide, np.int64).reshape(-1, 2)
    return (wide[:, 0] << 31) + wide[:, 1]


def compare(simulation, expected, key=None, participants=None):
    """Models of the server and of the clients, and the bits each way, in every round."""
    state, record = states_and_records(simulation, len(expected.server), key)
    scale = np.abs(expected.server).max()
    assert 0.1 < scale < 1e3
    close(state.model, expected.server, rtol=0, atol=1e-11 * scale)
    if expected.local is not None:
        close(state.local, expected.local, rtol=0, atol=1e-11 * np.abs(expected.local).max())
    np.testing.assert_array_equal(counts(record["bits_up"]), expected.up)
    np.testing.assert_array_equal(counts(record["bits_down"]), expected.down)
    if participants is not None:
        np.testing.assert_array_equal(counts(record["messages"]), 2 * participants)


def models(simulation, key=None):
    """The server's model of every round."""
    return np.asarray(states_and_records(simulation, 48, key)[0].model)


def agree(result, expected):
    """Models that are equal up to rounding, and not all zero."""
    assert np.abs(expected).max() > 0.1
    close(result, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def library_draws(process, key, purpose, rounds, clients):
    """The library's own draws of a pattern or a law of delays, ``[T, K]``."""

    def draw(state, n):
        now = key_of(jax.random.fold_in(key, n), purpose)
        if isinstance(process, DelayLaw):
            return state, process.draw(now, n, clients)
        return process.draw(state, now, n, clients)

    start = ()
    if not isinstance(process, DelayLaw):
        start = process.begin(key_of(jax.random.fold_in(key, 0), purpose), clients)
    return np.asarray(jax.lax.scan(draw, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1])


#: One weight a lag. Arrivals after two rounds have weight zero, yet displace older ones.
FALLING = np.array([0.9, 0.7, 0, *np.linspace(0.6, 0, 8)])
PAO = {
    **{name: PAOFed.variant(name, MU) for name in PAOFed.VARIANTS},  # 4 does not divide 9
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
DATA = some_data(5, 6, 4)
STREAM = stream_of(DATA, Always())
FIXED = from_clients(DATA, LeastSquares())
RING = fl.graphs.ring(5)


def short_run(algorithm=None, problem=STREAM, rounds=4, **settings):
    """A run of a few rounds: bad arguments are refused at its start."""
    return fl.run(fl.Simulation(problem, algorithm or PAOFed(MU), **settings), rounds)
