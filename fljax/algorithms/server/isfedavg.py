r"""Federated averaging with importance sampling of clients and samples (Rizk 2023, chapter 2).

The state holds *unbounded* probabilities, of sum one. Draws are by *bounded* ones, with the floor
mixed in and the excess over the cap redistributed. A round draws clients, draws a batch for each of
their steps, and, with ``rule="sampled"``, updates the unbounded probabilities by the gradients that
the participants have seen.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.linalg import norm
from fljax._core.module import field, module, static
from fljax._core.random_subsets import systematic
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import counts_of
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Participants
from fljax.problems import Problem, optimum
from fljax.problems.batches import (
    Batch,
    Counts,
    Order,
    check_per_client,
    in_order,
    ordered,
    per_client,
    taken,
)

#: The rules for the probabilities.
RULES = ("optimal", "full", "sampled")


class ISFedAvgState(NamedTuple):
    """State of ISFedAvg between rounds."""

    model: Array  # [D]  the server's w
    clients: Array  # [K]  p_k, of sum one
    samples: Array | None  # [K, N]  p_n of each client, of sum one; None: computed in every round


class _Workload(NamedTuple):
    """How much each of some clients computes."""

    clients: Array  # [L]  their numbers
    real: Array  # [L, N]  which rows of its data are samples
    steps: Array  # [L]  E_k
    batch: Array  # [L]  B_k


class _LocalResult(NamedTuple):
    """The result of the participants' local steps."""

    model: Array  # [L, D]
    probabilities: Array  # [L, N]  of their samples, updated if the rule is "sampled"
    gradient_norms: Array  # [E, L]  norms of the estimates of each step


