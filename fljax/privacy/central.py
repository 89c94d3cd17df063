r"""The Gaussian mechanism of a trusted server: clip updates, sum them, perturb the sum once.

Where a notion of :mod:`fljax.privacy.notions` perturbs every message at its sender, here clients
trust the server: it clips the update of each client, sums, and perturbs the sum, so that the noise
is that of one message and not of all. It protects a *client*, with all of its data, in all
rounds, against anyone who sees every model that the server publishes. Federated averaging becomes
DP-FedAvg; with one full-batch step it becomes DP-FedSGD, and with correlated noise DP-FTRL.
"""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import float_dtype, module, replace, static
from fljax._core.numerics import representable_sensitivity
from fljax._core.prng import private_normal
from fljax.participation.selectors import Everyone, Law, Selector
from fljax.privacy import accounting, correlation
from fljax.privacy.accounting.inputs import probability
from fljax.privacy.correlation import Coding, Turns
from fljax.privacy.discrete import PrivateNoise
from fljax.privacy.matrices import Strategy
from fljax.privacy.mechanism import SAMPLED_RELEASES, Promise, Scope

#: Sensitivity of the sum of updates, in multiples of the clip, by relation of neighbors.
_MOVED = {"add-or-remove": 1.0, "replace": 2.0}

#: Share of a budget that is reserved for rounding in single precision.
_SPARED = 1e-4


class NoisePlan(NamedTuple):
    """Quantities of the mechanism that are fixed for a whole run."""

    expected: Array  # []  how many clients take part in a round, on average: the divisor
    update_noise: Array  # []  of the sum, in clips
    share_noise: Array  # []  of the number of updates within the clip, standard deviation
    turns: Turns  # of the participations of a client


class Correlated(NamedTuple):
    """State of a strategy between rounds."""

    coding: Coding
    participations: Array  # [K]  of each client so far


class CentralGaussianState(NamedTuple):
    """State of the mechanism between rounds."""

    clip: Array  # []  of this round
    round: Array  # []  number of rounds so far
    correlated: Correlated | None  # where noise is correlated over rounds


class Published(NamedTuple):
    """The release of a round."""

    clean: Array  # [D], or [D + 1] with the share of updates within the clip
    noise: PrivateNoise  # of one row
    sensitivity: Array  # []  how far a neighbor moves it
    rounding: Array  # []  how far roundings of encoding may move it
    correlated: Correlated | None


@module
class AdaptiveClip:
    r"""A clip that follows a quantile of the updates' norms, estimated privately.

    .. math::

        C^{(n+1)}=C^{(n)}e^{-\eta(\tilde b^{(n)}-\gamma)},\qquad
        \tilde b^{(n)}=\tfrac12+\tfrac1m\Big(\sum_k\big(b_k-\tfrac12\big)
            +\mathcal N(0,\sigma_b^2)\Big)

    with :math:`b_k=1` where the norm of an update is within the clip; an update of zeros is left
    out of the sum, so that a client without data and an absent one contribute the same. A part of
    the noise multiplier is spent on it: with :math:`z` in total the updates get
    :math:`z_\Delta=\big(z^{-2}-(2\sigma_b)^{-2}\big)^{-1/2}`.

    Args:
      initial: :math:`C^{(1)}` > 0.
      quantile: :math:`\gamma\in(0,1)`; 0.5 is the median.
      learning_rate: :math:`\eta` > 0.
      share_noise: :math:`\sigma_b/m` > 0, the standard deviation of the noise on the share of
        updates within the clip.

    Example:
      Estimating the quantile takes a part of the noise multiplier, and no further budget:

      >>> import jax, fljax as fl
      >>> def release_rho(clip):
      ...     simulation = fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=100, samples=9, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(0.1, clients_per_round=50),
      ...         privacy=fl.privacy.CentralGaussian(2.0, clip=clip),
      ...     )
      ...     return float(fl.run(simulation, rounds=5).release_rho)
      >>> round(release_rho(fl.privacy.AdaptiveClip()), 4), round(release_rho(0.1), 4)
      (0.125, 0.125)

    Reference:
      Andrew et al. 2021, Algorithm 1 and Theorem 1.
    """

    initial: Float[Array, ""] | float = 0.1
    quantile: Float[Array, ""] | float = 0.5
    learning_rate: Float[Array, ""] | float = 0.2
    share_noise: Float[Array, ""] | float = 0.05

    def validate(self) -> None:
        checks.positive("initial", self.initial)
        checks.interval("quantile", self.quantile, above=0, below=1)
        checks.positive("learning_rate", self.learning_rate)
        checks.positive("share_noise", self.share_noise)


