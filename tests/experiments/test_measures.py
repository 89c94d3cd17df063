"""Measures on studies whose numbers are known."""

import numpy as np
import pytest
import xarray as xr

from experiments import measures
from experiments.figure import Estimate

ROUNDS = np.arange(10, 101, 10)


def constant_curves(**levels):
    """Constant curves, with noise in common."""
    noise = np.exp(0.1 * np.random.default_rng(0).normal(size=(5, len(ROUNDS))))
    data = np.array(list(levels.values()), float)[:, None, None] * noise
    return xr.Dataset(
        {
            "error": (("algorithm", "seed", "round"), data),
            "diverged": (("algorithm", "seed"), np.zeros((len(levels), 5), int)),
        },
        coords={"algorithm": list(levels), "round": ROUNDS},
    )


@pytest.mark.parametrize(
    ("window", "rounds"),
    [
        (measures.first_rounds(20), [10, 20]),
        (measures.last_rounds(20), [90, 100]),
        (measures.first_part(5), [10, 20]),
        (measures.last_part(5), [90, 100]),
        (measures.last_part(2), [60, 70, 80, 90, 100]),
    ],
)
def test_windows_keep_their_rounds(window, rounds):
    assert window(constant_curves(a=1))["round"].values.tolist() == rounds


def test_the_last_round_without_a_round_axis_is_the_data():
    last = measures.last(constant_curves(a=1))
    assert int(last["round"]) == 100
    xr.testing.assert_identical(measures.last(last), last)


def test_samples_are_of_one_method_without_diverged_runs():
    data = constant_curves(a=1, b=2)
    data["diverged"].loc[{"algorithm": "a", "seed": 3}] = 40
    result = measures.samples(data, "a", "error")
    assert result.shape == (5, 10)
    assert np.isnan(result).all(axis=1).tolist() == [False, False, False, True, False]
    budgets = data.expand_dims(budget=[1.0, 2.0])
    with pytest.raises(ValueError, match="axes \\['budget'\\] are left"):
        measures.samples(budgets, "a", "error")
    selected = measures.samples(budgets, {"algorithm": "a", "budget": 2.0}, "error")
    np.testing.assert_array_equal(selected, result)
    np.testing.assert_array_equal(measures.samples(budgets[{"budget": [0]}], "a", "error"), result)


def test_gaps_are_of_means_and_curve_gaps_means_of_distances():
    over = np.array([[1.0, 100.0]])
    under = np.array([[1.0, 1.0]])
    assert measures.gap(over, under).value == pytest.approx(10 * np.log10(50.5))
    assert measures.curve_gap(over, under).value == pytest.approx(10)
    assert measures.curve_gap(under, over).value == pytest.approx(-10)
    assert measures.curve_distance(under, over).value == pytest.approx(10)
    flat = measures.two(measures.last(constant_curves(a=10, b=1)), "a", "b", "error")
    for measure in (measures.gap, measures.curve_gap, measures.curve_distance):
        result = measure(*flat)
        assert result.value == pytest.approx(10)
        assert result.high - result.low < 1e-9  # paired: the common noise cancels


def test_the_gap_of_the_median_run_is_not_dominated_by_few_runs():
    under = np.full(11, 1.0)
    over = np.where(np.arange(11) < 2, 1e6, 0.5)
    result = measures.median_gap(over, under)
    np.testing.assert_allclose([result.value, result.low, result.high], 10 * np.log10(0.5))
    assert measures.gap(over, under).value > 40


def test_shares_are_per_cent():
    assert measures.saving(np.full(4, 2.0), np.full(4, 8.0)).value == 75
    result = measures.share(np.array([True, True, True, False]))
    assert (result.value, result.unit) == (75, "%")


def test_gaps_of_a_panel_are_named_by_their_pairs():
    def ratio(data, over, under):
        return measures.gap(*measures.two(data, over, under, "error"))

    result = measures.gaps("x", ("a", "b"), ("b", "a"), measure=ratio)(
        {"x": constant_curves(a=10, b=1)}
    )
    assert {k: round(e.value, 6) for k, e in result.items()} == {"a above b": 10, "b above a": -10}


def test_joined_studies_are_one():
    result = measures.joined(constant_curves(a=1), constant_curves(b=2))
    xr.testing.assert_allclose(result, constant_curves(a=1, b=2))


def test_a_statement_about_long_runs_fails_in_long_runs_only():
    for far in (Estimate(3.0, 2.0, 4.0), Estimate(-3.0, -4.0, -2.0)):
        assert measures.if_long_enough(far, (0, 1), long_enough=True) == far
        assert np.isnan(measures.if_long_enough(far, (0, 1), long_enough=False).value)
    for near in (Estimate(0.5, 0.2, 0.8), Estimate(0.9, 0.5, 1.3)):  # holds, and undecided
        assert measures.if_long_enough(near, (0, 1), long_enough=False) == near
