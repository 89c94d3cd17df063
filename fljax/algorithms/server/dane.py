"""DANE: approximate Newton steps of clients along the mean gradient (Shamir et al. 2014)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Algorithm, Needs, ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.participation.selectors import Drawn, Selector, everyone_or
from fljax.problems import Problem
from fljax.problems.solvers import ProxFactor, factorize, prox


class DANEState(NamedTuple):
    """State of DANE between rounds."""

    model: Array  # [D]  the server's w
    factor: ProxFactor  # of the clients' problems


@algorithm(
    "DANE",
    "shamir2014",
    Needs(None, minimizer=True, absent=True, averages=True, masked=True),
    {"Distributed approximate Newton": ""},
)
@module
class DANE(ReleasesModel, Algorithm):
    r"""Distributed approximate Newton method: clients minimize along the mean gradient (DANE).

    The server sends its model :math:`w`, receives the gradients, sends their mean :math:`g`, and
    averages the clients' solutions,

    .. math::

        w_k=\arg\min_v f_k(v)-\langle f_k'(w)-\eta g,v\rangle+\frac\mu2\|v-w\|^2,\qquad
        w\leftarrow\frac1{|S|}\sum_{k\in S}w_k.

    For quadratic objectives it is the step :math:`-\eta\frac1{|S|}\sum_k(H_k+\mu I)^{-1}g`: with
    similar clients, and a small :math:`\mu`, nearly Newton's. It converges linearly to the
    minimizer, with different Hessians for a :math:`\mu` that is large enough only. A round has two
    messages of each client. (In the source all clients take part, and :math:`\mu=0` is allowed.)

    Args:
      attraction: :math:`\mu>0`.
      step_size: :math:`\eta>0`.
      clients_per_round: :math:`|S|`, drawn uniformly without replacement; all clients by default,
        without which the mean gradient is that of the participants.
      inner_iterations: iterations of the clients' solver if no closed form exists.

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
        checks.positive("attraction", self.attraction)
        checks.positive("step_size", self.step_size)
        if self.clients_per_round is not None:
            checks.count("clients_per_round", self.clients_per_round)
        checks.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)

    def check(self, problem: Problem, network: Network) -> None:
        self.selection.check(problem.clients)

    def init(self, problem: Problem, network: Network) -> DANEState:
        weight = jnp.full(problem.clients, self.attraction, problem.dtype)
        return DANEState(server_start(problem), factorize(problem, weight))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: DANEState, now: Round) -> DANEState:
        participants = now.choose(self.selection, state.model)
        link = now.link
        problem = participants.of(now.problem)
        factor = participants.take(state.factor)
        server = link.publish(state.model, participants.here)
        start = jnp.broadcast_to(server, (len(participants.here), len(server)))
        gradient = problem.gradient(start)
        arrived = link.collect(
            gradient, participants.here, jnp.zeros_like(server), clients=participants.numbers
        )
        mean = link.publish(arrived.total, participants.here)
        center = start - (self.step_size * mean[None] - gradient) / self.attraction
        model = prox(problem, factor, center, start, self.inner_iterations)
        moved = link.collect(model, participants.here, server, clients=participants.numbers).move(
            server
        )
        return DANEState(select_rows(arrived.any, moved, state.model), state.factor)
