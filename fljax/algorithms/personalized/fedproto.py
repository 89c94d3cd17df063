r"""Means of each class in the place of models: FedProto (Tan et al. 2022), and its base."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.local_steps import along_losses
from fljax.algorithms.server.base import LocalLearning
from fljax.problems import Problem, Reading, Softmax
from fljax.rounds import Round

__all__ = ["ClassMeans", "FedProto", "State", "class_sums"]

#: Needs of a server that divides one sum over its participants' messages by another.
OF_MEANS = Needs(None, absent=True, late=True, masked=True, classes=True)


class State(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  w_k
    means: Array  # [C, R]  the server's, of each class
    known: Array  # [C]  of which classes it has one


@module
class ClassMeans(LocalLearning):
    r"""Base class: clients learn models of their own and share what these say of each class.

    A participant takes local steps along its loss plus a pull of what its model says of a sample of
    class :math:`y`, :math:`s(w_k,x)\in\mathbb R^R`, toward the server's mean :math:`\bar s_y`, and
    replies with its own means. A subclass has :meth:`says`, for some samples in a step, and
    :meth:`said`, for all.

    Args:
      step_size: as in :class:`~fljax.algorithms.server.base.LocalLearning`, which also has the
        other arguments.
      attraction: :math:`\lambda\ge0`.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.nonnegative("attraction", self.attraction)

    @_check.required
    def says(self, own: Reading, model: Float[Array, " dim"]) -> tuple[Array, Array]:
        """Return what a model says of samples, ``[N, R]``, and its logits, ``[N, C]``."""
        raise NotImplementedError

    @_check.required
    def said(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        """Return what clients' models say of their samples, ``[K, N, R]``."""
        raise NotImplementedError

    def _sums(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        """Return the sums of what is said of each class, and the numbers of its samples beside
        them, ``[K, C, R + 1]``.
        """
        return class_sums(problem, self.said(problem, models))

    def init(self, problem: Problem, network: Any) -> State:
        classes, width = self._size(problem)
        nothing = jnp.zeros((classes, width - 1), problem.dtype)
        return State(start_models(problem), nothing, jnp.zeros(classes, bool))

    def message_size_of(self, problem: Problem) -> int:
        classes, width = self._size(problem)
        return classes * width

    def _size(self, problem: Problem) -> tuple[int, int]:
        """``C`` and ``R + 1``, of a problem or of its shapes alone."""

        def sums(known: Problem) -> Array:
            return self._sums(known, start_models(known))

        _, classes, width = jax.eval_shape(sums, problem).shape
        return classes, width

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        told = jnp.concatenate([state.means, state.known[:, None].astype(state.means.dtype)], 1)
        told = now.link.publish(told.reshape(-1), cohort.here).reshape(told.shape)

        def attracted(own: Reading, model: Array, _: Any) -> Array:
            said, logits = self.says(own, model)
            there = told[own.targets.astype(jnp.int32)]
            away = jnp.mean((said - there[:, :-1]) ** 2, axis=1)
            return own.losses(logits) + self.attraction * there[:, -1] * away

        start = cohort.who.take(state.model)
        local = self.learn(now, cohort, start, direction=along_losses(attracted)).model
        said = self._sums(cohort.who.of(now.problem), local)
        said = said.reshape(len(said), -1)
        total = self.collect(now, cohort, said, jnp.zeros_like(said[0])).total.reshape(told.shape)

        counts = total[:, -1:]
        heard = counts > 0
        means = jnp.where(heard, total[:, :-1] / jnp.where(heard, counts, 1), state.means)
        return State(cohort.who.put(state.model, local), means, state.known | heard[:, 0])


def class_sums(
    problem: Problem, said: Float[Array, "clients samples width"]
) -> Float[Array, "clients classes numbers"]:
    """Return the sums of what is said of clients' samples by class, and the numbers of its samples
    beside them, ``[K, C, R + 1]``.
    """
    assert isinstance(problem.loss, Softmax)
    labels = problem.targets.astype(jnp.int32)
    of_class = jax.nn.one_hot(labels, problem.loss.classes, dtype=said.dtype)
    of_class = jnp.where(problem.weights[..., None] > 0, of_class, 0)
    said = jnp.concatenate([said, jnp.ones_like(said[..., :1])], axis=2)
    return jnp.einsum("knc,knr->kcr", of_class, said, precision=HIGHEST)


@algorithm("FedProto", "tan2022", dataclasses.replace(OF_MEANS, representation=True))
@module
class FedProto(ClassMeans):
    r"""Clients with models of their own share the mean representation of each class.

    With :math:`r(w,x)\in\mathbb R^R` what a model makes of a sample before its last layer, a
    participant of round :math:`n` takes local steps from its own model along the gradient of

    .. math::

        \frac1{D_k}\sum_j\Big(\ell(x_{k,j},y_{k,j};w_k)
            +\frac\lambda R\big\|r(w_k,x_{k,j})-\bar r_{y_{k,j}}^{(n-1)}\big\|^2\Big)

    and then says the prototype of each of its classes; the server's are their means by samples:

    .. math::

        r_{k,c}=\frac1{n_{k,c}}\sum_{j:y_{k,j}=c}r(w_k,x_{k,j}),\qquad
        \bar r_c^{(n)}=\frac{\sum_{k\in S}n_{k,c}r_{k,c}}{\sum_{k\in S}n_{k,c}}

    No model is ever sent: a message has :math:`C(R+1)` numbers, the sums and the counts up, the
    means and which of them are known down. A class of which the server knows nothing pulls nobody;
    one of which no participant has samples keeps its prototype. Initially it knows none, and
    clients that do not participate keep their models. :math:`\lambda=0` is
    :class:`~fljax.algorithms.LocalOnly`.

    Sources differ. The distance is of each sample's representation, in its mean square, as in the
    authors' code; the paper's equation has that of a batch's prototypes. The server's mean is by
    numbers of samples as in the paper, without its second division by the number of clients, which
    would shrink prototypes; the authors' code gives clients equal weights. Metrics evaluate the
    clients' networks; the paper classifies by the nearest prototype.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.server.base.LocalLearning`, which also
        has the other arguments.
      attraction: :math:`\lambda\ge0`.

    Raises:
      ValueError: a negative attraction, a loss that is not :class:`~fljax.problems.Softmax`, a
        network that does not say its representation (:func:`fljax.models.headed`).

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

    def says(self, own: Reading, model: Float[Array, " dim"]) -> tuple[Array, Array]:
        read = own.representation(model)
        return read, own.head(model, read)

    def said(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        return problem.representations(models)
