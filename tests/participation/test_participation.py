"""Participation: frequencies by exact tests, tables and periods by hand, groups, refused arguments.

Statistical tests use fixed keys and fail below ``LEVEL``, far below a correct draw's p-values.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core import random_subsets
from fljax._core.module import module
from fljax._core.prng import as_key, key_of
from fljax._core.random_subsets import PACKED_SIZE, SELECTED_BELOW, on_line, shuffled, subset
from fljax.algorithms import (
    MIME,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedNova,
    FedProx,
    FedSAM,
    OnlineFed,
    PAOFed,
    SignSGD,
)
from fljax.link import Circular, UniformDelay
from fljax.participation.patterns import (
    Always,
    Bernoulli,
    Bounded,
    Markov,
    Periodic,
    Trace,
    Until,
    groups,
)
from fljax.participation.selectors import (
    ActiveSampling,
    Drawn,
    Everyone,
    Fraction,
    Participants,
    PerServer,
    PowerOfChoice,
    Selector,
    Subset,
    Unequal,
)
from tests import cases
from tests.support.online_world import DATA, short_run, stream_of

close = np.testing.assert_allclose


LEVEL = 1e-4


def play(pattern, key, clients, rounds):
    def move(state, n):
        return pattern.draw(state, jax.random.fold_in(key, n), n, clients)

    state = pattern.begin(jax.random.fold_in(key, 0), clients)
    return jax.lax.scan(move, state, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]


def table(pattern, clients, rounds):
    """``[rounds, clients]``: the pattern played as a run plays it."""
    return np.asarray(play(pattern, jax.random.key(0), clients, rounds))


def is_frequency(hits, trials, probability):
    assert stats.binomtest(int(hits), int(trials), probability).pvalue > LEVEL


def unrelated(first, second):
    """Two columns of booleans pass for independent."""
    counts = np.histogram2d(first, second, bins=2)[0]
    assert stats.chi2_contingency(counts, correction=False).pvalue > LEVEL


# Patterns ---------------------------------------------------------------------------------------


def test_always_means_everyone():
    on = table(Always(), 3, 5)
    assert on.shape == (5, 3)
    assert on.all()


def test_bernoulli_has_each_clients_probability_independently():
    probability = np.array([0.25, 0.1, 0.025, 0.005, 0.5])
    on = table(Bernoulli(probability), 5, 20_000)
    for k in range(5):
        is_frequency(on[:, k].sum(), len(on), probability[k])
        unrelated(on[1:, k], on[:-1, k])
    for k, other in itertools.combinations((0, 1, 4), 2):
        unrelated(on[:, k], on[:, other])
        unrelated(on[1:, k], on[:-1, other])


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_trials_have_no_exception(probability):
    assert (table(Bernoulli(probability), 4, 500) == bool(probability)).all()


def test_one_number_applies_to_all_clients():
    from_number = table(Bernoulli(0.3), 4, 50)
    list_of_them = table(Bernoulli([0.3] * 4), 4, 50)
    np.testing.assert_array_equal(from_number, list_of_them)
    assert len(np.unique(from_number, axis=1).T) == 4  # yet each has trials of its own


def test_whole_numbers_are_probabilities_too():
    on = table(Bernoulli(groups([1, 0], 4)), 4, 3)
    np.testing.assert_array_equal(on, [[True, True, False, False]] * 3)


def test_markov_starts_in_its_stationary_distribution_and_stays_there():
    fail = np.array([0.1, 0.5, 0.02])
    recover = np.array([0.3, 0.5, 0.04])
    pattern = Markov(fail, recover)
    keys = jax.random.split(jax.random.key(1), 4000)
    runs = np.asarray(jax.jit(jax.vmap(lambda key: play(pattern, key, 3, 8)))(keys))
    for k, share in enumerate(recover / (fail + recover)):
        is_frequency(runs[:, 0, k].sum(), 4000, share)
        is_frequency(runs[:, 7, k].sum(), 4000, share)


def test_markov_moves_by_its_two_probabilities_which_fix_autocorrelation_and_off_times():
    fail = np.array([0.1, 0.02])
    recover = np.array([0.3, 0.05])
    rounds = 40_000
    on = table(Markov(fail, recover), 2, rounds)
    for k in range(2):
        before = on[:-1, k]
        after = on[1:, k]
        is_frequency((before & ~after).sum(), before.sum(), fail[k])
        is_frequency((~before & after).sum(), (~before).sum(), recover[k])
        correlation = np.corrcoef(before, after)[0, 1]
        np.testing.assert_allclose(correlation, 1 - fail[k] - recover[k], atol=0.02)
        changes = np.flatnonzero(np.diff(on[:, k].astype(int)))
        spells = np.diff(changes)
        off = spells[~on[changes[:-1] + 1, k]]  # from one change to the next, all off
        deviation = np.sqrt(1 - recover[k]) / recover[k]
        assert abs(off.mean() - 1 / recover[k]) < 4 * deviation / np.sqrt(len(off))
    unrelated(on[::50, 0], on[::50, 1])


def test_clients_that_never_fail_are_always_on():
    assert table(Markov(0.0, 0.2), 5, 100).all()


def test_a_period_and_its_first_round():
    on = table(Periodic((1, 3, 2), (1, 2, 5)), 3, 9)
    rounds = [np.flatnonzero(column) + 1 for column in on.T]
    assert [r.tolist() for r in rounds] == [list(range(1, 10)), [2, 5, 8], [5, 7, 9]]
    np.testing.assert_array_equal(table(Periodic(4), 2, 9)[:, 0], table(Periodic(4), 2, 9)[:, 1])
    assert (np.flatnonzero(table(Periodic(4), 2, 9)[:, 0]) + 1).tolist() == [1, 5, 9]


def test_until_the_last_round_and_not_after():
    on = table(Until([0, 1, 4]), 3, 6)
    np.testing.assert_array_equal(on.sum(0), [0, 1, 4])
    assert on[0, 1]
    assert on[:4, 2].all()
    np.testing.assert_array_equal(table(Until(np.array([0, 1, 4])), 3, 6), on)
    np.testing.assert_array_equal(table(Until(2), 3, 4).sum(0), [2, 2, 2])


def test_a_trace_is_replayed_exactly():
    trace = np.random.default_rng(0).uniform(size=(12, 5)) < 0.5
    np.testing.assert_array_equal(table(Trace(trace), 5, 12), trace)
    np.testing.assert_array_equal(table(Trace(trace), 5, 7), trace[:7])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli(1.2), "probability must be finite and >= 0 and <= 1, got 1.2"),
        (lambda: Bernoulli([0.5, -0.1]), "probability must be .* got -0.1"),
        (lambda: Markov(1.5, 0.5), "fail must be .* got 1.5"),
        (lambda: Markov(0.5, [0.5, 0.0]), "recover must be .* got 0. At 0 a client never comes"),
        (lambda: Periodic(0), "period must be whole rounds >= 1, got 0"),
        (lambda: Periodic(2, [1, 0]), "offset must be whole rounds >= 1"),
        (lambda: Periodic(1.5), "period must be whole rounds"),
        (lambda: Until([3, -1]), "last must be .* got -1"),
        (
            lambda: Trace(np.full((3, 2), 0.5)),
            r"table must be booleans .* got shape \(3, 2\) of float64",
        ),
        (lambda: Trace(np.ones(3, bool)), r"table must be booleans .* got shape \(3,\)"),
        (lambda: Fraction(1.01), "fraction must be .* got 1.01"),
        (lambda: Subset(0), "count must be >= 1, got 0"),
        (lambda: Drawn(0), "count must be >= 1, got 0"),
        (lambda: PerServer(0), "count must be >= 1, got 0"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (Bernoulli([0.5, 0.5]), "probability"),
        (Markov([0.5, 0.5], 0.5), "fail"),
        (Markov(0.5, [0.5, 0.5]), "recover"),
        (Periodic([2, 2]), "period"),
        (Periodic(2, [1, 1]), "offset"),
        (Until([2, 2]), "last"),
    ],
)
def test_parameters_must_be_common_or_cover_all_clients(pattern, name):
    pattern.check(2, 100)
    with pytest.raises(ValueError, match=rf"{name} must be .* each of the 3 clients.*\.groups"):
        pattern.check(3, 100)


def test_a_trace_must_cover_the_run():
    trace = Trace(np.ones((4, 2), bool))
    trace.check(2, 4)
    for clients, rounds in ((2, 5), (3, 4)):
        with pytest.raises(ValueError, match=f"4 rounds of 2 clients; the run has {rounds} rounds"):
            trace.check(clients, rounds)


# Groups -----------------------------------------------------------------------------------------


def test_groups_cross_in_cells_of_equal_size():
    sizes = [500, 1000, 1500, 2000]
    probabilities = [0.25, 0.1, 0.025, 0.005]
    data = groups(sizes, 256)
    availability = groups(probabilities, 256, nested=4)
    np.testing.assert_array_equal(data, np.repeat(sizes, 64))
    cells = dict.fromkeys(itertools.product(sizes, probabilities), 0)
    for cell in zip(data.tolist(), availability.tolist(), strict=True):
        cells[cell] += 1
    assert set(cells.values()) == {16}
    np.testing.assert_array_equal(availability[:64], np.repeat(probabilities, 16))
    np.testing.assert_array_equal(groups([7.5], 3), [7.5] * 3)


def test_clients_that_groups_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"8 clients cannot be cut into 3 .* multiple of 3"):
        groups([1, 2, 3], 8)
    with pytest.raises(ValueError, match=r"8 clients cannot be cut into 16 .* multiple of 16"):
        groups([1, 2, 3, 4], 8, nested=4)


# By losses --------------------------------------------------------------------------------------


def by_loss(count=2, candidates=3):
    return PowerOfChoice(count, candidates=candidates)


@pytest.mark.slow
def test_candidates_are_drawn_by_their_samples_without_replacement():
    samples = jnp.asarray([1, 2, 0, 4, 8, 3])
    keys = jax.random.split(jax.random.key(0), 20_000)
    draw = jax.vmap(lambda key: by_loss(1, 2).ask(key, jnp.asarray(AVAILABLE), samples))
    candidates = jax.jit(draw)(keys)
    assert candidates.here.all()
    clients = np.asarray(candidates.clients)
    shares = np.array([1, 0, 0, 4, 0, 3]) / 8  # of those there
    for first, second in itertools.permutations(np.flatnonzero(shares), 2):
        hits = ((clients[:, 0] == first) & (clients[:, 1] == second)).sum()
        is_frequency(hits, 20_000, shares[first] * shares[second] / (1 - shares[first]))


def test_few_active_clients_are_all_candidates():
    available = jnp.asarray([False, True, False, False])
    key = jax.random.key(0)
    samples = jnp.full(4, 3, jnp.int32)
    candidates = by_loss().ask(key, available, samples)
    chosen = by_loss().chosen(key, candidates, jnp.asarray([-3.0, 9.0, 9.0]), samples[:3])
    assert chosen.numbers[chosen.here].tolist() == [1]


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx])
def test_clients_with_the_largest_loss_take_part(algorithm):
    """Against loops: the losses of the candidates, whom the run drew, and who moves the server."""
    problem = cases.make_problem()
    objective = cases.OBJECTIVE
    more = {"attraction": 0.0} if algorithm is FedProx else {}
    simulation = fl.Simulation(
        problem,
        algorithm(0.05, selector=by_loss(), **more),
        metrics=[fl.metrics.trajectory("model")],
    )
    run = fl.run(simulation, 6, key=1)
    everyone = jnp.ones(cases.CLIENTS, bool)
    samples = jnp.asarray(cases.SIZES)
    model = np.zeros(cases.DIM)
    sometimes = set()
    for n, now in enumerate(cases.keys_of(1, 6)):
        candidates = by_loss().ask(key_of(now, "participation"), everyone, samples)
        losses = {}
        for k in candidates.numbers.tolist():
            x, y = objective.data[k]
            rest = objective.strength / objective.clients * objective.l2 * model @ model
            losses[k] = np.mean((y - x @ model) ** 2) + rest
        best = sorted(losses, key=losses.get)[-2:]
        sometimes |= set(best)
        model = np.mean([model - 0.05 * objective.gradient(k, model) for k in best], axis=0)
        np.testing.assert_allclose(run.model_trajectory[n, 0], model, atol=1e-10)
    assert len(sometimes) > 2
    # Models to the candidates and from the participants, and the candidates' losses.
    per_round = (3 + 2) * cases.DIM + 3
    np.testing.assert_array_equal(run.scalars, per_round * np.arange(1, 7))


def picked(selector, losses, samples, available=None, draws=20_000):
    """How often each client is picked."""
    losses = jnp.asarray(losses)
    samples = jnp.asarray(samples, jnp.int32)
    available = jnp.ones(len(losses), bool) if available is None else jnp.asarray(available)

    def selection(key):
        candidates = selector.ask(key, available, samples)
        chosen = selector.chosen(key, candidates, losses, samples)
        return (
            jnp.zeros(len(losses), jnp.int32).at[chosen.numbers].add(chosen.here.astype(jnp.int32))
        )

    every = jax.jit(jax.vmap(selection))(jax.random.split(jax.random.key(0), draws))
    assert every.max() == 1  # each client at most once
    return np.asarray(every.sum(0)), np.asarray(every.sum(1))


def test_active_sampling_has_the_distribution_of_its_values():
    losses = [0.1, 2.0, 1.0, 3.0, 0.5, 9.0]
    samples = [9, 4, 16, 1, 4, 0]
    values = np.sqrt(samples) * losses  # 0.3, 4, 4, 3, 1; the last has no samples
    selector = ActiveSampling(1, sharpness=0.5, dropped=0.5, uniform=0.0)
    hits, _ = picked(selector, losses, samples)
    shares = np.where([0, 1, 1, 1, 0, 0], np.exp(0.5 * values), 0)  # two of five are dropped
    for k, share in enumerate(shares / shares.sum()):
        is_frequency(hits[k], 20_000, share)
    two = ActiveSampling(2, sharpness=0.5, dropped=0.5, uniform=0.5)
    hits, sizes = picked(two, losses, samples)
    assert (sizes == 2).all()
    shares = shares / shares.sum()
    for k, share in enumerate(shares[:5]):  # the second is any other that has samples
        is_frequency(hits[k], 20_000, share + (1 - share) / 4)


def test_active_sampling_selects_active_clients():
    selector = ActiveSampling(3, sharpness=1.0, dropped=0.9, uniform=0.0)
    hits, sizes = picked(selector, [1.0, 2, 3, 4], [5, 5, 5, 5], [True, False, True, True], 50)
    assert hits.tolist() == [50, 0, 50, 50]  # none is dropped, or there were not enough
    hits, sizes = picked(selector, [1.0, 2, 3, 4], [5, 5, 5, 5], [False, False, False, True], 50)
    assert (hits.tolist(), set(sizes)) == ([0, 0, 0, 50], {1})


@pytest.mark.slow
def test_shares_of_active_sampling_are_not_rounded_down():
    """In floating point 0.29 times 100 is below 29."""
    losses = np.arange(100.0)
    samples = np.full(100, 4)
    hits, _ = picked(ActiveSampling(1, sharpness=0.0, dropped=0.29, uniform=0.0), losses, samples)
    assert np.flatnonzero(hits).tolist() == [*range(29, 100)]
    sharp = ActiveSampling(100, sharpness=0.0, dropped=0.0, uniform=0.29)
    chosen = sharp.chosen(
        jax.random.key(0),
        Participants(None, jnp.ones(100, bool)),
        jnp.asarray(losses),
        jnp.asarray(samples, jnp.int32),
    )
    assert len({*chosen.numbers.tolist()}) == 100


@pytest.mark.slow
def test_active_sampling_equals_the_loop():
    problem = cases.make_problem()
    objective = cases.OBJECTIVE
    selector = ActiveSampling(2, sharpness=0.7, dropped=0.4, uniform=0.5)
    simulation = fl.Simulation(
        problem, FedAvg(0.05, selector=selector), metrics=[fl.metrics.trajectory("model")]
    )
    run = fl.run(simulation, 6, key=1)
    model = np.zeros(cases.DIM)
    samples = jnp.asarray(cases.SIZES, jnp.int32)
    candidates = Participants(None, jnp.ones(cases.CLIENTS, bool))
    sometimes = set()
    for n, now in enumerate(cases.keys_of(1, 6)):
        rest = objective.strength / objective.clients * objective.l2 * model @ model
        losses = [np.mean((y - x @ model) ** 2) + rest for x, y in objective.data]
        key = jax.random.fold_in(key_of(now, "participation"), 1)
        chosen = selector.chosen(key, candidates, jnp.asarray(losses), samples)
        best = chosen.numbers[chosen.here].tolist()
        sometimes |= set(best)
        model = np.mean([model - 0.05 * objective.gradient(k, model) for k in best], axis=0)
        np.testing.assert_allclose(run.model_trajectory[n, 0], model, atol=1e-10)
    assert len(sometimes) > 2
    per_round = (cases.CLIENTS + 2) * cases.DIM + cases.CLIENTS
    np.testing.assert_array_equal(run.scalars, per_round * np.arange(1, 7))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"count": 0}, "count must be"),
        ({"sharpness": -1.0}, "sharpness must be"),
        ({"dropped": 1.0}, "dropped must be"),
        ({"uniform": 1.1}, "uniform must be"),
    ],
)
def test_active_sampling_refuses_invalid_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        ActiveSampling(**{"count": 2} | arguments)


@pytest.mark.parametrize("selector", [PowerOfChoice(9, candidates=9), ActiveSampling(9)])
def test_more_than_there_are_cannot_be_chosen_by_loss(selector):
    with pytest.raises(ValueError, match="at most the 5 clients"):
        fl.Simulation(cases.make_problem(), FedAvg(0.05, selector=selector))


@pytest.mark.slow
def test_the_chosen_step_is_faster_and_ends_near_the_minimizer():
    """Cho, Wang & Joshi 2022, Theorem 3.1: a faster start, and a bias that stays."""
    rng = np.random.default_rng(3)
    truth = np.linspace(-1, 1, 4)
    data = [(x, x @ (truth + rng.normal(size=4))) for x in rng.normal(size=(30, 10, 4))]
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
    best = problem.objective(jnp.tile(fl.problems.optimum(problem), (30, 1))).mean()

    def gap(selector, rounds):
        def excess(seed):
            simulation = fl.Simulation(problem, FedAvg(0.01, selector=selector))
            model = jnp.asarray(fl.run(simulation, rounds, key=seed).model.values)
            return float(problem.objective(model).mean() - best)

        return np.mean([excess(seed) for seed in range(6)])

    choice = by_loss(3, 12)
    drawn = by_loss(3, 3)
    assert gap(choice, 20) < gap(drawn, 20)
    assert gap(choice, 600) > gap(drawn, 600)


@pytest.mark.slow
def test_personal_models_are_judged_by_their_own_losses():
    simulation = fl.Simulation(cases.make_problem(), FedAvg(0.05))
    now = fl.view(simulation)
    model = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    chosen = now.choose(by_loss(2, 5), model)
    losses = now.problem.objective(model)
    assert set(chosen.numbers.tolist()) == set(np.argsort(losses)[-2:].tolist())
    assert int(now.link.traffic.scalars[1]) == 5  # the losses alone: no model was sent


def test_losses_are_refused_where_they_would_leak_or_are_not_there():
    problem = cases.make_problem(clip=1.0)
    selector = by_loss()
    budget = fl.privacy.CentralGaussian(clip=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=r"chosen by their losses, .* leave out privacy="):
        fl.Simulation(problem, FedAvg(0.1, selector=selector), privacy=budget)
    with pytest.raises(TypeError, match=r"now.choose\(selector, model\)"):
        fl.view(fl.Simulation(problem, FedAvg(0.1))).choose(selector)
    with pytest.raises(TypeError, match=r"now.choose\(selector, model\)"):
        selector.choose(jax.random.key(0), jnp.ones(5, bool), None)
    with pytest.raises(ValueError, match="candidates must be at least the 2 that take part, got 1"):
        by_loss(2, 1)
    with pytest.raises(ValueError, match="candidates must be at most the 5 clients"):
        fl.Simulation(problem, FedAvg(0.1, selector=by_loss(2, 6)))
    with pytest.raises(ValueError, match="has several servers"):
        selector.check(6, fl.federation.balanced(3, fl.graphs.complete(2)))


@module
class Leaky(fl.algorithms.ConventionalFL):
    """Somebody's private algorithm that goes by losses all the same."""

    def step(self, state, now):
        now.choose(by_loss(), state.model)
        return super().step(state, now)


