"""Choices by private results: stated where they are not counted, or counted by selection."""

from collections import Counter
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
import pytest

import fljax as fl
from fljax._core.storage import unsealed
from fljax.privacy import accounting, assumptions, spent
from fljax.tuning import PrivateTuning, private_selection
from fljax.tuning.search import Tuned

SECRET = 2**90 + 7
DELTA = 1e-5
METHODS = {"FL": (fl.algorithms.ConventionalFL, {"step_size": (1e-2, 1.0)})}
PAIR = METHODS | {"slow FL": (fl.algorithms.ConventionalFL, {"step_size": (1e-4, 1e-3)})}


def built(key, algorithm, privacy, model="released"):
    problem = fl.problems.logistic(key, clients=4, samples=12, dim=2).clipped(1.0)
    metrics = ["test_error", "objective", "normalized_error"]
    return fl.Simulation(
        problem.split(jax.random.key(1), test=0.25),
        algorithm,
        privacy=privacy,
        metrics=metrics,
        model="exact" if privacy is None else model,
    )


def scenario(key, algorithm):
    return built(key, algorithm, fl.privacy.ZCDP(0.1))


def without(key, algorithm):
    return built(key, algorithm, None)


GIVEN: dict[str, Any] = {"metric": "test_error", "rounds": 3}
FEW: dict[str, Any] = {"points": 3, "extensions": 0, "refinements": 0, "seeds": 1}


def private_tuning(**options: Any):
    options = {"delta": DELTA, "score": "public", "noise_seed": SECRET} | options
    return PrivateTuning(**options)


# Not counted ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tuning_of_private_runs_states_that_it_is_not_counted(tmp_path):
    tuned = fl.tune(scenario, METHODS, **GIVEN, **FEW)
    assert tuned.privacy.startswith("tuning not counted: 3 candidates were compared by test_error")
    assert (tuned.table()["privacy"] == "tuning not counted").all()
    figure = tuned.plot()[0].figure
    assert "tuning not counted" in figure.get_suptitle()
    plt.close("all")
    tuned.save(tmp_path / "tuned.json")
    assert Tuned.load(tmp_path / "tuned.json", METHODS).privacy == tuned.privacy
    # Studies of the chosen method carry it, from a store as well.
    store = tmp_path / "store"
    grid = {"algorithm": tuned.methods}
    study = fl.sweep(scenario, grid=grid, rounds=2, seeds=2, store=store, progress=False)
    for results in (study, fl.load(store), spent(study, DELTA)):
        assert results.attrs["tuning"].startswith("tuning not counted: 3 candidates")
    assert assumptions(study)["tuning"] == study.attrs["tuning"]
    assert "Tuning not counted" in fl.table(study, "test_error").note
    public_tuning = fl.tune(without, METHODS, **GIVEN, **FEW)
    assert public_tuning.privacy == ""
    assert "privacy" not in public_tuning.table()
    figure = public_tuning.plot()[0].figure
    assert "counted" not in figure.get_suptitle()
    plt.close("all")
    plain = fl.sweep(
        without, grid={"algorithm": public_tuning.methods}, rounds=2, seeds=2, progress=False
    )
    assert "tuning" not in plain.attrs


@pytest.mark.slow
def test_a_comparison_of_private_methods_states_its_privacy_everywhere():
    options: dict[str, Any] = GIVEN | {
        "points": 3,
        "extensions": 0,
        "refinements": 0,
        "tuning_seeds": 1,
        "seeds": 2,
    }
    comparison = fl.compare(scenario, PAIR, **options)
    assert comparison.results.attrs["tuning"].startswith("tuning not counted: 6 candidates")
    assert (comparison.table()["privacy"] == "tuning not counted").all()
    for ax in (comparison.plot(), comparison.plot_profile()):
        assert "tuning not counted" in " ".join(text.get_text() for text in ax.texts)
    plt.close("all")
    with pytest.raises(ValueError, match="does not count"):
        fl.compare(scenario, PAIR, private=private_tuning(), **options)


