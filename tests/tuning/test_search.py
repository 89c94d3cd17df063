"""Tuning: finds the known best, past a bad range, on separate seeds, with clear errors."""

import dataclasses
import functools
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

import fljax as fl
from fljax._core import compilation_cache as programs
from fljax.algorithms.algorithm import REGISTRY
from fljax.study.store import Store
from fljax.tuning import search
from fljax.tuning.search import (
    FIRST_SEED,
    GIVEN,
    SEARCHED_OPTIONS,
    Range,
    Search,
    Structure,
    _structures_of,
    _summarize_scores,
    space_of,
)

METRIC: dict[str, Any] = {"metric": "normalized_error", "rounds": 10, "seeds": 2}


def scenario(key, algorithm):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2),
        network=fl.graphs.complete(5),
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


def candidates(low, high):
    return {"CTA": (fl.algorithms.CTA, {"step_size": (low, high)})}


def step(tuned, name="CTA"):
    return tuned.chosen[name]["step_size"]


def traces(monkeypatch):
    """Calls of the compiler, one by one."""
    compiled = []
    compile_or_load = programs.compile_or_load

    def spy(*arguments):
        compiled.append(arguments)
        return compile_or_load(*arguments)

    monkeypatch.setattr(programs, "compile_or_load", spy)
    return compiled


def fresh_scenario():
    """A scenario that no program is known of."""

    def renewed(key, algorithm):
        return scenario(key, algorithm)

    return renewed


@pytest.mark.slow
def test_a_search_goes_past_a_bad_range():
    near = fl.tune(scenario, candidates(1e-2, 1.0), **METRIC)
    far = fl.tune(scenario, candidates(1e-5, 1e-4), extensions=5, **METRIC)
    assert near.interior["CTA"]["step_size"]
    assert far.interior["CTA"]["step_size"]
    low, high = near.width["CTA"]["step_size"]
    assert low <= step(near) <= high
    assert low / 1.5 < step(far) < 1.5 * high


@pytest.mark.slow
def test_a_search_at_the_edge_of_its_range_is_reported():
    stuck = fl.tune(scenario, candidates(1e-5, 1e-4), extensions=0, **METRIC)
    assert not stuck.interior["CTA"]["step_size"]
    assert step(stuck) == pytest.approx(1e-4)


@pytest.mark.thin(1)
@pytest.mark.parametrize("methods", [["CTA"], ["CTA", "EXTRA"]])
def test_a_structure_is_compiled_once(methods, monkeypatch):
    compiled = traces(monkeypatch)
    tuned = fl.tune(fresh_scenario(), methods, **METRIC)
    assert all(
        response.sizes["candidate"] > 8 for response in tuned.response.values()
    )  # several batches
    assert tuned.compilations == len(methods)
    assert len(compiled) == len(methods) + (len(methods) > 1)  # what several draw is compiled once


@pytest.mark.thin(1)
@pytest.mark.filterwarnings("ignore::fljax.DivergenceWarning")  # the fine grid is wide
@pytest.mark.parametrize("method", ["FedAvg", "EXTRA"])
def test_the_known_best_step_is_found(method):
    problem = fl.problems.ridge(jax.random.key(3), clients=5, samples=10, dim=2)

    def gradient(model):
        return problem.gradient(jnp.broadcast_to(model, (5, 2))).mean(axis=0)

    curvatures = np.linalg.eigvalsh(jax.jacobian(gradient)(jnp.zeros(2)))

    def descent(key, algorithm):
        return fl.Simulation(
            problem=problem,
            network=fl.graphs.complete(5) if method == "EXTRA" else None,
            algorithm=algorithm,
            metrics=[fl.metrics.normalized_error],
        )

    tuned = fl.tune(descent, [method], refinements=2, **METRIC)  # 10 rounds are above rounding
    if method == "FedAvg":
        best = 2 / curvatures.sum()
    else:  # by a grid that is finer by far
        steps = np.geomspace(step(tuned, method) / 4, 4 * step(tuned, method), 301)
        every = {f"{s}": fl.algorithms.EXTRA(float(s)) for s in steps}
        results = fl.sweep(descent, grid={"algorithm": every}, rounds=10)
        last = results["normalized_error"].isel(round=-1, seed=0)
        best = steps[last.where(results["diverged"].isel(seed=0) == 0, np.inf).values.argmin()]
    assert step(tuned, method) == pytest.approx(best, rel=0.05)


