"""Chapter 2's figures: measures on made-up studies, and that claims notice broken data."""

from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from experiments import records
from experiments.__main__ import main
from experiments.figure import REGISTRY
from experiments.rizk import chapter2 as ch2
from experiments.rizk import (
    figure_2_1,
    figure_2_2,
    figure_2_3,
    figure_2_4,
    figure_2_5,
    figure_2_6,
    figure_2_7,
    figure_2_theory,
)
from fljax.metrics.definitions import Snapshot
from fljax.problems import Logistic, Problem

SEEDS = 6
ROUNDS = np.arange(10, 1501, 10)


def study_of_curves(curves, metric=ch2.METRIC, **axes):
    """A study of curves ``[rounds]`` (or levels), by algorithm, with a little noise a seed."""
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=(SEEDS, 1)))
    rows = np.stack([np.broadcast_to(c, ROUNDS.shape) for c in curves.values()])
    data = rows[:, None] * noise
    dims = ("algorithm", "seed", "round")
    result = xr.Dataset(
        {metric: (dims, data, {"decibel": 1}), "diverged": (dims[:2], np.zeros(data.shape[:2]))},
        coords={"algorithm": list(curves), "round": ROUNDS},
    )
    for name, values in axes.items():
        result = xr.concat(
            [result * 1.0 for _ in values], xr.DataArray(values, dims=name, name=name)
        )
    return result


def only(cases):
    (result,) = cases.values()
    return result.value


def falling(rate, rest):
    return 10 ** (-rate * ROUNDS / 10) + rest


# Figure 2.1 ---------------------------------------------------------------------------------------


def four(**changes):
    levels = {ch2.FEDAVG: 1e-3, ch2.TRUE: 5e-5, ch2.FULL: 5e-5, ch2.SAMPLED: 8e-5} | changes
    return {"a": study_of_curves({name: falling(0.1, level) for name, level in levels.items()})}


def test_gains_are_of_steady_states():
    gains = figure_2_1.below_fedavg(four())
    assert {name: round(e.value, 1) for name, e in gains.items()} == {
        ch2.TRUE: 13.0,
        ch2.FULL: 13.0,
        ch2.SAMPLED: 11.0,
    }
    claims = {c.name: c for c in figure_2_1.FIGURE.claims}
    assert claims["by-13-db"].judge(four()).holds
    assert not claims["by-13-db"].judge(four(**{ch2.FEDAVG: 1e-2})).holds
    assert claims["learnt-probabilities-as-good"].judge(four(**{ch2.SAMPLED: 5e-5})).holds


def test_an_exponential_fall_is_as_steep_in_both_halves():
    steepness = ch2.exponential(ch2.FEDAVG, ch2.TRUE)
    for result in steepness(four()).values():
        assert 0.9 < result.value <= 1.01
    bent = {"a": study_of_curves(dict.fromkeys((ch2.FEDAVG, ch2.TRUE), 10 / ROUNDS**2 + 1e-06))}
    assert all(e.value < 0.8 for e in steepness(bent).values())


def test_a_plateau_is_flat():
    assert all(abs(e.value) < 0.1 for e in figure_2_1.plateau(four()).values())
    rising = {"a": study_of_curves(dict.fromkeys((ch2.FEDAVG, ch2.TRUE), 0.001 * ROUNDS))}
    assert all(e.value < -1 for e in figure_2_1.plateau(rising).values())


def test_powers_are_of_distances():
    squared = study_of_curves({ch2.SAMPLED: ROUNDS**-4.0}, figure_2_1.AGENTS)
    squared[figure_2_1.OWN] = study_of_curves({ch2.SAMPLED: ROUNDS**-1.0}, "x")["x"]
    result = figure_2_1.powers({"c": squared})
    assert [round(e.value, 2) for e in result.values()] == [2.0, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "expected"), [("optimal", 0), ("sampled", 1)])
def test_distances_are_zero_at_the_true_probabilities_and_one_at_equal_ones(rule, expected):
    def start(key):
        simulation = ch2.scenario(key, ch2.isfedavg(rule=rule))
        problem = simulation.problem
        models = jnp.zeros((problem.clients, problem.dim))
        state = simulation.algorithm.init(problem, None)
        return figure_2_1._distances(Snapshot(problem, None, models, None, state=state))

    np.testing.assert_allclose(jax.jit(start)(jax.random.key(0)), expected, atol=1e-6)


