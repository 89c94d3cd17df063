"""Personalized algorithms with one server: against loops, at their limits, and what they send."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax._numerics import key_of
from fljax.algorithms.base import REGISTRY, Algorithm
from fljax.algorithms.personalized.ditto import Ditto
from fljax.algorithms.personalized.finetuned_fedavg import FineTunedFedAvg
from fljax.algorithms.personalized.ifca import IFCA, random_start
from fljax.algorithms.personalized.local_only import LocalOnly
from fljax.algorithms.personalized.pfedme import PFedMe
from fljax.algorithms.server.fedavg import FedAvg
from fljax.engine import trace
from fljax.link import DelayTrace, Fixed, Quantize, TopK
from fljax.metrics import Metric
from fljax.participation import Trace, subset
from fljax.problems import LeastSquares, Logistic, SquaredL2, from_clients, optimum
from fljax.schedules import PowerDecay
from tests import cases
from tests.reference import nfl, personal

close = np.testing.assert_allclose

SIZES = (4, 9, 6, 12, 7, 5)
CLIENTS, DIM, ROUNDS = len(SIZES), 3, 9
STRENGTH = 0.8
PROBLEMS = {"ridge": (LeastSquares(), "squared"), "logistic": (Logistic(), "logistic")}
EXACT = Metric("exact", lambda now: now.model, "the models themselves")
LOCAL = PowerDecay(0.1, 0.3)


@functools.cache
def make_data(name="ridge", noise=0.5):
    """Two groups of clients that disagree, the even ones and the odd ones."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(2, DIM)) * 2
    data = []
    for k, size in enumerate(SIZES):
        X = rng.normal(size=(size, DIM))
        y = X @ truth[k % 2] + noise * rng.normal(size=size)
        data.append((X, np.sign(y) if name == "logistic" else y))
    return tuple(data)


def make_problem(name="ridge", noise=0.5, strength=STRENGTH):
    return from_clients(make_data(name, noise), PROBLEMS[name][0], SquaredL2(), strength)


def make_objective(name="ridge"):
    return nfl.Objective(make_data(name), PROBLEMS[name][1], 0.0, 1.0, STRENGTH)


def new_key(seed=1):
    return fl.random_key(seed)


#: LLVM's passes are a good part of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}
_trace = jax.jit(trace, static_argnums=(2, 3), compiler_options=QUICK)


def trajectory(simulation, rounds=ROUNDS, key=None):
    """``[T, K, D]``, the models of every round."""
    simulation = dataclasses.replace(simulation, metrics=(EXACT,))
    return np.asarray(_trace(simulation, new_key() if key is None else key, rounds, 1)[0]["exact"])


def server_of(algorithm):
    """The part that draws the participants."""
    return getattr(algorithm, "solver", algorithm)


def some_world(algorithm, absences, lateness, key):
    """Simulation parts and the same for the loops; one round is empty, a message may be lost."""
    rng, parts = np.random.default_rng(2), {}
    available = np.ones((ROUNDS, CLIENTS), bool)
    delay = np.zeros((ROUNDS, CLIENTS), int)
    if absences:
        available = rng.uniform(size=(ROUNDS, CLIENTS)) < 0.7
        available[3] = False
        parts["participation"] = Trace(available)
    if lateness:
        delay = rng.choice([-1, 0, 0, 1, 2], size=(ROUNDS, CLIENTS))
        parts["delays"] = DelayTrace(delay, 2)
    count = getattr(server_of(algorithm), "clients_per_round", None)
    drawn = [list(range(CLIENTS))] * ROUNDS
    if count is not None:
        rounds = [jax.random.fold_in(key, n) for n in range(1, ROUNDS + 1)]
        drawn = [
            np.asarray(subset(key_of(now, "participation"), CLIENTS, count)).tolist()
            for now in rounds
        ]
    return parts, personal.World(drawn, available, delay)


