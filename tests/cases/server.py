"""One server: an instance of each algorithm, and its loop."""

import dataclasses
from functools import partial

import jax
import numpy as np
import optax

from fljax._core.prng import as_key, key_of
from fljax.algorithms import (
    ADIANA,
    AFL,
    CANITA,
    DANE,
    DASHA,
    DIANA,
    EASGD,
    EF21,
    EF21BC,
    EFSGD,
    MARINA,
    MIME,
    SCAFFOLD,
    TAMUNA,
    ConventionalFL,
    ExactFedProx,
    FedAdagrad,
    FedAdam,
    FedADMM,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedCross,
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
    FetchSGD,
    GeneralizedGradient,
    HingeStaleness,
    ISFedAvg,
    MIMELite,
    OnlineFed,
    PAOFed,
    PowerSGD,
    PSOFed,
    QFedAvg,
    Scaffnew,
    SharingADMM,
    SignSGD,
)
from fljax.link import Circular, CountSketch, Natural, Quantize, RandomK, Sign, TopK
from fljax.privacy import ZCDP, CentralGaussian, NoisyGradients
from tests.cases import costs
from tests.cases.world import (
    ALL_ACTIVE,
    CLIENTS,
    COLUMNS,
    DIM,
    FULL_PARTICIPATION,
    NO_NOISE,
    OBJECTIVE,
    ROUNDS,
    SAMPLE_STREAM,
    SIZES,
    STRENGTH,
    TABLE,
    TEST_SET,
    Case,
    coins_of,
    compression_of,
    counts_of,
    full_batches,
    keys_of,
    make_data,
    proxskip_models,
    sample_gradient_of,
    step_of,
)
from tests.reference import (
    asynchronous,
    compressed,
    jung_agnostic,
    networks,
    nfl,
    online,
    private,
    server,
)


def generalized_gradient_models(algorithm):
    arguments = float(algorithm.step_size), TEST_SET, ROUNDS, STRENGTH / CLIENTS
    models = [jung_agnostic.generalized_gradient(*data, *arguments) for data in make_data()]
    return np.stack(models, axis=1)


def sharing_admm_models(algorithm):
    blocks = [np.pad(TABLE[:, columns], ((0, 0), (0, DIM - len(columns)))) for columns in COLUMNS]
    arguments = blocks, TABLE[:, -1], float(algorithm.penalty), ROUNDS, STRENGTH / CLIENTS
    return jung_agnostic.sharing_admm(*arguments)


def fedprox_network_models(algorithm):
    arguments = make_data(), float(algorithm.step_size), ROUNDS, STRENGTH / CLIENTS
    return networks.fedprox(*arguments)[:, None]


def dane_models(algorithm, objective=OBJECTIVE):
    return server.dane(
        objective.gradient,
        lambda k, weight, center: nfl.prox(objective, k, weight, center),
        float(algorithm.attraction),
        float(algorithm.step_size),
        ROUNDS,
        np.zeros((CLIENTS, DIM)),
    )


def conventional_models(algorithm, objective=OBJECTIVE, noise=NO_NOISE):
    step = step_of(algorithm.step_size)
    return nfl.conventional_fl(objective, step, *noise, algorithm.local_steps)[:, None]


def fedavg_models(algorithm):
    full_batches = [[np.arange(size)] * algorithm.epochs for size in SIZES]
    chosen = FULL_PARTICIPATION.drawn
    visited = [full_batches] * ROUNDS
    step = step_of(algorithm.step_size)
    return nfl.fedavg(OBJECTIVE, step, chosen, visited, algorithm.weighting)[:, None]


def full_participation_world(algorithm, objective=OBJECTIVE, rounds=ROUNDS):
    """All clients with all of their samples in every step, for the loops of one server."""
    steps = algorithm.epochs if algorithm.local_steps is None else algorithm.local_steps
    counts = counts_of(algorithm, objective)
    visits = {k: [None] * int(np.broadcast_to(steps, CLIENTS)[k]) for k in range(CLIENTS)}
    return server.World(
        lambda k, w, rows: objective.gradient(k, w),
        np.zeros(objective.dim),
        counts,
        [visits] * rounds,
        objective.value,
    )


