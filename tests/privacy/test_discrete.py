"""Whole-number noise: its distributions, its grid, its cost, and attacks on it."""

import decimal
import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import fljax as fl
from fljax._core.prng import GENERATORS, as_key
from fljax.privacy import ZCDP, ApproximateDP, DiscreteZCDP, PureDP, accounting
from fljax.privacy.discrete import (
    _gaussian_table,
    _laplace_tables,
    _look_up,
    discrete_gaussian,
    discrete_laplace,
    on_grid,
)
from fljax.privacy.ledger import claimed_epsilon
from fljax.privacy.notions import is_gaussian
from tests.cases import CLIENTS, DIM, make_network, make_problem
from tests.privacy.worlds import clipped

close = np.testing.assert_allclose
LAPLACE = [(discrete_laplace, 1), (discrete_laplace, 5)]


def weights(steps, reach):
    x = np.arange(-reach, reach + 1)
    result = np.exp(-(x**2) / (2 * steps**2))
    return x, result / result.sum()


def probabilities(table, bits=96):
    """The exact probability of every number from a table's columns and aliases."""
    high, middle, low, other = table.astype(object)
    below = (high * 2**64 + middle * 2**32 + low) // 2 ** (96 - bits)
    capacity = 2**bits // len(other)
    result = [0] * len(other)
    for column, (threshold, alias) in enumerate(zip(below, other, strict=True)):
        assert 0 <= threshold <= capacity
        result[column] += threshold
        result[alias] += capacity - threshold
    assert sum(result) == 2**bits
    return result


def exactly(exponents, bits):
    """Probabilities by exact arithmetic, in the same units."""
    with decimal.localcontext(prec=60):
        distribution = [
            decimal.Decimal(e.numerator) / decimal.Decimal(e.denominator) for e in exponents
        ]
        distribution = [x.exp() for x in distribution]
        return [x / sum(distribution) * 2**bits for x in distribution]


def agree(table, expected):
    """Equal up to one unit each; the likeliest entry gets the remainder."""
    off = [abs(int(ours) - theirs) for ours, theirs in zip(table, expected, strict=False)]
    assert sorted(off)[-2] <= 1
    assert max(off) <= len(expected)
    assert not any(table[len(expected) :])


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_the_gaussian_table_equals_its_distribution(steps):
    result = probabilities(_gaussian_table(steps), 95)
    reach = sum(x > 0 for x in result) + 5 * steps
    exponents = [fractions.Fraction(-x * x, 2 * steps**2) for x in range(-reach, reach + 1)]
    distribution = exactly(exponents, 95)
    agree(
        result,
        [
            distribution[reach],
            *(
                a + b
                for a, b in zip(
                    distribution[reach + 1 :], distribution[reach - 1 :: -1], strict=True
                )
            ),
        ],
    )


