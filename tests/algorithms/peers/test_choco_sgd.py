"""Choco-SGD: compressed differences, bad arguments."""

import numpy as np
import pytest

from fljax.algorithms import ATC, ChocoSGD
from fljax.link import Quantize, Sign, TopK
from fljax.optimization.schedules import PowerDecay
from tests.cases import CLIENTS
from tests.support.peer_runs import ANYWHERE, peer_run, simulation_of, still

close = np.testing.assert_allclose


@pytest.mark.thin(1)
@pytest.mark.parametrize(
    "compression", [TopK(1), Sign(), Quantize(4)], ids=lambda c: type(c).__name__
)
def test_compressed_differences_agree_on_the_mean(compression):
    world = {"problem": still(ANYWHERE), "metrics": ["consensus_error"]}
    results = peer_run(
        ChocoSGD(1.0, compression=compression, consensus_step_size=0.2), 400, 200, **world
    )
    assert float(results.consensus_error[-1]) < 1e-20
    close(results.model, np.tile(ANYWHERE.mean(axis=0), (CLIENTS, 1)), atol=1e-9)
    # Compressed models themselves do not.
    direct = peer_run(ATC(1.0), 400, 200, compression=compression, **world)
    assert float(abs(direct.model - ANYWHERE.mean(axis=0)).max()) > 1e-3


@pytest.mark.slow
def test_choco_sgd_learns_with_few_numbers():
    algorithm = ChocoSGD(PowerDecay(0.3, 0.7), compression=TopK(1), consensus_step_size=0.2)
    error = peer_run(algorithm, 4000, 1000).normalized_error.values
    assert error[-1] < 2e-3
    assert (np.diff(error) < 0).all()


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (
            TypeError,
            lambda: ChocoSGD(0.1, compression="top-k", consensus_step_size=0.5),
            "compression must be",
        ),
        (
            ValueError,
            lambda: simulation_of(ChocoSGD(0.1, compression=TopK(4), consensus_step_size=0.5)),
            "count must be 1 to the 3 numbers of a message, got 4",
        ),
        (
            ValueError,
            lambda: ChocoSGD(0.1, compression=Sign(), consensus_step_size=1.1),
            "consensus_step_size must be .* <= 1",
        ),
        (
            ValueError,
            lambda: simulation_of(
                ChocoSGD(0.1, compression=Sign(), consensus_step_size=0.5), compression=Sign()
            ),
            "Choco-SGD compresses its messages itself; leave out compression=",
        ),
    ],
)
def test_bad_arguments_are_refused(error, make, message):
    with pytest.raises(error, match=message):
        make()
