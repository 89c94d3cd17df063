"""Comparisons by hand and by scipy's tests, their coverage on known distributions, missing runs."""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import fljax as fl
from fljax import statistics

NAMES = ["FedAvg", "PGFL", "Ditto", "IFCA"]
ENDS = ("low", "high")


def study(values, decibel=1, diverged=None):
    """[algorithm, seed] values as results at one round."""
    values = np.asarray(values, float)
    lost = np.zeros(values.shape, int) if diverged is None else np.asarray(diverged)
    dims = ("algorithm", "seed")
    return xr.Dataset(
        {"error": (dims, values, {"decibel": decibel, "units": "m"}), "diverged": (dims, lost)},
        coords={"algorithm": NAMES[: len(values)]},
    )


@pytest.fixture
def four():
    rng = np.random.default_rng(0)
    return study(
        rng.gamma(2.0, size=20)
        * rng.uniform([[0.5], [0.6], [1], [2]], [[1.5], [1.6], [3], [5]], (4, 20))
    )


def test_two_methods_on_a_linear_scale_are_the_paired_t_test():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 9))
    results = statistics.paired_differences(study([a, b], decibel=0), "error", baseline="FedAvg")
    t_test = stats.ttest_rel(b, a)
    interval = t_test.confidence_interval(0.95)
    compared = results.sel(algorithm="PGFL")
    assert float(compared["difference"]) == pytest.approx(np.mean(b - a), rel=1e-12)
    assert float(compared["p"]) == pytest.approx(t_test.pvalue, rel=1e-9)
    np.testing.assert_allclose([compared["low"], compared["high"]], interval, rtol=1e-9)
    assert results.attrs["unit"] == "m"
    assert [*results["algorithm"].values] == ["PGFL"]


def test_a_difference_in_decibels_is_that_of_the_means_with_the_jackknife_s_interval(four):
    a, b = four["error"].values[:2]
    result = statistics.paired_differences(four.isel(algorithm=[0, 1]), "error", "FedAvg")
    assert float(result["difference"][0]) == pytest.approx(10 * np.log10(b.mean() / a.mean()))
    without = [
        10 * np.log10(np.delete(b, s).mean() / np.delete(a, s).mean()) for s in range(len(a))
    ]
    error = np.sqrt((len(a) - 1) * np.var(without))
    reach = 2.0930240544082634  # Student t, 19 degrees of freedom, from a table
    assert (result["high"] - result["low"]).item() / 2 == pytest.approx(reach * error, rel=1e-9)
    assert result.attrs["unit"] == "dB"


def test_the_correction_covers_all_returned_comparisons(four):
    result = statistics.paired_differences(four, "error")
    assert result.sizes == {"pair": 6}
    assert result.attrs["comparisons"] == 6
    first_pair = four.isel(algorithm=[2, 3])
    other = four.isel(algorithm=[0, 1])
    alone = statistics.paired_differences(first_pair, "error", level=1 - 0.05 / 6)
    pair = result.sel(pair="Ditto - IFCA")
    for part in ("difference", "low", "high"):
        assert float(pair[part]) == pytest.approx(float(alone[part][0]), rel=1e-12)
    assert float(pair["p"]) == pytest.approx(min(1, 6 * float(alone["p"][0])))
    two_budgets = xr.concat([first_pair.assign_coords(algorithm=NAMES[:2]), other], "budget")
    result = statistics.paired_differences(two_budgets, "error", "FedAvg", "algorithm")
    assert result.sizes == {"budget": 2, "algorithm": 1}
    assert result.attrs["comparisons"] == 2


def test_an_interval_leaves_zero_out_where_its_p_value_is_small(four):
    for level in (0.5, 0.8, 0.95):
        result = statistics.paired_differences(four, "error", level=level)
        beyond = (result["low"] > 0) | (result["high"] < 0)
        assert (beyond == (result["p"] < 1 - level)).all()
    assert 0 < int(beyond.sum()) < 6


def test_a_pair_is_the_other_way_round_with_the_other_sign(four):
    by_pair = statistics.paired_differences(four, "error").sel(pair="FedAvg - IFCA")
    by_baseline = statistics.paired_differences(four, "error", "FedAvg").sel(algorithm="IFCA")
    assert float(by_pair["difference"]) == pytest.approx(-float(by_baseline["difference"]))


