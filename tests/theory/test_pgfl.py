"""Section 5.3 of the thesis: PGFL predicted and simulated, against the thesis's claims."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import module
from fljax._core.prng import as_key
from fljax.algorithms.graph.pgfl import GFL, PGFL, ClusterFL
from fljax.graphs.federation import Federation
from fljax.optimization.schedules import GeometricDecay
from fljax.privacy import accounting
from fljax.problems import LeastSquares, Logistic, SquaredL2, Tasks, from_clients
from fljax.simulation.scan import advance, begin, prepare
from fljax.theory import pgfl as theory
from tests.cases import gap_of
from tests.reference import theory as statements
from tests.reference.pgfl import Client, central, pgfl, primal

DIM = 3
PENALTY = 3.0
SERVER = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3])  # unequal cells
CLUSTER = np.array([0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1])
EDGES = ((0, 1), (0, 2), (0, 3), (1, 2))
SAMPLES = (4, 6, 5, 8, 7, 4, 5, 6, 9, 4, 5, 7, 6, 8, 5)
close = functools.partial(np.testing.assert_allclose, rtol=0)


@functools.cache
def make_data(spread=0.5, noise=0.5, classify=False):
    """``(X, y)`` of each client; the two clusters' models are ``1 -+ spread`` times another."""
    rng = np.random.default_rng(1)
    truth = np.outer([1 - spread, 1 + spread], rng.normal(size=DIM))
    data = []
    for size, q in zip(SAMPLES, CLUSTER, strict=True):
        X = rng.normal(size=(size, DIM))
        y = X @ truth[q] + noise * rng.normal(size=size)
        data.append((X, np.sign(y) if classify else y))
    return tuple(data)


RIDGE = 0.05  # each client's, lambda / |C_s|


def make_problem(data, cluster=CLUSTER, loss=LeastSquares()):  # noqa: B008
    problem = from_clients(data, loss, SquaredL2(), np.full(len(data), RIDGE))
    return dataclasses.replace(problem, tasks=Tasks(cluster, int(max(cluster)) + 1))


def oracle(data, loss="squared"):
    return [Client(X, y, loss, RIDGE) for X, y in data]


def graph(edges, nodes):
    return fl.graphs.from_edges(nodes, edges)


def simulation(algorithm, cluster=CLUSTER, server=SERVER, edges=EDGES, **data):
    network = Federation(server, graph(edges, int(max(server)) + 1) if len(edges) else None)
    return fl.Simulation(make_problem(make_data(**data), cluster), algorithm, network)


#: LLVM's passes are a good part of the time to compile and change nothing here.
_run = jax.jit(
    theory.server_models,
    static_argnames="rounds",
    compiler_options={"xla_backend_optimization_level": 0},
)


def simulate(case, rounds):
    return np.asarray(_run(case, as_key(0), rounds=rounds))


EMPTIED = np.where((SERVER == 0) | (SERVER == 1), 0, CLUSTER)  # no second cluster at two servers
CASES = {
    "plain": simulation(PGFL(PENALTY)),
    "large penalty": simulation(PGFL(20.0)),
    "mixing": simulation(PGFL(PENALTY, 0.3)),
    "aggregate": simulation(PGFL(PENALTY, 0.3, dual_reference="aggregate")),
    "keep": simulation(PGFL(PENALTY, 0.2), EMPTIED),
    "skip": simulation(PGFL(PENALTY, 0.2, empty_cell="skip"), EMPTIED),
    "skip without a neighbor": simulation(  # server 3 has no neighbor in cluster 1
        PGFL(PENALTY, 0.2, empty_cell="skip"), np.where(np.isin(SERVER, [0, 3]), 0, CLUSTER)
    ),
    "GFL": simulation(GFL(PENALTY)),
    "ClusterFL": simulation(ClusterFL(PENALTY, 0.4)),
    "one server": simulation(PGFL(9.0, 0.1), server=0 * SERVER, edges=()),
}
each_case = pytest.mark.parametrize("name", CASES)