@module
class CentralGaussian:
    r"""Client-level differential privacy by a trusted server: DP-FedAvg, DP-FedSGD, DP-FTRL.

    From the clients that take part in a round the server computes and publishes

    .. math::

        w^{(n)}=w^{(n-1)}+\frac1m\Big(\sum_k\Delta_k\min\big(1,C/\|\Delta_k\|\big)
            +zC\,y^{(n)}\Big),\qquad \Delta_k=w_k-w^{(n-1)},

    with a fixed :math:`m`, the number of clients that take part on average. Without a strategy all
    :math:`y^{(n)}` are independent standard normal vectors. With one,
    :math:`y=C^{-1}g` of independent normal vectors :math:`g` and the lower-triangular matrix
    :math:`C` of rounds: the noise of a round cancels a part of the noise of earlier rounds, so
    that less noise remains in their sum, as in DP-FTRL. It is computed the other way around: with
    :math:`x` the sums in deviations of their noise, the server perturbs :math:`\theta=Cx` by
    :math:`g` alone, on the grid of :func:`fljax.privacy.discrete.perturbed`, and publishes
    :math:`C^{-1}(\theta+g)`, a function of perturbed numbers.

    The privacy cost of a client is, each time it takes part, one Gaussian release of multiplier
    :math:`z`: :math:`\rho=1/(2z^2)` (``"add-or-remove"``) or :math:`2/z^2` (``"replace"``). Under a
    strategy its :math:`k`-th participation costs this times its addition to the squared
    sensitivity of :math:`C`
    (:meth:`~fljax.privacy.matrices.Strategy.participation_costs`), for the smallest number of
    rounds between two participations that the selector allows. Where the server draws the
    participants and keeps them secret, :func:`fljax.privacy.spent` also accounts for the
    amplification by sampling; under a strategy, where it has at most as many bands as there are
    rounds between the draws of one client (:class:`~fljax.participation.Cyclic` with a fraction).

    Args:
      noise_multiplier: :math:`z>0`: standard deviation of the noise on the sum, in multiples of
        the clip.
      clip: :math:`C>0`, or :class:`AdaptiveClip`.
      strategy: :math:`C`, of :mod:`fljax.privacy.matrices`; independent noise by default.
        ``square_root(b)`` needs no optimization.
      neighbors: ``"add-or-remove"``: one client takes part or sends nothing, in every round;
        ``"replace"``: it has other data. The divisor is public and the same for both neighbors.
      arrivals: whether the rounds in which a client has new data of a stream
        (:mod:`fljax.streams`) may be known. If ``"public"``, neighbors have their data in the same
        rounds, and a client pays for the rounds in which it takes part; if ``"secret"``, a neighbor
        may have them in any rounds, and every client pays for every round.

    Guarantees:
      The ledger's zCDP for any one client, for any data of its own and of all other clients,
      against observers who see all published models, and even the identities of the participants.
      With :class:`~fljax.participation.Fraction` (``"add-or-remove"``) or
      :class:`~fljax.participation.Drawn` (``"replace"``) the amplified epsilon against observers
      who see neither the participants nor the messages between clients and server.

    Raises:
      ValueError: numbers out of their ranges; a ``share_noise`` of the adaptive clip that leaves
        no part of the noise multiplier for the updates; more rounds than a strategy is made for;
        secret arrivals where the draw of participants depends on them.

    Reference:
      McMahan et al. 2018, Algorithm 1 (a fixed divisor); Andrew et al. 2021; Kairouz et al. 2021
      (DP-FTRL); Denisov et al. 2022 and Choquette-Choo et al. 2023 (matrices, several
      participations, amplification).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=100, samples=10, dim=3),
      ...     algorithm=fl.algorithms.FedAvg(
      ...         0.1, epochs=5, selector=fl.participation.Fraction(0.1)
      ...     ),
      ...     privacy=fl.privacy.CentralGaussian(noise_multiplier=1.0, clip=0.5),
      ... )
      >>> results = fl.run(simulation, rounds=100, record_every=50)
      >>> fl.privacy.spent(results, delta=1e-5).epsilon.values.round(1).tolist()
      [5.1, 7.0]

      Noise that is correlated over rounds, for clients that take turns:

      >>> strategy = fl.privacy.matrices.optimize_banded_toeplitz(100, bands=10, separation=10)
      >>> results = fl.run(
      ...     fl.Simulation(
      ...         problem=simulation.problem,
      ...         algorithm=fl.algorithms.FedAvg(0.1, selector=fl.participation.Cyclic(10)),
      ...         privacy=fl.privacy.CentralGaussian(5.0, clip=0.5, strategy=strategy),
      ...     ),
      ...     rounds=100,
      ... )
      >>> round(float(fl.privacy.spent(results, delta=1e-5).epsilon[-1]), 1)
      2.6
    """

    noise_multiplier: Float[Array, ""] | float
    clip: AdaptiveClip | Float[Array, ""] | float = 1.0
    strategy: Strategy | None = None
    neighbors: Literal["add-or-remove", "replace"] = static(default="add-or-remove")
    arrivals: Literal["public", "secret"] = static(default="public")

    scope: ClassVar[Scope] = "server"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "delays": "late messages, since a sum may hold two of one client",
            "aggregation": "an aggregator, since one client's influence is not bounded",
            "attack": "an attack, since attackers see honest clients' messages",
            "masks": "masked messages, which it would have to clip one by one",
        }
    )
    reference: ClassVar[str] = "mcmahan2018"
    ledger: ClassVar[tuple[str, ...]] = ("rho", "releases")
    gaussian_noise: ClassVar[bool] = True
    promise: ClassVar[Promise] = Promise(
        "rho-zCDP of a client, amplified under secret sampling",
        "Bun & Steinke 2016; Denisov et al. 2022 and Choquette-Choo et al. 2023 (strategies); "
        "Mironov et al. 2019 (sampling)",
        ("clipped sum", "participations", "encoding", *SAMPLED_RELEASES),
    )

    def validate(self) -> None:
        checks.positive(
            "noise_multiplier", self.noise_multiplier, "Without noise there is no privacy."
        )
        if not isinstance(self.clip, AdaptiveClip):
            checks.positive("clip", self.clip, "It is the largest norm of an update.")
        if self.strategy is not None:
            checks.kind("strategy", self.strategy, Strategy)
        checks.choice("neighbors", self.neighbors, _MOVED)
        checks.choice("arrivals", self.arrivals, ("public", "secret"))

    @classmethod
    def for_budget(
        cls,
        epsilon: Array | float,
        delta: Array | float,
        rounds: int,
        selector: Selector | None = None,
        clients: int | None = None,
        **kwargs: Any,
    ) -> "CentralGaussian":
        r"""Return the mechanism of least noise for which a run is :math:`(\epsilon,\delta)`-DP.

        The accounting is that of :func:`fljax.privacy.spent`, which returns at most ``epsilon``
        after ``rounds`` rounds: exactly that, to a thousandth, where everyone takes part, clients
        take turns, or secret sampling amplifies; less for clients that took part less often. A
        longer run spends more.

        Args:
          epsilon: total, > 0. On the axis of a sweep the noise is solved for on the host, once per
            run.
          delta: total, in (0, 1).
          rounds: of the run.
          selector: of the algorithm; everyone by default.
          clients: ``K``, required if a selector is given.
          kwargs: the other fields.

        Raises:
          ValueError: numbers out of their ranges, a selector without ``clients``, and the errors
            of the class.
          ImportError: amplification by sampling without ``dp_accounting``.

        Example:
          >>> import jax, fljax as fl
          >>> def scenario(key, epsilon):
          ...     return fl.Simulation(
          ...         problem=fl.problems.ridge(key, clients=100, samples=10, dim=3),
          ...         algorithm=fl.algorithms.FedAvg(0.1, weighting="equal"),
          ...         privacy=fl.privacy.CentralGaussian.for_budget(epsilon, 1e-5, rounds=20),
          ...     )
          >>> study = fl.sweep(scenario, rounds=20, seeds=2, grid={"epsilon": [1, 2, 4]})
          >>> study.attrs["compilations"]
          1
          >>> last = fl.privacy.spent(study, delta=1e-5).epsilon.isel(round=-1, seed=0)
          >>> last.values.round(3).tolist()
          [1.0, 2.0, 4.0]
        """
        checks.positive("epsilon", epsilon, "A zero budget would need infinite noise.")
        probability("delta", delta)
        checks.count("rounds", rounds)
        mechanism = cls(1.0, **kwargs)
        if selector is None:
            selector = Everyone()
            clients = clients or 1
        checks.kind("selector", selector, Selector)
        if clients is None:
            raise ValueError(
                "the selection probabilities depend on the number of clients; give clients=, that "
                "of the problem."
            )
        checks.count("clients", clients)
        selector.check(clients)
        scheme = mechanism._scheme(selector, clients)
        costs = correlation.participation_costs(mechanism.strategy, scheme, rounds)
        secret = mechanism.arrivals == "secret"  # then every client pays for every round
        if mechanism.strategy is None and secret:
            costs = np.ones(rounds)
        solve = functools.partial(
            _least_noise,
            mechanism.neighbors,
            scheme.sampling if mechanism.is_amplified(scheme) else None,
            clients,
            len(costs),
        )
        budget = epsilon, delta, scheme.rate_of_turn, costs.sum(), costs[0]
        if all(checks.is_concrete(value) for value in budget):
            return replace(mechanism, noise_multiplier=float(solve(*budget)))
        shape = jax.ShapeDtypeStruct((), float_dtype())
        budget = map(jnp.asarray, budget)
        multiplier = jax.pure_callback(solve, shape, *budget, vmap_method="broadcast_all")
        return replace(mechanism, noise_multiplier=multiplier)

    def plan(self, selector: Selector, clients: int, rounds: int) -> NoisePlan:
        """Return the constants of a run of this number of rounds with this selector.

        Raises:
          ValueError: a selector without a known law, or one that the mechanism does not support.
        """
        scheme = self._scheme(selector, clients)
        expected = scheme.rate * clients
        multiplier = self.noise_multiplier
        costs = correlation.turns(self.strategy, scheme, rounds)
        if not isinstance(self.clip, AdaptiveClip):
            return NoisePlan(jnp.asarray(expected), jnp.asarray(multiplier), jnp.zeros(()), costs)
        share = self.clip.share_noise * expected

        def check(share: Array, expected: Array | float, multiplier: Array | float) -> None:
            if 2 * share <= multiplier:
                raise ValueError(
                    f"share_noise={float(share / expected):g} among {float(expected):g} clients "
                    f"leaves no part of the noise multiplier {float(multiplier):g} for the "
                    f"updates; it must exceed {float(multiplier / (2 * expected)):g}. Take more "
                    "clients a round, a larger share_noise or a smaller multiplier."
                )

        checks.check_when_concrete(check, share, expected, multiplier)
        left = multiplier**-2.0 - (2 * share) ** -2.0
        return NoisePlan(jnp.asarray(expected), jnp.asarray(left**-0.5), jnp.asarray(share), costs)

    def is_amplified(self, law: Law) -> bool:
        """Whether secret sampling by this law amplifies the guarantee."""
        return correlation.amplified(self.strategy, law, self.neighbors)

    def sampled(self, plan: NoisePlan, law: Law, clients: int) -> dict[str, Array]:
        """Return what :func:`fljax.privacy.spent` needs for amplification by sampling."""
        costs = plan.turns.costs
        return correlation.sampled(
            self.strategy, self.noise_multiplier, costs, law, self.neighbors, clients
        )

    def _scheme(self, selector: Selector, clients: int) -> Law:
        """Return the selector's law; ``ValueError`` where it cannot be accounted for."""
        scheme = selector.law(clients)
        if scheme is None:
            raise ValueError(
                f"how {type(selector).__name__} chooses is not accounted for under "
                "CentralGaussian; take Everyone, Fraction, Drawn or Cyclic of fljax.participation."
            )
        if self.arrivals == "secret" and scheme.sampling == "drawn":
            raise ValueError(
                f"{type(selector).__name__} draws among those who have new data, so that one "
                "client's arrivals decide who else takes part, and arrivals='secret' does not "
                "cover that; choose by fljax.participation.Fraction, or everyone."
            )
        return scheme

    def begin(self, dim: int, dtype: DTypeLike, clients: int) -> CentralGaussianState:
        """Return the state before the first round."""
        adaptive = isinstance(self.clip, AdaptiveClip)
        first = self.clip.initial if isinstance(self.clip, AdaptiveClip) else self.clip
        correlated = None
        if self.strategy is not None:
            correlated = Correlated(
                correlation.begin(self.strategy, dim + adaptive, dtype),
                jnp.zeros(clients, jnp.int32),
            )
        return CentralGaussianState(jnp.asarray(first, dtype), jnp.zeros((), jnp.int32), correlated)

    def release(
        self,
        plan: NoisePlan,
        state: CentralGaussianState,
        key: Array,
        total: Float[Array, " dim"],
        within: Float[Array, ""],
        count: Float[Array, ""],
    ) -> Published:
        """Return the sum that the server releases before noise is added, and the noise.

        Args:
          plan: of the run.
          state: from the previous round.
          key: consumed.
          total: the sum of the clipped updates.
          within: the number of updates that needed no clipping.
          count: the number of updates, except zeros.
        """
        dtype = total.dtype
        # A clip among subnormal numbers would leave its noise without digits.
        clip = representable_sensitivity(state.clip, state.clip >= 0)
        scale = (plan.update_noise * clip).astype(dtype)
        clean = total
        rounding = jnp.zeros((), dtype)
        correlated = state.correlated
        if isinstance(self.clip, AdaptiveClip):
            # The share of updates within the clip is one number more, in units of its noise.
            unit = (scale / plan.share_noise).astype(dtype)
            clean = jnp.append(clean, unit * (within - count / 2))
        moved = self.moved * scale / self.noise_multiplier
        if self.strategy is not None and correlated is not None:
            coding, encoded, rounding = correlation.encoded(
                self.strategy, plan.turns, correlated.coding, clean / scale
            )
            correlated = correlated._replace(coding=coding)
            clean = scale * encoded
            rounding = scale * rounding
            moved = moved * jnp.sqrt(plan.turns.costs[0])
        drawn = private_normal(key, clean.shape, dtype)
        noise = PrivateNoise(drawn[None], scale[None], releases=plan.turns.affected)
        return Published(clean, noise, moved.astype(dtype), rounding, correlated)

    @property
    def moved(self) -> float:
        """Sensitivity of the sum of updates, in clips."""
        return _MOVED[self.neighbors]

    def after(
        self,
        plan: NoisePlan,
        state: CentralGaussianState,
        release: Published,
        perturbed: Float[Array, " numbers"],
        took_part: Bool[Array, " clients"],
    ) -> tuple[Float[Array, " dim"], CentralGaussianState]:
        """Return the mean update that the server computes from its release, and the next state.

        Args:
          plan: of the run.
          state: from the previous round.
          release: the result of :meth:`release`.
          perturbed: its numbers after noise was added.
          took_part: whose updates are in it.
        """
        scale = release.noise.scale[0]
        clip = state.clip
        correlated = release.correlated
        numbers = perturbed
        if self.strategy is not None and correlated is not None:
            coding, row = correlation.decoded(self.strategy, correlated.coding, numbers / scale)
            times = correlated.participations + self._charged(took_part).astype(jnp.int32)
            correlated = Correlated(coding, times)
            numbers = scale * row
        if isinstance(self.clip, AdaptiveClip):
            numbers, counted = numbers[:-1], numbers[-1] * plan.share_noise / scale
            share = 0.5 + counted / plan.expected
            clip = clip * jnp.exp(-self.clip.learning_rate * (share - self.clip.quantile))
        mean = (numbers / plan.expected).astype(perturbed.dtype)
        return mean, CentralGaussianState(
            clip.astype(state.clip.dtype), state.round + 1, correlated
        )

    def _charged(self, took_part: Bool[Array, " clients"]) -> Bool[Array, " clients"]:
        """With secret arrivals every client pays for every round, until it has paid for as many as
        it can take part in.
        """
        return jnp.ones_like(took_part) if self.arrivals == "secret" else took_part

    @property
    def _rho(self) -> Array | float:
        """Return rho of one release of independent noise."""
        return (self.moved / self.noise_multiplier) ** 2 / 2

    def release_rho(self, plan: NoisePlan) -> Array:
        """The zCDP parameter of a single release, at most."""
        return jnp.asarray(self._rho * plan.turns.largest)

    def spent(
        self,
        plan: NoisePlan,
        state: CentralGaussianState,
        took_part: Bool[Array, " clients"],
        dtype: DTypeLike,
    ) -> dict[str, Array]:
        """Return the ledger's additions in a round. Under secret sampling every client counts each
        release that may contain it, whether or not it took part.

        Args:
          plan: of the run.
          state: from the previous round.
          took_part: whose updates are in the release.
          dtype: of the ledger.
        """
        rho = self._rho
        if state.correlated is not None:
            cost = plan.turns.costs.at[state.correlated.participations]
            rho = rho * cost.get(mode="fill", fill_value=0)
        # A client can take part once in ``separation`` rounds, which count as one release.
        counted = state.round % plan.turns.separation == 0
        return {
            "rho": jnp.where(self._charged(took_part), rho, 0).astype(dtype),
            "releases": jnp.broadcast_to(counted, took_part.shape).astype(dtype),
        }


