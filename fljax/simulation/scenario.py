"""Definition of a run: data, network, algorithm, processing of messages, and metrics."""

import warnings
from html import escape
from typing import cast

import jax
import numpy as np

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms import Algorithm
from fljax.clock.clocks import Clock, Deadline, Ticks
from fljax.clock.distributions import Distribution
from fljax.graphs import Graph, Mixing, Relearned
from fljax.graphs.federation import Federation, Network
from fljax.link import Compressor, DelayLaw, Losses, Noise, SecureAggregation, Stages, UploadNoise
from fljax.link.aggregation import Aggregator
from fljax.link.attacks import Attack
from fljax.link.delays import OnTicks
from fljax.metrics.definitions import Metric, as_metrics, normalized_error, suboptimality
from fljax.metrics.quantities import QUANTITIES
from fljax.participation.patterns import Pattern
from fljax.privacy.mechanism import Mechanism
from fljax.problems import Huber, LeastAbsoluteDeviation, LeastSquares, Problem
from fljax.problems.population_problem import OnDisk
from fljax.problems.streams import Stream
from fljax.results.warnings import AssumptionWarning
from fljax.simulation import compatibility
from fljax.simulation.workload import work_of

#: Participation, and the processing steps of a message in order.
_STAGES = (
    *("participation", "privacy", "upload_noise", "masks", "compression", "attack", "noise"),
    *("losses", "delays", "aggregation", "clock"),
)


