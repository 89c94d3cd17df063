"""Decentralized strategies against loops, theory and each other; batches and how they are drawn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core import random_subsets
from fljax._core.prng import as_key, key_of
from fljax._core.random_subsets import subset, systematic
from fljax.algorithms import ATC, CTA, Consensus, Diffusion, FedAvg, QGDSGDm
from fljax.algorithms.algorithm import SYNONYMS
from fljax.problems.batches import SORTED_BEYOND, Uniform, Weighted
from tests.cases import (
    CLIENTS,
    DIM,
    EDGES,
    OBJECTIVE,
    ROUNDS,
    SIZES,
    keys_of,
    make_network,
    make_problem,
    step_of,
)
from tests.reference import multiagent, nfl
from tests.support.peer_runs import distance_from_minimizer

REAL = np.arange(max(SIZES)) < np.array(SIZES)[:, None]
ONE = as_key(1)


def models(algorithm, rounds=ROUNDS, problem=None, **options):
    simulation = fl.Simulation(
        problem=make_problem() if problem is None else problem,
        network=make_network(),
        algorithm=algorithm,
        metrics=[fl.metrics.trajectory("model")],
        **options,
    )
    return np.asarray(fl.run(simulation, rounds, as_key(1))["model_trajectory"])


def visited(batches, steps=1, rounds=ROUNDS):
    """The library's own batches as index sets with weights, to inject."""
    everyone = np.arange(CLIENTS)
    result = []
    for now in keys_of(1, rounds):
        batch = batches.draw(key_of(now, "batches"), jnp.asarray(REAL), everyone, steps)
        rows = np.asarray(batch.rows)
        weights = batch.weights
        of_clients = []
        for k in range(CLIENTS):
            real = rows[k, 0] < SIZES[k]
            samples = rows[k, 0][real]
            share = np.full(len(samples), 1 / len(samples))
            of_clients.append(
                (samples, share if weights is None else np.asarray(weights)[k, 0][real])
            )
        result.append(of_clients)
    return result


def unequal(seed=5):
    probabilities = np.random.default_rng(seed).uniform(0.5, 1.5, REAL.shape) * REAL
    return probabilities / probabilities.sum(axis=1, keepdims=True)


BATCHES = [
    Uniform(2),
    Uniform((1, 4, 2, 3, 2)),
    Uniform(3, replacement=True),
    Weighted(2, unequal()),
]


@pytest.mark.thin(1)
@pytest.mark.parametrize("batches", BATCHES)
@pytest.mark.parametrize("strategy", [Consensus, CTA, ATC])
def test_strategies_on_batches_are_the_loops(strategy, batches):
    algorithm = strategy(0.03, batches=batches)
    matrices = [
        np.eye(CLIENTS) if r is None else nfl.metropolis(CLIENTS, EDGES)
        for r in algorithm.combinations
    ]
    expected = multiagent.strategy(
        OBJECTIVE, *matrices, step_of(algorithm.step_size), ROUNDS, visited(batches)
    )
    np.testing.assert_allclose(models(algorithm), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("general", "special"),
    [
        (Diffusion(0.05, beside="metropolis"), Consensus(0.05)),
        (Diffusion(0.05, before="metropolis"), CTA(0.05)),
        (Diffusion(0.05, after="metropolis"), ATC(0.05)),
    ],
)
def test_the_general_form_has_the_other_algorithms_as_cases(general, special):
    np.testing.assert_array_equal(models(general), models(special))


def test_left_stochastic_weights_minimize_the_perron_weighted_sum():
    """Three different matrices; the fixed point for smaller and smaller steps."""
    matrices = [nfl.left_stochastic(CLIENTS, EDGES, seed) for seed in (3, 4, 5)]
    over = [fl.graphs.from_stochastic(a, convention="left") for a in matrices]
    values, vectors = np.linalg.eig(matrices[0] @ matrices[1] @ matrices[2])  # A_1 A_0 A_2
    p = matrices[2] @ np.real(vectors[:, np.argmax(np.real(values))])
    optimum = multiagent.minimizer(OBJECTIVE, p / p.sum())
    uniform = multiagent.minimizer(OBJECTIVE, np.full(CLIENTS, 1 / CLIENTS))
    distances = []
    for step in (0.02, 0.01):
        result = models(Diffusion(step, *over), rounds=4000)[-1]
        distances.append(np.linalg.norm(result - optimum, axis=1).max())
    assert distances[1] < 0.6 * distances[0]  # it vanishes with the step
    assert distances[1] < 0.3 * np.linalg.norm(uniform - optimum)


