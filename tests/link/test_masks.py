"""Secure aggregation: servers receive uniform numbers for any data, and sums are exact."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax as fl
from fljax._core.prng import as_key
from fljax.algorithms import IFCA, FedAvg, GraphFedAvg
from fljax.link import Link, SecureAggregation, Stages, uploads
from tests.cases import CASES, CLIENTS, LINE, make_network, make_problem, make_servers, simulate
from tests.support.servers import WITH_SERVERS, server_models

pytestmark = pytest.mark.core
slow = pytest.mark.slow

STEP = 0.08
ROUNDS = 4


class Wire(Link):
    """Keeps what leaves the clients."""

    def _mask_values(self, values, masks, most):
        encoded, beyond = super()._mask_values(values, masks, most)
        self.words = encoded
        return encoded, beyond


def link_of(masks, key=0, clients=CLIENTS, network=None, **stages):
    stages = Stages(masks=masks, **stages)
    memory = fl.link.begin(stages, network, as_key(99), jnp.zeros((clients, 3)), asleep=False)
    return Wire(
        as_key(key) if isinstance(key, int) else key, 1, 1, clients, network, stages, memory
    )


# What is hidden ----------------------------------------------------------------------------------


def occurrences(rows):
    """How often each combination occurs."""
    values, times = np.unique(np.asarray(rows), axis=0, return_counts=True)
    return {tuple(v.tolist()): int(t) for v, t in zip(values, times, strict=True)}


def every_mask(monkeypatch, protocol, server, summed, servers):
    """``[draws, M]``: the masks for each value that the uniform draws can have."""
    size = 2**protocol.bits
    draws = np.array(list(itertools.product(range(size), repeat=len(server))), np.uint64)

    def masks(drawn):
        monkeypatch.setattr(uploads, "_uniform_words", lambda *_: drawn[:, None])
        return protocol.masks(
            as_key(0), jnp.asarray(server, jnp.int32), jnp.asarray(summed), servers, 1, float
        )[:, 0]

    return np.asarray(jax.vmap(masks)(jnp.asarray(draws)))


def test_masks_have_exactly_the_distribution_of_sums_of_uniform_pairs(monkeypatch):
    """All values of all pairs, and of all draws, enumerated: three clients, two bits."""
    protocol = SecureAggregation(1.0, bits=2)
    pairs = [(0, 1), (0, 2), (1, 2)]
    of_pairs = []
    for shared in itertools.product(range(4), repeat=3):
        sums = np.zeros(3, int)
        for (k, l), mask in zip(pairs, shared, strict=True):  # noqa: E741
            sums[k] += mask
            sums[l] -= mask
        of_pairs.append(sums % 4)
    result = every_mask(monkeypatch, protocol, [0, 0, 0], [True, True, True], 1)
    assert occurrences(result) == occurrences(of_pairs)
    assert len(occurrences(result)) == 4**2


@pytest.mark.parametrize(
    ("server", "summed"),
    [
        ([0, 0, 0], [1, 1, 1]),
        ([0, 0, 0, 0], [1, 0, 1, 1]),  # one message is lost
        ([0, 1, 0, 1], [1, 1, 1, 1]),
        ([0, 0, 1], [0, 0, 0]),  # nothing is recovered
    ],
)
def test_masked_messages_are_uniform_for_any_data(server, summed, monkeypatch):
    """A bijection: each combination of received values (one message of each sum left out) comes
    from equally many draws of masks, and the sums are exact.
    """
    protocol = SecureAggregation(1.0, bits=3)
    summed = np.array(summed, bool)
    clients = np.array(server)
    count = max(server) + 1
    masks = every_mask(monkeypatch, protocol, server, summed, count)
    rng = np.random.default_rng(0)
    for data in (np.zeros(len(server), int), rng.integers(0, 8, len(server))):
        sent = np.asarray(
            protocol.hide(
                jnp.asarray(np.broadcast_to(data, masks.shape), jnp.uint64),
                jnp.asarray(masks),
                float,
            )
        )
        left_out = [
            [k for k in range(len(server)) if clients[k] == p and summed[k]] or [None]
            for p in range(count)
        ]
        for missing in itertools.product(*left_out):
            rest = [k for k in range(len(server)) if k not in missing]
            times = occurrences(sent[:, rest])
            assert len(times) == 8 ** len(rest)
            assert len(set(times.values())) == 1
        for p in range(count):
            inside = summed & (clients == p)
            assert (sent[:, inside].sum(axis=1) % 8 == data[inside].sum() % 8).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_neither_low_nor_high_bits_of_a_message_depend_on_it(dtype):
    """What clients send over the link in two worlds, by chi-square; sums do differ."""
    protocol = SecureAggregation(1.0)
    draws = 4000
    clients = 3
    worlds = np.zeros((2, clients, 1))
    worlds[1, 0] = 1.0  # the largest change within the range
    bits = protocol.width(dtype)

    def sent(key, message):
        link = Wire(key, 1, 1, clients, None, Stages(masks=protocol))
        zero = jnp.zeros(1, dtype)
        total = link.collect(message, jnp.ones(clients, bool), zero).total
        return link.words[:, 0], total[0]

    keys = jax.random.split(as_key(5), draws)
    for world in worlds:
        sent_words, total = jax.vmap(sent, in_axes=(0, None))(keys, jnp.asarray(world, dtype))
        np.testing.assert_allclose(total, world.mean(), rtol=1e-6)
        sent_words = np.asarray(sent_words)
        for subset in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
            mixed = sent_words[:, subset].sum(axis=1, dtype=sent_words.dtype)
            for shift in (0, 8, bits - 4):
                cells = (mixed >> sent_words.dtype.type(shift)) & sent_words.dtype.type(15)
                times = np.bincount(cells.astype(int), minlength=16)
                assert stats.chisquare(times).pvalue > 1e-4
        # Two messages of three are independent: all combinations of high bits are equally likely.
        high = (sent_words >> sent_words.dtype.type(bits - 2)).astype(int)
        for k, l in itertools.combinations(range(clients), 2):  # noqa: E741
            times = np.bincount(4 * high[:, k] + high[:, l], minlength=16)
            assert stats.chisquare(times).pvalue > 1e-4


def test_all_bits_of_a_word_are_used():
    for bits, dtype in ((None, np.float32), (None, np.float64), (20, np.float32), (40, float)):
        protocol = SecureAggregation(1.0, bits=bits)
        rows = jnp.zeros(4, jnp.int32)
        masks = np.asarray(protocol.masks(as_key(0), rows, rows == 0, 1, 501, dtype))
        width = protocol.width(dtype)
        assert masks.dtype.itemsize == np.dtype(dtype).itemsize
        share_of_ones = np.array([(masks >> masks.dtype.type(b) & masks.dtype.type(1)).mean()
                         for b in range(8 * masks.dtype.itemsize)])  # fmt: skip
        np.testing.assert_allclose(share_of_ones[:width], 0.5, atol=0.08)
        assert not share_of_ones[width:].any()
        assert len(np.unique(masks)) > 0.99 * masks.size  # no number is drawn twice


# What is summed ----------------------------------------------------------------------------------


def on_grid(values, protocol, most, dtype):
    """Integers, by NumPy."""
    size = float(protocol.range)
    steps = 2 ** (((2 ** (protocol.width(dtype) - 1) - 1) // most).bit_length() - 1)
    grid = 2.0 ** np.ceil(np.log2(size)) / steps
    return np.rint(np.clip(values, -size, size) / grid).astype(object), grid


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("network", [None, "servers"])
@pytest.mark.parametrize("sending", [(1, 1, 1, 1, 1), (1, 0, 1, 1, 1), (1, 0, 0, 1, 1)])
def test_servers_decode_exactly_the_sum_of_rounded_messages(sending, network, weighted, dtype):
    """Sums of weighted differences from each server's model; a client alone at its server does not
    send.
    """
    protocol = SecureAggregation(3.0, bits=32)
    rng = np.random.default_rng(1)
    network = None if network is None else make_servers()
    home = np.zeros(CLIENTS, int) if network is None else np.array(network.server)
    count = home.max() + 1
    most = np.bincount(home).max()
    message = rng.normal(size=(CLIENTS, 4))
    start = rng.normal(size=(count, 4))
    weights = rng.uniform(0.5, 2, CLIENTS) if weighted else np.ones(CLIENTS)
    message, start, weights = (np.asarray(a, dtype) for a in (message, start, weights))
    active = np.array(sending, bool)
    active &= np.array([(home[active] == p).sum() > 1 for p in home])

    def arrived(key):
        link = link_of(protocol, key, network=network)
        reference = jnp.asarray(start if network else start[0])
        options = {"weights": jnp.asarray(weights)} if weighted else {}
        sums = link.collect(jnp.asarray(message), jnp.asarray(sending) > 0, reference, **options)
        return np.asarray(sums.move(reference)).reshape(count, 4), sums, link

    model, sums, link = arrived(0)
    largest = weights[active].max()
    change = np.zeros_like(start)
    for p in range(count):
        inside = active & (home == p)
        if inside.any():
            values = (weights / largest)[:, None] * (message - start[home])
            steps, grid = on_grid(values[inside], protocol, int(most), dtype)
            change[p] = largest * (steps.sum(axis=0) * grid).astype(dtype) / weights[inside].sum()
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(model, start + change, rtol=0, atol=8 * eps)
    expected = [weights[active & (home == p)].sum() for p in range(count)]
    np.testing.assert_allclose(np.ravel(sums.weight), expected, rtol=8 * eps)
    np.testing.assert_array_equal(arrived(7)[0], model)  # the masks cancel to the last bit
    assert (arrived(7)[2].words != link.words).mean() > 0.99
    assert int(link.traffic.bits_up[-1]) == 32 * 4 * active.sum()


@pytest.mark.parametrize("clients", [2, 5, 100])
@pytest.mark.parametrize(
    ("bits", "dtype"), [(16, np.float32), (32, np.float32), (33, float), (64, float)]
)
def test_sums_do_not_wrap_and_values_beyond_the_range_are_clipped(clients, bits, dtype):
    """All clients at either end of the range, and beyond it."""
    for size in (1.0, 0.3, 1e-4, 1e9):
        protocol = SecureAggregation(size, bits=bits)
        grid = float(protocol.grid(clients, dtype))
        assert np.log2(grid) % 1 == 0
        steps = int(np.rint(np.asarray(size, dtype) / grid))
        assert clients * steps < 2 ** (bits - 1)  # no sum leaves the signed integers
        assert clients * 4 * (steps + 1) >= 2 ** (bits - 1)  # and the grid is not coarser than that
        parts = np.array([1, -1, 3, -np.inf, np.nan, 0.5], dtype)
        values = jnp.asarray(np.broadcast_to(parts * np.asarray(size, dtype), (clients, 6)))
        encoded, beyond = protocol.encode(values, clients)
        assert (beyond == jnp.array([[0, 0, 1, 1, 1, 0]], bool)).all()
        total = protocol.sums(encoded, jnp.zeros(clients, jnp.int32), 1)
        result = protocol.decode(total, clients, dtype)[0]
        expected = np.array([1, -1, 1, -1, 0, 0.5]) * clients * size
        np.testing.assert_allclose(result, expected, atol=clients * grid, rtol=1e-6)


def test_a_link_counts_the_numbers_that_were_clipped():
    """The largest share of clipped numbers over the messages that are sent."""
    active = jnp.arange(CLIENTS) < 4
    start = jnp.zeros(3)
    small = jnp.full((CLIENTS, 3), 0.9).at[4].set(5.0)
    large = small.at[:2, 0].set(jnp.array([1.5, jnp.nan]))
    for method in ("collect", "send"):
        link = link_of(SecureAggregation(1.0))
        shares = []
        for message in (small, large, small):
            if method == "collect":
                link.collect(message, active, start)
            else:
                link.send(message, start, sending=active)
            shares.append(float(link.clipped))
        np.testing.assert_allclose(shares, [0, 2 / 12, 2 / 12])


def test_a_run_reports_clipped_numbers():
    options = {"algorithm": FedAvg(STEP, 3), "metrics": ["objective"]}
    with pytest.warns(fl.AssumptionWarning, match="beyond the range of the masks"):
        results = fl.run(fl.Simulation(make_problem(), masks=SecureAggregation(1e-3), **options), 2)
    assert results.clipped > 0
    results = fl.run(fl.Simulation(make_problem(), masks=SecureAggregation(8.0), **options), 2)
    assert results.clipped == 0
    assert "clipped" not in fl.run(fl.Simulation(make_problem(), **options), 2)


@pytest.mark.parametrize("label", ["collected", "sent", "sent, two servers"])
def test_large_groups_and_both_ways_to_a_server_have_the_same_sums(label):
    protocol = SecureAggregation(16.0)
    clients = 80
    rng = np.random.default_rng(2)
    message = jnp.asarray(rng.normal(size=(clients, 3)))
    start = jnp.asarray(rng.normal(size=3))
    active = jnp.asarray(rng.uniform(size=clients) < 0.7)
    network = fl.federation.Federation(np.arange(clients) % 2) if "two" in label else None
    home = np.zeros(clients, int) if network is None else np.array(network.server)
    link = link_of(protocol, clients=clients, network=network)
    if label == "collected":
        result = link.collect(lambda rows: message[rows], active, start).move(start)[None]
    else:
        sent = link.send(message, start, sending=active)
        assert len(sent) == clients
        result = link.mean(sent, start)[None]
        if network is not None:
            participants = fl.participation.Participants(None, active)
            server = jnp.zeros(clients, jnp.int32)
            reference = jnp.zeros((2, 1, 3))
            result, present = link.cell_means(sent, server, 1, participants, reference)
            assert present.shape == (2, 1, 1)
            result = result[:, 0]
    for p in range(home.max() + 1):
        inside = np.asarray(active) & (home == p)
        np.testing.assert_allclose(result[p], message[inside].mean(axis=0), atol=1e-9)


MASKED = {
    "FedAvg": FedAvg(STEP, 3),  # weighted by samples
    "unequal": FedAvg(STEP, selector=fl.participation.Unequal(3, [0.3, 0.2, 0.2, 0.15, 0.15])),
    "GFL, gradient": GraphFedAvg(STEP, clients_per_server=2),
}


@pytest.mark.parametrize(
    "label",
    ["FedAvg", pytest.param("unequal", marks=slow), pytest.param("GFL, gradient", marks=slow)],
)
def test_a_masked_servers_mean_equals_the_plain_one_with_noise(label):
    network = make_servers() if label == "GFL, gradient" else None
    options = {"network": network, "upload_noise": fl.link.UploadNoise(0.2)}
    plain = server_models(MASKED[label], **options)
    masked = server_models(MASKED[label], **options, masks=SecureAggregation(16.0))
    np.testing.assert_allclose(masked, plain, rtol=1e-12, atol=1e-12)
    coarse = server_models(MASKED[label], **options, masks=SecureAggregation(16.0, bits=16))
    gap = np.abs(coarse - plain).max()
    assert 1e-6 < gap < 0.01  # 16 bits are a grid of 2^-8


@slow
@pytest.mark.thin(12, every=24)
@pytest.mark.parametrize("label", [s for s in WITH_SERVERS if CASES[s].algorithm.needs.masked])
def test_every_algorithm_that_sums_runs_under_masks(label):
    silent = simulate(label, private=False)
    masks = SecureAggregation(64.0)
    results, quiet = (
        fl.run(fl._core.module.replace(silent, masks=part), 3, as_key(1))["model"].values
        for part in (masks, None)
    )
    np.testing.assert_allclose(results, quiet, rtol=1e-9, atol=1e-10)


@slow
def test_masks_go_with_absent_clients():
    algorithm = FedAvg(STEP, weighting="equal")
    plain, masked = (
        server_models(algorithm, participation=fl.participation.Bernoulli(0.8), masks=masks)
        for masks in (None, SecureAggregation(8.0))
    )
    np.testing.assert_allclose(masked, plain, rtol=1e-9, atol=1e-10)


# Dropouts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threshold", "needed"), [(0.0, 2), (0.5, 3), (2 / 3, 4), (0.9, 5)])
def test_the_sum_of_received_messages_is_recovered_from_a_threshold_on(threshold, needed):
    """If fewer messages arrive, nothing is recovered and the model stays."""
    rng = np.random.default_rng(3)
    message = jnp.asarray(rng.normal(size=(CLIENTS, 3)))
    start = jnp.asarray(rng.normal(size=3))
    weights = jnp.asarray(rng.uniform(1, 2, CLIENTS))
    protocol = SecureAggregation(8.0, threshold=threshold)
    np.testing.assert_array_equal(protocol.survivors(CLIENTS)[CLIENTS], needed)
    options = {"losses": fl.link.Independent(0.4)}

    def results(key):
        link, other = (link_of(protocol, key, **options) for _ in range(2))
        everyone = jnp.ones(CLIENTS, bool)
        model = link.collect(message, everyone, start, weights=weights).move(start)
        mean = other.mean(other.send(message, start), start)
        return link._working_links()[0], model, mean, link.traffic.messages[-1]

    surplus = set()
    parts = jax.jit(jax.vmap(results))(jnp.stack([as_key(key) for key in range(40)]))
    for works, model, mean, count in zip(*map(np.asarray, parts), strict=True):
        surplus.add(works.sum() - needed)
        if works.sum() < needed:
            np.testing.assert_array_equal(model, start)
            np.testing.assert_array_equal(mean, start)
            continue
        np.testing.assert_allclose(mean, message[works].mean(axis=0), atol=1e-9)
        expected = np.average(message[works], axis=0, weights=weights[works])
        np.testing.assert_allclose(model, expected, atol=1e-9)
        assert count == CLIENTS  # lost messages were sent, too
    assert {-1, 0} <= surplus


@slow
def test_a_run_with_lost_messages_equals_the_unmasked_one_if_enough_arrive():
    options = {"losses": fl.link.Independent(0.1), "rounds": 3}
    plain = server_models(FedAvg(STEP), **options)
    masked = server_models(FedAvg(STEP), **options, masks=SecureAggregation(8.0, threshold=0.0))
    np.testing.assert_allclose(masked, plain, rtol=1e-9, atol=1e-10)


def test_a_client_alone_at_its_server_does_not_send():
    link = link_of(SecureAggregation(4.0))
    start = jnp.ones(3)
    only_client = jnp.arange(CLIENTS) == 2
    arrived = link.collect(jnp.full((CLIENTS, 3), 2.0), only_client, start)
    np.testing.assert_array_equal(arrived.move(start), start)
    assert not arrived.any
    assert int(link.traffic.messages[-1]) == 0
    np.testing.assert_array_equal(
        link.mean(link.send(jnp.ones((CLIENTS, 3)), sending=only_client), start), start
    )


# What is refused ---------------------------------------------------------------------------------


@fl.module
class Own(fl.algorithms.ConventionalFL):
    """A user's algorithm whose needs do not mention masks."""

    needs = fl.algorithms.Needs(None)


