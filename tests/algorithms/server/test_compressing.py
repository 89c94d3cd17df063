"""Compression at a server: absent clients, lost messages, special cases, rates, bits, refusals."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import ADIANA, CANITA, DASHA, DIANA, EF21, EF21BC, EFSGD, MARINA, TAMUNA
from fljax.link import Contractive, Natural, Quantize, RandomK, Sign, StochasticSign, TopK
from fljax.participation.patterns import Trace
from fljax.problems import optimum
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, DIM, OBJECTIVE, ROUNDS, batch_gradient, coins_of, make_problem
from tests.cases.peers import one_batch_of
from tests.cases.server import COMPRESSED_LOOPS, compressed_world
from tests.cases.world import keys_of, step_of
from tests.support.rounds import Stepper
from tests.support.server_runs import ACTIVE, Lost, class_name, state_metric, trajectory

close = np.testing.assert_allclose
STEP = 0.05
ALL = [
    EFSGD(STEP, compression=Sign()),
    EF21(STEP, compression=TopK(1)),
    EF21BC(STEP, compression=TopK(2), downlink=TopK(1)),
    DIANA(STEP, compression=RandomK(1)),
    MARINA(STEP, compression=RandomK(1), probability=0.4),
    DASHA(STEP, compression=RandomK(2)),
    ADIANA(STEP, compression=RandomK(1), convexity=0.5, probability=0.4),
    CANITA(STEP, compression=RandomK(1)),
    TAMUNA(STEP, sparsity=2, clients_per_round=4, local_steps=3),
]
#: Methods that cope with absent clients, and the field of each client's state.
KEEPING = {"EFSGD": "errors", "EF21": "gradients", "DIANA": "controls"}
#: The field in which lost messages show.
SHARED = KEEPING | {
    "EF21BC": "gradients",
    "MARINA": "gradients",
    "DASHA": "estimates",
    "ADIANA": "controls",
    "CANITA": "controls",
    "TAMUNA": "controls",
}
REFERENCED = pytest.mark.parametrize("algorithm", ALL, ids=class_name)


def drawn_of(algorithm):
    """The clients that the server draws, round by round, in the run's order."""
    keys = [key_of(now, "participation") for now in keys_of(1)]
    everyone = jnp.ones(CLIENTS, bool)
    drawn = [algorithm.selection.choose(key, everyone, None).numbers for key in keys]
    return [[int(k) for k in now] for now in drawn]


def loop(algorithm, world):
    return COMPRESSED_LOOPS[type(algorithm)](algorithm, world, step_of(algorithm.step_size))


def compare(algorithm, world, field, **parts):
    """Models, and what clients keep, against the loop's."""
    models, kept = loop(algorithm, world)
    close(trajectory(algorithm, **parts), models, rtol=0, atol=1e-10)
    states = trajectory(algorithm, metric=state_metric(field), **parts)
    close(states[-1], kept, rtol=0, atol=1e-10)
    return states


# Against the loops ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [a for a in ALL if class_name(a) in KEEPING], ids=class_name)
def test_absent_clients_keep_their_states(algorithm):
    active = [np.flatnonzero(now) for now in ACTIVE]
    world = compressed_world(algorithm, active=active)
    states = compare(algorithm, world, KEEPING[class_name(algorithm)], participation=Trace(ACTIVE))
    before = np.concatenate([np.zeros((1, CLIENTS, DIM)), states[:-1]])
    np.testing.assert_array_equal(states[~ACTIVE], before[~ACTIVE])
    assert np.abs(states[ACTIVE] - before[ACTIVE]).max(axis=1).min() > 0


@pytest.mark.parametrize(
    "algorithm",
    [
        EFSGD(STEP, compression=TopK(1), clients_per_round=2),
        EF21(STEP, compression=Sign(), clients_per_round=2),
        DIANA(STEP, compression=Natural(), clients_per_round=3, momentum=0.3),
        MARINA(STEP, compression=Quantize(2), probability=0.4, clients_per_round=2),
        TAMUNA(STEP, sparsity=2, clients_per_round=3, local_steps=2, control_step_size=0.4),
    ],
    ids=class_name,
)
def test_some_clients_a_round(algorithm):
    active = drawn_of(algorithm)
    assert {len(now) for now in active} == {algorithm.clients_per_round}
    compare(algorithm, compressed_world(algorithm, active=active), SHARED[class_name(algorithm)])


