"""Graphs of nearest neighbors, against loops over all pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import graphs
from tests.graphs.samples import check_simple
from tests.reference import jung_graphs as reference

POINTS = np.random.default_rng(0).normal(size=(14, 3))
DISTANCES = np.array([[np.linalg.norm(a - b) for b in POINTS] for a in POINTS])
PLACES = np.array([[60.2, 24.9], [61.5, 23.8], [-89.9, 10.0], [0.0, 179.9], [0.1, -179.9], [0, 0]])


def expected(keep, bandwidth, neighbors=3, discrepancy=DISTANCES):
    joined = reference.nearest(discrepancy, neighbors, keep)
    nearer = np.minimum(discrepancy, discrepancy.T)
    return joined * (1.0 if bandwidth is None else np.exp(-(nearer**2) / (2 * bandwidth**2)))


@pytest.mark.parametrize(("keep", "bandwidth"), [("any", None), ("any", 0.7), ("mutual", 1.3)])
def test_known_points_have_the_neighbors_of_the_loop(keep, bandwidth):
    for form in ("dense", "padded"):
        graph = graphs.nearest_neighbors(POINTS, 3, keep=keep, bandwidth=bandwidth, form=form)
        np.testing.assert_allclose(check_simple(graph), expected(keep, bandwidth), rtol=1e-12)
    again = graphs.nearest_neighbors(
        DISTANCES, 3, keep=keep, bandwidth=bandwidth, metric="precomputed"
    )
    np.testing.assert_allclose(again.dense(), graph.dense(), rtol=1e-12)


def test_traced_points_have_the_same_neighbors_for_each_seed():
    def build(points, bandwidth):
        wide = graphs.nearest_neighbors(points, 3, bandwidth=bandwidth)
        table = graphs.nearest_neighbors(points, 3, keep="mutual", form="padded")
        return wide.dense(), table.dense(), graphs.distances(points)

    points = np.stack([POINTS, POINTS[::-1]])
    wide, table, discrepancy = jax.jit(jax.vmap(build))(points, jnp.array([0.7, 0.7]))
    np.testing.assert_allclose(discrepancy[0], DISTANCES, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(wide[0], expected("any", 0.7), rtol=1e-12)
    np.testing.assert_array_equal(table[0], expected("mutual", None))
    np.testing.assert_allclose(wide[1], wide[0][::-1, ::-1], rtol=1e-12)


def test_places_on_the_earth_are_as_far_as_a_great_circle_is_long():
    discrepancy = np.array(
        [[reference.great_circle(a, b, graphs.EARTH_RADIUS) for b in PLACES] for a in PLACES]
    )
    # The haversine, accurate where places are near, has eight digits left at the antipodes.
    np.testing.assert_allclose(graphs.distances(PLACES, "geodesic"), discrepancy, rtol=1e-12)
    graph = graphs.nearest_neighbors(PLACES, 2, metric="geodesic", bandwidth=9000.0)
    np.testing.assert_allclose(graph.dense(), expected("any", 9000.0, 2, discrepancy), rtol=1e-12)
    drawn = jax.jit(lambda at: graphs.nearest_neighbors(at, 2, metric="geodesic").dense())(PLACES)
    np.testing.assert_array_equal(drawn, expected("any", None, 2, discrepancy))
    assert bool(drawn[3, 4])  # across the date line


def test_infinite_discrepancies_are_never_joined_and_ties_go_to_the_lower_number():
    discrepancy = np.ones((6, 6))
    discrepancy[:4, 4:] = discrepancy[4:, :4] = np.inf
    graph = graphs.nearest_neighbors(discrepancy, 3, metric="precomputed")
    np.testing.assert_array_equal(graph.dense(), expected("any", None, 3, discrepancy))
    assert graph.components().tolist() == [0, 0, 0, 0, 4, 4]
    traced = jax.jit(lambda d: graphs.nearest_neighbors(d, 1, metric="precomputed").dense())(
        discrepancy
    )
    np.testing.assert_array_equal(traced, expected("any", None, 1, discrepancy))


def test_one_sided_discrepancies_are_read_row_by_row():
    rng = np.random.default_rng(3)
    discrepancy = rng.random((9, 9))
    for keep in ("any", "mutual"):
        options = {"metric": "precomputed", "keep": keep, "bandwidth": 0.5}
        graph = graphs.nearest_neighbors(discrepancy, 2, **options)
        np.testing.assert_allclose(graph.dense(), expected(keep, 0.5, 2, discrepancy), rtol=1e-12)
        traced = jax.jit(lambda d, g=options: graphs.nearest_neighbors(d, 2, **g).dense())(
            discrepancy
        )
        np.testing.assert_allclose(traced, graph.dense(), rtol=1e-12)


def test_coinciding_points_are_neighbors():
    points = np.repeat(POINTS[:4], 30, axis=0)
    graph = graphs.nearest_neighbors(points, 3)
    assert int(jnp.min(graph.neighbor_counts())) >= 3
    same = np.repeat(np.arange(4), 30)
    assert np.all(same[graph.edges[:, 0]] == same[graph.edges[:, 1]])


def test_a_large_network_is_stored_without_a_matrix():
    points = np.random.default_rng(1).random((30_000, 2))
    graph = graphs.nearest_neighbors(points, 4)
    assert graph.form == "padded"
    sample = np.arange(0, 30_000, 3_000)
    discrepancy = np.linalg.norm(points[sample, None] - points[None], axis=2)
    nearest = np.argsort(discrepancy, axis=1)[:, 1:5]
    result = [set(graph.edges[(graph.edges == i).any(axis=1)].ravel()) - {i} for i in sample]
    assert all(set(near) <= far for near, far in zip(nearest, result, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"neighbors": 14}, "neighbors must be below the number of nodes, 14: .* got 14"),
        ({"neighbors": 0}, "neighbors must be >= 1, got 0"),
        ({"points": np.where(POINTS > 1, np.nan, POINTS)}, "points holds .* NaN"),
        ({"points": PLACES[:, ::-1], "metric": "geodesic"}, "the latitude must be .* comes first"),
        ({"metric": "geodesic"}, "latitude and longitude in degrees, got shape"),
        ({"points": DISTANCES[:3], "metric": "precomputed"}, "discrepancies must be square"),
        ({"points": -DISTANCES, "metric": "precomputed"}, "discrepancies must be >= 0 .* got -"),
        ({"points": DISTANCES * np.nan, "metric": "precomputed"}, "not NaN, got nan"),
        ({"bandwidth": 0.001}, "leaves no weight .* such as their median"),
        ({"keep": "all"}, "unknown keep 'all'; known: any, mutual"),
        ({"metric": "manhattan"}, "unknown metric 'manhattan'"),
        ({"max_degree": 1, "form": "padded"}, "max_degree=1 is too small"),
    ],
)
def test_errors_are_reported(arguments, message):
    with pytest.raises(ValueError, match=message):
        graphs.nearest_neighbors(**{"points": POINTS, "neighbors": 3} | arguments)


def test_drawn_points_are_checked_before_a_study():
    def scenario(key):
        points = jnp.log(jax.random.normal(key, (4, 2)))  # of negative numbers there is none
        return fl.Simulation(
            fl.problems.ridge(key, clients=4, samples=3, dim=2),
            fl.algorithms.ATC(0.1),
            graphs.nearest_neighbors(points, 2),
        )

    with pytest.raises(ValueError, match=r"points holds .* NaN"):
        fl.sweep(scenario, rounds=2, seeds=2)


@pytest.mark.parametrize(
    ("samples", "probability"),
    [
        (1, 0.530),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in [(2, 0.324), (5, 0.121), (10, 0.063), (20, 0.047)]
        ),
    ],
)
def test_neighborhoods_contain_the_other_kind_at_the_predicted_frequency(samples, probability):
    """Exercise 7.1: of 100 nodes of two kinds, each among 10 random candidates the nearest 3."""
    rng = np.random.default_rng(samples)
    kind = np.repeat([-1.0, 1.0], 50)
    runs = 60
    wrong = []
    for _ in range(runs):
        discrepancy = np.full((100, 100), np.inf)
        means = kind + rng.normal(size=100) / np.sqrt(samples)
        for i in range(100):
            candidates = rng.choice(np.delete(np.arange(100), i), 10, replace=False)
            discrepancy[i, candidates] = np.abs(means[i] - means[candidates])
        # The graph joins who chose or was chosen; the exercise asks for who was chosen.
        graph = graphs.nearest_neighbors(discrepancy, 3, metric="precomputed")
        third = np.sort(discrepancy, axis=1)[:, 2]
        chosen = (np.asarray(graph.dense()) > 0) & (discrepancy <= third[:, None])
        assert np.all(chosen.sum(axis=1) == 3)
        wrong.append(np.mean(np.any(chosen & (kind[:, None] != kind[None]), axis=1)))
    assert np.mean(wrong) == pytest.approx(probability, abs=4 * np.std(wrong) / np.sqrt(runs))
