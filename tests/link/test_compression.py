"""Compressors against their formulas in NumPy, their means by exact bounds, the bits by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fljax as fl
from fljax.algorithms import OnlineFed, PAOFed
from fljax.link import (
    Circular,
    Contractive,
    CountSketch,
    Natural,
    Quantize,
    RandomK,
    Sign,
    StochasticSign,
    TopK,
)
from fljax.link.compression import contraction_of, unbiased_variance
from fljax.problems.streams import Linear
from tests.support.online_world import short_run

LEVEL = 1e-4
V = np.array([[3.0, -1.0, 0.0, 0.5, -4.0], [0.25, 0.25, -0.5, 0.75, 0.0]])


@jax.jit
def draw(compressor, keys, message):
    return compressor.compress(keys, message)


def compress(compressor, message, seed=0):
    keys = jax.random.split(jax.random.key(seed), len(message))
    return np.asarray(draw(compressor, keys, jnp.asarray(message)))


def many(compressor, row, count=40_000, seed=1):
    """What becomes of the same row at many senders."""
    return compress(compressor, np.broadcast_to(row, (count, len(row))), seed)


# Formulas ---------------------------------------------------------------------------------------


def test_signs_times_the_mean_magnitude():
    expected = np.array([[1.7, -1.7, 0, 1.7, -1.7], [0.35, 0.35, -0.35, 0.35, 0]])
    np.testing.assert_allclose(compress(Sign(), V), expected, rtol=1e-15)
    np.testing.assert_array_equal(compress(Sign(scaled=False), V), np.sign(V))


def test_the_largest_magnitudes_are_kept_unchanged():
    expected = [[3, 0, 0, 0, -4], [0, 0, -0.5, 0.75, 0]]
    np.testing.assert_array_equal(compress(TopK(2), V), expected)
    np.testing.assert_array_equal(compress(TopK(5), V), V)


@pytest.mark.parametrize("count", [1, 5, 12])
def test_top_k_is_the_nearest_sparse_vector(count):
    rows = np.random.default_rng(count).normal(size=(50, 12))
    compressed = compress(TopK(count), rows)
    np.testing.assert_array_equal(compressed, np.where(compressed != 0, rows, 0))
    left = np.sort(np.abs(rows), axis=1)[:, : 12 - count]
    np.testing.assert_allclose(((rows - compressed) ** 2).sum(1), (left**2).sum(1), rtol=1e-12)


def test_random_entries_are_uniform_without_replacement_and_scaled():
    row = np.array([3.0, -1.0, 2.0, 0.5])
    rebuilt = many(RandomK(2), row)
    nonzero = rebuilt != 0
    np.testing.assert_array_equal(rebuilt, np.where(nonzero, 2 * row[None], 0))
    sets, counts = np.unique(nonzero, axis=0, return_counts=True)
    assert sets.shape == (6, 4)
    assert (sets.sum(1) == 2).all()
    assert stats.chisquare(counts).pvalue > LEVEL
    np.testing.assert_allclose(compress(RandomK(5), V), V, rtol=1e-15)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_quantized_numbers_are_neighboring_levels_with_the_mean_kept(bits):
    levels = 2 ** (bits - 1) - 1
    row = np.array([0.83, -0.3, 0.0, -1.7, 0.011])
    rebuilt = many(Quantize(bits), row)
    unit = 1.7 / levels
    np.testing.assert_allclose(rebuilt / unit, np.round(rebuilt / unit), atol=1e-9)
    assert (np.abs(rebuilt - row) < unit * (1 + 1e-12)).all()
    np.testing.assert_allclose(rebuilt[:, 3], -1.7, rtol=1e-15)  # the largest is exact
    assert not rebuilt[:, 2].any()
    for i in (0, 1, 4):
        exact = abs(row[i]) / unit
        up = np.abs(rebuilt[:, i]) > unit * (np.floor(exact) + 0.5)
        assert stats.binomtest(int(up.sum()), len(up), exact % 1).pvalue > LEVEL
        assert (rebuilt[:, i] * row[i] >= 0).all()


@given(
    st.lists(
        st.floats(-1e6, 1e6).filter(lambda v: v == 0 or abs(v) > 1e-9), min_size=4, max_size=4
    ),
    st.sampled_from([2, 5, 16]),
)
@settings(max_examples=50, deadline=None)
def test_quantization_moves_numbers_by_less_than_a_level(row, bits):
    row = np.array(row)
    unit = np.abs(row).max() / (2 ** (bits - 1) - 1)
    error = np.abs(compress(Quantize(bits), row[None])[0] - row)
    assert (error <= unit * (1 + 1e-9)).all()


def test_a_message_of_zeros_stays_one():
    zero = np.zeros((2, 4))
    for compressor in (Quantize(2), Quantize(8), Sign(), TopK(2), RandomK(2), Natural()):
        np.testing.assert_array_equal(compress(compressor, zero), zero)


def test_stochastic_signs_have_their_probabilities_and_stop_at_the_bound():
    row = np.array([0.5, -1.5, 0.0, 2.0, -9.0, 7.0])
    signs = many(StochasticSign(2.0), row)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    up = (signs > 0).sum(0)
    for hits, probability in zip(up[:3], [0.625, 0.125, 0.5], strict=True):
        assert stats.binomtest(int(hits), len(signs), probability).pvalue > LEVEL
    np.testing.assert_array_equal(up[3:], [len(signs), 0, len(signs)])


@pytest.mark.parametrize(
    ("compressor", "gain"),
    [
        (RandomK(2), 1.0),
        (Quantize(3), 1.0),
        (Natural(), 1.0),
        (StochasticSign(5.0), 5.0),
        (CountSketch(1, 3), 1.0),
        (CountSketch(4, 2), 1.0),
    ],
)
def test_unbiased(compressor, gain):
    row = np.array([3.0, -1.0, 0.2, 0.5, -4.0])
    rebuilt = gain * many(compressor, row, seed=2)
    error = np.abs(rebuilt.mean(0) - row) / (rebuilt.std(0) / np.sqrt(len(rebuilt)) + 1e-12)
    assert error.max() < stats.norm.isf(LEVEL / 2)


@pytest.mark.parametrize(
    "compressor", [RandomK(2), Quantize(3), Natural(), StochasticSign(4.0), CountSketch(2, 3)]
)
def test_every_row_is_drawn_by_its_own_key_alone(compressor):
    message = np.random.default_rng(0).normal(size=(20, 6))
    keys = jax.random.split(jax.random.key(3), 20)
    compressed = np.asarray(draw(compressor, keys, message))
    rows = np.array([7, 0])
    np.testing.assert_array_equal(draw(compressor, keys[rows], message[rows]), compressed[rows])
    same = draw(compressor, keys, np.broadcast_to(message[0], (20, 6)))
    assert len(np.unique(np.asarray(same), axis=0)) > 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_natural_compression_rounds_to_neighboring_powers_of_two(dtype):
    row = np.array([3.0, -0.7, 1.0, -0.125, 1e-20, 5e9], dtype)
    rebuilt = many(Natural(), row)
    assert rebuilt.dtype == dtype
    below = 2.0 ** np.floor(np.log2(np.abs(row.astype(float))))
    for i, (number, lower) in enumerate(zip(row, below, strict=True)):
        up = np.abs(rebuilt[:, i]) > 1.5 * lower
        np.testing.assert_array_equal(rebuilt[:, i], np.sign(number) * np.where(up, 2, 1) * lower)
        share = abs(float(number)) / lower - 1
        assert stats.binomtest(int(up.sum()), len(up), share).pvalue > LEVEL


# Classes ----------------------------------------------------------------------------------------

#: Rows of 6 numbers at which the bounds are attained, or nearly.
WORST = {
    "random": (RandomK(2), [3.0, -1.0, 0.2, 0.5, -4.0, 1.0]),
    "2 bits": (Quantize(2), [1.0, *5 * [1 / (1 + np.sqrt(1 + 5))]]),
    "3 bits": (Quantize(3), [-2.0, *5 * [2 / (3 + np.sqrt(9 + 5))]]),
    "natural": (Natural(), 6 * [4 / 3]),
    "sketch": (CountSketch(1, 4), [3.0, -1.0, 0.2, 0.5, -4.0, 1.0]),
    "top": (TopK(2), [1.0, -1.0, 1.0, 1.0, 1.0, 1.0]),
    "sign": (Sign(), [1.0, *5 * [1e-9]]),
    "contractive": (Contractive(RandomK(2)), [3.0, -1.0, 0.2, 0.5, -4.0, 1.0]),
}


def squared_errors(compressor, row, seed=3):
    row = np.asarray(row)
    return ((many(compressor, row, seed=seed) - row) ** 2).sum(1) / (row**2).sum()


def bound_of(compressor, dim):
    """Of the mean squared error, relative to the message."""
    variance = compressor.variance(dim)
    return 1 - compressor.contraction(dim) if variance is None else variance


@pytest.mark.parametrize("name", WORST)
def test_the_declared_bound_is_attained(name):
    compressor, row = WORST[name]
    error = squared_errors(compressor, row)
    margin = stats.norm.isf(LEVEL / 2) * error.std() / np.sqrt(len(error))
    np.testing.assert_allclose(error.mean(), bound_of(compressor, 6), rtol=1e-6, atol=margin)


@given(
    st.lists(st.floats(-10, 10).map(lambda v: round(v, 3)), min_size=5, max_size=5).filter(any),
    st.sampled_from(
        [case[0] for case in WORST.values()] + [CountSketch(rows, 2) for rows in (2, 3, 4)]
    ),
)
@settings(max_examples=40, deadline=None)
def test_no_message_exceeds_the_declared_bound(row, compressor):
    error = squared_errors(compressor, row)[:4000]
    margin = stats.norm.isf(1e-6) * error.std() / np.sqrt(len(error)) + 1e-12
    assert error.mean() <= bound_of(compressor, 5) + margin


def test_the_classes_of_compressors():
    assert RandomK(2).variance(10) == 4
    assert CountSketch(3, 4).variance(9) == 2
    assert RandomK(2).contraction(10) is None
    assert RandomK(8).contraction(10) == 0.75  # an omega below one is a contraction
    assert Natural().contraction(1000) == 7 / 8
    assert TopK(2).contraction(10) == 0.2
    assert Sign().contraction(10) == 0.1
    for compressor in (TopK(2), Sign(), Sign(scaled=False), StochasticSign(1.0)):
        assert compressor.variance(10) is None
    for compressor in (Sign(scaled=False), StochasticSign(1.0)):
        assert compressor.contraction(10) is None
    contractive = Contractive(RandomK(2))
    assert contractive.contraction(10) == 0.2
    assert contractive.variance(10) is None
    assert contractive.bits(10) == 64
    entries = compress(contractive, V)
    np.testing.assert_allclose(entries[entries != 0], V[entries != 0], rtol=1e-15)


@fl.module
class Halving(fl.link.Compressor):
    """A compressor that declares no class."""

    def bits(self, dim):
        return dim

    def compress(self, keys, message):
        return message / 2


def test_a_compressor_without_a_class_is_told_what_to_declare():
    with pytest.raises(ValueError, match=r"X needs an unbiased.*has no variance\(dim\); take"):
        unbiased_variance("X", Halving(), 4)
    with pytest.raises(ValueError, match=r"X needs a contractive.*no contraction\(dim\).*; take"):
        contraction_of("X", Halving(), 4)


# Bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compressor", "dim", "bits"),
    [
        (Sign(), 200, 232),
        (Sign(scaled=False), 200, 200),
        (StochasticSign(1.0), 200, 200),
        (TopK(4), 200, 4 * (32 + 8)),
        (TopK(4), 256, 4 * (32 + 8)),
        (TopK(4), 257, 4 * (32 + 9)),
        (TopK(1), 1, 32),
        (RandomK(4), 200, 128),
        (Quantize(2), 200, 432),
        (Quantize(8), 200, 1632),
        (Natural(), 200, 1800),
        (CountSketch(3, 20), 200, 60 * 32),
    ],
)
def test_bits_on_the_wire(compressor, dim, bits):
    assert compressor.bits(dim) == bits


@pytest.mark.parametrize("kind", [TopK, RandomK])
def test_at_most_the_available_entries_can_be_kept(kind):
    kind(5).check(5)
    with pytest.raises(ValueError, match="count must be 1 to the 4 numbers of a message, got 5"):
        kind(5).check(4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "count must be >= 1, got 0"),
        (lambda: RandomK(0), "count must be >= 1, got 0"),
        (lambda: Quantize(1), "bits_each must be >= 2, got 1. One of them is the sign"),
        (lambda: CountSketch(0, 3), "rows must be >= 1, got 0"),
        (lambda: CountSketch(3, 0), "columns must be >= 1, got 0"),
        (lambda: StochasticSign(0.0), "bound must be finite and > 0, got 0"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# In a run ---------------------------------------------------------------------------------------

CLIENTS = 4
DIM = 6


def noiseless():
    """Linear data that one model explains at every client."""
    rng = np.random.default_rng(0)
    roots = 0.5 * rng.normal(size=(CLIENTS, DIM, DIM)) / np.sqrt(DIM) + 0.4 * np.eye(DIM)
    return Linear(roots, rng.normal(size=DIM) + 1, np.zeros(CLIENTS))


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "compressor",
    [Quantize(2), Quantize(4), TopK(2), RandomK(4), Sign()],
    ids=["2 bits", "4 bits", "top", "random", "sign"],
)
def test_differences_from_the_servers_model_are_compressed(compressor):
    """The error vanishes as the models agree; with compressed models it would not."""
    algorithm = OnlineFed(0.25)
    run = fl.run(
        fl.Simulation(noiseless(), algorithm, compression=compressor, metrics=["normalized_error"]),
        1500,
        record_every=100,
    )
    assert run["normalized_error"].values[-1] < 1e-9 * run["normalized_error"].values[0]
    messages = CLIENTS * run["round"].values
    np.testing.assert_array_equal(run["bits_up"], messages * compressor.bits(DIM))
    np.testing.assert_array_equal(run["bits_down"], messages * 32 * DIM)


@pytest.mark.slow
def test_finer_levels_disturb_less():
    errors = []
    for compressor in (Quantize(2), Quantize(6), None):
        simulation = fl.Simulation(
            noiseless(), OnlineFed(0.25), compression=compressor, metrics=["normalized_error"]
        )
        errors.append(fl.run(simulation, 300, record_every=300)["normalized_error"].item())
    assert errors[0] > 2 * errors[1]
    np.testing.assert_allclose(np.log(errors[1]), np.log(errors[2]), atol=0.5)


def test_a_compressor_must_fit_the_model():
    with pytest.raises(ValueError, match="count must be 1 to the 6 numbers of a message, got 7"):
        fl.Simulation(noiseless(), OnlineFed(0.1), compression=TopK(7))


@pytest.mark.parametrize("kind", [TopK, RandomK])
def test_a_compressor_must_fit_the_portion(kind):
    simulation = fl.Simulation(noiseless(), PAOFed(0.1, Circular(2)), compression=kind(4))
    with pytest.raises(ValueError, match="count must be 1 to the 2 numbers of a message, got 4"):
        fl.run(simulation, 3)


@pytest.mark.slow
def test_portions_are_compressed_as_messages_of_their_size():
    simulation = fl.Simulation(noiseless(), PAOFed(0.1, Circular(2)), compression=Quantize(4))
    run = fl.run(simulation, 3)
    np.testing.assert_array_equal(run["bits_up"], CLIENTS * run["round"] * (2 * 4 + 32))
    np.testing.assert_array_equal(run["bits_down"], CLIENTS * run["round"] * 2 * 32)
    np.testing.assert_array_equal(run["scalars"], CLIENTS * run["round"] * 2 * 2)


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match=r"compression must be .*Compressor, got 'sign'"):
        short_run(compression="sign")
