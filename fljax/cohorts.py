"""A run over a population on disk: the participants' samples come to the device, round by round.

Who takes part follows from the run's key alone, so the samples of the next round's participants are
read by a thread of their own while the device computes this one. One compiled program is every
round; at any time the samples of three cohorts are in memory: computed, ready, and being read. What
an algorithm keeps of each client travels with the client: its rows are read before a round and
written after it, from the host's memory or from a file in the run's folder.

The folder's ``checkpoint.npz`` appears whole or not at all. It holds the state after a round, and
the clients' rows that changed since the one before; these are copied into ``clients.bin`` after it
is written, and again when a killed run goes on, so that the file never holds what a lost round
wrote. It has a digest of itself and a checksum of every client's row, so that neither file goes on
if it was cut, altered, or is of another moment than the other.

Shared over devices, each has its share of a round's participants, and each process reads the
samples of its own devices' alone; models and clients' rows are copied to all. Of several processes
the first writes the folder, and all of them read it when they begin.
"""

import contextlib
import functools
import io
import itertools
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool

from fljax._devices import everywhere, gathered, put, sharing, split, without_shardy
from fljax._folders import (
    OtherStudyError,
    StoreError,
    array_digest,
    claim,
    named,
    restored,
    sealed,
    storable,
    write_whole,
    writing,
)
from fljax._generator import name_of
from fljax._hosted import UnknownError, fingerprint
from fljax._module import float_dtype, replace
from fljax._numerics import key_of, round_key
from fljax._rows import Rows
from fljax._version import __version__
from fljax.engine import (
    Carry,
    begin,
    check_metrics,
    final_ledger,
    measured,
    noiseless,
    outcome,
    passed,
    prepare,
)
from fljax.link import Traffic
from fljax.participation import Participants
from fljax.problems.population import OnDisk
from fljax.simulation import Simulation

__all__ = ["ClientStates", "check_population", "run_cohorts"]

#: Rounds whose participants are chosen at a time.
AHEAD = 64

#: A checkpoint is due after so many seconds, or bytes of clients' rows.
CHECKPOINT_SECONDS, CHECKPOINT_BYTES = 5.0, 2**26

#: JAX's options that change numbers.
OPTIONS = (
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)

#: The files of a run's folder; the first says that it is one.
MARK, CHECKPOINT, CLIENTS = "run.json", "checkpoint.npz", "clients.bin"


class Layout(NamedTuple):
    """Which parts of an algorithm's state are rows of clients; :class:`Rows` are leaves of it."""

    tree: Any  # of the state
    own: tuple[bool, ...]  # of each leaf
    rows: tuple[tuple[tuple[int, ...], str], ...]  # shape and type of one client's, of those

    def shared(self, state: Any) -> list[Array]:
        """The leaves that are no client's."""
        return [leaf for leaf, own in zip(jax.tree.leaves(state), self.own, strict=True) if not own]

    def rows_of(self, state: Any) -> list[Any]:
        """The leaves that are clients', one row each."""
        return [leaf for leaf, own in zip(jax.tree.leaves(state), self.own, strict=True) if own]

    def joined(self, shared: list[Any], rows: list[Any]) -> Any:
        """The state of both."""
        parts = iter(shared), iter(rows)
        return jax.tree.unflatten(self.tree, [next(parts[own]) for own in self.own])


def check_population(simulation: Simulation) -> Participants:
    """Return the shapes of a round's participants; raise ``ValueError`` where a population cannot
    be learned from a cohort at a time.
    """
    problem, algorithm = simulation.problem, simulation.algorithm
    label, selector = type(algorithm).label, getattr(simulation.algorithm, "selection", None)
    if selector is None or simulation.network is not None:
        raise ValueError(
            f"{label} does not learn with some clients of one server in a round, and a population "
            "on disk is read a cohort at a time; take an algorithm with clients_per_round=, such "
            "as fljax.algorithms.FedAvg, or clients in memory (fljax.problems.Model.from_clients)."
        )
    clients = problem.clients
    try:
        who = jax.eval_shape(
            lambda key: selector.choose(key, jnp.ones(clients, bool), None, jnp.int32(1)),
            jax.random.key(0),
        )
    except TypeError as error:
        raise ValueError(
            f"{type(selector).__name__} does not choose by the round's key alone, so whose samples "
            f"to read is not known before the round; take clients_per_round=. ({error})"
        ) from error
    if who.clients is None or len(who.here) >= clients:
        (x, x_type), size = problem.population.features, problem.clients * problem.samples
        wanted = size * int(np.prod(x)) * x_type.itemsize / 1e9
        raise ValueError(
            f"{type(selector).__name__} may invite all {clients:,} clients of the population at "
            f"once, {wanted:.3g} GB of samples as they are padded to the largest client; give "
            f"{label} clients_per_round=, below {clients:,}, or a selector that names as many "
            "(fljax.participation.Drawn, Cyclic, Unequal)."
        )
    return who


