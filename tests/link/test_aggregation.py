"""Aggregators against their definitions in loops, SciPy, and what robustness means."""

import warnings

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core.module import module
from fljax.link.aggregation import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    FLTrust,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MedianOfMeans,
    NormClipping,
    TrimmedMean,
    WeightedMean,
    WinsorizedMean,
)
from tests.reference import robust

RECEIVERS = 6
SENDERS = 12
DIM = 5


def random_messages(rng, fewest=7, receivers=RECEIVERS, senders=SENDERS):
    """Messages, weights and models; receivers get from 7 to all messages, missing ones are NaN."""
    messages = rng.normal(size=(receivers, senders, DIM)) + rng.normal(size=(receivers, 1, DIM))
    weights = rng.uniform(0.2, 2, (receivers, senders))
    for r in range(receivers):
        count = fewest + r % (senders - fewest + 1)
        weights[r, rng.permutation(senders)[count:]] = 0
    messages[weights == 0] = rng.choice([np.nan, np.inf, -np.inf, 1e300])
    return messages, weights, rng.normal(size=(receivers, DIM))


# Each with its definition: of the messages heard, their weights, and the receiver's model.
PARTS = {
    "mean": (Mean(), lambda xs, w, v: robust.mean(xs)),
    "weighted": (WeightedMean(), lambda xs, w, v: robust.weighted_mean(xs, w)),
    "median": (Median(), lambda xs, w, v: robust.median(xs)),
    "trim share": (
        TrimmedMean(0.3),
        lambda xs, w, v: robust.trimmed_mean(xs, robust.part(0.3, len(xs))),
    ),
    "trim count": (TrimmedMean(count=3), lambda xs, w, v: robust.trimmed_mean(xs, 3)),
    "winsorize share": (
        WinsorizedMean(0.3),
        lambda xs, w, v: robust.winsorized_mean(xs, robust.part(0.3, len(xs))),
    ),
    "winsorize count": (WinsorizedMean(count=3), lambda xs, w, v: robust.winsorized_mean(xs, 3)),
    "trim by weight": (
        TrimmedMean(count=3, weighted=True),
        lambda xs, w, v: robust.trimmed_by_weight(xs, w, 3),
    ),
    "winsorize by weight": (
        WinsorizedMean(0.3, weighted=True),
        lambda xs, w, v: robust.clipped_by_weight(xs, w, robust.part(0.3, len(xs))),
    ),
    "bulyan": (Bulyan(1), lambda xs, w, v: robust.bulyan(xs, 1)),
    "krum": (Krum(2), lambda xs, w, v: robust.krum(xs, 2)),
    "multi-krum": (Krum(2, select=4), lambda xs, w, v: robust.krum(xs, 2, 4)),
    "centered": (CenteredClipping(1.5), lambda xs, w, v: robust.centered_clipping(xs, v, 1.5, 1)),
    "centered thrice": (
        CenteredClipping(1.5, iterations=3),
        lambda xs, w, v: robust.centered_clipping(xs, v, 1.5, 3),
    ),
    "norm": (NormClipping(1.5), lambda xs, w, v: robust.norm_clipping(xs, w, v, 1.5)),
    "geometric": (GeometricMedian(200), lambda xs, w, v: robust.geometric_median(xs, w)),
    "median of means": (
        MedianOfMeans(5, Median()),
        lambda xs, w, v: robust.median_of_means(xs, 5, robust.median),
    ),
    "geometric, of means": (
        MedianOfMeans(5, GeometricMedian(200)),
        lambda xs, w, v: robust.median_of_means(
            xs, 5, lambda means: robust.geometric_median(means, [1] * len(means))
        ),
    ),
}
ALL = {name: aggregator for name, (aggregator, _) in PARTS.items()}
every = pytest.mark.parametrize("aggregator", ALL.values(), ids=ALL)
combine = jax.jit(lambda aggregator, *heard: aggregator.combine(*heard))


