r"""Algorithms as operators on models, and properties of operators (Jung 2025, section 4.7).

A synchronous round is a map :math:`w^{(t)}=\mathcal Fw^{(t-1)}` of all clients' models, (97),
section 4.7, and its effect on the distance of two points determines whether its iteration
converges: if the distance shrinks by a factor below one (contractive), at that rate; if it does not
grow (non-expansive), the iteration remains bounded with stale copies; and if
:math:`\|\mathcal Fw-\mathcal Fv\|^2\le(\mathcal Fw-\mathcal Fv)^\top(w-v)` (firmly non-expansive),
it converges to some fixed point.

The tests here evaluate pairs of points. *A violation is a proof*, given with the pair that shows
it, beyond the effect of rounding. *The absence of violations is only evidence*: from random pairs,
and from pairs turned toward the direction that the operator stretches most, in which an affine
symmetric operator (gradient steps on a quadratic) attains its factor. Proven results for FedGD and
FedRelax are in :mod:`fljax.theory.network_rates`.

Shapes: ``K`` clients, ``D`` parameters.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.prng import as_key
from fljax.simulation.running import view
from fljax.simulation.scenario import Simulation

__all__ = [
    "Evidence",
    "FixedPoint",
    "contractive",
    "firmly_non_expansive",
    "fixed_point",
    "lipschitz",
    "operator",
]

Operator = Callable[[Array], Array]

#: Distances of two sets of models: over all clients, or the largest of a client.
Norm = Literal["euclidean", "block"]
NORMS = ("euclidean", "block")

#: Number of times that each pair is turned toward the direction in which it was stretched.
TURNS = 20

#: Bound on the effect of rounding on a difference, in units in the last place of the operands.
ULPS = 1000


@checked
def operator(simulation: Simulation, key: Key[Array, ""] | int = 0) -> Callable[[Array], Array]:
    r"""One synchronous round of a simulation as a map of its models, (127).

    The state is that of clients that start at the given models, which are known to all
    (:meth:`fljax.problems.Problem.starting_at`). The map represents the algorithm if the models are
    its entire state, as for FedGD and FedRelax, federated averaging (which starts at the mean) or
    diffusion; for algorithms with dual variables, momentum or schedules it is only the first round.
    Random draws in the round are determined by the key, the same in every call.

    Args:
      simulation: the simulation; its metrics do not matter.
      key: PRNG key of the round's draws.

    Returns:
      A compiled, traceable function of models ``[K, D]``, to models ``[K, D]``: a
      :class:`jax.tree_util.Partial`, so that simulations that differ in numbers share programs.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2)
      >>> simulation = fl.Simulation(problem, fl.algorithms.ATC(0.1), fl.graphs.ring(5))
      >>> round_of = operator(simulation)
      >>> round_of(jnp.zeros((5, 2))).shape
      (5, 2)
    """
    return Partial(_round, dataclasses.replace(simulation, metrics=()), as_key(key))


@jax.jit
def _round(simulation: Simulation, key: Array, models: object) -> Array:
    problem = simulation.problem
    shape = (problem.clients, problem.dim)
    models = jnp.asarray(models, problem.dtype)
    if models.shape != shape:
        raise ValueError(f"models must be of shape {shape}, got shape {models.shape}.")
    started = dataclasses.replace(simulation, problem=problem.starting_at(models))
    now = view(started, key)
    state = simulation.algorithm.init(now.problem, now.network)
    return jnp.broadcast_to(simulation.algorithm.step(state, now).model, shape)


class Evidence(NamedTuple):
    """Result of a test on pairs; the worst pair is a counterexample to a violated property."""

    violated: Bool[Array, ""]  # beyond rounding: a proof
    factor: Array  # []  the largest |F(w) - F(v)| / |w - v|; where firmly, of 2 F - I
    one: Array  # [K, D]  w
    other: Array  # [K, D]  v


@checked
def lipschitz(
    operator: Callable,
    center: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
    norm: Norm = "euclidean",
) -> Evidence:
    r"""A lower bound on the factor :math:`\sup\|\mathcal Fw-\mathcal Fv\|/\|w-v\|`, and its pair.

    Args:
      operator: :math:`\mathcal F`, traceable, on models ``[K, D]``; if it is a pytree
        (:func:`operator`, a :func:`fljax.module`, :class:`jax.tree_util.Partial`), it is not
        recompiled when its numbers change.
      center: the mean of the points that are evaluated, ``[K, D]``, such as a solution.
      key: PRNG key of the draws.
      scale: standard deviation of the points, > 0.
      pairs: number of random pairs; each is evaluated in twenty further directions.
      norm: ``"euclidean"``, or ``"block"``: :math:`\max_k\|w_k-v_k\|`, (131).

    Returns:
      The evidence, with ``violated`` always false, as every operator has a factor, possibly
      infinite.

    Raises:
      TypeError, ValueError: numbers out of range, an unknown norm, an operator that does not return
        models of the same shape.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> bound = lipschitz(lambda w: 0.5 * w[::-1], jnp.zeros((3, 2)), jax.random.key(0))
      >>> round(float(bound.factor), 4)
      0.5
    """
    return _worst(operator, center, key, scale, pairs, norm, jnp.inf)


@checked
def contractive(
    operator: Callable,
    factor: Float[Array, ""] | float,
    center: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
    norm: Norm = "euclidean",
) -> Evidence:
    r"""Whether :math:`\|\mathcal Fw-\mathcal Fv\|\le\kappa\|w-v\|` on pairs, section 4.7.

    Args:
      operator: as for :func:`lipschitz`.
      factor: :math:`\kappa`, in [0, 1]; with one, whether the operator is non-expansive.
      center: as for :func:`lipschitz`.
      key: as for :func:`lipschitz`.
      scale: as for :func:`lipschitz`.
      pairs: as for :func:`lipschitz`.
      norm: ``"euclidean"`` or ``"block"``.

    Raises:
      TypeError, ValueError: as for :func:`lipschitz`; a factor out of range.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> center, key = jnp.zeros((3, 2)), jax.random.key(0)
      >>> def halved(w):
      ...     return 0.5 * w
      >>> bool(fl.theory.operators.contractive(halved, 0.6, center, key).violated)
      False
      >>> bool(fl.theory.operators.contractive(halved, 0.4, center, key).violated)
      True
    """
    checks.interval("factor", factor, at_least=0, at_most=1)
    return _worst(operator, center, key, scale, pairs, norm, factor)


@checked
def firmly_non_expansive(
    operator: Callable,
    center: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
) -> Evidence:
    r"""Whether :math:`\|\mathcal Fw-\mathcal Fv\|^2\le(\mathcal Fw-\mathcal Fv)^\top(w-v)` on
    pairs, section 4.7; that is, whether :math:`2\mathcal F-I` is non-expansive.

    Proximal operators of convex functions have this property; gradient steps on :math:`w^\top
    Qw+q^\top w` have it if :math:`\eta\le1/(2\lambda_{\max})`, and not up to
    :math:`1/\lambda_{\max}`, up to which they converge (the text fixes the step size two sentences
    before).

    Args, Raises: as for :func:`lipschitz`; its ``factor`` is that of :math:`2\mathcal F-I`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> key, at = jax.random.key(0), jnp.zeros((1, 1))
      >>> def taken(step, w):  # Exercise 4.7: gradient steps on w^2 / 2
      ...     return w - step * w
      >>> for step in (1.0, 1.5):
      ...     found = firmly_non_expansive(jax.tree_util.Partial(taken, step), at, key)
      ...     print(bool(found.violated))
      False
      True
    """
    reflected = Partial(_reflected, _as_tree(operator))
    return _worst(reflected, center, key, scale, pairs, "euclidean", 1.0)


def _reflected(operator: Operator, models: Array) -> Array:
    return 2 * operator(models) - models


def _as_tree(operator: Operator) -> Operator:
    """The operator as a pytree: itself if it is one (a module or a Partial), else wrapped."""
    return Partial(operator) if jax.tree_util.all_leaves([operator]) else operator


def _worst(
    operator: Operator,
    center: Array,
    key: Array,
    scale: Array | float,
    pairs: int,
    norm: str,
    bound: Array | float,
) -> Evidence:
    checks.finite("center", center)
    checks.positive("scale", scale)
    checks.count("pairs", pairs)
    checks.choice("norm", norm, NORMS)
    center = jnp.asarray(center)
    _check_shape(operator, center)
    scale, bound = (jnp.asarray(value, center.dtype) for value in (scale, bound))
    return _search_pairs(_as_tree(operator), center, key, scale, pairs, norm, bound)


def _check_shape(operator: Operator, models: Array) -> None:
    shape = jax.eval_shape(operator, models).shape
    if shape != models.shape:
        raise ValueError(
            f"the operator must return models of the shape {models.shape} that it is given, got "
            f"shape {shape}."
        )


@functools.partial(jax.jit, static_argnames=("pairs", "norm"))
def _search_pairs(
    operator: Operator, center: Array, key: Array, scale: Array, pairs: int, norm: str, bound: Array
) -> Evidence:
    def size(difference: Array) -> Array:
        if norm == "block":
            return jnp.max(jnp.linalg.norm(difference, axis=1))
        return jnp.linalg.norm(difference)

    def compare(first: Array, second: Array) -> tuple[Array, Array, Array]:
        """The quotient of distances, its rounding error, and the difference of the images."""
        images = operator(first), operator(second)
        distance = size(first - second)
        sizes = sum(size(value) for value in (first, second, *images))
        slack = ULPS * jnp.finfo(center.dtype).eps * sizes / distance
        return size(images[0] - images[1]) / distance, slack, images[0] - images[1]

    def search(key: Array) -> tuple[Array, Array, Array, Array]:
        draws = scale * jax.random.normal(key, (2, *center.shape), center.dtype)
        first = center + draws[0]
        second = center + draws[1]
        length = size(first - second)

        def iterate(carry: tuple, _: None) -> tuple[tuple, None]:
            second, best = carry
            factor, slack, after = compare(first, second)
            bounds = (factor - slack, factor, first, second)
            best = jax.tree.map(
                lambda new, old: jnp.where(bounds[0] > best[0], new, old), bounds, best
            )
            long = size(after)
            next_second = first - length * after / jnp.where(long > 0, long, 1)
            return (jnp.where(long > 0, next_second, second), best), None

        lowest = jnp.asarray(-jnp.inf, center.dtype)
        start = (second, (lowest, lowest, first, second))
        return jax.lax.scan(iterate, start, length=TURNS + 1)[0][1]

    bounds = jax.vmap(search)(jax.random.split(key, pairs))
    worst = jnp.argmax(bounds[0])
    least, factor, first, second = (values[worst] for values in bounds)
    return Evidence(least > bound, factor, first, second)


class FixedPoint(NamedTuple):
    """Result of the fixed-point iteration of an operator."""

    models: Array  # [K, D]
    converged: Bool[Array, ""]
    rounds: Array  # []
    change: Array  # []  the last round's, Euclidean, over the models' own size
    factor: Array  # []  that change over the one before: the rate, in the end


@checked
def fixed_point(
    operator: Callable,
    start: Float[Array, "clients dim"],
    tolerance: Float[Array, ""] | float | None = None,
    most: int = 10_000,
) -> FixedPoint:
    r"""The fixed point :math:`\hat w=\mathcal F\hat w` (98), by iteration (97).

    A small last change does not imply a small error: if a round contracts by :math:`\kappa`, the
    error is at most :math:`\kappa/(1-\kappa)` times the last change.

    Args:
      operator: :math:`\mathcal F`, traceable, of models ``[K, D]``.
      start: ``[K, D]``.
      tolerance: largest change in a round relative to the norm of the models, > 0; by default ten
        units in the last place.
      most: largest number of rounds.

    Returns:
      The last models, and whether they converged; if the operator diverges, the models are so large
      that their squares overflow.

    Raises:
      TypeError, ValueError: numbers out of range, an operator that does not return models of the
        same shape.

    Example:
      >>> import jax.numpy as jnp
      >>> bound = fixed_point(lambda w: 0.5 * w + 1.0, jnp.zeros((3, 2)), tolerance=1e-6)
      >>> bool(bound.converged), round(float(bound.models[0, 0]), 4), round(float(bound.factor), 4)
      (True, 2.0, 0.5)
    """
    checks.finite("start", start)
    checks.count("most", most)
    start = jnp.asarray(start)
    if tolerance is None:
        tolerance = 10 * float(jnp.finfo(start.dtype).eps)
    checks.positive("tolerance", tolerance)
    _check_shape(operator, start)
    least = jnp.asarray(tolerance, start.dtype)
    return _iterate(_as_tree(operator), start, least, jnp.asarray(most, np.int32))


@jax.jit
def _iterate(operator: Operator, start: Array, least: Array, most: Array) -> FixedPoint:
    def moving(carry: tuple) -> Array:
        _, rounds, moved, _, size = carry
        return (rounds < most) & (moved > least * size) & ~jnp.isnan(moved)

    def apply(carry: tuple) -> tuple:
        models, rounds, before, _, _ = carry
        new = operator(models)
        moved = jnp.linalg.norm(new - models)
        factor = moved / jnp.where(before > 0, before, 1)
        return new, rounds + 1, moved, factor, jnp.linalg.norm(new)

    unknown = jnp.asarray(jnp.inf, start.dtype)
    carry = (start, jnp.zeros_like(most), unknown, jnp.zeros_like(least), jnp.ones_like(least))
    models, rounds, moved, factor, size = jax.lax.while_loop(moving, apply, carry)
    settled = jnp.isfinite(size) & (moved <= least * size)
    return FixedPoint(models, settled, rounds, moved / jnp.where(size > 0, size, 1), factor)
