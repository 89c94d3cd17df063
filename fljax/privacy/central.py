r"""The Gaussian mechanism of a trusted server: clip updates, sum them, perturb the sum once.

Where a notion of :mod:`fljax.privacy.notions` perturbs every message at its sender, here clients
trust the server: it clips the update of each client, sums, and perturbs the sum, so that the noise
is that of one message and not of all. It protects a *client*, with all of its data, in all
rounds, against anyone who sees every model that the server publishes. Federated averaging becomes
DP-FedAvg; with one full-batch step it becomes DP-FedSGD, and with correlated noise DP-FTRL.
"""

import functools
import math
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax import _check
from fljax._generator import private_normal
from fljax._module import float_dtype, module, replace, static
from fljax._numerics import represented
from fljax.participation import Everyone, Law, Selector
from fljax.privacy import accounting
from fljax.privacy.accounting._inputs import probability
from fljax.privacy.accounting.sampling import amplifies
from fljax.privacy.discrete import PrivateNoise

__all__ = ["AdaptiveClip", "CentralGaussian", "Plan", "State", "banded_root"]

#: Sensitivity of the sum of updates, in multiples of the clip, by relation of neighbors.
_MOVED = {"add-or-remove": 1.0, "replace": 2.0}

#: Share of a budget that is reserved for rounding in single precision.
_SPARED = 1e-4


class Plan(NamedTuple):
    """Quantities of the mechanism that are fixed for a whole run."""

    expected: Array  # []  how many clients take part in a round, on average: the divisor
    update_noise: Array  # []  of the sum, in clips
    share_noise: Array  # []  of the number of updates within the clip, standard deviation


class State(NamedTuple):
    """State of the mechanism between rounds."""

    clip: Array  # []  of this round
    totals: Array  # [bands - 1, D]  sums of the last rounds, newest first, in deviations of noise
    published: Array  # [bands - 1, D]  what was published of them, likewise


