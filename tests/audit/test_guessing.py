"""Audits find planted faults, and find nothing where there is none."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot as plt

import fljax as fl
from fljax import audit
from fljax._core.module import module, static
from fljax._core.prng import as_key
from fljax.algorithms import PADMM, ConventionalFL, FedDPSGD, ZCDPGradNFL
from fljax.audit import guessing_bounds, tap, world_guessing
from fljax.privacy import NEIGHBORS, ZCDP, NoisyGradients, PureDP, accounting
from fljax.problems import (
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegularizer,
    SquaredL2,
    from_clients,
)
from fljax.simulation.scan import prepare
from tests.cases import CASES, PRIVATE, gap_of, make_data, make_problem, simulate
from tests.privacy.worlds import CLIENT, EXACT, clipped, short, worlds_of

ROUNDS = 4
DELTA = 0.05


def audit_of(label, privacy=None, algorithm=None, rounds=ROUNDS, seeds=2000, delta=DELTA):
    """The audit of an algorithm at small size, by default of its instance."""
    neighbors = "replace" if privacy is None else privacy.neighbors
    a, b = (simulate(label, problem) for problem in worlds_of(label, neighbors))
    changes = {
        name: part
        for name, part in {"privacy": privacy, "algorithm": algorithm}.items()
        if part is not None
    }
    a = dataclasses.replace(a, **changes)
    return audit.two_worlds(a, b.problem, rounds, seeds, delta=delta)


# Every private algorithm -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", PRIVATE)
def test_no_registered_algorithm_breaks_its_claim(label):
    """The attack is as strong as possible: these worlds differ by the whole sensitivity."""
    # All clients take part: clients that are not drawn are silent, and the audit would find less
    # than claimed.
    algorithm = CASES[label].algorithm
    if getattr(algorithm, "clients_per_server", None):
        algorithm = dataclasses.replace(algorithm, clients_per_server=None)
    result = audit_of(label, algorithm=algorithm)
    assert not result.broken
    assert result.verdict.startswith("not broken")
    assert result.gradient_norm <= result.gradient_bound
    allowed = math.sqrt(2 * result.ledger["rho"])
    error = math.sqrt(2 / 1000 + allowed**2 / 4000)
    reach = 0.85 if label in EXACT else 1.0
    assert reach * allowed - 3 * error < result.mu < allowed + 3 * error
    assert result.shaped < result.claimed


# Faults ------------------------------------------------------------------------------------------


@module
class HalfNoise(ZCDP):
    gaussian_noise = True

    def release(self, plan, sensitivity, round, rounds, dim):
        result = super().release(plan, sensitivity, round, rounds, dim)
        return result._replace(scale=result.scale / 2)


@module
class BareRound(ZCDP):
    gaussian_noise = True

    def release(self, plan, sensitivity, round, rounds, dim):
        result = super().release(plan, sensitivity, round, rounds, dim)
        return result._replace(scale=jnp.where(round == 3, 0, result.scale))


@module
class SameNoise(ZCDP):
    """The noise of every round and run is the same."""

    gaussian_noise = True

    def draw(self, key, shape, dtype, round, clients):
        return super().draw(jax.random.key(3), shape, dtype, round, clients)


@module
class RootForgotten(PureDP):
    """The l2 sensitivity is taken for the l1 one."""

    def release(self, plan, sensitivity, round, rounds, dim):
        return super().release(plan, sensitivity, round, rounds, 1)


@module
class TwoForgotten(ZCDPGradNFL):
    """Half the sensitivity: as if a sample went away, where one is replaced."""

    def sensitivity(self, problem, network, round, gap):
        return super().sensitivity(problem, network, round, gap) / 2


@module
class OfSamples(ConventionalFL):
    """The sensitivity of a replaced sample under any relation."""

    def sensitivity(self, problem, network, round, gap):
        return super().sensitivity(problem, network, round, gap_of(problem))


@module
class EarlyStopped(PADMM):
    """A gradient step from the client's own last model, as long as its data allow."""

    def step(self, state, now):
        degree = now.network.degree[:, None]
        linear = self.penalty * (degree * state.sent + state.received) - state.dual
        weight = state.factor.weight[:, None]
        gradient = now.problem.gradient(state.model) + weight * state.model - linear
        curvature = 2 * jnp.trace(now.problem.second_moment(), axis1=1, axis2=2)[:, None]
        model = state.model - gradient / (weight + curvature)
        now.witness(now.problem.sample_gradient_norm(model))
        message, inbox = now.link.exchange(model)
        received = inbox.sum()
        dual = state.dual + self.penalty * (degree * message - received)
        return state._replace(model=model, sent=message, received=received, dual=dual)


