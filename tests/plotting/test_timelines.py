"""Timelines: bars against the recorded times, conservation of time, and refusals."""

import matplotlib as mpl

mpl.use("Agg")

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgba

import fljax as fl
from fljax.clock import (
    Asynchronous,
    Deadline,
    Devices,
    FirstArrivals,
    LogNormal,
    Synchronous,
    Ticks,
)
from fljax.plotting.timelines import COLORS, HEIGHT

CLIENTS = 6
PARTS = ("download", "compute", "upload")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


DEVICES = Devices(
    seconds_per_step=LogNormal(0.1, spread=0.8),
    upload_bits_per_second=LogNormal(500.0, spread=0.5),
    download_bits_per_second=2e3,
    latency_seconds=0.01,
    variation=LogNormal(1.0, spread=0.3),
    failure=0.15,
)


def run(clock, algorithm=None, rounds=8, **more):
    simulation = fl.Simulation(
        problem=fl.problems.ridge(jax.random.key(2), clients=CLIENTS, samples=8, dim=3),
        algorithm=algorithm or fl.algorithms.FedAvg(0.1, local_steps=4),
        clock=clock,
        metrics=["timeline"],
        **more,
    )
    return fl.run(simulation, rounds=rounds)


def by_hand(rounds, clients=3):
    """A dataset of one run: ``{(record, client): (begin, download, compute, upload, arrived)}``."""
    seconds, parts = rounds
    values = np.full((len(seconds), clients, 5), np.nan)
    for (record, client), part in parts.items():
        values[record, client] = part
    return xr.Dataset(
        {"timeline": (("round", "client", "phase"), values), "seconds": ("round", seconds)},
        {"round": range(1, len(seconds) + 1)},
    )


#: Client 1 is late in round 1 and client 2 takes no part in round 2.
COMMON = (
    [2.0, 5.0],
    {
        (0, 0): (0.0, 0.25, 1.0, 0.5, 1),
        (0, 1): (0.0, 0.25, 1.75, 0.0, 0),
        (0, 2): (0.0, 0.25, 1.25, 0.5, 1),
        (1, 0): (2.0, 0.5, 0.5, 1.0, 1),
        (1, 1): (2.0, 0.5, 2.0, 0.5, 1),
    },
)

#: Client 0 begins again after each arrival; client 2 does not arrive before the end.
SINGLE = (
    [1.0, 1.5, 2.5],
    {
        (0, 0): (0.0, 0.0, 0.5, 0.5, 1),
        (1, 1): (0.0, 0.5, 0.5, 0.5, 1),
        (2, 0): (1.0, 0.0, 1.0, 0.5, 1),
    },
)


def bars(ax):
    """For each name of a part the sorted ``(row, begin, end)`` of its bars."""
    drawn = {name: [] for name in COLORS}
    for collection in ax.collections:
        if not isinstance(collection, mpl.collections.PolyCollection):
            continue
        (color,) = collection.get_facecolor()
        (name,) = [n for n, c in COLORS.items() if np.allclose(to_rgba(c), color)]
        for path in collection.get_paths():
            x, y = path.vertices.T
            drawn[name].append((round(float(y.mean())), float(x.min()), float(x.max())))
    return {name: sorted(of_part) for name, of_part in drawn.items()}


def lines(ax):
    """The times of the vertical lines."""
    (collection,) = [c for c in ax.collections if isinstance(c, mpl.collections.LineCollection)]
    return [segment[0, 0] for segment in collection.get_segments()]


def crosses(ax):
    points = [line.get_xydata() for line in ax.lines if line.get_marker() == "x"]
    return sorted(tuple(point) for part in points for point in part.tolist())


def test_bars_are_the_parts_of_rounds():
    ax = fl.plotting.timeline(by_hand(COMMON))
    assert bars(ax) == {
        "download": [(0, 0, 0.25), (0, 2, 2.5), (1, 0, 0.25), (1, 2, 2.5), (2, 0, 0.25)],
        "compute": [(0, 0.25, 1.25), (0, 2.5, 3), (1, 0.25, 2), (1, 2.5, 4.5), (2, 0.25, 1.5)],
        "upload": [(0, 1.25, 1.75), (0, 3, 4), (1, 4.5, 5), (2, 1.5, 2)],
        "idle": [(row, 0, 5) for row in range(3)],
    }
    assert crosses(ax) == [(2.0, 1.0)]
    assert lines(ax) == [2.0, 5.0]
    assert ax.get_xlim() == (0, 5)
    assert ax.get_ylim() == (2.5, -0.5)  # the first client above
    assert ax.get_xlabel() == "time [s]"
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == [*COLORS, "not arrived", "end of a round"]