class Published(NamedTuple):
    """The release of a round."""

    clean: Array  # [D], or [D + 1] with the share of updates within the clip
    noise: PrivateNoise  # of one row
    sensitivity: Array  # []  how far a neighbor moves it
    total: Array  # [D]  the sum of the round; of several bands in deviations of noise


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

    Reference:
      Andrew et al. 2021, Algorithm 1 and Theorem 1.
    """

    initial: Float[Array, ""] | float = 0.1
    quantile: Float[Array, ""] | float = 0.5
    learning_rate: Float[Array, ""] | float = 0.2
    share_noise: Float[Array, ""] | float = 0.05

    def validate(self) -> None:
        _check.positive("initial", self.initial)
        _check.interval("quantile", self.quantile, above=0, below=1)
        _check.positive("learning_rate", self.learning_rate)
        _check.positive("share_noise", self.share_noise)


@module
class CentralGaussian:
    r"""Client-level differential privacy by a trusted server: DP-FedAvg, DP-FedSGD, DP-FTRL.

    From the clients that take part in a round the server computes and publishes

    .. math::

        w^{(n)}=w^{(n-1)}+\frac1m\Big(\sum_k\Delta_k\min\big(1,C/\|\Delta_k\|\big)
            +zC\,y^{(n)}\Big),\qquad \Delta_k=w_k-w^{(n-1)},

    with a fixed :math:`m`, the number of clients that take part on average. For ``bands=1`` all
    :math:`y^{(n)}` are independent standard normal vectors. For several bands,
    :math:`y^{(n)}=\big(g^{(n)}-\sum_{j=1}^{b-1}c_jy^{(n-j)}\big)/c_0` with normal :math:`g` and
    :math:`c_j\propto\binom{2j}j4^{-j}`, :math:`\|c\|=1`: the banded square root of the matrix of
    prefix sums. The noise of a round then cancels a part of the noise of earlier rounds, so that
    less noise remains in their sum, as in DP-FTRL. It is computed the other way around: with
    :math:`x` the sums in deviations of their noise, the server perturbs
    :math:`\theta^{(n)}=\sum_jc_jx^{(n-j)}` by :math:`g^{(n)}` alone, on the grid of
    :func:`fljax.privacy.discrete.perturbed`, and publishes
    :math:`\big(\theta^{(n)}+g^{(n)}-\sum_{j\ge1}c_j\hat x^{(n-j)}\big)/c_0`, a function of
    perturbed numbers.

    The privacy cost of a client is, each time it takes part, one Gaussian release of multiplier
    :math:`z`: :math:`\rho=1/(2z^2)` (``"add-or-remove"``) or :math:`2/z^2` (``"replace"``). Columns
    of the banded matrix that are ``bands`` rounds apart are orthogonal, so this holds for
    correlated noise too, provided that no client takes part more often than that. Where the server
    draws the participants and keeps them secret, :func:`fljax.privacy.spent` also accounts for the
    amplification by sampling.

    Args:
      noise_multiplier: :math:`z>0`: standard deviation of the noise on the sum, in multiples of
        the clip.
      clip: :math:`C>0`, or :class:`AdaptiveClip`.
      bands: :math:`b\ge1`, the number of rounds over which the noise is correlated.
      neighbors: ``"add-or-remove"``: one client takes part or sends nothing, in every round;
        ``"replace"``: it has other data. The divisor is public and the same for both neighbors.
      arrivals: whether the rounds in which a client has new data of a stream
        (:mod:`fljax.streams`) may be known. If ``"public"``, neighbors have their data in the same
        rounds, and a client pays for the rounds in which it takes part; if ``"secret"``, a neighbor
        may have them in any rounds, and every client pays for every round.

    Guarantees:
      The ledger's zCDP for any one client, whatever its data and the data of all other clients,
      against those who see all published models, and even the identities of the participants. With
      :class:`~fljax.participation.Fraction` (``"add-or-remove"``) or
      :class:`~fljax.participation.Drawn` (``"replace"``) the amplified epsilon against those who
      see neither the participants nor the messages between clients and server.

    Raises:
      ValueError: numbers out of their ranges; a ``share_noise`` of the adaptive clip that leaves
        no part of the noise multiplier for the updates; several bands where clients can take part
        more often than every ``bands`` rounds; secret arrivals where the draw of participants
        depends on them.

    Reference:
      McMahan et al. 2018, Algorithm 1 (a fixed divisor); Andrew et al. 2021; Kairouz et al. 2021
      (DP-FTRL); Choquette-Choo et al. 2023 (banded matrices).

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
    """

    noise_multiplier: Float[Array, ""] | float
    clip: AdaptiveClip | Float[Array, ""] | float = 1.0
    bands: int = static(default=1)
    neighbors: Literal["add-or-remove", "replace"] = static(default="add-or-remove")
    arrivals: Literal["public", "secret"] = static(default="public")

    scope: ClassVar[str] = "server"
    reference: ClassVar[str] = "mcmahan2018"
    ledger: ClassVar[tuple[str, ...]] = ("rho", "releases")
    gaussian_noise: ClassVar[bool] = True

    def validate(self) -> None:
        _check.positive(
            "noise_multiplier", self.noise_multiplier, "Without noise there is no privacy."
        )
        if not isinstance(self.clip, AdaptiveClip):
            _check.positive("clip", self.clip, "It is the largest norm of an update.")
        _check.count("bands", self.bands)
        _check.choice("neighbors", self.neighbors, _MOVED)
        _check.choice("arrivals", self.arrivals, ("public", "secret"))

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
        _check.positive("epsilon", epsilon, "A zero budget would need infinite noise.")
        probability("delta", delta)
        _check.count("rounds", rounds)
        mechanism = cls(1.0, **kwargs)
        if selector is None:
            selector, clients = Everyone(), clients or 1
        _check.kind("selector", selector, Selector)
        if clients is None:
            raise ValueError(
                "the selection probabilities depend on the number of clients; give clients=, that "
                "of the problem."
            )
        _check.count("clients", clients)
        selector.check(clients)
        law = mechanism._law(selector, clients)
        secret = mechanism.arrivals == "secret"  # then every client pays for every round
        solve = functools.partial(
            _least_noise,
            rounds if secret else -(-rounds // law.separation),
            mechanism.neighbors,
            law.sampling if amplifies(law.sampling, mechanism.neighbors) else None,
            clients,
        )
        given = epsilon, delta, law.rate
        if all(_check.is_concrete(value) for value in given):
            return replace(mechanism, noise_multiplier=float(solve(*given)))
        shape = jax.ShapeDtypeStruct((), float_dtype())
        given = map(jnp.asarray, given)
        multiplier = jax.pure_callback(solve, shape, *given, vmap_method="broadcast_all")
        return replace(mechanism, noise_multiplier=multiplier)

    def plan(self, selector: Selector, clients: int) -> Plan:
        """Return what is fixed for a run with this selector of participants.

        Raises:
          ValueError: a selector without a known law, or one that the mechanism does not support.
        """
        law = self._law(selector, clients)
        expected, multiplier = law.rate * clients, self.noise_multiplier
        if not isinstance(self.clip, AdaptiveClip):
            return Plan(jnp.asarray(expected), jnp.asarray(multiplier), jnp.zeros(()))
        share = self.clip.share_noise * expected

        def check(share: Any, expected: Any, multiplier: Any) -> None:
            if 2 * share <= multiplier:
                raise ValueError(
                    f"share_noise={float(share / expected):g} among {float(expected):g} clients "
                    f"leaves no part of the noise multiplier {float(multiplier):g} for the "
                    f"updates; it must exceed {float(multiplier / (2 * expected)):g}. Take more "
                    "clients a round, a larger share_noise or a smaller multiplier."
                )

        _check.known(check, share, expected, multiplier)
        left = multiplier**-2.0 - (2 * share) ** -2.0
        return Plan(jnp.asarray(expected), jnp.asarray(left**-0.5), jnp.asarray(share))

    def _law(self, selector: Selector, clients: int) -> Law:
        """Return the selector's law; ``ValueError`` where it cannot be accounted for."""
        law = selector.law(clients)
        if law is None:
            raise ValueError(
                f"how {type(selector).__name__} chooses is not accounted for under "
                "CentralGaussian; take Everyone, Fraction, Drawn or Cyclic of fljax.participation."
            )
        if self.bands > 1 and law.separation < self.bands:
            raise ValueError(
                f"noise correlated over {self.bands} rounds protects clients that take part at "
                f"most every {self.bands} rounds, and {type(selector).__name__} may choose one "
                f"after {law.separation}; choose by fljax.participation.Cyclic({self.bands})."
            )
        if self.arrivals == "secret" and law.sampling == "drawn":
            raise ValueError(
                f"{type(selector).__name__} draws among those who have new data, so that one "
                "client's arrivals decide who else takes part, and arrivals='secret' does not "
                "cover that; choose by fljax.participation.Fraction, or everyone."
            )
        return law

    def begin(self, dim: int, dtype: Any) -> State:
        """Return the state before the first round."""
        first = self.clip.initial if isinstance(self.clip, AdaptiveClip) else self.clip
        none = jnp.zeros((self.bands - 1, dim), dtype)
        return State(jnp.asarray(first, dtype), none, none)

    def release(
        self,
        plan: Plan,
        state: State,
        key: Array,
        total: Float[Array, " dim"],
        within: Float[Array, ""],
        count: Float[Array, ""],
    ) -> Published:
        """Return what the server releases before noise is added, and the noise.

        Args:
          plan: of the run.
          state: from the previous round.
          key: consumed.
          total: the sum of the clipped updates.
          within: the number of updates that needed no clipping.
          count: the number of updates, except those of zeros.
        """
        dtype = total.dtype
        # A clip below what has all its digits would leave its noise without them.
        clip = represented(state.clip, state.clip >= 0)
        scale = (plan.update_noise * clip).astype(dtype)
        clean = total
        if self.bands > 1:
            column = jnp.asarray(banded_root(self.bands), dtype)
            total = total / scale
            before = jnp.sum(column[1:, None] * state.totals, axis=0)
            clean = scale * (column[0] * total + before)
        if isinstance(self.clip, AdaptiveClip):
            # The share of updates within the clip is one number more, in units of its noise.
            unit = (scale / plan.share_noise).astype(dtype)
            clean = jnp.append(clean, unit * (within - count / 2))
        drawn = private_normal(key, clean.shape, dtype)
        moved = (self.moved * scale / self.noise_multiplier).astype(dtype)
        noise = PrivateNoise(drawn[None], scale[None], releases=self.bands)
        return Published(clean, noise, moved, total)

    @property
    def moved(self) -> float:
        """Sensitivity of the sum of updates, in clips."""
        return _MOVED[self.neighbors]

    def after(
        self, plan: Plan, state: State, release: Published, said: Float[Array, " numbers"]
    ) -> tuple[Float[Array, " dim"], State]:
        """Return the mean update that the server computes from its release, and the next state.

        Args:
          plan: of the run.
          state: from the previous round.
          release: what :meth:`release` returned.
          said: its numbers after noise was added.
        """
        scale, clip = release.noise.scale[0], state.clip
        if isinstance(self.clip, AdaptiveClip):
            said, counted = said[:-1], said[-1] * plan.share_noise / scale
            share = 0.5 + counted / plan.expected
            clip = clip * jnp.exp(-self.clip.learning_rate * (share - self.clip.quantile))
        totals, published = state.totals, state.published
        if self.bands > 1:
            column = jnp.asarray(banded_root(self.bands), said.dtype)
            before = jnp.sum(column[1:, None] * published, axis=0)
            newest = (said / scale - before) / column[0]
            said = scale * newest
            totals = jnp.concatenate([release.total[None], totals])[:-1]
            published = jnp.concatenate([newest[None], published])[:-1]
        mean = (said / plan.expected).astype(said.dtype)
        return mean, State(clip.astype(state.clip.dtype), totals, published)

    def spent(self, took_part: Bool[Array, " clients"], dtype: Any) -> dict[str, Array]:
        """Return what a round adds to the ledger. Every client counts each release, whether or not
        it took part, since under secret sampling each may contain it; with secret arrivals
        every client also pays rho for every round.
        """
        if self.arrivals == "secret":
            took_part = jnp.ones_like(took_part)
        rho = (self.moved / self.noise_multiplier) ** 2 / 2
        return {
            "rho": jnp.where(took_part, rho, 0).astype(dtype),
            "releases": jnp.ones(took_part.shape, dtype),
        }


