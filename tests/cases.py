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
from fljax._numerics import key_of
from fljax.algorithms import (
    ATC,
    CTA,
    DPSGD,
    GFL,
    IFCA,
    MIME,
    NPFL,
    NPFLRL,
    PADMM,
    PGFL,
    REGISTRY,
    SCAFFOLD,
    ZCDPNFL,
    Algorithm,
    ClusterFL,
    Consensus,
    ConventionalFL,
    Diffusion,
    Ditto,
    EpsilonDeltaNFL,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedGD,
    FedLT,
    FedNova,
    FedOpt,
    FedPD,
    FedProx,
    FedRelax,
    FedSGD,
    FedYogi,
    FineTunedFedAvg,
    GeneralisedGradient,
    GraphFedAvg,
    InexactFedProx,
    ISFedAvg,
    LocalOnly,
    MIMELite,
    ModelAgnosticFedRelax,
    NetworkedADMM,
    OnlineFed,
    PAOFed,
    PFedMe,
    PGFLSingleStep,
    PSOFed,
    QFedAvg,
    RandomProbe,
    SharingADMM,
    SignSGD,
    ZCDPGradNFL,
)
from fljax.batches import Cyclic
from fljax.link import Circular
from fljax.metrics import Metric
from fljax.privacy import ZCDP, ApproximateDP, CentralGaussian, Gap, NoisyGradients, Notion
from fljax.problems import (
    ElasticNet,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    NoRegulariser,
    SquaredL2,
    from_clients,
)
from fljax.schedules import GeometricDecay, PowerDecay
from fljax.simulation import as_key
from tests.reference import (
    jung_agnostic,
    multiagent,
    networks,
    nfl,
    npfl,
    online,
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

#: name -> loss, regulariser, and the same to the reference: loss, l1, l2
PROBLEMS = {
    "ridge": (LeastSquares(), SquaredL2(), "squared", 0.0, 1.0),
    "elastic": (LeastSquares(), ElasticNet(0.4, 0.2), "squared", 0.4, 0.2),
    "lad": (LeastAbsoluteDeviation(), NoRegulariser(), "absolute", 0.0, 0.0),
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
    loss, regulariser, *_ = PROBLEMS[name]
    problem = from_clients(data or make_data(name, **kwargs), loss, regulariser, STRENGTH)
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


def linearised(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.zcdp_nfl(objective, EDGES, float(it.penalty), step_of(it.step_size), *noise).model


def exact(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.admm(objective, EDGES, float(it.penalty), *noise).model


def subgradient(it, objective=OBJECTIVE, noise=SILENCE):
    return nfl.zcdp_grad_nfl(objective, EDGES, step_of(it.step_size), *noise).model


def decentralised(it, objective=OBJECTIVE):
    none, all_of_it = np.eye(CLIENTS), nfl.metropolis(CLIENTS, EDGES)
    matrices = [none if rule is None else all_of_it for rule in it.rules]
    return multiagent.strategy(objective, *matrices, step_of(it.step_size), ROUNDS)


def descended(it):
    def slope(k, w, t):
        rows = None
        if isinstance(it, FedSGD):
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


def generalised(it):
    given = float(it.step_size), TEST_SET, ROUNDS, STRENGTH / CLIENTS
    each = [jung_agnostic.generalised_gradient(*data, *given) for data in make_data()]
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
    counts = objective.counts if it.weighting == "samples" else np.ones(objective.clients)
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


def server_step(it):
    """ServerOpt of the loops."""
    if isinstance(it, FedOpt):
        return lambda n, x, delta: x + 0.7 * delta  # the only one in these tests
    if isinstance(it, FedAvgM):
        return server.HeavyBall(float(it.momentum))
    kind = type(it).__name__.removeprefix("Fed").lower()
    numbers = float(it.momentum), float(it.adaptivity)
    return server.Adaptive(kind, step_of(it.server_step), *numbers, float(getattr(it, "decay", 0)))


def at_server(it, world, talks):
    return server.fedopt(world, step_of(it.step_size), server_step(it))


def mimicked(it, world, talks):
    momentum = 0.0 if it.momentum is None else float(it.momentum)
    return server.mime(world, step_of(it.step_size), momentum, isinstance(it, MIMELite))


def fair(it, world, talks):
    curvature = None if it.curvature is None else float(it.curvature)
    return server.qfedavg(world, step_of(it.step_size), float(it.fairness), curvature)


SERVER_LOOPS = dict.fromkeys((FedOpt, FedAvgM, FedAdagrad, FedYogi, FedAdam), at_server) | {
    InexactFedProx: lambda it, world, _: server.fedprox(
        world, step_of(it.step_size), float(it.attraction)
    ),
    SCAFFOLD: lambda it, world, _: server.scaffold(
        world,
        step_of(it.step_size),
        float(it.server_step),
        "I" if it.variate == "gradient" else "II",
    ),
    FedNova: lambda it, world, _: server.fednova(
        world, step_of(it.step_size), float(it.momentum), float(it.attraction)
    ),
    FedDyn: lambda it, world, _: server.feddyn(world, step_of(it.step_size), float(it.attraction)),
    MIME: mimicked,
    MIMELite: mimicked,
    QFedAvg: fair,
    FedPD: lambda it, world, talks: server.fedpd(
        world, step_of(it.step_size), float(it.penalty), talks
    ),
    FedLT: lambda it, world, _: server.fedlt(world, step_of(it.step_size), float(it.penalty)),
}


def drawn_whole(it):
    """All clients and all samples at a time: chances have no say."""
    return averaged(FedAvg(it.step_size, weighting="equal"))


def stepped(it):
    everyone = [range(CLIENTS)] * ROUNDS
    whole = [[[range(size)] * it.steps for size in SIZES]] * ROUNDS
    none = np.zeros((ROUNDS, CLIENTS, it.steps, DIM))
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
    numbers = float(it.attraction), it.local_rounds, float(it.mixing)
    return personal.pfedme(objective, world, step_of(it.step_size), *numbers).personal


def clustered(it, objective=OBJECTIVE, world=TOGETHER):
    start = it.init(make_problem(), None).models if it.start is None else it.start
    given = step_of(it.step_size), np.asarray(start), it.local_steps, it.average
    return personal.ifca(objective, world, *given).personal


def inter_cluster(it):
    return lambda n: float(it.inter_cluster.initial) * float(it.inter_cluster.factor) ** n


def federated(it):
    cluster = CLUSTER if it.personalised else [0] * CLIENTS
    edges = LINE if it.cooperative else []
    given = ROUNDS, float(it.penalty), inter_cluster(it), 2, max(cluster) + 1
    return pgfl.pgfl(MEMBERS, SERVER, cluster, edges, *given, scheduled=drawn(it)).model


def drawn(it, seed=1):
    """``[T, K]``: who takes part, as drawn in the run."""
    choose = partial(it.selector.choose, available=THERE[0], network=make_servers())
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
    policy = "probe", float(it.policy.rate), it.epochs, probes(it), (0, 1) if it.clip else None
    return npfl.npfl_rl(MEMBERS, make_data(seed=7), CLUSTER, EDGES, *start, *policy).model


def probes(it, clients=CLIENTS, rounds=ROUNDS, seed=1):
    """``[T, E, K]``: the directions of a random policy, as drawn in the run."""
    half = float(it.policy.width) / 2
    unit = partial(jax.random.uniform, shape=(clients,), dtype=float, minval=-1)
    each = [key_of(now, "policy") for now in keys_of(seed, rounds)]
    epochs = range(it.epochs)
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


class Case(NamedTuple):
    """A registered algorithm at a small size."""

    algorithm: Algorithm
    privacy: Any  # the budget it runs under; None: it has no private form
    oracle: Callable[..., np.ndarray]  # algorithm -> its models by the loops
    cost: Callable[[Size, bool], Cost]  # size, private -> what a round of it must do


DECAYING = GeometricDecay(0.3, 0.9)
#: By the literature's name: what is registered is tested, and measured, by what stands here.
CASES = {
    "zCDP-NFL": Case(ZCDPNFL(0.9, PowerDecay(0.5)), ZCDP(2.0, 0.9), linearised, costs.linearised),
    "(eps,delta)DP-NFL": Case(
        EpsilonDeltaNFL(0.9, PowerDecay(0.5)),
        ApproximateDP(2.0, 1e-3, 0.9),
        linearised,
        costs.linearised,
    ),
    "zCDP-grad-NFL": Case(ZCDPGradNFL(0.05), ZCDP(2.0, 0.9), subgradient, costs.subgradient),
    "Consensus": Case(Consensus(0.05), None, decentralised, costs.subgradient),
    "CTA": Case(CTA(0.05), None, decentralised, costs.subgradient),
    "ATC": Case(ATC(0.05), ZCDP(2.0, 0.9), decentralised, costs.subgradient),
    "Diffusion, general": Case(
        Diffusion(0.05, "metropolis", None, "metropolis"), None, decentralised, costs.diffused
    ),
    "FedGD": Case(FedGD(0.3, 0.05), None, descended, costs.coupled),
    "FedSGD": Case(
        FedSGD(0.3, 0.05, batches=Cyclic(4)), None, descended, partial(costs.estimated, 4)
    ),
    "FedRelax": Case(FedRelax(0.3), None, relaxed, costs.relaxed),
    "Model-agnostic FedRelax": Case(
        ModelAgnosticFedRelax(0.3, TEST_SET), None, agreed, costs.agreed
    ),
    "Generalised gradient": Case(
        GeneralisedGradient(0.7, TEST_SET), None, generalised, costs.generalised
    ),
    "Sharing ADMM": Case(SharingADMM(2.0), None, of_columns, costs.of_columns),
    "ADMM": Case(NetworkedADMM(0.9), None, exact, costs.exact),
    "P-ADMM": Case(PADMM(0.9), ZCDP(2.0, 0.9), exact, costs.exact),
    "FL": Case(ConventionalFL(0.05), ZCDP(2.0, 0.9), conventional, costs.server),
    "FedAvg": Case(
        FedAvg(0.05, weighting="equal"), CentralGaussian(0.7, 0.4), averaged, costs.trusted
    ),
    "ISFedAvg": Case(ISFedAvg(0.05, CLIENTS, SIZES), None, drawn_whole, costs.important),
    "FedProx": Case(FedProx(0.5), None, near_the_server, costs.near_the_server),
    "FedProx by steps": Case(
        InexactFedProx(0.05, attraction=0.5, local_steps=2, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        partial(costs.trusted_steps, 2),
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
        FedAdagrad(0.05, server_step=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedYogi": Case(
        FedYogi(0.05, server_step=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedAdam": Case(
        FedAdam(0.05, server_step=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        served,
        costs.trusted,
    ),
    "FedNova": Case(
        FedNova(0.02, momentum=0.5, local_steps=2, weighting="equal"),
        None,
        served,
        partial(costs.normalised, 2),
    ),
    "SCAFFOLD": Case(SCAFFOLD(0.05, local_steps=2), None, served, partial(costs.controlled, 2)),
    "FedDyn": Case(
        FedDyn(0.05, attraction=2.0, local_steps=2), None, served, partial(costs.bent, 2)
    ),
    "MIME": Case(MIME(0.05, momentum=0.5, weighting="equal"), None, served, costs.mimicked),
    "MIMELite": Case(
        MIMELite(0.05, momentum=0.5, weighting="equal"), None, served, costs.mimicked_lite
    ),
    "q-FedAvg": Case(QFedAvg(0.05, fairness=1.5, weighting="equal"), None, served, costs.fair),
    "FedPD": Case(FedPD(0.05, penalty=0.5, local_steps=2), None, served, partial(costs.dual, 2)),
    "Fed-LT": Case(FedLT(0.05, penalty=0.5, local_steps=2), None, served, partial(costs.split, 2)),
    "DP-SGD": Case(DPSGD(0.05), NoisyGradients(0.7, 0.4), stepped, partial(costs.stepped, 1)),
    "SignSGD": Case(SignSGD(0.05), None, signs, costs.server),
    "Local only": Case(LocalOnly(0.05), None, alone, costs.alone),
    "FedAvg-FT": Case(FineTunedFedAvg(FedAvg(0.05), 0.05), None, tuned, costs.tuned),
    "Ditto": Case(Ditto(FedAvg(0.05), 0.05, 1.0), None, attracted, costs.attracted),
    "pFedMe": Case(PFedMe(0.05, 1.0), None, enveloped, costs.enveloped),
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
}
PRIVATE = [label for label, case in CASES.items() if isinstance(case.privacy, Notion)]
STREAMED = [label for label in LABELS if REGISTRY[label].needs.data == "stream"]
SERVED = [label for label in LABELS if REGISTRY[label].needs.network is None]
#: With one server and a model of each client beside its own: more of them in test_personal.
PERSONAL = ["Local only", "FedAvg-FT", "Ditto", "pFedMe", "IFCA"]
#: With sizes of batches of each client: ISFedAvg, more of it in test_isfedavg.
#: With servers on a graph, or clusters: more of them in test_pgfl and test_npfl.
CLUSTERED = ["PGFL", "GFL", "ClusterFL", "PGFL, single step", "GFL, gradient", "NPFL", "NPFL-RL"]
#: Whose messages are predictions: more of them in test_model_agnostic and test_vertical.
PREDICTING = ["Model-agnostic FedRelax", "Generalised gradient", "Sharing ADMM"]
APART = (*PERSONAL, *CLUSTERED, *STREAMED, *PREDICTING, "ISFedAvg")
PLAIN = [label for label in LABELS if label not in APART]
#: Each step once: GFL and ClusterFL are PGFL with a switch.
STEPS = [label for label in LABELS if label not in ("GFL", "ClusterFL")]


def simulate(label, problem=None, network=None, private=True, metrics=()):
    algorithm, privacy, *_ = CASES[label]
    problem = make_problem() if problem is None else problem
    network = make_network() if network is None else network
    if label in CLUSTERED:
        tasks = fl.problems.Tasks(CLUSTER, 2, validation=make_problem(seed=7))
        problem = dataclasses.replace(problem, tasks=tasks)
    if label == "Sharing ADMM":
        regularised = SquaredL2(), STRENGTH
        problem = fl.problems.vertical(TABLE[:, :-1], TABLE[:, -1], COLUMNS, *regularised)
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