def _check_shared(who: Participants) -> None:
    chosen, devices = len(who.here), jax.device_count()
    if chosen % devices:
        raise ValueError(
            f"{chosen} participants of a round cannot be shared out evenly over {devices} devices; "
            "take a multiple, or leave out shard_over=."
        )


# Programs ------------------------------------------------------------------------------------


def _copied(tree: Any, shared: bool) -> Any:
    """On every device, where a round is shared out over several."""
    return jax.lax.with_sharding_constraint(tree, everywhere()) if shared else tree


def _held(bare: Simulation, numbers: Array, data: Any) -> Simulation:
    return replace(bare, problem=bare.problem.holding(numbers, data))


def _first_rows(bare: Simulation, numbers: Array, data: Any, layout: Layout) -> list[Array]:
    """The rows of clients that have not taken part yet."""
    problem = bare.problem.holding(numbers, data)
    part = replace(problem.take(numbers), initial=problem.initial)
    return layout.rows_of(bare.algorithm.init(part, None))


def _depends(bare: Simulation) -> ValueError:
    return ValueError(
        f"what {type(bare.algorithm).label} keeps of a client depends from the start on how many "
        "clients there are, and of a population a round has its participants alone; take clients "
        "in memory (fljax.problems.Model.from_clients)."
    )


@functools.partial(jax.jit, static_argnames="layout")
def _begins_alike(bare: Simulation, numbers: Array, data: Any, layout: Layout) -> Array:
    """Whether clients' rows begin as they do beside one client more, but for rounding."""
    also = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), (numbers, data))
    some, others = (_first_rows(bare, n, d, layout) for n, d in ((numbers, data), also))
    alike = [jnp.allclose(a, b[:-1], rtol=1e-5) for a, b in zip(some, others, strict=True)]
    return jnp.all(jnp.array([True, *alike]))


def _layout(bare: Simulation, who: Participants) -> Layout:
    """The parts of the state whose first axis is as long as there are clients, whatever these."""
    numbers, data = who.clients, bare.problem.shapes(len(who.here))
    found: list[Any] = []

    def both(bare: Simulation, numbers: Array, data: Any) -> list[Array]:
        problem = bare.problem.holding(numbers, data)
        part = replace(problem.take(numbers), initial=problem.initial)
        states = [bare.algorithm.init(known, None) for known in (problem, part)]
        leaves = [jax.tree.leaves(state) for state in states]
        shapes = [[(leaf.shape, str(leaf.dtype)) for leaf in some] for some in leaves]
        rows = [isinstance(leaf, Rows) for leaf in leaves[0]]
        found.extend((jax.tree.structure(states[0]), *shapes, rows))
        return []

    jax.eval_shape(both, bare, numbers, data)
    tree, whole, part, rows = found
    own = tuple(
        row or one[0] != other[0] for row, one, other in zip(rows, whole, part, strict=True)
    )
    each = tuple((s[0][1:], s[1]) for s, mine in zip(part, own, strict=True) if mine)
    if each != tuple((s[0][1:], s[1]) for s, mine in zip(whole, own, strict=True) if mine):
        raise _depends(bare)
    return Layout(tree, own, each)


