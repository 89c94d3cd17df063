r"""What coupled models tell of one label (Jung 2025, chapters 9 and 10).

Sensitivities of GTVMin with local linear models (49) and of its gradient steps (104), exactly: what
privacy is accounted with. Only a *label* may differ between neighboring data sets, by so much at
most; features, weights and the graph are public here. What an :math:`(\epsilon,\delta)` needs
beside is said at each.

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
    r"""The sensitivity quotient of GTVMin, (179): how far one label moves the solution.

    .. math:: \frac{\|\hat w(\mathcal D)-\hat w(\mathcal D')\|}{|y_{kn}-y'_{kn}|}
        =\omega_{kn}\big\|Q^{-1}(e_k\otimes x_{kn})\big\|,

    with the weights :math:`\omega_{kn}=1/m_k` of samples, over all models together, whatever the
    change and the labels. For labels that differ by at most :math:`c`, the largest times :math:`c`
    is the solution's l2 sensitivity (182), which :func:`fljax.privacy.gaussian_release` takes;
    it depends on the features, which must be public then.

    Args:
      problem: with a squared loss, and a squared regularizer or none.
      network: of its clients.
      coupling: :math:`\alpha\ge0`, or of each parameter, ``[D]``.

    Returns:
      ``[K, N]``; NaN or infinite where the solution is not unique.

    Raises:
      ValueError: another problem, a network of other clients, a negative coupling.

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
    """What :func:`sharing_noise` finds."""

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
    r"""Noise on models that neighbors share, (190), for a budget over all rounds.

    A client steps by :math:`w_k-\eta\big(\nabla L_k(w_k)+2\alpha\sum_la_{kl}(w_k-m_l)\big)` on
    messages :math:`m_l` that it heard, and shares :math:`m_k=w_k+\sigma_kn` with fresh normal
    noise. Given all messages before, a label that differs by :math:`c` moves its next one by

    .. math:: \Delta_t=\Big\|\sum_{s<t}M_k^s\,2\eta\,\omega_{kn}c\,x_{kn}\Big\|,\qquad
        M_k=I-2\eta\big(Q^{(k)}+\alpha d_kI\big),

    at most, over its samples n; its own model remembers. Where it goes on from what it *shared*,
    noise and all, :math:`\Delta_t=\Delta_1` in every round (the book leaves open which is meant).
    Rounds compose as Gaussian releases do, :math:`\mu^2=\sum_t\Delta_t^2/\sigma_k^2`, and
    :math:`\sigma_k` is what makes them :math:`(\epsilon,\delta)`-DP.

    A larger coupling makes a model forget faster, and calls for less noise if it keeps its own.

    Args:
      problem: with a squared loss, and a squared regularizer or none.
      network: of its clients.
      coupling: :math:`\alpha\ge0`, or of each parameter, ``[D]``.
      step_size: :math:`\eta>0`.
      rounds: in how many a client shares.
      change: :math:`c>0`, how much neighboring labels differ at most: their range.
      epsilon: > 0, of all rounds together.
      delta: in (0, 1).
      keeps: whether a client steps from its own model without noise, or from what it shared.

    Returns:
      Sensitivities and deviations; zero of a client that has no sample.

    Raises:
      ValueError: another problem, a network of other clients, a number out of its range.
      TypeError: a traced budget.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP of each label against everybody who hears all messages, if
      neighboring data sets differ in one label by at most ``change``, all else is public, and the
      noise is Gaussian and never told. In exact arithmetic. The final models are not among the
      messages where a client keeps its own: publishing them too is one more release.

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
    """``[K, T]``."""
    degree = jnp.diagonal(network.laplacian_matrix())
    pull = 2 * degree[:, None, None] * jnp.diag(coupling)[None]
    matrices = step_size * (_quadratic(problem)[0] + pull)
    forget = jnp.eye(problem.dim, dtype=problem.dtype)[None] - matrices
    first = 2 * step_size * change * problem.weights[..., None] * problem.design

    def step(state: Array, _: Any) -> tuple[Array, Array]:
        after = jnp.einsum("kpq,knq->knp", forget, state, precision=HIGHEST) + first
        return (after if keeps else state), jnp.max(jnp.linalg.norm(after, axis=2), axis=1)

    return jax.lax.scan(step, jnp.zeros_like(first), length=rounds)[1].T