@pytest.mark.slow
def test_chosen_values_are_run_on_other_seeds(monkeypatch):
    requested_seeds = []
    sweep = search.sweep

    def spy(*args, **options):
        requested_seeds.extend(options["seeds"])
        return sweep(*args, **options)

    monkeypatch.setattr(search, "sweep", spy)
    tuned = fl.tune(scenario, ["CTA", "EXTRA"], **METRIC)
    assert min(requested_seeds) == FIRST_SEED
    assert set(requested_seeds) == set(tuned.seeds)
    results = fl.sweep(scenario, grid={"algorithm": tuned.methods}, rounds=10, seeds=2)
    assert not set(results.seed.values) & set(requested_seeds)
    for name, response in tuned.response.items():
        best = response.isel(candidate=int(response["mean"].values.argmin()))
        assert best["step_size"] == step(tuned, name)
        assert tuned.table()["chosen"][name, "step_size"] == step(tuned, name)


@pytest.mark.slow
def test_no_key_of_an_evaluation_is_drawn():
    """Keys that the scenario is given, as the runs see them."""
    keys_drawn = set()

    def spied(key, algorithm):
        jax.debug.callback(lambda data: keys_drawn.add(data.tobytes()), jax.random.key_data(key))
        return scenario(key, algorithm)

    fl.tune(spied, ["CTA"], refinements=0, **METRIC)
    tuned_on = set(keys_drawn)
    _ = keys_drawn.clear()
    fl.sweep(spied, grid={"algorithm": {"CTA": fl.algorithms.CTA(0.1)}}, rounds=10, seeds=2)
    assert tuned_on
    assert keys_drawn
    assert not tuned_on & keys_drawn


@pytest.mark.slow
def test_the_picture_shows_the_chosen_values_in_decibels():
    tuned = fl.tune(scenario, ["CTA", "EXTRA"], **METRIC)
    (ax,) = tuned.plot()
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["CTA", "EXTRA"]
    assert [line.get_linestyle() for line in legend.get_lines()] == ["-", "--"]  # of the curves
    assert ax.get_ylabel() == "final normalized error [dB]"
    assert len(ax.collections) == 2  # bands
    for line, name in zip(ax.lines[1::2], tuned.chosen, strict=True):
        assert line.get_xdata() == [step(tuned, name)]
        least = 10 * np.log10(float(tuned.response[name]["mean"].min()))
        np.testing.assert_allclose(line.get_ydata(), least)
    plt.close("all")


SPACE = {
    "heavy": (
        fl.algorithms.FedAvgM,
        {"step_size": (1e-2, 1.0), "momentum": (0.0, 0.9, "linear"), "local_steps": [1, 3]},
    )
}


def served(key, algorithm):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=5, samples=10, dim=2),
        algorithm=algorithm,
        metrics=["normalized_error"],
    )


@pytest.mark.slow
def test_several_numbers_and_categories_are_chosen_together(monkeypatch, tmp_path):
    compiled = traces(monkeypatch)
    tuned = fl.tune(served, SPACE, points=4, **METRIC)
    assert tuned.compilations == 2  # of one step and of three
    assert len(compiled) == 3  # and what both draw
    response = tuned.response["heavy"]
    chosen = tuned.chosen["heavy"]
    best = response.isel(candidate=int(response["mean"].values.argmin()))
    assert {n: best[n].item() for n in chosen} == {
        n: chosen[n] for n in ("step_size", "momentum")
    } | {"local_steps": str(chosen["local_steps"])}
    assert set(response["local_steps"].values) == {"1", "3"}
    assert 0 <= response["momentum"].min() <= response["momentum"].max() <= 0.9
    assert set(tuned.interior["heavy"]) == set(tuned.width["heavy"]) == {"step_size", "momentum"}
    heavy = tuned.methods["heavy"]
    assert isinstance(heavy, fl.algorithms.FedAvgM)
    assert heavy.local_steps == chosen["local_steps"]
    assert list(tuned.table().loc["heavy"]["chosen"]) == list(chosen.values())
    left, right = tuned.plot()
    assert (left.get_xscale(), right.get_xscale()) == ("log", "linear")
    plt.close("all")
    loaded = fl.Tuned.load(tuned.save(tmp_path / "tuned.json"), SPACE)
    assert loaded.chosen == tuned.chosen
    assert loaded.table().equals(tuned.table())
    assert loaded.seeds == tuned.seeds
    xr.testing.assert_identical(loaded.response["heavy"], response)
    with pytest.raises(ValueError, match="of the methods"):
        fl.Tuned.load(tmp_path / "tuned.json", ["CTA"])


@pytest.mark.slow
def test_categories_alone_are_chosen():
    space = {"steps": (functools.partial(fl.algorithms.FedAvg, 0.1), {"local_steps": [1, 4]})}
    tuned = fl.tune(served, space, **METRIC)
    assert tuned.chosen["steps"]["local_steps"] == 4
    assert tuned.response["steps"].sizes["candidate"] == 2
    with pytest.raises(ValueError, match="no method has a numeric hyperparameter"):
        tuned.plot()


