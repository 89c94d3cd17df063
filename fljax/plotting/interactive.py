"""Results as one page for a browser, which needs no network: curves, a table and the settings.

The curves are a figure of Plotly, whose program is part of the page. Its menus are data: for each
entry the arrays that the figure shows then. Only sorting the table is a program of this module.
"""

import base64
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.colors import to_rgb

from fljax._core.version import __version__
from fljax.metrics.names import COMPUTED
from fljax.plotting.house_style import look_of
from fljax.privacy.coverage import ledger_of, not_covered
from fljax.privacy.promises import assumptions
from fljax.results import statistics, times
from fljax.results.tables import Table, rounded, shown
from fljax.results.warnings import reasons

#: Largest number of curves among which a reader finds one.
MOST_CURVES = 100

#: Largest number of numbers in the figure; they take about nine bytes each.
MOST_NUMBERS = 1_000_000

#: Letters of a name for which there is room to the right of the curves, and curves for whose names
#: there is room below.
MOST_LETTERS = 32
MOST_BELOW = 12

#: Variables that can be the horizontal axis, besides the round.
EFFORTS = ("bits", "messages", *COMPUTED, "joules", "seconds")

#: Number of times at which curves over time are computed where seeds have records at different
#: times.
POINTS = 200

#: Variables with the privacy budget that a run has spent.
SPENT = ("privacy_epsilon", "privacy_delta", "privacy_rho", "privacy_releases")

#: Attributes that are shown in sections of their own, or that point to other programs.
SHOWN_ELSEWHERE = ("decisions", "privacy", "not_covered", "cite")

#: Plotly's names of the line styles of the house; others are lengths of dashes.
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}

#: Positions of the menus that choose the scale among all menus of the figure.
X_SCALE = 2
Y_SCALE = 3
SCALES = ("linear", "log")

#: Settings of both axes.
AXIS = {"zeroline": False, "exponentformat": "power"}

