"""FedProx: many steps of it, and its exact form on a star of clients."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax as fl
from fljax._core.prng import key_of
from fljax.algorithms import ExactFedProx, FedProx
from tests.cases import CLIENTS, keys_of
from tests.reference import networks
from tests.support.learning_networks import DATA, quadratic_problem, served_models
from tests.support.server_runs import EQUAL, trajectory

close = np.testing.assert_allclose


@pytest.mark.slow
def test_many_steps_are_the_exact_proximal_step():
    result = trajectory(FedProx(0.05, attraction=4.0, local_steps=300, **EQUAL))
    close(result, trajectory(ExactFedProx(2 / 4.0)), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedProx(0.1, attraction=-1.0), "attraction must be finite and >= 0, got -1"),
        (
            lambda: ExactFedProx(1.0, 9).init(quadratic_problem(), None),
            "must be at most the 5 clients",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fedprox_is_gtvmin_on_a_star():
    """Its center has no data and the coupling is one over the step: Algorithm 10, (119)."""
    star = networks.weights_of(CLIENTS + 1, [(CLIENTS, k) for k in range(CLIENTS)])
    best = np.asarray(fl.problems.optimum(quadratic_problem()))
    away = []
    for step in (0.05, 0.5, 5.0):  # one program
        result = served_models(ExactFedProx(step), 1500)
        center = networks.closed_form([*DATA, None], star, 1 / step)[-1]
        close(result[-1], center, rtol=0, atol=1e-12)
        away.append(np.linalg.norm(center - best))
    assert (np.diff(away) > 0).all()
    assert away[0] < 0.1 * away[-1]


@pytest.mark.slow
def test_fedprox_of_selected_clients_equals_the_loop():
    algorithm = ExactFedProx(0.5, clients_per_round=3)
    chosen = []
    for now in keys_of(1, 9):
        participants = algorithm.selection.choose(
            key_of(now, "participation"), jnp.ones(CLIENTS, bool), None
        )
        chosen.append(np.asarray(participants.clients))
    result = served_models(algorithm, 9)
    close(result, networks.fedprox(DATA, 0.5, 9, chosen=chosen), rtol=1e-10, atol=1e-12)
