"""The rivals: the same Monte-Carlo studies in NumPy, as a plain loop and vectorized with care.

Each function runs whole seeds, data and graph included, and returns the final error of every seed
(normalized, against the closed-form centralized solution; of the softmax study the mean
cross-entropy), so that all can be seen to solve the same problem. The vectorized versions are given
every advantage that fljax takes: Gram form where it is cheaper, float32, seeds as a further axis,
models laid out so that products run along the features, buffers that are used again.
"""

import numpy as np

NOISE_VARIANCE = 0.1


def random_graph(rng: np.random.Generator, nodes: int, edges: int) -> np.ndarray:
    """A random tree plus random further edges, as an adjacency matrix."""
    adjacency = np.zeros((nodes, nodes))
    label = rng.permutation(nodes)
    for child in range(1, nodes):
        parent = rng.integers(child)
        adjacency[label[child], label[parent]] = adjacency[label[parent], label[child]] = 1
    free = np.argwhere(np.triu(1 - adjacency, 1))
    for a, b in free[rng.choice(len(free), edges - nodes + 1, replace=False)]:
        adjacency[a, b] = adjacency[b, a] = 1
    return adjacency


def linear_data(rng, seeds, clients, samples, dim, dtype):
    """``[seeds, clients, samples, dim]`` features and their noisy targets."""
    features = rng.standard_normal((seeds, clients, samples, dim), dtype)
    parameter = rng.standard_normal((seeds, 1, dim, 1), dtype)
    noise = rng.standard_normal((seeds, clients, samples), dtype)
    targets = (features @ parameter)[..., 0] + dtype(NOISE_VARIANCE**0.5) * noise
    return features, targets


def gram(features, targets):
    """``[..., D, D]`` and ``[..., D]``: the mean squared loss has the gradient ``G w - b``."""
    scale = features.dtype.type(2 / features.shape[-2])
    transposed = np.swapaxes(features, -1, -2)
    return scale * (transposed @ features), scale * (transposed @ targets[..., None])[..., 0]


