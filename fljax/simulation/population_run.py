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
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from fljax._core import checks
from fljax._core.cohort_rows import Rows, ServerRows
from fljax._core.devices import everywhere, gathered, put, sharing, split, without_shardy
from fljax._core.module import replace
from fljax._core.prng import key_of, name_of, rate_drawn, round_key
from fljax.algorithms import Algorithm
from fljax.graphs.federation import CohortFederation, Federation
from fljax.link import Traffic
from fljax.participation.patterns import Pattern
from fljax.participation.selectors import Fraction, Participants, Selector
from fljax.simulation.checkpoints import (
    RECORDS,
    RunFolder,
    checkpoint_of,
    restore,
    run_identity,
)
from fljax.simulation.client_states import ClientStates, Kind, StateLayout
from fljax.simulation.run_state import Carry
from fljax.simulation.sampling_checks import network_of_selector
from fljax.simulation.scan import (
    begin,
    check_metrics,
    evaluate_metrics,
    final_ledger,
    make_round,
    outcome,
    prepare,
    prepare_without_noise,
    run_round,
)
from fljax.simulation.scenario import Simulation

#: Probability with which a round of independently drawn clients has more of them than its arrays
#: have rows, which stops the run.
RARE = 1e-12

#: Number of rounds whose participants are drawn in one call. They are small, and drawing them on
#: the device for each round would wait for the round that it computes.
ROUNDS_PER_DRAW = 64


def check_population(
    simulation: Simulation, shared: bool = False
) -> tuple[Participants, int | None]:
    """Return the shapes of a round's participants, and the number of rows for a selector that marks
    them among all clients instead of listing them.

    Args:
      simulation: of a population.
      shared: whether all devices share a round's participants.

    Raises:
      ValueError: a population cannot be learned from a cohort at a time.
    """
    problem = simulation.problem_on_disk
    algorithm = simulation.algorithm
    label = type(algorithm).label
    selector = getattr(simulation.algorithm, "selection", None)
    if selector is None or type(algorithm).needs.network not in (None, Federation):
        raise ValueError(
            f"{label} does not learn with some of a server's clients in a round, and a population "
            "on disk is read a cohort at a time; take an algorithm with clients_per_round= or "
            "clients_per_server=, such as fljax.algorithms.FedAvg and GraphFedAvg, or clients in "
            "memory (fljax.problems.Model.from_clients)."
        )
    clients = problem.clients
    network = network_of_selector(simulation)
    selector.check(clients, network)
    rows = _rows_of_fraction(selector, clients, jax.device_count() if shared else 1)
    try:
        participants, _ = jax.eval_shape(
            lambda key: _listed(
                selector.choose(key, jnp.ones(clients, bool), network, jnp.int32(1)), rows
            ),
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
            f"{label} {_few(simulation)}."
        )
    return participants, rows


def _few(simulation: Simulation) -> str:
    """How to choose fewer participants."""
    clients = simulation.problem.clients
    if (network := network_of_selector(simulation)) is None:
        return (
            f"clients_per_round=, below {clients:,}, or a selector that names as many "
            "(fljax.participation.Drawn, Cyclic, Unequal) or takes a small Fraction"
        )
    sizes = network.sizes
    below = f"fewer than the {sizes.max():,} clients of server {sizes.argmax()}"
    if hasattr(simulation.algorithm, "clients_per_server"):
        return f"clients_per_server=, {below}"
    return f"a selector of {below}, such as fljax.participation.PerServer(count)"


def template_of(simulation: Simulation) -> Simulation:
    """The simulation without samples, whose clients' servers are an argument of its programs."""
    network = network_of_selector(simulation)
    return replace(
        simulation,
        problem=simulation.problem_on_disk.bare(),
        network=None if network is None else CohortFederation.of(network),
    )


def _network_of(template: Simulation, numbers: Array) -> CohortFederation | None:
    """The servers of some clients."""
    network = template.network
    return network.take(numbers) if isinstance(network, CohortFederation) else None


def _model_of_clients(template: Simulation) -> Callable[[Array], Any] | None:
    """The function from servers' models to their clients'; ``None`` with one server."""
    network = template.network
    return network.of_clients if isinstance(network, CohortFederation) else None


