"""Arrays with a client axis that hold only the rows of a round's participants."""

from collections.abc import Callable
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array


class Rows:
    """An array ``[K, ...]`` that has only the participants' rows in memory.

    The data and states of a population on disk (``Model.from_population``) have this form. It is
    read and written by ``take`` and ``put`` of :class:`~fljax.participation.Participants`; reading
    the whole array raises an error. It exists within the trace of one round.

    Args:
      what: its name, for error messages.
      numbers: ``[M]``, the clients of the rows; ``None`` if no rows are in memory.
      rows: ``[M, ...]``, or only their shape and type.
      clients: ``K``.
      constant: whether they follow from the clients' samples and no step changes them.
    """

    def __init__(
        self, what: str, numbers: Any, rows: Any, clients: int, constant: bool = False
    ) -> None:
        self.what = what
        self.numbers = numbers
        self.rows = rows
        self.clients = clients
        self.constant = constant

    @property
    def shape(self) -> tuple[int, ...]:
        return self.clients, *self.rows.shape[1:]

    @property
    def ndim(self) -> int:
        return self.rows.ndim

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    def __len__(self) -> int:
        return self.clients

    def of(self, clients: Array) -> Any:
        """Return the rows of some of the participants, on a pool if they are."""
        if self.numbers is None:
            self._refuse()
        if clients is self.numbers:
            return self.rows
        at = jnp.argmax(self.numbers[None] == clients[:, None], axis=1)
        return self.rows.of_clients(at) if hasattr(self.rows, "of_clients") else self.rows[at]

    def changed(self, function: Callable[[Array], Array]) -> "Rows":
        """Return the array with a function applied to its rows."""
        return Rows(self.what, self.numbers, function(self.rows), self.clients)

    def astype(self, dtype: DTypeLike) -> "Rows":
        return self.changed(lambda rows: rows.astype(dtype))

    def __gt__(self, other: float) -> "Rows":
        return self.changed(lambda rows: rows > other)

    def __mul__(self, other: Array) -> "Rows":
        factor = other[self.numbers] if len(other) == self.clients else other
        return self.changed(lambda rows: rows * factor)

    def __getitem__(self, clients: object) -> NoReturn:
        return self._refuse()

    @property
    def at(self) -> NoReturn:
        return self._refuse()

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        return self._refuse()

    @property
    def __jax_array__(self) -> NoReturn:  # JAX reads it of any object it gets as an array
        return self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(np.ndarray, name) and not name.startswith("_"):  # methods of arrays
            return self._refuse()
        raise AttributeError(f"rows of clients have no attribute {name!r}.")

    def _refuse(self) -> NoReturn:
        wanted = f"{self.size * np.dtype(self.dtype).itemsize / 1e9:.3g} GB"
        raise TypeError(
            f"all clients' {self.what} are asked for, {self.dtype}{list(self.shape)} or {wanted}, "
            "and of a population a round has its participants' rows alone; take an algorithm that "
            "reads and writes no others (its step uses who.take, who.put and who.of), or clients "
            "in memory (fljax.problems.Model.from_clients)."
        )


class ServerRows(Rows):
    """An array ``[K, ...]`` whose row of a client is the one of its server.

    Args:
      rows: ``[P, ...]``, of the servers.
      server: ``[K]``, the server of each client.
    """

    def __init__(self, rows: Array, server: Array) -> None:
        super().__init__("models", None, rows, len(server))
        self.server = server

    def of(self, clients: Array) -> Array:
        return self.rows[self.server[clients]]

    def changed(self, function: Callable[[Array], Array]) -> "ServerRows":
        return ServerRows(function(self.rows), self.server)

    def __mul__(self, other: Array) -> "Rows":
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"the models of all {self.clients:,} clients of a population are asked for, a copy of "
            "their server's for each; metrics read those of the clients that "
            "from_population(evaluated=[...]) names, for instance one of each server, and a step "
            "takes the servers' models, or the participants' by who.take."
        )


def rows_of(array: object, clients: Any) -> Any:
    """Return some clients' rows of ``[K, ...]``."""
    return array.of(clients) if isinstance(array, Rows) else jnp.asarray(array)[clients]
