"""One server: an instance of each algorithm, and its loop."""

import dataclasses
from functools import partial

import numpy as np
import optax

from experiments.benchmarks import costs
from fljax.algorithms import (
    AFL,
    DANE,
    MIME,
    SCAFFOLD,
    ConventionalFL,
    ExactFedProx,
    FedAdagrad,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDPSGD,
    FedDyn,
    FedExP,
    FedLT,
    FedNova,
    FedOpt,
    FedPD,
    FedProx,
    FedSAM,
    FedYogi,
    GeneralizedGradient,
    HingeStaleness,
    ISFedAvg,
    MIMELite,
    OnlineFed,
    PAOFed,
    PSOFed,
    QFedAvg,
    Scaffnew,
    SharingADMM,
    SignSGD,
)
from fljax.link import Circular
from fljax.privacy import ZCDP, CentralGaussian, NoisyGradients
from tests.cases.world import (
    CLIENTS,
    COLUMNS,
    DIM,
    OBJECTIVE,
    ONE_BY_ONE,
    ROUNDS,
    SILENCE,
    SIZES,
    STRENGTH,
    TABLE,
    TEST_SET,
    THERE,
    TOGETHER,
    Case,
    counts_of,
    make_data,
    sampled,
    skipped,
    step_of,
    whole,
)
from tests.reference import (
    asynchronous,
    jung_agnostic,
    networks,
    nfl,
    online,
    private,
    server,
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


def newtonlike(it, objective=OBJECTIVE):
    return server.dane(
        objective.gradient,
        lambda k, weight, center: nfl.prox(objective, k, weight, center),
        float(it.attraction),
        float(it.step_size),
        ROUNDS,
        np.zeros((CLIENTS, DIM)),
    )


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


def weights_of(discount, lags):
    if np.ndim(discount):
        return lambda lag: float(np.asarray(discount)[lags.index(lag)])
    return lambda lag: float(discount) ** lag


def online_loop(it, environment=ONE_BY_ONE, lags=(0,), objective=None, aggregate=None):
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
        aggregate,
    )


def streamed(it):
    return online_loop(it).server[:, None]


def signs(it):
    everywhere = dataclasses.replace(ONE_BY_ONE, fresh=THERE)
    return online_loop(it, everywhere, objective=OBJECTIVE).server[:, None]


CASES = {
    "Generalized gradient": Case(
        GeneralizedGradient(0.7, TEST_SET), None, generalized, costs.generalized
    ),
    "Sharing ADMM": Case(SharingADMM(2.0), None, of_columns, costs.of_columns),
    "FL": Case(ConventionalFL(0.05), ZCDP(2.0, 0.9), conventional, costs.server),
    "FedAvg": Case(
        FedAvg(0.05, weighting="equal"), CentralGaussian(0.7, 0.4), averaged, costs.trusted
    ),
    "ISFedAvg": Case(ISFedAvg(0.05, CLIENTS, SIZES), None, drawn_whole, costs.important),
    "FedProx, exact": Case(
        ExactFedProx(0.5), None, near_the_server, costs.near_the_server, rests="alike"
    ),
    "DANE": Case(DANE(1.0, 0.8), None, newtonlike, costs.newton_stepped),
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
    "FedBuff": Case(FedBuff(0.05, buffer_size=4), None, buffered, costs.server),
    "FedAsync": Case(FedAsync(0.05, server_step_size=0.6), None, mixed_in, costs.server),
    "Online-Fed": Case(OnlineFed(0.3), None, streamed, costs.streamed),
    "PAO-Fed": Case(
        PAOFed(0.3, Circular(2), discount=0.5), None, streamed, partial(costs.portions, 2)
    ),
    "PSO-Fed": Case(PSOFed(0.3, Circular(2)), None, streamed, partial(costs.portions, 2)),
    "Scaffnew": Case(Scaffnew(0.05, 0.4), None, skipped, costs.steered),
}
