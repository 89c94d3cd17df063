"""Exercises of Jung 2025: where each is answered, and those without test files of their own.

The tests here run the library on an exercise's numbers and compare with plain NumPy.
"""

import ast
import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import networkx
import numpy as np
import pytest

import fljax as fl
from fljax.optimization.descent import minimize
from fljax.problems import GTVMin, LeastSquares, Problem
from tests.reference import coupled, jung_agnostic
from tests.theory.test_networks import instance

close = np.testing.assert_allclose

HERE = "experiments/jung/test_exercises.py"
NETWORKS = "theory/test_networks.py"

#: Every exercise: the tests that answer it, as ``file::test``, or why none does.
ANSWERS = {
    "1.1": "a discussion, without a number",
    "1.2": "a derivation, and arithmetic without a part in the library",
    "1.3": ["problems/test_validation.py::test_the_books_small_regressions"],
    "1.4": ["problems/test_validation.py::test_the_books_small_regressions"],
    "2.1": [f"{HERE}::test_exercise_2_1_least_squares_has_the_minimax_risk"],
    "2.2": "a derivation: they are unique up to signs if and only if the eigenvalues are distinct",
    "2.3": ["problems/test_validation.py::test_ridge_is_least_squares_on_more_data"],
    "2.4": [
        f"{HERE}::test_exercise_2_4_interpolation_does_not_raise_the_error_of_linear_models",
        f"{HERE}::test_exercise_2_4_interpolation_raises_the_error_of_a_quadratic",
    ],
    "2.5": ["problems/test_validation.py::test_ridge_is_least_squares_on_more_data"],
    "3.1": [f"{NETWORKS}::test_bounds_are_reached"],
    "3.2": ["graphs/test_relearned.py::test_components_span_the_null_space"],
    "3.3": ["graphs/test_failures.py::test_null_spaces_of_laplacians"],
    "3.4": ["graphs/test_failures.py::test_null_spaces_of_laplacians"],
    "3.5": [f"{NETWORKS}::test_spectra_of_small_graphs"],
    "3.6": "not answered: the sizes and capacities are in a picture that the text does not have",
    "3.7": [
        "problems/test_clustering.py::test_scaled_unit_vectors_make_predictions_as_far_as_models"
    ],
    "3.8": [f"{HERE}::test_exercise_3_8_predictions_are_enough_for_the_discrepancy"],
    "3.9": [f"{HERE}::test_exercise_3_9_when_the_matrix_of_gtvmin_is_invertible"],
    "3.10": [f"{HERE}::test_exercise_3_10_squares_have_a_solution_and_not_every_convex_loss"],
    "3.11": ["problems/test_gtv.py::test_exercises_of_denoising_and_of_a_silent_center"],
    "3.12": ["problems/test_gtv.py::test_exercises_of_denoising_and_of_a_silent_center"],
    "3.13": [f"{HERE}::test_exercise_3_13_two_rounds_reach_two_hops_and_algorithm_4_one"],
    "3.14": [f"{HERE}::test_exercise_3_14_repeated_sums_over_neighbors_count_paths"],
    "3.15": [f"{HERE}::test_exercise_3_15_the_proximal_operator_of_a_quadratic_function"],
    "4.1": [f"{HERE}::test_exercise_4_1_a_schedule_that_satisfies_78_and_fails"],
    "4.2": [f"{HERE}::test_exercise_4_2_exponents_from_one_half_to_one_satisfy_78"],
    "4.3": [f"{HERE}::test_exercise_4_3_online_descent_reaches_the_noise_floor_of_its_schedule"],
    "4.4": ["optimization/test_descent.py::test_consensus_is_reached_by_descent_on_the_laplacian"],
    "4.5": [f"{HERE}::test_exercise_4_5_gradient_descent_on_gtvmin_computes_the_average"],
    "4.6": ["optimization/test_descent.py::test_bits_are_best_spent_late"],
    "4.7": ["theory/test_operators.py::test_gradient_steps_equal_their_definition"],
    "5.1": [
        "algorithms/peers/test_fedgd.py::test_two_nodes_contract_as_in_the_book",
        "theory/test_network_rates.py::test_the_exercise_on_the_speed_of_gradient_methods",
    ],
    "5.2": ["theory/test_network_rates.py::test_a_start_with_the_right_mean_is_not_slowed_down"],
    "5.3": [f"{HERE}::test_exercise_5_3_fedrelax_trains_on_an_augmented_data_set"],
    "5.4": ["theory/test_operators.py::test_a_round_is_the_operator_of_the_equations"],
    "5.5": "a derivation: of two fixed points one would be nearer to the other than it is",
    "5.6": [f"{HERE}::test_exercise_5_6_fedrelax_is_the_prox_at_the_neighbors_mean"],
    "5.7": ["algorithms/peers/test_networked_iteration.py::test_a_custom_operator"],
    "5.8": [f"{HERE}::test_exercise_5_8_fedsgd_is_an_iteration_with_random_operators"],
    "5.9": [f"{HERE}::test_exercise_5_9_fedrelax_is_an_iteration_of_regressions"],
    "6.1": [
        "problems/test_gtv.py::test_zero_coupling_is_local_learning_and_strong_coupling_is_one_model"
    ],
    "6.2": ["problems/test_vertical.py::test_gtv_minimization_covers_it"],
    "7.1": [
        (
            "graphs/test_nearest.py"
            "::test_neighborhoods_contain_the_other_kind_at_the_predicted_frequency"
        )
    ],
    "8.1": [
        f"{HERE}::test_exercise_8_1_an_added_edge_is_a_rank_one_change",
        f"{HERE}::test_exercise_8_1_edges_help_within_a_cluster_and_harm_between_two",
        "contrib/test_sensitivity.py::test_sensitivities_equal_the_loops",
    ],
    "8.2": ["problems/test_explanation.py::test_a_signal_helps_if_it_is_right"],
    "9.1": ["contrib/test_queries.py::test_d_plus_one_exchanges_give_the_loss_and_the_station"],
    "9.2": [
        (
            "contrib/test_features.py"
            "::test_exercise_9_2_a_discriminant_without_information_on_an_attribute"
        )
    ],
    "9.3": ["experiments/jung/test_audit.py::test_exercises_9_3_and_9_4_on_the_records"],
    "9.4": ["experiments/jung/test_audit.py::test_exercises_9_3_and_9_4_on_the_records"],
    "9.5": ["experiments/jung/test_funnel.py::test_exercise_9_5_by_scikit_learn"],
    "10.1": [
        "audit/test_inversion.py::test_gradient_descent_reports_the_local_loss",
        f"{HERE}::test_exercise_10_1_gradients_do_not_distinguish_rotated_samples",
    ],
    "10.2": ["experiments/jung/test_figure_attacks.py::test_exercises_compute_their_answers"],
    "10.3": ["experiments/jung/test_figure_attacks.py::test_exercises_compute_their_answers"],
    "10.4": [f"{HERE}::test_exercise_10_4_the_absolute_error_ignores_how_far_a_label_is"],
}

