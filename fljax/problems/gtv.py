r"""Generalized total variation minimization: personalized models coupled by a similarity graph.

.. math:: \min_{w_1,\dots,w_K}\ \sum_kf_k(w_k)+\alpha\sum_{\{k,l\}\in\mathcal E}a_{kl}\,
   \phi(w_k-w_l)

(Jung 2025, (48); with the squared norm (49)): the sums run over clients and over undirected edges,
each taken once. :math:`\alpha=0` is local learning without cooperation; as it grows, so do the sets
of nodes whose models are nearly equal, and beyond some value each connected component has one
model, the minimizer of its clients' sum (section 3.3). With a norm for :math:`\phi` they are
*exactly* equal: the network lasso, and with :math:`f_k(w)=\|w-a_k\|^2` convex clustering (67).

There are three methods, chosen by smoothness. Least squares with a squared penalty is one linear
system of ``K D`` unknowns, never formed: conjugate gradients, preconditioned by each node's own
block (in the sample space when samples are fewer than parameters) and by the component of one model
common to all nodes. Other smooth losses are minimized by Newton's steps, each solved likewise.
Nonsmooth losses or penalties are handled by the primal-dual method of Chambolle and Pock, with the
local proxes of :mod:`fljax.problems.solvers` and a dual variable per edge, the flow of (68)-(71).
Edges are visited as slots of the neighbor table, each from both ends, so no scatter operation is
needed and the graph may be traced.

Shapes: ``K`` clients, ``N`` samples, ``P`` features, ``D`` parameters, ``E`` edges, ``S`` slots.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._linalg import norm, spd_inverse
from fljax._memory import on_cpu
from fljax._module import module, replace
from fljax._numerics import HIGHEST
from fljax.graphs import Graph
from fljax.graphs.tables import Part, add_rows, pair_codes
from fljax.problems.objectives import LeastSquares
from fljax.problems.problem import Problem
from fljax.problems.solvers import (
    Spectrum,
    decompose,
    factorize,
    is_quadratic,
    prox,
    refuse_clipping,
    strong_convexity,
)
from fljax.problems.variation import Penalty, SquaredNorm

__all__ = ["Certificate", "GTVMin", "Solution"]

#: The closed form is a dense system: of at most this many unknowns.
CLOSED_FORM_LIMIT = 4000
#: Up to this many features, a model common to all nodes is part of the preconditioner.
SHARED_LIMIT = 512
#: Default tolerances in units of rounding: the first for a residual, the second for a gap or
#: movement.
ROUNDINGS, GAP_ROUNDINGS = 128, 4096
#: Maximum number of restarts of conjugate gradients from the true residual.
CYCLES = 3
#: Of fewer unknowns, an iteration costs hardly less than one of several problems side by side.
SMALL = 256
NEWTON_STEPS, HALVINGS = 100, 30
#: Primal-dual iterations from one look at the gap to the next, and how far each is overdone.
BETWEEN_LOOKS, RELAXATION = 50, 1.7


class Solution(NamedTuple):
    """The solution of a solver, and its accuracy."""

    models: Array  # [K, D]
    residual: Array  # []  see `GTVMin.solution`
    iterations: Array  # []  passes over the edges


class Certificate(NamedTuple):
    r"""A lower bound on the minimum of the objective, from the dual problem (Jung 2025, (68)-(71)).

    Attributes:
      primal: ``[]``, the objective of the models.
      dual: ``[]``, the dual objective of the flow, a lower bound on the minimum.
      gap: ``[]``, ``primal - dual``, an upper bound on the suboptimality of the models.
      infeasibility: ``[]``, the norm of the part of the flow outside the domains of the conjugate
        losses. It is zero where every client's objective is strongly convex; otherwise the bound
        holds up to this error.
      flow: ``[E, D]``, the dual variable of each edge ``k < l`` in the order of ``network.edges``,
        from ``l`` to ``k``; ``None`` for a traced network.
    """

    primal: Array
    dual: Array
    gap: Array
    infeasibility: Array
    flow: Array | None


@module
class GTVMin:
    r"""Local objectives coupled by the variation of the models along the edges of a graph.

    Args:
      problem: the clients' objectives :math:`f_k`.
      network: the similarity graph, with weights :math:`a_{kl}`; it may be disconnected.
      coupling: :math:`\alpha\ge0`; with a squared penalty also ``[D]``, one per parameter: zero
        leaves a parameter private, a large value makes it common (personalized learning, section
        6.5).
      penalty: :math:`\phi`, see :mod:`fljax.problems.variation`.

    Raises:
      ValueError: a graph with another number of nodes, a negative coupling, a coupling per
        parameter with a penalty that is not squared, blocks with another number of parameters.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> labels = jnp.array([[0.0], [1.0], [5.0]])  # of one sample each, f_k(w) = (w - y_k)^2
      >>> problem = fl.problems.Problem(jnp.ones((3, 1, 1)), labels, fl.problems.LeastSquares())
      >>> coupled = GTVMin(problem, fl.graphs.path(3), coupling=1.0)
      >>> [round(float(model), 4) for model in coupled.solve()[:, 0]]
      [0.875, 1.75, 3.375]
      >>> lasso = GTVMin(problem, fl.graphs.path(3), 2.0, fl.problems.Norm())
      >>> [round(float(model), 4) for model in lasso.solve()[:, 0]]
      [1.0, 1.0, 4.0]
    """

    problem: Problem
    network: Graph
    coupling: Float[Array, "*dim"] | float
    penalty: Penalty = SquaredNorm()

    def validate(self) -> None:
        _check.registered("penalty", self.penalty)
        if self.network.nodes != self.problem.clients:
            raise ValueError(
                f"the network must have a node for each of the {self.problem.clients} clients, got "
                f"{self.network.nodes}."
            )
        _check.nonnegative("coupling", self.coupling)
        dim = self.problem.dim
        self.penalty.check(dim)
        if np.ndim(self.coupling):
            if np.shape(self.coupling) != (dim,):
                raise ValueError(
                    f"coupling must be one number or one for each of the {dim} parameters, got "
                    f"shape {np.shape(self.coupling)}."
                )
            if self.penalty.quadratic(dim) is None:
                raise ValueError(
                    "one coupling for each parameter needs a squared penalty, got "
                    f"{type(self.penalty).__name__}; Mixture and Blocks are penalties with "
                    "separate strengths for parts of a model."
                )

    def variation(self, models: Float[Array, "clients dim"]) -> Float[Array, ""]:
        r""":math:`\mathrm{GTV}=\sum_{\{k,l\}}a_{kl}\phi(w_k-w_l)` (32), without the coupling.

        Args:
          models: ``[K, D]``.
        """
        models = self._checked(models)
        return self._edge_sum(models, lambda weight, away: weight * self.penalty.value(away))

    def objective(self, models: Float[Array, "clients dim"]) -> Float[Array, ""]:
        """The objective that is minimized, see above.

        Args:
          models: ``[K, D]``.
        """
        models, coupling = self._checked(models), jnp.asarray(self.coupling)
        if coupling.ndim:
            square = self._square()
            assert square is not None
            coupled = self._edge_sum(
                models, lambda weight, away: weight * jnp.sum(_row(square, away) * away**2, -1)
            )
        else:
            coupled = coupling * self.variation(models)
        return jnp.sum(self.problem.objective(models)) + coupled

    def gradient(self, models: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of the objective: :math:`f_k'(w_k)+\alpha\sum_la_{kl}\phi'(w_k-w_l)`.

        Args:
          models: ``[K, D]``.
        """
        models, square = self._checked(models), self._square()
        if square is not None:
            coupled = 2 * square[None] * self._pull(models)
        else:
            parts = self.network.entries.parts
            slopes = [
                jnp.sum(part.weights[..., None] * self.penalty.gradient(_away(models, part)), 1)
                for part in parts
            ]
            coupled = jnp.asarray(self.coupling) * add_rows(parts, slopes)
        return self.problem.gradient(models) + coupled

    def solve(
        self, tolerance: float | None = None, iterations: int | None = None
    ) -> Float[Array, "clients dim"]:
        """Return minimizing models ``[K, D]``; if there are several, one of them.

        Works inside ``jit`` and ``vmap`` too, over seeds and couplings; there, convergence is not
        checked, see :meth:`solution`.

        Args:
          tolerance: as in :meth:`solution`.
          iterations: as in :meth:`solution`.

        Raises:
          ValueError: least squares with a squared penalty without a unique solution (the component
            is named); a problem that clips gradients.
          RuntimeError: the tolerance was not reached.
        """
        solution = self.solution(tolerance, iterations)
        aim = self._tolerance(tolerance)
        if _check.is_concrete(solution.residual) and not float(solution.residual) <= aim:
            raise RuntimeError(
                f"GTVMin stopped after {int(solution.iterations)} iterations at a relative "
                f"residual of {float(solution.residual):.2g}, above the tolerance {aim:.2g}; allow "
                "more iterations or a larger tolerance, or give a loss without a minimum a "
                "regularizer."
            )
        return solution.models

    def solution(self, tolerance: float | None = None, iterations: int | None = None) -> Solution:
        r"""Return minimizing models, with the residual that was reached.

        Args:
          tolerance: stop at this relative residual; by default near the precision of the float
            type. With a squared penalty and a smooth loss the residual is the norm of the gradient
            relative to the norms of its terms. Otherwise it is the relative change of models and
            flow in the last iteration or, for least squares, the duality gap relative to the
            objective's size if that is larger.
          iterations: maximum number of iterations; by default 20,000, or 200,000 for the
            primal-dual method.

        Raises:
          ValueError: as :meth:`solve`.
        """
        if tolerance is not None:
            _check.positive("tolerance", tolerance)
        if iterations is not None:
            _check.count("iterations", iterations)
        refuse_clipping(self.problem)
        square = self._square()
        problem = replace(self.problem, tasks=None, test=None, initial=None, statistics=None)
        smooth = problem.loss.curvature is not None and problem.regularizer.quadratic() is not None
        aim = jnp.asarray(self._tolerance(tolerance), problem.dtype)
        if square is None or not smooth:
            most = 200_000 if iterations is None else iterations
            solution = _primal_dual(replace(self, problem=problem), aim, most)
            return Solution(solution.models, solution.residual, solution.iterations)
        if is_quadratic(problem):
            self._require_unique(square)
        most = 20_000 if iterations is None else iterations
        return _smooth(replace(self, problem=problem), aim, most)

    def _tolerance(self, tolerance: float | None) -> float:
        if tolerance is not None:
            return float(tolerance)
        direct = self._square() is not None and is_quadratic(self.problem)
        return (ROUNDINGS if direct else GAP_ROUNDINGS) * float(jnp.finfo(self.problem.dtype).eps)

    def closed_form(self) -> Float[Array, "clients dim"]:
        r""":math:`\hat w=-\tfrac12Q^{-1}q` with the dense ``[K D, K D]`` matrix (55)-(58).

        For checking other solvers; in NumPy and double precision.

        Raises:
          ValueError: other than least squares with a squared penalty, more than 4000 unknowns, or
            no unique solution.
          TypeError: traced values.
        """
        square = self._square()
        problem = self.problem
        if square is None or not is_quadratic(problem):
            raise ValueError(
                "a closed form needs least squares, with no or a squared regularizer, and a "
                f"squared penalty, got {type(problem.loss).__name__} and "
                f"{type(self.penalty).__name__}; solve() takes them."
            )
        unknowns = problem.clients * problem.dim
        if unknowns > CLOSED_FORM_LIMIT:
            raise ValueError(
                f"the closed form is a dense system of {unknowns} unknowns, at most "
                f"{CLOSED_FORM_LIMIT} are taken; solve() never forms it."
            )
        if not all(map(_check.is_concrete, jax.tree.leaves(self))):
            raise TypeError("the closed form cannot be traced; solve() can.")
        self._require_unique(square)
        problem = problem.mapped()
        blocks = 2 * np.asarray(problem.second_moment(), np.float64)
        blocks += np.asarray(strong_convexity(problem), np.float64)[:, None, None] * np.eye(
            problem.dim
        )
        laplacian = np.asarray(self.network.laplacian_matrix(), np.float64)
        system = np.zeros((problem.clients, problem.dim) * 2)
        each = np.arange(problem.clients)
        system[each, :, each, :] = blocks
        system += 2 * np.einsum("kl,pq->kplq", laplacian, np.diag(np.asarray(square, np.float64)))
        moment = 2 * np.asarray(problem.correlation(problem.targets), np.float64)
        models = np.linalg.solve(system.reshape(unknowns, unknowns), moment.reshape(unknowns))
        return jnp.asarray(models.reshape(moment.shape), problem.dtype)

    def certificate(self, models: Float[Array, "clients dim"]) -> Certificate:
        r"""An upper bound on the suboptimality of models, from a feasible flow.

        With a squared penalty the flow is the models' own, :math:`u_e=2\alpha
        a_e(w_{e_+}-w_{e_-})`. For a norm, the flow is not determined where models are equal; it is
        then computed by the primal-dual method, started from the models.

        Args:
          models: ``[K, D]``.

        Raises:
          ValueError: a loss other than least squares, whose conjugate has no closed form.
        """
        models, problem = self._checked(models), self.problem
        if not is_quadratic(problem):
            raise ValueError(
                "a certificate needs least squares, with no or a squared regularizer, got "
                f"{type(problem.loss).__name__} with {type(problem.regularizer).__name__}."
            )
        parts = self.network.entries.parts
        square = self._square()
        if square is None:
            aim = jnp.asarray(self._tolerance(None), problem.dtype)
            flows = _primal_dual(self, aim, 200_000, models).flows
        else:
            flows = [
                2
                * part.weights[..., None]
                * _row(square, _away(models, part))
                * _away(models, part)
                for part in parts
            ]
        plain = replace(self, problem=replace(problem.mapped(), feature_bound=None))
        dual, beyond = _dual(plain, decompose(plain.problem), flows)
        primal = self.objective(models)
        return Certificate(primal, dual, primal - dual, beyond, self._flow(flows))

    def _checked(self, models: Any) -> Array:
        models = _check.array("models", models, 2)
        if np.shape(models) != (self.problem.clients, self.problem.dim):
            raise ValueError(
                f"models must be one for each of the {self.problem.clients} clients, of "
                f"{self.problem.dim} parameters, got shape {np.shape(models)}."
            )
        return jnp.asarray(models, self.problem.dtype)

    def _square(self) -> Array | None:
        """``[D]``, the coupling of each parameter's squared difference, if the penalty is that."""
        factor = self.penalty.quadratic(self.problem.dim)
        if factor is None:
            return None
        dtype = self.problem.dtype
        return jnp.asarray(self.coupling).astype(dtype) * factor.astype(dtype)

    def _edge_sum(self, models: Array, term: Callable[[Array, Array], Array]) -> Array:
        """Sum over the undirected edges, each of which is stored from both ends."""
        total = jnp.zeros((), models.dtype)
        for part in self.network.entries.parts:
            weight = part.weights.astype(models.dtype)
            total = total + jnp.sum(jnp.where(weight > 0, term(weight, _away(models, part)), 0))
        return total / 2

    def _pull(self, models: Array) -> Array:
        """The Laplacian's product, computed from differences to one node of each component.

        They are small where models are nearly equal, so a large coupling costs no digits.
        """
        return self.network.laplacian(models - models[self.network.components()])

    def _flow(self, flows: list[Array]) -> Array | None:
        """``[E, D]`` of the slots; the end of the larger number says it."""
        if not _check.is_concrete(self.network.degree):
            return None
        pieces, codes = [], []
        with jax.ensure_compile_time_eval():
            known = [jax.tree.map(np.asarray, part) for part in self.network.entries.parts]
        for (near, far, weights), flow in zip(known, flows, strict=True):
            far = np.arange(self.network.nodes)[None] if far is None else far
            far = np.broadcast_to(far, weights.shape)
            rows, slots = np.nonzero((weights > 0) & (near[:, None] > far))
            pieces.append(flow[rows, slots])
            codes.append(
                pair_codes(np.stack([far[rows, slots], near[rows]], 1), len(self.network.degree))
            )
        return jnp.concatenate(pieces)[np.argsort(np.concatenate(codes))]

    def _require_unique(self, square: Array) -> None:
        """Raise ``ValueError`` if known data leave a direction open; traced data pass unseen."""
        data = (self.problem.features, self.problem.weights, self.problem.strength, square)
        if not all(map(_check.is_concrete, (*data, self.network.degree))):
            return
        with jax.ensure_compile_time_eval():
            _check_unique(self, np.asarray(square))


