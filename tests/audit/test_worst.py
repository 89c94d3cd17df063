"""The search for the worst neighbors: it reaches true bounds and refutes false ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import audit
from fljax._core.module import replace
from fljax.algorithms import REGISTRY, ConventionalFL, FedAvg, FedDPSGD, ZCDPGradNFL
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.participation.patterns import Bernoulli
from fljax.participation.selectors import Cyclic
from fljax.privacy import (
    NEIGHBORS,
    ZCDP,
    ApproximateDP,
    CentralGaussian,
    DiscreteZCDP,
    NoisyGradients,
    PureDP,
)
from fljax.problems import Huber, LeastSquares, NoRegularizer, SquaredL2
from tests.cases import (
    CASES,
    CLUSTERED,
    PRIVATE,
    make_data,
    make_network,
    make_problem,
    make_servers,
)
from tests.privacy.worlds import CLIENT, short

ROUNDING = 1e-6


def simulation_of(label, neighbors="replace", participation=None):
    """A registered algorithm where a promise holds for any data, by a clip or a feature bound."""
    needs = REGISTRY[label].needs
    loss = Huber(1.0) if needs.minimizer else LeastSquares()
    data = [(0.5 * X / np.linalg.norm(X, axis=1, keepdims=True), y) for X, y in make_data()]
    problem = fl.problems.from_clients(data, loss, SquaredL2(), 0.8)
    if needs.minimizer:
        problem = dataclasses.replace(problem, feature_bound=1.0)
    else:
        problem = problem.clipped(1.0)
    if label in CLUSTERED:
        tasks = fl.problems.Tasks([0, 1, 0, 1, 1], 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    network = {Graph: make_network(), Federation: make_servers(), None: None}[needs.network]
    budget = dataclasses.replace(CASES[label].privacy, gradient_bound=1.0, neighbors=neighbors)
    options = {"privacy": budget, "participation": participation}
    return fl.Simulation(problem, CASES[label].algorithm, network, **options)


def one_server(privacy, algorithm=None, clip=1.0, penalized=True, **more):
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    if not penalized:
        problem = dataclasses.replace(problem, regularizer=NoRegularizer())
    problem = problem if clip is None else problem.clipped(clip)
    return fl.Simulation(problem, algorithm or ConventionalFL(0.1), privacy=privacy, **more)


# What is stated is reached, and no more ----------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("neighbors", NEIGHBORS)
@pytest.mark.parametrize("label", PRIVATE)
def test_every_private_algorithm_keeps_its_claim(label, neighbors, absent):
    if absent and not REGISTRY[label].needs.absent:
        pytest.skip("everybody must be there")
    simulation = simulation_of(label, neighbors, Bernoulli(0.5) if absent else None)
    result = audit.worst_neighbors(simulation, 3, CLIENT, evaluations=1000)
    assert result.holds, result.verdict
    assert 0.95 < result.gap < 1 + ROUNDING


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "budget", [ZCDP(1.0), DiscreteZCDP(1.0), PureDP(1.0), ApproximateDP(0.5, 1e-3)]
)
def test_budgets_for_messages(budget):
    """Messages are compared before they are rounded to a grid."""
    result = audit.worst_neighbors(one_server(budget), evaluations=300)
    assert 0.99 < result.gap < 1 + ROUNDING
    assert result.holds
    assert result.verdict.startswith("held: of 320 pairs of neighbors none moves a message by more")


@pytest.mark.thin(1)
@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
@pytest.mark.parametrize("bands", [1, 2])
def test_a_trusted_server_s_sum(bands, neighbors):
    strategy = fl.privacy.matrices.square_root(bands)
    budget = CentralGaussian(1.0, clip=0.5, strategy=strategy, neighbors=neighbors)
    selector = Cyclic(bands) if bands > 1 else None
    algorithm = FedAvg(0.1, weighting="equal", selector=selector)
    simulation = one_server(budget, algorithm, None, penalized=neighbors == "replace")
    result = audit.worst_neighbors(simulation, 2, 1, evaluations=300)
    # Under a strategy one release moves by an entry of a column, all together by its norm.
    largest = float(strategy.coefficients[0])
    assert 0.99 * largest < result.gap < largest + ROUNDING
    assert result.client == 1


@pytest.mark.thin(1)
@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
@pytest.mark.parametrize(
    "options", [{"local_steps": 3}, {"local_steps": 2, "batch": 3, "clients_per_round": 3}]
)
def test_the_gradient_of_every_step(options, neighbors):
    simulation = one_server(NoisyGradients(1.0, 0.3, neighbors), FedDPSGD(0.1, **options), None)
    result = audit.worst_neighbors(simulation, 2, evaluations=300)
    assert 0.99 < result.gap < 1 + ROUNDING
    assert 0 <= result.message < options["local_steps"]


@fl.module
class Reciprocal:
    """``1 / x``, infinite at zero and for tiny arguments."""

    dim: int = fl.static(default=3)
    inputs: int = fl.static(default=3)

    def __call__(self, x):
        return 1 / jnp.asarray(x)


@pytest.mark.parametrize("neighbors", ["replace", "add-or-remove"])
def test_features_are_searched_behind_their_map(neighbors):
    data = [(np.clip(np.abs(X), 0.1, 0.9), np.sign(y)) for X, y in make_data()]
    problem = fl.problems.from_clients(data, LeastSquares(), feature_map=Reciprocal()).clipped(1.0)
    budget = ZCDP(1.0, neighbors=neighbors)
    simulation = fl.Simulation(problem, ConventionalFL(0.1), privacy=budget)
    result = audit.worst_neighbors(simulation, 1, evaluations=300)
    assert 0.99 < result.gap < 1 + ROUNDING
    assert (result.neighbor.feature_map is None) == (neighbors == "add-or-remove")


@pytest.mark.slow
def test_labels_stay_labels():
    """The bound of the derivative is reached in the limit only."""
    problem = make_problem("logistic")
    short = np.asarray(problem.features) / 10
    problem = dataclasses.replace(problem, features=short, feature_bound=1.0)
    simulation = dataclasses.replace(simulation_of("FL"), problem=problem)
    result = audit.worst_neighbors(simulation, 2, CLIENT, evaluations=2000)
    assert 0.95 < result.gap < 1 + ROUNDING
    assert set(np.unique(result.neighbor.targets[CLIENT, :6])) <= {-1.0, 1.0}


@pytest.mark.slow
def test_without_a_bound_gradients_within_the_domain_count():
    """An exact minimizer of least squares, whose claim is nominal."""
    label = "P-ADMM"
    algorithm = CASES[label].algorithm
    network = make_network()
    simulation = fl.Simulation(short()[0], algorithm, network, ZCDP(1.0))
    result = audit.worst_neighbors(simulation, 2, CLIENT, evaluations=600)
    assert result.within_bound
    assert result.nominal
    assert not result.holds  # curvature moves a minimizer on, where gradients are small there only
    assert result.verdict.startswith("nominal: of 640 pairs")
    assert not audit.worst_neighbors(simulation_of(label), 1, evaluations=64).nominal
    tight = dataclasses.replace(simulation, privacy=ZCDP(1.0, gradient_bound=1e-9))
    result = audit.worst_neighbors(tight, 2, CLIENT, evaluations=64)
    assert not result.within_bound
    assert result.verdict.startswith("not tried: all data met gradients above the bound")


@pytest.mark.slow
def test_rounding_in_single_precision_is_not_evidence():
    with jax.enable_x64(False):
        result = audit.worst_neighbors(one_server(ZCDP(1.0)), evaluations=1000)
    assert result.holds, result.verdict
    assert result.gap > 0.99


# What is false is found --------------------------------------------------------------------------


@fl.module
class Halved(ConventionalFL):
    """Half of the sensitivity, as if a sample were removed instead of replaced."""

    def sensitivity(self, problem, network, round, gap):
        return super().sensitivity(problem, network, round, gap) / 2


@fl.module
class Unclipped(ZCDPGradNFL):
    """Descends along unclipped gradients, and reports clipped ones."""

    def step(self, state, now):
        now.witness(now.problem.sample_gradient_norm(state.sent))
        now.problem = replace(now.problem, clip=None)
        now.witness = lambda norm: None
        return super().step(state, now)


@fl.module
class OneStepStated(ConventionalFL):
    """Several local steps, and the sensitivity of one."""

    def sensitivity(self, problem, network, round, gap):
        single_step = dataclasses.replace(self, local_steps=1)
        return ConventionalFL.sensitivity(single_step, problem, network, round, gap)


@fl.module
class Unweighted(ConventionalFL):
    """Assumes that all samples weigh the same, although some weigh more."""

    def sensitivity(self, problem, network, round, gap):
        share = problem.influence * problem.sample_counts().astype(float)
        return super().sensitivity(problem, network, round, gap) / share


@fl.module
class LaterRound(ConventionalFL):
    """Right in the first round only, as its steps do not get shorter."""

    def sensitivity(self, problem, network, round, gap):
        return super().sensitivity(problem, network, round, gap) / round.astype(float)


@fl.module
class WholeClip(CentralGaussian):
    """A replaced client moves the sum by two clips, and one is stated."""

    def release(self, plan, state, key, total, within, count):
        result = super().release(plan, state, key, total, within, count)
        return result._replace(sensitivity=result.sensitivity / 2)


@fl.module
class WeightsIgnored(NoisyGradients):
    """A sample's share of a batch is taken for half of it."""

    def sensitivity(self, share):
        return super().sensitivity(share) / 2


