"""A chart of clients' work over time, for a run on a clock."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.clock.round_clock import PHASES
from fljax.plotting import house_style
from fljax.plotting.house_style import style

#: Colors of the parts of a client's round, which follow each other in this order, and of the time
#: in which it does nothing.
COLORS = {
    "download": "#56B4E9",
    "compute": "#0072B2",
    "upload": "#E69F00",
    "idle": "#e3e3e3",
}

#: The color of the lines of the server.
LINE = "#333333"

#: The mark of messages that did not arrive.
CROSS: dict[str, Any] = {"linestyle": "", "marker": "x", "color": "#000000"}

#: Largest number of clients that a reader can tell apart.
MOST_CLIENTS = 40

#: Height of the bar of a client, as a share of its row.
HEIGHT = 0.72

#: Times that differ by less than this share of the last one are equal, up to their rounding.
ROUNDING = 1e-6


class WorkedParts(NamedTuple):
    """The parts that clients took in rounds, in the order of their beginnings: ``[P]`` each."""

    client: np.ndarray
    begin: np.ndarray
    phases: np.ndarray  # [P, 3]  seconds of download, compute and upload
    arrived: np.ndarray

    @property
    def end(self) -> np.ndarray:
        """When the client had sent its message, failed or was stopped."""
        return self.begin + self.phases.sum(axis=1)


@checked
def timeline(
    results: xr.Dataset,
    clients: Sequence[int] | None = None,
    seconds: tuple[float, float] | None = None,
    ax: Axes | None = None,
    *,
    labels: Mapping[Any, str] | None = None,
    legend: bool = True,
) -> Axes:
    """Draw when clients download, compute, upload and do nothing, and when the server goes on.

    A row is a client. A cross is the end of a part whose message did not arrive: the client failed,
    or came too late for its round. Vertical lines are the ends of rounds; on a clock of single
    arrivals, where clients have no rounds in common, they are the arrivals. There the time after
    the last recorded arrival of a client is left blank, as its next message, if any, arrives after
    the end of the run. Parts of a client that overlap, as under :class:`fljax.clock.Ticks`, are
    drawn one above the other.

    Args:
      results: of one run with the metric ``"timeline"``, recorded in every round.
      clients: which clients are drawn, in this order from above; by default all, at most 40.
      seconds: begin and end of the time that is drawn; by default that of the results.
      ax: where to draw; by default a new figure, the higher the more clients.
      labels: names of clients by their number.
      legend: whether to draw a legend.

    Returns:
      The axes.

    Raises:
      ValueError: results without the metric, with several runs, or without some rounds; clients
        that are not there or too many; a time range without a record.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, local_steps=5),
      ...     clock=fl.clock.Synchronous(fl.clock.Devices(seconds_per_step=[0.1, 0.1, 0.1, 0.4])),
      ...     metrics=["timeline"],
      ... )
      >>> ax = timeline(fl.run(simulation, rounds=3))
      >>> ax.get_xlabel(), len(ax.get_yticks())
      ('time [s]', 4)
      >>> plt.close(ax.figure)
    """
    values, ends = _recorded(results)
    numbers = _chosen_clients(results, clients, values.shape[1])
    begin = np.nanmin(values[..., 0], initial=np.inf)
    start, stop = _range(seconds, float(min(begin, ends[0])), float(ends[-1]))
    parts = _parts(values)
    single = _has_single_arrivals(values, ends)
    # The work of clients that had not arrived at the end is not recorded.
    last = np.full(values.shape[1], -np.inf if single else ends[-1])
    np.maximum.at(last, parts.client, parts.end)
    with style(**{"axes.grid": False}):
        is_new = ax is None
        if ax is None:
            width, _ = mpl.rcParams["figure.figsize"]
            _, ax = plt.subplots(figsize=(1.5 * width, 1.3 + 0.22 * max(len(numbers), 4)))
        for row, client in enumerate(numbers):
            _draw_client(ax, row, parts, client, (start, stop), float(last[client]))
        is_event = (ends >= start) & (ends <= stop)
        if single:
            is_event &= np.nansum(values[..., PHASES.index("arrived")], axis=1) > 0
        in_range = ends[is_event]
        thin = min(0.8, 24 / max(len(in_range), 1))
        ax.vlines(in_range, -0.5, len(numbers) - 0.5, color=LINE, linewidth=thin, zorder=1.5)
        names = [house_style.named(client, labels) for client in numbers]
        ax.set_yticks(range(len(numbers)), names)
        ax.tick_params(axis="y", length=0)
        ax.set(
            xlabel="time [s]",
            ylabel="client",
            xlim=(start, stop),
            ylim=(len(numbers) - 0.5, -0.5),
        )
        if legend:
            _draw_legend(ax, "arrival" if single else "end of a round", is_new)
    return ax


def _recorded(results: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The metric of one run, ``[T, K, 5]``, and when each of its rounds ended, ``[T]``.

    Raises:
      ValueError: results without the metric, with several runs, or without some rounds.
    """
    if "timeline" not in results or "seconds" not in results:
        raise ValueError(
            "a timeline is drawn of the metric 'timeline' of a run on a clock, and these results "
            "have none; record it, Simulation(clock=..., metrics=['timeline', ...])."
        )
    recorded = results["timeline"]
    if missing := [dim for dim in ("round", "client", "phase") if dim not in recorded.dims]:
        raise ValueError(f"'timeline' has no axis {missing[0]!r}; give all rounds and clients.")
    axes = [str(dim) for dim in recorded.dims if dim not in ("round", "client", "phase")]
    if several := [dim for dim in axes if recorded.sizes[dim] > 1]:
        which = ", ".join(f"{dim}={recorded[dim].values[0]!s}" for dim in several)
        sizes = ", ".join(f"{recorded.sizes[dim]} of {dim}" for dim in several)
        raise ValueError(f"a timeline is of one run, got {sizes}; choose, results.sel({which}).")
    run = results[["timeline", "seconds"]].squeeze(axes, drop=True)
    rounds = run["round"].values
    if not len(rounds) or (np.diff(rounds) != 1).any():
        raise ValueError(
            f"a timeline needs every round, got the records of {checks.shown(rounds.tolist())}; "
            "record each, record_every=1, and shorten it by seconds=(begin, end)."
        )
    values = run["timeline"].transpose("round", "client", "phase").values.astype(float)
    if np.isnan(values).all():
        raise ValueError("no client took part in these rounds; there is nothing to draw.")
    return values, run["seconds"].values.astype(float)


