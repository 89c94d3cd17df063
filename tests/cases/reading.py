"""What reads more of a network than its gradient: an instance of each algorithm, and its loop."""

from functools import partial

import jax
import numpy as np

from experiments.benchmarks import costs
from fljax._numerics import key_of
from fljax.algorithms import (
    CCVR,
    FML,
    MOON,
    FedAvg,
    FedDistill,
    FedGen,
    FedKD,
    FedLC,
    FedNTD,
    FedPAC,
    FedPHP,
    FedProto,
    FedROD,
    FedRS,
)
from fljax.privacy import CentralGaussian
from tests import small_network as small
from tests.cases.world import CLIENTS, ROUNDS, SIZES, Case, keys_of, step_of
from tests.reference import readings

SHIFT = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(small.SHIFT)])


def net_of(sizes=SIZES, seed=0):
    return readings.Net(tuple(small.samples(sizes, seed)), small.HIDDEN, small.CLASSES, SHIFT)


def make_read(seed=0, sizes=SIZES):
    """The problem of that network, which says its representation and starts at zero."""
    return small.from_zero(sizes, seed, small.HEADED_FROM_ZERO)


NET = net_of()

#: The numbers of each that its loop is told.
NUMBERS = {
    FedLC: (readings.fedlc, ("calibration",)),
    FedRS: (readings.fedrs, ("restriction",)),
    FedNTD: (readings.fedntd, ("distillation", "temperature")),
    MOON: (readings.moon, ("contrast", "temperature")),
}


def everyone(it, rounds=ROUNDS, clients=CLIENTS):
    """All clients with all of their samples in every step."""
    steps = np.broadcast_to(it.epochs if it.local_steps is None else it.local_steps, clients)
    return [{k: [None] * int(steps[k]) for k in range(clients)}] * rounds


def weights_of(it, net):
    counted = getattr(it, "weighting", None) == "samples"
    return np.array([len(y) if counted else 1.0 for _, y in net.data])


def read(it, net=NET, visits=None):
    """``[T, 1, D]``."""
    loop, numbers = NUMBERS[type(it)]
    visits = everyone(it) if visits is None else visits
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    return loop(*given, *(float(getattr(it, name)) for name in numbers))[:, None]