# Optima and runs --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "name"), [(LeastSquares(), "squared"), (Logistic(), "logistic")])
def test_cluster_optima_are_those_of_newton(loss, name):
    data = make_data(classify=name == "logistic")
    clients = oracle(data, name)
    theirs = [central([c for c, q in zip(clients, CLUSTER, strict=True) if q == r]) for r in (0, 1)]
    close(theory.cluster_optima(make_problem(data, loss=loss)), theirs, atol=1e-9)


def test_server_models_equal_the_loops():
    ours = simulate(simulation(PGFL(PENALTY, GeometricDecay(0.4, 0.9))), 6)
    theirs = pgfl(
        oracle(make_data()), SERVER, CLUSTER, EDGES, 6, PENALTY, lambda n: 0.4 * 0.9**n, 4, 2
    )
    close(ours, theirs.mixed, atol=1e-12)


@pytest.mark.slow
def test_runs_of_one_key_have_the_same_noise_for_any_mixing():
    privacy = fl.privacy.ZCDP(total_rho=1.0)
    plain, mixed = (
        simulate(dataclasses.replace(simulation(PGFL(PENALTY, t)), privacy=privacy), 5)
        for t in (0.0, 1e-9)
    )
    close(mixed, plain, atol=1e-7)
    assert np.abs(plain - simulate(CASES["plain"], 5)).max() > 0.1


# Theorem I --------------------------------------------------------------------------------------


@each_case
def test_a_round_is_the_affine_map(name):
    case = CASES[name]
    of = theory.affine_round(case)
    server = np.zeros((of.mean.shape[0], DIM))
    dual = np.zeros((len(SERVER), DIM))
    for models in simulate(case, 5):
        server, dual = of(server, dual)
        close(server.reshape(of.shape), models, atol=1e-12)
    assert np.abs(server).max() > 0.1


@pytest.mark.thin(4)
@each_case
def test_fixed_point_and_rate_are_those_of_a_long_run(name):
    case = CASES[name]
    rest = theory.fixed_point(case)
    factor = theory.rate(case)
    models = simulate(case, 700)
    close(models[-1], rest, atol=1e-10)
    # The window: from where the slowest mode is alone to where rounding is not yet seen.
    first, last = (int(np.log(size) / np.log(factor)) for size in (1e-4, 1e-9))
    error = np.log(np.linalg.norm((models - rest).reshape(len(models), -1), axis=1))
    log_rate = np.polyfit(np.arange(first, last), error[first:last], 1)[0]
    assert log_rate == pytest.approx(np.log(factor), rel=0.01)


@pytest.mark.parametrize("name", ["plain", "aggregate", "one server"])
def test_rate_of_a_large_map_is_the_same(name, monkeypatch):
    exact = theory.rate(CASES[name])
    monkeypatch.setattr(theory, "FEW_NUMBERS", 1)
    assert theory.rate(CASES[name]) == pytest.approx(exact, rel=1e-9)


def test_fixed_point_is_where_the_model_is_its_neighbors_mean_of_steps():
    """``w = Abar (w - g(w) / rho)``, in loops."""
    clients = oracle(make_data())
    rest = theory.fixed_point(CASES["plain"])
    near = [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 3]]
    for s in range(4):
        for q in range(2):
            steps = []
            for p in near[s]:
                cell = np.flatnonzero((p == SERVER) & (q == CLUSTER))
                gradient = np.mean([clients[k].gradient(rest[p, q]) for k in cell], axis=0)
                steps.append(rest[p, q] - gradient / PENALTY)
            close(rest[s, q], np.mean(steps, axis=0), atol=1e-12)