# Figure 2.2 ---------------------------------------------------------------------------------------


def test_click_agents_share_all_rows():
    sizes = figure_2_2.click_sizes()
    assert sizes.sum() == figure_2_2.CLICK_ROWS.value
    assert sizes.min() >= figure_2_2.CLICK_SIZES.value
    assert len(set(sizes)) > 10


def test_errors_are_of_all_and_of_each_class():
    features = np.array([[1.0], [1.0], [1.0], [-1.0], [1.0]])
    labels = np.array([-1.0, -1.0, 1.0, -1.0, 1.0])
    problem = Problem(np.ones((1, 1, 1)), np.ones((1, 1)), Logistic()).with_test(features, labels)
    model = jnp.ones((1, 1))
    now = Snapshot(problem, None, model, None, shared=model[0])
    error, balanced = (metric.measure(now) for metric in figure_2_2.METRICS)
    np.testing.assert_allclose([error, balanced], [40, 100 / 3], rtol=1e-6)  # two of five


@pytest.mark.slow
def test_an_error_is_lower_in_points():
    studies = {"a": study_of_curves({ch2.FEDAVG: 22.0, ch2.IS: 18.0}, figure_2_2.ERROR)}
    assert only(figure_2_2.lower("a", figure_2_2.ERROR)(studies)) == pytest.approx(4, abs=0.1)
    differences = figure_2_2.from_the_sources("a", figure_2_2.ERROR)(studies)
    assert [e.value for e in differences.values()] == pytest.approx([-0.45, -0.46], abs=0.1)
    assert "FedAvg 22." in figure_2_2.no_gain("a", figure_2_2.ERROR)(studies)
    (better, *_) = figure_2_2.FIGURE.claims
    assert better.judge(studies).holds
    none = {"a": study_of_curves({ch2.FEDAVG: 9.5, ch2.IS: 9.51}, figure_2_2.ERROR)}
    minimizers = xr.Dataset({figure_2_2.ERROR: ("training", [8.8, 17.0])}, {"training": ["a", "b"]})
    verdict = better.judge(none | {"minimizers": minimizers})
    assert not verdict.holds
    assert "ISFedAvg 9.5" in verdict.note
    assert "minimizer's 8.80 %" in verdict.note


def on_the_way(fedavg, ours):
    minimizers = xr.Dataset({figure_2_2.ERROR: ("training", [8.8, 17.3])}, {"training": ["a", "b"]})
    curves = {ch2.FEDAVG: fedavg + 300 / ROUNDS, ch2.IS: ours + 300 / ROUNDS}
    return {"b": study_of_curves(curves, figure_2_2.ERROR), "minimizers": minimizers}


def test_errors_are_read_where_fedavg_is_at_the_sources():
    (claim,) = (
        c for c in figure_2_2.FIGURE.claims if c.name == "from-22-to-18-per-cent-on-the-way"
    )
    different = on_the_way(20.0, 16.0)
    assert figure_2_2.nearest(different["b"], ch2.FEDAVG, figure_2_2.ERROR) == 120
    assert claim.judge(different).holds
    equal = claim.judge(on_the_way(18.0, 18.0))
    assert equal.decided
    assert not equal.holds
    assert [*equal.good.values()] == [True, False]
    assert "FedAvg is nearest to 22.45 % at iteration 70" in equal.note
    all_rounds = figure_2_2.all_along("b", figure_2_2.ERROR)
    assert only(all_rounds(different)) == pytest.approx(4, abs=0.1)


def test_training_samples_of_both_classes_are_drawn_from_the_whole_file(monkeypatch):
    rows = np.arange(4000.0)[:, None]
    labels = np.where(np.arange(4000) % 10, -1.0, 1.0)
    table = fl.data.SampleTable(rows, labels, rows[:2], labels[:2])
    monkeypatch.setattr(fl.data, "ijcnn1", lambda: table)
    monkeypatch.setattr(figure_2_2, "RANGE", figure_2_2.RANGE._replace(value=(10, 100)))
    problem = figure_2_2.ignitions.__wrapped__(balanced=True)
    real = np.asarray(problem.weights) > 0
    drawn = np.asarray(problem.features)[real][:, 0]
    positive = np.asarray(problem.targets)[real] > 0
    assert positive.mean() == 0.5
    for which, different in ((positive, 400), (~positive, 2000)):
        assert len(np.unique(drawn[which])) == different
        assert 1800 < drawn[which].mean() < 2200  # not the first of the file


