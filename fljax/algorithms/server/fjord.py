r"""FjORD: every local step trains a randomly chosen width of the network (Horvath et al. 2021)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import module, replace
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.heterofl import OF_PARTS, PartAveraging
from fljax.problems import Problem, Reading


@algorithm(
    "FjORD", "horvath2021", dataclasses.replace(OF_PARTS, classes=True), {"Ordered dropout": ""}
)
@module
class FjORD(PartAveraging):
    r"""Ordered dropout: each local step is taken with a width drawn from those that a client has.

    As :class:`~fljax.algorithms.HeteroFL`, but a client that can train part :math:`W^{(p)}` draws
    for each step one of the widths :math:`p,\dots,P`, its own or a narrower one, with equal
    probabilities, and descends along

    .. math::

        (1-\alpha)\,\ell(h(x;W^{(q)}),y)
            +\alpha\,\mathrm{KL}\big(\mathrm{softmax}(h(x;W^{(p)})/T)\,\|\,
            \mathrm{softmax}(h(x;W^{(q)})/T)\big)

    where the network of the client's own width teaches the drawn one, as a constant. With
    :math:`\alpha=0`, the default, nothing teaches. The widths are drawn for each client from the
    seed and the round.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      distillation: :math:`\alpha\in[0,1]`.
      temperature: :math:`T>0`.

    Raises:
      ValueError: networks that are not nested, a loss that is not
        :class:`~fljax.problems.Softmax`, a number outside its range; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.nested([fl.models.mlp(3, hidden=[width]) for width in (16, 8, 4)])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=6, samples=20, dim=4, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> simulation = fl.Simulation(
      ...     problem=problem.assigning([0, 0, 1, 1, 2, 2], evaluated=2),
      ...     algorithm=fl.algorithms.FjORD(0.1, epochs=5, distillation=0.5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Horvath et al. 2021, Algorithm 1 and section 3.3.
    """

    distillation: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)
    temperature: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("distillation", self.distillation, at_least=0, at_most=1)
        checks.positive("temperature", self.temperature)

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now, state.model)
        server = self.publish_parts(now, cohort, state.model)
        widest = self.networks_of(now, cohort)
        count = len(now.problem.network_masks)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(
            now.key("algorithm"), cohort.participants.numbers
        )

        def in_drawn_width(part: Problem, model: Array, networks: Any) -> Array:
            widest, drawn = networks
            if count == 1:  # all clients have the same network, and nothing narrower
                return part.gradient(model)
            return replace(part, assignment=drawn).gradient_of(self._losses, model, widest)

        learned = self.learn(
            now,
            cohort,
            server,
            direction=in_drawn_width,
            context=widest,
            per_step=drawn_widths(keys, widest, count, cohort.longest),
        )
        return FedAvgState(self.collect_parts(now, cohort, learned.model, server))

    def _losses(self, samples: Reading, model: Array, widest: Array) -> Array:
        logits = samples.predictions(model)
        teacher = jax.lax.stop_gradient(samples.of_network(widest).predictions(model))
        log_student, log_teacher = (
            jax.nn.log_softmax(z / self.temperature, axis=1) for z in (logits, teacher)
        )
        divergence = jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=1)
        return (1 - self.distillation) * samples.losses(logits) + self.distillation * divergence


def drawn_widths(
    keys: Array, widest: Int[Array, " chosen"], count: int, steps: int
) -> Int[Array, "chosen steps"]:
    """Return the network of each client's steps: its own or a narrower one, which have the larger
    numbers, with equal probabilities.

    Args:
      keys: ``[M]``, of each client, consumed.
      widest: ``[M]``, the number of the widest network that each client can train.
      count: number of networks.
      steps: number of steps.
    """

    def draw(key: Array, first: Array) -> Array:
        return jax.random.randint(key, (steps,), first, count, jnp.int32)

    return jax.vmap(draw)(keys, widest)
