"""Peers: an instance of each algorithm, and its loop."""

import dataclasses
from functools import partial

import jax
import numpy as np

from fljax import graphs
from fljax._core.prng import key_of
from fljax.algorithms import (
    ADPSGD,
    ATC,
    ATCGTSAGA,
    BEER,
    CEDAS,
    CTA,
    DESTRESS,
    DLM,
    EXTRA,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    GTVR,
    KGT,
    LEAD,
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
    DeTAG,
    DeterministicPolicyGradient,
    Diffusion,
    DIGing,
    DiNNO,
    EpidemicLearning,
    EpsilonDeltaNFL,
    ExactDiffusion,
    FedGD,
    FedRelax,
    GossipSGD,
    ModelAgnosticFedRelax,
    MoTEF,
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
    RandomWalk,
    SampledDiffusion,
    SwarmSGD,
    Teleportation,
    WangElia,
    ZCDPGradNFL,
)
from fljax.link import TopK
from fljax.link.losses import of_edges
from fljax.optimization.schedules import PowerDecay
from fljax.privacy import ZCDP, ApproximateDP
from fljax.problems.batches import CyclicBatches, Uniform
from tests.cases import costs
from tests.cases.world import (
    ALL_ACTIVE,
    CLIENTS,
    CLUSTER,
    DIM,
    EDGES,
    MEMBERS,
    METROPOLIS,
    NO_NOISE,
    OBJECTIVE,
    ROUNDS,
    SIZES,
    START,
    STRENGTH,
    TEST_SET,
    Case,
    batch_gradient,
    keys_of,
    make_data,
    proxskip_models,
    step_of,
)
from tests.reference import (
    exact_peers,
    gossip,
    jung_agnostic,
    multiagent,
    networks,
    nfl,
    npfl,
    pairs,
    peers,
    walks,
)


def zcdp_nfl_models(algorithm, objective=OBJECTIVE, noise=NO_NOISE):
    return nfl.zcdp_nfl(
        objective, EDGES, float(algorithm.penalty), step_of(algorithm.step_size), *noise
    ).model


def admm_models(algorithm, objective=OBJECTIVE, noise=NO_NOISE):
    return nfl.admm(objective, EDGES, float(algorithm.penalty), *noise).model


def zcdp_grad_nfl_models(algorithm, objective=OBJECTIVE, noise=NO_NOISE):
    return nfl.zcdp_grad_nfl(objective, EDGES, step_of(algorithm.step_size), *noise).model


def diffusion_models(algorithm, objective=OBJECTIVE):
    none = np.eye(CLIENTS)
    all_of_it = nfl.metropolis(CLIENTS, EDGES)
    matrices = [none if rule is None else all_of_it for rule in algorithm.combinations]
    return multiagent.strategy(objective, *matrices, step_of(algorithm.step_size), ROUNDS)


