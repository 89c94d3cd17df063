"""CFL: its bipartition, the groups that it finds, and when it leaves a cluster whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import CFL, FedAvg
from fljax.algorithms.personalized.cfl import bipartition
from fljax.participation.patterns import Trace
from tests.reference import personal
from tests.reference.adapted import halves
from tests.support.server_runs import state_metric
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    ROUNDS,
    loop_models,
    make_problem,
    new_key,
    short_run,
    trajectory,
    visited,
    world_of,
)

close = np.testing.assert_allclose
THRESHOLDS = {"clusters": 4, "mean_threshold": 0.3, "client_threshold": 0.1}


@pytest.mark.parametrize("clients", [2, 3, 5, 8])
def test_the_bipartition_is_the_best_of_all(clients):
    rng = np.random.default_rng(clients)
    halve = jax.jit(bipartition)
    for _ in range(30):
        table = rng.uniform(-1, 1, size=(clients + 2, clients + 2))
        table = (table + table.T) / 2
        members = np.sort(rng.permutation(clients + 2)[:clients])
        mask = np.isin(np.arange(clients + 2), members)
        second = np.flatnonzero(halve(jnp.asarray(table), jnp.asarray(mask)))
        first = np.setdiff1d(members, second)
        assert set(second) <= set(members)
        one, two = halves(table, members.tolist())
        assert {tuple(first), tuple(second)} == {tuple(one), tuple(two)}


def test_equal_similarities_are_halved_as_well_as_any():
    """Any of several best bipartitions will do, as long as no part is empty."""
    second = np.asarray(bipartition(jnp.ones((4, 4)), jnp.array([True, True, False, True])))
    assert 0 < second.sum() < 3
    assert not second[2]


#: Which clients are active: all of them in some rounds, none in one.
ACTIVE = np.random.default_rng(2).uniform(size=(ROUNDS, CLIENTS)) < 0.7
ACTIVE[[1, 4, 6]] = True
ACTIVE[3] = False


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("algorithm", "name", "clusters"),
    [
        (CFL(LOCAL, epochs=2, warmup=2, **THRESHOLDS), "ridge", 4),
        (CFL(LOCAL, epochs=2, **{**THRESHOLDS, "mean_threshold": 0.06}), "ridge", 2),
        (CFL(0.3, batch=4, weighting="samples", **THRESHOLDS), "logistic", 4),
        (CFL(0.3, batch=4, **{**THRESHOLDS, "client_threshold": 0.2}), "logistic", 3),
    ],
)
def test_models_equal_the_loops(algorithm, name, clusters):
    key = new_key(4)
    simulation = fl.Simulation(make_problem(name), algorithm, participation=Trace(ACTIVE))
    world = personal.World([range(CLIENTS)] * ROUNDS, ACTIVE, np.zeros(ACTIVE.shape, int))
    options = {} if algorithm.batch is None else {"work": visited(simulation, key)}
    expected = loop_models(algorithm, name, world, **options)
    close(trajectory(simulation, key=key), expected, rtol=0, atol=1e-10)
    assert len(np.unique(expected[-1], axis=0)) == clusters


@pytest.mark.thin(1)
@pytest.mark.parametrize("groups", [2, 3])
def test_groups_without_noise_are_found_and_fitted(groups):
    rng = np.random.default_rng(0)
    truths = rng.normal(size=(groups, DIM)) * 2
    member = np.arange(9) % groups
    data = []
    for q in member:
        X = rng.normal(size=(200, DIM))
        data.append((X, X @ truths[q]))
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
    algorithm = CFL(0.1, clusters=6, mean_threshold=0.05, client_threshold=0.1)
    simulation = fl.Simulation(problem, algorithm)
    close(trajectory(simulation, 150)[-1], truths[member], atol=1e-8)
    found = trajectory(simulation, 150, metric=state_metric("cluster"))[-1]
    assert len(np.unique(found)) == groups
    assert len(np.unique(found * groups + member)) == groups


@pytest.mark.slow
def test_one_cluster_is_federated_averaging():
    ours = CFL(LOCAL, 4, 2, **{**THRESHOLDS, "clusters": 1})
    parts = world_of(ours, True, False, new_key())[0]
    fedavg = fl.Simulation(make_problem(), FedAvg(LOCAL, 4, 2), **parts)
    result = trajectory(fl.Simulation(make_problem(), ours, **parts))
    close(result, trajectory(fedavg), rtol=0, atol=1e-13)


def clusters_of(algorithm, **parts):
    """How many clusters there are after the last round."""
    simulation = fl.Simulation(make_problem(), algorithm, **parts)
    return int(trajectory(simulation, metric=state_metric("formed"))[-1])


def test_a_cluster_that_is_not_heard_as_a_whole_stays_whole():
    algorithm = CFL(0.1, **THRESHOLDS)
    absent = np.ones((ROUNDS, CLIENTS), bool)
    absent[:, 0] = False
    assert clusters_of(algorithm) > 1
    assert clusters_of(algorithm, participation=Trace(absent)) == 1


@pytest.mark.slow
def test_no_cluster_is_halved_in_the_warmup():
    for warmup, whole in ((ROUNDS, True), (0, False)):
        algorithm = CFL(0.1, warmup=warmup, **THRESHOLDS)
        assert (clusters_of(algorithm) == 1) == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clusters": 0}, "clusters must be >= 1, got 0"),
        ({"mean_threshold": 0.0}, "mean_threshold must be .*> 0, got 0"),
        ({"client_threshold": -1.0}, "client_threshold must be .*>= 0, got -1"),
        ({"warmup": -1}, "warmup must be >= 0, got -1"),
        ({"clients_per_round": 7}, "clients_per_round must be at most the 6 clients"),
    ],
)
def test_bad_arguments_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        short_run(CFL(0.1, **{**THRESHOLDS, **changed}))
