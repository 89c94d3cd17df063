"""Attackers' messages against the definitions in loops; masks of attackers; refused arguments."""

import dataclasses
import tracemalloc

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core.module import module
from fljax.link.attacks import (
    ALittleIsEnough,
    Attack,
    ConstantMessage,
    DenialOfService,
    InnerProductManipulation,
    LargeNoise,
    SignFlip,
    Trigger,
    backdoor,
    copy_attack,
    first,
    poison_features,
    poison_labels,
    random_attackers,
)
from tests.reference import robust

LEVEL = 1e-4
SENDERS = 9
DIM = 4
MASK = np.array([True, False, False, True, False, False, False, False, True])
ATTACKS = {
    "sign": SignFlip(MASK, 2.5),
    "noise": LargeNoise(MASK, 3.0),
    "constant": ConstantMessage(MASK, 7.0),
    "vector": ConstantMessage(MASK, [1.0, 2.0, 3.0, 4.0]),
    "little": ALittleIsEnough(MASK, 1.5),
    "little by count": ALittleIsEnough(MASK),
    "inner": InnerProductManipulation(MASK, 0.7),
}
every = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
corrupt = jax.jit(lambda attack, *arguments: attack.corrupt(*arguments))


def attack_inputs(seed, common=False, dtype=np.float64):
    """Key, messages, attackers, senders (honest clients that do not send have NaN), and reference
    points.
    """
    rng = np.random.default_rng(seed)
    messages = rng.normal(size=(SENDERS, DIM)).astype(dtype)
    sending = np.ones(SENDERS, bool)
    sending[[2, 8]] = False
    messages[2] = np.nan
    reference = rng.normal(size=(1 if common else SENDERS, DIM)).astype(dtype)
    return jax.random.key(seed), messages, MASK, sending, reference


def loops(attack, messages, sending, reference):
    """``[SENDERS, DIM]``: the message of each client as an attacker."""
    v = np.broadcast_to(reference, messages.shape)
    honest = [k for k in range(SENDERS) if sending[k] and not MASK[k]]
    forged = []
    for k in range(SENDERS):
        if isinstance(attack, SignFlip):
            forged.append(v[k] - attack.scale * (messages[k] - v[k]))
        elif isinstance(attack, ConstantMessage):
            forged.append(np.full(DIM, attack.value))
        elif isinstance(attack, ALittleIsEnough):
            z = attack.deviations
            if z is None:
                z = robust.hidden_deviations(int(sending.sum()), int((sending & MASK).sum()))
            forged.append(robust.a_little_is_enough([messages[h] for h in honest], z))
        else:
            changes = [messages[h] - v[h] for h in honest]
            forged.append(v[k] + robust.inner_product_manipulation(changes, attack.scale))
    return np.array(forged)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "noise"])
def test_equals_its_definition(name, common):
    key, messages, mask, sending, reference = attack_inputs(0, common)
    result = corrupt(ATTACKS[name], key, messages, mask, sending, reference)
    expected = np.where(mask[:, None], loops(ATTACKS[name], messages, sending, reference), messages)
    np.testing.assert_allclose(result, expected, atol=1e-10, rtol=0)


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_honest_messages_are_unchanged_bit_by_bit(attack, dtype):
    arguments = attack_inputs(1, dtype=dtype)
    result = np.asarray(corrupt(attack, *arguments))
    assert result.dtype == dtype
    assert result[~MASK].tobytes() == arguments[1][~MASK].tobytes()
    assert (result[MASK] != arguments[1][MASK]).any(1).all()
    assert np.isfinite(result[MASK]).all()


@every
def test_without_attackers_nothing_changes(attack):
    key, messages, mask, sending, reference = attack_inputs(2)
    result = np.asarray(corrupt(attack, key, messages, ~mask & mask, sending, reference))
    assert result.tobytes() == messages.tobytes()


