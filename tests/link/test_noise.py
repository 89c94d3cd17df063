"""Noise between peers: the parts that cancel and that remain, against the matrix forms."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fljax as fl
from fljax._core.prng import as_key, key_of
from fljax.algorithms import ATC, CTA, Consensus, Diffusion, GraphFedAvg
from fljax.link import GraphHomomorphic, LocalGraphHomomorphic, PerEdge, PerMessage
from tests.cases import (
    CASES,
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
    simulate,
)
from tests.reference import multiagent, nfl, pgfl

pytestmark = pytest.mark.core

STEP = 0.05
KINDS = [PerMessage, PerEdge, GraphHomomorphic, LocalGraphHomomorphic]


A = nfl.left_stochastic(CLIENTS, EDGES)
COMBINATION = fl.graphs.from_stochastic(A, convention="left")


def models(algorithm, noise=None, rounds=ROUNDS, form="dense", **options):
    simulation = fl.Simulation(
        problem=make_problem(),
        network=make_network(form),
        algorithm=algorithm,
        noise=noise,
        metrics=[fl.metrics.trajectory("model")],
        **options,
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
    w = np.zeros((CLIENTS, DIM))
    history = []
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


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_nodes_draw_for_their_own_part_where_requested(form):
    """(3.8) and (4.26) have m = p among the neighbors of p."""
    noise = PerEdge(0.3, own=True)
    w = np.zeros((CLIENTS, DIM))
    over = fl.graphs.from_stochastic(A, convention="left", form=form)
    result = models(ATC(STEP, over), noise, form=form)
    for n in range(1, ROUNDS + 1):
        psi = np.array([w[k] - STEP * OBJECTIVE.gradient(k, w[k]) for k in range(CLIENTS)])
        w = A.T @ psi + np.einsum("lk,kld->kd", A, edges_of(noise, n, A))
        np.testing.assert_allclose(result[n - 1], w, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_servers_draw_for_their_own_part_where_requested():
    """One round from zero with the same clients: all that differs is each server's own draw."""
    options = {"problem": make_problem(), "network": make_servers()}
    options |= {"algorithm": GraphFedAvg(STEP), "metrics": [fl.metrics.trajectory("model")]}
    without_own, with_own = (
        np.asarray(fl.run(fl.Simulation(**options, noise=noise), 1, as_key(1))["model_trajectory"])[
            0
        ]
        for noise in (PerEdge(0.3), PerEdge(0.3, own=True))
    )
    noise = PerEdge(0.3)
    key = key_of(keys_of(1)[0], "noise")
    servers = options["network"]
    weights = np.asarray(servers.graph.mixing("metropolis").self_weight)[:, None]
    to_itself = weights * np.array([
        noise.over_edges(key, jnp.int32(k), jnp.array([k]), jnp.ones(1), DIM)[0]
        for k in range(servers.servers)
    ])  # fmt: skip
    np.testing.assert_allclose(
        with_own - without_own, to_itself[np.asarray(servers.server)], rtol=1e-9
    )


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
@pytest.mark.parametrize("distribution", ["laplace", "gaussian"])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_that_of_the_matrix_forms(kind, distribution, form):
    noise = kind(0.3, distribution)
    over = fl.graphs.from_stochastic(A, convention="left", form=form)
    result = models(ATC(STEP, over), noise, form=form)
    np.testing.assert_allclose(result, atc_loop(noise), rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("strategy", [Consensus, CTA, ATC])
def test_local_noise_cancels_and_homomorphic_noise_cancels_in_the_weighted_mean(strategy):
    silent = models(strategy(STEP, COMBINATION))
    local = models(strategy(STEP, COMBINATION), LocalGraphHomomorphic(1.0))
    np.testing.assert_allclose(local, silent, rtol=1e-9, atol=1e-11)
    if strategy is CTA:  # CTA takes its gradient at the combined model, noise included
        return
    q = np.asarray(COMBINATION.stationary)
    one_silent, one_round = (
        models(strategy(STEP, COMBINATION), noise, rounds=1)[0]
        for noise in (None, GraphHomomorphic(1.0))
    )
    np.testing.assert_allclose(q @ one_round, q @ one_silent, atol=1e-12)
    assert np.abs(one_round - one_silent).max() > 0.05
    for noise in (PerMessage(1.0), PerEdge(1.0)):
        assert (
            np.abs(
                q @ models(strategy(STEP, COMBINATION), noise, rounds=1)[0] - q @ one_silent
            ).max()
            > 0.05
        )


@pytest.mark.slow
def test_consensus_after_training_recovers_the_clean_mean_of_one_round():
    """Combining without noise to the end: (4.50)'s damage is at the nodes, not in their mean."""
    q = np.asarray(COMBINATION.stationary)
    clean = q @ models(ATC(STEP, COMBINATION), rounds=1)[0]

    def errors(noise):
        """Errors of the nodes' models and of their limit."""
        w = models(ATC(STEP, COMBINATION), noise, rounds=1)[0]
        ended = fl.graphs.consensus(COMBINATION, jnp.asarray(w), tolerance=1e-13)
        np.testing.assert_allclose(ended, np.linalg.matrix_power(A.T, 400) @ w, atol=1e-11)
        return [np.mean(np.sum((x - clean) ** 2, axis=1)) for x in (w, np.asarray(ended))]

    before, after = errors(GraphHomomorphic(1.0))
    assert after < 1e-20 < 0.05 < before
    # What independent noise did to the mean is there before and after.
    before, after = errors(PerEdge(1.0))
    assert after > 0.01


def test_unreached_consensus_is_reported():
    models = jnp.eye(CLIENTS)
    over = fl.graphs.ring(CLIENTS).mixing()
    with pytest.raises(ValueError, match="after 3 rounds nodes differ by"):
        fl.graphs.consensus(over, models, rounds=3)
    with pytest.raises(ValueError, match="5 nodes"):
        fl.graphs.consensus(over, models[:2])
    with pytest.raises(ValueError, match="models holds 1 NaN"):
        fl.graphs.consensus(over, models.at[0, 0].set(jnp.nan))
    # Traced, one number of rounds fits all: no agreement, no error.
    three_rounds = jax.jit(lambda x: fl.graphs.consensus(over, x, rounds=3))(models)
    np.testing.assert_allclose(three_rounds, np.linalg.matrix_power(over.matrix(), 3), atol=1e-12)


@pytest.mark.slow
def test_masks_hide_messages_and_cancel_in_the_sum():
    noise = LocalGraphHomomorphic(0.5)
    weights = A.T * ~np.eye(CLIENTS, dtype=bool)
    drawn = edges_of(noise, 1, A)
    edges = weights > 0
    assert (np.abs(drawn).max(axis=2)[edges] > 1e-3).all()
    assert (drawn[~edges] == 0).all()
    np.testing.assert_allclose(np.einsum("kl,kld->kd", weights, drawn), 0, atol=1e-12)
    # Noise from a single neighbor cannot cancel, so that a receiver with one neighbor hides
    # nothing.
    alone = noise.over_edges(
        as_key(2), jnp.int32(0), jnp.arange(3), jnp.array([0.0, 0.4, 0.0]), DIM
    )
    assert not np.asarray(alone).any()


@pytest.mark.slow
def test_masks_do_not_cancel_over_failing_links():
    losses = fl.link.Independent(0.4)
    silent = models(ATC(STEP, COMBINATION), losses=losses)
    masked = models(ATC(STEP, COMBINATION), LocalGraphHomomorphic(0.5), losses=losses)
    assert np.abs(masked[0] - silent[0]).max() > 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("distribution", ["laplace", "gaussian"])
def test_variances_are_as_requested(kind, distribution):
    for per, expected in (("coordinate", 0.3), ("vector", 0.3 / DIM)):
        drawn = kind(0.3, distribution, per).draw(as_key(3), (40_000, DIM), jnp.float64)
        assert abs(np.var(drawn) / expected - 1) < 0.05
    flat = np.asarray(drawn).ravel()
    kurtosis = np.mean(flat**4) / np.mean(flat**2) ** 2
    assert abs(kurtosis - (6 if distribution == "laplace" else 3)) < 0.4


@pytest.mark.slow
def test_an_aggregator_receives_each_message_with_its_noise():
    aggregation = fl.aggregation.Median()
    quiet = models(ATC(STEP, COMBINATION), PerEdge(0.0), rounds=1, aggregation=aggregation)
    silent = models(ATC(STEP, COMBINATION), rounds=1, aggregation=aggregation)
    np.testing.assert_array_equal(quiet, silent)
    loud = models(ATC(STEP, COMBINATION), PerEdge(0.5), rounds=1, aggregation=aggregation)
    assert np.abs(loud - silent).max() > 0.01


@pytest.mark.slow
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
        (lambda: PerEdge(jnp.nan), "variance must be finite"),
        (lambda: PerEdge(1.0, "cauchy"), "laplace"),
        (lambda: GraphHomomorphic(1.0, per="model"), "coordinate"),
    ],
)
def test_bad_noise_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_general_form_has_noise_where_it_exchanges():
    """Stages without weights have no noise: two exchanges, two draws."""
    result = models(
        Diffusion(STEP, COMBINATION, None, COMBINATION), GraphHomomorphic(0.2), rounds=1
    )[0]
    first, second = (message_noise(GraphHomomorphic(0.2), 1, sent) for sent in (1, 2))
    phi = A.T @ (np.zeros((CLIENTS, DIM)) + first) - first
    psi = np.array(
        [phi[k] - STEP * multiagent.gradient(OBJECTIVE, k, phi[k]) for k in range(CLIENTS)]
    )
    np.testing.assert_allclose(result, A.T @ (psi + second) - second, atol=1e-12)


