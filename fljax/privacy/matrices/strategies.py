r"""Strategies of the matrix mechanism: lower-triangular matrices that noise is shaped by.

The rows :math:`x_0,x_1,\dots` are the clipped sums of the rounds. A strategy :math:`C` is a
lower-triangular matrix of rounds; the mechanism releases

.. math:: \theta=Cx+\sigma z,\qquad z_{ti}\sim\mathcal N(0,1)\text{ independent},

round after round, and publishes :math:`\hat x=C^{-1}\theta=x+\sigma C^{-1}z`, whose noise is
correlated over rounds such that a part of it cancels in prefix sums, which make up a
model. Only :math:`\theta` touches the data: its noise is independent, and the privacy of all
rounds is that of one Gaussian release whose sensitivity is that of :math:`Cx`. What is computed
from :math:`\theta` is post-processing.

Every strategy encodes and decodes in a stream: :meth:`Strategy.encode` returns the row of
:math:`Cx` of a round from that of :math:`x`, :meth:`Strategy.decode` the row of
:math:`C^{-1}\theta` from that of :math:`\theta`, each with a state of fixed size. Decoding solves
for the inverse with the numbers of :math:`C` itself, so that no second set of numbers can disagree
with the first.

References, by the names used below:

* *Denisov et al. 2022*: Improved differential privacy for SGD via optimal private linear
  operators on adaptive streams, NeurIPS (adaptive rows cost no more than fixed ones).
* *Choquette-Choo et al. 2023*: (Amplified) banded matrix factorization, NeurIPS.
* *Kalinin & Lampert 2024*: Banded square root matrix factorization for differentially private
  model training, NeurIPS.
* *McKenna 2024*: Scaling up the banded matrix factorization mechanism for differentially private
  machine learning.
* *Dvijotham et al. 2024*: Efficient and near-optimal noise generation for streaming differential
  privacy, FOCS.
* *McMahan, Xu & Zhang 2024*: A hassle-free algorithm for strong differential privacy in federated
  learning systems.
* *Kalinin et al. 2025*: Back to square roots: an optimal bound on the matrix factorization error
  for multi-epoch differentially private SGD.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import field, float_array, module
from fljax.privacy.matrices import toeplitz
from fljax.privacy.matrices.toeplitz import Column, Reduction

#: Up to this many rounds a bound by the Gram matrix, of memory ``rounds ** 2``, is computed.
_DENSE = 4096

#: Up to this many rounds it is computed where a cheaper bound is at hand.
_TIGHTENED = 512


class PastState(NamedTuple):
    """The last rows, newest first."""

    past: Array  # [bands - 1, ...]


class BufferState(NamedTuple):
    """Exponentially weighted sums of all rows so far."""

    buffers: Array  # [buffers, ...]


class BandedState(NamedTuple):
    """The last rows, newest first, and the number of the round."""

    past: Array  # [bands - 1, ...]
    round: Array  # []


def _on_host(name: str, value: object) -> np.ndarray:
    """The numbers in double precision; ``TypeError`` if they are traced."""
    if not checks.is_concrete(value):
        raise TypeError(
            f"the {name} of a strategy are traced here, and its sensitivity, error and matrices "
            "are computed on the host in double precision; compute them outside of jax.jit and "
            "jax.vmap and pass the numbers in."
        )
    return np.asarray(value, np.float64)


def _weighted(weights: Array, rows: Array) -> Array:
    """Sum of rows times weights, in full precision on every device."""
    return jnp.sum(weights.reshape(-1, *[1] * (rows.ndim - 1)) * rows, axis=0)


def _shifted(past: Array, row: Array) -> Array:
    return jnp.concatenate([row[None], past])[: len(past)]


class Strategy:
    """A lower-triangular matrix of rounds, with positive entries on its diagonal.

    Subclasses are modules whose numbers are leaves: a jitted program takes another strategy of the
    same size without compiling again.
    """

    @property
    def bands(self) -> int | None:
        """Number of diagonals that are not zero; ``None`` if all may be."""
        return None

    @property
    def horizon(self) -> int | None:
        """Number of rounds that the strategy is made for; ``None`` if any."""
        return None

    @checks.required
    def matrix(self, rounds: int) -> Float[np.ndarray, "rounds rounds"]:
        """Return :math:`C` for this number of rounds, dense."""
        raise NotImplementedError

    @checks.required
    def sensitivity(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> float:
        r"""Return the sensitivity of :math:`Cx`, or an upper bound.

        It is the largest :math:`\|Cu\|_F` over all matrices :math:`u` whose rows have a norm of at
        most 1, at most ``participations`` rows are not zero, and any two of these are at least
        ``separation`` rounds apart. By Denisov et al. 2022 it bounds what one client can change
        even if the rows depend on earlier releases.

        The number is computed in double precision and rounded up. It refers to the numbers of the
        strategy in the precision in use, not to exact numbers that they were rounded from.

        Args:
          rounds: number of rounds, at most the horizon.
          separation: least distance between two rounds in which one client takes part, >= 1; 1 if
            a client may take part in every round.
          participations: largest number of rounds in which one client takes part; by default as
            many as the separation leaves room for.

        Raises:
          TypeError: numbers of the strategy that are traced.
          ValueError: counts out of their ranges, more rounds than the horizon.
        """
        raise NotImplementedError

    @checks.required
    def errors(
        self, rounds: int, workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None
    ) -> Float[np.ndarray, " rounds"]:
        r"""Return the squared error of each prefix sum of :math:`\hat x`, for :math:`\sigma=1`.

        It is the squared norm of each row of :math:`AC^{-1}`, per coordinate.

        Args:
          rounds: number of rounds, at most the horizon.
          workload: first column of another lower-triangular Toeplitz matrix :math:`A` than that of
            prefix sums, ``[rounds]``: for instance that of heavy-ball momentum.

        Raises:
          TypeError: numbers of the strategy that are traced.
          ValueError: more rounds than the horizon, a workload of another length.
        """
        raise NotImplementedError

    @checks.required
    def begin(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None) -> PyTree:
        """Return the state of encoding, and of decoding, before the first round.

        Args:
          shape: of a row.
          dtype: of a row; by default that of the precision in use.
        """
        raise NotImplementedError

    @checks.required
    def encode(self, state: PyTree, row: Float[Array, "..."]) -> tuple[PyTree, Float[Array, "..."]]:
        """Return the next state, and the row of :math:`Cx` of this round.

        Args:
          state: from the previous round, or of :meth:`begin`.
          row: of :math:`x`, of any shape.
        """
        raise NotImplementedError

    @checks.required
    def decode(self, state: PyTree, row: Float[Array, "..."]) -> tuple[PyTree, Float[Array, "..."]]:
        r"""Return the next state, and the row of :math:`C^{-1}\theta` of this round.

        Args:
          state: from the previous round, or of :meth:`begin`; another than that of encoding.
          row: of :math:`\theta`, of any shape.
        """
        raise NotImplementedError

    @checks.required
    def absolute(self) -> "Strategy":
        """Return the strategy of the same computation in which no two terms cancel.

        Encoding norms of rows by it bounds the sums of absolute values of all terms that make up an
        encoded row, by which its roundings are bounded (:meth:`roundings`).
        """
        raise NotImplementedError

    @checks.required
    def roundings(self, rounds: int) -> int:
        """Return how often, at most, a term of an encoded row is rounded in all rounds."""
        raise NotImplementedError

    def inverse(self, rounds: int) -> Float[np.ndarray, "rounds rounds"]:
        """Return :math:`C^{-1}` for this number of rounds, dense."""
        matrix = self.matrix(rounds)
        return scipy.linalg.solve_triangular(matrix, np.eye(rounds), lower=True)

    def has_exact_sensitivity(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> bool:
        """Whether a client attains :meth:`sensitivity`, but for rounding."""
        _check_pattern(self, rounds, separation, participations)
        count = toeplitz.most_participations(rounds, separation, participations)
        return count == 1 or (self.bands is not None and self.bands <= separation)

    def is_nonnegative(self, rounds: int) -> bool:
        """Whether no entry of the matrix is negative."""
        return bool(np.min(self.matrix(rounds)) >= 0)

    def responses(self, rounds: int, separation: int) -> Float[np.ndarray, "separation rounds"]:
        r"""Return :math:`C1_{\{j,j+b,\dots\}}` for each first round :math:`j<b`.

        Args:
          rounds: number of rounds, at most the horizon.
          separation: :math:`b`, the distance between two participations.
        """
        _check_pattern(self, rounds, separation, None)
        matrix = self.matrix(rounds)
        table = np.zeros((separation, rounds))
        for start in range(min(separation, rounds)):
            table[start] = matrix[:, start::separation].sum(axis=1)
        return table

    def error(
        self,
        rounds: int,
        reduction: Reduction = "mean",
        workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
    ) -> float:
        r"""Return the mean or the largest squared error of the prefix sums, for :math:`\sigma=1`.

        Args:
          rounds: as in :meth:`errors`.
          reduction: ``"mean"`` over the prefix sums, or ``"max"``.
          workload: as in :meth:`errors`.

        Raises:
          TypeError: numbers of the strategy that are traced.
          ValueError: as in :meth:`errors`; an unknown reduction.
        """
        checks.choice("reduction", reduction, ("mean", "max"))
        errors = self.errors(rounds, workload)
        return float(np.mean(errors) if reduction == "mean" else np.max(errors))

    def loss(
        self,
        rounds: int,
        separation: int = 1,
        participations: int | None = None,
        reduction: Reduction = "mean",
        workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None,
    ) -> float:
        r"""Return the squared error at :math:`\rho=1/2`: squared sensitivity times squared error.

        Args:
          rounds: as in :meth:`sensitivity`.
          separation: as in :meth:`sensitivity`.
          participations: as in :meth:`sensitivity`.
          reduction: as in :meth:`error`.
          workload: as in :meth:`errors`.
        """
        sensitivity = self.sensitivity(rounds, separation, participations)
        return sensitivity**2 * self.error(rounds, reduction, workload)

    def participation_costs(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> Float[np.ndarray, " participations"]:
        r"""Return each further participation's addition to the squared sensitivity.

        The first :math:`k` entries add up to at least the squared sensitivity of a client that
        takes part :math:`k` times in all of the rounds, so that a ledger that adds
        :math:`\rho_k=\text{cost}_k/(2\sigma^2)` at a client's :math:`k`-th participation never
        states less than was spent (noise of standard deviation :math:`\sigma` per unit of
        sensitivity).

        Args:
          rounds: of the whole run, as in :meth:`sensitivity`.
          separation: as in :meth:`sensitivity`.
          participations: as in :meth:`sensitivity`.
        """
        _check_pattern(self, rounds, separation, participations)
        count = toeplitz.most_participations(rounds, separation, participations)
        totals = [self.sensitivity(rounds, separation, k + 1) ** 2 for k in range(count)]
        return np.diff(np.maximum.accumulate(totals), prepend=0.0)


def _check_pattern(
    strategy: Strategy, rounds: int, separation: int, participations: int | None
) -> None:
    checks.count("rounds", rounds)
    checks.count("separation", separation)
    if participations is not None:
        checks.count("participations", participations)
    if strategy.horizon is not None and rounds > strategy.horizon:
        raise ValueError(
            f"rounds must be <= {strategy.horizon}, the number that the strategy is made for, got "
            f"{rounds}; make one for as many rounds."
        )


def _workload(
    workload: Float[np.ndarray, " rounds"] | Sequence[float] | None, rounds: int
) -> Column | None:
    """The workload's first column on the host, ``None`` for prefix sums."""
    if workload is None:
        return None
    column = np.asarray(checks.array("workload", workload, 1), np.float64)
    if len(column) != rounds:
        raise ValueError(
            f"workload must be the first column of a matrix of {rounds} rounds, got "
            f"{len(column)} entries; for prefix sums leave it out."
        )
    checks.finite("workload", column)
    return column


