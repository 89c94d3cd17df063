"""Sampling: draws have exactly the accounted probability, for small rates too."""

import contextlib
from fractions import Fraction as Exact

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

import fljax as fl
from fljax._core import prng
from fljax._core.prng import bernoulli, integers_below, rate_drawn
from fljax._core.random_subsets import shuffled
from fljax.algorithms import FedDPSGD
from fljax.participation.selectors import Drawn, Fraction

PRECISION = {
    "single": lambda: jax.enable_x64(False),
    "double": contextlib.nullcontext,
}
RATES = (2.0**-64, 1e-12, 1e-8, 1.3e-6, 1e-5, 0.1, 0.3, 0.7, 1 - 2.0**-24, 1.0)


@contextlib.contextmanager
def fixed_bits(number):
    """Within, every word that generators give is of this number of 64 bits."""
    halves = np.array([number >> 32, number & (2**32 - 1)], np.uint32)
    bits = jax.random.bits
    block = prng.threefry

    def pair(key, high, low):
        return tuple(jnp.full(high.shape, word) for word in halves)

    def all_words(key, shape=(), dtype=None):
        return jnp.broadcast_to(jnp.asarray(halves), shape)

    prng.threefry = pair
    jax.random.bits = all_words
    try:
        yield
    finally:
        prng.threefry = block
        jax.random.bits = bits


def threshold(rate):
    """Numbers of 64 bits below which a draw of this rate is made: exactly, by fractions."""
    represented = np.asarray(rate, jax.dtypes.canonicalize_dtype(np.float64))
    return int(Exact(float(represented)) * 2**64)


def draw_with_bits(draw, number):
    with fixed_bits(number), jax.disable_jit():
        return bool(draw())


def check(draw, rate):
    """Exactly the 64-bit numbers below the threshold count as drawn."""
    most = threshold(rate)
    assert draw_with_bits(draw, most - 1)
    assert draw_with_bits(draw, 0)
    assert most == 2**64 or not draw_with_bits(draw, most)
    assert most == 2**64 or not draw_with_bits(draw, 2**64 - 1)


@pytest.mark.parametrize("generator", ["fljax-threefry", "threefry2x32"])
@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("traced", [False, True])
def test_a_draw_has_exactly_the_accounted_probability(precision, generator, traced):
    with PRECISION[precision]():
        key = fl.random_key(0, generator)
        for rate in RATES:
            argument = jnp.asarray(rate) if traced else rate
            check(lambda rate=argument: bernoulli(key, (1,), rate)[0], rate)


@example(1.0)
@example(2.0**-64)
@given(st.floats(2.0**-64, 1.0))
def test_the_probability_of_a_draw_is_at_most_the_rate_and_hardly_less(rate):
    for precision in PRECISION.values():
        with precision():
            drawn_rate = rate_drawn(rate)
            assert Exact(float(drawn_rate)) == Exact(threshold(rate), 2**64)
            assert float(jax.jit(rate_drawn)(rate)) == drawn_rate  # also where the rate is swept
            represented = float(np.asarray(rate, jax.dtypes.canonicalize_dtype(np.float64)))
            assert drawn_rate <= represented
            if represented >= 2.0**-24:
                assert drawn_rate >= represented * (1 - 2.0**-40)


def of_selector(rate):
    return Fraction(rate).choose(fl.random_key(0), jnp.ones(1, bool), None).here[0]


def of_batches(rate):
    problem = fl.problems.Problem(np.ones((1, 1, 1)), np.ones((1, 1)), fl.problems.LeastSquares())
    batch, _ = FedDPSGD(0.1, sampling_rate=rate)._draw_batch(fl.random_key(0), problem)
    return batch.weights[0, 0] > 0


@pytest.mark.parametrize("precision", PRECISION)
@pytest.mark.parametrize("draw", [of_selector, of_batches])
def test_clients_and_samples_are_drawn_with_the_rate_in_the_ledger(draw, precision):
    """With floats a rate of 1e-8 is rounded up to 2^-23, twelve times as much."""
    with PRECISION[precision]():
        for rate in RATES:
            check(lambda rate=rate: draw(rate), rate)
            problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=3, dim=1)
            for scheme in (
                Fraction(rate).law(5),
                FedDPSGD(0.1, sampling_rate=rate).sampling(problem),
            ):
                assert Exact(float(scheme.rate)) == Exact(threshold(rate), 2**64)
                assert scheme.sampling == "poisson"


