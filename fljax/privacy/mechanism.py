"""What every privacy mechanism declares, and what one must have for each place of its noise.

A mechanism is a class with a ``scope``, the place where its noise is added: ``"message"``, a
:class:`~fljax.privacy.Notion`; ``"server"``, a :class:`ServerMechanism`; ``"gradient"``, a
:class:`GradientMechanism`. Algorithms name the scopes under which they run
(:class:`~fljax.algorithms.Needs`), and nothing in the library asks for a class: one with the
attributes and methods of its scope is a mechanism like the library's.

A mechanism may also declare:

* ``gaussian_noise``: see :func:`fljax.privacy.notions.is_gaussian`;
* ``refuses``: the parts of a :class:`~fljax.Simulation` that its account does not cover, each with
  a reason, as the end of the sentence "it has no account for ...";
* ``reference``: a key of ``references.bib``, or a tuple of keys;
* ``promise``: a :class:`Promise`; every mechanism of the library has one.
"""

import inspect
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from fljax.participation.selectors import Law, Selector
from fljax.problems import Problem

#: What a mechanism keeps of a whole run, between rounds or steps, and of a release: its own.
Plan = TypeVar("Plan")
State = TypeVar("State")
Release = TypeVar("Release")

#: The place where noise is added: to the messages of clients, at a trusted server, or to gradients.
Scope: TypeAlias = Literal["message", "server", "gradient"]

#: Premises of Gaussian releases that secret sampling amplifies.
SAMPLED_RELEASES = ("grid", "noise", "keys", "law", "rate", "booked", "only exit")


class Promise(NamedTuple):
    """What a mechanism of the library guarantees, and on which premises."""

    statement: str
    theorem: str
    premises: tuple[str, ...]  # keys of `fljax.privacy.premises.PREMISES`


class Mechanism(Protocol):
    """What all mechanisms declare.

    Attributes:
      scope: the place where noise is added, ``"message"``, ``"server"`` or ``"gradient"``.
      ledger: names of the accounted quantities, each one number per client.
      neighbors: the relation of neighboring data sets for which the guarantee holds.
    """

    scope: ClassVar[Scope]
    ledger: ClassVar[tuple[str, ...]]

    @property
    def neighbors(self) -> str: ...


@runtime_checkable
class ServerMechanism(Mechanism, Protocol[Plan, State, Release]):
    """Noise of a trusted server, on the sum of the clients' clipped updates.

    :class:`~fljax.privacy.CentralGaussian` is one, and documents the arguments. The state that
    ``begin`` returns has a field ``clip``, the largest norm of an update in the next round.

    Attributes:
      moved: sensitivity of the sum, in clips.
    """

    @property
    def moved(self) -> float: ...
    def plan(self, selector: Selector, clients: int, rounds: int) -> Plan: ...
    def begin(self, dim: int, dtype: DTypeLike, clients: int) -> State: ...
    def release(
        self,
        plan: Plan,
        state: State,
        key: Array,
        total: Float[Array, " dim"],
        within: Float[Array, ""],
        count: Float[Array, ""],
    ) -> Release: ...
    def after(
        self,
        plan: Plan,
        state: State,
        release: Release,
        perturbed: Float[Array, " numbers"],
        took_part: Bool[Array, " clients"],
    ) -> tuple[Float[Array, " dim"], State]: ...
    def spent(
        self, plan: Plan, state: State, took_part: Bool[Array, " clients"], dtype: DTypeLike
    ) -> dict[str, Array]: ...
    def release_rho(self, plan: Plan) -> Array: ...
    def sampled(self, plan: Plan, law: Law, clients: int) -> dict[str, Array]: ...


@runtime_checkable
class GradientMechanism(Mechanism, Protocol[Plan, State]):
    """Noise of a client on its gradient in every step.

    :class:`~fljax.privacy.NoisyGradients` is one, and documents the methods. Those from ``units``
    on are called only where ``alone`` is false, or where there is a plan.

    Attributes:
      moved: sensitivity of a sum of clipped gradients, in clips.
      multiplier: the noise multiplier of a step.
      alone: whether noise is independent and the same for all numbers of a gradient.
      counts_steps: whether noise depends on the number of a client's own steps.
    """

    @property
    def moved(self) -> float: ...
    @property
    def multiplier(self) -> Array | float: ...
    @property
    def alone(self) -> bool: ...
    @property
    def counts_steps(self) -> bool: ...
    def check(self, problem: Problem) -> None: ...
    def plan(self, law: Law | None, steps: int | None, rounds: int) -> Plan | None: ...
    def begin(self, dim: int, dtype: DTypeLike, clients: int) -> State | None: ...
    def clipped(self, batch: Problem, share: Float[Array, " clients"]) -> Problem: ...
    def loss_gradient(self, clipped: Problem, model: Float[Array, "clients dim"]) -> Array: ...
    def draw(self, key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array: ...
    def scale(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]: ...
    def sensitivity(self, share: Float[Array, " clients"]) -> Float[Array, " clients"]: ...
    def spent(self, times: Int[Array, " clients"], dtype: DTypeLike) -> dict[str, Array]: ...
    def sampled(self, plan: Plan | None, law: Law, records: Array | int) -> dict[str, Array]: ...
    def units(self, share: Float[Array, " clients"], dim: int) -> Float[Array, "clients dim"]: ...
    def encoded(
        self, plan: Plan, coding: State, rows: Float[Array, "clients dim"]
    ) -> tuple[State, Float[Array, "clients dim"], Float[Array, " clients"]]: ...
    def decoded(
        self, coding: State, rows: Float[Array, "clients dim"]
    ) -> tuple[State, Float[Array, "clients dim"]]: ...
    def spent_by_turns(
        self, plan: Plan, number: Int[Array, " clients"], dtype: DTypeLike
    ) -> dict[str, Array]: ...
    def release_rho(self, plan: Plan, dtype: DTypeLike) -> Array: ...


def missing_members(mechanism: object, protocol: type) -> list[str]:
    """The attributes and methods of a protocol that an object does not have.

    Unlike ``isinstance``, this computes no properties, whose results may be arrays.
    """
    members = {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in {*vars(base), *vars(base).get("__annotations__", ())}
        if not name.startswith("_")
    }
    absent = object()
    return sorted(
        name for name in members if inspect.getattr_static(mechanism, name, absent) is absent
    )