def _rows_of_fraction(selector: Selector, clients: int, devices: int) -> int | None:
    """The number of rows of a round whose participants are drawn independently of each other, which
    are more with a probability of 1e-12, as many for each device; ``None`` for other selectors.
    """
    if not isinstance(selector, Fraction):
        return None
    if not checks.is_concrete(selector.fraction):  # where a scenario is only traced
        return 1
    from scipy.stats import binom

    rate = float(rate_drawn(selector.fraction))
    most = 1 + int(binom.isf(RARE, clients, rate)) if rate else 1
    return -(-most // devices) * devices


def _listed(participants: Participants, rows: int | None) -> tuple[Participants, Array]:
    """The participants as a list of clients if they are marked among all, and their number.

    The list has ``rows`` rows, and those beyond the participants' number are not here.
    """
    count = jnp.sum(participants.here, dtype=jnp.int32)
    if rows is None or participants.clients is not None:
        return participants, jnp.zeros((), jnp.int32)
    positions = jnp.cumsum(participants.here, dtype=jnp.int32) - 1
    positions = jnp.where(participants.here, positions, rows)
    clients = jnp.zeros(rows, jnp.int32).at[positions].set(participants.numbers, mode="drop")
    return Participants(clients, jnp.arange(rows, dtype=jnp.int32) < count), count


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


def _with_data(template: Simulation, numbers: Array, data: Mapping[str, Any]) -> Simulation:
    return replace(template, problem=template.problem_on_disk.holding(numbers, data))


def _initial_rows(
    template: Simulation, numbers: Array, data: Mapping[str, Any], layout: StateLayout
) -> tuple[list[Array], list[Array]]:
    """The state's rows of clients that have not taken part yet, and the rows that stay constant."""
    problem = template.problem_on_disk.holding(numbers, data)
    cohort = replace(problem.take(numbers), initial=problem.initial)
    state = template.algorithm.init(cohort, _network_of(template, numbers))
    return layout.rows_of(state), layout.constants_of(state)


def _depends_on_number_of_clients(template: Simulation) -> ValueError:
    return ValueError(
        f"what {type(template.algorithm).label} keeps of a client depends from the start on how "
        "many clients there are, and of a population a round has its participants alone; take "
        "clients in memory (fljax.problems.Model.from_clients)."
    )


@functools.partial(jax.jit, static_argnames="layout")
def _rows_are_independent(
    template: Simulation, numbers: Array, data: Mapping[str, Any], layout: StateLayout
) -> Array:
    """Whether clients' initial rows are the same, up to rounding, with another client added.

    Only then may a cohort's rows be computed without the rest of the population.
    """
    longer = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), (numbers, data))
    rows, rows_of_longer = (
        list(itertools.chain(*_initial_rows(template, n, d, layout)))
        for n, d in ((numbers, data), longer)
    )
    close = [jnp.allclose(a, b[:-1], rtol=1e-5) for a, b in zip(rows, rows_of_longer, strict=True)]
    return jnp.all(jnp.array([True, *close]))


def _layout(
    template: Simulation, participants: Participants, data: Mapping[str, Any]
) -> StateLayout:
    """The leaves of the state that have a client axis.

    Their first axis changes with the number of clients: the shapes of the state of the whole
    population are compared with a cohort's. No array is computed.
    """
    numbers = participants.clients
    results: list[Any] = []

    def compare(template: Simulation, numbers: Array, data: Mapping[str, Any]) -> list[Array]:
        population = template.problem_on_disk.holding(numbers, data)
        cohort = replace(population.take(numbers), initial=population.initial)
        states = [
            template.algorithm.init(problem, network)
            for problem, network in (
                (population, template.network),
                (cohort, _network_of(template, numbers)),
            )
        ]
        leaves = [jax.tree.leaves(state) for state in states]
        shapes = [[(leaf.shape, str(leaf.dtype)) for leaf in of_state] for of_state in leaves]
        declared = [_kind_of_rows(leaf) for leaf in leaves[0]]
        results.extend((jax.tree.structure(states[0]), *shapes, declared))
        return []

    jax.eval_shape(compare, template, numbers, data)
    tree, population, cohort, declared = results
    kinds: tuple[Kind, ...] = tuple(
        kind or ("client" if shape_of_population[0] != shape_of_cohort[0] else "shared")
        for kind, shape_of_population, shape_of_cohort in zip(
            declared, population, cohort, strict=True
        )
    )

    def row_shapes(shapes: list[Any]) -> tuple[Any, ...]:
        leaves = zip(shapes, kinds, strict=True)
        return tuple((shape[1:], dtype) for (shape, dtype), kind in leaves if kind == "client")

    if row_shapes(cohort) != row_shapes(population):
        raise _depends_on_number_of_clients(template)
    return StateLayout(tree, kinds, row_shapes(cohort))


