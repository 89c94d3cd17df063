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
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.certified_bounds import (
    gamma,
    inverse_bound,
    lengths,
    on_host,
    rounded_up,
    spectral_norm_bound,
)
from fljax.graphs import Graph
from fljax.privacy import accounting
from fljax.problems import Problem
from fljax.problems.solvers import is_quadratic
from fljax.theory import gtvmin_theory

#: Smallest curvature of a parameter, and the inverse of the largest, whose products are all
#: representable in double precision.
LEAST = 1e-200


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
      ``[K, N]``, rounded up. For traced arguments infinite where a concrete one would be refused.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a negative
        coupling; a solution that is not unique, or so nearly not unique that double precision
        cannot prove that it is.

    Guarantees:
      No quotient is smaller than the exact one of the problem's numbers as they are stored. It is
      computed on the host in double precision, with a bound on all rounding: with an approximate
      inverse :math:`X` and :math:`r\ge\|I-XQ\|`, :math:`Q` is invertible if :math:`r<1`, and
      :math:`\|Q^{-1}v\|\le\|Xv\|/(1-r)` (here entry by entry). It is the sensitivity of the exact
      minimizer. A solver's result differs from that by the solver's own error, which is not
      included: compute the models in double precision.

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
    gtvmin_theory.check_network(problem, network)
    arguments = _arguments(problem, network, coupling)
    shape = jax.ShapeDtypeStruct(problem.weights.shape, problem.dtype)
    bound = functools.partial(_label_bound, dtype=problem.dtype)
    return on_host(bound, shape, *arguments, refused=_check_certified)


def _check_certified(bounds: np.ndarray) -> None:
    if not np.all(np.isfinite(bounds)):
        raise ValueError(
            "the solution is not unique, or so nearly not unique that double precision cannot "
            "tell, so that its sensitivity has no bound. Add a squared regularizer, connect the "
            "graph, increase the coupling, or leave out features that others determine."
        )


