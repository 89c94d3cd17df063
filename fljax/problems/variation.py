r"""Penalties of the variation of models across an edge: the GTV's :math:`\phi` (Jung 2025, (32)).

Each acts on a difference of models along the last axis, with any leading axes. Those that are
nonsmooth at zero make neighbors' models exactly equal (clusters); the squared norm only pulls them
together. A dual method needs ``prox`` and ``conjugate``; for a norm both are given by the
projection onto the ball of its dual norm (section 3.5).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.linalg import norm
from fljax._core.module import module, static
from fljax.problems.objectives import soft_threshold

#: Newton steps to the root of a scaled entry, monotone from a point whose value is at most twice
#: the target's; and halvings of the interval that holds the norm.
NEWTON_STEPS = 12
HALVINGS = 60


class Penalty:
    r"""A convex, symmetric :math:`\phi` with :math:`\phi(0)=0`; subclass it to define your own.

    ``value`` is sufficient for gradient methods; solving with a penalty other than a squared norm
    needs ``prox``, and a certificate needs ``conjugate``. For norms, subclass :class:`NormPenalty`.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Quartic(fl.problems.Penalty):
      ...     def value(self, difference):
      ...         return jnp.sum(difference**4, axis=-1)
      >>> Quartic().gradient(jnp.array([1.0, 0.0])).tolist()
      [4.0, 0.0]
    """

    @checks.required
    def value(self, difference: Array) -> Array:
        """The penalty of each difference, ``[..., D]`` to ``[...]``."""
        raise NotImplementedError

    def gradient(self, difference: Array) -> Array:
        """A subgradient, zero at zero."""
        subgradient = jax.grad(lambda rows: jnp.sum(self.value(rows)))(difference)
        return jnp.where(jnp.any(difference != 0, axis=-1, keepdims=True), subgradient, 0)

    def prox(self, point: Array, step: Array | float) -> Array:
        """``argmin_z step * value(z) + |z - point|^2 / 2``; ``step`` is one number, or
        ``[...]``.
        """
        raise NotImplementedError(
            checks.missing_method_message(type(self), "prox", "its proximal operator")
        )

    def conjugate(self, dual: Array) -> Array:
        r""":math:`\phi^*(s)=\sup_zs^\top z-\phi(z)`, infinite outside the closure of the penalty's
        subgradients.
        """
        raise NotImplementedError(
            checks.missing_method_message(type(self), "conjugate", "its convex conjugate")
        )

    def quadratic(self, dim: int) -> Array | None:
        r"""The factors ``[D]`` of a penalty :math:`\sum_dq_du_d^2`; ``None`` for other
        penalties.
        """
        return None

    def check(self, dim: int) -> None:
        """Raise ``ValueError`` unless the penalty applies to models of ``dim`` parameters."""


class NormPenalty(Penalty):
    """A norm; your own needs ``value`` and ``dual_projection``.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> penalty, u = fl.problems.Norm(), jnp.array([3.0, 4.0])
      >>> nearest = penalty.dual_projection(u, 1.0)  # in the unit ball
      >>> [round(entry, 3) for entry in nearest.tolist()]
      [0.6, 0.8]
    """

    @checks.required
    def dual_projection(self, dual: Array, radius: Array | float) -> Array:
        """The nearest point with dual norm at most ``radius``, which is one number, or
        ``[...]``.
        """
        raise NotImplementedError

    def prox(self, point: Array, step: Array | float) -> Array:
        return point - self.dual_projection(point, step)

    def conjugate(self, dual: Array) -> Array:
        beyond = norm(dual - self.dual_projection(dual, 1.0))
        return jnp.where(beyond <= _slack(dual), 0, jnp.inf).astype(dual.dtype)


def _slack(rows: Array) -> Array:
    """Rounding error of the distance of a point from a ball."""
    return 64 * jnp.finfo(rows.dtype).eps * (1 + norm(rows))


def _per_row(number: Array | float, rows: Array) -> Array:
    """One number for each of the rows ``[..., D]``, as ``[..., 1]``."""
    number = jnp.asarray(number).astype(rows.dtype)
    return jnp.broadcast_to(number, rows.shape[:-1])[..., None]


@module
class SquaredNorm(Penalty):
    r""":math:`\phi(u)=\|u\|_2^2`, the main case (Jung 2025, (33)).

    Example:
      >>> import jax.numpy as jnp
      >>> float(SquaredNorm().value(jnp.array([3.0, 4.0])))
      25.0
    """

    def value(self, difference: Array) -> Array:
        return jnp.sum(difference**2, axis=-1)

    def gradient(self, difference: Array) -> Array:
        return 2 * difference

    def prox(self, point: Array, step: Array | float) -> Array:
        return point / (1 + 2 * _per_row(step, point))

    def conjugate(self, dual: Array) -> Array:
        return jnp.sum(dual**2, axis=-1) / 4

    def quadratic(self, dim: int) -> Array:
        return jnp.ones(dim)


@module
class Norm(NormPenalty):
    r""":math:`\phi(u)=\|u\|_2`: whole models of neighbors become equal (network lasso).

    Example:
      >>> import jax.numpy as jnp
      >>> Norm().prox(jnp.array([3.0, 4.0]), 2.5).tolist()
      [1.5, 2.0]
    """

    def value(self, difference: Array) -> Array:
        return norm(difference)

    def gradient(self, difference: Array) -> Array:
        size = norm(difference)[..., None]
        return difference / jnp.where(size > 0, size, 1)

    def dual_projection(self, dual: Array, radius: Array | float) -> Array:
        size = norm(dual)[..., None]
        radius = _per_row(radius, dual)
        return dual * jnp.where(size > radius, radius / jnp.where(size > 0, size, 1), 1)


@module
class Absolute(NormPenalty):
    r""":math:`\phi(u)=\|u\|_1`: parameters of neighbors become equal one by one.

    Example:
      >>> import jax.numpy as jnp
      >>> Absolute().prox(jnp.array([3.0, -1.0]), 2.0).tolist()
      [1.0, -0.0]
    """

    def value(self, difference: Array) -> Array:
        return jnp.sum(jnp.abs(difference), axis=-1)

    def gradient(self, difference: Array) -> Array:
        return jnp.sign(difference)

    def prox(self, point: Array, step: Array | float) -> Array:
        return soft_threshold(point, _per_row(step, point))

    def dual_projection(self, dual: Array, radius: Array | float) -> Array:
        radius = _per_row(radius, dual)
        return jnp.clip(dual, -radius, radius)


@module
class PNorm(NormPenalty):
    r""":math:`\phi(u)=\|u\|_p=(\sum_d|u_d|^p)^{1/p}`, for convex clustering (Jung 2025, (67)).

    Args:
      p: :math:`p\ge1`, infinity included; it is structure. :math:`p=1` and :math:`p=2` are
        :class:`Absolute` and :class:`Norm`. For other values the prox is computed by bisection on
        the norm of its result.

    Raises:
      ValueError: a ``p`` below one, which does not give a norm.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(PNorm(3.0).value(jnp.array([3.0, 4.0, 5.0]))), 4)
      6.0
    """

    p: float = static()

    def validate(self) -> None:
        if checks.is_concrete(self.p) and np.isposinf(self.p):
            return
        checks.interval("p", self.p, at_least=1.0, hint="Below it is no norm, and not convex.")

    def value(self, difference: Array) -> Array:
        size = jnp.max(jnp.abs(difference), axis=-1)
        if self.p == np.inf:
            return size
        safe = jnp.where(size > 0, size, 1)
        total = jnp.sum(jnp.abs(difference / safe[..., None]) ** float(self.p), axis=-1)
        return size * total ** (1 / float(self.p))

    def gradient(self, difference: Array) -> Array:
        if self.p in (1, 2):
            return self._closed_form_norm.gradient(difference)
        size = jnp.max(jnp.abs(difference), axis=-1, keepdims=True)
        share = jnp.abs(difference) / jnp.where(size > 0, size, 1)
        if self.p == np.inf:
            largest = jnp.where((share == 1) & (size > 0), 1, 0).astype(difference.dtype)
            return (
                jnp.sign(difference) * largest / jnp.maximum(jnp.sum(largest, -1, keepdims=True), 1)
            )
        total = jnp.sum(share ** float(self.p), axis=-1, keepdims=True)
        scale = jnp.where(total > 0, total, 1) ** (1 / float(self.p) - 1)
        return jnp.sign(difference) * share ** (float(self.p) - 1) * scale

    def dual_projection(self, dual: Array, radius: Array | float) -> Array:
        if self.p in (1, 2):
            return self._closed_form_norm.dual_projection(dual, radius)
        if self.p == np.inf:
            return _onto_absolute_ball(dual, _per_row(radius, dual))
        return dual - _p_norm_prox(dual, _per_row(radius, dual), float(self.p))

    def prox(self, point: Array, step: Array | float) -> Array:
        if self.p in (1, 2):
            return self._closed_form_norm.prox(point, step)
        if self.p == np.inf:
            return point - _onto_absolute_ball(point, _per_row(step, point))
        return _p_norm_prox(point, _per_row(step, point), float(self.p))

    @property
    def _closed_form_norm(self) -> Absolute | Norm:
        return Absolute() if self.p == 1 else Norm()


def _onto_absolute_ball(rows: Array, radius: Array) -> Array:
    """Projection onto balls of the absolute norm by sorting (Duchi and others 2008)."""
    size = jnp.abs(rows)
    order = jnp.flip(jnp.sort(size, axis=-1), axis=-1)
    count = jnp.arange(1, rows.shape[-1] + 1, dtype=rows.dtype)
    count = count.reshape((1,) * (rows.ndim - 1) + (-1,))
    level = (jnp.cumsum(order, axis=-1) - radius) / count
    count_above = jnp.sum(order > level, axis=-1, keepdims=True, dtype=np.int32)
    threshold = jnp.take_along_axis(level, jnp.maximum(count_above - 1, 0), axis=-1)
    inside = jnp.sum(size, axis=-1, keepdims=True) <= radius
    return jnp.where(inside, rows, soft_threshold(rows, jnp.maximum(threshold, 0)))


def _p_norm_prox(rows: Array, step: Array, p: float) -> Array:
    r"""The prox of :math:`t\|\cdot\|_p`, :math:`1<p<\infty`.

    With :math:`s=\|z\|_p` and :math:`y=|z|/s` it solves :math:`sy+ty^{p-1}=|v|`, entry by entry,
    and :math:`\|y\|_p=1`. The left side grows with ``s``, which is between zero and
    :math:`\|v\|_p`; in ``y`` or :math:`y^{p-1}`, whichever makes it convex, Newton's steps from
    above stay above.
    """
    scale = jnp.max(jnp.abs(rows), axis=-1, keepdims=True)
    scale = jnp.where(scale > 0, scale, 1)
    size = jnp.abs(rows) / scale
    step = step / scale
    power = max(p - 1, 1 / (p - 1))  # of the unknown: of y, or of x = y^{p-1}

    def entries(s):
        linear, curved = (s, step) if p >= 2 else (step, s)
        tiny = jnp.finfo(rows.dtype).tiny
        above = jnp.minimum(
            size / jnp.maximum(linear, tiny), (size / jnp.maximum(curved, tiny)) ** (1 / power)
        )

        def newton(_, x):
            steep = x ** (power - 1)
            rest = linear * x + curved * steep * x - size
            rate = linear + power * curved * steep
            return jnp.maximum(x - rest / jnp.maximum(rate, tiny), 0)

        x = jax.lax.fori_loop(0, NEWTON_STEPS, newton, above)
        return x if p >= 2 else x**power

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        long = jnp.sum(entries(middle) ** p, axis=-1, keepdims=True) > 1
        return jnp.where(long, middle, low), jnp.where(long, high, middle)

    most = jnp.sum(size**p, axis=-1, keepdims=True) ** (1 / p)
    low, high = jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(most), most))
    s = (low + high) / 2
    q = p / (p - 1)
    vanishes = jnp.sum(size**q, axis=-1, keepdims=True) ** (1 / q) <= step
    shrunk = jnp.sign(rows) * scale * s * entries(s)
    return jnp.where(vanishes, 0, jnp.where(step > 0, shrunk, rows))


@module
class Mixture(Penalty):
    r""":math:`\phi=\sum_m\alpha^{(m)}\phi^{(m)}` (Jung 2025, (149)).

    With :class:`Blocks` among them, each part of a model is coupled with its own strength.

    Args:
      strengths: ``[M]``, :math:`\alpha^{(m)}\ge0`.
      penalties: the :math:`\phi^{(m)}`. Gradient methods allow any; the prox has a closed form for
        squared and Euclidean norms together with at most one other penalty.

    Raises:
      ValueError: not one strength per penalty, or a negative one.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> elastic = Mixture([0.5, 2.0], (fl.problems.SquaredNorm(), fl.problems.Norm()))
      >>> float(elastic.value(jnp.array([3.0, 4.0])))
      22.5
    """

    strengths: Float[Array, " penalties"] | Sequence[float]
    penalties: tuple[Penalty, ...]

    def validate(self) -> None:
        checks.nonnegative("strengths", checks.filled("strengths", self.strengths, 1))
        _check_penalties(self.penalties)
        if len(self.penalties) != np.shape(self.strengths)[0]:
            raise ValueError(
                f"strengths must be one for each of the {len(self.penalties)} penalties, got "
                f"{np.shape(self.strengths)[0]}."
            )

    def value(self, difference: Array) -> Array:
        values = [penalty.value(difference) for penalty in self.penalties]
        return sum(a * value for a, value in zip(self._strengths(difference), values, strict=True))  # pyright: ignore[reportReturnType]

    def gradient(self, difference: Array) -> Array:
        gradients = [penalty.gradient(difference) for penalty in self.penalties]
        return sum(
            a * gradient for a, gradient in zip(self._strengths(difference), gradients, strict=True)
        )  # pyright: ignore[reportReturnType]

    def prox(self, point: Array, step: Array | float) -> Array:
        # The prox of a function of the Euclidean norm, after the prox of any norm, is the prox of
        # the sum (Yu, On decomposing the proximal map, 2013, theorem 4).
        self._check_kinds()
        step = _per_row(step, point)[..., 0]
        strengths = self._strengths(point)
        order = sorted(range(len(self.penalties)), key=lambda m: self._rank(self.penalties[m]))
        square = sum(
            (strengths[m] for m in order if isinstance(self.penalties[m], SquaredNorm)),
            jnp.zeros((), point.dtype),
        )
        shrink = 1 + 2 * square * step
        point = point / shrink[..., None]
        step = step / shrink
        for m in order:
            if not isinstance(self.penalties[m], SquaredNorm):
                point = self.penalties[m].prox(point, strengths[m] * step)
        return point

    def conjugate(self, dual: Array) -> Array:
        self._check_kinds()
        strengths = self._strengths(dual)
        square = sum(
            (a for a, penalty in zip(strengths, self.penalties, strict=True)
             if isinstance(penalty, SquaredNorm)),
            jnp.zeros((), dual.dtype),
        )  # fmt: skip
        # With a squared norm in the mixture, the supremum is attained at the prox of the rest at
        # the squared norm's own maximizer.
        safe = jnp.where(square > 0, square, 1)
        weight = jnp.where(square > 0, 1 / (2 * safe), 1)
        rest = Mixture(
            jnp.stack([
                jnp.where(isinstance(penalty, SquaredNorm), 0, a)
                for a, penalty in zip(strengths, self.penalties, strict=True)
            ]),
            self.penalties,
        )  # fmt: skip
        best = rest.prox(weight * dual, weight)
        value = jnp.sum(dual * best, axis=-1) - self.value(best)
        within = norm(best) <= _slack(dual)
        return jnp.where(square > 0, value, jnp.where(within, 0, jnp.inf))

    def quadratic(self, dim: int) -> Array | None:
        factors = [penalty.quadratic(dim) for penalty in self.penalties]
        if any(factor is None for factor in factors):
            return None
        strengths = jnp.asarray(self.strengths)
        return sum(a * factor.astype(a.dtype) for a, factor in zip(strengths, factors, strict=True))  # pyright: ignore

    def check(self, dim: int) -> None:
        for penalty in self.penalties:
            penalty.check(dim)

    def _strengths(self, rows: Array) -> list[Array]:
        return list(jnp.asarray(self.strengths).astype(rows.dtype))

    @staticmethod
    def _rank(penalty: Penalty) -> int:
        """The order of proxes: other penalties first, then functions of the Euclidean norm."""
        round_ = isinstance(penalty, SquaredNorm | Norm) or getattr(penalty, "p", None) == 2
        return int(round_)

    def _check_kinds(self) -> None:
        norms = [penalty for penalty in self.penalties if not self._rank(penalty)]
        if len(norms) > 1 or not all(isinstance(penalty, NormPenalty) for penalty in norms):
            names = ", ".join(type(penalty).__name__ for penalty in self.penalties)
            raise ValueError(
                f"a mixture of {names} has no prox in closed form: beside SquaredNorm and Norm it "
                "may hold one other norm. Gradient methods take any; Blocks may hold mixtures."
            )


@module
class Blocks(Penalty):
    r"""A separate penalty for each block of a model's parameters; blocks with ``None`` are private.

    Partial sharing (Jung 2025, section 6.5): of :math:`w=(u,v)` only the first layer's
    :math:`u` is coupled by ``Blocks((len_u, len_v), (SquaredNorm(), None))``.

    Args:
      sizes: numbers of parameters of the blocks, in order; they sum to ``D``.
      penalties: one per block, or ``None``.

    Raises:
      ValueError: not one penalty per block, or an empty block.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> shared = Blocks((2, 1), (fl.problems.Norm(), None))
      >>> float(shared.value(jnp.array([3.0, 4.0, 100.0])))
      5.0
    """

    sizes: tuple[int, ...] = static()
    penalties: tuple[Penalty | None, ...] = ()

    def validate(self) -> None:
        for size in self.sizes:
            checks.count("sizes", size)
        _check_penalties(
            tuple(penalty for penalty in self.penalties if penalty is not None), least=0
        )
        if len(self.sizes) != len(self.penalties) or not self.sizes:
            raise ValueError(
                f"a penalty is needed for each block, got {len(self.sizes)} sizes and "
                f"{len(self.penalties)} penalties; None leaves a block private."
            )
        for size, penalty in zip(self.sizes, self.penalties, strict=True):
            if penalty is not None:
                penalty.check(size)
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        object.__setattr__(self, "penalties", tuple(self.penalties))

    def value(self, difference: Array) -> Array:
        parts = [
            penalty.value(part) for penalty, part in self._blocks(difference) if penalty is not None
        ]
        return sum(parts, jnp.zeros(difference.shape[:-1], difference.dtype))

    def gradient(self, difference: Array) -> Array:
        return jnp.concatenate(
            [
                jnp.zeros_like(part) if penalty is None else penalty.gradient(part)
                for penalty, part in self._blocks(difference)
            ],
            axis=-1,
        )

    def prox(self, point: Array, step: Array | float) -> Array:
        return jnp.concatenate(
            [
                part if penalty is None else penalty.prox(part, step)
                for penalty, part in self._blocks(point)
            ],
            axis=-1,
        )

    def conjugate(self, dual: Array) -> Array:
        parts = [
            jnp.where(norm(part) <= _slack(dual), 0, jnp.inf).astype(dual.dtype)
            if penalty is None
            else penalty.conjugate(part)
            for penalty, part in self._blocks(dual)
        ]
        return sum(parts, jnp.zeros(dual.shape[:-1], dual.dtype))

    def quadratic(self, dim: int) -> Array | None:
        parts = [
            jnp.zeros(size) if penalty is None else penalty.quadratic(size)
            for penalty, size in zip(self.penalties, self.sizes, strict=True)
        ]
        if any(part is None for part in parts):
            return None
        return jnp.concatenate(parts)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def check(self, dim: int) -> None:
        if sum(self.sizes) != dim:
            raise ValueError(
                f"the blocks have {' + '.join(map(str, self.sizes))} = {sum(self.sizes)} "
                f"parameters, but a model has {dim}."
            )

    def _blocks(self, rows: Array) -> list[tuple[Penalty | None, Array]]:
        ends = np.cumsum(self.sizes)[:-1]
        return list(zip(self.penalties, jnp.split(rows, ends, axis=-1), strict=True))


def _check_penalties(penalties: Sequence[object], least: int = 1) -> None:
    if len(penalties) < least:
        raise ValueError("penalties is empty; give at least one.")
    for penalty in penalties:
        checks.kind("penalties", penalty, Penalty)
        checks.registered("penalties", penalty)