#: Figures of the book that show an effect and that no figure of the experiments draws.
FIGURES = {
    "9.2": "a drawing: five points and the regions of a tree, without coordinates; that a label is "
    "known which all training points of a region have holds for every tree without errors",
    "10.3": [f"{HERE}::test_figure_10_3_poisoned_data_change_a_model_after_its_distance"],
}

#: The number of exercises of each chapter.
EXERCISES = {1: 4, 2: 5, 3: 15, 4: 7, 5: 9, 6: 2, 7: 1, 8: 2, 9: 5, 10: 4}


@functools.cache
def names_of_tests(file):
    tree = ast.parse((Path(__file__).parents[2] / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_exercise_is_answered_by_a_test_that_exists_or_by_a_reason():
    book = [f"{chapter}.{n}" for chapter, last in EXERCISES.items() for n in range(1, last + 1)]
    assert list(ANSWERS) == book
    for answer in (*ANSWERS.values(), *FIGURES.values()):
        if isinstance(answer, list):
            for test in answer:
                file, name = test.split("::")
                assert name in names_of_tests(file), test
    answered = [test for answer in ANSWERS.values() if isinstance(answer, list) for test in answer]
    here = {f"{HERE}::{name}" for name in names_of_tests(HERE) if name.startswith("test_exercise_")}
    assert here <= set(answered)


# 2.1: fundamental limits of linear regression ----------------------------------------------------

FEATURES = 3
SAMPLES = 12
LABEL_NOISE = 0.7  # its variance


def mean_excess_risk(key, truths, ridge=None, clients=20_000):
    """The mean squared distance of trained models from the truth, and its standard error.

    Features are N(0, I), so that this distance is the risk beyond the variance of the noise.
    """
    k_features, k_noise = jax.random.split(key)
    features = jax.random.normal(k_features, (clients, SAMPLES, FEATURES))
    noise = LABEL_NOISE**0.5 * jax.random.normal(k_noise, (clients, SAMPLES))
    targets = jnp.einsum("knp,kp->kn", features, truths) + noise
    models = fl.problems.train(Problem(features, targets, LeastSquares()), ridge=ridge)
    risk = np.sum((np.asarray(models) - truths) ** 2, axis=1)
    return risk.mean(), risk.std() / clients**0.5


@pytest.mark.slow
def test_exercise_2_1_least_squares_has_the_minimax_risk():
    """With Gaussian features it is noise * (1 + P / (N - P - 1)), Mourtada 2022, Theorem 1.

    Least squares has this risk for every truth. No method does better for all: the mean risk of the
    best method for truths of a prior comes near it as the prior becomes wide.
    """
    minimax = LABEL_NOISE * FEATURES / (SAMPLES - FEATURES - 1)
    rng = np.random.default_rng(0)
    shape = (20_000, FEATURES)
    key = jax.random.key(0)
    for truths in (np.zeros(shape), np.full(shape, 5.0), 30 * rng.normal(size=shape)):
        risk, error = mean_excess_risk(key, truths)
        assert abs(risk - minimax) < 4 * error
    zero, _ = mean_excess_risk(key, np.zeros(shape), ridge=0.1)
    far, _ = mean_excess_risk(key, np.full(shape, 5.0), ridge=0.1)
    assert zero < 0.8 * minimax
    assert far > 2 * minimax
    bayes = []
    for width in (0.5, 1.0, 5.0):
        ridge = LABEL_NOISE / (SAMPLES * width**2)
        risk, error = mean_excess_risk(key, width * rng.normal(size=shape), ridge)
        assert risk < minimax + 4 * error
        bayes.append(risk)
    assert (np.diff(bayes) > 0).all()
    assert bayes[0] < 0.75 * minimax
    assert bayes[-1] > 0.97 * minimax


# 2.4: data augmentation by linear interpolation -------------------------------------------------


def interpolated(x, y, steps=100):
    """The given points and points on the segments between all ordered pairs."""
    share = np.arange(steps) / steps
    pairs = [(a, b) for a in range(len(x)) for b in range(len(x)) if a != b]
    rows = [x[a] + share[:, None] * (x[b] - x[a]) for a, b in pairs]
    labels = [y[a] + share * (y[b] - y[a]) for a, b in pairs]
    return np.concatenate([x, *rows]), np.concatenate([y, *labels])


def training_error(x, y):
    problem = Problem(x[None], y[None], LeastSquares())
    return float(problem.mean_loss(fl.problems.train(problem))[0])


@pytest.mark.slow
@pytest.mark.parametrize("samples", [4, 9])
def test_exercise_2_4_interpolation_does_not_raise_the_error_of_linear_models(samples):
    """A squared error is convex along a segment: its mean there is at most that of the ends."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(samples, 3))
        y = rng.normal(size=samples)
        assert training_error(*interpolated(x, y)) <= training_error(x, y) + 1e-12


@pytest.mark.slow
def test_exercise_2_4_interpolation_raises_the_error_of_a_quadratic():
    """Labels that are a square are fitted by squares, until points between them are added."""
    x = np.array([-1.0, 0.0, 1.0])
    y = np.array([1.0, 0.0, 1.0])
    more_x, more_y = interpolated(x[:, None], y)
    squares = [np.stack([np.ones_like(v), v, v**2], axis=1) for v in (x, more_x[:, 0])]
    assert training_error(squares[0], y) < 1e-20
    assert training_error(squares[1], more_y) > 1e-3


# 3.8: discrepancies from predictions alone -------------------------------------------------------


def test_exercise_3_8_predictions_are_enough_for_the_discrepancy():
    """Two nodes that exchange predictions at public points compute (64); features stay private."""
    rng = np.random.default_rng(1)
    points = rng.normal(size=(7, 4))
    data = [(rng.normal(size=(n, 4)), rng.normal(size=n)) for n in (9, 6)]
    problem = fl.problems.from_clients(data, LeastSquares())
    simulation = fl.Simulation(
        problem,
        fl.algorithms.ModelAgnosticFedRelax(0.0, points),
        fl.graphs.path(2),
        metrics=[fl.metrics.trajectory("received", ("client", "point"))],
    )
    run = fl.run(simulation, rounds=1)
    models = np.stack([np.linalg.lstsq(x, y)[0] for x, y in data])
    exact = np.mean((points @ models[0] - points @ models[1]) ** 2)
    for k in range(2):
        received = run.received_trajectory.values[0, k]
        known = np.stack([points @ run.model.values[k], received])  # by node k
        close(fl.problems.prediction_discrepancy(known)[0, 1], exact, rtol=1e-10)
    assert int(run.scalars[0]) == 2 * len(points)


# 3.9 and 3.10: solutions of GTVMin ---------------------------------------------------------------


def poor_instance(seed):
    """Clients whose samples determine some directions only, on a graph that may fall apart."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5, 2, 2)) * (rng.random((5, 1, 2)) < 0.4)
    targets = rng.normal(size=(5, 2))
    weights = np.triu(rng.random((5, 5)) < 0.35, 1) * rng.uniform(0.5, 2, (5, 5))
    weights = weights + weights.T
    return features, targets, weights


@pytest.mark.slow
def test_exercise_3_9_when_the_matrix_of_gtvmin_is_invertible():
    """A connected graph and an invertible mean of the clients' matrices suffice; by components
    they are necessary.
    """
    cases = set()
    for seed in range(60):
        features, targets, weights = poor_instance(seed)
        graph = fl.graphs.from_adjacency(weights, allow_disconnected=True)
        problem = Problem(features, targets, LeastSquares())
        bound = float(fl.theory.network_rates.smallest_bound(problem, graph, 0.7))
        Q, _ = coupled.system(features, targets, weights, 0.7)
        eigenvalues = np.linalg.eigvalsh(Q)
        invertible = bool(eigenvalues[0] > 1e-10)
        sufficient = bool(graph.connected()) and coupled.curvature(features)[1] > 1e-10
        assert (bound > 0) == sufficient
        assert bound <= eigenvalues[0] * (1 + 1e-9) or not sufficient
        labels = np.asarray(graph.components())
        by_components = all(
            np.linalg.matrix_rank(features[labels == label].reshape(-1, 2)) == 2
            for label in np.unique(labels)
        )
        assert invertible == by_components
        cases.add((sufficient, invertible))
        gtvmin = GTVMin(problem, graph, 0.7)
        if invertible:
            close(gtvmin.solve(), coupled.gtvmin(features, targets, weights, 0.7), atol=1e-9)
        else:
            with pytest.raises(ValueError, match="do not determine"):
                gtvmin.solve()
    assert cases == {(True, True), (False, True), (False, False)}


@pytest.mark.slow
def test_exercise_3_10_squares_have_a_solution_and_not_every_convex_loss():
    """1. and 3.: squares have a solution always, separable labels of logistic regression none."""
    singular = 0
    for seed in range(20):
        features, targets, weights = poor_instance(seed)
        Q, q = coupled.system(features, targets, weights, 0.7)
        solution, _, rank, _ = np.linalg.lstsq(Q, -q.ravel() / 2, rcond=1e-12)
        graph = fl.graphs.from_adjacency(weights, allow_disconnected=True)
        gtvmin = GTVMin(Problem(features, targets, LeastSquares()), graph, 0.7)
        models = solution.reshape(5, 2)
        close(gtvmin.gradient(models), 0, atol=1e-10)
        if rank < 10:
            singular += 1
            direction = np.linalg.svd(Q)[2][-1].reshape(5, 2)
            values = [gtvmin.objective(models + size * direction) for size in (0.0, 3.0)]
            close(*values, rtol=1e-10)
    assert 5 < singular < 20
    labels = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]])
    problem = Problem(labels[:, :, None], labels, fl.problems.Logistic())
    path = fl.graphs.path(3)
    with pytest.raises(RuntimeError, match="a loss without a minimum"):
        GTVMin(problem, path, 1.0).solve(iterations=300)
    # One label that contradicts the others gives all nodes of the component a solution.
    contradicted = Problem(labels[:, :, None], labels * [[1], [1], [-1]], fl.problems.Logistic())
    models = GTVMin(contradicted, path, 1.0).solve()
    close(GTVMin(contradicted, path, 1.0).gradient(models), 0, atol=1e-8)