@pytest.mark.parametrize("steps", [1, 3, 1000])
def test_the_laplace_tables_equal_their_digits_distributions(steps):
    lower, low, high = _laplace_tables(steps)
    agree(probabilities(low), exactly([fractions.Fraction(-x, steps) for x in range(2**lower)], 96))
    result = probabilities(high)
    reach = sum(x > 0 for x in result) // 2 + 5 + 5 * steps >> lower
    reach = max(reach, sum(x > 0 for x in result) // 2 + 5)
    values = [(x << lower) + negative for x in range(reach) for negative in (0, 1)]
    agree(result, exactly([fractions.Fraction(-x, steps) for x in values], 96))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_digits_make_a_discrete_laplace_number(steps):
    """All that two looks into tables can give, against the law, exactly."""
    lower, low, high = _laplace_tables(steps)
    low = probabilities(low)
    high = probabilities(high)
    ratio = math.exp(-1 / steps)
    for upper, probability in enumerate(high[: 2 * max(1, 8 * steps >> lower)]):
        for digit, other in enumerate(low):
            size = (upper >> 1 << lower) + digit
            x = ~size if upper & 1 else size
            expected = (1 - ratio) / (1 + ratio) * ratio ** abs(x)
            close(probability / 2**96 * (other / 2**96), expected, rtol=1e-12)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize(
    ("draw", "steps"), [(discrete_gaussian, 1), (discrete_gaussian, 5), *LAPLACE]
)
def test_draws_have_their_distribution(draw, steps, generator):
    drawn = np.asarray(jax.jit(lambda key: draw(key, (200_000,), steps))(as_key(3, generator)))
    x = np.arange(-40 * steps, 40 * steps + 1)
    size = -np.abs(x) / steps if draw is discrete_laplace else -(x**2) / (2 * steps**2)
    expected = np.exp(size) / np.exp(size).sum()
    frequent = expected * len(drawn) > 10
    counts = np.array([(drawn == value).sum() for value in x])
    rest = [counts[frequent], [counts[~frequent].sum()]]
    distribution = [expected[frequent], [expected[~frequent].sum()]]
    assert (
        stats.chisquare(np.concatenate(rest), len(drawn) * np.concatenate(distribution)).pvalue
        > 1e-3
    )
    assert (~np.isin(drawn, x)).sum() == 0


@pytest.mark.slow
def test_large_scales_have_the_laplace_distribution_and_all_low_bits():
    steps = 2**22
    drawn = np.asarray(discrete_laplace(as_key(5), (400_000,), steps))
    assert stats.kstest((drawn + 0.5) / steps, stats.laplace.cdf).pvalue > 1e-3
    for bit in range(16):
        share = np.mean(drawn >> bit & 1)
        assert abs(share - 0.5) < 4 * 0.5 / math.sqrt(len(drawn)), bit
    assert len(np.unique(drawn)) > 0.96 * len(drawn)


@pytest.mark.slow
def test_every_entry_s_draws_depend_on_its_place_alone():
    for draw in (discrete_gaussian, discrete_laplace):
        keys = jax.random.split(as_key(2), 3)
        one_by_one = jnp.stack([draw(key, (4, 5), 100) for key in keys])
        np.testing.assert_array_equal(
            jax.vmap(lambda k, f=draw: f(k, (4, 5), 100))(keys), one_by_one
        )
        assert len(np.unique(one_by_one)) > 30


def test_bits_next_to_a_column_s_threshold_find_their_number():
    """One below a threshold is the column's own, equal to it the alias's; all zeros and ones."""
    table = _gaussian_table(3)
    columns = table.shape[1]
    depth = columns.bit_length() - 1

    def chosen(number):
        parts = [number >> shift & 0xFFFFFFFF for shift in (64, 32, 0)]
        return int(_look_up(table, [jnp.uint32(word) for word in parts]))

    for column in range(columns):
        first, second, third, alias = (int(x) for x in table[:, column])
        below = first << 64 | second << 32 | third
        start = column << (96 - depth)
        assert chosen(start + below) == alias
        assert below == 0 or chosen(start + below - 1) == column
        assert chosen(start) == (column if below else alias)
        assert chosen(start + 2 ** (96 - depth) - 1) == alias


def simulation(privacy, problem=None):
    problem = make_problem(clip=1.0) if problem is None else problem
    algorithm = fl.algorithms.ZCDPNFL(0.9, 0.5)
    return fl.Simulation(problem, algorithm, make_network(), privacy)


@pytest.mark.slow
def test_messages_lie_on_the_grid_and_spend_the_budget():
    """The least steps at which the same noise would be the real Gaussian's, up to the rounding."""
    total = 0.5
    rounds = 4
    for budget in (DiscreteZCDP(total, 0.9, steps=256), DiscreteZCDP(total, 0.9, steps=2**12)):
        now = fl.view(simulation(budget), round=2, rounds=rounds)
        sent = now.link.send(jnp.ones((CLIENTS, DIM)))
        sensitivity = now.link._sensitivity()
        release = budget.release(now.link._plan, sensitivity, jnp.asarray(2), rounds, DIM)
        steps = np.asarray(sent / release.grid[:, None])
        close(steps, np.round(steps), atol=1e-6)
        rho = ((sensitivity / release.grid + math.sqrt(DIM)) / budget.steps) ** 2 / 2
        close(rho, release.spent["rho"], rtol=1e-9)
        plain = ZCDP(total, 0.9).release(now.link._plan, sensitivity, jnp.asarray(2), rounds, DIM)
        more = math.sqrt(DIM) / (budget.steps * np.sqrt(2 * release.spent["rho"]))
        close(release.scale, plain.scale / (1 - more), rtol=1e-9)
    results = fl.run(simulation(DiscreteZCDP(total, 0.9)), rounds)
    close(results.privacy_rho[-1], total, rtol=1e-9)


@pytest.mark.slow
def test_enormous_messages_stay_on_the_grid():
    budget = DiscreteZCDP(2.0, steps=64)
    now = fl.view(simulation(budget), rounds=3)
    sent = now.link.send(jnp.full((CLIENTS, DIM), 1e300))
    assert np.all(np.isfinite(sent))


@pytest.mark.slow
def test_an_attack_finds_most_of_the_claim():
    world, other = clipped()
    budget = DiscreteZCDP(0.5, gradient_bound=1.0)
    result = fl.audit.two_worlds(simulation(budget, world), other, 4, 6000, delta=0.05)
    assert not result.broken
    assert result.ratio > 0.55, result.verdict  # above half of zCDP's bound, and below it
    close(result.mu, 1, atol=0.05)


# Pure epsilon ------------------------------------------------------------------------------------


def law_of(steps, reach):
    x = np.arange(-reach, reach + 1)
    result = np.exp(-np.abs(x) / steps)
    return result / result.sum()


@pytest.mark.parametrize(("steps", "dim"), [(200, 3), (5000, 30)])
def test_every_possible_message_keeps_the_budget(steps, dim):
    """For the worst neighbors, one number after the other, with each number's rounding error."""
    epsilon = 0.7
    sensitivity = 1.3
    budget = PureDP(epsilon, steps=steps)
    plan = budget.plan(lambda n: jnp.full(1, sensitivity), 1)
    release = budget.release(plan, jnp.full(1, sensitivity), jnp.asarray(1), 1, dim)
    grid = float(release.grid[0])
    close(release.scale[0], steps * grid)
    rng = np.random.default_rng(0)
    distribution = law_of(steps, 30 * steps)
    total = 0.0
    for _ in range(300):
        change = rng.normal(size=dim) if _ else np.ones(dim)
        change *= sensitivity / np.linalg.norm(change)
        message = grid * (rng.integers(-50, 50, dim) + 0.5 - 1e-9 * np.sign(change))
        steps_moved = np.round((message + change) / grid) - np.round(message / grid)
        ratio = np.sum(np.abs(steps_moved)) / steps  # the largest over all messages, of this law
        total = max(total, ratio)
    shift = int(steps_moved[0])
    middle = len(distribution) // 2
    log_probability = np.log(distribution[middle - 5 * steps : middle + 5 * steps])
    shifted = np.roll(np.log(distribution), shift)[middle - 5 * steps : middle + 5 * steps]
    close(np.max(np.abs(log_probability - shifted)), abs(shift) / steps, rtol=1e-9)
    assert 0.97 * epsilon < total <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("notion", [PureDP(1.0, steps=2**16), DiscreteZCDP(0.5)])
def test_two_worlds_messages_lie_on_one_grid(notion):
    """In single precision the set of possible results does not depend on the message."""
    dim = 4
    draws = 2000
    sensitivity = jnp.full(draws, 0.2)
    plan = notion.plan(lambda n: sensitivity, 1)
    grids = notion.release(plan, sensitivity, jnp.asarray(1), 1, dim).grid.astype(jnp.float32)
    grid = np.float32(grids[0])
    for seed, world in enumerate(np.float32([0.05, -0.0512345])):
        message = jnp.full((draws, dim), world, jnp.float32)
        rows = jnp.arange(draws)
        noise = notion.draw(as_key(seed), message.shape, jnp.float32, jnp.asarray(1), rows)
        sent = np.asarray(on_grid(message, noise, grids[:, None]))
        assert sent.dtype == np.float32
        multiples = np.round(sent.astype(float) / grid)
        near = np.abs(multiples) < 2**21  # beyond, a float hardly has room for all of them
        np.testing.assert_array_equal(sent[near], (grid * multiples.astype(np.float32))[near])
        assert near.mean() == 1
        expected = np.round(world / grid) + np.asarray(noise)
        np.testing.assert_array_equal(multiples[near], expected[near])


@pytest.mark.slow
def test_multiples_of_the_step_are_added_exactly_at_any_magnitude():
    """Up to 2^50 steps from zero, in two integers."""
    rng = np.random.default_rng(0)
    message = np.concatenate([2.0 ** rng.uniform(0, 49, 500), [0, 2**20, 2**40, 1e300, np.inf]])
    message = np.concatenate([message, -message]).round()
    noise = rng.integers(-(2**30), 2**30, len(message)).astype(np.int32)
    sent = on_grid(
        jnp.asarray(message)[:, None], jnp.asarray(noise)[:, None], jnp.ones((len(message), 1))
    )
    expected = np.clip(message, -(2.0**50), 2.0**50).astype(np.int64) + noise
    np.testing.assert_array_equal(np.asarray(sent)[:, 0].astype(np.int64), expected)
    unrounded = on_grid(
        jnp.full((2, 1), 0.3), jnp.ones((2, 1), jnp.int32), jnp.asarray([[0.0], [0.5]])
    )
    assert unrounded.ravel().tolist() == [0.3, 1.0]  # public values are not rounded
    none = PureDP(1.0, steps=2).release(jnp.ones(()), jnp.ones(2), jnp.asarray(1), 1, 3)
    assert np.isnan(none.scale).all()  # never exact where a budget was not checked before


@pytest.mark.slow
def test_pure_noise_spends_its_budget_and_studies_are_checked_point_by_point():
    results = fl.run(simulation(PureDP(3.0, 0.9)), 4)
    close(results.privacy_epsilon[-1], 3.0, rtol=1e-9)
    assert not results.gaussian_noise
    with pytest.raises(ValueError, match=r"(?s)steps must be > 3000, got 256.*larger epsilon"):
        fl.plan(
            lambda key, total: simulation(PureDP(total, steps=256)),
            grid={"total": [*np.linspace(1.0, 2.0, 50).tolist(), 0.01]},
            rounds=10,
        )


# What its zCDP parameter is worth -----------------------------------------------------------------


def worth(steps, shift, coordinates, delta):
    """The least epsilon of ``coordinates`` coordinates that are all moved by a shift, by summing
    the distribution itself: the loss of a sum S of draws is (n k^2 + 2 k S) / 2 s^2.
    """
    _, distribution = weights(steps, 14 * steps)
    total = np.ones(1)
    for _ in range(coordinates):
        total = np.convolve(total, distribution)
    position = np.arange(len(total)) - len(total) // 2
    loss = (coordinates * shift**2 + 2 * shift * position) / (2 * steps**2)

    def beyond(epsilon):
        return np.sum(np.where(loss > epsilon, -total * np.expm1(np.minimum(epsilon - loss, 0)), 0))

    if beyond(0.0) <= delta:
        return 0.0
    return optimize.brentq(lambda epsilon: beyond(epsilon) - delta, 0, loss.max())


@pytest.mark.thin(0, every=1)
@pytest.mark.parametrize(
    ("steps", "shift", "coordinates"),
    [(1, 1, 1), (1, 2, 1), (1, 1, 4), (2, 3, 1), (2, 2, 4), (4, 3, 2), (4, 1, 1), (64, 48, 1)],
)
def test_the_discrete_epsilon_is_at_least_the_exact_one(steps, shift, coordinates):
    rho = coordinates * shift**2 / (2 * steps**2)
    short = 0.0
    for delta in np.geomspace(1e-8, 0.1, 60):
        true = worth(steps, shift, coordinates, delta)
        claimed = claimed_epsilon({"rho": rho, "gaussian_noise": 0}, delta)
        assert claimed >= true - 1e-9
        if true > 0.05:
            short = max(short, true / accounting.zcdp_epsilon(rho, delta, "gaussian"))
    if steps <= 4:  # on so coarse a grid that of continuous noise is too little at some delta
        assert short > 1.001


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_run_s_ledger_covers_its_sampling(steps):
    """One number of one client, which the worst neighbors move by whole steps."""
    target = 2.0
    delta = {1: 0.026, 2: 0.13, 4: 0.16}[steps]
    problem = fl.problems.Problem(
        np.ones((2, 1, 1)), np.array([[1e3], [0.0]]), fl.problems.LeastSquares()
    ).clipped(1.0)
    simulation = fl.Simulation(
        problem, fl.algorithms.ConventionalFL(0.5), privacy=DiscreteZCDP(target, steps=steps)
    )
    results = fl.run(simulation, 1)
    assert not results.gaussian_noise
    shift = round(steps * math.sqrt(2 * target))  # the sensitivity in steps, and one by rounding
    close(results.privacy_rho[-1], shift**2 / (2 * steps**2), rtol=1e-9)
    true = worth(steps, shift, 1, delta)
    assert float(fl.privacy.spent(results, delta).epsilon[-1]) >= true
    assert float(fl.privacy.spent(results, delta).client_epsilon[0]) >= true
    assert true > accounting.zcdp_epsilon(target, delta, "gaussian")
    assert float(fl.privacy.spent(results.drop_vars("gaussian_noise"), delta).epsilon[-1]) >= true


@pytest.mark.slow
def test_every_point_of_a_study_is_converted_by_its_own_noise():
    budgets = {"whole": DiscreteZCDP(0.5), "real": ZCDP(0.5), "both": ApproximateDP(0.5, 1e-3)}
    results = fl.sweep(
        lambda key, budget: simulation(budget),
        grid={"budget": {**budgets, "none": None}},
        seeds=2,
        rounds=2,
    )
    assert results.gaussian_noise.isel(seed=0).values.tolist() == [False, True, True, False]
    result = fl.privacy.spent(results, 1e-5).epsilon.isel(seed=0, round=-1)
    close(result.sel(budget="real"), accounting.zcdp_epsilon(0.5, 1e-5, "gaussian"), rtol=1e-6)
    general = accounting.zcdp_epsilon(0.5, 1e-5, "canonne-kamath-steinke")
    close(result.sel(budget="whole"), general, rtol=1e-6)
    old = fl.privacy.spent(results.drop_vars("gaussian_noise"), 1e-5).epsilon.isel(round=-1)
    close(old.sel(budget="real"), general, rtol=1e-6)


@pytest.mark.slow
def test_discrete_releases_are_exported_as_their_zcdp():
    dp = pytest.importorskip("dp_accounting")
    events = {
        kind: fl.privacy.events(fl.run(simulation(kind(0.5)), 2)) for kind in (ZCDP, DiscreteZCDP)
    }
    assert isinstance(events[ZCDP], dp.GaussianDpEvent)
    assert isinstance(events[DiscreteZCDP], dp.ZCDpEvent)
    accountant = dp.rdp.RdpAccountant(
        [1 + x / 50 for x in range(1, 2000)], dp.NeighboringRelation.REPLACE_ONE
    )
    general = accounting.zcdp_epsilon(0.5, 1e-5, "canonne-kamath-steinke")
    close(accountant.compose(events[DiscreteZCDP]).get_epsilon(1e-5), general, rtol=1e-3)


def test_the_budget_for_an_epsilon_round_trips():
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 0.01)):
        budget = DiscreteZCDP.from_epsilon(epsilon, delta, steps=2048)
        assert isinstance(budget, DiscreteZCDP)
        assert budget.steps == 2048
        ledger = {"rho": float(budget.total_rho), "gaussian_noise": 0}
        close(claimed_epsilon(ledger, delta), epsilon, rtol=1e-6)
        assert budget.total_rho < ZCDP.from_epsilon(epsilon, delta).total_rho


