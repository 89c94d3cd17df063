r"""MoTEF: BEER with momentum in the gradients that are tracked."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.beer import BEERState, TrackingByCopies
from fljax.algorithms.round import Round


@algorithm("MoTEF", "islamov2024", Needs(data="any", trains=True, compressed=False))
@module
class MoTEF(TrackingByCopies):
    r"""Momentum tracking with error feedback: BEER for small batches (MoTEF).

    .. math::

        x^{(n+1)}&=x^{(n)}+\gamma(A-I)h^{(n)}-\mu v^{(n)},&
        h^{(n+1)}&=h^{(n)}+Q(x^{(n+1)}-h^{(n)}) \\
        m^{(n+1)}&=\beta m^{(n)}+(1-\beta)f'(x^{(n+1)}) \\
        v^{(n+1)}&=v^{(n)}+\gamma(A-I)g^{(n)}+m^{(n+1)}-m^{(n)},&
        g^{(n+1)}&=g^{(n)}+Q(v^{(n+1)}-g^{(n)})

    from :math:`v^{(0)}=m^{(0)}=f'(x^{(0)})`, :math:`h^{(0)}=x^{(0)}` and :math:`g^{(0)}=0`, with
    the paper's :math:`\lambda=1-\beta`. Peers track each other's momentum and not their gradients:
    the noise of small batches is averaged over rounds before it is compressed and tracked, and the
    error that is left is that of all peers' batches together. Without momentum it is :class:`BEER`.

    Args:
      step_size: :math:`\mu`, a number or a schedule of the round, > 0.
      compression: :math:`Q`, an :class:`fljax.link.Compressor`.
      consensus_step_size: :math:`\gamma`, in (0, 1].
      momentum: :math:`\beta\in[0,1)`.
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      batches: the batches of the gradients (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      TypeError: a compression of another type.
      ValueError: a momentum or a step size outside its range, a compression that does not fit the
        models, weights that are not symmetric or do not fit the graph, batches that cannot be
        drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=8),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.MoTEF(
      ...         0.02, compression=fl.link.TopK(4), consensus_step_size=0.4, momentum=0.8
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=2000).normalized_error[-1] < 1e-8)
      True

    Reference:
      Islamov, Gao & Stich 2024, Algorithm 1.
    """

    momentum: Float[Array, ""] | float = field(default=0.9, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("momentum", self.momentum, at_least=0, below=1)

    def _estimate(self, state: BEERState, now: Round) -> Float[Array, "clients dim"]:
        gradient = self._step_gradient(now, state.model)
        averaged = self.momentum * state.estimate + (1 - self.momentum) * gradient
        return jnp.where(now.number > 1, averaged, gradient)
