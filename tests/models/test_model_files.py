"""Models in files: parameters under their network's names, read by other libraries and back."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl

safetensors = pytest.importorskip("safetensors.numpy")

CLIENTS = 3


def linear():
    return fl.problems.ridge(jax.random.key(0), clients=CLIENTS, samples=5, dim=2)


def network_problem(architecture, features=(4,)):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS, 6, *features))
    y = rng.integers(0, 3, size=(CLIENTS, 6))
    return fl.problems.Model(x, y, fl.problems.Softmax(3), architecture=architecture)


def networks():
    import flax.linen

    class Net(flax.linen.Module):
        @flax.linen.compact
        def __call__(self, x):
            hidden = flax.linen.relu(flax.linen.Dense(5)(x))
            return flax.linen.Dense(3)(hidden)

    return {"built in": fl.models.mlp(3, hidden=[5]), "flax": fl.models.linen(Net())}


@pytest.fixture(params=["linear", "built in", "flax"])
def problem(request):
    return linear() if request.param == "linear" else network_problem(networks()[request.param])


@pytest.mark.parametrize("name", ["models.safetensors", "checkpoint"])
def test_models_come_back_bit_for_bit(problem, name, tmp_path):
    rows = jax.random.normal(jax.random.key(1), (CLIENTS, problem.dim))
    for models in (rows, rows[0]):
        path = fl.models.save(models, tmp_path / name, problem)  # the second replaces the first
        read = fl.models.load(path, problem)
        assert read.dtype == problem.dtype
        np.testing.assert_array_equal(read, models)
        started = problem.starting_at(read)
        np.testing.assert_array_equal(started.initial, models)


def test_parameters_have_the_names_and_shapes_of_their_network(tmp_path):
    problem = network_problem(networks()["flax"])
    problem = problem.initialized(jax.random.key(1))
    path = fl.models.save(problem.initial, tmp_path / "net.safetensors", problem)
    stored = safetensors.load_file(path)
    assert {name: value.shape for name, value in stored.items()} == {
        "Dense_0/bias": (5,),
        "Dense_0/kernel": (4, 5),
        "Dense_1/bias": (3,),
        "Dense_1/kernel": (5, 3),
    }
    # Another program predicts the same with them.
    x = np.asarray(problem.features[0])
    hidden = np.maximum(x @ stored["Dense_0/kernel"] + stored["Dense_0/bias"], 0)
    expected = hidden @ stored["Dense_1/kernel"] + stored["Dense_1/bias"]
    parameters = problem.parameters(problem.initial)
    actual = problem.architecture.apply(parameters, jnp.asarray(x))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_files_of_other_libraries_are_read(tmp_path):
    """With dots in their names, in another order and type."""
    problem = network_problem(networks()["flax"])
    row = np.arange(problem.dim, dtype=np.float32)
    path = fl.models.save(row, tmp_path / "net.safetensors", problem)
    stored = safetensors.load_file(path)
    renamed = {name.replace("/", "."): value for name, value in reversed(stored.items())}
    safetensors.save_file(renamed, tmp_path / "other.safetensors")
    np.testing.assert_array_equal(fl.models.load(tmp_path / "other.safetensors", problem), row)


def test_equal_models_are_stored_once_and_one_client_is_taken(tmp_path):
    problem = linear()
    path = tmp_path / "models.safetensors"
    fl.models.save(np.ones((CLIENTS, 2)), path, problem)
    assert fl.models.load(path, problem).shape == (2,)
    rows = np.arange(6.0).reshape(CLIENTS, 2)
    fl.models.save(rows, path, problem)
    assert fl.models.load(path, problem, client=1).tolist() == [2.0, 3.0]
    fl.models.save(rows, path, problem, client=2)
    assert fl.models.load(path, problem).tolist() == [4.0, 5.0]


# A study -------------------------------------------------------------------------------------


def scenario(key, step_size, start=None):
    problem = linear() if start is None else linear().starting_at(start)
    algorithm = fl.algorithms.FedAvg(step_size)
    return fl.Simulation(problem, algorithm, metrics=["normalized_error"])


@pytest.fixture(scope="module")
def results():
    with pytest.warns(fl.DivergenceWarning):
        return fl.sweep(
            scenario, grid={"step_size": [0.01, 0.2, 1e200]}, seeds=2, rounds=3, keep_models=True
        )


def test_the_best_models_of_a_study_start_another_one(results, tmp_path):
    path = tmp_path / "best.safetensors"
    fl.models.save(results, path, linear(), best="normalized_error")
    start = fl.models.load(path, linear())
    best = results.sel(step_size=0.2).isel(seed=0)
    np.testing.assert_array_equal(start, best["model"].isel(client=0))
    more = fl.sweep(lambda key: scenario(key, 0.2, start), rounds=1)
    last = results["normalized_error"].sel(step_size=0.2).isel(seed=0, round=-1)
    assert float(more["normalized_error"][0, 0]) < float(last)


def test_the_best_value_of_an_accuracy_is_the_largest(results, tmp_path):
    better = results.copy()
    better["normalized_error"] = better["normalized_error"].assign_attrs(larger_is_better=1)
    path = fl.models.save(better, tmp_path / "m.safetensors", linear(), best="normalized_error")
    expected = results["model"].sel(step_size=0.01).isel(seed=0, client=0)
    np.testing.assert_array_equal(fl.models.load(path, linear()), expected)


def test_the_models_of_one_run_are_taken(results, tmp_path):
    path = tmp_path / "models.safetensors"
    fl.models.save(results.sel(step_size=0.01).isel(seed=1), path, linear())
    expected = results["model"].sel(step_size=0.01).isel(seed=1, client=0)
    np.testing.assert_array_equal(fl.models.load(path, linear()), expected)


def test_results_without_a_single_choice_are_refused(results, tmp_path):
    path = tmp_path / "models.safetensors"
    with pytest.raises(ValueError, match=r"several runs \(step_size 3, seed 2\); select one"):
        fl.models.save(results, path, linear())
    with pytest.raises(ValueError, match="unknown metric 'normal'"):
        fl.models.save(results, path, linear(), best="normal")
    with pytest.raises(ValueError, match="no models; run the study with keep_models=True"):
        fl.models.save(results.drop_vars("model"), path, linear())
    with pytest.raises(ValueError, match="no run has a finite 'normalized_error'"):
        fl.models.save(results.sel(step_size=[1e200]), path, linear(), best="normalized_error")
    with pytest.raises(ValueError, match="best= selects a run of results"):
        fl.models.save(np.ones(2), path, linear(), best="normalized_error")


# What does not fit ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["models.safetensors", "checkpoint"])
def test_models_of_another_network_are_refused(name, tmp_path):
    path = tmp_path / name
    small, large = (network_problem(fl.models.mlp(3, hidden=[n])) for n in (5, 7))
    fl.models.save(np.zeros(small.dim), path, small)
    with pytest.raises(ValueError, match=r"with shape \(\d.*and the network has it with"):
        fl.models.load(path, large)
    with pytest.raises(ValueError, match=r"lacks the parameters layer_2"):
        fl.models.load(path, network_problem(fl.models.mlp(3, hidden=[5, 5])))
    with pytest.raises(ValueError, match=r"has, unlike the network, the parameters layer_"):
        fl.models.load(path, network_problem(fl.models.mlp(3, hidden=[])))
    with pytest.raises(ValueError, match=r"lacks the parameters model"):
        fl.models.load(path, linear())


def test_models_of_other_clients_are_refused(tmp_path):
    path = tmp_path / "models.safetensors"
    fl.models.save(np.arange(6.0).reshape(3, 2), path, linear())
    more = fl.problems.ridge(jax.random.key(0), clients=5, samples=5, dim=2)
    with pytest.raises(ValueError, match=r"models of 3 clients, and the problem 5; take one with"):
        fl.models.load(path, more)
    with pytest.raises(ValueError, match="client must be one of the 3 clients"):
        fl.models.load(path, more, client=3)
    with pytest.raises(ValueError, match="client must be one of the models'"):
        fl.models.save(np.zeros(2), path, linear(), client=0)


def test_files_that_are_not_models_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no models in"):
        fl.models.load(tmp_path / "none.safetensors", linear())
    (tmp_path / "text.safetensors").write_text("no models")
    with pytest.raises(ValueError, match="is no readable safetensors file"):
        fl.models.load(tmp_path / "text.safetensors", linear())
    with pytest.raises(ValueError, match="is a folder and no checkpoint"):
        fl.models.load(tmp_path, linear())
    with pytest.raises(FileExistsError, match="is no checkpoint and is not replaced"):
        fl.models.save(np.zeros(2), tmp_path, linear())
    assert Path(tmp_path, "text.safetensors").exists()
    fl.models.save(np.array([0.0, np.nan]), tmp_path / "nan.safetensors", linear())
    with pytest.raises(ValueError, match="models of nan"):
        fl.models.load(tmp_path / "nan.safetensors", linear())


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [("models.safetensors", "safetensors", "files"), ("checkpoint", "orbax", "networks")],
)
def test_a_library_that_is_not_installed_is_named(name, library, extra, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(ImportError, match=rf"need {library}.*pip install 'fljax\[{extra}\]'"):
        fl.models.save(np.zeros(2), tmp_path / name, linear())
