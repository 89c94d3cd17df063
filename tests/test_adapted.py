"""Per-FedAvg, APFL, models shared in part, FedALA, FedAMP, FedFomo, APPLE, SuPerFed: loops."""

import dataclasses
import functools
from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax as fl
from fljax.algorithms import (
    APFL,
    APPLE,
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
    SuPerFed,
)
from fljax.batches import Uniform
from fljax.engine import begin, look, prepare
from tests import cases
from tests import small_network as small
from tests.reference import adapted
from tests.test_personal import (
    CLIENTS,
    DIM,
    LOCAL,
    REAL,
    ROUNDS,
    SIZES,
    close,
    describe,
    make_data,
    make_objective,
    make_problem,
    new_key,
    records,
    running,
    some_world,
    state_after,
    trajectory,
)

HEAD, ALL = (1,), range(DIM)


def hessian(k, w, rows=None):
    """Of the ridge problem: what is exact needs it."""
    X, _ = make_data()[k]
    X = X if rows is None else X[rows]
    return 2 / len(X) * X.T @ X + 2 * 0.8 / CLIENTS * np.eye(DIM)


def samples_of(batch, row):
    """``[steps]`` lists of the samples of one participant's steps, as drawn in the run."""
    return [[int(j) for j in step] for step in np.asarray(batch.rows[row])]


def visited(simulation, key, draws=None):
    """``[T][K]``: of each draw what the participants' steps are on; of all else nothing."""

    @jax.jit
    def invited(n):
        ready = prepare(simulation, ROUNDS)
        now, *_ = look(simulation, ready, key, begin(simulation, ready, key), n, ROUNDS)
        return simulation.algorithm.invite(now, draws=draws)

    work = []
    for n in range(1, ROUNDS + 1):
        cohort = invited(n)
        each = [[] for _ in range(CLIENTS)]
        for row, k in enumerate(np.asarray(cohort.who.numbers)):
            one = functools.partial(steps_of, cohort, row, SIZES[k])
            if draws is None:
                each[k] = one(cohort.batch)
            else:
                parts = [jax.tree.map(lambda a, i=i: a[i], cohort.batch) for i in range(draws)]
                each[k] = [one(part) for part in parts]
        work.append(each)
    return work


def steps_of(cohort, row, size, batch):
    """A participant's steps on a batch of nothing are none."""
    result = [[j for j in step if j < size] for step in samples_of(batch, row)]
    if cohort.limit is not None:
        result = result[: int(cohort.limit[row])]
    return [step for step in result if step]


