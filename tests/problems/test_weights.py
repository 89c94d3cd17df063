"""Weights of clients belong to the problem: errors refer to the minimized objective."""

import dataclasses
import warnings

import jax
import numpy as np
import optax
import pytest

import fljax as fl
from fljax import problems
from fljax.algorithms import (
    ATC,
    ATCGTSAGA,
    EXTRA,
    GTSAGA,
    LTADMMVR,
    MIME,
    NIDS,
    SCAFFOLD,
    ConventionalFL,
    FedALA,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDyn,
    FedExP,
    FedNova,
    FedOpt,
    FedProx,
    ISFedAvg,
    ProxSkip,
    QFedAvg,
)
from fljax.algorithms.peers.sample_gradients import gradient_table, saga_estimate
from fljax.participation.selectors import Unequal
from fljax.problems.batches import Weighted, taken

SIZES = (2, 9, 4, 14, 6)
FACTORS = np.array([0.3, 2.0, 1.0, 0.0, 4.0])


def make_problem(loss=problems.LeastSquares(), strength=0.7, **parts):  # noqa: B008
    rng = np.random.default_rng(5)
    data = [(rng.normal(size=(n, 2)), rng.normal(size=n) + k) for k, n in enumerate(SIZES)]
    return problems.from_clients(data, loss, problems.SquaredL2(), strength, **parts)


def trajectory(simulation):
    """``[T, D]``, the server's model of every round."""
    results = fl.run(dataclasses.replace(simulation, metrics=[fl.metrics.trajectory()]), 6)
    return results.model_trajectory.values[:, 0]


def last_error(problem, algorithm, rounds=1500, **parts):
    simulation = fl.Simulation(problem, algorithm, metrics=["normalized_error"], **parts)
    return float(fl.run(simulation, rounds).normalized_error[-1])


def strengths_of_clients(problem):
    """Another share of the regularizer for each client, also for the one of weight zero."""
    return dataclasses.replace(problem.weighing(FACTORS), strength=np.arange(1, 6) / 10)


WEIGHED = {
    "none": lambda problem: problem,
    "any, and strengths": strengths_of_clients,
    "by samples": lambda problem: problem.weighing("samples"),
    "any": lambda problem: problem.weighing(FACTORS),
}
EXACT = {
    "FedAvg": FedAvg(0.05),
    "FedAvgM": FedAvgM(0.02, momentum=0.5),
    "FedOpt": FedOpt(0.05, server=optax.sgd(0.5)),
    "FedProx": FedProx(0.05, attraction=1.0),
    "FedNova": FedNova(0.05),
    "FedExP": FedExP(0.02),
    "q-FedAvg": QFedAvg(0.05, fairness=0.0),
    "MIME": MIME(0.05, local_steps=2),
    "FedBuff": FedBuff(0.02, buffer_size=3),
    "SCAFFOLD": SCAFFOLD(0.01, local_steps=3),
    "FedDyn": FedDyn(0.02, attraction=1.0, local_steps=60),
    "FL": ConventionalFL(0.05),
    "EXTRA": EXTRA(0.02),
    "GT-SAGA": GTSAGA(0.02),
    "ATC-GT-SAGA": ATCGTSAGA(0.02),
    "LT-ADMM-VR": LTADMMVR(0.9, 0.01, pull=0.1, local_steps=3, batch=2),
    "NIDS": NIDS(0.02),
    "ProxSkip": ProxSkip(0.02, probability=0.5),
}
PEERS = (EXTRA, NIDS, ProxSkip, ATC, GTSAGA, ATCGTSAGA, LTADMMVR)


@pytest.mark.thin(8)
@pytest.mark.parametrize("weights", WEIGHED)
@pytest.mark.parametrize("name", EXACT)
def test_errors_vanish_for_any_client_weights(name, weights):
    """Clients of 2 to 14 samples; one of weight zero."""
    algorithm = EXACT[name]
    problem = WEIGHED[weights](make_problem())
    network = fl.graphs.complete(5) if isinstance(algorithm, PEERS) else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert last_error(problem, algorithm, network=network) < 1e-12