@algorithm(
    "ISFedAvg",
    ("rizk2022", "rizk2023"),
    Needs(None, absent=False, averages=True, uploads=("models", "updates"), masked=True),
)
@module
class ISFedAvg(Algorithm):
    r"""Federated averaging with unbiased importance sampling of clients and of samples.

    In each round :math:`L` clients participate, client :math:`k` with inclusion probability
    :math:`Lp_k`; in each of its :math:`E_k` steps it draws :math:`B_k` samples, sample :math:`n`
    with inclusion probability :math:`B_kp_n^{(k)}`:

    .. math::

        w_{k,e}=w_{k,e-1}-\frac{\mu}{Kp_kE_kB_k}\sum_{b\in\mathcal B_{k,e}}
            \frac1{N_kp_b^{(k)}}Q_k'(w_{k,e-1};x_{k,b}),\qquad
        w^{(n)}=\frac1L\sum_{k\in\mathcal L}w_{k,E_k}

    with :math:`Q_k` the loss of a sample, times the client's weight, plus the regularizer. The
    probabilities with the least gradient noise are

    .. math::

        p_n^{(k)}\propto\|Q_k'(w;x_{k,n})\|,\qquad
        p_k\propto\sqrt{\sigma_k^2+\big(3+\tfrac6{E_kB_k}\big)\|f_k'(w)\|^2},\qquad
        \sigma_k^2=\frac6{E_kB_kN_k^2}\sum_n\frac{\|Q_k'(w;x_{k,n})\|^2}{p_n^{(k)}}

    * ``"optimal"``: at the minimizer :math:`w^o` of the common objective, which is unknown in
      practice;
    * ``"full"``: at :math:`w^{(n-1)}`, for which every client evaluates all of its samples;
    * ``"sampled"``: the total probability of the drawn clients, or samples, is redistributed among
      them according to their norms at :math:`w^{(n-1)}`; the others keep their probabilities.
      Initially all probabilities are equal. For :math:`f_k'` a participant uses the estimate of
      its first step, for :math:`\sigma_k^2` all of its samples under its current probabilities
      (the source leaves this open; the estimate from one batch, with its heavy tails, gave no
      improvement).

    Both the server and the clients then know the probabilities; the norms that clients send in
    addition, one or two numbers each, are not counted as communication.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      clients_per_round: :math:`L`, the number of participants.
      batch: :math:`B_k`, samples per step, one number or one per client.
      local_steps: :math:`E_k`, one number or one per client.
      rule: as above.
      floor: the share of the uniform distribution that is mixed into every probability, in [0, 1];
        without it, a sample whose gradient vanishes once is never drawn again.
      cap: whether probabilities are capped at :math:`1/L` and :math:`1/B_k`, with the excess
        redistributed to the others, so that none is drawn twice at a time. (One that is drawn twice
        is counted twice.)

    Raises:
      ValueError: more participants than clients, a batch larger than the smallest client's samples.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.ISFedAvg(0.05, clients_per_round=3, batch=4, local_steps=2)
      >>> run = fl.run(fl.Simulation(problem, algorithm, metrics=["objective"]), rounds=20)
      >>> int(run.bits_up[-1]), bool(run.objective[-1] < run.objective[0])  # 20 rounds, 3 clients
      (3840, True)

    Reference:
      Rizk, Vlaski & Sayed 2022; Rizk 2023, Algorithm 2.1, (2.10)-(2.11) and (2.46)-(2.54).
    """

    step_size: Schedule = field(converter=as_schedule)
    clients_per_round: int = static()
    batch: Counts = field(converter=partial(per_client, "batch"), static=True, default=1)
    local_steps: Counts = field(
        converter=partial(per_client, "local_steps"), static=True, default=1
    )
    rule: str = static(default="sampled")
    floor: Float[Array, ""] | float = 1e-3
    cap: bool = static(default=True)

    def validate(self) -> None:
        checks.count("clients_per_round", self.clients_per_round)
        checks.choice("rule", self.rule, RULES)
        checks.interval("floor", self.floor, at_least=0, at_most=1)

    def check(self, problem: Problem, network: Network) -> None:
        for name in ("batch", "local_steps"):
            check_per_client(name, getattr(self, name), problem.clients)

        def check(batch: Array | np.ndarray, counts: Array | np.ndarray) -> None:
            batch = np.asarray(batch)
            counts = np.asarray(counts)
            # A client of importance zero counts none of its samples, and draws none.
            missing = np.where(counts > 0, batch - counts, 0)
            if np.any(missing > 0):
                k = int(np.argmax(missing))
                raise ValueError(
                    f"client {k} has {counts[k]} samples, fewer than its batch of "
                    f"{np.broadcast_to(batch, counts.shape)[k]}."
                )

        checks.check_when_concrete(check, np.asarray(self.batch), problem.sample_counts())
        if self.clients_per_round > problem.clients:
            raise ValueError(
                f"clients_per_round must be at most the {problem.clients} clients, got "
                f"{self.clients_per_round}."
            )

    def init(self, problem: Problem, network: Network) -> ISFedAvgState:
        if self.rule == "optimal":
            minimizer = optimum(problem)
            return ISFedAvgState(server_start(problem), *self._optimal(problem, minimizer))
        equal = jnp.full(problem.clients, 1 / problem.clients, problem.dtype)
        if self.rule == "full":
            return ISFedAvgState(server_start(problem), equal, None)
        zeros = jnp.zeros(problem.weights.shape, problem.dtype)
        return ISFedAvgState(server_start(problem), equal, _normalized(zeros, problem.weights > 0))

    def step(self, state: ISFedAvgState, now: Round) -> ISFedAvgState:
        problem = now.problem
        link = now.link
        count = self.clients_per_round
        by_client, by_sample = self._unbounded(problem, state)
        inclusion = self._bounded_by_client(by_client)
        chosen = systematic(now.key("participation"), inclusion, count, count)
        participants = Participants(chosen, jnp.ones(count, bool))
        server = link.publish(state.model, participants.here)
        workload = self._workload(problem, participants)
        start = jnp.broadcast_to(server, (count, problem.dim))
        step_size = self.step_size(now.number)
        # Divided by p_k, so that the mean over the drawn clients is unbiased.
        chance = inclusion[chosen]
        length = step_size / (problem.clients * chance * workload.steps.astype(problem.dtype))

        before = by_sample[chosen]
        local = self._local_steps(now, workload, start, length, before)
        if self.rule == "sampled":
            norms = problem.take(chosen).sample_objective_norms(start)
            scale = self._client_scale(norms, before, workload, local.gradient_norms[0])
            by_client = redistributed(by_client[None], chosen[None], scale[None])[0]
            by_sample = by_sample.at[chosen].set(local.probabilities)
        arrived = link.collect(
            local.model, participants.here, server, clients=chosen, step_size=step_size
        )
        samples = None if state.samples is None else by_sample
        return ISFedAvgState(arrived.move(server), by_client, samples)

    def _local_steps(
        self,
        now: Round,
        workload: _Workload,
        start: Float[Array, "chosen dim"],
        length: Float[Array, " chosen"],
        before: Float[Array, "chosen samples"],
    ) -> _LocalResult:
        """Take the participants' steps of these lengths along estimates of their gradients."""
        chosen = workload.clients
        real = workload.real
        longest = int(np.max(self.local_steps))
        order = in_order(now.key("batches"), real, longest, before.dtype)

        def draw(probabilities: Array, order: Order) -> Batch:
            bounded = self._bounded(probabilities, real, workload.batch)
            return ordered(order, bounded, self.batch, chosen, real)

        # Where steps do not change the probabilities, the batches of all steps are drawn together.
        batches = None if self.rule == "sampled" else draw(before, order)

        def local_step(carry: tuple[Array, Array], step: Array) -> tuple[Any, Array]:
            model, probabilities = carry
            active = (step < workload.steps)[:, None]
            if batches is None:
                batch = draw(probabilities, order._replace(starts=order.starts[:, step][:, None]))
                part = taken(now.problem, chosen, batch, 0)
                rows = batch.rows[:, 0]
                updated = redistributed(probabilities, rows, part.sample_objective_norms(start))
                probabilities = jnp.where(active, updated, probabilities)
            else:
                part = taken(now.problem, chosen, batches, step)
            estimate = _estimate(part, model)
            new = model - length[:, None] * estimate
            return (jnp.where(active, new, model), probabilities), norm(estimate)

        steps = jnp.arange(longest, dtype=jnp.int32)
        (model, probabilities), gradient_norms = jax.lax.scan(local_step, (start, before), steps)
        return _LocalResult(model, probabilities, gradient_norms)

    def probabilities(self, problem: Problem, state: ISFedAvgState) -> tuple[Array, Array]:
        """Return the probabilities of clients ``[K]`` and samples ``[K, N]`` in a state, with the
        floor and the cap applied.
        """
        workload = self._workload(problem, Participants(None, jnp.ones(problem.clients, bool)))
        by_client, by_sample = self._unbounded(problem, state)
        bounded = self._bounded(by_sample, workload.real, workload.batch)
        return self._bounded_by_client(by_client), bounded

    def _workload(self, problem: Problem, participants: Participants) -> _Workload:
        steps = counts_of(self.local_steps, participants)
        weights = jnp.asarray(problem.weights)
        real = (weights if participants.clients is None else weights[participants.clients]) > 0
        batch = counts_of(self.batch, participants)
        return _Workload(participants.numbers, real, steps, batch)

    def _unbounded(self, problem: Problem, state: ISFedAvgState) -> tuple[Array, Array]:
        """Return the probabilities of clients and of samples before the floor and the cap."""
        if state.samples is None:
            return self._optimal(problem, state.model)
        return state.clients, state.samples

    def _bounded(self, probabilities: Array, real: Array, count: Array) -> Array:
        """Return probabilities with the floor and the cap applied, for ``count`` draws of each."""
        dtype = probabilities.dtype
        mixed = (1 - self.floor) * probabilities + self.floor * _uniform(real, dtype)
        return capped(mixed, 1 / count.astype(dtype)) if self.cap else mixed

    def _bounded_by_client(
        self, probabilities: Float[Array, " clients"]
    ) -> Float[Array, " clients"]:
        count = jnp.full(1, self.clients_per_round, jnp.int32)
        return self._bounded(probabilities[None], jnp.ones((1, len(probabilities)), bool), count)[0]

    def _optimal(self, problem: Problem, model: Float[Array, " dim"]) -> tuple[Array, Array]:
        """Return the optimal probabilities of clients and of samples at one model."""
        workload = self._workload(problem, Participants(None, jnp.ones(problem.clients, bool)))
        models = jnp.broadcast_to(model, (problem.clients, problem.dim))
        norms = problem.sample_objective_norms(models)
        by_sample = _normalized(norms, workload.real)
        gradient_norm = norm(problem.gradient(models))
        scale = self._client_scale(norms, by_sample, workload, gradient_norm)
        return _normalized(scale[None], jnp.ones((1, len(scale)), bool))[0], by_sample

    def _client_scale(
        self, norms: Array, probabilities: Array, workload: _Workload, gradient_norm: Array
    ) -> Float[Array, " chosen"]:
        r"""Return (2.48), to which a client's probability is proportional.

        Args:
          norms: ``[L, N]``, :math:`\|Q_k'\|` of all of its samples.
          probabilities: ``[L, N]``, of its samples, unbounded.
          workload: of these clients.
          gradient_norm: ``[L]``, :math:`\|f_k'\|`.
        """
        bounded = self._bounded(probabilities, workload.real, workload.batch)
        draws = (workload.steps * workload.batch).astype(bounded.dtype)
        samples = jnp.maximum(jnp.sum(workload.real, axis=1, dtype=bounded.dtype), 1)
        spread = jnp.sum(norms**2 / jnp.where(bounded > 0, bounded, 1), axis=1)
        return jnp.sqrt(6 / (draws * samples**2) * spread + (3 + 6 / draws) * gradient_norm**2)