@functools.partial(jax.jit, static_argnames="count")
def _invited(bare: Simulation, key: Array, availability: Any, first: Array, count: int) -> Any:
    """The participants of so many rounds from the first on, ``[count, M]``, and what availability
    is after them.
    """
    pattern, clients = bare.participation, bare.problem.clients

    def one(availability: Any, round: Array) -> tuple[Any, Participants]:
        now, available = round_key(key, round), jnp.ones(clients, bool)
        if pattern is not None:
            availability, available = pattern.draw(
                availability, key_of(now, "availability"), round, clients
            )
        selector = bare.algorithm.selection  # pyright: ignore[reportAttributeAccessIssue]
        return availability, selector.choose(key_of(now, "participation"), available, None, round)

    rounds = jnp.asarray(first, jnp.int32) + jnp.arange(count, dtype=jnp.int32)
    return jax.lax.scan(one, availability, rounds)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _begun(
    bare: Simulation,
    key: Array,
    numbers: Array,
    data: Any,
    layout: Layout,
    rounds: int,
    shared: bool,
) -> Carry:
    """The state before the first round, without clients' rows."""
    simulation = _held(bare, numbers, data)
    carry = begin(simulation, prepare(simulation, rounds), key)
    return _copied(carry._replace(state=layout.shared(carry.state)), shared)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"), donate_argnames="carry")
def _round(
    bare: Simulation,
    key: Array,
    carry: Carry,
    round: Array,
    who: Participants,
    data: Any,
    rows: list[Any],
    known: Bool[Array, " chosen"],
    layout: Layout,
    rounds: int,
    shared: bool,
) -> tuple[Carry, list[Array]]:
    """The state after a round, and the participants' rows."""
    assert who.clients is not None
    simulation = _held(bare, who.clients, data)
    if layout.rows:
        fresh = _first_rows(bare, who.clients, data, layout)
        rows = [
            Rows("states", who.clients, _where(known, old, new), bare.problem.clients)
            for old, new in zip(rows, fresh, strict=True)
        ]
    carry = carry._replace(state=layout.joined(carry.state, rows))
    invited = bare.algorithm.selection, who  # pyright: ignore[reportAttributeAccessIssue]
    with sharing(shared):
        carry = passed(simulation, prepare(simulation, rounds), key, carry, round, rounds, invited)
    rows = [leaf.rows for leaf in layout.rows_of(carry.state)]  # pyright: ignore[reportAttributeAccessIssue]
    return _copied((carry._replace(state=layout.shared(carry.state)), rows), shared)


def _where(known: Array, old: Array, new: Array) -> Array:
    return jnp.where(known.reshape((-1,) + (1,) * (new.ndim - 1)), old, new)


@functools.partial(jax.jit, static_argnames=("layout", "shared"))
def _recorded(
    bare: Simulation,
    carry: Carry,
    round: Array,
    rows: list[Any],
    known: Bool[Array, " evaluated"],
    layout: Layout,
    shared: bool,
) -> tuple[dict[str, Array], Array]:
    """The metrics, of the evaluated clients where there are some, and the traffic."""
    problem = bare.problem
    numbers = jnp.asarray(problem.evaluated, jnp.int32)
    if shared and problem.view is not None and len(numbers) % jax.device_count() == 0:
        problem = replace(problem, view=split(problem.view, len(numbers)))
    simulation = replace(bare, problem=problem.view or problem.stored())
    if problem.view is not None and layout.rows:
        begun = replace(problem.view, initial=problem.initial)
        fresh = layout.rows_of(bare.algorithm.init(begun, None))
        rows = [_where(known, old, new) for old, new in zip(rows, fresh, strict=True)]
    elif layout.rows:
        rows = [Rows("models", None, row, problem.clients) for row in rows]
    if problem.view is not None and simulation.attack is not None:
        liars = jnp.asarray(simulation.attack.attackers)[numbers]
        simulation = replace(simulation, attack=replace(simulation.attack, attackers=liars))
    carry = carry._replace(state=layout.joined(carry.state, rows))
    with sharing(shared):
        record = measured(simulation, noiseless(simulation), carry, round)
    return _copied((record, jnp.stack(carry.traffic, axis=1)), shared)


@functools.partial(jax.jit, static_argnames=("layout", "rounds", "shared"))
def _ended(
    bare: Simulation, carry: Carry, layout: Layout, rounds: int, shared: bool
) -> dict[str, Array]:
    """What is reported once, and the ledger."""
    simulation = replace(bare, problem=bare.problem.stored())
    numbers = jnp.zeros(0, jnp.int32)
    rows = [
        Rows("models", numbers, jnp.zeros((0, *shape), dtype), simulation.problem.clients)
        for shape, dtype in layout.rows
    ]
    carry = carry._replace(state=layout.joined(carry.state, rows))
    return _copied(
        outcome(simulation, prepare(simulation, rounds), carry) | final_ledger(carry), shared
    )