# 3.13: fundamental limits ------------------------------------------------------------------------


def tree(depth):
    """A tree whose inner nodes have three neighbors: edges, and the number of nodes."""
    edges = []
    layer = [0]
    count = 1
    for level in range(depth):
        below = []
        for node in layer:
            for _ in range(3 if level == 0 else 2):
                edges.append((node, count))
                below.append(count)
                count += 1
        layer = below
    return edges, count


EDGES, NODES = tree(4)


@jax.jit
def root_after_two_rounds(labels, coupling, step_size):
    """Algorithm 4 from zero, by two calls of the algorithm's own step."""
    problem = Problem(jnp.ones((NODES, 1, 1)), labels[:, None], LeastSquares())
    algorithm = fl.algorithms.FedGD(coupling, step_size)
    network = fl.graphs.from_edges(NODES, EDGES)
    simulation = fl.Simulation(problem, algorithm, network)
    state = None
    for number in (1, 2):
        now = fl.view(simulation, key=0, round=number)
        state = algorithm.init(now.problem, now.network) if state is None else state
        state = algorithm.step(state, now)
    return state.model[0, 0]


def influence(coupling, step_size):
    """The weights of all nodes' numbers in the root's estimate, which is linear in them."""
    root_estimate = jax.vmap(lambda y: root_after_two_rounds(y, coupling, step_size))
    return np.asarray(root_estimate(jnp.eye(NODES)))