def _estimate(part: Problem, model: Array) -> Array:
    """Return the weighted sum over a batch's samples, each with the regularizer.

    The client's importance is a factor of its loss alone; one of importance zero, which has no
    samples to draw, has its share of the regularizer in every step.
    """
    regularizer = part.share[:, None] * part.regularizer.gradient(model)
    total = jnp.sum(part.weights, axis=1)
    if part.importance is not None:
        counted = part.importance > 0
        total = jnp.where(counted, total / jnp.where(counted, part.importance, 1), 1)
    return part.loss_gradient(model) + total[:, None] * regularizer


def _uniform(real: Array, dtype: DTypeLike) -> Array:
    """Return equal probabilities for all samples of a client; zeros for one without samples."""
    real = jnp.asarray(real).astype(dtype)
    return real / jnp.maximum(jnp.sum(real, axis=1, keepdims=True), 1)


def _normalized(values: Float[Array, "clients samples"], real: Array) -> Array:
    """Return probabilities proportional to values; equal ones where all values are zero."""
    total = jnp.sum(values, axis=1, keepdims=True)
    uniform = _uniform(real, values.dtype)
    return jnp.where(total > 0, values / jnp.where(total > 0, total, 1), uniform)


def redistributed(
    probabilities: Float[Array, "clients samples"],
    rows: Int[Array, "clients batch"],
    values: Float[Array, "clients batch"],
) -> Float[Array, "clients samples"]:
    """Redistribute the total probability of the drawn rows among them by their values: (2.53),
    (2.54).

    An index past the last sample stands for no sample; one that was drawn twice counts once.
    """
    at = (jnp.arange(len(probabilities), dtype=jnp.int32)[:, None], rows)
    drawn = jnp.zeros(probabilities.shape, bool).at[at].set(True, mode="drop")
    value = jnp.zeros_like(probabilities).at[at].max(values, mode="drop")
    mass = jnp.sum(jnp.where(drawn, probabilities, 0), axis=1, keepdims=True)
    total = jnp.sum(value, axis=1, keepdims=True)
    new = mass * value / jnp.where(total > 0, total, 1)
    return jnp.where(drawn & (total > 0), new, probabilities)