def loops(rule, messages, weights, reference):
    rows = []
    for x, w, v in zip(messages, weights, reference, strict=True):
        senders = [m for m in range(len(w)) if w[m] > 0]
        rows.append(rule([x[m] for m in senders], [w[m] for m in senders], v))
    return np.array(rows)


@pytest.mark.thin(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PARTS)
def test_equals_its_definition(name, seed):
    aggregator, rule = PARTS[name]
    data = random_messages(np.random.default_rng(seed))
    tolerance = 1e-6 if name.startswith("geometric") else 1e-10
    result = combine(aggregator, *data)
    np.testing.assert_allclose(result, loops(rule, *data), atol=tolerance, rtol=0)


def test_equals_numpy_and_scipy():
    messages, _, reference = random_messages(np.random.default_rng(0), fewest=SENDERS)
    data = messages, np.ones((RECEIVERS, SENDERS)), reference
    outside = {
        Median(): np.median(messages, axis=1),
        TrimmedMean(0.2): stats.trim_mean(messages, 0.2, axis=1),
        TrimmedMean(0.0): messages.mean(1),
        WinsorizedMean(0.2): np.apply_along_axis(
            lambda x: stats.mstats.winsorize(x, (0.2, 0.2)).mean(), 1, messages
        ),
        WinsorizedMean(count=0): messages.mean(1),
        CenteredClipping(1e9): messages.mean(1),
        Krum(0, select=SENDERS): messages.mean(1),
    }
    for aggregator, expected in outside.items():
        np.testing.assert_allclose(combine(aggregator, *data), expected, atol=1e-10)


