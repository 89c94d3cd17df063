"""What reads more of a network than its gradient: an instance of each algorithm, and its loop."""

from functools import partial

import jax
import numpy as np

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import (
    CCVR,
    FML,
    GPFL,
    MOON,
    FedAS,
    FedAvg,
    FedDF,
    FedDistill,
    FedGen,
    FedKD,
    FedLC,
    FedMD,
    FedNTD,
    FedPAC,
    FedPHP,
    FedProto,
    FedROD,
    FedRS,
    FjORD,
    FLoRA,
    HeteroFL,
    KNNPer,
)
from fljax.algorithms.public_points import passes_over
from fljax.privacy import CentralGaussian
from tests.cases import costs
from tests.cases.world import CLIENTS, ROUNDS, SIZES, Case, keys_of, step_of
from tests.reference import readings, several
from tests.support import small_network as small

SHIFT = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(small.SHIFT)])


def net_of(sizes=SIZES, seed=0):
    return readings.Net(tuple(small.samples(sizes, seed)), small.HIDDEN, small.CLASSES, SHIFT)


def make_read(seed=0, sizes=SIZES, label=""):
    """The problem of that network, which says its representation and starts at zero; for FLoRA one
    of a single layer with adapters.
    """
    if label == "FLoRA":
        data = small.samples(sizes, seed)
        loss = fl.problems.Softmax(small.CLASSES)
        return fl.problems.Model.from_clients(ADAPTED, jax.random.key(seed), data, loss)
    return small.from_zero(sizes, seed, small.HEADED_FROM_ZERO)


NET = net_of()

#: A layer with adapters of rank 2, times two.
ADAPTED = fl.models.lora(fl.models.mlp(small.CLASSES, hidden=[]), rank=2, scale=2.0)

#: The numeric fields that the reference loop of each algorithm takes.
NUMBERS = {
    FedLC: (readings.fedlc, ("calibration",)),
    FedRS: (readings.fedrs, ("restriction",)),
    FedNTD: (readings.fedntd, ("distillation", "temperature")),
    MOON: (readings.moon, ("contrast", "temperature")),
}


def everyone(algorithm, rounds=ROUNDS, clients=CLIENTS):
    """All clients with all of their samples in every step."""
    steps = np.broadcast_to(
        algorithm.epochs if algorithm.local_steps is None else algorithm.local_steps, clients
    )
    return [{k: [None] * int(steps[k]) for k in range(clients)}] * rounds


def weights_of(algorithm, net):
    counted = getattr(algorithm, "weighting", None) == "samples"
    return np.array([len(y) if counted else 1.0 for _, y in net.data])


def averaged_models(algorithm, net=NET, visits=None):
    """``[T, 1, D]``."""
    loop, numbers = NUMBERS[type(algorithm)]
    visits = everyone(algorithm) if visits is None else visits
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    return loop(*arguments, *(float(getattr(algorithm, name)) for name in numbers))[:, None]


def class_mean_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    of = "representation" if isinstance(algorithm, FedProto) else "logits"
    start = np.zeros_like(SHIFT)
    return readings.class_means(
        net, start, step_of(algorithm.step_size), visits, float(algorithm.attraction), of
    )


def fedrod_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    return readings.fedrod(*arguments)


def fml_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    return readings.fml(
        *arguments, float(algorithm.supervision), float(algorithm.shared_supervision)
    )[0]


