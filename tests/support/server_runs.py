"""Runs of algorithms with one server: its models, and the draws that the loops take over."""

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from fljax._core.prng import key_of
from fljax.link.losses import Losses
from fljax.metrics.definitions import Metric
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.simulation.scan import trace
from tests.cases import CLIENTS, EXACT, ROUNDS, make_problem
from tests.support.rounds import batches_without_padding

#: A decaying step size.
FALLING = PowerDecay(0.1, 0.3)
#: Unequal numbers of local steps of the clients.
UNLIKE = (3, 1, 5, 2, 4)
EQUAL = {"weighting": "equal"}
MANY = {"local_steps": 10}
#: The clients that take part, round by round.
ACTIVE = np.random.default_rng(3).uniform(size=(ROUNDS, CLIENTS)) < 0.7
ACTIVE[3] = False  # no client is active


@fl.module
class Lost(Losses):
    """Links to the server that fail in listed rounds; the state is the round."""

    table: jnp.ndarray

    def begin(self, uniform):
        return jnp.zeros((), jnp.int32)

    def draw(self, state, uniform):
        return state + 1, self.table[state]


_trace = jax.jit(
    trace, static_argnums=(2, 3), compiler_options={"xla_backend_optimization_level": 0}
)


def trajectory(algorithm, problem=None, rounds=ROUNDS, key=1, metric=EXACT, **parts):
    """``[T, D]``, the server's model of every round."""
    problem = make_problem() if problem is None else problem
    simulation = fl.Simulation(problem, algorithm, metrics=(metric,), **parts)
    result = _trace(simulation, fl.random_key(key), rounds, 1)[0][metric.name]
    return np.asarray(result)[:, 0] if metric is EXACT else np.asarray(result)


def visits_of(algorithm, available, sizes, seed=1, network=None):
    """The participants, and the rows of each of their steps: the library's draws."""
    result = []
    real = np.arange(max(sizes)) < np.array(sizes)[:, None]
    longest = algorithm._longest(max(sizes))
    for n, here_now in enumerate(available, 1):
        now = jax.random.fold_in(fl.random_key(seed), n)
        participants = algorithm.selection.choose(
            key_of(now, "participation"), jnp.asarray(here_now), network, n
        )
        numbers = np.asarray(participants.numbers)
        steps = algorithm.epochs if algorithm.local_steps is None else algorithm.local_steps
        steps = np.broadcast_to(steps, len(sizes))
        if (batches := algorithm._batch_scheme) is None:
            rows = [[None] * int(steps[k]) for k in numbers]
        else:
            drawn = batches.at(jnp.asarray(n), longest).draw(
                key_of(now, "batches"), jnp.asarray(real[numbers]), participants.numbers, longest
            )
            limit = np.full(len(sizes), longest) if algorithm.local_steps is None else steps
            rows = [
                batches_without_padding(drawn.rows[i][: limit[k]], sizes[k])
                for i, k in enumerate(numbers)
            ]
        active = np.asarray(participants.here)
        result.append({int(k): rows[i] for i, k in enumerate(numbers) if active[i]})
    return result


def personal(algorithm, problem, rounds=ROUNDS, **parts):
    """``[T, K, D]``, the clients' models of every round."""
    metrics = [fl.metrics.trajectory()]
    simulation = fl.Simulation(problem, algorithm, metrics=metrics, **parts)
    return fl.run(simulation, rounds, key=fl.random_key(1)).model_trajectory.values


def passes_of(algorithm, problem, available, sizes, passes):
    """The participants, and the rows of each step of some first passes and of the last one, which
    all have batches of their own.
    """
    simulation = fl.Simulation(problem, algorithm, participation=Trace(available))
    result = []
    for n in range(1, len(available) + 1):
        now = fl.view(simulation, key=fl.random_key(1), round=n)
        cohort = algorithm.invite(now, draws=passes + 1)
        result.append({})
        for i, k in enumerate(np.asarray(cohort.participants.numbers)):
            if not cohort.active[i]:
                continue
            steps = [[None] * int(cohort.counts[i])] * (passes + 1)
            if cohort.batch is not None:
                most = None if cohort.limit is None else int(cohort.limit[i])
                steps = [
                    batches_without_padding(rows[i][:most], sizes[k]) for rows in cohort.batch.rows
                ]
            result[-1][int(k)] = [row for rows in steps[:-1] for row in rows], steps[-1]
    return result


def talks(algorithm, rounds, seed=1):
    """The rounds in which clients that skip some send messages."""
    keys = [jax.random.fold_in(fl.random_key(seed), n) for n in range(1, rounds + 1)]
    probability = [float(jax.random.uniform(key_of(key, "algorithm"), dtype=float)) for key in keys]
    return np.array(probability) >= float(algorithm.skipping)


def class_name(algorithm):
    """The id of a case."""
    return type(algorithm).__name__


def state_metric(name):
    """A field of the state, round by round."""
    return Metric("part", lambda now: getattr(now.state, name), name)
