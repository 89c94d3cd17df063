"""One table of cases: a small world, and in it an instance of every registered algorithm."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fljax as fl
from experiments.benchmarks import costs
from experiments.benchmarks.costs import Cost, Size
from fljax._generator import as_key
from fljax._numerics import key_of
from fljax.algorithms import (
    AFL,
    APFL,
    ATC,
    CTA,
    DLM,
    EXTRA,
    GFL,
    GTSAGA,
    GTSARAH,
    GTSVRG,
    IFCA,
    KGT,
    LED,
    LTADMM,
    LTADMMVR,
    MIME,
    NIDS,
    NPFL,
    NPFLRL,
    PADMM,
    PGEXTRA,
    PGFL,
    REGISTRY,
    SCAFFOLD,
    SGP,
    ZCDPNFL,
    ADMMTracking,
    Algorithm,
    ATCTracking,
    AugDGM,
    ChocoSGD,
    ClusterFL,
    Consensus,
    ConventionalFL,
    Diffusion,
    DIGing,
    DiNNO,
    Ditto,
    EpsilonDeltaNFL,
    ExactDiffusion,
    ExactFedProx,
    FedAdagrad,
    FedAdam,
    FedALA,
    FedAMP,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBABU,
    FedBN,
    FedBuff,
    FedDPSGD,
    FedDyn,
    FedExP,
    FedGD,
    FedLT,
    FedNova,
    FedOpt,
    FedPD,
    FedPer,
    FedProx,
    FedRelax,
    FedRep,
    FedSAM,
    FedYogi,
    FineTunedFedAvg,
    GeneralizedGradient,
    GossipSGD,
    GraphFedAvg,
    HingeStaleness,
    ISFedAvg,
    LGFedAvg,
    LocalOnly,
    MIMELite,
    ModelAgnosticFedRelax,
    NetworkedADMM,
    NetworkedFedSGD,
    OnlineFed,
    PAOFed,
    PerFedAvg,
    PFedMe,
    PGFLSingleStep,
    ProxSkip,
    PSOFed,
    QFedAvg,
    QGDSGDm,
    RandomProbe,
    Scaffnew,
    SharingADMM,
    SignSGD,
    SuPerFed,
    WangElia,
    ZCDPGradNFL,
)
from fljax.batches import Cyclic, Uniform
from fljax.link import Circular, TopK
from fljax.link.losses import of_edges
from fljax.metrics import Metric
from fljax.privacy import ZCDP, ApproximateDP, CentralGaussian, Gap, NoisyGradients, Notion
from fljax.problems import (
    ElasticNet,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegularizer,
    SquaredL2,
    from_clients,
)
from fljax.schedules import GeometricDecay, PowerDecay
from tests.reference import (
    adapted,
    asynchronous,
    exact_peers,
    jung_agnostic,
    multiagent,
    networks,
    nfl,
    npfl,
    online,
    peers,
    personal,
    pgfl,
    private,
    server,
)

SIZES = (4, 9, 6, 12, 7)
CLIENTS = len(SIZES)
DIM = 3
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3)]
ROUNDS = 12
#: With servers: who is at which, and how they are joined. With tasks: who is of which cluster.
SERVER, LINE, CLUSTER = [0, 0, 1, 1, 1], [(0, 1)], [0, 1, 0, 1, 1]
#: Points that all know, and a table whose columns are at the clients.
TEST_SET = np.random.default_rng(5).normal(size=(4, DIM))
COLUMNS, TABLE = [[0, 3], [1], [2, 4, 6], [5], [7]], np.random.default_rng(6).normal(size=(12, 9))
EXACT = Metric("exact", lambda now: now.model, "the models themselves")

#: name -> loss, regularizer, and the same to the reference: loss, l1, l2
PROBLEMS = {
    "ridge": (LeastSquares(), SquaredL2(), "squared", 0.0, 1.0),
    "elastic": (LeastSquares(), ElasticNet(0.4, 0.2), "squared", 0.4, 0.2),
    "lad": (LeastAbsoluteDeviation(), NoRegularizer(), "absolute", 0.0, 0.0),
    "logistic": (Logistic(), SquaredL2(), "logistic", 0.0, 1.0),
}
STRENGTH = 0.8


def make_data(name="ridge", seed=0, sizes=SIZES, dim=DIM):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=dim)
    data = []
    for size in sizes:
        X = rng.normal(size=(size, dim))
        y = X @ truth + 0.5 * rng.normal(size=size)
        data.append((X, np.sign(y) if name == "logistic" else y))
    return tuple(data)


def make_problem(name="ridge", clip=None, data=None, **kwargs):
    loss, regularizer, *_ = PROBLEMS[name]
    problem = from_clients(data or make_data(name, **kwargs), loss, regularizer, STRENGTH)
    return problem if clip is None else problem.clipped(clip)


def make_objective(name="ridge", clip=None, **kwargs):
    _, _, loss, l1, l2 = PROBLEMS[name]
    return nfl.Objective(make_data(name, **kwargs), loss, l1, l2, STRENGTH, clip)


def gap_of(problem, bound=1.0, neighbors="replace"):
    return Gap.of(ZCDP(1.0, gradient_bound=bound, neighbors=neighbors), problem)


def make_network(form="dense", nodes=CLIENTS, edges=EDGES):
    return fl.graphs.from_edges(nodes, edges, form=form)


def make_servers():
    return fl.federation.Federation(SERVER, make_network(nodes=2, edges=LINE))


# What the loops say of the small world without noise: models ``[T, K, D]``, or ``[T, 1, D]`` of a
# server. They are told the algorithm's own numbers, and other worlds where a test has one.

OBJECTIVE = make_objective()
SILENCE = np.zeros((ROUNDS, CLIENTS, DIM)), np.zeros((ROUNDS, CLIENTS))  # draws and their scale
THERE, AT_ONCE = np.ones((ROUNDS, CLIENTS), bool), np.zeros((ROUNDS, CLIENTS), int)
TOGETHER = personal.World([range(CLIENTS)] * ROUNDS, THERE, AT_ONCE)
ONE_BY_ONE = online.environment_of(make_data(), THERE, THERE, AT_ONCE)
MEMBERS = [pgfl.Client(X, y, ridge=STRENGTH / CLIENTS) for X, y in make_data()]


def step_of(schedule):
    if isinstance(schedule, PowerDecay):
        return lambda n: float(schedule.initial) * n ** -float(schedule.power)
    return lambda n: float(schedule.value)


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


def generalized(it):
    given = float(it.step_size), TEST_SET, ROUNDS, STRENGTH / CLIENTS
    each = [jung_agnostic.generalized_gradient(*data, *given) for data in make_data()]
    return np.stack(each, axis=1)


def of_columns(it):
    blocks = [np.pad(TABLE[:, own], ((0, 0), (0, DIM - len(own)))) for own in COLUMNS]
    given = blocks, TABLE[:, -1], float(it.penalty), ROUNDS, STRENGTH / CLIENTS
    return jung_agnostic.sharing_admm(*given)


def near_the_server(it):
    given = make_data(), float(it.step_size), ROUNDS, STRENGTH / CLIENTS
    return networks.fedprox(*given)[:, None]


def conventional(it, objective=OBJECTIVE, noise=SILENCE):
    step = step_of(it.step_size)
    return nfl.conventional_fl(objective, step, *noise, it.local_steps)[:, None]


def averaged(it):
    whole = [[np.arange(size)] * it.epochs for size in SIZES]
    chosen, visited = TOGETHER.drawn, [whole] * ROUNDS
    step = step_of(it.step_size)
    return nfl.fedavg(OBJECTIVE, step, chosen, visited, it.weighting)[:, None]


def alike(it, objective=OBJECTIVE, rounds=ROUNDS):
    """All clients with all of their samples in every step, for the loops of one server."""
    steps = it.epochs if it.local_steps is None else it.local_steps
    counts = counts_of(it, objective)
    visits = {k: [None] * int(np.broadcast_to(steps, CLIENTS)[k]) for k in range(CLIENTS)}
    return server.World(
        lambda k, w, rows: objective.gradient(k, w),
        np.zeros(objective.dim),
        counts,
        [visits] * rounds,
        objective.value,
    )


def served(it, world=None, talks=None):
    """The loop of an algorithm with one server and local steps."""
    world = alike(it) if world is None else world
    return SERVER_LOOPS[type(it)](it, world, talks)[:, None]


def server_step_size(it):
    """ServerOpt of the loops."""
    if isinstance(it, FedOpt):
        return lambda n, x, delta: x + 0.7 * delta  # the only one in these tests
    if isinstance(it, FedAvgM):
        return server.HeavyBall(float(it.momentum))
    kind = type(it).__name__.removeprefix("Fed").lower()
    numbers = float(it.momentum), float(it.adaptivity)
    return server.Adaptive(
        kind, step_of(it.server_step_size), *numbers, float(getattr(it, "decay", 0))
    )


def at_server(it, world, talks):
    return server.fedopt(world, step_of(it.step_size), server_step_size(it))


def mimicked(it, world, talks):
    momentum = 0.0 if it.momentum is None else float(it.momentum)
    return server.mime(world, step_of(it.step_size), momentum, isinstance(it, MIMELite))


def fair(it, world, talks):
    curvature = None if it.curvature is None else float(it.curvature)
    return server.qfedavg(world, step_of(it.step_size), float(it.fairness), curvature)


SERVER_LOOPS = dict.fromkeys((FedOpt, FedAvgM, FedAdagrad, FedYogi, FedAdam), at_server) | {
    FedProx: lambda it, world, _: server.fedprox(
        world, step_of(it.step_size), float(it.attraction)
    ),
    SCAFFOLD: lambda it, world, _: server.scaffold(
        world,
        step_of(it.step_size),
        float(it.server_step_size),
        "I" if it.variate == "gradient" else "II",
    ),
    FedNova: lambda it, world, _: server.fednova(
        world, step_of(it.step_size), float(it.momentum), float(it.attraction)
    ),
    FedDyn: lambda it, world, _: server.feddyn(world, step_of(it.step_size), float(it.attraction)),
    MIME: mimicked,
    MIMELite: mimicked,
    QFedAvg: fair,
    AFL: lambda it, world, _: server.afl(
        world, step_of(it.step_size), step_of(it.mixture_step_size)
    ),
    FedExP: lambda it, world, _: server.fedexp(world, step_of(it.step_size), float(it.damping)),
    FedSAM: lambda it, world, _: server.fedsam(world, step_of(it.step_size), float(it.radius)),
    FedPD: lambda it, world, talks: server.fedpd(
        world, step_of(it.step_size), float(it.penalty), talks
    ),
    FedLT: lambda it, world, _: server.fedlt(world, step_of(it.step_size), float(it.penalty)),
}


def drawn_whole(it):
    """All clients and all samples at a time: probabilities have no say."""
    return averaged(FedAvg(it.step_size, weighting="equal"))


def stepped(it):
    everyone = [range(CLIENTS)] * ROUNDS
    whole = [[[range(size)] * it.local_steps for size in SIZES]] * ROUNDS
    none = np.zeros((ROUNDS, CLIENTS, it.local_steps, DIM))
    step = float(it.step_size.value)
    return private.dp_sgd(OBJECTIVE, step, everyone, whole, SIZES, 0.0, none)[:, None]


def alone(it, objective=OBJECTIVE, world=TOGETHER):
    return personal.local_only(objective, world, step_of(it.step_size), it.local_steps).personal


def of_solver(it):
    return step_of(it.solver.step_size), it.solver.epochs, it.solver.weighting


def tuned(it, objective=OBJECTIVE, world=TOGETHER):
    given = *of_solver(it), step_of(it.step_size), it.tuning_steps
    return personal.fine_tuned(objective, world, *given).personal


def attracted(it, objective=OBJECTIVE, world=TOGETHER):
    given = *of_solver(it), step_of(it.step_size), float(it.attraction), it.personal_steps
    return personal.ditto(objective, world, *given).personal


def enveloped(it, objective=OBJECTIVE, world=TOGETHER):
    numbers = float(it.attraction), it.local_steps, float(it.server_step_size)
    return personal.pfedme(objective, world, step_of(it.step_size), *numbers).personal


def clustered(it, objective=OBJECTIVE, world=TOGETHER):
    start = it.init(make_problem(), None).models if it.start is None else it.start
    given = step_of(it.step_size), np.asarray(start), it.local_steps, it.average
    return personal.ifca(objective, world, *given).personal


def whole(steps, rounds=ROUNDS, clients=CLIENTS):
    """All samples in every step, of every client and round."""
    return [[steps * [None]] * clients] * rounds


def sampled(objective):
    """A client's gradient on some of its samples; all for ``None``."""

    def gradient(k, w, rows=None):
        if rows is None:
            return objective.gradient(k, w)
        X, y = objective.data[k]
        data = (*objective.data[:k], (X[rows], y[rows]), *objective.data[k + 1 :])
        return dataclasses.replace(objective, data=data).gradient(k, w)

    return gradient


