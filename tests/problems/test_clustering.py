"""Clusters of clients: found, pooled, judged; against loops and from both of the book's routes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import fljax as fl
from fljax import clustering, graphs
from tests.graphs.samples import weighted_matrix
from tests.reference import jung_graphs as reference

POINTS = np.random.default_rng(0).normal(size=(12, 3)) + 8 * np.repeat(np.eye(3), 4, axis=0)
TRUTH = np.repeat(np.arange(3), 4)


def clustered(seed, clusters=3, members=8, samples=10, dim=2):
    """(146): linear regression, whose model is the same within a cluster."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(clusters), members)
    models = rng.normal(size=(clusters, dim)) + 4 * np.eye(clusters, dim)
    features = rng.normal(size=(len(truth), samples, dim))
    labels = np.einsum("knp,kp->kn", features, models[truth])
    labels += 0.3 * rng.normal(size=labels.shape)
    return fl.problems.Problem(features, labels, fl.problems.LeastSquares()), truth, models


@pytest.mark.slow
def test_kmeans_finds_separated_clusters_for_each_seed():
    find = jax.jit(jax.vmap(lambda key: clustering.kmeans(key, jnp.asarray(POINTS), 3)))
    result = find(jax.random.split(jax.random.key(0), 2))
    for cluster, centers, inertia in zip(*result, strict=True):
        assert clustering.misassigned(cluster, TRUTH) == 0
        for q in range(3):
            np.testing.assert_allclose(centers[q], POINTS[np.asarray(cluster) == q].mean(axis=0))
        difference = POINTS - np.asarray(centers)[np.asarray(cluster)]
        assert float(inertia) == pytest.approx(np.sum(difference**2))


def written_out(points, start, clusters, floor, iterations):
    """Expectation-maximization, point by point: memberships, parameters, log-likelihood."""
    count, size = points.shape
    least = floor * np.var(points, axis=0).mean()
    member = np.eye(clusters)[start]
    for _ in range(iterations + 1):
        mean = []
        cov = []
        share = []
        for q in range(clusters):
            weight = member[:, q]
            mean.append((weight @ points) / weight.sum())
            difference = points - mean[q]
            cov.append(
                difference.T @ (weight[:, None] * difference) / weight.sum() + least * np.eye(size)
            )
            share.append(weight.sum() / count)
        density = np.stack(
            [
                s * scipy.stats.multivariate_normal(m, c).pdf(points)
                for s, m, c in zip(share, mean, cov, strict=True)
            ],
            axis=1,
        )
        member = density / density.sum(axis=1, keepdims=True)
    return member, np.array(mean), np.array(cov), np.array(share), np.log(density.sum(1)).sum()


@pytest.mark.parametrize("iterations", [1, 3, 12])
def test_a_mixture_equals_its_loop(iterations):
    """From the same start, with the same number of iterations."""
    rng = np.random.default_rng(iterations)
    points = rng.normal(size=(40, 2)) @ np.array([[3.0, 1.0], [0.0, 0.3]])
    points[20:] += [1.0, 2.0]
    start = rng.integers(0, 3, 40)
    least = jnp.asarray(1e-2 * np.var(points, axis=0).mean())
    result = clustering._expected(jnp.asarray(points), jnp.asarray(start), 3, least, iterations)
    member, mean, cov, share, likelihood = written_out(points, start, 3, 1e-2, iterations)
    np.testing.assert_allclose(result.membership, member, atol=1e-10)
    np.testing.assert_allclose(result.centers, mean, atol=1e-10)
    np.testing.assert_allclose(result.covariances, cov, atol=1e-10)
    np.testing.assert_allclose(result.shares, share, atol=1e-12)
    np.testing.assert_allclose(result.log_likelihood, likelihood, rtol=1e-10)
    assert (np.asarray(result.cluster) == member.argmax(axis=1)).all()


@pytest.mark.slow
def test_the_likelihood_never_falls():
    """Up to the floor of covariances, which is far below them here."""
    points = jnp.asarray(np.random.default_rng(0).normal(size=(50, 3)))
    start = jnp.arange(50) % 3
    result = [
        float(clustering._expected(points, start, 3, jnp.asarray(1e-9), iterations).log_likelihood)
        for iterations in range(1, 25)
    ]
    assert (np.diff(result) > -1e-9).all()
    assert result[-1] > result[0] + 1


