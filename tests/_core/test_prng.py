"""The house's random numbers: the published function, streams that do not meet, honest statistics.

Statistics are of fixed keys, and are held to five standard deviations, or a p-value of 1e-6, of
what independent numbers would give.
"""

import os
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import special, stats

import fljax as fl
from fljax._core import prng as house
from fljax._core.prng import (
    GENERATOR,
    GENERATORS,
    normal,
    private_laplace,
    private_normal,
    threefry,
    uniform_of_pairs,
)
from fljax._core.prng import words as words_of

N = 2**20
ROOT = Path(__file__).parents[2]

#: Counters, key and words, from the file kat_vectors of Random123 (threefry2x32, 20 rounds).
PUBLISHED = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def in_integers(key, counters):
    """Threefry-2x32-20 (Salmon et al. 2011, section 3.2) in Python's integers."""
    full = 2**32
    x = list(counters)
    keys = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    for number in range(20):
        if number % 4 == 0:
            time = number // 4
            x = [(x[i] + keys[(time + i) % 3] + i * time) % full for i in range(2)]
        x[0] = (x[0] + x[1]) % full
        rotation = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x[1] = ((x[1] << rotation) % full | x[1] >> 32 - rotation) ^ x[0]
    return tuple((x[i] + keys[(5 + i) % 3] + i * 5) % full for i in range(2))


def data(key):
    return np.asarray(jax.random.key_data(key))


def root(seed=0):
    return fl.random_key(seed)


@pytest.fixture(scope="module")
def bits():
    return np.asarray(jax.random.bits(root(1), (N,), np.uint32))


@pytest.fixture(scope="module")
def draws():
    return np.asarray(jax.jit(lambda key: normal(key, (2 * N,), np.float32))(root(2)), np.float64)


# The function -------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize(("counters", "key", "expected"), PUBLISHED)
def test_the_published_words(counters, key, expected):
    result = threefry(jnp.asarray(key, np.uint32), *(jnp.asarray(c, np.uint32) for c in counters))
    assert tuple(int(word) for word in result) == in_integers(key, counters) == expected


@pytest.mark.core
def test_keys_give_the_function_at_counters_of_their_purpose():
    key = fl.random_key(7)
    key_words = tuple(int(word) for word in data(key))
    blocks = [in_integers(key_words, (0, i)) for i in range(6)]
    assert jax.random.bits(key, (3, 2), np.uint32).ravel().tolist() == [b[0] for b in blocks]
    assert jax.random.bits(key, (6,), np.uint8).tolist() == [b[0] % 256 for b in blocks]
    long = [b[0] << 32 | b[1] for b in blocks]
    assert jax.random.bits(key, (6,), np.uint64).tolist() == long
    split = [in_integers(key_words, (1 << 30, i)) for i in range(6)]
    assert data(jax.random.split(key, (2, 3))).reshape(6, 2).tolist() == [list(b) for b in split]
    for number in (0, 5, 2**32 - 1):
        folded = data(jax.random.fold_in(key, number)).tolist()
        assert folded == list(in_integers(key_words, (1 << 31, number)))


def test_seeds_are_the_bits_of_keys():
    assert data(fl.random_key(2**32 - 1)).tolist() == [0, 2**32 - 1]
    wide = data(fl.random_key(-2)).tolist()
    with jax.enable_x64(False):
        assert data(fl.random_key(-2)).tolist() == wide == [2**32 - 1, 2**32 - 2]


def test_more_numbers_than_32_bits_count():
    """Entries are counted by leading axes in the upper word; nothing is computed here."""
    shape = (2**20, 3, 2**16)
    high, low = (
        jax.jit(lambda i, j, k: [w[i, j, k] for w in house._counters(shape)])
        .lower(*(jnp.asarray(i, np.int32) for i in (2**19, 2, 5)))
        .compile()(*(jnp.asarray(i, np.int32) for i in (2**19, 2, 5)))
    )
    assert (int(high), int(low)) == (2**19, 2 * 2**16 + 5)
    for many in [(1, 2**16, 2**16), (2**16, 2**16), (2, 2**31)]:
        assert jax.eval_shape(lambda many=many: house._counters(many)).low.shape == many
    with pytest.raises(ValueError, match=r"2\*\*32 numbers along an axis are more"):
        jax.eval_shape(lambda: house._counters((2**33,)))


