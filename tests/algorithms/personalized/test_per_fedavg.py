"""Per-FedAvg: products with Hessians, and the stationary point of its objective."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedAvg, PerFedAvg
from tests.support import small_network as small
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    SIZES,
    make_problem,
    new_key,
    quadratics,
    trajectory,
    visited,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_batches_of_a_step_have_separate_keys():
    """Each of the three uses all of a client's samples once an epoch, in a separate order."""
    algorithm = PerFedAvg(0.1, batch=1, personal_step_size=0.05)
    simulation = fl.Simulation(make_problem(), algorithm)
    (first, *_), again = visited(simulation, new_key(), 3), visited(simulation, new_key(), 3)[0]
    assert first == again
    for k, three in enumerate(first):
        orders = {tuple(np.ravel(steps).tolist()) for steps in three}
        assert all(sorted(order) == list(range(SIZES[k])) for order in orders)
        assert len(orders) == 3 or SIZES[k] < 5


@pytest.mark.slow
def test_the_exact_product_of_a_network_s_hessian_is_that_of_differences():
    def end(**changes):
        algorithm = PerFedAvg(0.3, personal_step_size=0.2, **changes)
        return trajectory(fl.Simulation(small.problem(SIZES), algorithm), 3)

    exact = end(variant="exact")
    near = end(offset=1e-4)
    close(near, exact, rtol=0, atol=1e-8)
    assert np.abs(end(variant="first_order") - exact).max() > 1e-5


@pytest.mark.thin(1)
@pytest.mark.parametrize("variant", ["hessian_free", "exact", "first_order"])
def test_per_fedavg_ends_at_the_stationary_point_of_its_objective(variant):
    r"""With one step: :math:`\sum_k(I-\alpha A_k)^2(A_kw-b_k)=0`, of FO once the factor."""
    alpha = 0.08
    power = 1 if variant == "first_order" else 2
    left = np.zeros((DIM, DIM))
    right = np.zeros(DIM)
    for A, b in quadratics():
        factor = np.linalg.matrix_power(np.eye(DIM) - alpha * A, power)
        left = left + factor @ A
        right = right + factor @ b
    best = np.linalg.solve(left, right)
    algorithm = PerFedAvg(0.2, personal_step_size=alpha, variant=variant)
    last = trajectory(fl.Simulation(make_problem(), algorithm), 600)[-1]
    expected = [best - alpha * (A @ best - b) for A, b in quadratics()]
    close(last, expected, rtol=0, atol=1e-8)


def test_the_two_variants_end_at_different_points():
    """The first-order variant does not end at the objective's stationary point, as its docstring
    states.
    """
    ends = []
    for power in (1, 2):
        factors = [np.linalg.matrix_power(np.eye(DIM) - 0.08 * A, power) for A, _ in quadratics()]
        left = sum(f @ A for f, (A, _) in zip(factors, quadratics(), strict=True))
        right = sum(f @ b for f, (_, b) in zip(factors, quadratics(), strict=True))
        ends.append(np.linalg.solve(left, right))
    assert np.abs(ends[0] - ends[1]).max() > 1e-2


@pytest.mark.slow
def test_the_exact_variant_is_the_gradient_of_its_objective():
    problem = make_problem("logistic")
    alpha = 0.3
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
    fedavg = FedAvg(0.1, epochs=2, weighting="equal")
    result, expected = (trajectory(fl.Simulation(make_problem(), a)) for a in (ours, fedavg))
    close(result, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerFedAvg(0.1, personal_step_size=0.0), "step size must be finite and > 0"),
        (
            lambda: PerFedAvg(0.1, personal_step_size=0.1, variant="second"),
            "unknown variant 'second'; known: hessian_free",
        ),
        (lambda: PerFedAvg(0.1, personal_step_size=0.1, offset=0.0), "offset must be"),
        (
            lambda: PerFedAvg(0.1, personal_step_size=0.1, personal_steps=0),
            "personal_steps must be >= 1, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
