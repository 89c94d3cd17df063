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
    """In a name, or in the look of a curve of one name."""
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


def test_a_row_says_its_y_label_once():
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
    heading, said = drawing.get_suptitle().split("\n")
    assert heading == "a heading"
    assert said.count("4 seeds") == 1
    assert picture.faults(drawing) == []


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


def test_a_word_that_leaves_the_picture_is_a_fault():
    drawing, (ax,) = picture.panels(["alone"])
    curves(ax, "ours")
    ax.set_title("far too long a title for one column of a journal " * 3, wrap=False)
    (result,) = picture.faults(drawing)
    assert re.search(r"far too long .* leaves the picture", result)


def test_changes_of_style_hold_inside_of_plotting():
    """Plotting sets the house's style itself, and knows of what is changed around it."""
    with plotting.style(**{"font.size": 5.5}), plotting.style():
        assert mpl.rcParams["font.size"] == 5.5
        assert mpl.rcParams["axes.titlesize"] == picture.PRINT["axes.titlesize"]
    with plotting.style():
        assert mpl.rcParams["font.size"] == picture.PRINT["font.size"]
