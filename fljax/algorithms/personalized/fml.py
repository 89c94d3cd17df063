r"""FML: federated mutual learning of a personal and a shared model (Shen et al. 2020)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import algorithm, server_start, start_models
from fljax.algorithms.server.base import AVERAGED, Averaging
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = ["FML", "State"]


class State(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the personal v_k
    server: Array  # [D]  w


@algorithm("FML", "shen2020", dataclasses.replace(AVERAGED, classes=True))
@module
class FML(Averaging):
    r"""Each client trains a model of its own and its copy of the server's, which teach each other.

    A participant of round :math:`n` has its personal :math:`v_k` and receives :math:`w^{(n-1)}`.
    From both it takes steps, on the same batches, along the gradients of

    .. math::

        \alpha\,\ell(x,y;v)+(1-\alpha)\,\mathrm{KL}(p_w\|p_v),\qquad
        \beta\,\ell(x,y;w)+(1-\beta)\,\mathrm{KL}(p_v\|p_w)

    for :math:`v` and for :math:`w`, with :math:`p_w` the softmax of the logits :math:`h(x;w)`; each
    takes what the other says as given. It keeps :math:`v_k` and sends :math:`w_k`, of which the
    server takes the weighted average as in :class:`~fljax.algorithms.FedAvg`, whose messages it
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
            _check.interval(name, getattr(self, name), at_least=0, at_most=1)

    def init(self, problem: Problem, network: Any) -> State:
        return State(start_models(problem), server_start(problem))

    def step(self, state: State, now: Round) -> State:
        cohort, dim = self.invite(now), now.problem.dim
        server = now.link.publish(state.server, cohort.here)

        def along(part: Problem, both: Array, _: Any) -> Array:
            own, shared = both[:, :dim], both[:, dim:]
            of_own = part.gradient_of(taught(self.supervision), own, shared)
            of_shared = part.gradient_of(taught(self.shared_supervision), shared, own)
            return jnp.concatenate([of_own, of_shared], axis=1)

        own = cohort.who.take(state.model)
        start = jnp.concatenate([own, jnp.broadcast_to(server, own.shape)], axis=1)
        both = self.learn(
            now, cohort, start, direction=along, layouts=[now.problem.layout] * 2
        ).model
        server = self.collect(now, cohort, both[:, dim:], server).move(server)
        return State(cohort.who.put(state.model, both[:, :dim]), server)


def taught(supervision: Any, temperature: Any = 1.0) -> Any:
    """The losses of a model that learns from labels and from another model, of softmaxes with a
    temperature where the two meet.
    """

    def losses(own: Reading, model: Array, teacher: Array) -> Array:
        logits = own.predictions(model)
        said, told = (
            jax.nn.log_softmax(z / temperature, axis=1) for z in (logits, own.predictions(teacher))
        )
        away = jnp.sum(jnp.exp(told) * (told - said), axis=1)
        return supervision * own.losses(logits) + (1 - supervision) * away

    return losses