# Masks of pairs ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_message_reports_how_many_draws_hide_it():
    """A receiver with five neighbors: three share draws with two others; with one neighbor nothing
    is hidden.
    """
    noise = LocalGraphHomomorphic(0.5)
    star = fl.graphs.star(6).mixing()
    masked = noise.masked(star)
    assert masked[0].tolist() == [0, 2, 3, 2, 3, 2]
    assert not masked[1:].any()
    for form in ("dense", "padded"):
        over = fl.graphs.from_stochastic(A, convention="left", form=form)
        masked = noise.masked(over)
        assert ((masked > 0) == ((A.T > 0) & ~np.eye(CLIENTS, dtype=bool))).all()
    # The variance is of that many draws, over the square of the weight.
    weights = jnp.array([0.0, 0.1, 0.2, 0.3, 0.25, 0.15])
    drawn = noise.over_edges(as_key(3), jnp.int32(0), jnp.arange(6), weights, 20_000)
    expected = 0.5 * noise.masked(star)[0, 1:] / np.asarray(weights)[1:] ** 2
    np.testing.assert_allclose(np.var(drawn, axis=1)[1:], expected, rtol=0.06)


@pytest.mark.slow
def test_messages_to_agree_are_at_most_those_of_the_source():
    """|N_k| + sum over its neighbors of |N_m| / 2, counting a node among its neighbors."""
    noise = LocalGraphHomomorphic(0.5)
    support = A > 0
    sizes = support.sum(axis=0)
    most = [sizes[k] + sum(sizes[m] for m in np.flatnonzero(support[:, k]) if m != k) / 2
            for k in range(CLIENTS)]  # fmt: skip
    result = noise.agreements(COMBINATION)
    assert (result <= most).all()
    # A leaf of the star has two or three partners; at the center the sets count.
    assert noise.agreements(fl.graphs.star(6).mixing()).tolist() == [5, 2, 3, 2, 3, 2]


