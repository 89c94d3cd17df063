"""Bands by hand, diverged runs out of the mean and on the picture, labels, errors."""

import itertools

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import stats

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
    attrs = {"long_name": "normalized error", "units": "1", "decibel": 1} | attrs
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
    assert ax.get_ylabel() == "normalized error [m]"


def test_diverged_runs_are_left_out_counted_and_shown(pair):
    pair["normalized_error"][0, 1] = np.nan
    pair["normalized_error"][0, 1, 0] = 1e6  # finite before it diverged: must not count either
    pair["diverged"][0, 1] = 2
    ax = plotting.learning_curves(pair)
    finite = pair["normalized_error"].values[0, [0, 2, 3]]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10(finite.mean(0)))
    legend_texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend_texts == ["one (1/4 diverged)", "two"]


def test_a_single_curve_still_reports_diverged_runs():
    ax = plotting.learning_curves(study(np.ones((1, 3, 4)), [[0, 2, 0]]).isel(algorithm=0))
    assert "1/3 diverged" in ax.get_legend().get_texts()[0].get_text()


def test_labels_units_and_seeds_are_on_the_plot(pair):
    ax = plotting.learning_curves(pair, labels={"one": "first"})
    assert ax.get_xlabel() == "round"
    assert ax.get_ylabel() == "normalized error [dB]"
    assert ax.get_legend().get_texts()[0].get_text() == "first"
    assert [t.get_text() for t in ax.texts] == ["4 seeds, mean and 95 % band"]


def test_every_axis_says_its_quantity_and_unit(grid):
    grid["budget"].attrs = {"long_name": "bandwidth", "units": "bit/s"}
    lines = grid.isel(noise=0)
    assert plotting.trade_off(lines).get_xlabel() == "bandwidth [bit/s]"
    assert plotting.learning_curves(lines).get_legend().get_title().get_text() == (
        "bandwidth [bit/s]"
    )
    ax = plotting.heat_map(grid, x="budget", y="noise")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("bandwidth [bit/s]", "noise")
    rate = lines["normalized_error"].isel(round=0).assign_attrs(long_name="rate", units="Hz")
    ax = plotting.trade_off(lines.assign(rate=rate), against="rate")
    assert ax.get_xlabel() == "rate [Hz]"


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_values_of_an_axis_are_shown_and_named_as_typed(grid, precision):
    typed = grid.assign_coords(budget=np.array([10.0, 0.1, 0.3], precision)).isel(noise=0)

    def entries(ax):
        return [text.get_text() for text in ax.get_legend().get_texts()]

    assert entries(plotting.learning_curves(typed)) == ["10", "0.1", "0.3"]
    assert entries(plotting.learning_curves(typed, labels={0.1: "weak"})) == ["10", "weak", "0.3"]
    ticks = plotting.trade_off(typed).get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["10", "0.1", "0.3"]


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


def test_curves_differ_without_color_and_global_state_is_untouched(pair):
    before = dict(mpl.rcParams)
    ax = plotting.learning_curves(pair)
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
    assert ax.lines[0].get_marker() != ax.lines[1].get_marker()
    assert dict(mpl.rcParams) == before


@pytest.mark.slow
def test_learning_curves_plot_the_results_of_a_sweep(key):
    def scenario(key, penalty):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
            network=fl.graphs.ring(4),
            algorithm=fl.algorithms.NetworkedADMM(penalty),
            metrics=["normalized_error"],
        )

    results = fl.sweep(scenario, rounds=4, seeds=3, grid={"penalty": [0.5, 1.0]})
    assert len(plotting.learning_curves(results).lines) == 2
    assert len(plotting.trade_off(results, x="penalty").lines) == 1


def test_a_run_without_seeds_is_refused_and_a_metric_may_be_an_object(pair):
    with pytest.raises(ValueError, match=r"one run has no seed axis; run fljax\.sweep"):
        plotting.learning_curves(pair.isel(seed=0))
    by_name = plotting.learning_curves(pair)
    by_object = plotting.learning_curves(pair, fl.metrics.normalized_error)
    for line, expected in zip(by_name.lines, by_object.lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), expected.get_ydata())


