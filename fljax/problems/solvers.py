r"""Exact minimizers: the prox of each client's objective, and the centralized optimum.

Both are :math:`\arg\min_w f_k(w)+\tfrac{c_k}2\|w-v_k\|^2`, for all rows of a stacked problem at
once: :math:`c_k>0` is ADMM's primal step (Gauthier 2024, (3.4)), one pooled row with :math:`c=0`
the centralized solution (3.1). Quadratic objectives are solved in closed form through a factor
computed once; other smooth losses by accelerated gradient steps, among the samples where these
are fewer than features; nonsmooth losses by ADMM on their residuals.

Where the problem declares a bound of its features (``feature_bound``), a smooth loss is minimized
by plain proximal gradient steps of a size that depends on the bound alone. They converge more
slowly, but a privacy guarantee covers them however early they stop: for all data within
the bound, each step is a contraction by :math:`(1-\eta c)/(1+\eta\mu)`, and at one model the steps
of two data sets differ by at most :math:`\eta g/(1+\eta\mu)`, :math:`g` being how far apart their
mean gradients are there. So models that start at most :math:`g/(c+\mu)` apart, which is how far
apart exact minimizers can be, stay so, a warm start from the last round's model included. Nothing
more is asked of the two data sets: they may differ in one sample, lack it, or have none in common.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.cohort_rows import Rows
from fljax._core.gradient_counts import minimized
from fljax._core.linalg import (
    rounding_distance,
    spd_inverse,
    spd_norm,
    spd_norm_bound,
    spd_pseudo_inverse,
    spd_solve,
    symmetric_eigen,
)
from fljax._core.module import replace
from fljax._core.numerics import HIGHEST, with_trailing_axes
from fljax.problems.objectives import L1, LeastAbsoluteDeviation, LeastSquares, NoRegularizer
from fljax.problems.problem import Problem


class ProxFactor(NamedTuple):
    """The part of a prox that is computed once for all points with the same weights."""

    weight: Array  # [K]  c_k
    inverse: Array | None  # [K, D, D], or [K, N, N] among weighted samples when N < D: the step
    moment: Array | None  # [K, D]  2 sum_j weight_j x_j y_j, for the closed form
    scale: Array | None  # [K]  one over the step (smooth loss) or residual penalty (nonsmooth)
    gram: Array | None  # [K, N, N]  the samples' inner products, where predictions are iterated


def is_quadratic(problem: Problem) -> bool:
    """Whether the prox is one linear solve: squared loss, no or a squared regularizer."""
    return isinstance(problem.loss, LeastSquares) and problem.regularizer.quadratic() is not None


def iterates_predictions(problem: Problem) -> bool:
    """Whether the prox of a smooth loss is computed in the sample space, when samples are few."""
    return (
        problem.loss.curvature is not None
        and problem.regularizer.quadratic() is not None
        and problem.samples < problem.dim // problem.loss.outputs
    )


def takes_public_steps(problem: Problem) -> bool:
    """Whether the prox is computed with a public step size, see the module's docstring."""
    return (
        problem.feature_bound is not None
        and problem.loss.curvature is not None
        and not is_quadratic(problem)
    )


def public_scale(problem: Problem, weight: Float[Array, " clients"]) -> Float[Array, " clients"]:
    r""":math:`1/\eta=\ell''_{\max}R^2+c_k`, the smoothness of any data within the bound."""
    assert problem.loss.curvature is not None
    total = 1 if problem.importance is None else jnp.asarray(problem.importance)
    return total * problem.loss.curvature * jnp.asarray(problem.feature_bound) ** 2 + weight