@pytest.mark.slow
def test_the_number_of_rounds_to_a_private_target_is_such_a_choice():
    goal: dict[str, Any] = {"goal": "rounds", "target": 0.6}
    tuned = fl.tune(scenario, METHODS, **GIVEN, **FEW, **goal)
    assert "by test_error (rounds) of private runs" in tuned.privacy


# Counted ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_private_selection_returns_only_the_best_trial(tmp_path, monkeypatch):
    trials = {}
    sweep = private_selection.sweep

    def spy(*arguments, **named):
        trials["grid"] = named["grid"]["algorithm"]
        trials["results"] = sweep(*arguments, **named)
        return trials["results"]

    monkeypatch.setattr(private_selection, "sweep", spy)
    private = private_tuning(trials=8.0, noise_seed=SECRET + 2)  # eight trials
    tuned = fl.tune(scenario, PAIR, **GIVEN, points=3, private=private)
    results = trials["results"]
    run = tuned.released
    assert run is not None
    last = results.test_error.isel(seed=0, round=-1)
    best = int(np.argmin(last.values))
    np.testing.assert_array_equal(run.model, results.model.isel(seed=0, algorithm=best))
    np.testing.assert_array_equal(run.test_error, results.test_error.isel(seed=0, algorithm=best))
    (name,) = tuned.methods
    step = [*trials["grid"].values()][best].step_size.value
    assert tuned.chosen[name]["step_size"] == pytest.approx(step)
    assert float(tuned.table()["score"].iloc[0]) == pytest.approx(float(last.min()))
    # Equal candidates have noise of their own, on the same data.
    count = len(trials["grid"])
    assert count > 6  # of six candidates some are drawn twice
    models = results.model.values.reshape(count, -1)
    assert len(np.unique(models.round(6), axis=0)) == count
    # Neither the number of trials nor which one was best can be read from the result.
    assert "algorithm" not in run.coords
    assert tuned.compilations == 0
    assert "trial 0" not in tuned.text()
    assert not {"gradient_norm", "objective", "rounding", "root", "run_seconds"} & {
        *run.data_vars,
        *run.attrs,
    }
    # The ledger is that of the selection.
    epsilon = accounting.selection_epsilon(0.1, DELTA, 1.0, accounting.selection_stop(8.0))
    np.testing.assert_allclose(spent(run, DELTA).epsilon, epsilon)
    assert (spent(run, DELTA / 10).epsilon == np.inf).all()
    assert epsilon > float(accounting.zcdp_epsilon(0.1, DELTA, "canonne-kamath-steinke"))
    assert assumptions(run)["tuning"].startswith(f"tuning counted: epsilon {epsilon:.4g}")
    assert tuned.privacy == run.attrs["selection"]
    assert tuned.table()["privacy"].iloc[0].startswith("tuning counted: epsilon")
    figure = tuned.plot()[0].figure
    assert "tuning counted: epsilon" in figure.get_suptitle()
    plt.close("all")
    tuned.save(tmp_path / "tuned.json")
    loaded = Tuned.load(tmp_path / "tuned.json", PAIR)
    assert loaded.released is not None
    np.testing.assert_array_equal(loaded.released.model, run.model)
    assert loaded.chosen == tuned.chosen
    fl.save(run, tmp_path / "run.nc")
    again = fl.tune(scenario, PAIR, **GIVEN, points=3, private=private)
    assert again.released is not None
    first, second = (unsealed(tuning.text()) for tuning in (tuned, again))
    first["released"]["attrs"]["created"] = second["released"]["attrs"]["created"]
    assert first == second
    # Another study of the chosen method is another release, as the results state.
    study = fl.sweep(scenario, grid={"algorithm": tuned.methods}, rounds=2, seeds=1, progress=False)
    assert "whose own cost is not in this ledger" in study.attrs["tuning"]


