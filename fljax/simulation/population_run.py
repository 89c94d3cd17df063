"""A run over a population on disk, whose samples are read to the device round by round.

A round's participants depend on the run's key alone, not on the models. So a thread reads the next
round's samples while the device computes this round; at most the samples of three rounds are in
memory (in use, ready, and being read). One compiled program computes every round. State that an
algorithm has of each client is read before a round and written after it
(:mod:`fljax.simulation.client_states`); checkpoints are in :mod:`fljax.simulation.checkpoints`.

With ``shard_over="clients"`` the devices share a round's participants, and each process reads the
samples of its own devices only. Models and clients' states are copied to all devices.

In this file ``template`` is the simulation without samples; ``problem.holding(numbers, data)``
inserts the samples of a round. Thus a compiled program contains no data, and one serves all
rounds.
"""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fljax._core.cohort_rows import Rows
from fljax._core.devices import everywhere, gathered, put, sharing, split, without_shardy
from fljax._core.module import replace
from fljax._core.prng import key_of, name_of, round_key
from fljax.link import Traffic
from fljax.participation.selectors import Participants
from fljax.problems.population_problem import OnDisk
from fljax.simulation.checkpoints import (
    RECORDS,
    RunFolder,
    checkpoint_of,
    restore,
    run_identity,
)
from fljax.simulation.client_states import ClientStates, StateLayout
from fljax.simulation.run_state import Carry
from fljax.simulation.scan import (
    begin,
    check_metrics,
    evaluate_metrics,
    final_ledger,
    outcome,
    prepare,
    prepare_without_noise,
    run_round,
)
from fljax.simulation.scenario import Simulation

#: Number of rounds whose participants are drawn in one call. They are small, and drawing them on
#: the device for each round would wait for the round that it computes.
ROUNDS_PER_DRAW = 64


def check_population(simulation: Simulation) -> Participants:
    """Return the shapes of a round's participants; raise ``ValueError`` where a population cannot
    be learned from a cohort at a time.
    """
    problem = simulation.problem_on_disk
    algorithm = simulation.algorithm
    label = type(algorithm).label
    selector = getattr(simulation.algorithm, "selection", None)
    if selector is None or simulation.network is not None:
        raise ValueError(
            f"{label} does not learn with some clients of one server in a round, and a population "
            "on disk is read a cohort at a time; take an algorithm with clients_per_round=, such "
            "as fljax.algorithms.FedAvg, or clients in memory (fljax.problems.Model.from_clients)."
        )
    clients = problem.clients
    try:
        participants = jax.eval_shape(
            lambda key: selector.choose(key, jnp.ones(clients, bool), None, jnp.int32(1)),
            jax.random.key(0),
        )
    except TypeError as error:
        raise ValueError(
            f"{type(selector).__name__} does not choose by the round's key alone, so whose samples "
            f"to read is not known before the round; take clients_per_round=. ({error})"
        ) from error
    if participants.clients is None or len(participants.here) >= clients:
        (x, x_type), size = problem.population.features, problem.clients * problem.samples
        wanted = size * int(np.prod(x)) * x_type.itemsize / 1e9
        raise ValueError(
            f"{type(selector).__name__} may invite all {clients:,} clients of the population at "
            f"once, {wanted:.3g} GB of samples as they are padded to the largest client; give "
            f"{label} clients_per_round=, below {clients:,}, or a selector that names as many "
            "(fljax.participation.Drawn, Cyclic, Unequal)."
        )
    return participants


def _check_divisible(participants: Participants) -> None:
    chosen = len(participants.here)
    devices = jax.device_count()
    if chosen % devices:
        raise ValueError(
            f"{chosen} participants of a round cannot be shared out evenly over {devices} devices; "
            "take a multiple, or leave out shard_over=."
        )


# Compiled functions --------------------------------------------------------------------------


def _replicate(tree: PyTree, shared: bool) -> Any:
    """A copy on every device, where devices share a round."""
    return jax.lax.with_sharding_constraint(tree, everywhere()) if shared else tree


def _with_data(template: Simulation, numbers: Array, data: Mapping[str, Array]) -> Simulation:
    return replace(template, problem=template.problem_on_disk.holding(numbers, data))


