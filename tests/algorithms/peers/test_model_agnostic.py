"""Model-agnostic learning (Jung 2025, Algorithms 3 and 12): linear models, learners on the host."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import fljax as fl
from fljax.algorithms import FedRelax, GeneralizedGradient, ModelAgnosticFedRelax
from fljax.problems import LeastSquares, SquaredL2, from_clients
from tests.reference import jung_agnostic as loops

RNG = np.random.default_rng(0)
SIZES = (9, 2, 5, 1)
DIM = 4
POINTS = 7
COUPLING = 0.6
DATA = [(RNG.normal(size=(n, DIM)), RNG.normal(size=n)) for n in SIZES]
PROBLEM = from_clients(DATA, LeastSquares())
GRAPH = fl.graphs.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)], weights=[1.0, 0.5, 2.0, 0.3])
ADJACENCY = np.asarray(GRAPH.dense())
TEST_SET = RNG.normal(size=(POINTS, DIM))


def run(algorithm, problem=PROBLEM, network=GRAPH, rounds=5, **parts):
    simulation = fl.Simulation(
        problem,
        algorithm,
        network,
        metrics=[fl.metrics.trajectory(), *parts.pop("more", ())],
        **parts,
    )
    return fl.run(simulation, rounds=rounds)


@pytest.mark.thin(1)
@pytest.mark.parametrize("per_node", [False, True], ids=["shared", "of each node"])
def test_linear_models_equal_the_loop(per_node):
    """Few samples and few points, too, where models of least norm are taken."""
    points = RNG.normal(size=(4, 2, DIM)) if per_node else TEST_SET
    theirs = loops.model_agnostic_fedrelax(
        DATA, ADJACENCY, COUPLING, points if per_node else [points] * 4, 5
    )
    ours = run(ModelAgnosticFedRelax(COUPLING, points))
    np.testing.assert_allclose(ours.model_trajectory, theirs, atol=1e-10)
    assert int(ours.scalars[0]) == 8 * len(points[0] if per_node else points)


@pytest.mark.slow
def test_rounds_end_where_their_quadratic_is_least():
    """(66) with (65): to 1e-10, which is also what errors are measured from."""
    points = [TEST_SET] * 4
    best = loops.predictions_gtvmin(DATA, ADJACENCY, COUPLING, points)
    ours = run(ModelAgnosticFedRelax(COUPLING, TEST_SET), rounds=400, more=["normalized_error"])
    np.testing.assert_allclose(ours.model, best, atol=1e-10)
    assert ours.normalized_error[-1] < 1e-20
    ridge = dataclasses.replace(PROBLEM, regularizer=SquaredL2(), strength=0.4)
    best = loops.predictions_gtvmin(DATA, ADJACENCY, COUPLING, points, ridge=0.1)
    results = run(ModelAgnosticFedRelax(COUPLING, TEST_SET), ridge, rounds=400)
    np.testing.assert_allclose(results.model, best, atol=1e-10)


@pytest.mark.slow
def test_features_of_each_nodes_own_are_columns_of_zeros_elsewhere():
    """A node of two features and one of three meet in predictions alone."""
    raw = [RNG.normal(size=(n, 2)) for n in (6, 8)]
    maps = [lambda x: x, lambda x: np.stack([x[:, 0], x[:, 1], x[:, 0] * x[:, 1]], 1)]
    pad = lambda x: np.pad(x, ((0, 0), (0, 3 - x.shape[1])))  # noqa: E731
    data = [(pad(f(x)), RNG.normal(size=len(x))) for f, x in zip(maps, raw, strict=True)]
    tests = RNG.normal(size=(5, 2))
    points = np.stack([pad(f(tests)) for f in maps])
    problem = from_clients(data, LeastSquares())
    pair = fl.graphs.path(2)
    ours = run(ModelAgnosticFedRelax(1.0, points), problem, pair)
    theirs = loops.model_agnostic_fedrelax(data, np.asarray(pair.dense()), 1.0, points, 5)
    np.testing.assert_allclose(ours.model_trajectory, theirs, atol=1e-10)
    assert np.all(ours.model[0, 2] == 0)


@pytest.mark.slow
def test_with_isotropic_shared_points_it_is_fedrelax():
    sizes = (9, 6, 5, 8)
    data = [(RNG.normal(size=(n, DIM)), RNG.normal(size=n)) for n in sizes]
    problem = from_clients(data, LeastSquares())
    relaxed = run(FedRelax(COUPLING), problem).model_trajectory
    turned = DIM**0.5 * np.linalg.qr(RNG.normal(size=(DIM, DIM)))[0]
    for points in (None, turned, np.concatenate([turned, -turned])):
        ours = run(ModelAgnosticFedRelax(COUPLING, points), problem).model_trajectory
        np.testing.assert_allclose(ours, relaxed, atol=1e-10)


@pytest.mark.filterwarnings("ignore::fljax.AssumptionWarning")
@pytest.mark.slow
def test_a_node_without_neighbors_or_labels_is_handled():
    alone = fl.graphs.from_edges(4, [(0, 1), (1, 2)], allow_disconnected=True)
    results = run(
        ModelAgnosticFedRelax(COUPLING, TEST_SET),
        PROBLEM.weighing([1.0, 1.0, 0.0, 1.0]),
        alone,
        rounds=900,
        allow_disconnected=True,
    ).model.values
    np.testing.assert_allclose(results[3], np.linalg.pinv(DATA[3][0]) @ DATA[3][1], atol=1e-10)
    np.testing.assert_allclose(TEST_SET @ results[2], TEST_SET @ results[1], atol=1e-8)


def test_generalized_steps_are_those_of_the_loop_and_of_the_prox():
    """(96), and (93) where the test set is isotropic."""
    ours = run(GeneralizedGradient(0.7, TEST_SET), network=None)
    for k, (x, y) in enumerate(DATA):
        theirs = loops.generalized_gradient(x, y, 0.7, TEST_SET, 5)
        np.testing.assert_allclose(ours.model_trajectory[:, k], theirs, atol=1e-10)
    ours = run(GeneralizedGradient(0.7), network=None)
    w = np.zeros(DIM)
    x, y = DATA[0]
    for n in range(5):
        w = np.linalg.solve(
            2 * x.T @ x / len(y) + np.eye(DIM) / 0.7, 2 * x.T @ y / len(y) + w / 0.7
        )
        np.testing.assert_allclose(ours.model_trajectory[n, 0], w, atol=1e-10)


# Learners on the host -----------------------------------------------------------------------------

KINDS = [
    DecisionTreeRegressor(max_depth=2, random_state=0),
    Ridge(0.3),
    Ridge(2.0, fit_intercept=False),
    DecisionTreeRegressor(max_depth=3, min_samples_leaf=2, random_state=1),
]


def learner(k):
    return type(KINDS[k])(**KINDS[k].get_params())


HELD_OUT = RNG.normal(size=(6, DIM)), RNG.normal(size=6)


def test_learners_of_each_node_equal_the_loop():
    """Trees next to ridge regression on ragged data; errors of each node; the fitted learners."""
    algorithm = ModelAgnosticFedRelax(COUPLING, TEST_SET, KINDS)
    problem = PROBLEM.with_test(*HELD_OUT)
    labels = fl.metrics.trajectory("labels", ("client", "point"))
    simulation = fl.Simulation(
        problem,
        algorithm,
        GRAPH,
        metrics=[
            fl.metrics.trajectory(dims=("client", "point")),
            labels,
            "validation_error",
            "train_error",
            "test_error",
        ],
    )
    ours = fl.run(simulation, rounds=4)
    predictions, judged = loops.host_fedrelax(
        learner, DATA, ADJACENCY, COUPLING, TEST_SET, 4, held_out=HELD_OUT[0]
    )
    np.testing.assert_allclose(ours.model_trajectory, predictions, atol=1e-10)
    errors = np.mean((judged - HELD_OUT[1]) ** 2, axis=2)
    np.testing.assert_allclose(ours.validation_error, errors, atol=1e-10)
    np.testing.assert_allclose(ours.test_error, errors.mean(1), atol=1e-10)
    fitted = algorithm.learned(problem, GRAPH, ours.labels_trajectory[-1].values)
    for k, fitted_learner in enumerate(fitted):
        assert type(fitted_learner) is type(KINDS[k])
        np.testing.assert_allclose(fitted_learner.predict(HELD_OUT[0]), judged[-1, k], atol=1e-10)
        x, y = DATA[k]
        error = np.mean((fitted_learner.predict(x) - y) ** 2)
        np.testing.assert_allclose(ours.train_error[-1, k], error, atol=1e-10)
    assert not hasattr(KINDS[0], "tree_"), "a learner that was given must not be fitted"
    assert np.abs(predictions[-1] - predictions[0]).max() > 1e-2


def medians(k):
    return DecisionTreeRegressor(
        criterion="absolute_error", max_depth=2, min_samples_leaf=2, random_state=k
    )


SIGNED = [(x, np.where(np.arange(len(y)) % 2, 1.0, np.sign(y))) for x, y in DATA]


def classifiers(k):
    return DecisionTreeClassifier(max_depth=1 + k % 2, random_state=0)


@pytest.mark.parametrize(
    ("make", "data"), [(medians, DATA), (classifiers, SIGNED)], ids=["medians", "classes"]
)
def test_labels_of_each_neighbor_equal_the_loop(make, data):
    """(64) of any loss: of absolute errors, and of classes, which have no mean."""
    problem = from_clients(data, LeastSquares())
    algorithm = ModelAgnosticFedRelax(COUPLING, TEST_SET, [make(k) for k in range(4)], pooled=False)
    metrics = [
        fl.metrics.trajectory(dims=("client", "point")),
        fl.metrics.trajectory("labels", ("client", "slot", "point")),
    ]
    ours = fl.run(fl.Simulation(problem, algorithm, GRAPH, metrics=metrics), rounds=5)
    theirs = loops.host_fedrelax_64(make, data, ADJACENCY, COUPLING, TEST_SET, 5)
    np.testing.assert_allclose(ours.model_trajectory, theirs, atol=1e-10)
    assert int(ours.scalars[0]) == 8 * POINTS
    if make is classifiers:
        assert set(np.unique(ours.model_trajectory)) <= {-1.0, 1.0}
    fitted = algorithm.learned(problem, GRAPH, ours.labels_trajectory[-1].values)
    for k, learner in enumerate(fitted):
        np.testing.assert_array_equal(learner.predict(TEST_SET), theirs[-1, k])


@pytest.mark.slow
def test_with_squared_errors_neighbors_labels_equal_their_mean():
    """After the first exchange the two differ only by the first round's predictions."""
    kinds = [Ridge(0.3), Ridge(2.0), Ridge(0.1), Ridge(1.0)]
    algorithms = [
        ModelAgnosticFedRelax(COUPLING, TEST_SET, kinds, pooled=pooled) for pooled in (True, False)
    ]
    ends = [
        fl.run(fl.Simulation(PROBLEM, algorithm, GRAPH), rounds=150).model
        for algorithm in algorithms
    ]
    np.testing.assert_allclose(*ends, atol=1e-9)


