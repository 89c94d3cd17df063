"""One run: a simulation is what is run, :func:`run` runs it once, as a scan over rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from fljax import _check, results
from fljax._module import module, static
from fljax.algorithms import REGISTRY, Algorithm
from fljax.channel import Channel, Compressor, DelayLaw, Line, Traffic, empty_line, key_of
from fljax.federation import Federation
from fljax.graphs import Graph
from fljax.metrics import Metric, Snapshot, as_metric
from fljax.participation import Pattern
from fljax.privacy import Notion
from fljax.problems import optimum
from fljax.streams import Stream

#: The random number generator of runs. On CPU about four times faster than JAX's default,
#: threefry2x32 (`experiments/benchmarks/generators.py`), and like it bit-exact under vmap.
PRNG = "philox4x32"


@module
class Simulation:
    """One Monte-Carlo run: the data, who talks to whom and when, the algorithm, the metrics.

    A pytree: numbers in it may be traced, so a function that builds one from a key and some
    numbers is all that :func:`fljax.sweep` needs.

    Args:
      problem: all clients' data and objective, or a :class:`~fljax.streams.Stream` of them.
      algorithm: one of :mod:`fljax.algorithms`.
      network: the clients' :class:`~fljax.graphs.Graph`, or the
        :class:`~fljax.federation.Federation` of servers they belong to; not needed by algorithms
        with one server.
      privacy: the budget, or ``None``.
      metrics: what is recorded, as metrics or their names.
      participation: which clients are available, a :class:`~fljax.participation.Pattern`;
        all of them, in every round, by default.
      delays: of clients' messages to the server, a :class:`~fljax.channel.DelayLaw`; none by
        default.
      compression: of clients' messages, a :class:`~fljax.channel.Compressor`; none by default.

    Raises:
      ValueError: fewer than two clients, a graph of another size, a missing graph, a privacy
        notion that the algorithm does not run under, an unknown metric, the same metric twice; a
        setting that the algorithm has no rule for (absent clients or delays without a server,
        a stream where it needs all data at once, privacy of any of these).
    """

    problem: Any  # Problem or Stream
    algorithm: Algorithm
    network: Graph | Federation | None = None
    privacy: Notion | None = None
    metrics: Sequence[Metric | str] = static(default=())
    participation: Pattern | None = None
    delays: DelayLaw | None = None
    compression: Compressor | None = None

    def validate(self) -> None:
        if isinstance(self.metrics, str | Metric):
            object.__setattr__(self, "metrics", (self.metrics,))
        object.__setattr__(self, "metrics", tuple(as_metric(m) for m in self.metrics))
        names = [m.name for m in self.metrics]  # pyright: ignore[reportAttributeAccessIssue]
        if len(set(names)) < len(names):
            raise ValueError(f"each metric can be recorded once, got {names}.")
        label = type(self.algorithm).label
        if self.problem.clients < 2:
            raise ValueError(
                f"a federation needs at least 2 clients, got {self.problem.clients}; "
                "fljax.problems.optimum solves a single client's problem."
            )
        self._validate_network(label)
        if self.privacy is not None and not isinstance(self.privacy, type(self.algorithm).notions):
            allowed = [n.__name__ for n in type(self.algorithm).notions]
            raise ValueError(
                f"{label} does not run under {type(self.privacy).__name__}; "
                + (f"it accepts {', '.join(allowed)}." if allowed else "it has no private form.")
            )
        self._validate_environment(label)

    def _validate_network(self, label: str) -> None:
        needed, network = type(self.algorithm).topology, self.network
        if needed is not None and not isinstance(network, needed):
            hint = {
                Graph: f"a graph of the clients; pass network=, for instance "
                f"fljax.graphs.ring({self.problem.clients})",
                Federation: "servers with clients; pass network=, for instance "
                "fljax.federation.balanced(clients_per_server, graph)",
            }[needed]
            raise ValueError(f"{label} runs on {hint}.")
        if network is None:
            return
        if network.nodes != self.problem.clients:
            raise ValueError(
                f"the network has {network.nodes} nodes but the problem "
                f"{self.problem.clients} clients; they must be equal."
            )
        network.require_connected()

    def _validate_environment(self, label: str) -> None:
        algorithm, online = type(self.algorithm), isinstance(self.problem, Stream)
        changed = {
            "participation": self.participation is not None,
            "delays": self.delays is not None,
            "a stream": online,
        }
        changed = [name for name, on in changed.items() if on]
        if changed and self.privacy is not None:
            raise ValueError(
                f"what a private run spends is known for fixed data and clients that are always "
                f"there; leave out privacy=, or {' and '.join(changed)}."
            )
        peers, one_server = algorithm.topology is Graph, algorithm.topology is None
        if (self.participation is not None and peers) or (
            self.delays is not None and not one_server
        ):
            raise ValueError(
                f"{label} has no rule for {'absent clients or ' if peers else ''}late messages; "
                "algorithms with one server have: "
                f"{', '.join(k for k, v in REGISTRY.items() if v.topology is None)}."
            )
        if online and not algorithm.online:
            raise ValueError(
                f"{label} needs all data at once and cannot learn from a stream; these can: "
                f"{', '.join(k for k, v in REGISTRY.items() if v.online)}."
            )
        if not online and algorithm.online_only:
            raise ValueError(
                f"{label} learns from a stream, got a fixed problem; fljax.streams.Replay makes a "
                "stream of it."
            )
        for kind, base in (
            ("participation", Pattern),
            ("delays", DelayLaw),
            ("compression", Compressor),
        ):
            part = getattr(self, kind)
            if part is not None:
                _check.kind(kind, part, base)
        if self.compression is not None:
            if algorithm.compresses:
                raise ValueError(f"{label} compresses its messages itself; leave out compression=.")
            self.compression.check(self.problem.dim)
        self._validate_metrics()

    def _validate_metrics(self) -> None:
        stream = self.problem if isinstance(self.problem, Stream) else None
        for metric in self.metrics:
            assert isinstance(metric, Metric)
            missing = ""
            tasks = getattr(self.problem, "tasks", None)
            if metric.needs_tasks and getattr(tasks, metric.needs_tasks, None) is None:
                missing = f"a problem with tasks=fljax.problems.Tasks({metric.needs_tasks}=...)"
            elif metric.needs_test and (stream is None or stream.test is None):
                missing = "held-out data, a stream with test="
            elif stream is not None and metric.needs_data:
                missing = "all data at once, which a stream does not hold; use test_error"
            elif stream is not None and metric.needs_optimum and stream.truth is None:
                missing = "an optimum, which is not known of this stream; use test_error"
            if missing:
                raise ValueError(f"the metric {metric.name!r} needs {missing}.")


class Carry(NamedTuple):
    """What goes from round to round beside the algorithm's own state."""

    state: Any
    spent: dict[str, Array]  # [K] each: the privacy ledger so far
    gradient_norm: Array  # []  largest per-sample gradient so far
    diverged: Array  # []  first round with a non-finite model, 0 if none
    traffic: Traffic  # since the last record
    stream: Any  # of the data, where they arrive one by one
    availability: Any  # of the pattern of participation
    line: Line | None  # what is on its way to the server