def _initial_rows(
    template: Simulation, numbers: Array, data: Mapping[str, Array], layout: StateLayout
) -> list[Array]:
    """The state's rows of clients that have not taken part yet."""
    problem = template.problem_on_disk.holding(numbers, data)
    cohort = replace(problem.take(numbers), initial=problem.initial)
    return layout.rows_of(template.algorithm.init(cohort, None))


def _depends_on_number_of_clients(template: Simulation) -> ValueError:
    return ValueError(
        f"what {type(template.algorithm).label} keeps of a client depends from the start on how "
        "many clients there are, and of a population a round has its participants alone; take "
        "clients in memory (fljax.problems.Model.from_clients)."
    )


@functools.partial(jax.jit, static_argnames="layout")
def _rows_are_independent(
    template: Simulation, numbers: Array, data: Mapping[str, Array], layout: StateLayout
) -> Array:
    """Whether clients' initial rows are the same, up to rounding, with another client added.

    Only then may a cohort's rows be computed without the rest of the population.
    """
    longer = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), (numbers, data))
    rows, rows_of_longer = (
        _initial_rows(template, n, d, layout) for n, d in ((numbers, data), longer)
    )
    close = [jnp.allclose(a, b[:-1], rtol=1e-5) for a, b in zip(rows, rows_of_longer, strict=True)]
    return jnp.all(jnp.array([True, *close]))


def _layout(template: Simulation, participants: Participants) -> StateLayout:
    """The leaves of the state that have a client axis.

    Their first axis changes with the number of clients: the shapes of the state of the whole
    population are compared with a cohort's. No array is computed.
    """
    numbers = participants.clients
    data = template.problem_on_disk.shapes(len(participants.here))
    results: list[Any] = []

    def compare(template: Simulation, numbers: Array, data: Mapping[str, Array]) -> list[Array]:
        population = template.problem_on_disk.holding(numbers, data)
        cohort = replace(population.take(numbers), initial=population.initial)
        states = [template.algorithm.init(problem, None) for problem in (population, cohort)]
        leaves = [jax.tree.leaves(state) for state in states]
        shapes = [[(leaf.shape, str(leaf.dtype)) for leaf in of_state] for of_state in leaves]
        lazy = [isinstance(leaf, Rows) for leaf in leaves[0]]
        results.extend((jax.tree.structure(states[0]), *shapes, lazy))
        return []

    jax.eval_shape(compare, template, numbers, data)
    tree, population, cohort, lazy = results
    per_client = tuple(
        is_lazy or in_population[0] != in_cohort[0]
        for is_lazy, in_population, in_cohort in zip(lazy, population, cohort, strict=True)
    )

    def row_shapes(shapes: list[Any]) -> tuple[Any, ...]:
        leaves = zip(shapes, per_client, strict=True)
        return tuple((shape[1:], dtype) for (shape, dtype), has_rows in leaves if has_rows)

    if row_shapes(cohort) != row_shapes(population):
        raise _depends_on_number_of_clients(template)
    return StateLayout(tree, per_client, row_shapes(cohort))


@functools.partial(jax.jit, static_argnames="count")
def _draw_participants(
    template: Simulation, key: Array, availability: PyTree, first: Array, count: int
) -> Any:
    """The state of availability after ``count`` rounds from the first on, and the participants of
    each of them, ``[count, M]``.
    """
    pattern = template.participation
    clients = template.problem.clients

    def draw_round(availability: PyTree, round: Array) -> tuple[Any, Participants]:
        now = round_key(key, round)
        available = jnp.ones(clients, bool)
        if pattern is not None:
            availability, available = pattern.draw(
                availability, key_of(now, "availability"), round, clients
            )
        selector = template.algorithm.selection  # pyright: ignore[reportAttributeAccessIssue]
        return availability, selector.choose(key_of(now, "participation"), available, None, round)

    rounds = jnp.asarray(first, jnp.int32) + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(draw_round, availability, rounds)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _begin(
    template: Simulation,
    key: Array,
    numbers: Array,
    data: Mapping[str, Array],
    layout: StateLayout,
    rounds: int,
    shared: bool,
) -> Carry:
    """The state before the first round, without clients' rows."""
    simulation = _with_data(template, numbers, data)
    carry = begin(simulation, prepare(simulation, rounds), key)
    return _replicate(carry._replace(state=layout.shared(carry.state)), shared)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"), donate_argnames="carry")