def factorize(problem: Problem, weight: Float[Array, " clients"]) -> ProxFactor:
    """Prepare :func:`prox` for quadratic weights ``weight`` (``[K]``, >= 0).

    Example:
      A factor for each :math:`c_k` serves all later calls of :func:`prox`:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> factor = fl.problems.factorize(problem, jnp.ones(3))
      >>> zero = jnp.zeros((3, 2))
      >>> near = fl.problems.prox(problem, factor, zero, zero)
      >>> bool(abs(problem.gradient(near) + near).max() < 1e-4)  # f'(w) + c (w - v) = 0
      True
    """
    if isinstance(problem.features, Rows):  # of a population: the participants' factors
        numbers = problem.features.numbers
        factor = factorize(problem.take(numbers), weight[numbers])
        return jax.tree.map(
            lambda a: Rows("factors", numbers, a, problem.clients, constant=True), factor
        )
    if is_quadratic(problem):
        shift = weight + strong_convexity(problem)
        moment = 2 * problem.correlation(problem.targets)
        inverse = spd_inverse(_add_diagonal(_hessian(problem), shift))
        if problem.samples < problem.dim:
            root = jnp.sqrt(2 * problem.weights)
            inverse = root[:, :, None] * inverse * root[:, None, :]
        return ProxFactor(weight, inverse, moment, None, None)
    gram = None
    if iterates_predictions(problem):
        gram = jnp.einsum("knp,kmp->knm", problem.design, problem.design, precision=HIGHEST)
    if takes_public_steps(problem):
        return ProxFactor(weight, None, None, public_scale(problem, weight), gram)
    if gram is not None:
        root = jnp.sqrt(problem.loss.curvature * problem.weights)
        system = root[:, :, None] * gram * root[:, None, :]
        inner = root[:, :, None] * spd_inverse(
            _add_diagonal(system, weight + strong_convexity(problem))
        )
        inner = jnp.einsum("knm,kml->knl", inner * root[:, None], gram, precision=HIGHEST)
        step = jnp.eye(problem.samples, dtype=problem.dtype)[None] - inner
        return ProxFactor(weight, step, None, None, gram)
    if problem.loss.curvature is not None:
        lipschitz = problem.loss.curvature * spd_norm_bound(problem.second_moment()) + weight
        return ProxFactor(weight, None, None, lipschitz, None)
    # The residual threshold 1/scale is set to the residuals' own size, which makes the splitting
    # indifferent to the units of the targets.
    gram = problem.second_moment()
    ridge = 1e-6 * jnp.trace(gram, axis1=1, axis2=2)
    moment = problem.correlation(problem.targets)
    fit = jnp.einsum(
        "kpq,kq->kp", spd_inverse(_add_diagonal(gram, ridge)), moment, precision=HIGHEST
    )
    residual = jnp.abs(problem.predictions(fit) - problem.targets)
    total = jnp.sum(problem.weights, axis=1)
    size = jnp.sum(problem.weights * residual, axis=1) + jnp.finfo(problem.dtype).tiny
    scale = jnp.where(total > 0, total / size, 1)  # without labels any will do
    system = _add_diagonal(scale[:, None, None] * gram, weight + _split_penalty(problem, scale))
    return ProxFactor(weight, spd_inverse(system), None, scale, None)


def prox(
    problem: Problem,
    factor: ProxFactor,
    center: Float[Array, "clients dim"],
    start: Float[Array, "clients dim"],
    iterations: int = 100,
) -> Float[Array, "clients dim"]:
    r""":math:`\arg\min_w f_k(w)+\tfrac{c_k}{2}\|w-v_k\|^2` for every client.

    Args:
      problem: ``K`` clients; must not clip, since a minimizer cannot clip.
      factor: from :func:`factorize`, with this problem and its weights.
      center: ``[K, D]``, :math:`v_k`.
      start: ``[K, D]``, a warm start of the iterative methods.
      iterations: number of inner iterations of the methods without a closed form.

    Raises:
      ValueError: the problem clips per-sample gradients.

    Example:
      For :math:`f(w)=(w-4)^2` and :math:`c=2` it is halfway between the minimizer and :math:`v`:

      >>> import jax.numpy as jnp, fljax as fl
      >>> ones = jnp.ones((1, 1, 1))
      >>> problem = fl.problems.Problem(ones, 4 * ones[0], fl.problems.LeastSquares())
      >>> factor = fl.problems.factorize(problem, jnp.array([2.0]))
      >>> center = jnp.array([[1.0]])
      >>> fl.problems.prox(problem, factor, center, start=center).round(3).tolist()
      [[2.5]]
    """
    refuse_clipping(problem)
    return minimized(_minimize(problem, factor, center, start, iterations))


