r"""Noise and masks of clients on messages to their server, by a variance and not by a budget.

Noise remains in the server's result: on models, :math:`\tfrac1L\sum_k(w_k+g_k)`, or on updates,
:math:`w-\mu\tfrac1L\sum_k(\psi_k+g_k)` (Rizk 2023, section 2.5). The second is the first
with the noise :math:`-\mu g_k`, so what it leaves in the server's model decreases with the step
size, whereas that of the first increases.

Masks are pairwise: they hide each message and cancel in the server's sum (Bonawitz et al. 2017).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fljax import _check
from fljax._module import module, static
from fljax.link.noise import Perturbation

__all__ = ["UPLOADS", "SecureAggregation", "UploadNoise"]

#: The messages of clients to a server that noise can be on.
UPLOADS = ("models", "updates")


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
        _check.choice("on", self.on, UPLOADS)

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
class SecureAggregation(Perturbation):
    r"""Pairwise masks of opposite signs, which cancel in the server's sum of messages.

    Each two participants of a server share a draw :math:`z_{kl}` that the server does not know; one
    adds :math:`z_{kl}/\omega_k` to its message and the other subtracts :math:`z_{kl}/\omega_l`,
    where :math:`\omega` are the weights of the server's sum. So the message of one of :math:`L`
    participants is hidden by :math:`L-1` draws, and the mean is, up to rounding, the same as
    without masks. Pairs are assumed to agree on their draws without the server learning them, and
    no client drops out afterwards: a message that is late, lost, compressed, or processed
    individually would leave others' masks in the sum, and runs with such messages are refused. A
    participant that is alone at its server in a round sends in the clear. The messages by which
    pairs agree are not counted.

    Gaussian masks are drawn at once, :math:`m_k=\sqrt L\,(g_k-\tfrac1L\sum_lg_l)` of one draw
    :math:`g_k` a participant. They sum to zero, and have jointly the law of the sums of pairs: both
    are Gaussian, of mean zero, with the covariances
    :math:`\sigma^2L\,(\delta_{kl}-\tfrac1L)`, since a message's own mask has the variance of
    :math:`L-1` draws and two messages share one, of opposite signs. So whoever hears the messages
    hears the same; what a client among the listeners knows besides, the draws of its own pairs, is
    never part of a run, and :func:`fljax.audit.overheard_upload` counts it. The joint law of sums
    of Laplace draws is not one of their covariances alone: for these a round draws the
    :math:`L(L-1)/2` vectors of all pairs, some of them at a time.

    Args:
      variance: :math:`\sigma^2`, of each pair's draw.
      law: of each pair's draw, as in :class:`UploadNoise`; Gaussian by default, which takes
        :math:`(L-1)/2` times fewer draws.
      per: as in :class:`UploadNoise`.

    Raises:
      ValueError: as in :class:`~fljax.link.Noise`.

    Reference:
      Bonawitz et al. 2017, section 4, with real masks in the place of integers modulo a number;
      Rizk 2023, sections 3.2 and 4.3.4.

    Example:
      >>> import jax, fljax as fl
      >>> def ended(masks):
      ...     return fl.run(fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=8, samples=10, dim=2),
      ...         algorithm=fl.algorithms.FedAvg(step_size=0.1, clients_per_round=4),
      ...         masks=masks,
      ...     ), rounds=5)["model"].values
      >>> bool(abs(ended(fl.link.SecureAggregation(1.0)) - ended(None)).max() < 1e-5)
      True
    """

    law: str = static(default="gaussian")

    def masks(
        self,
        key: Array,
        clients: Int[Array, " senders"],
        server: Int[Array, " senders"],
        sending: Bool[Array, " senders"],
        servers: int,
        most: int,
        dim: int,
        dtype: Any,
    ) -> Float[Array, "senders dim"]:
        """Return the mask of each sender times its weight; they sum to zero at every server.

        Args:
          key: of the round.
          clients: ``[M]``, the clients of the rows.
          server: ``[M]``, the server that each sends to.
          sending: ``[M]``, which rows are sent.
          servers: number of servers.
          most: the largest number of senders at one server.
          dim: numbers in a message.
          dtype: of them.
        """
        if self.law == "gaussian":
            return self._at_once(key, clients, server, sending, servers, dim, dtype)
        return self._of_pairs(key, clients, server, sending, most, dim, dtype)

    def _at_once(
        self,
        key: Array,
        clients: Int[Array, " senders"],
        server: Int[Array, " senders"],
        sending: Bool[Array, " senders"],
        servers: int,
        dim: int,
        dtype: Any,
    ) -> Float[Array, "senders dim"]:
        """One draw a sender, less their mean."""

        def draw(client: Array) -> Array:
            return self.draw(jax.random.fold_in(key, client), (dim,), dtype)

        def at_home(rows: Array) -> Array:
            """The sum of the rows of a sender's server, for each sender."""
            if servers == 1:
                return jnp.sum(rows, axis=0, keepdims=True)
            return jax.ops.segment_sum(rows, server, servers)[server]

        on = sending[:, None].astype(dtype)
        drawn = on * jax.vmap(draw)(clients)
        size = jnp.maximum(at_home(on), 1)
        return on * jnp.sqrt(size) * (drawn - at_home(drawn) / size)

    def _of_pairs(
        self,
        key: Array,
        clients: Int[Array, " senders"],
        server: Int[Array, " senders"],
        sending: Bool[Array, " senders"],
        most: int,
        dim: int,
        dtype: Any,
    ) -> Float[Array, "senders dim"]:
        """One draw for each two senders."""
        # Servers' senders side by side, in the order of their numbers; the others behind them.
        cells = jnp.max(server) + 1
        home = jnp.where(sending, server, cells)
        order = jnp.lexsort((clients, home))
        home, clients = home[order], clients[order]
        first = jnp.searchsorted(home, home, side="left").astype(jnp.int32)
        size = jnp.searchsorted(home, home, side="right").astype(jnp.int32) - first
        place = jnp.arange(len(home), dtype=jnp.int32) - first

        def pairs(apart_by: Array, total: Array) -> Array:
            """Each sender with the one so many places on, around its server."""
            other = (place + apart_by) % size
            # Half way around a pair meets twice.
            once = (2 * apart_by < size) | ((2 * apart_by == size) & (place < apart_by))
            low, high = (f(clients, clients[first + other]) for f in (jnp.minimum, jnp.maximum))

            def draw(low: Array, high: Array) -> Array:
                return self.draw(
                    jax.random.fold_in(jax.random.fold_in(key, low), high), (dim,), dtype
                )

            sign = jnp.where(once & sending[order], jnp.where(place < other, 1, -1), 0)
            shared = sign[:, None].astype(dtype) * jax.vmap(draw)(low, high)
            return (total + shared).at[first + other].add(-shared)

        zero = jnp.zeros((len(home), dim), dtype)
        total = jax.lax.fori_loop(1, most // 2 + 1, pairs, zero)
        return jnp.zeros_like(total).at[order].set(total)
