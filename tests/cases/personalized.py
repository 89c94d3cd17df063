"""A model of each client: an instance of each algorithm, and its loop."""

import jax
import numpy as np

from fljax._core.prng import key_of
from fljax._core.random_subsets import subset
from fljax.algorithms import (
    APFL,
    APPLE,
    CFL,
    IFCA,
    Ditto,
    FedALA,
    FedAMP,
    FedAvg,
    FedBABU,
    FedBN,
    FedEM,
    FedFomo,
    FedPer,
    FedRep,
    FineTunedFedAvg,
    LGFedAvg,
    LocalOnly,
    PerFedAvg,
    PFedMe,
    PFedMeByGradient,
    SuPerFed,
)
from tests.cases import costs
from tests.cases.world import (
    FULL_PARTICIPATION,
    OBJECTIVE,
    Case,
    counts_of,
    full_batches,
    keys_of,
    make_problem,
    sample_gradient_of,
    step_of,
)
from tests.reference import (
    adapted,
    nfl,
    personal,
)


def local_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION):
    return personal.local_only(
        objective, world, step_of(algorithm.step_size), algorithm.local_steps
    ).personal


def of_solver(algorithm):
    return step_of(algorithm.solver.step_size), algorithm.solver.epochs, algorithm.solver.weighting


def fine_tuned_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION):
    arguments = *of_solver(algorithm), step_of(algorithm.step_size), algorithm.tuning_steps
    return personal.fine_tuned(objective, world, *arguments).personal


def ditto_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION):
    arguments = (
        *of_solver(algorithm),
        step_of(algorithm.step_size),
        float(algorithm.attraction),
        algorithm.personal_steps,
    )
    return personal.ditto(objective, world, *arguments).personal


def pfedme_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION):
    numbers = float(algorithm.attraction), algorithm.local_steps, float(algorithm.server_step_size)
    return personal.pfedme(objective, world, step_of(algorithm.step_size), *numbers).personal


def ifca_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION):
    start = (
        algorithm.init(make_problem(), None).models if algorithm.start is None else algorithm.start
    )
    arguments = (
        step_of(algorithm.step_size),
        np.asarray(start),
        algorithm.local_steps,
        algorithm.average,
    )
    return personal.ifca(objective, world, *arguments).personal


def cfl_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    arguments = world, work, counts_of(algorithm, objective), np.zeros((clients, objective.dim))
    numbers = (
        step_of(algorithm.step_size),
        algorithm.clusters,
        float(algorithm.mean_threshold),
        float(algorithm.client_threshold),
        algorithm.warmup,
    )
    return adapted.cfl(sample_gradient_of(objective), *arguments, *numbers)[0].personal


def fedem_run(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    """The models and the weights of every round."""
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    value = nfl.LOSSES[objective.loss][0]
    start = np.asarray(algorithm.init(make_problem(dim=objective.dim), None).models)

    def losses(k, w):
        X, y = objective.data[k]
        return np.array([value(X[j] @ w, y[j]) for j in range(len(y))])

    def gradient(k, w, shares, rows):
        by_sample = shares[:, None] * objective.sample_gradients(k, w)
        by_sample = by_sample if rows is None else by_sample[rows]
        ridge = 2 * objective.l2 * objective.strength / objective.clients
        return by_sample.mean(axis=0) + ridge * w

    arguments = world, work, counts_of(algorithm, objective), start
    return adapted.fedem(losses, gradient, *arguments, step_of(algorithm.step_size))


def fedem_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    return fedem_run(algorithm, objective, world, work).personal


def per_fedavg_models(
    algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None, hessian=None
):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    work = [[[step or 3 * (step,) for step in steps] for steps in by_client] for by_client in work]
    gradient = sample_gradient_of(objective)
    start = np.zeros(objective.dim)
    times = adapted.curvature(gradient, algorithm.variant, float(algorithm.offset), hessian)
    steps = (
        step_of(algorithm.step_size),
        step_of(algorithm.personal_step_size),
        times,
        algorithm.personal_steps,
    )
    arguments = world, work, counts_of(algorithm, objective), start
    return adapted.per_fedavg(gradient, *arguments, *steps).personal


def apfl_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    rate = algorithm.interpolation_step_size
    adaptation = None if rate is None else step_of(rate)
    arguments = world, work, counts_of(algorithm, objective), np.zeros(objective.dim)
    numbers = step_of(algorithm.step_size), np.asarray(algorithm.interpolation), adaptation
    return adapted.apfl(sample_gradient_of(objective), *arguments, *numbers)[0].personal


def pfedme_by_gradient_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    arguments = world, work, counts_of(algorithm, objective), np.zeros(objective.dim)
    numbers = (
        step_of(algorithm.step_size),
        float(algorithm.attraction),
        step_of(algorithm.personal_step_size),
        algorithm.personal_steps,
        float(algorithm.server_step_size),
    )
    return adapted.pfedme(sample_gradient_of(objective), *arguments, *numbers).personal


def partial_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None, heads=None):
    clients = objective.clients
    head = getattr(algorithm, "head_epochs", 0)
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    if head and heads is None:
        heads = full_batches(head * algorithm.epochs, world.rounds, clients)
    arguments = world, work, counts_of(algorithm, objective), np.zeros((clients, objective.dim))
    places = places_of(algorithm.personal, objective.dim)
    return adapted.partial(
        sample_gradient_of(objective), *arguments, step_of(algorithm.step_size), places, heads
    ).personal


