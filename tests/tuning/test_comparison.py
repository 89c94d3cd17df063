"""Comparisons: from tuning to table on disjoint seeds, what never reaches a target is counted."""

import functools
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.stats import rankdata

import fljax as fl
from fljax.tuning.search import FIRST_SEED

METHODS = ["CTA", "EXTRA"]
RANGE = {"step_size": (1e-3, 1e-1)}
SEARCH = {"points": 3, "extensions": 0, "refinements": 0}
OPTIONS = {"metric": "normalized_error", "rounds": 20, "tuning_seeds": 2, **SEARCH}


def scenario(key, algorithm):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2),
        network=fl.graphs.ring(5),
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


@pytest.fixture(scope="module")
def compared():
    return fl.compare(scenario, METHODS, target=1e-2, seeds=6, **OPTIONS)


def test_evaluations_run_the_tuned_method_on_fresh_seeds(compared):
    assert min(compared.tuned.seeds) == FIRST_SEED
    assert compared.results["seed"].values.tolist() == [0, 1, 2, 3, 4, 5]
    again = fl.sweep(scenario, grid={"algorithm": compared.tuned.methods}, seeds=6, rounds=20)
    np.testing.assert_array_equal(compared.results.normalized_error, again.normalized_error)


def test_a_table_of_a_sweep_shows_the_tuned_values(compared):
    chosen = [compared.tuned.chosen[name]["step_size"] for name in METHODS]
    assert compared.results["step_size"].values.tolist() == chosen
    head, _, *rows = fl.table(compared.results).markdown().splitlines()
    assert head == "| algorithm | step_size | normalized error [dB] |"
    for row, value in zip(rows, chosen, strict=False):
        assert row.split(" | ")[1] == f"{value:g}"


def test_the_table_is_of_the_statistics_of_the_results(compared):
    table = compared.table()
    last = fl.statistics.at_round(compared.results)
    numbers = fl.statistics.summary(last, "normalized_error")
    for name, row in table.iterrows():
        selected = numbers.sel(algorithm=name)
        parts = [float(fl.statistics.decibels(selected[part])) for part in ("mean", "low", "high")]
        assert [row["normalized error [dB]"], row["low"], row["high"]] == pytest.approx(parts)
        assert row["tuned"] == f"step_size={compared.tuned.chosen[name]['step_size']:g}"
        error = compared.results.normalized_error.sel(algorithm=name)
        at_target = (error <= 1e-2).any("round")
        assert row["never"] == 6 - int(at_target.sum())
        first = np.where(at_target, 1 + (error <= 1e-2).argmax("round"), np.inf)
        assert row["round"] == np.median(first)
    best, worst = table.index
    assert table["normalized error [dB]"].is_monotonic_increasing
    assert np.isnan(table["difference"][best])
    by_hand = fl.statistics.paired_differences(last, "normalized_error", best).sel(algorithm=worst)
    assert table["difference low"][worst] == pytest.approx(float(by_hand["low"]))  # one pair
    other = compared.table(baseline=worst)
    assert other["difference"][best] == pytest.approx(-table["difference"][worst])


def of_errors(errors):
    """A comparison of methods with these errors, ``[method, seed]``."""
    names = list("abcdefgh")[: len(errors)]
    dims = ("algorithm", "seed", "round")
    results = xr.Dataset(
        {"error": (dims, errors[..., None], {"decibel": 1})}, {"algorithm": names, "round": [1]}
    )
    chosen = {name: {} for name in names}
    tuned = fl.Tuned(chosen, chosen, chosen, chosen, chosen, "final", [FIRST_SEED], 0)
    return fl.Comparison(tuned, results, "error", None)


