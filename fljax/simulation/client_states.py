"""Per-client state of an algorithm in a run over a population: which it is, and where it is stored.

A population has more clients than memory has room for, and a round touches the rows of its
participants only. :class:`StateLayout` separates an algorithm's state into arrays that all clients
share and arrays with a row per client; :class:`ClientStates` stores those rows outside the device,
in the host's memory or in a file, and is read before a round and written after it.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from fljax._core.cohort_rows import Rows, ServerRows
from fljax._core.storage import StoreError

#: What the rows of a leaf of an algorithm's state are.
#:
#: - shared: not of single clients; the leaf is kept as it is.
#: - client: each client's own, kept for all clients.
#: - server: a client's row is its server's (:class:`~fljax._core.cohort_rows.ServerRows`); only the
#:   servers' rows are kept.
#: - constant: each client's own, not kept but computed from its samples when it takes part.
Kind = Literal["shared", "client", "server", "constant"]


class StateLayout(NamedTuple):
    """Which leaves of an algorithm's state have a row per client."""

    tree: PyTree  # structure of the state
    kinds: tuple[Kind, ...]  # of each leaf
    rows: tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of a row, where per client

    def shared(self, state: PyTree) -> list[Array]:
        """The leaves that all clients share, among them the servers' rows."""
        return [
            _written(leaf, ServerRows) if kind == "server" else leaf
            for leaf, kind in zip(jax.tree.leaves(state), self.kinds, strict=True)
            if kind in ("shared", "server")
        ]

    def rows_of(self, state: PyTree) -> list[Any]:
        """The leaves with a row per client."""
        return self._leaves_of(state, "client")

    def written(self, state: PyTree) -> list[Array]:
        """The participants' rows after a round.

        Raises:
          TypeError: a step that does not write them by ``who.put``.
        """
        return [_written(leaf, Rows) for leaf in self.rows_of(state)]

    def constants_of(self, state: PyTree) -> list[Any]:
        """The leaves with rows that are computed from samples."""
        return self._leaves_of(state, "constant")

    @property
    def has_constants(self) -> bool:
        return "constant" in self.kinds

    def _leaves_of(self, state: PyTree, wanted: Kind) -> list[Any]:
        leaves = zip(jax.tree.leaves(state), self.kinds, strict=True)
        return [leaf for leaf, kind in leaves if kind == wanted]

    def merge(
        self,
        shared: Sequence[Any],
        rows: Sequence[Any],
        of_clients: Callable[[Array], Any] | None = None,
        constants: Sequence[Any] | None = None,
    ) -> Any:
        """The state with these leaves: the inverse of :meth:`shared`, :meth:`rows_of` and
        :meth:`constants_of`.

        Args:
          shared: the leaves that all clients share.
          rows: those with a row per client.
          of_clients: from servers' rows to their clients'; by default the servers' are left as they
            are.
          constants: those computed from samples; ``None`` for each if nothing reads them.
        """
        if constants is None:
            constants = [None] * self.kinds.count("constant")
        of_all = iter(shared)
        next_leaf = {
            "shared": lambda: next(of_all),
            "server": lambda: of_clients(next(of_all)) if of_clients else next(of_all),
            "client": iter(rows).__next__,
            "constant": iter(constants).__next__,
        }
        return jax.tree.unflatten(self.tree, [next_leaf[kind]() for kind in self.kinds])


def _written(leaf: Any, kind: type[Rows]) -> Array:
    """The rows of a leaf of the state after a step."""
    if type(leaf) is kind:
        return leaf.rows
    raise TypeError(
        "a step makes rows of all clients, and over a population a round has its participants' "
        "alone; write these by who.put(state, rows), and the models that clients have of their "
        "servers by now.network.of_clients(models), in init as well."
    )


