"""Combination matrices against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax import graphs
from tests.graphs.samples import FORMS, hub_matrix, weighted_matrix

SYMMETRIC_RULES = ("metropolis", "max-degree", "laplacian")
RULES = (*SYMMETRIC_RULES, "averaging", "relative-degree", "hastings")
BUILD = {
    convention: jax.jit(functools.partial(graphs.from_stochastic, convention=convention))
    for convention in ("left", "right")
}
RATE = jax.jit(lambda combination: combination.rate())
TABLE = jax.jit(lambda network: network.neighbor_table())
THIN = jax.jit(lambda network, table: network.thinned(lambda k, l: table[k, l]))  # noqa: E741
WITHIN = {"deadline": None, "max_examples": 25}


def mix(graph: graphs.Graph, rule: str, target: np.ndarray) -> graphs.Combination:
    return graph.mixing(rule, target=target if rule == "hastings" else None)


def directed_matrix(seed: int, nodes: int) -> np.ndarray:
    """Rows sum to one, primitive, few entries: a directed ring, random arcs, one own weight."""
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(0.1, 1.0, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.2)
    matrix[np.arange(nodes), (np.arange(nodes) + 1) % nodes] += 0.5
    matrix[0, 0] += 0.3
    return matrix / matrix.sum(axis=1, keepdims=True)


def stationary_of(matrix: np.ndarray) -> np.ndarray:
    """The stationary distribution, by eigenvectors."""
    values, vectors = np.linalg.eig(matrix.T)
    distribution = np.real(vectors[:, np.argmax(np.real(values))])
    return distribution / distribution.sum()


@pytest.mark.slow
@settings(**WITHIN)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.sampled_from([3, 6, 11]),
    rule=st.sampled_from(RULES),
    form=st.sampled_from(FORMS),
)
def test_mixing_is_stochastic_keeps_its_mean_and_commutes_with_relabeling(seed, nodes, rule, form):
    matrix = weighted_matrix(seed, nodes)
    target = np.random.default_rng(seed + 1).uniform(0.2, 1.0, nodes)
    mixing = mix(graphs.from_adjacency(matrix, form=form), rule, target)
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
    if rule == "hastings":
        np.testing.assert_allclose(stationary, target / target.sum(), rtol=1e-12)
    assert mixing.symmetric == (rule in SYMMETRIC_RULES) == mixing.doubly_stochastic
    if rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(weights, weights.T, atol=1e-12)
        np.testing.assert_allclose(mixed.mean(axis=0), x.mean(axis=0), atol=1e-12)

    order = rng.permutation(nodes)
    moved = graphs.from_adjacency(matrix[np.ix_(order, order)], form=form)
    moved = mix(moved, rule, target[order])
    np.testing.assert_allclose(moved(x[order]), mixed[order], atol=1e-12)


@pytest.mark.slow
def test_mixing_rules_by_hand_on_a_path():
    graph = graphs.path(3)  # degrees 1, 2, 1
    third = 1 / 3
    half = 1 / 2
    symmetric = [[1 - third, third, 0], [third, third, third], [0, third, 1 - third]]
    for rule in SYMMETRIC_RULES:
        np.testing.assert_allclose(graph.mixing(rule).matrix(), symmetric, atol=1e-15)
    averaging = [[half, half, 0], [third, third, third], [0, half, half]]
    np.testing.assert_allclose(graph.mixing("averaging").matrix(), averaging, atol=1e-15)
    explicit = np.eye(3) - 0.6 * np.asarray(graph.laplacian_matrix())
    np.testing.assert_allclose(graph.mixing("laplacian", step=0.6).matrix(), explicit, atol=1e-15)
    relative = [[1 / 5 * 2, 1 / 5 * 3, 0], [2 / 7, 3 / 7, 2 / 7], [0, 3 / 5, 2 / 5]]
    np.testing.assert_allclose(graph.mixing("relative-degree").matrix(), relative, atol=1e-15)
    neighbors_only = graph.mixing("neighbors")
    np.testing.assert_allclose(
        neighbors_only.matrix(), [[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]], atol=1e-15
    )
    np.testing.assert_allclose(neighbors_only.stationary, [0.25, 0.5, 0.25], atol=1e-15)
    alone = graphs.from_edges(3, [(0, 1)], allow_disconnected=True).mixing("neighbors")
    np.testing.assert_allclose(alone.matrix(), [[0, 1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-15)
    uniform = graph.mixing("hastings", target=np.ones(3))
    np.testing.assert_allclose(uniform.matrix(), symmetric, atol=1e-15)
    # Metropolis differs from max-degree where degrees differ along an edge.
    tree = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (2, 4)])
    assert float(tree.mixing().matrix()[0, 1]) == pytest.approx(1 / 3)
    assert float(tree.mixing("max-degree").matrix()[0, 1]) == pytest.approx(1 / 4)


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_rate_is_the_second_largest_eigenvalue(rule, form):
    graph = graphs.from_adjacency(weighted_matrix(7, 10), form=form)
    mixing = mix(graph, rule, np.linspace(1.0, 2.0, 10))
    weights = np.asarray(mixing.matrix())
    moduli = np.sort(np.abs(np.linalg.eigvals(weights)))
    assert float(mixing.rate()) == pytest.approx(moduli[-2], abs=1e-10)
    if rule in SYMMETRIC_RULES:
        assert float(mixing.rate()) == pytest.approx(np.linalg.norm(weights - 0.1, 2), abs=1e-10)
    x = np.random.default_rng(0).normal(size=10)
    limit = np.linalg.matrix_power(weights, 400) @ x
    np.testing.assert_allclose(limit, np.asarray(mixing.stationary) @ x, atol=1e-8)


@pytest.mark.slow
def test_mixing_refuses_bad_rules_and_steps():
    graph = graphs.ring(6)  # lambda_max = 4
    with pytest.raises(ValueError, match="Did you mean 'metropolis'"):
        graph.mixing("metropoliss")
    with pytest.raises(ValueError, match="leave step out"):
        graph.mixing("metropolis", step=0.1)
    with pytest.raises(ValueError, match="leave target out"):
        graph.mixing("metropolis", target=np.ones(6))
    with pytest.raises(ValueError, match="'hastings' needs target"):
        graph.mixing("hastings")
    with pytest.raises(ValueError, match=r"target must have shape \(6,\).* got shape \(5,\)"):
        graph.mixing("hastings", target=np.ones(5))
    with pytest.raises(ValueError, match="target must be finite and > 0, got 0"):
        graph.mixing("hastings", target=np.arange(6.0))
    with pytest.raises(ValueError, match="step must be finite and > 0"):
        graph.mixing("laplacian", step=0.0)
    with pytest.raises(ValueError, match=r"2 / lambda_max\(L\) = 0.5 .* got 0.51"):
        graph.mixing("laplacian", step=0.51)
    triangle = graphs.complete(3)  # lambda_max = 3: 0.6 is fine though some weights are negative
    assert float(triangle.mixing("laplacian", step=0.6).rate()) == pytest.approx(0.8)


@pytest.mark.parametrize("rule", ["laplacian", "hastings", "metropolis"])
def test_a_rule_with_its_parameters_gives_the_same_weights(rule):
    parameters = {"laplacian": {"step": 0.3}, "hastings": {"target": np.linspace(1, 2, 6)}}
    parameters = parameters.get(rule, {})
    graph = graphs.ring(6)
    ours = graph.mixing(graphs.Mixing(rule, **parameters)).matrix()
    np.testing.assert_array_equal(ours, graph.mixing(rule, **parameters).matrix())


# Any stochastic matrix --------------------------------------------------------------------------


@pytest.mark.slow
@settings(**WITHIN)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.sampled_from([2, 5, 9]),
    form=st.sampled_from(FORMS),
    convention=st.sampled_from(["left", "right"]),
)
def test_any_stochastic_matrix_is_applied_as_given(seed, nodes, form, convention):
    matrix = directed_matrix(seed, nodes)
    given_matrix = matrix.T if convention == "left" else matrix
    combination = graphs.from_stochastic(given_matrix, convention=convention, form=form)
    assert combination.form == form
    np.testing.assert_allclose(combination.matrix(), matrix, atol=1e-15)
    x = np.random.default_rng(seed).normal(size=(nodes, 3))
    np.testing.assert_allclose(combination(x), matrix @ x, atol=1e-13)
    distribution = np.asarray(combination.stationary)
    np.testing.assert_allclose(distribution, stationary_of(matrix), atol=1e-10)
    traced = BUILD[convention](given_matrix)
    np.testing.assert_allclose(traced.stationary, distribution, atol=1e-12)
    np.testing.assert_allclose(traced(x), matrix @ x, atol=1e-13)
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    assert float(combination.rate()) == pytest.approx(moduli[-2], abs=1e-9)
    assert float(RATE(combination)) == pytest.approx(moduli[-2], abs=1e-7)
    order = np.random.default_rng(seed).permutation(nodes)
    moved = graphs.from_stochastic(matrix[np.ix_(order, order)], convention="right", form=form)
    np.testing.assert_allclose(moved.stationary, distribution[order], atol=1e-12)
    np.testing.assert_allclose(moved(x[order]), matrix[order] @ x, atol=1e-13)


def test_a_traced_matrix_may_be_a_table():
    matrix = directed_matrix(3, 8)
    build = lambda a: graphs.from_stochastic(  # noqa: E731
        a, convention="right", form="padded", max_degree=7
    )
    traced = jax.jit(build)(matrix)
    assert traced.form == "padded"
    np.testing.assert_allclose(traced.matrix(), matrix, atol=1e-15)


@pytest.mark.slow
def test_hubs_overflow_in_one_direction_alone():
    # Everybody hears the hub, which hears everybody; the others hear two.
    nodes = 60
    matrix = 0.2 * np.eye(nodes) + 0.4 * np.roll(np.eye(nodes), 1, axis=1)
    matrix[:, 0] += 0.4
    matrix[0] = 1 / nodes
    combination = graphs.from_stochastic(matrix, convention="right", form="padded")
    assert combination.overflow is not None
    np.testing.assert_allclose(combination.matrix(), matrix, atol=1e-15)
    x = np.random.default_rng(0).normal(size=nodes)
    np.testing.assert_allclose(combination(x), matrix @ x, atol=1e-14)


def test_rate_is_that_of_the_disagreement():
    # A circulant: eigenvalues 0.5 + 0.5 exp(2 pi i j / K), not reversible though symmetric in law.
    nodes = 8
    matrix = 0.5 * np.eye(nodes) + 0.5 * np.roll(np.eye(nodes), 1, axis=1)
    one_way = graphs.from_stochastic(matrix, convention="right")
    exact = np.cos(np.pi / nodes)
    assert float(one_way.rate()) == pytest.approx(exact, abs=1e-12)
    assert float(RATE(one_way)) == pytest.approx(exact, abs=1e-9)
    assert one_way.doubly_stochastic
    assert not one_way.symmetric
    mean = graphs.from_stochastic(np.full((5, 5), 0.2), convention="left")
    assert float(mean.rate()) == pytest.approx(0.0, abs=1e-12)
    assert float(RATE(mean)) == pytest.approx(0.0, abs=1e-12)
    # Transient nodes have no weight in the law, which must not be divided by.
    follower = graphs.from_stochastic(
        [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.7, 0.3]],
        convention="right",
        allow_imprimitive=True,
    )
    np.testing.assert_array_equal(follower.stationary, [0.5, 0.5, 0.0])
    assert float(follower.rate()) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.slow
def test_traced_rates_agree_with_concrete_ones_under_vmap():
    keys = jax.random.split(jax.random.key(0), 4)
    draw = lambda key: graphs.random_connected(key, 12, 3.0)  # noqa: E731
    for rule in ("metropolis", "averaging"):
        mapped = jax.vmap(lambda key, rule=rule: draw(key).mixing(rule).rate())(keys)
        single = [float(draw(key).mixing(rule).rate()) for key in keys]
        np.testing.assert_allclose(mapped, single, atol=1e-9)


def test_sums_that_are_off_by_rounding_become_one():
    matrix = directed_matrix(1, 30).astype(np.float32)
    combination = graphs.from_stochastic(matrix, convention="right")
    np.testing.assert_allclose(np.asarray(combination.matrix()).sum(axis=1), 1.0, atol=1e-15)


def test_imprimitive_matrices_are_taken_if_asked_for():
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    periodic = graphs.from_stochastic(swap, convention="left", allow_imprimitive=True)
    np.testing.assert_allclose(periodic.stationary, 0.5)
    assert float(periodic.rate()) == pytest.approx(1.0)
    matrix = np.zeros((5, 5))
    matrix[:2, :2] = [[0.5, 0.5], [0.25, 0.75]]
    matrix[2:, 2:] = 1 / 3
    halves = graphs.from_stochastic(matrix, convention="right", allow_imprimitive=True)
    expected = np.array([2 / 3, 4 / 3, 1, 1, 1]) / 5
    np.testing.assert_allclose(halves.stationary, expected, atol=1e-15)
    np.testing.assert_allclose(expected @ matrix, expected, atol=1e-15)
    assert float(halves.rate()) == pytest.approx(1.0)


def test_known_matrices_stay_concrete_under_tracing_of_others():
    matrix = directed_matrix(5, 6)

    @jax.jit
    def traced(x):
        combination = graphs.from_stochastic(matrix, convention="right")
        assert not combination.symmetric
        assert 0.0 < float(combination.rate()) < 1.0
        return combination(x)

    np.testing.assert_allclose(traced(jnp.ones(6)), 1.0, atol=1e-14)


# Single neighbors, and links that fail ---------------------------------------------------------


def both_kinds():
    hub = graphs.from_adjacency(hub_matrix(40), form="padded")
    yield hub
    yield hub.as_form("dense")
    yield hub.mixing("averaging")
    yield hub.as_form("dense").mixing()
    yield graphs.erdos_renyi(jax.random.key(6), 500, 0.01)  # spare rows in its overflow
    yield graphs.from_stochastic(directed_matrix(2, 9), convention="right", form="padded")


@pytest.mark.slow
def test_the_table_lists_every_neighbor_once():
    for network in both_kinds():
        neighbors, weights = map(np.asarray, TABLE(network))
        assert neighbors.dtype == np.int32
        assert neighbors.shape == weights.shape == (network.nodes, weights.shape[1])
        if isinstance(network, graphs.Graph):
            expected = np.asarray(network.dense())
        else:
            expected = np.asarray(network.matrix()) - np.diag(network.self_weight)
        rows = np.arange(network.nodes)[:, None]
        result = np.zeros(expected.shape)
        np.add.at(result, (np.broadcast_to(rows, weights.shape), neighbors), weights)
        np.testing.assert_allclose(result, expected, atol=1e-16)
        filled = weights != 0
        assert filled.sum() == np.count_nonzero(expected)
        if network.form == "padded":
            np.testing.assert_array_equal((neighbors != rows)[filled], True)
            np.testing.assert_array_equal((neighbors == rows)[~filled], True)
        else:
            np.testing.assert_array_equal(neighbors, np.broadcast_to(rows.T, neighbors.shape))


def test_slots_that_fail_are_empty_slots():
    ring = graphs.ring(5, form="padded").thinned(lambda k, l: l != 0)  # noqa: E741
    neighbors, weights = ring.neighbor_table()
    assert neighbors[1].tolist() == [1, 2]
    assert weights[1].tolist() == [0.0, 1.0]


@pytest.mark.slow
@settings(**WITHIN)
@given(
    seed=st.integers(0, 10**6),
    form=st.sampled_from(FORMS),
    fair=st.booleans(),
    share=st.sampled_from([None, 0.25]),
)
def test_thinned_weights_go_to_the_receiver(seed, form, fair, share):
    rng = np.random.default_rng(seed)
    edges_left = rng.random((9, 9)) < 0.6
    edges_left = np.triu(edges_left, 1) + np.triu(edges_left, 1).T if fair else edges_left
    table = jnp.asarray(edges_left if share is None else np.where(edges_left, 1.0, share))
    graph = graphs.from_adjacency(weighted_matrix(seed, 9), form=form)
    combination = graph.mixing()
    thinned = THIN(combination, table)
    expected = np.asarray(combination.matrix()) * ~np.eye(9, dtype=bool) * np.asarray(table)
    expected += np.diag(1 - expected.sum(axis=1))
    np.testing.assert_allclose(thinned.matrix(), expected, atol=1e-15)
    np.testing.assert_allclose(np.asarray(thinned.matrix()).sum(axis=1), 1.0, atol=1e-14)
    assert thinned.stationary is None
    x = rng.normal(size=(9, 2))
    np.testing.assert_allclose(thinned(x), expected @ x, atol=1e-14)
    if fair:
        assert thinned.doubly_stochastic
        np.testing.assert_allclose(np.mean(thinned(x), axis=0), x.mean(axis=0), atol=1e-14)
    moduli = np.sort(np.abs(np.linalg.eigvals(expected)))
    assert float(thinned.rate()) == pytest.approx(moduli[-2], abs=1e-9)
    np.testing.assert_array_equal(
        THIN(graph, table).dense(),
        np.asarray(graph.dense()) * np.asarray(table),
    )


@pytest.mark.slow
def test_thinning_that_keeps_all_edges_changes_no_bit():
    for network in both_kinds():
        same = network.thinned(lambda k, l: jnp.ones_like(k + l, bool))  # noqa: E741
        before, after = (
            n.dense() if isinstance(n, graphs.Graph) else n.matrix() for n in (network, same)
        )
        np.testing.assert_array_equal(before, after)


# Bad inputs -------------------------------------------------------------------------------------

LEFT = np.array([[0.5, 0.2, 0.0], [0.5, 0.5, 0.3], [0.0, 0.3, 0.7]])


@pytest.mark.parametrize(
    ("matrix", "convention", "message"),
    [
        (np.ones((2, 3)) / 3, "left", r"square, \[K, K\], got shape \(2, 3\)"),
        (np.ones((4, 2, 2)) / 2, "left", r"square, \[K, K\], got shape \(4, 2, 2\)"),
        (np.ones((1, 1)), "left", "nodes must be >= 2, got 1"),
        (LEFT, "columns", "unknown convention 'columns'; known: left, right"),
        (LEFT, "right", "every row of .* row 0 sums to 0.7 .*columns do: give convention='left'"),
        (LEFT.T, "left", "column 0 sums to 0.7 .*its rows do: give convention='right'"),
        (2 * LEFT, "left", r"column 0 sums to 2 \(3 of 3 are wrong\); divide by the sums"),
        ([[1.5, 0.5], [-0.5, 0.5]], "left", "matrix must be finite and >= 0, got -0.5"),
        ([[np.nan, 0.5], [1.0, 0.5]], "left", "matrix must be finite and >= 0, got nan"),
        (np.eye(3), "left", r"is reducible: it has 3 strongly connected .* 1 of 3 nodes \(0\)"),
        ([[1.0, 0.5], [0.0, 0.5]], "left", "reducible.*pass allow_imprimitive=True"),
        (np.roll(np.eye(4), 1, axis=1), "left", r"with period 4 .* \(I \+ W\) / 2"),
        (
            np.asarray(graphs.ring(4).dense()) / 2,
            "right",
            "periodic: .* with period 2",
        ),
    ],
)
def test_matrices_that_are_not_stochastic_name_a_remedy(matrix, convention, message):
    with pytest.raises(ValueError, match=message):
        graphs.from_stochastic(matrix, convention=convention)


def test_a_crowded_table_is_refused():
    with pytest.raises(ValueError, match="max_degree=1 is too small: node 1 has 2 neighbors"):
        graphs.from_stochastic(LEFT, convention="left", form="padded", max_degree=1)
    with pytest.raises(ValueError, match="needs max_degree"):
        jax.jit(lambda a: graphs.from_stochastic(a, convention="left", form="padded"))(LEFT)


@pytest.mark.slow
def test_value_dependent_checks_are_not_traced():
    keys = jax.random.split(jax.random.key(0), 2)
    mixings = jax.vmap(lambda key: graphs.random_connected(key, 6, 3.0).mixing())(keys)
    for name in ("symmetric", "doubly_stochastic"):
        with pytest.raises(TypeError, match=rf"Combination\.{name} depends on the values"):
            jax.vmap(lambda c, name=name: getattr(c, name))(mixings)
        with pytest.raises(ValueError, match=r"is for one matrix, .* batched with shape \(2,\)"):
            getattr(mixings, name)
    with pytest.raises(ValueError, match="is for one matrix"):
        mixings.rate()