@pytest.mark.parametrize("weights", WEIGHED)
def test_the_optimum_is_that_of_the_weighed_sum(weights):
    problem = WEIGHED[weights](make_problem())
    factor = {"none": np.ones(5), "by samples": np.array(SIZES) * 5 / 35}.get(weights, FACTORS)
    x, y, plain = (
        np.asarray(a) for a in (problem.features, problem.targets, make_problem().weights)
    )
    share = factor[:, None] * plain
    strength = np.sum(problem.strength)
    gram = np.einsum("kn,knp,knq->pq", share, x, x) + strength * np.eye(2)
    best = np.linalg.solve(gram, np.einsum("kn,knp,kn->p", share, x, y))
    np.testing.assert_allclose(problems.optimum(problem), best, atol=1e-10)


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda **w: FedAvg(0.05, 3, 2, 4, **w),
        lambda **w: FedAvg(0.05, selector=Unequal(2, [0.1, 0.3, 0.2, 0.3, 0.1]), epochs=2, **w),
        pytest.param(lambda **w: FedNova(0.05, 3, 2, 4, momentum=0.5, **w), marks=pytest.mark.slow),
        pytest.param(lambda **w: MIME(0.05, 3, 2, 4, **w), marks=pytest.mark.slow),
        pytest.param(lambda **w: QFedAvg(0.05, 3, 2, fairness=1.0, **w), marks=pytest.mark.slow),
        pytest.param(lambda **w: FedALA(0.05, 3, 2, 4, **w), marks=pytest.mark.slow),
    ],
)
def test_a_problem_weighed_by_samples_is_averaged_by_samples(algorithm):
    """Several local steps, drawn clients, batches: McMahan et al.'s weights at the server, and
    steps that are not longer for clients with more samples.
    """
    problem = make_problem()
    by_algorithm = trajectory(fl.Simulation(problem, algorithm(weighting="samples")))
    by_problem = trajectory(fl.Simulation(problem.weighing("samples"), algorithm()))
    by_both = trajectory(fl.Simulation(problem.weighing("samples"), algorithm(weighting="samples")))
    np.testing.assert_allclose(by_problem, by_algorithm, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(by_both, by_algorithm, rtol=1e-10, atol=1e-12)
    equal = trajectory(fl.Simulation(problem, algorithm()))
    assert np.abs(equal - by_algorithm).max() > 1e-2


@pytest.mark.slow
def test_a_single_client_minimizes_its_mean_loss():
    plain = make_problem()
    factors = np.array([0.3, 2.0, 1.0, 1.2, 0.5])
    model = jax.random.normal(jax.random.key(0), (5, 2))
    for strength in (0.7, np.array([0.1, 0.2, 0.3, 0.4, 0.5])):
        weighed = make_problem(strength=strength).weighing(factors)
        for problem in (weighed, weighed.prepare()):
            unweighted = problem.unweighted()
            np.testing.assert_allclose(
                unweighted.mean_loss(model), plain.mean_loss(model), atol=1e-12
            )
            total = factors @ np.asarray(unweighted.gradient(model[:1].repeat(5, 0)))
            sum_of_gradients = np.asarray(weighed.gradient(model[:1].repeat(5, 0))).sum(0)
            np.testing.assert_allclose(total, sum_of_gradients, atol=1e-12)
    assert plain.unweighted() is plain


@pytest.mark.parametrize("axis", [False, True])
def test_weights_of_another_objective_are_reported(axis):
    problem = make_problem()

    def scenario(key, step_size):
        algorithm = FedAvg(step_size if axis else 0.05, weighting="samples")
        return fl.Simulation(problem, algorithm, metrics=["normalized_error"])

    with pytest.warns(fl.AssumptionWarning, match=r"in 2 of 2 runs.*problem\.weighing"):
        results = fl.sweep(scenario, grid={"step_size": [0.05, 0.02]}, seeds=1, rounds=400)
    assert not results.same_objective.any()
    assert results.normalized_error.isel(round=-1).min() > 1e-3


@pytest.mark.slow
def test_ineffective_weights_are_not_reported():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        even = problems.least_squares(jax.random.key(0), clients=4, samples=9, dim=2)
        assert last_error(even, FedAvg(0.05, weighting="samples")) < 1e-12
        assert (
            last_error(make_problem().weighing("samples"), FedAvg(0.05, weighting="samples"))
            < 1e-12
        )
        fl.run(
            fl.Simulation(make_problem(), FedAvg(0.05, weighting="samples")), 2
        )  # no error asked


def test_weights_are_equal_or_by_samples():
    with pytest.raises(ValueError, match="\"samples\" or a number of each client, got 'sample'"):
        make_problem().weighing("sample")
    with pytest.raises(ValueError, match="unknown weighting 'problem'; known: samples, equal"):
        FedAvg(0.1, weighting="problem")
    with pytest.raises(TypeError, match="weighting"):
        SCAFFOLD(0.1, weighting="samples")


def test_a_table_of_sample_gradients_keeps_the_regularizer_of_a_client_of_weight_zero():
    """At its model of the round, not at that of the start."""
    problem = make_problem().weighing(FACTORS)
    start = np.ones((5, 2))
    model = np.full((5, 2), 3.0)
    table = gradient_table(problem, start)
    rows = np.array([[0, 1], [2, 3], [0, 3], [14, 14], [1, 5]])
    estimate, after = saga_estimate(problem, table, model, rows)
    expected = np.asarray(problem.gradient(model))[3]
    for gradient in (estimate, after.mean):
        np.testing.assert_allclose(gradient[3], expected, atol=1e-12)


@pytest.mark.parametrize("strength", [0.7, np.array([0.1, 0.2, 0.3, 0.4, 0.5])])
def test_clients_of_zero_weight_pass_on_their_regularizer(strength):
    problem = make_problem(strength=strength).weighing(FACTORS)
    model = np.full((5, 2), 2.0)
    total = FACTORS @ np.asarray(problem.unweighted().gradient(model))
    np.testing.assert_allclose(total, np.asarray(problem.gradient(model)).sum(0), atol=1e-12)


def test_batches_of_unequal_probabilities_have_the_weight_of_their_client():
    """One sample is drawn by its probability; the mean over draws is the client's gradient."""
    problem = make_problem().weighing(FACTORS)
    model = np.ones((5, 2))
    real = np.asarray(make_problem().weights) > 0
    probabilities = np.where(real, np.arange(1.0, 15.0), 0)
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    batches = Weighted(1, probabilities).draw(jax.random.key(0), real, np.arange(5), 4000)

    def gradient_of_step(step):
        return taken(problem, np.arange(5), batches, step).gradient(model)

    mean = np.mean(jax.lax.map(gradient_of_step, np.arange(4000), batch_size=500), axis=0)
    np.testing.assert_allclose(mean, problem.gradient(model), atol=0.05, rtol=0.1)


@pytest.mark.parametrize("factors", [FACTORS, np.full(5, 0.5)], ids=["one of zero", "halved"])
@pytest.mark.parametrize("strength", [0.7, np.array([0.1, 0.2, 0.3, 0.4, 0.5])])
@pytest.mark.parametrize(
    "rule", ["optimal", pytest.param("full", marks=pytest.mark.slow), "sampled"]
)
def test_importance_sampling_minimizes_the_weighed_objective(rule, strength, factors):
    """All samples of all clients are drawn, and nothing is left to chance."""
    problem = make_problem(strength=strength).weighing(factors)
    algorithm = ISFedAvg(0.05, 5, batch=SIZES, rule=rule)
    assert last_error(problem, algorithm) < 1e-12


@pytest.mark.parametrize("network", [False, True])
def test_the_norm_of_a_sample_s_gradient_is_of_the_weighed_loss(network):
    """The client's gradient if it had no other sample."""
    problem = make_problem()
    if network:
        problem = problems.Model.of(problem, fl.models.mlp(1, (3,)), jax.random.key(0))
        problem = dataclasses.replace(problem, regularizer=problems.SquaredL2(), strength=0.7)
    model = jax.random.normal(jax.random.key(1), (5, problem.dim))
    problem = problem.weighing(FACTORS)
    norms = np.asarray(problem.sample_objective_norms(model))
    for sample in (0, 1):
        single_sample = problem.take(np.arange(5), np.full((5, 1), sample))
        expected = np.linalg.norm(np.asarray(single_sample.gradient(model)), axis=1)
        counted = FACTORS > 0
        np.testing.assert_allclose(norms[counted, sample], expected[counted], rtol=1e-10)
        assert not norms[~counted].any()


def test_a_client_without_samples_has_empty_batches_under_unequal_probabilities():
    data = [(np.ones((n, 2)), np.arange(n) + 1.0) for n in (3, 0, 2)]
    problem = problems.from_clients(data, problems.LeastSquares(), problems.SquaredL2(), 0.1)
    probabilities = np.array([[0.5, 0.25, 0.25], [0, 0, 0], [0.5, 0.5, 0]])
    algorithm = FedAvg(0.1, local_steps=2, batches=Weighted(2, probabilities))
    run = fl.run(fl.Simulation(problem, algorithm, metrics=["train_error"]), 5)
    assert np.all(np.isfinite(run.model))
    with pytest.raises(ValueError, match="positive where there is a sample"):
        fl.Simulation(
            problem, FedAvg(0.1, local_steps=2, batches=Weighted(2, probabilities[[0, 1, 1]]))
        )


@pytest.mark.parametrize("factor", [1e-320, 1e-310])
def test_importances_that_vanish_in_the_precision_in_use_are_refused(key, factor):
    """They would all become zero, and so would the objective."""
    problem = fl.problems.ridge(key, clients=3, samples=4, dim=2)
    with pytest.raises(ValueError, match="importance must be a number that float64 can hold"):
        problem.weighing([factor] * 3)
    with pytest.raises(ValueError, match="strength must be a number that float64 can hold"):
        fl.problems.ridge(key, clients=3, samples=4, dim=2, strength=factor)