def test_empty_plots_are_refused(pair):
    for draw, data, message in (
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
        data = data if isinstance(data, xr.Dataset) else pair.assign(normalized_error=data)
        with pytest.raises(ValueError, match=f"nothing of 'normalized_error'.*{message}"):
            draw(data)


@pytest.mark.parametrize("decibel", [0, 1])
def test_clients_are_sorted_within_each_run_from_the_worst_off(decibel):
    values = np.random.default_rng(0).gamma(2.0, size=(2, 4, 3, 5))  # methods, seeds, rounds
    attrs = {"long_name": "of each", "units": "1", "decibel": decibel}
    data = xr.Dataset(
        {"of_each": (("algorithm", "seed", "round", "client"), values, attrs)},
        {"algorithm": ["one", "two"], "round": [1, 2, 3], "client": range(5)},
    ).assign(other=(("seed", "parameter"), np.ones((4, 2))))
    for number, at in ((None, 2), (2, 1)):
        ax = plotting.by_client(data, "of_each", round=number)
        ordered = np.sort(values[:, :, at], axis=-1)
        if decibel:
            ordered = 10 * np.log10(ordered[..., ::-1].mean(axis=1))
        else:
            ordered = ordered.mean(axis=1)
        for line, expected in zip(ax.lines, ordered, strict=True):
            np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-12)
            np.testing.assert_allclose(line.get_xdata(), [0, 25, 50, 75, 100])
        assert ax.get_xlabel() == "clients, from the worst off [%]"
        assert ax.get_ylabel() == "of each [dB]" if decibel else "of each"
        assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    client = plotting.by_client(data.sel(algorithm="one"), "of_each")
    assert len(client.lines) == 1
    with pytest.raises(ValueError, match="unknown metric of each client 'other'; known: of_each"):
        plotting.by_client(data, "other")
    with pytest.raises(ValueError, match="round 9 was not recorded"):
        plotting.by_client(data, "of_each", round=9)


def test_draw_graph_shows_every_node_and_link():
    ax = plotting.draw_graph(fl.graphs.ring(7))
    assert len(ax.lines) == 7
    assert len(ax.collections[0].get_offsets()) == 7


def test_nodes_are_colored_by_a_number_of_each_with_its_label_and_unit():
    errors = xr.DataArray([0.1, 0.2, np.nan, 0.4], attrs={"long_name": "error", "units": "m"})
    ax = plotting.draw_graph(fl.graphs.ring(4), values=errors)
    bar = ax.figure.axes[1]
    assert bar.get_ylabel() == "error [m]"
    nodes = ax.collections[0]
    np.testing.assert_array_equal(nodes.get_array().filled(-1), [0.1, 0.2, -1, 0.4])
    ax.figure.canvas.draw()
    gray = nodes.get_facecolors()[2]
    dark = nodes.get_facecolors()[0]
    np.testing.assert_allclose(gray, mpl.colors.to_rgba("#cccccc"))
    np.testing.assert_allclose(dark, mpl.colormaps["viridis"](0.0))
    assert [text.get_text() for text in ax.texts] == ["gray: not finite"]
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
def test_colors_are_of_each_node(values):
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


def test_a_partition_is_drawn_from_the_results_of_a_run():
    counts = np.array([[[3, 0, 1], [2, 2, 2]], [[0, 5, 1], [1, 1, 4]]])
    study = xr.Dataset({"label_counts": (("seed", "client", "class"), counts)})
    ax = plotting.draw_partition(study.isel(seed=1))
    assert ax.get_title() == "12 samples of 3 classes at 2 clients"
    with pytest.raises(ValueError, match=r"several over seed; choose one, results.isel.seed=0."):
        plotting.draw_partition(study)
    with pytest.raises(ValueError, match="must have the variable 'label_counts'"):
        plotting.draw_partition(study.drop_vars("label_counts"))


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
    drawn_counts = ax.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(drawn_counts, 0), by_hand)
    np.testing.assert_array_equal(np.ma.getmaskarray(drawn_counts), np.equal(by_hand, 0))
    (bar,) = ax.figure.axes[1:]
    assert bar.get_ylabel() == "samples of a class (white: none)"
    ax.figure.draw_without_rendering()
    ticks = [tick.get_text() for tick in ax.get_yticklabels()]
    assert ticks == [str(10 * c) for c in range(0, classes, 2 if classes > 20 else 1)]
    boxes = [tick.get_window_extent() for tick in ax.get_yticklabels()]
    assert not any(low.overlaps(high) for low, high in itertools.pairwise(boxes))
    title = ax.title.get_window_extent()
    bars = ax.child_axes[0].get_window_extent()
    assert not title.overlaps(bars)


