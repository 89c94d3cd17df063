"""Starts of models, and models of every round: `starting_at`, `trajectory`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.problems import LeastSquares, from_clients
from tests.cases import CASES, CLIENTS, CLUSTER, DIM, LABELS, READING, REGISTRY, make_data, simulate

ROUNDS = 6
START = np.array([3.0, -2.0, 0.5])
EVERYWHERE = np.tile(START, (CLIENTS, 1))


def least_squares(data, shift=None):
    """Least squares without a regularizer; with a shift, its targets seen from there."""
    if shift is not None:
        data = [(X, y - X @ shift) for X, y in data]
    return from_clients(data, LeastSquares(), strength=0.0)


def world(label, shift=None, **changes):
    metrics = [fl.metrics.trajectory()]
    simulation = simulate(label, least_squares(make_data(), shift), private=False, metrics=metrics)
    tasks = getattr(simulation.problem, "tasks", None)
    if tasks is not None:
        tasks = fl.problems.Tasks(CLUSTER, 2, validation=least_squares(make_data(seed=7), shift))
        problem = dataclasses.replace(simulation.problem, tasks=tasks)
        simulation = dataclasses.replace(simulation, problem=problem)
    return dataclasses.replace(simulation, **changes)


def started(simulation, models):
    return dataclasses.replace(simulation, problem=simulation.problem.starting_at(models))


def path(simulation):
    return fl.run(simulation, ROUNDS, key=3).model_trajectory.values


@pytest.mark.thin(2, every=16)
# A server that knows nothing of columns takes predictions to start at zero; of networks that start
# elsewhere there is more in test_predictions.
@pytest.mark.parametrize(
    "label", [lb for lb in LABELS if lb not in ("IFCA", "FedEM", "Sharing ADMM", *READING)]
)
def test_a_start_shifts_the_origin(label):
    """Least squares seen from the start are least squares: no algorithm knows where zero is."""
    from_start = path(started(world(label), EVERYWHERE))
    from_zero = path(world(label, START))
    np.testing.assert_allclose(from_start, from_zero + START, rtol=0, atol=1e-10)
    assert np.abs(from_start[0] - path(world(label))[0]).max() > 0.1  # and it was not at zero


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("label", "changes"),
    [
        ("zCDP-grad-NFL", {"participation": fl.participation.Bernoulli(0.5)}),
        ("zCDP-grad-NFL", {"delays": fl.link.Geometric(0.5, longest=3)}),
        ("FL", {"delays": fl.link.Geometric(0.5, longest=3)}),
        ("PAO-Fed", {"participation": fl.participation.Bernoulli(0.5)}),
    ],
)
def test_client_states_start_at_the_given_models_too(label, changes):
    from_start = path(started(world(label, **changes), START))
    from_zero = path(world(label, START, **changes))
    np.testing.assert_allclose(from_start, from_zero + START, rtol=0, atol=1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("label", ["ADMM", "FedAvg", "PGFL", "PAO-Fed"])
def test_a_start_of_all_clients_is_one_of_each(label):
    with_one, with_all = (path(started(world(label), start)) for start in (START, EVERYWHERE))
    np.testing.assert_allclose(with_one, with_all, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_clients_start_at_the_given_models_and_know_each_other():
    """ADMM's first round, and subgradient descent's, by hand; servers at their clients' mean."""
    rng = np.random.default_rng(5)
    start = rng.normal(size=(CLIENTS, DIM))
    alone = path(world("Local only"))
    simulation = started(world("zCDP-grad-NFL"), start)
    mixing = np.asarray(simulation.network.mixing().matrix())
    step = 0.05
    first = mixing @ start
    for k, (X, y) in enumerate(make_data()):
        first[k] -= step * 2 * X.T @ (X @ start[k] - y) / len(y)
    np.testing.assert_allclose(path(simulation)[0], first, atol=1e-12)

    simulation = started(world("ADMM"), start)
    adjacency = np.asarray(simulation.network.dense())
    penalty = 0.9
    degree = adjacency.sum(1)
    linear = penalty * (degree[:, None] * start + adjacency @ start)
    for k, (X, y) in enumerate(make_data()):
        system = 2 * X.T @ X / len(y) + 2 * penalty * degree[k] * np.eye(DIM)
        expected = np.linalg.solve(system, 2 * X.T @ y / len(y) + linear[k])
        np.testing.assert_allclose(path(simulation)[0, k], expected, atol=1e-10)

    result = path(started(world("FedAvg"), start))
    np.testing.assert_allclose(result, path(started(world("FedAvg"), start.mean(0))), atol=1e-12)
    assert np.abs(path(started(world("Local only"), start)) - alone).max() > 0.1
    network = simulate("PGFL").network
    state = CASES["PGFL"].algorithm.init(started(world("PGFL"), start).problem, network)
    of_cluster = [start[np.equal(CLUSTER, q)].mean(0) for q in range(2)]
    np.testing.assert_allclose(state.server, np.broadcast_to(of_cluster, (2, 2, DIM)), atol=1e-12)