def counts_of(it, objective):
    weighed = getattr(it, "weighting", None) == "samples"
    return objective.counts if weighed else np.ones(objective.clients)


def adapted_first(it, objective=OBJECTIVE, world=TOGETHER, work=None, hessian=None):
    work = whole(it.epochs, world.rounds, objective.clients) if work is None else work
    work = [[[step or 3 * (step,) for step in steps] for steps in each] for each in work]
    gradient, start = sampled(objective), np.zeros(objective.dim)
    times = adapted.curvature(gradient, it.variant, float(it.offset), hessian)
    steps = step_of(it.step_size), step_of(it.personal_step_size), times, it.personal_steps
    given = world, work, counts_of(it, objective), start
    return adapted.per_fedavg(gradient, *given, *steps).personal


def mixtures(it, objective=OBJECTIVE, world=TOGETHER, work=None):
    work = whole(it.epochs, world.rounds, objective.clients) if work is None else work
    rate = it.interpolation_step_size
    adaptation = None if rate is None else step_of(rate)
    given = world, work, counts_of(it, objective), np.zeros(objective.dim)
    numbers = step_of(it.step_size), np.asarray(it.interpolation), adaptation
    return adapted.apfl(sampled(objective), *given, *numbers)[0].personal


def shared_in_part(it, objective=OBJECTIVE, world=TOGETHER, work=None, heads=None):
    clients, head = objective.clients, getattr(it, "head_epochs", 0)
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    if head and heads is None:
        heads = whole(head * it.epochs, world.rounds, clients)
    given = world, work, counts_of(it, objective), np.zeros((clients, objective.dim))
    places = places_of(it.personal, objective.dim)
    return adapted.partial(
        sampled(objective), *given, step_of(it.step_size), places, heads
    ).personal


