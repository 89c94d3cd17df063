"""DLM: the private algorithm without privacy."""

import numpy as np
import pytest

from fljax.algorithms import DLM, ZCDPNFL
from tests.support.peer_runs import models


@pytest.mark.slow
def test_linearized_admm_is_the_private_one_without_privacy():
    np.testing.assert_array_equal(models(DLM(0.9, 0.3)), models(ZCDPNFL(0.9, 0.3)))
