"""The engine of a run: computations before its rounds, in each of them, and at its end."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax import _check, requirements, schedules
from fljax._linalg import accumulated, all_finite
from fljax._memory import check_fits
from fljax._numerics import key_of, represented, round_key
from fljax._rows import Rows
from fljax.algorithms import Algorithm, start_models
from fljax.graphs import Graph, Relearned, Varying
from fljax.link import Link, LocalGraphHomomorphic, Memory, Traffic, receivers_of
from fljax.link import begin as begin_link
from fljax.metrics import Metric, Snapshot
from fljax.participation import Participants, Selector
from fljax.privacy import CentralGaussian, Gap, NoisyGradients, Notion, promises
from fljax.privacy.notions import is_gaussian
from fljax.rounds import Round
from fljax.simulation import Simulation
from fljax.witness import Seen, unseen

__all__ = [
    "Carry",
    "Prepared",
    "advance",
    "begin",
    "check_length",
    "check_metrics",
    "check_rounds",
    "final_ledger",
    "final_model",
    "look",
    "measured",
    "noise_plan",
    "noiseless",
    "outcome",
    "passed",
    "prepare",
    "stepped",
    "trace",
    "witnessed",
]


class Carry(NamedTuple):
    """State carried from round to round in addition to the algorithm's own."""

    state: Any
    spent: dict[str, Array]  # [2, K] each: the privacy ledger so far, and what rounding left of it
    gradient_norm: Array  # []  largest per-sample gradient so far
    seen: Seen | None  # of the models at which gradients were looked at last
    rounding: Array  # []  how far rounding may move what left, in its sensitivity, so far
    release_rho: Array  # []  largest zCDP parameter of a single release so far
    clipped: Array  # []  largest share of masked numbers beyond the masks' range, so far
    diverged: Array  # []  first round with a non-finite model, 0 if none
    traffic: Traffic  # since the last record
    stream: Any  # of the data, where they arrive one by one
    availability: Any  # of the pattern of participation
    memory: Memory  # of the link
    signal_to_noise: Array | None  # [K]  of the last private messages, if a metric asks
    drift: Array | None  # [K]  of the last participants from the server's model, if a metric asks


class Prepared(NamedTuple):
    """Quantities that are computed once, before the first round."""

    problem: Any  # Problem or Stream
    network: Any  # as rounds see it: the clients' graph only where they talk to each other
    optimum: Array | None
    plan: Any
    receivers: Array | None  # None where the network changes
    curvature: Array | None  # of a stream's features, see `Stream.curvature`


def prepare(simulation: Simulation, rounds: int) -> Prepared:
    """Compute the statistics of the data, the optimum if a metric needs it, and the noise plan."""
    return noiseless(simulation)._replace(plan=noise_plan(simulation, rounds))


def noiseless(simulation: Simulation) -> Prepared:
    """The same without the noise plan: all that metrics read."""
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
        if problem.online and best.shape not in ((problem.dim,), (problem.clients, problem.dim)):
            raise ValueError(  # of a stream of one's own, whose errors it would broadcast to
                f"truth must be a model of {problem.dim} parameters, got shape {best.shape}."
            )
    changing = isinstance(network, Varying)
    return Prepared(
        problem,
        network,
        best,
        None,
        None if changing else receivers_of(network, problem.clients),
        problem.curvature(),
    )


def _one_by_one(simulation: Simulation) -> bool:
    """Whether a receiver needs all its messages side by side."""
    noise = simulation.noise
    drawn = isinstance(noise, LocalGraphHomomorphic) and not (
        noise.cancels and simulation.losses is None
    )
    learned = isinstance(simulation.network, Relearned)
    asked = simulation.aggregation is not None or simulation.algorithm.one_by_one
    return drawn or learned or asked


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
    if isinstance(simulation.privacy, NoisyGradients):
        _check_strategy(simulation.privacy, simulation.problem)
    elif hasattr(simulation.privacy, "check"):
        size = simulation.algorithm.message_size_of(simulation.problem)
        simulation.privacy.check(size, rounds)
    noise_plan(simulation, rounds)


def _check_strategy(budget: NoisyGradients, problem: Any) -> None:
    """Raise ``MemoryError`` where clients cannot keep the state of a strategy."""
    kept = jax.eval_shape(lambda: budget.begin(problem.dim, problem.dtype, 1))
    check_fits(
        "what clients keep of a strategy between their steps",
        problem.clients,
        sum(leaf.size for leaf in jax.tree.leaves(kept)),
        each=problem.dtype.itemsize,
        mend="take one of fewer bands, or of a few buffers (BufferedToeplitz)",
    )


