r"""FedAMP: attentive message passing between similar clients (Huang et al. 2021)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import LocalLearning
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class FedAMPState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  w_k
    known: Array  # [K, D]  the server's copy of each model


@algorithm("FedAMP", "huang2021", Needs(None, absent=True, trains=True))
@module
class FedAMP(LocalLearning):
    r"""Personalized models by attentive message passing: similar models attract each other more.

    With the attention function :math:`A(x)=1-e^{-x/\sigma}` of squared distances, the server moves
    its copy of the model of participant :math:`k` toward the others and sends it the result,

    .. math::

        u_k=w_k+\alpha_n\sum_lA'(\|w_k-w_l\|^2)(w_l-w_k),\qquad
        A'(x)=\tfrac1\sigma e^{-x/\sigma}

    and the participant sends the result of steps from its own model along
    :math:`f_k'(w_k)+\frac\lambda{\alpha_n}(w_k-u_k)`: the paper's
    :math:`\arg\min f_k(w)+\frac\lambda{2\alpha_n}\|w-u_k\|^2`, solved approximately from its last
    model. The fixed points satisfy :math:`f_k'(w_k)+\lambda\sum_lA'(\|w_k-w_l\|^2)(w_k-w_l)=0` for
    all :math:`k`, for any :math:`\alpha`. Clients that do not participate keep their models, and
    the server its copies of them.

    :math:`u_k` is a convex combination of the models if :math:`\alpha_n(K-1)\le\sigma`. The server
    uses and stores each client's model individually, so secure summation is not possible.

    With the largest curvature :math:`L` of the :math:`f_k`, steps with
    :math:`\mu(L+\lambda/\alpha_n)<2` and :math:`\alpha_nK\le\sigma` are stable. Near consensus of
    all :math:`K` clients one local step of full participation is stable exactly for
    :math:`\mu(L+\lambda K/\sigma)<2`, whatever :math:`\alpha_n`. With :math:`E` steps, curvature
    :math:`h` and :math:`r=(1-\mu(h+\lambda/\alpha_n))^E` the factor of a round is
    :math:`r+(1-r)\frac{\lambda/\alpha_n}{h+\lambda/\alpha_n}(1-\alpha_nK/\sigma)`.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments; see below for how large it may be. Clients' numbers of samples have no effect on
        their weights.
      attraction: :math:`\lambda\ge0`; zero is local training only.
      attention_step_size: :math:`\alpha_n`, a schedule of the round or a number, > 0.
      scale: :math:`\sigma>0`; models at squared distances well above it do not attract each other.

    Raises:
      ValueError: as for FedAvg.

    Example:
      Two groups of clients are identified:

      >>> import jax, numpy as np, fljax as fl
      >>> rng = np.random.default_rng(0)
      >>> X = rng.normal(size=(6, 20, 2))
      >>> targets = np.stack([X[k] @ ([3, 0] if k < 3 else [0, 3]) for k in range(6)])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.from_clients(list(zip(X, targets)), fl.problems.LeastSquares()),
      ...     algorithm=fl.algorithms.FedAMP(
      ...         0.1, attraction=1.0, attention_step_size=0.2, scale=1.0
      ...     ),
      ... )
      >>> results = fl.sweep(lambda key: simulation, seeds=1, rounds=50, keep_models=True)
      >>> models = results.model[0]
      >>> [float(abs(models[0] - models[k]).max().round(1)) for k in (1, 3)]
      [0.0, 3.0]

    Reference:
      Huang et al. 2021, Algorithm 1.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(kw_only=True)
    attention_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    scale: Float[Array, ""] | float = dataclasses.field(kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("attraction", self.attraction)
        checks.positive("scale", self.scale)

    def init(self, problem: Problem, network: Network) -> FedAMPState:
        start = start_models(problem)
        return FedAMPState(start, start)

    def step(self, state: FedAMPState, now: Round) -> FedAMPState:
        cohort = self.invite(now, state.model)
        attention = self.attention_step_size(now.number)
        participants = cohort.participants
        stored = state.known
        attracted = self._attraction_toward(participants.take(stored), stored)
        cloud = now.link.publish(participants.take(stored) + attention * attracted, cohort.active)
        strength = self.attraction / attention

        def direction(part: Problem, model: Array, cloud: Array) -> Array:
            return part.gradient(model) + strength * (model - cloud)

        start = participants.take(state.model)
        local = self.learn(now, cohort, start, direction=direction, context=cloud).model
        sent = now.link.send(local, clients=participants.numbers, sending=cohort.active)
        stored = now.link.stored(participants.put(stored, sent), stored)
        return FedAMPState(participants.put(state.model, local), stored)

    def _attraction_toward(
        self, chosen: Float[Array, "chosen dim"], stored: Float[Array, "clients dim"]
    ) -> Float[Array, "chosen dim"]:
        """Return the attraction of some models toward all stored models."""
        middle = jnp.mean(stored, axis=0, keepdims=True)  # near it no digits of a distance are lost
        chosen = chosen - middle
        stored = stored - middle
        products = jnp.matmul(chosen, stored.T, precision=HIGHEST)
        squares = [jnp.sum(models**2, axis=1) for models in (chosen, stored)]
        distance = squares[0][:, None] + squares[1][None] - 2 * products
        attention = jnp.exp(-jnp.maximum(distance, 0) / self.scale) / self.scale
        return (
            jnp.matmul(attention, stored, precision=HIGHEST)
            - jnp.sum(attention, 1, keepdims=True) * chosen
        )