def test_pairs_with_a_diverged_run_are_left_out_and_counted(four):
    lost = np.zeros((4, 20), int)
    lost[0, 3] = 5
    lost[1, 3] = 5
    lost[1, 7] = 1
    values = four["error"].values.copy()
    values[lost > 0] = np.nan
    results = statistics.paired_differences(study(values, diverged=lost), "error")
    complete = statistics.paired_differences(
        study(np.delete(four["error"].values[[0, 1]], [3, 7], axis=1)), "error", level=1 - 0.05 / 6
    )
    assert [*results["runs"].values] == [18, 19, 19, 18, 18, 20]
    assert [*results["diverged"].values] == [2, 1, 1, 2, 2, 0]
    for part in ("difference", "low", "high"):
        assert float(results[part][0]) == pytest.approx(float(complete[part][0]), rel=1e-12)


def test_variation_shared_by_methods_on_a_seed_cancels():
    rng = np.random.default_rng(2)
    shared = rng.lognormal(size=30)
    values = shared * rng.uniform(0.9, 1.1, (2, 30))
    paired = statistics.paired_differences(study(values), "error")
    values[1] = rng.permutation(values[1])
    mixed = statistics.paired_differences(study(values), "error")
    assert float(paired["difference"][0]) == pytest.approx(float(mixed["difference"][0]))
    assert 5 * (paired["high"] - paired["low"]).item() < (mixed["high"] - mixed["low"]).item()


def test_equal_methods_have_no_difference_and_one_run_has_no_interval():
    same = statistics.paired_differences(study([[1.0, 2.0, 4.0]] * 2), "error")
    assert [float(same[part][0]) for part in ("difference", "low", "high", "p")] == [0, 0, 0, 1]
    single = statistics.paired_differences(study([[1.0], [10.0]]), "error", "FedAvg")
    assert float(single["difference"][0]) == pytest.approx(10.0)
    assert all(np.isnan(single[part][0]) for part in ("low", "high", "p"))


def missed(sampler, runs, methods, studies, seed):
    """Shares of studies with an interval that misses its true ratio, and with a rejected null."""
    rng = np.random.default_rng(seed)
    scale = np.linspace(1, 3, methods)
    misses = rejected = 0
    for _ in range(studies):
        values = sampler(rng, (1, runs)) * sampler(rng, (methods, runs))
        dims = ("algorithm", "seed")
        labels = {"algorithm": np.arange(methods)}
        data = xr.Dataset({"error": (dims, values * scale[:, None], {"decibel": 1})}, labels)
        result = statistics.paired_differences(data, "error", 0)
        truth = 10 * np.log10(scale[1:])
        misses += bool(((result["low"] > truth) | (result["high"] < truth)).any())
        null = data.assign(error=(dims, values, {"decibel": 1}))
        rejected += bool((statistics.paired_differences(null, "error", 0)["p"] < 0.05).any())
    return misses / studies, rejected / studies


def gamma(rng, shape):
    return rng.gamma(5.0, size=shape)


def chi_squares(rng, shape):
    return rng.chisquare(4, shape) / rng.chisquare(10, shape)


@pytest.mark.slow
def test_all_intervals_together_cover():
    """At 95 %, more than 5 of 30 studies miss once in 300 times."""
    assert max(missed(gamma, 20, 5, 30, seed=3)) <= 5 / 30


@pytest.mark.thin(0, every=4)
@pytest.mark.parametrize(
    ("sampler", "runs", "methods", "most"),
    [(gamma, 5, 12, 0.12), (gamma, 20, 2, 0.11), (gamma, 100, 12, 0.1), (chi_squares, 5, 12, 0.25)],
)
def test_coverage_matches_the_docstring(sampler, runs, methods, most):
    assert max(missed(sampler, runs, methods, 200, seed=4)) < most


@pytest.mark.slow
def test_the_bootstrap_s_intervals_would_not_all_cover():
    """The comparison does not use the bootstrap: few seeds, many comparisons."""
    rng = np.random.default_rng(5)
    level = 1 - 0.05 / 11
    misses = 0
    for _ in range(60):
        values = gamma(rng, (1, 5)) * gamma(rng, (12, 5))
        ends = [
            statistics.bootstrap(
                lambda a, b: np.log(a / b), values_of_method, values[0], level=level
            )
            for values_of_method in values[1:]
        ]
        misses += any(low > 0 or high < 0 for _, low, high in ends)
    assert misses / 60 > 0.3


