"""Objectives, ragged data and minimizers against NumPy loops, CVXPY, SciPy and each other."""

import dataclasses

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

import fljax as fl
from fljax import problems
from fljax.problems import (
    L1,
    ElasticNet,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegularizer,
    Problem,
    Softmax,
    SquaredL2,
    factorize,
    from_clients,
    prox,
    synthetic,
)
from tests.reference import nfl

close = np.testing.assert_allclose
optimum = jax.jit(problems.optimum)  # so that its loops are compiled once a kind of problem
SIZES = (7, 4, 12, 9)

LOSSES = {
    "squared": LeastSquares(),
    "absolute": LeastAbsoluteDeviation(),
    "huber": Huber(0.7),
    "logistic": Logistic(),
    "softmax": Softmax(3),
}
SMOOTH = ("squared", "huber", "logistic", "softmax")
REGULARIZERS = {
    "none": NoRegularizer(),
    "l1": L1(),
    "l2": SquaredL2(),
    "elastic": ElasticNet(0.3, 0.2),
}
WEIGHTS = {"none": (0, 0), "l1": (1, 0), "l2": (0, 1), "elastic": (0.3, 0.2)}  # of |w|_1, |w|^2


def ragged(seed, sizes=SIZES, dim=3, loss="squared"):
    """Clients of different sizes, as ``(X_k, y_k)`` pairs."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim)
    data = []
    for size in sizes:
        X = rng.normal(size=(size, dim))
        y = X @ truth + 0.5 * rng.normal(size=size)
        if loss == "logistic":
            y = np.where(y > 0, 1.0, -1.0)
        if loss == "softmax":
            y = rng.integers(0, 3, size).astype(float)
        data.append((X, y))
    return data


def build(seed, loss="squared", regularizer="none", strength=0.8, **kwargs):
    data = ragged(seed, loss=loss, **kwargs)
    return from_clients(data, LOSSES[loss], REGULARIZERS[regularizer], strength)


def models(seed, problem):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(problem.clients, problem.dim)))


# Losses and regularizers -----------------------------------------------------------------------


def predictions(loss, rng, count=200):
    z = rng.normal(size=(count, 3) if loss == "softmax" else count) * 2
    y = {
        "softmax": lambda: rng.integers(0, 3, count).astype(float),
        "logistic": lambda: rng.choice([-1.0, 1.0], count),
    }.get(loss, lambda: rng.normal(size=count))()
    return jnp.asarray(z), jnp.asarray(y)


def log_softmax_loss(z, y):
    return np.log(np.exp(z).sum(-1)) - z[np.arange(len(z)), y.astype(int)]


@pytest.mark.thin(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_values_are_the_formulas(loss):
    z, y = predictions(loss, np.random.default_rng(0))
    r = np.asarray(z - y) if loss != "softmax" else None
    expected = {
        "squared": lambda: r**2,
        "absolute": lambda: np.abs(r),
        "huber": lambda: np.where(np.abs(r) <= 0.7, r**2 / 2, 0.7 * np.abs(r) - 0.7**2 / 2),
        "logistic": lambda: np.log(1 + np.exp(-np.asarray(y * z))),
        "softmax": lambda: log_softmax_loss(np.asarray(z), np.asarray(y)),
    }[loss]()
    close(LOSSES[loss].value(z, y), expected, rtol=1e-12)


@pytest.mark.thin(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_derivatives_are_those_of_the_values(loss):
    z, y = predictions(loss, np.random.default_rng(1))  # kinks have probability zero
    value = lambda z: jnp.sum(LOSSES[loss].value(z, y))  # noqa: E731
    close(LOSSES[loss].derivative(z, y), jax.grad(value)(z), rtol=1e-12, atol=1e-14)
    step = 1e-6 * np.eye(3)[:1] if loss == "softmax" else 1e-6
    difference = (LOSSES[loss].value(z + step, y) - LOSSES[loss].value(z - step, y)) / 2e-6
    derivative = LOSSES[loss].derivative(z, y)
    close(derivative[:, 0] if loss == "softmax" else derivative, difference, atol=1e-6)


@pytest.mark.thin(1)
@pytest.mark.parametrize("loss", LOSSES)
def test_slope_bound_and_curvature_bound_the_derivatives(loss):
    z, y = predictions(loss, np.random.default_rng(2), 1000)
    derivative = LOSSES[loss].derivative(z, y)
    size = jnp.linalg.norm(derivative, axis=-1) if loss == "softmax" else jnp.abs(derivative)
    bound = LOSSES[loss].slope_bound()
    assert float(size.max()) <= bound * (1 + 1e-12)
    if np.isfinite(bound):
        assert float(size.max()) > 0.9 * bound, "the bound is not tight"
    if loss in SMOOTH:
        hessian = jax.vmap(jax.hessian(LOSSES[loss].value))(z, y).reshape(len(z), -1)
        side = round(hessian.shape[1] ** 0.5)
        top = np.linalg.eigvalsh(np.asarray(hessian).reshape(-1, side, side))[:, -1].max()
        curvature = LOSSES[loss].curvature
        assert 0.9 * curvature < top <= curvature * (1 + 1e-9)


def test_subgradients_at_a_kink_are_zero():
    zero = jnp.zeros(2)
    close(LeastAbsoluteDeviation().derivative(zero, zero), 0)
    close(L1().gradient(zero), 0)
    close(ElasticNet(1.0, 1.0).gradient(zero), 0)


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
@pytest.mark.parametrize("step", [0.05, 0.8, 6.0])
def test_loss_prox_is_the_argmin(loss, step):
    points = np.array([-3.0, -0.71, -0.2, 0.0, 0.4, 1.1, 5.0])
    for point in points:
        objective = lambda r: (  # noqa: E731
            float(LOSSES[loss].value(jnp.asarray(r, float), jnp.asarray(0.3)))
            + (r - point) ** 2 / (2 * step)  # noqa: B023
        )
        best = optimize.minimize_scalar(objective, (-8, 8), options={"xtol": 1e-12}).x
        ours = LOSSES[loss].prox(jnp.asarray(point), jnp.asarray(0.3), jnp.asarray(step))
        close(ours, best, atol=1e-6)


@pytest.mark.parametrize("regularizer", REGULARIZERS)
def test_regularizer_value_gradient_and_prox(regularizer):
    R = REGULARIZERS[regularizer]
    (l1, l2) = WEIGHTS[regularizer]
    rng = np.random.default_rng(3)
    w = rng.normal(size=(6, 4))
    close(R.value(jnp.asarray(w)), l1 * np.abs(w).sum(1) + l2 * (w**2).sum(1), rtol=1e-12)
    close(R.gradient(jnp.asarray(w)), l1 * np.sign(w) + 2 * l2 * w, rtol=1e-12)
    step = jnp.asarray(0.9)
    x = cp.Variable((6, 4))
    penalty = l1 * cp.sum(cp.abs(x)) + l2 * cp.sum_squares(x)
    cp.Problem(cp.Minimize(0.9 * penalty + cp.sum_squares(x - w) / 2)).solve(
        cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
    )
    close(R.prox(jnp.asarray(w), step), x.value, atol=2e-6)
    quadratic = R.quadratic()
    assert (quadratic is None) == (l1 > 0)
    if quadratic is not None:
        assert quadratic == l2


# Stacked problems ------------------------------------------------------------------------------

ORACLE = [("squared", "elastic"), ("absolute", "l1"), ("logistic", "l2"), ("squared", "none")]


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(("loss", "regularizer"), ORACLE)
@pytest.mark.parametrize("clip", [None, 0.6])
def test_values_and_gradients_are_the_loops_over_samples(loss, regularizer, clip):
    data = ragged(4, loss=loss)
    problem = from_clients(data, LOSSES[loss], REGULARIZERS[regularizer], 0.8)
    problem = problem if clip is None else problem.clipped(clip)
    l1, l2 = WEIGHTS[regularizer]
    oracle = nfl.Objective(tuple(data), loss, l1, l2, 0.8, clip)
    w = models(5, problem)
    rows = [np.asarray(row) for row in w]
    for prepared in (problem, problem.prepare()):
        close(prepared.objective(w), [oracle.value(k, r) for k, r in enumerate(rows)], rtol=1e-12)
        expected = [oracle.gradient(k, r) for k, r in enumerate(rows)]
        close(prepared.gradient(w), expected, rtol=1e-11, atol=1e-13)
        norms = [np.linalg.norm(oracle.sample_gradients(k, r), axis=1) for k, r in enumerate(rows)]
        close(prepared.sample_gradient_norm(w), [n.max() for n in norms], rtol=1e-12)
    if clip is not None:
        unclipped = dataclasses.replace(oracle, clip=None)
        raw = [np.linalg.norm(unclipped.sample_gradients(k, r), axis=1) for k, r in enumerate(rows)]
        assert max(n.max() for n in raw) > clip > min(n.min() for n in raw)  # some, not all
        assert float(jnp.max(problem.sample_gradient_norm(w))) <= clip * (1 + 1e-12)


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("loss", SMOOTH)
@pytest.mark.parametrize("regularizer", ["none", "l2"])
def test_gradient_is_the_derivative_of_the_objective(loss, regularizer):
    problem = build(6, loss, regularizer)
    w = models(7, problem)
    gradient = jax.grad(lambda w: jnp.sum(problem.objective(w)))(w)
    close(problem.gradient(w), gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("bound", [0.5, 3.0])
def test_softmax_gradients_are_clipped_sample_by_sample(bound):
    problem = build(8, "softmax").clipped(bound)
    w = models(9, problem)
    per_sample = jax.vmap(jax.grad(lambda w, x, y: Softmax(3).value(w @ x, y)), (None, 0, 0))
    for k, size in enumerate(SIZES):
        rows = per_sample(w[k].reshape(3, 3), problem.features[k, :size], problem.targets[k, :size])
        rows = np.asarray(rows).reshape(size, -1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        expected = (rows * np.minimum(1, bound / norms)).mean(0)
        close(problem.loss_gradient(w)[k], expected, rtol=1e-11)
        close(problem.sample_gradient_norm(w)[k], min(norms.max(), bound), rtol=1e-12)


@pytest.mark.slow
def test_gram_and_samples_give_the_same_gradient():
    wide = build(10, dim=15)
    tall = build(10, dim=3)
    assert wide.prepare().statistics.gram is None
    assert tall.prepare().statistics.gram is not None
    assert tall.clipped(1.0).prepare().statistics.gram is None
    w = models(11, tall)
    assert not np.array_equal(tall.prepare().gradient(w), tall.gradient(w))  # two paths
    close(tall.prepare().gradient(w), tall.gradient(w), rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [None, 0.6])
@pytest.mark.parametrize("dim", [3, 15, 20])  # more samples than parameters, in all only, neither
def test_mean_gradient_is_the_mean_of_the_gradients(loss, clip, dim):
    problem = build(30, loss, "elastic", dim=dim)
    problem = problem if clip is None else problem.clipped(clip)
    w = models(31, problem)[0]
    expected = problem.gradient(jnp.tile(w, (problem.clients, 1))).mean(0)
    for ready in (problem, problem.prepare()):
        close(ready.mean_gradient(w), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("client", [-1, 4, 99])
def test_client_numbers_out_of_range_are_refused(key, client):
    problem = fl.problems.ridge(key, clients=4, samples=3, dim=2)
    with pytest.raises(ValueError, match=f"clients must be from 0 to 3, got {client}"):
        problem.take(jnp.array([0, client]))


@pytest.mark.slow
@pytest.mark.thin(1, every=24)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("clip", [None, 0.6])
def test_selected_clients_and_rows_form_separate_problems(loss, clip):
    """Against the same samples stacked again; a row past the end and padding have no weight."""
    data = ragged(32, loss=loss)
    clients = jnp.array([2, 0])
    rows = jnp.array([[0, 11, 3, 12], [6, 2, 7, 12]])
    problem = from_clients(data, LOSSES[loss], REGULARIZERS["elastic"], 0.8)
    problem = problem if clip is None else problem.clipped(clip)
    batch = [tuple(part[[0, 11, 3]] for part in data[2]), tuple(part[[6, 2]] for part in data[0])]
    for taken, same in (((clients,), [data[2], data[0]]), ((clients, rows), batch)):
        expected = from_clients(same, LOSSES[loss], REGULARIZERS["elastic"], 0.8 * 2 / 4)
        expected = expected if clip is None else expected.clipped(clip)
        w = models(33, expected)
        for result in (problem.take(*taken), problem.prepare().take(*taken)):
            for name in ("objective", "gradient", "sample_gradient_norm"):
                close(getattr(result, name)(w), getattr(expected, name)(w), rtol=1e-11, atol=1e-13)
    nothing = problem.take(clients, jnp.full((2, 3), 12))
    assert not np.any(nothing.weights)
    assert np.isfinite(nothing.gradient(w)).all()


def test_strength_is_shared_and_losses_are_averaged():
    """``f_k`` carries ``1/D_k`` and ``lambda/K``: their sum carries ``lambda`` once."""
    problem = build(12, regularizer="l2", strength=2.0)
    w = np.random.default_rng(13).normal(size=3)
    loss = sum(((X @ w - y) ** 2).mean() for X, y in ragged(12))
    stack = jnp.tile(w, (problem.clients, 1))
    close(jnp.sum(problem.objective(stack)), loss + 2.0 * (w**2).sum(), rtol=1e-12)
    close(problem.pooled().objective(jnp.asarray(w)[None]) * 4, loss + 2 * (w**2).sum())
    assert problem.pooled().clients == 1
    close(problem.influence, 1 / np.asarray(SIZES))


@pytest.mark.parametrize("loss", ["absolute", "logistic", "huber", "softmax"])
def test_gradient_bound_holds_everywhere_and_is_reached(loss):
    problem = build(14, loss)
    longest = max(np.linalg.norm(X, axis=1).max() for X, _ in ragged(14, loss=loss))
    slope_bound = {"absolute": 1, "logistic": 1, "huber": 0.7, "softmax": 2**0.5}[loss]
    bound = float(problem.gradient_bound())
    close(bound, slope_bound * longest, rtol=1e-12)
    far = [
        problem.sample_gradient_norm(s * models(seed, problem))
        for seed in range(30)
        for s in (1, 50)
    ]
    assert 0.7 * bound < float(jnp.max(jnp.stack(far))) <= bound * (1 + 1e-12)
    close(problem.clipped(0.1).gradient_bound(), 0.1)
    close(problem.clipped(1e9).gradient_bound(), bound)


def test_squared_loss_is_bounded_by_clipping_alone():
    assert np.isinf(build(14).gradient_bound())
    assert float(build(14).clipped(2.0).gradient_bound()) == 2.0


padding = st.floats(-1e3, 1e3)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    loss=st.sampled_from(["squared", "absolute", "logistic", "huber", "softmax"]),
    clip=st.sampled_from([None, 0.5]),
    rows=st.integers(1, 4),
    filling=padding,
    seed=st.integers(0, 10),
)
def test_padding_never_matters(loss, clip, rows, filling, seed):
    problem = build(seed, loss, "elastic")
    problem = problem if clip is None else problem.clipped(clip)
    empty = np.asarray(problem.weights) == 0
    labels = 0.0 if loss == "softmax" else filling

    def stuffed(array, value, weight=False):
        array = np.where(empty.reshape(empty.shape + (1,) * (array.ndim - 2)), value, array)
        return np.pad(
            array, [(0, 0), (0, rows)] + [(0, 0)] * (array.ndim - 2), constant_values=value
        )

    padded = Problem(
        stuffed(problem.features, filling),
        stuffed(problem.targets, labels),
        problem.loss,
        problem.regularizer,
        problem.strength,
        stuffed(problem.weights, 0.0),
        clip=clip,
    )
    w = models(seed, problem)
    close(padded.influence, problem.influence)
    for name in ("objective", "gradient", "sample_gradient_norm"):
        for a, b in ((problem, padded), (problem.prepare(), padded.prepare())):
            close(getattr(b, name)(w), getattr(a, name)(w), rtol=1e-9, atol=1e-9)
    close(padded.gradient_bound(), problem.gradient_bound())


@pytest.mark.thin(1)
@pytest.mark.parametrize(("loss", "regularizer"), ORACLE)
@pytest.mark.slow
def test_permuting_clients_permutes_the_results(loss, regularizer):
    data = ragged(15, loss=loss)
    order = np.array([2, 0, 3, 1])
    make = lambda data: from_clients(data, LOSSES[loss], REGULARIZERS[regularizer]).prepare()  # noqa: E731
    problem = make(data)
    permuted = make([data[k] for k in order])
    w = models(16, problem)
    for name in ("objective", "gradient", "sample_gradient_norm"):
        close(getattr(permuted, name)(w[order]), getattr(problem, name)(w)[order], rtol=1e-12)
    close(optimum(permuted), optimum(problem), rtol=1e-6, atol=1e-8)


# Minimizers ------------------------------------------------------------------------------------

TIGHT = {"tol_gap_abs": 1e-13, "tol_gap_rel": 1e-13, "tol_feas": 1e-13}


def cvx_loss(loss, X, y, w):
    if loss == "softmax":
        scores = X @ w.T
        chosen = cp.sum(cp.multiply(np.eye(3)[y.astype(int)], scores), axis=1)
        return cp.sum(cp.log_sum_exp(scores, axis=1) - chosen) / len(y)
    z = X @ w
    total = {
        "squared": lambda: cp.sum_squares(z - y),
        "absolute": lambda: cp.sum(cp.abs(z - y)),
        "huber": lambda: cp.sum(cp.huber(z - y, 0.7)) / 2,
        "logistic": lambda: cp.sum(cp.logistic(-cp.multiply(y, z))),
    }[loss]()
    return total / len(y)


def cvx_minimize(data, loss, regularizer, strength, weight=0.0, center=None):
    """``argmin sum_k mean loss + strength R + weight/2 |w - center|^2`` by an interior point."""
    dim = data[0][0].shape[1]
    w = cp.Variable((3, dim) if loss == "softmax" else dim)
    l1, l2 = WEIGHTS[regularizer]
    total = sum(cvx_loss(loss, X, y, w) for X, y in data)
    total += strength * (l1 * cp.sum(cp.abs(w)) + l2 * cp.sum_squares(w))
    if weight:
        total += weight / 2 * cp.sum_squares(w - center.reshape(w.shape))
    cp.Problem(cp.Minimize(total)).solve(cp.CLARABEL, **TIGHT)
    return w.value.ravel()  # of softmax [classes, features], as a model is laid out


def total_objective(problem, w):
    return float(jnp.sum(problem.objective(jnp.tile(jnp.asarray(w), (problem.clients, 1)))))


OPTIMA = [
    *((loss, regularizer) for loss in ("squared", "absolute") for regularizer in REGULARIZERS),
    ("huber", "none"),
    ("huber", "l1"),
    ("logistic", "l2"),
    ("logistic", "elastic"),
    ("softmax", "l2"),
]


@pytest.mark.thin(2)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("loss", "regularizer"), OPTIMA)
def test_optimum_equals_an_interior_point_solution(loss, regularizer):
    data = ragged(1, loss=loss)
    problem = from_clients(data, LOSSES[loss], REGULARIZERS[regularizer], 0.3)
    ours = np.asarray(optimum(problem))
    theirs = cvx_minimize(data, loss, regularizer, 0.3)
    gap = total_objective(problem, ours) - total_objective(problem, theirs)
    assert -1e-6 < gap < 2e-8
    close(ours, theirs, atol=2e-3)


@pytest.mark.parametrize("loss", SMOOTH)
def test_optimum_of_a_smooth_objective_has_zero_gradient(loss):
    problem = build(17, loss, "l2", 0.3)
    stack = jnp.tile(optimum(problem), (problem.clients, 1))
    assert float(jnp.abs(jnp.sum(problem.gradient(stack), axis=0)).max()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strength", [0.0, 0.3, 40.0])
def test_least_absolute_optimum_is_the_linear_programme(seed, strength):
    """Exactly, for unequal clients, without and with an l1 penalty (even a crushing one)."""
    data = ragged(seed, sizes=(3, 17, 8), dim=4)
    problem = from_clients(data, LeastAbsoluteDeviation(), L1(), strength)
    rows = np.concatenate([X for X, _ in data])
    targets = np.concatenate([y for _, y in data])
    shares = np.concatenate([np.full(len(y), 1 / len(y)) for _, y in data])
    count, dim = rows.shape
    # variables: w (free), t >= |Xw - y|, u >= |w|
    cost = np.concatenate([np.zeros(dim), shares, np.full(dim, strength)])
    eye = np.eye(dim)
    zero = np.zeros((count, dim))
    upper = np.block(
        [
            [rows, -np.eye(count), zero],
            [-rows, -np.eye(count), zero],
            [eye, np.zeros((dim, count)), -eye],
            [-eye, np.zeros((dim, count)), -eye],
        ]
    )
    limit = np.concatenate([targets, -targets, np.zeros(2 * dim)])
    bounds = [(None, None)] * dim + [(0, None)] * (count + dim)
    best = optimize.linprog(cost, upper, limit, bounds=bounds, method="highs")
    ours = optimum(problem)
    close(total_objective(problem, ours), best.fun, rtol=1e-12)
    close(ours, best.x[:dim], atol=1e-9)
    if strength == 0:
        plain = from_clients(data, LeastAbsoluteDeviation())
        close(optimum(plain), best.x[:dim], atol=1e-9)


def test_least_absolute_optimum_of_one_feature_is_the_weighted_median():
    values = np.array([[1.0, 5.0, 2.0], [9.0, 3.0, 4.0]])
    problem = Problem(np.ones((2, 3, 1)), values, LeastAbsoluteDeviation())
    assert 3 <= float(optimum(problem)[0]) <= 4


@pytest.mark.thin(1)
@pytest.mark.parametrize("case", ["repeated samples", "indicator features", "exact fit", "zeros"])
def test_least_absolute_optimum_of_degenerate_data(case):
    """Rows that depend on each other must not make the vertex singular."""
    rng = np.random.default_rng(18)
    X = rng.normal(size=(2, 6, 2))
    y = rng.normal(size=(2, 6))
    if case == "repeated samples":
        X = np.concatenate([X, X], 1)
        y = np.concatenate([y, y], 1)
    if case == "indicator features":
        X = np.stack([np.ones((2, 6)), np.tile([0.0, 1.0], (2, 3))], -1)
    y = {"exact fit": X @ np.array([1.0, 2.0]), "zeros": 0 * y}.get(case, y)
    problem = Problem(X, y, LeastAbsoluteDeviation())
    theirs = cvx_minimize(list(zip(X, y, strict=True)), "absolute", "none", 1.0)
    gap = total_objective(problem, optimum(problem)) - total_objective(problem, theirs)
    assert gap < 1e-8


def test_optimum_keeps_the_clients_weights():
    """The network solves (3.2), where each client's mean counts equally, not the pooled mean."""
    data = ragged(19, sizes=(2, 40), dim=2)
    ours = np.asarray(optimum(from_clients(data, LeastSquares(), SquaredL2(), 0.1)))
    close(ours, nfl.centralized_quadratic(nfl.Objective(tuple(data), "squared", 0, 1, 0.1)))
    X, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    other = np.linalg.solve(X.T @ X / 42 + 0.05 * np.eye(2), X.T @ y / 42)
    assert np.abs(ours - other).max() > 1e-3


