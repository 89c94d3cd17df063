"""Clocks that choose participants by their speed and by what models are worth on their data."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.module import field, float_dtype, module, static
from fljax.clock.clocks import Choice, Synchronous, Tiers, draw_tier, tiers_of
from fljax.participation.selectors import Participants, check_subset


class TierMemory(NamedTuple):
    """What :class:`AdaptiveTiers` keeps from round to round."""

    probability: Array  # [tiers]
    credits: Array  # [tiers]  in how many more rounds each may be drawn
    accuracy: Array  # [tiers]  when the probabilities were reconsidered last
    current: Array  # []  the tier of the last round


@module
class AdaptiveTiers(Tiers):
    r"""As :class:`Tiers`, and tiers with low accuracy are drawn more often, as far as credits last.

    Every ``interval`` rounds :math:`I` the server compares the model's accuracy on the held-out
    data of the last round's tier with that of :math:`I` rounds before. If it is not higher, the
    probabilities change: of the :math:`n` tiers that have credits left, the one with the
    :math:`i`-th lowest accuracy, :math:`i=0,1,\dots`, is drawn with probability

    .. math:: \frac{n-i}{n(n+1)/2}

    A tier that is drawn pays one credit, and is not drawn any more when it has none. Fewer credits
    of slow tiers bound the time of a run.

    The source requires that lower accuracy makes a tier more probable, without a formula;
    the formula is that of public implementations. There the accuracies are observed by the server,
    and here, too: they cost no messages and no time, and are evaluated only when probabilities are
    reconsidered. The accuracy of a tier is over all held-out samples of its clients. Tiers with
    equal accuracies are sorted with the fastest first. The tiers stay the same for the whole run,
    where the source may measure speeds again. No guarantee of privacy covers the choice, which
    depends on data: budgets are refused.

    Args:
      devices: of the clients.
      tiers: as in :class:`Tiers`; so are ``count`` and ``probabilities``, at the beginning.
      count: participants of a round.
      probabilities: until they change; equal by default.
      interval: :math:`I\ge1`, in rounds.
      credits: in how many rounds a tier may be drawn: one number for all, or one for each; without
        it draws are unlimited.

    Raises:
      ValueError: as :class:`Tiers`; an interval below 1, credits that are negative or fewer than
        there are rounds, held-out data that are not one set for each client, or have no labels; a
        budget of privacy.

    Reference:
      Chai et al. 2020 (TiFL), Algorithm 2.

    Example:
      >>> import jax, fljax as fl
      >>> key = jax.random.key(0)
      >>> problem = fl.problems.softmax(key, clients=4, samples=20, dim=2, classes=3).split(key)
      >>> devices = fl.clock.Devices(seconds_per_step=[0.1, 0.4, 0.1, 0.4])
      >>> clock = AdaptiveTiers(devices, tiers=2, count=2, credits=(9, 1))
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1), clock=clock)
      >>> round(float(fl.run(simulation, rounds=10).seconds[-1]), 3)  # one of them is of the slow
      1.3
    """

    interval: int = static(default=10, kw_only=True)
    credits: int | tuple[int, ...] | None = field(
        converter=lambda c: c if c is None or isinstance(c, int) else tuple(c),
        static=True,
        default=None,
        kw_only=True,
    )
    reads_data = True

    def validate(self) -> None:
        super().validate()
        checks.count("interval", self.interval)
        for number in self._credits or ():
            checks.count("credits", number, at_least=0)
        if self._credits is not None and len(self._credits) != self.tiers:
            raise ValueError(
                f"credits must be one number, or one for each of the {self.tiers} tiers, got "
                f"{self.credits}."
            )

    @property
    def _credits(self) -> tuple[int, ...] | None:
        return (self.credits,) * self.tiers if isinstance(self.credits, int) else self.credits

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        possible = [
            number
            for tier, number in enumerate(self._credits or ())
            if self.probabilities is None or self.probabilities[tier] > 0
        ]
        if self.credits is not None and sum(possible) < rounds:
            raise ValueError(
                f"the credits of the tiers that may be drawn are sufficient for {sum(possible)} "
                f"rounds, and the run has {rounds}; give more credits, or make the run shorter."
            )

    def begin(self, clients: int) -> TierMemory:
        equal = (1 / self.tiers,) * self.tiers
        unlimited = (int(jnp.iinfo(jnp.int32).max),) * self.tiers  # more than a run has rounds
        return TierMemory(
            jnp.asarray(self.probabilities or equal, float_dtype()),
            jnp.asarray(self._credits or unlimited, jnp.int32),
            jnp.zeros(self.tiers, float_dtype()),
            jnp.zeros((), jnp.int32),
        )

    def choose(
        self, key: Array, available: Bool[Array, " clients"], choice: Choice
    ) -> tuple[Participants, TierMemory]:
        tier = tiers_of(choice, self.tiers)
        memory = jax.lax.cond(
            (choice.round - 1) % self.interval == 0,
            lambda memory: self._reconsidered(memory, tier, choice),
            lambda memory: memory,
            choice.memory,
        )
        weights = jnp.where(memory.credits > 0, memory.probability, 0)
        participants, drawn = draw_tier(key, available, tier, weights, self.count)
        drawn = drawn.astype(jnp.int32)
        paid = memory.credits.at[drawn].add(-1)
        return participants, memory._replace(credits=paid, current=drawn)

    def _reconsidered(
        self, memory: TierMemory, tier: Int[Array, " clients"], choice: Choice
    ) -> TierMemory:
        """Other probabilities, if the accuracy of the current tier has not increased."""
        accuracy = _tier_accuracies(choice, tier, self.tiers).astype(memory.accuracy.dtype)
        stagnates = accuracy[memory.current] <= memory.accuracy[memory.current]
        has_credits = memory.credits > 0
        rank = jnp.argsort(jnp.argsort(jnp.where(has_credits, accuracy, jnp.inf)))
        weights = jnp.where(has_credits, jnp.sum(has_credits) - rank, 0).astype(accuracy.dtype)
        changes = stagnates & (choice.round > 1)
        probability = jnp.where(changes, weights / jnp.sum(weights), memory.probability)
        return memory._replace(probability=probability, accuracy=accuracy)


def _tier_accuracies(
    choice: Choice, tier: Int[Array, " clients"], tiers: int
) -> Float[Array, " tiers"]:
    """The accuracy of each tier's models on the held-out samples of its clients together."""
    test = choice.problem.test.unweighted()
    models = jnp.broadcast_to(choice.model, (test.clients, choice.model.shape[-1]))

    def is_correct(loss: Any, prediction: Array, target: Array) -> Array:
        return loss.correct(prediction, target).astype(models.dtype)

    samples = test.sample_counts().astype(models.dtype)
    right = samples * test.scores(models, is_correct)
    sums = jax.ops.segment_sum(jnp.stack([right, samples], axis=1), tier, tiers)
    # Equal shares of right samples are equal numbers, although their sums are rounded.
    return jnp.round(sums[:, 0] / jnp.maximum(sums[:, 1], 1), 6)


