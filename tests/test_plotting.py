"""Bands by hand, diverged runs out of the mean and on the picture, labels, errors."""

import itertools

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax import plotting, statistics

T_975_3 = 3.182446305284263  # Student t, 3 degrees of freedom, from a table


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def study(values, diverged=None, **attrs):
    """[algorithm, seed, round] values as a dataset of results."""
    values = np.asarray(values, float)
    methods, seeds, rounds = values.shape
    lost = np.zeros((methods, seeds), int) if diverged is None else np.asarray(diverged)
    attrs = {"long_name": "normalised error", "units": "1", "decibel": 1} | attrs
    return xr.Dataset(
        {
            "normalized_error": (("algorithm", "seed", "round"), values, attrs),
            "diverged": (("algorithm", "seed"), lost),
        },
        coords={"algorithm": ["one", "two"][:methods], "round": np.arange(1, rounds + 1)},
    )


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    return study(rng.gamma(2.0, size=(2, 4, 6)))


def band(ax, index=0):
    """(x, low, high) of a filled band."""
    path = ax.collections[index].get_paths()[0].vertices
    at = np.unique(path[:, 0])
    return at, *(
        np.array([pick(path[path[:, 0] == x, 1]) for x in at]) for pick in (np.min, np.max)
    )


def test_the_curve_is_the_decibels_of_the_mean_and_the_band_is_students(pair):
    ax = plotting.learning_curves(pair)
    values = pair["normalized_error"].sel(algorithm="one").values
    mean = values.mean(0)
    half = T_975_3 * values.std(0, ddof=1) / 2 / mean
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10(mean), rtol=1e-12)
    _, low, high = band(ax)
    np.testing.assert_allclose(low, 10 * np.log10(mean * np.exp(-half)), rtol=1e-9)
    np.testing.assert_allclose(high, 10 * np.log10(mean * np.exp(half)), rtol=1e-9)


def test_a_heavy_tailed_band_stays_finite_in_decibels():
    ax = plotting.learning_curves(study([[[1e-9], [1e-9], [1e-9], [1.0]]] * 2))
    assert np.isfinite(np.concatenate(band(ax))).all()


def test_other_metrics_are_linear_with_the_ordinary_interval(pair):
    pair["normalized_error"].attrs |= {"decibel": 0, "units": "m"}
    ax = plotting.learning_curves(pair)
    values = pair["normalized_error"].sel(algorithm="two").values
    half = T_975_3 * values.std(0, ddof=1) / 2
    _, low, high = band(ax, 1)
    np.testing.assert_allclose([low, high], [values.mean(0) - half, values.mean(0) + half])
    assert ax.get_ylabel() == "normalised error [m]"


def test_diverged_runs_are_left_out_counted_and_shown(pair):
    pair["normalized_error"][0, 1] = np.nan
    pair["normalized_error"][0, 1, 0] = 1e6  # finite before it diverged: must not count either
    pair["diverged"][0, 1] = 2
    ax = plotting.learning_curves(pair)
    kept = pair["normalized_error"].values[0, [0, 2, 3]]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10(kept.mean(0)))
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["one (1/4 diverged)", "two"]


def test_a_single_curve_still_says_that_runs_diverged():
    ax = plotting.learning_curves(study(np.ones((1, 3, 4)), [[0, 2, 0]]).isel(algorithm=0))
    assert "1/3 diverged" in ax.get_legend().get_texts()[0].get_text()


def test_labels_units_and_seeds_are_on_the_plot(pair):
    ax = plotting.learning_curves(pair, labels={"one": "first"})
    assert ax.get_xlabel() == "iteration"
    assert ax.get_ylabel() == "normalised error [dB]"
    assert ax.get_legend().get_texts()[0].get_text() == "first"
    assert [t.get_text() for t in ax.texts] == ["4 seeds, mean and 95 % band"]


def test_one_seed_has_no_band(pair):
    ax = plotting.learning_curves(pair.isel(seed=[0]))
    assert [t.get_text() for t in ax.texts] == ["1 seed, no band"]
    assert np.isfinite(ax.lines[0].get_ydata()).all()


