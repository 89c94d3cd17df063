import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import fljax as fl
from fljax import partitions
from fljax.partitions.labels import _drawn_from_classes
from fljax.partitions.partitioner import positions_in_blocks, random_order_within
from fljax.partitions.sizes import cut_by_shares
from tests.reference import partitions as reference

LABELS = np.repeat([0, 1, 2, 3], [25, 40, 15, 20])
CLIENTS = 6
OWNERS = np.repeat(["f", "e", "d", "c", "b", "a"], [10, 20, 30, 5, 15, 20])

RULES = {
    "IID": partitions.IID(),
    "Dirichlet": partitions.Dirichlet(0.3),
    "EqualDirichlet": partitions.EqualDirichlet(0.5),
    "LabelsPerClient": partitions.LabelsPerClient(2),
    "Shards": partitions.Shards(2),
    "SortedByLabel": partitions.SortedByLabel(),
    "DirichletSizes": partitions.DirichletSizes(0.5),
    "LogNormalSizes": partitions.LogNormalSizes(1.0),
    "PowerLawSizes": partitions.PowerLawSizes(1.5),
    "ById": partitions.ById(OWNERS),
    "ByColumn": partitions.ByColumn(np.linspace(-1, 1, 100) ** 3, strictness=0.7),
    "Mixed": partitions.Mixed((0.3, 0.7), (partitions.IID(), partitions.Dirichlet(0.2))),
    "similar": partitions.similar(0.2),
    "AtLeast": partitions.AtLeast(partitions.Dirichlet(0.1), 7),
}
EQUAL = ("IID", "EqualDirichlet", "SortedByLabel", "ByColumn")


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


def many(rule, count, clients=CLIENTS, labels=LABELS, seed=0):
    """Partitions of many keys."""
    draw = jax.jit(jax.vmap(lambda key: rule.draw(key, labels, clients)))
    return draw(keys(count, seed))


# ------------------------------------------------------------------------------ what always holds


@pytest.mark.parametrize("name", RULES)
def test_every_row_has_one_place_and_every_client_its_rows(name):
    drawn = many(RULES[name], 50)
    order = np.asarray(drawn.order)
    offsets = np.asarray(drawn.offsets)
    np.testing.assert_array_equal(
        np.sort(order, axis=1), np.broadcast_to(np.arange(100), (50, 100))
    )
    assert np.all(np.diff(offsets, axis=1) >= 0)
    assert np.all(offsets[:, 0] == 0)
    assert np.all(offsets[:, -1] == 100)  # all rows have an owner
    assert len(np.unique(order, axis=0)) == 50  # another order for each key


@pytest.mark.parametrize("name", EQUAL)
def test_parts_are_equal_but_for_one_row(name):
    sizes = np.diff(np.asarray(many(RULES[name], 50).offsets), axis=1)
    assert np.all(np.ptp(sizes, axis=1) == 1)  # of 100 rows for 6 clients


@pytest.mark.parametrize("name", RULES)
def test_compiled_and_batched_draws_are_the_plain_ones(name):
    batched = many(RULES[name], 3)
    for i, key in enumerate(keys(3)):
        plain = RULES[name].draw(key, LABELS, CLIENTS)
        np.testing.assert_array_equal(batched.order[i], plain.order)
        np.testing.assert_array_equal(batched.offsets[i], plain.offsets)


@pytest.mark.parametrize("name", RULES)
def test_rows_counts_and_owners_say_the_same(name):
    partition = RULES[name].draw(3, LABELS, CLIENTS)
    parts = partition.rows()
    assert [len(part) for part in parts] == partition.sizes.tolist()
    counts = np.stack([np.bincount(LABELS[part], minlength=4) for part in parts])
    np.testing.assert_array_equal(partition.counts(LABELS, 4), counts)
    owners = np.asarray(partition.owners())
    for client, part in enumerate(parts):
        assert set(owners[part]) <= {client}