WORKS = np.random.default_rng(5).uniform(size=(ROUNDS, CLIENTS)) < 0.7
WORKS[3] = False


@REFERENCED
def test_senders_of_lost_messages_know_it(algorithm):
    lost = [(n + 1, k) for n, k in np.argwhere(~WORKS)]
    world = compressed_world(algorithm, lost=lost)
    if isinstance(algorithm, TAMUNA):
        world = dataclasses.replace(world, active=drawn_of(algorithm))
    compare(algorithm, world, SHARED[class_name(algorithm)], losses=Lost(jnp.asarray(WORKS)))


@pytest.mark.parametrize(
    "algorithm",
    [
        EFSGD(STEP, compression=TopK(1), local_steps=1, batches=Uniform(2)),
        EF21(STEP, compression=TopK(1), batches=Uniform(2)),
        DIANA(STEP, compression=RandomK(2), batches=Uniform(2)),
        EF21BC(STEP, compression=TopK(1), downlink=TopK(2), batches=Uniform(2)),
    ],
    ids=class_name,
)
def test_batches_are_those_of_the_loop(algorithm):
    rows = one_batch_of(2)
    world = dataclasses.replace(
        compressed_world(algorithm),
        gradient=lambda n, k, w: batch_gradient(k, w, rows[n - 1][k]),
    )
    compare(algorithm, world, SHARED[class_name(algorithm)])


@pytest.mark.parametrize(
    "options",
    [
        {"probability": 0.7},
        {"probability": 1.0, "fast_share": 0.4},
        {"fast_share": fl.schedules.PowerDecay(0.9, 1.0), "memory_step_size": 0.2},
    ],
)
@pytest.mark.parametrize("step", [STEP, fl.schedules.Warmup(0.01, 0.07, 5.5)])
def test_canita_has_the_schedules_that_it_is_given(options, step):
    algorithm = CANITA(step, compression=RandomK(2), **options)
    compare(algorithm, compressed_world(algorithm), "controls")


# Special cases and limits -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        EFSGD(STEP, compression=TopK(DIM)),
        EF21(STEP, compression=TopK(DIM)),
        EF21BC(STEP, compression=RandomK(DIM), downlink=TopK(DIM)),
        DIANA(STEP, compression=RandomK(DIM)),
        MARINA(STEP, compression=RandomK(1), probability=1.0),
        MARINA(STEP, compression=RandomK(DIM), probability=0.1),
        DASHA(STEP, compression=RandomK(DIM)),
        TAMUNA(STEP, sparsity=CLIENTS),
        TAMUNA(STEP, sparsity=CLIENTS, control_step_size=0.3),
    ],
    ids=class_name,
)
def test_without_compression_all_are_gradient_descent(algorithm):
    x = np.zeros(DIM)
    for model in trajectory(algorithm):
        x = x - STEP * np.mean([OBJECTIVE.gradient(k, x) for k in range(CLIENTS)], axis=0)
        close(model, x, rtol=0, atol=1e-13)


def test_without_compression_canita_is_accelerated_gradient_descent():
    """With the theorem's schedules, where ``w`` is ``z`` in each round."""
    w = x = np.zeros(DIM)
    for n, model in enumerate(trajectory(CANITA(STEP, compression=RandomK(DIM))), 1):
        theta = 3 / (n + 8)
        y = theta * x + (1 - theta) * w
        gradient = np.mean([OBJECTIVE.gradient(k, y) for k in range(CLIENTS)], axis=0)
        x = x - STEP / theta * gradient
        w = y - STEP * gradient
        close(model, w, rtol=0, atol=1e-13)


@pytest.mark.parametrize("algorithm", ALL[1:], ids=class_name)
def test_compressed_differences_lead_to_the_exact_minimizer(algorithm):
    """With unlike clients and a constant step size, where fed-back errors stop short."""
    best = np.asarray(optimum(make_problem()))
    distance = np.abs(trajectory(algorithm, rounds=1500)[-1] - best).max()
    assert distance < (1e-5 if isinstance(algorithm, CANITA) else 1e-9)  # at a power of the rounds
    fed_back = trajectory(EFSGD(STEP, compression=TopK(1)), rounds=1500)[-1]
    assert np.abs(fed_back - best).max() > 1e-3


