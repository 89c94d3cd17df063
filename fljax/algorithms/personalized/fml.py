r"""FML: federated mutual learning of a personal and a shared model (Shen et al. 2020)."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading


class FMLState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the personal v_k
    server: Array  # [D]  w


@algorithm(
    "FML",
    "shen2020",
    dataclasses.replace(AVERAGED, classes=True),
    {"Federated mutual learning": ""},
)
@module
class FML(Averaging):
    r"""Each client trains a model of its own and its copy of the server's, which teach each other.

    A participant of round :math:`n` has its personal :math:`v_k` and receives :math:`w^{(n-1)}`.
    From both it takes steps, on the same batches, along the gradients of

    .. math::

        \alpha\,\ell(x,y;v)+(1-\alpha)\,\mathrm{KL}(p_w\|p_v),\qquad
        \beta\,\ell(x,y;w)+(1-\beta)\,\mathrm{KL}(p_v\|p_w)

    for :math:`v` and for :math:`w`, with :math:`p_w` the softmax of the logits :math:`h(x;w)`; each
    treats the other's outputs as constants. It keeps :math:`v_k` and sends :math:`w_k`, whose
    weighted average the server takes as in :class:`~fljax.algorithms.FedAvg`, whose messages it
    has. Metrics evaluate the :math:`v_k`; clients that do not participate keep theirs.
    :math:`\alpha=1` is :class:`~fljax.algorithms.LocalOnly`; with :math:`\beta=1` the server's
    model is federated averaging's.

    In the paper personal models may be of other networks than the shared one; here all have the
    same, and may start elsewhere (:meth:`~fljax.problems.Problem.starting_at`).

    Args:
      step_size: :math:`\mu` of both, as in :class:`~fljax.algorithms.FedAvg`, which also has the
        other arguments.
      supervision: :math:`\alpha\in[0,1]`, the weight of a personal model's own loss.
      shared_supervision: :math:`\beta\in[0,1]`, of the shared one's.

    Raises:
      ValueError: a weight outside [0, 1], a loss that is not :class:`~fljax.problems.Softmax`; as
        for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.softmax(
      ...         jax.random.key(0), clients=6, samples=20, dim=4, classes=3
      ...     ),
      ...     algorithm=fl.algorithms.FML(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Shen et al. 2020, Algorithm 1.
    """

    supervision: Float[Array, ""] | float = dataclasses.field(default=0.5, kw_only=True)
    shared_supervision: Float[Array, ""] | float = dataclasses.field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        for name in ("supervision", "shared_supervision"):
            checks.interval(name, getattr(self, name), at_least=0, at_most=1)

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem, network: Network) -> FMLState:
        return FMLState(start_models(problem), server_start(problem))

    def step(self, state: FMLState, now: Round) -> FMLState:
        cohort = self.invite(now)
        dim = now.problem.dim
        server = now.link.publish(state.server, cohort.active)

        def gradients(part: Problem, variables: Array, _: object) -> Array:
            personal = variables[:, :dim]
            shared = variables[:, dim:]
            of_own = part.gradient_of(distillation_losses(self.supervision), personal, shared)
            of_shared = part.gradient_of(
                distillation_losses(self.shared_supervision), shared, personal
            )
            return jnp.concatenate([of_own, of_shared], axis=1)

        personal = cohort.participants.take(state.model)
        start = jnp.concatenate([personal, jnp.broadcast_to(server, personal.shape)], axis=1)
        learned = self.learn(
            now, cohort, start, direction=gradients, layouts=[now.problem.layout] * 2
        ).model
        server = self.collect(now, cohort, learned[:, dim:], server).move(server)
        return FMLState(cohort.participants.put(state.model, learned[:, :dim]), server)


def distillation_losses(
    supervision: Array | float, temperature: Array | float = 1.0
) -> Callable[[Reading, Array, Array], Array]:
    """The losses of a model that learns from labels and from another model, of softmaxes with a
    temperature where the two meet.
    """

    def losses(samples: Reading, model: Array, teacher: Array) -> Array:
        logits = samples.predictions(model)
        log_student, log_teacher = (
            jax.nn.log_softmax(z / temperature, axis=1)
            for z in (logits, samples.predictions(teacher))
        )
        divergence = jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=1)
        return supervision * samples.losses(logits) + (1 - supervision) * divergence

    return losses