@pytest.mark.parametrize("name", RULES)
def test_a_clients_rows_are_in_random_order(name):
    """Which of two rows of one client is first is a fair coin, whatever their labels."""
    drawn = many(RULES[name], 4000)
    place = np.argsort(np.asarray(drawn.order), axis=1)
    owners = np.asarray(jax.vmap(lambda p: p.owners())(drawn))
    first = total = 0
    for one, other in [(0, 1), (0, 99), (30, 70), (10, 50)]:
        together = owners[:, one] == owners[:, other]
        first += np.sum(together & (place[:, one] < place[:, other]))
        total += np.sum(together)
    assert total > 100
    assert abs(first / total - 0.5) < 4 * 0.5 / np.sqrt(total)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("ById", "ByColumn")])
def test_rows_of_one_label_are_exchangeable(name):
    """Every row of a label is as often at each client as the others."""
    owners = np.asarray(jax.vmap(lambda p: p.owners())(many(RULES[name], 3000)))
    for label in (0, 2):
        rows = np.flatnonzero(label == LABELS)
        table = np.stack([np.bincount(owners[:, row], minlength=CLIENTS) for row in rows[:8]])
        table = table[:, table.sum(axis=0) > 0]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 1e-4


# --------------------------------------------------------------------------- against definitions


def distances(rule, seed):
    """The label distance of partitions of many keys."""
    counts = jax.vmap(lambda partition: partition.counts(LABELS, 4))(many(rule, 2000, seed=seed))
    return np.asarray(jax.vmap(lambda c: partitions.heterogeneity(c).label_distance)(counts))


@pytest.mark.parametrize(
    ("rule", "loop"),
    [
        (partitions.Dirichlet(0.3), lambda rng: reference.dirichlet(rng, LABELS, CLIENTS, 0.3)),
        (partitions.Dirichlet(5.0), lambda rng: reference.dirichlet(rng, LABELS, CLIENTS, 5.0)),
        (
            partitions.EqualDirichlet(2.0),
            lambda rng: reference.equal_dirichlet(rng, LABELS, CLIENTS, 2.0),
        ),
        (partitions.Shards(2), lambda rng: reference.shards(rng, LABELS, CLIENTS, 2)),
    ],
)
def test_partitions_have_the_distribution_of_the_papers_loop(rule, loop):
    rng = np.random.default_rng(1)
    parts = [loop(rng) for _ in range(1500)]
    expected = [reference.label_distance(part, LABELS) for part in parts]
    assert stats.ks_2samp(distances(rule, seed=2), expected).pvalue > 1e-3
    sizes = np.diff(np.asarray(many(rule, 2000, seed=3).offsets), axis=1)
    if np.ptp(sizes) > 1:
        expected = [len(part[0]) for part in parts]
        assert stats.ks_2samp(sizes[:, 0], expected).pvalue > 1e-3


def test_shares_of_a_class_have_the_moments_of_their_dirichlet_distribution():
    concentration = 0.4
    labels = np.zeros(5_000, int)
    sizes = np.diff(np.asarray(many(partitions.Dirichlet(concentration), 400, 5, labels).offsets))
    shares = sizes / 5_000
    variance = (1 / 5) * (4 / 5) / (5 * concentration + 1)
    assert abs(shares[:, 2].mean() - 1 / 5) < 4 * np.sqrt(variance / 400)
    assert shares.var() == pytest.approx(variance, rel=0.1)


def test_rows_drawn_from_classes_have_the_exact_distribution():
    share = jnp.array([0.7, 0.2, 0.1])
    left = jnp.array([2, 3, 4], jnp.int32)
    draw = jax.vmap(lambda key: _drawn_from_classes(key, share, jnp.int32(5), left, 6))
    drawn = np.asarray(jax.jit(draw)(keys(20_000)))
    exact = reference.drawn_from_classes([0.7, 0.2, 0.1], 5, [2, 3, 4])
    observed = [np.sum(np.all(drawn == numbers, axis=1)) for numbers in exact]
    assert sum(observed) == 20_000
    assert stats.chisquare(observed, 20_000 * np.array(list(exact.values()))).pvalue > 1e-3


