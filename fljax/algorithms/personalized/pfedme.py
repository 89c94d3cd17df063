r"""pFedMe: personalization with Moreau envelopes (Dinh, Tran and Nguyen 2020)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Drawn, Selector, everyone_or
from fljax.problems import Problem, factorize, prox
from fljax.problems.solvers import ProxFactor


class PFedMeState(NamedTuple):
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
      inner_iterations: iterations of the personal solver if no closed form exists.

    Raises:
      ValueError: more participants than clients, a problem that clips gradients.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.PFedMe(0.05, attraction=1.0, local_steps=5)
      >>> run = fl.run(fl.Simulation(problem, algorithm, metrics=["objective"]), rounds=20)
      >>> run["model"].shape, bool(run.objective[-1] < run.objective[0])
      ((6, 2), True)

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
        checks.positive("attraction", self.attraction)
        checks.count("local_steps", self.local_steps)
        checks.positive("server_step_size", self.server_step_size)
        if self.clients_per_round is not None:
            checks.count("clients_per_round", self.clients_per_round)
        checks.count("inner_iterations", self.inner_iterations)

    @property
    def selection(self) -> Selector:
        """The selector of the clients from which the server receives."""
        return everyone_or(Drawn, self.clients_per_round)

    def init(self, problem: Problem, network: Network) -> PFedMeState:
        self.selection.check(problem.clients)
        weight = jnp.full(problem.clients, self.attraction, problem.dtype)
        return PFedMeState(start_models(problem), server_start(problem), factorize(problem, weight))

    def step(self, state: PFedMeState, now: Round) -> PFedMeState:
        step_size = self.step_size(now.number)
        rate = step_size * self.attraction
        server = now.link.publish(state.server)

        def local_round(_: Array, models: tuple[Array, Array]) -> tuple[Array, Array]:
            local, personal = models
            personal = prox(now.problem, state.factor, local, personal, self.inner_iterations)
            return local - rate * (local - personal), personal

        start = jnp.broadcast_to(server, state.model.shape)
        local, personal = jax.lax.fori_loop(0, self.local_steps, local_round, (start, state.model))
        model = jnp.where(now.available[:, None], personal, state.model)

        participants = now.choose(self.selection, state.model)
        sent = participants.take(local)
        arrived = now.link.collect(
            sent, participants.here, server, clients=participants.numbers, step_size=step_size
        )
        server = server + self.server_step_size * (arrived.move(server) - server)
        return PFedMeState(model, server, state.factor)
