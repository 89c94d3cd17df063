r"""Federated averaging with importance sampling of clients and samples (Rizk 2023, chapter 2)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._linalg import norm
from fljax._module import field, module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import counts_of
from fljax.batches import (
    Batch,
    Counts,
    Order,
    check_per_client,
    in_order,
    ordered,
    per_client,
    taken,
)
from fljax.participation import Participants, systematic
from fljax.problems import Problem, optimum
from fljax.rounds import Round
from fljax.schedules import Schedule, as_schedule

__all__ = ["ISFedAvg", "State", "capped", "shared"]

#: The rules for the probabilities.
RULES = ("optimal", "full", "sampled")


class State(NamedTuple):
    """State of ISFedAvg between rounds."""

    model: Array  # [D]  the server's w
    clients: Array  # [K]  p_k, of sum one
    samples: Array | None  # [K, N]  p_n of each client, of sum one; None: anew in every round


@algorithm(
    "ISFedAvg",
    "rizk2023",
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

    with :math:`Q_k` the loss of a sample plus the regularizer. The probabilities with the least
    gradient noise are

    .. math::

        p_n^{(k)}\propto\|Q_k'(w;x_{k,n})\|,\qquad
        p_k\propto\sqrt{\sigma_k^2+\big(3+\tfrac6{E_kB_k}\big)\|f_k'(w)\|^2},\qquad
        \sigma_k^2=\frac6{E_kB_kN_k^2}\sum_n\frac{\|Q_k'(w;x_{k,n})\|^2}{p_n^{(k)}}

    * ``"optimal"``: at the minimizer :math:`w^o` of the common objective, which is unknown in
      practice;
    * ``"full"``: at :math:`w^{(n-1)}`, for which every client evaluates all of its samples;
    * ``"sampled"``: the total probability of those that are drawn is redistributed among them
      according to their norms at :math:`w^{(n-1)}`; the others keep their probabilities. Initially
      all probabilities are equal. For :math:`f_k'` a participant uses the estimate of its first
      step, for :math:`\sigma_k^2` all of its samples under its current probabilities (the source
      leaves this open; the estimate from one batch, with its heavy tails, gave no improvement).

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

    Reference:
      Rizk 2023, Algorithm 2.1, (2.10)-(2.11) and (2.46)-(2.54).
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
        _check.count("clients_per_round", self.clients_per_round)
        _check.choice("rule", self.rule, RULES)
        _check.interval("floor", self.floor, at_least=0, at_most=1)

    def check(self, problem: Problem, network: Any) -> None:
        for name in ("batch", "local_steps"):
            check_per_client(name, getattr(self, name), problem.clients)

        def check(batch: Any, counts: Any) -> None:
            batch, counts = np.asarray(batch), np.asarray(counts)
            if np.any(batch > counts):
                k = int(np.argmax(batch - counts))
                raise ValueError(
                    f"client {k} has {counts[k]} samples, fewer than its batch of "
                    f"{np.broadcast_to(batch, counts.shape)[k]}."
                )

        _check.known(check, np.asarray(self.batch), problem.sample_counts())
        if self.clients_per_round > problem.clients:
            raise ValueError(
                f"clients_per_round must be at most the {problem.clients} clients, got "
                f"{self.clients_per_round}."
            )

    def init(self, problem: Problem, network: Any) -> State:
        if self.rule == "optimal":
            at = optimum(problem)
            return State(server_start(problem), *self._probabilities(problem, at))
        everyone = jnp.full(problem.clients, 1 / problem.clients, problem.dtype)
        if self.rule == "full":
            return State(server_start(problem), everyone, None)
        none = jnp.zeros(problem.weights.shape, problem.dtype)
        return State(server_start(problem), everyone, _share(none, problem.weights > 0))

    def step(self, state: State, now: Round) -> State:
        problem, link = now.problem, now.link
        count, (known, samples) = self.clients_per_round, self._known(problem, state)
        clients = self._of_clients(known)
        chosen = systematic(now.key("participation"), clients, count, count)
        who = Participants(chosen, jnp.ones(count, bool))
        server = link.publish(state.model, who.here)
        counts, longest = counts_of(self.local_steps, who), int(np.max(self.local_steps))
        real, sizes = jnp.asarray(problem.weights)[chosen] > 0, counts_of(self.batch, who)
        start = jnp.broadcast_to(server, (count, problem.dim))
        step_size = self.step_size(now.number)
        length = step_size / (problem.clients * clients[chosen] * counts.astype(problem.dtype))

        mine = samples[chosen]
        order = in_order(now.key("batches"), real, longest, mine.dtype)

        def drawn(law: Array, order: Order) -> Batch:
            return ordered(order, self._kept(law, real, sizes), self.batch, chosen, real)

        # Where no step changes the probabilities, the batches of all steps at once.
        batches = None if self.rule == "sampled" else drawn(mine, order)

        def one(carry: tuple[Array, Array], step: Array) -> tuple[Any, Array]:
            (model, law), busy = carry, (step < counts)[:, None]
            if batches is None:
                batch = drawn(law, order._replace(starts=order.starts[:, step][:, None]))
                part = taken(problem, chosen, batch, 0)
                probability = shared(law, batch.rows[:, 0], part.sample_objective_norms(start))
                law = jnp.where(busy, probability, law)
            else:
                part = taken(problem, chosen, batches, step)
            estimate = _estimate(part, model)
            new = model - length[:, None] * estimate
            return (jnp.where(busy, new, model), law), norm(estimate)

        (model, law), slope = jax.lax.scan(one, (start, mine), jnp.arange(longest, dtype=jnp.int32))
        if self.rule == "sampled":
            norms = problem.take(chosen).sample_objective_norms(start)
            need = self._need(norms, mine, real, counts, sizes, slope[0])
            known = shared(known[None], chosen[None], need[None])[0]
            samples = samples.at[chosen].set(law)
        arrived = link.collect(model, who.here, server, clients=chosen, step_size=step_size)
        return State(arrived.move(server), known, None if state.samples is None else samples)

    def probabilities(self, problem: Problem, state: State) -> tuple[Array, Array]:
        """Return the probabilities of clients ``[K]`` and samples ``[K, N]`` in a state, with the
        floor and the cap applied.
        """
        everyone = Participants(None, jnp.ones(problem.clients, bool))
        real, sizes = jnp.asarray(problem.weights) > 0, counts_of(self.batch, everyone)
        clients, samples = self._known(problem, state)
        return self._of_clients(clients), self._kept(samples, real, sizes)

    def _known(self, problem: Problem, state: State) -> tuple[Array, Array]:
        """Return the probabilities of clients and of samples before the floor and the cap."""
        if state.samples is None:
            return self._probabilities(problem, state.model)
        return state.clients, state.samples

    def _kept(self, law: Array, real: Array, sizes: Array) -> Array:
        """Return probabilities with the floor and the cap applied."""
        law = (1 - self.floor) * law + self.floor * _even(real, law.dtype)
        return capped(law, 1 / sizes.astype(law.dtype)) if self.cap else law

    def _probabilities(self, problem: Problem, at: Float[Array, " dim"]) -> tuple[Array, Array]:
        """Return the optimal probabilities of clients and of samples at one model."""
        everyone = Participants(None, jnp.ones(problem.clients, bool))
        real = jnp.asarray(problem.weights) > 0
        counts, sizes = (counts_of(n, everyone) for n in (self.local_steps, self.batch))
        models = jnp.broadcast_to(at, (problem.clients, problem.dim))
        norms = problem.sample_objective_norms(models)
        samples = _share(norms, real)
        need = self._need(norms, samples, real, counts, sizes, norm(problem.gradient(models)))
        return _share(need[None], jnp.ones((1, len(need)), bool))[0], samples

    def _need(
        self, norms: Array, law: Array, real: Array, counts: Array, sizes: Array, slope: Array
    ) -> Float[Array, " chosen"]:
        r"""Return (2.48), to which a client's probability is proportional, given the norms at all
        of its samples and :math:`\|f_k'\|`.
        """
        law = self._kept(law, real, sizes)
        batches, available = (
            (counts * sizes).astype(law.dtype),
            jnp.sum(real, axis=1, dtype=law.dtype),
        )
        spread = jnp.sum(norms**2 / jnp.where(law > 0, law, 1), axis=1)
        return jnp.sqrt(6 / (batches * available**2) * spread + (3 + 6 / batches) * slope**2)

    def _of_clients(self, law: Float[Array, " clients"]) -> Float[Array, " clients"]:
        count = jnp.full(1, self.clients_per_round, jnp.int32)
        return self._kept(law[None], jnp.ones((1, len(law)), bool), count)[0]


def _estimate(part: Problem, model: Array) -> Array:
    """Return the weighted sum over a batch's samples, each with the regularizer."""
    pull = part.share[:, None] * part.regularizer.gradient(model)
    return part.loss_gradient(model) + jnp.sum(part.weights, axis=1, keepdims=True) * pull


