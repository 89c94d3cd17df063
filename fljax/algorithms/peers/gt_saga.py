"""Gradient tracking with variance reduction: GT-SAGA, GT-SVRG, GT-SARAH."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.local_steps import draw_batches, sampled_problem
from fljax.algorithms.peers.peer_algorithm import (
    Weights,
    as_weights,
    check_sums,
    check_weights,
    weights_on,
)
from fljax.algorithms.peers.sample_gradients import GradientTable, gradient_table, saga_estimate
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.batches import Uniform


class GradientSnapshot(NamedTuple):
    """The models at which clients last computed full gradients, and these gradients."""

    model: Array  # [K, D]
    gradient: Array  # [K, D]


class GTSAGAState(NamedTuple):
    """State of gradient tracking between rounds."""

    model: Array  # [K, D]  w_k
    tracker: Array  # [K, D]  y_k, the network's gradient as client k knows it
    estimate: Array  # [K, D]  g_k, of its own
    memory: GradientTable | GradientSnapshot
    mixing: Combination  # the doubly stochastic weights


@module
class SmallBatchPeer(Algorithm):
    """Base class of peers with a small batch in every round, and weights that preserve sums.

    Args:
      step_size: a number or a schedule of the round, > 0.
      mixing: a rule's name, a :class:`~fljax.graphs.Mixing` or a
        :class:`~fljax.graphs.Combination`, doubly stochastic.
      batch: samples of a step, drawn without replacement.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; a batch larger
        than every client's data.
    """

    step_size: Schedule = field(converter=as_schedule)
    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")
    batch: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        check_sums(self.mixing, type(self))
        checks.count("batch", self.batch)

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return (self.mixing,)

    def check(self, problem: Problem, network: Graph) -> None:
        check_weights(self.mixing, network)
        Uniform(self.batch).check(problem)


@module
class EstimateTracking(SmallBatchPeer):
    """Base class that combines models and trackers; subclasses define the gradient estimate."""

    def message_size(self, dim: int) -> int:
        """Return the size of a model and a tracker."""
        return 2 * dim

    def init(self, problem: Problem, network: Graph) -> GTSAGAState:
        start = start_models(problem)
        mixing = weights_on(self.mixing, network)
        gradient = problem.gradient(start)
        return GTSAGAState(start, gradient, gradient, self._begin(problem, start), mixing)

    def step(self, state: GTSAGAState, now: Round) -> GTSAGAState:
        message = jnp.concatenate([state.model, state.tracker], axis=1)
        inbox = now.link.exchange(message)[1]
        # The sum of all trackers is that of all estimates, even if messages are lost.
        model, tracker = jnp.split(message - inbox.disagreement(state.mixing), 2, axis=1)
        model = model - self.step_size(now.number) * state.tracker
        estimate, memory = self._estimate(state.memory, model, now)
        return GTSAGAState(
            model, tracker + estimate - state.estimate, estimate, memory, state.mixing
        )

    def _begin(self, problem: Problem, start: Array) -> GradientTable | GradientSnapshot:
        raise NotImplementedError

    def _estimate(
        self, memory: PyTree, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], Any]:
        raise NotImplementedError


@algorithm("GT-SAGA", "xin2020", Needs(directed=True, compares_samples=True))
@module
class GTSAGA(EstimateTracking):
    r"""Gradient tracking with SAGA's variance-reduced gradient estimates (GT-SAGA).

    .. math::

        w_k^{(n)}&=\sum_la_{kl}w_l^{(n-1)}-\mu y_k^{(n-1)} \\
        g_k^{(n)}&=f_{k,s}'(w_k^{(n)})-t_{k,s}+\frac1{D_k}\sum_jt_{k,j},\qquad
            t_{k,s}\leftarrow f_{k,s}'(w_k^{(n)}) \\
        y_k^{(n)}&=\sum_la_{kl}y_l^{(n-1)}+g_k^{(n)}-g_k^{(n-1)}

    with a sample :math:`s` drawn in each round, and :math:`t_{k,j}=f_{k,j}'`, :math:`y_k=g_k=f_k'`
    at the start. For a smooth, strongly convex sum and small steps it converges linearly to the
    optimum. Model and tracker form one message of :math:`2D` numbers. (The form of 2022, which
    combines after the step in two successive exchanges, is :class:`ATCGTSAGA`.)

    The table has :math:`KND` numbers: 40 MB per run in single precision for 100 clients of 100
    samples and 1000 parameters; :class:`GTSVRG` needs none.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      batch: samples per step, drawn without replacement, whose gradients are averaged.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, doubly stochastic.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; a batch larger
        than every client's data.

    Example:
      >>> import jax, fljax as fl
      >>> run = fl.run(
      ...     fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...         network=fl.graphs.ring(6),
      ...         algorithm=fl.algorithms.GTSAGA(0.02),
      ...         metrics=["normalized_error"],
      ...     ),
      ...     rounds=1000)
      >>> bool(run.normalized_error[-1] < 1e-8)
      True

    Reference:
      Xin, Khan and Kar 2020, Algorithm 1.
    """

    def _begin(self, problem: Problem, start: Array) -> GradientTable:
        return gradient_table(problem, start)

    def _estimate(
        self, memory: GradientTable, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], GradientTable]:
        batch = draw_batches(Uniform(self.batch), now, Participants(None, now.available), 1)
        assert batch is not None
        return saga_estimate(now.problem, memory, model, batch.rows[:, 0])


@algorithm("GT-SVRG", "xin2020", Needs(directed=True, compares_samples=True))
@module
class GTSVRG(EstimateTracking):
    r"""Gradient tracking with estimates corrected by periodic full gradients (GT-SVRG).

    As :class:`GTSAGA`, with

    .. math:: g_k^{(n)}=f_{k,s}'(w_k^{(n)})-f_{k,s}'(\tau_k)+f_k'(\tau_k),

    where :math:`\tau_k` is set to :math:`w_k^{(n)}` in every :math:`T`-th round. (In :class:`GTVR`
    each client decides at random whether it does so in a round.)

    Args:
      step_size: as in :class:`GTSAGA`.
      period: :math:`T`, rounds from one full gradient to the next, >= 1. With 1 it is gradient
        tracking with full gradients.
      batch: as in :class:`GTSAGA`.
      mixing: as in :class:`GTSAGA`.

    Raises:
      ValueError: as for :class:`GTSAGA`; a period below 1.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.GTSVRG(0.05, batch=2, period=10)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-4)
      True

    Reference:
      Xin, Khan and Kar 2020, Algorithm 2.
    """

    counts_work = False

    period: int = static(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("period", self.period)

    def _begin(self, problem: Problem, start: Array) -> GradientSnapshot:
        return GradientSnapshot(start, problem.gradient(start))

    def _estimate(
        self, memory: GradientSnapshot, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], GradientSnapshot]:
        # Rounds have the same number in all runs of a study: only these compute the full gradient.
        memory = jax.lax.cond(
            now.number % self.period == 0,
            lambda: GradientSnapshot(model, now.problem.gradient(model)),
            lambda: memory,
        )
        part = sampled_problem(Uniform(self.batch), now)
        return part.gradient(model) - part.gradient(memory.model) + memory.gradient, memory


@algorithm("GT-SARAH", "xin2022", Needs(directed=True, compares_samples=True))
@module
class GTSARAH(GTSVRG):
    r"""Gradient tracking with recursive gradient estimates (GT-SARAH).

    As :class:`GTSVRG`, with a full gradient in every :math:`T`-th round and

    .. math:: g_k^{(n)}=f_{k,s}'(w_k^{(n)})-f_{k,s}'(w_k^{(n-1)})+g_k^{(n-1)}

    in all others: the estimate is biased, but has a lower variance, which is an advantage for
    nonconvex sums.

    Args:
      step_size: as in :class:`GTSAGA`.
      period: :math:`T`, as in :class:`GTSVRG`.
      batch: as in :class:`GTSAGA`.
      mixing: as in :class:`GTSAGA`.

    Raises:
      ValueError: as for :class:`GTSVRG`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.GTSARAH(0.05, batch=2, period=10)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-4)
      True

    Reference:
      Xin, Khan and Kar 2022 (GT-SARAH).
    """

    def _estimate(
        self, memory: GradientSnapshot, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], GradientSnapshot]:
        def recursive_gradient() -> Array:
            part = sampled_problem(Uniform(self.batch), now)
            return part.gradient(model) - part.gradient(memory.model) + memory.gradient

        restarts = now.number % self.period == 0
        gradient = jax.lax.cond(restarts, lambda: now.problem.gradient(model), recursive_gradient)
        return gradient, GradientSnapshot(model, gradient)
