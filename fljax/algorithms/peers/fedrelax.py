"""FedRelax: each node minimizes exactly given its neighbors' models (Jung 2025)."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.linalg import spd_inverse
from fljax._core.module import as_given, field, module, replace, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.best_response import best_response
from fljax.algorithms.peers.networked_iteration import Coupled, NetworkState
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import GTVMin, Penalty, Problem, SquaredNorm
from fljax.problems.solvers import factorize, is_quadratic, prox, strong_convexity
from fljax.problems.streams import Stream


class NeighborMessages(NamedTuple):
    """Individual messages of a node's neighbors, for penalties that need them one by one."""

    messages: Array  # [K, S, D]
    weights: Array  # [K, S]  of the edges that they came over, zero for empty slots


class CoupledFactors(NamedTuple):
    """Factors reused by quadratic minimizations whose parameters have different couplings."""

    inverse: Array  # [K, D, D]
    moment: Array  # [K, D]  2 sum_j weight_j x_j y_j


@algorithm(
    "FedRelax",
    ("abdurakhmanova2023", "jung2025"),
    Needs(absent=True, late=True, averages=True, changing=True, minimizer=True),
)
@module
class FedRelax(Coupled):
    r"""Every node minimizes its loss plus the coupling to its neighbors' models: FedRelax.

    .. math::

        w_k\leftarrow\arg\min_w f_k(w)+\alpha\sum_{l\in\mathcal N_k}a_{kl}\,\phi(w-w_l),\qquad
        \phi(u)=\|u\|^2

    It is the nonlinear Jacobi method for GTVMin and has no step size. The update is the prox of
    :math:`f_k` with the weight :math:`2\alpha d_k` at the neighbors' mean: one linear solve,
    factorized once, for squared losses with no or a squared regularizer, and inner iterations from
    the last model otherwise. A node without labels takes its neighbors' mean, a node without
    neighbors minimizes its own loss. For strongly convex :math:`f_k` each round reduces the largest
    distance from the solution by a factor of :math:`1/(1+\sigma/(2\alpha d_k))` or less, with any
    unavailable or delayed nodes (133). (The middle line of (123) in the source has
    :math:`\alpha/2`; this is its last line.)

    With another penalty it is the update (170): a node weights its neighbors' messages itself,
    without an aggregator. With the norm the force of a message is at most :math:`\alpha a_{kl}`,
    regardless of its content, and a node without labels takes the geometric median of its neighbors
    (175): a minority of messages cannot move it far. But with a nonsmooth penalty, nodes that are
    optimal given each other need not be jointly optimal, and the rounds need not converge to
    GTVMin's solution, which is the reference of error metrics; :class:`~fljax.problems.GTVMin`
    computes it.

    Args:
      coupling: :math:`\alpha\ge0`; for squared losses also ``[D]``, one per parameter, zero for a
        parameter that stays private. The linear systems are then ``[K, D, D]``, however few the
        samples.
      inner_iterations: iterations of the solver if no closed form exists, as for another penalty.
      penalty: :math:`\phi`, see :mod:`fljax.problems.variation`. If it is not squared, every round
        factorizes again, and all messages are in memory at the same time.

    Raises:
      ValueError: a coupling of another shape, or one per parameter if no closed form exists; a
        penalty for other parameters; a node with neither neighbors nor enough samples for a unique
        model; a problem that clips gradients; with a penalty other than the squared norm, an
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

      The center of a star, without labels, receives from seven others, and two of them send
      arbitrary values:

      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=8, samples=9, dim=2)
      >>> def error(penalty):
      ...     simulation = fl.Simulation(
      ...         problem=problem.weighing([0.0] + 7 * [1.0]),
      ...         network=fl.graphs.star(8),
      ...         algorithm=fl.algorithms.FedRelax(0.1, penalty=penalty),
      ...         attack=fl.attacks.ConstantMessage(jax.numpy.arange(8) > 5, value=1e6),
      ...     )
      ...     return abs(fl.run(simulation, rounds=20).model[0]).max()
      >>> bool(error(fl.problems.SquaredNorm()) > 1e4), bool(error(fl.problems.Norm()) < 10)
      (True, True)

    Reference:
      Abdurakhmanova, SarcheshmehPour & Jung 2023; Jung 2025, Algorithm 11, (123), and (132), (170),
      (172), (175).
    """

    coupling: Annotated[Array, "*parameters"] = field(converter=as_given)
    inner_iterations: int = static(default=100)
    penalty: Penalty = SquaredNorm()

    def validate(self) -> None:
        super().validate()
        checks.count("inner_iterations", self.inner_iterations)
        checks.kind("penalty", self.penalty, Penalty)
        checks.registered("penalty", self.penalty)
        if np.ndim(self.coupling) and self.one_by_one:
            raise ValueError(
                "one coupling for each parameter needs the squared penalty, got "
                f"{type(self.penalty).__name__}; Mixture and Blocks are penalties with separate "
                "strengths for parts of a model."
            )

    @property
    def one_by_one(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not isinstance(self.penalty, SquaredNorm)

    def check(self, problem: Problem, network: Graph) -> None:
        super().check(problem, network)
        self.penalty.check(problem.dim)
        if np.ndim(self.coupling) and not is_quadratic(problem):
            raise ValueError(
                "one coupling for each parameter needs a problem with a closed form, which "
                f"{type(problem.loss).__name__} with {type(problem.regularizer).__name__} does not "
                "have; give one number as coupling, or take FedGD."
            )
        data = problem.features, problem.weights, problem.share, network.degree, self.coupling
        if all(checks.is_concrete(value) for value in data):
            self._check_determined(problem, network)

    def _check_determined(self, problem: Problem, network: Graph) -> None:
        """Raise ``ValueError`` for a node whose minimizer is not unique."""
        with jax.ensure_compile_time_eval():  # the data may be known while others are traced
            shift = self._coupling_weights(network.degree) + strong_convexity(problem)[:, None]
            shift = np.broadcast_to(np.asarray(shift), (problem.clients, problem.dim))
            undetermined = np.any(shift == 0, axis=1) & ~np.asarray(_undetermined(problem, shift))
            width = problem.dim // problem.loss.outputs
            for k in np.flatnonzero(undetermined):
                real = np.asarray(problem.weights)[k] > 0
                rows = jnp.asarray(problem.features[k])
                rows = rows if problem.feature_map is None else problem.feature_map(rows)
                determined = np.eye(width)[np.reshape(shift[k], (-1, width)).min(axis=0) > 0]
                rows = np.concatenate([np.asarray(rows)[real], determined])
                if np.linalg.matrix_rank(rows) < width:
                    raise ValueError(
                        f"node {k} has {real.sum()} samples for {width} features, and no coupled "
                        "neighbor that determines the rest: its minimizer is not unique. Couple it "
                        "(coupling > 0, an edge), or give the problem a regularizer."
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
        return state._replace(received=NeighborMessages(state.model[neighbors], weights))

    def step(self, state: NetworkState, now: Round) -> NetworkState:
        if not self.one_by_one:
            return super().step(state, now)
        model = self.operator(state, now)
        _, inbox = now.link.exchange(model)
        weights = now.network.neighbor_table()[1]
        received = NeighborMessages(inbox.messages(over=now.network), weights)
        return NetworkState(model, received, now.network.degree, None)

    def _factor(self, problem: Problem, degree: Float[Array, " clients"]) -> Any:
        coupling = self._coupling_weights(degree)
        if coupling.shape[1] == 1:
            return factorize(problem, coupling[:, 0])
        shift = coupling + strong_convexity(problem)[:, None]
        system = 2 * problem.second_moment() + jax.vmap(jnp.diag)(shift)
        return CoupledFactors(spd_inverse(system), 2 * problem.correlation(problem.targets))

    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        problem = now.problem
        coupling = self._coupling_weights(state.degree)
        if self.one_by_one:
            messages, weights = state.received
            strengths = jnp.asarray(self.coupling, weights.dtype) * weights
            model = best_response(problem, self.penalty, messages, strengths, self.inner_iterations)
            return self._keep_undetermined(problem, coupling, state.model, model)
        factor = self._factor(problem, state.degree) if now.changing else state.kept
        if isinstance(factor, CoupledFactors):
            right = factor.moment + coupling * state.received
            model = jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
        else:
            model = prox(problem, factor, state.received, state.model, self.inner_iterations)
        return self._keep_undetermined(problem, coupling, state.model, model)

    def _keep_undetermined(
        self, problem: Problem, coupling: Array, before: Array, after: Array
    ) -> Array:
        """Return the new models; nodes with neither data nor neighbors keep theirs."""
        undetermined = _undetermined(problem, coupling + strong_convexity(problem)[:, None])
        return jnp.where(undetermined[:, None], before, after)


def _undetermined(problem: Problem, shift: Array | np.ndarray) -> Array:
    """Return which nodes have neither labels nor anything else that determines a model."""
    return (jnp.sum(jnp.asarray(problem.weights), axis=1) == 0) & jnp.all(shift == 0, axis=1)