@pytest.mark.parametrize(("share", "of", "count"), [(0.29, 100, 29), (0.1, 10, 1), (0.3, 11, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shares_of_received_messages_are_decimal(share, of, count, dtype):
    rng = np.random.default_rng(0)
    messages = rng.normal(size=(1, of + 5, 2)).astype(dtype)
    weights = (np.arange(of + 5) < of).astype(dtype)[None]
    trimmed = [
        combine(part, messages, weights, messages[:, 0])
        for part in (TrimmedMean(jnp.asarray(share, dtype)), TrimmedMean(count=count))
    ]
    np.testing.assert_array_equal(*trimmed)


@every
def test_unreceived_messages_are_not_read(aggregator):
    messages, weights, reference = random_messages(np.random.default_rng(3))
    received = weights[..., None] > 0
    expected = combine(aggregator, np.where(received, messages, 0), weights, reference)
    assert np.isfinite(expected).all()
    for garbage in (np.nan, np.inf, -np.inf, 1e308, 1.0):
        result = combine(aggregator, np.where(received, messages, garbage), weights, reference)
        np.testing.assert_array_equal(result, expected)


@every
def test_receivers_without_messages_keep_their_model(aggregator):
    messages, weights, reference = random_messages(np.random.default_rng(4))
    weights[2] = 0
    messages[2] = np.nan
    result = np.asarray(combine(aggregator, messages, weights, reference))
    np.testing.assert_array_equal(result[2], reference[2])
    assert (result[[0, 1, 3, 4, 5]] != reference[[0, 1, 3, 4, 5]]).any(1).all()


@every
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_messages_are_interpolated(aggregator, count):
    messages, weights, reference = random_messages(np.random.default_rng(5))
    weights[:] = 0
    weights[:, 3 : 3 + count] = 1
    result = combine(aggregator, messages, weights, reference)
    if not isinstance(aggregator, CenteredClipping | NormClipping):  # these are near the reference
        low, high = (f(messages[:, 3 : 3 + count], axis=1) for f in (np.min, np.max))
        assert (low - 1e-12 <= result).all()
        assert (result <= high + 1e-12).all()
    assert np.isfinite(result).all()


# What it is for ---------------------------------------------------------------------------------

# The most attackers of twelve senders that each withstands.
BREAKDOWN = {
    "median": 5,
    "trim share": 3,
    "trim count": 3,
    "winsorize share": 3,
    "winsorize count": 3,
    "trim by weight": 3,
    "winsorize by weight": 3,
    "bulyan": 1,
    "krum": 2,
    "multi-krum": 2,
    "geometric": 5,
    "median of means": 2,
    "geometric, of means": 2,
    "centered": 5,
    "centered thrice": 5,
    "norm": 5,
}


def attacked(false_value, attackers):
    """All receive all messages with equal weights; the first few are ``false_value`` times a common
    direction.
    """
    rng = np.random.default_rng(6)
    messages = rng.normal(size=(1, SENDERS, DIM))
    honest = messages.copy()
    messages[:, :attackers] = false_value * rng.uniform(0.5, 1, DIM)
    weights = np.ones((1, SENDERS))
    return honest, messages, weights, honest[:, 0] * 0


@pytest.mark.parametrize("false_value", [1e6, -1e6, 1e200, np.inf, np.nan])
@pytest.mark.parametrize("name", BREAKDOWN)
def test_attackers_move_an_aggregate_within_the_honest_spread(name, false_value):
    _, messages, weights, reference = attacked(false_value, BREAKDOWN[name])
    result = np.asarray(combine(ALL[name], messages, weights, reference))[0]
    honest = messages[0, BREAKDOWN[name] :]
    assert np.linalg.norm(result - honest.mean(0)) < 2 * np.ptp(honest, axis=0).max()


@pytest.mark.thin(1)
@pytest.mark.parametrize("false_value", [np.inf, -np.inf, np.nan, 1e200])
@pytest.mark.parametrize("name", ["geometric", "centered", "centered thrice", "norm"])
def test_an_infinite_message_attracts_no_aggregate(name, false_value):
    """The geometric median ignores it; clipping rules treat it as the center."""
    messages, weights, reference = random_messages(np.random.default_rng(13))
    attacking = np.arange(SENDERS) == weights.argmax(1)[:, None]
    arguments = np.where(attacking[..., None], false_value, messages), weights, reference
    aggregator, rule = PARTS[name]
    if name == "geometric":
        expected = loops(rule, messages, np.where(attacking, 0, weights), reference)
    else:
        expected = reference
        for _ in range(getattr(aggregator, "iterations", 1)):
            silent = np.where(attacking[..., None], expected[:, None], messages)
            once = NormClipping(1.5) if name == "norm" else CenteredClipping(1.5)
            expected = np.asarray(combine(once, silent, weights, expected))
    np.testing.assert_allclose(combine(aggregator, *arguments), expected, atol=1e-6)


def test_krum_beyond_its_promise_still_takes_a_received_message():
    """Few: it goes by the nearest one. Too far away for squares: any, but none that is absent."""
    rng = np.random.default_rng(14)
    messages = rng.normal(size=(1, SENDERS, DIM))
    weights = np.isin(np.arange(SENDERS), [3, 5, 8]).astype(float)[None]
    messages[0, 3] = 50
    result = np.asarray(combine(Krum(2), messages, weights, messages[:, 0]))
    assert (result == messages[0, [5, 8]]).all(1).any()
    for far in (1e200, np.inf):
        messages[0, 3] = far
        messages[0, 8] = -far
        result = np.asarray(combine(Krum(2), messages, weights, messages[:, 0]))
        assert (result == messages[0, [3, 5, 8]]).all(1).any()


@pytest.mark.parametrize("name", ["mean", "weighted"])
def test_one_attacker_moves_a_mean_anywhere(name):
    _, messages, weights, reference = attacked(1e6, 1)
    assert np.linalg.norm(combine(ALL[name], messages, weights, reference)) > 1e4


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("median", 7),
        ("geometric", 7),
        ("median of means", 8),
        ("geometric, of means", 8),
        ("trim share", 4),
        ("trim count", 4),
        ("winsorize share", 4),
        ("winsorize count", 4),
        ("trim by weight", 4),
        ("winsorize by weight", 4),
        ("bulyan", 9),
        ("krum", 9),
        ("multi-krum", 9),
    ],
)
def test_too_many_attackers_win(name, more):
    """A negative control of the test before this one."""
    _, messages, weights, reference = attacked(1e6, more)
    assert np.linalg.norm(combine(ALL[name], messages, weights, reference)) > 1e4


@pytest.mark.parametrize("aggregator", [CenteredClipping(0.5), NormClipping(0.5)])
def test_clipping_bounds_the_effect_of_attackers(aggregator):
    honest, messages, weights, reference = attacked(1e6, 3)
    silent = np.where(np.arange(SENDERS)[:, None] < 3, reference[:, None], honest)
    moved = combine(aggregator, messages, weights, reference) - combine(
        aggregator, silent, weights, reference
    )
    np.testing.assert_allclose(np.linalg.norm(moved), 0.5 * 3 / SENDERS, rtol=1e-6)


def test_the_geometric_median_goes_by_weight_and_not_by_heads():
    rng = np.random.default_rng(7)
    messages = rng.normal(size=(1, 9, DIM))
    messages[:, :6] = 1e6
    weights = np.where(np.arange(9) < 6, 1.0, 3.0)[None]
    result = combine(GeometricMedian(), messages, weights, messages[:, 8])
    assert np.linalg.norm(result) < 10


@pytest.mark.parametrize("median", [Median(), GeometricMedian(64)])
def test_means_of_groups_have_less_bias_than_the_median_of_all(median):
    """Skewed messages of mean one; the mean of a group is closer to normal."""
    rng = np.random.default_rng(15)
    messages = rng.exponential(size=(200, 60, DIM))
    data = messages, np.ones((200, 60)), np.zeros((200, DIM))
    grouped, single = (combine(rule, *data) - 1 for rule in (MedianOfMeans(6, median), median))
    assert 3 * np.abs(grouped.mean()) < np.abs(single.mean())


def test_one_attacker_spoils_one_group():
    """And its position in the group does not matter."""
    _, messages, weights, reference = attacked(0.0, 0)
    rule = MedianOfMeans(4, Median())
    results = []
    for position in (3, 4, 5):
        swapped = messages.copy()
        swapped[:, [position, 5]] = messages[:, [5, position]]
        swapped[:, position] = np.nan
        results.append(np.asarray(combine(rule, swapped, weights, reference)))
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], atol=1e-12)


