"""Noise on clients' gradients that a strategy correlates over their steps, and samples by turns."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax._core.prng import bernoulli, private_normal
from fljax.algorithms import FedDPSGD
from fljax.participation.selectors import Drawn, Everyone, Law, Participants
from fljax.privacy import NoisyGradients, accounting, matrices, spent
from fljax.simulation.scan import begin, noise_plan, prepare
from tests.cases import CLIENTS, DIM, SIZES, make_objective, make_problem
from tests.privacy.own import own_algorithm
from tests.privacy.test_correlated import largest_moves
from tests.privacy.test_learners import key_of, simulate, trajectory
from tests.reference import private

close = np.testing.assert_allclose
DELTA = 1e-5
Z = 0.8
CLIP = 0.5
ROUNDS = 6
STEPS = 2

STRATEGIES = {
    "buffers": matrices.BufferedToeplitz(scale=[0.3, 0.2], decay=[0.9, 0.4]),
    "banded square root": matrices.square_root(3),
    "negative entries": matrices.Toeplitz([1.0, -0.5, 0.25]),
    "inverse square root": matrices.inverse_square_root(3),
    "columns of norm one": matrices.column_normalized(matrices.square_root(4), ROUNDS * STEPS),
}
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


def descending(strategy, groups=1, rate=None, per_round=None, z=Z, **fields):
    algorithm = FedDPSGD(
        0.05, local_steps=STEPS, sampling_rate=rate, turns=groups, clients_per_round=per_round
    )
    return simulate(algorithm, NoisyGradients(z, clip=CLIP, strategy=strategy, **fields))


# Loops -------------------------------------------------------------------------------------------


def by_turns(algorithm):
    """The participants of each round, and their batches and normals by client and step: of the
    group of samples whose turn it is at the client.
    """
    selector = Everyone() if algorithm.clients_per_round is None else Drawn(2)
    everyone = jnp.ones(CLIENTS, bool)
    taken = [0] * CLIENTS
    present = []
    batches = []
    draws = []
    for n in range(1, ROUNDS + 1):
        participants = selector.choose(key_of(n, "participation"), everyone, None, n)
        numbers = np.asarray(participants.numbers).tolist()
        of_call = jax.random.fold_in(key_of(n, "gradients"), 1)
        batches.append([[] for _ in SIZES])
        draws.append([[] for _ in SIZES])
        for i in range(STEPS):
            k_batch, k_noise = jax.random.split(jax.random.fold_in(of_call, i))
            places = len(numbers), -(-max(SIZES) // algorithm.turns)
            chosen = np.ones(places, bool)
            if algorithm.sampling_rate is not None:
                chosen = np.asarray(bernoulli(k_batch, places, algorithm.sampling_rate))
            normal = np.asarray(private_normal(k_noise, (len(numbers), DIM), float))
            for row, k in enumerate(numbers):
                index = taken[k] % algorithm.turns
                group = index + algorithm.turns * np.flatnonzero(chosen[row])
                batches[-1][k].append([j for j in group if j < SIZES[k]])
                draws[-1][k].append(normal[row])
                taken[k] += 1
        present.append(numbers)
    return present, batches, draws


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "groups", "rate", "per_round"),
    [
        ("banded square root", 3, 0.6, 2),
        (None, 3, 0.6, None),
        ("negative entries", 1, 0.4, None),
        ("inverse square root", 2, None, 2),
        ("buffers", 1, None, None),
        ("buffers", 4, 0.5, 2),
        ("columns of norm one", 4, 0.5, None),
    ],
)
def test_descent_with_correlated_noise_is_the_loop(name, groups, rate, per_round):
    """Absent clients go on where they stopped: with their noise, and with their samples' turns."""
    strategy = STRATEGIES.get(name)
    simulation = descending(strategy, groups, rate, per_round)
    present, batches, draws = by_turns(simulation.algorithm)
    if strategy is not None:
        draws = private.correlated(strategy.matrix(ROUNDS * STEPS), present, draws)
    sizes = [(1 if rate is None else rate) * size / groups for size in SIZES]
    objective = make_objective(clip=CLIP)
    theirs = private.dp_sgd(objective, 0.05, present, batches, sizes, Z, draws)
    ours, _ = trajectory(simulation, ROUNDS)
    close(ours, theirs, rtol=0, atol=1e-10)


