"""Models with nonlinear predictions: networks of any library, or a plain function.

:mod:`~fljax.models.architecture` says what a network is to the rest of the package, and is the file
to read first; :mod:`~fljax.models.adapters` adapts other libraries' networks, and
:mod:`~fljax.models.builtin_networks` has some that need no library. Their data, losses and
gradients are in :mod:`fljax.problems.model`.
"""

from fljax.models.adapters import equinox, haiku, headed, linen, nnx, plain
from fljax.models.architecture import Architecture, Layout, layout_of
from fljax.models.builtin_networks import Autoencoder, autoencoder, cnn, mlp

__all__ = [
    "Architecture",
    "Autoencoder",
    "Layout",
    "autoencoder",
    "cnn",
    "equinox",
    "haiku",
    "headed",
    "layout_of",
    "linen",
    "mlp",
    "nnx",
    "plain",
]