def test_optimum_ignores_clipping():
    problem = build(20, "logistic", "l2")
    close(optimum(problem.clipped(1e-3)), optimum(problem))


@pytest.mark.slow
def test_optimum_may_be_batched_and_compiled():
    strengths = jnp.asarray([0.1, 1.0])
    data = ragged(21)

    def solve(strength):
        return optimum(from_clients(data, LeastSquares(), ElasticNet(0.5, 1.0), strength))

    optima = jax.jit(jax.vmap(solve))(strengths)
    close(optima, jnp.stack([solve(s) for s in strengths]), rtol=1e-10)


PROXES = [  # loss, regularizer, dim (sizes are 4 to 12), iterations, accuracy
    ("squared", "l2", 3, 1, 1e-7),
    ("squared", "none", 3, 1, 1e-7),
    ("squared", "l2", 20, 1, 1e-7),  # Woodbury
    ("squared", "elastic", 3, 300, 1e-6),
    ("logistic", "l2", 3, 300, 1e-6),
    ("huber", "l1", 3, 300, 1e-6),
    ("softmax", "elastic", 3, 300, 1e-6),
    ("softmax", "l2", 20, 100, 1e-6),  # among the samples
    ("absolute", "none", 3, 4000, 1e-6),
    ("absolute", "elastic", 3, 4000, 1e-6),
]


