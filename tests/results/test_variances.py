"""Shares of variance, against loops over pairs of runs and against known laws."""

import itertools

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import fljax as fl
from fljax.results.variances import variance_shares

SOURCES = ("partition", "start", "seed")


def looped(values):
    """``V_k`` by the definition: products over all pairs of runs, one by one."""
    sums = np.zeros(4)
    counts = np.zeros(4)
    for a, b in itertools.product(np.ndindex(values.shape), repeat=2):
        same = [x == y for x, y in zip(a, b, strict=True)]
        for common in range(4):
            if all(same[:common]) and not any(same[common:]):
                sums[common] += values[a] * values[b]
                counts[common] += 1
    means = sums / counts
    return np.diff(means) / (means[3] - means[0]), means[3] - means[0]


def test_shares_are_those_of_the_loop_over_pairs():
    values = np.random.default_rng(0).normal(5, 1, (4, 3, 5))
    estimated = variance_shares(xr.DataArray(values, dims=SOURCES), SOURCES)
    shares, variance = looped(values)
    np.testing.assert_allclose(estimated.share, shares, rtol=1e-10)
    np.testing.assert_allclose(estimated.variance, variance, rtol=1e-10)
    np.testing.assert_allclose(estimated.share.sum("source"), 1)


def test_other_axes_are_kept_and_the_order_of_axes_does_not_matter():
    values = xr.DataArray(
        np.random.default_rng(1).normal(size=(3, 4, 2, 5)),
        dims=("seed", "partition", "algorithm", "start"),
        coords={"algorithm": ["a", "b"]},
    )
    estimated = variance_shares(values, SOURCES)
    assert estimated.share.dims == ("algorithm", "source")
    for name in "ab":
        alone = values.sel(algorithm=name).transpose(*SOURCES).values
        np.testing.assert_allclose(estimated.share.sel(algorithm=name), looped(alone)[0], rtol=1e-9)


def drawn(rng, count, deviations):
    """A crossed design with main effects and the interaction of the first two axes."""
    p, s, r, ps = deviations
    return (
        rng.normal(0, p, (count, 1, 1))
        + rng.normal(0, s, (1, count, 1))
        + rng.normal(0, r, (1, 1, count))
        + rng.normal(0, ps, (count, count, 1))
        + rng.normal(0, 1, (count, count, count))
    )


def test_estimates_are_unbiased_and_interactions_belong_to_the_later_axis():
    rng = np.random.default_rng(2)
    deviations = (2.0, 0.5, 1.0, 1.5)
    p, s, r, ps = np.square(deviations)
    expected = np.array([p, s + ps, r + 1.0])
    explained = []
    for _ in range(2000):
        estimated = variance_shares(xr.DataArray(drawn(rng, 4, deviations), dims=SOURCES), SOURCES)
        explained.append(estimated.share.values * float(estimated.variance))
    error = np.std(explained, axis=0) / np.sqrt(len(explained))
    np.testing.assert_array_less(np.abs(np.mean(explained, axis=0) - expected), 4 * error)


def test_intervals_cover_the_true_shares():
    rng = np.random.default_rng(3)
    deviations = (1.0, 1.0, 1.0, 0.0)
    covered = []
    for _ in range(300):
        values = xr.DataArray(drawn(rng, 8, deviations), dims=SOURCES)
        estimated = variance_shares(values, SOURCES)
        truth = np.array([1, 1, 2]) / 4
        covered.append((estimated.low.values <= truth) & (truth <= estimated.high.values))
    assert np.mean(covered, axis=0).min() > 0.85


def test_intervals_add_the_jackknife_of_every_axis():
    """With Satterthwaite's degrees of freedom, axis by axis and draw by draw."""
    values = drawn(np.random.default_rng(4), 4, (1.0, 0.7, 0.5, 0.3))
    estimated = variance_shares(xr.DataArray(values, dims=SOURCES), SOURCES, level=0.9)
    parts = []
    for axis in range(3):
        less_one = [looped(np.delete(values, draw, axis))[0] for draw in range(4)]
        parts.append(3 / 4 * np.sum((less_one - np.mean(less_one, axis=0)) ** 2, axis=0))
    total = np.sum(parts, axis=0)
    freedom = total**2 / np.sum(np.square(parts) / 3, axis=0)
    reach = stats.t.ppf(0.95, freedom) * np.sqrt(total)
    np.testing.assert_allclose(estimated.high - estimated.share, reach, rtol=1e-9)
    np.testing.assert_allclose(estimated.share - estimated.low, reach, rtol=1e-9)


def test_two_draws_of_an_axis_give_no_interval():
    values = xr.DataArray(np.random.default_rng(5).normal(size=(2, 5)), dims=("start", "seed"))
    estimated = variance_shares(values, ("start", "seed"))
    assert np.isfinite(estimated.share).all()
    assert np.isnan(estimated.low).all()


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ([], "one or more different axes"),
        (["seed", "seed"], "one or more different axes"),
        (["other"], "axes with two draws or more, got 'other'"),
        (["one"], "axes with two draws or more, got 'one'"),
    ],
)
def test_bad_axes_are_named(sources, text):
    values = xr.DataArray(np.ones((3, 1)), dims=("seed", "one"))
    with pytest.raises(ValueError, match=text):
        variance_shares(values, sources)


def test_missing_runs_are_refused():
    values = xr.DataArray([1.0, np.nan, 2.0], dims="seed")
    with pytest.raises(ValueError, match="values must be finite"):
        variance_shares(values, ["seed"])


def test_it_is_among_the_statistics():
    assert fl.statistics.variance_shares is variance_shares
    assert "variance_shares" in fl.statistics.__all__
