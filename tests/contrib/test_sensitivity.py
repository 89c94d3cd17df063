"""What errors of labels do to GTVMin: closed forms against solutions, bounds on instances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.contrib import sensitivity as theory
from fljax.problems import GTVMin, LeastSquares, Problem
from fljax.theory import networks
from tests.reference import coupled as reference
from tests.reference import theory as statements
from tests.theory.test_networks import INSTANCES, D, K, N, close, graph, instance


@jax.jit
@jax.vmap
def found_of(features, targets, weights, coupling, truth, change):
    problem = Problem(features, targets, LeastSquares())
    network = graph(weights)
    arguments = problem, network, coupling
    models = GTVMin(*arguments).solve()
    moved = GTVMin(Problem(features, targets + change, LeastSquares()), *arguments[1:]).solve()
    parts = theory.estimation_error(models, truth)
    return {
        "models": models,
        "moved": moved - models,
        "shift": theory.label_shift(*arguments, change),
        "shift bound": theory.label_shift_bound(*arguments, change),
        "parts": parts,
        "squared": parts.squared,
        "common": statements.common_error(problem, truth, parts.deviation),
        "printed": statements.common_error(problem, truth, parts.deviation, printed=True),
        "deviation bound": networks.deviation_bound(*arguments, truth),
        "common bound": networks.common_error_bound(*arguments, truth),
    }


@pytest.fixture(scope="module")
def instances():
    """Instances and the library's sensitivities of all of them, by one program over all."""
    drawn = [instance(seed)[:5] for seed in range(INSTANCES)]
    rng = np.random.default_rng(1)
    changes = [10 ** rng.uniform(-1, 1) * rng.normal(size=(K, N)) for _ in drawn]
    stacked = [np.stack(arrays) for arrays in zip(*drawn, strict=True)]
    result = jax.tree.map(np.asarray, found_of(*stacked, np.stack(changes)))
    return [
        (*data, change, jax.tree.map(lambda a, n=n: a[n], result))
        for n, (data, change) in enumerate(zip(drawn, changes, strict=True))
    ]


def test_sensitivities_equal_the_loops(instances):
    for X, y, A, coupling, truth, change, result in instances[:60]:
        shift = reference.label_shift(X, change, A, coupling)
        close(result["shift"], shift)
        np.testing.assert_allclose(result["shift"], result["moved"], rtol=1e-8, atol=1e-9)
        close(result["shift bound"], reference.label_shift_bounds(X, change, A, coupling))
        models = reference.gtvmin(X, y, A, coupling)
        deviation = models - models.mean(axis=0)
        close(result["parts"].deviation, deviation)
        close(result["squared"], np.sum((models - truth) ** 2))
        error, bound = reference.common_error(X, y, truth, deviation)
        close(result["common"].error, models.mean(axis=0) - truth)
        close(result["common"].error, error)
        close(result["common"].bound, bound)
        close(result["printed"].bound, reference.common_error(X, y, truth, deviation, sign=1)[1])


def test_no_instance_violates_a_bound(instances):
    """T24-T26; (167) as printed is violated, and repaired it is reached."""
    ratios = {}

    def below(name, value, bound):
        ratios.setdefault(name, []).append(value / bound)

    for *_, result in instances:
        moved = np.sum(result["moved"] ** 2)
        below("8.1 sharp", moved, result["shift bound"].sharp)
        below("8.1 printed", moved, result["shift bound"].printed)
        common = np.sum(result["parts"].common ** 2)
        below("(165)", np.sum(result["parts"].deviation ** 2), result["deviation bound"])
        below("(167)", common, result["common"].bound)
        below("(167) printed", common, result["printed"].bound)
        below("(169)", common, result["common bound"])
    worst = {name: max(values) for name, values in ratios.items()}
    assert worst.pop("(167) printed") > 10  # a sign is wrong
    assert all(ratio <= 1 + 1e-9 for ratio in worst.values()), worst
    assert worst["(167)"] > 0.95
    assert worst["8.1 sharp"] > 3 * worst["8.1 printed"]
    assert worst["8.1 printed"] < 0.1  # proves, and predicts nothing