def test_invalid_partitions_are_named():
    labels = np.array([0, 0, 1])
    for problem, parts, message in (
        (np.eye(3), [np.arange(3)], r"labels must be one for each row, \[n\]"),
        (labels, [], "and 0 parts"),
        (labels, [np.array([3])], "whole numbers below 3, got .* of client 0"),
        (labels, [np.array([0]), np.array([0.5])], "of client 1"),
        (labels, [np.array([], int)], "none at any client"),
    ):
        with pytest.raises(ValueError, match=message):
            plotting.draw_partition(problem, parts)
    for problem in ([], [labels, np.eye(2)], labels):
        with pytest.raises(ValueError, match=r"without them a list of \[D_k\]"):
            plotting.draw_partition(problem)


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
    yield plotting.heat_map(budgets.assign_coords(budget=[0.1, 1.0]), intervals=True)
    yield plotting.draw_graph(fl.graphs.ring(5), values=np.arange(5), label="age [rounds]")
    yield plotting.draw_partition(labels, fl.data.iid(100, 5, seed=0))
    yield plotting.draw_partition(labels, fl.data.iid(100, 50, seed=0))
    yield plotting.network_map(fl.graphs.ring(5), np.eye(5)[:, :2], np.arange(5), unit="km")


@pytest.mark.slow
def test_every_plot_is_saved_with_type_42_fonts(pair, tmp_path):
    for ax in every_plot(pair):
        content = plotting.save_figure(ax, tmp_path / "picture.pdf").read_bytes()
        assert content.startswith(b"%PDF-1.")
        assert b"/FontFile2" in content
        assert b"/CIDFontType2" in content
        assert b"/Type3" not in content
        images = content.count(b"/Subtype /Image")
        assert images == len(ax.figure.axes) - 1  # a color bar's colors, and nothing else
        plt.close(ax.figure)
    assert mpl.rcParams["pdf.fonttype"] == 3  # of matplotlib's own, untouched


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_same_picture_gives_the_same_file(pair, tmp_path, ending):
    first, second = (
        plotting.save_figure(plotting.learning_curves(pair).figure, tmp_path / f"{name}.{ending}")
        for name in ("one", "other")
    )
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("ending", ["PDF", "Png", "svg"])
def test_a_picture_is_saved_in_the_home_folder_with_any_case_of_suffix(
    pair, tmp_path, monkeypatch, ending
):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = plotting.save_figure(plotting.learning_curves(pair), f"~/curves.{ending}")
    assert path == tmp_path / f"curves.{ending}"
    assert path.stat().st_size > 1000


@pytest.mark.slow
def test_nothing_is_hidden_or_cut_off(pair):
    for ax in every_plot(pair):
        figure = ax.figure
        figure.canvas.draw()
        legend = ax.get_legend()
        frame = figure.bbox
        for text in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts):
            if text.get_text() and ax.axison:
                box = text.get_window_extent()
                assert frame.x0 <= box.x0 < box.x1 <= frame.x1, text
                assert frame.y0 <= box.y0 < box.y1 <= frame.y1, text
        if legend is not None:
            box = legend.get_window_extent()
            assert box.x1 <= frame.x1
            assert not any(box.overlaps(text.get_window_extent()) for text in ax.texts)
            for line in ax.lines:
                assert not line.get_transform().transform_path(line.get_path()).intersects_bbox(box)
        plt.close(figure)


def test_a_legend_that_does_not_fit_is_placed_next_to_the_axes():
    rng = np.random.default_rng(3)
    crowded = study(10 ** rng.uniform(-3, 0, size=(2, 4, 60)))
    ax = plotting.learning_curves(crowded)
    ax.figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    extent = ax.get_window_extent()
    assert extent.x1 <= box.x0 < box.x1 <= ax.figure.bbox.x1
    alone = plotting.learning_curves(crowded.isel(algorithm=0))
    alone.figure.canvas.draw()
    assert extent.width > 0.95 * alone.get_window_extent().width
    free = plotting.learning_curves(study(np.ones((2, 4, 60)) * [[[1.0]], [[0.5]]]))
    assert free.figure.get_figwidth() == plotting.HOUSE["figure.figsize"][0]


def of_methods(count, letters):
    """A study of many methods; matplotlib would hide the first one's name."""
    text = "with a step size found by tuning, and with momentum of its own in all rounds"
    names = [f"{i:02d}" if letters < 4 else f"method {i} {text}"[:letters] for i in range(count)]
    values = 10 ** -np.random.default_rng(0).uniform(0, 3, size=(count, 2, 9))
    studies = [study(values[i : i + 1]) for i in range(count)]
    return xr.concat(studies, "algorithm").assign_coords(algorithm=[f"_{names[0]}", *names[1:]])


