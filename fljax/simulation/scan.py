"""The rounds of one run as a scan: computations before them, in each of them, and at the end.

:func:`trace` is the whole run. :func:`prepare` computes the constants of a run, :func:`begin` the
state before it; :func:`advance` scans :func:`run_round` and :func:`evaluate_metrics`;
:func:`outcome` computes the quantities that are reported once.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from fljax._core import checks
from fljax._core.cohort_rows import Rows, ServerRows
from fljax._core.linalg import accumulated, all_finite
from fljax._core.memory import check_fits
from fljax._core.prng import key_of, round_key
from fljax.algorithms import Algorithm, start_models
from fljax.algorithms.network_states import numbers_of_states, states_after, states_at_start
from fljax.algorithms.round import Round
from fljax.clock.arrivals import ArrivalClock, begin_arrivals, busy_seconds
from fljax.clock.clocks import Asynchronous, Clock, RoundBasedClock, Ticks
from fljax.clock.device_model import Work
from fljax.clock.round_clock import ClockState, RoundClock
from fljax.graphs import Graph, Relearned, Varying
from fljax.link import Link, LocalGraphHomomorphic, Traffic, receivers_of
from fljax.link import begin as begin_link
from fljax.link.delays import OnTicks
from fljax.metrics.definitions import Metric, Snapshot
from fljax.metrics.quantities import QUANTITIES
from fljax.optimization import schedules
from fljax.participation.patterns import Always
from fljax.participation.selectors import Participants, Selector
from fljax.partitions.heterogeneity import heterogeneity
from fljax.privacy import promises
from fljax.privacy.notions import is_gaussian
from fljax.problems import Problem, Softmax
from fljax.problems.gradient_norms import initial_bound
from fljax.problems.pool import most_holders
from fljax.problems.streams import FeatureMoments, Stream
from fljax.simulation import compatibility
from fljax.simulation.noise_scopes import message_sensitivity, scope_of
from fljax.simulation.run_state import Carry, Prepared
from fljax.simulation.scenario import Simulation
from fljax.simulation.workload import work_of

#: Results hold the numbers of samples of all clients and classes up to this many of them a run.
MOST_COUNTS = 4096

#: Results hold the states of networks up to this many numbers a run.
MOST_STATES = 2**22


def prepare(simulation: Simulation, rounds: int) -> Prepared:
    """Compute the statistics of the data, the optimum if a metric needs it, and the noise plan."""
    return prepare_without_noise(simulation)._replace(plan=noise_plan(simulation, rounds))


def prepare_without_noise(simulation: Simulation) -> Prepared:
    """As :func:`prepare`, without the noise plan: enough to evaluate metrics."""
    problem = simulation.problem
    network = simulation.network
    if simulation.privacy is not None:
        problem = problem.usable()
    problem = problem.prepare()
    needed = any("optimum" in metric.needs for metric in simulation.metrics)
    if type(simulation.algorithm).needs.network is None:
        network = None
    elif simulation.among_peers and _needs_single_messages(simulation):
        network = network.single_table()  # pyright: ignore[reportOptionalMemberAccess,reportAttributeAccessIssue]
    optimum = None
    if needed:
        graph = compatibility.network_at_start(simulation.network)
        if isinstance(problem, Stream):
            optimum = problem.truth
        else:
            optimum = simulation.algorithm.optimum(problem, graph)
        optimum = jnp.asarray(optimum)
        if problem.online and optimum.shape not in ((problem.dim,), (problem.clients, problem.dim)):
            raise ValueError(  # a user's stream; another shape would broadcast with the models
                f"truth must be a model of {problem.dim} parameters, got shape {optimum.shape}."
            )
    changing = isinstance(network, Varying)
    return Prepared(
        problem,
        network,
        optimum,
        None,
        None if changing else receivers_of(network, problem.clients),
        _moments(simulation, problem),
        None if simulation.clock is None or problem.online else work_of(simulation, problem),
    )


def _moments(simulation: Simulation, problem: Problem | Stream) -> FeatureMoments | None:
    moments = problem.moments()
    if moments is None:
        return None
    parts = (simulation.participation, simulation.delays, simulation.losses, simulation.clock)
    everyone = isinstance(problem, Stream) and type(problem.arrivals) is Always
    return moments._replace(always=everyone and all(part is None for part in parts))


def _needs_single_messages(simulation: Simulation) -> bool:
    """Whether a receiver reads single messages, so the graph must have one table of neighbors."""
    noise = simulation.noise
    per_edge = isinstance(noise, LocalGraphHomomorphic) and not (
        noise.cancels and simulation.losses is None
    )
    relearned = isinstance(simulation.network, Relearned)
    requested = simulation.aggregation is not None or simulation.algorithm.one_by_one
    return per_edge or relearned or requested


def check_length(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where a part of the simulation does not fit a run of this length."""
    clients = simulation.problem.clients
    simulation.problem.check(rounds)
    for part in (simulation.participation, simulation.delays, simulation.clock):
        if part is not None:
            part.check(clients, rounds)
    if isinstance(simulation.clock, Asynchronous):
        _check_memory_of_starts(simulation, simulation.clock)
    if isinstance(simulation.network, Varying):
        simulation.network.check(rounds)
    schedules.check_length(simulation.algorithm, rounds)
    delays = simulation.delays
    if delays is not None and delays.lags[0] >= rounds:
        raise ValueError(
            f"messages take at least {delays.lags[0]} rounds and the run has {rounds}: nothing "
            "would ever arrive; make the run longer or the delays shorter."
        )
    if delays is not None:
        dim = simulation.problem.dim
        dtype = simulation.problem.dtype
        # Peers store each other's messages, a server the sums of messages that arrive together.
        stored = clients if isinstance(simulation.network, Graph | Varying) else 2
        check_fits(
            f"what is on its way for up to {delays.lags[-1]} rounds",
            delays.lags[-1] + 1,
            stored,
            dim,
            entry_bytes=dtype.itemsize,
            mend="take a law of shorter delays",
        )
    if (scope := scope_of(simulation)) is not None:
        scope.check(simulation, rounds)
        scope.plan(simulation, rounds)


