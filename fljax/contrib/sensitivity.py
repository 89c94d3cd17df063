r"""Effect of errors in labels on coupled models (Jung 2025, sections 8.2.1 and 8.2.2).

The solution of GTVMin with a squared penalty is linear in the labels. The effect of an error in the
labels is therefore known exactly, for any cause: noise, a faulty sensor, an attacker. The
bounds of the source state which properties of data, network and coupling make it small: a large
:math:`\lambda_2\alpha`, and features with a small :math:`\lambda_{\max}/\bar\lambda_{\min}`. Among
(164)-(169), the bounds on the two parts of the estimation error are in
:mod:`fljax.theory.networks`: (165) is :func:`~fljax.theory.networks.deviation_bound`, (169)
:func:`~fljax.theory.networks.common_error_bound`.

Shapes: ``K`` clients, ``N`` samples, ``D`` parameters. All functions are traceable.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax.graphs import Graph
from fljax.problems import GTVMin, Problem
from fljax.problems.solvers import is_quadratic
from fljax.theory import gtvmin_theory, network_rates


@checked
def label_shift(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    change: Float[Array, "clients samples"],
) -> Float[Array, "clients dim"]:
    r"""Exact change of GTVMin's solution for a change of labels, (163).

    .. math:: \hat w(y+\varepsilon)-\hat w(y)=-\tfrac12Q^{-1}n,\qquad
        n^{(k)}=-\tfrac2{m_k}X^{(k)\top}\varepsilon^{(k)}

    (Jung 2025 prints :math:`n` without :math:`-2/m_k`). It depends neither on the labels themselves
    nor on a model that generates them.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``.
      change: :math:`\varepsilon`, ``[K, N]``; ignored on padding.

    Raises:
      ValueError: an unsupported problem, a solution that is not unique, a network that does not
        match the clients, a negative coupling, a change of the wrong shape.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.Problem(
      ...     jnp.ones((3, 1, 1)), jnp.zeros((3, 1)), fl.problems.LeastSquares()
      ... )
      >>> shift = label_shift(problem, fl.graphs.path(3), 1.0, jnp.array([[8.0], [0.0], [0.0]]))
      >>> shift[:, 0].round(4).tolist()  # a neighbor's neighbor feels it, too
      [5.0, 2.0, 1.0]

    Reference:
      Jung 2025, section 8.2.1, (163).
    """
    change = _checked(problem, network, change)
    problem = replace(problem, targets=change, statistics=None)
    return GTVMin(problem, network, gtvmin_theory.coupling_of(problem, coupling)).solve()


class LabelShiftBound(NamedTuple):
    """Bounds on the sum of squared changes of models."""

    sharp: Array  # []  with |eps|^2 / m_k of each client
    printed: Array  # []  with |eps|^2, as the source has it: true, too, and looser


@checked
def label_shift_bound(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    change: Float[Array, "clients samples"],
) -> LabelShiftBound:
    r"""Bound on :func:`label_shift`, Proposition 8.1.

    .. math:: \sum_k\|\hat w_k-\tilde w_k\|^2\le\frac{\lambda_{\max}(1+\rho^2)^2}
        {[\min\{\lambda_2\alpha\rho^2,\bar\lambda_{\min}/2\}]^2}
        \sum_k\frac1{m_k}\|\varepsilon^{(k)}\|^2,\qquad\rho=\bar\lambda_{\min}/(4\lambda_{\max})

    Its proof has :math:`1/m_k`, which the source omits. Infinite if Proposition 5.2 is vacuous
    (:func:`fljax.theory.network_rates.smallest_bound`), whose looseness enters squared.

    Args: as for :func:`label_shift`.

    Raises:
      ValueError: as for that function, except for solutions that are not unique.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> graph, change = fl.graphs.ring(4), jnp.full((4, 9), 0.1)
      >>> moved = fl.contrib.label_shift(problem, graph, 1.0, change)
      >>> bound = fl.contrib.label_shift_bound(problem, graph, 1.0, change)
      >>> bool((moved**2).sum() < bound.sharp < bound.printed)
      True

    Reference:
      Jung 2025, Proposition 8.1.
    """
    change = _checked(problem, network, change)
    return _label_shift_bound(
        problem, network, gtvmin_theory.coupling_of(problem, coupling), change
    )


@jax.jit
def _label_shift_bound(
    problem: Problem, network: Graph, coupling: Array, change: Array
) -> LabelShiftBound:
    least = network_rates.smallest_bound(problem, network, coupling)
    gain = gtvmin_theory.divided(gtvmin_theory.curvature(problem).largest, least**2)
    weights = jnp.asarray(problem.weights)
    real = jnp.where(weights > 0, change, 0)
    return LabelShiftBound(gain * jnp.sum(weights * real**2), gain * jnp.sum(real**2))


class EstimationError(NamedTuple):
    r"""The two parts of :math:`\hat w_k-\bar w`, which are orthogonal as stacked vectors."""

    deviation: Array  # [K, D]  from the mean of the models, \tilde w_k
    common: Array  # [D]  of the mean of the models, \bar c - \bar w

    @property
    def squared(self) -> Float[Array, ""]:
        r""":math:`\sum_k\|\hat w_k-\bar w\|^2`, as the sum over both parts."""
        return jnp.sum(self.deviation**2) + len(self.deviation) * jnp.sum(self.common**2)


@checked
def estimation_error(
    models: Float[Array, "clients dim"], truth: Float[Array, " dim"]
) -> EstimationError:
    r"""Decompose the errors of models that estimate a common one into deviations and common error.

    Args:
      models: :math:`\hat w`, ``[K, D]``.
      truth: :math:`\bar w`, ``[D]``.

    Raises:
      ValueError: shapes that do not match.

    Example:
      >>> import jax.numpy as jnp
      >>> error = estimation_error(jnp.array([[3.0], [5.0]]), jnp.array([1.0]))
      >>> error.deviation[:, 0].tolist(), error.common.tolist(), float(error.squared)
      ([-1.0, 1.0], [3.0], 20.0)

    Reference:
      Jung 2025, (61), (62) and section 8.2.2.
    """
    checks.finite("models", models)
    checks.finite("truth", truth)
    models = jnp.asarray(models)
    truth = jnp.asarray(truth)
    if models.ndim != 2 or truth.shape != models.shape[1:]:
        raise ValueError(
            "models must be [clients, parameters] and truth one of them, got shapes "
            f"{models.shape} and {truth.shape}."
        )
    mean = jnp.mean(models, axis=0)
    return EstimationError(models - mean[None], mean - truth)


def _checked(problem: Problem, network: Graph, change: Array) -> Array:
    gtvmin_theory.check_network(problem, network)
    if not is_quadratic(problem) or problem.clip is not None:
        raise ValueError(
            "solutions are linear in the labels for a squared loss with a squared regularizer, or "
            "none, and no clip only."
        )
    if np.shape(change) != np.shape(problem.targets):
        raise ValueError(
            f"change must be one for each label, of shape {np.shape(problem.targets)}, got shape "
            f"{np.shape(change)}."
        )
    checks.finite("change", change)
    return jnp.asarray(change, problem.dtype)
