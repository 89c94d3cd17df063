r"""A user's table with one row per sample, as a problem of the nodes that its rows belong to.

A table is anything with named columns of equal length: a pandas (or polars) ``DataFrame``, a
``dict`` of arrays, a structured array. Neither library is needed for the others.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.problems import LeastSquares, Problem, from_clients
from fljax.problems.objectives import Loss


class Nodes(NamedTuple):
    """The problem of ``K`` nodes, with the names and places given by their table."""

    problem: Problem  # features [K, N, P], targets [K, N]
    names: tuple[Any, ...]  # [K]  as they are in the table
    coordinates: np.ndarray | None  # [K, m]
    labeled: np.ndarray  # [K] bool
    dropped: int  # rows left out because a value is missing


@checked
def from_table(
    table: object,
    node: str,
    features: Sequence[str],
    target: str,
    *,
    coordinates: Sequence[str] = (),
    test: str | None = None,
    missing: str = "refuse",
    loss: Loss = LeastSquares(),  # noqa: B008 (immutable)
) -> Nodes:
    r"""A problem from the rows of a table grouped by node, with nodes of different sizes.

    Nodes are in the order in which the table first names them, a node's rows in the order of the
    table. A node none of whose training rows has a target is *unlabeled* (Jung 2025, section 6.3):
    it keeps its features, and its loss is zero (``importance`` zero), so its model is determined by
    its neighbors alone. Nothing is scaled, and no constant feature is added.

    Args:
      table: a table with columns of equal length.
      node: the column with the node of each row: any names or numbers.
      features: the columns of the ``P`` features.
      target: the column of the targets.
      coordinates: columns of a node's position, such as ``("latitude", "longitude")``: the same in
        all of its rows, and different for each node.
      test: a column of ``True`` and ``False``, or ones and zeros: which rows are held out. Every
        node must have both kinds of rows.
      missing: rows without a finite value of a feature, or of the target at a node that has
        targets, are refused (``"refuse"``) or left out and counted (``"drop"``).
      loss: loss of the problem, which has no regularizer.

    Returns:
      The problem, with held-out data if ``test`` is given, and the names and positions of its
      nodes. With positions, ``fl.graphs.nearest_neighbors(nodes.coordinates, 3)`` joins each node
      to the nearest ones.

    Raises:
      TypeError: not a table; a column that is not of numbers.
      ValueError: no such column, a column twice among the features or in two roles, columns of
        different lengths, missing values (how many, and where the first is), a node without
        training or test rows, no labeled node, positions that are missing, differ within a node or
        are shared by two nodes.

    Example:
      >>> import fljax as fl
      >>> table = {
      ...     "town": ["Turku", "Oulu", "Turku", "Oulu", "Oulu"],
      ...     "today": [3.0, -5.0, 2.0, -8.0, -6.0],
      ...     "tomorrow": [2.0, -8.0, 4.0, -6.0, -7.0],
      ... }
      >>> nodes = fl.data.from_table(table, "town", ["today"], "tomorrow")
      >>> nodes.names, nodes.problem.sample_counts().tolist()
      (('Turku', 'Oulu'), [2, 3])
    """
    checks.choice("missing", missing, ("refuse", "drop"))
    if not len(features):
        raise ValueError("features must name one or more columns, got none.")
    for kind, names in (("features", features), ("coordinates", coordinates)):
        again = [name for name in names if list(names).count(name) > 1]
        if again:
            raise ValueError(f"{kind} must name each column once, got {again[0]!r} twice.")
    for role, name in (("target", target), ("node", node), ("test", test)):
        if name in features:
            raise ValueError(
                f"column {name!r} is the {role} and cannot be a feature too: a model would be told "
                "what it is to find out. Leave it out of features, or copy it to another name."
            )
    for role, name in (("node", node), ("test", test)):
        if name == target:
            raise ValueError(f"column {name!r} cannot be the {role} and the target.")
    columns = [node, target, *features, *coordinates, *(() if test is None else (test,))]
    values = _columns(table, columns)
    length = len(values[node])
    names, member = _members(node, values[node])
    x = np.stack([_numbers(name, values[name]) for name in features], axis=1)
    y = _numbers(target, values[target])
    for_test = np.zeros(length, bool) if test is None else _flags(test, values[test])

    clients = len(names)
    finite = np.isfinite(y)
    labeled = np.bincount(member[finite & ~for_test], minlength=clients) > 0
    if not labeled.any():
        raise ValueError(f"no row to learn from has a finite {target!r}: no node has labels.")
    finite_columns = {name: np.isfinite(x[:, i]) for i, name in enumerate(features)}
    finite_columns[target] = finite | (~labeled[member] & ~for_test)
    complete = np.all(list(finite_columns.values()), axis=0)
    if missing == "refuse" and not complete.all():
        row = int(np.argmin(complete))
        column = next(name for name, is_finite in finite_columns.items() if not is_finite[row])
        raise ValueError(
            f"{length - complete.sum()} of {length} rows lack a finite value, the first of them "
            f"row {row}, of node {names[member[row]]!r}, in column {column!r}; give missing='drop' "
            "to leave such rows out, or fill them in."
        )

    def rows(which: np.ndarray, role: str) -> list[np.ndarray]:
        which = np.flatnonzero(which)
        which = which[np.argsort(member[which], kind="stable")]
        sizes = np.bincount(member[which], minlength=clients)
        if not sizes.all():
            k = int(np.argmin(sizes))
            left = "" if complete.all() else f" once {length - complete.sum()} rows are dropped"
            raise ValueError(
                f"node {names[k]!r} has no row to {role}{left}; give it one, or leave the node out."
            )
        return np.split(which, np.cumsum(sizes)[:-1])

    y = np.where(finite, y, 0)
    held_out = None
    if test is not None:
        held_out = [(x[chosen], y[chosen]) for chosen in rows(complete & for_test, "test on")]
    problem = from_clients(
        [(x[chosen], y[chosen]) for chosen in rows(complete & ~for_test, "learn from")],
        loss,
        strength=0.0,
        test=held_out,
    )
    if not labeled.all():
        problem = problem.weighing(labeled.astype(problem.dtype))
    positions = _places(names, member, coordinates, values) if len(coordinates) else None
    return Nodes(problem, names, positions, labeled, int(length - complete.sum()))


def _columns(table: Any, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """The columns of these names, of one length."""
    names = checks.column_names(table)
    if names is None:
        raise TypeError(
            "table must have named columns: a DataFrame, a dict of arrays or a structured array, "
            f"got {checks.shown(table)}."
        )
    for name in wanted:
        checks.choice("column", name, map(str, names))
    columns = {name: _column(name, table[name]) for name in wanted}
    checks.common_length(columns)
    return columns


def _column(name: str, column: object) -> np.ndarray:
    masked = isinstance(column, np.ma.MaskedArray)
    array = None if masked else checks.column(f"column {name!r}", column)
    if array is None or array.ndim != 1:
        raise ValueError(
            f"column {name!r} must be one entry of each row, [n], got {checks.shown(column)}."
        )
    return array


def _members(name: str, column: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray]:
    """The nodes in the order of their first rows, and ``[n]`` whose each row is."""
    number: dict[Any, int] = {}
    entries = column.tolist()
    for row, entry in enumerate(entries):
        if checks.is_missing(entry) or (isinstance(entry, float) and not math.isfinite(entry)):
            raise ValueError(f"row {row} has no node, column {name!r} holds {entry!r} there.")
        if getattr(entry, "__hash__", None) is None:
            raise TypeError(
                f"column {name!r} must hold names or numbers of nodes, got {checks.shown(entry)} "
                f"in row {row}."
            )
    if len({isinstance(entry, str) for entry in entries}) > 1:  # "1" beside 1: one node, or two?
        checks.names(f"column {name!r}", entries)
    member = np.array([number.setdefault(entry, len(number)) for entry in entries])
    return tuple(number), member


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    """``[n]`` in double precision, NaN where there is nothing."""
    if column.dtype.kind in "fiub":
        return column.astype(np.float64)
    entries = column.tolist()
    if column.dtype.kind != "O":
        raise TypeError(
            f"column {name!r} must hold real numbers, got {checks.shown(entries[0])} in row 0, of "
            f"{column.dtype}."
        )
    for row, entry in enumerate(entries):
        if not isinstance(entry, numbers.Real) and not checks.is_missing(entry):
            raise TypeError(
                f"column {name!r} must hold real numbers, got {checks.shown(entry)} in row {row}."
            )
    return np.array([np.nan if checks.is_missing(entry) else float(entry) for entry in entries])


def _flags(name: str, column: np.ndarray) -> np.ndarray:
    column = checks.as_booleans(column)
    if column.dtype != np.bool_:
        raise TypeError(f"column {name!r} must hold True and False, got {column.dtype}.")
    return column


def _places(
    names: Sequence[Any],
    member: np.ndarray,
    coordinates: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> np.ndarray:
    """``[K, m]``: where each node is."""
    places = np.stack([_numbers(name, values[name]) for name in coordinates], axis=1)
    bad = ~np.isfinite(places).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{bad.sum()} rows lack finite coordinates, the first of them row {row}, of node "
            f"{names[member[row]]!r}; give every node a place, or no coordinates."
        )
    _, first = np.unique(member, return_index=True)
    positions = places[first]
    moved = np.any(places != positions[member], axis=1)
    if moved.any():
        row = int(np.argmax(moved))
        raise ValueError(
            f"node {names[member[row]]!r} is at {tuple(positions[member[row]].tolist())} in row "
            f"{first[member[row]]} and at {tuple(places[row].tolist())} in row {row}; a node has "
            "one place."
        )
    order = np.lexsort(positions.T)
    again = np.flatnonzero(np.all(positions[order][1:] == positions[order][:-1], axis=1))
    if len(again):
        earlier, later = sorted(order[again[0] : again[0] + 2].tolist())
        raise ValueError(
            f"nodes {names[earlier]!r} and {names[later]!r} are both at "
            f"{tuple(positions[earlier].tolist())}; make them one node, or give no coordinates."
        )
    return positions
