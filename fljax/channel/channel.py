"""The channel of one round: every message of an algorithm goes through :meth:`Channel.send`.

An algorithm states what it sends and how sensitive that is to one sample; whether and how it is
perturbed, and what it costs in privacy and traffic, is decided and counted here, so algorithms
carry no code for it. A channel lives for one round inside the traced step; what it counted is
read from it when the step is done.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax.privacy.notions import Notion


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

    def send(
        self,
        message: Float[Array, "clients dim"],
        sensitivity: Float[Array, " clients"],
    ) -> Float[Array, "clients dim"]:
        """Perturb and count one message of every client; returns what its receivers hear.

        The same noisy vector goes to all receivers of a client, so it costs privacy once.

        Args:
          message: ``[K, D]``.
          sensitivity: ``[K]``, the l2 sensitivity of ``message`` to one replaced sample.

        Raises:
          ValueError: a second private message in one round, which no noise schedule provides for.
        """
        self._count(self._receivers, message.shape[1])
        if self._notion is None:
            return message
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

    def publish(self, message: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """Count one message of the server to every client.

        What is computed from perturbed messages is private already and gets no noise.
        """
        self._count(jnp.ones_like(self._receivers), message.shape[-1])
        return message

    def _count(self, receivers: Array, dim: int) -> None:
        sent = jnp.sum(receivers, dtype=jnp.int32)
        self.traffic = jax.tree.map(jnp.add, self.traffic, Traffic(sent, sent * dim))