REFUSED = [
    ({"algorithm": fl.algorithms.ATC(0.1)}, "LocalGraphHomomorphic"),
    ({"algorithm": IFCA(0.1, 2)}, "more of clients' messages than one sum"),
    ({"compression": fl.link.Sign()}, "compression= would compress masked messages"),
    ({"delays": fl.link.Geometric(0.1, 2)}, "delays= deliver a message after the masks"),
    ({"aggregation": fl.aggregation.Median()}, "aggregation= combines single messages"),
    (
        {"attack": fl.attacks.SignFlip(fl.attacks.first(1, CLIENTS))},
        "attack= replaces a message without the mask",
    ),
    ({"privacy": fl.privacy.CentralGaussian(1.0, 1.0)}, "clip one by one"),
    ({"algorithm": Own(0.1)}, "declare masked=True in its needs"),
    ({"algorithm": FedAvg(0.1, 1)}, "one participant"),
    (
        {
            "algorithm": GraphFedAvg(0.1),
            "network": fl.federation.Federation([0, 0, 1, 0, 0], make_network(nodes=2, edges=LINE)),
        },
        "one participant",
    ),
    ({"algorithm": fl.algorithms.Ditto(FedAvg(0.1, 1), 0.1, 1.0)}, "one participant"),
]


@pytest.mark.parametrize(("parts", "message"), REFUSED)
def test_masks_that_would_not_cancel_are_refused_before_the_run(parts, message):
    options = {"algorithm": FedAvg(0.1, weighting="equal"), "network": make_network()} | parts
    with pytest.raises(ValueError, match=message):
        fl.Simulation(make_problem(), masks=SecureAggregation(1.0), **options)