class ToeplitzStrategy(Strategy):
    r"""A strategy whose entries depend only on the distance of two rounds.

    Its first column, :math:`c_0,c_1,\dots`, says all: :math:`(Cx)_t=\sum_{j\le t}c_jx_{t-j}`.

    The sensitivity is exact in two cases. If no two participations meet in a row, because the
    separation is at least the number of bands, the columns are orthogonal, and their squared norms
    add up (Choquette-Choo et al. 2023, section 3). If the first column is nonnegative and
    nonincreasing, the rounds :math:`0,b,2b,\dots` attain it (Kalinin & Lampert 2024, Theorem 2).
    Any other column is bounded entrywise by its least nonincreasing majorant, which the second
    theorem covers, and whose sensitivity cannot be smaller.
    """

    @checks.required
    def column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        """Return the first column of :math:`C`."""
        raise NotImplementedError

    @checks.required
    def inverse_column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        """Return the first column of :math:`C^{-1}`."""
        raise NotImplementedError

    def _column_error(self, rounds: int) -> float:
        """A bound on the rounding error of any entry of :meth:`column`.

        Columns that are given, or are sums of few positive terms, have errors of a few units in the
        last place of each entry, which rounding up covers.
        """
        return 0.0

    def matrix(self, rounds: int) -> Float[np.ndarray, "rounds rounds"]:
        column = self.column(rounds)
        return scipy.linalg.toeplitz(column, np.zeros(rounds))

    def inverse(self, rounds: int) -> Float[np.ndarray, "rounds rounds"]:
        return scipy.linalg.toeplitz(self.inverse_column(rounds), np.zeros(rounds))

    def sensitivity(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> float:
        _check_pattern(self, rounds, separation, participations)
        count = toeplitz.most_participations(rounds, separation, participations)
        column = self.column(rounds)
        error = self._column_error(rounds)
        bound = np.abs(column) + error
        squared, _ = toeplitz.sensitivity_and_gradient(bound, separation, count)
        result = np.sqrt(squared)
        exact = self.has_exact_sensitivity(rounds, separation, participations)
        if not exact and rounds <= _TIGHTENED:
            matrix = scipy.linalg.toeplitz(column, np.zeros(rounds))
            squared = toeplitz.gram_bound(matrix.T @ matrix, separation, count)
            error *= count * np.sqrt(rounds)  # at most that of a matrix with this entry everywhere
            result = min(result, np.sqrt(squared) + error)
        return toeplitz.rounded_up(float(result), rounds + count)

    def has_exact_sensitivity(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> bool:
        if super().has_exact_sensitivity(rounds, separation, participations):
            return True
        column = self.column(rounds)
        # A first column that was computed is decreasing up to its rounding.
        slack = 1e-12 * np.abs(column[0])
        return bool(np.all(column >= -slack) and np.all(np.diff(column) <= slack))

    def is_nonnegative(self, rounds: int) -> bool:
        return bool(np.min(self.column(rounds)) >= 0)

    def responses(self, rounds: int, separation: int) -> Float[np.ndarray, "separation rounds"]:
        _check_pattern(self, rounds, separation, None)
        count = toeplitz.most_participations(rounds, separation, None)
        first = toeplitz.response(self.column(rounds), separation, count)
        table = np.zeros((separation, rounds))
        for start in range(min(separation, rounds)):
            table[start, start:] = first[: rounds - start]
        return table

    def errors(
        self, rounds: int, workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None
    ) -> Float[np.ndarray, " rounds"]:
        _check_pattern(self, rounds, 1, None)
        return toeplitz.row_errors(self.inverse_column(rounds), _workload(workload, rounds))


@module
class Toeplitz(ToeplitzStrategy):
    r"""A banded Toeplitz strategy: :math:`(Cx)_t=\sum_{j=0}^{b-1}c_jx_{t-j}`.

    Encoding needs the last :math:`b-1` rows of :math:`x`, decoding the last :math:`b-1` rows of
    :math:`\hat x`. One band of 1 is DP-SGD, independent noise.

    Args:
      coefficients: :math:`c_0,\dots,c_{b-1}`, the first column of :math:`C`, :math:`c_0>0`.

    Raises:
      ValueError: coefficients that are not finite, a first one that is not positive.

    Reference:
      Choquette-Choo et al. 2023; McKenna 2024.

    Example:
      >>> strategy = Toeplitz([1.0, 0.5])
      >>> strategy.matrix(3).tolist()
      [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
      >>> round(strategy.sensitivity(rounds=100, separation=2, participations=4) ** 2, 3)
      5.0
      >>> [round(s.error(rounds=100)) for s in (identity(), strategy)]
      [50, 23]
    """

    coefficients: Float[Array, " bands"] = field(
        converter=functools.partial(float_array, "coefficients")
    )

    def validate(self) -> None:
        _check_column("coefficients", self.coefficients)

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        return toeplitz.padded(_on_host("coefficients", self.coefficients), rounds)

    def inverse_column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        return toeplitz.inverted(_on_host("coefficients", self.coefficients), rounds)

    def absolute(self) -> "Toeplitz":
        return Toeplitz(jnp.abs(jnp.asarray(self.coefficients)))

    def roundings(self, rounds: int) -> int:
        return len(self.coefficients) + 1

    def begin(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None) -> PastState:
        return PastState(jnp.zeros(_with_axis(self.bands - 1, shape), dtype))

    def encode(
        self, state: PastState, row: Float[Array, "..."]
    ) -> tuple[PastState, Float[Array, "..."]]:
        coefficients = jnp.asarray(self.coefficients, row.dtype)
        encoded = coefficients[0] * row + _weighted(coefficients[1:], state.past)
        return PastState(_shifted(state.past, row)), encoded

    def decode(
        self, state: PastState, row: Float[Array, "..."]
    ) -> tuple[PastState, Float[Array, "..."]]:
        coefficients = jnp.asarray(self.coefficients, row.dtype)
        decoded = (row - _weighted(coefficients[1:], state.past)) / coefficients[0]
        return PastState(_shifted(state.past, decoded)), decoded


@module
class InverseToeplitz(ToeplitzStrategy):
    r"""A Toeplitz strategy with a banded inverse, :math:`\hat x_t=\sum_{j<b}\hat c_j\theta_{t-j}`.

    Decoding is a finite convolution of the last :math:`b` rows of :math:`\theta`; encoding, a
    recursion, needs the last :math:`b-1` rows of :math:`Cx`. The matrix :math:`C` itself is full,
    so that participations meet at any separation.

    Args:
      coefficients: :math:`\hat c_0,\dots,\hat c_{b-1}`, the first column of :math:`C^{-1}`,
        :math:`\hat c_0>0`.

    Raises:
      ValueError: coefficients that are not finite, a first one that is not positive.

    Reference:
      Kalinin et al. 2025.

    Example:
      >>> strategy = InverseToeplitz([1.0, -0.5])
      >>> strategy.column(4).tolist()
      [1.0, 0.5, 0.25, 0.125]
      >>> strategy.inverse_column(4).tolist()
      [1.0, -0.5, 0.0, 0.0]
    """

    coefficients: Float[Array, " bands"] = field(
        converter=functools.partial(float_array, "coefficients")
    )

    def validate(self) -> None:
        _check_column("coefficients", self.coefficients)

    def column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        return toeplitz.inverted(_on_host("coefficients", self.coefficients), rounds)

    def inverse_column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        return toeplitz.padded(_on_host("coefficients", self.coefficients), rounds)

    def _column_error(self, rounds: int) -> float:
        r"""A certified bound, from the residual of the recursion.

        With the residual :math:`r=e_0-\hat c*\tilde c` of the computed column :math:`\tilde c` the
        error is :math:`\tilde c*r` plus itself times the residual, so that it is at most
        :math:`\max|\tilde c|\,\|r\|_1/(1-\|r\|_1)`.
        """
        column = self.column(rounds)
        inverse = self.inverse_column(rounds)
        inverse = inverse[: len(self.coefficients)]
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(column)
            residual = -np.convolve(inverse, column)[:rounds]
            residual[0] += 1.0
            terms = (len(inverse) + 3) * np.finfo(np.float64).eps
            residual = np.abs(residual) + terms * np.convolve(np.abs(inverse), size)[:rounds]
            error = float(np.max(size) * np.sum(residual))
            share = float(np.sum(residual))
        if not (np.isfinite(error) and share < 0.5):
            raise ValueError(
                f"the first column of C cannot be computed in double precision over {rounds} "
                "rounds from these coefficients of its inverse; take ones whose recursion does not "
                "grow, such as fljax.privacy.matrices.inverse_square_root."
            )
        return error / (1 - share)

    def absolute(self) -> "InverseToeplitz":
        # Encoding subtracts the other coefficients, so that none of these may be positive.
        coefficients = jnp.asarray(self.coefficients)
        return InverseToeplitz(jnp.abs(coefficients).at[1:].multiply(-1))

    def roundings(self, rounds: int) -> int:
        return rounds * (len(self.coefficients) + 2)  # encoded rows are computed from encoded rows

    def begin(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None) -> PastState:
        return PastState(jnp.zeros(_with_axis(len(self.coefficients) - 1, shape), dtype))

    def encode(
        self, state: PastState, row: Float[Array, "..."]
    ) -> tuple[PastState, Float[Array, "..."]]:
        coefficients = jnp.asarray(self.coefficients, row.dtype)
        encoded = (row - _weighted(coefficients[1:], state.past)) / coefficients[0]
        return PastState(_shifted(state.past, encoded)), encoded

    def decode(
        self, state: PastState, row: Float[Array, "..."]
    ) -> tuple[PastState, Float[Array, "..."]]:
        coefficients = jnp.asarray(self.coefficients, row.dtype)
        decoded = coefficients[0] * row + _weighted(coefficients[1:], state.past)
        return PastState(_shifted(state.past, row)), decoded


@module
class BufferedToeplitz(ToeplitzStrategy):
    r"""A buffered linear Toeplitz strategy (BLT), with a few buffers and no band limit.

    .. math:: c_0=1,\qquad c_t=\sum_k\omega_k\lambda_k^{t-1}\quad(t\ge1).

    Each buffer is an exponentially weighted sum of rows, :math:`s_k\leftarrow\lambda_ks_k+x_t`, and
    the memory is that of the buffers however long the run. The inverse is a BLT as well, whose
    decays are the eigenvalues of :math:`\operatorname{diag}(\lambda)-\sqrt\omega\sqrt\omega^\top`;
    decoding uses the buffers of :math:`\hat x`, with the same numbers as encoding.

    Args:
      scale: :math:`\omega\ge0`, the output scales.
      decay: :math:`\lambda\in[0,1]`, the buffer decays.

    Raises:
      ValueError: numbers out of their ranges, scales and decays of different lengths.

    Reference:
      Dvijotham et al. 2024; McMahan, Xu & Zhang 2024, Algorithms 2 and 3.

    Example:
      >>> strategy = BufferedToeplitz(scale=[0.25, 0.25], decay=[0.5, 1.0])
      >>> strategy.column(4).tolist()
      [1.0, 0.5, 0.375, 0.3125]
    """

    scale: Float[Array, " buffers"] = field(converter=functools.partial(float_array, "scale"))
    decay: Float[Array, " buffers"] = field(converter=functools.partial(float_array, "decay"))

    def validate(self) -> None:
        if np.shape(self.scale) != np.shape(self.decay):
            raise ValueError(
                "scale and decay must have one number for each buffer, got lengths "
                f"{len(self.scale)} and {len(self.decay)}."
            )
        checks.interval("scale", self.scale, at_least=0)
        checks.interval("decay", self.decay, at_least=0, at_most=1)

    def column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        scale = _on_host("scales", self.scale)
        decay = _on_host("decays", self.decay)
        powers = decay ** np.arange(rounds - 1)[:, None]
        return np.concatenate([[1.0], powers @ scale])

    def inverse_column(self, rounds: int) -> Float[np.ndarray, " rounds"]:
        scale, decay = self.inverse_buffers()
        powers = decay ** np.arange(rounds - 1)[:, None]
        return np.concatenate([[1.0], powers @ scale])

    def inverse_buffers(
        self,
    ) -> tuple[Float[np.ndarray, " buffers"], Float[np.ndarray, " buffers"]]:
        """Return the output scales, which are negative, and the decays of the inverse."""
        scale = _on_host("scales", self.scale)
        decay = _on_host("decays", self.decay)
        root = np.sqrt(scale)
        decays, vectors = np.linalg.eigh(np.diag(decay) - np.outer(root, root))
        return -((root @ vectors) ** 2), decays

    def absolute(self) -> "BufferedToeplitz":
        return self  # no number is negative

    def roundings(self, rounds: int) -> int:
        return 2 * rounds + len(self.scale) + 1  # a buffer is multiplied and added to in each

    def begin(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None) -> BufferState:
        return BufferState(jnp.zeros(_with_axis(len(self.scale), shape), dtype))

    def encode(
        self, state: BufferState, row: Float[Array, "..."]
    ) -> tuple[BufferState, Float[Array, "..."]]:
        encoded = row + _weighted(jnp.asarray(self.scale, row.dtype), state.buffers)
        return self._with_row(state, row), encoded

    def decode(
        self, state: BufferState, row: Float[Array, "..."]
    ) -> tuple[BufferState, Float[Array, "..."]]:
        decoded = row - _weighted(jnp.asarray(self.scale, row.dtype), state.buffers)
        return self._with_row(state, decoded), decoded

    def _with_row(self, state: BufferState, row: Array) -> BufferState:
        decay = jnp.asarray(self.decay, row.dtype).reshape(-1, *[1] * row.ndim)
        return BufferState(decay * state.buffers + row[None])


@module
class Banded(Strategy):
    r"""A banded strategy for a fixed number of rounds: :math:`C_{j+i,j}` is ``columns[j, i]``.

    Entries below the last row are ignored. Where the separation is at least the number of bands
    the sensitivity is exact: columns of one client are orthogonal, and the best pattern is found
    by dynamic programming (Choquette-Choo et al. 2023, section 3 and Algorithm 3); otherwise it is
    the bound of their Algorithm 4, which costs memory ``rounds ** 2``.

    Args:
      columns: ``[rounds, bands]``, with a positive first entry in each row.

    Raises:
      ValueError: entries that are not finite, diagonal entries that are not positive.

    Reference:
      Choquette-Choo et al. 2023.

    Example:
      >>> strategy = Banded([[1.0, 0.5], [0.75, 0.25], [1.0, 0.0]])
      >>> strategy.matrix(3).tolist()
      [[1.0, 0.0, 0.0], [0.5, 0.75, 0.0], [0.0, 0.25, 1.0]]
      >>> round(strategy.sensitivity(rounds=3, separation=2) ** 2, 3)
      2.25
    """

    columns: Float[Array, "rounds bands"] = field(
        converter=functools.partial(float_array, "columns")
    )

    def validate(self) -> None:
        checks.finite("columns", self.columns)
        checks.positive("the first entry of each column", self.columns[:, 0])

    @property
    def bands(self) -> int:
        return self.columns.shape[1]

    @property
    def horizon(self) -> int:
        return self.columns.shape[0]

    def matrix(self, rounds: int) -> Float[np.ndarray, "rounds rounds"]:
        _check_pattern(self, rounds, 1, None)
        columns = _on_host("columns", self.columns)
        matrix = np.zeros((rounds, rounds))
        for band in range(min(self.bands, rounds)):
            column = np.arange(rounds - band)
            matrix[column + band, column] = columns[: rounds - band, band]
        return matrix

    def sensitivity(
        self, rounds: int, separation: int = 1, participations: int | None = None
    ) -> float:
        _check_pattern(self, rounds, separation, participations)
        count = toeplitz.most_participations(rounds, separation, participations)
        columns = _on_host("columns", self.columns)[:rounds]
        if self.has_exact_sensitivity(rounds, separation, participations):
            row = np.arange(rounds)[:, None] + np.arange(self.bands)
            norms = np.sum(np.where(row < rounds, columns, 0) ** 2, axis=1)
            squared = float(toeplitz.best_pattern(norms, separation, count))
        elif rounds <= _DENSE:
            matrix = self.matrix(rounds)
            squared = toeplitz.gram_bound(matrix.T @ matrix, separation, count)
        else:
            raise ValueError(
                f"the sensitivity of {self.bands} bands under a separation of {separation} is "
                f"bounded by a matrix of {rounds} x {rounds} entries, more than {_DENSE}; take a "
                "separation of at least the number of bands, or a Toeplitz strategy."
            )
        return toeplitz.rounded_up(float(np.sqrt(squared)), rounds + count)

    def errors(
        self, rounds: int, workload: Float[np.ndarray, " rounds"] | Sequence[float] | None = None
    ) -> Float[np.ndarray, " rounds"]:
        _check_pattern(self, rounds, 1, None)
        column = _workload(workload, rounds)
        target = scipy.linalg.toeplitz(
            np.ones(rounds) if column is None else column, np.zeros(rounds)
        )
        # B C = A, solved as C' B' = A'.
        solve = scipy.linalg.solve_triangular
        decoder = solve(self.matrix(rounds), target.T, lower=True, trans=1)
        return np.sum(decoder.T**2, axis=1)

    def absolute(self) -> "Banded":
        return Banded(jnp.abs(jnp.asarray(self.columns)))

    def roundings(self, rounds: int) -> int:
        return self.bands + 1

    def begin(self, shape: int | tuple[int, ...], dtype: DTypeLike | None = None) -> BandedState:
        past = jnp.zeros(_with_axis(self.bands - 1, shape), dtype)
        return BandedState(past, jnp.zeros((), jnp.int32))

    def encode(
        self, state: BandedState, row: Float[Array, "..."]
    ) -> tuple[BandedState, Float[Array, "..."]]:
        weights = self._row(state.round, row.dtype)
        encoded = weights[0] * row + _weighted(weights[1:], state.past)
        return BandedState(_shifted(state.past, row), state.round + 1), encoded

    def decode(
        self, state: BandedState, row: Float[Array, "..."]
    ) -> tuple[BandedState, Float[Array, "..."]]:
        weights = self._row(state.round, row.dtype)
        decoded = (row - _weighted(weights[1:], state.past)) / weights[0]
        return BandedState(_shifted(state.past, decoded), state.round + 1), decoded

    def _row(self, round: Int[Array, ""], dtype: DTypeLike) -> Float[Array, " bands"]:
        """The entries of a row of :math:`C`, from its diagonal to the left."""
        bands = jnp.arange(self.bands, dtype=jnp.int32)
        column = jnp.clip(round - bands, 0, self.horizon - 1)  # left of the first, rows are zero
        return jnp.asarray(self.columns, dtype)[column, bands]


def _with_axis(length: int, shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (length, *((shape,) if isinstance(shape, int) else shape))


def _check_column(name: str, column: Array) -> None:
    checks.finite(name, column)
    if checks.is_concrete(column):
        checks.positive(f"the first of {name}", column[0], "It is on the diagonal of the matrix.")


@checked
def identity() -> Toeplitz:
    """Return the strategy of independent noise, that of DP-SGD.

    Example:
      >>> round(identity().sensitivity(rounds=9, participations=4), 9)
      2.0
    """
    return Toeplitz(np.ones(1))


@checked
def square_root(bands: int) -> Toeplitz:
    r"""Return the banded square root of the matrix of prefix sums, with columns of norm 1.

    :math:`c_j\propto\binom{2j}j4^{-j}`; with as many bands as rounds it is the square root, whose
    largest error under one participation is the least of all Toeplitz strategies.

    Args:
      bands: number of bands, >= 1.

    Reference:
      Fichtenberger, Henzinger & Upadhyay 2023; Kalinin & Lampert 2024 (bands).

    Example:
      >>> coefficients = square_root(3).coefficients
      >>> (coefficients / coefficients[0]).round(5).tolist()
      [1.0, 0.5, 0.375]
    """
    checks.count("bands", bands)
    column = toeplitz.square_root_column(bands)
    return Toeplitz(column / np.linalg.norm(column))


@checked
def inverse_square_root(bands: int) -> InverseToeplitz:
    r"""Return the strategy whose inverse is the inverse square root of prefix sums, cut to bands.

    Its :math:`\hat c_j=-\binom{2j}j4^{-j}/(2j-1)`, the coefficients of :math:`\sqrt{1-z}`.

    Args:
      bands: number of bands of the inverse, >= 1.

    Reference:
      Kalinin et al. 2025 (BISR).

    Example:
      >>> inverse_square_root(3).coefficients.tolist()
      [1.0, -0.5, -0.125]
    """
    checks.count("bands", bands)
    column = toeplitz.square_root_column(bands)
    return InverseToeplitz(np.diff(column, prepend=0.0))


@checked
def column_normalized(strategy: Toeplitz, rounds: int) -> Banded:
    """Return a banded Toeplitz strategy for this number of rounds, its columns scaled to norm 1.

    The last columns are cut off by the end of the run, so that their rounds cost less privacy than
    the others; scaled, they cost the same and have less noise.

    Args:
      strategy: a banded Toeplitz strategy.
      rounds: number of rounds, at least that of bands.

    Raises:
      ValueError: more bands than rounds.

    Reference:
      McKenna 2024, section 4.

    Example:
      >>> strategy = column_normalized(Toeplitz([1.0, 0.5]), rounds=8)
      >>> round(strategy.sensitivity(rounds=8, participations=1), 6)
      1.0
    """
    checks.kind("strategy", strategy, Toeplitz)
    checks.count("rounds", rounds)
    if strategy.bands > rounds:
        raise ValueError(
            f"rounds must be at least the number of bands, {strategy.bands}, got {rounds}; take "
            "fewer bands."
        )
    columns = np.tile(_on_host("coefficients", strategy.coefficients), (rounds, 1))
    row = np.arange(rounds)[:, None] + np.arange(strategy.bands)
    columns = np.where(row < rounds, columns, 0)
    return Banded(columns / np.linalg.norm(columns, axis=1, keepdims=True))
