r"""Distribution of samples over clients: binary tasks of clusters, partitions, and missing labels.

:func:`binary_tasks` draws a :class:`~fljax.problems.Problem` from a key inside a scenario, a
different one for every seed, and the rules of :mod:`fljax.partitions` draw a partition from it.
Here are partitions that all seeds of a study share, as a source has them that fixes one:
:func:`iid`, :func:`by_label`, :func:`dirichlet` (skewed labels), :func:`dirichlet_sizes`,
:func:`power_law` (skewed sizes) and :func:`by_user` (the natural partition) assign every row of a
data set, samples of any shape, to exactly one client; the sizes are structure, so these functions
are called outside the scenario, and :func:`~fljax.problems.from_clients` makes a problem of
``[(x[rows], y[rows]) for rows in parts]``: horizontal federated learning. In vertical federated
learning clients have columns of all rows, and ``iid(x.shape[1], clients, seed)`` distributes them.
:func:`detectors` makes one client per class, :func:`few_shot` removes labels from some of a
client's samples, or all.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype, replace
from fljax._core.numerics import HIGHEST
from fljax._core.random_subsets import shuffled
from fljax.data.images import Images, Task
from fljax.problems.objectives import Logistic, NoRegularizer, Regularizer
from fljax.problems.problem import Problem
from fljax.problems.tasks import Tasks

ATTEMPTS = 1000  # draws of a Dirichlet partition before it is given up


@checked
def binary_tasks(
    key: Key[Array, ""],
    images: Images,
    tasks: Sequence[Any],  # Task
    cluster: Int[Array, " clients"],
    samples: tuple[int, int],
    test: int = 512,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
) -> Problem:
    r"""One binary classification task per cluster: logistic regression on a few images per client.

    Client :math:`k` has :math:`D_k` *data samples*, uniform on the whole numbers from
    ``samples[0]`` to ``samples[1]``. The source's are "composed of two MNIST images" and "of two
    triplets of images" (Gauthier 2024, section 5.4.2); here a data sample is one image of each of
    the ``M`` classes of the client's task, so a client has exactly :math:`D_k` of each and
    :math:`MD_k` in all, of weight :math:`1/(MD_k)` each. Replacing a data sample means replacing
    ``M`` images.

    Each class is shuffled and split into ``samples[1]`` images per client; a client uses
    :math:`D_k`: no training image is at two clients. The order of a client's rows is data sample by
    data sample, and within it as the task lists the classes. Labels are -1 for a task's first side
    and +1 for its second.

    Pixels are divided by the Euclidean norm of their image, so that logistic per-sample gradients
    have norm at most 1 and the assumption of bounded gradients holds; models have no intercept.
    Neither reduces the accuracy of linear models (see the tests), but the models grow by the factor
    by which the images shrink, so a regularizer must be weak, of the order of 1e-5, to be
    negligible.

    Test images are drawn for every task without replacement from all test images of its classes, in
    their natural proportions: accuracy on them estimates that on all of them without bias.

    Args:
      key: consumed; may be traced, like ``cluster`` and ``strength``.
      images: the images; ``tasks`` refers to their classes by number.
      tasks: ``Q`` pairs of tuples of classes, each pair with ``M`` classes in total.
      cluster: ``[K]`` numbers of tasks, such as :func:`~fljax.problems.random_clusters` draws.
      samples: the least and the greatest :math:`D_k`.
      test: number of test images of each task.
      regularizer: as in :class:`~fljax.problems.Problem`.
      strength: as in :class:`~fljax.problems.Problem`.

    Returns:
      A problem of ``K`` clients with ``N = samples[1] * M`` rows, padded with zeros of weight zero;
      its ``tasks`` hold the cluster numbers and the test images, a problem of ``Q`` rows.

    Raises:
      ValueError: a task with an empty side, a class on both or twice, tasks with different numbers
        of classes, a class that is missing in the data or has fewer than ``samples[1]`` training
        images per client, more test images than available, sizes out of order, different numbers of
        images and labels.

    Example:
      >>> import jax
      >>> from fljax.data import SINGLE_DIGITS, binary_tasks, mnist_sample
      >>> cluster = jax.numpy.array([0, 1, 2, 0])
      >>> key = jax.random.key(0)
      >>> problem = binary_tasks(key, mnist_sample(), SINGLE_DIGITS, cluster, (2, 4), test=30)
      >>> problem.features.shape, problem.tasks.test.features.shape
      ((4, 8, 784), (3, 30, 784))
    """
    sides, signs = _sides(tasks)
    least, most = samples
    checks.count("the least number of data samples", least)
    checks.count("the greatest number of data samples", most, at_least=least)
    checks.count("test", test)
    cluster = jnp.asarray(checks.group_numbers("cluster", cluster, len(sides)))
    clients = len(cluster)
    per_class = sides.shape[1]
    dtype = float_dtype()
    k_deal, k_sizes, k_test = jax.random.split(key, 3)

    classes = np.unique(sides)
    rows = _rows("train", images, [[c] for c in classes])
    fewest = int(np.argmin([len(r) for r in rows]))
    if len(rows[fewest]) < clients * most:
        raise ValueError(
            f"{clients} clients with up to {most} data samples need {clients * most} training "
            f"images of each class; {images.name} has {len(rows[fewest])} of class "
            f"{classes[fewest]}. Take fewer clients or smaller samples."
        )
    dealt = _draw(k_deal, rows, clients * most).reshape(len(classes), clients, most)
    image_rows = jnp.asarray(np.searchsorted(classes, sides))[cluster]  # [K, M]
    image_rows = dealt[image_rows, jnp.arange(clients, dtype=jnp.int32)[:, None]]  # [K, M, most]
    image_rows = jnp.swapaxes(image_rows, 1, 2).reshape(clients, most * per_class)

    sizes = per_class * jax.random.randint(k_sizes, (clients,), least, most + 1, jnp.int32)
    real = jnp.arange(most * per_class, dtype=jnp.int32)[None] < sizes[:, None]
    labels = jnp.tile(jnp.asarray(signs, dtype)[cluster], (1, most))
    return Problem(
        features=_unit_rows(images.train_images, image_rows, dtype) * real[..., None].astype(dtype),
        targets=labels * real.astype(dtype),
        loss=Logistic(),
        regularizer=regularizer,
        strength=strength,
        weights=real.astype(dtype) / sizes[:, None].astype(dtype),
        tasks=Tasks(cluster, len(sides), test=_test(k_test, images, tasks, test, dtype)),
        feature_bound=1.0,
    )


def _test(
    key: Key[Array, ""], images: Images, tasks: Sequence[Task], count: int, dtype: np.dtype
) -> Problem:
    """``count`` test images of each task."""
    rows = _rows("test", images, [(*first, *second) for first, second in tasks])
    fewest = int(np.argmin([len(r) for r in rows]))
    if len(rows[fewest]) < count:
        raise ValueError(
            f"test must be at most the {len(rows[fewest])} test images that {images.name} has of "
            f"the classes of task {fewest}, got {count}."
        )
    chosen = _draw(key, rows, count)
    second = np.stack([np.isin(images.test_labels, side) for _, side in tasks])  # [Q, t]
    second = jnp.take_along_axis(jnp.asarray(second), chosen, axis=1)
    targets = jnp.where(second, 1, -1).astype(dtype)
    return Problem(_unit_rows(images.test_images, chosen, dtype), targets, Logistic())


def _sides(tasks: Sequence[Task]) -> tuple[np.ndarray, np.ndarray]:
    """``[Q, M]``: the classes of each task and their labels."""
    if not len(tasks):
        raise ValueError("tasks must hold at least one task, got none.")
    for q, task in enumerate(tasks):
        pair = isinstance(task, tuple | list | np.ndarray) and len(task) == 2
        two = pair and all(np.ndim(side) == 1 and len(side) for side in task)
        if not two or len({*task[0], *task[1]}) < len(task[0]) + len(task[1]):
            raise ValueError(
                f"task {q} must be two sides of one or more classes, none of them twice, such as "
                f"((1,), (8,)); got {checks.shown(task)}."
            )
    counts = [len(first) + len(second) for first, second in tasks]
    if len(set(counts)) > 1:
        raise ValueError(f"tasks must have as many classes each, got {counts}.")
    sides = np.array([(*first, *second) for first, second in tasks])
    return sides, np.array([[-1] * len(first) + [1] * len(second) for first, second in tasks])


def _rows(part: str, images: Images, wanted: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The images of each of these sets of classes."""
    pixels = getattr(images, f"{part}_images")
    labels = getattr(images, f"{part}_labels")
    if labels.shape != pixels.shape[:1]:
        raise ValueError(
            f"{images.name} has {part} images of shape {pixels.shape} and labels of shape "
            f"{labels.shape}; there must be one label an image."
        )
    present = np.unique(labels)
    for c in np.unique(wanted):
        if c not in present:
            raise ValueError(
                f"class {c} is not among the {part} labels of {images.name}, {present.tolist()}."
            )
    return [np.flatnonzero(np.isin(labels, group)) for group in wanted]


