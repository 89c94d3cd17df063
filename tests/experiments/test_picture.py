"""The house of pictures: letters, legends below, one label a row, and faults that a reader sees."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from experiments import picture
from fljax import plotting


@pytest.fixture(autouse=True)
def printed():
    mpl.use("Agg")
    with picture.print_style():
        yield
    plt.close("all")


def curves(ax, *names):
    for number, name in enumerate(names):
        ax.plot([0, 1, 2], [number, number + 1, number], label=name)
    ax.set(xlabel="round", ylabel="error [dB]")


def legends(drawing):
    return [*drawing.legends, *(ax.get_legend() for ax in drawing.axes if ax.get_legend())]


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_panels_are_lettered_and_as_wide_as_the_page():
    drawing, axes = picture.panels(["one", "two", "three", "four"], columns=3, height=2.0)
    assert [ax.get_title() for ax in axes] == ["(a) one", "(b) two", "(c) three", "(d) four"]
    assert [*drawing.get_size_inches()] == [picture.PAGE, 4.0]
    assert drawing.axes == axes  # the two places left in the second row are gone


def test_a_single_panel_needs_no_letter():
    drawing, (ax,) = picture.panels(["alone"], sharey=True)
    assert ax.get_title() == "alone"
    assert drawing.get_figwidth() == picture.COLUMN


def test_panels_that_agree_share_one_legend_below_them():
    drawing, axes = picture.panels(["one", "two"])
    for ax in axes:
        curves(ax, "ours", "theirs")
        ax.legend(title="method")
    before = drawing.get_figheight()
    picture.finish(drawing)
    (legend,) = legends(drawing)
    assert drawing.legends == [legend]
    assert texts(legend) == ["ours", "theirs"]
    assert legend.get_title().get_text() == "method"
    assert drawing.get_figheight() > before
    drawing.draw_without_rendering()
    lowest = min(ax.get_tightbbox().y0 for ax in axes)
    assert legend.get_window_extent().y1 <= lowest


@pytest.mark.parametrize("other", ["theirs", "red"])
def test_panels_that_differ_keep_their_own_legends(other):
    """They differ in a name, or in the style of a curve of one name."""
    drawing, (left, right) = picture.panels(["one", "two"])
    curves(left, "ours")
    curves(right, "ours" if other == "red" else other)
    if other == "red":
        right.get_lines()[0].set_color("red")
    picture.finish(drawing)
    assert not drawing.legends
    assert [texts(legend) for legend in legends(drawing)] == [
        ["ours"],
        ["ours" if other == "red" else other],
    ]
    drawing.draw_without_rendering()
    for ax in (left, right):
        assert ax.get_legend().get_window_extent().y1 <= ax.get_window_extent().y0
    assert picture.faults(drawing) == []


def test_a_legend_of_algorithms_needs_no_title():
    drawing, (ax,) = picture.panels(["alone"])
    curves(ax, "ours")
    ax.legend(title="algorithm")
    picture.finish(drawing)
    assert ax.get_legend().get_title().get_text() == ""


def test_a_row_has_one_y_label():
    drawing, axes = picture.panels(["one", "two", "three", "four"], columns=2)
    for ax, label in zip(axes, ("error", "error", "error", "accuracy"), strict=True):
        curves(ax, "ours")
        ax.set_ylabel(label)
    picture.finish(drawing)
    assert [ax.get_ylabel() for ax in axes] == ["error", "", "error", "accuracy"]


def test_notes_of_all_panels_become_one_line_of_the_heading():
    data = xr.Dataset(
        {"error": (("algorithm", "seed", "round"), np.random.default_rng(0).random((2, 4, 3)))},
        {"algorithm": ["ours", "theirs"], "seed": np.arange(4), "round": [1, 2, 3]},
    )
    drawing, axes = picture.panels(["one", "two"])
    for ax in axes:
        plotting.learning_curves(data, "error", ax=ax)
    assert all(any(text.get_gid() == plotting.NOTE for text in ax.texts) for ax in axes)
    picture.finish(drawing, "a heading")
    assert not any(ax.texts for ax in axes)
    heading, notes = drawing.get_suptitle().split("\n")
    assert heading == "a heading"
    assert notes.count("4 seeds") == 1
    assert picture.faults(drawing) == []


def seeded(*sizes):
    """Studies of two methods that differ in how many seeds they have."""
    return [
        xr.Dataset(
            {"error": (("algorithm", "seed", "round"), 1 + np.arange(6.0 * n).reshape(2, n, 3))},
            {"algorithm": ["ours", "theirs"], "seed": np.arange(n), "round": [1, 2, 3]},
        )
        for n in sizes
    ]


def test_differing_notes_name_their_panels():
    drawing, axes = picture.panels(["one", "two", "three"])
    for ax, data in zip(axes, seeded(4, 5, 4), strict=True):
        plotting.learning_curves(data, "error", ax=ax)
    picture.finish(drawing)
    notes = drawing.get_suptitle()
    assert "(a), (c): 4 seeds, mean" in notes
    assert "; (b): 5 seeds, mean" in notes


def test_a_method_looks_as_in_all_of_its_chapter():
    _, (ax,) = picture.panels(["alone"])
    (data,) = seeded(4)
    data = data.assign_coords(algorithm=["ours (half)", "theirs"])
    plotting.learning_curves(data, "error", ax=ax)
    before = ax.lines[1].get_color()
    picture.recolor(ax, {"ours": {"color": "red", "linestyle": ":"}})
    assert [line.get_color() for line in ax.lines] == ["red", before]
    assert ax.lines[0].get_linestyle() == ":"
    assert mpl.colors.same_color(ax.collections[0].get_facecolor()[0, :3], "red")


def test_medians_are_reported_next_to_means_that_few_seeds_dominate():
    _, (ax,) = picture.panels(["alone"])
    (data,) = seeded(3)
    data["error"][0] = np.asarray([1.0, 1.0, 100.0])[:, None]
    data["error"].attrs["decibel"] = 1
    plotting.learning_curves(data, "error", ax=ax)
    picture.medians(ax, data, "error")
    mean, other, median, _ = ax.lines
    np.testing.assert_allclose(mean.get_ydata(), 10 * np.log10(34))
    np.testing.assert_allclose(median.get_ydata(), 0)
    assert median.get_color() == mean.get_color() != other.get_color()


def test_theory_is_named_with_its_value():
    _, (ax,) = picture.panels(["alone"])
    picture.theory(ax, -12.3456, "predicted")
    picture.predicted_curve(ax, np.arange(3), np.arange(3), "bound", color="red")
    level, curve = ax.get_lines()
    assert level.get_label() == "predicted: -12.3 dB"
    assert set(level.get_ydata()) == {-12.3456}
    assert (curve.get_label(), curve.get_color()) == ("bound", "red")
    assert level.get_linewidth() < mpl.rcParams["lines.linewidth"]


def test_a_legend_on_a_curve_is_a_fault():
    drawing, (ax,) = picture.panels(["alone"])
    curves(ax, "ours")
    ax.legend(loc="upper center")
    assert picture.faults(drawing) == ["alone: data below a legend or a note"]
    ax.get_legend().remove()
    assert picture.faults(drawing) == []


def test_a_legend_on_a_band_is_a_fault():
    drawing, (ax,) = picture.panels(["alone"])
    ax.fill_between([0, 1], [0, 0], [1, 1], label="band")
    ax.legend(loc="center")
    assert picture.faults(drawing) == ["alone: data below a legend or a note"]


def test_text_outside_of_the_picture_is_a_fault():
    drawing, (ax,) = picture.panels(["alone"])
    curves(ax, "ours")
    ax.set_title("far too long a title for one column of a journal " * 3, wrap=False)
    (result,) = picture.faults(drawing)
    assert re.search(r"far too long .* leaves the picture", result)


def test_changes_of_style_hold_inside_of_plotting():
    """Plotting sets the project's style itself and ignores outer changes of style."""
    with plotting.style(**{"font.size": 5.5}), plotting.style():
        assert mpl.rcParams["font.size"] == 5.5
        assert mpl.rcParams["axes.titlesize"] == picture.PRINT["axes.titlesize"]
    with plotting.style():
        assert mpl.rcParams["font.size"] == picture.PRINT["font.size"]


