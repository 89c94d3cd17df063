"""Streams against their distributions, the loops and NumPy; feature maps; test errors; curves over
bits.

Statistical tests use fixed keys and fail below ``LEVEL``, far below a correct draw's p-values.
"""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from scipy import stats

import fljax as fl
from fljax import plotting
from fljax._core.module import module
from fljax._core.prng import key_of
from fljax.algorithms import ConventionalFL, FedAvg, NetworkedADMM, OnlineFed, PAOFed, ZCDPGradNFL
from fljax.algorithms.server.online_fed import lms
from fljax.data import random_fourier
from fljax.link import Circular, Geometric
from fljax.participation.patterns import Always, Bernoulli, Trace, Until, groups
from fljax.problems import LeastSquares, Problem, SquaredL2, from_clients, least_squares, optimum
from fljax.problems.streams import (
    Autoregressive,
    Linear,
    Replay,
    Stream,
    autoregressive,
    classical_target,
    from_observations,
    printed_target,
    samples,
)
from tests.reference import online

mpl.use("Agg")

import matplotlib.pyplot as plt

LEVEL = 1e-4


def played(stream, key, rounds):
    """What the clients get, as a run gets it: features ``[T, K, P]``, targets, weights."""

    def move(state, n):
        state, problem = stream.observe(state, jax.random.fold_in(key, n), n)
        return state, (problem.features[:, 0], problem.targets[:, 0], problem.weights[:, 0])

    state = stream.begin(jax.random.fold_in(key, 0))
    return jax.lax.scan(move, state, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]


def play(stream, rounds, seed=0):
    return [
        np.asarray(part)
        for part in jax.jit(played, static_argnums=2)(stream, jax.random.key(seed), rounds)
    ]


def many(stream, rounds, runs, seed=0):
    """The same of independent runs, ``[R, T, K, ...]``."""
    keys = jax.random.split(jax.random.key(seed), runs)
    return [
        np.asarray(part) for part in jax.jit(jax.vmap(lambda k: played(stream, k, rounds)))(keys)
    ]


def is_normal(values, mean, variance):
    """Independent values have this mean and this variance, by exact two-sided tests."""
    count = values.size
    z = (values.mean() - mean) / np.sqrt(variance / count)
    assert 2 * stats.norm.sf(abs(z)) > LEVEL
    square = ((values - mean) ** 2).sum() / variance
    assert 2 * min(stats.chi2.sf(square, count), stats.chi2.cdf(square, count)) > LEVEL


def is_correlation(first, second, expected):
    """Fisher's transform of the correlation of independent normal pairs."""
    result = np.corrcoef(first, second)[0, 1]
    z = (np.arctanh(result) - np.arctanh(expected)) * np.sqrt(len(first) - 3)
    assert 2 * stats.norm.sf(abs(z)) > LEVEL


# Autoregressive inputs --------------------------------------------------------------------------

THETA = np.array([0.2, 0.6, 0.9])
MEAN = np.array([0.2, 0.0, -0.15])
VARIANCE = np.array([0.3, 1.2, 0.8])
NOISE = np.array([0.03, 0.005, 0.01])
LEVELS = MEAN * np.sqrt((1 + THETA) / (1 - THETA))  # of the processes


def process(**changes):
    return Autoregressive(THETA, MEAN, VARIANCE, NOISE, **changes)


@pytest.mark.slow
def test_inputs_are_stationary_from_the_first_round_on():
    inputs, _, _ = many(process(lags=(0, 1, 2, 3, 4)), 6, 6000)
    for k in range(3):
        for n in (0, 5):
            is_normal(inputs[:, n, k, 0], LEVELS[k], VARIANCE[k])
            is_normal(inputs[:, n, k, 4], LEVELS[k], VARIANCE[k])
            for h in range(1, 5):
                is_correlation(inputs[:, n, k, 0], inputs[:, n, k, h], THETA[k] ** h)
    is_correlation(inputs[:, 5, 0, 0], inputs[:, 5, 1, 0], 0.0)
    is_correlation(inputs[:, 5, 2, 0], inputs[:, 0, 2, 0], THETA[2] ** 5)