@pytest.mark.slow
def test_labels_of_each_neighbor_meet_every_stage():
    """Late, lost, absent, noisy or attacked messages; a client that hears from no neighbor learns
    alone.
    """
    algorithm = ModelAgnosticFedRelax(COUPLING, TEST_SET, Ridge(0.3), pooled=False)
    stages = {
        "participation": fl.participation.Bernoulli(0.7),
        "losses": fl.link.Independent(0.3),
        "delays": fl.link.Geometric(0.3, 2),
        "attack": fl.attacks.SignFlip(np.array([True, False, False, False])),
    }
    model = fl.run(fl.Simulation(PROBLEM, algorithm, GRAPH, **stages), rounds=12).model
    assert np.all(np.isfinite(model))
    lost = {"losses": fl.link.Independent(1.0)}
    alone = fl.run(fl.Simulation(PROBLEM, algorithm, GRAPH, **lost), rounds=20).model
    uncoupled = ModelAgnosticFedRelax(0.0, TEST_SET, Ridge(0.3))
    one_round = fl.run(fl.Simulation(PROBLEM, uncoupled, GRAPH), rounds=1).model
    assert np.abs(alone - one_round).max() < np.abs(model - one_round).max()


def test_labels_of_each_neighbor_are_of_learners():
    with pytest.raises(ValueError, match="pooled=False makes no difference for linear models"):
        ModelAgnosticFedRelax(COUPLING, TEST_SET, pooled=False)
    algorithm = ModelAgnosticFedRelax(COUPLING, TEST_SET, Ridge(), pooled=False)
    with pytest.raises(ValueError, match="combines messages otherwise than by a mean"):
        fl.Simulation(PROBLEM, algorithm, GRAPH, aggregation=fl.aggregation.Median())