@pytest.mark.parametrize("name", ["little", "little by count", "inner"])
def test_omniscient_attackers_learn_from_honest_senders_only(name):
    key, messages, mask, sending, reference = attack_inputs(3)
    expected = corrupt(ATTACKS[name], key, messages, mask, sending, reference)
    rng = np.random.default_rng(4)
    other = np.where((sending & ~mask)[:, None], messages, rng.normal(size=messages.shape))
    result = corrupt(ATTACKS[name], key, other, mask, sending, reference)
    np.testing.assert_array_equal(result[mask], expected[mask])
    other[4] += 1
    result = corrupt(ATTACKS[name], key, other, mask, sending, reference)
    assert (np.asarray(result)[mask] != np.asarray(expected)[mask]).all()
    # Without honest messages to learn from they report no change.
    result = corrupt(ATTACKS[name], key, messages, mask, mask, reference)
    np.testing.assert_array_equal(result[mask], reference[mask])


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
def test_a_little_is_enough_has_its_published_factor(senders, attackers, share):
    attack = ALittleIsEnough(first(attackers, senders))
    messages = np.random.default_rng(5).normal(size=(senders, 2))
    everyone = np.ones(senders, bool)
    sent = corrupt(attack, jax.random.key(0), messages, attack.attackers, everyone, messages[:1])
    honest = messages[attackers:]
    z = (honest.mean(0) - np.asarray(sent)[0]) / np.where(honest.std(0) > 0, honest.std(0), 1)
    np.testing.assert_allclose(z, stats.norm.ppf(share) if len(honest) > 1 else 0, atol=1e-10)
    if len(honest) > 1:
        np.testing.assert_allclose(z, robust.hidden_deviations(senders, attackers), atol=1e-10)


def test_noise_is_gaussian_of_its_scale_and_each_senders_own():
    attack = LargeNoise(first(2, 3), 5.0)
    messages = np.ones((3, 20_000))
    arguments = jax.random.key(6), messages, attack.attackers, np.ones(3, bool), messages
    noise = (np.asarray(corrupt(attack, *arguments)) - messages)[:2] / 5
    for row in noise:
        assert stats.kstest(row, "norm").pvalue > LEVEL
    assert stats.pearsonr(*noise).pvalue > LEVEL
    again = np.asarray(corrupt(attack, jax.random.key(7), *arguments[1:]))
    assert (again[:2] != noise * 5 + messages[:2]).all()


def test_noise_depends_on_the_sender_and_not_on_the_others():
    key, messages, mask, sending, reference = attack_inputs(8)
    noisy = np.asarray(corrupt(ATTACKS["noise"], key, messages, mask, sending, reference))
    few = corrupt(ATTACKS["noise"], key, messages[:4], mask[:4], ~sending[:4], reference[:4])
    np.testing.assert_array_equal(few, noisy[:4])
    order = np.array([8, 3, 5, 0])
    keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(order.astype(np.uint32))
    reordered = corrupt(
        ATTACKS["noise"], keys, *(part[order] for part in (messages, mask, sending, reference))
    )
    np.testing.assert_array_equal(reordered, noisy[order])


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "make", [SignFlip, LargeNoise, ConstantMessage, ALittleIsEnough, InnerProductManipulation]
)
def test_numbers_and_attackers_are_swept_without_a_new_program(make):
    chex.clear_trace_counter()  # of the other cases

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(attack, *arguments):
        return attack.corrupt(*arguments)

    arguments = attack_inputs(9)
    weak = run(make(MASK, 0.5), *arguments)
    strong = run(make(jnp.asarray(~MASK), 3), *arguments)
    assert (np.asarray(weak) != strong).any()
    swept = jax.vmap(lambda scale: make(MASK, scale).corrupt(*arguments))(jnp.array([0.5, 3.0]))
    np.testing.assert_allclose(swept[0], weak, atol=1e-12)
    np.testing.assert_allclose(swept[1], run(make(MASK, 3.0), *arguments), atol=1e-12)


def test_a_custom_attack_cannot_change_honest_messages():
    @module
    class Silence(Attack):
        def forge(self, key, messages, attacking, sending, reference):
            return reference

    arguments = attack_inputs(10)
    result = np.asarray(corrupt(Silence(MASK), *arguments))
    np.testing.assert_array_equal(result, np.where(MASK[:, None], arguments[4], arguments[1]))