@pytest.mark.thin(2)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(("loss", "regularizer", "dim", "iterations", "accuracy"), PROXES)
def test_prox_equals_an_interior_point_solution(loss, regularizer, dim, iterations, accuracy):
    data = ragged(22, dim=dim, loss=loss)
    problem = from_clients(data, LOSSES[loss], REGULARIZERS[regularizer], 0.8)
    weight = jnp.asarray([0.5, 2.0, 6.0, 1.0])
    center = models(23, problem)
    start = models(24, problem)
    factor = factorize(problem, weight)
    ours = prox(problem, factor, center, start, iterations)
    for k in range(problem.clients):
        theirs = cvx_minimize(
            data[k : k + 1], loss, regularizer, 0.2, float(weight[k]), np.asarray(center[k])
        )
        close(ours[k], theirs, atol=accuracy, rtol=0)


@pytest.mark.parametrize("loss", ["squared", "absolute", "logistic"])
def test_prox_equals_the_reference(loss):
    data = ragged(25, loss=loss)
    l2 = 0.0 if loss == "absolute" else 1.0
    problem = from_clients(data, LOSSES[loss], SquaredL2() if l2 else NoRegularizer(), 0.8)
    oracle = nfl.Objective(tuple(data), loss, 0, l2, 0.8)
    center = models(26, problem)
    weight = jnp.full(4, 1.5)
    ours = prox(problem, factorize(problem, weight), center, 0 * center, 6000)
    theirs = [nfl.prox(oracle, k, 1.5, np.asarray(center[k])) for k in range(4)]
    close(ours, theirs, atol=1e-9)


