r"""Algorithms as operators on models, and what such operators are (Jung 2025, section 4.7).

A synchronous round is a map :math:`w^{(t)}=\mathcal Fw^{(t-1)}` of all clients' models (97), lines
1388-1443, and how it moves two points apart or together says whether its repetition converges: by a
factor below one (contractive) at that rate, not apart (non-expansive) with stale copies bounded,
:math:`\|\mathcal Fw-\mathcal Fv\|^2\le(\mathcal Fw-\mathcal Fv)^\top(w-v)` (firmly non-expansive)
to some fixed point.

The tests here look at pairs of points. *A violation is a proof*, with the pair that shows it,
beyond what rounding can do. *That none was found is evidence*, no more: of random pairs, and of
pairs turned into the direction that the operator stretches most, which for an affine symmetric
operator (gradient steps on a quadratic) is where the factor is attained. What is proved of FedGD
and FedRelax is in :mod:`fljax.theory.network_rates`.

Shapes: ``K`` clients, ``D`` parameters.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Key

from fljax import _check
from fljax._arguments import checked
from fljax._generator import as_key
from fljax.running import view
from fljax.simulation import Simulation

__all__ = [
    "Evidence",
    "FixedPoint",
    "contractive",
    "firmly_non_expansive",
    "fixed_point",
    "lipschitz",
    "non_expansive",
    "operator",
]

Operator = Callable[[Array], Array]

#: Of two sets of models: over all clients, or the farthest client's.
Norm = Literal["euclidean", "block"]
NORMS = ("euclidean", "block")

#: How often each pair is turned into the direction in which it was stretched.
TURNS = 20

#: What rounding may have done to a difference, in units of the last place of what is subtracted.
ULPS = 1000


@checked
def operator(simulation: Simulation, key: Key[Array, ""] | int = 0) -> Callable[[Array], Array]:
    r"""One synchronous round of a simulation as a map of its models, (127).

    The state is the one of clients that start at the given models, of which all know
    (:meth:`fljax.problems.Problem.starting_at`): the map of an algorithm is its own where that is
    all of its state, as of FedGD and FedRelax, of federated averaging (which starts at the mean) or
    diffusion; it is the first round alone of one with duals, momentum or schedules. Draws, where
    the round makes some, are those of the key, the same at every call.

    Args:
      simulation: whose round; what it measures does not matter.
      key: of the round's draws.

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
def _round(simulation: Simulation, key: Array, models: Any) -> Array:
    problem = simulation.problem
    shape, models = (problem.clients, problem.dim), jnp.asarray(models, problem.dtype)
    if models.shape != shape:
        raise ValueError(f"models must be of shape {shape}, got shape {models.shape}.")
    started = dataclasses.replace(simulation, problem=problem.starting_at(models))
    now = view(started, key)
    state = simulation.algorithm.init(now.problem, now.network)
    return jnp.broadcast_to(simulation.algorithm.step(state, now).model, shape)


class Evidence(NamedTuple):
    """What the pairs say; the worst of them is a counterexample where the property is violated."""

    violated: Bool[Array, ""]  # beyond rounding: a proof
    factor: Array  # []  the largest |F(w) - F(v)| / |w - v|; where firmly, of 2 F - I
    one: Array  # [K, D]  w
    other: Array  # [K, D]  v


@checked
def lipschitz(
    operator: Callable,
    around: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
    norm: Norm = "euclidean",
) -> Evidence:
    r"""A lower bound of the factor :math:`\sup\|\mathcal Fw-\mathcal Fv\|/\|w-v\|`, and its pair.

    Args:
      operator: :math:`\mathcal F`, traceable, of models ``[K, D]``; of one whose numbers are those
        of a pytree (:func:`operator`, a :func:`fljax.module`, :class:`jax.tree_util.Partial`) no
        more is compiled when these change.
      around: the mean of the points that are looked at, ``[K, D]``, such as a solution.
      key: of the draws.
      scale: their standard deviation, > 0.
      pairs: how many are drawn; each is looked at in twenty more directions.
      norm: ``"euclidean"``, or ``"block"``: :math:`\max_k\|w_k-v_k\|`, (131).

    Returns:
      Whose ``violated`` says that nothing is: any operator has a factor, if it is infinite.

    Raises:
      TypeError, ValueError: numbers out of range, an unknown norm, an operator that does not return
        models of the same shape.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> bound = lipschitz(lambda w: 0.5 * w[::-1], jnp.zeros((3, 2)), jax.random.key(0))
      >>> round(float(bound.factor), 4)
      0.5
    """
    return _worst(operator, around, key, scale, pairs, norm, jnp.inf)


