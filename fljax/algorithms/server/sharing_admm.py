r"""Sharing ADMM: vertical federated learning; clients hold columns and send predictions."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, replace
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.solvers import response
from fljax.problems.vertical import columns_of


class SharingADMMState(NamedTuple):
    """State of sharing ADMM between rounds."""

    model: Array  # [K, D]  w_k, of each client's own columns
    predicted: Array  # [K, N]  p_k
    sent: Array  # [K, N]  its last message at the server
    dual: Array  # [N]  u, scaled
    requested: Array  # [N]  by how much the server asks each client to move its predictions
    response: Array  # [K, D, N]  of the clients' own regressions, constant


def _check_same_weights(weights: object) -> None:
    weights = np.asarray(weights)
    if np.any(np.abs(weights - weights[:1]) > 1e-6 * weights.max()):
        raise ValueError(
            "clients must hold columns of the same samples with the same weights, but their "
            "weights of samples differ; make the problem with fljax.problems.vertical."
        )


@algorithm(
    "Sharing ADMM",
    ("boyd2011", "jung2025"),
    Needs(None, absent=True, minimizer=True, quadratic=True),
)
@module
class SharingADMM(Algorithm):
    r"""Least squares on a table whose columns are held by different clients.

    The server, which has the labels, requests a change :math:`v=\bar z-\bar p-u` of all clients'
    predictions :math:`p_k=X_kw_k`; each fits it with its columns, and sends its new predictions:

    .. math::

        w_k&\leftarrow\arg\min_w\frac\lambda KR(w)+\frac\rho{2m}\|X_kw-(p_k+v)\|^2\\
        \bar z&\leftarrow\frac{2y+\rho(\bar p+u)}{2K+\rho},\qquad u\leftarrow u+\bar p-\bar z,
            \qquad\bar p=\frac1K\sum_kp_k

    Neither features nor parameters are ever sent, nor the labels. (Boyd's augmented term is divided
    by :math:`m`, as the mean loss is, so that the same penalty suits any number of samples.) The
    method converges to the pooled solution; if it is not unique, to one with the same predictions.
    For a client that is unavailable, or whose message is lost, the server uses its last message.

    Args:
      penalty: :math:`\rho>0`; about 2 is a reasonable first choice.

    Raises:
      ValueError: clients with samples of their own, or penalties; an objective that is not
        quadratic.

    Example:
      >>> import jax, fljax as fl
      >>> k_x, k_y = jax.random.split(jax.random.key(0))
      >>> table, labels = jax.random.normal(k_x, (30, 5)), jax.random.normal(k_y, (30,))
      >>> simulation = fl.Simulation(
      ...     fl.problems.vertical(table, labels, columns=[[0, 1], [2], [3, 4]]),
      ...     fl.algorithms.SharingADMM(penalty=2.0),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=80).normalized_error[-1] < 1e-6)
      True

    Reference:
      Boyd et al. 2011, section 8.3; Jung 2025, Exercise 6.2.
    """

    penalty: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)

    def check(self, problem: Problem, network: Network) -> None:
        if problem.loss.outputs > 1:
            raise ValueError(f"{self.label} is for models with one prediction a sample.")
        if np.ndim(problem.strength):
            raise ValueError(
                "the parameters of all clients are those of one model, with one penalty; give the "
                f"problem one strength, got one for each of {problem.clients} clients."
            )
        checks.check_when_concrete(_check_same_weights, problem.weights)

    def init(self, problem: Problem, network: Network) -> SharingADMMState:
        scale = 2 / jnp.asarray(self.penalty)
        scaled = replace(problem, strength=jnp.asarray(problem.strength) * scale)
        zero = jnp.zeros((problem.clients, problem.samples), problem.dtype)
        dual, requested = self._server(zero, zero[0], problem)
        model = start_models(problem)
        predicted = problem.predictions(model)
        return SharingADMMState(model, predicted, zero, dual, requested, response(scaled))

    def _server(self, predictions: Array, dual: Array, problem: Problem) -> tuple[Array, Array]:
        mean = jnp.mean(predictions, axis=0)
        labels = jnp.sum(problem.targets, axis=0)
        penalty = jnp.asarray(self.penalty)
        wanted = (2 * labels + penalty * (mean + dual)) / (2 * problem.clients + penalty)
        dual = dual + mean - wanted
        return dual, wanted - mean - dual

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: SharingADMMState, now: Round) -> SharingADMMState:
        problem = now.problem
        active = now.available[:, None]
        requested = now.link.publish(state.requested)
        goal = state.predicted + requested[None]
        model = jnp.einsum("kpn,kn->kp", state.response, goal, precision=HIGHEST)
        model = jnp.where(active, model, state.model)
        predicted = problem.predictions(model)
        predictions = now.link.stored(now.link.send(predicted, sending=now.available), state.sent)
        dual, requested = self._server(predictions, state.dual, problem)
        return SharingADMMState(model, predicted, predictions, dual, requested, state.response)

    def optimum(self, problem: Problem, network: Network) -> Float[Array, "clients dim"]:
        """Return each client's part of the pooled solution."""
        pooled_problem = columns_of(problem)
        pooled = jnp.einsum(
            "kpn,kn->kp", response(pooled_problem), pooled_problem.targets, precision=HIGHEST
        )
        return pooled.reshape(problem.clients, -1)
