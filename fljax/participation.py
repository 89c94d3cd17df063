r"""Participation: availability of clients, arrival of data, selection of clients by the server.

A *pattern* determines which clients are active in each round. The same patterns serve as the
clients' availability (``Simulation(participation=...)``) and as the arrival of their data
(:mod:`fljax.streams`); a client is *available* where it is active in both, since a client without
new data has nothing to contribute (Gauthier 2024, line 1095). A *selector* chooses the clients that
take part. All draws have random keys of their own (:data:`fljax._numerics.PURPOSES`), so that all
algorithms have the same participants under the same seed.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from fljax import _check
from fljax._arguments import checked
from fljax._generator import bernoulli, integers_below, rate_drawn
from fljax._module import float_array, float_dtype, module, static
from fljax._rows import Rows, rows_of
from fljax._sorting import in_order

__all__ = [
    "PACKED_SIZE",
    "ActiveSampling",
    "Always",
    "Bernoulli",
    "Bounded",
    "ByLoss",
    "Cyclic",
    "Drawn",
    "Everyone",
    "Fraction",
    "Law",
    "Markov",
    "Participants",
    "Pattern",
    "PerServer",
    "Periodic",
    "PowerOfChoice",
    "Selector",
    "Subset",
    "Trace",
    "TwoStates",
    "Unequal",
    "Until",
    "distinct",
    "everyone_or",
    "groups",
    "shuffled",
    "subset",
    "systematic",
]

#: Largest number of indices that are sorted packed with random numbers of 20 bits or more.
PACKED_SIZE = 2**11

#: The first of so many times as many indices are selected; for more of them all are sorted.
SELECTED_BELOW = 10

#: Among more units the unit of a point is found by binary search; among fewer the point is compared
#: with all, which XLA does in the same pass over them (a quarter of the time for a hundred).
SEARCHED_BEYOND = 2**9


class Pattern:
    """A pattern of active clients in each round; subclass it to define your own."""

    def check(self, clients: int, rounds: int) -> None:
        """Raise ``ValueError`` unless the pattern fits a run of this size."""

    def begin(self, key: Array, clients: int) -> Any:
        """Return the state before the first round."""
        return ()

    @_check.required
    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
        """Return the next state, and which clients are active in this round."""
        raise NotImplementedError


def _check_probability(owner: Any, name: str) -> None:
    """Raise unless the field is a probability or an array of them; lists become arrays."""
    _as_array(owner, name)
    _check.interval(name, getattr(owner, name), at_least=0, at_most=1)


def _as_array(owner: Any, name: str) -> None:
    given = getattr(owner, name)
    value = _check.filled(name, given)
    if np.ndim(value) > 1:
        raise ValueError(f"{name} must be one number or one a client, got {_check.shown(value)}.")
    if np.ndim(value):
        object.__setattr__(owner, name, float_array(name, given))


@module
class Always(Pattern):
    """All clients, in every round."""

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
        return state, jnp.ones(clients, bool)


@module
class Bernoulli(Pattern):
    r"""Each client is active with its own probability, independently per round (section 4.2.2).

    Args:
      probability: :math:`p_k\in[0,1]`, one number or ``[K]``.

    Raises:
      ValueError: a probability outside [0, 1], or not one for each client.
    """

    probability: Any  # [K] or one number

    def validate(self) -> None:
        _check_probability(self, "probability")

    def check(self, clients: int, rounds: int) -> None:
        _check.per_client("probability", self.probability, clients)

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
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
      recover: :math:`r\in(0,1]`, likewise.

    Raises:
      ValueError: a probability outside its range, or not one for each client.
    """

    fail: Any  # [K] or one number
    recover: Any  # [K] or one number

    def validate(self) -> None:
        _check_probability(self, "fail")
        _as_array(self, "recover")
        _check.interval(
            "recover", self.recover, above=0, at_most=1, hint="At 0 a client never comes back."
        )

    def check(self, clients: int, rounds: int) -> None:
        _check.per_client("fail", self.fail, clients)
        _check.per_client("recover", self.recover, clients)

    @property
    def _chains(self) -> TwoStates:
        return TwoStates(enter=self.recover, leave=self.fail)

    def begin(self, key: Array, clients: int) -> Bool[Array, " clients"]:
        on = self._chains.share
        return jax.random.uniform(key, (clients,), on.dtype) < on

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
        dtype = jnp.result_type(self.fail)
        uniform = jax.random.uniform(key, (clients,), dtype)
        return self._chains.after(state, uniform), state


