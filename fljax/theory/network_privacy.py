r"""Sensitivity of coupled models to one label, for privacy (Jung 2025, chapters 9 and 10).

Exact sensitivities of GTVMin with local linear models (49) and of its gradient steps (104), for use
in privacy accounting. Neighboring data sets differ only in one *label*, by a bounded amount;
features, weights and the graph are public here. Each function states the further conditions for
:math:`(\epsilon,\delta)`-DP.

Shapes: ``K`` clients (nodes), ``N`` samples, ``D`` parameters, ``T`` rounds.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._arguments import checked
from fljax._numerics import HIGHEST
from fljax.graphs import Graph
from fljax.privacy import accounting
from fljax.problems import Problem
from fljax.theory import networks
from fljax.theory.multiagent import _quadratic

__all__ = ["SharingNoise", "label_sensitivity", "sharing_noise"]


@checked
def label_sensitivity(
    problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float
) -> Float[Array, "clients samples"]:
    r"""Sensitivity quotient of GTVMin, the change of the solution per change of one label, (179).

    .. math:: \frac{\|\hat w(\mathcal D)-\hat w(\mathcal D')\|}{|y_{kn}-y'_{kn}|}
        =\omega_{kn}\big\|Q^{-1}(e_k\otimes x_{kn})\big\|,

    with the weights :math:`\omega_{kn}=1/m_k` of samples, over all models together, for any change
    and any labels. For labels that differ by at most :math:`c`, the largest quotient times
    :math:`c` is the l2 sensitivity of the solution (182), the argument of
    :func:`fljax.privacy.gaussian_release`; it depends on the features, which must then be public.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``.

    Returns:
      ``[K, N]``; NaN or infinite if the solution is not unique.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a negative
        coupling.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.Problem(
      ...     jnp.ones((3, 1, 1)), jnp.zeros((3, 1)), fl.problems.LeastSquares()
      ... )
      >>> found = label_sensitivity(problem, fl.graphs.path(3), 1.0)
      >>> [round(float(quotient), 3) for quotient in found[:, 0]]
      [0.685, 0.612, 0.685]

    Reference:
      Jung 2025, (179) and (182).
    """
    networks.check_network(problem, network)
    return _label_sensitivity(problem, network, networks.coupling_of(problem, coupling))


@jax.jit
def _label_sensitivity(problem: Problem, network: Graph, coupling: Array) -> Array:
    blocks = _quadratic(problem)[0] / 2
    clients, dim = problem.clients, problem.dim
    own = jnp.einsum("kl,kpq->kplq", jnp.eye(clients, dtype=blocks.dtype), blocks)
    pull = jnp.einsum("kl,pq->kplq", network.laplacian_matrix(), jnp.diag(coupling))
    system = (own + pull).reshape(clients * dim, clients * dim)
    inverse = jnp.linalg.inv(system).reshape(clients * dim, clients, dim)
    moved = jnp.einsum("skp,knp->skn", inverse, problem.design, precision=HIGHEST)
    return problem.weights * jnp.linalg.norm(moved, axis=0)


class SharingNoise(NamedTuple):
    """Result of :func:`sharing_noise`."""

    sensitivity: Array  # [K, T]  l2, of each client's message of each round
    sigma: Array  # [K]  of the noise in every coordinate of every message of a client


@checked
def sharing_noise(
    problem: Problem,
    network: Graph,
    coupling: Float[Array, "*dim"] | float,
    step_size: Float[Array, ""] | float,
    rounds: int,
    change: Float[Array, ""] | float,
    epsilon: float,
    delta: float,
    keeps: bool = True,
) -> SharingNoise:
    r"""Noise on the models shared between neighbors, (190), for a privacy budget over all rounds.

    A client steps by :math:`w_k-\eta\big(\nabla L_k(w_k)+2\alpha\sum_la_{kl}(w_k-m_l)\big)` with
    the received messages :math:`m_l`, and sends :math:`m_k=w_k+\sigma_kn` with fresh normal noise.
    Given all previous messages, a label that differs by :math:`c` changes its next message by

    .. math:: \Delta_t=\Big\|\sum_{s<t}M_k^s\,2\eta\,\omega_{kn}c\,x_{kn}\Big\|,\qquad
        M_k=I-2\eta\big(Q^{(k)}+\alpha d_kI\big),

    at most, over its samples n, since its own model retains the effect of the label. If it
    continues from the message that it *sent*, including the noise, :math:`\Delta_t=\Delta_1` in
    every round (the book does not specify which is meant). Rounds compose as Gaussian releases,
    :math:`\mu^2=\sum_t\Delta_t^2/\sigma_k^2`, and :math:`\sigma_k` is chosen such that they are
    :math:`(\epsilon,\delta)`-DP.

    A larger coupling makes a model forget faster, and requires less noise if the client keeps its
    own model.

    Args:
      problem: a problem with a squared loss, and a squared regularizer or none.
      network: the graph of its clients.
      coupling: :math:`\alpha\ge0`, one number or one per parameter, ``[D]``.
      step_size: :math:`\eta>0`.
      rounds: number of rounds in which a client sends.
      change: :math:`c>0`, the largest difference of neighboring labels: their range.
      epsilon: > 0, for all rounds together.
      delta: in (0, 1).
      keeps: whether a client steps from its own model without noise, or from the message that it
        sent.

    Returns:
      Sensitivities and standard deviations; zero for a client without samples.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a number out of
        range.
      TypeError: a traced budget.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP of each label against an observer of all messages, if neighboring
      data sets differ in one label by at most ``change``, everything else is public, and the noise
      is Gaussian and never revealed. In exact arithmetic. If clients keep their own models, the
      final models are not among the messages: publishing them is a further release.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.Problem(
      ...     jnp.ones((3, 1, 1)), jnp.zeros((3, 1)), fl.problems.LeastSquares()
      ... )
      >>> for rounds in (1, 10):
      ...     found = sharing_noise(problem, fl.graphs.path(3), 1.0, 0.1, rounds, 1.0, 1.0, 1e-5)
      ...     print(found.sigma.round(2))
      [0.75 0.75 0.75]
      [5.14 3.7  5.14]

    Reference:
      Jung 2025, (190); Dong, Roth & Su 2022, corollary 3.3; Balle & Wang 2018, theorem 8.
    """
    networks.check_network(problem, network)
    _check.count("rounds", rounds)
    _check.positive("step_size", step_size)
    _check.positive("change", change)
    strength = networks.coupling_of(problem, coupling)
    numbers = (jnp.asarray(value, problem.dtype) for value in (step_size, change))
    sensitivity = _sensitivity(problem, network, strength, *numbers, rounds, keeps)
    unit = float(accounting.analytic_gaussian_sigma(1.0, epsilon, delta))
    return SharingNoise(sensitivity, unit * jnp.linalg.norm(sensitivity, axis=1))


@functools.partial(jax.jit, static_argnames=("rounds", "keeps"))
def _sensitivity(
    problem: Problem,
    network: Graph,
    coupling: Array,
    step_size: Array,
    change: Array,
    rounds: int,
    keeps: bool,
) -> Array:
    """Sensitivities, ``[K, T]``."""
    degree = jnp.diagonal(network.laplacian_matrix())
    pull = 2 * degree[:, None, None] * jnp.diag(coupling)[None]
    matrices = step_size * (_quadratic(problem)[0] + pull)
    forget = jnp.eye(problem.dim, dtype=problem.dtype)[None] - matrices
    first = 2 * step_size * change * problem.weights[..., None] * problem.design

    def step(state: Array, _: Any) -> tuple[Array, Array]:
        after = jnp.einsum("kpq,knq->knp", forget, state, precision=HIGHEST) + first
        return (after if keeps else state), jnp.max(jnp.linalg.norm(after, axis=2), axis=1)

    return jax.lax.scan(step, jnp.zeros_like(first), length=rounds)[1].T