def test_krum_distinguishes_close_messages_far_from_zero_and_next_to_attackers():
    """Without centering, squared lengths of 1e12 would leave no digits of squared distances of
    1e-8.
    """
    rng = np.random.default_rng(8)
    messages = 1e6 + 1e-4 * rng.normal(size=(RECEIVERS, SENDERS, DIM))
    messages[:, 0] = -1e6
    data = messages, np.ones((RECEIVERS, SENDERS)), messages[:, 1]
    result = combine(Krum(2), *data)
    np.testing.assert_array_equal(result, loops(PARTS["krum"][1], *data))


# Invariants -------------------------------------------------------------------------------------


@every
@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**31), shift=st.floats(-100, 100))
def test_neither_order_nor_origin_matters(aggregator, seed, shift):
    rng = np.random.default_rng(seed)
    messages, weights, reference = random_messages(rng)
    before = combine(aggregator, messages, weights, reference)
    order = rng.permutation(SENDERS)
    if isinstance(aggregator, MedianOfMeans):  # whose groups are of neighbors
        order = np.arange(SENDERS)
    np.testing.assert_allclose(
        combine(aggregator, messages[:, order], weights[:, order], reference), before, atol=1e-10
    )
    moved = shift * rng.normal(size=DIM)
    result = combine(aggregator, messages + moved, weights, reference + moved)
    np.testing.assert_allclose(np.asarray(result) - moved, before, atol=1e-8)


@every
def test_equal_messages_are_their_own_aggregate(aggregator):
    messages = np.broadcast_to(np.arange(1.0, DIM + 1), (1, SENDERS, DIM))
    reference = np.arange(1.0, DIM + 1)[None] + 0.1
    weights = np.linspace(0, 1, SENDERS)[None]
    np.testing.assert_allclose(combine(aggregator, messages, weights, reference), messages[:, 0])


# Programs ---------------------------------------------------------------------------------------