@pytest.mark.slow
def test_mixtures_separate_clusters_with_equal_centers():
    """Two long clusters side by side, for each seed; k-means cuts across both."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(60, 2)) * [10.0, 0.3] + np.repeat([[0, 0], [0, 3]], 30, axis=0)
    truth = np.repeat([0, 1], 30)
    find = jax.jit(jax.vmap(lambda k: clustering.gaussian_mixture(k, jnp.asarray(points), 2)))
    result = find(jax.random.split(jax.random.key(0), 3))
    for cluster, share in zip(result.cluster, result.shares, strict=True):
        assert clustering.misassigned(cluster, truth) < 0.05
        np.testing.assert_allclose(np.sort(share), 0.5, atol=0.1)
    plain = clustering.kmeans(jax.random.key(0), points, 2).cluster
    assert clustering.misassigned(plain, truth) > 0.2


@pytest.mark.slow
def test_a_mixture_of_separated_clusters_finds_them():
    """Also if a cluster has only as many points as a covariance needs."""
    result = clustering.gaussian_mixture(jax.random.key(0), POINTS, 3)
    assert clustering.misassigned(result.cluster, TRUTH) == 0
    assert np.isfinite(np.asarray(result.covariances)).all()
    same = clustering.gaussian_mixture(jax.random.key(1), np.zeros((4, 2)), 2)
    assert np.isfinite(float(same.log_likelihood))


@pytest.mark.slow
def test_no_cluster_stays_empty():
    """Two equal starts: one of the clusters gets no point."""
    start = jnp.asarray(np.stack([POINTS[0], POINTS[0], POINTS[5]]))
    result = clustering._lloyd(jnp.asarray(POINTS), start, 100)
    assert set(np.asarray(result.cluster)) == {0, 1, 2}
    same = jnp.zeros((4, 2))
    result = clustering.kmeans(jax.random.key(1), same, 2, restarts=1)
    assert float(result.inertia) == 0


def test_pooled_models_equal_those_of_the_pooled_data():
    problem, truth, _ = clustered(0, members=3, samples=5)
    result = np.asarray(clustering.pooled_models(problem, truth, 3, ridge=0.1))
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    for q in range(3):
        ours = truth == q
        gram = sum(a.T @ a / 5 for a in x[ours]) + 0.1 * 3 * np.eye(2)
        moment = sum(a.T @ b / 5 for a, b in zip(x[ours], y[ours], strict=True))
        expected = np.broadcast_to(np.linalg.solve(gram, moment), (3, 2))
        np.testing.assert_allclose(result[ours], expected, rtol=1e-10)


@pytest.mark.long
@pytest.mark.slow
def test_both_routes_recover_clusters_of_a_stochastic_block_model():
    problem, truth, models = clustered(1)
    network = graphs.stochastic_block_model(
        jax.random.key(3), sizes=(8, 8, 8), probabilities=0.04 + 0.8 * np.eye(3)
    )
    alone = fl.problems.train(problem, ridge=1e-4)
    result = clustering.kmeans(jax.random.key(0), alone, 3)
    assert clustering.misassigned(result.cluster, truth) == 0
    pooled = clustering.pooled_models(problem, result.cluster, 3)
    coupled = fl.problems.GTVMin(problem, network, 0.5, fl.problems.Norm()).solve()
    detected = clustering.detect(network, coupled, 0.5)
    assert float(clustering.adjusted_rand(detected, truth)) == 1
    error = {
        name: float(np.mean((np.asarray(w) - models[truth]) ** 2))
        for name, w in {"alone": alone, "pooled": pooled, "coupled": coupled}.items()
    }
    assert error["pooled"] < 0.3 * error["alone"]
    assert error["coupled"] < 0.7 * error["alone"]


@pytest.mark.slow
def test_agreement_of_partitions_is_counted_by_pairs():
    rng = np.random.default_rng(0)
    for names in (2, 4):
        result, truth = rng.integers(0, names, (2, 15))
        expected = reference.adjusted_rand(result, truth)
        assert float(clustering.adjusted_rand(result, truth)) == pytest.approx(expected)
    assert float(clustering.adjusted_rand(np.zeros(5, int), np.zeros(5, int))) == 1
    assert clustering.misassigned([2, 2, 2, 0, 0], [0, 0, 1, 1, 1]) == pytest.approx(0.2)


def test_the_quality_of_a_cluster_is_its_connectivity_and_boundary():
    matrix = weighted_matrix(2, 9)
    for members in ([0, 1, 2, 3], [1, 4, 5, 6, 8]):
        inside = np.isin(np.arange(9), members)
        for form in ("dense", "padded"):
            network = graphs.from_adjacency(matrix, form=form)
            result = jax.jit(clustering.quality)(network, inside)
            np.testing.assert_allclose(
                result, reference.cluster_quality(matrix, members), atol=1e-12
            )


@pytest.mark.slow
def test_a_pendant_node_lowers_the_connectivity_of_a_cluster():
    """T21: a complete cluster of ``n`` nodes has ``n``; with a node at one of them one at most."""
    network = graphs.from_edges(9, [*graphs.complete(8).edge_list(), (0, 8)])
    within, boundary = clustering.quality(network, np.arange(9) < 8)
    assert (float(within), float(boundary)) == pytest.approx((8.0, 1.0))
    assert float(network.algebraic_connectivity()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: clustering.kmeans(jax.random.key(0), POINTS, 13), "12 points cannot fill 13"),
        (lambda: clustering.kmeans(jax.random.key(0), POINTS * np.nan, 2), "points holds"),
        (lambda: clustering.detect(graphs.ring(5), POINTS, 1.0), "of the 5 nodes .* got 12"),
        (
            lambda: clustering.quality(graphs.ring(4), np.eye(4, dtype=bool)[0]),
            "at least two members",
        ),
        (lambda: clustering.misassigned([0, 1], [0, 1, 1]), "partitions of the same"),
        (lambda: clustering.pooled_models(clustered(0)[0], [0, 1], 2), "cluster is for 2 clients"),
    ],
)
def test_errors_are_reported(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Discrepancies ------------------------------------------------------------------------------------


def test_representations_equal_their_formulas():
    problem, _, _ = clustered(2, members=2, samples=4)
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    pairs = list(zip(x, y, strict=True))
    alone = [np.linalg.solve(a.T @ a / 4 + 0.2 * np.eye(2), a.T @ b / 4) for a, b in pairs]
    np.testing.assert_allclose(fl.problems.train(problem, ridge=0.2), alone, rtol=1e-10)
    with pytest.raises(ValueError, match=r"ridge must be .* > 0, got 0"):
        fl.problems.train(problem, ridge=0.0)
    at = np.array([0.5, -1.0])
    slopes = [2 / 4 * a.T @ (a @ at - b) for a, b in pairs]
    np.testing.assert_allclose(fl.problems.local_gradients(problem, at), slopes, rtol=1e-10)


def test_labels_are_counted_without_padding():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, top, size).astype(float) for top, size in ((2, 6), (4, 3), (3, 9))]
    data = [(np.ones((len(label), 1)), label) for label in labels]
    problem = fl.problems.from_clients(data, fl.problems.Softmax(4))
    expected = [[np.mean(label == c) for c in range(4)] for label in labels]
    np.testing.assert_allclose(fl.problems.label_histograms(problem, range(4)), expected)
    overlap = [[reference.label_overlap(a, b) for b in labels] for a in labels]
    np.testing.assert_allclose(fl.problems.label_overlap(problem, range(4)), overlap)


def test_predictions_on_shared_points_are_compared_both_ways():
    predictions = np.random.default_rng(1).normal(size=(4, 7))
    squared = [[np.mean((a - b) ** 2) for b in predictions] for a in predictions]
    np.testing.assert_allclose(fl.problems.prediction_discrepancy(predictions), squared, rtol=1e-10)
    labels = np.where(predictions > 0, 1.0, -1.0)
    logistic = lambda z, t: np.mean(np.log1p(np.exp(-t * z)))  # noqa: E731
    losses = [
        [
            (logistic(predictions[i], labels[j]) + logistic(predictions[j], labels[i])) / 2
            for j in range(4)
        ]
        for i in range(4)
    ]
    result = fl.problems.prediction_discrepancy(predictions, labels, fl.problems.Logistic())
    np.testing.assert_allclose(result, losses, rtol=1e-10)


def test_scaled_unit_vectors_make_predictions_as_far_as_models():
    """Exercise 3.7: on sqrt(d) e_j the discrepancy is the squared distance of linear models."""
    models = np.random.default_rng(2).normal(size=(5, 3))
    result = fl.problems.prediction_discrepancy(models @ (np.sqrt(3) * np.eye(3)))
    np.testing.assert_allclose(result, graphs.distances(models) ** 2, atol=1e-12)


@pytest.mark.slow
def test_codes_are_mean_encodings_of_real_samples():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)), np.zeros(n)) for n in (4, 7)]
    data = fl.problems.from_clients(data, fl.problems.LeastSquares())
    network = fl.models.autoencoder(2, hidden=[5])
    problem = fl.problems.reconstruction(data, network, jax.random.key(0))
    codes = fl.problems.mean_codes(problem, problem.initial)
    parameters = problem.parameters(problem.initial)
    for k, n in enumerate((4, 7)):
        x = jnp.asarray(data.features[k, :n])
        code_rows = np.asarray(network.encode(parameters, x))
        np.testing.assert_allclose(codes[k], code_rows.mean(axis=0), rtol=1e-12)
        hidden = np.maximum(
            x @ parameters["encoder"]["layer_0"]["kernel"]
            + parameters["encoder"]["layer_0"]["bias"][None],
            0,
        )
        encoded = hidden @ parameters["encoder"]["layer_1"]["kernel"]
        np.testing.assert_allclose(code_rows, encoded, atol=1e-12)
        error = np.mean((np.asarray(network.apply(parameters, x)) - np.asarray(x)) ** 2)
        loss = problem.mean_loss(jnp.broadcast_to(problem.initial, (2, problem.dim)))[k]
        np.testing.assert_allclose(loss, error, rtol=1e-12)


def test_an_autoencoder_has_any_shape_and_a_single_number():
    network = fl.models.autoencoder(1, hidden=[])
    images = jnp.ones((3, 2, 2))
    parameters = network.init(jax.random.key(0), images[:1])
    assert network.encode(parameters, images).shape == (3, 1)
    assert network.apply(parameters, images).shape == (3, 2, 2)
    row = jnp.ones((3, 1))
    assert network.apply(network.init(jax.random.key(0), row[:1]), row).shape == (3, 1)


@pytest.mark.slow
def test_codes_learned_together_find_clients_with_similar_digits():
    """Two kinds of clients, of other digits; trained by FedAvg, which sees no image."""
    images = fl.data.mnist_sample()
    kinds = ((0, 6), (1, 7))
    clients = []
    for kind in kinds:
        rows = np.flatnonzero(np.isin(images.train_labels, kind))[:120].reshape(30, 4).T
        clients += [
            (images.train_images[indices].reshape(30, -1) / 255, np.zeros(30)) for indices in rows
        ]
    data = fl.problems.from_clients(clients, fl.problems.LeastSquares())
    network = fl.models.autoencoder(3, hidden=[16])
    problem = fl.problems.reconstruction(data, network, jax.random.key(0))
    algorithm = fl.algorithms.FedAvg(optax.adam(3e-3), local_steps=20)
    run = fl.run(fl.Simulation(problem, algorithm), rounds=15)
    codes = fl.problems.mean_codes(problem, run.model.values[0])
    for result in (clustering.kmeans, clustering.gaussian_mixture):
        cluster = result(jax.random.key(1), codes, 2).cluster
        assert clustering.misassigned(cluster, np.repeat([0, 1], 4)) == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: clustering.gaussian_mixture(jax.random.key(0), np.ones((2, 2)), 3),
            ValueError,
            "2 points cannot fill 3 clusters",
        ),
        (
            lambda: clustering.gaussian_mixture(jax.random.key(0), np.ones((2, 2)), 1, floor=0.0),
            ValueError,
            "floor must be finite and > 0",
        ),
        (lambda: fl.models.autoencoder(0), ValueError, "code must be >= 1"),
        (
            lambda: fl.problems.reconstruction(
                clustered(0)[0], fl.models.mlp(2), jax.random.key(0)
            ),
            TypeError,
            "network must be an instance of fljax.models.builtin_networks.Autoencoder",
        ),
        (
            lambda: fl.problems.mean_codes(
                fl.problems.reconstruction(
                    clustered(0)[0], fl.models.autoencoder(1), jax.random.key(0)
                ),
                np.ones(3),
            ),
            ValueError,
            "one row of|rows of the network's",
        ),
    ],
)
def test_unusable_clusterings_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