def prox_rounding(
    problem: Problem,
    center: Float[Array, "clients dim"],
    start: Float[Array, "clients dim"],
    model: Float[Array, "clients dim"],
    iterations: int,
) -> Float[Array, " clients"] | None:
    """How far apart rounding may move the results of :func:`prox` for two data sets, ``None`` where
    this is not bounded.

    An iteration is a contraction, with the roundings of six operations on vectors no longer
    than its start, its center or its result, besides the gradient's. A closed form, whose
    linear system has roundings in proportion to its condition, is of a squared loss, under which no
    bound of gradients holds and every budget is nominal.

    Args:
      problem: of :func:`prox`.
      center: of :func:`prox`.
      start: of :func:`prox`.
      model: its result.
      iterations: of :func:`prox`.
    """
    if is_quadratic(problem):
        return None
    # Number by number, so that one pass tells a bound of all three lengths.
    longest = jnp.maximum(jnp.maximum(jnp.abs(center), jnp.abs(start)), jnp.abs(model))
    return 6 * iterations * rounding_distance(longest)


def _minimize(
    problem: Problem, factor: ProxFactor, center: Array, start: Array, iterations: int
) -> Array:
    if is_quadratic(problem):
        return _solve_quadratic(problem, factor, center)
    if takes_public_steps(problem):
        steps = _public_steps if factor.gram is None else _public_steps_of_predictions
        return steps(problem, factor, center, start, iterations)
    if factor.gram is not None:
        return _solve_predictions(problem, factor, center, start, iterations)
    solve = _proximal_gradient if problem.loss.curvature is not None else _residual_admm
    return solve(problem, factor, center, start, iterations, None)


def refuse_clipping(problem: Problem) -> None:
    if problem.clip is not None:
        raise ValueError(
            "per-sample clipping cannot be applied inside an exact minimizer; use an algorithm "
            "with a linearized update (ZCDPNFL) or leave the problem unclipped."
        )


class Spectrum(NamedTuple):
    """A quadratic problem's Hessian :math:`H_k`, decomposed for systems that differ by a shift."""

    values: Array  # [K, N or D]
    vectors: Array  # [K, N, N] in the sample space when N < D, else [K, D, D]
    moment: Array  # [K, D]  2 sum_j weight_j x_j y_j


def decompose(problem: Problem) -> Spectrum:
    r"""Prepare :func:`solve_shifted`.

    Raises:
      ValueError: an objective that is not quadratic, or that clips per-sample gradients.
    """
    refuse_clipping(problem)
    if not is_quadratic(problem):
        raise ValueError(
            "a closed form needs the squared loss with no or a squared regularizer, got "
            f"{type(problem.loss).__name__} with {type(problem.regularizer).__name__}."
        )
    moment = 2 * problem.correlation(problem.targets)
    values, vectors = symmetric_eigen(_hessian(problem))
    return Spectrum(values, vectors, moment)


def solve_shifted(
    problem: Problem,
    spectrum: Spectrum,
    shift: Float[Array, " clients"],
    right: Float[Array, "clients dim"],
) -> Float[Array, "clients dim"]:
    r""":math:`(H_k+c_kI)^{-1}r_k` for any :math:`c_k>0`, where :math:`H_k` excludes the
    regularizer.
    """
    values, vectors, _ = spectrum
    inverse = 1 / (values + shift[:, None])
    if problem.samples >= problem.dim:
        return minimized(_scaled_in_basis(vectors, inverse, right))
    root = jnp.sqrt(2 * problem.weights)
    inner = root * _scaled_in_basis(vectors, inverse, root * problem.predictions(right))
    back = problem.combination(inner)
    return minimized((right - back) / shift[:, None])


