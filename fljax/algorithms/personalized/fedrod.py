r"""FedROD: a generic head for all classes, a personal one for a client's own (Chen and Chao
2022).
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import algorithm, server_start
from fljax.algorithms.round import Round
from fljax.algorithms.server.fedlc import ABSENT
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading


class FedRODState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  of each client the server's, its own head added
    heads: Array  # [K, head]  phi_k
    server: Array  # [D]  w
    prior: Array  # [K, C]  logarithms of the clients' class counts, constant


@algorithm(
    "FedROD",
    "chen2022",
    dataclasses.replace(AVERAGED, classes=True, representation=True),
)
@module
class FedROD(Averaging):
    r"""A common network that learns all classes, and a personal head for a client's own.

    The server has a network :math:`w=(\theta,\psi)` of a body and a head :math:`h_\psi`, client
    :math:`k` a second head :math:`\varphi_k`. With the representation :math:`r=r_\theta(x)` and
    :math:`n_{k,c}` samples of class :math:`c`, a participant of the round takes steps from
    :math:`(w^{(n-1)},\varphi_k)`, on the same batches, along the gradients of the balanced softmax
    for :math:`w` and of the loss for :math:`\varphi_k` alone,

    .. math::

        -\log\frac{n_{k,y}e^{h_\psi(r)_y}}{\sum_cn_{k,c}e^{h_\psi(r)_c}},\qquad
        \ell\big(h_\psi(r)+h_{\varphi_k}(r),y\big)

    keeps :math:`\varphi_k` and sends :math:`w_k`, whose weighted average the server takes as
    in :class:`~fljax.algorithms.FedAvg`, whose messages it has. The generic model learns as if all
    classes were equally frequent at each client; the personal head, whose loss moves nothing else,
    adapts to its frequencies. For clients with equal counts of all classes the server's
    model is federated averaging's.

    Personal heads are zero at first, and clients that do not participate keep them. Both heads
    together are one, :math:`h_{\psi+\varphi_k}`, with the sum of their parameters: the same where
    a head is linear in these, as a last layer is. Metrics evaluate the network with
    :math:`\psi^{(n)}+\varphi_k`. A regularizer acts on :math:`w` and on :math:`\varphi_k`. This
    is the paper's linear form; in another a hypernetwork makes the heads. Running statistics are of
    the common body.

    Args:
      step_size: :math:`\mu` of both, as in :class:`~fljax.algorithms.FedAvg`, which also has the
        other arguments.

    Raises:
      ValueError: a loss that is not :class:`~fljax.problems.Softmax`, a network that does not
        define its representation (:func:`fljax.models.headed`); as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedROD(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Chen and Chao 2022, its Algorithm 1, with the balanced softmax.
    """

    def validate(self) -> None:
        super().validate()

    def gradients_per_step(self, problem: object) -> float:
        return 2.0

    def init(self, problem: Problem, network: Network) -> FedRODState:
        counts = problem.class_counts().astype(problem.dtype)
        server = server_start(problem)
        prior = jnp.where(counts > 0, jnp.log(jnp.where(counts > 0, counts, 1)), -ABSENT)
        heads = jnp.zeros((problem.clients, len(problem.body_and_head()[1])), problem.dtype)
        return FedRODState(jnp.tile(server, (problem.clients, 1)), heads, server, prior)

    def step(self, state: FedRODState, now: Round) -> FedRODState:
        cohort = self.invite(now)
        indices = now.problem.body_and_head()[1]
        dim = now.problem.dim
        server = now.link.publish(state.server, cohort.active)
        heads, prior = cohort.participants.take((state.heads, state.prior))

        def balanced(samples: Reading, model: Array, prior: Array) -> Array:
            return samples.losses(samples.predictions(model) + prior[None])

        def empirical(samples: Reading, head: Array, model: Array) -> Array:
            personal = model.at[indices].add(head)
            return samples.losses(samples.head(personal, samples.representation(model)))

        def gradients(part: Problem, variables: Array, prior: Array) -> Array:
            model = variables[:, :dim]
            head = variables[:, dim:]
            of_model = part.gradient_of(balanced, model, prior)
            return jnp.concatenate([of_model, part.gradient_of(empirical, head, model)], axis=1)

        common = jnp.broadcast_to(server, (len(heads), dim))
        start = jnp.concatenate([common, heads], axis=1)
        layouts = now.problem.layout, now.problem.layout.part(indices)
        learned = self.learn(
            now,
            cohort,
            start,
            direction=gradients,
            context=prior,
            layouts=layouts,
            whole=lambda variables, prior: variables[:, :dim],
        ).model
        server = self.collect(now, cohort, learned[:, :dim], server).move(server)
        heads = cohort.participants.put(state.heads, learned[:, dim:])
        model = jnp.broadcast_to(server, state.model.shape).at[:, indices].add(heads)
        return FedRODState(model, heads, server, state.prior)
