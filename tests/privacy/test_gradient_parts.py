"""Parts of clients' gradients with a clip and noise for each part."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.module import replace
from fljax._core.prng import private_normal
from fljax.algorithms import FedDPSGD
from fljax.participation.selectors import Participants
from fljax.privacy import NoisyGradients, matrices
from fljax.problems import Huber, LeastSquares, Softmax
from tests.cases import CLIENTS, DIM, make_problem
from tests.privacy.test_learners import ROUNDS, simulate, trajectory

close = np.testing.assert_allclose
WAVES = fl.data.random_fourier(jax.random.key(5), 4, 4)
STRATEGY = matrices.BufferedToeplitz(scale=[0.3, 0.2], decay=[0.9, 0.4])


def classified(key, samples=7, width=3, classes=4):
    k_x, k_y = jax.random.split(key)
    x = 3 * jax.random.normal(k_x, (2, samples, width))
    return x, jax.random.randint(k_y, (2, samples), 0, classes)


def linear(loss, width=5, samples=96):
    x, y = classified(jax.random.key(1), samples, width)
    return fl.problems.Problem(x, y.astype(x.dtype) * 50.0, loss)


def several_outputs():
    x, y = classified(jax.random.key(2))
    return fl.problems.Problem(x, y, Softmax(4))


def network():
    x, y = classified(jax.random.key(3))
    data = list(zip(np.asarray(x), np.asarray(y), strict=True))
    model = fl.models.mlp(4, hidden=[5])
    return fl.problems.Model.from_clients(model, jax.random.key(0), data, Softmax(4))


PROBLEMS = {
    "many samples": (lambda: linear(LeastSquares()), (2, 1, 2)),
    "mapped": (lambda: replace(linear(Huber(1.0), 4), feature_map=WAVES), (1, 3)),
    "several outputs": (several_outputs, (3, 6, 3)),
    "arrays of a network": (network, "pieces"),
    "any cuts of a network": (network, (7, 4, 20, 13)),
}


def norms_of_parts(rows, sizes):
    ends = np.cumsum(sizes)[:-1]
    return np.stack([np.linalg.norm(p, axis=-1) for p in np.split(rows, ends, axis=-1)], axis=-1)


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", PROBLEMS)
def test_each_part_of_a_samples_gradient_is_clipped_separately(name):
    make, sizes = PROBLEMS[name]
    problem = make()
    sizes = problem.pieces if sizes == "pieces" else sizes
    models = jax.random.normal(jax.random.key(4), (problem.clients, problem.dim))
    samples = problem.weights.shape[1]
    gradients = np.stack(  # [K, N, D]
        [
            replace(
                problem, weights=jnp.zeros_like(problem.weights).at[:, j].set(1.0)
            ).loss_gradient(models)
            for j in range(samples)
        ],
        axis=1,
    )
    norms = norms_of_parts(gradients, sizes)
    clips = np.quantile(norms, 0.4, axis=(0, 1)) + 1e-3
    factors = np.minimum(1, clips / np.where(norms > 0, norms, 1))
    assert (factors < 1).any(axis=(0, 1)).all()
    weights = np.asarray(problem.weights)[:, :, None]
    ours = NoisyGradients(1.0, clip=clips, parts=sizes).gradient(problem, models, problem.influence)
    theirs = (weights * np.repeat(factors, sizes, axis=2) * gradients).sum(axis=1)
    regularizer = problem.share[:, None] * problem.regularizer.gradient(models)
    close(ours, theirs + regularizer, rtol=1e-9, atol=1e-10)


@pytest.mark.thin(1, every=1)
@pytest.mark.parametrize("size", [1e200, np.inf, np.nan, 1e-200])
@pytest.mark.parametrize("name", ["many samples", "several outputs", "any cuts of a network"])
def test_no_sample_moves_a_part_by_more_than_its_clip(name, size):
    make, sizes = PROBLEMS[name]
    problem = make().prepare()
    features = np.array(problem.features)
    features[:, :, 0] = size
    weights = jnp.zeros_like(problem.weights).at[:, 0].set(0.25)
    problem = replace(problem, features=features, weights=weights, statistics=None).usable()
    clips = 10.0 ** np.arange(-len(sizes), 0)
    budget = NoisyGradients(1.0, clip=clips, parts=sizes)
    share = jnp.full(2, 0.25)
    rows = budget.loss_gradient(budget.clipped(problem, share), jnp.ones((2, problem.dim)))
    assert (norms_of_parts(np.asarray(rows), sizes) <= 0.25 * clips * (1 + 1e-9)).all()


def test_each_part_has_separate_noise():
    problem = make_problem()
    budget = NoisyGradients([2.0, 0.5], clip=[0.3, 4.0], parts=(1, DIM - 1))
    link = fl.view(simulate(FedDPSGD(0.1), budget)).link
    participants = Participants(None, jnp.ones(CLIENTS, bool))
    start = jnp.ones((CLIENTS, DIM))
    key = jax.random.fold_in(jax.random.fold_in(link.key("gradients"), 1), 0)
    normal = private_normal(jax.random.split(key)[1], start.shape, float)
    moved = start - link.descend(
        1, participants, start, lambda key, number: (problem, problem.influence), lambda w, g: w - g
    )
    scale = np.array([0.6, *[2.0] * (DIM - 1)])[None] * problem.influence[:, None]
    clean = budget.gradient(problem, start, problem.influence)
    close(moved, clean + scale * normal, rtol=0, atol=1e-10)
    close(link.spent["rho"], (1 / 4 + 4) / 2, rtol=1e-12)


def test_a_single_part_equals_no_parts():
    algorithm = FedDPSGD(0.05, local_steps=2, sampling_rate=0.4)
    plain, accounted = trajectory(simulate(algorithm, NoisyGradients(0.8, clip=0.5)))
    one_part, same = trajectory(simulate(algorithm, NoisyGradients(0.8, clip=[0.5], parts=[DIM])))
    close(one_part, plain, rtol=0, atol=1e-10)
    for name in ("privacy_rho", "noise_multiplier", "sampling_rate"):
        close(accounted[name], same[name], rtol=1e-12)


def test_parts_are_accounted_for_as_one_joint_mechanism():
    algorithm = FedDPSGD(0.05, sampling_rate=0.4)
    z = np.array([2.0, 3.0])
    budget = NoisyGradients(z, clip=0.5, parts=(1, DIM - 1), neighbors="add-or-remove")
    results = fl.run(simulate(algorithm, budget), 5)
    close(results.privacy_rho[-1], 5 * np.sum(1 / (2 * z**2)), rtol=1e-6)
    close(results.noise_multiplier, np.sum(z**-2) ** -0.5, rtol=1e-6)


@pytest.mark.slow
def test_parts_may_be_correlated_by_a_strategy():
    z = np.array([2.0, 3.0])
    budget = NoisyGradients(z, clip=[0.5, 0.2], parts=(1, DIM - 1), strategy=STRATEGY)
    results = fl.run(simulate(FedDPSGD(0.05), budget), ROUNDS)
    rho = STRATEGY.participation_costs(ROUNDS).sum() * np.sum(1 / (2 * z**2))
    close(results.privacy_rho[-1], rho, rtol=1e-6)


@pytest.mark.slow
def test_layers_of_a_network_by_turns_under_a_strategy():
    problem = network()
    z = np.arange(2.0, 2 + len(problem.pieces))
    strategy = matrices.square_root(2)
    budget = NoisyGradients(z, clip=0.1 * z, parts=problem.pieces, strategy=strategy)
    algorithm = FedDPSGD(0.05, local_steps=2, sampling_rate=0.5, turns=2)
    simulation = fl.Simulation(problem, algorithm, privacy=budget)
    assert fl.audit.unperturbed(simulation) == []
    results = fl.run(simulation, 3)
    rho = strategy.participation_costs(6, 2).sum() * np.sum(1 / (2 * z**2))
    close(results.privacy_rho[-1], rho, rtol=1e-6)
    close(results.sampling_rate, 0.5, rtol=1e-6)
    assert np.isfinite(results.model).all()


@pytest.mark.slow
def test_numbers_of_parts_may_be_axes_of_a_study():
    def scenario(key, first):
        z = jnp.stack([first, jnp.asarray(3.0)])
        return simulate(FedDPSGD(0.05), NoisyGradients(z, parts=(1, DIM - 1)))

    study = fl.sweep(scenario, grid={"first": [1.0, 2.0]}, rounds=2, seeds=1)
    rho = study.privacy_rho.isel(round=-1, seed=0)
    close(rho, [1 + 1 / 9, 1 / 4 + 1 / 9], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("strategy", [None, STRATEGY])
def test_an_attack_finds_the_claim_of_all_parts_and_not_more(strategy):
    """A sample whose gradient is far above the clip in every part."""
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=5, dim=3)
    a, b = fl.audit.corners(problem, radius=50.0, targets=(-1e3, 1e3))
    z = np.array([6.0, 9.0])
    budget = NoisyGradients(
        z, clip=[0.1, 2.0], parts=(1, 2), neighbors="replace", strategy=strategy
    )
    simulation = fl.Simulation(a, FedDPSGD(0.1, local_steps=2), privacy=budget)
    result = fl.audit.two_worlds(simulation, b, 2, 4000, delta=0.05, confidence=0.999)
    cost = 4 if strategy is None else strategy.participation_costs(4).sum()
    rho = cost * np.sum(4 / (2 * z**2))
    close(result.ledger["rho"], rho, rtol=1e-6)
    assert not result.broken, result.verdict
    assert result.mu == pytest.approx(math.sqrt(2 * rho), rel=0.08)


@pytest.mark.slow
def test_parts_keep_their_sensitivity_for_any_data():
    problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=4, dim=3)
    budget = NoisyGradients([2.0, 3.0], clip=[0.1, 2.0], parts=(1, 2), neighbors="replace")
    worst = fl.audit.worst_neighbors(fl.Simulation(problem, FedDPSGD(0.1), privacy=budget))
    assert worst.holds
    assert worst.gap == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: NoisyGradients([1.0, 2.0]), r"must be one number \(there are no parts="),
        (lambda: NoisyGradients(1.0, clip=[1.0, 2.0], parts=(1, 1, 1)), "one of each of the 3"),
        (lambda: NoisyGradients([1.0, -2.0], parts=(1, 1)), "noise_multiplier must be"),
        (lambda: NoisyGradients(1.0, parts=(0, 2)), "parts must be >= 1"),
        (lambda: NoisyGradients(1.0, parts=(1, DIM)), "parts must be all"),
    ],
)
def test_bad_parts_are_named(build, match):
    with pytest.raises((TypeError, ValueError), match=match):
        fl.run(simulate(FedDPSGD(0.1), build()), 2)


def test_parts_of_several_outputs_are_of_whole_ones():
    problem = several_outputs()
    simulation = fl.Simulation(problem, FedDPSGD(0.1), privacy=NoisyGradients(1.0, parts=(4, 8)))
    with pytest.raises(ValueError, match="must be of whole outputs, which have 3 parameters"):
        fl.run(simulation, 2)
