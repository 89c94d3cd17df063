r"""FedRS: logits of missing classes restricted in the softmax (Li and Zhan 2021)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax.algorithms.base import ReleasesModel, algorithm, server_start
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.server.base import OF_CLASSES, Averaging
from fljax.problems import Problem, Reading
from fljax.rounds import Round

__all__ = ["FedRS", "State"]


class State(NamedTuple):
    """State of FedRS between rounds."""

    model: Array  # [D]  the server's w
    present: Array  # [K, C]  of which classes a client has samples


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

    Which classes a client has is never said; the messages are those of :class:`FedAvg`.

    Args:
      step_size: :math:`\mu`, as in :class:`FedAvg`.
      restriction: :math:`\alpha\in[0,1]`; the paper's experiments have one half.

    Other arguments are those of :class:`~fljax.algorithms.server.base.Averaging`.

    Raises:
      ValueError: a restriction outside [0, 1], a loss that is not
        :class:`~fljax.problems.Softmax`; as for :class:`~fljax.algorithms.server.base.Averaging`.

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
        _check.interval("restriction", self.restriction, at_least=0, at_most=1)

    def init(self, problem: Problem, network: Any) -> State:
        return State(server_start(problem), problem.class_counts() > 0)

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)

        def restricted(own: Reading, model: Array, present: Array) -> Array:
            scale = jnp.where(present, 1, self.restriction)
            return own.losses(scale[None] * own.predictions(model))

        present = cohort.who.take(state.present)
        learned = self.learn(now, cohort, server, direction=along_losses(restricted), given=present)
        model = self.collect(now, cohort, learned.model, server).move(server)
        return State(model, state.present)
