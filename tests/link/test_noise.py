"""Noise between peers: what cancels, where, and what is left, against the matrix forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._numerics import key_of
from fljax.algorithms import ATC, CTA, Consensus, Diffusion, GraphFedAvg
from fljax.link import GraphHomomorphic, LocalGraphHomomorphic, PerEdge, PerMessage
from fljax.simulation import as_key
from tests.cases import (
    CLIENTS,
    DIM,
    EDGES,
    LINE,
    MEMBERS,
    OBJECTIVE,
    ROUNDS,
    SERVER,
    keys_of,
    make_network,
    make_problem,
    make_servers,
)
from tests.reference import multiagent, nfl, pgfl

pytestmark = pytest.mark.core

STEP = 0.05
KINDS = [PerMessage, PerEdge, GraphHomomorphic, LocalGraphHomomorphic]


def left_stochastic(seed=3):
    """Of the network's support, columns of sum one and not symmetric."""
    weights = np.random.default_rng(seed).uniform(0.2, 1, (CLIENTS, CLIENTS))
    support = np.eye(CLIENTS, dtype=bool)
    for k, l in EDGES:  # noqa: E741
        support[k, l] = support[l, k] = True
    weights = weights * support
    return weights / weights.sum(axis=0)


A = left_stochastic()
OVER = fl.graphs.from_stochastic(A, convention="left")


def models(algorithm, noise=None, rounds=ROUNDS, form="dense", **given):
    simulation = fl.Simulation(
        problem=make_problem(),
        network=make_network(form),
        algorithm=algorithm,
        noise=noise,
        metrics=[fl.metrics.trajectory("model")],
        **given,
    )
    return np.asarray(fl.run(simulation, rounds, as_key(1))["model_trajectory"])


def edges_of(noise, n, matrix, sent=1):
    """``[K, K, D]``: what ``l`` adds on its way to ``k`` in round ``n``, as drawn in the run."""
    key = jax.random.fold_in(key_of(keys_of(1)[n - 1], "noise"), sent)
    everyone = jnp.arange(CLIENTS)
    weights = jnp.asarray(matrix.T * ~np.eye(CLIENTS, dtype=bool))  # row k: what k gives
    return np.array(
        [noise.over_edges(key, jnp.int32(k), everyone, weights[k], DIM) for k in range(CLIENTS)]
    )


def message_noise(noise, n, sent=1):
    key = jax.random.fold_in(key_of(keys_of(1)[n - 1], "noise"), sent)
    return np.asarray(noise.draw(key, (CLIENTS, DIM), jnp.float64))


def atc_loop(noise, rounds=ROUNDS):
    """``A'(X + g)`` in the form of each kind."""
    w, history = np.zeros((CLIENTS, DIM)), []
    for n in range(1, rounds + 1):
        psi = np.array([w[k] - STEP * OBJECTIVE.gradient(k, w[k]) for k in range(CLIENTS)])
        if isinstance(noise, GraphHomomorphic):
            drawn = message_noise(noise, n)
            w = A.T @ (psi + drawn) - drawn
        elif isinstance(noise, PerMessage):
            drawn = message_noise(noise, n)
            w = A.T @ (psi + drawn) - np.diag(A)[:, None] * drawn
        else:
            drawn = edges_of(noise, n, A)
            w = A.T @ psi + np.einsum("lk,kld->kd", A * ~np.eye(CLIENTS, dtype=bool), drawn)
        history.append(w)
    return np.array(history)


@pytest.mark.thin(5)
@pytest.mark.parametrize("form", ["dense", "padded"])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_that_of_the_matrix_forms(kind, law, form):
    noise = kind(0.3, law)
    over = fl.graphs.from_stochastic(A, convention="left", form=form)
    found = models(ATC(STEP, over), noise, form=form)
    np.testing.assert_allclose(found, atc_loop(noise), rtol=1e-9, atol=1e-11)


@pytest.mark.thin(1)
@pytest.mark.parametrize("strategy", [Consensus, CTA, ATC])
def test_local_noise_leaves_nothing_and_homomorphic_none_in_the_weighted_mean(strategy):
    silent = models(strategy(STEP, OVER))
    local = models(strategy(STEP, OVER), LocalGraphHomomorphic(1.0))
    np.testing.assert_allclose(local, silent, rtol=1e-9, atol=1e-11)
    if strategy is CTA:  # whose gradient is at what was combined, noise and all
        return
    q = np.asarray(OVER.stationary)
    one_silent, one = (
        models(strategy(STEP, OVER), noise, rounds=1)[0] for noise in (None, GraphHomomorphic(1.0))
    )
    np.testing.assert_allclose(q @ one, q @ one_silent, atol=1e-12)
    assert np.abs(one - one_silent).max() > 0.05
    for noise in (PerMessage(1.0), PerEdge(1.0)):
        assert (
            np.abs(q @ models(strategy(STEP, OVER), noise, rounds=1)[0] - q @ one_silent).max()
            > 0.05
        )


