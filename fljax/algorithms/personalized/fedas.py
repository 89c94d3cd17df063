r"""FedAS: a received body aligned with a client's own, and averaged by Fisher information (Yang,
Huang and Ye 2024).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, replace, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.personalized.fedproto import OF_MEANS, class_sums
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import NoRegularizer, Problem, Reading, Softmax


class FedASState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  (theta_k, phi_k) at the end of the client's last participation
    server: Array  # [body]  theta


@algorithm(
    "FedAS",
    "yang2024",
    dataclasses.replace(OF_MEANS, representation=True, networks="one"),
)
@module
class FedAS(Averaging):
    r"""A common body that each client first aligns with its own, and personal heads.

    A client has the body :math:`\theta_k` and the head :math:`\varphi_k` of the end of its last
    participation. With the representation :math:`r_\theta(x)\in\mathbb R^R` of a body and
    :math:`n_{k,c}` samples of class :math:`c`, a participant of round :math:`n` computes the
    prototypes of its own body, and moves the received one toward them (*parameter alignment*),

    .. math::

        r_{k,c}=\frac1{n_{k,c}}\sum_{j:y_{k,j}=c}r_{\theta_k}(x_{k,j}),\qquad
        \theta\leftarrow\theta-\eta\,\partial_\theta\sum_c\frac1{R\,n_{B,c}}
            \sum_{j\in B:y_{k,j}=c}\big\|r_\theta(x_{k,j})-r_{k,c}\big\|^2

    from :math:`\theta^{(n-1)}`, with :math:`n_{B,c}` samples of class :math:`c` in the batch
    :math:`B`. Then it takes local steps along :math:`f_k'` on all parameters, from this body and
    its head, and keeps the result :math:`w_k=(\theta_k,\varphi_k)`. It sends its body and the trace
    of its empirical Fisher information, by which the server weighs bodies (*client
    synchronization*),

    .. math::

        F_k=\frac1{D_k}\sum_j\big\|\partial_w\ell(x_{k,j},y_{k,j};w_k)\big\|^2,\qquad
        \theta^{(n)}=\theta^{(n-1)}+\frac{\sum_{k\in S}q_kF_k(\theta_k-\theta^{(n-1)})}
            {\sum_{k\in S}q_kF_k}

    so that clients that have been trained little, with an uninformative model, count little. The
    message is :math:`(F_k(\theta_k-\theta^{(n-1)}),F_k)`, one number more than the body has: the
    server uses the sums alone, which masks may hide, and a late message is relative to the body
    that its client had received. If all traces are zero, the body stays.

    Metrics evaluate the :math:`w_k`, which clients that do not participate keep. Alignment is not
    regularized. A linear prediction is all head, so that nothing is shared.

    Sources differ. In the authors' code, which PFLlib has as well, the trace is the sum over
    batches of the squared norm of their mean gradient, which for batches of one sample is
    :math:`D_kF_k`, here ``weighting="samples"``; and alignment is one epoch in batches of 16
    samples. FL-bench aligns the mean representation of a batch's samples of a class, instead of
    each of them. Running statistics move in the steps of the alignment and go on in the local ones;
    prototypes and traces are those of the network in evaluation, before and after the steps.

    Args:
      step_size: :math:`\mu` of the local steps, as in :class:`~fljax.algorithms.FedAvg`, which also
        has the other arguments.
      alignment_step_size: :math:`\eta`, a schedule of the round or a number, > 0; the authors' is
        0.01.
      alignment_epochs: passes of the alignment, >= 1, each of as many steps as local training, on
        batches of its own; the authors' code has one.

    Raises:
      ValueError: no passes of the alignment, a loss that is not :class:`~fljax.problems.Softmax`, a
        network that does not define its representation (:func:`fljax.models.headed`); as for
        FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedAS(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Yang, Huang and Ye 2024.
    """

    alignment_step_size: Schedule = field(converter=as_schedule, default=0.01, kw_only=True)
    alignment_epochs: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("alignment_epochs", self.alignment_epochs)

    def message_size_of(self, problem: Problem) -> int:
        return len(problem.body_and_head()[0]) + 1

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), len(problem.body_and_head()[0])

    def gradients_per_step(self, problem: object) -> float:
        return self.alignment_epochs + 1.0

    def init(self, problem: Problem, network: Network) -> FedASState:
        return FedASState(start_models(problem), server_start(problem)[problem.body_and_head()[0]])

    def step(self, state: FedASState, now: Round) -> FedASState:
        cohort = self.invite(now, state.model, draws=self.alignment_epochs + 1)
        participants = cohort.participants
        body = now.problem.body_and_head()[0]
        server = now.link.publish(state.server, cohort.active)
        before = participants.take(state.model)

        part = participants.of(self.local_problem(now.problem))
        aligned = self.learn(
            now,
            cohort.over_sets(0, self.alignment_epochs),
            before.at[:, body].set(server[None]),
            step=self.alignment_step_size(now.number),
            direction=_alignment_gradient,  # zero for the heads
            context=_prototypes(part, before),
        ).model
        local = self.learn(now, cohort.over_sets(self.alignment_epochs, 1), aligned).model

        trace = _fisher_trace(now.networks.evaluating(part), local)[:, None]
        message = jnp.concatenate([trace * (local[:, body] - server[None]), trace], axis=1)
        total = self.collect(now, cohort, message, jnp.zeros_like(message[0])).total
        informed = total[-1] > 0
        change = jnp.where(informed, total[:-1] / jnp.where(informed, total[-1], 1), 0)
        return FedASState(participants.put(state.model, local), server + change)


def _prototypes(
    problem: Problem, models: Float[Array, "chosen dim"]
) -> Float[Array, "chosen classes width"]:
    """``r_{k,c}``; zero for a class without samples at the client, which no sample reads."""
    sums = class_sums(problem, problem.representations(models))
    return sums[..., :-1] / jnp.maximum(sums[..., -1:], 1)


def _alignment_gradient(
    part: Problem, model: Array, prototypes: Array
) -> Float[Array, "chosen dim"]:
    """Return the gradient of the distances to the prototypes, in which the classes of a batch count
    equally.
    """
    assert isinstance(part.loss, Softmax)
    of_class = jax.nn.one_hot(
        part.targets.astype(jnp.int32), part.loss.classes, dtype=prototypes.dtype
    )
    weights = jnp.asarray(part.weights).astype(prototypes.dtype)
    shares = jnp.einsum("kn,knc->kc", weights, of_class, precision=HIGHEST)
    factors = jnp.where(shares > 0, 1 / jnp.where(shares > 0, shares, 1), 0)

    def distances(samples: Reading, row: Array, context: tuple[Array, Array]) -> Array:
        prototypes, factors = context
        labels = samples.targets.astype(jnp.int32)
        difference = samples.representation(row) - prototypes[labels]
        return factors[labels] * jnp.mean(difference**2, axis=1)

    unregularized = replace(part, regularizer=NoRegularizer())
    return unregularized.gradient_of(distances, model, (prototypes, factors))


def _fisher_trace(problem: Problem, models: Float[Array, "chosen dim"]) -> Float[Array, " chosen"]:
    """``F_k``; zero without samples."""
    losses = replace(problem, regularizer=NoRegularizer())
    squares = jnp.sum(losses.sample_objective_norms(models) ** 2, axis=1)
    count = jnp.sum(jnp.asarray(problem.weights) > 0, axis=1)
    return squares / jnp.maximum(count, 1).astype(squares.dtype)
