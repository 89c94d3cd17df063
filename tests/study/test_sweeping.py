"""The engine: same numbers for any blocks, one compilation per structure, clear errors."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from jax.extend import core

import fljax as fl
from fljax._core.devices import traced_for
from fljax._core.prng import GENERATOR
from fljax._core.storage import sealed, unsealed
from fljax.link import wide, wide_sum
from fljax.results.dataset import to_int64
from fljax.results.warnings import reasons
from fljax.simulation.scan import trace
from fljax.study import batched_program, block_sizes, executor
from fljax.study.batched_program import Compiled, Options, Program, ScenarioKey, program
from fljax.study.grid import axes_of, groups_of
from fljax.study.request import Request, Study
from tests.cases import CASES, READING

pytestmark = pytest.mark.core

ZCDP = fl.privacy.ZCDP
ApproximateDP = fl.privacy.ApproximateDP
K = 8
D = 3
T = 12


def build(key, algorithm=None, privacy=None, clients=K, **kwargs):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=clients, samples=10, dim=D),
        network=fl.graphs.ring(clients),
        algorithm=algorithm or fl.algorithms.ZCDPNFL(1.0, 0.3),
        privacy=privacy,
        metrics=kwargs.pop("metrics", ["normalized_error"]),
        **kwargs,
    )


def budgets(key, budget):
    return build(key, privacy=ZCDP(budget, decay=0.9))


def penalties(key, penalty):
    return build(key, algorithm=fl.algorithms.ZCDPNFL(penalty, 0.3))


@pytest.mark.parametrize("numbers", [np.float32, jnp.float32, float])
def test_a_grid_of_any_precision_is_labeled_as_typed(numbers):
    """A reader selects by the label; the runs have the number in its full precision."""
    values = numbers([0.1, 0.7]) if numbers is not float else [0.1, 0.7]
    study = fl.sweep(budgets, rounds=T, seeds=1, grid={"budget": values})
    assert study["budget"].values.tolist() == [0.1, 0.7]
    grid = {"budget": {"low": float(values[0]), "high": float(values[1])}}
    named = fl.sweep(budgets, rounds=T, seeds=1, grid=grid)
    np.testing.assert_array_equal(study["privacy_rho"].values, named["privacy_rho"].values)
    decided = fl.decisions(study).set_index("choice")["value"]
    assert decided["grid: budget"] == "0.1, 0.7"


@pytest.mark.slow
def test_a_sweep_is_its_runs_one_by_one():
    study = fl.sweep(budgets, rounds=T, seeds=3, grid={"budget": [0.5, 5.0]}, root=7)
    root = fl.random_key(7, study.attrs["prng"])
    for seed in range(3):
        k_scenario, k_run = jax.random.split(jax.random.fold_in(root, seed))
        for budget in (0.5, 5.0):
            alone = fl.run(budgets(k_scenario, budget), rounds=T, key=k_run)
            many = study.sel(seed=seed, budget=budget)
            for name in ("normalized_error", "privacy_rho", "messages", "scalars"):
                np.testing.assert_allclose(many[name], alone[name], rtol=1e-9, err_msg=name)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(("block", "workers"), [(1, 1), (2, 3), (5, 1), (64, 2)])
def test_blocks_and_workers_do_not_change_the_numbers(block, workers):
    grid = {"budget": [1.0, 10.0]}
    undivided = fl.sweep(budgets, rounds=T, seeds=5, grid=grid, block=5, workers=1)
    parts = fl.sweep(budgets, rounds=T, seeds=5, grid=grid, block=block, workers=workers)
    for name in undivided:
        np.testing.assert_allclose(parts[name], undivided[name], rtol=1e-9, err_msg=name)


@pytest.mark.slow
def test_a_study_is_extended_by_more_seeds():
    undivided = fl.sweep(budgets, rounds=T, seeds=4, grid={"budget": [1.0]})
    rest = fl.sweep(budgets, rounds=T, seeds=range(2, 4), grid={"budget": [1.0]})
    np.testing.assert_array_equal(rest.seed, [2, 3])
    np.testing.assert_allclose(
        rest.normalized_error, undivided.normalized_error.sel(seed=[2, 3]), rtol=1e-9
    )


@pytest.mark.slow
def test_seeds_differ_and_grid_points_share_their_draws():
    study = fl.sweep(budgets, rounds=T, seeds=3, grid={"budget": [1e12, 2e12]})
    final = study.normalized_error.isel(round=-1)
    assert len(np.unique(final.sel(budget=1e12))) == 3
    # with next to no noise the two points are the same runs: same data, same graph
    np.testing.assert_allclose(final.sel(budget=1e12), final.sel(budget=2e12), rtol=1e-4)


@pytest.mark.slow
def test_twenty_numbers_cost_one_compilation_and_repeats_none():
    grid = {"penalty": np.linspace(0.5, 2, 20)}
    first = fl.sweep(penalties, rounds=T, seeds=2, grid=grid)
    assert first.attrs["compilations"] == 1
    again = fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": grid["penalty"] + 1})
    assert again.attrs["compilations"] == 0
    assert first.sizes["penalty"] == 20
    assert not np.allclose(first.normalized_error, again.normalized_error)


@pytest.mark.slow
def test_objects_that_differ_in_numbers_share_a_program():
    def scenario(key, algorithm, privacy):
        return build(key, algorithm, privacy)

    grid = {
        "algorithm": {
            "slow": fl.algorithms.ZCDPNFL(3.0, 0.1),
            "ADMM-like": fl.algorithms.ZCDPNFL(1.0, 0.3),
            "decaying": fl.algorithms.ZCDPNFL(1.0, fl.schedules.PowerDecay(0.3)),
            "subgradient": fl.algorithms.ZCDPGradNFL(0.05),
        },
        "privacy": {"none": None, "tight": ZCDP(0.1), "loose": ZCDP(10.0)},
    }
    study = fl.sweep(scenario, rounds=T, seeds=2, grid=grid)
    assert study.attrs["compilations"] == 3 * 2  # structures of algorithms times of privacy
    assert list(study.algorithm.values) == list(grid["algorithm"])
    assert np.isnan(study.privacy_rho.sel(privacy="none")).all()
    np.testing.assert_allclose(study.privacy_rho.sel(privacy="loose").isel(round=-1), 10)
    for name, algorithm in grid["algorithm"].items():
        alone = fl.sweep(lambda k, a=algorithm: build(k, a, ZCDP(10.0)), rounds=T, seeds=2)
        np.testing.assert_allclose(
            study.normalized_error.sel(algorithm=name, privacy="loose"),
            alone.normalized_error,
            rtol=1e-9,
        )


@pytest.mark.slow
def test_numbers_of_numpy_in_a_part_share_a_program():
    def scenario(key, part):
        return build(key, fl.algorithms.ZCDPNFL(part["penalty"], part["steps"][0]))

    grid = {
        "part": {
            str(number): {"penalty": number, "steps": np.full(2, 0.1)}
            for number in (np.float64(1.0), np.float32(2.0))
        }
    }
    assert fl.sweep(scenario, rounds=T, seeds=2, grid=grid).attrs["compilations"] == 1


@pytest.mark.slow
def test_structural_axes_are_compiled_one_by_one():
    def scenario(key, clients, reading):
        return build(key, clients=clients, privacy=ZCDP(1.0, 0.9, schedule=reading))

    grid = {"clients": fl.static([4, 6]), "reading": ["privacy", "variance"]}
    study = fl.sweep(scenario, rounds=T, seeds=2, grid=grid)
    assert study.attrs["compilations"] == 4
    assert (study.messages.isel(seed=0, round=0, reading=0) == [8, 12]).all()


@pytest.mark.slow
def test_compiled_programs_do_not_depend_on_the_study_that_made_them():
    def a(key, x):
        return build(key, fl.algorithms.ZCDPNFL(x, 0.3))

    def b(key, x):
        return build(key, fl.algorithms.ZCDPNFL(2 * x, 0.3))

    first = fl.sweep(a, rounds=T, seeds=2, grid={"x": [2.0]})
    second = fl.sweep(b, rounds=T, seeds=2, grid={"x": [1.0]})
    np.testing.assert_allclose(first.normalized_error, second.normalized_error, rtol=1e-9)
    arguments = T, 1, False, "seeds", GENERATOR, Options.of_this_thread()
    assert program(ScenarioKey(a), *arguments) is program(ScenarioKey(a), *arguments)
    assert program(ScenarioKey(a), *arguments) is not program(ScenarioKey(b), *arguments)


@pytest.mark.slow
def test_records_are_thinned_without_losing_counts():
    every = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]})
    third = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]}, record_every=3)
    np.testing.assert_array_equal(third["round"], [3, 6, 9, 12])
    for name in ("normalized_error", "privacy_rho", "messages", "scalars"):
        np.testing.assert_allclose(
            third[name], every[name].sel(round=third["round"]), rtol=1e-9, err_msg=name
        )


@pytest.mark.slow
def test_models_are_kept_on_request():
    study = fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": [1.0]}, keep_models=True)
    assert study.model.dims == ("penalty", "seed", "client", "parameter")
    assert study.model.shape == (1, 2, K, D)


def test_models_of_several_shapes_are_not_kept():
    def scenario(key, clients):
        return build(key, clients=clients)

    with pytest.raises(ValueError, match=r"models of several shapes, .* run those grid points"):
        fl.sweep(scenario, rounds=T, grid={"clients": fl.static([4, 6])}, keep_models=True)


@pytest.mark.slow
def test_divergence_is_counted_and_named():
    def scenario(key, step):
        return build(key, fl.algorithms.ZCDPGradNFL(step))

    with pytest.warns(fl.DivergenceWarning, match="2 of 4 runs diverged"):
        study = fl.sweep(scenario, rounds=1200, seeds=2, grid={"step": [0.05, 50.0]})
    assert (study.diverged.sel(step=0.05) == 0).all()
    first = int(study.diverged.sel(step=50.0, seed=0))
    errors = study.normalized_error.sel(step=50.0, seed=0)
    # squaring the model overflows a few rounds before the model itself does
    assert 1 < first < 1200
    assert not np.isfinite(errors.sel(round=first))
    assert np.isfinite(errors.sel(round=first // 3))


def ratio(now):
    return jnp.sum(now.model**2) / jnp.sum(now.problem.targets**2)


RATIO = fl.metrics.Metric("ratio", ratio, "energy by that of the targets", needs={"data"})


@pytest.mark.slow
def test_a_nan_metric_of_a_finite_model_is_reported(recwarn):
    """A study that does not request the metric has no error."""

    def scenario(key, scale, metrics):
        simulation = build(key, metrics=metrics)
        problem = simulation.problem
        problem = dataclasses.replace(problem, targets=scale * problem.targets)
        return dataclasses.replace(simulation, problem=problem)

    grid = {"scale": [0.0, 1.0], "metrics": {"one": [RATIO], "other": ["consensus_error"]}}
    message = r"runs whose models are finite: 'ratio' in 2 of 8 runs\. Look for a division by zero"
    with pytest.warns(fl.MetricWarning, match=message):
        fl.sweep(scenario, rounds=2, seeds=2, grid=grid)
    simulation = scenario(jax.random.key(0), 0.0, [RATIO, "consensus_error"])
    with pytest.warns(fl.MetricWarning, match="'ratio' in 1 of 1 runs"):
        fl.run(simulation, rounds=2)
    fl.sweep(scenario, rounds=2, seeds=2, grid=grid | {"scale": [1.0]})
    assert not [w for w in recwarn if w.category is fl.MetricWarning]


@pytest.mark.slow
def test_a_run_without_messages_is_named(recwarn):
    def scenario(key, probability, algorithm):
        pattern = fl.participation.Bernoulli(probability)
        simulation = build(key, algorithm, participation=pattern, metrics=[])
        return dataclasses.replace(simulation, network=None)

    fedavg = fl.algorithms.FedAvg(0.1)
    local = fl.algorithms.LocalOnly(0.1)
    grid = {"probability": [0.0, 0.9], "algorithm": [fedavg, local]}
    with pytest.warns(fl.AssumptionWarning, match="no message was sent in 2 of 8 runs: nobody"):
        fl.sweep(scenario, rounds=3, seeds=2, grid=grid)
    fl.sweep(scenario, rounds=3, seeds=2, grid=grid | {"probability": [0.9]})
    assert not recwarn


@pytest.mark.slow
def test_disconnected_random_graphs_are_named():
    def scenario(key):
        simulation = build(key)
        empty = fl.graphs.Graph(
            nodes=K,
            adjacency=jnp.zeros((K, K)) * jax.random.uniform(key),
            neighbors=None,
            weights=None,
            degree=jnp.ones(K),
        )
        return fl.Simulation(simulation.problem, simulation.algorithm, empty)

    with pytest.warns(fl.AssumptionWarning, match="2 of 2 runs had a disconnected graph"):
        fl.sweep(scenario, rounds=2, seeds=2)


@pytest.mark.slow
def test_the_broken_gradient_bound_is_named():
    with pytest.warns(fl.AssumptionWarning, match=r"nominal.* bound 1\. The data .* above it"):
        study = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]})
    assert (study.gradient_norm > study.gradient_bound).all()


@pytest.mark.slow
def test_a_bound_that_holds_gives_no_warning(recwarn):
    def scenario(key):
        simulation = build(key, privacy=ZCDP(1.0, gradient_bound=2.0))
        return fl.Simulation(
            simulation.problem.clipped(2.0),
            simulation.algorithm,
            simulation.network,
            simulation.privacy,
        )

    study = fl.sweep(scenario, rounds=T, seeds=2)
    np.testing.assert_allclose(study.gradient_norm, 2.0)
    assert not [w for w in recwarn if issubclass(w.category, fl.AssumptionWarning)]


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", CASES)
def test_compiled_runs_hold_no_lapack_calls(label):
    """Two programs with LAPACK calls can wait for each other for ever on a CPU."""
    algorithm = CASES[label].algorithm
    if label == "ISFedAvg":  # whose numbers are of other clients
        algorithm = dataclasses.replace(algorithm, batch=2, local_steps=2)
    if getattr(algorithm, "test_set", None) is not None:  # whose features are of another number
        algorithm = dataclasses.replace(algorithm, test_set=None)
    if getattr(algorithm, "public", None) is not None:
        algorithm = dataclasses.replace(algorithm, public=np.ones((7, D)))
    metrics = [
        name
        for name, m in fl.metrics.METRICS.items()
        if not {"test", "labels", "signal_to_noise", "drift"} & set(m.needs)
        and (type(algorithm).needs.network is fl.graphs.Graph or "graph" not in m.needs)
        and (type(algorithm).needs.hierarchical or name != "level_bits")
        and name != "timeline"  # of a clock
    ]
    if type(algorithm).optimum is not fl.algorithms.Algorithm.optimum:
        metrics.remove("suboptimality")  # of one model
    if type(algorithm).needs.adapters:  # of a network, whose optimum and true model are not known
        unknown = {"optimum", "tasks.truth"}
        metrics = [name for name in metrics if not unknown & set(fl.metrics.METRICS[name].needs)]
    problems = {
        "ridge": fl.problems.ridge,
        "elastic net": fl.problems.elastic_net,
        "least absolute": fl.problems.least_absolute_deviation,
    }
    of_classes = functools.partial(fl.problems.softmax, classes=2)
    usual = of_classes if label in READING else fl.problems.ridge
    for draw in problems.values() if label == "ADMM" else [usual]:
        problem = draw(jax.random.key(0), clients=K, samples=10, dim=D)
        even = np.arange(K) % 2
        truth = np.ones((2, problem.dim))
        tasks = fl.problems.Tasks(even, 2, truth, validation=problem)
        problem = dataclasses.replace(problem, tasks=tasks)
        if type(algorithm).needs.adapters:
            network = fl.models.lora(fl.models.mlp(2), rank=1)
            problem = fl.problems.Model.of(problem, network, jax.random.key(3))
        graph = fl.graphs.random_connected(jax.random.key(1), nodes=K, mean_degree=3)
        if type(algorithm).needs.network is fl.federation.Federation:
            graph = fl.federation.balanced(K // 2, fl.graphs.path(2))
        if type(algorithm).needs.complete:
            graph = fl.graphs.complete(K)
        parts: dict = {"metrics": metrics}
        if type(algorithm).needs.data == "stream":
            problem = fl.streams.Replay(problem, test=problem.pooled())
            delays = fl.link.Geometric(0.2, 3)
            parts = {"metrics": ["test_error"], "delays": delays, "compression": fl.link.TopK(1)}
        simulation = fl.Simulation(problem, algorithm, graph, **parts)
        lowered = jax.jit(lambda s, k: trace(s, k, 2, 1)).lower(simulation, jax.random.key(2))
        assert "lapack" not in lowered.as_text()


@pytest.mark.slow
def test_lapack_calls_of_a_users_metric_are_not_run_side_by_side():
    def conditioning(now):
        spread = now.model.T @ now.model + jnp.eye(D)
        return jnp.linalg.inv(spread)[0, 0]

    metric = fl.metrics.Metric("conditioning", conditioning, "conditioning", decibel=False)
    study = fl.sweep(lambda key: build(key, metrics=[metric]), rounds=30, seeds=40, block=2)
    assert np.isfinite(study.conditioning).all()


def never(key, **_):
    raise AssertionError("must not be reached")


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"rounds": 0}, ValueError, "rounds must be >= 1, got 0"),
        ({"rounds": 2.5}, TypeError, "rounds must be an integer, got 2.5"),
        ({"seeds": 0}, ValueError, "seeds must be >= 1, got 0"),
        ({"seeds": []}, ValueError, "seeds must be distinct integers >= 0, at least one"),
        ({"seeds": [1, 1]}, ValueError, "seeds must be distinct"),
        (
            {"seeds": "12"},
            TypeError,
            "seeds must be a number of runs or a list of integers, got '1",
        ),
        ({"seeds": [0.5, 1.9]}, TypeError, r"list of integers, got \[0.5, 1.9\]"),
        ({"seeds": [True]}, TypeError, "list of integers"),
        ({"seeds": [2**32]}, ValueError, r"below 2\*\*32"),
        (
            {"keep_models": "no"},
            TypeError,
            "keep_models must be True or False, got 'no' of type str",
        ),
        ({"independent_noise": 1}, TypeError, "independent_noise must be True or False"),
        ({"keep_state": "no"}, TypeError, "keep_state must be True or False"),
        ({"progress": "yes"}, TypeError, "progress must be True or False, got 'yes'"),
        ({"seeds": [-1]}, ValueError, "seeds must be distinct integers >= 0"),
        ({"record_every": 5}, ValueError, "multiple of record_every, got 12 and 5"),
        ({"block": 0}, ValueError, "block must be >= 1"),
        ({"workers": -1}, ValueError, "workers must be >= 1"),
        ({"grid": {"x": 3.0}}, TypeError, r"grid axis 'x' must be a list .* write \[3.0\]"),
        ({"grid": {"x": "abc"}}, TypeError, "grid axis 'x' must be a list"),
        ({"grid": {"x": []}}, ValueError, "grid axis 'x' has no values"),
        ({"grid": {"seed": [1.0]}}, ValueError, "grid axis 'seed' has a name that results use"),
        ({"grid": {"method": [1.0]}}, ValueError, "rename it"),
        ({"grid": {"x": [1.0, 1.0]}}, ValueError, "'x' has the same label twice"),
    ],
)
def test_bad_studies_are_refused_before_compilation(kwargs, error, message):
    with pytest.raises(error, match=message):
        fl.sweep(never, **({"rounds": T, "seeds": 1} | kwargs))


def test_a_bad_grid_point_is_named_before_compilation(monkeypatch):
    monkeypatch.setattr(batched_program, "_compile", never)
    with pytest.raises(ValueError, match="total_rho must be finite and > 0, got -1") as caught:
        fl.sweep(budgets, rounds=T, grid={"budget": [1.0, -1.0]})
    assert "This was grid point {'budget': -1.0}." in caught.value.__notes__


@pytest.mark.slow
def test_a_bad_value_deep_in_a_large_grid_is_found():
    grid = {"budget": [*np.linspace(1, 2, 150), 0.0]}
    with pytest.raises(ValueError, match="total_rho must be finite and > 0, got 0"):
        fl.sweep(budgets, rounds=T, grid=grid)


def test_an_unproven_calibration_is_refused_before_compilation():
    def scenario(key, epsilon):
        privacy = ApproximateDP(epsilon, 1e-3)
        return build(key, fl.algorithms.EpsilonDeltaNFL(1.0, 0.3), privacy)

    with pytest.raises(ValueError, match="proven only there") as caught:
        fl.sweep(scenario, rounds=T, grid={"epsilon": [1.0, 2.0 * T]})
    assert "This was grid point {'epsilon': 24.0}." in caught.value.__notes__


def test_a_number_used_as_a_size_points_to_static():
    def scenario(key, clients):
        return build(key, clients=clients)

    with pytest.raises(TypeError, match=r"wrap the\s+axis in fljax.static"):
        fl.sweep(scenario, rounds=T, grid={"clients": [4, 6]})


def test_a_number_used_in_a_branch_points_to_static():
    def scenario(key, penalty):
        return build(key, fl.algorithms.ZCDPNFL(penalty if penalty > 1 else 1.0, 0.3))

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        fl.sweep(scenario, rounds=T, grid={"penalty": [0.5, 2.0]})
    assert any("fljax.static" in note for note in caught.value.__notes__)


def test_a_scenario_must_return_a_simulation():
    with pytest.raises(TypeError, match=r"must return an fljax.Simulation, got NoneType"):
        fl.sweep(lambda key: None, rounds=T)


# Threads -----------------------------------------------------------------------------------------


def study_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("fljax-study")}


def test_a_study_takes_the_threads_of_the_one_before():
    study = {"rounds": T, "grid": {"penalty": [1.0, 2.0]}, "workers": 2}
    fl.sweep(penalties, **study, seeds=2)
    before = study_threads()
    for seeds in (2, 3):
        fl.sweep(penalties, **study, seeds=seeds)
    assert before
    # With two workers the second starts when a block comes while the first is busy.
    assert len(study_threads() - before) <= block_sizes.cores()


def where_blocks_are_computed(monkeypatch):
    """The threads, filled as blocks are computed."""
    threads = []
    stretches = executor.StudyRun._run_segments

    def noted(run, work, device):
        threads.append(threading.current_thread())
        return stretches(run, work, device)

    monkeypatch.setattr(executor.StudyRun, "_run_segments", noted)
    return threads


def test_a_brief_study_is_one_block_in_the_calling_thread(monkeypatch):
    threads = where_blocks_are_computed(monkeypatch)
    study = {"rounds": T, "seeds": 4, "grid": {"penalty": [1.0, 2.0]}}
    brief = fl.sweep(penalties, **study)
    assert threads == [threading.current_thread()]
    assert brief.attrs["block"] == "[4]"
    handed = fl.sweep(penalties, **study, workers=2)
    assert handed.attrs["block"] == "[2]"
    assert len(threads) == 3
    assert threading.current_thread() not in threads[1:]
    assert brief.keys() == handed.keys()
    for name in brief:
        np.testing.assert_allclose(brief[name], handed[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("more", ["rounds", "seeds", "segments", "a store"])
def test_other_studies_are_handed_out(monkeypatch, tmp_path, more):
    threads = where_blocks_are_computed(monkeypatch)
    study = {"rounds": T, "seeds": 2, "grid": {"penalty": [1.0]}}
    if more == "a store":
        study["store"] = tmp_path  # its states and files take the time
    elif more == "segments":
        study["segment"] = T // 2  # each has a program
    else:
        monkeypatch.setattr(block_sizes, "BRIEF_BYTES", 2**19)
        study[more] *= 50
    fl.sweep(penalties, **study)
    assert len(threads) >= 1
    assert threading.current_thread() not in threads


def test_an_interrupt_of_a_brief_study_does_not_wait(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Compiled, "call", property(lambda _: interrupted), raising=False)
    with pytest.raises(fl.Interrupted, match="0 of 2 runs are done") as caught:
        fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": [1.0]})
    assert "waiting" not in capsys.readouterr().err
    assert not caught.value.results.done.any()


def test_busy_threads_are_not_reused(monkeypatch):
    monkeypatch.setattr(executor, "_IDLE_THREADS", [])
    first = executor._acquire_threads(2)
    second = executor._acquire_threads(2)
    assert first is not second
    executor._IDLE_THREADS += [first, second]
    assert executor._acquire_threads(3) not in (first, second)
    assert {executor._acquire_threads(2), executor._acquire_threads(2)} == {first, second}
    assert executor._IDLE_THREADS == []


def test_threads_of_a_study_that_failed_are_not_taken_again(monkeypatch):
    monkeypatch.setattr(executor, "_IDLE_THREADS", [])
    monkeypatch.setattr(executor.StudyRun, "_collect_and_report", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": [1.0, 2.0]})
    assert executor._IDLE_THREADS == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_forked_child_has_threads_of_its_own(monkeypatch):
    fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": [1.0, 2.0]})
    assert executor._IDLE_THREADS
    if (child := os.fork()) == 0:
        os._exit(len(executor._IDLE_THREADS))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Segments and early stops ------------------------------------------------------------------------


def descents(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step))


@pytest.mark.slow
def test_segments_are_the_unsegmented_run():
    study = {"rounds": T, "seeds": 2, "grid": {"budget": [1.0]}, "record_every": 2}
    undivided = fl.sweep(budgets, **study)
    parts = fl.sweep(budgets, **study, segment=8)  # two stretches, of 8 and of 4 rounds
    assert parts.attrs["compilations"] == 2
    assert set(parts.variables) == set(undivided.variables)
    for name in undivided:
        np.testing.assert_allclose(parts[name], undivided[name], rtol=1e-12, err_msg=name)


@pytest.mark.slow
def test_a_run_ends_at_its_tolerance():
    study = {"rounds": 40, "seeds": 2, "grid": {"step": [0.02, 0.05]}, "block": 1}
    all_rounds = fl.sweep(descents, **study)
    errors = all_rounds.normalized_error
    tolerance = float(errors.sel(round=18).max())  # all are there from round 20 on, looked at by 4
    early = fl.sweep(descents, **study, until={"normalized_error": tolerance})
    assert (early.stopped > 0).all()
    for seed in (0, 1):
        slowest = errors.sel(seed=seed).max("step")
        good = slowest["round"][slowest <= tolerance]
        end = int(good[good % 4 == 0].min())
        assert 0 < end < 40
        assert (early.stopped.sel(seed=seed) == end).all()
        run = early.sel(seed=seed)
        full = all_rounds.sel(seed=seed)
        for name in ("normalized_error", "messages", "scalars"):
            np.testing.assert_allclose(
                run[name].sel(round=slice(end)), full[name].sel(round=slice(end)), rtol=1e-12
            )
            assert (run[name].sel(round=slice(end, None)) == run[name].sel(round=end)).all()


def test_errors_that_grow_are_named_while_they_are_finite():
    def scenario(key, step):
        return build(key, fl.algorithms.ZCDPGradNFL(step))

    with pytest.warns(fl.DivergenceWarning, match="still finite: 'normalized_error' in 2 of 4 run"):
        study = fl.sweep(scenario, rounds=8, seeds=2, grid={"step": [0.05, 50.0]})
    assert (study.diverged == 0).all()
    assert np.isfinite(study.normalized_error).all()


@pytest.mark.parametrize(
    ("records", "warned"),
    [
        ([1.0, 1e6, 1e13], True),
        ([1e-30, 1e-5, 1e-4], False),  # from a solution to the level of the noise
        ([0.0, 1e-5, 1e13], False),
        ([1.0, np.inf, np.inf], False),
        ([1.0, 1e13], False),
    ],
)
def test_only_errors_that_grow_until_the_end_grow_without_end(records, warned):
    dims = ("seed", "round")
    data = xr.Dataset(
        {
            "normalized_error": (dims, [records], {"decibel": 1}),
            "diverged": ("seed", [np.inf in records]),
            "messages": (dims, [[1.0] * len(records)]),
        }
    )
    simulation = build(jax.random.key(0))
    texts = [text for _, text in reasons(data, [(simulation, True)]) if "grow" in text]
    assert len(texts) == warned


@pytest.mark.slow
def test_a_study_in_which_all_runs_diverge_ends_early():
    study = {"rounds": 40, "seeds": 2, "grid": {"step": [1e80]}, "segment": 10}
    with pytest.warns(fl.DivergenceWarning, match="2 of 2 runs diverged"):
        early = fl.sweep(descents, **study)
    assert (early.stopped == 10).all()
    assert (early.messages.sel(round=40) == early.messages.sel(round=10)).all()
    assert not np.isfinite(early.normalized_error.sel(round=40)).any()


@pytest.mark.slow
def test_an_unreached_tolerance_changes_nothing():
    study = {"rounds": T, "seeds": 2, "grid": {"step": [0.05]}}
    strict = fl.sweep(descents, **study, until={"normalized_error": 0.0})
    assert "stopped" not in strict
    all_rounds = fl.sweep(descents, **study)
    for name in all_rounds:
        np.testing.assert_allclose(strict[name], all_rounds[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": {"normalized_eror": 0.1}}, "unknown metric in until 'normalized_eror'; known"),
        ({"until": {"seconds": 10.0}}, "counts the time of a clock, and a simulation has none"),
        ({"until": {"normalized_error": -0.1}}, r"until\['normalized_error'\] must be .* >= 0"),
        ({"record_every": 2, "segment": 3}, "segment must be a multiple of record_every=2, got 3"),
        ({"segment": 0}, "segment must be >= 1"),
    ],
)
def test_bad_tolerances_and_segments_are_refused(monkeypatch, options, message):
    monkeypatch.setattr(batched_program, "_compile", never)
    with pytest.raises(ValueError, match=message):
        fl.sweep(descents, rounds=T, grid={"step": [0.1]}, **options)


def test_metrics_of_each_client_neither_end_a_study_nor_tune(monkeypatch):
    monkeypatch.setattr(batched_program, "_compile", never)
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)

    def scenario(_, algorithm):
        return fl.Simulation(problem, algorithm, metrics=["train_error"])

    def study(_):
        return scenario(None, fl.algorithms.FedAvg(0.1))

    several = r"'train_error' has a number for each client, .*metrics.worst\('train_error'\)"
    with pytest.raises(ValueError, match=f"metric in until {several}"):
        fl.sweep(study, rounds=3, until={"train_error": 0.1})
    methods = {"FedAvg": (fl.algorithms.FedAvg, {"step_size": [0.1, 0.2]})}
    with pytest.raises(ValueError, match=f"metric {several}"):
        fl.tune(scenario, methods, metric="train_error", rounds=3)


def test_a_tolerance_for_a_metric_that_some_points_lack_is_refused(monkeypatch):
    def scenario(key, metrics):
        return build(key, metrics=[metrics])

    monkeypatch.setattr(batched_program, "_compile", never)
    with pytest.raises(ValueError, match="normalized_error"):
        fl.sweep(
            scenario,
            rounds=T,
            grid={"metrics": ["normalized_error", "consensus_error"]},
            until={"normalized_error": 0.1},
        )


# The plan ----------------------------------------------------------------------------------------


def two_sizes(key, clients, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step), clients=clients)


@pytest.mark.slow
def test_a_plan_matches_the_run():
    study = {"rounds": T, "seeds": 6, "block": 2, "workers": 2}
    study |= {"grid": {"clients": fl.static([4, 6]), "step": [0.02, 0.05, 0.07]}}
    plan = fl.plan(two_sizes, **study)
    assert plan.compilations == len(plan.parts) == 2
    assert plan.runs == 2 * 3 * 6
    assert plan.rounds == T
    assert plan.compile_seconds > 0
    for part, clients in zip(plan.parts, (4, 6), strict=True):
        assert f'"clients": {clients}' in part.example
        assert (part.points, part.points_per_block, part.seeds_per_block) == (3, 3, 2)
        assert (part.blocks, part.workers, part.segments) == (3, 2, 1)
        # at least the records it returns: one metric, four counts of two words, for T rounds
        assert part.memory >= 6 * T * (8 + 4 * 8)
        assert 0 < part.memory_per_run <= part.memory
        assert part.records == 3 * 6 * T * (8 + 4 * 8)
        assert part.state >= 3 * 6 * clients * D * 8
    assert "36 runs of 12 rounds" in str(plan)
    assert "2 programs" in str(plan)
    assert fl.sweep(two_sizes, **study).attrs["compilations"] == 0
    cut = fl.plan(two_sizes, **study, segment=4)
    assert [part.segments for part in cut.parts] == [3, 3]


@pytest.mark.slow
def test_a_measured_block_is_used(monkeypatch, tmp_path):
    def scenario(key):
        return build(key, fl.algorithms.ZCDPGradNFL(0.05), metrics=[])

    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(block_sizes, "seeds_per_block", lambda *_: 4)
    study = {"rounds": T, "seeds": 24, "workers": 1}
    plan = fl.plan(scenario, **study, measure=True)
    ((program, block),) = unsealed((tmp_path / "cache" / "blocks.json").read_text()).items()
    assert f"jax {jax.__version__}" in program
    assert block in (1, 2, 4, 8, 16)
    assert plan.parts[0].seeds_per_block == block_sizes.even_block_size(24, block, 1)
    for measured in (3, 12):
        (tmp_path / "cache" / "blocks.json").write_text(sealed({program: measured}))
        assert fl.sweep(scenario, **study).attrs["block"] == f"[{measured}]"
    for damaged in ("{", "[]", json.dumps({program: 3})):  # no measurements
        (tmp_path / "cache" / "blocks.json").write_text(damaged)
        assert fl.sweep(scenario, **study).attrs["block"] == "[4]"


def least_squares(key, **changed):
    return fl.problems.least_squares(key, **{"clients": 6, "samples": 40, "dim": 3} | changed)


def footprint(problem, **grid):
    """That of a study of a problem ``key, **point -> Problem``."""

    def scenario(key, **point):
        return fl.Simulation(problem(key, **point), fl.algorithms.ConventionalFL(0.1))

    (group,) = groups_of(scenario, axes_of(grid), T)
    return group.footprint


def test_a_footprint_counts_values_per_seed_and_per_round():
    number = 8
    samples = 6 * 40 * (3 + 1) * 8
    statistics = 6 * 3 * (3 + 1) * number
    drawn = footprint(least_squares)
    assert drawn.per_point == 6 * 6 * 3 * number
    assert drawn.drawn == samples
    assert drawn.retained == statistics  # of a quadratic, its Gram matrices and moments
    clipped = footprint(lambda key: least_squares(key).clipped(1.0))
    assert clipped.drawn == clipped.retained == samples
    few = footprint(lambda key: least_squares(key, samples=3))
    assert few.drawn == few.retained  # no more samples than parameters: these are the smaller
    logistic = footprint(lambda key: fl.problems.logistic(key, clients=6, samples=40, dim=3))
    assert logistic.drawn == logistic.retained == samples


@pytest.mark.parametrize("axis", [False, True])
def test_values_shared_by_seeds_count_once(axis):
    constant = least_squares(fl.random_key(0)).clipped(1.0)
    per_seed = footprint(lambda key: least_squares(key).clipped(1.0))
    if axis:
        shared = footprint(
            lambda key, shared_problem: shared_problem, shared_problem={"one": constant}
        )
    else:
        shared = footprint(lambda key: constant)
    assert shared.drawn == shared.retained == 0
    assert (shared.touched, shared.per_point) == (per_seed.touched, per_seed.per_point)


def test_block_sizes_depend_on_memory_per_seed(monkeypatch):
    monkeypatch.setattr(block_sizes, "CACHE_BYTES", 1000)
    monkeypatch.setattr(block_sizes, "DRAWN_BYTES", 10_000)
    run = block_sizes.Footprint(drawn=400, retained=60, touched=10**9, per_point=20)
    assert block_sizes.seeds_per_block(run, points=2) == 10  # 1000 // (60 + 2 * 20)
    assert block_sizes.seeds_per_block(run._replace(retained=10), points=2) == 20
    assert block_sizes.seeds_per_block(run._replace(drawn=1960), points=2) == 5
    assert block_sizes.seeds_per_block(run._replace(drawn=10**6), points=2) == 1
    monkeypatch.setattr(block_sizes, "on_cpu", lambda: False)
    monkeypatch.setattr(block_sizes, "memory_at_hand", lambda: 44_000)
    assert block_sizes.seeds_per_block(run, points=2) == 100


@pytest.mark.slow
def test_blocks_are_halved_until_they_fit(monkeypatch):
    study = {"rounds": T, "seeds": 8, "grid": {"step": [0.02, 0.05]}, "workers": 1}
    undivided = fl.sweep(descents, **study, block=8)
    memory_of_one = fl.plan(descents, **study, block=1).parts[0].memory
    eight = fl.plan(descents, **study, block=8).parts[0].memory
    monkeypatch.setattr(block_sizes, "memory_at_hand", lambda: (memory_of_one + eight) // 2)
    small = fl.sweep(descents, **study, block=8)
    used = json.loads(small.attrs["block"])
    assert max(used) in (1, 2, 4)
    for name in undivided:
        np.testing.assert_allclose(small[name], undivided[name], rtol=1e-12, err_msg=name)
    monkeypatch.setattr(block_sizes, "memory_at_hand", lambda: 1000)
    with pytest.raises(MemoryError, match=r"one run at \{\"step\": 0.02\} takes .*B and 1 kB are"):
        fl.sweep(descents, **study, block=1)


# Wide counts, large constants, identities --------------------------------------------------------


def test_counts_beyond_32_bits_are_exact():
    many = [2**31 - 1, 2**31 - 1, 5, 2**30, 2**31 - 1, 0, 1]
    total = jnp.zeros(2, jnp.uint32)
    for i, more in enumerate(many):
        total = wide_sum(total, wide(jnp.asarray(more, jnp.int32), 1))
        high, low = (int(x) for x in total)
        assert low < 2**31
        assert (high << 31) + low == sum(many[: i + 1])
    pairs = np.asarray([[[3, 5], [0, 7], [2**20, 2**31 - 1]]], np.uint32)  # [S, R, 2]
    assert to_int64(pairs).tolist() == [[3 * 2**31 + 5, 7, 2**51 + 2**31 - 1]]


def weighing(array):
    """A scenario whose metric closes over an array."""

    def measure(now):
        return jnp.sum(array) * jnp.sum(now.model) + jnp.max(array)

    metric = fl.metrics.Metric("weight", measure, "weight", decibel=False)
    return lambda key: build(key, fl.algorithms.ZCDPGradNFL(0.05), metrics=[metric])


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_large_arrays_are_passed_to_the_program(monkeypatch, kind):
    array = kind(np.random.default_rng(0).normal(size=100_000))
    texts = []
    compiled = jax.stages.Lowered.compile

    def noted(lowered, *args, **kwargs):
        texts.append(lowered.as_text())
        return compiled(lowered, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
    passed = fl.sweep(weighing(array), rounds=2, seeds=2)
    assert max(map(len, texts)) < array.nbytes
    texts.clear()
    monkeypatch.setattr(batched_program, "LIFTED_BYTES", 2**62)
    embedded = fl.sweep(weighing(array), rounds=2, seeds=2)
    assert max(map(len, texts)) > array.nbytes
    np.testing.assert_allclose(passed.weight, embedded.weight, rtol=1e-12)


def identity(scenario, **grid):
    (group,) = groups_of(scenario, axes_of(grid), T)
    return Program(scenario, T, 1, False).identity(group, retrace=True)


@pytest.mark.slow
def test_an_identity_is_the_same_in_every_process():
    code = """
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
from tests.study.test_sweeping import *
for penalty in (1.0, 2.0):
    identity(lambda key: penalties(key, penalty))
