"""Algorithms that read more of a network than its gradient: loops, limits, refused arguments."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
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
    LocalOnly,
)
from fljax.algorithms.personalized.fedkd import low_rank_updates, truncate_spectrum
from fljax.algorithms.server.fedntd import not_true_divergence
from fljax.algorithms.server.moon import cosines
from fljax.optimization.schedules import PowerDecay
from fljax.participation.patterns import Trace
from fljax.problems.batches import Uniform
from tests.cases import ROUNDS, SIZES, make_read, reading
from tests.reference import readings
from tests.support import small_network as small
from tests.support.server_runs import (
    ACTIVE,
    UNLIKE,
    passes_of,
    personal,
    trajectory,
    visits_of,
)

close = np.testing.assert_allclose
FALLING = PowerDecay(0.5, 0.3)

FORMS = {
    "fedlc": FedLC(FALLING, 4, 2, 3, calibration=0.7),
    "fedlc, unlike": FedLC(0.3, local_steps=UNLIKE, weighting="samples"),
    "fedrs": FedRS(FALLING, 4, 2, 3, restriction=0.3),
    "fedrs, none": FedRS(0.3, local_steps=UNLIKE, restriction=0.0),
    "fedntd": FedNTD(FALLING, 4, 2, 3, distillation=0.8, temperature=2.0),
    "fedntd, unlike": FedNTD(0.3, batches=Uniform(2), local_steps=UNLIKE, distillation=3.0),
    "moon": MOON(FALLING, 4, 2, 3, contrast=5.0),
    "moon, unlike": MOON(0.3, local_steps=UNLIKE, contrast=0.5, temperature=0.2),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("form", FORMS)
def test_models_equal_the_loops(form):
    """Some clients, some of them absent, in batches, with unequal numbers of steps."""
    algorithm = FORMS[form]
    expected = reading.averaged_models(algorithm, visits=visits_of(algorithm, ACTIVE, SIZES))[:, 0]
    result = trajectory(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    plain = FedAvg(
        *(getattr(algorithm, name) for name in ("step_size", "clients_per_round")),
        **{
            name: getattr(algorithm, name)
            for name in ("epochs", "batch", "batches", "local_steps", "weighting")
        },
    )
    other = trajectory(plain, make_read(), participation=Trace(ACTIVE))
    assert np.abs(other - result).max() > 1e-3


MEANS = {
    "fedproto": FedProto(FALLING, 4, 2, 3, attraction=2.0),
    "fedproto, unlike": FedProto(0.3, local_steps=UNLIKE),
    "feddistill": FedDistill(FALLING, 4, 2, 3, attraction=2.0),
    "feddistill, unlike": FedDistill(0.3, batches=Uniform(2), local_steps=UNLIKE, attraction=0.3),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", MEANS)
def test_models_by_means_of_classes_equal_the_loops(form):
    algorithm = MEANS[form]
    expected = reading.class_mean_models(algorithm, visits=visits_of(algorithm, ACTIVE, SIZES))
    result = personal(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    alone = dataclasses.replace(algorithm, attraction=0.0)
    difference = np.abs(personal(alone, make_read(), participation=Trace(ACTIVE)) - result)
    assert difference[0].max() < 1e-13  # no message has arrived yet
    assert difference[-1].max() > 1e-2


@pytest.mark.parametrize("kind", [FedProto, FedDistill])
def test_without_attraction_clients_learn_locally(kind):
    result = personal(kind(0.3, local_steps=3, attraction=0.0), make_read(), 4)
    close(result, personal(LocalOnly(0.3, 3), make_read(), 4), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_means_of_classes_cost_fewer_bits_than_a_model():
    """Three classes, with four numbers of a representation or three logits, and a count each."""
    for algorithm, width in ((FedProto(0.1), 4), (FedDistill(0.1), 3)):
        run = fl.run(fl.Simulation(make_read(), algorithm), rounds=3)
        assert int(run.scalars[-1]) == 3 * 2 * 5 * 3 * (width + 1)
        assert algorithm.message_size_of(make_read()) == 3 * (width + 1)


@pytest.mark.slow
def test_the_mean_of_a_class_without_samples_is_kept():
    """Client 2 alone has one class; before the first round no mean is known."""
    active = np.ones((3, 5), bool)
    active[1] = [False, False, True, False, False]
    simulation = fl.Simulation(make_read(), FedProto(0.3), participation=Trace(active))
    states = []
    for rounds in (1, 2):
        state = simulation.algorithm.init(simulation.problem.prepare(), None)
        assert not state.known.any()
        for n in range(1, rounds + 1):
            state = simulation.algorithm.step(state, fl.view(simulation, key=0, round=n))
        states.append(state)
    classes = np.flatnonzero(np.asarray(make_read().class_counts())[2])
    moved = np.abs(states[1].means - states[0].means).max(axis=1) > 0
    assert np.flatnonzero(moved).tolist() == classes.tolist()
    assert states[0].known.all()


TWO_MODELS = {
    "fedrod": FedROD(FALLING, 4, 2, 3),
    "fedrod, unlike": FedROD(0.3, local_steps=UNLIKE, weighting="samples"),
    "fml": FML(FALLING, 4, 2, 3, supervision=0.7, shared_supervision=0.4),
    "fml, unlike": FML(0.3, batches=Uniform(2), local_steps=UNLIKE, supervision=0.1),
    "fedkd": FedKD(FALLING, 4, 2, 3, energy=0.4, final_energy=0.9, warmup=8),
    "fedkd, unlike": FedKD(0.2, local_steps=UNLIKE, weighting="samples", energy=0.8, warmup=1),
    "fedphp": FedPHP(FALLING, 4, 2, 3, supervision=0.4, temperature=2.0, warmup=4),
    "fedphp, unlike": FedPHP(0.3, local_steps=UNLIKE, weighting="samples", supervision=0.8),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", TWO_MODELS)
def test_two_models_or_heads_equal_the_loops(form):
    algorithm = TWO_MODELS[form]
    oracle = reading.CASES[algorithm.label].oracle
    expected = oracle(algorithm, visits=visits_of(algorithm, ACTIVE, SIZES))
    result = personal(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.ptp(expected[-1], axis=0).max() > 1e-2
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fedkd", "fedkd, unlike"])
def test_updates_of_low_rank_cost_their_factors_and_missed_updates(form):
    """The cost of the loop, which counts the mentee too."""
    algorithm = TWO_MODELS[form]
    visits = visits_of(algorithm, ACTIVE, SIZES)
    _, mentees, up, down = reading.fedkd_run(algorithm, visits=visits)
    simulation = fl.Simulation(make_read(), algorithm, participation=Trace(ACTIVE))
    run = fl.run(simulation, ROUNDS, key=fl.random_key(1))
    np.testing.assert_array_equal(run.bits_up, 32 * np.cumsum(up))
    np.testing.assert_array_equal(run.bits_down, 32 * np.cumsum(down))
    np.testing.assert_array_equal(run.scalars, np.cumsum(up + down))
    assert int(run.messages[-1]) == 2 * sum(len(participants) for participants in visits)
    models = 31 * sum(len(participants) for participants in visits)
    assert 0 < down.sum() < models
    assert 0 < up.sum() < models
    state = algorithm.init(simulation.problem.prepare(), None)
    for n in range(1, 6):
        now = fl.view(simulation, key=fl.random_key(1), round=n)
        state = algorithm.step(state, now)
        close(state.server, mentees[n - 1], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_an_update_keeps_as_many_directions_as_have_its_energy():
    """Squares 16, 4, 1 and 0 of a matrix that is wider than tall, and of a kernel."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(6, 4)))[0] for _ in range(2))
    matrix = (left * [4.0, 2.0, 1.0, 0.0]) @ right.T
    for energy, rank in ((0.5, 1), (0.8, 2), (0.95, 2), (0.97, 3)):
        expected = (left[:, :rank] * [4.0, 2.0, 1.0][:rank]) @ right.T[:rank]
        arguments = jnp.stack([jnp.asarray(matrix), jnp.zeros((6, 6))]), jnp.asarray(energy)
        result, ranks = truncate_spectrum(*arguments)
        close(result[0], expected, rtol=0, atol=1e-13)
        assert ranks.tolist() == [rank, 0]
        assert np.abs(result[1]).max() == 0
    all_energy, _ = truncate_spectrum(jnp.asarray(matrix)[None], jnp.asarray(1.0))
    close(all_energy[0], matrix, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_a_kernel_is_a_matrix_of_its_last_axis_and_all_others():
    key = jax.random.key(0)
    data = [(np.ones((3, 6, 6, 1)), np.zeros(3))] * 2
    loss = fl.problems.Softmax(3)
    network = fl.models.cnn(3, channels=(4,), hidden=(5,))
    problem = fl.problems.Model.from_clients(network, key, data, loss)
    assert max(map(len, problem.layout.shapes)) > 2
    rows = jax.random.normal(key, (2, problem.dim))
    result, numbers = low_rank_updates(problem, rows, jnp.asarray(0.3))
    ends = np.cumsum(problem.layout.sizes)
    at = 0
    expected = np.zeros(2, int)
    for shape, end in zip(problem.layout.shapes, ends, strict=True):
        for k in range(2):
            part, truncated = (
                np.asarray(a[k, at:end]).reshape(-1, shape[-1]) for a in (rows, result)
            )
            if len(shape) < 2:
                close(truncated, part)
                expected[k] += part.size
                continue
            values = np.linalg.svd(part, compute_uv=False) ** 2
            rank = int(np.sum(np.cumsum(values) <= 0.3 * values.sum())) + 1
            assert np.linalg.matrix_rank(truncated, 1e-6) == rank
            close(np.sum((part - truncated) ** 2), values[rank:].sum(), rtol=1e-6, atol=1e-9)
            expected[k] += min(rank * (sum(part.shape) + 1), part.size)
        at = end
    assert numbers.tolist() == expected.tolist()


@pytest.mark.slow
def test_updates_with_all_their_energy_are_complete():
    """The mentee of equal networks that are taught nothing new is federated averaging's."""
    problem = make_read()
    result = state_after_rounds(FedKD(0.3, 3, energy=1.0, final_energy=1.0), problem, 1)
    close(result.server, state_after_rounds(FedAvg(0.3, 3), problem, 1).model, rtol=0, atol=1e-13)
    less = state_after_rounds(FedKD(0.3, 3, energy=0.3, final_energy=0.3), problem, 1)
    assert np.abs(np.asarray(less.server - result.server)).max() > 1e-4


@pytest.mark.slow
def test_counts_of_varying_messages_do_not_overflow():
    link = fl.view(fl.Simulation(RIDGE, FedAvg(0.1)), key=0, round=1).link
    most = np.full(5, 2**31 - 1)
    active = np.array([True, True, False, True, True])
    link.publish(jnp.zeros(3), jnp.asarray(active), size=jnp.asarray(most, jnp.int32))
    counted = [int(high) * 2**31 + int(low) for high, low in link.traffic]
    assert counted == [4, 4 * int(most[0]), 0, 32 * 4 * int(most[0])]


def state_after_rounds(algorithm, problem, rounds=3):
    """The state after some rounds."""
    simulation = fl.Simulation(problem, algorithm)
    now = fl.view(simulation, key=0, round=1)
    state = algorithm.init(now.problem, None)
    for n in range(1, rounds + 1):
        state = algorithm.step(state, fl.view(simulation, key=0, round=n))
    return state


@pytest.mark.slow
def test_mutual_learning_without_teaching_is_both_of_its_parts():
    problem = make_read()
    result = state_after_rounds(FML(0.3, 3, supervision=1.0, shared_supervision=1.0), problem)
    close(result.server, state_after_rounds(FedAvg(0.3, 3), problem).model, rtol=0, atol=1e-13)
    result = state_after_rounds(FML(0.3, local_steps=2, supervision=1.0), problem)
    close(result.model, state_after_rounds(LocalOnly(0.3, 2), problem).model, rtol=0, atol=1e-13)
    taught = state_after_rounds(FML(0.3, local_steps=2), problem)
    assert np.abs(np.asarray(result.model - taught.model)).max() > 1e-3


@pytest.mark.slow
def test_without_inheritance_private_models_are_the_last_local_ones():
    """Labels alone; the server's model is federated averaging's for any inheritance."""
    problem = make_read()
    common = state_after_rounds(FedAvg(0.3, 3), problem, 3)
    before = state_after_rounds(FedAvg(0.3, 3), problem, 2).model
    last = state_after_rounds(FedPHP(0.3, 3, supervision=1.0, inheritance=0.0), problem)
    close(last.server, common.model, rtol=0, atol=1e-13)
    now = fl.view(fl.Simulation(problem, FedAvg(0.3, 3)), key=0, round=3)
    participants = now.choose(FedAvg(0.3, 3).selection)
    local = jnp.broadcast_to(before, (5, len(before)))
    local = local - 0.3 * now.problem.unweighted().gradient(local)
    close(last.model[participants.numbers], local[participants.numbers], rtol=0, atol=1e-13)
    inherited = state_after_rounds(
        FedPHP(0.3, 3, supervision=1.0, inheritance=0.9, warmup=1), problem
    )
    close(inherited.server, common.model, rtol=0, atol=1e-13)
    assert np.abs(np.asarray(inherited.model - last.model)).max() > 1e-3


@pytest.mark.slow
def test_a_private_model_changes_ever_more_slowly_until_it_is_inherited_in_full():
    """By hand over all rounds: the weight of the past grows."""
    problem = make_read()
    states = [
        state_after_rounds(FedPHP(0.3, inheritance=0.8, warmup=2), problem, n) for n in range(5)
    ]
    assert np.asarray(states[4].times).tolist() == [4] * 5
    now = fl.view(fl.Simulation(problem, FedAvg(0.3)), key=0, round=1)
    for n, past in enumerate((0.0, 0.4, 0.8, 0.8)):
        alone = states[n]._replace(times=jnp.zeros(5, jnp.int32))
        trained = FedPHP(0.3, inheritance=0.8, warmup=2).step(alone, now).model
        expected = past * states[n].model + (1 - past) * trained
        close(states[n + 1].model, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_with_balanced_classes_fedrod_s_server_is_federated_averaging_s():
    rng = np.random.default_rng(4)
    data = [(rng.normal(size=(6, small.FEATURES)), np.tile(np.arange(3), 2)) for _ in range(3)]
    loss = fl.problems.Softmax(small.CLASSES)
    key = jax.random.key(0)
    problem = fl.problems.Model.from_clients(small.HEADED, key, data, loss)
    state = state_after_rounds(FedROD(0.3, 2, epochs=2), problem)
    close(
        state.server,
        state_after_rounds(FedAvg(0.3, 2, epochs=2), problem).model,
        rtol=0,
        atol=1e-13,
    )
    head = problem.head_coordinates()
    assert np.ptp(np.asarray(state.model)[:, head], axis=0).max() > 1e-3
    assert np.ptp(np.asarray(state.model)[:, ~head], axis=0).max() == 0
    unlike = make_read()
    state = state_after_rounds(FedROD(0.3, 2), unlike)
    plain = state_after_rounds(FedAvg(0.3, 2), unlike)
    assert np.abs(np.asarray(state.server - plain.model)).max() > 1e-3


@pytest.mark.slow
def test_a_personal_head_s_learning_moves_nothing_else():
    """The server's model does not know of the heads: with others it is the same."""
    problem = make_read()
    simulation = fl.Simulation(problem, FedROD(0.3, local_steps=3))
    now = fl.view(simulation, key=0, round=1)
    state = simulation.algorithm.init(now.problem, None)
    ramp = np.linspace(-1, 1, state.heads.shape[1])
    other = state._replace(heads=state.heads + ramp[None])
    moved, other_moved = (simulation.algorithm.step(start, now) for start in (state, other))
    np.testing.assert_array_equal(moved.server, other_moved.server)
    assert np.abs(np.asarray(moved.heads - other_moved.heads) + ramp).max() > 1e-3


CALIBRATED = {
    "ccvr": CCVR(FedAvg(FALLING, 4, 2, 3), FALLING, calibration_steps=4, virtual_samples=5),
    "ccvr, unlike": CCVR(
        FedAvg(0.3, 2, local_steps=UNLIKE, weighting="samples"),
        0.5,
        calibration_steps=3,
        virtual_samples=3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", CALIBRATED)
def test_calibrated_models_equal_the_loops(form):
    """Two clients have classes with fewer samples than a covariance has directions, or none."""
    algorithm = CALIBRATED[form]
    visits = visits_of(algorithm.solver, ACTIVE, SIZES)
    expected = reading.ccvr_models(algorithm, visits=visits)[:, 0]
    result = trajectory(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    plain = trajectory(algorithm.solver, make_read(), participation=Trace(ACTIVE))
    head = make_read().head_coordinates()
    close(result[:, ~head], plain[:, ~head], rtol=0, atol=1e-13)
    moved = np.abs(result - plain)[:, head].max(axis=1)
    assert (moved[ACTIVE.any(axis=1)] > 1e-3).all()


@pytest.mark.slow
def test_calibration_costs_its_moments_and_a_model_down():
    """Three classes and four numbers of a representation: ten products, a mean and a count."""
    run = fl.run(fl.Simulation(make_read(), CALIBRATED["ccvr"]), rounds=3)
    assert int(run.bits_up[-1]) == 3 * 4 * (31 + 3 * (1 + 4 + 10)) * 32
    assert int(run.bits_down[-1]) == 3 * 4 * 2 * 31 * 32
    assert int(run.messages[-1]) == 3 * 4 * 4


@pytest.mark.slow
def test_calibration_fits_a_head_to_the_classes_gaussians():
    """A linear model that has hardly moved, with features of two classes far apart."""
    rng = np.random.default_rng(3)
    centers = np.array([[2.0, 0.0], [-2.0, 1.0]])
    data = [(centers[[k] * 40] + 0.1 * rng.normal(size=(40, 2)), np.full(40, k)) for k in (0, 1)]
    problem = fl.problems.from_clients(data, fl.problems.Softmax(2))
    head = trajectory(CCVR(FedAvg(1e-6), 0.5), problem, 1)[0].reshape(2, 2)
    odds = centers @ (head[0] - head[1])
    assert odds[0] > 2
    assert odds[1] < -2


COLLABORATING = {
    "fedpac": FedPAC(FALLING, 4, 2, 3, attraction=2.0),
    "fedpac, unlike": FedPAC(
        0.5, batches=Uniform(2), local_steps=UNLIKE, weighting="samples", head_epochs=2
    ),
    "fedpac, whole": FedPAC(1.0, epochs=3, attraction=0.0),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", COLLABORATING)
def test_aligned_bodies_and_combined_heads_equal_the_loop(form):
    algorithm = COLLABORATING[form]
    visits = passes_of(algorithm, make_read(), ACTIVE, SIZES, algorithm.head_epochs)
    expected = reading.fedpac_models(algorithm, visits=visits)
    result = personal(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    assert np.ptp(expected[-1], axis=0).max() > 1e-2
    assert np.abs(expected[-1] - expected[0]).max() > 1e-2
    head = make_read().head_coordinates()
    assert np.ptp(expected[-1][:, ~head], axis=0).max() == 0


@pytest.mark.slow
def test_equal_clients_average_their_heads():
    """Nothing is lost by combining all, whose variance is least with equal shares."""
    data = small.samples((8,)) * 4
    key = jax.random.key(0)
    loss = fl.problems.Softmax(small.CLASSES)
    problem = fl.problems.Model.from_clients(small.HEADED, key, data, loss)
    rng = np.random.default_rng(1)
    start = np.tile(rng.normal(size=(1, problem.dim)), (4, 1))
    head = problem.head_coordinates()
    start[:, head] += rng.normal(size=(4, head.sum()))
    state = state_after_rounds(FedPAC(0.1), problem.starting_at(start), 1)
    fitted = jnp.asarray(start) - 0.1 * jnp.where(head, problem.gradient(jnp.asarray(start)), 0)
    expected = np.mean(np.asarray(fitted)[:, head], axis=0)
    close(state.model[:, head], np.tile(expected, (4, 1)), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_heads_of_clients_without_common_classes_stay_separate():
    """Many samples, so that their variance is small and bias dominates."""
    rng = np.random.default_rng(2)
    data = [(3 + 0.1 * rng.normal(size=(60, 2)), np.full(60, k // 2)) for k in range(4)]
    problem = fl.problems.from_clients(data, fl.problems.Softmax(2))
    models = np.asarray(state_after_rounds(FedPAC(0.1), problem, 3).model)
    assert np.abs(models[0] - models[1]).max() < 1e-2
    assert np.abs(models[0] - models[2]).max() > 0.1


@pytest.mark.slow
def test_a_class_without_a_centroid_attracts_no_client():
    """In the first round no class has a centroid, later only those of the participants."""
    active = np.zeros((2, 5), bool)
    active[:, 2] = True  # of one class
    first, second = (
        personal(FedPAC(0.5, attraction=attraction), make_read(), 2, participation=Trace(active))
        for attraction in (0.0, 5.0)
    )
    np.testing.assert_array_equal(first[0], second[0])
    assert np.abs(first[1] - second[1]).max() > 1e-3
    state = state_after_rounds(FedPAC(0.5), make_read(), 1)
    counts = np.asarray(make_read().class_counts())
    assert state.known.tolist() == (counts.sum(axis=0) > 0).tolist()


@pytest.mark.slow
def test_alignment_costs_moments_and_centroids():
    """Three classes and four numbers of a representation, from participants alone."""
    run = fl.run(fl.Simulation(make_read(), COLLABORATING["fedpac"]), rounds=3)
    assert int(run.bits_up[-1]) == 3 * 4 * (31 + 3 * (2 * 4 + 1) + 1) * 32
    assert int(run.bits_down[-1]) == 3 * 4 * (31 + 3 * (4 + 1)) * 32
    assert COLLABORATING["fedpac"].message_size_of(make_read()) == 31 + 3 * 9 + 1


@pytest.mark.slow
def test_heads_that_do_not_arrive_are_neither_combined_nor_replaced():
    """As if the clients with lost messages had been absent."""
    algorithm = FedPAC(0.3, local_steps=2)
    losses = fl.link.Independent(0.4)
    simulation = fl.Simulation(make_read(), algorithm, losses=losses)
    state = algorithm.init(simulation.problem.prepare(), None)
    for n in range(1, 4):
        now = fl.view(simulation, key=1, round=n)
        unit = jnp.ones((5, 1))
        zeros = jnp.zeros((5, 1))
        arrives = np.asarray(now.link.stored(unit, zeros))[:, 0] > 0
        received = fl.Simulation(make_read(), algorithm, participation=Trace(arrives[None]))
        alone = algorithm.step(state, fl.view(received, key=1, round=1))
        state = algorithm.step(state, now)
        close(state.model, alone.model, rtol=0, atol=1e-13)
    assert not arrives.all()


SMALL = {"generator_steps": 3, "virtual_samples": 4, "noise_dim": 2, "hidden": 5}
GENERATED = {
    "fedgen": FedGen(FALLING, 4, epochs=2, generator_step_size=FALLING, **SMALL),
    "fedgen, in batches": FedGen(
        0.3, 4, batch=3, generator_step_size=0.5, distillation=3.0, **SMALL
    ),
    "fedgen, unlike": FedGen(
        *(0.3, 3),
        batches=Uniform(2),
        local_steps=UNLIKE,
        weighting="samples",
        **{"generator_step_size": 0.5, "distillation": 2.0} | SMALL,
    ),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("form", GENERATED)
def test_models_taught_by_a_generator_equal_the_loop(form):
    algorithm = GENERATED[form]
    visits = visits_of(algorithm, ACTIVE, SIZES)
    expected, generators = reading.fedgen_run(algorithm, visits=visits)
    result = trajectory(algorithm, make_read(), participation=Trace(ACTIVE))
    close(result, expected, rtol=0, atol=1e-10)
    untaught = dataclasses.replace(algorithm, distillation=0.0)
    plain = trajectory(untaught, make_read(), participation=Trace(ACTIVE))
    first = np.flatnonzero(ACTIVE.any(axis=1))[0]
    close(result[first], plain[first], rtol=0, atol=1e-13)  # no message has arrived yet
    assert np.abs(result[-1] - plain[-1]).max() > 1e-3
    assert np.abs(np.diff(generators, axis=0)[~ACTIVE.any(axis=1)[1:]]).max() == 0


@pytest.mark.slow
def test_a_generator_equals_the_loop_and_learns_the_classes_of_the_heads():
    small_one = reading.CASES["FedGen"].algorithm
    algorithm = dataclasses.replace(small_one, generator_steps=40, generator_step_size=1.0)
    _, generators = reading.fedgen_run(algorithm)
    simulation = fl.Simulation(make_read(), algorithm)
    errors = []
    state = algorithm.init(simulation.problem.prepare(), None)
    for n in range(1, 5):
        now = fl.view(simulation, key=fl.random_key(1), round=n)
        state = algorithm.step(state, now)
        close(state.generator, generators[n - 1], rtol=0, atol=1e-10)
        labels = jnp.arange(30, dtype=jnp.int32) % 3
        noise = jax.random.normal(jax.random.key(n), (30, algorithm.noise_dim))
        read = algorithm._representations(state.generator, labels, noise, state.frequency)
        logits = now.problem.head(state.model, read)
        errors.append(np.mean(np.asarray(logits).argmax(axis=1) != np.asarray(labels)))
    assert errors[-1] < 0.2
    counts = np.asarray(make_read().class_counts()).sum(axis=0)
    close(state.frequency, counts / counts.sum(), rtol=1e-12)


@pytest.mark.slow
def test_without_distillation_a_generator_has_no_effect():
    algorithm = FedGen(*BATCHES, generator_step_size=0.5, distillation=0.0, **SMALL)
    result = trajectory(algorithm, make_read())
    close(result, trajectory(FedAvg(*BATCHES), make_read()), rtol=0, atol=1e-13)


def test_classes_are_drawn_at_their_frequency():
    frequency = jnp.asarray([0.2, 0.0, 0.5, 0.3])
    algorithm = FedGen(0.1, generator_step_size=0.1, virtual_samples=1000)
    labels, noise = algorithm._draws(jax.random.key(0), frequency, 10)
    share = np.bincount(np.ravel(labels), minlength=4) / labels.size
    close(share, frequency, rtol=0, atol=0.02)
    assert share[1] == 0
    assert noise.shape == (10, 1000, algorithm.noise_dim)


@pytest.mark.slow
def test_a_generator_costs_its_numbers_down_and_counts_up():
    """Two inputs and three classes, five units, and four numbers of a representation."""
    run = fl.run(fl.Simulation(make_read(), GENERATED["fedgen"]), rounds=3)
    generator = (2 + 3 + 1) * 5 + (5 + 1) * 4
    assert int(run.bits_up[-1]) == 3 * 4 * (31 + 3) * 32
    assert int(run.bits_down[-1]) == 3 * 4 * (31 + generator + 3) * 32
    assert GENERATED["fedgen"].message_size_of(make_read()) == 31 + 3


BATCHES = (FALLING, 4, 2, 3)
OF_FEDAVG = {
    "FedLC without calibration": FedLC(*BATCHES, calibration=0.0),
    "FedRS without restriction": FedRS(*BATCHES, restriction=1.0),
    "FedNTD without distillation": FedNTD(*BATCHES, distillation=0.0),
    "MOON without contrast": MOON(*BATCHES, contrast=0.0),
}


@pytest.mark.thin(1)
@pytest.mark.parametrize("name", OF_FEDAVG)
def test_without_their_addition_they_are_federated_averaging(name):
    result = trajectory(OF_FEDAVG[name], make_read())
    close(result, trajectory(FedAvg(*BATCHES), make_read()), rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedNTD(*BATCHES), MOON(*BATCHES)], ids=["two", "linear"])
def test_with_a_constant_addition_they_are_federated_averaging(algorithm):
    """With two classes exactly one is not the true one; a linear model's representation are its
    features.
    """
    problem = fl.problems.softmax(jax.random.key(0), clients=5, samples=9, dim=3, classes=2)
    result = trajectory(algorithm, problem)
    close(result, trajectory(FedAvg(*BATCHES), problem), rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["fedlc", "fedrs", "fedntd", "moon"])
def test_a_start_is_where_the_network_begins(form):
    """A start may be part of the network or an argument: no algorithm assumes zero."""
    algorithm = FORMS[form]
    start = reading.SHIFT
    started = small.from_zero(SIZES, network=small.HEADED).starting_at(start)
    close(trajectory(algorithm, started), trajectory(algorithm, make_read()) + start, atol=1e-12)


@pytest.mark.slow
def test_missing_classes_keep_their_rows_of_the_head():
    """FedLC and FedRS of nothing: client 2 has one class, and of the others learns nothing."""
    counts = np.asarray(make_read().class_counts())
    assert (counts[2] > 0).sum() == 1
    missing = np.flatnonzero(counts[2] == 0)
    for algorithm in (FedLC(0.3), FedRS(0.3, restriction=0.0), FedAvg(0.3)):
        only = np.zeros((1, 5), bool)
        only[0, 2] = True
        end = trajectory(algorithm, make_read(), 1, participation=Trace(only))[0]
        *_, c, d = readings.parts(end, small.FEATURES, small.HIDDEN, small.CLASSES)
        still = max(np.abs(c[:, missing]).max(), np.abs(d[missing]).max())
        assert (still == 0) == (not isinstance(algorithm, FedAvg))


@pytest.mark.slow
def test_a_divergence_and_a_cosine_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(6, 4))
    taught = rng.normal(size=(6, 4))
    y = rng.integers(0, 4, 6)
    expected = []
    for student, old, target in zip(z, taught, y, strict=True):
        p, q = (readings.softmax(np.delete(logits, target)) for logits in (student, old))
        expected.append(np.sum(q * np.log(q / p)))
    close(
        not_true_divergence(jnp.asarray(y), jnp.asarray(z), jnp.asarray(taught)),
        expected,
        atol=1e-14,
    )
    gradient = jax.grad(
        lambda z: jnp.sum(not_true_divergence(jnp.asarray(y), z, jnp.asarray(taught)))
    )
    assert np.isfinite(gradient(jnp.asarray(z))).all()
    a = jnp.asarray([[3.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    b = jnp.asarray([[0.0, 2.0], [2.0, 2.0], [1.0, 0.0]])
    close(cosines(a, b), [0, 1, 0], atol=1e-15)
    assert np.isfinite(jax.grad(lambda a: jnp.sum(cosines(a, b)))(a)).all()


def test_missing_classes_have_the_largest_margin_in_single_precision():
    """Finite, so that no gradient is NaN where its weight is zero."""
    problem = make_read()
    counts = np.asarray(problem.class_counts())
    margins = np.asarray(FedLC(0.3).init(problem, None).margins)
    close(margins[counts > 0], counts[counts > 0] ** -0.25)
    assert (margins[counts == 0] > 1e9).all()
    assert np.isfinite(100 * margins.astype(np.float32)).all()


ALL = FORMS | MEANS | TWO_MODELS | CALIBRATED | COLLABORATING | GENERATED
STAGES = {
    "delays": fl.link.Geometric(0.3, 2, beyond="clip"),
    "participation": fl.participation.Bernoulli(0.7),
    "compression": fl.link.Quantize(4),
    "losses": fl.link.Independent(0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in ALL if "," not in form])
def test_every_stage_is_accepted_together(form):
    algorithm = ALL[form]
    needs = algorithm.needs
    without = {"delays": not needs.late, "compression": not needs.compressed}
    stages = {name: part for name, part in STAGES.items() if not without.get(name)}
    simulation = fl.Simulation(make_read(), algorithm, metrics=["train_error"], **stages)
    assert np.isfinite(fl.run(simulation, rounds=5).model).all()
    if not algorithm.needs.averages:
        return
    attacked = fl.Simulation(
        make_read(),
        dataclasses.replace(algorithm, clients_per_round=None),
        attack=fl.attacks.SignFlip(np.arange(5) == 1),
        aggregation=fl.aggregation.Median(),
    )
    assert np.isfinite(fl.run(attacked, rounds=3).model).all()


@pytest.mark.slow
def test_messages_are_models():
    for form in ("fedlc", "fedrs", "fedntd", "moon", "fedrod", "fml", "fedphp"):
        run = fl.run(fl.Simulation(make_read(), (FORMS | TWO_MODELS)[form]), rounds=3)
        assert int(run.scalars[-1]) == 3 * 2 * 4 * 31


# What is refused ---------------------------------------------------------------------------------

RIDGE = fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=3)
REFUSED = {
    "no classes": (
        lambda: fl.Simulation(RIDGE, FedLC(0.1)),
        r"FedLC reads the logits of classes, .* Softmax\(classes\), got LeastSquares. These can: ",
    ),
    "no classes, restricted": (lambda: fl.Simulation(RIDGE, FedRS(0.1)), "FedRS reads the logits"),
    "no classes, taught": (lambda: fl.Simulation(RIDGE, FedNTD(0.1)), "FedNTD reads the logits"),
    "no representation": (
        lambda: fl.Simulation(small.problem(SIZES), MOON(0.1)),
        r"MOON reads a network's representation .*headed\(body, head\), .* These can: .*FedAvg",
    ),
    "a stream": (
        lambda: fl.Simulation(fl.streams.Replay(RIDGE), FedLC(0.1)),
        "FedLC needs all data at once",
    ),
    "a negative calibration": (
        lambda: FedLC(0.1, calibration=-1.0),
        "calibration must be finite and >= 0, got -1",
    ),
    "more than no restriction": (
        lambda: FedRS(0.1, restriction=1.5),
        "restriction must be finite and >= 0 and <= 1, got 1.5",
    ),
    "a negative distillation": (
        lambda: FedNTD(0.1, distillation=-0.5),
        "distillation must be finite and >= 0, got -0.5",
    ),
    "no temperature": (
        lambda: FedNTD(0.1, temperature=0.0),
        "temperature must be finite and > 0, got 0",
    ),
    "means of classes without any": (
        lambda: fl.Simulation(RIDGE, FedDistill(0.1)),
        "FedDistill reads the logits of classes",
    ),
    "prototypes of nothing": (
        lambda: fl.Simulation(small.problem(SIZES), FedProto(0.1)),
        r"FedProto reads a network's representation .*headed\(body, head\)",
    ),
    "a median of sums": (
        lambda: fl.Simulation(make_read(), FedProto(0.1), aggregation=fl.aggregation.Median()),
        "FedProto combines messages otherwise than by a mean",
    ),
    "repulsion": (
        lambda: FedProto(0.1, attraction=-1.0),
        "attraction must be finite and >= 0, got -1",
    ),
    "two heads of none": (
        lambda: fl.Simulation(small.problem(SIZES), FedROD(0.1)),
        r"FedROD reads a network's representation .*headed\(body, head\)",
    ),
    "mutual learning of nothing": (
        lambda: fl.Simulation(RIDGE, FML(0.1)),
        "FML reads the logits of classes",
    ),
    "more than all supervision": (
        lambda: FML(0.1, supervision=1.5),
        "supervision must be finite and >= 0 and <= 1, got 1.5",
    ),
    "less than no supervision": (
        lambda: FML(0.1, shared_supervision=-0.5),
        "shared_supervision must be finite and >= 0 and <= 1, got -0.5",
    ),
    "alignment of nothing": (
        lambda: fl.Simulation(small.problem(SIZES), FedPAC(0.1)),
        r"FedPAC reads a network's representation .*headed\(body, head\)",
    ),
    "alignment without classes": (
        lambda: fl.Simulation(RIDGE, FedPAC(0.1)),
        "FedPAC reads the logits of classes",
    ),
    "repulsion from centroids": (
        lambda: FedPAC(0.1, attraction=-1.0),
        "attraction must be finite and >= 0, got -1",
    ),
    "no passes of a head": (
        lambda: FedPAC(0.1, head_epochs=0),
        "head_epochs must be >= 1, got 0",
    ),
    "a mentor of nothing": (
        lambda: fl.Simulation(small.problem(SIZES), FedKD(0.1)),
        r"FedKD reads a network's representation .*headed\(body, head\)",
    ),
    "no energy": (
        lambda: FedKD(0.1, energy=0.0),
        "energy must be finite and > 0 and <= 1, got 0",
    ),
    "more than all energy": (
        lambda: FedKD(0.1, final_energy=1.5),
        "final_energy must be finite and > 0 and <= 1, got 1.5",
    ),
    "no warmup of FedKD": (lambda: FedKD(0.1, warmup=0), "warmup must be >= 1, got 0"),
    "noise on what is of low rank": (
        lambda: fl.Simulation(make_read(), FedKD(0.1), upload_noise=fl.link.UploadNoise(0.1)),
        "FedKD sends nothing to a server that noise may be added to",
    ),
    "a compression of what is compressed": (
        lambda: fl.Simulation(make_read(), FedKD(0.1), compression=fl.link.Sign()),
        "compresses",
    ),
    "a generator of nothing": (
        lambda: fl.Simulation(small.problem(SIZES), FedGen(0.1, generator_step_size=0.1)),
        r"FedGen reads a network's representation .*headed\(body, head\)",
    ),
    "a generator without classes": (
        lambda: fl.Simulation(RIDGE, FedGen(0.1, generator_step_size=0.1)),
        "FedGen reads the logits of classes",
    ),
    "teaching the opposite": (
        lambda: FedGen(0.1, generator_step_size=0.1, distillation=-1.0),
        "distillation must be finite and >= 0, got -1",
    ),
    "a generator that does not move": (
        lambda: FedGen(0.1, generator_step_size=0.0),
        "step size must be finite and > 0",
    ),
    "a generator without steps": (
        lambda: FedGen(0.1, generator_step_size=0.1, generator_steps=0),
        "generator_steps must be >= 1, got 0",
    ),
    "no draws of a generator": (
        lambda: FedGen(0.1, generator_step_size=0.1, virtual_samples=0),
        "virtual_samples must be >= 1, got 0",
    ),
    "a generator without noise": (
        lambda: FedGen(0.1, generator_step_size=0.1, noise_dim=0),
        "noise_dim must be >= 1, got 0",
    ),
    "a generator without units": (
        lambda: FedGen(0.1, generator_step_size=0.1, hidden=0),
        "hidden must be >= 1, got 0",
    ),
    "inheritance of nothing": (
        lambda: fl.Simulation(RIDGE, FedPHP(0.1)),
        "FedPHP reads the logits of classes",
    ),
    "too much supervision": (
        lambda: FedPHP(0.1, supervision=1.5),
        "supervision must be finite and >= 0 and <= 1, got 1.5",
    ),
    "all of the past": (
        lambda: FedPHP(0.1, inheritance=1.0),
        "inheritance must be finite and >= 0 and < 1, got 1",
    ),
    "no warmup": (lambda: FedPHP(0.1, warmup=0), "warmup must be >= 1, got 0"),
    "no temperature of FedPHP": (
        lambda: FedPHP(0.1, temperature=0.0),
        "temperature must be finite and > 0, got 0",
    ),
    "no virtual samples": (
        lambda: CCVR(FedAvg(0.1), 0.1, virtual_samples=0),
        "virtual_samples must be >= 1, got 0",
    ),
    "no calibration": (
        lambda: CCVR(FedAvg(0.1), 0.1, calibration_steps=0),
        "calibration_steps must be >= 1, got 0",
    ),
    "a head of nothing": (
        lambda: fl.Simulation(small.problem(SIZES), CCVR(FedAvg(0.1), 0.1)),
        r"CCVR reads a network's representation .*headed\(body, head\)",
    ),
    "too many of the solver's clients": (
        lambda: fl.run(fl.Simulation(make_read(), CCVR(FedAvg(0.1, 9), 0.1)), 1),
        "clients_per_round must be at most the 5 clients",
    ),
    "a negative contrast": (lambda: MOON(0.1, contrast=-1.0), "contrast must be finite and >= 0"),
    "no temperature of MOON": (
        lambda: MOON(0.1, temperature=-1.0),
        "temperature must be finite and > 0, got -1",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_settings_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        make()


def without_samples(problem, client):
    """The same problem where a client has no samples."""
    has_samples = np.arange(problem.clients) != client
    weights = np.asarray(problem.weights) * has_samples[:, None]
    return dataclasses.replace(problem, weights=weights, importance=has_samples.astype(float))


def test_a_client_without_samples_does_not_enter_combined_heads():
    """It keeps its own head, and the others get the same heads as without it."""
    problem = make_read()
    models = np.asarray(state_after_rounds(FedPAC(0.1), without_samples(problem, 1), 3).model)
    assert np.all(np.isfinite(models))
    active = np.tile(np.arange(problem.clients) != 1, (3, 1))
    simulation = personal(FedPAC(0.1), without_samples(problem, 1), 3, participation=Trace(active))
    np.testing.assert_allclose(models, simulation[-1], rtol=1e-9, atol=1e-12)


def test_a_round_without_participants_keeps_a_calibrated_model():
    active = np.ones((3, make_read().clients), bool)
    active[1] = False
    algorithm = CCVR(FedAvg(0.1), 0.5, calibration_steps=4, virtual_samples=5)
    models = trajectory(algorithm, make_read(), 3, participation=Trace(active))
    np.testing.assert_array_equal(models[1], models[0])
    assert np.abs(models[2] - models[1]).max() > 1e-6