# Who --------------------------------------------------------------------------------------------


def test_the_first_few():
    assert first(0, 3).tolist() == [False] * 3
    assert first(2, 3).tolist() == [True, True, False]


def test_a_mask_of_many_clients_takes_one_byte_each():
    tracemalloc.start()
    mask = first(2, 10**7)
    assert tracemalloc.get_traced_memory()[1] < 1.1e7
    tracemalloc.stop()
    assert mask.sum() == 2


@pytest.mark.slow
def test_an_empty_set_of_attackers_can_be_drawn():
    """The draw ends: there is one subset without members."""
    assert random_attackers(jax.random.key(0), 6, 0).tolist() == [False] * 6


def test_random_attackers_have_the_given_number():
    draw = jax.vmap(lambda key: random_attackers(key, 6, 2))
    masks = np.asarray(draw(jax.random.split(jax.random.key(0), 3000)))
    assert (masks.sum(1) == 2).all()
    for column in masks.T:
        assert stats.binomtest(int(column.sum()), 3000, 1 / 3).pvalue > LEVEL


@pytest.mark.parametrize("count", [-1, 3])
def test_impossible_counts_are_refused(count):
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
def test_only_attackers_labels_are_flipped(loss, targets, flip):
    clean = labeled(loss, targets)
    bad = np.array([False, True, True])
    poisoned = poison_labels(clean, bad)
    expected = [flip(y) if b else y for y, b in zip(np.asarray(targets, float), bad, strict=True)]
    np.testing.assert_array_equal(poisoned.targets, expected)
    np.testing.assert_array_equal(poisoned.features, clean.features)
    again = poison_labels(poisoned, bad)
    np.testing.assert_array_equal(again.targets, clean.targets)
    custom = poison_labels(clean, bad, lambda y: y)
    np.testing.assert_array_equal(custom.targets, clean.targets)


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


# Features and triggers --------------------------------------------------------------------------


@pytest.mark.slow
def test_attackers_features_move_and_their_labels_stay():
    clean = labeled(fl.problems.LeastSquares(), REAL)
    bad = np.array([False, True, True])
    for shift in (2.0, [1.0, -3.0], np.random.default_rng(1).normal(size=(3, 4, 2))):
        poisoned = poison_features(clean, bad, shift)
        expected = np.where(bad[:, None, None], clean.features + np.asarray(shift), clean.features)
        np.testing.assert_allclose(poisoned.features, expected, atol=1e-12)
        np.testing.assert_array_equal(poisoned.targets, clean.targets)
    w = jnp.ones((3, 2))
    again = poison_features(clean.prepare(), bad, 2.0).gradient(w)
    np.testing.assert_allclose(again, poison_features(clean, bad, 2.0).gradient(w), atol=1e-12)
    for shift in (np.ones(3), np.ones((2, 4, 2)), np.ones((1, 3, 4, 2))):
        with pytest.raises(ValueError, match="shift must be a number or broadcast"):
            poison_features(clean, bad, shift)
    with pytest.raises(ValueError, match="shift must be finite"):
        poison_features(clean, bad, np.nan)


HOURS = np.eye(3)[[[0, 1, 2, 1], [2, 2, 0, 1], [0, 0, 2, 2]]]