def _draw(key: Array, rows: list[np.ndarray], count: int) -> Int[Array, "sets count"]:
    """``count`` rows of each set, uniformly without replacement, in random order."""
    longest = max(len(r) for r in rows)
    table = np.stack([np.pad(r, (0, longest - len(r))) for r in rows]).astype(np.int32)
    real = np.stack([np.arange(longest) < len(r) for r in rows])
    order = shuffled(key, jnp.asarray(real), count)
    return jnp.take_along_axis(jnp.asarray(table), order, axis=1)


def _unit_rows(
    pixels: np.ndarray, rows: Int[Array, "sets count"], dtype: np.dtype
) -> Float[Array, "sets count pixels"]:
    """Images as vectors of length one; a black one stays zero."""
    x = jnp.asarray(pixels.reshape(len(pixels), -1))[rows].astype(dtype)
    # A product, unlike a sum of squares, makes XLA keep the images it has gathered.
    norm = jnp.sqrt(jnp.einsum("knp,knp->kn", x, x, precision=HIGHEST))
    return x / jnp.where(norm > 0, norm, 1)[..., None]


# Partitions of rows -------------------------------------------------------------------------------


@checked
def iid(rows: int, clients: int, seed: int) -> list[np.ndarray]:
    """Rows in random order, cut into equal parts; the first ``rows % clients`` parts have one more.

    Raises:
      ValueError: fewer rows than clients.

    Example:
      >>> import fljax as fl
      >>> rows = fl.data.iid(rows=11, clients=3, seed=0)
      >>> [len(each) for each in rows]
      [4, 4, 3]
    """
    checks.count("rows", rows)
    return _contiguous_parts(_generator(seed).permutation(rows), clients)


