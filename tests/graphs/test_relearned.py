"""Networks learned while training, and the subspaces of models that agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import graphs
from tests.graphs.samples import hub_matrix, weighted_matrix
from tests.reference import jung_graphs as reference


@pytest.mark.parametrize("keep", ["any", pytest.param("mutual", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_edges_to_the_nearest_models_are_kept(keep):
    models = np.random.default_rng(0).normal(size=(12, 2))
    for matrix, form in ((weighted_matrix(1, 12), "dense"), (hub_matrix(12), "padded")):
        network = graphs.Relearned(graphs.from_adjacency(matrix, form=form), 2, keep)
        expected = reference.nearest_edges(matrix, models, 2, keep)
        np.testing.assert_allclose(network.learned(models).dense(), expected)


def clustered(form="auto"):
    rng = np.random.default_rng(0)
    cluster = np.arange(12) % 2
    features = rng.normal(size=(12, 6, 2))
    labels = np.einsum("knp,kp->kn", features, np.array([[2.0, 0], [-2, 1]])[cluster])
    problem = fl.problems.Problem(
        features, labels + 0.2 * rng.normal(size=labels.shape), fl.problems.LeastSquares()
    )
    candidates = graphs.k_regular(jax.random.key(1), 12, 7, form=form)
    return problem, cluster, graphs.Relearned(candidates, 3)


@pytest.mark.parametrize("form", ["dense", pytest.param("padded", marks=pytest.mark.slow)])
@pytest.mark.thin(0, every=2)
def test_training_ends_at_the_solution_on_the_graph_that_it_learned(form):
    problem, cluster, network = clustered(form)
    simulation = fl.Simulation(problem, fl.algorithms.FedRelax(1.0), network)
    model = fl.run(simulation, rounds=200).model.values
    learned = network.learned(model)
    across = cluster[learned.edges[:, 0]] != cluster[learned.edges[:, 1]]
    before = network.candidates.edges
    assert np.mean(across) <= 0.1 < np.mean(cluster[before[:, 0]] != cluster[before[:, 1]])
    solution = fl.problems.GTVMin(problem, learned, 1.0).closed_form()
    np.testing.assert_allclose(model, solution, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        {"delays": fl.link.Geometric(0.3, 2), "participation": fl.participation.Bernoulli(0.8)},
        {"losses": fl.link.Independent(0.1)},
        {"aggregation": fl.aggregation.Median()},
    ],
)
def test_late_lost_and_absent_neighbors_are_learned_too(parts):
    problem, cluster, network = clustered()
    simulation = fl.Simulation(problem, fl.algorithms.FedGD(0.2), network, **parts)
    learned = network.learned(fl.run(simulation, rounds=300).model.values)
    assert np.mean(cluster[learned.edges[:, 0]] != cluster[learned.edges[:, 1]]) <= 0.15


def test_as_many_neighbors_as_nodes_are_refused():
    with pytest.raises(ValueError, match="neighbors must be below the number of nodes, 4, got 4"):
        graphs.Relearned(graphs.ring(4), 4)
    with pytest.raises(ValueError, match="models must be of the 4 nodes, got 3"):
        graphs.Relearned(graphs.ring(4), 2).learned(np.zeros((3, 2)))


def test_models_are_projected_on_the_agreed_coordinates():
    models = np.random.default_rng(1).normal(size=(5, 3))
    projected = graphs.agreed(models)
    np.testing.assert_allclose(projected, np.tile(models.mean(axis=0), (5, 1)))
    shared = np.array([True, False, True])
    result = graphs.agreed(models, among=np.array([0, 0, 2, 2, 2]), shared=shared)
    for part in (slice(0, 2), slice(2, 5)):
        mean = np.broadcast_to(models[part].mean(axis=0), models[part].shape)
        np.testing.assert_allclose(result[part], np.where(shared, mean, models[part]))


def test_components_span_the_null_space():
    """(39) and exercise 3.2: as many zero eigenvalues as components."""
    for seed in range(3):
        upper = np.triu(np.random.default_rng(seed).random((9, 9)) < 0.12, 1)
        graph = graphs.from_adjacency((upper + upper.T).astype(float), allow_disconnected=True)
        basis = graphs.null_space(graph)
        matrix = np.asarray(graph.laplacian_matrix())
        np.testing.assert_allclose(matrix @ basis, 0, atol=1e-12)
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)
        assert basis.shape[1] == np.sum(np.linalg.eigvalsh(matrix) < 1e-9)


@pytest.mark.slow
def test_large_graphs_have_the_ends_of_their_spectrum(monkeypatch):
    monkeypatch.setattr("fljax.graphs.undirected._EIGEN_LIMIT", 10)
    sparse = graphs.grid(3, 20)
    dense = graphs.random_connected(jax.random.key(0), nodes=60, mean_degree=6)
    for graph in (sparse, dense):
        values = np.linalg.eigvalsh(np.asarray(graph.laplacian_matrix()))
        assert float(graph.algebraic_connectivity()) == pytest.approx(values[1], rel=1e-6)
        assert float(graph.laplacian_norm()) == pytest.approx(values[-1], rel=1e-6)
    disconnected = graphs.from_edges(60, [(0, 1)], allow_disconnected=True)
    assert float(disconnected.algebraic_connectivity()) == 0
    members = jnp.arange(60) < 20
    line = np.linalg.eigvalsh(np.asarray(graphs.path(20).laplacian_matrix()))
    assert float(sparse.algebraic_connectivity(members)) == pytest.approx(line[1], rel=1e-6)


def test_an_edge_more_never_lowers_the_connectivity():
    """T8, and Fiedler's bound (156), T23."""
    matrix = weighted_matrix(0, 8)
    before = float(graphs.from_adjacency(matrix).algebraic_connectivity())
    for k, m in np.argwhere(np.triu(matrix == 0, 1)):
        more = matrix.copy()
        more[k, m] = more[m, k] = 0.7
        assert np.linalg.eigvalsh(np.diag(more.sum(0)) - more)[1] >= before - 1e-12
    assert before <= 8 / 7 * matrix.sum(axis=0).min()