@pytest.mark.core
def test_key_types_have_names_and_round_trip():
    key = fl.random_key(3)
    assert str(jax.random.key_impl(key)) == GENERATOR
    assert GENERATOR in repr(key)
    again = jax.random.wrap_key_data(data(key), impl=jax.random.key_impl(key))
    assert np.array_equal(normal(again, (4,), np.float32), normal(key, (4,), np.float32))


# The same numbers everywhere ----------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.core
@pytest.mark.parametrize(
    "draw",
    [
        lambda key: normal(key, (5, 3), np.float32),
        lambda key: jax.random.bits(key, (5, 3), np.uint32),
        lambda key: jax.random.split(jax.random.fold_in(key, 3), 5),
    ],
    ids=["normal", "bits", "keys"],
)
def test_a_key_gives_the_same_numbers_alone_and_in_a_batch(draw):
    def plain(key):
        drawn = draw(key)
        is_key = jnp.issubdtype(drawn.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(drawn) if is_key else drawn

    keys = jax.random.split(root(), 12)
    alone = np.stack([plain(key) for key in keys])
    # Loops and their remainders may round floats differently: the tests' lean compilation does.
    same = partial(np.testing.assert_allclose, rtol=5e-7 * (alone.dtype == np.float32))
    for size in (1, 5, 12):
        same(jax.jit(jax.vmap(plain))(keys[:size]), alone[:size])
    same(jax.jit(jax.vmap(jax.vmap(plain)))(keys.reshape(3, 4)).reshape(alone.shape), alone)
    same(jax.lax.map(plain, keys), alone)
    same(jax.lax.map(plain, keys, batch_size=5), alone)


@pytest.mark.core
def test_a_number_depends_on_the_key_and_its_place_alone():
    long = normal(root(), (1000,), np.float32)
    for shape in [(), (7,), (3, 11), (2, 1, 5), (0,)]:
        few = normal(root(), shape, np.float32)
        assert few.shape == shape
        np.testing.assert_allclose(few.ravel(), long[: few.size], rtol=5e-7)


NETWORK = """
keys = jax.random.split(fl.random_key(0), 8)
def draw(keys):
    return jax.tree.leaves(fl.graphs.random_connected(keys[0], nodes=8, mean_degree=3))
jax.jit(draw).lower(keys).compile()
"""
ROWS = """
from fljax._core import prng as g
def drawn(key):
    return [
        jax.random.uniform(key, (16,))[:, None],
        jax.random.uniform(key),
        g.normal(key, (16,), "float32")[:, None],
        g.private_normal(key, (), "float32"),
        g.private_laplace(key, (16, 1), "float32"),
        g.uniform_of_pairs(key, jax.numpy.arange(16), jax.numpy.arange(16), "float32")[:, None],
    ]
def put(u, rows):
    start = jax.numpy.zeros((20, 16, 32))
    return start.at[3].set(jax.numpy.where(u >= 0.5, rows, 1.0)).at[5].add(u * rows)
def rounds(key, rows):
    def one(count, number):
        return count + 1, [put(u, rows) for u in drawn(jax.random.fold_in(key, number))]
    return jax.lax.scan(one, 0.0, jax.numpy.arange(5))
jax.jit(rounds).lower(fl.random_key(0), jax.numpy.ones((16, 32))).compile()
"""


@pytest.mark.core
@pytest.mark.parametrize("code", [NETWORK, ROWS], ids=["keys", "rows"])
def test_draws_compile_with_all_passes(code):
    """LLVM did not end where it had followed a loop's draw of one number, or a key, back through
    all rounds of a block.
    """
    passes = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "JAX_ENABLE_COMPILATION_CACHE": "0"}
    environment = os.environ | passes | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("XLA_FLAGS", None)
    code = f"import jax, fljax as fl{code}"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


