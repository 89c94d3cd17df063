"""Gradient steps of a client on its own data, and how far neighbouring data can move them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.streams import Stream

__all__ = ["check_batch", "descend", "descent_gap"]


def check_batch(batch: int | None, problem: Problem | Stream) -> None:
    """Raise ``ValueError`` for a batch that no client could fill."""
    if batch is not None and batch > problem.samples:
        raise ValueError(
            f"batch must be at most the {problem.samples} samples of the largest client, got "
            f"{batch}; leave it out for full batches."
        )


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
    problem: Problem, step_size: Array, steps: int, gap: Gap
) -> Float[Array, " clients"]:
    r"""How far apart neighbouring data take a client's model in some gradient steps.

    :math:`\Delta_1=\mu g` for one step, with :math:`g` the gap of gradients at one model;
    :math:`\Delta_E` below for :math:`E` of them. Only the first step starts from a public point.
    After it two trajectories may meet any gradients, :math:`G` apart at most, and the regulariser
    acts on models that already differ: with :math:`R'(w)=aw+s(w)`, the values of :math:`s` at most
    :math:`b` apart,
    :math:`\Delta_{e+1}=|1-\mu\tfrac\lambda Ka|\Delta_e+\mu G+\mu\tfrac\lambda Kb`.
    """
    slope, jump = problem.regulariser.growth(problem.dim)
    share = step_size * problem.share
    apart = step_size * gap.gradient
    for _ in range(steps - 1):
        apart = jnp.abs(1 - share * slope) * apart + step_size * gap.anywhere + share * jump
    return apart