def _least_noise(
    releases: int,
    neighbors: str,
    sampling: accounting.Sampling | None,
    clients: int,
    epsilon: Any,
    delta: Any,
    rate: Any,
) -> np.ndarray:
    """Return the noise multiplier whose releases spend each budget; NaN for an invalid budget.

    Args:
      releases: the largest number of releases in which a client takes part.
      neighbors: the relation of neighbors.
      sampling: how participants are sampled in secret, where amplification is known for these
        neighbors; otherwise ``None``.
      clients: the number of clients sampled from.
      epsilon: budgets.
      delta: of each budget.
      rate: sampling rate of each budget.
    """
    budgets = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (epsilon, delta, rate)))
    flat = zip(*(budget.ravel().tolist() for budget in budgets), strict=True)
    multipliers = [
        _least_noise_of_one(releases, neighbors, sampling, clients, *one) for one in flat
    ]
    return np.asarray(multipliers, float_dtype()).reshape(budgets[0].shape)


@functools.lru_cache(maxsize=1024)  # all seeds of a grid point ask alike
def _least_noise_of_one(
    releases: int,
    neighbors: str,
    sampling: accounting.Sampling | None,
    clients: int,
    epsilon: float,
    delta: float,
    rate: float,
) -> float:
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        return math.nan  # which is said once the whole grid is looked at
    epsilon *= 1 - _SPARED
    rho = float(accounting.zcdp_rho(epsilon, delta, "gaussian"))
    multiplier = _MOVED[neighbors] * math.sqrt(releases / (2 * rho))
    if sampling is None or rate >= 1:
        return multiplier
    records = clients if sampling == "drawn" else None
    sampled = accounting.sampled_gaussian_multiplier
    return min(multiplier, sampled(epsilon, delta, releases, rate, sampling, records))


def banded_root(bands: int) -> np.ndarray:
    r"""Return the first column of the square root of the matrix of prefix sums, truncated to
    ``bands`` entries and normalized: :math:`c_j\propto\binom{2j}j4^{-j}`.

    Example:
      >>> (banded_root(3) / banded_root(3)[0]).round(3).tolist()
      [1.0, 0.5, 0.375]
    """
    steps = np.arange(1, bands)
    column = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    return column / np.linalg.norm(column)