def test_weights_of_another_network_are_refused():
    other = fl.graphs.ring(4).mixing()
    with pytest.raises(ValueError, match="the weights are for 4 nodes, but the network has 5"):
        models(ATC(0.05, other))
    with pytest.raises(ValueError, match="no peer would receive anything"):
        Diffusion(0.05)
    with pytest.raises(ValueError, match="leave out batches="):
        models(
            ATC(0.05, batches=Uniform(2)),
            problem=make_problem().clipped(1.0),
            privacy=fl.privacy.ZCDP(1.0),
        )


# Batches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batches", BATCHES[:3], ids=["alike", "of each", "twice"])
def test_uniform_batches_are_of_each_clients_own_size_and_samples(batches):
    rows = np.asarray(batches.draw(ONE, jnp.asarray(REAL), np.arange(CLIENTS), 4000).rows)
    sizes = np.broadcast_to(batches.size, CLIENTS)
    for k, (size, count) in enumerate(zip(sizes, SIZES, strict=True)):
        drawn = rows[k][:, : min(size, count)]
        assert (drawn < count).all()
        assert (rows[k][:, size:] == max(SIZES)).all()
        if batches.replacement:
            counts = np.bincount(drawn[:, 0] * count + drawn[:, 1], minlength=count**2)
            assert stats.chisquare(counts).pvalue > 1e-4
        else:
            assert (np.diff(np.sort(drawn), axis=1) > 0).all()


@pytest.mark.parametrize("size", [2, 11])
def test_small_and_large_batches_are_subsets_with_equal_probabilities(size):
    """Small ones are drawn one after the other, large ones cut from sorted numbers."""
    assert (size**2 > SORTED_BEYOND * 12) == (size == 11)
    real = jnp.ones((2, 12), bool).at[1, 5:].set(False)
    rows = np.asarray(Uniform(size).draw(ONE, real, np.arange(2), 6000).rows)
    for k, count in enumerate((12, 5)):
        taken = np.sort(rows[k], axis=1)[:, : min(size, count)]
        assert (np.diff(taken, axis=1) > 0).all()
        assert taken.max() < count
        assert (np.sort(rows[k], axis=1)[:, count:] >= count).all()
        counts = np.unique(taken, axis=0, return_counts=True)[1]
        assert len(counts) == math.comb(count, min(size, count))
        assert len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.slow
def test_samples_are_drawn_with_their_probabilities():
    """One of them is longer than a piece of the line: drawn once or twice, 1.2 times on average."""
    probabilities = np.array([0.4, 0.3, 0.2, 0.1, 0.0])
    keys = jax.random.split(ONE, 20_000)
    drawn = jax.vmap(lambda key: systematic(key, jnp.asarray(probabilities), 3, 3))(keys)
    counts = np.stack([(np.asarray(drawn) == n).sum(axis=1) for n in range(5)])
    np.testing.assert_allclose(counts.mean(axis=1), 3 * probabilities, atol=0.02)
    assert set(np.unique(counts[0])) == {1, 2}
    assert not counts[4].any()
    assert (np.abs(counts - 3 * probabilities[:, None]) < 1).all()


@pytest.mark.slow
def test_searching_and_comparing_give_the_same_draws(monkeypatch):
    probabilities = jnp.asarray(np.random.default_rng(4).dirichlet(np.ones(700)))
    result = np.asarray(systematic(ONE, probabilities, 20, 20))
    monkeypatch.setattr(random_subsets, "SEARCHED_BEYOND", 700)
    np.testing.assert_array_equal(result, systematic(ONE, probabilities, 20, 20))
    order, start = jax.random.split(ONE)
    order = np.asarray(subset(order, 700, 700))
    point = float(jax.random.uniform(start, (), probabilities.dtype))
    expected = multiagent.systematic(order, np.asarray(probabilities), 20, point)
    assert result.tolist() == expected