def places_of(chosen, dim):
    if chosen is None:
        return list(range(dim))
    return np.flatnonzero(make_problem(dim=dim).coordinates(chosen)).tolist()


def blended(it, objective=OBJECTIVE, world=TOGETHER, work=None):
    work = whole(it.epochs, world.rounds, objective.clients) if work is None else work
    start = np.zeros((objective.clients, objective.dim))
    given = world, work, counts_of(it, objective), start, step_of(it.step_size)
    places = places_of(it.blended, objective.dim)
    numbers = step_of(it.blend_step_size), it.blend_steps, places
    return adapted.fedala(sampled(objective), *given, *numbers)[0].personal


def attentive(it, objective=OBJECTIVE, world=TOGETHER, work=None, arrives=None, start=None):
    clients = objective.clients
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    given = world, work, start, step_of(it.step_size)
    numbers = float(it.attraction), step_of(it.attention_step_size), float(it.scale), arrives
    return adapted.fedamp(sampled(objective), *given, *numbers).personal


def on_a_line(it, objective=OBJECTIVE, world=TOGETHER, work=None, seed=1, start=None):
    clients = objective.clients
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    longest = max(len(steps) for each in work for steps in each)
    keys = [key_of(now, "algorithm") for now in keys_of(seed, world.rounds)]
    shares = [
        [
            np.asarray(jax.random.uniform(jax.random.fold_in(key, k), (longest,), float))
            for k in range(clients)
        ]
        for key in keys
    ]
    start = np.zeros((clients, objective.dim)) if start is None else start
    given = world, work, counts_of(it, objective), start, step_of(it.step_size), shares
    numbers = float(it.attraction), float(it.orthogonality), it.warmup, float(it.interpolation)
    return adapted.superfed(sampled(objective), *given, *numbers).personal


