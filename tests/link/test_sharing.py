"""Portions of models: the schedule (4.5) index by index, random ones by chi-square."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fljax.link import Circular, Random
from tests.reference.online import portion

LEVEL = 1e-4


@functools.partial(jax.jit, static_argnames=("method", "dim"))
def _ask(method, sharing, key, n, clients, dim):
    return getattr(sharing, method)(key, n, clients, dim)


def indices(sharing, n, clients, dim, seed=0, method="indices"):
    key = jax.random.key(seed)
    clients = jnp.asarray(clients, jnp.int32)
    return np.asarray(_ask(method, sharing, key, jnp.int32(n), clients, dim))


def mask(sharing, n, clients, dim, seed=0):
    return indices(sharing, n, clients, dim, seed, "mask")


def as_masks(chosen, dim):
    """Rows of indices as masks; every index counts once."""
    assert (np.diff(np.sort(chosen, axis=1), axis=1) > 0).all()
    rows = np.zeros((len(chosen), dim), bool)
    np.put_along_axis(rows, chosen, True, axis=1)
    return rows


# Circular ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinated", [False, True])
@pytest.mark.parametrize(("dim", "size"), [(12, 4), (10, 4), (7, 3), (5, 5), (6, 1), (200, 32)])
def test_portions_follow_the_schedule(dim, size, coordinated):
    sharing = Circular(size, coordinated)
    clients = [0, 1, 2, 3, 49, 50, 255]
    last = 2**31 - 1 - 255
    for n in (1, 2, 3, 4, 5, 17, 2000, 2**30 + 7, last - 1, last):
        expected = np.stack([portion(n, k, dim, size, coordinated) for k in clients])
        np.testing.assert_array_equal(mask(sharing, n, clients, dim), expected)
        chosen = indices(sharing, n, clients, dim)
        assert chosen.shape == (7, size)
        np.testing.assert_array_equal(as_masks(chosen, dim), expected)


@pytest.mark.parametrize("offset", [0, 1, 3, 7, 23])
@pytest.mark.parametrize(("dim", "size"), [(12, 4), (10, 3), (7, 7)])
def test_windows_of_clients_are_an_offset_apart(dim, size, offset):
    sharing = Circular(size, offset=offset)
    clients = [0, 1, 2, 5, 255]
    for n in (1, 2, 9, 2**31 - 1):
        expected = np.zeros((5, dim), bool)
        for row, k in enumerate(clients):
            for i in range(size):
                expected[row, (size * n + offset * k + i) % dim] = True
        np.testing.assert_array_equal(mask(sharing, n, clients, dim), expected)
        chosen = indices(sharing, n, clients, dim)
        np.testing.assert_array_equal(as_masks(chosen, dim), expected)
    for shift, same in ((size, Circular(size)), (0, Circular(size, coordinated=True))):
        ours = indices(Circular(size, offset=shift), 5, clients, dim)
        np.testing.assert_array_equal(ours, indices(same, 5, clients, dim))
    far = Circular(60_000, offset=99_999)  # both products are above 2^31
    assert indices(far, 90_001, [70_000], 100_003)[0, 0] == (
        (60_000 * 90_001 + 99_999 * 70_000) % 100_003
    )


def test_portions_of_large_models_do_not_overflow():
    dim = 100_003
    size = 60_000
    n = 90_001  # m (n mod D) is above 2^31
    for k in (0, 1, 9):
        start = size * (n + k) % dim
        chosen = indices(Circular(size), n, [k], dim)[0]
        assert chosen[0] == start
        assert chosen[-1] == (start + size - 1) % dim
        assert mask(Circular(size), n, [k], dim)[0, start]


def test_a_window_moves_by_its_size_per_round_and_client():
    sharing = Circular(4)
    dim = 10
    clients = np.arange(6)
    for n in range(1, 12):
        now = mask(sharing, n, clients, dim)
        np.testing.assert_array_equal(mask(sharing, n + 1, clients, dim), np.roll(now, 4, axis=1))
        np.testing.assert_array_equal(now[1:], np.roll(now[:-1], 4, axis=1))


@pytest.mark.parametrize(("dim", "size"), [(12, 4), (10, 4), (200, 32), (7, 7), (9, 1)])
def test_over_a_cycle_every_parameter_is_shared_equally_often(dim, size):
    cycle = dim // math.gcd(dim, size)
    shared = sum(mask(Circular(size), n, [0, 3], dim).astype(int) for n in range(5, 5 + cycle))
    np.testing.assert_array_equal(shared, size * cycle // dim)


@pytest.mark.slow
def test_only_coordinated_clients_share_a_portion():
    for sharing in (Circular(3, coordinated=True), Random(3, coordinated=True)):
        for n in (1, 8):
            assert (np.ptp(indices(sharing, n, np.arange(5), 11), axis=0) == 0).all()
    for sharing in (Circular(3), Random(3)):
        assert len(np.unique(mask(sharing, 1, np.arange(5), 11), axis=0)) == 5


def test_coordination_is_a_number_not_structure():
    for kind in (Circular, Random):
        structures = {jax.tree.structure(kind(3, c)) for c in (False, True)}
        assert len(structures) == 1


# Random -----------------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random_portions_are_uniform_without_replacement(size):
    clients = np.arange(20_000)
    dim = 5
    masks = as_masks(indices(Random(size), 3, clients, dim), dim)
    np.testing.assert_array_equal(mask(Random(size), 3, clients, dim), masks)
    _, counts = np.unique(masks, axis=0, return_counts=True)
    assert len(counts) == math.comb(dim, size)
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.mark.slow
def test_random_portions_differ_between_rounds():
    portions = [indices(Random(1), n, [0, 1], 4)[:, 0] for n in range(1, 2001)]
    first, second = np.array(portions).T
    assert stats.chisquare(np.bincount(first, minlength=4)).pvalue > LEVEL
    for other in (second, np.roll(first, 1)):
        table = np.histogram2d(first, other, bins=4)[0]
        assert stats.chi2_contingency(table).pvalue > LEVEL


@pytest.mark.slow
def test_both_ends_draw_the_same_portion_in_any_group():
    sharing = Random(4)
    everyone = indices(sharing, 6, np.arange(9), 30)
    for clients in ([3], [8, 0], [2, 2, 5]):
        np.testing.assert_array_equal(indices(sharing, 6, clients, 30), everyone[clients])
    for other in (indices(sharing, 7, np.arange(9), 30), indices(sharing, 6, np.arange(9), 30, 1)):
        assert (np.sort(other, axis=1) != np.sort(everyone, axis=1)).any(axis=1).all()


def test_all_parameters_in_one_portion_are_all_of_them():
    for sharing, n in itertools.product((Circular(6), Random(6)), (1, 5)):
        assert mask(sharing, n, [0, 1], 6).all()


# Refused ----------------------------------------------------------------------------------------


def test_offsets_are_of_windows_that_differ():
    with pytest.raises(ValueError, match=r"offset must be >= 0, got -1"):
        Circular(2, offset=-1)
    with pytest.raises(ValueError, match="offset=1 was given for coordinated clients"):
        Circular(2, coordinated=True, offset=1)


@pytest.mark.parametrize("kind", [Circular, Random])
def test_portions_must_fit_the_model(kind):
    kind(5).check(5)
    with pytest.raises(ValueError, match="1 to 4 of the model's 4 parameters, got size=5"):
        kind(5).check(4)
    with pytest.raises(ValueError, match=r"size must be >= 1, got 0\. It is the number of"):
        kind(0)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: Random(-1), "size must be >= 1, got -1"),
        (TypeError, lambda: Circular(2.5), "size must be an integer, got 2.5"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
