"""Peers that save gradients or messages: their loops, what theory says of them, what they send."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._generator import as_key
from fljax.algorithms import (
    ATC,
    ATCGTSAGA,
    DESTRESS,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    GTVR,
    KGT,
    LTADMM,
    LTADMMVR,
    SGP,
    ChocoSGD,
    GossipSGD,
    NetworkDANE,
    NetworkSARAH,
    NetworkSVRG,
    ProxSkip,
    Scaffnew,
)
from fljax.algorithms.peers.gossip_sgd import matched
from fljax.batches import Uniform
from fljax.engine import trace
from fljax.link import Quantize, Sign, TopK
from fljax.participation import Bernoulli, Trace
from fljax.schedules import PowerDecay
from tests import cases, small_network
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    EDGES,
    EXACT,
    ROUNDS,
    SAVING,
    SIZES,
    make_network,
    make_problem,
)
from tests.reference import multiagent, peers

close = np.testing.assert_allclose
ANYWHERE = np.random.default_rng(3).normal(size=(CLIENTS, DIM))
#: A ring in one direction, and a way from 3 to 1 besides: columns sum to one, rows do not.
ONE_WAY = np.array(
    [
        [0.5, 0.0, 0.0, 0.0, 0.3],
        [0.5, 0.4, 0.0, 0.2, 0.0],
        [0.0, 0.6, 0.7, 0.0, 0.0],
        [0.0, 0.0, 0.3, 0.5, 0.0],
        [0.0, 0.0, 0.0, 0.3, 0.7],
    ]
)


def simulation_of(algorithm, problem=None, network=None, metrics=("normalized_error",), **parts):
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    return fl.Simulation(problem, algorithm, network, metrics=metrics, **parts)


def run(algorithm, rounds, record_every=1, **world):
    return fl.run(simulation_of(algorithm, **world), rounds, key=1, record_every=record_every)


@jax.jit
def _trace(simulation):
    return trace(simulation, as_key(1), ROUNDS, 1)[0]["exact"]


def models(algorithm, **world):
    """``[T, K, D]`` of the run whose draws the cases know."""
    return np.asarray(_trace(simulation_of(algorithm, metrics=(EXACT,), **world)))


def close_to_loop(ours, theirs, atol):
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=atol)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-3


# Against the equations ---------------------------------------------------------------------------

VARIANTS = {
    "one way": SGP(0.05, shares=ONE_WAY),
    "one sample": GTSAGA(0.05),
    "estimates that go on": GTSARAH(PowerDecay(0.05), period=3),
    "whole gradients at snapshots": GTSVRG(PowerDecay(0.05), period=3),
    "batches in local steps": LTADMM(0.9, 0.05, pull=0.1, local_steps=3, batches=Uniform(2)),
    "a table that is kept": LTADMMVR(
        0.9, PowerDecay(0.05), pull=0.1, local_steps=3, batch=2, restart=False
    ),
    "whole gradients of some": GTVR(PowerDecay(0.05), probability=0.7),
    "one is met, another stored": ATCGTSAGA(PowerDecay(0.05)),
    "many steps around a snapshot": NetworkSVRG(PowerDecay(0.05), local_steps=5),
    "one step along the tracker": NetworkSARAH(PowerDecay(0.05), local_steps=1),
    "all are active, and combine once": DESTRESS(PowerDecay(0.05), period=5),
    "always whole": DESTRESS(PowerDecay(0.05), period=1, exchanges=3),
    "steps that go on": NetworkSARAH(PowerDecay(0.05), local_steps=4),
    "all speak": ProxSkip(0.05, 1.0),
    "the server hears all": Scaffnew(0.05, 1.0),
    "one number": ChocoSGD(PowerDecay(0.1), compression=TopK(1), consensus_step_size=0.2),
    "pairs": GossipSGD(PowerDecay(0.1)),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["padded", "dense"])
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_their_loops_from_any_start(name, form):
    algorithm = VARIANTS[name]
    # A server starts all of its clients at one model.
    start = np.tile(ANYWHERE[0], (CLIENTS, 1)) if isinstance(algorithm, Scaffnew) else ANYWHERE
    world = {"problem": make_problem().starting_at(start), "network": make_network(form)}
    theirs = CASES[type(algorithm).label].oracle(algorithm, start=start)
    close_to_loop(models(algorithm, **world), theirs, 1e-10)


@pytest.mark.thin(1)
@pytest.mark.parametrize("label", SAVING[::-1])
def test_they_learn_networks_as_their_loops_do(label):
    problem = small_network.problem(SIZES)
    algorithm, start = CASES[label].algorithm, np.tile(problem.initial, (CLIENTS, 1))
    theirs = CASES[label].oracle(algorithm, small_network.gradient_of(SIZES), start)
    close_to_loop(models(algorithm, problem=problem), theirs, 1e-8)


@pytest.mark.slow
def test_absent_peers_are_not_met():
    there = np.random.default_rng(0).random((ROUNDS, CLIENTS)) < 0.6
    algorithm = GossipSGD(0.05)
    pairs = cases.meetings_of(there=there)
    theirs = peers.gossip_sgd(cases.some_of, lambda n: 0.05, pairs, cases.START, there)
    close_to_loop(models(algorithm, participation=Trace(there)), theirs, 1e-10)


# What theory says --------------------------------------------------------------------------------

#: To the minimizer of the sum, though steps do not shrink.
EXACTLY = {
    "LT-ADMM": (LTADMM(1.0, 0.05, pull=0.1, local_steps=5), 96),
    "GT-SAGA": (GTSAGA(0.03), 640),
    "GT-SVRG": (GTSVRG(0.03, period=12), 480),
    "GT-SARAH": (GTSARAH(0.03, period=12), 480),
    "Network-DANE": (NetworkDANE(2.0), 140),
    "Network-SVRG": (NetworkSVRG(0.02, local_steps=8), 100),
    "Network-SARAH": (NetworkSARAH(0.02, local_steps=8), 100),
    "DESTRESS": (DESTRESS(0.05, period=12, probability=0.5, exchanges=2), 480),
    "GT-VR": (GTVR(0.03, probability=0.1), 480),
    "ATC-GT-SAGA": (ATCGTSAGA(0.03), 640),
    "LT-ADMM-VR": (LTADMMVR(1.0, 0.05, pull=0.1, local_steps=5), 96),
    "LT-ADMM-VR, kept": (LTADMMVR(1.0, 0.03, pull=0.1, local_steps=5, restart=False), 100),
    "Scaffnew": (Scaffnew(0.1, 0.3), 140),
    "ProxSkip": (ProxSkip(0.1, 0.3), 400),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", EXACTLY)
def test_the_optimum_is_attained_linearly_at_constant_steps(name):
    """Over any stretch the squared error falls by the same factor, more or less."""
    algorithm, rounds = EXACTLY[name]
    error = run(algorithm, rounds, rounds // 4).normalized_error.values
    assert error[-1] < 1e-16
    falls = -np.diff(np.log10(error))
    assert falls.min() > falls.max() / 2


@pytest.mark.slow
def test_batches_alone_do_not_come_there():
    """Without what reduces their variance."""
    error = run(
        LTADMM(1.0, 0.05, pull=0.1, local_steps=5, batches=Uniform(1)), 400, 400
    ).normalized_error
    assert float(error[-1]) > 1e-4


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "label", ["ProxSkip", "LT-ADMM", "LT-ADMM-VR", "GT-SVRG", "GT-SAGA", "GT-VR"]
)
def test_the_optimum_is_a_fixed_point(label):
    problem, network = make_problem().prepare(), make_network()
    best = fl.problems.optimum(problem)
    agreed = jnp.tile(best, (CLIENTS, 1))
    slope = problem.gradient(agreed)
    algorithm = CASES[label].algorithm
    state = algorithm.init(problem.starting_at(agreed), network)
    if label.startswith("GT"):
        state = state._replace(tracker=jnp.zeros_like(slope))
    elif label.startswith("LT-ADMM"):
        pull = float(algorithm.step_size.value) / float(algorithm.pull)
        state = state._replace(dual=-2 * pull * slope)
    elif label == "ProxSkip":
        state = state._replace(control=slope)
    else:
        state = state._replace(correction=-slope)
    simulation = simulation_of(algorithm, metrics=())
    new = jax.jit(lambda s, now: s.algorithm.step(now, fl.view(s)))(simulation, state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        close(after, before, atol=1e-12)


def recursions():
    """What some are where nothing is saved: ``name -> (algorithm, models)``."""
    objective, weights, step = cases.OBJECTIVE, cases.METROPOLIS, 0.05
    slope = partial(np.vectorize(objective.gradient, signature="(),(d)->(d)"), np.arange(CLIENTS))
    lazy, result = (np.eye(CLIENTS) + weights) / 2, {}
    x, g = cases.START, slope(cases.START)
    y, tracking = g, []
    for _ in range(ROUNDS):
        x, before = weights @ x - step * y, g
        g = slope(x)
        y = weights @ y + g - before
        tracking.append(x)
    result["gradient tracking"] = GTSVRG(step, period=1), tracking
    x, y = cases.START, slope(cases.START)
    before, after = y, []
    for _ in range(ROUNDS):
        x = weights @ (x - step * y)
        y, before = weights @ (y + slope(x) - before), slope(x)
        after.append(x)
    result["gradient tracking, all combined"] = GTVR(step, probability=1.0), after
    everything = GTSAGA(step, batch=max(SIZES))
    result["gradient tracking along all samples"] = everything, tracking
    x, psi, diffusion = cases.START, cases.START, []
    for _ in range(ROUNDS):
        new = x - step * slope(x)
        x, psi = lazy @ (new + x - psi), new
        diffusion.append(x)
    result["exact diffusion"] = ProxSkip(step, 1.0), diffusion
    strategy = multiagent.strategy(
        objective, np.eye(CLIENTS), np.eye(CLIENTS), weights, lambda n: step, ROUNDS
    )
    result["adapt, then combine"] = (
        ChocoSGD(step, compression=TopK(DIM), consensus_step_size=1.0),
        strategy,
    )
    x, descent = np.zeros(DIM), []
    for _ in range(ROUNDS):
        x = x - step * slope(np.tile(x, (CLIENTS, 1))).mean(axis=0)
        descent.append(np.tile(x, (CLIENTS, 1)))
    result["gradient descent"] = Scaffnew(step, 1.0), descent
    return result


RECURSIONS = recursions()


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", RECURSIONS)
def test_where_nothing_is_saved_they_are_others(name):
    algorithm, theirs = RECURSIONS[name]
    ours = models(algorithm)
    close(np.broadcast_to(ours, np.shape(theirs)), theirs, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["compression", "losses"])
def test_sums_are_kept_whatever_becomes_of_messages(stage):
    """Of trackers those of estimates; of controls and corrections zero."""
    parts = {"compression": Quantize(3), "losses": fl.link.Independent(0.4, symmetric=False)}
    part = {stage: parts[stage]}
    kept = [fl.metrics.trajectory(name) for name in ("tracker", "estimate")]
    results = run(GTSAGA(0.01), 8, metrics=kept, **part)
    total = results.tracker_trajectory.sum("client") - results.estimate_trajectory.sum("client")
    if stage == "compression":
        close(total, 0, atol=1e-12)
    results = run(ProxSkip(0.02, 0.7), 8, metrics=[fl.metrics.trajectory("control")], **part)
    values = results.control_trajectory
    assert float(abs(values).max()) > 1e-3
    if stage == "compression":
        close(values.sum("client"), 0, atol=1e-12)


def still(values):
    """A problem whose gradients are zero, started at these values."""
    data = [(np.zeros((1, values.shape[1])), np.zeros(1))] * len(values)
    problem = fl.problems.from_clients(data, fl.problems.LeastSquares(), strength=0.0)
    return problem.starting_at(values)


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "compression", [TopK(1), Sign(), Quantize(4)], ids=lambda c: type(c).__name__
)
def test_compressed_differences_agree_on_the_mean(compression):
    world = {"problem": still(ANYWHERE), "metrics": ["consensus_error"]}
    results = run(
        ChocoSGD(1.0, compression=compression, consensus_step_size=0.2), 400, 200, **world
    )
    assert float(results.consensus_error[-1]) < 1e-20
    close(results.model, np.tile(ANYWHERE.mean(axis=0), (CLIENTS, 1)), atol=1e-9)
    # Compressed models themselves do not.
    direct = run(ATC(1.0), 400, 200, compression=compression, **world)
    assert float(abs(direct.model - ANYWHERE.mean(axis=0)).max()) > 1e-3


@pytest.mark.slow
def test_choco_sgd_learns_with_few_numbers():
    algorithm = ChocoSGD(PowerDecay(0.3, 0.7), compression=TopK(1), consensus_step_size=0.2)
    error = run(algorithm, 4000, 1000).normalized_error.values
    assert error[-1] < 2e-3
    assert (np.diff(error) < 0).all()


# Pairs that meet ---------------------------------------------------------------------------------


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", ["dense", "padded"])
def test_pairs_meet_as_often_as_is_said(form):
    weights = [1.0, 2.0, 0.5, 1.0, 3.0, 1.0]
    network, draws = fl.graphs.from_edges(CLIENTS, EDGES, weights, form=form), 4000
    keys, all_there = jax.random.split(jax.random.key(4), draws), jnp.ones(CLIENTS, bool)
    drawn = jax.jit(jax.vmap(lambda key: matched(key, network, all_there)[0].matrix()))(keys)
    drawn = np.asarray(drawn)
    close(drawn, drawn.transpose(0, 2, 1))
    close(drawn @ drawn, drawn, atol=1e-12)  # a mean of pairs is a projection
    close(drawn.sum(axis=2), 1)
    degree = np.asarray(network.degree)
    for (k, m), weight in zip(EDGES, weights, strict=True):
        probability = weight / (degree[k] + degree[m] - weight)
        often = (drawn[:, k, m] > 0).mean()
        assert abs(often - probability) < 5 * np.sqrt(probability * (1 - probability) / draws)
    assert (drawn[:, 0, 2] == 0).all()  # no edge


@pytest.mark.slow
def test_who_is_not_there_meets_nobody():
    there = jnp.array([True, False, True, True, True])
    for seed in range(5):
        pairs, meets = matched(jax.random.key(seed), make_network(), there)
        assert not bool(meets[1])
        assert float(pairs.self_weight[1]) == 1
        assert bool(meets.any())


@pytest.mark.slow
def test_crowded_nodes_meet_one_at_a_time():
    """A table with overflow."""
    nodes = 40
    edges = [(0, k) for k in range(1, nodes)] + [(k, k + 1) for k in range(1, nodes - 1)]
    result = []
    for form in ("padded", "dense"):
        network = fl.graphs.from_edges(nodes, edges, form=form)
        assert form == "dense" or network.overflow is not None
        pairs, meets = matched(jax.random.key(3), network, jnp.ones(nodes, bool))
        result.append(np.asarray(pairs.matrix()))
        assert int(meets.sum()) == int((result[-1] == 0.5).any(axis=1).sum()) > 10
        shares = SGP(0.1)._shared(network)
        result.append(np.asarray(shares[0].dense()) + np.diag(np.asarray(shares[1])))
        close(result[-1].sum(axis=0), 1, rtol=1e-6)
    close(result[0], result[2])
    close(result[1], result[3])


@pytest.mark.slow
def test_disagreement_shrinks_as_the_mean_matrix_says():
    """In the mean by its second eigenvalue a round, at most."""
    degree = np.asarray(make_network().degree)
    mean = np.eye(CLIENTS)
    for k, m in EDGES:
        e = np.eye(CLIENTS)[k] - np.eye(CLIENTS)[m]
        mean -= np.outer(e, e) / 2 / (degree[k] + degree[m] - 1)
    rate = np.sort(np.linalg.eigvalsh(mean))[-2]

    def scenario(key):
        return simulation_of(GossipSGD(1.0), still(ANYWHERE), metrics=["consensus_error"])

    results = fl.sweep(scenario, rounds=20, seeds=2000).consensus_error
    error, spread = results.mean("seed").values, results.std("seed").values / np.sqrt(2000)
    assert (error[1:] < 1.05 * rate * error[:-1]).all()
    # Means of pairs are projections: the first round is known exactly.
    apart = ANYWHERE - ANYWHERE.mean(axis=0)
    assert abs(error[0] - np.sum(apart * (mean @ apart)) / CLIENTS) < 5 * spread[0]


# One way -----------------------------------------------------------------------------------------


def test_push_sum_comes_to_the_mean_where_rows_do_not_sum_to_one():
    assert abs(ONE_WAY.sum(axis=1) - 1).max() > 0.1
    results = run(SGP(1.0, shares=ONE_WAY), 200, 100, problem=still(ANYWHERE), metrics=())
    close(results.model, np.tile(ANYWHERE.mean(axis=0), (CLIENTS, 1)), atol=1e-12)
    # The weights' own mean is another one: that of their Perron vector.
    law = np.linalg.matrix_power(ONE_WAY, 500)[:, 0]
    assert abs(law - 1 / CLIENTS).max() > 0.05


@pytest.mark.slow
def test_push_sum_comes_to_the_optimum_by_decaying_steps():
    algorithm = SGP(PowerDecay(0.3, 0.7), shares=ONE_WAY)
    error = run(algorithm, 4000, 1000).normalized_error.values
    assert error[-1] < 2e-3
    assert (np.diff(error) < 0).all()
    network = fl.graphs.Drawn(lambda key: fl.graphs.erdos_renyi(key, CLIENTS, 0.4))
    error = run(SGP(PowerDecay(0.3, 0.7)), 4000, 1000, network=network).normalized_error.values
    assert error[-1] < 5e-3


# What is sent ------------------------------------------------------------------------------------


def sent(found, name="messages"):
    return np.diff(found[name].values, prepend=0)


@pytest.mark.slow
def test_a_round_that_skips_sends_nothing():
    coins = np.array(cases.coins_of(0.4))
    assert 0 < coins.sum() < ROUNDS
    results = run(ProxSkip(0.05, 0.4), ROUNDS)
    np.testing.assert_array_equal(sent(results), 2 * len(EDGES) * coins)
    results = run(Scaffnew(0.05, 0.4), ROUNDS)
    np.testing.assert_array_equal(sent(results), 2 * CLIENTS * coins)
    np.testing.assert_array_equal(sent(results, "bits_up"), 32 * DIM * CLIENTS * coins)
    np.testing.assert_array_equal(sent(results, "bits_down"), 32 * DIM * CLIENTS * coins)


@pytest.mark.slow
def test_one_message_goes_from_each_that_meets():
    results = run(GossipSGD(0.05), ROUNDS)
    np.testing.assert_array_equal(sent(results), [2 * len(pairs) for pairs in cases.meetings_of()])


@pytest.mark.slow
def test_messages_go_one_way_and_are_as_long_as_they_are():
    results = run(SGP(0.05, shares=ONE_WAY), 3)
    assert sent(results).tolist() == [6] * 3
    assert sent(results, "scalars").tolist() == [6 * (DIM + 1)] * 3
    results = run(ChocoSGD(0.05, compression=TopK(1), consensus_step_size=0.4), 3)
    assert sent(results, "bits_up").tolist() == [2 * len(EDGES) * (32 + 2)] * 3
    for algorithm, numbers in ((GTSAGA(0.05), 2), (LTADMM(0.9, 0.05, pull=0.1), 1), (KGT(0.05), 2)):
        assert sent(run(algorithm, 2), "scalars").tolist() == [2 * len(EDGES) * numbers * DIM] * 2


# What is refused ---------------------------------------------------------------------------------

BEYOND = np.eye(CLIENTS) * 0.5 + np.roll(np.eye(CLIENTS), 2, axis=0) * 0.5
REFUSED = {
    "no step": (ValueError, "step size must be finite and > 0", lambda: GTSAGA(0.0)),
    "no sample": (ValueError, "batch must be >= 1, got 0", lambda: GTSVRG(0.1, period=2, batch=0)),
    "no period": (ValueError, "period must be >= 1, got 0", lambda: GTSVRG(0.1, period=0)),
    "a period that is no count": (
        TypeError,
        "period must be an integer",
        lambda: GTSVRG(0.1, period=2.5),
    ),
    "a large batch": (
        ValueError,
        "at most the 12 samples of the largest client, got 13",
        lambda: simulation_of(GTSAGA(0.1, batch=13)),
    ),
    "a large batch of local steps": (
        ValueError,
        "at most the 12 samples of the largest client, got 13",
        lambda: simulation_of(LTADMMVR(1.0, 0.1, pull=0.1, batch=13)),
    ),
    "an unknown rule": (ValueError, "unknown mixing rule", lambda: KGT(0.1, mixing="metropolitan")),
    "a step of a rule": (
        ValueError,
        "step must be below",
        lambda: simulation_of(ProxSkip(0.1, 0.5, fl.graphs.Mixing("laplacian", step=3.0))),
    ),
    "no penalty": (
        ValueError,
        "penalty must be finite and > 0",
        lambda: LTADMM(0.0, 0.1, pull=0.1),
    ),
    "no pull": (
        ValueError,
        "pull must be finite and > 0, got -1",
        lambda: LTADMM(1.0, 0.1, pull=-1.0),
    ),
    "no local step": (
        ValueError,
        "local_steps must be >= 1",
        lambda: LTADMMVR(1.0, 0.1, pull=0.1, local_steps=0),
    ),
    "no switch": (
        TypeError,
        "restart must be True or False",
        lambda: LTADMMVR(1.0, 0.1, pull=0.1, restart=1),
    ),
    "never": (
        ValueError,
        "probability must be finite and > 0 and <= 1, got 0.* say anything",
        lambda: Scaffnew(0.1, 0.0),
    ),
    "more than always": (
        ValueError,
        "probability must be .* <= 1, got 1.5",
        lambda: ProxSkip(0.1, 1.5),
    ),
    "no compressor": (
        TypeError,
        "compression must be",
        lambda: ChocoSGD(0.1, compression="top-k", consensus_step_size=0.5),
    ),
    "more numbers than there are": (
        ValueError,
        "count must be 1 to the 3 numbers of a message, got 4",
        lambda: simulation_of(ChocoSGD(0.1, compression=TopK(4), consensus_step_size=0.5)),
    ),
    "a long consensus step": (
        ValueError,
        "consensus_step_size must be .* <= 1",
        lambda: ChocoSGD(0.1, compression=Sign(), consensus_step_size=1.1),
    ),
    "compression twice": (
        ValueError,
        "Choco-SGD compresses its messages itself; leave out compression=",
        lambda: simulation_of(
            ChocoSGD(0.1, compression=Sign(), consensus_step_size=0.5), compression=Sign()
        ),
    ),
    "rows that sum to one": (
        ValueError,
        "every column of the matrix of shares must sum to one.*transpose it",
        lambda: SGP(0.1, shares=ONE_WAY.T),
    ),
    "negative shares": (
        ValueError,
        "the matrix of shares must be",
        lambda: SGP(0.1, shares=2 * np.eye(5) - ONE_WAY),
    ),
    "shares that are no matrix": (ValueError, "shares", lambda: SGP(0.1, shares=[0.5, 0.5])),
    "shares that are not square": (
        ValueError,
        "shares must be square",
        lambda: SGP(0.1, shares=ONE_WAY[:, :4]),
    ),
    "shares that reach not all": (
        ValueError,
        "the matrix of shares is reducible.* or take other shares",
        lambda: SGP(0.1, shares=np.eye(5)),
    ),
    "shares of others": (
        ValueError,
        "shares are for 2 nodes, but the network has 5",
        lambda: simulation_of(SGP(0.1, shares=np.full((2, 2), 0.5))),
    ),
    "shares beyond the edges": (
        ValueError,
        "node 3 gives to node 0, which is no neighbor",
        lambda: simulation_of(SGP(0.1, shares=BEYOND)),
    ),
    "a graph that changes": (
        ValueError,
        "GT-SAGA has no rule for a graph that changes",
        lambda: simulation_of(GTSAGA(0.1), network=fl.graphs.Schedule([make_network()])),
    ),
    "peers that rest": (
        ValueError,
        "K-GT has no rule for absent clients",
        lambda: simulation_of(KGT(0.1), participation=Bernoulli(0.5)),
    ),
    "batches of others": (
        ValueError,
        "size must be one number or one for each of the 5 clients",
        lambda: simulation_of(GossipSGD(0.1, batches=Uniform((1, 2)))),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_settings_are_refused(name):
    error, message, make = REFUSED[name]
    with pytest.raises(error, match=message):
        make()