@pytest.mark.parametrize("below", [True, False])
def test_the_search_of_several_numbers_leaves_its_box(below):
    ranges = {"a": Range(-1.0, 0.0, False), "b": Range(0.0, 1.0, True)}
    search = Search(Structure(anything, ranges, {}), 8, 4, 1)
    goal = np.array([-2.2 if below else 1.2, 0.5])
    while search.batch is not None:
        search.positions = np.concatenate([search.positions, search.batch])
        search.advance(((search.positions - goal) ** 2).sum(axis=1))
    best = search.positions[((search.positions - goal) ** 2).sum(axis=1).argmin()]
    np.testing.assert_allclose(best, goal, atol=0.15)
    assert (search.positions[:, 1] >= 0).all()
    assert (search.positions[:, 1] <= 1).all()
    assert not np.any(search.edges(best))


def anything(**numbers):
    return fl.algorithms.FedAvg(1.0)


def below_one(number):
    """An algorithm that admits numbers up to one."""
    if number > 1:
        raise ValueError(f"number must be at most 1, got {number}.")
    return fl.algorithms.FedAvg(number)


@pytest.mark.parametrize(("goal", "is_interior"), [(0.0, True), (-0.7, True), (-9.0, False)])
def test_a_search_ends_where_the_algorithm_admits_no_more(goal, is_interior):
    structure = Structure(below_one, {"number": Range(-2.0, -0.5, False)}, {})
    search = Search(structure, 5, 3, 1)
    while search.batch is not None:
        for position in search.batch:
            structure.build(**structure.values(position))
        search.positions = np.concatenate([search.positions, search.batch])
        search.advance(np.abs(search.positions[:, 0] - goal))
    best = search.positions[np.abs(search.positions[:, 0] - goal).argmin()]
    below, above = search.edges(best)
    assert not above
    assert bool(below) == (not is_interior)
    if is_interior:
        assert best[0] == pytest.approx(goal, abs=0.13)


@pytest.mark.parametrize("name", sorted(SEARCHED_OPTIONS))
def test_options_that_papers_tune_are_searched(name):
    cls = REGISTRY[name]
    options = {argument.name: argument for argument in dataclasses.fields(cls)}
    for option in SEARCHED_OPTIONS[name]:
        assert options[option].default is not dataclasses.MISSING
    if name not in WITHOUT:
        build, space = space_of(name)
        assert {*SEARCHED_OPTIONS[name]} <= space.keys()
        for end in (0, 1):
            build(**{argument: values[end] for argument, values in space.items()})


def test_momentum_is_part_of_the_choice():
    """On an ill-conditioned problem the server's momentum pays: the default space finds it."""
    features = jnp.asarray(np.random.default_rng(0).normal(size=(4, 30, 2)) * [1.0, 0.1])
    problem = fl.problems.Problem(features, features.sum(-1), fl.problems.LeastSquares())

    def conditioned(key, algorithm):
        return fl.Simulation(problem=problem, algorithm=algorithm, metrics=["normalized_error"])

    options = {"metric": "normalized_error", "rounds": 40, "seeds": 1}
    tuned = fl.tune(conditioned, ["FedAvg", "FedAvgM"], **options)
    score = {name: float(scores["mean"].min()) for name, scores in tuned.response.items()}
    assert tuned.chosen["FedAvgM"]["momentum"] > 0.1
    assert score["FedAvgM"] < 0.1 * score["FedAvg"]


def test_a_linear_range_is_respected():
    ranges = {"a": Range(-1.0, 0.0, False), "b": Range(0.0, 1.0, True)}
    search = Search(Structure(anything, ranges, {}), 8, 4, 2)
    while search.batch is not None:
        search.positions = np.concatenate([search.positions, search.batch])
        search.advance(((search.positions - np.array([-0.5, 1.3])) ** 2).sum(axis=1))
    assert len(search.positions) > 16
    assert 0.9 < search.positions[:, 1].max() <= 1


#: Algorithms that must be given more than numbers: a part of them is the scenario's.
WITHOUT = {
    *("CCVR", "Choco-SGD", "Diffusion, general", "Ditto", "FedAvg-FT", "FedBABU", "FedDF", "FedMD"),
    *("EF-SGD", "EF21", "EF21-BC", "DIANA", "MARINA", "DASHA", "ADIANA", "CANITA", "FetchSGD"),
    *("TAMUNA", "FedOpt", "FedPer", "BEER", "CEDAS", "LEAD", "MoTEF", "Teleportation"),
    *("FedRep", "FedSGD, networked", "GT-SARAH", "GT-SVRG", "IFCA", "ISFedAvg", "LG-FedAvg"),
    *("DESTRESS", "Network-SARAH", "Network-SVRG", "CFL", "FedEM", "kNN-Per", "Hier-Local-QSGD"),
    *("NPFL, by gradient", "NPFL, by loss", "NPFL, by parameters", "NPFL-RL"),
    *("PGFL, by gradient", "PGFL, by loss", "q-FedAvg"),
}


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - WITHOUT))
def test_an_algorithm_has_a_space(name):
    _, space = space_of(name)
    (structure,) = _structures_of([name])[name]
    assert space
    search = Search(structure, 3, 0, 0)
    for point in (search.low, search.high):
        assert isinstance(structure.build(**structure.values(point)), REGISTRY[name])


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_an_algorithm_without_a_space_states_the_reason(name):
    reasons = "|".join(map(re.escape, [*GIVEN.values(), "more than numbers"]))
    with pytest.raises(ValueError, match=reasons):
        space_of(name)