def exact_peer_models(algorithm, gradient=None, start=None, rounds=ROUNDS, regularized=True):
    """Exact methods, on any objective; the regularizer is apart where they take its prox."""
    proximal = isinstance(algorithm, PGEXTRA | NIDS)
    objective = dataclasses.replace(OBJECTIVE, l2=0.0) if proximal else OBJECTIVE
    share = STRENGTH / CLIENTS * OBJECTIVE.l2 * regularized
    prox = lambda points, step: points / (1 + 2 * share * np.reshape(step, (-1, 1)))  # noqa: E731
    client_gradient = (
        (lambda k, w, n, e: objective.gradient(k, w)) if gradient is None else gradient
    )
    start = np.zeros((CLIENTS, DIM)) if start is None else start
    A = nfl.metropolis(CLIENTS, EDGES)
    edges = networks.weights_of(CLIENTS, EDGES)
    step = algorithm.step_size if isinstance(algorithm, NIDS) else float(algorithm.step_size.value)
    if isinstance(algorithm, NIDS):
        steps = np.broadcast_to(step, CLIENTS)
        c = (
            1 / (2 * steps.max())
            if algorithm.consensus_step_size is None
            else float(algorithm.consensus_step_size)
        )
        return exact_peers.nids(client_gradient, A, start, steps, rounds, c, prox)
    if isinstance(algorithm, EXTRA):
        blend = (float(algorithm.blend), prox) if proximal else (float(algorithm.blend),)
        return exact_peers.extra(client_gradient, A, start, step, rounds, *blend)
    if isinstance(algorithm, WangElia):
        return exact_peers.wang_elia(client_gradient, A, start, step, rounds)
    if isinstance(algorithm, ADMMTracking):
        blend = (
            float(algorithm.penalty),
            float(algorithm.relaxation),
            float(algorithm.blend),
            step,
            rounds,
        )
        return exact_peers.admm_tracking(client_gradient, edges, start, *blend)
    if isinstance(algorithm, ExactDiffusion):
        return exact_peers.exact_diffusion(client_gradient, A, start, step, rounds)
    if isinstance(algorithm, LED):
        beta = (
            1 / algorithm.local_steps
            if algorithm.dual_step_size is None
            else float(algorithm.dual_step_size)
        )
        return exact_peers.led(client_gradient, A, start, step, rounds, algorithm.local_steps, beta)
    if isinstance(algorithm, KGT):
        blend = rounds, algorithm.local_steps, float(algorithm.outer_step_size)
        return exact_peers.kgt(client_gradient, A, start, step, *blend)
    if isinstance(algorithm, DLM):
        return exact_peers.dlm(
            client_gradient, edges, start, float(algorithm.penalty), 1 / step, rounds
        )
    if isinstance(algorithm, DiNNO):
        blend = float(algorithm.penalty), step, rounds, algorithm.local_steps
        return exact_peers.dinno(client_gradient, edges, start, *blend)
    return exact_peers.tracking(client_gradient, [A] * rounds, start, step, rounds, algorithm.label)


def networked_gradient_models(algorithm):
    def client_gradient(k, w, t):
        rows = None
        if isinstance(algorithm, NetworkedFedSGD):
            size = min(algorithm.batches.size, SIZES[k])
            rows = [(algorithm.batches.size * t + offset) % SIZES[k] for offset in range(size)]
        return networks.mean_squared_slope(make_data(), k, w, rows, STRENGTH / CLIENTS)

    adjacency = networks.weights_of(CLIENTS, EDGES)
    step = step_of(algorithm.step_size)
    arguments = client_gradient, adjacency, np.asarray(algorithm.coupling), lambda k, t: step(t + 1)
    return networks.synchronous(
        networks.gradient_step(*arguments), np.zeros((CLIENTS, DIM)), ROUNDS
    )


def fedrelax_models(algorithm):
    arguments = make_data(), networks.weights_of(CLIENTS, EDGES), np.asarray(algorithm.coupling)
    operator = networks.relaxation(*arguments, STRENGTH / CLIENTS)
    return networks.synchronous(operator, np.zeros((CLIENTS, DIM)), ROUNDS)


def model_agnostic_models(algorithm):
    arguments = make_data(), networks.weights_of(CLIENTS, EDGES), float(algorithm.coupling)
    return jung_agnostic.model_agnostic_fedrelax(
        *arguments, [TEST_SET] * CLIENTS, ROUNDS, STRENGTH / CLIENTS
    )


def npfl_models(algorithm):
    numbers = ROUNDS, float(algorithm.penalty), float(algorithm.inter_cluster)
    return npfl.npfl(MEMBERS, CLUSTER, EDGES, *numbers).model


def npfl_rl_models(algorithm):
    start = ROUNDS, float(algorithm.penalty), float(algorithm.initial)
    policy = (
        "probe",
        float(algorithm.policy.step_size),
        algorithm.policy_steps,
        probes(algorithm),
        (0, 1) if algorithm.clip else None,
    )
    return npfl.npfl_rl(MEMBERS, make_data(seed=7), CLUSTER, EDGES, *start, *policy).model