def test_trade_off_reads_the_last_round_on_a_logarithmic_axis(pair):
    wide = xr.concat([pair, 0.1 * pair], "budget").assign_coords(budget=[1.0, 10.0])
    wide["normalized_error"].attrs = pair["normalized_error"].attrs
    wide["diverged"] = wide["diverged"].astype(int)
    ax = plotting.trade_off(wide)
    assert ax.get_xscale() == "log"
    assert ax.get_xlabel() == "budget"
    first = pair["normalized_error"].values[0, :, -1].mean()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10([first, first / 10]))
    early = plotting.trade_off(wide, round=2)
    first = pair["normalized_error"].values[0, :, 1].mean()
    np.testing.assert_allclose(early.lines[0].get_ydata()[0], 10 * np.log10(first))
    with pytest.raises(ValueError, match="round 99 was not recorded; the nearest is 6"):
        plotting.trade_off(wide, round=99)
    with pytest.raises(ValueError, match=r"axis 'algorithm' must hold numbers, got one, two"):
        plotting.trade_off(pair, x="algorithm")
    with pytest.raises(ValueError, match=r"axes \['budget'\].*dataset.sel\(budget="):
        plotting.learning_curves(wide, hue="algorithm")


def test_unknown_names_are_refused_with_the_nearest(pair):
    with pytest.raises(ValueError, match="Did you mean 'normalized_error'"):
        plotting.learning_curves(pair, "normalised_error")
    with pytest.raises(ValueError, match="unknown metric 'diverged'"):
        plotting.learning_curves(pair, "diverged")
    with pytest.raises(ValueError, match="unknown axis 'methods'"):
        plotting.learning_curves(pair, hue="methods")


def test_curves_differ_without_colour_and_global_state_is_untouched(pair):
    before = dict(mpl.rcParams)
    ax = plotting.learning_curves(pair)
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    assert ax.lines[0].get_marker() != ax.lines[1].get_marker()
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_it_plots_what_a_sweep_returns(key):
    def scenario(key, penalty):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
            network=fl.graphs.ring(4),
            algorithm=fl.algorithms.NetworkedADMM(penalty),
            metrics=["normalized_error"],
        )

    found = fl.sweep(scenario, rounds=4, seeds=3, grid={"penalty": [0.5, 1.0]})
    assert len(plotting.learning_curves(found).lines) == 2
    assert len(plotting.trade_off(found, x="penalty").lines) == 1


def test_a_run_without_seeds_is_refused_and_a_metric_may_be_an_object(pair):
    with pytest.raises(ValueError, match=r"one run has no seed axis; run fljax\.sweep"):
        plotting.learning_curves(pair.isel(seed=0))
    by_name = plotting.learning_curves(pair)
    by_object = plotting.learning_curves(pair, fl.metrics.normalized_error)
    for one, other in zip(by_name.lines, by_object.lines, strict=True):
        np.testing.assert_array_equal(one.get_ydata(), other.get_ydata())


def test_plots_of_nothing_are_refused(pair):
    for draw, some, message in (
        (fl.plotting.learning_curves, pair.isel(seed=[]), "axis 'seed' is empty"),
        (fl.plotting.learning_curves, pair.isel(round=[]), "axis 'round' is empty"),
        (fl.plotting.trade_off, pair.isel(round=[]), "axis 'round' is empty"),
        (fl.plotting.learning_curves, np.nan * pair.normalized_error, "no value is finite"),
        (
            fl.plotting.learning_curves,
            pair.assign(diverged=1 + pair.diverged),
            "every run diverged",
        ),
    ):
        some = some if isinstance(some, xr.Dataset) else pair.assign(normalized_error=some)
        with pytest.raises(ValueError, match=f"nothing of 'normalized_error'.*{message}"):
            draw(some)


def test_draw_graph_shows_every_node_and_link():
    ax = plotting.draw_graph(fl.graphs.ring(7))
    assert len(ax.lines) == 7
    assert len(ax.collections[0].get_offsets()) == 7