#: A start from which both groups find a model.
THREE = np.random.default_rng(4).normal(size=(3, DIM))
ALL_FORMS = [
    LocalOnly(LOCAL, 3),
    Ditto(FedAvg(0.05, epochs=2), LOCAL, 0.7, 3),
    Ditto(FedAvg(LOCAL, 3, weighting="equal"), 0.1, 0.0),
    FineTunedFedAvg(FedAvg(LOCAL, epochs=2), 0.05, 2),
    FineTunedFedAvg(FedAvg(0.05, 4, weighting="equal"), LOCAL),
    PFedMe(LOCAL, 2.0, 3, 1.7, inner_iterations=400),
    PFedMe(0.2, 0.8, 1, 0.6, 4, inner_iterations=400),
    IFCA(LOCAL, 3, 2, start=THREE),
    IFCA(0.1, 3, average="gradients", clients_per_round=4, start=THREE),
    IFCA(0.1, 2, clients_per_round=5, start=THREE[:2]),
]


def describe(part):
    if not isinstance(part, Algorithm):
        return str(part)
    return f"{type(part).label}-{getattr(server_of(part), 'clients_per_round', None)}"


CASES = [
    (algorithm, name, environment)
    for algorithm in ALL_FORMS
    for name, environment in (("logistic", "absences"), ("ridge", "delays"), ("ridge", "whole"))
    if environment != "whole" or isinstance(algorithm, IFCA | LocalOnly)
    if not (isinstance(algorithm, IFCA) and environment == "delays")  # refused, see below
]


