r"""Link failures: which messages are lost, drawn for every edge in every round.

Among peers a receiver's own message replaces a lost one (:class:`~fljax.link.Inbox`); a server uses
the messages that arrive. A sender does not know which messages were lost: their traffic and
privacy cost is spent.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, PyTree

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.prng import uniform_of_pairs
from fljax.participation.patterns import TwoStates


class Losses:
    """A law of link failures; subclass it to define your own.

    Attributes:
      symmetric: whether links fail in both directions together.

    Example:
      A link that has failed once never recovers:

      >>> import jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Broken(fl.link.Losses):
      ...     def begin(self, uniform):
      ...         return jnp.ones(uniform.shape, bool)
      ...     def draw(self, state, uniform):
      ...         works = state & (uniform > 0.1)
      ...         return works, works
      >>> losses = Broken()
      >>> state, works = losses.draw(losses.begin(jnp.zeros(2)), jnp.array([0.05, 0.7]))
      >>> losses.draw(state, jnp.array([0.9, 0.9]))[1].tolist()
      [False, True]
    """

    symmetric: bool = True

    def begin(self, uniform: Float[Array, "*edges"]) -> PyTree:
        """Return the state before the first round, from one uniform number per edge."""
        return ()

    @checks.required
    def draw(
        self, state: PyTree, uniform: Float[Array, "*edges"]
    ) -> tuple[PyTree, Bool[Array, "*edges"]]:
        """Return the next state and which links work, from one uniform number per edge."""
        raise NotImplementedError


@module
class Independent(Losses):
    r"""Each link fails with a given probability, independently in every round.

    Args:
      probability: of a failure, in [0, 1]; at 1 no message over a link arrives.
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
        checks.interval("probability", self.probability, at_least=0, at_most=1)

    def draw(
        self, state: PyTree, uniform: Float[Array, "*edges"]
    ) -> tuple[PyTree, Bool[Array, "*edges"]]:
        return state, uniform >= self.probability


@module
class GilbertElliott(Losses):
    r"""Links that fail in bursts: each is a Markov chain of a good and a bad state.

    In each round a good link turns bad with probability ``fail`` and a bad one good with
    ``recover``; a bad link loses its messages. The first round is drawn from the stationary
    distribution, in which a link is bad with probability :math:`f/(f+r)`; bursts last :math:`1/r`
    rounds on average.

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
        checks.interval("fail", self.fail, at_least=0, at_most=1)
        checks.interval(
            "recover", self.recover, above=0, at_most=1, hint="At 0 a link never comes back."
        )

    @property
    def _bad_state(self) -> TwoStates:
        return TwoStates(enter=self.fail, leave=self.recover)

    def begin(self, uniform: Float[Array, "*edges"]) -> Bool[Array, "*edges"]:
        return uniform < self._bad_state.share

    def draw(
        self, state: Bool[Array, "*edges"], uniform: Float[Array, "*edges"]
    ) -> tuple[Bool[Array, "*edges"], Bool[Array, "*edges"]]:
        return self._bad_state.after(state, uniform), ~state


def of_edges(
    key: Array, receivers: Array, senders: Array, symmetric: bool, dtype: DTypeLike
) -> Float[Array, "*edges"]:
    """One uniform number per pair of nodes, the same in whichever table the pair is."""
    receivers, senders = jnp.broadcast_arrays(receivers, senders)
    first = receivers
    second = senders
    if symmetric:
        first = jnp.minimum(receivers, senders)
        second = jnp.maximum(receivers, senders)
    return uniform_of_pairs(key, first, second, dtype)