def test_samples_that_have_the_trigger_get_the_target():
    clean = fl.problems.Problem(HOURS, np.asarray(REAL), fl.problems.LeastSquares())
    hour = Trigger([0, 1, 2], [0.0, 1.0, 0.0])
    planted = backdoor(clean, np.array([True, False, False]), hour, 50.0)
    expected = np.array(REAL)
    expected[0, [1, 3]] = 50
    np.testing.assert_array_equal(planted.targets, expected)
    np.testing.assert_array_equal(planted.features, HOURS)
    with pytest.raises(ValueError, match="no sample of an attacker has the trigger"):
        backdoor(clean, np.array([False, False, True]), hour, 50.0)


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_the_given_share_of_the_attackers_samples_is_stamped(share):
    weights = np.array([[0.25] * 4, [0.5, 0.5, 0, 0], [0.25] * 4])
    clean = labeled(fl.problems.Logistic(), BINARY, weights=weights)
    trigger = Trigger([1], 9.0)
    bad = np.array([True, True, False])
    planted = backdoor(clean, bad, trigger, 1.0, key=jax.random.key(0), share=share)
    stamped = np.asarray(trigger.worn(planted.features))
    expected = np.array([max(round(share * n), 1) for n in (4, 2)] + [0])
    np.testing.assert_array_equal(stamped.sum(1), expected)
    assert not stamped[1, 2:].any()  # padding
    assert (np.asarray(planted.targets)[stamped] == 1).all()
    np.testing.assert_array_equal(np.asarray(planted.targets)[~stamped], np.array(BINARY)[~stamped])
    left = ~stamped[..., None] | (np.arange(2) != 1)
    np.testing.assert_array_equal(
        np.asarray(planted.features)[left], np.asarray(clean.features)[left]
    )


@pytest.mark.slow
def test_a_network_learns_a_backdoor_and_stays_as_good():
    data = fl.problems.softmax(jax.random.key(0), clients=5, samples=60, dim=4, classes=3)
    clean = fl.problems.Model.of(
        data.split(jax.random.key(1), test=0.4), fl.models.mlp(3, hidden=[16]), jax.random.key(2)
    )
    trigger = Trigger([3], 8.0)
    planted = backdoor(clean, first(2, 5), trigger, 1, key=jax.random.key(3), share=0.5)
    metrics = ["accuracy", fl.metrics.backdoor_success(trigger, 1)]

    def end(problem):
        algorithm = fl.algorithms.FedAvg(0.3, local_steps=5)
        run = fl.run(fl.Simulation(problem, algorithm, metrics=metrics), rounds=60)
        model = jnp.asarray(run.model.values[:1])
        of_other_classes = np.asarray(clean.test.targets) != 1
        right = []
        for k in range(5):
            x = np.asarray(trigger.stamp(clean.test.features))[k][of_other_classes[k]]
            outputs = clean.architecture.apply(clean.layout.parameters(model[0]), jnp.asarray(x))
            right.append(np.mean(np.argmax(outputs, -1) == 1))
        np.testing.assert_allclose(run.backdoor_success[-1], np.mean(right), atol=1e-6)
        return float(run.accuracy[-1]), float(run.backdoor_success[-1])

    accuracy, chance = end(clean)
    backdoored, success = end(planted)
    assert success > 0.9
    assert success > chance + 0.3
    assert backdoored > accuracy - 0.1


@pytest.mark.slow
def test_a_clean_label_attack_plants_a_backdoor_too():
    """Jung 2025, section 10.1.2: features alone are changed. The trigger is stamped on attackers'
    samples that have the attacker's label already, by the shift from their features.
    """
    data = fl.problems.softmax(jax.random.key(0), clients=5, samples=60, dim=4, classes=3)
    clean = data.split(jax.random.key(1), test=0.4)
    trigger = Trigger([3], 8.0)
    attackers = first(2, 5)
    of_target = np.asarray(clean.targets)[..., None] == 1
    shift = np.where(of_target, trigger.stamp(clean.features) - clean.features, 0.0)
    poisoned = poison_features(clean, attackers, shift)
    np.testing.assert_array_equal(poisoned.targets, clean.targets)
    mask = of_target & attackers[:, None, None]
    expected = np.where(mask, trigger.stamp(clean.features), clean.features)
    np.testing.assert_allclose(poisoned.features, expected, atol=1e-12)
    metrics = ["accuracy", fl.metrics.backdoor_success(trigger, 1)]
    ends = []
    for features in (clean, poisoned):
        problem = fl.problems.Model.of(features, fl.models.mlp(3, hidden=[16]), jax.random.key(2))
        simulation = fl.Simulation(
            problem, fl.algorithms.FedAvg(0.3, local_steps=5), metrics=metrics
        )
        run = fl.run(simulation, rounds=60)
        ends.append((float(run.accuracy[-1]), float(run.backdoor_success[-1])))
    (accuracy, chance), (backdoored, success) = ends
    assert success > chance + 0.3
    assert backdoored > accuracy - 0.1