def test_the_audit_detects_released_losses():
    budget = fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0)
    simulation = fl.Simulation(cases.make_problem(clip=1.0), Leaky(0.1), privacy=budget)
    names = fl.audit.unperturbed(simulation)
    assert "a number that clients tell a server" in names
    with pytest.raises(ValueError, match="releases values that depend"):
        fl.run(simulation, 2)


# The server's choice ----------------------------------------------------------------------------

AVAILABLE = np.array([True, False, True, True, False, True])


def choices(selector, available, count, seed=0):
    keys = jax.random.split(jax.random.key(seed), count)
    draw = jax.vmap(lambda key: selector.choose(key, jnp.asarray(available), None).here)
    return np.asarray(jax.jit(draw)(keys))


def test_everyone_is_all_the_available():
    np.testing.assert_array_equal(choices(Everyone(), AVAILABLE, 2), [AVAILABLE] * 2)


def test_a_fraction_is_drawn_of_the_available_alone_and_independently():
    chosen = choices(Fraction(0.3), AVAILABLE, 10_000)
    assert not chosen[:, ~AVAILABLE].any()
    for k in np.flatnonzero(AVAILABLE):
        is_frequency(chosen[:, k].sum(), 10_000, 0.3)
    unrelated(chosen[:, 0], chosen[:, 2])
    unrelated(chosen[1:, 0], chosen[:-1, 0])
    np.testing.assert_array_equal(choices(Fraction(1), AVAILABLE, 1)[0], AVAILABLE)
    assert not choices(Fraction(0), AVAILABLE, 100).any()