# Figures 2.3 and 2.4 ------------------------------------------------------------------------------


def test_differences_shrink_where_ratios_do_not():
    levels = {
        figure_2_3.named(m, c): rest * 6 / c
        for m, rest in ((ch2.FEDAVG, 1e-3), (ch2.IS, 1e-4))
        for c in (6, 60)
    }
    studies = {"a": study_of_curves(levels)}
    assert figure_2_3.counts(studies) == [6, 60]
    assert [round(e.value, 1) for e in figure_2_3.improve(studies).values()] == [10, 10]
    assert only(figure_2_3.saved(studies)) == pytest.approx(10, rel=0.02)  # times, not dB
    assert only(figure_2_3.gain_on_the_axis(studies)) == pytest.approx(1.09, abs=0.01)
    assert only(figure_2_3.lost(studies)) == pytest.approx(0, abs=0.1)
    assert only(figure_2_3.gain(studies)) == pytest.approx(10, abs=0.1)
    assert "10.0 dB" in figure_2_3.still(studies)


def test_longer_rounds_are_compared_with_shorter_ones():
    studies = {"c": study_of_curves({"E from 1 to 5": 1e-3, "E from 1 to 10": 2e-3})}
    assert only(figure_2_4.longer_above_shorter("c")(studies)) == pytest.approx(3.01, abs=0.1)
    exact = studies["c"].rename({ch2.METRIC: ch2.PREDICTED}).isel(round=-1, drop=True)
    cases = figure_2_4.original_exactly({"c-predicted": exact})
    assert only(cases) == pytest.approx(3.01, abs=0.1)


@pytest.mark.parametrize("agents", [3, 300])
def test_sizes_are_drawn_once_within_their_range(agents):
    sizes = ch2.local_steps((1, 5), agents)
    assert sizes == ch2.local_steps((1, 5), agents)
    assert set(sizes) <= {1, 2, 3, 4, 5}
    assert agents == 3 or (len(set(sizes)) == 5 and sizes != ch2.batches((1, 5), agents))


# Figure 2.5 ---------------------------------------------------------------------------------------


def by_xi(xis=(0.3, 1.5, 200.0)):
    result = study_of_curves({ch2.FEDAVG: 1e-3, ch2.IS: 1e-4}, xi=list(xis))
    size = xr.DataArray(np.asarray(xis) ** 2, dims="xi", coords={"xi": list(xis)})
    start = xr.where(result["round"] == ROUNDS[0], 1.0, 0.0)
    return {"a": result.assign({ch2.METRIC: result[ch2.METRIC] * size + start})}


def test_levels_by_xi():
    studies = by_xi()
    assert figure_2_5.moderate(studies) == [0.3, 1.5]
    rises = [e.value for e in figure_2_5.worsens(studies).values()]
    np.testing.assert_allclose(rises, 20 * np.log10(5), atol=0.1)
    assert all(e.value == pytest.approx(10, abs=0.1) for e in figure_2_5.better(studies).values())
    result = [e.value for e in figure_2_5.by_levels(studies).values()]
    np.testing.assert_allclose(result, [16, -6], atol=0.1)
    shares = [e.value for e in figure_2_5.by_noise(studies).values()]
    assert shares == [0, 100]


def test_runs_that_overflow_diverge():
    studies = {
        "d": study_of_curves(
            dict.fromkeys((ch2.FEDAVG, figure_2_5.IS_FULL, figure_2_5.IS_SAMPLED), 1.0)
        )
    }
    assert [e.value for e in figure_2_5.by_features(studies).values()] == [0, 100, 100]
    studies["d"][ch2.METRIC][0, :, -1] = np.nan
    studies["d"][ch2.METRIC][1, :3, -1] = 1e7
    assert [e.value for e in figure_2_5.by_features(studies).values()] == [100, 50, 100]


# Figures 2.6 and 2.7 ------------------------------------------------------------------------------


