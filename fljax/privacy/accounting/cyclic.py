r"""Cyclic Poisson sampling under a banded strategy: amplification of correlated noise.

Records are divided once, independently of the data, into ``cycle`` groups. In round :math:`t` each
record of group :math:`t\bmod\text{cycle}` takes part with the same probability, independently, and
no other record does. If the strategy has no more bands than the cycle has rounds, the columns of
one record's rounds are orthogonal, and the releases reveal about it as much as
:math:`\lceil n/\text{cycle}\rceil` independent Poisson-sampled Gaussian releases, with the
largest norm of a column as their sensitivity (Choquette-Choo et al. 2023, Theorem 4).
"""

import math
from typing import Any

from fljax._core import checks
from fljax.privacy.accounting.inputs import checked
from fljax.privacy.accounting.sampling import (
    sampled_gaussian_epsilon,
    sampled_gaussian_event,
    sampled_gaussian_multiplier,
)
from fljax.privacy.matrices import Strategy


def _releases(strategy: Strategy, rounds: int, rate: float, cycle: int) -> tuple[int, float]:
    """Number of sampled releases, and their sensitivity."""
    checks.kind("strategy", strategy, Strategy)
    checks.count("rounds", rounds)
    checks.count("cycle", cycle)
    checks.interval("rate", rate, above=0, at_most=1, hint="It is a share of a group.")
    if strategy.bands is None or strategy.bands > cycle:
        bands = "all" if strategy.bands is None else f"{strategy.bands}"
        raise ValueError(
            f"a cycle of {cycle} rounds amplifies strategies of at most {cycle} bands, and this "
            f"{type(strategy).__name__} has {bands}; take a longer cycle, a banded strategy, or "
            "balls in bins (fljax.privacy.accounting.balls_in_bins_epsilon)."
        )
    return math.ceil(rounds / cycle), strategy.sensitivity(rounds, participations=1)


@checked
def cyclic_poisson_event(
    strategy: Strategy, noise_multiplier: float, rounds: int, rate: float, cycle: int
) -> Any:
    r"""Return the releases of a banded strategy under cyclic Poisson sampling as an event.

    Args:
      strategy: :math:`C`, of :mod:`fljax.privacy.matrices`, with at most ``cycle`` bands.
      noise_multiplier: standard deviation of the independent noise that is added to :math:`Cx`,
        relative to the change of a row of :math:`x` by an added record.
      rounds: number of rounds, >= 1.
      rate: probability with which a record of the group whose turn it is takes part, in (0, 1]. A
        batch of :math:`B` of :math:`N` records on average needs ``rate = cycle * B / N``.
      cycle: number of groups, which take turns.

    Returns:
      A ``dp_accounting.SelfComposedDpEvent`` for a record added or removed, to be composed by a
      ``PLDAccountant``.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range, more bands than the cycle has rounds.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> cyclic_poisson_event(square_root(4), 1.0, rounds=100, rate=0.1, cycle=4).count
      25
    """
    releases, sensitivity = _releases(strategy, rounds, rate, cycle)
    checks.positive("noise_multiplier", noise_multiplier)
    return sampled_gaussian_event(noise_multiplier / sensitivity, releases, rate)


@checked
def cyclic_poisson_epsilon(
    strategy: Strategy,
    noise_multiplier: float,
    delta: float,
    rounds: int,
    rate: float,
    cycle: int,
) -> float:
    r"""Return epsilon at ``delta`` of a banded strategy under cyclic Poisson sampling.

    Args:
      strategy: as in :func:`cyclic_poisson_event`, like the other arguments.
      noise_multiplier: as in :func:`cyclic_poisson_event`.
      delta: in (0, 1).
      rounds: as in :func:`cyclic_poisson_event`.
      rate: as in :func:`cyclic_poisson_event`.
      cycle: as in :func:`cyclic_poisson_event`.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: as for :func:`cyclic_poisson_event`; a delta out of its range.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP for a record added or removed, if the groups do not depend on the
      data and the samples stay secret.

    Reference:
      Choquette-Choo et al. 2023, Theorem 4.

    Example:
      >>> from fljax.privacy.matrices import identity, square_root
      >>> cases = [(identity(), 0.01, 1), (square_root(10), 0.1, 10)]  # batches of equal size
      >>> [round(cyclic_poisson_epsilon(s, 1.0, 1e-5, 200, r, c), 2) for s, r, c in cases]
      [0.91, 3.59]
    """
    releases, sensitivity = _releases(strategy, rounds, rate, cycle)
    checks.positive("noise_multiplier", noise_multiplier)
    return sampled_gaussian_epsilon(noise_multiplier / sensitivity, delta, releases, rate)


@checked
def cyclic_poisson_multiplier(
    strategy: Strategy, epsilon: float, delta: float, rounds: int, rate: float, cycle: int
) -> float:
    r"""Return the smallest noise multiplier for a budget under cyclic Poisson sampling.

    Args:
      strategy: as in :func:`cyclic_poisson_event`, like the other arguments.
      epsilon: total, > 0.
      delta: total, in (0, 1).
      rounds: as in :func:`cyclic_poisson_event`.
      rate: as in :func:`cyclic_poisson_event`.
      cycle: as in :func:`cyclic_poisson_event`.

    Returns:
      The multiplier of :func:`cyclic_poisson_event`, an upper approximation to a thousandth.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: as for :func:`cyclic_poisson_event`; a budget out of its range.

    Example:
      >>> from fljax.privacy.matrices import square_root
      >>> round(cyclic_poisson_multiplier(square_root(10), 2.0, 1e-5, 200, 0.1, 10), 2)
      1.36
    """
    releases, sensitivity = _releases(strategy, rounds, rate, cycle)
    return sensitivity * sampled_gaussian_multiplier(epsilon, delta, releases, rate)
