r"""Links that fail: which messages never arrive, drawn for every edge in every round.

What a receiver does without a message is its inbox's business: among peers its own message takes
the place of the one that did not come, a server goes on with those that did. A sender does not know
what was lost; it has sent, and what that costs in traffic and privacy is spent.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax import _check
from fljax._module import module, static
from fljax.participation import TwoStates

__all__ = ["GilbertElliott", "Independent", "Losses"]


class Losses:
    """Which links work in a round; subclass it for a law of your own.

    Attributes:
      symmetric: whether a link that fails does so in both directions.
    """

    symmetric: bool = True

    def begin(self, uniform: Float[Array, "*edges"]) -> Any:
        """The state before the first round, from one uniform number an edge."""
        return ()

    @_check.required
    def draw(
        self, state: Any, uniform: Float[Array, "*edges"]
    ) -> tuple[Any, Bool[Array, "*edges"]]:
        """The next state, and which links work, from one uniform number an edge and round."""
        raise NotImplementedError


@module
class Independent(Losses):
    r"""Each link fails with its own probability, anew in every round.

    Args:
      probability: of a failure, in [0, 1]; at 1 nothing that is said over a link arrives.
      symmetric: whether both directions of a link fail together.

    Raises:
      ValueError: a probability outside [0, 1].

    Example:
      >>> import fljax as fl
      >>> float(fl.link.Independent(0.1).probability)
      0.1
    """

    probability: Float[Array, ""] | float
    symmetric: bool = static(default=True)

    def validate(self) -> None:
        _check.interval("probability", self.probability, at_least=0, at_most=1)

    def draw(
        self, state: Any, uniform: Float[Array, "*edges"]
    ) -> tuple[Any, Bool[Array, "*edges"]]:
        return state, uniform >= self.probability


@module
class GilbertElliott(Losses):
    r"""Links that fail in bursts: each is a Markov chain of a good and a bad state.

    A good link turns bad with probability ``fail`` a round and a bad one good with ``recover``; a
    bad one loses what is sent over it. The first round is drawn from the stationary law, of which
    :math:`f/(f+r)` is bad; bursts last :math:`1/r` rounds in the mean.

    Args:
      fail: :math:`f\in[0,1]`.
      recover: :math:`r\in(0,1]`.
      symmetric: whether both directions of a link fail together.

    Raises:
      ValueError: a probability outside its range.

    Reference:
      Gilbert 1960; Elliott 1963.

    Example:
      >>> import fljax as fl
      >>> law = fl.link.GilbertElliott(fail=0.1, recover=0.5)
      >>> law.symmetric
      True
    """

    fail: Float[Array, ""] | float
    recover: Float[Array, ""] | float
    symmetric: bool = static(default=True)

    def validate(self) -> None:
        _check.interval("fail", self.fail, at_least=0, at_most=1)
        _check.interval(
            "recover", self.recover, above=0, at_most=1, hint="At 0 a link never comes back."
        )

    @property
    def _bad(self) -> TwoStates:
        return TwoStates(enter=self.fail, leave=self.recover)

    def begin(self, uniform: Float[Array, "*edges"]) -> Bool[Array, "*edges"]:
        return uniform < self._bad.share

    def draw(
        self, state: Bool[Array, "*edges"], uniform: Float[Array, "*edges"]
    ) -> tuple[Bool[Array, "*edges"], Bool[Array, "*edges"]]:
        return self._bad.after(state, uniform), ~state


def of_edges(
    key: Array, receivers: Array, senders: Array, symmetric: bool, dtype: Any
) -> Float[Array, "*edges"]:
    """A uniform number of every pair of nodes, the same whichever table the pair stands in."""
    receivers, senders = jnp.broadcast_arrays(receivers, senders)
    first, second = receivers, senders
    if symmetric:
        first, second = jnp.minimum(receivers, senders), jnp.maximum(receivers, senders)

    def one(first: Array, second: Array) -> Array:
        pair = jax.random.fold_in(jax.random.fold_in(key, first), second)
        return jax.random.uniform(pair, (), dtype)

    flat = jax.vmap(one)(first.reshape(-1), second.reshape(-1))
    return flat.reshape(receivers.shape)