@pytest.mark.slow
def test_inputs_follow_the_recursion_and_reach_back_before_the_first_round():
    stream = process()
    key = jax.random.key(3)
    rounds = 30
    keys = [key_of(jax.random.fold_in(key, n), "stream") for n in range(1, rounds + 1)]
    normals = np.array([jax.random.normal(k, (2, 3), jnp.float64) for k in keys])
    past = np.asarray(stream.start(key_of(jax.random.fold_in(key, 0), "stream")))
    assert past.shape == (3, 5)
    path = online.ar1(THETA, MEAN, VARIANCE, normals[:, 0], past[:, 0])
    longer = np.concatenate([past.T[::-1], path])  # x(-4), ..., x(0), x(1), ...
    inputs, targets, weights = play(stream, rounds, seed=3)
    for n in range(1, rounds + 1):
        for position, lag in enumerate((0, 1, 4, 3)):
            np.testing.assert_allclose(inputs[n - 1, :, position], longer[4 + n - lag], rtol=1e-12)
    clean = np.array([[online.target(x) for x in row] for row in inputs])
    np.testing.assert_allclose(targets, clean + np.sqrt(NOISE) * normals[:, 1], rtol=1e-12)
    assert (weights == 1).all()


@pytest.mark.slow
def test_the_lags_are_the_requested_ones():
    printed, _, _ = play(process(), 20)
    straight, _, _ = play(process(lags=(0, 1, 2, 3)), 20)
    longer, _, _ = play(process(lags=(0, 1, 2, 3, 4)), 20)
    np.testing.assert_array_equal(printed[4:], longer[4:, :, [0, 1, 4, 3]])
    for n in range(3, 20):
        for lag in range(4):
            np.testing.assert_array_equal(straight[n, :, lag], straight[n - lag, :, 0])
    assert process().dim == 4
    assert process(lags=(0, 2)).dim == 2


@pytest.mark.parametrize(
    ("target", "bracket"), [(printed_target, "printed"), (classical_target, "classical")]
)
@pytest.mark.thin(1)
def test_both_readings_of_the_target(target, bracket):
    x = np.random.default_rng(0).normal(size=(40, 4))
    np.testing.assert_allclose(target(x), [online.target(row, bracket) for row in x], rtol=1e-12)
    assert np.ptp(np.asarray(printed_target(x) - classical_target(x))) > 0.5
    inputs, targets, _ = play(process(target=target), 400)
    clean = np.array([[online.target(v, bracket) for v in row] for row in inputs])
    for k in range(3):
        is_normal(targets[:, k] - clean[:, k], 0.0, NOISE[k])


@pytest.mark.slow
def test_the_processes_move_on_whether_samples_arrive_or_not():
    arrivals = np.random.default_rng(1).uniform(size=(25, 3)) < 0.3
    always = play(process(), 25)
    sometimes = play(process(arrivals=Trace(arrivals)), 25)
    np.testing.assert_array_equal(sometimes[0], always[0])
    np.testing.assert_array_equal(sometimes[2], arrivals)


@pytest.mark.slow
def test_held_out_samples_are_independent_draws_of_the_mixture():
    far = np.array([-60.0, 0.0, 45.0])
    means = far * np.sqrt((1 - THETA) / (1 + THETA))
    stream = Autoregressive(THETA, means, VARIANCE, NOISE)
    count = 9000
    test = jax.jit(lambda key: stream.held_out(key, count))(jax.random.key(5))
    assert (test.clients, test.samples, test.dim) == (1, count, 4)
    inputs = np.asarray(test.features[0])
    targets = np.asarray(test.targets[0])
    client = np.abs(inputs[:, :1] - far).argmin(1)
    assert stats.chisquare(np.bincount(client, minlength=3)).pvalue > LEVEL
    residual = targets - np.asarray(printed_target(inputs))
    for k in range(3):
        of_client = client == k
        is_normal(residual[of_client], 0.0, NOISE[k])
        for position in range(4):
            is_normal(inputs[of_client, position], far[k], VARIANCE[k])
        for (i, j), h in {(0, 1): 1, (0, 2): 4, (0, 3): 3, (2, 3): 1, (1, 3): 2}.items():
            is_correlation(inputs[of_client, i], inputs[of_client, j], THETA[k] ** h)
        is_correlation(inputs[of_client, 0][1:], inputs[of_client, 0][:-1], 0.0)
    exact = stream.held_out(jax.random.key(5), 50, noisy=False)
    np.testing.assert_allclose(exact.targets, printed_target(exact.features), rtol=1e-12)


