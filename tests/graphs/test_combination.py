"""Combination matrices against NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax import graphs
from tests.graphs.samples import FORMS, weighted_matrix

SYMMETRIC_RULES = ("metropolis", "max-degree", "laplacian")
RULES = (*SYMMETRIC_RULES, "averaging")


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.sampled_from([3, 6, 11]),
    rule=st.sampled_from(RULES),
    form=st.sampled_from(FORMS),
)
def test_mixing_is_stochastic_keeps_its_mean_and_commutes_with_relabelling(seed, nodes, rule, form):
    matrix = weighted_matrix(seed, nodes)
    mixing = graphs.from_adjacency(matrix, form=form).mixing(rule)
    weights = np.asarray(mixing.matrix())
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)
    assert np.all(weights >= 0.0)
    assert np.all(np.diagonal(weights) > 0.0)
    off = ~np.eye(nodes, dtype=bool)
    np.testing.assert_array_equal(weights[off] > 0, matrix[off] > 0)

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(nodes, 3))
    mixed = np.asarray(mixing(x))
    np.testing.assert_allclose(mixed, weights @ x, atol=1e-12)
    stationary = np.asarray(mixing.stationary)
    np.testing.assert_allclose(stationary @ weights, stationary, atol=1e-12)
    np.testing.assert_allclose(stationary @ mixed, stationary @ x, atol=1e-12)
    if rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(weights, weights.T, atol=1e-12)
        np.testing.assert_allclose(mixed.mean(axis=0), x.mean(axis=0), atol=1e-12)

    order = rng.permutation(nodes)
    moved = graphs.from_adjacency(matrix[np.ix_(order, order)], form=form).mixing(rule)
    np.testing.assert_allclose(moved(x[order]), mixed[order], atol=1e-12)


def test_mixing_rules_by_hand_on_a_path():
    graph = graphs.path(3)  # degrees 1, 2, 1
    third, half = 1 / 3, 1 / 2
    symmetric = [[1 - third, third, 0], [third, third, third], [0, third, 1 - third]]
    for rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(graph.mixing(rule).matrix(), symmetric, atol=1e-15)
    averaging = [[half, half, 0], [third, third, third], [0, half, half]]
    np.testing.assert_allclose(graph.mixing("averaging").matrix(), averaging, atol=1e-15)
    explicit = np.eye(3) - 0.6 * np.asarray(graph.laplacian_matrix())
    np.testing.assert_allclose(graph.mixing("laplacian", step=0.6).matrix(), explicit, atol=1e-15)
    # Metropolis differs from max-degree where degrees differ along an edge.
    tree = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (2, 4)])
    assert float(tree.mixing().matrix()[0, 1]) == pytest.approx(1 / 3)
    assert float(tree.mixing("max-degree").matrix()[0, 1]) == pytest.approx(1 / 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_rate_is_the_second_largest_eigenvalue(rule, form):
    graph = graphs.from_adjacency(weighted_matrix(7, 10), form=form)
    mixing = graph.mixing(rule)
    weights = np.asarray(mixing.matrix())
    moduli = np.sort(np.abs(np.linalg.eigvals(weights)))
    assert float(mixing.rate()) == pytest.approx(moduli[-2], abs=1e-10)
    if rule in SYMMETRIC_RULES:
        assert float(mixing.rate()) == pytest.approx(np.linalg.norm(weights - 0.1, 2), abs=1e-10)
    x = np.random.default_rng(0).normal(size=10)
    limit = np.linalg.matrix_power(weights, 400) @ x
    np.testing.assert_allclose(limit, np.asarray(mixing.stationary) @ x, atol=1e-8)


def test_mixing_refuses_bad_rules_and_steps():
    graph = graphs.ring(6)  # lambda_max = 4
    with pytest.raises(ValueError, match="Did you mean 'metropolis'"):
        graph.mixing("metropoliss")
    with pytest.raises(ValueError, match="leave step out"):
        graph.mixing("metropolis", step=0.1)
    with pytest.raises(ValueError, match="step must be finite and > 0"):
        graph.mixing("laplacian", step=0.0)
    with pytest.raises(ValueError, match=r"2 / lambda_max\(L\) = 0.5 .* got 0.51"):
        graph.mixing("laplacian", step=0.51)
    triangle = graphs.complete(3)  # lambda_max = 3: 0.6 is fine though some weights are negative
    assert float(triangle.mixing("laplacian", step=0.6).rate()) == pytest.approx(0.8)