def _chosen_clients(results: xr.Dataset, clients: Sequence[int] | None, count: int) -> list[int]:
    """The numbers of the clients that are drawn.

    Raises:
      ValueError: clients that are not there or too many.
    """
    chosen = range(count) if clients is None else clients
    numbers = []
    for client in chosen:
        checks.count("a client of clients", client, at_least=0, at_most=count - 1)
        numbers.append(int(client))
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"clients must be one or more, each once, got {checks.shown(clients)}.")
    if len(numbers) > MOST_CLIENTS:
        raise ValueError(
            f"a timeline shows up to {MOST_CLIENTS} clients, got {len(numbers)}; choose some, such "
            "as clients=range(20)."
        )
    return numbers


def _range(seconds: tuple[float, float] | None, begin: float, end: float) -> tuple[float, float]:
    """The time that is drawn.

    Raises:
      ValueError: a time range that is empty, or in which there is no record.
    """
    if seconds is None:
        return begin, end
    checks.nonnegative("seconds", seconds)
    start, stop = map(float, seconds)
    if not start < stop:
        raise ValueError(f"seconds must be (begin, end) with begin < end, got {seconds}.")
    if stop <= begin or start >= end:
        raise ValueError(
            f"the results are from {begin:g} s to {end:g} s, got seconds={seconds}; give a part "
            "of it."
        )
    return start, min(stop, end)