@pytest.mark.slow
def test_the_parameters_are_drawn_in_their_ranges_for_every_key():
    stream = autoregressive(jax.random.key(0), 4000, test_samples=7)
    ranges = {
        "memory": (0.2, 0.9),
        "mean": (-0.2, 0.2),
        "variance": (0.2, 1.2),
        "noise": (0.005, 0.03),
    }
    drawn = {}
    for name, (low, high) in ranges.items():
        drawn[name] = np.asarray(getattr(stream, name))
        distribution = stats.uniform(low, high - low)
        assert stats.kstest(drawn[name], distribution.cdf).pvalue > LEVEL
        assert low <= drawn[name].min()
        assert drawn[name].max() < high
    correlations = np.corrcoef(list(drawn.values()))[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < stats.norm.isf(LEVEL) / np.sqrt(4000)
    assert stream.test.samples == 7
    again, other = (autoregressive(jax.random.key(s), 4000, test_samples=7) for s in (0, 1))
    for name in ranges:
        np.testing.assert_array_equal(getattr(again, name), drawn[name])
        assert (np.asarray(getattr(other, name)) != drawn[name]).mean() > 0.99
    assert not np.array_equal(other.test.features, stream.test.features)


@pytest.mark.slow
def test_settings_of_the_source_reach_the_stream():
    feature_map = random_fourier(jax.random.key(1), 4, 12)
    stream = autoregressive(
        jax.random.key(0),
        3,
        feature_map,
        Until(2),
        lags=(0, 1, 2, 3),
        target=classical_target,
        noisy_test=False,
    )
    assert (stream.clients, stream.dim, stream.test.dim) == (3, 12, 12)
    inputs, _, weights = play(stream, 3)
    np.testing.assert_array_equal(weights, [[1] * 3, [1] * 3, [0] * 3])
    assert inputs.shape == (3, 3, 4)
    np.testing.assert_allclose(stream.test.targets, classical_target(stream.test.features))
    ready = stream.prepare().test
    assert ready.feature_map is None
    np.testing.assert_allclose(ready.features, feature_map(stream.test.features), rtol=1e-12)
    for sizes in ({"clients": 0}, {"clients": 3, "test_samples": 0}):
        with pytest.raises(ValueError, match="must be >= 1, got 0"):
            autoregressive(jax.random.key(0), **sizes)


def test_groups_of_clients_get_their_numbers_of_samples():
    sizes = np.array([500, 1000, 1500, 2000])
    stream = Linear(
        np.ones((256, 1, 1)), np.ones(1), np.zeros(256), Bernoulli(groups(sizes / 2000, 256))
    )
    _, _, weights = play(stream, 2000)
    arrived = weights.sum(0).reshape(4, 64)
    assert (arrived[3] == 2000).all()
    for size, counts in zip(sizes[:3], arrived, strict=False):
        probability = size / 2000
        low, high = stats.binom.interval(1 - LEVEL / 256, 2000, probability)
        assert ((low <= counts) & (counts <= high)).all()
        assert stats.binomtest(int(counts.sum()), 64 * 2000, probability).pvalue > LEVEL
        spread = ((counts - size) ** 2).sum() / (2000 * probability * (1 - probability))
        assert 2 * min(stats.chi2.sf(spread, 64), stats.chi2.cdf(spread, 64)) > LEVEL


@pytest.mark.slow
def test_a_stream_is_the_same_under_vmap_and_one_by_one():
    def learn(key):
        k_stream, k_run = jax.random.split(key)
        stream = autoregressive(k_stream, 3, arrivals=Bernoulli(0.5), test_samples=5)
        return stream.test.targets, played(stream, k_run, 7)

    keys = jax.random.split(jax.random.key(2), 3)
    together = jax.jit(jax.vmap(learn))(keys)
    alone = jax.jit(learn)(keys[1])
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(a, b[1], rtol=1e-10)


# Linear data ------------------------------------------------------------------------------------


def test_linear_data_have_their_covariances_and_responses():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(3, 4, 4))
    truth = rng.normal(size=4)
    noise = np.array([0, 0.5, 2.0])
    inputs, targets, weights = play(Linear(roots, truth, noise), 8000)
    assert (weights == 1).all()
    np.testing.assert_allclose(targets[:, 0], inputs[:, 0] @ truth, rtol=1e-10)
    for k in range(3):
        white = np.linalg.solve(roots[k], inputs[:, k].T)
        for i in range(4):
            is_normal(white[i], 0.0, 1.0)
            is_correlation(white[i], white[i - 1], 0.0)
            is_correlation(white[i, 1:], white[i, :-1], 0.0)
        if noise[k]:
            is_normal(targets[:, k] - inputs[:, k] @ truth, 0.0, noise[k])
    is_correlation(inputs[:, 0, 0], inputs[:, 1, 0], 0.0)