@module
class Periodic(Pattern):
    """Client ``k`` is active in every ``period[k]``-th round, from round ``offset[k]`` on.

    Args:
      period: rounds, >= 1, one number or ``[K]``.
      offset: the first active round, >= 1, likewise.

    Raises:
      ValueError: a period or offset below 1, or not one for each client.
    """

    period: Any = static(default=1)
    offset: Any = static(default=1)

    def validate(self) -> None:
        for name in ("period", "offset"):
            value = np.asarray(_check.filled(name, _check.wholes(getattr(self, name))))
            whole = np.issubdtype(value.dtype, np.integer) and value.ndim < 2
            if not whole or np.any(value < 1):
                given = _check.shown(getattr(self, name))
                raise ValueError(f"{name} must be whole rounds >= 1, got {given}.")
            object.__setattr__(self, name, tuple(value.tolist()) if value.ndim else int(value))

    def check(self, clients: int, rounds: int) -> None:
        _check.per_client("period", self.period, clients)
        _check.per_client("offset", self.offset, clients)

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
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
    probability: Any  # [K] or one number

    def validate(self) -> None:
        _check.count("bound", self.bound)
        _check_probability(self, "probability")

    def check(self, clients: int, rounds: int) -> None:
        _check.per_client("probability", self.probability, clients)

    def begin(self, key: Array, clients: int) -> Int[Array, " clients"]:
        return jnp.zeros(clients, jnp.int32)

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
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
    """

    last: Any

    def validate(self) -> None:
        _as_array(self, "last")
        _check.nonnegative("last", self.last)

    def check(self, clients: int, rounds: int) -> None:
        _check.per_client("last", self.last, clients)

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
        last = jnp.asarray(self.last)
        return state, jnp.broadcast_to(round.astype(last.dtype) <= last, (clients,))


@module
class Trace(Pattern):
    """A given table of active clients, observed in a real network or made for a test.

    Args:
      table: ``[T, K]`` booleans: which clients are active in round 1, 2, ...

    Raises:
      ValueError: not a table of booleans; fewer rounds than the run or another number of clients.
    """

    table: Any  # Bool[Array, "rounds clients"], NumPy or JAX

    def validate(self) -> None:
        object.__setattr__(self, "table", _check.trace("table", self.table, "booleans"))

    def check(self, clients: int, rounds: int) -> None:
        _check.trace_fits("the participation trace", self.table, clients, rounds)

    def draw(
        self, state: Any, key: Array, round: Array, clients: int
    ) -> tuple[Any, Bool[Array, " clients"]]:
        return state, jnp.asarray(self.table)[round - 1]


@checked
def groups(values: Any, clients: int, *, nested: int = 1) -> np.ndarray:
    """Return ``[K]``: one value per client, from equally large groups with one value each.

    Args:
      values: one value per group.
      clients: ``K``.
      nested: number of blocks of clients, each of which contains all groups: with ``nested=4`` the
        groups are crossed with four blocks of another kind, ``[a a b b, a a b b, ...]``.

    Raises:
      ValueError: clients that cannot be divided into equal groups, values that are not finite.

    Example:
      >>> groups([0.5, 0.1], 8, nested=2).tolist()
      [0.5, 0.5, 0.1, 0.1, 0.5, 0.5, 0.1, 0.1]
    """
    values = np.asarray(_check.array("values", values))
    _check.count("clients", clients)
    _check.count("nested", nested)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"values must be a list of one value for each group, got {_check.shown(values)}."
        )
    cells = len(values) * nested
    if clients % cells:
        raise ValueError(
            f"{clients} clients cannot be cut into {cells} groups of the same size; take a "
            f"multiple of {cells}."
        )
    _check.finite("values", values)
    return np.tile(np.repeat(values, clients // cells), nested)


class Participants(NamedTuple):
    """The clients that take part in a round."""

    clients: Array | None  # [M] client numbers; None for all K
    here: Array  # [M] which of them do; no client twice among these
    #: [M] ``1 / (K p)`` where clients were drawn with unequal probabilities ``p``: the mean of the
    #: messages of these M clients with these weights (and not divided by the sum of the weights,
    #: which depends on the draw) is an unbiased estimate of the mean over all clients; None where
    #: all weights are 1
    weights: Array | None = None

    @property
    def numbers(self) -> Int[Array, " chosen"]:
        """The number of the client of each row."""
        if self.clients is None:
            return jnp.arange(len(self.here), dtype=jnp.int32)
        return self.clients

    def unbiased(
        self, available: Bool[Array, " clients"], counts: Float[Array, " clients"]
    ) -> Float[Array, " chosen"] | None:
        r"""Return the weights with which the participants' sum is an unbiased mean over all.

        .. math:: \omega_k=\frac{c_k}{Mp_k\sum_{l\text{ available}}c_l}

        In expectation over the draw, :math:`\sum_k\omega_kx_k` is the mean of all available
        clients' :math:`x_k`; the sum of the weights is one in expectation, but not in each round.

        Args:
          available: ``[K]``.
          counts: ``[K]``, the weight of each client in that mean.

        Returns:
          ``[M]``, or None where the probabilities are equal and a plain mean of the participants is
          sufficient.
        """
        if self.weights is None:
            return None
        everyone = jnp.sum(jnp.where(available, counts, 0))
        share = self.take(counts) / jnp.where(everyone > 0, everyone, 1)
        factor = len(available) / len(self.here)
        return factor * share * self.weights.astype(counts.dtype)

    def take(self, rows: Any) -> Any:
        """Return the participants' rows of ``[K, ...]`` arrays."""
        if self.clients is None:
            return rows
        return jax.tree.map(lambda a: rows_of(a, self.clients), rows)

    def of(self, problem: Any) -> Any:
        """Return the problem of the participants."""
        return problem if self.clients is None else problem.take(self.clients)

    def put(self, old: Any, new: Array) -> Any:
        """Return ``[K, ...]`` with the participants' rows replaced."""
        if isinstance(old, Rows):
            here = self.here.reshape((-1,) + (1,) * (new.ndim - 1))
            return old.changed(lambda rows: jnp.where(here, new, rows))
        if self.clients is None:
            return jnp.where(self.here.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)
        return old.at[jnp.where(self.here, self.clients, len(old))].set(new, mode="drop")


