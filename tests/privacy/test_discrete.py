"""The discrete Gaussian: its law, its grid, what it costs, and an attack on it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax.privacy import ZCDP, DiscreteZCDP
from fljax.privacy.discrete import _table, discrete_gaussian
from fljax.simulation import as_key
from tests.cases import CLIENTS, DIM, make_network, make_problem
from tests.privacy.worlds import clipped

close = np.testing.assert_allclose


def weights(steps, reach):
    x = np.arange(-reach, reach + 1)
    found = np.exp(-(x**2) / (2 * steps**2))
    return x, found / found.sum()


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_its_table_is_its_distribution_function(steps):
    high, middle, low = _table(steps).astype(object)
    whole = [
        int(h) << 64 | int(m) << 32 | int(lo) for h, m, lo in zip(high, middle, low, strict=True)
    ]
    assert whole == sorted(whole)
    _, expected = weights(steps, len(whole) // 2)
    found = np.diff([0, *whole]) / 2.0**96
    close(found.astype(float), expected, rtol=1e-12, atol=1e-28)
    assert 2**96 - whole[-1] < 2**8


@pytest.mark.parametrize("steps", [1, 5])
def test_what_is_drawn_has_its_law(steps):
    drawn = np.asarray(discrete_gaussian(as_key(3), (200_000,), steps))
    x, expected = weights(steps, 20 * steps)
    kept = expected * len(drawn) > 10
    counts = np.array([(drawn == value).sum() for value in x])
    rest = [counts[kept], [counts[~kept].sum()]]
    chances = [expected[kept], [expected[~kept].sum()]]
    assert stats.chisquare(np.concatenate(rest), len(drawn) * np.concatenate(chances)).pvalue > 1e-3
    assert (~np.isin(drawn, x)).sum() == 0


def test_bits_at_the_ends_and_ties_find_their_place(monkeypatch):
    """All zeros are the far left, all ones the far right; equal to an entry is beyond it."""
    table = _table(3)
    size = table.shape[1]
    entry = size // 2 + 2
    never = int((table == 0).all(axis=0).sum())  # beyond 2^-96
    cases = {never: [0, 0, 0], size - 1: [2**32 - 1] * 3, entry + 1: table[:, entry].tolist()}
    just_below = table[:, entry].astype(object)
    number = (int(just_below[0]) << 64 | int(just_below[1]) << 32 | int(just_below[2])) - 1
    cases[entry] = [number >> shift & 0xFFFFFFFF for shift in (64, 32, 0)]
    for place, bits in cases.items():
        given = jnp.asarray(np.array(bits, np.uint32))[:, None]
        monkeypatch.setattr(jax.random, "bits", lambda *_, given=given: given)
        assert int(discrete_gaussian(as_key(0), (1,), 3)[0]) == place - size // 2


def simulation(privacy, problem=None):
    problem = make_problem(clip=1.0) if problem is None else problem
    algorithm = fl.algorithms.ZCDPNFL(0.9, 0.5)
    return fl.Simulation(problem, algorithm, make_network(), privacy)


@pytest.mark.slow
def test_what_is_said_lies_on_the_grid_and_spends_the_budget():
    """The least steps at which the same noise would be the real Gaussian's, up to the rounding."""
    total, rounds = 0.5, 4
    for budget in (DiscreteZCDP(total, 0.9, steps=256), DiscreteZCDP(total, 0.9, steps=2**12)):
        now = fl.view(simulation(budget), round=2, rounds=rounds)
        said = now.link.send(jnp.ones((CLIENTS, DIM)))
        given = now.link._sensitivity()
        release = budget.release(now.link._plan, given, jnp.asarray(2), rounds, DIM)
        steps = np.asarray(said / release.grid[:, None])
        close(steps, np.round(steps), atol=1e-6)
        rho = ((given / release.grid + math.sqrt(DIM)) / budget.steps) ** 2 / 2
        close(rho, release.spent["rho"], rtol=1e-9)
        plain = ZCDP(total, 0.9).release(now.link._plan, given, jnp.asarray(2), rounds, DIM)
        more = math.sqrt(DIM) / (budget.steps * np.sqrt(2 * release.spent["rho"]))
        close(release.scale, plain.scale / (1 - more), rtol=1e-9)
    found = fl.run(simulation(DiscreteZCDP(total, 0.9)), rounds)
    close(found.privacy_rho[-1], total, rtol=1e-9)


@pytest.mark.slow
def test_enormous_messages_stay_on_the_grid():
    budget = DiscreteZCDP(2.0, steps=64)
    now = fl.view(simulation(budget), rounds=3)
    said = now.link.send(jnp.full((CLIENTS, DIM), 1e300))
    assert np.all(np.isfinite(said))


@pytest.mark.slow
def test_an_attack_finds_most_of_the_claim_and_no_more():
    world, other = clipped()
    budget = DiscreteZCDP(0.5, gradient_bound=1.0)
    found = fl.audit.two_worlds(simulation(budget, world), other, 4, 6000, delta=0.05)
    assert not found.broken
    assert found.ratio > 0.65, found.verdict
    close(found.apart, 1, atol=0.05)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: DiscreteZCDP(1.0, schedule="variance"), "no account of what rounding"),
        (lambda: DiscreteZCDP(1.0, steps=0), "steps must be >= 1"),
        (lambda: DiscreteZCDP(0.0), "total_rho must be"),
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
def test_bad_input_says_what_is_wrong(build, match):
    with pytest.raises(ValueError, match=match):
        build()