def _parts(values: np.ndarray) -> WorkedParts:
    """The parts of all clients; one that never ends, as its client is not available again, is
    none.
    """
    taken = np.isfinite(values).all(axis=2)
    rows = values[taken]
    order = np.argsort(rows[:, 0], kind="stable")
    begin, *phases, arrived = rows[order].T
    client = np.nonzero(taken)[1][order]
    return WorkedParts(client, begin, np.stack(phases, axis=1), arrived > 0)


def _has_single_arrivals(values: np.ndarray, ends: np.ndarray) -> bool:
    """Whether clients have no rounds in common: some begin other than at the end of a round."""
    begins = np.concatenate([[np.nan], ends[:-1]])
    begins[0] = np.nanmin(values[0, :, 0], initial=np.inf)
    late = np.abs(values[..., 0] - begins[:, None]) > ROUNDING * ends[-1]
    return bool(late[np.isfinite(values[..., 0])].any())


def _draw_client(
    ax: Axes, row: int, parts: WorkedParts, client: int, limits: tuple[float, float], known: float
) -> None:
    """Draw a client's parts within some limits of time, and a cross for each that was lost."""
    start, stop = limits
    of_client = WorkedParts(*(part[parts.client == client] for part in parts))
    end = of_client.end
    slots = _slots(of_client.begin, end, ROUNDING * stop)
    height = HEIGHT / (1 + slots.max(initial=0))
    top = row - HEIGHT / 2 + height * slots
    bottom = np.array([row - HEIGHT / 2])
    idle = np.array([min(stop, known)])
    if idle[0] > start:
        rest = _rectangles(np.array([start]), idle, bottom, HEIGHT)
        ax.add_collection(PolyCollection(rest, facecolor=COLORS["idle"], zorder=1))
    shown = (end > start) & (of_client.begin < stop)
    edges = of_client.begin[:, None] + np.cumsum(of_client.phases, axis=1)
    edges = np.column_stack([of_client.begin, edges]).clip(start, stop)
    for i, name in enumerate(PHASES[1:4]):
        drawn = shown & (edges[:, i + 1] > edges[:, i])
        bars = _rectangles(edges[drawn, i], edges[drawn, i + 1], top[drawn], height)
        ax.add_collection(PolyCollection(bars, facecolor=COLORS[name], zorder=2))
    lost = shown & ~of_client.arrived & (end <= stop * (1 + ROUNDING))
    if lost.any():  # a line without points would take room in the layout
        ax.plot(end[lost], top[lost] + height / 2, markersize=4, zorder=3, clip_on=False, **CROSS)


def _slots(begin: np.ndarray, end: np.ndarray, rounding: float) -> np.ndarray:
    """For each part the first slot in which no earlier one is at work: all zero without overlaps.

    WorkedParts are in the order of their beginnings.
    """
    slots = np.zeros(len(begin), int)
    free: list[float] = []
    for i, (first, last) in enumerate(zip(begin, end, strict=True)):
        slot = next((s for s, until in enumerate(free) if until <= first + rounding), len(free))
        free[slot : slot + 1] = [last]
        slots[i] = slot
    return slots


def _rectangles(
    left: np.ndarray, right: np.ndarray, top: np.ndarray, height: float
) -> list[np.ndarray]:
    """The corners of rectangles, ``[4, 2]`` each."""
    bottom = top + height
    x = np.stack([left, right, right, left], axis=1)
    y = np.stack([top, top, bottom, bottom], axis=1)
    return list(np.stack([x, y], axis=2))


def _draw_legend(ax: Axes, line: str, is_new: bool) -> None:
    """A legend to the right of the axes."""
    handles: list[Any] = [Patch(facecolor=color) for color in COLORS.values()]
    handles += [Line2D([], [], **CROSS), Line2D([], [], color=LINE, linewidth=0.8)]
    names = [*COLORS, "not arrived", line]
    corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    drawn = house_style.listed(ax, handles, names, handlelength=1.2, **corner)
    if is_new:
        house_style.widen(house_style.whole(ax), drawn)