@pytest.mark.slow
def test_exercise_3_13_two_rounds_reach_two_hops_and_algorithm_4_one():
    """The variance of an unbiased estimate of ten numbers is 1/10 at least; of four, 1/4."""
    hops = np.eye(NODES)
    hops[tuple(np.transpose(EDGES))] = 1
    near = np.linalg.matrix_power(hops + hops.T, 2)[0] > 0
    assert near.sum() == 1 + 3 + 6
    least = np.inf
    for coupling in (0.1, 0.3, 0.5, 1.0, 2.0, 5.0):
        for step in (0.01, 0.03, 0.05, 0.1, 0.2, 0.3):
            share = influence(coupling, step)
            assert set(np.flatnonzero(np.abs(share) > 1e-12)) <= {0, 1, 2, 3}
            least = min(least, np.sum(share**2) / np.sum(share) ** 2)
    assert 0.25 <= least < 0.26
    assert least > 0.1


# 3.14: counting paths ----------------------------------------------------------------------------


def count_paths(neighbors, start, length):
    """By walking each of them."""
    if length == 0:
        return np.eye(len(neighbors), dtype=int)[start]
    return sum(count_paths(neighbors, near, length - 1) for near in neighbors[start])


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_exercise_3_14_repeated_sums_over_neighbors_count_paths(form):
    graph = fl.graphs.from_edges(5, [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)], form=form)
    neighbors = [[1, 2], [0, 2], [1, 0, 3], [2, 4], [3]]
    paths = jnp.eye(5)
    for length in range(1, 6):
        paths = graph.neighbor_sum(paths)
        walked = [count_paths(neighbors, start, length) for start in range(5)]
        np.testing.assert_array_equal(paths, walked)


