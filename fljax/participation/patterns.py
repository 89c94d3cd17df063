"""Patterns of availability: which clients are active in which round."""

from typing import Annotated, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import as_given, field, float_array, module, static

#: Rounds that are static: one number, or one per client.
Rounds: TypeAlias = int | tuple[int, ...]


class Pattern:
    """A pattern of active clients in each round; subclass it to define your own.

    Example:
      Clients of odd and of even numbers in turn:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class InTurn(fl.participation.Pattern):
      ...     def draw(self, state, key, round, clients):
      ...         return state, (jnp.arange(clients, dtype=round.dtype) + round) % 2 == 0
      >>> InTurn().draw((), jax.random.key(0), jnp.int32(1), 4)[1].tolist()
      [False, True, False, True]
    """

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the pattern fits a run of this size."""

    def begin(self, key: Array, clients: int) -> PyTree:
        """Return the state before the first round."""
        return ()

    @checks.required
    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        """Return the next state, and which clients are active in this round."""
        raise NotImplementedError


def check_probability_field(owner: object, name: str) -> None:
    """Raise unless the field is a probability or an array of them; lists become arrays."""
    field_as_array(owner, name)
    checks.interval(name, getattr(owner, name), at_least=0, at_most=1)


def field_as_array(owner: object, name: str) -> None:
    argument = getattr(owner, name)
    value = checks.filled(name, argument)
    if np.ndim(value) > 1:
        raise ValueError(f"{name} must be one number or one a client, got {checks.shown(value)}.")
    if np.ndim(value):
        object.__setattr__(owner, name, float_array(name, argument))


@module
class Always(Pattern):
    """All clients, in every round.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Always()
      >>> state = pattern.begin(jax.random.key(0), 3)
      >>> pattern.draw(state, jax.random.key(1), jnp.int32(1), 3)[1].tolist()
      [True, True, True]
    """

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        return state, jnp.ones(clients, bool)


@module
class Bernoulli(Pattern):
    r"""Each client is active with its own probability, independently per round (section 4.2.2).

    Args:
      probability: :math:`p_k\in[0,1]`, one number or ``[K]``.

    Raises:
      ValueError: a probability outside [0, 1], or not one for each client.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Bernoulli([1.0, 0.0, 1.0])
      >>> state = pattern.begin(jax.random.key(0), 3)
      >>> pattern.draw(state, jax.random.key(1), jnp.int32(1), 3)[1].tolist()
      [True, False, True]
    """

    probability: Annotated[Array, "*clients"] = field(converter=as_given)

    def validate(self) -> None:
        check_probability_field(self, "probability")

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("probability", self.probability, clients)

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        dtype = jnp.result_type(self.probability)
        return state, jax.random.uniform(key, (clients,), dtype) < self.probability


class TwoStates(NamedTuple):
    """Independent two-state Markov chains: in each round a chain turns on with probability
    ``enter`` if it is off, and off with probability ``leave`` if it is on.
    """

    enter: Array | float
    leave: Array | float

    @property
    def share(self) -> Array:
        """Stationary probability that a chain is on."""
        return jnp.asarray(self.enter) / (jnp.asarray(self.enter) + self.leave)

    def after(self, on: Bool[Array, "*chains"], uniform: Float[Array, "*chains"]) -> Array:
        """Return the next states, from one uniform number per chain."""
        return jnp.where(on, uniform >= self.leave, uniform < self.enter)


@module
class Markov(Pattern):
    r"""Clients that fail with probability ``fail`` per round and recover with ``recover``.

    The first round is drawn from the stationary distribution, in which a client is active with
    probability :math:`r/(r+f)`; the lengths of absences are geometric with mean :math:`1/r` rounds.

    Args:
      fail: :math:`f\in[0,1]`, one number or ``[K]``.
      recover: :math:`r\in(0,1]`, one number or ``[K]``.

    Raises:
      ValueError: a probability outside its range, or not one for each client.

    Example:
      A client that always fails and always recovers takes part in every second round:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Markov(fail=1.0, recover=1.0)
      >>> state = pattern.begin(jax.random.key(0), 4)
      >>> state, first = pattern.draw(state, jax.random.key(1), jnp.int32(1), 4)
      >>> state, second = pattern.draw(state, jax.random.key(2), jnp.int32(2), 4)
      >>> bool((first != second).all())
      True
    """

    fail: Annotated[Array, "*clients"] = field(converter=as_given)
    recover: Annotated[Array, "*clients"] = field(converter=as_given)

    def validate(self) -> None:
        check_probability_field(self, "fail")
        field_as_array(self, "recover")
        checks.interval(
            "recover", self.recover, above=0, at_most=1, hint="At 0 a client never comes back."
        )

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("fail", self.fail, clients)
        checks.per_client("recover", self.recover, clients)

    @property
    def _chains(self) -> TwoStates:
        return TwoStates(enter=self.recover, leave=self.fail)

    def begin(self, key: Array, clients: int) -> Bool[Array, " clients"]:
        on = self._chains.share
        return jax.random.uniform(key, (clients,), on.dtype) < on

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        dtype = jnp.result_type(self.fail)
        uniform = jax.random.uniform(key, (clients,), dtype)
        return self._chains.after(state, uniform), state


@module
class Periodic(Pattern):
    """Client ``k`` is active in every ``period[k]``-th round, from round ``offset[k]`` on.

    Args:
      period: rounds, >= 1, one number or ``[K]``.
      offset: the first active round, >= 1, one number or ``[K]``.

    Raises:
      ValueError: a period or offset below 1, or not one for each client.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Periodic(period=[1, 2], offset=[1, 2])
      >>> state = pattern.begin(jax.random.key(0), 2)
      >>> for n in range(1, 5):
      ...     state, on = pattern.draw(state, jax.random.key(n), jnp.int32(n), 2)
      ...     print(on.tolist())
      [True, False]
      [True, True]
      [True, False]
      [True, True]
    """

    period: Annotated[Rounds, "checked"] = field(converter=as_given, static=True, default=1)
    offset: Annotated[Rounds, "checked"] = field(converter=as_given, static=True, default=1)

    def validate(self) -> None:
        for name in ("period", "offset"):
            value = np.asarray(checks.filled(name, checks.as_integers(getattr(self, name))))
            is_valid = np.issubdtype(value.dtype, np.integer) and value.ndim < 2
            if not is_valid or np.any(value < 1):
                argument = checks.shown(getattr(self, name))
                raise ValueError(f"{name} must be whole rounds >= 1, got {argument}.")
            object.__setattr__(self, name, tuple(value.tolist()) if value.ndim else int(value))

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("period", self.period, clients)
        checks.per_client("offset", self.offset, clients)

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        since = round - jnp.asarray(self.offset, jnp.int32)
        on = (since >= 0) & (since % jnp.asarray(self.period, jnp.int32) == 0)
        return state, jnp.broadcast_to(on, (clients,))


@module
class Bounded(Pattern):
    r"""Each client is active with its own probability, and always after ``bound - 1`` absences.

    So every client is active at least once in any ``bound`` consecutive rounds, as assumed by
    *partially asynchronous* methods. :class:`Bernoulli`, under which absences can be of any length,
    is the activity of totally asynchronous ones.

    Args:
      bound: :math:`B\ge1`; at 1 all clients are active in every round.
      probability: :math:`p_k\in[0,1]`, one number or ``[K]``; at 0 a client is active once every
        ``bound`` rounds.

    Raises:
      ValueError: a bound below 1, a probability outside [0, 1], or not one for each client.

    Reference:
      Jung 2025, section 5.8.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> pattern = Bounded(bound=3, probability=0.0)
      >>> state = pattern.begin(jax.random.key(0), 2)
      >>> for n in range(1, 5):
      ...     state, on = pattern.draw(state, jax.random.key(n), jnp.int32(n), 2)
      ...     print(on.tolist())
      [False, False]
      [False, False]
      [True, True]
      [False, False]
    """

    bound: int = static()
    probability: Annotated[Array, "*clients"] = field(converter=as_given)

    def validate(self) -> None:
        checks.count("bound", self.bound)
        check_probability_field(self, "probability")

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("probability", self.probability, clients)

    def begin(self, key: Array, clients: int) -> Int[Array, " clients"]:
        return jnp.zeros(clients, jnp.int32)

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        dtype = jnp.result_type(self.probability)
        on = jax.random.uniform(key, (clients,), dtype) < self.probability
        on = on | (state >= self.bound - 1)
        return jnp.where(on, 0, state + 1), on


@module
class Until(Pattern):
    """Client ``k`` is active in the first ``last[k]`` rounds, then never again.

    Args:
      last: ``[K]`` or one number, >= 0.

    Raises:
      ValueError: a negative number, or not one for each client.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Until([1, 2, 3])
      >>> state = pattern.begin(jax.random.key(0), 3)
      >>> pattern.draw(state, jax.random.key(1), jnp.int32(2), 3)[1].tolist()  # round 2
      [False, True, True]
    """

    last: Annotated[Array, "*clients"] = field(converter=as_given)

    def validate(self) -> None:
        field_as_array(self, "last")
        checks.nonnegative("last", self.last)

    def check(self, clients: int, rounds: int) -> None:
        checks.per_client("last", self.last, clients)

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        last = jnp.asarray(self.last)
        return state, jnp.broadcast_to(round.astype(last.dtype) <= last, (clients,))


@module
class Trace(Pattern):
    """A given table of active clients, observed in a real network or made for a test.

    Args:
      table: ``[T, K]`` booleans: which clients are active in round 1, 2, ...

    Raises:
      ValueError: not a table of booleans; fewer rounds than the run or another number of clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> pattern = fl.participation.Trace([[True, False], [False, True]])
      >>> state = pattern.begin(jax.random.key(0), 2)
      >>> pattern.draw(state, jax.random.key(1), jnp.int32(2), 2)[1].tolist()  # round 2
      [False, True]
    """

    table: Annotated[Array, "rounds clients"] = field(converter=as_given)

    def validate(self) -> None:
        object.__setattr__(self, "table", checks.trace("table", self.table, "booleans"))

    def check(self, clients: int, rounds: int) -> None:
        checks.trace_fits("the participation trace", self.table, clients, rounds)

    def draw(
        self, state: PyTree, key: Array, round: Array, clients: int
    ) -> tuple[PyTree, Bool[Array, " clients"]]:
        return state, jnp.asarray(self.table)[round - 1]


@checked
def groups(values: object, clients: int, *, nested: int = 1) -> np.ndarray:
    """Return ``[K]``: one value per client, from equally large groups with one value each.

    Args:
      values: one value per group.
      clients: ``K``.
      nested: number of blocks of clients that each contain all groups: with ``nested=4`` the
        groups are crossed with four blocks of another kind, ``[a a b b, a a b b, ...]``.

    Raises:
      ValueError: clients that cannot be divided into equal groups, values that are not finite.

    Example:
      >>> groups([0.5, 0.1], 8, nested=2).tolist()
      [0.5, 0.5, 0.1, 0.1, 0.5, 0.5, 0.1, 0.1]
    """
    values = np.asarray(checks.array("values", values))
    checks.count("clients", clients)
    checks.count("nested", nested)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"values must be a list of one value for each group, got {checks.shown(values)}."
        )
    cells = len(values) * nested
    if clients % cells:
        raise ValueError(
            f"{clients} clients cannot be cut into {cells} groups of the same size; take a "
            f"multiple of {cells}."
        )
    checks.finite("values", values)
    return np.tile(np.repeat(values, clients // cells), nested)
