"""A model of each client: an instance of each algorithm, and its loop."""

import jax
import numpy as np

from experiments.benchmarks import costs
from fljax._numerics import key_of
from fljax.algorithms import (
    APFL,
    APPLE,
    IFCA,
    Ditto,
    FedALA,
    FedAMP,
    FedAvg,
    FedBABU,
    FedBN,
    FedFomo,
    FedPer,
    FedRep,
    FineTunedFedAvg,
    LGFedAvg,
    LocalOnly,
    PerFedAvg,
    PFedMe,
    SuPerFed,
)
from fljax.participation import subset
from tests.cases.world import (
    OBJECTIVE,
    TOGETHER,
    Case,
    counts_of,
    keys_of,
    make_problem,
    sampled,
    step_of,
    whole,
)
from tests.reference import (
    adapted,
    personal,
)


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


def related(it, objective=OBJECTIVE, world=TOGETHER, work=None, arrives=None, start=None):
    clients = objective.clients
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    given = world, work, counts_of(it, objective), start, step_of(it.step_size)
    numbers = step_of(it.relationship_step_size), float(it.attraction), it.annealing, arrives
    return adapted.apple(sampled(objective), *given, *numbers)[0].personal


def first_order(
    it, objective=OBJECTIVE, world=TOGETHER, work=None, arrives=None, start=None, value=None, seed=1
):
    clients = objective.clients
    work = whole(it.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    draws = None
    if it.downloads is not None:
        keys = [key_of(now, "algorithm") for now in keys_of(seed, world.rounds)]
        draws = [[explored(it, key, k, clients) for k in range(clients)] for key in keys]
    value = objective.value if value is None else value
    given = value, world, work, start, step_of(it.step_size), arrives
    return adapted.fedfomo(sampled(objective), *given, it.downloads, draws)[0].personal


def explored(it, key, client, clients):
    key = jax.random.fold_in(key, client)
    uniform = jax.random.uniform(jax.random.fold_in(key, 1), (), float)
    order = np.asarray(subset(jax.random.fold_in(key, 0), clients, clients))
    return order, bool(uniform < it.exploration)


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


CASES = {
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
    "APPLE": Case(
        APPLE(0.3, relationship_step_size=0.02, annealing=8), None, related, costs.combined
    ),
    "FedFomo": Case(FedFomo(0.05), None, first_order, costs.weighed_by_gain),
    "SuPerFed": Case(SuPerFed(0.05, attraction=0.1), None, on_a_line, costs.alone),
    "IFCA": Case(IFCA(0.05, 2), None, clustered, costs.clustered),
}
