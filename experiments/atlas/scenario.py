"""The class of the atlas's scenarios: problems that many papers use, with the reasons."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

import fljax as fl
from fljax.clock import Clock
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.graphs.hierarchies import Tree

#: All scenarios by name, in the order of their declaration.
SCENARIOS: dict[str, "Scenario"] = {}

#: Kinds of communication, and the network that an algorithm needs for each.
TALKS = {"server": None, "servers": Federation, "peers": Graph}

#: Local gradient steps in a round, of the algorithms that take several.
LOCAL_STEPS = 5

#: What is counted until the target is reached; methods are tuned for the first.
COSTS: tuple[str, ...] = ("rounds", "bits", "gradients")
#: On a clock. Rounds of a clock that waits for clients and rounds that are single arrivals are not
#: the same, and are not compared.
COSTS_ON_A_CLOCK: tuple[str, ...] = ("seconds", "bits", "gradients")
#: Where messages to a server are compressed; its own messages are as a method has them.
COSTS_OF_UPLOADS: tuple[str, ...] = ("bits up", "bits", "rounds", "gradients")
#: Where peers' messages are compressed.
COSTS_OF_MESSAGES: tuple[str, ...] = ("bits", "rounds", "gradients")
#: Below a cloud: distant bits go to and from the cloud, or from edge to edge.
COSTS_OF_LEVELS: tuple[str, ...] = ("distant bits", "bits", "rounds", "gradients")

#: All of them.
ALL_COSTS: tuple[str, ...] = tuple(
    dict.fromkeys(COSTS + COSTS_ON_A_CLOCK + COSTS_OF_UPLOADS + COSTS_OF_MESSAGES + COSTS_OF_LEVELS)
)


class Setup(NamedTuple):
    """An algorithm, and parts of the simulation that it has by its rule."""

    algorithm: Any
    parts: Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """How one of the methods runs in a scenario that compares some methods alone; on a clock it
    says when a round ends.

    Attributes:
      words: the rule in a sentence's part, for the scenario's page.
      clock: the clock, with the scenario's devices; ``None`` in a scenario without one.
      rounds: how many take at least the scenario's seconds, or bits.
      record_every: rounds between records.
      given: further arguments of the algorithm.
      parts: arguments of the simulation in place of the scenario's.
    """

    words: str
    clock: Clock | None
    rounds: int
    record_every: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_parts(self) -> dict[str, Any]:
        """The parts of the simulation that the method has by its rule, with the clock."""
        return dict(self.parts) | ({} if self.clock is None else {"clock": self.clock})


def algorithm_of(label: str) -> str:
    """The algorithm of a method's label: by a rule this may have it in parentheses, as in
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
      rules: of a scenario that compares some methods alone, these by label
        (:func:`algorithm_of`), each with its rule. Each has rounds of its own, in place of
        ``rounds`` and ``record_every``.
      seconds: on a clock, when last values are read.
      bits: where messages are compressed, how many all clients together may send until last values
        are read.
      costs: the quantities that are counted until the target is reached.
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
    bits: float | None = None
    costs: tuple[str, ...] = COSTS

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
        if self.seconds is not None and self.bits is not None:
            raise ValueError(f"{self.name}: seconds= and bits= both say when runs end; give one.")
        if not self.rules and (self.seconds is not None or self.bits is not None):
            raise ValueError(f"{self.name}: seconds= and bits= need rules=; give both.")
        if any((rule.clock is None) != (self.seconds is None) for rule in self.rules.values()):
            raise ValueError(f"{self.name}: seconds= and clocks of rules= go together; give both.")
        if (self.seconds is None) != ("seconds" not in self.costs):
            raise ValueError(f"{self.name}: seconds= and costs= with seconds go together.")
        SCENARIOS[self.name] = self

    @property
    def goal(self) -> str:
        """What methods are tuned for besides the last value: a method's round costs the same for
        all of its candidates.
        """
        return "rounds" if self.seconds is None else "seconds"

    def length(self, label: str) -> tuple[int, int]:
        """The rounds of a method's runs, and those between records."""
        of_label = self.rules.get(label, self)
        return of_label.rounds, of_label.record_every

    def build(self, key: jax.Array, algorithm: Any) -> fl.Simulation:
        """The simulation of one run, of an algorithm or, by a rule, a :class:`Setup`; an
        algorithm that compresses by its own rule is given the compressor instead of the link.
        """
        return self._simulation(self.parts(key), algorithm)

    def build_for_tuning(self, key: jax.Array, algorithm: Any) -> fl.Simulation:
        """The same for a run that chooses hyperparameters."""
        return self._simulation((self.tuning_parts or self.parts)(key), algorithm)

    def _simulation(self, parts: dict[str, Any], algorithm: Any) -> fl.Simulation:
        if isinstance(algorithm, Setup):
            parts |= algorithm.parts
            algorithm = algorithm.algorithm
        if hasattr(algorithm, "compression"):
            parts.pop("compression", None)
        metrics = [self.metric]
        if isinstance(parts.get("network"), Tree) and "distant bits" in self.costs:
            metrics.append("level_bits")
        return fl.Simulation(algorithm=algorithm, metrics=metrics, **parts)
