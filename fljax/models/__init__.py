"""Models with nonlinear predictions: networks of any library, or a plain function.

:mod:`~fljax.models.architecture` says what a network is to the rest of the package, and is the file
to read first; :mod:`~fljax.models.adapters` adapts other libraries' networks, and
:mod:`~fljax.models.builtin_networks` has some that need no library, and
:mod:`~fljax.models.published_networks` those of papers, by flax; :mod:`~fljax.models.low_rank` adds
adapters to any of them, and :mod:`~fljax.models.several_networks` gives clients networks of several
sizes or kinds; :mod:`~fljax.models.model_files` writes trained models to files. Their data, losses
and gradients are in :mod:`fljax.problems.model`.
"""

from fljax.models.adapters import equinox, haiku, headed, linen, nnx, plain
from fljax.models.architecture import Architecture, Layout, layout_of
from fljax.models.builtin_networks import Autoencoder, autoencoder, cnn, mlp
from fljax.models.low_rank import lora
from fljax.models.model_files import load, save
from fljax.models.published_networks import dropout_cnn, lenet, lstm, resnet, transformer, vgg
from fljax.models.several_networks import nested, several

__all__ = [
    "Architecture",
    "Autoencoder",
    "Layout",
    "autoencoder",
    "cnn",
    "dropout_cnn",
    "equinox",
    "haiku",
    "headed",
    "layout_of",
    "lenet",
    "linen",
    "load",
    "lora",
    "lstm",
    "mlp",
    "nested",
    "nnx",
    "plain",
    "resnet",
    "save",
    "several",
    "transformer",
    "vgg",
]
