"""Distribution of a metric over the clients, from the worst to the best."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.metrics.definitions import Metric
from fljax.plotting.curves import trade_off
from fljax.results import statistics


@checked
def by_client(
    dataset: xr.Dataset,
    metric: str | Metric = "client_accuracy",
    hue: str | None = None,
    ax: Axes | None = None,
    *,
    round: int | None = None,
    labels: Mapping[Any, str] | None = None,
    level: float = statistics.LEVEL,
    legend: bool = True,
) -> Axes:
    """Plot a per-client metric at one round, sorted: the worst client of every run on the left.

    Clients are sorted within each run, so that a curve is the mean over seeds of the sorted values
    and not of clients with the same index. Metrics on a dB scale, such as errors, are sorted in
    descending order, other metrics in ascending order.

    Args:
      dataset: the results of :func:`fljax.sweep`.
      metric: a per-client metric, by name or as a :class:`~fljax.metrics.Metric`.
      hue: the axis with one curve per value; by default the only one left besides seed and client.
      ax: where to draw; by default a new figure.
      round: the round at which the metric is read; by default the last recorded round.
      labels: names for the legend, by value of the axis.
      level: confidence level.
      legend: whether to draw a legend.

    Returns:
      The axes.

    Raises:
      ValueError: a metric that is not per client; otherwise as for :func:`trade_off`.

    Example:
      >>> import matplotlib.pyplot as plt
      >>> accuracy = np.random.default_rng(0).uniform(size=(2, 3, 20))
      >>> data = xr.Dataset(
      ...     {"client_accuracy": (("algorithm", "seed", "client"), accuracy)},
      ...     {"algorithm": ["FedAvg", "AFL"]},
      ... )
      >>> ax = by_client(data)
      >>> ax.get_xlabel(), len(ax.lines)
      ('clients, from the worst off [%]', 2)
      >>> plt.close(ax.figure)
    """
    name = metric.name if isinstance(metric, Metric) else metric
    names = [str(n) for n, v in dataset.data_vars.items() if "client" in v.dims]
    checks.choice("metric of each client", name, names)
    dataset = statistics.at_round(dataset, round)
    values = dataset[name]
    axis = values.get_axis_num("client")
    ordered = np.sort(values.values, axis=axis)
    if values.attrs.get("decibel", 0):
        ordered = np.flip(ordered, axis=axis)
    share = np.linspace(0, 100, values.sizes["client"])
    drawn = values.copy(data=ordered).drop_vars("client", errors="ignore")
    drawn = drawn.rename(client="share").assign_coords(share=share)
    drawn["share"].attrs |= {"long_name": "clients, from the worst off", "units": "%"}
    dataset = dataset.drop_dims("client").assign({name: drawn})
    return trade_off(dataset, "share", name, hue, ax, labels=labels, level=level, legend=legend)
