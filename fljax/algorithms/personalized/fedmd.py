r"""FedMD: clients with different networks learn from the mean of their predictions."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.public_points import (
    at_points,
    check_points,
    checked_points,
    passes_over,
    stepping,
)
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Cohort, LocalLearning
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import Optimizer, as_step, check_optimizer
from fljax.optimization.schedules import Schedule
from fljax.problems import Problem, Reading
from fljax.problems.streams import Stream

#: Distances of predictions from the consensus.
DISTANCES = ("absolute", "squared")


def _as_step_or_none(value: object) -> Schedule | Optimizer | None:
    return None if value is None else as_step(value)  # pyright: ignore[reportArgumentType]


class FedMDState(NamedTuple):
    """State of the clients between rounds."""

    model: Array  # [K, D]  w_k


@algorithm(
    "FedMD",
    "li2019fedmd",
    Needs(None, absent=True, averages=True, masked=True, trains=True, networks="any"),
)
@module
class FedMD(LocalLearning):
    r"""Clients with networks of their own imitate the mean of all predictions of public samples.

    In round :math:`n` the server draws :math:`R'` of the public samples. Each participant computes
    its predictions (logits) of them; the server averages these to a consensus

    .. math:: \tilde h(x_j)=\frac1{|S|}\sum_{k\in S}h_k(x_j;w_k)

    and sends it back. A participant first digests it, by steps along the gradient of the mean
    distance of its predictions from the consensus, :math:`\|h_k(x_j;w_k)-\tilde h(x_j)\|_1/C`; then
    it revisits its own samples by local steps. No parameters are sent: clients may have different
    networks (:func:`fljax.models.several`). Metrics evaluate the clients' own models.

    The paper begins with training on the public samples and on the client's own until convergence:
    begin there by :meth:`problem.starting_at <fljax.problems.Model.starting_at>`. It does not say
    the distance; the default is that of the authors' code.

    Args:
      step_size: :math:`\mu` of the local steps, as in
        :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`, which also has the other
        arguments.
      public: ``[R, ...]``, samples like the clients', without labels.
      public_samples: :math:`R'`, drawn in each round; all by default.
      digest_step_size: of the steps on public samples, or an optimizer; as ``step_size`` by
        default.
      digest_epochs: passes over the round's public samples, >= 1.
      digest_batch: public samples in a step; all of the round's by default.
      distance: ``"absolute"`` or ``"squared"``.

    Raises:
      ValueError: public samples of another shape than the clients', more per round or step than
        there are; another distance; networks that are normalized by batches.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.several([fl.models.mlp(3, hidden=[16]), fl.models.mlp(3, hidden=[])])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> simulation = fl.Simulation(
      ...     problem=problem.assigning([0, 0, 1, 1]),
      ...     algorithm=fl.algorithms.FedMD(
      ...         0.1, epochs=5, public=jax.random.normal(jax.random.key(2), (30, 6))
      ...     ),
      ... )
      >>> run = fl.run(simulation, rounds=10)
      >>> int(run.bits_up[-1]) == 10 * 4 * 30 * 3 * 32  # rounds, clients, samples, classes, bits
      True

    Reference:
      Li and Wang 2019, Algorithm 1.
    """

    public: Annotated[Array, "points ..."] = field(converter=as_given, kw_only=True)
    public_samples: int | None = static(default=None, kw_only=True)
    digest_step_size: Schedule | Optimizer | None = field(
        converter=_as_step_or_none, default=None, kw_only=True
    )
    digest_epochs: int = static(default=1, kw_only=True)
    digest_batch: int | None = static(default=None, kw_only=True)
    distance: str = static(default="absolute", kw_only=True)

    def validate(self) -> None:
        super().validate()
        object.__setattr__(self, "public", checked_points(self.public))
        checks.count("digest_epochs", self.digest_epochs)
        checks.choice("distance", self.distance, DISTANCES)
        for name, most in (("public_samples", len(self.public)), ("digest_batch", self._count)):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), at_most=most)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        check_points(self.public, problem)
        check_optimizer(self.digest_step_size, problem.layout)

    def message_size_of(self, problem: Problem) -> int:
        return self._count * _outputs(problem)

    @property
    def _count(self) -> int:
        """The number of public samples in a round."""
        return len(self.public) if self.public_samples is None else self.public_samples

    def gradients_per_step(self, problem: Any) -> Float[Array, " clients"]:
        samples = self.work(problem)[1].astype(problem.dtype)
        return 1 + self.digest_epochs * self._count / jnp.maximum(samples, 1)

    def init(self, problem: Problem, network: Network) -> FedMDState:
        return FedMDState(start_models(problem))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def step(self, state: FedMDState, now: Round) -> FedMDState:
        cohort = self.invite(now)
        draw_key, digest_key = jax.random.split(now.key("algorithm"))
        points = jnp.asarray(self.public)
        if self.public_samples is not None:
            points = points[jax.random.permutation(draw_key, len(points))[: self._count]]
        part = cohort.participants.of(now.problem)
        model = cohort.participants.take(state.model)
        scores = self._predicted(part, model, points)
        message = scores.reshape(len(scores), -1)
        nothing = jnp.zeros_like(message[0])
        arrived = self.collect(now, cohort, message, nothing)
        consensus = now.link.publish(arrived.move(nothing), cohort.active)
        consensus = consensus.reshape(scores.shape[1:])
        digested = self._digest(now, cohort, part, model, points, consensus, digest_key)
        model = select_rows(arrived.any, digested, model)
        learned = self.learn(now, cohort, model).model
        return FedMDState(cohort.participants.put(state.model, learned))

    def _predicted(self, part: Problem, model: Float[Array, "chosen dim"], points: Array) -> Array:
        """The participants' predictions of public samples, ``[M, R', ...]``, a batch at a time."""
        size = self.digest_batch or self._count
        batches = -(-len(points) // size)
        rows = jnp.minimum(
            jnp.arange(batches * size, dtype=jnp.int32).reshape(batches, size), len(points) - 1
        )

        def of_batch(rows: Int[Array, " batch"]) -> Array:
            batch = points[rows]
            unused = jnp.zeros(len(batch), part.dtype)
            return at_points(part, batch, unused).predictions(model)

        predicted = jnp.moveaxis(jax.lax.map(of_batch, rows), 0, 1)
        predicted = predicted.reshape(len(model), batches * size, *predicted.shape[3:])
        return predicted[:, : len(points)]

    def _digest(
        self,
        now: Round,
        cohort: Cohort,
        part: Problem,
        model: Float[Array, "chosen dim"],
        points: Array,
        consensus: Array,
        key: Array,
    ) -> Float[Array, "chosen dim"]:
        """The participants' models after steps toward the consensus."""
        rate = self.step_size if self.digest_step_size is None else self.digest_step_size
        move, memory = stepping(rate, now, model)
        size = self.digest_batch or self._count
        steps = self.digest_epochs * -(-self._count // size)
        batches = passes_over(key, self._count, size, steps)
        training = now.networks.of(cohort.participants)

        def distances(samples: Reading, row: Array, _: object) -> Array:
            difference = samples.predictions(row) - samples.targets
            each = jnp.abs(difference) if self.distance == "absolute" else difference**2
            return jnp.mean(each, axis=tuple(range(1, each.ndim)))

        def digest_batch(carry: tuple, step: Array) -> tuple[tuple, None]:
            model, memory = carry
            rows = batches[step]
            is_real = rows < self._count
            weights = is_real.astype(model.dtype) / jnp.sum(is_real, dtype=model.dtype)
            rows = jnp.minimum(rows, self._count - 1)
            batch = at_points(part, points[rows], consensus[rows], weights)
            if training is not None:
                keys = jax.vmap(jax.random.fold_in, (0, None))(training.keys, steps + step)
                batch = batch.in_training(training.state, keys)
            gradient = batch.gradient_of(distances, model)
            return move(model, gradient, memory), None

        order = jnp.arange(steps, dtype=jnp.int32)
        return jax.lax.scan(digest_batch, (model, memory), order)[0][0]


def _outputs(problem: Problem) -> int:
    """The number of entries of a prediction."""

    def predicted(shape: Problem) -> Array:
        return shape.predictions(start_models(shape))

    return int(np.prod(jax.eval_shape(predicted, problem).shape[2:]))