def test_ifca_has_custom_starts():
    with pytest.raises(ValueError, match="one model for each cluster"):
        fl.run(started(world("IFCA"), START), 2)


@pytest.mark.slow
def test_starts_are_drawn_and_swept_in_one_program():
    def scenario(key, scale):
        start = scale * jax.random.normal(key, (CLIENTS, DIM))
        return started(world("ADMM"), start)

    results = fl.sweep(scenario, grid={"scale": [0.0, 1.0, 5.0]}, seeds=2, rounds=3)
    assert results.attrs["compilations"] == 1
    first = results.model_trajectory.isel(round=0)
    np.testing.assert_allclose(first[0], first[0, :1].values.repeat(2, 0), atol=1e-12)
    assert float(abs(first[2] - first[0]).min("client").max()) > 0.1


@pytest.mark.parametrize(
    ("models", "error", "message"),
    [
        (np.zeros(DIM + 1), ValueError, "a model of shape"),
        (np.zeros((CLIENTS + 1, DIM)), ValueError, "a model of shape"),
        (np.full(DIM, np.nan), ValueError, "NaN|finite"),
        (None, TypeError, "models"),
        ("zero", TypeError, "models"),
    ],
)
@pytest.mark.parametrize("label", ["ADMM", "PAO-Fed"])
def test_bad_starts_are_refused(label, models, error, message):
    with pytest.raises(error, match=message):
        world(label).problem.starting_at(models)


def test_a_stream_without_the_field_is_refused():
    @fl.module
    class Silent(fl.streams.Stream):
        arrivals: fl.participation.Pattern = fl.participation.Always()
        test = truth = None
        clients = 3
        dim = 2

        def draw(self, state, key, arrived):
            raise AssertionError

    with pytest.raises(TypeError, match="initial: Any = None"):
        Silent().starting_at(np.zeros(2))


# Metrics with axes, and trajectories ------------------------------------------------------------


def of_each(now):
    return jnp.sum(now.model**2, axis=1)


SIZE_OF_EACH = fl.metrics.Metric("size", of_each, "size of a model", dims=("client",))


def scenario(key, penalty=0.9):
    simulation = world("ADMM", algorithm=fl.algorithms.NetworkedADMM(penalty))
    start = jax.random.normal(key, (DIM,))
    metrics = [
        SIZE_OF_EACH,
        fl.metrics.trajectory("dual"),
        fl.metrics.trajectory(),
        "consensus_error",
    ]
    return dataclasses.replace(started(simulation, start), metrics=metrics)


@pytest.mark.slow
def test_a_study_keeps_the_variables_of_a_run(tmp_path):
    grid = {"penalty": [0.5, 0.9]}
    results = fl.sweep(scenario, grid=grid, seeds=3, rounds=6, record_every=2, keep_models=True)
    assert results["size"].dims == ("penalty", "seed", "round", "client")
    assert results.dual_trajectory.dims == ("penalty", "seed", "round", "client", "parameter")
    np.testing.assert_array_equal(results.model_trajectory.isel(round=-1), results.model)
    np.testing.assert_allclose(results["size"], (results.model_trajectory**2).sum("parameter"))
    assert float(abs(results.dual_trajectory.sum("client")).max()) < 1e-12
    study = fl.sweep(scenario, grid=grid, seeds=3, rounds=4, record_every=2, store=tmp_path)
    more = fl.sweep(scenario, grid=grid, seeds=3, rounds=6, record_every=2, store=tmp_path)
    assert study.sizes["round"] == 2
    names = ["size", "dual_trajectory", "model_trajectory"]
    for name in names:
        np.testing.assert_allclose(more[name], results[name], atol=1e-12)
        assert fl.load(tmp_path)[name].dims == results[name].dims
    path = tmp_path / "study.nc"
    fl.save(results, path)
    assert fl.load(path)["size"].identical(results["size"])


