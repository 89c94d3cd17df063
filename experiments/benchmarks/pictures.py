"""Where pictures of measurements are kept, and what stands above them."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.benchmarks.machine import commit, device

PICTURES = Path(__file__).parents[2] / "figures" / "benchmarks"


def save(picture: Figure, what: str, to: Path) -> None:
    """Write a picture, headed by what was measured and where."""
    picture.suptitle(f"{what} on {device()}, commit {commit()}, float32")
    to.parent.mkdir(exist_ok=True)
    picture.savefig(to)
    plt.close(picture)
