"""A small study for workers of executors, which import its scenarios by name."""

import fljax as fl

CLIENTS = 6
ROUNDS = 12

#: What the scenario of :func:`changeable` multiplies its data with.
SCALE = [1.0]


def build(key, algorithm, privacy=None, clients=CLIENTS):
    return fl.Simulation(
        problem=fl.problems.ridge(key, clients=clients, samples=10, dim=3),
        network=fl.graphs.ring(clients),
        algorithm=algorithm,
        privacy=privacy,
        metrics=["consensus_error"],
    )


def steps(key, step):
    return build(key, fl.algorithms.ZCDPGradNFL(step))


def sizes(key, clients, step):
    return build(key, fl.algorithms.CTA(step), clients=clients)


def budgets(key, budget):
    return build(key, fl.algorithms.ZCDPGradNFL(0.05), fl.privacy.ZCDP(budget, decay=0.9))


def methods(key, algorithm):
    return build(key, algorithm)


def changeable(key, step):
    return build(key, fl.algorithms.CTA(step * SCALE[0]))


#: Four blocks of one seed and two points, in three segments each: twelve segments.
STUDY = {
    "grid": {"step": [0.02, 0.05]},
    "rounds": ROUNDS,
    "seeds": 4,
    "block": 1,
    "workers": 1,
    "segment": 4,
}

#: Studies by their particular feature: a scenario and the arguments of `fljax.sweep`.
STUDIES = {
    "segments": (steps, STUDY),
    "one brief block": (steps, {"grid": {"step": [0.02, 0.05]}, "rounds": 4, "seeds": 10}),
    "several blocks a call": (
        steps,
        {"grid": {"step": [0.02, 0.05]}, "rounds": 4, "seeds": 403, "block": 2, "workers": 2},
    ),
    "blocks that suit the machine": (
        steps,
        {"grid": {"step": [0.02, 0.05]}, "rounds": 4, "seeds": 403, "workers": 2},
    ),
    "many points": (
        steps,
        {"grid": {"step": [0.01, 0.02, 0.03, 0.04, 0.05]}, "rounds": 3, "seeds": 3},
    ),
    "structures": (
        sizes,
        {"grid": {"clients": fl.static([4, 6]), "step": [0.02, 0.05]}, "rounds": 4, "seeds": 5}
        | {"block": 2},
    ),
    "until": (steps, STUDY | {"until": {"consensus_error": 1e-2}}),
    "private models": (
        budgets,
        STUDY | {"grid": {"budget": [1.0, 2.0]}, "keep_models": True, "independent_noise": True},
    ),
}

#: Four blocks of twelve segments, each with a checkpoint: time to kill a worker.
LONG = {
    "grid": {"step": [0.02, 0.05]},
    "rounds": 24_000,
    "record_every": 2_000,
    "segment": 2_000,
    "seeds": 4,
    "block": 1,
    "workers": 1,
}
