"""Federated learning networks (Jung 2025): algorithms against loops, closed forms and bounds."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._generator import as_key
from fljax._numerics import key_of
from fljax.algorithms import (
    ExactFedProx,
    FedAvg,
    FedGD,
    FedRelax,
    NetworkedFedSGD,
    NetworkedIteration,
    NetworkState,
)
from fljax.batches import Cyclic, Uniform, Weighted, taken
from fljax.engine import trace
from fljax.participation import Bernoulli, Bounded, Trace
from fljax.problems import (
    L1,
    GTVMin,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    SquaredL2,
    from_clients,
)
from tests.cases import CLIENTS, DIM, EDGES, EXACT, SIZES, keys_of, make_data
from tests.marks import quiet
from tests.reference import networks

close = np.testing.assert_allclose
DATA = make_data()
STRENGTHS = np.array([0.5, 1.0, 2.0, 0.7, 1.3, 0.4])
ADJACENCY = networks.weights_of(CLIENTS, [(*e, a) for e, a in zip(EDGES, STRENGTHS, strict=True)])
START = np.zeros((CLIENTS, DIM))
ALONE = np.array([np.linalg.lstsq(X, y, rcond=None)[0] for X, y in DATA])
RNG = np.random.default_rng(3)
POINTS = RNG.normal(size=(CLIENTS, DIM))

_trace = jax.jit(trace, static_argnums=(2, 3))


def problem(**kwargs):
    return from_clients(DATA, LeastSquares(), **kwargs)


def network(adjacency=ADJACENCY):
    return fl.graphs.from_adjacency(adjacency, allow_disconnected=True)


def simulate(algorithm, **parts):
    parts = {"problem": problem(), "network": network()} | parts
    return fl.Simulation(algorithm=algorithm, metrics=(EXACT,), **parts)


def models(algorithm, rounds, key=1, **parts):
    """``[T, K, D]``."""
    return np.asarray(_trace(simulate(algorithm, **parts), as_key(key), rounds, 1)[0]["exact"])


def operated(algorithm, at=POINTS, **parts):
    """What the operator makes of these models, heard as they are."""
    now = fl.view(simulate(algorithm, **parts))
    state = algorithm.init(now.problem, now.network)
    heard = now.network.mixing("neighbors")(jnp.asarray(at))
    return np.asarray(algorithm.operator(state._replace(model=jnp.asarray(at), heard=heard), now))


# Asynchrony ------------------------------------------------------------------------------------


EVENTS, LONGEST = 14, 3
ACTIVE = RNG.random((EVENTS, CLIENTS)) < 0.6
AGES = RNG.integers(0, LONGEST + 1, (EVENTS, CLIENTS, CLIENTS)).astype(np.int32)
#: What is shared after one event is heard in the next.
DELAY = np.concatenate([np.zeros_like(AGES[:1]), AGES[:-1]])
LATE = {"participation": Trace(ACTIVE), "delays": fl.link.EdgeDelays(AGES, LONGEST)}
STEPS = np.array([0.03, 0.05, 0.02, 0.04, 0.06])


def rows_of(law, rounds=EVENTS, key=1):
    """``[T][K]``: the samples of the batches that a run drew."""
    real = jnp.asarray(np.arange(max(SIZES)) < np.array(SIZES)[:, None])
    everyone = jnp.arange(CLIENTS)
    result = []
    for n, now in enumerate(keys_of(key, rounds), start=1):
        rows = law.at(n, 1).draw(key_of(now, "batches"), real, everyone, 1).rows[:, 0]
        result.append([[r for r in mine if r < SIZES[k]] for k, mine in enumerate(rows.tolist())])
    return result


def noisy(key, problem, models):
    return problem.gradient(models) + jax.random.normal(key, models.shape, models.dtype)


def gradient_loop(slope, coupling=0.4, step=lambda k, t: STEPS[k]):
    return networks.gradient_step(slope, ADJACENCY, coupling, step)


def whole(k, w, t):
    return networks.mean_squared_slope(DATA, k, w)


def on_batches(law):
    rows = rows_of(law)
    return lambda k, w, t: networks.mean_squared_slope(DATA, k, w, rows[t][k])


def in_passes(size):
    """Sample by sample from the first to the last, batch by batch, in each pass anew."""

    def slope(k, w, t):
        starts = range(0, SIZES[k], size)
        first = starts[t % len(starts)]
        rows = range(first, min(first + size, SIZES[k]))
        return networks.mean_squared_slope(DATA, k, w, rows)

    return slope


def by_oracle(k, w, t):
    noise = jax.random.normal(key_of(keys_of(1, EVENTS)[t], "algorithm"), (CLIENTS, DIM), float)
    return whole(k, w, t) + np.asarray(noise)[k]


AGAINST_LOOPS = {
    "FedRelax": lambda: (FedRelax(0.4), networks.relaxation(DATA, ADJACENCY, 0.4)),
    "FedGD": lambda: (FedGD(0.4, STEPS), gradient_loop(whole)),
    "FedRelax, by parameter": lambda: (
        FedRelax([0.4, 0.0, 1.1]),
        networks.relaxation(DATA, ADJACENCY, np.array([0.4, 0.0, 1.1])),
    ),
    "FedRelax, by the norm": lambda: (
        FedRelax(0.1, 1000, fl.problems.Norm()),
        networks.relaxation_by_norm(DATA, ADJACENCY, 0.1),
    ),
    "FedGD, by parameter": lambda: (
        FedGD([0.4, 0.0, 1.1], fl.schedules.PowerDecay(0.1)),
        gradient_loop(whole, np.array([0.4, 0.0, 1.1]), lambda k, t: 0.1 / (t + 1) ** 0.5),
    ),
    "FedSGD, cyclic": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=Cyclic(5)),
        gradient_loop(on_batches(Cyclic(5))),
    ),
    "FedSGD, cyclic, the last batch short": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=Cyclic(5, whole=False)),
        gradient_loop(in_passes(5)),
    ),
    "FedSGD, random": lambda: (
        NetworkedFedSGD(0.4, STEPS, batches=Uniform(3)),
        gradient_loop(on_batches(Uniform(3))),
    ),
    "FedSGD, oracle": lambda: (NetworkedFedSGD(0.4, STEPS, oracle=noisy), gradient_loop(by_oracle)),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", AGAINST_LOOPS)
def test_asynchronous_nodes_are_the_loop(name):
    """(128)-(130), with its alpha: who rests keeps its model, hears on, and goes on with that."""
    algorithm, operator = AGAINST_LOOPS[name]()
    result = models(algorithm, EVENTS, **LATE)
    expected = networks.asynchronous(operator, START, ACTIVE, DELAY)
    close(result, expected, rtol=1e-10, atol=1e-12)
    synchronous = networks.synchronous(operator, START, EVENTS)
    assert np.abs(result - synchronous).max() > 1e-3
    if name == "FedRelax":  # the same program: all there, nothing late
        nobody = {
            "participation": Trace(~np.zeros_like(ACTIVE)),
            "delays": fl.link.EdgeDelays(0 * AGES, 3),
        }
        close(models(algorithm, EVENTS, **nobody), synchronous, rtol=1e-10, atol=1e-12)


def contraction(coupling):
    """(133), of the worst node."""
    degree = ADJACENCY.sum(axis=1)
    convexity = [2 * np.linalg.eigvalsh(X.T @ X / len(y))[0] for X, y in DATA]
    return max(1 / (1 + s / (2 * coupling * d)) for s, d in zip(convexity, degree, strict=True))


ACTIVITY = [
    (3, Bounded(3, 0.3), fl.link.Uniform(3)),
    (3, Bounded(3, 0.0), fl.link.Fixed(3)),  # the worst that is allowed
    (1, Bounded(1, 0.5), fl.link.Fixed(1)),
    (5, Bounded(5, np.full(CLIENTS, 0.1)), fl.link.Fixed(5)),
    (5, Bounded(5, 0.0), fl.link.Uniform(5)),
]


@pytest.mark.thin(0, every=2)
@pytest.mark.parametrize(("bound", "pattern", "delays"), ACTIVITY)
def test_partially_asynchronous_relaxation_keeps_its_rate(bound, pattern, delays):
    """(134) repaired: at t it has come at least floor((t + B) / 2B) contractions far."""
    best = networks.closed_form(DATA, ADJACENCY, 0.4)
    result = models(FedRelax(0.4), 60, participation=pattern, delays=delays)
    error = np.linalg.norm(np.concatenate([START[None], result]) - best, axis=2).max(axis=1)
    t = np.arange(61)
    kappa = contraction(0.4)
    assert (error <= error[0] * kappa ** ((t + bound) // (2 * bound)) * (1 + 1e-12)).all()
    assert error[-1] < 0.1 * error[0]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedRelax(0.4), FedGD(0.4)], ids=["FedRelax", "FedGD"])
def test_totally_asynchronous_nodes_come_to_the_same_models(algorithm):
    rare = Bernoulli(np.array([0.9, 0.3, 0.05, 0.5, 0.1]))
    late = fl.link.Geometric(0.8, 30, beyond="clip")
    result = models(algorithm, 6000, participation=rare, delays=late)[-1]
    close(result, networks.closed_form(DATA, ADJACENCY, 0.4), atol=1e-10)


def test_bounded_activity_rests_no_longer_than_its_bound():
    pattern = Bounded(4, np.array([0.0, 0.2, 1.0]))

    def one(state, n):
        state, on = pattern.draw(state, jax.random.fold_in(as_key(0), n), n, 3)
        return state, on

    state = pattern.begin(as_key(1), 3)
    on = np.asarray(jax.lax.scan(one, state, jnp.arange(2000, dtype=jnp.int32))[1])
    windows = np.lib.stride_tricks.sliding_window_view(on, 4, axis=0).any(axis=2)
    assert windows.all()
    close(on.mean(axis=0), [1 / 4, 0.2 / (1 - 0.8**4), 1], atol=0.03)  # a renewal each 1 to 4
    assert not on[:3, 0].any()


def test_delays_known_by_their_bound_are_all_alike_likely():
    drawn = fl.link.Uniform(3).draw(as_key(0), jnp.int32(1), 8000)
    assert tuple(fl.link.Uniform(3).lags) == (0, 1, 2, 3)
    close(np.bincount(drawn, minlength=4) / 8000, 0.25, atol=0.02)


# Fixed points ----------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_the_fixed_point_is_the_closed_form(make):
    """One program for all couplings: alone at zero, one model where it is large."""
    for coupling in (0.0, 0.3, 5.0):
        result = models(make(coupling), 3000)[-1]
        close(result, networks.closed_form(DATA, ADJACENCY, coupling), atol=1e-10)
        if not coupling:
            close(result, ALONE, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_a_large_coupling_leaves_one_model(make):
    pooled = np.asarray(fl.problems.optimum(problem()))
    far = networks.closed_form(DATA, ADJACENCY, 1e7)
    close(far, np.tile(pooled, (CLIENTS, 1)), atol=1e-5)
    close(operated(make(1e7), far), far, atol=1e-7)


@pytest.mark.slow
def test_errors_are_measured_from_the_models_that_are_sought():
    relax = FedRelax([0.4, 0.0, 1.1])
    result = relax.optimum(problem().clipped(1.0), network())
    expected = networks.closed_form(DATA, ADJACENCY, np.array([0.4, 0.0, 1.1]))
    close(result, expected, atol=1e-10)
    close(operated(relax, expected), expected, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedRelax, FedGD, partial(NetworkedFedSGD, batches=Cyclic(12))])
def test_other_losses_come_to_the_solution_of_gtvmin(make):
    data = make_data("logistic")
    logistic = from_clients(data, Logistic(), SquaredL2(), 0.5)
    best = np.asarray(GTVMin(logistic, network(), 0.2).solve())
    result = models(make(0.2), 4000, problem=logistic)[-1]
    close(result, best, atol=1e-9)
    assert np.ptp(best, axis=0).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_few_samples_are_solved_among_themselves(form):
    """Woodbury's way, and the other's where parameters are coupled unequally."""
    data = make_data(sizes=(2, 1, 3, 2, 1), dim=6)
    few = from_clients(data, LeastSquares())
    graph = fl.graphs.from_edges(CLIENTS, EDGES, weights=STRENGTHS, form=form)
    expected = networks.synchronous(
        networks.relaxation(data, ADJACENCY, 0.4), np.zeros((CLIENTS, 6)), 9
    )
    for coupling in (0.4, np.full(6, 0.4)):
        result = models(FedRelax(coupling), 9, problem=few, network=graph)
        close(result, expected, rtol=1e-9, atol=1e-10)


CUT = ADJACENCY * (np.arange(CLIENTS) != 4) * (np.arange(CLIENTS) != 4)[:, None]
UNLABELED = np.array([1.0, 1.0, 0.0, 1.0, 1.0])


@quiet
@pytest.mark.parametrize("make", [FedRelax, pytest.param(FedGD, marks=pytest.mark.slow)])
def test_nodes_without_labels_or_without_neighbors(make):
    """The one learns from its neighbors alone, the other from its data alone."""
    some = problem().weighing(UNLABELED)
    given = {"problem": some, "network": network(CUT), "allow_disconnected": True}
    result = models(make(0.3), 4000, **given)
    data = [pair if labeled else None for pair, labeled in zip(DATA, UNLABELED, strict=True)]
    expected = networks.closed_form(data[:4], CUT[:4, :4], 0.3)
    close(result[-1, :4], expected, atol=1e-10)
    close(result[-1, 4], ALONE[4], atol=1e-10)
    close(result[-1, 2], CUT[2] @ result[-1] / CUT[2].sum(), atol=1e-10)
    # Who has neither stays where it started.
    lost = problem().weighing([1.0, 1.0, 1.0, 1.0, 0.0]).starting_at(jnp.asarray(POINTS))
    result = operated(make(0.3), **(given | {"problem": lost}))
    close(result[4], POINTS[4], rtol=1e-15)
    assert np.isfinite(result).all()


@pytest.mark.slow
@pytest.mark.parametrize("make", [FedRelax, FedGD], ids=["FedRelax", "FedGD"])
def test_on_a_changing_graph_what_was_heard_weighs_as_it_was_heard(make):
    """Round n updates over the graph of round n - 1, over which it heard."""
    other = networks.weights_of(CLIENTS, [(0, 1, 2.0), (2, 3, 0.5), (3, 4, 1.5)])
    both = [ADJACENCY, other]
    varying = fl.graphs.Schedule([network(), network(other)])
    result = models(make(0.4), 7, network=varying)
    expected, now = [], START
    if make is FedGD:  # the default step on each graph
        top = max(np.linalg.eigvalsh(2 * X.T @ X / len(y))[-1] for X, y in DATA)
    for n in range(7):
        graph = both[max(0, n - 1) % 2]
        operator = networks.relaxation(DATA, graph, 0.4)
        if make is FedGD:
            step = 1 / (top + 4 * 0.4 * graph.sum(axis=1).max())
            operator = networks.gradient_step(whole, graph, 0.4, lambda k, t, s=step: s)
        now = networks.synchronous(operator, now, 1)[0]
        expected.append(now)
    close(result, expected, rtol=5e-3 if make is FedGD else 1e-10, atol=1e-10)


# Steps -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_step_is_that_of_the_bound_and_others_are_warned_of():
    """(106): the largest eigenvalue of the whole system is no further up."""
    top = max(np.linalg.eigvalsh(2 * X.T @ X / len(y))[-1] for X, y in DATA)
    upper = top + 4 * 0.4 * ADJACENCY.sum(axis=1).max()
    moved = operated(FedGD(0.4)) - POINTS
    slope = operated(FedGD(0.4, 1.0)) - POINTS
    close(moved, slope / upper, rtol=1e-2)
    assert (np.abs(moved) <= np.abs(slope / upper) * (1 + 1e-12)).all()  # from the safe side
    laplacian = np.diag(ADJACENCY.sum(axis=1)) - ADJACENCY
    system = np.kron(2 * 0.4 * laplacian, np.eye(DIM))
    for k, (X, y) in enumerate(DATA):
        system[k * DIM : (k + 1) * DIM, k * DIM : (k + 1) * DIM] += 2 * X.T @ X / len(y)
    assert np.linalg.eigvalsh(system)[-1] <= upper
    with pytest.warns(fl.AssumptionWarning, match=r"above the bound .* 2 / \(L \+ 4 coupling"):
        far = fl.run(fl.Simulation(problem(), FedGD(0.4, 2.1 / upper), network()), 2)
    close(far.step_bound, 2 / upper, rtol=1e-2)
    close(far.first_step, 2.1 / upper)


@pytest.mark.slow
def test_nothing_is_said_of_a_step_within_the_bound(recwarn):
    for step in (0.05, np.full(CLIENTS, 0.05), None):
        results = fl.run(fl.Simulation(problem(), FedGD(0.4, step), network()), 2)
        assert ("step_bound" in results) == (step is not None)
    assert not recwarn.list


#: (coupling, spectral radius) of the book's exercise 5.1 with the step 0.0005.
RADII = {
    (1.0, 1000.0): [
        *((0.0, 0.999), (1.0, 0.998001), (10.0, 0.9891), (100.0, 0.9089), (400.0, 0.7394)),
        *((499.0, 0.7065), (600.0, 0.8812), (700.0, 1.0604)),
    ],
    (1000.0, 1000.0): [(a, 0.002 * a) for a in (0.0, 1.0, 10.0, 100.0, 400.0, 499.0, 600.0)],
}


@pytest.mark.slow
def test_two_nodes_contract_as_in_the_book():
    """Exercise 5.1: a larger coupling speeds one collection up and slows the other."""
    one = fl.problems.Problem(jnp.ones((2, 1, 1)), jnp.full((2, 1), -5.0), LeastSquares())
    graph = fl.graphs.complete(2)
    now = fl.view(fl.Simulation(one, FedGD(1.0, 5e-4), graph))

    def step(coupling, factors, at):
        loss = dataclasses.replace(one, weights=factors[:, None], importance=factors)
        now.problem = loss
        heard = graph.mixing("neighbors")(at)
        state = NetworkState(at, heard, graph.degree, None)
        return FedGD(coupling, 5e-4).operator(state, now)

    def matrix(coupling, factors):
        """Of the affine step, column by column."""
        zero = step(coupling, factors, jnp.zeros((2, 1)))
        moved = [step(coupling, factors, jnp.eye(2)[:, [k]]) - zero for k in range(2)]
        return jnp.concatenate(moved, axis=1)

    every = jax.jit(jax.vmap(matrix, (0, None)))
    for factors, rows in RADII.items():
        couplings, radii = np.array(rows).T
        result = every(jnp.asarray(couplings), jnp.asarray(factors))
        spectral = np.abs(np.linalg.eigvals(np.asarray(result))).max(axis=1)
        close(spectral, radii, atol=6e-5)


def test_coupling_moves_no_mean():
    """The Laplacian's columns sum to zero: only gradients do."""
    moved = operated(FedGD(0.4, 0.05)) - POINTS
    slopes = np.array([whole(k, w, 0) for k, w in enumerate(POINTS)])
    close(moved.sum(axis=0), -0.05 * slopes.sum(axis=0), rtol=1e-12)