@pytest.mark.parametrize("letters", [3, 20, 40, 80])
@pytest.mark.parametrize("count", [1, 7, 25, 60])
@pytest.mark.thin(6)
def test_axes_keep_most_of_the_figure_for_any_names(count, letters):
    dataset = of_methods(count, letters)
    ax = plotting.learning_curves(dataset)
    figure = ax.figure
    legend = ax.get_legend()
    figure.canvas.draw()
    extent = ax.get_window_extent()
    frame = figure.bbox
    assert extent.width >= 0.6 * frame.width
    assert extent.height >= 0.6 * frame.height
    assert legend is None or len(legend.get_texts()) == count
    if legend is not None:
        box = legend.get_window_extent()
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1 + 1
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1 + 1
        legend_texts = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
        assert len(set(legend_texts)) == count
    plt.close(figure)


def test_a_method_whose_name_begins_with_an_underscore_is_in_the_legend(pair):
    ax = plotting.learning_curves(pair.assign_coords(algorithm=["_mine", "other"]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["_mine", "other"]


def test_twelve_curves_are_distinct_and_their_legend_names_the_axis(pair):
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
        assert plotting.save_figure(ax, tmp_path / name).stat().st_size > 1000
    with pytest.raises(ValueError, match=r"unknown ending of a picture's file '.doc'; known: "):
        plotting.save_figure(ax, tmp_path / "picture.doc")
    with pytest.raises(FileNotFoundError):
        plotting.save_figure(ax, tmp_path / "none" / "picture.pdf")


def test_bootstrap_is_paired_reproducible_and_leaves_diverged_seeds_out():
    rng = np.random.default_rng(1)
    scale = rng.lognormal(size=50)
    worse = 4 * scale
    better = scale * rng.uniform(0.9, 1.1, 50)
    result = statistics.bootstrap(lambda a, b: a / b, worse, better)
    assert result == statistics.bootstrap(lambda a, b: a / b, worse, better)
    value, low, high = result
    assert low < value < high
    assert high - low < 0.3  # unpaired, the interval would be several times as wide
    broken = np.concatenate([worse, [np.nan]])
    assert statistics.bootstrap(
        lambda a, b: a / b, broken, np.concatenate([better, [1.0]])
    ) == pytest.approx(result)


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
    with_models = pair.assign(
        model=(("algorithm", "seed", "client", "parameter"), np.zeros((2, 4, 5, 3)))
    )
    for expected, result in zip(
        plotting.learning_curves(pair).lines,
        plotting.learning_curves(with_models).lines,
        strict=True,
    ):
        np.testing.assert_array_equal(expected.get_ydata(), result.get_ydata())


# Panels and time ------------------------------------------------------------------------------


@pytest.fixture
def grid():
    """Three budgets and two noises, unsorted; seeds differ."""
    values = np.random.default_rng(4).gamma(3.0, size=(3, 2, 4, 5))
    attrs = {"long_name": "normalized error", "units": "1", "decibel": 1}
    return xr.Dataset(
        {
            "normalized_error": (("budget", "noise", "seed", "round"), values, attrs),
            "diverged": (("budget", "noise", "seed"), np.zeros((3, 2, 4), int)),
        },
        coords={
            "budget": ("budget", [10.0, 0.1, 1.0], {"long_name": "zCDP budget"}),
            "noise": ["weak", "strong"],
            "round": np.arange(2, 12, 2),
        },
    )


def test_panels_are_the_values_of_axes_with_their_curves(grid):
    panels = plotting.learning_curves(grid, col="budget", row="noise")
    assert panels.shape == (2, 3)
    for (r, c), ax in np.ndenumerate(panels):
        mean = grid["normalized_error"].isel(noise=r, budget=c).mean("seed")
        np.testing.assert_allclose(ax.lines[0].get_ydata(), 10 * np.log10(mean))
        assert ax.get_ylim() == panels[0, 0].get_ylim()
    assert panels[1, 1].get_title() == "noise = strong, zCDP budget = 0.1"
    figure = panels[0, 0].figure
    assert figure.get_supxlabel() == "round"
    assert figure.get_supylabel() == "normalized error [dB]"
    assert figure.get_suptitle() == "4 seeds, mean and 95 % band"
    assert not any(ax.texts for ax in panels.flat)
    assert not figure.legends  # of one curve


def test_panels_have_one_legend_and_the_same_looks(grid, tmp_path):
    grid["diverged"][0, 1, 2] = 3
    panels = plotting.learning_curves(grid, hue="noise", row="budget", labels={0.1: "a tenth"})
    assert panels.shape == (3, 1)
    (legend,) = panels[0, 0].figure.legends
    legend_texts = [text.get_text() for text in legend.get_texts()]
    assert legend_texts == ["weak", "strong (up to 1/4 diverged)"]
    assert not any(ax.get_legend() for ax in panels.flat)
    assert panels[1, 0].get_title() == "zCDP budget = a tenth"
    for i in (0, 1):
        assert len({ax.lines[i].get_color() for ax in panels.flat}) == 1
    figure = panels[0, 0].figure
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert box.x1 <= figure.bbox.x1
    assert box.x0 >= max(ax.get_window_extent().x1 for ax in panels.flat)
    assert plotting.save_figure(panels, tmp_path / "panels.png").stat().st_size > 1000


def test_a_panel_without_finite_values_is_marked(grid):
    grid["diverged"][1] = 2
    panels = plotting.learning_curves(grid, col="budget")
    texts = [[text.get_text() for text in ax.texts] for ax in panels[0]]
    assert texts == [[], ["no finite value"], []]
    with pytest.raises(ValueError, match="every run diverged"):
        plotting.learning_curves(grid.isel(budget=[1]), col="budget")


def test_a_metric_is_drawn_against_a_number_of_each_run():
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.5, 0.9, (2, 3, 4, 2))
    distance = rng.uniform(0, 1, (2, 3, 4))
    study = xr.Dataset(
        {
            "accuracy": (("algorithm", "concentration", "seed", "round"), accuracy),
            "label_distance": (
                ("algorithm", "concentration", "seed"),
                distance,
                {"long_name": "label distance"},
            ),
            "sizes": (("algorithm", "client"), np.ones((2, 5))),
        },
        {"algorithm": ["one", "two"], "concentration": [0.1, 1.0, 10.0], "round": [1, 2]},
    )
    ax = plotting.trade_off(study, "concentration", "accuracy", against="label_distance")
    assert ax.get_xlabel() == "label distance"
    assert ax.get_xscale() == "linear"
    for line, position in zip(ax.lines, range(2), strict=True):
        np.testing.assert_allclose(line.get_xdata(), distance[position].mean(-1))
        np.testing.assert_allclose(line.get_ydata(), accuracy[position, ..., -1].mean(-1))
    with pytest.raises(ValueError, match=r"against must be one number of each run.*client"):
        plotting.trade_off(study, "concentration", "accuracy", against="sizes")
    with pytest.raises(ValueError, match=r"against 'label_distanc'.*label_distance"):
        plotting.trade_off(study, "concentration", "accuracy", against="label_distanc")


def test_a_trade_off_has_panels_too_and_one_value_is_one_panel(grid):
    panels = plotting.trade_off(grid, col="noise")
    last = grid["normalized_error"].isel(round=-1).mean("seed")
    for c in (0, 1):
        np.testing.assert_allclose(
            panels[0, c].lines[0].get_ydata(), 10 * np.log10(last.isel(noise=c))
        )
    single = plotting.trade_off(grid.isel(noise=[1]), col="noise")
    assert [ax.get_title() for ax in single.flat] == ["noise = strong"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"col": "noises"}, "unknown axis 'noises'.*Did you mean 'noise'"),
        ({"col": "seed"}, "unknown axis 'seed'"),
        ({"row": "round"}, "unknown axis 'round'"),
        ({"col": "noise", "row": "noise"}, "hue, col and row must be different.*noise, noise"),
        ({"hue": "noise", "col": "noise"}, "must be different axes"),
        ({"hue": "noise"}, r"axes \['budget'\] .*sel\(budget=...\), or draw one as col or row"),
        ({}, r"axes \['budget', 'noise'\] .* or draw one as hue, col or row"),
        ({"metric": "accuracy", "col": "noise"}, "unknown metric 'accuracy'"),
    ],
)
def test_panels_are_of_axes_that_are_there(grid, options, message):
    before = plt.get_fignums()
    with pytest.raises(ValueError, match=message):
        plotting.learning_curves(grid, **options)
    with pytest.raises(ValueError, match="leave ax, or col and row, out"):
        plotting.learning_curves(grid, col="noise", ax=mpl.figure.Figure().subplots())
    assert plt.get_fignums() == before


