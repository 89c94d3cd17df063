"""What attackers say, against the definitions in loops; who is one; what is refused."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._module import module
from fljax.attacks import (
    ALittleIsEnough,
    Attack,
    Constant,
    InnerProductManipulation,
    LargeNoise,
    SignFlip,
    first,
    poison_labels,
    random_attackers,
)
from tests.reference import robust

LEVEL = 1e-4
SENDERS, DIM = 9, 4
MASK = np.array([True, False, False, True, False, False, False, False, True])
ATTACKS = {
    "sign": SignFlip(MASK, 2.5),
    "noise": LargeNoise(MASK, 3.0),
    "constant": Constant(MASK, 7.0),
    "vector": Constant(MASK, [1.0, 2.0, 3.0, 4.0]),
    "little": ALittleIsEnough(MASK, 1.5),
    "little by count": ALittleIsEnough(MASK),
    "inner": InnerProductManipulation(MASK, 0.7),
}
every = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
say = jax.jit(lambda attack, *given: attack.say(*given))


def told(seed, common=False, dtype=np.float64):
    """Key, messages, attackers, who sends (NaN stands where an honest one does not), around."""
    rng = np.random.default_rng(seed)
    messages = rng.normal(size=(SENDERS, DIM)).astype(dtype)
    sending = np.ones(SENDERS, bool)
    sending[[2, 8]] = False
    messages[2] = np.nan
    around = rng.normal(size=(1 if common else SENDERS, DIM)).astype(dtype)
    return jax.random.key(seed), messages, MASK, sending, around


def loops(attack, messages, sending, around):
    """``[SENDERS, DIM]`` of what each would say as an attacker."""
    v = np.broadcast_to(around, messages.shape)
    honest = [k for k in range(SENDERS) if sending[k] and not MASK[k]]
    lies = []
    for k in range(SENDERS):
        if isinstance(attack, SignFlip):
            lies.append(v[k] - attack.scale * (messages[k] - v[k]))
        elif isinstance(attack, Constant):
            lies.append(np.full(DIM, attack.value))
        elif isinstance(attack, ALittleIsEnough):
            z = attack.deviations
            if z is None:
                z = robust.hidden_deviations(int(sending.sum()), int((sending & MASK).sum()))
            lies.append(robust.a_little_is_enough([messages[h] for h in honest], z))
        else:
            changes = [messages[h] - v[h] for h in honest]
            lies.append(v[k] + robust.inner_product_manipulation(changes, attack.scale))
    return np.array(lies)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "noise"])
def test_equals_its_definition(name, common):
    key, messages, mask, sending, around = told(0, common)
    result = say(ATTACKS[name], key, messages, mask, sending, around)
    expected = np.where(mask[:, None], loops(ATTACKS[name], messages, sending, around), messages)
    np.testing.assert_allclose(result, expected, atol=1e-10, rtol=0)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_honest_are_left_as_they_are_bit_by_bit(attack, dtype):
    given = told(1, dtype=dtype)
    result = np.asarray(say(attack, *given))
    assert result.dtype == dtype
    assert result[~MASK].tobytes() == given[1][~MASK].tobytes()
    assert (result[MASK] != given[1][MASK]).any(1).all()
    assert np.isfinite(result[MASK]).all()


@every
def test_without_attackers_nothing_changes(attack):
    key, messages, mask, sending, around = told(2)
    result = np.asarray(say(attack, key, messages, ~mask & mask, sending, around))
    assert result.tobytes() == messages.tobytes()


@pytest.mark.parametrize("name", ["little", "little by count", "inner"])
def test_omniscient_attackers_learn_from_honest_senders_only(name):
    key, messages, mask, sending, around = told(3)
    expected = say(ATTACKS[name], key, messages, mask, sending, around)
    rng = np.random.default_rng(4)
    other = np.where((sending & ~mask)[:, None], messages, rng.normal(size=messages.shape))
    result = say(ATTACKS[name], key, other, mask, sending, around)
    np.testing.assert_array_equal(result[mask], expected[mask])
    other[4] += 1
    result = say(ATTACKS[name], key, other, mask, sending, around)
    assert (np.asarray(result)[mask] != np.asarray(expected)[mask]).all()
    # With nobody to learn from they say that nothing changed.
    result = say(ATTACKS[name], key, messages, mask, mask, around)
    np.testing.assert_array_equal(result[mask], around[mask])


@pytest.mark.parametrize(
    ("senders", "attackers", "share"),
    [
        (50, 24, 24 / 26),  # s = 2, as in the paper's section 3
        (50, 12, 24 / 38),
        (51, 12, 25 / 39),
        (10, 1, 0.5),  # 4 / 9 would be on the other side of the mean
        (10, 7, 2 / 3),  # a majority
        (4, 3, 0.5),
    ],
)
def test_how_far_a_little_is(senders, attackers, share):
    attack = ALittleIsEnough(first(attackers, senders))
    messages = np.random.default_rng(5).normal(size=(senders, 2))
    everyone = np.ones(senders, bool)
    said = say(attack, jax.random.key(0), messages, attack.attackers, everyone, messages[:1])
    honest = messages[attackers:]
    z = (honest.mean(0) - np.asarray(said)[0]) / np.where(honest.std(0) > 0, honest.std(0), 1)
    np.testing.assert_allclose(z, stats.norm.ppf(share) if len(honest) > 1 else 0, atol=1e-10)
    if len(honest) > 1:
        np.testing.assert_allclose(z, robust.hidden_deviations(senders, attackers), atol=1e-10)


def test_noise_is_gaussian_of_its_scale_and_each_senders_own():
    attack = LargeNoise(first(2, 3), 5.0)
    messages = np.ones((3, 20_000))
    given = jax.random.key(6), messages, attack.attackers, np.ones(3, bool), messages
    noise = (np.asarray(say(attack, *given)) - messages)[:2] / 5
    for row in noise:
        assert stats.kstest(row, "norm").pvalue > LEVEL
    assert stats.pearsonr(*noise).pvalue > LEVEL
    again = np.asarray(say(attack, jax.random.key(7), *given[1:]))
    assert (again[:2] != noise * 5 + messages[:2]).all()


def test_noise_depends_on_the_sender_and_not_on_the_others():
    key, messages, mask, sending, around = told(8)
    whole = np.asarray(say(ATTACKS["noise"], key, messages, mask, sending, around))
    few = say(ATTACKS["noise"], key, messages[:4], mask[:4], ~sending[:4], around[:4])
    np.testing.assert_array_equal(few, whole[:4])
    order = np.array([8, 3, 5, 0])
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(order.astype(np.uint32))
    some = say(ATTACKS["noise"], keys, *(part[order] for part in (messages, mask, sending, around)))
    np.testing.assert_array_equal(some, whole[order])


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "make", [SignFlip, LargeNoise, Constant, ALittleIsEnough, InnerProductManipulation]
)
def test_numbers_and_attackers_are_swept_without_a_new_program(make):
    chex.clear_trace_counter()  # of the other cases

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(attack, *given):
        return attack.say(*given)

    given = told(9)
    one, two = run(make(MASK, 0.5), *given), run(make(jnp.asarray(~MASK), 3), *given)
    assert (np.asarray(one) != two).any()
    swept = jax.vmap(lambda scale: make(MASK, scale).say(*given))(jnp.array([0.5, 3.0]))
    np.testing.assert_allclose(swept[0], one, atol=1e-12)
    np.testing.assert_allclose(swept[1], run(make(MASK, 3.0), *given), atol=1e-12)


def test_one_of_your_own_cannot_touch_the_honest():
    @module
    class Silence(Attack):
        def lie(self, key, messages, attacking, sending, around):
            return around

    given = told(10)
    result = np.asarray(say(Silence(MASK), *given))
    np.testing.assert_array_equal(result, np.where(MASK[:, None], given[4], given[1]))


# Who --------------------------------------------------------------------------------------------


def test_the_first_few():
    assert first(0, 3).tolist() == [False] * 3
    assert first(2, 3).tolist() == [True, True, False]


@pytest.mark.slow
def test_random_attackers_are_so_many_and_anyone():
    draw = jax.vmap(lambda key: random_attackers(key, 6, 2))
    masks = np.asarray(draw(jax.random.split(jax.random.key(0), 3000)))
    assert (masks.sum(1) == 2).all()
    for column in masks.T:
        assert stats.binomtest(int(column.sum()), 3000, 1 / 3).pvalue > LEVEL


@pytest.mark.parametrize("count", [-1, 3])
def test_impossible_counts(count):
    with pytest.raises(ValueError, match="count must"):
        first(count, 3)
    with pytest.raises(ValueError, match="count must"):
        random_attackers(jax.random.key(0), 3, count)


# Wrong labels -----------------------------------------------------------------------------------


def labeled(loss, targets, **kwargs):
    features = np.random.default_rng(11).normal(size=(3, 4, 2))
    return fl.problems.Problem(features, np.asarray(targets), loss, **kwargs)


BINARY = [[1, -1, 1, 1], [-1, -1, 1, 1], [1, 1, 1, -1]]
CLASSES = [[0, 1, 2, 3], [4, 0, 1, 1], [2, 2, 2, 0]]
REAL = [[0.5, -1.0, 2.0, 0.0], [3.0, 1.0, 1.0, 1.0], [7.0, 8.0, 9.0, -9.0]]
FLIPPED = [
    (fl.problems.Logistic(), BINARY, lambda y: -y),
    (fl.problems.Softmax(5), CLASSES, lambda y: 4 - y),
    (fl.problems.LeastSquares(), REAL, lambda y: -y),
    (fl.problems.Huber(), REAL, lambda y: -y),
]


@pytest.mark.parametrize(("loss", "targets", "flip"), FLIPPED)
def test_attackers_labels_are_flipped_and_no_others(loss, targets, flip):
    clean = labeled(loss, targets)
    bad = np.array([False, True, True])
    poisoned = poison_labels(clean, bad)
    expected = [flip(y) if b else y for y, b in zip(np.asarray(targets, float), bad, strict=True)]
    np.testing.assert_array_equal(poisoned.targets, expected)
    np.testing.assert_array_equal(poisoned.features, clean.features)
    again = poison_labels(poisoned, bad)
    np.testing.assert_array_equal(again.targets, clean.targets)
    given = poison_labels(clean, bad, lambda y: y)
    np.testing.assert_array_equal(given.targets, clean.targets)


@pytest.mark.slow
def test_a_prepared_problem_forgets_its_clean_targets():
    clean = labeled(fl.problems.LeastSquares(), REAL)
    bad = first(1, 3)
    poisoned = poison_labels(clean.prepare(), bad)
    w = np.random.default_rng(12).normal(size=(3, 2))
    expected = poison_labels(clean, bad).gradient(jnp.asarray(w))
    np.testing.assert_allclose(poisoned.gradient(jnp.asarray(w)), expected, atol=1e-12)
    assert (np.asarray(clean.gradient(jnp.asarray(w)))[0] != np.asarray(expected)[0]).all()
    pooled = poisoned.statistics.pooled.targets.reshape(3, 4)
    np.testing.assert_array_equal(pooled, poisoned.targets)


def test_labels_are_poisoned_inside_a_scenario():
    clean = labeled(fl.problems.Logistic(), BINARY)

    def targets(key):
        return poison_labels(clean, random_attackers(key, 3, 1)).targets

    result = np.asarray(jax.jit(jax.vmap(targets))(jax.random.split(jax.random.key(0), 20)))
    assert ((result != np.array(BINARY)).all(2).sum(1) == 1).all()
    assert ((result != np.array(BINARY)).any(2).sum(1) == 1).all()


def test_labels_that_the_loss_does_not_know_are_refused():
    with pytest.raises(ValueError, match="targets must be labels"):
        poison_labels(labeled(fl.problems.Softmax(5), CLASSES), first(1, 3), lambda y: y + 3)


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("attackers", [None, [0, 3], [1.0, 0.5], 2, "all"])
def test_a_mask_is_of_booleans(attackers):
    with pytest.raises(TypeError, match=r"attackers must be booleans.*first"):
        SignFlip(attackers)
    with pytest.raises(TypeError, match="attackers must be booleans"):
        poison_labels(labeled(fl.problems.Logistic(), BINARY), attackers)


@pytest.mark.parametrize(
    ("attackers", "message"),
    [
        ([True, True], "all 2 clients"),
        (jnp.ones(4, bool), "all 4 clients"),
        ([[True, False]], "shape"),
        (True, "shape"),
    ],
)
def test_bad_masks_are_refused(attackers, message):
    with pytest.raises(ValueError, match=message):
        Constant(attackers, 1.0)


def test_a_mask_of_another_network_is_refused():
    SignFlip(MASK).check(SENDERS)
    with pytest.raises(ValueError, match="9"):
        SignFlip(MASK).check(8)
    with pytest.raises(ValueError, match="3 clients"):
        poison_labels(labeled(fl.problems.Logistic(), BINARY), first(1, 4))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (SignFlip, "scale"),
        (LargeNoise, "scale"),
        (InnerProductManipulation, "scale"),
        (ALittleIsEnough, "deviations"),
    ],
)
@pytest.mark.parametrize("number", [0.0, -1.0, np.nan, np.inf])
def test_scales_are_positive(make, field, number):
    with pytest.raises(ValueError, match=f"{field} must be finite and > 0"):
        make(MASK, number)


@pytest.mark.parametrize("value", [np.nan, [1.0, np.inf], [[1.0]]])
def test_a_constant_is_a_finite_vector(value):
    with pytest.raises(ValueError, match="value must be"):
        Constant(MASK, value)


def test_every_reference_can_be_cited():
    for attack in ATTACKS.values():
        assert attack.reference in fl.citation(attack)
        assert dataclasses.fields(attack)[0].name == "attackers"
    assert "Tolpegin" in fl.citation("tolpegin2020")