@pytest.mark.slow
def test_convergence_is_to_a_neighborhood_of_order_one_over_the_penalty():
    """The theorem's optimum is not reached by any penalty, another one is approached."""
    biases = [theory.bias(simulation(PGFL(10.0**i))) for i in range(1, 6)]
    to_limit = np.array([b.limit.mean() for b in biases])
    to_optimum = np.array([b.optimum.mean() for b in biases])
    close(to_limit[1:-1] / to_limit[2:], 100, atol=15)  # squared distances
    assert to_limit[0] > 3e-4
    assert to_optimum[-1] == pytest.approx(to_optimum[-2], rel=1e-2)
    assert to_optimum.min() > 1e-3
    for p in (10.0, 1000.0):  # the simulation is there
        case = simulation(PGFL(p))
        models = simulate(case, int(np.log(1e-10) / np.log(theory.rate(case))))[-1]
        gap = np.sum((models - theory.large_penalty_limit(case)) ** 2, -1)
        near = gap / np.sum(theory.large_penalty_limit(case) ** 2, -1)
        close(near.mean(), theory.bias(case).limit.mean(), rtol=1e-4, atol=0)


def weighted(data, weights):
    """``argmin sum_k weights_k f_k`` of ridge clients."""
    clients = oracle(data)
    zero = np.zeros(DIM)
    system = sum(c * k.hessian(zero) for c, k in zip(weights, clients, strict=True))
    return np.linalg.solve(
        system, -sum(c * k.gradient(zero) for c, k in zip(weights, clients, strict=True))
    )


def cell_sizes(cluster):
    """``[K]``, of each client's cell."""
    cells = zip(SERVER, cluster, strict=True)
    return np.array([np.sum((s == SERVER) & (q == cluster)) for s, q in cells])


def test_limits_weigh_servers_by_neighbors_and_cells_equally():
    degree = np.array([4, 3, 3, 2])  # of EDGES, each server among its neighbors
    for name in ("plain", "keep"):
        cluster = EMPTIED if name == "keep" else CLUSTER
        case = simulation(PGFL(1.0), cluster)
        for q in (0, 1):
            theirs = weighted(make_data(), (cluster == q) * degree[SERVER] / cell_sizes(cluster))
            for model in theory.large_penalty_limit(case)[:, q]:
                close(model, theirs, atol=1e-10)
    # Cells that are left out do not count as neighbors: only servers 2 and 3 have cluster 1 and
    # they are not neighbors, so nothing makes them agree.
    skipping = theory.large_penalty_limit(simulation(PGFL(1.0, empty_cell="skip"), EMPTIED))
    for s in (2, 3):
        theirs = weighted(make_data(), ((EMPTIED == 1) & (s == SERVER)).astype(float))
        close(skipping[s, 1], theirs, atol=1e-10)
    cluster = np.where(SERVER == 3, 0, CLUSTER)
    present = np.array([3, 3, 3, 0])
    theirs = weighted(make_data(), (cluster == 1) * present[SERVER] / cell_sizes(cluster))
    skipping = theory.large_penalty_limit(simulation(PGFL(1.0, empty_cell="skip"), cluster))
    close(skipping[:, 1], np.broadcast_to(theirs, (4, DIM)), atol=1e-10)


def test_unequal_cells_miss_the_optimum_on_a_complete_graph_and_equal_ones_meet_it():
    complete = tuple((s, p) for s in range(4) for p in range(s))
    unequal = simulation(PGFL(1.0), edges=complete)
    limit = theory.large_penalty_limit(unequal)
    for q in (0, 1):
        close(limit[0, q], weighted(make_data(), (q == CLUSTER) / cell_sizes(CLUSTER)), atol=1e-10)
    assert np.abs(limit[0] - theory.cluster_optima(unequal.problem)).max() > 1e-2

    ring = ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))
    cluster = np.arange(15) % 3
    server = np.arange(15) // 3
    equal = simulation(PGFL(1.0), cluster, server, ring)
    best = theory.cluster_optima(equal.problem)
    close(theory.large_penalty_limit(equal), np.broadcast_to(best, (5, 3, DIM)), atol=1e-9)
    assert theory.bias(equal).optimum.max() > 1e-2  # at a penalty of 1