class _Law(NamedTuple):
    rate: Array | float
    separation: int = 1
    sampling: Literal["poisson", "drawn"] | None = None


_OF_A_TURN = "A client takes part at most once in as many rounds as the separation."


class Law(_Law):
    """The sampling law of a selector or of an algorithm's batches, whatever the data, as returned
    by :meth:`Selector.law` and :meth:`~fljax.algorithms.Algorithm.sampling`.

    Privacy accounting relies on it: under ``"poisson"`` and ``"drawn"`` the reported epsilon is
    amplified by the sampling. A class declares the law of its own draws. A subclass that overrides
    a method by which they are made (``choose``, for instance) does not inherit the law and has to
    declare one itself; ``return super().law(clients)`` states that it is the same. Before a run
    with a budget, laws declared outside of the library are compared with a few thousand draws.

    Args:
      rate: the average share of all clients that takes part, in (0, 1].
      separation: the smallest number of rounds between two participations of a client; or of a
        client's own steps between two batches with the same sample.
      sampling: ``"poisson"`` or ``"drawn"`` (:mod:`fljax.privacy.accounting`): clients are drawn at
        random, independently in each round; ``None``: they are not. With a separation above one
        round, each client is drawn in the rounds of its turn alone, so many rounds apart.

    Raises:
      TypeError, ValueError: numbers outside their ranges, an unknown sampling, a number of drawn
        clients with a separation above one round.
    """

    __slots__ = ()

    def __new__(
        cls,
        rate: Array | float,
        separation: int = 1,
        sampling: Literal["poisson", "drawn"] | None = None,
    ) -> "Law":
        _check.interval("rate", rate, above=0, at_most=1)
        _check.count("separation", separation)
        if sampling is not None:
            _check.choice("sampling", sampling, ("poisson", "drawn"))
            if separation > 1 and sampling == "drawn":
                raise ValueError(
                    f"a client drawn anew in every round may be drawn in two in a row, got "
                    f"separation={separation} beside sampling={sampling!r}; leave one of them out."
                )
            if separation > 1:
                at_most = 1 / separation * (1 + 1e-6)  # as rounded
                _check.interval("rate", rate, above=0, at_most=at_most, hint=_OF_A_TURN)
        return super().__new__(cls, rate, separation, sampling)

    @property
    def rate_of_turn(self) -> Array | float:
        """The average share in the rounds in which it is a client's turn, rounded up."""
        if self.separation == 1:
            return self.rate
        upwards = 1 + 4 * jnp.finfo(jnp.result_type(float)).eps
        return jnp.minimum(self.rate * self.separation * upwards, 1.0)


#: Methods of a selector that do not decide which clients are drawn.
_NOT_DRAWING = frozenset({"check", "validate", "most", "law"})