def npfl_choosing_models(algorithm):
    step = getattr(algorithm, "step_size", None)
    numbers = (
        float(algorithm.penalty),
        float(algorithm.inter_cluster),
        algorithm.clusters,
        algorithm.warmup,
    )
    arguments = ROUNDS, *numbers, None if step is None else float(step)
    return npfl.npfl_choosing(MEMBERS, make_data(seed=7), EDGES, *arguments)[0]


def npfl_by_parameters_models(algorithm):
    arguments = (
        ROUNDS,
        float(algorithm.penalty),
        float(algorithm.initial),
        float(algorithm.threshold),
    )
    policy = "dpg", float(algorithm.policy.step_size)
    return npfl.npfl_by_parameters(MEMBERS, make_data(seed=7), EDGES, *arguments, *policy)[0]


def probes(algorithm, clients=CLIENTS, rounds=ROUNDS, seed=1):
    """``[T, E, K]``: the directions of a random policy, as drawn in the run."""
    half = float(algorithm.policy.width) / 2
    unit = partial(jax.random.uniform, shape=(clients,), dtype=float, minval=-1)
    keys = [key_of(now, "policy") for now in keys_of(seed, rounds)]
    epochs = range(algorithm.policy_steps)
    return half * np.array([[unit(jax.random.fold_in(k, e)) for e in epochs] for k in keys])


def batches_of(size, steps=1, seed=1, rounds=ROUNDS):
    """``[T][K][steps]``: samples of each client, as drawn in the run."""
    real = np.arange(max(SIZES)) < np.array(SIZES)[:, None]
    everyone = np.arange(CLIENTS)
    keys = [
        np.asarray(Uniform(size).draw(key_of(now, "batches"), real, everyone, steps).rows)
        for now in keys_of(seed, rounds)
    ]
    return [[[list(rows) for rows in of_client] for of_client in now] for now in keys]


def one_batch_of(size, **draws):
    return [[rows[0] for rows in now] for now in batches_of(size, **draws)]


def meetings_of(edges=EDGES, seed=1, rounds=ROUNDS, available=ALL_ACTIVE):
    """``[T]``: who meets whom, by the run's own uniform numbers of the edges."""
    ends = np.array(edges)
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    drawn = [of_edges(k, ends[:, 0], ends[:, 1], True, float) for k in keys]
    return [
        peers.pairs_of(
            {
                edge: -np.log1p(-float(u))
                for edge, u in zip(edges, numbers, strict=True)
                if active[edge[0]] and active[edge[1]]
            }
        )
        for numbers, active in zip(drawn, available, strict=True)
    ]


def gt_saga_models(algorithm, gradient=batch_gradient, start=START):
    rows = one_batch_of(algorithm.batch)
    arguments = METROPOLIS, step_of(algorithm.step_size), rows, start
    if isinstance(algorithm, GTSVRG):
        loop = peers.gt_sarah if isinstance(algorithm, GTSARAH) else peers.gt_svrg
        return loop(gradient, algorithm.period, *arguments)
    return peers.gt_saga(gradient, SIZES, *arguments)


def gt_vr_models(algorithm, gradient=batch_gradient, start=START):
    keys = [key_of(now, "algorithm") for now in keys_of(1)]
    coins = [
        np.asarray(jax.random.uniform(k, (CLIENTS,), float)) < algorithm.probability for k in keys
    ]
    arguments = METROPOLIS, step_of(algorithm.step_size), one_batch_of(algorithm.batch), start
    return peers.gt_vr(gradient, coins, *arguments)


