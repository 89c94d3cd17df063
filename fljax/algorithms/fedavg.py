r"""Federated averaging: a few clients a round, local epochs in batches (McMahan et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Algorithm, Info, algorithm
from fljax.channel import Channel
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.problem import HIGHEST
from fljax.schedules import StepSize, as_schedule

#: Working set of the participants that descend side by side on a CPU: beyond it, one group after
#: the other was a seventh faster.
CACHE_BYTES = 2**19

#: Up to so many indices are shuffled together with their random numbers, of 20 bits or more.
PACKED_SIZE = 2**11

#: How the server weighs the models it hears.
WEIGHTINGS = ("samples", "equal")


class State(NamedTuple):
    model: Array  # [D]  the server's w


@algorithm("FedAvg", reference="mcmahan2017", networked=False)
@module
class FedAvg(Algorithm):
    r"""Local stochastic gradient descent from the server's model, then a weighted average.

    In round :math:`n` the server draws a set :math:`S` of clients uniformly without replacement.
    Each of them starts from :math:`w^{(n-1)}`, cuts its samples, newly shuffled in every epoch,
    into batches and descends along the mean gradient of one after the other:

    .. math::

        w_k \leftarrow w_k-\mu\Big(\frac1{|b|}\sum_{j\in b}\ell'(x_{k,j},y_{k,j};w_k)
            +\frac\lambda K R'(w_k)\Big),\qquad
        w^{(n)} = \sum_{k\in S}\frac{D_k}{\sum_{l\in S}D_l}w_k

    A client's last batch is the smaller one where ``batch`` does not divide :math:`D_k`; a client
    with fewer batches than another is done earlier. Messages are those of the participants.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      clients_per_round: :math:`|S|`; all clients by default.
      epochs: passes of a participant over its samples a round, >= 1.
      batch: samples a step; all of a client's by default.
      weighting: ``"samples"`` as above, or ``"equal"``, for the objective of this library, in
        which each client's mean counts alike.

    Raises:
      ValueError: more participants than clients, a batch larger than every client.

    Reference:
      McMahan et al. 2017, Algorithm 1.
    """

    step_size: StepSize
    clients_per_round: int | None = static(default=None)
    epochs: int = static(default=1)
    batch: int | None = static(default=None)
    weighting: str = static(default="samples")

    def validate(self) -> None:
        for name in ("clients_per_round", "epochs", "batch"):
            if name == "epochs" or getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        _check.choice("weighting", self.weighting, WEIGHTINGS)
        object.__setattr__(self, "step_size", as_schedule(self.step_size))

    def init(self, problem: Problem, network: Graph) -> State:
        if self.clients_per_round is not None and self.clients_per_round > problem.clients:
            raise ValueError(
                f"clients_per_round must be at most the {problem.clients} clients of the problem, "
                f"got {self.clients_per_round}."
            )
        if self.batch is not None and self.batch > problem.samples:
            raise ValueError(
                f"batch must be at most the {problem.samples} samples of the largest client, got "
                f"{self.batch}; leave it out for full batches."
            )
        return State(jnp.zeros(problem.dim, problem.dtype))

    def step(
        self, state: State, problem: Problem, network: Graph, channel: Channel, round: Array
    ) -> tuple[State, Info]:
        step_size = self.step_size(round)
        chosen = jnp.arange(problem.clients)
        if self.clients_per_round is not None:
            key = channel.key("participation")
            chosen = participants(key, problem.clients, self.clients_per_round)
        real = jnp.asarray(problem.weights)[chosen] > 0
        server = channel.publish(state.model, chosen)

        def train(count: int, local: Callable[[Any], Problem], rows: Any, steps: int) -> Any:
            """Models of ``count`` clients after ``steps`` on ``local(rows[step])``, and norms."""

            def descend(carry: tuple[Array, Array], now: Any) -> tuple[Any, None]:
                (model, norm), part = carry, local(now)
                busy = jnp.any(part.weights > 0, axis=1)[:, None]
                new = model - step_size * part.gradient(model)
                norm = jnp.maximum(norm, part.sample_gradient_norm(model))
                return (jnp.where(busy, new, model), norm), None

            start = jnp.broadcast_to(server, (count, problem.dim))
            carry = (start, jnp.zeros(count, problem.dtype))
            return jax.lax.scan(descend, carry, rows, steps)[0]

        if self.batch is None:
            whole = problem if self.clients_per_round is None else problem.take(chosen)
            model, norm = train(len(chosen), lambda _: whole, None, self.epochs)
        else:
            rows = batches(channel.key("batches"), real, self.batch, self.epochs)
            size = _together(problem, self.batch, len(chosen))

            def group(given: tuple[Array, Array]) -> Any:
                clients, rows = given[0], jnp.swapaxes(given[1], 0, 1)
                return train(size, lambda now: problem.take(clients, now), rows, len(rows))

            groups = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), (chosen, rows))
            model, norm = jax.lax.map(group, groups)
            model, norm = model.reshape(-1, problem.dim), norm.reshape(-1)

        heard = channel.send(model, senders=chosen)
        share = jnp.ones(len(chosen), problem.dtype)
        if self.weighting == "samples":
            share = jnp.sum(real, axis=1, dtype=problem.dtype)
        model = jnp.einsum("m,md->d", share / jnp.sum(share), heard, precision=HIGHEST)
        return State(model), Info(jnp.zeros(problem.clients, problem.dtype).at[chosen].max(norm))


def _together(problem: Problem, batch: int, participants: int) -> int:
    """How many participants go side by side: on a CPU as many as stay in the cache, else all."""
    if jax.default_backend() != "cpu":
        return participants
    numbers = batch * problem.features.shape[2] + 3 * problem.dim  # samples, model and gradient
    fitting = CACHE_BYTES // (numbers * problem.dtype.itemsize)
    return max(
        d for d in range(1, participants + 1) if participants % d == 0 and d <= max(1, fitting)
    )


def participants(key: Array, clients: int, count: int) -> Int[Array, " count"]:
    """``count`` of the clients, uniformly without replacement, in random order."""
    return _shuffled(key, jnp.ones((1, clients), bool))[0, :count]


def batches(
    key: Array, real: Bool[Array, "chosen samples"], batch: int, epochs: int = 1
) -> Int[Array, "chosen steps batch"]:
    """Rows of each client's batches: every epoch all of its samples in a new random order.

    A client's own samples come first, so its batches are full but for the last one; what is left
    of them is padding, filled up with the index past the last sample.
    """
    chosen, samples = real.shape
    order = _shuffled(key, jnp.broadcast_to(real[:, None], (chosen, epochs, samples)))
    missing = -samples % batch
    order = jnp.pad(order, ((0, 0), (0, 0), (0, missing)), constant_values=samples)
    return order.reshape(chosen, -1, batch)


def _shuffled(key: Array, first: Bool[Array, "*batch size"]) -> Int[Array, "*batch size"]:
    """Indices of the last axis in random order, those marked ``first`` before the others.

    While both fit, one integer holds a random number and, in its last bits, the index: XLA sorts
    single numbers five times faster than pairs. Of two equal random numbers the smaller index goes
    first, which matters where many indices leave few bits to the numbers.
    """
    size = first.shape[-1]
    bits = jax.random.bits(key, first.shape, jnp.uint32) >> 1
    bits = jnp.where(first, jnp.uint32(0), jnp.uint32(2**31)) | bits
    index = jnp.broadcast_to(jnp.arange(size, dtype=jnp.uint32), first.shape)
    if size > PACKED_SIZE:
        return jax.lax.sort((bits, index), num_keys=1)[1].astype(jnp.int32)
    low = jnp.uint32(2 ** (size - 1).bit_length() - 1)
    return (jax.lax.sort((bits & ~low) | index, is_stable=False) & low).astype(jnp.int32)