#: Full batches, and drawn ones: of clients that have fewer, and of a law with steps of each.
STEPS = (3, 1, 2, 4, 1, 2)
FORMS = {
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


def theirs(algorithm, name, world, **given):
    if isinstance(algorithm, PerFedAvg):
        given["hessian"] = hessian
    return cases.CASES[algorithm.label].oracle(algorithm, make_objective(name), world, **given)


def seeded(algorithm, seed):
    """What its loop needs to know besides: it draws as the run does."""
    return {"seed": seed} if isinstance(algorithm, SuPerFed | FedFomo) else {}


#: The Hessian is of the ridge problem.
AGAINST_LOOPS = [
    (form, *world)
    for form in FORMS
    for world in (("logistic", False), ("ridge", True))
    if world[0] == "ridge" or form != "per-fedavg exact"
    if FORMS[form].needs.late or not world[1]
]


@pytest.mark.thin(3)
@pytest.mark.core
@pytest.mark.parametrize(("form", "name", "late"), AGAINST_LOOPS)
def test_models_are_those_of_the_loops(form, name, late):
    algorithm, key = FORMS[form], new_key(4)
    parts, world = some_world(algorithm, True, late, key)
    ours = trajectory(fl.Simulation(make_problem(name), algorithm, **parts), key=key)
    expected = theirs(algorithm, name, world, **seeded(algorithm, 4))
    close(ours, expected, rtol=0, atol=1e-10)
    assert np.ptp(expected[-1], axis=0).max() > 1e-2  # clients differ
    assert np.abs(expected[-1] - expected[1]).max() > 1e-2  # and move


@pytest.mark.slow
@pytest.mark.parametrize("form", DRAWN)
def test_drawn_batches_are_those_of_the_loops(form):
    algorithm, key = DRAWN[form], new_key(5)
    parts, world = some_world(algorithm, True, False, key)
    simulation = fl.Simulation(make_problem(), algorithm, **parts)
    given = seeded(algorithm, 5)
    if isinstance(algorithm, PerFedAvg):
        three = visited(simulation, key, 3)
        given["work"] = [[list(zip(*part, strict=True)) for part in each] for each in three]
    elif isinstance(algorithm, FedRep):
        passes = visited(simulation, key, algorithm.head_epochs + 1)
        given["work"] = [[part[-1] if part else [] for part in each] for each in passes]
        given["heads"] = [[list(chain(*part[:-1])) for part in each] for each in passes]
    else:
        given["work"] = visited(simulation, key)
    ours = trajectory(simulation, key=key)
    close(ours, theirs(algorithm, "ridge", world, **given), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_batches_of_a_step_are_drawn_for_themselves():
    """Each of the three has all of a client's samples once an epoch, in an order of its own."""
    algorithm = PerFedAvg(0.1, batch=1, personal_step_size=0.05)
    simulation = fl.Simulation(make_problem(), algorithm)
    (each, *_), again = visited(simulation, new_key(), 3), visited(simulation, new_key(), 3)[0]
    assert each == again
    for k, three in enumerate(each):
        orders = {tuple(np.ravel(steps).tolist()) for steps in three}
        assert all(sorted(order) == list(range(SIZES[k])) for order in orders)
        assert len(orders) == 3 or SIZES[k] < 5


# Networks ----------------------------------------------------------------------------------------

#: The second layer: its weights and offsets come last.
LAYER = tuple(range(small.FEATURES * small.HIDDEN + small.HIDDEN, 31))
NETWORKS = {
    "per-fedavg hf": PerFedAvg(0.3, personal_step_size=0.2, epochs=2),
    "per-fedavg fo": PerFedAvg(0.3, 4, personal_step_size=0.2, variant="first_order"),
    "apfl": APFL(0.3, 4, epochs=3, interpolation=0.4, interpolation_step_size=0.2),
    "fedper": FedPer(0.3, 4, epochs=2, personal=LAYER),
    "fedrep": FedRep(0.3, personal=LAYER, head_epochs=2),
    "fedbabu": FedBABU(0.3, 4, personal=tuple(range(5)), tuning_step_size=0.2, tuning_steps=2),
    "fedala": FedALA(0.3, 4, epochs=2, blend_steps=2, blended=LAYER),
    "superfed": SuPerFed(0.3, 4, epochs=2, attraction=0.1, orthogonality=0.3, warmup=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", NETWORKS)
def test_networks_are_those_of_the_loops(form):
    algorithm, key = NETWORKS[form], new_key(4)
    parts, world = some_world(algorithm, True, True, key)
    ours = trajectory(fl.Simulation(small.from_zero(SIZES), algorithm, **parts), key=key)
    objective = small.Objective(tuple(small.samples(SIZES)))
    oracle = cases.CASES[algorithm.label].oracle
    theirs = oracle(algorithm, objective, world, **seeded(algorithm, 4))
    close(ours, theirs, rtol=0, atol=1e-8)
    assert np.abs(theirs[-1] - theirs[1]).max() > 1e-2


@pytest.mark.slow
def test_the_exact_product_of_a_network_s_hessian_is_that_of_differences():
    def end(**changes):
        algorithm = PerFedAvg(0.3, personal_step_size=0.2, **changes)
        return trajectory(fl.Simulation(small.problem(SIZES), algorithm), 3)

    exact, near = end(variant="exact"), end(offset=1e-4)
    close(near, exact, rtol=0, atol=1e-8)
    assert np.abs(end(variant="first_order") - exact).max() > 1e-5


@pytest.mark.slow
def test_a_network_s_parameters_are_personal_by_their_paths():
    problem = small.problem(SIZES)
    assert np.flatnonzero(problem.coordinates("^[cd]$")).tolist() == list(LAYER)
    assert problem.coordinates(LAYER).tolist() == problem.coordinates("^[cd]$").tolist()
    by_path = fl.Simulation(problem, FedPer(0.3, personal="^[cd]$"))
    by_place = fl.Simulation(problem, FedPer(0.3, personal=LAYER))
    np.testing.assert_array_equal(trajectory(by_path, 3), trajectory(by_place, 3))
    assert records(by_path, 1, 1)["bits_up"] == [REAL * CLIENTS * (31 - len(LAYER))]
    late = fl.Simulation(problem, FedPer(0.3, personal="^[cd]$"), delays=fl.link.Uniform(1))
    assert np.isfinite(trajectory(late, 3)).all()
    with pytest.raises(ValueError, match="no parameter's path matches 'head'; there are: a, b"):
        running(FedPer(0.3, personal="head"), problem=problem)


@pytest.mark.slow
def test_normalization_stays_with_the_clients_by_default():
    def start(key):
        return small.start(key) | {"norm": {"scale": jnp.ones(small.HIDDEN)}}

    def outputs(parameters, x):
        hidden = jnp.tanh(x @ parameters["a"] + parameters["b"])
        return parameters["norm"]["scale"] * hidden @ parameters["c"] + parameters["d"]

    problem = fl.problems.Model.from_clients(
        fl.models.plain(start, outputs),
        jax.random.key(0),
        small.samples(SIZES),
        fl.problems.Softmax(small.CLASSES),
    )
    own = problem.coordinates(FedBN(0.3).personal)
    assert own.sum() == small.HIDDEN
    last = trajectory(fl.Simulation(problem, FedBN(0.3)))[-1]
    assert np.ptp(last[:, own], axis=0).min() > 1e-3
    assert np.ptp(last[:, ~own], axis=0).max() == 0


# Per-FedAvg: where it ends -----------------------------------------------------------------------


def quadratics():
    """``f_k(w) = w' A_k w / 2 - b_k' w`` of the ridge problem."""
    return [(hessian(k, None), 2 / len(y) * X.T @ y) for k, (X, y) in enumerate(make_data())]


@pytest.mark.thin(1)
@pytest.mark.parametrize("variant", ["hessian_free", "exact", "first_order"])
def test_per_fedavg_ends_at_the_stationary_point_of_its_objective(variant):
    r"""With one step: :math:`\sum_k(I-\alpha A_k)^2(A_kw-b_k)=0`, of FO once the factor."""
    alpha, power = 0.08, 1 if variant == "first_order" else 2
    left, right = np.zeros((DIM, DIM)), np.zeros(DIM)
    for A, b in quadratics():
        factor = np.linalg.matrix_power(np.eye(DIM) - alpha * A, power)
        left, right = left + factor @ A, right + factor @ b
    best = np.linalg.solve(left, right)
    algorithm = PerFedAvg(0.2, personal_step_size=alpha, variant=variant)
    last = trajectory(fl.Simulation(make_problem(), algorithm), 600)[-1]
    expected = [best - alpha * (A @ best - b) for A, b in quadratics()]
    close(last, expected, rtol=0, atol=1e-8)


def test_the_two_variants_end_apart():
    """As the docstring says: the first-order one is not at the objective's stationary point."""
    ends = []
    for power in (1, 2):
        factors = [np.linalg.matrix_power(np.eye(DIM) - 0.08 * A, power) for A, _ in quadratics()]
        left = sum(f @ A for f, (A, _) in zip(factors, quadratics(), strict=True))
        right = sum(f @ b for f, (_, b) in zip(factors, quadratics(), strict=True))
        ends.append(np.linalg.solve(left, right))
    assert np.abs(ends[0] - ends[1]).max() > 1e-2


@pytest.mark.slow
def test_the_exact_variant_is_the_gradient_of_its_objective():
    problem, alpha = make_problem("logistic"), 0.3
    algorithm = PerFedAvg(0.1, personal_step_size=alpha, variant="exact")
    start = np.random.default_rng(3).normal(size=DIM)

    def after(w):
        models = jnp.broadcast_to(w, (CLIENTS, DIM))
        return jnp.mean(problem.objective(models - alpha * problem.gradient(models)))

    now = fl.view(fl.Simulation(problem, algorithm))
    state = algorithm.init(now.problem, None)._replace(server=jnp.asarray(start))
    close(algorithm.step(state, now).server, start - 0.1 * jax.grad(after)(start), atol=1e-12)


@pytest.mark.slow
def test_hessian_free_is_second_order_in_its_offset():
    def end(**changes):
        algorithm = PerFedAvg(0.3, personal_step_size=0.5, epochs=3, **changes)
        return trajectory(fl.Simulation(make_problem("logistic"), algorithm))[-1]

    exact = end(variant="exact")
    errors = [np.abs(end(offset=offset) - exact).max() for offset in (0.4, 0.2, 0.1)]
    close(np.divide(errors[:-1], errors[1:]), 4, rtol=0.1)


@pytest.mark.slow
def test_a_short_personal_step_makes_per_fedavg_federated_averaging():
    ours = PerFedAvg(0.1, personal_step_size=1e-9, epochs=2)
    known = FedAvg(0.1, epochs=2, weighting="equal")
    result, expected = (trajectory(fl.Simulation(make_problem(), a)) for a in (ours, known))
    close(result, expected, rtol=0, atol=1e-7)


# APFL: its limits --------------------------------------------------------------------------------


@pytest.mark.slow
def test_apfl_without_personal_models_is_federated_averaging():
    parts = some_world(APFL(0.1, 4), True, True, new_key())[0]
    ours, known = APFL(LOCAL, 4, 2, interpolation=0.0), FedAvg(LOCAL, 4, 2, weighting="equal")
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, known)
    )
    close(result, expected, rtol=0, atol=1e-13)


def test_apfl_of_personal_models_alone_is_training_alone():
    parts = some_world(APFL(0.1), True, False, new_key())[0]
    ours, known = APFL(LOCAL, epochs=3, interpolation=1.0), LocalOnly(LOCAL, 3)
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, known)
    )
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_adapted_mixtures_stay_mixtures_and_are_those_of_the_loop():
    algorithm = APFL(0.1, epochs=2, interpolation=0.9, interpolation_step_size=2.0)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    objective, world = make_objective(), some_world(algorithm, False, False, new_key())[1]
    given = cases.whole(2, ROUNDS, CLIENTS), np.ones(CLIENTS), np.zeros(DIM)
    numbers = cases.step_of(algorithm.step_size), 0.9, lambda n: 2.0
    _, mixing = adapted.apfl(cases.sampled(objective), world, *given, *numbers)
    close(state.interpolation, mixing[-1], rtol=0, atol=1e-10)
    assert mixing.min() >= 0
    assert mixing.max() == 1  # where it would be left, it is kept
    assert np.ptp(mixing[-1]) > 0.1


