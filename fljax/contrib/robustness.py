r"""Sensitivity of a node's update to the messages of its neighbors (Jung 2025, section 8.2.3).

It depends on two choices. With the squared penalty a node applies the proximal operator of its
loss, which contracts changes of its messages by
:func:`fljax.theory.network_rates.fedrelax_factors`, (174): strongly convex losses, small degrees
and a small coupling make it robust, whereas statistical accuracy would require a large coupling.
With the norm as penalty (``FedRelax(coupling, penalty=fl.problems.Norm())``) the influence of a
message is bounded by the weight of its edge, however far away it is: a node without labels takes
the geometric median, which (176) characterizes, and which stays bounded until half of the weight is
corrupted.

Shapes: ``K`` clients, ``M`` messages, ``D`` parameters. All functions are traceable.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.linalg import norm
from fljax.graphs import Graph
from fljax.simulation.scenario import Simulation
from fljax.theory.operators import operator


@checked
def robustness_ratio(
    simulation: Simulation,
    models: Float[Array, "clients dim"],
    perturbed: Float[Array, "clients dim"],
) -> Float[Array, " clients"]:
    r"""Ratio of the change of a node's update to the change of the mean of its messages, (173).

    .. math:: \frac{\|\mathcal F_k(\tilde w)-\mathcal F_k(w)\|}{\|\tilde h_k-h_k\|},\qquad
        h_k=\frac1{d_k}\sum_la_{kl}w_l

    For FedRelax with the squared penalty, :math:`\mathcal F_k` is the prox of the node's loss at
    :math:`h_k`, and the ratio is at most (174)
    (:func:`fljax.theory.network_rates.fedrelax_factors`), which is attained. With other penalties
    the denominator is the same, so that penalties can be compared; if the influence of a message is
    bounded, the ratio goes to zero as the message goes to infinity.

    Args:
      simulation: a simulation of peers on a fixed graph.
      models: :math:`w`, ``[K, D]``.
      perturbed: :math:`\tilde w`, ``[K, D]``.

    Returns:
      ``[K]``; NaN for a node whose neighbors' mean does not change.

    Raises:
      ValueError: models of the wrong shape, a simulation without a fixed graph of peers.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> from fljax.theory import network_rates
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedRelax(0.5), fl.graphs.ring(5))
      >>> zero = jnp.zeros((5, 2))
      >>> ratio = robustness_ratio(simulation, zero, zero.at[0].set(1e3))
      >>> bound = network_rates.fedrelax_factors(problem, simulation.network, 0.5)
      >>> [bool(r <= most) for r, most in zip(ratio, bound)]  # nodes 1 and 4 receive it
      [False, True, False, False, True]

    Reference:
      Jung 2025, (173).
    """
    checks.finite("models", models)
    checks.finite("perturbed", perturbed)
    graph = simulation.network
    if not isinstance(graph, Graph):
        raise ValueError(
            "the robustness of an update concerns messages of neighbors; give the simulation a "
            f"graph as network=, got {checks.shown(graph)}."
        )
    shape = (simulation.problem.clients, simulation.problem.dim)
    for name, value in (("models", models), ("perturbed", perturbed)):
        if np.shape(value) != shape:
            raise ValueError(f"{name} must be of shape {shape}, got shape {np.shape(value)}.")
    first, second = (jnp.asarray(value, simulation.problem.dtype) for value in (models, perturbed))
    update = operator(simulation)
    degree = jnp.asarray(graph.degree)
    moved = norm(graph.neighbor_sum(second - first)) / jnp.where(degree > 0, degree, 1)
    return jnp.where(
        moved > 0, norm(update(second) - update(first)) / jnp.where(moved > 0, moved, 1), jnp.nan
    )


@checked
def median_residual(
    point: Float[Array, " dim"],
    messages: Float[Array, "messages dim"],
    weights: Float[Array, " messages"] | None = None,
) -> Float[Array, ""]:
    r"""Residual of the geometric median of messages, zero at the median only, (176).

    .. math:: \min_{g}\Big\|\sum_mw_mg_m\Big\|\Big/\sum_mw_m,\qquad
        g_m=\frac{x_m-v}{\|x_m-v\|}\ \text{ if } x_m\ne v,\ \text{ else } \|g_m\|\le1

    The norm of the smallest subgradient of the mean distance at the point, at most one. A message
    is taken to coincide with the point if they are equal up to rounding.

    Args:
      point: :math:`v`, ``[D]``.
      messages: :math:`x_m`, ``[M, D]``.
      weights: :math:`w_m\ge0`, ``[M]``; one by default.

    Raises:
      ValueError: shapes that do not match, negative weights.

    Example:
      >>> import jax.numpy as jnp
      >>> messages = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])
      >>> float(median_residual(jnp.zeros(2), messages))
      0.0
      >>> round(float(median_residual(jnp.array([0.0, 0.9]), messages)), 2)
      0.47

    Reference:
      Jung 2025, (176), of which the sign is misprinted and does not matter.
    """
    checks.finite("point", point)
    checks.finite("messages", messages)
    count, dim = _messages_shape(messages)
    if np.shape(point) != (dim,):
        raise ValueError(f"point must be of the messages' {dim} numbers, got {np.shape(point)}.")
    weights = jnp.ones(count) if weights is None else weights
    if np.shape(weights) != (count,):
        raise ValueError(
            f"weights must be one for each of the {count} messages, got shape {np.shape(weights)}."
        )
    checks.nonnegative("weights", weights)
    messages = jnp.asarray(messages)
    point = jnp.asarray(point, messages.dtype)
    differences = messages - point[None]
    size = norm(differences)
    weights = jnp.asarray(weights, differences.dtype)
    rounding = 64 * jnp.finfo(size.dtype).eps * (norm(messages) + norm(point)[None])
    apart_from_point = size > rounding
    unit = differences / jnp.where(apart_from_point, size, 1)[:, None]
    force = norm(jnp.sum(jnp.where(apart_from_point, weights, 0)[:, None] * unit, axis=0))
    residual = force - jnp.sum(jnp.where(apart_from_point, 0, weights))
    return jnp.maximum(residual, 0) / jnp.sum(weights)


def _messages_shape(messages: Array) -> tuple[int, int]:
    if np.ndim(messages) != 2 or not len(messages):
        raise ValueError(
            f"messages must be [messages, parameters], one at least, got {np.shape(messages)}."
        )
    return np.shape(messages)[0], np.shape(messages)[1]