def places_of(chosen, dim):
    if chosen is None:
        return list(range(dim))
    return np.flatnonzero(make_problem(dim=dim).coordinates(chosen)).tolist()


def fedala_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    work = full_batches(algorithm.epochs, world.rounds, objective.clients) if work is None else work
    start = np.zeros((objective.clients, objective.dim))
    arguments = world, work, counts_of(algorithm, objective), start, step_of(algorithm.step_size)
    places = places_of(algorithm.blended, objective.dim)
    numbers = step_of(algorithm.blend_step_size), algorithm.blend_steps, places
    return adapted.fedala(sample_gradient_of(objective), *arguments, *numbers)[0].personal


def fedamp_models(
    algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None, arrives=None, start=None
):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    arguments = world, work, start, step_of(algorithm.step_size)
    numbers = (
        float(algorithm.attraction),
        step_of(algorithm.attention_step_size),
        float(algorithm.scale),
        arrives,
    )
    return adapted.fedamp(sample_gradient_of(objective), *arguments, *numbers).personal


def apple_models(
    algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None, arrives=None, start=None
):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    arguments = world, work, counts_of(algorithm, objective), start, step_of(algorithm.step_size)
    numbers = (
        step_of(algorithm.relationship_step_size),
        float(algorithm.attraction),
        algorithm.annealing,
        arrives,
    )
    return adapted.apple(sample_gradient_of(objective), *arguments, *numbers)[0].personal


def fedfomo_models(
    algorithm,
    objective=OBJECTIVE,
    world=FULL_PARTICIPATION,
    work=None,
    arrives=None,
    start=None,
    value=None,
    seed=1,
):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    arrives = np.ones((world.rounds, clients), bool) if arrives is None else arrives
    start = np.zeros((clients, objective.dim)) if start is None else start
    draws = None
    if algorithm.downloads is not None:
        keys = [key_of(now, "algorithm") for now in keys_of(seed, world.rounds)]
        draws = [
            [download_draws(algorithm, key, k, clients) for k in range(clients)] for key in keys
        ]
    value = objective.value if value is None else value
    arguments = value, world, work, start, step_of(algorithm.step_size), arrives
    return adapted.fedfomo(sample_gradient_of(objective), *arguments, algorithm.downloads, draws)[
        0
    ].personal


def download_draws(algorithm, key, client, clients):
    key = jax.random.fold_in(key, client)
    uniform = jax.random.uniform(jax.random.fold_in(key, 1), (), float)
    order = np.asarray(subset(jax.random.fold_in(key, 0), clients, clients))
    return order, bool(uniform < algorithm.exploration)


