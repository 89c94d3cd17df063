"""One view of a round: all that a step of an algorithm can see and do."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax.link import Link
from fljax.participation import Participants, Selector

__all__ = ["Round"]


class Round:
    """What is there in one round, as :meth:`Algorithm.step` is given it.

    :func:`fljax.view` makes one of a simulation, at a prompt or in a test.

    Attributes:
      number: 1, 2, ..., possibly traced.
      problem: what the clients have: all their data, or what a stream shows of it in this round.
      network: in this round; ``None`` where one server has all clients.
      link: that every message goes over.
      changing: whether the network is another one in every round.
    """

    def __init__(
        self, number: Array | int, problem: Any, network: Any, link: Link, changing: bool = False
    ) -> None:
        self.number = jnp.asarray(number, jnp.int32)
        self.problem = problem
        self.network = network
        self.link = link
        self.changing = changing
        self.witnessed: Array | None = None

    @property
    def available(self) -> Bool[Array, " clients"]:
        """Which clients are there."""
        return self.link.available

    def key(self, purpose: str) -> Array:
        """The round's key for a draw of this purpose.

        ``"algorithm"`` is for what an algorithm draws of its own; ``"batches"``, ``"sharing"``,
        ``"policy"`` and others are for what several do alike.
        """
        return self.link.key(purpose)

    def choose(self, selector: Selector) -> Participants:
        """Who takes part, under one seed the same for every algorithm."""
        key = self.key("participation")
        return selector.choose(key, self.available, self.network, self.number)

    def witness(self, gradient_norm: Float[Array, " some"]) -> None:
        """Tell the largest per-sample loss gradients that the step met, on which a privacy budget
        rests; of several calls all count.

        Args:
          gradient_norm: of each client, or of some.
        """
        most = jnp.max(gradient_norm)
        self.witnessed = most if self.witnessed is None else jnp.maximum(self.witnessed, most)
