r"""Gaussian releases of a random sample of the data: privacy amplification by secret sampling.

A release that contains a record only with some probability, and keeps secret whether it does,
reveals less about it: privacy is *amplified by sampling*. Two sampling schemes are accounted here,
with a new sample for each release, independent of the others:

* ``"poisson"``: every record with the same probability, independently;
* ``"drawn"``: a fixed number of all records, uniformly without replacement.

Numbers come from ``dp_accounting`` (the extra ``accounting``): for ``"poisson"`` by composition of
privacy loss distributions, which is tight up to their grid and never below the true epsilon; for
``"drawn"`` by Rényi-DP, the only composition that it offers for this scheme. Deltas below 1e-15 a
release are lost in the rounding of that composition; there, too, Rényi-DP is the bound, which is
less tight, and no bound exceeds the exact cost of the same releases without sampling.
"""

import functools
import math
from typing import Any, Literal, TypeAlias

import scipy

from fljax._core import checks
from fljax.privacy.accounting.conversions import zcdp_epsilon
from fljax.privacy.accounting.events import accountants
from fljax.privacy.accounting.inputs import checked, probability

Sampling: TypeAlias = Literal["poisson", "drawn"]

#: Each sampling scheme has its theorem for one relation of neighbors only.
_PROVEN = {"poisson": "add-or-remove", "drawn": "replace"}

#: Orders of Rényi-DP without replacement: only integers have bounds, each a sum over all below.
_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)

#: Rates count as this at least, for which accounting in double precision works.
LEAST_RATE = 1e-300


def amplifies(sampling: Sampling | None, neighbors: str) -> bool:
    """Whether amplification by secret sampling is known for this relation of neighbors."""
    return sampling is not None and _PROVEN[sampling] == neighbors


@checked
def sampled_gaussian_event(
    noise_multiplier: float,
    releases: int,
    rate: float = 1.0,
    sampling: Sampling = "poisson",
    records: int | None = None,
) -> Any:
    r"""Return releases of a sampled Gaussian mechanism as an event of ``dp_accounting``.

    Args:
      noise_multiplier: standard deviation of the noise relative to the largest change due to
        *adding* a record, :math:`z>0`, for either relation of neighbors.
      releases: number of releases, >= 1.
      rate: inclusion probability of a record in a release, in (0, 1].
      sampling: the sampling scheme. ``"poisson"`` has its guarantee for a record added or removed
        (compose by a ``PLDAccountant``), ``"drawn"`` for one replaced (by an ``RdpAccountant``
        under ``REPLACE_ONE``).
      records: number of records that ``"drawn"`` samples from.

    Returns:
      A ``dp_accounting.SelfComposedDpEvent``.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range; ``"drawn"`` without ``records``.

    Example:
      >>> sampled_gaussian_event(1.1, releases=100, rate=0.1).count
      100
    """
    checks.positive("noise_multiplier", noise_multiplier)
    checks.count("releases", releases)
    checks.interval("rate", rate, above=0, at_most=1, hint="It is a share of the records.")
    checks.choice("sampling", sampling, _PROVEN)
    if records is not None:
        checks.count("records", records)
    dp = accountants()
    event = dp.GaussianDpEvent(float(noise_multiplier))
    if sampling == "drawn":
        if records is None:
            raise ValueError("'drawn' draws some of a number of records; pass records=.")
        drawn = round(rate * records)
        if not math.isclose(drawn, rate * records, rel_tol=1e-4):
            raise ValueError(
                f"a rate of {rate:g} is no whole number of {records} records; pass m / records."
            )
        # Its unit is the change by *replacing* a record, twice the change by adding one.
        event = dp.GaussianDpEvent(float(noise_multiplier / 2))
        event = dp.SampledWithoutReplacementDpEvent(records, drawn, event)
    elif rate < 1:
        event = dp.PoissonSampledDpEvent(float(rate), event)
    return dp.SelfComposedDpEvent(event, int(releases))


@checked
def sampled_gaussian_epsilon(
    noise_multiplier: float,
    delta: float,
    releases: int,
    rate: float = 1.0,
    sampling: Sampling = "poisson",
    records: int | None = None,
) -> float:
    r"""Return epsilon at ``delta`` of releases of a sampled Gaussian mechanism.

    Args:
      noise_multiplier: as in :func:`sampled_gaussian_event`, like the other arguments.
      delta: in (0, 1).
      releases: as in :func:`sampled_gaussian_event`.
      rate: as in :func:`sampled_gaussian_event`.
      sampling: as in :func:`sampled_gaussian_event`; neighbors differ in a record added or removed
        for ``"poisson"``, in one replaced for ``"drawn"``.
      records: as in :func:`sampled_gaussian_event`.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP if the members of the samples stay secret.

    References:
      Abadi et al. 2016; Koskela, Jälkö & Honkela 2020 (loss distributions); Wang, Balle &
      Kasiviswanathan 2019 (without replacement).

    Example:
      >>> round(sampled_gaussian_epsilon(1.1, delta=1e-5, releases=1000, rate=0.01), 2)
      1.52
      >>> round(sampled_gaussian_epsilon(1.1, delta=1e-5, releases=1000))  # nothing is secret
      535
    """
    probability("delta", delta)
    sampled_gaussian_event(noise_multiplier, releases, rate, sampling, records)  # checks them
    # Of smaller rates the distributions of losses have infinite ends; epsilon rises with the rate.
    rate = max(float(rate), LEAST_RATE)
    return _epsilon(float(noise_multiplier), float(delta), int(releases), rate, sampling, records)