def test_constant_mixing_removes_personalization_at_large_penalties():
    case = simulation(PGFL(1e6, 0.1))
    limit = theory.large_penalty_limit(case)
    degree = np.array([4, 3, 3, 2])
    close(limit, np.broadcast_to(limit[:1, :1], limit.shape), atol=1e-10)
    close(limit[0, 0], weighted(make_data(), degree[SERVER] / cell_sizes(CLUSTER)), atol=1e-10)
    close(theory.fixed_point(case), limit, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.01, 1.0, 50.0])
def test_a_single_server_finds_the_optimum_under_any_penalty(penalty):
    one_each = simulation(
        PGFL(penalty), np.repeat([0, 1], [7, 8]), np.zeros(15, int), edges=()
    )  # one cell each: ADMM
    best = theory.cluster_optima(one_each.problem)
    close(theory.fixed_point(one_each)[0], best, atol=1e-9)
    assert theory.rate(one_each) < 1


def test_too_small_a_penalty_diverges():
    result = {}
    for penalty in (0.1, 0.3, 1.0):
        case = simulation(PGFL(penalty))
        size = np.linalg.norm(
            (simulate(case, 600) - theory.fixed_point(case)).reshape(600, -1), axis=1
        )
        result[penalty] = theory.rate(case), size[-1] / size[299]
    for factor, growth in result.values():
        assert (factor > 1) == (growth > 1)
        if factor > 1:
            assert np.log(growth) / 300 == pytest.approx(np.log(factor), rel=0.05)
    assert result[0.1][0] > 1 > result[1.0][0]


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (TypeError, "PGFL", {"algorithm": fl.algorithms.FedAvg(0.1), "network": None}),
        (ValueError, "every client", {"algorithm": PGFL(1.0, clients_per_server=2)}),
        (
            ValueError,
            "every client",
            {"participation": fl.participation.Trace(np.ones((9, 15), bool))},
        ),
        (ValueError, "compressed", {"compression": fl.link.Quantize(8)}),
        (ValueError, "number", {"algorithm": PGFL(1.0, GeometricDecay(0.4, 0.98))}),
        (
            ValueError,
            "squared",
            {"problem": make_problem(make_data(classify=True), loss=Logistic())},
        ),
    ],
)
def test_refuses_maps_that_are_not_affine(error, match, change):
    with pytest.raises(error, match=match):
        theory.affine_round(dataclasses.replace(CASES["plain"], **change))


def test_bias_needs_a_model_for_each_cluster():
    with pytest.raises(ValueError, match="one model"):
        theory.bias(CASES["GFL"])


# Theorem II -------------------------------------------------------------------------------------


def test_bound_is_the_sum_of_products():
    shares = 0.4 * 0.98 ** np.arange(1, 41)
    printed = [
        3.0 * sum(np.prod(1 - shares[i + 1 : n]) * shares[i] for i in range(n))
        for n in range(1, 41)
    ]
    close(theory.inter_cluster_bound(GeometricDecay(0.4, 0.98), 40, 3.0), printed, atol=1e-12)
    close(theory.inter_cluster_bound(0.25, 3, 2.0), [0.5, 0.875, 1.15625], atol=1e-12)
    assert theory.inter_cluster_bound(GeometricDecay(0.4, 0.98), 300, 1.0)[-1] > 0.999999


def test_cluster_distance_is_the_largest_and_squared():
    assert theory.cluster_distance(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]])) == 5.0


def twins(penalty, share, rounds, **data):
    """Both sides of the theorem for one pair of runs, and eta."""
    runs = [simulate(simulation(PGFL(penalty, t), **data), rounds) for t in (0.0, share)]
    distance = theory.cluster_distance(theory.cluster_optima(make_problem(make_data(**data))))
    return statements.theorem_two(*runs, share, distance), distance


