"""Pairs of neighboring data sets: made for an audit, and checked to be neighbors.

The relation of neighbors is that of the budget's ``neighbors`` (:mod:`fljax.privacy.notions`).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax.privacy.notions import NEIGHBORS, Neighbors
from fljax.problems import NoRegularizer, Problem


@checked
def corners(
    problem: Problem,
    client: int | Sequence[int] = 0,
    sample: int = 0,
    *,
    radius: float = 1.0,
    targets: tuple[float, float] = (-1.0, 1.0),
    neighbors: Neighbors = "replace",
) -> tuple[Problem, Problem]:
    r"""Return two neighboring data sets, with samples at two corners of the domain.

    Under ``"replace"`` both have the features :math:`\frac r{\sqrt P}(1,\dots,1)` in place of one
    sample, and the two extreme targets: for a loss of the residual or the margin this reverses the
    gradient. Under ``"client"`` all samples of the client are like this; under
    ``"add-or-remove"`` the second data set lacks the sample (:func:`without`). If the extremes
    are large enough to be clipped, a client's mean gradient changes by the most that the bound
    allows; and as the change is equal in all coordinates, its l1 norm is the largest too.

    Args:
      problem: the problem whose other samples both keep.
      client: the client whose data differ; several clients for :func:`one_run`.
      sample: the sample that differs; ignored where all of them do.
      radius: ``r``, of the features' domain, > 0.
      targets: the two extreme targets; of a classifier two of its labels.
      neighbors: the relation of neighbors of the budget.

    Returns:
      The problem with the first target, and with the second target or without the sample. If the
      problem has a feature map, they are without it, as no features may be mapped to zero.

    Raises:
      TypeError: no :class:`~fljax.problems.Problem`.
      ValueError: a client or sample that does not exist, or is padding; an unknown relation.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=5, dim=4)
      >>> a, b = corners(problem, client=1, radius=2.0, targets=(-9.0, 9.0))
      >>> [float(x) for x in b.features[1, 0]], float(a.targets[1, 0]), float(b.targets[1, 0])
      ([1.0, 1.0, 1.0, 1.0], -9.0, 9.0)
      >>> a, b = corners(problem, client=1, neighbors="add-or-remove")
      >>> float(a.features[1, 0, 0]), float(b.features[1, 0, 0])
      (0.5, 0.0)
    """
    checks.choice("neighbors", neighbors, NEIGHBORS)
    checks.kind("problem", problem, Problem)
    checks.positive("radius", radius)
    for target in targets:
        checks.interval("targets", target)
    chosen = np.atleast_1d(checks.filled("client", client))
    if chosen.min() < 0 or chosen.max() >= problem.clients or not 0 <= sample < problem.samples:
        raise ValueError(
            f"client must be in 0..{problem.clients - 1} and sample in 0..{problem.samples - 1}, "
            f"got {client} and {sample}."
        )
    at = np.zeros(np.shape(problem.targets), bool)
    at[chosen, slice(None) if neighbors == "client" else sample] = True
    at &= np.asarray(problem.weights) > 0
    if not at[chosen].any(axis=1).all():
        raise ValueError(
            f"sample {sample} of client {client} is padding and has no weight; choose a real one."
        )
    if neighbors == "add-or-remove":
        problem = problem.mapped()
    features = np.asarray(problem.features)
    aims = np.asarray(problem.targets)
    if not np.issubdtype(features.dtype, np.floating):
        raise TypeError(
            f"corners need features that are floats, got {features.dtype}; make the pair with "
            "dataclasses.replace(problem, features=..., targets=...), or fljax.audit.without."
        )
    level = np.asarray(radius / math.prod(features.shape[2:]) ** 0.5, features.dtype)
    corner = np.where(expanded_mask(at, features), level, features)
    low, high = (
        dataclasses.replace(
            problem,
            features=corner,
            targets=np.where(expanded_mask(at, aims), np.asarray(target, aims.dtype), aims),
        )
        for target in targets
    )
    return low, without_samples(low, at, client=False) if neighbors == "add-or-remove" else high


@checked
def without(problem: Problem, client: int = 0, sample: int | None = None) -> Problem:
    """Return the data set that lacks a sample, or all samples of a client.

    It is the neighbor of ``problem`` under ``"add-or-remove"`` (:mod:`fljax.privacy.notions`): the
    sample still counts in the mean's denominator, and the other samples keep their weights. Where
    predictions are linear its features become zero, after the feature map, so that its gradient is
    zero at any model. A network's gradient there is not zero, because of its biases: its sample
    can still be drawn into batches and its weight becomes the smallest positive number, which
    changes no sum.

    Args:
      problem: the data of all clients.
      client: the client that lacks something.
      sample: the sample that it lacks; by default all of its samples, as the neighbor of a trusted
        server's ``"add-or-remove"`` lacks a client's.

    Raises:
      TypeError: no :class:`~fljax.problems.Problem`.
      ValueError: a client or a sample that does not exist, or is padding.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=3, samples=4, dim=2, classes=2)
      >>> network = fl.problems.Model.of(data, fl.models.mlp(2, hidden=[3]), jax.random.key(1))
      >>> [round(float(weight), 6) for weight in without(network, 1, sample=2).weights[1]]
      [0.25, 0.25, 0.0, 0.25]
    """
    checks.kind("problem", problem, Problem)
    checks.count("client", client, at_least=0, at_most=problem.clients - 1)
    real = np.asarray(problem.weights) > 0
    at = np.zeros(real.shape, bool)
    at[client] = real[client]
    if sample is not None:
        checks.count("sample", sample, at_least=0, at_most=real.shape[1] - 1)
        at &= np.arange(real.shape[1]) == sample
    if not at.any():
        which = "no sample" if sample is None else f"padding in place of sample {sample}"
        raise ValueError(f"client {client} has {which}; choose one that has a weight.")
    return without_samples(problem.mapped(), at, client=sample is None)


def without_samples(problem: Problem, at: Bool[np.ndarray, "clients samples"], client: bool) -> Any:
    """Remove samples from a mapped problem; ``client``: they are all samples of a client."""
    features = np.asarray(problem.features)
    gone = replace(
        problem,
        features=np.where(expanded_mask(at, features), np.zeros((), features.dtype), features),
        statistics=None,
    )
    if problem.linear:
        return gone
    weights = np.asarray(problem.weights)
    left = np.asarray(0 if client else np.finfo(weights.dtype).tiny, weights.dtype)
    # `replace` does not validate: these weights need not sum to one.
    return replace(gone, weights=np.where(at, left, weights))


def expanded_mask(at: Bool[np.ndarray, "clients samples"], values: np.ndarray) -> np.ndarray:
    """Append axes to a mask of samples until it broadcasts against their values."""
    return at.reshape(*at.shape, *(1,) * (values.ndim - 2))


def present_samples(problem: Any) -> Bool[np.ndarray, "clients samples"]:
    """Which samples are not removed."""
    if not problem.linear:
        return np.asarray(problem.weights) > np.finfo(np.asarray(problem.weights).dtype).tiny
    return np.any(np.asarray(problem.design) != 0, axis=-1)


def differing_clients(
    first: Any, second: object, neighbors: Neighbors, several: bool = False
) -> Int[np.ndarray, " differing"]:
    """Return the client whose data differ between two neighbors, or ``several`` of several.

    Raises:
      ValueError: the data sets are not neighbors.
    """
    differs = _differing_samples(first, second)
    samples = int(differs.sum())
    clients = np.flatnonzero(differs.any(axis=1))
    where = "each client that is a canary" if several else "one client"
    must = f"neighbors must differ in {'' if neighbors == 'client' else 'one sample of '}{where}"
    if not (several or len(clients) == 1) or (neighbors != "client" and samples > len(clients)):
        raise ValueError(
            f"{must}, as the budget has neighbors={neighbors!r}, got {samples} samples of "
            f"{len(clients)} clients; fljax.audit.corners makes a pair."
        )
    if neighbors == "add-or-remove":
        present = [present_samples(p)[differs] for p in (first, second)]
        if np.any(present[0] & present[1]):
            how = (
                "making its features zero, after the feature map"
                if first.linear
                else "taking its weight, as a network has a gradient where all features are zero"
            )
            raise ValueError(
                f"{must} that only one of them contains, as the budget has "
                f"neighbors={neighbors!r}, but both have it; a sample is removed by {how}: "
                "fljax.audit.without(problem, client, sample). fljax.audit.corners makes a pair."
            )
    return clients


def check_removed_client(client: int, neighbors: str, *worlds: Problem) -> None:
    """Raise ``ValueError`` unless the client contributes nothing in one of the two data sets, as a
    trusted server's add-or-remove requires.
    """
    if neighbors != "add-or-remove":
        return
    contributes = [bool(np.any(present_samples(world)[client])) for world in worlds]
    penalized = not isinstance(worlds[0].regularizer, NoRegularizer)
    if all(contributes) or penalized:
        raise ValueError(
            "under a trusted server's add-or-remove the client must contribute nothing in one of "
            "the two data sets: remove all of its samples there, fljax.audit.without(problem, "
            "client), in a problem without a regularizer; or audit neighbors='replace'."
        )


def _differing_samples(first: Any, second: Any) -> Bool[np.ndarray, "clients samples"]:
    """Which samples of two data sets differ; ``ValueError`` if anything else does."""
    for problem in (first, second):
        checks.kind("the audited data", problem, Problem)
    shapes = [(np.shape(p.features), np.shape(p.targets)) for p in (first, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "neighbors must have the same shape (a sample is replaced, or removed by making its "
            f"features zero), got features and targets of {shapes[0]} and {shapes[1]}."
        )
    weights = [np.asarray(p.weights) for p in (first, second)]
    # A network's sample is removed by its weight; all other weights of two neighbors must agree.
    removed = np.zeros(weights[0].shape, bool)
    if not first.linear and weights[0].shape == weights[1].shape:
        removed = (weights[0] != weights[1]) & ~(present_samples(first) & present_samples(second))
    rest = [
        replace(p, features=None, targets=None, weights=np.where(removed, 0, w), statistics=None)
        for p, w in zip((first, second), weights, strict=True)
    ]
    same = jax.tree.structure(rest[0]) == jax.tree.structure(rest[1]) and all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(rest[0]), jax.tree.leaves(rest[1]), strict=True)
    )
    if not same:
        raise ValueError(
            "neighbors must agree in all but their samples (loss, regularizer, weights, clip, "
            "tasks); make the second with dataclasses.replace(problem, features=..., targets=...)."
        )
    changed = [
        np.asarray(getattr(first, name)) != np.asarray(getattr(second, name))
        for name in ("features", "targets")
    ]
    differs = [change.reshape(*removed.shape, -1).any(axis=-1) for change in changed]
    real = (weights[0] > 0) | (weights[1] > 0)
    return (differs[0] | differs[1] | removed) & real
