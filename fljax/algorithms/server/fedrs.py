r"""FedRS: logits of missing classes restricted in the softmax (Li and Zhan 2021)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import OF_CLASSES, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading


class FedRSState(NamedTuple):
    """State of FedRS between rounds."""

    model: Array  # [D]  the server's w
    present: Array  # [K, C]  whether a client has samples of each class


@algorithm("FedRS", "li2021rs", OF_CLASSES)
@module
class FedRS(ReleasesModel, Averaging):
    r"""Federated averaging with a softmax that restricts the classes a client does not have.

    Participant :math:`k`, with samples of the classes :math:`C_k`, takes its local steps along the
    gradient of

    .. math::

        \ell_k(x,y;w)=-\log\frac{e^{a_{k,y}z_y}}{\sum_ce^{a_{k,c}z_c}},\qquad
        a_{k,c}=\begin{cases}1&c\in C_k\\\alpha&\text{otherwise}\end{cases},
        \qquad z=h(x;w)\text{ its logits}

    so that the head's parameters of a missing class, which its samples can only push away, move by
    a fraction of it. :math:`\alpha=1` is :class:`FedAvg`, :math:`\alpha=0` leaves them where they
    were. The paper's logits are products of the head's vectors and the representation, without an
    offset; here :math:`\alpha` multiplies the whole logit.

    The classes of a client are never sent; the messages are as in :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      restriction: :math:`\alpha\in[0,1]`; the paper's experiments have one half.

    For the other arguments see :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Raises:
      ValueError: a restriction outside [0, 1], a loss that is not
        :class:`~fljax.problems.Softmax`; as for
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.softmax(
      ...         jax.random.key(0), clients=6, samples=20, dim=4, classes=3
      ...     ),
      ...     algorithm=fl.algorithms.FedRS(0.1, restriction=0.5, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Li and Zhan 2021, its restricted softmax and Algorithm 1.
    """

    restriction: Float[Array, ""] | float = dataclasses.field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("restriction", self.restriction, at_least=0, at_most=1)

    def init(self, problem: Problem, network: Network) -> FedRSState:
        return FedRSState(server_start(problem), problem.class_counts() > 0)

    def step(self, state: FedRSState, now: Round) -> FedRSState:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.active)

        def restricted(samples: Reading, model: Array, present: Array) -> Array:
            scale = jnp.where(present, 1, self.restriction)
            return samples.losses(scale[None] * samples.predictions(model))

        present = cohort.participants.take(state.present)
        learned = self.learn(
            now, cohort, server, direction=along_losses(restricted), context=present
        )
        model = self.collect(now, cohort, learned.model, server).move(server)
        return FedRSState(model, state.present)
