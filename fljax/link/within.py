"""Local steps of a client, each along a perturbed gradient."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax import _check
from fljax._linalg import rounded_off
from fljax.link.out import Out, first_rows
from fljax.participation import Participants
from fljax.privacy import NoisyGradients
from fljax.privacy.correlation import Coding
from fljax.privacy.discrete import PrivateNoise

__all__ = ["Rows", "Within"]


class Rows(NamedTuple):
    """Whose gradients the rows of a step are."""

    clients: Int[Array, " chosen"]
    present: Bool[Array, " chosen"]
    number: Int[Array, " chosen"]  # of each client's step
    coding: Coding | None  # of each client's strategy


class Within(Out):
    """The treatment of gradients within a client."""

    def descend(
        self,
        steps: int,
        participants: Participants,
        start: Float[Array, "chosen dim"],
        draw: Callable[[Array, Int[Array, " chosen"]], tuple[Any, Float[Array, " chosen"]]],
        move: Callable[[Array, Array], Array],
    ) -> Float[Array, "chosen dim"]:
        """Return the participants' models after local steps, each along the gradient of its own
        batch, perturbed where the budget is spent on gradients.

        Args:
          steps: number of steps of each participant in this round.
          participants: the clients that take them.
          start: ``[M, D]``, which may be public.
          draw: from a key, and the number of each client's step from zero, ``[M]``, to the batches
            of a step: a problem of these clients, and the largest weight that a sample of each can
            have in it, ``[M]``. Each client's own steps are counted where the algorithm's
            :class:`~fljax.participation.Law` of batches has turns or the budget a strategy;
            elsewhere the number is that of a client that is there in all rounds, each of one call.
          move: from models and gradients, ``[M, D]`` each, to the next models.

        Under a budget the gradient of a participant that is not there is zero. Another call in the
        same round draws batches and noise of its own. Where steps are counted, only the first row
        of a client takes them.

        Raises:
          ValueError: where steps are counted, a client that is known to have two rows, and more
            steps in a round than the algorithm says.
        """
        self._descents += 1
        key, mechanism = (
            jax.random.fold_in(self.key("gradients"), self._descents),
            self._stages.privacy,
        )
        clients, counted = participants.numbers, self.memory.steps is not None
        # Participants that are drawn with replacement release a gradient as often as drawn.
        present = self._of_clients(clients, participants.here, once=counted)
        if counted:
            present = first_rows(clients, present, self._clients)
        first = self._first_numbers(clients, steps)
        # Of each participant; nobody's where there is none.
        coding = jax.tree.map(lambda leaf: leaf[clients], self._coding)

        def one(carry: tuple[Array, Any], step: Array) -> tuple[tuple[Array, Any], Any]:
            (model, coding), number = carry, first + step
            k_batch, k_noise = jax.random.split(jax.random.fold_in(key, step))
            batch, share = draw(k_batch, number)
            if not isinstance(mechanism, NoisyGradients):
                return (move(model, batch.gradient(model)), coding), None
            inner = self._within(step)
            rows = Rows(clients, present, number, coding)
            gradient, coding = inner._private_gradient(
                mechanism, k_noise, batch, model, share, rows
            )
            return (move(model, gradient), coding), inner._told()

        (model, coding), told = jax.lax.scan(
            one, (start, coding), jnp.arange(steps, dtype=jnp.int32)
        )
        if told is not None:
            self._hear(told)
        if counted:
            self._remember(clients, present, first + steps, coding)
        return model

    @property
    def _coding(self) -> Coding | None:
        """The state of a strategy at each client, ``[K, ...]``, if there is one."""
        strategic = isinstance(self._stages.privacy, NoisyGradients)
        return self.memory.mechanism if strategic else None

    def _first_numbers(self, clients: Int[Array, " chosen"], steps: int) -> Int[Array, " chosen"]:
        """The numbers of the participants' next steps."""
        taken = self._steps
        self._steps += steps
        if self.memory.steps is None:
            before = (self._round.astype(jnp.int32) - 1) * steps + taken
            return jnp.broadcast_to(before, clients.shape)
        plan = self._plan
        if plan is not None and _check.is_concrete(plan.steps) and self._steps > plan.steps:
            raise ValueError(
                f"a client takes {self._steps} steps in a round, and the algorithm says that it "
                f"takes {plan.steps} (local_steps), of which the budget's plan is made."
            )
        return self.memory.steps[clients]

    def _remember(
        self,
        clients: Int[Array, " chosen"],
        present: Bool[Array, " chosen"],
        steps: Int[Array, " chosen"],
        coding: Coding | None,
    ) -> None:
        """Keep what those who took steps go on from; others keep what they had."""
        at = jnp.where(present, clients, self._clients)

        def put(old: Array, new: Array) -> Array:
            return old.at[at].set(new, mode="drop")

        self.memory = self.memory._replace(steps=put(jnp.asarray(self.memory.steps), steps))
        if coding is not None:
            kept = jax.tree.map(put, self._coding, coding)
            self.memory = self.memory._replace(mechanism=kept)

    def _private_gradient(
        self,
        mechanism: NoisyGradients,
        key: Array,
        batch: Any,
        model: Array,
        share: Array,
        rows: Rows,
    ) -> tuple[Float[Array, "chosen dim"], Coding | None]:
        """The gradients of one step, as they leave the data, and the strategy's next states."""
        clients, present, number, coding = rows
        if self._plan is None:
            spent = mechanism.spent(self._times(clients, present), model.dtype)
        else:
            at = jnp.where(present, clients, self._clients)
            spent = {
                name: jnp.zeros(self._clients, model.dtype).at[at].add(value, mode="drop")
                for name, value in mechanism.spent_by_turns(self._plan, number, model.dtype).items()
            }
        # Noise grows with what rounding inside of the gradient adds to a sample's influence.
        batch = mechanism.clipped(batch, share)
        inexact = 1 + batch.gradient_rounding() / mechanism.moved
        drawn = mechanism.draw(key, model.shape, model.dtype)
        if mechanism.alone:
            noise = PrivateNoise(drawn, inexact * mechanism.scale(share))
            sensitivity = inexact * mechanism.sensitivity(share)
            clean = batch.gradient(model)
            rounding = 2 * rounded_off(clean)  # of the regularizer's gradient, and onto the grid
            left = self._leave(clean, noise, sensitivity, spent, clients, present, rounding)
            return left, None
        # In deviations of its noise, in which all numbers have the same noise.
        unit = inexact * mechanism.units(share, model.shape[1])
        exposed = (share > 0).astype(model.dtype)
        row = mechanism.loss_gradient(batch, model) / unit
        sensitivity = exposed * jnp.asarray(mechanism.moved / mechanism.multiplier, row.dtype)
        noise = PrivateNoise(drawn, exposed)
        rounding = rounded_off(row)  # of the division
        release_rho = None
        if coding is not None:
            assert self._plan is not None
            turns = self._plan.turns
            coding, row, rounding = mechanism.encoded(self._plan, coding, row)
            sensitivity = sensitivity * jnp.sqrt(turns.costs[0]).astype(row.dtype)
            noise = noise._replace(releases=turns.affected)
            release_rho = mechanism.release_rho(self._plan, row.dtype)
        rounding = rounding + rounded_off(row)  # onto the grid
        left = self._leave(row, noise, sensitivity, spent, clients, present, rounding, release_rho)
        if coding is not None:
            coding, left = mechanism.decoded(coding, left)
        # The regularizer's gradient is public: it needs neither noise nor encoding.
        gradient = unit * left + batch.regularizer_gradient(model)
        return jnp.where(present[:, None], gradient, 0), coding

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