def test_both_ends_of_the_exchange_have_the_same_number():
    prime = 2**521 - 1
    base = 3
    secrets = [int.from_bytes(np.random.default_rng(seed).bytes(60), "big") for seed in range(2)]
    public = [fl.contrib.public_number(secret, base, prime) for secret in secrets]
    numbers = [fl.contrib.shared_number(secrets[i], public[1 - i], prime) for i in range(2)]
    assert numbers[0] == numbers[1] == pow(base, secrets[0] * secrets[1], prime)
    assert public[0] != public[1] != numbers[0]
    for bad in ((0, 5, 23), (6, 1, 23), (6, 5, 2)):
        with pytest.raises(ValueError, match=">="):
            fl.contrib.public_number(*bad)


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_agreed_numbers_have_the_distribution_of_masks(dtype):
    """Definition 4.2, corrected; as printed the variance is 4 / sigma^2."""
    variance = 0.1
    count = 200_000
    with jax.enable_x64(dtype is np.float64):
        agreed = np.asarray(fl.contrib.agreed_laplace(as_key(4), variance, (count,)))
        ratio = np.asarray(fl.contrib.log_ratio(as_key(4), (count,)))
    assert agreed.dtype == dtype
    assert np.isfinite(agreed).all()
    assert abs(agreed.var() / variance - 1) < 0.03
    assert abs(np.mean(agreed**4) / agreed.var() ** 2 - 6) < 0.4
    assert stats.kstest(agreed, stats.laplace(scale=(variance / 2) ** 0.5).cdf).pvalue > 1e-3
    drawn = np.asarray(LocalGraphHomomorphic(variance).draw(as_key(5), (count,), float))
    assert stats.ks_2samp(agreed, drawn).pvalue > 1e-3
    printed = (2 / variance) ** 0.5 * ratio
    assert abs(printed.var() / (4 / variance) - 1) < 0.03


