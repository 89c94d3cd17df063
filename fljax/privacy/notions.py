r"""Privacy notions: the meaning of a budget, its allocation to rounds, and the noise it implies.

A notion turns an algorithm's sensitivity :math:`\Delta_k(n)` (computed from the gradient bound
:math:`c_1`) into the noise of each round and records the privacy cost of each client in a
ledger. Neighboring data sets differ in the data of one client, so a client's budget is spent by
its own messages alone and the network's guarantee is the worst client's (Gauthier 2024,
Corollary). The notion's ``neighbors`` states how they differ:

* ``"replace"``, the relation of the source: one sample is replaced by another;
* ``"add-or-remove"``: one sample is present in only one of them, and leaves its place in the mean
  empty: it has no gradient at any model, as if its features were zero, and the other samples keep
  their weights (the zero-out relation, ``REPLACE_SPECIAL`` of ``dp_accounting``);
* ``"client"``: any or all samples of the client may differ, so that all of its data are protected.

Under each of them the numbers of the clients' samples and the weights of these samples are public,
since steps, divisors and noise depend on them; so are the network, the clusters and the identities
of the clients.

Clients may be absent in some rounds (``participation=``, or a selection by the server). Which
clients send in which round is public and does not depend on anybody's data: it is given by a trace
or drawn at random. *Given the participants*, the network observes of client :math:`k` its messages
of the rounds :math:`\mathcal T_k` in which it sends. Each of them is a release of the stated
sensitivity given all earlier messages, whichever rounds the client missed: the stored state
of an absent client is a function of earlier messages or, where a minimization starts from the
previous minimizer, the minimizers for two neighboring data sets keep the distance of exact ones
however long the client is absent. So the messages compose to
:math:`\sum_{n\in\mathcal T_k}\phi^{(n)}`, which is at most the total and is the number in the
ledger. Before the participants are known, the guarantee is the total, for the messages and the
identities of their senders jointly (Bun & Steinke 2016, Lemmas 2.2 and 2.3). The noise of a round
depends on its number: the cost of missed rounds stays unspent. Algorithms without a rule
for absent clients refuse them, with or without privacy.

The total covers all messages of a run, for every pair of neighboring data sets within the
problem's clip or declared domain. Where neither bounds the gradients, the results are marked
``nominal``. It does not cover metrics and exact models, which are computed from private data
(``exact_model``); two runs of one seed at two budgets or of two lengths, whose noise is the same
(``fl.sweep(independent_noise=True)``); or the choice of settings by their results.

It holds for all data sets, and for their images under a feature map. Samples that the map makes
infinite or NaN are treated as zero wherever a clip, a bound or a budget promises to hold for any
data, and they are counted (``unusable_samples``).

It holds for floating-point results, by three steps. *Inside of a message:* how far apart rounding
may move the messages of neighbors is part of their sensitivity, where a bound follows from the
shapes alone (sums of clipped gradients of linear predictions, ``Problem.gradient_rounding``;
clipped updates and their sum at a trusted server, :func:`fljax.link.sender_groups.sum_rounding`).
What depends on how long vectors are is measured in every round, relative to the sensitivity
(``rounding``): the operations of a step on vectors as long as the message, and, of several local
steps or iterations, each of them (:func:`fljax.algorithms.local_steps.descend_from`). Above
:data:`~fljax.privacy.promises.SWALLOWED` a run is nominal. No theorem bounds the roundings within
the gradient of one sample of a network; the worst that a search found is 3e-7 of the clip.
*Leaving:* message and noise are rounded to one grid, and only integers are added
(:func:`fljax.privacy.discrete.perturbed`); the noise grows by the contribution of rounding to the
grid to the sensitivity (:func:`fljax.privacy.discrete.widened`). *Noise:* a sensitivity too small
to be represented is replaced by a larger one (8e-25 in single precision), by which noise does not
vanish.

The rounds in which data of a stream arrive are public, except under
``CentralGaussian(arrivals="secret")``. Results state all of these assumptions
(:func:`~fljax.privacy.assumptions`).

This is a simulator, not a deployment: its random numbers are not cryptographically secure, and
whoever knows the key of a run knows its noise. With every generator the noise is drawn by the
library's own, under keys that no other generator derives (:func:`fljax._core.prng.library_key`). A
normal number is computed from 63 random bits in single precision and from 128 in double precision,
and rounded to a multiple of :math:`2^{-17}` or finer; it ends at 7.54 (9.49) standard deviations,
so that no epsilon holds below some delta (:func:`fljax.privacy.discrete.least_delta`).
:class:`DiscreteZCDP` and :class:`PureDP` draw integers whose probabilities are accurate far beyond
what any run could reveal.
"""

