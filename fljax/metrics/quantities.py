"""What metrics may need of a simulation: one registry of quantities, each with its conditions.

A metric names them, ``Metric(..., needs={"drift"})``. To add a quantity, add an entry to
:data:`QUANTITIES`; nothing else knows of single ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float

from fljax._core.annotations import check_fields
from fljax.clock.round_clock import PHASES
from fljax.graphs import Graph
from fljax.link import Link
from fljax.problems import Loss, Problem
from fljax.problems.streams import Stream

__all__ = ["QUANTITIES", "Quantity", "held_out"]


@runtime_checkable  # for the tests, which check annotations
class Setting(Protocol):
    """The parts of a :class:`~fljax.Simulation` that decide what metrics can be computed."""

    @property
    def problem(self) -> Any: ...
    @property
    def network(self) -> Any: ...
    @property
    def privacy(self) -> Any: ...
    @property
    def clock(self) -> Any: ...


@dataclass(frozen=True)
class Quantity:
    """Something that a metric may need and that not every simulation has.

    Attributes:
      lacking: what a simulation, whose metrics evaluate this problem, would have to have for it and
        has not, as the end of the sentence "the metric needs ..."; an empty text if nothing.
      of_round: for what exists within a round only: its value ``[K]``, NaN for clients without one,
        from the algorithm's name and the round's link after the step. It is kept until the round is
        recorded, and only if a metric needs it; ``Snapshot.quantities`` holds it by its name.
    """

    lacking: Callable[[Setting, Problem | Stream], str]
    of_round: Callable[[str, Link], Float[Array, " clients"]] | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def held_out(problem: Problem | Stream) -> Any:
    """The data that models are evaluated on: per client, per cluster, or one set for all clients.

    Args:
      problem: a :class:`~fljax.problems.Problem` with ``test``, or with tasks that have it; or a
        :class:`~fljax.streams.Stream` with ``test``.

    Returns:
      A problem with one row for each such data set; ``None`` without held-out data.
    """
    tasks = getattr(problem, "tasks", None)
    return problem.test if problem.test is not None or tasks is None else tasks.test


def _part_of_tasks(part: str) -> Quantity:
    def lacking(simulation: Setting, problem: Problem | Stream) -> str:
        if getattr(getattr(problem, "tasks", None), part, None) is not None:
            return ""
        return f"a problem with tasks=fljax.problems.Tasks({part}=...)"

    return Quantity(lacking)


def _lacking_noise(simulation: Setting, problem: Problem | Stream) -> str:
    if simulation.privacy is not None and simulation.privacy.scope == "message":
        return ""
    return "private messages; give the simulation privacy= on messages, such as ZCDP"


def _signal_to_noise(algorithm: str, link: Link) -> Array:
    assert link.signal_to_noise is not None  # every round of a private run has a message
    return link.signal_to_noise


def _lacking_clients(simulation: Setting, problem: Problem | Stream) -> str:
    if not simulation.problem.on_disk:
        return ""
    return "clients in memory, and those of a population are on disk"


def _participants(algorithm: str, link: Link) -> Array:
    return link.participants


def _lacking_test(simulation: Setting, problem: Problem | Stream) -> str:
    has_test = held_out(problem) is not None
    return "" if has_test else "held-out data; give the problem or the stream test="


def _lacking_labels(simulation: Setting, problem: Problem | Stream) -> str:
    if lacking := _lacking_test(simulation, problem):
        return lacking
    loss = type(held_out(problem).loss)
    classifies = loss.correct is not Loss.correct
    return "" if classifies else f"labels, and {loss.__name__} is no loss of a classifier"


def _lacking_graph(simulation: Setting, problem: Problem | Stream) -> str:
    if isinstance(simulation.network, Graph):
        return ""
    return "a graph that is the same in all rounds; give network=fljax.graphs..."


def _lacking_optimum(simulation: Setting, problem: Problem | Stream) -> str:
    if not simulation.problem.linear:
        return "an optimum, which is not known of a network; use train_error"
    if simulation.problem.on_disk:
        return (
            "the optimum, which is that of all clients' data, and those of a population are on "
            "disk; use train_error or test_error"
        )
    if isinstance(problem, Stream) and problem.truth is None:
        return "an optimum, which is not known of this stream; use test_error"
    return ""


def _lacking_data(simulation: Setting, problem: Problem | Stream) -> str:
    if problem.online:
        return "all data at once, which a stream does not hold; use test_error"
    if problem.on_disk:
        return (
            "clients' data, and those of a population are on disk; say of which clients, "
            "from_population(evaluated=[...])"
        )
    return ""


def _lacking_nothing(simulation: Setting, problem: Problem | Stream) -> str:
    return ""


def _drift(algorithm: str, link: Link) -> Array:
    # Only the step shows whether an algorithm has such local steps; it runs before compilation.
    if link.drift is None:
        raise ValueError(
            f"{algorithm} has no local steps that start at a server's model, so its "
            "clients have no drift from it; leave out the metric client_drift, or use "
            "consensus_error between peers."
        )
    return link.drift


def _phase(name: str) -> Quantity:
    """A part of each client's round on a clock."""

    def lacking(simulation: Setting, problem: Problem | Stream) -> str:
        if simulation.clock is not None:
            return ""
        return "a clock; give the simulation clock=fljax.clock.Synchronous(...), or another"

    return Quantity(lacking, lambda algorithm, link: link.phases[name])


#: All quantities by name, in the order in which a simulation is checked for them.
QUANTITIES: dict[str, Quantity] = {
    #: The true models of the problem's tasks.
    "tasks.truth": _part_of_tasks("truth"),
    #: The held-out data of the tasks.
    "tasks.test": _part_of_tasks("test"),
    #: The data of the tasks that settings are chosen by.
    "tasks.validation": _part_of_tasks("validation"),
    #: The ratio of the powers of a private message and its noise.
    "signal_to_noise": Quantity(_lacking_noise, _signal_to_noise),
    #: Held-out data, see :func:`held_out`.
    "test": Quantity(_lacking_test),
    #: Held-out data whose targets are labels of classes.
    "labels": Quantity(_lacking_labels),
    #: The graph, which must then be the same in all rounds.
    "graph": Quantity(_lacking_graph),
    #: All of the clients' data, which a stream does not store.
    "data": Quantity(_lacking_data),
    #: The centralized optimum, which is then computed once per run.
    "optimum": Quantity(_lacking_optimum),
    #: Which clients have sent a message, one or zero.
    "participants": Quantity(_lacking_clients, _participants),
    #: ``||w_k - w||^2`` after the local steps of participants from the server's model ``w``.
    "drift": Quantity(_lacking_nothing, _drift),
    #: When each client began its part of the round on a clock, how long its download, its
    #: computations and its upload took, and whether its message arrived.
    **{f"clock.{name}": _phase(name) for name in PHASES},
}