def _check_memory_of_starts(simulation: Simulation, clock: Asynchronous) -> None:
    problem = simulation.problem
    at_work = clock.at_work(problem.clients)
    if not simulation.among_peers:
        check_fits(
            f"the models that {at_work} clients work from",
            at_work,
            problem.dim,
            entry_bytes=problem.dtype.itemsize,
            mend="let fewer work at a time (concurrency=)",
        )


def noise_plan(simulation: Simulation, rounds: int) -> Any:
    """The constants of the privacy noise for the whole run; ``None`` without a mechanism."""
    scope = scope_of(simulation)
    return None if scope is None else scope.plan(simulation, rounds)


def begin(simulation: Simulation, prepared: Prepared, key: Array) -> Carry:
    """State before the first round; ``key`` is that of the run, whose rounds count from 1."""
    problem = prepared.problem
    privacy = simulation.privacy
    pattern = simulation.participation
    zeroth = round_key(key, 0)
    network = compatibility.network_at_start(prepared.network)
    ledger = () if privacy is None else type(privacy).ledger
    size = simulation.algorithm.message_size_of(problem)
    messages = start_models(problem)
    if size != problem.dim:  # messages are not models, and none was sent yet
        messages = jnp.zeros((problem.clients, size), problem.dtype)
    state = simulation.algorithm.init(problem, network)
    if not hasattr(state, "model"):
        raise TypeError(
            f"{type(simulation.algorithm).__name__}.init must return a state with a field model, "
            f"[clients, dim] or [dim], got {checks.shown(state)}."
        )
    missing = jnp.full(problem.clients, jnp.nan, problem.dtype)
    return Carry(
        state,
        {name: jnp.zeros((2, problem.clients), problem.dtype) for name in ledger},
        jnp.zeros((), problem.dtype),
        initial_bound(problem) if _rests_on_gradients(simulation) else None,
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
            messages,
            asleep=simulation.may_be_absent,
            counted=problem.dim if _counts_steps(simulation) else None,
        ),
        dict.fromkeys(_quantities_of_round(simulation), missing),
        states_at_start(
            problem,
            simulation.algorithm.has_personal_networks,
            simulation.algorithm.common_models,
        ),
        _clock_at_start(simulation, prepared, key_of(zeroth, "clock"), state.model),
    )


def _clock_at_start(simulation: Simulation, prepared: Prepared, key: Array, model: Any) -> Any:
    clock = simulation.clock
    if clock is None:
        return ()
    state = ClockState.at_start(clock.devices.draw(key, prepared.problem.clients))
    if isinstance(clock, RoundBasedClock):
        return state._replace(memory=clock.begin(prepared.problem.clients))
    assert isinstance(clock, Asynchronous)
    assert prepared.work is not None  # not a stream
    walks = simulation.algorithm.walks is not None
    return begin_arrivals(clock, state, key, prepared.work, model, walks)


