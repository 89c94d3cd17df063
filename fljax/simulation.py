"""One run: a simulation is what is run, :func:`run` runs it once, as a scan over rounds."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fljax import _check, _taint, requirements, schedules
from fljax._arguments import check, checked, rule
from fljax._generator import GENERATOR, name_of, random_key
from fljax._memory import check_fits
from fljax._module import module, replace, static
from fljax._numerics import key_of
from fljax.aggregation import Aggregator
from fljax.algorithms import Algorithm, start_models
from fljax.attacks import Attack
from fljax.federation import Federation
from fljax.graphs import Graph, Mixing, Relearned, Varying
from fljax.link import (
    Compressor,
    DelayLaw,
    Link,
    LocalGraphHomomorphic,
    Losses,
    Memory,
    Noise,
    SecureAggregation,
    Stages,
    Traffic,
    UploadNoise,
    receivers_of,
)
from fljax.link import (
    begin as begin_link,
)
from fljax.link.marked import Marked
from fljax.metrics import Metric, Snapshot, as_metric, held_out, normalized_error, suboptimality
from fljax.participation import Pattern
from fljax.privacy import CentralGaussian, Gap, Notion, promises
from fljax.privacy.accounting.sampling import amplifies
from fljax.privacy.notions import is_gaussian
from fljax.problems import (
    Huber,
    LeastAbsoluteDeviation,
    LeastSquares,
    Loss,
    Problem,
)
from fljax.records import COUNTS, assemble, describe, joined, provenance, warn
from fljax.rounds import Round
from fljax.streams import Stream

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Carry",
    "Prepared",
    "Simulation",
    "advance",
    "as_key",
    "begin",
    "check_length",
    "check_metrics",
    "check_perturbed",
    "check_rounds",
    "final_ledger",
    "final_model",
    "look",
    "noise_plan",
    "outcome",
    "prepare",
    "run",
    "stepped",
    "trace",
    "unperturbed",
    "view",
    "witnessed",
]


@module
class Simulation:
    """One Monte-Carlo run: the data, who talks to whom and when, the algorithm, the metrics.

    What may happen to a message has one order, whatever the order of the arguments: it is perturbed
    (``privacy``, ``upload_noise``, ``masks``), compressed, replaced if its sender attacks, given
    the ``noise`` between peers, lost, late, and combined by the receiver (``aggregation``).

    A pytree: numbers in it may be traced, so a function that builds one from a key and some
    numbers is all that :func:`fljax.sweep` needs.

    Args:
      problem: all clients' data and objective, or a :class:`~fljax.streams.Stream` of them.
      algorithm: one of :mod:`fljax.algorithms`.
      network: the clients' :class:`~fljax.graphs.Graph`, one of a round of its own
        (:class:`~fljax.graphs.Varying`) or learned meanwhile
        (:class:`~fljax.graphs.Relearned`), or the :class:`~fljax.federation.Federation` of servers
        they belong to; not needed by algorithms with one server.
      privacy: the budget, or ``None``: a :class:`~fljax.privacy.Notion` for messages, a trusted
        server's :class:`~fljax.privacy.CentralGaussian`, or
        :class:`~fljax.privacy.NoisyGradients` within clients.
      metrics: what is recorded, as metrics or their names; of the honest clients where some attack.
      participation: which clients are available, a :class:`~fljax.participation.Pattern`;
        all of them, in every round, by default. A peer that is not rests: it neither computes nor
        hears, and its neighbors keep what it said last. (In asynchronous iterations over a
        network, :class:`~fljax.algorithms.FedGD` and its like, what others say waits for it.)
      delays: of clients' messages to the server, a :class:`~fljax.link.DelayLaw`; among peers the
        age of the copy that is heard over each edge, by chance or by a table
        (:class:`~fljax.link.EdgeDelays`). None by default.
      compression: of clients' messages, a :class:`~fljax.link.Compressor`; none by default.
      attack: what clients say that do not follow the protocol, an
        :class:`~fljax.attacks.Attack`; all follow it by default.
      losses: which messages never arrive, a :class:`~fljax.link.Losses`: over every edge among
        peers, on the way up to a server else. None by default.
      aggregation: that takes the place of the mean wherever the algorithm takes one of what was
        heard, an :class:`~fljax.aggregation.Aggregator`.
      noise: that peers add to what they say to each other, or servers, by a rule of the network and
        not by a budget, an :class:`~fljax.link.Noise`. It goes on top of what is said, by
        attackers too.
      upload_noise: that clients add to what they send to a server, by a variance and not by a
        budget, an :class:`~fljax.link.UploadNoise`.
      masks: that clients of a server share, so that it learns no more than their sum, a
        :class:`~fljax.link.SecureAggregation`.
      model: which models metrics measure and results keep: the clients' ``"exact"`` ones, as the
        literature does, which no budget covers, or the ``"released"`` ones, that the network may
        see: what was last sent, perturbed, or what servers computed of it.
      honest_only: that a privacy budget protects honest clients only is understood; asked for
        where there is an attack too.
      allow_disconnected: accept a network in several pieces.

    Raises:
      TypeError: a part of another kind.
      ValueError: fewer than two clients, a graph of another size, an unknown metric, the same
        metric twice; a setting that the algorithm has no rule for (see its ``needs``), or that
        does not fit another.
    """

    problem: Any  # Problem or Stream
    algorithm: Algorithm
    network: Graph | Varying | Federation | None = None
    privacy: Any = None  # Notion, CentralGaussian or NoisyGradients
    metrics: Any = static(default=())  # Metric, name, or a sequence of them
    participation: Pattern | None = None
    delays: DelayLaw | None = None
    compression: Compressor | None = None
    attack: Attack | None = None
    losses: Losses | None = None
    aggregation: Aggregator | None = None
    noise: Noise | None = None
    upload_noise: UploadNoise | None = None
    masks: SecureAggregation | None = None
    model: str = static(default="exact")
    honest_only: bool = static(default=False)
    allow_disconnected: bool = static(default=False)

    def validate(self) -> None:
        check("problem", self.problem, rule(Problem | Stream))
        check("metrics", self.metrics, rule(Metric | str | Sequence[Any]))
        one = isinstance(self.metrics, str | Metric)
        metrics = (self.metrics,) if one else self.metrics
        object.__setattr__(self, "metrics", tuple(as_metric(m) for m in metrics))
        names = [m.name for m in self.metrics]  # pyright: ignore[reportAttributeAccessIssue]
        if len(set(names)) < len(names):
            raise ValueError(f"each metric can be recorded once, got {names}.")
        requirements.check_parts(self)
        requirements.compare(self)
        _check.choice("model", self.model, ("exact", "released"))
        if self.model == "released" and type(self.algorithm).released is Algorithm.released:
            raise ValueError(
                f"{self.algorithm.label} does not say which of its models the network may see; "
                "leave out model=, or give the algorithm a method `released`."
            )
        self._validate_network()
        self.algorithm.check(self.problem, requirements.shown(self.network))
        # Clips, of gradients or of updates, promise to hold for any data.
        clipped = self.problem.online or self.problem.clip is not None or self.privacy is not None
        if not clipped and self.problem.linear:
            for name in ("features", "targets"):
                if _check.is_concrete(data := getattr(self.problem, name)):
                    _check.squares(name, data, data[0].size)
        self._validate_stages()
        self._validate_metrics()

    def _validate_network(self) -> None:
        network = self.network
        if network is None:
            return
        if network.nodes != self.problem.clients:
            raise ValueError(
                f"the network has {network.nodes} nodes but the problem "
                f"{self.problem.clients} clients; they must be equal."
            )
        if not self.allow_disconnected:
            network.require_connected()

    def _validate_stages(self) -> None:
        if self.compression is not None:
            self.compression.check(self.problem.dim)
        if self.attack is not None:
            self.attack.check(self.problem.clients)
            size = self.algorithm.message_size_of(self.problem)
            self.attack.check_length(self.problem.dim, size)
        if self.aggregation is not None:
            fewest = self._fewest_messages()
            if fewest is not None:
                self.aggregation.check(fewest)
        if self.noise is not None:
            self._validate_noise(self.noise)

    def _validate_noise(self, noise: Noise) -> None:
        """On the network and weights that are known before the run."""
        network = self.network
        graph = network.graph if isinstance(network, Federation) else network
        if not isinstance(graph, Graph) or not _check.is_concrete(graph.degree):
            return
        servers = isinstance(network, Federation)
        weights = []
        with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
            for over in (Mixing(),) if servers else self.algorithm.combinations:
                leaves = jax.tree.leaves(over)
                if over is not None and all(_check.is_concrete(leaf) for leaf in leaves):
                    weights.append(graph.mixing(over) if isinstance(over, Mixing) else over)
            noise.check(graph, weights)

    def _fewest_messages(self) -> int | None:
        """How many messages a receiver combines at least, its own among them if it is; ``None``
        where this is not known before the run.
        """
        network = self.network if type(self.algorithm).needs.network is not None else None
        if network is None:
            return self.problem.clients
        if isinstance(network, Federation):
            return int(network.sizes.min())
        if isinstance(network, Graph) and _check.is_concrete(network.degree):
            with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
                others = int(np.min(np.asarray(network.neighbor_counts())))
            return others + type(self.algorithm).hears_itself if others else 1
        return None

    def _validate_metrics(self) -> None:
        stream = self.problem if self.problem.online else None
        for metric in self.metrics:
            assert isinstance(metric, Metric)
            missing = ""
            tasks = getattr(self.problem, "tasks", None)
            if metric.needs_tasks and getattr(tasks, metric.needs_tasks, None) is None:
                missing = f"a problem with tasks=fljax.problems.Tasks({metric.needs_tasks}=...)"
            elif metric.needs_noise and self.privacy is None:
                missing = "private messages; give the simulation privacy="
            elif (metric.needs_test or metric.needs_labels) and held_out(self.problem) is None:
                missing = "held-out data; give the problem or the stream test="
            elif metric.needs_labels and (loss := type(held_out(self.problem).loss)).correct is (
                Loss.correct
            ):
                missing = f"labels, and {loss.__name__} is no loss of a classifier"
            elif metric.needs_network and not isinstance(self.network, Graph):
                missing = "a graph that is the same in all rounds; give network=fljax.graphs..."
            elif metric.needs_optimum and not self.problem.linear:
                missing = "an optimum, which is not known of a network; use train_error"
            elif stream is not None and metric.needs_data:
                missing = "all data at once, which a stream does not hold; use test_error"
            elif stream is not None and metric.needs_optimum and stream.truth is None:
                missing = "an optimum, which is not known of this stream; use test_error"
            if missing:
                raise ValueError(f"the metric {metric.name!r} needs {missing}.")
            own = type(self.algorithm).optimum is not Algorithm.optimum
            if metric is suboptimality and own:
                raise ValueError(
                    f"the metric 'suboptimality' is of one model for all clients, and "
                    f"{self.algorithm.label} learns one of each; take 'normalized_error'."
                )
            if metric is normalized_error and stream is None:
                self._require_targets()

    def _require_targets(self) -> None:
        """Raise ``ValueError`` where the optimum is known to be zero, by which errors are divided.

        Targets that are drawn are looked at only in the results: looking means to draw them all.
        """
        problem, regression = self.problem, LeastSquares | Huber | LeastAbsoluteDeviation
        known = isinstance(problem.loss, regression) and _check.is_concrete(problem.targets)
        if known and not np.any(np.asarray(problem.targets)):
            raise ValueError(
                "the metric 'normalized_error' divides by the optimum, which is zero for targets "
                "that are all zero; take 'mean_square_deviation' or other targets."
            )

    @property
    def stages(self) -> Stages:
        """What happens to messages, in its order."""
        return Stages(
            self.privacy,
            self.upload_noise,
            self.masks,
            self.compression,
            self.attack,
            self.noise,
            self.losses,
            self.delays,
            self.network if isinstance(self.network, Relearned) else None,
            self.aggregation,
        )

    @property
    def among_peers(self) -> bool:
        """Whether clients talk to each other, and not to a server."""
        return type(self.algorithm).needs.network is Graph


class Carry(NamedTuple):
    """What goes from round to round beside the algorithm's own state."""

    state: Any
    spent: dict[str, Array]  # [2, K] each: the privacy ledger so far, and what rounding left of it
    gradient_norm: Array  # []  largest per-sample gradient so far
    rounding: Array  # []  how far rounding may move what left, in its sensitivity, so far
    diverged: Array  # []  first round with a non-finite model, 0 if none
    traffic: Traffic  # since the last record
    stream: Any  # of the data, where they arrive one by one
    availability: Any  # of the pattern of participation
    memory: Memory  # of the link
    signal_to_noise: Array | None  # [K]  of the last private messages, if a metric asks


