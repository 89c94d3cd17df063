"""The standard setting of each algorithm: a short program, and the cost of its round."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval
from jaxtyping import PyTree
from sphinx.errors import ExtensionError

import fljax as fl
from fljax._core import gradient_counts
from fljax._core.prng import as_key
from fljax.algorithms import Algorithm
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.link.traffic import Traffic
from fljax.simulation.run_state import Carry
from fljax.simulation.scan import begin, prepare, run_round
from fljax.tuning.search import RANGES

#: Clients, samples of each, and numbers of a model in the standard setting. The model is so large
#: that the two digits of a count tell models from single numbers.
CLIENTS = 10
SAMPLES = 20
DIM = 100

#: Rounds of a run whose round is counted, where a rule depends on it.
ROUNDS = 100

#: Draws over which the messages of a random rule are averaged.
AVERAGED = 400

#: Draws that show whether the number of messages is random.
COMPARED = 3

#: Arguments in the standard setting; others are in the middle of their search range.
ARGUMENTS = {
    "after": '"metropolis"',
    "batches": "fl.batches.Uniform(5)",
    "client_threshold": "0.2",
    "clients_per_round": "5",
    "clusters": "2",
    "components": "2",
    "convexity": "0.1",
    "count": "5",
    "compression": "fl.link.TopK(10)",
    "compressors_up": "fl.link.Quantize(8)",
    "downlink": "fl.link.TopK(20)",
    "distillation_step_size": "0.1",
    "fairness": "1.0",
    "local_steps": "5",
    "mean_threshold": "0.1",
    "period": "5",
    "personal": "[0, 1]",
    "policy": "fl.algorithms.RandomProbe(1.0, 0.2)",
    "probability": "0.5",
    "public": "jax.random.normal(keys[2], (30, 6))",
    "public_batch": "10",
    "server": "optax.sgd(1.0)",
    "sketch": "fl.link.CountSketch(5, 10)",
    "sparsity": "4",
    "solver": "fl.algorithms.FedAvg(step_size=0.1)",
    "step_size": "0.1",
    "test_set": f"jax.random.normal(keys[2], (20, {DIM}))",
    "threshold": "0.3",
    "topology": "fl.graphs.ring(4)",
}

#: Algorithms whose compressor must be unbiased.
UNBIASED = ("ADIANA", "CANITA", "DASHA", "DIANA", "MARINA")

#: Arguments with a default that an algorithm cannot do without in its standard setting.
SPECIAL = {
    "Diffusion, general": ("after",),
    "FedBN": ("personal",),
    "FedDF": ("public_batch",),
    "FedSGD, networked": ("batches",),
    "Generalized gradient": ("test_set",),
    "Model-agnostic FedRelax": ("test_set",),
}
RIDGE = f"""\
problem = fl.problems.ridge(keys[0], clients={CLIENTS}, samples={SAMPLES}, dim={DIM})
"""
STREAM = f"""\
data = fl.problems.least_squares(keys[0], clients={CLIENTS}, samples={SAMPLES}, dim={DIM})
problem = fl.streams.Replay(data)
"""
NETWORK = f"""\
data = fl.problems.softmax(keys[0], clients={CLIENTS}, samples={SAMPLES}, dim=6, classes=3)
problem = fl.problems.Model.of(data, {{}}, keys[1])
"""
MLP = "fl.models.mlp(3, hidden=[16])"
LORA = f"fl.models.lora({MLP}, rank=2)"
NESTED = "fl.models.nested([fl.models.mlp(3, hidden=[width]) for width in (16, 8)])"
SEVERAL = "fl.models.several([fl.models.mlp(3, hidden=[16]), fl.models.mlp(3, hidden=[])])"
ASSIGNED = f"problem = problem.assigning({[0] * (CLIENTS // 2) + [1] * (CLIENTS // 2)})\n"
CLUSTERED = f"""\
cluster = fl.problems.random_clusters(keys[0], {CLIENTS}, 2)
problem = fl.problems.clustered_ridge(
    keys[1], cluster, 2, ({SAMPLES}, {SAMPLES}), {DIM}, 5.0, 0.01, validated=True
)
"""
VERTICAL = f"""\
table = jax.random.normal(keys[0], ({SAMPLES}, {DIM}))
targets = jax.random.normal(keys[1], ({SAMPLES},))
columns = [list(range(k, {DIM}, {CLIENTS})) for k in range({CLIENTS})]
problem = fl.problems.vertical(table, targets, columns)
"""

#: Families of algorithms for clusters of clients.
FOR_CLUSTERS = ("PGFL", "GFL", "ClusterFL", "NPFL", "IFCA", "CFL", "FedEM")

NETWORKS = {
    None: "",
    Graph: f"    network=fl.graphs.ring({CLIENTS}),\n",
    Federation: f"    network=fl.federation.balanced({CLIENTS // 2}, fl.graphs.path(2)),\n",
}


#: Of algorithms whose clients all communicate with each other.
COMPLETE = f"    network=fl.graphs.complete({CLIENTS}),\n"


def problem_of(cls: type[Algorithm]) -> str:
    """The lines that make a problem on which the algorithm can run."""
    needs = cls.needs
    if cls.label == "Sharing ADMM":
        return VERTICAL
    if needs.adapters:
        return NETWORK.format(LORA)
    if needs.networks == "different" or "public" in arguments(cls):
        return NETWORK.format(SEVERAL) + ASSIGNED
    if needs.networks == "nested":
        return NETWORK.format(NESTED) + ASSIGNED
    if needs.classes or needs.representation:
        return NETWORK.format(MLP)
    if needs.validation or cls.label.startswith(FOR_CLUSTERS):
        return CLUSTERED
    return STREAM if needs.data == "stream" else RIDGE


def argument(name: str) -> str:
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    if name not in RANGES:
        raise ExtensionError(
            f"the standard setting has no value of {name}; add one to ARGUMENTS in "
            "docs/_ext/settings.py."
        )
    low, high, *linear = RANGES[name]
    return f"{(low + high) / 2 if linear else math.sqrt(low * high):.1g}"


def arguments(cls: type[Algorithm]) -> dict[str, str]:
    """The required arguments, as they are written."""
    missing = dataclasses.MISSING
    required = [
        field.name
        for field in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        if field.default is missing and field.default_factory is missing
    ]
    values = {name: argument(name) for name in (*required, *SPECIAL.get(cls.label, ()))}
    if cls.label in UNBIASED:
        values["compression"] = "fl.link.RandomK(10)"
    return values


def setting(cls: type[Algorithm]) -> str:
    """A program that makes a simulation of the algorithm."""
    return f"{_problem_program(cls)}{_simulation_program(cls)}"


def _problem_program(cls: type[Algorithm]) -> str:
    modules = "jax, optax, fljax as fl" if "server" in arguments(cls) else "jax, fljax as fl"
    keys = "keys = jax.random.split(jax.random.key(0), 3)"
    return f"import {modules}\n\n{keys}\n{problem_of(cls)}"


def _simulation_program(cls: type[Algorithm]) -> str:
    call = ", ".join(f"{name}={value}" for name, value in arguments(cls).items())
    network = COMPLETE if cls.needs.complete else NETWORKS[cls.needs.network]
    return (
        f"simulation = fl.Simulation(\n    problem=problem,\n{network}"
        f"    algorithm=fl.algorithms.{cls.__name__}({call}),\n)\n"
    )


def program(cls: type[Algorithm]) -> str:
    """The setting and its run."""
    return f"{setting(cls)}results = fl.run(simulation, rounds=20)\n"


@functools.cache
def _executed(text: str) -> dict[str, Any]:
    """The names that a program defines; algorithms with the same problem share it."""
    names: dict[str, Any] = {}
    exec(text, names)
    return names


def simulation_of(cls: type[Algorithm]) -> fl.Simulation:
    """The simulation of the standard setting."""
    names = dict(_executed(_problem_program(cls)))
    exec(_simulation_program(cls), names)
    return names["simulation"]


class Cost(NamedTuple):
    """The cost of a round of all clients; of random rules the mean."""

    messages: float
    numbers: float
    bits_up: float
    bits_down: float
    gradients: float
    minimizations: float


class Counted(NamedTuple):
    """A cost, and whether it is the same in every round."""

    cost: Cost
    is_random: bool
    is_constant: bool


def count(simulation: fl.Simulation) -> Counted:
    """Count a round in its traced program; only its counts of messages are evaluated."""

    def before(key: jax.Array) -> Carry:
        return begin(simulation, prepare(simulation, ROUNDS), key)

    def one_round(round: jax.Array, key: jax.Array) -> tuple[Traffic, PyTree]:
        prepared = prepare(simulation, ROUNDS)
        carry = begin(simulation, prepared, key)
        after = run_round(simulation, prepared, key, carry, round, ROUNDS)
        return after.traffic, after.state

    first = jnp.ones((), jnp.int32)
    traced = jax.make_jaxpr(one_round)(first, as_key(0))
    is_traffic = [index < len(Traffic._fields) for index in range(len(traced.jaxpr.outvars))]
    counting, _ = partial_eval.dce_jaxpr(traced.jaxpr, is_traffic, instantiate=True)
    run_counts = jaxpr_as_fun(ClosedJaxpr(counting, traced.consts))

    def counted(seed: int | jax.Array, round: jax.Array) -> jax.Array:
        key = jax.random.fold_in(as_key(0), seed)
        high_and_low = jnp.stack(run_counts(round, key))
        return high_and_low.astype(float) @ jnp.array([2.0**31, 1.0])

    draws = np.array([counted(seed, first) for seed in range(COMPARED)])
    is_random = bool((draws != draws[0]).any())
    is_constant = not is_random and bool((counted(0, first + 1) == draws[0]).all())
    if is_random:
        draws = np.array(jax.jit(jax.vmap(counted, (0, None)))(jnp.arange(AVERAGED), first))
    messages, numbers, bits_up, bits_down = map(float, draws.mean(0))
    initial = gradient_counts.evaluations(before, as_key(0))
    total = gradient_counts.evaluations(one_round, first, as_key(0))  # traced already
    gradients, minimizations = (after - start for after, start in zip(total, initial, strict=True))
    cost = Cost(messages, numbers, bits_up, bits_down, gradients, minimizations)
    return Counted(cost, is_random, is_constant)