@pytest.mark.thin(2)
@every
def test_batched_is_one_by_one(aggregator):
    data = [random_messages(np.random.default_rng(seed)) for seed in range(3)]
    stacked = [np.stack(parts) for parts in zip(*data, strict=True)]
    together = jax.jit(jax.vmap(aggregator.combine))(*stacked)
    for arguments, result in zip(data, together, strict=True):
        np.testing.assert_allclose(result, combine(aggregator, *arguments), atol=1e-12)


@pytest.mark.thin(2)
@every
def test_single_precision_stays_single(aggregator):
    data = [part.astype(np.float32) for part in random_messages(np.random.default_rng(1))]
    result = combine(aggregator, *data)
    assert result.dtype == np.float32
    wide = combine(aggregator, *(part.astype(np.float64) for part in data))
    np.testing.assert_allclose(result, wide, atol=1e-4)


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "make",
    [TrimmedMean, WinsorizedMean, CenteredClipping, NormClipping, lambda v: GeometricMedian(3, v)],
)
def test_numbers_are_swept_without_a_new_program(make):
    chex.clear_trace_counter()  # of the other cases

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(aggregator, *data):
        return aggregator.combine(*data)

    data = random_messages(np.random.default_rng(2))
    first = run(make(0.1), *data)
    second = run(make(0.45), *data)
    assert (np.asarray(first) != second).any()
    values = jnp.array([0.1, 0.45])
    swept = jax.vmap(lambda value: make(value).combine(*data))(values)
    np.testing.assert_allclose(swept, np.stack([first, second]), atol=1e-12)


def test_a_lowered_program_calls_no_library():
    data = random_messages(np.random.default_rng(2))
    for aggregator in ALL.values():
        assert "lapack" not in combine.lower(aggregator, *data).as_text().lower()


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (TrimmedMean, "either a share .* or a count"),
        (lambda: TrimmedMean(0.1, count=1), "either a share .* or a count"),
        (lambda: TrimmedMean(0.5), "share must be .* < 0.5"),
        (lambda: TrimmedMean(2), "count=..."),
        (lambda: WinsorizedMean(-0.1), "share must be"),
        (lambda: WinsorizedMean(np.nan), "share must be finite"),
        (lambda: WinsorizedMean(count=-1), "count must be >= 0"),
        (lambda: GeometricMedian(0), "iterations must be >= 1"),
        (lambda: GeometricMedian(smoothing=0.0), "smoothing must be"),
        (lambda: MedianOfMeans(2), "groups must be >= 3"),
        (lambda: Krum(-1), "attackers must be >= 0"),
        (lambda: Bulyan(-1), "attackers must be >= 0"),
        (lambda: FLTrust(local_steps=0), "local_steps must be >= 1"),
        (lambda: FLTrust(step_size=0.1), "give both root= and step_size="),
        (lambda: FLTrust(root=root()), "give both root= and step_size="),
        (lambda: FLTrust(root=root(clients=2), step_size=0.1), "root.pooled"),
        (lambda: FLTrust(root=root(), step_size=0.0), "step_size must be"),
        (lambda: Krum(1, select=0), "select must be >= 1"),
        (lambda: CenteredClipping(0.0), "radius must be"),
        (lambda: CenteredClipping(1.0, iterations=0), "iterations must be >= 1"),
        (lambda: NormClipping(-1.0), "radius must be"),
    ],
)
def test_bad_fields_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def root(clients=1):
    key = jax.random.key(20)
    return fl.problems.least_squares(key, clients=clients, samples=9, dim=DIM)


@pytest.mark.parametrize(
    "make", [lambda: Krum(1.0), lambda: Bulyan(1.0), lambda: TrimmedMean(count=0.2)]
)
def test_counts_are_whole(make):
    with pytest.raises(TypeError, match="must be an integer"):
        make()