def test_seconds_are_rounds_times_seconds_per_round(pair):
    ax = plotting.learning_curves(pair, x="seconds", seconds_per_round=0.5)
    np.testing.assert_allclose(ax.lines[0].get_xdata(), 0.5 * pair["round"])
    assert ax.get_xlabel() == "time [s]"
    assert ax.get_xscale() == "linear"
    seconds = xr.DataArray([0.5, 2.0], {"algorithm": ["one", "two"]}, "algorithm")
    ax = plotting.learning_curves(pair, x="seconds", seconds_per_round=seconds)
    np.testing.assert_allclose(ax.lines[1].get_xdata(), 2.0 * pair["round"])
    np.testing.assert_allclose(
        ax.lines[1].get_ydata()[-1],
        10 * np.log10(pair["normalized_error"].isel(algorithm=1, round=-1).mean("seed")),
    )


def on_clock(pair, **more):
    """The pair with seconds that differ between its runs."""
    seconds = 0.5 + np.random.default_rng(7).gamma(2.0, size=(2, 4, 6)).cumsum(-1)
    return pair.assign(seconds=(("algorithm", "seed", "round"), seconds), **more)


def curve_over_time(pair, method, seeds):
    """A function of the time: the mean and its interval over the last records of some seeds."""
    values = pair["normalized_error"].values[method]
    seconds = pair["seconds"].values[method]

    def at(time):
        last = [values[s][seconds[s] <= time][-1] for s in seeds]
        mean = np.mean(last)
        half = stats.t.ppf(0.975, len(seeds) - 1) * np.std(last, ddof=1) / np.sqrt(len(seeds))
        return 10 * np.log10([mean, mean * np.exp(-half / mean), mean * np.exp(half / mean)])

    return at