def _even(real: Array, dtype: Any) -> Array:
    """Return equal probabilities for all samples of a client."""
    real = jnp.asarray(real).astype(dtype)
    return real / jnp.sum(real, axis=1, keepdims=True)


def _share(values: Float[Array, "clients samples"], real: Array) -> Array:
    """Return probabilities proportional to values; equal ones where all values are zero."""
    total = jnp.sum(values, axis=1, keepdims=True)
    even = _even(real, values.dtype)
    return jnp.where(total > 0, values / jnp.where(total > 0, total, 1), even)


def shared(
    law: Float[Array, "clients samples"],
    rows: Int[Array, "clients batch"],
    values: Float[Array, "clients batch"],
) -> Float[Array, "clients samples"]:
    """Redistribute the total probability of those drawn among them by their values (2.53), (2.54).

    An index past the last sample stands for no sample; one that was drawn twice counts once.
    """
    at = (jnp.arange(len(law), dtype=jnp.int32)[:, None], rows)
    hit = jnp.zeros(law.shape, bool).at[at].set(True, mode="drop")
    value = jnp.zeros_like(law).at[at].max(values, mode="drop")
    mass = jnp.sum(jnp.where(hit, law, 0), axis=1, keepdims=True)
    total = jnp.sum(value, axis=1, keepdims=True)
    new = mass * value / jnp.where(total > 0, total, 1)
    return jnp.where(hit & (total > 0), new, law)