def test_draws_of_usual_rates_are_as_many_as_they_should_be():
    for rate in (0.01, 0.5, 0.9):
        many = int(bernoulli(fl.random_key(3), (100_000,), rate).sum())
        assert stats.binomtest(many, 100_000, rate).pvalue > 1e-3
    assert not bernoulli(fl.random_key(3), (100_000,), 0.0).any()
    draws = bernoulli(fl.random_key(3), (3,), jnp.array([0.0, 1.0, 0.0]))
    assert draws.tolist() == [False, True, False]


def test_a_result_books_the_rate_that_is_drawn():
    simulation = fl.Simulation(
        fl.problems.ridge(jax.random.key(0), clients=3, samples=8, dim=2),
        FedDPSGD(0.1, sampling_rate=1e-7),
        privacy=fl.privacy.NoisyGradients(1.0, clip=1.0),
    )
    results = fl.run(simulation, rounds=2)
    assert Exact(float(results.sampling_rate)) == Exact(threshold(1e-7), 2**64)


@pytest.mark.parametrize("rate", [0.0, 1e-20])
def test_a_rate_that_would_never_be_drawn_is_refused(rate):
    with pytest.raises(ValueError, match=r"sampling_rate must be .* would never be drawn"):
        FedDPSGD(0.1, sampling_rate=rate)
    with pytest.raises(ValueError, match="rate must be"):
        Fraction(rate).law(3)


# Without replacement -----------------------------------------------------------------------------


def sets_drawn(draw, members, count, monkeypatch, tries=20_000):
    """How often each set is drawn if random numbers have two bits, so that many are equal."""
    bits = jax.random.bits

    def coarse(key, shape=(), dtype=np.uint32):
        return bits(key, shape, dtype) & np.uint32(3 << 30)

    monkeypatch.setattr(jax.random, "bits", coarse)
    jax.clear_caches()
    chosen = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(fl.random_key(1), tries)))
    jax.clear_caches()
    monkeypatch.undo()
    inside = (chosen[..., None] == np.arange(members)).any(axis=-2)
    assert (inside.sum(axis=-1) == count).all()
    _, times = np.unique(inside.reshape(-1, members), axis=0, return_counts=True)
    return times


def clients_drawn(key):
    return Drawn(2).choose(key, jnp.ones(5, bool), None).clients[None]


def samples_drawn(key):
    x = np.broadcast_to(np.arange(1.0, 6)[:, None], (2, 5, 1))
    problem = fl.problems.Problem(x, np.ones((2, 5)), fl.problems.LeastSquares())
    batch, _ = FedDPSGD(0.1, batch=2)._draw_batch(key, problem)
    return batch.features[..., 0] - 1


@pytest.mark.parametrize("draw", [clients_drawn, samples_drawn])
def test_equal_random_numbers_give_unbiased_choices(draw, monkeypatch):
    """All sets are equally likely though two of five numbers are usually equal."""
    times = sets_drawn(draw, 5, 2, monkeypatch)
    assert len(times) == 10
    assert stats.chisquare(times).pvalue > 1e-4

    def by_rank(key):
        return shuffled(key, jnp.ones((1, 5), bool), 2)

    favored = sets_drawn(by_rank, 5, 2, monkeypatch)  # the error that the test has to detect
    assert stats.chisquare(np.pad(favored, (0, 10 - len(favored)))).pvalue < 1e-100


@pytest.mark.parametrize("generator", ["fljax-threefry", "threefry2x32"])
def test_integers_are_whole_parts_of_products_with_64_bits(generator):
    rng = np.random.default_rng(0)
    key = fl.random_key(0, generator)
    numbers = [0, 2**64 - 1, 2**32, 2**32 - 1, *rng.integers(0, 2**64, 20, np.uint64).tolist()]
    for number in numbers:
        for limit in (1, 2, 3, 1000, 65_537, 10**6, 2**31 - 1):
            with fixed_bits(number), jax.disable_jit():
                result = integers_below(key, (1,), jnp.array([limit]))
            assert int(result[0]) == number * limit >> 64
    result = np.asarray(integers_below(key, (60_000,), jnp.array([6])))
    assert stats.chisquare(np.bincount(result, minlength=6)).pvalue > 1e-4
