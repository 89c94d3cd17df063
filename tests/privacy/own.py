"""Algorithms of users: some of what can be got wrong with a link."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

import fljax as fl
from fljax._core.module import replace
from fljax.algorithms import Algorithm, Needs, server_start
from fljax.participation.selectors import Everyone, Law
from fljax.privacy import ZCDP


class State(NamedTuple):
    model: Any  # [D]


@fl.module
class Twice(Algorithm):
    """The difference of two noisy gradients of a round: of all samples, and of none."""

    needs = Needs(None, privacy=("gradient",), averages=True, absent=True)

    def sampling(self, problem):
        return Law(1.0)

    def init(self, problem, network):
        return State(server_start(problem))

    def step(self, state, now):
        problem = now.problem
        participants = now.choose(Everyone())
        start = jnp.broadcast_to(state.model, (problem.clients, problem.dim))

        def gradient(share):
            batch = replace(problem, weights=share * problem.weights)
            return now.link.descend(
                1,
                participants,
                start,
                lambda key, number: (batch, problem.influence),
                lambda model, g: g,
            )

        model = start - 0.1 * (gradient(1.0) - gradient(0.0))
        return State(now.link.collect(model, participants.here, state.model).move(state.model))


def own_algorithm(kind: type, how: Callable) -> Algorithm:
    """An algorithm whose step publishes ``how(now, start, gradient)``, ``[D]``, under a budget of
    this kind.
    """

    @fl.module
    class Own(Algorithm):
        needs = Needs(None, privacy=("message", "server", "gradient"), averages=True, absent=True)

        @property
        def selection(self):
            return Everyone()

        def sampling(self, problem):
            return Law(1.0)

        def init(self, problem, network):
            return State(server_start(problem))

        def sensitivity(self, problem, network, round, gap):
            return 0.1 * gap.gradient

        def step(self, state, now):
            start = jnp.broadcast_to(state.model, (now.problem.clients, now.problem.dim))
            if kind is ZCDP:
                now.witness_at(start)
            return State(now.link.publish(how(now, start)))

        def released(self, state, problem, network):
            return state.model

    return Own()
