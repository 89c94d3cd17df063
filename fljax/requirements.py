"""Comparison of an algorithm's requirements with what a simulation provides."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from fljax import _check
from fljax.algorithms import REGISTRY, Algorithm, Needs
from fljax.federation import Federation
from fljax.graphs import Graph
from fljax.link import DelayTrace, EdgeDelays, Noise
from fljax.participation import ByLoss, Selector
from fljax.privacy import CentralGaussian, Notion
from fljax.problems import Softmax
from fljax.problems.model import NO_REPRESENTATION
from fljax.problems.solvers import is_quadratic, takes_public_steps

__all__ = [
    "alternatives",
    "check_parts",
    "compare",
    "of_the_library",
    "shown",
    "source",
    "unmet",
]


#: The parts of a simulation that a run searches for numbers.
PARTS = (
    *("problem", "algorithm", "network", "privacy", "participation", "delays", "compression"),
    *("attack", "losses", "aggregation", "noise", "upload_noise", "masks"),
)


#: At most so many alternative algorithms are named.
NAMED = 8


class Unmet(NamedTuple):
    """A requirement that a simulation does not meet."""

    text: str  # the end of a sentence that begins with the algorithm
    elsewhere: bool  # whether another algorithm would do


def compare(simulation: Any) -> None:
    """Raise ``ValueError`` with the first requirement that is not met, and suggest algorithms that
    would run.

    Args:
      simulation: a :class:`~fljax.Simulation` whose parts have the right types.
    """
    algorithm = type(simulation.algorithm)
    for text, elsewhere in unmet(algorithm.needs, simulation):
        others = alternatives(simulation) if elsewhere else []
        can = f" These can: {', '.join(others[:NAMED])}" if others else ""
        can += f" and {len(others) - NAMED} more." if len(others) > NAMED else "." * bool(others)
        raise ValueError(f"{algorithm.label} {text}{can}")
    clip = getattr(simulation.problem, "clip", None)
    if clip is not None and isinstance(simulation.privacy, Notion):

        def check(clip: Any, bound: Any) -> None:
            if text := _loose(clip, bound):
                raise ValueError(f"{algorithm.label} {text}")

        _check.known(check, clip, simulation.privacy.gradient_bound)


def alternatives(simulation: Any) -> list[str]:
    """Labels of the registered algorithms that would run in this simulation, those with the same
    communication pattern first.
    """
    suitable = [
        label for label, other in REGISTRY.items() if not any(unmet(other.needs, simulation))
    ]
    network = type(simulation.algorithm).needs.network
    return sorted(suitable, key=lambda label: REGISTRY[label].needs.network is not network)


def unmet(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    """The requirements that the simulation does not meet."""
    yield from _network(needs, simulation)
    yield from _data(needs, simulation)
    yield from _privacy(needs, simulation)
    yield from _messages(needs, simulation)
    yield from _noise(needs, simulation)
    yield from _uploads(needs, simulation)
    yield from _masks(needs, simulation)


def _network(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    clients, network = simulation.problem.clients, simulation.network
    if needs.network is not None and not isinstance(shown(network), needs.network):
        hint = {
            Graph: "a graph of the clients; pass network=, for instance "
            f"fljax.graphs.ring({clients}).",
            Federation: "servers with clients; pass network=, for instance "
            "fljax.federation.balanced(clients_per_server, graph).",
        }[needs.network]
        yield Unmet(f"runs on {hint}", False)
    if _changes(network) and not needs.changing:
        yield Unmet("has no rule for a graph that changes; pass one graph as network=.", True)


def _data(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    problem = simulation.problem
    if problem.online and needs.data == "fixed":
        yield Unmet("needs all data at once and cannot learn from a stream.", True)
    if not problem.online and needs.data == "stream":
        yield Unmet(
            "learns from a stream, got a fixed problem; fljax.streams.Replay makes a stream of it.",
            False,
        )
    if problem.online:
        return
    loss, regularizer = problem.loss, problem.regularizer
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
    elif needs.smooth and (loss.curvature is None or not quadratic):
        text = f"needs a smooth objective, got {objective}; use ZCDPNFL for nonsmooth ones."
        yield Unmet(text, True)
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


def _privacy(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    privacy = simulation.privacy
    if privacy is None:
        return
    if not isinstance(privacy, needs.privacy):
        allowed = ", ".join(notion.__name__ for notion in needs.privacy)
        yield Unmet(
            f"does not run under {type(privacy).__name__}; "
            + (f"it accepts {allowed}." if allowed else "it has no private form."),
            True,
        )
    own = needs is type(simulation.algorithm).needs  # and not those of an alternative
    if own and isinstance(simulation.algorithm.selection, ByLoss):
        yield Unmet(
            "has participants chosen by their losses, which depend on their samples and are told "
            "without noise; take a selector that draws clients, such as "
            "fljax.participation.Drawn, or leave out privacy=.",
            False,
        )
    if isinstance(privacy, Notion):
        yield from _noisy_messages(needs, simulation, privacy)
    else:
        yield from _sampled(needs, simulation, privacy)
    yield from _weighed(simulation)
    if simulation.attack is not None and not simulation.honest_only:
        yield Unmet(
            "under an attack guarantees privacy to honest clients only, since attackers may send "
            "anything; confirm this with honest_only=True, or leave out privacy= or attack=.",
            False,
        )


def _sampled(needs: Needs, simulation: Any, privacy: Any) -> Iterator[Unmet]:
    """Settings that the accounting of a trusted server, or of clients with noisy gradients, does
    not cover.
    """
    own = needs is type(simulation.algorithm).needs  # and not those of an alternative
    if own and isinstance(privacy, CentralGaussian):
        selector = simulation.algorithm.selection
        if selector is None:
            yield Unmet(
                "does not say how it draws who takes part: a property 'selection'. Give its class "
                "one.",
                False,
            )
        elif type(selector).law is Selector.law and not of_the_library(selector):
            yield Unmet(
                f"draws its participants by {type(selector).__name__}, which declares no law of "
                "its draws; a class that overrides how clients are drawn does not inherit one. "
                "Give the class a method law(self, clients) that returns the "
                "fljax.participation.Law of its own draws, or take Everyone, Fraction, Drawn or "
                "Cyclic of fljax.participation.",
                False,
            )
    elif own and type(simulation.algorithm).sampling is Algorithm.sampling:
        yield Unmet(
            "does not say how it draws samples: a method 'sampling'. Give its class one that "
            "returns the fljax.participation.Law of its own batches; a class that overrides "
            "'step' does not inherit it.",
            False,
        )
    if isinstance(privacy, CentralGaussian):
        given = {
            "late messages, since a sum may hold two of one client": simulation.delays,
            "an aggregator, since one client's influence is not bounded": simulation.aggregation,
            "an attack, since attackers see honest clients' messages": simulation.attack,
        }
        for what, part in given.items():
            if part is not None:
                yield Unmet(
                    f"has no account under CentralGaussian for {what}; leave one of them out.",
                    False,
                )
        if own and simulation.algorithm.weights(simulation.problem) is not None:
            yield Unmet(
                "gives clients weights, but CentralGaussian bounds the contribution of one client "
                "to an unweighted sum; leave out weighting= and the problem's weights.",
                False,
            )
    elif getattr(simulation.problem, "clip", None) is not None:
        yield Unmet(
            "descends along gradients that NoisyGradients(clip=...) clips; leave the problem "
            "unclipped.",
            False,
        )


def _weighed(simulation: Any) -> Iterator[Unmet]:
    """Weighted clients: guarantees hold for mean losses."""
    if getattr(simulation.problem, "importance", None) is not None:
        yield Unmet(
            "has a privacy guarantee for unweighted mean losses of clients only; leave out "
            "privacy=, or the problem's importance.",
            False,
        )


def _noisy_messages(needs: Needs, simulation: Any, privacy: Notion) -> Iterator[Unmet]:
    yield from _iterated(needs, simulation.problem)
    yield from _clipped(simulation.problem, privacy.gradient_bound)
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


def _clipped(problem: Any, bound: Any) -> Iterator[Unmet]:
    """A clip that is not covered by the guarantee."""
    clip = getattr(problem, "clip", None)
    if clip is None or not (_check.is_concrete(clip) and _check.is_concrete(bound)):
        return
    if text := _loose(clip, bound):
        yield Unmet(text, False)


def _loose(clip: Any, bound: Any) -> str:
    """The problem with a clip that is above the bound; empty if it is not."""
    if float(clip) <= float(bound) * (1 + 1e-6):
        return ""
    return (
        f"clips gradients to {float(clip):g}, above the bound {float(bound):g} that the budget "
        "assumes; give the budget gradient_bound= of the clip, or clip to the bound."
    )


def _iterated(needs: Needs, problem: Any) -> Iterator[Unmet]:
    """What a minimizer found by iterations lacks to be covered by a guarantee however it stops."""
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


def _averages(needs: Needs, simulation: Any) -> bool:
    """Whether messages are combined by a mean, as the algorithm is configured here."""
    return needs.averages and not simulation.algorithm.one_by_one


def _messages(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    own = type(simulation.algorithm).label not in REGISTRY
    if simulation.participation is not None and not needs.absent:
        declare = " (or, if your step copes with them, declare absent=True in its needs)" * own
        yield Unmet(f"has no rule for absent clients; leave out participation={declare}.", not own)
    if simulation.delays is not None and not needs.late:
        declare = " (or, if your step copes with them, declare late=True in its needs)" * own
        yield Unmet(f"has no rule for late messages; leave out delays={declare}.", not own)
    peers = isinstance(shown(simulation.network), Graph) and needs.network is Graph
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
        yield Unmet("compresses its messages itself; leave out compression=.", True)
    if simulation.aggregation is None:
        return
    if not _averages(needs, simulation):
        yield Unmet("combines messages otherwise than by a mean; leave out aggregation=.", True)


def _noise(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    """Settings incompatible with noise between peers or servers."""
    noise, network = simulation.noise, shown(simulation.network)
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
    if noise.cancels == "network" and not _averages(needs, simulation):
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


def _uploads(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    """Settings incompatible with noise on clients' messages to a server."""
    noise = simulation.upload_noise
    if noise is None:
        return
    # Messages may be of another kind by a switch of the algorithm's own.
    own = needs is type(simulation.algorithm).needs
    uploads = (own and simulation.algorithm.uploads) or needs.uploads
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
    if isinstance(simulation.privacy, Notion):
        yield Unmet(
            "perturbs what clients send by its budget already; leave out privacy= or "
            "upload_noise=.",
            False,
        )


