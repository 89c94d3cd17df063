"""GTV minimization against NumPy loops, CVXPY, the source's own examples and its dual problem."""

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.devices import configured, traced_for
from fljax.problems import (
    Absolute,
    Blocks,
    GTVMin,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Mixture,
    Norm,
    Penalty,
    PNorm,
    Problem,
    Softmax,
    SquaredL2,
    SquaredNorm,
    from_clients,
)
from tests.reference import gtv

close = np.testing.assert_allclose
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (4, 5)]
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.3, 1.5])
IMPORTANCE = np.array([1.0, 0.0, 2.0, 1.0, 1.0, 0.5])  # client 1 has no labels
NORMS = {"l2": (Norm(), 2), "l1": (Absolute(), 1), "p3": (PNorm(3.0), 3)}
PENALTIES = {
    "squared": (SquaredNorm(), gtv.squared),
    "l2": (Norm(), gtv.p_norm(2)),
    "l1": (Absolute(), gtv.p_norm(1)),
    "p1.4": (PNorm(1.4), gtv.p_norm(1.4)),
    "p3": (PNorm(3.0), gtv.p_norm(3)),
    "max": (PNorm(np.inf), gtv.p_norm(np.inf)),
    "mixture": (
        Mixture([0.5, 2.0, 0.3], (SquaredNorm(), Norm(), Absolute())),
        lambda u: 0.5 * gtv.squared(u) + 2 * gtv.p_norm(2)(u) + 0.3 * gtv.p_norm(1)(u),
    ),
    "blocks": (
        Blocks((2, 1, 1), (Norm(), None, Mixture([3.0], (SquaredNorm(),)))),
        lambda u: gtv.p_norm(2)(u[:2]) + 3 * u[3] ** 2,
    ),
}


def network(form="auto"):
    return fl.graphs.from_edges(6, EDGES, WEIGHTS, form=form, allow_disconnected=True)


def data(dim=3, samples=(4, 5, 6, 4, 7, 5), seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(n, dim)), rng.normal(size=n)) for n in samples]


def stacked(pairs, importance=IMPORTANCE, loss=LeastSquares(), **kwargs):  # noqa: B008
    return from_clients(pairs, loss, **kwargs).weighing(importance)


# Penalties -----------------------------------------------------------------------------------


@pytest.mark.thin(3)
@pytest.mark.parametrize("label", PENALTIES)
def test_a_penalty_its_gradient_and_its_conjugate(label):
    penalty, plain = PENALTIES[label]
    rng = np.random.default_rng(0)
    u = rng.normal(size=(3, 2, 4))
    u[0, 1] = 0
    value, gradient = jax.jit(lambda u: (penalty.value(u), penalty.gradient(u)))(u)
    conjugate = jax.jit(penalty.conjugate)
    gradient = np.asarray(gradient)
    close(value, [[plain(row) for row in rows] for rows in u], rtol=1e-12)
    assert not gradient[0, 1].any()
    for direction in np.eye(4):
        forward, behind = (plain(u[1, 0] + h * direction) for h in (1e-6, -1e-6))
        close(gradient[1, 0] @ direction, (forward - behind) / 2e-6, atol=1e-7)
    # Fenchel and Young, with equality at the slope alone.
    close(value + conjugate(gradient), (u * gradient).sum(-1), atol=1e-12)
    other = rng.normal(size=u.shape)
    assert np.all(value + conjugate(other) >= (u * other).sum(-1) - 1e-12)


@pytest.mark.thin(3)
@pytest.mark.parametrize("label", PENALTIES)
def test_a_prox_leaves_a_subgradient_of_the_penalty(label):
    """``v - z`` is ``step`` times a subgradient at ``z``: Fenchel's equality, of the two."""
    penalty, plain = PENALTIES[label]
    rng = np.random.default_rng(1)
    v = 2 * rng.normal(size=(20, 4))
    step = rng.uniform(0.05, 2.0, 20)
    v[0] = 0
    step[1] = 0
    z = np.asarray(jax.jit(penalty.prox)(v, step))
    close(z[1], v[1], atol=1e-14)
    v, z, step = (np.delete(rows, 1, axis=0) for rows in (v, z, step))
    subgradient = (v - z) / step[:, None]
    conjugate = np.asarray(jax.jit(penalty.conjugate)(subgradient))
    assert np.all(np.isfinite(conjugate))
    close([plain(row) for row in z] + conjugate, (z * subgradient).sum(-1), atol=2e-11)
    assert np.any(z == 0) == (label not in ("squared", "p1.4", "p3") or bool((z == 0).all(1).any()))


