r"""CEDAS: compressed exact diffusion with step sizes that may fall."""

from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.lead import CompressedPrimalDual


@algorithm("CEDAS", "huang2023cedas", Needs(data="any", trains=True, compressed=False))
@module
class CEDAS(CompressedPrimalDual):
    r"""Compressed exact diffusion with adaptive step sizes (CEDAS).

    .. math::

        y^{(n)}&=x^{(n)}-\mu^{(n)}f'(x^{(n)})-d^{(n)} \\
        \hat y^{(n)}&=h^{(n)}+Q(y^{(n)}-h^{(n)}),\qquad
        h^{(n+1)}=h^{(n)}+\alpha Q(y^{(n)}-h^{(n)}) \\
        d^{(n+1)}&=d^{(n)}+\tfrac\gamma2(I-A)\hat y^{(n)} \\
        x^{(n+1)}&=x^{(n)}-\mu^{(n)}f'(x^{(n)})-d^{(n+1)}

    from :math:`x^{(1)}=x^{(0)}-\mu^{(1)}f'(x^{(0)})` without a message, :math:`d^{(1)}=0`, and
    :math:`h^{(1)}=x^{(0)}`, which all know. With a constant step size it is :class:`LEAD`, whose
    dual variable is :math:`d/\mu`. Here its scale does not depend on the step size, which may fall
    as :math:`1/n` for batches: after a transient, which is shorter than that of other compressed
    methods, the error is that of centralized stochastic gradient descent.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, an :class:`fljax.link.Compressor`, unbiased.
      consensus_step_size: :math:`\gamma`, in (0, 1].
      copy_step_size: :math:`\alpha`, in (0, 1].
      mixing: the weights :math:`A`, as in :class:`Consensus`, symmetric.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      TypeError: a compression of another type.
      ValueError: a step size outside its range, a compression that does not fit the models, weights
        that are not symmetric or do not fit the graph, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> algorithm = fl.algorithms.CEDAS(
      ...     0.2, compression=fl.link.TopK(2), consensus_step_size=0.3, copy_step_size=0.5
      ... )
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> simulation = fl.Simulation(
      ...     problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ... )
      >>> bool(fl.run(simulation, rounds=500).normalized_error[-1] < 1e-6)
      True

    Reference:
      Huang & Pu 2023, Algorithm 2.
    """

    def _dual_scale(self, step: Array) -> Array | float:
        return 1.0