@pytest.mark.parametrize("lost", [None, 2])
def test_curves_over_time_are_means_at_the_same_time(pair, lost):
    data = on_clock(pair)
    if lost is not None:  # its clock, which differs most, does not count
        data["diverged"].values[1, lost] = 3
        data["seconds"].values[1, lost] = 1000 + np.arange(6)
    ax = plotting.learning_curves(data, x="seconds")
    seconds = data["seconds"].values
    for method in (0, 1):
        seeds = [seed for seed in range(4) if (method, seed) != (1, lost)]
        start = max(seconds[method, seed, 0] for seed in seeds)
        end = min(seconds[method, seed, -1] for seed in seeds)
        at, mean = ax.lines[method].get_data()
        assert (at[0], at[-1]) == (start, end)
        assert (np.diff(at) > 0).all()
        reference = curve_over_time(data, method, seeds)
        expected = np.array([reference(time) for time in at])
        np.testing.assert_allclose(mean, expected[:, 0], rtol=1e-12)
        drawn_at, low, high = band(ax, method)
        np.testing.assert_array_equal(drawn_at, at)
        np.testing.assert_allclose(np.transpose([low, high]), expected[:, 1:], rtol=1e-9)
    assert ax.get_xlabel() == "time [s]"
    assert ax.get_xscale() == "linear"


def test_times_that_seeds_have_in_common_are_those_of_the_records(pair):
    seconds = on_clock(pair)["seconds"].isel(seed=[0])
    data = pair.assign(seconds=seconds.isel(seed=[0] * 4))
    ax = plotting.learning_curves(data, x="seconds")
    for method in (0, 1):
        np.testing.assert_array_equal(ax.lines[method].get_xdata(), seconds[method, 0])


def test_notes_on_privacy_remain_over_time(pair):
    rho = xr.full_like(pair["normalized_error"], 0.1)
    data = on_clock(pair, privacy_rho=rho)
    notes = [text.get_text() for text in plotting.learning_curves(data, x="seconds").texts]
    assert any("privacy loss of one seed, not of all 4" in note for note in notes)


def test_seeds_without_a_common_time_are_refused(pair):
    data = on_clock(pair)
    data["seconds"].values[1, 3] += 1000
    message = r"first record of algorithm=two, seed=3 is at 1\d\d\d.* last of algorithm=two"
    with pytest.raises(ValueError, match=f"no time in common: the {message}"):
        plotting.learning_curves(data, x="seconds")