class Prepared(NamedTuple):
    """What is computed once, before the first round."""

    problem: Any  # Problem or Stream
    network: Any  # as rounds see it: the clients' graph only where they talk to each other
    optimum: Array | None
    plan: Any
    receivers: Array | None  # None where the network changes
    curvature: Array | None  # of a stream's features, see `Stream.curvature`


def prepare(simulation: Simulation, rounds: int) -> Prepared:
    """Statistics of the data, the optimum if a metric needs it, the noise plan."""
    problem, network = simulation.problem, simulation.network
    if simulation.privacy is not None:
        problem = problem.usable()
    problem = problem.prepare()
    needed = any(m.needs_optimum for m in simulation.metrics)  # pyright: ignore[reportAttributeAccessIssue]
    if type(simulation.algorithm).needs.network is None:
        network = None
    elif simulation.among_peers and _one_by_one(simulation):
        network = network.single_table()  # pyright: ignore[reportOptionalMemberAccess,reportAttributeAccessIssue]
    best = None
    if needed:
        known = requirements.shown(simulation.network)
        best = problem.truth if problem.online else simulation.algorithm.optimum(problem, known)
        best = jnp.asarray(best)
    changing = isinstance(network, Varying)
    return Prepared(
        problem,
        network,
        best,
        noise_plan(simulation, rounds),
        None if changing else receivers_of(network, problem.clients),
        problem.curvature(),
    )


