"""Gradient steps of a client on its own data, and how far one sample can move them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax.problems import Problem

__all__ = ["descend", "descent_gap"]


def descend(
    gradient: Callable[[Array], Array],
    start: Float[Array, "clients dim"],
    step_size: Array,
    steps: int,
) -> Float[Array, "clients dim"]:
    """So many steps of gradient descent at every client."""

    def one(_: Array, model: Array) -> Array:
        return model - step_size * gradient(model)

    return jax.lax.fori_loop(0, steps, one, start)


def descent_gap(
    problem: Problem, step_size: Array, steps: int, gradient_bound: Array | float
) -> Float[Array, " clients"]:
    r"""How far one replaced sample moves a client's model in some gradient steps.

    :math:`2c_1\mu/D_k` for one step; :math:`\Delta_E` below for :math:`E` of them. Only the first
    step starts from a public point. After it two trajectories may meet any gradients of norm
    :math:`c_1`, and the regulariser acts on models that already differ: with
    :math:`R'(w)=aw+s(w)`, the values of :math:`s` at most :math:`b` apart,
    :math:`\Delta_{e+1}=|1-\mu\tfrac\lambda Ka|\Delta_e+2c_1\mu+\mu\tfrac\lambda Kb`.
    """
    slope, jump = problem.regulariser.growth(problem.dim)
    share = step_size * problem.share
    gap = 2 * gradient_bound * step_size * problem.influence
    for _ in range(steps - 1):
        gap = jnp.abs(1 - share * slope) * gap + 2 * gradient_bound * step_size + share * jump
    return gap
