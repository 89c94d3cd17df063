r"""Dissimilarity of local data sets: vector representations, and discrepancies between pairs.

A representation :math:`z^{(i)}` of each client's data set is a row of ``[K, m]``;
:func:`fljax.graphs.distances` makes :math:`d^{(i,i')}=\lVert z^{(i)}-z^{(i')}\rVert` from them
(Jung 2025, section 7.2); :func:`fljax.graphs.nearest_neighbors` builds a graph from them, without
the matrix.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.numerics import HIGHEST
from fljax.models import Autoencoder
from fljax.problems.model import FunctionLoss, Model
from fljax.problems.objectives import LeastSquares, Loss
from fljax.problems.problem import Problem


@checked
def local_gradients(
    problem: Problem, at: Float[Array, " dim"] | None = None
) -> Float[Array, "clients dim"]:
    r"""The clients' gradients :math:`f_k'(v)` at one common model.

    The source does not specify the model; gradients far from all minimizers are less informative.

    Args:
      problem: the clients'.
      at: :math:`v`, ``[D]``; zero by default.

    Raises:
      ValueError: a model of another size.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> targets = jnp.array([[1.0], [5.0]])  # of one sample each
      >>> problem = fl.problems.Problem(jnp.ones((2, 1, 1)), targets, fl.problems.LeastSquares())
      >>> fl.problems.local_gradients(problem).tolist()  # -2 y_k at zero
      [[-2.0], [-10.0]]

    Reference:
      Jung 2025, (157).
    """
    if at is None:
        at = jnp.zeros(problem.dim, problem.dtype)
    if np.shape(at) != (problem.dim,):
        raise ValueError(
            f"at must be one model of the problem's {problem.dim} parameters, got shape "
            f"{np.shape(at)}."
        )
    checks.finite("at", at)
    everyone = jnp.broadcast_to(jnp.asarray(at, problem.dtype), (problem.clients, problem.dim))
    return problem.gradient(everyone)


@checked
def reconstruction(problem: Problem, network: Autoencoder, key: Key[Array, ""]) -> Model:
    r"""The clients' features as targets of their own reconstruction by a jointly trained network.

    Any algorithm that trains networks minimizes the mean squared error; only models are sent.
    Labels are not used. A mean code describes where the samples of a client lie; it hardly
    distinguishes two distributions of labels given the same features, even with labels among the
    features.

    Args:
      problem: the clients'.
      network: a network of :func:`fljax.models.autoencoder`.
      key: key of the initial parameters, consumed.

    Raises:
      ValueError: as :class:`~fljax.problems.Model`.

    Reference:
      Jung 2025, section 7.2, Figure 7.2.

    Example:
      The mean codes of two kinds of clients are separated:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> x = jax.random.normal(jax.random.key(0), (6, 40, 4))
      >>> x = x.at[3:].add(jnp.array([2.0, -2.0, 2.0, -2.0]))
      >>> data = fl.problems.Problem(x, jnp.zeros((6, 40)), fl.problems.LeastSquares())
      >>> problem = reconstruction(data, fl.models.autoencoder(2, [8]), jax.random.key(1))
      >>> run = fl.run(fl.Simulation(problem, fl.algorithms.FedAvg(0.02)), rounds=500)
      >>> codes = mean_codes(problem, run.model.values[0])
      >>> fl.clustering.adjusted_rand(
      ...     fl.clustering.kmeans(jax.random.key(2), codes, 2).cluster, [0, 0, 0, 1, 1, 1]
      ... ).tolist()
      1.0
    """
    checks.kind("network", network, Autoencoder)
    features = problem.design
    autoencoder = Model(
        features,
        features,
        FunctionLoss(_squared_error),
        weights=problem.weights,
        architecture=network,
        importance=problem.importance,
    )
    return autoencoder.initialized(key)


def _squared_error(prediction: Array, target: Array) -> Array:
    return (prediction - target) ** 2


@checked
def mean_codes(problem: Model, model: Float[Array, " dim"]) -> Float[Array, "clients code"]:
    r"""The mean code of each client's samples: an embedding of its data set.

    Args:
      problem: a problem made by :func:`reconstruction`.
      model: ``[D]``, the autoencoder that all clients share.

    Raises:
      TypeError: a network that is not an autoencoder.
      ValueError: a model of another size.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.ridge(jax.random.key(0), clients=3, samples=9, dim=4)
      >>> problem = fl.problems.reconstruction(data, fl.models.autoencoder(2), jax.random.key(1))
      >>> fl.problems.mean_codes(problem, problem.initial).shape
      (3, 2)

    Reference:
      Jung 2025, section 7.2.
    """
    network = problem.architecture
    checks.kind("the problem's architecture", network, Autoencoder)
    model = checks.filled("model", model, axes=1)
    checks.finite("model", model)
    parameters = problem.parameters(model)

    def encode(client: tuple[Array, Array]) -> Array:
        features, weights = client
        total = jnp.sum(weights)
        codes = network.encode(parameters, features)  # pyright: ignore[reportAttributeAccessIssue]
        return jnp.sum(weights[:, None] * codes, axis=0) / jnp.where(total > 0, total, 1)

    return jax.lax.map(encode, (jnp.asarray(problem.features), jnp.asarray(problem.weights)))


@checked
def label_histograms(
    problem: Problem, labels: Float[Array, " classes"] | object
) -> Float[Array, "clients classes"]:
    r"""The relative frequency of each label at each client; all zero for a client without labels.

    Args:
      problem: the clients', with labels as targets.
      labels: ``[C]``, all labels, such as ``range(10)``.

    Raises:
      ValueError: a duplicate label.

    Reference:
      Jung 2025, section 7.2.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.array([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 0.0, 0.0]])
      >>> problem = fl.problems.Problem(jnp.ones((2, 4, 1)), labels, fl.problems.Softmax(3))
      >>> fl.problems.label_histograms(problem, range(3)).tolist()
      [[0.25, 0.75, 0.0], [0.5, 0.0, 0.5]]
      >>> fl.problems.label_overlap(problem, range(3)).tolist()
      [[1.0, 0.375], [0.375, 1.0]]
    """
    counts = _label_counts(problem, labels)
    total = jnp.sum(counts, axis=1, keepdims=True)
    return counts / jnp.where(total > 0, total, 1)


@checked
def label_overlap(
    problem: Problem, labels: Float[Array, " classes"] | object
) -> Float[Array, "clients clients"]:
    r"""The share of two clients' samples whose labels occur at both: a *similarity*, in [0, 1].

    One minus the overlap is a discrepancy, for graphs with ``metric="precomputed"``.

    Args:
      problem: the clients', with labels as targets.
      labels: as in :func:`label_histograms`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> labels = jnp.array([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 0.0, 0.0]])
      >>> problem = fl.problems.Problem(jnp.ones((2, 4, 1)), labels, fl.problems.Softmax(3))
      >>> fl.problems.label_overlap(problem, range(3)).tolist()  # only the class 0 is at both
      [[1.0, 0.375], [0.375, 1.0]]

    Reference:
      Jung 2025, section 7.2.
    """
    counts = _label_counts(problem, labels)
    has = (counts > 0).astype(counts.dtype)
    common = jnp.matmul(counts, has.T, precision=HIGHEST)
    total = jnp.sum(counts, axis=1)
    joint_total = total[:, None] + total[None, :]
    return (common + common.T) / jnp.where(joint_total > 0, joint_total, 1)


@checked
def prediction_discrepancy(
    predictions: Float[Array, "clients points *outputs"],
    labels: Float[Array, "clients points"] | None = None,
    loss: Loss = LeastSquares(),  # noqa: B008 (immutable)
) -> Float[Array, "clients clients"]:
    r"""Dissimilarity of the predictions of models of any kind on shared points.

    .. math:: d^{(i,i')}=\frac1{m'}\sum_{x}\tfrac12\Big[\ell\big(h^{(i')}(x),h^{(i)}(x)\big)
        +\ell\big(h^{(i)}(x),h^{(i')}(x)\big)\Big],

    for the squared loss the mean of :math:`(h^{(i)}(x)-h^{(i')}(x))^2`. No array of the size of all
    pairs times all points is formed.

    Args:
      predictions: ``[K, M]``, predictions of each client's model on ``M`` shared points; ``[K, M,
        O]`` for a loss of several outputs.
      labels: ``[K, M]``, the labels predicted by each model, for losses whose targets are not
        predictions. The predictions themselves by default.
      loss: :math:`\ell`, of a prediction and a label.

    Raises:
      ValueError: NaN, labels of another shape or invalid for the loss.

    Reference:
      Jung 2025, (64) and (65), and (30).

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> predictions = jnp.array([[0.0, 1.0], [0.0, 3.0]])
      >>> fl.problems.prediction_discrepancy(predictions).tolist()
      [[0.0, 2.0], [2.0, 0.0]]
    """
    checks.registered("loss", loss)
    checks.finite("predictions", predictions)
    predictions = jnp.asarray(predictions)
    if predictions.ndim != 2 + (loss.outputs > 1):
        raise ValueError(
            f"predictions must be [clients, points{', outputs' if loss.outputs > 1 else ''}] for "
            f"{type(loss).__name__}, got shape {predictions.shape}."
        )
    if labels is None:
        if loss.outputs > 1:
            raise ValueError(
                f"{type(loss).__name__} needs labels=, the class that each model predicts."
            )
        labels = predictions
    if np.shape(labels) != predictions.shape[:2]:
        raise ValueError(
            f"labels must be [clients, points], shape {predictions.shape[:2]}, got shape "
            f"{np.shape(labels)}."
        )
    checks.finite("labels", labels)
    if type(loss).check_targets is not Loss.check_targets:
        checks.check_when_concrete(lambda given: loss.check_targets(np.asarray(given)), labels)
    labels = jnp.asarray(labels, predictions.dtype)

    def row(label: Array) -> Array:  # every other's prediction, judged by this one's labels
        return jnp.mean(loss.value(predictions, jnp.broadcast_to(label, labels.shape)), axis=1)

    one_way = jax.lax.map(row, labels)
    return (one_way + one_way.T) / 2


def _label_counts(problem: Problem, argument: object) -> Float[Array, "clients classes"]:
    labels = checks.filled("labels", argument, axes=1)
    checks.finite("labels", labels)
    if checks.is_concrete(labels) and len(np.unique(np.asarray(labels))) < len(labels):
        raise ValueError("labels must be all different, got one twice.")
    real: Bool[Array, "clients samples"] = jnp.asarray(problem.weights) > 0
    targets = jnp.asarray(problem.targets)

    def count(label: Array) -> Array:
        return jnp.sum(real & (targets == label), axis=1)

    counts = jax.lax.map(count, jnp.asarray(labels, targets.dtype))
    return counts.T.astype(targets.dtype)