def test_an_array_of_a_shared_model():
    metrics = [fl.metrics.trajectory("shared", ["parameter"]), fl.metrics.trajectory()]
    results = fl.run(world("FedAvg", metrics=metrics), 4)
    assert results.shared_trajectory.dims == ("round", "parameter")
    same = results.shared_trajectory.expand_dims(client=CLIENTS, axis=1)
    np.testing.assert_array_equal(same, results.model_trajectory)


@pytest.mark.slow
def test_a_trajectory_is_traced_once():
    assert fl.metrics.trajectory("dual") == fl.metrics.trajectory("dual")
    grid = {"penalty": list(np.linspace(0.1, 1, 7))}
    assert fl.sweep(scenario, grid=grid, rounds=2).attrs["compilations"] == 1


def test_a_non_finite_client_is_warned_of():
    bad = fl.metrics.Metric("bad", lambda now: of_each(now) / 0, "bad", dims=("client",))
    with pytest.warns(fl.MetricWarning, match="'bad' in 1 of 1"):
        fl.run(world("ADMM", metrics=[bad]), 2)


def metric(dims, measure=of_each, name="size"):
    return fl.metrics.Metric(name, measure, "a size", dims=dims)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (("seed",), "'seed'"),
        (("round",), "'round'"),
        (("client", "client"), "need distinct names"),
        (("",), "''"),
        (("size",), "'size'"),
    ],
)
def test_bad_names_of_axes_are_refused(dims, message):
    with pytest.raises(ValueError, match=message):
        metric(dims)


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ([metric(())], TypeError, "must be one number, got an array of shape"),
        ([metric(("client", "parameter"))], TypeError, r"must be an array over \('client'"),
        ([metric(("parameter",))], TypeError, "5 rows along 'parameter', of which there are 3"),
        (
            [metric(("a",)), metric(("a",), lambda now: now.model[0], "other")],
            TypeError,
            "a name of its own",
        ),
        ([fl.metrics.trajectory("duel")], ValueError, "dual"),
        ([fl.metrics.trajectory("factor")], ValueError, "array of the state"),
        ([fl.metrics.trajectory("dual", ["client"])], TypeError, "must be an array over"),
    ],
)
def test_metrics_of_other_shapes_are_refused_before_the_run(metrics, error, message):
    simulation = world("ADMM", metrics=metrics)
    with pytest.raises(error, match=message):
        fl.run(simulation, 2)
    with pytest.raises(error, match=message):
        fl.sweep(lambda key: simulation, rounds=2)


def test_axes_of_several_lengths_are_refused_before_compilation():
    def scenario(key, clients, measure=SIZE_OF_EACH):
        return fl.Simulation(
            problem=fl.problems.ridge(key, clients=clients, samples=5, dim=2),
            algorithm=fl.algorithms.LocalOnly(0.1),
            metrics=[measure],
        )

    with pytest.raises(ValueError, match="'client' of the metric 'size' has 4 rows"):
        fl.sweep(scenario, grid={"clients": fl.static([3, 4])}, rounds=2)
    measure = metric(("kind",))
    with pytest.raises(ValueError, match="of an axis of one"):
        fl.sweep(lambda key, kind: scenario(key, 3, measure), grid={"kind": [1.0]}, rounds=2)


def test_only_numbers_end_a_run():
    with pytest.raises(ValueError, match="metric in until"):
        fl.sweep(scenario, rounds=2, until={"size": 1.0})


def test_every_algorithm_is_covered():
    assert set(LABELS) == set(REGISTRY)
