r"""Noise on the gradients of clients, which turns stochastic gradient descent into DP-SGD."""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.linalg import norm
from fljax._core.module import float_array, module, replace, static
from fljax._core.numerics import representable_sensitivity
from fljax._core.prng import private_normal
from fljax.participation.selectors import Law
from fljax.privacy import correlation
from fljax.privacy.correlation import Coding, Turns
from fljax.privacy.matrices import Strategy
from fljax.privacy.mechanism import SAMPLED_RELEASES, Promise, Scope
from fljax.problems import Problem

#: Sensitivity of a sum of gradients, in multiples of the clip, by relation of neighbors.
_MOVED = {"add-or-remove": 1.0, "replace": 2.0}


class TurnPlan(NamedTuple):
    """What is fixed for a whole run in which samples take turns, or noise is correlated."""

    turns: Turns  # of the participations of a sample
    steps: Array | int  # of a client in a round, at most


@module
class NoisyGradients:
    r"""Sample-level differential privacy by noise on the sums of clipped per-sample gradients.

    In each of its steps a client descends along

    .. math::

        \tilde g=\frac1b\Big(\sum_{j\in B}\ell'_j(w)\min\big(1,c/\|\ell'_j(w)\|\big)
            +zc\,\mathcal N(0,I)\Big)+\frac\lambda KR'(w),

    with a fixed :math:`b`, the size of the random batch :math:`B` on average. All messages of the
    client are computed from these noisy gradients. Clients keep their batches secret, so that
    privacy is amplified by sampling, for which :func:`fljax.privacy.spent` accounts.

    With a strategy the noise of a client is correlated over its own steps, from the first to the
    last of the run: with :math:`x` its sums of gradients in deviations of their noise, it perturbs
    :math:`\theta=Cx` by independent noise :math:`g`, on the grid of
    :func:`fljax.privacy.discrete.perturbed`, and descends along the rows of
    :math:`C^{-1}(\theta+g)`, a function of perturbed numbers. Between its steps each client keeps
    two vectors as long as a model for each band, or buffer, of the strategy.

    With ``parts`` each part of a sample's gradient, such as a network's layers, is clipped
    separately, and has noise of its own: part :math:`i` to :math:`c_i`, with noise of deviation
    :math:`z_ic_i`. In deviations of their noise all parts together are one vector that a sample
    moves by :math:`1/\bar z` at most, :math:`\bar z^{-2}=\sum_iz_i^{-2}`, so that a step is one
    Gaussian release of multiplier :math:`\bar z`.

    Args:
      noise_multiplier: :math:`z>0`: standard deviation of the noise on a sum, in multiples of the
        clip; with parts one for all, or of each.
      clip: :math:`c>0`, of per-sample loss gradients; with parts one for all, or of each.
      neighbors: ``"add-or-remove"``: a sample of one client is present or its place is empty;
        ``"replace"``: it is replaced by another one. The divisor is public and the same for both
        neighbors.
      strategy: :math:`C`, of :mod:`fljax.privacy.matrices`, for as many rounds as a client takes
        steps in the run; independent noise by default.
      parts: numbers of parameters of the parts, which are all of a model one after the other;
        ``problem.pieces`` for the arrays of a network's parameters. A gradient is one part by
        default.

    Guarantees:
      The ledger's zCDP of every client for any one of its samples, for any data, against observers
      who see all messages and even the batches: each step is a Gaussian release of multiplier
      :math:`z`, :math:`\rho=1/(2z^2)` (``"add-or-remove"``) or :math:`2/z^2` (``"replace"``); with
      parts the sum of these over all parts. The amplified epsilon, where each step draws a new
      batch, with the same probability for each sample (``"add-or-remove"``) or of a fixed number of
      samples (``"replace"``), against observers who do not see the batches.

      Where groups of samples take turns (``FedDPSGD(turns=b)``), a client pays only in the steps in
      which its first group has its turn, and under a strategy for the :math:`k`-th turn as many
      times :math:`1/(2z^2)` as it adds to the squared sensitivity of :math:`C`
      (:meth:`~fljax.privacy.matrices.Strategy.participation_costs`): rows of :math:`x` that depend
      on earlier releases cost no more than fixed ones (Denisov et al. 2022). A strategy of
      at most :math:`b` bands is amplified by cyclic Poisson sampling
      (:func:`~fljax.privacy.accounting.cyclic_poisson_epsilon`; Choquette-Choo et al. 2023,
      Theorem 4); one of more, such as every :class:`~fljax.privacy.matrices.BufferedToeplitz`, is
      not amplified.

    Raises:
      ValueError: numbers out of their ranges; more steps than a strategy is made for; numbers of
        parts without parts, or of others than these; parts that are not all of a model.

    Reference:
      Abadi et al. 2016, Algorithm 1; McMahan & Andrew 2018 (parts as one joint mechanism);
      Choquette-Choo et al. 2023 (strategies).

    Example:
      DP-SGD with the noise of BandMF: at equal epsilon, with less of it in the sum of all steps.

      >>> import jax, fljax as fl
      >>> strategy = fl.privacy.matrices.optimize_banded_toeplitz(40, bands=4, separation=4)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=10, samples=200, dim=3),
      ...     algorithm=fl.algorithms.FedDPSGD(0.1, local_steps=2, sampling_rate=0.2, turns=4),
      ...     privacy=fl.privacy.NoisyGradients(1.0, clip=2.0, strategy=strategy),
      ... )
      >>> results = fl.run(simulation, rounds=20, record_every=10)
      >>> fl.privacy.spent(results, delta=1e-5).epsilon.values.round(1).tolist()
      [3.9, 5.0]
    """

    noise_multiplier: Float[Array, "*parts"] | float
    clip: Float[Array, "*parts"] | float = 1.0
    neighbors: Literal["add-or-remove", "replace"] = static(default="add-or-remove")
    strategy: Strategy | None = None
    parts: tuple[int, ...] | None = static(default=None)

    scope: ClassVar[Scope] = "gradient"
    reference: ClassVar[str] = "abadi2016"
    ledger: ClassVar[tuple[str, ...]] = ("rho", "releases")
    gaussian_noise: ClassVar[bool] = True
    promise: ClassVar[Promise] = Promise(
        "rho-zCDP of a sample, amplified under secret sampling",
        "Abadi et al. 2016; McMahan & Andrew 2018 (parts); Denisov et al. 2022 and "
        "Choquette-Choo et al. 2023 (strategies, turns); Mironov et al. 2019 (sampling)",
        ("sums", "parts", "turns", "encoding", *SAMPLED_RELEASES),
    )

    def validate(self) -> None:
        if self.parts is not None:
            object.__setattr__(self, "parts", tuple(self.parts))
            if not self.parts:
                raise ValueError("parts is empty; leave it out, or give the size of each part.")
            for size in self.parts:
                checks.count("parts", size, hint="They are numbers of parameters.")
        for name in ("noise_multiplier", "clip"):
            value = getattr(self, name)
            if np.ndim(value):
                self._check_per_part(name, value)
                object.__setattr__(self, name, float_array(name, value))
        checks.positive(
            "noise_multiplier", self.noise_multiplier, "Without noise there is no privacy."
        )
        checks.positive("clip", self.clip, "It is the largest norm of a sample's gradient.")
        if self.strategy is not None:
            checks.kind("strategy", self.strategy, Strategy)
        checks.choice("neighbors", self.neighbors, _MOVED)

    def _check_per_part(self, name: str, value: Any) -> None:
        """Raise ``ValueError`` unless these are numbers of the parts."""
        count = 0 if self.parts is None else len(self.parts)
        if np.shape(value) != (count,):
            wanted = f"or one of each of the {count} parts" if count else "(there are no parts=)"
            raise ValueError(f"{name} must be one number {wanted}, got {checks.shown(value)}.")

    def gradient(
        self, batch: Problem, model: Float[Array, "clients dim"], share: Float[Array, " clients"]
    ) -> Float[Array, "clients dim"]:
        """Return the gradient of every client, with clipped per-sample gradients.

        Args:
          batch: the weights of its samples are their shares of the mean.
          model: ``[K, D]``.
          share: ``[K]``, the largest weight that a sample can have, and has.
        """
        clipped = self.clipped(batch, share)
        return self.loss_gradient(clipped, model) + clipped.regularizer_gradient(model)

    def loss_gradient(
        self, clipped: Problem, model: Float[Array, "clients dim"]
    ) -> Float[Array, "clients dim"]:
        """Return the gradient of every client's losses.

        Args:
          clipped: the batch, of :meth:`clipped`.
          model: ``[K, D]``.
        """
        if self.parts is None:
            return clipped.loss_gradient(model)
        clips = jnp.broadcast_to(jnp.asarray(self.clip, model.dtype), len(self.parts))
        return clipped.loss_gradient_in_parts(model, self.parts, clips)

    def clipped(self, batch: Problem, share: Float[Array, " clients"]) -> Problem:
        """Return the batch with clipped per-sample gradients, no sample of more than its share."""
        weights = jnp.minimum(batch.weights, share[:, None])
        clip = jnp.asarray(self.clip, weights.dtype)
        if self.parts is not None:  # of all parts of a gradient together
            clip = jnp.sqrt(jnp.sum(jnp.broadcast_to(clip, len(self.parts)) ** 2))
        return replace(batch, weights=weights, clip=clip)

    @property
    def moved(self) -> float:
        """Sensitivity of a sum of clipped gradients, in clips."""
        return _MOVED[self.neighbors]

    def draw(
        self, key: Array, shape: tuple[int, ...], dtype: DTypeLike
    ) -> Float[Array, "clients dim"]:
        """Draw noise of deviation one; the key is consumed."""
        return private_normal(key, shape, dtype)

    @property
    def multiplier(self) -> Array | float:
        """The noise multiplier of a step; of all parts together."""
        if self.parts is None:
            return self.noise_multiplier
        multipliers = jnp.broadcast_to(jnp.asarray(self.noise_multiplier), len(self.parts))
        return 1 / norm(1 / multipliers)

    @property
    def counts_steps(self) -> bool:
        """Whether noise depends on the number of a client's own steps."""
        return self.strategy is not None

    @property
    def alone(self) -> bool:
        """Whether noise is independent and the same for all numbers of a gradient."""
        return self.strategy is None and self.parts is None

    def units(self, share: Float[Array, " clients"], dim: int) -> Float[Array, "clients dim"]:
        """Standard deviation of the noise on each number of each client's gradient; one where
        nothing has to be hidden.
        """
        protected = jnp.broadcast_to((share > 0)[:, None], (len(share), dim))
        per_part = jnp.asarray(self.noise_multiplier * self.clip, share.dtype)
        if per_part.ndim:
            assert self.parts is not None
            per_part = jnp.repeat(per_part, np.array(self.parts), total_repeat_length=dim)
        sizes = jnp.broadcast_to(per_part, dim)[None] * share[:, None]
        return jnp.where(protected, representable_sensitivity(sizes, protected), 1)

    def scale(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """Standard deviation of the noise on each client's gradient, of one part."""
        return self.noise_multiplier * self._largest_contribution(share)

    def sensitivity(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """Sensitivity of each client's gradient to neighboring data, in Euclidean norm."""
        return self.moved * self._largest_contribution(share)

    def _largest_contribution(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]:
        """The largest contribution of a sample to each client's gradient, in norm."""
        return representable_sensitivity(self.clip * share, share > 0)

    def spent(self, times: Int[Array, " clients"], dtype: DTypeLike) -> dict[str, Array]:
        """Return what ``times`` releases of each client add to the ledger."""
        releases = times.astype(dtype)
        return {"rho": self._rho(dtype) * releases, "releases": releases}

    def _rho(self, dtype: DTypeLike) -> Array:
        """Return rho of one release of independent noise."""
        return (self.moved / jnp.asarray(self.multiplier, dtype)) ** 2 / 2

    def release_rho(self, plan: "TurnPlan", dtype: DTypeLike) -> Array:
        """The zCDP parameter of a single step, at most."""
        return self._rho(dtype) * plan.turns.largest.astype(dtype)

    def check(self, problem: Problem) -> None:
        """Raise ``ValueError`` unless the parts are all of this problem's model."""
        if self.parts is not None:
            problem.check_parts(self.parts)

    # Turns and strategies ------------------------------------------------------------------------

    def plan(self, law: Law | None, steps: int | None, rounds: int) -> TurnPlan | None:
        """Return the constants of a run; ``None`` where samples take no turns and noise is
        independent.

        Args:
          law: of batches.
          steps: of a client in a round, at most; ``None`` if that is not known.
          rounds: of the run.

        Raises:
          ValueError: an unknown law, an unknown number of steps; more of them than a strategy is
            made for.
        """
        if law is None:
            raise ValueError(
                "how the algorithm draws batches is not known: its method 'sampling' returns None. "
                "Let it return their fljax.participation.Law; Law(1.0) where all samples are in "
                "every step."
            )
        if self.strategy is None and law.separation == 1:
            return None
        if steps is None:
            raise ValueError(
                "what a strategy or turns of samples cost depends on how many steps a client takes "
                "in a round; give the algorithm a field or property local_steps with their number."
            )
        costs = correlation.turns(self.strategy, law, rounds * steps)
        # Each term is also rounded as it is divided by the deviation of its noise.
        return TurnPlan(costs._replace(roundings=costs.roundings + 1), steps)

    def begin(self, dim: int, dtype: DTypeLike, clients: int) -> Coding | None:
        """Return the strategy's state of every client before its first step, ``[K, ...]``."""
        if self.strategy is None:
            return None
        coding = correlation.begin(self.strategy, dim, dtype)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), coding)

    def encoded(
        self, plan: TurnPlan, coding: Coding, rows: Float[Array, "clients dim"]
    ) -> tuple[Coding, Float[Array, "clients dim"], Float[Array, " clients"]]:
        """Return the next states, the encoded gradients, and how far roundings may move each.

        Args:
          plan: of the run.
          coding: of these clients.
          rows: their gradients, in deviations of their noise.
        """
        strategy = self.strategy
        assert strategy is not None
        return jax.vmap(lambda state, row: correlation.encoded(strategy, plan.turns, state, row))(
            coding, rows
        )

    def decoded(
        self, coding: Coding, rows: Float[Array, "clients dim"]
    ) -> tuple[Coding, Float[Array, "clients dim"]]:
        """Return the next states, and the gradients decoded from the perturbed rows.

        Args:
          coding: of these clients.
          rows: as they were released, in deviations of their noise.
        """
        strategy = self.strategy
        assert strategy is not None
        return jax.vmap(lambda state, row: correlation.decoded(strategy, state, row))(coding, rows)

    def spent_by_turns(
        self, plan: TurnPlan, number: Int[Array, " clients"], dtype: DTypeLike
    ) -> dict[str, Array]:
        """Return the additions of a step to each client's ledger.

        Args:
          plan: of the run.
          number: ``[M]``, the number of the client's step, from zero.
          dtype: of the ledger.
        """
        # The first step of a cycle is the turn of the group that had most turns so far.
        first = number % plan.turns.separation == 0
        cost = plan.turns.costs.at[number // plan.turns.separation]
        cost = cost.get(mode="fill", fill_value=jnp.inf)  # beyond the plan nothing is known
        rho = self._rho(dtype) * cost.astype(dtype)
        return {"rho": jnp.where(first, rho, 0), "releases": first.astype(dtype)}

    def sampled(self, plan: TurnPlan | None, law: Law, records: Array | int) -> dict[str, Array]:
        """Return what :func:`fljax.privacy.spent` needs for amplification by sampling.

        Args:
          plan: of the run.
          law: of batches.
          records: samples of the client with the fewest.
        """
        costs = jnp.ones(1) if plan is None else plan.turns.costs
        return correlation.sampled(
            self.strategy, self.multiplier, costs, law, self.neighbors, records
        )