def test_all_groups_together_are_a_step_on_all_samples():
    problem = make_problem()
    models = jnp.zeros((CLIENTS, DIM))
    algorithm = FedDPSGD(0.05, turns=3)
    batches = [algorithm._draw_batch(jax.random.key(0), problem, group)[0] for group in range(3)]
    mean = sum(batch.gradient(models) for batch in batches) / 3
    close(mean, problem.gradient(models), rtol=1e-12)


@pytest.mark.slow
def test_without_budget_or_strategy_samples_have_the_same_groups():
    """Also with absent clients: the same batches under any noise."""
    algorithm = FedDPSGD(0.05, local_steps=STEPS, sampling_rate=0.6, turns=3, clients_per_round=2)
    loud = NoisyGradients(1e-9, clip=1e3)
    plain, _ = trajectory(simulate(algorithm, None), ROUNDS)
    for mechanism in (loud, replace(loud, strategy=STRATEGIES["banded square root"])):
        close(trajectory(simulate(algorithm, mechanism), ROUNDS)[0], plain, rtol=0, atol=1e-4)


def memory_of(simulation):
    return begin(simulation, prepare(simulation, ROUNDS), jax.random.key(0)).memory


def test_acyclic_algorithms_keep_no_memory():
    assert jax.tree.leaves(memory_of(descending(None))) == []
    counted = memory_of(descending(None, groups=2))
    assert counted.mechanism is None
    assert counted.steps.shape == (CLIENTS,)
    coding = memory_of(descending(STRATEGIES["buffers"])).mechanism
    assert coding.encoder.buffers.shape == (CLIENTS, 2, DIM)


def test_absent_clients_keep_their_state():
    simulation = descending(STRATEGIES["columns of norm one"], groups=4)
    link = fl.view(simulation, rounds=ROUNDS).link
    problem = simulation.problem
    clients = jnp.asarray([3, 1, 0], jnp.int32)
    participants = Participants(clients, jnp.asarray([True, True, False]))
    data = participants.of(problem)
    numbers = []
    before = link.memory.mechanism

    def draw(key, number):
        numbers.append(number)
        return data, data.influence

    link.descend(STEPS, participants, jnp.ones((3, DIM)), draw, lambda model, g: model - g)
    close(link.memory.steps, [0, STEPS, 0, STEPS, 0])
    for old, new in zip(*map(jax.tree.leaves, (before, link.memory.mechanism)), strict=True):
        moved = np.any(np.asarray(old != new).reshape(CLIENTS, -1), axis=1)
        assert moved.tolist() == [False, True, False, True, False]


# The ledger --------------------------------------------------------------------------------------