def test_the_time_after_the_last_arrival_of_a_client_is_blank():
    ax = fl.plotting.timeline(by_hand(SINGLE))
    drawn = bars(ax)
    assert drawn["idle"] == [(0, 0, 2.5), (1, 0, 1.5)]  # and nothing of client 2
    assert drawn["compute"] == [(0, 0, 0.5), (0, 1, 2), (1, 0.5, 1)]
    assert lines(ax) == [1.0, 1.5, 2.5]
    assert ax.get_legend().get_texts()[-1].get_text() == "arrival"


def test_a_line_is_drawn_where_a_single_message_arrived():
    seconds, parts = SINGLE
    failed = parts | {(1, 1): (0.0, 0.5, 0.5, 0.5, 0)}
    ax = fl.plotting.timeline(by_hand((seconds, failed)))
    assert lines(ax) == [1.0, 2.5]
    assert crosses(ax) == [(1.5, 1.0)]


def test_clients_and_a_range_of_time_are_selected():
    ax = fl.plotting.timeline(
        by_hand(COMMON), clients=[1, 0], seconds=(1.0, 2.75), labels={1: "phone"}
    )
    assert bars(ax) == {
        "download": [(0, 2, 2.5), (1, 2, 2.5)],
        "compute": [(0, 1, 2), (0, 2.5, 2.75), (1, 1, 1.25), (1, 2.5, 2.75)],
        "upload": [(1, 1.25, 1.75)],
        "idle": [(0, 1, 2.75), (1, 1, 2.75)],
    }
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["phone", "0"]
    assert lines(ax) == [2.0]
    assert crosses(ax) == [(2.0, 0.0)]
    assert not crosses(fl.plotting.timeline(by_hand(COMMON), seconds=(2.25, 3.0)))


def test_parts_that_overlap_share_the_row_of_their_client():
    parts = {
        (0, 0): (0.0, 0.0, 2.0, 0.5, 1),
        (1, 0): (1.0, 0.0, 0.5, 0.5, 1),
        (2, 0): (2.0, 0.0, 0.5, 0.5, 1),
        (0, 1): (0.0, 0.0, 0.5, 0.5, 1),
        (1, 1): (1.0 - 1e-7, 0.0, 0.5, 0.5, 1),  # by the rounding of single precision
    }
    ax = fl.plotting.timeline(by_hand(([1.0, 2.0, 3.0], parts), clients=2))
    colors = to_rgba(COLORS["compute"])
    rows = {0: [], 1: []}
    for collection in ax.collections:
        is_bar = isinstance(collection, mpl.collections.PolyCollection)
        if is_bar and np.allclose(collection.get_facecolor(), colors):
            for path in collection.get_paths():
                y = path.vertices[:, 1]
                rows[round(y.mean())].append((y.min(), y.max()))
    above, below = (-HEIGHT / 2, 0.0), (0.0, HEIGHT / 2)
    np.testing.assert_allclose(rows[0], [above, below, below])
    np.testing.assert_allclose(rows[1], [(1 - HEIGHT / 2, 1 + HEIGHT / 2)] * 2)


@pytest.mark.parametrize(
    "clock",
    [
        Synchronous(DEVICES),
        FirstArrivals(DEVICES, count=3),
        Deadline(DEVICES, seconds=0.8),
        Deadline(DEVICES, seconds=0.8, partial=True),
    ],
    ids=lambda clock: type(clock).__name__,
)
def test_the_bars_of_a_client_are_its_busy_seconds(clock):
    algorithm = fl.algorithms.FedAvg(0.1, local_steps=4, clients_per_round=4)
    results = run(clock, algorithm)
    ax = fl.plotting.timeline(results)
    drawn = bars(ax)
    busy = np.zeros(CLIENTS)
    for name in PARTS:
        for row, begin, end in drawn[name]:
            busy[row] += end - begin
    np.testing.assert_allclose(busy, results.client_busy_seconds, rtol=1e-5)
    took_part = results.timeline.notnull().any("phase").sum()
    arrived = (results.timeline.isel(phase=-1) == 1).sum()
    assert len(crosses(ax)) == took_part - arrived > 0
    np.testing.assert_allclose(lines(ax), results.seconds, rtol=1e-6)


