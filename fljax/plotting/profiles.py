"""Performance profiles of methods."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from fljax._core.annotations import checked
from fljax.plotting import house_style
from fljax.plotting.house_style import NOTE, SMALL_TEXT, style
from fljax.results import statistics


@checked
def performance_profile(
    cost: xr.DataArray,
    along: str = "algorithm",
    ax: Axes | None = None,
    *,
    labels: Mapping[Any, str] | None = None,
) -> Axes:
    """Plot how often each method is within a factor of the best,
    :func:`fljax.statistics.profile`.

    Args:
      cost: non-negative costs of every method and instance, such as from
        :func:`fljax.statistics.until`; infinite or NaN where a method does not solve an instance.
      along: the axis with the methods.
      ax: where to draw; by default a new figure.
      labels: names for the legend, by method; others are shown as they are.

    Returns:
      The axes.

    Raises:
      ValueError: as :func:`fljax.statistics.profile`.

    Example:
      >>> import xarray as xr
      >>> values, coords = [[10.0, 20.0], [30.0, 10.0]], {"algorithm": ["EXTRA", "NIDS"]}
      >>> cost = xr.DataArray(values, coords, ("algorithm", "seed"), attrs={"long_name": "rounds"})
      >>> ax = performance_profile(cost)
      >>> ax.get_xlabel()
      'rounds, as a multiple of the least'
      >>> plt.close(ax.figure)
    """
    shares = statistics.profile(cost, along)
    factors = shares["factor"].values
    instances = cost.size // cost.sizes[along]
    end = max(1.1 * factors[-1], 1.1)
    names = cost[along].values
    what = cost.attrs.get("long_name", cost.name or "cost")
    with style():
        if ax is None:
            _, ax = plt.subplots()
        assert ax is not None
        for position, (name, share) in enumerate(zip(names, shares.values, strict=True)):
            look = house_style.look_of(position)
            ax.plot(
                np.append(factors, end),
                np.append(share, share[-1]),
                label=house_style.named(name, labels),
                drawstyle="steps-post",
                markevery=max(1, len(factors) // 8),
                clip_on=False,
                **look,
            )
        ax.set(
            xlabel=f"{what}, as a multiple of the least",
            ylabel="share of instances",
            ylim=(0, 1.02),
            xlim=(1, end),
        )
        if factors[-1] > 4:
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter(NullFormatter())
        count = f"{instances} instance{'s' * (instances > 1)}"
        note = "; ".join(filter(None, [cost.attrs.get("remark"), count]))
        corner = {"xy": (1, 1), "xycoords": "axes fraction", "ha": "right", "va": "bottom"}
        ax.annotate(note, **corner, **SMALL_TEXT, gid=NOTE)
        drawn_legend = house_style.legend_of(ax, statistics.with_unit(cost[along]), outside=True)
        house_style.widen(house_style.whole(ax), drawn_legend)
    return ax
