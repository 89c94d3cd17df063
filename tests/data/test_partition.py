import contextlib
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import fljax as fl
from fljax.data import (
    SIMILAR_ORGANS,
    SINGLE_DIGITS,
    TRIPLETS,
    Images,
    binary_tasks,
    by_label,
    by_user,
    detectors,
    dirichlet,
    dirichlet_sizes,
    few_shot,
    iid,
    mnist,
    organamnist,
    power_law,
)
from fljax.data.images import DISSIMILAR_ORGANS
from fljax.problems import Logistic, NoRegularizer, SquaredL2, from_clients, random_clusters

TASKS = (((1, 2), (3,)), ((2,), (3, 4)), ((4,), (1, 2)))  # sides of different numbers
CLASSES = [[*a, *b] for a, b in TASKS]
TEST_OFFSET = 10_000  # numbers of test images


def numbered(numbers):
    """Images of three pixels that stay recognizable under any scaling."""
    pixels = np.stack([numbers % 250, numbers // 250, np.full_like(numbers, 250)], axis=1)
    return pixels.astype(np.uint8)[:, :, None]


def number_of(features):
    """Their numbers again; -1 for a row of zeros."""
    features = np.asarray(features, np.float64)
    scale = np.where(features[..., 2] > 0, features[..., 2], np.inf) / 250
    low = np.rint(features[..., 0] / scale)
    high = np.rint(features[..., 1] / scale)
    return np.where(features[..., 2] > 0, low + 250 * high, -1).astype(int)


@pytest.fixture(scope="module")
def pool():
    """Classes 0 to 5 of 30, 35, ... images in random order, and 10, 12, ... to test."""
    rng = np.random.default_rng(0)
    train = rng.permutation(np.repeat(np.arange(6), 30 + 5 * np.arange(6))).astype(np.uint8)
    test = rng.permutation(np.repeat(np.arange(6), 10 + 2 * np.arange(6))).astype(np.uint8)
    return Images(
        "numbers",
        numbered(np.arange(len(train))),
        train,
        numbered(TEST_OFFSET + np.arange(len(test))),
        test,
        tuple("abcdef"),
        "made up",
    )


CLUSTER = np.array([0, 1, 2, 2, 1, 0, 0])


def draw(key, pool, **change):
    settings = {"tasks": TASKS, "cluster": CLUSTER, "samples": (2, 4), "test": 20} | change
    return binary_tasks(key, pool, **settings)


@pytest.fixture(scope="module")
def problem(pool):
    return draw(jax.random.key(0), pool)


def sizes_of(problem):
    return np.rint(1 / np.asarray(problem.influence)).astype(int)


# Tasks of clusters --------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_client_has_as_many_of_each_class_in_the_listed_order(pool, problem):
    numbers = number_of(problem.features)
    targets = np.asarray(problem.targets)
    assert numbers.shape == (7, 12)
    for k, size in enumerate(sizes_of(problem)):
        listed = CLASSES[CLUSTER[k]] * (size // 3)
        assert size in (6, 9, 12)
        assert pool.train_labels[numbers[k, :size]].tolist() == listed
        second = TASKS[CLUSTER[k]][1]
        assert targets[k, :size].tolist() == [1 if c in second else -1 for c in listed]
        assert np.all(numbers[k, size:] == -1)
        assert np.all(targets[k, size:] == 0)
    assert len(set(sizes_of(problem))) > 1


@pytest.mark.slow
def test_weights_are_equal_and_sum_to_one(problem):
    weights = np.asarray(problem.weights)
    np.testing.assert_allclose(weights.sum(1), 1)
    for row, size in zip(weights, sizes_of(problem), strict=True):
        np.testing.assert_allclose(row, np.where(np.arange(12) < size, 1 / size, 0))


@pytest.mark.slow
def test_no_image_is_dealt_twice(pool):
    """Over all clients, also when the smallest class is used up."""
    for seed in range(5):
        problem = draw(jax.random.key(seed), pool, samples=(5, 5))
        numbers = number_of(problem.features).ravel()
        assert len(np.unique(numbers)) == 7 * 15
        assert numbers.max() < TEST_OFFSET


def test_all_images_are_dealt_equally_often(pool):
    """To each client: class 1 has 35 images, 4,000 draws of two."""
    keys = jax.random.split(jax.random.key(1), 4000)
    deal = jax.jit(jax.vmap(lambda key: draw(key, pool, samples=(2, 2)).features))
    numbers = number_of(deal(keys))  # [seeds, clients, rows]
    for client in (0, 6):
        for row in (0, 3):
            assert np.all(pool.train_labels[numbers[:, client, row]] == 1)
            _, counts = np.unique(numbers[:, client, row], return_counts=True)
            assert len(counts) == 35
            chi_square = np.sum((counts - 4000 / 35) ** 2) / (4000 / 35)
            assert chi_square < 73  # one in ten thousand, 34 degrees of freedom


def test_sizes_are_uniform(pool):
    keys = jax.random.split(jax.random.key(2), 2000)
    influence = jax.jit(jax.vmap(lambda key: draw(key, pool).influence))(keys)
    sizes = np.rint(1 / np.asarray(influence)).astype(int)
    for client in (0, 6):
        result, counts = np.unique(sizes[:, client], return_counts=True)
        assert result.tolist() == [6, 9, 12]
        assert np.abs(counts / 2000 - 1 / 3).max() < 0.045  # four standard deviations
    assert abs(np.corrcoef(sizes[:, 0], sizes[:, 6])[0, 1]) < 0.1


@pytest.mark.slow
def test_test_images_are_of_the_tasks_classes_and_drawn_once(pool, problem):
    test = problem.tasks.test
    numbers = number_of(test.features)
    assert numbers.shape == (3, 20)
    for q, row in enumerate(numbers):
        assert row.min() >= TEST_OFFSET
        assert len(set(row)) == 20
        labels = pool.test_labels[row - TEST_OFFSET]
        assert set(labels) <= set(CLASSES[q])
        expected = [1 if c in TASKS[q][1] else -1 for c in labels]
        assert np.asarray(test.targets)[q].tolist() == expected
    np.testing.assert_allclose(test.weights, 1 / 20)


@pytest.mark.slow
def test_test_images_come_in_their_natural_proportions(key, pool):
    """All 12, 14 and 16 of classes 1, 2 and 3 if that many are requested."""
    test = draw(key, pool, tasks=TASKS[:1], cluster=np.zeros(4, int), test=42).tasks.test
    labels = pool.test_labels[number_of(test.features)[0] - TEST_OFFSET]
    assert np.bincount(labels).tolist() == [0, 12, 14, 16]


@pytest.mark.slow
def test_only_the_key_matters(key, pool, problem):
    jax.tree.map(np.testing.assert_array_equal, draw(key, pool), problem)
    other = draw(jax.random.key(1), pool)
    assert np.any(number_of(other.features) != number_of(problem.features))
    assert np.any(number_of(other.tasks.test.features) != number_of(problem.tasks.test.features))


@pytest.mark.slow
def test_vmapped_partitions_equal_single_ones(pool):
    """With clusters drawn in the same program."""

    def partition(key):
        k_cluster, k_deal = jax.random.split(key)
        return draw(k_deal, pool, cluster=random_clusters(k_cluster, 7, 3))

    keys = jax.random.split(jax.random.key(3), 4)
    together = jax.jit(jax.vmap(partition))(keys)
    for i, key in enumerate(keys):
        same = jax.tree.map(
            lambda a, b, i=i: np.allclose(a[i], b, atol=1e-15), together, partition(key)
        )
        assert all(jax.tree.leaves(same))


@pytest.mark.slow
def test_gradients_are_bounded_by_one(key, pool, problem):
    """Rows have length one; a black image stays zero."""
    norms = np.linalg.norm(problem.features, axis=2)
    np.testing.assert_allclose(norms, np.asarray(problem.weights) > 0, rtol=1e-12)
    assert float(problem.gradient_bound()) == pytest.approx(1)
    black = pool._replace(train_images=np.zeros_like(pool.train_images))
    assert np.all(np.asarray(draw(key, black).features) == 0)


@pytest.mark.slow
def test_the_objective_is_passed_on(key, pool):
    problem = draw(key, pool, regularizer=SquaredL2(), strength=np.full(7, 0.5))
    assert isinstance(problem.loss, Logistic)
    assert isinstance(problem.regularizer, SquaredL2)
    np.testing.assert_array_equal(problem.strength, np.full(7, 0.5))
    assert isinstance(problem.tasks.test.regularizer, NoRegularizer)
    np.testing.assert_array_equal(problem.tasks.cluster, CLUSTER)
    assert problem.tasks.clusters == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tasks": ()}, "at least one task"),
        ({"tasks": ((1, 3),) * 3}, r"task 0 must be two sides.*got \(1, 3\)"),
        ({"tasks": (TASKS[0], ((1, 2), ()), TASKS[2])}, "task 1 must be two sides"),
        ({"tasks": (TASKS[0], ((1, 2), (2,)), TASKS[2])}, "task 1 must be two sides"),
        ({"tasks": (TASKS[0], ((1, 1), (2,)), TASKS[2])}, "task 1 must be two sides"),
        ({"tasks": (TASKS[0], TASKS[1], ((1,), (2,)))}, r"as many classes each, got \[3, 3, 2\]"),
        (
            {"tasks": (((1, 2), (9,)), *TASKS[1:])},
            r"class 9 is not among the train labels of numbers, \[0, 1, 2, 3, 4, 5\]",
        ),
        ({"samples": (0, 4)}, "least number of data samples must be >= 1"),
        ({"samples": (4, 2)}, "greatest number of data samples must be >= 4"),
        ({"samples": (2, 6)}, "need 42 training images of each class; numbers has 35 of class 1"),
        ({"test": 0}, "test must be >= 1"),
        ({"test": 43}, "at most the 42 test images that numbers has of the classes of task 0"),
        ({"cluster": [0, 1, 3]}, r"cluster numbers must be in 0\.\.2"),
        ({"cluster": [0, 1, 1]}, "cluster 2 has no clients"),
    ],
)
def test_bad_arguments_are_refused(key, pool, change, message):
    with pytest.raises(ValueError, match=message):
        draw(key, pool, **change)


def test_data_that_do_not_fit_together_are_refused(key, pool):
    with pytest.raises(ValueError, match=r"numbers has train images .* one label an image"):
        draw(key, pool._replace(train_labels=pool.train_labels[1:]))
    not_four = pool.test_labels != 4
    less = pool._replace(
        test_labels=pool.test_labels[not_four], test_images=pool.test_images[not_four]
    )
    with pytest.raises(ValueError, match="class 4 is not among the test labels"):
        draw(key, less)


def test_too_few_images_are_reported_before_compilation(pool):
    with pytest.raises(ValueError, match="Take fewer clients or smaller samples"):
        jax.eval_shape(
            lambda key: draw(key, pool, cluster=jnp.zeros(9, jnp.int32)), jax.random.key(0)
        )


# What linear models reach on the real images ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize(
    ("load", "task", "level", "tolerance"),
    [
        (mnist, SINGLE_DIGITS[0], 0.987, 0.008),
        (mnist, TRIPLETS[0], 0.925, 0.015),
        (organamnist, SIMILAR_ORGANS[2], 0.975, 0.015),
        (organamnist, DISSIMILAR_ORGANS[1], 0.67, 0.05),
    ],
)
def test_levels_of_linear_models(key, load, task, level, tolerance):
    """Logistic regression on 2,000 training images, accuracy on all test images."""
    try:
        data = load()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    images_per_problem = len(task[0]) + len(task[1])
    size = 2000 // images_per_problem
    count = int(np.isin(data.test_labels, [c for side in task for c in side]).sum())
    problem = binary_tasks(key, data, [task], np.zeros(1, int), (size, size), test=count)
    x = np.asarray(problem.features[0])
    y = np.asarray(problem.targets[0])

    def objective(w):
        margin = y * (x @ w)
        derivative = -y / (1 + np.exp(margin)) / len(y)
        return np.logaddexp(0, -margin).mean() + 1e-5 * w @ w, derivative @ x + 2e-5 * w

    model = minimize(objective, np.zeros(784), jac=True, method="L-BFGS-B").x
    test = problem.tasks.test
    right = (np.asarray(test.features[0]) @ model > 0) == (np.asarray(test.targets[0]) > 0)
    assert right.mean() == pytest.approx(level, abs=tolerance)


