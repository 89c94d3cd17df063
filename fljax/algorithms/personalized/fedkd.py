r"""FedKD: a personal mentor and a shared mentee, whose updates are of low rank (Wu et al. 2022)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.linalg import symmetric_eigen
from fljax._core.module import module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import (
    Needs,
    algorithm,
    parameter_shapes,
    representation_width,
    server_start,
    start_models,
)
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging
from fljax.graphs.federation import Network
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer, check_optimizer
from fljax.problems import Problem, Reading
from fljax.problems.streams import Stream


class FedKDState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the mentors v_k
    transform: Array  # [K, R * R]  A_k, row by row
    server: Array  # [D]  the mentee w
    behind: Array  # [K]  how many numbers each client has not yet received of the mentee


@algorithm(
    "FedKD",
    "wu2022",
    Needs(
        None,
        absent=True,
        late=True,
        averages=True,
        compressed=False,
        classes=True,
        representation=True,
        uploads=(),
    ),
)
@module
class FedKD(Averaging):
    r"""A personal mentor and a shared mentee teach each other; the mentee's updates are compressed.

    A participant of round :math:`n` has its mentor :math:`v_k` and receives the mentee
    :math:`w^{(n-1)}`. From both it takes steps, on the same batches, along the gradients of

    .. math::

        \ell(x,y;v)+\frac{\mathrm{KL}(p_w\|p_v)+H(v,w)}{L_v+L_w},\qquad
        \ell(x,y;w)+\frac{\mathrm{KL}(p_v\|p_w)+H(v,w)}{L_v+L_w},\qquad
        H(v,w)=\frac1R\|r(x;v)-A_kr(x;w)\|^2

    for :math:`v` and for :math:`w`, with :math:`p` the softmax of the logits, :math:`r\in\mathbb
    R^R` the representation and :math:`A_k\in\mathbb R^{R\times R}` the client's own, which learns
    along the gradient of :math:`H/(L_v+L_w)` and is at first the identity. :math:`L_v` and
    :math:`L_w` are the mean losses of the step's batch: models that are both poor there teach
    little. Each treats the other's outputs, and these losses, as constants.

    The client keeps :math:`v_k` and :math:`A_k`, and sends the update :math:`w_k-w^{(n-1)}`
    compressed; the server compresses the weighted average, and the mentee moves by the result. Of
    each matrix of parameters, with singular values :math:`\sigma_1\ge\sigma_2\ge\dots`, the
    compression keeps the first :math:`k`,

    .. math::

        \min k:\ \sum_{i\le k}\sigma_i^2>T_n\sum_i\sigma_i^2,\qquad
        T_n=T_{\text{start}}+(T_{\text{end}}-T_{\text{start}})\min\Big(\frac nN,1\Big)

    so that ever more of an update is sent as training needs it. Metrics evaluate the :math:`v_k`;
    clients that do not participate keep theirs.

    How many numbers are sent depends on the data. A matrix of :math:`P\times Q` counts as
    :math:`\min(k(P+Q+1),PQ)`: the two factors and the singular values, or the matrix itself
    where it has fewer; other parameters count as they are, and a kernel is a matrix of its last
    axis and all others. A participant receives the mentee's updates that it has missed since its
    last participation, or the mentee itself where it has fewer numbers; the start is known to all.
    Both ends know the ranks.

    Sources differ. In the paper the mentor is a larger network than the mentee; here both are the
    same, and may start elsewhere (:meth:`~fljax.problems.Problem.starting_at`), so that only
    the compression saves traffic. It also matches all hidden layers and their attention; here
    it is the representation. It compresses the gradient of each step, its authors' code an update
    of some steps. In that code gradients also pass through the losses in the denominators, and
    through the teacher's outputs. Steps may need to be short: the weight of the distillation grows
    as both models fit their batch.

    Args:
      step_size: :math:`\mu` of all three, as in :class:`~fljax.algorithms.FedAvg`, which also has
        the other arguments.
      energy: :math:`T_{\text{start}}\in(0,1]`; the authors' is 0.95.
      final_energy: :math:`T_{\text{end}}\in(0,1]`; theirs is 0.98. With 1 all is sent.
      warmup: :math:`N\ge1`, the rounds until then; theirs are all rounds of a run.

    Raises:
      ValueError: an energy outside (0, 1], no warmup, a loss that is not
        :class:`~fljax.problems.Softmax`, a network that does not define its representation
        (:func:`fljax.models.headed`); as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.FedKD(0.1, epochs=5, energy=0.5, final_energy=0.9, warmup=20),
      ...     metrics=["train_error"],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> error = run.train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True
      >>> bool(run.bits_up[-1] < 20 * 4 * simulation.problem.dim * 32)  # rounds, clients, bits
      True

    Reference:
      Wu et al. 2022, its Algorithm 1.
    """

    energy: Float[Array, ""] | float = dataclasses.field(default=0.95, kw_only=True)
    final_energy: Float[Array, ""] | float = dataclasses.field(default=0.98, kw_only=True)
    warmup: int = static(default=100, kw_only=True)

    def validate(self) -> None:
        super().validate()
        for name in ("energy", "final_energy"):
            checks.interval(name, getattr(self, name), above=0, at_most=1)
        checks.count("warmup", self.warmup)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        if isinstance(self.step_size, Optimizer):
            assert isinstance(problem, Problem)
            check_optimizer(self.step_size, _transform_layout(problem))

    def gradients_per_step(self, problem: object) -> float:
        return 3.0

    def init(self, problem: Problem, network: Network) -> FedKDState:
        start = start_models(problem)
        width = representation_width(problem)
        same = jnp.tile(jnp.eye(width, dtype=problem.dtype).reshape(1, -1), (problem.clients, 1))
        return FedKDState(start, same, server_start(problem), jnp.zeros(problem.clients, jnp.int32))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: FedKDState, now: Round) -> FedKDState:
        cohort = self.invite(now)
        dim = now.problem.dim
        participants = cohort.participants
        energy = self._energy(now)
        server = now.link.publish(state.server, cohort.active, size=participants.take(state.behind))
        mentors = participants.take(state.model)
        common = jnp.broadcast_to(server, mentors.shape)
        start = jnp.concatenate([mentors, common, participants.take(state.transform)], axis=1)
        layouts = *[now.problem.layout] * 2, _transform_layout(now.problem)
        learned = self.learn(now, cohort, start, direction=_mutual_gradients, layouts=layouts).model
        mentor, mentee, transform = jnp.split(learned, [dim, 2 * dim], axis=1)

        update, numbers = low_rank_updates(now.problem, mentee - server[None], energy)
        arrived = self.collect(now, cohort, server[None] + update, server, numbers=numbers)
        change, numbers = low_rank_updates(
            now.problem, (arrived.move(server) - server)[None], energy
        )

        behind = participants.put(state.behind, jnp.zeros_like(cohort.participants.numbers))
        missed = jnp.where(arrived.any, numbers[0], 0)
        return FedKDState(
            participants.put(state.model, mentor),
            participants.put(state.transform, transform),
            server + change[0],
            jnp.minimum(behind + missed, dim),
        )

    def _energy(self, now: Round) -> Float[Array, ""]:
        """``T_n``."""
        share = jnp.minimum(now.number, self.warmup).astype(now.problem.dtype) / self.warmup
        return self.energy + (self.final_energy - self.energy) * share


def _mutual_gradients(part: Problem, variables: Array, _: object) -> Array:
    """The gradients of mentors, mentees and transforms by their losses."""
    dim = part.dim
    mentor, mentee, transform = jnp.split(variables, [dim, 2 * dim], axis=1)
    losses = part.mean_loss(mentor) + part.mean_loss(mentee)
    share = 1 / jnp.maximum(losses, jnp.finfo(losses.dtype).tiny)

    def of_mentor(samples: Reading, model: Array, context: PyTree) -> Array:
        mentee, transform, share = context
        distance = _divergence(samples, model, mentee) + _representation_distance(
            samples, model, mentee, transform
        )
        return samples.losses(samples.predictions(model)) + share * distance

    def of_mentee(samples: Reading, model: Array, context: PyTree) -> Array:
        mentor, transform, share = context
        distance = _divergence(samples, model, mentor) + _representation_distance(
            samples, mentor, model, transform
        )
        return samples.losses(samples.predictions(model)) + share * distance

    def of_transform(samples: Reading, transform: Array, context: PyTree) -> Array:
        mentor, mentee, share = context
        return share * _representation_distance(samples, mentor, mentee, transform)

    gradients = (
        part.gradient_of(of_mentor, mentor, (mentee, transform, share)),
        part.gradient_of(of_mentee, mentee, (mentor, transform, share)),
        part.gradient_of(of_transform, transform, (mentor, mentee, share)),
    )
    return jnp.concatenate(gradients, axis=1)


def _divergence(samples: Reading, model: Array, teacher: Array) -> Float[Array, " samples"]:
    """Return the divergence of the model's softmax from the teacher's, of each sample."""
    log_student, log_teacher = (
        jax.nn.log_softmax(samples.predictions(row), axis=1) for row in (model, teacher)
    )
    return jnp.sum(jnp.exp(log_teacher) * (log_teacher - log_student), axis=1)


def _representation_distance(
    samples: Reading, mentor: Array, mentee: Array, transform: Array
) -> Float[Array, " samples"]:
    """The mean square of the mentor's representation without the mentee's, transformed."""
    representation = samples.representation(mentor)
    mentee_representation = samples.representation(mentee)
    matrix = transform.reshape(representation.shape[1], representation.shape[1])
    return jnp.mean(
        (representation - jnp.matmul(mentee_representation, matrix.T, precision=HIGHEST)) ** 2,
        axis=1,
    )


def low_rank_updates(
    problem: Problem, rows: Float[Array, "some dim"], energy: Float[Array, ""]
) -> tuple[Float[Array, "some dim"], Int[Array, " some"]]:
    """The compressed updates, and how many numbers each has."""
    shapes = parameter_shapes(problem)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1].tolist()
    parts = []
    numbers = jnp.zeros(len(rows), jnp.int32)
    for part, shape in zip(jnp.split(rows, ends, axis=1), shapes, strict=True):
        if len(shape) < 2:
            parts.append(part)
            numbers = numbers + part.shape[1]
            continue
        matrices = part.reshape(len(rows), -1, shape[-1])
        tall = matrices.shape[1] >= matrices.shape[2]
        matrices = matrices if tall else jnp.swapaxes(matrices, 1, 2)
        matrices, rank = truncate_spectrum(matrices, energy)
        counted = rank * (matrices.shape[1] + matrices.shape[2] + 1)
        numbers = numbers + jnp.minimum(counted, part.shape[1]).astype(jnp.int32)
        matrices = matrices if tall else jnp.swapaxes(matrices, 1, 2)
        parts.append(matrices.reshape(part.shape))
    return jnp.concatenate(parts, axis=1), numbers


def truncate_spectrum(
    matrices: Float[Array, "some tall narrow"], energy: Float[Array, ""]
) -> tuple[Float[Array, "some tall narrow"], Int[Array, " some"]]:
    """The matrices on their first right singular vectors, and the numbers of these."""
    gram = jnp.einsum("kpq,kpr->kqr", matrices, matrices, precision=HIGHEST)
    squares, vectors = symmetric_eigen(gram)
    squares = jnp.maximum(squares, 0)
    order = jnp.argsort(-squares, axis=1)
    ordered = jnp.take_along_axis(squares, order, axis=1)
    before = jnp.cumsum(ordered, axis=1) - ordered
    retained = (before <= energy * jnp.sum(ordered, axis=1, keepdims=True)) & (ordered > 0)
    vectors = jnp.take_along_axis(vectors, order[:, None], axis=2)
    vectors = jnp.where(retained[:, None], vectors, 0)
    projection = jnp.einsum("kqi,kri->kqr", vectors, vectors, precision=HIGHEST)
    matrices = jnp.einsum("kpq,kqr->kpr", matrices, projection, precision=HIGHEST)
    return matrices, jnp.sum(retained, axis=1, dtype=jnp.int32)


def _transform_layout(problem: Problem) -> Layout:
    """The layout of the matrix that a client learns in addition to its models."""
    width = representation_width(problem)
    return Layout(jax.tree.structure({"transform": 0}), ((width, width),), ("transform",))
