"""Personalized algorithms against plain loops: whole and drawn batches, delays, layers."""

from itertools import chain

import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import (
    APFL,
    APPLE,
    IFCA,
    Ditto,
    FedALA,
    FedAMP,
    FedAvg,
    FedBABU,
    FedFomo,
    FedPer,
    FedRep,
    FineTunedFedAvg,
    LocalOnly,
    PerFedAvg,
    PFedMe,
    PFedMeByGradient,
    SuPerFed,
)
from fljax.problems.batches import Uniform
from tests import cases
from tests.support import small_network as small
from tests.support.two_groups import (
    CLIENTS,
    HEAD,
    LOCAL,
    SIZES,
    STARTS,
    loop_models,
    make_problem,
    new_key,
    seeded,
    trajectory,
    visited,
    world_of,
)

close = np.testing.assert_allclose

#: Full batches, and drawn ones: of clients that have fewer, and of a law with steps of each.
STEPS = (3, 1, 2, 4, 1, 2)
FORMS = {
    "local only": LocalOnly(LOCAL, 3),
    "ditto": Ditto(FedAvg(0.05, epochs=2), LOCAL, 0.7, 3),
    "ditto without attraction": Ditto(FedAvg(LOCAL, 3, weighting="equal"), 0.1, 0.0),
    "fine-tuned": FineTunedFedAvg(FedAvg(LOCAL, epochs=2), 0.05, 2),
    "fine-tuned some": FineTunedFedAvg(FedAvg(0.05, 4, weighting="equal"), LOCAL),
    "pfedme": PFedMe(LOCAL, 2.0, 3, 1.7, inner_iterations=400),
    "pfedme some": PFedMe(0.2, 0.8, 1, 0.6, 4, inner_iterations=400),
    "pfedme by gradient": PFedMeByGradient(
        LOCAL, attraction=2.0, personal_step_size=0.1, personal_steps=3, epochs=2
    ),
    "pfedme by gradient some": PFedMeByGradient(
        0.3, 4, attraction=0.8, personal_step_size=LOCAL, server_step_size=1.7, weighting="samples"
    ),
    "ifca": IFCA(LOCAL, 3, 2, start=STARTS),
    "ifca gradients": IFCA(0.1, 3, average="gradients", clients_per_round=4, start=STARTS),
    "ifca two": IFCA(0.1, 2, clients_per_round=5, start=STARTS[:2]),
    "per-fedavg hf": PerFedAvg(LOCAL, personal_step_size=0.05, epochs=2, personal_steps=2),
    "per-fedavg fo": PerFedAvg(
        0.1, 4, personal_step_size=LOCAL, variant="first_order", weighting="samples"
    ),
    "per-fedavg exact": PerFedAvg(0.1, personal_step_size=0.1, variant="exact", epochs=2),
    "apfl": APFL(LOCAL, 4, epochs=3, interpolation=np.linspace(0, 1, CLIENTS)),
    "apfl adaptive": APFL(
        0.1, epochs=2, interpolation=0.3, interpolation_step_size=0.2, weighting="samples"
    ),
    "fedper": FedPer(LOCAL, 4, epochs=2, personal=HEAD),
    "fedper mask": FedPer(0.05, epochs=2, personal=[True, False, True], weighting="equal"),
    "fedrep": FedRep(LOCAL, 4, personal=(0, 2), head_epochs=3),
    "fedrep samples": FedRep(0.05, epochs=2, personal=HEAD, weighting="samples"),
    "fedbabu": FedBABU(0.1, 4, 2, personal=HEAD, tuning_step_size=LOCAL, tuning_steps=3),
    "fedala": FedALA(0.1, 4, 2, blend_step_size=LOCAL, blend_steps=3, blended=(0, 2)),
    "fedfomo": FedFomo(LOCAL, 4, 2),
    "fedfomo some": FedFomo(0.1, 4, 2, downloads=2, exploration=0.4),
    "apple": APPLE(1.5, 4, 2, relationship_step_size=LOCAL, attraction=0.5, annealing=5),
    "apple samples": APPLE(1.0, epochs=3, relationship_step_size=0.05, weighting="samples"),
    "superfed": SuPerFed(
        LOCAL, 4, 3, attraction=0.3, orthogonality=0.2, warmup=2, interpolation=0.7
    ),
}
DRAWN = {
    "per-fedavg": PerFedAvg(0.1, 4, batch=4, personal_step_size=0.05, variant="first_order"),
    "per-fedavg law": PerFedAvg(
        0.1, batches=Uniform(3), local_steps=STEPS, personal_step_size=0.05
    ),
    "apfl": APFL(0.1, 4, batch=4, interpolation=0.4, interpolation_step_size=0.3),
    "pfedme": PFedMeByGradient(0.2, 4, batch=4, attraction=1.0, personal_step_size=0.1),
    "pfedme law": PFedMeByGradient(
        0.2, batches=Uniform(3), local_steps=STEPS, attraction=1.0, personal_step_size=0.1
    ),
    "fedper": FedPer(0.1, 4, 2, batch=4, personal=HEAD),
    "fedrep": FedRep(0.1, 4, batch=4, personal=HEAD, head_epochs=2),
    "fedrep law": FedRep(0.1, batches=Uniform(3), local_steps=STEPS, personal=HEAD, head_epochs=2),
    "fedbabu": FedBABU(0.1, 4, 2, batch=4, personal=HEAD, tuning_step_size=0.05),
    "fedala": FedALA(0.1, 4, 2, batch=4, weighting="equal"),
    "fedamp": FedAMP(0.1, 4, batch=4, attraction=0.5, attention_step_size=LOCAL, scale=2.0),
    "fedfomo": FedFomo(0.1, 4, batch=4, downloads=3),
    "apple": APPLE(0.5, 4, batch=4, relationship_step_size=0.05),
    "apple law": APPLE(0.5, batches=Uniform(3), local_steps=STEPS, relationship_step_size=0.05),
    "superfed": SuPerFed(0.1, 4, batch=4, attraction=0.3, orthogonality=0.2),
    "superfed law": SuPerFed(0.1, batches=Uniform(3), local_steps=STEPS, orthogonality=0.2),
}
#: The Hessian is of the ridge problem; some algorithms have no rule for late messages.
AGAINST_LOOPS = [
    (form, name, environment)
    for form, algorithm in FORMS.items()
    for name, environment in (("logistic", "absences"), ("ridge", "delays"), ("ridge", "whole"))
    if name == "ridge" or form != "per-fedavg exact"
    if environment != "delays" or algorithm.needs.late
    if environment != "whole" or isinstance(algorithm, IFCA | LocalOnly)
]