# Partitions of rows -------------------------------------------------------------------------------

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))

PARTITIONS = {
    "iid": lambda seed: iid(600, 20, seed),
    "by_label": lambda seed: by_label(LABELS, 20, 2, seed),
    "dirichlet": lambda seed: dirichlet(LABELS, 20, 0.5, seed),
    "dirichlet_sizes": lambda seed: dirichlet_sizes(600, 20, 2.0, seed),
    "power_law": lambda seed: power_law(600, 20, 1.2, seed, least=3),
}


def counts(parts):
    """``[K, 10]``: how many of each label each client has."""
    return np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_every_row_is_at_one_client(partition):
    parts = partition(0)
    assert len(parts) == 20
    assert sorted(np.concatenate(parts)) == list(range(600))
    for part, same in zip(parts, partition(0), strict=True):
        np.testing.assert_array_equal(part, same)
    assert any(a.tolist() != b.tolist() for a, b in zip(parts, partition(1), strict=True))


def test_iid_parts_are_of_one_size_and_mixed():
    assert [len(part) for part in iid(10, 4, 0)] == [3, 3, 2, 2]
    assert counts(iid(600, 20, 0)).max() < 12
    assert any(np.any(np.diff(part) < 0) for part in iid(600, 20, 0))


def test_shards_hold_few_labels():
    """20 clients of 2 shards of 15 rows: whole shards of one label each, as 15 divides 60."""
    result = counts(by_label(LABELS, 20, 2, 0))
    assert set(result.ravel()) <= {0, 15, 30}
    assert np.all(result.sum(1) == 30)
    assert np.any(np.diff(np.argmax(result, axis=1)) < 0)  # not dealt in order
    sizes = [len(part) for part in by_label(LABELS[:101], 5, 4, 0)]
    assert sum(sizes) == 101
    assert max(sizes) - min(sizes) <= 4