def uneven(problem):
    weights = np.tile([0.6, 0.1, 0.1, 0.1, 0.1], (4, 1))
    return dataclasses.replace(problem, weights=weights)


CENTRAL = {"neighbors": "replace", "clip": 0.5}
FAULTS = {
    "half": (one_server(ZCDP(1.0), Halved(0.1)), 2.0),
    "one step": (
        one_server(ZCDP(1.0, neighbors="client"), OneStepStated(0.1, 3)),
        2.8525,
    ),  # the regularizer pulls back
    "weights": (replace(one_server(ZCDP(1.0), Unweighted(0.1))), 3.0),
    "later": (one_server(ZCDP(1.0), LaterRound(0.1)), 3.0),
    "server": (one_server(WholeClip(1.0, **CENTRAL), FedAvg(0.1, weighting="equal"), None), 2.0),
    "gradients": (one_server(WeightsIgnored(1.0, 0.3), FedDPSGD(0.1), None), 2.0),
}


@pytest.mark.core
@pytest.mark.thin(3)
@pytest.mark.parametrize("name", FAULTS)
def test_a_sensitivity_that_is_too_small_is_found(name):
    simulation, times = FAULTS[name]
    if name == "weights":
        simulation = dataclasses.replace(simulation, problem=uneven(simulation.problem))
    result = audit.worst_neighbors(simulation, 3, evaluations=600)
    assert not result.holds
    assert result.gap == pytest.approx(times, rel=0.03)
    assert result.verdict.startswith("BROKEN: of 640 pairs of neighbors one moves what client 0 ")
    if name == "later":
        assert result.round == 3


