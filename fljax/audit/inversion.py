r"""Gradient inversion: reconstruction of a client's data from the gradients that it sends.

A gradient of squared error is affine in the model, so :math:`D+1` of them determine the loss
(:func:`quadratic`). One gradient of a neural network has far more numbers than a sample, and
samples with the same gradient are found by optimization (:func:`invert`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.numerics import default_promotion
from fljax.problems import Model, Softmax

#: Measures of the difference of gradients.
MATCHING = ("squared", "cosine")


class Quadratic(NamedTuple):
    r"""A local loss :math:`w^\top Qw+q^\top w`, up to a constant."""

    second_moment: np.ndarray  # [D, D]  Q
    linear: np.ndarray  # [D]  q

    @property
    def minimizer(self) -> np.ndarray:
        """The minimizer ``[D]`` of least norm."""
        return np.linalg.lstsq(2 * self.second_moment, -self.linear, rcond=None)[0]


@checked
def quadratic(models: Float[Any, "count dim"], gradients: Float[Any, "count dim"]) -> Quadratic:
    r"""Return the local loss :math:`w^\top Qw+q^\top w` of a linear model from its gradients.

    It solves :math:`g_n=2Qw_n+q`, for models with :math:`D+1` of them in general position. For
    squared error :math:`Q=\frac1mX^\top X` and :math:`q=-\frac2mX^\top y`, and the data themselves
    are known up to a rotation of the samples. The iterates of gradient steps can be used:
    :math:`g_n=(w_n-w_{n+1})/\eta`. Computed in double precision on the host.

    Args:
      models: ``[n, D]``, at which gradients were taken.
      gradients: ``[n, D]``, of the local loss there, without a regularizer.

    Raises:
      ValueError: shapes that do not match, or fewer than ``D + 1`` models in general position.

    Example:
      >>> import fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=1, samples=9, dim=2)
      >>> models = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
      >>> gradients = jax.vmap(lambda w: problem.gradient(w[None])[0])(models)
      >>> loss = quadratic(models, gradients)
      >>> np.allclose(loss.second_moment, problem.second_moment()[0], atol=1e-5)
      True

    Reference:
      Jung 2025, Exercises 9.1 and 10.1.
    """
    checks.finite("models", models)
    checks.finite("gradients", gradients)
    w, g = (np.asarray(a, np.float64) for a in (models, gradients))
    if w.ndim != 2 or w.shape != g.shape:
        raise ValueError(
            f"models and gradients must be [count, dim], one of each, got shapes {w.shape} and "
            f"{g.shape}."
        )
    fitted, rank = fitted_quadratic(w, g)
    needed = w.shape[1] + 1
    if rank < needed:
        raise ValueError(
            f"the loss of a problem with {needed - 1} parameters needs gradients at {needed} "
            f"models in general position, got {len(w)} models whose rank with a constant is "
            f"{rank}; query at others too."
        )
    return fitted


def fitted_quadratic(models: np.ndarray, gradients: np.ndarray) -> tuple[Quadratic, int]:
    """The loss of least norm with the nearest gradients; the rank of the models and a constant."""
    dim = models.shape[1]
    # Models in units of their largest entry, comparable to the constant's column of ones: else the
    # rank would count a column of rounding errors, or miss a direction.
    unit = max(float(np.abs(models).max(initial=0)), np.finfo(float).tiny)
    rows = np.column_stack([2 * models / unit, np.ones(len(models))])
    solved, _, rank, _ = np.linalg.lstsq(rows, gradients)
    square = solved[:dim] / unit
    return Quadratic((square + square.T) / 2, solved[dim]), int(rank)


class Inverted(NamedTuple):
    """An attacker's reconstruction of a client's samples."""

    features: Array  # [N, ...]
    labels: Array  # [N]
    mismatch: Array  # []  of the gradients, as they were compared


@checked
def invert(
    problem: Model,
    model: Float[Array, " dim"],
    gradient: Float[Array, " dim"],
    key: Key[Array, ""],
    *,
    samples: int = 1,
    matching: str = "squared",
    labels: Int[Any, " samples"] | None = None,
    smoothness: float = 0.0,
    steps: int = 1000,
    step_size: float = 0.1,
    restarts: int = 4,
) -> Inverted:
    r"""Return samples whose gradient is the one that a client sent, by descent on their features.

    Starting from noise, it computes features :math:`x` and (unless known) label probabilities
    :math:`p` that minimize, with the gradient :math:`g(x,p)` of their mean loss,

    .. math:: \|g(x,p)-g\|^2\quad\text{(DLG)}\qquad\text{or}\qquad
              1-\frac{\langle g(x,p),g\rangle}{\|g(x,p)\|\,\|g\|}+s\,\mathrm{TV}(x)
              \quad\text{(cosine)}.

    Both use Adam, the cosine with signs of gradients as its authors do, and the best of several
    starts is returned. The cosine does not depend on norms, so clipping does not protect from it.

    Args:
      problem: a neural network with :class:`~fljax.problems.Softmax`, whose architecture and shape
        of samples the attacker knows. Its data are not used.
      model: ``[D]``, the model that the client received.
      gradient: ``[D]``, the gradient that it sent: for a gradient step of size :math:`\eta` the
        difference divided by :math:`\eta`.
      key: of the starts; consumed.
      samples: number of samples in the client's gradient.
      matching: ``"squared"`` or ``"cosine"``.
      labels: ``[samples]``, where they are known.
      smoothness: :math:`s\ge0`, the weight of the total variation of images ``[H, W]`` or
        ``[H, W, C]``; only with the cosine.
      steps: number of descent steps.
      step_size: of Adam, in the units of features.
      restarts: number of starts.

    Raises:
      ValueError: a problem without Softmax, another matching, counts below 1, labels that do not
        exist, a smoothness with squared differences or for samples that are not images.

    Example:
      >>> import fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=1, samples=1, dim=4, classes=3)
      >>> problem = fl.problems.Model.of(data, fl.models.mlp(3, hidden=[32]), jax.random.key(1))
      >>> model = problem.initial
      >>> gradient = problem.loss_gradient(model[None])[0]
      >>> inverted = invert(
      ...     problem, model, gradient, jax.random.key(2), matching="cosine", steps=500
      ... )
      >>> bool(jnp.abs(inverted.features - problem.features[0]).max() < 0.01)
      True

    Reference:
      Zhu et al. 2019, Algorithm 1; Geiping et al. 2020, (4).
    """
    checks.finite("model", model)
    checks.finite("gradient", gradient)
    checks.choice("matching", matching, MATCHING)
    for name, value in (("samples", samples), ("steps", steps), ("restarts", restarts)):
        checks.count(name, value)
    checks.positive("step_size", step_size)
    checks.nonnegative("smoothness", smoothness)
    if not isinstance(problem.loss, Softmax):
        raise ValueError(
            "labels can be reconstructed for a problem with Softmax, as probabilities of its "
            f"classes, got {type(problem.loss).__name__}."
        )
    for name, value in (("model", model), ("gradient", gradient)):
        if np.shape(value) != (problem.dim,):
            raise ValueError(
                f"{name} must be a row of the network's {problem.dim} parameters, got shape "
                f"{np.shape(value)}."
            )
    shape = tuple(problem.features.shape[2:])
    if smoothness and (matching == "squared" or len(shape) not in (2, 3)):
        raise ValueError(
            "smoothness= needs images, [H, W] or [H, W, C], and matching='cosine'; got samples of "
            f"shape {shape} and matching={matching!r}."
        )
    classes = problem.loss.classes
    dtype = problem.dtype
    wanted = jnp.asarray(gradient, dtype)
    if labels is not None:
        labels = jnp.asarray(labels, jnp.int32)
        if labels.shape != (samples,) or bool(jnp.any((labels < 0) | (labels >= classes))):
            raise ValueError(
                f"labels must be one of 0 to {classes - 1} for each of the {samples} samples, got "
                f"{checks.shown(labels)}."
            )

    def probabilities(scores: Array) -> Array:
        if labels is not None:
            return jax.nn.one_hot(labels, classes, dtype=dtype)
        return jax.nn.softmax(scores, axis=-1)

    def loss(row: Array, features: Array, target: Array) -> Array:
        with default_promotion():
            outputs = problem.architecture.apply(problem.parameters(row), features)
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(outputs, axis=-1), axis=-1))

    def mismatch(guess: tuple[Array, Array]) -> Array:
        features, scores = guess
        gradient_now = jax.grad(loss)(model, features, probabilities(scores))
        if matching == "squared":
            return jnp.sum((gradient_now - wanted) ** 2)
        size = jnp.sqrt(jnp.sum(gradient_now**2) * jnp.sum(wanted**2))
        return 1 - jnp.sum(gradient_now * wanted) / jnp.maximum(size, jnp.finfo(dtype).tiny)

    def objective(guess: tuple[Array, Array]) -> Array:
        distance = mismatch(guess)
        return distance + smoothness * _total_variation(guess[0]) if smoothness else distance

    # As Geiping et al. do: steps a tenth as long from 3/8, 5/8 and 7/8 of all steps on.
    falls = {int(steps * part): 0.1 for part in (3 / 8, 5 / 8, 7 / 8)}
    adam = optax.adam(optax.piecewise_constant_schedule(step_size, falls))

    def descend(key: Array) -> tuple[Array, tuple[Array, Array]]:
        k_features, k_scores = jax.random.split(key)
        start = (
            jax.random.normal(k_features, (samples, *shape), dtype),
            0.1 * jax.random.normal(k_scores, (samples, classes), dtype),
        )

        def step(carry: PyTree, _: object) -> tuple[Any, None]:
            guess, moments, least, best = carry
            value, gradient = jax.value_and_grad(objective)(guess)
            better = value < least
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), guess, best)
            if matching == "cosine":
                gradient = jax.tree.map(jnp.sign, gradient)
            with default_promotion():
                change, moments = adam.update(gradient, moments, guess)
            return (
                optax.apply_updates(guess, change),
                moments,
                jnp.minimum(value, least),
                best,
            ), None

        infinite = jnp.asarray(jnp.inf, dtype)
        carry = (start, adam.init(start), infinite, start)
        (_, _, least, best), _ = jax.lax.scan(step, carry, length=steps)
        return least, best

    least, guesses = jax.jit(jax.vmap(descend))(jax.random.split(key, restarts))
    first = jnp.argmin(least)
    features, scores = jax.tree.map(lambda a: a[first], guesses)
    classes_found = jnp.argmax(scores, axis=-1).astype(jnp.int32) if labels is None else labels
    return Inverted(features, classes_found, mismatch((features, scores)))


def _total_variation(images: Float[Array, "samples height width *depth"]) -> Array:
    """Mean absolute difference of neighboring pixels."""
    down, right = (jnp.abs(jnp.diff(images, axis=axis)) for axis in (1, 2))
    return jnp.mean(down) + jnp.mean(right)


@checked
def peak_ratio(
    estimate: Float[Any, "guesses ..."], truth: Float[Any, "samples ..."], peak: float = 1.0
) -> float:
    r"""Return the peak signal-to-noise ratio of an estimate, in dB.

    It is :math:`10\log_{10}(r^2/\mathrm{MSE})` for features of range :math:`r`. Samples have no
    order, and each true sample is compared with the nearest estimate.

    Args:
      estimate: ``[M, ...]``.
      truth: ``[N, ...]``, of samples of the same shape.
      peak: :math:`r`.

    Returns:
      The ratio of the sample with the nearest estimate.

    Raises:
      ValueError: samples of different shapes, or not finite.

    Example:
      >>> round(peak_ratio(np.zeros((1, 4)), np.full((2, 4), 0.1)), 6)
      20.0
    """
    checks.positive("peak", peak)
    if np.shape(estimate)[1:] != np.shape(truth)[1:]:
        raise ValueError(
            f"estimate and truth must be of samples of one shape, got {np.shape(estimate)[1:]} and "
            f"{np.shape(truth)[1:]}."
        )
    checks.finite("estimate", estimate)
    checks.finite("truth", truth)
    estimates, truths = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (estimate, truth))
    distance = np.mean((truths[:, None] - estimates[None]) ** 2, axis=2)
    with np.errstate(divide="ignore"):
        return float(20 * np.log10(peak) - 10 * np.log10(distance.min()))
