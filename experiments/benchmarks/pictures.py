"""The folder of the measurements' pictures, and their headings."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.benchmarks.machine import commit, device
from fljax import plotting

PICTURES = Path(__file__).parents[2] / "figures" / "benchmarks"


def save(picture: Figure, what: str, to: Path) -> None:
    """Write a picture under a heading with the measurement and the machine."""
    picture.suptitle(f"{what} on {device()}, commit {commit()}, float32")
    to.parent.mkdir(exist_ok=True)
    plotting.save_figure(picture, to)
    plt.close(picture)
