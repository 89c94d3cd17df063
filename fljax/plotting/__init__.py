"""Plots of studies, readable in print, each with units, the number of seeds and the 95 % band.

Decibels are ``10 log10`` of the mean over seeds. Runs that diverged are left out of means; their
number is shown in the legend. Nothing here changes matplotlib's global state. Read
:mod:`~fljax.plotting.curves` first; the figures of the literature are drawn in ``experiments``.
"""

import sys

from fljax._core.nearest_names import suggest_names
from fljax.plotting.clients import by_client
from fljax.plotting.curves import learning_curves, trade_off
from fljax.plotting.heat import heat_map
from fljax.plotting.house_style import HOUSE, LOOKS, NOTE, save_figure, style
from fljax.plotting.network_drawings import draw_graph, network_map
from fljax.plotting.partition_charts import draw_partition
from fljax.plotting.profiles import performance_profile
from fljax.plotting.timelines import timeline

__all__ = [
    "HOUSE",
    "LOOKS",
    "NOTE",
    "by_client",
    "draw_graph",
    "draw_partition",
    "heat_map",
    "learning_curves",
    "network_map",
    "performance_profile",
    "save_figure",
    "style",
    "timeline",
    "trade_off",
]

suggest_names(sys.modules[__name__])
