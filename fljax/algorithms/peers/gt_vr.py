"""Variance-reduced gradient tracking with all updates combined: GT-VR, and GT-SAGA of 2022."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import draw_batches, sampled_problem
from fljax.algorithms.peers.gradient_tracking import exchange_and_combine
from fljax.algorithms.peers.gt_saga import EstimateTracking, GradientSnapshot, GTSAGAState
from fljax.algorithms.peers.peer_algorithm import weights_on
from fljax.algorithms.peers.sample_gradients import GradientTable, gradient_table, saga_estimate
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.participation.selectors import Participants
from fljax.problems import Problem
from fljax.problems.batches import Uniform


@module
class _CombinedUpdates(EstimateTracking):
    """Base class of methods that combine models after a step, and trackers after an update."""

    def message_size(self, dim: int) -> int:
        """Return the size of a model, and of a tracker after it."""
        return dim

    def step(self, state: GTSAGAState, now: Round) -> GTSAGAState:
        moved = state.model - self.step_size(now.number) * state.tracker
        model = exchange_and_combine(now, moved, state.mixing)
        estimate, memory = self._estimate(state.memory, model, now)
        tracker = exchange_and_combine(now, state.tracker + estimate - state.estimate, state.mixing)
        return GTSAGAState(model, tracker, estimate, memory, state.mixing)


@algorithm("GT-VR", "jiang2023", Needs(directed=True, compares_samples=True))
@module
class GTVR(_CombinedUpdates):
    r"""Gradient tracking with full gradients at random rounds, and all updates combined (GT-VR).

    .. math::

        w_k^{(n)}&=\sum_la_{kl}\big(w_l^{(n-1)}-\mu y_l^{(n-1)}\big),\qquad
            \tau_k\leftarrow w_k^{(n)}\text{ with probability }P \\
        g_k^{(n)}&=f_{k,s}'(w_k^{(n)})-f_{k,s}'(\tau_k)+f_k'(\tau_k) \\
        y_k^{(n)}&=\sum_la_{kl}\big(y_l^{(n-1)}+g_l^{(n)}-g_l^{(n-1)}\big)

    with :math:`\tau_k=w_k`, :math:`y_k=g_k=f_k'` at the start. Each client draws for itself whether
    it computes a full gradient in a round, with all others of its samples at :math:`\tau_k` kept in
    one vector: peers never wait for a common round, as in :class:`GTSVRG`, and store no table,
    as in :class:`GTSAGA`. A round has two messages, one after the other. For a smooth and strongly
    convex sum and small steps it converges linearly to the minimizer, for nonconvex sums to
    stationary points. (The simulation computes full gradients of all clients in every round.)

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      probability: :math:`P\in(0,1]`. With 1 it is :class:`AugDGM`.
      batch: samples :math:`s` of a step, drawn without replacement, whose gradients are averaged.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, doubly stochastic.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; a probability
        outside (0, 1]; a batch larger than every client's data.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.GTVR(0.03, probability=0.2),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=800).normalized_error[-1] < 1e-8)
      True

    Reference:
      Jiang, Zeng, Sun & Chen 2023, Algorithm 1.
    """

    counts_work = False

    probability: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        hint = "At 0 no client would ever compute a full gradient."
        checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _begin(self, problem: Problem, start: Array) -> GradientSnapshot:
        return GradientSnapshot(start, problem.gradient(start))

    def _estimate(
        self, memory: GradientSnapshot, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], GradientSnapshot]:
        uniform = jax.random.uniform(now.key("algorithm"), (len(model), 1), now.problem.dtype)
        restarts = uniform < self.probability
        full_gradient = now.problem.gradient(model)
        point, gradient = (
            jnp.where(restarts, *pair) for pair in zip((model, full_gradient), memory, strict=True)
        )
        part = sampled_problem(Uniform(self.batch), now)
        return part.gradient(model) - part.gradient(point) + gradient, GradientSnapshot(
            point, gradient
        )


@algorithm("ATC-GT-SAGA", "xin2022saga", Needs(directed=True, compares_samples=True))
@module
class ATCGTSAGA(_CombinedUpdates):
    r"""GT-SAGA in the form of 2022, for nonconvex sums: all updates are combined.

    .. math::

        g_k^{(n)}&=f_{k,s}'(w_k^{(n-1)})-t_{k,s}+\frac1{D_k}\sum_jt_{k,j} \\
        y_k^{(n)}&=\sum_la_{kl}\big(y_l^{(n-1)}+g_l^{(n)}-g_l^{(n-1)}\big) \\
        w_k^{(n)}&=\sum_la_{kl}\big(w_l^{(n-1)}-\mu y_l^{(n)}\big),\qquad
            t_{k,r}\leftarrow f_{k,r}'(w_k^{(n-1)})

    with :math:`t_{k,j}=f_{k,j}'` and :math:`y_k=g_k=0` at the start. It differs from
    :class:`GTSAGA`, the form of 2020, in that models and trackers are combined after their updates,
    in two successive exchanges of a model's size, first of the trackers; and in
    that the samples :math:`r` whose gradients are stored are drawn independently of the samples
    :math:`s` that estimate the gradient, so that a round evaluates both. It converges for smooth
    nonconvex sums, and linearly to the minimizer under the condition of Polyak and Łojasiewicz.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      batch: samples :math:`s`, and :math:`r`, of a step, each drawn without replacement.
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, doubly stochastic.

    Raises:
      ValueError: as for :class:`GTSAGA`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.ATCGTSAGA(0.03),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=800).normalized_error[-1] < 1e-8)
      True

    Reference:
      Xin, Khan & Kar 2022 (GT-SAGA), Algorithm 1.
    """

    def gradients_per_step(self, problem: object) -> float:
        # Of the samples of the estimate, and of those whose gradients are stored.
        return 2.0

    def init(self, problem: Problem, network: Graph) -> GTSAGAState:
        start = start_models(problem)
        mixing = weights_on(self.mixing, network)
        zero = jnp.zeros_like(start)
        return GTSAGAState(start, zero, zero, gradient_table(problem, start), mixing)

    def step(self, state: GTSAGAState, now: Round) -> GTSAGAState:
        everyone = Participants(None, now.available)
        batch = draw_batches(Uniform(self.batch), now, everyone, 1, draws=2)
        assert batch is not None
        assert isinstance(state.memory, GradientTable)
        estimates = batch.rows[0, :, 0]
        stored = batch.rows[1, :, 0]
        estimate, _ = saga_estimate(now.problem, state.memory, state.model, estimates)
        tracker = exchange_and_combine(now, state.tracker + estimate - state.estimate, state.mixing)
        moved = state.model - self.step_size(now.number) * tracker
        model = exchange_and_combine(now, moved, state.mixing)
        _, memory = saga_estimate(now.problem, state.memory, state.model, stored)
        return GTSAGAState(model, tracker, estimate, memory, state.mixing)
