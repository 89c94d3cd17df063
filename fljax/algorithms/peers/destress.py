"""DESTRESS: recursive gradients of randomly active peers, mixed several times (Li et al. 2022)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import sampled_problem
from fljax.algorithms.peers.gradient_tracking import exchange_and_combine
from fljax.algorithms.peers.gt_saga import SmallBatchPeer
from fljax.algorithms.peers.peer_algorithm import weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.batches import Uniform


class DESTRESSState(NamedTuple):
    """State of DESTRESS between rounds."""

    model: Array  # [K, D]  u_k
    direction: Array  # [K, D]  v_k
    tracker: Array  # [K, D]  s_k, the network's gradient as client k knew it last
    slope: Array  # [K, D]  f_k' where it did
    mixing: Combination  # the doubly stochastic weights


@algorithm("DESTRESS", "li2022destress", Needs(directed=True, compares_samples=True))
@module
class DESTRESS(SmallBatchPeer):
    r"""Decentralized stochastic recursive gradients, with random activation and extra mixing.

    With the mixing :math:`\mathcal W`, which is ``exchanges`` combinations in a row,

    .. math::

        u^{(n)}&=\mathcal W\big(u^{(n-1)}-\mu v^{(n-1)}\big) \\
        v^{(n)}&=\mathcal W\Big(v_k^{(n-1)}
            +\tfrac{b_k}p\big(f_{k,s}'(u_k^{(n)})-f_{k,s}'(u_k^{(n-1)})\big)\Big)_k

    where a client is active, :math:`b_k=1`, with probability :math:`p`, for which alone it computes
    gradients. In every :math:`S`-th round the trackers are updated by full gradients, and
    directions restart from them,

    .. math::

        s^{(n)}=\mathcal W\big(s_k+f_k'(u_k^{(n)})-f_k'(u_k^{(n-S)})\big)_k,\qquad v^{(n)}=s^{(n)}.

    At the start :math:`u_k` is the mean of the initial models, and :math:`s_k=v_k` the mean
    gradient at it; as in the source, both are known to all clients before the first round.
    :class:`GTSARAH` tracks the recursive gradients themselves, all clients compute in every round,
    and it combines once. With as many samples and exchanges as theory asks for it attains, for
    nonconvex sums, the optimal number of sample gradients.

    A round of the source's outer loop is :math:`S` rounds here. The source has different numbers of
    combinations in its two loops, accelerated by Chebyshev polynomials; here all are plain and of
    the same number. The models that are judged are the last ones instead of a random one.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      mixing: the weights, as in :class:`Consensus`, doubly stochastic.
      period: :math:`S`, rounds from one full gradient to the next, >= 1.
      batch: samples :math:`s` of a step, drawn without replacement, whose gradients are averaged.
      probability: :math:`p\in(0,1]`.
      exchanges: combinations in a row, >= 1; a round has twice as many messages over every edge.

    Raises:
      ValueError: weights that are not doubly stochastic or do not fit the graph; a probability
        outside (0, 1]; a batch larger than every client's data; a period or exchanges below 1.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DESTRESS(0.05, period=10, probability=0.5, exchanges=2),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=400).normalized_error[-1] < 1e-8)
      True

    Reference:
      Li, Li & Chi 2022, Algorithm 1.
    """

    counts_work = False

    period: int = static(kw_only=True)
    probability: Float[Array, ""] | float = field(default=1.0, kw_only=True)
    exchanges: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("period", self.period)
        checks.count("exchanges", self.exchanges)
        hint = "At 0 no client would ever be active."
        checks.interval("probability", self.probability, above=0, at_most=1, hint=hint)

    def init(self, problem: Problem, network: Graph) -> DESTRESSState:
        start = start_models(problem)
        start = jnp.broadcast_to(jnp.mean(start, axis=0), start.shape)
        gradient = problem.gradient(start)
        tracker = jnp.broadcast_to(jnp.mean(gradient, axis=0), gradient.shape)
        return DESTRESSState(start, tracker, tracker, gradient, weights_on(self.mixing, network))

    def step(self, state: DESTRESSState, now: Round) -> DESTRESSState:
        before = state.model
        model = self._mixed(now, before - self.step_size(now.number) * state.direction, state)

        def full_gradient() -> tuple[Array, Array]:
            gradient = now.problem.gradient(model)
            return gradient, state.tracker + gradient - state.slope

        def recursive_gradient() -> tuple[Array, Array]:
            part = sampled_problem(Uniform(self.batch), now)
            key = now.key("algorithm")
            shape = (len(model), 1)
            active = jax.random.uniform(key, shape, model.dtype) < self.probability
            change = (part.gradient(model) - part.gradient(before)) / self.probability
            return state.slope, state.direction + jnp.where(active, change, 0)

        # Rounds have the same number in all runs of a study: only these compute the full gradient.
        restarts = now.number % self.period == 0
        gradient, message = jax.lax.cond(restarts, full_gradient, recursive_gradient)
        direction = self._mixed(now, message, state)
        tracker = jnp.where(restarts, direction, state.tracker)
        return DESTRESSState(model, direction, tracker, gradient, state.mixing)

    def _mixed(
        self, now: Round, message: Float[Array, "clients dim"], state: DESTRESSState
    ) -> Float[Array, "clients dim"]:
        for _ in range(self.exchanges):
            message = exchange_and_combine(now, message, state.mixing)
        return message