def _scaled_in_basis(vectors: Array, scale: Array, right: Array) -> Array:
    coordinates = scale * jnp.einsum("kn,knm->km", right, vectors, precision=HIGHEST)
    return jnp.einsum("knm,km->kn", vectors, coordinates, precision=HIGHEST)


def _hessian(problem: Problem) -> Array:
    """Of a squared loss: ``[K, D, D]``, or ``[K, N, N]`` in the sample space when N < D."""
    if problem.samples >= problem.dim:
        return 2 * problem.second_moment()
    rows = jnp.sqrt(2 * problem.weights)[..., None] * problem.design
    return jnp.einsum("knp,kmp->knm", rows, rows, precision=HIGHEST)


@checked
def optimum(problem: Problem, iterations: int = 5000) -> Float[Array, " dim"]:
    r"""The centralized solution :math:`w_c=\arg\min_w\sum_k f_k(w)`, to solver accuracy.

    The clients' ``1/D_k`` weights are kept, as in the consensus problem (3.2); the centralized
    problem (3.1) prints without them (thesis, section 3.2.1), which for unequal ``D_k`` would
    differ from the problem that the network solves.

    Args:
      problem: any stacked problem; its clipping is ignored.
      iterations: maximum number of iterations of the methods without a closed form, which stop once
        a step is within a few rounding errors.

    Raises:
      ValueError: a loss without a minimum, such as the logistic loss of separable data without a
        regularizer; inside traced code the solution is then NaN.

    Example:
      >>> import numpy as np, fljax as fl
      >>> x, y = np.ones((2, 1)), np.array([1.0, 3.0])
      >>> data = [(x, y), (x[:1], np.array([8.0]))]
      >>> problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
      >>> fl.problems.optimum(problem).round(3).tolist()  # the mean of the clients' means
      [5.0]
    """
    checks.count("iterations", iterations)
    pooled = problem.pooled().prepare()
    start = jnp.zeros((1, problem.dim), problem.dtype)
    pooled = replace(pooled, feature_bound=None)  # nothing of the optimum is sent
    if isinstance(pooled.loss, LeastSquares) and isinstance(pooled.regularizer, NoRegularizer):
        moment = 2 * pooled.correlation(pooled.targets)[0]
        return spd_solve(2 * pooled.second_moment()[0], moment)
    if isinstance(pooled.loss, LeastAbsoluteDeviation) and isinstance(
        pooled.regularizer, NoRegularizer | L1
    ):
        # |w_i| is one more absolute residual each; of no weight, it completes a vertex where the
        # data do not determine one.
        extra = pooled.strength if isinstance(pooled.regularizer, L1) else 0.0
        rows = jnp.concatenate([pooled.design[0], jnp.eye(problem.dim, dtype=problem.dtype)])
        targets = jnp.concatenate([pooled.targets[0], jnp.zeros(problem.dim, problem.dtype)])
        weights = jnp.full(problem.dim, extra, problem.dtype)
        weights = jnp.concatenate([pooled.weights[0], weights])
        return _least_absolute_vertex(rows, targets, weights, 50 * problem.dim)
    factor = factorize(pooled, jnp.zeros(1, problem.dtype))
    if is_quadratic(pooled):
        return _solve_quadratic(pooled, factor, start)[0]
    tolerance = 4 * jnp.finfo(problem.dtype).eps
    if pooled.loss.curvature is not None:
        minimizer = _proximal_gradient(pooled, factor, start, start, iterations, tolerance)
        endless = _decreases_forever(pooled, minimizer)
        if checks.is_concrete(endless) and endless:
            raise ValueError(
                f"the {type(pooled.loss).__name__} loss of these data has no minimum: a model "
                "separates the labels, and the larger it is, the lower the loss. Give the problem "
                "a regularizer, such as SquaredL2() with a strength > 0."
            )
        return jnp.where(endless, jnp.nan, minimizer[0])
    return _residual_admm(pooled, factor, start, start, iterations, tolerance)[0]