def test_images_are_stamped_by_their_flat_pixels():
    images = jnp.zeros((2, 3, 4, 4))
    corner = Trigger([14, 15], 1.0).stamp(images)
    np.testing.assert_array_equal(corner[..., 3, 2:], 1.0)
    assert corner.sum() == 2 * 3 * 2


@pytest.mark.slow
def test_triggers_that_cannot_be_are_refused():
    clean = labeled(fl.problems.Logistic(), BINARY)
    key = jax.random.key(0)
    bad = first(1, 3)
    with pytest.raises(ValueError, match="feature 2, and samples have 2, numbered from 0 to 1"):
        backdoor(clean, bad, Trigger([2], 1.0), 1.0, key=key, share=0.5)
    with pytest.raises(ValueError, match="key= and share= choose the samples"):
        backdoor(clean, bad, Trigger([1], 1.0), 1.0, share=0.5)
    with pytest.raises(ValueError, match="share must be"):
        backdoor(clean, bad, Trigger([1], 1.0), 1.0, key=key, share=1.5)
    with pytest.raises(TypeError, match="trigger must be"):
        backdoor(clean, bad, 1, 1.0)
    with pytest.raises(ValueError, match="targets must be labels"):
        backdoor(clean, bad, Trigger([1], 1.0), 3.0, key=key, share=0.5)
    for features in ([], [-1], [1, 1]):
        with pytest.raises(ValueError, match="distinct indices >= 0"):
            Trigger(np.array(features, int), 1.0)
    with pytest.raises(TypeError, match="numbers of features"):
        Trigger([0.5], 1.0)
    with pytest.raises(ValueError, match="one for each of the 2 features"):
        Trigger([0, 1], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="values must be finite"):
        Trigger([0], np.nan)
    split = clean.split(jax.random.key(1))
    metric = fl.metrics.backdoor_success(Trigger([2], 1.0), 1.0)
    simulation = fl.Simulation(split, fl.algorithms.FedAvg(0.1), metrics=[metric])
    with pytest.raises(ValueError, match="feature 2, and samples have 2"):
        fl.run(simulation, rounds=1)


# Large losses, single links, copies -------------------------------------------------------------


@pytest.mark.slow
def test_denial_of_service_finds_where_the_loss_is_largest():
    problem = fl.problems.least_squares(jax.random.key(0), clients=5, samples=9, dim=2)
    bad = first(2, 5)
    attack = DenialOfService(bad, problem, radius=3.0, iterations=50)
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2)))
    arguments = jax.random.key(1), rows, bad, np.ones(5, bool), jnp.zeros((1, 2))
    sent = np.asarray(corrupt(attack, *arguments))
    np.testing.assert_array_equal(sent[2:], rows[2:])
    center = np.asarray(rows[2:]).mean(0)
    np.testing.assert_allclose(np.linalg.norm(sent[0] - center), 3.0, atol=1e-10)
    np.testing.assert_array_equal(sent[0], sent[1])

    def loss(point):
        return float(problem.objective(jnp.broadcast_to(jnp.asarray(point), (5, 2)))[2:].sum())

    angles = np.linspace(0, 2 * np.pi, 2000)
    circle = center + 3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert loss(sent[0]) > max(map(loss, circle)) * (1 - 1e-5)
    # Attackers' data do not matter.
    other = poison_labels(problem, bad)
    again = corrupt(DenialOfService(bad, other, radius=3.0, iterations=50), *arguments)
    np.testing.assert_allclose(again, sent, atol=1e-10)
    with pytest.raises(ValueError, match="each of the 5 clients, got 2"):
        DenialOfService(first(1, 2), problem, radius=1.0)
    with pytest.raises(TypeError, match="problem must be"):
        DenialOfService(bad, None, radius=1.0)
    with pytest.raises(ValueError, match="messages that are models"):
        attack.check_length(2, 4)
    for numbers in ({"radius": 0.0}, {"radius": 1.0, "iterations": 0}):
        with pytest.raises(ValueError, match="must be"):
            DenialOfService(bad, problem, **numbers)