# What has no place, and what cancels all the same ------------------------------------------------


def refuse(message, algorithm=None, network=None, noise=None, **options):
    with pytest.raises(ValueError, match=message):
        fl.Simulation(
            make_problem(),
            ATC(STEP) if algorithm is None else algorithm,
            make_network() if network is None else network,
            noise=PerEdge(1.0) if noise is None else noise,
            **options,
        )


@pytest.mark.slow
def test_noise_without_messages_is_refused_before_the_run():
    refuse("upload_noise=", fl.algorithms.FedAvg(STEP))
    alone = fl.federation.Federation(SERVER)
    refuse("do not communicate with each other", GraphFedAvg(STEP), alone, allow_disconnected=True)
    edgeless = fl.graphs.from_edges(CLIENTS, [], allow_disconnected=True)
    refuse("no edges", network=edgeless, allow_disconnected=True)
    refuse("cannot compress messages with noise=", compression=fl.link.TopK(1))
    homomorphic = GraphHomomorphic(1.0)
    masks = LocalGraphHomomorphic(1.0)
    refuse("weighted means only", fl.algorithms.NetworkedADMM(0.9), noise=homomorphic)
    for noise in (homomorphic, masks):
        refuse("by an aggregator", noise=noise, aggregation=fl.aggregation.Median())
    for noise in (PerEdge(1.0), masks):
        refuse("draws for every edge", noise=noise, delays=fl.link.Geometric(0.2, 2))
        refuse("draws for every edge", noise=noise, participation=fl.participation.Bernoulli(0.9))
    two = fl.graphs.path(2)
    with pytest.raises(ValueError, match="no node has more than one"):
        fl.Simulation(make_problem(), GraphFedAvg(STEP), make_servers(), noise=masks)
    with pytest.raises(ValueError, match="no node has more than one"):
        masks.check(two, [two.mixing()])


def test_noise_that_is_never_combined_is_warned_of_before_compilation():
    simulation = simulate("PGFL", private=False)
    simulation = fl._core.module.replace(simulation, noise=PerEdge(1.0))
    with pytest.raises(TypeError, match=r"PGFL\.step sends no message that noise= is for"):
        fl.run(simulation, 2)