@module
class PastTheLink(ZCDPGradNFL):
    """Neighbors combine unperturbed models."""

    def step(self, state, now):
        after = super().step(state, now)
        return after._replace(mixed=state.mixing(after.model))


SMALL = (0.5, 0.9)  # a budget at which a thousand runs are enough

FAULTS = {
    "half the noise": ("zCDP-NFL", HalfNoise(*SMALL), ZCDP(*SMALL)),
    "one round without": ("FL", BareRound(*SMALL), ZCDP(*SMALL)),
    "noise that is not random": ("zCDP-grad-NFL", SameNoise(*SMALL), ZCDP(*SMALL)),
}


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("name", FAULTS)
def test_faulty_noise_is_caught(name):
    """The same mechanism without the fault is not caught."""
    label, faulty, sound = FAULTS[name]
    result = audit_of(label, faulty)
    assert result.broken, result
    assert result.verdict.startswith("BROKEN")
    assert result.claimed == pytest.approx(accounting.zcdp_epsilon(0.5, DELTA, "gaussian"))
    assert not audit_of(label, sound).broken


@pytest.mark.slow
def test_half_the_noise_is_four_times_the_budget():
    """A fault mended into the claim is none."""
    result = audit_of("zCDP-NFL", HalfNoise(*SMALL))
    assert dataclasses.replace(result, ledger={"rho": 0.5, "gaussian_noise": 1}).broken
    assert not dataclasses.replace(result, ledger={"rho": 4 * 0.5, "gaussian_noise": 1}).broken
    assert result.mu == pytest.approx(math.sqrt(2 * 4 * 0.5), rel=0.08)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_a_forgotten_factor_of_two_is_caught(neighbors):
    """For every relation; without the fault the result comes near the claim."""
    label = "zCDP-grad-NFL"
    sound = ZCDP(*SMALL, neighbors=neighbors)
    assert audit_of(label, sound, TwoForgotten(0.05)).broken
    result = audit_of(label, sound, ZCDPGradNFL(0.05))
    assert not result.broken
    assert result.mu == pytest.approx(math.sqrt(2 * 0.5), rel=0.1)


@pytest.mark.slow
def test_a_budget_for_samples_does_not_cover_clients():
    """A pair of data sets that are not neighbors under this budget would break its claim, and is
    refused.
    """
    pair = worlds_of("FL", "client")
    a, b = (dataclasses.replace(simulate("FL", p), privacy=ZCDP(*SMALL)) for p in pair)
    with pytest.raises(ValueError, match=r"one sample of one client.* got 6 samples of 1 clients"):
        audit.two_worlds(a, b.problem, ROUNDS, 200, delta=DELTA)
    for_clients = dataclasses.replace(a, privacy=ZCDP(*SMALL, neighbors="client"))
    assert not audit.two_worlds(for_clients, b.problem, ROUNDS, 2000, delta=DELTA).broken
    few = dataclasses.replace(for_clients, algorithm=OfSamples(0.05))
    assert audit.two_worlds(few, b.problem, ROUNDS, 2000, delta=DELTA).broken


@pytest.mark.slow
def test_data_that_bypass_the_link_are_caught():
    """Caught even where the attacked client's messages keep their bound."""
    result = audit_of("zCDP-grad-NFL", ZCDP(*SMALL), PastTheLink(0.05))
    assert result.past_link > 0.1
    assert dataclasses.replace(result, bound=0.5 * result.claimed).broken
    assert result.verdict.startswith("BROKEN")
    assert "data go past the link" in result.verdict
    sound = audit_of("zCDP-grad-NFL", ZCDP(*SMALL))
    assert sound.past_link < 1e-9
    assert "past the link" not in sound.verdict


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("privacy", [RootForgotten, PureDP])
def test_laplace_noise_needs_the_root_of_the_dimension(privacy):
    """With 16 parameters; the attack is the likelihood ratio of Laplace noise."""
    data = make_data("lad", dim=16)
    problem = from_clients(data, LeastAbsoluteDeviation(), NoRegularizer()).clipped(1.0)
    a, b = audit.corners(problem, CLIENT, radius=1.0, targets=(-1e3, 1e3))
    simulation = fl.Simulation(
        problem=a, algorithm=ConventionalFL(0.05), privacy=privacy(1.5, gradient_bound=1.0)
    )
    result = audit.two_worlds(simulation, b, 2, 16000, delta=0.01)
    assert result.ledger == {"epsilon": pytest.approx(1.5)}
    assert result.broken == (privacy is RootForgotten), result


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("algorithm", [EarlyStopped, PADMM])
def test_a_solver_that_stops_early_is_caught(algorithm):
    """How far it comes depends on the data by more than their gradients, which are bounded."""
    units = [(X / np.linalg.norm(X, axis=1, keepdims=True), y) for X, y in make_data("logistic")]
    problem = from_clients([(0.3 * X, y) for X, y in units], Logistic(), SquaredL2(), 0.1)
    pair = []
    for length in (0.3, 3.0):  # the second is far more curved
        features = np.array(problem.features)
        features[CLIENT, 0] = length * units[CLIENT][0][0]
        pair.append(dataclasses.replace(problem, features=features, feature_bound=3.0))
    simulation = simulate("P-ADMM", pair[0])
    simulation = dataclasses.replace(
        simulation, algorithm=algorithm(0.1, 40), privacy=ZCDP(0.1, gradient_bound=3.0)
    )
    result = audit.two_worlds(simulation, pair[1], 8, 2000, delta=DELTA)
    assert result.gradient_norm <= result.gradient_bound
    assert result.broken == (algorithm is EarlyStopped), result