def private_admm_loop(seeds, rounds, clients, samples, dim, penalty, step, total, decay, bound):
    """zCDP-NFL on ridge, client by client."""
    errors = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        adjacency = random_graph(rng, clients, 3 * clients // 2)
        neighbors = [np.flatnonzero(row) for row in adjacency]
        x, y = (a[0] for a in linear_data(rng, 1, clients, samples, dim, np.float64))
        optimum = ridge_optimum(x, y)
        received = np.zeros((clients, dim))
        dual = np.zeros((clients, dim))
        for n in range(1, rounds + 1):
            eta = step / n**0.5
            rho = total * decay ** (rounds - n) * (1 - decay) / (1 - decay**rounds)
            model = np.zeros((clients, dim))
            sent = np.zeros((clients, dim))
            for k in range(clients):
                gradient = 2 / samples * x[k].T @ (x[k] @ received[k] - y[k])
                gradient += 2 / clients * received[k]
                mixed = sum(received[k] + received[m] for m in neighbors[k])
                curvature = 2 * penalty * len(neighbors[k]) + 1 / eta
                model[k] = (received[k] / eta + penalty * mixed - dual[k] - gradient) / curvature
                sigma = 2 * bound / (samples * curvature) / (2 * rho) ** 0.5
                sent[k] = model[k] + sigma * rng.standard_normal(dim)
            received = sent
            for k in range(clients):
                dual[k] += penalty * sum(received[k] - received[m] for m in neighbors[k])
        errors.append(((model - optimum) ** 2).sum() / (optimum**2).sum())
    return np.asarray(errors)


def ridge_optimum(x, y):
    """Centralized ridge solution of equally sized clients, strength 1."""
    _, samples, dim = x.shape
    x = x.reshape(-1, dim).astype(np.float64)
    y = y.reshape(-1).astype(np.float64)
    return np.linalg.solve(x.T @ x / samples + np.eye(dim), x.T @ y / samples)


def private_admm(
    seeds, rounds, clients, samples, dim, penalty, step, total, decay, bound, *, block, dtype, form
):
    """zCDP-NFL on ridge, vectorized over clients and over ``block`` seeds at a time."""
    errors = []
    for start in range(0, seeds, block):
        rng = np.random.default_rng(start)
        graphs = [random_graph(rng, clients, 3 * clients // 2) for _ in range(block)]
        adjacency = np.stack(graphs).astype(dtype)
        degree = adjacency.sum(-1, keepdims=True)
        x, y = linear_data(rng, block, clients, samples, dim, dtype)
        if form == "gram":
            quadratic, moment = gram(x, y)
        transposed = np.swapaxes(x, -1, -2)
        scale = dtype(2 / samples)
        optimum = np.stack([ridge_optimum(*pair) for pair in zip(x, y, strict=True)])
        received = np.zeros((block, clients, dim), dtype)
        dual = np.zeros_like(received)
        neighbors = np.zeros_like(received)
        rho = total * decay ** (rounds - np.arange(1, rounds + 1))
        rho *= (1 - decay) / (1 - decay**rounds)
        for n in range(1, rounds + 1):
            inverse_eta = dtype(n**0.5 / step)
            if form == "gram":
                gradient = (quadratic @ received[..., None])[..., 0] - moment
            else:
                residual = x @ received[..., None] - y[..., None]
                gradient = scale * (transposed @ residual)[..., 0]
            gradient += dtype(2 / clients) * received
            curvature = dtype(2 * penalty) * degree + inverse_eta
            penalized = dtype(penalty) * (degree * received + neighbors)
            model = (inverse_eta * received + penalized - dual - gradient) / curvature
            sigma = dtype(2 * bound / samples / (2 * rho[n - 1]) ** 0.5) / curvature
            received = model + sigma * rng.standard_normal(model.shape, dtype)
            neighbors = adjacency @ received
            dual += dtype(penalty) * (degree * received - neighbors)
        distance = ((model - optimum[:, None]) ** 2).sum((1, 2))
        errors.append(distance / (optimum**2).sum(1))
    return np.concatenate(errors)[:seeds]


def federated_descent_loop(seeds, rounds, clients, samples, dim, step):
    """Federated gradient descent on least squares, client by client."""
    errors = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        x, y = (a[0] for a in linear_data(rng, 1, clients, samples, dim, np.float64))
        optimum = least_squares_optimum(x, y)
        server = np.zeros(dim)
        for _ in range(rounds):
            models = []
            for k in range(clients):
                gradient = 2 / samples * x[k].T @ (x[k] @ server - y[k])
                models.append(server - step * gradient)
            server = np.mean(models, axis=0)
        errors.append(clients * ((server - optimum) ** 2).sum() / (optimum**2).sum())
    return np.asarray(errors)


def least_squares_optimum(x, y):
    x = x.reshape(-1, x.shape[-1])
    y = y.reshape(-1)
    return np.linalg.solve((x.T @ x).astype(np.float64), (x.T @ y).astype(np.float64))


def federated_descent(seeds, rounds, clients, samples, dim, step, *, block, dtype, form):
    """Federated gradient descent on least squares, vectorized.

    ``form``: ``"samples"``, ``"gram"`` (a matrix per client) or ``"pooled"`` (the clients' mean
    Gram matrix: with one local step nothing else is needed of them).
    """
    errors = []
    for start in range(0, seeds, block):
        rng = np.random.default_rng(start)
        x, y = linear_data(rng, block, clients, samples, dim, dtype)
        optimum = np.stack([least_squares_optimum(*pair) for pair in zip(x, y, strict=True)])
        transposed = np.swapaxes(x, -1, -2)
        scale = dtype(2 / samples)
        if form == "gram":
            quadratic, moment = gram(x, y)
        elif form == "pooled":
            quadratic, moment = gram(x.reshape(block, -1, dim), y.reshape(block, -1))
        server = np.zeros((block, dim), dtype)
        for _ in range(rounds):
            if form == "samples":
                residual = x @ server[:, None, :, None] - y[..., None]
                models = server[:, None] - dtype(step) * scale * (transposed @ residual)[..., 0]
                server = models.mean(1)
            elif form == "gram":
                gradient = (quadratic @ server[:, None, :, None])[..., 0] - moment
                server = (server[:, None] - dtype(step) * gradient).mean(1)
            else:
                gradient = (quadratic @ server[..., None])[..., 0] - moment
                server = server - dtype(step) * gradient
        errors.append(clients * ((server - optimum) ** 2).sum(1) / (optimum**2).sum(1))
    return np.concatenate(errors)[:seeds]


def averaging_loop(seeds, rounds, features, labels, per_round, batch, step):
    """Federated averaging of softmax regression, client by client: what fits its cache stays."""
    clients, samples, width = features.shape
    onehot = np.eye(labels.max() + 1, dtype=np.float32)[labels]
    scale = np.float32(step / batch)
    errors = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        server = np.zeros((onehot.shape[-1], width), np.float32)
        for _ in range(rounds):
            total = np.zeros_like(server)
            for k in rng.choice(clients, per_round, replace=False):
                model = server.copy()
                for rows in rng.permutation(samples).reshape(-1, batch):
                    x = features[k].take(rows, 0, mode="clip")
                    residual = softmax(x @ model.T) - onehot[k, rows]
                    residual *= scale
                    model -= residual.T @ x
                total += model
            server = total / np.float32(per_round)
        errors.append(cross_entropy(server, features, onehot))
    return np.asarray(errors)


def averaging(seeds, rounds, features, labels, per_round, batch, step, *, block):
    """The same with the participants of ``block`` seeds side by side."""
    clients, samples, width = features.shape
    onehot = np.eye(labels.max() + 1, dtype=np.float32)[labels].reshape(clients * samples, -1)
    rows = features.reshape(-1, width)
    classes = onehot.shape[-1]
    scale = np.float32(step / batch)
    errors = []
    active = block * per_round
    x = np.empty((active, batch, width), np.float32)
    residual = np.empty((active, batch, classes), np.float32)
    gradient = np.empty((active, classes, width), np.float32)
    for start in range(0, seeds, block):
        rng = np.random.default_rng(start)
        server = np.zeros((block, classes, width), np.float32)
        for _ in range(rounds):
            chosen = [rng.choice(clients, per_round, replace=False) for _ in range(block)]
            order = rng.permuted(np.tile(np.arange(samples), (active, 1)), axis=1)
            order += samples * np.concatenate(chosen)[:, None]
            order = np.ascontiguousarray(order.reshape(active, -1, batch).swapaxes(0, 1))
            targets = onehot[order]
            models = np.repeat(server, per_round, axis=0)
            for now, target in zip(order, targets, strict=True):
                np.take(rows, now, axis=0, out=x, mode="clip")
                np.matmul(x, models.swapaxes(1, 2), out=residual)
                softmax(residual)
                residual -= target
                residual *= scale
                np.matmul(residual.swapaxes(1, 2), x, out=gradient)
                models -= gradient
            server = models.reshape(block, per_round, classes, width).mean(1)
        errors += [cross_entropy(model, rows, onehot) for model in server]
    return np.asarray(errors)[:seeds]


def softmax(logits):
    """In place."""
    logits -= logits.max(-1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(-1, keepdims=True)
    return logits


def cross_entropy(model, features, onehot):
    """Mean over all samples of ``log sum_c exp(logit_c) - logit_label``."""
    logits = features.reshape(-1, features.shape[-1]) @ model.T
    logits -= logits.max(-1, keepdims=True)
    chosen = (logits * onehot.reshape(logits.shape)).sum(-1)
    return (np.log(np.exp(logits).sum(-1)) - chosen).mean()
