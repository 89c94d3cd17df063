"""Rizk 2023 in NumPy: importance sampling (figure 2.1), and noise between peers (figure 4.4).

The *best* form has the care of the library: runs are stacked, only what takes part is gathered, a
client's probabilities are put in line once a round, only rows that have ones beyond their cap are
capped again, only edges that are there draw noise. The *plain* form is what one writes first with
all clients in one array: every client computes in every step, those who take no part are left out
of the mean, and runs follow each other. float32 throughout.
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
    weights: np.ndarray  # [K, K], row k what k gives to others' models
    step_size: float
    strength: float
    variance: float
    optimum: np.ndarray  # [D]


# Probabilities ------------------------------------------------------------------------------------


def kept(law: np.ndarray, most: np.ndarray | float, floor: float) -> np.ndarray:
    """A share of the probabilities uniform, none beyond ``most``."""
    law = law * SINGLE(1 - floor) + SINGLE(floor / law.shape[-1])
    most = np.broadcast_to(np.asarray(most, SINGLE), law.shape[:-1])
    at = (law.max(-1) > most).nonzero()
    if not len(at[0]):
        return law
    rows, top = law[at], most[at][:, None]
    beyond = rows > top
    while True:
        rest = np.where(beyond, 0, rows).sum(-1, keepdims=True)
        left = np.maximum(1 - beyond.sum(-1, keepdims=True) * top, 0)
        scaled = rows * (left / np.where(rest > 0, rest, 1)).astype(SINGLE)
        more = beyond | (scaled > top)
        if (more == beyond).all():
            break
        beyond = more
    law[at] = np.where(beyond, top, scaled)
    return law


def in_line(order: np.ndarray, law: np.ndarray, points: np.ndarray, count: np.ndarray):
    """The units of each row on whose pieces its points fall."""
    ends = np.cumsum(np.take_along_axis(law, order, -1), -1)
    ends *= count[..., None] / ends[..., -1:]
    place = np.count_nonzero(ends[..., None, :] <= points[..., None], axis=-1)
    return np.take_along_axis(order, np.minimum(place, law.shape[-1] - 1), -1)


def weighed(
    order: np.ndarray, law: np.ndarray, points: np.ndarray, size: np.ndarray, there: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``[R, L, E, B]`` that the points fall on, and what their gradients are summed with."""
    rows = in_line(order, law, points.reshape(*size.shape, -1), size)
    probability = np.take_along_axis(law, rows, -1).reshape(points.shape)
    share = there[:, :, None] / (size[..., None, None] * law.shape[-1] * probability)
    return rows.reshape(points.shape), share