class ClientStates:
    """One record of bytes for every client that took part: its rows of the algorithm's state.

    New records are pending in memory until :meth:`settle` writes them into the file. The caller
    stores them in a checkpoint in between, so that a run that is killed while the file is written
    can repeat the writes.

    Args:
      clients: ``K``.
      rows: shape and dtype of each part of one client's record.
      path: the file of records; ``None``: all of them stay pending in memory.

    Example:
      >>> import numpy as np
      >>> states = ClientStates(1_000_000, [((2,), "float32")])
      >>> states.write(np.array([7, 9]), np.array([True, False]), [np.ones((2, 2), "float32")])
      >>> (rows,), stored = states.read(np.array([9, 7]))
      >>> rows.tolist(), stored.tolist()
      ([[0.0, 0.0], [1.0, 1.0]], [False, True])
    """

    def __init__(
        self,
        clients: int,
        rows: Iterable[tuple[Sequence[int], DTypeLike]],
        path: Path | None = None,
    ) -> None:
        self.rows = [(tuple(shape), np.dtype(dtype)) for shape, dtype in rows]
        self.sizes = [d.itemsize * int(np.prod(s, dtype=np.int64)) for s, d in self.rows]
        self.record_size = sum(self.sizes)  # in bytes
        self.stored = np.zeros(clients, bool)  # which clients have a record
        self.pending: dict[int, bytes] = {}  # records that are not in the file yet
        self.crc = np.zeros(0, np.uint32)  # checksum of each client's record, if there is a file
        self.file = None
        if path is not None:
            self.crc = np.zeros(clients, np.uint32)
            self.file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def read(self, clients: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """The parts of these clients' records, and which of them have one; zeros elsewhere."""
        stored = self.stored[clients]
        records = np.zeros((len(clients), self.record_size), np.uint8)
        for row in np.flatnonzero(stored).tolist():
            records[row] = np.frombuffer(self._record(int(clients[row])), np.uint8)
        parts = np.split(records, np.cumsum(self.sizes)[:-1], axis=1) if self.rows else []
        arrays = [
            np.ascontiguousarray(part).view(dtype).reshape(len(clients), *shape)
            for part, (shape, dtype) in zip(parts, self.rows, strict=True)
        ]
        return arrays, stored

    def _record(self, client: int) -> bytes:
        if client in self.pending:
            return self.pending[client]
        return self._record_in(self.file, client)

    def _record_in(self, file: BinaryIO | None, client: int) -> bytes:
        """A client's record in a file; ``StoreError`` unless it has the checksum of its write."""
        file.seek(client * self.record_size)
        record = file.read(self.record_size)
        if len(record) != self.record_size or zlib.crc32(record) != self.crc[client]:
            raise StoreError(
                f"{file.name} was cut or altered: what it holds of client {client} is not what the "
                "run wrote. Restore the run's folder, or remove it and start again."
            )
        return record

    def copy(self, path: Path) -> None:
        """Copy the records in another process's file into memory."""
        with open(path, "rb") as file:
            for client in np.flatnonzero(self.stored).tolist():
                if client not in self.pending:
                    self.pending[client] = self._record_in(file, client)

    def checksums(self) -> np.ndarray:
        """Checksums of all records, as they will be after :meth:`settle`."""
        if not self.crc.size:
            return self.crc
        for client, record in self.pending.items():
            self.crc[client] = zlib.crc32(record)
        return self.crc[self.stored]

    def write(self, clients: Any, active: Array, parts: list[np.ndarray]) -> None:
        """Replace the records of the active ones of these clients."""
        if not self.record_size:
            return
        columns = [np.ascontiguousarray(p).reshape(len(clients), -1).view(np.uint8) for p in parts]
        records = np.concatenate(columns, axis=1)
        for row in np.flatnonzero(active).tolist():
            client = int(clients[row])
            self.stored[client] = True
            self.pending[client] = records[row].tobytes()

    def settle(self) -> None:
        """Write the pending records into the file, after the checkpoint that contains them."""
        if self.file is None:
            return
        for client, record in self.pending.items():
            self.file.seek(client * self.record_size)
            self.file.write(record)
        self.file.flush()
        os.fsync(self.file.fileno())
        self.pending.clear()