FEW = ("huber", "logistic", "softmax")


@pytest.mark.parametrize("loss", FEW)
def test_few_samples_are_minimized_among_their_predictions(loss):
    """The slope vanishes, from any start, with no iteration more than a few samples need."""
    problem = build(30, loss, "l2", dim=30)
    weight = jnp.asarray([0.5, 2.0, 6.0, 1.0])
    factor = factorize(problem, weight)
    assert factor.gram is not None
    center = models(31, problem)
    ours = prox(problem, factor, center, models(32, problem), 60)
    close(problem.gradient(ours) + weight[:, None] * (ours - center), 0 * center, atol=1e-9)


@pytest.mark.parametrize("loss", FEW)
def test_public_steps_on_predictions_equal_those_of_models(loss):
    problem = build(33, loss, "l2", dim=30)
    longest = float(jnp.max(jnp.linalg.norm(problem.features, axis=-1)))
    problem = dataclasses.replace(problem, feature_bound=1.001 * longest)
    weight = jnp.asarray([0.5, 2.0, 6.0, 1.0])
    factor = factorize(problem, weight)
    assert factor.gram is not None
    center = models(34, problem)
    w = models(35, problem)
    ours = prox(problem, factor, center, w, 7)
    step = (1 / factor.scale)[:, None]
    for _ in range(7):
        w = w - step * (problem.loss_gradient(w) + weight[:, None] * (w - center))
        w = w / (1 + 2 * step * problem.share[:, None])
    close(ours, w, atol=1e-12)