class GuidedMemory(NamedTuple):
    """What :class:`Guided` keeps of each client."""

    utility: Array  # [K]  of its samples when it took part last
    last: Array  # [K]  the round in which its message arrived last; 0: in none
    seconds: Array  # [K]  how long that round took the client


#: Larger utilities than this quantile of the clients' count as the quantile.
CLIPPED_AT = 0.95


@module
class Guided(Synchronous):
    r"""Rounds of clients that are fast and whose samples the model fits badly, and of untried ones.

    A participant tells the server, besides its message, how large the losses :math:`\ell_j` of its
    samples are under the model that it receives, from which follows the utility of its data:

    .. math:: U_k=N_k\sqrt{\tfrac1{N_k}\sum_j\ell_j^2}

    In round :math:`n` the server has of each client that has taken part its utility, the round
    :math:`L_k` in which that was, and the seconds :math:`D_k` that it took. Utilities are scaled to
    :math:`[0,1]`, after the largest five percent are cut to the greatest of the others,
    clients whose numbers are old get a bonus, and clients that need more than the preferred seconds
    :math:`T` a penalty:

    .. math::

        u_k=\Big(\frac{U_k-\min U}{\max U-\min U}+\sqrt{\frac{0.1\ln n}{L_k}}\Big)
            \cdot\begin{cases}(T/D_k)^\alpha&\text{if }D_k>T\\1&\text{otherwise}\end{cases}

    By utility :math:`\lfloor(1-\varepsilon_n)M\rfloor` of the :math:`M` participants are drawn:
    without replacement and with probabilities in proportion to :math:`u_k`, among the clients for
    which it is at least :math:`c` times as large as the last of as many largest ones. The others
    are clients that have never taken part, drawn with probabilities in proportion to their expected
    speed, the inverse of their seconds. The share of these decreases:
    :math:`\varepsilon_n=\max(\varepsilon_1\gamma^{n-1},\varepsilon_{\min})`. Where one of the two
    kinds has fewer clients than that, there are more of the other kind.

    This is a simplification of Oort. There the losses are those met during local training; the
    preferred time grows while utilities decrease (the pacer), here it is constant; clients that
    have taken part too often are excluded, and utilities may be perturbed for privacy, which are
    not here. The scaling is that of the authors' program, without which utilities and bonus are not
    comparable. No guarantee of privacy covers the choice, which depends on losses that are told as
    they are: budgets are refused.

    Args:
      devices: of the clients.
      count: :math:`M`, the participants of a round, >= 1.
      preferred_seconds: :math:`T>0`, of a round.
      penalty: :math:`\alpha\ge0`, of slower clients; with 0 speeds are ignored.
      exploration: :math:`\varepsilon_1`, the share of untried clients in the first round, in
        [0, 1].
      decay: :math:`\gamma`, in [0, 1], by which it decreases from round to round.
      least_exploration: :math:`\varepsilon_{\min}`, in [0, 1].
      cutoff: :math:`c`, in [0, 1].

    Raises:
      ValueError: a number out of its range, more participants than clients, a budget of privacy.

    Reference:
      Lai et al. 2021 (Oort).

    Example:
      Clients that take longer than a second are rarely chosen once they have been tried:

      >>> import jax, fljax as fl
      >>> devices = fl.clock.Devices(seconds_per_step=[0.5, 0.5, 0.5, 9.0])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1),
      ...     clock=Guided(devices, count=2, preferred_seconds=1.0),
      ...     metrics=["participation"],
      ... )
      >>> rounds = fl.run(simulation, rounds=50).participation.sum("round").values
      >>> bool(rounds[3] < rounds[:3].min())
      True
    """

    count: int = static(kw_only=True)
    preferred_seconds: Float[Array, ""] | float = field(kw_only=True)
    penalty: Float[Array, ""] | float = field(default=2.0, kw_only=True)
    exploration: Float[Array, ""] | float = field(default=0.9, kw_only=True)
    decay: Float[Array, ""] | float = field(default=0.98, kw_only=True)
    least_exploration: Float[Array, ""] | float = field(default=0.2, kw_only=True)
    cutoff: Float[Array, ""] | float = field(default=0.95, kw_only=True)
    reference = "lai2021"
    leaves_out = True
    rests_on_sizes = True
    reads_data = True
    wants_losses = True

    def validate(self) -> None:
        checks.count("count", self.count)
        checks.positive("preferred_seconds", self.preferred_seconds)
        checks.nonnegative("penalty", self.penalty)
        for name in ("exploration", "decay", "least_exploration", "cutoff"):
            checks.interval(name, getattr(self, name), at_least=0, at_most=1)

    def check(self, clients: int, rounds: int) -> None:
        super().check(clients, rounds)
        check_subset("count", self.count, clients)

    def begin(self, clients: int) -> GuidedMemory:
        zero = jnp.zeros(clients, float_dtype())
        return GuidedMemory(zero, jnp.zeros(clients, jnp.int32), zero)

    def choose(
        self, key: Array, available: Bool[Array, " clients"], choice: Choice
    ) -> tuple[Participants, GuidedMemory]:
        memory: GuidedMemory = choice.memory
        tried = available & (memory.last > 0)
        untried = available & (memory.last == 0)
        tried_count, untried_count = (jnp.sum(a, dtype=jnp.int32) for a in (tried, untried))
        # The small term makes a product that should be a whole number round down to it.
        by_utility = jnp.floor((1 - self._share(choice.round)) * self.count + 1e-5)
        by_utility = by_utility.astype(jnp.int32)
        new = jnp.minimum(self.count - by_utility, untried_count)
        by_utility = jnp.minimum(self.count - new, tried_count)
        new = jnp.minimum(self.count - by_utility, untried_count)
        of_tried, of_untried = jax.random.split(key)
        worth = self._worth(memory, tried, choice.round)
        last = jnp.sort(worth)[::-1][jnp.maximum(by_utility - 1, 0)]
        eligible = tried & (worth >= jnp.asarray(self.cutoff, worth.dtype) * last)
        expected = choice.rates.expected(choice.work).astype(worth.dtype)
        chosen = _drawn(of_tried, jnp.log(worth), eligible, by_utility)
        chosen = chosen | _drawn(of_untried, -jnp.log(expected), untried, new)
        rows = jnp.argsort(~chosen)[: self.count].astype(jnp.int32)  # stable: by client number
        return Participants(rows, chosen[rows]), memory

    def _share(self, round: Array) -> Float[Array, ""]:
        """The share of untried clients."""
        start, decay, least = (
            jnp.asarray(value, float_dtype())
            for value in (self.exploration, self.decay, self.least_exploration)
        )
        return jnp.maximum(start * decay ** (round - 1).astype(start.dtype), least)

    def _worth(
        self, memory: GuidedMemory, tried: Bool[Array, " clients"], round: Array
    ) -> Float[Array, " clients"]:
        """How much the server wants each client that has taken part; zero for others."""
        utility = memory.utility
        count = jnp.sum(tried, dtype=jnp.int32)
        ascending = jnp.sort(jnp.where(tried, utility, jnp.inf))
        place = jnp.floor(CLIPPED_AT * count.astype(utility.dtype) + 1e-5).astype(jnp.int32)
        most = ascending[jnp.clip(place, 0, jnp.maximum(count - 1, 0))]
        least = ascending[0]
        spread = jnp.where((count > 0) & (most > least), most - least, 1)
        scaled = jnp.where(tried, (jnp.minimum(utility, most) - least) / spread, 0)
        since = jnp.maximum(memory.last, 1).astype(utility.dtype)
        bonus = jnp.sqrt(0.1 * jnp.log(round.astype(utility.dtype)) / since)
        preferred = jnp.asarray(self.preferred_seconds, utility.dtype)
        slower = preferred / jnp.maximum(memory.seconds, preferred)
        factor = slower ** jnp.asarray(self.penalty, utility.dtype)
        return jnp.where(tried, (scaled + bonus) * factor, 0)

    def remember(
        self,
        memory: GuidedMemory,
        round: Array,
        participants: Participants,
        reported: Float[Array, " chosen"],
        arrived: Bool[Array, " clients"],
        seconds: Float[Array, " clients"],
    ) -> GuidedMemory:
        utility = participants.put(memory.utility, reported.astype(memory.utility.dtype))
        return GuidedMemory(
            jnp.where(arrived, utility, memory.utility),
            jnp.where(arrived, round.astype(jnp.int32), memory.last),
            jnp.where(arrived, seconds.astype(memory.seconds.dtype), memory.seconds),
        )


def _drawn(
    key: Array,
    log_weights: Float[Array, " clients"],
    eligible: Bool[Array, " clients"],
    count: Int[Array, ""],
) -> Bool[Array, " clients"]:
    """So many of the eligible clients, drawn without replacement with these weights."""
    # The largest of these sums are a draw without replacement in proportion to the weights.
    score = log_weights + jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    rank = jnp.argsort(jnp.argsort(jnp.where(eligible, -score, jnp.inf)))
    return eligible & (rank < count.astype(rank.dtype))
