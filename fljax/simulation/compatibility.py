"""Comparison of an algorithm's requirements with the parts of a simulation."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fljax._core import checks
from fljax.algorithms import REGISTRY, Algorithm, Needs
from fljax.clock.adaptive_clocks import AdaptiveTiers
from fljax.clock.clocks import Asynchronous, Clock, FirstArrivals, RoundBasedClock, Ticks
from fljax.graphs import Graph
from fljax.graphs.federation import Federation, Network
from fljax.graphs.hierarchies import Tree
from fljax.link import (
    Compressor,
    DelayLaw,
    DelayTrace,
    EdgeDelays,
    Noise,
    SecureAggregation,
    UploadNoise,
)
from fljax.link.aggregation import Aggregator
from fljax.link.attacks import Attack
from fljax.models.architecture import Architecture
from fljax.models.low_rank import LowRank
from fljax.participation.patterns import Pattern
from fljax.participation.selectors import ByLoss, Everyone, Selector
from fljax.privacy import GradientMechanism, Notion, ServerMechanism
from fljax.privacy.mechanism import Scope, missing_members
from fljax.problems import Loss, Problem, Softmax
from fljax.problems.model import NO_REPRESENTATION
from fljax.problems.solvers import is_quadratic, takes_public_steps
from fljax.problems.streams import Stream

#: The parts of a simulation with numbers that a run may trace.
PARTS = (
    *("problem", "algorithm", "network", "privacy", "participation", "delays", "compression"),
    *("attack", "losses", "aggregation", "noise", "upload_noise", "masks", "clock"),
)


#: What a privacy mechanism must have, by the place of its noise.
PROTOCOLS: dict[str, type] = {
    "message": Notion,
    "server": ServerMechanism,
    "gradient": GradientMechanism,
}

#: A mechanism of each place.
EXAMPLES = {"message": "ZCDP", "server": "CentralGaussian", "gradient": "NoisyGradients"}

#: The mechanisms of each place, in words.
KINDS = {
    "message": "ZCDP and other noise on messages",
    "server": "CentralGaussian and other noise at a server",
    "gradient": "NoisyGradients and other noise on gradients",
}

#: Largest number of alternative algorithms that an error message names.
MAX_ALTERNATIVES = 8


@runtime_checkable
class Parts(Protocol):
    """What the requirements are compared with: the parts of a :class:`~fljax.Simulation`."""

    @property
    def problem(self) -> Problem | Stream: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def network(self) -> Network: ...
    @property
    def privacy(self) -> Any: ...  # a mechanism of some scope, or None
    @property
    def participation(self) -> Pattern | None: ...
    @property
    def delays(self) -> DelayLaw | None: ...
    @property
    def compression(self) -> Compressor | None: ...
    @property
    def attack(self) -> Attack | None: ...
    @property
    def aggregation(self) -> Aggregator | None: ...
    @property
    def noise(self) -> Noise | None: ...
    @property
    def upload_noise(self) -> UploadNoise | None: ...
    @property
    def masks(self) -> SecureAggregation | None: ...
    @property
    def clock(self) -> Clock | None: ...
    @property
    def honest_only(self) -> bool: ...


class Unmet(NamedTuple):
    """A requirement that a simulation does not meet."""

    text: str  # the end of a sentence that begins with the algorithm
    elsewhere: bool  # whether another algorithm would do


def check_compatibility(simulation: Parts) -> None:
    """Raise ``ValueError`` with the first requirement that is not met, and suggest algorithms that
    would run.

    Args:
      simulation: a :class:`~fljax.Simulation` whose parts have the right types.
    """
    algorithm = type(simulation.algorithm)
    for text, elsewhere in unmet(algorithm.needs, simulation):
        able = alternatives(simulation) if elsewhere else []
        can = f" These can: {', '.join(able[:MAX_ALTERNATIVES])}" if able else ""
        rest = len(able) - MAX_ALTERNATIVES
        can += f" and {rest} more." if rest > 0 else "." * bool(able)
        raise ValueError(f"{algorithm.label} {text}{can}")
    clip = getattr(simulation.problem, "clip", None)
    if clip is not None and _scope(simulation) == "message":

        def check(clip: Array | float, bound: Array | float) -> None:
            if text := _clip_above_bound(clip, bound):
                raise ValueError(f"{algorithm.label} {text}")

        checks.check_when_concrete(check, clip, simulation.privacy.gradient_bound)


def alternatives(simulation: Parts) -> list[str]:
    """Labels of the registered algorithms that would run in this simulation, those with the same
    communication pattern first.
    """
    suitable = [
        label for label, other in REGISTRY.items() if not any(unmet(other.needs, simulation))
    ]
    network = type(simulation.algorithm).needs.network
    return sorted(suitable, key=lambda label: REGISTRY[label].needs.network is not network)


def unmet(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """The requirements that the simulation does not meet."""
    yield from _unmet_network(needs, simulation)
    yield from _unmet_data(needs, simulation)
    yield from _unmet_privacy(needs, simulation)
    yield from _unmet_messages(needs, simulation)
    yield from _unmet_noise(needs, simulation)
    yield from _unmet_uploads(needs, simulation)
    yield from _unmet_masks(needs, simulation)
    yield from _unmet_clock(needs, simulation)


def _unmet_network(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    clients = simulation.problem.clients
    network = simulation.network
    if needs.network is not None and not isinstance(network_at_start(network), needs.network):
        hint = {
            Graph: "a graph of the clients; pass network=, for instance "
            f"fljax.graphs.ring({clients}).",
            Federation: "servers with clients; pass network=, for instance "
            "fljax.federation.balanced(clients_per_server, graph).",
        }[needs.network]
        yield Unmet(f"runs on {hint}", False)
    if _changes(network) and not needs.changing:
        yield Unmet("has no rule for a graph that changes; pass one graph as network=.", True)
    if getattr(network, "directed", False) and not needs.directed:
        yield Unmet("needs links in both directions, and those of network= are directed.", True)
    if isinstance(network, Tree) and network.parents:
        if not needs.hierarchical:
            yield Unmet(
                "has no rule for servers above the clients' own; pass a federation as network=, "
                "or a tree of one level.",
                True,
            )
        if simulation.clock is not None:
            yield Unmet(
                "has no times of messages between servers, which a clock would need; leave out "
                "clock=, or take a tree of one level.",
                False,
            )
    if needs.complete and _lacks_edges(network_at_start(network)):
        yield Unmet(
            "sends messages between any two clients; pass "
            f"network=fljax.graphs.complete({clients}).",
            True,
        )


def _lacks_edges(network: Any) -> bool:
    """Whether some two nodes of a graph lack an edge; false for traced graphs."""
    if not isinstance(network, Graph) or not checks.is_concrete(network.degree):
        return False
    with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
        return bool(jnp.any(network.neighbor_counts() < network.nodes - 1))


def _unmet_data(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    problem = cast(Problem, simulation.problem)
    if problem.online and needs.data == "fixed":
        yield Unmet("needs all data at once and cannot learn from a stream.", True)
    if not problem.online and needs.data == "stream":
        yield Unmet(
            "learns from a stream, got a fixed problem; fljax.streams.Replay makes a stream of it.",
            False,
        )
    if problem.online:
        return
    loss = problem.loss
    regularizer = problem.regularizer
    objective = f"{type(loss).__name__} with {type(regularizer).__name__}"
    quadratic = regularizer.quadratic() is not None
    if not problem.linear:
        if needs.minimizer or needs.quadratic:
            why = (
                "rests on predictions that are linear in the model, and those of a network are not"
            )
            yield Unmet(f"{why}; take an algorithm that works with gradients.", True)
            return
        if problem.initial is None and not simulation.algorithm.has_start:
            yield Unmet(
                "cannot learn a network that starts at zero, where most have no gradient; draw a "
                "start with problem.initialized(key), or give problem.starting_at(models).",
                False,
            )
        yield from _unmet_networks(needs, problem)
        yield from _unmet_training(needs, simulation)
    elif needs.smooth and (loss.curvature is None or not quadratic):
        text = f"needs a smooth objective, got {objective}; use ZCDPNFL for nonsmooth ones."
        yield Unmet(text, True)
    if needs.adapters and not isinstance(getattr(problem, "architecture", None), LowRank):
        yield Unmet("trains adapters of low rank, of a network made by fljax.models.lora.", True)
    if needs.quadratic and not is_quadratic(problem):
        yield Unmet(
            "has a closed form that needs the squared loss with no or a squared regularizer, got "
            f"{objective}.",
            True,
        )
    if problem.clip is not None and (needs.minimizer or needs.quadratic):
        yield Unmet(
            "minimizes exactly: per-sample clipping cannot be applied inside an exact minimizer; "
            "use an algorithm with a linearized update (ZCDPNFL) or leave the problem unclipped.",
            True,
        )
    if needs.classes and not isinstance(loss, Softmax):
        yield Unmet(
            "reads the logits of classes, which a problem has whose loss is Softmax(classes), got "
            f"{type(loss).__name__}.",
            True,
        )
    if needs.representation and not problem.represents:
        yield Unmet(f"reads a network's representation of samples, and {NO_REPRESENTATION}.", True)
    if needs.validation and (problem.tasks is None or problem.tasks.validation is None):
        yield Unmet(
            "needs validation data of each client; give the problem "
            "tasks=fljax.problems.Tasks(cluster, clusters, validation=...).",
            False,
        )


def _unmet_networks(needs: Needs, problem: Any) -> Iterator[Unmet]:
    """The requirements of clients with different networks."""
    if len(problem.networks) == 1:
        return
    if problem.assignment is None:
        if not problem.is_nested:
            yield Unmet(
                "needs to know which client has which network; say so by problem.assigning([...]).",
                False,
            )
        return
    kind = "nested" if problem.is_nested else "different"
    if needs.networks not in (kind, "any"):
        builders = {"nested": "fljax.models.nested", "different": "fljax.models.several"}
        if needs.networks == "one":
            rests = "rests on one network of all clients"
        else:
            rests = f"is for {needs.networks} networks ({builders[needs.networks]})"
        yield Unmet(f"{rests}, and these clients have {kind} ones ({builders[kind]}).", True)


def _represents_by_state(problem: Any) -> bool:
    """Whether the network's representations follow from its state."""
    network = type(problem.architecture)
    return (
        network.represent_in_training is not Architecture.represent_in_training
        and network.represent_in_evaluation is not Architecture.represent_in_evaluation
    )