# Noise that is shared ----------------------------------------------------------------------------


@module
class Equal(ZCDP):
    """One draw for all clients: two messages' difference has none."""

    def draw(self, key, shape, dtype, round, clients):
        return jnp.broadcast_to(super().draw(key, (1, shape[1]), dtype, round, clients), shape)


@module
class Opposite(ZCDP):
    """Two by two: their sum has none."""

    def draw(self, key, shape, dtype, round, clients):
        keys = jax.vmap(lambda pair: jax.random.fold_in(key, pair))(clients // 2)
        drawn = jax.vmap(lambda k: jax.random.normal(k, shape[1:], dtype))(keys)
        return jnp.where((clients % 2 == 0)[:, None], drawn, -drawn)


@module
class Common(ZCDP):
    """Noise that is mostly common to all clients."""

    own: float = static(default=0.05)

    def draw(self, key, shape, dtype, round, clients):
        shared, alone = jax.random.split(key)
        shared = super().draw(shared, (1, shape[1]), dtype, round, clients)
        alone = super().draw(alone, shape, dtype, round, clients)
        return (1 - self.own) ** 0.5 * shared + self.own**0.5 * alone


@module
class TakenBack(ZCDP):
    """Every second round subtracts the noise of the round before."""

    def draw(self, key, shape, dtype, round, clients):
        pair = jax.random.fold_in(jax.random.key(3), (round - 1) // 2)
        drawn = super().draw(pair, shape, dtype, round, clients)
        return jnp.where(round % 2 == 0, -drawn, drawn)


@module
class SumsToZero(ZCDP):
    """No two clients share much noise, and all together cancel."""

    def draw(self, key, shape, dtype, round, clients):
        drawn = super().draw(key, shape, dtype, round, clients)
        return (drawn - jnp.mean(drawn, axis=0, keepdims=True)) * (1 - 1 / shape[0]) ** -0.5


def one_server(privacy, clients=6, rounds=3, **more):
    problem = fl.problems.ridge(jax.random.key(0), clients=clients, samples=5, dim=2).clipped(1.0)
    a, b = audit.corners(problem, 1, radius=5.0, targets=(-100.0, 100.0))
    simulation = fl.Simulation(problem=a, algorithm=ConventionalFL(0.1), privacy=privacy, **more)
    return audit.two_worlds(simulation, b, rounds, 2000, delta=DELTA)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("privacy", [Opposite, Equal, Common, SumsToZero, ZCDP])
def test_noise_that_clients_share_is_caught(privacy):
    result = one_server(privacy(0.5))
    assert result.broken == (privacy is not ZCDP), result.verdict
    if privacy is ZCDP:
        assert result.mu == pytest.approx(1.0, abs=0.12)


@pytest.mark.slow
def test_audits_of_many_clients_record_those_with_equal_noise(monkeypatch):
    """Memory allows the attacked client, another one and the sum of the rest."""
    monkeypatch.setattr(world_guessing, "MAX_STORED_NOISE", 3 * 2 * 2000 * 3 * 2)
    for privacy in (Opposite, SumsToZero):
        assert one_server(privacy(0.5), clients=30).broken
    assert not one_server(ZCDP(0.5), clients=30).broken
    monkeypatch.setattr(world_guessing, "MAX_STORED_NOISE", 0)  # none at all
    assert one_server(Equal(0.5)).bound > 0.5


@pytest.mark.slow
def test_noise_is_shared_among_active_clients():
    """Absent clients subtract no noise in a round."""
    half = fl.participation.Bernoulli(0.5)
    options = {"clients": 4, "rounds": 2, "participation": half}
    assert one_server(Equal(0.5), **options).broken
    assert not one_server(ZCDP(0.5), **options).broken


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("bands", [2, 1, 4])
def test_all_of_the_claim_is_found_in_correlated_noise(bands):
    """Rounds in which the client is silent tell of the noise of those in which it was not."""
    problem = fl.problems.ridge(jax.random.key(0), clients=8, samples=5, dim=2)
    a, b = audit.corners(problem, radius=5.0, targets=(-100.0, 100.0), neighbors="client")
    selector = fl.participation.Cyclic(bands)
    strategy = fl.privacy.matrices.square_root(bands)
    budget = fl.privacy.CentralGaussian(2.0, clip=0.1, strategy=strategy, neighbors="replace")
    algorithm = fl.algorithms.FedAvg(0.1, weighting="equal", selector=selector)
    simulation = fl.Simulation(a, algorithm, privacy=budget)
    # So sure that an attack which finds everything is not above the claim by luck.
    result = audit.two_worlds(simulation, b, 2 * bands, 4000, delta=DELTA, confidence=0.999)
    assert not result.broken
    assert result.mu == pytest.approx(math.sqrt(2 * result.ledger["rho"]), rel=0.06)


# Noise on gradients ------------------------------------------------------------------------------


@module
class LittleNoise(NoisyGradients):
    def draw(self, key, shape, dtype):
        return super().draw(key, shape, dtype) / 2


@module
class OneDraw(NoisyGradients):
    """The same for all clients."""

    def draw(self, key, shape, dtype):
        return jnp.broadcast_to(super().draw(key, (1, shape[1]), dtype), shape)


def descending(mechanism, **options):
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)
    neighbors = mechanism.neighbors
    a, b = audit.corners(problem, radius=50.0, targets=(-1e3, 1e3), neighbors=neighbors)
    simulation = fl.Simulation(a, FedDPSGD(0.1, **options), privacy=mechanism)
    return audit.two_worlds(simulation, b, 2, 2000, delta=DELTA)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("neighbors", ["add-or-remove", "replace"])
@pytest.mark.parametrize("steps", [3, 1])
def test_every_noisy_gradient_is_recorded(steps, neighbors):
    """The audit finds the whole booked cost of all steps of all rounds."""
    scale = 2.0 if neighbors == "add-or-remove" else 4.0
    result = descending(NoisyGradients(scale, neighbors=neighbors), local_steps=steps)
    assert result.ledger["releases"] == 2 * steps
    assert not result.broken
    assert result.mu == pytest.approx(math.sqrt(2 * result.ledger["rho"]), rel=0.12)
    little = LittleNoise(scale, neighbors=neighbors)
    assert descending(little, local_steps=steps).broken
    assert descending(OneDraw(scale, neighbors=neighbors), local_steps=steps).broken


@pytest.mark.slow
def test_only_drawn_clients_have_gradients():
    result = descending(NoisyGradients(2.0, 0.5), local_steps=2, batch=3, clients_per_round=2)
    assert 0 < result.mu < math.sqrt(2 * result.ledger["rho"])
    assert not result.broken


# What is listened to -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("label", ["P-ADMM", "PGFL"])
def test_equal_data_in_equal_histories_send_equal_messages(label):
    a, b = (simulate(label, problem) for problem in short())
    key = as_key(5)
    ready = prepare(a, ROUNDS)

    def keep(message, clean, same, other):
        return {
            "same": jnp.abs(clean - same),
            "other": jnp.abs(clean - other),
            "noise": message - clean,
        }

    ready = (ready, ready, prepare(b, ROUNDS))
    recorded, spent, _ = tap.record_statistics((a, a, b), ready, key, ROUNDS, keep)
    assert recorded["same"].max() == 0
    other_clients = np.delete(np.asarray(recorded["other"]), CLIENT, axis=1)
    assert other_clients.max() < 1e-12  # messages depend only on received messages and own data
    assert recorded["other"][:, CLIENT].max() > 1e-3
    talks = np.asarray(spent["rho"]) > 0
    np.testing.assert_array_equal((recorded["noise"] != 0).all(axis=2), talks)
    assert spent["rho"].sum(axis=0).max() == pytest.approx(2.0)


@pytest.mark.slow
def test_a_recorded_run_equals_the_run():
    a, _ = (simulate("zCDP-NFL", problem) for problem in clipped())
    ready = prepare(a, ROUNDS)
    recorded, *_ = tap.record_statistics(
        (a,), (ready,), as_key(5), ROUNDS, lambda message, clean: {"own": clean}
    )
    run = fl.run(a, ROUNDS, as_key(5))
    np.testing.assert_allclose(recorded["own"][-1], run.model.values, rtol=1e-12)


# From guesses to epsilon -------------------------------------------------------------------------


def test_counts_equal_clopper_and_pearson():
    """Rule of three: zero of n events means a probability of at most 3/n."""
    none = 1 - 0.025 ** (1 / 1000)
    expected = math.log((1 - none - 0.01) / none)
    assert audit.counted_epsilon(1000, 0, 1000, 0.01, 0.95) == pytest.approx(expected)
    assert audit.counted_epsilon(500, 500, 1000, 0.01, 0.95) == 0
    assert audit.counted_epsilon(0, 0, 1000, 0.01, 0.95) == 0


def test_guesses_without_delta_are_randomized_response():
    """The bound is then the Clopper-Pearson one of the share of right guesses."""
    share = guessing_bounds.probability_at_least(180, 200, 0.95)
    result = audit.guessed_epsilon(180, 200, 500, 0.0, 0.95)
    assert result == pytest.approx(math.log(share / (1 - share)), abs=1e-6)
    assert audit.guessed_epsilon(180, 200, 500, 1e-3, 0.95) < result
    assert audit.guessed_epsilon(90, 200, 500, 0.0, 0.95) == 0
    assert audit.guessed_epsilon(0, 10, 10, 0.0, 0.95) == 0


def test_the_probability_of_guesses_is_that_of_the_paper():
    """Against the loop of appendix D."""
    binomial = [math.comb(30, k) for k in range(31)]
    epsilon = audit.guessed_epsilon(27, 30, 100, 1e-3, 0.95)
    q = 1 / (1 + math.exp(-epsilon))
    probability = [c * q**k * (1 - q) ** (30 - k) for k, c in enumerate(binomial)]
    alpha = max(sum(probability[27 - i : 27]) / i for i in range(1, 28))
    assert sum(probability[27:]) + alpha * 1e-3 * 2 * 100 == pytest.approx(0.05, rel=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_the_bound_is_seldom_above_the_truth():
    """A Gaussian mechanism with an attack chosen on the same kind of runs."""
    rng = np.random.default_rng(0)
    true = audit.claimed_epsilon({"rho": 0.5, "gaussian_noise": 1}, DELTA)
    over = 0
    for _ in range(200):
        noise = rng.normal(size=(2, 400, 1))
        world = [
            {
                "gap": np.ones_like(n),
                "product": 0 * n - 0.5 + n,
                "absolute": np.abs(n) - np.abs(n - 1),
                "square": n**2,
                "size": np.abs(n),
            }
            for n in noise
        ]
        rules = world_guessing._all_scores(world, 200)
        rule, at, upwards = world_guessing._choose_test(rules, 200, DELTA, 0.9)
        hits, alarms = world_guessing._decisions(rules[rule][:, 200:], at, upwards)
        over += audit.counted_epsilon(hits, alarms, 200, DELTA, 0.9) > true
    assert over <= 0.1 * 200 + 3 * math.sqrt(0.09 * 200)


def test_claims_are_converted_tightly():
    for gaussian, conversion in ((1, "gaussian"), (0, "canonne-kamath-steinke")):
        ledger = {"rho": 0.5, "epsilon": 9.0, "gaussian_noise": gaussian}
        assert audit.claimed_epsilon(ledger, 1e-5) == pytest.approx(
            accounting.zcdp_epsilon(0.5, 1e-5, conversion)
        )
    assert audit.claimed_epsilon({"rho": 0.5}, 1e-5) == audit.claimed_epsilon(ledger, 1e-5)
    epsilon = 1.2
    delta = 0.03
    less = audit.claimed_epsilon({"epsilon": epsilon}, delta)
    # Randomized response: the probability beyond e^eps' of the other answer's.
    right = 1 / (1 + math.exp(-epsilon))
    assert right - math.exp(less) * (1 - right) == pytest.approx(delta)
    assert audit.claimed_epsilon({"epsilon": epsilon, "delta": 0.1}, 0.05) == math.inf
    assert audit.claimed_epsilon({"epsilon": epsilon, "delta": 0.05}, 0.05) == epsilon
    assert audit.claimed_epsilon({"epsilon": 0.01}, 0.5) == 0


@pytest.mark.parametrize("gaussian", [0, 1])
def test_the_claim_s_curve_is_that_of_its_conversion(gaussian):
    """No test is below the curve, and it touches the line of every epsilon."""
    alarms = np.linspace(1e-4, 1 - 1e-4, 500)
    ledger = {"rho": 0.5, "gaussian_noise": gaussian}
    zeros = {"bound": 0.0, "most": 0.0, "gradient_norm": 0.0, "gradient_bound": 1.0, "rule": ""}
    zeros |= {"shaped": 0.0, "mu": 0.0, "threshold": 0.0, "past_link": 0.0}
    result = audit.TwoWorlds(ledger, DELTA, 0.95, **zeros, scores=np.zeros((2, 2)))
    misses = result._claimed_misses(alarms)
    assert np.all(np.diff(misses) <= 0)
    for delta in (0.01, 0.1, 0.3):
        line = 1 - delta - np.exp(audit.claimed_epsilon(ledger, delta)) * alarms
        assert np.all(misses >= line - 1e-3)
        assert np.min(misses - line) == pytest.approx(0, abs=2e-3)
    assert np.all(misses <= audit.gaussian_misses(1.0, alarms) + 1e-9)


def test_the_gaussian_fit():
    """Near the truth, and seldom above it."""
    rng = np.random.default_rng(1)
    true = audit.claimed_epsilon({"rho": 0.5, "gaussian_noise": 1}, 1e-5)
    means = np.array([[0.0], [1.0]])
    result = [
        audit.shaped_epsilon(3 * (rng.normal(size=(2, 500)) + means), 1e-5, 0.9) for _ in range(200)
    ]
    assert np.mean([distance for _, distance in result]) == pytest.approx(1, abs=0.02)
    over = sum(bound > true for bound, _ in result)
    assert 0 < over <= 0.1 * 200 + 3 * math.sqrt(0.09 * 200)
    assert min(bound for bound, _ in result) > 0.7 * true
    assert audit.shaped_epsilon(1e-3 * rng.normal(size=(2, 500)) + means, 0.1, 0.9)[0] == math.inf
    assert audit.shaped_epsilon(np.ones((2, 100)), 1e-5, 0.95) == (0.0, 0.0)


# One run -----------------------------------------------------------------------------------------


def canaries(privacy, clients=300):
    problem = fl.problems.ridge(jax.random.key(0), clients=clients, samples=4, dim=3).clipped(1.0)
    options = {"targets": (-1e3, 1e3), "neighbors": privacy.neighbors}
    low, high = audit.corners(problem, range(clients), **options)
    return fl.Simulation(problem=low, algorithm=ConventionalFL(0.1), privacy=privacy), high


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("neighbors", NEIGHBORS)
def test_one_run_finds_a_part_of_the_claim(neighbors):
    result = audit.one_run(*canaries(ZCDP(2.0, 0.9, neighbors=neighbors)), 5, delta=1e-5)
    assert not result.broken
    assert 1.0 < result.bound < result.claimed
    assert result.canaries == 300
    assert 0.7 * result.guesses < result.right <= result.guesses < 300


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("privacy", [HalfNoise, BareRound, ZCDP])
def test_one_run_catches_faults(privacy):
    result = audit.one_run(*canaries(privacy(0.3, 0.9), 3000), 5, delta=1e-5)
    assert result.broken == (privacy is not ZCDP)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("privacy", [Equal, Opposite, Common, ZCDP])
def test_one_run_catches_noise_that_clients_share(privacy):
    options = {"own": 0.01} if privacy is Common else {}
    result = audit.one_run(*canaries(privacy(0.1, **options), 600), 5, delta=1e-5)
    assert result.broken == (privacy is not ZCDP), result.verdict


@pytest.mark.slow
def test_one_run_audits_detect_noise_shared_by_rounds():
    """Noise that comes back with the opposite sign."""
    simulation, high = canaries(TakenBack(0.1), 600)
    assert audit.one_run(simulation, high, 4, delta=1e-5).broken
    sound = dataclasses.replace(simulation, privacy=ZCDP(0.1))
    assert not audit.one_run(sound, high, 4, delta=1e-5).broken


@pytest.mark.slow
def test_one_run_of_noisy_gradients():
    problem = fl.problems.ridge(jax.random.key(0), clients=300, samples=4, dim=3)
    low, high = audit.corners(problem, range(300), radius=9.0, targets=(-1e3, 1e3))
    budget = NoisyGradients(3.0, neighbors="replace")
    simulation = fl.Simulation(low, FedDPSGD(0.1, local_steps=4), privacy=budget)
    result = audit.one_run(simulation, high, 2, delta=1e-5)
    assert not result.broken
    assert 0.5 < result.bound < result.claimed
    less = dataclasses.replace(simulation, privacy=OneDraw(8.0, neighbors="replace"))
    assert audit.one_run(less, high, 2, delta=1e-5).broken


@pytest.mark.slow
def test_clients_without_a_canary_are_not_guessed():
    simulation, high = canaries(ZCDP(2.0))
    features = np.array(high.features)
    targets = np.array(high.targets)
    features[100:], targets[100:] = (
        np.asarray(getattr(simulation.problem, n))[100:] for n in ("features", "targets")
    )
    high = dataclasses.replace(high, features=features, targets=targets)
    assert audit.one_run(simulation, high, 5, delta=1e-5).canaries == 100


# Reports -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_reports_state_the_main_facts():
    result = audit_of("zCDP-NFL", ZCDP(20.0), seeds=200)
    assert result.most < result.claimed
    assert "So few trials could show" in result.verdict
    a, b = audit.corners(make_problem("ridge"), CLIENT, targets=(-9, 9))
    simulation = simulate("zCDP-NFL", a)
    nominal = audit.two_worlds(simulation, b, 2, 200, delta=DELTA)
    assert nominal.gradient_norm > nominal.gradient_bound
    assert "nominal" in nominal.verdict
    assert "nominal" not in result.verdict


@pytest.mark.slow
def test_pictures_have_labels():
    for privacy in (None, PureDP(1.0)):
        result = audit_of("zCDP-NFL", privacy, seeds=400)
        figure = result.draw()
        assert all(ax.get_xlabel() and ax.get_ylabel() for ax in figure.axes)
        left, right = (ax.get_legend_handles_labels()[1] for ax in figure.axes)
        assert sorted(left) == ["threshold", "world a", "world b"]
        assert right == ["blind guessing", "attack", "claim: not below", "Gaussian fit"]
        alarms, misses = result.errors()
        assert (alarms[0], misses[0], alarms[-1], misses[-1]) == (1, 0, 0, 1)
        assert np.all(np.diff(alarms) <= 0)
        assert np.all(np.diff(misses) >= 0)
        plt.close(figure)


@pytest.mark.slow
def test_a_second_audit_of_other_numbers_does_not_compile():
    a, b = clipped()
    for rho in (0.5, 1.0):
        audit.two_worlds(
            dataclasses.replace(simulate("FL", a), privacy=ZCDP(rho)), b, 3, 200, delta=0.1
        )
        count = world_guessing._both_worlds._cache_size()
    audit.two_worlds(simulate("FL", a), b, 3, 200, delta=0.1, key=1)
    assert world_guessing._both_worlds._cache_size() == count


# Bad input ---------------------------------------------------------------------------------------


def audit_arguments(**changes):
    a, b = clipped()
    simulation = simulate("zCDP-NFL", a)
    part = {k: changes.pop(k) for k in ("privacy",) if k in changes}
    defaults = {"neighbor": b, "rounds": 2, "seeds": 200, "delta": 0.1}
    return {"simulation": dataclasses.replace(simulation, **part), **defaults, **changes}


def largest_move(problem, rows):
    features = np.array(problem.features)
    features[rows] += 1
    return dataclasses.replace(problem, features=features)


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        (ValueError, {"delta": 0.0}, "delta must be finite and > 0 and < 1, got 0"),
        (ValueError, {"delta": 1.0}, "delta must be finite and > 0 and < 1, got 1"),
        (ValueError, {"confidence": 1.0}, "confidence must be"),
        (ValueError, {"privacy": None}, "no claim to audit: .* give it privacy="),
        (ValueError, {"seeds": 199}, "seeds must be >= 200, got 199. Half of them"),
        (TypeError, {"seeds": 1e3}, "seeds must be an integer"),
        (ValueError, {"rounds": 0}, "rounds must be >= 1"),
        (
            TypeError,
            {"simulation": "mine"},
            r"instance of fljax.simulation.scenario.Simulation, got 'mine'",
        ),
        (TypeError, {"neighbor": 3}, r"must be an instance of .*Problem, got 3"),
        (ValueError, {"neighbor": clipped()[0]}, "one sample .*, got 0 samples of 0 clients"),
        (
            ValueError,
            {"neighbor": largest_move(clipped()[0], np.s_[1:3, 0])},
            r"one sample .*, got 2 samples of 2 clients; fljax.audit.corners makes a pair",
        ),
        (
            ValueError,
            {"neighbor": make_problem("lad", clip=1.0, sizes=(4, 9, 6, 13, 7))},
            r"same shape.*\(5, 12, 3\).*\(5, 13, 3\)",
        ),
        (ValueError, {"neighbor": clipped()[0].clipped(2.0)}, "agree in all but their samples"),
        (
            ValueError,
            {"neighbor": dataclasses.replace(clipped()[0], loss=LeastSquares())},
            "agree in all but their samples",
        ),
    ],
)
def test_bad_audits_are_refused(error, changes, message):
    with pytest.raises(error, match=message):
        audit.two_worlds(**audit_arguments(**changes))