print(identity(budgets, budget=[2.0, 3.0]), identity(descents, step=[0.3]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [identity(budgets, budget=[1.0]), identity(descents, step=[0.1])]


@pytest.mark.slow
def test_an_identity_distinguishes_constants():
    def fixed(step):
        return lambda key: descents(key, step)

    assert identity(fixed(0.3)) == identity(fixed(0.3))
    one_bit_more = float(np.nextafter(0.3, 1))
    result = [identity(fixed(step)) for step in (0.3, 0.30001, one_bit_more, np.asarray(0.3))]
    assert len(set(result)) == 3
    array = np.ones(20_000)
    other = array.copy()
    other[10_000] += 1e-12
    for size in (5, 20_000):
        assert identity(weighing(array[-size:])) == identity(weighing(array[-size:].copy()))
    assert identity(weighing(array)) != identity(weighing(other))
    assert identity(weighing(other[9_999:10_003])) != identity(weighing(array[:4]))


def test_an_identity_is_the_same_on_every_device():
    """An accelerator has another form of the witness of a gradient bound, and of others."""

    def watched(key):
        return fl.Simulation(
            fl.problems.ridge(key, clients=4, samples=20, dim=2),
            fl.algorithms.ZCDPNFL(1.0, 0.5),
            fl.graphs.ring(4),
            privacy=fl.privacy.ZCDP(1.0),
            metrics=["normalized_error"],
        )

    expected = identity(watched)
    with traced_for("cuda"):
        assert identity(watched) == expected


def test_an_identity_distinguishes_axes():
    def either(which):
        return lambda key, first, second: penalties(key, (first, second)[which])

    grid = {"first": [1.0], "second": [2.0]}
    assert identity(either(0), **grid) == identity(either(0), **grid)
    assert identity(either(0), **grid) != identity(either(1), **grid)


@pytest.mark.slow
def test_an_identity_sees_constants_of_inner_functions():
    def scenario(array):
        inner = jax.jit(lambda x: x + jnp.sum(jnp.asarray(array)))
        return lambda key: descents(key, 0.01 * inner(jnp.zeros(())))

    array = np.linspace(0.0, 1.0, 5)
    assert identity(scenario(array)) == identity(scenario(array.copy()))
    assert identity(scenario(array)) != identity(scenario(np.nextafter(array, 2.0)))


# Properties of JAX that identities and lifted arrays rely on. If JAX changes one of them, its test
# fails.


@pytest.mark.slow
def test_assumed_a_traced_function_lowers_to_the_same_text():
    def text(function):
        traced = jax.jit(function).trace(np.float64(1.0))
        return traced.lower(lowering_platforms=("cpu",)).as_text()

    def function(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.where(y > 0, 2 * y, -y), x)

    lowered = text(function)
    text(lambda x: jnp.where(x > 0, x, -x))  # what else is in JAX's caches does not show
    jax.clear_caches()
    assert text(function) == lowered
    assert "stablehlo" in lowered
    assert text(lambda x: 3 * function(x)) != lowered


def test_assumed_the_text_holds_every_bit_of_a_constant():
    def text(array):
        return jax.jit(lambda x: x + jnp.asarray(array)).lower(np.float64(1.0)).as_text()

    array = np.linspace(0.0, 1.0, 1000)
    other = array.copy()
    other[500] = np.nextafter(other[500], 2.0)
    assert text(array) == text(array.copy())
    assert text(array) != text(other)


def test_assumed_closed_over_arrays_are_the_jaxpr_s_constants_and_may_be_replaced():
    array = jnp.arange(4.0)
    closed = jax.make_jaxpr(lambda x: x + array)(1.0)
    (constant,) = closed.consts
    np.testing.assert_array_equal(constant, array)
    other = core.ClosedJaxpr(closed.jaxpr, [array + 1])
    (result,) = core.jaxpr_as_fun(other)(1.0)
    np.testing.assert_array_equal(result, array + 2)


@pytest.mark.slow
def test_a_scenario_may_close_over_a_key():
    key = jax.random.key(3)

    def scenario(_):
        return descents(key, 0.05)

    study = fl.sweep(scenario, rounds=T, seeds=2)
    np.testing.assert_array_equal(
        study.normalized_error.sel(seed=0), study.normalized_error.sel(seed=1)
    )


@pytest.mark.slow
def test_a_repeated_grid_is_not_built_again(monkeypatch):
    built = []

    def scenario(key, penalty):
        built.append(penalty)
        return penalties(key, penalty)

    def ask(values, **options):
        before = len(built)
        study = Study.of(Request(scenario=scenario, rounds=T, grid={"penalty": values}, **options))
        assert [group.positions for group in study.groups] == [[(i,) for i in range(len(values))]]
        return len(built) - before

    assert ask([0.5, 1.0]) > 0
    assert ask([0.5, 1.0]) == 0
    assert ask([0.5, 1.0], seeds=3) == 0
    assert ask([0.5, 2.0]) > 0
    assert ask([1, 2]) > 0
    assert ask([1.0, 2.0]) > 0  # another kind of number
    assert ask([0.5, 1.0], independent_noise=True) == 0
    assert ask([0.5, 1.0], retrace=True) > 0  # for a store
    for _ in range(2):
        with pytest.raises(ValueError, match="penalty"):
            ask([0.5, -1.0])
    monkeypatch.setattr(batched_program, "MAX_CACHED_GRID_BYTES", 2 * np.dtype(float).itemsize)
    assert ask([0.5, 1.0]) == 0
    for _ in range(2):
        assert ask([0.5, 1.0, 2.0]) > 0  # too large to be remembered


@pytest.mark.slow
def test_globals_of_a_scenario_may_change_between_studies(tmp_path):
    """As in a notebook, where a cell above is run again."""
    settings = {"step": 0.02}

    def scenario(key):
        return descents(key, settings["step"])

    first = fl.sweep(scenario, rounds=T, store=tmp_path)
    settings["step"] = 0.05
    with pytest.raises(ValueError, match="program: "):
        fl.sweep(scenario, rounds=T, store=tmp_path)
    second = fl.sweep(scenario, rounds=T)
    assert not np.allclose(first.normalized_error, second.normalized_error)


def test_a_state_without_numbers_passes_through_blocks():
    # Independent noise has no memory of earlier rounds, an array [0, D] in the state.
    def scenario(key):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=6, samples=5, dim=2),
            algorithm=fl.algorithms.FedAvg(0.1),
            privacy=fl.privacy.CentralGaussian(1.0),
            metrics=["normalized_error"],
        )

    options = {"scenario": scenario, "seeds": 8, "rounds": 3, "workers": 1}
    in_turns = fl.sweep(**options, block=1)
    one_block = fl.sweep(**options, block=8)
    assert np.allclose(in_turns.normalized_error, one_block.normalized_error, rtol=1e-10)


def test_a_study_until_an_accuracy_ends_once_it_is_reached():
    """The sign of the one parameter labels all samples right or wrong."""
    x = np.linspace(-1, 1, 10)[None, :, None] * np.ones((2, 1, 1))
    problem = fl.problems.Problem(x, np.sign(x[..., 0]), fl.problems.Logistic())
    problem = problem.with_test(x, np.sign(x[..., 0])).starting_at(np.full(1, -0.2))

    def scenario(key):
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.03), metrics=["accuracy"])

    accuracy = fl.sweep(scenario, rounds=40, seeds=1).accuracy.values[0]
    right = 1 + int(np.argmax(accuracy > 0.99))
    assert 8 < right < 36
    study = fl.sweep(scenario, rounds=40, seeds=1, segment=4, until={"accuracy": 0.95})
    assert study.stopped.item() == -(-right // 4) * 4
