"""Images with a fourth of their pixels."""

import numpy as np


def halved(images: np.ndarray) -> np.ndarray:
    """Half as high and wide by means of 2 x 2, black at zero and white at one."""
    *rest, height, width = images.shape
    squares = images.reshape(*rest, height // 2, 2, width // 2, 2)
    return squares.mean((-3, -1), dtype=np.float32) / np.float32(255)
