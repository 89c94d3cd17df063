r"""FedNTD: not-true distillation from the server's model (Lee et al. 2022)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.server_algorithm import OF_CLASSES, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading

#: A logit whose exponential is zero; of an infinite one gradients would be no numbers.
LEFT_OUT = -1e12


@algorithm("FedNTD", "lee2022", OF_CLASSES)
@module
class FedNTD(ReleasesModel, Averaging):
    r"""Federated averaging that preserves the server's outputs for the classes that are not the
    true one.

    A participant takes its local steps from the server's model :math:`w^{(n-1)}` along the gradient
    of

    .. math::

        \ell(x,y;w)+\beta\sum_{c\ne y}q_c(w^{(n-1)})\log\frac{q_c(w^{(n-1)})}{q_c(w)},\qquad
        q_c(w)=\frac{e^{z_c(w)/\tau}}{\sum_{c'\ne y}e^{z_{c'}(w)/\tau}}

    with the logits :math:`z(w)=h(x;w)`: a Kullback-Leibler divergence between the two models'
    softmax over all classes but the true one, which leaves the client free to learn the true class
    and keeps it from forgetting the others. :math:`\beta=0` is :class:`FedAvg`, and so are two
    classes, where only one is not the true one. The authors' code multiplies the divergence by
    :math:`\tau^2` in addition: give :math:`\beta\tau^2` for it.

    The messages are as in :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      distillation: :math:`\beta\ge0`; the paper's is 1.
      temperature: :math:`\tau>0`; the paper's is 1.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a negative weight, a temperature that is not positive, a loss that is not
        :class:`~fljax.problems.Softmax`; as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

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
        checks.nonnegative("distillation", self.distillation)
        checks.positive("temperature", self.temperature)

    def init(self, problem: Problem, network: Network) -> FedAvgState:
        return FedAvgState(server_start(problem))

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.active)

        def distilled(samples: Reading, model: Array, _: object) -> Array:
            logits = samples.predictions(model)
            teacher = samples.predictions(server)
            divergence = not_true_divergence(
                samples.targets, logits / self.temperature, teacher / self.temperature
            )
            return samples.losses(logits) + self.distillation * divergence

        learned = self.learn(now, cohort, server, direction=along_losses(distilled))
        return FedAvgState(self.collect(now, cohort, learned.model, server).move(server))


def not_true_divergence(
    targets: Array,
    logits: Float[Array, "samples classes"],
    teacher: Float[Array, "samples classes"],
) -> Float[Array, " samples"]:
    """The divergence of two softmaxes over the classes that are not the true one."""
    true = jax.nn.one_hot(targets.astype(jnp.int32), logits.shape[1], dtype=bool)
    log_student, log_teacher = (
        jax.nn.log_softmax(jnp.where(true, LEFT_OUT, z), axis=1) for z in (logits, teacher)
    )
    return jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=1)