@pytest.mark.slow
def test_the_conjugate_of_a_mixture_is_the_least_of_its_parts():
    """(a phi)* of a sum is the infimal convolution; compared with CVXPY's maximum."""
    penalty, _ = PENALTIES["mixture"]
    u = np.random.default_rng(2).normal(size=4) * 4
    z = cp.Variable(4)
    value = 0.5 * cp.sum_squares(z) + 2 * cp.norm2(z) + 0.3 * cp.norm1(z)
    best = cp.Problem(cp.Maximize(u @ z - value)).solve()
    close(penalty.conjugate(u), best, rtol=1e-6)
    close(penalty.conjugate(0.1 * u / np.linalg.norm(u)), 0, atol=1e-15)


@pytest.mark.slow
def test_penalties_in_single_precision_and_beyond_its_squares():
    with configured("jax_enable_x64", False):
        for penalty in (Norm(), PNorm(3.0), PNorm(np.inf)):
            huge = jnp.asarray([[3e25, 4e25], [3e-25, 4e-25]])
            value = penalty.value(huge)
            assert np.all(np.isfinite(value) & (value > 0))
            z = penalty.prox(huge, jnp.asarray([1e25, 0.0]))
            assert z.dtype == np.float32
            assert np.isfinite(z).all()


def test_mixtures_and_blocks_that_do_not_fit():
    with pytest.raises(ValueError, match="one for each of the 1 penalties, got 2"):
        Mixture([1.0, 2.0], (Norm(),))
    with pytest.raises(ValueError, match="strengths must be finite and >= 0, got -1"):
        Mixture([-1.0], (Norm(),))
    with pytest.raises(ValueError, match="has no prox in closed form"):
        Mixture([1.0, 1.0], (Absolute(), PNorm(3.0))).prox(jnp.ones(3), 1.0)
    with pytest.raises(ValueError, match="got 2 sizes and 1 penalties"):
        Blocks((1, 2), (Norm(),))
    with pytest.raises(ValueError, match=r"2 \+ 2 = 4 parameters, but a model has 3"):
        GTVMin(stacked(data()), network(), 1.0, Blocks((2, 2), (Norm(), None)))
    with pytest.raises(
        ValueError, match=r"p must be finite and >= 1, got 0.5. Below it is no norm"
    ):
        PNorm(0.5)


# The objective -------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["padded", "dense"])
def test_the_objective_and_its_gradient_equal_the_loops(form):
    pairs = data()
    models = np.random.default_rng(3).normal(size=(6, 3))
    models[3] = models[2]
    for penalty, plain, penalty_gradient in (
        (SquaredNorm(), gtv.squared, lambda u: 2 * u),
        (PNorm(3.0), gtv.p_norm(3), PNorm(3.0).gradient),
    ):
        coupled = GTVMin(stacked(pairs), network(form), 0.7, penalty)
        variation, objective, gradient = jax.jit(
            lambda w, c=coupled: (c.variation(w), c.objective(w), c.gradient(w))
        )(models)
        close(variation, gtv.variation(models, EDGES, WEIGHTS, plain), rtol=1e-12)
        args = (pairs, IMPORTANCE, EDGES, WEIGHTS, 0.7)
        close(objective, gtv.objective(*args, plain, models), rtol=1e-12)
        close(gradient, gtv.gradient(*args, penalty_gradient, models), atol=1e-12)


