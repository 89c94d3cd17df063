"""Local steps of a client, each along a perturbed gradient."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax import _check
from fljax._linalg import rounded_off
from fljax.link.out import Out
from fljax.participation import Participants
from fljax.privacy import NoisyGradients
from fljax.privacy.discrete import PrivateNoise

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

        Under a budget the gradient of a participant that is not there is zero. Another call in the
        same round draws batches and noise of its own.
        """
        self._descents += 1
        key, mechanism = (
            jax.random.fold_in(self.key("gradients"), self._descents),
            self._stages.privacy,
        )
        # Participants that are drawn with replacement release a gradient as often as drawn.
        present = self._of_clients(participants.numbers, participants.here, once=False)

        def one(model: Array, step: Array) -> tuple[Array, Any]:
            k_batch, k_noise = jax.random.split(jax.random.fold_in(key, step))
            batch, share = draw(k_batch)
            if not isinstance(mechanism, NoisyGradients):
                return move(model, batch.gradient(model)), None
            inner = self._within(step)
            gradient = inner._private_gradient(
                mechanism, k_noise, batch, model, share, participants.numbers, present
            )
            return move(model, gradient), inner._told()

        model, told = jax.lax.scan(one, start, jnp.arange(steps, dtype=jnp.int32))
        if told is not None:
            self._hear(told)
        return model

    def _private_gradient(
        self,
        mechanism: NoisyGradients,
        key: Array,
        batch: Any,
        model: Array,
        share: Array,
        clients: Int[Array, " chosen"],
        present: Bool[Array, " chosen"],
    ) -> Float[Array, "chosen dim"]:
        """The gradients of one step, as they leave the data."""
        spent = mechanism.spent(self._times(clients, present), model.dtype)
        # Noise grows with what rounding inside of the gradient adds to a sample's influence.
        batch = mechanism.clipped(batch, share)
        inexact = 1 + batch.gradient_rounding() / mechanism.moved
        scale = inexact * mechanism.scale(share)
        sensitivity = inexact * mechanism.sensitivity(share)
        noise = PrivateNoise(mechanism.draw(key, model.shape, model.dtype), scale)
        clean = batch.gradient(model)
        rounding = 2 * rounded_off(clean)  # of the regularizer's gradient, and onto the grid
        return self._leave(clean, noise, sensitivity, spent, clients, present, rounding)

    def _within(self, step: Array) -> "Within":
        """A link for one of several steps in a round: what leaves in it is added up afterwards."""
        inner = copy.copy(self)
        inner.spent = {}
        inner.rounding = jnp.zeros(())
        inner.release_rho = jnp.zeros(())
        inner._transformed = _check.transformed()
        return inner

    def _told(self) -> Any:
        """What a step has to tell of what left in it."""
        return self.spent, self.rounding, self.release_rho

    def _hear(self, told: Any) -> None:
        """Add up what the steps of a round told, ``[steps, ...]`` each."""
        spent, rounding, release_rho = told
        for name, value in spent.items():
            self.spent[name] = self.spent.get(name, 0) + jnp.sum(value, axis=0)
        self.rounding = jnp.maximum(self.rounding, jnp.max(rounding))
        self.release_rho = jnp.maximum(self.release_rho, jnp.max(release_rho))
