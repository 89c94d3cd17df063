"""Clients that share rows: who has them, what is refused, and what a budget promises."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax import partitions
from fljax.partitions import Shared

LABELS = np.repeat(np.arange(4), 30)
X = np.random.default_rng(0).normal(size=(120, 3))

RULES = {
    "all of them": Shared(partitions.IID(), rows=20),
    "some of them": Shared(partitions.EqualDirichlet(0.3), rows=24, each=6),
    "around others": Shared(partitions.AtLeast(partitions.Dirichlet(0.1), 3), rows=30, each=30),
    "of owners": Shared(partitions.ById(np.arange(120) % 6), rows=12),
}


@pytest.mark.parametrize("name", RULES)
def test_shared_rows_are_at_all_clients_and_others_at_one(name):
    rule = RULES[name]
    count = rule.rows if rule.each is None else rule.each
    least, largest = rule.bounds(120, 5)
    for seed in range(5):
        drawn = rule.draw(seed, LABELS, clients=5)
        rows = drawn.rows()
        assert all(len(set(part)) == len(part) for part in rows)  # none is there twice
        holders = np.bincount(np.concatenate(rows), minlength=120)
        unshared = np.setdiff1d(np.arange(120), np.flatnonzero(holders > 1))
        assert len(unshared) >= 120 - rule.rows
        assert all(least <= len(part) <= largest for part in rows)
        assert sum(map(len, rows)) == 120 - rule.rows + 5 * count
        if rule.each in (None, rule.rows):
            assert sorted(set(holders)) == [1, 5]
            assert (holders == 5).sum() == rule.rows


def test_who_shares_what_is_uniform():
    rule = Shared(partitions.IID(), rows=4, each=2)
    keys = jax.random.split(jax.random.key(1), 4000)
    order = np.asarray(jax.vmap(lambda key: rule.draw(key, 12, 2).order)(keys))
    assert order.shape == (4000, 12 + 2 * 2)
    # 8 rows of their own, 4 each, and 2 of the 4 others: each client has each row equally often.
    for client in (order[:, :6], order[:, 6:12]):
        counts = np.bincount(client.ravel(), minlength=12)
        assert stats.chisquare(counts).pvalue > 1e-3
    # What two clients have in common is drawn for each.
    common = [len(set(entries[:6]) & set(entries[6:12])) for entries in order]
    expected = stats.hypergeom(4, 2, 2).pmf(np.arange(3)) * len(common)
    assert stats.chisquare(np.bincount(common, minlength=3), expected).pvalue > 1e-3


def test_runs_on_shared_rows_are_those_of_clients_own_samples():
    partition = RULES["some of them"].draw(3, LABELS, clients=5)
    loss = fl.problems.Softmax(4)
    pooled = fl.problems.from_pool(X, LABELS, loss, partition)
    separate = fl.problems.from_clients(
        [(X[rows], LABELS[rows]) for rows in partition.rows()], loss
    )
    runs = [
        fl.run(fl.Simulation(problem, fl.algorithms.FedAvg(0.3), metrics=["objective"]), rounds=5)
        for problem in (pooled, separate)
    ]
    np.testing.assert_allclose(runs[0].model, runs[1].model, rtol=1e-10)
    assert not pooled.features.disjoint


def test_results_of_a_budget_say_that_rows_are_shared():
    def stated(rule):
        problem = fl.problems.from_pool(
            X, X @ np.ones(3), fl.problems.LeastSquares(), rule, clients=5
        )
        simulation = fl.Simulation(
            problem.clipped(1.0),
            fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.1),
            fl.graphs.ring(5),
            privacy=fl.privacy.ZCDP(total_rho=1.0),
        )
        single = fl.privacy.assumptions(fl.run(simulation, rounds=2))
        swept = fl.privacy.assumptions(fl.sweep(lambda key: simulation, rounds=2, seeds=2))
        assert single["neighbors"] == swept["neighbors"]
        return single["neighbors"]

    assert stated(partitions.IID()) == "replace"
    text = stated(Shared(partitions.IID(), 20))
    assert text.startswith("replace")
    assert "one client's copy of a sample that several have" in text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Shared(3, 4), "rule must be"),
        (lambda: Shared(partitions.IID(), 0), "rows must be >= 1"),
        (lambda: Shared(partitions.IID(), 4, each=5), "each must be <= 4"),
        (lambda: Shared(Shared(partitions.IID(), 4), 4), "itself be of shared rows"),
        (lambda: Shared(partitions.IID(), 118).draw(0, 120, 5), "leave a row for each of 5"),
        (
            lambda: Shared(partitions.AtLeast(partitions.IID(), 20), 40).draw(0, 120, 5),
            "cannot distribute the 80 rows that are not shared",
        ),
        (
            lambda: partitions.AtLeast(Shared(partitions.IID(), 4), 2).draw(0, 120, 5),
            "cannot be within another rule",
        ),
        (
            lambda: fl.problems.from_pool(
                X, LABELS, fl.problems.Softmax(4), RULES["all of them"], 5, held_out=0.2
            ),
            "keep test data out of the pool",
        ),
        (
            lambda: fl.problems.from_pool(
                X,
                LABELS,
                fl.problems.Softmax(4),
                partitions.Partition(np.zeros(120, int), np.array([0, 60, 120])),
            ),
            "a row of the partition is at several clients",
        ),
        (
            lambda: fl.problems.from_pool(
                X,
                LABELS,
                fl.problems.Softmax(4),
                partitions.Partition(np.arange(120) + 1, np.array([0, 60, 120])),
            ),
            "rows from 0 to 119",
        ),
    ],
)
def test_bad_overlap_is_named(call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call()


def test_traced_draws_are_the_plain_ones():
    for rule, seed in itertools.product(RULES.values(), range(2)):
        key = jax.random.key(seed)
        plain = rule.draw(key, LABELS, 5)
        compiled = jax.jit(lambda key, rule=rule: rule.draw(key, LABELS, 5))(key)
        np.testing.assert_array_equal(plain.order, compiled.order)
        np.testing.assert_array_equal(plain.offsets, compiled.offsets)
