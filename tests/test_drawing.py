"""What a scenario draws, apart from its methods: which values these are; no number changes."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import _programs as programs
from fljax.algorithms import CTA, EXTRA, NIDS
from fljax.privacy import ZCDP
from fljax.problems import LeastSquares, Problem
from fljax.study.drawing import drawing_of
from fljax.study.engine import Program

T, K = 12, 6
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


def drawn(texts):
    return [text for text in texts if text.startswith("module @jit_draw ")]


def test_a_drawing_is_what_depends_on_the_key_alone():
    given = np.arange(3.0)

    def function(key, point):
        both = jax.random.normal(key, (2,)) + point["step"]
        own = jax.random.uniform(key, (3,))
        constant = jnp.zeros(4)  # is computed, and from nothing: each program knows it
        return {
            "a": own,
            "b": both,
            "c": constant,
            "d": given,
            "e": jax.random.fold_in(key, 1),
            "f": point["step"],
            "g": (own, own.sum()),
        }

    key, point = jax.random.key(3), {"step": np.float64(2.0)}
    drawing = drawing_of(function, key, point)
    assert drawing is not None
    leaves = jax.tree.leaves(function(key, point))
    values = drawing.draw(key)
    assert len(values) == 2  # what is there twice is drawn once
    places = {place for place, _ in drawing.places}
    assert places == {0, 6, 7}
    for place, number in drawing.places:
        np.testing.assert_array_equal(values[number], leaves[place])
    other = drawing.draw(jax.random.key(4))
    mixed = drawing.put(function(key, point), other)
    np.testing.assert_array_equal(mixed["a"], other[0])
    np.testing.assert_array_equal(mixed["b"], leaves[1])
    assert mixed["d"] is given


@pytest.mark.parametrize(
    "function",
    [
        lambda key, point: point * 2,
        lambda key, point: jax.random.normal(key) * point,
        lambda key, point: (np.ones(3), jnp.zeros(3)),
    ],
)
def test_nothing_is_drawn_where_nothing_depends_on_the_key_alone(function):
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

    asked = {"rounds": T, "seeds": 5} | cut
    study = fl.sweep(scenario, grid={"algorithm": METHODS}, **asked)
    assert len(set(drawn(compiled))) == 1
    compiled.clear()
    for name, method in METHODS.items():
        alone = fl.sweep(lambda key, m=method: simulation(key, m), **asked)
        for metric in ("normalized_error", "consensus_error"):
            found = study[metric].sel(algorithm=name)
            np.testing.assert_allclose(found, alone[metric], rtol=1e-10)
    assert not drawn(compiled)  # of a single method they are part of its program


def test_the_forms_of_a_method_have_their_drawing_in_common(monkeypatch):
    made, compiled_draws = [], Program._compiled_draws

    def counted(self, identity, *given):
        made.append(identity)
        return compiled_draws(self, identity, *given)

    monkeypatch.setattr(Program, "_compiled_draws", counted)
    methods = {name: METHODS[name] for name in ("CTA", "EXTRA")}
    study = fl.sweep(simulation, grid={"algorithm": methods}, rounds=4, seeds=2, segment=2)
    assert study.attrs["compilations"] == 4  # each begins, and goes on
    assert len(made) == len(set(made)) == 2


@pytest.mark.slow
def test_what_a_grid_changes_is_not_shared():
    def scenario(key, algorithm, noise):
        return simulation(key, algorithm, noise)

    noises = [0.1, 0.5]
    study = fl.sweep(scenario, rounds=T, seeds=2, grid={"algorithm": METHODS, "noise": noises})
    for noise in noises:
        alone = fl.sweep(lambda key, n=noise: simulation(key, EXTRA(0.1), n), rounds=T, seeds=2)
        found = study.normalized_error.sel(algorithm="EXTRA", noise=noise)
        np.testing.assert_allclose(found, alone.normalized_error, rtol=1e-10)


def test_problems_of_other_sizes_are_not_drawn_apart(compiled):
    def scenario(key, clients):
        problem = fl.problems.ridge(key, clients=clients, samples=8, dim=3)
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["normalized_error"])

    fl.sweep(scenario, rounds=T, seeds=2, grid={"clients": fl.static([3, 4])})
    assert not drawn(compiled)


@pytest.mark.slow
@pytest.mark.parametrize("independent", [False, True])
def test_private_methods_keep_their_noise_and_their_ledger(independent):
    grid = {"plain": fl.algorithms.ZCDPNFL(1.0, 0.1), "sub": fl.algorithms.ZCDPGradNFL(0.05)}

    def scenario(key, algorithm):
        return simulation(key, algorithm, privacy=ZCDP(1.0))

    asked = {"rounds": T, "seeds": 2, "independent_noise": independent}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fl.AssumptionWarning)
        study = fl.sweep(scenario, grid={"algorithm": grid}, **asked)
        for name, method in grid.items():
            one = fl.sweep(scenario, grid={"algorithm": {name: method}}, **asked)
            for metric in ("normalized_error", "privacy_rho"):
                np.testing.assert_allclose(
                    study[metric].sel(algorithm=name), one[metric].sel(algorithm=name), rtol=1e-10
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


def test_data_that_the_host_makes_are_those_of_each_group():
    """Two functions on the host are the same in a program's text."""

    def scenario(key, level):
        def made(given):
            return np.full((3, 4, 2), level == "high", given.dtype) + given

        shape = jax.ShapeDtypeStruct((3, 4, 2), float)
        features = jax.pure_callback(
            made, shape, jax.random.normal(key, (3, 4, 2)), vmap_method="sequential"
        )
        problem = Problem(features, features.sum(2), LeastSquares())
        return fl.Simulation(problem, fl.algorithms.FedAvg(1e-3), metrics=["objective"])

    study = fl.sweep(scenario, rounds=3, seeds=2, grid={"level": ["low", "high"]})
    for level in ("low", "high"):
        alone = fl.sweep(lambda key, one=level: scenario(key, one), rounds=3, seeds=2)
        np.testing.assert_allclose(study.objective.sel(level=level), alone.objective, rtol=1e-10)
    assert not np.allclose(*(study.objective.sel(level=one) for one in ("low", "high")))


@pytest.mark.slow
def test_a_stored_study_of_several_methods_goes_on_bit_for_bit(tmp_path):
    def scenario(key, algorithm):
        return simulation(key, algorithm)

    asked = {"grid": {"algorithm": METHODS}, "rounds": T, "block": 2}
    whole = fl.sweep(scenario, seeds=4, **asked)
    fl.sweep(scenario, seeds=2, store=tmp_path / "study", **asked)
    more = fl.sweep(scenario, seeds=4, store=tmp_path / "study", **asked)
    np.testing.assert_array_equal(whole.normalized_error, more.normalized_error)