@pytest.mark.parametrize("algorithm", ALL[1:], ids=class_name)
def test_the_optimum_is_a_fixed_point_whatever_is_drawn(algorithm):
    problem = make_problem()
    best = optimum(problem)
    gradients = problem.gradient(jnp.broadcast_to(best, (CLIENTS, DIM)))
    stepper = Stepper(fl.Simulation(problem, algorithm), ROUNDS)
    start = stepper.start()
    known = dict.fromkeys(("model", "fast", "anchor"), best) | dict.fromkeys(
        ("gradients", "controls", "estimates"), gradients
    )
    start = start._replace(**{name: known[name] for name in start._fields if name in known})
    state = start
    for n in range(1, 4):
        state = stepper(state, n)[0]
    for before, after in zip(start, state, strict=True):
        close(after, before, rtol=0, atol=1e-12)


# Traffic ----------------------------------------------------------------------------------------


def traffic(algorithm, **parts):
    results = fl.run(fl.Simulation(make_problem(), algorithm, **parts), ROUNDS, fl.random_key(1))
    return tuple(np.diff(results[name].values, prepend=0) for name in ("bits_up", "bits_down"))


@REFERENCED
def test_bits_are_those_of_compressed_messages(algorithm):
    up, down = traffic(algorithm)
    if isinstance(algorithm, TAMUNA):  # each of the parameters from two clients
        np.testing.assert_array_equal(up, 2 * DIM * 32)
        np.testing.assert_array_equal(down, 4 * DIM * 32)
        return
    expected = np.full(ROUNDS, CLIENTS * algorithm.compression.bits(DIM))
    if isinstance(algorithm, MARINA):
        full = np.array(coins_of(float(algorithm.probability)))
        full[0] = True
        assert 1 < full.sum() < ROUNDS
        expected[full] = CLIENTS * 32 * DIM
    published = algorithm.downlink.bits(DIM) if isinstance(algorithm, EF21BC) else 32 * DIM
    if isinstance(algorithm, ADIANA):
        expected *= 2
        published = 32 * DIM * (1 + np.array(coins_of(0.4)))
    if isinstance(algorithm, CANITA):
        expected *= 2
        expected[0] = CLIENTS * 32 * DIM
        published = 32 * DIM * (1 + np.array(coins_of(1 / (1 + np.sqrt(2 * 9 / 5)))))
    np.testing.assert_array_equal(up, expected)
    np.testing.assert_array_equal(down, CLIENTS * published)