class Enough(Exception):
    """Raised once the trials are drawn."""


def test_trials_are_drawn_uniformly_and_as_many_as_the_distribution_has(monkeypatch):
    drawn = []

    def spy(*arguments, grid, **named):
        drawn.append([float(method) for method in grid["algorithm"].values()])
        raise Enough

    monkeypatch.setattr(private_selection, "sweep", spy)
    candidates: Any = [lambda number=number: number for number in range(4)]
    study: dict[str, Any] = {"score": lambda results: results} | {
        "rounds": 1,
        "seeds": [0],
        "record_every": 1,
        "public": "test_error",
    }
    for number in range(600):
        private = private_tuning(trials=3.0, noise_seed=SECRET + number)
        with pytest.raises(Enough):
            private_selection.select(scenario, candidates, private, 0.1, **study)
    counts = np.bincount([len(trials) for trials in drawn], minlength=8)[1:8] / 600
    expected = accounting.selection_probabilities(7, 1.0, 1 / 3)
    assert np.abs(counts - expected).max() < 0.08  # four standard deviations
    shares = Counter(number for trials in drawn for number in trials)
    total = sum(shares.values())
    assert max(abs(shares[n] / total - 0.25) for n in range(4)) < 0.05
    # The system's entropy draws other numbers each time.
    drawn.clear()
    for _ in range(8):
        with pytest.raises(Enough):
            private_selection.select(
                scenario,
                candidates,
                private_tuning(trials=30.0, noise_seed="entropy"),
                0.1,
                **study,
            )
    assert len({tuple(trials) for trials in drawn}) > 1


def central(key, algorithm):
    simulation = built(key, algorithm, None)
    algorithm = fl.algorithms.FedAvg(0.1, weighting="equal")
    privacy = fl.privacy.CentralGaussian(2.0, clip=1.0)
    return fl.Simulation(simulation.problem, algorithm, privacy=privacy, metrics=["test_error"])


def peers(key, algorithm):
    simulation = built(key, fl.algorithms.ConventionalFL(0.1), fl.privacy.ZCDP(0.1))
    budget = fl.privacy.ZCDP(0.1)
    graph = fl.graphs.ring(4)
    options: dict[str, Any] = {"privacy": budget, "metrics": ["test_error"], "model": "exact"}
    return fl.Simulation(simulation.problem, algorithm, graph, **options)


ZCDPNFL = {"zCDP-NFL": (fl.algorithms.ZCDPNFL, {"penalty": (0.1, 1.0), "step_size": (0.1, 1.0)})}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metric": "objective"}, "depends on training data"),
        ({"metric": "normalized_error"}, "depends on training data"),
        ({"scenario": without}, "give them privacy="),
        ({"scenario": central}, "in advance"),
        ({"scenario": peers, "methods": ZCDPNFL}, "model='released'"),
        ({"extensions": 2}, "extensions="),
        ({"halvings": 1}, "halvings="),
        ({"store": "folder"}, "store= keeps all trials"),
        ({"seeds": 3}, "one seed"),
        ({"goal": "rounds", "target": 0.1}, "goals 'final' and 'area'"),
    ],
)
def test_cases_beyond_the_guarantee_are_refused_before_the_run(changed, message, monkeypatch):
    def sweep(*arguments, **named):
        raise AssertionError

    monkeypatch.setattr(private_selection, "sweep", sweep)
    options = (
        {"scenario": scenario, "methods": METHODS, "private": private_tuning()} | GIVEN | changed
    )
    with pytest.raises(ValueError, match=message):
        fl.tune(options.pop("scenario"), options.pop("methods"), **options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"delta": 0.0}, "delta"),
        ({"score": "private"}, "score"),
        ({"trials": 1.0}, "trials"),
        ({"shape": -1.0}, "shape"),
        ({"noise_seed": 3}, "noise_seed"),
    ],
)
def test_bad_input_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        private_tuning(**changed)
