r"""MOON: model-contrastive federated learning (Li, He and Song 2021)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.server.base import AVERAGED_PRIVATELY, Averaging
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = ["MOON", "State"]


class State(NamedTuple):
    """State of MOON between rounds."""

    model: Array  # [D]  the server's w
    last: Array  # [K, D]  the clients' models at the end of their last participation


@algorithm(
    "MOON",
    "li2021moon",
    dataclasses.replace(AVERAGED_PRIVATELY, data="fixed", representation=True),
)
@module
class MOON(ReleasesModel, Averaging):
    r"""Federated averaging that pulls representations toward the server's, away from a client's own
    of before.

    A participant has the model :math:`v_k` at the end of its last participation and takes its local
    steps from the server's model :math:`w^{(n-1)}` along the gradient of

    .. math::

        \ell(x,y;w)-\mu\log\frac{e^{\cos(r(w),r(w^{(n-1)}))/\tau}}
            {e^{\cos(r(w),r(w^{(n-1)}))/\tau}+e^{\cos(r(w),r(v_k))/\tau}}

    with :math:`r(w)` what the model :math:`w` makes of :math:`x` before its last layer, its
    representation, and :math:`\cos` the cosine of the angle between two of them (zero of one that
    vanishes). Initially :math:`v_k` is the client's initial model; clients that do not participate
    keep it. :math:`\mu=0` is :class:`FedAvg`, and so is any model of which the head alone is
    learned, such as a linear one.

    The paper's networks have a projection head before the last layer, which is a part of the
    network's body here. The messages are those of :class:`FedAvg`; a client's step evaluates three
    models.

    Args:
      step_size: as in :class:`FedAvg`.
      contrast: :math:`\mu\ge0`; the paper tunes it among 0.1, 1, 5 and 10.
      temperature: :math:`\tau>0`; the paper's is one half.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: a negative weight, a temperature that is not positive, a network that does not say
        its representation (:func:`fljax.models.headed`); as for
        :class:`~fljax.algorithms.server.base.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.MOON(0.1, contrast=1.0, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Li, He and Song 2021, Algorithm 1.
    """

    contrast: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    temperature: Float[Array, ""] | float = dataclasses.field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.nonnegative("contrast", self.contrast)
        _check.positive("temperature", self.temperature)

    def init(self, problem: Problem, network: Any) -> State:
        return State(server_start(problem), start_models(problem))

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)

        def contrasted(own: Reading, model: Array, last: Array) -> Array:
            here, there, before = map(own.representation, (model, server, last))
            nearer = cosines(here, before) - cosines(here, there)
            losses = own.losses(own.head(model, here))
            return losses + self.contrast * jax.nn.softplus(nearer / self.temperature)

        last = cohort.who.take(state.last)
        local = self.learn(now, cohort, server, direction=along_losses(contrasted), given=last)
        model = self.collect(now, cohort, local.model, server).move(server)
        return State(model, cohort.who.put(state.last, local.model))


def cosines(
    a: Float[Array, "samples width"], b: Float[Array, "samples width"]
) -> Float[Array, " samples"]:
    """Of the angles between rows; zero, and without a slope, where one of them vanishes."""
    squares = jnp.sum(a**2, axis=1) * jnp.sum(b**2, axis=1)
    there = squares > 0
    return jnp.where(there, jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.where(there, squares, 1)), 0)