def test_shapes_that_disagree_are_refused():
    good = {"roots": np.ones((3, 2, 2)), "truth": np.ones(2), "noise": np.ones(3)}
    Linear(**good)
    for name, shape in (("roots", (3, 2)), ("truth", (3,)), ("noise", (2,))):
        with pytest.raises(ValueError, match=r"must be \[K, D, D\], \[D\] and \[K\], got"):
            Linear(**(good | {name: np.ones(shape)}))


# Replayed data ----------------------------------------------------------------------------------

SIZES = (3, 7, 5)


def uneven(feature_map=None, **settings):
    rng = np.random.default_rng(4)
    data = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in SIZES]
    problem = from_clients(data, LeastSquares(), **({"strength": 0.0} | settings))
    return data, fl.problems.Problem(
        problem.features,
        problem.targets,
        problem.loss,
        problem.regularizer,
        problem.strength,
        problem.weights,
        feature_map=feature_map,
    )


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.slow
def test_every_client_observes_its_samples_in_order_once(mapped):
    feature_map = random_fourier(jax.random.key(0), 2, 6) if mapped else None
    data, problem = uneven(feature_map)
    arrivals = np.random.default_rng(5).uniform(size=(20, 3)) < 0.7
    stream = Replay(problem, Trace(arrivals))
    assert (stream.clients, stream.dim) == (3, 6 if mapped else 2)
    inputs, targets, weights = play(stream, 20)
    for k, (x, y) in enumerate(data):
        observed = weights[:, k] > 0
        np.testing.assert_array_equal(
            np.flatnonzero(observed), np.flatnonzero(arrivals[:, k])[: len(y)]
        )
        np.testing.assert_array_equal(weights[observed, k], 1)
        np.testing.assert_array_equal(inputs[observed, k], x)
        np.testing.assert_array_equal(targets[observed, k], y)
    if mapped:
        run, ready = (
            fl.run(fl.Simulation(Replay(p, Trace(arrivals)), PAOFed(0.2, Circular(3))), 20)["model"]
            for p in (problem, problem.mapped())
        )
        np.testing.assert_allclose(run, ready, rtol=1e-10)
        assert np.abs(run).max() > 0.01


def test_by_default_every_client_gets_its_next_sample():
    _, problem = uneven()
    _, _, weights = play(Replay(problem), 9)
    np.testing.assert_array_equal(weights.sum(0), SIZES)
    assert isinstance(Replay(problem).arrivals, Always)


TABLE = np.array([[2, -1, 0, 0], [-1, 6, -1, 3], [4, 4, 1, -1]])