def test_algorithms_are_found_by_other_names():
    assert space_of("DGD") == space_of("Consensus")
    with pytest.raises(ValueError, match=r"^D-PSGD is fljax.algorithms.Consensus with batches=; "):
        space_of("D-PSGD")
    assert space_of("FedDPSGD") == space_of("DP-SGD")  # the name of its class
    for name in ("dpsgd", "D-PSGB"):
        with pytest.raises(ValueError, match=r"Did you mean 'DP-SGD' or 'D-PSGD'\?$"):
            space_of(name)

    def build(key, algorithm):
        raise AssertionError("names are checked first")

    with pytest.raises(ValueError, match=r"^unknown method 'scaffold'. Did you mean 'SCAFFOLD'\?$"):
        fl.tune(build, ["scaffold"], metric="objective", rounds=1)
    with pytest.raises(ValueError, match=r"Did you mean 'FedAvg'\?$"):
        fl.compare(
            lambda key, algorithm: None, ["fed_avg", "FedProx"], metric="objective", rounds=1
        )


def test_a_candidate_that_diverges_for_some_seeds_counts_as_infinite():
    error = [[[1.0, 0.5], [1.0, 0.5]], [[1.0, 0.1], [1.0, np.inf]], [[1.0, 0.1], [1.0, np.nan]]]
    results = xr.Dataset(
        {
            "error": (("algorithm", "seed", "round"), error, {"decibel": 1}),
            "diverged": (("algorithm", "seed"), [[0, 0], [0, 2], [0, 0]]),
        },
        {"algorithm": ["a", "b", "c"], "round": [1, 2]},
    )
    scored = _summarize_scores(results, "error", "final")
    np.testing.assert_array_equal(scored["mean"], [0.5, np.inf, np.inf])
    np.testing.assert_array_equal(scored["diverged"], [0, 1, 0])
    area = _summarize_scores(results, "error", "area")
    np.testing.assert_array_equal(area["mean"], [0.75, np.inf, np.inf])


KILLED = """
import os, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
from tests.tuning.test_search import *

add, calls = Store.add, []

def deadly(self, block):
    calls.append(block)
    if block.points != calls[0].points:  # of the second batch
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, block)

Store.add = deadly
small(sys.argv[1])
"""


def small(store):
    return fl.tune(scenario, candidates(1e-3, 1e-2), points=3, store=store, **METRIC)