def _kind_of_rows(leaf: Any) -> Kind | None:
    """The kind of a leaf that says itself whose rows it has; ``None`` for an array."""
    if isinstance(leaf, ServerRows):
        return "server"
    if not isinstance(leaf, Rows):
        return None
    return "constant" if leaf.constant else "client"


@functools.partial(jax.jit, static_argnames=("count", "clients", "rows_of_mask"))
def _draw_participants(
    selector: Selector,
    pattern: Pattern | None,
    network: Federation | None,
    key: Array,
    availability: PyTree,
    first: Array,
    *,
    count: int,
    clients: int,
    rows_of_mask: int | None,
) -> Any:
    """The state of availability after ``count`` rounds from the first on; and the participants of
    each of them, ``[count, M]``, and how many they are if the selector marks them among all.
    """

    def draw_round(availability: PyTree, round: Array) -> tuple[Any, tuple[Participants, Array]]:
        now = round_key(key, round)
        available = jnp.ones(clients, bool)
        if pattern is not None:
            availability, available = pattern.draw(
                availability, key_of(now, "availability"), round, clients
            )
        chosen = selector.choose(key_of(now, "participation"), available, network, round)
        return availability, _listed(chosen, rows_of_mask)

    rounds = jnp.asarray(first, jnp.int32) + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(draw_round, availability, rounds)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _begin(
    template: Simulation,
    key: Array,
    numbers: Array,
    data: Mapping[str, Any],
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
    data: Mapping[str, Any],
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
    constants = []
    if layout.rows or layout.has_constants:
        initial, constants = _initial_rows(template, participants.clients, data, layout)
        rows = [
            Rows("states", participants.clients, _select(stored, old, new), problem.clients)
            for old, new in zip(rows, initial, strict=True)
        ]
        constants = [
            Rows("factors", participants.clients, row, problem.clients, constant=True)
            for row in constants
        ]
    of_clients = _model_of_clients(template)
    carry = carry._replace(state=layout.merge(carry.state, rows, of_clients, constants))
    invited = template.algorithm.selection, participants  # pyright: ignore[reportAttributeAccessIssue]
    with sharing(shared):
        carry = run_round(
            simulation, prepare(simulation, rounds), key, carry, round, rounds, invited
        )
    rows = layout.written(carry.state)
    for before, after in zip(constants, layout.constants_of(carry.state), strict=True):
        if before is not after:
            raise TypeError(
                f"{type(template.algorithm).__name__}.step changes what follows from clients' "
                "samples alone and is not kept between rounds."
            )
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
    network = template.network
    if problem.view is not None:
        network = _network_of(template, numbers)
        simulation = replace(simulation, network=network)
    constants = None
    if problem.view is not None and (layout.rows or layout.has_constants):
        evaluated = replace(problem.view, initial=problem.initial)
        state = template.algorithm.init(evaluated, network)
        initial, constants = layout.rows_of(state), layout.constants_of(state)
        rows = [_select(stored, old, new) for old, new in zip(rows, initial, strict=True)]
    elif layout.rows:
        rows = [Rows("models", None, row, problem.clients) for row in rows]
    if problem.view is not None and simulation.attack is not None:
        attackers = jnp.asarray(simulation.attack.attackers)[numbers]
        simulation = replace(simulation, attack=replace(simulation.attack, attackers=attackers))
    of_clients = _model_of_clients(simulation)
    carry = carry._replace(state=layout.merge(carry.state, rows, of_clients, constants))
    with sharing(shared):
        record = evaluate_metrics(simulation, prepare_without_noise(simulation), carry, round)
    return _replicate((record, jnp.stack(carry.traffic, axis=1)), shared)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _finish(
    template: Simulation, carry: Carry, layout: StateLayout, rounds: int, shared: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The quantities that are reported once a run, and the ledger; they read no client's rows."""
    simulation = replace(template, problem=template.problem_on_disk.stored())
    numbers = jnp.zeros(0, jnp.int32)
    rows = [
        Rows("models", numbers, jnp.zeros((0, *shape), dtype), simulation.problem.clients)
        for shape, dtype in layout.rows
    ]
    of_clients = _model_of_clients(template)
    carry = carry._replace(state=layout.merge(carry.state, rows, of_clients))
    results = outcome(simulation, prepare(simulation, rounds), carry), final_ledger(carry)
    return _replicate(results, shared)


class _OnZeros(NamedTuple):
    """The first round of a run on samples of zeros, to be traced."""

    template: Simulation
    layout: StateLayout
    participants: Participants
    data: dict[str, Any]

    @classmethod
    def of(cls, simulation: Simulation, key: Array) -> "_OnZeros":
        shapes, rows_of_mask = check_population(simulation)
        problem = simulation.problem_on_disk
        template = template_of(simulation)
        selector, pattern = template.algorithm.selection, template.participation
        _, (drawn, _) = _draw_participants(
            *(selector, pattern, network_of_selector(simulation)),
            *(key, _first_availability(template, key), np.int32(1)),
            count=1,
            clients=problem.clients,
            rows_of_mask=rows_of_mask,
        )
        participants = jax.tree.map(lambda a: a[0], drawn)
        kinds = problem.shapes(len(shapes.here))
        data = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
        return cls(template, _layout(template, shapes, kinds), participants, data)

    def rows(self, clients: int) -> list[Array]:
        """Rows of the state of this number of clients."""
        return [jnp.zeros((clients, *shape), dtype) for shape, dtype in self.layout.rows]


def first_round(simulation: Simulation, key: Array, rounds: int) -> tuple[Any, ...]:
    """The first round of a run on samples of zeros, to be traced: all that a run's numbers depend
    on, but its samples.

    Returns:
      The record after it, the outcome, the ledger, the server's model or ``None``, and the state.
    """
    zeros = _OnZeros.of(simulation, key)
    template, layout, participants, data = zeros
    static = {"layout": layout, "rounds": rounds, "shared": False}
    carry = _begin(template, key, participants.clients, data, **static)
    count = len(participants.here)
    padded_data = data, zeros.rows(count), jnp.zeros(count, bool)
    carry, _ = _run_round(template, key, carry, np.int32(1), participants, *padded_data, **static)
    judged = len(simulation.problem_on_disk.evaluated)
    padded_data = zeros.rows(judged), jnp.zeros(judged, bool)
    record, traffic = _evaluate(template, carry, np.int32(1), *padded_data, layout, shared=False)
    record |= {n: traffic[..., i] for i, n in enumerate(Traffic._fields)}
    outcomes, ledger = _finish(template, carry, **static)
    model = layout.merge(carry.state, [None] * len(layout.rows)).model
    return record, outcomes, ledger, model, carry


def first_step(simulation: Simulation, key: Array, rounds: int, is_begun: bool) -> list[Array]:
    """The algorithm's state before the first round, or after its first step on samples of zeros, to
    be traced: the leaves that all clients share.
    """
    zeros = _OnZeros.of(simulation, key)
    template, layout, participants, data = zeros
    clients = simulation.problem.clients
    simulation = _with_data(template, participants.numbers, data)
    prepared = prepare(simulation, rounds)
    carry = begin(simulation, prepared, key)
    if not is_begun:
        return layout.shared(carry.state)
    numbers = participants.numbers
    rows = [Rows("states", numbers, row, clients) for row in zeros.rows(len(numbers))]
    of_clients = _model_of_clients(template)
    parts = layout.shared(carry.state), rows, of_clients, layout.constants_of(carry.state)
    carry = carry._replace(state=layout.merge(*parts))
    now = make_round(simulation, prepared, key, carry, jnp.ones((), jnp.int32), rounds)[0]
    now.invited = simulation.algorithm.selection, participants  # pyright: ignore[reportAttributeAccessIssue]
    return layout.shared(simulation.algorithm.step(carry.state, now))


def _first_availability(template: Simulation, key: Array) -> Any:
    """The state of the participation pattern before the first round."""
    if template.participation is None:
        return ()
    zeroth = key_of(round_key(key, 0), "availability")
    return template.participation.begin(zeroth, template.problem.clients)


# A run ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _reader(process: int) -> ThreadPoolExecutor:
    """The thread that reads samples, one for all runs of a process.

    A thread per run would allocate from an arena of its own, and the process would grow by a cohort
    or more with every run. The argument separates a forked process, which has no threads.
    """
    del process
    return ThreadPoolExecutor(1, "fljax-cohorts")


class CohortRun:
    """One run over a population, advanced by a caller who passes the samples of each round.

    Args:
      simulation: of a :class:`~fljax.problems.population_problem.OnDisk`.
      key: of the run.
      rounds: number of rounds.
      record_every: number of rounds between records.
      shared: whether all devices share a round's participants.
      records_path: the file of clients' rows of the algorithm's state; ``None``: in memory.

    Attributes:
      template: the simulation without samples.
      number: how many rounds are done.
      records: one record after the other.
      ended: whether it takes part in no further round, though some are left.
    """

    def __init__(
        self,
        simulation: Simulation,
        key: Array,
        rounds: int,
        record_every: int,
        shared: bool = False,
        records_path: Path | None = None,
    ) -> None:
        self.shapes, self.rows_of_mask = check_population(simulation, shared)
        self.problem = simulation.problem_on_disk
        if shared:
            _check_divisible(self.shapes)
            self.problem = replace(self.problem, padded=True)  # each device has its own rows
        self.network = network_of_selector(simulation)
        self.template = template_of(replace(simulation, problem=self.problem))
        # Runs with the same kind may share the samples of a cohort.
        self.data = self.problem.shapes(len(self.shapes.here))
        self.kind_of_samples = self.problem.population, type(self.problem.loss), str(self.data)
        self.key = key
        self.rounds = rounds
        self.record_every = record_every
        self.shared = shared
        self.layout = _layout(self.template, self.shapes, self.data)
        self.static = {"layout": self.layout, "rounds": rounds, "shared": shared}
        # Arguments of the compiled functions.
        self._device_template, self._device_key = self._on_device((self.template, key))
        path = records_path if self.layout.rows else None
        self.states = ClientStates(self.problem.clients, self.layout.rows, path)
        self.carry: Any = None
        self._rows: list[Array] = []
        self.records: list[dict[str, np.ndarray]] = []
        self.number = 0
        self.ended = False

    def _on_device(self, tree: PyTree) -> Any:
        return put(tree, everywhere()) if self.shared else tree

    @property
    def structure(self) -> Any:
        """The state between rounds, as shapes."""
        begin_run = functools.partial(_begin, **self.static)
        return jax.eval_shape(begin_run, self.template, self.key, self.shapes.clients, self.data)

    def restore(self, checkpoint: dict[str, np.ndarray]) -> None:
        """Continue from a checkpoint."""
        carry, self.records, self.number = restore(checkpoint, self.structure, self.states)
        self.carry = self._on_device(carry)

    def checkpoint(self) -> dict[str, np.ndarray]:
        """The arrays from which the run continues."""
        return checkpoint_of(self.carry, self.records, self.number, self.states)

    @property
    def availability(self) -> Any:
        """The state of the participation pattern."""
        if self.carry is not None:
            return self.carry.availability
        return _first_availability(self.template, self.key)

    def start_round(self, participants: Participants, data: Any) -> None:
        """Let the device compute the next round on the samples of its participants."""
        if self.carry is None:
            self._begin(participants, data)
        self.number += 1
        rows, stored = self.states.read(participants.clients)
        rows = _split_rows(rows) if self.shared else rows
        self.carry, self._rows = _run_round(
            *(self._device_template, self._device_key, self.carry, np.int32(self.number)),
            *(self._on_device(participants), data, rows, self._on_device(stored)),
            **self.static,
        )

    def _begin(self, participants: Participants, data: Any) -> None:
        """Compute the state before the first round.

        It is computed from the first cohort, since an algorithm's ``init`` needs some clients'
        samples.
        """
        numbers = self._on_device(participants.clients)
        arguments = self._device_template, self._device_key, numbers, data
        self.carry = _begin(*arguments, **self.static)
        if self.layout.rows and not _rows_are_independent(
            self._device_template, numbers, data, self.layout
        ):
            raise _depends_on_number_of_clients(self.template)

    def end_round(self, participants: Participants) -> None:
        """Wait for the round; store its participants' rows, and record the metrics if it is time
        to.
        """
        self.states.write(
            participants.clients, participants.here, [np.asarray(row) for row in self._rows]
        )
        self._rows = []
        if self.number % self.record_every:
            jax.block_until_ready(self.carry.diverged)  # limits the cohorts in memory
            return
        rows, stored = self._on_device(
            self.states.read(np.asarray(self.problem.evaluated, np.int32))
        )
        evaluation = _evaluate(
            self._device_template,
            *(self.carry, np.int32(self.number), rows, stored, self.layout, self.shared),
        )
        record, traffic = jax.tree.map(np.asarray, evaluation)
        self.records.append(record | {n: traffic[..., i] for i, n in enumerate(Traffic._fields)})
        self.carry = self.carry._replace(traffic=self._on_device(Traffic.none()))

    def recorded(self) -> dict[str, np.ndarray]:
        """The records, ``[R, ...]`` each."""
        names = self.records[0]
        recorded = {name: np.stack([record[name] for record in self.records]) for name in names}
        problem = self.problem.view or self.problem.stored()
        check_metrics(replace(self.template, problem=problem), recorded, len(self.records))
        return recorded

    def outcome(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What is reported once a run, and the privacy loss of every client."""
        return jax.tree.map(np.asarray, _finish(self._device_template, self.carry, **self.static))

    def model(self) -> np.ndarray | None:
        """The server's model if all clients share it."""
        state = self.layout.merge(self.carry.state, [None] * len(self.layout.rows))
        return None if state.model is None else np.asarray(state.model)


@contextlib.contextmanager
def named_demand(algorithm: Algorithm) -> Iterator[None]:
    """Within, explain JAX's error for an algorithm that reads the rows of all clients."""
    try:
        yield
    except TypeError as error:
        # `Rows` refuses to become an array of all clients; JAX raises before it can explain.
        if not re.search(rf"\b({Rows.__name__}|{ServerRows.__name__})\b", str(error)):
            raise
        raise TypeError(
            f"all clients' data or states are asked for by {type(algorithm).label}, "
            "and of a population a round has its participants' rows alone; take an algorithm "
            "that reads and writes no others, or clients in memory "
            "(fljax.problems.Model.from_clients)."
        ) from error


def count_programs() -> int:
    """Number of compiled programs of rounds so far."""
    return _run_round._cache_size()  # pyright: ignore[reportAttributeAccessIssue]


#: Participants of each of some runs in a round, whose samples are the same.
Users = list[tuple[CohortRun, Participants]]


def cohorts(runs: Sequence[CohortRun]) -> Iterator[tuple[Users, Any]]:
    """The rounds of runs of the same length: who uses which samples, which are on the device.

    Runs whose participants are the same have their samples together, which are read once. The next
    samples are read in a thread while the caller computes with these.
    """

    def read(users: Users) -> tuple[Users, Any]:
        run, participants = users[0]
        numbers = np.asarray(participants.clients)

        def arrays(rows: slice) -> dict[str, Any]:
            return run.problem.read(numbers[rows])

        if run.shared:
            return users, gathered(len(numbers), arrays)
        return users, jax.device_put(arrays(slice(None)))

    reader = _reader(os.getpid())
    upcoming = _users(runs)
    first = next(upcoming, None)
    if first is None:
        return
    reading = reader.submit(read, first)
    for users in upcoming:
        ready = reading.result()
        reading = reader.submit(read, users)
        yield ready
    yield reading.result()


def _users(runs: Sequence[CohortRun]) -> Iterator[Users]:
    """The rounds of :func:`cohorts`, one list for all runs with the same participants."""
    draws: dict[Any, Iterator[Participants]] = {}
    draw_of = {}
    for run in runs:
        draw = _digest_of_draw(run)
        if draw not in draws:
            draws[draw] = _drawn(run)
        draw_of[id(run)] = draw
    started = {draw: run.number for run in runs for draw in [draw_of[id(run)]]}
    last = max(run.rounds for run in runs)
    begun = {id(run): run.number for run in runs}
    for number in range(min(begun.values()) + 1, last + 1):
        drawn = {draw: next(draws[draw]) for draw, done in started.items() if done < number}
        together: dict[Any, Users] = {}
        for run in runs:
            if run.ended or begun[id(run)] >= number:
                continue
            participants = drawn[draw_of[id(run)]]
            samples = run.kind_of_samples, participants.numbers.tobytes()
            together.setdefault(samples, []).append((run, participants))
        yield from together.values()


def _digest_of_draw(run: CohortRun) -> Any:
    """What the participants of a run's next rounds depend on, to be compared."""
    parts = run.template.algorithm.selection, run.template.participation, run.network
    leaves, tree = jax.tree.flatten((parts, jax.random.key_data(run.key)))
    arrays = [np.asarray(leaf) for leaf in leaves]
    values = tuple((a.dtype.str, a.shape, a.tobytes()) for a in arrays)
    return tree, values, name_of(run.key), run.problem.clients, run.number


def _drawn(run: CohortRun) -> Iterator[Participants]:
    """The participants of each of a run's next rounds, on the host."""
    selector = run.template.algorithm.selection
    availability = run.availability
    for start in range(run.number + 1, run.rounds + 1, ROUNDS_PER_DRAW):
        availability, (drawn, counts) = _draw_participants(
            *(selector, run.template.participation, run.network),
            *(run.key, availability, np.int32(start)),
            count=ROUNDS_PER_DRAW,
            clients=run.problem.clients,
            rows_of_mask=run.rows_of_mask,
        )
        host, counts = jax.tree.map(np.asarray, (drawn, counts))
        for row in range(min(ROUNDS_PER_DRAW, run.rounds + 1 - start)):
            if counts[row] > len(host.here[row]):
                raise ValueError(
                    f"{selector!r} invited {counts[row]:,} clients to round {start + row}, and "
                    f"the arrays of a round have {len(host.here[row]):,} rows, more than any "
                    "round needs but with a probability below 1e-12; take another key."
                )
            yield jax.tree.map(lambda a: a[row], host)  # noqa: B023 (called before it changes)


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
    shapes, _ = check_population(simulation, shared)
    if shared:
        _check_divisible(shapes)
    template = template_of(simulation)
    identity = {}
    if folder is not None:
        identity = run_identity(template, key, rounds, record_every, shared)
    together = shared and jax.process_count() > 1
    with (
        closing(RunFolder(folder, identity, together)) as store,
        with_partitioner(key, shared),
        named_demand(template.algorithm),
    ):
        checkpoint = store.last()
        finished = checkpoint is not None and int(checkpoint["number"]) == rounds
        path = None if store.path is None or finished else store.path / RECORDS
        writers_path = path if store.is_writer else None
        run = CohortRun(simulation, key, rounds, record_every, shared, writers_path)
        with closing(run.states):
            return _run(run, checkpoint, store, path if run.layout.rows else None)


def with_partitioner(key: Array, shared: bool) -> contextlib.AbstractContextManager:
    """A context with the older partitioner where a run needs it: the newer one cannot compile the
    wide integers that this generator multiplies.
    """
    is_wide = shared and name_of(key) == "philox4x32"
    return without_shardy() if is_wide else contextlib.nullcontext()


def _run(
    run: CohortRun,
    checkpoint: dict[str, np.ndarray] | None,
    store: RunFolder,
    path: Path | None,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Begin the run or continue it from its checkpoint; compute its remaining rounds.

    ``path`` is the file of clients' rows, which the first of several processes writes.
    """
    if checkpoint is not None:
        run.restore(checkpoint)
        if path is not None and not store.is_writer:
            run.states.copy(path)
    for users, data in cohorts([run]):
        ((_, participants),) = users
        run.start_round(participants, data)
        del data  # frees the samples while the next ones are read
        run.end_round(participants)
        pending = len(run.states.pending) * run.states.record_size
        if store.due(pending, last=run.number == run.rounds):
            store.save(run.checkpoint())
            run.states.settle()
    outcomes, ledger = run.outcome()
    return run.recorded() | outcomes | ledger, run.model()


def _split_rows(rows: list[np.ndarray]) -> list[Array]:
    """Clients' rows, split over the devices."""
    if not rows:
        return []
    arrays = gathered(len(rows[0]), lambda part: {str(i): row[part] for i, row in enumerate(rows)})
    return list(arrays.values())