@pytest.mark.slow
def test_an_overflowing_table_counts_each_edge_once():
    star = fl.graphs.star(40, form="padded")
    assert star.overflow is not None
    models = np.random.default_rng(4).normal(size=(40, 2))
    problem = Problem(np.ones((40, 1, 2)), np.ones((40, 1)), LeastSquares())
    coupled = GTVMin(problem, star, 1.0, Norm())
    plain = gtv.variation(models, star.edges, np.ones(39), gtv.p_norm(2))
    close(coupled.variation(models), plain, rtol=1e-12)
    flow = GTVMin(problem, star, 1.0).certificate(models).flow
    close(flow, 2 * (models[1:] - models[:1]), atol=1e-14)  # from the larger end to the smaller


# The closed form and conjugate gradients --------------------------------------------------------


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("dim", "coupling", "ridge"),
    [(3, 0.8, 0), (3, [2.0, 0.3, 1.0], 0), (7, 0.8, 0.1), (3, 1e4, 0), (2, [1.0, 0.0], 0.2)],
)
def test_solutions_equal_the_closed_form(dim, coupling, ridge):
    pairs = data(dim)
    # A regularizer's strength is shared by the clients, as the book's Q is half of the Hessian.
    problem = stacked(pairs, regularizer=SquaredL2(), strength=6.0 * ridge)
    plain = gtv.closed_form(pairs, IMPORTANCE, EDGES, WEIGHTS, np.asarray(coupling), ridge)
    coupled = GTVMin(problem, network(), coupling)
    result = coupled.solution()
    close(coupled.closed_form(), plain, atol=1e-10)
    close(result.models, plain, atol=1e-10)
    assert float(result.residual) < 1e-13


@pytest.mark.slow
def test_strong_duality_of_least_squares():
    """(68)-(71): the models' own flow bounds the objective from below, tightly at the solution."""
    pairs = data()
    everyone = np.ones(6)
    coupled = GTVMin(stacked(pairs, everyone), network(), 0.8)
    best = coupled.solve()
    certificate = jax.jit(coupled.certificate)
    result = certificate(best)
    args = (pairs, everyone, EDGES, WEIGHTS, 0.8)
    close(
        result.flow,
        [2 * 0.8 * a * (best[i] - best[k]) for (k, i), a in zip(EDGES, WEIGHTS, strict=True)],
    )
    close(result.dual, gtv.dual(*args, lambda u: u @ u / 4, result.flow), rtol=1e-11)
    close(result.primal, gtv.objective(*args, gtv.squared, np.asarray(best)), rtol=1e-12)
    assert abs(result.gap) < 1e-12
    assert result.infeasibility == 0
    off = certificate(best + 0.1)
    assert off.dual < result.primal < off.primal
    assert off.gap >= off.primal - result.primal


@pytest.mark.slow
def test_a_node_without_labels_takes_up_no_flow():
    """What comes in goes out, at the solution alone."""
    pairs = data()
    silent = GTVMin(stacked(pairs), network(), 0.8)
    result = silent.certificate(silent.solve())
    assert abs(result.gap) < 1e-12
    assert result.infeasibility < 1e-12
    assert silent.certificate(np.zeros((6, 3)) + np.eye(6, 3)).infeasibility > 0.1


def test_zero_coupling_is_local_learning_and_strong_coupling_is_one_model():
    pairs = data()
    everyone = np.ones(6)
    alone = GTVMin(stacked(pairs, everyone), network(), 0.0).solve()
    close(alone, [np.linalg.lstsq(X, y, rcond=None)[0] for X, y in pairs], atol=1e-10)
    together = np.asarray(GTVMin(stacked(pairs, everyone), network(), 1e9).solve())
    for component in ([0, 1, 2, 3], [4, 5]):
        rows = [pairs[k] for k in component]
        Q = sum(X.T @ X / len(y) for X, y in rows)
        q = sum(X.T @ y / len(y) for X, y in rows)
        close(together[component], [np.linalg.solve(Q, q)] * len(component), atol=1e-7)
    # Weighing by sizes makes it the regression of all data (exercise 6.1).
    sizes = np.array([len(y) for _, y in pairs])
    path = fl.graphs.path(6)
    pooled = GTVMin(stacked(pairs, sizes / sizes.sum()), path, 1e9).solve()
    X, y = (np.concatenate(part) for part in zip(*pairs, strict=True))
    close(pooled, [np.linalg.lstsq(X, y, rcond=None)[0]] * 6, atol=1e-7)