@pytest.mark.slow
def test_adaptation_lowers_the_loss_of_mixtures_with_a_poor_share():
    def end(**changes):
        simulation = fl.Simulation(
            make_problem(), APFL(0.05, epochs=2, interpolation=0.1, **changes)
        )
        return make_problem().objective(jnp.asarray(trajectory(simulation, 40)[-1])).mean()

    assert end(interpolation_step_size=0.5) < end() - 1e-3


# Models shared in part ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FedRep, FedPer])
def test_with_nothing_personal_it_is_federated_averaging(cls):
    parts = some_world(FedAvg(0.1, 4), True, True, new_key())[0]
    both = (
        cls(LOCAL, 4, 2, weighting="samples", personal=()),
        FedAvg(LOCAL, 4, 2, weighting="samples"),
    )
    result, expected = (trajectory(fl.Simulation(make_problem(), a, **parts)) for a in both)
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_fedbabu_without_a_head_is_federated_averaging_and_tuning():
    parts = some_world(FedAvg(0.1, 4), True, True, new_key())[0]
    tuned = FineTunedFedAvg(FedAvg(0.1, 4, 2), LOCAL, 3)
    ours = FedBABU(0.1, 4, 2, personal=(), tuning_step_size=LOCAL, tuning_steps=3)
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts)) for a in (ours, tuned)
    )
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.long
@pytest.mark.slow
def test_the_body_of_fedbabu_ends_where_it_is_best_under_its_head():
    r""":math:`\sum_k\partial_\varphi f_k(\varphi,h^0)=0` with the heads where they began."""
    head = 1.7
    algorithm = FedBABU(0.1, personal=HEAD, tuning_step_size=0.05, weighting="equal")
    problem = make_problem().starting_at(np.array([0.0, head, 0.0]))
    state = state_after(600, fl.Simulation(problem, algorithm))
    A, b = (sum(parts) for parts in zip(*quadratics(), strict=True))
    body = [0, 2]
    best = np.linalg.solve(A[np.ix_(body, body)], b[body] - head * A[body, 1])
    close(state.server, best, rtol=0, atol=1e-8)
    before = np.array([best[0], head, best[1]])
    close(state.frozen, np.tile(before, (CLIENTS, 1)), rtol=0, atol=1e-8)
    after = [before - 0.05 * (A @ before - b) for A, b in quadratics()]
    close(state.model, after, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [FedPer(LOCAL, epochs=3, personal=ALL), FedRep(LOCAL, personal=ALL, head_epochs=3)],
)
def test_with_everything_personal_it_is_training_alone(algorithm):
    parts = some_world(algorithm, True, False, new_key())[0]
    both = algorithm, LocalOnly(LOCAL, 3)
    result, expected = (trajectory(fl.Simulation(make_problem(), a, **parts)) for a in both)
    close(result, expected, rtol=0, atol=1e-13)
    assert records(fl.Simulation(make_problem(), algorithm), 3, 3)["scalars"] == [0]