def _check_unique(coupled: GTVMin, square: np.ndarray) -> None:
    r"""Raise unless, of each component, the sum of Hessians is non-singular.

    A direction is open if every client of the component is indifferent to it and it is equal at all
    of them in the coupled parameters. Those that are private each client must determine on its own;
    what it then says of the others are its samples less their projection on the private features.
    """
    problem = coupled.problem
    convexity = np.asarray(strong_convexity(problem), np.float64)
    convexity = np.broadcast_to(convexity, (problem.clients,))
    if np.all(convexity > 0):
        return
    scale = np.sqrt(np.asarray(problem.weights, np.float64))
    rows = scale[..., None] * np.asarray(problem.mapped().features, np.float64)
    if np.any(convexity > 0):
        own = np.sqrt(convexity)[:, None, None] * np.eye(problem.dim)
        rows = np.concatenate([rows, own], axis=1)
    shared = square > 0
    component = np.asarray(coupled.network.components())
    if not np.all(shared):
        private = rows[..., ~shared]
        singular = ~_positive(np.einsum("knp,knq->kpq", private, private))
        if np.any(singular):
            _refuse(coupled, np.flatnonzero(singular)[:1], private=bool(np.any(shared)))
        rows = rows[..., shared] - private @ (np.linalg.pinv(private) @ rows[..., shared])
    if not np.any(shared):
        return
    order = np.argsort(component, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        of_all = rows[members].reshape(-1, rows.shape[-1])
        if not _positive((of_all.T @ of_all)[None])[0]:
            _refuse(coupled, members, private=False)


def _positive(grams: np.ndarray) -> np.ndarray:
    """Which are non-singular, up to rounding."""
    scale = np.sqrt(np.einsum("kpp->kp", grams))  # whatever the units of the features
    grams = grams / np.maximum(scale[:, :, None] * scale[:, None, :], np.finfo(float).tiny)
    values = np.linalg.eigvalsh(grams)
    least = 8 * grams.shape[-1] * np.finfo(float).eps
    return np.all(scale > 0, axis=1) & (values[:, 0] > least * np.maximum(values[:, -1], 0))


def _refuse(coupled: GTVMin, members: np.ndarray, private: bool) -> None:
    shown = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
    if private:
        raise ValueError(
            f"GTVMin has no unique solution: the data of client {shown} do not determine its "
            "private parameters. Couple them, give it more samples, or a SquaredL2 regularizer."
        )
    who = f"the component of clients {shown}"
    if len(members) == 1:
        who = f"client {shown}, which nothing couples to others,"
    raise ValueError(
        f"GTVMin has no unique solution: the data of {who} do not determine a model. Add edges to "
        "clients with other data, more samples, or a SquaredL2 regularizer."
    )


# Edges by slots ------------------------------------------------------------------------------


def _row(values: Array, like: Array) -> Array:
    """``[D]`` beside ``[..., D]``."""
    return values.reshape((1,) * (like.ndim - 1) + (-1,))


def _away(models: Array, part: Part) -> Array:
    """``w_k - w_l`` of each stored pair, ``[R, S, D]``."""
    far = models[None] if part.neighbors is None else models[part.neighbors]
    return models.at[part.nodes].get(mode="clip")[:, None] - far


# Many solutions -------------------------------------------------------------------------------


def _in_turn(solver: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled solver that, mapped over couplings or seeds on a CPU, takes one after the other.

    Side by side all iterate until the last is done, and what is done is kept by copying it: eight
    couplings of a network lasso took two to five times as long.
    """

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def compiled(
        coupled: GTVMin, tolerance: Array, iterations: int, in_turn: bool, *start: Array
    ) -> Any:
        def one(coupled: GTVMin, tolerance: Array, *start: Array) -> Any:
            return solver(coupled, tolerance, iterations, *start)

        if in_turn:
            one = jax.custom_batching.sequential_vmap(one)
        return one(coupled, tolerance, *start)

    @functools.wraps(solver)
    def solve(coupled: GTVMin, tolerance: Array, iterations: int, *start: Array) -> Any:
        # Asked here, since what is compiled once may be traced for another device, too.
        large = coupled.problem.clients * coupled.problem.dim >= SMALL
        return compiled(coupled, tolerance, iterations, on_cpu() and large, *start)

    return solve


# A squared penalty and a smooth loss ----------------------------------------------------------


def _size(rows: Array) -> Array:
    return jnp.sqrt(jnp.sum(rows**2))


@_in_turn
def _smooth(coupled: GTVMin, tolerance: Array, iterations: int) -> Solution:
    problem = jax.tree.map(jnp.asarray, coupled.problem.mapped())
    problem = replace(problem, feature_bound=None)
    ready = replace(problem, statistics=problem._statistics())
    coupled = replace(coupled, problem=ready)
    square = coupled._square()
    assert square is not None
    convexity = strong_convexity(ready)
    pull = (
        convexity[:, None] + 2 * square[None] * coupled.network.degree.astype(square.dtype)[:, None]
    )
    precondition = _preconditioner(problem, pull)
    start = jnp.zeros((problem.clients, problem.dim), problem.dtype)
    still = _size(ready.loss_gradient(start))

    def residual(w, slope):
        terms = still + _size(ready.loss_gradient(w)) + _size(pull * w)
        return _size(slope) / jnp.where(terms > 0, terms, 1)

    def product(w):
        def of(direction):
            curved = jax.jvp(ready.loss_gradient, (w,), (direction,))[1]
            around = coupled.network.laplacian(direction)
            return curved + convexity[:, None] * direction + 2 * square[None] * around

        return of

    method = _refined if isinstance(ready.loss, LeastSquares) else _newton
    return method(coupled, product, precondition, start, residual, tolerance, iterations)


def _refined(coupled, product, precondition, start, residual, tolerance, iterations) -> Solution:
    """Conjugate gradients, and again from the true residual while that is the larger one."""
    slope = coupled.gradient(start)
    floor = tolerance * _size(slope)

    def going(carry):
        cycle, _, slope, used = carry
        return (cycle < CYCLES) & (_size(slope) > floor) & (used < iterations)

    def again(carry):
        cycle, w, slope, used = carry
        step, more = _conjugate_gradients(
            product(w), precondition, -slope, floor, iterations - used
        )
        w = w + step
        return cycle + 1, w, coupled.gradient(w), used + more

    zero = jnp.zeros((), jnp.int32)
    _, w, slope, used = jax.lax.while_loop(going, again, (zero, start, slope, zero))
    return Solution(w, residual(w, slope), used)


def _newton(coupled, product, precondition, start, residual, tolerance, iterations) -> Solution:
    """Newton's steps by conjugate gradients, halved until the objective falls enough.

    A loss that is flat in places, such as Huber's, leaves the Hessian singular; a share of the
    largest that the loss can have is added, which vanishes with the slope.
    """
    problem, eps = coupled.problem, jnp.finfo(start.dtype).eps

    def largest(direction):
        blocks = direction.reshape(problem.clients, problem.loss.outputs, -1)
        seen = jnp.einsum("knp,kop->kno", problem.design, blocks, precision=HIGHEST)
        seen = problem.loss.curvature * problem.weights[..., None] * seen
        back = jnp.einsum("kno,knp->kop", seen, problem.design, precision=HIGHEST)
        return back.reshape(direction.shape)

    first = _size(coupled.gradient(start))

    def going(carry):
        count, w, slope, _, used, stuck = carry
        left = (count < NEWTON_STEPS) & (used < iterations) & ~stuck
        return left & (residual(w, slope) > tolerance)

    def again(carry):
        count, w, slope, value, used, _ = carry
        size = _size(slope)
        relative = size / jnp.where(first > 0, first, 1)
        damping = jnp.minimum(0.1, relative)
        floor = jnp.minimum(0.1, jnp.sqrt(relative)) * size  # superlinear, no more than needed
        hessian = product(w)
        step, more = _conjugate_gradients(
            lambda direction: hessian(direction) + damping * largest(direction),
            precondition,
            -slope,
            floor,
            iterations - used,
        )
        along = jnp.sum(step * slope)

        def high(state):
            halvings, length, new = state
            enough = value + 1e-4 * length * along + 8 * eps * jnp.abs(value)
            return (halvings < HALVINGS) & ~(new <= enough)

        def halve(state):
            halvings, length, _ = state
            return halvings + 1, length / 2, coupled.objective(w + length / 2 * step)

        full = jnp.ones((), start.dtype)
        halvings, length, new = jax.lax.while_loop(
            high, halve, (jnp.zeros((), jnp.int32), full, coupled.objective(w + step))
        )
        moved = halvings < HALVINGS
        w = jnp.where(moved, w + length * step, w)
        new_slope = coupled.gradient(w)
        # At the level of rounding the slope stops falling; a halved step may let it rise before.
        stuck = ~moved | ((size <= jnp.sqrt(eps) * first) & (_size(new_slope) > size / 2))
        return count + 1, w, new_slope, jnp.where(moved, new, value), used + more, stuck

    zero = jnp.zeros((), jnp.int32)
    state = (zero, start, coupled.gradient(start), coupled.objective(start), zero, False)
    state = jax.tree.map(jnp.asarray, state)
    _, w, slope, _, used, _ = jax.lax.while_loop(going, again, state)
    return Solution(w, jnp.where(_falls_for_ever(coupled, w), jnp.inf, residual(w, slope)), used)


def _falls_for_ever(coupled: GTVMin, w: Array) -> Array:
    """Whether the objective falls along the ray from zero through ``w``, however far: it then has
    no minimum, though its slope vanishes.
    """
    eps = jnp.finfo(w.dtype).eps
    far = jnp.sum(coupled.gradient(w / jnp.sqrt(eps)) * w)
    scale = jnp.sum(coupled.problem.weights) * jnp.sum(jnp.abs(w))
    return (jnp.sum(coupled.gradient(w) * w) < 0) & (far <= 64 * eps * scale)


def _preconditioner(problem: Problem, pull: Array) -> Callable[[Array], Array]:
    r"""Each node's own block :math:`(H_k+\mathrm{diag}(s_k))^{-1}`, and the model that all share.

    ``H_k`` is the Hessian with the loss's curvature at its bound, the exact one of least squares.
    The second part takes over where a large coupling leaves the blocks blind: in moving all nodes.
    """
    width, outputs = problem.dim // problem.loss.outputs, problem.loss.outputs
    curvature = problem.loss.curvature
    assert curvature is not None
    by_samples = problem.samples < width
    shift = jnp.mean(pull.reshape(-1, outputs, width), axis=1)
    rows = jnp.sqrt(curvature * problem.weights)[..., None] * problem.design
    lift = jnp.sum(rows**2, axis=(1, 2)) / width + jnp.mean(shift, axis=1)
    lift = jnp.where(lift > 0, jnp.sqrt(jnp.finfo(pull.dtype).eps) * lift, 1)
    shift = shift + lift[:, None]
    if by_samples:
        inner = jnp.einsum("knp,kp,kmp->knm", rows, 1 / shift, rows, precision=HIGHEST)
        inner = spd_inverse(inner + jnp.eye(problem.samples, dtype=pull.dtype)[None])
    else:
        gram = jnp.einsum("knp,knq->kpq", rows, rows, precision=HIGHEST)
        inner = spd_inverse(gram + shift[..., None] * jnp.eye(width, dtype=pull.dtype)[None])

    def of_own(right):  # [K, O, P]
        if not by_samples:
            return jnp.einsum("kpq,koq->kop", inner, right, precision=HIGHEST)
        # Woodbury: never a P x P matrix when samples are few.
        scaled = right / shift[:, None]
        seen = jnp.einsum("knp,kop->kon", rows, scaled, precision=HIGHEST)
        seen = jnp.einsum("knm,kom->kon", inner, seen, precision=HIGHEST)
        back = jnp.einsum("knp,kon->kop", rows, seen, precision=HIGHEST)
        return scaled - back / shift[:, None]

    common = None
    if width <= SHARED_LIMIT:
        total = jnp.einsum("knp,knq->pq", rows, rows, precision=HIGHEST)
        least = jnp.sum(strong_convexity(problem) + lift)
        common = spd_inverse((total + least * jnp.eye(width, dtype=pull.dtype))[None])[0]

    def precondition(right):
        blocks = right.reshape(-1, outputs, width)
        inverse = of_own(blocks)
        if common is not None:
            all_ = jnp.matmul(jnp.sum(blocks, axis=0), common, precision=HIGHEST)
            inverse = inverse + all_[None]
        return inverse.reshape(right.shape)

    return precondition


def _conjugate_gradients(product, precondition, right, floor, iterations) -> tuple[Array, Array]:
    """The solution from zero, to a residual of norm ``floor``, and the iterations it took."""

    def going(carry):
        count, _, rest, _, _, flat = carry
        return (count < iterations) & (_size(rest) > floor) & ~flat

    def again(carry):
        count, x, rest, direction, along, _ = carry
        image = product(direction)
        curve = jnp.sum(direction * image)
        flat = ~(curve > 0)  # nothing is left but what no node has a say in
        length = jnp.where(flat, 0, along / jnp.where(flat, 1, curve))
        x, rest = x + length * direction, rest - length * image
        ready = precondition(rest)
        new = jnp.sum(rest * ready)
        return count + 1, x, rest, ready + new / along * direction, new, flat

    ready = precondition(right)
    state = (0, jnp.zeros_like(right), right, ready, jnp.sum(right * ready), False)
    state = jax.tree.map(jnp.asarray, state)
    state = (state[0].astype(jnp.int32), *state[1:])
    final = jax.lax.while_loop(going, again, state)
    return final[1], final[0]


# Everything else ------------------------------------------------------------------------------


class _Found(NamedTuple):
    models: Array
    residual: Array
    iterations: Array
    flows: list[Array]


def _dual(coupled: GTVMin, spectrum: Spectrum, flows: list[Array]) -> tuple[Array, Array]:
    """The dual objective (68) of a flow, and its infeasibility."""
    problem, parts = coupled.problem, coupled.network.entries.parts
    square = coupled._square()
    total = jnp.zeros((), problem.dtype)
    for part, flow in zip(parts, flows, strict=True):
        weight = part.weights.astype(flow.dtype)
        if square is not None:
            scale = weight[..., None] * _row(square, flow)
            terms = jnp.where(scale > 0, flow**2 / jnp.where(scale > 0, 4 * scale, 1), 0)
            total = total + jnp.sum(terms)
            continue
        scale = weight * jnp.asarray(coupled.coupling).astype(flow.dtype)
        some = scale > 0
        terms = coupled.penalty.conjugate(flow / jnp.where(some, scale, 1)[..., None])
        total = total + jnp.sum(jnp.where(some, scale * terms, 0))
    taken = -add_rows(parts, [jnp.sum(flow, axis=1) for flow in flows])
    local, beyond = _local_conjugate(problem, spectrum, taken)
    return -jnp.sum(local) - total / 2, _size(beyond)


def _local_conjugate(
    problem: Problem, spectrum: Spectrum, slope: Float[Array, "clients dim"]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    r""":math:`f_k^*(v)=\tfrac12(v+m)^\top H_k^+(v+m)-c`; how far ``v + m`` is from the range."""
    values, vectors, moment = spectrum
    convexity = jnp.broadcast_to(strong_convexity(problem), (problem.clients,))[:, None]
    right = slope + moment
    if problem.samples >= problem.dim:
        along = jnp.einsum("kpn,kp->kn", vectors, right, precision=HIGHEST)
        outside = jnp.zeros_like(convexity[:, 0])
    else:
        root = jnp.sqrt(2 * problem.weights)
        seen = root * problem.predictions(right)
        seen = jnp.einsum("knm,kn->km", vectors, seen, precision=HIGHEST)
        along = seen / jnp.sqrt(jnp.where(values > 0, values, 1))
    largest = jnp.max(values, axis=1, keepdims=True)
    open_ = values <= 64 * values.shape[1] * jnp.finfo(values.dtype).eps * largest
    kept = jnp.where(open_, 0, along)
    if problem.samples < problem.dim:
        scaled = kept / jnp.sqrt(jnp.where(open_, 1, values))
        back = root * jnp.einsum("knm,km->kn", vectors, scaled, precision=HIGHEST)
        outside = norm(right - problem.combination(back))
    else:
        outside = jnp.sqrt(jnp.sum(jnp.where(open_, along, 0) ** 2, axis=1))
    curved = jnp.sum(kept**2 / jnp.where(open_, 1, values + convexity), axis=1)
    firm = convexity[:, 0] > 0
    curved = curved + jnp.where(firm, outside**2 / jnp.where(firm, convexity[:, 0], 1), 0)
    constant = jnp.sum(problem.weights * problem.targets**2, axis=1)
    return curved / 2 - constant, jnp.where(firm, 0, outside)


def _total(arrays: Any) -> Array:
    return sum(jnp.sum(array) for array in jax.tree.leaves(arrays))  # pyright: ignore[reportReturnType]


@_in_turn
def _primal_dual(
    coupled: GTVMin, tolerance: Array, iterations: int, start: Array | None = None
) -> _Found:
    r"""Chambolle and Pock's method with diagonal steps, overrelaxed.

    Steps are :math:`\tau_k=s/n_k` of a node with :math:`n_k` neighbors and :math:`1/(2s)` of an
    edge (Pock and Chambolle 2011). Every so often ``s`` moves towards the ratio of what models and
    flow have traveled, ever more rarely. A loss that is not smooth has a dual variable of each
    sample as well, for its prox is one of predictions.
    """
    problem = jax.tree.map(jnp.asarray, coupled.problem.mapped())
    problem = replace(problem, feature_bound=None)
    coupled = replace(coupled, problem=problem)
    parts, dtype = coupled.network.entries.parts, problem.dtype
    penalty, coupling = coupled.penalty, jnp.asarray(coupled.coupling).astype(dtype)
    square = coupled._square()
    if square is not None:
        penalty, coupling = _Diagonal(square), jnp.ones((), dtype)
    radius = [coupling * part.weights.astype(dtype) for part in parts]
    neighbors = jnp.maximum(coupled.network.neighbor_counts(), 1).astype(dtype)[:, None]
    spectrum = decompose(problem) if is_quadratic(problem) else None
    pointwise = problem.loss.curvature is None
    pull, hold = neighbors, jnp.ones((1, 1), dtype)
    if pointwise:
        size = jnp.where(problem.weights[..., None] > 0, jnp.abs(problem.design), 0)
        pull = neighbors + jnp.max(jnp.sum(size, axis=1), axis=1, keepdims=True)
        hold = jnp.maximum(jnp.sum(size, axis=2), jnp.finfo(dtype).tiny)

    def edges_towards(lead, scale, flows):
        for part, flow, bound in zip(parts, flows, radius, strict=True):
            moved = flow + _away(lead, part) / (2 * scale)
            # Moreau: the prox of the conjugate from the penalty's own.
            shrunk = penalty.prox(2 * scale * moved, 2 * scale * bound) / (2 * scale)
            yield jnp.where(bound[..., None] > 0, moved - shrunk, 0)

    def samples_towards(lead, scale, dual):
        step = 1 / (scale * hold)
        moved = dual + step * problem.predictions(lead)
        weight = jnp.where(problem.weights > 0, problem.weights, 1)
        nearest = problem.loss.prox(moved / step, problem.targets, weight / step)
        return jnp.where(problem.weights > 0, moved - step * nearest, 0)

    def iterate(factor, scale, state):
        w, dual, _, _ = state
        flows, samples = dual
        force = add_rows(parts, [jnp.sum(flow, axis=1) for flow in flows])
        if pointwise:
            center = w - scale / pull * (force + problem.combination(samples))
            new = problem.regularizer.prox(center, scale / pull * problem.share[:, None])
        else:
            new = prox(problem, factor, w - scale / pull * force, w)
        lead = 2 * new - w
        towards = list(edges_towards(lead, scale, flows))
        towards = (towards, samples_towards(lead, scale, samples) if pointwise else samples)
        w = w + RELAXATION * (new - w)
        dual = jax.tree.map(lambda old, to: old + RELAXATION * (to - old), dual, towards)
        return w, dual, new, towards

    def judge(state, before):
        (last, kept), (new, proposed) = before, state[2:]
        tiny = jnp.finfo(dtype).tiny
        flowed = _total(jax.tree.map(lambda a, b: (a - b) ** 2, proposed, kept))
        size = _total(jax.tree.map(jnp.square, proposed))
        moved = _size(new - last) / jnp.maximum(_size(new), tiny)
        moved = jnp.maximum(moved, jnp.sqrt(flowed / jnp.maximum(size, tiny)))
        if spectrum is None:
            return moved
        dual, beyond = _dual(coupled, spectrum, proposed[0])
        primal, slopes = coupled.objective(new), _size(spectrum.moment)
        size = jnp.abs(primal) + jnp.abs(dual)
        gap = jnp.abs(primal - dual) / jnp.where(size > 0, size, 1)
        beyond = beyond / jnp.where(slopes > 0, slopes, 1)
        return jnp.maximum(jnp.maximum(gap, beyond), moved)

    def going(carry):
        count, residual, *_ = carry
        return (count < iterations) & ~(residual <= tolerance)

    def look(carry):
        count, _, scale, state, origin, due = carry
        factor = None if pointwise else factorize(problem, (pull / scale)[:, 0])
        step = functools.partial(iterate, factor, scale)
        state = jax.lax.fori_loop(0, BETWEEN_LOOKS - 1, lambda _, s: step(s), state)
        before = state[2:]
        state = step(state)
        count = count + BETWEEN_LOOKS
        traveled = jnp.sum(pull * (state[0] - origin[0]) ** 2)
        flowed = _total(jax.tree.map(lambda a, b: (a - b) ** 2, state[1], origin[1]))
        ratio = jnp.sqrt(traveled / jnp.maximum(flowed, jnp.finfo(dtype).tiny))
        usable = (count >= due) & (traveled > 0) & (flowed > 0)
        ratio = jnp.clip(ratio / scale, 0.1, 10.0)
        scale = jnp.where(usable, scale * jnp.sqrt(ratio), scale)
        origin = jax.tree.map(
            lambda old, new: jnp.where(count >= due, new, old), origin, (state[0], state[1])
        )
        due = jnp.where(count >= due, 2 * due, due)
        return count, judge(state, before), scale, state, origin, due

    w = jnp.zeros((problem.clients, problem.dim), dtype) if start is None else start
    flows = [jnp.zeros((*part.weights.shape, problem.dim), dtype) for part in parts]
    dual = (flows, jnp.zeros_like(problem.targets))
    # Models travel about as far as those of clients alone are apart, a flow as its bound allows.
    local = prox(problem, factorize(problem, jnp.ones(problem.clients, dtype)), w, w)
    spread = jnp.sqrt(jnp.mean((local - jnp.mean(local, axis=0, keepdims=True)) ** 2))
    edges = sum(jnp.sum(bound > 0) for bound in radius)
    force = jnp.sqrt(_total([bound**2 for bound in radius]) / jnp.maximum(edges, 1).astype(dtype))
    scale = jnp.where((spread > 0) & (force > 0), spread / jnp.where(force > 0, force, 1), 1)
    state = (w, dual, w, dual)
    none, first = jnp.zeros((), jnp.int32), jnp.asarray(2 * BETWEEN_LOOKS, jnp.int32)
    carry = (none, jnp.asarray(jnp.inf, dtype), scale, state, (w, dual), first)
    count, residual, _, state, _, _ = jax.lax.while_loop(going, look, carry)
    return _Found(state[2], residual, count, state[3][0])


class _Diagonal(NamedTuple):
    """The squared penalty with a factor of each parameter."""

    factor: Array  # [D]

    def prox(self, point: Array, step: Array) -> Array:
        return point / (1 + 2 * step[..., None] * _row(self.factor, point))
