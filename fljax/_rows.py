"""Arrays over all clients of which a round has the participants' rows alone."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

__all__ = ["Rows", "rows_of"]


class Rows:
    """An array ``[K, ...]`` of which a round holds its participants' rows alone.

    So are data and states of a population on disk (``Model.from_population``). The methods
    ``take`` and ``put`` of :class:`~fljax.participation.Participants` are its doors; whoever reads
    all of it gets an error. It lives within one traced round.

    Args:
      what: its name, for messages.
      numbers: ``[M]``, whose rows these are; ``None`` where nobody's are at hand.
      rows: ``[M, ...]``, or their shape and type alone.
      clients: ``K``.
    """

    def __init__(self, what: str, numbers: Any, rows: Any, clients: int) -> None:
        self.what, self.numbers, self.rows, self.clients = what, numbers, rows, clients

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
    def dtype(self) -> Any:
        return self.rows.dtype

    def __len__(self) -> int:
        return self.clients

    def of(self, clients: Any) -> Array:
        """Return the rows of some of the participants."""
        if self.numbers is None:
            self._refuse()
        if clients is self.numbers:
            return self.rows
        return self.rows[jnp.argmax(self.numbers[None] == clients[:, None], axis=1)]

    def changed(self, function: Callable[[Array], Array]) -> "Rows":
        """Return what a function of rows makes of them."""
        return Rows(self.what, self.numbers, function(self.rows), self.clients)

    def astype(self, dtype: Any) -> "Rows":
        return self.changed(lambda rows: rows.astype(dtype))

    def __gt__(self, other: float) -> "Rows":
        return self.changed(lambda rows: rows > other)

    def __mul__(self, other: Array) -> "Rows":
        factor = other[self.numbers] if len(other) == self.clients else other
        return self.changed(lambda rows: rows * factor)

    def __getitem__(self, clients: Any) -> Array:
        return self._refuse()

    @property
    def at(self) -> Any:
        return self._refuse()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse()

    @property
    def __jax_array__(self) -> Any:  # where JAX looks whether it is an array, it is told
        return self._refuse()

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith("_"):  # what arrays can do
            return self._refuse()
        raise AttributeError(f"rows of clients have no attribute {name!r}.")

    def _refuse(self) -> Any:
        wanted = f"{self.size * np.dtype(self.dtype).itemsize / 1e9:.3g} GB"
        raise TypeError(
            f"all clients' {self.what} are asked for, {self.dtype}{list(self.shape)} or {wanted}, "
            "and of a population a round has its participants' rows alone; take an algorithm that "
            "reads and writes no others (its step uses who.take, who.put and who.of), or clients "
            "in memory (fljax.problems.Model.from_clients)."
        )


def rows_of(array: Any, clients: Any) -> Array:
    """Return some clients' rows of ``[K, ...]``."""
    return array.of(clients) if isinstance(array, Rows) else jnp.asarray(array)[clients]