def test_a_notebook_shows_later_figures_too():
    """Its backend turns interactive mode on with the first figure, which may be ours."""
    before = mpl.is_interactive()
    try:
        mpl.interactive(False)
        with plotting.style():
            mpl.interactive(True)
        assert mpl.is_interactive()
    finally:
        mpl.interactive(before)


def test_one_legend_names_the_lines_of_all_panels():
    drawing, (left, right) = picture.panels(["one", "two"])
    left.plot([1, 2], label="known", color="C0")
    right.plot([2, 1], label="known", color="C0")
    picture.predicted_curve(right, np.arange(2), np.ones(2), "theory")
    picture.share_legend([left, right])
    picture.finish(drawing)
    (legend,) = drawing.legends
    assert [text.get_text() for text in legend.get_texts()] == ["known", "theory"]
    assert legend.get_lines()[1]._dash_pattern == right.get_lines()[1]._dash_pattern
    assert left.get_legend() is right.get_legend() is None


def test_long_notes_are_within_the_picture():
    with picture.print_style():
        drawn, axes = picture.panels(["one", "two"])
        for ax in axes:
            ax.plot([1, 2], label="a")
        axes[0].annotate(
            "a long note on the privacy of these seeds; " * 5, (0, 0), gid=plotting.NOTE
        )
        picture.finish(drawn, "heading")
        drawn.canvas.draw()
        title = drawn.get_suptitle()
        assert title.startswith("heading\n")
        assert " ".join(title.split()).count("a long note on the privacy") == 5
        box = drawn._suptitle.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= drawn.bbox.width
        plt.close(drawn)
