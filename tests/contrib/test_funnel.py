"""The privacy funnel against exhaustive search and linear programs; its Gaussian closed form."""

import itertools

import numpy as np
import pytest
from scipy import optimize

import fljax as fl
from fljax.contrib import (
    GaussianFunnel,
    funnel,
    joint_table,
    mutual_information,
    privacy_funnel,
    private_map,
    quantized,
)


def table_of(seed, values, private=2, useful=2, identity=False):
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.ones(values))
    of_s = rng.dirichlet(np.full(private, 0.5), values).T
    of_y = np.eye(values) if identity else rng.dirichlet(np.full(useful, 0.5), values).T
    return np.einsum("sx,yx,x->sxy", of_s, of_y, share)


def informations(table, channel):
    return tuple(mutual_information(table.sum(a) @ channel) for a in (2,)) + (
        mutual_information(table.sum(0).T @ channel),
    )


def deterministic(table):
    """I(s;z), I(y;z) of every deterministic map, by exhaustive search."""
    values = table.shape[1]
    for labels in itertools.product(range(values), repeat=values):
        if all(label <= max(labels[:i], default=-1) + 1 for i, label in enumerate(labels)):
            yield informations(table, np.eye(values)[list(labels)])


@pytest.fixture(scope="module", params=[(0, 4, False), (1, 5, False), (2, 4, True), (3, 5, True)])
def solved(request):
    seed, values, identity = request.param
    table = table_of(seed, values, identity=identity)
    return table, privacy_funnel(table, key=seed)


@pytest.mark.thin(1, every=1)
def test_no_deterministic_map_is_below_the_curve(solved):
    table, curve = solved
    tried = list(deterministic(table))
    assert len(tried) in (15, 52)  # Bell's numbers
    for private, useful in tried:
        assert curve.at(useful).private <= private + 1e-6


@pytest.mark.thin(1, every=1)
def test_every_point_is_attained_by_its_map(solved):
    table, curve = solved
    for level in np.linspace(0, curve.useful[-1], 17):
        point = curve.at(level)
        np.testing.assert_allclose(point.map.sum(1), 1)
        private, useful = informations(table, point.map)
        assert private == pytest.approx(point.private, abs=1e-9)
        assert useful == pytest.approx(point.useful, abs=1e-9)
        assert point.useful >= level - 1e-9


def test_the_curve_is_convex_and_ends_at_the_information_of_the_features(solved):
    table, curve = solved
    private, useful = informations(table, np.eye(table.shape[1]))
    assert curve.useful[0] == curve.private[0] == 0
    assert curve.useful[-1] == pytest.approx(useful)
    assert curve.private[-1] <= private + 1e-9
    slopes = np.diff(curve.private) / np.diff(curve.useful)
    assert np.all(np.diff(slopes) >= -1e-9)


@pytest.mark.thin(1, every=1)
@pytest.mark.parametrize("seed", range(3))
def test_the_curve_is_that_of_a_linear_program_over_posteriors(seed):
    """For three values of x each posterior given z is a point of a triangle, here of a grid."""
    table = table_of(seed, 3)
    curve = privacy_funnel(table, key=seed)
    share = table.sum((0, 2))
    steps = 60
    grid = np.array([(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)])
    posteriors = grid / steps

    def lost(joint):
        """Information of one z with each posterior, weighted by its probability."""
        of_each = posteriors @ (joint / share).T
        log = np.log(np.maximum(of_each, 1e-300) / joint.sum(1))
        return np.sum(of_each * log, axis=1)

    private = lost(table.sum(2))
    useful = lost(table.sum(0).T)
    for part in (0.2, 0.5, 0.8):
        level = part * curve.useful[-1]
        program = optimize.linprog(
            private, -useful[None], [-level], posteriors.T, share, bounds=(0, None)
        )
        assert program.fun - 2e-4 <= curve.at(level).private <= program.fun + 5e-5


