"""FedAMP: attentive models against a loop and at their balance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAMP, LocalOnly
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    arrived,
    loop_models,
    make_problem,
    new_key,
    trajectory,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.parametrize("name", ["ridge", pytest.param("logistic", marks=pytest.mark.slow)])
def test_attentive_models_equal_the_loop(name):
    """Some take part, some are absent, some messages are lost; starts are each client's own."""
    algorithm = FedAMP(LOCAL, 4, 2, attraction=0.7, attention_step_size=LOCAL, scale=2.0)
    parts, world = world_of(algorithm, True, False, new_key(4))
    start = np.random.default_rng(6).normal(size=(CLIENTS, DIM))
    problem = make_problem(name).starting_at(start)
    simulation = fl.Simulation(problem, algorithm, losses=fl.link.Independent(0.3), **parts)
    arrives = arrived(simulation, new_key(4))
    assert 0.2 < arrives.mean() < 0.7  # 70 % of the active ones
    ours = trajectory(simulation, key=new_key(4))
    expected = loop_models(algorithm, name, world, arrives=arrives, start=start)
    close(ours, expected, rtol=0, atol=1e-10)
    assert np.abs(expected[-1] - expected[1]).max() > 1e-2


@pytest.mark.slow
def test_attentive_models_rest_where_attraction_and_gradient_balance():
    r""":math:`f_k'(w_k)+\lambda\sum_lA'(\|w_k-w_l\|^2)(w_k-w_l)=0`, for any attention."""
    problem = make_problem()
    ends = []
    for attention in (0.1, 0.3):
        algorithm = FedAMP(0.05, epochs=3, attraction=0.8, attention_step_size=attention, scale=3.0)
        ends.append(trajectory(fl.Simulation(problem, algorithm), 3000)[-1])
    close(ends[0], ends[1], rtol=0, atol=1e-8)
    away = ends[0][:, None] - ends[0][None]
    attraction = np.exp(-(away**2).sum(axis=2) / 3.0) / 3.0
    balance = problem.gradient(jnp.asarray(ends[0])) + 0.8 * (attraction[..., None] * away).sum(
        axis=1
    )
    close(balance, 0, atol=1e-8)
    assert np.ptp(ends[0], axis=0).min() > 1e-2


@pytest.mark.slow
def test_without_attraction_fedamp_is_local_training():
    parts = world_of(
        FedAMP(0.1, attraction=0.0, attention_step_size=1.0, scale=1.0), True, False, new_key()
    )
    ours = FedAMP(LOCAL, epochs=3, attraction=0.0, attention_step_size=0.5, scale=1.0)
    algorithms = ours, LocalOnly(LOCAL, 3)
    result, expected = (
        trajectory(fl.Simulation(make_problem(), a, **parts[0])) for a in algorithms
    )
    close(result, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_far_from_zero_the_attraction_keeps_its_digits():
    """In single precision, 1000 from zero; the reference is in double precision around zero."""
    near_zero = np.random.default_rng(2).normal(size=(CLIENTS, DIM))

    def towards(models):
        algorithm = FedAMP(0.1, attraction=1.0, attention_step_size=1.0, scale=2.0)
        return np.asarray(algorithm._attraction_toward(jnp.asarray(models), jnp.asarray(models)))

    with jax.enable_x64(False):
        far = towards(np.float32(near_zero + 1000))
    assert far.dtype == np.float32
    close(far, towards(near_zero), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("steps", "attention"), [(1, 0.3), (1, 2.0), (4, 0.3), (4, 1.2), (4, 2.0)])
def test_near_consensus_a_round_has_the_factor_of_the_docstring(steps, attention):
    """Few steps may be unstable where the condition of a single local problem holds."""
    clients, curvature, attraction, scale = 5, 2.0, 1.5, 4.0
    features = np.full((clients, 3, 1), 1.0)  # curvature 2
    problem = fl.problems.Problem(
        features, np.zeros((clients, 3)), fl.problems.LeastSquares(), strength=0.0
    )
    start = 1e-6 * np.array([[1.0], [-1.0], [2.0], [-2.0], [0.0]])
    for step in (0.1, 0.35, 0.6):
        algorithm = FedAMP(
            step,
            local_steps=steps,
            attraction=attraction,
            attention_step_size=attention,
            scale=scale,
        )
        simulation = fl.Simulation(problem.starting_at(start), algorithm)
        after = fl.run(simulation, 2).model.values
        strength = attraction / attention
        decay = (1 - step * (curvature + strength)) ** steps
        pulled = strength / (curvature + strength) * (1 - attention * clients / scale)
        factor = decay + (1 - decay) * pulled
        close(after, factor**2 * start, rtol=1e-5, atol=1e-15)
        if steps == 1:
            is_stable = step * (curvature + attraction * clients / scale) < 2
            assert (abs(factor) < 1) == is_stable


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FedAMP(0.1, attraction=1.0, attention_step_size=0.0, scale=1.0),
            "step size must be finite and > 0",
        ),
        (
            lambda: FedAMP(0.1, attraction=1.0, attention_step_size=1.0, scale=0.0),
            "scale must be finite and > 0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