def _run_round(
    template: Simulation,
    key: Array,
    carry: Carry,
    round: Array,
    participants: Participants,
    data: Mapping[str, Array],
    rows: list[Any],
    stored: Bool[Array, " chosen"],
    layout: StateLayout,
    rounds: int,
    shared: bool,
) -> tuple[Carry, list[Array]]:
    """The state after a round, and the participants' rows.

    ``rows`` hold the state of participants where it is ``stored``; the others begin.
    """
    assert participants.clients is not None
    problem = template.problem_on_disk
    simulation = _with_data(template, participants.clients, data)
    if layout.rows:
        initial = _initial_rows(template, participants.clients, data, layout)
        rows = [
            Rows("states", participants.clients, _select(stored, old, new), problem.clients)
            for old, new in zip(rows, initial, strict=True)
        ]
    carry = carry._replace(state=layout.merge(carry.state, rows))
    invited = template.algorithm.selection, participants  # pyright: ignore[reportAttributeAccessIssue]
    with sharing(shared):
        carry = run_round(
            simulation, prepare(simulation, rounds), key, carry, round, rounds, invited
        )
    rows = [leaf.rows for leaf in layout.rows_of(carry.state)]  # pyright: ignore[reportAttributeAccessIssue]
    return _replicate((carry._replace(state=layout.shared(carry.state)), rows), shared)


def _select(stored: Array, old: Array, new: Array) -> Array:
    return jnp.where(stored.reshape((-1,) + (1,) * (new.ndim - 1)), old, new)


@functools.partial(jax.jit, static_argnames=("layout", "shared"))
def _evaluate(
    template: Simulation,
    carry: Carry,
    round: Array,
    rows: list[Any],
    stored: Bool[Array, " evaluated"],
    layout: StateLayout,
    shared: bool,
) -> tuple[dict[str, Array], Array]:
    """The metrics, and the traffic since the last record.

    Metrics are of the problem's evaluated clients, whose samples stay in memory (``problem.view``),
    or of the server's model where there are none.
    """
    problem = template.problem_on_disk
    numbers = jnp.asarray(problem.evaluated, jnp.int32)
    if shared and problem.view is not None and len(numbers) % jax.device_count() == 0:
        problem = replace(problem, view=split(problem.view, len(numbers)))
    simulation = replace(template, problem=problem.view or problem.stored())
    if problem.view is not None and layout.rows:
        evaluated = replace(problem.view, initial=problem.initial)
        initial = layout.rows_of(template.algorithm.init(evaluated, None))
        rows = [_select(stored, old, new) for old, new in zip(rows, initial, strict=True)]
    elif layout.rows:
        rows = [Rows("models", None, row, problem.clients) for row in rows]
    if problem.view is not None and simulation.attack is not None:
        attackers = jnp.asarray(simulation.attack.attackers)[numbers]
        simulation = replace(simulation, attack=replace(simulation.attack, attackers=attackers))
    carry = carry._replace(state=layout.merge(carry.state, rows))
    with sharing(shared):
        record = evaluate_metrics(simulation, prepare_without_noise(simulation), carry, round)
    return _replicate((record, jnp.stack(carry.traffic, axis=1)), shared)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _finish(
    template: Simulation, carry: Carry, layout: StateLayout, rounds: int, shared: bool
) -> dict[str, Array]:
    """The quantities that are reported once a run, and the ledger; they read no client's rows."""
    simulation = replace(template, problem=template.problem_on_disk.stored())
    numbers = jnp.zeros(0, jnp.int32)
    rows = [
        Rows("models", numbers, jnp.zeros((0, *shape), dtype), simulation.problem.clients)
        for shape, dtype in layout.rows
    ]
    carry = carry._replace(state=layout.merge(carry.state, rows))
    return _replicate(
        outcome(simulation, prepare(simulation, rounds), carry) | final_ledger(carry), shared
    )


