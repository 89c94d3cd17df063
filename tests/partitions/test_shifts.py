"""Changes of samples that depend on their client, against loops over clients and exact laws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax import partitions
from fljax.partitions import OwnedSamples

CLIENTS = 5
ROWS = 60
OWNERS = np.random.default_rng(0).integers(0, CLIENTS + 1, ROWS)  # some rows have no client
IMAGES = np.random.default_rng(1).normal(size=(ROWS, 4, 4, 2))
LABELS = np.random.default_rng(2).integers(0, 3, ROWS)
SAMPLES = OwnedSamples(jnp.asarray(IMAGES), jnp.asarray(LABELS), jnp.asarray(OWNERS), CLIENTS, 3)


def changed(shift, seed=0, samples=SAMPLES):
    shift.check(samples)
    return shift.apply(jax.random.key(seed), samples)


def many(shift, count, samples=SAMPLES):
    """The changed samples under many keys."""
    keys = jax.random.split(jax.random.key(3), count)
    return jax.jit(jax.vmap(lambda key: tuple(shift.apply(key, samples)[:2])))(keys)


SHIFTS = {
    "rotation": partitions.Rotation(),
    "noise": partitions.FeatureNoise(np.arange(CLIENTS) + 0.5),
    "style": partitions.Style(0.3, 0.2),
    "permuted features": partitions.PermutedFeatures(),
    "label noise": partitions.LabelNoise(0.9),
    "permuted labels": partitions.PermutedLabels(),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_rows_without_a_client_stay_as_they_are(name):
    after = changed(SHIFTS[name])
    alone = OWNERS == CLIENTS
    np.testing.assert_array_equal(after.features[alone], IMAGES[alone])
    np.testing.assert_array_equal(after.targets[alone], LABELS[alone])
    features_moved = not np.array_equal(after.features, IMAGES)
    assert features_moved or not np.array_equal(after.targets, LABELS)


@pytest.mark.parametrize("name", SHIFTS)
def test_compiled_shifts_are_the_plain_ones(name):
    plain = changed(SHIFTS[name], seed=4)
    compiled = jax.jit(lambda key: SHIFTS[name].apply(key, SAMPLES)[:2])(jax.random.key(4))
    np.testing.assert_allclose(compiled[0], plain.features, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(compiled[1], plain.targets)


def test_turned_images_are_those_of_the_loop_over_clients():
    quarters = [3, 0, 1, 2, 5]
    after = changed(partitions.Rotation(quarters))
    for k in range(CLIENTS):
        rows = k == OWNERS
        clients = [(IMAGES[rows], LABELS[rows])]
        expected = fl.data.rotated(clients, [90.0 * quarters[k]])[0][0]
        np.testing.assert_array_equal(after.features[rows], expected)


def test_noise_has_each_clients_deviation():
    deviation = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    moved = np.asarray(many(partitions.FeatureNoise(deviation), 300)[0]) - IMAGES
    for k in range(CLIENTS):
        noise = moved[:, k == OWNERS].ravel()
        assert noise.std() == pytest.approx(deviation[k], rel=0.02, abs=1e-12)
        if deviation[k]:
            assert stats.kstest(noise[:5000] / deviation[k], "norm").pvalue > 1e-3


def test_a_style_is_one_scale_and_one_offset_of_each_client():
    features = np.asarray(many(partitions.Style(0.3, 0.2), 2000)[0])
    scales, offsets = [], []
    for k in range(CLIENTS):
        rows = k == OWNERS
        x = IMAGES[rows].ravel()
        y = features[:, rows].reshape(2000, -1)
        scale, offset = np.linalg.lstsq(np.stack([x, np.ones_like(x)], 1), y.T, rcond=None)[0]
        np.testing.assert_allclose(np.outer(scale, x) + offset[:, None], y, atol=1e-9)
        scales.append(np.log(scale))
        offsets.append(offset)
    assert stats.kstest(np.ravel(scales) / 0.3, "norm").pvalue > 1e-3
    assert stats.kstest(np.ravel(offsets) / 0.2, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(scales[0], scales[1])[0, 1]) < 0.1


@pytest.mark.parametrize("groups", [None, 2, 1])
def test_features_of_a_group_have_one_order(groups):
    after = changed(partitions.PermutedFeatures(groups))
    orders = {}
    for row in np.flatnonzero(OWNERS < CLIENTS):
        before = IMAGES[row].ravel()
        now = np.asarray(after.features[row]).ravel()
        order = tuple(np.argsort(before)[np.searchsorted(np.sort(before), now)])
        np.testing.assert_array_equal(before[list(order)], now)
        orders.setdefault(OWNERS[row] % (groups or CLIENTS), set()).add(order)
    assert all(len(of_group) == 1 for of_group in orders.values())
    assert len(set.union(*orders.values())) == (groups or CLIENTS)


def test_wrong_labels_are_as_frequent_as_their_rate_and_equally_any_other():
    rate = np.array([0.0, 0.2, 0.5, 0.8, 1.0])
    targets = np.asarray(many(partitions.LabelNoise(rate), 1000)[1])
    wrong = targets != LABELS
    for k in range(CLIENTS):
        rows = k == OWNERS
        assert wrong[:, rows].mean() == pytest.approx(rate[k], abs=0.02)
    step = (targets - LABELS)[wrong] % 3
    assert set(step) == {1, 2}
    assert stats.binomtest(int((step == 1).sum()), len(step)).pvalue > 1e-3


@pytest.mark.parametrize("groups", [None, 2])
def test_classes_are_renamed_alike_within_a_group(groups):
    samples = SAMPLES._replace(targets=jnp.asarray(np.arange(ROWS) % 7), classes=7)
    after = changed(partitions.PermutedLabels(groups), samples=samples)
    names = {}
    for row in np.flatnonzero(OWNERS < CLIENTS):
        table = names.setdefault(OWNERS[row] % (groups or CLIENTS), {})
        new = int(after.targets[row])
        assert table.setdefault(row % 7, new) == new
    assert all(len(set(table.values())) == len(table) for table in names.values())
    assert len({tuple(sorted(table.items())) for table in names.values()}) == (groups or CLIENTS)


def test_a_problem_on_a_pool_has_the_shifted_samples_of_its_clients():
    x = IMAGES.reshape(ROWS, -1)

    def problem(*shifts, **settings):
        rule = partitions.Dirichlet(0.5)
        loss = fl.problems.Softmax(3)
        return fl.problems.from_pool(x, LABELS, loss, rule, 4, key=1, shifts=shifts, **settings)

    plain = problem()
    shifted = problem(partitions.FeatureNoise([0.0, 1.0, 0.0, 2.0]), partitions.LabelNoise(1.0))
    real = np.asarray(plain.weights > 0)
    np.testing.assert_array_equal(shifted.weights, plain.weights)  # the same partition
    moved = np.abs(np.asarray(shifted.features) - np.asarray(plain.features)).max(-1) > 0
    np.testing.assert_array_equal(moved & real, real & np.array([0, 1, 0, 1], bool)[:, None])
    assert np.all((np.asarray(shifted.targets) != np.asarray(plain.targets)) | ~real)
    # Held-out samples are seen in the same way.
    tested = problem(partitions.PermutedFeatures(), held_out=0.3)
    clean = problem(held_out=0.3)
    for part, before in ((tested, clean), (tested.test, clean.test)):
        np.testing.assert_allclose(
            np.sort(np.asarray(part.features), -1), np.sort(np.asarray(before.features), -1)
        )
        assert not np.array_equal(part.features, before.features)


def test_a_networks_pool_is_shifted():
    problem = fl.problems.Model.from_pool(
        fl.models.cnn(3, channels=[2], hidden=[4]),
        jax.random.key(0),
        IMAGES,
        LABELS,
        fl.problems.Softmax(3),
        partitions.IID(),
        clients=4,
        partition_key=1,
        shifts=partitions.Rotation(2),
    )
    first = problem.features.rows[0, 0]
    np.testing.assert_allclose(problem.features[0, 0], np.rot90(IMAGES[first], 2), rtol=1e-6)


def test_levels_of_noise_are_an_axis_of_the_grid():
    def scenario(key, level, rate):
        problem = fl.problems.from_pool(
            IMAGES.reshape(ROWS, -1),
            LABELS,
            fl.problems.Softmax(3),
            partitions.IID(),
            clients=4,
            key=key,
            shifts=(partitions.FeatureNoise(level), partitions.LabelNoise(rate)),
        )
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1), metrics=["train_error"])

    grid = {"level": [0.0, 30.0], "rate": [0.0, 0.5]}
    study = fl.sweep(scenario, rounds=3, seeds=2, grid=grid)
    errors = study.train_error.isel(round=-1).mean(["seed", "client"])
    assert errors.sel(level=30.0, rate=0.5) > errors.sel(level=0.0, rate=0.0)
    with pytest.raises(ValueError, match="rate must be finite and >= 0 and <= 1"):
        fl.sweep(scenario, rounds=3, grid={"level": [0.0], "rate": [0.5, 1.5]})


@fl.module
class Negated(partitions.Shift):
    """A shift of a user."""

    def apply(self, key, samples):
        sign = samples.of_owners(jnp.where(jnp.arange(samples.clients) % 2, -1.0, 1.0))
        return samples._replace(features=samples.over_features(sign) * samples.features)


def test_a_shift_may_be_a_users():
    after = changed(Negated())
    sign = np.append(np.where(np.arange(CLIENTS) % 2, -1, 1), 0)[OWNERS]
    np.testing.assert_array_equal(after.features, sign[:, None, None, None] * IMAGES)


FLAT = SAMPLES._replace(features=jnp.zeros((ROWS, 6)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: partitions.Rotation([0, 1]).check(SAMPLES), "quarters must be one number or one"),
        (lambda: partitions.Rotation(0.5), "quarters must be whole numbers"),
        (lambda: partitions.Rotation().check(FLAT), "features must be square images"),
        (lambda: partitions.FeatureNoise(-1.0), "deviation must be finite and >= 0"),
        (lambda: partitions.FeatureNoise([1.0, 2.0]).check(SAMPLES), "each of the 5 clients"),
        (
            lambda: partitions.FeatureNoise(1.0).check(
                SAMPLES._replace(features=jnp.zeros((ROWS, 2), np.uint8))
            ),
            "features must be floats",
        ),
        (lambda: partitions.Style(-0.1), "contrast must be finite and >= 0"),
        (lambda: partitions.Style([0.1, 0.2]), "contrast must be one number"),
        (lambda: partitions.PermutedFeatures(0), "groups must be >= 1"),
        (lambda: partitions.LabelNoise(1.1), "rate must be finite and >= 0 and <= 1"),
        (
            lambda: partitions.LabelNoise(0.1).check(SAMPLES._replace(classes=None)),
            "LabelNoise changes labels",
        ),
        (
            lambda: partitions.PermutedLabels().check(SAMPLES._replace(classes=2)),
            "targets must be finite and >= 0 and <= 1",
        ),
        (
            lambda: fl.problems.from_pool(
                IMAGES.reshape(ROWS, -1),
                LABELS,
                fl.problems.Softmax(3),
                partitions.Shared(partitions.IID(), 4),
                3,
                shifts=partitions.FeatureNoise(1.0),
            ),
            "take a partition without overlap",
        ),
        (
            lambda: fl.problems.from_pool(
                IMAGES.reshape(ROWS, -1),
                LABELS,
                fl.problems.Softmax(3),
                partitions.IID(),
                3,
                shifts=[3],
            ),
            "shifts must be an instance of",
        ),
        (partitions.Shift, "no method 'apply'"),
    ],
)
def test_bad_shifts_are_named(call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call()
