r"""FedNTD: not-true distillation from the server's model (Lee et al. 2022)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.server.base import OF_CLASSES, Averaging
from fljax.algorithms.server.fedavg import State
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = ["FedNTD"]

#: A logit whose exponential is zero; of an infinite one gradients would be no numbers.
LEFT_OUT = -1e12


@algorithm("FedNTD", "lee2022", OF_CLASSES)
@module
class FedNTD(ReleasesModel, Averaging):
    r"""Federated averaging that keeps what the server's model says of the classes that are not the
    true one.

    A participant takes its local steps from the server's model :math:`w^{(n-1)}` along the gradient
    of

    .. math::

        \ell(x,y;w)+\beta\sum_{c\ne y}q_c(w^{(n-1)})\log\frac{q_c(w^{(n-1)})}{q_c(w)},\qquad
        q_c(w)=\frac{e^{z_c(w)/\tau}}{\sum_{c'\ne y}e^{z_{c'}(w)/\tau}}

    with the logits :math:`z(w)=h(x;w)`: a Kullback-Leibler divergence between the two models'
    softmax over all classes but the true one, which leaves the client free to learn the true class
    and keeps it from forgetting the others. :math:`\beta=0` is :class:`FedAvg`, and so are two
    classes, of which one is not the true one. The authors' code multiplies the divergence by
    :math:`\tau^2` in addition: give :math:`\beta\tau^2` for it.

    The messages are those of :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      distillation: :math:`\beta\ge0`; the paper's is 1.
      temperature: :math:`\tau>0`; the paper's is 1.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: a negative weight, a temperature that is not positive, a loss that is not
        :class:`~fljax.problems.Softmax`; as for :class:`~fljax.algorithms.server.base.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.softmax(
      ...         jax.random.key(0), clients=6, samples=20, dim=4, classes=3
      ...     ),
      ...     algorithm=fl.algorithms.FedNTD(0.1, distillation=1.0, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Lee et al. 2022, its not-true distillation loss and Algorithm 1.
    """

    distillation: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    temperature: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.nonnegative("distillation", self.distillation)
        _check.positive("temperature", self.temperature)

    def init(self, problem: Problem, network: Any) -> State:
        return State(server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)

        def distilled(own: Reading, model: Array, _: Any) -> Array:
            logits, taught = own.predictions(model), own.predictions(server)
            kept = not_true(own.targets, logits / self.temperature, taught / self.temperature)
            return own.losses(logits) + self.distillation * kept

        learned = self.learn(now, cohort, server, direction=along_losses(distilled))
        return State(self.collect(now, cohort, learned.model, server).move(server))


def not_true(
    targets: Array,
    logits: Float[Array, "samples classes"],
    taught: Float[Array, "samples classes"],
) -> Float[Array, " samples"]:
    """The divergence of two softmaxes over the classes that are not the true one."""
    true = jax.nn.one_hot(targets.astype(jnp.int32), logits.shape[1], dtype=bool)
    own, old = (jax.nn.log_softmax(jnp.where(true, LEFT_OUT, z), axis=1) for z in (logits, taught))
    return jnp.sum(jnp.exp(old) * (old - own), axis=1)
