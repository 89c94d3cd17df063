"""A network of two layers by hand, a hyperbolic tangent between them and softmax after.

A model is one row of numbers: ``a [P, H]``, ``b [H]``, ``c [H, C]``, ``d [C]``.
"""

import numpy as np


def parts(w, features, hidden, classes):
    a = w[: features * hidden].reshape(features, hidden)
    w = w[features * hidden :]
    b = w[:hidden]
    w = w[hidden:]
    c = w[: hidden * classes].reshape(hidden, classes)
    d = w[hidden * classes :]
    return a, b, c, d


def predictions(w, x, hidden, classes):
    a, b, c, d = parts(w, x.shape[1], hidden, classes)
    return np.stack([np.tanh(row @ a + b) @ c + d for row in x])


def losses(w, x, y, hidden, classes):
    z = predictions(w, x, hidden, classes)
    return np.array(
        [np.log(np.sum(np.exp(row))) - row[int(t)] for row, t in zip(z, y, strict=True)]
    )


def sample_gradients(w, x, y, hidden, classes):
    """``[N, D]``, by the chain rule."""
    a, b, c, d = parts(w, x.shape[1], hidden, classes)
    result = []
    for row, target in zip(x, y, strict=True):
        h = np.tanh(row @ a + b)
        z = h @ c + d
        out = np.exp(z) / np.sum(np.exp(z))
        out[int(target)] -= 1
        back = (c @ out) * (1 - h**2)
        result.append(
            np.concatenate([np.outer(row, back).ravel(), back, np.outer(h, out).ravel(), out])
        )
    return np.stack(result)


def gradient(w, x, y, hidden, classes, clip=np.inf):
    """The gradient of the mean loss, each sample's scaled down to the norm ``clip``."""
    slopes = sample_gradients(w, x, y, hidden, classes)
    norms = np.linalg.norm(slopes, axis=1, keepdims=True)
    return np.mean(slopes * np.minimum(1, clip / norms), axis=0)
