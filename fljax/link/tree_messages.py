"""Messages among servers of a tree: from each to the server above it, and back.

They are computed from what clients sent to their edges, so that they cost no privacy budget; noise
on them is by a variance. They are neither lost nor delayed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax.link.compression import WORD, Compressor
from fljax.link.outgoing import OutgoingMessages
from fljax.link.uploads import UploadNoise


class TreeMessages(OutgoingMessages):
    """The messages of servers to the servers above them."""

    def climb(
        self,
        models: Float[Array, "servers dim"],
        above: Float[Array, "parents dim"],
        parents: Int[Array, " servers"],
        *,
        level: int,
        sending: Bool[Array, " servers"],
        weights: Float[Array, " servers"],
        reference: Float[Array, "servers dim"],
        compression: Compressor | None = None,
        noise: UploadNoise | None = None,
    ) -> Float[Array, "parents dim"]:
        """Send servers' models to the servers above; return the weighted means of what arrives.

        Args:
          models: ``[P, D]``, of the servers of a level.
          above: ``[P', D]``, of the servers above, which keep theirs where nothing arrives.
          parents: ``[P]``, the server above each.
          level: of the senders, 1 for the edges.
          sending: ``[P]``, which of them send.
          weights: ``[P]`` > 0, of each in the mean of the server above.
          reference: ``[P, D]``, known to both ends; differences from it are compressed.
          compression: of the messages; none by default.
          noise: of the senders on their messages; none by default.
        """
        dim = models.shape[1]
        bits = WORD * dim if compression is None else compression.bits(dim)
        self._count(jnp.sum(sending, dtype=jnp.int32), dim, down=bits)
        sent = self._send_unprotected(models, "what servers tell the servers above them")
        if noise is not None:
            sent = noise.onto(self._keys_of_servers("uploads", level, len(models)), sent, None)
        if compression is not None:
            keys = self._keys_of_servers("compression", level, len(models))
            sent = reference + compression.compress(keys, sent - reference)
        weight = jnp.where(sending, weights, 0)
        total = jax.ops.segment_sum(weight[:, None] * sent, parents, len(above))
        arrived = jax.ops.segment_sum(weight, parents, len(above))[:, None]
        return jnp.where(arrived > 0, total / jnp.where(arrived > 0, arrived, 1), above)

    def _keys_of_servers(self, purpose: str, level: int, servers: int) -> Array:
        """One key for each server of a level, which no client and no other level has."""
        key = jax.random.fold_in(self.key(purpose), 2 * self._clients + level)
        return jax.vmap(lambda s: jax.random.fold_in(key, s))(jnp.arange(servers, dtype=jnp.int32))