def test_prox_never_forms_a_large_matrix_when_samples_are_few():
    problem = build(27, regularizer="l2", dim=50)
    assert factorize(problem, jnp.ones(4)).inverse.shape == (4, 12, 12)
    several = factorize(build(27, "softmax", "l2", dim=50), jnp.ones(4))
    assert several.inverse.shape == several.gram.shape == (4, 12, 12)


@pytest.mark.slow
def test_float32_is_kept_and_accurate():
    data = ragged(28, loss="logistic")
    sharp = optimum(from_clients(data, Logistic(), SquaredL2(), 0.3))
    with jax.enable_x64(False):
        problem = from_clients(data, Logistic(), SquaredL2(), 0.3)
        assert problem.features.dtype == problem.weights.dtype == np.float32
        w = optimum(problem)
        for value in (w, problem.prepare().gradient(jnp.zeros((4, 3))), problem.gradient_bound()):
            assert value.dtype == np.float32
    close(w, sharp, atol=2e-5)


@pytest.mark.thin(1)
@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_float32_quadratic_and_least_absolute_optima(loss):
    data = ragged(29)
    sharp = optimum(from_clients(data, LOSSES[loss]))
    with jax.enable_x64(False):
        w = optimum(from_clients(data, LOSSES[loss]))
        assert w.dtype == np.float32
    close(w, sharp, atol=2e-5)


def separable(loss, strength=0.0, flip=()):
    """Two classes on either side of the origin; some labels are swapped."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 8, 2)) + 3 * np.sign(rng.normal(size=(3, 8, 1)))
    labels = np.sign(rows.sum(-1))
    labels.flat[list(flip)] *= -1
    if isinstance(loss, Softmax):
        labels = (labels > 0).astype(float)
    return from_clients(list(zip(rows, labels, strict=True)), loss, SquaredL2(), strength)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Logistic(), Softmax(2)])
def test_separable_data_have_no_optimum(loss):
    with pytest.raises(ValueError, match=r"no minimum: a model separates .*SquaredL2"):
        problems.optimum(separable(loss))
    with pytest.raises(ValueError, match="has no minimum"):
        problems.optimum(dataclasses.replace(separable(loss), regularizer=NoRegularizer()))
    assert np.isnan(optimum(separable(loss))).all()
    with jax.enable_x64(False):
        assert np.isnan(optimum(separable(loss))).all()
    for has_one in (separable(loss, flip=[5]), separable(loss, strength=1e-6)):
        assert np.isfinite(optimum(has_one)).all()


def test_a_run_on_separable_data_reports_the_missing_optimum():
    simulation = fl.Simulation(
        separable(Logistic()),
        fl.algorithms.ZCDPNFL(1.0, 0.3),
        fl.graphs.ring(3),
        metrics=["normalized_error", "objective"],
    )
    with pytest.warns(fl.MetricWarning, match=r"'normalized_error' in 1 of 1 runs\. A centralized"):
        results = fl.run(simulation, rounds=2)
    assert np.isnan(results.normalized_error).all()
    assert np.isfinite(results.objective).all()


# Synthetic problems ----------------------------------------------------------------------------


@pytest.mark.slow
def test_linear_targets_have_the_stated_noise(key):
    """Residuals at the least-squares fit: variance in its 99.99 % chi-square interval, normal."""
    problem = problems.least_squares(key, 50, 80, 4, noise_variance=0.3)
    rows = problem.features.reshape(-1, 4)
    targets = problem.targets.reshape(-1)
    fit, *_ = np.linalg.lstsq(np.asarray(rows), np.asarray(targets), rcond=None)
    residual = np.asarray(targets - rows @ fit)
    low, high = stats.chi2(len(residual) - 4).interval(0.9999)
    assert low < (residual**2).sum() / 0.3 < high
    assert stats.kstest(residual / 0.3**0.5, "norm").pvalue > 1e-4
    assert stats.kstest(np.asarray(rows).ravel(), "norm").pvalue > 1e-4


@pytest.mark.slow
def test_parameters_are_standard_normal(key):
    """Over seeds, the noiseless optimum is the drawn parameter itself."""
    draw = lambda key: optimum(problems.least_squares(key, 2, 6, 3, noise_variance=0.0))  # noqa: E731
    result = np.asarray(jax.vmap(draw)(jax.random.split(key, 400))).ravel()
    assert stats.kstest(result, "norm").pvalue > 1e-4


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("classes", [2, 4])
def test_labels_follow_their_model(key, classes):
    """Labels drawn from a model with strong parameters are fitted by that model's own optimum."""
    if classes == 2:
        problem = problems.logistic(key, 20, 100, 3)
        assert set(np.unique(problem.targets)) == {-1.0, 1.0}
    else:
        problem = problems.softmax(key, 20, 100, 3, classes=4)
        assert set(np.unique(problem.targets)) == {0.0, 1.0, 2.0, 3.0}
    best = total_objective(problem, optimum(dataclasses.replace(problem, strength=1e-4)))
    assert best / 20 < 0.9 * np.log(classes)  # better than guessing