@pytest.mark.slow
def test_a_ridge_learner_is_a_linear_model_of_that_penalty():
    """One node by Algorithm 3, a network by Algorithm 12, with one learner for all."""
    problem = dataclasses.replace(PROBLEM, regularizer=SquaredL2(), strength=np.full(4, 0.3))
    ridge = Ridge(0.3, fit_intercept=False, solver="cholesky")
    for linear, network in (
        (ModelAgnosticFedRelax(COUPLING, TEST_SET), GRAPH),
        (GeneralizedGradient(0.7, TEST_SET), None),
    ):
        models = run(linear, problem, network).model.values
        host = dataclasses.replace(linear, learners=ridge)
        simulation = fl.Simulation(PROBLEM, host, network, metrics=["consensus_error"])
        predictions = fl.run(simulation, rounds=5).model
        np.testing.assert_allclose(predictions, models @ TEST_SET.T, atol=1e-10)


PARTS = {
    "participation": fl.participation.Bernoulli(0.6),
    "delays": fl.link.Geometric(0.4, 2),
    "losses": fl.link.Independent(0.3),
}


@pytest.mark.slow
def test_learners_work_with_absence_delays_and_robust_rules():
    """They equal the linear models on the same draws; seeds and couplings are axes of one study."""
    ridge = Ridge(0.3, fit_intercept=False, solver="cholesky")

    def scenario(key, coupling, learners):
        strength = np.full(4, 0.3)
        problem = dataclasses.replace(PROBLEM, regularizer=SquaredL2(), strength=strength)
        return fl.Simulation(
            PROBLEM if learners else problem,
            ModelAgnosticFedRelax(coupling, TEST_SET, ridge if learners else None),
            GRAPH,
            metrics=[fl.metrics.trajectory("received", ("client", "point"))],
            **PARTS,
        )

    def study(learners):
        return fl.sweep(
            lambda key, coupling: scenario(key, coupling, learners),
            grid={"coupling": [0.3, 1.0]},
            seeds=2,
            rounds=6,
            progress=False,
        )

    linear = study(False)
    host = study(True)
    np.testing.assert_allclose(host.received_trajectory, linear.received_trajectory, atol=1e-10)
    assert np.abs(linear.received_trajectory[:, 0] - linear.received_trajectory[:, 1]).max() > 1e-3
    assert host.attrs["compilations"] == 1