def _rests_on_gradients(simulation: Simulation) -> bool:
    """Whether a guarantee assumes a bound on gradients, so that these are watched."""
    scope = scope_of(simulation)
    return scope is not None and scope.rests_on_gradients


def _counts_steps(simulation: Simulation) -> bool:
    """Whether each client's local steps are counted: groups of samples take turns by this number,
    and correlated noise depends on it.
    """
    scope = scope_of(simulation)
    if scope is not None and scope.counts_steps(simulation):
        return True
    sampling = simulation.algorithm.sampling(simulation.problem)
    return sampling is not None and sampling.separation > 1


def make_round(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    round: Array,
    rounds: int,
    linked: Callable[..., Link] = Link,
) -> tuple[Round, Any, Any]:
    """The view of a round, and the next states of the data and of participation.

    ``linked`` makes its link; a subclass of :class:`~fljax.link.Link` can record the messages.
    """
    key_now = round_key(key, round)
    pattern = simulation.participation
    stream, problem = prepared.problem.observe(carry.stream, key_now, round)
    available = None
    availability = carry.availability
    if problem is not prepared.problem and not simulation.among_peers:
        # Clients without new data do not upload; peers keep mixing the messages that they receive.
        available = jnp.any(problem.weights > 0, axis=1)
    if pattern is not None:
        availability, on = pattern.draw(
            availability, key_of(key_now, "availability"), round, problem.clients
        )
        available = on if available is None else on & available
    network = prepared.network
    changing = isinstance(prepared.network, Varying)
    if changing:
        network = network.at(key_of(key_now, "network"), round)
    clock = None
    if simulation.clock is not None:
        work = prepared.work or work_of(simulation, problem)
        clock = _clock_of_round(
            simulation.clock, work, network, carry.clock, key_of(key_now, "clock"), round
        )
        if clock.available is not None:
            available = clock.available if available is None else available & clock.available
    stages = simulation.stages
    if isinstance(simulation.clock, Ticks):
        assert isinstance(clock, RoundClock)
        stages = stages._replace(delays=OnTicks(simulation.clock.longest, clock))
    link = linked(
        key_now,
        round,
        rounds,
        problem.clients,
        network,
        stages,
        carry.memory,
        available,
        prepared.plan,
        lambda: message_sensitivity(simulation, problem, round),
        key,
        prepared.receivers,
    )
    if problem.state_policy is not None:
        # With several common models a client's personal state is that of the one it evaluates.
        states = carry.networks.common
        if simulation.algorithm.common_models > 1 and carry.networks.personal:
            states = carry.networks.personal
        problem = problem.with_state(states or problem.initial_state())
    now = Round(round, problem, network, link, changing, carry.networks)
    now.clock = clock
    return now, stream, availability


def _clock_of_round(
    clock: Clock, work: Work, network: Any, state: ClockState, key: Array, round: Array
) -> RoundClock | ArrivalClock:
    if isinstance(clock, Asynchronous):
        return ArrivalClock(clock, state, key, round, work)
    assert isinstance(clock, RoundBasedClock)
    return RoundClock(clock, state, key, round, work, network)