class Prepared(NamedTuple):
    """What is computed once, before the first round."""

    problem: Any  # Problem or Stream
    optimum: Array | None
    plan: Any
    receivers: Array
    curvature: Array | None  # of a stream's features, see `Stream.curvature`


def prepare(simulation: Simulation, rounds: int) -> Prepared:
    """Statistics of the data, the optimum if a metric needs it, the noise plan."""
    problem = simulation.problem.prepare()
    needed = any(m.needs_optimum for m in simulation.metrics)  # pyright: ignore[reportAttributeAccessIssue]
    if type(simulation.algorithm).topology is None:
        receivers = jnp.ones(problem.clients, jnp.int32)
    else:
        receivers = simulation.network.neighbor_counts()  # pyright: ignore[reportOptionalMemberAccess]
    best = None
    if needed:
        best = jnp.asarray(problem.truth) if isinstance(problem, Stream) else optimum(problem)
    curvature = problem.curvature() if isinstance(problem, Stream) else None
    return Prepared(problem, best, noise_plan(simulation, rounds), receivers, curvature)


def check_length(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where a part of the simulation does not fit a run of this length."""
    problem, clients = simulation.problem, simulation.problem.clients
    if isinstance(problem, Stream):
        problem.check(rounds)
    for part in (simulation.participation, simulation.delays):
        if part is not None:
            part.check(clients, rounds)
    noise_plan(simulation, rounds)


def noise_plan(simulation: Simulation, rounds: int) -> Any:
    """What the privacy notion fixes for the whole run, from the algorithm's sensitivities."""
    privacy = simulation.privacy
    if privacy is None:
        return None
    problem, network, bound = simulation.problem, simulation.network, privacy.gradient_bound

    def sensitivity(round: Array) -> Array:
        return simulation.algorithm.sensitivity(problem, network, round, bound)  # pyright: ignore[reportArgumentType]

    return privacy.plan(sensitivity, rounds)


def begin(simulation: Simulation, prepared: Prepared, key: Array) -> Carry:
    """Before the first round; ``key`` is the run's, whose rounds count from 1."""
    problem, privacy, pattern = prepared.problem, simulation.privacy, simulation.participation
    law, zeroth = simulation.delays, jax.random.fold_in(key, 0)
    ledger = () if privacy is None else type(privacy).ledger
    return Carry(
        simulation.algorithm.init(problem, simulation.network),  # pyright: ignore[reportArgumentType]
        {name: jnp.zeros(problem.clients, problem.dtype) for name in ledger},
        jnp.zeros((), problem.dtype),
        jnp.zeros((), jnp.int32),
        Traffic.none(),
        problem.begin(zeroth) if isinstance(problem, Stream) else (),
        () if pattern is None else pattern.begin(key_of(zeroth, "availability"), problem.clients),
        None if law is None else empty_line(law, problem.dim, problem.dtype),
    )


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
    problem, network = prepared.problem, simulation.network
    algorithm, privacy, pattern = (
        simulation.algorithm,
        simulation.privacy,
        simulation.participation,
    )
    shape = (problem.clients, problem.dim)

    def one_round(round: Array, carry: Carry) -> Carry:
        now = jax.random.fold_in(key, round)
        problem, available = prepared.problem, None
        stream, availability = carry.stream, carry.availability
        if isinstance(problem, Stream):
            stream, problem = problem.observe(stream, now, round)
            available = jnp.any(problem.weights > 0, axis=1)
        if pattern is not None:
            availability, on = pattern.draw(
                availability, key_of(now, "availability"), round, problem.clients
            )
            available = on if available is None else on & available
        channel = Channel(
            now,
            round,
            rounds,
            prepared.receivers,
            privacy,
            prepared.plan,
            available,
            simulation.delays,
            carry.line,
            simulation.compression,
            key,
        )
        state, info = algorithm.step(carry.state, problem, network, channel, round)  # pyright: ignore[reportArgumentType]
        finite = jnp.all(jnp.isfinite(state.model))
        first = jnp.where((carry.diverged == 0) & ~finite, round, carry.diverged)
        return Carry(
            state,
            {name: spent + channel.spent[name] for name, spent in carry.spent.items()},
            # Looked at only where a guarantee rests on it: it costs a pass over the samples.
            carry.gradient_norm
            if privacy is None
            else jnp.maximum(carry.gradient_norm, jnp.max(info.gradient_norm)),
            first.astype(jnp.int32),
            carry.traffic.plus(channel.traffic),
            stream,
            availability,
            channel.line,
        )

    def one_record(carry: Carry, first: Array) -> tuple[Carry, tuple[dict[str, Array], Array]]:
        if record_every == 1:  # what rounds have in common leaves one loop, but not two
            carry = one_round(first, carry)
        else:
            carry = jax.lax.fori_loop(first, first + record_every, one_round, carry)
        shared = carry.state.model if carry.state.model.ndim == 1 else None
        model = jnp.broadcast_to(carry.state.model, shape)
        now = Snapshot(problem, network, model, prepared.optimum, shared, carry.state)
        record = {m.name: m.measure(now) for m in simulation.metrics}  # pyright: ignore[reportAttributeAccessIssue]
        record |= {f"privacy_{name}": jnp.max(spent) for name, spent in carry.spent.items()}
        return carry._replace(traffic=Traffic.none()), (record, jnp.stack(carry.traffic, axis=1))

    firsts = jnp.asarray(done, jnp.int32) + jnp.arange(
        1, records * record_every + 1, record_every, dtype=jnp.int32
    )
    carry, (recorded, traffic) = jax.lax.scan(one_record, carry, firsts)
    return carry, recorded | {name: traffic[..., i] for i, name in enumerate(Traffic._fields)}


def outcome(simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
    """What is known of a run once, at its end so far."""
    known = {"diverged": carry.diverged}
    if simulation.privacy is not None:
        known["gradient_norm"] = carry.gradient_norm
        known["gradient_bound"] = jnp.asarray(simulation.privacy.gradient_bound)
    curvature = prepared.curvature
    bound = None if curvature is None else simulation.algorithm.step_bound(curvature)
    if bound is not None:
        first = jnp.ones((), jnp.int32)
        known["first_step"] = simulation.algorithm.step_size(first)  # pyright: ignore[reportAttributeAccessIssue]
        known["step_bound"] = bound
    if simulation.network is not None:
        known["connected"] = simulation.network.connected()
    return known


def final_model(prepared: Prepared, carry: Carry) -> Array:
    """``[K, D]``, whether the clients have a model each or share one."""
    problem = prepared.problem
    return jnp.broadcast_to(carry.state.model, (problem.clients, problem.dim))


def trace(
    simulation: Simulation, key: Array, rounds: int, record_every: int
) -> tuple[dict[str, Array], Array]:
    """The whole run: records and outcome by name (see :func:`advance`), and the models."""
    prepared = prepare(simulation, rounds)
    carry = begin(simulation, prepared, key)
    records = rounds // record_every
    carry, recorded = advance(simulation, prepared, key, carry, 0, records, record_every, rounds)
    return recorded | outcome(simulation, prepared, carry), final_model(prepared, carry)


def check_rounds(rounds: int, record_every: int) -> None:
    """Raise unless the recorded rounds divide the run."""
    _check.count("rounds", rounds, hint="It is the number of iterations of every run.")
    _check.count("record_every", record_every)
    if rounds % record_every:
        raise ValueError(
            f"rounds must be a multiple of record_every, got {rounds} and {record_every}."
        )


def run(
    simulation: Simulation,
    rounds: int,
    key: Array | int = 0,
    record_every: int = 1,
) -> xr.Dataset:
    """Run a simulation once.

    A second run with other numbers in it (a new key, new data of the same shape, another penalty)
    reuses the compiled program.

    Args:
      simulation: what to run.
      rounds: how many iterations, >= 1.
      key: of the run's noise; an integer seeds the default generator.
      record_every: measure after every so many rounds; must divide ``rounds``.

    Returns:
      A dataset over ``round`` with the metrics, the privacy ledger and the traffic, the final
      models as ``model`` over ``client`` and ``parameter``, and the provenance as attributes.

    Raises:
      TypeError, ValueError: as said by the arguments' own checks.
    """
    if not isinstance(simulation, Simulation):
        raise TypeError(f"run takes an fljax.Simulation, got {type(simulation).__name__}.")
    check_rounds(rounds, record_every)
    jax.eval_shape(lambda: check_length(simulation, rounds))
    if isinstance(key, int | np.integer):
        key = jax.random.key(int(key), impl=PRNG)
    records, model = _run(simulation, key, rounds, record_every)
    host = {name: np.asarray(value) for name, value in records.items()}
    dataset = results.assemble(
        host, (), {}, rounds, record_every, results.describe(simulation.metrics)
    )
    dataset["model"] = (("client", "parameter"), np.asarray(model))
    dataset.attrs |= results.provenance(
        dtype=str(simulation.problem.dtype), prng=str(jax.random.key_impl(key)), rounds=rounds
    )
    results.warn(dataset)
    return dataset


_run = jax.jit(trace, static_argnames=("rounds", "record_every"))