def test_the_best_of_the_same_results_is_corrected_for_all_pairs():
    shift = np.arange(5)[::-1, None]
    errors = np.exp(np.random.default_rng(0).normal(size=(5, 8)) + shift)
    comparison = of_errors(errors)
    table = comparison.table()
    assert table.index[0] == "e"
    pairs = fl.statistics.paired_differences(comparison.results, "error")
    for name in "abcd":
        pair = pairs.sel(pair=f"{name} - e")
        assert table["difference low"][name] == pytest.approx(float(pair["low"]))
        assert table["difference high"][name] == pytest.approx(float(pair["high"]))
    with_baseline = comparison.table(baseline="e")
    assert (with_baseline["difference low"] > table["difference low"])[1:].all()
    assert "never" not in table


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [10, 40])
def test_ranks_and_differences_to_the_best_cover(seeds):
    """Methods that share most of their variation, two of them equally good; the best one, all are
    compared with, is selected from the same results.
    """
    rng = np.random.default_rng(seeds)
    studies = 200
    true = np.array([1.0, 1.0, 1.05, 1.2, 2.0])
    common = rng.gamma(2.0, 0.5, (studies, 1, seeds))
    errors = true[:, None] * common * rng.gamma(20.0, 1 / 20, (studies, 5, seeds))
    level, least, greatest = (
        pd.Series(values, list("abcde"))
        for values in (10 * np.log10(true), rankdata(true, "min"), rankdata(true, "max"))
    )
    ranked = different = separated = 0
    for errors_drawn in errors:
        table = of_errors(errors_drawn).table()
        best = table.index[0]
        table = table.sort_index()
        truth = level - level[best]
        outside = (table["difference low"] > truth) | (truth > table["difference high"])
        different += not outside.any()  # that of the best to itself is NaN
        # Any order of equally good methods is a true ranking.
        right = (table["rank low"] <= least) & (greatest <= table["rank high"])
        ranked += right.all()
        separated += table["rank low"]["e"] == 5
    assert ranked / studies > 0.95 - 2 * 0.0154  # two standard deviations of a binomial
    assert different / studies > 0.95 - 2 * 0.0154
    assert separated / studies > (0.5 if seeds == 10 else 0.95)  # nor are they of no use


def test_a_comparison_is_saved_and_loaded(compared, tmp_path):
    path = compared.save(tmp_path / "comparison.nc")
    loaded = fl.Comparison.load(path, METHODS)
    assert loaded.table().equals(compared.table())
    assert loaded.tuned.methods.keys() == compared.tuned.methods.keys()
    xr.testing.assert_identical(loaded.results, compared.results)
    with pytest.raises(ValueError, match="of the methods"):
        fl.Comparison.load(path, ["CTA", "DIGing"])
    with pytest.raises(ValueError, match="of no comparison"):
        fl.Comparison.load(fl.save(compared.results, tmp_path / "results.nc"), METHODS)


def test_gradients_are_counted_and_curves_drawn_against_them(compared):
    """Five clients with ten samples each, one gradient in a round of either method."""
    counted = compared.results["gradients"]
    np.testing.assert_array_equal(counted, np.tile(50.0 * np.arange(1, 21), (2, 1)))
    table = compared.table()
    np.testing.assert_array_equal(table["gradients"], 50 * table["round"])
    ax = compared.plot("gradients")
    assert ax.get_xlabel() == "sample gradients evaluated so far, all clients"
    with pytest.raises(ValueError, match="seconds"):
        compared.plot("seconds")
    unknown = compared.results.assign(gradients=counted.where(counted["algorithm"] == "CTA"))
    partly = fl.Comparison(compared.tuned, unknown, compared.metric, 1e-2)
    assert np.isnan(partly.table()["gradients"]["EXTRA"])
    assert len(partly.plot_profile("gradients").lines) == 1
    assert (compared.results["proximal"] == 0).all()  # of neither method
    assert np.isnan(table["proximal"]).all()
    plt.close("all")


def test_a_cost_model_takes_custom_prices(compared):
    """A gradient is 1, a proximal step 10, a bit 0.5."""
    cost = compared.cost({"gradients": 1, "proximal": 10, "bits": 0.5})
    np.testing.assert_array_equal(cost, compared.cost("gradients") + 0.5 * compared.cost("bits"))
    moved = compared.results.assign(proximal=compared.results["round"] + 0 * compared.results.bits)
    stepping = fl.Comparison(compared.tuned, moved, compared.metric, compared.target)
    more = stepping.cost({"gradients": 1, "proximal": 10, "bits": 0.5})
    np.testing.assert_array_equal(more, cost + 10 * compared.cost())
    for wrong, message in (({}, "counts nothing"), ({"bits": -1}, "price"), ({"bit": 1}, "bits")):
        with pytest.raises(ValueError, match=message):
            compared.cost(wrong)