# 3.15: the proximal operator of a quadratic function ---------------------------------------------


def test_exercise_3_15_the_proximal_operator_of_a_quadratic_function():
    """(2 Q + rho I)^-1 (rho w - q), of a Q that may be singular; it shrinks differences."""
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 6, 5))
    root[1, :, 2] = 0  # a singular Q
    targets = rng.normal(size=(4, 6))
    rho = np.array([0.1, 1.0, 3.0, 50.0])
    Q = np.einsum("knp,knq->kpq", root, root) / 6
    q = -2 / 6 * np.einsum("knp,kn->kp", root, targets)
    problem = Problem(root, targets, LeastSquares())
    factor = fl.problems.factorize(problem, rho)
    centers = rng.normal(size=(2, 4, 5))
    images = [np.asarray(fl.problems.prox(problem, factor, w, w)) for w in centers]
    for w, image in zip(centers, images, strict=True):
        for k in range(4):
            expected = np.linalg.solve(2 * Q[k] + rho[k] * np.eye(5), rho[k] * w[k] - q[k])
            close(image[k], expected, rtol=1e-10, atol=1e-12)
    moved = images[0] - images[1]
    inner = np.sum(moved * (centers[0] - centers[1]), axis=1)
    assert (np.sum(moved**2, axis=1) < inner).all()  # firmly non-expansive


# 4.1: a schedule that satisfies the conditions and fails -----------------------------------------


def test_exercise_4_1_a_schedule_that_satisfies_78_and_fails():
    """1/t: its sum is infinite and its squares' is finite, and steps on w^4 from 3 diverge."""
    schedule = fl.schedules.PowerDecay(1.0, 1.0)
    steps = np.asarray(jax.vmap(schedule)(jnp.arange(1, 100_001)))
    close(steps.sum(), np.log(100_000) + np.euler_gamma, atol=1e-4)
    close((steps**2).sum(), np.pi**2 / 6, atol=1e-4)

    def quartic(w):
        return w**4

    w = 3.0
    for t in range(1, 4):
        w = w - 4 * w**3 / t
    close(minimize(quartic, jnp.asarray(3.0), schedule, 3).point, w, rtol=1e-12)
    assert not np.isfinite(minimize(quartic, jnp.asarray(3.0), schedule, 30).point)
    assert minimize(quartic, jnp.asarray(0.5), schedule, 3000).value < 1e-4


# 4.2: exponents of schedules ---------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.4, 0.5, 0.6, 0.9, 1.0])
def test_exercise_4_2_exponents_from_one_half_to_one_satisfy_78(exponent):
    """An infinite sum has parts of ten times as many terms that do not fall; a finite one not."""
    schedule = fl.schedules.PowerDecay(1.0, exponent)
    steps = np.asarray(jax.vmap(schedule)(jnp.arange(1, 100_001)))

    def infinite(terms):
        return terms[10_000:].sum() > 0.99 * terms[1000:10_000].sum()

    assert infinite(steps)
    assert infinite(steps**2) == (exponent <= 0.5)
    with pytest.raises(ValueError, match="makes the sum of the steps finite"):
        fl.schedules.PowerDecay(1.0, 1.0 + exponent)


# 4.3: online gradient descent --------------------------------------------------------------------

DIM = 1
NOISE = 0.5
TRUTH = np.array([1.0])


def excess(schedule, rounds):
    """The exact mean of ||w - truth||^2, of independent Gaussian inputs: a recursion."""
    result = []
    error = TRUTH @ TRUTH
    for t in range(1, rounds + 1):
        eta = schedule(t)
        error = (1 - 4 * eta + 4 * eta**2 * (DIM + 2)) * error + 4 * eta**2 * DIM * NOISE
        result.append(error)
    return np.array(result)


SCHEDULES = {"fast": lambda t: 1 / (t + 5), "slow": lambda t: (1 / (t + 5)) ** 0.5}


@pytest.mark.slow
def test_exercise_4_3_online_descent_reaches_the_noise_floor_of_its_schedule():
    """The risk is the noise plus the squared distance; 1/t is better by its root, in the end."""
    rounds = 400
    records = (50, 400)
    stream = fl.streams.Linear(np.eye(DIM)[None], TRUTH, np.array([NOISE]))
    metric = fl.metrics.Metric("apart", lambda now: jnp.sum((now.model[0] - TRUTH) ** 2), "")
    for name, schedule in SCHEDULES.items():
        algorithm = fl.algorithms.OnlineFed(lambda t, s=schedule: 2 * s(t))  # its step has no 2
        results = fl.sweep(
            lambda key, a=algorithm: fl.Simulation(stream, a, metrics=[metric]),
            seeds=2000,
            rounds=rounds,
        )
        theory = excess(schedule, rounds)
        for number in records:
            runs = results.apart.sel(round=number).values
            error = runs.std() / np.sqrt(len(runs))
            assert abs(runs.mean() - theory[number - 1]) < 5 * error, name
    fast, slow = (excess(s, 4000) for s in SCHEDULES.values())
    assert fast[-1] < 0.2 * slow[-1]
    t = np.arange(1, 4001)
    # Upper bounds of the two orders: noise and start over t, and over its root.
    constant = DIM * NOISE + TRUTH @ TRUTH
    assert (fast <= 8 * constant / (t + 5)).all()
    assert (slow <= 8 * constant / np.sqrt(t + 5)).all()
    assert 3.5 < fast[999] / fast[3999] < 4.5
    assert 1.8 < slow[999] / slow[3999] < 2.2