def _decreases_forever(problem: Problem, w: Float[Array, "clients dim"]) -> Array:
    """Whether the objective falls along the ray from zero through ``w``, however far: a proof, up
    to rounding, that it has no minimum. (A convex one that grows anywhere grows far out.)
    """
    m = problem.predictions(w)
    eps = jnp.finfo(problem.dtype).eps

    def rate(distance):
        data = problem.weighted(problem.loss.derivative(distance * m, problem.targets) * m)
        penalty = problem.share[:, None] * problem.regularizer.gradient(distance * w) * w
        return jnp.sum(data) + jnp.sum(penalty)

    rounding = 8 * eps * jnp.sum(problem.weighted(jnp.abs(m)))
    return (rate(1) < 0) & (rate(1 / eps) <= rounding)


def _add_diagonal(matrices: Array, shift: Array) -> Array:
    return matrices + shift[:, None, None] * jnp.eye(matrices.shape[-1], dtype=matrices.dtype)[None]


def strong_convexity(problem: Problem) -> Array:
    r"""The strong-convexity modulus of each :math:`f_k` due to a squared regularizer."""
    quadratic = problem.regularizer.quadratic()
    return 2 * problem.share * (0.0 if quadratic is None else quadratic)


def smoothness(problem: Problem) -> Float[Array, " clients"]:
    r"""The smoothness constant :math:`L_k` of each :math:`f_k`, overestimated by a few percent at
    most.

    Raises:
      ValueError: an objective that is not smooth.
    """
    if problem.loss.curvature is None or problem.regularizer.quadratic() is None:
        raise ValueError(
            f"{type(problem.loss).__name__} with {type(problem.regularizer).__name__} is not "
            "smooth, and has no largest curvature."
        )
    return problem.loss.curvature / 2 * spd_norm(_hessian(problem)) + strong_convexity(problem)


def _solve_quadratic(problem: Problem, factor: ProxFactor, center: Array) -> Array:
    right = factor.moment + factor.weight[:, None] * center
    if problem.samples >= problem.dim:
        return jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
    # Woodbury: never a D x D matrix when samples are few.
    inner = problem.predictions(right)
    inner = jnp.einsum("knm,km->kn", factor.inverse, inner, precision=HIGHEST)
    back = problem.combination(inner)
    return (right - back) / (factor.weight + strong_convexity(problem))[:, None]


def _solve_predictions(problem, factor, center, start, iterations):
    r"""The prox of a smooth loss by its samples: two passes over them, for any number of
    iterations.

    With :math:`\kappa=c_k+\mu_k` the minimizer is :math:`w=(c_kv-X^\top\alpha)/\kappa`, where
    :math:`\alpha=\Omega\ell'(m)` at its own predictions :math:`m=(c_kXv-G\alpha)/\kappa`. Newton's
    step with the loss's curvature at its bound, which never overshoots, is
    :math:`\alpha\leftarrow\alpha+B(\Omega\ell'(m)-\alpha)` with a constant ``factor.inverse``, the
    same for every output; a gradient step in the metric :math:`\kappa I+\beta X^\top\Omega X`, and
    accelerated as such.
    """
    scale = factor.weight + strong_convexity(problem)
    bound = problem.loss.curvature
    pulled = problem.predictions(center)
    pulled = with_trailing_axes(factor.weight, pulled) * pulled

    def gradient(m):
        return problem.weighted(problem.loss.derivative(m, problem.targets))

    def predictions(alpha):
        return (pulled - _among_samples(factor.gram, alpha)) / with_trailing_axes(scale, pulled)

    def inner(left, right):
        (alpha, m), (_, other) = left, right
        return jnp.sum(((bound * problem.weighted(m) - alpha) * other).reshape(len(m), -1), axis=1)

    def iterate(_, state):
        old, lead, momentum = state
        alpha, m = lead
        alpha = alpha + _among_samples(factor.inverse, gradient(m) - alpha)
        return _accelerated(old, lead, (alpha, predictions(alpha)), momentum, inner)

    # From the start itself; the gradient there, taken for alpha, would be a full gradient step.
    m = problem.predictions(start)
    extrapolated = bound * problem.weighted(pulled / with_trailing_axes(scale, pulled) - m)
    alpha = _among_samples(factor.inverse, gradient(m) + extrapolated)
    first = alpha, predictions(alpha)
    state = first, first, jnp.ones_like(scale)
    (alpha, _), _, _ = jax.lax.fori_loop(1, iterations, iterate, state)
    back = problem.combination(alpha)
    return (factor.weight[:, None] * center - back) / scale[:, None]


