"""Attacks by number, so that one program has all of them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fljax import attacks, module

__all__ = ["OneOf"]


@module
class OneOf(attacks.Attack):
    """The attack of this number, which may be traced; ``None`` leaves messages as they are."""

    which: Float[Array, ""] | int  # numbers of a part are floating point
    choices: tuple[attacks.Attack | None, ...]

    def forge(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        reference: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        number = jnp.asarray(self.which).astype(jnp.int32)
        forged = [
            messages
            if choice is None
            else choice.forge(key, messages, attacking, sending, reference)
            for choice in self.choices
        ]
        return jnp.stack([jnp.broadcast_to(each, messages.shape) for each in forged])[number]