def test_bits_are_those_of_the_participants():
    up, down = traffic(EF21(STEP, compression=TopK(1)), participation=Trace(ACTIVE))
    np.testing.assert_array_equal(up, ACTIVE.sum(1) * TopK(1).bits(DIM))
    np.testing.assert_array_equal(down, ACTIVE.sum(1) * 32 * DIM)
    marina = MARINA(STEP, compression=RandomK(1), probability=0.4, clients_per_round=2)
    up, down = traffic(marina)
    full = np.array([True, *coins_of(0.4)[1:]])
    np.testing.assert_array_equal(up, np.where(full, CLIENTS * 32 * DIM, 2 * 32))
    np.testing.assert_array_equal(down, CLIENTS * 32 * DIM)


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            EF21(STEP, compression=RandomK(1)),
            r"EF21 needs a contractive compressor.*Contractive\(RandomK\(count=1\)\)",
        ),
        (
            EFSGD(STEP, compression=StochasticSign(1.0)),
            r"EF-SGD needs a contractive.*StochasticSign.*take fljax.link.TopK or Sign\(\)",
        ),
        (
            EF21BC(STEP, compression=TopK(1), downlink=Sign(scaled=False)),
            r"EF21-BC needs a contractive compressor, and Sign\(scaled=False\)",
        ),
        (
            DIANA(STEP, compression=TopK(2)),
            r"DIANA needs an unbiased compressor, and TopK\(count=2\) has no.*feedback \(EF21",
        ),
        (MARINA(STEP, compression=Sign(), probability=0.5), "MARINA needs an unbiased compressor"),
        (DASHA(STEP, compression=Contractive(RandomK(1))), "DASHA needs an unbiased compressor"),
        (
            ADIANA(STEP, compression=TopK(1), convexity=1.0, probability=0.5),
            "ADIANA needs an unbiased compressor",
        ),
        (
            CANITA(STEP, compression=TopK(1)),
            r"CANITA needs an unbiased compressor, and TopK\(count=1\) has no",
        ),
        (
            CANITA(STEP, compression=RandomK(1), memory_step_size=0.5),
            r"memory_step_size must be finite and <= 0.33.*got 0.5.*1 / \(1 \+ omega\) for RandomK",
        ),
        (
            TAMUNA(STEP, sparsity=4, clients_per_round=3),
            "sparsity must be 2 to the 3 participants.*got 4",
        ),
        (
            DIANA(STEP, compression=RandomK(1), memory_step_size=0.5),
            r"memory_step_size must be finite and <= 0.33.*got 0.5.*1 / \(1 \+ omega\) for RandomK",
        ),
        (EF21(STEP, compression=TopK(4)), "count must be 1 to the 3 numbers of a message, got 4"),
        (
            EF21(STEP, compression=TopK(1), clients_per_round=9),
            "clients_per_round must be at most the 5 clients of the problem, got 9",
        ),
        (EF21(STEP, compression=Contractive(TopK(1))), "Contractive needs an unbiased compressor"),
    ],
)
def test_compressors_of_the_wrong_class_are_refused(algorithm, message):
    with pytest.raises(ValueError, match=message):
        fl.Simulation(make_problem(), algorithm)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MARINA(STEP, compression=RandomK(1), probability=0.0),
            "probability must .*> 0",
        ),
        (lambda: DIANA(STEP, compression=RandomK(1), momentum=1.0), "momentum must be .*< 1"),
        (lambda: DIANA(STEP, compression=RandomK(1), memory_step_size=-0.1), "memory_step_size"),
        (lambda: DASHA(STEP, compression=RandomK(1), estimate_momentum=0.0), "estimate_momentum"),
        (lambda: TAMUNA(STEP, sparsity=1), "sparsity must be >= 2, got 1. One value has no mean"),
        (lambda: TAMUNA(STEP, sparsity=2, control_step_size=0.0), "control_step_size must be"),
        (
            lambda: ADIANA(STEP, compression=RandomK(1), convexity=0.0, probability=0.5),
            "convexity must be .*> 0",
        ),
        (
            lambda: ADIANA(STEP, compression=RandomK(1), convexity=1.0, probability=0.0),
            "probability must",
        ),
        (
            lambda: CANITA(STEP, compression=RandomK(1), probability=0.0),
            "probability must .*> 0.*would stay where it is",
        ),
        (lambda: CANITA(STEP, compression=RandomK(1), fast_share=1.5), "fast_share must .*<= 1"),
        (
            lambda: CANITA(STEP, compression=RandomK(1), memory_step_size=-0.1),
            "memory_step_size must .*>= 0",
        ),
        (lambda: EF21(STEP, compression=TopK(1), clients_per_round=0), "clients_per_round must be"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@REFERENCED
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"compression": Sign()}, "compresses its messages itself; leave out compression="),
        ({"delays": fl.link.Fixed(1)}, "has no rule for late messages"),
        ({"aggregation": fl.aggregation.Median()}, "combines messages otherwise than by a mean"),
    ],
)
def test_parts_of_a_simulation_without_a_rule_are_refused(algorithm, parts, message):
    with pytest.raises(ValueError, match=message):
        fl.Simulation(make_problem(), algorithm, **parts)


@pytest.mark.parametrize("algorithm", [ALL[2], *ALL[4:8]], ids=class_name)
def test_methods_of_all_clients_refuse_absent_ones(algorithm):
    with pytest.raises(ValueError, match="has no rule for absent clients"):
        fl.Simulation(make_problem(), algorithm, participation=Trace(ACTIVE))
