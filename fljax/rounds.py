"""The view of a round: everything that a step of an algorithm can observe and do."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax.link import Link
from fljax.participation import ByLoss, Participants, Selector

__all__ = ["Round"]


class Round:
    """The round that is passed to :meth:`Algorithm.step`.

    :func:`fljax.view` returns one for a simulation, for interactive use or tests.

    Attributes:
      number: 1, 2, ..., possibly traced.
      problem: the data of the clients: all of it, or what a stream provides in this round.
      network: the graph or federation of this round; ``None`` where one server has all clients.
      link: the link over which every message is sent.
      changing: whether the network changes from round to round.
      invited: the participants, where they were chosen before the round, since their data had to be
        read first.
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
        self.invited: Participants | None = None

    @property
    def available(self) -> Bool[Array, " clients"]:
        """Which clients are available."""
        return self.link.available

    def key(self, purpose: str) -> Array:
        """Return the round's random key for a draw of this purpose.

        ``"algorithm"`` is for draws specific to an algorithm; ``"batches"``, ``"sharing"``,
        ``"policy"`` and others are for draws that several algorithms have in common.
        """
        return self.link.key(purpose)

    def choose(self, selector: Selector, model: Any = None) -> Participants:
        """Return the participants, the same for every algorithm under the same seed.

        Args:
          selector: the rule.
          model: ``[D]``, the server's, or ``[K, D]``, for a rule that goes by losses
            (:class:`~fljax.participation.ByLoss`). The candidates' losses are counted as messages
            of one number, and a server's model as sent to the candidates that are not chosen; the
            algorithm sends it to those that are.

        Raises:
          TypeError: a rule that goes by losses, without a model.
        """
        if self.invited is not None:
            return self.invited
        key = self.key("participation")
        if not isinstance(selector, ByLoss):
            return selector.choose(key, self.available, self.network, self.number)
        if model is None:
            raise TypeError(
                f"{type(selector).__name__} chooses by losses: pass the model whose losses are "
                "compared, now.choose(selector, model)."
            )
        samples = jnp.sum(jnp.asarray(self.problem.weights) > 0, axis=1, dtype=jnp.int32)
        asked = selector.ask(key, self.available, samples)
        each = model if model.ndim == 1 else asked.take(model)
        each = jnp.broadcast_to(each, (len(asked.here), model.shape[-1]))
        losses = asked.of(self.problem).unweighted().objective(each)
        told = self.link.tell(losses, asked.here)
        who = selector.chosen(jax.random.fold_in(key, 1), asked, told, asked.take(samples))
        if model.ndim == 1:
            nobody = jnp.zeros_like(self.available)
            first = asked.put(nobody, asked.here) & ~who.put(nobody, who.here)
            self.link.publish(model, first)
        return who

    def witness(self, gradient_norm: Float[Array, " some"]) -> None:
        """Record the largest norms of the per-sample loss gradients of the step, for the bound that
        a privacy budget assumes; several calls are combined.

        Args:
          gradient_norm: of each client, or of some.
        """
        most = jnp.max(gradient_norm)
        self.witnessed = most if self.witnessed is None else jnp.maximum(self.witnessed, most)
