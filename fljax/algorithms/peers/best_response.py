"""The minimizer of a node's loss plus a penalty on the distances from its neighbors' models."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax.link.aggregation import sorted_median, weighted_median
from fljax.problems import NormPenalty, Penalty, Problem
from fljax.problems.solvers import factorize, prox

#: Iterations of the prox of a smooth loss without closed form, each warm-started from the last.
PROX_ITERATIONS = 10


def best_response(
    problem: Problem,
    penalty: Penalty,
    messages: Float[Array, "clients slots dim"],
    strengths: Float[Array, "clients slots"],
    iterations: int = 100,
) -> Float[Array, "clients dim"]:
    r"""Return :math:`\arg\min_wf_k(w)+\sum_lc_{kl}\,\phi(w_l-w)` for every client: (170),
    corrected.

    (Jung's penalty is of :math:`w_l-w_k`, which does not depend on the minimization variable, and
    without :math:`\alpha`.) It is solved by ADMM with a copy of :math:`w` for each message. The
    force of a message is the dual variable, so that a distant message causes no loss of precision.
    It starts at the coordinate-wise median of the messages and uses their distances from it as the
    scale; both are robust to arbitrary values of a minority of messages.

    Without a loss it is the weighted mean (:math:`\phi` the squared norm), the geometric median
    (the norm, (175)) or the coordinate-wise median (the sum of absolute values).

    Args:
      problem: the clients' problem.
      penalty: :math:`\phi`, with a proximal operator.
      messages: ``[K, S, D]``; messages that are not finite are ignored.
      strengths: ``[K, S]``, :math:`c_{kl}=\alpha a_{kl}\ge0`; zero in slots without a message.
      iterations: number of ADMM iterations.

    Reference:
      Jung 2025, (170), (175), (176).
    """
    finite = jnp.all(jnp.isfinite(messages), axis=2)
    strengths = jnp.where(finite, strengths, 0)
    present = strengths > 0
    messages = jnp.where(present[..., None], messages, 0)
    start = jnp.where(jnp.any(present, axis=1)[:, None], weighted_median(messages, strengths), 0)
    # A prox with this step moves a point about as far as messages are apart: |u| of a norm.
    differences = messages - start[:, None]
    value = penalty.value(differences)
    square = jnp.sum(differences**2, axis=2)
    distinct = present & (value > 0)
    ratio = jnp.where(distinct, square / jnp.where(distinct, value, 1), jnp.inf)
    count = jnp.sum(distinct, axis=1, dtype=jnp.int32)
    step = jnp.where(count > 0, sorted_median(jnp.sort(ratio, axis=1)[..., None], count)[:, 0], 1)
    steps = jnp.broadcast_to(step[:, None], present.shape)
    weights = strengths / step[:, None]
    total = jnp.sum(weights, axis=1)
    shares = (weights / jnp.where(total > 0, total, 1)[:, None])[..., None]
    factor = factorize(problem, total)
    inner = iterations if problem.loss.curvature is None else PROX_ITERATIONS

    def iterate(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        w, duals = state
        gap = messages - w[:, None] + duals
        new = jnp.where(present[..., None], _prox_change(penalty, gap, steps), 0)
        center = w + jnp.sum(shares * (2 * new - duals), axis=1)
        return prox(problem, factor, center, w, inner), new

    return jax.lax.fori_loop(0, iterations, iterate, (start, jnp.zeros_like(messages)))[0]


def _prox_change(penalty: Penalty, gap: Array, steps: Array) -> Array:
    """Return the change by the prox; for a norm, without a difference of two large numbers."""
    if isinstance(penalty, NormPenalty):
        return penalty.dual_projection(gap, steps)
    return gap - penalty.prox(gap, steps)