def test_the_parts_of_single_arrivals_end_with_them():
    results = run(Asynchronous(DEVICES, concurrency=4), fl.algorithms.FedAsync(0.1), rounds=60)
    values = results.timeline.values
    assert (np.isfinite(values).all(-1).sum(1) == 1).all()
    ends = np.nansum(values[..., :4], axis=(1, 2))
    np.testing.assert_allclose(ends, results.seconds, rtol=1e-5)
    failed = np.nansum(values[..., 4], axis=1) == 0
    assert failed.any()  # whose parts end earlier than they would have
    np.testing.assert_allclose(
        lines(fl.plotting.timeline(results)), results.seconds[~failed], rtol=1e-6
    )


def test_messages_that_are_later_than_admitted_are_marked():
    devices = Devices(seconds_per_step=[0.1, 0.1, 0.1, 0.1, 0.1, 1.0])
    algorithm = fl.algorithms.FedBuff(0.1, local_steps=4, buffer_size=2)
    results = run(Ticks(devices, seconds=1.0, longest=3), algorithm, rounds=6)
    arrived = results.timeline.isel(phase=-1)
    assert (arrived.isel(client=slice(5)) == 1).all()
    assert (arrived.isel(client=5) == 0).all()  # four rounds late
    np.testing.assert_array_equal(results.timeline[:, 5, 2], 4.0)


def test_peers_have_no_download():
    devices = Devices(
        seconds_per_step=[0.1] * CLIENTS,
        upload_bits_per_second=1e3,
        download_bits_per_second=1e3,
        latency_seconds=0.01,
    )
    results = run(
        Synchronous(devices), fl.algorithms.CTA(0.1), network=fl.graphs.ring(CLIENTS), rounds=3
    )
    download, compute, upload = results.timeline.isel(phase=slice(1, 4)).transpose("phase", ...)
    assert (download == 0).all()
    np.testing.assert_allclose(compute, 0.1, rtol=1e-6)
    np.testing.assert_allclose(upload, 0.01 + 0.096, rtol=1e-6)  # three numbers of 32 bits
    np.testing.assert_allclose(
        (compute + upload).sum("round"), results.client_busy_seconds, rtol=1e-6
    )


def hand(**changes):
    return by_hand(COMMON).assign(changes)


@pytest.mark.parametrize(
    ("results", "options", "message"),
    [
        (hand().drop_vars("timeline"), {}, r"record it, Simulation\(clock=\.\.\., metrics="),
        (hand().drop_vars("seconds"), {}, "of a run on a clock"),
        (hand().isel(client=0), {}, "no axis 'client'"),
        (hand().isel(round=0), {}, "no axis 'round'"),
        (hand().assign_coords(round=[5, 10]), {}, r"needs every round.*record_every=1"),
        (
            hand().expand_dims(seed=[3, 4]),
            {},
            r"of one run, got 2 of seed; choose, results.sel\(seed=3\)",
        ),
        (hand(timeline=np.nan * hand().timeline), {}, "no client took part"),
        (hand(), {"clients": [3]}, "a client of clients must be"),
        (hand(), {"clients": []}, "one or more, each once"),
        (hand(), {"clients": [1, 1]}, "one or more, each once"),
        (hand(), {"seconds": (3.0, 2.0)}, "begin < end"),
        (hand(), {"seconds": (5.0, 9.0)}, "from 0 s to 5 s"),
        (
            by_hand(([1.0], {(0, 0): (0.0, 0.0, 0.5, 0.5, 1)}), clients=41),
            {},
            r"up to 40 clients, got 41; choose some, such as clients=range",
        ),
    ],
)
def test_results_without_a_timeline_are_refused(results, options, message):
    before = plt.get_fignums()
    with pytest.raises(ValueError, match=message):
        fl.plotting.timeline(results, **options)
    assert plt.get_fignums() == before


def test_one_seed_of_a_study_is_a_run():
    data = hand().expand_dims(seed=[3])
    assert bars(fl.plotting.timeline(data)) == bars(fl.plotting.timeline(hand()))
    axes = plt.subplots()[1]
    assert fl.plotting.timeline(data, range(2), ax=axes, legend=False) is axes
    assert axes.get_legend() is None
