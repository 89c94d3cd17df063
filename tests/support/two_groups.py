"""Six clients of two groups that disagree: their data, absences and delays, and runs among them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import fljax as fl
from fljax._core.prng import key_of
from fljax._core.random_subsets import subset
from fljax.algorithms import FedFomo, PerFedAvg, SuPerFed
from fljax.algorithms.algorithm import Algorithm
from fljax.link import DelayTrace
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.problems import LeastSquares, Logistic, SquaredL2, from_clients
from fljax.simulation.scan import begin, make_round, prepare, trace
from tests import cases
from tests.cases import EXACT
from tests.reference import nfl, personal

SIZES = (4, 9, 6, 12, 7, 5)
CLIENTS = len(SIZES)
DIM = 3
ROUNDS = 9
STRENGTH = 0.8
PROBLEMS = {"ridge": (LeastSquares(), "squared"), "logistic": (Logistic(), "logistic")}
LOCAL = PowerDecay(0.1, 0.3)


@functools.cache
def make_data(name="ridge", noise=0.5):
    """Two groups of clients that disagree, the even ones and the odd ones."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(2, DIM)) * 2
    data = []
    for k, size in enumerate(SIZES):
        X = rng.normal(size=(size, DIM))
        y = X @ truth[k % 2] + noise * rng.normal(size=size)
        data.append((X, np.sign(y) if name == "logistic" else y))
    return tuple(data)


def make_problem(name="ridge", noise=0.5, strength=STRENGTH):
    """Regularized losses of these data."""
    return from_clients(make_data(name, noise), PROBLEMS[name][0], SquaredL2(), strength)


def make_objective(name="ridge"):
    """The same to the loops."""
    return nfl.Objective(make_data(name), PROBLEMS[name][1], 0.0, 1.0, STRENGTH)


def new_key(seed=1):
    """The key of a run."""
    return fl.random_key(seed)


#: LLVM's passes are a good part of the time to compile and change nothing here.
QUICK = {"xla_backend_optimization_level": 0}
_trace = jax.jit(trace, static_argnums=(2, 3), compiler_options=QUICK)


def trajectory(simulation, rounds=ROUNDS, key=None, metric=EXACT):
    """``[T, K, D]``, the models of every round, or another metric."""
    simulation = dataclasses.replace(simulation, metrics=(metric,))
    key = new_key() if key is None else key
    return np.asarray(_trace(simulation, key, rounds, 1)[0][metric.name])


def server_of(algorithm):
    """The part that draws the participants."""
    return getattr(algorithm, "solver", algorithm)


def world_of(algorithm, absences, lateness, key):
    """Simulation parts and the same for the loops; one round is empty, a message may be lost."""
    rng = np.random.default_rng(2)
    parts = {}
    available = np.ones((ROUNDS, CLIENTS), bool)
    delay = np.zeros((ROUNDS, CLIENTS), int)
    if absences:
        available = rng.uniform(size=(ROUNDS, CLIENTS)) < 0.7
        available[3] = False
        parts["participation"] = Trace(available)
    if lateness:
        delay = rng.choice([-1, 0, 0, 1, 2], size=(ROUNDS, CLIENTS))
        parts["delays"] = DelayTrace(delay, 2)
    count = getattr(server_of(algorithm), "clients_per_round", None)
    drawn = [list(range(CLIENTS))] * ROUNDS
    if count is not None:
        rounds = [jax.random.fold_in(key, n) for n in range(1, ROUNDS + 1)]
        drawn = [
            np.asarray(subset(key_of(now, "participation"), CLIENTS, count)).tolist()
            for now in rounds
        ]
    return parts, personal.World(drawn, available, delay)


#: A start from which both groups find a model.
STARTS = np.random.default_rng(4).normal(size=(3, DIM))


def name_of(part):
    """The id of a case: an algorithm's label and its number of participants."""
    if not isinstance(part, Algorithm):
        return str(part)
    return f"{type(part).label}-{getattr(server_of(part), 'clients_per_round', None)}"


def state_after(rounds, simulation):
    """The state after some rounds of everyone."""
    state = simulation.algorithm.init(simulation.problem.prepare(), None)
    for n in range(1, rounds + 1):
        state = simulation.algorithm.step(state, fl.view(simulation, round=n))
    return state


#: Bits of a real number of a message.
REAL = 32


def records(simulation, rounds, every, key=None):
    """What is recorded, with counts of 62 bits as numbers; traffic since the last record."""
    simulation = dataclasses.replace(simulation, metrics=(EXACT,))
    result = dict(_trace(simulation, new_key() if key is None else key, rounds, every)[0])
    for name in ("messages", "scalars", "bits_up", "bits_down"):
        high, low = np.asarray(result[name], np.int64).T
        result[name] = (high << 31) + low
    return result