def destress_models(algorithm, gradient=batch_gradient, start=START):
    keys = [key_of(now, "algorithm") for now in keys_of(1)]
    coins = [
        np.asarray(jax.random.uniform(k, (CLIENTS,), float)) < algorithm.probability for k in keys
    ]
    arguments = algorithm.period, float(algorithm.probability), coins, algorithm.exchanges
    rows = one_batch_of(algorithm.batch)
    return peers.destress(
        gradient, *arguments, METROPOLIS, step_of(algorithm.step_size), rows, start
    )


def atc_gt_saga_models(algorithm, gradient=batch_gradient, start=START):
    """Two draws a round, each with the keys of a separate round."""
    real = np.arange(max(SIZES)) < np.array(SIZES)[:, None]
    everyone = np.arange(CLIENTS)
    keys = [key_of(now, "batches") for now in keys_of(1)]
    rows = [
        [
            [
                list(first_draw[0])
                for first_draw in np.asarray(
                    Uniform(algorithm.batch)
                    .draw(jax.random.fold_in(k, draw), real, everyone, 1)
                    .rows
                )
            ]
            for k in keys
        ]
        for draw in range(2)
    ]
    return peers.atc_gt_saga(
        gradient, SIZES, METROPOLIS, step_of(algorithm.step_size), *rows, start
    )


def network_dane_models(algorithm, gradient=batch_gradient, start=START):
    rows = batches_of(algorithm.batch, algorithm.local_steps)
    step = step_of(algorithm.step_size)
    loop = peers.network_sarah if isinstance(algorithm, NetworkSARAH) else peers.network_svrg
    local = loop(gradient, step, rows)
    return peers.network_tracking(gradient, local, METROPOLIS, ROUNDS, start)


def network_tracking_models(algorithm, objective=OBJECTIVE):
    weight = float(algorithm.attraction)

    def local(n, k, y, s):
        return nfl.prox(objective, k, weight, y - (s - objective.gradient(k, y)) / weight)

    return peers.network_tracking(objective.gradient, local, METROPOLIS, ROUNDS, START)


def lt_admm_models(algorithm, gradient=batch_gradient, start=START):
    arguments = (
        float(algorithm.penalty),
        step_of(algorithm.step_size),
        float(algorithm.pull),
        algorithm.local_steps,
        ROUNDS,
        start,
    )
    rows = table = None
    if isinstance(algorithm, LTADMMVR):
        rows = batches_of(algorithm.batch, algorithm.local_steps)
        table = (SIZES, algorithm.restart)
    elif algorithm.batches is not None:
        rows = batches_of(algorithm.batches.size, algorithm.local_steps)
    return peers.lt_admm(gradient, EDGES, *arguments, rows, table)


def choco_models(algorithm, gradient=batch_gradient, start=START):
    compress = partial(peers.largest, count=algorithm.compression.count)
    arguments = (
        METROPOLIS,
        step_of(algorithm.step_size),
        compress,
        float(algorithm.consensus_step_size),
    )
    return peers.choco_sgd(gradient, *arguments, ROUNDS, start)


def copying_models(algorithm, gradient=batch_gradient, start=START):
    """Methods that compress differences from copies, by the largest entries."""
    compress = partial(peers.largest, count=algorithm.compression.count)
    step = step_of(algorithm.step_size)
    gamma = float(algorithm.consensus_step_size)
    if isinstance(algorithm, BEER | MoTEF):
        share = 1 - float(getattr(algorithm, "momentum", 0))
        arguments = METROPOLIS, step, gamma, share, compress, ROUNDS
        return gossip.motef(gradient, *arguments, start)
    loop = gossip.lead if isinstance(algorithm, LEAD) else gossip.cedas
    alpha = float(algorithm.copy_step_size)
    return loop(gradient, METROPOLIS, step, gamma, alpha, compress, ROUNDS, start)


def detag_models(algorithm, gradient=batch_gradient, start=START):
    eta = algorithm.acceleration
    eta = gossip.fastest_acceleration(METROPOLIS) if eta is None else float(eta)
    arguments = METROPOLIS, step_of(algorithm.step_size), algorithm.exchanges, eta
    return gossip.detag(gradient, *arguments, ROUNDS, start)