@pytest.mark.slow
def test_a_killed_tuning_resumes(tmp_path, monkeypatch):
    computed = []
    add = Store.add

    def spy(self, block):
        computed.append(block)
        return add(self, block)

    monkeypatch.setattr(Store, "add", spy)
    uninterrupted = small(tmp_path / "whole")
    later = sum(block.points != computed[0].points for block in computed)
    assert 0 < later < len(computed)
    folder = tmp_path / "killed"
    child = subprocess.run(
        [sys.executable, "-c", KILLED, folder],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    computed.clear()
    again = small(folder)
    assert len(computed) == later  # the first batch was on disk
    assert again.chosen == uninterrupted.chosen
    xr.testing.assert_equal(again.response["CTA"], uninterrupted.response["CTA"])
    computed.clear()
    assert small(folder).chosen == uninterrupted.chosen
    assert not computed


@pytest.mark.parametrize("bad", [[0, 1], range(FIRST_SEED - 1, FIRST_SEED + 3)])
def test_seeds_of_an_evaluation_are_refused(bad):
    with pytest.raises(ValueError, match="an evaluation's"):
        fl.tune(scenario, ["CTA"], **METRIC | {"seeds": bad})


@pytest.mark.parametrize("goal", ["area", "bits", "gradients"])
def test_other_goals_are_minimized(goal):
    target = None if goal == "area" else 0.1
    tuned = fl.tune(scenario, ["CTA"], goal=goal, target=target, **METRIC)
    results = fl.sweep(
        scenario, grid={"algorithm": tuned.methods}, rounds=10, seeds=list(tuned.seeds)
    ).isel(algorithm=0)
    error = results["normalized_error"]
    score = error.mean("round")
    if goal == "bits":
        score = results["bits"].where(error <= 0.1).min("round")
    if goal == "gradients":  # those of all samples of five clients in every round
        score = (5 * 10 * results["round"]).where(error <= 0.1).min("round")
    np.testing.assert_allclose(score.mean(), tuned.response["CTA"]["mean"].min(), rtol=1e-6)


def test_gradients_are_a_goal_of_those_that_count_them():
    with pytest.raises(ValueError, match="Local does not evaluate a fixed number of gradients"):
        fl.tune(
            scenario,
            {"Local": (fl.algorithms.NetworkedADMM, {"penalty": (0.1, 1.0)})},
            goal="gradients",
            target=0.1,
            **METRIC,
        )


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


def test_seconds_of_a_clock_are_minimized():
    method = {"FedAvg": (fl.algorithms.FedAvg, {"step_size": (1e-3, 0.3)})}
    options: dict[str, Any] = METRIC | {"rounds": 20, "points": 3, "extensions": 0}
    options |= {"refinements": 0, "goal": "seconds", "target": 0.1}
    tuned = fl.tune(on_clock, method, **options)
    scores = tuned.response["FedAvg"]
    costs, most = [], 0.0
    for size in scores["step_size"].values:
        grid = {"algorithm": {"FedAvg": fl.algorithms.FedAvg(float(size))}}
        runs = fl.sweep(on_clock, grid=grid, rounds=20, seeds=list(tuned.seeds), progress=False)
        errors, seconds = (runs[n].values.reshape(2, -1) for n in ("normalized_error", "seconds"))
        most = max(most, seconds.max())
        costs.append(
            [
                next((t for t, e in zip(s, curve, strict=True) if e <= 0.1), None)
                for s, curve in zip(seconds, errors, strict=True)
            ]
        )
    expected = [np.mean([2 * most if c is None else c for c in of_seeds]) for of_seeds in costs]
    np.testing.assert_allclose(scores["mean"], expected, rtol=1e-6)
    censored = [sum(c is None for c in of_seeds) for of_seeds in costs]
    np.testing.assert_array_equal(scores["censored"], censored)
    assert 0 < sum(censored) < 6
    assert tuned.chosen["FedAvg"]["step_size"] == scores["step_size"][np.argmin(expected)]


def test_seconds_are_a_goal_on_a_clock_alone():
    with pytest.raises(ValueError, match=r"a simulation of the scenario has none; give it one"):
        fl.tune(scenario, ["CTA"], goal="seconds", target=0.1, **METRIC)
    with pytest.raises(ValueError, match=r"'seconds', which need it"):
        fl.tune(on_clock, ["FedAvg"], goal="seconds", **METRIC)


@pytest.mark.slow
def test_diverged_candidates_count_as_infinite():
    tuned = fl.tune(scenario, candidates(1e-2, 1e40), points=5, **METRIC)
    response = tuned.response["CTA"]
    assert (response["diverged"] > 0).any()
    assert np.isinf(response["mean"].where(response["diverged"] > 0, np.inf)).all()


def test_numbers_are_tuned_until_the_mean_over_a_window_is_at_the_target():
    options: dict[str, Any] = METRIC | {"goal": "rounds", "target": 0.3, "refinements": 0}
    tuned = fl.tune(scenario, ["CTA"], window=4, **options)
    (label,) = tuned.response
    means = []
    for step in tuned.response[label]["step_size"].values:
        grid = {"algorithm": {"CTA": fl.algorithms.CTA(step)}}
        runs = fl.sweep(scenario, grid=grid, rounds=METRIC["rounds"], seeds=tuned.seeds)
        errors = runs.normalized_error.values.reshape(len(tuned.seeds), -1)
        means.append(np.mean([arrival(curve, 0.3, 4) for curve in errors]))
    scores = tuned.response[label]["mean"].values
    finite = np.isfinite(scores)
    np.testing.assert_allclose(scores[finite], np.array(means)[finite])
    first_touch = fl.tune(scenario, ["CTA"], **options)
    assert scores.min() > first_touch.response[label]["mean"].min()


def arrival(curve, target, window):
    """The first round at which the mean of a window is at the target; twice all if none is."""
    for last in range(window, len(curve) + 1):
        if np.mean(curve[last - window : last]) <= target:
            return last
    return 2 * len(curve)


def test_runs_that_never_get_to_the_target_are_counted():
    tuned = fl.tune(scenario, ["CTA"], goal="rounds", target=0.1, **METRIC)
    response = tuned.response["CTA"]
    assert response["mean"].min() <= 10
    never = response["censored"] == 2
    assert never.any()
    assert (response["mean"].where(never & (response["diverged"] == 0), 20) == 20).all()


@pytest.mark.slow
def test_an_unreached_target_is_counted_and_reported():
    options = {"goal": "rounds", "target": 1e-30, "points": 3, "extensions": 0, "refinements": 0}
    with pytest.warns(fl.MetricWarning, match=r"no run of CTA reached the target 1e-30"):
        tuned = fl.tune(scenario, candidates(1e-3, 1e-1), **options, **METRIC)
    response = tuned.response["CTA"]
    assert response.sizes["candidate"] == 3
    assert (response["censored"] == 2).all()
    assert (response["runs"] == 2).all()
    assert (response["mean"] == 20).all()  # twice all rounds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"methods": ["FedAvgg"]}, "FedAvg"),
        ({"methods": []}, "at least one"),
        ({"methods": ["CTA", "CTA"]}, "each method once"),
        ({"methods": ["Ditto"]}, "solver, and it is an algorithm of its own"),
        ({"methods": candidates(1.0, 0.1)}, "empty or inverted"),
        ({"methods": candidates(1.0, 1.0)}, "empty or inverted"),
        ({"methods": candidates(0.0, 1.0)}, "> 0"),
        ({"methods": {"CTA": (fl.algorithms.CTA, 0.1)}}, "must be"),
        ({"methods": {"CTA": (fl.algorithms.CTA, {})}}, "must be"),
        ({"methods": {"CTA": (fl.algorithms.CTA, {"step_size": 0.1})}}, "range of step_size"),
        ({"methods": {"CTA": (fl.algorithms.CTA, {"step": (0.1, 1)})}}, "cannot be made of step"),
        ({"methods": {"CTA": (fl.algorithms.CTA, {"step_size": []})}}, "categories"),
        ({"goal": "best"}, "goal"),
        ({"goal": "rounds"}, "target"),
        ({"target": 0.1}, "target"),
        ({"window": 2}, "give target= as well"),
        ({"goal": "rounds", "target": 0.1, "window": 2}, "longer than a run, which has 1 records"),
        ({"points": 2}, "points"),
        ({"seeds": 0}, "seeds"),
        ({"metric": "normalised"}, "normalized_error"),
    ],
)
def test_bad_input_is_refused(changed, message):
    options = {"methods": ["CTA"]} | METRIC | {"rounds": 1} | changed
    with pytest.raises((ValueError, TypeError), match=message):
        fl.tune(scenario, **options)


