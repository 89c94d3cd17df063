"""Rizk 2023 in NumPy: importance sampling (figure 2.1), and noise between peers (figure 4.4).

The *best* form has the library's optimizations: runs are stacked, only participants are gathered,
a client's probabilities are accumulated once a round, only rows with values above their cap are
capped again, only present edges draw noise. The *plain* form is the straightforward one with all
clients in one array: every client computes in every step, absent ones are left out of the mean,
and runs follow each other. float32 throughout.
"""

from typing import NamedTuple

import numpy as np

SINGLE = np.float32


class Federated(NamedTuple):
    """Figure 2.1; the data are the same for all runs."""

    features: np.ndarray  # [K, N, D]
    targets: np.ndarray  # [K, N]
    sizes: np.ndarray  # [K], of batches
    steps: np.ndarray  # [K]
    drawn: int
    step_size: float
    strength: float  # of every client's squared regularizer
    floor: float
    optimum: np.ndarray  # [D]


class Peers(NamedTuple):
    """Figure 4.4; data and network are the same for all runs."""

    features: np.ndarray  # [K, N, D]
    targets: np.ndarray  # [K, N]
    weights: np.ndarray  # [K, K], row k: client k's weights of others' models
    step_size: float
    strength: float
    variance: float
    optimum: np.ndarray  # [D]


# Probabilities ------------------------------------------------------------------------------------


def capped(chances: np.ndarray, most: np.ndarray | float, floor: float) -> np.ndarray:
    """Probabilities mixed with a uniform share ``floor`` and capped at ``most``."""
    chances = chances * SINGLE(1 - floor) + SINGLE(floor / chances.shape[-1])
    most = np.broadcast_to(np.asarray(most, SINGLE), chances.shape[:-1])
    at = (chances.max(-1) > most).nonzero()
    if not len(at[0]):
        return chances
    rows = chances[at]
    top = most[at][:, None]
    beyond = rows > top
    while True:
        rest = np.where(beyond, 0, rows).sum(-1, keepdims=True)
        left = np.maximum(1 - beyond.sum(-1, keepdims=True) * top, 0)
        scaled = rows * (left / np.where(rest > 0, rest, 1)).astype(SINGLE)
        more = beyond | (scaled > top)
        if (more == beyond).all():
            break
        beyond = more
    chances[at] = np.where(beyond, top, scaled)
    return chances


def systematic_sample(
    order: np.ndarray, chances: np.ndarray, points: np.ndarray, count: np.ndarray
):
    """Systematic sampling: for each row, the units whose intervals contain its points."""
    ends = np.cumsum(np.take_along_axis(chances, order, -1), -1)
    ends *= count[..., None] / ends[..., -1:]
    index = np.count_nonzero(ends[..., None, :] <= points[..., None], axis=-1)
    return np.take_along_axis(order, np.minimum(index, chances.shape[-1] - 1), -1)