def noise_plan(simulation: Simulation, rounds: int) -> Any:
    """The privacy noise for the whole run: on messages, from the algorithm's sensitivities; of a
    trusted server, from its sampling of participants.
    """
    privacy = simulation.privacy
    algorithm, problem = simulation.algorithm, simulation.problem
    if isinstance(privacy, CentralGaussian):
        return privacy.plan(algorithm.selection, problem.clients, rounds)
    if isinstance(privacy, NoisyGradients):
        if privacy.parts is not None:
            problem.check_parts(privacy.parts)
        steps = getattr(algorithm, "local_steps", None)
        return privacy.plan(algorithm.sampling(problem), steps, rounds)
    if not isinstance(privacy, Notion):
        return None
    return privacy.plan(functools.partial(_sensitivity, simulation, problem), rounds)


def _sensitivity(simulation: Simulation, problem: Any, round: Array) -> Array:
    privacy = simulation.privacy
    assert isinstance(privacy, Notion)
    algorithm = simulation.algorithm

    def by(gap: Gap) -> Array:
        return algorithm.sensitivity(problem, simulation.network, round, gap)

    moved = by(Gap.of(privacy, problem))
    if np.shape(moved) != (problem.clients,):
        raise TypeError(
            f"{type(algorithm).__name__}.sensitivity must return one number of each of the "
            f"{problem.clients} clients, got {_check.shown(moved)}."
        )
    moved = jnp.asarray(moved)
    large = float(jnp.finfo(moved.dtype).tiny) ** -0.75  # of which no product with a step vanishes
    return represented(moved, by(Gap.of(privacy, problem, bound=large)) > 0)


def begin(simulation: Simulation, prepared: Prepared, key: Array) -> Carry:
    """State before the first round; ``key`` is that of the run, whose rounds count from 1."""
    problem, privacy, pattern = prepared.problem, simulation.privacy, simulation.participation
    zeroth, network = round_key(key, 0), requirements.shown(prepared.network)
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
    missing = jnp.full(problem.clients, jnp.nan, problem.dtype)
    return Carry(
        state,
        {name: jnp.zeros((2, problem.clients), problem.dtype) for name in ledger},
        jnp.zeros((), problem.dtype),
        unseen(problem) if isinstance(privacy, Notion) else None,
        jnp.zeros(()),
        jnp.zeros(()),
        jnp.zeros(()),
        jnp.zeros((), jnp.int32),
        Traffic.none(),
        problem.begin(zeroth),
        () if pattern is None else pattern.begin(key_of(zeroth, "availability"), problem.clients),
        begin_link(
            simulation.stages,
            network,
            zeroth,
            said,
            asleep=pattern is not None,
            counted=problem.dim if _counts_steps(simulation) else None,
        ),
        missing if _asks(simulation, "needs_noise") else None,
        missing if _asks(simulation, "needs_drift") else None,
    )


def _counts_steps(simulation: Simulation) -> bool:
    """Whether it matters how many local steps each client has taken: of groups of samples that take
    turns, and of noise that is correlated over them.
    """
    privacy = simulation.privacy
    if isinstance(privacy, NoisyGradients) and privacy.strategy is not None:
        return True
    law = simulation.algorithm.sampling(simulation.problem)
    return law is not None and law.separation > 1


def look(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    round: Array,
    rounds: int,
    linked: Callable[..., Link] = Link,
) -> tuple[Round, Any, Any]:
    """The view of a round, and the next states of the data and of participation.

    ``linked`` makes its link: one of another kind can record the messages.
    """
    now, pattern = round_key(key, round), simulation.participation
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


def passed(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    round: Array,
    rounds: int,
    invited: tuple[Selector, Participants] | None = None,
) -> Carry:
    """The state after another round; ``invited`` as in :class:`~fljax.rounds.Round`."""
    algorithm, privacy = simulation.algorithm, simulation.privacy
    now, stream, availability = look(simulation, prepared, key, carry, round, rounds)
    now.invited, now.seen, now.met = invited, carry.seen, carry.gradient_norm
    state = stepped(simulation, carry.state, now)
    now.link.finish(type(algorithm).__name__, algorithm.one_by_one)
    model = state.model.rows if isinstance(state.model, Rows) else state.model
    finite = all_finite(model)
    first = jnp.where((carry.diverged == 0) & ~finite, round, carry.diverged)
    return Carry(
        state,
        {name: _booked(spent, now.link.spent[name]) for name, spent in carry.spent.items()},
        # Looked at only where a guarantee rests on it.
        carry.gradient_norm
        if not isinstance(privacy, Notion)
        else jnp.maximum(carry.gradient_norm, witnessed(algorithm, now)),
        now.seen,
        jnp.maximum(carry.rounding, now.link.rounding),
        jnp.maximum(carry.release_rho, now.link.release_rho),
        jnp.maximum(carry.clipped, now.link.clipped),
        first.astype(jnp.int32),
        carry.traffic.plus(now.link.traffic),
        stream,
        availability,
        now.link.memory,
        now.link.signal_to_noise if _asks(simulation, "needs_noise") else None,
        _drift(simulation, now),
    )


