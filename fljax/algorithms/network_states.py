"""The states of clients' networks, such as running means of batch normalization, between rounds.

Algorithms see parameters only: gradients, momenta, corrections, norms, clipping and noise never
include a state. The states pass from the local steps of one round to those of the next round
according to the problem's policy (``Model(state=...)``).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core.module import float_dtype
from fljax._core.numerics import with_trailing_axes
from fljax.participation.selectors import Participants


def check_represented_once(name: str, problem: Any) -> None:
    """Raise ``ValueError`` if an algorithm represents held-out data of all clients once, and each
    client would represent them by statistics of its own.
    """
    test = problem.test
    if problem.state_policy == "kept" and test is not None and test.clients < problem.clients:
        raise ValueError(
            f"{name} represents held-out data of all clients once, and clients that keep their "
            "statistics represent them each in another way; give held-out data of each client, or "
            "average the statistics, state='averaged'."
        )


class Training(NamedTuple):
    """The inputs of participants' training besides parameters and samples."""

    state: PyTree  # [M, ...] each, of the participants' networks; () for networks without a state
    keys: Array  # [M]  of the round


class States(NamedTuple):
    """The networks' states between rounds: of the models trained for the server, and of personal
    models.

    Leaves are ``[K, ...]`` if each client has its own state, ``[1, ...]`` if all have the average,
    ``[Q, ...]`` if there are several common models; ``()`` if nothing changes.
    """

    common: PyTree
    personal: PyTree


class NetworkStates:
    """The states of the clients' networks before and after a round.

    Args:
      problem: of the round.
      policy: the policy of the states, as in ``Model(state=...)``.
      key: of the round, for dropout and augmentation.
      before: as in :class:`States`.
    """

    def __init__(self, problem: Any, policy: str | None, key: Array, before: PyTree) -> None:
        self.before = before
        self.after = before
        self.trainings = 0  # sequences of local steps in this round so far
        self.senders = jnp.zeros((), jnp.int32)
        self.publications = 0  # how often the average of this round was sent back in it
        self._problem = problem
        self._policy = policy
        self._key = key
        self._moved: PyTree = None  # of the participants, after their first sequence of steps
        self._groups: Array | None = None  # [M]  the common model of each participant

    def among(self, groups: Int[Array, " chosen"]) -> None:
        """Say which of several common models each participant trains: the states of each model are
        averaged over its own participants.
        """
        self._groups = groups

    def assign(self, state: PyTree) -> None:
        """Give clients the states of models that they did not train, ``[K, ...]`` each."""
        if self._problem.mixes_samples:
            self.after = state

    def of(self, participants: Participants) -> Training | None:
        """Return the inputs of the participants' steps; ``None`` if training and evaluation are the
        same computation.
        """
        problem = self._problem
        if not problem.trains_apart:
            return None
        # Two sequences of steps in a round have different random numbers.
        key = jax.random.fold_in(self._key, self.trainings)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, participants.numbers)
        return Training(self._of_participants(participants), keys)

    def _of_participants(self, participants: Participants) -> PyTree:
        if self._moved is not None:  # later steps of the same round
            return self._moved
        if self._policy == "kept":
            return participants.take(self.before)
        state = self.before if self._policy == "averaged" else self._problem.initial_state()
        if self._policy == "averaged" and self._groups is not None:
            return jax.tree.map(lambda a: a[self._groups], state)
        return _sent_to_all(state, len(participants.here))

    def trained(
        self, participants: Participants, weights: Float[Array, " chosen"] | None, state: PyTree
    ) -> None:
        """Record the participants' states after their steps.

        Args:
          participants: the clients of the rows.
          weights: of each in an average; equal ones by default.
          state: ``[M, ...]`` each.
        """
        self.trainings += 1
        if not self._problem.mixes_samples:
            return
        self._moved = state
        self.senders = jnp.sum(participants.here, dtype=jnp.int32)
        if self._policy == "kept":
            self.after = jax.tree.map(participants.put, self.before, state)
            return
        if self._groups is None:
            self.after = _averaged(participants.here, weights, self.before, state)
            return

        def of_model(number: Array, before: PyTree) -> PyTree:
            trains = participants.here & (self._groups == number)
            before = jax.tree.map(lambda a: a[None], before)
            return jax.tree.map(lambda a: a[0], _averaged(trains, weights, before, state))

        models = jnp.arange(len(jax.tree.leaves(self.before)[0]), dtype=jnp.int32)
        self.after = jax.vmap(of_model)(models, self.before)

    def evaluating(self, part: Any) -> Any:
        """The participants' problem, evaluated with their networks' states after their steps."""
        return part if self._moved is None else part.with_state(self._moved)

    def published(self, participants: Participants, part: Any) -> Any:
        """The participants' problem, evaluated with the states of the round's result: the average,
        which the server sends back to them, or their own where clients keep them.
        """
        if not self._problem.mixes_samples:
            return part
        if self._policy == "kept":
            return part.with_state(participants.take(self.after))
        self.publications += 1
        return part.with_state(_sent_to_all(self.after, len(participants.here)))

    @property
    def sent(self) -> tuple[int, int]:
        """The number of a state's entries that each participant sends in addition to its message,
        and the number that it receives.
        """
        if self._policy not in ("averaged", "reset"):
            return 0, 0
        leaves = jax.tree.leaves(self.before)
        received = sum(leaf.size for leaf in leaves) if self._policy == "averaged" else 0
        of_a_model = sum(leaf[0].size for leaf in leaves)
        return of_a_model, received + self.publications * of_a_model