@each_strategy
@pytest.mark.thin(1)
@pytest.mark.parametrize("groups", [3, 1])
def test_a_sample_pays_for_its_steps_by_their_sensitivity(name, groups):
    strategy = STRATEGIES[name]
    steps = ROUNDS * STEPS
    results = fl.run(descending(strategy, groups), ROUNDS)
    exact = np.array(largest_moves(strategy.matrix(steps), groups)) / (2 * Z**2)
    taken = STEPS * np.arange(1, ROUNDS + 1)
    ledger = results.privacy_rho.values
    assert (ledger >= exact[(taken - 1) // groups] * (1 - 1e-12)).all()
    if strategy.has_exact_sensitivity(steps, groups):
        close(ledger[-1], exact[-1], rtol=1e-6)
    assert results.privacy_releases.values.tolist() == (-(-taken // groups)).tolist()
    assert float(results.sampling_rate) == 1


def test_a_client_that_took_fewer_steps_paid_for_less():
    strategy = STRATEGIES["buffers"]
    results = fl.run(descending(strategy, groups=3, per_round=2), ROUNDS)
    times = np.bincount(np.ravel(by_turns(descending(None, 3, per_round=2).algorithm)[0]))
    assert len(set(times.tolist())) > 1
    paid = np.cumsum(strategy.participation_costs(ROUNDS * STEPS, 3)) / (2 * Z**2)
    drawn = fl.run(descending(strategy, groups=3, per_round=2), ROUNDS, key=4)
    for result in (results, drawn):
        releases = result.client_releases.values.astype(int)
        close(result.client_rho.values, np.concatenate([[0], paid])[releases], rtol=1e-6)


def test_cyclic_sampling_amplifies_where_groups_do_not_overlap():
    def rate_of(strategy, groups, rate):
        simulation = descending(strategy, groups, rate)
        sampling = simulation.algorithm.sampling(simulation.problem)
        about = simulation.privacy.sampled(noise_plan(simulation, ROUNDS), sampling, min(SIZES))
        return float(about["sampling_rate"])

    for strategy, count, rate in (
        (STRATEGIES["buffers"], 1, 0.4),
        (STRATEGIES["banded square root"], 2, 0.4),
        (STRATEGIES["buffers"], 4, 0.4),
        (STRATEGIES["banded square root"], 3, None),
    ):
        assert rate_of(strategy, count, rate) == 1
    for strategy, count in ((STRATEGIES["banded square root"], 3), (None, 3), (None, 1)):
        close(rate_of(strategy, count, 0.4), 0.4, rtol=1e-6)
    results = fl.run(descending(STRATEGIES["banded square root"], 3, 0.4), ROUNDS)
    close(results.sampling_rate, 0.4, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, matrices.square_root(4)])
def test_epsilon_of_samples_by_turns_is_that_of_its_theorem(strategy):
    pytest.importorskip("dp_accounting")
    results = fl.run(descending(strategy, groups=4, rate=0.5, z=1.0), 5)
    matrix = matrices.identity() if strategy is None else strategy
    theorem = accounting.cyclic_poisson_epsilon(matrix, 1.0, DELTA, rounds=10, rate=0.5, cycle=4)
    # The cost of steps in an observed group is another promise.
    drawn = results.drop_vars(["privacy_rho", "client_rho"])
    close(spent(drawn, DELTA).epsilon.values[-1], theorem, rtol=1e-4)
    assert spent(results, DELTA).epsilon.values[-1] <= theorem * (1 + 1e-4)


@pytest.mark.slow
def test_a_strategy_of_clients_may_be_an_axis_of_a_study():
    def scenario(key, decay):
        return descending(matrices.BufferedToeplitz(scale=[0.5], decay=jnp.atleast_1d(decay)))

    study = fl.sweep(scenario, grid={"decay": [0.25, 0.75]}, rounds=4, seeds=1)
    assert study.attrs["compilations"] == 1
    for decay in (0.25, 0.75):
        alone = matrices.BufferedToeplitz(scale=[0.5], decay=[decay])
        rho = alone.participation_costs(4 * STEPS).sum() / (2 * Z**2)
        close(study.privacy_rho.sel(decay=decay).isel(round=-1, seed=0), rho, rtol=1e-6)


@pytest.mark.slow
def test_strategies_release_perturbed_values_only():
    for name in ("buffers", "columns of norm one"):
        assert (
            fl.audit.unperturbed(descending(STRATEGIES[name], groups=4, rate=0.5, per_round=2))
            == []
        )


# Rounding ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_long_sums_of_gradients_in_single_precision_are_nominal():
    """Sums over many samples, for any public gradient of the regularizer."""
    with jax.enable_x64(False):
        strategy = matrices.BufferedToeplitz(scale=[0.5], decay=[1.0])
        budget = NoisyGradients(1.0, clip=1e-3, strategy=strategy)
        for samples, rounds, nominal in ((400, 100, True), (4, 20, False)):
            problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=samples, dim=3)
            problem = replace(problem, strength=jnp.float32(3.0)).starting_at(np.full(3, 100.0))
            simulation = fl.Simulation(problem, FedDPSGD(1e-3), privacy=budget)
            results = fl.run(simulation, rounds, record_every=rounds)
            assert bool(results.nominal) == nominal


# Attacks -----------------------------------------------------------------------------------------


def audited(mechanism, rounds, **options):
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=6, dim=2)
    a, b = fl.audit.corners(
        problem, radius=50.0, targets=(-1e3, 1e3), neighbors=mechanism.neighbors
    )
    simulation = fl.Simulation(a, FedDPSGD(0.1, **options), privacy=mechanism)
    return fl.audit.two_worlds(simulation, b, rounds, 4000, delta=0.05, confidence=0.999)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("name", "groups", "neighbors"),
    [
        ("buffers", 1, "replace"),
        ("banded square root", 3, "add-or-remove"),
        ("inverse square root", 2, "add-or-remove"),
    ],
)
def test_an_attack_finds_the_claim_of_a_sample_and_not_more(name, groups, neighbors):
    """A sample that is in every turn of its group, at a client whose every gradient is heard."""
    strategy = STRATEGIES[name]
    z = 6.0 if neighbors == "replace" else 3.0
    budget = NoisyGradients(z, strategy=strategy, neighbors=neighbors)
    result = audited(budget, 3, local_steps=2, turns=groups)
    rho = strategy.participation_costs(6, groups).sum() * (budget.moved / z) ** 2 / 2
    close(result.ledger["rho"], rho, rtol=1e-6)
    assert not result.broken, result.verdict
    assert result.mu == pytest.approx(math.sqrt(2 * rho), rel=0.08)


