"""The atlas's pictures: for each kind of network profiles, and the first of what is counted
against the last value: rounds, on a clock seconds, or bits.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.atlas import analysis, verdicts
from experiments.atlas.decisions import WHO, Page, kind_of
from experiments.picture import print_style
from fljax import statistics
from fljax._core.storage import replace_file
from fljax.metrics.definitions import METRICS
from fljax.plotting.house_style import look_of

#: How many algorithms a profile has.
DRAWN = 8

#: The two panels of an algorithm's picture: left, bottom, width and height.
BOXES = ((0.08, 0.15, 0.36, 0.73), (0.64, 0.15, 0.34, 0.73))

#: A kind with fewer scenarios has no picture: a profile of one is that scenario's table.
LEAST = 2


def with_costs(pages: Sequence[Page], kind: str) -> list[Page]:
    """The scenarios of a kind whose algorithms were tuned for costs."""
    return [
        page for page in pages if kind_of(page.scenario) == kind and analysis.has_costs(page.result)
    ]


def file_of(kind: str) -> str:
    return f"{kind.replace(' ', '-')}.png"


def pictures_in(folder: Path) -> dict[str, str]:
    """The names of the files by kind that :func:`draw` has written to a folder."""
    return {kind: file_of(kind) for kind in WHO if (folder / file_of(kind)).is_file()}


def draw(pages: Sequence[Page], folder: Path) -> dict[str, str]:
    """Draw every kind with enough scenarios; returns the names of the files by kind."""
    names = {}
    for kind in WHO:
        members = with_costs(pages, kind)
        if len(members) < LEAST:
            continue
        names[kind] = file_of(kind)
        with print_style():
            picture, (left, right) = plt.subplots(1, 2, figsize=(7, 4.2), layout="constrained")
            _draw_profile(left, analysis.costs(members, members[0].scenario.costs[0]))
            _draw_front(right, members)
            picture.suptitle(f"{WHO[kind]}: {len(members)} scenarios")
            content = io.BytesIO()
            picture.savefig(content, format="png", dpi=150)
            replace_file(folder / names[kind], content.getvalue())
        plt.close(picture)
    return names


def _draw_profile(ax: Axes, cost: xr.DataArray) -> None:
    """The profiles of the algorithms with the best scores."""
    shares = statistics.profile(cost)
    score = analysis.scores(shares)
    order = np.argsort(-score.values)[:DRAWN]
    top = score["algorithm"].values[order[score.values[order] > 0]]
    factors = shares["factor"].values
    for index, label in enumerate(top):
        share = shares.sel(algorithm=label).values
        ends = np.append(factors[factors < analysis.FACTOR], analysis.FACTOR)
        heights = share[: len(ends) - 1]
        look = {k: v for k, v in look_of(index).items() if k in ("color", "linestyle")}
        ax.step(ends, np.append(heights, heights[-1]), where="post", label=str(label), **look)
    ax.set(
        xlabel=f"{cost.name}, as a multiple of the least",
        ylabel=f"share of {cost.sizes['instance']} instances",
        xscale="log",
        xlim=(1, analysis.FACTOR),
        ylim=(0, 1.02),
    )
    _name_multiples(ax)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False)


def _name_multiples(ax: Axes) -> None:
    """Ticks of a logarithmic axis of multiples."""
    multiples = [tick for tick in (1, 2, 5, 10, 20, 50) if tick <= ax.get_xlim()[1]]
    ax.set_xticks(multiples, [str(tick) for tick in multiples])
    ax.minorticks_off()


def places(pages: Sequence[Page]) -> dict[str, tuple[float, float]]:
    """For each algorithm that reaches at least half of the targets of its scenarios: its rounds,
    seconds or bits, as a multiple of the least (geometric mean), and its mean place by the
    last value from 0 to 1.
    """
    multiples: dict[str, list[float]] = {}
    positions: dict[str, list[float]] = {}
    for page in pages:
        cost = page.scenario.costs[0]
        _, least = analysis.least(page.rows, cost)
        last = max(len(page.rows) - 1, 1)
        for place, row in enumerate(page.rows):
            positions.setdefault(row.label, []).append(place / last)
            if np.isfinite(row.cost[cost]):
                multiples.setdefault(row.label, []).append(row.cost[cost] / least)
    return {
        label: (float(np.exp(np.mean(np.log(ratios)))), float(np.mean(positions[label])))
        for label, ratios in multiples.items()
        if 2 * len(ratios) >= len(positions[label]) and 2 * len(positions[label]) >= len(pages)
    }


def unbeaten(points: dict[str, tuple[float, float]]) -> list[str]:
    """The algorithms that no other beats in both, by their rounds."""
    return sorted(
        (
            label
            for label, (rounds, place) in points.items()
            if not any(
                (r <= rounds and p <= place) and (r < rounds or p < place)
                for r, p in points.values()
            )
        ),
        key=lambda label: points[label],
    )


def _draw_front(ax: Any, pages: Sequence[Page]) -> None:
    """Rounds against the last value of all algorithms; names on the front."""
    points = places(pages)
    front = unbeaten(points)
    others = [point for label, point in points.items() if label not in front]
    ax.plot(*zip(*others, strict=True) if others else ([], []), ".", color="0.6", label="others")
    for index, label in enumerate(front):
        look = {k: v for k, v in look_of(index).items() if k in ("color", "marker")}
        ax.plot(*points[label], linestyle="", label=label, **look)
    if front:
        ax.step(
            *zip(*(points[label] for label in front), strict=True),
            where="post",
            color="0.8",
            zorder=0,
        )
    ax.set(
        xlabel=f"{pages[0].scenario.costs[0]}, multiple of the least (mean)",
        ylabel="place by the last value (0: first)",
        xscale="log",
        xlim=(0.95, None),
    )
    _name_multiples(ax)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False)


def draw_algorithm(picture: Figure, pages: Sequence[Page], label: str) -> str:
    """Draw an algorithm among all others: its last value in the standard scenario, and its places
    in all scenarios in which it ran, by what goes wrong there.

    Returns:
      A description of the picture.
    """
    picture.clear()
    # Fixed boxes: computing them for a hundred pictures takes most of their time.
    picture.set_layout_engine("none")
    left, right = (picture.add_axes(box) for box in BOXES)
    page = verdicts.standard(pages, label)
    assert page is not None
    _draw_last_values(left, page, label)
    groups = verdicts.groups_of(pages, label)[::-1]
    for marker, among in (("o", True), ("x", False)):
        points = [
            (verdicts.place_of(run_page, row), height)
            for height, group in enumerate(groups)
            for run_page, row in group.runs
            if (row in analysis.best(run_page.rows)) == among
        ]
        look = {"color": look_of(0)["color"], "markersize": 6, "linestyle": ""}
        right.plot(*zip(*points, strict=True) if points else ([], []), marker=marker, **look)
    right.set_yticks(range(len(groups)), [group.trouble for group in groups])
    right.set(
        xlabel="place by the last value (0: first, 1: last)",
        xlim=(-0.05, 1.05),
        ylim=(-0.6, max(len(groups), 2) - 0.4),
    )
    right.set_title("all scenarios (dot: among the best)", fontsize="medium")
    count = len(verdicts.runs_of(pages, label))
    return (
        f"Left: last values of all algorithms in the scenario {page.scenario.title}, {label} "
        f"marked. Right: places of {label} in "
        + (f"the {count} scenarios" if count > 1 else "the scenario")
        + " in which it ran, by what goes wrong there."
    )


def _draw_last_values(ax: Axes, page: Page, label: str) -> None:
    """The last values of a scenario, the best first, with their intervals."""
    rows = [row for row in page.rows if not row.remark]
    means, lows, highs = np.array([row.value for row in rows]).T
    chosen = np.array([label in verdicts.names_of(row) for row in rows])
    ranks = np.arange(1, len(rows) + 1)
    visible = means <= means[0] + verdicts.GREW
    looks: tuple[tuple[np.ndarray, dict[str, Any]], ...] = (
        (visible & ~chosen, {"fmt": ".", "color": "0.6"}),
        (visible & chosen, {"fmt": "o", "color": look_of(0)["color"], "label": label}),
    )
    for rows_drawn, look in looks:
        ends = [(means - lows)[rows_drawn], (highs - means)[rows_drawn]]
        ax.errorbar(ranks[rows_drawn], means[rows_drawn], ends, **look)
    metric = METRICS[page.scenario.metric]
    ax.set(xlabel="rank", ylabel=metric.label + (" [dB]" if metric.decibel else ""))
    ax.set_title(page.scenario.title, fontsize="medium", wrap=True)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if (visible & chosen).any():
        ax.legend(frameon=False)
