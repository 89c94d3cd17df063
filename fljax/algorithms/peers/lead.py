r"""LEAD: a primal-dual method with compressed messages, which is NIDS without compression."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Compressing, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class LEADState(NamedTuple):
    """State of LEAD and CEDAS between rounds."""

    model: Array  # [K, D]  x_k
    dual: Array  # [K, D]  d_k
    copy: Array  # [K, D]  h_k, as all neighbors know it
    copies_disagreement: Array  # [K, D]  sum_l a_kl (h_k - h_l)
    weights: Combination  # A


@module
class CompressedPrimalDual(Compressing):
    """Base class of LEAD and CEDAS, which differ by the scale of the dual variable.

    Args:
      copy_step_size: by how much of the compressed difference a copy changes, in (0, 1].
    """

    copy_step_size: Float[Array, ""] | float = field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("copy_step_size", self.copy_step_size, above=0, at_most=1)

    def init(self, problem: Problem | Stream, network: Graph) -> LEADState:
        start = start_models(problem)
        zero = jnp.zeros_like(start)
        weights = weights_on(self.mixing, network)
        return LEADState(start, zero, start, start - weights(start), weights)

    def _dual_scale(self, step: Array) -> Array | float:
        """Return the factor of the dual variable in a step."""
        raise NotImplementedError

    def step(self, state: LEADState, now: Round) -> LEADState:
        model, dual, copy, copies_disagreement, weights = state
        step = self.step_size(now.number)
        scale = self._dual_scale(step)
        moved = model - step * self._step_gradient(now, model)
        # The first round is a gradient step without messages.
        is_sent = now.number > 1
        receivers = jnp.where(is_sent, now.network.neighbor_counts(), 0)
        sent, inbox = now.link.exchange(
            moved - scale * dual - copy, receivers=receivers, compression=self.compression
        )
        change = jnp.where(is_sent, inbox.disagreement(over=weights), 0)
        disagreement = (
            copies_disagreement + change
        )  # of the messages as all neighbors reconstruct them
        dual = dual + jnp.where(is_sent, self.consensus_step_size / (2 * scale) * disagreement, 0)
        return LEADState(
            moved - scale * dual,
            dual,
            copy + self.copy_step_size * jnp.where(is_sent, sent, 0),
            copies_disagreement + self.copy_step_size * change,
            weights,
        )


@algorithm("LEAD", "liu2021lead", Needs(data="any", trains=True, compressed=False))
@module
class LEAD(CompressedPrimalDual):
    r"""Linearly convergent decentralized optimization with compressed messages (LEAD).

    .. math::

        y^{(n)}&=x^{(n)}-\mu f'(x^{(n)})-\mu d^{(n)} \\
        \hat y^{(n)}&=h^{(n)}+Q(y^{(n)}-h^{(n)}),\qquad
        h^{(n+1)}=h^{(n)}+\alpha Q(y^{(n)}-h^{(n)}) \\
        d^{(n+1)}&=d^{(n)}+\tfrac\gamma{2\mu}(I-A)\hat y^{(n)} \\
        x^{(n+1)}&=x^{(n)}-\mu f'(x^{(n)})-\mu d^{(n+1)}

    from :math:`x^{(1)}=x^{(0)}-\mu f'(x^{(0)})` without a message, :math:`d^{(1)}=0`, and
    :math:`h^{(1)}=x^{(0)}`, which all know. The compression acts on differences that vanish, and
    its error on the mean of all models is zero, since :math:`d` sums to zero over the network. With
    a constant step size it converges linearly to the minimizer of strongly convex objectives if
    :math:`Q` is unbiased (:class:`~fljax.link.Quantize`, :class:`~fljax.link.RandomK`) and
    :math:`\gamma` and :math:`\alpha` are small enough for its variance. Without compression and
    with :math:`\gamma=1` it is :class:`NIDS`, of smooth objectives.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      compression: :math:`Q`, an :class:`fljax.link.Compressor`, unbiased.
      consensus_step_size: :math:`\gamma`, in (0, 1].
      copy_step_size: :math:`\alpha`, in (0, 1]; 1/2 in the paper's experiments.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      TypeError: a compression of another type.
      ValueError: a step size outside its range, a compression that does not fit the models, weights
        that are not symmetric or do not fit the graph, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=8),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.LEAD(
      ...         0.2, compression=fl.link.Quantize(3), consensus_step_size=0.5
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Liu, Li, Wang, Tang & Yan 2021, Algorithm 1.
    """

    def _dual_scale(self, step: Array) -> Array | float:
        return step