# A run ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _reader(process: int) -> ThreadPoolExecutor:
    """The thread that reads samples, one for all runs of a process.

    A thread per run would allocate from an arena of its own, and the process would grow by a cohort
    or more with every run. The argument separates a forked process, which has no threads.
    """
    del process
    return ThreadPoolExecutor(1, "fljax-cohorts")


def _cohorts(
    template: Simulation, key: Array, availability: PyTree, first: int, rounds: int, shared: bool
) -> Iterator[tuple[Participants, Any]]:
    """The participants of each round from ``first`` on and their samples, on the device.

    The next round's samples are read in a thread while the caller computes with these.
    """
    problem = template.problem_on_disk

    def read(participants: Participants) -> tuple[Participants, Any]:
        def arrays(rows: slice) -> dict[str, np.ndarray]:
            return problem.arrays(problem.population.read(np.asarray(participants.clients)[rows]))

        if shared:
            return participants, gathered(len(participants.here), arrays)
        return participants, jax.device_put(arrays(slice(None)))

    def drawn() -> Iterator[Participants]:
        state = availability
        for start in range(first, rounds + 1, ROUNDS_PER_DRAW):
            state, drawn = _draw_participants(
                template, key, state, np.int32(start), ROUNDS_PER_DRAW
            )
            host = jax.tree.map(np.asarray, drawn)
            for row in range(min(ROUNDS_PER_DRAW, rounds + 1 - start)):
                yield jax.tree.map(lambda a: a[row], host)  # noqa: B023 (called before it changes)

    reader = _reader(os.getpid())
    upcoming = drawn()
    reading = reader.submit(read, next(upcoming))
    for participants in upcoming:
        ready = reading.result()
        reading = reader.submit(read, participants)
        yield ready
    yield reading.result()