def test_other_axes_keep_their_places(four):
    """In any order of axes, each budget's comparisons are those of its own runs."""
    budgets = [four.isel(seed=slice(k, None, 2)).assign_coords(seed=range(10)) for k in (0, 1)]
    budgets[1]["diverged"][1, 3] = 2
    joined = xr.concat(budgets, "budget").assign_coords(budget=[0.1, 1.0])
    joined["error"].attrs = four["error"].attrs
    for order in (("budget", "algorithm"), ("algorithm", "budget")):
        for baseline in (None, "FedAvg"):
            result = statistics.paired_differences(
                joined.transpose(*order, "seed"), "error", baseline, "algorithm", level=0.9
            )
            for k, budget in enumerate(budgets):
                expected = statistics.paired_differences(budget, "error", baseline, level=0.95)
                for part in ("difference", "low", "high", "runs", "diverged"):
                    np.testing.assert_allclose(
                        result[part].isel(budget=k), expected[part], rtol=1e-12
                    )


def test_a_mean_of_zero_has_no_decibels_and_no_comparison():
    results = statistics.paired_differences(
        study([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), "error", "FedAvg"
    )
    assert float(results["difference"][0]) == np.inf
    assert all(np.isnan(results[part][0]) for part in ("low", "high", "p"))
    partly_zero = statistics.paired_differences(
        study([[0.0, 0.0, 1.0], [1.0, 2.0, 3.0]]), "error", "FedAvg"
    )
    assert not float(partly_zero["p"][0]) < 1


def test_impossible_comparisons_are_named(four):
    two = xr.concat([four, four], "budget").assign_coords(budget=[0.1, 1.0])
    for data, options, message in (
        (four, {"baseline": "FedAvgs"}, "unknown baseline 'FedAvgs'.*Did you mean 'FedAvg'"),
        (
            two,
            {"baseline": 0.2, "along": "budget"},
            r"baseline must be one of 0\.1, 1\.0, got 0\.2",
        ),
        (two, {}, r"along= one of the axes \['budget', 'algorithm'\]"),
        (two, {"along": "budgets"}, "Did you mean 'budget'"),
        (four.isel(algorithm=[0]), {"along": "algorithm"}, "single value"),
        (four.isel(algorithm=0), {}, r"along= one of the axes \[\]"),
        (four.isel(seed=0), {}, "no seed axis"),
    ):
        with pytest.raises(ValueError, match=message):
            statistics.paired_differences(data, "error", **options)


def test_comparisons_read_the_requested_round(four):
    rounds = xr.concat([four, 2 * four["error"].max() - four], "round")
    rounds = rounds.assign(diverged=four["diverged"]).assign_coords(round=[5, 10])
    rounds["error"].attrs = four["error"].attrs
    for at, selected in ((5, four), (None, rounds.isel(round=-1))):
        result = statistics.paired_differences(rounds, "error", round=at)
        xr.testing.assert_equal(result, statistics.paired_differences(selected, "error"))
        assert result.attrs["round"] == (at or 10)
    with pytest.raises(ValueError, match="round 6 was not recorded; the nearest is 5"):
        statistics.paired_differences(rounds, "error", round=6)
    with pytest.raises(ValueError, match="axis 'round' is empty"):
        statistics.paired_differences(rounds.isel(round=[]), "error")


def test_samples_of_the_bootstrap_are_of_the_same_seeds():
    for samples in ((), (np.ones(3), np.ones(4)), (np.array(1.0),)):
        with pytest.raises(ValueError, match="samples must be one or more arrays of as many seeds"):
            statistics.bootstrap(lambda *means: means[0], *samples)
    with pytest.raises(TypeError, match="a sample must be an array of real numbers"):
        statistics.bootstrap(lambda mean: mean, "text")
    curves = statistics.bootstrap(lambda a, b: b[:, 0] / a, np.ones(3), np.ones((3, 2)))
    assert curves == (1.0, 1.0, 1.0)


def test_the_public_package_has_them():
    assert fl.statistics is statistics


def test_decibels_are_labeled_and_not_converted_twice():
    data = xr.Dataset(
        {"error": ("seed", [1.0, 0.1], {"units": "1", "decibel": 1, "long_name": "e"})}
    )
    once = statistics.decibels(data)
    assert statistics.label_of(once, "error") == "e [dB]"
    assert not statistics.is_decibel(once, "error")
    np.testing.assert_allclose(once.error, [0.0, -10.0])
    for twice in (once, once.error):
        with pytest.raises(ValueError, match="error is in dB already"):
            statistics.decibels(twice)
    assert data.error.attrs["units"] == "1"


@pytest.mark.parametrize(
    ("bounds", "values", "ends"),
    [
        # logit(0.95) -+ t s / sqrt(n) / (0.95 * 0.05), by SciPy's logit and expit
        ((0.0, 1.0), [0.9, 1.0, 0.92, 0.98], (0.79405554, 0.98943232)),
        ((0.0, 100.0), [90.0, 100.0, 92.0, 98.0], (79.405554, 98.943232)),
        ((-1.0, 1.0), [0.8, 1.0, 0.84, 0.96], (0.58811108, 0.97886464)),
        ((0.0, 1.0), [1.0, 1.0 + 1e-7, 1.0, 1.0], (1.0, 1.0)),
        ((0.0, 1.0), [0.0, 0.0, 0.0, 0.0], (0.0, 0.0)),
        ((0.0, 1.0), [0.5, 0.5, 0.5, 0.5], (0.5, 0.5)),
    ],
)
def test_the_interval_of_a_bounded_metric_stays_within(bounds, values, ends):
    attrs = dict(zip(("least", "greatest"), bounds, strict=True))
    result = statistics.summary(xr.Dataset({"share": ("seed", values, attrs)}), "share")
    assert float(result["mean"]) == pytest.approx(np.mean(values))
    np.testing.assert_allclose([result["low"], result["high"]], ends, rtol=1e-7)


def test_one_bound_is_kept_as_that_of_decibels():
    values = np.array([1.0, 2.0, 6.0])
    decibel = statistics.summary(xr.Dataset({"m": ("seed", values, {"decibel": 1})}), "m")
    for sign, shift, attrs in ((1, 0.0, {"least": 0.0}), (-1, 5.0, {"greatest": 5.0})):
        data = xr.Dataset({"m": ("seed", shift + sign * values, attrs)})
        result = statistics.summary(data, "m")
        ends = sorted(shift + sign * float(decibel[end]) for end in ("low", "high"))
        np.testing.assert_allclose([result["low"], result["high"]], ends)


def test_the_interval_of_an_accuracy_covers():
    draws = np.random.default_rng(0).beta(9.0, 1.0, size=(2000, 5))  # of mean 0.9
    data = xr.Dataset({"share": (("study", "seed"), draws)})
    usual = statistics.summary(data, "share")
    data["share"].attrs |= {"least": 0.0, "greatest": 1.0}
    result = statistics.summary(data, "share")
    covered = [float(((s["low"] <= 0.9) & (s["high"] >= 0.9)).mean()) for s in (usual, result)]
    assert covered[0] < 0.91 < 0.93 < covered[1]
    assert float(usual["high"].max()) > 1 > float(result["high"].max())


def test_values_outside_of_the_bounds_are_named():
    data = xr.Dataset({"share": ("seed", [12.0, 98.0], {"least": 0.0, "greatest": 1.0})})
    message = r"'share' has values from 12 to 98, outside of its bounds 0 and 1; .*attrs\['least'\]"
    with pytest.raises(ValueError, match=message):
        statistics.summary(data, "share")
    data["share"].attrs["greatest"] = 100.0
    assert float(statistics.summary(data, "share")["high"]) < 100


def test_bounds_do_not_apply_to_decibels():
    data = xr.Dataset({"share": ("seed", [0.5, 0.9], {"least": 0.0, "greatest": 1.0})})
    assert set(statistics.decibels(data)["share"].attrs) == {"units"}


def test_differences_of_accuracies_are_at_most_one():
    values = [[1.0, 0.2, 0.9], [0.1, 0.9, 0.3]]
    attrs = {"least": 0.0, "greatest": 1.0}
    data = xr.Dataset({"share": (("a", "seed"), values, attrs)}, {"a": ["one", "two"]})
    result = statistics.paired_differences(data, "share")
    assert (float(result["low"].item()), float(result["high"].item())) == (-1.0, 1.0)
    assert float(result["difference"].item()) == pytest.approx(0.8 / 3)


@pytest.mark.slow
def test_a_metric_states_its_bounds_in_the_results(key):
    def share(now):
        return jnp.mean(now.model > 0, dtype=now.model.dtype)

    simulation = fl.Simulation(
        problem=fl.problems.ridge(key, clients=4, samples=5, dim=2),
        algorithm=fl.algorithms.FedAvg(0.05, epochs=1),
        metrics=[
            fl.metrics.Metric("positive", share, "positive", decibel=False, bounds=(0.0, 1.0)),
            "mean_square_deviation",
        ],
    )
    results = fl.sweep(lambda key: simulation, rounds=2, seeds=3)
    assert (results["positive"].attrs["least"], results["positive"].attrs["greatest"]) == (0, 1)
    assert "least" not in results["mean_square_deviation"].attrs
    assert fl.metrics.accuracy.bounds == fl.metrics.client_accuracy.bounds == (0.0, 1.0)
    for bad in ((1.0, 0.0), (0.0, float("nan"))):
        with pytest.raises(ValueError, match=r"bounds of the metric 'm' must be \(least, greatest"):
            fl.metrics.Metric("m", share, "m", bounds=bad)


# The best ----------------------------------------------------------------------------------------


def swept(errors, diverged=0, **more):
    """``[algorithm, step_size, seed]`` at the last of two rounds, ten times that at the first."""
    errors = np.asarray(errors, float)
    dims = ("algorithm", "step_size", "seed")
    lost = np.broadcast_to(diverged, errors.shape)
    two = np.stack([10 * errors[:, ::-1], errors], axis=-1)
    return xr.Dataset(
        {
            "error": ((*dims, "round"), two, {"decibel": 1}),
            "diverged": (dims, lost),
            "bits": ((*dims, "round"), np.arange(two.size).reshape(two.shape)),
            **more,
        },
        coords={
            "algorithm": ["FedAvg", "PGFL"],
            "step_size": ("step_size", [0.1, 0.2, 0.5], {"long_name": "step size"}),
            "round": [5, 10],
        },
    )


#: Best at the end: 0.5 of the first, 0.1 of the second.
ERRORS = [[[4, 2], [3, 3], [1, 2]], [[3, 5], [9, 7], [6, 6]]]


def test_each_method_gets_its_best_value():
    data = swept(ERRORS)
    result = fl.best(data, "error", over="step_size")
    assert result.step_size.values.tolist() == [0.5, 0.1]
    assert dict(result.sizes) == {"algorithm": 2, "seed": 2, "round": 2}
    for method, step in (("FedAvg", 0.5), ("PGFL", 0.1)):
        got = result.sel(algorithm=method)
        expected = data.sel(algorithm=method, step_size=step)
        xr.testing.assert_identical(got, expected)
    assert fl.best(data, "error", "step_size", of="max").step_size.values.tolist() == [0.1, 0.2]
    assert fl.best(data, "error", "step_size", round=5).step_size.values.tolist() == [0.1, 0.5]
    best = fl.best(data, "error", ["algorithm", "step_size"])
    assert (best.algorithm.item(), best.step_size.item()) == ("FedAvg", 0.5)
    alone = fl.best(data.sel(algorithm="PGFL"), "error", over="step_size")
    xr.testing.assert_identical(alone, data.sel(algorithm="PGFL", step_size=0.1))


def test_a_value_at_which_more_runs_diverged_is_not_best():
    lost = np.zeros((2, 3, 2), int)
    lost[0, 2, 0] = 7
    result = fl.best(swept(ERRORS, lost), "error", "step_size")
    assert result.step_size.values.tolist() == [0.1, 0.1]  # of two that tie the first
    lost[0, :, 1] = 7
    lost[0, 0] = 7  # all of the first step, both of the last, one of the second
    assert fl.best(swept(ERRORS, lost), "error", "step_size").step_size.values[0] == 0.2
    infinite = np.array(ERRORS, float)
    infinite[0, 2, 1] = np.inf
    assert fl.best(swept(infinite), "error", "step_size").step_size.values[0] == 0.1


def test_the_best_is_of_the_runs_that_are_there():
    errors = np.array(ERRORS, float)
    done = np.ones((2, 3, 2), bool)
    done[0, 2, 0] = done[1, 0, 1] = False
    done[1, 1] = False
    errors[~done] = np.nan
    data = swept(errors, np.where(done, 0, np.nan), done=(("algorithm", "step_size", "seed"), done))
    assert fl.best(data, "error", "step_size").step_size.values.tolist() == [0.5, 0.1]


def test_the_chosen_values_are_in_the_table():
    result = fl.best(swept(ERRORS), "error", over="step_size")
    head, _, first_row, second_row = fl.table(result, "error").markdown().splitlines()[:4]
    assert head.startswith("| algorithm | step size | error [dB] |")
    assert first_row.startswith("| FedAvg | 0.5 | 2 [")
    assert second_row.startswith("| PGFL | 0.1 | 6 [")
    assert fl.table(result, "error").frame.step_size.tolist() == [0.5, 0.1]
    assert r"FedAvg & 0.5 & $2" in fl.table(result, "error").latex()
    over_both = fl.table(fl.best(swept(ERRORS), "error", over=["algorithm", "step_size"]))
    assert "over 2 seeds, algorithm FedAvg, step_size 0.5, round 10." in over_both.note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "eror"}, "unknown metric 'eror'.* Did you mean 'error'"),
        ({"over": "step"}, "unknown axis 'step'; known: algorithm, step_size"),
        ({"over": "seed"}, "unknown axis 'seed'"),
        ({"over": []}, "over one or more axes, each once, got"),
        ({"over": ["step_size", "step_size"]}, "each once, got"),
        ({"of": "least"}, "unknown of 'least'; known: min, max"),
        ({"round": 7}, "round 7 was not recorded; the nearest is 5"),
        ({"metric": "each"}, r"'each' has an axis of its own, 'client'; reduce it first"),
    ],
)
def test_impossible_choices_are_named(options, message):
    each = (("algorithm", "step_size", "seed", "client"), np.ones((2, 3, 2, 4)))
    with pytest.raises(ValueError, match=message):
        fl.best(swept(ERRORS, each=each), **{"metric": "error", "over": "step_size"} | options)