def test_nodes_are_coloured_by_a_number_of_each_with_its_label_and_unit():
    errors = xr.DataArray([0.1, 0.2, np.nan, 0.4], attrs={"long_name": "error", "units": "m"})
    ax = plotting.draw_graph(fl.graphs.ring(4), values=errors)
    bar = ax.figure.axes[1]
    assert bar.get_ylabel() == "error [m]"
    nodes = ax.collections[0]
    np.testing.assert_array_equal(nodes.get_array().filled(-1), [0.1, 0.2, -1, 0.4])
    ax.figure.canvas.draw()
    grey, dark = nodes.get_facecolors()[2], nodes.get_facecolors()[0]
    np.testing.assert_allclose(grey, mpl.colors.to_rgba("#cccccc"))
    np.testing.assert_allclose(dark, mpl.colormaps["viridis"](0.0))
    assert [text.get_text() for text in ax.texts] == ["grey: not finite"]
    named = plotting.draw_graph(fl.graphs.ring(4), values=[0, 1, 2, 3], label="age [rounds]")
    assert named.figure.axes[1].get_ylabel() == "age [rounds]"
    assert not named.texts


def test_a_map_has_nodes_at_their_places_and_the_shapes_of_the_earth():
    towns = np.array([[60.0, 20.0], [70.0, 28.0], [62.0, 30.0], [64.0, 25.0]])
    graph = fl.graphs.from_edges(4, [(0, 3), (1, 3)], allow_disconnected=True)
    errors = xr.DataArray([0.1, 0.2, np.inf, 0.4], attrs={"long_name": "error", "units": "m"})
    ax = plotting.network_map(graph, towns, errors, metric="geodesic")
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), towns[:, ::-1])
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    assert drawn == [towns[[0, 3], ::-1].tolist(), towns[[1, 3], ::-1].tolist()]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("longitude [° E]", "latitude [° N]")
    assert ax.figure.axes[1].get_ylabel() == "error [m]"
    assert ax.get_aspect() == pytest.approx(1 / np.cos(np.deg2rad(65)))
    flat = plotting.network_map(graph, towns, unit="km")
    np.testing.assert_array_equal(flat.collections[0].get_offsets(), towns)
    assert (flat.get_xlabel(), flat.get_ylabel(), flat.get_aspect()) == ("x [km]", "y [km]", 1)
    assert len(flat.figure.axes) == 1


@pytest.mark.parametrize(
    ("places", "changes", "message"),
    [
        (np.ones((3, 2)), {}, "two of each of the 4 nodes"),
        (np.ones((4, 3)), {}, "two of each of the 4 nodes"),
        (np.full((4, 2), np.nan), {}, "coordinates holds 8 NaN"),
        (np.full((4, 2), 95.0), {"metric": "geodesic"}, "the latitude must be .* comes first"),
        (np.ones((4, 2)), {"metric": "geodetic"}, "unknown metric 'geodetic'.*'geodesic'"),
        (np.ones((4, 2)), {"values": [1.0]}, "a finite number of each of the 4 nodes"),
    ],
)
def test_a_map_needs_the_place_of_each_node(places, changes, message):
    before = plt.get_fignums()
    with pytest.raises(ValueError, match=message):
        plotting.network_map(fl.graphs.ring(4), places, **changes)
    assert plt.get_fignums() == before


@pytest.mark.parametrize("values", [np.ones(5), np.full(4, np.nan), np.ones((4, 1)), [1.0, 2.0]])
def test_colours_are_of_each_node(values):
    with pytest.raises(ValueError, match=r"values must be (a finite number of each|an array of 1)"):
        plotting.draw_graph(fl.graphs.ring(4), values=values)


def test_a_partition_s_dots_have_the_areas_of_its_counts():
    labels = np.array(["cat"] * 6 + ["dog"] * 4)
    ax = plotting.draw_partition(labels, [np.arange(5), np.array([5, 6]), np.array([7, 8, 9])])
    dots = ax.collections[0]
    np.testing.assert_array_equal(dots.get_offsets(), [[0, 0], [1, 0], [1, 1], [2, 1]])
    sizes = dots.get_sizes()
    np.testing.assert_allclose(sizes / sizes[0], [1, 1 / 5, 1 / 5, 3 / 5])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["cat", "dog"]
    legend = ax.get_legend()
    assert legend.get_title().get_text() == "samples"
    assert [text.get_text() for text in legend.get_texts()] == ["5", "2", "1"]
    np.testing.assert_allclose(
        [handle.get_sizes()[0] / sizes[0] for handle in legend.legend_handles], [1, 2 / 5, 1 / 5]
    )
    assert ax.get_title() == "10 samples of 2 classes at 3 clients"