@pytest.mark.slow
def test_a_coin_in_y_costs_no_private_information():
    # x = (s, y), apart: y alone tells nothing of s.
    table = np.zeros((2, 4, 2))
    for s, y in itertools.product((0, 1), repeat=2):
        table[s, 2 * s + y, y] = 1.0
    curve = privacy_funnel(table)
    assert curve.useful[-1] == pytest.approx(np.log(2))
    assert curve.private[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_useful_private_information_costs_all_of_it():
    table = np.zeros((2, 2, 2))
    table[0, 0, 0] = table[1, 1, 1] = 0.5  # s = x = y
    curve = privacy_funnel(table)
    for level in (0.1, 0.5, np.log(2)):
        assert curve.at(level).private == pytest.approx(level, abs=1e-9)


@pytest.mark.thin(1, every=1)
@pytest.mark.parametrize("seed", range(4))
def test_all_useful_information_costs_that_of_a_sufficient_statistic(seed):
    # Two values of x say the same of y, and not of s.
    rng = np.random.default_rng(seed)
    of_y = rng.dirichlet(np.ones(2), 3).T[:, [0, 0, 1, 2]]
    table = np.einsum("sx,yx->sxy", rng.dirichlet(np.ones(2), 4).T, of_y) / 4
    private, useful = informations(table, np.eye(3)[[0, 0, 1, 2]])
    curve = privacy_funnel(table, key=seed)
    assert curve.useful[-1] == pytest.approx(useful)
    assert curve.at(useful).private == pytest.approx(private, abs=1e-8)
    assert informations(table, np.eye(4))[0] > private + 1e-3


@pytest.mark.parametrize("off", [1e-12, -1e-12, 0.0])
def test_of_equally_useful_maps_the_less_informative_is_kept(off):
    ends = [(0.0, 0.0, np.eye(2)), (1.0, 0.1, np.eye(2)), (1.0 + off, 0.9, np.eye(2))]
    assert [point[1] for point in funnel._lower_hull(ends)] == [0.0, 0.1]


@pytest.mark.slow
def test_the_exchanged_curve_is_an_upper_bound():
    table = table_of(1, 4)
    other = privacy_funnel(table.transpose(2, 1, 0))
    for private, useful in deterministic(table):
        if private <= other.useful[-1]:
            assert other.at(private).private <= useful + 1e-6


@pytest.mark.slow
def test_more_exponents_and_restarts_compile_once_each():
    funnel._descend_from.clear_cache()
    for seed in range(3):
        privacy_funnel(table_of(seed, 4), key=seed, iterations=50)
    assert funnel._descend_from._cache_size() == 1


@pytest.mark.parametrize("generator", ["fljax-threefry", "threefry2x32"])
def test_a_curve_with_more_restarts_is_nowhere_above(generator):
    for seed in range(2):
        table = table_of(seed, 5, private=3, useful=3)
        key = fl.random_key(seed, generator)
        curves = [privacy_funnel(table, key, 6, restarts, 60) for restarts in (1, 2, 4)]
        most = min(curve.useful[-1] for curve in curves)
        merged = 2e-9 * most  # points that differ by less count as one
        levels = np.concatenate([np.linspace(0, most, 50), *(curve.useful for curve in curves)])
        for fewer, more in itertools.pairwise(curves):
            for level in np.minimum(levels, most - merged):
                assert more.at(level).private <= fewer.at(level + merged).private + 1e-12


def test_tables_of_samples():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 2))
    cells = quantized(x, 4)
    assert np.bincount(cells[:, 0]).tolist() == [250] * 4
    assert np.all(np.diff(cells[np.argsort(x[:, 1]), 1]) >= 0)
    s = (x[:, 0] > np.median(x[:, 0])).astype(int)
    table = joint_table(s, cells, cells[:, 1])
    assert table.shape == (2, 16, 4)
    assert table.sum() == pytest.approx(1)
    assert mutual_information(table.sum(2)) == pytest.approx(np.log(2), abs=1e-3)
    with pytest.raises(ValueError, match="the same number of samples, got"):
        joint_table(s[:10], cells, cells)
    with pytest.raises(ValueError, match="levels must be >= 2"):
        quantized(x, 1)


def test_bad_tables_and_levels():
    table = table_of(0, 4)
    curve = privacy_funnel(table, iterations=50)
    with pytest.raises(ValueError, match=r"at most I\(x;y\) = .* nats, got 5: no function"):
        curve.at(5.0)
    with pytest.raises(ValueError, match="level must be finite and >= 0"):
        curve.at(-0.1)
    with pytest.raises(ValueError, match="table must be finite and >= 0"):
        privacy_funnel(-table)
    with pytest.raises(ValueError, match="table holds zeros alone"):
        privacy_funnel(0 * table)
    with pytest.raises(ValueError, match=r"shape \[private, features, useful\]"):
        privacy_funnel(table[0])


# --------------------------------------------------------------------------- Gaussian


