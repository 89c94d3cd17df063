"""What methods with one server share: who takes part, and gradient steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax.channel import Channel
from fljax.participation import subset
from fljax.problems import Problem


def check_participants(count: int | None, problem: Problem) -> None:
    """Raise ``ValueError`` where the server draws more clients than there are."""
    if count is not None and count > problem.clients:
        raise ValueError(
            f"clients_per_round must be at most the {problem.clients} clients of the problem, got "
            f"{count}."
        )


def participants(
    problem: Problem, channel: Channel, count: int | None
) -> tuple[Int[Array, " chosen"], Bool[Array, " chosen"], Problem]:
    """The clients that the server draws, under one seed the same for every algorithm.

    Args:
      problem: of all clients.
      channel: of this round.
      count: how many; all by default.

    Returns:
      The clients, which of them are there, and their part of the problem.
    """
    if count is None:
        chosen = jnp.arange(problem.clients, dtype=jnp.int32)
        return chosen, channel.available, problem
    chosen = subset(channel.key("participation"), problem.clients, count)
    return chosen, channel.available[chosen], problem.take(chosen)


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