def frozen_head(it, objective=OBJECTIVE, world=TOGETHER, work=None):
    clients = objective.clients
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    given = world, work, counts_of(it, objective), np.zeros((clients, objective.dim))
    places = places_of(it.personal, objective.dim)
    steps = step_of(it.tuning_step_size), it.tuning_steps
    return adapted.fedbabu(
        sampled(objective), *given, step_of(it.step_size), places, *steps
    ).personal


def staleness_of(law):
    if isinstance(law, HingeStaleness):
        return asynchronous.hinge(float(law.slope), float(law.patience))
    return asynchronous.polynomial(float(law.power))


def buffered(it, objective=OBJECTIVE, world=TOGETHER, work=None):
    work = whole(it.epochs, world.rounds, objective.clients) if work is None else work
    given = world, work, np.zeros(objective.dim), step_of(it.step_size)
    numbers = float(it.buffer_size), float(it.server_step_size), staleness_of(it.staleness)
    return asynchronous.fedbuff(sampled(objective), *given, *numbers)[:, None]


def mixed_in(it, objective=OBJECTIVE, world=TOGETHER, work=None):
    work = whole(it.epochs, world.rounds, objective.clients) if work is None else work
    given = world, work, np.zeros(objective.dim), step_of(it.step_size)
    numbers = float(it.server_step_size), staleness_of(it.staleness), float(it.attraction)
    return asynchronous.fedasync(sampled(objective), *given, *numbers)[:, None]


