"""Gradients of single samples, and the table of them that variance reduction stores."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax.problems import Problem


class GradientTable(NamedTuple):
    """Each client's stored gradients of its samples."""

    gradients: Array  # [K, N, D]  of each sample, at the model of its last batch
    #: [K, D]  of these, each with its sample's weight; updated, not summed again: its rounding
    #: errors grow by the square root of the rounds
    mean: Array


def sample_gradients_at(
    problem: Problem, model: Float[Array, "clients dim"], rows: Int[Array, "clients batch"]
) -> Float[Array, "clients batch dim"]:
    r"""Return the gradients of :math:`f_{k,j}=\ell(x_{k,j},y_{k,j};\cdot)+\tfrac\lambda KR` for
    some :math:`j`, at the client's model.
    """
    clients, batch = rows.shape
    clients_of_rows = jnp.repeat(jnp.arange(clients, dtype=jnp.int32), batch)
    single = problem.take(clients_of_rows, rows.reshape(-1, 1))  # a client of one sample, for each
    return single.gradient(jnp.repeat(model, batch, axis=0)).reshape(clients, batch, -1)


def gradient_table(problem: Problem, model: Float[Array, "clients dim"]) -> GradientTable:
    """Return the table of the gradients of all samples at one model."""
    rows = jnp.arange(problem.samples, dtype=jnp.int32)[None]
    rows = jnp.broadcast_to(rows, (problem.clients, problem.samples))
    return GradientTable(sample_gradients_at(problem, model, rows), problem.gradient(model))


def saga_estimate(
    problem: Problem,
    table: GradientTable,
    model: Float[Array, "clients dim"],
    rows: Int[Array, "clients batch"],
) -> tuple[Float[Array, "clients dim"], GradientTable]:
    r"""Return SAGA's estimate of each client's gradient, and the table updated on the batch.

    .. math::

        g_k=\frac1{|B|}\sum_{j\in B}\big(f_{k,j}'(w)-t_{k,j}\big)+\frac1{D_k}\sum_jt_{k,j}

    A client of weight zero has no sample that tells of it: of its objective only the regularizer's
    share is left, whose gradient is known.

    Args:
      problem: the clients' problem.
      table: :math:`t_{k,j}`.
      model: :math:`w`, of each client.
      rows: :math:`B`, without repetition; an index past the last sample stands for no sample.

    Reference:
      Defazio, Bach and Lacoste-Julien 2014, (1).
    """
    weights = jnp.asarray(problem.weights)
    total = jnp.sum(weights, axis=1)
    clients = jnp.arange(len(rows), dtype=jnp.int32)[:, None]
    share = weights / jnp.where(total > 0, total, 1)[:, None]
    share = share.at[clients, rows].get(
        mode="fill", fill_value=0
    )  # of a sample in the client's mean
    batch_sizes, sizes = (
        jnp.sum(a > 0, axis=1, keepdims=True, dtype=model.dtype) for a in (share, weights)
    )
    change = sample_gradients_at(problem, model, rows)
    change = change - table.gradients.at[clients, rows].get(mode="fill", fill_value=0)
    # Not set: where the old is added to, XLA changes the table in place, and copies it where not.
    gradients = table.gradients.at[clients, rows].add(change, mode="drop")
    change = share[..., None] * change
    moved = jnp.sum(change, axis=1)
    estimate = table.mean + moved * sizes / jnp.maximum(batch_sizes, 1)
    mean = table.mean + moved
    if problem.importance is not None:
        regularizer = problem.share[:, None] * problem.regularizer.gradient(model)
        estimate, mean = (jnp.where(total[:, None] > 0, a, regularizer) for a in (estimate, mean))
    return estimate, GradientTable(gradients, mean)
