r"""FedDF: the server's networks learn from the ensemble of the clients' (Lin et al. 2020)."""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module, replace, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.local_steps import select_rows
from fljax.algorithms.public_points import (
    at_points,
    check_points,
    checked_points,
    passes_over,
    stepping,
)
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.heterofl import PartAveraging
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import Optimizer, as_step, check_optimizer
from fljax.optimization.schedules import Schedule
from fljax.problems import Problem, Reading
from fljax.problems.streams import Stream


@algorithm(
    "FedDF",
    "lin2020",
    Needs(
        None,
        absent=True,
        compressed=False,
        uploads=(),
        trains=True,
        classes=True,
        networks="different",
    ),
)
@module
class FedDF(PartAveraging):
    r"""Federated averaging, then distillation of all clients' predictions into the server's models.

    Clients have one of several networks (:func:`fljax.models.several`), or all the same one. A
    participant trains the server's model of its network by local steps and sends it. The server
    averages the models of each network, and then takes steps on batches of public samples, without
    labels, along the gradient of the divergence of each average's predictions from those of the
    ensemble of *all* participants,

    .. math::

        \mathrm{KL}\Big(\mathrm{softmax}\Big(\frac1{T|S|}\sum_{k\in S}h_k(x;w_k)\Big)\,\Big\|\,
            \mathrm{softmax}\big(h(x;w)/T\big)\Big).

    So networks learn from each other that have no parameters in common. The averages are by the
    weights of the problem, the ensemble's clients have equal ones; a network without participants
    learns from the ensemble as well. Each client's model is the server's of its network.

    Networks are in evaluation mode on public samples. The paper's early stopping by validation data
    is left out; its distillation has Adam with steps of 1e-3 that decay by a cosine, for instance
    ``optax.adam(optax.cosine_decay_schedule(1e-3, 1000))``, initialized in every round.

    Args:
      step_size: :math:`\mu` of the local steps, as in :class:`~fljax.algorithms.FedAvg`, which also
        has the other arguments.
      public: ``[R, ...]``, samples like the clients', without labels.
      distillation_step_size: of the server's steps, a schedule of the round or a number, > 0; or an
        optimizer.
      distillation_steps: number of the server's steps in a round, >= 1.
      public_batch: public samples in a step.
      temperature: :math:`T>0`.

    Raises:
      ValueError: public samples of another shape than the clients', a batch of more than there are;
        nested networks, or ones that are normalized by batches; a loss that is not
        :class:`~fljax.problems.Softmax`; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.several([fl.models.mlp(3, hidden=[16]), fl.models.mlp(3, hidden=[])])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> simulation = fl.Simulation(
      ...     problem=problem.assigning([0, 0, 1, 1]),
      ...     algorithm=fl.algorithms.FedDF(
      ...         0.1,
      ...         epochs=5,
      ...         public=jax.random.normal(jax.random.key(2), (30, 6)),
      ...         distillation_step_size=0.1,
      ...         public_batch=10,
      ...     ),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Lin et al. 2020, Algorithms 1 and 3.
    """

    public: Annotated[Array, "points ..."] = field(converter=as_given, kw_only=True)
    distillation_step_size: Schedule | Optimizer = field(converter=as_step, kw_only=True)
    distillation_steps: int = static(default=100, kw_only=True)
    public_batch: int = static(default=128, kw_only=True)
    temperature: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        object.__setattr__(self, "public", checked_points(self.public))
        checks.count("distillation_steps", self.distillation_steps)
        checks.count("public_batch", self.public_batch, at_most=len(self.public))
        checks.positive("temperature", self.temperature)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        check_points(self.public, problem)
        check_optimizer(self.distillation_step_size, problem.layout)

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now, state.model)
        server = self.publish_parts(now, cohort, state.model)
        learned = self.learn(now, cohort, server)
        masks = jnp.asarray(now.problem.network_masks)
        held = masks[self.networks_of(now, cohort)]
        sent = now.link.send(
            learned.model,
            server,
            cohort.participants.numbers,
            cohort.active,
            numbers=jnp.sum(held, axis=1, dtype=jnp.int32),
        )
        arrived = self.messages_arrived(now, cohort)
        weights = arrived.astype(sent.dtype)
        shares = weights if cohort.weights is None else weights * cohort.weights
        share = jnp.einsum("m,md->d", shares, held.astype(sent.dtype), precision=HIGHEST)
        total = jnp.einsum("m,md->d", shares, jnp.where(held, sent, 0), precision=HIGHEST)
        averaged = jnp.where(share > 0, total / jnp.where(share > 0, share, 1), server)
        teachers = cohort.participants.of(now.problem)
        model = self._distilled(now, teachers, sent, weights, averaged)
        return FedAvgState(select_rows(jnp.any(arrived), model, state.model))

    def _distilled(
        self,
        now: Round,
        teachers: Problem,
        models: Float[Array, "chosen dim"],
        weights: Float[Array, " chosen"],
        averaged: Float[Array, " dim"],
    ) -> Float[Array, " dim"]:
        """The server's model after steps toward the ensemble of the models of the participants."""
        move, memory = stepping(self.distillation_step_size, now, averaged)
        public = jnp.asarray(self.public)
        size = self.public_batch
        batches = passes_over(now.key("algorithm"), len(public), size, self.distillation_steps)
        count = len(now.problem.network_masks)
        # One row for each of the server's networks.
        rows = jnp.zeros(count, jnp.int32)
        students = teachers.take(rows)
        if count > 1:
            students = replace(students, assignment=jnp.arange(count, dtype=jnp.int32))
        ensemble = weights / jnp.maximum(jnp.sum(weights), 1)

        def divergence(samples: Reading, row: Array, _: object) -> Array:
            log_student, log_teacher = (
                jax.nn.log_softmax(z / self.temperature, axis=1)
                for z in (samples.predictions(row), samples.targets)
            )
            return jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=1)

        def distill(carry: tuple, rows: Array) -> tuple[tuple, None]:
            model, memory = carry
            is_real = rows < len(public)
            share = is_real.astype(model.dtype) / jnp.sum(is_real, dtype=model.dtype)
            points = public[jnp.minimum(rows, len(public) - 1)]
            unused = jnp.zeros(size, model.dtype)
            logits = at_points(teachers, points, unused).predictions(models)
            logits = jnp.einsum("m,mbc->bc", ensemble, logits, precision=HIGHEST)
            batch = at_points(students, points, logits, share)
            of_networks = jnp.broadcast_to(model, (count, len(model)))
            gradient = jnp.sum(batch.gradient_of(divergence, of_networks), axis=0)
            return move(model, gradient, memory), None

        return jax.lax.scan(distill, (averaged, memory), batches)[0][0]