def receivers_of(count, seed=1, rounds=ROUNDS):
    """``[t][k]``: to whom peers send, by the smallest of the numbers that the run draws."""
    result = []
    everyone = np.arange(CLIENTS, dtype=np.int32)
    neighbors = networks.weights_of(CLIENTS, EDGES) > 0
    for now in keys_of(seed, rounds):
        key = key_of(now, "algorithm")
        numbers = np.asarray(of_edges(key, everyone[None], everyone[:, None], False, float))
        result.append(
            [
                sorted(np.flatnonzero(neighbors[k]), key=lambda m: numbers[k, m])[:count]
                for k in range(CLIENTS)
            ]
        )
    return result


def epidemic_models(algorithm, gradient=batch_gradient, start=START):
    receivers = receivers_of(algorithm.neighbors_per_round)
    return gossip.epidemic_learning(gradient, step_of(algorithm.step_size), receivers, start)


def teleportation_models(algorithm, gradient=batch_gradient, start=START):
    keys = [key_of(now, "algorithm") for now in keys_of(1, ROUNDS)]
    peers_in_order = np.arange(CLIENTS, dtype=np.int32)
    count = algorithm.topology.nodes
    active = [np.asarray(jax.random.permutation(key, peers_in_order))[:count] for key in keys]
    weights = np.asarray(algorithm.topology.mixing().matrix())
    return gossip.teleportation(gradient, weights, step_of(algorithm.step_size), active, start)


def gossip_models(algorithm, gradient=batch_gradient, start=START):
    return peers.gossip_sgd(gradient, step_of(algorithm.step_size), meetings_of(), start)


def neighbors_of(completes, edges=EDGES, seed=1):
    """With whom each round's client averages, by the run's own uniform numbers of the edges."""
    neighbors = []
    for now, i in zip(keys_of(seed, len(completes)), completes, strict=True):
        near = np.array(sorted({*sum(edges, ())} - {i}), np.int32)
        near = near[[(min(i, j), max(i, j)) in {(min(e), max(e)) for e in edges} for j in near]]
        _, of_neighbor = jax.random.split(key_of(now, "algorithm"))
        uniform = of_edges(of_neighbor, np.int32(i), near, False, float)
        neighbors.append(int(near[np.argmin(-np.log1p(-np.asarray(uniform)))]))
    return neighbors


def drawn_to_complete(seed=1, rounds=ROUNDS):
    """Whose work is complete in each round without a clock, by the run's own draws."""
    of_clients = [jax.random.split(key_of(now, "algorithm"))[0] for now in keys_of(seed, rounds)]
    return [int(jax.random.randint(key, (), 0, CLIENTS, np.int32)) for key in of_clients]


def ad_psgd_models(algorithm, gradient=batch_gradient, start=START, rounds=ROUNDS):
    completes = drawn_to_complete(rounds=rounds)
    draws = completes, neighbors_of(completes)
    return np.array(pairs.ad_psgd(gradient, step_of(algorithm.step_size), *draws, start))


def swarm_sgd_models(algorithm, gradient=batch_gradient, start=START, rounds=ROUNDS):
    completes = drawn_to_complete(rounds=rounds)
    arguments = step_of(algorithm.step_size), algorithm.local_steps
    draws = completes, neighbors_of(completes)
    return np.array(pairs.swarm_sgd(gradient, *arguments, *draws, start, together=True))


def walk_draws(rounds=ROUNDS, seed=1):
    """The neighbor that a round proposes to each client, and its uniform number."""
    proposals = {k: neighbors_of([k] * rounds, seed=seed) for k in range(CLIENTS)}
    of_acceptance = [jax.random.split(key_of(now, "algorithm"))[0] for now in keys_of(seed, rounds)]
    return proposals, [float(jax.random.uniform(key, (), float)) for key in of_acceptance]