def test_a_subset_is_uniform_over_all_subsets_of_the_available():
    chosen = choices(Subset(2), AVAILABLE, 12_000)
    assert not chosen[:, ~AVAILABLE].any()
    assert (chosen.sum(1) == 2).all()
    _, counts = np.unique(chosen, axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > LEVEL


def test_a_subset_of_too_few_is_all_of_them():
    np.testing.assert_array_equal(choices(Subset(5), AVAILABLE, 20), [AVAILABLE] * 20)
    assert not choices(Subset(3), np.zeros(6, bool), 20).any()


def test_a_subset_larger_than_the_network_is_refused():
    Subset(6).check(6)
    with pytest.raises(ValueError, match=r"count must be at most the 5 clients .* got 6"):
        Subset(6).check(5)


PROBABILITIES = np.array([0.3, 0.2, 0.05, 0.15, 0.2, 0.1])


@pytest.mark.core
def test_unequal_probabilities_are_exact_and_without_replacement():
    selector = Unequal(3, PROBABILITIES)
    keys = jax.random.split(jax.random.key(8), 20_000)
    everyone = jnp.ones(6, bool)
    chosen = jax.jit(jax.vmap(lambda key: selector.choose(key, everyone, None)))(keys)
    drawn = np.asarray(chosen.clients)
    weights = np.asarray(chosen.weights)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    for k in range(6):
        is_frequency((drawn == k).sum(), 20_000, 3 * PROBABILITIES[k])
    np.testing.assert_allclose(weights, 1 / (6 * PROBABILITIES[drawn]), rtol=1e-12)
    pairs = np.unique(np.sort(drawn, axis=1)[:, :2], axis=0)
    assert len({tuple(pair) for pair in pairs}) > 5  # in one fixed order only few ever meet
    # The weighted mean of the drawn values is that of all clients, on average (Lemma 2.1).
    values = np.random.default_rng(0).normal(size=6)
    means = (weights * values[drawn]).mean(axis=1)
    assert stats.ttest_1samp(means, values.mean()).pvalue > LEVEL


def test_equal_probabilities_are_a_uniform_draw():
    keys = jax.random.split(jax.random.key(9), 12_000)
    selector = Unequal(2, np.full(4, 0.25))
    draw = jax.jit(jax.vmap(lambda key: selector.choose(key, jnp.ones(4, bool), None).clients))
    _, counts = np.unique(np.sort(np.asarray(draw(keys)), axis=1), axis=0, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.mark.slow
def test_absent_clients_of_unequal_probabilities_take_no_part():
    chosen = Unequal(6, np.full(6, 1 / 6)).choose(jax.random.key(0), jnp.asarray(AVAILABLE), None)
    np.testing.assert_array_equal(np.asarray(chosen.here), AVAILABLE[np.asarray(chosen.clients)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Unequal(2, [0.5, 0.6]), "probabilities.*0.6.*drawn twice among 2"),
        (lambda: Unequal(2, [0.3, 0.3]), r"must sum to 1, got 0\.6; divide"),
        (lambda: Unequal(1, [1.0, 0.0]), "probabilities"),
        (lambda: Unequal(0, [1.0]), "count must be >= 1"),
        (lambda: Unequal(1, [0.5, 0.5]).check(3), r"one for each of the 3 clients.*\(2,\)"),
        (lambda: FedAvg(0.1, selector=[0.5, 0.5]), "selector must be"),
    ],
)
def test_impossible_probabilities_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("size", [1, 7, PACKED_SIZE, PACKED_SIZE + 1])
def test_a_shuffle_holds_every_index_once_the_first_ones_first(size):
    rng = np.random.default_rng(size)
    first = rng.uniform(size=(3, size)) < 0.4
    order = np.asarray(shuffled(jax.random.key(size), jnp.asarray(first)))
    assert order.dtype == np.int32
    for row, marked in zip(order, first, strict=True):
        np.testing.assert_array_equal(np.sort(row), np.arange(size))
        assert marked[row[: marked.sum()]].all()


@pytest.mark.parametrize("size", [30, 129, 300, PACKED_SIZE, PACKED_SIZE + 1])
@pytest.mark.parametrize("marked", [0, 0.01, 1])
def test_a_partial_shuffle_is_a_prefix_of_the_full_one(size, marked):
    """Also with equal random numbers: the last size but one leaves 21 bits."""
    shape = 200_000 // size, size
    first = jnp.asarray(np.random.default_rng(size).uniform(size=shape) < marked)
    full = shuffled(jax.random.key(size), first)
    for most in (1, size // SELECTED_BELOW, size // 3, size + 1):
        partial = shuffled(jax.random.key(size), first, most)
        np.testing.assert_array_equal(partial, full[:, :most])


@pytest.mark.parametrize("size", [128, 129])
def test_few_of_many_are_selected_where_the_random_bits_fit_single_precision(size):
    def first(key, mask):
        return shuffled(key, mask, 5)

    text = jax.jit(first).lower(jax.random.key(0), jnp.ones((1, size), bool)).as_text()
    assert ("top_k" in text) == (size > 128)


@pytest.mark.parametrize("seeds", [None, (3,), (11,), (4, 3)])
def test_rows_of_all_seeds_are_put_in_the_order_of_each(seeds, monkeypatch):
    def orders(key):
        return shuffled(key, jnp.ones((7, 2, 20), bool))

    keys = jax.random.split(jax.random.key(5), (1,) if seeds is None else seeds)
    for _ in seeds or ():
        orders = jax.vmap(orders)
    keys = keys[0] if seeds is None else keys
    orders_found = np.asarray(jax.jit(orders)(keys))
    np.testing.assert_array_equal(
        np.sort(orders_found, axis=-1), np.broadcast_to(range(20), orders_found.shape)
    )
    monkeypatch.setattr("fljax._core.random_subsets._ascending", jnp.sort)
    np.testing.assert_array_equal(orders_found, orders(keys))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="others sort by their own functions")
def test_seeds_are_shuffled_side_by_side():
    def program(seeds):
        keys = jax.random.split(jax.random.key(5), seeds)
        shuffle = jax.vmap(lambda key: shuffled(key, jnp.ones((8, 20), bool)))
        return jax.jit(shuffle).lower(keys).compile().as_text()

    assert "sort(" in program(7)
    assert "sort(" not in program(8)


def test_a_shuffle_may_be_part_of_what_is_differentiated():
    def value(scale, key):
        order = shuffled(key, jnp.ones((8, 20), bool))
        return jnp.sum((scale * jnp.arange(20.0))[order[:, 0]])

    keys = jax.random.split(jax.random.key(5), 9)
    slopes = jax.vmap(jax.grad(value), (None, 0))(2.0, keys)
    np.testing.assert_allclose(slopes, jax.vmap(value, (None, 0))(1.0, keys))


@pytest.mark.slow
def test_shuffles_are_uniform_on_both_sides_of_the_mark():
    first = jnp.array([False, True, True, False, True])
    orders = shuffled(jax.random.key(3), jnp.broadcast_to(first, (24_000, 5)))
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(counts) == 6 * 2
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("clients", [5, PACKED_SIZE + 1])
def test_a_subset_is_of_different_clients_and_any_of_them(clients):
    keys = jax.random.split(jax.random.key(4), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: subset(key, clients, 3)))(keys))
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    counts = np.histogram(drawn, bins=min(clients, 5), range=(0, clients - 1))[0]
    edges = np.histogram(np.arange(clients), bins=min(clients, 5))[0]
    assert stats.chisquare(counts, drawn.size * edges / clients).pvalue > LEVEL


