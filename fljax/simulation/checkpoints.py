"""The folder of a run over a population: its last checkpoint, from which a killed run continues.

``checkpoint.npz`` is replaced whole or not at all. It holds the state after a round, and the
clients' records that changed since the checkpoint before. Only after it is written are these
records copied into ``clients.bin``, and they are copied again when a killed run continues, so the
file never holds records of a round that was lost. The checkpoint contains a digest of itself and a
checksum of every client's record: a run does not continue from files that were cut or altered, or
from two files of different rounds.

Several processes that share a run share its folder. The first of them locks and writes it; all of
them read it at the start.
"""

import io
import json
import time
import zipfile
from collections.abc import Callable
from os import PathLike
from typing import Any, cast

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils
from jaxtyping import Array

from fljax._core.fingerprint import UnknownError, fingerprint
from fljax._core.module import float_dtype, replace
from fljax._core.storage import (
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
from fljax._core.version import __version__
from fljax.simulation.client_states import ClientStates
from fljax.simulation.run_state import Carry
from fljax.simulation.scenario import Simulation

#: A checkpoint is due after this time, or when this many bytes of clients' records wait for it.
#: A killed run loses about this much work, and a checkpoint of seconds is written rarely enough.
CHECKPOINT_SECONDS = 5.0
CHECKPOINT_BYTES = 2**26

#: JAX's options that change numerical results: a run does not continue under other ones.
OPTIONS = (
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)

#: The arrays of a checkpoint that hold the state that an algorithm keeps of clients.
CHECKPOINT_OF_CLIENTS = ("known", "checksums", "changed", "changed_rows")

#: The files of a run's folder; the first marks a folder as one of a run.
MARK = "run.json"
CHECKPOINT = "checkpoint.npz"
RECORDS = "clients.bin"


class RunFolder:
    """The folder of a run, locked by one process.

    Args:
      folder: its path; ``None``: the run is not stored, and all methods do nothing.
      identity: of the run, see :func:`run_identity`.
      together: whether all processes share the run; then only the first one locks the folder.
    """

    def __init__(
        self, folder: str | PathLike | None, identity: dict[str, Any], together: bool = False
    ) -> None:
        self.path = None if folder is None else named(folder)
        self.identity = identity
        self.lock = None
        self.written = time.monotonic()
        self.unwritable: OSError | None = None
        self.together = together and folder is not None
        self.is_writer = not self.together or jax.process_index() == 0
        self._in_all_processes(self._acquire)

    def _acquire(self) -> None:
        """Lock the folder and mark it as a run's.

        A folder that cannot be written is not refused yet: a finished run is only read.
        """
        if self.path is None or not self.is_writer:
            return
        claim(self.path, MARK, "run")
        self.lock = FileLock(self.path / ".run.lock")
        try:
            self.lock.acquire(timeout=0)
        except Timeout:
            raise StoreError(f"{self.path} is in use by another process.") from None
        except OSError as error:
            self.lock = None
            self.unwritable = error
            return
        with writing(self.path):
            if not (self.path / CHECKPOINT).exists():
                write_whole(self.path / MARK, sealed({"identity": self.identity}).encode())

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def _in_all_processes(self, function: Callable[[], Any]) -> Any:
        """The result of a function; an error in one process is raised in all of them.

        The error is raised after the processes have exchanged whether they failed: a process that
        raised before would leave the others waiting for it.
        """
        if not self.together:
            return function()
        result = None
        failure = None
        try:
            result = function()
        except Exception as error:
            failure = error
        succeeded = from_each_process(failure is None)
        if failure is not None:
            raise failure
        if not succeeded.all():
            raise StoreError(f"{self.path} cannot be used by another process of this run.")
        return result

    def last(self) -> dict[str, np.ndarray] | None:
        """The last checkpoint; ``None`` if there is none."""
        checkpoint = self._in_all_processes(self._load)
        if self.together:
            number = -1 if checkpoint is None else int(checkpoint["number"])
            if len(set(from_each_process(number).tolist())) > 1:
                raise StoreError(
                    f"the processes of this run find different checkpoints in {self.path}; take a "
                    "folder on a file system that they share."
                )
        finished = checkpoint is not None and int(checkpoint["number"]) == self.identity["rounds"]
        if self.path is not None and self.unwritable is not None and not finished:
            with writing(self.path):
                raise self.unwritable
        return checkpoint

    def _load(self) -> dict[str, np.ndarray] | None:
        if self.path is None or not (self.path / CHECKPOINT).exists():
            return None
        try:
            with np.load(self.path / CHECKPOINT, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            kinds = json.loads(str(arrays.get("types", "{}")))
            if str(arrays.pop("digest")) != array_digest(arrays):
                raise ValueError("it was altered: it does not match its own digest")
            identity = json.loads(str(arrays.pop("identity")))
            arrays = {name: restored(array, kinds.get(name, "")) for name, array in arrays.items()}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise StoreError(
                f"{self.path / CHECKPOINT} cannot be read ({error}); remove the folder and start "
                "again."
            ) from error
        if identity != self.identity:
            other = [n for n in self.identity if identity.get(n) != self.identity[n]]
            raise OtherStudyError(
                f"{self.path} holds another run: it differs in {', '.join(other)}. Give this one a "
                "folder of its own."
            )
        return arrays

    def due(self, pending_bytes: int, last: bool) -> bool:
        """Whether to write a checkpoint now: after the last round, or when time has passed or many
        bytes of clients' records are pending.
        """
        late = last or time.monotonic() - self.written >= CHECKPOINT_SECONDS
        large = pending_bytes >= CHECKPOINT_BYTES
        return self.path is not None and self.is_writer and (late or large)

    def save(self, checkpoint: dict[str, np.ndarray]) -> None:
        assert self.path is not None
        buffer = io.BytesIO()
        parts = {name: storable(array) for name, array in checkpoint.items()}
        kinds = {name: kind for name, (_, kind) in parts.items() if kind}
        arrays = {name: array for name, (array, _) in parts.items()}
        arrays |= {"identity": np.array(json.dumps(self.identity))}
        arrays |= {"types": np.array(json.dumps(kinds))}
        np.savez(buffer, digest=np.array(array_digest(arrays)), **arrays)  # pyright: ignore
        with writing(self.path):
            write_whole(self.path / CHECKPOINT, buffer.getvalue())
        self.written = time.monotonic()


def from_each_process(value: int) -> np.ndarray:
    """Each process's number."""
    return np.ravel(multihost_utils.process_allgather(np.int32(value)))


def run_identity(
    template: Simulation, key: Array, rounds: int, record_every: int, shared: bool
) -> dict[str, Any]:
    """Everything that the numbers of a run depend on, as text by name.

    Args:
      template: the simulation without data; these are identified by the population's digest.
      key: of the run.
      rounds: number of rounds.
      record_every: number of rounds between records.
      shared: whether a round is split over all devices.
    """
    problem = template.problem_on_disk
    config = cast("Any", jax.config)
    by_digest = replace(template, problem=replace(problem, population=problem.population.digest))
    try:
        digest = fingerprint(by_digest)
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


def checkpoint_of(
    carry: Carry, records: list[dict[str, np.ndarray]], number: int, states: ClientStates
) -> dict[str, np.ndarray]:
    """The arrays from which a run continues after round ``number``, by name."""
    leaves = {f"carry/{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(carry))}
    names = records[0] if records else ()
    recorded = {f"records/{name}": np.stack([r[name] for r in records]) for name in names}
    pending = np.frombuffer(b"".join(states.pending.values()), np.uint8)
    return {
        **leaves,
        **recorded,
        "number": np.array(number),
        "known": np.packbits(states.stored),
        "checksums": states.checksums(),
        "changed": np.fromiter(states.pending, np.int64, len(states.pending)),
        "changed_rows": pending,
    }


def restore(
    checkpoint: dict[str, np.ndarray], structure: Carry, states: ClientStates
) -> tuple[Carry, list[dict[str, np.ndarray]], int]:
    """The state, the records and the number of rounds at a checkpoint; ``states`` is reset to it.

    ``structure`` is a tree like the state. The checkpoint's clients' records are written into the
    file again: the run may have been killed before they all were.
    """
    leaves, tree = jax.tree.flatten(structure)
    carry = jax.tree.unflatten(tree, [checkpoint[f"carry/{i}"] for i in range(len(leaves))])
    names = [n.removeprefix("records/") for n in checkpoint if n.startswith("records/")]
    recorded = {n: checkpoint[f"records/{n}"] for n in names}
    count = len(next(iter(recorded.values()))) if recorded else 0
    records = [{n: np.asarray(a[i]) for n, a in recorded.items()} for i in range(count)]
    clients = len(states.stored)
    states.stored = np.unpackbits(checkpoint["known"], count=clients).astype(bool)
    if len(checkpoint["checksums"]):  # of a file
        states.crc = np.zeros(clients, np.uint32)
        states.crc[states.stored] = checkpoint["checksums"]
    changed = checkpoint["changed"]
    rows = checkpoint["changed_rows"].reshape(len(changed), states.record_size)
    states.pending = {int(k): row.tobytes() for k, row in zip(changed, rows, strict=True)}
    states.settle()
    return jax.tree.map(jnp.asarray, carry), records, int(checkpoint["number"])
