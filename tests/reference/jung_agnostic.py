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


def train_and_validate(x, y, x_held, y_held):
    """Algorithm 1 with the model of least norm."""
    w = np.linalg.pinv(x) @ y
    return w, np.mean((y - x @ w) ** 2), np.mean((y_held - x_held @ w) ** 2)


def diagnosis(trained, validated, reference, tolerance=1.5):
    """The table of lines 460-471."""
    if trained > tolerance * validated:
        return "UNLIKE"
    if validated > tolerance * trained:
        return "OVERFITTING"
    if validated > tolerance * reference:
        return "UNDERFITTING"
    return "FINE"


def ridge(x, y, penalty, towards):
    """(27), hence (24)."""
    m, dim = x.shape
    return np.linalg.solve(x.T @ x / m + penalty * np.eye(dim), x.T @ y / m + penalty * towards)