def measured(
    simulation: Simulation, prepared: Prepared, carry: Carry, round: Array
) -> dict[str, Array]:
    """The metrics after a round, and the largest privacy loss of a client in the ledger."""
    problem = prepared.problem
    model, _ = _judged(simulation, prepared, carry.state)
    shared = model if model.ndim == 1 else None
    model = jnp.broadcast_to(model, (problem.clients, model.shape[-1]))
    honest = None if simulation.attack is None else ~jnp.asarray(simulation.attack.liars)
    now = Snapshot(
        problem.at(round) if problem.online else problem,
        simulation.network,
        model,
        prepared.optimum,
        shared,
        carry.state,
        honest,
        carry.signal_to_noise,
        carry.drift,
    )
    record = {m.name: _measured(m, now) for m in simulation.metrics}
    return record | {f"privacy_{name}": jnp.max(s) for name, s in _totals(carry).items()}


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
    """A segment of a run as a scan, after ``done`` of its ``rounds``.

    Each record, ``[records]`` each, contains the metrics, the largest privacy loss of a client in
    the ledger, and the traffic since the last record. Round ``n`` draws from ``fold_in(key, n)``,
    so a run in several segments is the same run.
    """

    def one_round(round: Array, carry: Carry) -> Carry:
        return passed(simulation, prepared, key, carry, round, rounds)

    def one_record(carry: Carry, first: Array) -> tuple[Carry, tuple[dict[str, Array], Array]]:
        if record_every == 1:  # what rounds have in common leaves one loop, but not two
            carry = one_round(first, carry)
        else:
            carry = jax.lax.fori_loop(first, first + record_every, one_round, carry)
        record = measured(simulation, prepared, carry, first + (record_every - 1))
        return carry._replace(traffic=Traffic.none()), (record, jnp.stack(carry.traffic, axis=1))

    firsts = jnp.asarray(done, jnp.int32) + jnp.arange(
        1, records * record_every + 1, record_every, dtype=jnp.int32
    )
    carry, (recorded, traffic) = jax.lax.scan(one_record, carry, firsts)
    return carry, recorded | {name: traffic[..., i] for i, name in enumerate(Traffic._fields)}


def _measured(metric: Any, now: Snapshot) -> Array:
    try:
        value = metric.measure(now)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TypeError(
            f"the metric {metric.name!r} needs the values of arrays while it is compiled: take "
            "jax.numpy instead of numpy and of float(), and jnp.where instead of if "
            f"({str(error).partition(chr(10))[0]})"
        ) from error
    if not _check.is_real(value):
        raise TypeError(
            f"the metric {metric.name!r} must be one number, got {_check.shown(value)}."
        )
    value = jnp.asarray(value)
    if value.dtype.isbuiltin != 2:
        return value
    # Of JAX's small types, which files and tables do not know, to one that holds each of them.
    if jnp.issubdtype(value.dtype, jnp.floating):
        return value.astype(jnp.float32)
    return value.astype(jnp.int8 if jnp.issubdtype(value.dtype, jnp.signedinteger) else jnp.uint8)


def _booked(spent: Array, more: Array) -> Array:
    """The ledger with another entry, in twice the digits."""
    return jnp.stack(accumulated(spent[0], spent[1], more))


def _totals(carry: Carry) -> dict[str, Array]:
    """``[K]`` each: the ledger."""
    return {name: jnp.sum(both, axis=0) for name, both in carry.spent.items()}


def _judged(simulation: Simulation, prepared: Prepared, state: Any) -> tuple[Array, bool]:
    """The models that metrics evaluate, ``[K, D]`` or one for all, ``[D]``, and whether they are
    the released ones.
    """
    algorithm = simulation.algorithm
    if type(algorithm).released is Algorithm.released:
        return state.model, False
    seen = algorithm.released(state, prepared.problem, requirements.shown(prepared.network))
    return (seen, True) if simulation.model == "released" else (state.model, seen is state.model)


def _asks(simulation: Simulation, need: str) -> bool:
    """Whether a metric has this need."""
    return any(getattr(metric, need) for metric in simulation.metrics)