def test_without_another_choice_the_point_is_named():
    lost = np.zeros((2, 3, 2), int)
    lost[1] = 3
    with pytest.raises(ValueError, match="no value of step_size is best at algorithm=PGFL: no run"):
        fl.best(swept(ERRORS, lost), "error", over="step_size")
    with pytest.raises(ValueError, match="nothing of 'error' is left to choose: axis 'seed' is"):
        fl.best(swept(ERRORS).isel(seed=[]), "error", over="step_size")
    with pytest.raises(ValueError, match="nothing of 'error' is left to choose: axis 'round' is"):
        fl.best(swept(ERRORS).isel(round=[]), "error", over="step_size")


def test_ranks_follow_from_all_pairs(four):
    ranks = statistics.ranks(four, "error")
    means = four.error.mean("seed").values
    np.testing.assert_array_equal(ranks["rank"], stats.rankdata(means))
    pairs = statistics.paired_differences(four, "error")
    for i, name in enumerate(NAMES):
        better = worse = 0
        for other in set(NAMES) - {name}:
            if f"{name} - {other}" in pairs.pair:
                low, high = (float(pairs[end].sel(pair=f"{name} - {other}")) for end in ENDS)
            else:
                high, low = (-float(pairs[end].sel(pair=f"{other} - {name}")) for end in ENDS)
            better = better + (low > 0)
            worse = worse + (high < 0)
        assert float(ranks["low"][i]) == 1 + better
        assert float(ranks["high"][i]) == 4 - worse
    assert ((ranks["low"] <= ranks["rank"]) & (ranks["rank"] <= ranks["high"])).all()
    two = xr.concat([four, four.isel(algorithm=[3, 2, 1, 0]).assign_coords(four.coords)], "case")
    ranks_of_each = statistics.ranks(two, "error", "algorithm")
    np.testing.assert_array_equal(ranks_of_each["rank"][0], ranks_of_each["rank"][1, ::-1])


