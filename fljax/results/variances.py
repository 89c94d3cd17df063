r"""Where the variance of a result comes from: shares of the axes along which a study repeats runs.

A study may repeat a run over several random things, each an axis: the partition of the data, the
initial model, the participants. :func:`variance_shares` divides the variance of a result among
them in a given order, as a nested analysis of variance does.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import xarray as xr
from scipy import stats

from fljax._core import checks
from fljax._core.annotations import checked


@checked
def variance_shares(
    values: xr.DataArray, sources: Sequence[str], level: float = 0.95
) -> xr.Dataset:
    r"""Divide the variance of a result among the axes over which runs were repeated.

    For axes :math:`1,\dots,m` in their order, the share of axis :math:`k` is

    .. math::

        \frac{V_k-V_{k-1}}{V_m},\qquad
        V_k=\mathrm{Var}\big[\mathbb E(Y\mid\text{the draws of axes }1,\dots,k)\big],

    the part of a result's variance that the draw of this axis explains beyond the axes before.
    Interactions belong to the later axis; so shares are as of nested draws, though each draw of an
    axis is combined with each of the others here. Estimates of :math:`V_k` are unbiased, from
    products of pairs of runs that have the first :math:`k` draws in common and no other; a share of
    nearly zero may come out negative.

    Args:
      values: one number for each combination of draws, for instance the accuracy in the last round.
        Axes other than ``sources`` are kept.
      sources: names of axes, each with two draws or more; interactions count for the later
        axis.
      level: confidence level of the intervals, in (0, 1).

    Returns:
      ``share`` with ``low`` and ``high``, its interval, over a new axis ``source``, and the
      ``variance`` of all. Intervals are Student's t of the jackknife: its variances over the draws
      of each axis are added, with the degrees of freedom of such a sum (Satterthwaite 1946). With
      two draws of an axis no interval exists.

    Raises:
      ValueError: an axis that is not there, with a single draw, or named twice; missing values.

    Example:
      >>> import numpy as np, xarray as xr
      >>> rng = np.random.default_rng(0)
      >>> values = rng.normal(0, 3, (40, 1)) + rng.normal(0, 1, (40, 30))
      >>> shares = variance_shares(xr.DataArray(values, dims=("partition", "seed")), ["partition",
      ...     "seed"])
      >>> [round(float(share), 1) for share in shares.share]
      [0.9, 0.1]

    Reference:
      Searle, Casella & McCulloch 1992, chapters 4 and 5; Owen 2007 on the variances of such
      estimates.
    """
    checks.interval("level", level, above=0, below=1)
    sources = list(sources)
    if not sources or len(set(sources)) < len(sources):
        raise ValueError(f"sources must be one or more different axes, got {sources}.")
    for name in sources:
        if values.sizes.get(name, 0) < 2:
            raise ValueError(
                f"sources must be axes with two draws or more, got {name!r} of values with the "
                f"axes {dict(values.sizes)}."
            )
    if not np.isfinite(np.asarray(values.values, float)).all():
        raise ValueError(
            "values must be finite: a run that diverged or is missing has no share; leave its "
            "level of an axis out, values.dropna(axis)."
        )
    rest = [name for name in values.dims if name not in sources]
    array = values.astype(float).transpose(*rest, *sources).values
    coordinates = {name: values.coords[name] for name in rest if name in values.coords}
    count = len(sources)
    variance, share = _shares(array, count)
    squares = np.zeros_like(share)
    fourths = np.zeros_like(share)
    for axis in range(array.ndim - count, array.ndim):
        draws = array.shape[axis]
        if draws > 2:  # of one draw there would be no variance
            less_one = np.stack(
                [_shares(np.delete(array, draw, axis), count)[1] for draw in range(draws)]
            )
            square = (draws - 1) * less_one.var(axis=0)
            squares += square
            fourths += square**2 / (draws - 1)
        else:
            squares += np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = stats.t.ppf((1 + level) / 2, squares**2 / fourths) * np.sqrt(squares)
    dims = (*rest, "source")
    return xr.Dataset(
        {
            "share": (dims, share),
            "low": (dims, share - reach),
            "high": (dims, share + reach),
            "variance": (rest, variance),
        },
        coords={**coordinates, "source": sources},
    )


def _shares(array: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The variance, and the shares ``[..., count]`` of the last ``count`` axes."""
    squares = [_mean_product(array, count, common) for common in range(count + 1)]
    explained = np.stack([square - squares[0] for square in squares], axis=-1)
    variance = np.asarray(explained[..., -1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return variance, np.diff(explained, axis=-1) / variance[..., None]


def _mean_product(array: np.ndarray, count: int, common: int) -> np.ndarray:
    """The mean product of pairs of runs with the same draws of the first ``common`` of the last
    ``count`` axes, and different draws of all the others.

    Sums over pairs that differ in several axes follow from sums over pairs that agree in more, by
    inclusion and exclusion; those are squares of sums.
    """
    axes = range(array.ndim - count, array.ndim)
    others = axes[common:]
    shift = array.mean(axis=tuple(axes), keepdims=True)  # against cancellation
    centered = array - shift
    total = np.zeros(array.shape[: array.ndim - count])
    for agreeing in range(len(others) + 1):
        for also in itertools.combinations(others, agreeing):
            summed = tuple(axis for axis in others if axis not in also)
            squares = centered.sum(axis=summed, keepdims=True) ** 2
            total += (-1) ** agreeing * squares.sum(axis=tuple(axes))
    pairs = math.prod(array.shape[axis] for axis in axes)
    pairs *= math.prod(array.shape[axis] - 1 for axis in others)
    return np.asarray(total / pairs)
