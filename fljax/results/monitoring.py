r"""Continuous monitoring: detection of rising errors while a system learns, per node and round.

A study records the errors of every node (``metrics=["validation_error"]``) while data drift
(:class:`fljax.streams.Drifting`); a detector processes each node's errors in sequence, and
:func:`report` names the nodes and rounds of alarms. The detector is Page's cumulative sum test with
a running estimate of the mean, on arrays: nodes, seeds and thresholds are monitored together, under
``jit`` and ``vmap``. Its performance is measured by :func:`detection_delay` and
:func:`false_alarm_rate`.

Shapes: rounds come first, ``[T, ...]``, as in the results of one run; :func:`jax.vmap` maps over
seeds.

Reference: Jung 2025, section 8.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import float_dtype

__all__ = [
    "Alarm",
    "AlarmReport",
    "Alarms",
    "Silence",
    "calibrated_threshold",
    "detection_delay",
    "false_alarm_rate",
    "page_hinkley",
    "report",
]


class Alarms(NamedTuple):
    """Output of :func:`page_hinkley` for each round."""

    statistic: Array  # [T, ...]  how far the cumulative sum is above its least value
    raised: Array  # [T, ...]  whether it is above the threshold, upon which the test restarts


class Alarm(NamedTuple):
    """A detected drift."""

    node: int
    round: int
    before: float  # the mean error since the last alarm, or the first round
    after: float  # the error of the round


class Silence(NamedTuple):
    """A node without errors until the end: it has no data any more, or has diverged."""

    node: int
    round: int  # of the first missing error


class AlarmReport(NamedTuple):
    """All alarms of a run, in order of time, and the nodes without errors at its end."""

    alarms: tuple[Alarm, ...]
    silent: tuple[Silence, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"round {a.round}: node {a.node}, whose error is {a.after:.3g} after a mean of "
            f"{a.before:.3g}"
            for a in self.alarms
        ] or ["no alarm"]
        lines += [f"round {s.round}: node {s.node} has no error from then on" for s in self.silent]
        return "\n".join(lines)


class _TestState(NamedTuple):
    """State of the test since the last alarm."""

    observed: Array
    mean: Array
    total: Array
    least: Array
    infinite: Array  # whether the last error was infinite: a series of these is one alarm


@checked
def page_hinkley(
    errors: Float[Array, "rounds ..."] | Any,
    tolerance: Float[Array, ""] | float,
    threshold: Float[Array, ""] | float,
    *,
    burn_in: int = 30,
) -> Alarms:
    r"""The Page-Hinkley test for an increase of the mean, applied to each series separately.

    For errors :math:`x_1,x_2,\dots` with the running means :math:`\bar x_t`,

    .. math:: m_t=\sum_{i\le t}(x_i-\bar x_i-\delta),\qquad
        \text{alarm when }m_t-\min_{i\le t}m_i>\lambda.

    After an alarm the test restarts, so that a later drift is detected as well. Errors that are
    NaN, from rounds without data, are skipped. An infinite error, of a model that has diverged,
    raises an alarm without delay, and no other until errors are finite again.

    Args:
      errors: ``[T, ...]``, in the order of rounds.
      tolerance: :math:`\delta\ge0`, an increase of the mean that is tolerated, in the unit of
        errors.
      threshold: :math:`\lambda>0`, in the unit of errors; :func:`calibrated_threshold` finds it for
        a given rate of false alarms.
      burn_in: number of errors at the start, and after an alarm, during which no alarm is raised.

    Raises:
      ValueError: a negative tolerance, a threshold that is not positive, an error of minus
        infinity.

    Reference:
      Page 1954; Hinkley 1971.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> errors = jnp.where(jnp.arange(100) < 60, 1.0, 2.0)
      >>> alarms = fl.monitoring.page_hinkley(errors, tolerance=0.1, threshold=3.0)
      >>> jnp.flatnonzero(alarms.raised).tolist()
      [63]
    """
    checks.nonnegative("tolerance", tolerance)
    checks.positive("threshold", threshold)
    checks.count("burn_in", burn_in, at_least=0)
    errors = _checked_series("errors", errors)

    def move(state: _TestState, error: Array) -> tuple[_TestState, tuple[Array, Array]]:
        finite = jnp.isfinite(error)
        infinite = jnp.isposinf(error)
        observed = state.observed + 1
        mean = state.mean + (error - state.mean) / observed
        total = state.total + error - mean - tolerance
        new = _TestState(observed, mean, total, jnp.minimum(state.least, total), state.infinite)
        new = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, state)
        statistic = jnp.where(infinite, jnp.inf, new.total - new.least)
        raised = finite & (statistic > threshold) & (new.observed > burn_in)
        raised = raised | (infinite & ~state.infinite)
        new = jax.tree.map(lambda value: jnp.where(raised, jnp.zeros_like(value), value), new)
        updated = finite | infinite
        new = new._replace(infinite=jnp.where(updated, infinite, state.infinite))
        return new, (statistic, raised)

    zero = jnp.zeros(errors.shape[1:], errors.dtype)
    start = _TestState(zero, zero, zero, zero, jnp.zeros(errors.shape[1:], bool))
    return Alarms(*jax.lax.scan(move, start, errors)[1])


@checked
def calibrated_threshold(
    errors: Float[Array, "rounds ..."] | Any,
    tolerance: Float[Array, ""] | float,
    false_alarms: Float[Array, ""] | float,
    *,
    burn_in: int = 30,
) -> Float[Array, ""]:
    r"""Return the threshold that the given share of series without drift exceeds in some round.

    Args:
      errors: ``[T, ...]``, without drift: from many nodes or seeds, as long as the series to be
        monitored.
      tolerance: as for :func:`page_hinkley`.
      false_alarms: the share, in (0, 1).
      burn_in: as for :func:`page_hinkley`.

    Raises:
      ValueError: a share outside (0, 1); not more rounds than the burn-in; infinite errors, or none
        at all.

    Example:
      >>> import jax, fljax as fl
      >>> errors = jax.random.normal(jax.random.key(0), (200, 1000)) ** 2
      >>> threshold = fl.monitoring.calibrated_threshold(errors[:, :500], 0.1, 0.05)
      >>> raised = fl.monitoring.page_hinkley(errors[:, 500:], 0.1, threshold).raised
      >>> bool(0.01 < raised.any(axis=0).mean() < 0.1)
      True
    """
    checks.interval("false_alarms", false_alarms, above=0, below=1)
    checks.count("burn_in", burn_in, at_least=0)
    errors = _checked_series("errors", errors)
    _check_longer(errors, burn_in)
    if checks.is_concrete(errors) and (np.isposinf(errors).any() or np.isnan(errors).all()):
        raise ValueError("errors without drift must be finite, some of them at least, got none.")
    highest = float(jnp.finfo(errors.dtype).max)
    statistic = page_hinkley(errors, tolerance, highest, burn_in=burn_in).statistic
    return jnp.quantile(jnp.max(statistic[burn_in:], axis=0), 1 - jnp.asarray(false_alarms))


@checked
def detection_delay(
    raised: Bool[Array, "rounds ..."] | Any, onset: object, rounds: object = None
) -> Float[Array, "..."]:
    """Return the number of rounds from the onset of a drift to the first alarm from then on.

    Args:
      raised: ``[T, ...]``, from :func:`page_hinkley`.
      onset: ``[...]``, or one for all: the round in which a series begins to drift, 0 if it does
        not.
      rounds: ``[T]``, the rounds that were recorded; 1, 2, ... by default.

    Returns:
      The delay; NaN for series without drift, infinite if the drift is not detected.

    Raises:
      ValueError: a number of rounds that does not match.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> raised = jnp.array([[False, False], [True, False], [False, False], [True, False]])
      >>> fl.monitoring.detection_delay(raised, jnp.array([3, 2])).tolist()
      [1.0, inf]
      >>> fl.monitoring.false_alarm_rate(raised, jnp.array([3, 2])).tolist()
      [0.5, 0.0]
    """
    raised, onset, rounds = _checked_alarms(raised, onset, rounds)
    late = jnp.where(raised & (rounds >= onset), rounds - onset, jnp.inf)
    return jnp.where(onset[0] > 0, jnp.min(late, axis=0), jnp.nan)


@checked
def false_alarm_rate(
    raised: Bool[Array, "rounds ..."] | Any, onset: object, rounds: object = None
) -> Float[Array, "..."]:
    """Return the share of rounds with an alarm before the onset, or among all without a drift.

    Args:
      raised: as for :func:`detection_delay`.
      onset: as for :func:`detection_delay`.
      rounds: as for :func:`detection_delay`.

    Returns:
      ``[...]``; NaN if no round precedes the onset.

    Example:
      >>> import jax.numpy as jnp, fljax as fl
      >>> raised = jnp.array([False, True, False, False, True, True])
      >>> float(fl.monitoring.false_alarm_rate(raised, onset=5))  # of rounds 1 to 4
      0.25
    """
    raised, onset, rounds = _checked_alarms(raised, onset, rounds)
    quiet = (rounds < onset) | (onset == 0)
    count = jnp.sum(quiet, axis=0, dtype=onset.dtype)
    alarms = jnp.sum(raised & quiet, axis=0, dtype=onset.dtype)
    return jnp.where(count > 0, alarms / jnp.where(count > 0, count, 1), jnp.nan)


@checked
def report(
    errors: Any,
    tolerance: Float[Array, ""] | float,
    threshold: Float[Array, ""] | float,
    *,
    burn_in: int = 30,
    rounds: object = None,
) -> AlarmReport:
    """Report the nodes whose errors drift in a run, and the rounds of detection.

    Args:
      errors: ``[T, K]``, such as ``results.validation_error`` of one run; results include their
        rounds.
      tolerance: as for :func:`page_hinkley`.
      threshold: as for :func:`page_hinkley`.
      burn_in: as for :func:`page_hinkley`.
      rounds: ``[T]``, the rounds that were recorded; 1, 2, ... by default.

    Raises:
      ValueError: errors of more than one run, a number of rounds that does not match or is not
        above the burn-in.

    Example:
      >>> import numpy as np, fljax as fl
      >>> errors = np.ones((100, 3))
      >>> errors[70:, 1] = 4.0
      >>> print(fl.monitoring.report(errors, tolerance=0.1, threshold=5.0))
      round 72: node 1, whose error is 4 after a mean of 1.04
    """
    if rounds is None and "round" in getattr(errors, "coords", ()):
        rounds = errors["round"].values
    if "round" in getattr(errors, "dims", ()):
        errors = errors.transpose("round", ...)  # from any order
    checks.count("burn_in", burn_in, at_least=0)
    values = np.asarray(_checked_series("errors", errors))
    if values.ndim != 2:
        raise ValueError(
            f"errors must be of one run, [rounds, nodes], got shape {values.shape}; choose a seed "
            "with errors.isel(seed=0)."
        )
    _check_longer(values, burn_in)
    rounds = np.asarray(_checked_rounds(rounds, len(values)))
    raised = np.asarray(page_hinkley(values, tolerance, threshold, burn_in=burn_in).raised)
    alarms = []
    segment_start = dict.fromkeys(range(values.shape[1]), 0)
    for at, node in np.argwhere(raised).tolist():
        before = values[segment_start[node] : at, node]
        before = before[np.isfinite(before)]
        before = float(np.mean(before)) if len(before) else float("nan")
        alarms.append(Alarm(node, int(rounds[at]), before, float(values[at, node])))
        segment_start[node] = at + 1
    present = ~np.isnan(values)
    last = np.where(present.any(axis=0), len(values) - np.argmax(present[::-1], axis=0), 0)
    silent = [Silence(k, int(rounds[at])) for k, at in enumerate(last.tolist()) if at < len(values)]
    return AlarmReport(tuple(alarms), tuple(silent))


def _checked_series(name: str, values: Any) -> Float[Array, "rounds ..."]:
    values = checks.filled(name, values)
    if not np.ndim(values):
        raise ValueError(f"{name} must be a series, [rounds, ...], got one number.")
    if checks.is_concrete(values) and np.isneginf(values).any():
        raise ValueError(f"{name} holds minus infinity, which is no error of a model.")
    return jnp.asarray(values, float_dtype())


def _check_longer(errors: Array | np.ndarray, burn_in: int) -> None:
    if len(errors) <= burn_in:
        raise ValueError(
            f"errors must have more rounds than the burn-in, {burn_in}, got {len(errors)}; before "
            "that there is no alarm. Rounds are the first axis."
        )


def _checked_rounds(rounds: Any, count: int) -> Float[Array, " rounds"]:
    if rounds is None:
        return jnp.arange(1, count + 1, dtype=float_dtype())
    rounds = checks.array("rounds", rounds, axes=1)
    checks.finite("rounds", rounds)
    if len(rounds) != count:
        raise ValueError(f"rounds must be those of the {count} records, got {len(rounds)}.")
    return jnp.asarray(rounds, float_dtype())


def _checked_alarms(raised: object, onset: Any, rounds: object) -> tuple[Array, Array, Array]:
    """Alarms ``[T, ...]``, onsets ``[1, ...]`` and rounds ``[T, 1, ...]``."""
    raised = jnp.asarray(checks.filled("raised", checks.as_booleans(raised)))
    if raised.dtype != bool or not raised.ndim:
        raise ValueError(f"raised must be truth values, [rounds, ...], got {checks.shown(raised)}.")
    onset = checks.array("onset", onset)
    checks.nonnegative("onset", onset)
    if np.ndim(onset) and np.shape(onset) != raised.shape[1:]:
        raise ValueError(
            f"onset must be one for each series, shape {raised.shape[1:]}, or one for all, got "
            f"shape {np.shape(onset)}."
        )
    rounds = _checked_rounds(rounds, len(raised))
    onset = jnp.broadcast_to(jnp.asarray(onset, rounds.dtype), raised.shape[1:])[None]
    return raised, onset, rounds.reshape((-1,) + (1,) * (raised.ndim - 1))