FIGURE = GaussianFunnel(np.eye(2), np.array([1.0, 0.0]), np.array([0.5, 1.0]), 1.04, 1.29)


@pytest.mark.parametrize(
    ("degrees", "private", "useful"),
    [(0, 1.63, 0.11), (45, 0.33, 1.03), (60, 0.14, 1.68), (75, 0.03, 1.33), (90, 0.0, 0.75)],
)
def test_figure_9_4(degrees, private, useful):
    """s = x1 + noise, y = x1 / 2 + x2 + noise, both of deviation 0.2."""
    angle = np.deg2rad(degrees)
    result = FIGURE.informations(np.array([np.cos(angle), np.sin(angle)]))
    assert result == pytest.approx((private, useful), abs=0.005)


def random_funnel(seed, dim, attributes):
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(dim + attributes + 1, dim + attributes + 1))
    joint = mixed @ mixed.T
    x = slice(0, dim)
    s = slice(dim, dim + attributes)
    return GaussianFunnel(joint[x, x], joint[x, s], joint[x, -1], joint[s, s], joint[-1, -1])


@pytest.mark.parametrize(("dim", "attributes"), [(2, 1), (4, 1), (5, 2), (3, 4)])
@pytest.mark.thin(1, every=1)
def test_random_directions_and_subspaces_are_not_better(dim, attributes):
    rng = np.random.default_rng(dim)
    for seed in range(5):
        funnel = random_funnel(seed, dim, attributes)
        assert funnel.at(funnel.most).useful == pytest.approx(funnel.most)
        for _ in range(100):
            rows = rng.normal(size=(rng.integers(1, dim + 1), dim))
            if rng.random() < 0.5:  # near the best
                rows[0] = funnel.at(rng.random() * funnel.most).map + 0.1 * rows[0]
            private, useful = funnel.informations(rows)
            assert funnel.at(useful).private <= private + 1e-9
            assert funnel.at(useful).useful >= useful - 1e-9


def test_a_sweep_of_directions_finds_the_closed_form():
    angles = np.deg2rad(np.arange(0, 180, 0.05))
    swept = np.array([FIGURE.informations(np.array([np.cos(a), np.sin(a)])) for a in angles])
    for level in (0.8, 1.2, 1.7):
        best = swept[swept[:, 1] >= level, 0].min()
        assert FIGURE.at(level).private == pytest.approx(best, abs=1e-3)
        assert FIGURE.at(level).private <= best + 1e-12


@pytest.mark.slow
def test_without_leakage_it_is_the_map_of_184():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 2))
    s = x[:, 0] + 0.2 * rng.normal(size=4000)
    y = 0.5 * x[:, 0] + x[:, 1] + 0.2 * rng.normal(size=4000)
    funnel = GaussianFunnel.of_samples(x, s, y)
    hidden = np.asarray(private_map(x, s, center=True))
    free = funnel.at(0.0).map
    # One coordinate of two: both see x along one direction, which is near 90 degrees.
    direction = hidden[:, 0]
    assert abs(direction @ free) == pytest.approx(1)
    assert np.degrees(np.arctan2(*np.abs(free[::-1]))) == pytest.approx(90, abs=3)
    assert funnel.informations(free)[0] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(funnel.at(0.5).map, free)


@pytest.mark.parametrize("seed", range(8))
def test_information_does_not_depend_on_the_units_of_rows(seed):
    """Rows that are small next to others, features in other units, differences of rows."""
    rng = np.random.default_rng(seed)
    funnel = random_funnel(seed, 4, 2)
    rows = rng.normal(size=(3, 4))
    exact = funnel.informations(rows)
    assert exact[0] > funnel.informations(rows[:1])[0] + 1e-3
    for small in (1e-3, 1e-6, 1e-12, 1e-100, 1e-200):
        assert funnel.informations(rows * [[1.0], [small], [small**0.5]]) == pytest.approx(exact)
    for small in (2.0**-10, 2.0**-20, 2.0**-40):
        # Numbers with few digits, so that sums are exact.
        digits = rng.integers(-7, 8, (3, 4)) * 1.0
        near = digits[:1] + small * digits
        near[0] = digits[0]
        wanted = funnel.informations(digits)
        assert funnel.informations(near) == pytest.approx(wanted, rel=1e-7)
        assert funnel.informations(np.vstack([near, near, 0 * near])) == pytest.approx(
            wanted, rel=1e-7
        )
    units = 10.0 ** rng.integers(-8, 9, 4)
    of_s = 1e-7
    of_y = 1e9
    other = GaussianFunnel(
        funnel.covariance * units[:, None] * units[None],
        funnel.private * units[:, None] * of_s,
        funnel.useful * units * of_y,
        funnel.private_covariance * of_s**2,
        funnel.useful_variance * of_y**2,
    )
    assert other.informations(rows / units[None]) == pytest.approx(exact, rel=1e-6)
    assert other.most == pytest.approx(funnel.most, rel=1e-6)
    level = 0.7 * funnel.most
    assert other.at(level).private == pytest.approx(funnel.at(level).private, rel=1e-5, abs=1e-9)