def _masks(needs: Needs, simulation: Any) -> Iterator[Unmet]:
    """Settings in which pairwise masks would not cancel, or hide nothing. (Of lost messages the
    protocol recovers the sum of the others.)
    """
    if simulation.masks is None:
        return
    own = needs is type(simulation.algorithm).needs
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
    if isinstance(simulation.privacy, CentralGaussian):
        yield Unmet(
            "cannot sum masked messages that CentralGaussian clips one by one; leave out privacy= "
            "or masks=.",
            False,
        )
    if own and _fewest(simulation) < 2:
        yield Unmet(
            "has a server with one participant per round, whose message no mask can hide; let two "
            "or more take part, or leave out masks=.",
            False,
        )


def _fewest(simulation: Any) -> int:
    """The maximum number of participants of a server, for the server with the fewest."""
    algorithm, network = simulation.algorithm, shown(simulation.network)
    served = isinstance(network, Federation) and type(algorithm).needs.network is Federation
    fewest = int(network.sizes.min()) if served else simulation.problem.clients
    return fewest if algorithm.selection is None else algorithm.selection.most(fewest)


def shown(network: Any) -> Any:
    """The view of a network in a round."""
    return getattr(network, "first", network)


def of_the_library(part: Any) -> bool:
    """Whether the class of a part is defined in this library, whose tests check its statements."""
    return type(part).__module__.partition(".")[0] == __package__


def _changes(network: Any) -> bool:
    return shown(network) is not network


def check_parts(simulation: Any) -> None:
    """Raise ``TypeError`` for a part that is a class, is not a pytree, or has no ``needs``."""
    if isinstance(simulation.privacy, type):
        raise TypeError(f"privacy must be an object, got {_check.shown(simulation.privacy)}.")
    for name in PARTS:
        _check.registered(name, getattr(simulation, name))
    algorithm = simulation.algorithm
    if not hasattr(algorithm, "needs"):
        raise TypeError(
            f"{type(algorithm).__name__} must say what it runs on: give the class "
            "needs = fljax.algorithms.Needs(...)."
        )


def source(algorithm: type[Algorithm]) -> str:
    """The first reference of the docstring."""
    _, _, text = (algorithm.__doc__ or "").partition("Reference:")
    return re.split("; |, lines? ", " ".join(text.split()))[0].rstrip(".")
