"""Tuning: finds the known best, past a bad range, on seeds of its own, and says what is wrong."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fljax as fl
from fljax.study.tuning import FIRST_SEED

METRIC = {"metric": "normalized_error", "rounds": 10, "seeds": 2}


def scenario(key, algorithm):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2),
        network=fl.graphs.complete(5),
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


def candidates(low, high):
    return {"CTA": (fl.algorithms.CTA, "step_size", low, high)}


def test_it_goes_past_a_bad_range_and_compiles_once(tmp_path):
    near = fl.tune(scenario, candidates(1e-2, 1.0), **METRIC)
    far = fl.tune(scenario, candidates(1e-5, 1e-4), extensions=5, store=tmp_path / "s", **METRIC)
    assert near.interior["CTA"]
    assert far.interior["CTA"]
    low, high = near.width["CTA"]
    assert low <= near.chosen["CTA"] <= high
    assert low / 1.5 < far.chosen["CTA"] < 1.5 * high
    assert near.compilations <= 1
    assert far.compilations <= 1
    again = fl.tune(scenario, candidates(1e-5, 1e-4), extensions=5, store=tmp_path / "s", **METRIC)
    assert again.chosen == far.chosen
    assert again.compilations == 0
    stuck = fl.tune(scenario, candidates(1e-5, 1e-4), extensions=0, **METRIC)
    assert not stuck.interior["CTA"]
    assert stuck.chosen["CTA"] == pytest.approx(1e-4)


def test_the_best_step_of_gradient_descent_is_found():
    problem = fl.problems.ridge(jax.random.key(3), clients=5, samples=10, dim=2)

    def slope(model):
        return problem.gradient(jnp.broadcast_to(model, (5, 2))).mean(axis=0)

    curvatures = np.linalg.eigvalsh(jax.jacobian(slope)(jnp.zeros(2)))

    def descent(key, algorithm):
        return fl.Simulation(
            problem=problem, algorithm=algorithm, metrics=[fl.metrics.normalized_error]
        )

    tuned = fl.tune(descent, ["FedAvg"], refinements=2, **METRIC)  # 10 rounds are above rounding
    assert tuned.chosen["FedAvg"] == pytest.approx(2 / curvatures.sum(), rel=0.05)


def test_what_is_chosen_is_run_on_other_seeds():
    tuned = fl.tune(scenario, ["CTA", "EXTRA"], **METRIC)
    assert tuned.compilations <= 2
    assert min(tuned.seeds) == FIRST_SEED
    results = fl.sweep(scenario, grid={"algorithm": tuned.methods}, rounds=10, seeds=2)
    assert not set(results.seed.values) & set(tuned.seeds)
    assert tuned.table()["chosen"].to_dict() == tuned.chosen
    for name, response in tuned.response.items():
        best = response["mean"].sel(step_size=tuned.chosen[name])
        assert best == response["mean"].min()
    ax = tuned.plot()
    assert len(ax.get_legend().get_texts()) == 2
    plt.close("all")


@pytest.mark.parametrize("goal", ["area", "bits"])
def test_other_goals(goal):
    target = 0.1 if goal == "bits" else None
    tuned = fl.tune(scenario, ["CTA"], goal=goal, target=target, **METRIC)
    value = tuned.chosen["CTA"]
    results = fl.sweep(
        scenario, grid={"algorithm": tuned.methods}, rounds=10, seeds=list(tuned.seeds)
    ).isel(algorithm=0)
    error = results["normalized_error"]
    score = error.mean("round")
    if goal == "bits":
        score = results["bits"].where(error <= 0.1).min("round")
    least = tuned.response["CTA"]["mean"].sel(step_size=value)
    np.testing.assert_allclose(score.mean(), least, rtol=1e-6)


def test_diverged_candidates_count_as_infinite():
    tuned = fl.tune(scenario, candidates(1e-2, 1e40), points=5, **METRIC)
    response = tuned.response["CTA"]
    assert (response["diverged"] > 0).any()
    assert np.isinf(response["mean"].where(response["diverged"] > 0, np.inf)).all()


def test_runs_that_never_get_to_the_target_are_counted():
    tuned = fl.tune(scenario, ["CTA"], goal="rounds", target=0.1, **METRIC)
    response = tuned.response["CTA"]
    assert response["mean"].min() <= 10
    never = response["censored"] == 2
    assert never.any()
    assert (response["mean"].where(never & (response["diverged"] == 0), 20) == 20).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ["FedAvgg"]}, "FedAvg"),
        ({"methods": []}, "at least one"),
        ({"methods": ["CTA", "CTA"]}, "each method once"),
        ({"methods": ["DLM"]}, "penalty, step_size"),
        ({"methods": candidates(1.0, 0.1)}, "empty or inverted"),
        ({"methods": candidates(1.0, 1.0)}, "empty or inverted"),
        ({"methods": candidates(0.0, 1.0)}, "> 0"),
        ({"methods": {"CTA": (fl.algorithms.CTA, 0.1)}}, "must be"),
        ({"goal": "best"}, "goal"),
        ({"goal": "rounds"}, "target"),
        ({"target": 0.1}, "target"),
        ({"points": 2}, "points"),
        ({"seeds": 0}, "seeds"),
        ({"metric": "normalised"}, "normalized_error"),
    ],
)
def test_bad_input_is_refused(changed, message):
    given = {"methods": ["CTA"]} | METRIC | {"rounds": 1} | changed
    with pytest.raises((ValueError, TypeError), match=message):
        fl.tune(scenario, **given)


def test_an_unknown_metric_is_met_before_anything_is_compiled(monkeypatch):
    def compiles(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("fljax.study.tuning.sweep", compiles)
    with pytest.raises(ValueError, match="normalized_error"):
        fl.tune(scenario, ["CTA"], metric="normalised_error", rounds=1)


def test_a_method_that_always_diverges_says_so():
    with pytest.raises(ValueError, match="every candidate"):
        fl.tune(
            scenario, candidates(1e30, 1e35), extensions=0, metric="normalized_error", rounds=40
        )