import functools
import math
from collections.abc import Callable
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.prng import private_normal
from fljax.privacy import accounting
from fljax.privacy.discrete import MOST_STEPS, discrete_gaussian, discrete_laplace
from fljax.privacy.mechanism import Mechanism, Promise, Scope
from fljax.problems import Problem

__all__ = [
    "NEIGHBORS",
    "ZCDP",
    "ApproximateDP",
    "DiscreteZCDP",
    "Gap",
    "Neighbors",
    "Notion",
    "PureDP",
    "Release",
]

#: How two neighboring data sets differ, see the docstring of this module.
Neighbors: TypeAlias = Literal["replace", "add-or-remove", "client"]

#: The relations of neighbors: one sample replaced, one added or removed, one client's data.
NEIGHBORS: tuple[Neighbors, ...] = get_args(Neighbors)

#: ``round -> [K]``: the l2 sensitivity of each client's message of that round.
Sensitivity = Callable[[Array], Float[Array, " clients"]]


class Release(NamedTuple):
    """How one round's messages are perturbed."""

    scale: Array  # [K] standard deviation (Gaussian) or scale (Laplace) of every coordinate
    spent: dict[str, Array]  # [K] each: the release's additions to the ledger
    variance: float = 1.0  # of a drawn number before it is scaled
    grid: Array | None = None  # [K] steps that messages are rounded to; draws are multiples of them