def _drift(simulation: Simulation, now: Round) -> Array | None:
    if not _asks(simulation, "needs_drift"):
        return None
    if now.link.drift is None:
        raise ValueError(
            f"{type(simulation.algorithm).__name__} has no local steps that start at a server's "
            "model, so its clients have no drift from it; leave out the metric client_drift, or "
            "use consensus_error between peers."
        )
    return now.link.drift


def stepped(simulation: Simulation, state: Any, now: Round) -> Any:
    """The algorithm's next state; absent peers keep the old one."""
    new = simulation.algorithm.step(state, now)
    if simulation.among_peers and simulation.participation is not None:
        rested = _rested(now.available, new, state)
        waiting = {name: getattr(new, name) for name in simulation.algorithm.waiting}
        return rested._replace(**waiting) if waiting else rested
    return new


def _rested(available: Array, new: Any, old: Any) -> Any:
    """The state after a round in which absent peers neither computed nor received anything."""
    clients = len(available)

    def keep(new: Array, old: Array) -> Array:
        if new.ndim == 0 or new.shape[0] != clients:
            return new
        return jnp.where(available.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(keep, new, old)


def witnessed(algorithm: Algorithm, now: Round) -> Array:
    """The largest per-sample gradient in a step, on which its privacy guarantee is based."""
    if now.witnessed is None:
        raise TypeError(
            f"{type(algorithm).__name__}.step does not report the gradients on which its privacy "
            "rests; call now.witness_at(model)."
        )
    return now.witnessed


def outcome(simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
    """Quantities reported once per run, at its end so far."""
    known = {"diverged": carry.diverged}
    if simulation.masks is not None:
        known["clipped"] = carry.clipped
    privacy = simulation.privacy
    if privacy is not None:
        _, covered = _judged(simulation, prepared, carry.state)
        known["exact_model"] = jnp.asarray(not covered)
        known["gaussian_noise"] = jnp.asarray(is_gaussian(type(privacy)))
        known["rounding"] = carry.rounding
        known["release_rho"] = carry.release_rho
        known["nominal"] = carry.rounding > promises.SWALLOWED
        if prepared.problem.linear and not prepared.problem.online:
            known["unusable_samples"] = simulation.problem.unusable_samples()
    if isinstance(privacy, Notion):
        known["gradient_norm"] = carry.gradient_norm
        known["gradient_bound"] = bound = jnp.asarray(privacy.gradient_bound)
        known["promised_bound"] = promised = prepared.problem.promised_bound()
        known["nominal"] |= promised > bound * (1 + promises.ROUNDING)
    elif privacy is not None:
        known |= _sampled(simulation, prepared)
    if isinstance(privacy, CentralGaussian):
        known["update_clip"] = carry.memory.mechanism.clip
    network = None if isinstance(prepared.network, Varying) else prepared.network
    bound, size = None, simulation.algorithm.step_size
    if prepared.problem.linear and not prepared.problem.on_disk and size is not None:
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
    """Whether clients' weights are equal up to a factor; ``None`` means one each."""
    one, other = (jnp.ones(()) if w is None else w / jnp.mean(w) for w in (some, others))
    return jnp.all(jnp.abs(one - other) <= 1e-4)


def _sampled(simulation: Simulation, prepared: Prepared) -> dict[str, Array]:
    """The arguments that :func:`fljax.privacy.spent` needs for a sampled Gaussian mechanism."""
    privacy, algorithm, problem = simulation.privacy, simulation.algorithm, simulation.problem
    if isinstance(privacy, CentralGaussian):
        law = algorithm.selection.law(problem.clients)
        return privacy.sampled(prepared.plan, law, problem.clients)
    assert isinstance(privacy, NoisyGradients)
    law, records = algorithm.sampling(problem), jnp.min(problem.sample_counts())
    assert law is not None  # or there is no plan
    return privacy.sampled(prepared.plan, law, records)


def final_model(simulation: Simulation, prepared: Prepared, carry: Carry) -> Array:
    """``[K, D]``, whether each client has its own model or all share one; for learners without
    parameters, their predictions.
    """
    model, _ = _judged(simulation, prepared, carry.state)
    return jnp.broadcast_to(model, (prepared.problem.clients, model.shape[-1]))


def final_ledger(carry: Carry) -> dict[str, Array]:
    """``[K]`` each: the privacy loss of every client."""
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
    """Raise ``TypeError`` unless every metric has the axes that it declares, in every record."""
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
    """Raise unless ``record_every`` divides the number of rounds."""
    _check.count("rounds", rounds, hint="It is the number of iterations of every run.")
    _check.count("record_every", record_every)
    if rounds % record_every:
        raise ValueError(
            f"rounds must be a multiple of record_every, got {rounds} and {record_every}."
        )
