"""The link: what happens to messages at the sender, on the way, and at the receiver; traffic.

:mod:`~fljax.link.stages` lists the stages of a message in their order, and is the file to read
first; :mod:`~fljax.link.round_link` is the link of one round, made of
:mod:`~fljax.link.outgoing` (the one exit of private messages), :mod:`~fljax.link.peer_messages`,
:mod:`~fljax.link.server_messages`, :mod:`~fljax.link.tree_messages` and
:mod:`~fljax.link.private_gradients`. How large a budget's noise is follows from
:mod:`fljax.privacy`.
"""

from fljax.link.compression import (
    Compressor,
    Contractive,
    Natural,
    Quantize,
    RandomK,
    Sign,
    StochasticSign,
    TopK,
)
from fljax.link.count_sketch import CountSketch, HashFunctions
from fljax.link.delays import (
    DelayLaw,
    DelayTrace,
    EdgeDelays,
    Fixed,
    Geometric,
    Line,
    UniformDelay,
    empty_line,
)
from fljax.link.inbox import Inbox
from fljax.link.losses import GilbertElliott, Independent, Losses
from fljax.link.noise import (
    GraphHomomorphic,
    LocalGraphHomomorphic,
    Noise,
    PerEdge,
    PerMessage,
)
from fljax.link.round_link import Link
from fljax.link.server_messages import Arrived
from fljax.link.sharing import Circular, Random, Sharing
from fljax.link.stages import Memory, Stages, begin, receivers_of
from fljax.link.traffic import Traffic, wide, wide_sum
from fljax.link.uploads import SecureAggregation, UploadNoise

__all__ = [
    "Arrived",
    "Circular",
    "Compressor",
    "Contractive",
    "CountSketch",
    "DelayLaw",
    "DelayTrace",
    "EdgeDelays",
    "Fixed",
    "Geometric",
    "GilbertElliott",
    "GraphHomomorphic",
    "HashFunctions",
    "Inbox",
    "Independent",
    "Line",
    "Link",
    "LocalGraphHomomorphic",
    "Losses",
    "Memory",
    "Natural",
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
    "UniformDelay",
    "UploadNoise",
    "begin",
    "empty_line",
    "receivers_of",
    "wide",
    "wide_sum",
]
