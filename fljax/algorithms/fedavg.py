r"""Federated averaging: a few clients a round, local epochs in batches (McMahan et al. 2017)."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import counts_of, drawn, learn
from fljax.batches import Batches, Shuffled, check_per_client, per_client
from fljax.participation import Drawn, Participants, Selector, everyone_or
from fljax.privacy import CentralGaussian
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import StepSize, as_schedule
from fljax.streams import Stream

__all__ = ["FedAvg", "State"]

#: How the server weighs the models it hears.
WEIGHTINGS = ("samples", "equal")


class State(NamedTuple):
    """What FedAvg keeps from round to round."""

    model: Array  # [D]  the server's w


@algorithm(
    "FedAvg",
    "mcmahan2017",
    Needs(
        None,
        data="any",
        privacy=(CentralGaussian,),
        absent=True,
        late=True,
        averages=True,
        uploads=("models", "updates"),
        masked=True,
    ),
)
@module
class FedAvg(Algorithm):
    r"""Local stochastic gradient descent from the server's model, then a weighted average.

    In round :math:`n` the server draws a set :math:`S` of clients uniformly without replacement.
    Each of them starts from :math:`w^{(n-1)}`, cuts its samples, newly shuffled in every epoch,
    into batches and descends along the mean gradient of one after the other:

    .. math::

        w_k \leftarrow w_k-\mu\Big(\frac1{|b|}\sum_{j\in b}\ell'(x_{k,j},y_{k,j};w_k)
            +\frac\lambda K R'(w_k)\Big),\qquad
        w^{(n)} = \sum_{k\in S}\frac{D_k}{\sum_{l\in S}D_l}w_k

    A client's last batch is the smaller one where ``batch`` does not divide :math:`D_k`; a client
    with fewer batches than another is done earlier. Another law of ``batches`` draws each of
    :math:`E_k` steps' anew; ``normalised``, a step is :math:`\mu/E_k` long, and a client's update
    its mean gradient however many steps it took (Rizk 2023, (1.30), where the original's optimum
    depends on who takes how many). A drawn client that is not available neither
    receives nor sends; with delays, the average is over the models that arrive in the round. Under
    unequal chances :math:`p_k` a model's weight is divided by :math:`Kp_k`: where the chances are
    the shares of the samples, all models that arrive count alike.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      clients_per_round: :math:`|S|`; all clients by default.
      epochs: passes of a participant over its samples a round, >= 1.
      batch: samples a step; all of a client's by default.
      weighting: ``"samples"`` as above, or ``"equal"``, for the objective of this library, in
        which each client's mean counts alike.
      scheduler: another :class:`~fljax.participation.Selector` in the place of
        ``clients_per_round``: clients drawn with unequal chances, each by chance, in turns.
      batches: another law of the batches (:mod:`fljax.batches`) in the place of ``batch``.
      local_steps: :math:`E_k`, gradient steps of a participant, one number or one of each client,
        in the place of ``epochs``. Of shuffled batches (``batch``) those of nothing, where a client
        waits for one with more of them, count; other laws have none.
      normalised: whether steps are divided by a client's number of them.

    Raises:
      ValueError: more participants than clients, a batch larger than every client, a scheduler
        beside ``clients_per_round``, ``batches`` beside ``batch``, ``local_steps`` beside
        ``epochs``, a law of batches without ``local_steps``.

    Reference:
      McMahan et al. 2017, Algorithm 1; Rizk 2023, (1.26)-(1.31).
    """

    step_size: StepSize
    clients_per_round: int | None = static(default=None)
    epochs: int = static(default=1)
    batch: int | None = static(default=None)
    weighting: str = static(default="samples")
    scheduler: Selector | None = None
    batches: Batches | None = None
    local_steps: Any = static(default=None)
    normalised: bool = static(default=False)

    def validate(self) -> None:
        for name in ("clients_per_round", "epochs", "batch"):
            if name == "epochs" or getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        if self.local_steps is not None:
            object.__setattr__(self, "local_steps", per_client("local_steps", self.local_steps))
            if self.epochs != 1:
                raise ValueError("local_steps and epochs both say how long; leave out one.")
        if self.batches is not None:
            if self.batch is not None:
                raise ValueError("batches and batch both say what a step is on; leave out one.")
            if self.local_steps is None:
                raise ValueError("a law of batches has no epochs; give local_steps.")
        _check.choice("weighting", self.weighting, WEIGHTINGS)
        object.__setattr__(self, "step_size", as_schedule(self.step_size))
        if self.scheduler is not None and self.clients_per_round is not None:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} and a scheduler both say who takes "
                "part; leave out one."
            )

    @property
    def selector(self) -> Selector:
        """Who takes part."""
        return self.scheduler or everyone_or(Drawn, self.clients_per_round)

    def init(self, problem: Problem | Stream, network: Any) -> State:
        self.selector.check(problem.clients)
        check_per_client("local_steps", self.local_steps, problem.clients)
        if (law := self._law) is not None:
            law.check(problem)
        return State(server_start(problem))

    @property
    def _law(self) -> Batches | None:
        return self.batches if self.batch is None else Shuffled(self.batch)

    def step(self, state: State, now: Round) -> State:
        problem, link, step_size = now.problem, now.link, self.step_size(now.number)
        who = now.choose(self.selector)
        real = who.take(jnp.asarray(problem.weights)) > 0
        server = link.publish(state.model, who.here)
        counts = self._steps(who, real)
        length = step_size / counts.astype(problem.dtype) if self.normalised else step_size
        longest = self._longest(problem.samples)
        batch = drawn(self._law, now, who, longest)
        start = jnp.broadcast_to(server, (len(who.here), problem.dim))
        # In epochs a client is done when its batches are: those of nothing among them are no steps.
        own = None if self.local_steps is None else counts
        model, norm = learn(problem, who, start, length, longest, batch, own)

        share = None
        if self.weighting == "samples":
            share = jnp.sum(real, axis=1, dtype=problem.dtype)
        if who.weights is not None:
            share = (1 if share is None else share) * who.weights.astype(problem.dtype)
        now.witness(norm)
        arrived = link.collect(
            lambda rows: model[rows],
            who.here,
            server,
            weights=share,
            clients=who.numbers,
            step_size=step_size,
        )
        return State(arrived.move(server))

    def _longest(self, samples: int) -> int:
        """Steps of the client that takes most."""
        if self.local_steps is not None:
            return int(np.max(self.local_steps))
        return self.epochs * (1 if self.batch is None else Shuffled(self.batch).steps(samples))

    def _steps(self, who: Participants, real: Array) -> Int[Array, " chosen"]:
        """Of each participant."""
        if self.local_steps is not None:
            return counts_of(self.local_steps, who)
        own = jnp.sum(real, axis=1, dtype=jnp.int32)
        batches = jnp.ones_like(own) if self.batch is None else -(-own // self.batch)
        return self.epochs * batches

    def released(self, state: State, problem: Problem | Stream, network: Any) -> Array:
        """The server's model."""
        return state.model