def inter_cluster(it):
    return lambda n: float(it.inter_cluster.initial) * float(it.inter_cluster.factor) ** n


def federated(it):
    cluster = CLUSTER if it.personalized else [0] * CLIENTS
    edges = LINE if it.cooperative else []
    given = ROUNDS, float(it.penalty), inter_cluster(it), 2, max(cluster) + 1
    return pgfl.pgfl(MEMBERS, SERVER, cluster, edges, *given, scheduled=drawn(it)).model


def drawn(it, seed=1):
    """``[T, K]``: who takes part, as drawn in the run."""
    choose = partial(it.selection.choose, available=THERE[0], network=make_servers())
    each = [choose(key_of(now, "participation")) for now in keys_of(seed)]
    return np.array([who.put(jnp.zeros(CLIENTS, bool), who.here) for who in each])


def keys_of(seed, rounds=ROUNDS):
    return [jax.random.fold_in(as_key(seed), n) for n in range(1, rounds + 1)]


def single_step(it):
    given = ROUNDS, float(it.penalty), inter_cluster(it), 2, 2
    return pgfl.pgfl_single_step(MEMBERS, SERVER, CLUSTER, LINE, *given, it.signs).model


def graph_averaged(it):
    given = nfl.metropolis(2, LINE), ROUNDS, float(it.step_size.value), it.local_steps
    return pgfl.gfl_gradient(MEMBERS, SERVER, *given).server[:, SERVER]


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


def probes(it, clients=CLIENTS, rounds=ROUNDS, seed=1):
    """``[T, E, K]``: the directions of a random policy, as drawn in the run."""
    half = float(it.policy.width) / 2
    unit = partial(jax.random.uniform, shape=(clients,), dtype=float, minval=-1)
    each = [key_of(now, "policy") for now in keys_of(seed, rounds)]
    epochs = range(it.policy_steps)
    return half * np.array([[unit(jax.random.fold_in(k, e)) for e in epochs] for k in each])


def weights_of(discount, lags):
    if np.ndim(discount):
        return lambda lag: float(np.asarray(discount)[lags.index(lag)])
    return lambda lag: float(discount) ** lag


def online_loop(it, environment=ONE_BY_ONE, lags=(0,), objective=None):
    """The loops' whole record under its own settings."""
    step, longest = float(it.step_size.value), lags[-1]
    if isinstance(it, OnlineFed):
        return online.online_fed(environment, step, it.aggregation, longest=longest)
    if isinstance(it, PSOFed):
        sharing = it.sharing
        return online.pso_fed(
            environment, step, sharing.size, bool(sharing.coordinated), longest=longest
        )
    if isinstance(it, SignSGD):
        vote = "majority" if it.vote else "mean"
        return online.sign_sgd(environment, step, vote, longest=longest, objective=objective)
    return online.pao_fed(
        environment,
        step,
        it.sharing.size,
        bool(it.sharing.coordinated),
        bool(it.send_next),
        weights_of(it.discount, lags),
        "freshest" if it.freshest and it.aggregation == "per delay" else "none",
        it.autonomous,
        it.received,
        it.aggregation,
        longest,
    )


def streamed(it):
    return online_loop(it).server[:, None]


def signs(it):
    everywhere = dataclasses.replace(ONE_BY_ONE, fresh=THERE)
    return online_loop(it, everywhere, objective=OBJECTIVE).server[:, None]


# Peers that save gradients or messages. Each is told a gradient, and draws as they are in the run.

START = np.zeros((CLIENTS, DIM))
METROPOLIS = nfl.metropolis(CLIENTS, EDGES)


def some_of(k, w, rows=None):
    """A client's gradient, or the mean of some of its samples'."""
    return multiagent.slope(OBJECTIVE, k, w, rows and (rows, [1 / len(rows)] * len(rows)))


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


def coins_of(probability, seed=1, rounds=ROUNDS):
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    return [bool(jax.random.uniform(k, (), float) < probability) for k in keys]


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


def trained(it, gradient=some_of, start=START):
    given = float(it.penalty), step_of(it.step_size), float(it.pull), it.local_steps, ROUNDS, start
    rows = table = None
    if isinstance(it, LTADMMVR):
        rows, table = batches_of(it.batch, it.local_steps), (SIZES, it.restart)
    elif it.batches is not None:
        rows = batches_of(it.batches.size, it.local_steps)
    return peers.lt_admm(gradient, EDGES, *given, rows, table)


