r"""DLM: decentralized ADMM with a gradient step instead of the minimization (DiNNO has several)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.peer_algorithm import largest_curvature
from fljax.algorithms.peers.zcdp_nfl import ZCDPNFL
from fljax.graphs import Graph
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream


@algorithm("DLM", "ling2015", Needs(), {"Decentralized linearized ADMM": ""})
@module
class DLM(ZCDPNFL):
    r"""Decentralized linearized ADMM: one gradient step instead of ADMM's minimization.

    .. math::

        w_k^{(n)} &= w_k^{(n-1)}-\frac{f_k'(w_k^{(n-1)})+\gamma_k
            +c\sum_{l\in\mathcal N_k}(w_k^{(n-1)}-w_l^{(n-1)})}{2c|\mathcal N_k|+\rho} \\
        \gamma_k &\leftarrow \gamma_k+c\sum_{l\in\mathcal N_k}(w_k^{(n)}-w_l^{(n)})

    which is identical to zCDP-NFL without privacy and with a constant step size: ``penalty`` is the
    :math:`c` of the paper, ``step_size`` its :math:`1/\rho`. With :math:`L_+` the sum of the degree
    matrix and the adjacency matrix, the two lines are a forward-backward step in the metric
    :math:`\rho I+cL_+`, so they converge if that exceeds half of the gradients' Lipschitz constant
    :math:`L`: on every network for ``step_size`` below :math:`2/L`.

    Args:
      penalty: :math:`c>0`.
      step_size: :math:`1/\rho`, a number or a schedule of the round, > 0.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.DLM(penalty=1.0, step_size=0.3),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=300).normalized_error[-1] < 1e-8)
      True

    Reference:
      Ling, Shi, Wu & Ribeiro 2015, Algorithm 1.
    """

    penalty: Float[Array, ""] | float
    step_size: Schedule = field(converter=as_schedule)
    stability = "2 / L, whatever the network"

    def step_bound(
        self, problem: Problem | Stream, network: Graph | None, moments: FeatureMoments | None
    ) -> Array | None:
        """Return a sufficient bound, which is conservative for strong coupling."""
        largest = largest_curvature(problem)
        return None if largest is None else 2 / jnp.max(largest)
