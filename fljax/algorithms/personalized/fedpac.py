r"""FedPAC: features aligned with global centroids, and heads combined for each client (Xu et al.
2023).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.linalg import simplex_minimizers
from fljax._core.module import module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import Direction, along_gradient, along_losses
from fljax.algorithms.personalized.fedproto import class_sums
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading


class FedPACState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  (theta, phi_k): the heads as the server has combined them
    body: Array  # [body]  theta
    means: Array  # [C, R]  the centroids of the classes' representations
    known: Array  # [C]  which classes have a centroid


@algorithm(
    "FedPAC",
    "xu2023",
    Needs(None, absent=True, classes=True, representation=True, trains=True),
)
@module
class FedPAC(Averaging):
    r"""A common body aligned with the centroids of classes, and a head combined for each client.

    With the representation :math:`r_\theta(x)\in\mathbb R^R` of a body :math:`\theta`, a
    participant of round :math:`n` receives :math:`\theta^{(n-1)}`, its head :math:`\varphi_k` and
    the centroids :math:`\bar r_c` of the classes. It measures its samples' moments, with
    :math:`\hat p_k(c)` the share of class :math:`c` among its :math:`D_k` samples,

    .. math::

        h_{k,c}=\frac1{D_k}\sum_{j:y_{k,j}=c}r(x_{k,j}),\qquad
        V_k=\frac1{D_k}\Big(\frac1{D_k}\sum_j\|r(x_{k,j})\|^2-\sum_c\|h_{k,c}\|^2\Big)

    fits its head to the received body along :math:`\partial_\varphi f_k` for :math:`\tau` passes,
    then the body to the new head, with a pull of its representations toward the centroids:

    .. math::

        \theta_k\leftarrow\theta_k-\mu\,\partial_\theta\frac1{D_k}\sum_j\Big(
            \ell(x_{k,j},y_{k,j};\theta_k,\varphi_k)
            +\frac\lambda R\big\|r_{\theta_k}(x_{k,j})-\bar r_{y_{k,j}}\big\|^2\Big)

    It sends both, its moments, and its sums of representations by class with their counts, of
    :math:`\theta_k`. The server averages the bodies as in :class:`~fljax.algorithms.FedAvg`, takes
    the means of each class over all samples as its centroids, and gives each participant the
    combination of all heads whose expected loss on that client's data it estimates to be least:

    .. math::

        \varphi_k\leftarrow\sum_{l\in S}\alpha_{k,l}\varphi_l,\qquad
        \alpha_k=\arg\min_{\alpha\ge0,\ \sum_l\alpha_l=1}\sum_{l\in S}\alpha_l^2V_l
            +\sum_c\Big\|h_{k,c}-\sum_{l\in S}\alpha_lh_{l,c}\Big\|^2

    The first term is the variance of the combination, that of heads fitted to few samples, the
    second its bias, that of heads of other distributions. It is one quadratic program of all
    participants with a linear term for each, which the device solves.

    A message up has :math:`D+C(2R+1)+1` numbers and one down :math:`D+C(R+1)`. Metrics evaluate
    :math:`(\theta^{(n)},\varphi_k)`, and clients that do not participate keep the heads that the
    server has combined for them last; so do participants without samples, whose heads are part of
    no combination. A class that is unknown to the server attracts no model, as all in
    the first round, and one without samples among the participants keeps its centroid. The
    server knows each head and its class distribution, so secure summation is not possible.

    Sources differ. In the paper the pull is the squared distance; divided by :math:`R` it is the
    mean square, as in the authors' code. In that code a class without centroid pulls toward a
    client's own mean of before its steps, heads have a step size of their own, weights
    :math:`\alpha` below 0.001 are zero, and eigenvalues below 0.01 of a quadratic that rounding
    made indefinite are left out. Running statistics are part of the common body and move in the
    steps of heads and bodies alike, as in PFLlib, whose clients keep them; moments and sums are
    those of the network in evaluation, with the statistics before and after the steps. Here a
    :math:`V_k` that noise or compression makes negative counts as zero.

    Args:
      step_size: :math:`\mu` of both, as in :class:`~fljax.algorithms.FedAvg`, which also has the
        other arguments; an optimizer is reinitialized for each. The paper weighs bodies by
        ``"samples"``.
      attraction: :math:`\lambda\ge0`.
      head_epochs: :math:`\tau\ge1`, passes of the head, each of as many steps as the body takes, on
        batches of its own; the paper's is 1.

    Raises:
      ValueError: a negative attraction, a loss that is not :class:`~fljax.problems.Softmax`, a
        network that does not define its representation (:func:`fljax.models.headed`); as for
        FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedPAC(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Xu, Tong and Huang 2023, Algorithm 1.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)
    head_epochs: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("attraction", self.attraction)
        checks.count("head_epochs", self.head_epochs)

    def message_size_of(self, problem: Problem) -> int:
        classes, width = _size(problem)
        return problem.dim + classes * (2 * width + 1) + 1

    def gradients_per_step(self, problem: object) -> float:
        return self.head_epochs + 1.0

    def init(self, problem: Problem, network: Network) -> FedPACState:
        start = start_models(problem)
        body = problem.body_and_head()[0]
        common = jnp.mean(start[:, body], axis=0)
        means = jnp.zeros(_size(problem), problem.dtype)
        model = start.at[:, body].set(common[None])
        return FedPACState(model, common, means, jnp.zeros(len(means), bool))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: FedPACState, now: Round) -> FedPACState:
        cohort = self.invite(now, state.model, draws=self.head_epochs + 1)
        participants = cohort.participants
        body, head = now.problem.body_and_head()
        classes, width = state.means.shape
        centroids = [state.means, state.known[:, None].astype(state.means.dtype)]
        broadcast = jnp.concatenate([state.body, jnp.concatenate(centroids, 1).reshape(-1)])
        broadcast = now.link.publish(broadcast, cohort.active, size=len(broadcast) + len(head))
        common = broadcast[: len(body)]
        centroids = broadcast[len(body) :].reshape(classes, width + 1)
        start = participants.take(state.model).at[:, body].set(common[None])

        part = participants.of(now.problem)
        moments, variance = _moments(part, start)
        local = self._train_participants(now, cohort, start, centroids)
        sums = _sums(now.networks.evaluating(part), local)
        pieces = [local, sums, moments, variance]
        message = jnp.concatenate([piece.reshape(len(local), -1) for piece in pieces], axis=1)
        message = now.link.send(message, clients=participants.numbers, sending=cohort.active)

        arrived = self.messages_arrived(now, cohort)
        ends = np.cumsum([now.problem.dim, sums[0].size, moments[0].size])
        message = jnp.where(arrived[:, None], message, 0)
        local, sums, moments, variance = jnp.split(message, ends, axis=1)
        change = local[:, body] - state.body[None]
        common = state.body + self.shares(cohort, arrived, local.dtype) @ change
        sums = sums.reshape(len(sums), classes, width + 1)
        # Participants without samples have neither moments nor a head to combine.
        has_head = arrived & (jnp.sum(sums[..., -1], axis=1) > 0)
        heads = _combine_heads(local[:, head], moments, jnp.maximum(variance[:, 0], 0), has_head)
        total = jnp.sum(sums, axis=0)
        counts = total[:, -1:]
        present = counts > 0
        means = jnp.where(present, total[:, :-1] / jnp.where(present, counts, 1), state.means)

        old = participants.take(state.model)
        new = old.at[:, head].set(jnp.where(has_head[:, None], heads, old[:, head]))
        model = participants.put(state.model, new).at[:, body].set(common[None])
        return FedPACState(model, common, means, state.known | present[:, 0])

    def _train_participants(
        self, now: Round, cohort: Cohort, start: Array, centroids: Array
    ) -> Float[Array, "chosen dim"]:
        """The participants' models after the steps of their heads, then of their bodies."""
        body, head = now.problem.body_and_head()

        def train_part(
            cohort: Cohort, model: Array, indices: np.ndarray, direction: Direction
        ) -> Array:
            def whole(variables: Array, model: Array) -> Array:
                return model.at[:, indices].set(variables)

            def part_gradient(part: Problem, variables: Array, model: Array) -> Array:
                return direction(part, whole(variables, model), ())[:, indices]

            learned = self.learn(
                now,
                cohort,
                model[:, indices],
                direction=part_gradient,
                context=model,
                layouts=[now.problem.layout.part(indices)],
                whole=whole,
            )
            return model.at[:, indices].set(learned.model)

        def aligned(samples: Reading, model: Array, _: object) -> Array:
            representation = samples.representation(model)
            centroid = centroids[samples.targets.astype(jnp.int32)]
            distance = jnp.mean((representation - centroid[:, :-1]) ** 2, axis=1)
            return (
                samples.losses(samples.head(model, representation))
                + self.attraction * centroid[:, -1] * distance
            )

        heads = cohort.over_sets(0, self.head_epochs)
        model = train_part(heads, start, head, along_gradient)
        bodies = cohort.over_sets(self.head_epochs, 1)
        return train_part(bodies, model, body, along_losses(aligned))