GENERATORS = {
    "ridge": (problems.ridge, LeastSquares, SquaredL2),
    "least_squares": (problems.least_squares, LeastSquares, NoRegularizer),
    "elastic_net": (problems.elastic_net, LeastSquares, ElasticNet),
    "least_absolute_deviation": (
        problems.least_absolute_deviation,
        LeastAbsoluteDeviation,
        NoRegularizer,
    ),
    "huber": (problems.huber, Huber, NoRegularizer),
    "logistic": (problems.logistic, Logistic, SquaredL2),
    "softmax": (problems.softmax, Softmax, SquaredL2),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", GENERATORS)
def test_generators_shapes_and_sizes(key, name):
    make, loss, regularizer = GENERATORS[name]
    even = make(key, 3, 5, 2)
    uneven = make(key, 3, [2, 5, 1], 2)
    assert isinstance(even.loss, loss)
    assert isinstance(even.regularizer, regularizer)
    for problem in (even, uneven):
        assert problem.features.shape == (3, 5, 2)
        assert problem.targets.shape == (3, 5)
        close(problem.weights.sum(1), 1)
    close(even.influence, 1 / 5)
    close(uneven.influence, [1 / 2, 1 / 5, 1])
    assert even.dim == (20 if name == "softmax" else 2)
    assert not np.array_equal(make(jax.random.key(1), 3, 5, 2).features, even.features)
    np.testing.assert_array_equal(make(key, 3, 5, 2).targets, even.targets)


def test_elastic_net_penalty_is_that_of_the_stacked_data(key):
    problem = problems.elastic_net(key, 3, [4, 6, 2], 2, l1_factor=0.01, l2=0.7)
    product = sum(
        np.asarray(problem.features)[k, :n].T @ np.asarray(problem.targets)[k, :n]
        for k, n in enumerate((4, 6, 2))
    )
    close(problem.regularizer.l1, 0.01 * np.abs(product).max(), rtol=1e-12)
    assert float(problem.regularizer.l2) == 0.7


def spied(monkeypatch):
    """What a generator draws, in its order."""
    drawn = []

    def spy(name):
        real = getattr(synthetic, name)

        def draw(*args):
            drawn.append(np.asarray(result := real(*args)))
            return result

        monkeypatch.setattr(synthetic, name, draw)

    # The rows of features are drawn by a loop, in which single draws are none of their own.
    rows = synthetic._normal_rows
    plain = synthetic.normal
    spy("normal")

    def drawn_rows(*args):
        with monkeypatch.context() as inside:
            inside.setattr(synthetic, "normal", plain)
            drawn.append(np.asarray(result := rows(*args)))
        return result

    monkeypatch.setattr(synthetic, "_normal_rows", drawn_rows)
    return drawn


def one_client(size, shift, model, mean, features):
    """Samples and labels of one client of Synthetic(alpha, beta), from standard normal draws.

    Args:
      size: its number of samples.
      shift: alpha times a draw, added to its model; and beta times one, to its features' mean.
      model: ``[C, P + 1]``, the intercepts last.
      mean: ``[P]``.
      features: ``[>= size, P]``.
    """
    x = []
    y = []
    for n in range(size):
        sample = [
            shift[1] + m + (j + 1) ** (-1.2 / 2) * f
            for j, (m, f) in enumerate(zip(mean, features[n], strict=True))
        ]
        scores = [
            sum((shift[0] + w) * s for w, s in zip(row[:-1], sample, strict=True))
            + shift[0]
            + row[-1]
            for row in model
        ]
        x.append([*sample, 1.0])
        y.append(int(np.argmax(scores)))
    return np.array(x), np.array(y)


@pytest.mark.parametrize("identical", [False, True])
def test_heterogeneous_softmax_is_the_papers_loop(key, monkeypatch, identical):
    alpha, beta = (0, 0) if identical else (0.5, 1.5)
    drawn = spied(monkeypatch)
    problem = problems.heterogeneous_softmax(
        *(key, 4, (3, 60), alpha, beta), dim=5, classes=3, identical=identical, test_samples=7
    )
    z, shifts, models, means, train, test = drawn
    sizes = [min(3 + int(np.exp(4 + 2 * number)), 60) for number in z]
    for k, size in enumerate(sizes):
        shift = alpha * shifts[0, k], beta * shifts[1, k]
        parameters = (shift, models[0 if identical else k], 0 * means[k] if identical else means[k])
        x, y = one_client(size, *parameters, train[k])
        close(problem.features[k, :size], x, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(problem.targets[k, :size], y)
        close(problem.weights[k], [1 / size] * size + [0] * (60 - size))
        assert not np.any(problem.features[k, size:])
        x, y = one_client(7, *parameters, test[k])
        close(problem.test.features[k], x, rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(problem.test.targets[k], y)
    assert len(set(sizes)) > 1
    assert isinstance(problem.loss, Softmax)
    assert problem.dim == 18


@pytest.mark.slow
def test_heterogeneous_softmax_follows_its_distributions(key):
    beta = 2.0
    make = problems.heterogeneous_softmax
    problem = make(key, 400, (50, 1000), 1.0, beta, dim=4, classes=2)
    sizes = np.asarray((problem.weights > 0).sum(axis=1))
    cut = stats.lognorm(2, scale=np.exp(4))
    inside = sizes[sizes < 1000] - 50 + np.random.default_rng(0).uniform(size=sum(sizes < 1000))
    assert stats.kstest(cut.cdf(inside) / cut.cdf(950), "uniform").pvalue > 1e-3
    assert abs(np.mean(sizes == 1000) - cut.sf(950)) < 3 * np.sqrt(cut.sf(950) / 400)
    rows = [np.asarray(x)[:n, :4] for x, n in zip(problem.features, sizes, strict=True)]
    means = np.array([x.mean(axis=0) for x in rows])
    for j in range(4):
        within = np.concatenate([x[:, j] - x[:, j].mean() for x in rows])
        spread = np.sqrt(1 + beta**2)
        assert stats.kstest(means[:, j] / spread, "norm").pvalue > 1e-3
        close(within.var(), (j + 1) ** -1.2, rtol=0.02)
    # B_k is common to the features of a client, and all else of their means is not.
    correlation = np.corrcoef(means.T)[np.triu_indices(4, 1)]
    close(correlation, beta**2 / (1 + beta**2), atol=0.06)


@pytest.mark.slow
def test_no_label_depends_on_alpha(key):
    make = problems.heterogeneous_softmax
    same, other = (make(key, 6, (9, 40), a, 1.0, dim=5, classes=4) for a in (0.0, 1.0))
    np.testing.assert_array_equal(same.targets, other.targets)
    assert len(np.unique(same.targets)) == 4


@pytest.mark.slow
def test_heterogeneous_softmax_is_pure_in_its_key(key):
    def make(key, spread):
        problem = problems.heterogeneous_softmax(key, 3, (4, 9), spread, spread, dim=2, classes=3)
        return problem.features, problem.targets, problem.weights

    keys = jax.random.split(key)
    spreads = jnp.array([0.0, 1.0])
    for at, drawn in enumerate(zip(*jax.jit(jax.vmap(make))(keys, spreads), strict=True)):
        for got, expected in zip(drawn, make(keys[at], spreads[at]), strict=True):
            close(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"samples": (5, 2)}, "samples must be >= 5, got 2. samples are .fewest, most."),
        ({"samples": (0, 2)}, "samples must be >= 1, got 0"),
        ({"feature_spread": -1.0}, "feature_spread must be finite and >= 0, got -1"),
        ({"model_spread": 1.0, "identical": True}, "model_spread must be .*no spread"),
        ({"test_samples": -1}, "test_samples must be >= 0, got -1"),
    ],
)
def test_heterogeneous_softmax_names_bad_arguments(key, wrong, error):
    with pytest.raises(ValueError, match=error):
        problems.heterogeneous_softmax(**({"key": key, "clients": 3, "samples": (2, 4)} | wrong))