@checked
def by_label(labels: object, clients: int, shards: int, seed: int) -> list[np.ndarray]:
    """Rows sorted by label, cut into ``clients * shards`` shards, ``shards`` of them for each
    client.

    With few shards a client has few labels (McMahan et al., "Communication-efficient learning of
    deep networks from decentralized data", AISTATS 2017: 2 of 300 images each). Rows of one label
    are in random order and so are the shards, whose sizes differ by one at most.

    Raises:
      ValueError: fewer rows than shards.

    Example:
      >>> import numpy as np, fljax as fl
      >>> labels = np.repeat(np.arange(10), 6)
      >>> rows = fl.data.by_label(labels, clients=5, shards=2, seed=0)
      >>> [len(np.unique(labels[each])) for each in rows]
      [2, 2, 2, 2, 2]
    """
    rng = _generator(seed)
    labels = checks.names("labels", labels, "label")
    checks.count("clients", clients)
    checks.count("shards", shards)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    pieces = _contiguous_parts(order, clients * shards)
    hands = rng.permutation(clients * shards).reshape(clients, shards)
    return [np.concatenate([pieces[i] for i in hand]) for hand in hands]


@checked
def dirichlet(
    labels: object, clients: int, concentration: float, seed: int, least: int = 1
) -> list[np.ndarray]:
    r"""Each label's rows, distributed in proportions drawn from :math:`\mathrm{Dir}(\alpha\mathbf
    1_K)`.

    Small concentrations give clients few labels and very different sizes, large ones nearly equal
    shares of all labels (Yurochkin et al., "Bayesian nonparametric federated learning of neural
    networks", ICML 2019). A share's ends are rounded to whole rows. All is drawn again until the
    smallest client has ``least`` rows, which for small concentrations is another law.

    Args:
      labels: ``[n]``, of any kind.
      clients: ``K``.
      concentration: :math:`\alpha>0`.
      seed: seed of the draw.
      least: minimum number of rows of a client.

    Raises:
      ValueError: no such partition found in 1000 draws.

    Example:
      >>> import numpy as np, fljax as fl
      >>> labels = np.repeat(np.arange(3), 20)
      >>> rows = fl.data.dirichlet(labels, clients=4, concentration=1.0, seed=0, least=2)
      >>> len(rows), sum(len(each) for each in rows), min(len(each) for each in rows) >= 2
      (4, 60, True)
    """
    checks.count("clients", clients)
    checks.positive("concentration", concentration)
    checks.count("least", least)
    rng = _generator(seed)
    labels = checks.names("labels", labels, "label")
    groups = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for _ in range(ATTEMPTS):
        shares = rng.dirichlet(np.full(clients, concentration), len(groups))
        pieces = []
        for group, share in zip(groups, shares, strict=True):
            pieces.append(_shared(rng.permutation(group), share))
        parts = [np.concatenate(part) for part in zip(*pieces, strict=True)]
        if min(map(len, parts)) >= least:
            return [rng.permutation(part) for part in parts]
    raise ValueError(_not_found_text(len(labels), clients, concentration, least))