@pytest.mark.slow
def test_exercises_of_denoising_and_of_a_silent_center():
    """3.11: (I + alpha L) w = y, with the labels' mean for any alpha; 3.12: the leaves' mean."""
    rng = np.random.default_rng(5)
    y = rng.normal(size=8)
    ring = fl.graphs.ring(8)
    problem = Problem(np.ones((8, 1, 1)), y[:, None], LeastSquares())
    couplings = jnp.asarray([0.1, 1.0, 10.0, 1000.0])
    solve = jax.jit(jax.vmap(lambda a: GTVMin(problem, ring, a).solve()[:, 0]))
    result = solve(couplings)
    matrix = gtv.laplacian(8, ring.edges, np.ones(8))
    for alpha, models in zip(couplings, result, strict=True):
        close(models, np.linalg.solve(np.eye(8) + alpha * matrix, y), atol=1e-11)
        close(models.mean(), y.mean(), atol=1e-12)
    spread = np.max(np.abs(result - y.mean()), axis=1)
    assert np.all(np.diff(spread) < 0)
    assert spread[-1] < 0.01
    star = GTVMin(problem.weighing(np.arange(8) > 0), fl.graphs.star(8), 0.3).solve()
    close(star[0, 0], y[1:].mean(), atol=1e-12)