def test_a_method_that_always_diverges_has_no_rank(four):
    lost = np.zeros((4, 20), int)
    lost[1] = 3
    ranks = statistics.ranks(four.assign(diverged=(("algorithm", "seed"), lost)), "error")
    assert np.isnan(ranks.isel(algorithm=1)["rank"])
    assert sorted(ranks["rank"].values[[0, 2, 3]]) == [1, 2, 3]


def test_the_cost_until_a_target():
    values = [[[4.0, 2.0, 1.0], [4.0, 3.0, 2.5]], [[1.0, 5.0, 5.0], [2.0, 1.0, np.nan]]]
    data = xr.Dataset(
        {
            "error": (("algorithm", "seed", "round"), values),
            "bits": (("algorithm", "round"), [[10, 20, 30], [1, 2, 3]]),
            "diverged": (("algorithm", "seed"), [[0, 0], [0, 3]]),
        },
        {"algorithm": ["a", "b"], "round": [2, 4, 6]},
    )
    rounds = statistics.until(data, "error", 2.0)
    np.testing.assert_array_equal(rounds, [[4, np.inf], [2, np.inf]])
    bits = statistics.until(data, "error", 2.0, "bits")
    np.testing.assert_array_equal(bits, [[20, np.inf], [1, np.inf]])
    assert bits.attrs["long_name"] == "bits until error is 2"
    partly = data.assign(done=(("algorithm", "seed"), [[True, False], [True, True]]))
    np.testing.assert_array_equal(
        statistics.until(partly, "error", 2.0), [[4, np.nan], [2, np.inf]]
    )
    with pytest.raises(ValueError, match="cost"):
        statistics.until(data, "error", 2.0, "byte")
    with pytest.raises(ValueError, match="single round"):
        statistics.until(data.isel(round=0, drop=True), "error", 2.0)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_the_mean_over_a_window_must_be_at_the_target(window):
    errors = 1 / np.arange(1, 21) * np.random.default_rng(0).lognormal(size=(2, 6, 20))
    rounds = np.arange(3, 63, 3)
    data = xr.Dataset(
        {"error": (("algorithm", "seed", "round"), errors), "bits": ("round", rounds**2)},
        {"round": rounds},
    )
    for of, costs in (("round", rounds), ("bits", rounds**2)):
        result = statistics.until(data, "error", 0.1, of, window=window).values
        for index in np.ndindex(2, 6):
            expected = np.inf
            for last in range(window, 21):
                if expected == np.inf and sum(errors[index][last - window : last]) <= 0.1 * window:
                    expected = costs[last - 1]
            assert result[index] == expected
    with pytest.raises(ValueError, match=r"window=21 is longer than a run, which has 20 records"):
        statistics.until(data, "error", 0.1, window=21)
    with pytest.raises(ValueError, match="window must be >= 1"):
        statistics.until(data, "error", 0.1, window=0)


