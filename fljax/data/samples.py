r"""Samples held by other libraries, as arrays: data sets of Hugging Face and scikit-learn.

Neither library is imported here; nothing is downloaded. The result is rows, to be distributed over
clients by :func:`~fljax.data.by_user`, :func:`~fljax.data.dirichlet` and similar functions:
``[(s.features[rows], s.targets[rows]) for rows in parts]``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype


class Samples(NamedTuple):
    """Features and targets: floats in the default precision, integers in at most 32 bits.

    Integers that do not fit keep their type.
    """

    features: np.ndarray  # [n, ...]
    targets: np.ndarray  # [n, ...]
    users: np.ndarray | None  # [n]  whose each is, if that is known
    classes: tuple[str, ...]  # what targets are numbers of, if they are


@checked
def from_huggingface(
    dataset: Any, features: str | Sequence[str], target: str, user: str | None = None
) -> Samples:
    """One split of a Hugging Face data set, such as ``load_dataset("mnist")["train"]``.

    Args:
      dataset: a ``datasets.Dataset``; for a ``DatasetDict`` one split, for a stream
        ``Dataset.from_list(list(stream.take(n)))``.
      features: a column of images, arrays or lists of one shape, ``[n, ...]``; or the names of
        columns of numbers, ``[n, P]`` in this order.
      target: the column of the targets; text is replaced by the index among its sorted values.
      user: the column with the user of each sample, for :func:`~fljax.data.by_user`.

    Raises:
      TypeError: not a data set; columns that are not numeric.
      ValueError: no such column, no rows, samples of different shapes, missing values.
    """
    columns = getattr(dataset, "column_names", None)
    if isinstance(columns, Mapping):
        raise TypeError(
            f"dataset must be one split, got a dict of {', '.join(columns)}; take "
            f"dataset[{next(iter(columns), 'train')!r}]."
        )
    if columns is None or not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
        raise TypeError(
            "dataset must be a datasets.Dataset, with its rows in memory or on disk (of a stream, "
            f"Dataset.from_list(list(stream.take(n)))), got {checks.shown(dataset)}."
        )
    names = [features] if isinstance(features, str) else list(features)
    if not names:
        raise ValueError("features must name one or more columns, got none.")
    for name in (*names, target, *(() if user is None else (user,))):
        checks.choice("column", name, columns)

    def read(name: str) -> np.ndarray:
        column = _column(dataset.with_format("numpy"), name)
        if column.dtype.kind == "f":  # which that format makes single
            column = _column(dataset.with_format("numpy", dtype=float_dtype()), name)
        return column

    arrays = [_numbers(name, read(name)) for name in names]
    for name, column in zip(names, arrays, strict=True):
        if not isinstance(features, str) and column.ndim != 1:
            raise ValueError(
                f"column {name!r} holds arrays of shape {column.shape[1:]}, and columns are put "
                f"side by side if they hold numbers; give features={name!r} alone."
            )
    x = arrays[0] if isinstance(features, str) else np.stack(arrays, axis=1)
    class_names = getattr(dataset.features[target], "names", None) or []
    y, classes = _targets(target, read(target), class_names)
    return _checked_samples(x, y, None if user is None else read(user), classes)


def _column(dataset: Any, name: str) -> np.ndarray:
    return np.asarray(dataset.select_columns([name])[:][name])


@checked
def from_sklearn(data: object) -> Samples:
    """The result of scikit-learn's ``load_...`` and ``fetch_...`` functions.

    Args:
      data: a ``Bunch`` with ``data`` and ``target``, or the pair ``(X, y)`` of ``return_X_y=True``
        or your own, with features of any shape. Labels that are text are replaced by the index
        among their sorted values.

    Raises:
      TypeError: neither; features that are not numbers, or sparse.
      ValueError: no rows, another number of targets than of features, missing values.

    Example:
      >>> import fljax as fl, numpy as np
      >>> from sklearn.datasets import load_digits
      >>> digits = load_digits()
      >>> samples = fl.data.from_sklearn((digits.images, digits.target))
      >>> parts = fl.data.dirichlet(samples.targets, clients=9, concentration=0.5, seed=0)
      >>> clients = [(samples.features[rows], samples.targets[rows]) for rows in parts]
      >>> len(clients), samples.features.shape
      (9, (1797, 8, 8))
    """
    class_names = None
    if isinstance(data, Mapping) and {"data", "target"} <= data.keys():
        x = data["data"]
        y = data["target"]
        class_names = data.get("target_names")
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        raise TypeError(
            f"data must be a Bunch with data and target or a pair (X, y), got {checks.shown(data)}."
        )
    if hasattr(x, "toarray"):
        raise TypeError("features must not be sparse; give (X.toarray(), y) if that fits.")
    if x is None or y is None:
        raise TypeError("features and targets must be arrays, got None.")
    class_names = [] if class_names is None else list(class_names)
    y, classes = _targets("target", _array("target", y), class_names)
    return _checked_samples(_numbers("data", _array("data", x)), y, None, classes)


def _array(name: str, values: object) -> np.ndarray:
    try:
        return checks.column(name, values)
    except ValueError as error:
        if "'nan'" in str(error):
            raise
        raise ValueError(f"{name} must be an array, got samples of several shapes.") from None


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    """``[n, ...]``.

    Raises:
      TypeError, ValueError: not numbers, or not of one shape, or not all there.
    """
    if column.dtype.kind == "O" and len({np.shape(entry) for entry in column}) > 1:
        raise ValueError(
            f"column {name!r} holds samples of several shapes; pad, crop or resize them first."
        )
    if column.dtype.kind not in "fiub" or not column.ndim:
        raise TypeError(
            f"column {name!r} must hold numbers, got {checks.shown(column)}; encode it first (text "
            "as the numbers of its tokens or classes), and leave out or fill in what is missing."
        )
    checks.finite(f"column {name!r}", column)
    if column.dtype.kind == "f":
        return column.astype(float_dtype())
    if column.dtype.kind != "b" and column.dtype.itemsize < 8:
        return column
    short = column.astype(np.int32)
    return short if np.array_equal(short, column) else column


def _targets(
    name: str, column: np.ndarray, class_names: list[Any]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The targets as numbers, and the names of their classes."""
    listed = column.dtype.kind in "UO" and column.ndim == 1
    if listed and any(isinstance(entry, str) for entry in column.tolist()):
        column = checks.names(f"column {name!r}", column, "class")
        classes, numbers = np.unique(column, return_inverse=True)
        return numbers.astype(np.int32), tuple(classes.tolist())
    targets = _numbers(name, column)
    labels = targets.ndim == 1 and targets.dtype.kind in "iu" and targets.size > 0
    if not labels or targets.min() < 0 or targets.max() >= len(class_names):
        return targets, ()
    return targets, tuple(map(str, class_names))


def _checked_samples(
    x: np.ndarray, y: np.ndarray, users: np.ndarray | None, classes: tuple[str, ...]
) -> Samples:
    if not len(x) or len(x) != len(y):
        raise ValueError(
            f"there must be a target of each sample, one or more, got {len(x)} samples and "
            f"{len(y)} targets."
        )
    return Samples(x, y, users, classes)
