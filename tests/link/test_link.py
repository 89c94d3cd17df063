"""Messages to the server, by hand and one by one, and their traffic counts, past 2^32 too."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fljax as fl
from fljax import link as links
from fljax._core.module import module
from fljax._core.prng import PURPOSES, key_of
from fljax.algorithms import ConventionalFL, OnlineFed
from fljax.link import (
    Arrived,
    Compressor,
    DelayTrace,
    Fixed,
    Geometric,
    Independent,
    Link,
    Memory,
    RandomK,
    Sign,
    Stages,
    TopK,
    Traffic,
    empty_line,
    wide,
    wide_sum,
)
from fljax.link.aggregation import Median
from fljax.link.attacks import SignFlip
from fljax.participation.patterns import Trace
from fljax.problems.streams import Linear

close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)


def as_integer(pair):
    """The integer encoded by a 62-bit count."""
    high, low = (int(part) for part in np.asarray(pair))
    assert low < 2**31
    return high * 2**31 + low


def traffic(link):
    return tuple(as_integer(pair) for pair in link.traffic)


# Collecting, round by round -----------------------------------------------------------------------


class Sent(NamedTuple):
    """What all clients would send in one round."""

    values: Any  # [K, D], or [K, size]
    at: Any = None  # [K, size]: the parameters, if not all
    senders: Any = None  # [K] bool; everyone by default
    weights: Any = None  # [K]


def collected(delays, rounds, dim, clients=None, available=None, on_request=False, **options):
    """`Arrived` of each round, and the traffic of the last; messages are arrays, or functions that
    make them on request.
    """

    @jax.jit
    def one_round(n, line, values, at, senders, weights):
        everyone = len(values) if available is None else available
        link = Link(
            jax.random.fold_in(jax.random.key(0), n),
            n,
            len(rounds),
            everyone,
            stages=Stages(delays=delays),
            memory=Memory(line),
        )
        arrived = link.collect(
            (lambda rows: values[rows]) if on_request else values,
            senders,
            jnp.zeros(dim),
            at=at,
            weights=weights,
            clients=None if clients is None else jnp.asarray(clients, jnp.int32),
            **options,
        )
        return arrived, link.memory.line, link.traffic

    line = None
    results = []
    counted = None
    if delays is not None:
        line = empty_line(delays, dim, jnp.float64)
    for n, sent in enumerate(rounds, 1):
        senders = np.ones(len(sent.values), bool) if sent.senders is None else sent.senders
        at = None if sent.at is None else jnp.asarray(sent.at, jnp.int32)
        weights = None if sent.weights is None else jnp.asarray(sent.weights)
        values = jnp.asarray(sent.values, jnp.float64)
        arrived, line, counted = one_round(
            jnp.int32(n), line, values, at, jnp.asarray(senders), weights
        )
        results.append(Arrived(*(np.asarray(part) for part in arrived)))
    return results, tuple(as_integer(pair) for pair in counted)


def test_without_delays_the_mean_of_sent_messages_arrives():
    sent = Sent([[1, 2], [3, 6], [50, 50]], senders=[True, True, False])
    (arrived,), counted = collected(None, [sent], 2)
    close(arrived.total, [2, 4])
    close(arrived.share, [1, 1])
    close(arrived.move(np.array([7.0, 7.0])), [2, 4])
    assert counted == (2, 4, 4 * 32, 0)


def test_without_messages_nothing_moves():
    for per_delay in (False, True):
        sent = Sent([[1.0, 2], [3, 4]], senders=[False, False])
        (arrived,), counted = collected(None, [sent], 2, per_delay=per_delay)
        close(arrived.move(np.array([5.0, -7.0])), [5, -7])
        assert counted == (0, 0, 0, 0)


def test_weights_of_messages_make_a_weighted_mean():
    sent = Sent([[1.0], [3], [9]], senders=[True, True, False], weights=[1.0, 3.0, 5.0])
    (arrived,), _ = collected(None, [sent], 1)
    close(arrived.total, [2.5])
    close(arrived.share, [1])


@pytest.mark.parametrize(("servers", "sums"), [(1, 0), (5, 2)])
def test_weights_of_whole_messages_are_added_once_for_all_of_their_numbers(servers, sums):
    """Of several servers the messages are one sum by row, and their weights another."""
    k_values, k_weights = jax.random.split(jax.random.key(0))
    network = None if servers == 1 else fl.graphs.tree([servers, 100 // servers])

    def one_round(values, weights):
        link = Link(jax.random.key(1), jnp.int32(1), 1, 100, stages=Stages(), network=network)
        reference = jnp.zeros((servers, 3) if network else 3)
        return link.collect(values, jnp.ones(100, bool), reference, weights=weights)

    values = jax.random.normal(k_values, (100, 3))
    weights = jax.random.uniform(k_weights, (100,))
    assert str(jax.make_jaxpr(one_round)(values, weights)).count("scatter-add[") == sums
    arrived = jax.jit(one_round)(values, weights)
    close(arrived.share, np.ones_like(arrived.share))
    each = np.asarray(weights).reshape(servers, -1)
    means = np.einsum("sk,skd->sd", each, np.asarray(values).reshape(servers, -1, 3))
    close(arrived.total, (means / each.sum(1, keepdims=True)).reshape(arrived.total.shape))


LATE = DelayTrace(np.array([[0, 1, 2], [0, 1, -1], [3, 0, 0]]), 2)
MODELS = [
    Sent([[10.0], [20], [30]]),
    Sent([[11.0], [21], [31]]),
    Sent([[12.0], [22], [32]], senders=[True, True, False]),
]


def test_pooled_is_the_mean_of_arrivals_of_any_age():
    arrived, _ = collected(LATE, MODELS, 1)
    # Round 1: 10. Round 2: 11 and 20. Round 3: 22, 21 and 30; client 1's two messages both count.
    close([a.total[0] for a in arrived], [10, 31 / 2, 73 / 3])
    close([a.share[0] for a in arrived], [1, 1, 1])


def test_pooled_messages_keep_their_weights_while_they_are_on_their_way():
    weighted = [sent._replace(weights=[1.0, 2.0, 4.0]) for sent in MODELS]
    arrived, _ = collected(LATE, weighted, 1)
    close([a.total[0] for a in arrived], [10, (11 + 2 * 20) / 3, (2 * 22 + 2 * 21 + 4 * 30) / 8])


def test_per_delay_each_class_is_averaged_on_its_own_and_all_of_them_count():
    arrived, _ = collected(LATE, MODELS, 1, per_delay=True, freshest=False)
    close([a.total[0] for a in arrived], [10, 11 + 20, 22 + 21 + 30])
    close([a.share[0] for a in arrived], [1, 2, 3])


def test_per_delay_the_freshest_class_displaces_the_others():
    arrived, _ = collected(LATE, MODELS, 1, per_delay=True)
    close([a.total[0] for a in arrived], [10, 11, 22])
    close([a.share[0] for a in arrived], [1, 1, 1])


@pytest.mark.parametrize("discount", [0.5, [1.0, 0.5, 0.25]])
def test_older_classes_count_less(discount):
    arrived, _ = collected(
        LATE, MODELS, 1, discount=jnp.asarray(discount), per_delay=True, freshest=False
    )
    close([a.total[0] for a in arrived], [10, 11 + 10, 22 + 21 / 2 + 30 / 4])
    close([a.share[0] for a in arrived], [1, 1.5, 1.75])
    pooled, _ = collected(LATE, MODELS, 1, discount=jnp.asarray(discount))
    close([a.total[0] for a in pooled], [10, (11 + 10) / 2, (22 + 21 / 2 + 30 / 4) / 3])
    close([a.share[0] for a in pooled], [1, 1.5 / 2, 1.75 / 3])


def test_an_own_weight_of_each_lag_need_not_be_geometric():
    alpha = jnp.array([0.9, 0.0, 0.4])
    arrived, _ = collected(LATE, MODELS, 1, discount=alpha, per_delay=True, freshest=False)
    close([a.share[0] for a in arrived], [0.9, 0.9, 1.3])


def test_a_discount_of_zero_leaves_the_undelayed_and_still_displaces_the_older():
    arrived, _ = collected(LATE, MODELS[:2], 1, discount=0.0, per_delay=True, freshest=False)
    close([a.total[0] for a in arrived], [10, 11])
    silent = [Sent([[1.0], [2]], senders=s) for s in ([True, False], [False, True], [False] * 2)]
    late = DelayTrace(np.array([[2, 2], [1, 1], [0, 0]]), 2)
    alpha = jnp.array([1.0, 0.0, 1.0])  # of round 3's two classes the fresher has no weight
    arrived, _ = collected(late, silent, 1, discount=alpha, per_delay=True)
    close([arrived[2].total[0], arrived[2].share[0]], [0, 0])
    arrived, _ = collected(late, silent, 1, discount=alpha, per_delay=True, freshest=False)
    close([arrived[2].total[0], arrived[2].share[0]], [1, 1])


def test_portions_displace_each_other_parameter_by_parameter():
    late = DelayTrace(np.array([[1, 1], [0, 0]]), 1)
    rounds = [
        Sent([[1.0, 2], [3, 4]], [[0, 1], [1, 2]]),
        Sent([[5.0, 6], [7, 8]], [[2, 3], [3, 0]]),
    ]
    (nothing, arrived), counted = collected(late, rounds, 4, per_delay=True)
    close(nothing.share, 0)
    close(arrived.total, [4, (2 + 3) / 2, 5 / 2, (6 + 7) / 2])
    close(arrived.share, [1 / 2, 1, 1 / 2, 1])  # a class is divided by all of its messages
    assert counted == (2, 4, 128, 0)
    (_, arrived), _ = collected(late, rounds, 4, per_delay=True, freshest=False)
    close(arrived.total, [8 / 2 + 1 / 2, 5 / 2, (4 + 5) / 2, 13 / 2])
    (_, arrived), _ = collected(late, rounds, 4)
    close(arrived.share, [2 / 4, 2 / 4, 2 / 4, 2 / 4])
    close(arrived.total, [9 / 4, 5 / 4, 9 / 4, 13 / 4])


def test_a_lost_message_is_paid_for_and_never_arrives():
    late = DelayTrace(np.array([[-1, 3], [0, -7], [-1, -1], [-1, -1]]), 2)
    arrived, counted = collected(late, [Sent([[1.0], [2]])] * 4, 1)
    close([a.share[0] for a in arrived], [0, 1, 0, 0])
    close(arrived[1].total, [1])
    assert counted == (2, 2, 64, 0)


def test_rows_may_be_some_of_the_clients():
    late = DelayTrace(np.array([[5, 0, 5, 1], [5, 5, 5, 5]]), 1)
    rounds = [Sent([[10.0], [20]]), Sent([[0.0], [0]], senders=[False, False])]
    arrived, counted = collected(late, rounds, 1, clients=[3, 1], available=4)
    close([a.total[0] for a in arrived], [20, 10])  # row 0 is client 3, a round late
    assert counted == (0, 0, 0, 0)


def expected(delays, table, rounds, dim, alpha, per_delay, freshest):
    """The same message by message: ``[T, D]`` totals and shares."""
    flight = []
    totals = []
    shares = []
    for n, sent in enumerate(rounds, 1):
        for k in np.flatnonzero(sent.senders):
            at = range(dim) if sent.at is None else sent.at[k]
            weight = 1.0 if sent.weights is None else sent.weights[k]
            flight.append((n, table[n - 1, k], dict(zip(at, sent.values[k], strict=True)), weight))
        arrivals = [m for m in flight if m[0] + m[1] == n and 0 <= m[1] <= delays.longest]
        total = np.zeros(dim)
        share = np.zeros(dim)
        for i in range(dim):
            freshest_lag = min((lag for _, lag, values, _ in arrivals if i in values), default=0)
            for _, lag, values, weight in arrivals:
                if i in values and not (per_delay and freshest and lag > freshest_lag):
                    peers = [w for _, other, _, w in arrivals if other == lag or not per_delay]
                    share[i] += alpha[lag] * weight / sum(peers)
                    total[i] += alpha[lag] * weight / sum(peers) * values[i]
        totals.append(total)
        shares.append(share)
    return np.array(totals), np.array(shares)


@pytest.mark.thin(2)
@pytest.mark.parametrize(("group", "on_request"), [(3, False), (3, True), (64, True)])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize(
    ("per_delay", "freshest", "weighted"),
    [(False, True, True), (True, True, False), (True, False, True)],
)
def test_arrivals_match_the_messages(
    monkeypatch, group, on_request, size, per_delay, freshest, weighted
):
    """All rules, with messages as arrays, made on request together, or in groups of three."""
    monkeypatch.setattr(links.sender_groups, "GROUP", group)
    rng = np.random.default_rng(0)
    clients = 10
    dim = 5
    longest = 3
    count = 9
    table = rng.integers(-1, longest + 2, size=(count, clients))
    delays = DelayTrace(table, longest)
    alpha = np.array([1.0, 0.6, 0.5, 0.1])
    rounds = []
    for n in range(count):
        at = None
        if size is not None:
            at = np.argsort(rng.uniform(size=(clients, dim)), axis=1)[:, :size]
        senders = rng.uniform(size=clients) < (0, 0.4, 1)[n % 3]
        values = rng.normal(size=(clients, size or dim))
        weights = rng.uniform(0.5, 2, clients) if weighted else None
        rounds.append(Sent(values, at, senders, weights))
    arrived, _ = collected(
        delays,
        rounds,
        dim,
        on_request=on_request,
        discount=jnp.asarray(alpha),
        per_delay=per_delay,
        freshest=freshest,
    )
    totals, shares = expected(delays, table, rounds, dim, alpha, per_delay, freshest)
    assert (shares == 0).any()
    assert np.ptp(shares[shares > 0]) > 0.1
    close([a.total for a in arrived], totals)
    close([a.share for a in arrived], shares)


def test_fixed_delays_move_everything_by_as_many_rounds():
    rounds = [Sent([[float(n)], [3.0 * n]]) for n in range(1, 6)]
    arrived, _ = collected(Fixed(3), rounds, 1)
    close([a.total[0] for a in arrived], [0, 0, 0, 2, 4])


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("group", [3, 64])
def test_differences_are_compressed_in_any_grouping(monkeypatch, group):
    monkeypatch.setattr(links.sender_groups, "GROUP", group)
    rng = np.random.default_rng(1)
    values = jnp.asarray(rng.normal(size=(7, 4)))
    reference = jnp.asarray(rng.normal(size=4))
    senders = jnp.array([True, False, True, True, True, False, True])
    other = Link(jax.random.key(0), 1, 1, 7, stages=Stages(compression=TopK(4)))
    arrived = other.collect(values, senders, reference, compression=Sign())
    difference = np.asarray(values - reference[None])
    signs = np.sign(difference) * np.abs(difference).mean(1, keepdims=True)
    close(arrived.move(reference), reference + signs[np.asarray(senders)].mean(0))
    assert traffic(other) == (5, 20, 5 * (4 + 32), 0)
    at = jnp.array([[0, 2], [1, 3], [2, 3], [3, 0], [0, 1], [1, 2], [2, 0]], jnp.int32)
    part = jnp.take_along_axis(values, at, axis=1)
    link = Link(jax.random.key(0), 1, 1, 7, stages=Stages(compression=Sign()))
    arrived = link.collect(part, senders, reference, at=at)
    change = np.zeros(4)
    for k in np.flatnonzero(senders):
        difference = np.asarray(part[k] - reference[at[k]])
        change[np.asarray(at[k])] += np.sign(difference) * np.abs(difference).mean() / 5
    close(arrived.move(reference), reference + change)
    assert traffic(link) == (5, 10, 5 * (2 + 32), 0)


# Publishing and counting --------------------------------------------------------------------------


def round_one_link(clients=4, available=None, root=None, **stages):
    """A link in round 1; client ``k`` has ``k + 1`` receivers."""
    receivers = jnp.arange(1, clients + 1, dtype=jnp.int32)
    parts = {"available": available, "root": root, "receivers": receivers}
    return Link(jax.random.key(0), 1, 5, clients, stages=Stages(**stages), **parts)


def test_the_server_pays_for_each_recipient_and_message():
    model = jnp.arange(6.0)
    link = round_one_link(available=jnp.array([True, False, True, True]))
    np.testing.assert_array_equal(link.publish(model), model)
    assert traffic(link) == (3, 18, 0, 3 * 6 * 32)
    link.publish(model, jnp.array([True, False, False, False]))
    assert traffic(link) == (4, 24, 0, 4 * 6 * 32)
    link.publish(model, size=2)
    assert traffic(link) == (7, 30, 0, 30 * 32)
    compressed = round_one_link(compression=Sign())
    compressed.publish(model)  # the server's message is not compressed
    assert traffic(compressed) == (4, 24, 0, 24 * 32)


def test_a_server_may_compress_its_message():
    model = jnp.array([3.0, -1.0, 0.5, 2.0])
    link = round_one_link(available=jnp.array([True, False, True, True]))
    np.testing.assert_array_equal(link.publish(model, compression=TopK(2)), [3, 0, 0, 2])
    assert traffic(link) == (3, 12, 0, 3 * 2 * (32 + 2))
    drawn = [round_one_link().publish(model, compression=RandomK(1)) for _ in range(2)]
    np.testing.assert_array_equal(*drawn)
    clients = round_one_link().send(jnp.tile(model, (4, 1)), compression=RandomK(2))
    server = round_one_link().publish(model, compression=RandomK(2))
    assert np.asarray(clients).shape == (4, 4)
    assert np.count_nonzero(server) == 2


@pytest.mark.slow
def test_messages_to_neighbors_count_once_a_receiver():
    link = round_one_link()
    message = jnp.asarray(np.random.default_rng(2).normal(size=(4, 6)))
    received = link.send(message)
    np.testing.assert_array_equal(received, message)
    assert traffic(link) == (10, 60, 60 * 32, 0)
    link = round_one_link(compression=TopK(2))
    received = np.asarray(link.send(message))
    assert (np.count_nonzero(received, axis=1) == 2).all()
    np.testing.assert_array_equal(received[received != 0], np.asarray(message)[received != 0])
    assert traffic(link) == (10, 60, 10 * 2 * (32 + 3), 0)


def test_a_link_knows_whether_messages_arrive_unchanged():
    assert round_one_link().exact
    assert round_one_link().whole
    for parts in (
        {"available": jnp.ones(4, bool)},
        {"delays": Geometric(0.2, 3)},
        {"compression": Sign()},
        {"attack": SignFlip(np.zeros(4, bool))},
        {"losses": Independent(0.1)},
        {"aggregation": Median()},
    ):
        assert not round_one_link(**parts).whole
        assert not round_one_link(**parts).exact


def test_draws_of_every_purpose_have_separate_keys():
    keys = [round_one_link().key(purpose) for purpose in PURPOSES]
    keys += [key_of(jax.random.fold_in(jax.random.key(0), 1), purpose) for purpose in PURPOSES]
    data = np.unique([np.asarray(jax.random.key_data(key)) for key in keys], axis=0)
    assert len(data) == 2 * len(PURPOSES)
    with pytest.raises(ValueError, match=r"draws for sharing .* need the run's key, root="):
        round_one_link().common_key("sharing")


def test_keys_shared_by_rounds_differ_from_every_round_s():
    """A shared key differs from the keys of rounds, from which all other draws derive."""
    root = jax.random.key(5)
    shared = [round_one_link(root=root).common_key(purpose) for purpose in PURPOSES]
    of_rounds = [jax.random.fold_in(root, n) for n in range(2 * len(PURPOSES))]
    shared, of_rounds = (
        {jax.random.key_data(k).tobytes() for k in keys} for keys in (shared, of_rounds)
    )
    assert not shared & of_rounds


# Counts beyond 32 bits ----------------------------------------------------------------------------

EDGES = sorted(
    {0, 1, 2, 32, *(2**p + d for p in (15, 16, 30, 31) for d in (-1, 0, 1) if 2**p + d < 2**31)}
)
counts = st.integers(0, 2**31 - 1) | st.sampled_from(EDGES)


@given(counts, counts)
@settings(max_examples=60, deadline=None)
def test_products_equal_integer_products(count, times):
    assert as_integer(wide(jnp.asarray(count, jnp.int32), times)) == count * times


@pytest.mark.slow
def test_products_at_all_edges():
    left = jnp.asarray(EDGES, jnp.int32)
    for times in EDGES:
        pairs = np.asarray(jax.vmap(lambda count, times=times: wide(count, times))(left))
        assert pairs.dtype == np.uint32
        assert [as_integer(pair) for pair in pairs] == [count * times for count in EDGES]


@given(st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
@settings(max_examples=60, deadline=None)
def test_sums_equal_integer_sums(a, b):
    pairs = (jnp.asarray([x >> 31, x % 2**31], jnp.uint32) for x in (a, b))
    assert as_integer(wide_sum(*pairs)) == a + b


def test_traffic_adds_up():
    traffic = Traffic(*(wide(jnp.int32(2**31 - 1), times) for times in (1, 2, 2**20, 2**31 - 1)))
    total = Traffic.none().plus(traffic).plus(traffic)
    assert [as_integer(pair) for pair in total] == [
        2 * (2**31 - 1) * times for times in (1, 2, 2**20, 2**31 - 1)
    ]


@module
class Heavy(Compressor):
    """Nothing happens to a message but that it is very long."""

    def bits(self, dim):
        return 2**30 + dim

    def compress(self, keys, message):
        return message


ACTIVE = np.random.default_rng(3).uniform(size=(12, 5)) < 0.6


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.slow
def test_a_dataset_holds_cumulative_traffic(every):
    stream = Linear(np.array([np.eye(3)] * 5), np.ones(3), np.zeros(5))
    simulation = fl.Simulation(
        stream, OnlineFed(0.1), participation=Trace(ACTIVE), compression=Heavy()
    )
    run = fl.run(simulation, 12, record_every=every)
    senders = np.cumsum(ACTIVE.sum(1))[every - 1 :: every]
    assert (ACTIVE.sum(1) * 2**30).max() > 2**32 - 1
    expected = {
        "messages": 2 * senders,
        "scalars": 6 * senders,
        "bits_up": senders * (2**30 + 3),
        "bits_down": senders * 96,
        "bits": senders * (2**30 + 3 + 96),
    }
    for name, value in expected.items():
        assert run[name].dtype == np.int64
        np.testing.assert_array_equal(run[name], value)
        assert (run[name].attrs["units"] == "bit") == ("bits" in name)


@pytest.mark.slow
def test_fixed_data_have_equal_weights():
    problem = fl.problems.least_squares(jax.random.key(0), clients=3, samples=4, dim=2)
    run = fl.run(fl.Simulation(problem, ConventionalFL(0.1), compression=Heavy()), 5)
    n = np.arange(1, 6)
    np.testing.assert_array_equal(run["bits_up"], 3 * (2**30 + 2) * n)
    np.testing.assert_array_equal(run["bits_down"], 3 * 64 * n)
    np.testing.assert_array_equal(run["bits"], run["bits_up"] + run["bits_down"])