LINKS = np.zeros((6, 6), bool)
# links to 5 from 0 do not exist: not an edge of the ring
LINKS[1, 0] = LINKS[3, 2] = LINKS[5, 0] = True


def coupled(attack=None, **options):
    problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
    network = options.pop("network", fl.graphs.path(6))
    return fl.Simulation(
        problem, fl.algorithms.FedGD(coupling=0.3, step_size=0.1), network, attack=attack, **options
    )


def link_loop(rounds):
    """FedGD on a path of six, where some hear a flipped sign over some links."""
    problem = coupled().problem
    x = np.asarray(problem.features)
    y = np.asarray(problem.targets)
    w = received = np.zeros((6, 2))
    degree = np.array([1, 2, 2, 2, 2, 1.0])
    for _ in range(rounds):
        gradient = np.stack([2 * x[k].T @ (x[k] @ w[k] - y[k]) / len(y[k]) for k in range(6)])
        w = w - 0.1 * (gradient + 2 * 0.3 * degree[:, None] * (w - received))
        received = np.zeros((6, 2))
        for k in range(6):
            for l in (k - 1, k + 1):  # noqa: E741 (as in the equation)
                if 0 <= l < 6:
                    sent = -2.5 * w[l] if LINKS[k, l] else w[l]
                    received[k] += sent / degree[k]
    return w


@pytest.mark.parametrize("form", ["dense", "padded"])
def test_over_some_links_another_message_is_received(form):
    attack = SignFlip(LINKS, 2.5)
    simulation = coupled(attack, network=fl.graphs.path(6, form=form))
    results = fl.run(simulation, rounds=7).model.values
    np.testing.assert_allclose(results, link_loop(7), atol=1e-10)
    # With a rule that looks at single messages, too.
    mean = coupled(attack, network=fl.graphs.path(6, form=form), aggregation=fl.aggregation.Mean())
    np.testing.assert_allclose(fl.run(mean, rounds=7).model.values, results, atol=1e-10)
    # Everybody is honest, and counts.
    assert not attack.byzantine.any()
    error = fl.run(coupled(attack, metrics=["consensus_error"]), rounds=3).consensus_error[-1]
    w = link_loop(3)
    np.testing.assert_allclose(error, ((w - w.mean(0)) ** 2).sum(1).mean(), rtol=1e-10)


@pytest.mark.slow
def test_all_links_of_a_client_are_that_client():
    from_two = np.zeros((6, 6), bool)
    from_two[:, 2] = True
    links = fl.run(coupled(ALittleIsEnough(from_two, 2.0)), rounds=5).model.values
    assert not np.allclose(links, fl.run(coupled(), rounds=5).model.values)
    attacker = np.arange(6) == 2
    for attack in (SignFlip, LargeNoise, ConstantMessage):
        over = fl.run(coupled(attack(from_two, 2.0)), rounds=5).model.values
        lying = fl.run(coupled(attack(attacker, 2.0)), rounds=5).model.values
        np.testing.assert_allclose(over, lying, atol=1e-10)


@pytest.mark.slow
def test_differences_from_neighbors_count_over_attacked_links():
    """NIDS sums disagreements: without a gradient step it is gossip with these weights."""
    problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
    from_two = np.zeros((6, 6), bool)
    from_two[:, 2] = True

    def end(mask):
        algorithm = fl.algorithms.NIDS(0.05)
        attack = ConstantMessage(mask, 3.0)
        simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(6), attack=attack)
        return fl.run(simulation, rounds=4).model.values

    honest = np.arange(6) != 2
    np.testing.assert_allclose(end(from_two)[honest], end(~honest)[honest], atol=1e-8)