def _accelerated(old, lead, new, momentum, inner):
    """Nesterov's next state, restarted where momentum points uphill (O'Donoghue 2015)."""
    back = jax.tree.map(jnp.subtract, lead, new)
    moved = jax.tree.map(jnp.subtract, new, old)
    uphill = inner(back, moved) > 0
    momentum = jnp.where(uphill, jnp.ones_like(momentum), momentum)
    next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
    carry_on = jnp.where(uphill, jnp.zeros_like(momentum), (momentum - 1) / next_momentum)
    extrapolated = jax.tree.map(
        lambda x, step: x + with_trailing_axes(carry_on, step) * step, new, moved
    )
    return new, extrapolated, next_momentum


def _among_samples(matrices: Array, values: Array) -> Array:
    """``[K, N, N]`` by ``[K, N]``, or by ``[K, N, outputs]``."""
    return jnp.einsum("knm,km...->kn...", matrices, values, precision=HIGHEST)


def _iterate_until(step, start, iterations: int, tolerance: float | None, watched: int):
    """Iterate ``state = step(state)`` until its first ``watched`` entries, ``[K, ...]``, rest."""
    if tolerance is None:
        return jax.lax.fori_loop(0, iterations, lambda _, state: step(state), start)

    def moving(carry):
        count, moved, _ = carry
        return (count < iterations) & moved

    def body(carry):
        count, _, state = carry
        new = step(state)
        moved = jnp.asarray(False)
        for old, now in zip(state[:watched], new[:watched], strict=True):
            size = jnp.linalg.norm(now, axis=-1) + jnp.finfo(now.dtype).tiny
            moved |= jnp.any(jnp.linalg.norm(now - old, axis=-1) > tolerance * size)
        return count + 1, moved, new

    return jax.lax.while_loop(moving, body, (0, jnp.asarray(True), start))[2]


def _proximal_gradient(problem, factor, center, start, iterations, tolerance):
    """Accelerated proximal gradient."""
    step = (1 / factor.scale)[:, None]
    weight = factor.weight[:, None]
    penalty = step * problem.share[:, None]

    def inner(left, right):
        return jnp.sum(left * right, axis=-1)

    def iterate(state):
        w, lead, momentum = state
        descent = lead - step * (problem.loss_gradient(lead) + weight * (lead - center))
        new = problem.regularizer.prox(descent, penalty)
        return _accelerated(w, lead, new, momentum, inner)

    momentum = jnp.ones(len(start), start.dtype)
    return _iterate_until(iterate, (start, start, momentum), iterations, tolerance, watched=1)[0]


def _public_steps(problem, factor, center, start, iterations):
    """Proximal gradient steps whose size depends on no data."""
    step = (1 / factor.scale)[:, None]
    weight = factor.weight[:, None]
    penalty = step * problem.share[:, None]

    def iterate(_, w):
        descent = w - step * (problem.loss_gradient(w) + weight * (w - center))
        return problem.regularizer.prox(descent, penalty)

    return jax.lax.fori_loop(0, iterations, iterate, start)


