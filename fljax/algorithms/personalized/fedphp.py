r"""FedPHP: private models that are inherited from round to round (Li et al. 2021)."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.personalized.fml import distillation_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem


class FedPHPState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the inherited private p_k
    server: Array  # [D]  w
    times: Array  # [K]  Z_k, how often each has taken part


@algorithm("FedPHP", "li2021fedphp", dataclasses.replace(AVERAGED, classes=True))
@module
class FedPHP(Averaging):
    r"""Federated averaging whose clients keep a moving average of trained models, and learn from
    it.

    A participant of round :math:`n` has its private model :math:`p_k`, starts at
    :math:`w_k=w^{(n-1)}`, the server's model, and takes steps along the gradient of

    .. math::

        \alpha\,\ell(x,y;w_k)+(1-\alpha)\,\mathrm{KL}\big(q_\tau(p_k)\,\|\,q_\tau(w_k)\big),\qquad
        q_\tau(w)=\operatorname{softmax}(h(x;w)/\tau)

    so that the private model passes on to the common one the knowledge that training for others
    would erase. It sends :math:`w_k`, whose weighted average the server takes as in
    :class:`~fljax.algorithms.FedAvg`, whose messages it has, and the private model inherits it:

    .. math::

        p_k\leftarrow\mu_kp_k+(1-\mu_k)w_k,\qquad
        \mu_k=\bar\mu\min\Big(\frac{Z_k}{Z},1\Big)

    with :math:`Z_k` the number of its earlier participations: a private model is at first the model
    that was trained last, and changes ever more slowly. Metrics evaluate the :math:`p_k`; clients
    that do not participate keep theirs, which are initially the initial models, as in the authors'
    code. With :math:`\alpha=1` the server's model is federated averaging's, and with
    :math:`\bar\mu=0`, too, :math:`p_k` is the client's last trained model of federated averaging.

    Sources differ. The paper transfers knowledge by logits, which is this, or by the maximum mean
    discrepancy of representations. Here both softmaxes have the same temperature, so that the
    divergence is least where the two models agree; the authors' code softens the private one alone,
    with 4. In the paper :math:`Z=QT`, the participations to be expected of :math:`T` rounds with a
    share :math:`Q` of clients each. PFLlib starts training between the server's model and the
    client's own, and transfers from the server's.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      supervision: :math:`\alpha\in[0,1]`, the weight of the labels.
      temperature: :math:`\tau>0`.
      inheritance: :math:`\bar\mu\in[0,1)`, the weight of a private model's past in the end; the
        paper's is 0.9.
      warmup: :math:`Z\ge1`, the participations until then.

    Raises:
      ValueError: a weight outside its range, a temperature that is not positive, a loss that is not
        :class:`~fljax.problems.Softmax`; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.softmax(
      ...         jax.random.key(0), clients=6, samples=20, dim=4, classes=3
      ...     ),
      ...     algorithm=fl.algorithms.FedPHP(0.1, epochs=5, warmup=20),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    supervision: Float[Array, ""] | float = dataclasses.field(default=0.9, kw_only=True)
    temperature: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    inheritance: Float[Array, ""] | float = dataclasses.field(default=0.9, kw_only=True)
    warmup: int = static(default=100, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.interval("supervision", self.supervision, at_least=0, at_most=1)
        checks.positive("temperature", self.temperature)
        checks.interval("inheritance", self.inheritance, at_least=0, below=1)
        checks.count("warmup", self.warmup)

    def init(self, problem: Problem, network: Network) -> FedPHPState:
        times = jnp.zeros(problem.clients, jnp.int32)
        return FedPHPState(start_models(problem), server_start(problem), times)

    def step(self, state: FedPHPState, now: Round) -> FedPHPState:
        cohort = self.invite(now)
        server = now.link.publish(state.server, cohort.active)
        private, times = cohort.participants.take((state.model, state.times))

        inherited = along_losses(distillation_losses(self.supervision, self.temperature))
        learned = self.learn(now, cohort, server, direction=inherited, context=private)
        server = self.collect(now, cohort, learned.model, server).move(server)
        past = jnp.minimum(times, self.warmup).astype(server.dtype) / self.warmup
        past = self.inheritance * past[:, None]
        private = past * private + (1 - past) * learned.model
        put = cohort.participants.put
        return FedPHPState(put(state.model, private), server, put(state.times, times + 1))