def superfed_models(
    algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None, seed=1, start=None
):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    longest = max(len(steps) for by_client in work for steps in by_client)
    keys = [key_of(now, "algorithm") for now in keys_of(seed, world.rounds)]
    shares = [
        [
            np.asarray(jax.random.uniform(jax.random.fold_in(key, k), (longest,), float))
            for k in range(clients)
        ]
        for key in keys
    ]
    start = np.zeros((clients, objective.dim)) if start is None else start
    arguments = (
        world,
        work,
        counts_of(algorithm, objective),
        start,
        step_of(algorithm.step_size),
        shares,
    )
    numbers = (
        float(algorithm.attraction),
        float(algorithm.orthogonality),
        algorithm.warmup,
        float(algorithm.interpolation),
    )
    return adapted.superfed(sample_gradient_of(objective), *arguments, *numbers).personal


def fedbabu_models(algorithm, objective=OBJECTIVE, world=FULL_PARTICIPATION, work=None):
    clients = objective.clients
    work = full_batches(algorithm.epochs, world.rounds, clients) if work is None else work
    arguments = world, work, counts_of(algorithm, objective), np.zeros((clients, objective.dim))
    places = places_of(algorithm.personal, objective.dim)
    steps = step_of(algorithm.tuning_step_size), algorithm.tuning_steps
    return adapted.fedbabu(
        sample_gradient_of(objective), *arguments, step_of(algorithm.step_size), places, *steps
    ).personal


CASES = {
    "Local only": Case(LocalOnly(0.05), None, local_models, costs.alone),
    "FedAvg-FT": Case(FineTunedFedAvg(FedAvg(0.05), 0.05), None, fine_tuned_models, costs.tuned),
    "Ditto": Case(Ditto(FedAvg(0.05), 0.05, 1.0), None, ditto_models, costs.attracted),
    "pFedMe": Case(PFedMe(0.05, 1.0), None, pfedme_models, costs.enveloped),
    "pFedMe, by gradient": Case(
        PFedMeByGradient(0.5, attraction=1.0, personal_step_size=0.05, personal_steps=1),
        None,
        pfedme_by_gradient_models,
        costs.stepwise_enveloped,
    ),
    "Per-FedAvg": Case(
        PerFedAvg(0.05, personal_step_size=0.03), None, per_fedavg_models, costs.adapted
    ),
    "APFL": Case(
        APFL(0.05, interpolation=0.4, interpolation_step_size=0.05), None, apfl_models, costs.mixed
    ),
    "FedPer": Case(FedPer(0.05, personal=(1,)), None, partial_models, costs.alone),
    "LG-FedAvg": Case(LGFedAvg(0.05, personal=(0,)), None, partial_models, costs.alone),
    "FedBN": Case(FedBN(0.05, personal=(2,)), None, partial_models, costs.alone),
    "FedRep": Case(FedRep(0.05, personal=(1,)), None, partial_models, costs.in_turn),
    "FedBABU": Case(
        FedBABU(0.05, personal=(1,), tuning_step_size=0.05), None, fedbabu_models, costs.body_first
    ),
    "FedALA": Case(FedALA(0.05, blend_step_size=0.5), None, fedala_models, costs.in_turn),
    "FedAMP": Case(
        FedAMP(0.05, attraction=0.5, attention_step_size=0.3, scale=2.0),
        None,
        fedamp_models,
        costs.attentive,
    ),
    "APPLE": Case(
        APPLE(0.3, relationship_step_size=0.02, annealing=8), None, apple_models, costs.combined
    ),
    "FedFomo": Case(FedFomo(0.05), None, fedfomo_models, costs.weighed_by_gain),
    "SuPerFed": Case(SuPerFed(0.05, attraction=0.1), None, superfed_models, costs.alone),
    "IFCA": Case(IFCA(0.05, 2), None, ifca_models, costs.clustered),
    "FedEM": Case(
        FedEM(0.05, components=2),
        None,
        fedem_models,
        costs.mixing_components,
        rests="never",
        sent=(4, 4),
    ),
    "CFL": Case(
        CFL(0.1, clusters=3, mean_threshold=0.1, client_threshold=0.05),
        None,
        cfl_models,
        costs.halved,
        rests="never",
    ),
}
