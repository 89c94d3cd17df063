r"""The privacy funnel: little information on private variables, enough on useful ones.

.. math:: \min_{z}\ I(s;z)\quad\text{such that}\quad I(y;z)\ge R,

over maps :math:`z` of features :math:`x` (Jung 2025, (183); with :math:`y=x` it is Makhdoumi et
al. 2014). Its solutions over all levels :math:`R` are a trade-off curve, below which no map can be.

* :func:`privacy_funnel` for discrete or quantized data, over random maps;
* :class:`GaussianFunnel` for jointly Gaussian variables, over linear maps, in closed form.

Information is an *average*, in nats, under the one distribution that is given. This is not
differential privacy, no :math:`\epsilon` follows from it, and a rare value may still be revealed.

Shapes: ``N`` samples, ``S``, ``X``, ``Y``, ``Z`` values of ``s``, ``x``, ``y``, ``z``; ``P`` points
of a curve; ``D`` features, ``A`` private and ``L`` released numbers.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.prng import as_key
from fljax.privacy.column_span import span

#: Relative excess of a level over the maximum that counts as rounding.
ROUNDING = 1e-9

#: Relative rounding of a share of a variance that is computed in two ways.
ROUNDED = 1e-13

#: Passes over slopes: in the first, slopes of all angles; then the slopes of the remaining chords.
PASSES = 3

#: Decimals to which distributions of the useful variable must agree to count as equal.
DECIMALS = 12


# --------------------------------------------------------------------------- discrete data


@checked
def mutual_information(table: Float[np.ndarray, "rows columns"]) -> float:
    """Return the mutual information of two discrete variables, in nats.

    Args:
      table: their joint probabilities or counts.

    Example:
      >>> round(mutual_information(np.eye(2)), 4)  # one bit
      0.6931
    """
    joint = _probabilities(table, 2)
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    positive = joint > 0
    return max(
        float(np.sum(joint[positive] * np.log(joint[positive] / independent[positive]))), 0.0
    )


@checked
def quantized(
    values: Float[np.ndarray, "samples ..."], levels: int
) -> Int[np.ndarray, "samples ..."]:
    """Quantize each column to cells that hold equally many values.

    Args:
      values: ``[N]`` or ``[N, D]``.
      levels: cells per column, two or more; equal values share a cell, so some may be empty.

    Returns:
      The index of each value's cell, integers below ``levels`` in the order of the values.

    Example:
      >>> quantized(np.array([3.0, 1.0, 2.0, 9.0]), 2).tolist()
      [1, 0, 0, 1]
    """
    checks.count("levels", levels, at_least=2)
    checks.finite("values", values)
    columns = np.asarray(values, np.float64).reshape(len(values), -1)
    edges = np.quantile(columns, np.arange(1, levels) / levels, axis=0)
    cells = [
        np.searchsorted(edge, column, side="left")
        for edge, column in zip(edges.T, columns.T, strict=True)
    ]
    return np.stack(cells, axis=1).reshape(np.shape(values))


@checked
def joint_table(
    private: Int[np.ndarray, "samples ..."],
    features: Int[np.ndarray, "samples ..."],
    useful: Int[np.ndarray, "samples ..."],
) -> Float[np.ndarray, "private features useful"]:
    """Return the joint relative frequencies of three variables, for :func:`privacy_funnel`.

    Information in a table of few samples is overestimated: by about the number of cells over twice
    the number of samples, in nats. Use fewer ``levels`` of :func:`quantized` then.

    Args:
      private: integers ``[N]``, or rows ``[N, ...]``, each distinct one a value.
      features: in the same form.
      useful: in the same form.

    Returns:
      ``[S, X, Y]``, relative frequencies that sum to one.

    Raises:
      ValueError: different numbers of samples.

    Example:
      >>> hour, heat = np.array([0, 0, 1, 1]), np.array([5, 6, 5, 6])
      >>> joint_table(hour, np.stack([hour, heat], axis=1), heat).shape
      (2, 4, 2)
    """
    arrays = {"private": private, "features": features, "useful": useful}
    sizes = {name: len(values) for name, values in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"private, features and useful must have the same number of samples, got {sizes}."
        )
    codes = []
    for values in arrays.values():
        rows = np.asarray(values).reshape(len(values), -1)
        codes.append(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1))
    table = np.zeros([int(code.max()) + 1 for code in codes])
    np.add.at(table, tuple(codes), 1 / len(codes[0]))
    return table


class FunnelPoint(NamedTuple):
    """A map of features, with its information on the private and on the useful variable."""

    map: np.ndarray  # [X, Z] probabilities of z given x; of a Gaussian funnel [D], z = map @ x
    private: float  # I(s;z), nats
    useful: float  # I(y;z), nats


@dataclasses.dataclass(frozen=True)
class Tradeoff:
    """The trade-off curve of :func:`privacy_funnel`: corners, between which maps are randomized.

    Attributes:
      useful: ``[P]``, I(y;z) of each corner, nats, from zero to I(x;y).
      private: ``[P]``, I(s;z), nats: convex in ``useful``.
      maps: ``[P, X, Z]``, the probabilities of z given x.
    """

    useful: np.ndarray
    private: np.ndarray
    maps: np.ndarray = dataclasses.field(repr=False)

    def at(self, level: float) -> FunnelPoint:
        """Return the map of least I(s;z) with I(y;z) at the level.

        Between two corners it is the map of one of them chosen by a coin, whose outcome is released
        with z.

        Args:
          level: in nats, from zero to I(x;y).

        Raises:
          ValueError: a level above I(x;y), which no map attains.
        """
        level = _level(level, float(self.useful[-1]))
        right = min(int(np.searchsorted(self.useful, level)), len(self.useful) - 1)
        left = max(right - 1, 0)
        width = self.useful[right] - self.useful[left]
        share = (level - self.useful[left]) / width if width > 0 else 1.0
        maps = np.concatenate([(1 - share) * self.maps[left], share * self.maps[right]], axis=1)
        private = (1 - share) * self.private[left] + share * self.private[right]
        return FunnelPoint(maps[:, maps.sum(0) > 0], float(private), level)


@checked
def privacy_funnel(
    table: Float[np.ndarray, "private features useful"],
    key: Array | int = 0,
    slopes: int = 48,
    restarts: int = 8,
    iterations: int = 1000,
) -> Tradeoff:
    r"""Return the least information on s over maps of x that keep information on y, for all levels.

    From each of several starts, for each of many slopes :math:`\beta`, then for the slopes of
    chords between the points found so far, the Lagrangian :math:`I(s;z)-\beta I(y;z)` is decreased
    by the iteration

    .. math:: q(z|x)\leftarrow\frac{q(z|x)}{c_x}\,\exp\Big(-\sum_sp(s|x)\ln\frac{q(z|s)}{q(z)}
        +\beta\sum_yp(y|x)\ln\frac{q(z|y)}{q(z)}\Big),

    alternating with :math:`q(z|s)`, :math:`q(z|y)` and :math:`q(z)`. Starts are random maps and one
    near the identity. The Lagrangian never increases: the curvature of :math:`I(s;z)` is at most
    that of :math:`-\sum_xp(x) H(z|x)`, whose mirror step the iteration is, and :math:`-I(y;z)` is
    concave in :math:`q`. The curve is the lower convex hull of all points found, the constant map
    and y's sufficient statistic. All slopes are one compiled program.

    The minimum need not be the global one, as the Lagrangian is not convex. Starts are made one
    after another, and none depends on how many follow: a curve with more ``restarts`` has all
    points of this one, or lower ones, and lies nowhere above it (but for points that are equal up
    to :math:`10^{-9}` of I(x;y); one of them is kept). Each point of the curve is attained.

    Args:
      table: probabilities or counts ``[S, X, Y]``, of quantized data for instance; for Makhdoumi et
        al.'s funnel, with y = x, diagonal in the last two axes.
      key: of the random starts.
      slopes: number of slopes per pass.
      restarts: random starts, besides the one near the identity.
      iterations: of each start and slope.

    Returns:
      The trade-off curve. The curve of the table with s and y exchanged bounds the attained values
      from the other side.

    Raises:
      ValueError: a table with negative numbers or zeros alone, or without three axes.

    Guarantees:
      The information values hold for its maps under the distribution in the table, and for no
      other. No differential privacy.

    Example:
      >>> table = np.zeros((2, 4, 2))
      >>> for s in (0, 1):
      ...     for y in (0, 1):
      ...         table[s, 2 * s + y, y] = 0.25  # x has both, apart
      >>> curve = privacy_funnel(table)
      >>> point = curve.at(0.5)
      >>> round(point.private, 6), round(point.useful, 6)
      (0.0, 0.5)

    Reference:
      Makhdoumi, Salamatian, Fawaz & Médard 2014; Jung 2025, (183).
    """
    joint = _probabilities(table, 3)
    for name, number in (("slopes", slopes), ("restarts", restarts), ("iterations", iterations)):
        checks.count(name, number)
    with_s = joint.sum(2)
    with_y = joint.sum(0).T
    private = mutual_information(with_s)
    useful = mutual_information(with_y)
    values = joint.shape[1]
    points = [(0.0, 0.0, np.eye(values)[np.zeros(values, int)])]
    if useful > 0:
        points.append(_point(_sufficient(with_y), with_s, with_y))
        angles = np.pi / 2 * (np.arange(slopes) + 0.5) / slopes
        steep = np.tan(angles) * max(private, ROUNDING) / useful
        for start in _starts(as_key(key), values, restarts):
            weights = steep
            for maps in start:
                numbers = (jnp.asarray(part, maps.dtype) for part in (with_s, with_y, weights))
                descended = _normalized(_descend_from(*numbers, maps, iterations))
                new_points = [_point(channel, with_s, with_y) for channel in descended]
                points = _lower_hull([*points, *new_points])
                weights = _chords(points, slopes, private / useful)
    return Tradeoff(*(np.stack(part) for part in zip(*points, strict=True)))


def _probabilities(table: object, axes: int) -> np.ndarray:
    """The table, normalized to a sum of one."""
    table = np.asarray(table, np.float64)
    if table.ndim != axes:
        raise ValueError(f"table must have {axes} axes, got shape {table.shape}.")
    checks.nonnegative("table", table, "It holds probabilities or counts.")
    if not table.sum() > 0:
        raise ValueError("table holds zeros alone; it must have probabilities or counts.")
    return table / table.sum()


def _point(
    channel: np.ndarray, with_s: np.ndarray, with_y: np.ndarray
) -> tuple[float, float, np.ndarray]:
    useful, private = (mutual_information(joint @ channel) for joint in (with_y, with_s))
    return useful, private, channel


def _sufficient(with_y: np.ndarray) -> np.ndarray:
    """``[X, X]``: merge the values of x with equal conditional laws of y; I(x;y) is not reduced."""
    share = with_y / np.maximum(with_y.sum(0, keepdims=True), np.finfo(float).tiny)
    same = np.unique(share.T.round(DECIMALS), axis=0, return_inverse=True)[1].reshape(-1)
    return np.eye(with_y.shape[1])[same]


def _lower_hull(points: Sequence[tuple[float, float, np.ndarray]]) -> list:
    """Corners of the lower convex hull, from the least useful to the most."""
    hull: list = []
    nearly = ROUNDING * max(point[0] for point in points)
    for point in sorted(points, key=lambda corner: corner[:2]):
        if hull and point[0] <= hull[-1][0] + nearly:  # as useful
            if point[1] >= hull[-1][1]:
                continue
            hull.pop()

        def above(last: tuple, before: tuple, point: tuple = point) -> bool:
            chord = (point[1] - before[1]) * (last[0] - before[0])
            return (last[1] - before[1]) * (point[0] - before[0]) >= chord

        while len(hull) > 1 and above(hull[-1], hull[-2]):
            hull.pop()
        hull.append(point)
    return hull


def _chords(hull: Sequence[tuple[float, float, np.ndarray]], count: int, unit: float) -> np.ndarray:
    """Slopes of the ``count`` longest chords, which may have points below; repeated if fewer."""
    run, rise = np.diff([point[:2] for point in hull], axis=0).T
    longest = np.argsort(-np.hypot(unit * run, rise))
    return np.resize((rise / run)[longest], count)


def _starts(key: Array, values: int, restarts: int) -> Iterator[list[Array]]:
    """The maps ``[X, X]`` that each start begins its passes from: near the identity, then random.

    Number ``r`` depends on the key and ``r`` alone.
    """
    dtype = float_dtype()
    near_identity = jnp.asarray(0.9 * np.eye(values) + 0.1 / values, dtype)
    yield [near_identity] * PASSES
    concentration = jnp.full(values, 0.5, dtype)
    for number in range(restarts):
        start_key = jax.random.fold_in(key, number)
        keys = (jax.random.fold_in(start_key, number_of_pass) for number_of_pass in range(PASSES))
        yield [jax.random.dirichlet(pass_key, concentration, (values,), dtype) for pass_key in keys]


def _normalized(maps: Array | np.ndarray) -> np.ndarray:
    maps = np.asarray(maps, np.float64)
    return maps / maps.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnames="iterations")
def _descend_from(
    with_s: Array, with_y: Array, slopes: Array, start: Array, iterations: int
) -> Array:
    """The map that each slope leads to from a start, ``[slopes, X, Z]``."""
    tiny = jnp.finfo(start.dtype).tiny
    share_x = jnp.sum(with_s, axis=0)

    def share(joint: Array, axis: int) -> Array:
        return joint / jnp.maximum(jnp.sum(joint, axis=axis, keepdims=True), tiny)

    def log(numbers: Array) -> Array:
        return jnp.log(jnp.maximum(numbers, tiny))

    def lagrangian(weight: Array, q: Array) -> Array:
        """``[X, Z]``: whose mean, over x and z, is the Lagrangian."""

        def log_ratio(joint: Array) -> Array:
            """The mean of ln q(z|s)/q(z) over s given x."""
            conditional = share(jnp.matmul(joint, q, precision=HIGHEST), 1)
            ratio = log(conditional) - log(jnp.matmul(share_x, q, precision=HIGHEST))[None]
            return jnp.matmul(share(joint, 0).T, ratio, precision=HIGHEST)

        return log_ratio(with_s) - weight * log_ratio(with_y)

    def descend(weight: Array) -> Array:
        def step(_: object, logarithm: Array) -> Array:
            return jax.nn.log_softmax(logarithm - lagrangian(weight, jnp.exp(logarithm)), axis=1)

        return jnp.exp(jax.lax.fori_loop(0, iterations, step, log(start)))

    return jax.vmap(descend)(slopes)


def _level(level: float, most: float) -> float:
    """Raise ``ValueError`` unless it can be attained."""
    checks.nonnegative("level", level)
    if level > most * (1 + ROUNDING):
        raise ValueError(
            f"level must be at most I(x;y) = {most:.4g} nats, got {level:g}: no function of the "
            "features has more information about y than the features themselves."
        )
    return min(float(level), most)


# --------------------------------------------------------------------------- Gaussian variables


@dataclasses.dataclass(frozen=True)
class GaussianFunnel:
    r"""The funnel of jointly Gaussian variables over linear maps, in closed form.

    Among all linear maps of :math:`x`, with any number of rows, none has a smaller :math:`I(s;z)`
    at its :math:`I(y;z)` than the scalar :math:`z=f_\lambda^\top x`,

    .. math:: f_\lambda=\big(C\Sigma_s^{-1}C^\top-\lambda\Sigma_x\big)^{-1}c,\qquad
        C=\mathrm{cov}(x,s),\ c=\mathrm{cov}(x,y),

    with the :math:`\lambda` that attains the level, below the smallest eigenvalue
    :math:`\lambda_1` of :math:`C\Sigma_s^{-1}C^\top` relative to :math:`\Sigma_x`. The reason is
    that the best prediction of y from a map is a scalar, which can replace the map (data
    processing); and the scalars that are optimal at a level minimize
    :math:`f^\top C\Sigma_s^{-1}C^\top f-\beta(f^\top c)^2` for some :math:`\beta`. At
    :math:`\lambda=-\infty` it is the best prediction of y; at :math:`\lambda_1`, which is zero
    where there are fewer attributes than features, the best one that is independent of s.
    Then additional noise in z would not help either.

    Attributes:
      covariance: :math:`\Sigma_x`, ``[D, D]``, positive definite.
      private: :math:`C`, ``[D, A]`` (or ``[D]``).
      useful: :math:`c`, ``[D]``.
      private_covariance: :math:`\Sigma_s`, ``[A, A]`` (or a number), positive definite.
      useful_variance: of y, > 0.

    Raises:
      ValueError: shapes that do not match; matrices that are not covariances.

    Guarantees:
      Independence of s where :attr:`FunnelPoint.private` is zero, *if* all variables are jointly
      Gaussian with these covariances; otherwise zero covariance only. No differential privacy: z is
      not a noisy release.

    Example:
      >>> funnel = GaussianFunnel(  # s = x1 + noise, y = x1 / 2 + x2 + noise
      ...     np.eye(2), np.array([1.0, 0.0]), np.array([0.5, 1.0]), 1.04, 1.29
      ... )
      >>> private, useful = funnel.informations(np.array([0.5, np.sqrt(0.75)]))  # 60 degrees
      >>> round(private, 2), round(useful, 2)
      (0.14, 1.68)
      >>> point = funnel.at(1.68)
      >>> round(point.private, 2), funnel.at(0.7).private
      (0.08, 0.0)

    Reference:
      Jung 2025, (183), (184) and figure 9.4.
    """

    covariance: np.ndarray
    private: np.ndarray
    useful: np.ndarray
    private_covariance: np.ndarray | float
    useful_variance: float

    def __post_init__(self) -> None:
        """Convert the arrays to their shapes, and check them."""
        arrays = {
            name: np.asarray(checks.filled(name, getattr(self, name)), np.float64)
            for name in ("covariance", "private", "useful", "private_covariance")
        }
        dim = len(arrays["useful"]) if arrays["useful"].ndim == 1 else 0
        if arrays["private"].ndim == 1:
            arrays["private"] = arrays["private"][:, None]
        hidden = arrays["private"].shape[-1] if arrays["private"].ndim else 0
        if hidden == np.size(arrays["private_covariance"]) == 1:
            arrays["private_covariance"] = arrays["private_covariance"].reshape(1, 1)
        wanted = ((dim, dim), (dim, hidden), (dim,), (hidden, hidden))
        got = tuple(array.shape for array in arrays.values())
        if got != wanted:
            raise ValueError(
                "covariance, private, useful and private_covariance must be [D, D], [D, A], [D] "
                f"and [A, A], got shapes {', '.join(map(str, got))}."
            )
        checks.array("useful_variance", self.useful_variance, axes=0)
        checks.positive("useful_variance", self.useful_variance)
        for name, array in arrays.items():
            checks.finite(name, array)
            object.__setattr__(self, name, array)
        for name in ("covariance", "private_covariance"):
            values = np.linalg.eigvalsh(_correlations(name, arrays[name]))
            if not values[0] > ROUNDING * values[-1]:
                raise ValueError(
                    f"{name} must be positive definite, got correlations with eigenvalues from "
                    f"{values[0]:.3g} to {values[-1]:.3g}: leave out variables that others "
                    "determine."
                )
        for name, share in zip(("private", "useful"), self._explained(np.eye(dim)), strict=True):
            if share > 1 + ROUNDING:
                raise ValueError(
                    f"{name} is no covariance of these variables: the features would explain "
                    f"{share:.3g} of the variance."
                )

    @classmethod
    def of_samples(
        cls,
        features: Float[np.ndarray, "samples dim"],
        private: Float[np.ndarray, "samples ..."],
        useful: Float[np.ndarray, " samples"],
    ) -> "GaussianFunnel":
        """Return the funnel with the covariances of samples, which need not be centered.

        Args:
          features: ``[N, D]``.
          private: ``[N]`` or ``[N, A]``.
          useful: ``[N]``.
        """
        x, s, y = (
            np.asarray(part, np.float64).reshape(len(part), -1)
            for part in (features, private, useful)
        )
        if not len(x) == len(s) == len(y):
            raise ValueError(
                f"features, private and useful must have the same number of samples, got {len(x)}, "
                f"{len(s)} and {len(y)}."
            )
        x, s, y = (part - part.mean(0) for part in (x, s, y))
        return cls(
            x.T @ x / len(x), x.T @ s / len(x), x.T @ y[:, 0] / len(x), s.T @ s / len(x),
            float(np.mean(y**2)),
        )  # fmt: skip

    def informations(self, maps: Float[np.ndarray, "... dim"]) -> tuple[float, float]:
        r"""Return I(s;z) and I(y;z) of a linear map, in nats.

        All numbers of the map count, in any unit: rows that are small relative to others, and small
        differences of rows.

        Args:
          maps: a direction ``[D]``, or the rows of a map onto a subspace, ``[L, D]``.

        Returns:
          The two values, infinite where z determines the variable.

        Raises:
          ValueError: rows of another length, NaN or infinite numbers.
        """
        rows = np.atleast_2d(np.asarray(maps, np.float64))
        if rows.ndim != 2 or rows.shape[1] != len(self.useful):
            raise ValueError(
                f"maps must be [{len(self.useful)}] or [rows, {len(self.useful)}], a number for "
                f"each feature, got shape {np.shape(maps)}."
            )
        checks.finite("maps", rows)
        private, useful = self._spectra(rows)
        with np.errstate(divide="ignore"):
            informations = [
                abs(np.sum(np.log1p(-np.clip(part, 0, 1)))) / 2 for part in (private, useful)
            ]
        return float(informations[0]), float(informations[1])

    @property
    def most(self) -> float:
        """The information of all features on y, I(x;y), in nats."""
        return self.informations(np.eye(len(self.useful)))[1]

    def at(self, level: float) -> FunnelPoint:
        """Return the direction of least I(s;z) with I(y;z) at least at the level.

        Args:
          level: in nats, from zero to I(x;y).

        Returns:
          The direction, of unit length, and its information, which is at least the level up to
          rounding. For levels up to the largest I(y;z)
          among the directions of the smallest possible I(s;z), which is zero where there are fewer
          attributes than features, it is the direction that attains this largest I(y;z).

        Raises:
          ValueError: a level above I(x;y).
        """
        share = -np.expm1(-2 * _level(level, self.most))  # of the variance of y
        root = np.linalg.cholesky(self.covariance)
        explained = np.linalg.solve(np.linalg.cholesky(self.private_covariance), self.private.T)
        spectrum, axes = _spectrum(
            np.linalg.solve(root, explained.T)
        )  # of s, along axes of white x
        useful = axes.T @ np.linalg.solve(root, self.useful) / np.sqrt(self.useful_variance)
        direction = axes @ _least_private(spectrum - spectrum[0], useful, share)
        direction = np.linalg.solve(root.T, direction)
        direction /= np.linalg.norm(direction)
        return FunnelPoint(direction, *self.informations(direction))

    def _explained(self, rows: np.ndarray) -> tuple[float, float]:
        """The largest explained share of the variance of a number of s, and that of y."""
        private, useful = self._spectra(rows)
        return float(private.max()), float(useful.max())

    def _spectra(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Squared canonical correlations of the map with s and with y."""
        # A basis of the rows' span, with features in units in which they vary by about one:
        # however small a row is, or the difference of two rows, it can be scaled up.
        unit = np.sqrt(np.diagonal(self.covariance))
        basis = span((rows * np.ldexp(1.0, np.frexp(unit)[1])[None]).T)
        basis = basis * np.ldexp(1.0, -np.frexp(unit)[1])[:, None]
        root = np.linalg.cholesky(self.covariance)
        white = np.linalg.qr(root.T @ basis)[0].T  # [L, D], orthonormal rows
        private, useful = (np.linalg.solve(root, part) for part in (self.private, self.useful))
        with_s = np.linalg.solve(np.linalg.cholesky(self.private_covariance), (white @ private).T)
        with_y = white @ useful / np.sqrt(self.useful_variance)
        return np.linalg.svd(with_s, compute_uv=False) ** 2, np.sum(with_y**2, keepdims=True)