def weighted_rows(
    order: np.ndarray, chances: np.ndarray, points: np.ndarray, size: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sampled rows ``[R, L, E, B]``, and the weights of their gradients."""
    rows = systematic_sample(order, chances, points.reshape(*size.shape, -1), size)
    probability = np.take_along_axis(chances, rows, -1).reshape(points.shape)
    share = valid[:, :, None] / (size[..., None, None] * chances.shape[-1] * probability)
    return rows.reshape(points.shape), share


def orders(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Random permutations, by sorting words of random high bits and the index in the low bits."""
    low = np.uint32(2 ** (size - 1).bit_length() - 1)
    packed = rng.integers(2**32, size=(*shape, size), dtype=np.uint32)
    packed = (packed & ~low) | np.arange(size, dtype=np.uint32)
    packed.sort(-1)
    return (packed & low).astype(np.int64)


def equal_chances(rng: np.random.Generator, runs: int, clients: int, count: int) -> np.ndarray:
    """``[R, L]`` distinct clients; rows with a repeated client are drawn again."""
    chosen = rng.integers(clients, size=(runs, count))
    while True:
        ordered = np.sort(chosen, 1)
        bad = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[0]
        if not len(bad):
            return chosen
        chosen[bad] = rng.integers(clients, size=(len(bad), count))


def redistribute(
    chances: np.ndarray, rows: np.ndarray, values: np.ndarray, valid: np.ndarray
) -> None:
    """Redistribute the drawn units' total probability among them by their values, in place."""
    had = np.where(valid, np.take_along_axis(chances, rows, -1), 0)
    total = np.where(valid, values, 0).sum(-1, keepdims=True)
    new = had.sum(-1, keepdims=True) * values / np.where(total > 0, total, 1)
    where = (valid & (total > 0)).nonzero()
    chances[(*where[:-1], rows[where])] = new[where]


# Federated averaging with and without importance sampling ---------------------------------------


def norms_of(features: np.ndarray, targets: np.ndarray, model: np.ndarray, strength: float):
    """``[..., N]`` norms of every sample's gradient, the regularizer in each; ``[..., D]`` mean."""
    residual = 2 * (np.matmul(features, model[..., None])[..., 0] - targets)
    gradients = residual[..., None] * features + (2 * SINGLE(strength) * model)[..., None, :]
    return np.sqrt(np.einsum("...d,...d->...", gradients, gradients)), gradients.mean(-2)


def client_scores(
    norms: np.ndarray, gradient: np.ndarray, chances: np.ndarray, many: np.ndarray
) -> np.ndarray:
    """Client scores (2.48); ``many`` is batch size times steps."""
    spread = 6 / (many * norms.shape[-1] ** 2) * (norms * norms / chances).sum(-1)
    return np.sqrt(spread + (3 + 6 / many) * (gradient * gradient).sum(-1)).astype(SINGLE)


def federated_best(
    setting: Federated, rule: str | None, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """``[runs, rounds / every]`` squared distances to the optimum.

    Args:
      setting: data and algorithm.
      rule: of importance sampling: ``"optimal"`` (probabilities at the optimum), ``"full"`` (at
        the current model), ``"sampled"`` (estimated from drawn samples), or ``None`` for
        federated averaging.
      runs: computed side by side.
      rounds: of each run.
      seed: of all draws.
      every: rounds between records.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    clients, samples, dim = setting.features.shape
    count = setting.drawn
    most = int(setting.sizes.max())
    longest = int(setting.steps.max())
    sizes = setting.sizes.astype(SINGLE)
    steps = setting.steps.astype(SINGLE)
    packed = np.concatenate([setting.features, setting.targets[..., None]], 2).reshape(-1, dim + 1)
    transposed = np.ascontiguousarray(np.moveaxis(setting.features, 2, 0))
    square = np.einsum("knd,knd->kn", setting.features, setting.features)
    model = np.zeros((runs, dim), SINGLE)
    client_chances = np.full((runs, clients), 1 / clients, SINGLE)
    sample_chances = np.full(
        (runs if rule == "sampled" else 1, clients, samples), 1 / samples, SINGLE
    )
    rho = SINGLE(setting.strength)
    result = []

    def probabilities(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Probabilities of clients and of samples at models ``[R, D]``, from all samples' norms."""
        # Inner products of models and features by columns: the dimension is too small for BLAS.
        residual = np.multiply.outer(at[:, 0], transposed[0])
        for d in range(1, dim):
            residual += at[:, d, None, None] * transposed[d]
        shift = 2 * rho * at
        # The norm of residual * x + 2 rho w without forming it, by expanding the square in place.
        products = residual.copy()
        residual -= setting.targets
        residual *= 2
        gradient = np.einsum("rkn,knd->rkd", residual, setting.features, optimize=True) / samples
        gradient += shift[:, None]
        products *= residual
        products *= 4 * rho
        residual *= residual
        residual *= square
        residual += products
        residual += (shift * shift).sum(-1)[:, None, None]
        norms = np.sqrt(np.maximum(residual, 0, out=residual), out=residual)
        chances = norms / norms.sum(-1, keepdims=True)
        wanted = client_scores(
            norms, gradient, capped(chances, 1 / sizes, setting.floor), sizes * steps
        )
        return wanted / wanted.sum(-1, keepdims=True), chances

    if rule == "optimal":
        client_chances, sample_chances = probabilities(setting.optimum[None])
        client_chances = np.broadcast_to(client_chances, (runs, clients))
    run = np.arange(runs)[:, None]
    places = np.arange(most)
    for n in range(rounds):
        if rule is None:
            chosen = equal_chances(rng, runs, clients, count)
            weight = np.ones((runs, count), SINGLE)
        else:
            if rule == "full":
                client_chances, sample_chances = probabilities(model)
            chances = capped(client_chances, 1 / count, setting.floor)
            points = rng.random((runs, 1), SINGLE) + np.arange(count, dtype=SINGLE)
            chosen = systematic_sample(
                orders(rng, (runs,), clients), chances, points, np.full(runs, count, SINGLE)
            )
            weight = 1 / (clients * np.take_along_axis(chances, chosen, 1))
        size = sizes[chosen]
        taken = steps[chosen]
        valid = places < size[..., None]
        length = SINGLE(setting.step_size) * weight / taken
        if rule is None:
            rows = rng.integers(samples, size=(runs, count, longest, most))
            shares = np.broadcast_to((valid / size[..., None])[:, :, None], rows.shape)
        else:
            local_chances = sample_chances[run if len(sample_chances) > 1 else 0, chosen]
            order = orders(rng, (runs, count), samples)
            starts = rng.random((runs, count, longest, 1), SINGLE) + places.astype(SINGLE)

        # These two rules have fixed probabilities in a round, so all its batches are drawn in one
        # call; under "sampled" they change after every step.
        if rule in ("optimal", "full"):
            chances = capped(local_chances, 1 / size, setting.floor)
            rows, shares = weighted_rows(order, chances, starts, size, valid)
        if rule == "sampled":
            before = capped(local_chances, 1 / size, setting.floor)
        local = np.repeat(model[:, None], count, 1)
        start = local.copy()
        for e in range(longest):
            active = (e < taken)[..., None]
            if rule == "sampled":
                chances = before if e == 0 else capped(local_chances, 1 / size, setting.floor)
                batch = weighted_rows(order, chances, starts[:, :, e : e + 1], size, valid)
                at, share = (a[:, :, 0] for a in batch)
            else:
                at = rows[:, :, e]
                share = shares[:, :, e]
            x = packed[(chosen * samples)[..., None] + at]
            features = x[..., :dim]
            targets = x[..., dim]
            residual = 2 * (np.einsum("rlbd,rld->rlb", features, local) - targets)
            estimate = np.einsum("rlb,rlbd->rld", share * residual, features)
            estimate += share.sum(-1, keepdims=True) * 2 * rho * local
            if rule == "sampled":
                if e == 0:
                    gradient = estimate
                sizes_of, _ = norms_of(features, targets, start, setting.strength)
                redistribute(local_chances, at, sizes_of, valid & active)
            local = np.where(active, local - length[..., None] * estimate, local).astype(SINGLE)
        if rule == "sampled":
            norms, _ = norms_of(
                setting.features[chosen], setting.targets[chosen], start, setting.strength
            )
            redistribute(
                client_chances,
                chosen,
                client_scores(norms, gradient, before, size * taken),
                np.ones_like(chosen, bool),
            )
            sample_chances[run, chosen] = local_chances
        model = local.mean(1)
        if (n + 1) % every == 0:
            result.append(((model - setting.optimum) ** 2).sum(1))
    return np.array(result).T


def federated_plain(
    setting: Federated, rule: str | None, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """The same, each run for itself, all clients in every step."""
    rng = np.random.default_rng(seed)
    clients, samples, dim = setting.features.shape
    count = setting.drawn
    most = int(setting.sizes.max())
    longest = int(setting.steps.max())
    sizes = setting.sizes.astype(SINGLE)
    steps = setting.steps.astype(SINGLE)
    valid = np.arange(most) < sizes[:, None]
    every_client = np.arange(clients)[:, None]
    result = []

    def probabilities(model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        models = np.broadcast_to(model, (clients, dim))
        norms, gradient = norms_of(setting.features, setting.targets, models, setting.strength)
        chances = norms / norms.sum(1, keepdims=True)
        wanted = client_scores(
            norms, gradient, capped(chances, 1 / sizes, setting.floor), sizes * steps
        )
        return wanted / wanted.sum(), chances

    for _ in range(runs):
        model = np.zeros(dim, SINGLE)
        client_chances = np.full(clients, 1 / clients, SINGLE)
        sample_chances = np.full((clients, samples), 1 / samples, SINGLE)
        if rule == "optimal":
            client_chances, sample_chances = probabilities(setting.optimum)
        for n in range(rounds):
            if rule == "full":
                client_chances, sample_chances = probabilities(model)
            used = np.full(clients, 1 / clients, SINGLE)
            if rule is None:
                chosen = rng.choice(clients, count, replace=False)
            else:
                used = capped(client_chances[None], 1 / count, setting.floor)[0]
                points = rng.random() + np.arange(count)
                order = rng.permutation(clients)
                chosen = systematic_sample(order, used, points, np.asarray(count, SINGLE))
            local = np.repeat(model[None], clients, 0)
            part = np.zeros((clients, 1), bool)
            part[chosen] = True
            before = sample_chances.copy()
            gradient = local
            for e in range(longest):
                active = part & (e < steps)[:, None]
                if rule is None:
                    rows = rng.integers(samples, size=(clients, most))
                    share = valid / sizes[:, None]
                else:
                    chances = capped(sample_chances, 1 / sizes, setting.floor)
                    order = np.argsort(rng.random((clients, samples), SINGLE), 1)
                    points = rng.random((clients, 1)) + np.arange(most)
                    rows = systematic_sample(order, chances, points, sizes)
                    probability = np.take_along_axis(chances, rows, 1)
                    share = valid / (sizes[:, None] * samples * probability)
                features = setting.features[every_client, rows]
                targets = setting.targets
                targets = targets[every_client, rows]
                residual = 2 * (np.einsum("kbd,kd->kb", features, local) - targets)
                estimate = np.einsum("kb,kbd->kd", share * residual, features)
                estimate += share.sum(1, keepdims=True) * 2 * SINGLE(setting.strength) * local
                if rule == "sampled":
                    gradient = estimate if e == 0 else gradient
                    start = np.repeat(model[None], clients, 0)
                    norms, _ = norms_of(features, targets, start, setting.strength)
                    redistribute(sample_chances, rows, norms, valid & active)
                length = SINGLE(setting.step_size) / (clients * used * steps)
                local = np.where(active, local - length[:, None] * estimate, local).astype(SINGLE)
            if rule == "sampled":
                start = np.repeat(model[None], clients, 0)
                norms, _ = norms_of(setting.features, setting.targets, start, setting.strength)
                chances = capped(before, 1 / sizes, setting.floor)
                wanted = client_scores(norms, gradient, chances, sizes * steps)
                redistribute(
                    client_chances[None],
                    chosen[None],
                    wanted[chosen][None],
                    np.ones((1, count), bool),
                )
            model = local[chosen].mean(0)
            if (n + 1) % every == 0:
                result.append(((model - setting.optimum) ** 2).sum())
    return np.reshape(result, (runs, -1))


# Noise between peers -----------------------------------------------------------------------------


def laplace(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> np.ndarray:
    """As the difference of two exponential numbers, which single precision has."""
    first, second = rng.standard_exponential((2, *shape), SINGLE)
    first -= second
    first *= SINGLE(np.sqrt(variance / 2))
    return first


def peers_best(
    setting: Peers, scheme: str, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """``[runs, rounds / every]`` mean squared distances; ATC on single samples.

    Local noise cancels in every sum and is not drawn.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    peers, samples, dim = setting.features.shape
    packed = np.concatenate([setting.features, setting.targets[..., None]], 2).reshape(-1, dim + 1)
    weights = setting.weights.astype(SINGLE)
    at, from_ = (weights * (1 - np.eye(peers)) > 0).nonzero()
    first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    step = SINGLE(setting.step_size)
    rho = SINGLE(setting.strength)
    model = np.zeros((peers, runs * dim), SINGLE)
    result = []
    offset = np.arange(peers)[:, None] * samples
    for n in range(rounds):
        x = packed[offset + rng.integers(samples, size=(peers, runs))]
        features = x[..., :dim]
        w = model.reshape(peers, runs, dim)
        residual = np.einsum("krd,krd->kr", features, w) - x[..., dim]
        moved = w * (1 - 2 * step * rho) - (2 * step * residual)[..., None] * features
        moved = moved.reshape(peers, runs * dim)
        if scheme == "homomorphic":
            noise = laplace(rng, setting.variance, moved.shape)
            model = weights @ (moved + noise) - noise
        else:
            model = weights @ moved
        if scheme == "edge":
            noise = laplace(rng, setting.variance, (len(at), runs * dim))
            noise *= weights[at, from_][:, None]
            model += np.add.reduceat(noise, first, axis=0)
        if (n + 1) % every == 0:
            deviation = model.reshape(peers, runs, dim) - setting.optimum
            result.append((deviation * deviation).sum(2).mean(0))
    return np.array(result).T


def peers_plain(
    setting: Peers, scheme: str, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """The same, each run for itself, masks and noise as the equations have them: ``[K, K, D]``."""
    rng = np.random.default_rng(seed)
    peers, samples, dim = setting.features.shape
    weights = setting.weights.astype(SINGLE)
    links = weights * (1 - np.eye(peers, dtype=SINGLE))
    rank = np.cumsum(links > 0, 1)
    side = np.where((links > 0) & (rank[:, -1:] > 1), np.where(rank % 2, 1, -1), 0)
    across = (side[:, :, None] > 0) & (side[:, None] < 0)
    everyone = np.arange(peers)
    result = []
    for _ in range(runs):
        model = np.zeros((peers, dim), SINGLE)
        for n in range(rounds):
            rows = rng.integers(samples, size=peers)
            x = setting.features[everyone, rows]
            y = setting.targets[everyone, rows]
            gradient = 2 * (np.einsum("kd,kd->k", x, model) - y)[:, None] * x
            gradient += 2 * SINGLE(setting.strength) * model
            moved = (model - setting.step_size * gradient).astype(SINGLE)
            if scheme == "homomorphic":
                noise = rng.laplace(0, np.sqrt(setting.variance / 2), moved.shape)
                model = (weights @ (moved + noise) - noise).astype(SINGLE)
            elif scheme == "none":
                model = weights @ moved
            else:
                if scheme == "edge":
                    noise = rng.laplace(0, np.sqrt(setting.variance / 2), (peers, peers, dim))
                else:
                    shape = peers, peers, peers, dim
                    pairs = rng.laplace(0, np.sqrt(setting.variance / 2), shape)
                    pairs = np.where(across[..., None], pairs, 0)
                    noise = pairs.sum(2) - pairs.sum(1)
                    noise /= np.where(links > 0, links, 1)[..., None]
                received = np.einsum("kl,kld->kd", links, moved[None] + noise)
                model = (received + np.diag(weights)[:, None] * moved).astype(SINGLE)
            if (n + 1) % every == 0:
                result.append(((model - setting.optimum) ** 2).sum(1).mean())
    return np.reshape(result, (runs, -1))