def test_rounds_that_only_another_study_records_are_no_part_of_a_window():
    one, other = (
        xr.Dataset(
            {"error": (("algorithm", "seed", "round"), np.array([[values]]))},
            {"algorithm": [name], "round": rounds},
        )
        for name, values, rounds in (
            ("a", [4.0, 2.0, 1.0, 0.0], [2, 4, 6, 8]),
            ("b", [4.0, 1.0], [3, 6]),
        )
    )
    both = xr.concat([one, other], "algorithm", join="outer")
    costs = statistics.until(both, "error", 2.5, window=2)
    np.testing.assert_array_equal(costs, [[6], [6]])


def joined(one_seeds=3, one_rounds=10):
    """Two studies of other seeds or rounds; the values of a method are its number in the study."""

    def study(name, seeds, rounds, level):
        values = np.full((1, seeds, rounds), level)
        return xr.Dataset(
            {
                "error": (("algorithm", "seed", "round"), values),
                "bits": (("algorithm", "seed", "round"), np.ones_like(values).cumsum(-1)),
                "diverged": (("algorithm", "seed"), np.zeros((1, seeds), int)),
            },
            {"algorithm": [name], "seed": range(seeds), "round": range(1, rounds + 1)},
        )

    parts = study("short", one_seeds, one_rounds, 1.0), study("long", 5, 20, 2.0)
    return xr.concat(parts, "algorithm", join="outer")