def short_run(algorithm, **parts):
    """Two rounds: bad arguments are refused at their start."""
    problem = parts.pop("problem", None) or make_problem()
    return fl.run(fl.Simulation(problem, algorithm, **parts), 2)


#: The parameter that stays with its client where models are shared in part.
HEAD = (1,)


def hessian(k, w, rows=None):
    """The Hessian of the ridge problem, for exact variants."""
    X, _ = make_data()[k]
    X = X if rows is None else X[rows]
    return 2 / len(X) * X.T @ X + 2 * 0.8 / CLIENTS * np.eye(DIM)


def quadratics():
    """``f_k(w) = w' A_k w / 2 - b_k' w`` of the ridge problem."""
    return [(hessian(k, None), 2 / len(y) * X.T @ y) for k, (X, y) in enumerate(make_data())]


def samples_of(batch, row):
    """``[steps]`` lists of the samples of one participant's steps, as drawn in the run."""
    return [[int(j) for j in step] for step in np.asarray(batch.rows[row])]


def visited(simulation, key, draws=None):
    """``[T][K]``: the samples of each participant's steps, by draw; empty for all others."""

    @jax.jit
    def invited(n):
        ready = prepare(simulation, ROUNDS)
        now, *_ = make_round(simulation, ready, key, begin(simulation, ready, key), n, ROUNDS)
        return simulation.algorithm.invite(now, draws=draws)

    work = []
    for n in range(1, ROUNDS + 1):
        cohort = invited(n)
        by_client = [[] for _ in range(CLIENTS)]
        for row, k in enumerate(np.asarray(cohort.participants.numbers)):
            steps_in = functools.partial(steps_of, cohort, row, SIZES[k])
            if draws is None:
                by_client[k] = steps_in(cohort.batch)
            else:
                parts = [jax.tree.map(lambda a, i=i: a[i], cohort.batch) for i in range(draws)]
                by_client[k] = [steps_in(part) for part in parts]
        work.append(by_client)
    return work


def steps_of(cohort, row, size, batch):
    """A participant's steps on a batch of nothing are none."""
    result = [[j for j in step if j < size] for step in samples_of(batch, row)]
    if cohort.limit is not None:
        result = result[: int(cohort.limit[row])]
    return [step for step in result if step]


def loop_models(algorithm, name, world, **options):
    """``[T, K, D]`` of the plain loop, of one of the problems."""
    if isinstance(algorithm, PerFedAvg):
        options["hessian"] = hessian
    return cases.CASES[algorithm.label].oracle(algorithm, make_objective(name), world, **options)


def seeded(algorithm, seed):
    """What its loop needs to know besides: it draws as the run does."""
    return {"seed": seed} if isinstance(algorithm, SuPerFed | FedFomo) else {}


def arrived(simulation, key):
    """``[T, K]``, which messages reach the server in the run."""

    @jax.jit
    def of_round(n):
        ready = prepare(simulation, ROUNDS)
        now, *_ = make_round(simulation, ready, key, begin(simulation, ready, key), n, ROUNDS)
        return now.link.stored(jnp.ones((CLIENTS, 1)), jnp.zeros((CLIENTS, 1)))[:, 0]

    return np.array([of_round(n) for n in range(1, ROUNDS + 1)])


#: The two groups of six clients, as masks.
SIDES = np.arange(6) < 3, np.arange(6) >= 3


def groups_of_two(clients=6, samples=4):
    """Clients of the first half and of the second want other models; few samples, more held out."""
    rng = np.random.default_rng(0)
    wanted = np.array([[3.0, 0.0] if k < clients // 2 else [0.0, 3.0] for k in range(clients)])

    def drawn(samples):
        X = rng.normal(size=(clients, samples, 2))
        y = np.einsum("knp,kp->kn", X, wanted) + rng.normal(size=(clients, samples))
        return fl.problems.from_clients(list(zip(X, y, strict=True)), fl.problems.LeastSquares())

    problem = drawn(samples)
    held_out = drawn(10 * samples)
    tasks = fl.problems.Tasks(np.zeros(clients, int), 1, validation=held_out)
    return dataclasses.replace(problem, tasks=tasks), wanted


def both_trajectories(ours, reference, rounds=ROUNDS, **parts):
    """Trajectories of an algorithm and of another one to compare it with."""
    return (
        trajectory(fl.Simulation(make_problem(), a, **parts), rounds) for a in (ours, reference)
    )
