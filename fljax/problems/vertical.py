r"""Vertical federated learning: clients that have different features of the same data points.

Client :math:`k` holds the columns :math:`X_k` of a table, one client also holds the labels
:math:`y`, and together they minimize (Jung 2025, section 6.4)

.. math:: \frac1m\Big\|y-\sum_kX_kw_k\Big\|^2+\sum_k\frac\lambda KR(w_k).

In the stacked problem, each client's row has the same samples in the same order, its own features
padded with zeros, and zeros in place of labels that it does not hold, so the labels are the sum
over clients.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, replace
from fljax._core.numerics import HIGHEST
from fljax.problems.objectives import LeastSquares, NoRegularizer, Regularizer
from fljax.problems.problem import Problem
from fljax.problems.solvers import response


@checked
def vertical(
    features: object,
    targets: object,
    columns: Sequence[object],
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: float = 1.0,
    *,
    holder: int = 0,
    test: tuple[object, object] | None = None,
) -> Problem:
    r"""A table whose columns are distributed over clients, for
    :class:`fljax.algorithms.SharingADMM`.

    Args:
      features: ``[N, P]``, the whole table.
      targets: ``[N]``.
      columns: for each client the indices of its columns; no column may occur twice.
      regularizer: regularizer of each client's own parameters.
      strength: :math:`\lambda\ge0`, as in :class:`Problem`.
      holder: index of the client that has the labels.
      test: held-out ``(features, targets)``, split by the same columns; the
        metric ``joint_error`` is evaluated on them.

    Returns:
      A problem of ``K`` clients, each with as many parameters as the largest number of columns;
      parameters without a column stay at zero.

    Raises:
      ValueError: a client without columns, a column at two clients or that the table does not have;
        targets of another size, held-out features of another width.

    Example:
      >>> import numpy as np, fljax as fl
      >>> table, labels = np.ones((4, 3)), np.arange(4.0)
      >>> problem = fl.problems.vertical(table, labels, columns=[[0, 2], [1]])
      >>> problem.features.shape, problem.targets.sum(axis=0).tolist()
      ((2, 4, 2), [0.0, 1.0, 2.0, 3.0])

    Reference:
      Jung 2025, section 6.4.
    """
    features, targets = _table("features", features, targets)
    columns = [np.atleast_1d(np.asarray(indices)) for indices in columns]
    _check_columns(columns, features.shape[1])
    checks.count("holder", holder, at_least=0, at_most=len(columns) - 1)
    rows = [_split_columns(features, targets, columns, holder)]
    if test is not None:
        held_out_features, held_out_targets = _table("the test features", *test)
        if held_out_features.shape[1] != features.shape[1]:
            raise ValueError(
                f"the test features must have the {features.shape[1]} columns of the features, got "
                f"{held_out_features.shape[1]}."
            )
        rows.append(_split_columns(held_out_features, held_out_targets, columns, holder))
    held_out = None if test is None else Problem(*rows[1], LeastSquares())
    return Problem(*rows[0], LeastSquares(), regularizer, strength, test=held_out)


def _table(name: str, features: object, targets: object) -> tuple[Array, Array]:
    table = checks.filled(name, features, 2)
    labels = checks.array("targets", targets)
    if labels.shape != table.shape[:1]:
        raise ValueError(
            f"targets must have one entry a row of {name}, shape {table.shape[:1]}, got "
            f"{labels.shape}."
        )
    return jnp.asarray(table, float_dtype()), jnp.asarray(labels, float_dtype())


def _check_columns(columns: list[np.ndarray], width: int) -> None:
    """Raise ``ValueError`` unless each client has columns of the table that no other has."""
    if not columns:
        raise ValueError("columns must name those of at least one client, got none.")
    for k, indices in enumerate(columns):
        if indices.ndim != 1 or not indices.size or not np.issubdtype(indices.dtype, np.integer):
            raise ValueError(
                f"columns of client {k} must be integers, at least one, got {indices}."
            )
    every = np.concatenate(columns)
    if every.min() < 0 or every.max() >= width:
        raise ValueError(f"columns must be among 0 to {width - 1}, got {every.tolist()}.")
    if len(set(every.tolist())) < len(every):
        raise ValueError(
            f"each column belongs to one client, got one twice among {every.tolist()}."
        )


def _split_columns(
    features: Array, targets: Array, columns: list[np.ndarray], holder: int
) -> tuple[Array, Array]:
    """The clients' columns, padded to the widest, and the labels at their holder."""
    widest = max(len(indices) for indices in columns)
    rows = [
        jnp.pad(features[:, indices], ((0, 0), (0, widest - len(indices)))) for indices in columns
    ]
    labels = jnp.zeros((len(columns), len(targets)), targets.dtype).at[holder].set(targets)
    return jnp.stack(rows), labels


