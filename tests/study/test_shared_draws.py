"""What a scenario draws, apart from its methods: which values these are; no number changes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core import compilation_cache as programs
from fljax.algorithms import CTA, EXTRA, NIDS
from fljax.privacy import ZCDP
from fljax.problems import LeastSquares, Problem
from fljax.study.batched_program import Program
from fljax.study.shared_draws import drawing_of

T = 12
K = 6
METHODS = {"CTA": CTA(0.1), "EXTRA": EXTRA(0.1), "NIDS": NIDS(0.05)}


def simulation(key, algorithm, noise=0.1, **other):
    k_graph, k_data = jax.random.split(key)
    return fl.Simulation(
        problem=fl.problems.ridge(k_data, clients=K, samples=8, dim=3, noise_variance=noise),
        network=fl.graphs.random_connected(k_graph, nodes=K, mean_degree=3),
        algorithm=algorithm,
        metrics=["normalized_error", "consensus_error"],
        **other,
    )


@pytest.fixture
def compiled(monkeypatch):
    """The programs that are compiled for the first time, by their text."""
    texts = []
    compile_or_load = programs.compile_or_load

    def spy(lowered, text, device):
        texts.append(text)
        return compile_or_load(lowered, text, device)

    monkeypatch.setattr(programs, "compile_or_load", spy)
    return texts


def drawing_programs(texts):
    return [text for text in texts if text.startswith("module @jit_draw ")]


def test_a_shared_drawing_depends_on_the_key_alone():
    array = np.arange(3.0)

    def function(key, point):
        of_key_and_point = jax.random.normal(key, (2,)) + point["step"]
        of_key = jax.random.uniform(key, (3,))
        constant = jnp.zeros(4)  # is computed, and from nothing: each program knows it
        return {
            "a": of_key,
            "b": of_key_and_point,
            "c": constant,
            "d": array,
            "e": jax.random.fold_in(key, 1),
            "f": point["step"],
            "g": (of_key, of_key.sum()),
        }

    key = jax.random.key(3)
    point = {"step": np.float64(2.0)}
    drawing = drawing_of(function, key, point)
    assert drawing is not None
    leaves = jax.tree.leaves(function(key, point))
    values = drawing.draw(key)
    assert len(values) == 2  # duplicates are drawn once
    positions = {position for position, _ in drawing.leaf_values}
    assert positions == {0, 6, 7}
    for position, number in drawing.leaf_values:
        np.testing.assert_array_equal(values[number], leaves[position])
    other = drawing.draw(jax.random.key(4))
    mixed = drawing.put(function(key, point), other)
    np.testing.assert_array_equal(mixed["a"], other[0])
    np.testing.assert_array_equal(mixed["b"], leaves[1])
    assert mixed["d"] is array


@pytest.mark.parametrize(
    "function",
    [
        lambda key, point: point * 2,
        lambda key, point: jax.random.normal(key) * point,
        lambda key, point: (np.ones(3), jnp.zeros(3)),
    ],
)
def test_nothing_is_shared_if_all_draws_depend_on_the_point(function):
    assert drawing_of(function, jax.random.key(0), np.float64(1.0)) is None


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param({}, id="at once"),
        pytest.param({"block": 1, "workers": 2}, id="blocks", marks=pytest.mark.slow),
        pytest.param({"block": 2, "segment": 4}, id="segments", marks=pytest.mark.slow),
    ],
)
def test_methods_draw_their_problem_once_and_get_the_numbers_of_each_alone(cut, compiled):
    def scenario(key, algorithm):
        return simulation(key, algorithm)

    options = {"rounds": T, "seeds": 5} | cut
    study = fl.sweep(scenario, grid={"algorithm": METHODS}, **options)
    assert len(set(drawing_programs(compiled))) == 1
    compiled.clear()
    for name, method in METHODS.items():
        alone = fl.sweep(lambda key, m=method: simulation(key, m), **options)
        for metric in ("normalized_error", "consensus_error"):
            result = study[metric].sel(algorithm=name)
            np.testing.assert_allclose(result, alone[metric], rtol=1e-10)
    assert not drawing_programs(compiled)  # of a single method they are part of its program


def test_the_forms_of_a_method_have_their_drawing_in_common(monkeypatch):
    compiled_identities = []
    compiled_draws = Program._compile_drawing

    def counted(self, identity, *arguments):
        compiled_identities.append(identity)
        return compiled_draws(self, identity, *arguments)

    monkeypatch.setattr(Program, "_compile_drawing", counted)
    methods = {name: METHODS[name] for name in ("CTA", "EXTRA")}
    study = fl.sweep(simulation, grid={"algorithm": methods}, rounds=4, seeds=2, segment=2)
    assert study.attrs["compilations"] == 4  # each begins, and goes on
    assert len(compiled_identities) == len(set(compiled_identities)) == 2


@pytest.mark.slow
def test_data_that_depend_on_the_grid_are_not_shared():
    def scenario(key, algorithm, noise):
        return simulation(key, algorithm, noise)

    noises = [0.1, 0.5]
    study = fl.sweep(scenario, rounds=T, seeds=2, grid={"algorithm": METHODS, "noise": noises})
    for noise in noises:
        alone = fl.sweep(lambda key, n=noise: simulation(key, EXTRA(0.1), n), rounds=T, seeds=2)
        result = study.normalized_error.sel(algorithm="EXTRA", noise=noise)
        np.testing.assert_allclose(result, alone.normalized_error, rtol=1e-10)


def test_problems_of_other_sizes_are_drawn_together(compiled):
    def scenario(key, clients):
        problem = fl.problems.ridge(key, clients=clients, samples=8, dim=3)
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["normalized_error"])

    fl.sweep(scenario, rounds=T, seeds=2, grid={"clients": fl.static([3, 4])})
    assert not drawing_programs(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("independent", [False, True])
def test_private_methods_keep_their_noise_and_their_ledger(independent):
    grid = {"plain": fl.algorithms.ZCDPNFL(1.0, 0.1), "sub": fl.algorithms.ZCDPGradNFL(0.05)}

    def scenario(key, algorithm):
        return simulation(key, algorithm, privacy=ZCDP(1.0))

    options = {"rounds": T, "seeds": 2, "independent_noise": independent}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.AssumptionWarning)
        study = fl.sweep(scenario, grid={"algorithm": grid}, **options)
        for name, method in grid.items():
            alone = fl.sweep(scenario, grid={"algorithm": {name: method}}, **options)
            for metric in ("normalized_error", "privacy_rho"):
                np.testing.assert_allclose(
                    study[metric].sel(algorithm=name), alone[metric].sel(algorithm=name), rtol=1e-10
                )


@pytest.mark.slow
def test_large_closed_over_data_are_inputs_of_the_drawing():
    images = np.random.default_rng(0).normal(size=(600, 40))  # is passed, not folded

    def scenario(key, algorithm):
        chosen = jax.random.permutation(key, 600)[: K * 8].reshape(K, 8)
        features = jnp.asarray(images)[chosen]
        problem = Problem(features, features.sum(2), LeastSquares())
        network = fl.graphs.ring(K)
        return fl.Simulation(problem, algorithm, network, metrics=["objective"])

    small = {"CTA": CTA(1e-3), "NIDS": NIDS(1e-3)}
    study = fl.sweep(scenario, rounds=T, seeds=3, grid={"algorithm": small})
    for name, method in small.items():
        alone = fl.sweep(lambda key, m=method: scenario(key, m), rounds=T, seeds=3)
        np.testing.assert_allclose(study.objective.sel(algorithm=name), alone.objective, rtol=1e-10)


def test_host_data_are_separate_for_each_group():
    """Two functions on the host are the same in a program's text."""

    def scenario(key, level):
        def on_host(noise):
            return np.full((3, 4, 2), level == "high", noise.dtype) + noise

        shape = jax.ShapeDtypeStruct((3, 4, 2), float)
        features = jax.pure_callback(
            on_host, shape, jax.random.normal(key, (3, 4, 2)), vmap_method="sequential"
        )
        problem = Problem(features, features.sum(2), LeastSquares())
        return fl.Simulation(problem, fl.algorithms.FedAvg(1e-3), metrics=["objective"])

    study = fl.sweep(scenario, rounds=3, seeds=2, grid={"level": ["low", "high"]})
    for level in ("low", "high"):
        alone = fl.sweep(lambda key, default=level: scenario(key, default), rounds=3, seeds=2)
        np.testing.assert_allclose(study.objective.sel(level=level), alone.objective, rtol=1e-10)
    assert not np.allclose(*(study.objective.sel(level=name) for name in ("low", "high")))


@pytest.mark.slow
def test_a_stored_study_of_several_methods_goes_on_bit_for_bit(tmp_path):
    def scenario(key, algorithm):
        return simulation(key, algorithm)

    options = {"grid": {"algorithm": METHODS}, "rounds": T, "block": 2}
    uninterrupted = fl.sweep(scenario, seeds=4, **options)
    fl.sweep(scenario, seeds=2, store=tmp_path / "study", **options)
    more = fl.sweep(scenario, seeds=4, store=tmp_path / "study", **options)
    np.testing.assert_array_equal(uninterrupted.normalized_error, more.normalized_error)
