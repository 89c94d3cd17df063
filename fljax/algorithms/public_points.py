"""Public samples that a server and its clients have in common, for learning from predictions."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import replace
from fljax.algorithms.round import Round
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer
from fljax.optimization.schedules import Schedule
from fljax.problems import NoRegularizer


def checked_points(argument: object) -> Any:
    """The public samples of an algorithm, ``[R, ...]``.

    Raises:
      TypeError, ValueError: no array of finite numbers, or an empty one.
    """
    points = checks.filled("public", argument)
    if np.ndim(points) < 2:
        raise ValueError(
            f"public must be samples, [points, ...], of the clients' shape, got {np.shape(points)}."
        )
    checks.finite("public", points)
    return points


def check_points(points: Any, problem: Any) -> None:
    """Raise ``ValueError`` for public samples of another shape or kind than the clients', and for
    networks that are normalized by the samples of a batch.
    """
    expected = tuple(problem.features.shape[2:])
    if np.shape(points)[1:] != expected:
        raise ValueError(
            f"public must be samples like the clients', [points, {', '.join(map(str, expected))}], "
            f"got shape {np.shape(points)}; of a problem with a feature map it is of the map's "
            "values."
        )
    kinds = [jnp.issubdtype(data.dtype, jnp.integer) for data in (points, problem.features)]
    if kinds[1] and not kinds[0]:
        raise ValueError(
            "the clients' samples are whole numbers, such as tokens, and public holds "
            f"{points.dtype}; give whole numbers."
        )
    if problem.mixes_samples:
        raise ValueError(
            "statistics of batch normalization are of clients' own samples, and this method also "
            "trains on public ones; normalize by groups or layers, or freeze the statistics, "
            "state='frozen'."
        )


def at_points(
    problem: Any, points: Array, targets: Array, weights: Float[Array, " batch"] | None = None
) -> Any:
    """The problem of the same clients, each with these samples instead of its own.

    Args:
      problem: of some clients.
      points: ``[B, ...]``.
      targets: ``[B, ...]``, with which a loss compares predictions.
      weights: ``[B]``; equal ones by default.
    """
    if weights is None:
        weights = jnp.full(len(points), 1 / len(points), problem.dtype)

    def of_all(data: Array) -> Array:
        return jnp.broadcast_to(data, (problem.clients, *data.shape))

    return replace(
        problem,
        features=of_all(jnp.asarray(points).astype(problem.features.dtype)),
        targets=of_all(targets),
        weights=of_all(weights),
        regularizer=NoRegularizer(),
        importance=None,
        statistics=None,
        test=None,
    )


def stepping(
    rate: Schedule | Optimizer, now: Round, model: Float[Array, "*batch dim"]
) -> tuple[Callable[[Array, Array, PyTree], tuple[Array, PyTree]], PyTree]:
    """The function ``(model, gradient, memory) -> (model, memory)`` of a step of this size or by
    this optimizer, and the memory before the first.
    """
    layouts = [now.problem.layout]
    if isinstance(rate, Optimizer):
        return functools.partial(_by_optimizer, rate, layouts), rate.init(model, layouts)
    size = rate(now.number)
    return (lambda model, gradient, memory: (model - size * gradient, memory)), ()


def _by_optimizer(
    optimizer: Optimizer, layouts: list[Layout], model: Array, gradient: Array, memory: PyTree
) -> tuple[Array, PyTree]:
    return optimizer.move(model, gradient, memory, layouts)


def passes_over(key: Array, count: int, size: int, steps: int) -> Int[Array, "steps size"]:
    """The batches of ``steps`` steps, in repeated passes over ``count`` samples in random order;
    the last batch of a pass is filled up with ``count``.
    """
    per_pass = -(-count // size)
    passes = -(-steps // per_pass)
    numbers = jnp.arange(count, dtype=jnp.int32)
    orders = jax.vmap(lambda key: jax.random.permutation(key, numbers))(
        jax.random.split(key, passes)
    )
    filled = jnp.pad(orders, ((0, 0), (0, per_pass * size - count)), constant_values=count)
    return filled.reshape(passes * per_pass, size)[:steps]
