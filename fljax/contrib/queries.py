r"""What a peer learns of another's data by queries: exercise 9.1 of Jung 2025.

Alice steps by :math:`w-\eta\big(\nabla L_A(w)+2\alpha a(w-m)\big)`, (129), (130), on the messages
:math:`m` that Bob sends, and shares the result. He chooses the messages of her steps, and her
gradients follow from the models that he receives; a quadratic loss :math:`w^\top Qw+q^\top w` is
known after ``D + 1`` exchanges, and with it the client it belongs to.

Shapes: ``T`` exchanges, ``K`` clients, ``D`` parameters.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import ArrayLike, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.audit.inversion import fitted_quadratic
from fljax.problems import Problem


class QueriedLoss(NamedTuple):
    """A quadratic loss as far as gradients determine it."""

    second_moment: np.ndarray  # [D, D]  Q
    linear: np.ndarray  # [D]  q
    determined: bool  # whether exchanges determine it; else it is the fit of least norm


@checked
def queried_loss(
    models: Float[np.ndarray, "models dim"],
    messages: Float[np.ndarray, "exchanges dim"],
    step_size: float,
    pull: float,
) -> QueriedLoss:
    r"""Return the quadratic loss of a peer, from its models and the messages sent to it in between.

    .. math:: \nabla L(w_t)=\frac{w_t-w_{t+1}}\eta-2\alpha a\,(w_t-m_t)=2Qw_t+q

    solved by least squares over all exchanges, on the host in double precision. Without noise
    ``D + 1`` exchanges leave only rounding errors, if messages moved the models in all directions.
    With noise on the models (190) the error decreases with the number and the size of exchanges;
    with the noise of a budget it is as large as that budget requires
    (:func:`fljax.contrib.sharing_noise`).

    Args:
      models: ``[T + 1, D]``, all models that the peer shared, in order.
      messages: ``[T, D]``, the message it received before each model but the first.
      step_size: :math:`\eta>0`, known to both.
      pull: :math:`\alpha a\ge0`, the coupling times the weight of their edge.

    Raises:
      ValueError: other than one more model than messages.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> quadratic, linear = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, -1.0])
      >>> models, messages = [np.zeros(2)], rng.normal(size=(3, 2))
      >>> for message in messages:
      ...     gradient = 2 * quadratic @ models[-1] + linear
      ...     models.append(models[-1] - 0.1 * (gradient + 2 * (models[-1] - message)))
      >>> loss = queried_loss(np.array(models), messages, step_size=0.1, pull=1.0)
      >>> loss.second_moment.round(9).tolist(), loss.linear.round(9).tolist(), loss.determined
      ([[2.0, 1.0], [1.0, 3.0]], [1.0, -1.0], True)

    Reference:
      Jung 2025, exercise 9.1.
    """
    if len(models) != len(messages) + 1 or np.shape(models)[1] != np.shape(messages)[1]:
        raise ValueError(
            "there must be one model more than messages, with as many parameters, got shapes "
            f"{np.shape(models)} and {np.shape(messages)}."
        )
    checks.positive("step_size", step_size)
    checks.nonnegative("pull", pull)
    for name, values in (("models", models), ("messages", messages)):
        checks.finite(name, values)
    shared = np.asarray(models, np.float64)
    sent = np.asarray(messages, np.float64)
    before = shared[:-1]
    gradients = (before - shared[1:]) / step_size - 2 * pull * (before - sent)
    loss, rank = fitted_quadratic(before, gradients)
    return QueriedLoss(*loss, determined=rank == shared.shape[1] + 1)


@checked
def matched_client(problem: Problem, quadratic: Any, linear: Any) -> int:
    r"""Return the client a loss belongs to: the one of nearest :math:`Q` and :math:`q`.

    It has the least sum of squared differences of all numbers in :math:`Q^{(k)}` and
    :math:`q^{(k)}`, each relative to its spread over the clients.

    Args:
      problem: of linear models, with a squared loss.
      quadratic: ``[D, D]``.
      linear: ``[D]``.

    Returns:
      The client's number.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=10, samples=5, dim=2)
      >>> q = -2 * problem.correlation(problem.targets)
      >>> matched_client(problem, problem.second_moment()[3], q[3])
      3
    """
    quadratic = checks.array("quadratic", quadratic)
    linear = checks.array("linear", linear)
    if np.shape(quadratic) != (problem.dim, problem.dim) or np.shape(linear) != (problem.dim,):
        raise ValueError(
            f"quadratic and linear must be of the problem's {problem.dim} parameters, got shapes "
            f"{np.shape(quadratic)} and {np.shape(linear)}."
        )
    checks.finite("quadratic", quadratic)
    checks.finite("linear", linear)

    def numbers(quadratic: ArrayLike, linear: ArrayLike) -> np.ndarray:
        square = np.asarray(quadratic, np.float64)
        line = np.asarray(linear, np.float64)
        return np.concatenate([square.reshape(*line.shape[:-1], -1), line], axis=-1)

    of_clients = numbers(problem.second_moment(), -2 * problem.correlation(problem.targets))
    spread = np.std(of_clients, axis=0)
    differences = (of_clients - numbers(quadratic, linear)) / np.where(spread > 0, spread, 1)
    return int(np.argmin(np.sum(differences**2, axis=1)))
