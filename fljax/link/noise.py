r"""Noise on messages between peers, or between servers, by a rule and not by a budget.

It hides messages from their receivers and, depending on the rule, more or less of it remains in the
receivers' combinations (Rizk 2023, chapters 3 and 4):

* one draw per message, or per edge, remains in every combination;
* *graph-homomorphic* noise is added to every message and subtracted from the sender's own part, so
  that it cancels in the weighted mean of the network, though not at each of its nodes;
* *local* graph-homomorphic noise cancels at every receiver: neighbors of a receiver share pairwise
  masks of opposite signs.

The protection differs: :mod:`fljax.theory.multiagent_privacy` states what the source claims, and
:func:`fljax.audit.overheard` computes the actual protection. Budgets (:mod:`fljax.privacy`) are
different: they choose their noise by a sensitivity.
"""

import warnings
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.prng import laplace_steps, normal_steps, private_laplace, private_normal
from fljax.graphs import Combination, Graph
from fljax.privacy.discrete import perturbed

LAWS = ("laplace", "gaussian")
PER = ("coordinate", "vector")


@module
class Perturbation:
    r"""Independent random numbers of mean zero, with a given variance and distribution.

    Args:
      variance: :math:`\sigma_g^2\ge0`; zero turns the noise off, for a grid that starts there.
      law: ``"laplace"``, of scale :math:`\sigma_g/\sqrt2`, or ``"gaussian"``.
      per: ``"coordinate"``: the variance of each coordinate; ``"vector"``: the mean of the squared
        norm. The source leaves this open.

    Raises:
      ValueError: a negative variance, an unknown law.
    """

    variance: Float[Array, ""] | float
    law: str = static(default="laplace")
    per: str = static(default="coordinate")

    def validate(self) -> None:
        checks.nonnegative("variance", self.variance)
        checks.choice("law", self.law, LAWS)
        checks.choice("per", self.per, PER)

    def draw(self, key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Draw numbers ``[..., D]`` from this distribution."""
        drawn, scale, _ = self._drawn(key, shape, dtype)
        return scale * drawn

    def added(
        self, key: Array, message: Float[Array, "*rows dim"], factor: Array | float = 1.0
    ) -> Float[Array, "*rows dim"]:
        """Return a message plus draws times a factor, both on one grid, so that the last bits of
        the sum do not tell the message (:func:`fljax.privacy.discrete.perturbed`).

        Args:
          key: consumed.
          message: ``[..., D]``.
          factor: of the noise.
        """
        drawn, scale, steps = self._drawn(key, message.shape, message.dtype)
        factor = jnp.asarray(factor, message.dtype)
        return perturbed(message, jnp.sign(factor) * drawn, jnp.abs(factor) * scale, steps)

    def _drawn(
        self, key: Array, shape: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[Array, Float[Array, ""], float]:
        """Draws of deviation (or scale) one, the factor that scales them, and their steps."""
        variance = jnp.asarray(self.variance, dtype)
        variance = variance / shape[-1] if self.per == "vector" else variance
        if self.law == "gaussian":
            drawn = private_normal(key, shape, dtype)
            scale = jnp.sqrt(variance)
            return drawn.astype(dtype), scale, normal_steps(dtype, shape)
        drawn = private_laplace(key, shape, dtype)
        return drawn.astype(dtype), jnp.sqrt(variance / 2), laplace_steps(dtype)


@module
class Noise(Perturbation):
    """Base class of noise between peers, or servers; it adds nothing and cannot be instantiated.

    Args and Raises: as of :class:`Perturbation`; a class that adds nothing, such as this one.
    """

    def validate(self) -> None:
        super().validate()
        cls = type(self)
        if cls.perturb is Noise.perturb and cls.over_edges is Noise.over_edges:
            raise TypeError(
                f"{cls.__name__} adds nothing to any message; take fljax.link.PerMessage, PerEdge, "
                "GraphHomomorphic or LocalGraphHomomorphic, or give your class a method perturb or "
                "over_edges."
            )

    def check(self, graph: Graph, weights: Sequence[Combination]) -> None:
        """Raise ``ValueError`` where the noise cannot be used on a graph.

        Args:
          graph: of the nodes that exchange messages.
          weights: with which they combine received messages, where these are known.
        """
        if checks.is_concrete(graph.degree) and not np.any(np.asarray(graph.degree)):
            raise ValueError(
                "noise= perturbs messages between neighbors, but the network has no edges; leave "
                "it out, or add edges."
            )

    def perturb(
        self, key: Array, message: Float[Array, "nodes dim"]
    ) -> tuple[Float[Array, "nodes dim"], Float[Array, "nodes dim"] | None]:
        """Return the messages to all neighbors, and the vector that senders subtract at home."""
        return message, None

    def own_part(self, key: Array, message: Float[Array, "nodes dim"]) -> Float[Array, "nodes dim"]:
        """Return a node's own part in its combination: its message without noise."""
        return message

    def over_edges(
        self,
        key: Array,
        receiver: Int[Array, ""],
        senders: Int[Array, " slots"],
        weights: Float[Array, " slots"],
        dim: int,
    ) -> Float[Array, "slots dim"] | None:
        """Return the noise that each sender adds to its message to one receiver; ``None``: none.

        Args:
          key: of the round.
          receiver: the receiver.
          senders: ``[S]``, the senders it receives from; where the weight is zero, none.
          weights: ``[S]``, the receiver's weights of them.
          dim: numbers in a message.
        """
        return None

    def delivered(
        self,
        key: Array,
        receiver: Int[Array, ""],
        senders: Int[Array, " slots"],
        weights: Float[Array, " slots"],
        messages: Float[Array, "slots dim"],
    ) -> Float[Array, "slots dim"]:
        """Return the messages that one receiver gets.

        Args:
          key: of the round.
          receiver: the receiver.
          senders: ``[S]``, as of :meth:`over_edges`.
          weights: ``[S]``, as of :meth:`over_edges`.
          messages: ``[S, D]``, of its senders.
        """
        drawn = self.over_edges(key, receiver, senders, weights, messages.shape[1])
        return messages if drawn is None else messages + drawn

    @property
    def cancels(self) -> Literal["", "network", "receiver"]:
        """The sum in which the noise cancels.

        The weighted mean of the whole network, the weighted sum of each receiver, or none.
        """
        return ""


@module
class PerMessage(Noise):
    """One draw for every message, the same for all its receivers.

    A node adds no noise to its own part: it combines its own message without noise, and its
    neighbors combine the perturbed one. (A budget is different: under ``Simulation(privacy=)`` a
    node continues from its sent message, including the noise.)

    Args and Raises: as of :class:`Perturbation`.

    Example:
      >>> import jax, fljax as fl
      >>> noise = fl.link.PerMessage(variance=4.0, law="gaussian")
      >>> drawn = noise.draw(jax.random.key(0), (1000, 10), "float32")
      >>> drawn.shape, bool(abs(drawn.std() - 2.0) < 0.1)
      ((1000, 10), True)
    """

    def perturb(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        return self.added(key, message), None


@module
class PerEdge(Noise):
    """A separate draw for every receiver of a message, as in Rizk 2023, (3.8) and (4.24)-(4.26).

    A single message is rounded to a grid and perturbed on it, as by the other classes. A receiver's
    weighted sum is computed without single messages, and noise is added to it in floating point.

    Args:
      variance, law, per: as of :class:`Perturbation`.
      own: whether a node also draws noise for its own part. The sums of the source are over all of
        :math:`N_p`, which contains the node; its definitions of privacy leave it out, since a node
        sends no message to itself.

    Raises: as of :class:`Perturbation`.

    Example:
      Both neighbors of a node receive a different perturbed message:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> def model(noise):
      ...     algorithm = fl.algorithms.ATC(0.1)
      ...     simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(4), noise=noise)
      ...     return fl.run(simulation, rounds=1)["model"]
      >>> change = model(fl.link.PerEdge(variance=1.0)) - model(None)
      >>> bool(abs(change.mean("client")).max() > 0.01)  # it does not cancel
      True
    """

    own: bool = static(default=False)

    def over_edges(
        self, key: Array, receiver: Array, senders: Array, weights: Array, dim: int
    ) -> Array:
        receiver_key = jax.random.fold_in(key, receiver)
        keys = jax.vmap(lambda sender: jax.random.fold_in(receiver_key, sender))(senders)
        return jax.vmap(lambda k: self.draw(k, (dim,), weights.dtype))(keys)

    def own_part(self, key: Array, message: Array) -> Array:
        if not self.own:
            return message
        nodes, dim = message.shape
        everyone = jnp.arange(nodes, dtype=jnp.int32)
        weight = jnp.ones(1, message.dtype)
        to_itself = jax.vmap(lambda k: self.over_edges(key, k, k[None], weight, dim))
        return message + to_itself(everyone)[:, 0]

    def delivered(
        self, key: Array, receiver: Array, senders: Array, weights: Array, messages: Array
    ) -> Array:
        receiver_key = jax.random.fold_in(key, receiver)
        keys = jax.vmap(lambda sender: jax.random.fold_in(receiver_key, sender))(senders)
        return jax.vmap(self.added)(keys, messages)


@module
class GraphHomomorphic(Noise):
    r"""Noise that cancels in the network's weighted mean (Rizk 2023, (3.50)-(3.51), (4.49)-(4.50)).

    A node sends :math:`x_k+g_k` to all neighbors and subtracts
    :math:`\tfrac{1-a_{kk}}{a_{kk}}g_k` from its own part, which results in :math:`A^\top(X+g)-g`:
    with :math:`q` the Perron vector of any left-stochastic :math:`A`, its sum weighted by
    :math:`q_k` is the same as without noise. The ratio :math:`a_{pm}/a_{mp}` of (4.50) holds for
    symmetric weights only, where it is one, and is left out. Noise that cancels hides
    a message only once: the sender keeps its message whole, and whoever hears all edges gets a new
    observation of it in every round (:func:`fljax.audit.overheard`).
    :func:`fljax.graphs.consensus` removes the noise again.

    Where messages are late, the subtracted noise and the noise that others receive are of different
    rounds, and some noise remains in the mean; so it does where links fail, unless weights and
    failures are symmetric.

    Args and Raises: as of :class:`Perturbation`; a node whose own weight is not positive, from
    whose part the noise cannot be subtracted.

    Example:
      The noise changes models, and leaves their mean as it is:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> def model(noise):
      ...     algorithm = fl.algorithms.ATC(0.1)
      ...     simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(4), noise=noise)
      ...     return fl.run(simulation, rounds=1)["model"]
      >>> change = model(fl.link.GraphHomomorphic(variance=1.0)) - model(None)
      >>> bool(abs(change).max() > 0.1), bool(abs(change.mean("client")).max() < 1e-5)
      (True, True)
    """

    def check(self, graph: Graph, weights: Sequence[Combination]) -> None:
        super().check(graph, weights)
        for over in weights:
            bad = np.flatnonzero(np.asarray(over.self_weight) <= 0)
            if bad.size:
                raise ValueError(
                    f"node {bad[0]} has the weight {float(over.self_weight[bad[0]]):g} for its own "
                    "model, from which graph-homomorphic noise has to be subtracted; take weights "
                    "with a positive diagonal (such as 'metropolis'), or "
                    "fljax.link.LocalGraphHomomorphic."
                )

    @property
    def cancels(self) -> Literal["network"]:
        return "network"

    def perturb(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        sent = self.added(key, message)
        return sent, sent - message


@module
class LocalGraphHomomorphic(Noise):
    r"""Noise that cancels at every receiver (Rizk 2023, section 4.3.4).

    A receiver splits its senders into two sets. Each pair across these sets shares a draw
    :math:`z` that the receiver does not know; one adds :math:`z/a` to its message to the receiver
    and the other subtracts :math:`z/a'`, where :math:`a` and :math:`a'` are the receiver's weights.
    So each message is masked but the weighted sum is not: against a receiver that knows the other
    summands the variance gives no protection. A neighbor that is alone has no partner and sends in
    the clear, and a simulation warns of it; :meth:`masked` returns the number of draws that hide
    each message. Pairs agree on their draws through the receiver (Definition 4.2, which
    :func:`fljax.contrib.agreed_laplace` carries out, with the same distribution as the draws here);
    the exchange is assumed to be secret, and :meth:`agreements` counts its messages.

    Where links fail, or receivers choose whom they listen to (:class:`~fljax.graphs.Relearned`),
    the masks no longer cancel, and are drawn. An aggregator, and an algorithm whose peers look at
    single messages, are refused.

    Args and Raises: as of :class:`Perturbation`; a network none of whose nodes hears two others.

    Example:
      >>> import fljax as fl
      >>> noise = fl.link.LocalGraphHomomorphic(0.5)
      >>> noise.masked(fl.graphs.path(3).mixing()).tolist()  # nodes 0 and 2 hear one each
      [[0, 0, 0], [1, 0, 1], [0, 0, 0]]
    """

    def check(self, graph: Graph, weights: Sequence[Combination]) -> None:
        super().check(graph, weights)
        if not (weights or checks.is_concrete(graph.degree)):
            return
        counts = [np.sum(over.neighbor_table()[1] > 0, axis=1) for over in weights]
        for count in counts or [graph.neighbor_counts()]:
            if np.max(count) < 2:
                raise ValueError(
                    "masks are shared by two neighbors of a receiver, but no node has more than "
                    "one; take a network with more edges, or fljax.link.GraphHomomorphic."
                )
            alone = np.flatnonzero(np.asarray(count) == 1)
            if alone.size:
                warnings.warn(
                    f"{alone.size} of {graph.nodes} nodes receive from one neighbor only, whose "
                    f"messages to them no mask can hide. The first is node {alone[0]}.",
                    stacklevel=2,
                )

    def masked(self, over: Combination) -> Int[np.ndarray, "nodes nodes"]:
        r"""Return the number of draws that hide the message to each node (row) from each (column).

        Zero: a message that does not exist, or is sent in the clear. The mask on a message is the
        sum of :math:`n` draws divided by the receiver's weight, and so has the variance
        :math:`n\sigma_g^2/a^2`, more than that of one draw.

        Args:
          over: the weights, which must be known.
        """
        neighbors, weights = over.neighbor_table()
        sign = jax.vmap(sides)(weights)
        plus, minus = (jnp.sum(sign == side, axis=1, keepdims=True) for side in (1, -1))
        draws = jnp.where(sign > 0, minus, jnp.where(sign < 0, plus, 0))
        signs = np.zeros((over.nodes, over.nodes), np.int32)
        np.add.at(signs, (np.arange(over.nodes)[:, None], np.asarray(neighbors)), np.asarray(draws))
        return signs

    def agreements(self, over: Combination) -> Int[np.ndarray, " nodes"]:
        r"""Return the number of extra messages of each node per round for pairs to agree on draws.

        A node sends to all nodes it receives from the sets that they are in; and to its partners,
        through each receiver, the numbers by which the two agree. So at most
        :math:`|N_k|+\sum_{m\in N_k,m\ne k}|N_m|/2` with a node among its own neighbors
        (Rizk 2023, section 4.3.4). They are not part of a run's traffic.

        Args:
          over: the weights, which must be known.
        """
        partners = self.masked(over)
        return np.count_nonzero(partners, axis=1).astype(np.int32) + partners.sum(
            axis=0, dtype=np.int32
        )

    def over_edges(
        self, key: Array, receiver: Array, senders: Array, weights: Array, dim: int
    ) -> Array | None:
        sign = sides(weights)
        slots = len(weights)
        # Sides alternate, so each has at most half of the slots: a quarter of all pairs is drawn.
        half = -(-slots // 2)
        rank = (jnp.cumsum(weights > 0, dtype=jnp.int32) - 1) // 2
        plus, minus = (
            jnp.full(half, slots, jnp.int32)
            .at[jnp.where(sign == side, rank, half)]
            .set(jnp.arange(slots, dtype=jnp.int32), mode="drop")
            for side in (1, -1)
        )
        receiver_key = jax.random.fold_in(key, receiver)

        def pair(first: Array, second: Array) -> Array:
            pair_key = jax.random.fold_in(
                jax.random.fold_in(receiver_key, senders[first]), senders[second]
            )
            drawn = self.draw(pair_key, (dim,), weights.dtype)
            return jnp.where((first < slots) & (second < slots), drawn, 0)

        drawn = jax.vmap(jax.vmap(pair, (None, 0)), (0, None))(plus, minus)
        of_plus = jnp.sum(drawn, axis=1)
        of_minus = jnp.sum(drawn, axis=0)
        total = jnp.where((sign > 0)[:, None], of_plus[rank], -of_minus[rank])
        total = jnp.where((sign != 0)[:, None], total, 0)
        return total / jnp.where(weights > 0, weights, 1)[:, None]

    @property
    def cancels(self) -> Literal["receiver"]:
        return "receiver"


def sides(weights: Float[Array, " slots"]) -> Int[Array, " slots"]:
    """Alternately 1 and -1 for senders of positive weight, otherwise 0; 0 for a single sender."""
    received = weights > 0
    rank = jnp.cumsum(received, dtype=jnp.int32)
    sign = jnp.where(rank % 2 == 1, 1, -1)
    return jnp.where(received & (rank[-1] > 1), sign, 0)
