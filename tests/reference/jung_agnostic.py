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
    """The table of section 2.4."""
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


def fit(x, y, weights):
    """Weighted least squares of least norm."""
    root = np.sqrt(weights)
    return np.linalg.pinv(root[:, None] * x, rcond=1e-12) @ (root * y)


def model_agnostic_fedrelax(data, adjacency, coupling, points, rounds, ridge=0.0, start=None):
    """Algorithm 12 as it stands: a pseudo-label for each neighbor and each point.

    ``data``: ``(x, y)`` of each node; ``points``: the shared points in each node's features.
    Returns models ``[T, K, D]``.
    """
    nodes = len(data)
    dim = data[0][0].shape[1]
    w = np.zeros((nodes, dim)) if start is None else start
    predictions = [p @ v for p, v in zip(points, w, strict=True)]
    models = []
    for _ in range(rounds):
        w = np.zeros((nodes, dim))
        for k, (x, y) in enumerate(data):
            rows = [x]
            labels = [y]
            weights = [np.full(len(y), 1 / len(y))]
            for l in range(nodes):  # noqa: E741
                if adjacency[k, l]:
                    rows.append(points[k])
                    labels.append(predictions[l])
                    size = len(points[k])
                    weights.append(np.full(size, coupling * adjacency[k, l] / size))
            rows.append(np.eye(dim))
            labels.append(np.zeros(dim))
            weights.append(np.full(dim, ridge))
            w[k] = fit(np.concatenate(rows), np.concatenate(labels), np.concatenate(weights))
        predictions = [p @ v for p, v in zip(points, w, strict=True)]
        models.append(w)
    return np.array(models)


def predictions_gtvmin(data, adjacency, coupling, points, ridge=0.0):
    """(66) with (65): one system for all models."""
    nodes = len(data)
    dim = data[0][0].shape[1]
    system = np.zeros((nodes * dim, nodes * dim))
    right = np.zeros(nodes * dim)
    for k, (x, y) in enumerate(data):
        block = slice(k * dim, (k + 1) * dim)
        system[block, block] += x.T @ x / len(y) + ridge * np.eye(dim)
        right[block] = x.T @ y / len(y)
        for l in range(nodes):  # noqa: E741
            theirs = slice(l * dim, (l + 1) * dim)
            weight = coupling * adjacency[k, l] / len(points[k])
            system[block, block] += weight * points[k].T @ points[k]
            system[block, theirs] -= weight * points[k].T @ points[l]
    return np.linalg.solve(system, right).reshape(nodes, dim)


def generalized_gradient(x, y, step, points, rounds, ridge=0.0):
    """Algorithm 3 of one node, models ``[T, D]``."""
    predictions = np.zeros(len(points))
    models = []
    dim = x.shape[1]
    for _ in range(rounds):
        weights = np.concatenate(
            [
                np.full(len(y), 1 / len(y)),
                np.full(len(points), 1 / (2 * step * len(points))),
                np.full(dim, ridge),
            ]
        )
        rows = np.concatenate([x, points, np.eye(dim)])
        models.append(fit(rows, np.concatenate([y, predictions, np.zeros(dim)]), weights))
        predictions = points @ models[-1]
    return np.array(models)


def host_fedrelax_64(make, data, adjacency, coupling, points, rounds):
    """Algorithm 12 with (64): each neighbor's predictions are labels; none in the first round."""
    nodes = len(data)
    size = len(points)
    predictions = None
    history = []
    for _ in range(rounds):
        learners = []
        for k, (x, y) in enumerate(data):
            rows = list(x)
            labels = list(y)
            weights = [1 / len(y)] * len(y)
            for l in range(nodes):  # noqa: E741
                if predictions is not None and adjacency[k, l] > 0:
                    for j in range(size):
                        rows.append(points[j])
                        labels.append(predictions[l][j])
                        weights.append(coupling * adjacency[k, l] / size)
            learners.append(make(k).fit(np.array(rows), np.array(labels), sample_weight=weights))
        predictions = [learner.predict(points) for learner in learners]
        history.append(predictions)
    return np.array(history)


def host_fedrelax(make, data, adjacency, coupling, points, rounds, held_out=None):
    """Algorithm 12 with ``make(k)`` a new learner of node ``k``: the predictions of each, by round,
    at the points, ``[T, K, m']``, and at the held-out data of all.
    """
    nodes = len(data)
    size = len(points)
    predictions = np.zeros((nodes, size))
    history = []
    judged = []
    for _ in range(rounds):
        learners = []
        for k, (x, y) in enumerate(data):
            degree = adjacency[k].sum()
            rows = x
            labels = y
            weights = np.full(len(y), 1 / len(y))
            if degree * coupling > 0:
                rows = np.concatenate([x, points])
                labels = np.concatenate([y, adjacency[k] @ predictions / degree])
                weights = np.concatenate([weights, np.full(size, coupling * degree / size)])
            learners.append(make(k).fit(rows, labels, sample_weight=weights))
        predictions = np.array([learner.predict(points) for learner in learners])
        history.append(predictions)
        if held_out is not None:
            judged.append([learner.predict(held_out) for learner in learners])
    return np.array(history), np.array(judged)


def sharing_admm(blocks, y, penalty, rounds, ridge=0.0, active=None):
    """Boyd et al. (2011), section 8.3, in its own scaling of the loss ``1/m |Az - y|^2``.

    ``blocks``: ``X_k`` of each client. Models ``[T, K, D]``.
    """
    clients = len(blocks)
    m = len(y)
    dim = blocks[0].shape[1]
    rho = penalty / m
    w = np.zeros((clients, dim))
    predicted = np.zeros((clients, m))
    models = []
    dual = np.zeros(m)

    def server(predictions, dual):
        mean = predictions.mean(0)
        wanted = (2 / m * y + rho * (mean + dual)) / (2 * clients / m + rho)
        return wanted, dual + mean - wanted

    wanted, dual = server(predicted, dual)
    for n in range(rounds):
        mean = predicted.mean(0)
        for k, x in enumerate(blocks):
            if active is None or active[n, k]:
                goal = x @ w[k] + wanted - mean - dual
                root = np.concatenate([np.sqrt(rho / 2) * x, np.sqrt(ridge) * np.eye(dim)])
                right = np.concatenate([np.sqrt(rho / 2) * goal, np.zeros(dim)])
                w[k] = np.linalg.pinv(root) @ right
        for k, x in enumerate(blocks):
            if active is None or active[n, k]:
                predicted[k] = x @ w[k]
        wanted, dual = server(predicted, dual)
        models.append(w.copy())
    return np.array(models)