def test_dirichlet_shares_follow_their_distribution():
    """A client's share of a label has mean 1/K and variance (K-1)/(K^2 (alpha K + 1))."""
    shares = np.concatenate([counts(dirichlet(LABELS, 5, 0.8, seed)) for seed in range(60)]) / 60
    assert shares.mean() == pytest.approx(1 / 5)
    assert shares.var() == pytest.approx(4 / 25 / (0.8 * 5 + 1), rel=0.1)
    assert np.all(counts(dirichlet(LABELS, 20, 1e9, 0)) == 3)


def test_dirichlet_clients_have_the_least():
    assert min(map(len, dirichlet(LABELS, 8, 0.3, 0, least=20))) >= 20
    with pytest.raises(ValueError, match="8 clients 76 or more in 1000 draws"):
        dirichlet(LABELS[:600], 8, 0.3, 0, least=76)


def test_sizes_follow_the_dirichlet_distribution():
    """A client has 1/K of the rows on average, with variance (K-1)/(K^2 (beta K + 1))."""
    draws = [dirichlet_sizes(3000, 5, 2.0, seed) for seed in range(300)]
    shares = np.array([[len(part) for part in parts] for parts in draws]) / 3000
    assert shares.mean() == pytest.approx(1 / 5)
    assert shares.var() == pytest.approx(4 / 25 / (2.0 * 5 + 1), rel=0.1)
    assert [len(part) for part in dirichlet_sizes(600, 20, 1e9, 0)] == [30] * 20
    assert min(map(len, dirichlet_sizes(600, 8, 0.5, 0, least=20))) >= 20
    for parts in (dirichlet_sizes(6000, 2, 9.0, 0), power_law(6000, 2, 0.5, 0)):
        result = np.stack([np.bincount(rows // 600) for rows in parts])  # labels in order
        assert np.abs(result / result.sum(1, keepdims=True) - 0.1).max() < 0.03  # not skewed
    with pytest.raises(ValueError, match="of 600 rows gave each of 8 clients 75 or more"):
        dirichlet_sizes(600, 8, 0.3, 0, least=75)


def test_sizes_follow_the_power_law():
    for exponent, least in ((1.0, 1), (2.0, 5), (0.0, 3)):
        sizes = np.array([len(part) for part in power_law(100_000, 12, exponent, 0, least)])
        wanted = np.array([float(k) ** -exponent for k in range(1, 13)])
        wanted = least + (100_000 - 12 * least) * wanted / wanted.sum()
        assert np.abs(sizes - wanted).max() <= 1
    assert [len(part) for part in power_law(12, 4, 9.0, 0, least=3)] == [3] * 4


def test_users_keep_their_rows_in_the_order_asked_for():
    users = np.array(["eve", "bob", "eve", "ada", "bob", "eve"])
    assert [rows.tolist() for rows in by_user(users)] == [[3], [1, 4], [0, 2, 5]]
    assert [rows.tolist() for rows in by_user(users.astype(object))] == [[3], [1, 4], [0, 2, 5]]
    result = by_user([7, 3, 7], order=np.array([7, 5, 3], np.uint8))
    assert [rows.tolist() for rows in result] == [[0, 2], [], [1]]
    images = np.arange(6 * 2 * 2).reshape(6, 2, 2)
    assert [images[rows].shape for rows in result] == [(2, 2, 2), (0, 2, 2), (1, 2, 2)]
    only = by_user(users, ["eve"], leave_out=True)
    assert [rows.tolist() for rows in only] == [[0, 2, 5]]


def test_parts_make_a_problem():
    x = np.random.default_rng(0).normal(size=(600, 3))
    parts = dirichlet(LABELS, 20, 0.5, 0)
    y = np.where(LABELS > 4, 1.0, -1.0)
    problem = from_clients([(x[rows], y[rows]) for rows in parts], Logistic())
    np.testing.assert_array_equal((problem.weights > 0).sum(1), [len(rows) for rows in parts])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: iid(3, 4, 0), "3 rows cannot be cut into 4 parts"),
        (lambda: iid(3, 0, 0), "clients must be >= 1"),
        (lambda: by_label(LABELS, 301, 2, 0), "600 rows cannot be cut into 602 parts"),
        (lambda: by_label(LABELS, 5, 0, 0), "shards must be >= 1"),
        (lambda: dirichlet(LABELS, 5, 0.0, 0), "concentration must be finite and > 0"),
        (lambda: dirichlet(LABELS, 0, 1.0, 0), "clients must be >= 1"),
        (lambda: dirichlet(LABELS, 5, 1.0, 0, least=0), "least must be >= 1"),
        (lambda: dirichlet_sizes(600, 5, -1.0, 0), "concentration must be finite and > 0"),
        (lambda: dirichlet_sizes(3, 5, 1.0, 0), "no partition of 3 rows"),
        (lambda: power_law(600, 5, -1.0, 0), "exponent must be finite and >= 0"),
        (lambda: power_law(14, 5, 1.0, 0, least=3), "5 clients of 3 rows or more need 15 rows"),
        (lambda: by_user([]), "users must be a name or number of each, one or more"),
        (lambda: by_user(np.array([["a"]])), "users must be a name or number"),
        (lambda: by_user([0.5, 1.5]), "users must be a name or number"),
        (lambda: by_user(np.array(["a", None], object)), "users must be a name or number"),
        (lambda: by_user(["a", "b"], ["a", "a"]), "order must list each user once"),
        (lambda: by_user(["a", float("nan")]), "users must be a name or number"),
        (lambda: by_user(np.array(["a", np.nan])), "users holds the text 'nan' at 1"),
        (
            lambda: by_user(list("abb"), ["a"]),
            "leaves out 1 of 2 users and their 2 rows, such as 'b",
        ),
        (lambda: by_user(["a", "b"], [1, 2]), "no user of the order, such as 1 of type int"),
    ],
)
def test_bad_partitions_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def listed_in_all_ways(values):
    """The same column in other libraries' types, by name; frames with unordered indices."""
    backwards = range(len(values))[::-1]
    ways = {
        "array": np.array(values),
        "objects": np.array(values, object),
        "series": pd.Series(values),
        "of an index": pd.Series(values, index=backwards),
        "of objects": pd.Series(values, index=backwards, dtype=object),
        "categories": pd.Series(values, index=backwards, dtype="category"),
        "categorical": pd.Categorical(values),
        "an index": pd.Index(values),
    }
    if isinstance(values[0], str):
        ways["text"] = pd.Series(values, index=backwards, dtype="string")
    else:
        ways["nullable"] = pd.Series(values, index=backwards, dtype="Int64")
    with contextlib.suppress(ImportError):
        ways["polars"] = importlib.import_module("polars").Series(values)
    return ways