# 4.5: the average by gradient descent on GTVMin --------------------------------------------------


@pytest.mark.slow
def test_exercise_4_5_gradient_descent_on_gtvmin_computes_the_average():
    """L_i(w) = (w - y_i)^2: near the average for a large alpha; with the norm as penalty, the
    average itself.
    """
    y = np.random.default_rng(4).normal(size=8)
    ring = fl.graphs.ring(8)
    laplacian = coupled.laplacian(np.asarray(ring.dense()))
    second = np.linalg.eigvalsh(laplacian)[1]
    problem = Problem(np.ones((8, 1, 1)), y[:, None], LeastSquares())
    spread = np.linalg.norm(y - y.mean())
    for alpha in (1.0, 30.0):
        simulation = fl.Simulation(problem, fl.algorithms.FedGD(alpha), ring)
        models = fl.run(simulation, rounds=3000).model.values[:, 0]
        close(models, np.linalg.solve(np.eye(8) + alpha * laplacian, y), atol=1e-10)
        close(models.mean(), y.mean(), atol=1e-10)
        distance = np.linalg.norm(models - y.mean())
        assert 0.2 * spread < distance * (1 + alpha * second) <= spread
    exact = GTVMin(problem, ring, 10.0, fl.problems.Norm()).solve()
    close(exact[:, 0], y.mean(), atol=1e-6)


# 5.3, 5.6, 5.8 and 5.9: updates as training and as operators -------------------------------------

RNG = np.random.default_rng(5)
NODES_DATA = [(RNG.normal(size=(n, 3)), RNG.normal(size=n)) for n in (9, 6, 5, 8)]
REGRESSIONS = fl.problems.from_clients(NODES_DATA, LeastSquares())
SQUARE = fl.graphs.from_edges(4, [(0, 1), (1, 2), (2, 3), (3, 0)], weights=[1.0, 0.5, 2.0, 0.3])
EDGE_WEIGHTS = np.asarray(SQUARE.dense())
DEGREES = EDGE_WEIGHTS.sum(axis=1)
ALPHA = 0.6
TEST_POINTS = RNG.normal(size=(7, 3))
MODELS = RNG.normal(size=(4, 3))


def operator_of(algorithm, problem=REGRESSIONS, key=0):
    return fl.theory.operators.operator(fl.Simulation(problem, algorithm, SQUARE), key)


def test_exercise_5_3_fedrelax_trains_on_an_augmented_data_set():
    """Plain training with added points: the test set, scaled, with the neighbors' predictions."""
    update = operator_of(fl.algorithms.ModelAgnosticFedRelax(ALPHA, TEST_POINTS))(MODELS)
    augmented = []
    for k, (x, y) in enumerate(NODES_DATA):
        neighbors = np.flatnonzero(EDGE_WEIGHTS[k])
        scales = np.sqrt(len(y) * ALPHA * EDGE_WEIGHTS[k, neighbors] / len(TEST_POINTS))
        rows = [scale * TEST_POINTS for scale in scales]
        labels = [
            scale * TEST_POINTS @ MODELS[near]
            for scale, near in zip(scales, neighbors, strict=True)
        ]
        augmented.append((np.concatenate([x, *rows]), np.concatenate([y, *labels])))
    trained = fl.problems.train(fl.problems.from_clients(augmented, LeastSquares()))
    close(update, trained, rtol=1e-10)


@pytest.mark.parametrize("loss", [LeastSquares(), fl.problems.Logistic()], ids=["square", "log"])
def test_exercise_5_6_fedrelax_is_the_prox_at_the_neighbors_mean(loss):
    """(123) and its rewritten form (171) have one minimizer."""
    data = [(x, np.sign(y)) for x, y in NODES_DATA]
    problem = fl.problems.from_clients(data, loss)
    update = operator_of(fl.algorithms.FedRelax(ALPHA, inner_iterations=3000), problem)(MODELS)
    mean = EDGE_WEIGHTS @ MODELS / DEGREES[:, None]
    factor = fl.problems.factorize(problem, 2 * ALPHA * DEGREES)
    close(update, fl.problems.prox(problem, factor, mean, MODELS, 3000), rtol=1e-7)
    for k, (x, y) in enumerate(data):
        margins = x @ np.asarray(update[k])
        slopes = (
            2 * (margins - y) if isinstance(loss, LeastSquares) else -y / (1 + np.exp(y * margins))
        )
        pulls = EDGE_WEIGHTS[k] @ (np.asarray(update[k]) - MODELS)
        close(x.T @ slopes / len(y) + 2 * ALPHA * pulls, 0, atol=1e-7)


