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

    def lie(
        self,
        key: Key[Array, "*senders"],
        messages: Float[Array, "senders dim"],
        attacking: Bool[Array, " senders"],
        sending: Bool[Array, " senders"],
        around: Float[Array, "#senders dim"],
    ) -> Float[Array, "senders dim"]:
        number = jnp.asarray(self.which).astype(jnp.int32)
        lies = [
            messages if choice is None else choice.lie(key, messages, attacking, sending, around)
            for choice in self.choices
        ]
        return jnp.stack([jnp.broadcast_to(lie, messages.shape) for lie in lies])[number]