PARTITIONS = {
    "dirichlet": lambda labels: dirichlet(labels, 2, 1.0, seed=0),
    "by_label": lambda labels: by_label(labels, 2, 2, seed=0),
    "by_user": by_user,
    "detectors": lambda labels: [rows for rows, _ in detectors(labels, 1, seed=0)],
}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("values", [list("abcab"), [3, 1, 2, 3, 1]], ids=["text", "numbers"])
def test_labels_are_taken_by_their_place_from_any_library(name, values):
    wanted = PARTITIONS[name](values)
    for form, column in listed_in_all_ways(values).items():
        for got, rows in zip(PARTITIONS[name](column), wanted, strict=True):
            np.testing.assert_array_equal(got, rows, err_msg=form)


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", None, "b", "b"], "must be a .* of each row, got None in row 1"),
        (["a", float("nan"), "b", "b"], "must be a .* of each row, got nan in row 1"),
        (pd.Series(["a", "b", None, "b"]), "must be a .* of each row, got nan in row 2"),
        (pd.Series([1, None, 2, 2], dtype="Int64"), "must be a .* of each row, got nan in row 1"),
        ([1.0, 2.0, np.nan, 2.0], "must be a .* of each row, got nan in row 2"),
        (["1", 1, "1", 1], "holds text, '1' in row 0, and 1 of type int in row 1"),
        (np.array([1, "1", 1], object), "holds text, '1' in row 1, and 1 of type int in row 0"),
    ],
)
def test_a_missing_or_ambiguous_label_is_named_with_its_row(name, values, message):
    with pytest.raises(ValueError, match=message):
        PARTITIONS[name](values)


