"""The peaks of accelerators, and which share of them a run reaches.

Peaks are from NVIDIA's data sheets, without sparsity: "NVIDIA A100 Tensor Core GPU" (SXM, 40
and 80 GB), "NVIDIA H100 Tensor Core GPU" (SXM, PCIe) and "NVIDIA H200 Tensor Core GPU" (SXM); the
sheets of the H100 and H200 state twice the dense rates of tensor cores.
"""

import subprocess
from typing import NamedTuple

import jax


class Card(NamedTuple):
    """One kind of device: operations and bytes a second."""

    bandwidth: float
    float32: float
    tf32: float
    bfloat16: float


#: By words in the name of the device, the first that fits.
CARDS: dict[str, Card] = {
    "H200": Card(4.8e12, 67e12, 494.5e12, 989.5e12),
    "H100 PCIe": Card(2.0e12, 51e12, 378e12, 756e12),
    "H100": Card(3.35e12, 67e12, 494.5e12, 989.5e12),
    "A100-SXM4-80GB": Card(2.039e12, 19.5e12, 156e12, 312e12),
    "A100": Card(1.555e12, 19.5e12, 156e12, 312e12),
}

#: Names of precisions, and what :class:`fljax.problems.Model` calls them.
PRECISIONS = {"float32": None, "tf32": "float32", "bfloat16": "bfloat16"}


def card(kind: str) -> Card | None:
    """The peaks of a kind of device; ``None`` if they are not in the table."""
    return next((each for name, each in CARDS.items() if name in kind), None)


def least_seconds(card: Card, flops: float, moved: float, precision: str) -> float:
    """The time of this work at the peaks, of arithmetic or of memory, whichever is longer."""
    return max(flops / getattr(card, precision), moved / card.bandwidth)


def share(kind: str, seconds: float, flops: float, moved: float, precision: str) -> float | None:
    """Which part of a measured time the peaks would take; ``None`` for an unknown device."""
    known = card(kind)
    return None if known is None else least_seconds(known, flops, moved, precision) / seconds


def driver() -> str:
    """The version of the device's driver, as far as it can be found out."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return done.stdout.splitlines()[0].strip() if done.stdout else jax.devices()[0].platform