def test_clients_meet_the_samples_of_a_table():
    """An absent arrival skips a row of the table and does not postpone it."""
    data, problem = uneven()
    table = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]], bool)
    for arrivals, arrived in ((Always(), np.ones_like(table)), (Trace(table), table)):
        inputs, targets, weights = play(Replay(problem, arrivals, rows=TABLE), 4)
        for n in range(4):
            for k, (x, y) in enumerate(data):
                row = TABLE[k, n]
                assert weights[n, k] == float(row >= 0 and arrived[n, k])
                if weights[n, k]:
                    np.testing.assert_array_equal(inputs[n, k], x[row])
                    assert targets[n, k] == y[row]
    traced = jax.jit(lambda rows: Replay(problem, rows=rows).rows)(TABLE)
    np.testing.assert_array_equal(traced, TABLE)


def test_observations_with_a_time_are_replayed_in_it():
    """Least mean squares as a loop over rounds and clients, with NaN or a mask for nothing."""
    rng = np.random.default_rng(6)
    features = rng.normal(size=(3, 8, 2))
    targets = rng.normal(size=(3, 8))
    arrivals = rng.uniform(size=(3, 8)) < 0.6
    arrivals[:, 4] = False  # a round without observations
    holed = np.where(arrivals, targets, np.nan), np.where(arrivals[..., None], features, np.nan)
    w = np.zeros(2)
    for n in range(8):
        steps = [
            w + 0.2 * 2 * (targets[k, n] - features[k, n] @ w) * features[k, n]
            for k in range(3)
            if arrivals[k, n]
        ]
        w = np.mean(steps, axis=0) if steps else w
    streams = (
        from_observations(holed[1], holed[0]),
        from_observations(features, targets, arrived=arrivals),
        jax.jit(from_observations)(holed[1], holed[0]),
    )
    for stream in streams:
        run = fl.run(fl.Simulation(stream, ConventionalFL(0.2)), 8)
        np.testing.assert_allclose(run.model[0], w, rtol=1e-10)


def test_tables_that_do_not_fit_are_refused():
    _, problem = uneven()
    simulation = fl.Simulation(Replay(problem, rows=TABLE), OnlineFed(0.2))
    fl.run(simulation, 4)
    with pytest.raises(ValueError, match="the run has 5 rounds, but the table of rows has only 4"):
        fl.run(simulation, 5)
    for change, message in (
        (3, r"client 0 has 3 samples, none of which is the 3 of round 2; .* from 0"),
        (-2, "client 0 has 3 samples, none of which is the -2"),
        (7, "none of which is the 7"),
    ):
        table = TABLE.copy()
        table[0, 1] = change
        with pytest.raises(ValueError, match=message):
            Replay(problem, rows=table)
    for rows in (TABLE.T, TABLE[0], TABLE.astype(float)):
        with pytest.raises(ValueError, match=r"rows must be whole numbers of shape \[3 clients"):
            Replay(problem, rows=rows)
    x = np.ones((2, 3, 1))
    y = np.array([[1.0, np.nan, 1], [np.nan] * 3])
    with pytest.raises(ValueError, match="client 1 has no samples"):
        from_observations(x, y)
    with pytest.raises(ValueError, match="targets holds 2 NaN"):
        from_observations(x, y, arrived=np.array([[1, 1, 1], [0, 0, 1]], bool))
    with pytest.raises(ValueError, match=r"features, targets and arrived must be \[K, T, P\]"):
        from_observations(x, np.ones((3, 2)))
    with pytest.raises(ValueError, match="features holds 1 NaN"):
        from_observations(np.where(np.arange(6).reshape(2, 3, 1) == 0, np.nan, x), np.ones((2, 3)))


@pytest.mark.slow
def test_a_client_without_a_new_sample_keeps_its_model_and_is_not_available():
    _, problem = uneven()
    simulation = fl.Simulation(Replay(problem, Trace(np.ones((30, 3), bool))), OnlineFed(0.2))
    run = fl.run(simulation, 12)
    active_counts = [sum(n <= size for size in SIZES) for n in range(1, 13)]
    np.testing.assert_array_equal(run["messages"], 2 * np.cumsum(active_counts))
    short, long = (fl.run(simulation, n)["model"] for n in (7, 30))
    np.testing.assert_array_equal(short, long)