@pytest.mark.thin(2)
@pytest.mark.core
@pytest.mark.parametrize(("algorithm", "name", "environment"), CASES, ids=describe)
def test_models_are_those_of_the_loops(algorithm, name, environment):
    key = new_key(4)
    parts, world = some_world(algorithm, environment != "whole", environment == "delays", key)
    ours = trajectory(fl.Simulation(make_problem(name), algorithm, **parts), key=key)
    theirs = cases.CASES[algorithm.label].oracle(algorithm, make_objective(name), world)
    close(ours, theirs, rtol=0, atol=1e-10)
    assert np.ptp(theirs[-1], axis=0).max() > 1e-2  # clients differ
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2  # and move


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_ditto_without_attraction_is_training_alone(name):
    problem = make_problem(name)
    parts = some_world(LocalOnly(0.1), True, False, new_key())[0]
    ours = fl.Simulation(problem, Ditto(FedAvg(0.05), 0.1, 0.0, 2), **parts)
    alone = fl.Simulation(problem, LocalOnly(0.1, 2), **parts)
    close(trajectory(ours), trajectory(alone), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_ditto_s_global_model_is_that_of_its_solver():
    """Drawn clients, batches and absences included: it is seen by the personal models alone, drawn
    to it all the way.
    """
    solver = FedAvg(0.05, 4, 2, 3)
    parts = some_world(solver, True, False, new_key())[0]
    known = trajectory(fl.Simulation(make_problem(), solver, **parts))
    for attraction in (1e6, 1e9):
        near = Ditto(solver, 1 / attraction, attraction)
        result = trajectory(fl.Simulation(make_problem(), near, **parts))
        world = some_world(solver, True, False, new_key())[1]
        for n in range(2, ROUNDS + 1):  # a participant meets what the server knew before
            for k in world.participants(n):
                close(result[n - 1, k], known[n - 2, k], rtol=0, atol=100 / attraction)


@pytest.mark.slow
def test_more_attraction_brings_ditto_nearer_to_the_global_model():
    problem, distance = make_problem(), []
    best = np.asarray(optimum(problem))
    for attraction in (0.0, 0.3, 3.0, 30.0):
        ditto = Ditto(FedAvg(0.1, weighting="equal"), 0.02, attraction, 5)
        last = trajectory(fl.Simulation(problem, ditto), 1500)[-1]
        # where it ends: v_k = argmin f_k(v) + attraction / 2 |v - w|^2 at the best w
        expected = [
            nfl.prox(make_objective(), k, attraction, best) if attraction else local_best(k)
            for k in range(CLIENTS)
        ]
        close(last, expected, rtol=0, atol=1e-8)
        distance.append(np.linalg.norm(last - best))
    assert np.all(np.diff(distance) < 0)


def local_best(k):
    return nfl.prox(make_objective(), k, 0.0, np.zeros(DIM))


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_alone_ends_at_each_client_s_own_minimizer(name):
    last = trajectory(fl.Simulation(make_problem(name), LocalOnly(0.1, 5)), 2500)[-1]
    expected = [nfl.prox(make_objective(name), k, 0.0, np.zeros(DIM)) for k in range(CLIENTS)]
    close(last, expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_with_few_samples_training_alone_ends_nearest_to_zero():
    """As its docstring says: at the minimizer of least norm."""
    problem = make_problem(strength=0.0)
    few = problem.take(jnp.arange(CLIENTS, dtype=jnp.int32), jnp.zeros((CLIENTS, 1), jnp.int32))
    last = trajectory(fl.Simulation(few, LocalOnly(0.05, 20)), 300)[-1]
    for k, (X, y) in enumerate(make_data()):
        close(last[k], np.linalg.pinv(X[:1]) @ y[:1], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("average", ["models", "gradients"])
def test_one_cluster_is_federated_averaging(average):
    problem, zero = make_problem(), np.zeros((1, DIM))
    ours = IFCA(LOCAL, 1, 1, average, 4, start=zero)
    parts = some_world(ours, True, False, new_key())[0]
    known = fl.Simulation(problem, FedAvg(LOCAL, 4, weighting="equal"), **parts)
    close(trajectory(fl.Simulation(problem, ours, **parts)), trajectory(known), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_a_model_that_nobody_picks_stays():
    far = np.concatenate([THREE[:1], 1e3 + THREE[1:2]])
    for average in ("models", "gradients"):
        state = state_after(
            3, fl.Simulation(make_problem(), IFCA(0.1, 2, average=average, start=far))
        )
        np.testing.assert_array_equal(state.models[1], far[1])
        assert not np.any(state.choice)
        assert np.abs(state.models[0] - far[0]).max() > 0.1


def state_after(rounds, simulation):
    """The state after some rounds of everyone."""
    state = simulation.algorithm.init(simulation.problem.prepare(), None)
    for n in range(1, rounds + 1):
        state = simulation.algorithm.step(state, fl.view(simulation, round=n))
    return state


@pytest.mark.parametrize("average", ["models", "gradients"])
def test_clusters_are_found(average):
    """Without noise, both groups end at their truths."""
    algorithm = IFCA(0.2, 2, average=average, start=THREE[:2])
    simulation = fl.Simulation(make_problem(noise=0.0, strength=0.0), algorithm)
    last = trajectory(simulation, 400)[-1]
    truth = np.random.default_rng(0).normal(size=(2, DIM)) * 2
    close(last, truth[np.arange(CLIENTS) % 2], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_the_start_of_ifca():
    """By default one for all runs; drawn ones differ by their key and have the deviation."""
    problem = make_problem().prepare()
    first, again = (IFCA(0.1, 3).init(problem, None).models for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) == 3
    many = np.asarray(random_start(jax.random.key(6), 50, 200, 0.3))
    assert abs(many.std() - 0.3) < 0.01
    assert abs(many.mean()) < 0.02
    given = IFCA(0.1, 3, start=THREE.tolist()).init(problem, None).models
    np.testing.assert_array_equal(given, THREE)


@pytest.mark.slow
def test_every_seed_of_a_study_may_have_its_own_start():
    def scenario(key):
        start = random_start(key, 2, DIM)
        return fl.Simulation(make_problem(), IFCA(0.01, 2, start=start), metrics=(EXACT_NORM,))

    results = fl.sweep(scenario, rounds=1, seeds=4).norm.values.ravel()
    assert len(np.unique(results)) == 4


EXACT_NORM = Metric("norm", lambda now: jnp.sum(now.model**2), "norm", decibel=False)


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", PROBLEMS)
def test_pfedme_ends_where_the_envelopes_balance(name):
    r"""At the minimizer of :math:`\sum_kF_k`: the :math:`\lambda(w-\theta_k)` sum to zero."""
    attraction, objective = 1.5, make_objective(name)
    for mixing, local_rounds in ((1.0, 1), (1.5, 1)):
        algorithm = PFedMe(0.4, attraction, local_rounds, mixing, inner_iterations=400)
        last = trajectory(fl.Simulation(make_problem(name), algorithm), 600)[-1]
        slopes = np.array([objective.gradient(k, last[k]) for k in range(CLIENTS)])
        close(slopes.sum(axis=0), 0, atol=1e-8)
        center = last + slopes / attraction  # of all clients the same w
        close(center, np.tile(center[0], (CLIENTS, 1)), rtol=0, atol=1e-8)
        assert np.abs(slopes).max() > 0.01


@pytest.mark.slow
def test_the_stationary_point_of_pfedme_stays():
    algorithm, objective = PFedMe(0.3, 2.0, 1), make_objective()
    server = np.random.default_rng(7).normal(size=DIM)
    for _ in range(3000):
        theta = np.array([nfl.prox(objective, k, 2.0, server) for k in range(CLIENTS)])
        server = theta.mean(axis=0)
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    state = algorithm.init(now.problem, None)._replace(server=jnp.asarray(server))
    after = algorithm.step(state, now)
    close(after.server, server, rtol=0, atol=1e-12)
    close(after.model, theta, rtol=0, atol=1e-12)


def test_strong_attraction_makes_pfedme_gradient_descent():
    r""":math:`\theta_k\to w-f_k'(w)/\lambda`: the server steps as in federated averaging."""
    problem = make_problem()
    known = trajectory(fl.Simulation(problem, FedAvg(0.1, weighting="equal")))
    for attraction in (1e4, 1e6):
        result = trajectory(fl.Simulation(problem, PFedMe(0.1, attraction)))
        before = np.concatenate([np.zeros_like(known[:1]), known[:-1]])
        close(result, before, rtol=0, atol=100 / attraction)


@pytest.mark.thin(1)
@pytest.mark.parametrize("solver", [FedAvg(0.05, 4, 2, 3), FedAvg(LOCAL, weighting="equal")])
@pytest.mark.slow
def test_fine_tuning_leaves_the_server_s_rounds_alone(solver):
    """One step back from the tuned models, all clients hold the solver's model."""
    problem, step = make_problem(), 0.03
    tuned = FineTunedFedAvg(solver, step)
    parts = some_world(solver, True, False, new_key())[0]
    known = trajectory(fl.Simulation(problem, solver, **parts))
    result = trajectory(fl.Simulation(problem, tuned, **parts))
    expected = known - step * np.stack([problem.gradient(jnp.asarray(w)) for w in known])
    close(result, expected, rtol=0, atol=1e-13)
    assert np.abs(result - known).max() > 1e-2


# What is sent ------------------------------------------------------------------------------------

REAL = 32
TRAFFIC = [
    # algorithm, of each round: messages down, numbers in one, messages up
    (LocalOnly(0.1, 2), 0, DIM, 0),
    (Ditto(FedAvg(0.1), 0.1, 1.0, 4), CLIENTS, DIM, CLIENTS),
    (Ditto(FedAvg(0.1, 2, 3, 2), 0.1, 1.0), 2, DIM, 2),
    (FineTunedFedAvg(FedAvg(0.1, 3), 0.1, 2), 3, DIM, 3),
    (PFedMe(0.1, 1.0, 5), CLIENTS, DIM, CLIENTS),
    (PFedMe(0.1, 1.0, clients_per_round=2), CLIENTS, DIM, 2),
    (IFCA(0.1, 4), CLIENTS, 4 * DIM, CLIENTS),
    (IFCA(0.1, 3, clients_per_round=2, average="gradients"), 2, 3 * DIM, 2),
]


@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "down", "size", "up"), TRAFFIC, ids=describe)
def test_traffic_is_counted(algorithm, down, size, up):
    """Nothing is sent of personal models."""
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["messages"], 2 * [2 * (down + up)])
    np.testing.assert_array_equal(result["scalars"], 2 * [2 * (down * size + up * DIM)])
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * down * size])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * up * DIM])


