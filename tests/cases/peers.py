"""Peers: an instance of each algorithm, and its loop."""

import dataclasses
from functools import partial

import jax
import numpy as np

from experiments.benchmarks import costs
from fljax._numerics import key_of
from fljax.algorithms import (
    ATC,
    ATCGTSAGA,
    CTA,
    DESTRESS,
    DLM,
    EXTRA,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    GTVR,
    KGT,
    LED,
    LTADMM,
    LTADMMVR,
    NIDS,
    NPFL,
    NPFLRL,
    PADMM,
    PGEXTRA,
    SGP,
    ZCDPNFL,
    ADMMTracking,
    ATCTracking,
    AugDGM,
    ChocoSGD,
    Consensus,
    DeterministicPolicyGradient,
    Diffusion,
    DIGing,
    DiNNO,
    EpsilonDeltaNFL,
    ExactDiffusion,
    FedGD,
    FedRelax,
    GossipSGD,
    ModelAgnosticFedRelax,
    NetworkDANE,
    NetworkedADMM,
    NetworkedFedSGD,
    NetworkSARAH,
    NetworkSVRG,
    NPFLByGradient,
    NPFLByLoss,
    NPFLByParameters,
    ProxSkip,
    QGDSGDm,
    RandomProbe,
    SampledDiffusion,
    WangElia,
    ZCDPGradNFL,
)
from fljax.batches import Cyclic, Uniform
from fljax.link import TopK
from fljax.link.losses import of_edges
from fljax.privacy import ZCDP, ApproximateDP
from fljax.schedules import PowerDecay
from tests.cases.world import (
    CLIENTS,
    CLUSTER,
    DIM,
    EDGES,
    MEMBERS,
    METROPOLIS,
    OBJECTIVE,
    ROUNDS,
    SILENCE,
    SIZES,
    START,
    STRENGTH,
    TEST_SET,
    THERE,
    Case,
    keys_of,
    make_data,
    skipped,
    some_of,
    step_of,
)
from tests.reference import (
    exact_peers,
    jung_agnostic,
    multiagent,
    networks,
    nfl,
    npfl,
    peers,
)


