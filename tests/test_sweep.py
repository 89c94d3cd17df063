"""The engine: same numbers whatever the blocks, one compilation per structure, clear errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
import fljax.engine
from fljax.engine import program
from fljax.simulation import trace

ZCDP, ApproximateDP = fl.privacy.ZCDP, fl.privacy.ApproximateDP
K, D, T = 8, 3, 12


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


def test_a_sweep_is_its_runs_one_by_one():
    study = fl.sweep(budgets, rounds=T, seeds=3, grid={"budget": [0.5, 5.0]}, root=7)
    root = jax.random.key(7, impl=study.attrs["prng"])
    for seed in range(3):
        k_scenario, k_run = jax.random.split(jax.random.fold_in(root, seed))
        for budget in (0.5, 5.0):
            one = fl.run(budgets(k_scenario, budget), rounds=T, key=k_run)
            many = study.sel(seed=seed, budget=budget)
            for name in ("normalized_error", "privacy_rho", "messages", "scalars"):
                np.testing.assert_allclose(many[name], one[name], rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(("block", "workers"), [(1, 1), (2, 3), (5, 1), (64, 2)])
def test_blocks_and_workers_do_not_change_the_numbers(block, workers):
    grid = {"budget": [1.0, 10.0]}
    whole = fl.sweep(budgets, rounds=T, seeds=5, grid=grid, block=5, workers=1)
    parts = fl.sweep(budgets, rounds=T, seeds=5, grid=grid, block=block, workers=workers)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-9, err_msg=name)


def test_a_study_is_continued_by_its_seeds():
    whole = fl.sweep(budgets, rounds=T, seeds=4, grid={"budget": [1.0]})
    rest = fl.sweep(budgets, rounds=T, seeds=range(2, 4), grid={"budget": [1.0]})
    np.testing.assert_array_equal(rest.seed, [2, 3])
    np.testing.assert_allclose(
        rest.normalized_error, whole.normalized_error.sel(seed=[2, 3]), rtol=1e-9
    )


def test_seeds_differ_and_grid_points_share_their_draws():
    study = fl.sweep(budgets, rounds=T, seeds=3, grid={"budget": [1e12, 2e12]})
    final = study.normalized_error.isel(round=-1)
    assert len(np.unique(final.sel(budget=1e12))) == 3
    # with next to no noise the two points are the same runs: same data, same graph
    np.testing.assert_allclose(final.sel(budget=1e12), final.sel(budget=2e12), rtol=1e-4)


def test_twenty_numbers_cost_one_compilation_and_repeats_none():
    grid = {"penalty": np.linspace(0.5, 2, 20)}
    first = fl.sweep(penalties, rounds=T, seeds=2, grid=grid)
    assert first.attrs["compilations"] == 1
    again = fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": grid["penalty"] + 1})
    assert again.attrs["compilations"] == 0
    assert first.sizes["penalty"] == 20
    assert not np.allclose(first.normalized_error, again.normalized_error)


def test_objects_that_differ_in_numbers_share_aprogram():
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


def test_structural_axes_are_compiled_one_by_one():
    def scenario(key, clients, reading):
        return build(key, clients=clients, privacy=ZCDP(1.0, 0.9, schedule=reading))

    grid = {"clients": fl.static([4, 6]), "reading": ["privacy", "variance"]}
    study = fl.sweep(scenario, rounds=T, seeds=2, grid=grid)
    assert study.attrs["compilations"] == 4
    assert (study.messages.isel(seed=0, round=0, reading=0) == [8, 12]).all()


def test_compiled_programs_do_not_depend_on_the_study_that_made_them():
    def a(key, x):
        return build(key, fl.algorithms.ZCDPNFL(x, 0.3))

    def b(key, x):
        return build(key, fl.algorithms.ZCDPNFL(2 * x, 0.3))

    one = fl.sweep(a, rounds=T, seeds=2, grid={"x": [2.0]})
    two = fl.sweep(b, rounds=T, seeds=2, grid={"x": [1.0]})
    np.testing.assert_allclose(one.normalized_error, two.normalized_error, rtol=1e-9)
    assert program(a, T, 1, False, "seeds", np.dtype("float64")) is not program(
        b, T, 1, False, "seeds", np.dtype("float64")
    )


def test_records_are_thinned_without_losing_counts():
    every = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]})
    third = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]}, record_every=3)
    np.testing.assert_array_equal(third["round"], [3, 6, 9, 12])
    for name in ("normalized_error", "privacy_rho", "messages", "scalars"):
        np.testing.assert_allclose(
            third[name], every[name].sel(round=third["round"]), rtol=1e-9, err_msg=name
        )


def test_models_are_kept_on_request():
    study = fl.sweep(penalties, rounds=T, seeds=2, grid={"penalty": [1.0]}, keep_models=True)
    assert study.model.dims == ("penalty", "seed", "client", "parameter")
    assert study.model.shape == (1, 2, K, D)


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


def test_the_broken_gradient_bound_is_named():
    with pytest.warns(fl.AssumptionWarning, match="above the assumed bound 1: .* nominal"):
        study = fl.sweep(budgets, rounds=T, seeds=2, grid={"budget": [1.0]})
    assert (study.gradient_norm > study.gradient_bound).all()


def test_a_bound_that_holds_is_not_complained_of(recwarn):
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


@pytest.mark.parametrize("label", fl.algorithms.REGISTRY)
def test_compiled_runs_hold_no_lapack_calls(label):
    """Two programs with LAPACK calls can wait for each other for ever on a CPU."""
    algorithm = {
        "zCDP-NFL": fl.algorithms.ZCDPNFL(1.0, 0.3),
        "(eps,delta)DP-NFL": fl.algorithms.EpsilonDeltaNFL(1.0, 0.3),
        "zCDP-grad-NFL": fl.algorithms.ZCDPGradNFL(0.1),
        "ADMM": fl.algorithms.NetworkedADMM(1.0),
        "P-ADMM": fl.algorithms.PADMM(1.0),
        "FL": fl.algorithms.ConventionalFL(0.1),
    }[label]
    problems = {
        "ridge": fl.problems.ridge,
        "elastic net": fl.problems.elastic_net,
        "least absolute": fl.problems.least_absolute_deviation,
    }
    for draw in problems.values() if label == "ADMM" else [problems["ridge"]]:
        problem = draw(jax.random.key(0), clients=K, samples=10, dim=D)
        graph = fl.graphs.random_connected(jax.random.key(1), nodes=K, mean_degree=3)
        simulation = fl.Simulation(problem, algorithm, graph, metrics=list(fl.metrics.METRICS))
        lowered = jax.jit(lambda s, k: trace(s, k, 2, 1)).lower(simulation, jax.random.key(2))
        assert "lapack" not in lowered.as_text()


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
def test_bad_studies_are_refused_before_anything_is_built(kwargs, error, message):
    with pytest.raises(error, match=message):
        fl.sweep(never, **({"rounds": T, "seeds": 1} | kwargs))


def test_a_bad_grid_point_is_named_before_compilation(monkeypatch):
    monkeypatch.setattr(fljax.engine, "_compile", never)
    with pytest.raises(ValueError, match="total_rho must be finite and > 0, got -1") as caught:
        fl.sweep(budgets, rounds=T, grid={"budget": [1.0, -1.0]})
    assert "This was grid point {'budget': -1.0}." in caught.value.__notes__


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