@pytest.mark.slow
def test_shared_in_part_ends_where_both_parts_are_best():
    r"""FedPer of one step: :math:`\partial_hf_k=0` at each client, :math:`\sum_k\partial_\varphi
    f_k=0`: the minimizer of :math:`\sum_kf_k(\varphi,h_k)`; FedRep's is the same.
    """
    system, right = np.zeros((2 + CLIENTS, 2 + CLIENTS)), np.zeros(2 + CLIENTS)
    for k, (A, b) in enumerate(quadratics()):
        places = [0, 2 + k, 1]  # of (phi_0, h_k, phi_1) among all
        system[np.ix_(places, places)] += A
        right[places] += b
    best = np.linalg.solve(system, right)
    expected = np.stack([np.full(CLIENTS, best[0]), best[2:], np.full(CLIENTS, best[1])], axis=1)
    for algorithm in (
        FedPer(0.1, personal=HEAD, weighting="equal"),
        FedRep(0.1, personal=HEAD, head_epochs=4),
    ):
        last = trajectory(fl.Simulation(make_problem(), algorithm), 1500)[-1]
        close(last, expected, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_the_three_that_train_together_are_one():
    result = [
        trajectory(fl.Simulation(make_problem(), cls(LOCAL, personal=HEAD)))
        for cls in (FedPer, LGFedAvg, FedBN)
    ]
    np.testing.assert_array_equal(result[0], result[1])
    np.testing.assert_array_equal(result[0], result[2])


@pytest.mark.slow
def test_heads_start_where_the_problem_says():
    starts = np.random.default_rng(8).normal(size=(CLIENTS, DIM))
    algorithm = FedPer(0.1, personal=HEAD)
    state = algorithm.init(make_problem().starting_at(starts), None)
    np.testing.assert_array_equal(state.model[:, 1], starts[:, 1])
    close(state.model[:, [0, 2]], np.tile(starts[:, [0, 2]].mean(axis=0), (CLIENTS, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FedPer, FedRep])
def test_who_is_absent_keeps_what_is_its_own(cls):
    there = np.ones((ROUNDS, CLIENTS), bool)
    there[1:, 2] = False
    parts = {"participation": fl.participation.Trace(there)}
    result = trajectory(fl.Simulation(make_problem(), cls(0.1, personal=HEAD), **parts))[:, 2]
    assert np.abs(result[0, 1]) > 1e-3
    np.testing.assert_array_equal(result[1:, 1], np.full(ROUNDS - 1, result[0, 1]))
    assert np.abs(np.diff(result[:, 0])).min() > 0


# FedALA ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fedala_with_nothing_blended_is_federated_averaging():
    parts = some_world(FedAvg(0.1, 4), True, True, new_key())[0]
    both = FedALA(LOCAL, 4, 2, blended=()), FedAvg(LOCAL, 4, 2)
    result, expected = (
        state_after(ROUNDS, fl.Simulation(make_problem(), a, **parts)) for a in both
    )
    close(result.server, expected.model, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_shares_of_the_server_s_model_stay_shares_and_are_those_of_the_loop():
    algorithm = FedALA(0.1, epochs=2, blend_step_size=3.0, blended=(0, 1), weighting="samples")
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    objective, world = make_objective(), some_world(algorithm, False, False, new_key())[1]
    given = cases.whole(2, ROUNDS, CLIENTS), SIZES, np.zeros((CLIENTS, DIM))
    numbers = cases.step_of(algorithm.step_size), lambda n: 3.0, 1, (0, 1)
    _, blend = adapted.fedala(cases.sampled(objective), world, *given, *numbers)
    close(state.blend, blend[-1][:, :2], rtol=0, atol=1e-10)
    assert state.blend.min() == 0  # where it would be less, it is kept
    assert 0 < np.median(state.blend) < 1


@pytest.mark.slow
def test_shares_move_to_where_a_client_s_loss_is_least():
    """One parameter of its own: the best point between two models, on the line or at its end."""
    wanted, server = [-0.3, 0.1, 0.3, 0.5, 0.7, 1.3], np.random.default_rng(3).normal(size=DIM)
    own, rates = np.zeros((CLIENTS, DIM)), []
    for k, (A, b) in enumerate(quadratics()):
        best = server[1] + (b - A @ server)[1] / A[1, 1]
        own[k, 1] = (best - wanted[k] * server[1]) / (1 - wanted[k])
        rates.append(1 / (A[1, 1] * (server[1] - own[k, 1]) ** 2))
    algorithm = FedALA(1e-12, blend_step_size=min(rates), blend_steps=5000, blended=(1,))
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    before = algorithm.init(now.problem, None)
    before = before._replace(model=jnp.asarray(own), server=jnp.asarray(server))
    result = algorithm.step(before, now).blend[:, 0]
    close(result, np.clip(wanted, 0, 1), atol=1e-9)


# FedAMP ------------------------------------------------------------------------------------------


def arrived(simulation, key):
    """``[T, K]``, which messages reach the server in the run."""

    @jax.jit
    def one(n):
        ready = prepare(simulation, ROUNDS)
        now, *_ = look(simulation, ready, key, begin(simulation, ready, key), n, ROUNDS)
        return now.link.known(jnp.ones((CLIENTS, 1)), jnp.zeros((CLIENTS, 1)))[:, 0]

    return np.array([one(n) for n in range(1, ROUNDS + 1)])


@pytest.mark.parametrize("name", ["ridge", pytest.param("logistic", marks=pytest.mark.slow)])
def test_attentive_models_are_those_of_the_loop(name):
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = FedAMP(LOCAL, 4, 2, attraction=0.7, attention_step_size=LOCAL, scale=2.0)
    parts, world = some_world(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    problem = make_problem(name).starting_at(start)
    simulation = fl.Simulation(problem, algorithm, losses=fl.link.Independent(0.3), **parts)
    arrives = arrived(simulation, new_key(4))
    assert 0.2 < arrives.mean() < 0.7  # of those who are there 70 %
    ours = trajectory(simulation, key=new_key(4))
    expected = theirs(algorithm, name, world, arrives=arrives, start=start)
    close(ours, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[1]).max() > 1e-2


@pytest.mark.slow
def test_attentive_models_rest_where_pull_and_slope_balance():
    r""":math:`f_k'(w_k)+\lambda\sum_lA'(\|w_k-w_l\|^2)(w_k-w_l)=0`, whatever the attention."""
    problem, ends = make_problem(), []
    for attention in (0.1, 0.3):
        algorithm = FedAMP(0.05, epochs=3, attraction=0.8, attention_step_size=attention, scale=3.0)
        ends.append(trajectory(fl.Simulation(problem, algorithm), 3000)[-1])
    close(ends[0], ends[1], rtol=0, atol=1e-8)
    away = ends[0][:, None] - ends[0][None]
    pull = np.exp(-(away**2).sum(axis=2) / 3.0) / 3.0
    balance = problem.gradient(jnp.asarray(ends[0])) + 0.8 * (pull[..., None] * away).sum(axis=1)
    close(balance, 0, atol=1e-8)
    assert np.ptp(ends[0], axis=0).min() > 1e-2


@pytest.mark.slow
def test_without_attraction_fedamp_is_training_alone():
    parts = some_world(
        FedAMP(0.1, attraction=0.0, attention_step_size=1.0, scale=1.0), True, False, new_key()
    )
    ours = FedAMP(LOCAL, epochs=3, attraction=0.0, attention_step_size=0.5, scale=1.0)
    both = ours, LocalOnly(LOCAL, 3)
    result, known = (trajectory(fl.Simulation(make_problem(), a, **parts[0])) for a in both)
    close(result, known, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_far_from_zero_no_digits_of_the_attraction_are_lost():
    """In single precision, 1000 from zero; the reference is in double precision around zero."""
    own = np.random.default_rng(2).normal(size=(CLIENTS, DIM))

    def towards(models):
        algorithm = FedAMP(0.1, attraction=1.0, attention_step_size=1.0, scale=2.0)
        return np.asarray(algorithm._towards(jnp.asarray(models), jnp.asarray(models)))

    with jax.enable_x64(False):
        far = towards(np.float32(own + 1000))
    assert far.dtype == np.float32
    close(far, towards(own), rtol=0, atol=1e-3)


# FedFomo -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("downloads", [None, 2])
def test_models_weighed_on_held_out_data_are_those_of_the_loop(downloads):
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = FedFomo(LOCAL, 4, 2, downloads=downloads)
    parts, world = some_world(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    held_out = make_problem(noise=3.0)
    tasks = fl.problems.Tasks(np.zeros(CLIENTS, int), 1, validation=held_out)
    problem = dataclasses.replace(make_problem().starting_at(start), tasks=tasks)
    simulation = fl.Simulation(problem, algorithm, losses=fl.link.Independent(0.3), **parts)
    arrives = arrived(simulation, new_key(4))
    value = dataclasses.replace(make_objective(), data=make_data("ridge", 3.0)).value
    ours = trajectory(simulation, key=new_key(4))
    given = {"arrives": arrives, "start": start, "seed": 4}
    close(ours, theirs(algorithm, "ridge", world, value=value, **given), rtol=0, atol=1e-10)
    on_samples = theirs(algorithm, "ridge", world, **given)
    assert np.abs(ours - on_samples).max() > 1e-2


#: Who is in the first group of six clients, and who is not.
SIDES = np.arange(6) < 3, np.arange(6) >= 3


def groups_of_two(clients=6, samples=4):
    """Clients of the first half and of the second want other models; few samples, more held out."""
    rng = np.random.default_rng(0)
    wanted = np.array([[3.0, 0.0] if k < clients // 2 else [0.0, 3.0] for k in range(clients)])

    def drawn(samples):
        X = rng.normal(size=(clients, samples, 2))
        y = np.einsum("knp,kp->kn", X, wanted) + rng.normal(size=(clients, samples))
        return fl.problems.from_clients(list(zip(X, y, strict=True)), fl.problems.LeastSquares())

    problem, held_out = drawn(samples), drawn(10 * samples)
    tasks = fl.problems.Tasks(np.zeros(clients, int), 1, validation=held_out)
    return dataclasses.replace(problem, tasks=tasks), wanted


@pytest.mark.slow
def test_clients_weigh_those_who_want_the_same():
    problem, wanted = groups_of_two()
    simulation = fl.Simulation(problem, FedFomo(0.05, epochs=2))
    state = state_after(60, simulation)
    own = np.asarray(state.affinity)
    assert own[:3, :3].sum() > 10 * own[:3, 3:].sum()
    assert own[3:, 3:].sum() > 10 * own[3:, :3].sum()
    alone = trajectory(fl.Simulation(problem, LocalOnly(0.05, 2)), 60)[-1]
    errors = [np.linalg.norm(model - wanted, axis=1).mean() for model in (state.model, alone)]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.slow
def test_of_clients_all_alike_each_learns_as_if_alone():
    X, y = make_data()[1]
    problem = fl.problems.from_clients([(X, y)] * 4, fl.problems.LeastSquares())
    result = trajectory(fl.Simulation(problem, FedFomo(0.05, downloads=2)), 8)
    close(result, trajectory(fl.Simulation(problem, LocalOnly(0.05)), 8), rtol=0, atol=1e-13)


def test_a_model_that_none_betters_stays():
    """Steps far too long: the client's own is no better, and nobody's is."""
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    problem = make_problem().starting_at(start)
    result = trajectory(fl.Simulation(problem, FedFomo(50.0)), 3)
    np.testing.assert_array_equal(result, np.broadcast_to(start, result.shape))


# APPLE -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_combined_models_and_their_weights_are_those_of_the_loop():
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = APPLE(0.5, 4, 2, relationship_step_size=0.02, attraction=0.5, annealing=6)
    parts, world = some_world(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    simulation = fl.Simulation(
        make_problem().starting_at(start), algorithm, losses=fl.link.Independent(0.3), **parts
    )
    arrives = arrived(simulation, new_key(4))
    ours = trajectory(simulation, key=new_key(4))
    close(ours, theirs(algorithm, "ridge", world, arrives=arrives, start=start), atol=1e-10)
    at_once = theirs(algorithm, "ridge", world, start=start)
    assert np.abs(ours - at_once).max() > 1e-2


@pytest.mark.slow
def test_the_weights_of_combined_models_are_those_of_the_loop():
    algorithm = APPLE(1.0, epochs=2, relationship_step_size=LOCAL, attraction=0.5, annealing=6)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    world = some_world(algorithm, False, False, new_key())[1]
    given = cases.whole(2, ROUNDS, CLIENTS), np.ones(CLIENTS), np.zeros((CLIENTS, DIM))
    steps = map(cases.step_of, (algorithm.step_size, algorithm.relationship_step_size))
    numbers = *steps, 0.5, 6, np.ones((ROUNDS, CLIENTS), bool)
    _, relations = adapted.apple(cases.sampled(make_objective()), world, *given, *numbers)
    close(state.relation, relations[-1], rtol=0, atol=1e-10)
    assert np.abs(relations[-1] - 1 / CLIENTS).max() > 0.1


@pytest.mark.slow
def test_with_weights_that_stay_the_mean_of_core_models_is_federated_averaging_s():
    """Of one step, as short as a client's own share of its personal model."""
    algorithm = APPLE(0.6, relationship_step_size=1e-14, attraction=0.0)
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    known = state_after(ROUNDS, fl.Simulation(make_problem(), FedAvg(0.6 / CLIENTS)))
    close(state.known.mean(axis=0), known.model, rtol=0, atol=1e-12)
    assert np.ptp(state.known, axis=0).max() > 1e-2


@pytest.mark.slow
def test_the_pull_holds_the_weights_until_it_has_gone():
    """With it they stay nearer to those of equal treatment; without it nothing holds them."""

    def away(**changes):
        algorithm = APPLE(1.0, epochs=2, relationship_step_size=0.02, **changes)
        state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
        return np.abs(np.asarray(state.relation) - 1 / CLIENTS).max()

    free, held = away(attraction=0.0), away(attraction=40.0, annealing=1000)
    assert held < 0.6 * free
    close(away(attraction=40.0, annealing=1), free, rtol=1e-12)


@pytest.mark.slow
def test_clients_combine_the_models_of_those_who_want_the_same():
    problem, _ = groups_of_two(samples=40)
    algorithm = APPLE(0.3, epochs=2, relationship_step_size=0.01, annealing=10)
    state = state_after(60, fl.Simulation(problem, algorithm))
    own = np.asarray(state.relation)
    within, across = (np.concatenate([own[:3, of].ravel(), own[3:, ~of].ravel()]) for of in SIDES)
    assert within.min() > 2 * np.abs(across).max()


# SuPerFed ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_superfed_in_its_warmup_is_federated_averaging():
    parts = some_world(FedAvg(0.1, 4), True, True, new_key())[0]
    start = np.random.default_rng(5).normal(size=(CLIENTS, DIM))
    ours = SuPerFed(LOCAL, 4, 2, orthogonality=1.0, warmup=ROUNDS, interpolation=0.0)
    result, expected = (
        state_after(ROUNDS, fl.Simulation(make_problem().starting_at(start), algorithm, **parts))
        for algorithm in (ours, FedAvg(LOCAL, 4, 2))
    )
    close(result.server, expected.model, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(result.personal, start)


@pytest.mark.long
@pytest.mark.slow
def test_orthogonality_turns_the_two_models_apart():
    def cosine(orthogonality):
        start = np.random.default_rng(5).normal(size=(CLIENTS, DIM))
        algorithm = SuPerFed(0.02, orthogonality=orthogonality)
        simulation = fl.Simulation(make_problem().starting_at(start), algorithm)
        state = state_after(60, simulation)
        a, b = np.asarray(state.server), np.asarray(state.personal)
        return np.abs(b @ a / np.linalg.norm(a) / np.linalg.norm(b, axis=1)).mean()

    assert cosine(20.0) < cosine(0.0) - 0.1


@pytest.mark.long
@pytest.mark.slow
def test_points_between_the_two_models_are_all_good():
    """The middle of the line is no worse than its ends on average, since it is what is trained."""
    state = state_after(300, fl.Simulation(make_problem(), SuPerFed(0.05)))
    ends = [jnp.broadcast_to(state.server, state.personal.shape), state.personal]
    losses = [
        float(make_problem().objective((1 - share) * ends[0] + share * ends[1]).mean())
        for share in (0.0, 0.5, 1.0)
    ]
    assert losses[1] < min(losses[0], losses[2]) + 1e-3


# What is sent ------------------------------------------------------------------------------------

TRAFFIC = [
    # algorithm, participants, numbers in a message
    (PerFedAvg(0.1, personal_step_size=0.1, epochs=2), CLIENTS, DIM),
    (APFL(0.1, 3, 2, interpolation_step_size=0.1), 3, DIM),
    (FedPer(0.1, 4, personal=HEAD), 4, DIM - 1),
    (FedRep(0.1, personal=(0, 2), head_epochs=2), CLIENTS, DIM - 2),
    (FedBABU(0.1, 4, personal=HEAD, tuning_step_size=0.1, tuning_steps=2), 4, DIM - 1),
    (FedALA(0.1, 4, blended=HEAD), 4, DIM),
    (FedAMP(0.1, 4, attraction=1.0, attention_step_size=0.1, scale=1.0), 4, DIM),
    (SuPerFed(0.1, 4, orthogonality=1.0), 4, DIM),
]


@pytest.mark.parametrize(("downloads", "models"), [(None, CLIENTS - 1), (2, 2)])
def test_who_weighs_others_models_downloads_them(downloads, models):
    """And tells of how much each was worth, if the server chooses by it."""
    algorithm = FedFomo(0.1, 4, 2, downloads=downloads)
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    told = 0 if downloads is None else downloads
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * 4 * models * DIM])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * 4 * (DIM + told)])
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 4 * (2 + bool(told))])


@pytest.mark.slow
def test_who_combines_others_models_downloads_all_of_them():
    algorithm = APPLE(0.1, 4, relationship_step_size=0.1)
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * 4 * (CLIENTS - 1) * DIM])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * 4 * DIM])
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 4 * 2])


