"""DANE: approximate Newton steps of clients along the mean gradient (Shamir et al. 2014)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Algorithm, Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import kept
from fljax.participation import Drawn, Selector, everyone_or
from fljax.problems import Problem
from fljax.problems.solvers import ProxFactor, factorize, prox
from fljax.rounds import Round

__all__ = ["DANE", "State"]


class State(NamedTuple):
    """State of DANE between rounds."""

    model: Array  # [D]  the server's w
    factor: ProxFactor  # of the clients' problems


@algorithm(
    "DANE", "shamir2014", Needs(None, minimizer=True, absent=True, averages=True, masked=True)
)
@module
class DANE(ReleasesModel, Algorithm):
    r"""Distributed approximate Newton method: clients minimize along the mean gradient (DANE).

    The server sends its model :math:`w`, receives the gradients, sends their mean :math:`g`, and
    averages the clients' solutions,

    .. math::

        w_k=\arg\min_v f_k(v)-\langle f_k'(w)-\eta g,v\rangle+\frac\mu2\|v-w\|^2,\qquad
        w\leftarrow\frac1{|S|}\sum_{k\in S}w_k.

    Of quadratic objectives it is the step :math:`-\eta\frac1{|S|}\sum_k(H_k+\mu I)^{-1}g`: with
    clients that are alike, and a small :math:`\mu`, nearly Newton's. It converges linearly to the
    minimizer, with unlike Hessians for a :math:`\mu` that is large enough only. A round has two
    messages of each client. (In the source all clients take part, and :math:`\mu=0` is allowed.)

    Args:
      attraction: :math:`\mu>0`.
      step_size: :math:`\eta>0`.
      clients_per_round: :math:`|S|`, drawn uniformly without replacement; all clients by default,
        without which the mean gradient is that of the participants.
      inner_iterations: iterations of the clients' solver if there is no closed form.

    Raises:
      ValueError: numbers that are not positive, more participants than clients, a problem that
        clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=40, dim=2),
      ...     algorithm=fl.algorithms.DANE(attraction=0.5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=20).normalized_error[-1] < 1e-8)
      True

    Reference:
      Shamir, Srebro & Zhang 2014, Figure 1.
    """

    attraction: Float[Array, ""] | float
    step_size: Float[Array, ""] | float = 1.0
    clients_per_round: int | None = static(default=None, kw_only=True)
    inner_iterations: int = static(default=100, kw_only=True)

    def validate(self) -> None:
        _check.positive("attraction", self.attraction)
        _check.positive("step_size", self.step_size)
        if self.clients_per_round is not None:
            _check.count("clients_per_round", self.clients_per_round)
        _check.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)

    def check(self, problem: Problem, network: Any) -> None:
        self.selection.check(problem.clients)

    def init(self, problem: Problem, network: Any) -> State:
        weight = jnp.full(problem.clients, self.attraction, problem.dtype)
        return State(server_start(problem), factorize(problem, weight))

    def step(self, state: State, now: Round) -> State:
        who, link = now.choose(self.selection, state.model), now.link
        problem, factor = who.of(now.problem), who.take(state.factor)
        server = link.publish(state.model, who.here)
        at = jnp.broadcast_to(server, (len(who.here), len(server)))
        slope = problem.gradient(at)
        arrived = link.collect(slope, who.here, jnp.zeros_like(server), clients=who.numbers)
        mean = link.publish(arrived.total, who.here)
        center = at - (self.step_size * mean[None] - slope) / self.attraction
        model = prox(problem, factor, center, at, self.inner_iterations)
        moved = link.collect(model, who.here, server, clients=who.numbers).move(server)
        return State(kept(arrived.any, moved, state.model), state.factor)
