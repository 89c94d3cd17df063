"""Rounds of a simulation by the engine itself, to inspect values that a run does not return."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax._core.prng import as_key
from fljax.link import Link
from fljax.simulation.scan import begin, make_round, prepare, trace
from tests.cases import CLIENTS, EXACT, ROUNDS

_trace = jax.jit(trace, static_argnums=(2, 3))


def trajectory(simulation, rounds=ROUNDS, key=None):
    """``[T, K, D]`` exact models of every round, by the engine itself."""
    key = as_key(1) if key is None else key
    simulation = dataclasses.replace(simulation, metrics=(EXACT,))
    return np.asarray(_trace(simulation, key, rounds, 1)[0]["exact"])


def totals(traffic):
    """Counts of 62 bits as numbers."""
    return tuple((int(high) << 31) + int(low) for high, low in traffic)


class Stepper(NamedTuple):
    """One round at a time, to inspect values that a run does not return."""

    simulation: Any
    rounds: int

    def start(self):
        ready = prepare(self.simulation, self.rounds)
        return begin(self.simulation, ready, as_key(0)).state

    def __call__(self, state, round, key=None):
        """The next state, the largest gradient norm of the step, and the link's traffic; jitted."""
        key = as_key(2) if key is None else key
        return _step(self.simulation, state, jnp.asarray(round, jnp.int32), key, self.rounds)


def _one_round(simulation, state, round, key, rounds):
    simulation = dataclasses.replace(simulation, metrics=())
    ready = prepare(simulation, rounds)
    now, *_ = make_round(simulation, ready, key, begin(simulation, ready, key), round, rounds)
    state = simulation.algorithm.step(state, now)
    return state, now.witnessed, now.link.traffic


_step = jax.jit(_one_round, static_argnames="rounds")


def states(simulation, rounds=ROUNDS, key=None):
    """The algorithm's state after each round."""
    stepper = Stepper(simulation, rounds)
    state = stepper.start()
    result = []
    for n in range(1, rounds + 1):
        state = stepper(state, n, key)[0]
        result.append(state)
    return result


def link_of(key, n):
    """The link of round ``n`` without stages, for its keys."""
    return Link(jax.random.fold_in(key, n), n, ROUNDS, CLIENTS)


def batches_without_padding(rows, size):
    """The batches of one client, ``[steps, batch]``, without padding and without empty ones."""
    cut = [row[row < size] for row in np.asarray(rows)]
    return [row for row in cut if len(row)]
