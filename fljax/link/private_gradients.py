"""Local steps of a client, each along a perturbed gradient."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core import checks
from fljax._core.linalg import rounding_distance
from fljax.link.outgoing import OutgoingMessages, first_rows
from fljax.participation.selectors import Participants
from fljax.privacy import GradientMechanism
from fljax.privacy.correlation import Coding
from fljax.privacy.discrete import PrivateNoise


class GradientRows(NamedTuple):
    """The clients of the rows of a step."""

    clients: Int[Array, " chosen"]
    present: Bool[Array, " chosen"]
    number: Int[Array, " chosen"]  # each client's number of steps before this one
    coding: Coding | None  # state of each client's correlated noise


class PrivateGradients(OutgoingMessages):
    """Local steps along gradients that are perturbed before they leave the data."""

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
            elsewhere the number is that of a client that takes part in all rounds, each with one
            call.
          move: from models and gradients, ``[M, D]`` each, to the next models.

        Under a budget the gradient of an absent participant is zero. Another call in the
        same round draws batches and noise of its own. Where steps are counted, only the first row
        of a client takes them.

        Raises:
          ValueError: where steps are counted, a client that is known to have two rows, and more
            steps in a round than the algorithm says.
        """
        self._descents += 1
        key = jax.random.fold_in(self.key("gradients"), self._descents)
        mechanism = self._stages.privacy
        clients = participants.numbers
        counted = self.memory.steps is not None
        # Participants drawn with replacement release a gradient in each of their rows.
        present = self._of_existing_clients(clients, participants.here, once=counted)
        if counted:
            present = first_rows(clients, present, self._clients)
        first = self._next_numbers(clients, steps)
        # Rows without a participant get some client's state, which is not used.
        coding = jax.tree.map(lambda leaf: leaf[clients], self._stored_coding)

        def take_step(carry: tuple[Array, Any], step: Array) -> tuple[tuple[Array, Any], Any]:
            (model, coding), number = carry, first + step
            k_batch, k_noise = jax.random.split(jax.random.fold_in(key, step))
            batch, share = draw(k_batch, number)
            if self._stages.scope != "gradient":
                return (move(model, batch.gradient(model)), coding), None
            inner = self._nested_link(step)
            rows = GradientRows(clients, present, number, coding)
            gradient, coding = inner._private_gradient(
                mechanism, k_noise, batch, model, share, rows
            )
            return (move(model, gradient), coding), inner._step_record()

        (model, coding), step_records = jax.lax.scan(
            take_step, (start, coding), jnp.arange(steps, dtype=jnp.int32)
        )
        if step_records is not None:
            self._merge_records(step_records)
        if counted:
            self._store(clients, present, first + steps, coding)
        return model

    @property
    def _stored_coding(self) -> Coding | None:
        """The state of a strategy at each client, ``[K, ...]``, if there is one."""
        return self.memory.mechanism if self._stages.scope == "gradient" else None

    def _next_numbers(self, clients: Int[Array, " chosen"], steps: int) -> Int[Array, " chosen"]:
        """The numbers of the participants' next steps."""
        taken = self._steps
        self._steps += steps
        if self.memory.steps is None:
            before = (self._round.astype(jnp.int32) - 1) * steps + taken
            return jnp.broadcast_to(before, clients.shape)
        plan = self._plan
        if plan is not None and checks.is_concrete(plan.steps) and self._steps > plan.steps:
            raise ValueError(
                f"a client takes {self._steps} steps in a round, and the algorithm says that it "
                f"takes {plan.steps} (local_steps), of which the budget's plan is made."
            )
        return self.memory.steps[clients]

    def _store(
        self,
        clients: Int[Array, " chosen"],
        present: Bool[Array, " chosen"],
        steps: Int[Array, " chosen"],
        coding: Coding | None,
    ) -> None:
        """Store the number of steps and the coding state of the clients that took steps."""
        at = jnp.where(present, clients, self._clients)

        def put(old: Array, new: Array) -> Array:
            return old.at[at].set(new, mode="drop")

        self.memory = self.memory._replace(steps=put(jnp.asarray(self.memory.steps), steps))
        if coding is not None:
            coded = jax.tree.map(put, self._stored_coding, coding)
            self.memory = self.memory._replace(mechanism=coded)

    def _private_gradient(
        self,
        mechanism: GradientMechanism,
        key: Array,
        batch: PyTree,
        model: Array,
        share: Array,
        rows: GradientRows,
    ) -> tuple[Float[Array, "chosen dim"], Coding | None]:
        """The perturbed gradients of one step, and the next states of the strategy."""
        clients, present, number, coding = rows
        if self._plan is None:
            spent = mechanism.spent(self._rows_per_client(clients, present), model.dtype)
        else:
            at = jnp.where(present, clients, self._clients)
            spent = {
                name: jnp.zeros(self._clients, model.dtype).at[at].add(value, mode="drop")
                for name, value in mechanism.spent_by_turns(self._plan, number, model.dtype).items()
            }
        # Rounding inside the gradient adds to a sample's influence, and the noise grows by as much.
        batch = mechanism.clipped(batch, share)
        inexact = 1 + batch.gradient_rounding() / mechanism.moved
        drawn = mechanism.draw(key, model.shape, model.dtype)
        if mechanism.alone:
            noise = PrivateNoise(drawn, inexact * mechanism.scale(share))
            sensitivity = inexact * mechanism.sensitivity(share)
            clean = batch.gradient(model)
            # Adding the regularizer's gradient, and rounding to the grid.
            rounding = 2 * rounding_distance(clean)
            left = self._release_private(
                clean, noise, sensitivity, spent, clients, present, rounding
            )
            return left, None
        # In units of the noise's standard deviation, so that all numbers have the same noise.
        unit = inexact * mechanism.units(share, model.shape[1])
        exposed = (share > 0).astype(model.dtype)
        row = mechanism.loss_gradient(batch, model) / unit
        sensitivity = exposed * jnp.asarray(mechanism.moved / mechanism.multiplier, row.dtype)
        noise = PrivateNoise(drawn, exposed)
        rounding = rounding_distance(row)  # by the division
        release_rho = None
        if coding is not None:
            assert self._plan is not None
            sensitivity_plan = self._plan.turns
            coding, row, rounding = mechanism.encoded(self._plan, coding, row)
            sensitivity = sensitivity * jnp.sqrt(sensitivity_plan.costs[0]).astype(row.dtype)
            noise = noise._replace(releases=sensitivity_plan.affected)
            release_rho = mechanism.release_rho(self._plan, row.dtype)
        rounding = rounding + rounding_distance(row)  # onto the grid
        left = self._release_private(
            row, noise, sensitivity, spent, clients, present, rounding, release_rho
        )
        if coding is not None:
            coding, left = mechanism.decoded(coding, left)
        # The regularizer's gradient is public: it needs neither noise nor encoding.
        gradient = unit * left + batch.regularizer_gradient(model)
        return jnp.where(present[:, None], gradient, 0), coding

    def _nested_link(self, step: Array) -> "PrivateGradients":
        """A link for one of several steps in a round, with an empty ledger of its own.

        The steps are traced once in a scan; :meth:`_merge_records` adds their ledgers up.
        """
        inner = copy.copy(self)
        inner.spent = {}
        inner.rounding = jnp.zeros(())
        inner.release_rho = jnp.zeros(())
        inner._transformed = checks.trace_state()
        return inner

    def _step_record(self) -> Any:
        """The ledger of one step."""
        return self.spent, self.rounding, self.release_rho

    def _merge_records(self, step_records: Any) -> None:
        """Add the ledgers of a round's steps, ``[steps, ...]`` each, to the round's."""
        spent, rounding, release_rho = step_records
        for name, value in spent.items():
            self.spent[name] = self.spent.get(name, 0) + jnp.sum(value, axis=0)
        self.rounding = jnp.maximum(self.rounding, jnp.max(rounding))
        self.release_rho = jnp.maximum(self.release_rho, jnp.max(release_rho))
