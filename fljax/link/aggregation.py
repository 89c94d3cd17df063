r"""Aggregation: how a receiver combines its received messages to one vector.

A server or client that may receive messages of attackers should not use the plain mean, which one
message can move anywhere. The *breakdown point* of an aggregator is the share of messages from
which on attackers can do so; below it the result stays within a bounded distance of the honest
messages, for any values of the other messages.

Everything has a static shape: the number of received messages may differ between receivers and
follows from the weights, where zero marks a missing message: it was lost, its client is absent, or
the slot in a table of neighbors is empty. Values in such places are never read, NaN
included. A receiver without messages keeps its own vector. A message that *was* received and is not
finite counts as infinitely far away in robust aggregators, and makes the means not finite.

Among peers a receiver sorts all slots of its neighbor table: of a network in dense form these are
all nodes, also where few of them are neighbors. In padded form (``form="padded"`` of the functions
that make networks) they are as many as the largest degree, which takes that much less time.

Written with sorts, sums and products alone: a run must not call LAPACK.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from fljax._core import checks
from fljax._core.linalg import norm
from fljax._core.module import module, static
from fljax._core.sorting import in_order
from fljax.problems import Problem

__all__ = [
    "Aggregator",
    "Bulyan",
    "CenteredClipping",
    "FLTrust",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MedianOfMeans",
    "NormClipping",
    "TrimmedMean",
    "WeightedMean",
    "WinsorizedMean",
]

HIGHEST = Precision.HIGHEST

#: What each of some receivers combines: messages ``[R, S, D]``, and their weights ``[R, S]``.
Messages = Float[Array, "receivers senders dim"]
Weights = Float[Array, "receivers senders"]
#: One vector of each receiver, ``[R, D]``.
PerReceiver = Float[Array, "receivers dim"]


class Aggregator:
    """A rule that combines received messages; subclass it to define your own.

    Attributes:
      reference: a key of ``references.bib``, or several; see :func:`fljax.citation`.
      withstands_weights: whether the attackers that it withstands are those with less than half of
        the weights, instead of a number of them.

    Example:
      The largest of the received numbers:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Largest(fl.aggregation.Aggregator):
      ...     def combine(self, messages, weights, reference):
      ...         received = (weights > 0)[..., None]
      ...         return jnp.where(received, messages, -jnp.inf).max(axis=1)
      >>> messages = jnp.array([[[1.0], [2.0], [9.0]]])
      >>> Largest().combine(messages, jnp.array([[1.0, 1.0, 0.0]]), jnp.zeros((1, 1))).tolist()
      [[2.0]]
    """

    reference: ClassVar[str | tuple[str, ...] | None] = None
    withstands_weights: ClassVar[bool] = False

    def check(self, fewest: int) -> None:
        """Raise ``ValueError`` if ``fewest`` messages at a receiver are too few for robustness."""

    def check_place(self, dim: int, peers: bool) -> None:
        """Raise ``ValueError`` unless messages of ``dim`` numbers can be combined there.

        Args:
          dim: numbers in a message.
          peers: whether receivers are peers, which combine their own message too, or servers.
        """

    def tolerated(self, received: int) -> int | None:
        """Return the number of attackers tolerated among ``received`` messages; ``None``: unknown.

        A simulation with more attackers at some honest receiver warns.
        """
        return None

    @checks.required
    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        """Return one vector for each receiver.

        Args:
          messages: ``[R, M, D]``, where ``messages[r, m]`` is the message of ``m`` to ``r``.
          weights: ``[R, M]``, >= 0; zero for a missing message.
          reference: ``[R, D]``, each receiver's own vector: its own model, or the server's.
        """
        raise NotImplementedError

    def of_one_receiver(
        self,
        messages: Float[Array, "senders dim"],
        weights: Float[Array, " senders"],
        reference: Float[Array, " dim"],
    ) -> Float[Array, " dim"]:
        """Return :meth:`combine` of a single receiver.

        Raises:
          ValueError: ``combine`` returned an array of another shape.
        """
        result = self.combine(messages[None], weights[None], reference[None])
        return checks.returned(f"{type(self).__name__}.combine", result, (1, *reference.shape))[0]


def _check_enough(name: str, fewest: int, wanted: int, why: str) -> None:
    if fewest < wanted:
        raise ValueError(
            f"{name} needs at least {wanted} messages at every receiver, but some receiver gets "
            f"only {fewest}: {why}."
        )


def _received(weights: Array) -> tuple[Bool[Array, "receivers senders"], Int[Array, " receivers"]]:
    """Which messages were received, and how many."""
    received = weights > 0
    return received, jnp.sum(received, axis=1, dtype=jnp.int32)


def _shares(weights: Float[Array, "receivers senders"]) -> Float[Array, "receivers senders"]:
    """The weights scaled to a sum of one; zeros where nothing was received."""
    total = jnp.sum(weights, axis=1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def _weighted_sum(
    weights: Float[Array, "receivers senders"], messages: Float[Array, "receivers senders dim"]
) -> Float[Array, "receivers dim"]:
    messages = jnp.where(weights[:, :, None] > 0, messages, 0)
    return jnp.einsum("rm,rmd->rd", weights, messages, precision=HIGHEST)


def _with_missing_at_infinity(messages: Array, received: Bool[Array, "receivers senders"]) -> Array:
    """The messages, with infinity in place of NaN and of missing messages."""
    return jnp.where(received[:, :, None] & ~jnp.isnan(messages), messages, jnp.inf)


def _ranks(senders: int) -> Int[Array, "1 senders 1"]:
    return jnp.arange(senders, dtype=jnp.int32)[None, :, None]


def _mean_of_ranks(
    ordered: Float[Array, "receivers senders dim"],
    first: Int[Array, " receivers"],
    last: Int[Array, " receivers"],
) -> Float[Array, "receivers dim"]:
    """The mean of the sorted values from one rank (0 is the smallest) to another."""
    ranks = _ranks(ordered.shape[1])
    inside = (ranks >= first[:, None, None]) & (ranks <= last[:, None, None])
    total = jnp.sum(jnp.where(inside, ordered, 0), axis=1)
    return total / jnp.maximum(last - first + 1, 1).astype(ordered.dtype)[:, None]


def sorted_median(ordered: Array, count: Int[Array, " receivers"]) -> Float[Array, "receivers dim"]:
    return _mean_of_ranks(ordered, (count - 1) // 2, count // 2)


def weighted_median(
    messages: Float[Array, "receivers senders dim"], weights: Float[Array, "receivers senders"]
) -> Float[Array, "receivers dim"]:
    """The smallest value of each coordinate with half of the weight at or below it."""
    values = _with_missing_at_infinity(messages, weights > 0)
    carried = jnp.broadcast_to(weights[:, :, None], values.shape)
    values, carried = in_order(values, carried)
    below = jnp.cumsum(carried, axis=1)
    rank = jnp.sum(below < below[:, -1:] / 2, axis=1, keepdims=True, dtype=jnp.int32)
    return jnp.sum(jnp.where(_ranks(values.shape[1]) == rank, values, 0), axis=1)


def _where_received(count: Array, result: Array, own_vectors: Array) -> Array:
    return jnp.where(count[:, None] > 0, result, own_vectors)


@module
class Mean(Aggregator):
    r"""The mean of the received messages, :math:`\frac1n\sum_m x_m`.

    Weights only indicate which messages were received. Breakdown point 0: one attacker suffices.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [9.0]]])
      >>> Mean().combine(messages, jnp.array([[1.0, 3.0, 0.0]]), jnp.zeros((1, 1))).item()
      1.5
    """

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        mean = _weighted_sum(_shares(received.astype(messages.dtype)), messages)
        return _where_received(count, mean, reference)


@module
class WeightedMean(Aggregator):
    r"""The weighted mean of the received messages, :math:`\sum_mw_mx_m/\sum_mw_m`.

    Weights are scaled to a sum of one over the received messages, so a lost message does not
    shrink the result. Breakdown point 0: one attacker suffices.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [9.0]]])
      >>> WeightedMean().combine(messages, jnp.array([[1.0, 3.0, 0.0]]), jnp.zeros((1, 1))).item()
      1.75

    Reference:
      McMahan et al. 2017, Algorithm 1.
    """

    reference = "mcmahan2017"

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        count = _received(weights)[1]
        return _where_received(count, _weighted_sum(_shares(weights), messages), reference)


@module
class Median(Aggregator):
    r"""The median of each coordinate; for an even number, the mean of the two middle values.

    Weights only indicate which messages were received. Breakdown point 1/2: any minority of
    attackers leaves every coordinate within the range of the honest messages.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [1e9]]])
      >>> Median().combine(messages, jnp.ones((1, 3)), jnp.zeros((1, 1))).item()
      2.0

    Reference:
      Yin et al. 2018, Definition 1.
    """

    reference = "yin2018"

    def check(self, fewest: int) -> None:
        _check_enough("Median", fewest, 3, "the median of two is their mean, and of one that one")

    def tolerated(self, received: int) -> int:
        return (received - 1) // 2

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        (values,) = in_order(_with_missing_at_infinity(messages, received))
        return _where_received(count, sorted_median(values, count), reference)


@module
class _OrderStatistics(Aggregator):
    """A mean that treats the ``b`` smallest and the ``b`` largest values differently."""

    share: Float[Array, ""] | float | None = None
    count: int | None = static(default=None)
    weighted: bool = static(default=False, kw_only=True)

    def validate(self) -> None:
        name = type(self).__name__
        checks.switch("weighted", self.weighted)
        if (self.share is None) == (self.count is None):
            raise ValueError(
                f"{name} takes either a share of the messages or a count, got share={self.share!r} "
                f"and count={self.count!r}."
            )
        if self.count is not None:
            checks.count("count", self.count, at_least=0)
        else:
            hint = "It is taken at each end; a number of messages is given as count=..."
            checks.interval("share", self.share, at_least=0, below=0.5, hint=hint)

    def check(self, fewest: int) -> None:
        name = type(self).__name__
        if self.count is not None:
            why = f"{self.count} at each end and one between them"
            _check_enough(name, fewest, 2 * self.count + 1, why)
        else:
            checks.check_when_concrete(lambda share: self._check_share(share, fewest), self.share)

    def tolerated(self, received: int) -> int | None:
        if self.count is None and not checks.is_concrete(self.share):
            return None
        with jax.ensure_compile_time_eval():  # the share may be known while others are traced
            return int(self._number_cut(jnp.asarray([received], jnp.int32))[0])

    def _check_share(self, share: ArrayLike, fewest: int) -> None:
        share = np.asarray(share, np.float64)
        idle = (share > 0) & (_rounded_share(share, np.float64(fewest)) < 1)
        if idle.any():
            raise ValueError(
                f"{type(self).__name__} with a share of {share[idle].flat[0]:g} is the plain mean "
                f"if a receiver gets {fewest} messages; take a share of at least 1/{fewest}, or "
                "let receivers get more."
            )

    def _number_cut(self, count: Int[Array, " receivers"]) -> Int[Array, " receivers"]:
        """The number of values cut at each end of ``count`` received ones; never all of them."""
        if self.count is not None:
            wanted = jnp.full_like(count, self.count)
        else:
            share = jnp.asarray(self.share)
            wanted = jnp.floor(_rounded_share(share, count.astype(share.dtype))).astype(count.dtype)
        return jnp.clip(wanted, 0, jnp.maximum((count - 1) // 2, 0))

    def _weighted_mean(
        self,
        messages: Float[Array, "receivers senders dim"],
        weights: Float[Array, "receivers senders"],
        ordered: Float[Array, "receivers senders dim"],
        cut: Int[Array, " receivers"],
        clip: bool,
    ) -> Float[Array, "receivers dim"]:
        """The weighted mean of the values between the ends, or of all values clipped to them."""
        last = jnp.sum(weights > 0, axis=1, dtype=jnp.int32) - 1 - cut
        low, high = (_mean_of_ranks(ordered, at, at)[:, None] for at in (cut, last))
        values = _with_missing_at_infinity(messages, weights > 0)
        used_weights = jnp.broadcast_to(weights[:, :, None], values.shape)
        if clip:
            values = jnp.clip(values, low, high)
        else:
            used_weights = jnp.where((values >= low) & (values <= high), used_weights, 0)
        total = jnp.sum(used_weights, axis=1)
        return jnp.sum(jnp.where(used_weights > 0, used_weights * values, 0), axis=1) / jnp.where(
            total > 0, total, 1
        )


def _rounded_share(share, of):
    """``share * of``, corrected for rounding: 0.29 of 100 is 29."""
    return share * of * (1 + 4 * jnp.finfo(share.dtype).eps)


@module
class TrimmedMean(_OrderStatistics):
    r"""The mean of each coordinate without the ``b`` smallest and the ``b`` largest values.

    .. math:: \frac1{n-2b}\sum_{i=b+1}^{n-b}x_{(i)},\qquad b=\lfloor\beta n\rfloor.

    Breakdown point ``b / n``: up to ``b`` attackers leave every coordinate within the range of the
    honest messages. Where fewer than ``2b + 1`` messages were received it is the median. Weights
    only indicate which messages were received, unless ``weighted``: then it is the weighted mean of
    the values from :math:`x_{(b+1)}` to :math:`x_{(n-b)}`, divided by the sum of their weights.

    Args:
      share: :math:`\beta\in[0,1/2)`, the share of the received messages removed at *each* end.
      count: ``b`` itself, in place of a share.
      weighted: whether the weights are used in the mean.

    Raises:
      TypeError: ``weighted`` is neither true nor false.
      ValueError: a share outside [0, 1/2) or a negative count; both, or neither.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [4.0], [1e9]]])
      >>> TrimmedMean(0.25).combine(messages, jnp.ones((1, 4)), jnp.zeros((1, 1))).item()
      3.0

    Reference:
      Yin et al. 2018, Definition 2. See also Jung 2025, (189).
    """

    reference = "yin2018"

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        cut = self._number_cut(count)
        (values,) = in_order(_with_missing_at_infinity(messages, received))
        if self.weighted:
            mean = self._weighted_mean(messages, weights, values, cut, clip=False)
        else:
            mean = _mean_of_ranks(values, cut, count - 1 - cut)
        return _where_received(count, mean, reference)


@module
class WinsorizedMean(_OrderStatistics):
    r"""The mean of each coordinate, clipped to its order statistics.

    .. math:: \frac1n\sum_m\min\{\max\{x_m,x_{(b+1)}\},x_{(n-b)}\},\qquad b=\lfloor\beta n\rfloor.

    Extreme values are clipped, whereas :class:`TrimmedMean` removes them. Breakdown point
    ``b / n``: up to ``b`` attackers leave every coordinate within the range of the honest messages.
    Where fewer than ``2b + 1`` messages were received it is the median of an odd number, and clips
    to the two middle values of an even number. Weights only indicate which messages were received,
    unless ``weighted``: then the clipped values have the weights of their messages.

    Args:
      share: :math:`\beta\in[0,1/2)`, the share of the received messages clipped at *each* end.
      count: ``b`` itself, in place of a share.
      weighted: whether the weights are used in the mean.

    Raises:
      TypeError: ``weighted`` is neither true nor false.
      ValueError: a share outside [0, 1/2) or a negative count; both, or neither.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [4.0], [1e9]]])
      >>> WinsorizedMean(count=1).combine(messages, jnp.ones((1, 4)), jnp.zeros((1, 1))).item()
      3.0

    Reference:
      Dixon 1960; Jung 2025, (188), with thresholds from order statistics.
    """

    reference = ("dixon1960", "jung2025")

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        cut = self._number_cut(count)
        (values,) = in_order(_with_missing_at_infinity(messages, received))
        if self.weighted:
            mean = self._weighted_mean(messages, weights, values, cut, clip=True)
            return _where_received(count, mean, reference)
        low = _mean_of_ranks(values, cut, cut)
        high = _mean_of_ranks(values, count - 1 - cut, count - 1 - cut)
        clipped = jnp.clip(values, low[:, None], high[:, None])
        mean = _mean_of_ranks(clipped, jnp.zeros_like(count), count - 1)
        return _where_received(count, mean, reference)


@module
class GeometricMedian(Aggregator):
    r"""The point of least weighted distance to the messages, :math:`\min_v\sum_mw_m\|x_m-v\|`.

    It is computed by the smoothed Weiszfeld iteration from the coordinate-wise weighted median,

    .. math:: v\leftarrow\frac{\sum_m\beta_mx_m}{\sum_m\beta_m},\qquad
              \beta_m=\frac{w_m}{\max\{\nu,\|x_m-v\|\}},

    with a fixed number of steps. Weights are used. Breakdown point 1/2 of the total weight. Unlike
    the coordinate-wise :class:`Median` it does not depend on the choice of axes.

    Args:
      iterations: >= 1. The error falls by a factor per step, slowly where the result is one of the
        messages.
      smoothing: :math:`\nu>0`, in the units of the models: at distances below it the weight
        :math:`\beta_m` of a message does not increase further.

    Raises:
      ValueError: no iterations, a smoothing that is not positive.

    Example:
      >>> messages = jnp.array([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1e9, 0.0]]])
      >>> median = GeometricMedian().combine(messages, jnp.ones((1, 5)), jnp.zeros((1, 2)))
      >>> [round(v, 2) for v in median[0].tolist()]
      [0.58, 0.0]

    Reference:
      Pillutla et al. 2022, the smoothed Weiszfeld algorithm of RFA.
    """

    iterations: int = static(default=16)
    smoothing: Float[Array, ""] | float = 1e-6
    reference = "pillutla2022"

    def validate(self) -> None:
        checks.count("iterations", self.iterations)
        checks.positive("smoothing", self.smoothing)

    def check(self, fewest: int) -> None:
        _check_enough("GeometricMedian", fewest, 3, "of two, every point between them is as good")

    withstands_weights = True

    def tolerated(self, received: int) -> int:
        """Return the number of attackers tolerated where weights are equal."""
        return (received - 1) // 2

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        smoothing = jnp.asarray(self.smoothing, messages.dtype)

        def step(_, center: Array) -> Array:
            distance = jnp.sqrt(jnp.sum((messages - center[:, None]) ** 2, axis=2))
            factors = weights / jnp.maximum(smoothing, distance)
            # A message at infinity has no direction.
            factors = jnp.where((weights > 0) & jnp.isfinite(distance), factors, 0)
            total = jnp.sum(factors, axis=1, keepdims=True)
            moved = _weighted_sum(factors / jnp.where(total > 0, total, 1), messages)
            return jnp.where(total > 0, moved, center)

        start = weighted_median(messages, weights)
        center = jax.lax.fori_loop(0, self.iterations, step, start)
        return _where_received(_received(weights)[1], center, reference)


@module
class MedianOfMeans(Aggregator):
    r"""The median of the means of groups of messages.

    .. math::

        \arg\min_v\sum_{g=1}^G\|\bar x_g-v\|,\qquad
        \bar x_g=\frac1{|\mathcal G_g|}\sum_{m\in\mathcal G_g}x_m

    The received messages, in the order of their senders, are divided into ``G`` consecutive groups
    of equal size (or two sizes that differ by one). An attacker spoils the mean of its group only,
    so that fewer attackers than half of the groups leave the result near the honest groups' means.
    These vary less than single messages and are less skewed, which gives the result less bias than
    a median of all messages has. With as many groups as messages it is that median.

    Weights only indicate which messages were received. Breakdown point :math:`G/(2n)` with a
    median. Where fewer messages than groups were received each is a group of its own.

    Args:
      groups: ``G``, >= 3.
      median: how the groups' means are combined: by :class:`GeometricMedian` as in the source,
        :class:`Median`, or another aggregator that withstands attackers among ``G`` messages.

    Raises:
      TypeError: a median that is not an aggregator.
      ValueError: fewer than three groups, or too few for the median.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [2.0], [4.0], [3.0], [1e9]]])
      >>> rule = MedianOfMeans(3, Median())
      >>> rule.combine(messages, jnp.ones((1, 6)), jnp.zeros((1, 1))).item()  # 1.5, 3.0, 5e8
      3.0

    Reference:
      Chen, Su & Xu 2017, Algorithm 2.
    """

    groups: int = static()
    median: Aggregator = GeometricMedian()
    reference = "chen2017"

    def validate(self) -> None:
        checks.count("groups", self.groups, at_least=3)
        checks.kind("median", self.median, Aggregator)
        self.median.check(self.groups)

    def check(self, fewest: int) -> None:
        _check_enough("MedianOfMeans", fewest, self.groups, f"one for each of {self.groups} groups")

    def check_place(self, dim: int, peers: bool) -> None:
        self.median.check_place(dim, peers)

    def tolerated(self, received: int) -> int | None:
        return self.median.tolerated(min(self.groups, received))

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        rank = jnp.cumsum(received, axis=1, dtype=jnp.int32) - 1
        among = jnp.minimum(count, self.groups)[:, None]
        group = jnp.where(received, rank * among // jnp.maximum(count, 1)[:, None], -1)
        inside = group[:, None] == jnp.arange(self.groups, dtype=jnp.int32)[None, :, None]
        share = _shares(inside.reshape(-1, len(received[0])).astype(messages.dtype))
        share = share.reshape(inside.shape)
        # A message that is not finite must spoil its own group only; zero times infinity is NaN.
        finite = jnp.isfinite(messages)
        means = jnp.einsum("rgm,rmd->rgd", share, jnp.where(finite, messages, 0), precision=HIGHEST)
        spoiled = jnp.einsum("rgm,rmd->rgd", share, (~finite).astype(share.dtype)) > 0
        nonempty = jnp.any(inside, axis=2).astype(messages.dtype)
        return self.median.combine(jnp.where(spoiled, jnp.inf, means), nonempty, reference)


@module
class Krum(Aggregator):
    r"""The message nearest to its neighbors, or the mean of the ``select`` best (multi-Krum).

    Each of ``n`` messages, at most ``f`` of them from attackers, is scored by the sum of its
    squared distances to the ``n - f - 2`` others nearest to it; the lowest scores are selected.

    Weights only indicate which messages were received. Tolerates ``f`` attackers if
    :math:`n\ge2f+3`, that is, any share below 1/2 for large n. Receivers with fewer messages score
    by at least one neighbor, without guarantees.

    Args:
      attackers: ``f``, the largest number of attackers assumed.
      select: number of best messages that are averaged. Proofs hold up to ``n - f - 2``; above
        ``n - f`` an attacker is always among them.

    Raises:
      ValueError: a negative number of attackers, a selection of none.

    Example:
      >>> messages = jnp.array([[[1.0], [1.25], [2.0], [8.0], [-9.0]]])
      >>> Krum(attackers=1).combine(messages, jnp.ones((1, 5)), jnp.zeros((1, 1))).tolist()
      [[1.25]]

    Reference:
      Blanchard et al. 2017.
    """

    attackers: int = static()
    select: int = static(default=1)
    reference = "blanchard2017"

    def validate(self) -> None:
        checks.count("attackers", self.attackers, at_least=0)
        checks.count("select", self.select)

    def check(self, fewest: int) -> None:
        why = f"2f + 3 for the f = {self.attackers} attackers it reckons with"
        _check_enough("Krum", fewest, 2 * self.attackers + 3, why)
        if self.select > fewest - self.attackers:
            raise ValueError(
                f"select must be at most {fewest - self.attackers}, the number of messages less "
                f"the attackers if a receiver gets {fewest}, got {self.select}."
            )

    def tolerated(self, received: int) -> int:
        return max(min(self.attackers, (received - 3) // 2), 0)

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        senders = messages.shape[1]
        distances = _squared_distances(messages, received, count)
        nearest = jnp.maximum(count - self.attackers - 2, jnp.minimum(count - 1, 1))
        inside = _ranks(senders) < nearest[:, None, None]
        (distances,) = in_order(distances)  # symmetric, so either axis may be sorted
        score = jnp.sum(jnp.where(inside, distances, 0), axis=1)
        # A received message at infinity is still preferred to a missing one.
        score = jnp.where(received, jnp.minimum(score, jnp.finfo(score.dtype).max), jnp.inf)
        best = jax.lax.top_k(-score, min(self.select, senders))[1]
        real = jnp.take_along_axis(received, best, axis=1).astype(messages.dtype)
        chosen = jnp.take_along_axis(messages, best[:, :, None], axis=1)
        return _where_received(count, _weighted_sum(_shares(real), chosen), reference)


@module
class Bulyan(Aggregator):
    r"""Repeated Krum, then the mean of the values nearest to the median of each coordinate.

    Of ``n`` messages, at most ``f`` of them from attackers, :math:`\theta=n-2f` are selected one
    after the other, each by :class:`Krum` among the remaining ones. In each coordinate the
    :math:`\beta=\theta-2f` selected values nearest to their median are averaged: an attack within
    the distances that Krum allows cannot concentrate all of its norm in one coordinate. (The last
    few are scored by two neighbors, so that two that are nearest to each other do not tie.)

    Weights only indicate which messages were received. Tolerates ``f`` attackers if
    :math:`n\ge4f+3`, that is, less than a quarter. Receivers with fewer messages select at least
    one, without guarantees.

    Args:
      attackers: ``f``, the largest number of attackers assumed.

    Raises:
      ValueError: a negative number of attackers.

    Example:
      >>> messages = jnp.array([[[1.0], [1.25], [2.0], [1.5], [1.0], [0.5], [-9.0]]])
      >>> found = Bulyan(attackers=1).combine(messages, jnp.ones((1, 7)), jnp.zeros((1, 1)))
      >>> round(found.item(), 3)
      1.083

    Reference:
      El Mhamdi et al. 2018.
    """

    attackers: int = static()
    reference = "elmhamdi2018"

    def validate(self) -> None:
        checks.count("attackers", self.attackers, at_least=0)

    def check(self, fewest: int) -> None:
        why = f"4f + 3 for the f = {self.attackers} attackers it reckons with"
        _check_enough("Bulyan", fewest, 4 * self.attackers + 3, why)

    def tolerated(self, received: int) -> int:
        return max(min(self.attackers, (received - 3) // 4), 0)

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        received, count = _received(weights)
        chosen = jnp.maximum(count - 2 * self.attackers, 1)
        averaged = jnp.maximum(chosen - 2 * self.attackers, 1)
        values = _with_missing_at_infinity(
            messages, self._select(messages, received, count, chosen)
        )
        median = sorted_median(in_order(values)[0], chosen)
        # The difference of two infinities is NaN: messages at infinity, and those not selected, are
        # sorted last.
        distance = jnp.where(jnp.isfinite(values), jnp.abs(values - median[:, None]), jnp.inf)
        _, values = in_order(distance, values, keys=2)
        mean = _mean_of_ranks(values, jnp.zeros_like(count), averaged - 1)
        return _where_received(count, mean, reference)

    def _select(
        self,
        messages: Float[Array, "receivers senders dim"],
        received: Bool[Array, "receivers senders"],
        count: Int[Array, " receivers"],
        wanted: Int[Array, " receivers"],
    ) -> Bool[Array, "receivers senders"]:
        """Which messages are selected, one at a time, each from the rest."""
        distances = _squared_distances(messages, received, count)
        senders = jnp.arange(messages.shape[1], dtype=jnp.int32)
        order = jnp.broadcast_to(senders[None, :, None], distances.shape)
        distances, order = (  # they are symmetric
            jnp.swapaxes(array, 1, 2) for array in in_order(distances, order, keys=2)
        )

        def take(taken_count: Int[Array, ""], left: Array) -> Array:
            remaining = jax.vmap(lambda left, order: left[order])(left, order)
            other_count = jnp.sum(left, axis=1, dtype=jnp.int32) - 1
            # With one neighbor only, two messages that are nearest to each other would tie.
            nearest = jnp.maximum(other_count - 1 - self.attackers, jnp.minimum(other_count, 2))
            inside = remaining & (
                jnp.cumsum(remaining, axis=2, dtype=jnp.int32) <= nearest[:, None, None]
            )
            score = jnp.sum(jnp.where(inside, distances, 0), axis=2)
            score = jnp.where(left, jnp.minimum(score, jnp.finfo(score.dtype).max), jnp.inf)
            best = jax.lax.argmin(score, 1, jnp.int32)[:, None]
            return left & ~((senders[None] == best) & (taken_count < wanted)[:, None])

        rounds = max(len(senders) - 2 * self.attackers, 1)
        return received & ~jax.lax.fori_loop(0, rounds, take, received)


def _squared_distances(
    messages: Float[Array, "receivers senders dim"],
    received: Bool[Array, "receivers senders"],
    count: Int[Array, " receivers"],
) -> Float[Array, "receivers senders senders"]:
    """Squared distances between all received messages; infinite to itself, to a missing message,
    and to one that is not finite.

    They are computed from inner products, which lose digits where norms are large compared with
    distances. So the origin is moved to the coordinate-wise median, which is among the honest
    messages however far the others are.
    """
    center = sorted_median(in_order(_with_missing_at_infinity(messages, received))[0], count)
    finite = received & jnp.all(jnp.isfinite(messages), axis=2)
    differences = jnp.where(finite[:, :, None], messages - center[:, None], 0)
    gram = jnp.einsum("rid,rjd->rij", differences, differences, precision=HIGHEST)
    square = jnp.sum(differences**2, axis=2)
    distances = square[:, :, None] + square[:, None, :] - 2 * gram
    pair = finite[:, :, None] & finite[:, None, :] & ~jnp.eye(messages.shape[1], dtype=bool)[None]
    # NaN: the squares of two messages overflow, or the median is at infinity.
    return jnp.where(pair & ~jnp.isnan(distances), jnp.maximum(distances, 0), jnp.inf)


def _clipped_mean(
    messages: Float[Array, "receivers senders dim"],
    shares: Float[Array, "receivers senders"],
    center: Float[Array, "receivers dim"],
    radius: Array | float,
) -> Float[Array, "receivers dim"]:
    """The center plus the mean of the differences from it, each clipped to the radius."""
    radius = jnp.asarray(radius, messages.dtype)
    differences = messages - center[:, None]
    length = jnp.sqrt(jnp.sum(differences**2, axis=2))
    # A message at infinity has no direction.
    factors = jnp.where(jnp.isfinite(length), shares * radius / jnp.maximum(length, radius), 0)
    return center + _weighted_sum(factors, differences)


@module
class CenteredClipping(Aggregator):
    r"""The mean of messages clipped to a ball around the last model, iterated with a moving center.

    .. math:: v\leftarrow v+\frac1n\sum_m(x_m-v)\min\{1,\tau/\|x_m-v\|\},

    from ``v`` = ``reference``. Weights only indicate which messages were received. Any share
    :math:`\delta` of attackers changes a step by at most :math:`\delta\tau`, compared with
    attackers that send ``v``; the proof of convergence holds for :math:`\delta\le1/10`,
    and requires a radius of the order of the spread of the honest messages, and momentum at the
    clients.

    Args:
      radius: :math:`\tau>0`, in the units of the models.
      iterations: >= 1.

    Raises:
      ValueError: a radius that is not positive, no iterations.

    Example:
      >>> messages = jnp.array([[[1.0], [2.0], [1e9]]])
      >>> CenteredClipping(3.0).combine(messages, jnp.ones((1, 3)), jnp.zeros((1, 1))).item()
      2.0

    Reference:
      Karimireddy et al. 2021.
    """

    radius: Float[Array, ""] | float
    iterations: int = static(default=1)
    reference = "karimireddy2021"

    def validate(self) -> None:
        checks.positive("radius", self.radius)
        checks.count("iterations", self.iterations)

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        shares = _shares(_received(weights)[0].astype(messages.dtype))

        def step(_, center: Array) -> Array:
            return _clipped_mean(messages, shares, center, self.radius)

        return jax.lax.fori_loop(0, self.iterations, step, reference)


@module
class NormClipping(Aggregator):
    r"""The weighted mean of the messages, each clipped to a ball around ``reference``.

    .. math:: v+\sum_mw_m(x_m-v)\min\{1,\tau/\|x_m-v\|\}\Big/\sum_mw_m,

    where ``v`` is ``reference``: the server's model, or the receiver's own (then it is
    self-centered clipping). Weights are used. Attackers with a share :math:`\delta` of the weight
    change the result by at most :math:`\delta\tau`, compared with attackers that send ``v``, in
    every round and for any :math:`\delta`: a bound on their influence per round, not a breakdown
    point.

    Args:
      radius: :math:`\tau>0`, in the units of the models.

    Raises:
      ValueError: a radius that is not positive.

    Example:
      >>> messages = jnp.array([[[1.0], [1e9]]])
      >>> NormClipping(2.0).combine(messages, jnp.array([[3.0, 1.0]]), jnp.zeros((1, 1))).item()
      1.25

    Reference:
      Sun et al. 2019, norm thresholding; among peers He et al. 2022.
    """

    radius: Float[Array, ""] | float
    reference = ("sun2019", "he2022")

    def validate(self) -> None:
        checks.positive("radius", self.radius)

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        return _clipped_mean(messages, _shares(weights), reference, self.radius)


@module
class FLTrust(Aggregator):
    r"""The mean of messages weighted by their cosine to a trusted one, and scaled to its norm.

    .. math:: v+\frac{\sum_mc_m\frac{\|g_0\|}{\|g_m\|}g_m}{\sum_mc_m},\qquad
              c_m=\max\{0,\cos(g_m,g_0)\},\quad g_m=x_m-v,

    with the trusted update :math:`g_0`. At a server, ``v`` is its model and :math:`g_0` is its own
    update, learned from clean data of its own, the root. Peers have no root: a receiver
    trusts its own message, and messages are whole models, relative to ``v = 0``; so the norms of
    models must be large compared with their differences.

    Weights only indicate which messages were received. No breakdown point: every message is scaled
    to the norm of the trusted one, and messages of negative cosine are ignored, so with any number
    of attackers the result is within a right angle of the trusted direction. A server that trusts
    no message in a round keeps its model.

    Args:
      root: a problem of one client, with the server's own data; leave it out among peers.
      step_size: of the server's gradient steps on it, the same as the clients' own.
      local_steps: number of these steps, as many as a client takes.

    Raises:
      TypeError: a root that is not a problem.
      ValueError: a root of several clients; a root without step size, or the other way round.

    Example:
      >>> messages = jnp.array([[[2.0, 2.0], [2.0, 0.0], [0.0, 4.0], [-9.0, -9.0]]])
      >>> trusted = messages[:, 0]
      >>> result = FLTrust().combine(messages, jnp.ones((1, 4)), trusted)
      >>> [round(v, 2) for v in result[0].tolist()]
      [1.66, 1.66]

    Reference:
      Cao et al. 2021, Algorithm 2.
    """

    root: Problem | None = None
    step_size: Float[Array, ""] | float | None = None
    local_steps: int = static(default=1)
    reference = "cao2021"

    def validate(self) -> None:
        checks.count("local_steps", self.local_steps)
        if (self.root is None) != (self.step_size is None):
            raise ValueError(
                "give both root= and step_size= for a server, which takes steps on its root data, "
                "or neither for peers, which trust their own message."
            )
        if self.root is None:
            return
        checks.kind("root", self.root, Problem)
        checks.positive("step_size", self.step_size)
        if self.root.clients != 1:
            raise ValueError(
                f"root must be the data of one, the server, got {self.root.clients} clients; "
                "root.pooled() has all data at one."
            )

    def check_place(self, dim: int, peers: bool) -> None:
        if peers != (self.root is None):
            raise ValueError(
                "among peers a receiver trusts its own message; leave out root=."
                if peers
                else "a server has no message of its own to trust; give it clean data, root= and "
                "step_size=."
            )
        if self.root is not None and self.root.dim != dim:
            raise ValueError(f"root's models have {self.root.dim} numbers, and a message {dim}.")

    def combine(self, messages: Messages, weights: Weights, reference: PerReceiver) -> PerReceiver:
        if self.root is None:
            origin = jnp.zeros_like(reference)
            trusted = reference
        else:
            origin = reference
            trusted = jax.vmap(self._trained_on_root)(reference) - reference
        updates = jnp.where(weights[:, :, None] > 0, messages - origin[:, None], 0)
        length = norm(updates)
        trusted_length = norm(trusted)[:, None]
        # A message at infinity has no direction.
        usable = (length > 0) & jnp.isfinite(length) & (trusted_length > 0)
        inner_products = jnp.einsum("rmd,rd->rm", updates, trusted, precision=HIGHEST)
        size = jnp.where(usable, length, 1)
        trust = jnp.where(
            usable,
            jnp.maximum(
                inner_products / (size * jnp.where(trusted_length > 0, trusted_length, 1)), 0
            ),
            0,
        )
        total = jnp.sum(trust, axis=1, keepdims=True)
        scaled = jnp.where(trust > 0, trust * trusted_length / size, 0) / jnp.where(
            total > 0, total, 1
        )
        return jnp.where(total > 0, origin + _weighted_sum(scaled, updates), reference)

    def _trained_on_root(self, model: Float[Array, " dim"]) -> Float[Array, " dim"]:
        root = self.root
        assert root is not None
        step_size = jnp.asarray(self.step_size, model.dtype)

        def step(_, row: Array) -> Array:
            return row - step_size * root.gradient(row)

        return jax.lax.fori_loop(0, self.local_steps, step, model[None])[0]