def test_a_distribution_that_rounds_to_zero_takes_what_is_left():
    left = jnp.array([0, 4, 12], jnp.int32)
    share = jnp.array([1.0, 0.0, 0.0])
    draw = jax.vmap(lambda key: _drawn_from_classes(key, share, jnp.int32(4), left, 4))
    drawn = np.asarray(jax.jit(draw)(keys(500)))
    assert np.all(drawn.sum(axis=1) == 4)
    assert np.all(drawn <= np.asarray(left))
    assert abs(drawn[:, 1].mean() - 1) < 0.15  # a quarter of four


def test_each_client_has_so_many_labels_in_equal_parts():
    drawn = many(partitions.LabelsPerClient(2), 200)
    counts = np.asarray(jax.vmap(lambda partition: partition.counts(LABELS, 4))(drawn))
    assert np.all((counts > 0).sum(axis=2) == 2)
    for label, size in enumerate([25, 40, 15, 20]):
        of_label = counts[:, :, label]
        assert np.all(of_label.sum(axis=1) == size)
        parts = np.where(of_label > 0, of_label, -1)
        largest = parts.max(axis=1)
        smallest = np.where(parts < 0, 99, parts).min(axis=1)
        assert np.all(largest - smallest <= 1)


def test_classes_that_no_client_has_are_left_out():
    partition = partitions.LabelsPerClient(1).draw(0, LABELS, clients=3)
    assert partition.sizes.tolist() == [25, 40, 15]
    assert set(LABELS[np.asarray(partition.order[80:])]) == {3}
    assert partition.owners().max() == 3  # no client


def test_similarity_is_the_share_of_rows_that_are_dealt_at_random():
    equal = many(partitions.similar(1.0), 20)
    assert np.all(np.ptp(np.diff(np.asarray(equal.offsets)), axis=1) == 1)
    half = partitions.similar(0.5).draw(0, LABELS, clients=5)
    counts = np.asarray(half.counts(LABELS, 4))
    assert np.all((counts > 0).sum(axis=1) > 2)
    assert counts[0, 0] > 10  # the first tenth of the sorted half has label 0 alone


def test_sizes_follow_their_shares():
    sizes = partitions.PowerLawSizes(2.0).draw(0, 1000, clients=3).sizes
    np.testing.assert_array_equal(sizes, [734, 184, 82])
    shares = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    table = cut_by_shares(jnp.asarray(shares), jnp.array([10, 7]))
    np.testing.assert_array_equal(table, [[5, 2, 3], [0, 2, 5]])
    normal = np.log(
        np.diff(np.asarray(many(partitions.LogNormalSizes(0.5), 300, 4, 10_000).offsets))
    )
    contrast = (normal[:, 0] - normal[:, 1]) / np.sqrt(2)
    assert contrast.std() == pytest.approx(0.5, rel=0.15)


def test_a_least_size_moves_as_few_rows_as_are_missing_from_the_largest_clients():
    rule = partitions.Dirichlet(0.1)
    for key in range(8):
        raised = partitions.AtLeast(rule, 7).draw(key, LABELS, CLIENTS)
        assert raised.sizes.min() >= 7
        rule_key, _ = jax.random.split(jax.random.split(fl.random_key(key))[0])
        pool = rule._pool(LABELS, None)
        before = np.asarray(rule.owners(rule_key, pool, CLIENTS))
        sizes = np.bincount(before, minlength=CLIENTS)
        moved = np.asarray(raised.owners()) != before
        assert moved.sum() == np.maximum(7 - sizes, 0).sum()
        donors = np.unique(before[moved])
        kept = np.setdiff1d(np.flatnonzero(sizes > 7), donors)
        if len(donors) and len(kept):
            assert sizes[kept].max() <= sizes[donors].min()


def test_a_least_size_that_all_have_changes_nothing():
    rule = partitions.IID()
    same = partitions.AtLeast(rule, 5).draw(4, 100, CLIENTS)
    rule_key, _ = jax.random.split(jax.random.split(fl.random_key(4))[0])
    owners = rule.owners(rule_key, rule._pool(100, None), CLIENTS)
    np.testing.assert_array_equal(same.owners(), owners)


