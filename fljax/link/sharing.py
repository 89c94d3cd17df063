r"""Partial sharing: a message contains ``size`` of the ``D`` parameters, chosen by a schedule.

Both ends know the schedule, so a message carries no indices. ``M_k(n)``, what client ``k``
receives in round ``n``, is the portion of round ``n``; ``S_k(n)``, the portion it sends, is that of
round ``n`` or ``n + 1`` (Gauthier 2024, (4.5)-(4.6)).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fljax._core import checks
from fljax._core.module import module, static


class Sharing:
    """A schedule of the parameters in the messages of a round; subclass it to define your own.

    Attributes:
      size: parameters in a message.

    Example:
      The same two parameters in every message:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class First(fl.link.Sharing):
      ...     size: int = fl.static(default=2)
      ...     def indices(self, key, round, clients, dim):
      ...         return jnp.broadcast_to(jnp.arange(self.size), (len(clients), self.size))
      >>> First().mask(jax.random.key(0), jnp.int32(1), jnp.arange(1), dim=4).tolist()
      [[True, True, False, False]]
    """

    size: int

    def check(self, dim: int) -> None:
        """Raise ``ValueError`` unless messages of this size can be cut from ``dim`` parameters."""
        if self.size > dim:
            raise ValueError(
                f"a message can hold 1 to {dim} of the model's {dim} parameters, got size="
                f"{self.size}."
            )

    @checks.required
    def indices(
        self, key: Array, round: Array, clients: Int[Array, " some"], dim: int
    ) -> Int[Array, "some size"]:
        """Return the indices of the parameters in these clients' portions of this round."""
        raise NotImplementedError

    def mask(
        self, key: Array, round: Array, clients: Int[Array, " some"], dim: int
    ) -> Bool[Array, "some dim"]:
        """Return the same portions as a mask."""
        chosen = self.indices(key, round, clients, dim)
        rows = jnp.arange(clients.shape[0])[:, None]
        return jnp.zeros((clients.shape[0], dim), bool).at[rows, chosen].set(True)


def _check_size(size: int) -> None:
    checks.count("size", size, hint="It is the number of parameters in a message.")


def _multiply_modulo(index: Array, size: int, dim: int) -> Array:
    """``size * place`` modulo ``dim``, for ``place < dim < 2^30``, within 32 bits."""
    width = 31 - dim.bit_length()  # bits of the index at a time
    product = jnp.zeros_like(index, jnp.uint32)
    for low in reversed(range(0, dim.bit_length(), width)):
        digit = (index.astype(jnp.uint32) >> low) & jnp.uint32(2**width - 1)
        product = ((product << width) + digit * jnp.uint32(size)) % jnp.uint32(dim)
    return product.astype(jnp.int32)


@module
class Circular(Sharing):
    r"""A window that moves by its own size every round, (4.5).

    It starts at parameter :math:`mn` in round :math:`n`, at :math:`mn+mk` for client :math:`k` when
    uncoordinated (section 4.4.1, clients from 0), modulo :math:`D`; with an offset :math:`o` at
    :math:`mn+ok`. Over :math:`D/\gcd(m,D)` rounds every parameter is shared equally often.

    Args:
      size: :math:`m`, 1 to ``D``.
      coordinated: whether all clients share the same portion. It is not static: both cases share a
        compiled program.
      offset: :math:`o\ge0`, the shift from one client's window to the next one's, in parameters;
        the size by default.

    Raises:
      ValueError: a size below one, or above the model's; a negative offset, or one of clients that
        are coordinated.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> round, clients = jnp.asarray(1), jnp.arange(3)
      >>> Circular(2, offset=3).indices(jax.random.key(0), round, clients, dim=10).tolist()
      [[2, 3], [5, 6], [8, 9]]

    Reference:
      Gauthier 2024, (4.5).
    """

    size: int = static()
    coordinated: Bool[Array, ""] | bool = False
    offset: int | None = static(default=None)

    def validate(self) -> None:
        _check_size(self.size)
        if self.offset is None:
            return
        checks.count("offset", self.offset, at_least=0)
        if checks.is_concrete(self.coordinated) and self.coordinated:
            raise ValueError(
                f"offset={self.offset} was given for coordinated clients, which share one window; "
                "leave out one of them."
            )

    def _window_start(self, round: Array, clients: Array, dim: int) -> Array:
        clients = jnp.where(jnp.asarray(self.coordinated), 0, clients)
        if self.offset is None:
            return _multiply_modulo((clients + round) % dim, self.size, dim)
        stride = _multiply_modulo(clients % dim, self.offset % dim, dim)
        return (_multiply_modulo(round % dim, self.size, dim) + stride) % dim

    def indices(
        self, key: Array, round: Array, clients: Int[Array, " some"], dim: int
    ) -> Int[Array, "some size"]:
        start = self._window_start(round, clients, dim)
        return (start[:, None] + jnp.arange(self.size, dtype=jnp.int32)[None]) % dim

    def mask(
        self, key: Array, round: Array, clients: Int[Array, " some"], dim: int
    ) -> Bool[Array, "some dim"]:
        parameters = jnp.arange(dim, dtype=jnp.int32)[None]
        behind = parameters - self._window_start(round, clients, dim)[:, None]
        return jnp.where(behind < 0, behind + dim, behind) < self.size


@module
class Random(Sharing):
    """``size`` parameters drawn uniformly without replacement in every round (section 4.2.3).

    Args:
      size: :math:`m`, 1 to ``D``.
      coordinated: whether all clients share the same portion.

    Raises:
      ValueError: a size below one, or above the model's.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> sharing = fl.link.Random(2, coordinated=True)
      >>> drawn = sharing.indices(jax.random.key(0), jnp.asarray(1), jnp.arange(3), dim=10)
      >>> drawn.shape, bool((drawn == drawn[:1]).all())  # the same two parameters for all clients
      ((3, 2), True)

    Reference:
      Gauthier 2024, section 4.2.3 (a pseudo-random selection in place of the circular shift).
    """

    size: int = static()
    coordinated: Bool[Array, ""] | bool = False

    def validate(self) -> None:
        _check_size(self.size)

    def indices(
        self, key: Array, round: Array, clients: Int[Array, " some"], dim: int
    ) -> Int[Array, "some size"]:
        """Floyd's sampling: ``size`` draws per client for any number of parameters."""
        key = jax.random.fold_in(key, round)
        which = jnp.where(jnp.asarray(self.coordinated), 0, clients)
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(which)
        tops = jnp.arange(dim - self.size + 1, dim + 1, dtype=jnp.int32)
        draws = jax.vmap(lambda k: jax.random.randint(k, (self.size,), 0, tops, jnp.int32))(keys)

        def pick(i: Array, chosen: Array) -> Array:
            drawn = draws[:, i]
            taken = jnp.any(chosen == drawn[:, None], axis=1)
            return chosen.at[:, i].set(jnp.where(taken, tops[i] - 1, drawn))

        nothing = jnp.full((clients.shape[0], self.size), -1, draws.dtype)
        return jax.lax.fori_loop(0, self.size, pick, nothing)