def server_loop(algorithm, world=None, talks=None):
    """The loop of an algorithm with one server and local steps."""
    world = full_participation_world(algorithm) if world is None else world
    return SERVER_LOOPS[type(algorithm)](algorithm, world, talks)[:, None]


def server_step_size(algorithm):
    """ServerOpt of the loops."""
    if isinstance(algorithm, FedOpt):
        return lambda n, x, delta: x + 0.7 * delta  # the only one in these tests
    if isinstance(algorithm, FedAvgM):
        return server.HeavyBall(float(algorithm.momentum))
    kind = type(algorithm).__name__.removeprefix("Fed").lower()
    numbers = float(algorithm.momentum), float(algorithm.adaptivity)
    return server.Adaptive(
        kind, step_of(algorithm.server_step_size), *numbers, float(getattr(algorithm, "decay", 0))
    )


def fedopt_loop(algorithm, world, talks):
    return server.fedopt(world, step_of(algorithm.step_size), server_step_size(algorithm))


def mime_loop(algorithm, world, talks):
    momentum = 0.0 if algorithm.momentum is None else float(algorithm.momentum)
    return server.mime(
        world, step_of(algorithm.step_size), momentum, isinstance(algorithm, MIMELite)
    )


def qfedavg_loop(algorithm, world, talks):
    curvature = None if algorithm.curvature is None else float(algorithm.curvature)
    return server.qfedavg(world, step_of(algorithm.step_size), float(algorithm.fairness), curvature)


SERVER_LOOPS = dict.fromkeys((FedOpt, FedAvgM, FedAdagrad, FedYogi, FedAdam), fedopt_loop) | {
    FedProx: lambda algorithm, world, _: server.fedprox(
        world, step_of(algorithm.step_size), float(algorithm.attraction)
    ),
    SCAFFOLD: lambda algorithm, world, _: server.scaffold(
        world,
        step_of(algorithm.step_size),
        float(algorithm.server_step_size),
        "I" if algorithm.variate == "gradient" else "II",
    ),
    FedNova: lambda algorithm, world, _: server.fednova(
        world, step_of(algorithm.step_size), float(algorithm.momentum), float(algorithm.attraction)
    ),
    FedDyn: lambda algorithm, world, _: server.feddyn(
        world, step_of(algorithm.step_size), float(algorithm.attraction)
    ),
    MIME: mime_loop,
    MIMELite: mime_loop,
    QFedAvg: qfedavg_loop,
    AFL: lambda algorithm, world, _: server.afl(
        world, step_of(algorithm.step_size), step_of(algorithm.mixture_step_size)
    ),
    FedExP: lambda algorithm, world, _: server.fedexp(
        world, step_of(algorithm.step_size), float(algorithm.damping), algorithm.averaged
    ),
    FedSAM: lambda algorithm, world, _: server.fedsam(
        world, step_of(algorithm.step_size), float(algorithm.radius)
    ),
    FedPD: lambda algorithm, world, talks: server.fedpd(
        world, step_of(algorithm.step_size), float(algorithm.penalty), talks
    ),
    FedLT: lambda algorithm, world, _: server.fedlt(
        world, step_of(algorithm.step_size), float(algorithm.penalty)
    ),
    FedADMM: lambda algorithm, world, _: server.fedadmm(
        world,
        step_of(algorithm.step_size),
        float(algorithm.penalty),
        None if algorithm.server_step_size is None else float(algorithm.server_step_size),
        algorithm.beginning == "server",
    ),
    EASGD: lambda algorithm, world, _: server.easgd(
        world, step_of(algorithm.step_size), float(algorithm.moving_rate)
    ),
}


