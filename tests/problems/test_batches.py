"""Random subsets and shuffled batches follow their distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fljax._core.prng import as_key
from fljax._core.random_subsets import PACKED_SIZE, shuffled_by_count, subset
from fljax.problems import LeastSquares, from_clients
from fljax.problems.batches import CyclicBatches, Shuffled, Uniform, taken
from tests.cases import CLIENTS
from tests.support.learning_networks import DATA, POINTS

close = np.testing.assert_allclose


def test_participants_are_uniform_without_replacement():
    draws = jax.vmap(lambda key: subset(key, 6, 3))(jax.random.split(as_key(14), 12_000))
    draws = np.asarray(draws)
    assert (np.diff(np.sort(draws, axis=1), axis=1) > 0).all()
    for sets in (draws, np.sort(draws, axis=1)):  # ordered, and as subsets
        counts = np.unique(sets, axis=0, return_counts=True)[1]
        assert len(counts) == (120 if sets is draws else 20)
        assert stats.chisquare(counts).pvalue > 1e-4


def test_batches_are_random_orders_of_a_clients_own_samples():
    real = np.arange(4) < np.array([[4], [3], [1]])
    rows = Shuffled(3).draw(as_key(15), real, np.arange(3), 12_000).rows
    rows = np.asarray(rows)
    for k, size in enumerate((4, 3, 1)):
        in_epoch = -(-size // 3)
        assert (rows[k, 6000 * in_epoch :] == 4).all()  # epochs follow one another, then no sample
        order = rows[k, : 6000 * in_epoch].reshape(6000, -1)
        assert (np.sort(order[:, :size]) == np.arange(size)).all()
        assert (
            order[:, size:] >= size
        ).all()  # past the last sample: there is none to fill up with
        counts = np.unique(order[:, :size], axis=0, return_counts=True)[1]
        assert len(counts) == {4: 24, 3: 6, 1: 1}[size]
        assert len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-4
    largest = rows[0, ::2, 0]
    first = largest * 3 + rows[1, :6000, 0]  # clients and epochs are independent
    assert stats.chisquare(np.bincount(first)).pvalue > 1e-4
    assert abs(np.corrcoef(largest[1:], largest[:-1])[0, 1]) < 0.06


def test_long_rows_are_shuffled_up_to_their_last_index(monkeypatch):
    """Rows of different lengths, on a CPU by programs for lengths: no other order than by one."""
    size = 4 * PACKED_SIZE
    counts = np.array([0, 1, 3, 64, 65, PACKED_SIZE, PACKED_SIZE + 1, size])
    first = jnp.asarray(np.arange(size) < counts[:, None])
    key = as_key(31)
    order = np.asarray(shuffled_by_count(key, first))
    for row, count in zip(order, counts, strict=True):
        np.testing.assert_array_equal(np.sort(row[:count]), np.arange(count))
        if count > 60:
            assert abs(np.corrcoef(row[:count], np.arange(count))[0, 1]) < 4 / count**0.5
    keys = jax.random.split(key, 2)
    together = jax.vmap(shuffled_by_count)(keys, jnp.stack([first, first[::-1]]))
    for drawn, seed, marked in zip(together, keys, (first, first[::-1]), strict=True):
        np.testing.assert_array_equal(drawn, shuffled_by_count(seed, marked))
    monkeypatch.setattr("fljax._core.random_subsets.on_cpu", lambda: False)
    at_once = np.asarray(shuffled_by_count(key, first))
    for row, other, count in zip(order, at_once, counts, strict=True):
        np.testing.assert_array_equal(row[:count], other[:count])


def test_short_rows_with_room_for_many_are_uniform():
    first = jnp.broadcast_to(jnp.arange(PACKED_SIZE + 1) < 4, (3, 2000, PACKED_SIZE + 1))
    orders = np.asarray(shuffled_by_count(as_key(32), first))[..., :4].reshape(-1, 4)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.slow
def test_large_shuffles_follow_the_distribution_of_small_ones():
    """Beyond `PACKED_SIZE` indices no longer share a word with their random numbers."""
    many = 2 * PACKED_SIZE
    order = np.asarray(subset(as_key(21), many, many))
    np.testing.assert_array_equal(np.sort(order), np.arange(many))
    # Uniform: the correlation of position and index has standard deviation 1 / sqrt(many).
    assert abs(np.corrcoef(order, np.arange(many))[0, 1]) < 5 / many**0.5
    real = jnp.arange(many)[None] < 100
    rows = np.asarray(Shuffled(50).draw(as_key(22), real, np.arange(1), 2).rows)[0]
    np.testing.assert_array_equal(np.sort(rows[:2].ravel()), np.arange(100))


@pytest.mark.slow
def test_a_round_of_cyclic_batches_covers_all_samples():
    """Enumerated: over sizes that a batch divides, their gradients' mean is the gradient."""
    even = from_clients([(X[:4], y[:4]) for X, y in DATA], LeastSquares())
    everyone = jnp.arange(CLIENTS)
    real = jnp.ones((CLIENTS, 4), bool)
    cyclic = CyclicBatches(2)
    at = jnp.asarray(POINTS)
    batches = [cyclic.at(n, 1).draw(as_key(0), real, everyone, 1) for n in (1, 2, 3)]
    slopes = [taken(even, everyone, batch, 0).gradient(at) for batch in batches]
    close((slopes[0] + slopes[1]) / 2, even.gradient(at), rtol=1e-12)
    close(slopes[2], slopes[0])
    assert np.abs(slopes[1] - slopes[0]).max() > 0.1
    ragged = cyclic.draw(as_key(0), real.at[0, 3].set(False).at[1, 1:].set(False), everyone, 3)
    assert ragged.rows[0].tolist() == [[0, 1], [2, 0], [1, 2]]
    assert ragged.rows[1].tolist() == [[0, 4], [0, 4], [0, 4]]  # all it has
    short = CyclicBatches(2, whole=False).draw(as_key(0), real.at[0, 3].set(False), everyone, 3)
    assert short.rows[0].tolist() == [[0, 1], [2, 4], [0, 1]]
    assert short.rows[1].tolist() == [[0, 1], [2, 3], [0, 1]]