def under(neighbors):
    """World a under a budget of this relation."""
    return dataclasses.replace(
        audit_arguments()["simulation"], privacy=ZCDP(1.0, neighbors=neighbors)
    )


@pytest.mark.parametrize(
    ("neighbors", "neighbor", "message"),
    [
        (
            "add-or-remove",
            clipped()[1],
            "that only one of them contains.* both have it",
        ),
        (
            "add-or-remove",
            largest_move(clipped()[0], np.s_[1, :2]),
            "one sample .*, got 2 samples of 1",
        ),
        (
            "client",
            largest_move(clipped()[0], np.s_[1:3, 0]),
            "differ in one client.* got 2 samples of 2",
        ),
        ("client", clipped()[0], "'client', got 0 samples of 0 clients; .*corners makes"),
    ],
)
def test_pairs_of_another_relation_are_refused(neighbors, neighbor, message):
    with pytest.raises(ValueError, match=message):
        audit.two_worlds(**audit_arguments(simulation=under(neighbors), neighbor=neighbor))


@pytest.mark.slow
def test_pairs_of_the_relation_are_taken():
    """In either order, with one of a client's samples replaced, and after a feature map."""
    a, lacking = clipped("add-or-remove")
    options = {"rounds": 1, "seeds": 200, "delta": 0.1}
    for simulation, neighbor in (
        (dataclasses.replace(under("add-or-remove"), problem=a), lacking),
        (dataclasses.replace(under("add-or-remove"), problem=lacking), a),
        (under("client"), clipped()[1]),
    ):
        audit.two_worlds(simulation, neighbor, **options)
    mapped = dataclasses.replace(make_problem("lad", clip=1.0), feature_map=Squares(3))
    present, gone = audit.corners(mapped, CLIENT, neighbors="add-or-remove")
    assert present.feature_map is None
    assert present.features[CLIENT, 0].any()
    assert not gone.features[CLIENT, 0].any()


