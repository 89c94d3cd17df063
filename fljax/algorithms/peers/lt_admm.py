r"""Decentralized ADMM with local training instead of its minimization: LT-ADMM, LT-ADMM-VR."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import draw_batches
from fljax.algorithms.peers.sample_gradients import GradientTable, gradient_table, saga_estimate
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.batches import Batches, Uniform, taken

#: The gradient of a local step: ``(step, model, table) -> (gradient, table)``.
GradientEstimate = Callable[[Array, Array, Any], tuple[Array, Any]]


class LTADMMState(NamedTuple):
    """State of LT-ADMM between rounds."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D]  the last message of client k
    received: Array  # [K, D]  the sum of its neighbors' messages
    dual: Array  # [K, D]  gamma_k
    table: GradientTable | None  # of the gradients of samples, where it is kept


@module
class _LocalTraining(Algorithm):
    """Base class of local steps with a pull toward neighbors; subclasses define the gradients."""

    penalty: Float[Array, ""] | float
    step_size: Schedule = field(converter=as_schedule)
    pull: Float[Array, ""] | float = field(kw_only=True)
    local_steps: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.positive("pull", self.pull)
        checks.count("local_steps", self.local_steps)

    def init(self, problem: Problem, network: Graph) -> LTADMMState:
        start = start_models(problem)
        received = network.neighbor_sum(start)
        return LTADMMState(
            start, start, received, jnp.zeros_like(start), self._begin(problem, start)
        )

    def step(self, state: LTADMMState, now: Round) -> LTADMMState:
        degree = now.network.degree[:, None]
        step_size = self.step_size(now.number)
        disagreement = degree * state.sent - state.received
        force = self.pull / 2 * (self.penalty * disagreement + state.dual)
        estimate, table = self._gradient_estimates(state, now)

        def local_step(carry: tuple[Array, Any], step: Array) -> tuple[Any, None]:
            model, table = carry
            gradient, table = estimate(step, model, table)
            return (model - step_size * gradient - force, table), None

        steps = jnp.arange(self.local_steps, dtype=jnp.int32)
        (model, table), _ = jax.lax.scan(local_step, (state.model, table), steps)
        sent, inbox = now.link.exchange(model)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * sent - received)
        stored = None if state.table is None else table
        return LTADMMState(model, sent, received, dual, stored)

    def _begin(self, problem: Problem, start: Array) -> GradientTable | None:
        return None

    def _gradient_estimates(self, state: LTADMMState, now: Round) -> tuple[GradientEstimate, Any]:
        raise NotImplementedError


@algorithm("LT-ADMM", "ren2025", Needs())
@module
class LTADMM(_LocalTraining):
    r"""Several local gradient steps per round instead of ADMM's exact minimization (LT-ADMM).

    Client :math:`k` has a variable :math:`z_{kl}` for each neighbor; in a round

    .. math::

        \phi^{t+1}&=\phi^t-\mu f_k'(\phi^t)
            -\beta\Big(\rho|\mathcal N_k|w_k^{(n-1)}-\sum_{l\in\mathcal N_k}z_{kl}\Big),
            \qquad \phi^0=w_k^{(n-1)},\quad w_k^{(n)}=\phi^\tau \\
        z_{kl}&\leftarrow\tfrac12(z_{kl}-z_{lk}+2\rho w_l^{(n)})

    The paper sends an individual message over every edge. Its relaxation is one half, and then
    :math:`z_{kl}+z_{lk}=\rho(w_k+w_l)` after a round, so that the term in brackets is
    :math:`\tfrac12\big(\rho\sum_l(w_k-w_l)+\gamma_k\big)` with
    :math:`\gamma_k\leftarrow\gamma_k+\rho\sum_l(w_k-w_l)`: every client sends its model to all
    neighbors once. The variables start at such values, :math:`z_{kl}=\tfrac\rho2(w_k+w_l)`, which
    are zero as in the paper if the models are. With full gradients it converges linearly to the
    optimum, with batches to a neighborhood of it.

    Args:
      penalty: :math:`\rho>0`.
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      pull: :math:`\beta>0`, the step size of the constraint term.
      local_steps: :math:`\tau`, >= 1.
      batches: the batches of local steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: parameters that are not positive, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.LTADMM(1.0, 0.05, pull=0.05, local_steps=5)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Ren et al. 2025, Algorithm 1.
    """

    batches: Batches | None = field(default=None, kw_only=True)

    def check(self, problem: Problem, network: Graph) -> None:
        if self.batches is not None:
            self.batches.check(problem)

    def _gradient_estimates(self, state: LTADMMState, now: Round) -> tuple[GradientEstimate, None]:
        everyone = Participants(None, now.available)
        batch = draw_batches(self.batches, now, everyone, self.local_steps)

        def estimate(step: Array, model: Array, table: None) -> tuple[Array, None]:
            part = now.problem
            if batch is not None:
                part = taken(part, everyone.numbers, batch, step)
            return part.gradient(model), table

        return estimate, None


@algorithm("LT-ADMM-VR", "ren2025", Needs(compares_samples=True))
@module
class LTADMMVR(_LocalTraining):
    r"""LT-ADMM with variance-reduced gradient estimates (LT-ADMM-VR).

    As :class:`LTADMM`, with :math:`f_k'` estimated from a batch and a table of the gradients of all
    samples, each at the model of its last use:

    .. math::

        g_k=\frac1{|B|}\sum_{j\in B}\big(f_{k,j}'(\phi^t)-t_{k,j}\big)+\frac1{D_k}\sum_jt_{k,j},
        \qquad t_{k,j}\leftarrow f_{k,j}'(\phi^t),\ j\in B

    It converges linearly to the optimum. The table has :math:`KND` numbers.

    Args:
      penalty: as in :class:`LTADMM`.
      step_size: as in :class:`LTADMM`.
      pull: as in :class:`LTADMM`.
      local_steps: as in :class:`LTADMM`.
      batch: samples per step, drawn without replacement.
      restart: whether each round begins by recomputing the table at the model, as in the paper;
        otherwise the table is kept from round to round, which saves a full gradient.

    Raises:
      ValueError: parameters that are not positive, a batch larger than every client's data.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.LTADMMVR(1.0, 0.05, batch=2, pull=0.05, local_steps=5)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-6)
      True

    Reference:
      Ren et al. 2025, Algorithm 1.
    """

    counts_work = False

    batch: int = static(default=1)
    restart: bool = static(default=True)

    def validate(self) -> None:
        super().validate()
        checks.count("batch", self.batch)
        checks.switch("restart", self.restart)

    def check(self, problem: Problem, network: Graph) -> None:
        Uniform(self.batch).check(problem)

    def _begin(self, problem: Problem, start: Array) -> GradientTable | None:
        return None if self.restart else gradient_table(problem, start)

    def _gradient_estimates(
        self, state: LTADMMState, now: Round
    ) -> tuple[GradientEstimate, GradientTable]:
        everyone = Participants(None, now.available)
        batch = draw_batches(Uniform(self.batch), now, everyone, self.local_steps)
        assert batch is not None

        def estimate(
            step: Array, model: Array, table: GradientTable
        ) -> tuple[Array, GradientTable]:
            return saga_estimate(now.problem, table, model, batch.rows[:, step])

        table = gradient_table(now.problem, state.model) if state.table is None else state.table
        return estimate, table