def _size(problem: Problem) -> tuple[int, int]:
    """``C`` and ``R``, of a problem or of its shapes alone."""
    sums = jax.eval_shape(lambda shapes: _sums(shapes, start_models(shapes)), problem)
    return sums.shape[1], sums.shape[2] - 1


def _sums(problem: Problem, models: Array) -> Float[Array, "clients classes numbers"]:
    """Sums of representations by class, and the counts of its samples."""
    return class_sums(problem, problem.representations(models))


def _moments(problem: Problem, models: Array) -> tuple[Array, Array]:
    """``h_k``, ``[M, C, R]``, and ``V_k``, ``[M, 1]``."""
    representations = problem.representations(models)
    real = (problem.weights > 0).astype(representations.dtype)
    count = jnp.sum(real, axis=1, keepdims=True)
    count = jnp.maximum(count, 1)
    moments = class_sums(problem, representations)[..., :-1] / count[..., None]
    squares = jnp.sum(real * jnp.sum(representations**2, axis=2), axis=1, keepdims=True) / count
    return moments, (squares - jnp.sum(moments**2, axis=(1, 2))[:, None]) / count


def _combine_heads(
    heads: Float[Array, "chosen head"],
    moments: Float[Array, "chosen numbers"],
    variance: Float[Array, " chosen"],
    has_head: Bool[Array, " chosen"],
) -> Float[Array, "chosen head"]:
    """Return the combination of all heads for each participant that sent one."""
    products = jnp.matmul(moments, moments.T, precision=HIGHEST)
    # If no head arrived the result is unused, but the minimizers need an allowed entry.
    allowed = has_head | ~jnp.any(has_head)
    shares = simplex_minimizers(jnp.diag(variance) + products, products, allowed)
    return jnp.matmul(shares, heads, precision=HIGHEST)