# What is refused -------------------------------------------------------------------------------

X = np.ones((2, 3, 2))
Y = np.ones((2, 3))
HALF = np.full((2, 3), 1 / 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": X * np.nan}, "features holds 12 NaN or infinite"),
        ({"features": jnp.asarray(X).at[0, 0, 0].set(jnp.inf)}, "features holds 1 NaN or infinite"),
        ({"targets": Y * np.inf}, "targets holds 6 NaN or infinite"),
        ({"features": X[0]}, r"features must be \[clients, samples, features\].*from_clients"),
        ({"features": X[:, :0], "targets": Y[:, :0]}, "no empty axis"),
        ({"features": X[:, :, :0]}, "no empty axis"),
        ({"targets": Y[:, :2]}, r"targets must have one entry a sample.*\(2, 3\)"),
        ({"weights": HALF[:, :2]}, r"weights must have shape \(2, 3\)"),
        ({"weights": -HALF}, "weights must be finite and >= 0"),
        ({"weights": HALF * [[1], [0]]}, "client 1 has no samples"),
        ({"weights": 2 * HALF}, "weights must sum to one"),
        ({"weights": HALF * np.nan}, "weights must be finite"),
        ({"strength": -1.0}, "strength must be finite and >= 0, got -1"),
        ({"strength": np.nan}, "strength must be finite"),
        ({"clip": 0.0}, "clip must be finite and > 0, got 0"),
        ({"clip": -2.0}, "clip must be finite and > 0, got -2"),
    ],
)
def test_bad_problems_are_refused(arguments, message):
    good = {"features": X, "targets": Y, "loss": LeastSquares()}
    Problem(**good)
    with pytest.raises(ValueError, match=message):
        Problem(**good | arguments)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "at least one client"),
        ([(X[0, :0], Y[0, :0])] * 2, "all 2 clients have no samples"),
        ([(X[0], Y[0]), (np.ones((3, 5)), Y[0])], "client 1 must have features"),
        ([(X[0], Y[0, :2])], "client 0 must have features"),
        ([(Y[0], Y[0])], "client 0 must have features"),
        ([(X[0] * np.nan, Y[0])], "features holds 6 NaN"),
    ],
)
def test_bad_clients_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        from_clients(data, LeastSquares())


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: Huber(0.0), "threshold must be finite and > 0"),
        (ValueError, lambda: Softmax(1), "classes must be >= 2"),
        (TypeError, lambda: Softmax(2.5), "classes must be an integer"),
        (ValueError, lambda: ElasticNet(-1.0, 0.0), "l1 must be finite and >= 0"),
        (ValueError, lambda: ElasticNet(0.0, np.inf), "l2 must be finite and >= 0"),
        (ValueError, lambda: problems.ridge(jax.random.key(0), 0, 3, 2), "clients must be >= 1"),
        (ValueError, lambda: problems.ridge(jax.random.key(0), 2, 0, 2), "samples must be >= 1"),
        (ValueError, lambda: problems.ridge(jax.random.key(0), 2, 3, 0), "dim must be >= 1"),
        (TypeError, lambda: problems.ridge(jax.random.key(0), 2.0, 3, 2), "clients must be an int"),
        (ValueError, lambda: problems.ridge(jax.random.key(0), 2, [3], 2), "2 integers"),
        (ValueError, lambda: problems.ridge(jax.random.key(0), 2, [3, 0], 2), "client 1 has no"),
        (
            ValueError,
            lambda: problems.ridge(jax.random.key(0), 2, 3, 2, noise_variance=-1.0),
            "noise_variance must be finite and >= 0",
        ),
        (
            ValueError,
            lambda: problems.elastic_net(jax.random.key(0), 2, 3, 2, l1_factor=-1.0),
            "l1_factor must be finite and >= 0",
        ),
        (
            ValueError,
            lambda: prox(
                build(0).clipped(1.0), factorize(build(0), jnp.ones(4)), jnp.ones((4, 3)), 0.0
            ),
            "clipping cannot be applied inside an exact minimizer",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("loss", "label"), [(Logistic(), 0.0), (Logistic(), 2.0), (Softmax(3), 3.0), (Softmax(3), 0.5)]
)
def test_labels_outside_the_loss_s_alphabet_are_refused(loss, label):
    """A 0/1 label is silently no sample at all to the logistic loss of labels -1/+1."""
    with pytest.raises(ValueError, match=r"(targets|labels) must be"):
        Problem(X, label * Y, loss)


