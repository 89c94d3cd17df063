"""FedALA: shares of the server's model that clients learn."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax.algorithms import FedALA, FedAvg
from tests import cases
from tests.reference import adapted
from tests.support.two_groups import (
    CLIENTS,
    DIM,
    LOCAL,
    ROUNDS,
    SIZES,
    make_objective,
    make_problem,
    new_key,
    quadratics,
    short_run,
    state_after,
    world_of,
)

close = np.testing.assert_allclose


@pytest.mark.slow
def test_fedala_without_blending_is_federated_averaging():
    parts = world_of(FedAvg(0.1, 4), True, True, new_key())[0]
    algorithms = FedALA(LOCAL, 4, 2, blended=()), FedAvg(LOCAL, 4, 2)
    result, expected = (
        state_after(ROUNDS, fl.Simulation(make_problem(), a, **parts)) for a in algorithms
    )
    close(result.server, expected.model, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_shares_of_the_server_s_model_stay_in_range_and_equal_the_loop():
    algorithm = FedALA(0.1, epochs=2, blend_step_size=3.0, blended=(0, 1), weighting="samples")
    state = state_after(ROUNDS, fl.Simulation(make_problem(), algorithm))
    objective = make_objective()
    world = world_of(algorithm, False, False, new_key())[1]
    arguments = cases.full_batches(2, ROUNDS, CLIENTS), SIZES, np.zeros((CLIENTS, DIM))
    numbers = cases.step_of(algorithm.step_size), lambda n: 3.0, 1, (0, 1)
    _, blend = adapted.fedala(cases.sample_gradient_of(objective), world, *arguments, *numbers)
    close(state.blend, blend[-1][:, :2], rtol=0, atol=1e-10)
    assert state.blend.min() == 0  # where it would be less, it is kept
    assert 0 < np.median(state.blend) < 1


@pytest.mark.slow
def test_shares_move_to_where_a_client_s_loss_is_least():
    """With one parameter: the best point between two models, inside or at an end."""
    wanted = [-0.3, 0.1, 0.3, 0.5, 0.7, 1.3]
    server = np.random.default_rng(3).normal(size=DIM)
    models = np.zeros((CLIENTS, DIM))
    rates = []
    for k, (A, b) in enumerate(quadratics()):
        best = server[1] + (b - A @ server)[1] / A[1, 1]
        models[k, 1] = (best - wanted[k] * server[1]) / (1 - wanted[k])
        rates.append(1 / (A[1, 1] * (server[1] - models[k, 1]) ** 2))
    algorithm = FedALA(1e-12, blend_step_size=min(rates), blend_steps=5000, blended=(1,))
    now = fl.view(fl.Simulation(make_problem(), algorithm))
    before = algorithm.init(now.problem, None)
    before = before._replace(model=jnp.asarray(models), server=jnp.asarray(server))
    result = algorithm.step(before, now).blend[:, 0]
    close(result, np.clip(wanted, 0, 1), atol=1e-9)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: FedALA(0.1, blended=0.5), "blended must be a mask of the parameters"),
        (ValueError, lambda: short_run(FedALA(0.1, blended=[7])), "from 0 to 2, got 7 to 7"),
        (ValueError, lambda: FedALA(0.1, blend_steps=0), "blend_steps must be >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
