"""Models shared in part: FedPer, LG-FedAvg and FedBN, some of it with FedRep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, FedBN, FedPer, FedRep, LGFedAvg, LocalOnly
from tests.support import small_network as small
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    HEAD,
    LOCAL,
    REAL,
    ROUNDS,
    SIZES,
    make_problem,
    new_key,
    quadratics,
    records,
    short_run,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose

ALL = range(DIM)


@pytest.mark.slow
def test_a_network_s_parameters_are_personal_by_their_paths():
    problem = small.problem(SIZES)
    assert np.flatnonzero(problem.coordinates("^[cd]$")).tolist() == list(small.LAYER)
    assert problem.coordinates(small.LAYER).tolist() == problem.coordinates("^[cd]$").tolist()
    by_path = fl.Simulation(problem, FedPer(0.3, personal="^[cd]$"))
    by_place = fl.Simulation(problem, FedPer(0.3, personal=small.LAYER))
    np.testing.assert_array_equal(trajectory(by_path, 3), trajectory(by_place, 3))
    assert records(by_path, 1, 1)["bits_up"] == [REAL * CLIENTS * (31 - len(small.LAYER))]
    late = fl.Simulation(problem, FedPer(0.3, personal="^[cd]$"), delays=fl.link.UniformDelay(1))
    assert np.isfinite(trajectory(late, 3)).all()
    with pytest.raises(ValueError, match="no parameter's path matches 'head'; there are: a, b"):
        short_run(FedPer(0.3, personal="head"), problem=problem)


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
    personal = problem.coordinates(FedBN(0.3).personal)
    assert personal.sum() == small.HIDDEN
    last = trajectory(fl.Simulation(problem, FedBN(0.3)))[-1]
    assert np.ptp(last[:, personal], axis=0).min() > 1e-3
    assert np.ptp(last[:, ~personal], axis=0).max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FedRep, FedPer])
def test_without_personal_parameters_it_is_federated_averaging(cls):
    parts = world_of(FedAvg(0.1, 4), True, True, new_key())[0]
    algorithms = (
        cls(LOCAL, 4, 2, weighting="samples", personal=()),
        FedAvg(LOCAL, 4, 2, weighting="samples"),
    )
    result, expected = (trajectory(fl.Simulation(make_problem(), a, **parts)) for a in algorithms)
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [FedPer(LOCAL, epochs=3, personal=ALL), FedRep(LOCAL, personal=ALL, head_epochs=3)],
)
def test_with_all_parameters_personal_it_is_local_training(algorithm):
    parts = world_of(algorithm, True, False, new_key())[0]
    algorithms = algorithm, LocalOnly(LOCAL, 3)
    result, expected = (trajectory(fl.Simulation(make_problem(), a, **parts)) for a in algorithms)
    close(result, expected, rtol=0, atol=1e-13)
    assert records(fl.Simulation(make_problem(), algorithm), 3, 3)["scalars"] == [0]


@pytest.mark.slow
def test_shared_in_part_ends_where_both_parts_are_best():
    r"""FedPer of one step: :math:`\partial_hf_k=0` at each client, :math:`\sum_k\partial_\varphi
    f_k=0`: the minimizer of :math:`\sum_kf_k(\varphi,h_k)`; FedRep's is the same.
    """
    system = np.zeros((2 + CLIENTS, 2 + CLIENTS))
    right = np.zeros(2 + CLIENTS)
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
def test_the_three_jointly_trained_algorithms_agree():
    result = [
        trajectory(fl.Simulation(make_problem(), cls(LOCAL, personal=HEAD)))
        for cls in (FedPer, LGFedAvg, FedBN)
    ]
    np.testing.assert_array_equal(result[0], result[1])
    np.testing.assert_array_equal(result[0], result[2])


@pytest.mark.slow
def test_heads_start_at_the_problem_s_start():
    starts = np.random.default_rng(8).normal(size=(CLIENTS, DIM))
    algorithm = FedPer(0.1, personal=HEAD)
    state = algorithm.init(make_problem().starting_at(starts), None)
    np.testing.assert_array_equal(state.model[:, 1], starts[:, 1])
    close(state.model[:, [0, 2]], np.tile(starts[:, [0, 2]].mean(axis=0), (CLIENTS, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("cls", [FedPer, FedRep])
def test_absent_clients_keep_their_own_parts(cls):
    active = np.ones((ROUNDS, CLIENTS), bool)
    active[1:, 2] = False
    parts = {"participation": fl.participation.Trace(active)}
    result = trajectory(fl.Simulation(make_problem(), cls(0.1, personal=HEAD), **parts))[:, 2]
    assert np.abs(result[0, 1]) > 1e-3
    np.testing.assert_array_equal(result[1:, 1], np.full(ROUNDS - 1, result[0, 1]))
    assert np.abs(np.diff(result[:, 0])).min() > 0


@pytest.mark.slow
def test_portions_are_compressed_and_aggregated_robustly():
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


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: FedPer(0.1, personal=0.5), "personal must be a mask of the parameters"),
        (TypeError, lambda: FedPer(0.1, personal=[0.5]), "or a list of their indices, got"),
        (ValueError, lambda: short_run(FedPer(0.1, personal=[7])), "from 0 to 2, got 7 to 7"),
        (TypeError, lambda: short_run(FedBN(0.1)), "linear prediction have no names"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