def dealt_models(algorithm, clients, rounds, seed=1):
    """The model that each participant of FedCross receives, round by round, as in the run."""
    result = []
    count = algorithm.clients_per_round or clients
    for n, key in enumerate(keys_of(seed, rounds), 1):
        chosen = algorithm.selection.choose(
            key_of(key, "participation"), np.ones(clients, bool), None, n
        )
        order = np.asarray(jax.random.permutation(key_of(key, "algorithm"), count))
        result.append(dict(zip(np.asarray(chosen.numbers).tolist(), order.tolist(), strict=True)))
    return result


SERVER_LOOPS |= {
    FedCross: lambda algorithm, world, _: server.fedcross(
        world,
        step_of(algorithm.step_size),
        float(algorithm.retention),
        algorithm.partner,
        dealt_models(algorithm, world.clients, len(world.visits)),
        algorithm.clients_per_round or world.clients,
    )
}


def compressed_world(algorithm, objective=OBJECTIVE, rounds=ROUNDS, active=None, lost=()):
    """All clients with all samples in every round, unless ``active`` lists the participants."""
    return compressed.World(
        lambda n, k, w: objective.gradient(k, w),
        compression_of(getattr(algorithm, "compression", TopK(1)), clients=objective.clients),
        np.zeros(objective.dim),
        objective.clients,
        [range(objective.clients)] * rounds if active is None else active,
        frozenset(lost),
    )


COMPRESSED_LOOPS = {
    EFSGD: lambda algorithm, world, step: compressed.error_feedback(world, step),
    EF21: lambda algorithm, world, step: compressed.ef21(world, step),
    EF21BC: lambda algorithm, world, step: compressed.ef21_bc(
        world, step, lambda n, v: compression_of(algorithm.downlink)(n, CLIENTS, v)
    ),
    DIANA: lambda algorithm, world, step: compressed.diana(
        world,
        step,
        1 / (1 + algorithm.compression.variance(len(world.start)))
        if algorithm.memory_step_size is None
        else float(algorithm.memory_step_size),
        float(algorithm.momentum),
    ),
    MARINA: lambda algorithm, world, step: compressed.marina(
        world, step, coins_of(float(algorithm.probability), rounds=len(world.active))
    ),
    DASHA: lambda algorithm, world, step: compressed.dasha(
        world,
        step,
        1 / (1 + 2 * algorithm.compression.variance(len(world.start)))
        if algorithm.estimate_momentum is None
        else float(algorithm.estimate_momentum),
    ),
}


def orders_of(rows, seed=1, rounds=ROUNDS):
    """TAMUNA's random order of the columns of its pattern, round by round."""
    keys = [key_of(now, "algorithm") for now in keys_of(seed, rounds)]
    return [np.asarray(jax.random.permutation(key, rows)) for key in keys]


COMPRESSED_LOOPS |= {
    ADIANA: lambda algorithm, world, step: compressed.adiana(
        world,
        step,
        float(algorithm.convexity),
        float(algorithm.probability),
        1 / (1 + algorithm.compression.variance(len(world.start))),
        coins_of(float(algorithm.probability), rounds=len(world.active)),
    ),
    PowerSGD: lambda algorithm, world, step: compressed.power_sgd(
        world, step, [world.start.shape], algorithm.rank, float(algorithm.momentum), None
    ),
    TAMUNA: lambda algorithm, world, step: compressed.tamuna(
        world,
        step,
        algorithm.local_steps or algorithm.epochs,
        algorithm.sparsity,
        control_step_of(algorithm),
        orders_of(len(world.active[0]), rounds=len(world.active)),
    ),
}


def canita_loop(algorithm, world, step):
    variance = algorithm.compression.variance(len(world.start))
    if algorithm.probability is None:
        extra = min(variance, (variance * (1 + variance) ** 2 / world.clients) ** 0.5)
        probability = 1 / (1 + extra)
    else:
        probability = float(algorithm.probability)
        extra = 1 / probability - 1
    share = algorithm.fast_share
    return compressed.canita(
        world,
        step,
        (lambda n: 3 * (1 + extra) / (n - 1 + 9 * (1 + extra + variance)))
        if share is None
        else step_of(share),
        probability,
        1 / (1 + variance)
        if algorithm.memory_step_size is None
        else float(algorithm.memory_step_size),
        coins_of(probability, rounds=len(world.active)),
    )


