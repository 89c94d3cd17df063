r"""Means of each class instead of models: FedProto (Tan et al. 2022), and its base."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import LocalLearning
from fljax.graphs.federation import Network
from fljax.problems import Problem, Reading, Softmax
from fljax.problems.streams import Stream

#: Needs of a server that divides one sum over its participants' messages by another.
OF_MEANS = Needs(
    None, absent=True, late=True, masked=True, classes=True, networks="any", trains=True
)


class ClassMeansState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  w_k
    means: Array  # [C, R]  the server's, of each class
    known: Array  # [C]  which classes have a mean


@module
class ClassMeans(LocalLearning):
    r"""Base class: clients learn models of their own and share what these say of each class.

    A model has a value :math:`s(w_k,x)\in\mathbb R^R` of each sample, such as its representation. A
    participant takes local steps along its loss plus a term that attracts the values of samples of
    class :math:`y` toward the server's mean :math:`\bar s_y`, and replies with its own means, those
    of the network in evaluation. Running statistics stay at the clients as models do. A subclass
    defines :meth:`values_and_logits`, for some samples in a step, and :meth:`sample_values`, for
    all.

    Args:
      step_size: as in :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`, which also
        has the other arguments.
      attraction: :math:`\lambda\ge0`.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("attraction", self.attraction)

    @checks.required
    def values_and_logits(
        self, samples: Reading, model: Float[Array, " dim"]
    ) -> tuple[Array, Array]:
        """Return a model's values of samples, ``[N, R]``, and its logits, ``[N, C]``."""
        raise NotImplementedError

    @checks.required
    def sample_values(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        """Return the values of clients' samples under their models, ``[K, N, R]``."""
        raise NotImplementedError

    def _sums(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        """Return the sums of each class's values, followed by the number of its samples,
        ``[K, C, R + 1]``.
        """
        return class_sums(problem, self.sample_values(problem, models))

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        if problem.mixes_samples and problem.state_policy != "kept":
            raise ValueError(
                f"{type(self).__name__} leaves models at the clients, and running statistics with "
                "them; give the problem state='kept', or state='frozen'."
            )

    def init(self, problem: Problem, network: Network) -> ClassMeansState:
        classes, width = self._size(problem)
        zero = jnp.zeros((classes, width - 1), problem.dtype)
        return ClassMeansState(start_models(problem), zero, jnp.zeros(classes, bool))

    def message_size_of(self, problem: Problem) -> int:
        classes, width = self._size(problem)
        return classes * width

    def _size(self, problem: Problem) -> tuple[int, int]:
        """``C`` and ``R + 1``, of a problem or of its shapes alone."""

        def sums(shapes: Problem) -> Array:
            return self._sums(shapes, start_models(shapes))

        _, classes, width = jax.eval_shape(sums, problem).shape
        return classes, width

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def step(self, state: ClassMeansState, now: Round) -> ClassMeansState:
        cohort = self.invite(now)
        broadcast = jnp.concatenate(
            [state.means, state.known[:, None].astype(state.means.dtype)], 1
        )
        broadcast = now.link.publish(broadcast.reshape(-1), cohort.active).reshape(broadcast.shape)

        def attracted(samples: Reading, model: Array, _: object) -> Array:
            values, logits = self.values_and_logits(samples, model)
            reference = broadcast[samples.targets.astype(jnp.int32)]
            distance = jnp.mean((values - reference[:, :-1]) ** 2, axis=1)
            return samples.losses(logits) + self.attraction * reference[:, -1] * distance

        start = cohort.participants.take(state.model)
        local = self.learn(now, cohort, start, direction=along_losses(attracted)).model
        part = now.networks.evaluating(cohort.participants.of(now.problem))
        message = self._sums(part, local)
        message = message.reshape(len(message), -1)
        total = self.collect(now, cohort, message, jnp.zeros_like(message[0])).total.reshape(
            broadcast.shape
        )

        counts = total[:, -1:]
        present = counts > 0
        means = jnp.where(present, total[:, :-1] / jnp.where(present, counts, 1), state.means)
        return ClassMeansState(
            cohort.participants.put(state.model, local), means, state.known | present[:, 0]
        )


def class_sums(
    problem: Problem, values: Float[Array, "clients samples width"]
) -> Float[Array, "clients classes numbers"]:
    """Return the sums of the values of clients' samples by class, followed by the number of its
    samples, ``[K, C, R + 1]``.
    """
    assert isinstance(problem.loss, Softmax)
    labels = problem.targets.astype(jnp.int32)
    of_class = jax.nn.one_hot(labels, problem.loss.classes, dtype=values.dtype)
    of_class = jnp.where(problem.weights[..., None] > 0, of_class, 0)
    values = jnp.concatenate([values, jnp.ones_like(values[..., :1])], axis=2)
    return jnp.einsum("knc,knr->kcr", of_class, values, precision=HIGHEST)


@algorithm("FedProto", "tan2022", dataclasses.replace(OF_MEANS, representation=True))
@module
class FedProto(ClassMeans):
    r"""Clients with models of their own share the mean representation of each class.

    With :math:`r(w,x)\in\mathbb R^R` a model's representation of a sample before its last layer, a
    participant of round :math:`n` takes local steps from its own model along the gradient of

    .. math::

        \frac1{D_k}\sum_j\Big(\ell(x_{k,j},y_{k,j};w_k)
            +\frac\lambda R\big\|r(w_k,x_{k,j})-\bar r_{y_{k,j}}^{(n-1)}\big\|^2\Big)

    and then sends the prototype of each of its classes; the server's are their means by samples:

    .. math::

        r_{k,c}=\frac1{n_{k,c}}\sum_{j:y_{k,j}=c}r(w_k,x_{k,j}),\qquad
        \bar r_c^{(n)}=\frac{\sum_{k\in S}n_{k,c}r_{k,c}}{\sum_{k\in S}n_{k,c}}

    No model is ever sent: a message has :math:`C(R+1)` numbers, the sums and the counts up, the
    means and which of them are known down. A class that is unknown to the server attracts no
    model; one without samples among the participants keeps its prototype. Initially none is known,
    and clients that do not participate keep their models. :math:`\lambda=0` is
    :class:`~fljax.algorithms.LocalOnly`.

    Sources differ. The distance is of each sample's representation, in its mean square, as in the
    authors' code; the paper's equation has that of a batch's prototypes. The server's mean is by
    numbers of samples as in the paper, without its second division by the number of clients, which
    would shrink prototypes; the authors' code gives clients equal weights. Metrics evaluate the
    clients' networks; the paper classifies by the nearest prototype. Prototypes are those of the
    network in evaluation after the steps, with the client's own running statistics, which no client
    sends (``Model(state="kept")``); in PFLlib they are means over the steps, in training.

    Args:
      step_size: :math:`\mu`, as in
        :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`, which also has the other
        arguments.
      attraction: :math:`\lambda\ge0`.

    Raises:
      ValueError: a negative attraction, a loss that is not :class:`~fljax.problems.Softmax`, a
        network that does not define its representation (:func:`fljax.models.headed`).

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedProto(0.1, attraction=0.5, epochs=5),
      ... )
      >>> run = fl.run(simulation, rounds=10)
      >>> int(run.bits_up[-1]) == 10 * 4 * 3 * (16 + 1) * 32  # rounds, clients, means, bits
      True

    Reference:
      Tan et al. 2022, Algorithm 1.
    """

    def validate(self) -> None:
        super().validate()

    def values_and_logits(
        self, samples: Reading, model: Float[Array, " dim"]
    ) -> tuple[Array, Array]:
        representation = samples.representation(model)
        return representation, samples.head(model, representation)

    def sample_values(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        return problem.representations(models)