def test_sides_equal_a_loop():
    rng = np.random.default_rng(3)
    runs = rng.normal(size=(2, 6, 4, 3, 2, DIM))  # six draws, four rounds, three servers
    sides = statements.theorem_two(*runs, 0.5, np.arange(6.0))
    left = [
        max(
            np.mean([np.sum((runs[0, m, n, s, q] - runs[1, m, n, s, q]) ** 2) for m in range(6)])
            for s in range(3)
            for q in range(2)
        )
        for n in range(4)
    ]
    close(sides.ratio, left / (2.5 * (1 - 0.5 ** np.arange(1, 5))), atol=1e-12)


@module
class Once:
    """Mixing in one round alone."""

    share: float
    at: int

    def __call__(self, n):
        return jnp.where(n.astype(float) == self.at, self.share, 0.0)


def test_the_corollary_bounds_a_single_mixing_and_is_loose_by_its_share():
    share = 0.4
    rounds = 300

    sides, distance = twins(30.0, Once(share, rounds), rounds)
    assert sides.right[-1] == pytest.approx(share * distance)
    assert np.all(sides.right[:-1] == 0)
    assert np.all(sides.ratio[:-1] == 0)
    assert 0.5 * share < sides.ratio[-1] < 1.2 * share


def test_theorem_two_holds_for_well_separated_clusters_and_in_their_steady_state():
    for penalty in (3.0, 30.0):
        sides, _ = twins(penalty, 0.4, 300)
        assert 0.1 < sides.ratio.max() < 1
    # Clusters that are close: in the end, not on the way.
    sides, distance = twins(3.0, 0.4, 300, spread=0.03, noise=0.2)
    assert sides.ratio[-1] < 1
    decaying, _ = twins(3.0, GeometricDecay(0.4, 0.98), 800, spread=0.03, noise=0.2)
    assert decaying.ratio[-1] < 1e-3
    assert decaying.right[-1] > 0.999 * distance


@pytest.mark.slow
def test_theorem_two_fails_on_the_way_where_clusters_are_close():
    worst = []
    for penalty in (1.0, 3.0, 30.0, 300.0):
        rounds = 300 if penalty < 100 else 4000
        sides, _ = twins(penalty, 0.4, rounds, spread=0.01, noise=0.1)
        worst.append(sides.ratio.max())
        assert sides.ratio[-1] < 1
    assert worst[0] > 4
    assert min(worst) > 2  # "sufficiently large" does not help


def slanted(angle=0.2, extra=1e-3):
    """Two noiseless clusters that each hardly see a direction, nearly the same one."""
    directions = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])
    truth = np.array([[0.0, 0.0], [1.0, 0.0]]) @ np.array([directions[1], [0.0, 1.0]])
    data = []
    for k in range(4):
        q = k % 2
        X = np.vstack([directions[q], extra * np.eye(2)])
        data.append((X, X @ truth[q]))
    problem = from_clients(data, LeastSquares(), SquaredL2(), 0.0)
    problem = dataclasses.replace(problem, tasks=Tasks(np.array([0, 1, 0, 1]), 2))
    return problem, fl.federation.balanced(2, fl.graphs.complete(2))


@pytest.mark.slow
def test_theorem_two_fails_in_the_steady_state_by_any_factor():
    """No noise, equal cells, a complete graph, a large penalty: still false."""
    for angle in (0.3, 0.2):
        problem, network = slanted(angle)
        eta = theory.cluster_distance(theory.cluster_optima(problem))
        assert eta == pytest.approx(1, rel=1e-6)
        plain, mixed = (
            theory.fixed_point(fl.Simulation(problem, PGFL(100.0, t), network)) for t in (0.0, 0.4)
        )
        rest = np.sum((plain - mixed) ** 2, -1).max()
        assert rest == pytest.approx(1 / np.sin(angle) ** 2, rel=0.02)  # against a bound of 1
    # A run gets there, at a penalty of the size of the data's curvature.
    problem, network = slanted(0.3, extra=0.1)
    eta = theory.cluster_distance(theory.cluster_optima(problem))
    runs = [simulate(fl.Simulation(problem, PGFL(2.0, t), network), 6000) for t in (0.0, 0.4)]
    sides = statements.theorem_two(*runs, 0.4, eta)
    assert sides.ratio[-1] > 1.5
    assert sides.ratio[-1] == pytest.approx(sides.ratio[-1000], rel=1e-3)