@checked
def contractive(
    operator: Callable,
    factor: Float[Array, ""] | float,
    around: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
    norm: Norm = "euclidean",
) -> Evidence:
    r"""Whether :math:`\|\mathcal Fw-\mathcal Fv\|\le\kappa\|w-v\|` on pairs, section 4.7.

    Args:
      operator: as of :func:`lipschitz`.
      factor: :math:`\kappa`, in [0, 1).
      around: as of :func:`lipschitz`, as what follows.
      key: of the draws.
      scale: of the points.
      pairs: of them.
      norm: ``"euclidean"`` or ``"block"``.

    Raises:
      TypeError, ValueError: as of that; a factor out of range.
    """
    _check.interval("factor", factor, at_least=0, below=1)
    return _worst(operator, around, key, scale, pairs, norm, factor)


@checked
def non_expansive(
    operator: Callable,
    around: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
    norm: Norm = "euclidean",
) -> Evidence:
    r"""Whether :math:`\|\mathcal Fw-\mathcal Fv\|\le\|w-v\|` on pairs.

    Args, Raises: as of :func:`lipschitz`.
    """
    return _worst(operator, around, key, scale, pairs, norm, 1.0)


@checked
def firmly_non_expansive(
    operator: Callable,
    around: Float[Array, "clients dim"],
    key: Key[Array, ""],
    scale: Float[Array, ""] | float = 1.0,
    pairs: int = 64,
) -> Evidence:
    r"""Whether :math:`\|\mathcal Fw-\mathcal Fv\|^2\le(\mathcal Fw-\mathcal Fv)^\top(w-v)` on
    pairs, section 4.7; that is, whether :math:`2\mathcal F-I` is non-expansive.

    Proximal operators of convex functions are; gradient steps on :math:`w^\top Qw+q^\top w` where
    :math:`\eta\le1/(2\lambda_{\max})`, and not up to the :math:`1/\lambda_{\max}` that they
    converge with (the text has the step fixed two sentences before).

    Args, Raises: as of :func:`lipschitz`; its ``factor`` is that of :math:`2\mathcal F-I`.

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
    return _worst(reflected, around, key, scale, pairs, "euclidean", 1.0)


def _reflected(operator: Operator, models: Array) -> Array:
    return 2 * operator(models) - models


def _as_tree(operator: Operator) -> Operator:
    """The operator as a pytree: of its numbers, where it is one of a module's or a Partial."""
    return Partial(operator) if jax.tree_util.all_leaves([operator]) else operator


def _worst(
    operator: Operator, around: Array, key: Array, scale: Any, pairs: int, norm: str, bound: Any
) -> Evidence:
    _check.finite("around", around)
    _check.positive("scale", scale)
    _check.count("pairs", pairs)
    _check.choice("norm", norm, NORMS)
    around = jnp.asarray(around)
    _check_shape(operator, around)
    scale, bound = (jnp.asarray(value, around.dtype) for value in (scale, bound))
    return _searched(_as_tree(operator), around, key, scale, pairs, norm, bound)


def _check_shape(operator: Operator, models: Array) -> None:
    shape = jax.eval_shape(operator, models).shape
    if shape != models.shape:
        raise ValueError(
            f"the operator must return models of the shape {models.shape} that it is given, got "
            f"shape {shape}."
        )