def test_undetermined_solutions_are_named():
    pairs = data()
    graph = network()
    with pytest.raises(ValueError, match="the data of client 1, which nothing couples to others"):
        GTVMin(stacked(pairs), graph, 0.0).solve()
    few = data(3, (1, 1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"of the component of clients 4, 5 do not determine"):
        GTVMin(stacked(few, np.ones(6)), graph, 1.0).solve()
    with pytest.raises(ValueError, match="client 1 do not determine its private parameters"):
        GTVMin(stacked(pairs), graph, [1.0, 0.0, 1.0]).closed_form()
    # Together they do, and with a regularizer each alone.
    problem = stacked(few, np.ones(6), regularizer=SquaredL2(), strength=0.6)
    GTVMin(problem, graph, 1.0).solve()
    joined = fl.graphs.path(6)
    plain = gtv.closed_form(few, np.ones(6), joined.edges, np.ones(5), 1.0)
    close(GTVMin(stacked(few, np.ones(6)), joined, 1.0).solve(), plain, atol=1e-9)


def test_unreached_targets_are_reported():
    pairs = data()
    with pytest.raises(RuntimeError, match=r"after 2 iterations at a relative residual of .*above"):
        GTVMin(stacked(pairs), network(), 1.0).solve(iterations=2)


@pytest.mark.slow
def test_single_precision_reports_its_attainable_accuracy():
    pairs = data()
    with configured("jax_enable_x64", False):
        coupled = GTVMin(stacked(pairs), network(), 1.0)
        models = coupled.solve()
        assert models.dtype == np.float32
        close(models, coupled.closed_form(), atol=1e-4)
        with pytest.raises(RuntimeError, match="above the tolerance 1e-12"):
            coupled.solve(1e-12)


@pytest.mark.slow
def test_seeds_networks_and_couplings_are_axes_of_one_program():
    def solved(key, coupling):
        k_data, k_graph = jax.random.split(key)
        problem = fl.problems.least_squares(k_data, clients=6, samples=4, dim=2)
        graph = fl.graphs.random_connected(k_graph, nodes=6, mean_degree=3)
        coupled = GTVMin(problem, graph, coupling)
        result = coupled.solution()
        return problem, graph, result.models, coupled.certificate(result.models)

    keys = jax.random.split(jax.random.key(0), 3)
    couplings = jnp.asarray([0.1, 1.0, 30.0])
    problems, graphs, models, certificates = jax.jit(jax.vmap(solved))(keys, couplings)
    assert np.max(np.abs(certificates.gap)) < 1e-12
    for seed in range(3):
        problem, graph = jax.tree.map(lambda a, seed=seed: a[seed], (problems, graphs))
        plain = gtv.closed_form(
            list(zip(np.asarray(problem.features), np.asarray(problem.targets), strict=True)),
            np.ones(6), graph.edges, graph.edge_weights(), float(couplings[seed]),
        )  # fmt: skip
        close(models[seed], plain, atol=1e-10)


# Networks whose neighbors become equal ----------------------------------------------------------


def by_cvxpy(pairs, importance, coupling, p, solver=cp.CLARABEL):
    w = cp.Variable((len(pairs), pairs[0][0].shape[1]))
    total = sum(
        m / len(y) * cp.sum_squares(X @ w[k] - y)
        for k, (m, (X, y)) in enumerate(zip(importance, pairs, strict=True))
    )
    total += coupling * sum(
        a * (cp.sum_squares(w[k] - w[i]) if p == "squared" else cp.norm(w[k] - w[i], p))
        for (k, i), a in zip(EDGES, WEIGHTS, strict=True)
    )
    problem = cp.Problem(cp.Minimize(total))
    problem.solve(solver=solver)
    return problem.value, w.value


@pytest.mark.thin(0, every=3)
@pytest.mark.parametrize("label", NORMS)
def test_a_network_lasso_equals_cvxpys_solution(label):
    penalty, p = NORMS[label]
    pairs = data()
    everyone = np.ones(6)
    coupled = GTVMin(stacked(pairs, everyone), network(), 0.3, penalty)
    best, models = by_cvxpy(pairs, everyone, 0.3, p)
    result = coupled.solution()
    close(coupled.objective(result.models), best, rtol=1e-7)
    close(result.models, models, atol=1e-4)
    assert float(result.residual) < 1e-12
    # Some neighbors are equal, others not; the flow is then in the ball or on its border.
    away = [np.linalg.norm(result.models[k] - result.models[i]) for k, i in EDGES]
    assert min(away) < 1e-9 < 1e-2 < max(away)
    certificate = coupled.certificate(result.models)
    flow = np.asarray(certificate.flow)
    dual_norm = gtv.p_norm(np.inf if p == 1 else p / (p - 1))
    size = np.array([dual_norm(u) for u in flow]) / (0.3 * WEIGHTS)
    assert np.all(size <= 1 + 1e-12)
    close(size[np.array(away) > 1e-3], 1, atol=1e-9)
    plain = gtv.dual(pairs, everyone, EDGES, WEIGHTS, 0.3, lambda u: 0.0, flow)
    close(certificate.dual, plain, rtol=1e-10)
    assert abs(certificate.gap) < 1e-10


def test_convex_clustering_joins_points_one_after_the_other():
    """(67): of points of one feature and the absolute penalty, an exercise by hand."""
    points = np.array([0.0, 1.0, 4.0])[:, None]
    problem = Problem(np.ones((3, 1, 1)), points, LeastSquares())
    graph = fl.graphs.complete(3)
    solve = jax.jit(lambda a: GTVMin(problem, graph, a, Norm()).solution().models[:, 0])
    # Each edge pulls with alpha, a slope of 2 (w - a) holds: until points meet they move by
    # alpha n / 2, of n more on one side. The first two meet at 2 alpha = 1 + ... hence:
    close(solve(0.2), [0.2, 1.0, 3.8], atol=1e-10)
    close(solve(1.0), [1.0, 1.0, 3.0], atol=1e-10)
    close(solve(5.0), [5 / 3] * 3, atol=1e-10)


@pytest.mark.slow
def test_a_convex_loss_and_penalty_give_cvxpys_solution():
    pairs = data()
    w = cp.Variable((6, 3))

    def best(loss, penalty, coupling):
        total = sum(loss(X, y, w[k]) for k, (X, y) in enumerate(pairs))
        total += coupling * sum(
            a * penalty(w[k] - w[i]) for (k, i), a in zip(EDGES, WEIGHTS, strict=True)
        )
        return cp.Problem(cp.Minimize(total)).solve(solver=cp.CLARABEL)

    def absolute(X, y, w):
        return cp.norm1(X @ w - y) / len(y)

    def huber(X, y, w):
        return cp.sum(cp.huber(X @ w - y, 0.3)) / 2 / len(y)

    mixture = Mixture([0.2, 1.0], (SquaredNorm(), Absolute()))
    for loss, ours, penalty, theirs in (
        (LeastAbsoluteDeviation(), absolute, Norm(), cp.norm2),
        (LeastAbsoluteDeviation(), absolute, SquaredNorm(), cp.sum_squares),
        (Huber(0.3), huber, Absolute(), cp.norm1),
        (Huber(0.3), huber, SquaredNorm(), cp.sum_squares),
        (Huber(0.3), huber, mixture, lambda u: 0.2 * cp.sum_squares(u) + cp.norm1(u)),
    ):
        coupled = GTVMin(from_clients(pairs, loss), network(), 0.2, penalty)
        models = coupled.solve(1e-10)
        close(coupled.objective(models), best(ours, theirs, 0.2), rtol=2e-7)


@pytest.mark.slow
def test_newton_s_steps_end_where_the_gradient_vanishes():
    rng = np.random.default_rng(6)
    pairs = [(X, np.sign(y)) for X, y in data()]
    problem = stacked(pairs, np.ones(6), Logistic(), regularizer=SquaredL2(), strength=0.3)
    coupled = GTVMin(problem, network(), 0.5)
    models = np.asarray(coupled.solve())
    gradient = np.zeros_like(models)
    for k, (X, y) in enumerate(pairs):
        gradient[k] = -(X.T @ (y / (1 + np.exp(y * (X @ models[k]))))) / len(y)
        gradient[k] += 2 * 0.3 / 6 * models[k]
    gradient += gtv.gradient([(X * 0, y) for X, y in pairs], np.ones(6), EDGES, WEIGHTS, 0.5,
                          lambda u: 2 * u, models)  # fmt: skip
    close(gradient, 0, atol=1e-11)
    labels = [(X, rng.integers(0, 3, len(y)).astype(float)) for X, y in pairs]
    several = stacked(labels, np.ones(6), Softmax(3), regularizer=SquaredL2(), strength=0.3)
    result = GTVMin(several, network(), 0.5)
    close(result.gradient(result.solve()), 0, atol=1e-11)
    # Separable labels have no minimum, and that is said.
    separable = [(np.ones((2, 1)), np.ones(2))] * 6
    with pytest.raises(RuntimeError, match="a loss without a minimum a regularizer"):
        GTVMin(from_clients(separable, Logistic()), network(), 1.0).solve()


def test_a_custom_penalty_and_its_missing_methods():
    @fl.module
    class Fourth(Penalty):
        def value(self, difference):
            return jnp.sum(difference**4, axis=-1)

    coupled = GTVMin(stacked(data()), network(), 1.0, Fourth())
    models = np.random.default_rng(7).normal(size=(6, 3))
    plain = gtv.gradient(data(), IMPORTANCE, EDGES, WEIGHTS, 1.0, lambda u: 4 * u**3, models)
    close(jax.jit(coupled.gradient)(models), plain, atol=1e-12)
    with pytest.raises(NotImplementedError, match="Fourth has no method 'prox'"):
        coupled.solve()


def test_mismatched_arguments_are_refused():
    problem = stacked(data())
    with pytest.raises(ValueError, match="a node for each of the 6 clients, got 4"):
        GTVMin(problem, fl.graphs.ring(4), 1.0)
    with pytest.raises(ValueError, match=r"one for each of the 3 parameters, got shape \(2,\)"):
        GTVMin(problem, network(), [1.0, 2.0])
    with pytest.raises(ValueError, match="one coupling for each parameter needs a squared penalty"):
        GTVMin(problem, network(), [1.0, 2.0, 0.0], Norm())
    with pytest.raises(ValueError, match="6 clients, of 3 parameters, got shape"):
        GTVMin(problem, network(), 1.0).objective(np.ones((6, 2)))
    with pytest.raises(ValueError, match="clipping cannot be applied inside an exact minimizer"):
        GTVMin(problem.clipped(1.0), network(), 1.0).solve()
    large = fl.problems.least_squares(jax.random.key(0), clients=500, samples=1, dim=9)
    with pytest.raises(ValueError, match="a dense system of 4500 unknowns, at most 4000"):
        GTVMin(large, fl.graphs.ring(500), 1.0).closed_form()
    with pytest.raises(ValueError, match="needs least squares"):
        GTVMin(stacked(data(), loss=Huber()), network(), 1.0).certificate(np.ones((6, 3)))
    with pytest.raises(ValueError, match="a closed form needs least squares"):
        GTVMin(problem, network(), 1.0, Norm()).closed_form()


# Metrics -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_metrics_of_variation_and_objective():
    key = jax.random.key(0)
    problem = fl.problems.ridge(key, clients=4, samples=5, dim=2)
    graph = fl.graphs.ring(4)
    lasso = Norm()
    metrics = [
        fl.metrics.gtv_objective(0.5, lasso), "total_variation", fl.metrics.trajectory()
    ]  # fmt: skip
    simulation = fl.Simulation(
        problem=problem, network=graph, algorithm=fl.algorithms.NetworkedADMM(1.0), metrics=metrics
    )
    results = fl.run(simulation, rounds=3)
    for record in range(3):
        models = results.model_trajectory.values[record]
        plain = gtv.variation(models, graph.edges, np.ones(4), gtv.squared)
        close(results.total_variation[record], plain, rtol=1e-10)
        objective = GTVMin(problem, graph, 0.5, lasso).objective(models)
        close(results.gtv_objective[record], objective, rtol=1e-12)
    # Under an attack over the honest clients, and the edges among them: here one.
    honest = jnp.asarray([True, True, False, False])
    now = fl.metrics.Snapshot(problem, graph, jnp.asarray(models), None, honest=honest)
    away = models[0] - models[1]
    close(fl.metrics.total_variation.measure(now), away @ away, rtol=1e-12)
    of_two = problem.objective(models)[:2].sum() + 0.5 * np.linalg.norm(away)
    close(metrics[0].measure(now), of_two, rtol=1e-12)
    assert fl.metrics.gtv_objective(0.5, lasso) == fl.metrics.gtv_objective(0.5, Norm())
    assert fl.metrics.gtv_objective(0.5) != fl.metrics.gtv_objective(0.6)
    assert hash(fl.metrics.gtv_objective(0.5)) == hash(fl.metrics.gtv_objective(0.5))
    with pytest.raises(TypeError, match="must be a known number, got a traced one"):
        jax.jit(fl.metrics.gtv_objective)(0.5)
    with pytest.raises(ValueError, match="'total_variation' needs a graph that is the same"):
        fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["total_variation"])


@pytest.mark.parametrize("penalty", [SquaredNorm(), Norm()])
@pytest.mark.parametrize("nodes", [3, 90])
@pytest.mark.thin(1, every=1)
def test_couplings_are_solved_one_by_one_unless_small(nodes, penalty):
    graph = fl.graphs.ring(nodes)
    problem = fl.problems.least_squares(jax.random.key(0), clients=nodes, samples=6, dim=3)
    couplings = jnp.geomspace(0.05, 1.0, 7)

    def solve(problem, coupling):
        return GTVMin(problem, graph, coupling, penalty).solution(1e-9, 500)

    over = jax.vmap(solve, (None, 0))
    together = over(problem, couplings)
    separately = [solve(problem, coupling) for coupling in couplings]
    for row, alone in enumerate(separately):
        np.testing.assert_allclose(together.models[row], alone.models, atol=1e-10)
        assert together.iterations[row] == alone.iterations
    program = str(jax.make_jaxpr(over)(problem, couplings))
    assert ("length=7" in program) == (nodes == 90)  # a loop over the couplings
    with traced_for("cuda"):  # which takes nothing that was traced for a CPU
        program = str(jax.make_jaxpr(jax.vmap(solve, (None, 0)))(problem, couplings))
    assert "length=7" not in program