@pytest.mark.slow
def test_a_systematic_draw_equals_its_definition():
    key = as_key(8)
    probabilities = jnp.asarray([15, 81, 26, 42, 20, 16]) / 200
    order, start = jax.random.split(key)
    order = np.asarray(subset(order, 6, 6))
    point = float(jax.random.uniform(start, (), probabilities.dtype))
    expected = multiagent.systematic(order, np.asarray(probabilities), 2, point)
    assert np.asarray(systematic(key, probabilities, 2, 2)).tolist() == expected
    # The document's own example, in its order: the second and the fourth, not the first.
    assert multiagent.systematic(range(6), np.asarray(probabilities), 2, 0.57) == [1, 3]


@pytest.mark.slow
def test_weighted_batches_are_without_bias():
    problem = make_problem()
    batches = Weighted((1, 3, 2, 5, 2), unequal())
    batch = batches.draw(ONE, jnp.asarray(REAL), np.arange(CLIENTS), 30_000)
    at = jnp.asarray(np.random.default_rng(2).normal(size=(CLIENTS, DIM)))

    def estimate(rows, weights):
        part = problem.take(jnp.arange(CLIENTS), rows)
        return fl.batches.replace(part, weights=weights).loss_gradient(at)

    estimates = jax.vmap(estimate, (1, 1))(batch.rows, batch.weights)
    spread = np.std(estimates, axis=0) / len(estimates) ** 0.5
    gap = np.abs(np.mean(estimates, axis=0) - np.asarray(problem.loss_gradient(at)))
    assert (gap < 5 * spread).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Uniform(0), "size must be >= 1, got 0"),
        (lambda: Uniform((2, 0)), "whole numbers >= 1"),
        (lambda: Uniform([1.5, 2.0]), "whole numbers >= 1"),
        (lambda: Weighted(2, unequal() / 2), "must sum to one over each client's samples, got 0.5"),
        (lambda: models(ATC(0.05, batches=Uniform(40))), "at most the 12 samples"),
        (lambda: models(ATC(0.05, batches=Uniform((1, 2)))), "each of the 5 clients, got 2"),
        (lambda: models(ATC(0.05, batches=Weighted(1, unequal()[:, :4]))), "must sum to one"),
        (lambda: models(ATC(0.05, batches=Weighted(1, REAL * 0.2))), "must sum to one"),
        (lambda: models(ATC(0.05, batches=Weighted(1, ~REAL * 0 + 1 / 12))), "zero on padding"),
        (lambda: FedAvg(0.05, batches=Uniform(2)), "give local_steps"),
        (lambda: FedAvg(0.05, batches=Uniform(2), batch=3, local_steps=1), "leave out one"),
        (lambda: FedAvg(0.05, epochs=2, local_steps=1), "leave out one"),
        (lambda: served(FedAvg(0.05, local_steps=(1, 2))), "one for each of the 5 clients, got 2"),
    ],
)  # fmt: skip
def test_bad_batches_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def served(algorithm):
    return fl.run(fl.Simulation(make_problem(), algorithm), 2)


# Steps of each client ----------------------------------------------------------------------------