# What a server makes of unequal probabilities
# ---------------------------------------------------------


@module
class These(Selector):
    """Selects the given clients, as if drawn with these probabilities."""

    clients: jax.Array
    probability: jax.Array

    def choose(self, key, available, network, round=1):
        probabilities = len(self.probability) * self.probability[self.clients]
        return Participants(self.clients, available[self.clients], 1 / probabilities)


def selections(probabilities, count):
    """All sets that :class:`Unequal` can draw, with the probability of each."""
    result = {}
    for order in itertools.permutations(range(len(probabilities))):
        ends = np.concatenate([[0], np.cumsum(count * probabilities[list(order)])])
        cuts = np.unique(np.concatenate([[0, 1], ends % 1]))
        middles = (cuts[1:] + cuts[:-1]) / 2
        widths = np.diff(cuts)
        units = jnp.asarray(order)
        probability = jnp.asarray(probabilities)
        drawn = on_line(units, jnp.asarray(middles), probability, count, count)
        for clients, width in zip(np.sort(drawn, axis=1).tolist(), widths, strict=True):
            result[tuple(clients)] = result.get(tuple(clients), 0) + width
    total = sum(result.values())
    return {clients: width / total for clients, width in result.items()}


FOUR = np.array([0.4, 0.3, 0.2, 0.1])
LINEAR = {
    "FedAvg": lambda **k: FedAvg(0.05, local_steps=2, **k),
    "FedAvg of equal clients": lambda **k: FedAvg(0.05, weighting="equal", **k),
    "inexact FedProx": lambda **k: FedProx(0.05, attraction=0.5, local_steps=2, **k),
    "FedSAM": lambda **k: FedSAM(0.05, radius=0.1, **k),
    "FedAvgM": lambda **k: FedAvgM(0.05, momentum=0.5, **k),
    "FedNova": lambda **k: FedNova(0.05, local_steps=2, **k),
    "MIME": lambda **k: MIME(0.05, local_steps=1, **k),
    "FedAsync": lambda **k: FedAsync(0.05, server_step_size=0.6, **k),
    "FedBuff": lambda **k: FedBuff(0.05, buffer_size=1, **k),
    "Online-Fed": lambda **k: OnlineFed(0.05, **k),
    "Online-Fed per delay": lambda **k: OnlineFed(0.05, aggregation="per delay", **k),
    "PAO-Fed": lambda **k: PAOFed(0.05, Circular(2), **k),
    "signs": lambda **k: SignSGD(0.05, vote=False, **k),
}
#: Algorithms for data that arrive.
ONLINE = OnlineFed, PAOFed, SignSGD


