"""The view of a round: everything that a step of an algorithm can observe and do."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax.algorithms.network_states import NetworkStates, States
from fljax.clock.arrivals import ArrivalClock
from fljax.clock.round_clock import RoundClock
from fljax.link import Link
from fljax.participation.selectors import ByLoss, Participants, Selector
from fljax.problems import Problem
from fljax.problems.gradient_norms import GradientNormBound
from fljax.problems.problem import value_of

#: Folded into the key of training for personal models: larger than any number of trainings.
PERSONAL = 2**31 - 1


class Round:
    """The round that is passed to :meth:`Algorithm.step`.

    :func:`fljax.view` returns one for a simulation, for interactive use or tests.

    Attributes:
      number: 1, 2, ..., possibly traced.
      problem: the data of the clients: all of it, or a stream's data of this round.
      network: the graph or federation of this round; ``None`` where one server has all clients.
      link: the link over which every message is sent.
      changing: whether the network changes from round to round.
      networks: the states of clients' networks, and their random numbers in training.
      personal_networks: the same for clients' personal models.
      witnessed: the largest norm of a per-sample gradient that the step has reported.
      last_norms: such norms at earlier models, by which passes over the samples are avoided.
      largest_norm: the largest of them so far in the run.
      clock: what the clock says of this round; ``None`` without one.
      invited: the participants and the rule by which they were chosen, where this was before the
        round, since their data had to be read first.
    """

    def __init__(
        self,
        number: Array | int,
        problem: Problem,
        network: Any,
        link: Link,
        changing: bool = False,
        states: States = States((), ()),  # noqa: B008 (immutable)
    ) -> None:
        self.number = jnp.asarray(number, jnp.int32)
        self.problem = problem
        self.network = network
        self.link = link
        self.changing = changing
        key = link.key("training")
        self.networks = NetworkStates(problem, problem.state_policy, key, states.common)
        personal_key = jax.random.fold_in(key, PERSONAL)
        self.personal_networks = NetworkStates(problem, "kept", personal_key, states.personal)
        self.witnessed: Array | None = None
        self.last_norms: GradientNormBound | None = None
        self.largest_norm: Array | None = None
        self.invited: tuple[Selector, Participants] | None = None
        self.clock: RoundClock | ArrivalClock | None = None

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
            algorithm sends it to the chosen ones.

        Raises:
          TypeError: a rule that goes by losses, without a model.
        """
        if self.clock is None:
            return self._choose(selector, model)
        key = self.key("participation")
        participants = self.clock.choose(key, self.available, self.problem, model)
        if participants is None:
            participants = self._choose(selector, model)
        here = jax.lax.optimization_barrier(participants.here)  # the step's sums stay the same
        self.clock.invite(participants._replace(here=here))
        self.link.in_time = self.clock.in_time
        if self.clock.wants_losses:
            utilities = self._utilities(participants, model)
            self.clock.remember(participants, self.link.tell(utilities, participants.here))
        return participants

    def _utilities(self, participants: Participants, model: Any) -> Float[Array, " chosen"]:
        """Of each participant its number of samples times the root of the mean square of their
        losses, at the model that it starts from.
        """
        if model is None:
            raise TypeError(
                "the clock chooses by losses: pass the model that participants start from, "
                "now.choose(selector, model)."
            )
        models = model if model.ndim == 1 else participants.take(model)
        models = jnp.broadcast_to(models, (len(participants.here), model.shape[-1]))
        problem = participants.of(self.problem).unweighted()
        samples = jnp.sum(jnp.asarray(problem.weights) > 0, axis=1, dtype=models.dtype)

        def square(loss: Any, prediction: Array, target: Array) -> Array:
            return value_of(loss, prediction, target) ** 2

        return samples * jnp.sqrt(problem.scores(models, square))

    def _choose(self, selector: Selector, model: Any) -> Participants:
        """The participants whom the selector chooses."""
        if self.invited is not None:
            rule, participants = self.invited
            if jax.tree.structure(rule) != jax.tree.structure(selector):
                raise ValueError(
                    f"the step chooses by {selector!r} besides {rule!r}, by which the participants "
                    "were chosen whose data were read; take clients in memory "
                    "(fljax.problems.Model.from_clients)."
                )
            return participants
        key = self.key("participation")
        if not isinstance(selector, ByLoss):
            return selector.choose(key, self.available, self.network, self.number)
        if model is None:
            raise TypeError(
                f"{type(selector).__name__} chooses by losses: pass the model whose losses are "
                "compared, now.choose(selector, model)."
            )
        samples = jnp.sum(jnp.asarray(self.problem.weights) > 0, axis=1, dtype=jnp.int32)
        candidates = selector.ask(key, self.available, samples)
        models = model if model.ndim == 1 else candidates.take(model)
        models = jnp.broadcast_to(models, (len(candidates.here), model.shape[-1]))
        losses = candidates.of(self.problem).unweighted().objective(models)
        reported = self.link.tell(losses, candidates.here)
        participants = selector.chosen(
            jax.random.fold_in(key, 1), candidates, reported, candidates.take(samples)
        )
        if model.ndim == 1:
            none = jnp.zeros_like(self.available)
            newly_sent = candidates.put(none, candidates.here) & ~participants.put(
                none, participants.here
            )
            self.link.publish(model, newly_sent)
        return participants

    def witness(self, gradient_norm: Float[Array, " some"]) -> None:
        """Record the largest norms of the per-sample loss gradients of the step, for the bound that
        a privacy budget assumes; several calls are combined.

        Args:
          gradient_norm: of each client, or of some.
        """
        most = jnp.max(gradient_norm)
        self.witnessed = most if self.witnessed is None else jnp.maximum(self.witnessed, most)

    def witness_at(
        self, model: Float[Array, "clients dim"], problem: Problem | None = None
    ) -> None:
        """The same of all clients' samples at these models, by a pass over the samples only if a
        gradient may be larger than any that the run has met.

        Args:
          model: of each client.
          problem: the samples, if they are not all of the round's.
        """
        problem = self.problem if problem is None else problem
        if self.last_norms is None or self.witnessed is not None or problem is not self.problem:
            self.witness(problem.sample_gradient_norm(model))
            return
        assert self.largest_norm is not None
        self.last_norms = self.last_norms.moved(problem, model, self.largest_norm)
        self.witness(self.last_norms.norms)