@functools.partial(jax.jit, static_argnames=("pairs", "norm"))
def _searched(
    operator: Operator, around: Array, key: Array, scale: Array, pairs: int, norm: str, bound: Array
) -> Evidence:
    def size(difference: Array) -> Array:
        if norm == "block":
            return jnp.max(jnp.linalg.norm(difference, axis=1))
        return jnp.linalg.norm(difference)

    def looked_at(one: Array, other: Array) -> tuple[Array, Array, Array]:
        """The quotient, what rounding may have to do with it, the difference after."""
        images = operator(one), operator(other)
        distance = size(one - other)
        sizes = sum(size(value) for value in (one, other, *images))
        slack = ULPS * jnp.finfo(around.dtype).eps * sizes / distance
        return size(images[0] - images[1]) / distance, slack, images[0] - images[1]

    def search(key: Array) -> tuple[Array, Array, Array, Array]:
        draws = scale * jax.random.normal(key, (2, *around.shape), around.dtype)
        one, other = around + draws[0], around + draws[1]
        length = size(one - other)

        def turn(carry: tuple, _: None) -> tuple[tuple, None]:
            other, best = carry
            factor, slack, after = looked_at(one, other)
            bounds = (factor - slack, factor, one, other)
            best = jax.tree.map(
                lambda new, old: jnp.where(bounds[0] > best[0], new, old), bounds, best
            )
            long = size(after)
            ahead = one - length * after / jnp.where(long > 0, long, 1)
            return (jnp.where(long > 0, ahead, other), best), None

        none = jnp.asarray(-jnp.inf, around.dtype)
        start = (other, (none, none, one, other))
        return jax.lax.scan(turn, start, length=TURNS + 1)[0][1]

    bounds = jax.vmap(search)(jax.random.split(key, pairs))
    worst = jnp.argmax(bounds[0])
    sure, factor, one, other = (values[worst] for values in bounds)
    return Evidence(sure > bound, factor, one, other)


class FixedPoint(NamedTuple):
    """Where an operator's repetition ended."""

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
    r""":math:`\hat w=\mathcal F\hat w` (98), by repetition (97).

    A small last change is no small error: where a round contracts by :math:`\kappa`, the error is
    at most :math:`\kappa/(1-\kappa)` times it.

    Args:
      operator: :math:`\mathcal F`, traceable, of models ``[K, D]``.
      start: ``[K, D]``.
      tolerance: of a round's change over the models' size, > 0; by default ten units of the last
        place.
      most: rounds.

    Returns:
      The last models, and whether they had settled; they had not if the operator does not
      converge, and are beyond what numbers can hold the squares of if it diverges.

    Raises:
      TypeError, ValueError: numbers out of range, an operator that does not return models of the
        same shape.

    Example:
      >>> import jax.numpy as jnp
      >>> bound = fixed_point(lambda w: 0.5 * w + 1.0, jnp.zeros((3, 2)), tolerance=1e-6)
      >>> bool(bound.converged), round(float(bound.models[0, 0]), 4), round(float(bound.factor), 4)
      (True, 2.0, 0.5)
    """
    _check.finite("start", start)
    _check.count("most", most)
    start = jnp.asarray(start)
    if tolerance is None:
        tolerance = 10 * float(jnp.finfo(start.dtype).eps)
    _check.positive("tolerance", tolerance)
    _check_shape(operator, start)
    least = jnp.asarray(tolerance, start.dtype)
    return _repeated(_as_tree(operator), start, least, jnp.asarray(most, np.int32))


@jax.jit
def _repeated(operator: Operator, start: Array, least: Array, most: Array) -> FixedPoint:
    def moving(carry: tuple) -> Array:
        _, rounds, moved, _, size = carry
        return (rounds < most) & (moved > least * size) & ~jnp.isnan(moved)

    def once(carry: tuple) -> tuple:
        models, rounds, before, _, _ = carry
        new = operator(models)
        moved = jnp.linalg.norm(new - models)
        factor = moved / jnp.where(before > 0, before, 1)
        return new, rounds + 1, moved, factor, jnp.linalg.norm(new)

    nothing = jnp.asarray(jnp.inf, start.dtype)
    carry = (start, jnp.zeros_like(most), nothing, jnp.zeros_like(least), jnp.ones_like(least))
    models, rounds, moved, factor, size = jax.lax.while_loop(moving, once, carry)
    settled = jnp.isfinite(size) & (moved <= least * size)
    return FixedPoint(models, settled, rounds, moved / jnp.where(size > 0, size, 1), factor)