def independent(seed):
    """A funnel whose useful variable is independent of the private ones."""
    rng = np.random.default_rng(seed)
    dim, attributes = [(1, 1), (2, 1), (3, 1), (4, 2)][seed % 4]
    private = rng.normal(size=(dim, attributes))
    useful = rng.normal(size=dim)
    if dim > 1:
        basis = np.linalg.qr(private)[0]
        useful = useful - basis @ (basis.T @ useful)
    return GaussianFunnel(
        np.eye(dim),
        private,
        useful,
        private.T @ private + np.eye(attributes),
        float(useful @ useful + 1),
    )


def test_every_level_has_a_direction_up_to_the_last():
    """Levels where rounding decides: all information of the features, and the level that costs
    nothing.
    """
    for seed in range(150):
        for problem in (independent(seed), random_funnel(seed, 3, 1 + seed % 3)):
            for level in (problem.most, problem.at(0.0).useful, 0.999999999 * problem.most):
                point = problem.at(level)
                assert np.linalg.norm(point.map) == pytest.approx(1)
                assert point.useful >= level - 1e-9 * max(level, 1)
            free = problem.at(0.0)
            assert problem.at(free.useful).private <= free.private + 1e-14


def test_private_useful_features_can_only_be_diluted():
    """x1 is all that s and y depend on: z is x1 and as much of x2 as the level allows."""
    funnel = GaussianFunnel(np.eye(2), np.array([0.8, 0.0]), np.array([0.6, 0.0]), 1.0, 1.0)
    for level in (0.0, 0.1, funnel.most):
        point = funnel.at(level)
        assert point.useful == pytest.approx(level, abs=1e-12)
        share = -np.expm1(-2 * level) / 0.36
        assert point.private == pytest.approx(-0.5 * np.log1p(-share * 0.64), abs=1e-12)


def test_as_many_attributes_as_features_leave_no_independent_part():
    assert random_funnel(0, 3, 4).at(0.0).private > 0.01
    assert random_funnel(0, 3, 2).at(0.0).private == pytest.approx(0, abs=1e-12)


def test_information_is_infinite_where_a_feature_is_the_attribute():
    funnel = GaussianFunnel(np.eye(2), np.array([1.0, 0.0]), np.array([0.5, 0.5]), 1.0, 1.0)
    assert funnel.informations(np.eye(2))[0] == np.inf
    assert funnel.at(0.0).private == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": np.eye(3)}, "must be .* got shapes"),
        ({"covariance": np.ones((2, 2))}, "covariance must be positive definite"),
        ({"covariance": np.diag([1.0, 0.0])}, "positive definite, got a variance of 0"),
        ({"useful_variance": 0.0}, "useful_variance must be finite and > 0"),
        ({"useful_variance": 0.5}, "useful is no covariance of these variables"),
        ({"private": np.array([9.0, 0.0])}, "private is no covariance of these variables"),
    ],
)
def test_bad_gaussians(change, message):
    right = {
        "covariance": np.eye(2),
        "private": np.array([1.0, 0.0]),
        "useful": np.array([0.5, 1.0]),
        "private_covariance": 1.04,
        "useful_variance": 1.29,
    }
    with pytest.raises(ValueError, match=message):
        GaussianFunnel(**(right | change))
    with pytest.raises(ValueError, match=r"at most I\(x;y\) = 1.737 nats, got 3"):
        FIGURE.at(3.0)
    with pytest.raises(ValueError, match="a number for each feature, got shape"):
        FIGURE.informations(np.ones(3))
    with pytest.raises(ValueError, match="maps holds 1 NaN"):
        FIGURE.informations(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="got 10, 10 and 9"):
        GaussianFunnel.of_samples(np.ones((10, 2)), np.ones(10), np.ones(9))