def random_walk_models(algorithm, gradient=batch_gradient, start=START, rounds=ROUNDS):
    degree = (networks.weights_of(CLIENTS, EDGES) > 0).sum(axis=1)
    places = [m * CLIENTS // algorithm.walks for m in range(algorithm.walks)]
    arguments = *walk_draws(rounds), degree, start, places, rounds
    history = walks.random_walk(gradient, step_of(algorithm.step_size), *arguments)[0]
    return np.array(history)


def sampled_diffusion_models(algorithm, gradient=batch_gradient, start=START):
    """With the run's own uniform numbers, laid out on each peer's neighbors in their order."""
    keys = [key_of(now, "algorithm") for now in keys_of(1, ROUNDS)]
    adjacency = networks.weights_of(CLIENTS, EDGES) > 0
    even = adjacency / adjacency.sum(axis=1, keepdims=True)

    def draw(n, distance):
        """Neighbors not heard yet get the farthest known distance, or 1 if none was heard."""
        most = distance.max(axis=1, keepdims=True)
        far = np.where(distance > 0, distance, np.where(most > 0, most, 1)) * METROPOLIS * adjacency
        least = float(algorithm.floor) * METROPOLIS * adjacency
        left = 1 - least.sum(axis=1, keepdims=True)
        p = least + left * far / far.sum(axis=1, keepdims=True)
        p = even if algorithm.rule == "uniform" else p
        uniform = np.asarray(
            jax.random.uniform(keys[n - 1], (CLIENTS, algorithm.neighbors_per_round))
        )
        times = np.zeros((CLIENTS, CLIENTS), int)
        for k in range(CLIENTS):
            ends = np.cumsum(p[k])
            for u in uniform[k] * ends[-1]:
                times[k, np.searchsorted(ends, u, side="right")] += 1
        return p, times

    arguments = METROPOLIS, draw, algorithm.neighbors_per_round, ROUNDS, start
    return peers.sampled_diffusion(gradient, step_of(algorithm.step_size), *arguments)


def sgp_models(algorithm, gradient=batch_gradient, start=START):
    adjacency = networks.weights_of(CLIENTS, EDGES) + np.eye(CLIENTS)
    shares = (
        adjacency / adjacency.sum(axis=0)
        if algorithm.shares is None
        else np.asarray(algorithm.shares)
    )
    return peers.sgp(gradient, shares, step_of(algorithm.step_size), ROUNDS, start)


def qg_dsgdm_models(algorithm, gradient=batch_gradient, start=START):
    arguments = METROPOLIS, step_of(algorithm.step_size), float(algorithm.momentum), ROUNDS, start
    return peers.qg_dsgdm(gradient, *arguments)


CASES = {
    "zCDP-NFL": Case(
        ZCDPNFL(0.9, PowerDecay(0.5)), ZCDP(2.0, 0.9), zcdp_nfl_models, costs.linearized
    ),
    "(eps,delta)DP-NFL": Case(
        EpsilonDeltaNFL(0.9, PowerDecay(0.5)),
        ApproximateDP(2.0, 1e-3, 0.9),
        zcdp_nfl_models,
        costs.linearized,
    ),
    "zCDP-grad-NFL": Case(
        ZCDPGradNFL(0.05), ZCDP(2.0, 0.9), zcdp_grad_nfl_models, costs.subgradient, rests="alike"
    ),
    "Consensus": Case(Consensus(0.05), None, diffusion_models, costs.subgradient, rests="alike"),
    "CTA": Case(CTA(0.05), None, diffusion_models, costs.subgradient, rests="alike"),
    "ATC": Case(ATC(0.05), ZCDP(2.0, 0.9), diffusion_models, costs.subgradient, rests="alike"),
    "Diffusion, general": Case(
        Diffusion(0.05, "metropolis", None, "metropolis"),
        None,
        diffusion_models,
        costs.diffused,
        rests="alike",
    ),
    "EXTRA": Case(EXTRA(0.05), None, exact_peer_models, costs.corrected),
    "PG-EXTRA": Case(PGEXTRA(0.05), None, exact_peer_models, costs.corrected),
    "Wang-Elia": Case(WangElia(0.05), None, exact_peer_models, costs.tracked),
    "NIDS": Case(NIDS(0.05), None, exact_peer_models, costs.proximal),
    "Exact diffusion": Case(ExactDiffusion(0.05), None, exact_peer_models, costs.corrected),
    "LED": Case(LED(0.05, local_steps=2), None, exact_peer_models, partial(costs.walked, 2, 1)),
    "DIGing": Case(DIGing(0.05), None, exact_peer_models, costs.tracked),
    "ATC tracking": Case(ATCTracking(0.05), None, exact_peer_models, costs.tracked),
    "Aug-DGM": Case(AugDGM(0.05), None, exact_peer_models, costs.tracked),
    "K-GT": Case(KGT(0.05, local_steps=2), None, exact_peer_models, partial(costs.walked, 2, 2)),
    "ADMM tracking": Case(
        ADMMTracking(0.3, penalty=0.7, relaxation=0.4, blend=0.5),
        None,
        exact_peer_models,
        costs.tracked,
    ),
    "DLM": Case(DLM(0.9, 0.3), None, exact_peer_models, costs.linearized),
    "DiNNO": Case(
        DiNNO(0.4, 0.05, local_steps=2), None, exact_peer_models, partial(costs.walked, 2, 1)
    ),
    "FedGD": Case(FedGD(0.3, 0.05), None, networked_gradient_models, costs.coupled, rests="alike"),
    "FedSGD, networked": Case(
        NetworkedFedSGD(0.3, 0.05, batches=CyclicBatches(4)),
        None,
        networked_gradient_models,
        partial(costs.estimated, 4),
        rests="never",
    ),
    "FedRelax": Case(FedRelax(0.3), None, fedrelax_models, costs.relaxed, rests="alike"),
    "Model-agnostic FedRelax": Case(
        ModelAgnosticFedRelax(0.3, TEST_SET), None, model_agnostic_models, costs.agreed
    ),
    "ADMM": Case(NetworkedADMM(0.9), None, admm_models, costs.exact),
    "P-ADMM": Case(PADMM(0.9), ZCDP(2.0, 0.9), admm_models, costs.exact),
    "NPFL": Case(NPFL(0.9, 0.3), None, npfl_models, costs.related),
    "NPFL-RL": Case(NPFLRL(0.9, RandomProbe(0.1, 0.05)), None, npfl_rl_models, costs.learned),
    "NPFL, by loss": Case(
        NPFLByLoss(0.9, 0.3, clusters=2, warmup=3), None, npfl_choosing_models, costs.choosing
    ),
    "NPFL, by gradient": Case(
        NPFLByGradient(0.9, 0.3, clusters=2, warmup=3, step_size=0.5),
        None,
        npfl_choosing_models,
        costs.choosing,
    ),
    "NPFL, by parameters": Case(
        NPFLByParameters(0.9, DeterministicPolicyGradient(0.01), 0.3, threshold=0.3),
        None,
        npfl_by_parameters_models,
        costs.classified,
    ),
    "GT-SAGA": Case(GTSAGA(0.05, batch=2), None, gt_saga_models, partial(costs.tabulated, 2)),
    "GT-SARAH": Case(
        GTSARAH(0.05, period=5, batch=2), None, gt_saga_models, partial(costs.snapped, 2, 5)
    ),
    "GT-SVRG": Case(
        GTSVRG(0.05, period=5, batch=2), None, gt_saga_models, partial(costs.snapped, 2, 5)
    ),
    "GT-VR": Case(
        GTVR(0.05, probability=0.3, batch=2), None, gt_vr_models, partial(costs.snapped, 2, 1)
    ),
    "ATC-GT-SAGA": Case(
        ATCGTSAGA(0.05, batch=2), None, atc_gt_saga_models, partial(costs.stored, 2)
    ),
    "DESTRESS": Case(
        DESTRESS(0.05, period=4, batch=2, probability=0.6, exchanges=2),
        None,
        destress_models,
        partial(costs.remixed, 2, 4, 2),
    ),
    "Network-DANE": Case(NetworkDANE(2.0), None, network_tracking_models, costs.newton_tracked),
    "Network-SVRG": Case(
        NetworkSVRG(0.05, local_steps=3, batch=2),
        None,
        network_dane_models,
        partial(costs.tracked_steps, 3, 2),
    ),
    "Network-SARAH": Case(
        NetworkSARAH(0.05, local_steps=3, batch=2),
        None,
        network_dane_models,
        partial(costs.tracked_steps, 3, 2),
    ),
    "LT-ADMM": Case(
        LTADMM(0.9, 0.05, pull=0.1, local_steps=3), None, lt_admm_models, partial(costs.trained, 3)
    ),
    "LT-ADMM-VR": Case(
        LTADMMVR(0.9, 0.05, pull=0.1, local_steps=3, batch=2),
        None,
        lt_admm_models,
        partial(costs.remembered, 3, 2),
    ),
    "ProxSkip": Case(ProxSkip(0.05, 0.4), None, proxskip_models, costs.skipped),
    "Choco-SGD": Case(
        ChocoSGD(0.05, compression=TopK(2), consensus_step_size=0.4),
        None,
        choco_models,
        costs.differing,
    ),
    "BEER": Case(
        BEER(0.05, compression=TopK(2), consensus_step_size=0.4),
        None,
        copying_models,
        costs.twice_differing,
    ),
    "MoTEF": Case(
        MoTEF(0.05, compression=TopK(2), consensus_step_size=0.4, momentum=0.6),
        None,
        copying_models,
        costs.twice_differing,
    ),
    "LEAD": Case(
        LEAD(0.05, compression=TopK(2), consensus_step_size=0.6, copy_step_size=0.7),
        None,
        copying_models,
        costs.differing,
    ),
    "CEDAS": Case(
        CEDAS(0.05, compression=TopK(2), consensus_step_size=0.6, copy_step_size=0.7),
        None,
        copying_models,
        costs.differing,
    ),
    "DeTAG": Case(
        DeTAG(0.05, exchanges=3), None, detag_models, partial(costs.tracked_in_phases, 3)
    ),
    "Epidemic learning": Case(
        EpidemicLearning(0.05, neighbors_per_round=2),
        None,
        epidemic_models,
        costs.spread,
        rests="alike",
    ),
    "Teleportation": Case(
        Teleportation(0.05, topology=graphs.path(3)),
        None,
        teleportation_models,
        costs.teleported,
        rests="alike",
    ),
    "AD-PSGD": Case(ADPSGD(0.05), None, ad_psgd_models, partial(costs.of_pair, 1, 1), "alike"),
    "SwarmSGD": Case(
        SwarmSGD(0.05, local_steps=3),
        None,
        swarm_sgd_models,
        partial(costs.of_pair, 2, 3),
        "alike",
    ),
    "Random walk": Case(
        RandomWalk(0.05, walks=2), None, random_walk_models, costs.visited, rests="alike"
    ),
    "Gossip SGD": Case(GossipSGD(0.05), None, gossip_models, costs.paired),
    "Sampled diffusion": Case(
        SampledDiffusion(0.05, 2, rule="importance"), None, sampled_diffusion_models, costs.picked
    ),
    "SGP": Case(SGP(0.05), None, sgp_models, costs.pushed),
    "QG-DSGDm": Case(QGDSGDm(0.05, momentum=0.5), None, qg_dsgdm_models, costs.corrected, "alike"),
}