def test_bars_above_a_partition_are_its_clients_sizes():
    ax = plotting.draw_partition([np.array([0, 0, 1]), np.array([], int), np.array([5])])
    (bars,) = ax.child_axes
    assert [bar.get_height() for bar in bars.patches] == [3, 0, 1]
    assert [bar.get_x() + bar.get_width() / 2 for bar in bars.patches] == [0, 1, 2]
    assert bars.get_ylabel() == "samples"
    np.testing.assert_array_equal(ax.collections[0].get_offsets(), [[0, 0], [0, 1], [2, 2]])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["0", "1", "5"]


@pytest.mark.parametrize(("clients", "classes"), [(41, 3), (5, 21)])
def test_a_large_partition_is_cells_with_a_scale_of_counts(clients, classes):
    labels = np.random.default_rng(0).integers(0, classes, 4000) * 10
    parts = fl.data.dirichlet(labels, clients, 0.3, seed=0)
    ax = plotting.draw_partition(labels, parts)
    by_hand = [[np.sum(labels[rows] == c) for rows in parts] for c in np.unique(labels)]
    shown = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(shown, 0), by_hand)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), np.equal(by_hand, 0))
    (bar,) = ax.figure.axes[1:]
    assert bar.get_ylabel() == "samples of a class (white: none)"
    ax.figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks == [str(10 * c) for c in range(0, classes, 2 if classes > 20 else 1)]
    boxes = [tick.get_window_extent() for tick in ax.get_yticklabels()]
    assert not any(low.overlaps(high) for low, high in itertools.pairwise(boxes))
    title, bars = ax.title.get_window_extent(), ax.child_axes[0].get_window_extent()
    assert not title.overlaps(bars)