def test_a_replay_of_fewer_samples_than_rounds_is_refused():
    _, problem = uneven()
    simulation = fl.Simulation(Replay(problem), OnlineFed(0.2))
    most = max(SIZES)
    fl.run(simulation, most)
    with pytest.raises(ValueError, match=f"{most + 1} rounds, but no client has more than {most}"):
        fl.run(simulation, most + 1)


def test_a_client_without_samples_keeps_its_model_under_any_regularizer():
    _, problem = uneven(regularizer=SquaredL2(), strength=3.0)
    stream = Replay(problem, Trace(np.array([[True, False, True]])))
    _, now = stream.observe(stream.begin(jax.random.key(0)), jax.random.key(0), jnp.int32(1))
    model = jnp.ones((3, 2))
    moved = np.asarray(lms(now, model, jnp.asarray(0.5)) != model).any(axis=1)
    np.testing.assert_array_equal(moved, [True, False, True])


@pytest.mark.slow
def test_test_data_must_be_of_one_client_or_of_each_with_the_same_parameters():
    _, problem = uneven()
    for clients, dim in ((1, 3), (2, 2)):
        test = least_squares(jax.random.key(0), clients, 4, dim)
        message = "test must be the data of 1 client, .* or of each of the 3, with the 2 parameters"
        with pytest.raises(ValueError, match=message):
            Replay(problem, test=test)
        with pytest.raises(ValueError, match=message):
            Linear(np.ones((3, 2, 2)), np.ones(2), np.ones(3), test=test)
        with pytest.raises(ValueError, match=message):
            Autoregressive(*np.full((4, 3), 0.5), lags=(0, 1), test=test)


# Streams in simulations -------------------------------------------------------------------------


@module
class Same(Stream):
    """The same sample of each client in every round."""

    features: jax.Array
    targets: jax.Array
    arrivals = Always()
    test = None
    truth = None

    @property
    def clients(self):
        return self.features.shape[0]

    @property
    def dim(self):
        return self.features.shape[1]

    def draw(self, state, key, arrived):
        return state, samples(self.features, self.targets, arrived)


@pytest.mark.slow
def test_a_stream_of_the_same_data_is_the_fixed_problem():
    rng = np.random.default_rng(6)
    x = jnp.asarray(rng.normal(size=(5, 3)))
    y = jnp.asarray(rng.normal(size=5))
    fixed = Problem(x[:, None], y[:, None], LeastSquares(), strength=0.0)
    for algorithm, network in ((ZCDPGradNFL(0.03), fl.graphs.ring(5)), (ConventionalFL(0.1), None)):
        still, moving = (
            fl.run(fl.Simulation(p, algorithm, network, metrics=["consensus_error"]), 25)
            for p in (fixed, Same(x, y))
        )
        np.testing.assert_allclose(moving["model"], still["model"], rtol=1e-11)
        np.testing.assert_array_equal(moving["messages"], still["messages"])
        assert np.abs(still["model"]).max() > 0.1


def test_clients_on_a_graph_learn_from_streams_that_no_single_one_observes():
    clients = 6
    roots = np.zeros((clients, 3, 3))
    roots[np.arange(clients), np.arange(clients) % 3, np.arange(clients) % 3] = 1
    stream = Linear(roots, np.array([1.0, -2.0, 0.5]), np.full(clients, 1e-4), Bernoulli(0.8))
    metrics = ["normalized_error", "consensus_error"]
    network = fl.graphs.complete(clients)
    run = fl.run(fl.Simulation(stream, ZCDPGradNFL(0.05), network, metrics=metrics), 600)
    assert run["normalized_error"].values[-1] < 1e-3 * clients  # alone: 2/3 or more of the start
    assert run["consensus_error"].values[-1] < 1e-3
    assert run["consensus_error"].max() > 10 * run["consensus_error"].values[-1]
    np.testing.assert_array_equal(run["messages"], clients * (clients - 1) * run["round"].values)


# Feature maps of fixed problems -----------------------------------------------------------------