@module
class Simulation:
    """One Monte-Carlo run: data, communication network, participation, algorithm and metrics.

    Messages are processed in a fixed order, independent of the order of the arguments: a message is
    perturbed (``privacy``, ``upload_noise``, ``masks``), compressed, replaced if its sender is an
    attacker, perturbed by the ``noise`` between peers, lost, delayed, and combined by the receiver
    (``aggregation``).

    A simulation is a pytree whose numbers may be traced, so :func:`fljax.sweep` needs only a
    function that builds one from a key and some numbers.

    Args:
      problem: data and objective of all clients, or a :class:`~fljax.streams.Stream` of them.
      algorithm: one of :mod:`fljax.algorithms`.
      network: the :class:`~fljax.graphs.Graph` of the clients, a graph that changes from round to
        round (:class:`~fljax.graphs.Varying`) or is learned during the run
        (:class:`~fljax.graphs.Relearned`), or the :class:`~fljax.federation.Federation` of servers
        that the clients belong to; not needed by algorithms with one server.
      privacy: the privacy mechanism and its budget, or ``None``: a :class:`~fljax.privacy.Notion`
        for messages, a trusted server's :class:`~fljax.privacy.CentralGaussian`, or
        :class:`~fljax.privacy.NoisyGradients` within clients.
      metrics: the recorded metrics, as objects or names; where there are attackers, they are
        computed over the honest clients alone.
      participation: which clients are available in each round, a
        :class:`~fljax.participation.Pattern`; by default all of them, always. An unavailable peer
        is idle: it neither computes nor receives, and its neighbors reuse its last message. (In
        asynchronous iterations over a network, as in :class:`~fljax.algorithms.FedGD`, messages to
        it wait until it is available.)
      delays: delays of clients' messages to the server, a :class:`~fljax.link.DelayLaw`; among
        peers the age of the copy received over each edge, random or from a table
        (:class:`~fljax.link.EdgeDelays`). None by default.
      compression: compression of clients' messages, a :class:`~fljax.link.Compressor`; none by
        default.
      attack: messages of clients that do not follow the protocol, an
        :class:`~fljax.attacks.Attack`; by default all clients follow it.
      losses: which messages are lost, a :class:`~fljax.link.Losses`: on every edge among peers,
        otherwise on the uplink to a server. None by default.
      aggregation: a rule that replaces the mean wherever the algorithm averages received messages,
        an :class:`~fljax.aggregation.Aggregator`.
      noise: noise that peers or servers add to their messages to each other, with a law set by the
        network rather than by a privacy budget, an :class:`~fljax.link.Noise`. It is added to
        attackers' messages too.
      upload_noise: noise that clients add to their messages to a server, with a given variance
        rather than a privacy budget, an :class:`~fljax.link.UploadNoise`.
      masks: masks shared by the clients of a server, so that it learns only the sum of their
        messages, a :class:`~fljax.link.SecureAggregation`.
      clock: how fast clients' devices are and when a round ends, a :class:`~fljax.clock.Clock`;
        results then have the ``seconds`` of each record. By default rounds have no duration.
      model: which models metrics evaluate and results keep: the clients' ``"exact"`` ones, as in
        the literature, which no budget covers, or the ``"released"`` ones, which the network may
        see: the last perturbed messages, or what servers computed from them.
      honest_only: acknowledges that a privacy budget protects honest clients only; required where
        there is an attack too.
      allow_disconnected: accept a disconnected network.

    Raises:
      TypeError: an argument of the wrong type.
      ValueError: fewer than two clients, a graph of another size, an unknown metric, the same
        metric twice; a setting that the algorithm does not support (see its ``needs``), or that is
        incompatible with another.

    Example:
      >>> import jax, fljax as fl
      >>> k_data, k_network = jax.random.split(jax.random.key(0))
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(k_data, clients=6, samples=10, dim=2),
      ...     network=fl.graphs.random_connected(k_network, nodes=6, mean_degree=3),
      ...     algorithm=fl.algorithms.ATC(step_size=0.1),
      ...     participation=fl.participation.Bernoulli(0.9),
      ...     metrics=["normalized_error", "consensus_error"],
      ... )
      >>> fl.run(simulation, rounds=5)["normalized_error"].shape
      (5,)
    """

    problem: Problem | Stream
    algorithm: Algorithm
    network: Network = None
    privacy: Mechanism | None = None
    metrics: tuple[Metric, ...] = field(converter=as_metrics, static=True, default=())
    participation: Pattern | None = None
    delays: DelayLaw | None = None
    compression: Compressor | None = None
    attack: Attack | None = None
    losses: Losses | None = None
    aggregation: Aggregator | None = None
    noise: Noise | None = None
    upload_noise: UploadNoise | None = None
    masks: SecureAggregation | None = None
    clock: Clock | None = None
    model: str = static(default="exact")
    honest_only: bool = static(default=False)
    allow_disconnected: bool = static(default=False)

    def validate(self) -> None:
        names = [m.name for m in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"each metric can be recorded once, got {names}.")
        compatibility.check_parts(self)
        compatibility.check_compatibility(self)
        checks.choice("model", self.model, ("exact", "released"))
        if self.model == "released" and type(self.algorithm).released is Algorithm.released:
            raise ValueError(
                f"{self.algorithm.label} does not say which of its models the network may see; "
                "leave out model=, or give the algorithm a method `released`."
            )
        self._validate_network()
        self._validate_deadline()
        self.algorithm.check(self.problem, compatibility.network_at_start(self.network))
        # With a clip, of gradients or of updates, large data are allowed.
        clipped = (
            self.problem.online or self.fixed_problem.clip is not None or self.privacy is not None
        )
        if not clipped and self.problem.linear:
            for name in ("features", "targets"):
                if checks.is_concrete(data := getattr(self.problem, name)):
                    checks.squares(name, data, data[0].size)
        self._validate_stages()
        self._validate_metrics()

    def _validate_deadline(self) -> None:
        """Raise ``ValueError`` for a deadline that is known to be too short for every client."""
        clock = self.clock
        if not isinstance(clock, Deadline) or self.problem.online or self.problem.on_disk:
            return
        devices = clock.devices
        drawn = any(isinstance(value, Distribution) for value in vars(devices).values())
        leaves = jax.tree.leaves((clock, self.fixed_problem.weights))
        if drawn or devices.variation is not None or not all(map(checks.is_concrete, leaves)):
            return
        with jax.ensure_compile_time_eval():
            work = work_of(self, self.problem)
            rates = devices.draw(jax.random.key(0), self.problem.clients)
            if clock.partial:  # one step
                work = work._replace(
                    steps=np.minimum(work.steps, 1),
                    samples=work.samples // np.maximum(work.steps, 1),
                )
            fastest = float(np.min(np.asarray(rates.expected(work))))
        if fastest > float(np.max(clock.seconds)) * (1 + 1e-6):
            raise ValueError(
                f"no client can meet the deadline of {float(np.max(clock.seconds)):g} s: the "
                f"fastest takes {fastest:g} s; set a later one, or let clients do less work."
            )

    def _validate_network(self) -> None:
        network = self.network
        if network is None:
            return
        if network.nodes != self.problem.clients:
            raise ValueError(
                f"the network has {network.nodes} nodes but the problem "
                f"{self.problem.clients} clients; they must be equal."
            )
        dtype = self.problem.dtype
        network_dtype = getattr(getattr(network, "degree", None), "dtype", None)
        if {str(dtype), str(network_dtype)} == {"float32", "float64"}:
            raise TypeError(
                f"the problem is of {dtype} and the network of {network_dtype}; make both after "
                "`jax_enable_x64` was set."
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
            peers = self._peer_graph is not None
            self.aggregation.check_place(self.algorithm.message_size_of(self.problem), peers)
            if self.attack is not None:
                self._warn_of_attackers(self.aggregation, self.attack)
        if self.noise is not None:
            self._validate_noise(self.noise)

    @property
    def _peer_graph(self) -> Graph | None:
        """The graph whose nodes combine their neighbors' messages; ``None`` where servers do."""
        needs_network = type(self.algorithm).needs.network is not None
        return self.network if needs_network and isinstance(self.network, Graph) else None

    def _warn_of_attackers(self, aggregator: Aggregator, attack: Attack) -> None:
        """Warn where an honest receiver may have more attacking neighbors than the aggregator
        tolerates.
        """
        graph = self._peer_graph
        network = self.network
        arrays = (attack.attackers,) if graph is None else (attack.attackers, graph.degree)
        if not all(map(checks.is_concrete, arrays)):
            return
        attacking = np.asarray(attack.byzantine)
        if aggregator.withstands_weights and self._warn_of_weights(aggregator, attack):
            return
        if graph is not None:
            with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
                neighbors, weights = map(np.asarray, graph.neighbor_table())
            including_itself = int(type(self.algorithm).hears_itself)
            sizes = np.sum(weights > 0, axis=1) + including_itself
            false_messages = attacking[neighbors]
            if attack.links is not None:
                false_messages = np.take_along_axis(np.asarray(attack.links), neighbors, axis=1)
            false_count = np.sum((weights > 0) & false_messages, axis=1)
            receivers = zip(sizes[~attacking], false_count[~attacking], strict=True)
        elif isinstance(network, Federation):
            false_count = np.bincount(network.server, attacking, network.servers)
            receivers = zip(network.sizes, false_count, strict=True)
        else:
            receivers = [(len(attacking), attacking.sum())]
        for count, attackers in {(int(count), int(false)) for count, false in receivers}:
            tolerated = aggregator.tolerated(count)
            if tolerated is not None and attackers > tolerated:
                warnings.warn(
                    f"a receiver may get messages of {attackers} attackers among {count}, but "
                    f"{type(aggregator).__name__} withstands only {tolerated} (its breakdown "
                    f"point, a share of {tolerated / count:.2g}): the attackers may move its "
                    "result anywhere. Give it a larger number of attackers to withstand, let "
                    "receivers get more messages, or ignore this if you study its breakdown.",
                    AssumptionWarning,
                    stacklevel=2,
                )
                return

    def _warn_of_weights(self, aggregator: Aggregator, attack: Attack) -> bool:
        """Return whether the weights of messages are known; then warn where attackers may have half
        of those of an honest receiver.
        """
        attacking = np.asarray(attack.byzantine)
        weights = self._weights_at_receivers(len(attacking))
        if weights is None:
            return False
        false_messages = np.broadcast_to(attacking, weights.shape)
        if attack.links is not None and len(weights) > 1:
            false_messages = np.asarray(attack.links)
        share = np.sum(weights * false_messages, axis=1) / np.sum(weights, axis=1)
        if len(weights) > 1:
            share = share[~attacking]
        if np.max(share, initial=0) >= 0.5:
            warnings.warn(
                f"a receiver may get messages of attackers with a share of {np.max(share):.2g} of "
                f"the weights, but {type(aggregator).__name__} withstands less than half (its "
                "breakdown point): the attackers may move its result anywhere. Give messages equal "
                "weights, take Median, or ignore this if you study its breakdown.",
                AssumptionWarning,
                stacklevel=2,
            )
        return True

    def _weights_at_receivers(self, clients: int) -> np.ndarray | None:
        """The weights of all messages, ``[receivers, clients]``; ``None`` if they are unknown, too
        many for a table, or a server's and equal.
        """
        graph = self._peer_graph
        if graph is None:
            weights = None if self.network is not None else self.algorithm.weights(self.problem)
            if weights is None or not checks.is_concrete(weights):
                return None
            return np.asarray(weights)[None]
        # An algorithm of several combinations, such as diffusion's, has an entry for each.
        rule = next((rule for rule in self.algorithm.combinations if rule is not None), None)
        if rule is None or not all(map(checks.is_concrete, jax.tree.leaves((rule, graph)))):
            return None
        with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
            combination = graph.mixing(rule) if isinstance(rule, Mixing) else rule
            return np.asarray(combination.matrix()) if combination.form == "dense" else None

    def _validate_noise(self, noise: Noise) -> None:
        """Check the noise against the network and weights that are known before the run."""
        network = self.network
        graph = network.graph if isinstance(network, Federation) else network
        if not isinstance(graph, Graph) or not checks.is_concrete(graph.degree):
            return
        servers = isinstance(network, Federation)
        weights = []
        with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
            for over in (Mixing(),) if servers else self.algorithm.combinations:
                leaves = jax.tree.leaves(over)
                if over is not None and all(checks.is_concrete(leaf) for leaf in leaves):
                    weights.append(graph.mixing(over) if isinstance(over, Mixing) else over)
            noise.check(graph, weights)

    def _fewest_messages(self) -> int | None:
        """Return the least number of messages that a receiver combines, including its own if used;
        ``None`` where this is not known before the run.
        """
        network = self.network if type(self.algorithm).needs.network is not None else None
        if network is None:
            return self.problem.clients
        if isinstance(network, Federation):
            return int(network.sizes.min())
        if isinstance(network, Graph) and checks.is_concrete(network.degree):
            with jax.ensure_compile_time_eval():  # the graph may be known while others are traced
                neighbors = int(np.min(np.asarray(network.neighbor_counts())))
            return neighbors + type(self.algorithm).hears_itself if neighbors else 1
        return None

    def _validate_metrics(self) -> None:
        stream = self.problem if self.problem.online else None
        problem = self.problem if stream is not None else self.fixed_problem.judged
        for metric in self.metrics:
            lacking = (
                quantity.lacking(self, problem)
                for name, quantity in QUANTITIES.items()
                if name in metric.needs
            )
            if missing := next(filter(None, lacking), ""):
                raise ValueError(f"the metric {metric.name!r} needs {missing}.")
            if metric.check is not None:
                metric.check(problem)
            has_own_optimum = type(self.algorithm).optimum is not Algorithm.optimum
            if metric is suboptimality and has_own_optimum:
                raise ValueError(
                    f"the metric 'suboptimality' is of one model for all clients, and "
                    f"{self.algorithm.label} learns one for each; take 'normalized_error'."
                )
            if metric is normalized_error and stream is None:
                self._require_targets()

    def _require_targets(self) -> None:
        """Raise ``ValueError`` where the optimum is known to be zero, since errors are divided by
        it.

        Randomly drawn targets are checked only in the results: checking here would require drawing
        them all.
        """
        problem = self.fixed_problem
        regression = LeastSquares | Huber | LeastAbsoluteDeviation
        testable = isinstance(problem.loss, regression) and checks.is_concrete(problem.targets)
        if testable and not np.any(np.asarray(problem.targets)):
            raise ValueError(
                "the metric 'normalized_error' divides by the optimum, which is zero for targets "
                "that are all zero; take 'mean_square_deviation' or other targets."
            )

    @property
    def fixed_problem(self) -> Problem:
        """The problem, all of whose data are there from the start."""
        return cast(Problem, self.problem)

    @property
    def problem_on_disk(self) -> OnDisk:
        """The problem, whose samples are on disk."""
        return cast(OnDisk, self.problem)

    @property
    def stages(self) -> Stages:
        """The processing steps of a message, in order."""
        return Stages(
            self.privacy,
            self.upload_noise,
            self.masks,
            self.compression,
            self.attack,
            self.noise,
            self.losses,
            self.delays if not isinstance(self.clock, Ticks) else OnTicks(self.clock.longest),
            self.network if isinstance(self.network, Relearned) else None,
            self.aggregation,
        )

    def _repr_html_(self) -> str:  # in a notebook
        """The processing steps of a message, in order, and the network."""
        rows = [("problem", self.problem), ("algorithm", self.algorithm)]
        path = ((name, getattr(self, name)) for name in _STAGES)
        rows += [(name, part) for name, part in path if part is not None]
        lines = (
            f"<tr><th>{name}</th><td>{escape(' '.join(repr(part).split()))}</td></tr>"
            for name, part in rows
        )
        drawing = getattr(self.network, "_repr_html_", lambda: None)()
        description = f"<p>{escape(repr(self.network))}</p>" if self.network is not None else ""
        metric_names = ", ".join(metric.name for metric in self.metrics)
        recorded = f"<p>records {escape(metric_names)}</p>" if metric_names else ""
        return f"<table>{''.join(lines)}</table>{drawing or description}{recorded}"

    @property
    def may_be_absent(self) -> bool:
        """Whether clients may be unavailable in a round."""
        return self.participation is not None or (
            self.clock is not None and self.clock.devices.availability is not None
        )

    @property
    def among_peers(self) -> bool:
        """Whether clients communicate with each other rather than with a server."""
        return type(self.algorithm).needs.network is Graph
