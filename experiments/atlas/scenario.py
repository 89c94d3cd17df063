"""The class of the atlas's scenarios: problems that many papers use, with the reasons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

import fljax as fl
from fljax.clock import Clock
from fljax.graphs import Graph
from fljax.graphs.federation import Federation

#: All scenarios by name, in the order of their declaration.
SCENARIOS: dict[str, "Scenario"] = {}

#: Kinds of communication, and the network that an algorithm needs for each.
TALKS = {"server": None, "servers": Federation, "peers": Graph}

#: Local gradient steps in a round, of the algorithms that take several.
LOCAL_STEPS = 5

#: What is counted until the target is reached.
COSTS: tuple[str, ...] = ("rounds", "bits", "gradients")
#: On a clock. Rounds of a clock that waits for clients and rounds that are single arrivals are not
#: the same, and are not compared.
COSTS_ON_A_CLOCK: tuple[str, ...] = ("seconds", "bits", "gradients")


class Timed(NamedTuple):
    """An algorithm and the clock on which it runs."""

    algorithm: Any
    clock: Clock


@dataclass(frozen=True)
class Rule:
    """When a round ends, for one of the methods of a scenario with a clock.

    Attributes:
      words: the rule in a sentence's part, for the scenario's page.
      clock: the clock, with the scenario's devices.
      rounds: how many take at least the scenario's seconds.
      record_every: rounds between records.
      given: further arguments of the algorithm.
    """

    words: str
    clock: Clock
    rounds: int
    record_every: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)


def algorithm_of(label: str) -> str:
    """The algorithm of a method's label: on a clock this may have the rule in parentheses, as in
    "FedAvg (tiers)".
    """
    return label.partition(" (")[0]


@dataclass(frozen=True)
class Scenario:
    """A standard scenario; constructing one declares it.

    Attributes:
      name: words joined by hyphens.
      title: a description in one line.
      reason: why this is a standard problem.
      when: a reader's description of this problem, for the decision page.
      parts: key -> arguments of :class:`fljax.Simulation` besides algorithm and metrics, pure.
      tuning_parts: the same for runs that choose hyperparameters, where evaluations have a test
        set in common: its samples decide no choice, and a validation set takes its place.
      metric: the minimized quantity.
      target: its value at which rounds, bits and gradients are counted.
      rounds: of every run.
      axes: the properties that distinguish it from similar scenarios, by name.
      talks: who exchanges messages: clients with a server, clients with servers that form a
        network, or peers.
      given: arguments that every algorithm with a field of that name gets.
      chosen: names in ``given`` without which an algorithm does not run here, with the reason.
      personal: whether each client may end with a model of its own.
      directed: whether links go in one direction, which not all algorithms can use.
      record_every: rounds between records.
      rules: on a clock, its methods by label (:func:`algorithm_of`), each with its rule; others are
        not compared. Each has rounds of its own, in place of ``rounds`` and ``record_every``.
      seconds: on a clock, when last values are read.
    """

    name: str
    title: str
    reason: str
    when: str
    parts: Callable[[jax.Array], dict[str, Any]]
    metric: str
    target: float
    rounds: int
    axes: Mapping[str, str | float]
    talks: str = "server"
    given: Mapping[str, Any] = field(default_factory=lambda: {"local_steps": LOCAL_STEPS})
    chosen: Mapping[str, str] = field(default_factory=dict)
    personal: bool = False
    directed: bool = False
    record_every: int = 2
    tuning_parts: Callable[[jax.Array], dict[str, Any]] | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.name in SCENARIOS:
            raise ValueError(f"a scenario named {self.name!r} is declared already.")
        if self.talks not in TALKS:
            raise ValueError(f"talks must be one of {', '.join(TALKS)}, got {self.talks!r}.")
        if unknown := self.chosen.keys() - self.given.keys():
            raise ValueError(f"{self.name}: chosen arguments are not given: {sorted(unknown)}.")
        if self.rounds % self.record_every:
            raise ValueError(
                f"{self.name}: record_every={self.record_every} must divide rounds={self.rounds}."
            )
        if bool(self.rules) != (self.seconds is not None):
            raise ValueError(f"{self.name}: rules= and seconds= are both of a clock; give both.")
        SCENARIOS[self.name] = self

    @property
    def costs(self) -> tuple[str, ...]:
        """What is counted until the target is reached; its first is what methods are tuned for."""
        return COSTS_ON_A_CLOCK if self.rules else COSTS

    def length(self, label: str) -> tuple[int, int]:
        """The rounds of a method's runs, and those between records."""
        of_label = self.rules.get(label, self)
        return of_label.rounds, of_label.record_every

    def build(self, key: jax.Array, algorithm: Any) -> fl.Simulation:
        """The simulation of one run, of an algorithm or, on a clock, a :class:`Timed` one; an
        algorithm that compresses by its own rule is given the compressor instead of the link.
        """
        return self._simulation(self.parts(key), algorithm)

    def build_for_tuning(self, key: jax.Array, algorithm: Any) -> fl.Simulation:
        """The same for a run that chooses hyperparameters."""
        return self._simulation((self.tuning_parts or self.parts)(key), algorithm)

    def _simulation(self, parts: dict[str, Any], algorithm: Any) -> fl.Simulation:
        if isinstance(algorithm, Timed):
            algorithm, parts["clock"] = algorithm
        if hasattr(algorithm, "compression"):
            parts.pop("compression", None)
        return fl.Simulation(algorithm=algorithm, metrics=[self.metric], **parts)