def with_map(samples=6, loss=None):
    feature_map = random_fourier(jax.random.key(7), 3, 8)
    raw = least_squares(jax.random.key(8), 4, samples, 3)
    problem = Problem(
        raw.features,
        raw.targets,
        raw.loss if loss is None else loss,
        SquaredL2(),
        0.3,
        feature_map=feature_map,
    )
    features = np.asarray(feature_map(raw.features))
    return problem, Problem(features, raw.targets, problem.loss, SquaredL2(), 0.3)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("samples", [6, 20])
def test_a_mapped_problem_is_the_problem_of_its_features(samples):
    problem, mapped = with_map(samples)
    assert (problem.dim, mapped.dim) == (8, 8)
    np.testing.assert_allclose(problem.design, mapped.features, rtol=1e-12)
    np.testing.assert_array_equal(mapped.design, mapped.features)
    w = jnp.asarray(np.random.default_rng(9).normal(size=(4, 8)))

    @jax.jit
    def values(problem, w):
        names = ("predictions", "objective", "gradient", "sample_gradient_norm")
        return [*(getattr(problem, name)(w) for name in names), problem.mean_gradient(w[0])]

    expected = values(mapped, w)
    for ours in (problem, problem.prepare()):
        for a, b in zip(values(ours, w), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    assert problem.prepare().feature_map is None


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        (ConventionalFL(0.3), None),
        (FedAvg(0.3, 2, 2, 3), None),
        (NetworkedADMM(1.0), "ring"),
    ],
    ids=lambda part: getattr(part, "label", part),
)
@pytest.mark.slow
def test_a_run_on_a_mapped_problem_is_the_run_on_its_features(algorithm, network):
    network = None if network is None else fl.graphs.ring(4)
    runs = [
        fl.run(fl.Simulation(p, algorithm, network, metrics="objective"), 8) for p in with_map(12)
    ]
    for name in ("model", "objective"):
        np.testing.assert_allclose(runs[0][name], runs[1][name], rtol=1e-9)
    assert np.abs(runs[0]["model"]).max() > 0.01


@pytest.mark.slow
def test_the_optimum_of_a_mapped_problem_is_that_of_its_features():
    problem, mapped = with_map(20)
    np.testing.assert_allclose(optimum(problem), optimum(mapped), rtol=1e-9)


@pytest.mark.slow
def test_selected_clients_of_a_mapped_problem_are_mapped_equally():
    problem, mapped = with_map()
    clients = jnp.array([2, 0], jnp.int32)
    rows = jnp.array([[5, 1, 6], [0, 0, 9]], jnp.int32)  # the last of each is past the end

    @jax.jit
    def mapped_pair(batch):
        return problem.take(clients, batch).mapped(), mapped.take(clients, batch)

    for batch in (None, rows):
        first, then = mapped_pair(batch)
        for name in ("features", "targets", "weights"):
            a = np.asarray(getattr(first, name))
            b = np.asarray(getattr(then, name))
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert (first.dim, first.feature_map) == (8, None)


# Test errors ------------------------------------------------------------------------------------


def held_out(feature_map=None, **settings):
    rng = np.random.default_rng(10)
    x = rng.normal(size=(30, 2))
    y = rng.normal(size=30)
    return (
        x,
        y,
        Problem(
            x[None],
            y[None],
            LeastSquares(),
            **({"strength": 0.0} | settings),
            feature_map=feature_map,
        ),
    )


@pytest.mark.thin(1)
@pytest.mark.parametrize("mapped", [False, True])
def test_the_test_error_of_a_shared_model_is_its_mean_square(mapped):
    feature_map = random_fourier(jax.random.key(11), 2, 5) if mapped else None
    _, problem = uneven(feature_map)
    x, y, test = held_out(feature_map)
    run = fl.run(fl.Simulation(Replay(problem, test=test), OnlineFed(0.3), metrics="test_error"), 4)
    z = np.asarray(feature_map(x)) if mapped else x
    np.testing.assert_allclose(
        run["test_error"][-1], np.mean((y - z @ run["model"][0].values) ** 2)
    )
    nothing = fl.run(
        fl.Simulation(
            Replay(problem, test=test), OnlineFed(0.3), metrics="test_error", participation=Until(0)
        ),
        2,
    )
    np.testing.assert_allclose(nothing["test_error"], np.mean(y**2))


