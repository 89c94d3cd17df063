"""EXTRA and PG-EXTRA: their kin, bad arguments."""

import dataclasses

import numpy as np
import pytest

from fljax.algorithms import EXTRA, PGEXTRA
from tests.cases import CLIENTS, DIM, EDGES, OBJECTIVE, ROUNDS, make_problem
from tests.reference import nfl
from tests.support.peer_runs import models

close = np.testing.assert_allclose


@pytest.mark.slow
def test_without_a_regularizer_the_proximal_form_is_extra():
    problem = dataclasses.replace(make_problem(), strength=0.0)
    close(models(PGEXTRA(0.05), problem=problem), models(EXTRA(0.05), problem=problem), atol=1e-13)


@pytest.mark.slow
def test_the_simplest_tracking_is_extra_with_the_identity():
    """x+ = y+ - y + A x with y+ = x - mu f'(x), from y = x."""
    A = nfl.metropolis(CLIENTS, EDGES)
    x = np.zeros((CLIENTS, DIM))
    result = []
    y = x
    for _ in range(ROUNDS):
        new = x - 0.05 * np.array([OBJECTIVE.gradient(k, w) for k, w in enumerate(x)])
        x = new - y + A @ x
        y = new
        result.append(x)
    close(models(EXTRA(0.05, blend=0.0)), result, rtol=0, atol=1e-12)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="blend must be finite and >= 0 and < 1, got 1"):
        EXTRA(0.1, blend=1.0)