@pytest.mark.slow
def test_a_clip_that_is_not_applied_is_found():
    network = make_network()
    simulation = fl.Simulation(
        make_problem(clip=1.0), Unclipped(0.05), network, ZCDP(1.0, gradient_bound=1.0)
    )
    result = audit.worst_neighbors(simulation, 2, CLIENT, evaluations=300)
    assert result.gap > 100
    assert not result.holds


@pytest.mark.slow
def test_found_pairs_can_be_audited():
    """A pair of the search is one for the audit."""
    options = {"rounds": 3, "seeds": 1000, "delta": 0.05}
    for algorithm in (Halved, ConventionalFL):
        result = audit.worst_neighbors(one_server(ZCDP(0.5), algorithm(0.1)), 3, evaluations=600)
        report = audit.two_worlds(*result.pair, **options)
        assert report.broken == (algorithm is Halved), report.verdict
    for neighbors in NEIGHBORS:
        simulation = one_server(ZCDP(0.5, neighbors=neighbors))
        result = audit.worst_neighbors(simulation, 2, evaluations=64)
        audit.two_worlds(*result.pair, rounds=2, seeds=200, delta=0.1)


@pytest.mark.slow
def test_the_search_can_be_repeated():
    simulation = one_server(ZCDP(1.0))
    first, again = (audit.worst_neighbors(simulation, evaluations=64, key=3) for _ in range(2))
    assert (first.gap, first.seed, first.evaluations) == (again.gap, 3, 64)
    np.testing.assert_array_equal(first.neighbor.features, again.neighbor.features)
    assert audit.worst_neighbors(simulation, evaluations=1, key=jax.random.key(1)).seed is None


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        (ValueError, {"simulation": one_server(None)}, "no sensitivity to test"),
        (ValueError, {"client": 4}, "client must be .*3, got 4"),
        (ValueError, {"client": -1}, "client must be .*, got -1"),
        (ValueError, {"evaluations": 0}, "evaluations must be >= 1, got 0"),
        (ValueError, {"rounds": 0}, "rounds must be >= 1"),
        (
            TypeError,
            {"simulation": "mine"},
            r"instance of fljax.simulation.scenario.Simulation, got 'mine'",
        ),
        (
            ValueError,
            {"simulation": one_server(CentralGaussian(1.0), FedAvg(0.1, weighting="equal"), None)},
            "must contribute nothing in one of the two data",
        ),
    ],
)
def test_bad_searches_are_refused(error, changes, message):
    with pytest.raises(error, match=message):
        audit.worst_neighbors(**{"simulation": one_server(ZCDP(1.0)), **changes})