def _least_noise(
    neighbors: str,
    sampling: accounting.Sampling | None,
    clients: int,
    releases: int,
    *numbers: object,
) -> np.ndarray:
    """Return the noise multiplier whose releases spend each budget; NaN for an invalid budget.

    Args:
      neighbors: the relation of neighbors.
      sampling: how participants are sampled in secret, where amplification is known for these
        neighbors; otherwise ``None``.
      clients: the number of clients sampled from.
      releases: the largest number of releases in which a client takes part.
      numbers: epsilon, delta, the sampling rate, and the squared sensitivities of all releases of a
        client together and of a single one, of each budget.
    """
    budgets = np.broadcast_arrays(*(np.asarray(value, np.float64) for value in numbers))
    flat = zip(*(budget.ravel().tolist() for budget in budgets), strict=True)
    multipliers = [
        _least_noise_of_one(neighbors, sampling, clients, releases, *budget_of_one)
        for budget_of_one in flat
    ]
    return np.asarray(multipliers, float_dtype()).reshape(budgets[0].shape)


@functools.lru_cache(maxsize=1024)  # all seeds of a grid point have the same arguments
def _least_noise_of_one(
    neighbors: str,
    sampling: accounting.Sampling | None,
    clients: int,
    releases: int,
    epsilon: float,
    delta: float,
    rate: float,
    squared: float,
    largest: float,
) -> float:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        return math.nan  # an error is raised after all budgets of the grid
    epsilon *= 1 - _SPARED
    rho = float(accounting.zcdp_rho(epsilon, delta, "gaussian"))
    multiplier = _MOVED[neighbors] * math.sqrt(squared / (2 * rho))
    if sampling is None or rate >= 1:
        return multiplier
    records = clients if sampling == "drawn" else None
    sampled = accounting.sampled_gaussian_multiplier
    amplified = sampled(epsilon, delta, releases, rate, sampling, records)
    return min(multiplier, math.sqrt(largest) * amplified)