# What clients keep ---------------------------------------------------------------------------


class ClientStates:
    """The rows that an algorithm keeps of clients, one record of bytes for each that took part.

    Args:
      clients: ``K``.
      rows: shape and type of each part of one client's record.
      path: the file that holds them; ``None``: they stay in the host's memory.

    Example:
      >>> import numpy as np
      >>> states = ClientStates(1_000_000, [((2,), "float32")])
      >>> states.write(np.array([7, 9]), np.array([True, False]), [np.ones((2, 2), "float32")])
      >>> (rows,), known = states.read(np.array([9, 7]))
      >>> rows.tolist(), known.tolist()
      ([[0.0, 0.0], [1.0, 1.0]], [False, True])
    """

    def __init__(self, clients: int, rows: Any, path: Path | None = None) -> None:
        self.rows = [(tuple(shape), np.dtype(dtype)) for shape, dtype in rows]
        self.sizes = [d.itemsize * int(np.prod(s, dtype=np.int64)) for s, d in self.rows]
        self.each = sum(self.sizes)
        self.known = np.zeros(clients, bool)  # who took part
        self.changed: dict[int, bytes] = {}  # what is not in the file
        self.sums = np.zeros(0, np.uint32)  # checksums of records, where there is a file
        self.file = None
        if path is not None:
            self.sums = np.zeros(clients, np.uint32)
            self.file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def read(self, clients: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """The parts of some clients' records, and who of them took part before."""
        known = self.known[clients]
        records = np.zeros((len(clients), self.each), np.uint8)
        for row in np.flatnonzero(known).tolist():
            records[row] = np.frombuffer(self._record(int(clients[row])), np.uint8)
        parts = np.split(records, np.cumsum(self.sizes)[:-1], axis=1) if self.rows else []
        made = [
            np.ascontiguousarray(part).view(dtype).reshape(len(clients), *shape)
            for part, (shape, dtype) in zip(parts, self.rows, strict=True)
        ]
        return made, known

    def _record(self, client: int) -> bytes:
        if client in self.changed:
            return self.changed[client]
        return self._kept(self.file, client)

    def _kept(self, file: Any, client: int) -> bytes:
        """What a file holds of a client, which is what was written."""
        file.seek(client * self.each)
        record = file.read(self.each)
        if len(record) != self.each or zlib.crc32(record) != self.sums[client]:
            raise StoreError(
                f"{file.name} was cut or altered: what it holds of client {client} is not what the "
                "run wrote. Restore the run's folder, or remove it and start again."
            )
        return record

    def copy(self, path: Path) -> None:
        """Keep in memory what another process's file has of those who took part."""
        with open(path, "rb") as file:
            for client in np.flatnonzero(self.known).tolist():
                if client not in self.changed:
                    self.changed[client] = self._kept(file, client)

    def checksums(self) -> np.ndarray:
        """Of the records of those who took part, as they will be once they are settled."""
        if not self.sums.size:
            return self.sums
        for client, record in self.changed.items():
            self.sums[client] = zlib.crc32(record)
        return self.sums[self.known]

    def write(self, clients: Any, here: Any, parts: list[np.ndarray]) -> None:
        """Replace the records of those who are here."""
        if not self.each:
            return
        bits = [np.ascontiguousarray(p).reshape(len(clients), -1).view(np.uint8) for p in parts]
        records = np.concatenate(bits, axis=1)
        for row in np.flatnonzero(here).tolist():
            client = int(clients[row])
            self.known[client] = True
            self.changed[client] = records[row].tobytes()

    def settle(self) -> None:
        """Write what changed into the file, after the checkpoint that holds it."""
        if self.file is None:
            return
        for client, record in self.changed.items():
            self.file.seek(client * self.each)
            self.file.write(record)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.changed.clear()


# A run ---------------------------------------------------------------------------------------


class _Folder:
    """The folder of a run: its last checkpoint, for the one process that holds it.

    Args:
      folder: where it is; ``None``: nowhere.
      identity: of the run.
      together: whether all processes share the run. The first of them holds the folder then.
    """

    def __init__(
        self, folder: str | PathLike | None, identity: dict[str, Any], together: bool = False
    ) -> None:
        self.path, self.identity = None if folder is None else named(folder), identity
        self.lock, self.written = None, time.monotonic()
        self.unwritable: OSError | None = None
        self.together = together and folder is not None
        self.mine = not self.together or jax.process_index() == 0
        self._in_all(self._hold)

    def _hold(self) -> None:
        if self.path is None or not self.mine:
            return
        claim(self.path, MARK, "run")
        self.lock = FileLock(self.path / ".run.lock")
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(f"{self.path} is in use by another process.") from None
        except OSError as error:  # who only reads has the results of a run that is over
            self.lock, self.unwritable = None, error
            return
        with writing(self.path):
            if not (self.path / CHECKPOINT).exists():
                write_whole(self.path / MARK, sealed({"identity": self.identity}).encode())

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def _in_all(self, function: Callable[[], Any]) -> Any:
        """What a function returns, unless it fails in one of the processes."""
        if not self.together:
            return function()
        found, failure = None, None
        try:
            found = function()
        except Exception as error:  # raised below: the others must not wait for this process
            failure = error
        fine = _said_by_all(failure is None)
        if failure is not None:
            raise failure
        if not fine.all():
            raise StoreError(f"{self.path} cannot be used by another process of this run.")
        return found

    def last(self) -> dict[str, np.ndarray] | None:
        """The last checkpoint, if there is one."""
        found = self._in_all(self._found)
        if self.together:
            seen = _said_by_all(-1 if found is None else int(found["number"]))
            if len(set(seen.tolist())) > 1:
                raise StoreError(
                    f"the processes of this run find different checkpoints in {self.path}; take a "
                    "folder on a file system that they share."
                )
        over = found is not None and int(found["number"]) == self.identity["rounds"]
        if self.path is not None and self.unwritable is not None and not over:
            with writing(self.path):
                raise self.unwritable
        return found

    def _found(self) -> dict[str, np.ndarray] | None:
        if self.path is None or not (self.path / CHECKPOINT).exists():
            return None
        try:
            with np.load(self.path / CHECKPOINT, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
            kinds = json.loads(str(found.get("types", "{}")))
            if str(found.pop("digest")) != array_digest(found):
                raise ValueError("it was altered: it does not match its own digest")
            known = json.loads(str(found.pop("identity")))
            found = {name: restored(array, kinds.get(name, "")) for name, array in found.items()}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(
                f"{self.path / CHECKPOINT} cannot be read ({error}); remove the folder and start "
                "again."
            ) from error
        if known != self.identity:
            other = [n for n in self.identity if known.get(n) != self.identity[n]]
            raise OtherStudyError(
                f"{self.path} holds another run: it differs in {', '.join(other)}. Give this one a "
                "folder of its own."
            )
        return found

    def due(self, waiting: int, last: bool) -> bool:
        """Whether it is time for another checkpoint: so many bytes wait for it, or it is the
        last.
        """
        late = last or time.monotonic() - self.written >= CHECKPOINT_SECONDS
        return self.path is not None and self.mine and (late or waiting >= CHECKPOINT_BYTES)

    def save(self, arrays: dict[str, np.ndarray]) -> None:
        assert self.path is not None
        buffer = io.BytesIO()
        parts = {name: storable(array) for name, array in arrays.items()}
        kinds = {name: kind for name, (_, kind) in parts.items() if kind}
        whole = {name: array for name, (array, _) in parts.items()}
        whole |= {"identity": np.array(json.dumps(self.identity))}
        whole |= {"types": np.array(json.dumps(kinds))}
        np.savez(buffer, digest=np.array(array_digest(whole)), **whole)  # pyright: ignore
        with writing(self.path):
            write_whole(self.path / CHECKPOINT, buffer.getvalue())
        self.written = time.monotonic()


def _said_by_all(value: int) -> np.ndarray:
    """One number of each process."""
    return np.ravel(multihost_utils.process_allgather(np.int32(value)))


def _identity(
    bare: Simulation, key: Array, rounds: int, record_every: int, shared: bool
) -> dict[str, Any]:
    """Everything that the numbers of a run depend on."""
    problem, config = bare.problem, cast("Any", jax.config)
    known = replace(bare, problem=replace(problem, population=problem.population.digest))
    try:
        digest = fingerprint(known)
    except UnknownError as error:
        raise ValueError(
            f"a run with a part that cannot be identified cannot go on: {error}; leave out store=."
        ) from error
    return {
        "the population": problem.population.digest,
        "the simulation": digest,
        "the key": fingerprint(key),
        "rounds": rounds,
        "record_every": record_every,
        "precision": str(float_dtype()),
        "devices": jax.device_count() if shared else 1,
        "options": {name: str(config.values[name]) for name in OPTIONS if name in config.values},
        "versions": f"fljax {__version__}, jax {jax.__version__}, jaxlib "
        f"{jaxlib.version.__version__}, {jax.default_backend()}",
    }


@functools.lru_cache(maxsize=1)
def _reader(process: int) -> ThreadPoolExecutor:
    """The thread that reads, of all runs of a process: each thread has memory of its own, which
    grew by a cohort or more with every run.
    """
    del process
    return ThreadPoolExecutor(1, "fljax-cohorts")


def _cohorts(
    bare: Simulation, key: Array, availability: Any, first: int, rounds: int, shared: bool
) -> Iterator[tuple[Participants, Any]]:
    """The participants of the rounds from ``first`` on and their data, the next ones being read
    ahead.
    """
    problem = bare.problem

    def read(who: Participants) -> tuple[Participants, Any]:
        def of(some: slice) -> dict[str, np.ndarray]:
            return problem.arrays(problem.population.read(who.clients[some]))

        return who, gathered(len(who.here), of) if shared else jax.device_put(of(slice(None)))

    def invited() -> Iterator[Participants]:
        state = availability
        for start in range(first, rounds + 1, AHEAD):
            state, who = _invited(bare, key, state, np.int32(start), AHEAD)
            host = jax.tree.map(np.asarray, who)
            for row in range(min(AHEAD, rounds + 1 - start)):
                yield jax.tree.map(lambda a: a[row], host)  # noqa: B023 (used at once)

    reader, turns = _reader(os.getpid()), invited()
    coming = reader.submit(read, next(turns))
    for who in turns:
        ready, coming = coming.result(), reader.submit(read, who)
        yield ready
    yield coming.result()


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
      simulation: of a :class:`~fljax.problems.population.OnDisk`.
      key: of the run.
      rounds: number of rounds.
      record_every: number of rounds between records.
      folder: where the run is kept, and goes on if it was interrupted; ``None``: nowhere.
      shared: whether a round's participants are shared out over all devices.
    """
    who = check_population(simulation)
    if shared:
        _check_shared(who)
    problem = simulation.problem
    assert isinstance(problem, OnDisk)
    bare, identity = replace(simulation, problem=problem.bare()), {}
    if folder is not None:
        identity = _identity(bare, key, rounds, record_every, shared)
    wide = shared and name_of(key) == "philox4x32"
    together = shared and jax.process_count() > 1
    with closing(_Folder(folder, identity, together)) as kept:
        try:
            with without_shardy() if wide else contextlib.nullcontext():
                return _run(bare, key, rounds, record_every, kept, who, shared)
        except TypeError as error:
            if Rows.__name__ not in str(error):
                raise
            raise TypeError(  # JAX met them before they could say what they are
                f"all clients' data or states are asked for by {type(bare.algorithm).label}, and "
                "of a population a round has its participants' rows alone; take an algorithm that "
                "reads and writes no others, or clients in memory "
                "(fljax.problems.Model.from_clients)."
            ) from error


def _run(
    bare: Simulation,
    key: Array,
    rounds: int,
    record_every: int,
    kept: _Folder,
    shapes: Participants,
    shared: bool,
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    problem, found = bare.problem, kept.last()

    def whole(tree: Any) -> Any:
        return put(tree, everywhere()) if shared else tree

    held, held_key = whole((bare, key))
    layout = _layout(bare, shapes)
    alike = {"layout": layout, "rounds": rounds, "shared": shared}
    over = found is not None and int(found["number"]) == rounds
    path = None if kept.path is None or over or not layout.rows else kept.path / CLIENTS
    states = ClientStates(problem.clients, layout.rows, path if kept.mine else None)
    records: list[dict[str, np.ndarray]] = []
    done, cohorts = 0, iter(())
    evaluated = np.asarray(problem.evaluated, np.int32)
    with closing(states):
        if found is None:
            availability: Any = ()
            if bare.participation is not None:
                zeroth = key_of(round_key(key, 0), "availability")
                availability = bare.participation.begin(zeroth, problem.clients)
            coming = _cohorts(bare, key, availability, 1, rounds, shared)
            who, data = next(coming)
            numbers = whole(who.clients)
            carry = _begun(held, held_key, numbers, data, **alike)
            if layout.rows and not _begins_alike(held, numbers, data, layout):
                raise _depends(bare)
            cohorts = itertools.chain([(who, data)], coming)
            del data
        else:
            begun = functools.partial(_begun, **alike)
            data = problem.shapes(len(shapes.here))
            like = jax.eval_shape(begun, bare, key, shapes.clients, data)
            carry, records, done = _restored(found, like, states)
            if path is not None and not kept.mine:
                states.copy(path)
            if done < rounds:
                cohorts = _cohorts(bare, key, carry.availability, done + 1, rounds, shared)
            carry = whole(carry)
        for number, (who, data) in enumerate(cohorts, done + 1):
            rows, known = states.read(who.clients)
            rows = _shares(rows) if shared else rows
            given = held_key, carry, np.int32(number), whole(who), data, rows, whole(known)
            carry, rows = _round(held, *given, **alike)
            del data, given
            states.write(who.clients, who.here, [np.asarray(row) for row in rows])
            if number % record_every:
                jax.block_until_ready(carry.diverged)  # no more cohorts in memory than two
            else:
                rows, known = whole(states.read(evaluated))
                made = _recorded(held, carry, np.int32(number), rows, known, layout, shared)
                record, traffic = jax.tree.map(np.asarray, made)
                names = Traffic._fields
                records.append(record | {n: traffic[..., i] for i, n in enumerate(names)})
                carry = carry._replace(traffic=whole(Traffic.none()))
            if kept.due(len(states.changed) * states.each, last=number == rounds):
                kept.save(_checkpoint(carry, records, number, states))
                states.settle()
    made = {name: np.stack([record[name] for record in records]) for name in records[0]}
    check_metrics(replace(bare, problem=problem.view or problem.stored()), made, len(records))
    ended = jax.tree.map(np.asarray, _ended(held, carry, **alike))
    return made | ended, _shared_model(carry, layout)


def _shares(rows: list[np.ndarray]) -> list[Array]:
    """Clients' rows, shared out over the devices."""
    if not rows:
        return []
    named = gathered(len(rows[0]), lambda some: {str(i): row[some] for i, row in enumerate(rows)})
    return list(named.values())


def _shared_model(carry: Carry, layout: Layout) -> np.ndarray | None:
    state = layout.joined(carry.state, [None] * len(layout.rows))
    return None if state.model is None else np.asarray(state.model)


def _checkpoint(
    carry: Carry, records: list[dict[str, np.ndarray]], number: int, states: ClientStates
) -> dict[str, np.ndarray]:
    """All that a run needs to go on, as arrays by name."""
    leaves = {f"carry/{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(carry))}
    names = records[0] if records else ()
    said = {f"records/{name}": np.stack([r[name] for r in records]) for name in names}
    changed = np.frombuffer(b"".join(states.changed.values()), np.uint8)
    return {
        **leaves,
        **said,
        "number": np.array(number),
        "known": np.packbits(states.known),
        "checksums": states.checksums(),
        "changed": np.fromiter(states.changed, np.int64, len(states.changed)),
        "changed_rows": changed,
    }


def _restored(
    found: dict[str, np.ndarray], like: Any, states: ClientStates
) -> tuple[Carry, list[dict[str, np.ndarray]], int]:
    """The state after a checkpoint, in its structure; clients' rows are as they were then."""
    leaves, tree = jax.tree.flatten(like)
    carry = jax.tree.unflatten(tree, [found[f"carry/{i}"] for i in range(len(leaves))])
    names = [n.removeprefix("records/") for n in found if n.startswith("records/")]
    said = {n: found[f"records/{n}"] for n in names}
    count = len(next(iter(said.values()))) if said else 0
    records = [{n: np.asarray(a[i]) for n, a in said.items()} for i in range(count)]
    states.known = np.unpackbits(found["known"], count=len(states.known)).astype(bool)
    if states.each:
        states.sums = np.zeros(len(states.known), np.uint32)
        states.sums[states.known] = found["checksums"]
    rows = found["changed_rows"].reshape(len(found["changed"]), states.each)
    states.changed = {int(k): row.tobytes() for k, row in zip(found["changed"], rows, strict=True)}
    states.settle()
    return jax.tree.map(jnp.asarray, carry), records, int(found["number"])