def run_round(
    simulation: Simulation,
    prepared: Prepared,
    key: Array,
    carry: Carry,
    round: Array,
    rounds: int,
    invited: tuple[Selector, Participants] | None = None,
) -> Carry:
    """The state after another round; ``invited`` as in :class:`~fljax.algorithms.round.Round`."""
    algorithm = simulation.algorithm
    now, stream, availability = make_round(simulation, prepared, key, carry, round, rounds)
    now.invited = invited
    now.last_norms = carry.seen
    now.largest_norm = carry.gradient_norm
    state = step_algorithm(simulation, carry.state, now)
    now.link.finish(type(algorithm).__name__, algorithm.one_by_one)
    if now.problem.trains_apart and not now.networks.trainings:
        raise TypeError(
            f"{type(algorithm).__name__}.step trains a network with dropout, augmentation or batch "
            "normalization by gradients of its own; take the steps by self.learn, or by "
            "self._step_gradient or train_locally among peers."
        )
    if now.networks.sent[0]:
        now.link.count_beside(now.networks.senders, *now.networks.sent)
    model = state.model.rows if isinstance(state.model, Rows) else state.model
    clock: Any = ()
    if isinstance(now.clock, ArrivalClock):
        clock = now.clock.close(carry.state.model, model, now.link.traffic)
        if not simulation.among_peers and simulation.clock.devices.can_fail:
            received = algorithm.exchanged(now.problem)
            assert received is not None  # checked before the run
            now.link.count_received(now.clock.failed, received[1])
    elif now.clock is not None:
        clock = now.clock.close(_taking_part(simulation, now), now.link)
    now.link.phases = {} if now.clock is None else now.clock.phases
    finite = all_finite(model)
    first = jnp.where((carry.diverged == 0) & ~finite, round, carry.diverged)
    return Carry(
        state,
        {name: _add_to_ledger(spent, now.link.spent[name]) for name, spent in carry.spent.items()},
        # Evaluated only where a guarantee depends on it.
        carry.gradient_norm
        if not _rests_on_gradients(simulation)
        else jnp.maximum(carry.gradient_norm, reported_gradient_norm(algorithm, now)),
        now.last_norms,
        jnp.maximum(carry.rounding, now.link.rounding),
        jnp.maximum(carry.release_rho, now.link.release_rho),
        jnp.maximum(carry.clipped, now.link.clipped),
        first.astype(jnp.int32),
        carry.traffic.plus(now.link.traffic),
        stream,
        availability,
        now.link.memory,
        {
            name: of(type(algorithm).__name__, now.link).astype(carry.quantities[name].dtype)
            for name, of in _quantities_of_round(simulation).items()
        },
        states_after(now),
        clock,
    )


def _taking_part(simulation: Simulation, now: Round) -> Array:
    """Who works in a round whose participants are not chosen."""
    return now.available if simulation.among_peers else now.link.participants


def evaluate_metrics(
    simulation: Simulation, prepared: Prepared, carry: Carry, round: Array
) -> dict[str, Array]:
    """The metrics after a round, and the largest privacy loss of a client in the ledger."""
    problem = prepared.problem
    if states := carry.networks.personal or carry.networks.common:
        problem = problem.with_state(states)
    model, _ = evaluated_models(simulation, prepared, carry.state)
    shared = model if model.ndim == 1 else None
    if not isinstance(model, ServerRows):
        model = jnp.broadcast_to(model, (problem.clients, model.shape[-1]))
    honest = None if simulation.attack is None else ~jnp.asarray(simulation.attack.byzantine)
    problem = problem.at(round) if problem.online else problem.judged
    now = Snapshot(
        problem,
        simulation.network,
        cast(Array, model),
        prepared.optimum,
        shared,
        carry.state,
        honest,
        carry.quantities,
        simulation.algorithm.predictor(carry.state, problem),
    )
    record = {m.name: _evaluate_metric(m, now) for m in simulation.metrics}
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
        return run_round(simulation, prepared, key, carry, round, rounds)

    def one_record(carry: Carry, first: Array) -> tuple[Carry, tuple[dict[str, Array], Array]]:
        if record_every == 1:  # XLA hoists loop invariants out of one loop, but not of two
            carry = one_round(first, carry)
        else:
            # The number of iterations is known beforehand: on a GPU the host would otherwise wait
            # for the condition of the loop in every round.
            carry = jax.lax.fori_loop(
                0,
                record_every,
                lambda past, carry: one_round(first + past.astype(jnp.int32), carry),
                carry,
            )
        record = evaluate_metrics(simulation, prepared, carry, first + (record_every - 1))
        if simulation.clock is not None:
            record["seconds"] = jnp.sum(carry.clock.seconds)
            record["joules"] = jnp.sum(carry.clock.joules)
        return carry._replace(traffic=Traffic.none()), (record, jnp.stack(carry.traffic, axis=1))

    firsts = jnp.asarray(done, jnp.int32) + jnp.arange(
        1, records * record_every + 1, record_every, dtype=jnp.int32
    )
    carry, (recorded, traffic) = jax.lax.scan(one_record, carry, firsts)
    return carry, recorded | {name: traffic[..., i] for i, name in enumerate(Traffic._fields)}


