"""IFCA: clusters that are found, its start, messages of a cluster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg
from fljax.algorithms.personalized.ifca import IFCA, random_start
from fljax.link import Fixed, TopK
from fljax.metrics.definitions import Metric
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    STARTS,
    make_problem,
    new_key,
    short_run,
    state_after,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("average", ["models", "gradients"])
def test_one_cluster_is_federated_averaging(average):
    problem = make_problem()
    zero = np.zeros((1, DIM))
    ours = IFCA(LOCAL, 1, 1, average, 4, start=zero)
    parts = world_of(ours, True, False, new_key())[0]
    fedavg = fl.Simulation(problem, FedAvg(LOCAL, 4, weighting="equal"), **parts)
    close(trajectory(fl.Simulation(problem, ours, **parts)), trajectory(fedavg), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_a_model_without_clients_is_kept():
    far = np.concatenate([STARTS[:1], 1e3 + STARTS[1:2]])
    for average in ("models", "gradients"):
        state = state_after(
            3, fl.Simulation(make_problem(), IFCA(0.1, 2, average=average, start=far))
        )
        np.testing.assert_array_equal(state.models[1], far[1])
        assert not np.any(state.choice)
        assert np.abs(state.models[0] - far[0]).max() > 0.1


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_clusters_are_found(average):
    """Without noise, both groups end at their truths."""
    algorithm = IFCA(0.2, 2, average=average, start=STARTS[:2])
    simulation = fl.Simulation(make_problem(noise=0.0, strength=0.0), algorithm)
    last = trajectory(simulation, 400)[-1]
    truth = np.random.default_rng(0).normal(size=(2, DIM)) * 2
    close(last, truth[np.arange(CLIENTS) % 2], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_the_start_of_ifca():
    """By default one start for all runs; drawn ones differ by key and have the given deviation."""
    problem = make_problem().prepare()
    first, again = (IFCA(0.1, 3).init(problem, None).models for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) == 3
    many = np.asarray(random_start(jax.random.key(6), 50, 200, 0.3))
    assert abs(many.std() - 0.3) < 0.01
    assert abs(many.mean()) < 0.02
    models = IFCA(0.1, 3, start=STARTS.tolist()).init(problem, None).models
    np.testing.assert_array_equal(models, STARTS)


@pytest.mark.slow
def test_every_seed_of_a_study_may_have_its_own_start():
    def scenario(key):
        start = random_start(key, 2, DIM)
        return fl.Simulation(make_problem(), IFCA(0.01, 2, start=start), metrics=(EXACT_NORM,))

    results = fl.sweep(scenario, rounds=1, seeds=4).norm.values.ravel()
    assert len(np.unique(results)) == 4


EXACT_NORM = Metric("norm", lambda now: jnp.sum(now.model**2), "norm", decibel=False)


@pytest.mark.slow
def test_compressed_models_of_ifca_stay_with_their_cluster():
    """Everything but the largest change of a message is dropped, within its cluster."""
    problem = make_problem().prepare()
    algorithm = IFCA(0.05, 2, start=STARTS[:2])
    state = algorithm.init(problem, None)
    uncompressed, cut = (
        algorithm.step(state, fl.view(fl.Simulation(problem, algorithm, compression=compression)))
        for compression in (None, TopK(1))
    )
    assert 0 < int(state.choice.sum()) < CLIENTS
    expected = np.array(STARTS[:2])
    message = np.asarray(state.model - 0.05 * problem.gradient(state.model))
    for q in range(2):
        members = np.flatnonzero(state.choice == q)
        total = np.zeros(DIM)
        for k in members:
            change = message[k] - STARTS[q]
            total += np.where(np.abs(change) == np.abs(change).max(), change, 0)
        expected[q] += total / len(members)
    close(cut.models, expected, rtol=0, atol=1e-13)
    assert np.abs(uncompressed.models - expected).max() > 1e-3


def test_clusters_of_networks_start_from_a_draw_for_each():
    data = fl.problems.softmax(jax.random.key(0), clients=4, samples=8, dim=3, classes=2)
    problem = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[4]), jax.random.key(1))
    with pytest.raises(ValueError, match=r"give IFCA start=.*problem\.initialized\(key\)\.initial"):
        fl.run(fl.Simulation(problem, fl.algorithms.IFCA(0.1, 2)), 1)
    keys = jax.random.split(jax.random.key(0), 2)
    start = jnp.stack([problem.initialized(key).initial for key in keys])
    algorithm = fl.algorithms.IFCA(0.1, 2, start=start)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), 5)
    assert np.all(np.isfinite(run.train_error))


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: IFCA(0.1, 0), "clusters must be >= 1, got 0"),
        (TypeError, lambda: IFCA(0.1, 2.0), "clusters must be an integer, got 2.0"),
        (ValueError, lambda: IFCA(0.1, 2, 0), "local_steps must be >= 1, got 0"),
        (ValueError, lambda: IFCA(0.1, 2, average="model"), "Did you mean 'models'"),
        (
            ValueError,
            lambda: IFCA(0.1, 2, 3, "gradients"),
            "local_steps must be 1 where gradients are averaged, got 3",
        ),
        (ValueError, lambda: IFCA(0.1, 2, clients_per_round=0), "clients_per_round must be >= 1"),
        (
            ValueError,
            lambda: short_run(IFCA(0.1, 2, clients_per_round=7)),
            "clients_per_round must be at most the 6 clients",
        ),
        (
            ValueError,
            lambda: IFCA(0.1, 2, start=STARTS),
            r"start must be \[2, parameters\], one model a cluster, got shape \(3, 3\)",
        ),
        (ValueError, lambda: IFCA(0.1, 2, start=np.zeros((2, DIM))), "start holds equal models"),
        (ValueError, lambda: IFCA(0.1, 1, start=np.full((1, DIM), np.nan)), "start holds 3 NaN"),
        (
            ValueError,
            lambda: short_run(IFCA(0.1, 3, start=STARTS[:, :2])),
            "start must hold models of the problem's 3 parameters, got 2",
        ),
        (
            ValueError,
            lambda: short_run(IFCA(0.1, 2), delays=Fixed(1)),
            "IFCA has no rule for late messages; leave out delays=",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