def test_owners_of_rows_are_clients():
    partition = partitions.ById(OWNERS).draw(0, 100, clients=6)
    assert [set(OWNERS[rows]) for rows in partition.rows()] == [{c} for c in "abcdef"]
    fewer = many(partitions.ById(OWNERS), 200, clients=3)
    for order, offsets in zip(np.asarray(fewer.order), np.asarray(fewer.offsets), strict=True):
        together = [set(OWNERS[rows]) for rows in np.split(order, offsets[1:-1])]
        assert [len(names) for names in together] == [2, 2, 2]
        assert set.union(*together) == set("abcdef")


def test_owners_are_taken_from_a_column_of_a_table_by_position():
    table = pd.DataFrame({"owner": ["b", "a", "b"]}, index=[7, 3, 5])
    parts = partitions.ById(table["owner"]).draw(0, 3, clients=2).rows()
    assert [sorted(rows.tolist()) for rows in parts] == [[1], [0, 2]]


def test_strictness_orders_rows_by_their_value():
    values = np.random.default_rng(0).normal(size=100)
    strict = partitions.ByColumn(values).draw(0, 100, clients=4)
    for low, high in zip(strict.rows()[:-1], strict.rows()[1:], strict=True):
        assert values[low].max() <= values[high].min()
    means = [
        np.abs(
            [values[rows].mean() for rows in partitions.ByColumn(values, s).draw(1, 100, 4).rows()]
        )
        for s in (0.0, 0.5, 1.0)
    ]
    assert means[0].max() < means[1].max() < means[2].max()


def test_mixed_rules_get_their_shares_of_the_rows():
    rule = partitions.Mixed((0.25, 0.75), (partitions.SortedByLabel(), partitions.IID()))
    sizes = np.diff(np.asarray(many(rule, 30, clients=5).offsets))
    assert np.all(sizes == 20)
    counts = rule.draw(0, LABELS, clients=5).counts(LABELS, 4)
    assert int(counts[0, 0]) > 5  # five of the sorted quarter, and some of the others


# --------------------------------------------------------------------------------- inside a study


def test_a_study_has_another_partition_for_each_seed_and_one_program_for_all_concentrations():
    features = np.random.default_rng(0).normal(size=(120, 3))
    labels = np.repeat([0, 1, 2], 40)

    def scenario(key, concentration):
        rule = partitions.EqualDirichlet(concentration)
        rows = rule.draw(key, labels, clients=4).order.reshape(4, 30)
        problem = fl.problems.Problem(
            jnp.asarray(features)[rows], jnp.asarray(labels)[rows], fl.problems.Softmax(3)
        )
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1, 2), metrics=["train_error"])

    study = fl.sweep(scenario, rounds=3, seeds=3, grid={"concentration": [0.1, 1.0, 100.0]})
    errors = study.train_error.isel(round=-1, client=0).values
    assert len(np.unique(errors)) == 9
    plan = fl.plan(scenario, rounds=3, seeds=3, grid={"concentration": [0.1, 1.0, 100.0]})
    assert len(plan.parts) == 1  # a program


def test_labels_may_be_drawn_inside():
    @jax.jit
    def draw(key):
        labels = jax.random.randint(key, (60,), 0, 4)
        return partitions.Dirichlet(1.0).draw(key, labels, 3, classes=4), labels

    partition, labels = draw(jax.random.key(0))
    assert int(partition.sizes.sum()) == 60
    assert int(partition.counts(labels, 4).sum()) == 60


# ------------------------------------------------------------------------------------- primitives


def test_positions_lie_in_blocks():
    block = positions_in_blocks(jnp.array([2, 2, 5]), 8)
    np.testing.assert_array_equal(block, [0, 0, 2, 2, 2, 3, 3, 3])


@pytest.mark.parametrize("groups", [1, 2, 3, 17])
def test_rows_sorted_by_group_are_in_random_order(groups):
    numbers = np.random.default_rng(groups).integers(groups, size=40)
    draw = jax.vmap(lambda key: random_order_within(key, jnp.asarray(numbers), groups))
    orders = np.asarray(jax.jit(draw)(keys(2000)))
    assert np.all(np.diff(numbers[orders], axis=1) >= 0)
    rows = np.flatnonzero(numbers == numbers[0])
    places = np.argsort(orders, axis=1)[:, rows] - np.sum(numbers < numbers[0])
    table = np.stack([np.bincount(place, minlength=len(rows)) for place in places.T])
    if len(rows) > 1:
        assert stats.chi2_contingency(table).pvalue > 1e-4