@fl.module
class Linearized(NetworkedIteration):
    """FedRelax with its loss replaced by the tangent and a proximity of 1 / (2 step)."""

    coupling: float
    step_size: float

    def operator(self, state, now):
        pull = 2 * self.coupling * state.degree[:, None]
        right = state.model / self.step_size + pull * state.heard
        right = right - now.problem.gradient(state.model)
        return right / (1 / self.step_size + pull)


def test_an_operator_of_ones_own():
    """Exercise 5.7: the linearized FedRelax is FedGD with steps of each node."""
    steps = 0.05 / (1 + 2 * 0.4 * 0.05 * ADJACENCY.sum(axis=1))
    close(operated(Linearized(0.4, 0.05)), operated(FedGD(0.4, steps)), rtol=1e-12)


# Estimates of gradients ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_round_of_cyclic_batches_is_all_samples():
    """Enumerated: over sizes that a batch divides, their gradients' mean is the gradient."""
    even = from_clients([(X[:4], y[:4]) for X, y in DATA], LeastSquares())
    everyone, real = jnp.arange(CLIENTS), jnp.ones((CLIENTS, 4), bool)
    law, at = Cyclic(2), jnp.asarray(POINTS)
    batches = [law.at(n, 1).draw(as_key(0), real, everyone, 1) for n in (1, 2, 3)]
    slopes = [taken(even, everyone, batch, 0).gradient(at) for batch in batches]
    close((slopes[0] + slopes[1]) / 2, even.gradient(at), rtol=1e-12)
    close(slopes[2], slopes[0])
    assert np.abs(slopes[1] - slopes[0]).max() > 0.1
    ragged = law.draw(as_key(0), real.at[0, 3].set(False).at[1, 1:].set(False), everyone, 3)
    assert ragged.rows[0].tolist() == [[0, 1], [2, 0], [1, 2]]
    assert ragged.rows[1].tolist() == [[0, 4], [0, 4], [0, 4]]  # all it has
    short = Cyclic(2, whole=False).draw(as_key(0), real.at[0, 3].set(False), everyone, 3)
    assert short.rows[0].tolist() == [[0, 1], [2, 4], [0, 1]]
    assert short.rows[1].tolist() == [[0, 1], [2, 3], [0, 1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "law", [Uniform(3), Uniform(3, replacement=True), Weighted(2, 0.25 * np.ones((CLIENTS, 4)))]
)
def test_estimates_of_gradients_have_no_bias(law):
    even = from_clients([(X[:4], y[:4]) for X, y in DATA], LeastSquares())
    simulation = simulate(NetworkedFedSGD(0.0, 1.0, batches=law), problem=even)
    at = jnp.asarray(POINTS)

    @jax.jit
    @jax.vmap
    def estimate(key):
        now = fl.view(simulation, key)
        return simulation.algorithm.gradient(at, now)

    drawn = np.asarray(estimate(jax.random.split(as_key(0), 20_000)))
    spread = drawn.std(axis=0) / len(drawn) ** 0.5
    assert (np.abs(drawn.mean(axis=0) - np.asarray(even.gradient(at))) < 5 * spread).all()


@pytest.mark.slow
def test_on_all_samples_estimates_are_exact():
    known = models(FedGD(0.4, 0.05), 9)
    for given in (
        {"batches": Uniform(max(SIZES))},
        {"batches": Cyclic(max(SIZES))},
        {"oracle": lambda key, problem, models: problem.gradient(models)},
    ):
        close(models(NetworkedFedSGD(0.4, 0.05, **given), 9), known, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_numbers_of_an_oracle_are_swept():
    @fl.module
    class Noisy:
        scale: float

        def __call__(self, key, problem, models):
            noise = jax.random.normal(key, models.shape, models.dtype)
            return problem.gradient(models) + self.scale * noise

    def scenario(key, scale):
        return simulate(NetworkedFedSGD(0.4, 0.05, oracle=Noisy(scale)))

    def measured(key, scale):
        return dataclasses.replace(scenario(key, scale), metrics=("mean_square_deviation",))

    study = fl.sweep(measured, grid={"scale": [0.0, 1.0, 2.0]}, seeds=20, rounds=300)
    assert study.attrs["compilations"] == 1
    last = study.mean_square_deviation.isel(round=slice(-50, None)).mean(("seed", "round")).values
    close(last[2] / last[1], 4, rtol=0.3)  # the variance of a constant step
    assert last[0] < 1e-3 * last[1]


# With a server ---------------------------------------------------------------------------------


def served(algorithm, rounds):
    return models(algorithm, rounds, network=None)[:, 0]


def drift_of(step, local_steps):
    """The fixed point of Algorithm 8 by its operator: of M_i^R and the sums of its powers."""
    system, right = np.zeros((DIM, DIM)), np.zeros(DIM)
    for k in range(CLIENTS):
        Q, q = networks.quadratic(DATA, k)
        once = np.eye(DIM) - 2 * step * Q
        powers = [np.linalg.matrix_power(once, r) for r in range(local_steps + 1)]
        system += powers[-1] / CLIENTS
        right += sum(powers[:-1]) @ (-step * q) / CLIENTS
    return np.linalg.solve(np.eye(DIM) - system, right)


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [1, 5, 50])
def test_algorithm_8_drifts_with_its_local_steps(local_steps):
    """FedAvg of all clients, alike weighted, on all samples, (117)."""
    algorithm = FedAvg(0.04, weighting="equal", local_steps=local_steps)
    result = served(algorithm, 400)
    close(result[:9], networks.server(DATA, 0.04, local_steps, 9), rtol=1e-10, atol=1e-12)
    best = np.asarray(fl.problems.optimum(problem()))
    close(result[-1], drift_of(0.04, local_steps), atol=1e-9)
    if local_steps == 1:
        close(result[:9], networks.projected(DATA, 0.04, 9)[:, 0], rtol=1e-10, atol=1e-12)
        close(result[-1], best, atol=1e-9)
    else:
        assert np.linalg.norm(result[-1] - best) > 1e-3


@pytest.mark.slow
def test_longer_drifts_further_and_chosen_clients_are_all_of_them():
    best = np.asarray(fl.problems.optimum(problem()))
    away = [np.linalg.norm(drift_of(0.04, steps) - best) for steps in (1, 2, 5, 20, 50)]
    assert away[0] < 1e-10
    assert (np.diff(away) > 0).all()
    every = served(FedAvg(0.04, weighting="equal", local_steps=3), 9)
    drawn = served(FedAvg(0.04, CLIENTS, weighting="equal", local_steps=3), 9)
    close(drawn, every, rtol=1e-12)


def test_fedprox_is_gtvmin_on_a_star():
    """Its center has no data and the coupling is one over the step: Algorithm 10, (119)."""
    star = networks.weights_of(CLIENTS + 1, [(CLIENTS, k) for k in range(CLIENTS)])
    best = np.asarray(fl.problems.optimum(problem()))
    away = []
    for step in (0.05, 0.5, 5.0):  # one program
        result = served(ExactFedProx(step), 1500)
        center = networks.closed_form([*DATA, None], star, 1 / step)[-1]
        close(result[-1], center, rtol=0, atol=1e-12)
        away.append(np.linalg.norm(center - best))
    assert (np.diff(away) > 0).all()
    assert away[0] < 0.1 * away[-1]


@pytest.mark.slow
def test_fedprox_of_some_clients_is_the_loop():
    algorithm = ExactFedProx(0.5, clients_per_round=3)
    chosen = []
    for now in keys_of(1, 9):
        who = algorithm.selection.choose(
            key_of(now, "participation"), jnp.ones(CLIENTS, bool), None
        )
        chosen.append(np.asarray(who.clients))
    result = served(algorithm, 9)
    close(result, networks.fedprox(DATA, 0.5, 9, chosen=chosen), rtol=1e-10, atol=1e-12)


# Bad input -------------------------------------------------------------------------------------

FEW = from_clients([(X[:2], y[:2]) for X, y in DATA], LeastSquares())
LOGISTIC = from_clients(make_data("logistic"), Logistic())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedGD(np.ones((2, 2))), "coupling must be one number, or one for each parameter"),
        (lambda: FedGD(-1.0), "coupling must be finite and >= 0, got -1"),
        (lambda: simulate(FedGD(np.ones(2))), "each of the 3 parameters of a model, got shape"),
        (lambda: simulate(FedGD(1.0, np.ones(2))), "step_size must be one number or one for each"),
        (lambda: FedGD(1.0, np.ones((2, 2))), "step_size must be one number, one for each node or"),
        (
            lambda: simulate(FedGD(1.0), problem=from_clients(DATA, LeastAbsoluteDeviation())),
            "not known for a nonsmooth objective; give step_size",
        ),
        (
            lambda: simulate(FedGD(1.0), problem=from_clients(DATA, LeastSquares(), L1())),
            "not known for a nonsmooth objective",
        ),
        (
            lambda: simulate(FedGD(1.0), problem=fl.streams.Replay(problem())),
            "not known for data that arrive one by one",
        ),
        (lambda: NetworkedFedSGD(1.0, 0.1), "give either batches= or oracle="),
        (
            lambda: NetworkedFedSGD(1.0, 0.1, batches=Uniform(2), oracle=noisy),
            "give either batches= or oracle=",
        ),
        (
            lambda: simulate(NetworkedFedSGD(1.0, 0.1, batches=Uniform(20))),
            "at most the 12 samples",
        ),
        (lambda: simulate(FedRelax(np.ones(3)), problem=LOGISTIC), "problem with a closed form"),
        (lambda: simulate(FedRelax(0.0), problem=FEW), "node 0 has 2 samples for 3 features"),
        (
            lambda: simulate(FedRelax([1.0, 0.0, 0.0]), problem=FEW.weighing(UNLABELED)),
            "node 2 has 0 samples for 3 features",
        ),
        (
            lambda: simulate(
                FedRelax(1.0), problem=FEW, network=network(CUT), allow_disconnected=True
            ),
            "node 4 has 2 samples",
        ),
        (
            lambda: simulate(FedRelax(1.0), aggregation=fl.aggregation.Krum(0)),
            "needs at least 3 messages at every receiver, but some receiver gets only 2",
        ),
        (lambda: ExactFedProx(1.0, 9).init(problem(), None), "must be at most the 5 clients"),
        (lambda: Bounded(0, 0.5), "bound must be >= 1, got 0"),
        (lambda: fl.link.Uniform(-1), "longest must be >= 0, got -1"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_an_oracle_that_is_no_function_is_refused():
    with pytest.raises(TypeError, match="oracle must be a function of a key, the problem"):
        NetworkedFedSGD(1.0, 0.1, oracle=3.0)
    # Parameters that its own data determine may be private, however few the samples.
    simulate(FedRelax([1.0, 0.0, 1.0]), problem=FEW)