def test_a_median_of_means_needs_a_valid_number_of_groups():
    with pytest.raises(TypeError, match=r"median must be .*Aggregator, got 3"):
        MedianOfMeans(3, 3)
    with pytest.raises(ValueError, match=r"Krum needs at least 5 .* gets only 4"):
        MedianOfMeans(4, Krum(1))
    assert MedianOfMeans(7, Krum(2)).tolerated(12) == 2
    with pytest.raises(ValueError, match="give it clean data"):
        MedianOfMeans(3, FLTrust()).check_place(2, peers=False)


@pytest.mark.parametrize(
    ("aggregator", "fewest"),
    [
        (Median(), 3),
        (TrimmedMean(count=2), 5),
        (WinsorizedMean(count=2), 5),
        (TrimmedMean(0.2), 5),
        (WinsorizedMean(0.1), 10),
        (GeometricMedian(), 3),
        (MedianOfMeans(5), 5),
        (Krum(2), 7),
        (Krum(1, select=6), 7),
        (Bulyan(2), 11),
    ],
)
def test_too_few_messages_are_refused(aggregator, fewest):
    aggregator.check(fewest)
    with pytest.raises(ValueError, match=rf"\b{fewest - 1}\b"):
        aggregator.check(fewest - 1)


@pytest.mark.parametrize(
    "aggregator",
    [Mean(), WeightedMean(), CenteredClipping(1.0), NormClipping(1.0), TrimmedMean(0.0)],
)
def test_rules_that_need_one_message_accept_one(aggregator):
    aggregator.check(1)


def test_checks_leave_traced_shares_alone():
    jax.jit(lambda share: TrimmedMean(share).check(1))(0.1)


# Trust, weights, and more attackers than it withstands -------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_a_server_trusts_its_own_update(steps):
    messages, weights, reference = random_messages(np.random.default_rng(21))
    rule = FLTrust(root(), step_size=0.1, local_steps=steps)
    result = combine(rule, messages, weights, reference)
    x, y = (np.asarray(a)[0] for a in (rule.root.features, rule.root.targets))
    for r in range(RECEIVERS):
        learned = reference[r]
        for _ in range(steps):
            learned = learned - 0.1 * 2 * x.T @ (x @ learned - y) / len(y)
        received = weights[r] > 0
        updates = messages[r, received] - reference[r]
        expected = reference[r] + robust.fltrust(updates, learned - reference[r])
        np.testing.assert_allclose(result[r], expected, atol=1e-10, rtol=0)