def on_clock(key, algorithm):
    devices = fl.clock.Devices(
        seconds_per_step=fl.clock.LogNormal(0.1, spread=1.0),
        variation=fl.clock.LogNormal(1.0, spread=0.5),
    )
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2),
        algorithm=algorithm,
        clock=fl.clock.Synchronous(devices),
        metrics=["normalized_error"],
    )


SERVED = {
    f"{steps} steps": (functools.partial(fl.algorithms.FedAvg, local_steps=steps), RANGE)
    for steps in (1, 4)
}


def test_methods_on_a_clock_are_compared_by_their_seconds():
    options: dict[str, Any] = OPTIONS | {"seeds": 5, "target": 0.1, "goal": "seconds"}
    compared = fl.compare(on_clock, SERVED, **options)
    table = compared.table()
    results = compared.results
    for name in SERVED:
        run = results.sel(algorithm=name)
        cost = [
            next((t for t, e in zip(s, curve, strict=True) if e <= 0.1), np.inf)
            for s, curve in zip(run.seconds.values, run.normalized_error.values, strict=True)
        ]
        assert table["seconds"][name] == pytest.approx(np.median(cost), rel=1e-6)
        np.testing.assert_allclose(compared.cost("seconds").sel(algorithm=name), cost)
    ax = compared.plot("seconds")
    ends = results.seconds.isel(round=-1).min("seed")
    assert [line.get_xdata()[-1] for line in ax.lines[:2]] == ends.values.tolist()
    assert len(compared.plot_profile("seconds").lines) == 2
    plt.close("all")


def test_a_clock_and_the_time_of_this_machine_are_not_mixed():
    with pytest.raises(ValueError, match="have a clock, which says how long rounds take"):
        fl.compare(on_clock, SERVED, timed=True, **OPTIONS)


@pytest.mark.slow
def test_a_round_is_timed():
    space = {
        f"{steps} steps": (functools.partial(fl.algorithms.FedAvg, local_steps=steps), RANGE)
        for steps in (1, 40)
    }

    def served(key, algorithm):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=40, samples=40, dim=30),
            algorithm=algorithm,
            metrics=["normalized_error"],
        )

    options = OPTIONS | {"rounds": 400, "record_every": 20, "seeds": 2}
    few, many = fl.compare(served, space, timed=True, **options).results["seconds"].values
    assert (few > 0).all()
    np.testing.assert_allclose(few, few[0] * np.arange(1, 21))
    assert (many > 5 * few).all()


def test_the_pictures_have_no_faults(compared):
    ax = compared.plot("bits")
    curves = [text.get_text() for text in ax.get_legend().get_texts()]
    assert curves == METHODS
    assert ax.lines[-1].get_ydata() == [-20, -20]  # the target
    ax = compared.plot_profile("bits")
    assert ax.get_xlabel().startswith("bits until normalized error is 0.01")
    shares = fl.statistics.profile(compared.cost("bits"))
    for line, share in zip(ax.lines, shares.values, strict=True):
        np.testing.assert_array_equal(line.get_ydata()[:-1], share)
    no_target = fl.Comparison(compared.tuned, compared.results, compared.metric, None)
    assert no_target.plot_profile().get_xlabel().startswith("final normalized error")
    plt.close("all")


def test_a_window_is_of_the_tuning_and_of_the_costs(tmp_path):
    options: dict[str, Any] = OPTIONS | {"goal": "rounds", "target": 0.7}
    compared = fl.compare(scenario, METHODS, seeds=6, window=3, **options)
    first_touch = fl.compare(scenario, METHODS, seeds=6, **options)
    assert compared.cost().equals(
        fl.statistics.until(compared.results, "normalized_error", 0.7, window=3)
    )
    assert (compared.cost() > fl.statistics.until(compared.results, "normalized_error", 0.7)).any()
    for name in METHODS:
        best = (c.tuned.response[name]["mean"].min() for c in (compared, first_touch))
        assert float(next(best)) > float(next(best))
    compared.save(tmp_path / "compared.nc")
    loaded = fl.Comparison.load(tmp_path / "compared.nc", METHODS)
    assert loaded.cost().equals(compared.cost())


def test_an_unreached_target_is_counted_everywhere(compared):
    hopeless = fl.Comparison(compared.tuned, compared.results, compared.metric, 1e-30)
    table = hopeless.table()
    assert table["never"].tolist() == [6, 6]
    assert np.isinf(table[["round", "bits"]]).all(axis=None)
    (ax,) = {hopeless.plot_profile()}
    assert all(set(line.get_ydata()) == {0.0} for line in ax.lines)
    plt.close("all")


