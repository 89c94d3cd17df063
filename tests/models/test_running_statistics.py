"""Batch normalization under algorithms with several models, or with more than models, against loops
of bare flax in float64.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.numerics import default_promotion
from fljax.problems.model import STATES
from tests.models.test_training import (
    CLIENTS,
    ROUNDS,
    STEP,
    Loop,
    Normalized,
    X,
    Y,
    mean_of,
    problem_of,
)

close = functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


def no_statistics():
    """Flax's statistics before training."""
    return Normalized().init(jax.random.key(9), X[0, :1], train=False)["batch_stats"]


def loop_of(policy):
    return Loop(Normalized(), problem_of(state=policy).layout, policy)


def full_step(loop, row, stats, client, extra=None):
    """The gradient on all samples of a client, and the statistics afterwards."""

    def loss(row, stats):
        data = loop.loss(row, stats, jnp.asarray(X[client]), jnp.asarray(Y[client]), not loop.frozen)
        return data[0] + (0.0 if extra is None else extra(row)), data[1]

    gradient, new = jax.grad(loss, has_aux=True)(row, stats)
    return gradient, stats if loop.frozen else new


def numbers_of(stats):
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(stats)])


# -------------------------------------------------------------------------------------------- IFCA

STARTS = jnp.stack([problem_of().initialized(jax.random.key(seed)).initial for seed in (28, 32, 5)])


def ifca_loop(policy, average, steps):
    """The clients' models, their choices, the statistics with which they are evaluated, and the
    mean loss on held-out data of each round.
    """
    loop = loop_of(policy)
    zero = no_statistics()
    models = list(STARTS)
    of_models = [zero] * len(models)
    own = [zero] * CLIENTS

    def stats_of(k, q):
        return own[k] if policy == "kept" else of_models[q]

    def best(k):
        data = jnp.asarray(X[k]), jnp.asarray(Y[k])
        losses = [loop.loss(m, stats_of(k, q), *data, train=False)[0] for q, m in enumerate(models)]
        return int(np.argmin(losses))

    choices = [best(k) for k in range(CLIENTS)]
    history = []
    errors = []
    for _ in range(ROUNDS):
        messages = [[] for _ in models]
        statistics = [[] for _ in models]
        for k, q in enumerate(choices):
            row = models[q]
            stats = zero if policy == "reset" else stats_of(k, q)
            for _ in range(steps):
                gradient, stats = full_step(loop, row, stats, k)
                row = row - STEP * gradient
            messages[q].append(row if average == "models" else gradient)
            statistics[q].append(stats)
            own[k] = stats
        for q, sent in enumerate(messages):
            if sent and average == "models":
                models[q] = mean_of(sent)
            elif sent:
                models[q] = models[q] - STEP * sum(sent) / CLIENTS
            if sent:
                of_models[q] = mean_of(statistics[q])
        choices = [best(k) for k in range(CLIENTS)]
        history.append(choices)
        chosen = [(models[q], stats_of(k, q)) for k, q in enumerate(choices)]
        errors.append(np.mean([loop.errors(*pair) for pair in chosen]))
    statistics = [numbers_of(stats) for _, stats in chosen]
    return np.asarray([row for row, _ in chosen]), history, np.asarray(statistics), errors


@pytest.mark.parametrize(("average", "steps"), [("models", 3), ("gradients", 1)])
@pytest.mark.parametrize("policy", STATES)
def test_each_cluster_of_ifca_has_statistics_of_its_own(policy, average, steps):
    algorithm = fl.algorithms.IFCA(STEP, 3, steps, average, start=STARTS)
    simulation = fl.Simulation(problem_of(state=policy), algorithm, metrics=["test_error"])
    run = fl.run(simulation, rounds=ROUNDS)
    with default_promotion():
        models, history, statistics, errors = ifca_loop(policy, average, steps)
    close(run.model, models)
    np.testing.assert_allclose(run.test_error, errors, rtol=1e-6)
    assert len(set(history[0])) > 1
    if policy != "frozen":
        np.testing.assert_allclose(run.client_network_state, statistics, rtol=1e-5, atol=1e-6)
        assert np.ptp(statistics, axis=0).min() > 1e-3