def test_floors_equal_the_added_noise():
    draws = np.random.default_rng(0).normal(size=(SEEDS, len(ROUNDS), 2))
    moved = {ch2.STANDARD: 0.0, ch2.MODELS: 1.0, ch2.UPDATES: ch2.PRIVATE_STEP.value}
    models = np.stack([3.0 + size * draws for size in moved.values()])
    dims = ("algorithm", "seed", "round", "parameter")
    coords = {"algorithm": [*moved], "round": ROUNDS}
    studies = {"a": xr.Dataset({figure_2_6.MODEL.name: (dims, models)}, coords)}
    result = only(figure_2_6.floors(studies))
    assert result == pytest.approx(figure_2_6.RATIO, abs=1e-9)


def test_quantiles_over_runs_accompany_the_mean():
    data = study_of_curves({ch2.FEDAVG: 1e-3, ch2.IS: 1e-4})
    data[ch2.METRIC][0, 0] = 1.0  # one run carries the mean
    data[ch2.METRIC][1, 1:] = np.nan
    fedavg, ours = ch2.quantiles("a")({"a": data})
    assert fedavg["panel"] == "a"
    assert (fedavg["algorithm"], fedavg["finite runs"]) == (ch2.FEDAVG, SEEDS)
    assert fedavg["mean"] == pytest.approx(10 * np.log10(1 / SEEDS), abs=0.1)
    assert fedavg["50 %"] == pytest.approx(-30, abs=0.2)
    assert ours["finite runs"] == 1
    assert ours["5 %"] == ours["95 %"] == pytest.approx(-40, abs=0.2)


def test_a_method_looks_the_same_in_all_panels():
    _, (left, right) = plt.subplots(1, 2)
    ch2.draw(left, study_of_curves({ch2.FEDAVG: 1e-3, ch2.SAMPLED: 1e-4}))
    ch2.draw(right, study_of_curves({ch2.SAMPLED: 1e-4}))
    first = left.lines[1]
    second = right.lines[0]
    assert first.get_color() == second.get_color() == ch2.LOOKS[ch2.SAMPLED]["color"]
    assert first.get_linestyle() == second.get_linestyle()
    plt.close(left.figure)


def over(axis, values, level):
    result = study_of_curves({ch2.UPDATES: 1e-3, ch2.MODELS: 1e-3}, **{axis: values})
    size = xr.DataArray(
        [[level[m](v) for v in values] for m in (ch2.UPDATES, ch2.MODELS)],
        coords={"algorithm": [ch2.UPDATES, ch2.MODELS], axis: values},
    )
    return result.assign({ch2.METRIC: result[ch2.METRIC] * size})


def test_a_trade_off_is_worse_at_both_ends():
    laws = {ch2.UPDATES: lambda mu: mu, ch2.MODELS: lambda mu: mu / 0.2 + 0.2 / mu}
    studies = {"step": over("step_size", [0.05, 0.2, 0.8], laws)}
    ends = [e.value for e in figure_2_7.trade_off(studies).values()]
    np.testing.assert_allclose(ends, 10 * np.log10(4.25 / 2), atol=0.1)
    rises = figure_2_7.rises("step", ch2.UPDATES)(studies)
    np.testing.assert_allclose([e.value for e in rises.values()], 6.02, atol=0.1)


def test_powers_of_the_step_size():
    laws = {ch2.UPDATES: lambda mu: mu, ch2.MODELS: lambda mu: mu + 1 / mu}
    studies = {"step": over("step_size", [0.05, 0.1, 0.2, 0.8], laws)}
    claims = {c.name: c for c in figure_2_7.FIGURE.claims}
    for name, power in (
        ("updates-of-the-order-of-the-step", 1),
        ("noise-on-models-of-the-order-of-one-over-the-step", -1),
    ):
        assert only(claims[name].measure(studies)) == pytest.approx(power, abs=1e-6)
        assert claims[name].judge(studies).holds


def test_models_are_harmed_more():
    laws = {ch2.UPDATES: lambda v: 1 + v, ch2.MODELS: lambda v: 1 + 25 * v}
    studies = {"variance": over("variance", [0.01, 0.5], laws)}
    expected = 10 * np.log10(13.5 / 1.25 * 1.01 / 1.5)
    assert only(figure_2_7.harder(studies)) == pytest.approx(expected, abs=0.1)
    assert only(figure_2_7.diverging(studies)) == 0
    assert "models shared -18.7 dB" in figure_2_7.no_divergence(studies)