COUNTS = (1, 3, 2, 4, 2)


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("batches", [None, Uniform((1, 4, 2, 3, 2)), Weighted(2, unequal())])
def test_unequal_local_steps_equal_the_loops(batches, normalized):
    algorithm = FedAvg(
        0.06, weighting="equal", batches=batches, local_steps=COUNTS, normalized=normalized
    )
    simulation = fl.Simulation(make_problem(), algorithm)
    results = np.asarray(fl.run(simulation, 4, as_key(1)).model)
    server = np.zeros(DIM)
    for now in keys_of(1, 4):
        if batches is not None:
            steps = max(COUNTS)
            batch = batches.draw(
                key_of(now, "batches"), jnp.asarray(REAL), np.arange(CLIENTS), steps
            )
        models_ = []
        for k, count in enumerate(COUNTS):
            w = server
            for e in range(count):
                samples = None
                if batches is not None:
                    rows = np.asarray(batch.rows)[k, e]
                    real = rows < SIZES[k]
                    share = np.full(real.sum(), 1 / real.sum())
                    weights = (
                        share if batch.weights is None else np.asarray(batch.weights)[k, e][real]
                    )
                    samples = rows[real], weights
                step = 0.06 / (count if normalized else 1)
                w = w - step * multiagent.gradient(OBJECTIVE, k, w, samples)
            models_.append(w)
        server = np.mean(models_, axis=0)
    np.testing.assert_allclose(results[0] if results.ndim > 1 else results, server, rtol=1e-10)


@pytest.mark.slow
def test_consensus_has_the_names_of_optimization():
    """D-PSGD (Lian et al. 2017, Algorithm 1) by its lines, on the run's own samples."""
    assert fl.algorithms.DGD is Consensus
    assert fl.algorithms.REGISTRY[SYNONYMS["DGD"].label] is Consensus
    with pytest.raises(AttributeError, match=r"^SONATA is fljax.algorithms.ATCTracking\.$"):
        fl.algorithms.SONATA
    with pytest.raises(AttributeError, match=r"^ATC-DIGing is fljax.algorithms.AugDGM\.$"):
        fl.algorithms.ATCDIGing
    weights = nfl.metropolis(CLIENTS, EDGES)
    batches = Uniform(1)
    x = np.zeros((CLIENTS, DIM))
    theirs = []
    for of_clients in visited(batches):
        slopes = [multiagent.gradient(OBJECTIVE, k, x[k], of_clients[k]) for k in range(CLIENTS)]
        half = [sum(weights[k, m] * x[m] for m in range(CLIENTS)) for k in range(CLIENTS)]
        x = np.array(half) - 0.05 * np.array(slopes)
        theirs.append(x)
    ours = models(Consensus(0.05, batches=batches))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


# Quasi-global momentum ---------------------------------------------------------------------------


def test_quasi_global_momentum_of_zero_is_adapt_then_combine():
    problem = make_problem()
    network = make_network()

    def ending(algorithm):
        return fl.run(fl.Simulation(problem, algorithm, network), ROUNDS).model.values

    result = ending(QGDSGDm(0.05, momentum=0.0))
    expected = ending(ATC(0.05))
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-14)
    assert np.abs(ending(QGDSGDm(0.05, momentum=0.9)) - expected).max() > 1e-2


@pytest.mark.slow
def test_quasi_global_momentum_is_faster_where_curvatures_are_unlike():
    """Curvatures of 1 and 0.02, to half of the distance: momentum's usual gain."""
    rng = np.random.default_rng(2)
    data = [(rng.normal(size=(40, 2)) * [1.0, 0.14], rng.normal(size=40)) for _ in range(CLIENTS)]
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
    best = np.asarray(fl.problems.optimum(problem))

    def left(momentum):
        algorithm = QGDSGDm(0.1, momentum=momentum)
        models = fl.run(fl.Simulation(problem, algorithm, make_network()), 60).model.values
        return np.linalg.norm(models.mean(0) - best)

    assert left(0.9) < left(0.0) / 2


@pytest.mark.parametrize(("momentum", "message"), [(1.0, "< 1, got 1"), (-0.1, ">= 0")])
def test_momentum_is_a_share(momentum, message):
    with pytest.raises(ValueError, match=f"momentum must be finite.*{message}"):
        QGDSGDm(0.1, momentum=momentum)


@pytest.mark.slow
def test_decentralized_gradient_descent_stops_near_the_minimizer():
    """Its distance is proportional to its step."""
    far = distance_from_minimizer(Consensus(0.05))
    near = distance_from_minimizer(Consensus(0.025), rounds=6000)
    assert far > 1e-3
    assert 1.6 < far / near < 2.4