@pytest.mark.slow
def test_devices_share_a_draw():
    """Every part is drawn on its device, by the newer partitioner too, and in sharded maps."""
    code = """
import jax, numpy as np, fljax as fl
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from fljax._core.prng import normal
draw = lambda key: normal(key, (8, 6), np.float32)
alone = np.asarray(jax.jit(draw)(fl.random_key(0)))
mesh = jax.make_mesh((8,), ("rows",), (AxisType.Auto,))
rows = NamedSharding(mesh, P("rows"))
assert jax.config.jax_use_shardy_partitioner
compiled = jax.jit(draw, out_shardings=rows).lower(fl.random_key(0)).compile()
shared = compiled(fl.random_key(0))
assert {shard.data.shape for shard in shared.addressable_shards} == {(1, 6)}
assert np.array_equal(shared, alone)
text = compiled.as_text()
assert "f32[8,6]" not in text and "all-" not in text, text
keys = jax.device_put(jax.random.split(fl.random_key(1), 8), rows)
each = lambda keys: jax.vmap(draw)(keys)
mapped = jax.jit(jax.shard_map(each, mesh=mesh, in_specs=P("rows"), out_specs=P("rows")))(keys)
assert np.array_equal(mapped, jax.jit(each)(jax.random.split(fl.random_key(1), 8)))
"""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_the_generator_lowers_for_other_machines(platform):
    def draw(key):
        return normal(jax.random.fold_in(key, 1), (4, 2), np.float32)

    lowered = jax.jit(draw).trace(root()).lower(lowering_platforms=(platform,)).as_text()
    assert "ui64" not in lowered  # neither wide multiplications nor calls to a platform's own code
    assert "custom_call" not in lowered


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.uniform(key, (40,)),
        lambda key: jax.random.normal(key, (40,)),
        lambda key: jax.random.randint(key, (40,), 0, 9),
        lambda key: jax.random.bernoulli(key, 0.5, (40,)),
        lambda key: jax.random.permutation(key, 40),
        lambda key: jax.random.choice(key, 40, (9,), replace=False),
        lambda key: jax.random.laplace(key, (40,)),
        lambda key: jax.random.gamma(key, 2.0, (40,)),
        lambda key: jax.random.binomial(key, 9, 0.5, (40,)),
        lambda key: jax.random.categorical(key, jnp.zeros(9), shape=(40,)),
    ],
    ids=lambda draw: draw.__code__.co_names[1],
)
def test_distributions_of_jax_take_the_generator_s_keys(draw):
    first, second = (np.asarray(draw(root(seed))) for seed in (0, 1))
    assert np.isfinite(first).all()
    assert not np.array_equal(first, second)
    assert np.array_equal(draw(root(0)), first)


# Bits ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_keys_are_unique_and_differ_from_their_parents_numbers():
    """The words of a key's children and its own blocks are all different."""
    key = root(4)
    count = 2**15
    split = data(jax.random.split(key, count))
    folded = data(
        jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(count, dtype=np.uint32))
    )
    drawn = np.asarray(jax.random.bits(key, (count,), np.uint64))
    grand = data(jax.vmap(lambda k: jax.random.split(k, count // 64))(jax.random.split(key, 64)))
    rows = np.concatenate([split, folded, grand.reshape(-1, 2)]).astype(np.uint64)
    result = np.concatenate([rows[:, 0] << np.uint64(32) | rows[:, 1], drawn])
    assert len(np.unique(result)) == 4 * count


def test_the_number_of_a_pair_is_that_of_its_block():
    key = root(3)
    pairs = [(0, 5), (7, 1), (2**29, 9)]
    blocks = [in_integers(data(key).tolist(), pair) for pair in pairs]
    first, second = jnp.asarray(pairs, np.int32).T
    single = uniform_of_pairs(key, first, second, np.float32)
    assert single.dtype == np.float32
    assert single.tolist() == [(high >> 8) / 2**24 for high, _ in blocks]
    double = uniform_of_pairs(key, first, second, np.float64)
    assert double.tolist() == [((high >> 5) * 2**26 + (low >> 6)) / 2**53 for high, low in blocks]


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
def test_numbers_of_pairs_are_uniform_and_independent_of_storage_order(generator, dtype):
    key = fl.random_key(11, generator)
    size = 300
    first, second = np.mgrid[:size, :size].astype(np.int32)
    drawn = uniform_of_pairs(key, jnp.asarray(first), jnp.asarray(second), dtype)
    assert drawn.dtype == dtype
    moved = uniform_of_pairs(key, jnp.asarray(first[7, 3:9]), jnp.asarray(second[7, 3:9]), dtype)
    np.testing.assert_array_equal(moved, drawn[7, 3:9])
    values = np.asarray(drawn, np.float64)
    assert ((values >= 0) & (values < 1)).all()
    if dtype is not jnp.bfloat16:
        assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-6
        assert len(np.unique(values)) > 0.99 * values.size
    # Rows, columns and the two orders of a pair are independent.
    for left, right in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 5 / size
    upper = np.triu_indices(size, 1)
    assert abs(np.corrcoef(values[upper], values.T[upper])[0, 1]) < 8 / size


def independent_streams(length):
    """32 bits each of neighbors in a draw, keys of successive seeds, siblings of both kinds."""
    first = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (), np.uint32)))
    implementation = jax.random.key_impl(root())
    seeds = jax.vmap(lambda seed: jax.random.key(seed, impl=implementation))
    count = jnp.arange(length, dtype=np.uint32)
    folded = jax.vmap(lambda number: jax.random.fold_in(root(5), number))
    chained = jax.vmap(lambda key: jax.random.fold_in(jax.random.fold_in(key, 1), 2))
    return {
        "neighbors": jax.random.bits(root(5), (length,), np.uint32),
        "seeds": first(seeds(count)),
        "split": first(jax.random.split(root(5), length)),
        "folded": first(folded(count)),
        "grandchildren of seeds": first(chained(seeds(count))),
    }


