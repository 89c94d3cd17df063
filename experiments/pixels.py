"""Images with fewer numbers: a fourth of their pixels, or their lowest frequencies."""

import numpy as np
import scipy.fft


def halved(images: np.ndarray) -> np.ndarray:
    """Half as high and wide by means of 2 x 2, black at zero and white at one."""
    *rest, height, width = images.shape
    squares = images.reshape(*rest, height // 2, 2, width // 2, 2)
    return squares.mean((-3, -1), dtype=np.float32) / np.float32(255)


def low_frequencies(images: np.ndarray, side: int) -> np.ndarray:
    """The lowest ``side`` x ``side`` waves of each image, white at one: ``[n, side**2]``."""
    waves = np.asarray(scipy.fft.dctn(images / 255, axes=(-2, -1), norm="ortho"))
    return waves[..., :side, :side].reshape(len(images), side**2).astype(np.float32)