@checked
def dirichlet_sizes(
    rows: int, clients: int, concentration: float, seed: int, least: int = 1
) -> list[np.ndarray]:
    r"""Rows in random order, cut in proportions drawn from :math:`\mathrm{Dir}(\beta\mathbf 1_K)`.

    Quantity skew: clients have very different numbers of rows with the same distribution (Li et
    al., "Federated learning on non-IID data silos: an experimental study", ICDE 2022). Ends are
    rounded to whole rows. All is drawn again until the smallest client has ``least`` rows, which
    for small concentrations is another law.

    Args:
      rows: ``n``.
      clients: ``K``.
      concentration: :math:`\beta>0`; larger values give more equal sizes.
      seed: seed of the draw.
      least: minimum number of rows of a client.

    Raises:
      ValueError: no such partition found in 1000 draws.

    Example:
      >>> import fljax as fl
      >>> sizes = [len(rows) for rows in fl.data.dirichlet_sizes(100, 4, 0.5, seed=0)]
      >>> sum(sizes), max(sizes) > 2 * min(sizes)
      (100, True)
    """
    checks.count("rows", rows)
    checks.count("clients", clients)
    checks.positive("concentration", concentration)
    checks.count("least", least)
    rng = _generator(seed)
    for _ in range(ATTEMPTS):
        parts = _shared(rng.permutation(rows), rng.dirichlet(np.full(clients, concentration)))
        if min(map(len, parts)) >= least:
            return parts
    raise ValueError(_not_found_text(rows, clients, concentration, least))


@checked
def power_law(
    rows: int, clients: int, exponent: float, seed: int, least: int = 1
) -> list[np.ndarray]:
    r"""Rows in random order, cut in proportions :math:`k^{-\gamma}`: the first client has the most.

    Quantity skew by a power law: in addition to the ``least`` rows of each client, client
    :math:`k=1,\dots,K` has the share :math:`k^{-\gamma}/\sum_j j^{-\gamma}` of the rows, rounded to
    whole ones.

    Args:
      rows: ``n``.
      clients: ``K``.
      exponent: :math:`\gamma\ge 0`; with zero, sizes differ by at most one row.
      seed: seed of the order of the rows.
      least: number of rows of each client before the others are distributed.

    Raises:
      ValueError: fewer rows than ``clients * least``.

    Example:
      >>> import fljax as fl
      >>> [len(rows) for rows in fl.data.power_law(120, 4, exponent=1.0, seed=0, least=5)]
      [53, 29, 21, 17]
    """
    checks.count("rows", rows)
    checks.count("clients", clients)
    checks.nonnegative("exponent", exponent)
    checks.count("least", least)
    rng = _generator(seed)
    if rows < clients * least:
        raise ValueError(
            f"{clients} clients of {least} rows or more need {clients * least} rows, got {rows}."
        )
    first, remaining = np.split(rng.permutation(rows), [clients * least])
    shares = np.arange(1.0, clients + 1) ** -exponent
    pairs = zip(
        first.reshape(clients, least), _shared(remaining, shares / shares.sum()), strict=True
    )
    return [np.concatenate(pair) for pair in pairs]