@pytest.mark.thin(1)
@pytest.mark.parametrize(("algorithm", "sent", "size"), TRAFFIC, ids=describe)
def test_traffic_is_of_what_is_shared(algorithm, sent, size):
    result = records(fl.Simulation(make_problem(), algorithm), 4, every=2)
    np.testing.assert_array_equal(result["messages"], 2 * [2 * 2 * sent])
    np.testing.assert_array_equal(result["bits_down"], 2 * [2 * REAL * sent * size])
    np.testing.assert_array_equal(result["bits_up"], 2 * [2 * REAL * sent * size])


@pytest.mark.slow
def test_compressed_and_robust_messages_are_of_what_is_shared():
    compression = fl.link.Quantize(8)
    simulation = fl.Simulation(make_problem(), FedPer(0.1, personal=HEAD), compression=compression)
    result = records(simulation, 3, 3)
    assert result["bits_up"] == [3 * CLIENTS * (8 * (DIM - 1) + REAL)]
    median = fl.Simulation(
        make_problem(), FedPer(0.1, personal=HEAD), aggregation=fl.aggregation.Median()
    )
    now = fl.view(median)
    state = median.algorithm.init(now.problem, None)
    local = state.model - 0.1 * now.problem.gradient(state.model)
    after = median.algorithm.step(state, now)
    close(after.server, np.median(local[:, [0, 2]], axis=0), atol=1e-13)
    close(after.model[:, 1], local[:, 1], atol=1e-13)