def test_energy_is_an_axis_as_other_efforts(pair):
    joules = 3.0 * on_clock(pair)["seconds"]
    ax = plotting.learning_curves(pair.assign(joules=joules), x="joules")
    at = joules.mean("seed").sel(algorithm="two")
    np.testing.assert_allclose(ax.lines[1].get_xdata(), at)
    assert ax.get_xscale() == "log"
    with pytest.raises(ValueError, match=r"use no energy; give Devices\(watts="):
        plotting.learning_curves(pair.assign(joules=0 * joules), x="joules")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"x": "seconds"},
            r"no clock: give one .*, or say .*, seconds_per_round=\.\.\., .*assign",
        ),
        ({"x": "second"}, "unknown x axis 'second'.*Did you mean 'seconds'"),
        ({"seconds_per_round": 1.0}, "seconds_per_round is for x='seconds', got x='round'"),
        ({"x": "seconds", "seconds_per_round": 0.0}, "seconds_per_round must be finite and > 0"),
        ({"x": "seconds", "seconds_per_round": "fast"}, "seconds_per_round must be"),
        (
            {"x": "seconds", "seconds_per_round": xr.DataArray([1.0, 2.0], dims="method")},
            "unknown axis of seconds_per_round 'method'; known: algorithm, seed",
        ),
        (
            {
                "x": "seconds",
                "seconds_per_round": xr.DataArray([1.0], {"algorithm": ["one"]}, "algorithm"),
            },
            "seconds_per_round must be of each algorithm, in this order: one, two",
        ),
    ],
)
def test_a_clock_is_reported_in_full(pair, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        plotting.learning_curves(pair, **options)


def test_a_clock_is_not_replaced_by_seconds_per_round(pair):
    busy = (("algorithm", "seed", "client"), np.ones((2, 4, 3)))
    with pytest.raises(ValueError, match=r"have a clock.*leave seconds_per_round out"):
        plotting.learning_curves(
            on_clock(pair, client_busy_seconds=busy), x="seconds", seconds_per_round=1.0
        )


def test_invalid_pictures_are_not_saved(tmp_path):
    for wrong in (np.empty((0, 2), object), np.array([[1.0]]), "picture", [None]):
        with pytest.raises(TypeError, match="a picture must be axes, an array of a figure's axes"):
            plotting.save_figure(wrong, tmp_path / "picture.png")


def test_a_band_of_an_accuracy_stays_below_one():
    values = np.random.default_rng(3).beta(9, 0.5, size=(2, 4, 6))
    data = study(values, decibel=0)
    assert band(plotting.learning_curves(data))[2].max() > 1
    data["normalized_error"].attrs |= {"least": 0.0, "greatest": 1.0}
    _, low, high = band(plotting.learning_curves(data))
    assert high.max() < 1
    assert (low < values[0].mean(0)).all()


# Heat maps --------------------------------------------------------------------------------------


def cell_texts(ax):
    """``[rows, columns]``, from the bottom up."""
    mesh = ax.collections[0].get_array()
    texts = [text.get_text() for text in ax.texts if text.get_gid() != plotting.NOTE]
    return np.reshape(texts, mesh.shape)


def note(ax):
    (result,) = (text.get_text() for text in ax.texts if text.get_gid() == plotting.NOTE)
    return result


def test_a_heat_map_has_the_mean_of_each_cell_as_color_and_number(grid):
    ax = plotting.heat_map(grid, x="budget", y="noise")
    means = 10 * np.log10(grid["normalized_error"].isel(round=-1).mean("seed"))
    expected = means.sortby("budget").transpose("noise", "budget")  # numbers ascend, labels stay
    np.testing.assert_allclose(ax.collections[0].get_array(), expected)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0.1", "1", "10"]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["weak", "strong"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("zCDP budget", "noise")
    assert ax.figure.axes[1].get_ylabel() == "normalized error [dB]"
    np.testing.assert_allclose(cell_texts(ax).astype(float), expected, atol=0.51)
    assert note(ax) == "mean over 4 seeds, round 10"
    swapped = plotting.heat_map(grid, round=4, y="budget", labels={"weak": "little"})
    assert swapped.get_xticklabels()[0].get_text() == "little"
    early = 10 * np.log10(grid["normalized_error"].sel(round=4).mean("seed")).sortby("budget")
    np.testing.assert_allclose(swapped.collections[0].get_array(), early)


def test_numbers_and_intervals_in_cells_equal_a_table(grid):
    ax = plotting.heat_map(grid, x="budget", y="noise", intervals=True, level=0.9)
    text = str(fl.table(grid, level=0.9))
    for cell in cell_texts(ax).flat:
        assert cell.replace("\n", " ") in text
    assert note(ax).startswith("mean [90 % interval] over 4 seeds")


def test_cells_that_lack_runs_are_marked_and_empty_ones_hatched(grid):
    grid["diverged"][0, 0, :2] = 3  # some
    grid["diverged"][1, 0] = 3  # all
    grid["normalized_error"][2, 1] = np.nan
    ax = plotting.heat_map(grid, x="budget", y="noise")
    texts = cell_texts(ax)
    assert texts[0, 0] == "--†"
    assert texts[1, 1] == "--"
    expected = 10 * np.log10(grid["normalized_error"][0, 0, 2:, -1].mean())
    assert float(texts[0, 2].removesuffix("†")) == pytest.approx(float(expected), abs=0.51)
    assert texts[0, 2].endswith("†")
    assert sum("†" in text for text in texts.flat) == 2
    hatched = [patch.get_xy() for patch in ax.patches if patch.get_hatch()]
    assert sorted(hatched) == [(0, 0), (1, 1)]
    np.testing.assert_array_equal(
        np.ma.getmaskarray(ax.collections[0].get_array()), [[1, 0, 0], [0, 1, 0]]
    )
    assert note(ax).splitlines()[1:] == [
        "† without runs that diverged, up to 4 of 4",
        "hatched: no finite value",
    ]


@pytest.mark.slow
def test_cell_text_shrinks_to_fit_or_only_marks_remain():
    shape = (40, 45)
    attrs = {"long_name": "error", "units": "m", "decibel": 0}
    many = xr.Dataset(
        {
            "error": (("a", "b", "seed"), np.random.default_rng(0).random((*shape, 3)), attrs),
            "diverged": (("a", "b", "seed"), np.zeros((*shape, 3), int)),
        }
    )
    many["diverged"][3, 4, 0] = 1
    ax = plotting.heat_map(many, "error")
    texts = cell_texts(ax)
    assert [*zip(*np.nonzero(texts != ""), strict=True)] == [(3, 4)]
    assert texts[3, 4] == "†"
    assert len(ax.get_xticklabels()) <= 20
    assert ax.figure.axes[1].get_ylabel() == "error [m]"
    tiny = mpl.figure.Figure((2, 2)).subplots()
    plotting.heat_map(many.isel(a=range(12), b=range(12)), "error", ax=tiny)
    assert [text for text in cell_texts(tiny).flat if text] == ["†"]
    few = plotting.heat_map(many.isel(a=range(12), b=range(12)), "error", intervals=True)
    few.figure.canvas.draw()
    cell_size = few.transData.transform((1, 1)) - few.transData.transform((0, 0))
    for text in few.texts:
        if text.get_gid() != plotting.NOTE:
            assert (text.get_window_extent().size <= cell_size).all()
    boxes = [tick.get_window_extent() for tick in few.get_xticklabels()]
    assert not any(left.overlaps(right) for left, right in itertools.pairwise(boxes))


def test_long_labels_are_turned(grid):
    labels = {value: f"a budget of as much as {value}" for value in (0.1, 1.0, 10.0)}
    ax = plotting.heat_map(grid, x="budget", y="noise", labels=labels)
    assert {tick.get_rotation() for tick in ax.get_xticklabels()} == {30.0}


def test_axes_of_a_metric_s_own_and_of_one_value_are_drawn_where_asked_for(grid):
    ax = plotting.heat_map(grid.isel(noise=[1]), x="budget", y="noise")
    assert cell_texts(ax).shape == (1, 3)
    attrs = {"long_name": "test accuracy", "units": "1", "decibel": 0, "least": 0.0}
    shares = np.random.default_rng(0).random((2, 3, 5))
    data = xr.Dataset(
        {"share": (("algorithm", "seed", "client"), shares, attrs)},
        coords={"algorithm": ["one", "two"]},
    )
    data["diverged"] = (("algorithm", "seed"), [[0, 0, 0], [2, 0, 0]])
    shares[1, 0] = np.nan
    ax = plotting.heat_map(data, "share")
    np.testing.assert_allclose(ax.collections[0].get_array(), np.nanmean(shares, 1))
    assert [["†" in text for text in row] for row in cell_texts(ax)] == [[False] * 5, [True] * 5]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("client", "algorithm")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "budgets"}, "unknown axis 'budgets'.*Did you mean 'budget'"),
        ({"x": "seed", "y": "budget"}, "unknown axis 'seed'"),
        ({"x": "round", "y": "budget"}, "unknown axis 'round'"),
        ({"x": "budget", "y": "budget"}, "x and y must be different axes, got 'budget' twice"),
        ({"metric": "accuracy"}, "unknown metric 'accuracy'"),
        ({"round": 3}, "round 3 was not recorded"),
        ({"level": 1.0}, "level must be"),
    ],
)
def test_a_heat_map_needs_two_existing_axes(grid, options, message):
    before = plt.get_fignums()
    with pytest.raises(ValueError, match=message):
        plotting.heat_map(grid, **options)
    assert plt.get_fignums() == before


def test_a_heat_map_states_left_out_and_missing_runs(grid):
    message = r"over two axes of 'normalized_error', which has 'noise' \(2\); say x= and y=.*trade_"
    with pytest.raises(ValueError, match=message):
        plotting.heat_map(grid.isel(budget=0))
    with pytest.raises(ValueError, match=r"has 'budget' \(1\), 'noise' \(2\)"):
        plotting.heat_map(grid.isel(budget=[0]))
    with_steps = xr.concat([grid, grid], "step").assign_coords(step=[0.1, 0.2])
    for options in ({}, {"x": "budget", "y": "step"}, {"x": "budget"}):
        with pytest.raises(ValueError, match=r"dataset\.sel\(\.\.\.\)"):
            plotting.heat_map(with_steps, **options)
    grid["diverged"][:] = 1
    with pytest.raises(ValueError, match="every run diverged"):
        plotting.heat_map(grid)
    with pytest.raises(ValueError, match="one run has no seed axis"):
        plotting.heat_map(grid.isel(seed=0))
