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
common to all nodes. Other smooth losses are minimized by Newton's steps, each solved in the same
way. Nonsmooth losses or penalties are handled by the primal-dual method of Chambolle and Pock, with
the local proxes of :mod:`fljax.problems.solvers` and a dual variable per edge, the flow of
(68)-(71). Edges are visited as slots of the neighbor table, each from both ends, so no scatter
operation is needed and the graph may be traced.

Shapes: ``K`` clients, ``N`` samples, ``P`` features, ``D`` parameters, ``E`` edges, ``S`` slots.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.devices import on_cpu
from fljax._core.linalg import norm, spd_inverse
from fljax._core.module import module, replace
from fljax._core.numerics import HIGHEST
from fljax.graphs import Graph
from fljax.graphs.neighbor_tables import TablePart, add_rows, pair_codes
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

#: The closed form is a dense system: of at most this many unknowns.
CLOSED_FORM_LIMIT = 4000
#: Up to this many features, a model common to all nodes is part of the preconditioner.
SHARED_LIMIT = 512
#: Default tolerances in units of rounding: the first for a residual, the second for a gap or
#: movement.
RESIDUAL_ROUNDINGS = 128
GAP_ROUNDINGS = 4096
#: Maximum number of restarts of conjugate gradients from the true residual, which the recursive
#: one leaves behind by rounding errors.
MAX_RESTARTS = 3
#: With fewer unknowns, an iteration of one problem costs about as much as one of a whole batch, so
#: mapped problems are solved as a batch.
SEQUENTIAL_FROM = 256
#: Largest number of Newton steps, and of halvings of one step.
NEWTON_STEPS = 100
HALVINGS = 30
#: Primal-dual iterations between two evaluations of the gap, which cost as much as several; and
#: the overrelaxation of each iteration, below 2.
CHECK_INTERVAL = 50
RELAXATION = 1.7


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
        checks.registered("penalty", self.penalty)
        if self.network.nodes != self.problem.clients:
            raise ValueError(
                f"the network must have a node for each of the {self.problem.clients} clients, got "
                f"{self.network.nodes}."
            )
        checks.nonnegative("coupling", self.coupling)
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
        models = self._checked(models)
        coupling = jnp.asarray(self.coupling)
        if coupling.ndim:
            square = self._squared_coupling()
            assert square is not None
            coupled = self._edge_sum(
                models,
                lambda weight, away: weight * jnp.sum(_broadcast_row(square, away) * away**2, -1),
            )
        else:
            coupled = coupling * self.variation(models)
        return jnp.sum(self.problem.objective(models)) + coupled

    def gradient(self, models: Float[Array, "clients dim"]) -> Float[Array, "clients dim"]:
        r"""A subgradient of the objective: :math:`f_k'(w_k)+\alpha\sum_la_{kl}\phi'(w_k-w_l)`.

        Args:
          models: ``[K, D]``.
        """
        models = self._checked(models)
        square = self._squared_coupling()
        if square is not None:
            coupled = 2 * square[None] * self._laplacian_product(models)
        else:
            parts = self.network.entries.parts
            slopes = [
                jnp.sum(
                    part.weights[..., None] * self.penalty.gradient(_differences(models, part)), 1
                )
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
        if checks.is_concrete(solution.residual) and not float(solution.residual) <= aim:
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
            checks.positive("tolerance", tolerance)
        if iterations is not None:
            checks.count("iterations", iterations)
        refuse_clipping(self.problem)
        square = self._squared_coupling()
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
        return _solve_smooth(replace(self, problem=problem), aim, most)

    def _tolerance(self, tolerance: float | None) -> float:
        if tolerance is not None:
            return float(tolerance)
        direct = self._squared_coupling() is not None and is_quadratic(self.problem)
        return (RESIDUAL_ROUNDINGS if direct else GAP_ROUNDINGS) * float(
            jnp.finfo(self.problem.dtype).eps
        )

    def closed_form(self) -> Float[Array, "clients dim"]:
        r""":math:`\hat w=-\tfrac12Q^{-1}q` with the dense ``[K D, K D]`` matrix (55)-(58).

        For checking other solvers; in NumPy and double precision.

        Raises:
          ValueError: other than least squares with a squared penalty, more than 4000 unknowns, or
            no unique solution.
          TypeError: traced values.
        """
        square = self._squared_coupling()
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
        if not all(map(checks.is_concrete, jax.tree.leaves(self))):
            raise TypeError("the closed form cannot be traced; solve() can.")
        self._require_unique(square)
        problem = problem.mapped()
        blocks = 2 * np.asarray(problem.second_moment(), np.float64)
        blocks += np.asarray(strong_convexity(problem), np.float64)[:, None, None] * np.eye(
            problem.dim
        )
        laplacian = np.asarray(self.network.laplacian_matrix(), np.float64)
        system = np.zeros((problem.clients, problem.dim) * 2)
        clients = np.arange(problem.clients)
        system[clients, :, clients, :] = blocks
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
        models = self._checked(models)
        problem = self.problem
        if not is_quadratic(problem):
            raise ValueError(
                "a certificate needs least squares, with no or a squared regularizer, got "
                f"{type(problem.loss).__name__} with {type(problem.regularizer).__name__}."
            )
        parts = self.network.entries.parts
        square = self._squared_coupling()
        if square is None:
            aim = jnp.asarray(self._tolerance(None), problem.dtype)
            flows = _primal_dual(self, aim, 200_000, models).flows
        else:
            flows = [
                2
                * part.weights[..., None]
                * _broadcast_row(square, _differences(models, part))
                * _differences(models, part)
                for part in parts
            ]
        plain = replace(self, problem=replace(problem.mapped(), feature_bound=None))
        dual, beyond = _dual(plain, decompose(plain.problem), flows)
        primal = self.objective(models)
        return Certificate(primal, dual, primal - dual, beyond, self._flow(flows))

    def _checked(self, argument: object) -> Array:
        models = checks.array("models", argument, 2)
        if np.shape(models) != (self.problem.clients, self.problem.dim):
            raise ValueError(
                f"models must be one for each of the {self.problem.clients} clients, of "
                f"{self.problem.dim} parameters, got shape {np.shape(models)}."
            )
        return jnp.asarray(models, self.problem.dtype)

    def _squared_coupling(self) -> Array | None:
        """``[D]``, the coupling of each parameter's squared difference; ``None`` for penalties that
        are not squared.
        """
        factor = self.penalty.quadratic(self.problem.dim)
        if factor is None:
            return None
        dtype = self.problem.dtype
        return jnp.asarray(self.coupling).astype(dtype) * factor.astype(dtype)

    def _edge_sum(self, models: Array, term: Callable[[Array, Array], Array]) -> Array:
        """Sum over the undirected edges; the table stores each from both ends."""
        total = jnp.zeros((), models.dtype)
        for part in self.network.entries.parts:
            weight = part.weights.astype(models.dtype)
            total = total + jnp.sum(
                jnp.where(weight > 0, term(weight, _differences(models, part)), 0)
            )
        return total / 2

    def _laplacian_product(self, models: Array) -> Array:
        """The Laplacian's product, computed from differences to one node of each component.

        They are small where models are nearly equal, so a large coupling costs no digits.
        """
        return self.network.laplacian(models - models[self.network.components()])

    def _flow(self, flows: list[Array]) -> Array | None:
        """``[E, D]`` from the slots of the table: of the two copies, that of the larger node."""
        if not checks.is_concrete(self.network.degree):
            return None
        pieces = []
        codes = []
        with jax.ensure_compile_time_eval():
            parts = [jax.tree.map(np.asarray, part) for part in self.network.entries.parts]
        for (near, far, weights), flow in zip(parts, flows, strict=True):
            far = np.arange(self.network.nodes)[None] if far is None else far
            far = np.broadcast_to(far, weights.shape)
            rows, slots = np.nonzero((weights > 0) & (near[:, None] > far))
            pieces.append(flow[rows, slots])
            codes.append(
                pair_codes(np.stack([far[rows, slots], near[rows]], 1), len(self.network.degree))
            )
        return jnp.concatenate(pieces)[np.argsort(np.concatenate(codes))]

    def _require_unique(self, square: Array) -> None:
        """Raise ``ValueError`` if data do not determine the models; traced data are not checked."""
        data = (self.problem.features, self.problem.weights, self.problem.strength, square)
        if not all(map(checks.is_concrete, (*data, self.network.degree))):
            return
        with jax.ensure_compile_time_eval():
            _require_determined(self, np.asarray(square))


def _require_determined(coupled: GTVMin, square: np.ndarray) -> None:
    r"""Raise unless the sum of Hessians of each component is non-singular.

    A direction is undetermined if it changes no client's objective and the coupled parameters
    change equally at all clients of the component. Private parameters must be determined by each
    client alone; its samples then determine the coupled ones by their features minus the projection
    on the private features.
    """
    problem = coupled.problem
    convexity = np.asarray(strong_convexity(problem), np.float64)
    convexity = np.broadcast_to(convexity, (problem.clients,))
    if np.all(convexity > 0):
        return
    scale = np.sqrt(np.asarray(problem.weights, np.float64))
    rows = scale[..., None] * np.asarray(problem.mapped().features, np.float64)
    if np.any(convexity > 0):
        convex_rows = np.sqrt(convexity)[:, None, None] * np.eye(problem.dim)
        rows = np.concatenate([rows, convex_rows], axis=1)
    shared = square > 0
    component = np.asarray(coupled.network.components())
    if not np.all(shared):
        private = rows[..., ~shared]
        singular = ~_is_nonsingular(np.einsum("knp,knq->kpq", private, private))
        if np.any(singular):
            _raise_not_unique(coupled, np.flatnonzero(singular)[:1], private=bool(np.any(shared)))
        rows = rows[..., shared] - private @ (np.linalg.pinv(private) @ rows[..., shared])
    if not np.any(shared):
        return
    order = np.argsort(component, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        of_all = rows[members].reshape(-1, rows.shape[-1])
        if not _is_nonsingular((of_all.T @ of_all)[None])[0]:
            _raise_not_unique(coupled, members, private=False)


def _is_nonsingular(grams: np.ndarray) -> np.ndarray:
    """Whether Gram matrices are non-singular, up to rounding and in any units of the features."""
    scale = np.sqrt(np.einsum("kpp->kp", grams))
    grams = grams / np.maximum(scale[:, :, None] * scale[:, None, :], np.finfo(float).tiny)
    values = np.linalg.eigvalsh(grams)
    least = 8 * grams.shape[-1] * np.finfo(float).eps
    return np.all(scale > 0, axis=1) & (values[:, 0] > least * np.maximum(values[:, -1], 0))


def _raise_not_unique(coupled: GTVMin, members: np.ndarray, private: bool) -> None:
    """Raise the ``ValueError`` that names the clients whose models are not determined."""
    numbers = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
    if private:
        raise ValueError(
            f"GTVMin has no unique solution: the data of client {numbers} do not determine its "
            "private parameters. Couple them, give it more samples, or a SquaredL2 regularizer."
        )
    subject = f"the component of clients {numbers}"
    if len(members) == 1:
        subject = f"client {numbers}, which nothing couples to others,"
    raise ValueError(
        f"GTVMin has no unique solution: the data of {subject} do not determine a model. Add edges "
        "to clients with other data, more samples, or a SquaredL2 regularizer."
    )


# Edges by slots ------------------------------------------------------------------------------


def _broadcast_row(values: Array, rows: Array) -> Array:
    """``[D]`` with as many axes as rows ``[..., D]``."""
    return values.reshape((1,) * (rows.ndim - 1) + (-1,))


def _differences(models: Array, part: TablePart) -> Array:
    """``w_k - w_l`` of each stored pair, ``[R, S, D]``."""
    far = models[None] if part.neighbors is None else models[part.neighbors]
    return models.at[part.nodes].get(mode="clip")[:, None] - far


# Many solutions -------------------------------------------------------------------------------


def _one_at_a_time(solver: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a solver so that, under ``vmap`` on a CPU, it solves one problem after the other.

    In a batched ``while_loop`` all problems iterate until the last one has converged, and finished
    ones are copied in every iteration: eight couplings of a network lasso took two to five times as
    long.
    """

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def compiled(
        coupled: GTVMin, tolerance: Array, iterations: int, in_turn: bool, *start: Array
    ) -> Any:
        def solve_one(coupled: GTVMin, tolerance: Array, *start: Array) -> Any:
            return solver(coupled, tolerance, iterations, *start)

        if in_turn:
            solve_one = jax.custom_batching.sequential_vmap(solve_one)
        return solve_one(coupled, tolerance, *start)

    @functools.wraps(solver)
    def solve(coupled: GTVMin, tolerance: Array, iterations: int, *start: Array) -> Any:
        # The device is looked up here, outside of the compiled function, whose trace is cached.
        large = coupled.problem.clients * coupled.problem.dim >= SEQUENTIAL_FROM
        return compiled(coupled, tolerance, iterations, on_cpu() and large, *start)

    return solve


# A squared penalty and a smooth loss ----------------------------------------------------------


def _norm(rows: Array) -> Array:
    return jnp.sqrt(jnp.sum(rows**2))


@_one_at_a_time
def _solve_smooth(coupled: GTVMin, tolerance: Array, iterations: int) -> Solution:
    """Solve a problem with a squared penalty and a smooth loss by conjugate gradients."""
    problem = jax.tree.map(jnp.asarray, coupled.problem.mapped())
    problem = replace(problem, feature_bound=None)
    ready = replace(problem, statistics=problem._statistics())
    coupled = replace(coupled, problem=ready)
    square = coupled._squared_coupling()
    assert square is not None
    convexity = strong_convexity(ready)
    weights = (
        convexity[:, None] + 2 * square[None] * coupled.network.degree.astype(square.dtype)[:, None]
    )
    precondition = _preconditioner(problem, weights)
    start = jnp.zeros((problem.clients, problem.dim), problem.dtype)
    still = _norm(ready.loss_gradient(start))

    def residual(w, gradient):
        terms = still + _norm(ready.loss_gradient(w)) + _norm(weights * w)
        return _norm(gradient) / jnp.where(terms > 0, terms, 1)

    def product(w):
        def hessian_product(direction):
            curved = jax.jvp(ready.loss_gradient, (w,), (direction,))[1]
            coupled_direction = coupled.network.laplacian(direction)
            return curved + convexity[:, None] * direction + 2 * square[None] * coupled_direction

        return hessian_product

    method = _refined if isinstance(ready.loss, LeastSquares) else _newton
    return method(coupled, product, precondition, start, residual, tolerance, iterations)


def _refined(coupled, product, precondition, start, residual, tolerance, iterations) -> Solution:
    """Conjugate gradients, restarted from the true residual while that exceeds the tolerance."""
    gradient = coupled.gradient(start)
    floor = tolerance * _norm(gradient)

    def unfinished(carry):
        cycle, _, gradient, used = carry
        return (cycle < MAX_RESTARTS) & (_norm(gradient) > floor) & (used < iterations)

    def cycle_once(carry):
        cycle, w, gradient, used = carry
        step, more = _conjugate_gradients(
            product(w), precondition, -gradient, floor, iterations - used
        )
        w = w + step
        return cycle + 1, w, coupled.gradient(w), used + more

    zero = jnp.zeros((), jnp.int32)
    _, w, gradient, used = jax.lax.while_loop(unfinished, cycle_once, (zero, start, gradient, zero))
    return Solution(w, residual(w, gradient), used)


def _newton(coupled, product, precondition, start, residual, tolerance, iterations) -> Solution:
    """Newton's steps by conjugate gradients, halved until the objective decreases enough.

    A loss with flat parts, such as Huber's, makes the Hessian singular: a share of its upper bound
    is added as damping, proportional to the norm of the gradient, so that convergence stays fast.
    """
    problem = coupled.problem
    eps = jnp.finfo(start.dtype).eps

    def largest(direction):
        blocks = direction.reshape(problem.clients, problem.loss.outputs, -1)
        predictions = jnp.einsum("knp,kop->kno", problem.design, blocks, precision=HIGHEST)
        predictions = problem.loss.curvature * problem.weights[..., None] * predictions
        back = jnp.einsum("kno,knp->kop", predictions, problem.design, precision=HIGHEST)
        return back.reshape(direction.shape)

    first = _norm(coupled.gradient(start))

    def unfinished(carry):
        count, w, gradient, _, used, stuck = carry
        left = (count < NEWTON_STEPS) & (used < iterations) & ~stuck
        return left & (residual(w, gradient) > tolerance)

    def newton_step(carry):
        count, w, gradient, value, used, _ = carry
        size = _norm(gradient)
        relative = size / jnp.where(first > 0, first, 1)
        damping = jnp.minimum(0.1, relative)
        floor = jnp.minimum(0.1, jnp.sqrt(relative)) * size  # superlinear convergence
        hessian = product(w)
        step, more = _conjugate_gradients(
            lambda direction: hessian(direction) + damping * largest(direction),
            precondition,
            -gradient,
            floor,
            iterations - used,
        )
        decrease = jnp.sum(step * gradient)

        def high(state):
            halvings, length, new = state
            enough = value + 1e-4 * length * decrease + 8 * eps * jnp.abs(value)
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
        # At the level of rounding errors the gradient stops decreasing. Only steps whose gradient
        # is small count, as it may increase after a halved step before.
        stuck = ~moved | ((size <= jnp.sqrt(eps) * first) & (_norm(new_slope) > size / 2))
        return count + 1, w, new_slope, jnp.where(moved, new, value), used + more, stuck

    zero = jnp.zeros((), jnp.int32)
    state = (zero, start, coupled.gradient(start), coupled.objective(start), zero, False)
    state = jax.tree.map(jnp.asarray, state)
    _, w, gradient, _, used, _ = jax.lax.while_loop(unfinished, newton_step, state)
    return Solution(
        w, jnp.where(_decreases_forever(coupled, w), jnp.inf, residual(w, gradient)), used
    )


def _decreases_forever(coupled: GTVMin, w: Array) -> Array:
    """Whether the objective decreases along the whole ray from zero through ``w``: it then has no
    minimum, although its gradient vanishes (separable data without a regularizer).
    """
    eps = jnp.finfo(w.dtype).eps
    far = jnp.sum(coupled.gradient(w / jnp.sqrt(eps)) * w)
    scale = jnp.sum(coupled.problem.weights) * jnp.sum(jnp.abs(w))
    return (jnp.sum(coupled.gradient(w) * w) < 0) & (far <= 64 * eps * scale)


def _preconditioner(problem: Problem, coupling: Array) -> Callable[[Array], Array]:
    r"""The sum of two inverses: each node's block :math:`(H_k+\mathrm{diag}(s_k))^{-1}`, and that
    of a model common to all nodes.

    ``H_k`` is the Hessian with the loss's curvature at its upper bound, exact for least squares.
    With a large coupling the blocks have almost no weight on steps that are equal at all nodes;
    the second part covers these.
    """
    width = problem.dim // problem.loss.outputs
    outputs = problem.loss.outputs
    curvature = problem.loss.curvature
    assert curvature is not None
    by_samples = problem.samples < width
    shift = jnp.mean(coupling.reshape(-1, outputs, width), axis=1)
    rows = jnp.sqrt(curvature * problem.weights)[..., None] * problem.design
    lift = jnp.sum(rows**2, axis=(1, 2)) / width + jnp.mean(shift, axis=1)
    lift = jnp.where(lift > 0, jnp.sqrt(jnp.finfo(coupling.dtype).eps) * lift, 1)
    shift = shift + lift[:, None]
    if by_samples:
        inner = jnp.einsum("knp,kp,kmp->knm", rows, 1 / shift, rows, precision=HIGHEST)
        inner = spd_inverse(inner + jnp.eye(problem.samples, dtype=coupling.dtype)[None])
    else:
        gram = jnp.einsum("knp,knq->kpq", rows, rows, precision=HIGHEST)
        inner = spd_inverse(gram + shift[..., None] * jnp.eye(width, dtype=coupling.dtype)[None])

    def solve_blocks(right):  # [K, O, P]
        if not by_samples:
            return jnp.einsum("kpq,koq->kop", inner, right, precision=HIGHEST)
        # Woodbury's identity: no P x P matrix where samples are fewer than parameters.
        scaled = right / shift[:, None]
        coefficients = jnp.einsum("knp,kop->kon", rows, scaled, precision=HIGHEST)
        coefficients = jnp.einsum("knm,kom->kon", inner, coefficients, precision=HIGHEST)
        back = jnp.einsum("knp,kon->kop", rows, coefficients, precision=HIGHEST)
        return scaled - back / shift[:, None]

    common = None
    if width <= SHARED_LIMIT:
        total = jnp.einsum("knp,knq->pq", rows, rows, precision=HIGHEST)
        least = jnp.sum(strong_convexity(problem) + lift)
        common = spd_inverse((total + least * jnp.eye(width, dtype=coupling.dtype))[None])[0]

    def precondition(right):
        blocks = right.reshape(-1, outputs, width)
        inverse = solve_blocks(blocks)
        if common is not None:
            all_ = jnp.matmul(jnp.sum(blocks, axis=0), common, precision=HIGHEST)
            inverse = inverse + all_[None]
        return inverse.reshape(right.shape)

    return precondition


def _conjugate_gradients(product, precondition, right, floor, iterations) -> tuple[Array, Array]:
    """The solution from zero, to a residual of norm ``floor``; and the number of iterations."""

    def unfinished(carry):
        count, _, rest, _, _, flat = carry
        return (count < iterations) & (_norm(rest) > floor) & ~flat

    def iterate(carry):
        count, x, rest, direction, old, _ = carry
        image = product(direction)
        curve = jnp.sum(direction * image)
        flat = ~(curve > 0)  # the rest lies in the null space
        length = jnp.where(flat, 0, old / jnp.where(flat, 1, curve))
        x = x + length * direction
        rest = rest - length * image
        ready = precondition(rest)
        new = jnp.sum(rest * ready)
        return count + 1, x, rest, ready + new / old * direction, new, flat

    ready = precondition(right)
    state = (0, jnp.zeros_like(right), right, ready, jnp.sum(right * ready), False)
    state = jax.tree.map(jnp.asarray, state)
    state = (state[0].astype(jnp.int32), *state[1:])
    final = jax.lax.while_loop(unfinished, iterate, state)
    return final[1], final[0]


# Everything else ------------------------------------------------------------------------------


class _Result(NamedTuple):
    models: Array
    residual: Array
    iterations: Array
    flows: list[Array]


def _dual(coupled: GTVMin, spectrum: Spectrum, flows: list[Array]) -> tuple[Array, Array]:
    """The dual objective (68) of a flow, and its infeasibility."""
    problem = coupled.problem
    parts = coupled.network.entries.parts
    square = coupled._squared_coupling()
    total = jnp.zeros((), problem.dtype)
    for part, flow in zip(parts, flows, strict=True):
        weight = part.weights.astype(flow.dtype)
        if square is not None:
            scale = weight[..., None] * _broadcast_row(square, flow)
            terms = jnp.where(scale > 0, flow**2 / jnp.where(scale > 0, 4 * scale, 1), 0)
            total = total + jnp.sum(terms)
            continue
        scale = weight * jnp.asarray(coupled.coupling).astype(flow.dtype)
        active = scale > 0
        terms = coupled.penalty.conjugate(flow / jnp.where(active, scale, 1)[..., None])
        total = total + jnp.sum(jnp.where(active, scale * terms, 0))
    taken = -add_rows(parts, [jnp.sum(flow, axis=1) for flow in flows])
    local, beyond = _local_conjugate(problem, spectrum, taken)
    return -jnp.sum(local) - total / 2, _norm(beyond)


def _local_conjugate(
    problem: Problem, spectrum: Spectrum, point: Float[Array, "clients dim"]
) -> tuple[Float[Array, " clients"], Float[Array, " clients"]]:
    r""":math:`f_k^*(v)=\tfrac12(v+m)^\top H_k^+(v+m)-c` and the distance of ``v + m`` from the
    range of :math:`H_k`, where the conjugate is infinite.
    """
    values, vectors, moment = spectrum
    convexity = jnp.broadcast_to(strong_convexity(problem), (problem.clients,))[:, None]
    right = point + moment
    if problem.samples >= problem.dim:
        coordinates = jnp.einsum("kpn,kp->kn", vectors, right, precision=HIGHEST)
        outside = jnp.zeros_like(convexity[:, 0])
    else:
        root = jnp.sqrt(2 * problem.weights)
        predictions = root * problem.predictions(right)
        predictions = jnp.einsum("knm,kn->km", vectors, predictions, precision=HIGHEST)
        coordinates = predictions / jnp.sqrt(jnp.where(values > 0, values, 1))
    largest = jnp.max(values, axis=1, keepdims=True)
    open_ = values <= 64 * values.shape[1] * jnp.finfo(values.dtype).eps * largest
    inside = jnp.where(open_, 0, coordinates)
    if problem.samples < problem.dim:
        scaled = inside / jnp.sqrt(jnp.where(open_, 1, values))
        back = root * jnp.einsum("knm,km->kn", vectors, scaled, precision=HIGHEST)
        outside = norm(right - problem.combination(back))
    else:
        outside = jnp.sqrt(jnp.sum(jnp.where(open_, coordinates, 0) ** 2, axis=1))
    curved = jnp.sum(inside**2 / jnp.where(open_, 1, values + convexity), axis=1)
    firm = convexity[:, 0] > 0
    curved = curved + jnp.where(firm, outside**2 / jnp.where(firm, convexity[:, 0], 1), 0)
    constant = jnp.sum(problem.weights * problem.targets**2, axis=1)
    return curved / 2 - constant, jnp.where(firm, 0, outside)


def _total(arrays: PyTree) -> Array:
    return sum(jnp.sum(array) for array in jax.tree.leaves(arrays))  # pyright: ignore[reportReturnType]


@_one_at_a_time
def _primal_dual(
    coupled: GTVMin, tolerance: Array, iterations: int, start: Array | None = None
) -> _Result:
    return _PrimalDual(coupled).solve(tolerance, iterations, start)


class _Dual(NamedTuple):
    """Dual variables."""

    flows: list[Array]  # [R, S, D] of each part of the neighbor table
    samples: Array  # [K, N], or unused where the loss is smooth


class _Iterate(NamedTuple):
    """Relaxed primal and dual variables, and the proposals that they were relaxed towards."""

    models: Array  # [K, D]
    dual: _Dual
    new_models: Array  # [K, D]
    new_dual: _Dual


class _Progress(NamedTuple):
    """The state of the loop."""

    iterations: Array  # []  so far
    residual: Array  # []
    scale: Array  # []  s, the ratio of primal to dual steps
    iterate: _Iterate
    origin: tuple[Array, _Dual]  # models and dual variables when the scale was last changed
    due: Array  # []  the iteration of its next change


class _PrimalDual:
    r"""Chambolle and Pock's method with diagonal steps, overrelaxed.

    Steps are :math:`\tau_k=s/n_k` of a node with :math:`n_k` neighbors and :math:`1/(2s)` of an
    edge (Pock and Chambolle 2011). After 100, 200, 400, ... iterations ``s`` moves towards the
    ratio of the distances that models and flow have traveled, so that both converge equally fast;
    the changes become rarer, since convergence is proved for a constant ``s``. A loss that is not
    smooth has a dual variable of each sample as well, because its prox is known as a function of
    predictions only.
    """

    def __init__(self, coupled: GTVMin) -> None:
        problem = jax.tree.map(jnp.asarray, coupled.problem.mapped())
        problem = replace(problem, feature_bound=None)
        dtype = problem.dtype
        self.problem = problem
        self.coupled = replace(coupled, problem=problem)
        self.parts = self.coupled.network.entries.parts
        self.penalty = coupled.penalty
        coupling = jnp.asarray(coupled.coupling).astype(dtype)
        square = self.coupled._squared_coupling()
        if square is not None:
            self.penalty = _Diagonal(square)
            coupling = jnp.ones((), dtype)
        self.edge_weights = [coupling * part.weights.astype(dtype) for part in self.parts]
        neighbors = self.coupled.network.neighbor_counts()
        neighbors = jnp.maximum(neighbors, 1).astype(dtype)[:, None]
        self.spectrum = decompose(problem) if is_quadratic(problem) else None
        self.by_sample = problem.loss.curvature is None
        # The norms of the rows and columns of the primal-dual operator, which divide the steps.
        self.node_norms = neighbors  # [K, 1]
        self.sample_norms = jnp.ones((1, 1), dtype)  # [K, N]
        if self.by_sample:
            size = jnp.where(problem.weights[..., None] > 0, jnp.abs(problem.design), 0)
            column_norms = jnp.max(jnp.sum(size, axis=1), axis=1, keepdims=True)
            self.node_norms = neighbors + column_norms
            self.sample_norms = jnp.maximum(jnp.sum(size, axis=2), jnp.finfo(dtype).tiny)

    def solve(self, tolerance: Array, iterations: int, start: Array | None) -> _Result:
        """Iterate until the residual is at most the tolerance."""
        problem = self.problem
        dtype = problem.dtype
        models = jnp.zeros((problem.clients, problem.dim), dtype) if start is None else start
        flows = [jnp.zeros((*part.weights.shape, problem.dim), dtype) for part in self.parts]
        dual = _Dual(flows, jnp.zeros_like(problem.targets))
        progress = _Progress(
            iterations=jnp.zeros((), jnp.int32),
            residual=jnp.asarray(jnp.inf, dtype),
            scale=self.first_scale(models),
            iterate=_Iterate(models, dual, models, dual),
            origin=(models, dual),
            due=jnp.asarray(2 * CHECK_INTERVAL, jnp.int32),
        )

        def unfinished(progress: _Progress) -> Array:
            return (progress.iterations < iterations) & ~(progress.residual <= tolerance)

        final = jax.lax.while_loop(unfinished, self.advance, progress)
        iterate = final.iterate
        return _Result(iterate.new_models, final.residual, final.iterations, iterate.new_dual.flows)

    def first_scale(self, models: Array) -> Array:
        """Guess ``s``: models travel about as far as the models of clients alone are apart, a flow
        as far as its bound allows.
        """
        problem = self.problem
        factor = factorize(problem, jnp.ones(problem.clients, problem.dtype))
        local = prox(problem, factor, models, models)
        spread = jnp.sqrt(jnp.mean((local - jnp.mean(local, axis=0, keepdims=True)) ** 2))
        edges = sum(jnp.sum(weights > 0) for weights in self.edge_weights)
        edges = jnp.maximum(edges, 1).astype(problem.dtype)
        force = jnp.sqrt(_total([weights**2 for weights in self.edge_weights]) / edges)
        scale = spread / jnp.where(force > 0, force, 1)
        return jnp.where((spread > 0) & (force > 0), scale, 1)

    def advance(self, progress: _Progress) -> _Progress:
        """Iterate :data:`CHECK_INTERVAL` times, then measure the residual and adapt the scale.

        One factorization per scale serves all of these iterations.
        """
        scale = progress.scale
        factor = (
            None if self.by_sample else factorize(self.problem, (self.node_norms / scale)[:, 0])
        )
        step = functools.partial(self.step, factor, scale)
        before = jax.lax.fori_loop(0, CHECK_INTERVAL - 1, lambda _, i: step(i), progress.iterate)
        iterate = step(before)
        count = progress.iterations + CHECK_INTERVAL
        progress = self.rescaled(progress._replace(iterations=count, iterate=iterate))
        return progress._replace(residual=self.residual(iterate, before))

    def step(self, factor: Any, scale: Array, iterate: _Iterate) -> _Iterate:
        """One iteration: models by their prox, dual variables by theirs at ``2 new - old`` models,
        and both relaxed beyond these proposals.
        """
        problem = self.problem
        models, dual, _, _ = iterate
        force = add_rows(self.parts, [jnp.sum(flow, axis=1) for flow in dual.flows])
        if self.by_sample:
            force = force + problem.combination(dual.samples)
            center = models - scale / self.node_norms * force
            step = scale / self.node_norms * problem.share[:, None]
            new = problem.regularizer.prox(center, step)
        else:
            new = prox(problem, factor, models - scale / self.node_norms * force, models)
        lead = 2 * new - models
        flows = [
            self.new_flow(lead, scale, part, flow, weights)
            for part, flow, weights in zip(self.parts, dual.flows, self.edge_weights, strict=True)
        ]
        samples = self.new_samples(lead, scale, dual.samples) if self.by_sample else dual.samples
        new_dual = _Dual(flows, samples)
        models = models + RELAXATION * (new - models)
        dual = jax.tree.map(lambda old, to: old + RELAXATION * (to - old), dual, new_dual)
        return _Iterate(models, dual, new, new_dual)

    def new_flow(
        self, lead: Array, scale: Array, part: TablePart, flow: Array, weights: Array
    ) -> Array:
        """The prox of the penalty's conjugate: by Moreau's identity from the penalty's own."""
        moved = flow + _differences(lead, part) / (2 * scale)
        shrunk = self.penalty.prox(2 * scale * moved, 2 * scale * weights) / (2 * scale)
        return jnp.where(weights[..., None] > 0, moved - shrunk, 0)

    def new_samples(self, lead: Array, scale: Array, dual: Array) -> Array:
        """The prox of the loss's conjugate, by the same identity."""
        problem = self.problem
        step = 1 / (scale * self.sample_norms)
        moved = dual + step * problem.predictions(lead)
        weight = jnp.where(problem.weights > 0, problem.weights, 1)
        nearest = problem.loss.prox(moved / step, problem.targets, weight / step)
        return jnp.where(problem.weights > 0, moved - step * nearest, 0)

    def residual(self, iterate: _Iterate, before: _Iterate) -> Array:
        """The relative change in the last iteration and, for least squares, the duality gap."""
        tiny = jnp.finfo(self.problem.dtype).tiny
        new = iterate.new_models
        flow_change = _squared_distance(iterate.new_dual, before.new_dual)
        size = _total(jax.tree.map(jnp.square, iterate.new_dual))
        change = _norm(new - before.new_models) / jnp.maximum(_norm(new), tiny)
        change = jnp.maximum(change, jnp.sqrt(flow_change / jnp.maximum(size, tiny)))
        if self.spectrum is None:
            return change
        dual, beyond = _dual(self.coupled, self.spectrum, iterate.new_dual.flows)
        primal = self.coupled.objective(new)
        slopes = _norm(self.spectrum.moment)
        size = jnp.abs(primal) + jnp.abs(dual)
        gap = jnp.abs(primal - dual) / jnp.where(size > 0, size, 1)
        beyond = beyond / jnp.where(slopes > 0, slopes, 1)
        return jnp.maximum(jnp.maximum(gap, beyond), change)

    def rescaled(self, progress: _Progress) -> _Progress:
        """Move the scale towards the ratio of the traveled distances, if a change is due."""
        count, _, scale, iterate, origin, due = progress
        traveled = jnp.sum(self.node_norms * (iterate.models - origin[0]) ** 2)
        flowed = _squared_distance(iterate.dual, origin[1])
        ratio = jnp.sqrt(traveled / jnp.maximum(flowed, jnp.finfo(self.problem.dtype).tiny))
        usable = (count >= due) & (traveled > 0) & (flowed > 0)
        ratio = jnp.clip(ratio / scale, 0.1, 10.0)
        new_origin = jax.tree.map(
            lambda old, new: jnp.where(count >= due, new, old),
            origin,
            (iterate.models, iterate.dual),
        )
        return progress._replace(
            scale=jnp.where(usable, scale * jnp.sqrt(ratio), scale),
            origin=new_origin,
            due=jnp.where(count >= due, 2 * due, due),
        )


def _squared_distance(first: object, second: object) -> Array:
    return _total(jax.tree.map(lambda a, b: (a - b) ** 2, first, second))


class _Diagonal(NamedTuple):
    """The squared penalty with a factor of each parameter."""

    factor: Array  # [D]

    def prox(self, point: Array, step: Array) -> Array:
        return point / (1 + 2 * step[..., None] * _broadcast_row(self.factor, point))