class Weightless:
    def fit(self, x, y):
        return self

    def predict(self, x):
        return x[:, 0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"learners": KNeighborsRegressor()},
            TypeError,
            "KNeighborsRegressor.fit takes no sample_w",
        ),
        ({"learners": [Ridge(), Weightless()]}, TypeError, "Weightless.fit takes no sample_weight"),
        ({"learners": Ridge}, TypeError, "object with fit and predict"),
        ({"learners": "tree"}, TypeError, "object with fit and predict, .*, got 'tree'"),
        ({"learners": []}, ValueError, "learners is empty"),
        ({"learners": Ridge(), "test_set": None}, ValueError, "give a test_set"),
        ({"learners": [Ridge()] * 3}, ValueError, "one for each of the 4 clients, got 3"),
        ({"test_set": np.ones((3, 2))}, ValueError, r"shape \[points, 4\], or \[4, points, 4\]"),
        ({"test_set": np.ones((3, 5, 4))}, ValueError, "test_set must have shape"),
        ({"test_set": np.ones(4)}, ValueError, "points of shape"),
    ],
)
def test_mismatched_parts_are_refused_with_a_message(arguments, error, message):
    with pytest.raises(error, match=message):
        fl.Simulation(
            PROBLEM, ModelAgnosticFedRelax(0.5, **{"test_set": TEST_SET} | arguments), GRAPH
        )


@pytest.mark.parametrize(
    "algorithm",
    [
        ModelAgnosticFedRelax(0.5, TEST_SET, Ridge()),
        GeneralizedGradient(0.5, TEST_SET, Ridge()),
    ],
)
def test_learners_take_no_start(algorithm):
    with pytest.raises(ValueError, match=r"no parameters to start at.*starting_at\(\)"):
        fl.Simulation(PROBLEM.starting_at(np.ones(PROBLEM.dim)), algorithm, GRAPH)


def test_learners_have_their_own_penalties_and_no_optimum():
    problem = dataclasses.replace(PROBLEM, regularizer=SquaredL2())
    algorithm = ModelAgnosticFedRelax(0.5, TEST_SET, Ridge())
    with pytest.raises(ValueError, match="not by the problem's SquaredL2"):
        fl.Simulation(problem, algorithm, GRAPH)
    with pytest.raises(ValueError, match="the optimum is not known for learners"):
        run(algorithm, more=["normalized_error"])
    with pytest.raises(ValueError, match="no learners"):
        ModelAgnosticFedRelax(0.5, TEST_SET).learned(PROBLEM, GRAPH, np.zeros((4, POINTS)))


def test_equal_new_learners_compile_nothing():
    def algorithm(depth):
        tree = DecisionTreeRegressor(max_depth=depth, random_state=0)
        return ModelAgnosticFedRelax(0.5, TEST_SET, tree)

    first, again, other = (jax.tree.structure(algorithm(depth)) for depth in (2, 2, 3))
    assert first == again != other
    assert jnp.shape(jax.tree.leaves(algorithm(2))[1]) == TEST_SET.shape