@pytest.mark.parametrize("name", ["compression", "delays", "aggregation", "attack", "network"])
def test_a_masked_link_refuses_rules_for_single_messages(name):
    stages = {
        key: part for parts, _ in REFUSED for key, part in parts.items() if key == name
    } if name != "network" else {}  # fmt: skip
    network = make_network() if name == "network" else None
    link = link_of(SecureAggregation(1.0), network=network, **stages)
    with pytest.raises(ValueError, match="masks= hide single messages, which"):
        link.send(jnp.zeros((CLIENTS, 2)))
    if name != "network":
        with pytest.raises(ValueError, match="masks= hide single messages, which"):
            link.collect(jnp.zeros((CLIENTS, 2)), jnp.ones(CLIENTS, bool), jnp.zeros(2))


def test_masked_messages_allow_only_sums():
    link = link_of(SecureAggregation(1.0), network=make_servers())
    message = jnp.ones((CLIENTS, 2))
    sent = link.send(message)
    with pytest.raises(ValueError, match="stores single messages"):
        link.stored(sent, message)
    participants = fl.participation.Participants(None, jnp.ones(CLIENTS, bool))
    with pytest.raises(ValueError, match="not in each of 2 clusters"):
        link.cell_means(sent, jnp.zeros(CLIENTS, jnp.int32), 2, participants, jnp.zeros((2, 2, 2)))
    with pytest.raises(TypeError):
        sent - message
    with pytest.raises(ValueError, match="some parameters each"):
        link.collect(message, jnp.ones(CLIENTS, bool), jnp.zeros((2, 2)),
                     at=jnp.zeros((CLIENTS, 2), jnp.int32))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"range": 0.0}, "range must be"),
        ({"range": -1.0}, "range must be"),
        ({"range": np.inf}, "range must be"),
        ({"range": 1.0, "bits": 1}, "bits must be"),
        ({"range": 1.0, "bits": 65}, "bits must be"),
        ({"range": 1.0, "threshold": 1.0}, "threshold must be"),
        ({"range": 1.0, "threshold": -0.1}, "threshold must be"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SecureAggregation(**options)


def test_too_many_bits_for_the_precision_and_too_few_for_the_clients_are_refused():
    with pytest.raises(ValueError, match="bits must be at most 32 for messages of float32, got 40"):
        SecureAggregation(1.0, bits=40).grid(3, np.float32)
    with pytest.raises(ValueError, match="bits=4 cannot hold a sum of 8 messages; take at least 5"):
        SecureAggregation(1.0, bits=4).grid(8, float)
    assert SecureAggregation(1.0, bits=5).grid(8, float) == 1.0


@slow
def test_a_grid_of_ranges_is_one_program():
    def scenario(key, size):
        return fl.Simulation(
            make_problem(), FedAvg(STEP), masks=SecureAggregation(size), metrics=["objective"]
        )

    results = fl.sweep(scenario, grid={"size": [4.0, 64.0]}, seeds=2, rounds=3)
    plain = fl.run(fl.Simulation(make_problem(), FedAvg(STEP), metrics=["objective"]), 3)
    expected = np.broadcast_to(plain.objective, results.objective.shape)
    np.testing.assert_allclose(results.objective, expected, rtol=1e-9)
    with pytest.raises(ValueError, match="range must be"):
        fl.sweep(scenario, grid={"size": [4.0, -1.0]}, seeds=1, rounds=3)
