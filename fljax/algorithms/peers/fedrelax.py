"""FedRelax: exact minimization of coupled models, node by node (Jung 2025)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import spd_inverse
from fljax._module import module, static
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Needs, algorithm
from fljax.algorithms.peers.networked_iteration import Coupled, NetworkState
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.solvers import factorize, is_quadratic, prox, strong_convexity
from fljax.rounds import Round

__all__ = ["FedRelax"]


class Blocks(NamedTuple):
    """What a quadratic minimization shares with the next where parameters are coupled unequally."""

    inverse: Array  # [K, D, D]
    moment: Array  # [K, D]  2 sum_j weight_j x_j y_j


@algorithm(
    "FedRelax",
    "jung2025",
    Needs(absent=True, late=True, averages=True, changing=True, minimizer=True),
)
@module
class FedRelax(Coupled):
    r"""Every node takes the best model for its loss and its neighbors' models: FedRelax.

    .. math::

        w_k\leftarrow\arg\min_w f_k(w)+\alpha\sum_{l\in\mathcal N_k}a_{kl}\|w-w_l\|^2

    The nonlinear Jacobi method for GTVMin; it has no step size. It is the prox of :math:`f_k` with
    the weight :math:`2\alpha d_k` at the neighbors' mean, one linear solve, factorized once, for
    squared losses with no or a squared regularizer, and inner iterations from the last model
    otherwise. A node without labels takes its neighbors' mean, one without neighbors minimizes
    its own loss. For strongly convex :math:`f_k` each round brings the largest distance from the
    solution down by :math:`1/(1+\sigma/(2\alpha d_k))` or better, whoever is absent or late (133).
    (The source's middle line of (123) is of :math:`\alpha/2`; this is its last.)

    Args:
      coupling: :math:`\alpha\ge0`; for squared losses also ``[D]``, of each parameter, zero for one
        that stays private. These systems are ``[K, D, D]``, however few the samples.
      inner_iterations: of the solver where there is no closed form.

    Raises:
      ValueError: a coupling of another shape, or of each parameter where there is no closed form;
        a node with neither neighbors nor samples enough for a model; a problem that clips
        gradients.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.FedRelax(coupling=0.5),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=30).normalized_error[-1] < 1e-6)
      True

    Reference:
      Jung 2025, Algorithm 11, (123), and (132), (172).
    """

    coupling: Any
    inner_iterations: int = static(default=100)

    def validate(self) -> None:
        super().validate()
        _check.count("inner_iterations", self.inner_iterations)

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        if np.ndim(self.coupling) and not is_quadratic(problem):
            raise ValueError(
                "parameters can be coupled unequally where a node's problem has a closed form, "
                f"which that of {type(problem.loss).__name__} with "
                f"{type(problem.regularizer).__name__} has not; give one number as coupling, or "
                "take FedGD."
            )
        known = problem.features, problem.weights, problem.share, network.degree, self.coupling
        if all(_check.is_concrete(value) for value in known):
            self._check_determined(problem, network)

    def _check_determined(self, problem: Problem, network: Graph) -> None:
        """Raise ``ValueError`` for a node whose minimizer is not unique."""
        with jax.ensure_compile_time_eval():  # the data may be known while others are traced
            shift = self._pull(network.degree) + strong_convexity(problem)[:, None]
            shift = np.broadcast_to(np.asarray(shift), (problem.clients, problem.dim))
            free = np.any(shift == 0, axis=1) & ~np.asarray(_lone(problem, shift))
            width = problem.dim // problem.loss.outputs
            for k in np.flatnonzero(free):
                real = np.asarray(problem.weights)[k] > 0
                rows = jnp.asarray(problem.features[k])
                rows = rows if problem.feature_map is None else problem.feature_map(rows)
                determined = np.eye(width)[np.reshape(shift[k], (-1, width)).min(axis=0) > 0]
                rows = np.concatenate([np.asarray(rows)[real], determined])
                if np.linalg.matrix_rank(rows) < width:
                    raise ValueError(
                        f"node {k} has {real.sum()} samples and {width} features, and of what "
                        "these leave open no neighbor says anything: its minimizer is not unique. "
                        "Couple it (coupling > 0, an edge), or give the problem a regularizer."
                    )

    def prepared(self, problem: Any, network: Graph) -> Any:
        return self._factor(problem, network.degree)

    def _factor(self, problem: Problem, degree: Float[Array, " clients"]) -> Any:
        pull = self._pull(degree)
        if pull.shape[1] == 1:
            return factorize(problem, pull[:, 0])
        shift = pull + strong_convexity(problem)[:, None]
        system = 2 * problem.second_moment() + jax.vmap(jnp.diag)(shift)
        return Blocks(spd_inverse(system), 2 * problem.correlation(problem.targets))

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        problem, pull = now.problem, self._pull(state.degree)
        factor = self._factor(problem, state.degree) if now.changing else state.kept
        if isinstance(factor, Blocks):
            right = factor.moment + pull * state.heard
            model = jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
        else:
            model = prox(problem, factor, state.heard, state.model, self.inner_iterations)
        lone = _lone(problem, pull + strong_convexity(problem)[:, None])
        return jnp.where(lone[:, None], state.model, model)


def _lone(problem: Problem, shift: Any) -> Array:
    """Which nodes have neither labels nor anything else to have a model from."""
    return (jnp.sum(jnp.asarray(problem.weights), axis=1) == 0) & jnp.all(shift == 0, axis=1)