def test_only_declared_classes_are_gaussian():
    class Own(ZCDP):
        def draw(self, key, shape, dtype, round, clients):
            return super().draw(key, shape, dtype, round, clients)

    class Larger(ZCDP):
        def release(self, *arguments):
            return super().release(*arguments)

    class Sure(Own):
        gaussian_noise = True

    class Longer(Sure):
        def extra(self):
            return 1

    class Again(Longer):
        draw = DiscreteZCDP.draw

    answers = {kind: is_gaussian(kind) for kind in (ZCDP, Own, Larger, Sure, Longer, Again, object)}
    assert list(answers.values()) == [True, False, False, True, True, False, False]
    kinds = (ApproximateDP, fl.privacy.CentralGaussian, fl.privacy.NoisyGradients)
    assert all(map(is_gaussian, kinds))
    assert not any(map(is_gaussian, (fl.privacy.PureDP, DiscreteZCDP)))
    general = ZCDP.from_epsilon(1.0, 1e-5, "canonne-kamath-steinke").total_rho
    assert Own.from_epsilon(1.0, 1e-5).total_rho == general
    with pytest.raises(ValueError, match="which Own does not declare"):
        Own.from_epsilon(1.0, 1e-5, "gaussian")


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            lambda: DiscreteZCDP.from_epsilon(1.0, 1e-5, "gaussian"),
            "continuous Gaussian noise, which DiscreteZCDP does not declare",
        ),
        (
            lambda: DiscreteZCDP(1.0, schedule="variance"),
            "rounding to a grid is not known",
        ),
        (lambda: DiscreteZCDP(1.0, steps=0), "steps must be >= 1"),
        (lambda: DiscreteZCDP(0.0), "total_rho must be"),
        (lambda: PureDP(1.0, steps=0), "steps must be >= 1"),
        (lambda: PureDP(1.0, steps=2**24 + 1), "steps must be"),
        (
            lambda: fl.run(simulation(PureDP(1.0, steps=8)), 4),
            r"steps must be > 12, got 8: rounding 3 numbers.*Take more steps, a larger epsilon",
        ),
        (
            lambda: fl.run(simulation(PureDP(1.0, 1e-3)), 9),
            r"Take fewer parameters, a larger epsilon or fewer rounds",
        ),
        (
            lambda: fl.run(simulation(DiscreteZCDP(0.5, steps=16)), 100),
            r"steps must be > 17\.32, got 16: rounding 3 numbers",
        ),
        (
            lambda: fl.plan(
                lambda key, total: simulation(DiscreteZCDP(total, steps=16)),
                grid={"total": [*np.linspace(1.0, 2.0, 120).tolist(), 0.01]},
                rounds=10,
            ),
            "steps must be > ",
        ),
    ],
)
def test_bad_input_is_named(build, match):
    with pytest.raises(ValueError, match=match):
        build()