def test_every_step_from_167_to_169_is_a_bound(instances):
    """(166) and the four inequalities of (168), with their sign corrected."""
    ratios = []
    for X, y, _A, _coupling, truth, _change, result in instances[:100]:
        deviation = result["parts"].deviation
        # (166): the mean model is trained on all samples, less the predictions of the deviations.
        rest = y - np.einsum("knp,kp->kn", X, deviation)
        pooled = Problem(X.reshape(1, K * N, D), rest.reshape(1, K * N), LeastSquares())
        close(fl.problems.train(pooled)[0], result["models"].mean(axis=0))
        noise = y - X @ truth
        parts = [X[k].T @ noise[k] / N for k in range(K)]
        moved = [X[k].T @ X[k] @ deviation[k] / N for k in range(K)]
        gradients = np.array(parts) - np.array(moved)
        largest, smallest = reference.curvature(X)
        noises = np.mean(noise**2, axis=1)
        squares = 2 * np.sum(np.square(parts), axis=1) + 2 * np.sum(np.square(moved), axis=1)
        last = 2 * largest * noises + 2 * largest**2 * np.sum(deviation**2, axis=1)
        sizes = [
            np.linalg.norm(gradients.sum(axis=0)),
            np.linalg.norm(gradients, axis=1).sum(),
            np.sqrt(K * np.sum(gradients**2)),
            np.sqrt(K * squares.sum()),
            np.sqrt(K * last.sum()),
        ]
        bounds = (np.array(sizes) / (K * smallest)) ** 2
        close(result["common"].bound, bounds[0])
        bounds = np.append(bounds, result["common bound"])
        assert (bounds[1:] >= bounds[:-1] * (1 - 1e-9)).all()
        ratios.append(bounds[1:] / bounds[:-1])
    # (a), and the last step by (165), are nearly reached; the eigenvalue in (d) costs most.
    assert np.min(ratios, axis=0)[[0, 4]].max() < 1.05
    assert np.argmax(np.median(ratios, axis=0)) == 3


@pytest.mark.slow
def test_padding_regularizers_and_couplings_of_each_parameter():
    rng = np.random.default_rng(3)
    sizes = [4, 7, 5]
    data = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in sizes]
    change = np.zeros((3, 7))
    for k, n in enumerate(sizes):
        change[k, :n] = rng.normal(size=n)
    ridge = fl.problems.SquaredL2()
    problem = fl.problems.from_clients(data, LeastSquares(), ridge, 0.6)
    moved = [(X, y + shift[: len(y)]) for (X, y), shift in zip(data, change, strict=True)]
    other = fl.problems.from_clients(moved, LeastSquares(), ridge, 0.6)
    network = fl.graphs.path(3)
    coupling = np.array([0.0, 2.0])
    expected = GTVMin(other, network, coupling).solve() - GTVMin(problem, network, coupling).solve()
    close(theory.label_shift(problem, network, coupling, change), expected)
    wild = np.where(np.asarray(problem.weights) > 0, change, 1e3)
    close(theory.label_shift(problem, network, coupling, wild), expected)
    bound = theory.label_shift_bound(problem, network, 2.0, change)
    close(bound, theory.label_shift_bound(problem, network, 2.0, wild))


def test_uninformative_bounds_are_infinite():
    X, y, _, _, truth, _ = instance(0)
    problem = Problem(X, y, LeastSquares())
    edgeless = graph(np.zeros((K, K)))
    change = np.ones((K, N))
    assert np.all(np.isinf(theory.label_shift_bound(problem, edgeless, 1.0, change)))
    alone = theory.label_shift(problem, edgeless, 1.0, change)
    close(alone, [np.linalg.lstsq(x, e)[0] for x, e in zip(X, change, strict=True)])
    blind = Problem(X * np.array([1.0, 0.0]), y, LeastSquares())
    assert np.isinf(statements.common_error(blind, truth, np.zeros((K, D))).bound)


def test_bad_input():
    X, y, A, coupling = instance(0)[:4]
    problem = Problem(X, y, LeastSquares())
    network = graph(A)
    change = np.ones((K, N))
    for function in (theory.label_shift, theory.label_shift_bound):
        with pytest.raises(
            ValueError, match=r"change must be one for each label, of shape \(6, 5\)"
        ):
            function(problem, network, coupling, np.ones((K, N + 1)))
        with pytest.raises(ValueError, match="change"):
            function(problem, network, coupling, np.full((K, N), np.nan))
        with pytest.raises(ValueError, match="the network has 4 nodes, the problem 6"):
            function(problem, fl.graphs.ring(4), coupling, change)
        with pytest.raises(ValueError, match="coupling"):
            function(problem, network, -1.0, change)
        with pytest.raises(ValueError, match=r"squared (loss|regularizer)"):
            function(fl.problems.huber(jax.random.key(0), K, N, D), network, 1.0, change)
    with pytest.raises(ValueError, match=r"got shapes \(6, 2\) and \(3,\)"):
        theory.estimation_error(np.ones((K, D)), np.ones(3))


@pytest.mark.slow
def test_the_sensitivity_can_be_swept():
    """A change of labels that grows moves the solution in proportion."""
    X, y, A, coupling, _, _ = instance(0)
    problem = Problem(X, y, LeastSquares())
    network = graph(A)
    sizes = jnp.array([0.0, 1.0, 3.0])
    moved = jax.vmap(
        lambda size: theory.label_shift(problem, network, coupling, size * jnp.ones((K, N)))
    )(sizes)
    close(moved, sizes[:, None, None] * moved[1][None])
