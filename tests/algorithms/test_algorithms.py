"""Every registered algorithm against loops, its own guarantees and the engine's contract."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax import algorithms
from fljax._core.prng import as_key, key_of, private_normal
from fljax.algorithms import (
    PADMM,
    REGISTRY,
    ZCDPNFL,
    ConventionalFL,
    EpsilonDeltaNFL,
    FedAvg,
    NetworkedADMM,
    ZCDPGradNFL,
)
from fljax.algorithms.round import Round
from fljax.link import Link, Stages
from fljax.optimization.schedules import Constant, PowerDecay
from fljax.privacy import ZCDP, ApproximateDP, PureDP
from fljax.privacy.discrete import discrete_laplace
from fljax.problems import (
    L1,
    Huber,
    LeastAbsoluteDeviation,
    Logistic,
    NoRegularizer,
    SquaredL2,
    from_clients,
)
from fljax.simulation.running import _run
from fljax.simulation.scan import trace
from tests.cases import (
    CASES,
    CLIENTS,
    DIM,
    EDGES,
    EXACT,
    PERSONAL,
    PLAIN,
    PREDICTING,
    PRIVATE,
    PROBLEMS,
    READING,
    ROUNDS,
    SERVED,
    STEPS,
    STREAMED,
    STRENGTH,
    gap_of,
    make_data,
    make_network,
    make_objective,
    make_problem,
    simulate,
    step_of,
)
from tests.reference import nfl
from tests.support.marks import quiet
from tests.support.rounds import Stepper, states, trajectory

close = np.testing.assert_allclose
optimum = jax.jit(fl.problems.optimum)

# Against the equations -------------------------------------------------------------------------


@pytest.mark.parametrize("label", sorted(CASES))
def test_the_size_of_a_message_follows_from_shapes(label):
    """A scenario draws its problem: where sizes are asked for, its shapes alone are known."""
    simulation = simulate(label)
    shapes = jax.eval_shape(lambda: simulation.problem)
    size = simulation.algorithm.message_size_of(shapes)
    assert size == simulation.algorithm.message_size_of(simulation.problem)


@pytest.mark.core
@pytest.mark.thin(24, every=1)
@pytest.mark.parametrize("label", CASES)
def test_every_algorithm_is_its_loop(label):
    """Without noise, in every round."""
    case = CASES[label]
    ours = trajectory(simulate(label, private=False))
    theirs = case.oracle(case.algorithm)
    close(ours, np.broadcast_to(theirs, ours.shape), rtol=0, atol=1e-10)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-2


def draws_of(key, privacy, rounds=ROUNDS, dim=DIM):
    """The library's own unit noise, round by round, to inject into the loops."""
    shape = (CLIENTS, dim)
    keys = [key_of(jax.random.fold_in(key, n), "privacy") for n in range(1, rounds + 1)]
    if isinstance(privacy, PureDP):
        draws = [discrete_laplace(key, shape, privacy.steps) for key in keys]
        return np.asarray(jnp.stack(draws)) / privacy.steps
    return np.asarray(jnp.stack([private_normal(key, shape, float) for key in keys]))


def scale_of(privacy, sensitivity):
    """``[T, K]`` of the reference's schedules."""
    if privacy is None:
        return np.zeros_like(sensitivity)
    decay = float(privacy.decay)
    if isinstance(privacy, ZCDP):
        schedule = {"privacy": nfl.privacy_schedule, "variance": nfl.variance_schedule}
        return schedule[privacy.schedule](sensitivity, float(privacy.total_rho), decay)
    if isinstance(privacy, PureDP):
        return nfl.laplace_schedule(sensitivity, float(privacy.epsilon), decay, DIM)
    return nfl.approximate_schedule(
        sensitivity,
        float(privacy.epsilon),
        float(privacy.delta),
        privacy.rule,
        privacy.calibration,
        decay,
    )


def sensitivity_of(algorithm, objective, bound, rounds):
    """``[T, K]``."""
    if isinstance(algorithm, NetworkedADMM):
        penalty = float(algorithm.penalty)
        return nfl.minimizer_sensitivity(objective, EDGES, penalty, bound, rounds)
    step = step_of(algorithm.step_size)
    if isinstance(algorithm, ZCDPNFL):
        return nfl.lemma_one(objective, EDGES, float(algorithm.penalty), step, bound, rounds)
    local = getattr(algorithm, "local_steps", 1)
    return nfl.gradient_sensitivity(objective, step, bound, rounds, local)


def reference(algorithm, privacy, objective, draws):
    """``[T, K, D]`` models (``[T, 1, D]`` of the server) of the loops."""
    bound = 0.0 if privacy is None else float(privacy.gradient_bound)
    scale = scale_of(privacy, sensitivity_of(algorithm, objective, bound, len(draws)))
    return CASES[algorithm.label].oracle(algorithm, objective, (draws, scale))


