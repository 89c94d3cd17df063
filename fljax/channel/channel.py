"""The channel of one round: every message of an algorithm goes through :meth:`Channel.send`.

An algorithm states what it sends and how sensitive that is to one sample; whether and how it is
perturbed, and what it costs in privacy and traffic, is decided and counted here, so algorithms
carry no code for it. A channel lives for one round inside the traced step; what it counted is
read from it when the step is done.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax.privacy.notions import Notion

#: What an algorithm draws besides the noise: each from a stream of its own, the same for all.
PURPOSES = ("participation", "batches")


class Traffic(NamedTuple):
    """What the whole network sent in one round."""

    messages: Array  # []  point-to-point messages
    scalars: Array  # []  real numbers in them


class Channel:
    """One round's messages.

    Args:
      key: of this round; consumed.
      round: 1, 2, ..., possibly traced.
      rounds: of the whole run.
      receivers: ``[K]``, to how many neighbours each client's message goes.
      notion: the privacy notion, or ``None``.
      plan: what ``notion.plan`` returned at the start of the run.
    """

    def __init__(
        self,
        key: Array,
        round: Array,
        rounds: int,
        receivers: Array,
        notion: Notion | None,
        plan: Any,
    ) -> None:
        self._key = key
        self._round = round
        self._rounds = rounds
        self._receivers = receivers
        self._notion = notion
        self._plan = plan
        self.spent: dict[str, Array] = {}
        self.traffic = Traffic(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def gradient_bound(self) -> Array | float:
        """The per-sample gradient bound that sensitivities are computed with (0: no privacy)."""
        return 0.0 if self._notion is None else self._notion.gradient_bound

    @property
    def exact(self) -> bool:
        """Whether receivers hear what was sent, so that an aggregate may be computed as one."""
        return self._notion is None

    def key(self, purpose: str) -> Array:
        """The round's key for a draw of this purpose, one of :data:`PURPOSES`.

        It depends on the run's key and the round alone: under one seed all algorithms meet the
        same participants.
        """
        return jax.random.fold_in(self._key, 1 + PURPOSES.index(purpose))

    def send(
        self,
        message: Float[Array, "senders dim"],
        sensitivity: Float[Array, " senders"] | None = None,
        senders: Int[Array, " senders"] | None = None,
    ) -> Float[Array, "senders dim"]:
        """Perturb and count one message of every client; returns what its receivers hear.

        The same noisy vector goes to all receivers of a client, so it costs privacy once.

        Args:
          message: ``[K, D]``, or ``[M, D]`` from ``M`` senders.
          sensitivity: ``[K]``, the l2 sensitivity of ``message`` to one replaced sample; not
            needed where nothing is perturbed.
          senders: ``[M]``, the clients whose messages these are; every client by default.

        Raises:
          ValueError: a private message of unknown sensitivity or from some clients only; a second
            one in the same round, which no noise schedule provides for.
        """
        self.count(message.shape[1], senders)
        if self.exact:
            return message
        if sensitivity is None or senders is not None:
            raise ValueError(
                "a private round needs a message of every client, with its sensitivity; run an "
                "algorithm that gives none without privacy."
            )
        if self.spent:
            raise ValueError(
                "an algorithm sent a second private message in one round; the budget's schedule "
                "provides for one. Join the two into one message."
            )
        release = self._notion.release(
            self._plan, sensitivity, self._round, self._rounds, message.shape[1]
        )
        self.spent = release.spent
        noise = self._notion.draw(self._key, message.shape, message.dtype)
        return message + release.scale[:, None] * noise

    def publish(
        self, message: Float[Array, " dim"], receivers: Int[Array, " chosen"] | None = None
    ) -> Float[Array, " dim"]:
        """Count one message of the server to every client, or to the given ones.

        What is computed from perturbed messages is private already and gets no noise.
        """
        clients = self._receivers if receivers is None else receivers
        self._count(jnp.ones_like(clients), message.shape[-1])
        return message

    def count(self, dim: int, senders: Int[Array, " chosen"] | None = None) -> None:
        """Count one message of ``dim`` numbers from every client, or from the given ones.

        For messages that nothing happens to (:attr:`exact`) and that need not exist one by one.
        """
        receivers = self._receivers if senders is None else self._receivers[senders]
        self._count(receivers, dim)

    def _count(self, receivers: Array, dim: int) -> None:
        sent = jnp.sum(receivers, dtype=jnp.int32)
        self.traffic = jax.tree.map(jnp.add, self.traffic, Traffic(sent, sent * dim))