# Coordinates, and what is refused ----------------------------------------------------------------


def test_coordinates_are_a_mask():
    problem = make_problem()
    for chosen in ([1], (1,), np.array([1]), [False, True, False], np.array([1, 1])):
        assert problem.coordinates(chosen).tolist() == [False, True, False]
    assert not problem.coordinates([]).any()
    assert FedPer(0.1, personal=np.array([1])).personal == FedPer(0.1, personal=[1]).personal


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: make_problem().coordinates("head"), "have no names, got 'head'"),
        (TypeError, lambda: make_problem().coordinates([0.5]), "list of their indices, got"),
        (TypeError, lambda: make_problem().coordinates(1), "list of their indices, got 1"),
        (ValueError, lambda: make_problem().coordinates([3]), "from 0 to 2, got 3 to 3"),
        (ValueError, lambda: make_problem().coordinates([-1]), "from 0 to 2, got -1 to -1"),
        (ValueError, lambda: make_problem().coordinates([True]), "each of the 3 parameters, got"),
        (TypeError, lambda: FedPer(0.1, personal=0.5), "personal must be a mask of the parameters"),
        (TypeError, lambda: FedPer(0.1, personal=[0.5]), "or a list of their indices, got"),
        (ValueError, lambda: running(FedPer(0.1, personal=[7])), "from 0 to 2, got 7 to 7"),
        (TypeError, lambda: running(FedBN(0.1)), "linear prediction have no names"),
        (ValueError, lambda: FedRep(0.1, personal=[0], head_epochs=0), "head_epochs must be >= 1"),
        (
            ValueError,
            lambda: FedBABU(0.1, personal=[0], tuning_step_size=0.1, tuning_steps=0),
            "tuning_steps must be >= 1, got 0",
        ),
        (
            ValueError,
            lambda: FedBABU(0.1, personal=[0], tuning_step_size=0.0),
            "step size must be finite and > 0",
        ),
        (
            ValueError,
            lambda: PerFedAvg(0.1, personal_step_size=0.0),
            "step size must be finite and > 0",
        ),
        (
            ValueError,
            lambda: PerFedAvg(0.1, personal_step_size=0.1, variant="second"),
            "unknown variant 'second'; known: hessian_free",
        ),
        (ValueError, lambda: PerFedAvg(0.1, personal_step_size=0.1, offset=0.0), "offset must be"),
        (
            ValueError,
            lambda: PerFedAvg(0.1, personal_step_size=0.1, personal_steps=0),
            "personal_steps must be >= 1, got 0",
        ),
        (TypeError, lambda: FedALA(0.1, blended=0.5), "blended must be a mask of the parameters"),
        (ValueError, lambda: running(FedALA(0.1, blended=[7])), "from 0 to 2, got 7 to 7"),
        (ValueError, lambda: FedALA(0.1, blend_steps=0), "blend_steps must be >= 1, got 0"),
        (
            ValueError,
            lambda: FedAMP(0.1, attraction=1.0, attention_step_size=0.0, scale=1.0),
            "step size must be finite and > 0",
        ),
        (
            ValueError,
            lambda: FedAMP(0.1, attraction=1.0, attention_step_size=1.0, scale=0.0),
            "scale must be finite and > 0",
        ),
        (ValueError, lambda: FedFomo(0.1, downloads=0), "downloads must be >= 1, got 0"),
        (
            ValueError,
            lambda: running(FedFomo(0.1, downloads=CLIENTS)),
            "downloads must be at most the 5 other clients, got 6",
        ),
        (
            ValueError,
            lambda: FedFomo(0.1, exploration=1.5),
            "exploration must be finite and >= 0 and <= 1",
        ),
        (
            ValueError,
            lambda: APPLE(0.1, relationship_step_size=0.0),
            "step size must be finite and > 0",
        ),
        (
            ValueError,
            lambda: APPLE(0.1, relationship_step_size=0.1, attraction=-1.0),
            "attraction must be finite and >= 0, got -1",
        ),
        (
            ValueError,
            lambda: APPLE(0.1, relationship_step_size=0.1, annealing=0),
            "annealing must be >= 1, got 0",
        ),
        (
            ValueError,
            lambda: APPLE(optax.sgd(0.1), relationship_step_size=0.1),
            "APPLE needs the size of its clients' steps",
        ),
        (
            ValueError,
            lambda: SuPerFed(0.1, interpolation=1.5),
            "interpolation must be finite and >= 0 and <= 1",
        ),
        (TypeError, lambda: SuPerFed(0.1, warmup=0.5), "warmup must be an integer, got 0.5"),
        (
            ValueError,
            lambda: APFL(0.1, interpolation=1.5),
            "interpolation must be finite and >= 0 and <= 1",
        ),
        (ValueError, lambda: running(APFL(0.1, interpolation=[0.5, 0.5])), "each of the 6 clients"),
        (
            ValueError,
            lambda: APFL(0.1, interpolation_step_size=-1.0),
            "step size must be finite and > 0",
        ),
        (
            ValueError,
            lambda: running(APFL(0.1, 7)),
            "clients_per_round must be at most the 6 clients",
        ),
    ],
)
def test_bad_settings_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
