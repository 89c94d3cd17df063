r"""BEER: gradient tracking whose models and trackers are sent as compressed differences."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Compressing, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class Copies(NamedTuple):
    """What all neighbors know of each peer's vector."""

    vector: Array  # [K, D]  h_k
    disagreement: Array  # [K, D]  sum_l a_kl (h_k - h_l)


class BEERState(NamedTuple):
    """State of BEER between rounds."""

    model: Array  # [K, D]  x_k
    tracker: Array  # [K, D]  v_k
    estimate: Array  # [K, D]  the gradient that is in the tracker
    of_models: Copies  # h_k
    of_trackers: Copies  # g_k
    weights: Combination  # A


@module
class TrackingByCopies(Compressing):
    """Base class of BEER and its variants with other estimates of gradients."""

    def init(self, problem: Problem | Stream, network: Graph) -> BEERState:
        start = start_models(problem)
        zero = jnp.zeros_like(start)  # before it the first estimate is all change
        weights = weights_on(self.mixing, network)
        of_models = Copies(start, start - weights(start))
        return BEERState(start, zero, zero, of_models, Copies(zero, zero), weights)

    def _estimate(self, state: BEERState, now: Round) -> Float[Array, "clients dim"]:
        """Return the estimate of each peer's gradient at its model."""
        raise NotImplementedError

    def step(self, state: BEERState, now: Round) -> BEERState:
        gossip = self.consensus_step_size
        model, tracker, estimate, of_models, of_trackers, weights = state
        new = self._estimate(state, now)
        tracker = tracker - gossip * of_trackers.disagreement + new - estimate
        # The first tracker is not sent: the copies of trackers are zero until after the first step.
        receivers = jnp.where(now.number > 1, now.network.neighbor_counts(), 0)
        of_trackers = self._updated(now, tracker, of_trackers, weights, receivers)
        model = model - gossip * of_models.disagreement - self.step_size(now.number) * tracker
        of_models = self._updated(now, model, of_models, weights)
        return BEERState(model, tracker, new, of_models, of_trackers, weights)

    def _updated(
        self,
        now: Round,
        vector: Float[Array, "clients dim"],
        copies: Copies,
        weights: Combination,
        receivers: Array | None = None,
    ) -> Copies:
        """Return the copies after each peer has sent the compressed difference from its copy."""
        sent, inbox = now.link.exchange(
            vector - copies.vector, receivers=receivers, compression=self.compression
        )
        is_sent = True if receivers is None else receivers[:, None] > 0
        change = inbox.disagreement(over=weights)
        return Copies(
            copies.vector + jnp.where(is_sent, sent, 0),
            copies.disagreement + jnp.where(is_sent, change, 0),
        )


@algorithm("BEER", "zhao2022", Needs(data="any", trains=True, compressed=False))
@module
class BEER(TrackingByCopies):
    r"""Gradient tracking by compressed differences from copies of models and trackers (BEER).

    .. math::

        x^{(n+1)}&=x^{(n)}+\gamma(A-I)h^{(n)}-\mu v^{(n)},&
        h^{(n+1)}&=h^{(n)}+Q(x^{(n+1)}-h^{(n)}) \\
        v^{(n+1)}&=v^{(n)}+\gamma(A-I)g^{(n)}+f'(x^{(n+1)})-f'(x^{(n)}),&
        g^{(n+1)}&=g^{(n)}+Q(v^{(n+1)}-g^{(n)})

    from :math:`v^{(0)}=f'(x^{(0)})` and :math:`g^{(0)}=0`. Copies of models start at the initial
    models, which all know; in the paper at zero, which is the same for models that start there. A
    round here is the second line of the paper's iteration before, then the first; it has two
    messages, of a model and a tracker.
    Unlike :class:`ChocoSGD` it converges to the optimum with a constant step size however different
    the peers' data are: the squared gradient norm falls as :math:`1/n`, linearly under the
    Polyak-Łojasiewicz condition, if :math:`Q` is a contraction (top-k, scaled signs, quantization
    to enough bits) and :math:`\gamma` and :math:`\mu` are small enough. The paper's noise is of
    large batches; :class:`MoTEF` copes with small ones.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      compression: :math:`Q`, an :class:`fljax.link.Compressor`.
      consensus_step_size: :math:`\gamma`, in (0, 1].
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      batches: the batches of the gradients (:mod:`fljax.batches`), the same when a gradient is
        added and, in the next round, subtracted; all of a client's samples by default.

    Raises:
      TypeError: a compression of another type.
      ValueError: a step size outside its range, a compression that does not fit the models, weights
        that are not symmetric or do not fit the graph, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=8),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.BEER(
      ...         0.05, compression=fl.link.TopK(4), consensus_step_size=0.4
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=1000).normalized_error[-1] < 1e-8)
      True

    Reference:
      Zhao, Li, Li, Richtárik & Chi 2022, Algorithm 1.
    """

    def _estimate(self, state: BEERState, now: Round) -> Float[Array, "clients dim"]:
        return self._step_gradient(now, state.model)
