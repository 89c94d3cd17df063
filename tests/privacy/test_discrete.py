"""The discrete Gaussian: its law, its grid, what it costs, and an attack on it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import fljax as fl
from fljax.privacy import ZCDP, ApproximateDP, DiscreteZCDP, accounting
from fljax.privacy.discrete import _table, discrete_gaussian
from fljax.privacy.ledger import claimed_epsilon
from fljax.privacy.notions import is_gaussian
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
    assert found.ratio > 0.55, found.verdict  # what all zCDP could be worth, this noise is not
    close(found.apart, 1, atol=0.05)


# What its zCDP parameter is worth -----------------------------------------------------------------


def worth(steps, shift, coordinates, delta):
    """The least epsilon of so many coordinates that are all moved by a shift, by summing the law
    itself: the loss of a sum S of draws is (n k^2 + 2 k S) / 2 s^2.
    """
    _, law = weights(steps, 14 * steps)
    total = np.ones(1)
    for _ in range(coordinates):
        total = np.convolve(total, law)
    place = np.arange(len(total)) - len(total) // 2
    loss = (coordinates * shift**2 + 2 * shift * place) / (2 * steps**2)

    def beyond(epsilon):
        return np.sum(np.where(loss > epsilon, -total * np.expm1(np.minimum(epsilon - loss, 0)), 0))

    if beyond(0.0) <= delta:
        return 0.0
    return optimize.brentq(lambda epsilon: beyond(epsilon) - delta, 0, loss.max())


@pytest.mark.parametrize(
    ("steps", "shift", "coordinates"),
    [(1, 1, 1), (1, 2, 1), (1, 1, 4), (2, 3, 1), (2, 2, 4), (4, 3, 2), (4, 1, 1), (64, 48, 1)],
)
def test_its_epsilon_is_no_less_than_that_of_its_law(steps, shift, coordinates):
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
def test_what_a_run_says_it_spent_is_no_less_than_its_law_shows(steps):
    """One number of one client, which the worst neighbours move by whole steps."""
    target, delta = 2.0, {1: 0.026, 2: 2e-3, 4: 1e-4}[steps]
    problem = fl.problems.Problem(
        np.ones((2, 1, 1)), np.array([[1e3], [0.0]]), fl.problems.LeastSquares()
    ).clipped(1.0)
    simulation = fl.Simulation(
        problem, fl.algorithms.ConventionalFL(0.5), privacy=DiscreteZCDP(target, steps=steps)
    )
    found = fl.run(simulation, 1)
    assert not found.gaussian_noise
    shift = round(steps * math.sqrt(2 * target))  # the sensitivity in steps, and one by rounding
    close(found.privacy_rho[-1], shift**2 / (2 * steps**2), rtol=1e-9)
    true = worth(steps, shift, 1, delta)
    assert float(fl.privacy.spent(found, delta).epsilon[-1]) >= true
    assert float(fl.privacy.spent(found, delta).client_epsilon[0]) >= true
    assert true > accounting.zcdp_epsilon(target, delta, "gaussian")
    assert float(fl.privacy.spent(found.drop_vars("gaussian_noise"), delta).epsilon[-1]) >= true


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
    found = fl.privacy.spent(results, 1e-5).epsilon.isel(seed=0, round=-1)
    close(found.sel(budget="real"), accounting.zcdp_epsilon(0.5, 1e-5, "gaussian"), rtol=1e-6)
    general = accounting.zcdp_epsilon(0.5, 1e-5, "canonne-kamath-steinke")
    close(found.sel(budget="whole"), general, rtol=1e-6)
    old = fl.privacy.spent(results.drop_vars("gaussian_noise"), 1e-5).epsilon.isel(round=-1)
    close(old.sel(budget="real"), general, rtol=1e-6)


@pytest.mark.slow
def test_its_releases_are_exported_as_what_is_known_of_them():
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


def test_its_budget_of_an_epsilon_goes_back_to_it():
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (8.0, 0.01)):
        budget = DiscreteZCDP.from_epsilon(epsilon, delta, steps=2048)
        assert isinstance(budget, DiscreteZCDP)
        assert budget.steps == 2048
        ledger = {"rho": float(budget.total_rho), "gaussian_noise": 0}
        close(claimed_epsilon(ledger, delta), epsilon, rtol=1e-6)
        assert budget.total_rho < ZCDP.from_epsilon(epsilon, delta).total_rho


def test_only_a_class_that_says_so_is_gaussian():
    class Own(ZCDP):
        def draw(self, key, shape, dtype, round, clients):
            return super().draw(key, shape, dtype, round, clients)

    class Larger(ZCDP):
        def release(self, *given):
            return super().release(*given)

    class Sure(Own):
        gaussian_noise = True

    class Longer(Sure):
        def extra(self):
            return 1

    class Again(Longer):
        draw = DiscreteZCDP.draw

    said = {kind: is_gaussian(kind) for kind in (ZCDP, Own, Larger, Sure, Longer, Again, object)}
    assert list(said.values()) == [True, False, False, True, True, False, False]
    kinds = (ApproximateDP, fl.privacy.CentralGaussian, fl.privacy.NoisyGradients)
    assert all(map(is_gaussian, kinds))
    assert not any(map(is_gaussian, (fl.privacy.PureDP, DiscreteZCDP)))
    general = ZCDP.from_epsilon(1.0, 1e-5, "canonne-kamath-steinke").total_rho
    assert Own.from_epsilon(1.0, 1e-5).total_rho == general
    with pytest.raises(ValueError, match="Own does not say that its is"):
        Own.from_epsilon(1.0, 1e-5, "gaussian")


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            lambda: DiscreteZCDP.from_epsilon(1.0, 1e-5, "gaussian"),
            "continuous Gaussian noise, and DiscreteZCDP does not say",
        ),
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