@checked
def by_user(
    users: Sequence[object] | np.ndarray, order: object = None, *, leave_out: bool = False
) -> list[np.ndarray]:
    """The rows of each user, as given by the data: nothing is random.

    Args:
      users: ``[n]``, the user of each row: names or numbers.
      order: the users that are clients, in this order; by default all, sorted. With
        ``np.unique(users)`` of the training data, the clients of a test set have the same order; a
        user without rows has an empty part.
      leave_out: leave out the rows of users that are not listed in ``order``; by default it must
        list all, so that none is lost silently.

    Raises:
      ValueError: not one user per row, missing users, users listed twice; no listed user has rows;
        users with rows that are not listed.

    Example:
      >>> import fljax as fl
      >>> [rows.tolist() for rows in fl.data.by_user(["eve", "bob", "eve", "ada"])]
      [[3], [1], [0, 2]]
    """
    users = _names("users", users)
    names, number = np.unique(users, return_inverse=True)
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    if order is None:
        return rows
    wanted = _names("order", order).tolist()
    rows_of = dict(zip(names.tolist(), rows, strict=True))
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"order must list each user once, got {checks.shown(order)}.")
    if not rows_of.keys() & wanted:
        raise ValueError(
            f"no user of the order, such as {checks.shown(wanted[0])}, is among the users, such as "
            f"{checks.shown(names[0].item())}."
        )
    left_out = [name for name in rows_of if name not in set(wanted)]
    if left_out and not leave_out:
        raise ValueError(
            f"order leaves out {len(left_out)} of {len(rows_of)} users and their "
            f"{sum(len(rows_of[name]) for name in left_out)} rows, such as "
            f"{checks.shown(left_out[0])}; list them, or give leave_out=True."
        )
    return [rows_of.get(name, np.zeros(0, rows[0].dtype)) for name in wanted]


def _names(what: str, values: object) -> np.ndarray:
    """``[n]``, of text or whole numbers."""
    array = checks.names(what, values)
    if not array.size or array.dtype.kind not in "Uiu":
        raise ValueError(
            f"{what} must be a name or number of each, one or more, got {checks.shown(values)}."
        )
    return array


