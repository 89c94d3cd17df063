"""Variance-reduced gradient tracking with all updates combined: GT-VR, and GT-SAGA of 2022."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.local_steps import drawn, sampled
from fljax.algorithms.peers.base import weights_on
from fljax.algorithms.peers.gradient_tracking import _combined
from fljax.algorithms.peers.gt_saga import Snapshot, State, _Tracking
from fljax.algorithms.peers.sample_gradients import Table, estimated, tabulated
from fljax.batches import Uniform
from fljax.graphs import Graph
from fljax.participation import Participants
from fljax.problems import Problem
from fljax.rounds import Round

__all__ = ["ATCGTSAGA", "GTVR"]


@module
class _Combined(_Tracking):
    """Base class of methods that combine models after a step, and trackers after an update."""

    def message_size(self, dim: int) -> int:
        """Return the size of a model, and of a tracker after it."""
        return dim

    def step(self, state: State, now: Round) -> State:
        ahead = state.model - self.step_size(now.number) * state.tracker
        model = _combined(now, ahead, state.mixing)
        estimate, memory = self._estimate(state.memory, model, now)
        tracker = _combined(now, state.tracker + estimate - state.estimate, state.mixing)
        return State(model, tracker, estimate, memory, state.mixing)


@algorithm("GT-VR", "jiang2023", Needs(directed=True))
@module
class GTVR(_Combined):
    r"""Gradient tracking with full gradients at random rounds, and all updates combined (GT-VR).

    .. math::

        w_k^{(n)}&=\sum_la_{kl}\big(w_l^{(n-1)}-\mu y_l^{(n-1)}\big),\qquad
            \tau_k\leftarrow w_k^{(n)}\text{ with probability }P \\
        g_k^{(n)}&=f_{k,s}'(w_k^{(n)})-f_{k,s}'(\tau_k)+f_k'(\tau_k) \\
        y_k^{(n)}&=\sum_la_{kl}\big(y_l^{(n-1)}+g_l^{(n)}-g_l^{(n-1)}\big)

    with :math:`\tau_k=w_k`, :math:`y_k=g_k=f_k'` at the start. Each client draws for itself whether
    it computes a full gradient in a round, with all others of its samples at :math:`\tau_k` kept in
    one vector: there is no round in which all wait, as there is in :class:`GTSVRG`, and no table,
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

    probability: Float[Array, ""] | float = field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        hint = "At 0 no client would ever compute a full gradient."
        _check.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def _begin(self, problem: Problem, start: Array) -> Snapshot:
        return Snapshot(start, problem.gradient(start))

    def _estimate(
        self, memory: Snapshot, model: Float[Array, "clients dim"], now: Round
    ) -> tuple[Float[Array, "clients dim"], Snapshot]:
        uniform = jax.random.uniform(now.key("algorithm"), (len(model), 1), now.problem.dtype)
        anew, whole = uniform < self.probability, now.problem.gradient(model)
        at, slope = (jnp.where(anew, *pair) for pair in zip((model, whole), memory, strict=True))
        part = sampled(Uniform(self.batch), now)
        return part.gradient(model) - part.gradient(at) + slope, Snapshot(at, slope)


@algorithm("ATC-GT-SAGA", "xin2022saga", Needs(directed=True))
@module
class ATCGTSAGA(_Combined):
    r"""GT-SAGA in the form of 2022, for nonconvex sums: all updates are combined.

    .. math::

        g_k^{(n)}&=f_{k,s}'(w_k^{(n-1)})-t_{k,s}+\frac1{D_k}\sum_jt_{k,j} \\
        y_k^{(n)}&=\sum_la_{kl}\big(y_l^{(n-1)}+g_l^{(n)}-g_l^{(n-1)}\big) \\
        w_k^{(n)}&=\sum_la_{kl}\big(w_l^{(n-1)}-\mu y_l^{(n)}\big),\qquad
            t_{k,r}\leftarrow f_{k,r}'(w_k^{(n-1)})

    with :math:`t_{k,j}=f_{k,j}'` and :math:`y_k=g_k=0` at the start. It differs from
    :class:`GTSAGA`, the form of 2020, in that models and trackers are combined after their updates,
    in two successive exchanges of a model's size, the first of which is of the trackers; and in
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

    def init(self, problem: Problem, network: Graph) -> State:
        start, mixing = start_models(problem), weights_on(self.mixing, network)
        none = jnp.zeros_like(start)
        return State(start, none, none, tabulated(problem, start), mixing)

    def step(self, state: State, now: Round) -> State:
        everyone = Participants(None, now.available)
        batch = drawn(Uniform(self.batch), now, everyone, 1, draws=2)
        assert batch is not None
        assert isinstance(state.memory, Table)
        estimates, stored = batch.rows[0, :, 0], batch.rows[1, :, 0]
        estimate, _ = estimated(now.problem, state.memory, state.model, estimates)
        tracker = _combined(now, state.tracker + estimate - state.estimate, state.mixing)
        ahead = state.model - self.step_size(now.number) * tracker
        model = _combined(now, ahead, state.mixing)
        _, memory = estimated(now.problem, state.memory, state.model, stored)
        return State(model, tracker, estimate, memory, state.mixing)