class ForgetfulNoise(NoisyGradients):
    """Perturbs with half of the stated noise."""

    def draw(self, key, shape, dtype):
        return super().draw(key, shape, dtype) / 2


@pytest.mark.slow
def test_half_of_correlated_noise_is_caught():
    budget = fl.module(ForgetfulNoise)(3.0, strategy=STRATEGIES["banded square root"])
    assert audited(budget, 3, local_steps=2, turns=3).broken


@pytest.mark.slow
def test_one_run_of_correlated_gradients():
    problem = fl.problems.ridge(jax.random.key(0), clients=300, samples=4, dim=3)
    low, high = fl.audit.corners(problem, range(300), radius=9.0, targets=(-1e3, 1e3))
    budget = NoisyGradients(3.0, strategy=STRATEGIES["banded square root"], neighbors="replace")
    algorithm = FedDPSGD(0.1, local_steps=3, turns=3)
    result = fl.audit.one_run(fl.Simulation(low, algorithm, privacy=budget), high, 2, delta=1e-5)
    assert not result.broken
    assert 0.5 < result.bound < result.claimed


@pytest.mark.parametrize("central", [True, False])
def test_a_joint_bound_is_not_searched_message_by_message(central):
    strategy = STRATEGIES["buffers"]
    simulation = descending(strategy)
    if central:
        algorithm = fl.algorithms.FedAvg(0.1, weighting="equal")
        budget = fl.privacy.CentralGaussian(1.0, strategy=strategy, neighbors="replace")
        simulation = simulate(algorithm, budget)
    with pytest.raises(ValueError, match="may hold several participations"):
        fl.audit.worst_neighbors(simulation)


# Bad input ---------------------------------------------------------------------------------------


@fl.module
class WithoutLaw(FedDPSGD):
    def _draw_batch(self, key, data, number=0):
        return super()._draw_batch(key, data, number)