@pytest.mark.parametrize("of", ["round", "bits"])
def test_runs_that_do_not_exist_do_not_fail(of):
    nan = np.nan
    inf = np.inf
    costs = statistics.until(joined(), "error", 1.0, of)
    np.testing.assert_array_equal(costs, [[1, 1, 1, nan, nan], [inf] * 5])
    costs = statistics.until(joined(), "error", 0.5, of)  # who knows what later rounds bring
    np.testing.assert_array_equal(costs, [[nan] * 5, [inf] * 5])
    costs = statistics.until(joined(one_rounds=20), "error", 0.5, of)
    np.testing.assert_array_equal(costs, [[inf, inf, inf, nan, nan], [inf] * 5])
    data = joined()
    data["diverged"][0, 0] = 3
    assert statistics.until(data, "error", 0.5, of)[0, 0] == inf
    data = joined(one_rounds=20)
    data["error"][:] = np.nan  # of runs that are there
    assert (statistics.until(data, "error", 0.5, of).values[1] == inf).all()


def test_the_best_method_is_chosen_by_performance_not_by_seeds_or_rounds():
    chosen = statistics.best(joined(one_rounds=20), "error", over="algorithm")
    assert chosen["algorithm"] == "short"
    with pytest.raises(ValueError, match=r"at round 20 no run is there of algorithm=short: "):
        statistics.best(joined(), "error", over="algorithm")
    assert statistics.best(joined(), "error", over="algorithm", round=10)["algorithm"] == "short"


def test_a_profile_covers_the_instances_of_a_method():
    costs = statistics.until(joined(one_rounds=20), "error", 1.0)
    shares = statistics.profile(costs)
    np.testing.assert_array_equal(shares.isel(factor=-1), [1.0, 0.0])
    unknown = statistics.profile(costs.where(costs["algorithm"] == "long"))
    assert np.isnan(unknown.sel(algorithm="short")).all()