@pytest.mark.slow
def test_importance_multiplies_mean_losses_and_zero_means_no_labels():
    plain = problems.ridge(jax.random.key(0), clients=4, samples=[3, 9, 5, 7], dim=2)
    factor = np.array([2.0, 0.0, 1.0, 0.5])
    weighed = plain.weighing(factor)
    w = jax.random.normal(jax.random.key(1), (4, 2))
    regularizer_gradient = plain.share[:, None] * 2 * w
    np.testing.assert_allclose(
        weighed.gradient(w),
        factor[:, None] * plain.loss_gradient(w) + regularizer_gradient,
        atol=1e-12,
    )
    np.testing.assert_allclose(weighed.mean_loss(w), factor * plain.mean_loss(w), atol=1e-12)
    assert weighed.sample_counts().tolist() == [3, 0, 5, 7]
    # Twice is the product; batches keep the factor; the optimum is that of the weighed sum.
    twice = weighed.weighing(factor)
    np.testing.assert_allclose(twice.weights.sum(1), factor**2, atol=1e-12)
    rows = jnp.zeros((3, 2), jnp.int32).at[:, 1].set(1)
    part = weighed.take(jnp.array([3, 1, 0], jnp.int32), rows)
    np.testing.assert_allclose(part.weights.sum(1), [0.5, 0.0, 2.0], atol=1e-12)
    best = problems.optimum(weighed)
    x = np.asarray(plain.features)
    y = np.asarray(plain.targets)
    share = factor[:, None] * np.asarray(plain.weights)
    gram = np.einsum("kn,knp,knq->pq", share, x, x) + float(plain.strength) * np.eye(2)
    np.testing.assert_allclose(
        best, np.linalg.solve(gram, np.einsum("kn,knp,kn->p", share, x, y)), atol=1e-10
    )


@pytest.mark.parametrize(
    "loss", [problems.LeastSquares(), problems.LeastAbsoluteDeviation(), problems.Huber(1.0)]
)
def test_prox_of_a_client_without_labels_is_its_center(loss):
    problem = problems.linear(jax.random.key(0), clients=3, samples=6, dim=2, loss=loss)
    problem = problem.weighing([1.0, 0.0, 1.0]).prepare()
    factor = problems.factorize(problem, jnp.full(3, 0.7))
    center = jax.random.normal(jax.random.key(1), (3, 2))
    result = problems.prox(problem, factor, center, jnp.zeros((3, 2)), 200)
    np.testing.assert_allclose(result[1], center[1], atol=1e-9)
    assert np.abs(result[0] - center[0]).max() > 1e-3


def test_importance_refuses_invalid_weights():
    problem = problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2)
    for wrong, text in (
        ([1.0, 2.0], "one number of each of the 3 clients"),
        ([1.0, -1.0, 1.0], "importance"),
        (np.zeros(3), "zero for every client"),
    ):
        with pytest.raises(ValueError, match=text):
            problem.weighing(wrong)
    with pytest.raises(ValueError, match="split the problem first"):
        problem.weighing([1.0, 0.0, 1.0]).split(jax.random.key(1))
    with pytest.raises(ValueError, match="sum to each client's importance"):
        problems.Problem(
            problem.features,
            problem.targets,
            problem.loss,
            importance=np.array([1.0, 2.0, 1.0]),
            weights=np.full((3, 4), 0.25),
        )
    with pytest.raises(ValueError, match="unweighted mean losses"):
        fl.Simulation(
            problem.weighing([1.0, 2.0, 1.0]).clipped(1.0),
            fl.algorithms.ZCDPNFL(1.0, 0.5),
            fl.graphs.ring(3),
            privacy=fl.privacy.ZCDP(1.0, gradient_bound=1.0),
        )


@pytest.mark.parametrize("size", [1.0, 1e60])
def test_regularized_sample_norms_are_finite_where_squares_overflow(size):
    rng = np.random.default_rng(0)
    features = size * rng.normal(size=(2, 4, 3))
    targets = rng.normal(size=(2, 4))
    loss = fl.problems.LeastSquares()
    strength = np.array([0.4, 0.1])
    problem = fl.problems.Problem(features, targets, loss, fl.problems.SquaredL2(), strength)
    w = size * rng.normal(size=(2, 3))
    slopes = 2 * (np.einsum("knp,kp->kn", features, w) - targets)[..., None] * features
    expected = np.linalg.norm((slopes + 2 * (strength[:, None] * w)[:, None]) / size**3, axis=2)
    norms = problem.sample_objective_norms(jnp.asarray(w))
    np.testing.assert_allclose(norms / size**3, expected, rtol=1e-12)


# Shapes of what users write -----------------------------------------------------------------------


@fl.module
class Summed(fl.problems.Loss):
    """A loss whose derivative is one number for all samples."""

    def value(self, prediction, target):
        return (prediction - target) ** 2

    def derivative(self, prediction, target):
        return jnp.sum(2 * (prediction - target))


@fl.module
class Whole(fl.problems.Regularizer):
    """A regularizer of all clients together."""

    def value(self, w):
        return jnp.sum(w**2)

    def gradient(self, w):
        return 2 * w


def test_custom_losses_and_regularizers_of_wrong_shapes_are_refused():
    x = np.ones((2, 5, 3))
    y = np.ones((2, 5))
    with pytest.raises(ValueError, match=r"Summed.derivative must return an array of shape \(2, 5"):
        fl.problems.Problem(x, y, Summed())
    with pytest.raises(ValueError, match=r"Whole.value must return an array of shape \(2,\)"):
        fl.problems.Problem(x, y, fl.problems.LeastSquares(), Whole())
