"""Parameters of a problem by their indices or a mask."""

import numpy as np
import pytest

from fljax.algorithms import FedPer
from tests.cases import make_problem


def test_coordinates_are_a_mask():
    problem = make_problem()
    for chosen in ([1], (1,), np.array([1]), [False, True, False], np.array([1, 1])):
        assert problem.coordinates(chosen).tolist() == [False, True, False]
    assert not problem.coordinates([]).any()
    assert FedPer(0.1, personal=np.array([1])).personal == FedPer(0.1, personal=[1]).personal


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (TypeError, lambda: make_problem().coordinates("head"), "have no names, got 'head'"),
        (TypeError, lambda: make_problem().coordinates([0.5]), "list of their indices, got"),
        (TypeError, lambda: make_problem().coordinates(1), "list of their indices, got 1"),
        (ValueError, lambda: make_problem().coordinates([3]), "from 0 to 2, got 3 to 3"),
        (ValueError, lambda: make_problem().coordinates([-1]), "from 0 to 2, got -1 to -1"),
        (ValueError, lambda: make_problem().coordinates([True]), "each of the 3 parameters, got"),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