def _unmet_training(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """The requirements of networks with dropout, augmentation or a state."""
    problem = cast(Problem, simulation.problem)
    if problem.mixes_samples and needs.compares_samples:
        yield Unmet(
            "reduces variance by comparing a sample's gradients at several models, and with batch "
            "normalization a sample's gradient depends on its batch; normalize by groups or "
            "layers, or freeze the statistics, state='frozen'.",
            True,
        )
        return
    if problem.trains_apart and needs.compares_samples:
        yield Unmet(
            "reduces variance by comparing a sample's gradients at several models, and with "
            "dropout or augmentation a sample's gradient depends on random draws; leave these "
            "out.",
            True,
        )
        return
    if problem.trains_apart and not needs.trains:
        yield Unmet(
            "takes no steps of training, in which a network with dropout, augmentation or batch "
            "normalization is another one than in evaluation; leave these out.",
            True,
        )
        return
    if problem.trains_apart and _scope(simulation) == "message":
        yield Unmet(
            "has no bound on what a sample changes in a message where a network trains otherwise "
            "than it is evaluated; leave out dropout, augmentation and batch normalization, or "
            "privacy=.",
            False,
        )
        return
    if needs.representation and problem.is_random:
        yield Unmet(
            "reads a network's representation of samples, which has no dropout; leave it out.", True
        )
    if needs.representation and problem.state_policy and not _represents_by_state(problem):
        yield Unmet(
            "reads a network's representation of samples, which follows from its state where it "
            "has one; give the network's class represent_in_training and represent_in_evaluation, "
            "or make it of two parts with fljax.models.headed(body, head).",
            False,
        )
    if not problem.mixes_samples:
        return
    policy = problem.state_policy
    remedy = "keep the statistics at the clients, state='kept', or freeze them, state='frozen'"
    if policy == "kept":
        if problem.on_disk:
            yield Unmet(
                "has no room for the statistics of every client of a population; average them, "
                "state='averaged'.",
                False,
            )
    else:
        if needs.network is not None or simulation.algorithm.message_size(1) == 0:
            yield Unmet(
                f"has no server of all clients that would average statistics; {remedy}.", False
            )
        for part in ("delays", "losses", "attack", "aggregation", "masks"):
            if getattr(simulation, part) is not None:
                yield Unmet(
                    f"averages the networks' running statistics as they are, which {part}= does "
                    f"not reach; {remedy}, or leave out {part}=.",
                    False,
                )
    if simulation.privacy is None:
        return
    if _scope(simulation) != "server":
        yield Unmet(
            "has no bound on what one sample changes where a network is normalized by the samples "
            "of a batch; normalize by groups or layers, or freeze the statistics, state='frozen'.",
            False,
        )
    elif policy != "kept":
        yield Unmet(
            f"would send running statistics of clients' data, which the noise does not cover; "
            f"{remedy}.",
            False,
        )


def _unmet_privacy(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    privacy = simulation.privacy
    if privacy is None:
        return
    if privacy.scope not in needs.privacy or not {*needs.budget} <= {*privacy.ledger}:
        kinds = [KINDS[scope] for scope in needs.privacy]
        if needs.budget:
            kinds = [f"ApproximateDP and other budgets of {' and '.join(needs.budget)}"]
        yield Unmet(
            f"does not run under {type(privacy).__name__}; "
            + (f"it accepts {', or '.join(kinds)}." if kinds else "it has no private form."),
            True,
        )
    is_current = needs is type(simulation.algorithm).needs  # rather than an alternative's
    if is_current and isinstance(simulation.algorithm.selection, ByLoss):
        yield Unmet(
            "has participants chosen by their losses, which depend on their samples and are told "
            "without noise; take a selector that draws clients, such as "
            "fljax.participation.Drawn, or leave out privacy=.",
            False,
        )
    by_scope = {
        "message": _unmet_on_messages,
        "server": _unmet_at_server,
        "gradient": _unmet_on_gradients,
    }
    yield from by_scope[privacy.scope](needs, simulation)
    for part, reason in getattr(privacy, "refuses", {}).items():
        if getattr(simulation, part) is not None:
            yield Unmet(
                f"has no account under {type(privacy).__name__} for {reason}; leave out privacy= "
                f"or {part}=.",
                False,
            )
    yield from _unmet_weights(simulation)
    if simulation.attack is not None and not simulation.honest_only:
        yield Unmet(
            "under an attack guarantees privacy to honest clients only, since attackers may send "
            "anything; confirm this with honest_only=True, or leave out privacy= or attack=.",
            False,
        )


def _unmet_at_server(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings that no account of a trusted server covers."""
    if needs is not type(simulation.algorithm).needs:
        return  # only the needs of an alternative algorithm are known
    selector = simulation.algorithm.selection
    if selector is None:
        yield Unmet(
            "does not say how it draws who takes part: a property 'selection'. Give its class one.",
            False,
        )
    elif type(selector).law is Selector.law and not of_the_library(selector):
        yield Unmet(
            f"draws its participants by {type(selector).__name__}, which declares no law of its "
            "draws; a class that overrides how clients are drawn does not inherit one. Give the "
            "class a method law(self, clients) that returns the fljax.participation.Law of its own "
            "draws, or take Everyone, Fraction, Drawn or Cyclic of fljax.participation.",
            False,
        )
    elif needs.network is Federation and _draws_a_number(selector, simulation.problem.clients):
        yield Unmet(
            f"has servers that perturb a sum each, and {type(selector).__name__} draws a fixed "
            "number of all clients, so that who takes part at one server depends on the others; "
            "take Everyone, Fraction or Cyclic of fljax.participation.",
            False,
        )
    if simulation.algorithm.weights(simulation.problem) is not None:
        yield Unmet(
            f"gives clients weights, but {type(simulation.privacy).__name__} bounds the "
            "contribution of one client to an unweighted sum; leave out weighting= and the "
            'problem\'s weights, or take weighting="equal" where the algorithm has it.',
            False,
        )


def _draws_a_number(selector: Selector, clients: int) -> bool:
    distribution = selector.law(clients)
    return distribution is not None and distribution.sampling == "drawn"


def _unmet_on_gradients(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings that no account of noise on gradients covers."""
    is_current = needs is type(simulation.algorithm).needs  # rather than an alternative's
    if is_current and type(simulation.algorithm).sampling is Algorithm.sampling:
        yield Unmet(
            "does not say how it draws samples: a method 'sampling'. Give its class one that "
            "returns the fljax.participation.Law of its own batches; a class that overrides "
            "'step' does not inherit it.",
            False,
        )
    if getattr(simulation.problem, "clip", None) is not None:
        yield Unmet(
            f"descends along gradients that {type(simulation.privacy).__name__}(clip=...) clips; "
            "leave the problem unclipped.",
            False,
        )


def _scope(simulation: Parts) -> Scope | None:
    """Where the noise of the simulation's privacy mechanism is added; ``None`` without one."""
    return None if simulation.privacy is None else simulation.privacy.scope


def _unmet_weights(simulation: Parts) -> Iterator[Unmet]:
    """Weighted clients: guarantees hold for mean losses."""
    if getattr(simulation.problem, "importance", None) is not None:
        yield Unmet(
            "has a privacy guarantee for unweighted mean losses of clients only; leave out "
            "privacy=, or the problem's importance.",
            False,
        )


def _unmet_on_messages(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings that no account of noise on messages covers."""
    yield from _unmet_minimizer(needs, cast(Problem, simulation.problem))
    yield from _unmet_clip(simulation.problem, simulation.privacy.gradient_bound)
    changed = {
        "delays": simulation.delays is not None,
        "a stream": simulation.problem.online,
        "a changing network": _changes(simulation.network),
    }
    if changed := [name for name, on in changed.items() if on]:
        yield Unmet(
            "has a privacy guarantee for fixed data, a fixed graph and messages without delay "
            f"only; leave out privacy=, or {' and '.join(changed)}.",
            False,
        )


def _unmet_clip(problem: Problem | Stream, bound: Array | float) -> Iterator[Unmet]:
    """A clip that is not covered by the guarantee."""
    clip = getattr(problem, "clip", None)
    if clip is None or not (checks.is_concrete(clip) and checks.is_concrete(bound)):
        return
    if text := _clip_above_bound(clip, bound):
        yield Unmet(text, False)


def _clip_above_bound(clip: Array | float, bound: Array | float) -> str:
    """The problem with a clip that is above the bound; empty if it is not."""
    if float(clip) <= float(bound) * (1 + 1e-6):
        return ""
    return (
        f"clips gradients to {float(clip):g}, above the bound {float(bound):g} that the budget "
        "assumes; give the budget gradient_bound= of the clip, or clip to the bound."
    )


def _unmet_minimizer(needs: Needs, problem: Problem) -> Iterator[Unmet]:
    """Minimizers found by iterations, unless a guarantee covers them wherever these stop."""
    if not needs.minimizer or problem.online or is_quadratic(problem):
        return
    if takes_public_steps(problem):
        return
    reason = f"finds the minimizers of {type(problem.loss).__name__} by iterations"
    if problem.loss.curvature is None:
        yield Unmet(
            f"{reason}, and how far they stop from them depends on the data: for losses that are "
            "not smooth no guarantee covers that. Use an algorithm with a linearized update "
            "(ZCDPNFL), a smooth loss (Huber), or leave out privacy=.",
            True,
        )
    else:
        yield Unmet(
            f"{reason}, which a guarantee covers only if they take steps of a public size: declare "
            "the largest norm that features can have, Problem(feature_bound=...), or use an "
            "algorithm with a linearized update (ZCDPNFL).",
            True,
        )


def _uses_means(needs: Needs, simulation: Parts) -> bool:
    """Whether messages are combined by a mean, as the algorithm is configured here."""
    return needs.averages and not simulation.algorithm.one_by_one


def _unmet_messages(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    custom = type(simulation.algorithm).label not in REGISTRY
    if simulation.participation is not None and not needs.absent:
        declare = " (or, if your step copes with them, declare absent=True in its needs)" * custom
        yield Unmet(
            f"has no rule for absent clients; leave out participation={declare}.", not custom
        )
    if simulation.delays is not None and not needs.late:
        declare = " (or, if your step copes with them, declare late=True in its needs)" * custom
        yield Unmet(f"has no rule for late messages; leave out delays={declare}.", not custom)
    peers = isinstance(network_at_start(simulation.network), Graph) and needs.network is Graph
    if peers and isinstance(simulation.delays, DelayTrace):
        yield Unmet(
            "exchanges messages over edges, but a DelayTrace has one delay for each client; use "
            "fljax.link.EdgeDelays, Geometric or Fixed.",
            False,
        )
    if not peers and isinstance(simulation.delays, EdgeDelays):
        yield Unmet(
            "has clients that send to a server, but EdgeDelays are for edges between peers; use "
            "fljax.link.DelayTrace, with a delay for each client.",
            True,
        )
    if simulation.attack is not None and simulation.attack.links is not None:
        if not peers:
            yield Unmet(
                "has clients that send to a server, but a mask [clients, clients] is for attacked "
                "links between peers; give the attack a mask [clients] of its attackers.",
                False,
            )
        if simulation.delays is not None:
            yield Unmet(
                "has no rule for late messages with attacks on single links; leave out delays=, or "
                "attack whole clients, with a mask [clients].",
                False,
            )
    if simulation.compression is not None and not needs.compressed:
        if needs.networks == "one":
            why = "compresses its messages itself"
        else:
            why = "sends messages whose lengths follow from clients' networks"
        yield Unmet(f"{why}; leave out compression=.", True)
    if simulation.aggregation is None:
        return
    if not _uses_means(needs, simulation):
        yield Unmet("combines messages otherwise than by a mean; leave out aggregation=.", True)


def _unmet_noise(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings incompatible with noise between peers or servers."""
    noise = simulation.noise
    network = network_at_start(simulation.network)
    if noise is None:
        return
    if needs.network is None:
        yield Unmet(
            "has no peers, and no servers that communicate, for noise=; for noise on what clients "
            "send to a server pass upload_noise=fljax.link.UploadNoise(...).",
            True,
        )
    if needs.network is Federation and isinstance(network, Federation) and network.graph is None:
        yield Unmet(
            "has servers that do not communicate with each other, but noise= is added between "
            "servers; give the federation a graph, or leave out noise=.",
            False,
        )
    if needs.network is not Graph:
        return
    if simulation.compression is not None:
        yield Unmet(
            "cannot compress messages with noise= between peers, which is added to whole messages; "
            "leave out compression= or noise=.",
            False,
        )
    if noise.cancels == "network" and not _uses_means(needs, simulation):
        yield Unmet(
            "sums the messages that it receives, but graph-homomorphic noise cancels in weighted "
            "means only; take "
            + ("" if simulation.algorithm.one_by_one else "LocalGraphHomomorphic, ")
            + "PerMessage or PerEdge.",
            True,
        )
    if noise.cancels == "receiver" and simulation.algorithm.one_by_one:
        yield Unmet(
            "combines single messages by another rule than a weighted sum, but "
            f"{type(noise).__name__} noise cancels only in sums with the network's own weights; "
            "take PerMessage or PerEdge.",
            True,
        )
    if simulation.aggregation is not None and noise.cancels:
        yield Unmet(
            f"combines messages by an aggregator, which is no weighted mean, and "
            f"{type(noise).__name__} noise cancels in weighted means only; leave out aggregation= "
            "or noise=.",
            False,
        )
    stale = {"participation": simulation.participation, "delays": simulation.delays}
    if type(noise).over_edges is not Noise.over_edges:
        for name, part in stale.items():
            if part is not None:
                yield Unmet(
                    f"uses old messages again with {name}=, but {type(noise).__name__} draws for "
                    f"every edge in every round; take PerMessage, or leave out {name}=.",
                    False,
                )


def _unmet_uploads(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings incompatible with noise on clients' messages to a server."""
    noise = simulation.upload_noise
    if noise is None:
        return
    # An argument of the algorithm may change the kind of its messages.
    is_current = needs is type(simulation.algorithm).needs
    uploads = (is_current and simulation.algorithm.uploads) or needs.uploads
    if needs.network is Graph:
        yield Unmet(
            "has no server to send to, and upload_noise= is on what clients send to one; for noise "
            "between peers pass noise=, such as fljax.link.PerMessage.",
            True,
        )
    elif not uploads:
        yield Unmet(
            "sends nothing to a server that noise may be added to; leave out upload_noise=.", True
        )
    elif noise.on not in uploads:
        yield Unmet(
            f"sends no {noise.on}; pass upload_noise=UploadNoise(..., on={uploads[0]!r}).", True
        )
    if _scope(simulation) == "message":
        yield Unmet(
            "perturbs what clients send by its budget already; leave out privacy= or "
            "upload_noise=.",
            False,
        )


def _unmet_masks(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings in which pairwise masks would not cancel, or hide nothing. (If messages are lost,
    the protocol recovers the sum of the others.)
    """
    if simulation.masks is None:
        return
    is_current = needs is type(simulation.algorithm).needs
    if needs.network is Graph:
        yield Unmet(
            "has no server that sums, and masks= are of clients of one; peers share theirs by "
            "noise=fljax.link.LocalGraphHomomorphic(...).",
            True,
        )
    elif not needs.masked:
        declare = type(simulation.algorithm).label not in REGISTRY
        yield Unmet(
            "uses more of clients' messages than one sum over all participants, and only in that "
            "sum do masks= cancel; leave them out"
            + " (or, if your step does not, declare masked=True in its needs)" * declare
            + ".",
            not declare,
        )
    spoiled = {
        "compression": "would compress masked messages, which look like noise",
        "attack": "replaces a message without the mask",
        "delays": "deliver a message after the masks of its round were removed",
        "aggregation": "combines single messages, which are masked",
    }
    for name, why in spoiled.items():
        if getattr(simulation, name) is not None:
            yield Unmet(
                f"cannot sum masked messages: {name}= {why}; leave out {name}= or masks=.", False
            )
    if is_current and _fewest_participants(simulation) < 2:
        yield Unmet(
            "has a server with one participant per round, whose message no mask can hide; let two "
            "or more take part, or leave out masks=.",
            False,
        )


def _unmet_clock(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings in which a clock has no meaning, or another one than intended."""
    clock = simulation.clock
    if clock is None:
        staleness = getattr(simulation.algorithm, "staleness", None)
        if getattr(staleness, "of", "versions") == "seconds":
            yield Unmet(
                "weighs messages by the seconds of their staleness, which only a clock knows; give "
                "clock=fljax.clock.Asynchronous(...), or leave out of='seconds'.",
                False,
            )
        return
    name = type(clock).__name__
    is_current = needs is type(simulation.algorithm).needs
    problem = simulation.problem
    if problem.on_disk:
        yield Unmet(
            f"cannot run on a clock with clients on disk; leave out clock={name}(...), or take "
            "clients in memory (fljax.problems.Model.from_clients).",
            False,
        )
    if is_current and not simulation.algorithm.counts_work:
        yield Unmet(
            "computes gradients of all samples in some rounds and of a few in others, which no "
            f"clock counts; leave out clock={name}(...).",
            True,
        )
    if clock.devices.availability is not None and not needs.absent:
        yield Unmet(
            "has no rule for absent clients; leave out availability= of the clock's devices.", True
        )
    if clock.devices.failure is not None and needs.network is not None:
        yield Unmet(
            "has no server that would ignore a client that fails in the middle of a round; leave "
            "out failure= of the clock's devices, or let messages be lost (losses=).",
            False,
        )
    rests_on_sizes = clock.rests_on_sizes or clock.devices.availability is not None
    chooses_by_loss = isinstance(simulation.algorithm.selection, ByLoss)
    if is_current and rests_on_sizes and chooses_by_loss:
        yield Unmet(
            "has participants chosen by their losses, whose messages take time before the round, "
            f"and {name} does not count it; take fljax.clock.Synchronous, or another selector.",
            False,
        )
    of_server = is_current and needs.network is not Graph and not problem.on_disk
    if of_server and rests_on_sizes and simulation.algorithm.exchanged(problem) is None:
        yield Unmet(
            f"sends messages of different lengths, by which {name} determines when they arrive; "
            "take fljax.clock.Synchronous, without availability=, which counts them.",
            False,
        )
    if isinstance(clock, Asynchronous):
        yield from _unmet_arrivals(needs, simulation)
        if needs.network is Graph:
            yield from _unmet_events(simulation, clock)
        return
    if needs.network is Graph and needs.asynchronous:
        yield Unmet(
            f"has one client at work in a round, and rounds of {name} are common to all; take "
            "fljax.clock.Asynchronous, or leave out clock=.",
            True,
        )
    if isinstance(clock, Ticks):
        if not needs.late:
            yield Unmet(
                f"has no rule for late messages, which {name} has; take fljax.clock.Synchronous.",
                True,
            )
        if simulation.delays is not None:
            yield Unmet(
                "gets delays from the seconds of messages (Ticks) and in rounds (delays=); leave "
                "out one of them.",
                False,
            )
    if isinstance(clock, RoundBasedClock):
        yield from _unmet_choice(simulation, clock)
    if not clock.leaves_out:
        return
    if needs.network is not None:
        yield Unmet(
            f"has no server that could end a round early or choose who is in it, as {name} does; "
            "take fljax.clock.Synchronous.",
            True,
        )
    if _scope(simulation) == "server":
        yield Unmet(
            f"would be amplified by sampling that {name} decides on, which no theorem covers; take "
            "fljax.clock.Synchronous, or leave out privacy=.",
            False,
        )
    if is_current and isinstance(clock, FirstArrivals):
        participants = _fewest_participants(simulation)
        if clock.count > participants:
            yield Unmet(
                f"has at most {participants} participants in a round, and the clock waits for "
                f"the first {clock.count}; invite more, or wait for fewer (count=).",
                False,
            )


def _unmet_choice(simulation: Parts, clock: RoundBasedClock) -> Iterator[Unmet]:
    """Settings in which a clock cannot choose participants by what models are worth."""
    name = type(clock).__name__
    if clock.reads_data and simulation.privacy is not None:
        yield Unmet(
            f"has participants chosen by {name}, which depends on their samples and is told "
            "without noise; take fljax.clock.Synchronous or Tiers, or leave out privacy=.",
            False,
        )
    if isinstance(clock, AdaptiveTiers):
        problem = simulation.problem
        test = None if problem.online else getattr(problem, "test", None)
        if test is None or test.clients != problem.clients:
            yield Unmet(
                f"has no held-out data of each client, by which {name} compares tiers; hold some "
                "out, problem.split(key, test=0.2).",
                False,
            )
        elif type(test.loss).correct is Loss.correct:
            yield Unmet(
                f"has no labels, and {name} compares the accuracies of tiers; take "
                "fljax.clock.Tiers or Guided.",
                False,
            )


def _unmet_arrivals(needs: Needs, simulation: Parts) -> Iterator[Unmet]:
    """Settings in which clients cannot work at their own speeds."""
    if not needs.asynchronous:
        declare = type(simulation.algorithm).label not in REGISTRY
        yield Unmet(
            "has no form in which each client works at its own speed; take fljax.clock.Synchronous"
            + (
                " (or, if participants start from self.starts(...) and send self.as_updates(...), "
                "declare asynchronous=True in its needs)"
            )
            * declare
            + ".",
            not declare,
        )
    selection = simulation.algorithm.selection
    is_current = needs is type(simulation.algorithm).needs
    if is_current and selection is not None and not isinstance(selection, Everyone):
        yield Unmet(
            f"is given {type(selection).__name__}, but with Asynchronous the next arrival "
            "determines who takes part; leave out clients_per_round= or selector=, and say how "
            "many work at a time by concurrency= of the clock.",
            False,
        )
    if simulation.problem.online:
        yield Unmet(
            "learns from a stream, whose data arrive in rounds, and Asynchronous has none; take "
            "fljax.clock.Ticks.",
            False,
        )
    elif getattr(simulation.problem, "state_policy", None) is not None:
        yield Unmet(
            "would average the running statistics of networks that are of different ages; "
            "normalize by groups or layers, or take fljax.clock.Synchronous.",
            False,
        )
    in_rounds = {
        "participation": "give the clock's devices availability=",
        "delays": "give the clock's devices a latency or a bandwidth",
        "losses": "give the clock's devices failure=",
        "masks": "a sum of one message hides nothing",
        "privacy": "no theorem covers who arrives when",
    }
    for name, way_out in in_rounds.items():
        if getattr(simulation, name) is not None:
            yield Unmet(
                f"cannot be combined with {name}= on a clock of single arrivals: {way_out}, or "
                f"leave out {name}=.",
                False,
            )
    if simulation.network is not None and _changes(simulation.network):
        yield Unmet("cannot have a network that changes on a clock of single arrivals.", False)


def _unmet_events(simulation: Parts, clock: Asynchronous) -> Iterator[Unmet]:
    """Settings in which the next event among peers is not of one client."""
    if clock.arrivals > 1:
        yield Unmet(
            f"has one client that completes its work in a round, got arrivals={clock.arrivals}; "
            "leave out arrivals=.",
            False,
        )
    walks = simulation.algorithm.walks
    at_work = clock.at_work(simulation.problem.clients)
    if walks is not None and at_work != walks:
        yield Unmet(
            f"has {walks} models that clients work on at a time, got concurrency="
            f"{clock.concurrency}; give the clock concurrency={walks}.",
            False,
        )
    if walks is None and at_work < simulation.problem.clients:
        yield Unmet(
            "has peers that begin their next work at once, and no server that would let only some "
            f"work, got concurrency={clock.concurrency}; leave out concurrency=.",
            False,
        )


def _fewest_participants(simulation: Parts) -> int:
    """The maximum number of participants of a server, for the server with the fewest."""
    algorithm = simulation.algorithm
    network = network_at_start(simulation.network)
    served = isinstance(network, Federation) and type(algorithm).needs.network is Federation
    fewest = int(network.sizes.min()) if served else simulation.problem.clients
    return fewest if algorithm.selection is None else algorithm.selection.most(fewest)


def network_at_start(network: Network) -> Any:
    """The network in the first round: the network itself unless it changes."""
    return getattr(network, "first", network)


def of_the_library(part: object) -> bool:
    """Whether the class of a part is defined in this library, whose tests check its statements."""
    return type(part).__module__.partition(".")[0] == __name__.partition(".")[0]


def _changes(network: Network) -> bool:
    return network_at_start(network) is not network


def check_parts(simulation: Parts) -> None:
    """Raise ``TypeError`` for a part that is a class, is not a pytree, or has no ``needs``."""
    if simulation.privacy is not None:
        _check_mechanism(simulation.privacy)
    for name in PARTS:
        checks.registered(name, getattr(simulation, name))
    algorithm = simulation.algorithm
    if not hasattr(algorithm, "needs"):
        raise TypeError(
            f"{type(algorithm).__name__} must say what it runs on: give the class "
            "needs = fljax.algorithms.Needs(...)."
        )


def _check_mechanism(privacy: object) -> None:
    """Raise ``TypeError`` unless it is a privacy mechanism with the methods of its scope."""
    if isinstance(privacy, type):
        raise TypeError(f"privacy must be an object, got {checks.shown(privacy)}.")
    if (scope := getattr(privacy, "scope", None)) not in PROTOCOLS:
        raise TypeError(
            "privacy must be a mechanism, such as fljax.privacy.ZCDP(...), whose class says by "
            f"scope = {', '.join(map(repr, PROTOCOLS))} where its noise is added; got "
            f"{checks.shown(privacy)}."
        )
    protocol = PROTOCOLS[scope]
    if missing := missing_members(privacy, protocol):
        raise TypeError(
            f"{type(privacy).__name__} has the scope {scope!r}, but not what a mechanism of it "
            f"needs: {', '.join(missing)}. See fljax.privacy.{protocol.__name__}, or subclass "
            f"{EXAMPLES[scope]}."
        )


def source(algorithm: type[Algorithm]) -> str:
    """The first reference of the docstring."""
    _, _, text = (algorithm.__doc__ or "").partition("Reference:")
    return re.split(r"; |\. See also ", " ".join(text.split()))[0].rstrip(".")
