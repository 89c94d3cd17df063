"""BEER, MoTEF, LEAD and CEDAS: special cases, rates, traffic."""

import jax
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import BEER, CEDAS, LEAD, NIDS, ChocoSGD, MoTEF
from fljax.link import Quantize, TopK
from fljax.optimization.schedules import PowerDecay
from fljax.problems import LeastSquares, NoRegularizer, from_clients
from fljax.problems.batches import Uniform
from tests.cases import CLIENTS, DIM, METROPOLIS, OBJECTIVE, SIZES, START, make_data, make_problem
from tests.support.peer_runs import ANYWHERE, models, peer_run, simulation_of

close = np.testing.assert_allclose
NOTHING = TopK(DIM)  # all numbers: no compression
PLAIN = from_clients(make_data(), LeastSquares(), NoRegularizer(), 0.0)
METHODS = {
    "BEER": BEER(0.05, compression=TopK(1), consensus_step_size=0.3),
    "MoTEF": MoTEF(0.02, compression=TopK(1), consensus_step_size=0.2, momentum=0.6),
    "LEAD": LEAD(0.2, compression=Quantize(3), consensus_step_size=0.6),
    "CEDAS": CEDAS(0.2, compression=Quantize(3), consensus_step_size=0.6),
}


def gradients(x):
    return np.array([OBJECTIVE.gradient(k, x[k]) for k in range(CLIENTS)])


def test_beer_without_compression_is_gradient_tracking():
    """Combinations of the last models and trackers, except that the first ones are not combined."""
    step = 0.05
    x = START
    v = gradients(x)
    known_x = np.zeros_like(x)
    known_v = np.zeros_like(x)
    history = []
    for _ in range(12):
        before = gradients(x)
        x = x + METROPOLIS @ known_x - known_x - step * v
        v = v + METROPOLIS @ known_v - known_v + gradients(x) - before
        known_x = x
        known_v = v
        history.append(x)
    close(models(BEER(step, compression=NOTHING, consensus_step_size=1.0)), history, atol=1e-10)


def test_motef_without_momentum_is_beer():
    shared = {"compression": TopK(1), "consensus_step_size": 0.3}
    problem = make_problem().starting_at(ANYWHERE)
    ours = models(MoTEF(0.05, momentum=0.0, **shared), problem=problem)
    np.testing.assert_array_equal(ours, models(BEER(0.05, **shared), problem=problem))


@pytest.mark.parametrize("method", [LEAD, CEDAS])
def test_without_compression_they_are_nids(method):
    algorithm = method(0.1, compression=NOTHING, consensus_step_size=1.0, copy_step_size=0.3)
    problem = PLAIN.starting_at(ANYWHERE)
    close(models(algorithm, problem=problem), models(NIDS(0.1), problem=problem), atol=1e-10)


def test_cedas_is_lead_while_the_step_size_is_constant():
    shared = {"compression": TopK(1), "consensus_step_size": 0.3}
    close(models(CEDAS(0.05, **shared)), models(LEAD(0.05, **shared)), atol=1e-12)
    falling = PowerDecay(0.3)
    apart = models(CEDAS(falling, **shared)) - models(LEAD(falling, **shared))
    assert np.abs(apart).max() > 1e-3


@pytest.mark.parametrize("label", METHODS)
def test_they_reach_the_optimum_with_constant_steps_and_few_bits(label):
    """Where Choco-SGD stays at a distance that its step size decides."""
    error = peer_run(METHODS[label], 3000, 500).normalized_error.values
    assert error[-1] < 1e-20
    choco = ChocoSGD(0.05, compression=TopK(1), consensus_step_size=0.3)
    assert peer_run(choco, 3000, 500).normalized_error.values[-1] > 1e-6


def test_lead_contracts_by_the_spectral_radius_without_compression():
    """Linear on a quadratic: the error falls per round by the iteration's second modulus."""
    step = 0.1
    blocks = np.zeros((CLIENTS * DIM, CLIENTS * DIM))
    for k, (X, _) in enumerate(make_data()):
        rows = slice(k * DIM, (k + 1) * DIM)
        change = [
            gradient_of_plain(k, unit) - gradient_of_plain(k, np.zeros(DIM)) for unit in np.eye(DIM)
        ]
        blocks[rows, rows] = np.array(change).T
        assert len(X) == SIZES[k]
    apart = np.kron(np.eye(CLIENTS) - METROPOLIS, np.eye(DIM)) / 2
    eye = np.eye(CLIENTS * DIM)
    # d+ = d + apart (x - step H x - d), x+ = x - step H x - d+
    moved = eye - step * blocks
    iteration = np.block([[moved - apart @ moved, -(eye - apart)], [apart @ moved, eye - apart]])
    # The duals of equal vectors neither occur nor change: the modulus one belongs to them alone.
    moduli = np.sort(np.abs(np.linalg.eigvals(iteration)))
    algorithm = LEAD(step, compression=NOTHING, consensus_step_size=1.0)
    best = np.asarray(fl.problems.optimum(PLAIN))
    errors = np.linalg.norm(models(algorithm, 400, problem=PLAIN) - best, axis=(1, 2))
    rate = (errors[160] / errors[100]) ** (1 / 60)
    close(moduli[-DIM:], 1, atol=1e-8)
    close(rate, moduli[-DIM - 1], rtol=1e-3)


def gradient_of_plain(k, w):
    point = jax.numpy.asarray(np.tile(w, (CLIENTS, 1)))
    return np.asarray(PLAIN.gradient(point))[k]


def test_momentum_lowers_the_error_of_small_batches():
    """MoTEF's statement, at one and the same step size, over seeds."""
    shared = {"compression": TopK(2), "consensus_step_size": 0.4, "batches": Uniform(1)}
    simulations = {
        "BEER": BEER(0.05, **shared),
        "MoTEF": MoTEF(0.05, momentum=0.9, **shared),
    }
    errors = {}
    for name, algorithm in simulations.items():
        simulation = simulation_of(algorithm, metrics=["normalized_error"])
        results = fl.sweep(lambda key, s=simulation: s, seeds=20, rounds=600)
        errors[name] = float(results.normalized_error.values[..., 300:].mean())
    assert errors["MoTEF"] < errors["BEER"] / 2


def test_bits_of_two_messages_or_one():
    """A model or a tracker of two numbers with their places, over twelve arcs; the first tracker,
    and LEAD's first message, are not sent.
    """
    bits = 12 * 2 * (32 + 2)
    shared = {"compression": TopK(2), "consensus_step_size": 0.3}
    for method, messages in ((BEER, 9), (MoTEF, 9), (LEAD, 4), (CEDAS, 4)):
        results = peer_run(method(0.05, **shared), 5)
        assert int(results.bits_up[-1]) == messages * bits
        assert int(results.messages[-1]) == messages * 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LEAD(0.1, compression=TopK(1), consensus_step_size=0.5, copy_step_size=0.0),
            "copy_step_size must be finite and > 0",
        ),
        (
            lambda: BEER(0.1, compression=TopK(1), consensus_step_size=1.5),
            "consensus_step_size must be .* <= 1",
        ),
        (
            lambda: MoTEF(0.1, compression=TopK(1), consensus_step_size=0.5, momentum=1.0),
            "momentum must be .* < 1",
        ),
        (
            lambda: simulation_of(BEER(0.1, compression=TopK(4), consensus_step_size=0.5)),
            "count must be 1 to the 3 numbers of a message, got 4",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