def test_uploads_have_the_named_noise():
    def noise(name):
        build = partial(ch2.private_scenario, shared=name)
        return jax.eval_shape(lambda key: build(key).upload_noise, jax.random.key(0))

    result = {name: noise(name) for name in ch2.uploads()}
    assert result.pop(ch2.STANDARD) is None
    assert {s: noise.on for s, noise in result.items()} == {
        ch2.MODELS: "models",
        ch2.UPDATES: "updates",
    }


# Privacy ------------------------------------------------------------------------------------------


def twins(deviation=0.1, lost=1.0, update=5.0):
    """Three data sets with four runs each, of ten iterations."""
    shape = (3, 4, 10)
    levels = {"deviation": deviation, "error": 0.1, "other_error": 0.1, "epsilon_printed": 0.1}
    levels |= {figure_2_theory.LOST: lost, figure_2_theory.UPDATE: update}
    variables = {k: (("seed", "run", "round"), np.full(shape, v)) for k, v in levels.items()}
    data = xr.Dataset(variables, {"round": np.arange(1, 11)})
    return {"twins": data.assign(optima=("seed", np.full(3, 0.05)))}


def test_bounds_are_as_large_as_their_probability_asks():
    data = twins()["twins"]
    error = figure_2_theory.errors(data, 0.81).values
    np.testing.assert_allclose((1 - 0.1**2 / error**2) ** 2, 0.81)
    np.testing.assert_allclose(figure_2_theory.bounds(data, 0.81), 2 * error + 0.05)
    epsilon = figure_2_theory.printed(data, 0.81).isel(round=2)
    np.testing.assert_allclose(
        epsilon, 3 * (2 * error + 0.05) * (2 / ch2.VARIANCE.value) ** 0.5, rtol=1e-6
    )


WITHIN, MOVED, PRIVATE = (claim.name for claim in figure_2_theory.FIGURE.claims)


@pytest.mark.parametrize(
    ("broken", "fails"),
    [
        ({}, {MOVED}),
        ({"update": 0.09}, set()),
        ({"deviation": 9.0}, {WITHIN}),
        ({"lost": 1e4}, {MOVED, PRIVATE}),
    ],
)
def test_claims_of_privacy_detect_violations(broken, fails):
    verdicts = [c.judge(twins(**broken)) for c in figure_2_theory.FIGURE.claims]
    assert {v.claim for v in verdicts if not v.holds} == fails
    assert all(v.decided for v in verdicts)


def test_a_neighbor_has_as_many_samples_of_another_agent():
    def rows(count, value):
        return np.full((count, 2), value), np.full(count, value)

    problem = fl.problems.from_clients([rows(2, 1.0), rows(3, 2.0)], fl.problems.LeastSquares())
    other = figure_2_theory.neighbor(problem)
    np.testing.assert_array_equal(other.targets, [[2, 2, 0], [2, 2, 2]])
    np.testing.assert_array_equal(other.features[0, :, 0], [2, 2, 0])
    np.testing.assert_array_equal(other.weights, problem.weights)


@pytest.mark.slow
@pytest.mark.long
def test_theory_is_of_the_same_data(tmp_path, monkeypatch):
    """Figure 2.6 end to end with fewer agents, and its prediction next to its runs."""
    monkeypatch.setattr(ch2, "PRIVATE_AGENTS", ch2.PRIVATE_AGENTS._replace(value=200))
    assert main(["run", "rizk-2.6", "--quick", "--seeds", "4", "--out", str(tmp_path)]) == 0
    assert main(["check", "rizk-2.6", "--out", str(tmp_path)]) == 0
    studies = records.read_studies(figure_2_6.FIGURE, tmp_path)
    runs = studies["a"]
    predicted = studies["a-predicted"]
    for name in runs["algorithm"].values.tolist():
        assert abs(ch2.level(runs, name) - ch2.predicted_level(predicted, name)) < 2.5
    assert REGISTRY["rizk-2.6"] is figure_2_6.FIGURE