def test_numbers_of_labels_that_are_kept_may_be_a_column(key):
    problem = fl.problems.least_squares(key, clients=3, samples=4, dim=2)
    wanted = few_shot(key, problem, [4, 2, 1]).weights
    for form, column in listed_in_all_ways([4, 2, 1]).items():
        if form != "objects":
            weights = few_shot(key, problem, column).weights
            np.testing.assert_array_equal(weights, wanted, err_msg=form)


def test_each_class_has_a_client_with_as_many_of_it_as_of_the_others():
    labels = np.repeat(["bee", "fly", "wasp"], [5, 9, 30])
    shots = [5, 3, 14]
    result = detectors(labels, shots, seed=1)
    for name, count, (rows, signs) in zip(["bee", "fly", "wasp"], shots, result, strict=True):
        assert len(np.unique(rows)) == 2 * count
        assert (labels[rows[:count]] == name).all()
        assert (labels[rows[count:]] != name).all()
        assert signs.tolist() == [1] * count + [-1] * count
    again = detectors(labels, shots, seed=1)
    assert all((a[0] == b[0]).all() for a, b in zip(result, again, strict=True))
    assert [len(rows) for rows, _ in detectors(labels, 2, seed=1)] == [4, 4, 4]
    with pytest.raises(ValueError, match="at most the 5 samples of class bee and the 39 of"):
        detectors(labels, 6, seed=1)
    with pytest.raises(ValueError, match="at most the 30 samples of class wasp and the 14 of"):
        detectors(labels, [5, 5, 15], seed=1)
    with pytest.raises(ValueError, match="one number for each of two or more classes"):
        detectors(labels, [2, 2], seed=1)
    with pytest.raises(ValueError, match="shots must be >= 1, got 0"):
        detectors(labels, [2, 2, 0], seed=1)


