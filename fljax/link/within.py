"""Local steps of a client, each along a perturbed gradient."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax.link.out import Out
from fljax.participation import Participants
from fljax.privacy import NoisyGradients

__all__ = ["Within"]


class Within(Out):
    """The treatment of gradients within a client."""

    def descend(
        self,
        steps: int,
        participants: Participants,
        start: Float[Array, "chosen dim"],
        draw: Callable[[Array], tuple[Any, Float[Array, " chosen"]]],
        move: Callable[[Array, Array], Array],
    ) -> Float[Array, "chosen dim"]:
        """Return the participants' models after local steps, each along the gradient of its own
        batch, perturbed where the budget is spent on gradients.

        Args:
          steps: number of steps of each participant in this round.
          participants: the clients that take them.
          start: ``[M, D]``, which may be public.
          draw: from a key to the batches of a step, a problem of these clients, and the largest
            weight that a sample of each can have in it, ``[M]``.
          move: from models and gradients, ``[M, D]`` each, to the next models.
        """
        key, mechanism = self.key("gradients"), self._stages.privacy

        def one(model: Array, step: Array) -> tuple[Array, Any]:
            k_batch, k_noise = jax.random.split(jax.random.fold_in(key, step))
            batch, share = draw(k_batch)
            if not isinstance(mechanism, NoisyGradients):
                return move(model, batch.gradient(model)), None
            inner = self._within(step)
            slope = inner._slope(mechanism, k_noise, batch, model, share, participants)
            return move(model, slope), inner._told()

        model, told = jax.lax.scan(one, start, jnp.arange(steps, dtype=jnp.int32))
        if told is not None:
            self._hear(told)
        return model

    def _slope(
        self,
        mechanism: NoisyGradients,
        key: Array,
        batch: Any,
        model: Array,
        share: Array,
        participants: Participants,
    ) -> Float[Array, "chosen dim"]:
        """The gradients of one step, as they leave the data."""
        clients, here = participants.numbers, participants.here
        times = jnp.zeros(self._clients, jnp.int32).at[clients].add(here.astype(jnp.int32))
        spent = mechanism.spent(times, model.dtype)
        noise = mechanism.noise(key, model, share)
        sensitivity = mechanism.sensitivity(share)
        clean = mechanism.gradient(batch, model, share)
        return self._leave(clean, noise, sensitivity, spent, clients, here)

    def _within(self, step: Array) -> "Within":
        """A link for one of several steps in a round: what leaves in it is added up afterwards."""
        inner = copy.copy(self)
        inner.spent, inner.rounding = {}, jnp.zeros(())
        return inner

    def _told(self) -> Any:
        """What a step has to tell of what left in it."""
        return self.spent, self.rounding

    def _hear(self, told: Any) -> None:
        """Add up what the steps of a round told, ``[steps, ...]`` each."""
        spent, rounding = told
        for name, value in spent.items():
            self.spent[name] = self.spent.get(name, 0) + jnp.sum(value, axis=0)
        self.rounding = jnp.maximum(self.rounding, jnp.max(rounding))