# -------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: partitions.Dirichlet(0.0), "concentration must be finite and > 0"),
        (lambda: partitions.Dirichlet(np.nan), "concentration must be finite and > 0"),
        (lambda: partitions.EqualDirichlet(-1.0), "concentration must be finite and > 0"),
        (lambda: partitions.LabelsPerClient(5).draw(0, LABELS, 3), "at most the 4 classes"),
        (lambda: partitions.LabelsPerClient(0), "labels must be >= 1"),
        (lambda: partitions.Shards(40).draw(0, LABELS, 3), "cannot be cut into 120 shards"),
        (lambda: partitions.IID().draw(0, 3, clients=4), "3 rows for 4 clients"),
        (lambda: partitions.IID().draw(0, 3, clients=0), "clients must be >= 1"),
        (lambda: partitions.AtLeast(partitions.IID(), 30).draw(0, 100, 4), "need 120 rows"),
        (lambda: partitions.Dirichlet(1.0).draw(0, 100, 4), "distributes rows by their labels"),
        (
            lambda: partitions.Dirichlet(1.0).draw(0, LABELS + 0.5, 4),
            "labels must be whole numbers",
        ),
        (
            lambda: partitions.Dirichlet(1.0).draw(0, LABELS - 1, 4),
            "labels must be finite and >= 0",
        ),
        (lambda: partitions.Dirichlet(1.0).draw(0, LABELS, 4, classes=3), "<= 2"),
        (lambda: partitions.Dirichlet(1.0).draw(0, [], 4), "labels is empty"),
        (lambda: partitions.ById(OWNERS).draw(0, 99, 3), "a value for each of 100 rows"),
        (lambda: partitions.ById(OWNERS).draw(0, 100, 7), "rows of 6 owners"),
        (lambda: partitions.ById(["a", None, "b"]), "got None in row 1"),
        (lambda: partitions.ByColumn([1.0, np.nan]), "NaN"),
        (lambda: partitions.ByColumn([1.0, 2.0], 1.5), "strictness must be"),
        (lambda: partitions.Mixed((0.5, 0.6), (partitions.IID(), partitions.IID())), "sum one"),
        (lambda: partitions.Mixed((0.5, 0.5), (partitions.IID(),)), "each of the 1 rules"),
        (lambda: partitions.Mixed((1.0,), (3,)), "rules must be"),
        (lambda: partitions.similar(1.5), "similarity must be"),
        (lambda: partitions.AtLeast(3, 1), "rule must be"),
        (lambda: partitions.heterogeneity(np.zeros((2, 3), int)), "no rows"),
    ],
)
def test_bad_input_is_named(call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call()


def test_a_bad_concentration_is_found_at_every_point_of_a_grid():
    def scenario(key, concentration):
        rows = partitions.EqualDirichlet(concentration).draw(key, LABELS, clients=4).order
        problem = fl.problems.Problem(
            jnp.ones((100, 2))[rows].reshape(4, 25, 2),
            jnp.asarray(LABELS)[rows].reshape(4, 25),
            fl.problems.Softmax(4),
        )
        return fl.Simulation(problem, fl.algorithms.FedAvg(0.1))

    with pytest.raises(ValueError, match="concentration must be finite and > 0"):
        fl.sweep(scenario, rounds=1, grid={"concentration": [1.0, 0.0]})


def test_rows_are_known_outside_of_compiled_code_only():
    with pytest.raises(TypeError, match="known outside of compiled code only"):
        jax.jit(lambda key: partitions.IID().draw(key, 10, 2).rows())(jax.random.key(0))


def test_labels_that_are_traced_need_their_number_of_classes():
    with pytest.raises(TypeError, match="pass classes="):
        jax.jit(lambda labels: partitions.Dirichlet(1.0).draw(0, labels, 2))(jnp.array([0, 1]))


def test_a_rule_without_owners_names_the_method():
    class Rule(partitions.Partitioner):
        """Has no method."""

    with pytest.raises((TypeError, NotImplementedError), match="owners"):
        Rule().draw(0, 10, 2)
