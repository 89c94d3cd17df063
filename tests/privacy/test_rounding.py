"""How far rounding moves what leaves: inside of steps, of sums over samples and over clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.linalg import clipped_rows, sum_in_blocks
from fljax._core.module import replace
from fljax.algorithms.local_steps import descend_from, descent_gap
from fljax.link.sender_groups import GROUP, add_in_groups, sum_rounding
from fljax.privacy import ZCDP, CentralGaussian, Gap, NoisyGradients

RNG = np.random.default_rng(5)


def far_problem(target, samples=1):
    """One number near 1024, whose last digit is 1e-4; gradients of client 0 are at the clip."""
    start = 1024.4
    targets = np.zeros((2, samples))
    targets[0, 0] = target
    problem = fl.problems.Problem(np.ones((2, samples, 1)), targets, fl.problems.LeastSquares())
    return problem.clipped(1.0).starting_at(np.array([start]))


@pytest.mark.parametrize("steps", [1, 10, 100, 1000])
@pytest.mark.parametrize("share", [0.51, 0.26, 1.49])
def test_messages_after_many_short_steps_keep_the_sensitivity(steps, share):
    """Each step is a fraction of an ulp: added to the model it rounds to zero or to a whole ulp."""
    with jax.enable_x64(False):
        size = share * float(np.spacing(np.float32(1024)))
        ends = []
        roundings = []
        for target in (1e6, -1e6):
            problem = far_problem(target).prepare()
            start = jnp.broadcast_to(problem.initial, (2, 1))
            descent = descend_from(problem, start, jnp.float32(size), steps)
            ends.append(np.float64(descent.model[0, 0]))
            roundings.append(float(descent.rounding[0]))
        gap = Gap.of(ZCDP(1.0), far_problem(0.0))
        moved = float(descent_gap(far_problem(0.0), jnp.float32(size), steps, gap)[0])
        last = 2 * float(np.finfo(np.float32).eps) * 1025  # of the model itself, and its grid
        assert abs(ends[0] - ends[1]) <= moved + max(roundings) + last
        # Rounding errors are a few ulps of the model, not proportional to the steps.
        assert max(roundings) < 10 * np.spacing(np.float32(1024)) + 1e-3 * moved


@pytest.mark.parametrize("network", [None, "servers"])
def test_a_run_of_many_steps_reports_its_rounding_error(network):
    with jax.enable_x64(False):
        ulp = float(np.spacing(np.float32(1024)))
        stated = {}
        for steps in (10, 1000):
            if network is None:
                algorithm = fl.algorithms.ConventionalFL(0.51 * ulp, local_steps=steps)
                servers = None
            else:
                algorithm = fl.algorithms.GraphFedAvg(0.51 * ulp * steps, local_steps=steps)
                servers = fl.federation.balanced(2)
            simulation = fl.Simulation(far_problem(1e6), algorithm, servers, ZCDP(0.5))
            stated[steps] = fl.run(simulation, rounds=1)
    assert bool(stated[10].nominal)
    assert 0.1 < float(stated[10].rounding) < 1
    assert not bool(stated[1000].nominal)
    assert 1e-3 < float(stated[1000].rounding) < 1e-2


@pytest.mark.parametrize("samples", [5, 64, 127, 640, 4000])
@pytest.mark.parametrize("neighbors", fl.privacy.NEIGHBORS)
def test_sums_of_gradients_keep_the_sensitivity(samples, neighbors):
    """Partial sums far above the final one: half of the gradients take away what others added."""
    with jax.enable_x64(False):
        dim = 3
        clients = 40
        rows = np.abs(RNG.normal(size=(clients, samples, dim))) * 1e4
        rows[:, samples // 2 :] *= -1
        problem = fl.problems.Problem(
            rows, np.full((clients, samples), -1e6), fl.problems.LeastSquares()
        ).clipped(1.0)
        privacy = ZCDP(1.0, neighbors=neighbors)
        gap = np.float64(Gap.of(privacy, problem).gradient)
        exact = {"replace": 2.0, "add-or-remove": 1.0, "client": 2.0 * samples}[neighbors] / samples
        assert np.all(gap >= exact * (1 - 1e-7))
        unit = np.finfo(np.float32).eps / 2
        per_sample = 2 * 64**2 + 8 * samples if samples != 127 else 2 * 127**2
        assert np.all(gap <= exact * (1 + (per_sample + 100) * unit))
        other = rows.copy()
        index = samples // 3
        if neighbors == "client":
            other = -other
        else:
            other[:, index] *= 0 if neighbors == "add-or-remove" else -1
        models = jnp.zeros((clients, dim))
        sums = [
            np.float64(replace(problem, features=jnp.asarray(x, np.float32)).gradient(models))
            for x in (rows, other)
        ]
        assert np.all(np.linalg.norm(sums[0] - sums[1], axis=1) <= gap * (1 + 1e-7))


def test_blocks_of_samples_change_no_gradient():
    problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=200, dim=4).clipped(0.7)
    softmax = fl.problems.softmax(
        jax.random.key(0), clients=3, samples=320, dim=4, classes=3
    ).clipped(0.2)
    for case in (problem, softmax):
        assert case._block < case.samples
        models = jnp.asarray(RNG.normal(size=(3, case.dim)))
        weighted = case.weighted(
            case._clipped(case.loss.derivative(case.predictions(models), case.targets))
        )
        plain = case.combination(weighted)
        np.testing.assert_allclose(case.loss_gradient(models), plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1, 5, 128, 129, 100_000])
def test_sums_in_blocks_are_sums(size):
    rows = RNG.normal(size=(3, size)) ** 2
    np.testing.assert_allclose(sum_in_blocks(jnp.asarray(rows)), rows.sum(axis=1), rtol=1e-13)


@pytest.mark.parametrize("size", [7, 1000, 300_000])
def test_clipped_rows_keep_the_bound(size):
    from fljax._core.linalg import CLIP_ROUNDINGS

    with jax.enable_x64(False):
        rows = jnp.asarray(RNG.normal(size=(8, size)), np.float32)
        clipped, within = clipped_rows(rows, jnp.float32(0.3))
    lengths = np.linalg.norm(np.float64(clipped), axis=1)
    unit = np.finfo(np.float32).eps / 2
    assert not np.any(within)
    assert np.all(lengths <= np.float32(0.3) * (1 + CLIP_ROUNDINGS * unit))
    assert np.all(lengths >= 0.3 * (1 - 1e-5))


@pytest.mark.parametrize("rows", [10, 20_000, 200_000])
def test_a_sum_over_many_clients_moves_by_one_client_at_most(rows):
    """Partial sums of a hundred thousand clips, and a final one near zero."""
    with jax.enable_x64(False):
        gradients = np.abs(RNG.normal(size=(rows, 2))).astype(np.float32)
        gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients[rows // 2 :] *= -1
        # A whole number of groups: with none of the rows the others stay in theirs.
        none = jnp.zeros(2, jnp.float32)

        def total(weights):
            high, low = add_in_groups(none, none, jnp.asarray(weights), jnp.asarray(gradients))
            return np.float64(high) + np.float64(low)

        unit_weights = np.ones(rows, np.float32)
        with_all = total(unit_weights)
        np.testing.assert_allclose(with_all, np.float64(gradients).sum(axis=0), atol=2e-3)
        for dropped in (0, 1, rows // 3, rows - 1):
            moved = np.linalg.norm(
                with_all - total(np.where(np.arange(rows) == dropped, 0, unit_weights))
            )
            assert moved <= 1 + 2e-7 + sum_rounding(rows, np.float32)
    assert sum_rounding(rows, np.float32) < 2e-3
    assert GROUP == 32


def test_noise_covers_the_rounding_of_sums_over_clients():
    with jax.enable_x64(False):
        problem = fl.problems.ridge(jax.random.key(0), clients=200, samples=3, dim=2)
        simulation = fl.Simulation(
            problem, fl.algorithms.FedAvg(0.1), privacy=CentralGaussian(1.0, clip=0.1)
        )
        results = fl.run(simulation, rounds=2)
    assert not bool(results.nominal)
    assert float(results.rounding) < 1e-3


def test_noise_on_gradients_provides_for_their_rounding():
    """The noise equals that of double precision plus the rounding error of single precision."""
    problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=1009, dim=2).clipped(1.0)
    mechanism = NoisyGradients(1.0)
    with jax.enable_x64(False):
        single = replace(
            problem,
            features=jnp.asarray(problem.features, np.float32),
            targets=jnp.asarray(problem.targets, np.float32),
            weights=jnp.asarray(problem.weights, np.float32),
        )
        more = single.gradient_rounding()
    # 1009 is prime: one sum of all samples.
    assert more == pytest.approx(1009**2 * 2.0**-24, rel=0.01)
    assert problem.gradient_rounding() < 1e-9
    assert mechanism.moved == 1
    network = fl.problems.Model.of(problem, fl.models.mlp(1, hidden=[4]), jax.random.key(1))
    assert network.gradient_rounding() == 0
