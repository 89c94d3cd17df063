"""How a scenario makes and tunes a registered algorithm, or why it does not admit it."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, NamedTuple

import jax

import fljax as fl
from experiments.atlas.scenario import TALKS, Rule, Scenario, Setup, algorithm_of
from fljax.algorithms import REGISTRY, Algorithm
from fljax.tuning.search import RANGES, SEARCHED_OPTIONS, unwarned

Space = dict[str, Any]


class Method(NamedTuple):
    """An algorithm as a scenario makes it, by its rule if it has one, and the values among which
    it is tuned.
    """

    build: Callable[..., Algorithm | Setup]
    space: Space


class Refused(ValueError):
    """The scenario does not admit the algorithm; the text says why."""


#: Words for one server, servers and peers in the reason of a refusal.
RUNS_ON = {
    "server": "one server",
    "servers": "servers that form a network",
    "peers": "a network of peers",
}

#: Algorithms that minimize something else than the clients' mean objective.
OBJECTIVES = {
    "AFL": "minimizes the worst mixture of the clients' objectives, not their mean",
    "q-FedAvg": "minimizes a fairness objective, not the clients' mean",
    "Sharing ADMM": "learns one model of features that are divided among the clients",
    "Generalized gradient": "exchanges predictions, and learns no parameters in common",
    "Model-agnostic FedRelax": "exchanges predictions, and learns no parameters in common",
    "NPFL-RL": "learns who belongs together by a policy that must be chosen",
    "NPFL, by parameters": "learns who belongs together by a policy that must be chosen",
    "FedOpt": "is a frame for a server's optimizer; FedAdam and others are its instances",
    "Diffusion, general": "is a frame for combination matrices; CTA and ATC are its instances",
}

#: Algorithms that use a network's features before its last layer: for a model with one layer
#: these are the raw sample.
OF_NETWORKS = {
    "CCVR": "calibrates the last layer, and the model has no other: a covariance of all pixels",
    "MOON": "compares the features of a hidden layer, and the model has none",
}

#: Algorithms that are another one with the noise of a privacy budget.
PRIVATE_VARIANTS = ("(eps,delta)DP-NFL", "DP-SGD", "P-ADMM", "zCDP-NFL", "zCDP-grad-NFL")

#: Algorithms outside ``fljax.algorithms.personalized`` that give clients or clusters their own
#: models.
PERSONAL = (
    *("PGFL", "GFL", "ClusterFL", "NPFL", "FedGD", "FedSGD, networked", "FedRelax"),
    "Model-agnostic FedRelax",
)

#: Reasons for refusing an algorithm with a required argument that the scenario does not define.
LACKS = {
    "clients_per_round": "draws a part of the clients, and here all take part",
    "clusters": "finds a number of clusters, and here are none",
    "compression": "compresses by a rule that must be given, and here messages are whole",
    "sketch": "sketches gradients in a table whose size must be given, and here messages are whole",
    "sparsity": "masks parameters by a number that must be given, and here messages are whole",
    "personal": "keeps a named part of a model at each client, and here no part is",
    "topology": "mixes on a small graph that must be given, and here is none",
}

#: Arguments that make an algorithm different from another one in the registry.
DISTINGUISHING = {"FedSGD, networked": {"batches": fl.batches.Uniform(5)}}

#: Why an algorithm that could run is not in a scenario with a clock, or one of few methods.
ON_A_CLOCK = (
    "is not among the methods that are compared on a clock, which differ in when a round ends."
)
OF_FEW = "is not among the methods that are compared here, each by its own rule."

#: Steps between the exact gradients of variance-reduced methods.
PERIOD = 10


def is_personal(cls: type[Algorithm]) -> bool:
    return cls.__module__.split(".")[-2] == "personalized" or cls.label.startswith(PERSONAL)


def method(scenario: Scenario, label: str) -> Method:
    """The algorithm as the scenario makes it; by a label that may say its rule, if it has one.

    Raises:
      Refused: the scenario does not admit it, with the reason.
    """
    cls = REGISTRY[algorithm_of(label)]
    rule = scenario.rules.get(label)
    if rule is not None:
        return _by_rule(scenario, label, rule)
    if cls.needs.network is not TALKS[scenario.talks]:
        (network_kind,) = (name for name, kind in TALKS.items() if kind is cls.needs.network)
        raise Refused(f"runs on {RUNS_ON[network_kind]}, not on {RUNS_ON[scenario.talks]}.")
    if label in OBJECTIVES:
        raise Refused(f"{OBJECTIVES[label]}.")
    if label in PRIVATE_VARIANTS and "privacy" not in scenario.axes:
        raise Refused("adds the noise of a privacy budget, and here is none.")
    if is_personal(cls) and not scenario.personal:
        raise Refused("ends with a model for each client or cluster, and one for all is wanted.")
    if scenario.directed and not cls.needs.directed:
        raise Refused("needs links in both directions.")
    names = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    for name, why in scenario.chosen.items():
        if not (name in names or (name == "clients_per_round" and "selector" in names)):
            raise Refused(f"{why}.")
    if scenario.rules:
        raise Refused(OF_FEW if scenario.seconds is None else ON_A_CLOCK)
    given = {**DISTINGUISHING.get(label, {}), **scenario.given}
    return _checked_method(scenario, label, *_constructor(cls, names, given))


def _by_rule(scenario: Scenario, label: str, rule: Rule) -> Method:
    """A method that the scenario names: whether it belongs there is not asked."""
    cls = REGISTRY[algorithm_of(label)]
    names = {field.name for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    build, space = _constructor(cls, names, {**scenario.given, **rule.given})
    return _checked_method(scenario, label, partial(_with_parts, build, rule.all_parts), space)


def _with_parts(build: Callable[..., Algorithm], parts: Mapping[str, Any], **numbers: Any) -> Setup:
    return Setup(build(**numbers), parts)


def _constructor(
    cls: type[Algorithm], names: set[str], fixed_values: Mapping[str, Any]
) -> tuple[Callable[..., Algorithm], Space]:
    """A function that makes the algorithm from its tuned numbers, and their ranges."""
    fixed = {name: value for name, value in fixed_values.items() if name in names}
    if (
        "clients_per_round" in fixed_values
        and "clients_per_round" not in names
        and "selector" in names
    ):
        fixed["selector"] = fl.participation.Drawn(fixed_values["clients_per_round"])
    if "batches" in fixed and "local_steps" in names and "local_steps" not in fixed:
        del fixed["batches"]  # a sampling scheme for batches has no epochs
    if "period" in names:
        fixed["period"] = PERIOD
    if "solver" in names:
        fixed.pop("clients_per_round", None)
        solver = {f.name for f in fields(fl.algorithms.FedAvg)}
        passed = {name: value for name, value in fixed_values.items() if name in solver}
        space = {name: RANGES[name] for name in ("step_size", "attraction") if name in names}
        space |= SEARCHED_OPTIONS.get(cls.label, {})
        return partial(_with_solver, cls, passed, fixed), space
    options = SEARCHED_OPTIONS.get(cls.label, {})
    needed = [
        field.name
        for field in fields(cls)  # pyright: ignore[reportArgumentType]
        if field.name not in fixed and field.name in _required(cls)
    ]
    if missing := [name for name in needed if name not in RANGES]:
        why = f"must be given {missing[0]}, and no range is known for it"
        raise Refused(f"{LACKS.get(missing[0], why)}.")
    space = {name: RANGES[name] for name in needed}
    return partial(cls, **fixed), space | {n: r for n, r in options.items() if n not in fixed}


def _with_solver(
    cls: Callable[..., Algorithm], passed: Space, fixed: Space, step_size: Any, **numbers: Any
) -> Algorithm:
    """A personalized algorithm around federated averaging, both with the same step size."""
    solver = fl.algorithms.FedAvg(step_size, **passed)
    return cls(solver=solver, step_size=step_size, **numbers, **fixed)


def _required(cls: type[Algorithm]) -> set[str]:
    """The arguments without a default."""
    return {
        field.name
        for field in fields(cls)  # pyright: ignore[reportArgumentType]
        if field.default is MISSING and field.default_factory is MISSING
    }


def _checked_method(
    scenario: Scenario, label: str, build: Callable[..., Algorithm | Setup], space: Space
) -> Method:
    """The method, after a test that a simulation with its smallest parameters is valid."""
    least = {name: values[0] for name, values in space.items()}
    with unwarned():
        try:
            built = scenario.build(jax.random.key(0), build(**least))
        except (TypeError, ValueError) as error:
            text = str(error)
            reasons = [why for name, why in scenario.chosen.items() if text.startswith(name)]
            raise Refused(
                f"{reasons[0]}." if reasons else _short(text, algorithm_of(label))
            ) from None
    if label in OF_NETWORKS and not isinstance(built.problem, fl.problems.Model):
        raise Refused(f"{OF_NETWORKS[label]}.")
    return Method(build, space)


def _short(text: str, label: str) -> str:
    """A requirement's message without the algorithm's name, the remedy and the alternatives."""
    text = text.removeprefix(f"{label} ").partition(" These can:")[0].partition(";")[0]
    return " ".join(text.split()).rstrip(".") + "."


def methods(scenario: Scenario) -> tuple[dict[str, Method], dict[str, str]]:
    """The registered algorithms that the scenario admits, and the reasons against the others; with
    rules those that it compares, some of them by several.
    """
    admitted = {}
    refused = {}
    compared = {algorithm_of(label) for label in scenario.rules}
    for label in sorted(REGISTRY.keys() - compared | scenario.rules.keys()):
        try:
            admitted[label] = method(scenario, label)
        except Refused as error:
            refused[label] = str(error)
    return admitted, refused
