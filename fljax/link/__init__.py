"""What happens to a message on its way: perturbed, compressed, delayed, counted."""

from fljax.channel.channel import PURPOSES, Arrived, Channel, Traffic, key_of, wide, wide_sum
from fljax.channel.compression import (
    Compressor,
    Quantise,
    RandomK,
    Sign,
    StochasticSign,
    TopK,
)
from fljax.channel.delays import DelayLaw, DelayTrace, Fixed, Geometric, Line, empty_line
from fljax.channel.sharing import Circular, Random, Sharing

__all__ = [
    "PURPOSES",
    "Arrived",
    "Channel",
    "Circular",
    "Compressor",
    "DelayLaw",
    "DelayTrace",
    "Fixed",
    "Geometric",
    "Line",
    "Quantise",
    "Random",
    "RandomK",
    "Sharing",
    "Sign",
    "StochasticSign",
    "TopK",
    "Traffic",
    "empty_line",
    "key_of",
    "wide",
    "wide_sum",
]