@pytest.mark.slow
def test_few_labels_of_each_client_are_kept(key):
    sizes = [6, 4, 5, 3]
    counts = [2, 9, 0, 1]
    problem = fl.problems.least_squares(key, 4, sizes, 2).weighing([1.0, 2.0, 1.0, 1.0])
    draw = jax.jit(jax.vmap(lambda key, n: few_shot(key, problem, n), (0, None)))
    few = draw(jax.random.split(key, 50), np.array(counts))
    labeled = np.asarray(few.weights) > 0
    assert (labeled.sum(2) == np.minimum(counts, sizes)).all()
    assert not (labeled & (np.arange(6) >= np.array(sizes)[:, None])).any()
    np.testing.assert_allclose(few.weights.sum(2), np.tile([1, 2, 0, 1], (50, 1)))
    np.testing.assert_array_equal(few.importance, np.tile([1, 2, 0, 1], (50, 1)))
    np.testing.assert_array_equal(few.targets, np.where(labeled, problem.targets, 0))
    np.testing.assert_array_equal(few.features[7], problem.features)
    share = labeled[:, 0].mean(0)  # each of six rows is one of two in a third of the draws
    assert np.abs(share - 1 / 3).max() < 0.25
    all_labels = few_shot(key, problem, 6)
    np.testing.assert_allclose(all_labels.weights, problem.weights)
    with pytest.raises(ValueError, match="importance is zero for every client"):
        few_shot(key, problem, 0)
    with pytest.raises(ValueError, match="one for each of the 4 clients, got shape"):
        few_shot(key, problem, [1, 2])
    with pytest.raises(ValueError, match="samples must be at most those a client has, got"):
        few_shot(key, problem, 1000)
    with pytest.raises(ValueError, match="got 9 for client 1 with 4; give fewer"):
        few_shot(key, problem, counts)