def four_clients(seed=0):
    rng = np.random.default_rng(seed)
    sizes = (3, 7, 5, 4)
    data = [(rng.normal(size=(n, 2)) * (k + 1), rng.normal(size=n)) for k, n in enumerate(sizes)]
    return fl.problems.from_clients(data, fl.problems.LeastSquares())


def after_one_round(algorithm: Any, problem: Any, on):
    pattern = Trace(np.asarray(on)[None])
    problem = problem.starting_at(np.array([0.4, -0.7]))
    if type(algorithm) in ONLINE:
        problem = fl.streams.Replay(problem)
    simulation = fl.Simulation(problem, algorithm, participation=pattern)
    now = fl.view(simulation, key=3)
    state = algorithm.step(algorithm.init(problem, None), now)
    return np.asarray(getattr(state, "server", state.model))


@pytest.mark.slow
@pytest.mark.parametrize("on", [[True] * 4, [True, True, False, True]], ids=["all", "one away"])
@pytest.mark.parametrize("name", LINEAR)
def test_a_server_moves_on_average_as_with_all_clients(name, on):
    """The expectation over all sets that can be drawn is the update of full participation."""
    if name == "FedBuff" and not all(on):
        pytest.skip("its mean is over updates that arrived, of which it may hold none")
    problem = four_clients()
    with_all = after_one_round(LINEAR[name](), problem, on)
    for count in (1, 2):
        mean = np.zeros_like(with_all)
        for clients, probability in selections(FOUR, count).items():
            selector = These(jnp.asarray(clients), jnp.asarray(FOUR))
            mean += probability * after_one_round(LINEAR[name](selector=selector), problem, on)
        np.testing.assert_allclose(mean, with_all, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("delays", [None, UniformDelay(3)], ids=["at once", "late"])
def test_one_client_a_round_leads_to_the_optimum_of_all(delays):
    """Scalars whose clients are drawn unlike: self-normalized it would be 0.34, not 1."""
    targets = np.array([0.0, 0.0, 3.0])
    probabilities = np.array([0.6, 0.3, 0.1])
    problem = fl.problems.Problem(np.ones((3, 1, 1)), targets[:, None], fl.problems.LeastSquares())
    algorithm = FedAvg(0.01, selector=Unequal(1, probabilities))
    simulation = fl.Simulation(problem, algorithm, delays=delays, metrics=[fl.metrics.trajectory()])
    results = fl.sweep(lambda key: simulation, seeds=20, rounds=6000).model_trajectory
    means = results.isel(round=slice(1000, None)).mean(("round", "client", "parameter")).values
    assert abs(means.mean() - 1) < 0.05
    verdict: Any = stats.ttest_1samp(means, 1.0)
    assert verdict.pvalue > LEVEL


@pytest.mark.slow
def test_a_few_of_many_are_drawn_without_sorting_them(monkeypatch):
    """Every ordered pair of distinct clients is as probable as any other."""
    monkeypatch.setattr(random_subsets, "PACKED_SIZE", 4)
    keys = jax.random.split(jax.random.key(0), 40_000)
    pairs = np.asarray(jax.vmap(lambda key: subset(key, 6, 2))(keys))
    times = np.zeros((6, 6))
    np.add.at(times, tuple(pairs.T), 1)
    assert np.trace(times) == 0
    expected = len(keys) / 30
    off = times[~np.eye(6, dtype=bool)]
    # The sum of squares is chi-squared with 29 degrees of freedom: 58.3 once in a thousand times.
    assert np.sum((off - expected) ** 2) / expected < 58.3


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: Markov(0.2, 0.0), "recover must be .* > 0 .*never comes back"),
        (ValueError, lambda: Until(-1), "last must be finite and >= 0, got -1"),
        (ValueError, lambda: Bounded(0, 0.5), "bound must be >= 1, got 0"),
        (ValueError, lambda: groups([0.1, 0.2], 5), "5 clients cannot be cut into 2 groups"),
        (ValueError, lambda: groups([0.1, 0.2], 6, nested=2), "cut into 4 groups.*multiple of 4"),
        (
            ValueError,
            lambda: short_run(participation=Bernoulli([0.5, 0.1])),
            r"probability must be one number or one for each of the 5 clients, got shape \(2,\)",
        ),
        (
            ValueError,
            lambda: short_run(participation=Trace(np.ones((3, 5), bool))),
            "participation trace has 3 rounds of 5 clients; the run has 4 rounds of 5",
        ),
        (
            ValueError,
            lambda: short_run(participation=Trace(np.ones((4, 6), bool))),
            "participation trace has 4 rounds of 6 clients; the run has 4 rounds of 5",
        ),
        (
            ValueError,
            lambda: short_run(problem=stream_of(DATA, Trace(np.ones((3, 5), bool)))),
            "participation trace has 3 rounds of 5 clients",
        ),
        (
            TypeError,
            lambda: short_run(participation=0.5),
            "participation must be .*Pattern, got 0.5",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_bounded_activity_respects_its_bound():
    pattern = Bounded(4, np.array([0.0, 0.2, 1.0]))

    def activity(state, n):
        state, on = pattern.draw(state, jax.random.fold_in(as_key(0), n), n, 3)
        return state, on

    state = pattern.begin(as_key(1), 3)
    on = np.asarray(jax.lax.scan(activity, state, jnp.arange(2000, dtype=jnp.int32))[1])
    windows = np.lib.stride_tricks.sliding_window_view(on, 4, axis=0).any(axis=2)
    assert windows.all()
    close(on.mean(axis=0), [1 / 4, 0.2 / (1 - 0.8**4), 1], atol=0.03)  # a renewal each 1 to 4
    assert not on[:3, 0].any()