def test_performance_profiles_by_hand():
    cost = xr.DataArray(
        [[[1.0, 4.0], [np.inf, 0.0]], [[2.0, 1.0], [np.inf, np.nan]]], dims=("a", "problem", "seed")
    )
    shares = statistics.profile(cost, "a")
    assert shares["factor"].values.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(shares, [[0.5, 0.5, 0.75], [1 / 3, 2 / 3, 2 / 3]])
    nobody = statistics.profile(cost.isel(problem=1, seed=[0]), "a")
    assert nobody["factor"].values.tolist() == [1]
    np.testing.assert_array_equal(nobody, 0)
    with pytest.raises(ValueError, match="negative"):
        statistics.profile(-cost, "a")
    with pytest.raises(ValueError, match="axis"):
        statistics.profile(cost)
    with pytest.raises(ValueError, match="no instance"):
        statistics.profile(cost.isel(seed=[]), "a")


# Metrics that are better the larger they are -----------------------------------------------------


@pytest.fixture(params=["said by the results", "known by its name"])
def accuracies(request):
    """[algorithm, seed, round], the second method the better one."""
    values = [[[0.3, 0.5, 0.7], [0.2, 0.4, 0.6]], [[0.4, 0.8, 0.9], [0.5, 0.7, 0.95]]]
    attributes = {"larger_is_better": 1} if request.param == "said by the results" else {}
    return xr.Dataset(
        {"accuracy": (("algorithm", "seed", "round"), values, attributes)},
        {"algorithm": NAMES[:2], "round": [1, 2, 3]},
    )


def test_an_accuracy_is_reached_from_below(accuracies):
    cost = statistics.until(accuracies, "accuracy", 0.7)
    np.testing.assert_array_equal(cost, [[3, np.inf], [2, 2]])


def test_the_greatest_accuracy_is_the_best_and_ranks_first(accuracies):
    best = statistics.best(accuracies, "accuracy", "algorithm")
    assert best.algorithm.item() == NAMES[1]
    least = statistics.best(accuracies, "accuracy", "algorithm", of="min")
    assert least.algorithm.item() == NAMES[0]
    assert statistics.ranks(accuracies, "accuracy")["rank"].values.tolist() == [2, 1]


def test_results_state_whether_larger_is_better():
    attributes = fl.results.dataset.describe(
        [fl.metrics.METRICS["accuracy"], fl.metrics.METRICS["test_error"]]
    )
    assert attributes["accuracy"]["larger_is_better"] == 1
    assert "larger_is_better" not in attributes["test_error"]


# Inputs that are not studies ----------------------------------------------------------------------


def joined_with_itself(axis):
    values = np.arange(12.0).reshape(2, 3, 2)
    coords = {"algorithm": NAMES[:2], "seed": [0, 1, 2], "round": [1, 2]}
    data = xr.Dataset({"error": (("algorithm", "seed", "round"), values)}, coords)
    return xr.concat([data, data], axis)


@pytest.mark.parametrize(
    "ask",
    [
        lambda data: statistics.summary(data, "error"),
        lambda data: statistics.paired_differences(data, "error"),
        lambda data: statistics.ranks(data, "error"),
        lambda data: fl.table(data, "error"),
        lambda data: fl.plotting.learning_curves(data, "error"),
    ],
    ids=["summary", "compare", "ranks", "table", "curves"],
)
def test_a_duplicate_seed_is_counted_once(ask):
    with pytest.raises(ValueError, match=r"seed 0 is there 2 times.*drop_duplicates\('seed'\)"):
        ask(joined_with_itself("seed"))
    ask(joined_with_itself("seed").drop_duplicates("seed"))
    plt.close("all")


def test_a_duplicate_round_is_not_the_last_one():
    with pytest.raises(ValueError, match="round 1 is there 2 times"):
        statistics.at_round(joined_with_itself("round"))


@pytest.mark.parametrize("kind", [complex, str, "datetime64[ns]"])
@pytest.mark.parametrize("name", ["summary", "best", "until", "keep_finite", "ranks"])
def test_a_metric_is_of_real_numbers(kind, name):
    data = joined_with_itself("seed").drop_duplicates("seed").astype(kind)
    more = {"best": ["algorithm"], "until": [1.0]}.get(name, [])
    with pytest.raises(TypeError, match="'error' must be of real numbers, got"):
        getattr(statistics, name)(data, "error", *more)


def test_an_empty_selection_is_refused():
    data = joined_with_itself("seed").drop_duplicates("seed")
    for ask in (
        lambda selection: statistics.summary(selection, "error"),
        lambda selection: fl.table(selection, "error"),
    ):
        with pytest.raises(ValueError, match="axis 'algorithm' is empty"):
            ask(data.isel(algorithm=[]))
    with pytest.raises(ValueError, match="a single round"):
        statistics.until(data.isel(round=[]), "error", 1.0)
