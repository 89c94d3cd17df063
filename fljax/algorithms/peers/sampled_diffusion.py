r"""Diffusion with random sampling of neighbors (Rizk 2023, section 5.2)."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.round import Round
from fljax.graphs import Graph, Mixing
from fljax.problems import Problem
from fljax.problems.streams import Stream

#: The rules for the probabilities of neighbors.
RULES = ("uniform", "importance")


class SampledDiffusionState(NamedTuple):
    """State of sampled diffusion between rounds."""

    model: Array  # [K, D]  w_k
    distance: Array  # [K, S]  of the neighbors' last messages from the own one


def as_rule(rule: object) -> Mixing:
    """Return a rule of weights, given by its name or as an object.

    Raises:
      TypeError: weights that are not a rule.
    """
    rule = Mixing(rule) if isinstance(rule, str) else rule
    if not isinstance(rule, Mixing):
        raise TypeError(
            f"mixing must be a rule's name or an fljax.graphs.Mixing, got {checks.shown(rule)}."
        )
    return rule


@algorithm("Sampled diffusion", "rizk2023", Needs(data="any", trains=True))
@module
class SampledDiffusion(Descending):
    r"""Adapt, then combine with the models of a few neighbors drawn by each peer in every round.

    .. math::

        \psi_k=w_k^{(n-1)}-\mu f_k'(w_k^{(n-1)}),\qquad
        w_k^{(n)}=\psi_k+\sum_{l\in\mathcal N_k}\frac{a_{lk}N_{kl}}{Lp_{kl}}(\psi_l-\psi_k)

    with :math:`N_{kl}` the number of times that :math:`l` is among :math:`L` independent draws with
    the probabilities :math:`p_{kl}`: in expectation over the draws it is ATC for any
    probabilities. The draws add to the squared deviation

    .. math:: \frac1L\sum_l\frac{a_{lk}^2}{p_{kl}}\|\psi_l-\psi_k\|^2
        -\frac1L\Big\|\sum_la_{lk}(\psi_l-\psi_k)\Big\|^2,

    which is smallest for :math:`p_{kl}\propto a_{lk}\sqrt{E\|\psi_l-\psi_k\|^2}`
    (:func:`fljax.theory.multiagent.neighbor_importance`). With the rule ``"importance"`` a peer
    uses instead its distance from the neighbor's last received model, or the largest distance known
    so far for a neighbor from which it has received nothing, and no probability is below ``floor``
    times the weight: a message is then multiplied by at most ``1 / floor``. (With a small floor, a
    neighbor whose model was close once and is not any more is multiplied by arbitrarily large
    factors, and the models diverge.) A peer receives one message from each *different* neighbor
    that it draws.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      neighbors_per_round: :math:`L\ge1`, the number of draws of each peer.
      rule: ``"uniform"`` or ``"importance"``.
      probability: :math:`p_{kl}`, ``[K, K]``, with rows that sum to one over neighbors, instead of
        a rule.
      floor: the floor of ``"importance"``, in (0, 1]; with 1 the combination of one draw lies
        between the peer's own model and its neighbor's, which cannot diverge.
      mixing: the rule of the weights, as in :class:`ATC`.
      batches: as in :class:`ATC`.

    Raises:
      ValueError: an unknown rule, fewer than one draw, probabilities of clients that are not
        neighbors.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     network=fl.graphs.complete(6),
      ...     algorithm=fl.algorithms.SampledDiffusion(0.05, rule="importance"),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=100)
      >>> bool(results.normalized_error[-1] < 0.1), int(results.messages[0])  # one per peer
      (True, 6)

    Reference:
      Rizk 2023, section 5.2, which suggests it; its probabilities follow (2.46).
    """

    one_by_one = True

    neighbors_per_round: int = static(default=1)
    rule: str = static(default="uniform", kw_only=True)
    probability: Annotated[Array, "clients clients"] | None = field(
        converter=as_given, default=None, kw_only=True
    )
    floor: Float[Array, ""] | float = field(default=1.0, kw_only=True)
    mixing: Mixing = field(converter=as_rule, default="metropolis", kw_only=True)

    def validate(self) -> None:
        checks.count("neighbors_per_round", self.neighbors_per_round)
        checks.choice("rule", self.rule, RULES)
        checks.interval("floor", self.floor, above=0, at_most=1)
        if self.probability is not None:
            if self.rule != "uniform":
                raise ValueError("probability takes the place of a rule; leave out rule=.")
            probability = checks.array("probability", self.probability, axes=2)
            checks.interval("probability", probability, at_least=0, at_most=1 + 1e-6)
            object.__setattr__(self, "probability", probability)

    @property
    def combinations(self) -> tuple[Mixing | None, ...]:
        return None, None, self.mixing

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        network.check_mixing(self.mixing)
        if self.probability is None:
            return
        if np.shape(self.probability) != (network.nodes, network.nodes):
            raise ValueError(
                f"probability must be a matrix of shape {(network.nodes,) * 2}, one row for each "
                f"of the {network.nodes} peers, got shape {np.shape(self.probability)}."
            )
        neighbors, weights = network.neighbor_table()
        checks.check_when_concrete(_of_neighbors, self.probability, neighbors, weights)

    def init(self, problem: Problem | Stream, network: Graph) -> SampledDiffusionState:
        start = start_models(problem)
        return SampledDiffusionState(
            start, jnp.zeros(network.neighbor_table()[0].shape, start.dtype)
        )

    def probabilities(
        self, state: SampledDiffusionState, network: Graph
    ) -> Float[Array, "clients slots"]:
        """Return the probabilities of a draw, in the order of the network's table of neighbors."""
        neighbors, weights = network.neighbor_table()
        real = weights > 0
        if self.probability is not None:
            chosen = jnp.take_along_axis(jnp.asarray(self.probability), neighbors, axis=1)
            return jnp.where(real, chosen, 0).astype(state.model.dtype)
        uniform = real.astype(state.model.dtype)
        uniform = uniform / jnp.maximum(jnp.sum(uniform, axis=1, keepdims=True), 1)
        if self.rule == "uniform":
            return uniform
        weights_of_neighbors = network.mixing(self.mixing).neighbor_table()[1].astype(uniform.dtype)
        most = jnp.max(state.distance, axis=1, keepdims=True)
        importance = jnp.where(state.distance > 0, state.distance, jnp.where(most > 0, most, 1))
        importance = weights_of_neighbors * importance
        total = jnp.sum(importance, axis=1, keepdims=True)
        share = jnp.where(total > 0, importance / jnp.where(total > 0, total, 1), uniform)
        least = self.floor * jnp.where(real, weights_of_neighbors, 0)
        return least + (1 - jnp.sum(least, axis=1, keepdims=True)) * share

    def step(self, state: SampledDiffusionState, now: Round) -> SampledDiffusionState:
        network = now.network
        count = self.neighbors_per_round
        neighbors, _ = network.neighbor_table()
        mixing = network.mixing(self.mixing)
        weights = mixing.neighbor_table()[1].astype(state.model.dtype)
        chance = self.probabilities(state, network)
        times = draw_neighbors(now.key("algorithm"), chance, count)
        scale = count * jnp.where(chance > 0, chance, 1)
        weights = weights * times.astype(weights.dtype) / scale

        requests = (times > 0).astype(jnp.int32)
        receivers = jnp.zeros(len(neighbors), jnp.int32).at[neighbors].add(requests)
        moved = state.model - self.step_size(now.number) * self._step_gradient(now, state.model)
        sent, inbox = now.link.exchange(moved, receivers=receivers)
        received = inbox.messages(network)
        differences = received - sent[:, None]
        model = sent + jnp.sum(weights[..., None] * differences, axis=1)
        distance = jnp.linalg.norm(differences, axis=2)
        return SampledDiffusionState(
            model, jnp.where((times > 0) & (distance > 0), distance, state.distance)
        )