@module
class Squares:
    """A feature map under which zero is not zero."""

    dim: int = static()

    def __call__(self, x):
        return 1 + x**2


def test_padding_does_not_count_as_a_sample():
    a, _ = clipped()
    with pytest.raises(ValueError, match="got 0 samples"):
        audit.two_worlds(**audit_arguments(neighbor=largest_move(a, np.s_[CLIENT, 11])))
    with pytest.raises(ValueError, match="sample 11 of client 2 is padding"):
        audit.corners(a, CLIENT, 11)


def test_bad_corners_are_refused():
    problem = make_problem()
    with pytest.raises(ValueError, match=r"client must be in 0..4 .* got 5 and 0"):
        audit.corners(problem, 5)
    with pytest.raises(ValueError, match="unknown neighbors 'add'; known: replace, add-or-remove"):
        audit.corners(problem, neighbors="add")
    with pytest.raises(ValueError, match="radius must be finite and > 0"):
        audit.corners(problem, radius=0.0)
    with pytest.raises(TypeError, match="problem must be an instance of"):
        audit.corners("data")


def test_bad_canaries_are_refused():
    simulation, high = canaries(ZCDP(2.0), 12)
    run = {"rounds": 2, "delta": 1e-3}
    with pytest.raises(ValueError, match="10 clients or more, got 0"):
        audit.one_run(simulation, simulation.problem, **run)
    with pytest.raises(ValueError, match=r"each client that is a canary.* got 24 samples of 12"):
        audit.one_run(simulation, largest_move(high, np.s_[:, 1]), **run)
    with pytest.raises(ValueError, match="no claim to audit"):
        audit.one_run(dataclasses.replace(simulation, privacy=None), high, **run)
    with pytest.raises(ValueError, match="delta must be"):
        audit.one_run(simulation, high, 2, delta=1.0)


class Silent(ZCDPGradNFL):
    """Says nothing over the link."""

    def step(self, state, now):
        now.witness(now.problem.sample_gradient_norm(state.sent))
        return state


def test_an_algorithm_that_sends_no_message_is_refused():
    a, b = clipped()
    silent = dataclasses.replace(simulate("zCDP-grad-NFL", a), algorithm=module(Silent)(0.05))
    with pytest.raises(ValueError, match="Silent sent no message in a round"):
        audit.two_worlds(silent, b, 2, 200, delta=0.1)