def _evaluate_metric(metric: Metric, now: Snapshot) -> Array:
    try:
        value = metric.measure(now)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise TypeError(
            f"the metric {metric.name!r} needs the values of arrays while it is compiled: take "
            "jax.numpy instead of numpy and of float(), and jnp.where instead of if "
            f"({str(error).partition(chr(10))[0]})"
        ) from error
    if not checks.is_real(value):
        raise TypeError(
            f"the metric {metric.name!r} must be one number, got {checks.shown(value)}."
        )
    value = jnp.asarray(value)
    if value.dtype.isbuiltin != 2:
        return value
    # JAX's small types (bfloat16, int4, ...) become the smallest type that files can store.
    if jnp.issubdtype(value.dtype, jnp.floating):
        return value.astype(jnp.float32)
    return value.astype(jnp.int8 if jnp.issubdtype(value.dtype, jnp.signedinteger) else jnp.uint8)


def _add_to_ledger(spent: Array, more: Array) -> Array:
    """The ledger with another entry, as a compensated sum in twice the digits."""
    return jnp.stack(accumulated(spent[0], spent[1], more))


def _totals(carry: Carry) -> dict[str, Array]:
    """``[K]`` each: the ledger."""
    return {name: jnp.sum(parts, axis=0) for name, parts in carry.spent.items()}


def evaluated_models(simulation: Simulation, prepared: Prepared, state: PyTree) -> tuple[Any, bool]:
    """The models that metrics evaluate, ``[K, D]`` or one for all, ``[D]``, and whether they are
    the released ones. Over a population they may be :class:`~fljax._core.cohort_rows.Rows`.
    """
    algorithm = simulation.algorithm
    if type(algorithm).released is Algorithm.released:
        return state.model, False
    network = compatibility.network_at_start(prepared.network)
    released = algorithm.released(state, prepared.problem, network)
    if simulation.model == "released":
        return released, True
    return state.model, released is state.model


def _quantities_of_round(simulation: Simulation) -> dict[str, Callable[[str, Link], Array]]:
    """How the quantities of a round that some metric needs are read, by name."""
    return {
        name: quantity.of_round
        for name, quantity in QUANTITIES.items()
        if quantity.of_round is not None
        and any(name in metric.needs for metric in simulation.metrics)
    }


def step_algorithm(simulation: Simulation, state: PyTree, now: Round) -> Any:
    """The algorithm's next state; absent peers keep the old one."""
    new = simulation.algorithm.step(state, now)
    if simulation.among_peers and simulation.may_be_absent:
        rested = _without_absent(now.available, new, state)
        waiting = {name: getattr(new, name) for name in simulation.algorithm.waiting}
        return rested._replace(**waiting) if waiting else rested
    return new