def run_cohorts(
    simulation: Simulation,
    key: Array,
    rounds: int,
    record_every: int,
    folder: str | PathLike | None = None,
    shared: bool = False,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The records and outcome by name, and the server's model if all clients share it.

    Args:
      simulation: of a :class:`~fljax.problems.population_problem.OnDisk`.
      key: of the run.
      rounds: number of rounds.
      record_every: number of rounds between records.
      folder: where the run is stored, and continues if it was interrupted; ``None``: nowhere.
      shared: whether all devices share a round's participants.
    """
    participants = check_population(simulation)
    if shared:
        _check_divisible(participants)
    problem = simulation.problem_on_disk
    assert isinstance(problem, OnDisk)
    template = replace(simulation, problem=problem.bare())
    identity = {}
    if folder is not None:
        identity = run_identity(template, key, rounds, record_every, shared)
    # This generator multiplies wide integers, which the newer partitioner cannot compile.
    old_partitioner = shared and name_of(key) == "philox4x32"
    together = shared and jax.process_count() > 1
    with closing(RunFolder(folder, identity, together)) as store:
        try:
            with without_shardy() if old_partitioner else contextlib.nullcontext():
                return _run(template, key, rounds, record_every, store, participants, shared)
        except TypeError as error:
            # `Rows` refuses to become an array of all clients; JAX raises before it can explain.
            if Rows.__name__ not in str(error):
                raise
            raise TypeError(
                f"all clients' data or states are asked for by {type(template.algorithm).label}, "
                "and of a population a round has its participants' rows alone; take an algorithm "
                "that reads and writes no others, or clients in memory "
                "(fljax.problems.Model.from_clients)."
            ) from error


def _run(
    template: Simulation,
    key: Array,
    rounds: int,
    record_every: int,
    store: RunFolder,
    shapes: Participants,
    shared: bool,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Begin the run or continue it from its checkpoint; compute its remaining rounds.

    ``template`` and ``key`` are passed to the compiled functions as arguments on the device,
    ``shapes`` a round's participants by shape.
    """
    problem = template.problem_on_disk
    checkpoint = store.last()

    def on_device(tree: PyTree) -> Any:
        return put(tree, everywhere()) if shared else tree

    device_template, device_key = on_device((template, key))
    layout = _layout(template, shapes)
    static = {"layout": layout, "rounds": rounds, "shared": shared}
    finished = checkpoint is not None and int(checkpoint["number"]) == rounds
    path = None if store.path is None or finished or not layout.rows else store.path / RECORDS
    states = ClientStates(problem.clients, layout.rows, path if store.is_writer else None)
    records: list[dict[str, np.ndarray]] = []
    done = 0
    cohorts = iter(())
    evaluated = np.asarray(problem.evaluated, np.int32)
    with closing(states):
        if checkpoint is None:
            cohorts = _cohorts(
                template, key, _initial_availability(template, key), 1, rounds, shared
            )
            carry, cohorts = _begin_with_first(cohorts, device_template, device_key, static)
        else:
            data = problem.shapes(len(shapes.here))
            begin_run = functools.partial(_begin, **static)
            structure = jax.eval_shape(begin_run, template, key, shapes.clients, data)
            carry, records, done = restore(checkpoint, structure, states)
            if path is not None and not store.is_writer:
                states.copy(path)
            if done < rounds:
                cohorts = _cohorts(template, key, carry.availability, done + 1, rounds, shared)
            carry = on_device(carry)
        for number, (participants, data) in enumerate(cohorts, done + 1):
            rows, stored = states.read(participants.clients)
            rows = _split_rows(rows) if shared else rows
            arguments = (
                *(device_key, carry, np.int32(number), on_device(participants)),
                *(data, rows, on_device(stored)),
            )
            carry, rows = _run_round(device_template, *arguments, **static)
            del data, arguments  # frees the samples while the next ones are read
            states.write(participants.clients, participants.here, [np.asarray(row) for row in rows])
            if number % record_every:
                jax.block_until_ready(carry.diverged)  # limits the cohorts in memory
            else:
                rows, stored = on_device(states.read(evaluated))
                evaluation = _evaluate(
                    device_template, carry, np.int32(number), rows, stored, layout, shared
                )
                record, traffic = jax.tree.map(np.asarray, evaluation)
                records.append(record | {n: traffic[..., i] for i, n in enumerate(Traffic._fields)})
                carry = carry._replace(traffic=on_device(Traffic.none()))
            if store.due(len(states.pending) * states.record_size, last=number == rounds):
                store.save(checkpoint_of(carry, records, number, states))
                states.settle()
    recorded = {name: np.stack([record[name] for record in records]) for name in records[0]}
    check_metrics(
        replace(template, problem=problem.view or problem.stored()), recorded, len(records)
    )
    outcomes = jax.tree.map(np.asarray, _finish(device_template, carry, **static))
    return recorded | outcomes, _shared_model(carry, layout)


def _initial_availability(template: Simulation, key: Array) -> Any:
    """The state of the participation pattern before the first round."""
    if template.participation is None:
        return ()
    zeroth = key_of(round_key(key, 0), "availability")
    return template.participation.begin(zeroth, template.problem.clients)


def _begin_with_first(
    cohorts: Iterator[tuple[Participants, Any]],
    template: Simulation,
    key: Array,
    static: dict[str, Any],
) -> tuple[Carry, Iterator[tuple[Participants, Any]]]:
    """The state before the first round, and the cohorts with the first one put back.

    The state is computed from the first cohort, since an algorithm's ``init`` needs some clients'
    samples. The function returns before the first round, so no variable keeps these in memory.
    """
    participants, data = first = next(cohorts)
    layout = static["layout"]
    numbers = put(participants.clients, everywhere()) if static["shared"] else participants.clients
    carry = _begin(template, key, numbers, data, **static)
    if layout.rows and not _rows_are_independent(template, numbers, data, layout):
        raise _depends_on_number_of_clients(template)
    return carry, itertools.chain([first], cohorts)


def _split_rows(rows: list[np.ndarray]) -> list[Array]:
    """Clients' rows, split over the devices."""
    if not rows:
        return []
    arrays = gathered(len(rows[0]), lambda part: {str(i): row[part] for i, row in enumerate(rows)})
    return list(arrays.values())


def _shared_model(carry: Carry, layout: StateLayout) -> np.ndarray | None:
    state = layout.merge(carry.state, [None] * len(layout.rows))
    return None if state.model is None else np.asarray(state.model)
