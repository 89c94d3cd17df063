r"""Training, validation and diagnosis of every client's local model (Jung 2025, Algorithm 1).

The basic workflow of machine learning, for all clients together: split the data
(:meth:`Problem.split <fljax.problems.Problem.split>`), train on one part, compare the errors on
both parts with each other and with a reference, and change data, model or loss accordingly.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax._core.numerics import HIGHEST
from fljax.problems.objectives import LeastSquares
from fljax.problems.problem import Problem
from fljax.problems.solvers import (
    factorize,
    is_quadratic,
    iterates_predictions,
    prox,
    response,
    strong_convexity,
)


@checked
def train(
    problem: Problem, iterations: int = 1000, ridge: Float[Array, ""] | float | None = None
) -> Float[Array, "clients dim"]:
    r"""Each client's own minimizer :math:`\arg\min_wf_k(w)`: empirical risk minimization (20).

    In closed form for squared losses, with the minimizer of least norm where it is not unique (the
    pseudo-inverse :math:`X^\dagger y`); otherwise iteratively.

    Args:
      problem: the clients'; its clipping is ignored.
      iterations: maximum number of iterations, where no closed form exists.
      ridge: :math:`\epsilon>0`, minimize :math:`f_k(w)+\epsilon\lVert w\rVert^2` instead, whose
        minimizer is unique even where samples are few, so that clients can be compared by it.

    Raises:
      ValueError: a ridge that is not positive; without a ridge, a loss other than the squared one
        without a regularizer and with fewer samples than parameters, since the minimizer is not
        unique.

    Example:
      >>> import numpy as np, fljax as fl
      >>> x, y = np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([3.0, 5.0])
      >>> problem = fl.problems.from_clients([(x, y), (x[:1], y[:1])], fl.problems.LeastSquares())
      >>> np.asarray(fl.problems.train(problem), float).round(3).tolist()
      [[1.0, 2.0], [1.5, 1.5]]

    Reference:
      Jung 2025, Algorithm 1, (20); section 2.5, (22)-(24), for ridge; section 7.2 for the
      comparison of clients.
    """
    checks.count("iterations", iterations)
    problem = replace(problem, clip=None, feature_bound=None, statistics=None).mapped()
    start = jnp.zeros((problem.clients, problem.dim), problem.dtype)
    if ridge is not None:
        checks.positive("ridge", ridge)
        factor = factorize(problem, jnp.full(problem.clients, 2 * ridge, problem.dtype))
        return prox(problem, factor, start, start, iterations)
    if is_quadratic(problem):
        targets = jnp.asarray(problem.targets)
        return jnp.einsum("kpn,kn->kp", response(problem), targets, precision=HIGHEST)
    unpulled = problem.regularizer.quadratic() == 0 or _is_zero(strong_convexity(problem))
    if iterates_predictions(problem) and unpulled:
        raise ValueError(
            f"with {problem.samples} samples and {problem.dim} parameters the "
            f"{type(problem.loss).__name__} loss has no one minimizer; give the problem a "
            "regularizer, such as SquaredL2() with a strength > 0."
        )
    problem = problem.prepare()
    factor = factorize(problem, jnp.zeros(problem.clients, problem.dtype))
    return prox(problem, factor, start, start, iterations)


def _is_zero(value: object) -> bool:
    return checks.is_concrete(value) and not np.any(np.asarray(value) > 0)


class Validated(NamedTuple):
    """Result of training and validation, for each client."""

    model: Array  # [K, D]
    train_error: Array  # [K]  E_t, the mean loss on the training data
    validation_error: Array  # [K]  E_v, the mean loss on held-out data


@checked
def validate(problem: Problem, iterations: int = 1000) -> Validated:
    """Train every client locally, and evaluate it on its held-out data: Algorithm 1.

    Args:
      problem: a problem with held-out data, one set per client or common to all (``problem.split``,
        ``with_test``).
      iterations: as in :func:`train`.

    Returns:
      The models and their errors, without the regularizer's part.

    Raises:
      ValueError: a problem without held-out data; as :func:`train`.

    Example:
      >>> import jax, fljax as fl
      >>> key = jax.random.key(0)
      >>> problem = fl.problems.least_squares(key, clients=4, samples=30, dim=2)
      >>> checked = fl.problems.validate(problem.split(key, test=0.3))
      >>> bool((checked.validation_error > checked.train_error / 2).all())
      True

    Reference:
      Jung 2025, Algorithm 1.
    """
    test = problem.test
    if test is None:
        raise ValueError(
            "the problem has no held-out data to validate on; problem.split(key) holds out a part "
            "of each client's."
        )
    model = train(problem, iterations)
    if test.clients != problem.clients:
        together = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (problem.clients, *a.shape[1:])),
            (test.features, test.targets, test.weights),
        )
        names = ("features", "targets", "weights")
        test = replace(test, **dict(zip(names, together, strict=True)))
    total = jnp.sum(jnp.asarray(problem.weights), axis=1)
    training = replace(problem, statistics=None).mean_loss(model) / jnp.where(total > 0, total, 1)
    return Validated(model, training, replace(test, statistics=None).mean_loss(model))


class Diagnosis(enum.IntEnum):
    """Diagnosis from the errors of training and validation."""

    FINE = 0  #: about the reference; done
    OVERFITTING = 1  #: validation far above training; smaller model, more data, regularize
    UNDERFITTING = 2  #: alike, far above the reference; larger model, or a better optimizer
    UNLIKE = 3  #: training far above validation; different distributions, or an unlucky split


@checked
def diagnose(
    train_error: Float[Array, "*#clients"] | float,
    validation_error: Float[Array, "*#clients"] | float,
    reference: Float[Array, "*#clients"] | float,
    tolerance: Float[Array, ""] | float = 1.5,
) -> Int[Array, "..."]:
    r"""Diagnose each client by its errors: a :class:`Diagnosis`, which suggests what to change.

    ============================================  =================================================
    :math:`E_t\gg E_v`                            ``UNLIKE``
    :math:`E_v\gg E_t`                            ``OVERFITTING``
    :math:`E_t\approx E_v\gg E^{(\mathrm{ref})}`  ``UNDERFITTING``
    otherwise                                     ``FINE``
    ============================================  =================================================

    Args:
      train_error: :math:`E_t\ge0`, one number or ``[K]``.
      validation_error: :math:`E_v\ge0`.
      reference: :math:`E^{(\mathrm{ref})}\ge0`, the achievable error: the Bayes risk under a model
        of the data, or the error of an existing method or a human expert.
      tolerance: the factor that counts as "far above", > 1; the source does not specify it.

    Raises:
      ValueError: negative errors, a tolerance of one or less.

    Example:
      >>> import numpy as np, fljax as fl
      >>> errors = np.array([1.0, 0.1, 9.0]), np.array([1.1, 1.0, 9.5])
      >>> checked = fl.problems.diagnose(*errors, reference=1.0)
      >>> [fl.problems.Diagnosis(int(code)).name for code in checked]
      ['FINE', 'OVERFITTING', 'UNDERFITTING']

    Reference:
      Jung 2025, section 2.4.
    """
    errors = {
        "train_error": train_error,
        "validation_error": validation_error,
        "reference": reference,
    }
    for name, value in errors.items():
        checks.nonnegative(name, value)
    checks.interval("tolerance", tolerance, above=1)
    arrays = [jnp.asarray(checks.array(name, value)) for name, value in errors.items()]
    shapes = {np.shape(array) for array in arrays if np.ndim(array)}
    if len(shapes) > 1:
        given = ", ".join(f"{n} {np.shape(a)}" for n, a in zip(errors, arrays, strict=True))
        raise ValueError(f"errors must be one number or one for each client, got shapes {given}.")
    trained, validated, expected = jnp.broadcast_arrays(*jax.tree.map(jnp.atleast_1d, arrays))
    code = jnp.select(
        [
            trained > tolerance * validated,
            validated > tolerance * trained,
            validated > tolerance * expected,
        ],
        [int(kind) for kind in (Diagnosis.UNLIKE, Diagnosis.OVERFITTING, Diagnosis.UNDERFITTING)],
        int(Diagnosis.FINE),
    ).astype(jnp.int32)
    return code if max(map(np.ndim, arrays)) else code[0]


def check_squared(problem: Problem) -> None:
    if not isinstance(problem.loss, LeastSquares):
        raise ValueError(
            "additional samples act as a squared penalty for the squared loss only, got "
            f"{type(problem.loss).__name__}; give the problem regularizer=SquaredL2()."
        )


@checked
def with_ridge_samples(
    problem: Problem,
    penalty: Float[Array, ""] | float,
    towards: Float[Array, " dim"] | None = None,
) -> Problem:
    r"""Ridge regression as least squares on augmented data: each client has :math:`D` additional
    samples.

    Samples :math:`(\sqrt{m_k\alpha}\,e_j,\sqrt{m_k\alpha}\,\tilde w_j)`, with which
    the mean loss of all :math:`m_k+D` is :math:`\tfrac{m_k}{m_k+D}` times
    :math:`\tfrac1{m_k}\|y-Xw\|^2+\alpha\|w-\tilde w\|^2`.

    Args:
      problem: a problem with squared losses and equal sample weights within a client.
      penalty: :math:`\alpha>0`.
      towards: :math:`\tilde w`, ``[D]``; zero by default.

    Raises:
      ValueError: another loss, a penalty that is not positive, another shape.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=2, samples=3, dim=5)
      >>> fl.problems.with_ridge_samples(problem, 0.1).features.shape
      (2, 8, 5)

    Reference:
      Jung 2025, (22), (24) and (27) (Exercises 2.3 and 2.5).
    """
    check_squared(problem)
    checks.positive("penalty", penalty)
    problem = replace(problem, statistics=None).mapped()
    clients = problem.clients
    dim = problem.dim
    dtype = problem.dtype
    if towards is not None and np.shape(towards) != (dim,):
        raise ValueError(
            f"towards must be a model of shape {(dim,)}, got shape {np.shape(towards)}."
        )
    if towards is not None:
        checks.finite("towards", towards)
    goal = jnp.zeros(dim, dtype) if towards is None else jnp.asarray(towards, dtype)
    sizes = problem.sample_counts().astype(dtype)
    size = jnp.sqrt(sizes * jnp.asarray(penalty, dtype))[:, None]
    rows = size[..., None] * jnp.eye(dim, dtype=dtype)[None]
    weights = jnp.asarray(problem.weights)
    share = 1 / (sizes + dim)[:, None]
    more = jnp.broadcast_to(share * jnp.sum(weights, axis=1, keepdims=True), (clients, dim))
    return replace(
        problem,
        features=jnp.concatenate([problem.features, rows], axis=1),
        targets=jnp.concatenate([problem.targets, size * goal[None]], axis=1),
        weights=jnp.concatenate([weights * (sizes[:, None] * share), more], axis=1),
    )


@checked
def jittered(
    key: Key[Array, ""], problem: Problem, variance: Float[Array, ""] | float, copies: int
) -> Problem:
    r"""Each sample in several copies whose features have added Gaussian noise :math:`N(0,\alpha
    I)`: as the number of copies grows, least squares on them tends to ridge regression with
    :math:`\alpha` (23).

    Args:
      key: consumed.
      problem: a problem with squared losses.
      variance: :math:`\alpha>0`.
      copies: number of copies of each sample, >= 1.

    Raises:
      ValueError: another loss, a variance that is not positive.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=2, samples=3, dim=5)
      >>> fl.problems.jittered(jax.random.key(1), problem, 0.1, copies=4).features.shape
      (2, 12, 5)

    Reference:
      Jung 2025, (23).
    """
    check_squared(problem)
    checks.positive("variance", variance)
    checks.count("copies", copies)
    problem = replace(problem, statistics=None).mapped()
    features = jnp.tile(problem.features, (1, copies, 1))
    noise = jax.random.normal(key, features.shape, features.dtype)
    return replace(
        problem,
        features=features + jnp.sqrt(jnp.asarray(variance, features.dtype)) * noise,
        targets=jnp.tile(problem.targets, (1, copies)),
        weights=jnp.tile(jnp.asarray(problem.weights) / copies, (1, copies)),
    )