@pytest.mark.thin(5)
@pytest.mark.core
@pytest.mark.parametrize(("form", "name", "environment"), AGAINST_LOOPS)
def test_models_equal_the_loops(form, name, environment):
    algorithm = FORMS[form]
    key = new_key(4)
    parts, world = world_of(algorithm, environment != "whole", environment == "delays", key)
    ours = trajectory(fl.Simulation(make_problem(name), algorithm, **parts), key=key)
    expected = loop_models(algorithm, name, world, **seeded(algorithm, 4))
    close(ours, expected, rtol=0, atol=1e-10)
    assert np.ptp(expected[-1], axis=0).max() > 1e-2  # clients differ
    assert np.abs(expected[-1] - expected[1]).max() > 1e-2  # and move


@pytest.mark.slow
@pytest.mark.parametrize("form", DRAWN)
def test_drawn_batches_equal_the_loops(form):
    algorithm = DRAWN[form]
    key = new_key(5)
    parts, world = world_of(algorithm, True, False, key)
    simulation = fl.Simulation(make_problem(), algorithm, **parts)
    options = seeded(algorithm, 5)
    if isinstance(algorithm, PerFedAvg):
        three = visited(simulation, key, 3)
        options["work"] = [
            [list(zip(*part, strict=True)) for part in by_client] for by_client in three
        ]
    elif isinstance(algorithm, FedRep):
        passes = visited(simulation, key, algorithm.head_epochs + 1)
        options["work"] = [[part[-1] if part else [] for part in by_client] for by_client in passes]
        options["heads"] = [[list(chain(*part[:-1])) for part in by_client] for by_client in passes]
    else:
        options["work"] = visited(simulation, key)
    ours = trajectory(simulation, key=key)
    close(ours, loop_models(algorithm, "ridge", world, **options), rtol=0, atol=1e-10)


NETWORKS = {
    "per-fedavg hf": PerFedAvg(0.3, personal_step_size=0.2, epochs=2),
    "per-fedavg fo": PerFedAvg(0.3, 4, personal_step_size=0.2, variant="first_order"),
    "apfl": APFL(0.3, 4, epochs=3, interpolation=0.4, interpolation_step_size=0.2),
    "pfedme": PFedMeByGradient(0.5, 4, epochs=3, attraction=1.0, personal_step_size=0.3),
    "fedper": FedPer(0.3, 4, epochs=2, personal=small.LAYER),
    "fedrep": FedRep(0.3, personal=small.LAYER, head_epochs=2),
    "fedbabu": FedBABU(0.3, 4, personal=tuple(range(5)), tuning_step_size=0.2, tuning_steps=2),
    "fedala": FedALA(0.3, 4, epochs=2, blend_steps=2, blended=small.LAYER),
    "superfed": SuPerFed(0.3, 4, epochs=2, attraction=0.1, orthogonality=0.3, warmup=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", NETWORKS)
def test_networks_equal_the_loops(form):
    algorithm = NETWORKS[form]
    key = new_key(4)
    parts, world = world_of(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(small.from_zero(SIZES), algorithm, **parts), key=key)
    objective = small.Objective(tuple(small.samples(SIZES)))
    oracle = cases.CASES[algorithm.label].oracle
    theirs = oracle(algorithm, objective, world, **seeded(algorithm, 4))
    close(ours, theirs, rtol=0, atol=1e-8)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2