ETA = PowerDecay(0.6, 0.5)
FIXED = {"gradient_bound": 1.3}
AGAINST_LOOPS = [
    # the proposed algorithm: every objective, both schedules, both forms of the graph
    ("ridge", ZCDPNFL(0.7, ETA), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("ridge", ZCDPNFL(0.7, ETA), ZCDP(3.0, 0.8, schedule="variance", **FIXED), "padded"),
    ("elastic", ZCDPNFL(2.0, 0.3), ZCDP(3.0, 0.9, **FIXED), "padded"),
    ("lad", ZCDPNFL(0.7, ETA), ZCDP(3.0, 0.8, schedule="variance", **FIXED), "dense"),
    ("logistic", ZCDPNFL(0.7, ETA), ZCDP(3.0, **FIXED), "dense"),
    ("logistic", ZCDPNFL(0.7, ETA), None, "padded"),
    ("lad", ZCDPNFL(0.7, ETA), PureDP(9.0, 0.8, **FIXED), "dense"),
    # the comparators
    ("ridge", EpsilonDeltaNFL(0.7, ETA), ApproximateDP(6.0, 1e-3, **FIXED), "dense"),
    (
        "elastic",
        EpsilonDeltaNFL(0.7, ETA),
        ApproximateDP(3.0, 1e-3, 0.9, rule="geometric", **FIXED),
        "padded",
    ),
    (
        "lad",
        EpsilonDeltaNFL(0.7, ETA),
        ApproximateDP(60.0, 1e-3, 0.9, rule="geometric", calibration="zcdp", **FIXED),
        "dense",
    ),
    ("ridge", ZCDPGradNFL(PowerDecay(0.1, 1.0)), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("elastic", ZCDPGradNFL(0.05), ZCDP(3.0, 0.8, schedule="variance", **FIXED), "padded"),
    ("lad", ZCDPGradNFL(0.05), ApproximateDP(6.0, 1e-3, **FIXED), "dense"),
    ("ridge", PADMM(1.4), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("ridge", PADMM(1.4), ZCDP(3.0, 0.8, schedule="variance", **FIXED), "padded"),
    ("logistic", PADMM(1.4, inner_iterations=400), ZCDP(3.0, 0.8, **FIXED), "dense"),  # in a ball
    ("ridge", NetworkedADMM(1.4), None, "padded"),
    ("elastic", NetworkedADMM(1.4, inner_iterations=400), None, "dense"),
    ("logistic", NetworkedADMM(1.4, inner_iterations=400), None, "dense"),
    ("lad", NetworkedADMM(1.4, inner_iterations=5000), None, "dense"),
    # with a server
    ("ridge", ConventionalFL(PowerDecay(0.1)), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("lad", ConventionalFL(0.1, local_steps=3), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("logistic", ConventionalFL(0.3, local_steps=2), PureDP(9.0, **FIXED), "dense"),
    ("elastic", ConventionalFL(PowerDecay(0.1)), None, "dense"),
    ("lad", ConventionalFL(0.1), None, "dense"),
]


def describe(case):
    name, algorithm, privacy, form = case
    return f"{type(algorithm).label}-{name}-{type(privacy).__name__}-{form}"


CLIPPED = [
    ("ridge", ZCDPNFL(0.7, ETA), ZCDP(3.0, 0.8, **FIXED), "dense"),
    ("lad", ZCDPGradNFL(0.05), ApproximateDP(6.0, 1e-3, **FIXED), "padded"),
    ("logistic", ConventionalFL(0.3, local_steps=2), ZCDP(3.0, **FIXED), "dense"),
    ("ridge", ConventionalFL(0.1), None, "dense"),
]


@pytest.mark.thin(4)
@pytest.mark.core
@pytest.mark.parametrize("case", AGAINST_LOOPS, ids=describe)
def test_models_equal_the_loops(case):
    compare(case, clip=None)


@pytest.mark.thin(1)
@pytest.mark.parametrize("case", CLIPPED, ids=describe)
def test_clipped_models_equal_the_loops(case):
    compare(case, clip=0.8)


def compare(case, clip):
    name, algorithm, privacy, form = case
    problem = make_problem(name, clip)
    if name == "logistic" and isinstance(algorithm, PADMM):
        longest = np.linalg.norm(problem.features, axis=2).max()
        problem = dataclasses.replace(problem, feature_bound=1.001 * longest)
    simulation = fl.Simulation(problem, algorithm, make_network(form), privacy=privacy)
    key = as_key(3)
    rounds = 4 if isinstance(algorithm, NetworkedADMM) else ROUNDS
    draws = draws_of(key, privacy, rounds)
    ours = trajectory(simulation, rounds, key)
    theirs = reference(algorithm, privacy, make_objective(name, clip), draws)
    scale = np.abs(theirs).max()
    # an inner solver of a nonsmooth loss converges sublinearly, everything else is arithmetic
    accuracy = 1e-8 if name == "lad" and isinstance(algorithm, NetworkedADMM) else 1e-10
    if isinstance(privacy, PureDP):  # whose messages are rounded to a grid
        accuracy = 1e-5
    close(ours / scale, np.broadcast_to(theirs, ours.shape) / scale, rtol=0, atol=accuracy)
    assert np.abs(theirs[-1] - theirs[0]).max() > 1e-3 * scale


def largest_entries(message, count):
    kept = np.zeros_like(message)
    rows = np.argsort(-np.abs(message))[:count]
    kept[rows] = message[rows]
    return kept


@pytest.mark.thin(1)
@pytest.mark.parametrize("part", ["both", "attackers", "compression"])
def test_poisoned_and_compressed_zcdp_nfl_equals_the_loop(part):
    """Gauthier et al. 2023 (zCDP-NFL), section 6, names both as future work, without equations:
    here noise is added, then the message is compressed, then attackers send another one.
    """
    algorithm = ZCDPNFL(0.7, ETA)
    privacy = ZCDP(3.0, 0.8, **FIXED)
    attackers = np.arange(CLIENTS) == 1
    parts = {}
    if part != "compression":
        parts |= {"attack": fl.attacks.SignFlip(attackers, 0.5), "honest_only": True}
    if part != "attackers":
        parts["compression"] = fl.link.TopK(2)

    def sent(k, message):
        if "compression" in parts:
            message = largest_entries(message, 2)
        return -0.5 * message if "attack" in parts and attackers[k] else message

    simulation = fl.Simulation(make_problem(), algorithm, make_network(), privacy, **parts)
    key = as_key(3)
    objective = make_objective()
    noise = draws_of(key, privacy)
    scale = scale_of(privacy, sensitivity_of(algorithm, objective, 1.3, len(noise)))
    expected = nfl.zcdp_nfl(objective, EDGES, 0.7, step_of(ETA), noise, scale, sent=sent).model
    plain = nfl.zcdp_nfl(objective, EDGES, 0.7, step_of(ETA), noise, scale).model
    close(trajectory(simulation, key=key), expected, rtol=1e-10, atol=1e-10)
    assert np.abs(expected - plain).max() > 1e-3


@pytest.mark.thin(1)
@pytest.mark.parametrize("algorithm", [PADMM(1.4), ZCDPNFL(0.7, ETA)], ids=["P-ADMM", "zCDP-NFL"])
def test_fewer_samples_than_parameters(algorithm):
    """The primal step then works in the sample space."""
    shape = {"sizes": (2, 1, 3, 2, 1), "dim": 6}
    privacy = ZCDP(3.0, 0.8)
    simulation = fl.Simulation(make_problem(**shape), algorithm, make_network(), privacy)
    key = as_key(4)
    draws = draws_of(key, privacy, dim=6)
    theirs = reference(algorithm, privacy, make_objective(**shape), draws)
    close(trajectory(simulation, key=key), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_advanced_composition_against_the_loops():
    privacy = ApproximateDP(5.0, 1e-3, rule="advanced")
    algorithm = EpsilonDeltaNFL(0.7, ETA)
    simulation = fl.Simulation(make_problem(), algorithm, make_network(), privacy)
    key = as_key(5)
    theirs = reference(algorithm, privacy, make_objective(), draws_of(key, privacy))
    close(trajectory(simulation, key=key), theirs, rtol=1e-9, atol=1e-9)


def test_the_loops_primal_step_is_the_minimizer_of_its_definition():
    """(7) by its closed form against random points around: the reference checks itself."""
    objective = make_objective("elastic")
    rng = np.random.default_rng(6)
    received, dual = rng.normal(size=(2, CLIENTS, DIM))
    step = step_of(ETA)
    for k, near in enumerate(nfl.neighbors(CLIENTS, EDGES)):
        linear = sum(0.7 * (received[k] + received[l]) for l in near)  # noqa: E741
        right = received[k] / step(3) + linear - dual[k] - objective.gradient(k, received[k])
        w = right / (2 * 0.7 * len(near) + 1 / step(3))
        value = lambda w: nfl.linearized_objective(  # noqa: E731
            objective,
            EDGES,
            0.7,
            step,
            3,
            k,  # noqa: B023
            received,
            dual,
            w,
        )
        for size in (1e-3, 1e-1, 1.0):
            assert value(w) < value(w + size * rng.normal(size=DIM))


# Identities and limits -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("label", ["zCDP-NFL", "(eps,delta)DP-NFL", "ADMM", "P-ADMM"])
def test_duals_sum_to_zero_in_every_round(label):
    """T10, noise included."""
    for state in states(simulate(label)):
        size = float(jnp.abs(state.dual).max())
        assert size > 1e-3
        assert float(jnp.abs(jnp.sum(state.dual, axis=0)).max()) < 1e-13 * (1 + size)


@pytest.mark.slow
def test_p_admm_without_noise_is_admm():
    """T12, bit by bit."""
    private = simulate("P-ADMM", private=False)
    np.testing.assert_array_equal(trajectory(private), trajectory(simulate("ADMM")))


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["ridge", "elastic", "logistic"])
def test_without_noise_all_algorithms_reach_the_centralized_optimum(name):
    """T8, T9, T13."""
    problem = make_problem(name)
    best = np.asarray(optimum(problem))
    algorithms = [ZCDPNFL(0.5, 0.3), EpsilonDeltaNFL(0.5, 0.3), NetworkedADMM(0.5)]
    if name != "elastic":
        algorithms.append(PADMM(0.5))
    for algorithm in algorithms:
        last = trajectory(fl.Simulation(problem, algorithm, make_network()), 800)[-1]
        close(last, np.tile(best, (CLIENTS, 1)), atol=1e-9)


@pytest.mark.slow
def test_without_noise_least_absolute_deviation_is_approached():
    """T8: sublinear, and slower for a vanishing step."""
    problem = make_problem("lad")
    best = np.asarray(optimum(problem))
    models = trajectory(fl.Simulation(problem, ZCDPNFL(1.0, PowerDecay(0.5)), make_network()), 4000)
    error = ((models - best) ** 2).sum((1, 2)) / (best**2).sum()
    assert error[-1] < 1e-3 < error[20]
    assert error[-1] < 0.5 * error[400] < 0.25 * error[40]


@pytest.mark.slow
def test_subgradient_descent_with_a_constant_step_stops_short():
    """T11: at the solution of ``(I - A) w = -alpha f'(w)``, a neighborhood of size alpha."""
    problem = make_problem()
    objective = make_objective()
    best = np.asarray(optimum(problem))
    weights = nfl.metropolis(CLIENTS, EDGES)
    distances = []
    for step in (0.02, 0.01):
        models = trajectory(fl.Simulation(problem, ZCDPGradNFL(step), make_network()), 4000)
        close(models[-1], models[-2], atol=1e-13)
        system = np.kron(np.eye(CLIENTS) - weights, np.eye(DIM))
        right = np.zeros(CLIENTS * DIM)
        for k, (X, y) in enumerate(objective.data):
            rows = slice(k * DIM, (k + 1) * DIM)
            hessian = 2 / len(y) * X.T @ X + 2 * STRENGTH / CLIENTS * np.eye(DIM)
            system[rows, rows] += step * hessian
            right[rows] = step * 2 / len(y) * X.T @ y
        close(models[-1].ravel(), np.linalg.solve(system, right), atol=1e-10)
        distances.append(np.linalg.norm(models[-1] - best))
    assert distances[1] > 1e-3
    assert 1.7 < distances[0] / distances[1] < 2.1


def at_optimum(label, problem, network):
    """The state in which every client knows the optimum and the duals explain why it stays."""
    best = jnp.tile(optimum(problem), (problem.clients, 1))
    gradient = problem.gradient(best)
    algorithm = CASES[label].algorithm
    state = algorithm.init(problem.prepare(), network)
    received = network.neighbor_sum(best)
    if "sent" not in state._fields:  # it receives a weighted mean, of equal messages
        received = best
    fields = {"model": best, "sent": best, "received": received, "dual": -gradient, "mixed": best}
    fields |= {"slope": gradient, "correction": -gradient}
    if label in ("EXTRA", "PG-EXTRA", "LED", "Exact diffusion"):
        fields["dual"] = (
            -getattr(algorithm, "local_steps", 1) * step_of(algorithm.step_size)(1) * gradient
        )
    elif label == "Wang-Elia":
        disagreement = (np.eye(CLIENTS) - network.mixing().matrix()) / 2
        fields["integral"] = (
            -step_of(algorithm.step_size)(1) * np.linalg.pinv(disagreement) @ gradient
        )
    elif label == "ADMM tracking":
        linear = algorithm.penalty * network.degree[:, None] * best
        fields |= {
            name: jnp.concatenate([linear, sign * gradient], axis=1)
            for name, sign in (("own", -1), ("others", 1))
        }
    elif label == "Network-DANE":
        fields["tracker"] = 0 * gradient
    elif label == "NIDS":
        fields["point"] = best + algorithm.step_size * (gradient - problem.loss_gradient(best))
    if label in SERVED:
        disagreement = best - float(getattr(algorithm, "penalty", 0)) * gradient
        fields = dict.fromkeys(("model", "average"), best[0])
        fields |= {"controls": gradient, "gradients": gradient, "local": best}
        fields |= {"workers": best, "models": best}
        fields |= {
            "dual": -gradient,
            "center": best,
            "sent": disagreement,
            "auxiliary": disagreement,
        }
    return state._replace(**{name: fields[name] for name in state._fields if name in fields})


@pytest.mark.slow
@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "label",  # FedAdam's model rests, too, and its second moments go on to decay
    [label for label in PLAIN if CASES[label].rests != "never"],
)
def test_the_optimum_is_a_fixed_point(label):
    data = make_data()
    if CASES[label].rests == "alike":
        data = tuple(data[:1] * CLIENTS)
    problem = make_problem(data=data)
    network = make_network()
    stepper = Stepper(simulate(label, problem, network, private=False), ROUNDS)
    start = state = at_optimum(label, problem, network)
    for n in (1, 2, 3):
        state = stepper(state, n)[0]
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(state), strict=True):
        close(after, before, atol=1e-12)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "label",  # SuPerFed's draws are of a client's number, FedCross's of its place; so are edges
    sorted(
        {*PLAIN, *PERSONAL, *PREDICTING[:2], "Online-Fed"}
        - {"SuPerFed", "FedCross", "HierFAVG", "Hier-Local-QSGD"}
    ),
)
def test_relabeling_clients_relabels_the_models(label):
    """Between the two forms of the graph, too."""
    order = np.array([3, 0, 4, 1, 2])
    position = np.argsort(order)
    data = make_data()
    other = make_network("padded", edges=[(int(position[a]), int(position[b])) for a, b in EDGES])
    first = simulate(label, make_problem(data=data), private=False)
    second = simulate(label, make_problem(data=tuple(data[k] for k in order)), other, private=False)
    close(trajectory(second), trajectory(first)[:, order], rtol=1e-9, atol=1e-11)
    if label in PRIVATE:
        algorithm = first.algorithm
        at = jnp.asarray(3)
        close(
            algorithm.sensitivity(second.problem, other, at, gap_of(second.problem)),
            algorithm.sensitivity(first.problem, make_network(), at, gap_of(first.problem))[order],
        )


# Sensitivity -----------------------------------------------------------------------------------


def hostile(rng, problem, name):
    """A replacement for client 2's sample 1, with its like in opposite direction."""
    x = rng.normal(size=(2, DIM)) * 10 ** rng.uniform(-1, 2)
    y = rng.normal(size=2) * 10 ** rng.uniform(-1, 3)
    if rng.random() < 0.5:
        x[1] = x[0]
        y[1] = -y[0]  # opposite residuals: opposite gradients
    if name == "logistic":
        y = np.sign(y)
    pair = []
    for row, target in zip(x, y, strict=True):
        features = np.asarray(problem.features).copy()
        targets = np.asarray(problem.targets).copy()
        features[2, 1] = row
        targets[2, 1] = target
        pair.append((features, targets))
    return pair


def message_change(label, name, algorithm, clip, trials=120):
    """``|difference| / sensitivity`` of client 2's message over hostile neighboring data sets.

    The state is random where it is public (received messages, the duals), so it stands for any
    transcript; it is the same for both data sets.
    """
    rng = np.random.default_rng(7)
    problem = make_problem(name, clip)
    network = make_network()
    number = jnp.asarray(2, jnp.int32)

    @jax.jit
    def message(features, targets, received, dual):
        changed = dataclasses.replace(problem, features=features, targets=targets).prepare()
        state = algorithm.init(changed, network)
        public = {
            "sent" if "sent" in state._fields else "received": received,
            "dual": dual,
            "model": received[0] if label == "FL" else received,
        }
        state = state._replace(**{f: v for f, v in public.items() if f in state._fields})
        sent, _ = listen(algorithm, state, changed, network, number)
        return sent, algorithm.sensitivity(changed, network, number, gap_of(changed, clip))

    ratios = []
    for _ in range(trials):
        perturbed, dual = rng.normal(size=(2, CLIENTS, DIM)) * 10 ** rng.uniform(-3, 1)
        (first, allowed), (second, same) = (
            message(*data, perturbed, dual) for data in hostile(rng, problem, name)
        )
        close(allowed, same)
        change = np.linalg.norm(first - second, axis=1)
        assert change[[0, 1, 3, 4]].max() == 0, "another client's message changed"
        ratios.append(change[2] / allowed[2])
    return np.array(ratios)


class Listener(Link):
    """A link that records the messages it sends."""

    exact = False

    def send(self, message, *args, **kwargs):
        self.message = message
        return message


def listen(algorithm, state, problem, network, number):
    """What the clients would send in a round, and the state after it."""
    link = Listener(as_key(0), number, ROUNDS, problem.clients, network)
    state = algorithm.step(state, Round(number, problem, network, link))
    return link.message, state


@pytest.mark.thin(8)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(
    ("label", "algorithm"),
    [
        ("zCDP-NFL", ZCDPNFL(0.7, ETA)),
        ("(eps,delta)DP-NFL", EpsilonDeltaNFL(0.7, ETA)),
        ("zCDP-grad-NFL", ZCDPGradNFL(0.3)),
        ("FL", ConventionalFL(0.3)),
    ],
)
def test_one_sample_changes_a_message_by_the_sensitivity_at_most(name, label, algorithm):
    """T5, and the bound is nearly attained by opposite gradients at the clip."""
    ratios = message_change(label, name, algorithm, clip=0.8)
    assert ratios.max() <= 1 + 1e-9
    assert ratios.max() > 0.95


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize(
    "regularizer", [NoRegularizer(), SquaredL2(), L1()], ids=["none", "l2", "l1"]
)
@pytest.mark.parametrize("strength", [0.5, 20.0])
def test_several_local_steps_change_a_message_by_the_sensitivity_at_most(regularizer, strength):
    """From the second step on, the regularizer too is met at points that depend on the data."""
    algorithm = ConventionalFL(0.3, local_steps=2)
    messages = []
    for target in (100.0, -100.0):  # opposite gradients of norm one, wherever the model goes
        data = [(np.array([[1.0], [0.0]]), np.array([target, 0.0])), (np.ones((2, 1)), np.ones(2))]
        problem = from_clients(data, LeastAbsoluteDeviation(), regularizer, strength).prepare()
        sent, _ = listen(algorithm, algorithm.init(problem, None), problem, None, 1)
        messages.append(sent[0])
    allowed = float(algorithm.sensitivity(problem, None, jnp.asarray(1), gap_of(problem))[0])
    assert 0 < float(jnp.linalg.norm(messages[0] - messages[1])) <= allowed * (1 + 1e-9)


@pytest.mark.parametrize("inner_iterations", [1, 4])
@pytest.mark.parametrize("previous", ["public", "private"])
def test_p_admm_message_changes_by_the_sensitivity_at_most(inner_iterations, previous):
    """Logistic, with features in a ball: the assumed bound is then true.

    Two rounds with the same transcript: a client's exact model is kept as a warm start and must not
    affect the next message.
    """
    rng = np.random.default_rng(8)
    bound = 1.0
    worst = 0.0
    algorithm = PADMM(0.3, inner_iterations=inner_iterations)
    network = make_network()
    ball = [(X / np.linalg.norm(X, axis=1, keepdims=True), y) for X, y in make_data("logistic")]

    @jax.jit
    def message(features, received, dual):
        problem = dataclasses.replace(base, features=features).prepare()
        start = algorithm.init(problem, network)._replace(sent=received, dual=dual)
        sent, state = listen(algorithm, start, problem, network, 1)
        if previous == "private":  # again, from the same public state but the new exact model
            state = state._replace(sent=received, dual=dual)
            sent, _ = listen(algorithm, state, problem, network, 2)
        return sent, algorithm.sensitivity(problem, network, jnp.asarray(1), gap_of(problem, bound))

    base = make_problem("logistic", data=tuple(ball))
    for _ in range(40):
        perturbed, dual = rng.normal(size=(2, CLIENTS, DIM)) * 10 ** rng.uniform(-1, 1)
        row = rng.normal(size=DIM)
        pair = []
        for sign in (1, -1):
            features = np.asarray(base.features).copy()
            features[0, 0] = sign * row / np.linalg.norm(row)
            pair.append(message(features, perturbed, dual))
        change = np.linalg.norm(pair[0][0][0] - pair[1][0][0])
        worst = max(worst, change / float(pair[0][1][0]))
    assert 0.2 < worst <= 1 + 1e-6


@pytest.mark.slow
def test_sensitivity_follows_the_heaviest_sample():
    """Samples may have unequal weights; one of weight 0.9 moves the mean by 0.9 of its gradient."""
    rng = np.random.default_rng(9)
    X = rng.normal(size=(2, 4, 1))
    y = rng.normal(size=(2, 4))
    X[0, 0] = 1.0
    weights = np.tile([0.91, 0.03, 0.03, 0.03], (2, 1))
    algorithm = ZCDPGradNFL(0.1)
    network = make_network("dense", 2, [(0, 1)])
    messages = []
    for target in (50.0, -50.0):
        y[0, 0] = target
        try:
            problem = fl.problems.Problem(X, y, LeastAbsoluteDeviation(), weights=weights)
        except ValueError:
            return  # refusing unequal weights is as good
        sent, _ = listen(algorithm, algorithm.init(problem, network), problem, network, 1)
        messages.append(sent[0])
    allowed = algorithm.sensitivity(problem, network, jnp.asarray(1), gap_of(problem))[0]
    assert abs(float(messages[0][0] - messages[1][0])) <= float(allowed) * (1 + 1e-9)


@pytest.mark.parametrize("label", [label for label in PRIVATE if label in PLAIN])
def test_sensitivity_is_the_formula(label):
    """Lemma I (3.12) and its relatives, for unequal clients, at several rounds."""
    problem = make_problem()
    network = make_network()
    objective = make_objective()
    algorithm = CASES[label].algorithm
    gap = gap_of(problem, 1.7)
    if label == "P-ADMM":
        expected = nfl.minimizer_sensitivity(objective, EDGES, 0.9, 1.7, 5)
    elif label in ("zCDP-NFL", "(eps,delta)DP-NFL"):
        expected = nfl.lemma_one(objective, EDGES, 0.9, step_of(PowerDecay(0.5)), 1.7, 5)
    else:
        expected = nfl.gradient_sensitivity(objective, lambda n: 0.05, 1.7, 5)
    for n in range(1, 6):
        close(algorithm.sensitivity(problem, network, jnp.asarray(n), gap), expected[n - 1])
    if label == "FL":
        several = ConventionalFL(0.05, local_steps=3)
        expected = nfl.gradient_sensitivity(objective, lambda n: 0.05, 1.7, 5, 3)
        result = several.sensitivity(problem, network, jnp.asarray(1), gap)
        close(result, expected[0])


# The engine's contract -------------------------------------------------------------------------


def test_everything_registered_has_its_case():
    assert set(CASES) == set(REGISTRY)
    for label, case in CASES.items():
        assert type(case.algorithm) is REGISTRY[label]
        assert case.algorithm.label == label
        if label != "Hier-Local-QSGD":  # only its edges add noise, as HierFAVG's, which has a case
            assert (case.privacy is None) == (case.algorithm.needs.privacy == ())
        assert type(case.algorithm).__name__ in algorithms.__all__


def scaled(node, factor):
    """Every real number in a configuration times ``factor``, in a copy."""
    if dataclasses.is_dataclass(node):
        fields = {f.name: scaled(getattr(node, f.name), factor) for f in dataclasses.fields(node)}
        return dataclasses.replace(node, **fields)
    real = not isinstance(node, int) and np.issubdtype(np.asarray(node).dtype, np.floating)
    return (np.asarray(node) if np.ndim(node) else float(node)) * factor if real else node


@pytest.mark.thin(1, every=16)
@quiet
@pytest.mark.parametrize("label", STEPS)
def test_new_numbers_do_not_compile_again(label):
    """New key, data, network, penalty, step and budget: one program."""
    before = _run.jitted._cache_size()
    programs = []
    metric = "consensus_error" if label in (*STREAMED, *READING) else "normalized_error"
    for seed, factor in enumerate((1.0, 0.9, 0.8)):  # some are at most one
        network = make_network(edges=EDGES[:-1] if seed == 1 else EDGES)
        if REGISTRY[label].needs.complete:
            network = None
        simulation = simulate(label, make_problem(seed=seed), network, metrics=[metric])
        simulation = dataclasses.replace(
            simulation,
            algorithm=scaled(simulation.algorithm, factor),
            privacy=scaled(simulation.privacy, factor),
        )
        fl.run(simulation, ROUNDS, key=seed if seed else as_key(9))
        programs.append(_run.jitted._cache_size())
    assert programs[0] == programs[1] == programs[2] > before


@pytest.mark.thin(2, every=16)
@pytest.mark.parametrize("label", STEPS)
def test_a_step_keeps_the_state_s_types(label):
    stepper = Stepper(simulate(label), ROUNDS)
    state = stepper.start()
    new, witnessed, _ = stepper(state, 1)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert jnp.shape(after) == jnp.shape(before)
        assert jnp.result_type(after) == jnp.result_type(before)
        assert not after.weak_type
    assert witnessed is not None or label not in PRIVATE
    assert jnp.shape(witnessed or 0.0) == ()
    # Clients of kNN-Per differ in what they predict with the server's model.
    personalized = "personalized" in REGISTRY[label].__module__ and label != "kNN-Per"
    shared = label in SERVED and not personalized and label not in PREDICTING
    dim = stepper.simulation.problem.dim
    assert state.model.shape == ((dim,) if shared else (CLIENTS, dim))
    assert (float(jnp.abs(state.model).max()) == 0) == (label not in ("IFCA", "FedEM", "FLoRA"))


@pytest.mark.thin(1, every=16)
@pytest.mark.parametrize("label", [*PLAIN, "Ditto", "PGFL", "NPFL-RL"])
def test_a_batch_of_keys_is_as_many_runs(label):
    simulation = simulate(label, metrics=(EXACT,))
    keys = jax.random.split(as_key(10), 3)
    batch = jax.jit(jax.vmap(lambda key: trace(simulation, key, ROUNDS, 1)[0]["exact"]))(keys)
    for key, models in zip(keys, batch, strict=True):
        close(models, trajectory(simulation, key=key), rtol=1e-10, atol=1e-11)
    if label in PRIVATE:
        assert float(jnp.abs(batch[0] - batch[1]).max()) > 1e-3


@pytest.mark.thin(16, every=24)
@pytest.mark.slow
@pytest.mark.parametrize("label", [*PLAIN, "Ditto", "PGFL", "NPFL-RL"])
def test_step_by_step_is_the_scan(label):
    simulation = simulate(label)
    key = as_key(11)
    step_by_step = [np.broadcast_to(s.model, (CLIENTS, DIM)) for s in states(simulation, key=key)]
    close(trajectory(simulation, key=key), step_by_step, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
@quiet
def test_compressing_a_private_message_keeps_its_noise_and_its_cost():
    """The difference from the server's model is rounded after it was perturbed."""
    plain = simulate("FL", metrics=("normalized_error",))
    rounded = dataclasses.replace(plain, compression=fl.link.Quantize(16))
    public = dataclasses.replace(rounded, privacy=None)
    first, second, third = (fl.run(s, ROUNDS, as_key(3)) for s in (plain, rounded, public))
    close(second.privacy_rho, first.privacy_rho)
    close(second.model, first.model, atol=1e-3)
    assert float(abs(second.model - third.model).max()) > 0.01
    assert int(second.bits_up[-1]) == ROUNDS * CLIENTS * (16 * DIM + 32)
    collecting = Link(as_key(0), 1, 2, 2, stages=Stages(ZCDP(1.0)))
    with pytest.raises(ValueError, match="in a private round clients must send"):
        collecting.collect(jnp.ones((2, 3)), jnp.ones(2, bool), jnp.zeros(3))


@pytest.mark.slow
def test_a_run_returns_its_last_models():
    simulation = simulate("zCDP-NFL")
    key = as_key(11)
    with pytest.warns(fl.AssumptionWarning, match=r"bound 1\. The data at hand .* above it"):
        close(fl.run(simulation, ROUNDS, key).model, trajectory(simulation, key=key)[-1])


@pytest.mark.thin(2)
@pytest.mark.parametrize("label", PRIVATE)
def test_clipping_makes_the_assumption_hold(label, recwarn):
    problem = make_problem()
    if label in ("P-ADMM", "PGFL", "GFL", "ClusterFL", "PGFL, by gradient"):
        with pytest.raises(ValueError, match="clipping cannot be applied inside an exact"):
            fl.run(simulate(label, problem.clipped(1.0)), 3)
        return
    results = fl.run(simulate(label, problem.clipped(1.0)), 3)
    assert not recwarn.list
    assert 0.99 < float(results.gradient_norm) <= 1 + 1e-12
    close(results.gradient_bound, 1)


@pytest.mark.thin(3)
@quiet
@pytest.mark.parametrize(
    ("label", "form"),
    [*((label, "dense") for label in PLAIN), ("zCDP-NFL", "padded")],
)
def test_traffic_and_privacy_are_counted(label, form):
    """``2E`` messages of ``D`` numbers a round on a network, ``2K`` with a server."""
    results = fl.run(simulate(label, network=make_network(form)), ROUNDS, record_every=4)
    messages_per_round = 2 * CLIENTS if label in SERVED else 2 * len(EDGES)
    messages_per_round *= 1 + (label in ("Diffusion, general", "Aug-DGM"))  # one after the other
    messages, models = CASES[label].sent
    size = DIM if label in SERVED else CASES[label].algorithm.message_size(DIM)
    of_messages = messages * messages_per_round // 2
    of_numbers = round(models * messages_per_round * size / 2)
    assert results.messages.values.tolist() == [4 * of_messages, 8 * of_messages, 12 * of_messages]
    assert results.scalars.values.tolist() == [4 * of_numbers, 8 * of_numbers, 12 * of_numbers]
    if label == "(eps,delta)DP-NFL":
        close(results.privacy_epsilon, [2 / 3, 4 / 3, 2], rtol=1e-12)
        close(results.privacy_delta, [1e-3 / 3, 2e-3 / 3, 1e-3], rtol=1e-12)
    elif label in PRIVATE:
        expected = np.cumsum(nfl.zcdp_parameters(2.0, 0.9, ROUNDS))[[3, 7, 11]]
        close(results.privacy_rho, expected, rtol=1e-12)
    elif CASES[label].privacy is not None:
        close(
            results.privacy_rho,
            np.array([4, 8, 12]) * float(results.privacy_rho[-1]) / 12,
            rtol=1e-12,
        )
    else:
        assert not [name for name in results if name.startswith("privacy")]


def test_noise_is_added_to_the_message_not_to_the_model():
    """One round from zero: the exact models do not contain the noise, the received ones do."""
    private = Stepper(simulate("zCDP-NFL"), 3)
    plain = Stepper(simulate("zCDP-NFL", private=False), 3)
    noisy = private(private.start(), 1)[0]
    clean = plain(plain.start(), 1)[0]
    close(noisy.model, clean.model, rtol=1e-14)
    assert float(jnp.abs(noisy.sent - clean.sent).max()) > 1e-2
    np.testing.assert_array_equal(clean.sent, clean.model)


# What is refused -------------------------------------------------------------------------------

TWO = make_problem("lad")


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: ZCDPNFL(0.0, 1.0), "penalty must be finite and > 0, got 0"),
        (ValueError, lambda: ZCDPNFL(-1.0, 1.0), "penalty must be finite and > 0, got -1"),
        (ValueError, lambda: ZCDPNFL(1.0, 0.0), "step size must be finite and > 0, got 0"),
        (ValueError, lambda: EpsilonDeltaNFL(1.0, -0.1), "step size must be finite and > 0"),
        (ValueError, lambda: ZCDPGradNFL(np.nan), "step size must be finite and > 0, got nan"),
        (ValueError, lambda: ConventionalFL(-1.0), "step size must be finite and > 0"),
        (ValueError, lambda: ConventionalFL(1.0, 0), "local_steps must be >= 1, got 0"),
        (TypeError, lambda: ConventionalFL(1.0, 1.5), "local_steps must be an integer"),
        (ValueError, lambda: FedAvg(0.0), "step size must be finite and > 0"),
        (ValueError, lambda: FedAvg(1.0, 0), "clients_per_round must be >= 1, got 0"),
        (TypeError, lambda: FedAvg(1.0, 0.5), "clients_per_round must be an integer, got 0.5"),
        (ValueError, lambda: FedAvg(1.0, epochs=0), "epochs must be >= 1, got 0"),
        (TypeError, lambda: FedAvg(1.0, epochs=None), "epochs must be an integer, got None"),
        (ValueError, lambda: FedAvg(1.0, batch=0), "batch must be >= 1, got 0"),
        (ValueError, lambda: FedAvg(1.0, weighting="sample"), "Did you mean 'samples'"),
        (
            ValueError,
            lambda: fl.run(fl.Simulation(TWO, FedAvg(1.0, 6)), 2),
            "clients_per_round must be at most the 5 clients of the problem, got 6",
        ),
        (
            ValueError,
            lambda: fl.run(fl.Simulation(TWO, FedAvg(1.0, 2, 1, 13)), 2),
            "batch must be at most the 12 samples of the largest client, got 13",
        ),
        (
            ValueError,
            lambda: fl.Simulation(TWO, FedAvg(1.0), privacy=ZCDP(1.0)),
            "FedAvg does not run under ZCDP; it accepts CentralGaussian",
        ),
        (
            ValueError,
            lambda: Link(as_key(0), 1, 2, 2, stages=Stages(ZCDP(1.0))).send(jnp.ones((2, 3))),
            "a private round needs the sensitivity of its message",
        ),
        (ValueError, lambda: NetworkedADMM(np.inf), "penalty must be finite and > 0, got inf"),
        (ValueError, lambda: PADMM(0.0), "penalty must be finite and > 0, got 0"),
        (ValueError, lambda: PADMM(1.0, 0), "inner_iterations must be >= 1, got 0"),
        (ValueError, lambda: PowerDecay(0.0), "initial step size must be finite and > 0"),
        (
            ValueError,
            lambda: PowerDecay(1.0, 1.5),
            "power must be finite and >= 0 and <= 1.*stalls",
        ),
        (ValueError, lambda: PowerDecay(1.0, -0.5), "power must be finite and >= 0"),
        (ValueError, lambda: Constant(0.0), "step size must be finite and > 0"),
        (TypeError, lambda: ZCDPNFL("big", 1.0), "penalty must be a number, got 'big'"),
        (
            ValueError,
            lambda: fl.Simulation(TWO, NetworkedADMM(1.0), make_network(), ZCDP(1.0)),
            "ADMM does not run under ZCDP; it has no private form",
        ),
        (
            ValueError,
            lambda: fl.Simulation(TWO, EpsilonDeltaNFL(1.0, 1.0), make_network(), ZCDP(1.0)),
            "does not run under ZCDP; it accepts ApproximateDP",
        ),
        (
            ValueError,
            lambda: fl.Simulation(
                TWO, ZCDPNFL(1.0, 1.0), make_network(nodes=6, edges=[*EDGES, (5, 0)])
            ),
            "6 nodes but the problem 5 clients",
        ),
        (ValueError, lambda: fl.Simulation(TWO, ZCDPNFL(1.0, 1.0)), "zCDP-NFL runs on a graph"),
        (
            ValueError,
            lambda: fl.run(fl.Simulation(TWO, PADMM(1.0), make_network()), 2),
            "P-ADMM needs a smooth objective, got LeastAbsoluteDeviation",
        ),
        (
            ValueError,
            lambda: fl.run(fl.Simulation(make_problem("elastic"), PADMM(1.0), make_network()), 2),
            "P-ADMM needs a smooth objective, got LeastSquares with ElasticNet",
        ),
        (
            ValueError,
            lambda: fl.run(fl.Simulation(TWO.clipped(1.0), NetworkedADMM(1.0), make_network()), 2),
            "clipping cannot be applied inside an exact minimizer",
        ),
        (ValueError, lambda: fl.run(simulate("FL"), 0), "rounds must be >= 1"),
        (ValueError, lambda: fl.run(simulate("FL"), 5, record_every=2), "multiple of record_every"),
        (TypeError, lambda: fl.run("FL", 5), "simulation must be an instance of"),
    ],
)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_p_admm_takes_every_smooth_loss():
    data = make_data("logistic")
    for loss in (Logistic(), Huber(0.5)):
        problem = from_clients(data, loss, SquaredL2(), 0.3)
        results = fl.run(
            fl.Simulation(problem, PADMM(0.2), make_network(), metrics="normalized_error"), 400
        )
        assert float(results.normalized_error[-1]) < 1e-6