def draw_neighbors(
    key: Array, probability: Float[Array, "clients slots"], count: int
) -> Int[Array, "clients slots"]:
    """Return how often each neighbor occurs among independent draws of every peer."""
    ends = jnp.cumsum(probability, axis=1)
    uniform = jax.random.uniform(key, (len(ends), count), ends.dtype) * ends[:, -1:]
    slot = jnp.sum(ends[:, None] <= uniform[..., None], axis=2, dtype=jnp.int32)
    slots = jnp.arange(ends.shape[1], dtype=jnp.int32)[None, None]
    return jnp.sum(slot[..., None] == slots, axis=1, dtype=jnp.int32)


def _of_neighbors(probability: Array | np.ndarray, neighbors: Array, weights: Array) -> None:
    probability, allowed = np.asarray(probability), np.zeros(np.shape(probability), bool)
    row, slot = np.nonzero(np.asarray(weights) > 0)
    allowed[row, np.asarray(neighbors)[row, slot]] = True
    if np.any((probability > 0) != allowed):
        raise ValueError(
            "probability must be positive for every neighbor of a peer, and zero for all other "
            "clients."
        )
    total = probability.sum(axis=1)
    if np.any(np.abs(total - 1) > 1e-4):
        raise ValueError(
            f"each peer's probabilities must sum to one, got {total.min():g} to {total.max():g}."
        )
