"""Models with nonlinear predictions: networks of any library, or a plain function."""

from fljax.models.architecture import Architecture, Layout, layout_of
from fljax.models.doors import equinox, haiku, headed, linen, nnx, plain
from fljax.models.networks import Autoencoder, autoencoder, cnn, mlp

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