def test_exercise_5_8_fedsgd_is_an_iteration_with_random_operators():
    """With one sample a batch, each node applies one of as many affine maps as it has samples;
    the mean of its maps is the map of FedGD.
    """
    step = 0.1
    drawn = operator_of(
        fl.algorithms.NetworkedFedSGD(ALPHA, step, batches=fl.batches.Uniform(1)), key=7
    )
    result = np.asarray(drawn(MODELS))
    pulls = DEGREES[:, None] * MODELS - EDGE_WEIGHTS @ MODELS
    maps = [
        [
            MODELS[k] - step * (2 * row * (row @ MODELS[k] - label) + 2 * ALPHA * pulls[k])
            for row, label in zip(x, y, strict=True)
        ]
        for k, (x, y) in enumerate(NODES_DATA)
    ]
    for k in range(4):
        distances = np.abs(np.array(maps[k]) - result[k]).max(axis=1)
        assert (distances < 1e-10).sum() == 1
    full = operator_of(fl.algorithms.FedGD(ALPHA, step))(MODELS)
    close(full, [np.mean(rows, axis=0) for rows in maps], rtol=1e-10)
    # The same draws at other models: an affine map.
    other = RNG.normal(size=(4, 3))
    middle = drawn((MODELS + other) / 2)
    close(middle, (result + np.asarray(drawn(other))) / 2, rtol=1e-9, atol=1e-12)


def test_exercise_5_9_fedrelax_is_an_iteration_of_regressions():
    """Algorithm 12: each operator is a regression whose labels are the neighbors' predictions; its
    iteration from any models comes to the solution of GTVMin for predictions.
    """
    algorithm = fl.algorithms.ModelAgnosticFedRelax(ALPHA, TEST_POINTS)
    simulation = fl.Simulation(REGRESSIONS, algorithm, SQUARE, metrics=[fl.metrics.trajectory()])
    rounds = fl.run(simulation, rounds=6).model_trajectory.values
    operator = operator_of(algorithm)
    models = np.zeros((4, 3))
    for expected in rounds:
        models = operator(models)
        close(models, expected, rtol=1e-9, atol=1e-12)
    best = jung_agnostic.predictions_gtvmin(NODES_DATA, EDGE_WEIGHTS, ALPHA, [TEST_POINTS] * 4)
    end = fl.theory.operators.fixed_point(operator, jnp.asarray(100 * MODELS))
    assert end.converged
    close(end.models, best, atol=1e-9)


# 8.1: edges that are added -----------------------------------------------------------------------


def with_edge(weights, ends, weight):
    more = weights.copy()
    more[ends] = more[ends[::-1]] = weights[ends] + weight
    return more


def solved(features, targets, weights, coupling):
    graph = fl.graphs.from_adjacency(weights)
    return np.asarray(GTVMin(Problem(features, targets, LeastSquares()), graph, coupling).solve())


@pytest.mark.slow
def test_exercise_8_1_an_added_edge_is_a_rank_one_change():
    """By Woodbury's formula: its ends come nearer, and however heavy it is, the solution does not
    move further than to equal models at its ends. The bounds (165) and (169) do not grow.
    """
    for seed in range(12):
        rng = np.random.default_rng(seed)
        features, targets, weights, coupling, truth, _ = instance(seed)
        nodes, _, dim = features.shape
        ends = tuple(rng.choice(nodes, 2, replace=False))
        Q, _ = coupled.system(features, targets, weights, coupling)
        difference_of = np.eye(nodes)[[ends[0]]] - np.eye(nodes)[[ends[1]]]
        edge = np.kron(difference_of, np.eye(dim))
        before = solved(features, targets, weights, coupling)
        difference = before[ends[0]] - before[ends[1]]
        response = np.linalg.solve(Q, edge.T)
        for weight in (0.5, 1e6):
            after = solved(features, targets, with_edge(weights, ends, weight), coupling)
            middle = np.eye(dim) / (coupling * weight) + edge @ response
            change = -response @ np.linalg.solve(middle, difference)
            close(after, before + change.reshape(before.shape), rtol=1e-6, atol=1e-7)
            apart = np.linalg.norm(after[ends[0]] - after[ends[1]])
            assert apart < np.linalg.norm(difference)
        assert apart < 1e-4 * np.linalg.norm(difference)
        problem = Problem(features, targets, LeastSquares())
        fewer, more = (
            fl.graphs.from_adjacency(table) for table in (weights, with_edge(weights, ends, 0.5))
        )
        for bound in (
            fl.theory.networks.deviation_bound,
            fl.theory.networks.common_error_bound,
        ):
            assert bound(problem, more, coupling, truth) <= bound(
                problem, fewer, coupling, truth
            ) * (1 + 1e-12)