def test_what_is_no_partition_is_named():
    labels = np.array([0, 0, 1])
    for some, parts, message in (
        (np.eye(3), [np.arange(3)], r"labels must be one of each row, \[n\]"),
        (labels, [], "and 0 parts"),
        (labels, [np.array([3])], "whole numbers below 3, got .* of client 0"),
        (labels, [np.array([0]), np.array([0.5])], "of client 1"),
        (labels, [np.array([], int)], "none at any client"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.draw_partition(some, parts)
    for some in ([], [labels, np.eye(2)], labels):
        with pytest.raises(ValueError, match=r"without them a list of \[D_k\]"):
            plotting.draw_partition(some)


def every_plot(pair):
    """A picture of each kind, the curves of one, three and twelve methods."""
    twelve = xr.concat([pair] * 6, "algorithm").assign_coords(algorithm=[*map(str, range(12))])
    budgets = xr.concat([pair, 2 * pair], "budget", combine_attrs="override")
    budgets["normalized_error"].attrs = pair["normalized_error"].attrs
    labels = np.repeat(range(4), 25)
    yield plotting.learning_curves(pair.isel(algorithm=0))
    yield plotting.learning_curves(twelve.isel(algorithm=[0, 1, 2]))
    yield plotting.learning_curves(twelve)
    yield plotting.trade_off(budgets.assign_coords(budget=[0.1, 1.0]))
    yield plotting.draw_graph(fl.graphs.ring(5), values=np.arange(5), label="age [rounds]")
    yield plotting.draw_partition(labels, fl.data.iid(100, 5, seed=0))
    yield plotting.draw_partition(labels, fl.data.iid(100, 50, seed=0))
    yield plotting.network_map(fl.graphs.ring(5), np.eye(5)[:, :2], np.arange(5), unit="km")


@pytest.mark.slow
def test_every_plot_is_saved_with_type_42_fonts(pair, tmp_path):
    for ax in every_plot(pair):
        content = plotting.save(ax, tmp_path / "picture.pdf").read_bytes()
        assert content.startswith(b"%PDF-1.")
        assert b"/FontFile2" in content
        assert b"/CIDFontType2" in content
        assert b"/Type3" not in content
        images = content.count(b"/Subtype /Image")
        assert images == len(ax.figure.axes) - 1  # a colour bar's colours, and nothing else
        plt.close(ax.figure)
    assert mpl.rcParams["pdf.fonttype"] == 3  # of matplotlib's own, untouched


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_same_picture_gives_the_same_file(pair, tmp_path, ending):
    one, other = (
        plotting.save(plotting.learning_curves(pair).figure, tmp_path / f"{name}.{ending}")
        for name in ("one", "other")
    )
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
def test_nothing_is_hidden_and_nothing_cut_off(pair):
    for ax in every_plot(pair):
        figure = ax.figure
        figure.canvas.draw()
        legend, whole = ax.get_legend(), figure.bbox
        for text in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts):
            if text.get_text() and ax.axison:
                box = text.get_window_extent()
                assert whole.x0 <= box.x0 < box.x1 <= whole.x1, text
                assert whole.y0 <= box.y0 < box.y1 <= whole.y1, text
        if legend is not None:
            box = legend.get_window_extent()
            assert box.x1 <= whole.x1
            assert not any(box.overlaps(text.get_window_extent()) for text in ax.texts)
            for line in ax.lines:
                assert not line.get_transform().transform_path(line.get_path()).intersects_bbox(box)
        plt.close(figure)


def test_a_legend_without_room_goes_beside_axes_that_stay_as_wide():
    rng = np.random.default_rng(3)
    crowded = study(10 ** rng.uniform(-3, 0, size=(2, 4, 60)))
    ax = plotting.learning_curves(crowded)
    ax.figure.canvas.draw()
    box, room = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert room.x1 <= box.x0 < box.x1 <= ax.figure.bbox.x1
    alone = plotting.learning_curves(crowded.isel(algorithm=0))
    alone.figure.canvas.draw()
    assert room.width > 0.95 * alone.get_window_extent().width
    free = plotting.learning_curves(study(np.ones((2, 4, 60)) * [[[1.0]], [[0.5]]]))
    assert free.figure.get_figwidth() == plotting.HOUSE["figure.figsize"][0]


def test_twelve_curves_can_be_told_apart_and_their_legend_names_the_axis(pair):
    twelve = xr.concat([pair] * 6, "algorithm").assign_coords(algorithm=[*map(str, range(12))])
    ax = plotting.learning_curves(twelve)
    looks = {
        (line.get_color(), line.get_linestyle(), line.get_marker(), line.get_markerfacecolor())
        for line in ax.lines
    }
    assert len(looks) == 12
    assert len({(color, face) for color, _, _, face in looks}) == 12
    assert ax.get_legend().get_title().get_text() == "algorithm"
    twelve["algorithm"].attrs["long_name"] = "method"
    ax = plotting.learning_curves(twelve)
    assert ax.get_legend().get_title().get_text() == "method"


@pytest.mark.slow
def test_a_picture_s_file_has_a_known_ending_and_a_folder(pair, tmp_path):
    ax = plotting.learning_curves(pair)
    for name in ("picture.png", "picture.svg", "picture.eps"):
        assert plotting.save(ax, tmp_path / name).stat().st_size > 1000
    with pytest.raises(ValueError, match=r"unknown ending of a picture's file '.doc'; known: "):
        plotting.save(ax, tmp_path / "picture.doc")
    with pytest.raises(FileNotFoundError):
        plotting.save(ax, tmp_path / "none" / "picture.pdf")


def test_bootstrap_is_paired_reproducible_and_leaves_diverged_seeds_out():
    rng = np.random.default_rng(1)
    scale = rng.lognormal(size=50)
    worse, better = 4 * scale, scale * rng.uniform(0.9, 1.1, 50)
    found = statistics.bootstrap(lambda a, b: a / b, worse, better)
    assert found == statistics.bootstrap(lambda a, b: a / b, worse, better)
    value, low, high = found
    assert low < value < high
    assert high - low < 0.3  # unpaired, the interval would be several times as wide
    broken = np.concatenate([worse, [np.nan]])
    assert statistics.bootstrap(
        lambda a, b: a / b, broken, np.concatenate([better, [1.0]])
    ) == pytest.approx(found)


def test_the_bootstrap_interval_covers_a_known_ratio():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        a = rng.gamma(5.0, size=40)
        b = a / 2 * rng.uniform(0.5, 1.5, 40)
        _, low, high = statistics.bootstrap(lambda a, b: a / b, a, b, resamples=400)
        hits += low < 2 < high
    assert hits > 175  # 95 % of 200 is 190


def test_models_that_were_kept_do_not_stand_in_the_way(pair):
    whole = pair.assign(
        model=(("algorithm", "seed", "client", "parameter"), np.zeros((2, 4, 5, 3)))
    )
    for known, found in zip(
        plotting.learning_curves(pair).lines, plotting.learning_curves(whole).lines, strict=True
    ):
        np.testing.assert_array_equal(known.get_ydata(), found.get_ydata())