def fetch_sgd_loop(algorithm, world, step):
    key = key_of(jax.random.fold_in(as_key(1), 0), "algorithm")
    cells, signs = map(np.asarray, algorithm.sketch.draw(key, len(world.start)))
    return compressed.fetch_sgd(
        world,
        step,
        cells,
        signs,
        algorithm.sketch.columns,
        algorithm.count,
        float(algorithm.momentum),
        algorithm.zeroing,
    )


COMPRESSED_LOOPS |= {CANITA: canita_loop, FetchSGD: fetch_sgd_loop}


def control_step_of(algorithm):
    """TAMUNA's step of the control variates."""
    if algorithm.control_step_size is not None:
        return float(algorithm.control_step_size)
    s = algorithm.sparsity
    largest = CLIENTS * (s - 1) / (s * (CLIENTS - 1))
    return largest / (algorithm.local_steps or algorithm.epochs)


def compressed_loop(algorithm, objective=OBJECTIVE):
    """The loop of an algorithm that compresses its messages: the server's models, [T, 1, D]."""
    world = compressed_world(algorithm, objective)
    loop = COMPRESSED_LOOPS[type(algorithm)]
    return loop(algorithm, world, step_of(algorithm.step_size))[0][:, None]


def isfedavg_models(algorithm):
    """All clients and all samples at a time: probabilities have no say."""
    return fedavg_models(FedAvg(algorithm.step_size, weighting="equal"))


def dp_sgd_models(algorithm):
    everyone = [range(CLIENTS)] * ROUNDS
    full_batches = [[[range(size)] * algorithm.local_steps for size in SIZES]] * ROUNDS
    none = np.zeros((ROUNDS, CLIENTS, algorithm.local_steps, DIM))
    step = float(algorithm.step_size.value)
    return private.dp_sgd(OBJECTIVE, step, everyone, full_batches, SIZES, 0.0, none)[:, None]


def staleness_of(rule):
    if isinstance(rule, HingeStaleness):
        return asynchronous.hinge(float(rule.slope), float(rule.patience))
    return asynchronous.polynomial(float(rule.power))


def fedbuff_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    arguments = world, work, np.zeros(objective.dim), step_of(algorithm.step_size)
    numbers = (
        float(algorithm.buffer_size),
        float(algorithm.server_step_size),
        staleness_of(algorithm.staleness),
    )
    return asynchronous.fedbuff(sample_gradient_of(objective), *arguments, *numbers)[:, None]


def fedasync_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    arguments = world, work, np.zeros(objective.dim), step_of(algorithm.step_size)
    numbers = (
        float(algorithm.server_step_size),
        staleness_of(algorithm.staleness),
        float(algorithm.attraction),
    )
    return asynchronous.fedasync(sample_gradient_of(objective), *arguments, *numbers)[:, None]


def weights_of(discount, lags):
    if np.ndim(discount):
        return lambda lag: float(np.asarray(discount)[lags.index(lag)])
    return lambda lag: float(discount) ** lag


def online_loop(algorithm, environment=SAMPLE_STREAM, lags=(0,), objective=None, aggregate=None):
    """The complete record of the loop under the algorithm's settings."""
    step = float(algorithm.step_size.value)
    longest = lags[-1]
    if isinstance(algorithm, OnlineFed):
        return online.online_fed(environment, step, algorithm.aggregation, longest=longest)
    if isinstance(algorithm, PSOFed):
        sharing = algorithm.sharing
        return online.pso_fed(
            environment, step, sharing.size, bool(sharing.coordinated), longest=longest
        )
    if isinstance(algorithm, SignSGD):
        vote = "majority" if algorithm.vote else "mean"
        return online.sign_sgd(environment, step, vote, longest=longest, objective=objective)
    return online.pao_fed(
        environment,
        step,
        algorithm.sharing.size,
        bool(algorithm.sharing.coordinated),
        bool(algorithm.send_next),
        weights_of(algorithm.discount, lags),
        "freshest" if algorithm.freshest and algorithm.aggregation == "per delay" else "none",
        algorithm.autonomous,
        algorithm.received,
        algorithm.aggregation,
        longest,
        aggregate,
    )