@runtime_checkable
class Notion(Mechanism, Protocol):
    """A privacy budget with its mechanism and schedule, for noise on messages.

    ``plan`` computes the constants of a whole run, ``release`` returns how the messages of one
    round are perturbed, and ``draw`` draws the noise ``[M, D]`` for the clients that send, before
    it is scaled. A user's own class may replace any of these methods.

    Attributes:
      scope: ``"message"``.
      ledger: names of the accounted quantities, each one number per client.
      neighbors: the relation of neighboring data sets for which the guarantee holds.
      gradient_bound: the bound on per-sample gradients that the guarantee assumes.
      gaussian_noise: optional class attribute: ``True`` where all noise is continuous Gaussian
        noise, whose zCDP parameter implies a smaller epsilon than that of other noise
        (:func:`is_gaussian`).
      variance_decay: optional: the factor by which the variance of noise falls from each round to
        the next while the sensitivity is constant. Runs warn where the noise of their first round
        is more than a thousand times that of the last.

    Example:
      Replay the noise of another implementation, to compare the two number by number:

      >>> import jax, numpy as np, fljax as fl
      >>> @fl.module
      ... class Replayed(fl.privacy.ZCDP):
      ...     noise: jax.Array | None = None  # [T, K, D], standard normal
      ...
      ...     def draw(self, key, shape, dtype, round, clients):
      ...         return self.noise[round - 1, clients]
      >>> noise = np.random.default_rng(0).normal(size=(3, 2, 1))
      >>> loss = fl.problems.LeastAbsoluteDeviation()
      >>> targets = np.array([[1.0], [-2.0]])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Problem(np.ones((2, 1, 1)), targets, loss).clipped(1),
      ...     algorithm=fl.algorithms.ConventionalFL(0.1),
      ...     privacy=Replayed(total_rho=6.0, noise=jax.numpy.asarray(noise)),
      ... )
      >>> ours, theirs = fl.run(simulation, rounds=3).model[0], 0.0
      >>> for draws in noise:  # of deviation sensitivity / sqrt(2 rho), 0.1 * 2 / sqrt(4)
      ...     theirs = np.mean(theirs - 0.1 * np.sign(theirs - targets) + 0.1 * draws)
      >>> np.allclose(ours, theirs)
      True
    """

    scope: ClassVar[Scope] = "message"

    @property
    def neighbors(self) -> Neighbors: ...
    @property
    def gradient_bound(self) -> Array | float: ...
    def plan(self, sensitivity: Sensitivity, rounds: int) -> Any: ...
    def release(
        self, plan: PyTree, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release: ...
    def draw(
        self,
        key: Array,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        round: Array,
        clients: Int[Array, " senders"],
    ) -> Array: ...


#: What decides the law of a budget's noise.
_OF_THE_LAW = ("draw", "release", "scale")


def is_gaussian(kind: type) -> bool:
    """Whether the noise of a budget of this class is continuous Gaussian noise in every round.

    A class declares this by ``gaussian_noise = True``. A subclass that changes how noise is drawn,
    or its scale, must declare it again, since the inherited declaration was for other noise.

    Args:
      kind: a notion, or a mechanism at the server or on gradients.

    Example:
      >>> import fljax as fl
      >>> [is_gaussian(kind) for kind in (fl.privacy.ZCDP, fl.privacy.DiscreteZCDP)]
      [True, False]
    """
    for base in kind.__mro__:
        if "gaussian_noise" in vars(base):
            return bool(vars(base)["gaussian_noise"])
        if any(name in vars(base) for name in _OF_THE_LAW):
            return False
    return False


class Gap(NamedTuple):
    r"""Sensitivity of a client's mean loss gradient to neighboring data, in Euclidean norm.

    With per-sample gradients of norm at most :math:`c_1` and weights :math:`\omega_j`
    (:math:`1/D_k`), the largest being :math:`\omega`:

    * at the same model :math:`2c_1\omega` (``"replace"``), :math:`c_1\omega`
      (``"add-or-remove"``) or :math:`2c_1\sum_j\omega_j` (``"client"``);
    * at any two models, also different ones, :math:`2c_1\sum_j\omega_j`: the norm of neither
      gradient exceeds half of it.

    Both include how far rounding may move computed gradients apart
    (``Problem.gradient_rounding``), 1e-5 in single precision for 50 samples. Algorithms state their
    sensitivity in these terms, so that it holds for every relation.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=[5, 10], dim=3)
      >>> for neighbors in fl.privacy.NEIGHBORS:
      ...     privacy = fl.privacy.ZCDP(1.0, gradient_bound=0.5, neighbors=neighbors)
      ...     gap = fl.privacy.Gap.of(privacy, problem)
      ...     print(neighbors, [round(float(g), 2) for g in gap.gradient])
      replace [0.2, 0.1]
      add-or-remove [0.1, 0.05]
      client [1.0, 1.0]
    """

    gradient: Float[Array, " clients"]  # at one and the same model
    anywhere: Float[Array, " clients"]  # at any two

    @classmethod
    def of(
        cls, notion: Notion, problem: Problem, bound: Float[Array, ""] | float | None = None
    ) -> "Gap":
        """Return the sensitivities for data sets that are neighbors in this notion.

        Args:
          notion: its ``neighbors`` and ``gradient_bound`` are used.
          problem: the problem of the clients; only the weights of its samples are used.
          bound: on per-sample gradients; ``gradient_bound`` by default.
        """
        bound = notion.gradient_bound if bound is None else bound
        rounding = problem.gradient_rounding()
        single = bound * problem.influence
        # In two sums of different samples every summand's roundings count.
        longest = 2 * bound * problem.total_weights * (1 + rounding)
        gradient = {
            "replace": (2 + rounding) * single,
            "add-or-remove": (1 + rounding) * single,
            "client": longest,
        }
        return cls(gradient[notion.neighbors], longest)


_BOUND_HINT = (
    "It is the bound on every per-sample gradient that the guarantee assumes: problem.clipped(c) "
    "makes one hold, and problem.promised_bound() tells the one that holds."
)


def _grid(sensitivity: Array, steps: Array) -> Array:
    """Grid step such that ``steps`` steps equal the sensitivity before rounding. Where rounding
    leaves no room, messages are NaN: nothing else would be private. :func:`_check_steps` raises
    for this in advance where all values are known.
    """
    return jnp.where(steps > 0, sensitivity / jnp.where(steps > 0, steps, 1), jnp.nan)


def _check_steps(
    steps: int, fewest: float, dim: int, rounds: int, least: float, budget: str, more: str
) -> None:
    """Raise ``ValueError`` where rounding alone would spend the budget of some round."""
    if steps <= fewest:
        raise ValueError(
            f"steps must be > {fewest:.4g}, got {steps}: rounding {dim} numbers to so "
            f"coarse a grid would spend more than the {least:.3g} that the first of {rounds} "
            f"rounds has. Take {more}, a larger {budget} or fewer rounds."
        )


def _standard_normal(
    self: object,
    key: Array,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    round: Array,
    clients: Int[Array, " senders"],
) -> Array:
    """Standard normal noise of the Gaussian notions, for any senders in any round."""
    return private_normal(key, shape, dtype)


@module
class ZCDP:
    r"""Dynamic zero-concentrated differential privacy with Gaussian noise.

    The parameter of round :math:`n` of :math:`T` is
    :math:`\phi^{(n)}=\phi^{(1)}\zeta^{-(n-1)}`, and :math:`\sum_n\phi^{(n)}` the total. Two
    readings of the source's "variance decrease rate" :math:`\zeta` are available:

    * ``schedule="privacy"``, which the proof of the corollary uses (Gauthier et al. 2023
      (zCDP-NFL), appendix C): :math:`\sigma^2(n)=\Delta^2(n)/(2\phi^{(n)})`;
    * ``schedule="variance"`` (Gauthier 2024, sections 3.3.1 and 5.2):
      :math:`\sigma^2(n)=\zeta\sigma^2(n-1)`, with :math:`\sigma^2(1)` such that the exact sum of
      :math:`\Delta^2(n)/(2\sigma^2(n))` is the total.

    They agree when the sensitivity is constant. Both spend ``total_rho`` exactly.

    The default, :math:`\zeta=1`, is the same noise in every round, for runs of any length. Noise
    that falls lets errors become smaller, but a factor that suits one length does not suit another:
    over :math:`T` rounds its standard deviation falls by :math:`\zeta^{(T-1)/2}`, with 0.96 to a
    sixtieth over 200 rounds, and by 18 decades over 2000. For a fall to a tenth, say, take
    :math:`\zeta=0.01^{1/(T-1)}`. A run warns of more than three decades.

    Args:
      total_rho: the zCDP budget of the whole run, > 0.
      decay: :math:`\zeta\in(0,1]`; smaller values protect the early rounds more. By default the
        noise is constant.
      gradient_bound: :math:`c_1>0`, the bound on per-sample gradients of Assumption 1.
      schedule: the reading of the decay.
      neighbors: the relation of a client's neighboring data sets for which the guarantee holds,
        see :mod:`fljax.privacy.notions`.

    Guarantees:
      ``total_rho``-zCDP between neighboring data sets of any one client, against anyone who
      sees all messages, *if* per-sample gradients are bounded by ``gradient_bound`` for every
      data set (Lemma I, Theorem I; adaptive composition: Bun & Steinke 2016, Lemma 2.3).

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem=problem.clipped(1.0),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     network=fl.graphs.ring(6),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> run.client_rho.values.round(3).tolist()
      [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]

    Reference:
      Gauthier 2024, Theorem I (3.13) and its Corollary (section 3.3.1).
    """

    total_rho: Float[Array, ""] | float
    decay: Float[Array, ""] | float = 1.0
    gradient_bound: Float[Array, ""] | float = 1.0
    schedule: Literal["privacy", "variance"] = static(default="privacy")
    neighbors: Neighbors = static(default="replace")

    scope: ClassVar[Scope] = "message"
    ledger: ClassVar[tuple[str, ...]] = ("rho",)
    gaussian_noise: ClassVar[bool] = True
    promise: ClassVar[Promise] = Promise(
        "rho-zCDP of a client's messages",
        "Bun & Steinke 2016, Proposition 1.6 and Lemma 2.3",
        ("sensitivity", "sums", "steps", "grid", "noise", "keys", "booked", "only exit"),
    )

    def validate(self) -> None:
        checks.positive("total_rho", self.total_rho, "A zero budget would need infinite noise.")
        checks.interval("decay", self.decay, above=0, at_most=1)
        checks.positive("gradient_bound", self.gradient_bound, _BOUND_HINT)
        checks.choice("schedule", self.schedule, ("privacy", "variance"))
        checks.choice("neighbors", self.neighbors, NEIGHBORS)

    @property
    def variance_decay(self) -> Array | float:
        """The factor by which the variance falls at a constant sensitivity."""
        return self.decay

    @classmethod
    def from_epsilon(
        cls,
        epsilon: Array | float,
        delta: Array | float,
        conversion: accounting.Conversion | None = None,
        **kwargs: Any,
    ) -> "ZCDP":
        r"""Return the notion with the largest budget whose total is :math:`(\epsilon,\delta)`-DP.

        Args:
          epsilon: total, > 0.
          delta: total, in (0, 1).
          conversion: the theorem (:func:`~fljax.privacy.accounting.zcdp_epsilon`); by default that
            of :func:`fljax.privacy.spent`: the exact one for Gaussian noise, and for a class with
            other noise the one that holds for all zCDP. ``"proposition"`` is the source's
            Corollary, which spends less than it could, and accepts traced values.
          kwargs: the other fields.

        Raises:
          ValueError: the conversion for Gaussian noise, for a class whose noise is not Gaussian.
          TypeError: a traced epsilon or delta where a root must be found on the host: solve for
            rho before the study, and sweep rho.

        Example:
          >>> round(float(ZCDP.from_epsilon(1.0, 1e-5).total_rho), 4)
          0.0359
          >>> round(float(ZCDP.from_epsilon(1.0, 1e-5, "proposition").total_rho), 4)
          0.0208
        """
        if conversion is None:
            conversion = "gaussian" if is_gaussian(cls) else "canonne-kamath-steinke"
        elif conversion == "gaussian" and not is_gaussian(cls):
            raise ValueError(
                f"conversion='gaussian' holds for continuous Gaussian noise, which {cls.__name__} "
                "does not declare; leave it out, or set gaussian_noise = True in a class that "
                "draws nothing else."
            )
        return cls(accounting.zcdp_rho(epsilon, delta, conversion), **kwargs)

    @classmethod
    def from_initial(
        cls, initial: Array | float, decay: Array | float, rounds: int, **kwargs: Any
    ) -> "ZCDP":
        r"""Return the budget of a run of ``rounds`` with :math:`\phi^{(1)}` = ``initial``."""
        return cls(accounting.dynamic_zcdp_total(initial, decay, rounds), decay, **kwargs)

    def plan(self, sensitivity: Sensitivity, rounds: int) -> Array:
        r"""Return :math:`\phi^{(T)}` of the last round, or the variances ``[K]``
        :math:`\sigma_k^2(T)` of the ``"variance"`` schedule; earlier rounds follow from it (in a
        long run :math:`\phi^{(1)}` itself underflows).
        """
        zero = jnp.zeros_like(sensitivity(jnp.asarray(1)))
        if self.schedule == "privacy":
            return self.total_rho / jnp.sum(self.decay ** jnp.arange(rounds).astype(zero.dtype))

        def add(step, total):
            weight = self.decay ** (rounds - 1 - step).astype(total.dtype)
            return total + sensitivity(step + 1) ** 2 * weight

        return jax.lax.fori_loop(0, rounds, add, zero) / (2 * self.total_rho)

    def release(
        self, plan: Array, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release:
        shrunk = self.decay ** (rounds - round).astype(sensitivity.dtype)
        if self.schedule == "variance":
            variance = plan / shrunk
            return Release(jnp.sqrt(variance), {"rho": sensitivity**2 / (2 * variance)})
        rho = plan * shrunk
        sigma = accounting.gaussian_sigma(sensitivity, rho)
        return Release(sigma, {"rho": jnp.broadcast_to(rho, sensitivity.shape)})

    draw = _standard_normal


@module
class DiscreteZCDP(ZCDP):
    r"""zCDP by discrete Gaussian noise on messages that are rounded to a grid.

    A message :math:`m` becomes :math:`g\,(\lfloor m/g\rceil+x)`, where :math:`x` is discrete
    Gaussian with parameter :math:`s` = ``steps``. Rounding moves every coordinate by at most half
    a grid step :math:`g`, so that the sensitivity grows to :math:`\Delta+g\sqrt D`, and

    .. math:: g=\frac{\Delta}{s\sqrt{2\phi^{(n)}}-\sqrt D}

    spends :math:`\phi^{(n)}`. The noise is larger than that of :class:`~fljax.privacy.ZCDP` by the
    factor :math:`1/\big(1-\sqrt D/(s\sqrt{2\phi^{(n)}})\big)`, which is smaller for a finer grid.

    Args:
      total_rho: as in :class:`~fljax.privacy.ZCDP`, like the other arguments.
      decay: as in :class:`~fljax.privacy.ZCDP`.
      gradient_bound: as in :class:`~fljax.privacy.ZCDP`.
      schedule: ``"privacy"`` only.
      neighbors: as in :class:`~fljax.privacy.ZCDP`.
      steps: :math:`s\ge1`, grid steps per standard deviation.

    Guarantees:
      Those of :class:`~fljax.privacy.ZCDP`, with messages free of floating-point traces of the
      values they were computed from; up to a total variation of :math:`2^{-91}s` for every number
      drawn, due to the table of probabilities (:func:`~fljax.privacy.discrete.discrete_gaussian`).
      The sensitivity of the message before rounding is that of its own floating-point arithmetic,
      as with the other notions.

    Raises:
      ValueError: the ``"variance"`` schedule; a grid too coarse for the budget of some round.

    Reference:
      Canonne, Kamath & Steinke 2020, Theorem 14 (and Proposition 13 for many coordinates).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.DiscreteZCDP(total_rho=0.5),
      ... )
      >>> round(float(fl.run(simulation, rounds=10).privacy_rho[-1]), 4)
      0.5
    """

    steps: int = static(default=1024)

    gaussian_noise: ClassVar[bool] = False
    promise: ClassVar[Promise] = Promise(
        "rho-zCDP of a client's messages",
        "Canonne, Kamath & Steinke 2020, Theorem 14",
        ("sensitivity", "sums", "steps", "tables", "keys", "booked", "only exit"),
    )

    def validate(self) -> None:
        super().validate()
        checks.count("steps", self.steps)
        if self.schedule != "privacy":
            raise ValueError(
                "the privacy loss of rounding to a grid is not known for "
                f"schedule={self.schedule!r}; leave it out, or take ZCDP."
            )

    def check(self, dim: int, rounds: int) -> None:
        """Raise ``ValueError`` where rounding alone would spend the budget of some round.

        Args:
          dim: numbers in a message.
          rounds: of the run.
        """
        checks.check_when_concrete(
            functools.partial(self._check_budget, dim, rounds), self.total_rho, self.decay
        )

    def _check_budget(
        self, dim: int, rounds: int, total: Array | float, decay: Array | float
    ) -> None:
        powers = float(decay) ** np.arange(rounds)
        least = float(total) * powers.min() / powers.sum()
        fewest = math.sqrt(dim / (2 * least)) if least > 0 else math.inf
        _check_steps(self.steps, fewest, dim, rounds, least, "total_rho", "more steps")

    def release(
        self, plan: Array, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release:
        release = super().release(plan, sensitivity, round, rounds, dim)
        grid = _grid(sensitivity, self.steps * jnp.sqrt(2 * release.spent["rho"]) - dim**0.5)
        return release._replace(scale=self.steps * grid, grid=grid)

    def draw(
        self,
        key: Array,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        round: Array,
        clients: Int[Array, " senders"],
    ) -> Array:
        return discrete_gaussian(key, shape, self.steps)


@module
class ApproximateDP:
    r"""Conventional :math:`(\epsilon,\delta)`-DP: a Gaussian mechanism per round, composed.

    The source compares with this notion, and gives neither an allocation nor a composition rule.
    The total is allocated to the rounds by ``rule``:

    * ``"uniform"``: :math:`\epsilon/T,\delta/T` per round, basic composition (Theorem 2.2);
    * ``"geometric"``: :math:`\epsilon_n\propto\zeta^{-(n-1)/2}`, the same decay of the variance
      as :class:`ZCDP`, basic composition;
    * ``"advanced"``: equal rounds under advanced composition (Dwork & Roth 2014, Theorem 3.20).

    The noise of a round is set by ``calibration``:

    * ``"classical"``: :math:`\sigma=\Delta\sqrt{2\ln(1.25/\delta_n)}/\epsilon_n`, proven for
      :math:`\epsilon_n<1` only;
    * ``"zcdp"``: the largest zCDP parameter that implies :math:`(\epsilon_n,\delta_n)`, proven
      for every :math:`\epsilon_n`, with somewhat more noise for small :math:`\epsilon_n`.

    Args:
      epsilon: total, > 0.
      delta: total, in (0, 1).
      decay: :math:`\zeta\in(0,1]` of the geometric rule; by default the noise is constant.
      gradient_bound: :math:`c_1>0`.
      rule: the allocation and composition rule.
      calibration: the calibration of the noise of one round.
      neighbors: the relation of a client's neighboring data sets for which the guarantee holds,
        see :mod:`fljax.privacy.notions`.

    Guarantees:
      :math:`(\epsilon,\delta)`-DP between neighboring data sets of any one client under the
      bounded-gradient assumption. The ledger adds epsilon and delta up by basic composition, since
      clients may send different numbers of messages: under ``"advanced"`` it ends at a larger
      epsilon and a smaller delta than the total, which holds as well. It also contains the zCDP
      parameter of the same noise, which is its actual privacy cost.

    Raises:
      ValueError: a round's epsilon of 1 or more under the classical calibration (checked by the
        sweep at each concrete grid point).

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem=problem.clipped(1.0),
      ...     algorithm=fl.algorithms.EpsilonDeltaNFL(penalty=1.0, step_size=0.5),
      ...     network=fl.graphs.ring(6),
      ...     privacy=fl.privacy.ApproximateDP(2.0, 1e-3, gradient_bound=1.0),
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> [round(float(spent[0]), 4) for spent in (run.client_epsilon, run.client_delta)]
      [2.0, 0.001]
    """

    epsilon: Float[Array, ""] | float
    delta: Float[Array, ""] | float
    decay: Float[Array, ""] | float = 1.0
    gradient_bound: Float[Array, ""] | float = 1.0
    rule: accounting.Rule = static(default="uniform")
    calibration: Literal["classical", "zcdp"] = static(default="classical")
    neighbors: Neighbors = static(default="replace")

    scope: ClassVar[Scope] = "message"
    ledger: ClassVar[tuple[str, ...]] = ("epsilon", "delta", "rho")
    gaussian_noise: ClassVar[bool] = True
    promise: ClassVar[Promise] = Promise(
        "(epsilon, delta)-DP of a client's messages",
        "Dwork & Roth 2014, Theorem 3.22, and basic or advanced composition",
        ("sensitivity", "sums", "steps", "grid", "noise", "keys", "booked", "only exit"),
    )

    def validate(self) -> None:
        checks.positive("epsilon", self.epsilon, "A zero budget would need infinite noise.")
        checks.interval("delta", self.delta, above=0, below=1)
        checks.interval("decay", self.decay, above=0, at_most=1)
        checks.positive("gradient_bound", self.gradient_bound, _BOUND_HINT)
        checks.choice("rule", self.rule, accounting.RULES)
        checks.choice("calibration", self.calibration, ("classical", "zcdp"))
        checks.choice("neighbors", self.neighbors, NEIGHBORS)

    @property
    def variance_decay(self) -> Array | float:
        """The factor by which the variance falls at a constant sensitivity."""
        return self.decay if self.rule == "geometric" else 1.0

    def plan(self, sensitivity: Sensitivity, rounds: int) -> tuple[Array, Array]:
        r"""Return :math:`\epsilon_n` and :math:`\delta_n`, ``[T]`` each."""
        epsilons, deltas = accounting.allocate(
            self.epsilon, self.delta, rounds, self.rule, self.decay
        )
        if self.calibration == "classical":
            accounting.classical_gaussian_sigma(1.0, epsilons, deltas)  # refuses unproven budgets
        dtype = sensitivity(jnp.asarray(1)).dtype
        return jnp.asarray(epsilons, dtype), jnp.asarray(deltas, dtype)

    def release(
        self,
        plan: tuple[Array, Array],
        sensitivity: Array,
        round: Array,
        rounds: int,
        dim: int,
    ) -> Release:
        epsilon = plan[0][round - 1]
        delta = plan[1][round - 1]
        if self.calibration == "classical":
            sigma = accounting.classical_gaussian_sigma(sensitivity, epsilon, delta)
        else:
            rho = accounting.zcdp_rho(epsilon, delta, "proposition")
            sigma = accounting.gaussian_sigma(sensitivity, rho)
        spent = {
            "epsilon": jnp.broadcast_to(epsilon, sensitivity.shape),
            "delta": jnp.broadcast_to(delta, sensitivity.shape),
            "rho": accounting.gaussian_zcdp(sensitivity, sigma),
        }
        return Release(sigma, spent)

    draw = _standard_normal


@module
class PureDP:
    r"""Pure :math:`\epsilon`-DP with discrete Laplace noise, basic composition (Theorem 2.1).

    The l1 sensitivity is bounded by :math:`\sqrt D` times the l2 one. The budget of round
    :math:`n` is proportional to :math:`\zeta^{-(n-1)/2}`, which makes the variance decrease by the
    factor :math:`\zeta` per round, as in :class:`ZCDP`.

    Under Laplace noise in floating point some messages can be distinguished with certainty,
    at any scale. So a message :math:`m` becomes :math:`g\,(\lfloor m/g\rceil+x)`, with
    integers :math:`x` of probability :math:`\Pr[x]\propto e^{-|x|/s}`. Rounding moves every
    coordinate by at most half a grid step :math:`g`, so that the l1 sensitivity grows to
    :math:`\sqrt D\Delta+Dg`, and

    .. math:: g=\frac{\sqrt D\Delta}{s\epsilon^{(n)}-D}

    spends :math:`\epsilon^{(n)}`. The scale :math:`sg` is that of the continuous Laplace
    distribution times :math:`1/\big(1-D/(s\epsilon^{(n)})\big)`.

    Args:
      epsilon: total, > 0.
      decay: :math:`\zeta\in(0,1]`; by default the noise is constant.
      gradient_bound: :math:`c_1>0`.
      neighbors: the relation of a client's neighboring data sets for which the guarantee holds,
        see :mod:`fljax.privacy.notions`.
      steps: :math:`1\le s\le2^{24}`, grid steps per Laplace scale.

    Guarantees:
      :math:`\epsilon`-DP between neighboring data sets of any one client under the bounded-gradient
      assumption: the probabilities of every value that a message may take under two neighboring
      data sets have a ratio of at most :math:`e^{\epsilon^{(n)}}`. This holds up to the truncation
      of the tables, a total variation of :math:`2^{-78}` for every number drawn
      (:func:`~fljax.privacy.discrete.discrete_laplace`): strictly it is
      :math:`(\epsilon,(1+e^\epsilon)DT2^{-78})`-DP. The sensitivity of the message before rounding
      is that of its own floating-point arithmetic, as with the other notions.

    Raises:
      ValueError: a grid too coarse for the budget of some round.

    Reference:
      Ghosh, Roughgarden & Sundararajan 2012 (the geometric mechanism).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.PureDP(epsilon=3.0),
      ... )
      >>> round(float(fl.run(simulation, rounds=10).privacy_epsilon[-1]), 4)
      3.0
    """

    epsilon: Float[Array, ""] | float
    decay: Float[Array, ""] | float = 1.0
    gradient_bound: Float[Array, ""] | float = 1.0
    neighbors: Neighbors = static(default="replace")
    steps: int = static(default=2**22)

    scope: ClassVar[Scope] = "message"
    ledger: ClassVar[tuple[str, ...]] = ("epsilon",)
    gaussian_noise: ClassVar[bool] = False
    promise: ClassVar[Promise] = Promise(
        "epsilon-DP of a client's messages",
        "Ghosh, Roughgarden & Sundararajan 2012, and basic composition",
        ("sensitivity", "sums", "steps", "tables", "keys", "booked", "only exit"),
    )

    def validate(self) -> None:
        checks.positive("epsilon", self.epsilon, "A zero budget would need infinite noise.")
        checks.interval("decay", self.decay, above=0, at_most=1)
        checks.positive("gradient_bound", self.gradient_bound, _BOUND_HINT)
        checks.choice("neighbors", self.neighbors, NEIGHBORS)
        checks.count("steps", self.steps, at_most=MOST_STEPS)

    @property
    def variance_decay(self) -> Array | float:
        """The factor by which the variance falls at a constant sensitivity."""
        return self.decay

    def check(self, dim: int, rounds: int) -> None:
        """Raise ``ValueError`` where rounding alone would spend the budget of some round.

        Args:
          dim: numbers in a message.
          rounds: of the run.
        """
        checks.check_when_concrete(
            functools.partial(self._check_budget, dim, rounds), self.epsilon, self.decay
        )

    def _check_budget(
        self, dim: int, rounds: int, total: Array | float, decay: Array | float
    ) -> None:
        powers = float(decay) ** (np.arange(rounds) / 2)
        least = float(total) * powers.min() / powers.sum()
        fewest = dim / least if least > 0 else math.inf
        more = "more steps" if fewest < MOST_STEPS else "fewer parameters"
        _check_steps(self.steps, fewest, dim, rounds, least, "epsilon", more)

    def plan(self, sensitivity: Sensitivity, rounds: int) -> Array:
        r"""Return :math:`\epsilon_T` of the last round, from which the earlier ones follow."""
        dtype = sensitivity(jnp.asarray(1)).dtype
        return self.epsilon / jnp.sum(self.decay ** (jnp.arange(rounds).astype(dtype) / 2))

    def release(
        self, plan: Array, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release:
        epsilon = plan * self.decay ** ((rounds - round).astype(sensitivity.dtype) / 2)
        grid = _grid(sensitivity * dim**0.5, self.steps * epsilon - dim)
        spent = {"epsilon": jnp.broadcast_to(epsilon, sensitivity.shape)}
        variance = (2 * self.steps * math.sinh(0.5 / self.steps)) ** -2.0  # of whole numbers
        return Release(self.steps * grid, spent, variance=2 * variance, grid=grid)

    def draw(
        self,
        key: Array,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        round: Array,
        clients: Int[Array, " senders"],
    ) -> Array:
        return discrete_laplace(key, shape, self.steps)