def _without_absent(available: Array, new: object, old: object) -> Any:
    """The state after a round in which absent peers neither computed nor received anything."""
    clients = len(available)

    def keep(new: Array, old: Array) -> Array:
        if new.ndim == 0 or new.shape[0] != clients:
            return new
        return jnp.where(available.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(keep, new, old)


def reported_gradient_norm(algorithm: Algorithm, now: Round) -> Array:
    """The largest per-sample gradient in a step, on which its privacy guarantee is based."""
    if now.witnessed is None:
        raise TypeError(
            f"{type(algorithm).__name__}.step does not report the gradients on which its privacy "
            "rests; call now.witness_at(model)."
        )
    return now.witnessed


def outcome(simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
    """Quantities reported once per run, at its end so far."""
    outcomes = {"diverged": carry.diverged}
    if simulation.masks is not None:
        outcomes["clipped"] = carry.clipped
    if simulation.clock is not None:
        outcomes |= _times_of_clients(carry.clock) | _course_of_clock(prepared, carry)
    privacy = simulation.privacy
    if privacy is not None:
        _, covered = evaluated_models(simulation, prepared, carry.state)
        outcomes["exact_model"] = jnp.asarray(not covered)
        outcomes["gaussian_noise"] = jnp.asarray(is_gaussian(type(privacy)))
        outcomes["rounding"] = carry.rounding
        outcomes["release_rho"] = carry.release_rho
        outcomes["nominal"] = carry.rounding > promises.SWALLOWED
        if prepared.problem.linear and not prepared.problem.online:
            outcomes["unusable_samples"] = simulation.fixed_problem.unusable_samples()
    if prepared.problem.is_pooled:
        outcomes |= _numbers_of_partition(prepared.problem)
        if privacy is not None and privacy.scope != "server":  # a budget of a sample's privacy
            outcomes["holders"] = most_holders(prepared.problem)
    numbers = numbers_of_states(carry.networks, prepared.problem.state_policy)
    if numbers is not None and numbers.size <= MOST_STATES:
        outcomes["network_state" if numbers.ndim == 1 else "client_network_state"] = numbers
    if (scope := scope_of(simulation)) is not None:
        reported = scope.outcome(simulation, prepared, carry)
        outcomes["nominal"] |= reported.pop("nominal", jnp.asarray(False))
        outcomes |= reported
    network = None if isinstance(prepared.network, Varying) else prepared.network
    bound = None
    size = simulation.algorithm.step_size
    if prepared.problem.linear and not prepared.problem.on_disk and size is not None:
        bound = simulation.algorithm.step_bound(prepared.problem, network, prepared.moments)
    if bound is not None:
        first = size(jnp.ones((), jnp.int32)) if callable(size) else size
        outcomes["first_step"] = jnp.max(jnp.asarray(first))
        outcomes["step_bound"] = bound
    weights = simulation.algorithm.weights(prepared.problem)
    if prepared.optimum is not None and weights is not prepared.problem.importance:
        outcomes["same_objective"] = _are_proportional(weights, prepared.problem.importance)
    if simulation.network is not None and not isinstance(simulation.network, Varying):
        outcomes["connected"] = simulation.network.connected()
    return outcomes


def _times_of_clients(clock: ClockState) -> dict[str, Array]:
    """How long each client worked and waited, and its energy."""
    busy = busy_seconds(clock)
    return {
        "client_busy_seconds": busy,
        "client_idle_seconds": jnp.sum(clock.seconds) - busy,
        "client_joules": jnp.sum(clock.joules, axis=0),
    }


def _course_of_clock(prepared: Prepared, carry: Carry) -> dict[str, Array]:
    """What warnings of a clock rest on."""
    rates = carry.clock.rates
    outcomes = {
        "in_time": carry.clock.arrived,
        "stood_still": carry.clock.stood_still,
        "miscounted": carry.clock.miscounted,
    }
    if prepared.work is not None:
        outcomes["fastest_seconds"] = jnp.min(rates.expected(prepared.work))
    return outcomes


def _numbers_of_partition(problem: Any) -> dict[str, Array]:
    """How many samples each client has, and how different the clients are."""
    sizes = problem.sample_counts()
    has_classes = isinstance(problem.loss, Softmax) and problem.targets.ndim == 2
    counts = problem.class_counts() if has_classes else sizes[:, None]
    numbers = heterogeneity(counts)._asdict()
    if not has_classes:
        del numbers["label_distance"], numbers["effective_classes"]
    elif counts.size <= MOST_COUNTS:
        numbers["label_counts"] = counts
    return {"client_samples": sizes, **numbers}


def _are_proportional(weights: Array | None, importance: Array | None) -> Array:
    """Whether clients' weights are equal up to a factor; ``None`` means one each."""
    a, b = (jnp.ones(()) if w is None else w / jnp.mean(w) for w in (weights, importance))
    return jnp.all(jnp.abs(a - b) <= 1e-4)


def final_model(simulation: Simulation, prepared: Prepared, carry: Carry) -> Array:
    """``[K, D]``, whether each client has its own model or all share one; for learners without
    parameters, their predictions.
    """
    model, _ = evaluated_models(simulation, prepared, carry.state)
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
    outcomes = outcome(simulation, prepared, carry) | final_ledger(carry)
    return recorded | outcomes, final_model(simulation, prepared, carry)


def check_metrics(simulation: Simulation, recorded: dict[str, Any], records: int) -> None:
    """Raise ``TypeError`` unless every metric has the axes that it declares, in every record."""
    problem = simulation.problem
    sizes = {"client": problem.clients, "parameter": problem.dim}
    for metric in simulation.metrics:
        shape = np.shape(recorded[metric.name])[1:]
        if len(shape) != len(metric.dims):
            wanted = f"an array over {metric.dims}" if metric.dims else "one number"
            raise TypeError(
                f"the metric {metric.name!r} must be {wanted}, got an array of shape {shape}; "
                "reduce it, for instance over the clients, or name its axes with dims=."
            )
        for dim, size in zip(metric.dims, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise TypeError(
                    f"the metric {metric.name!r} has {size} rows along {dim!r}, of which there "
                    f"are {sizes[dim]}; give the axis a name of its own."
                )


def check_rounds(rounds: int, record_every: int) -> None:
    """Raise unless ``record_every`` divides the number of rounds."""
    checks.count("rounds", rounds, hint="It is the number of iterations of every run.")
    checks.count("record_every", record_every)
    if rounds % record_every:
        raise ValueError(
            f"rounds must be a multiple of record_every, got {rounds} and {record_every}."
        )
