"""A trusted server's noise that is correlated over rounds by a strategy of matrix mechanisms."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg
from fljax.participation.selectors import Cyclic, Everyone, Fraction
from fljax.privacy import AdaptiveClip, CentralGaussian, accounting, matrices, spent
from tests.cases import CLIENTS, DIM, make_objective
from tests.privacy.test_learners import (
    ROUNDS,
    participants,
    server_draws,
    silence_and_noise,
    simulate,
    trajectory,
)
from tests.reference import private

close = np.testing.assert_allclose
DELTA = 1e-5
Z = 0.7

STRATEGIES = {
    "banded square root": matrices.square_root(3),
    "negative entries": matrices.Toeplitz([1.0, -0.5, 0.25]),
    "inverse square root": matrices.inverse_square_root(3),
    "buffers": matrices.BufferedToeplitz(scale=[0.3, 0.2], decay=[0.9, 0.4]),
    "columns of norm one": matrices.column_normalized(matrices.square_root(4), ROUNDS),
}
each_strategy = pytest.mark.parametrize("name", STRATEGIES)


def averaging(strategy, selector=None, z=Z, epochs=3, **fields):
    selector = Everyone() if selector is None else selector
    algorithm = FedAvg(0.05, epochs=epochs, weighting="equal", selector=selector)
    return simulate(algorithm, CentralGaussian(z, **({"clip": 0.2} | fields), strategy=strategy))


@pytest.mark.thin(2)
@each_strategy
@pytest.mark.parametrize("selector", [Everyone(), Cyclic(2)])
def test_averaging_with_correlated_noise_equals_the_loop(name, selector):
    ours, _ = trajectory(averaging(STRATEGIES[name], selector))
    theirs = private.dp_fedavg(
        make_objective(),
        0.05,
        3,
        participants(selector),
        CLIENTS / selector.law(CLIENTS).separation,
        Z,
        0.2,
        server_draws(),
        STRATEGIES[name].matrix(ROUNDS),
    )
    close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_the_noise_of_an_adaptive_clip_is_correlated_as_well():
    """Its clip is a product over rounds, whose logarithm is a prefix sum like the model."""
    numbers = {"initial": 0.05, "quantile": 0.6, "learning_rate": 0.3, "share_noise": 0.2}
    strategy = STRATEGIES["buffers"]
    selector = Fraction(0.6)
    simulation = averaging(strategy, selector, epochs=1, clip=AdaptiveClip(**numbers))
    ours, result = trajectory(simulation)
    draws = server_draws(DIM + 1)
    theirs, clip = private.dp_fedavg_adaptive(
        make_objective(),
        0.05,
        participants(selector),
        0.6 * CLIENTS,
        Z,
        draws[:, :-1],
        draws[:, -1],
        *numbers.values(),
        matrix=strategy.matrix(ROUNDS),
    )
    close(ours, theirs, rtol=0, atol=1e-10)
    close(result["update_clip"], clip, rtol=1e-10)


# The ledger --------------------------------------------------------------------------------------


def largest_moves(matrix, separation):
    """For each number of participations, the largest squared norm of a client's contribution: over
    all patterns and, by absolute inner products, over all possible messages.
    """
    gram = np.abs(matrix.T @ matrix)
    rounds = len(matrix)

    @functools.cache
    def patterns(first, left):
        if left == 0:
            return [()]
        return [
            (start, *rest)
            for start in range(first, rounds)
            for rest in patterns(start + separation, left - 1)
        ]

    return [
        max(gram[np.ix_(rows, rows)].sum() for rows in patterns(0, times))
        for times in range(1, -(-rounds // separation) + 1)
    ]


@each_strategy
@pytest.mark.parametrize("separation", [1, 3])
def test_a_client_pays_for_its_participations_by_their_sensitivity(name, separation):
    strategy = STRATEGIES[name]
    selector = Everyone() if separation == 1 else Cyclic(separation)
    results = fl.run(averaging(strategy, selector), ROUNDS)
    exact = np.array(largest_moves(strategy.matrix(ROUNDS), separation)) / (2 * Z**2)
    ledger = results.privacy_rho.values
    assert (ledger >= exact[np.arange(ROUNDS) // separation] * (1 - 1e-12)).all()
    if strategy.has_exact_sensitivity(ROUNDS, separation):
        close(ledger[-1], exact[-1], rtol=1e-6)
    assert float(results.sampling_rate) == 1


@each_strategy
@pytest.mark.parametrize("separation", [1, 3])
def test_a_single_release_keeps_its_sensitivity(name, separation):
    """One row may hold several participations; a delta that noise reaches depends on the most."""
    strategy = STRATEGIES[name]
    selector = Everyone() if separation == 1 else Cyclic(separation)
    results = fl.run(averaging(strategy, selector), ROUNDS)
    matrix = np.abs(strategy.matrix(ROUNDS))
    farthest = max(
        matrix[row, start::separation].sum() for row in range(ROUNDS) for start in range(separation)
    )
    assert float(results.release_rho) >= farthest**2 / (2 * Z**2) * (1 - 1e-6)
    assert float(results.release_rho) <= float(results.privacy_rho[-1]) * (1 + 1e-6)


def test_a_client_that_took_part_less_often_paid_for_less():
    strategy = STRATEGIES["buffers"]
    results = fl.run(averaging(strategy, Fraction(0.4)), ROUNDS)
    paid = np.cumsum(strategy.participation_costs(ROUNDS)) / (2 * Z**2)
    possible = np.concatenate([[0], paid])
    away = np.abs(results.client_rho.values[:, None] - possible)
    assert away.min(axis=1).max() < 1e-6
    assert len(set(away.argmin(axis=1))) > 1


def test_with_secret_arrivals_every_client_pays_for_every_round():
    strategy = STRATEGIES["banded square root"]
    results = fl.run(averaging(strategy, Cyclic(3), arrivals="secret"), ROUNDS)
    total = strategy.participation_costs(ROUNDS, 3).sum() / (2 * Z**2)
    close(results.client_rho.values, total, rtol=1e-6)


def test_sampling_does_not_amplify_columns_that_overlap():
    for strategy, selector in (
        (STRATEGIES["buffers"], Fraction(0.4)),
        (STRATEGIES["banded square root"], Fraction(0.4)),
        (STRATEGIES["buffers"], Cyclic(4, fraction=0.5)),
        (matrices.square_root(5), Cyclic(4, fraction=0.5)),
    ):
        assert float(fl.run(averaging(strategy, selector), ROUNDS).sampling_rate) == 1
    amplified = averaging(matrices.square_root(4), Cyclic(4, fraction=0.5))
    close(fl.run(amplified, ROUNDS).sampling_rate, 0.5, rtol=1e-6)


# Cyclic Poisson sampling -------------------------------------------------------------------------


def test_by_turns_each_client_takes_part_with_its_probability():
    selector = Cyclic(3, fraction=0.4)
    available = jnp.ones(8, bool)
    keys = jax.random.split(jax.random.key(0), 9000).reshape(3, 3000)
    for i in range(3):
        participants = jax.vmap(lambda key, n=i + 4: selector.choose(key, available, None, n))(
            keys[i]
        )
        numbers = np.asarray(participants.clients)
        active = np.asarray(participants.here)
        times = np.bincount(numbers[active], minlength=8) / 3000
        in_turn = np.arange(8) % 3 == i
        assert (times[~in_turn] == 0).all()
        close(times[in_turn], 0.4, atol=0.05)
    sampling = selector.law(8)
    close(sampling.rate, 0.4 / 3, rtol=1e-6)
    close(sampling.rate_of_turn, 0.4, rtol=1e-6)
    assert sampling.rate_of_turn >= 0.4 * (1 - 1e-12)
    with pytest.raises(ValueError, match="fraction must be"):
        Cyclic(3, fraction=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [None, matrices.square_root(4)])
def test_epsilon_by_turns_is_that_of_its_theorem(strategy):
    pytest.importorskip("dp_accounting")
    results = fl.run(averaging(strategy, Cyclic(4, fraction=0.5), z=1.0), 10)
    matrix = matrices.identity() if strategy is None else strategy
    theorem = accounting.cyclic_poisson_epsilon(matrix, 1.0, DELTA, rounds=10, rate=0.5, cycle=4)
    # The cost of observed participations is another promise: the clients that took part have paid
    # it.
    drawn = results.drop_vars(["privacy_rho", "client_rho"])
    close(spent(drawn, DELTA).epsilon.values[-1], theorem, rtol=1e-4)
    assert theorem < accounting.zcdp_epsilon(3 / 2, DELTA, "gaussian")
    assert spent(results, DELTA).epsilon.values[-1] <= theorem * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "selector"),
    [
        (STRATEGIES["buffers"], Everyone()),
        (STRATEGIES["negative entries"], Cyclic(2)),
        (matrices.square_root(4), Cyclic(4, fraction=0.5)),
    ],
)
def test_a_budget_with_a_strategy_is_spent_and_not_exceeded(strategy, selector):
    pytest.importorskip("dp_accounting")

    def budgeted(key, epsilon):
        mechanism = CentralGaussian.for_budget(
            epsilon, DELTA, ROUNDS, selector, CLIENTS, clip=0.2, strategy=strategy
        )
        return simulate(FedAvg(0.05, weighting="equal", selector=selector), mechanism)

    axis = [0.5, 4.0]
    study = fl.sweep(budgeted, grid={"epsilon": axis}, rounds=ROUNDS, record_every=ROUNDS)
    assert study.attrs["compilations"] == 1
    printed = spent(study, DELTA).epsilon.isel(round=-1).max("seed").values
    assert (printed <= axis).all()
    close(printed, axis, rtol=1e-3)


@pytest.mark.slow
def test_a_strategy_may_be_an_axis_of_a_study():
    def scenario(key, decay):
        return averaging(matrices.BufferedToeplitz(scale=[0.5], decay=jnp.atleast_1d(decay)))

    study = fl.sweep(scenario, grid={"decay": [0.25, 0.75]}, rounds=4, seeds=1)
    assert study.attrs["compilations"] == 1
    for decay in (0.25, 0.75):
        alone = matrices.BufferedToeplitz(scale=[0.5], decay=[decay])
        rho = alone.participation_costs(4).sum() / (2 * Z**2)
        close(study.privacy_rho.sel(decay=decay).isel(round=-1, seed=0), rho, rtol=1e-6)


# Rounding ----------------------------------------------------------------------------------------


@each_strategy
def test_an_encoded_row_has_the_stated_accuracy(name):
    # The strategy's numbers in single precision: rounding them is not rounding a row.
    rounded = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), STRATEGIES[name])
    exact = jax.tree.map(lambda leaf: leaf.astype(float), rounded)
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.integers(-2, 3, (ROUNDS, 1))
    rows = (rng.normal(size=(ROUNDS, 50)) * sizes).astype(np.float32)
    state = rounded.begin(50, jnp.float32)
    lengths = exact.absolute().begin((), jnp.float64)
    unit = np.finfo(np.float32).eps / 2
    targets = exact.matrix(ROUNDS) @ rows.astype(float)
    for row, target in zip(rows, targets, strict=True):
        state, encoded = rounded.encode(state, jnp.asarray(row))
        norm = jnp.asarray(np.linalg.norm(row.astype(float)))
        lengths, length = exact.absolute().encode(lengths, norm)
        error = np.linalg.norm(np.asarray(encoded, float) - target)
        assert error <= rounded.roundings(ROUNDS) * unit * float(length)
        assert np.linalg.norm(target) <= float(length) * (1 + 1e-12)


@pytest.mark.slow
def test_long_sums_in_single_precision_are_nominal():
    """Buffers of large sums round by more than a hundredth of what one client moves."""
    with jax.enable_x64(False):
        problem = fl.problems.ridge(jax.random.key(0), clients=400, samples=4, dim=3)
        strategy = matrices.BufferedToeplitz(scale=[0.5], decay=[1.0])
        mechanism = CentralGaussian(1.0, clip=1e-3, strategy=strategy)
        simulation = fl.Simulation(problem, FedAvg(0.1, weighting="equal"), privacy=mechanism)
        with pytest.warns(fl.AssumptionWarning, match="rounding to float32"):
            results = fl.run(simulation, 300, record_every=300)
        assert bool(results.nominal)


# Attacks -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thin(1)
@pytest.mark.parametrize("name", ["buffers", "inverse square root"])
def test_an_attack_finds_the_claim_of_columns_that_overlap_and_not_more(name):
    """A client that takes part in every round, as differently as it can."""
    quiet, loud = silence_and_noise("replace")
    strategy = STRATEGIES[name]
    mechanism = CentralGaussian(3.0, clip=0.5, strategy=strategy, neighbors="replace")
    simulation = simulate(FedAvg(0.1, weighting="equal"), mechanism, loud)
    result = fl.audit.two_worlds(simulation, quiet, 3, seeds=6000, delta=0.05)
    assert not result.broken, result.verdict
    rho = strategy.participation_costs(3).sum() * (2 / 3.0) ** 2 / 2
    close(result.ledger["rho"], rho, rtol=1e-6)
    assert result.mu == pytest.approx(math.sqrt(2 * rho), rel=0.08)