def _label_bound(
    design: np.ndarray,
    weights: np.ndarray,
    convexity: np.ndarray,
    adjacency: np.ndarray,
    coupling: np.ndarray,
    dtype: DTypeLike,
) -> np.ndarray:
    """Upper bounds of the quotients, ``[K, N]``; infinite where none can be proven."""
    objective = _objective(design, weights, convexity, adjacency, coupling)
    clients, samples, dim = objective.design.shape
    size = clients * dim
    system, sizes = (
        _stacked(blocks, laplacian, objective.coupling)
        for blocks, laplacian in (
            (objective.blocks, objective.laplacian),
            (objective.block_sizes, np.abs(objective.laplacian)),
        )
    )
    diagonal = np.diagonal(sizes)
    # A zero on the diagonal leaves a parameter undetermined; squares out of range are not numbers.
    if not (np.all(np.isfinite(sizes)) and np.all((diagonal > LEAST) & (diagonal < 1 / LEAST))):
        return rounded_up(np.full((clients, samples), np.inf), dtype)
    # Powers of two, by which scaling is exact: the diagonal becomes one to four.
    scale = np.ldexp(1.0, -((np.frexp(diagonal)[1] - 1) // 2))
    scales = scale[:, None] * scale[None]
    bound = inverse_bound(scales * system, scales * sizes, objective.terms)
    result = np.zeros((clients, samples))
    for client in range(clients):
        rows = slice(client * dim, (client + 1) * dim)
        right = scale[rows, None] * objective.design[client].T
        moved = scale[:, None] * bound.solutions(right, rows)
        result[client] = objective.weights[client] * lengths(moved, axis=0)
    used = objective.weights > 0
    result = np.where(used, result * (1 + 4 * gamma(size + 8)), 0)
    return rounded_up(np.where(np.isnan(result), np.inf, result), dtype)


def _stacked(blocks: np.ndarray, laplacian: np.ndarray, coupling: np.ndarray) -> np.ndarray:
    """``blkdiag(blocks) + pull x diag(coupling)``, ``[K D, K D]``."""
    clients, dim = blocks.shape[:2]
    system = np.einsum("kl,pq->kplq", laplacian, np.diag(coupling))
    diagonal = np.arange(clients)
    system[diagonal, :, diagonal, :] += blocks
    return system.reshape(clients * dim, clients * dim)


class _Objective(NamedTuple):
    """The quadratic objective, in double precision."""

    design: np.ndarray  # [K, N, D]  zero for samples without weight
    weights: np.ndarray  # [K, N]
    blocks: np.ndarray  # [K, D, D]  Q^(k), with the regularizer
    block_sizes: np.ndarray  # [K, D, D]  the sum of the absolute values of the terms of each entry
    laplacian: np.ndarray  # [K, K]
    coupling: np.ndarray  # [D]
    terms: int  # operations per entry of the whole quadratic form, at most


def _objective(
    design: np.ndarray,
    weights: np.ndarray,
    convexity: np.ndarray,
    adjacency: np.ndarray,
    coupling: np.ndarray,
) -> _Objective:
    weights, adjacency, coupling, convexity = (
        np.asarray(values, np.float64) for values in (weights, adjacency, coupling, convexity)
    )
    clients, samples, dim = design.shape
    design = np.where(weights[..., None] != 0, np.asarray(design, np.float64), 0.0)
    if convexity.ndim == 0:  # the whole objective's strength, shared equally by the clients
        convexity = convexity / clients
    ridge = np.broadcast_to(convexity, clients)[:, None, None] * np.eye(dim)[None]
    with np.errstate(over="ignore", invalid="ignore"):
        weighted = weights[..., None] * design
        blocks = np.swapaxes(weighted, 1, 2) @ design + ridge
        blocks = (blocks + np.swapaxes(blocks, 1, 2)) / 2
        block_sizes = np.abs(np.swapaxes(weighted, 1, 2)) @ np.abs(design) + np.abs(ridge)
        laplacian = np.diag(adjacency.sum(1)) - adjacency
    terms = samples + clients + 16
    return _Objective(design, weights, blocks, block_sizes, laplacian, coupling, terms)


def _arguments(
    problem: Problem, network: Graph, coupling: Float[Array, "*dim"] | float
) -> tuple[Any, ...]:
    """The arguments of :func:`_objective`, concrete unless they are traced themselves."""
    if not is_quadratic(problem) or problem.clip is not None:
        raise ValueError(
            "sensitivities are exact for a squared loss with a squared regularizer, or none, and "
            "no clip only."
        )
    with jax.ensure_compile_time_eval():
        strength = jnp.asarray(problem.strength, problem.dtype)
        convexity = strength * jnp.asarray(problem.regularizer.quadratic(), problem.dtype)
        strengths = gtvmin_theory.coupling_of(problem, coupling)
        return problem.design, problem.weights, convexity, network.dense(), strengths


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
      Sensitivities and standard deviations, rounded up; zero for a client without samples.

    Raises:
      ValueError: an unsupported problem, a network that does not match the clients, a number out of
        range, steps that diverge to infinity.
      TypeError: a traced budget.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP of each label against an observer of all messages, if neighboring
      data sets differ in one label by at most ``change``, everything else is public, and the noise
      is Gaussian and never revealed. Sensitivities and noise are computed on the host in double
      precision, with a bound on all rounding, and are never smaller than the exact ones. The
      clients' own steps and the sum of message and noise are in exact arithmetic. If clients
      keep their own models, the final models are not among the messages: publishing them is a
      further release.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.Problem(
      ...     jnp.ones((3, 1, 1)), jnp.zeros((3, 1)), fl.problems.LeastSquares()
      ... )
      >>> for rounds in (1, 10):
      ...     found = sharing_noise(problem, fl.graphs.path(3), 1.0, 0.1, rounds, 1.0, 1.0, 1e-5)
      ...     print([round(float(sigma), 2) for sigma in found.sigma])
      [0.75, 0.75, 0.75]
      [5.14, 3.7, 5.14]

    Reference:
      Jung 2025, (190); Dong, Roth & Su 2022, corollary 3.3; Balle & Wang 2018, theorem 8.
    """
    gtvmin_theory.check_network(problem, network)
    checks.count("rounds", rounds)
    checks.positive("step_size", step_size)
    checks.positive("change", change)
    shape = (problem.clients, rounds)
    shapes = tuple(
        jax.ShapeDtypeStruct(dimensions, problem.dtype) for dimensions in (shape, shape[:1])
    )
    bound = functools.partial(_sharing_bound, rounds=rounds, keeps=keeps, dtype=problem.dtype)
    arguments = _arguments(problem, network, coupling)
    with jax.ensure_compile_time_eval():
        step = jnp.asarray(step_size, problem.dtype)  # the number by which clients step
    unit = accounting.analytic_gaussian_sigma(1.0, epsilon, delta)
    bounds = on_host(bound, shapes, *arguments, step, change, unit, refused=_check_bounded)
    return SharingNoise(*bounds)


def _check_bounded(bounds: tuple[np.ndarray, np.ndarray]) -> None:
    if not np.all(np.isfinite(bounds[1])):
        raise ValueError(
            "the messages move farther than the largest number: with this step size the steps "
            "diverge, or features are too large. Take a smaller step_size, or scale the features."
        )


def _sharing_bound(
    design: np.ndarray,
    weights: np.ndarray,
    convexity: np.ndarray,
    adjacency: np.ndarray,
    coupling: np.ndarray,
    step_size: np.ndarray,
    change: np.ndarray,
    unit: np.ndarray,
    rounds: int,
    keeps: bool,
    dtype: DTypeLike,
) -> tuple[np.ndarray, np.ndarray]:
    """Upper bounds of the sensitivities, ``[K, T]``, and the noise for them, ``[K]``."""
    objective = _objective(design, weights, convexity, adjacency, coupling)
    clients, _, dim = objective.design.shape
    step = float(step_size)
    coupling_term = (
        np.diagonal(objective.laplacian)[:, None, None] * np.diag(objective.coupling)[None]
    )
    identity = np.eye(dim)[None]
    slack = 2 * gamma(objective.terms + dim + 16)
    growth = 1 + 2 * gamma(8 * rounds + 8)  # for rounding in the bound of the error itself
    with np.errstate(over="ignore", invalid="ignore"):
        forget = identity - 2 * step * (objective.blocks + coupling_term)
        sizes = identity + 2 * step * (objective.block_sizes + np.abs(coupling_term))
        # The Frobenius norm bounds the effect of rounding in a product with the matrix.
        rounding = slack * np.linalg.norm(sizes, axis=(1, 2))
        first = 2 * step * float(change) * objective.weights[..., None] * objective.design
        moved = np.zeros_like(first)
        error = np.zeros(first.shape[:2])
        result = np.zeros((clients, rounds))
        factor = np.zeros(clients)
        if np.all(np.isfinite(rounding)):
            factor = spectral_norm_bound(forget, rounding)
        else:  # features so large that the next message is not a number
            first = np.full_like(first, np.inf)
        base = lengths(first, axis=2)
        for number in range(rounds if keeps else 1):
            length = lengths(moved, axis=2)
            # What is wrong with the last message moves on, and this step adds to it.
            error = factor[:, None] * error + rounding[:, None] * length + slack * base
            moved = moved @ forget + first
            after = (lengths(moved, axis=2) + error * growth) * (1 + slack)
            result[:, number] = np.max(after, axis=1)
        if not keeps:
            result[:] = result[:, :1]
        total = lengths(result, axis=1) * (1 + 4 * gamma(rounds + 8))
        total = np.where(np.isnan(total), np.inf, total)
        result = np.where(np.isnan(result), np.inf, result)
    return rounded_up(result, dtype), rounded_up(float(unit) * total, dtype)
