"""The last bits of what leaves tell nothing: messages and their noise are integers of one grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fljax as fl
from fljax._core import prng as house
from fljax._core.prng import as_key, private_laplace, private_normal
from fljax.link import Link, PerEdge, PerMessage, UploadNoise
from fljax.privacy import ZCDP, AdaptiveClip, ApproximateDP, CentralGaussian, NoisyGradients
from fljax.privacy.discrete import least_delta, perturbed, widened
from fljax.privacy.ledger import claimed_epsilon

TYPES = [np.float32, np.float64]
FARTHEST = 3.0  # deviations; of these and fewer all multiples of a step occur


def steps_of(dtype, numbers):
    return house.normal_steps(dtype, (numbers,))


# One release ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=60, deadline=None)
@given(
    first=st.floats(-1e3, 1e3, width=32),
    second=st.floats(-1e3, 1e3, width=32),
    scale=st.floats(2.0**-60, 2.0**20, width=32),
)
def test_two_messages_have_the_same_possible_results(dtype, first, second, scale):
    """Any result from one message is also possible from the other, to the last bit."""
    with jax.enable_x64(dtype == np.float64):
        steps = steps_of(dtype, 1)
        first, second = (np.clip(m, -scale, scale).astype(dtype) for m in (first, second))
        wholes = [
            np.round(np.asarray(dtype(m) * (dtype(1) / (dtype(scale) / dtype(steps))))).astype(int)
            for m in (first, second)
        ]
        shift = wholes[0] - wholes[1]
        noise = np.concatenate([np.arange(-300, 300), np.int64(steps) + np.arange(-300, 300)])
        results = [
            perturbed(
                jnp.full((len(n), 1), m, dtype), jnp.asarray(n[:, None] / steps, dtype), scale
            )
            for m, n in ((first, noise), (second, noise + shift))
        ]
        np.testing.assert_array_equal(*results)
        assert results[0].dtype == dtype


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("message", [0.0, 1e-30, 2**-20, 1 / 16, 0.1, -3.7, 1e4])
@pytest.mark.parametrize("scale", [1.0, 0.3, 1e-20, 7e3])
def test_no_result_is_off_the_grid(dtype, message, scale):
    with jax.enable_x64(dtype == np.float64):
        steps = steps_of(dtype, 64)
        scale = np.asarray(scale, dtype)
        message = jnp.full((50, 64), message * scale, dtype)
        drawn = private_normal(as_key(1), message.shape, dtype)
        result = np.asarray(perturbed(message, drawn, scale))
        step = scale / dtype(steps)
        multiples = np.round(result.astype(np.float64) / np.float64(step))
        near = np.abs(multiples) < 2 / np.finfo(dtype).eps
        np.testing.assert_array_equal(result[near], (step * multiples.astype(dtype))[near])
        # Besides, it is the message plus noise, but for the rounding.
        expected = np.float64(message) + np.float64(scale) * np.float64(drawn)
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(
            result, expected, rtol=4 * eps, atol=float(step) + 4 * eps * scale
        )


@pytest.mark.parametrize(
    ("dtype", "numbers"), [(np.float32, 8), (np.float32, 600), (np.float64, 8)]
)
def test_private_normal_numbers_are_steps_of_one_distribution(dtype, numbers):
    """The distribution of a rounded normal number does not depend on the last bits of the step."""
    with jax.enable_x64(dtype == np.float64):
        steps = steps_of(dtype, numbers)
        rows = 6_000_000 // numbers
        drawn = np.asarray(private_normal(as_key(3), (rows, numbers), dtype)).ravel()
    assert drawn.dtype == dtype
    wholes = drawn.astype(np.float64) * steps
    np.testing.assert_array_equal(wholes, np.round(wholes))
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(np.mean(drawn**2) - 1) < 5 * np.sqrt(2 / drawn.size)
    assert abs(np.mean(drawn**4) - 3) < 5 * np.sqrt(96 / drawn.size)
    # No residue of the step count is likelier than another: an adversary would tell a message that
    # is off by it. In the middle and in the tail, where floats are coarser.
    for low, high in ((0, 0.5), (0.5, 1), (1, 2), (2, 8)):
        inside = np.int64(wholes[(np.abs(drawn) >= low) & (np.abs(drawn) < high)])
        for modulus in (2, 8, 64):
            counts = np.bincount(inside % modulus, minlength=modulus)
            assert stats.chisquare(counts).pvalue > 1e-5


def test_normal_numbers_have_their_stated_range():
    smallest = jnp.zeros(1, jnp.uint32), jnp.full(1, 2**31 - 512, jnp.uint32)  # a quarter turn
    squared_radius, sine = house._polar(*smallest)
    assert abs(float(jnp.sqrt(squared_radius)[0]) - house.NORMAL_END) < 1e-5
    assert float(sine[0]) > 1 - 1e-6
    assert house.NORMAL_END * house.FINE_STEPS * 1.01 < 2**24  # exact in a float
    assert house.WIDE_END * house.WIDE_STEPS * 1.01 < 2**53
    laplace = np.sqrt(float(house._minus_two_log(jnp.zeros(1, jnp.uint32))[0])) * house.NORMAL_END
    assert laplace * house.LAPLACE_STEPS * 1.01 < 2**24


def test_both_numbers_of_a_pair_are_normal_and_independent():
    with jax.enable_x64(False):
        bits = house.words(as_key(4), (2_000_000,), 2)
        first, second = map(np.asarray, house._normal_pair(*bits))
    for numbers in (first, second):
        assert stats.kstest(numbers, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 4e-3
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 4e-3
    assert abs(np.corrcoef(np.abs(first), second)[0, 1]) < 4e-3


@pytest.mark.parametrize("dtype", TYPES)
def test_private_laplace_numbers_are_steps(dtype):
    with jax.enable_x64(dtype == np.float64):
        drawn = np.asarray(private_laplace(as_key(3), (1_000_000,), dtype))
    wholes = np.float64(drawn) * house.laplace_steps(dtype)
    np.testing.assert_array_equal(wholes, np.round(wholes))
    assert stats.kstest(drawn, "laplace").pvalue > 1e-3
    for low, high in ((0, 0.5), (0.5, 2), (2, 60)):
        inside = np.int64(wholes[(np.abs(drawn) >= low) & (np.abs(drawn) < high)])
        assert stats.chisquare(np.bincount(inside % 8, minlength=8)).pvalue > 1e-5


# What rounding to the grid costs ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("numbers", [1, 64, 512, 513, 100_000])
@pytest.mark.parametrize("ratio", [0.01, 1.0, 30.0])
def test_noise_grows_by_the_rounding_error_of_the_sensitivity(dtype, numbers, ratio):
    with jax.enable_x64(dtype == np.float64):
        steps = steps_of(dtype, numbers)
        moved = np.asarray([0.7], dtype)
        scale, unhidden = widened(jnp.asarray(ratio * moved), jnp.asarray(moved), numbers, dtype)
        assert float(unhidden[0]) == 0
        step = float(scale[0]) / steps
        grown = 0.7 + step * np.sqrt(numbers)
        assert grown / float(scale[0]) == pytest.approx(1 / ratio, rel=1e-6)
        assert float(scale[0]) >= ratio * moved[0]
        rows = np.float64(np.random.default_rng(0).normal(size=(2, 500, min(numbers, 600))))
        # Rounded messages are at most the stated distance apart; the worst pair found comes near
        # it.
        distance = np.linalg.norm(
            step * (np.round(rows[0] / step) - np.round(rows[1] / step)), axis=1
        )
        exact = np.linalg.norm(rows[0] - rows[1], axis=1)
        assert np.max(distance - exact) <= step * np.sqrt(rows.shape[2])


def test_visible_rounding_makes_a_run_nominal():
    """With a sensitivity a millionth of the noise, rounding errors are all that is visible."""
    with jax.enable_x64(False):
        scale, unhidden = widened(jnp.asarray([1e6]), jnp.asarray([1.0]), 100, np.float32)
        assert pytest.approx(float(scale[0])) == 2e6
        assert float(unhidden[0]) > 10
        problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=100).clipped(1)
        simulation = fl.Simulation(problem, fl.algorithms.ConventionalFL(0.1), privacy=ZCDP(1e-13))
        results = fl.run(simulation, rounds=1)
    assert bool(results.nominal)
    assert "NOMINAL" in fl.privacy.assumptions(results)["precision"]


# Every exit -------------------------------------------------------------------------------------


class Watched(Link):
    """A link that records released messages and their noise."""

    releases: list

    def _release_private(self, clean, noise, sensitivity, *rest):
        released = super()._release_private(clean, noise, sensitivity, *rest)
        scale, _ = widened(noise.scale, sensitivity, clean.shape[1], clean.dtype, noise.releases)
        Watched.releases.append((released, scale))
        return released


def exits():
    key = jax.random.key(0)
    problem = fl.problems.ridge(key, clients=4, samples=5, dim=3)
    clipped = problem.clipped(1.0)
    ring = fl.graphs.ring(4)
    peers = fl.algorithms.ZCDPNFL(1.0, 0.5)
    average = fl.algorithms.FedAvg(0.1)
    cyclic = fl.algorithms.FedAvg(0.1, selector=fl.participation.Cyclic(3))
    adaptive = AdaptiveClip(share_noise=1.0)
    return {
        "peers": (clipped, peers, ring, ZCDP(1.0)),
        "(epsilon, delta)": (clipped, peers, ring, ApproximateDP(1.0, 1e-3)),
        "server": (clipped, fl.algorithms.ConventionalFL(0.1), None, ZCDP(1.0)),
        "trusted": (problem, average, None, CentralGaussian(1.0)),
        "trusted, clips that follow": (problem, average, None, CentralGaussian(1.0, adaptive)),
        "trusted, in bands": (
            problem,
            cyclic,
            None,
            CentralGaussian(1.0, strategy=fl.privacy.matrices.square_root(3)),
        ),
    }


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("start", [0.0, 100.0])
@pytest.mark.parametrize("kind", exits())
def test_every_release_of_a_run_is_on_its_grid(kind, start, dtype):
    from fljax.simulation.scan import begin, make_round, prepare, step_algorithm

    with jax.enable_x64(dtype == np.float64):
        problem, algorithm, network, privacy = exits()[kind]
        problem = problem.starting_at(np.full(3, start))
        simulation = fl.Simulation(problem, algorithm, network, privacy)
        prepared = prepare(simulation, 3)
        key = fl.random_key(1)
        carry = begin(simulation, prepared, key)
        Watched.releases = []
        for number in (1, 2, 3):
            number = jnp.asarray(number, jnp.int32)
            now, *_ = make_round(simulation, prepared, key, carry, number, 3, Watched)
            carry = carry._replace(
                state=step_algorithm(simulation, carry.state, now), memory=now.link.memory
            )
        assert len(Watched.releases) == 3
        for released, scale in Watched.releases:
            step = np.asarray(scale)[:, None] / dtype(steps_of(dtype, released.shape[1]))
            assert np.all(step > 0)
            multiples = np.round(np.float64(released) / np.float64(step))
            near = np.abs(multiples) < 2 / np.finfo(dtype).eps
            assert np.any(near) or start
            expected = step * multiples.astype(dtype)
            np.testing.assert_array_equal(np.asarray(released)[near], expected[near])


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "inputs", "peers", "edges", "uploads"])
def test_values_perturbed_outside_of_a_budget_are_on_a_grid(kind):
    with jax.enable_x64(False):
        key = fl.random_key(2)
        dim = 16
        message = 0.0625 + jnp.asarray(np.random.default_rng(0).normal(size=(40, dim)), np.float32)
        unit = np.float32(1 / house.SHORT_STEPS)
        if kind == "gaussian":
            result = fl.privacy.gaussian_release(key, message, 1.0, epsilon=1.0, delta=1e-5)
            ratio = fl.privacy.accounting.analytic_gaussian_sigma(1.0, 1.0, 1e-5)
            scale, _ = widened(
                jnp.asarray([ratio], np.float32), jnp.ones(1, np.float32), dim, np.float32, 40
            )
            step = np.asarray(scale) * unit
        elif kind == "laplace":
            result = fl.privacy.laplace_release(key, message, 1.0, epsilon=0.5)
            step = np.float32(1 / (0.5 * 2**22 - message.size))
        elif kind == "inputs":
            result = fl.contrib.noisy_inputs(key, message, message[:, 0], 0.5, 0.1)[0]
            step = np.float32(0.5) * unit
        elif kind == "peers":
            result = PerMessage(0.25, law="gaussian").perturb(key, message)[0]
            step = np.float32(0.5) * unit
        elif kind == "edges":
            noise = PerEdge(0.25, law="gaussian")
            everyone = jnp.arange(40, dtype=jnp.int32)
            result = noise.delivered(key, jnp.int32(3), everyone, jnp.ones(40), message)
            step = np.float32(0.5) * unit
        else:
            result = UploadNoise(0.25, law="gaussian").onto(
                jax.random.split(key, 40), message, None
            )
            step = np.float32(0.5) * unit
    multiples = np.round(np.float64(result) / np.float64(step))
    assert np.any(np.asarray(result) != np.asarray(message))
    near = np.abs(multiples) < 2**24
    expected = (step * multiples.astype(np.float32))[near]
    np.testing.assert_allclose(np.asarray(result)[near], expected, rtol=2e-7)
    if kind not in ("gaussian", "laplace"):  # whose step is known to rounding only
        np.testing.assert_array_equal(np.asarray(result)[near], expected)


@pytest.mark.parametrize("dim", [4, 64])
def test_events_of_last_bits_are_as_likely_in_either_world(dim):
    """What told a message of zeros from one of 1/16 nearly for certain: digits beyond 2**-28."""

    def fine(target):
        problem = fl.problems.Problem(
            np.full((1, 1, dim), dim**-0.5),
            np.array([[target]]),
            fl.problems.LeastSquares(),
        ).clipped(1.0)
        simulation = fl.Simulation(problem, fl.algorithms.ConventionalFL(0.5), privacy=ZCDP(0.5))
        models = fl.sweep(lambda key: simulation, rounds=1, seeds=800, keep_models=True).model
        models = np.float64(models.values.reshape(800, dim))
        return int(((abs(models) < 1 / 32) & (models * 2.0**28 % 1 != 0)).any(axis=1).sum())

    with jax.enable_x64(False):
        zero = fine(0.0)
        moved = fine(1e6)
    assert 0 < zero < 800 or zero == moved
    table = [[zero, 800 - zero], [moved, 800 - moved]]
    if 0 < zero + moved < 1600:
        # Both are normal numbers, one of them moved: no more than that may show.
        assert abs(zero - moved) / 800 < 0.2
        assert stats.fisher_exact(table)[1] > 0


# Where the noise ends ---------------------------------------------------------------------------


def test_no_epsilon_holds_below_the_delta_at_which_noise_ends():
    end = house.NORMAL_END
    assert least_delta(0.5, 0.5, np.float32) >= stats.norm.sf(end - 1) - stats.norm.sf(end)
    assert least_delta(0.5, 0.5, np.float64) < least_delta(0.5, 0.5, np.float32) * 1e-4
    assert least_delta(0.0, 0.0, np.float32) == 0
    # Many small releases reach beyond it less often than one large one.
    assert least_delta(8.0, 0.01, np.float32) < 1e-3 * least_delta(8.0, 8.0, np.float32)
    attributes = {"rho": 8.0, "gaussian_noise": 1, "release_rho": 8.0, "precision": 32}
    assert claimed_epsilon(attributes, 1e-5) == np.inf
    assert claimed_epsilon(attributes | {"release_rho": 0.01}, 1e-5) < 30
    assert claimed_epsilon(attributes | {"precision": 64}, 1e-5) < 30
    assert claimed_epsilon(attributes | {"gaussian_noise": 0}, 1e-5) < 30


def test_results_state_the_range_of_the_noise():
    with jax.enable_x64(False):
        problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=4, dim=2).clipped(1)
        simulation = fl.Simulation(problem, fl.algorithms.ConventionalFL(0.1), privacy=ZCDP(2.0))
        results = fl.run(simulation, rounds=4)
    assert float(results.release_rho) == pytest.approx(0.5)
    least = least_delta(2.0, 0.5, np.float32)
    assert f"below {least:.1g}" in fl.privacy.assumptions(results)["noise"]
    assert np.isfinite(fl.privacy.spent(results, delta=2 * least).epsilon).all()
    assert np.isinf(fl.privacy.spent(results, delta=least / 100).epsilon[-1])


@pytest.mark.parametrize("epsilon", [1.0, 0.1])
def test_a_release_below_that_delta_is_refused(epsilon):
    with jax.enable_x64(False), pytest.raises(ValueError, match="no epsilon holds; take a larger"):
        fl.privacy.gaussian_release(0, jnp.zeros((1, 3)), 1.0, epsilon=epsilon, delta=1e-20)


def test_a_laplace_release_beyond_the_dimension_of_its_budget_is_refused():
    with pytest.raises(ValueError, match="rounding them to a grid would spend it alone"):
        fl.privacy.laplace_release(0, jnp.zeros((1000, 1000)), 1.0, epsilon=0.1)


@pytest.mark.parametrize("clip", [3e-38, 1.5e-38, 1.2e-38])
def test_noise_of_a_small_clip_does_not_vanish(clip):
    """In single precision the product of a clip and a multiplier would underflow."""
    with jax.enable_x64(False):
        for privacy, algorithm in (
            (CentralGaussian(0.3, clip=clip), fl.algorithms.FedAvg(1.0, weighting="equal")),
            (NoisyGradients(0.3, clip=clip), fl.algorithms.FedDPSGD(1.0)),
        ):
            models = []
            for target in (0.0, 1.0):
                problem = fl.problems.Problem(
                    np.ones((2, 1, 1)), np.array([[target], [0.0]]), fl.problems.LeastSquares()
                )
                simulation = fl.Simulation(problem, algorithm, privacy=privacy)
                models.append(float(fl.run(simulation, rounds=1).model[0, 0]))
            assert min(map(abs, models)) > 1e-30
            assert abs(models[0] - models[1]) <= 1e-3 * abs(models[0])