def _sent_to_all(state: PyTree, count: int) -> PyTree:
    """One model's state, ``[1, ...]`` each, for each of ``count`` participants."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (count, *a.shape[1:])), state)


def _averaged(
    trains: Bool[Array, " chosen"],
    weights: Float[Array, " chosen"] | None,
    before: PyTree,
    state: PyTree,
) -> PyTree:
    """The average of the training clients' states, ``[1, ...]`` each; the state before if no client
    trains.
    """
    shares = trains.astype(float_dtype())
    shares = shares if weights is None else shares * weights
    total = jnp.sum(shares)
    shares = shares / jnp.where(total > 0, total, 1)

    def average(before: Array, new: Array) -> Array:
        if not jnp.issubdtype(new.dtype, jnp.floating):  # counters, and flags of first use
            of_training = jnp.where(with_trailing_axes(trains, new), new, before)
            return jnp.max(of_training, axis=0, keepdims=True)
        mean = jnp.sum(with_trailing_axes(shares.astype(new.dtype), new) * new, axis=0)
        return jnp.where(total > 0, mean[None], before)

    return jax.tree.map(average, before, state)


def states_at_start(problem: Any, has_personal: bool, common_models: int = 1) -> States:
    """The networks' states before the first round.

    Args:
      problem: of the clients.
      has_personal: whether clients also have personal models, each with a state of its own.
      common_models: how many common models there are.
    """
    if not problem.mixes_samples:
        return States((), ())
    state = problem.initial_state()

    def repeated(times: int) -> PyTree:
        return jax.tree.map(lambda a: jnp.broadcast_to(a, (times, *a.shape[1:])), state)

    common = repeated(problem.clients if problem.state_policy == "kept" else common_models)
    return States(common, repeated(problem.clients) if has_personal else ())


def states_after(now: Any) -> States:
    """The networks' states after a round."""
    return States(now.networks.after, now.personal_networks.after)


def numbers_of_states(states: States, policy: str | None) -> Array | None:
    """The states as numbers: ``[S]`` of the average, ``[K, S]`` of clients' own states or of
    personal models; ``None`` if nothing changes.
    """
    leaves = jax.tree.leaves(states.personal or states.common)
    if not leaves:
        return None
    numbers = [leaf.reshape(len(leaf), -1).astype(float_dtype()) for leaf in leaves]
    joined = jnp.concatenate(numbers, axis=1)
    return joined if states.personal or policy == "kept" else joined[0]