@functools.lru_cache(maxsize=1024)  # clients of one run have the same arguments
def _epsilon(
    noise_multiplier: float,
    delta: float,
    releases: int,
    rate: float,
    sampling: Sampling,
    records: int | None,
) -> float:
    # Neighbors of the drawn scheme replace a record, which moves a release twice as far.
    moved = 2 if sampling == "drawn" else 1
    cost = releases * moved**2 / (2 * noise_multiplier) / noise_multiplier
    if not math.isfinite(cost):
        return math.inf
    # What is not sampled reveals at least as much.
    bounds = [float(zcdp_epsilon(cost, delta, "gaussian"))]
    if rate < 1:
        bounds += _amplified(noise_multiplier, delta, releases, rate, sampling, records)
    return min(bounds)


#: Noise multipliers whose squares and their reciprocals ``dp_accounting`` computes with.
_MULTIPLIERS = (1e-3, 1e6)


def _amplified(
    noise_multiplier: float,
    delta: float,
    releases: int,
    rate: float,
    sampling: Sampling,
    records: int | None,
) -> list[float]:
    """Upper bounds of epsilon that ``dp_accounting`` can compute at this delta."""
    dp = accountants()
    least, most = _MULTIPLIERS
    multiplier = min(noise_multiplier, most)  # less noise than there is: no smaller an epsilon
    if multiplier < least:
        return []
    event = sampled_gaussian_event(multiplier, releases, rate, sampling, records)
    if sampling == "drawn":
        accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
        return [float(accountant.compose(event).get_epsilon(delta))]
    bounds = []
    # The composition is a power of a Fourier transform, and its rounding can hide this much of
    # delta: up to 3e-17 a release was measured against the closed form without sampling.
    hidden = 1e-15 * releases
    if delta > 2 * hidden:
        grid = _grid(multiplier, releases, rate)
        composed = _losses(multiplier, rate, grid).self_compose(releases)
        bounds.append(float(composed.get_epsilon_for_delta(delta - hidden)))
    if delta < 100 * hidden:
        accountant = dp.rdp.RdpAccountant(_WHOLE_ORDERS)
        bounds.append(float(accountant.compose(event).get_epsilon(delta)))
    return bounds


#: Orders of Rényi-DP under Poisson sampling: whole ones have a finite sum, the others a series,
#: which need not converge.
_WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)


def _grid(noise_multiplier: float, releases: int, rate: float) -> float:
    """The distance of losses on the grid: 1e-4, and more where the grid would fill the memory.

    A coarser grid gives no smaller an epsilon.
    """
    span = 1 / (2 * noise_multiplier**2) + 10 / noise_multiplier  # of one release
    spread = min(
        span * math.sqrt(rate), rate * math.sqrt(math.expm1(min(noise_multiplier**-2, 100.0)))
    )
    # One release then has at most 2e5 losses, and all of them together some 2e7.
    return max(1e-4, span / 2e5, 16 * math.sqrt(releases) * spread / 2e7)


@functools.lru_cache(maxsize=64)
def _losses(noise_multiplier: float, rate: float, grid: float) -> Any:
    """The privacy loss distribution of one release, which takes longer than its composition."""
    losses = accountants().pld.privacy_loss_distribution
    return losses.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=rate, value_discretization_interval=grid
    )


@checked
def sampled_gaussian_multiplier(
    epsilon: float,
    delta: float,
    releases: int,
    rate: float = 1.0,
    sampling: Sampling = "poisson",
    records: int | None = None,
) -> float:
    r"""Return the smallest multiplier for which all releases are :math:`(\epsilon,\delta)`-DP.

    Args:
      epsilon: total, > 0.
      delta: total, in (0, 1).
      releases: as in :func:`sampled_gaussian_event`, like the other arguments.
      rate: as in :func:`sampled_gaussian_event`.
      sampling: as in :func:`sampled_gaussian_event`.
      records: as in :func:`sampled_gaussian_event`.

    Returns:
      :math:`z`, an upper approximation to a thousandth.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range.

    Example:
      >>> round(sampled_gaussian_multiplier(2.0, delta=1e-5, releases=1000, rate=0.01), 2)
      0.96
    """
    checks.positive("epsilon", epsilon, "A zero budget would need infinite noise.")

    def spent(multiplier: float) -> float:
        return sampled_gaussian_epsilon(multiplier, delta, releases, rate, sampling, records)

    low = high = 1.0
    while spent(high) > epsilon:
        low = high
        high = 2 * high
    while spent(low) <= epsilon:
        low, high = low / 2, low

    def excess(log_multiplier: float) -> float:
        return math.log(spent(math.exp(log_multiplier)) / epsilon)

    bracket = (math.log(low), math.log(high))
    solution = math.exp(scipy.optimize.root_scalar(excess, bracket=bracket, xtol=2e-4).root)
    while spent(solution) > epsilon:
        solution *= 1.0002
    return solution
