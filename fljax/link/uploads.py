r"""Noise and masks of clients on messages to their server, by a variance and not by a budget.

Noise remains in the server's result: on models, :math:`\tfrac1L\sum_k(w_k+g_k)`, or on updates,
:math:`w-\mu\tfrac1L\sum_k(\psi_k+g_k)` (Rizk 2023, section 2.5). The second is the first
with the noise :math:`-\mu g_k`, so its share in the server's model decreases with the step
size, whereas that of the first increases.

Masks are pairwise integers: they hide each message perfectly and cancel exactly in the server's sum
(Bonawitz et al. 2017).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.prng import words as words_of
from fljax.link.noise import Perturbation

#: The messages of clients to a server that noise can be on.
UPLOADS = ("models", "updates")

#: The smallest range of masked numbers, and one over the largest: grids are normal floats.
SMALLEST_RANGE = 2.0**-48

#: Added before rounding down, so that 2/3 of 3 clients are 2 in floating point as well.
ROUNDED = 1e-9


@module
class UploadNoise(Perturbation):
    r"""One independent draw of noise for every client that sends, in every round.

    It is added before a message is compressed, and stays on it on its way. In a message with some
    of a model's parameters only these have noise.

    Args:
      variance: :math:`\sigma_g^2`.
      law: ``"laplace"``, of scale :math:`\sigma_g/\sqrt2`, or ``"gaussian"``.
      per: ``"coordinate"``: the variance of each coordinate; ``"vector"``: the mean of the squared
        norm.
      on: ``"models"``: on the message itself; ``"updates"``: on :math:`\psi_k` where the message
        is :math:`w-\mu\psi_k`, or on the message itself where it is an update.

    Raises:
      ValueError: as in :class:`~fljax.link.Noise`; another value of ``on``.

    Reference:
      Rizk 2023, (2.56)-(2.60); (3.7).

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=8, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(step_size=0.1, clients_per_round=4),
      ...     upload_noise=fl.link.UploadNoise(0.02, on="updates"),
      ... )
      >>> fl.run(simulation, rounds=5).sizes["round"]
      5
    """

    on: str = static(default="models")

    def validate(self) -> None:
        super().validate()
        checks.choice("on", self.on, UPLOADS)

    def onto(
        self,
        keys: Array,
        message: Float[Array, "senders numbers"],
        step_size: Array | float | None,
    ) -> Float[Array, "senders numbers"]:
        """Return the messages with noise.

        Args:
          keys: ``[M]``, of each sender.
          message: ``[M, ...]``.
          step_size: by which an update is multiplied in it.

        Raises:
          ValueError: noise on updates in messages that contain none.
        """
        if self.on == "models":
            factor = 1.0
        elif step_size is None:
            raise ValueError(
                "noise on updates needs the step size by which a message multiplies them; let the "
                "step pass step_size= to now.link.collect or send, or take on='models'."
            )
        else:
            factor = -step_size
        factors = jnp.broadcast_to(jnp.asarray(factor, message.dtype), (len(message),))
        return jax.vmap(self.added)(keys, message, factors)


@module
class SecureAggregation:
    r"""Pairwise masks of integers, under which a server learns the sum of its clients' messages and
    nothing else.

    In a round, :math:`n` clients of a server agree on masks. Client :math:`k` multiplies the
    difference of its message from the reference that both ends have (the server's model, or zero
    where the algorithm names none) by its public weight over the largest one,
    :math:`v_k=\frac{\omega_k}{\max_l\omega_l}(w_k-w)`, clips its numbers to
    :math:`[-\mathrm{range},\mathrm{range}]`, rounds them to a grid of step :math:`g`, a power of
    two, and sends the integers

    .. math:: y_k=\frac{\mathrm{round}(v_k)}{g}+\sum_{l>k}z_{kl}-\sum_{l<k}z_{lk}\mod2^b,

    where each pair shares a vector :math:`z_{kl}` of uniform integers of :math:`b` bits. The server
    adds the :math:`y_k` modulo :math:`2^b`, in which the masks cancel exactly, and reads the sum as
    a signed integer times :math:`g`. The grid is the finest one on which :math:`n` clipped messages
    cannot leave the range of a signed integer, so the sum never wraps. Numbers that were clipped
    (or not finite) are reported: ``clipped`` of a result is the largest share of them in a round,
    and a run with such numbers warns.

    *Dropouts.* A message may be lost (``losses=``) after the masks were agreed on. As in the
    protocol, each client adds a mask of its own as well, and clients share the seeds of all their
    masks so that more than ``threshold`` of the :math:`n` clients together can recover them: the
    survivors then reveal the seeds of the pairs' masks of who dropped out, and of their own masks,
    and the server learns the sum over the arrived messages. If fewer arrive the server learns
    nothing in this round, and its model stays. At least two messages must be in a sum: a client
    that is alone at its server in a round does not send.

    A simulation draws the masks that are left once all that survivors reveal has been subtracted:
    of :math:`m` messages in a sum, :math:`m-1` uniform vectors and the negative of their sum, which
    has the joint distribution of sums of uniform pairs (the map from the pairs of one client to the
    masks of the others is a bijection); all other messages have independent uniform masks. The
    messages by which pairs agree, share seeds and reveal them are not counted; each number of a
    message counts :math:`b` bits.

    Settings in which single messages are changed or read behind their masks are refused:
    compression, delays, aggregators, attackers, servers that clip single messages, and messages
    that hold some of the parameters.

    Args:
      range: the largest absolute value of a number that is sent, > 0; public, and chosen without
        looking at data that are to be hidden. Larger numbers are clipped.
      bits: :math:`b`, of each integer, from 2 to 64; by default as many as the simulation's numbers
        have: 32 in single, 64 in double precision.
      threshold: the share of a server's clients that must be exceeded for their sum to be
        recovered, in [0, 1). As many clients could recover everything together with the server.

    Raises:
      ValueError: an argument outside its range; more than 32 bits in single precision, or fewer
        bits than the sum over the clients needs.

    Guarantees:
      The messages that a server receives, without any one of each sum, are independent uniform
      integers for any data; so all that it learns is a function of the sums and of the set of
      senders. The same holds for a server together with clients, at most ``threshold`` of
      the participants: all that they learn of the others is the others' sum. (The masks are
      drawn by the simulation's generator; in the protocol they are expanded from seeds, and the
      guarantee is against attackers that cannot tell the two apart.) No epsilon is claimed: the sum
      itself depends on the data.

    Reference:
      Bonawitz et al. 2017, sections 4 and 6, with an honest server; Rizk 2023, sections 3.2, 4.3.4.

    Example:
      >>> import jax, fljax as fl
      >>> def ended(masks):
      ...     return fl.run(fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=8, samples=10, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(step_size=0.1, clients_per_round=4),
      ...         masks=masks,
      ...     ), rounds=5)["model"].values
      >>> masks = fl.link.SecureAggregation(range=4.0)
      >>> bool(abs(ended(masks) - ended(None)).max() < 1e-6)
      True
    """

    range: Float[Array, ""] | float
    bits: int | None = static(default=None)
    threshold: float = static(default=2 / 3)

    def validate(self) -> None:
        checks.interval(
            "range",
            self.range,
            at_least=SMALLEST_RANGE,
            at_most=1 / SMALLEST_RANGE,
            hint="It is the largest absolute value of a number in a client's message.",
        )
        if self.bits is not None:
            checks.count("bits", self.bits, at_least=2)
            checks.interval("bits", self.bits, at_most=64, hint="Integers have no more.")
        checks.interval("threshold", self.threshold, at_least=0, below=1)

    def word(self, dtype: DTypeLike) -> np.dtype:
        """Return the unsigned integer type that encodes a number of this type."""
        return np.dtype(np.uint32 if np.dtype(dtype).itemsize <= 4 else np.uint64)

    def width(self, dtype: DTypeLike) -> int:
        """Return :math:`b`.

        Args:
          dtype: of the numbers of a message.

        Raises:
          ValueError: more bits than the integers of this precision have.
        """
        most = 8 * self.word(dtype).itemsize
        if self.bits is not None and self.bits > most:
            raise ValueError(
                f"bits must be at most {most} for messages of {np.dtype(dtype)}, got {self.bits}; "
                "take fewer, or run in double precision (jax_enable_x64)."
            )
        return most if self.bits is None else self.bits

    def survivors(self, clients: int) -> Int[np.ndarray, " counts"]:
        """Return how many of 0, 1, ..., ``clients`` messages must arrive for their sum to be
        recovered: more than the threshold, and two at least.
        """
        taking_part = np.arange(clients + 1, dtype=np.int32)
        share = np.floor(self.threshold * taking_part + ROUNDED).astype(np.int32)
        return np.maximum(2, np.minimum(share + 1, taking_part))

    def grid(self, clients: int, dtype: DTypeLike) -> Float[Array, ""]:
        """Return the step of the grid, a power of two.

        Args:
          clients: the largest number of clients in a sum.
          dtype: of the numbers of a message.

        Raises:
          ValueError: too few bits for a sum of the messages of ``clients``.

        Example:
          >>> import numpy as np
          >>> float(SecureAggregation(range=1.0).grid(100, np.float32)) == 2**-24
          True
        """
        most = (2 ** (self.width(dtype) - 1) - 1) // clients
        if most < 1:
            raise ValueError(
                f"bits={self.width(dtype)} cannot hold a sum of {clients} messages; take at least "
                f"{clients.bit_length() + 1}."
            )
        steps = 2.0 ** (most.bit_length() - 1)
        size = jnp.asarray(self.range, dtype)
        fraction, _ = jnp.frexp(size)  # in [1/2, 1): the quotient is a power of two, exactly
        return jnp.where(fraction > 0.5, size / fraction, size) / jnp.asarray(steps, dtype)

    def encode(
        self, values: Float[Array, "rows numbers"], clients: int
    ) -> tuple[UInt[Array, "rows numbers"], Bool[Array, "rows numbers"]]:
        """Return numbers as integers modulo :math:`2^b`, and which of them were clipped.

        Args:
          values: ``[M, D]``.
          clients: the largest number of clients in a sum.
        """
        dtype = values.dtype
        largest = jnp.asarray(self.range, dtype)
        grid = self.grid(clients, dtype)
        beyond = ~(jnp.abs(values) <= largest)  # NaN as well
        clipped = jnp.clip(jnp.where(jnp.isnan(values), 0, values), -largest, largest)
        # Division by a power of two is exact, and the quotient fits a signed integer.
        steps = jnp.round(clipped / grid).astype(_signed(self.word(dtype)))
        return self._modulo(steps.astype(self.word(dtype)), dtype), beyond

    def decode(
        self, total: UInt[Array, "*shape"], clients: int, dtype: DTypeLike
    ) -> Float[Array, "*shape"]:
        """Return the number that a sum of such integers stands for.

        Args:
          total: the sum modulo :math:`2^b`.
          clients: as of :meth:`encode`.
          dtype: of the numbers of a message.
        """
        word = self.word(dtype)
        unused = 8 * word.itemsize - self.width(dtype)
        signed = jax.lax.bitcast_convert_type(total << word.type(unused), _signed(word))
        signed = signed >> np.asarray(unused, signed.dtype)  # the sign fills the upper bits
        return signed.astype(dtype) * self.grid(clients, dtype)

    def masks(
        self,
        key: Array,
        server: Int[Array, " rows"],
        summed: Bool[Array, " rows"],
        servers: int,
        dim: int,
        dtype: DTypeLike,
    ) -> UInt[Array, "rows dim"]:
        """Return the mask of each row: uniform integers, which sum to zero over the rows of each
        sum, and are independent otherwise.

        Args:
          key: of the message; consumed.
          server: ``[M]``, the server that each row is sent to.
          summed: ``[M]``, which rows are in the sum that their server decodes.
          servers: number of servers.
          dim: numbers in a message.
          dtype: of them.
        """
        word = self.word(dtype)
        drawn = _uniform_words(key, (len(server), dim), word)
        total = self.sums(jnp.where(summed[:, None], drawn, word.type(0)), server, servers)
        rows = jnp.arange(len(server), dtype=jnp.int32)
        last = jax.ops.segment_max(jnp.where(summed, rows, -1), server, servers)[server]
        # The last message of each sum gets minus the sum of the other masks.
        drawn = jnp.where((summed & (rows == last))[:, None], drawn - total[server], drawn)
        return self._modulo(drawn, dtype)

    def sums(
        self, rows: UInt[Array, "rows dim"], server: Int[Array, " rows"], servers: int
    ) -> UInt[Array, "servers dim"]:
        """Return each server's sum, in arithmetic that wraps."""
        if servers == 1:
            return jnp.sum(rows, axis=0, keepdims=True, dtype=rows.dtype)
        return jax.ops.segment_sum(rows, server, servers)

    def hide(
        self, steps: UInt[Array, "rows dim"], masks: UInt[Array, "rows dim"], dtype: DTypeLike
    ) -> UInt[Array, "rows dim"]:
        """Return the masked integers that clients send: the sum modulo :math:`2^b`."""
        return self._modulo(steps + masks, dtype)

    def _modulo(self, integers: UInt[Array, "*shape"], dtype: DTypeLike) -> UInt[Array, "*shape"]:
        word = self.word(dtype)
        width = self.width(dtype)
        return integers if width == 8 * word.itemsize else integers & word.type(2**width - 1)


