"""Images with fewer numbers: a fourth of their pixels, low frequencies, principal components."""

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


def principal_directions(images: np.ndarray, count: int) -> np.ndarray:
    """The directions with the largest second moments of images that are scaled to norm one, which
    are not centered: ``[pixels, count]``, orthonormal.
    """
    rows = images.reshape(len(images), -1).astype(float)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    _, directions = np.linalg.eigh(rows.T @ rows)  # in ascending order
    return directions[:, ::-1][:, :count]
