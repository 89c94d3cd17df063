r"""Matrix mechanisms: noise that is correlated over rounds, so that less remains in prefix sums.

A strategy is a lower-triangular matrix :math:`C` of rounds. The mechanism releases
:math:`\theta=Cx+\sigma z` with independent noise and publishes :math:`C^{-1}\theta`, the clipped
sums :math:`x` with correlated noise.

* :class:`Toeplitz`: banded (BandMF), optimized by :func:`optimize_banded_toeplitz`;
* :class:`Banded`: banded with entries that depend on the round, :func:`optimize_banded`;
* :class:`InverseToeplitz`: with a banded inverse (BandInvMF), :func:`optimize_inverse_toeplitz`;
* :class:`BufferedToeplitz`: of constant memory (BLT), :func:`optimize_buffered_toeplitz`.

Example:
  >>> import fljax as fl
  >>> matrices = fl.privacy.matrices
  >>> strategies = {
  ...     "independent": matrices.identity(),
  ...     "square root": matrices.square_root(16),
  ...     "BandMF": matrices.optimize_banded_toeplitz(rounds=256, bands=16, separation=16),
  ...     "BLT": matrices.optimize_buffered_toeplitz(rounds=256, separation=16),
  ... }
  >>> for name, strategy in strategies.items():  # everyone every 16 rounds
  ...     print(name, round(strategy.loss(rounds=256, separation=16) ** 0.5, 1))
  independent 45.3
  square root 15.4
  BandMF 14.6
  BLT 15.5
"""

from fljax.privacy.matrices.optimize import (
    optimize_banded,
    optimize_banded_toeplitz,
    optimize_buffered_toeplitz,
    optimize_inverse_toeplitz,
)
from fljax.privacy.matrices.strategies import (
    Banded,
    BandedState,
    BufferedToeplitz,
    BufferState,
    InverseToeplitz,
    PastState,
    Strategy,
    Toeplitz,
    ToeplitzStrategy,
    column_normalized,
    identity,
    inverse_square_root,
    square_root,
)
from fljax.privacy.matrices.toeplitz import Reduction

__all__ = [
    "Banded",
    "BandedState",
    "BufferState",
    "BufferedToeplitz",
    "InverseToeplitz",
    "PastState",
    "Reduction",
    "Strategy",
    "Toeplitz",
    "ToeplitzStrategy",
    "column_normalized",
    "identity",
    "inverse_square_root",
    "optimize_banded",
    "optimize_banded_toeplitz",
    "optimize_buffered_toeplitz",
    "optimize_inverse_toeplitz",
    "square_root",
]