@checked
def detectors(
    labels: object, shots: int | Sequence[int], seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """One client per class, with a few samples of it and the same number from other classes.

    Few-shot learning (Jung 2025, section 6.6): the client's model distinguishes its class from the
    others, and a graph that joins similar classes lets those with many samples help those with few.

    Args:
      labels: ``[n]``, of any kind.
      shots: number of samples of its own class at each client, >= 1: one number for all, or one per
        client, in the order of ``np.unique(labels)``.
      seed: seed of the draw, without replacement within a client.

    Returns:
      ``(rows, signs)`` for each client: first the rows of its class, with sign 1, then the others,
      with sign -1; ``[(x[rows], signs) for rows, signs in ...]`` is for
      :func:`~fljax.problems.from_clients`, with :class:`~fljax.problems.Logistic`.

    Raises:
      ValueError: more shots than samples of the class or of the others, a single class.

    Example:
      >>> import numpy as np, fljax as fl
      >>> labels = np.repeat(["bee", "fly", "wasp"], 20)
      >>> parts = fl.data.detectors(labels, shots=[10, 10, 2], seed=0)
      >>> [len(rows) for rows, _ in parts], [int(signs.sum()) for _, signs in parts]
      ([20, 20, 4], [0, 0, 0])
    """
    rng = _generator(seed)
    labels = checks.names("labels", labels, "label")
    classes, kind = np.unique(labels, return_inverse=True)
    counts = np.broadcast_to(shots, len(classes)) if np.ndim(shots) == 0 else np.asarray(shots)
    if len(classes) < 2 or counts.shape != classes.shape:
        raise ValueError(
            f"shots must be one number for each of two or more classes, got {checks.shown(shots)} "
            f"for {len(classes)}."
        )
    parts = []
    for c, count in enumerate(counts):
        checks.count("shots", count)
        class_rows = np.flatnonzero(kind == c)
        other_rows = np.flatnonzero(kind != c)
        if count > min(len(class_rows), len(other_rows)):
            raise ValueError(
                f"shots must be at most the {len(class_rows)} samples of class {classes[c]} and "
                f"the {len(other_rows)} of the others, got {count}."
            )
        rows = [rng.choice(choices, count, replace=False) for choices in (class_rows, other_rows)]
        parts.append((np.concatenate(rows), np.repeat([1.0, -1.0], count)))
    return parts


@checked
def few_shot(
    key: Key[Array, ""], problem: Problem, samples: Int[Array, "*clients"] | int | Sequence[int]
) -> Problem:
    """The same problem with the labels of only a few random samples of each client.

    The targets and weights of the other samples become zero; their features stay, for comparisons
    between clients. A client without labels has importance zero
    (:meth:`~fljax.problems.Problem.weighing`): its model comes from its neighbors alone. This is
    semi-supervised learning (Jung 2025, section 6.3).

    Args:
      key: consumed; may be traced, like ``samples``, so that each seed has different missing
        labels.
      problem: a problem; its held-out data are unchanged.
      samples: number of labels that a client keeps: ``[K]`` integers from 0 to its number of
        samples, or one for all clients, where those with fewer samples keep all labels.

    Raises:
      ValueError: negative numbers, more than a client's number of samples, another number of
        entries than clients, no label left at all.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> kept = fl.data.few_shot(jax.random.key(1), problem, [9, 2, 0])
      >>> kept.sample_counts().tolist(), kept.weights.sum(1).round(3).tolist()
      ([9, 2, 0], [1.0, 1.0, 0.0])
    """
    checks.interval("samples", samples, at_least=0, at_most=2**31 - 1)
    checks.per_client("samples", samples, problem.clients)
    counts = jnp.broadcast_to(jnp.asarray(samples, jnp.int32), (problem.clients,))
    real = jnp.asarray(problem.weights) > 0
    sizes = jnp.sum(real, axis=1, dtype=jnp.int32)
    checks.check_when_concrete(_check_shots, counts, sizes if np.ndim(samples) else jnp.max(sizes))
    order = shuffled(key, real)
    rank = jnp.arange(problem.samples, dtype=jnp.int32)[None]
    clients = jnp.arange(problem.clients, dtype=jnp.int32)[:, None]
    is_labeled = jnp.zeros(real.shape, bool).at[clients, order].set(rank < counts[:, None])
    weights = jnp.where(is_labeled, jnp.asarray(problem.weights), 0)
    total = jnp.sum(weights, axis=1, keepdims=True)
    weight_sums = jnp.sum(jnp.asarray(problem.weights), axis=1, keepdims=True)
    thinned = replace(
        problem,
        targets=jnp.where(is_labeled, jnp.asarray(problem.targets), 0),
        weights=weights * weight_sums / jnp.where(total > 0, total, 1),
        statistics=None,
    )
    return thinned.weighing((total[:, 0] > 0).astype(problem.dtype))


def _check_shots(counts: ArrayLike, sizes: ArrayLike) -> None:
    counts, sizes = np.broadcast_arrays(counts, sizes)
    if np.any(counts > sizes):
        k = int(np.argmax(counts > sizes))
        raise ValueError(
            f"samples must be at most those a client has, got {counts[k]} for client {k} with "
            f"{sizes[k]}; give fewer, or np.minimum(samples, problem.sample_counts())."
        )


def _generator(seed: int) -> np.random.Generator:
    checks.count("seed", seed, at_least=0)
    return np.random.default_rng(seed)


def _shared(order: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """Contiguous pieces in these proportions, whose ends are rounded to whole rows."""
    return np.split(order, np.rint(len(order) * np.cumsum(shares)[:-1]).astype(int))


def _not_found_text(rows: int, clients: int, concentration: float, least: int) -> str:
    return (
        f"no partition of {rows} rows gave each of {clients} clients {least} or more in {ATTEMPTS} "
        f"draws; take a greater concentration than {concentration:g}, fewer clients or a smaller "
        "least."
    )


def _contiguous_parts(order: np.ndarray, parts: int) -> list[np.ndarray]:
    """Contiguous pieces whose sizes differ by one at most.

    Raises:
      ValueError: fewer rows than pieces.
    """
    checks.count("clients", parts)
    if len(order) < parts:
        raise ValueError(f"{len(order)} rows cannot be cut into {parts} parts of one or more.")
    return np.array_split(order, parts)