def test_a_peer_trusts_its_own_message():
    messages, weights, reference = random_messages(np.random.default_rng(22))
    messages[:, 0] = reference
    weights[:, 0] = 1
    result = combine(FLTrust(), messages, weights, reference)
    for r in range(RECEIVERS):
        expected = robust.fltrust(messages[r, weights[r] > 0], reference[r])
        np.testing.assert_allclose(result[r], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("false_value", [1e6, -1e6, 1e200, np.inf, np.nan])
def test_trusted_clients_are_scaled_to_the_trusted_message(false_value):
    _, messages, weights, _ = attacked(false_value, SENDERS - 1)
    trusted = messages[:, -1]
    result = np.asarray(combine(FLTrust(), messages, weights, trusted))
    assert np.linalg.norm(result) <= np.linalg.norm(trusted) * (1 + 1e-9)
    assert result[0] @ trusted[0] > 0


def test_a_server_that_trusts_no_client_keeps_its_model():
    reference = np.ones((1, DIM))
    rule = FLTrust(root(), step_size=0.1)
    away = reference + 0.1 * np.asarray(rule.root.gradient(jnp.asarray(reference)))
    result = combine(rule, away[:, None], np.ones((1, 1)), reference)
    np.testing.assert_array_equal(result, reference)


@pytest.mark.slow
def test_trust_is_accepted_where_it_can_be_computed():
    problem = fl.problems.least_squares(jax.random.key(1), clients=6, samples=9, dim=DIM)
    peers = {"algorithm": fl.algorithms.FedRelax(0.5), "network": fl.graphs.complete(6)}
    server = {"algorithm": fl.algorithms.FedAvg(0.01)}
    trust = FLTrust()
    learned = FLTrust(root(), step_size=0.01)
    fl.Simulation(problem, aggregation=trust, **peers)
    fl.Simulation(problem, aggregation=learned, **server)
    with pytest.raises(ValueError, match="leave out root="):
        fl.Simulation(problem, aggregation=learned, **peers)
    with pytest.raises(ValueError, match="give it clean data"):
        fl.Simulation(problem, aggregation=trust, **server)
    other = fl.problems.least_squares(jax.random.key(2), clients=1, samples=9, dim=2)
    with pytest.raises(ValueError, match="root's models have 2 numbers"):
        fl.Simulation(problem, aggregation=FLTrust(other, step_size=0.01), **server)
    with pytest.raises(TypeError, match="root must be"):
        FLTrust(7, step_size=0.1)


@pytest.mark.parametrize("make", [TrimmedMean, WinsorizedMean])
def test_weights_are_used_by_weighted_rules_only(make):
    rng = np.random.default_rng(23)
    messages = rng.normal(size=(1, SENDERS, DIM))
    reference = np.zeros((1, DIM))
    equal = np.ones((1, SENDERS))
    unequal = rng.uniform(0.1, 5, (1, SENDERS))
    weighted = make(count=2, weighted=True)
    plain = make(count=2)
    unweighted = combine(plain, messages, unequal, reference)
    np.testing.assert_allclose(
        combine(weighted, messages, equal, reference), unweighted, atol=1e-12
    )
    assert np.abs(combine(weighted, messages, unequal, reference) - unweighted).max() > 1e-2
    # Without a cut both are the weighted mean.
    uncut_mean = combine(WeightedMean(), messages, unequal, reference)
    uncut = combine(make(count=0, weighted=True), messages, unequal, reference)
    np.testing.assert_allclose(uncut, uncut_mean, atol=1e-12)
    with pytest.raises(TypeError, match="weighted must be"):
        make(count=1, weighted="by weight")


@pytest.mark.slow
def test_twelve_nodes_with_three_attackers():
    """Jung's robust mixing: all hear all, three say 50 in each of three coordinates."""
    bad = fl.attacks.first(3, 12)

    def error(aggregator, seed):
        problem = fl.problems.least_squares(jax.random.key(seed), clients=12, samples=20, dim=3)
        part = {
            "problem": problem,
            "algorithm": fl.algorithms.FedRelax(0.5),
            "network": fl.graphs.complete(12),
        }
        attack = fl.attacks.ConstantMessage(bad, 50.0)
        alone = fl.run(fl.Simulation(**part), rounds=60).model.values
        results = fl.run(fl.Simulation(**part, attack=attack, aggregation=aggregator), rounds=60)
        return np.linalg.norm(results.model.values - alone, axis=1)[3:].mean()

    means = [error(None, seed) for seed in range(3)]
    assert 50 < np.mean(means) < 65  # 57.5 in the extract's instance
    for aggregator in (
        WinsorizedMean(count=3, weighted=True),
        TrimmedMean(count=3, weighted=True),
        GeometricMedian(),
    ):
        assert np.mean([error(aggregator, seed) for seed in range(3)]) < 0.2


@pytest.mark.slow
def test_more_attackers_than_it_withstands_are_warned_of():
    problem = fl.problems.least_squares(jax.random.key(1), clients=12, samples=9, dim=2)
    relax = fl.algorithms.FedRelax(0.5)
    fedavg = fl.algorithms.FedAvg(0.01)

    def build(aggregator, attackers, algorithm=fedavg, network=None):
        attack = fl.attacks.SignFlip(fl.attacks.first(attackers, 12))
        return fl.Simulation(problem, algorithm, network, attack=attack, aggregation=aggregator)

    cells = fl.federation.balanced(4, fl.graphs.complete(3))
    over = fl.algorithms.GraphFedAvg(0.01)
    twice = fl.graphs.from_edges(12, [(k, (k + n) % 12) for k in range(12) for n in (1, 2)])
    too_many = [
        (Median(), 6, "6 attackers among 12, but Median withstands only 5", ()),
        (TrimmedMean(0.2), 3, "TrimmedMean withstands only 2", ()),
        (TrimmedMean(count=3), 4, "TrimmedMean withstands only 3", ()),
        (GeometricMedian(), 6, "GeometricMedian withstands only 5", ()),
        (MedianOfMeans(4), 2, "MedianOfMeans withstands only 1", ()),
        (Krum(2), 3, "Krum withstands only 2 .* a share of 0.17", ()),
        (Bulyan(2), 3, "Bulyan withstands only 2", ()),
        # One of a cell's four messages, or of a node's eleven neighbors.
        (Median(), 2, "2 attackers among 4,", (over, cells)),
        (Krum(3), 4, "4 attackers among 11,", (relax, fl.graphs.complete(12))),
        (Median(), 2, "2 attackers among 4,", (relax, twice)),
    ]
    for aggregator, attackers, text, arguments in too_many:
        with pytest.warns(fl.AssumptionWarning, match=text):
            build(aggregator, attackers, *arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            build(aggregator, attackers - 1, *arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # they promise nothing
        for aggregator in (Mean(), NormClipping(1.0), CenteredClipping(1.0)):
            build(aggregator, 11)


def test_attackers_with_half_of_the_weights_are_warned_of():
    """The geometric median weighs messages: by clients' samples, or by the peers' combination."""
    sizes = [60, 5, 5, 5, 5]
    data = [(np.ones((n, 2)), np.zeros(n)) for n in sizes]
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares()).weighing("samples")

    def warned(attackers, aggregator, algorithm, network=None):
        attack = fl.attacks.SignFlip(np.isin(np.arange(5), attackers))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fl.Simulation(problem, algorithm, network, attack=attack, aggregation=aggregator)
        return [str(warning.message) for warning in caught]

    fedavg = fl.algorithms.FedAvg(0.01)
    (message,) = warned([0], GeometricMedian(), fedavg)
    assert "a share of 0.75 of the weights, but GeometricMedian withstands less" in message
    assert not warned([1, 2, 3, 4], GeometricMedian(), fedavg)  # a quarter of the weights
    assert not warned([0], Median(), fedavg)  # counts messages
    equal = fl.algorithms.FedAvg(0.01, weighting="equal")
    assert not warned([0], GeometricMedian(), equal)
    assert "3 attackers among 5" in warned([1, 2, 3], GeometricMedian(), equal)[0]
    weights = np.full((5, 5), 0.1)
    weights[0, 4] = weights[4, 0] = 0.55
    weights += np.diag(1 - weights.sum(1))
    mixing = fl.graphs.from_stochastic(weights, convention="left")
    peers = fl.algorithms.ATC(0.01, mixing=mixing)
    complete = fl.graphs.complete(5)
    (message,) = warned([0], GeometricMedian(), peers, complete)
    assert "a share of 0.55 of" in message
    assert not warned([1, 2, 3], GeometricMedian(), peers, complete)  # 0.3 of each weight
    assert "3 attackers among 5" in warned([1, 2, 3], Median(), peers, complete)[0]


def test_trimming_more_than_there_are_neighbors_is_refused():
    problem = fl.problems.least_squares(jax.random.key(1), clients=6, samples=9, dim=2)
    for make in (TrimmedMean, WinsorizedMean):
        with pytest.raises(ValueError, match=r"at least 3 messages .* gets only 2"):
            fl.Simulation(
                problem,
                fl.algorithms.FedRelax(0.5),
                fl.graphs.ring(6),
                aggregation=make(count=1, weighted=True),
            )


def test_a_custom_aggregator_works():
    @module
    class Loudest(Aggregator):
        def combine(self, messages, weights, reference):
            return jnp.max(jnp.where(weights[:, :, None] > 0, messages, -jnp.inf), axis=1)

    data = random_messages(np.random.default_rng(9))
    Loudest().check(1)
    expected = np.where(data[1][..., None] > 0, data[0], -np.inf).max(1)
    np.testing.assert_array_equal(combine(Loudest(), *data), expected)