def records(simulation, rounds, every, key=None):
    """What is recorded, with counts of 62 bits as numbers; traffic since the last record."""
    simulation = dataclasses.replace(simulation, metrics=(EXACT,))
    result = dict(_trace(simulation, new_key() if key is None else key, rounds, every)[0])
    for name in ("messages", "scalars", "bits_up", "bits_down"):
        high, low = np.asarray(result[name], np.int64).T
        result[name] = (high << 31) + low
    return result


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(("algorithm", "down", "size", "up"), TRAFFIC, ids=describe)
def test_traffic_is_of_those_who_are_there_and_compressed_upwards(algorithm, down, size, up):
    key = new_key(0)
    parts, world = some_world(algorithm, True, False, key)
    simulation = fl.Simulation(make_problem(), algorithm, compression=Quantize(8), **parts)
    result = records(simulation, ROUNDS, ROUNDS, key)
    there = sum(len(world.participants(n)) for n in range(1, ROUNDS + 1))
    everyone = int(world.available.sum())
    down = everyone if isinstance(algorithm, PFedMe) else there if down else 0
    up = there if up else 0
    assert there < ROUNDS * CLIENTS
    assert result["bits_down"] == [REAL * down * size]
    assert result["bits_up"] == [up * (8 * DIM + REAL)]
    assert result["messages"] == [down + up]
    plain = records(dataclasses.replace(simulation, compression=None), ROUNDS, ROUNDS, key)
    change = np.abs(result["exact"] - plain["exact"]).max()
    assert 0 < change < 0.2 if up else change == 0


