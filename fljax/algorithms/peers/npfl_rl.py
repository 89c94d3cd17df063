r"""NPFL with reinforcement learning of its inter-cluster weights (Gauthier 2024, Algorithm 6)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.peers.npfl import Relations, cluster_relations, curvature
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.solvers import Spectrum, decompose, solve_shifted, strong_convexity


class Context(NamedTuple):
    r"""Quantities other than :math:`\tau_k` on which a primal step depends."""

    pull: Array  # [K, D]  of the same cluster: rho sum_l (w_k + w_l) - gamma_k
    others: Array  # [K, D]  the mean of the other clusters' neighbors


class NPFLRLState(NamedTuple):
    """State of NPFL-RL between rounds."""

    model: Array  # [K, D]  w_k
    sent: Array  # [K, D]  the last message of client k
    received: Array  # [K, D]  the sum of the messages of its cluster's neighbors
    others: Array  # [K, D]  the mean over the other clusters of their messages
    dual: Array  # [K, D]  gamma_k
    inter_cluster: Array  # [K]  tau_k
    context: Context  # of the last primal step
    relations: Relations
    spectrum: Spectrum  # of the primal systems, constant


class Policy:
    """Base class of rules by which a client updates its parameter; subclass it for your own.

    Example:
      A policy that halves the parameter in every step:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Halving(fl.algorithms.Policy):
      ...     def step(self, key, tau, cost, slope):
      ...         return tau / 2
      >>> Halving().step(None, jnp.array([0.5, 0.25]), None, None).tolist()
      [0.25, 0.125]
    """

    @checks.required
    def step(self, key: Array, tau: Array, cost: Callable, slope: Callable) -> Array:
        """Return the next parameters.

        Args:
          key: the random key of this epoch.
          tau: ``[K]``.
          cost: ``[K] -> [K]``, the validation cost of each client's primal step at these values.
          slope: ``[K] -> [K]``, its derivative.
        """
        raise NotImplementedError


@module
class DeterministicPolicyGradient(Policy):
    r""":math:`\tau_k\leftarrow\tau_k-\delta\,\partial V_v(w_k(a))/\partial a|_{a=\tau_k}` (6.13).

    The derivative scales with the square of the data, so a suitable step size depends on that
    scale.

    Args:
      step_size: :math:`\delta>0`.
      cap: the largest change in one step, > 0; there is none in the source.

    Example:
      On the cost :math:`(\tau-0.2)^2`, of the derivative :math:`2(\tau-0.2)`:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> key, tau = jax.random.key(0), jnp.array([0.6])
      >>> cost, derivative = lambda tau: (tau - 0.2) ** 2, lambda tau: 2 * (tau - 0.2)
      >>> policy = fl.algorithms.DeterministicPolicyGradient(0.25)
      >>> round(policy.step(key, tau, cost, derivative).item(), 3)
      0.4
      >>> capped = fl.algorithms.DeterministicPolicyGradient(0.25, cap=0.05)
      >>> round(capped.step(key, tau, cost, derivative).item(), 3)
      0.55
    """

    step_size: Float[Array, ""] | float
    cap: Float[Array, ""] | float = float("inf")

    def validate(self) -> None:
        checks.positive("step_size", self.step_size)
        checks.check_when_concrete(self._check_cap, self.cap)

    @staticmethod
    def _check_cap(cap: Array | float) -> None:
        if not cap > 0:
            raise ValueError(f"cap must be > 0, got {cap}.")

    def step(self, key: Array, tau: Array, cost: Callable, slope: Callable) -> Array:
        return tau - jnp.clip(self.step_size * slope(tau), -self.cap, self.cap)


@module
class RandomProbe(Policy):
    r""":math:`\tau_k\leftarrow\tau_k-\delta\,\mathrm{sign}(V_v(w_k(\tau_k+\alpha))-V_v(w_k))\,\alpha`.

    The source's "stochastic actor-critic" (6.14), with :math:`\alpha` uniform on
    :math:`[-\nu/2,\nu/2]`: the parameter moves toward a better probe and away from a worse one.

    Args:
      step_size: :math:`\delta>0`.
      width: :math:`\nu>0`.

    Example:
      On the cost :math:`(\tau-0.2)^2` the parameter moves toward 0.2:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> policy, tau = fl.algorithms.RandomProbe(1.0, width=0.2), jnp.array([0.6])
      >>> cost, derivative = lambda tau: (tau - 0.2) ** 2, lambda tau: 2 * (tau - 0.2)
      >>> moved = policy.step(jax.random.key(0), tau, cost, derivative)
      >>> bool(moved[0] < tau[0])
      True
    """

    step_size: Float[Array, ""] | float
    width: Float[Array, ""] | float

    def validate(self) -> None:
        checks.positive("step_size", self.step_size)
        checks.positive("width", self.width)

    def step(self, key: Array, tau: Array, cost: Callable, slope: Callable) -> Array:
        half = jnp.asarray(self.width, tau.dtype) / 2
        probe = half * jax.random.uniform(key, tau.shape, tau.dtype, -1, 1)
        return tau - self.step_size * jnp.sign(cost(tau + probe) - cost(tau)) * probe


@algorithm("NPFL-RL", ("gauthier2023rl", "gauthier2024"), Needs(quadratic=True, validation=True))
@module
class NPFLRL(Algorithm):
    r"""Networked personalized learning with inter-cluster learning by reinforcement learning.

    The primal and dual steps are as in :class:`NPFL` with a :math:`\tau_k` for each client. From
    the second round on a client first updates it by the ``policy``, which uses the cost on its
    validation data,

    .. math:: V_v(w)=\frac1{D_k}\sum_j\ell(x_{k,j},y_{k,j};w)+\lambda_kR(w),

    of the model :math:`w_k(a)` that the *last* primal step would have given with the parameter
    :math:`a` (the index of (6.13); the source does not specify which step the policy refers to).
    Several ``policy_steps`` per round, each from the result of the last, are batch reinforcement
    learning (NPFL-BRL). The primal step is the closed form (6.11) of ridge regression; one
    eigendecomposition suffices for all values of :math:`\tau_k`.

    Args:
      penalty: :math:`\rho>0`.
      policy: a :class:`Policy`.
      initial: :math:`\tau_k^{(0)}\in[0,1]`, one number or ``[K]``; the source gives no value.
      policy_steps: policy steps per round, >= 1.
      clip: whether :math:`\tau_k` is clipped to [0, 1] after every step. The source does not state
        it; without it the parameters leave the interval and the primal systems become singular.

    Raises:
      ValueError: a problem without validation data, one that is not quadratic or that clips
        gradients.

    Example:
      Each client learns its own parameter from the validation data, in [0, 1]:

      >>> import jax, fljax as fl
      >>> k_cluster, k_data = jax.random.split(jax.random.key(0))
      >>> cluster = fl.problems.random_clusters(k_cluster, 12, 2)
      >>> problem = fl.problems.clustered_ridge(
      ...     k_data, cluster, 2, (9, 9), 3, 5.0, 0.01, validated=True
      ... )
      >>> algorithm = fl.algorithms.NPFLRL(1.0, fl.algorithms.RandomProbe(1.0, width=0.2))
      >>> learned = fl.metrics.trajectory("inter_cluster", ("client",))
      >>> simulation = fl.Simulation(problem, algorithm, fl.graphs.complete(12), metrics=learned)
      >>> fl.run(simulation, rounds=10).inter_cluster_trajectory.shape  # rounds, clients
      (10, 12)

    Reference:
      Gauthier et al. 2023 (NPFed-RL), Algorithm 1; Gauthier 2024, Algorithm 6, (6.7)-(6.14).
    """

    penalty: Float[Array, ""] | float
    policy: Policy
    initial: Float[Array, "*clients"] | float = 0.05
    policy_steps: int = static(default=1)
    clip: bool = static(default=True)

    def validate(self) -> None:
        checks.positive("penalty", self.penalty)
        checks.interval("initial", self.initial, at_least=0, at_most=1)
        checks.count("policy_steps", self.policy_steps)

    def init(self, problem: Problem, network: Graph) -> NPFLRLState:
        checks.per_client("initial", self.initial, problem.clients)
        start = start_models(problem)
        tau = jnp.broadcast_to(jnp.asarray(self.initial, problem.dtype), (problem.clients,))
        relations = cluster_relations(problem, network)
        same, other_clusters = (part.neighbor_sum(start) for part in relations)
        zero = jnp.zeros_like(start)
        context = Context(zero, zero)
        spectrum = decompose(problem)
        return NPFLRLState(
            start, start, same, other_clusters, zero, tau, context, relations, spectrum
        )

    def step(self, state: NPFLRLState, now: Round) -> NPFLRLState:
        problem = now.problem
        (same, other_clusters) = state.relations
        validation = problem.tasks.validation  # pyright: ignore[reportOptionalMemberAccess]

        # A primal step solves (H + c(tau)) w = r(tau): system returns c, and primal the model. The
        # policy moves tau by the validation loss of the last round's step, of the same context.
        def system(tau: Array) -> Array:
            return curvature(state.relations, self.penalty, tau) + strong_convexity(problem)

        def primal(tau: Array, context: Context) -> Array:
            right = state.spectrum.moment + context.pull + 2 * tau[:, None] * context.others
            return solve_shifted(problem, state.spectrum, system(tau), right)

        def cost(tau: Array) -> Array:
            model = primal(tau, state.context)
            return validation.mean_loss(model) + problem.share * problem.regularizer.value(model)

        def derivative(tau: Array) -> Array:
            # (H + c(tau)) w = r(tau), so (H + c) dw = dr - dc w; both are zero without neighbors
            # in other clusters.
            model = primal(tau, state.context)
            change = 2 * (state.context.others - other_clusters.degree[:, None] * model)
            change = solve_shifted(problem, state.spectrum, system(tau), change)
            gradient = validation.loss_gradient(model)
            gradient = gradient + problem.share[:, None] * problem.regularizer.gradient(model)
            return jnp.sum(gradient * change, axis=1)

        def epoch(e: Array, tau: Array) -> Array:
            key = jax.random.fold_in(now.key("policy"), e)
            tau = self.policy.step(key, tau, cost, derivative)
            return jnp.clip(tau, 0, 1) if self.clip else tau

        moved = jax.lax.fori_loop(0, self.policy_steps, epoch, state.inter_cluster)
        # Without neighbors in other clusters costs differ by rounding only.
        matters = (now.number > 1) & (other_clusters.degree > 0)
        tau = jnp.where(matters, moved, state.inter_cluster)

        degree = same.degree[:, None]
        consensus = self.penalty * (degree * state.sent + state.received) - state.dual
        context = Context(consensus, state.others)
        model = primal(tau, context)
        sent, inbox = now.link.exchange(model)
        received = inbox.sum(over=same)
        dual = state.dual + self.penalty * (degree * sent - received)
        return NPFLRLState(
            model,
            sent,
            received,
            inbox.sum(over=other_clusters),
            dual,
            tau,
            context,
            state.relations,
            state.spectrum,
        )