# Metrics that are better the larger they are -----------------------------------------------------


@pytest.fixture(scope="module")
def by_accuracy():
    def classified(key, algorithm):
        problem = fl.problems.logistic(key, clients=5, samples=20, dim=2).split(key, test=0.5)
        return fl.Simulation(problem, algorithm, metrics=["accuracy"])

    methods = {
        "short": (fl.algorithms.FedAvg, {"step_size": (1e-3, 1e-2)}),
        "long": (fl.algorithms.FedAvg, {"step_size": (1e-1, 1.0)}),
    }
    options = {**OPTIONS, "metric": "accuracy", "rounds": 6}
    return fl.compare(classified, methods, target=0.75, seeds=5, **options), methods


def test_accuracies_are_compared_the_greatest_first(by_accuracy):
    compared, _ = by_accuracy
    table = compared.table()
    right = compared.results.accuracy
    means = right.isel(round=-1).mean("seed").to_series()
    assert table.index.tolist() == means.sort_values(ascending=False).index.tolist()
    np.testing.assert_allclose(table["test accuracy"], means[table.index])
    best, worst = table.index
    assert np.isnan(table["difference"][best])
    assert table["difference"][worst] == pytest.approx(means[worst] - means[best])
    assert table["rank"].tolist() == sorted(table["rank"])
    for name, row in table.iterrows():
        at_target = right.sel(algorithm=name).values >= 0.75
        seeds = at_target if at_target.shape[0] == 5 else at_target.T
        first = np.where(seeds.any(1), 1 + seeds.argmax(1), np.inf)
        assert row["round"] == np.median(first)
        assert row["never"] == 5 - seeds.any(1).sum()
    response = compared.tuned.response
    for name, chosen in compared.tuned.chosen.items():
        best = response[name].isel(candidate=int(response[name]["mean"].values.argmax()))
        assert chosen["step_size"] == best["step_size"]


def test_a_comparison_of_accuracies_is_saved_and_drawn(by_accuracy, tmp_path):
    compared, methods = by_accuracy
    again = fl.Comparison.load(compared.save(tmp_path / "c.nc"), methods)
    assert again.tuned.larger_is_better
    pd.testing.assert_frame_equal(again.table(), compared.table())
    assert again.plot().lines[-1].get_ydata() == [0.75, 0.75]
    assert again.plot_profile().get_xlabel().startswith("rounds until test accuracy is 0.75")
    no_target = fl.Comparison(compared.tuned, compared.results, compared.metric, None)
    with pytest.raises(ValueError, match=r"'accuracy' is better the larger it is.*target="):
        no_target.plot_profile()
    plt.close("all")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seeds": [5, FIRST_SEED]}, "below 1000000000"),
        ({"tuning_seeds": [0, 1]}, "an evaluation's"),
        ({"methods": ["CTA"]}, "two or more"),
        ({"methods": ["CTA", "CTAA"]}, "method"),
        ({"goal": "rounds"}, "target"),
        ({"target": float("nan")}, "target"),
        ({"window": 2}, "give target= as well"),
        ({"target": 0.1, "window": 21}, "longer than a run, which has 20 records"),
        ({"target": 0.1, "window": 0}, "window must be >= 1"),
        ({"seeds": 0}, "seeds"),
        ({"timed": True, "record_every": 20}, "two records"),
        ({"metric": "normalised"}, "normalized_error"),
        ({"pints": 3}, "pints"),
    ],
)
def test_bad_input_is_refused_before_anything_is_compiled(changed, message, monkeypatch):
    def compiles(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("fljax.tuning.search.sweep", compiles)
    with pytest.raises((ValueError, TypeError), match=message):
        fl.compare(scenario, **{"methods": METHODS} | OPTIONS | changed)


def test_bad_questions_to_a_comparison(compared):
    with pytest.raises(ValueError, match="baseline"):
        compared.table(baseline="CTAA")
    with pytest.raises(ValueError, match="cost"):
        compared.plot_profile("byte")
    results = compared.results.copy()
    results["normalized_error"].attrs["decibel"] = 0
    with pytest.raises(ValueError, match="may be negative"):
        fl.Comparison(compared.tuned, results, compared.metric, None).plot_profile()