def fedkd_mentors(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    return fedkd_run(algorithm, net, visits)[0]


def fedkd_run(algorithm, net=NET, visits=None):
    """Mentors, mentees, and numbers up and down."""
    visits = everyone(algorithm) if visits is None else visits
    first = float(algorithm.energy)
    last = float(algorithm.final_energy)
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    return readings.fedkd(
        *arguments, lambda n: first + (last - first) * min(n / algorithm.warmup, 1)
    )


def fedgen_models(algorithm, net=NET, visits=None, seed=1):
    """``[T, 1, D]``, of the run's own draws and its first generator."""
    return fedgen_run(algorithm, net, visits, seed)[0][:, None]


def fedgen_run(algorithm, net=NET, visits=None, seed=1):
    visits = everyone(algorithm) if visits is None else visits
    longest = max(
        (len(batches) for by_client in visits for batches in by_client.values()), default=0
    )
    keys = [key_of(now, "algorithm") for now in keys_of(seed, len(visits))]
    longest = max(longest, algorithm._longest(max(len(y) for _, y in net.data)))

    def drawn(key, steps):
        first, second = jax.random.split(key)
        uniform = jax.random.uniform(first, (steps, algorithm.virtual_samples), float)
        noise = jax.random.normal(
            second, (steps, algorithm.virtual_samples, algorithm.noise_dim), float
        )
        return list(zip(np.asarray(uniform), np.asarray(noise), strict=True))

    def of_round(key):
        clients = [drawn(jax.random.fold_in(key, k + 1), longest) for k in range(net.clients)]
        return drawn(jax.random.fold_in(key, 0), algorithm.generator_steps), clients

    row = np.asarray(algorithm.init(make_read(), None).generator)
    into = algorithm.noise_dim + net.classes
    hidden = algorithm.hidden
    ends = np.cumsum([into * hidden, hidden, hidden * net.hidden])
    first, offset, second, last = np.split(row, ends)
    layers = first.reshape(into, hidden), offset, second.reshape(hidden, net.hidden), last
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    numbers = step_of(algorithm.generator_step_size), float(algorithm.distillation)
    return readings.fedgen(*arguments, *numbers, layers, [of_round(key) for key in keys])


def fedphp_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    numbers = (
        float(algorithm.supervision),
        float(algorithm.temperature),
        float(algorithm.inheritance),
        algorithm.warmup,
    )
    return readings.fedphp(*arguments, *numbers)[0]


def fedpac_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``; ``visits`` of each participant are of its head, and of its body."""
    if visits is None:
        visits = [
            {k: (algorithm.head_epochs * t, t) for k, t in by_client.items()}
            for by_client in everyone(algorithm)
        ]
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
    )
    return readings.fedpac(*arguments, float(algorithm.attraction))


def fedas_run(algorithm, net=NET, visits=None):
    """The clients' models and the server's bodies; ``visits`` of each participant are of its
    alignment, and of its training.
    """
    if visits is None:
        visits = [
            {k: (algorithm.alignment_epochs * t, t) for k, t in by_client.items()}
            for by_client in everyone(algorithm)
        ]
    step = step_of(algorithm.step_size)
    start = np.zeros_like(SHIFT)
    weights = weights_of(algorithm, net)
    return readings.fedas(net, start, step, weights, visits, step_of(algorithm.alignment_step_size))


def fedas_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    return fedas_run(algorithm, net, visits)[0]


def gpfl_run(algorithm, net=NET, visits=None):
    """The clients' models, and the embeddings with the valve."""
    visits = everyone(algorithm) if visits is None else visits
    start = np.zeros_like(SHIFT)
    modules = np.asarray(algorithm.init(make_read(), None).modules)
    step = step_of(algorithm.step_size)
    weights = weights_of(algorithm, net)
    numbers = float(algorithm.guidance), float(algorithm.weight_decay)
    return readings.gpfl(net, start, modules, step, weights, visits, *numbers)


def gpfl_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    return gpfl_run(algorithm, net, visits)[0]


def ccvr_models(algorithm, net=NET, visits=None, seed=1):
    """``[T, 1, D]``, of the run's own draws."""
    visits = everyone(algorithm.solver) if visits is None else visits
    shape = net.classes, algorithm.virtual_samples, net.hidden
    keys = [key_of(now, "algorithm") for now in keys_of(seed, len(visits))]
    draws = [np.asarray(jax.random.normal(key, shape, float)) for key in keys]
    arguments = (
        net,
        np.zeros_like(SHIFT),
        step_of(algorithm.solver.step_size),
        weights_of(algorithm.solver, net),
    )
    calibration = step_of(algorithm.step_size), algorithm.calibration_steps
    return readings.ccvr(*arguments, visits, *calibration, draws)[:, None]


def knn_per_models(algorithm, net=NET, visits=None):
    """``[T, 1, D]``, of federated averaging alone."""
    visits = everyone(algorithm.solver) if visits is None else visits

    def along_loss(k, w, x, y, _):
        return net.back(w, x, readings.wrong_by(net.logits(w, x), y))

    step = step_of(algorithm.solver.step_size)
    weights = weights_of(algorithm.solver, net)
    return readings.averaging(net, np.zeros_like(SHIFT), step, weights, visits, along_loss)[:, None]


#: Samples that all have in common.
PUBLIC = np.random.default_rng(9).normal(size=(7, 3))


def algorithm_keys(rounds=ROUNDS, seed=1):
    return [key_of(key, "algorithm") for key in keys_of(seed, rounds)]


def public_batches(key, count, size, steps):
    """The rows of each step, without what fills up the last batch of a pass."""
    return [rows[rows < count] for rows in np.asarray(passes_over(key, count, size, steps))]


def same_width_models(algorithm, net=NET, visits=None):
    """``[T, 1, D]``, of clients that all have the whole network."""
    visits = everyone(algorithm) if visits is None else visits
    step = step_of(algorithm.step_size)
    weights = weights_of(algorithm, net)
    hidden = [net.hidden] * net.clients
    return several.heterofl(net, np.zeros_like(SHIFT), step, weights, visits, hidden)[:, None]


def fedmd_draws(algorithm):
    """The public samples of each round, and the batches of the steps on them."""
    chosen = []
    batches = []
    count = algorithm._count
    size = algorithm.digest_batch or count
    for key in algorithm_keys():
        draw, digest = jax.random.split(key)
        everything = np.arange(len(PUBLIC))
        order = np.asarray(jax.random.permutation(draw, len(PUBLIC)))[:count]
        chosen.append(everything if algorithm.public_samples is None else order)
        steps = algorithm.digest_epochs * -(-count // size)
        batches.append(public_batches(digest, count, size, steps))
    return chosen, batches


def fedmd_models(algorithm, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    rate = algorithm.digest_step_size or algorithm.step_size
    history = several.fedmd(
        [net] * net.clients,
        [np.zeros_like(SHIFT)] * net.clients,
        step_of(algorithm.step_size),
        visits,
        PUBLIC,
        *fedmd_draws(algorithm),
        step_of(rate),
        algorithm.distance,
    )
    return np.array(history)


def flora_models(algorithm, visits=None, sizes=SIZES):
    """``[T, 1, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    problem = make_read(sizes=sizes, label="FLoRA")
    start = problem.parameters(problem.initial)
    clients = np.arange(len(sizes))
    draws = []
    for key in algorithm_keys():
        keys = [jax.random.fold_in(key, int(k)) for k in clients]
        pairs = [ADAPTED.begun(key, start)["lora"]["layer_0/kernel"] for key in keys]
        draws.append([np.asarray(pair["a"]) for pair in pairs])
    counted = getattr(algorithm, "weighting", None) == "samples"
    weights = np.array(sizes) if counted else np.ones(len(sizes))
    kernels = several.flora(
        small.samples(sizes),
        np.asarray(start["base"]["layer_0"]["kernel"]),
        np.asarray(start["base"]["layer_0"]["bias"]),
        ADAPTED.scale,
        step_of(algorithm.step_size),
        weights,
        visits,
        draws,
    )
    history = []
    for kernel in kernels:
        after = {"layer_0": {"kernel": kernel, "bias": start["base"]["layer_0"]["bias"]}}
        history.append(problem.layout.row({"base": after, "lora": start["lora"]}))
    return np.array(history)[:, None]


def feddf_batches(algorithm):
    steps = algorithm.distillation_steps
    return [
        public_batches(key, len(PUBLIC), algorithm.public_batch, steps) for key in algorithm_keys()
    ]


def feddf_models(algorithm, net=NET, visits=None):
    """``[T, 1, D]``."""
    visits = everyone(algorithm) if visits is None else visits
    history = several.feddf(
        [net],
        [0] * net.clients,
        [np.zeros_like(SHIFT)],
        step_of(algorithm.step_size),
        weights_of(algorithm, net),
        visits,
        PUBLIC,
        feddf_batches(algorithm),
        step_of(algorithm.distillation_step_size),
        float(algorithm.temperature),
    )
    return np.array(history)


BUDGET = CentralGaussian(0.7, 0.4)
EQUAL = {"weighting": "equal", "local_steps": 2}
CASES = {
    "FedLC": Case(
        FedLC(0.3, calibration=0.7, **EQUAL), BUDGET, averaged_models, partial(costs.read, 2, 1)
    ),
    "FedRS": Case(
        FedRS(0.3, restriction=0.4, **EQUAL), BUDGET, averaged_models, partial(costs.read, 2, 1)
    ),
    "FedNTD": Case(
        FedNTD(0.3, distillation=0.8, temperature=2.0, **EQUAL),
        BUDGET,
        averaged_models,
        partial(costs.read, 2, 2),
    ),
    "MOON": Case(
        MOON(0.3, contrast=0.8, **EQUAL), BUDGET, averaged_models, partial(costs.read, 2, 1)
    ),
    "FedProto": Case(
        FedProto(0.3, attraction=0.8, local_steps=2),
        None,
        class_mean_models,
        partial(costs.read, 2, 1),
    ),
    "FedDistill": Case(
        FedDistill(0.3, attraction=0.8, local_steps=2),
        None,
        class_mean_models,
        partial(costs.read, 2, 1),
    ),
    "FedROD": Case(FedROD(0.3, **EQUAL), None, fedrod_models, partial(costs.read, 2, 2)),
    "FML": Case(
        FML(0.3, supervision=0.7, shared_supervision=0.4, **EQUAL),
        None,
        fml_models,
        partial(costs.read, 2, 2),
    ),
    "FedPHP": Case(
        FedPHP(0.3, supervision=0.7, temperature=2.0, inheritance=0.8, warmup=5, **EQUAL),
        None,
        fedphp_models,
        partial(costs.read, 2, 2),
    ),
    "FedGen": Case(
        FedGen(
            0.3,
            generator_step_size=0.3,
            generator_steps=3,
            virtual_samples=4,
            noise_dim=2,
            hidden=5,
            **EQUAL,
        ),
        None,
        fedgen_models,
        partial(costs.generated, 2, 3, 4),
    ),
    "FedKD": Case(
        FedKD(0.2, energy=0.5, final_energy=0.9, warmup=8, **EQUAL),
        None,
        fedkd_mentors,
        partial(costs.distilled, 2),
    ),
    "HeteroFL": Case(HeteroFL(0.3, **EQUAL), None, same_width_models, partial(costs.read, 2, 1)),
    "FjORD": Case(FjORD(0.3, **EQUAL), None, same_width_models, partial(costs.read, 2, 1)),
    # The subgradient of an absolute distance that is zero but for rounding is arbitrary.
    "FedMD": Case(
        FedMD(
            0.3,
            local_steps=2,
            public=PUBLIC,
            public_samples=5,
            digest_batch=2,
            distance="squared",
        ),
        None,
        fedmd_models,
        partial(costs.read, 2, 1),
    ),
    "FedDF": Case(
        FedDF(
            0.3,
            public=PUBLIC,
            public_batch=3,
            distillation_step_size=0.2,
            distillation_steps=4,
            **EQUAL,
        ),
        None,
        feddf_models,
        partial(costs.read, 2, 1),
    ),
    "FLoRA": Case(
        FLoRA(0.3, **EQUAL), None, flora_models, partial(costs.read, 2, 1), rests="never"
    ),
    "FedPAC": Case(
        FedPAC(0.3, attraction=0.8, **EQUAL), None, fedpac_models, partial(costs.collaborating, 2)
    ),
    "FedAS": Case(
        FedAS(0.3, alignment_step_size=0.5, **EQUAL), None, fedas_models, partial(costs.read, 4, 1)
    ),
    "GPFL": Case(
        GPFL(0.3, guidance=0.2, weight_decay=0.05, **EQUAL),
        None,
        gpfl_models,
        partial(costs.read, 2, 2),
    ),
    "kNN-Per": Case(
        KNNPer(FedAvg(0.3, **EQUAL), neighbors=3), None, knn_per_models, partial(costs.read, 1, 1)
    ),
    "CCVR": Case(
        CCVR(FedAvg(0.3, **EQUAL), 0.5, calibration_steps=5, virtual_samples=6),
        None,
        ccvr_models,
        partial(costs.calibrated, 5, 6),
    ),
}