@pytest.mark.slow
def test_compressed_models_of_ifca_stay_with_their_cluster():
    """All but the largest change of a message is dropped, in its own cluster's place."""
    problem = make_problem().prepare()
    algorithm = IFCA(0.05, 2, start=THREE[:2])
    state = algorithm.init(problem, None)
    whole, cut = (
        algorithm.step(state, fl.view(fl.Simulation(problem, algorithm, compression=compression)))
        for compression in (None, TopK(1))
    )
    assert 0 < int(state.choice.sum()) < CLIENTS
    expected, message = (
        np.array(THREE[:2]),
        np.asarray(state.model - 0.05 * problem.gradient(state.model)),
    )
    for q in range(2):
        mine, total = np.flatnonzero(state.choice == q), np.zeros(DIM)
        for k in mine:
            change = message[k] - THREE[q]
            total += np.where(np.abs(change) == np.abs(change).max(), change, 0)
        expected[q] += total / len(mine)
    close(cut.models, expected, rtol=0, atol=1e-13)
    assert np.abs(whole.models - expected).max() > 1e-3


# What is refused ---------------------------------------------------------------------------------

FED = FedAvg(0.1)


def running(algorithm, **parts):
    problem = parts.pop("problem", None) or make_problem()
    return fl.run(fl.Simulation(problem, algorithm, **parts), 2)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: LocalOnly(0.0), "step size must be finite and > 0, got 0"),
        (ValueError, lambda: LocalOnly(0.1, 0), "local_steps must be >= 1, got 0"),
        (TypeError, lambda: Ditto(0.1, 0.1, 1.0), "solver must be an instance of .*FedAvg, got"),
        (ValueError, lambda: Ditto(FED, -1.0, 1.0), "step size must be finite and > 0, got -1"),
        (ValueError, lambda: Ditto(FED, 0.1, -1.0), "attraction must be finite and >= 0, got -1"),
        (ValueError, lambda: Ditto(FED, 0.1, np.inf), "attraction must be finite and >= 0"),
        (ValueError, lambda: Ditto(FED, 0.1, 1.0, 0), "personal_steps must be >= 1, got 0"),
        (
            ValueError,
            lambda: running(Ditto(FedAvg(0.1, 7), 0.1, 1.0)),
            "clients_per_round must be at most the 6 clients of the problem, got 7",
        ),
        (TypeError, lambda: FineTunedFedAvg(0.1, 0.1), "solver must be an instance of .*FedAvg"),
        (
            ValueError,
            lambda: FineTunedFedAvg(FED, 0.1, 0),
            "tuning_steps must be >= 1, got 0. Without tuning, run the solver",
        ),
        (ValueError, lambda: PFedMe(0.1, 0.0), "attraction must be finite and > 0, got 0"),
        (ValueError, lambda: PFedMe(0.1, 1.0, 0), "local_steps must be >= 1, got 0"),
        (
            ValueError,
            lambda: PFedMe(0.1, 1.0, 1, 0.0),
            "server_step_size must be finite and > 0, got 0",
        ),
        (TypeError, lambda: PFedMe(0.1, 1.0, clients_per_round=0.5), "must be an integer, got 0.5"),
        (ValueError, lambda: PFedMe(0.1, 1.0, inner_iterations=0), "inner_iterations must be >= 1"),
        (
            ValueError,
            lambda: running(PFedMe(0.1, 1.0, clients_per_round=7)),
            "clients_per_round must be at most the 6 clients",
        ),
        (
            ValueError,
            lambda: running(PFedMe(0.1, 1.0), problem=make_problem().clipped(1.0)),
            "clipping cannot be applied inside an exact minimizer",
        ),
        (ValueError, lambda: IFCA(0.1, 0), "clusters must be >= 1, got 0"),
        (TypeError, lambda: IFCA(0.1, 2.0), "clusters must be an integer, got 2.0"),
        (ValueError, lambda: IFCA(0.1, 2, 0), "local_steps must be >= 1, got 0"),
        (ValueError, lambda: IFCA(0.1, 2, average="model"), "Did you mean 'models'"),
        (
            ValueError,
            lambda: IFCA(0.1, 2, 3, "gradients"),
            "local_steps must be 1 where gradients are averaged, got 3",
        ),
        (ValueError, lambda: IFCA(0.1, 2, clients_per_round=0), "clients_per_round must be >= 1"),
        (
            ValueError,
            lambda: running(IFCA(0.1, 2, clients_per_round=7)),
            "clients_per_round must be at most the 6 clients",
        ),
        (
            ValueError,
            lambda: IFCA(0.1, 2, start=THREE),
            r"start must be \[2, parameters\], one model a cluster, got shape \(3, 3\)",
        ),
        (ValueError, lambda: IFCA(0.1, 2, start=np.zeros((2, DIM))), "start holds equal models"),
        (ValueError, lambda: IFCA(0.1, 1, start=np.full((1, DIM), np.nan)), "start holds 3 NaN"),
        (
            ValueError,
            lambda: running(IFCA(0.1, 3, start=THREE[:, :2])),
            "start must hold models of the problem's 3 parameters, got 2",
        ),
        (
            ValueError,
            lambda: running(IFCA(0.1, 2), delays=Fixed(1)),
            "IFCA has no rule for late messages; leave out delays=",
        ),
        (
            ValueError,
            lambda: running(Ditto(FED, 0.1, 1.0), privacy=fl.privacy.ZCDP(1.0)),
            "Ditto does not run under ZCDP; it has no private form",
        ),
    ],
)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_all_are_registered():
    for cls in (LocalOnly, Ditto, FineTunedFedAvg, PFedMe, IFCA):
        assert REGISTRY[cls.label] is cls
        assert getattr(fl.algorithms, cls.__name__) is cls