def _one_by_one(simulation: Simulation) -> bool:
    """Whether a receiver looks at all its messages side by side."""
    noise = simulation.noise
    drawn = isinstance(noise, LocalGraphHomomorphic) and not (
        noise.cancels and simulation.losses is None
    )
    learned = isinstance(simulation.network, Relearned)
    return drawn or learned or simulation.aggregation is not None


def check_length(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where a part of the simulation does not fit a run of this length."""
    clients = simulation.problem.clients
    simulation.problem.check(rounds)
    for part in (simulation.participation, simulation.delays):
        if part is not None:
            part.check(clients, rounds)
    if isinstance(simulation.network, Varying):
        simulation.network.check(rounds)
    schedules.check_length(simulation.algorithm, rounds)
    law = simulation.delays
    if law is not None and law.lags[0] >= rounds:
        raise ValueError(
            f"messages take at least {law.lags[0]} rounds and the run has {rounds}: nothing would "
            "ever arrive; make the run longer or the delays shorter."
        )
    if law is not None:
        dim, dtype = simulation.problem.dim, simulation.problem.dtype
        # Peers keep what each of them said, a server the sums of what arrives together.
        kept = clients if isinstance(simulation.network, Graph | Varying) else 2
        check_fits(
            f"what is on its way for up to {law.lags[-1]} rounds",
            law.lags[-1] + 1,
            kept,
            dim,
            each=dtype.itemsize,
            mend="take a law of shorter delays",
        )
    if hasattr(simulation.privacy, "check"):
        size = simulation.algorithm.message_size_of(simulation.problem)
        simulation.privacy.check(size, rounds)
    noise_plan(simulation, rounds)


def noise_plan(simulation: Simulation, rounds: int) -> Any:
    """What the privacy part fixes for the whole run: of the noise on messages, from the algorithm's
    sensitivities; of a trusted server's, from how it chooses who takes part.
    """
    privacy = simulation.privacy
    if isinstance(privacy, CentralGaussian):
        return privacy.plan(simulation.algorithm.selection, simulation.problem.clients)
    if not isinstance(privacy, Notion):
        return None
    return privacy.plan(functools.partial(_sensitivity, simulation, simulation.problem), rounds)


def _sensitivity(simulation: Simulation, problem: Any, round: Array) -> Array:
    privacy = simulation.privacy
    assert isinstance(privacy, Notion)
    algorithm = simulation.algorithm
    moved = algorithm.sensitivity(problem, simulation.network, round, Gap.of(privacy, problem))
    if np.shape(moved) != (problem.clients,):
        raise TypeError(
            f"{type(algorithm).__name__}.sensitivity must return one number of each of the "
            f"{problem.clients} clients, got {_check.shown(moved)}."
        )
    return moved


def begin(simulation: Simulation, prepared: Prepared, key: Array) -> Carry:
    """Before the first round; ``key`` is the run's, whose rounds count from 1."""
    problem, privacy, pattern = prepared.problem, simulation.privacy, simulation.participation
    zeroth, network = jax.random.fold_in(key, 0), requirements.shown(prepared.network)
    ledger = () if privacy is None else type(privacy).ledger
    size = simulation.algorithm.message_size_of(problem)
    said = start_models(problem)
    if size != problem.dim:  # of what is no model nobody has said anything
        said = jnp.zeros((problem.clients, size), problem.dtype)
    state = simulation.algorithm.init(problem, network)
    if not hasattr(state, "model"):
        raise TypeError(
            f"{type(simulation.algorithm).__name__}.init must return a state with a field model, "
            f"[clients, dim] or [dim], got {_check.shown(state)}."
        )
    return Carry(
        state,
        {name: jnp.zeros((2, problem.clients), problem.dtype) for name in ledger},
        jnp.zeros((), problem.dtype),
        jnp.zeros(()),
        jnp.zeros((), jnp.int32),
        Traffic.none(),
        problem.begin(zeroth),
        () if pattern is None else pattern.begin(key_of(zeroth, "availability"), problem.clients),
        begin_link(simulation.stages, network, zeroth, said, asleep=pattern is not None),
        jnp.full(problem.clients, jnp.nan, problem.dtype) if _looks_at_noise(simulation) else None,
    )


def look(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    round: Array,
    rounds: int,
    linked: Callable[..., Link] = Link,
) -> tuple[Round, Any, Any]:
    """The view of a round, and the next states of the data and of who is there.

    ``linked`` makes its link: one of another kind can listen to what is said.
    """
    now, pattern = jax.random.fold_in(key, round), simulation.participation
    stream, problem = prepared.problem.observe(carry.stream, now, round)
    available, availability = None, carry.availability
    if problem is not prepared.problem and not simulation.among_peers:
        # Who met nothing new has nothing for a server; a peer goes on mixing what it heard.
        available = jnp.any(problem.weights > 0, axis=1)
    if pattern is not None:
        availability, on = pattern.draw(
            availability, key_of(now, "availability"), round, problem.clients
        )
        available = on if available is None else on & available
    network, changing = prepared.network, isinstance(prepared.network, Varying)
    if changing:
        network = network.at(key_of(now, "network"), round)
    link = linked(
        now,
        round,
        rounds,
        problem.clients,
        network,
        simulation.stages,
        carry.memory,
        available,
        prepared.plan,
        lambda: _sensitivity(simulation, problem, round),
        key,
        prepared.receivers,
    )
    return Round(round, problem, network, link, changing), stream, availability


@checked
def view(
    simulation: Simulation, key: Key[Array, ""] | int = 0, round: int = 1, rounds: int = 1
) -> Round:
    """One round as an algorithm sees it: to call a step at a prompt, or in a test.

    Args:
      simulation: whose round; what a run remembers from the rounds before is as in the first.
      key: of the run, as of :func:`run`.
      round: 1, 2, ...
      rounds: of the whole run, at least ``round``.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ... )
      >>> now = fl.view(simulation)
      >>> state = simulation.algorithm.init(now.problem, now.network)
      >>> simulation.algorithm.step(state, now).model.shape
      (5, 2)
    """
    _check.count("round", round)
    _check.count("rounds", rounds)
    rounds = max(round, rounds)
    prepared, key = prepare(simulation, rounds), as_key(key)
    carry = begin(simulation, prepared, key)
    return look(simulation, prepared, key, carry, jnp.asarray(round, jnp.int32), rounds)[0]


@checked
def unperturbed(simulation: Simulation, rounds: int = 2) -> list[str]:
    """What leaves a private simulation's clients, or its trusted server, without having been
    perturbed, by name; empty if nothing does.

    The program of a run is followed from the samples (features, targets, what is computed of them)
    to all that leaves: messages, who sends them, what servers publish and pass on, released models,
    the size of the noise, the ledger. What a sample weighs, who is there and the network are
    public. It is not told whose data a message depends on, nor how much: the sensitivity is the
    algorithm's word (:func:`fljax.audit.worst_neighbors` puts it to the test).
    :func:`fljax.run` and :func:`fljax.sweep` ask this of algorithms and stages of your own.

    Args:
      simulation: under a budget.
      rounds: of the run; what a state carries on is found whatever their number.

    Raises:
      ValueError: no privacy.

    Example:
      >>> import dataclasses, jax, fljax as fl
      >>> @fl.module
      ... class Loose(fl.algorithms.ConventionalFL):
      ...     def step(self, state, now):
      ...         state = super().step(state, now)
      ...         now.link.publish(now.problem.features[0, 0])
      ...         return state
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1),
      ...     algorithm=fl.algorithms.ConventionalFL(0.1),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> fl.audit.unperturbed(simulation)
      []
      >>> fl.audit.unperturbed(dataclasses.replace(simulation, algorithm=Loose(0.1)))
      ['what a server publishes']
    """
    if simulation.privacy is None:
        raise ValueError(
            "nothing is perturbed for a budget's sake: the simulation runs without privacy; give "
            "it privacy=, such as fljax.privacy.ZCDP(total_rho=1.0)."
        )

    def whole(simulation: Simulation) -> Any:
        given = simulation
        if not given.problem.online:
            given = replace(given, problem=_marked(given.problem))
        prepared, key = prepare(given, rounds), as_key(0)
        algorithm, network = given.algorithm, requirements.shown(prepared.network)

        def one(carry: Carry, round: Array) -> tuple[Carry, None]:
            now, stream, availability = look(given, prepared, key, carry, round, rounds, Marked)
            if given.problem.online:
                now.problem = _marked(now.problem)
            after = carry._replace(state=stepped(given, carry.state, now), stream=stream)
            if type(algorithm).released is not Algorithm.released:
                models = algorithm.released(after.state, prepared.problem, network)
                _taint.open_to_all(models, "released models")
            return after._replace(availability=availability, memory=now.link.memory), None

        turns = jnp.arange(1, rounds + 1, dtype=jnp.int32)
        return jax.lax.scan(one, begin(given, prepared, key), turns)[0]

    return _taint.exits(whole, simulation)


def check_perturbed(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where an algorithm or stage of a user's own lets private data leave
    without noise. (Those of the library are held to this by its tests.)
    """
    parts = (simulation.algorithm, *simulation.stages)
    if simulation.privacy is None or all(_of_the_library(part) for part in parts):
        return
    if found := unperturbed(simulation, rounds):
        raise ValueError(
            f"under {type(simulation.privacy).__name__} all that leaves must have been perturbed, "
            f"and {type(simulation.algorithm).__name__} lets out what depends on clients' samples "
            f"and on no noise: {', '.join(found)}. Compute it from what link.send, exchange, "
            "collect or descend returned, or leave out privacy=."
        )


def _of_the_library(part: Any) -> bool:
    return part is None or type(part).__module__.partition(".")[0] == __package__


def _marked(problem: Problem) -> Problem:
    """With samples, held-out ones too, that are marked as private."""
    own = {name: getattr(problem, name) for name in ("features", "targets", "statistics")}
    test = None if problem.test is None else _marked(problem.test)
    return replace(problem, test=test, **_taint.private(own))


def as_key(key: Array | int, generator: str | None = None) -> Array:
    """A key, or the one that a generator makes of an integer, by default the house's.

    Raises:
      ValueError: a key and a generator.
    """
    if isinstance(key, int | np.integer):
        _check.seed("key", key)
        return random_key(key, generator or GENERATOR)
    if generator is not None:
        raise ValueError(
            f"generator={generator!r} is for integer keys, and this key is of {name_of(key)!r}; "
            "leave generator out, or pass an integer."
        )
    return key


def advance(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    done: Array | int,
    records: int,
    record_every: int,
    rounds: int,
) -> tuple[Carry, dict[str, Array]]:
    """A stretch of a run as a scan, after ``done`` of its ``rounds``.

    Recorded per record, ``[records]`` each: the metrics; the ledger's worst client; the traffic
    since the last record. Round ``n`` draws from ``fold_in(key, n)``, so a run in several
    stretches is the same run.
    """
    problem, algorithm, privacy = prepared.problem, simulation.algorithm, simulation.privacy

    def one_round(round: Array, carry: Carry) -> Carry:
        now, stream, availability = look(simulation, prepared, key, carry, round, rounds)
        state = stepped(simulation, carry.state, now)
        now.link.finish(type(algorithm).__name__)
        finite = jnp.all(jnp.isfinite(state.model))
        first = jnp.where((carry.diverged == 0) & ~finite, round, carry.diverged)
        return Carry(
            state,
            {name: _booked(spent, now.link.spent[name]) for name, spent in carry.spent.items()},
            # Looked at only where a guarantee rests on it: it costs a pass over the samples.
            carry.gradient_norm
            if not isinstance(privacy, Notion)
            else jnp.maximum(carry.gradient_norm, witnessed(algorithm, now)),
            jnp.maximum(carry.rounding, now.link.rounding),
            first.astype(jnp.int32),
            carry.traffic.plus(now.link.traffic),
            stream,
            availability,
            now.link.memory,
            now.link.signal_to_noise if _looks_at_noise(simulation) else None,
        )

    def one_record(carry: Carry, first: Array) -> tuple[Carry, tuple[dict[str, Array], Array]]:
        if record_every == 1:  # what rounds have in common leaves one loop, but not two
            carry = one_round(first, carry)
        else:
            carry = jax.lax.fori_loop(first, first + record_every, one_round, carry)
        model, _ = _judged(simulation, prepared, carry.state)
        shared = model if model.ndim == 1 else None
        model = jnp.broadcast_to(model, (problem.clients, model.shape[-1]))
        honest = None if simulation.attack is None else ~jnp.asarray(simulation.attack.attackers)
        now = Snapshot(
            problem,
            simulation.network,
            model,
            prepared.optimum,
            shared,
            carry.state,
            honest,
            carry.signal_to_noise,
        )
        record = {m.name: _measured(m, now) for m in simulation.metrics}
        record |= {f"privacy_{name}": jnp.max(spent) for name, spent in _totals(carry).items()}
        return carry._replace(traffic=Traffic.none()), (record, jnp.stack(carry.traffic, axis=1))

    firsts = jnp.asarray(done, jnp.int32) + jnp.arange(
        1, records * record_every + 1, record_every, dtype=jnp.int32
    )
    carry, (recorded, traffic) = jax.lax.scan(one_record, carry, firsts)
    return carry, recorded | {name: traffic[..., i] for i, name in enumerate(Traffic._fields)}


def _measured(metric: Any, now: Snapshot) -> Array:
    value = metric.measure(now)
    if not _check.is_real(value):
        raise TypeError(
            f"the metric {metric.name!r} must be one number, got {_check.shown(value)}."
        )
    return jnp.asarray(value)


def _booked(spent: Array, more: Array) -> Array:
    """The ledger with another entry, as a sum of two numbers, the second within the first's
    rounding: twice the digits (Knuth; Dekker 1971).
    """
    total, rest = spent
    new = total + more
    part = new - total
    rest = rest + ((total - (new - part)) + (more - part))
    both = new + rest
    return jnp.stack([both, rest - (both - new)])


def _totals(carry: Carry) -> dict[str, Array]:
    """``[K]`` each: the ledger."""
    return {name: jnp.sum(both, axis=0) for name, both in carry.spent.items()}


def _judged(simulation: Simulation, prepared: Prepared, state: Any) -> tuple[Array, bool]:
    """The models that metrics look at, ``[K, D]`` or one for all, ``[D]``, and whether they are
    those that the network may see.
    """
    algorithm = simulation.algorithm
    if type(algorithm).released is Algorithm.released:
        return state.model, False
    seen = algorithm.released(state, prepared.problem, requirements.shown(prepared.network))
    return (seen, True) if simulation.model == "released" else (state.model, seen is state.model)


def _looks_at_noise(simulation: Simulation) -> bool:
    return any(m.needs_noise for m in simulation.metrics)  # pyright: ignore[reportAttributeAccessIssue]


def stepped(simulation: Simulation, state: Any, now: Round) -> Any:
    """The algorithm's next state; of peers that are absent the old one."""
    new = simulation.algorithm.step(state, now)
    if simulation.among_peers and simulation.participation is not None:
        rested = _rested(now.available, new, state)
        waiting = {name: getattr(new, name) for name in simulation.algorithm.waiting}
        return rested._replace(**waiting) if waiting else rested
    return new


def _rested(available: Array, new: Any, old: Any) -> Any:
    """The state of peers of whom those that are absent neither computed nor heard anything."""
    clients = len(available)

    def keep(new: Array, old: Array) -> Array:
        if new.ndim == 0 or new.shape[0] != clients:
            return new
        return jnp.where(available.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(keep, new, old)


def witnessed(algorithm: Algorithm, now: Round) -> Array:
    """The largest per-sample gradient that a step met, on which its privacy rests."""
    if now.witnessed is None:
        raise TypeError(
            f"{type(algorithm).__name__}.step tells nothing of the gradients that it met, on which "
            "its privacy rests; call now.witness(problem.sample_gradient_norm(model))."
        )
    return now.witnessed


def outcome(simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
    """What is known of a run once, at its end so far."""
    known = {"diverged": carry.diverged}
    privacy = simulation.privacy
    if privacy is not None:
        _, covered = _judged(simulation, prepared, carry.state)
        known["exact_model"] = jnp.asarray(not covered)
        known["gaussian_noise"] = jnp.asarray(is_gaussian(type(privacy)))
        known["rounding"] = carry.rounding
        known["nominal"] = carry.rounding > promises.SWALLOWED
        if prepared.problem.linear and not prepared.problem.online:
            known["unusable_samples"] = simulation.problem.unusable_samples()
    if isinstance(privacy, Notion):
        known["gradient_norm"] = carry.gradient_norm
        known["gradient_bound"] = bound = jnp.asarray(privacy.gradient_bound)
        known["promised_bound"] = promised = prepared.problem.promised_bound()
        known["nominal"] |= promised > bound * (1 + promises.ROUNDING)
    elif privacy is not None:
        known |= _sampled(simulation)
    if isinstance(privacy, CentralGaussian):
        known["update_clip"] = carry.memory.mechanism.clip
    network = None if isinstance(prepared.network, Varying) else prepared.network
    bound, size = None, simulation.algorithm.step_size
    if prepared.problem.linear and size is not None:
        bound = simulation.algorithm.step_bound(prepared.problem, network, prepared.curvature)
    if bound is not None:
        first = size(jnp.ones((), jnp.int32)) if callable(size) else size
        known["first_step"] = jnp.max(jnp.asarray(first))
        known["step_bound"] = bound
    weights = simulation.algorithm.weights(prepared.problem)
    if prepared.optimum is not None and weights is not prepared.problem.importance:
        known["same_objective"] = _proportional(weights, prepared.problem.importance)
    if simulation.network is not None and not isinstance(simulation.network, Varying):
        known["connected"] = simulation.network.connected()
    return known


def _proportional(some: Array | None, others: Array | None) -> Array:
    """Whether clients' weights are the same but for a factor; ``None`` is one each."""
    one, other = (jnp.ones(()) if w is None else w / jnp.mean(w) for w in (some, others))
    return jnp.all(jnp.abs(one - other) <= 1e-4)


def _sampled(simulation: Simulation) -> dict[str, Array]:
    """What :func:`fljax.privacy.spent` needs of a sampled Gaussian mechanism."""
    privacy, algorithm, problem = simulation.privacy, simulation.algorithm, simulation.problem
    if isinstance(privacy, CentralGaussian):
        law, records = algorithm.selection.law(problem.clients), problem.clients
    else:
        law, records = algorithm.sampling(problem), jnp.min(problem.sample_counts())
    amplified = amplifies(law.sampling, privacy.neighbors)  # pyright: ignore[reportOptionalMemberAccess]
    drawn = amplified and law.sampling == "drawn"
    return {
        "noise_multiplier": jnp.asarray(privacy.noise_multiplier),  # pyright: ignore[reportOptionalMemberAccess]
        "sampling_rate": jnp.asarray(law.rate if amplified else 1.0),
        "drawn_from": jnp.asarray(records if drawn else 0),
    }


def final_model(simulation: Simulation, prepared: Prepared, carry: Carry) -> Array:
    """``[K, D]``, whether the clients have a model each or share one; of learners that have no
    parameters what they predict.
    """
    model, _ = _judged(simulation, prepared, carry.state)
    return jnp.broadcast_to(model, (prepared.problem.clients, model.shape[-1]))


def final_ledger(carry: Carry) -> dict[str, Array]:
    """``[K]`` each: what every client spent."""
    return {f"client_{name}": spent for name, spent in _totals(carry).items()}


def trace(
    simulation: Simulation, key: Array, rounds: int, record_every: int
) -> tuple[dict[str, Array], Array]:
    """The whole run: records and outcome by name (see :func:`advance`), and the models."""
    prepared = prepare(simulation, rounds)
    carry = begin(simulation, prepared, key)
    records = rounds // record_every
    carry, recorded = advance(simulation, prepared, key, carry, 0, records, record_every, rounds)
    known = outcome(simulation, prepared, carry) | final_ledger(carry)
    return recorded | known, final_model(simulation, prepared, carry)


def check_metrics(simulation: Simulation, recorded: dict[str, Any], records: int) -> None:
    """Raise ``TypeError`` unless every metric had the axes that it names in every record."""
    problem = simulation.problem
    known = {"client": problem.clients, "parameter": problem.dim}
    for metric in simulation.metrics:
        assert isinstance(metric, Metric)
        shape = np.shape(recorded[metric.name])[1:]
        if len(shape) != len(metric.dims):
            wanted = f"an array over {metric.dims}" if metric.dims else "one number"
            raise TypeError(
                f"the metric {metric.name!r} must be {wanted}, got an array of shape {shape}; "
                "reduce it, for instance over the clients, or name its axes with dims=."
            )
        for dim, size in zip(metric.dims, shape, strict=True):
            if known.setdefault(dim, size) != size:
                raise TypeError(
                    f"the metric {metric.name!r} has {size} rows along {dim!r}, of which there "
                    f"are {known[dim]}; give the axis a name of its own."
                )


def check_rounds(rounds: int, record_every: int) -> None:
    """Raise unless the recorded rounds divide the run."""
    _check.count("rounds", rounds, hint="It is the number of iterations of every run.")
    _check.count("record_every", record_every)
    if rounds % record_every:
        raise ValueError(
            f"rounds must be a multiple of record_every, got {rounds} and {record_every}."
        )


@checked
def run(
    simulation: Simulation,
    rounds: int,
    key: Key[Array, ""] | int = 0,
    record_every: int = 1,
    generator: str | None = None,
) -> "xarray.Dataset":
    """Run a simulation once.

    A second run with other numbers in it (a new key, new data of the same shape, another penalty)
    reuses the compiled program.

    Args:
      simulation: what to run.
      rounds: how many iterations, >= 1.
      key: of the run's noise; an integer seeds the generator.
      record_every: measure after every so many rounds; must divide ``rounds``.
      generator: of an integer key, by default the house's, as of :func:`fljax.sweep`; a key of
        :func:`jax.random.key` keeps its own.

    Returns:
      A dataset over ``round`` with the metrics, the privacy ledger and the traffic, the final
      models as ``model`` over ``client`` and ``parameter``, what each client spent, and the
      provenance as attributes.

    Raises:
      TypeError, ValueError: as said by the arguments' own checks.
    """
    check_rounds(rounds, record_every)
    jax.eval_shape(lambda: check_length(simulation, rounds))
    check_perturbed(simulation, rounds)
    key = as_key(key, generator)
    records, model = _run(simulation, key, rounds, record_every)
    host = {name: np.asarray(value) for name, value in records.items()}
    host |= {name: np.cumsum(joined(host[name])) for name in COUNTS}
    said = describe(simulation.metrics, [simulation.privacy])
    dataset = assemble(host, (), {}, rounds, record_every, said)
    dataset["model"] = (("client", "parameter"), np.asarray(model))
    dataset.attrs |= provenance(
        dtype=str(simulation.problem.dtype), prng=name_of(key), rounds=rounds
    )
    promises.state(dataset)
    warn(dataset, [(simulation, True)])
    return dataset


@functools.partial(jax.jit, static_argnames=("rounds", "record_every"))
def _run(simulation: Simulation, key: Array, rounds: int, record_every: int) -> Any:
    """:func:`trace`, whose metrics are looked at before anything is compiled."""
    records, model = trace(simulation, key, rounds, record_every)
    check_metrics(simulation, records, rounds // record_every)
    return records, model
