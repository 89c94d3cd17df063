"""Plain loops of Jung's book (2026): descent, training and validation, model-agnostic learning."""

import numpy as np


def descent(gradient, start, step, rounds, noise=None, project=None):
    """Algorithm 2 with (87) and (91); ``step`` and ``noise`` of the number 1, 2, ..."""
    w = start
    for n in range(1, rounds + 1):
        new = w - step(n) * gradient(w)
        if noise is not None:
            new = new + noise(n, w)
        w = new if project is None else project(new)
    return w