def skipped(it, gradient=some_of, start=START):
    chance = float(it.probability)
    given = step_of(it.step_size), chance, coins_of(chance), start
    if isinstance(it, Scaffnew):
        return peers.scaffnew(gradient, *given)
    return peers.proxskip(gradient, METROPOLIS, *given)


def differing(it, gradient=some_of, start=START):
    compress = partial(peers.largest, count=it.compression.count)
    given = METROPOLIS, step_of(it.step_size), compress, float(it.consensus_step_size)
    return peers.choco_sgd(gradient, *given, ROUNDS, start)


def met(it, gradient=some_of, start=START):
    return peers.gossip_sgd(gradient, step_of(it.step_size), meetings_of(), start)


def pushed(it, gradient=some_of, start=START):
    adjacency = networks.weights_of(CLIENTS, EDGES) + np.eye(CLIENTS)
    shares = adjacency / adjacency.sum(axis=0) if it.shares is None else np.asarray(it.shares)
    return peers.sgp(gradient, shares, step_of(it.step_size), ROUNDS, start)


def quasi_global(it, gradient=some_of, start=START):
    given = METROPOLIS, step_of(it.step_size), float(it.momentum), ROUNDS, start
    return peers.qg_dsgdm(gradient, *given)


class Case(NamedTuple):
    """A registered algorithm at a small size."""

    algorithm: Algorithm
    privacy: Any  # the budget it runs under; None: it has no private form
    oracle: Callable[..., np.ndarray]  # algorithm -> its models by the loops
    cost: Callable[[Size, bool], Cost]  # size, private -> what a round of it must do
    #: Where it stays at the optimum: "always", where clients are "alike", or "never".
    rests: str = "always"


