r"""Noise and masks of clients on what they send to their server, by a variance and not by a budget.

Noise stays in what the server makes of it. Of a model, :math:`\tfrac1L\sum_k(w_k+g_k)`, or of an
update, :math:`w-\mu\tfrac1L\sum_k(\psi_k+g_k)` (Rizk 2023, section 2.5): the second is the first
with the noise :math:`-\mu g_k`, so what it leaves in the server's model shrinks with the step size,
where that of the first grows.

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

#: What clients send to a server.
UPLOADS = ("models", "updates")


@module
class UploadNoise(Perturbation):
    r"""One draw of every client that sends, in every round.

    It is added before a message is compressed, and goes with it wherever the link takes it. A
    message that holds some of a model's parameters only has noise on those.

    Args:
      variance: :math:`\sigma_g^2`.
      law: ``"laplace"``, of scale :math:`\sigma_g/\sqrt2`, or ``"gaussian"``.
      per: ``"coordinate"``, each of which has this variance, or ``"vector"``, whose squared length
        has this mean.
      on: ``"models"``, the message as it is, or ``"updates"``: on :math:`\psi_k` where the message
        is :math:`w-\mu\psi_k`, or on the message itself where it is an update.

    Raises:
      ValueError: as of :class:`~fljax.link.Noise`; something else to be on.

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
        """The messages with their noise.

        Args:
          keys: ``[M]``, of each sender.
          message: ``[M, ...]``.
          step_size: by which an update is multiplied in it.

        Raises:
          ValueError: noise on updates in messages that say nothing of them.
        """
        drawn = jax.vmap(lambda key: self.draw(key, message.shape[1:], message.dtype))(keys)
        if self.on == "models":
            return message + drawn
        if step_size is None:
            raise ValueError(
                "noise on updates needs the step size by which a message multiplies them; let the "
                "step pass step_size= to now.link.collect or send, or take on='models'."
            )
        return message - step_size * drawn


@module
class SecureAggregation(Perturbation):
    r"""Pairwise masks of opposite signs, which are gone where a server sums what it hears.

    Each two participants of a server share a draw :math:`z_{kl}` that it does not know; one adds
    :math:`z_{kl}/\omega_k` to its message and the other takes :math:`z_{kl}/\omega_l` off,
    :math:`\omega` the weights with which the server sums. So a message of one of :math:`L`
    participants is hidden by :math:`L-1` draws, and the mean is, to rounding, as without masks.
    Pairs agree on their draws out of sight of the server, and nobody drops out once they have: a
    message that is late, lost, compressed, or looked at for itself would leave others' masks in the
    sum, and a run with one is refused. A participant that is alone at its server in a round sends
    in the clear. What pairs exchange to agree is not counted.

    A round draws :math:`L(L-1)/2` vectors for each server, some of them at a time.

    Args:
      variance: of each draw.
      law: as of :class:`UploadNoise`.
      per: as of :class:`UploadNoise`.

    Raises:
      ValueError: as of :class:`~fljax.link.Noise`.

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

    def masks(
        self,
        key: Array,
        clients: Int[Array, " senders"],
        server: Int[Array, " senders"],
        sending: Bool[Array, " senders"],
        most: int,
        dim: int,
        dtype: Any,
    ) -> Float[Array, "senders dim"]:
        """What each sender adds, times its weight; they sum to zero at every server.

        Args:
          key: of the round.
          clients: ``[M]``, whose rows these are.
          server: ``[M]``, to which each sends.
          sending: ``[M]``, who does.
          most: senders that one server can have.
          dim: numbers in a message.
          dtype: of them.
        """
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
