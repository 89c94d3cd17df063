"""The link: what happens to messages at the sender, on the way, and at the receiver; traffic."""

from fljax import _renamed
from fljax.link.compression import (
    Compressor,
    Quantize,
    RandomK,
    Sign,
    StochasticSign,
    TopK,
)
from fljax.link.delays import (
    DelayLaw,
    DelayTrace,
    EdgeDelays,
    Fixed,
    Geometric,
    Line,
    Uniform,
    empty_line,
)
from fljax.link.exchange import agreed_laplace, log_ratio, public_number, shared_number
from fljax.link.inbox import Inbox
from fljax.link.link import Link
from fljax.link.losses import GilbertElliott, Independent, Losses
from fljax.link.noise import (
    GraphHomomorphic,
    LocalGraphHomomorphic,
    Noise,
    PerEdge,
    PerMessage,
)
from fljax.link.server import Arrived
from fljax.link.sharing import Circular, Random, Sharing
from fljax.link.stages import Memory, Stages, begin, receivers_of
from fljax.link.traffic import Traffic, wide, wide_sum
from fljax.link.uploads import SecureAggregation, UploadNoise

__all__ = [
    "Arrived",
    "Circular",
    "Compressor",
    "DelayLaw",
    "DelayTrace",
    "EdgeDelays",
    "Fixed",
    "Geometric",
    "GilbertElliott",
    "GraphHomomorphic",
    "Inbox",
    "Independent",
    "Line",
    "Link",
    "LocalGraphHomomorphic",
    "Losses",
    "Memory",
    "Noise",
    "PerEdge",
    "PerMessage",
    "Quantize",
    "Random",
    "RandomK",
    "SecureAggregation",
    "Sharing",
    "Sign",
    "Stages",
    "StochasticSign",
    "TopK",
    "Traffic",
    "Uniform",
    "UploadNoise",
    "agreed_laplace",
    "begin",
    "empty_line",
    "log_ratio",
    "public_number",
    "receivers_of",
    "shared_number",
    "wide",
    "wide_sum",
]

__getattr__ = _renamed.lookup("fljax.link")