# Theorems III and IV ----------------------------------------------------------------------------


def test_both_readings_of_the_published_total():
    growing = [theory.zcdp_total(0.001, 0.99, 300, first=n) for n in (0, 1)]
    falling = [theory.zcdp_total(0.001, 0.99, 300, "budget", n) for n in (0, 1)]
    close(growing, [1.9197, 1.9391], atol=5e-5)
    close(falling, [0.0951, 0.0941], atol=5e-5)
    for n in (0, 1):
        rounds = np.arange(n, n + 300)
        assert growing[n] == pytest.approx(0.001 * np.sum(0.99**-rounds))
        assert falling[n] == pytest.approx(0.001 * np.sum(0.99**rounds))
    close(
        [accounting.zcdp_epsilon(v, 1e-5) for v in (growing[0], falling[0])],
        [11.32, 2.188],
        atol=5e-3,
    )
    first = 0.001
    at = 0.99**299  # (51), whose phi^(1) is the first budget
    ratio = first * (1 - 0.99**300) / (at - 0.99**300)
    printed = ratio + 2 * np.sqrt(ratio * np.log(1e5))
    assert accounting.zcdp_epsilon(growing[0], 1e-5) == pytest.approx(printed)


@pytest.mark.long
@pytest.mark.slow
def test_drawn_clients_spend_the_ledger_in_expectation():
    rounds = 400
    privacy = fl.privacy.ZCDP.from_initial(0.001, 0.99, rounds)
    case = dataclasses.replace(simulation(PGFL(PENALTY, clients_per_server=1)), privacy=privacy)
    prepared = prepare(case, rounds)
    key = as_key(0)
    start = begin(case, prepared, key)
    carry, _ = advance(case, prepared, key, start, 0, 1, rounds, rounds)
    spent = np.asarray(carry.spent["rho"]).sum(axis=0)
    probability = 1 / np.bincount(SERVER)[SERVER]
    expected = np.array(
        [theory.zcdp_total(0.001, 0.99, rounds, participation=p) for p in probability]
    )
    budgets = 0.001 * 0.99 ** -np.arange(rounds)
    deviation = np.sqrt(probability * (1 - probability) * np.sum(budgets**2))
    assert np.all(np.abs(spent - expected) < 4 * deviation)
    # All clients' draws together say it better.
    assert spent.sum() == pytest.approx(expected.sum(), rel=0.02)


def test_sensitivity_bounds_the_primal_step_of_neighboring_data():
    """Lemma 5.1 is an inequality: it holds and is not attained."""
    rng = np.random.default_rng(2)
    penalty = 0.7
    size = 4
    ratios = []
    for _ in range(100):
        X = rng.normal(size=(size, DIM))
        dual = rng.normal(size=DIM)
        received = rng.normal(size=DIM)
        X /= np.linalg.norm(X, axis=1, keepdims=True)  # gradients of at most one
        y = np.sign(rng.normal(size=size))
        other_X = X.copy()
        other_y = y.copy()
        other_X[0] = X[0]
        other_y[0] = -y[0]
        steps = [
            primal(Client(a, b, "logistic"), dual, received, penalty)
            for a, b in ((X, y), (other_X, other_y))
        ]
        ratios.append(np.linalg.norm(steps[0] - steps[1]) / theory.sensitivity(1.0, penalty, size))
    assert 0.2 < max(ratios) < 1
    problem = make_problem(make_data())
    at = (CASES["plain"].network, jnp.asarray(1), gap_of(problem))
    ours = PGFL(penalty).sensitivity(problem, *at)
    close(ours, theory.sensitivity(1.0, penalty + 2 * RIDGE, np.array(SAMPLES)), atol=1e-14)