@fl.module
class UnknownLaw(FedDPSGD):
    def sampling(self, problem):
        return None


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: simulate(UnknownLaw(0.1), NoisyGradients(1.0)), "its method 'sampling' returns"),
        (lambda: NoisyGradients(1.0, strategy=3), "strategy must be an instance of .*Strategy"),
        (lambda: FedDPSGD(0.1, turns=0), "turns must be"),
        (lambda: FedDPSGD(0.1, turns=2, batch=3), "draws from all samples of a client in every"),
        (lambda: simulate(FedDPSGD(0.1, turns=13), None), "at most the 12 samples of the largest"),
        (
            lambda: simulate(FedDPSGD(0.1, sampling_rate=0.5, turns=3, capacity=3), None),
            "capacity must be at least 4: a batch of up to 4 samples",
        ),
        (
            lambda: simulate(WithoutLaw(0.1), NoisyGradients(1.0, strategy=matrices.identity())),
            "how it draws samples: a method 'sampling'",
        ),
    ],
)
def test_bad_groups_and_strategies_are_named(build, match):
    with pytest.raises((TypeError, ValueError), match=match):
        fl.run(build(), ROUNDS)


def test_more_steps_than_a_strategy_is_made_for_are_refused():
    simulation = descending(STRATEGIES["columns of norm one"])
    with pytest.raises(ValueError, match="is made for 12 rounds, and the run has 14"):
        fl.run(simulation, ROUNDS + 1)


def test_a_strategy_that_does_not_fit_is_refused():
    problem = fl.problems.ridge(jax.random.key(0), clients=2000, samples=1, dim=2000)
    budget = NoisyGradients(1.0, strategy=matrices.square_root(200_000))
    with pytest.raises(MemoryError, match=r"what clients keep of a strategy .*fewer bands"):
        fl.run(fl.Simulation(problem, FedDPSGD(0.1), privacy=budget), 1)


def two_step_algorithm(how, steps=2):
    """An algorithm of two steps a round that states how many there are."""
    kind = type(own_algorithm(NoisyGradients, how))
    if steps is None:
        return kind()

    @fl.module
    class Stepping(kind):
        local_steps: int = fl.static(default=steps)

        def sampling(self, problem):
            return Law(1.0)

    return Stepping()


def twice(numbers):
    def how(now, start):
        participants = Participants(numbers(now), np.ones(CLIENTS, bool))
        batch = now.problem, now.problem.influence
        model = now.link.descend(
            2, participants, start, lambda key, number: batch, lambda model, g: model - 0.1 * g
        )
        now.link.collect(model, participants.here & False, start[0])
        return jnp.mean(model, axis=0)

    return how


everyone = twice(lambda now: jnp.arange(CLIENTS, dtype=jnp.int32) + 0 * now.number)
same = twice(lambda now: np.array([0, 1, 1, 3, 4], np.int32))
same_traced = twice(lambda now: jnp.asarray([0, 1, 1, 3, 4], jnp.int32) + 0 * now.number)


@pytest.mark.parametrize(
    ("algorithm", "match"),
    [
        (lambda: two_step_algorithm(everyone, None), "a field or property local_steps"),
        (
            lambda: two_step_algorithm(everyone, 1),
            "takes 2 steps in a round, and the algorithm says",
        ),
        (lambda: two_step_algorithm(same), "client 1 sends 2 rows of one message"),
    ],
)
def test_custom_algorithms_declare_their_steps(algorithm, match):
    budget = NoisyGradients(1.0, strategy=STRATEGIES["buffers"])
    with pytest.raises(ValueError, match=match):
        fl.run(simulate(algorithm(), budget), ROUNDS)


@pytest.mark.slow
def test_only_the_first_row_of_a_client_goes_on_with_its_noise():
    budget = NoisyGradients(1.0, strategy=matrices.identity())
    results = fl.run(simulate(two_step_algorithm(same_traced), budget), ROUNDS)
    close(results.client_releases, [12.0, 12.0, 0.0, 12.0, 12.0])