def capped(
    law: Float[Array, "*batch units"], most: Float[Array, "*batch"]
) -> Float[Array, "*batch units"]:
    r"""Cap probabilities at ``most`` and redistribute the excess to the others in proportion.

    With some probabilities at the cap, the others are scaled to the remainder; those that thereby
    exceed the cap are capped too, until none does. (This avoids sorting: XLA's, on a CPU, took
    thirty times as long.)

    Args:
      law: probabilities with sum one.
      most: at least one over the number of units that have a probability.

    Example:
      >>> import jax.numpy as jnp
      >>> capped(jnp.array([0.75, 0.125, 0.125]), jnp.array(0.5)).tolist()
      [0.5, 0.25, 0.25]
    """
    most = most[..., None]

    def further(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        scale, number, _ = carry
        beyond = law * scale > most
        now = jnp.sum(beyond, axis=-1, keepdims=True, dtype=law.dtype)
        rest = jnp.sum(jnp.where(beyond, 0, law), axis=-1, keepdims=True)
        new = jnp.maximum(1 - now * most, 0) / jnp.where(rest > 0, rest, 1)
        # It never falls, so that whatever is rounded nobody comes back, and this ends.
        return jnp.maximum(scale, new), now, jnp.any(now > number)

    start = jnp.ones_like(most), jnp.zeros_like(most), jnp.array(True)
    scale, *_ = jax.lax.while_loop(lambda carry: carry[2], further, start)
    return jnp.minimum(law * scale, most)
