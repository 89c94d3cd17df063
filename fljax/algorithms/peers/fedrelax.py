"""FedRelax: exact minimization of coupled models, node by node (Jung 2025)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import spd_inverse
from fljax._module import module, replace, static
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Needs, algorithm
from fljax.algorithms.peers.best_response import best_response
from fljax.algorithms.peers.networked_iteration import Coupled, NetworkState
from fljax.graphs import Graph
from fljax.problems import GTVMin, Penalty, Problem, SquaredNorm
from fljax.problems.solvers import factorize, is_quadratic, prox, strong_convexity
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["FedRelax"]


class Heard(NamedTuple):
    """What a node has of its neighbors where it looks at them one by one."""

    messages: Array  # [K, S, D]
    weights: Array  # [K, S]  of the edges that they were heard over, zero of empty slots


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

        w_k\leftarrow\arg\min_w f_k(w)+\alpha\sum_{l\in\mathcal N_k}a_{kl}\,\phi(w-w_l),\qquad
        \phi(u)=\|u\|^2

    The nonlinear Jacobi method for GTVMin; it has no step size. It is the prox of :math:`f_k` with
    the weight :math:`2\alpha d_k` at the neighbors' mean, one linear solve, factorized once, for
    squared losses with no or a squared regularizer, and inner iterations from the last model
    otherwise. A node without labels takes its neighbors' mean, one without neighbors minimizes
    its own loss. For strongly convex :math:`f_k` each round brings the largest distance from the
    solution down by :math:`1/(1+\sigma/(2\alpha d_k))` or better, whoever is absent or late (133).
    (The source's middle line of (123) is of :math:`\alpha/2`; this is its last.)

    With another penalty it is the update (170): a node weighs its neighbors' messages itself, and
    no aggregator does. With the norm a message pulls with a force of :math:`\alpha a_{kl}` at most,
    whatever it says, and a node without labels takes the geometric median of its neighbors (175):
    what a minority sends cannot move it far. But nodes that are optimal given each other need not
    be so together where a penalty has a corner, and rounds need not reach GTVMin's solution, from
    which metrics measure; that is for :class:`~fljax.problems.GTVMin`.

    Args:
      coupling: :math:`\alpha\ge0`; for squared losses also ``[D]``, of each parameter, zero for one
        that stays private. These systems are ``[K, D, D]``, however few the samples.
      inner_iterations: of the solver where there is no closed form, among them those of another
        penalty.
      penalty: :math:`\phi`, see :mod:`fljax.problems.variation`. Other than squared, every round
        factorizes anew, and all messages are in memory side by side.

    Raises:
      ValueError: a coupling of another shape, or of each parameter where there is no closed form;
        a penalty of other parameters; a node with neither neighbors nor samples enough for a
        model; a problem that clips gradients; beside another penalty than the squared norm, an
        aggregator or noise that cancels in means.

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

      The center of a star, without labels, hears seven others, two of which send anything:

      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=8, samples=9, dim=2)
      >>> def error(penalty):
      ...     simulation = fl.Simulation(
      ...         problem=problem.weighing([0.0] + 7 * [1.0]),
      ...         network=fl.graphs.star(8),
      ...         algorithm=fl.algorithms.FedRelax(0.1, penalty=penalty),
      ...         attack=fl.attacks.Constant(jax.numpy.arange(8) > 5, value=1e6),
      ...     )
      ...     return abs(fl.run(simulation, rounds=20).model[0]).max()
      >>> bool(error(fl.problems.SquaredNorm()) > 1e4), bool(error(fl.problems.Norm()) < 10)
      (True, True)

    Reference:
      Jung 2025, Algorithm 11, (123), and (132), (170), (172), (175).
    """

    coupling: Any
    inner_iterations: int = static(default=100)
    penalty: Penalty = SquaredNorm()

    def validate(self) -> None:
        super().validate()
        _check.count("inner_iterations", self.inner_iterations)
        _check.kind("penalty", self.penalty, Penalty)
        _check.registered("penalty", self.penalty)
        if np.ndim(self.coupling) and self.one_by_one:
            raise ValueError(
                "a coupling of each parameter needs the squared penalty, got "
                f"{type(self.penalty).__name__}; Mixture and Blocks give parts of a model "
                "strengths of their own."
            )

    @property
    def one_by_one(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not isinstance(self.penalty, SquaredNorm)

    def check(self, problem: Any, network: Graph) -> None:
        super().check(problem, network)
        self.penalty.check(problem.dim)
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

    def optimum(self, problem: Problem, network: Graph) -> Float[Array, "clients dim"]:
        coupling = jnp.asarray(self.coupling, problem.dtype)
        return GTVMin(replace(problem, clip=None), network, coupling, self.penalty).solve()

    def prepared(self, problem: Any, network: Graph) -> Any:
        return None if self.one_by_one else self._factor(problem, network.degree)

    def init(self, problem: Problem | Stream, network: Graph) -> NetworkState:
        state = super().init(problem, network)
        if not self.one_by_one:
            return state
        neighbors, weights = network.neighbor_table()
        return state._replace(heard=Heard(state.model[neighbors], weights))

    def step(self, state: NetworkState, now: Round) -> NetworkState:
        if not self.one_by_one:
            return super().step(state, now)
        model = self.operator(state, now)
        _, inbox = now.link.exchange(model)
        weights = now.network.neighbor_table()[1]
        heard = Heard(inbox.messages(over=now.network), weights)
        return NetworkState(model, heard, now.network.degree, None)

    def _factor(self, problem: Problem, degree: Float[Array, " clients"]) -> Any:
        pull = self._pull(degree)
        if pull.shape[1] == 1:
            return factorize(problem, pull[:, 0])
        shift = pull + strong_convexity(problem)[:, None]
        system = 2 * problem.second_moment() + jax.vmap(jnp.diag)(shift)
        return Blocks(spd_inverse(system), 2 * problem.correlation(problem.targets))

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        problem, pull = now.problem, self._pull(state.degree)
        if self.one_by_one:
            messages, weights = state.heard
            strengths = jnp.asarray(self.coupling, weights.dtype) * weights
            model = best_response(problem, self.penalty, messages, strengths, self.inner_iterations)
            return self._kept(problem, pull, state.model, model)
        factor = self._factor(problem, state.degree) if now.changing else state.kept
        if isinstance(factor, Blocks):
            right = factor.moment + pull * state.heard
            model = jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
        else:
            model = prox(problem, factor, state.heard, state.model, self.inner_iterations)
        return self._kept(problem, pull, state.model, model)

    def _kept(self, problem: Problem, pull: Array, before: Array, after: Array) -> Array:
        """The new models, but of nodes that have nothing to make one of."""
        lone = _lone(problem, pull + strong_convexity(problem)[:, None])
        return jnp.where(lone[:, None], before, after)


def _lone(problem: Problem, shift: Any) -> Array:
    """Which nodes have neither labels nor anything else to have a model from."""
    return (jnp.sum(jnp.asarray(problem.weights), axis=1) == 0) & jnp.all(shift == 0, axis=1)
