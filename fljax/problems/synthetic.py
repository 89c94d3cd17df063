r"""Synthetic regression and classification problems, drawn on the device from a key.

Features and the true parameter are standard normal, targets :math:`y=x^\top w^\star+\nu`. The
thesis gives only the sizes (50 clients, 50 samples, 8 parameters, section 3.4); the distributions
of the features, the parameter and the noise are chosen here once: unit-variance inputs make the
step sizes of the extract comparable between problems, and a noise variance of 0.1 leaves the
optimum well defined but not interpolating.
"""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.memory import check_fits
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.prng import normal
from fljax.graphs import Graph, stochastic_block_model
from fljax.problems.objectives import (
    ElasticNet,
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Logistic,
    Loss,
    NoRegularizer,
    Regularizer,
    Softmax,
    SquaredL2,
)
from fljax.problems.pool import pool_of_clients, tile_size
from fljax.problems.problem import Problem, sizes_to_weights
from fljax.problems.tasks import Tasks

NOISE_VARIANCE = 0.1

#: Mean and standard deviation of the logarithm of clients' sizes, beyond the smallest, in
#: :func:`heterogeneous_softmax`.
LOG_SIZE = (4.0, 2.0)


@checked
def linear(
    key: Key[Array, ""],
    clients: int,
    samples: int | Sequence[int],
    dim: int,
    loss: Loss,
    regularizer: Regularizer = NoRegularizer(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 1.0,
    noise_variance: Float[Array, ""] | float = NOISE_VARIANCE,
) -> Problem:
    r"""Noisy linear observations of one unknown parameter shared by all clients.

    Args:
      key: consumed.
      clients: ``K``.
      samples: ``N``, or one size per client.
      dim: ``P`` features (and parameters).
      loss: loss of the objective.
      regularizer: regularizer of the objective.
      strength: :math:`\lambda`.
      noise_variance: variance of the observation noise, >= 0.

    Raises:
      ValueError: sizes below one, negative noise.

    Example:
      >>> import jax, fljax as fl
      >>> key, loss = jax.random.key(0), fl.problems.Huber(0.5)
      >>> problem = fl.problems.linear(key, clients=3, samples=[4, 9, 6], dim=2, loss=loss)
      >>> problem.features.shape, problem.sample_counts().tolist()
      ((3, 9, 2), [4, 9, 6])
    """
    checks.count("clients", clients)
    checks.count("dim", dim)
    _check_room(clients, samples, dim)
    checks.nonnegative("noise_variance", noise_variance)
    checks.strength(strength, clients)
    dtype = float_dtype()
    _, weights = sizes_to_weights(samples, clients, dtype)
    k_features, k_parameter, k_noise = jax.random.split(key, 3)
    real = (weights > 0).astype(dtype)
    parameter = normal(k_parameter, (dim,), dtype)
    # One row of parameters a client: batched products of many small matrices are XLA's fast path.
    rows = jnp.broadcast_to(parameter[None], (clients, dim))
    deviation = jnp.sqrt(jnp.asarray(noise_variance, dtype))
    features, targets = _observed(k_features, k_noise, rows, real, deviation)
    with checks.trusted():
        return Problem(features, targets, loss, regularizer, strength, weights)


def _observed(
    k_features: Array, k_noise: Array, models: Array, real: Array | np.ndarray, deviation: Array
) -> tuple[Float[Array, "clients samples dim"], Float[Array, "clients samples"]]:
    r"""Features :math:`x\sim\mathcal N(0,I)` and targets :math:`x^\top w_k+\nu` of each client.

    Args:
      k_features: consumed.
      k_noise: consumed.
      models: ``[K, P]``.
      real: ``[K, N]``, one where a sample is real, zero where it is padding.
      deviation: standard deviation of the noise.
    """
    (clients, longest), (_, dim), dtype = real.shape, models.shape, models.dtype
    features = _normal_rows(k_features, (clients, longest, dim), dtype) * real[..., None]
    noise = normal(k_noise, (clients, longest), dtype)
    clean = jnp.einsum("knp,kp->kn", features, models, precision=HIGHEST)
    return features, (clean + deviation * noise) * real


def _check_room(clients: int, samples: int | Sequence[int], width: int) -> None:
    """Raise ``MemoryError`` for data that do not fit."""
    longest = int(np.max(samples)) if np.size(samples) and checks.is_real(samples) else 0
    check_fits(
        f"a problem of {clients} clients x {longest} samples x {width} features",
        clients,
        longest,
        width,
        entry_bytes=float_dtype().itemsize,
        mend="take fewer or smaller clients, or a stream (fljax.streams), which holds one round",
    )


def _normal_rows(key: Array, shape: tuple[int, ...], dtype) -> Array:
    """Standard normal draws, in a few steps of a loop.

    Drawn in one piece, the numbers would be drawn again inside every operation that reads them:
    XLA's CPU backend fuses them into each. A loop's result is kept.
    """
    steps = max(d for d in range(1, 9) if shape[0] % d == 0)
    part = (shape[0] // steps, *shape[1:])
    keys = jax.random.split(key, steps)
    return jax.lax.map(lambda k: normal(k, part, dtype), keys).reshape(shape)


@checked
def least_squares(
    key: Key[Array, ""], clients: int, samples: int | Sequence[int], dim: int, **kwargs
):
    """:func:`linear` with the squared loss and no regularizer.

    Example:
      Without noise the minimizer fits all samples:

      >>> import jax, fljax as fl
      >>> key = jax.random.key(0)
      >>> problem = fl.problems.least_squares(key, clients=3, samples=9, dim=2, noise_variance=0.0)
      >>> models = fl.problems.optimum(problem)[None].repeat(3, axis=0)
      >>> bool(problem.mean_loss(models).max() < 1e-8)
      True
    """
    return linear(key, clients, samples, dim, LeastSquares(), **kwargs)


@checked
def ridge(key: Key[Array, ""], clients: int, samples: int | Sequence[int], dim: int, **kwargs):
    r"""Squared loss, :math:`R=\|w\|^2` (Gauthier 2024, (3.24)); ``strength`` is :math:`\lambda`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=9, dim=2, strength=0.5)
      >>> problem.features.shape, problem.regularizer, float(problem.strength)
      ((3, 9, 2), SquaredL2(), 0.5)
    """
    return linear(key, clients, samples, dim, LeastSquares(), SquaredL2(), **kwargs)


@checked
def least_absolute_deviation(
    key: Key[Array, ""], clients: int, samples: int | Sequence[int], dim: int, **kwargs
):
    """Absolute loss, no regularizer (Gauthier 2024, section 3.4.2).

    Example:
      >>> import jax, fljax as fl
      >>> key = jax.random.key(0)
      >>> problem = fl.problems.least_absolute_deviation(key, clients=3, samples=9, dim=2)
      >>> problem.loss, problem.regularizer
      (LeastAbsoluteDeviation(), NoRegularizer())
    """
    return linear(key, clients, samples, dim, LeastAbsoluteDeviation(), **kwargs)


@checked
def huber(
    key: Key[Array, ""],
    clients: int,
    samples: int | Sequence[int],
    dim: int,
    threshold: Float[Array, ""] | float = 1.0,
    **kwargs,
):
    """:func:`linear` with the Huber loss of this ``threshold``.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.huber(jax.random.key(0), clients=3, samples=9, dim=2, threshold=0.5)
      >>> problem.loss
      Huber(threshold=0.5)
    """
    return linear(key, clients, samples, dim, Huber(threshold), **kwargs)


@checked
def elastic_net(
    key: Key[Array, ""],
    clients: int,
    samples: int | Sequence[int],
    dim: int,
    l1_factor: Float[Array, ""] | float = 0.001,
    l2: Float[Array, ""] | float = 1.0,
    **kwargs,
):
    r"""Squared loss with :math:`\lambda_1\|w\|_1+\lambda_2\|w\|^2` (Gauthier 2024, section 3.4.1).

    :math:`\lambda_1` is ``l1_factor`` times :math:`\|X^\top y\|_\infty` of the stacked data of all
    clients. It depends on private data; as in the source it is treated as public, and its privacy
    loss is not accounted for.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.elastic_net(jax.random.key(0), clients=3, samples=9, dim=2, l2=0.5)
      >>> bool(0 < problem.regularizer.l1 < 1), float(problem.regularizer.l2)
      (True, 0.5)
    """
    checks.nonnegative("l1_factor", l1_factor)
    checks.nonnegative("l2", l2)
    problem = linear(key, clients, samples, dim, LeastSquares(), **kwargs)
    product = jnp.einsum("knp,kn->p", problem.features, problem.targets)
    with checks.trusted():
        regularizer = ElasticNet(l1_factor * jnp.max(jnp.abs(product)), l2)
        return Problem(
            problem.features,
            problem.targets,
            problem.loss,
            regularizer,
            problem.strength,
            problem.weights,
        )


@checked
def logistic(
    key: Key[Array, ""],
    clients: int,
    samples: int | Sequence[int],
    dim: int,
    regularizer: Regularizer = SquaredL2(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 0.01,
) -> Problem:
    r"""Labels :math:`\pm1` drawn from the logistic model of a standard normal parameter.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.logistic(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> sorted(set(problem.targets.ravel().tolist()))
      [-1.0, 1.0]
    """
    checks.count("clients", clients)
    checks.strength(strength, clients)
    k_linear, k_label = jax.random.split(key)
    base = linear(k_linear, clients, samples, dim, LeastSquares(), noise_variance=0.0)
    uniform = jax.random.uniform(k_label, base.targets.shape, base.dtype)
    labels = jnp.where(uniform < jax.nn.sigmoid(base.targets), 1.0, -1.0).astype(base.dtype)
    with checks.trusted():
        return Problem(base.features, labels, Logistic(), regularizer, strength, base.weights)


@checked
def softmax(
    key: Key[Array, ""],
    clients: int,
    samples: int | Sequence[int],
    dim: int,
    classes: int = 10,
    regularizer: Regularizer = SquaredL2(),  # noqa: B008 (immutable)
    strength: Float[Array, "*clients"] | float = 0.01,
) -> Problem:
    """Labels drawn from the softmax model: ``dim`` features, ``dim * classes`` parameters.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.softmax(jax.random.key(0), clients=3, samples=9, dim=4, classes=5)
      >>> problem.dim  # a weight for each pair of a feature and a class
      20
    """
    loss = Softmax(classes)
    checks.count("clients", clients)
    checks.count("dim", dim)
    _check_room(clients, samples, max(dim, classes))
    checks.strength(strength, clients)
    k_features, k_parameter, k_label = jax.random.split(key, 3)
    base = linear(k_features, clients, samples, dim, LeastSquares(), noise_variance=0.0)
    parameter = normal(k_parameter, (dim, classes), base.dtype)
    logits = jnp.einsum("knp,pc->knc", base.features, parameter)
    labels = jax.random.categorical(k_label, logits).astype(base.dtype)
    with checks.trusted():
        return Problem(base.features, labels, loss, regularizer, strength, base.weights)


@checked
def heterogeneous_softmax(
    key: Key[Array, ""],
    clients: int,
    samples: tuple[int, int],
    model_spread: Float[Array, ""] | float = 0.0,
    feature_spread: Float[Array, ""] | float = 0.0,
    dim: int = 60,
    classes: int = 10,
    *,
    identical: bool = False,
    test_samples: int = 0,
    pooled: bool = False,
) -> Problem:
    r"""Synthetic(:math:`\alpha,\beta`): clients that differ in their models and in their features.

    Client :math:`k` has the model :math:`W_k` (``dim`` times ``classes``) and :math:`b_k`, and its
    samples are classified by it without noise:

    .. math::

        y=\arg\max_c\,(W_k^\top x+b_k)_c,\qquad W_k,b_k\sim\mathcal N(u_k,1),\qquad
        u_k\sim\mathcal N(0,\alpha^2)

        x\sim\mathcal N(v_k,\Sigma),\quad\Sigma_{jj}=j^{-1.2},\qquad
        v_k\sim\mathcal N(B_k,I),\qquad B_k\sim\mathcal N(0,\beta^2)

    :math:`\beta` is how much the clients' features differ; models and means of features differ at
    zero and zero, too. :math:`\alpha` is meant to be how much their models do, but :math:`u_k` adds
    :math:`u_k(1+\sum_jx_j)` to *all* scores of a sample, so that no label depends on it: it is here
    because the data's name has it. With ``identical`` all clients have one model of standard normal
    numbers and features of mean zero: the source's IID form.

    Client ``k`` has :math:`\min(n_{\min}+\lfloor e^{z}\rfloor,n_{\max})` samples with
    :math:`z\sim\mathcal N(4,2^2)`, a heavy-tailed distribution. A constant feature stands behind
    the others, for the intercept :math:`b`: models have ``classes * (dim + 1)`` parameters. It
    has no regularizer.

    The paper writes :math:`\mathcal N(0,\alpha)`, and :math:`\Sigma` for the covariance: read as a
    variance, :math:`\alpha=0.5` is a standard deviation of 0.71. The authors' program, with which
    the published figures were made, draws with :math:`\alpha` as the standard deviation; so does
    this function. At 0 and 1 both readings are one. The program's sizes have no upper limit, and
    it gives 50 for the least.

    Args:
      key: consumed.
      clients: ``K``; 30 in the source.
      samples: fewest and most samples of a client, :math:`(n_{\min},n_{\max})`; equal ones for
        clients of one size.
      model_spread: :math:`\alpha\ge0`, a standard deviation.
      feature_spread: :math:`\beta\ge0`, a standard deviation.
      dim: features of a sample, without the constant one.
      classes: number of labels.
      identical: whether all clients have one model and one law of features; the spreads are then
        zero.
      test_samples: held-out samples of each client, drawn in addition.
      pooled: whether samples are kept as a pool (:func:`fljax.problems.from_pool`): rounds then
        take as long as the clients have samples, and not all as long as the largest could.

    Returns:
      The problem, ``[K, most, dim + 1]``, with each client's own held-out samples if there are any.

    Raises:
      ValueError: sizes below one or in the wrong order, a negative spread, or a positive one of
        identical clients.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.heterogeneous_softmax(
      ...     jax.random.key(0), clients=30, samples=(50, 200), model_spread=1.0, feature_spread=1.0
      ... )
      >>> problem.features.shape, problem.dim
      ((30, 200, 61), 610)
      >>> sizes = (problem.weights > 0).sum(axis=1)
      >>> 50 <= int(sizes.min()) < int(sizes.max()) <= 200
      True

    Reference:
      Li et al. 2020 (FedProx), section 5.1.
    """
    fewest, most = samples
    checks.count("samples", fewest)
    checks.count("samples", most, at_least=fewest, hint="samples are (fewest, most).")
    checks.count("clients", clients)
    checks.count("dim", dim)
    loss = Softmax(classes)
    dtype = float_dtype()
    checks.count("test_samples", test_samples, at_least=0)
    _check_room(clients, most + test_samples, dim + 1)
    for name, spread in (("model_spread", model_spread), ("feature_spread", feature_spread)):
        checks.nonnegative(name, spread)
        if identical:
            checks.interval(
                name, spread, at_least=0, at_most=0, hint="Identical clients have no spread."
            )
    k_size, k_shift, k_model, k_mean, *k_parts = jax.random.split(key, 6)

    log_mean, log_deviation = LOG_SIZE
    more = jnp.exp(log_mean + log_deviation * normal(k_size, (clients,), dtype))
    # Cut before it is a whole number, which could not hold the largest.
    more = jnp.minimum(more, most - fewest).astype(jnp.int32)
    real = jnp.arange(most, dtype=jnp.int32)[None] < fewest + more[:, None]
    weights = jnp.where(real, 1 / (fewest + more).astype(dtype)[:, None], 0)

    shift = normal(k_shift, (2, clients), dtype)
    shift = shift * jnp.stack([jnp.asarray(model_spread), jnp.asarray(feature_spread)])[:, None]
    shift = shift.astype(dtype)
    shape = (1 if identical else clients, classes, dim + 1)  # the intercepts are last
    models = shift[0, :, None, None] + normal(k_model, shape, dtype)
    means = shift[1, :, None] + normal(k_mean, (clients, dim), dtype)
    if identical:
        means = jnp.zeros_like(means)
    deviation = jnp.asarray(np.arange(1, dim + 1) ** -0.6, dtype)

    def observed(key: Array, count: int, is_sample: Array) -> tuple[Array, Array]:
        drawn = _normal_rows(key, (clients, count, dim), dtype)
        features = means[:, None] + deviation[None, None] * drawn
        features = jnp.concatenate([features, jnp.ones((clients, count, 1), dtype)], axis=2)
        scores = jnp.einsum("knp,kcp->knc", features, models, precision=HIGHEST)
        labels = jnp.argmax(scores, axis=2).astype(dtype)
        return features * is_sample[..., None], labels * is_sample

    features, labels = observed(k_parts[0], most, real.astype(dtype))
    with checks.trusted():
        test = None
        if test_samples:
            everyone = jnp.ones((clients, test_samples), dtype)
            test = Problem(*observed(k_parts[1], test_samples, everyone), loss)
        if pooled:
            law = statistics.NormalDist(log_mean, log_deviation)
            quantiles = np.exp([law.inv_cdf((number + 0.5) / 100) for number in range(100)])
            mean = fewest + np.mean(np.minimum(quantiles, most - fewest))
            features = pool_of_clients(features, tile_size(clients, most, int(clients * mean)))
        return Problem(features, labels, loss, strength=0.0, weights=weights, test=test)


@checked
def clustered_ridge(
    key: Key[Array, ""],
    cluster: Int[Array, " clients"],
    clusters: int,
    samples: tuple[int, int],
    dim: int,
    spread: Float[Array, ""] | float,
    strength: Float[Array, "*clients"] | float,
    noise_variance: Float[Array, "*each"] | float = NOISE_VARIANCE,
    validated: bool = False,
) -> Problem:
    r"""Ridge regression of clusters with similar models (Gauthier 2024, sections 5.4.1 and 6.3).

    One standard normal :math:`w_0` and :math:`w^*_{(q)}=(1+\gamma_q)w_0` with :math:`\gamma_q`
    uniform on :math:`\pm` ``spread``: one number per cluster, so all models lie on a line. A
    client's number of samples is uniform on the integers ``samples[0]`` to ``samples[1]``.

    Args:
      key: consumed.
      cluster: ``[K]`` integers below ``clusters``.
      clusters: ``Q``.
      samples: least and greatest number of samples of a client.
      dim: ``D``.
      spread: >= 0.
      strength: :math:`\lambda` of :math:`R=\|w\|^2`, as in :class:`Problem`.
      noise_variance: variance of the observation noise, >= 0, one number or ``[K]``.
      validated: also draw the same number of validation samples for each client.

    Returns:
      The problem, whose ``tasks`` include the true models.

    Raises:
      ValueError: sizes below one or in the wrong order, negative noise or spread.

    Example:
      >>> import jax, fljax as fl
      >>> k_cluster, k_data = jax.random.split(jax.random.key(0))
      >>> cluster = fl.problems.random_clusters(k_cluster, 12, 3)
      >>> problem = fl.problems.clustered_ridge(k_data, cluster, 3, (5, 9), 4, 0.1, 0.01)
      >>> problem.features.shape, problem.tasks.truth.shape
      ((12, 9, 4), (3, 4))
    """
    least, most = samples
    checks.count("samples", least)
    checks.count("samples", most, at_least=least, hint="samples are (fewest, most).")
    checks.count("dim", dim)
    checks.count("clusters", clusters)
    checks.nonnegative("spread", spread)
    dtype = float_dtype()
    clients = len(cluster)
    _check_room(clients, most, dim)
    checks.strength(strength, clients)
    checks.nonnegative("noise_variance", noise_variance)
    checks.per_client("noise_variance", noise_variance, clients)
    cluster = jnp.asarray(cluster, jnp.int32)
    k_model, k_spread, k_size, *k_parts = jax.random.split(key, 5)
    offset = jax.random.uniform(k_spread, (clusters,), dtype, -1, 1) * spread
    truth = (1 + offset)[:, None] * normal(k_model, (dim,), dtype)[None]
    sizes = jax.random.randint(k_size, (clients,), least, most + 1)
    real = jnp.arange(most, dtype=sizes.dtype)[None] < sizes[:, None]
    weights = jnp.where(real, 1 / sizes.astype(dtype)[:, None], 0)
    deviation = jnp.broadcast_to(jnp.sqrt(jnp.asarray(noise_variance, dtype)), (clients,))

    def observed(key: Array, **kwargs: Any) -> Problem:
        k_features, k_noise = jax.random.split(key)
        is_sample = real.astype(dtype)
        features, targets = _observed(
            k_features, k_noise, truth[cluster], is_sample, deviation[:, None]
        )
        return Problem(features, targets, LeastSquares(), SquaredL2(), strength, weights, **kwargs)

    with checks.trusted():
        validation = observed(k_parts[1]) if validated else None
        tasks = Tasks(cluster, clusters, truth, validation=validation)
        return observed(k_parts[0], tasks=tasks)


class ClusteredNetwork(NamedTuple):
    """Clients in clusters, and a graph whose edges mostly join clients of the same cluster."""

    problem: Problem  # K clients; its tasks hold the clusters and the true models [Q, D]
    graph: Graph


@checked
def clustered_network(
    key: Key[Array, ""],
    sizes: Sequence[int],
    samples: int | Sequence[int],
    dim: int,
    within: Float[Array, ""] | float,
    between: Float[Array, ""] | float,
    noise_variance: Float[Array, ""] | float = NOISE_VARIANCE,
    truth: Float[Array, "clusters dim"] | None = None,
    *,
    form: str = "auto",
    max_degree: int | None = None,
) -> ClusteredNetwork:
    r"""Linear regression of clusters, each with its own model, on a stochastic block model.

    The cluster model of Jung 2025, (146): :math:`y^{(i)}=X^{(i)}\bar w^{(\mathcal C)}+\varepsilon`
    for all clients :math:`i` of the cluster :math:`\mathcal C`, with features :math:`x\sim\mathcal
    N(0,I)` and noise :math:`\varepsilon\sim\mathcal N(0,\sigma^2I)` as in (59); of one cluster it
    is (60). Two clients of the same cluster are joined with probability ``within``, clients of
    different clusters with ``between``, by edges of weight one. The graph may be disconnected:
    ``fl.Simulation(..., allow_disconnected=True)`` runs on it.

    Traceable: sizes and samples are structure, all other arguments may be swept.

    Args:
      key: consumed.
      sizes: number of clients of each of the ``Q`` clusters; cluster 0 comes first.
      samples: ``N``, or one size per client.
      dim: ``D``.
      within: probability of an edge within a cluster.
      between: probability of an edge between two clusters.
      noise_variance: :math:`\sigma^2\ge0`.
      truth: ``[Q, D]``, the clusters' models; by default independent standard normal ones.
      form: form of the graph, as in :func:`fljax.graphs.stochastic_block_model`: dense where the
        probabilities are traced.
      max_degree: as in :func:`fljax.graphs.stochastic_block_model`.

    Returns:
      The problem, without a regularizer, whose ``tasks`` include clusters and true models; the
      graph.

    Raises:
      ValueError: empty clusters, sizes below one, probabilities outside of [0, 1], negative noise,
        models of another shape.

    Example:
      >>> import jax, fljax as fl
      >>> problem, graph = fl.problems.clustered_network(
      ...     jax.random.key(0), sizes=(3, 4), samples=5, dim=2, within=1.0, between=0.0
      ... )
      >>> problem.tasks.cluster.tolist(), graph.components().tolist()
      ([0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 3, 3, 3, 3])
    """
    for index, size in enumerate(sizes):
        checks.count(f"sizes[{index}]", size)
    sizes = [int(size) for size in sizes]
    clients = sum(sizes)
    clusters = len(sizes)
    dtype = float_dtype()
    checks.count("dim", dim)
    _check_room(clients, samples, dim)
    for name, probability in (("within", within), ("between", between)):
        checks.interval(name, probability, at_least=0, at_most=1)
    checks.nonnegative("noise_variance", noise_variance)
    k_graph, k_model, k_features, k_noise = jax.random.split(key, 4)
    same = np.eye(clusters, dtype=bool)
    plain = checks.is_concrete(within) and checks.is_concrete(between)
    probabilities = (np if plain else jnp).where(same, within, between)  # plain numbers stay known
    graph = stochastic_block_model(k_graph, sizes, probabilities, form=form, max_degree=max_degree)
    if truth is None:
        models = normal(k_model, (clusters, dim), dtype)
    else:
        models = jnp.asarray(checks.array("truth", truth)).astype(dtype)
        if models.shape != (clusters, dim):
            raise ValueError(
                f"truth must be one model of each cluster, [{clusters}, {dim}], got shape "
                f"{models.shape}."
            )
        checks.finite("truth", models)
    cluster = np.repeat(np.arange(clusters, dtype=np.int32), sizes)
    _, weights = sizes_to_weights(samples, clients, dtype)
    real = (weights > 0).astype(dtype)
    deviation = jnp.sqrt(jnp.asarray(noise_variance, dtype))
    features, targets = _observed(k_features, k_noise, models[cluster], real, deviation)
    with checks.trusted():
        tasks = Tasks(cluster, clusters, models)
        problem = Problem(
            features, targets, LeastSquares(), strength=0.0, weights=weights, tasks=tasks
        )
    return ClusteredNetwork(problem, graph)