def test_the_smaller_last_batch_may_be_left_out():
    real = jnp.asarray(np.arange(10) < np.array([[10], [7], [2]]))
    law = Shuffled(3, drop_last=True)
    assert law.steps(10) == 3
    rows = np.asarray(law.draw(as_key(5), real, jnp.arange(3), 6).rows)  # two epochs of ten samples
    for k, (whole, samples) in enumerate(((3, 10), (2, 7), (0, 2))):
        taken_rows = rows[k, : 2 * whole]
        assert (taken_rows < samples).all()
        assert (rows[k, 2 * whole :] == 10).all()
        for epoch in taken_rows.reshape(2, -1):
            assert len(set(epoch.tolist())) == 3 * whole


@pytest.mark.parametrize(
    ("law", "sizes", "full"),
    [
        (Shuffled(3), (6, 9), True),
        (Shuffled(3), (6, 8), False),
        (Shuffled(3, drop_last=True), (6, 8), True),
        (CyclicBatches(3), (6, 8), True),
        (CyclicBatches(7), (6, 8), False),
        (CyclicBatches(3, whole=False), (6, 8), False),
        (Uniform(6), (6, 8), True),
        (Uniform(7), (6, 8), False),
        (Uniform(7, replacement=True), (6, 8), True),
        (Uniform((2, 3)), (6, 8), False),
    ],
)
def test_laws_know_whether_their_batches_are_full(law, sizes, full):
    rng = np.random.default_rng(0)
    problem = from_clients([(rng.normal(size=(n, 2)), np.ones(n)) for n in sizes], LeastSquares())
    assert law.is_full(problem) == full