@pytest.mark.slow
def test_exercise_8_1_edges_help_within_a_cluster_and_harm_between_two():
    """Ten nodes in two clusters with different models: the mean change of the squared error."""
    path = np.diag(np.ones(4), 1)
    cluster = path + path.T
    weights = np.kron(np.eye(2), cluster)
    weights[0, 5] = weights[5, 0] = 0.01
    changes = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        truth = np.repeat(rng.normal(size=(2, 2)), 5, axis=0)
        features = rng.normal(size=(10, 6, 2))
        targets = np.einsum("knp,kp->kn", features, truth) + rng.normal(size=(10, 6))

        def error(table, data=(features, targets), truth=truth):
            return np.sum((solved(*data, table, 0.3) - truth) ** 2)

        added = [error(with_edge(weights, ends, 3.0)) for ends in ((0, 4), (2, 7))]
        changes.append(np.array(added) - error(weights))
    mean = np.mean(changes, axis=0)
    margin = 3 * np.std(changes, axis=0) / len(changes) ** 0.5
    assert mean[0] < -margin[0]
    assert mean[1] > margin[1]


# 10.1: model inversion ---------------------------------------------------------------------------


def test_exercise_10_1_gradients_do_not_distinguish_rotated_samples():
    """Data sets whose samples are rotated have the same gradients, which determine Q and q only."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(8, 3))
    y = rng.normal(size=8)
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    losses = []
    for features, targets in ((x, y), (turned @ x, turned @ y)):
        problem = Problem(features[None], targets[None], LeastSquares())
        models = [jnp.zeros(3)]
        gradients = []
        for _ in range(4):
            gradients.append(problem.gradient(models[-1][None])[0])
            models.append(models[-1] - 0.1 * gradients[-1])
        losses.append(fl.audit.quadratic(np.stack(models[:-1]), np.stack(gradients)))
    for loss in losses:
        close(loss.second_moment, x.T @ x / 8, atol=1e-9)
        close(loss.linear, -2 * x.T @ y / 8, atol=1e-9)
    assert np.abs(turned @ x - x).max() > 0.5


# Figure 10.3: poisoned data ----------------------------------------------------------------------


def random_network():
    return fl.graphs.random_connected(jax.random.key(8), 12, mean_degree=2.5)


@pytest.mark.parametrize("network", [fl.graphs.path(3), fl.graphs.path(6), random_network()])
@pytest.mark.parametrize("algorithm", [fl.algorithms.FedRelax(0.5), fl.algorithms.FedGD(0.5, 0.05)])
def test_figure_10_3_poisoned_data_change_a_model_after_its_distance(network, algorithm):
    """The first node's data are poisoned: its model changes in the first round, and after one more
    round for every edge on the way to them the others' change, all of them after the diameter.
    """
    distance = networkx.single_source_shortest_path_length(network.to_networkx(), 0)
    assert max(distance.values()) >= 2
    problem = fl.problems.least_squares(jax.random.key(7), len(distance), samples=5, dim=2)
    poisoned = dataclasses.replace(problem, targets=problem.targets.at[0].add(10.0))

    def models(data):
        metrics = [fl.metrics.trajectory()]
        simulation = fl.Simulation(data, algorithm, network, metrics=metrics)
        return np.asarray(fl.run(simulation, rounds=16).model_trajectory)

    clean, attacked = models(problem), models(poisoned)
    changed = (clean != attacked).any(axis=-1)  # [rounds, K]
    for node, edges in distance.items():
        assert not changed[:edges, node].any()
        assert changed[edges:, node].all()


# 10.4: robust losses -----------------------------------------------------------------------------


@pytest.mark.slow
def test_exercise_10_4_the_absolute_error_ignores_how_far_a_label_is():
    """The fifth of five points is above the line, and moves further up."""
    x = np.array([0.0, 1.0, 2.5, 3.2, 5.0])
    y = np.array([0.1, 1.2, 1.9, 3.05, 6.0])
    features = np.stack([np.ones(5), x], axis=1)
    lines = []
    for rise in (0.0, 0.5):
        targets = y + rise * (x == 5)
        # Some line with the least absolute error goes through two of the points.
        pairs = [[first, second] for first in range(5) for second in range(first)]
        through = [np.linalg.solve(features[pair], targets[pair]) for pair in pairs]
        errors = [np.abs(features @ line - targets).sum() for line in through]
        best = through[np.argmin(errors)]
        assert np.diff(np.sort(errors)[:2]) > 0.05  # so that it is the only one
        absolute, squared = (
            np.asarray(fl.problems.optimum(Problem(features[None], targets[None], loss)))
            for loss in (fl.problems.LeastAbsoluteDeviation(), LeastSquares())
        )
        close(absolute, best, atol=1e-6)
        close(squared, np.polyfit(x, targets, 1)[::-1], rtol=1e-10)
        assert targets[4] > absolute @ features[4] + 0.3
        lines.append((absolute, squared))
    close(lines[0][0], lines[1][0], atol=1e-6)
    assert lines[1][1][1] > lines[0][1][1] + 0.05