DECAYING = GeometricDecay(0.3, 0.9)
#: By the literature's name: what is registered is tested, and measured, by what stands here.
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
    "Generalized gradient": Case(
        GeneralizedGradient(0.7, TEST_SET), None, generalized, costs.generalized
    ),
    "Sharing ADMM": Case(SharingADMM(2.0), None, of_columns, costs.of_columns),
    "ADMM": Case(NetworkedADMM(0.9), None, exact, costs.exact),
    "P-ADMM": Case(PADMM(0.9), ZCDP(2.0, 0.9), exact, costs.exact),
    "FL": Case(ConventionalFL(0.05), ZCDP(2.0, 0.9), conventional, costs.server),
    "FedAvg": Case(
        FedAvg(0.05, weighting="equal"), CentralGaussian(0.7, 0.4), averaged, costs.trusted
    ),
    "ISFedAvg": Case(ISFedAvg(0.05, CLIENTS, SIZES), None, drawn_whole, costs.important),
    "FedProx, exact": Case(
        ExactFedProx(0.5), None, near_the_server, costs.near_the_server, rests="alike"
    ),
    "FedProx": Case(
        FedProx(0.05, attraction=0.5, local_steps=2, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        partial(costs.trusted_steps, 2),
        rests="alike",
    ),
    "FedOpt": Case(
        FedOpt(0.05, server=optax.sgd(0.7), weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedAvgM": Case(
        FedAvgM(0.02, momentum=0.5, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedAdagrad": Case(
        FedAdagrad(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedYogi": Case(
        FedYogi(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedAdam": Case(
        FedAdam(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
        rests="never",
    ),
    "FedNova": Case(
        FedNova(0.02, momentum=0.5, local_steps=2, weighting="equal"),
        None,
        served,
        partial(costs.normalized, 2),
        rests="alike",
    ),
    "SCAFFOLD": Case(SCAFFOLD(0.05, local_steps=2), None, served, partial(costs.controlled, 2)),
    "FedDyn": Case(
        FedDyn(0.05, attraction=2.0, local_steps=2), None, served, partial(costs.bent, 2)
    ),
    "MIME": Case(MIME(0.05, momentum=0.5, weighting="equal"), None, served, costs.mimicked),
    "MIMELite": Case(
        MIMELite(0.05, momentum=0.5, weighting="equal"), None, served, costs.mimicked_lite
    ),
    "q-FedAvg": Case(
        QFedAvg(0.05, fairness=1.5, weighting="equal"), None, served, costs.fair, rests="alike"
    ),
    "AFL": Case(AFL(0.05, mixture_step_size=0.1), None, served, costs.agnostic, rests="alike"),
    "FedExP": Case(FedExP(0.05, damping=0.01), None, served, costs.extrapolated),
    "FedSAM": Case(
        FedSAM(0.05, radius=0.2, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.sharpness_aware,
        rests="never",
    ),
    "FedPD": Case(FedPD(0.05, penalty=0.5, local_steps=2), None, served, partial(costs.dual, 2)),
    "Fed-LT": Case(FedLT(0.05, penalty=0.5, local_steps=2), None, served, partial(costs.split, 2)),
    "DP-SGD": Case(FedDPSGD(0.05), NoisyGradients(0.7, 0.4), stepped, partial(costs.stepped, 1)),
    "SignSGD": Case(SignSGD(0.05), None, signs, costs.server, rests="never"),
    "Local only": Case(LocalOnly(0.05), None, alone, costs.alone),
    "FedAvg-FT": Case(FineTunedFedAvg(FedAvg(0.05), 0.05), None, tuned, costs.tuned),
    "Ditto": Case(Ditto(FedAvg(0.05), 0.05, 1.0), None, attracted, costs.attracted),
    "pFedMe": Case(PFedMe(0.05, 1.0), None, enveloped, costs.enveloped),
    "Per-FedAvg": Case(
        PerFedAvg(0.05, personal_step_size=0.03), None, adapted_first, costs.adapted
    ),
    "APFL": Case(
        APFL(0.05, interpolation=0.4, interpolation_step_size=0.05), None, mixtures, costs.mixed
    ),
    "FedPer": Case(FedPer(0.05, personal=(1,)), None, shared_in_part, costs.alone),
    "LG-FedAvg": Case(LGFedAvg(0.05, personal=(0,)), None, shared_in_part, costs.alone),
    "FedBN": Case(FedBN(0.05, personal=(2,)), None, shared_in_part, costs.alone),
    "FedRep": Case(FedRep(0.05, personal=(1,)), None, shared_in_part, costs.in_turn),
    "FedBABU": Case(
        FedBABU(0.05, personal=(1,), tuning_step_size=0.05), None, frozen_head, costs.body_first
    ),
    "FedALA": Case(FedALA(0.05, blend_step_size=0.5), None, blended, costs.in_turn),
    "FedAMP": Case(
        FedAMP(0.05, attraction=0.5, attention_step_size=0.3, scale=2.0),
        None,
        attentive,
        costs.attentive,
    ),
    "SuPerFed": Case(SuPerFed(0.05, attraction=0.1), None, on_a_line, costs.alone),
    "FedBuff": Case(FedBuff(0.05, buffer_size=4), None, buffered, costs.server),
    "FedAsync": Case(FedAsync(0.05, server_step_size=0.6), None, mixed_in, costs.server),
    "IFCA": Case(IFCA(0.05, 2), None, clustered, costs.clustered),
    "PGFL": Case(PGFL(0.9, DECAYING, 2), ZCDP(2.0, 0.9), federated, partial(costs.drawn, 2)),
    "GFL": Case(GFL(0.9), ZCDP(2.0, 0.9), federated, costs.federated),
    "ClusterFL": Case(ClusterFL(0.9, 0.3), ZCDP(2.0, 0.9), federated, costs.federated),
    "PGFL, single step": Case(PGFLSingleStep(0.9, DECAYING), None, single_step, costs.federated),
    "GFL, gradient": Case(GraphFedAvg(0.05), ZCDP(2.0, 0.9), graph_averaged, costs.averaged),
    "NPFL": Case(NPFL(0.9, 0.3), None, related, costs.related),
    "NPFL-RL": Case(NPFLRL(0.9, RandomProbe(0.1, 0.05)), None, learned, costs.learned),
    "Online-Fed": Case(OnlineFed(0.3), None, streamed, costs.streamed),
    "PAO-Fed": Case(
        PAOFed(0.3, Circular(2), discount=0.5), None, streamed, partial(costs.portions, 2)
    ),
    "PSO-Fed": Case(PSOFed(0.3, Circular(2)), None, streamed, partial(costs.portions, 2)),
    "GT-SAGA": Case(GTSAGA(0.05, batch=2), None, tracked, partial(costs.tabulated, 2)),
    "GT-SARAH": Case(GTSARAH(0.05, period=5, batch=2), None, tracked, partial(costs.snapped, 2, 5)),
    "GT-SVRG": Case(GTSVRG(0.05, period=5, batch=2), None, tracked, partial(costs.snapped, 2, 5)),
    "LT-ADMM": Case(
        LTADMM(0.9, 0.05, pull=0.1, local_steps=3), None, trained, partial(costs.trained, 3)
    ),
    "LT-ADMM-VR": Case(
        LTADMMVR(0.9, 0.05, pull=0.1, local_steps=3, batch=2),
        None,
        trained,
        partial(costs.remembered, 3, 2),
    ),
    "Scaffnew": Case(Scaffnew(0.05, 0.4), None, skipped, costs.steered),
    "ProxSkip": Case(ProxSkip(0.05, 0.4), None, skipped, costs.skipped),
    "Choco-SGD": Case(
        ChocoSGD(0.05, compression=TopK(2), consensus_step_size=0.4),
        None,
        differing,
        costs.differing,
    ),
    "Gossip SGD": Case(GossipSGD(0.05), None, met, costs.met),
    "SGP": Case(SGP(0.05), None, pushed, costs.pushed),
    "QG-DSGDm": Case(QGDSGDm(0.05, momentum=0.5), None, quasi_global, costs.corrected, "alike"),
}
LABELS = list(CASES)
#: What a client of a server sends and gets in a round where it is not one model each: how many
#: messages, and models in them (DIM + 1 numbers where a number goes with one).
SENT = {
    "FedNova": (2, 2 + 1 / DIM),
    "SCAFFOLD": (2, 4),
    "MIME": (4, 5),
    "MIMELite": (2, 4),
    "q-FedAvg": (2, 2 + 1 / DIM),
    "AFL": (2, 2 + 1 / DIM),
    "FedExP": (2, 2 + 1 / DIM),
}
PRIVATE = [label for label, case in CASES.items() if isinstance(case.privacy, Notion)]
STREAMED = [label for label in LABELS if REGISTRY[label].needs.data == "stream"]
SERVED = [label for label in LABELS if REGISTRY[label].needs.network is None]
#: With one server and a model of each client beside its own: more of them in test_personal.
#: The others in test_adapted.
ADAPTED = [
    *("Per-FedAvg", "APFL", "FedPer", "LG-FedAvg", "FedBN", "FedRep", "FedBABU"),
    *("FedALA", "FedAMP", "SuPerFed"),
]
PERSONAL = ["Local only", "FedAvg-FT", "Ditto", "pFedMe", "IFCA", *ADAPTED]
#: That do not wait: more of them in test_asynchronous.
ASYNCHRONOUS = ["FedBuff", "FedAsync"]
#: With sizes of batches of each client: ISFedAvg, more of it in test_isfedavg.
#: With servers on a graph, or clusters: more of them in test_pgfl and test_npfl.
CLUSTERED = ["PGFL", "GFL", "ClusterFL", "PGFL, single step", "GFL, gradient", "NPFL", "NPFL-RL"]
#: Whose messages are predictions: more of them in test_model_agnostic and test_vertical.
PREDICTING = ["Model-agnostic FedRelax", "Generalized gradient", "Sharing ADMM"]
#: Whose gradients or messages are saved, most by draws: more of them in test_saving_peers.
SAVING = [
    *("GT-SAGA", "GT-SVRG", "GT-SARAH", "LT-ADMM", "LT-ADMM-VR", "Scaffnew", "ProxSkip"),
    *("Choco-SGD", "Gossip SGD", "SGP"),
]
APART = (
    *(*PERSONAL, *ASYNCHRONOUS, *CLUSTERED, *STREAMED, *PREDICTING, *SAVING),
    "ISFedAvg",
)
PLAIN = [label for label in LABELS if label not in APART]
#: Each step once: GFL and ClusterFL are PGFL with a switch, LG-FedAvg and FedBN are FedPer.
STEPS = [label for label in LABELS if label not in ("GFL", "ClusterFL", "LG-FedAvg", "FedBN")]


def simulate(label, problem=None, network=None, private=True, metrics=()):
    algorithm, privacy, *_ = CASES[label]
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    if label in CLUSTERED:
        tasks = fl.problems.Tasks(CLUSTER, 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    if label == "Sharing ADMM":
        regularized = SquaredL2(), STRENGTH
        problem = fl.problems.vertical(TABLE[:, :-1], TABLE[:, -1], COLUMNS, *regularized)
    if label in STREAMED:
        problem = fl.streams.Replay(dataclasses.replace(problem, strength=0.0))
    if REGISTRY[label].needs.network is fl.federation.Federation:
        network = make_servers()
    return fl.Simulation(
        problem=problem,
        algorithm=algorithm,
        network=network,
        privacy=privacy if private else None,
        metrics=metrics,
    )