#: Browsers load nothing from elsewhere under this rule, even if the page asked for it.
OFFLINE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto;
  max-width: 1100px; padding: 0 1rem 3rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.note { color: #555; } .warning { border-left: 4px solid #D55E00; padding-left: .7rem; }
.wide { overflow-x: auto; } #curves { min-height: 620px; }
table { border-collapse: collapse; } th, td { padding: .25rem .7rem; text-align: left; }
td, th { border-bottom: 1px solid #ddd; vertical-align: top; }
table:not(.sortable) td { overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th button { font: inherit; font-weight: 600; border: 0; background: none; padding: 0;
  cursor: pointer; text-align: left; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
pre { background: #f5f5f5; padding: .7rem; overflow-x: auto; }
"""

#: Draws the figure, and sorts a table by the column whose head is pressed; other values than
#: numbers are compared as text.
PROGRAM = """
const figure = JSON.parse(document.getElementById("figure").textContent);
if (document.documentElement.clientWidth < 700) {
  // A telephone has no room for menus side by side, nor for a legend beside the curves.
  const layout = figure.layout;
  for (const [row, menu] of layout.updatemenus.entries()) {
    Object.assign(menu, { x: 0, pad: { b: 138 - 42 * row } });
  }
  layout.margin.t = 194;
  Object.assign(layout.legend, { orientation: "h", y: -0.2 });
}
Plotly.newPlot("curves", figure.data, figure.layout, figure.config);
for (const head of document.querySelectorAll("table.sortable th")) {
  head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const value = (row) => row.cells[head.cellIndex].dataset.value;
    const compare = (a, b) => a - b || a.localeCompare(b);
    const rows = [...body.rows].sort((a, b) => sign * compare(value(a), value(b)));
    body.append(...rows);
  });
}
"""


def page(
    dataset: xr.Dataset,
    table: Table,
    *,
    title: str,
    bibtex: str,
    target: Mapping[str, float] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """The page of results with the axes ``seed`` and ``round``.

    Args:
      dataset: the results.
      table: of all metrics to be shown, at the last round; the first metric is shown first.
      title: of the page.
      bibtex: references.
      target: a value of some metrics that methods are to reach, drawn as a line.
      more: further tables, data frames of pandas by their headings.

    Raises:
      ImportError: Plotly is not installed.
      ValueError: too many curves, or too many numbers in them.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(
            "fljax.report needs plotly, which is not installed; pip install 'fljax[report]'."
        ) from None
    figure = _figure(dataset, table, target or {})
    # A closing tag within text of the results would end the element.
    figure = json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c")
    seeds = table.numbers.attrs["seeds"]
    rows, values = _rows(dataset, table)
    csv = base64.b64encode(_csv(table, values).encode()).decode()
    csv = f"data:text/csv;charset=utf-8;base64,{csv}"
    sections = [
        *_warnings(dataset),
        '<div id="curves" class="wide"><noscript>The curves need JavaScript.</noscript></div>',
        _note(
            "Press an entry of the legend to hide or show its curve, twice to show it alone. On a "
            "logarithmic axis only positive numbers are drawn."
        ),
        _heading("The end of the runs"),
        _table(*rows),
        _note(table.note),
        f'<p><a download="results.csv" href="{csv}">Download as CSV</a>, not rounded</p>',
    ]
    for name, frame in (more or {}).items():
        frame = frame.reset_index()
        cells = [[_cell(value) for value in row] for row in frame.to_numpy(object)]
        sections += [_heading(name), _table([*map(str, frame.columns)], cells)]
    for name, stated in _privacy(dataset).items():
        sections += [_heading(name), _table(["", ""], _pairs(stated), sortable=False)]
    settings = _pairs(_settings(dataset))
    sections += [_heading("Settings and environment"), _table(["", ""], settings, sortable=False)]
    if bibtex:
        sections += [_heading("References"), f"<pre>{html.escape(bibtex)}</pre>"]
    escaped = html.escape(title)
    shown_seeds = f"{seeds} seed{'s' * (seeds != 1)}, {dataset.sizes['round']} recorded rounds"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{OFFLINE}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{escaped}</h1>",
            _note(f"{shown_seeds}; written by fljax {__version__}"),
            *sections,
            f'<script type="application/json" id="figure">{figure}</script>',
            f"<script>{get_plotlyjs()}</script>\n<script>{PROGRAM}</script>\n</body>\n</html>\n",
        ]
    )


# The figure --------------------------------------------------------------------------------------


def _figure(dataset: xr.Dataset, table: Table, target: Mapping[str, float]) -> dict[str, Any]:
    """The figure for Plotly: for each curve the lower end of its band, the upper end, the mean.

    Where seeds have records at different times, a mean at a time is not that at a round; the same
    curves over time then follow as further lines; one kind is visible at a time.
    """
    metrics = [str(name) for name in table.numbers["metric"].values]
    grid = table.axes
    of_times = _at_times(dataset, metrics)
    x_values = _horizontal(dataset.drop_vars("seconds") if of_times else dataset, grid)
    scaled = [
        (name, decibel)
        for name in metrics
        for decibel in ([True, False] if statistics.is_decibel(dataset, name) else [False])
    ]
    # Each curve has its first arrays, and others for each entry of the menus.
    arrays = 3 + 5 * (1 + len(scaled)) + 3 * len(x_values)
    over_time = POINTS * (6 + 5 * (1 + len(scaled))) if of_times else 0
    _check_size(
        {axis: dataset.sizes[axis] for axis in grid}, dataset.sizes["round"], arrays, over_time
    )
    level = table.numbers.attrs["level"]
    parts = [
        {name: statistics.summary(d, name, level).transpose(*grid, "round") for name in metrics}
        for d in (dataset, *of_times)
    ]
    numbers = parts[0]
    entries = []
    for name, decibel in scaled:
        # Other numbers of a metric in dB are positive, and are read on a logarithmic axis.
        scale = SCALES[statistics.is_decibel(dataset, name) and not decibel]
        label = statistics.label_of(dataset, name, decibel)
        shapes = _line_at(target, name, decibel)
        vertical = _joined([_vertical(part[name], decibel) for part in parts])
        entries.append((label, scale, vertical, {"shapes": shapes}))
    names = _names(dataset, grid, numbers[metrics[0]])
    is_long = max(map(len, names)) > MOST_LETTERS and len(names) <= MOST_BELOW
    below = {"orientation": "h", "y": -0.15} if is_long else {}
    first_label, _, first, layout = entries[0]
    horizontal: list[tuple[str, str, dict[str, Any]]] = [
        (label, scale, {"x": _of_lines(rows)}) for label, scale, rows in x_values
    ]
    rounds = [x_values[0][2][0].tolist()] * (3 * len(names))
    lines = [*_traces(names, numbers[metrics[0]].attrs["seeds"])]
    if of_times:
        seconds = _rows_of(of_times[0]["seconds"], dataset, grid)
        at = _of_lines(np.broadcast_to(seconds, (len(names), POINTS)), several=True)
        by_round = [True] * len(lines) + [False] * len(lines)
        for _, _, shown_arrays in horizontal:
            shown_arrays["visible"] = by_round
        label = statistics.with_unit(of_times[0]["seconds"])
        arrays_of_times = {"x": [[]] * len(lines) + at, "visible": by_round[::-1]}
        horizontal.append((label, SCALES[0], arrays_of_times))
        lines += [line | {"visible": False} for line in lines]
        rounds = rounds + at
    traces = [
        line
        | {"x": rounds[i], "y": first["y"][i]}
        | ({"customdata": first["customdata"][i]} if first["customdata"][i] else {})
        for i, line in enumerate(lines)
    ]
    return {
        "data": traces,
        "layout": {
            "template": {"layout": {"font": {"family": "system-ui, sans-serif"}}},
            "height": 620,
            "margin": {"t": 110, "l": 80, "r": 20, "b": 60},
            "hovermode": "closest",
            "xaxis": _axis(x_values[0][0]),
            "yaxis": _axis(first_label),
            "legend": {"title": {"text": _plain(_grid_label(dataset, grid))}} | below,
            "updatemenus": _menus(entries, horizontal),
        }
        | layout,
        "config": {"responsive": True, "displaylogo": False},
    }


def _at_times(dataset: xr.Dataset, metrics: Sequence[str]) -> list[xr.Dataset]:
    """The metrics at times that all seeds have in common, in place of rounds; nothing where no
    clock says these, or seeds have them in common already.
    """
    if "seconds" not in dataset.variables or "round" not in dataset["seconds"].dims:
        return []
    seconds = times.seconds_of(dataset)
    values = {name: statistics.keep_finite(dataset, name) for name in metrics}
    counted = times.of_runs(seconds, values[metrics[0]])
    if not times.differ(counted):
        return []
    at = times.in_common(counted, POINTS)
    read = {
        name: times.read(part, seconds, at).assign_attrs(dataset[name].attrs)
        for name, part in values.items()
    }
    read["seconds"] = at.assign_attrs(dataset["seconds"].attrs)
    by_run = dataset.drop_dims("round")
    return [by_run.assign({name: part.rename(point="round") for name, part in read.items()})]


def _joined(parts: Sequence[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """The arrays of all lines, part after part."""
    return {key: [array for part in parts for array in part[key]] for key in parts[0]}


def _of_lines(rows: np.ndarray, several: bool = False) -> list[list[float | None]]:
    """The numbers of all lines, three for each curve; one row is that of all lines."""
    each = 3 if several or len(rows) > 1 else 1
    return [_finite(row) for row in np.repeat(rows, each, axis=0)]


def _check_size(sizes: Mapping[str, int], rounds: int, arrays: int, over_time: int = 0) -> None:
    """Raise ``ValueError`` for more than a page shows.

    Args:
      sizes: of the axes of the grid.
      rounds: number of records.
      arrays: for each curve, with a number for each record.
      over_time: further numbers of each curve.
    """
    curves = math.prod(sizes.values())
    if curves > MOST_CURVES:
        listed = " x ".join(f"{size} {axis}" for axis, size in sizes.items())
        raise ValueError(
            f"a page shows up to {MOST_CURVES} curves, got {curves} ({listed}); choose some, "
            f"results.sel({max(sizes, key=lambda axis: sizes[axis])}=[...]), or the best of each "
            "with fljax.best."
        )
    numbers = curves * (rounds * arrays + over_time)
    if numbers > MOST_NUMBERS:
        every = -(-numbers // MOST_NUMBERS)
        raise ValueError(
            f"a page holds up to {MOST_NUMBERS} numbers, got {numbers} of {curves} curves with "
            f"{rounds} records; take fewer metrics, or one of {every} records, "
            f"results.isel(round=slice({(rounds - 1) % every}, None, {every}))."
        )


def _horizontal(dataset: xr.Dataset, grid: Sequence[str]) -> list[tuple[str, str, np.ndarray]]:
    """For each horizontal axis the label, the scale, and the numbers of all curves, or the one row
    that they share: ``[1 or H, T]``.
    """
    rounds = dataset["round"]
    axes = [(statistics.with_unit(rounds), SCALES[0], rounds.values[None])]
    for name in EFFORTS:
        if name not in dataset.variables or "round" not in dataset[name].dims:
            continue
        rows = _rows_of(dataset[name], dataset, grid)
        if (rows > 0).any():  # else it was not counted, or nothing was sent
            shared = np.array_equal(rows, np.broadcast_to(rows[0], rows.shape), equal_nan=True)
            label = statistics.with_unit(dataset[name])
            axes.append((label, SCALES[name != "seconds"], rows[:1] if shared else rows))
    return axes


def _rows_of(values: xr.DataArray, dataset: xr.Dataset, grid: Sequence[str]) -> np.ndarray:
    """A variable of all curves, ``[H, T]``, the mean over seeds."""
    values = values.astype(float)
    values = values.mean("seed") if "seed" in values.dims else values
    missing = [axis for axis in grid if axis not in values.dims]
    values = values.expand_dims({axis: dataset.sizes[axis] for axis in missing})
    return values.transpose(*grid, "round").values.reshape(-1, values.sizes["round"])


def _vertical(numbers: xr.Dataset, decibel: bool) -> dict[str, list[Any]]:
    """The numbers of all curves of a metric: ``y``, and the ends that are shown with a mean."""
    scale = statistics.decibels if decibel else np.asarray
    rounds = numbers.sizes["round"]
    low, high, mean = (
        [_finite(row) for row in scale(numbers[part].values).reshape(-1, rounds)]
        for part in ("low", "high", "mean")
    )
    lines = zip(low, high, mean, strict=True)
    ends = [[*zip(*pair, strict=True)] for pair in zip(low, high, strict=True)]
    return {
        "y": [line for curve in lines for line in curve],
        "customdata": [data for pairs in ends for data in (None, None, pairs)],
    }


def _finite(numbers: np.ndarray) -> list[float | None]:
    """Numbers with seven digits; none where they are not finite, which JSON does not know."""
    return [float(f"{v:.7g}") if np.isfinite(v) else None for v in numbers.tolist()]


def _names(dataset: xr.Dataset, grid: Sequence[str], numbers: xr.Dataset) -> list[str]:
    """The names of all curves: the values of the axes that have several, of numbers with the name
    of the axis if there are several axes.
    """
    several = [axis for axis in grid if dataset.sizes[axis] > 1]
    lost = numbers["diverged"]
    if "round" in lost.dims:
        lost = lost.max("round")
    names = []
    for point in np.ndindex(*(dataset.sizes[axis] for axis in grid)):
        at = dict(zip(grid, point, strict=True))
        values = {axis: dataset[axis].values[at[axis]] for axis in several}
        speaks = {a: len(several) == 1 or isinstance(v, str) for a, v in values.items()}
        texts = [shown(v) if speaks[a] else f"{a} = {shown(v)}" for a, v in values.items()]
        name = ", ".join(texts) or "mean"
        if diverged := int(lost.isel({axis: i for axis, i in at.items() if axis in lost.dims})):
            name += f" ({diverged}/{numbers.attrs['seeds']} diverged)"
        names.append(name)
    return names


def _traces(names: Sequence[str], seeds: int) -> Iterable[dict[str, Any]]:
    """The three lines of each curve, without their numbers."""
    interval = " [%{customdata[0]:.4g}, %{customdata[1]:.4g}]" if seeds > 1 else ""
    for position, name in enumerate(names):
        look = look_of(position)
        common = {"type": "scatter", "mode": "lines", "legendgroup": str(position)}
        end = common | {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        red, green, blue = (round(255 * share) for share in to_rgb(look["color"]))
        style = look["linestyle"]
        yield end
        yield end | {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.2)"}
        yield common | {
            "name": _plain(name),
            "line": {
                "color": look["color"],
                "dash": DASHES.get(style) or ",".join(f"{2 * length}px" for length in style[1]),
            },
            "hovertemplate": f"%{{x:,}}: %{{y:.4g}}{interval}<extra>%{{fullData.name}}</extra>",
        }


def _axis(label: str) -> dict[str, Any]:
    title = {"text": _plain(label)}
    return {"title": title, "type": SCALES[0], "automargin": True} | AXIS


def _line_at(target: Mapping[str, float], metric: str, decibel: bool) -> list[dict[str, Any]]:
    """The horizontal line at a metric's target, if it has one."""
    if metric not in target:
        return []
    level = float(statistics.decibels(target[metric]) if decibel else target[metric])
    if not np.isfinite(level):
        return []
    line = {"color": "#555555", "width": 1, "dash": "dot"}
    across = {"xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level}
    return [{"type": "line", "layer": "below", "line": line} | across]


def _menus(
    entries: Sequence[tuple[str, str, dict[str, Any], dict[str, Any]]],
    x_values: Sequence[tuple[str, str, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """The menus above the figure: the metric, the horizontal axis, and the scales of both axes.

    A new quantity comes with its usual scale, which the menu of scales then shows, too.
    """

    def shows(axis: str, label: str, scale: str, menu: int) -> dict[str, Any]:
        return {
            f"{axis}.title.text": _plain(label),
            f"{axis}.type": scale,
            f"updatemenus[{menu}].active": SCALES.index(scale),
        }

    metrics = [
        _button(label, arrays, shows("yaxis", label, scale, Y_SCALE) | layout)
        for label, scale, arrays, layout in entries
    ]
    horizontal = [
        _button(label, arrays, shows("xaxis", label, scale, X_SCALE))
        for label, scale, arrays in x_values
    ]
    scales = [
        [_button(f"{scale} {axis[0]}", {}, {f"{axis}.type": scale}) for scale in SCALES]
        for axis in ("xaxis", "yaxis")
    ]
    corner = {"y": 1, "yanchor": "bottom", "xanchor": "left", "active": 0}
    right = {"x": 0.8, "type": "buttons", "direction": "right"}
    menus = [
        {"buttons": metrics, "x": 0, "pad": {"b": 54}},
        {"buttons": horizontal, "x": 0, "pad": {"b": 12}},
        {"buttons": scales[0], "pad": {"b": 12}} | right,
        {"buttons": scales[1], "pad": {"b": 54}} | right,
    ]
    return [corner | menu for menu in menus]


def _button(label: str, arrays: Mapping[str, Any], layout: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a menu, with the arrays and the layout that it sets."""
    return {"label": _plain(label), "method": "update", "args": [{**arrays}, {**layout}]}


def _grid_label(dataset: xr.Dataset, grid: Sequence[str]) -> str:
    several = [axis for axis in grid if dataset.sizes[axis] > 1]
    return statistics.with_unit(dataset[several[0]]) if len(several) == 1 else ""


def _plain(text: str) -> str:
    """Text for Plotly, which reads some tags of HTML, such as bold letters."""
    return html.escape(text, quote=False)


# The table ---------------------------------------------------------------------------------------


def _rows(
    dataset: xr.Dataset, table: Table
) -> tuple[tuple[list[str], list[list[str]]], dict[str, xr.DataArray]]:
    """The head and the rows of the table, as HTML, and the spent privacy at each grid point."""
    numbers = table.numbers
    last = statistics.at_round(dataset)
    points = numbers["mean"].isel(metric=0, drop=True)
    labels = {name: numbers[name].broadcast_like(points) for name in table.labels}
    spent = {
        name: last[name].max("seed").broadcast_like(points)
        for name in SPENT
        if name in ledger_of(dataset)
    }
    nominal = xr.zeros_like(points, bool)
    if "nominal" in last:
        nominal = (last["nominal"] == 1).any("seed").broadcast_like(points)
    head = [
        *(statistics.with_unit(label) for label in labels.values()),
        *(str(label) for label in numbers["label"].values),
        f"diverged of {numbers.attrs['seeds']}",
        *(statistics.with_unit(last[name]) for name in spent),
    ]
    rows = []
    for point in np.ndindex(points.shape):
        at = dict(zip(points.dims, point, strict=True))
        cells = numbers.isel(at)
        row = [_cell(label.isel(at).values[()]) for label in labels.values()]
        for i in range(cells.sizes["metric"]):
            mean, low, high = (
                float(cells[part].isel(metric=i)) for part in ("mean", "low", "high")
            )
            cell = rounded(mean, low, high)
            text = f"{cell.mean} [{cell.low}, {cell.high}]" if cell.low else cell.mean
            row.append(_cell(mean, text))
        row.append(_cell(int(cells["diverged"].max())))
        for values in spent.values():
            value = float(values.isel(at))
            mark = " (nominal)" if nominal.isel(at) and np.isfinite(value) else ""
            row.append(_cell(value, f"{shown(value)}{mark}"))
        rows.append(row)
    return (head, rows), spent


def _csv(table: Table, spent: Mapping[str, xr.DataArray]) -> str:
    """All numbers of the table, not rounded: a row for each grid point and metric."""
    numbers = table.numbers.assign(spent)
    frame = numbers.to_dataframe(dim_order=[*table.axes, "metric"]).reset_index()
    return frame.to_csv(index=False, lineterminator="\n")


def _cell(value: object, text: str | None = None) -> str:
    """A cell of a table, with the value by which rows are sorted."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    key = html.escape(str(value).replace("inf", "Infinity") if number else str(value))
    text = html.escape(shown(value) if text is None else text)
    kind = ' class="number"' * number
    return f'<td{kind} data-value="{key}">{text}</td>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sortable: bool = True) -> str:
    lines = [f"<tr>{''.join(row)}</tr>" for row in rows]
    titles = "".join(
        f'<th scope="col"><button type="button">{html.escape(text)}</button></th>' for text in head
    )
    titles = f"<thead><tr>{titles}</tr></thead>\n" * sortable
    kind = ' class="sortable"' * sortable
    return f'<div class="wide"><table{kind}>\n{titles}<tbody>\n' + "\n".join(
        [*lines, "</tbody></table></div>"]
    )


# The rest ----------------------------------------------------------------------------------------


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _warnings(dataset: xr.Dataset) -> list[str]:
    return [
        f'<p class="warning"><strong>{category.__name__}:</strong> {html.escape(text)}</p>'
        for category, text in reasons(dataset)
    ]


def _privacy(dataset: xr.Dataset) -> dict[str, dict[str, str]]:
    """The assumptions of the privacy figures, and the results that they do not cover."""
    stated = {
        "Assumptions of the privacy figures": assumptions(dataset),
        "Not covered by the privacy budget": not_covered(dataset),
    }
    return {name: texts for name, texts in stated.items() if texts}


def _settings(dataset: xr.Dataset) -> dict[str, str]:
    """The parts of the simulations in each of their versions, and the other attributes."""
    parts = json.loads(dataset.attrs.get("decisions", "{}"))
    settings = {name: "\n".join(versions) for name, versions in parts.items()}
    others = {str(n): str(v) for n, v in dataset.attrs.items() if n not in SHOWN_ELSEWHERE}
    return settings | others


def _pairs(texts: Mapping[str, str]) -> list[list[str]]:
    """Rows of a name and one or more lines."""
    rows = []
    for name, text in texts.items():
        lines = "<br>".join(html.escape(line) for line in text.split("\n"))
        rows.append([f'<th scope="row">{html.escape(name)}</th>', f"<td>{lines}</td>"])
    return rows