def _public_steps_of_predictions(problem, factor, center, start, iterations):
    r"""The same steps among the predictions of few samples: three passes over them in all.

    A model on the way is :math:`w=aw^0+bv-X^\top\alpha`; its predictions :math:`m=Xw` need no more
    than the samples' inner products.
    """
    step = 1 / factor.scale
    weight = factor.weight
    shrink = 1 / (1 + step * strong_convexity(problem))
    keep = 1 - step * weight
    pulled = problem.predictions(center)
    pulled = with_trailing_axes(weight, pulled) * pulled

    def after(old, numbers):
        return with_trailing_axes(shrink, old) * (
            with_trailing_axes(keep, old) * old + with_trailing_axes(step, old) * numbers
        )

    def iterate(_, state):
        m, alpha, a, b = state
        gradient = problem.weighted(problem.loss.derivative(m, problem.targets))
        m = after(m, pulled - _among_samples(factor.gram, gradient))
        return m, after(alpha, gradient), shrink * keep * a, after(b, weight)

    m = problem.predictions(start)
    state = (m, jnp.zeros_like(m), jnp.ones_like(step), jnp.zeros_like(step))
    _, alpha, a, b = jax.lax.fori_loop(0, iterations, iterate, state)
    return a[:, None] * start + b[:, None] * center - problem.combination(alpha)


def _split_penalty(problem: Problem, scale: Array) -> Array:
    """The penalty of the parameter split, comparable to the residual split's own curvature."""
    return scale * jnp.mean(problem.weights.sum(1)) * jnp.mean(problem.design**2)


def _residual_admm(problem, factor, center, start, iterations, tolerance):
    """ADMM on ``residual = X w - y`` and ``copy = w``, one linear solve an iteration."""
    scale = factor.scale[:, None]
    split = _split_penalty(problem, factor.scale)[:, None]
    penalty = problem.share[:, None] / split

    def iterate(state):
        _, residual, residual_dual, copy, copy_dual = state
        target = problem.targets + residual - residual_dual
        right = factor.weight[:, None] * center + scale * problem.correlation(target)
        right = right + split * (copy - copy_dual)
        w = jnp.einsum("kpq,kq->kp", factor.inverse, right, precision=HIGHEST)
        misfit = problem.predictions(w) - problem.targets
        residual = problem.loss.prox(misfit + residual_dual, zero, 1 / scale)
        copy = problem.regularizer.prox(w + copy_dual, penalty)
        return (
            w,
            residual,
            residual_dual + misfit - residual,
            copy,
            copy_dual + w - copy,
        )

    zero = jnp.zeros_like(problem.targets)
    state = (start, zero, zero, start, jnp.zeros_like(start))
    return _iterate_until(iterate, state, iterations, tolerance, watched=3)[0]


