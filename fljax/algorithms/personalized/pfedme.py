r"""pFedMe: personalization with Moreau envelopes (Dinh, Tran and Nguyen 2020)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, server_start, start_models
from fljax.participation import Drawn, Selector, everyone_or
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["PFedMe", "State"]


class State(NamedTuple):
    """State of pFedMe between rounds."""

    model: Array  # [K, D]  the personal theta_k
    server: Array  # [D]  the global w
    factor: ProxFactor  # of the personal problems, constant


@algorithm(
    "pFedMe",
    "dinh2020",
    Needs(
        None,
        absent=True,
        late=True,
        averages=True,
        minimizer=True,
        uploads=("models", "updates"),
        masked=True,
    ),
)
@module
class PFedMe(Algorithm):
    r"""Gradient descent of the server on :math:`\frac1K\sum_k F_k`, the clients' Moreau envelopes.

    All available clients start from :math:`w_k=w^{(n-1)}` and repeat ``local_steps`` times

    .. math::

        \theta_k = \arg\min_\theta f_k(\theta)+\frac\lambda2\|\theta-w_k\|^2,\qquad
        w_k \leftarrow w_k-\eta\lambda(w_k-\theta_k)

    Then the server draws a set :math:`S` of clients, receives their :math:`w_k`, and

    .. math:: w^{(n)} = (1-\beta)w^{(n-1)}+\frac\beta{|S|}\sum_{k\in S}w_k

    Metrics evaluate the last :math:`\theta_k`; unavailable clients keep it. The paper approximates
    :math:`\theta_k` by gradient steps on a batch, to an accuracy :math:`\nu`; here it is the exact
    minimizer: one linear solve, factorized once, for squared losses with no or a squared
    regularizer, and inner iterations from the last :math:`\theta_k` otherwise.

    Args:
      step_size: :math:`\eta`, a schedule of the round or a number, > 0; :math:`\eta\lambda\le1`
        keeps :math:`w_k` between its last value and :math:`\theta_k`.
      attraction: :math:`\lambda>0`, the strength of the personal models' regularization toward
        :math:`w_k`.
      local_steps: :math:`R\ge1`.
      server_step_size: :math:`\beta>0`; the paper's experiments use 1 and more.
      clients_per_round: :math:`|S|`; all clients by default. The other clients also compute and
        receive.
      inner_iterations: iterations of the personal solver if there is no closed form.

    Raises:
      ValueError: more participants than clients, a problem that clips gradients.

    Reference:
      Dinh et al. 2020, Algorithm 1.
    """

    step_size: Schedule = field(converter=as_schedule)
    attraction: Float[Array, ""] | float
    local_steps: int = static(default=1)
    server_step_size: Float[Array, ""] | float = 1.0
    clients_per_round: int | None = static(default=None)
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        _check.positive("attraction", self.attraction)
        _check.count("local_steps", self.local_steps)
        _check.positive("server_step_size", self.server_step_size)
        if self.clients_per_round is not None:
            _check.count("clients_per_round", self.clients_per_round)
        _check.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the clients from which the server receives."""
        return everyone_or(Drawn, self.clients_per_round)

    def init(self, problem: Problem, network: Any) -> State:
        self.selection.check(problem.clients)
        weight = jnp.full(problem.clients, self.attraction, problem.dtype)
        return State(start_models(problem), server_start(problem), factorize(problem, weight))

    def step(self, state: State, now: Round) -> State:
        step_size = self.step_size(now.number)
        pull = step_size * self.attraction
        server = now.link.publish(state.server)

        def local_round(_: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
            local, personal = both
            personal = prox(now.problem, state.factor, local, personal, self.inner_iterations)
            return local - pull * (local - personal), personal

        start = jnp.broadcast_to(server, state.model.shape)
        local, personal = jax.lax.fori_loop(0, self.local_steps, local_round, (start, state.model))
        model = jnp.where(now.available[:, None], personal, state.model)

        who = now.choose(self.selection, state.model)
        sent = who.take(local)
        arrived = now.link.collect(sent, who.here, server, clients=who.numbers, step_size=step_size)
        server = server + self.server_step_size * (arrived.move(server) - server)
        return State(model, server, state.factor)