class Selector:
    """The choice of the clients that take part in a round; subclass it to define your own.

    A :class:`Law` is that of the class that declares it: a subclass that overrides ``choose``, or
    anything else by which clients are drawn, has no law unless it declares its own.

    Example:
      >>> import fljax as fl
      >>> @fl.module
      ... class First(fl.participation.Fraction):
      ...     def choose(self, key, available, network, round=1):
      ...         who = super().choose(key, available, network, round)
      ...         return who._replace(here=who.here.at[0].set(available[0]))
      >>> fl.participation.Fraction(0.1).law(10).sampling, First(0.1).law(10)
      ('poisson', None)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.law is not Selector.law and not declares(cls, "law", _NOT_DRAWING):
            cls.law = Selector.law

    def check(self, clients: int, network: Any = None) -> None:
        """Raise ``ValueError`` unless the selector fits a network of this size."""

    @_check.required
    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        """Return the participants of a round, all of which are available.

        Args:
          key: consumed.
          available: ``[K]``.
          network: of the simulation.
          round: 1, 2, ...
        """
        raise NotImplementedError

    def most(self, clients: int) -> int:
        """Return the largest number of participants among so many clients of a server."""
        return clients

    def law(self, clients: int) -> "Law | None":
        """Return what privacy accounting may assume of the choice; ``None``: nothing."""
        return None


def declares(cls: type, method: str, unrelated: frozenset[str]) -> bool:
    """Whether ``method`` of a class was declared by the class that decides what it is about.

    It was not where a subclass of the declaring class overrides an inherited method or property
    that may change it: the declaration was made for other code.

    Args:
      cls: the class.
      method: name of the declaration, ``"law"`` for instance.
      unrelated: names of methods that do not change what is declared.
    """
    order = cls.__mro__
    for position, each in enumerate(order):
        if method in vars(each):
            return True
        for name, value in vars(each).items():
            special = name.startswith("__") and name != "__getattribute__"
            changes_behavior = callable(value) or hasattr(value, "__get__")
            if special or name in unrelated or not changes_behavior:
                continue
            if any(name in vars(base) for base in order[position + 1 :]):
                return False
    return True


@module
class Everyone(Selector):
    """All available clients."""

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        return Participants(None, available)

    def law(self, clients: int) -> Law:
        return Law(1.0)


@module
class Cyclic(Selector):
    r"""Cohorts in turn: client ``k`` takes part in round ``n`` if ``n - 1 = k`` modulo ``cohorts``.

    With a fraction each client whose turn it is takes part with this probability, independently
    (cyclic Poisson sampling, :func:`fljax.privacy.accounting.cyclic_poisson_epsilon`).

    Args:
      cohorts: >= 1.
      fraction: in [0, 1], of those whose turn it is; all of them by default.

    Raises:
      ValueError: more cohorts than clients, a fraction outside [0, 1].

    Example:
      >>> Cyclic(10).law(100), Cyclic(10, fraction=0.25).law(100).sampling
      (Law(rate=0.1, separation=10, sampling=None), 'poisson')
    """

    cohorts: int = static()
    fraction: Float[Array, ""] | float | None = None

    def validate(self) -> None:
        _check.count("cohorts", self.cohorts)
        if self.fraction is not None:
            _check_probability(self, "fraction")

    def check(self, clients: int, network: Any = None) -> None:
        _check_subset("cohorts", self.cohorts, clients)

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        most = -(-len(available) // self.cohorts)
        turn = (jnp.asarray(round, jnp.int32) - 1) % self.cohorts
        clients = turn + self.cohorts * jnp.arange(most, dtype=jnp.int32)
        real = clients < len(available)
        clients = jnp.where(real, clients, 0)
        here = real & available[clients]
        if self.fraction is not None:
            here = here & bernoulli(key, here.shape, self.fraction)
        return Participants(clients, here)

    def law(self, clients: int) -> Law:
        if self.fraction is None:
            return Law(1 / self.cohorts, self.cohorts)
        if self.cohorts == 1:
            return Law(rate_drawn(self.fraction), sampling="poisson")
        return Law(rate_drawn(self.fraction) / self.cohorts, self.cohorts, sampling="poisson")


@module
class Fraction(Selector):
    r"""Each available client takes part with probability ``fraction``, independently.

    The probability is exact, also where it is small: it is that of :meth:`law`, the fraction in the
    precision in use, rounded down to a multiple of :math:`2^{-64}`.

    Args:
      fraction: :math:`c\in[0,1]`; below :math:`2^{-64}` nobody ever takes part.

    Raises:
      ValueError: a fraction outside [0, 1].
    """

    fraction: Float[Array, ""] | float

    def validate(self) -> None:
        _check_probability(self, "fraction")

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        return Participants(None, available & bernoulli(key, available.shape, self.fraction))

    def law(self, clients: int) -> Law:
        return Law(rate_drawn(self.fraction), sampling="poisson")


@module
class _Counted(Selector):
    """A given number of clients."""

    #: Name of the count in algorithms that take a number instead of a selector.
    argument: ClassVar[str] = "count"

    count: int = static()

    def validate(self) -> None:
        _check.count("count", self.count)

    def check(self, clients: int, network: Any = None) -> None:
        _check_subset(self.argument, self.count, clients)

    def most(self, clients: int) -> int:
        return min(self.count, clients)


@module
class Subset(_Counted):
    """``count`` available clients, drawn uniformly without replacement; all if they are fewer.

    (:class:`Drawn` draws from all clients, whether they are available or not.)

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the number of clients.
    """

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        chosen = shuffled(key, available[None], self.count)[0]
        return Participants(None, available & jnp.zeros_like(available).at[chosen].set(True))


@module
class Drawn(_Counted):
    """``count`` of all clients, drawn uniformly without replacement; drawn clients that are absent
    do not take part.

    So the draw does not depend on anything else, which privacy accounting may use. (:class:`Subset`
    draws from the available clients.)

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the number of clients.
    """

    argument = "clients_per_round"

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        chosen = subset(key, available.shape[0], self.count)
        return Participants(chosen, available[chosen])

    def law(self, clients: int) -> Law:
        return Law(self.count / clients, sampling="drawn")


@module
class Unequal(_Counted):
    r"""``count`` of all clients without replacement, unequal probabilities (Hartley and Rao 1962).

    Clients in random order are placed on a line of length ``count``, client :math:`k` on a segment
    of length :math:`L p_k`; those whose segments contain one of the points
    :math:`u, u+1, \dots, u+L-1`, with a single uniform :math:`u`, take part. So client :math:`k`
    has exactly the inclusion probability :math:`L p_k`. Drawn clients that are absent do not take
    part.

    The server moves its model by :math:`\frac1L\sum_k\frac1{Kp_k}(w_k-w)`, which in expectation is
    its step with all clients; divided by the sum of the weights instead, it would minimize another
    objective. Such a step may go beyond :math:`w_k`, the more so the more rarely a client is drawn.
    An aggregator of the simulation has weights of its own, or none, and a rule that is not linear
    in the messages (that of q-FedAvg or FedExP, a vote of signs) still depends on which clients are
    drawn together.

    Args:
      count: :math:`L\ge 1`.
      probability: :math:`p_k`, ``[K]``: the probability of each client in one of the ``count``
        draws, with sum 1 and at most :math:`1/L` each, so that no client is drawn twice.

    Raises:
      ValueError: not one probability per client, probabilities that do not sum to 1, or are not
        within (0, 1/L].

    Reference:
      Rizk 2023, section 2.4.3, (2.55), with the random order of the original method: without it
      some pairs of clients are never drawn together.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> selector = Unequal(2, [0.5, 0.25, 0.125, 0.125])
      >>> who = selector.choose(jax.random.key(0), jnp.ones(4, bool), None)
      >>> 0 in who.clients.tolist()  # half of two draws: in every round
      True
      >>> (who.weights * selector.probability[who.clients]).tolist()  # 1 / K
      [0.25, 0.25]
    """

    probability: Any  # [K]

    def validate(self) -> None:
        super().validate()
        _as_array(self, "probability")
        p = self.probability
        _check.interval(
            "probabilities",
            p,
            above=0,
            at_most=(1 + 1e-6) / self.count,
            hint=f"Beyond 1/{self.count} a client would be drawn twice among {self.count}.",
        )
        _check.known(self._check_sum, p)

    @staticmethod
    def _check_sum(probability: Any) -> None:
        total = float(np.sum(probability))
        if abs(total - 1) > 1e-5:
            raise ValueError(
                f"probabilities must sum to 1, got {total:g}; divide them by their sum."
            )

    def check(self, clients: int, network: Any = None) -> None:
        if np.shape(self.probability) != (clients,):
            raise ValueError(
                f"probabilities must be one for each of the {clients} clients, got the shape "
                f"{np.shape(self.probability)}."
            )

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        p = jnp.asarray(self.probability)
        chosen = systematic(key, p, self.count, self.count)
        return Participants(chosen, available[chosen], 1 / (len(p) * p[chosen]))


class ByLoss(Selector):
    """A choice by the losses of the current model; subclass it to define your own.

    Some clients, the candidates, evaluate the model on their samples and tell the server their
    losses, by which it chooses. The choice depends on the samples and the losses are told as they
    are, so that no guarantee of privacy covers it.
    """

    @_check.required
    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        """Return the candidates of a round, all of which are available.

        Args:
          key: consumed.
          available: ``[K]``.
          samples: ``[K]``, how many each client has.
        """
        raise NotImplementedError

    @_check.required
    def chosen(
        self,
        key: Array,
        asked: Participants,
        losses: Float[Array, " asked"],
        samples: Int[Array, " asked"],
    ) -> Participants:
        """Return the participants, given the loss and the number of samples of each candidate.

        Args:
          key: consumed.
          asked: the candidates.
          losses: of each, the mean over its samples.
          samples: of each, how many it has.
        """
        raise NotImplementedError

    def check(self, clients: int, network: Any = None) -> None:
        if network is not None:
            raise ValueError(
                f"{type(self).__name__} compares losses of one server's model, and the simulation "
                "has several servers; take fljax.participation.PerServer."
            )
        super().check(clients, network)

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        raise TypeError(
            f"{type(self).__name__} chooses by losses, which a round knows: now.choose(selector, "
            "model)."
        )


@module
class PowerOfChoice(ByLoss, _Counted):
    r"""Of randomly drawn candidates, the ``count`` whose loss of the current model is largest.

    In every round ``candidates`` of the available clients are drawn without replacement, with
    probabilities in proportion to their numbers of samples. They receive the server's model and
    tell it their losses :math:`f_k(w)`, and those with the largest ones take part (with algorithms
    whose clients have models of their own, the losses are those of their own models).

    The choice is biased to clients whom the model fits badly: training is faster the larger the
    share of candidates, but converges to a neighborhood of the minimizer only, whose size grows
    with it. With as many candidates as participants it is a draw by share alone. In the source all
    participants have equal weights at the server, which is ``weighting="equal"`` of
    :class:`~fljax.algorithms.FedAvg` (its default unless the problem has weights).

    Attackers tell their true losses. There is no privacy accounting for it.

    Args:
      count: :math:`m`, the participants of a round, >= 1.
      candidates: :math:`d`, at least ``count``.

    Raises:
      ValueError: a count below 1, fewer candidates than participants, more than there are clients;
        several servers.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=20, samples=10, dim=3)
      >>> selector = fl.participation.PowerOfChoice(4, candidates=8)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1, selector=selector))
      >>> int(fl.run(simulation, rounds=1).scalars[-1])  # models to 8 and from 4, losses of 8
      44

    Reference:
      Cho, Wang & Joshi 2022, section 4.
    """

    candidates: int = static(kw_only=True)
    reference: ClassVar[str | None] = "cho2022"

    def validate(self) -> None:
        super().validate()
        _check.count("candidates", self.candidates)
        if self.candidates < self.count:
            raise ValueError(
                f"candidates must be at least the {self.count} that take part, got "
                f"{self.candidates}."
            )

    def check(self, clients: int, network: Any = None) -> None:
        super().check(clients, network)
        _check_subset("candidates", self.candidates, clients)

    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        # The largest of log p plus Gumbel numbers are a draw without replacement by p.
        there = available & (samples > 0)
        dtype = float_dtype()
        place = jnp.log(jnp.maximum(samples, 1).astype(dtype)) + jax.random.gumbel(
            key, samples.shape, dtype
        )
        place, drawn = jax.lax.top_k(jnp.where(there, place, -jnp.inf), self.candidates)
        return Participants(drawn.astype(jnp.int32), place > -jnp.inf)

    def chosen(
        self,
        key: Array,
        asked: Participants,
        losses: Float[Array, " asked"],
        samples: Int[Array, " asked"],
    ) -> Participants:
        losses = jnp.where(asked.here, losses, -jnp.inf)
        best = jax.lax.top_k(losses, self.count)[1]
        return Participants(asked.numbers[best], asked.here[best])


@module
class ActiveSampling(ByLoss, _Counted):
    r"""``count`` clients, the more probable the larger the loss of the current model on their data.

    All available clients receive the server's model and tell it the value
    :math:`v_k=\sqrt{N_k}f_k(w)` of their data. The :math:`\lfloor\alpha_1K'\rfloor` smallest
    values of the :math:`K'` available clients become :math:`-\infty`, as far as enough are left;
    all but :math:`\lfloor\alpha_3L\rfloor` of the :math:`L` participants are drawn without
    replacement with probabilities in proportion to :math:`e^{\alpha_2v_k}`, the others uniformly
    from all that are left, so that nobody is left out for good.

    In the source a client's value is of the last round in which it took part, which saves the
    messages of all others; here all values are those of the current model. Attackers tell their
    true losses. There is no privacy accounting for it.

    Args:
      count: :math:`L`, the participants of a round, >= 1.
      sharpness: :math:`\alpha_2\ge0`.
      dropped: :math:`\alpha_1`, in [0, 1).
      uniform: :math:`\alpha_3`, in [0, 1].

    Raises:
      ValueError: a count below 1 or above the number of clients, a number out of its range; several
        servers.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=20, samples=10, dim=3)
      >>> selector = fl.participation.ActiveSampling(4, sharpness=0.1)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1, selector=selector))
      >>> int(fl.run(simulation, rounds=1).scalars[-1])  # models to 20 and from 4, losses of 20
      92

    Reference:
      Goetz et al. 2019, Algorithm 1 and section 3.
    """

    sharpness: Float[Array, ""] | float = 0.01
    dropped: float = static(default=0.75)
    uniform: float = static(default=0.1)
    reference: ClassVar[str | None] = "goetz2019"

    def validate(self) -> None:
        super().validate()
        _check.nonnegative("sharpness", self.sharpness)
        _check.interval("dropped", self.dropped, at_least=0, below=1)
        _check.interval("uniform", self.uniform, at_least=0, at_most=1)

    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        return Participants(None, available & (samples > 0))

    def chosen(
        self,
        key: Array,
        asked: Participants,
        losses: Float[Array, " asked"],
        samples: Int[Array, " asked"],
    ) -> Participants:
        k_values, k_rest = jax.random.split(key)
        here, least = asked.here, -jnp.inf
        value = jnp.where(here, jnp.sqrt(samples.astype(losses.dtype)) * losses, jnp.inf)
        # A product that is a whole number but for rounding is that number.
        others = int(self.uniform * self.count + 1e-6)
        there = jnp.sum(here, dtype=losses.dtype)
        lost = jnp.minimum(jnp.floor(self.dropped * there + 1e-5), there - (self.count - others))
        rank = jnp.argsort(jnp.argsort(value)).astype(losses.dtype)
        kept = here & (rank >= lost)
        # The largest of these sums are a draw without replacement by exp(sharpness * value).
        gumbel = jax.random.gumbel(k_values, value.shape, losses.dtype)
        score = jnp.where(kept, self.sharpness * jnp.where(kept, value, 0) + gumbel, least)
        best = jax.lax.top_k(score, self.count - others)[1]
        left = here & jnp.ones_like(here).at[best].set(~kept[best])
        any_order = jax.random.uniform(k_rest, value.shape, losses.dtype)
        rest = jax.lax.top_k(jnp.where(left, any_order, least), others)[1]
        drawn = jnp.concatenate([kept[best], left[rest]])
        return Participants(asked.numbers[jnp.concatenate([best, rest])], drawn)


@module
class PerServer(_Counted):
    """``count`` available clients of each server, drawn uniformly without replacement; all of them
    where fewer are available.

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the clients of some server, no servers.
    """

    argument = "clients_per_server"

    def check(self, clients: int, network: Any = None) -> None:
        sizes = getattr(network, "sizes", None)
        if sizes is None:
            raise ValueError(
                "PerServer chooses among the clients of each server, and the simulation has no "
                "servers with clients of their own; give it "
                "network=fljax.federation.balanced(...), or take fljax.participation.Subset."
            )
        if self.count > sizes.min():
            raise ValueError(
                f"{self.argument} must be at most the {sizes.min()} clients of server "
                f"{sizes.argmin()}, got {self.count}."
            )

    def choose(
        self, key: Array, available: Bool[Array, " clients"], network: Any, round: Array | int = 1
    ) -> Participants:
        members, real = network.members
        here = jnp.asarray(real) & available[members]
        order = shuffled(key, here, self.count)
        clients, here = (
            jnp.take_along_axis(a, order, axis=1) for a in (jnp.asarray(members), here)
        )
        return Participants(clients.reshape(-1), here.reshape(-1))


def everyone_or(selector: type[_Counted], count: int | None) -> Selector:
    """Return :class:`Everyone` where there is no count, otherwise ``selector(count)``."""
    if count is None:
        return Everyone()
    _check.count(selector.argument, count)
    return selector(count)


def _check_subset(name: str, count: int, clients: int) -> None:
    if count > clients:
        raise ValueError(
            f"{name} must be at most the {clients} clients of the problem, got {count}."
        )


def systematic(
    key: Array, probability: Float[Array, " units"], count: Array | int, most: int
) -> Int[Array, " most"]:
    """Draw ``count`` units, unit ``n`` in expectation ``count * probability[n]`` times.

    Units in random order are placed as segments on a line of length ``count``; those whose segments
    contain the points ``u, u + 1, ...`` are drawn. A unit longer than one may be drawn repeatedly.

    Args:
      key: consumed.
      probability: ``[N]``, with sum one.
      count: number of draws, possibly traced.
      most: the largest count; draws beyond ``count`` must be ignored.

    Reference:
      Rizk 2023, section 2.4.3, (2.55), with the random order of Hartley and Rao 1962.
    """
    order, start = jax.random.split(key)
    units = subset(order, len(probability), len(probability))
    start = jax.random.uniform(start, (1,), probability.dtype)
    return on_line(units, start, probability, count, most)[0]


def on_line(
    units: Int[Array, " units"],
    starts: Float[Array, " draws"],
    probability: Float[Array, " units"],
    count: Array | int,
    most: int,
) -> Int[Array, "draws most"]:
    """The units, in this order, whose segments contain ``start``, ``start + 1``, ..."""
    length = probability[units]
    ends = _running(length)
    # Exactly `count` at the end, whatever was rounded.
    ends = ends * (jnp.asarray(count, ends.dtype) / ends[-1])
    points = starts[:, None] + jnp.arange(most, dtype=probability.dtype)[None]
    if len(units) > SEARCHED_BEYOND:
        place = jnp.searchsorted(ends, points, side="right")
    else:
        place = jnp.sum(ends[None, None] <= points[..., None], axis=2, dtype=jnp.int32)
    # Whatever was rounded: never a unit of no length.
    last = jnp.max(jnp.where(length > 0, jnp.arange(len(units), dtype=jnp.int32), 0))
    return units[jnp.minimum(place, last)]


def _running(values: Float[Array, " units"]) -> Float[Array, " units"]:
    """Cumulative sums by doubling of the summed range (Hillis and Steele 1986).

    On a CPU three times as fast as ``jnp.cumsum`` for a hundred numbers, which works by halving.
    """
    reach = 1
    while reach < len(values):
        zero = jnp.zeros((), values.dtype)
        values = values + jax.lax.pad(values, zero, [(reach, -reach, 0)])
        reach *= 2
    return values


def subset(key: Array, clients: int, count: int) -> Int[Array, " count"]:
    """Draw ``count`` clients uniformly without replacement, in random order; every subset of them
    is equally likely, up to a share of ``clients * count / 2**64``.
    """
    if clients <= PACKED_SIZE or count**2 > clients:
        return uniform_subsets(key, jnp.ones((1, clients), bool), count)[0]
    # A million numbers take half a second to sort.
    k_drawn, k_order = jax.random.split(key)
    everyone, some = (jnp.full(1, n, jnp.int32) for n in (clients, count))
    drawn = distinct(k_drawn, everyone, some, (1, 1, count), clients)[0, 0]
    return drawn[shuffled(k_order, jnp.ones(count, bool))]


def distinct(
    key: Array,
    counts: Int[Array, " chosen"],
    sizes: Int[Array, " chosen"],
    shape: tuple[int, int, int],
    none: int,
) -> Int[Array, "chosen steps most"]:
    """Draw ``sizes`` distinct numbers below ``counts`` in each step; remaining places are ``none``.

    Each number is drawn from a range larger by one than the previous; if it was drawn before, the
    newest number of the range replaces it (Floyd; Bentley 1987). Nothing is sorted: ten of a
    hundred samples are drawn in a tenth of the time.
    """
    counts, sizes = counts[:, None, None], sizes[:, None, None]
    place = jnp.arange(shape[2], dtype=jnp.int32)[None, None]
    newest = jnp.broadcast_to(counts - sizes + place, shape)
    drawn = integers_below(key, shape, newest + 1)

    def one(i: Array, chosen: Array) -> Array:
        last, mine = (jax.lax.dynamic_index_in_dim(a, i, axis=2) for a in (newest, drawn))
        mine = jnp.where(jnp.any(chosen == mine, axis=2, keepdims=True), last, mine)
        return jnp.where((place == i) & (i < sizes), mine, chosen)

    return jax.lax.fori_loop(0, shape[2], one, jnp.full(shape, none, jnp.int32))


def uniform_subsets(
    key: Array, first: Bool[Array, "*batch size"], most: int
) -> Int[Array, "*batch most"]:
    """As :func:`shuffled`, but each subset of ``most`` of the marked indices is equally likely,
    exactly.

    In :func:`shuffled` the smaller of two indices with equal random numbers is first, so that small
    indices are drawn too often (one of 2,048 by a thousandth). Here rows whose random numbers are
    equal across the boundary of the chosen ones are drawn anew. Whether they are does not depend on
    which index has which number, so given that they are not, all subsets are equally likely.

    Args:
      key: consumed.
      first: ``[..., n]``.
      most: how many indices of each row are wanted.
    """
    size = first.shape[-1]
    if most >= size:
        return shuffled(key, first, most)

    def tied(number: Array) -> Array:
        return number[..., most - 1] == number[..., most]

    def again(state: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        tries, order, number = state
        other = _ranked(jax.random.fold_in(key, tries), first, most + 1)
        anew = tied(number)[..., None]
        order, number = (
            jnp.where(anew, *both) for both in zip(other, (order, number), strict=True)
        )
        return tries + 1, order, number

    state = (jnp.int32(1), *_ranked(key, first, most + 1))
    order = jax.lax.while_loop(lambda state: jnp.any(tied(state[2])), again, state)[1]
    return order[..., :most]


def shuffled(
    key: Array, first: Bool[Array, "*batch size"], most: int | None = None
) -> Int[Array, "*batch most"]:
    """Return indices of the last axis in random order, those marked ``first`` before the others.

    While both fit, one integer holds a random number and, in its last bits, the index: XLA sorts
    single numbers five times faster than pairs. For equal random numbers the smaller index is
    first, which matters where many indices leave few bits for the random numbers.

    Args:
      key: consumed.
      first: ``[..., n]``.
      most: how many indices of each row are wanted, default all. They are the same ones, found in
        an eighth of the time if they are few of 300, since the others are not sorted.
    """
    return _ranked(key, first, first.shape[-1] if most is None else most)[0]


def _ranked(
    key: Array, first: Bool[Array, "*batch size"], most: int
) -> tuple[Int[Array, "*batch most"], Any]:
    """Indices as of :func:`shuffled`, and the random numbers by which they are in this order."""
    size = first.shape[-1]
    bits = jax.random.bits(key, first.shape, jnp.uint32) >> 1
    bits = jnp.where(first, jnp.uint32(0), jnp.uint32(2**31)) | bits
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), first.shape)
    if size > PACKED_SIZE:
        numbers, order = jax.lax.sort((bits, index), num_keys=1)
        return order[..., :most].astype(jnp.int32), numbers[..., :most]
    width = (size - 1).bit_length()
    # XLA selects single precision, which holds what is left beside an index of eight bits or more.
    if SELECTED_BELOW * most <= size and 32 - width <= jnp.finfo(jnp.float32).nmant + 1:
        score = -(bits >> width).astype(jnp.int32).astype(jnp.float32)
        numbers, order = jax.lax.top_k(score, most)
        return order.astype(jnp.int32), numbers
    low = jnp.uint32(2**width - 1)
    packed = _ascending((bits & ~low) | index)[..., :most]
    return (packed & low).astype(jnp.int32), packed >> width


@jax.custom_batching.custom_vmap
def _ascending(rows: UInt32[Array, "*batch size"]) -> UInt32[Array, "*batch size"]:
    """Sorted along the last axis; rows of all seeds are sorted side by side."""
    flat = rows.reshape(-1, rows.shape[-1], 1)
    return in_order(flat)[0].reshape(rows.shape)


@_ascending.def_vmap
def _ascending_of_seeds(size: int, mapped: list[bool], rows: Array) -> tuple[Array, bool]:
    del size, mapped  # the only argument, with its new axis in front
    return _ascending(rows), True