def by_class(it, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(it) if visits is None else visits
    of = "representation" if isinstance(it, FedProto) else "logits"
    start = np.zeros_like(SHIFT)
    return readings.class_means(net, start, step_of(it.step_size), visits, float(it.attraction), of)


def two_heads(it, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(it) if visits is None else visits
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    return readings.fedrod(*given)


def mutual(it, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(it) if visits is None else visits
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    return readings.fml(*given, float(it.supervision), float(it.shared_supervision))[0]


def mentored(it, net=NET, visits=None):
    """``[T, K, D]``."""
    return distilled(it, net, visits)[0]


def distilled(it, net=NET, visits=None):
    """Mentors, mentees, and numbers up and down."""
    visits = everyone(it) if visits is None else visits
    first, last = float(it.energy), float(it.final_energy)
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    return readings.fedkd(*given, lambda n: first + (last - first) * min(n / it.warmup, 1))


def generated(it, net=NET, visits=None, seed=1):
    """``[T, 1, D]``, of the run's own draws and its first generator."""
    return with_generators(it, net, visits, seed)[0][:, None]


def with_generators(it, net=NET, visits=None, seed=1):
    visits = everyone(it) if visits is None else visits
    longest = max((len(turns) for each in visits for turns in each.values()), default=0)
    keys = [key_of(now, "algorithm") for now in keys_of(seed, len(visits))]
    longest = max(longest, it._longest(max(len(y) for _, y in net.data)))

    def drawn(key, steps):
        first, second = jax.random.split(key)
        uniform = jax.random.uniform(first, (steps, it.virtual_samples), float)
        noise = jax.random.normal(second, (steps, it.virtual_samples, it.noise_dim), float)
        return list(zip(np.asarray(uniform), np.asarray(noise), strict=True))

    def of_round(key):
        own = [drawn(jax.random.fold_in(key, k + 1), longest) for k in range(net.clients)]
        return drawn(jax.random.fold_in(key, 0), it.generator_steps), own

    row = np.asarray(it.init(make_read(), None).generator)
    into, hidden = it.noise_dim + net.classes, it.hidden
    ends = np.cumsum([into * hidden, hidden, hidden * net.hidden])
    first, offset, second, last = np.split(row, ends)
    layers = first.reshape(into, hidden), offset, second.reshape(hidden, net.hidden), last
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    numbers = step_of(it.generator_step_size), float(it.distillation)
    return readings.fedgen(*given, *numbers, layers, [of_round(key) for key in keys])


def inherited(it, net=NET, visits=None):
    """``[T, K, D]``."""
    visits = everyone(it) if visits is None else visits
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    numbers = float(it.supervision), float(it.temperature), float(it.inheritance), it.warmup
    return readings.fedphp(*given, *numbers)[0]


def collaborating(it, net=NET, visits=None):
    """``[T, K, D]``; ``visits`` of each participant are of its head, and of its body."""
    if visits is None:
        visits = [{k: (it.head_epochs * t, t) for k, t in each.items()} for each in everyone(it)]
    given = net, np.zeros_like(SHIFT), step_of(it.step_size), weights_of(it, net), visits
    return readings.fedpac(*given, float(it.attraction))


def calibrated(it, net=NET, visits=None, seed=1):
    """``[T, 1, D]``, of the run's own draws."""
    visits = everyone(it.solver) if visits is None else visits
    shape = net.classes, it.virtual_samples, net.hidden
    keys = [key_of(now, "algorithm") for now in keys_of(seed, len(visits))]
    draws = [np.asarray(jax.random.normal(key, shape, float)) for key in keys]
    given = net, np.zeros_like(SHIFT), step_of(it.solver.step_size), weights_of(it.solver, net)
    turns = step_of(it.step_size), it.calibration_steps
    return readings.ccvr(*given, visits, *turns, draws)[:, None]


BUDGET = CentralGaussian(0.7, 0.4)
EQUAL = {"weighting": "equal", "local_steps": 2}
CASES = {
    "FedLC": Case(FedLC(0.3, calibration=0.7, **EQUAL), BUDGET, read, partial(costs.read, 2, 1)),
    "FedRS": Case(FedRS(0.3, restriction=0.4, **EQUAL), BUDGET, read, partial(costs.read, 2, 1)),
    "FedNTD": Case(
        FedNTD(0.3, distillation=0.8, temperature=2.0, **EQUAL),
        BUDGET,
        read,
        partial(costs.read, 2, 2),
    ),
    "MOON": Case(MOON(0.3, contrast=0.8, **EQUAL), BUDGET, read, partial(costs.read, 2, 1)),
    "FedProto": Case(
        FedProto(0.3, attraction=0.8, local_steps=2), None, by_class, partial(costs.read, 2, 1)
    ),
    "FedDistill": Case(
        FedDistill(0.3, attraction=0.8, local_steps=2), None, by_class, partial(costs.read, 2, 1)
    ),
    "FedROD": Case(FedROD(0.3, **EQUAL), None, two_heads, partial(costs.read, 2, 2)),
    "FML": Case(
        FML(0.3, supervision=0.7, shared_supervision=0.4, **EQUAL),
        None,
        mutual,
        partial(costs.read, 2, 2),
    ),
    "FedPHP": Case(
        FedPHP(0.3, supervision=0.7, temperature=2.0, inheritance=0.8, warmup=5, **EQUAL),
        None,
        inherited,
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
        generated,
        partial(costs.generated, 2, 3, 4),
    ),
    "FedKD": Case(
        FedKD(0.2, energy=0.5, final_energy=0.9, warmup=8, **EQUAL),
        None,
        mentored,
        partial(costs.distilled, 2),
    ),
    "FedPAC": Case(
        FedPAC(0.3, attraction=0.8, **EQUAL), None, collaborating, partial(costs.collaborating, 2)
    ),
    "CCVR": Case(
        CCVR(FedAvg(0.3, **EQUAL), 0.5, calibration_steps=5, virtual_samples=6),
        None,
        calibrated,
        partial(costs.calibrated, 5, 6),
    ),
}