@pytest.mark.parametrize("around", [lambda solver: Ditto(solver, LOCAL, 0.7), FineTunedFedAvg])
def test_solvers_keep_their_optimizer(around):
    """What it remembers goes from round to round with the server's model."""
    solver = FedAvg(optax.adam(0.05), 3, 2, keeps_optimizer=True)
    algorithm = around(solver, LOCAL) if around is FineTunedFedAvg else around(solver)
    server = Metric("exact", lambda now: now.state.shared.model, "the server's", dims=("server",))
    simulation = fl.Simulation(make_problem(), algorithm, metrics=[server])
    result = _trace(simulation, new_key(), ROUNDS, 1)[0]["exact"]
    alone = trajectory(fl.Simulation(make_problem(), solver))[:, 0]
    close(result, alone, rtol=1e-10, atol=1e-12)
    forgets = trajectory(fl.Simulation(make_problem(), FedAvg(optax.adam(0.05), 3, 2)))[:, 0]
    assert np.abs(forgets - alone).max() > 1e-3


def test_clusters_of_networks_start_from_a_draw_for_each():
    data = fl.problems.softmax(jax.random.key(0), clients=4, samples=8, dim=3, classes=2)
    problem = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[4]), jax.random.key(1))
    with pytest.raises(ValueError, match=r"give IFCA start=.*problem\.initialized\(key\)\.initial"):
        fl.run(fl.Simulation(problem, fl.algorithms.IFCA(0.1, 2)), 1)
    keys = jax.random.split(jax.random.key(0), 2)
    start = jnp.stack([problem.initialized(key).initial for key in keys])
    algorithm = fl.algorithms.IFCA(0.1, 2, start=start)
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), 5)
    assert np.all(np.isfinite(run.train_error))
