r"""HeteroFL: clients train narrower parts of the server's network (Diao et al. 2021)."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core.module import module
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedavg import FedAvgState
from fljax.algorithms.server.server_algorithm import Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.problems import Problem

#: Needs of a server that averages each parameter over the participants that have it.
OF_PARTS = Needs(None, absent=True, compressed=False, uploads=(), trains=True, networks="nested")


@module
class PartAveraging(Averaging):
    """Base class: participants train networks that are parts of the server's, and the server
    averages each parameter over those that have it.
    """

    def init(self, problem: Problem, network: Network) -> FedAvgState:
        return FedAvgState(server_start(problem))

    def publish_parts(
        self, now: Round, cohort: Cohort, model: Float[Array, " dim"]
    ) -> Float[Array, " dim"]:
        """Send each participant the parameters of its network."""
        masks = jnp.asarray(now.problem.network_masks)
        counts = jnp.sum(masks, axis=1, dtype=jnp.int32)
        return now.link.publish(model, cohort.active, counts[self.networks_of(now, cohort)])

    def collect_parts(
        self,
        now: Round,
        cohort: Cohort,
        models: Float[Array, "chosen dim"],
        server: Float[Array, " dim"],
    ) -> Float[Array, " dim"]:
        """Return the server's model with every parameter averaged over the participants that have
        it and whose messages arrive; a parameter that none of them has is unchanged.
        """
        masks = jnp.asarray(now.problem.network_masks)
        networks = self.networks_of(now, cohort)
        # The share of each network among the arrivals is averaged with the models. It is public.
        indicators = jax.nn.one_hot(networks, len(masks), dtype=models.dtype)
        message = jnp.concatenate([models, indicators], axis=1)
        reference = jnp.concatenate([server, jnp.zeros(len(masks), models.dtype)])
        counts = jnp.sum(masks, axis=1, dtype=jnp.int32)[networks]
        arrived = self.collect(now, cohort, message, reference, numbers=counts).move(reference)
        change = arrived[: len(server)] - server
        shares = arrived[len(server) :]
        holders = jnp.matmul(shares, masks.astype(shares.dtype), precision=HIGHEST)
        return jnp.where(holders > 0, server + change / jnp.where(holders > 0, holders, 1), server)

    def networks_of(self, now: Round, cohort: Cohort) -> Int[Array, " chosen"]:
        """Return the number of each participant's network."""
        return cohort.participants.take(now.problem.network_numbers)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None


@algorithm("HeteroFL", "diao2021", OF_PARTS)
@module
class HeteroFL(PartAveraging):
    r"""Federated averaging where each client trains a part of the network that it can afford.

    The server's network has :math:`P` nested parts :math:`W^{(1)}\supset\dots\supset W^{(P)}`, of
    decreasing width (:func:`fljax.models.nested`), of which client :math:`k` has one
    (:meth:`problem.assigning <fljax.problems.Model.assigning>`). A participant receives the
    parameters of its part, takes local steps with the network of this width and sends them back.
    The server sets each parameter to its average over the participants that have it,

    .. math::

        w_d^{(n)}=\frac{\sum_{k\in S:d\in W_k}q_kw_{k,d}}{\sum_{k\in S:d\in W_k}q_k},

    and leaves a parameter unchanged that none of them has. The weights :math:`q_k` are the
    problem's, one each by default, as in the paper. If all clients have the widest network, this is
    :class:`~fljax.algorithms.FedAvg`. Messages have as many numbers as a part.

    Networks are normalized by groups or layers instead of the paper's static batch normalization,
    whose statistics are computed after training by passes over all clients' data. Its scaling of
    activations by the inverse width in training belongs to the networks (their training mode); its
    masked loss, of the labels that a client has, is not included.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.

    Raises:
      ValueError: networks that are not nested; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> networks = fl.models.nested([fl.models.mlp(3, hidden=[width]) for width in (16, 8, 4)])
      >>> data = fl.problems.softmax(jax.random.key(0), clients=6, samples=20, dim=4, classes=3)
      >>> problem = fl.problems.Model.of(data, networks, jax.random.key(1))
      >>> simulation = fl.Simulation(
      ...     problem=problem.assigning([0, 0, 1, 1, 2, 2]),
      ...     algorithm=fl.algorithms.HeteroFL(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Diao et al. 2021, Algorithm 1 and (1) to (3).
    """

    def validate(self) -> None:
        super().validate()

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now, state.model)
        server = self.publish_parts(now, cohort, state.model)
        learned = self.learn(now, cohort, server)
        return FedAvgState(self.collect_parts(now, cohort, learned.model, server))