def test_consensus_after_training_recovers_the_clean_mean_of_one_round():
    """Combining without noise to the end: (4.50)'s damage is at the nodes, not in their mean."""

    def ended(noise):
        w = models(ATC(STEP, OVER), noise, rounds=1)[0]
        return np.linalg.matrix_power(A.T, 400) @ w

    np.testing.assert_allclose(ended(GraphHomomorphic(1.0)), ended(None), atol=1e-10)
    assert np.abs(ended(PerEdge(1.0)) - ended(None)).max() > 0.05


def test_masks_hide_what_is_sent_and_cancel_where_it_is_summed():
    noise, weights = LocalGraphHomomorphic(0.5), A.T * ~np.eye(CLIENTS, dtype=bool)
    drawn = edges_of(noise, 1, A)
    heard = weights > 0
    assert (np.abs(drawn).max(axis=2)[heard] > 1e-3).all()
    assert (drawn[~heard] == 0).all()
    np.testing.assert_allclose(np.einsum("kl,kld->kd", weights, drawn), 0, atol=1e-12)
    # Of a receiver that hears one node nothing can be hidden.
    alone = noise.over_edges(
        as_key(2), jnp.int32(0), jnp.arange(3), jnp.array([0.0, 0.4, 0.0]), DIM
    )
    assert not np.asarray(alone).any()


def test_masks_no_longer_cancel_where_links_fail():
    losses = fl.link.Independent(0.4)
    silent = models(ATC(STEP, OVER), losses=losses)
    masked = models(ATC(STEP, OVER), LocalGraphHomomorphic(0.5), losses=losses)
    assert np.abs(masked[0] - silent[0]).max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_variances_are_what_is_asked_for(kind, law):
    for per, expected in (("coordinate", 0.3), ("vector", 0.3 / DIM)):
        drawn = kind(0.3, law, per).draw(as_key(3), (40_000, DIM), jnp.float64)
        assert abs(np.var(drawn) / expected - 1) < 0.05
    flat = np.asarray(drawn).ravel()
    kurtosis = np.mean(flat**4) / np.mean(flat**2) ** 2
    assert abs(kurtosis - (6 if law == "laplace" else 3)) < 0.4


def test_an_aggregator_hears_each_message_with_its_noise():
    aggregation = fl.aggregation.Median()
    quiet = models(ATC(STEP, OVER), PerEdge(0.0), rounds=1, aggregation=aggregation)
    silent = models(ATC(STEP, OVER), rounds=1, aggregation=aggregation)
    np.testing.assert_array_equal(quiet, silent)
    for noise in (PerEdge(0.5), LocalGraphHomomorphic(0.5)):
        loud = models(ATC(STEP, OVER), noise, rounds=1, aggregation=aggregation)
        assert np.abs(loud - silent).max() > 0.01


def test_noise_between_servers_is_that_of_their_graph():
    def servers(noise):
        simulation = fl.Simulation(
            make_problem(), GraphFedAvg(STEP), make_servers(), noise=noise,
            metrics=[fl.metrics.trajectory("server", ("server", "parameter"))],
        )  # fmt: skip
        return np.asarray(fl.run(simulation, 1, as_key(1))["server_trajectory"])[0]

    noise = GraphHomomorphic(0.4)
    weights = nfl.metropolis(2, LINE)
    drawn = np.asarray(noise.draw(key_of(keys_of(1)[0], "noise"), (2, DIM), jnp.float64))
    np.testing.assert_allclose(
        servers(noise), servers(None) + weights.T @ drawn - drawn, atol=1e-12
    )
    expected = pgfl.gfl_gradient(MEMBERS, SERVER, weights, 1, STEP, 1).server[0]
    np.testing.assert_allclose(servers(None), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerEdge(-1.0), "variance"),
        (lambda: PerEdge(1.0, "cauchy"), "laplace"),
        (lambda: GraphHomomorphic(1.0, per="model"), "coordinate"),
    ],
)
def test_bad_noise_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_general_form_has_noise_where_it_exchanges():
    """No stage without weights has any: two exchanges, two draws."""
    found = models(Diffusion(STEP, OVER, None, OVER), GraphHomomorphic(0.2), rounds=1)[0]
    first, second = (message_noise(GraphHomomorphic(0.2), 1, sent) for sent in (1, 2))
    phi = A.T @ (np.zeros((CLIENTS, DIM)) + first) - first
    psi = np.array([phi[k] - STEP * multiagent.slope(OBJECTIVE, k, phi[k]) for k in range(CLIENTS)])
    np.testing.assert_allclose(found, A.T @ (psi + second) - second, atol=1e-12)