def online_models(algorithm):
    return online_loop(algorithm).server[:, None]


def sign_models(algorithm):
    everywhere = dataclasses.replace(SAMPLE_STREAM, fresh=ALL_ACTIVE)
    return online_loop(algorithm, everywhere, objective=OBJECTIVE).server[:, None]


CASES = {
    "Generalized gradient": Case(
        GeneralizedGradient(0.7, TEST_SET), None, generalized_gradient_models, costs.generalized
    ),
    "Sharing ADMM": Case(SharingADMM(2.0), None, sharing_admm_models, costs.of_columns),
    "FL": Case(ConventionalFL(0.05), ZCDP(2.0, 0.9), conventional_models, costs.server),
    "FedAvg": Case(
        FedAvg(0.05, weighting="equal"), CentralGaussian(0.7, 0.4), fedavg_models, costs.trusted
    ),
    "ISFedAvg": Case(ISFedAvg(0.05, CLIENTS, SIZES), None, isfedavg_models, costs.important),
    "FedProx, exact": Case(
        ExactFedProx(0.5), None, fedprox_network_models, costs.near_the_server, rests="alike"
    ),
    "DANE": Case(DANE(1.0, 0.8), None, dane_models, costs.newton_stepped, sent=(4, 4)),
    "FedProx": Case(
        FedProx(0.05, attraction=0.5, local_steps=2, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        partial(costs.trusted_steps, 2),
        rests="alike",
    ),
    "FedOpt": Case(
        FedOpt(0.05, server=optax.sgd(0.7), weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.trusted,
    ),
    "FedAvgM": Case(
        FedAvgM(0.02, momentum=0.5, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.trusted,
    ),
    "FedAdagrad": Case(
        FedAdagrad(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.trusted,
    ),
    "FedYogi": Case(
        FedYogi(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.trusted,
    ),
    "FedAdam": Case(
        FedAdam(0.05, server_step_size=0.1, adaptivity=0.01, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.trusted,
        rests="never",
    ),
    "FedNova": Case(
        FedNova(0.02, momentum=0.5, local_steps=2, weighting="equal"),
        None,
        server_loop,
        partial(costs.normalized, 2),
        rests="alike",
        sent=(2, 2 + 1 / DIM),
    ),
    "SCAFFOLD": Case(
        SCAFFOLD(0.05, local_steps=2), None, server_loop, partial(costs.controlled, 2), sent=(2, 4)
    ),
    "FedDyn": Case(
        FedDyn(0.05, attraction=2.0, local_steps=2), None, server_loop, partial(costs.bent, 2)
    ),
    "MIME": Case(
        MIME(0.05, momentum=0.5, weighting="equal"), None, server_loop, costs.mimicked, sent=(4, 5)
    ),
    "MIMELite": Case(
        MIMELite(0.05, momentum=0.5, weighting="equal"),
        None,
        server_loop,
        costs.mimicked_lite,
        sent=(2, 4),
    ),
    "q-FedAvg": Case(
        QFedAvg(0.05, fairness=1.5, weighting="equal"),
        None,
        server_loop,
        costs.fair,
        rests="alike",
        sent=(2, 2 + 1 / DIM),
    ),
    "AFL": Case(
        AFL(0.05, mixture_step_size=0.1),
        None,
        server_loop,
        costs.agnostic,
        rests="alike",
        sent=(2, 2 + 1 / DIM),
    ),
    "FedExP": Case(
        FedExP(0.05, damping=0.01), None, server_loop, costs.extrapolated, sent=(2, 2 + 1 / DIM)
    ),
    "FedSAM": Case(
        FedSAM(0.05, radius=0.2, weighting="equal"),
        CentralGaussian(0.7, 0.4),
        server_loop,
        costs.sharpness_aware,
        rests="never",
    ),
    "FedPD": Case(
        FedPD(0.05, penalty=0.5, local_steps=2), None, server_loop, partial(costs.dual, 2)
    ),
    "Fed-LT": Case(
        FedLT(0.05, penalty=0.5, local_steps=2), None, server_loop, partial(costs.split, 2)
    ),
    "FedADMM": Case(
        FedADMM(0.05, penalty=2.0, local_steps=2), None, server_loop, partial(costs.augmented, 2)
    ),
    "EASGD": Case(
        EASGD(0.05, moving_rate=0.15, local_steps=2),
        None,
        server_loop,
        partial(costs.elastic, 2),
        rests="alike",
    ),
    "FedCross": Case(
        FedCross(0.05, retention=0.8), None, server_loop, costs.crossed, rests="alike"
    ),
    "DP-SGD": Case(
        FedDPSGD(0.05), NoisyGradients(0.7, 0.4), dp_sgd_models, partial(costs.stepped, 1)
    ),
    "SignSGD": Case(SignSGD(0.05), None, sign_models, costs.server, rests="never"),
    "EF-SGD": Case(
        EFSGD(0.05, compression=Sign()),
        None,
        compressed_loop,
        costs.estimating,
        rests="alike",
    ),
    "EF21": Case(EF21(0.05, compression=TopK(2)), None, compressed_loop, costs.estimating),
    "EF21-BC": Case(
        EF21BC(0.05, compression=Sign(), downlink=Natural()),
        None,
        compressed_loop,
        costs.estimating,
    ),
    "DIANA": Case(
        DIANA(0.05, compression=Quantize(3), momentum=0.5), None, compressed_loop, costs.estimating
    ),
    "MARINA": Case(
        MARINA(0.05, compression=RandomK(2), probability=0.3),
        None,
        compressed_loop,
        costs.estimating,
    ),
    "DASHA": Case(
        DASHA(0.05, compression=RandomK(2)), None, compressed_loop, costs.estimating_twice
    ),
    "ADIANA": Case(
        ADIANA(0.05, compression=RandomK(2), convexity=0.5, probability=0.4),
        None,
        compressed_loop,
        costs.estimating_twice,
    ),
    "CANITA": Case(
        CANITA(0.05, compression=RandomK(2)), None, compressed_loop, costs.estimating_twice
    ),
    "FetchSGD": Case(
        FetchSGD(0.05, sketch=CountSketch(3, 2), count=2, momentum=0.5),
        None,
        compressed_loop,
        costs.server,
        sent=(2, 3),
    ),
    "PowerSGD": Case(PowerSGD(0.05, rank=1, momentum=0.5), None, compressed_loop, costs.estimating),
    "TAMUNA": Case(
        TAMUNA(0.05, sparsity=3, local_steps=2),
        None,
        compressed_loop,
        partial(costs.controlled, 2),
    ),
    "FedBuff": Case(FedBuff(0.05, buffer_size=4), None, fedbuff_models, costs.server),
    "FedAsync": Case(FedAsync(0.05, server_step_size=0.6), None, fedasync_models, costs.server),
    "Online-Fed": Case(OnlineFed(0.3), None, online_models, costs.streamed),
    "PAO-Fed": Case(
        PAOFed(0.3, Circular(2), discount=0.5), None, online_models, partial(costs.portions, 2)
    ),
    "PSO-Fed": Case(PSOFed(0.3, Circular(2)), None, online_models, partial(costs.portions, 2)),
    "Scaffnew": Case(Scaffnew(0.05, 0.4), None, proxskip_models, costs.steered),
}