def capped(
    probabilities: Float[Array, "*batch units"], most: Float[Array, "*batch"]
) -> Float[Array, "*batch units"]:
    r"""Cap probabilities at ``most`` and redistribute the excess to the others in proportion.

    With some probabilities at the cap, the others are scaled to the remainder; if some of these
    exceed the cap, they are capped too, until none does. (This avoids sorting, which took thirty
    times as long with XLA on a CPU.)

    Args:
      probabilities: of sum one.
      most: at least one over the number of units that have a probability.

    Example:
      >>> import jax.numpy as jnp
      >>> capped(jnp.array([0.75, 0.125, 0.125]), jnp.array(0.5)).tolist()
      [0.5, 0.25, 0.25]
    """
    most = most[..., None]

    def cap_more(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        scale, last_count, _ = carry
        at_cap = probabilities * scale > most
        count = jnp.sum(at_cap, axis=-1, keepdims=True, dtype=probabilities.dtype)
        rest = jnp.sum(jnp.where(at_cap, 0, probabilities), axis=-1, keepdims=True)
        new = jnp.maximum(1 - count * most, 0) / jnp.where(rest > 0, rest, 1)
        # The scale never falls, so that no rounding releases a capped unit and the loop ends.
        return jnp.maximum(scale, new), count, jnp.any(count > last_count)

    start = jnp.ones_like(most), jnp.zeros_like(most), jnp.array(True)
    scale, *_ = jax.lax.while_loop(lambda carry: carry[2], cap_more, start)
    return jnp.minimum(probabilities * scale, most)
