r"""Gaussian releases of a random sample of the data: what secret sampling is worth.

A release that meets a record only by chance, and keeps to itself whether it did, tells less about
it: privacy is *amplified by sampling*. Two ways to draw are accounted here, each release anew and
independently of the others:

* ``"poisson"``: every record with the same probability, independently;
* ``"drawn"``: a fixed number of all records, uniformly without replacement.

Numbers come from ``dp_accounting`` (the extra ``accounting``): for ``"poisson"`` by composing
privacy loss distributions, tight up to their grid and never below the truth; for ``"drawn"`` by
Rényi-DP, the only composition it has for it.
"""

import functools
import math
from typing import Any, Literal, TypeAlias

import scipy

from fljax import _check
from fljax._arguments import checked
from fljax.privacy.accounting._inputs import probability
from fljax.privacy.accounting.conversions import zcdp_epsilon
from fljax.privacy.accounting.events import accountants

__all__ = [
    "Sampling",
    "sampled_gaussian_epsilon",
    "sampled_gaussian_event",
    "sampled_gaussian_multiplier",
]

Sampling: TypeAlias = Literal["poisson", "drawn"]

#: Either way of drawing has its theorem for one relation of neighbors only.
_PROVEN = {"poisson": "add-or-remove", "drawn": "replace"}

#: Of Rényi-DP without replacement, where only whole orders have a bound, each a sum over all below.
_ORDERS = (*range(2, 33), 40, 48, 64, 96, 128, 256)


def amplifies(sampling: Sampling | None, neighbors: str) -> bool:
    """Whether what sampling in secret is worth is known between these neighbors."""
    return sampling is not None and _PROVEN[sampling] == neighbors


@checked
def sampled_gaussian_event(
    noise_multiplier: float,
    releases: int,
    rate: float = 1.0,
    sampling: Sampling = "poisson",
    records: int | None = None,
) -> Any:
    r"""So many releases of a sampled Gaussian mechanism, as an event of ``dp_accounting``.

    Args:
      noise_multiplier: the noise's standard deviation over what *adding* a record can move,
        :math:`z>0`, whatever the neighbors.
      releases: >= 1.
      rate: the probability of a record to be in a release, in (0, 1].
      sampling: how it is drawn. ``"poisson"`` has its guarantee for a record added or removed
        (compose by a ``PLDAccountant``), ``"drawn"`` for one replaced (by an ``RdpAccountant``
        under ``REPLACE_ONE``).
      records: of how many ``"drawn"`` draws.

    Returns:
      A ``dp_accounting.SelfComposedDpEvent``.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range; ``"drawn"`` without ``records``.

    Example:
      >>> sampled_gaussian_event(1.1, releases=100, rate=0.1).count
      100
    """
    _check.positive("noise_multiplier", noise_multiplier)
    _check.count("releases", releases)
    _check.interval("rate", rate, above=0, at_most=1, hint="It is a share of the records.")
    _check.choice("sampling", sampling, _PROVEN)
    if records is not None:
        _check.count("records", records)
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
        # Its theorem counts in what *replacing* a record moves, twice of what adding one does.
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
    r"""Epsilon at ``delta`` of so many releases of a sampled Gaussian mechanism.

    Args:
      noise_multiplier: as of :func:`sampled_gaussian_event`, like the other arguments.
      delta: in (0, 1).
      releases: as there.
      rate: as there.
      sampling: as there; neighbors differ in a record added or removed for ``"poisson"``, in one
        replaced for ``"drawn"``.
      records: as there.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP if who is in a sample stays secret.

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
    return _epsilon(
        float(noise_multiplier), float(delta), int(releases), float(rate), sampling, records
    )


@functools.lru_cache(maxsize=1024)  # clients of one run ask alike
def _epsilon(
    noise_multiplier: float,
    delta: float,
    releases: int,
    rate: float,
    sampling: Sampling,
    records: int | None,
) -> float:
    if sampling == "drawn":
        dp = accountants()
        event = sampled_gaussian_event(noise_multiplier, releases, rate, sampling, records)
        accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
        return float(accountant.compose(event).get_epsilon(delta))
    if rate < 1:
        composed = _losses(noise_multiplier, rate).self_compose(releases)
        return float(composed.get_epsilon_for_delta(delta))
    return float(zcdp_epsilon(releases / (2 * noise_multiplier**2), delta, "gaussian"))


@functools.lru_cache(maxsize=64)
def _losses(noise_multiplier: float, rate: float) -> Any:
    """The privacy loss distribution of one release, which takes longer than to compose it."""
    losses = accountants().pld.privacy_loss_distribution
    return losses.from_gaussian_mechanism(noise_multiplier, sampling_prob=rate)


@checked
def sampled_gaussian_multiplier(
    epsilon: float,
    delta: float,
    releases: int,
    rate: float = 1.0,
    sampling: Sampling = "poisson",
    records: int | None = None,
) -> float:
    r"""The smallest noise multiplier whose releases are :math:`(\epsilon,\delta)`-DP together.

    Args:
      epsilon: total, > 0.
      delta: total, in (0, 1).
      releases: as of :func:`sampled_gaussian_event`, like the other arguments.
      rate: as there.
      sampling: as there.
      records: as there.

    Returns:
      :math:`z`, from above to a thousandth.

    Raises:
      ImportError: without ``dp_accounting``.
      ValueError: a number out of its range.

    Example:
      >>> round(sampled_gaussian_multiplier(2.0, delta=1e-5, releases=1000, rate=0.01), 2)
      0.96
    """
    _check.positive("epsilon", epsilon, "A zero budget would need infinite noise.")

    def spent(multiplier: float) -> float:
        return sampled_gaussian_epsilon(multiplier, delta, releases, rate, sampling, records)

    low = high = 1.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while spent(low) <= epsilon:
        low, high = low / 2, low

    def excess(log_multiplier: float) -> float:
        return math.log(spent(math.exp(log_multiplier)) / epsilon)

    bracket = (math.log(low), math.log(high))
    solution = math.exp(scipy.optimize.root_scalar(excess, bracket=bracket, xtol=2e-4).root)
    while spent(solution) > epsilon:
        solution *= 1.0002
    return solution