def test_homomorphic_noise_needs_a_weight_to_be_taken_off():
    matrix = A.copy()
    matrix[:, 2] = np.where(np.arange(CLIENTS) == 2, 0, matrix[:, 2])
    over = fl.graphs.from_stochastic(matrix / matrix.sum(axis=0), convention="left")
    noise = GraphHomomorphic(1.0)
    refuse("node 2 has the weight 0 for its own model", ATC(STEP, over), noise=noise)
    edgy = fl.graphs.Mixing("laplacian", step=0.4)  # 1 - 3 * 0.4
    refuse("node 1 has the weight -0.2 for its own model", ATC(STEP, edgy), noise=noise)
    fl.Simulation(make_problem(), ATC(STEP, over), make_network(), noise=PerEdge(1.0))


def test_a_node_with_one_neighbor_is_warned_of():
    tail = fl.graphs.from_edges(CLIENTS, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)])
    arguments = make_problem(), ATC(STEP), tail
    with pytest.warns(UserWarning, match="1 of 5 nodes receive from one neighbor only.* node 4"):
        fl.Simulation(*arguments, noise=LocalGraphHomomorphic(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.Simulation(*arguments, noise=PerEdge(1.0))
        fl.Simulation(*arguments[:2], make_network(), noise=LocalGraphHomomorphic(1.0))


def test_weights_that_do_not_sum_to_one_or_go_in_circles_are_refused():
    for matrix, message in (
        (np.array([[0.5, 0.5], [0.6, 0.5]]), "sum to one"),
        (np.array([[0.0, 1.0], [1.0, 0.0]]), "periodic"),
    ):
        with pytest.raises(ValueError, match=message):
            fl.graphs.from_stochastic(matrix, convention="left")


@jax.jit
def all_over_edges(noise, key, weights):
    everyone = jnp.arange(len(weights), dtype=jnp.int32)
    return jax.vmap(lambda k, row: noise.over_edges(key, k, everyone, row, 2))(everyone, weights)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_noise_cancels_on_any_left_stochastic_matrix(seed):
    rng = np.random.default_rng(seed)
    nodes = 7
    matrix = rng.uniform(0.05, 1, (nodes, nodes)) * (rng.uniform(size=(nodes, nodes)) < 0.6)
    matrix += np.diag(rng.uniform(0.05, 1, nodes)) + 0.01 * np.roll(np.eye(nodes), 1, axis=0)
    matrix = matrix / matrix.sum(axis=0)
    over = fl.graphs.from_stochastic(matrix, convention="left", form="dense")
    key = as_key(seed % 1000)
    x = jnp.asarray(rng.normal(size=(nodes, 2)))
    sent, off = GraphHomomorphic(3.0).perturb(key, x)
    received = matrix.T @ np.asarray(sent) - np.asarray(off)
    q = np.asarray(over.stationary)
    scale = np.abs(sent).max()
    np.testing.assert_allclose(q @ received, q @ np.asarray(x), atol=1e-11 * scale)
    weights = jnp.asarray(matrix.T * ~np.eye(nodes, dtype=bool))
    masks = LocalGraphHomomorphic(3.0)
    drawn = np.asarray(all_over_edges(masks, key, weights))
    left = np.einsum("kl,kld->kd", weights, drawn)
    np.testing.assert_allclose(left, 0, atol=1e-12 * (1 + np.abs(drawn).max()))
    assert ((np.abs(drawn).max(axis=2) > 0) == (masks.masked(over) > 0)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:11 of 12 nodes")
def test_masks_over_failing_links_equal_one_table():
    """Split tables hide a node's few neighbors beyond the table's width as well."""
    nodes = 12
    hub = fl.graphs.from_edges(12, [(0, k) for k in range(1, 12)], form="padded")
    assert hub.overflow is not None
    simulation = fl.Simulation(
        make_problem(sizes=(5,) * nodes), ATC(STEP), hub, losses=fl.link.Independent(0.0),
        noise=LocalGraphHomomorphic(1.0), metrics=[fl.metrics.trajectory("model")],
    )  # fmt: skip
    silent = fl._core.module.replace(simulation, noise=None, losses=None)
    result, expected = (fl.run(s, 2)["model_trajectory"].values for s in (simulation, silent))
    np.testing.assert_allclose(result, expected, atol=1e-9)  # no link fails


@pytest.mark.slow
def test_attackers_messages_have_the_noise_too():
    attack = fl.attacks.ConstantMessage(fl.attacks.first(1, CLIENTS), 7.0)
    loud = models(ATC(STEP, COMBINATION), PerMessage(0.4), rounds=1, attack=attack)[0]
    quiet = models(ATC(STEP, COMBINATION), rounds=1, attack=attack)[0]
    drawn = message_noise(PerMessage(0.4), 1)
    expected = quiet + A.T @ drawn - np.diag(A)[:, None] * drawn
    np.testing.assert_allclose(loud, expected, atol=1e-9)


@pytest.mark.slow
def test_homomorphic_noise_cancels_over_symmetric_failures_only():
    for symmetric in (True, False):
        losses = fl.link.Independent(0.4, symmetric=symmetric)
        quiet, loud = (
            models(ATC(STEP), noise, rounds=1, losses=losses)[0].mean(axis=0)
            for noise in (None, GraphHomomorphic(1.0))
        )
        assert (np.abs(loud - quiet).max() < 1e-12) == symmetric


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PerMessage, GraphHomomorphic])
def test_late_messages_come_with_the_noise_that_they_left_with(kind):
    noise = kind(0.3)
    rounds = 4
    w = np.zeros((CLIENTS, DIM))
    late = np.zeros((CLIENTS, DIM))
    history = []
    own_weight = np.diag(A)[:, None]
    for n in range(1, rounds + 1):
        psi = np.array([w[k] - STEP * OBJECTIVE.gradient(k, w[k]) for k in range(CLIENTS)])
        drawn = message_noise(noise, n)
        w = own_weight * psi + (A - np.diag(np.diag(A))).T @ late
        if kind is GraphHomomorphic:
            w = w - (1 - own_weight) * drawn
        late = psi + drawn
        history.append(w)
    result = models(ATC(STEP, COMBINATION), noise, rounds, delays=fl.link.Fixed(1))
    np.testing.assert_allclose(result, history, rtol=1e-9, atol=1e-11)


#: Who talks to his like over the link; the other algorithms with several servers only relay.
PEERS = [
    label
    for label, case in CASES.items()
    if case.algorithm.needs.network is fl.graphs.Graph or label == "GFL, gradient"
]


@pytest.mark.slow
@pytest.mark.thin(12, every=24)
@pytest.mark.parametrize("label", PEERS)
def test_every_algorithm_of_peers_or_servers_runs_under_every_noise_that_fits(label):
    silent = simulate(label, private=False)
    if label == "GFL, gradient":  # servers that have neighbors enough
        ring = fl.federation.Federation(range(CLIENTS), fl.graphs.ring(CLIENTS))
        silent = fl._core.module.replace(silent, network=ring)
    quiet = fl.run(silent, 3, as_key(1))["model"].values
    fitting = [PerMessage, PerEdge, LocalGraphHomomorphic]
    if CASES[label].algorithm.needs.averages:
        fitting.append(GraphHomomorphic)
    for kind in fitting:
        noise = kind(1e-3)
        # It cancels in sums by the network's weights, and not where peers weigh single messages.
        if noise.cancels == "receiver" and CASES[label].algorithm.one_by_one:
            with pytest.raises(ValueError, match=r"combines single messages .* but Local"):
                dataclasses.replace(silent, noise=noise)
            continue
        results = fl.run(fl._core.module.replace(silent, noise=noise), 3, as_key(1))["model"].values
        assert np.isfinite(results).all(), kind
        if noise.cancels == "receiver":
            np.testing.assert_allclose(results, quiet, rtol=1e-9, atol=1e-11)
        else:
            assert np.abs(results - quiet).max() > 1e-4, kind