def test_an_unknown_metric_is_refused_before_compilation(monkeypatch):
    def compiles(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr("fljax.tuning.search.sweep", compiles)
    with pytest.raises(ValueError, match="normalized_error"):
        fl.tune(scenario, ["CTA"], metric="normalised_error", rounds=1)


def unlike(number):
    """A scenario with its own conditioning, hence its own best step."""

    def scenario(key, algorithm):
        problem = fl.problems.ridge(key, clients=5, samples=8 + 6 * number, dim=2 + number)
        network = fl.graphs.complete(5)
        return fl.Simulation(problem, algorithm, network, metrics=["normalized_error"])

    return scenario


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_halving_chooses_as_full_runs_do(number, tmp_path):
    options: dict[str, Any] = METRIC | {"rounds": 32, "refinements": 0}
    methods = {"EXTRA": (fl.algorithms.EXTRA, {"step_size": (1e-3, 1e1)})}
    full = fl.tune(unlike(number), methods, **options)
    halved = fl.tune(unlike(number), methods, halvings=2, store=tmp_path, **options)
    assert halved.chosen == full.chosen
    responses = [tuned.response["EXTRA"] for tuned in (full, halved)]
    rounds = responses[1]["rounds"].values
    assert sorted(rounds) == [8, 8, 8, 8, 16, 16, 32, 32]
    survivors = rounds == 32
    assert np.isinf(responses[1]["mean"].values[~survivors]).all()
    for part in ("mean", "low", "high"):  # as if it had never stopped, but for rounding
        np.testing.assert_allclose(
            *(tuned[part].values[survivors] for tuned in responses), rtol=1e-6
        )


def test_halving_is_refused_where_runs_cannot_go_on():
    def private(key, algorithm):
        return dataclasses.replace(scenario(key, algorithm), privacy=fl.privacy.ZCDP(1.0))

    bad: list[tuple[dict[str, Any], str]] = [
        ({"halvings": 4}, "10 rounds, recorded every 1, cannot be halved 4 times"),
        ({"halvings": 1, "record_every": 10}, "10 rounds, recorded every 10, cannot be halved"),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            fl.tune(scenario, candidates(0.01, 1.0), **METRIC | options)
    methods = {"ATC": (fl.algorithms.ATC, {"step_size": (0.01, 1.0)})}
    with pytest.raises(ValueError, match="a privacy budget is spread over the rounds"):
        fl.tune(private, methods, halvings=1, **METRIC)


@pytest.mark.slow
def test_halving_for_a_target_goes_by_the_error_first():
    options: dict[str, Any] = METRIC | {"goal": "rounds", "target": 0.5, "refinements": 0}
    tuned = fl.tune(scenario, candidates(0.01, 0.3), halvings=1, **options)
    response = tuned.response["CTA"]
    assert sorted(response["rounds"].values[:8]) == [5] * 4 + [10] * 4
    assert response.attrs["label"].startswith("round")
    assert step(tuned) == step(fl.tune(scenario, candidates(0.01, 0.3), **options))


CLOSENESS = fl.metrics.Metric(
    "closeness",
    lambda now: 1 / (1 + jnp.sum((now.model - now.optimum[None]) ** 2)),
    "closeness to the optimum",
    needs={"optimum"},
    bounds=(0, 1),
    larger_is_better=True,
)
REMOTENESS = dataclasses.replace(
    CLOSENESS,
    name="remoteness",
    measure=lambda now: 1 - CLOSENESS.measure(now),
    larger_is_better=False,
)
BY_CLOSENESS: dict[str, Any] = METRIC | {"metric": "closeness", "points": 4}


def close_scenario(key, algorithm):
    return dataclasses.replace(scenario(key, algorithm), metrics=[CLOSENESS, REMOTENESS])


def by_hand(value, seeds):
    """The closeness of each run in each round, run by run."""
    keys = [jax.random.split(jax.random.fold_in(fl.random_key(), seed))[0] for seed in seeds]
    runs = (fl.run(close_scenario(key, fl.algorithms.CTA(value)), rounds=10) for key in keys)
    return np.array([result["closeness"].values for result in runs])


@pytest.mark.parametrize("goal", ["final", "area"])
def test_metrics_with_larger_is_better_are_maximized(goal):
    options: dict[str, Any] = BY_CLOSENESS | {"goal": goal, "refinements": 0}
    tuned = fl.tune(close_scenario, candidates(1e-3, 1.0), **options)
    response = tuned.response["CTA"]
    values = response["step_size"].values
    means = response["mean"].values
    runs = np.array([by_hand(value, tuned.seeds) for value in values])
    expected = (runs[:, :, -1] if goal == "final" else runs.mean(2)).mean(1)
    np.testing.assert_allclose(means, np.where(np.isfinite(expected), expected, -np.inf), rtol=1e-5)
    assert step(tuned) == values[np.nanargmax(expected)]
    assert tuned.larger_is_better
    assert tuned.table()["score"].item() == pytest.approx(np.nanmax(expected))


def test_a_metric_and_its_complement_choose_the_same():
    options: list[dict[str, Any]] = [BY_CLOSENESS, BY_CLOSENESS | {"metric": "remoteness"}]
    tunings = [fl.tune(close_scenario, candidates(1e-3, 1.0), **item) for item in options]
    assert tunings[0].chosen == tunings[1].chosen
    assert tunings[0].interior == tunings[1].interior == {"CTA": {"step_size": True}}
    assert tunings[0].larger_is_better
    assert not tunings[1].larger_is_better
    sizes = [item.response["CTA"].sizes["candidate"] for item in tunings]
    assert sizes[0] == sizes[1]
    scores = [item.table()["score"].item() for item in tunings]
    assert sum(scores) == pytest.approx(1)


def test_the_width_of_an_accuracy_is_that_of_its_error_rate():
    scores = [1.0, 0.2, 0.12, 0.1, 0.124, 0.3]
    structures = _structures_of(candidates(1e-3, 1.0))
    about = {"linear": {"step_size": False}, "interior": {}}

    def width(means, **attrs):
        response = xr.Dataset({"mean": ("candidate", np.array(means))}, attrs=about | attrs)
        values = response.assign_coords(step_size=("candidate", np.logspace(-3, 2, 6)))
        return search._result_of(structures, {"CTA": values}, "final", [], 0).width

    right = [1 - score for score in scores]
    widths = width(right, larger_is_better=True, greatest=1.0)
    assert widths == width(scores) == {"CTA": {"step_size": pytest.approx((0.1, 10.0))}}


def test_the_direction_of_a_tuning_is_saved_and_drawn(tmp_path):
    options: dict[str, Any] = BY_CLOSENESS | {"refinements": 0}
    tuned = fl.tune(close_scenario, candidates(1e-3, 1.0), **options)
    again = fl.Tuned.load(tuned.save(tmp_path / "t.json"), candidates(1e-3, 1.0))
    assert again.larger_is_better
    assert again.chosen == tuned.chosen
    assert again.width == tuned.width
    for tuning in (tuned, again):
        (ax,) = tuning.plot()
        (marked,) = (line for line in ax.lines if len(line.get_xdata()) == 1)
        assert marked.get_xdata() == [step(tuned)]
        assert marked.get_ydata() == [tuned.response["CTA"]["mean"].max()]
        assert ax.get_yscale() == "linear"
    plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["final", "rounds"])
def test_halving_keeps_the_better_half_of_a_maximized_metric(goal):
    target = None if goal == "final" else 0.5
    options: dict[str, Any] = BY_CLOSENESS | {"refinements": 0, "goal": goal, "target": target}
    options |= {"rounds": 8, "extensions": 0}
    tuned = fl.tune(close_scenario, candidates(0.01, 0.3), halvings=1, **options)
    response = tuned.response["CTA"]
    halfway = [by_hand(value, tuned.seeds)[:, 3].mean() for value in response["step_size"].values]
    better_half = np.argsort(halfway)[-2:]
    ran_fully = response["rounds"].values == 8
    assert set(np.flatnonzero(ran_fully)) == set(better_half)
    worst = -np.inf if goal == "final" else np.inf  # costs to reach a target are minimized
    assert (response["mean"].values[~ran_fully] == worst).all()
    assert tuned.larger_is_better == (goal == "final")


def test_a_target_of_an_accuracy_is_reached_from_below():
    options: dict[str, Any] = BY_CLOSENESS | {"goal": "rounds", "target": 0.5, "refinements": 0}
    tuned = fl.tune(close_scenario, candidates(1e-2, 0.3), **options)
    response = tuned.response["CTA"]
    for value, mean in zip(response["step_size"].values, response["mean"].values, strict=True):
        at_target = by_hand(value, tuned.seeds) >= 0.5
        first = np.where(at_target.any(1), 1 + at_target.argmax(1), 2 * 10)
        assert mean == first.mean()
    assert not tuned.larger_is_better
    assert step(tuned) == response["step_size"].values[response["mean"].values.argmin()]


def test_an_accuracy_that_grows_a_thousandfold_does_not_diverge(recwarn):
    def scaled(key, algorithm):
        grown = dataclasses.replace(
            CLOSENESS,
            measure=lambda now: CLOSENESS.measure(now) ** 60,
            name="grown",
        )
        return dataclasses.replace(scenario(key, algorithm), metrics=[grown])

    options: dict[str, Any] = BY_CLOSENESS | {"metric": "grown"}
    fl.tune(scaled, candidates(0.05, 0.3), **options)
    assert not [
        warning for warning in recwarn if warning.category is fl.results.warnings.MetricWarning
    ]


@pytest.mark.slow
def test_the_error_rate_is_one_minus_accuracy():
    def classified(key, algorithm):
        problem = fl.problems.logistic(key, clients=5, samples=20, dim=2).split(key, test=0.5)
        return fl.Simulation(problem, algorithm, metrics=["accuracy", "error_rate"])

    run = fl.run(classified(jax.random.key(0), fl.algorithms.FedAvg(0.1)), rounds=4)
    np.testing.assert_allclose(run.error_rate, 1 - run.accuracy)
    tunings = [
        fl.tune(classified, ["FedAvg"], metric=name, rounds=4, seeds=2)
        for name in ("accuracy", "error_rate")
    ]
    assert tunings[0].chosen == tunings[1].chosen


@pytest.mark.slow
def test_a_method_that_always_diverges_is_reported():
    with pytest.raises(ValueError, match=r"every candidate .* down to step_size 1e\+30"):
        fl.tune(
            scenario, candidates(1e30, 1e35), extensions=0, metric="normalized_error", rounds=40
        )


@pytest.mark.parametrize("target", [-5, 0.0, float("nan")])
def test_an_unreachable_target_is_refused(target):
    with pytest.raises(ValueError, match="target must be"):
        fl.tune(scenario, candidates(0.01, 0.1), **METRIC, goal="rounds", target=target)
    methods = {**candidates(0.01, 0.1), "ATC": (fl.algorithms.ATC, {"step_size": (0.01, 0.1)})}
    with pytest.raises(ValueError, match="target must be"):
        fl.compare(scenario, methods, **METRIC, target=target)


def test_a_range_in_which_all_diverge_is_not_called_tuned():
    with pytest.warns(fl.MetricWarning, match="the best candidate of CTA ends at .* and began at"):
        fl.tune(scenario, candidates(1e3, 1e4), **METRIC, points=3, extensions=0, refinements=0)


def test_a_candidate_that_sends_little_does_not_win_by_not_arriving():
    """Scaffnew with a low probability sends few bits, and does not reach the target with them."""
    space = {"step_size": (0.01, 0.3), "probability": (1e-3, 1.0)}
    options: dict[str, Any] = {"metric": "normalized_error", "rounds": 20, "seeds": 2}

    def unlike(key, algorithm):
        problem = fl.problems.ridge(key, clients=4, samples=10, dim=2)
        return fl.Simulation(problem=problem, algorithm=algorithm, metrics=["normalized_error"])

    methods = {"Scaffnew": (fl.algorithms.Scaffnew, space)}
    tuned = fl.tune(unlike, methods, goal="bits", target=0.1, refinements=0, **options)
    scores = tuned.response["Scaffnew"]
    never = scores["mean"].where(scores["censored"] == 2, drop=True)
    arrived = scores["mean"].where(scores["censored"] == 0, drop=True)
    assert never.size
    assert float(arrived.max()) < float(never.min())
    results = fl.sweep(unlike, grid={"algorithm": tuned.methods}, rounds=20, seeds=2)
    assert bool((results["normalized_error"].isel(round=-1) <= 0.1).all())
