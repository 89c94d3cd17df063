"""q-FedAvg: the least of its fair objective."""

import numpy as np
import optax
import pytest

from fljax.algorithms import QFedAvg
from tests.cases import CLIENTS, make_objective
from tests.support.server_runs import EQUAL, trajectory

close = np.testing.assert_allclose


def test_q_fedavg_ends_where_the_fair_objective_is_least():
    r""":math:`\sum_kf_k^qf_k'=0`, and losses differ less than without."""
    objective = make_objective()
    spread = []
    for fairness in (0.0, 2.0):
        last = trajectory(QFedAvg(0.1, fairness=fairness, **EQUAL), rounds=2000)[-1]
        losses = np.array([objective.value(k, last) for k in range(CLIENTS)])
        slopes = np.stack([objective.gradient(k, last) for k in range(CLIENTS)])
        close(losses**fairness @ slopes, 0, atol=1e-7)
        spread.append(losses.std())
    assert spread[1] < 0.95 * spread[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QFedAvg(optax.sgd(0.1), fairness=1.0), "q-FedAvg needs"),
        (lambda: QFedAvg(0.1, fairness=-1.0), "fairness must be finite and >= 0, got -1"),
        (
            lambda: QFedAvg(0.1, fairness=1.0, curvature=0.0),
            "curvature must be finite and > 0, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