def _least_absolute_vertex(
    rows: Float[Array, "samples dim"], targets: Array, weights: Array, pivots: int
) -> Float[Array, " dim"]:
    r"""Exact :math:`\arg\min_w\sum_j\omega_j|x_j^\top w-y_j|` by descent over vertices.

    A solution interpolates ``D`` samples; the multipliers of those tell which one to let go, and
    a weighted median along the freed edge, which one to take instead (Barrodale & Roberts 1973).
    The last ``D`` rows must be the identity, from which the first vertex is built.
    """
    dim = rows.shape[1]
    dtype = rows.dtype
    real = weights > 0
    rounding = jnp.finfo(dtype).eps
    scale = jnp.sum(weights * jnp.abs(targets)) / jnp.sum(weights) + jnp.finfo(dtype).tiny

    def reweighted(_, misfit):  # least squares, reweighted: a start a few pivots from the end
        row_weights = weights / jnp.maximum(misfit, 1e-3 * scale)
        gram = jnp.einsum("np,nq->pq", row_weights[:, None] * rows, rows, precision=HIGHEST)
        moment = jnp.einsum("np,n->p", rows, row_weights * targets, precision=HIGHEST)
        return jnp.abs(rows @ spd_solve(gram, moment) - targets)

    misfit = jax.lax.fori_loop(0, 30, reweighted, jnp.ones_like(targets) * scale)
    misfit = jnp.where(real, misfit, jnp.inf)

    def exchange(vertex, leaving, entering):
        """Replace one interpolated sample; the inverse follows by a rank-one update."""
        active, inverse = vertex
        row = rows[entering] @ inverse
        change = row - jax.nn.one_hot(leaving, dim, dtype=dtype)
        inverse = inverse - (inverse[:, leaving] / row[leaving])[:, None] * change[None]
        active = active.at[leaving].set(entering.astype(active.dtype))
        error = jnp.eye(dim, dtype=dtype) - rows[active] @ inverse
        return active, inverse + inverse @ error  # a Newton step keeps rounding from piling up

    def take_best(i, vertex):
        reach = jnp.abs(rows @ vertex[1][:, i])
        best = jnp.argmin(jnp.where(reach > 1e-2 * jnp.max(reach), misfit, jnp.inf))
        return jax.tree.map(
            lambda new, old: jnp.where(jnp.isfinite(misfit[best]), new, old),
            exchange(vertex, i, best),
            vertex,
        )

    def excess(vertex):
        """Per interpolated sample, how far its multiplier leaves ``[-weight, weight]``, signed."""
        active, inverse = vertex
        residual = (rows @ (inverse @ targets[active]) - targets).at[active].set(0)
        rate = jnp.einsum("np,n->p", rows, weights * jnp.sign(residual), precision=HIGHEST)
        multiplier = -(rate @ inverse)
        over = jnp.maximum(jnp.abs(multiplier) - weights[active] - slack, 0)
        return jnp.sign(multiplier) * over, residual

    def pivot(carry):
        count, vertex, over, residual = carry
        active, inverse = vertex
        leaving = jnp.argmax(jnp.abs(over))
        rate = jnp.sign(over[leaving]) * (rows @ inverse[:, leaving])
        clear = jnp.abs(rate) > jnp.sqrt(rounding) * jnp.max(jnp.abs(rate))
        crossing = jnp.where(real & clear, -residual / rate, jnp.inf)
        crossing = jnp.where(crossing >= 0, crossing, -jnp.inf).at[active].set(-jnp.inf)
        order = jnp.argsort(crossing)
        steepness = weights * jnp.abs(rate)
        passed = jnp.cumsum(jnp.where(crossing == jnp.inf, 0, steepness)[order])
        is_past = jnp.isfinite(crossing[order]) & (2 * passed >= jnp.abs(over[leaving]))
        vertex = exchange(vertex, leaving, order[jnp.argmax(is_past)])
        return count + 1, vertex, *excess(vertex)

    def improvable(carry):
        count, _, over, _ = carry
        return (count < pivots) & jnp.any(over != 0)

    # Below what rounding makes of a sum over all samples a multiplier says nothing.
    slack = 8 * rounding * jnp.sum(weights) * jnp.max(jnp.abs(rows))
    last = jnp.arange(len(rows) - dim, len(rows), dtype=jnp.int32)
    start = jax.lax.fori_loop(0, dim, take_best, (last, jnp.eye(dim, dtype=dtype)))
    active, inverse = jax.lax.while_loop(improvable, pivot, (0, start, *excess(start)))[1]
    return inverse @ targets[active]


def response(problem: Problem) -> Float[Array, "clients dim samples"]:
    r"""The linear map from each client's targets to its own minimizer: :math:`w_k=R_ky_k`.

    For a quadratic objective; the minimizer of least norm where it is not unique. Clients without
    samples and parameters without a feature (a column of zeros) stay at zero.
    """
    rows = jnp.sqrt(jnp.asarray(problem.weights))[..., None] * problem.design
    few = problem.samples < problem.dim
    gram = jnp.einsum("knp,kmp->knm" if few else "knp,knq->kpq", rows, rows, precision=HIGHEST)
    inverse = spd_pseudo_inverse(_add_diagonal(gram, strong_convexity(problem) / 2))
    product = "knp,knm->kpm" if few else "kpq,knq->kpn"
    operands = (rows, inverse) if few else (inverse, rows)
    return jnp.einsum(product, *operands, precision=HIGHEST) * jnp.sqrt(problem.weights)[:, None]
