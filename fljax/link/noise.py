r"""Noise that peers, or servers, add to what they say to each other, by a rule and not by a budget.

It hides what is said from whoever hears it, and, by its rule, leaves more or less of itself in what
receivers make of it (Rizk 2023, chapters 3 and 4):

* one draw a message, or one an edge, stays in every combination;
* *graph-homomorphic* noise goes out with every message and is taken off the sender's own part, so
  that it cancels in the weighted mean of the network, though not at each of its nodes;
* *local* graph-homomorphic noise cancels at every receiver: neighbours of a receiver share pairwise
  masks of opposite signs.

Who is protected from whom differs: :mod:`fljax.theory` says what the source promises, and
:mod:`fljax.audit` finds what holds. Budgets (:mod:`fljax.privacy`) are another matter: they choose
their noise by a sensitivity.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._generator import normal
from fljax._module import module, static

__all__ = [
    "GraphHomomorphic",
    "LocalGraphHomomorphic",
    "Noise",
    "PerEdge",
    "PerMessage",
    "Perturbation",
]

LAWS = ("laplace", "gaussian")
PER = ("coordinate", "vector")


@module
class Perturbation:
    r"""Independent numbers of mean zero, by a variance and a law.

    Args:
      variance: :math:`\sigma_g^2\ge0`.
      law: ``"laplace"``, of scale :math:`\sigma_g/\sqrt2`, or ``"gaussian"``.
      per: ``"coordinate"``, each of which has this variance, or ``"vector"``, whose squared length
        has this mean. The source does not say which.

    Raises:
      ValueError: a negative variance, an unknown law.
    """

    variance: Float[Array, ""] | float
    law: str = static(default="laplace")
    per: str = static(default="coordinate")

    def validate(self) -> None:
        _check.nonnegative("variance", self.variance)
        _check.choice("law", self.law, LAWS)
        _check.choice("per", self.per, PER)

    def draw(self, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        """Numbers of this law, ``[..., D]``."""
        variance = jnp.asarray(self.variance, dtype)
        variance = variance / shape[-1] if self.per == "vector" else variance
        if self.law == "gaussian":
            return jnp.sqrt(variance) * normal(key, shape, dtype)
        return jnp.sqrt(variance / 2) * jax.random.laplace(key, shape, dtype)


@module
class Noise(Perturbation):
    """What all noise between peers, or servers, shares.

    Args and Raises: as of :class:`Perturbation`.
    """

    def said(
        self, key: Array, message: Float[Array, "nodes dim"]
    ) -> tuple[Float[Array, "nodes dim"], Float[Array, "nodes dim"] | None]:
        """What goes out to all neighbours, and what the sender takes off its own part."""
        return message, None

    def over_edges(
        self,
        key: Array,
        receiver: Int[Array, ""],
        senders: Int[Array, " slots"],
        weights: Float[Array, " slots"],
        dim: int,
    ) -> Float[Array, "slots dim"] | None:
        """What each sender adds on its way to one receiver; ``None``: nothing.

        Args:
          key: of the round.
          receiver: who hears.
          senders: ``[S]``, whom it hears; where the weight is zero, nobody.
          weights: ``[S]``, which it gives them.
          dim: numbers in a message.
        """
        return None

    @property
    def cancels(self) -> bool:
        """Whether what is added over the edges is nothing in a receiver's weighted sum."""
        return False


@module
class PerMessage(Noise):
    """One draw for every message, the same for all who hear it.

    Args and Raises: as of :class:`Perturbation`.
    """

    def said(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        return message + self.draw(key, message.shape, message.dtype), None


@module
class PerEdge(Noise):
    """A draw of its own for every receiver of a message, as in Rizk 2023, (3.8) and (4.24)-(4.26).

    A node adds none to its own part: it sends itself no message.

    Args and Raises: as of :class:`Perturbation`.
    """

    def over_edges(
        self, key: Array, receiver: Array, senders: Array, weights: Array, dim: int
    ) -> Array | None:
        own = jax.random.fold_in(key, receiver)
        keys = jax.vmap(lambda sender: jax.random.fold_in(own, sender))(senders)
        return jax.vmap(lambda k: self.draw(k, (dim,), weights.dtype))(keys)


@module
class GraphHomomorphic(Noise):
    r"""Noise that cancels in the network's weighted mean (Rizk 2023, (3.50)-(3.51), (4.49)-(4.50)).

    A node sends :math:`x_k+g_k` to all neighbours and takes :math:`\tfrac{1-a_{kk}}{a_{kk}}g_k` off
    its own part, so that :math:`A^\top(X+g)-g` comes of it: with :math:`q` the Perron vector of any
    left-stochastic :math:`A`, :math:`\sum_kq_k` of it is as without noise. The ratio
    :math:`a_{pm}/a_{mp}` of (4.50) holds for symmetric weights only, where it is one, and is left
    out.

    Args and Raises: as of :class:`Perturbation`.
    """

    def said(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        drawn = self.draw(key, message.shape, message.dtype)
        return message + drawn, drawn


@module
class LocalGraphHomomorphic(Noise):
    r"""Noise that cancels at every receiver (Rizk 2023, section 4.3.4).

    A receiver splits those whom it hears into two sets. Each pair across them shares a draw
    :math:`z` that the receiver does not know; one adds :math:`z/a` to what it sends to the receiver
    and the other takes :math:`z/a'` off, :math:`a` and :math:`a'` the weights that the receiver
    gives. So what is heard is masked and its weighted sum is not. A neighbour that is alone has no
    partner and sends in the clear, which :meth:`masked` tells. Pairs agree over the receiver
    (Definition 4.2, with the constant :math:`\sigma_g/\sqrt2`: the printed one gives a variance of
    :math:`4/\sigma_g^2`); that the exchange is secret is assumed.

    Where links fail or messages are late the masks no longer cancel, and are drawn.

    Args and Raises: as of :class:`Perturbation`.
    """

    def over_edges(
        self, key: Array, receiver: Array, senders: Array, weights: Array, dim: int
    ) -> Array | None:
        sign = _sides(weights)
        own = jax.random.fold_in(key, receiver)

        def pair(plus: Array, minus: Array) -> Array:
            both = jax.random.fold_in(jax.random.fold_in(own, plus), minus)
            return self.draw(both, (dim,), weights.dtype)

        drawn = jax.vmap(jax.vmap(pair, (None, 0)), (0, None))(senders, senders)
        across = (sign[:, None] > 0) & (sign[None] < 0)
        drawn = jnp.where(across[..., None], drawn, 0)
        total = jnp.sum(drawn, axis=1) - jnp.sum(drawn, axis=0)
        return total / jnp.where(weights > 0, weights, 1)[:, None]

    @property
    def cancels(self) -> bool:
        return True


def _sides(weights: Float[Array, " slots"]) -> Int[Array, " slots"]:
    """1 and -1 by turns among those who are heard, 0 else; 0 for one that is alone."""
    heard = weights > 0
    rank = jnp.cumsum(heard, dtype=jnp.int32)
    sign = jnp.where(rank % 2 == 1, 1, -1)
    return jnp.where(heard & (rank[-1] > 1), sign, 0)