LARGE = pytest.param(2**20, marks=[pytest.mark.slow, pytest.mark.long])


@pytest.fixture(scope="module", params=[2**17, LARGE])
def streams(request):
    return {name: np.asarray(stream) for name, stream in independent_streams(request.param).items()}


def test_every_bit_and_byte_is_as_frequent_as_the_others(streams):
    for name, stream in streams.items():
        share_of_ones = np.unpackbits(stream.view(np.uint8).reshape(-1, 4), axis=1).mean(axis=0)
        assert np.all(np.abs(share_of_ones - 0.5) < 2.5 / np.sqrt(len(stream))), name
        for byte in range(4):
            counts = np.bincount(stream.view(np.uint8)[byte::4], minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-6, (name, byte)


def test_neighboring_words_are_uncorrelated(streams):
    """Serial correlations of words, and of each bit with each; the weight of differences."""
    for name, stream in streams.items():
        count = len(stream)
        centered = stream / 2**32 - 0.5
        for lag in (1, 2, 3, 4, 8, 64):
            correlation = 12 * np.mean(centered[lag:] * centered[:-lag])
            assert abs(correlation) < 5 / np.sqrt(count), (name, lag)
        signs = (
            2 * np.unpackbits(stream.view(np.uint8).reshape(-1, 4), axis=1).astype(np.float32) - 1
        )
        within = signs.T @ signs / count - np.eye(32)
        across = signs[1:].T @ signs[:-1] / count
        assert np.abs(within).max() < 6 / np.sqrt(count), name
        assert np.abs(across).max() < 6 / np.sqrt(count), name
        changed = np.bitwise_count(stream[1:] ^ stream[:-1])
        expected = stats.binom(32, 0.5).pmf(np.arange(33)) * len(changed)
        middle = slice(6, 27)  # the others together
        counts = np.bincount(changed, minlength=33)
        counts = np.append(counts[middle], len(changed) - counts[middle].sum())
        expected = np.append(expected[middle], len(changed) - expected[middle].sum())
        assert stats.chisquare(counts, expected).pvalue > 1e-6, name


def test_gaps_hands_and_runs_are_those_of_probability(streams):
    """Gaps between small numbers, hands of five digits, runs (Knuth, volume 2, section 3.3.2)."""
    for name, stream in streams.items():
        gaps = np.minimum(np.diff(np.flatnonzero(stream < 2**29)) - 1, 40)  # one in eight
        probabilities = np.append(0.125 * 0.875 ** np.arange(40), 0.875**40)
        counts = np.bincount(gaps, minlength=41)
        assert stats.chisquare(counts, probabilities * len(gaps)).pvalue > 1e-6, name
        hands = (stream[: len(stream) // 5 * 5] >> 29).reshape(-1, 5)  # of eight digits
        kinds = 1 + (np.diff(np.sort(hands, axis=1), axis=1) > 0).sum(axis=1)
        ways = special.factorial(8) / special.factorial(8 - np.arange(1, 6))
        # numbers of partitions of five by their count of parts
        second_kind = np.array([1, 15, 25, 10, 1])
        counts = np.bincount(kinds, minlength=6)[1:]
        assert stats.chisquare(counts, ways * second_kind / 8**5 * len(hands)).pvalue > 1e-6, name
        rises = np.count_nonzero(stream[1:] > stream[:-1])
        spread = np.sqrt((len(stream) + 1) / 12)
        assert abs(rises - (len(stream) - 1) / 2) < 5 * spread, name


def test_birthdays_fall_together_as_often_as_by_probability(streams):
    """Equal spacings of 512 birthdays in 2**24 days are Poisson, two a year (Marsaglia)."""
    for name, stream in streams.items():
        years = (stream[: len(stream) // 512 * 512] >> 8).reshape(-1, 512).astype(np.int64)
        spacings = np.sort(np.diff(np.sort(years, axis=1), axis=1), axis=1)
        equal = np.count_nonzero(np.diff(spacings, axis=1) == 0)
        mean = 512**3 / (4 * 2**24) * len(years)
        assert abs(equal - mean) < 5 * np.sqrt(mean) + 0.02 * mean, name  # 1 % is the limit law's


def test_words_collide_as_often_as_by_probability(bits):
    collisions = sum(count * (count - 1) // 2 for count in Counter(bits.tolist()).values())
    mean = N * (N - 1) / 2 / 2**32
    assert abs(collisions - mean) < 5 * np.sqrt(mean)


# Normal numbers -----------------------------------------------------------------------------------


def of_words(first, second):
    """The draw of two words, in double precision."""
    first, second = (np.asarray(word) for word in (first, second))
    # From the end that is nearer to 1, where the logarithm needs the distance to it.
    log = np.log1p(((first >> 1).astype(np.float64) + 0.5) / 2**31 - 1)
    return np.sqrt(-2 * log) * np.sin(np.pi * (second.view(np.int32) + 0.5) / 2**32)


def box_muller(first, second):
    return np.asarray(jnp.sqrt(house._minus_two_log(first)) * house._sin_pi(second))


ENDS = np.concatenate(
    [
        np.arange(64),
        2**31 + np.arange(-64, 64),
        2**32 - 1 - np.arange(64),
        0xB504F333 + 256 * np.arange(-64, 64),
    ]
).astype(np.uint32)


@pytest.mark.core
def test_a_draw_is_its_formula_within_rounding():
    key = root(6)
    bits = threefry(jax.random.key_data(key), *house._counters((N,)))
    drawn = np.asarray(normal(key, (N,), np.float32))
    exact = of_words(*bits)
    assert np.all(np.abs(drawn - exact) <= 5 * np.spacing(np.abs(exact).astype(np.float32)))
    first, second = (jnp.asarray(bits) for bits in np.meshgrid(ENDS, ENDS))
    exact = of_words(first, second)
    error = np.abs(box_muller(first, second) - exact)
    assert np.all(error <= 5 * np.spacing(np.abs(exact).astype(np.float32)))


@pytest.mark.slow
@pytest.mark.core
def test_the_distribution_is_symmetric_of_variance_one_and_ends_beyond_six():
    grid = jnp.arange(2**11, 2**32, 2**12, dtype=np.uint64).astype(np.uint32)
    for bits in (grid, jnp.asarray(ENDS)):
        turned = house._sin_pi(bits)
        assert np.array_equal(turned, -house._sin_pi(~bits))  # of t and -t
    squares = np.mean(np.asarray(house._minus_two_log(grid), np.float64))
    halves = np.mean(np.asarray(house._sin_pi(grid), np.float64) ** 2)
    # The midpoint rule errs by ln 2 a part where the logarithm ends.
    assert abs(squares * halves - 1) < 2e-6
    few = jnp.asarray([0, 1], np.uint32)
    edge = box_muller(few, jnp.asarray([2**31 - 1, 2**31], np.uint32))
    np.testing.assert_allclose(edge, np.sqrt(64 * np.log(2)) * np.array([1, -1]), rtol=3e-7)


@pytest.mark.slow
def test_moments_and_distribution_of_normal_draws(draws):
    count = len(draws)
    for power, exact in enumerate((0, 1, 0, 3, 0, 15), start=1):
        spread = np.sqrt(special.factorial2(4 * power // 2 - 1) - exact**2)
        assert abs(np.mean(draws**power) - exact) < 5 * spread / np.sqrt(count), power
    assert stats.kstest(draws, "norm").pvalue > 1e-6
    for end in (2, 3, 4, 4.5):
        for tail in (draws > end, draws < -end):
            mean = stats.norm.sf(end) * count
            assert abs(tail.sum() - mean) < 5 * np.sqrt(mean) + 1, end


def test_draws_are_independent_of_their_neighbors_and_of_other_keys(draws):
    bound = 5 / np.sqrt(len(draws))
    for power in (1, 2):
        moved = draws**power - np.mean(draws**power)
        moved /= moved.std()
        for lag in (1, 2, 3, 8, 50, 400):
            assert abs(np.mean(moved[lag:] * moved[:-lag])) < bound, (power, lag)
    rows = jax.jit(jax.vmap(lambda key: normal(key, (2**12,), np.float32)))
    keys = jax.random.split(root(7), 64)
    folded = jax.vmap(lambda n: jax.random.fold_in(root(7), n))(jnp.arange(64, dtype=np.uint32))
    all_rows = np.concatenate([rows(keys), rows(folded)]).astype(np.float64)
    correlation = np.corrcoef(all_rows) - np.eye(128)
    assert np.abs(correlation).max() < 6 / np.sqrt(2**12)


@pytest.mark.slow
@pytest.mark.long
def test_the_tail_equals_that_of_the_distribution():
    """Beyond 5.4 standard deviations, where single precision ended before."""

    def count(key):
        magnitude = jnp.abs(normal(key, (2**22,), np.float32))
        return jnp.stack([jnp.sum(magnitude > end, dtype=np.int32) for end in (5.0, 5.42)])

    result = np.asarray(
        jax.jit(lambda keys: jax.lax.map(count, keys))(jax.random.split(root(8), 16))
    )
    expected = 2 * stats.norm.sf([5.0, 5.42]) * 16 * 2**22
    assert np.all(np.abs(result.sum(axis=0) - expected) < 5 * np.sqrt(expected))
    assert result[:, 1].sum() > 0


@pytest.mark.parametrize("name", [name for name in GENERATORS if name != GENERATOR])
def test_keys_of_jax_draw_the_normals_of_jax(name):
    key = fl.random_key(1, name)
    for dtype in (np.float32, np.float64):
        assert np.array_equal(normal(key, (9,), dtype), jax.random.normal(key, (9,), dtype))


def test_double_precision_draws_equal_jax():
    wide = normal(root(), (N // 4,), np.float64)
    assert np.array_equal(wide, jax.random.normal(root(), (N // 4,), np.float64))
    assert stats.kstest(wide, "norm").pvalue > 1e-6
    assert not np.allclose(normal(root(), (9,), np.float32), wide[:9])


# To hide something under -------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("draw", "distribution"), [(private_normal, "norm"), (private_laplace, "laplace")]
)
def test_private_numbers_have_their_distribution(draw, distribution, dtype, name):
    drawn = np.asarray(jax.jit(lambda key: draw(key, (N // 4,), dtype))(fl.random_key(3, name)))
    assert drawn.dtype == dtype
    assert stats.kstest(drawn, distribution).pvalue > 1e-4
    assert abs(np.mean(drawn > 0) - 0.5) < 4 * 0.5 / np.sqrt(len(drawn))
    for end in (3.0, 4.0):
        expected = 2 * getattr(stats, distribution).sf(end) * len(drawn)
        assert abs(np.sum(np.abs(drawn) > end) - expected) < 5 * np.sqrt(expected)


def test_private_numbers_of_less_than_single_precision_are_of_single():
    """Rounded to fewer bits they would not be whole steps."""
    for draw in (private_normal, private_laplace):
        assert draw(root(2), (3,), jnp.bfloat16).dtype == np.float32


@pytest.mark.parametrize("bits", [0, 2**32 - 1])
def test_bits_at_the_ends_make_finite_numbers(bits):
    ends = [jnp.asarray([bits, 0, 2**32 - 1], np.uint32)] * 4
    for numbers in (house._wide_normal(*ends), house._box_muller(*ends[:2])):
        assert np.all(np.isfinite(numbers))
        assert np.abs(numbers).max() < 10


@pytest.mark.parametrize("name", GENERATORS)
def test_words_of_an_entry_are_of_its_place_and_all_different(name):
    key = fl.random_key(4, name)
    drawn = np.stack(words_of(key, (7, 3), 5))
    assert drawn.dtype == np.uint32
    assert len(np.unique(drawn)) == drawn.size
    keys = jax.random.split(key, 2)
    one_by_one = [np.stack(words_of(k, (7, 3), 5)) for k in keys]
    np.testing.assert_array_equal(
        np.stack(jax.vmap(lambda k: jnp.stack(words_of(k, (7, 3), 5)))(keys)), one_by_one
    )


# By name ------------------------------------------------------------------------------------------

K = 4


def scenario(key, budget):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=K, samples=5, dim=2).clipped(1.0),
        network=fl.graphs.ring(K),
        algorithm=fl.algorithms.ZCDPNFL(1.0, 0.1),
        privacy=fl.privacy.ZCDP(budget, decay=0.9),
        metrics=["consensus_error"],
    )


STUDY = {"rounds": 2, "seeds": 2, "grid": {"budget": [1.0]}}


@pytest.mark.slow
@pytest.mark.core
def test_runs_draw_from_the_generator_that_is_named():
    simulation = scenario(jax.random.key(0), 1.0)
    plain = fl.run(simulation, 2, key=5)
    assert plain.attrs["prng"] == GENERATOR
    for name in (GENERATOR, "philox4x32"):
        named = fl.run(simulation, 2, key=5, generator=name)
        assert named.attrs["prng"] == name
        assert named.equals(plain) == (name == GENERATOR)
        assert fl.run(simulation, 2, key=fl.random_key(5, name)).equals(named)
    result = fl.run(simulation, 2, key=jax.random.key(5, impl="threefry2x32"))
    assert result.attrs["prng"] == "threefry2x32"
    with pytest.raises(ValueError, match=r"this key is of 'threefry2x32'; leave generator out"):
        fl.run(simulation, 2, key=jax.random.key(5), generator=GENERATOR)


@pytest.mark.slow
def test_a_store_holds_to_its_generator(tmp_path):
    old = fl.sweep(scenario, **STUDY, generator="philox4x32", store=tmp_path)
    assert old.attrs["prng"] == "philox4x32"
    message = "prng: 'philox4x32' in the store, 'fljax-threefry' now"
    with pytest.raises(ValueError, match=message) as caught:
        fl.sweep(scenario, **STUDY, store=tmp_path)
    assert "`prng` for generator=" in str(caught.value)
    more = fl.sweep(scenario, **STUDY | {"seeds": 3}, generator="philox4x32", store=tmp_path)
    xr.testing.assert_equal(more.isel(seed=slice(2)), old)


@pytest.mark.thin(1)
@pytest.mark.core
@pytest.mark.parametrize("name", [GENERATOR, "philox4x32"])
@pytest.mark.slow
def test_a_study_is_the_runs_of_its_generators_keys(name):
    study = fl.sweep(scenario, **STUDY, generator=name)
    assert study.attrs["prng"] == name
    k_scenario, k_run = jax.random.split(jax.random.fold_in(fl.random_key(0, name), 1))
    alone = fl.run(scenario(k_scenario, 1.0), 2, k_run)
    result = study.consensus_error.isel(seed=1, budget=0)
    np.testing.assert_allclose(result, alone.consensus_error, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rbg", "with generator 'rbg' a run would get different numbers in another block"),
        ("unsafe_rbg", "different numbers in another block"),
        ("phlox4x32", "Did you mean 'philox4x32'?"),
    ],
)
def test_other_generators_are_refused(name, message):
    for call in (
        lambda: fl.sweep(scenario, **STUDY, generator=name),
        lambda: fl.plan(scenario, **STUDY, generator=name),
        lambda: fl.run(scenario(jax.random.key(0), 1.0), 2, generator=name),
        lambda: fl.random_key(0, name),
    ):
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            call()