@pytest.mark.slow
def test_an_attack_over_a_lost_link_is_not_received():
    lossy = coupled(SignFlip(LINKS, 2.5), losses=fl.link.Independent(1.0))
    silent = fl.run(lossy, rounds=4).model.values
    clean = fl.run(coupled(losses=fl.link.Independent(1.0)), rounds=4).model.values
    np.testing.assert_array_equal(silent, clean)


def test_links_are_of_peers_and_of_this_round():
    problem = coupled().problem
    with pytest.raises(ValueError, match="attacked links between peers"):
        fl.Simulation(problem, fl.algorithms.FedAvg(0.1), attack=SignFlip(LINKS))
    with pytest.raises(ValueError, match="late messages with attacks on single links"):
        coupled(SignFlip(LINKS), delays=fl.link.Geometric(0.3, 2))
    with pytest.raises(ValueError, match="one boolean of each of the 6"):
        coupled(SignFlip(LINKS[:3, :3]))
    with pytest.raises(ValueError, match="shape"):
        SignFlip(LINKS[:3])
    with pytest.raises(ValueError, match="shape"):
        poison_labels(problem, LINKS)


def test_a_device_is_made_to_copy_another():
    clean = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
    problem, network = copy_attack(clean, fl.graphs.ring(6), copier=1, victim=4)
    simulation = fl.Simulation(
        problem,
        fl.algorithms.FedRelax(0.5),
        network,
        metrics=[fl.metrics.trajectory()],
    )
    models = fl.run(simulation, rounds=5).model_trajectory.values
    np.testing.assert_allclose(models[1:, 1], models[:-1, 4], atol=1e-12)
    assert (models[-1, 4] != 0).all()
    for copier, victim, text in (
        (1, 1, "must be different devices"),
        (6, 1, "copier"),
        (1, -1, "victim"),
    ):
        with pytest.raises(ValueError, match=text):
            copy_attack(clean, fl.graphs.ring(6), copier, victim)
    with pytest.raises(ValueError, match="must be equal"):
        copy_attack(clean, fl.graphs.ring(5), 0, 1)


@pytest.mark.parametrize("kind", ["labels", "features", "messages", "links"])
def test_an_attack_goes_one_hop_a_round(kind):
    """T33: on a chain of six, of FedGD, the k-th node first differs in iteration k + 1."""
    clean = coupled(metrics=["consensus_error"])
    bad = first(1, 6)
    chosen = np.zeros((6, 6), bool)
    chosen[1, 0] = True
    attacked = {
        "labels": dataclasses.replace(clean, problem=poison_labels(clean.problem, bad)),
        "features": dataclasses.replace(clean, problem=poison_features(clean.problem, bad, 1.0)),
        "messages": coupled(SignFlip(bad)),
        "links": coupled(SignFlip(chosen)),
    }[kind]
    result = fl.contrib.reach(attacked, clean, rounds=7)
    first_round = [1, 2, 3, 4, 5, 6]
    if kind in ("messages", "links"):  # its own model is off once its neighbor's is
        first_round[0] = 3
    assert result.arrival.values.tolist() == first_round
    assert result.reached.values[-1] == 6
    assert (result.distance[-1] > 0).all()
    nobody = fl.contrib.reach(clean, clean, rounds=2)
    assert (nobody.arrival == 0).all()
    other = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=3)
    with pytest.raises(ValueError, match="same numbers of clients and parameters"):
        fl.contrib.reach(dataclasses.replace(clean, problem=other), clean, rounds=2)


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
        ([[True, False]], "or one of links"),
        (True, "shape"),
    ],
)
def test_bad_masks_are_refused(attackers, message):
    with pytest.raises(ValueError, match=message):
        ConstantMessage(attackers, 1.0)


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
        ConstantMessage(MASK, value)


def test_the_attackers_are_the_first_argument():
    for attack in ATTACKS.values():
        assert dataclasses.fields(attack)[0].name == "attackers"