class Agreed(NamedTuple):
    """The masks that senders agree on before a message, and the sums in which they cancel."""

    masks: Array  # [M, D]
    summed: Array  # [M]  whether the row is in a sum that its server decodes
    server: Array  # [M]
    servers: int
    most: int  # clients at one server, at most


@module
class Masked:
    r"""Messages of clients under masks, as :meth:`fljax.link.Link.send` returns them: a server can
    do nothing with them but add them up, by :meth:`~fljax.link.Link.mean` or
    :meth:`~fljax.link.Link.cell_means`.

    Attributes:
      words: ``[M, D]``, the integers that the servers receive.
      summed: ``[M]``, which of them arrive and are in a sum that is decoded.
      server: ``[M]``, the server that each is sent to.
      reference: ``[D]``, the vector from which messages are differences.
      masks: the protocol.
      servers: number of servers.
      most: clients at one server, at most.
    """

    words: Array
    summed: Array
    server: Array
    reference: Array
    masks: SecureAggregation
    servers: int = static()
    most: int = static()

    def __len__(self) -> int:
        return len(self.server)

    def means(self) -> tuple[Float[Array, "servers dim"], Int[Array, " servers"]]:
        """Return the mean of each server's messages, and how many are in it; zero where none is."""
        integers = jnp.where(self.summed[:, None], self.words, self.words.dtype.type(0))
        total = self.masks.sums(integers, self.server, self.servers)
        total = self.masks.decode(total, self.most, self.reference.dtype)
        count = jax.ops.segment_sum(self.summed.astype(jnp.int32), self.server, self.servers)
        divisor = jnp.maximum(count, 1).astype(total.dtype)[:, None]
        mean = self.reference[None] + total / divisor
        return jnp.where(count[:, None] > 0, mean, 0), count


def _signed(word: np.dtype) -> np.dtype:
    return np.dtype(f"int{8 * word.itemsize}")


def _uniform_words(key: Array, shape: tuple[int, int], word: np.dtype) -> UInt[Array, "rows dim"]:
    """Both words of each block of the generator are used."""
    rows, dim = shape
    if word.itemsize == 8:
        high, low = words_of(key, shape, 2)
        return (high.astype(word) << word.type(32)) | low.astype(word)
    half = -(-dim // 2)
    return jnp.concatenate(words_of(key, (rows, half), 2), axis=1)[:, :dim]