def linearized(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.zcdp_nfl(objective, EDGES, float(it.penalty), step_of(it.step_size), *noise).model


def exact(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.admm(objective, EDGES, float(it.penalty), *noise).model


def subgradient(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.zcdp_grad_nfl(objective, EDGES, step_of(it.step_size), *noise).model


def decentralized(it, objective=OBJECTIVE):
    none, all_of_it = np.eye(CLIENTS), nfl.metropolis(CLIENTS, EDGES)
    matrices = [none if rule is None else all_of_it for rule in it.combinations]
    return multiagent.strategy(objective, *matrices, step_of(it.step_size), ROUNDS)


def reaching(it, gradient=None, start=None, rounds=ROUNDS, regularized=True):
    """Exact methods, on any objective; the regularizer is apart where they take its prox."""
    apart = isinstance(it, PGEXTRA | NIDS)
    bare = dataclasses.replace(OBJECTIVE, l2=0.0) if apart else OBJECTIVE
    share = STRENGTH / CLIENTS * OBJECTIVE.l2 * regularized
    prox = lambda points, step: points / (1 + 2 * share * np.reshape(step, (-1, 1)))  # noqa: E731
    slope = (lambda k, w, n, e: bare.gradient(k, w)) if gradient is None else gradient
    start = np.zeros((CLIENTS, DIM)) if start is None else start
    A, edges = nfl.metropolis(CLIENTS, EDGES), networks.weights_of(CLIENTS, EDGES)
    step = it.step_size if isinstance(it, NIDS) else float(it.step_size.value)
    if isinstance(it, NIDS):
        steps = np.broadcast_to(step, CLIENTS)
        c = (
            1 / (2 * steps.max())
            if it.consensus_step_size is None
            else float(it.consensus_step_size)
        )
        return exact_peers.nids(slope, A, start, steps, rounds, c, prox)
    if isinstance(it, EXTRA):
        given = (float(it.blend), prox) if apart else (float(it.blend),)
        return exact_peers.extra(slope, A, start, step, rounds, *given)
    if isinstance(it, WangElia):
        return exact_peers.wang_elia(slope, A, start, step, rounds)
    if isinstance(it, ADMMTracking):
        given = float(it.penalty), float(it.relaxation), float(it.blend), step, rounds
        return exact_peers.admm_tracking(slope, edges, start, *given)
    if isinstance(it, ExactDiffusion):
        return exact_peers.exact_diffusion(slope, A, start, step, rounds)
    if isinstance(it, LED):
        beta = 1 / it.local_steps if it.dual_step_size is None else float(it.dual_step_size)
        return exact_peers.led(slope, A, start, step, rounds, it.local_steps, beta)
    if isinstance(it, KGT):
        given = rounds, it.local_steps, float(it.outer_step_size)
        return exact_peers.kgt(slope, A, start, step, *given)
    if isinstance(it, DLM):
        return exact_peers.dlm(slope, edges, start, float(it.penalty), 1 / step, rounds)
    if isinstance(it, DiNNO):
        given = float(it.penalty), step, rounds, it.local_steps
        return exact_peers.dinno(slope, edges, start, *given)
    return exact_peers.tracking(slope, [A] * rounds, start, step, rounds, it.label)


def descended(it):
    def slope(k, w, t):
        rows = None
        if isinstance(it, NetworkedFedSGD):
            each = min(it.batches.size, SIZES[k])
            rows = [(it.batches.size * t + place) % SIZES[k] for place in range(each)]
        return networks.mean_squared_slope(make_data(), k, w, rows, STRENGTH / CLIENTS)

    adjacency, step = networks.weights_of(CLIENTS, EDGES), step_of(it.step_size)
    given = slope, adjacency, np.asarray(it.coupling), lambda k, t: step(t + 1)
    return networks.synchronous(networks.gradient_step(*given), np.zeros((CLIENTS, DIM)), ROUNDS)


def relaxed(it):
    given = make_data(), networks.weights_of(CLIENTS, EDGES), np.asarray(it.coupling)
    operator = networks.relaxation(*given, STRENGTH / CLIENTS)
    return networks.synchronous(operator, np.zeros((CLIENTS, DIM)), ROUNDS)


def agreed(it):
    given = make_data(), networks.weights_of(CLIENTS, EDGES), float(it.coupling)
    return jung_agnostic.model_agnostic_fedrelax(
        *given, [TEST_SET] * CLIENTS, ROUNDS, STRENGTH / CLIENTS
    )


def related(it):
    numbers = ROUNDS, float(it.penalty), float(it.inter_cluster)
    return npfl.npfl(MEMBERS, CLUSTER, EDGES, *numbers).model


def learned(it):
    start = ROUNDS, float(it.penalty), float(it.initial)
    policy = (
        "probe",
        float(it.policy.step_size),
        it.policy_steps,
        probes(it),
        (0, 1) if it.clip else None,
    )
    return npfl.npfl_rl(MEMBERS, make_data(seed=7), CLUSTER, EDGES, *start, *policy).model


def choosing(it):
    step = getattr(it, "step_size", None)
    numbers = float(it.penalty), float(it.inter_cluster), it.clusters, it.warmup
    given = ROUNDS, *numbers, None if step is None else float(step)
    return npfl.npfl_choosing(MEMBERS, make_data(seed=7), EDGES, *given)[0]


def by_parameters(it):
    given = ROUNDS, float(it.penalty), float(it.initial), float(it.threshold)
    policy = "dpg", float(it.policy.step_size)
    return npfl.npfl_by_parameters(MEMBERS, make_data(seed=7), EDGES, *given, *policy)[0]


def probes(it, clients=CLIENTS, rounds=ROUNDS, seed=1):
    """``[T, E, K]``: the directions of a random policy, as drawn in the run."""
    half = float(it.policy.width) / 2
    unit = partial(jax.random.uniform, shape=(clients,), dtype=float, minval=-1)
    each = [key_of(now, "policy") for now in keys_of(seed, rounds)]
    epochs = range(it.policy_steps)
    return half * np.array([[unit(jax.random.fold_in(k, e)) for e in epochs] for k in each])


def batches_of(size, steps=1, seed=1, rounds=ROUNDS):
    """``[T][K][steps]``: samples of each client, as drawn in the run."""
    real, everyone = np.arange(max(SIZES)) < np.array(SIZES)[:, None], np.arange(CLIENTS)
    each = [
        np.asarray(Uniform(size).draw(key_of(now, "batches"), real, everyone, steps).rows)
        for now in keys_of(seed, rounds)
    ]
    return [[[list(rows) for rows in of_client] for of_client in now] for now in each]


def one_batch_of(size, **draws):
    return [[rows[0] for rows in now] for now in batches_of(size, **draws)]


def meetings_of(edges=EDGES, seed=1, rounds=ROUNDS, there=THERE):
    """``[T]``: who meets whom, by the run's own uniform numbers of the edges."""
    ends = np.array(edges)
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    drawn = [of_edges(k, ends[:, 0], ends[:, 1], True, float) for k in keys]
    return [
        peers.pairs_of(
            {
                edge: -np.log1p(-float(u))
                for edge, u in zip(edges, numbers, strict=True)
                if here[edge[0]] and here[edge[1]]
            }
        )
        for numbers, here in zip(drawn, there, strict=True)
    ]


def tracked(it, gradient=some_of, start=START):
    rows = one_batch_of(it.batch)
    given = METROPOLIS, step_of(it.step_size), rows, start
    if isinstance(it, GTSVRG):
        loop = peers.gt_sarah if isinstance(it, GTSARAH) else peers.gt_svrg
        return loop(gradient, it.period, *given)
    return peers.gt_saga(gradient, SIZES, *given)


def snapped_at_random(it, gradient=some_of, start=START):
    keys = [key_of(now, "algorithm") for now in keys_of(1)]
    coins = [np.asarray(jax.random.uniform(k, (CLIENTS,), float)) < it.probability for k in keys]
    given = METROPOLIS, step_of(it.step_size), one_batch_of(it.batch), start
    return peers.gt_vr(gradient, coins, *given)


def recursive(it, gradient=some_of, start=START):
    keys = [key_of(now, "algorithm") for now in keys_of(1)]
    coins = [np.asarray(jax.random.uniform(k, (CLIENTS,), float)) < it.probability for k in keys]
    given = it.period, float(it.probability), coins, it.exchanges
    rows = one_batch_of(it.batch)
    return peers.destress(gradient, *given, METROPOLIS, step_of(it.step_size), rows, start)


def stored_apart(it, gradient=some_of, start=START):
    """Two draws a round, each as of a round of its own."""
    real, everyone = np.arange(max(SIZES)) < np.array(SIZES)[:, None], np.arange(CLIENTS)
    keys = [key_of(now, "batches") for now in keys_of(1)]
    rows = [
        [
            [
                list(own[0])
                for own in np.asarray(
                    Uniform(it.batch).draw(jax.random.fold_in(k, draw), real, everyone, 1).rows
                )
            ]
            for k in keys
        ]
        for draw in range(2)
    ]
    return peers.atc_gt_saga(gradient, SIZES, METROPOLIS, step_of(it.step_size), *rows, start)


def around_a_problem(it, gradient=some_of, start=START):
    rows, step = batches_of(it.batch, it.local_steps), step_of(it.step_size)
    loop = peers.network_sarah if isinstance(it, NetworkSARAH) else peers.network_svrg
    local = loop(gradient, step, rows)
    return peers.network_tracking(gradient, local, METROPOLIS, ROUNDS, start)


def along_the_tracker(it, objective=OBJECTIVE):
    weight = float(it.attraction)

    def local(n, k, y, s):
        return nfl.prox(objective, k, weight, y - (s - objective.gradient(k, y)) / weight)

    return peers.network_tracking(objective.gradient, local, METROPOLIS, ROUNDS, START)


def trained(it, gradient=some_of, start=START):
    given = float(it.penalty), step_of(it.step_size), float(it.pull), it.local_steps, ROUNDS, start
    rows = table = None
    if isinstance(it, LTADMMVR):
        rows, table = batches_of(it.batch, it.local_steps), (SIZES, it.restart)
    elif it.batches is not None:
        rows = batches_of(it.batches.size, it.local_steps)
    return peers.lt_admm(gradient, EDGES, *given, rows, table)


def differing(it, gradient=some_of, start=START):
    compress = partial(peers.largest, count=it.compression.count)
    given = METROPOLIS, step_of(it.step_size), compress, float(it.consensus_step_size)
    return peers.choco_sgd(gradient, *given, ROUNDS, start)


def met(it, gradient=some_of, start=START):
    return peers.gossip_sgd(gradient, step_of(it.step_size), meetings_of(), start)


def picked(it, gradient=some_of, start=START):
    """With the run's own uniform numbers, laid out on each peer's neighbors in their order."""
    keys = [key_of(now, "algorithm") for now in keys_of(1, ROUNDS)]
    adjacency = networks.weights_of(CLIENTS, EDGES) > 0
    even = adjacency / adjacency.sum(axis=1, keepdims=True)

    def draw(n, distance):
        """Of who was not heard yet the farthest distance stands in, one if nobody was."""
        most = distance.max(axis=1, keepdims=True)
        far = np.where(distance > 0, distance, np.where(most > 0, most, 1)) * METROPOLIS * adjacency
        least = float(it.floor) * METROPOLIS * adjacency
        left = 1 - least.sum(axis=1, keepdims=True)
        p = least + left * far / far.sum(axis=1, keepdims=True)
        p = even if it.rule == "uniform" else p
        uniform = np.asarray(jax.random.uniform(keys[n - 1], (CLIENTS, it.neighbors_per_round)))
        times = np.zeros((CLIENTS, CLIENTS), int)
        for k in range(CLIENTS):
            ends = np.cumsum(p[k])
            for u in uniform[k] * ends[-1]:
                times[k, np.searchsorted(ends, u, side="right")] += 1
        return p, times

    given = METROPOLIS, draw, it.neighbors_per_round, ROUNDS, start
    return peers.sampled_diffusion(gradient, step_of(it.step_size), *given)


def pushed(it, gradient=some_of, start=START):
    adjacency = networks.weights_of(CLIENTS, EDGES) + np.eye(CLIENTS)
    shares = adjacency / adjacency.sum(axis=0) if it.shares is None else np.asarray(it.shares)
    return peers.sgp(gradient, shares, step_of(it.step_size), ROUNDS, start)


def quasi_global(it, gradient=some_of, start=START):
    given = METROPOLIS, step_of(it.step_size), float(it.momentum), ROUNDS, start
    return peers.qg_dsgdm(gradient, *given)


CASES = {
    "zCDP-NFL": Case(ZCDPNFL(0.9, PowerDecay(0.5)), ZCDP(2.0, 0.9), linearized, costs.linearized),
    "(eps,delta)DP-NFL": Case(
        EpsilonDeltaNFL(0.9, PowerDecay(0.5)),
        ApproximateDP(2.0, 1e-3, 0.9),
        linearized,
        costs.linearized,
    ),
    "zCDP-grad-NFL": Case(
        ZCDPGradNFL(0.05), ZCDP(2.0, 0.9), subgradient, costs.subgradient, rests="alike"
    ),
    "Consensus": Case(Consensus(0.05), None, decentralized, costs.subgradient, rests="alike"),
    "CTA": Case(CTA(0.05), None, decentralized, costs.subgradient, rests="alike"),
    "ATC": Case(ATC(0.05), ZCDP(2.0, 0.9), decentralized, costs.subgradient, rests="alike"),
    "Diffusion, general": Case(
        Diffusion(0.05, "metropolis", None, "metropolis"),
        None,
        decentralized,
        costs.diffused,
        rests="alike",
    ),
    "EXTRA": Case(EXTRA(0.05), None, reaching, costs.corrected),
    "PG-EXTRA": Case(PGEXTRA(0.05), None, reaching, costs.corrected),
    "Wang-Elia": Case(WangElia(0.05), None, reaching, costs.tracked),
    "NIDS": Case(NIDS(0.05), None, reaching, costs.proximal),
    "Exact diffusion": Case(ExactDiffusion(0.05), None, reaching, costs.corrected),
    "LED": Case(LED(0.05, local_steps=2), None, reaching, partial(costs.walked, 2, 1)),
    "DIGing": Case(DIGing(0.05), None, reaching, costs.tracked),
    "ATC tracking": Case(ATCTracking(0.05), None, reaching, costs.tracked),
    "Aug-DGM": Case(AugDGM(0.05), None, reaching, costs.tracked),
    "K-GT": Case(KGT(0.05, local_steps=2), None, reaching, partial(costs.walked, 2, 2)),
    "ADMM tracking": Case(
        ADMMTracking(0.3, penalty=0.7, relaxation=0.4, blend=0.5), None, reaching, costs.tracked
    ),
    "DLM": Case(DLM(0.9, 0.3), None, reaching, costs.linearized),
    "DiNNO": Case(DiNNO(0.4, 0.05, local_steps=2), None, reaching, partial(costs.walked, 2, 1)),
    "FedGD": Case(FedGD(0.3, 0.05), None, descended, costs.coupled, rests="alike"),
    "FedSGD, networked": Case(
        NetworkedFedSGD(0.3, 0.05, batches=Cyclic(4)),
        None,
        descended,
        partial(costs.estimated, 4),
        rests="never",
    ),
    "FedRelax": Case(FedRelax(0.3), None, relaxed, costs.relaxed, rests="alike"),
    "Model-agnostic FedRelax": Case(
        ModelAgnosticFedRelax(0.3, TEST_SET), None, agreed, costs.agreed
    ),
    "ADMM": Case(NetworkedADMM(0.9), None, exact, costs.exact),
    "P-ADMM": Case(PADMM(0.9), ZCDP(2.0, 0.9), exact, costs.exact),
    "NPFL": Case(NPFL(0.9, 0.3), None, related, costs.related),
    "NPFL-RL": Case(NPFLRL(0.9, RandomProbe(0.1, 0.05)), None, learned, costs.learned),
    "NPFL, by loss": Case(
        NPFLByLoss(0.9, 0.3, clusters=2, warmup=3), None, choosing, costs.choosing
    ),
    "NPFL, by gradient": Case(
        NPFLByGradient(0.9, 0.3, clusters=2, warmup=3, step_size=0.5),
        None,
        choosing,
        costs.choosing,
    ),
    "NPFL, by parameters": Case(
        NPFLByParameters(0.9, DeterministicPolicyGradient(0.01), 0.3, threshold=0.3),
        None,
        by_parameters,
        costs.classified,
    ),
    "GT-SAGA": Case(GTSAGA(0.05, batch=2), None, tracked, partial(costs.tabulated, 2)),
    "GT-SARAH": Case(GTSARAH(0.05, period=5, batch=2), None, tracked, partial(costs.snapped, 2, 5)),
    "GT-SVRG": Case(GTSVRG(0.05, period=5, batch=2), None, tracked, partial(costs.snapped, 2, 5)),
    "GT-VR": Case(
        GTVR(0.05, probability=0.3, batch=2), None, snapped_at_random, partial(costs.snapped, 2, 1)
    ),
    "ATC-GT-SAGA": Case(ATCGTSAGA(0.05, batch=2), None, stored_apart, partial(costs.stored, 2)),
    "DESTRESS": Case(
        DESTRESS(0.05, period=4, batch=2, probability=0.6, exchanges=2),
        None,
        recursive,
        partial(costs.remixed, 2, 4, 2),
    ),
    "Network-DANE": Case(NetworkDANE(2.0), None, along_the_tracker, costs.newton_tracked),
    "Network-SVRG": Case(
        NetworkSVRG(0.05, local_steps=3, batch=2),
        None,
        around_a_problem,
        partial(costs.tracked_steps, 3, 2),
    ),
    "Network-SARAH": Case(
        NetworkSARAH(0.05, local_steps=3, batch=2),
        None,
        around_a_problem,
        partial(costs.tracked_steps, 3, 2),
    ),
    "LT-ADMM": Case(
        LTADMM(0.9, 0.05, pull=0.1, local_steps=3), None, trained, partial(costs.trained, 3)
    ),
    "LT-ADMM-VR": Case(
        LTADMMVR(0.9, 0.05, pull=0.1, local_steps=3, batch=2),
        None,
        trained,
        partial(costs.remembered, 3, 2),
    ),
    "ProxSkip": Case(ProxSkip(0.05, 0.4), None, skipped, costs.skipped),
    "Choco-SGD": Case(
        ChocoSGD(0.05, compression=TopK(2), consensus_step_size=0.4),
        None,
        differing,
        costs.differing,
    ),
    "Gossip SGD": Case(GossipSGD(0.05), None, met, costs.met),
    "Sampled diffusion": Case(
        SampledDiffusion(0.05, 2, rule="importance"), None, picked, costs.picked
    ),
    "SGP": Case(SGP(0.05), None, pushed, costs.pushed),
    "QG-DSGDm": Case(QGDSGDm(0.05, momentum=0.5), None, quasi_global, costs.corrected, "alike"),
}
