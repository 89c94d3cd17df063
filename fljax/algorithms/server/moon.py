r"""MOON: model-contrastive federated learning (Li, He and Song 2021)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED_PRIVATELY, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading


class MOONState(NamedTuple):
    """State of MOON between rounds."""

    model: Array  # [D]  the server's w
    last: Array  # [K, D]  the clients' models at the end of their last participation


@algorithm(
    "MOON",
    "li2021moon",
    dataclasses.replace(AVERAGED_PRIVATELY, data="fixed", representation=True),
    {"Model-contrastive federated learning": ""},
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

    with :math:`r(w)` the representation of :math:`x` by the model :math:`w` before its last
    layer, and :math:`\cos` the cosine of the angle between two of them (zero of one that
    vanishes). Initially :math:`v_k` is the client's initial model; clients that do not participate
    keep it. :math:`\mu=0` is :class:`FedAvg`, and so is any model whose head alone is
    learned, such as a linear one.

    The paper's networks have a projection head before the last layer, which is a part of the
    network's body here. The messages are as in :class:`FedAvg`; a client's step evaluates three
    models. With batch normalization all three are normalized by the batch of the step, and running
    statistics are of the model that is trained.

    Args:
      step_size: as in :class:`FedAvg`.
      contrast: :math:`\mu\ge0`; the paper tunes it among 0.1, 1, 5 and 10.
      temperature: :math:`\tau>0`; the paper's is one half.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a negative weight, a temperature that is not positive, a network that does not
        define its representation (:func:`fljax.models.headed`); as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

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
        checks.nonnegative("contrast", self.contrast)
        checks.positive("temperature", self.temperature)

    def init(self, problem: Problem, network: Network) -> MOONState:
        return MOONState(server_start(problem), start_models(problem))

    def step(self, state: MOONState, now: Round) -> MOONState:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.active)

        def contrasted(samples: Reading, model: Array, last: Array) -> Array:
            of_model, of_server, of_last = map(samples.representation, (model, server, last))
            nearer = cosines(of_model, of_last) - cosines(of_model, of_server)
            losses = samples.losses(samples.head(model, of_model))
            return losses + self.contrast * jax.nn.softplus(nearer / self.temperature)

        last = cohort.participants.take(state.last)
        local = self.learn(now, cohort, server, direction=along_losses(contrasted), context=last)
        model = self.collect(now, cohort, local.model, server).move(server)
        return MOONState(model, cohort.participants.put(state.last, local.model))


def cosines(
    a: Float[Array, "samples width"], b: Float[Array, "samples width"]
) -> Float[Array, " samples"]:
    """Return the cosines of the angles between rows; constant zero where one of them vanishes."""
    squares = jnp.sum(a**2, axis=1) * jnp.sum(b**2, axis=1)
    nonzero = squares > 0
    return jnp.where(nonzero, jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.where(nonzero, squares, 1)), 0)