def columns_of(problem: Problem) -> Problem:
    """The joint table of a vertical problem at each client: ``[1, N, K D]``."""
    samples = problem.samples
    plain = replace(problem, statistics=None, tasks=None, initial=None, test=None, importance=None)
    table = jnp.swapaxes(jnp.asarray(problem.design), 0, 1).reshape(1, samples, -1)
    return replace(
        plain,
        features=table,
        feature_map=None,
        targets=jnp.sum(jnp.asarray(problem.targets), axis=0)[None],
        weights=jnp.asarray(problem.weights)[:1],
        strength=problem.share[:1],
    )


@checked
def vertical_consensus(problem: Problem, strictness: float, holder: int = 0) -> Problem:
    r"""A vertical problem as one of coupled models, to which :class:`GTVMin` applies.

    Each node has a copy :math:`v=(p_1,\dots,p_K)\in\mathbb R^{mK}` of all clients' predictions. The
    objective of node :math:`k` requires :math:`p_k` to lie in the span of its columns,
    :math:`\beta\|(I-X_kX_k^\dagger)p_k\|^2`, and that of the holder also requires them to sum to
    the labels, :math:`\tfrac1m\|y-\sum_kp_k\|^2`. On a connected graph, with a large coupling and
    :math:`\beta`, all copies are the parts of the least squares fit. It shows that the design
    principle covers this flavor; systems have :math:`mK` unknowns per node, so it is meant for
    small problems.

    Args:
      problem: a problem of :func:`vertical`, without a regularizer.
      strictness: :math:`\beta>0`.
      holder: index of the node that has the labels.

    Returns:
      A problem with :math:`mK` parameters; ``fl.problems.GTVMin(problem, network, coupling)``.

    Raises:
      ValueError: a strictness that is not positive, no such node.

    Example:
      Both nodes have copies of the predictions of both on four samples:

      >>> import numpy as np, fljax as fl
      >>> table, labels = np.ones((4, 3)), np.arange(4.0)
      >>> problem = fl.problems.vertical(table, labels, columns=[[0, 2], [1]])
      >>> copies = fl.problems.vertical_consensus(problem, strictness=10.0)
      >>> copies.clients, copies.dim
      (2, 8)

    Reference:
      Jung 2025, Exercise 6.2, which asks for such an instance.
    """
    checks.positive("strictness", strictness)
    checks.count("holder", holder, at_least=0, at_most=problem.clients - 1)
    problem = replace(problem, statistics=None).mapped()
    clients = problem.clients
    samples = problem.samples
    dtype = problem.dtype
    fitted = jnp.einsum("knp,kpm->knm", problem.features, response(problem), precision=HIGHEST)
    missed = jnp.eye(samples, dtype=dtype)[None] - fitted
    size = jnp.sqrt(jnp.asarray(strictness * samples, dtype))
    block = jnp.zeros((clients, samples, clients, samples), dtype)
    everyone = jnp.arange(clients, dtype=jnp.int32)
    block = block.at[everyone, :, everyone].set(size * missed).reshape(clients, samples, -1)
    total = jnp.tile(jnp.eye(samples, dtype=dtype), (1, clients))
    labels = jnp.sum(jnp.asarray(problem.targets), axis=0)
    is_holder = (everyone == holder)[:, None, None]
    # The holder has twice the samples, each of half the weight and twice the square.
    root = jnp.sqrt(jnp.asarray(2, dtype))
    more = jnp.where(is_holder, root * total[None], 0)
    block = jnp.where(is_holder, root * block, block)
    shares = jnp.full((clients, samples), 1 / samples, dtype)
    holder_row = is_holder[:, :, 0]
    return Problem(
        jnp.concatenate([block, more], axis=1),
        jnp.concatenate(
            [
                jnp.zeros((clients, samples), dtype),
                jnp.where(holder_row, root * labels[None], 0),
            ],
            axis=1,
        ),
        LeastSquares(),
        weights=jnp.concatenate(
            [jnp.where(holder_row, shares / 2, shares), jnp.where(holder_row, shares / 2, 0)],
            axis=1,
        ),
    )
