"""The page of a study or a comparison for a browser."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import xarray as xr

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.storage import replace_file
from fljax.metrics.definitions import Metric
from fljax.plotting.interactive import page
from fljax.results import statistics
from fljax.results.tables import scalar_metrics, table
from fljax.simulation.citation import citation
from fljax.tuning.comparison import Comparison


@checked
def report(
    results: xr.Dataset | Comparison,
    path: str | PathLike,
    *,
    metrics: Sequence[str | Metric] = (),
    title: str = "",
    level: float = statistics.LEVEL,
) -> Path:
    """Write results as one page for a browser, which needs no network and no other file.

    It shows the curves of all grid points, the mean over seeds with its band, of a metric and over
    a horizontal axis (rounds, communication, gradients, time) that the reader chooses, with linear
    or logarithmic axes; a table of the last round, which can be sorted and downloaded as CSV;
    warnings, spent privacy and its assumptions; settings, versions, and the references as BibTeX.
    The curves are drawn by Plotly, whose program takes 4.8 MB of the page: ``pip install
    'fljax[report]'``.

    The page holds means and the settings, which a privacy budget does not cover; it lists them.

    Args:
      results: of :func:`fljax.sweep` or :func:`fljax.run`, or a comparison, whose methods, tuned
        values and target are shown as well.
      path: of the file, which ends in ``.html``; ``~`` is the home folder.
      metrics: variables to be shown, the first one first; by default all scalar metrics of the
        simulations, that of a comparison first.
      title: of the page; by default the name of the scenario.
      level: confidence level of each single interval.

    Returns:
      The path.

    Raises:
      ImportError: Plotly is not installed.
      OSError: as :func:`fljax.save`, such as for a folder that does not exist.
      ValueError: results without a metric or without rounds; an unknown metric, metrics over
        different axes; more than 100 curves, or more than a million numbers in them; a file of
        another kind.

    Example:
      >>> import tempfile, numpy as np, xarray as xr, fljax as fl
      >>> error = np.geomspace(1, 0.01, 10) * np.array([1, 1.2, 0.9])[:, None]
      >>> data = xr.Dataset(
      ...     {"error": (("step_size", "seed", "round"), [error, 2 * error], {"decibel": 1})},
      ...     {"step_size": [0.1, 0.2], "round": range(1, 11)},
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page = fl.report(data, f"{folder}/study.html")
      ...     page.name, "step_size" in page.read_text()
      ('study.html', True)
    """
    path = Path(path).expanduser()
    checks.choice("ending of a report's file", path.suffix, [".html"])
    compared = results if isinstance(results, Comparison) else None
    dataset = results if isinstance(results, xr.Dataset) else results.results
    names = []
    if dataset.sizes.get("round"):
        dataset = dataset if "seed" in dataset.dims else dataset.expand_dims("seed")
        names = [statistics.named(dataset, metric) for metric in metrics]
        names = names or scalar_metrics(dataset)
    if not names:
        raise ValueError(
            "a report is of one or more metrics over rounds, and these results have none; record "
            'some, Simulation(metrics=["objective"]), or name a variable, metrics=[...].'
        )
    if compared and not metrics:
        names = [*dict.fromkeys([compared.metric, *names])]
    more = {}
    target = {}
    if compared:
        target = {} if compared.target is None else {compared.metric: compared.target}
        more["Methods compared"] = compared.table(level=level)
        if any(compared.tuned.chosen.values()):
            more["Tuned values"] = compared.tuned.table()
    text = page(
        dataset,
        table(dataset, *names, level=level),
        title=title or str(dataset.attrs.get("scenario", "Results")),
        bibtex=citation(dataset) if "decisions" in dataset.attrs else "",
        target=target,
        more=more,
    )
    return replace_file(path, text)