def test_the_test_error_of_clients_models_is_the_mean_over_them():
    _, problem = uneven()
    x, y, test = held_out()
    run = fl.run(
        fl.Simulation(
            Replay(problem, test=test), ZCDPGradNFL(0.1), fl.graphs.ring(3), metrics="test_error"
        ),
        4,
    )
    errors = [np.mean((y - x @ w) ** 2) for w in run["model"].values]
    assert np.ptp(errors) > 1e-3
    np.testing.assert_allclose(run["test_error"][-1], np.mean(errors))


def test_the_test_error_is_the_loss_without_the_regularizer():
    _, problem = uneven()
    x, y, test = held_out(regularizer=SquaredL2(), strength=2.0)
    run = fl.run(fl.Simulation(Replay(problem, test=test), OnlineFed(0.3), metrics="test_error"), 4)
    np.testing.assert_allclose(
        run["test_error"][-1], np.mean((y - x @ run["model"][0].values) ** 2)
    )


def test_a_test_error_needs_test_data():
    _, problem = uneven()
    for data, algorithm in ((Replay(problem), OnlineFed(0.1)), (problem, ConventionalFL(0.1))):
        with pytest.raises(ValueError, match="'test_error' needs held-out data"):
            fl.Simulation(data, algorithm, metrics="test_error")


# Curves over traffic ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study():
    """Two seeds of a method whose participants, and so its traffic, differ from seed to seed."""
    runs = []
    for seed in range(2):
        stream = autoregressive(jax.random.key(seed), 8, test_samples=20)
        simulation = fl.Simulation(
            stream,
            OnlineFed(0.1),
            metrics=["test_error"],
            participation=Bernoulli(0.4),
            delays=Geometric(0.2, 3),
        )
        runs.append(fl.run(simulation, 30, key=seed).drop_vars("model"))
    return xr.concat(runs, "seed").assign_coords(seed=[0, 1])


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("x", ["bits", "bits_up", "bits_down", "scalars", "messages"])
def test_curves_run_over_the_mean_traffic_on_a_logarithmic_axis(study, x):
    assert (study[x].sel(seed=0) != study[x].sel(seed=1)).any()
    ax = plotting.learning_curves(study, "test_error", x=x)
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_xdata(), study[x].values.mean(0))
    error = study["test_error"].values.mean(0)
    np.testing.assert_allclose(line.get_ydata(), 10 * np.log10(error))
    assert ax.get_xscale() == "log"
    unit = " [bit]" if "bits" in x else ""
    assert ax.get_xlabel() == study[x].attrs["long_name"] + unit
    assert x.split("_")[0] in ax.get_xlabel() or x == "scalars"
    assert ax.get_ylabel() == "test error [dB]"


@pytest.mark.slow
def test_curves_run_over_rounds_by_default(study):
    ax = plotting.learning_curves(study, "test_error")
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), np.arange(1, 31))
    assert (ax.get_xscale(), ax.get_xlabel()) == ("linear", "round")


@pytest.mark.slow
def test_an_unknown_axis_lists_the_known_ones(study):
    axes = "round, messages, scalars, bits_up, bits_down, bits"
    with pytest.raises(ValueError, match=f"unknown x axis 'bytes'; known: {axes}"):
        plotting.learning_curves(study, "test_error", x="bytes")


@pytest.mark.parametrize("length", [1, 3, 12])
def test_a_truth_has_the_parameters_of_a_model(key, length):
    """One number would be subtracted from all of them."""
    data = fl.problems.least_squares(key, clients=2, samples=3, dim=4)
    numbers = {name: np.full(2, 0.5) for name in ("memory", "mean", "variance", "noise")}
    for make in (
        lambda truth: fl.streams.Replay(data, truth=truth),
        lambda truth: fl.streams.from_observations(data.features, data.targets, truth=truth),
        lambda truth: fl.streams.Autoregressive(**numbers, truth=truth),
    ):
        with pytest.raises(ValueError, match=rf"the 4 parameters of a model, got shape \({length}"):
            make(np.ones(length))