def orders(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Random orders of so many units: numbers and indices in one word, sorted."""
    low = np.uint32(2 ** (size - 1).bit_length() - 1)
    words = rng.integers(2**32, size=(*shape, size), dtype=np.uint32)
    words = (words & ~low) | np.arange(size, dtype=np.uint32)
    words.sort(-1)
    return (words & low).astype(np.int64)


def equal_chances(rng: np.random.Generator, runs: int, clients: int, count: int) -> np.ndarray:
    """``[R, L]`` different clients; rows that have one twice are drawn again."""
    chosen = rng.integers(clients, size=(runs, count))
    while True:
        ordered = np.sort(chosen, 1)
        bad = (ordered[:, 1:] == ordered[:, :-1]).any(1).nonzero()[0]
        if not len(bad):
            return chosen
        chosen[bad] = rng.integers(clients, size=(len(bad), count))


def shared(law: np.ndarray, rows: np.ndarray, values: np.ndarray, there: np.ndarray) -> None:
    """Those drawn share what they had by their values; none is drawn twice."""
    had = np.where(there, np.take_along_axis(law, rows, -1), 0)
    total = np.where(there, values, 0).sum(-1, keepdims=True)
    new = had.sum(-1, keepdims=True) * values / np.where(total > 0, total, 1)
    where = (there & (total > 0)).nonzero()
    law[(*where[:-1], rows[where])] = new[where]


# Federated averaging with and without importance sampling ---------------------------------------


def norms_of(features: np.ndarray, targets: np.ndarray, model: np.ndarray, strength: float):
    """``[..., N]`` norms of every sample's gradient, the regularizer in each; ``[..., D]`` mean."""
    residual = 2 * (np.matmul(features, model[..., None])[..., 0] - targets)
    each = residual[..., None] * features + (2 * SINGLE(strength) * model)[..., None, :]
    return np.sqrt(np.einsum("...d,...d->...", each, each)), each.mean(-2)


def need(norms: np.ndarray, slope: np.ndarray, law: np.ndarray, many: np.ndarray) -> np.ndarray:
    """(2.48), of batches' sizes times steps."""
    spread = 6 / (many * norms.shape[-1] ** 2) * (norms * norms / law).sum(-1)
    return np.sqrt(spread + (3 + 6 / many) * (slope * slope).sum(-1)).astype(SINGLE)


def federated_best(
    given: Federated, rule: str | None, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """``[runs, rounds / every]`` squared distances; ``None``: federated averaging."""
    rng = np.random.Generator(np.random.SFC64(seed))
    clients, samples, dim = given.features.shape
    count, most, longest = given.drawn, int(given.sizes.max()), int(given.steps.max())
    sizes, steps = given.sizes.astype(SINGLE), given.steps.astype(SINGLE)
    packed = np.concatenate([given.features, given.targets[..., None]], 2).reshape(-1, dim + 1)
    transposed = np.ascontiguousarray(np.moveaxis(given.features, 2, 0))
    square = np.einsum("knd,knd->kn", given.features, given.features)
    model = np.zeros((runs, dim), SINGLE)
    known = np.full((runs, clients), 1 / clients, SINGLE)
    own = np.full((runs if rule == "sampled" else 1, clients, samples), 1 / samples, SINGLE)
    rho, result = SINGLE(given.strength), []

    def probabilities(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of clients and samples at models ``[R, D]``, of all samples' norms."""
        residual = np.multiply.outer(at[:, 0], transposed[0])
        for d in range(1, dim):
            residual += at[:, d, None, None] * transposed[d]
        pull = 2 * rho * at
        along = residual.copy()  # the features' products with the pull, over 2 rho
        residual -= given.targets
        residual *= 2
        slope = np.einsum("rkn,knd->rkd", residual, given.features, optimize=True) / samples
        slope += pull[:, None]
        along *= residual
        along *= 4 * rho
        residual *= residual
        residual *= square
        residual += along
        residual += (pull * pull).sum(-1)[:, None, None]
        norms = np.sqrt(np.maximum(residual, 0, out=residual), out=residual)
        law = norms / norms.sum(-1, keepdims=True)
        wanted = need(norms, slope, kept(law, 1 / sizes, given.floor), sizes * steps)
        return wanted / wanted.sum(-1, keepdims=True), law

    if rule == "optimal":
        known, own = probabilities(given.optimum[None])
        known = np.broadcast_to(known, (runs, clients))
    run = np.arange(runs)[:, None]
    places = np.arange(most)
    for n in range(rounds):
        if rule is None:
            chosen = equal_chances(rng, runs, clients, count)
            weight = np.ones((runs, count), SINGLE)
        else:
            if rule == "full":
                known, own = probabilities(model)
            law = kept(known, 1 / count, given.floor)
            points = rng.random((runs, 1), SINGLE) + np.arange(count, dtype=SINGLE)
            chosen = in_line(
                orders(rng, (runs,), clients), law, points, np.full(runs, count, SINGLE)
            )
            weight = 1 / (clients * np.take_along_axis(law, chosen, 1))
        size, taken = sizes[chosen], steps[chosen]
        there = places < size[..., None]
        length = SINGLE(given.step_size) * weight / taken
        if rule is None:
            rows = rng.integers(samples, size=(runs, count, longest, most))
            shares = np.broadcast_to((there / size[..., None])[:, :, None], rows.shape)
        else:
            mine = own[run if len(own) > 1 else 0, chosen]
            order = orders(rng, (runs, count), samples)
            starts = rng.random((runs, count, longest, 1), SINGLE) + places.astype(SINGLE)

        if rule in ("optimal", "full"):
            law = kept(mine, 1 / size, given.floor)
            rows, shares = weighed(order, law, starts, size, there)
        if rule == "sampled":
            before = kept(mine, 1 / size, given.floor)
        local = np.repeat(model[:, None], count, 1)
        start = local.copy()
        for e in range(longest):
            busy = (e < taken)[..., None]
            if rule == "sampled":
                law = before if e == 0 else kept(mine, 1 / size, given.floor)
                some = weighed(order, law, starts[:, :, e : e + 1], size, there)
                at, share = (a[:, :, 0] for a in some)
            else:
                at, share = rows[:, :, e], shares[:, :, e]
            x = packed[(chosen * samples)[..., None] + at]
            features, targets = x[..., :dim], x[..., dim]
            residual = 2 * (np.einsum("rlbd,rld->rlb", features, local) - targets)
            estimate = np.einsum("rlb,rlbd->rld", share * residual, features)
            estimate += share.sum(-1, keepdims=True) * 2 * rho * local
            if rule == "sampled":
                if e == 0:
                    slope = estimate
                sizes_of, _ = norms_of(features, targets, start, given.strength)
                shared(mine, at, sizes_of, there & busy)
            local = np.where(busy, local - length[..., None] * estimate, local).astype(SINGLE)
        if rule == "sampled":
            norms, _ = norms_of(
                given.features[chosen], given.targets[chosen], start, given.strength
            )
            shared(
                known, chosen, need(norms, slope, before, size * taken), np.ones_like(chosen, bool)
            )
            own[run, chosen] = mine
        model = local.mean(1)
        if (n + 1) % every == 0:
            result.append(((model - given.optimum) ** 2).sum(1))
    return np.array(result).T


def federated_plain(
    given: Federated, rule: str | None, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """The same, each run for itself, all clients in every step."""
    rng = np.random.default_rng(seed)
    clients, samples, dim = given.features.shape
    count, most, longest = given.drawn, int(given.sizes.max()), int(given.steps.max())
    sizes, steps = given.sizes.astype(SINGLE), given.steps.astype(SINGLE)
    there, every_client = np.arange(most) < sizes[:, None], np.arange(clients)[:, None]
    result = []

    def probabilities(model: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        models = np.broadcast_to(model, (clients, dim))
        norms, slope = norms_of(given.features, given.targets, models, given.strength)
        law = norms / norms.sum(1, keepdims=True)
        wanted = need(norms, slope, kept(law, 1 / sizes, given.floor), sizes * steps)
        return wanted / wanted.sum(), law

    for _ in range(runs):
        model = np.zeros(dim, SINGLE)
        known = np.full(clients, 1 / clients, SINGLE)
        own = np.full((clients, samples), 1 / samples, SINGLE)
        if rule == "optimal":
            known, own = probabilities(given.optimum)
        for n in range(rounds):
            if rule == "full":
                known, own = probabilities(model)
            used = np.full(clients, 1 / clients, SINGLE)
            if rule is None:
                chosen = rng.choice(clients, count, replace=False)
            else:
                used = kept(known[None], 1 / count, given.floor)[0]
                points = rng.random() + np.arange(count)
                order = rng.permutation(clients)
                chosen = in_line(order, used, points, np.asarray(count, SINGLE))
            local = np.repeat(model[None], clients, 0)
            part = np.zeros((clients, 1), bool)
            part[chosen] = True
            before, slope = own.copy(), local
            for e in range(longest):
                busy = part & (e < steps)[:, None]
                if rule is None:
                    rows = rng.integers(samples, size=(clients, most))
                    share = there / sizes[:, None]
                else:
                    law = kept(own, 1 / sizes, given.floor)
                    order = np.argsort(rng.random((clients, samples), SINGLE), 1)
                    points = rng.random((clients, 1)) + np.arange(most)
                    rows = in_line(order, law, points, sizes)
                    probability = np.take_along_axis(law, rows, 1)
                    share = there / (sizes[:, None] * samples * probability)
                features, targets = given.features[every_client, rows], given.targets
                targets = targets[every_client, rows]
                residual = 2 * (np.einsum("kbd,kd->kb", features, local) - targets)
                estimate = np.einsum("kb,kbd->kd", share * residual, features)
                estimate += share.sum(1, keepdims=True) * 2 * SINGLE(given.strength) * local
                if rule == "sampled":
                    slope = estimate if e == 0 else slope
                    start = np.repeat(model[None], clients, 0)
                    norms, _ = norms_of(features, targets, start, given.strength)
                    shared(own, rows, norms, there & busy)
                length = SINGLE(given.step_size) / (clients * used * steps)
                local = np.where(busy, local - length[:, None] * estimate, local).astype(SINGLE)
            if rule == "sampled":
                start = np.repeat(model[None], clients, 0)
                norms, _ = norms_of(given.features, given.targets, start, given.strength)
                law = kept(before, 1 / sizes, given.floor)
                wanted = need(norms, slope, law, sizes * steps)
                shared(known[None], chosen[None], wanted[chosen][None], np.ones((1, count), bool))
            model = local[chosen].mean(0)
            if (n + 1) % every == 0:
                result.append(((model - given.optimum) ** 2).sum())
    return np.reshape(result, (runs, -1))


# Noise between peers -----------------------------------------------------------------------------


def laplace(rng: np.random.Generator, variance: float, shape: tuple[int, ...]) -> np.ndarray:
    """As the difference of two exponential numbers, which single precision has."""
    first, second = rng.standard_exponential((2, *shape), SINGLE)
    first -= second
    first *= SINGLE(np.sqrt(variance / 2))
    return first


def peers_best(
    given: Peers, scheme: str, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """``[runs, rounds / every]`` mean squared distances; ATC on single samples.

    Local noise cancels in every sum and is not drawn.
    """
    rng = np.random.Generator(np.random.SFC64(seed))
    peers, samples, dim = given.features.shape
    packed = np.concatenate([given.features, given.targets[..., None]], 2).reshape(-1, dim + 1)
    weights = given.weights.astype(SINGLE)
    at, from_ = (weights * (1 - np.eye(peers)) > 0).nonzero()
    first = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    step, rho = SINGLE(given.step_size), SINGLE(given.strength)
    model, result = np.zeros((peers, runs * dim), SINGLE), []
    offset = np.arange(peers)[:, None] * samples
    for n in range(rounds):
        x = packed[offset + rng.integers(samples, size=(peers, runs))]
        features, w = x[..., :dim], model.reshape(peers, runs, dim)
        residual = np.einsum("krd,krd->kr", features, w) - x[..., dim]
        moved = w * (1 - 2 * step * rho) - (2 * step * residual)[..., None] * features
        moved = moved.reshape(peers, runs * dim)
        if scheme == "homomorphic":
            noise = laplace(rng, given.variance, moved.shape)
            model = weights @ (moved + noise) - noise
        else:
            model = weights @ moved
        if scheme == "edge":
            noise = laplace(rng, given.variance, (len(at), runs * dim))
            noise *= weights[at, from_][:, None]
            model += np.add.reduceat(noise, first, axis=0)
        if (n + 1) % every == 0:
            apart = model.reshape(peers, runs, dim) - given.optimum
            result.append((apart * apart).sum(2).mean(0))
    return np.array(result).T


def peers_plain(
    given: Peers, scheme: str, runs: int, rounds: int, seed: int, every: int
) -> np.ndarray:
    """The same, each run for itself, masks and noise as the equations have them: ``[K, K, D]``."""
    rng = np.random.default_rng(seed)
    peers, samples, dim = given.features.shape
    weights = given.weights.astype(SINGLE)
    others = weights * (1 - np.eye(peers, dtype=SINGLE))
    rank = np.cumsum(others > 0, 1)
    side = np.where((others > 0) & (rank[:, -1:] > 1), np.where(rank % 2, 1, -1), 0)
    across = (side[:, :, None] > 0) & (side[:, None] < 0)
    everyone, result = np.arange(peers), []
    for _ in range(runs):
        model = np.zeros((peers, dim), SINGLE)
        for n in range(rounds):
            rows = rng.integers(samples, size=peers)
            x, y = given.features[everyone, rows], given.targets[everyone, rows]
            gradient = 2 * (np.einsum("kd,kd->k", x, model) - y)[:, None] * x
            gradient += 2 * SINGLE(given.strength) * model
            moved = (model - given.step_size * gradient).astype(SINGLE)
            if scheme == "homomorphic":
                noise = rng.laplace(0, np.sqrt(given.variance / 2), moved.shape)
                model = (weights @ (moved + noise) - noise).astype(SINGLE)
            elif scheme == "none":
                model = weights @ moved
            else:
                if scheme == "edge":
                    noise = rng.laplace(0, np.sqrt(given.variance / 2), (peers, peers, dim))
                else:
                    shape = peers, peers, peers, dim
                    pairs = rng.laplace(0, np.sqrt(given.variance / 2), shape)
                    pairs = np.where(across[..., None], pairs, 0)
                    noise = pairs.sum(2) - pairs.sum(1)
                    noise /= np.where(others > 0, others, 1)[..., None]
                heard = np.einsum("kl,kld->kd", others, moved[None] + noise)
                model = (heard + np.diag(weights)[:, None] * moved).astype(SINGLE)
            if (n + 1) % every == 0:
                result.append(((model - given.optimum) ** 2).sum(1).mean())
    return np.reshape(result, (runs, -1))