def _correlations(name: str, covariance: np.ndarray) -> np.ndarray:
    """The matrix of correlations, which does not depend on units."""
    variances = np.diagonal(covariance)
    if not np.all(variances > 0):
        raise ValueError(
            f"{name} must be positive definite, got a variance of {np.min(variances):.3g}: leave "
            "out variables that do not vary."
        )
    size = np.sqrt(variances)
    return covariance / size[:, None] / size[None]


def _spectrum(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of ``rows @ rows.T``, from the smallest; zero itself where it is so but for rounding."""
    values, vectors = np.linalg.eigh(rows @ rows.T)
    return np.where(values > ROUNDING * values[-1], values, 0.0), vectors


def _least_private(private: np.ndarray, useful: np.ndarray, share: float) -> np.ndarray:
    r"""The coordinates of the direction with the least information on s.

    Args:
      private: ``[D]``, the explained share of s of each axis beyond the least, from zero.
      useful: ``[D]``, the correlations of the axes with y.
      share: of the variance of y that the direction must explain.
    """
    least = private <= ROUNDING
    share_of_least = np.sum(useful[least] ** 2)
    if share_of_least > ROUNDING**2:
        if share_of_least >= share * (1 - ROUNDED):
            return np.where(least, useful, 0.0)
    else:  # the axes with the least private information have none on y, and can only dilute
        direction = np.where(least, 0.0, useful / np.where(least, 1.0, private))
        length = (useful @ direction) ** 2 - share * (direction @ direction)
        if not np.any(direction) or share == 0:
            return np.eye(len(private))[0]
        if length >= 0:
            return direction + np.sqrt(length / share) * np.eye(len(private))[0]

    def damped(weight: float) -> np.ndarray:
        """Between the axes of the least private information, at zero, and all, at infinity."""
        factors = weight / (np.where(least, 0.0, private) + weight)
        return useful * factors / np.max(factors)

    low = np.log(np.finfo(float).tiny)
    high = np.log(1 / ROUNDING**2)
    for _ in range(100):
        middle = (low + high) / 2
        direction = damped(np.exp(middle))
        enough = (useful @ direction) ** 2 >= share * (direction @ direction)
        low, high = (low, middle) if enough else (middle, high)
    return damped(np.exp(high))
