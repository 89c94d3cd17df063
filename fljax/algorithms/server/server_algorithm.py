"""Base classes of federated averaging and its variants: local steps at participants of a server."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core import checks
from fljax._core.cohort_rows import Rows
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs
from fljax.algorithms.local_steps import (
    Direction,
    Learned,
    along_gradient,
    check_full,
    counts_of,
    draw_batches,
    learn,
    whole_model,
)
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.link import Arrived
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer, as_step, check_optimizer
from fljax.optimization.schedules import Schedule
from fljax.participation.selectors import Drawn, Participants, Selector, everyone_or
from fljax.problems import Problem
from fljax.problems.batches import (
    Batch,
    Batches,
    Counts,
    Shuffled,
    check_per_client,
    per_client,
)
from fljax.problems.streams import Stream

#: Weights that clients may have instead of the problem's.
WEIGHTINGS = ("samples", "equal")


#: Needs of a server that uses its participants' messages only through one sum.
SUMMED = Needs(None, absent=True, late=True, averages=True, masked=True, trains=True)

#: The same if the messages are models, or updates of the server's model: a step size times a
#: gradient.
AVERAGED = dataclasses.replace(SUMMED, uploads=("models", "updates"))

#: The same if a trusted server may perturb the sum, and steps may be on streaming data.
AVERAGED_PRIVATELY = dataclasses.replace(AVERAGED, data="any", privacy=("server",))

#: The same if participants may start from older models, on a clock of single arrivals.
AVERAGED_AT_ARRIVAL = dataclasses.replace(AVERAGED, asynchronous=True)

#: The same under a trusted server.
PRIVATELY_AT_ARRIVAL = dataclasses.replace(AVERAGED_PRIVATELY, asynchronous=True)

#: What a trusted server may average, of fixed data with classes, whose logits the steps read.
OF_CLASSES = dataclasses.replace(AVERAGED_PRIVATELY, data="fixed", classes=True)


class Cohort(NamedTuple):
    """The participants of a round and the batches of their steps."""

    participants: Participants
    counts: Int[Array, " chosen"]  # local steps of each
    weights: Float[Array, " chosen"] | None  # of each at the server; None: equal ones
    batch: Batch | None  # None: all samples in every step; an axis of several draws comes first
    longest: int  # steps of the client that takes most
    #: [M]  the counts, if local_steps are given; None with epochs, whose empty batches do not count
    limit: Int[Array, " chosen"] | None

    @property
    def active(self) -> Array:
        """Which of the rows participate, ``[M]``."""
        return self.participants.here

    def over_sets(self, first: int, count: int) -> "Cohort":
        """The cohort in a longer training: over several of its sets of batches, the draws of
        :meth:`LocalLearning.invite`, one set after the other.
        """
        longest = count * self.longest
        limit = None if self.limit is None else count * self.limit
        if self.batch is None:
            return self._replace(longest=longest, limit=limit)
        steps = jnp.arange(longest, dtype=jnp.int32)[None]
        # The batches of a client's next set follow its own last batch, before the empty ones.
        if self.limit is not None:
            set_steps = jnp.maximum(self.limit, 1)[:, None]
            steps = jnp.minimum(steps // set_steps * self.longest + steps % set_steps, longest - 1)

        def in_a_row(sets: Array) -> Array:  # [draws, M, steps, samples]
            rows = jnp.moveaxis(sets[first : first + count], 0, 1)
            rows = rows.reshape(len(rows), longest, -1)
            return rows if self.limit is None else jnp.take_along_axis(rows, steps[..., None], 1)

        return self._replace(batch=jax.tree.map(in_a_row, self.batch), longest=longest, limit=limit)


@module
class LocalLearning(Algorithm):
    r"""Base class: a server invites participants, which take local steps and reply.

    A round of a subclass is: :meth:`invite`, publish the participants' inputs, :meth:`learn`,
    :meth:`collect`. Its own parameters are keyword arguments (``dataclasses.field(kw_only=True)``);
    its ``validate`` and ``check`` first call the methods of this class.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0; or a local optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own), which is initialized in every
        round.
      clients_per_round: number of participants, drawn uniformly without replacement; all clients by
        default.
      epochs: passes of a participant over its samples per round, >= 1.
      batch: samples per step; all of a client's by default.
      drop_last: whether the smaller last batch of an epoch is left out.
      selector: another :class:`~fljax.participation.Selector` instead of ``clients_per_round``.
      batches: another distribution of the batches (:mod:`fljax.batches`) instead of ``batch``.
      local_steps: gradient steps of a participant, one number or one per client, instead of
        ``epochs``.

    Raises:
      ValueError: more participants than clients, a batch larger than every client's data, a
        selector in addition to ``clients_per_round``, ``batches`` in addition to ``batch``,
        ``local_steps`` in addition to ``epochs``, ``batches`` without ``local_steps``,
        ``drop_last`` without ``batch``; a network that is normalized by batches, and batches of
        different sizes.
    """

    step_size: Schedule | Optimizer = field(converter=as_step)
    clients_per_round: int | None = static(default=None)
    epochs: int = static(default=1)
    batch: int | None = static(default=None)
    selector: Selector | None = None
    batches: Batches | None = None
    local_steps: Counts | None = field(
        converter=partial(per_client, "local_steps"), static=True, default=None
    )
    drop_last: bool = static(default=False, kw_only=True)

    def validate(self) -> None:
        for name in ("clients_per_round", "epochs", "batch"):
            if name == "epochs" or getattr(self, name) is not None:
                checks.count(name, getattr(self, name))
        if self.local_steps is not None and self.epochs != 1:
            raise ValueError(
                "local_steps and epochs both set the length of local training; leave out one."
            )
        if self.drop_last and self.batch is None:
            raise ValueError(
                "drop_last=True is of batches of an epoch; give batch=, or leave it out."
            )
        if self.batches is not None:
            if self.batch is not None:
                raise ValueError("batches and batch both set the samples of a step; leave out one.")
            if self.local_steps is None:
                raise ValueError(
                    "batches= is a distribution of batches, which has no epochs; give local_steps."
                )
        if self.selector is not None and self.clients_per_round is not None:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} and a selector both choose the "
                "participants; leave out one."
            )

    def check(self, problem: Problem | Stream, network: Network) -> None:
        self.selection.check(problem.clients, network)
        check_per_client("local_steps", self.local_steps, problem.clients)
        if (scheme := self._batch_scheme) is not None:
            scheme.check(problem)
        if problem.mixes_samples:
            check_full(scheme, cast(Problem, problem))
        check_optimizer(self.step_size, problem.layout)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.selector or everyone_or(Drawn, self.clients_per_round)

    @property
    def _batch_scheme(self) -> Batches | None:
        return self.batches if self.batch is None else self._epochs

    @property
    def _epochs(self) -> Shuffled:
        assert self.batch is not None
        return Shuffled(self.batch, self.drop_last)

    def local_problem(self, problem: Problem) -> Problem:
        """Return the problem that each client minimizes in its steps."""
        return problem

    def server_weights(self, problem: Problem) -> Float[Array, " clients"] | None:
        """Return each client's weight in the server's aggregation; ``None`` for equal weights."""
        return None

    def invite(
        self,
        now: Round,
        model: Array | Rows | None = None,
        draws: int | None = None,
    ) -> Cohort:
        """Choose the participants of this round and draw the batches of all their steps.

        Args:
          now: the round.
          model: the server's model, or the clients' models, for a selector that goes by losses.
          draws: the number of sets of batches where a step uses several.
        """
        problem = now.problem
        participants = now.choose(self.selection, model)
        counts = self._steps(participants, participants.take(problem.weights) > 0)
        longest = self._longest(problem.samples)
        weights = self.server_weights(problem)
        if participants.weights is not None:
            equal = jnp.ones(problem.clients, problem.dtype)
            weights = participants.unbiased(now.available, equal if weights is None else weights)
        elif weights is not None:
            weights = participants.take(weights)
        batch = draw_batches(self._batch_scheme, now, participants, longest, draws)
        # Epochs end with a client's last batch: steps on the empty batches after it do not count.
        limit = None if self.local_steps is None else counts
        in_time = None if now.clock is None else now.clock.limited(participants, counts)
        if in_time is not None:
            counts = limit = in_time
        return Cohort(participants, counts, weights, batch, longest, limit)

    def learn(
        self,
        now: Round,
        cohort: Cohort,
        start: Float[Array, "*chosen numbers"],
        *,
        batch: PyTree = None,
        step: Array | Optimizer | None = None,
        direction: Direction = along_gradient,
        context: PyTree = (),
        per_step: PyTree = None,
        memory: PyTree = None,
        layouts: Sequence[Layout] | None = None,
        whole: Callable[[Array, PyTree], Array] = whole_model,
    ) -> Learned:
        """Return the participants' models after their steps from a common model, or from one each.

        Args:
          now: the round.
          cohort: the participants and their batches.
          start: the initial model, ``[D]`` or ``[M, D]``, or other variables that ``direction``
            updates.
          batch: the batch of each step, or several, instead of the cohort's.
          step: another step size, one number or ``[M]``, instead of this round's; or another
            optimizer.
          direction: the vector whose negative is the direction of a step, the gradient by default.
          context: arrays ``[M, ...]`` of each participant that ``direction`` takes.
          per_step: arrays ``[M, steps, ...]`` that ``direction`` takes in addition, one slice per
            step; it then receives the pair of both.
          memory: arrays ``[M, ...]``, the optimizer's state; by default a newly initialized one.
          layouts: of the parameters in the variables, as in
            :func:`~fljax.algorithms.local_steps.learn`.
          whole: the model of the variables and the context, as there.
        """
        common = start
        start = jnp.broadcast_to(start, (len(cohort.active), start.shape[-1]))
        if step is None:
            step = (
                self.step_size if isinstance(self.step_size, Optimizer) else self.size(now.number)
            )
        learned = learn(
            self.local_problem(now.problem),
            cohort.participants,
            start,
            step,
            cohort.longest,
            cohort.batch if batch is None else batch,
            cohort.limit,
            direction=direction,
            context=context,
            per_step=per_step,
            memory=memory,
            layouts=layouts,
            training=now.networks.of(cohort.participants),
            whole=whole,
        )
        now.networks.trained(cohort.participants, cohort.weights, learned.state)
        if common.shape == (now.problem.dim,):
            moved = jnp.sum((learned.model - common[None]) ** 2, axis=1)
            at = jnp.where(cohort.active, cohort.participants.numbers, now.problem.clients)
            missing = jnp.full(now.problem.clients, jnp.nan, moved.dtype)
            now.link.drift = missing.at[at].set(moved, mode="drop")
        return learned

    def starts(
        self, now: Round, server: Float[Array, " dim"]
    ) -> Float[Array, " dim"] | Float[Array, "chosen dim"]:
        """Return the models that the participants start from: the server's, or, on a clock of
        single arrivals, the one that was sent to each.
        """
        started = None if now.clock is None else now.clock.started
        return server if started is None else started

    def as_updates(
        self,
        models: Float[Array, "chosen dim"],
        start: Float[Array, " dim"] | Float[Array, "chosen dim"],
        server: Float[Array, " dim"],
    ) -> Float[Array, "chosen dim"]:
        """Return the server's model moved by each participant's update, the difference of its model
        from its start (:meth:`starts`): its model, if it started from the server's.
        """
        return models if start is server else server[None] + (models - start)

    def collect(
        self,
        now: Round,
        cohort: Cohort,
        messages: Float[Array, "chosen numbers"],
        reference: Float[Array, " numbers"],
        *,
        weights: Float[Array, " chosen"] | None = None,
        discount: Any = 1.0,
        numbers: Int[Array, " chosen"] | None = None,
    ) -> Arrived:
        """Return what arrives at the server, weighted as in the cohort unless ``weights`` are
        given.

        Args:
          now: the round.
          cohort: the participants that send the messages.
          messages: ``[M, numbers]``, such as models; several quantities form one message.
          reference: a point that both ends know: the server's model, or zero for messages that are
            not models.
          weights: ``[M]``, other weights than the cohort's.
          discount: the discount of late messages, as in :meth:`~fljax.link.Link.collect`.
          numbers: ``[M]``, how many numbers each message has, as in that method.
        """
        factors = None
        staleness = None if now.clock is None else now.clock.staleness
        if staleness is not None:
            if getattr(discount, "of", "versions") == "seconds":
                late = staleness.seconds.astype(now.problem.dtype)
            else:
                late = staleness.versions.astype(now.problem.dtype)
            factors = cast(Array, discount(late) if callable(discount) else discount**late)
            discount = 1.0
        # With unequal probabilities the weights are shares of the sum over all clients.
        unequal = cohort.weights is not None and cohort.participants.weights is not None
        return now.link.collect(
            messages,
            cohort.active,
            reference,
            weights=cohort.weights if weights is None else weights,
            normalized=weights is not None or not unequal,
            discount=discount,
            clients=cohort.participants.numbers,
            step_size=None if self._optimizes else self.size(now.number),
            numbers=numbers,
            factors=factors,
        )

    def messages_arrived(self, now: Round, cohort: Cohort) -> Bool[Array, " chosen"]:
        """Return whether each participant's message of this round (:meth:`~fljax.link.Link.send`)
        arrived, for servers that use messages individually.
        """
        return now.link.arrived(cohort.participants)

    @property
    def _optimizes(self) -> bool:
        return isinstance(self.step_size, Optimizer)

    def size(self, round: Array) -> Array:
        """Return the step size of a round, if steps have one and are not an optimizer's."""
        assert not isinstance(self.step_size, Optimizer)
        return self.step_size(round)

    def work(self, problem: Any) -> tuple[Int[Array, " clients"], Int[Array, " clients"]]:
        real = jnp.asarray(problem.weights) > 0
        samples = jnp.sum(real, axis=1, dtype=jnp.int32)
        steps = self._steps(Participants(None, jnp.ones(len(samples), bool)), real)
        if self._batch_scheme is None:
            return steps, steps * samples
        if self.local_steps is None and not self.drop_last:
            return steps, self.epochs * samples
        size = self.batch if self.batches is None else getattr(self.batches, "size", None)
        batch = samples if size is None else jnp.minimum(jnp.asarray(size, jnp.int32), samples)
        return steps, steps * batch

    def gradients_with(
        self, passes: int, problem: Any, per_step: Float[Array, "*clients"] | float = 1.0
    ) -> Float[Array, " clients"]:
        """Return :meth:`gradients_per_step` of steps with this number of gradients, in a round with
        further passes over all samples.
        """
        everything = jnp.sum(jnp.asarray(problem.weights) > 0, axis=1).astype(problem.dtype)
        of_steps = self.work(problem)[1].astype(problem.dtype)
        return per_step + passes * everything / jnp.maximum(of_steps, 1)

    def _longest(self, samples: int) -> int:
        """Return the number of steps of the client that takes the most."""
        if self.local_steps is not None:
            return int(np.max(self.local_steps))
        return self.epochs * (1 if self.batch is None else self._epochs.steps(samples))

    def _steps(self, participants: Participants, real: Array) -> Int[Array, " chosen"]:
        """Return the number of steps of each participant."""
        if self.local_steps is not None:
            return counts_of(self.local_steps, participants)
        samples = jnp.sum(real, axis=1, dtype=jnp.int32)
        if self.batch is None:
            return jnp.full_like(samples, self.epochs)
        counted = samples if self.drop_last else samples + self.batch - 1
        return self.epochs * (counted // self.batch)


@module
class Averaging(LocalLearning):
    r"""Local learning on clients' own mean losses with a weighted average at the server.

    .. math:: w=\frac{\sum_{k\in S}q_kw_k}{\sum_{k\in S}q_k}

    The weights are the problem's, whose objective is then minimized: one each by default, or
    as set by :meth:`~fljax.problems.Problem.weighing`, with ``"samples"`` the
    :math:`q_k\propto D_k` of McMahan et al. 2017. With other weights it minimizes another objective
    than the one that error metrics refer to, and a study with such metrics warns.

    Args:
      weighting: ``"samples"`` or ``"equal"``, instead of the problem's weights.

    For the other arguments see :class:`LocalLearning`.

    Raises:
      ValueError: as for :class:`LocalLearning`; another weighting.

    Example:
      A server of your own, with Nesterov's momentum:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> from typing import NamedTuple
      >>> class State(NamedTuple):
      ...     model: jax.Array  # [D]  the server's model
      ...     momentum: jax.Array  # [D]
      >>> @fl.module
      ... class Nesterov(fl.algorithms.Averaging):
      ...     decay: float = fl.field(default=0.9, kw_only=True)
      ...     needs = fl.algorithms.Needs(None, absent=True, averages=True, trains=True)
      ...
      ...     def init(self, problem, network):
      ...         start = fl.algorithms.server_start(problem)
      ...         return State(start, jnp.zeros_like(start))
      ...
      ...     def step(self, state, now):
      ...         change, arrived = self.change(state.model, now)
      ...         momentum = self.decay * state.momentum + change
      ...         moved = State(state.model + change + self.decay * momentum, momentum)
      ...         return jax.tree.map(lambda new, old: jnp.where(arrived, new, old), moved, state)
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(problem, Nesterov(0.01, epochs=2), metrics="normalized_error")
      >>> bool(fl.run(simulation, rounds=100).normalized_error[-1] < 0.01)
      True
    """

    weighting: str | None = static(default=None, kw_only=True)

    def validate(self) -> None:
        super().validate()
        if self.weighting is not None:
            checks.choice("weighting", self.weighting, WEIGHTINGS)

    def weights(self, problem: Any) -> Float[Array, " clients"] | None:
        if self.weighting == "samples":
            return problem.sample_counts().astype(problem.dtype)
        return None if self.weighting == "equal" else super().weights(problem)

    def local_problem(self, problem: Problem) -> Problem:
        return problem.unweighted()

    def server_weights(self, problem: Problem) -> Float[Array, " clients"] | None:
        return self.weights(problem)

    def change(
        self, model: Float[Array, " dim"], now: Round
    ) -> tuple[Float[Array, " dim"], Bool[Array, ""]]:
        r"""One round of averaging from the server's model.

        Args:
          model: the server's model, which participants start from.
          now: the round.

        Returns:
          :math:`\Delta`, the weighted mean of the participants' models minus the server's, zero if
          no message arrives; and whether one arrived.
        """
        cohort = self.invite(now, model)
        server = now.link.publish(model, cohort.active)
        start = self.starts(now, server)
        learned = self.learn(now, cohort, start)
        models = self.as_updates(learned.model, start, server)
        arrived = self.collect(now, cohort, models, server)
        return arrived.move(server) - server, arrived.any

    def shares(
        self, cohort: Cohort, arrived: Bool[Array, " chosen"], dtype: DTypeLike
    ) -> Float[Array, " chosen"]:
        """Return each participant's share in the server's mean: the server's model moves by the sum
        of the differences of theirs from it, each times its share.
        """
        weights = arrived.astype(dtype)
        weights = weights if cohort.weights is None else weights * cohort.weights
        if cohort.participants.weights is not None:  # they are shares of all clients already
            return weights
        total = jnp.sum(weights)
        return weights / jnp.where(total > 0, total, 1)


@module
class Corrected(LocalLearning):
    """Local learning with a drift correction at each client.

    All participants have equal weights at the server, however they are drawn, because it keeps the
    mean of all clients' corrections, not only of the participants'. If the problem has weights
    (:meth:`~fljax.problems.Problem.weighing`), each client descends along its mean loss multiplied
    by its weight.

    Args and Raises: as for :class:`LocalLearning`.
    """

    def invite(
        self,
        now: Round,
        model: Array | Rows | None = None,
        draws: int | None = None,
    ) -> Cohort:
        return super().invite(now, model, draws)._replace(weights=None)


def check_no_optimizer(algorithm: LocalLearning) -> None:
    """Raise ``ValueError`` if the step size is an optimizer: the algorithm divides by it."""
    if isinstance(algorithm.step_size, Optimizer):
        raise ValueError(
            f"{type(algorithm).label} needs the size of its clients' steps, which an optimizer "
            "does not have; give step_size a number or a schedule."
        )
