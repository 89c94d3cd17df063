"""Images with fewer numbers: a fourth of their pixels, low frequencies, principal components."""

from typing import Any

import numpy as np
import scipy.fft

from fljax.data.images import Images
from fljax.models import Architecture
from fljax.problems import Model, Softmax


def halved(images: np.ndarray) -> np.ndarray:
    """Half as high and wide by means of 2 x 2, black at zero and white at one."""
    *rest, height, width = images.shape
    squares = images.reshape(*rest, height // 2, 2, width // 2, 2)
    return squares.mean((-3, -1), dtype=np.float32) / np.float32(255)


def network_of_halved(images: Images, rows: np.ndarray, network: Architecture, test: int) -> Model:
    """Classification of halved images by a network.

    Args:
      images: the data set.
      rows: ``[K, N]``, the training images of each client.
      network: with as many outputs as there are classes.
      test: every so many test images are used.
    """

    def problem(pixels: np.ndarray, labels: np.ndarray, **rest: Any) -> Model:
        labels = labels.astype(np.float32)
        loss = Softmax(len(images.classes))
        return Model(halved(pixels), labels, loss, architecture=network, **rest)

    tests = problem(images.test_images[None, ::test], images.test_labels[None, ::test])
    return problem(images.train_images[rows], images.train_labels[rows], test=tests)


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
