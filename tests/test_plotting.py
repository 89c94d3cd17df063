"""Bands by hand, diverged runs out of the mean and on the picture, labels, errors."""

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
