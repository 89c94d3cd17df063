r"""Federated averaging: a few clients a round, local epochs in batches (McMahan et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import check_batch
from fljax.participation import Drawn, Selector, everyone_or, shuffled
from fljax.privacy import CentralGaussian
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.schedules import StepSize, as_schedule
from fljax.streams import Stream

__all__ = ["FedAvg", "State", "batches"]

#: Working set of the participants that descend side by side on a CPU: beyond it, one group after
#: the other was a seventh faster.
CACHE_BYTES = 2**19

#: How the server weighs the models it hears.
WEIGHTINGS = ("samples", "equal")


class State(NamedTuple):
    """What FedAvg keeps from round to round."""

    model: Array  # [D]  the server's w


@algorithm(
    "FedAvg",
    "mcmahan2017",
    Needs(None, data="any", privacy=(CentralGaussian,), absent=True, late=True, averages=True),
)
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
    with fewer batches than another is done earlier. A drawn client that is not available neither
    receives nor sends; with delays, the average is over the models that arrive in the round. Under
    unequal chances :math:`p_k` a model's weight is divided by :math:`Kp_k`: where the chances are
    the shares of the samples, all models that arrive count alike.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      clients_per_round: :math:`|S|`; all clients by default.
      epochs: passes of a participant over its samples a round, >= 1.
      batch: samples a step; all of a client's by default.
      weighting: ``"samples"`` as above, or ``"equal"``, for the objective of this library, in
        which each client's mean counts alike.
      scheduler: another :class:`~fljax.participation.Selector` in the place of
        ``clients_per_round``: clients drawn with unequal chances, each by chance, in turns.

    Raises:
      ValueError: more participants than clients, a batch larger than every client, a scheduler
        beside ``clients_per_round``.

    Reference:
      McMahan et al. 2017, Algorithm 1.
    """

    step_size: StepSize
    clients_per_round: int | None = static(default=None)
    epochs: int = static(default=1)
    batch: int | None = static(default=None)
    weighting: str = static(default="samples")
    scheduler: Selector | None = None

    def validate(self) -> None:
        for name in ("clients_per_round", "epochs", "batch"):
            if name == "epochs" or getattr(self, name) is not None:
                _check.count(name, getattr(self, name))
        _check.choice("weighting", self.weighting, WEIGHTINGS)
        object.__setattr__(self, "step_size", as_schedule(self.step_size))
        if self.scheduler is not None and self.clients_per_round is not None:
            raise ValueError(
                f"clients_per_round={self.clients_per_round} and a scheduler both say who takes "
                "part; leave out one."
            )

    @property
    def selector(self) -> Selector:
        """Who takes part."""
        return self.scheduler or everyone_or(Drawn, self.clients_per_round)

    def init(self, problem: Problem | Stream, network: Any) -> State:
        self.selector.check(problem.clients)
        check_batch(self.batch, problem)
        return State(server_start(problem))

    def step(self, state: State, now: Round) -> State:
        problem, link, step_size = now.problem, now.link, self.step_size(now.number)
        who = now.choose(self.selector)
        chosen, whole = who.numbers, who.of(problem)
        real = jnp.asarray(whole.weights) > 0
        server = link.publish(state.model, who.here)

        def train(count: int, local: Callable[[Any], Problem], rows: Any, steps: int) -> Any:
            """Models of ``count`` clients after ``steps`` on ``local(rows[step])``, and norms."""

            def descend(carry: tuple[Array, Array], row: Any) -> tuple[Any, None]:
                (model, norm), part = carry, local(row)
                busy = jnp.any(part.weights > 0, axis=1)[:, None]
                new = model - step_size * part.gradient(model)
                norm = jnp.maximum(norm, part.sample_gradient_norm(model))
                return (jnp.where(busy, new, model), norm), None

            start = jnp.broadcast_to(server, (count, problem.dim))
            carry = (start, jnp.zeros(count, problem.dtype))
            return jax.lax.scan(descend, carry, rows, steps)[0]

        if self.batch is None:
            model, norm = train(len(chosen), lambda _: whole, None, self.epochs)
        else:
            rows = batches(now.key("batches"), real, self.batch, self.epochs)
            size = _together(problem, self.batch, len(chosen))

            def group(given: tuple[Array, Array]) -> Any:
                clients, rows = given[0], jnp.swapaxes(given[1], 0, 1)
                return train(size, lambda row: problem.take(clients, row), rows, len(rows))

            groups = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), (chosen, rows))
            model, norm = jax.lax.map(group, groups)
            model, norm = model.reshape(-1, problem.dim), norm.reshape(-1)

        share = None
        if self.weighting == "samples":
            share = jnp.sum(real, axis=1, dtype=problem.dtype)
        if who.weights is not None:
            share = (1 if share is None else share) * who.weights.astype(problem.dtype)
        now.witness(norm)
        arrived = link.collect(
            lambda rows: model[rows], who.here, server, weights=share, clients=chosen
        )
        return State(arrived.move(server))

    def released(self, state: State, problem: Problem | Stream, network: Any) -> Array:
        """The server's model."""
        return state.model


def _together(problem: Problem, batch: int, participants: int) -> int:
    """How many participants go side by side: on a CPU as many as stay in the cache, else all."""
    if jax.default_backend() != "cpu":
        return participants
    numbers = batch * problem.features.shape[2] + 3 * problem.dim  # samples, model and gradient
    fitting = CACHE_BYTES // (numbers * problem.dtype.itemsize)
    return max(
        d for d in range(1, participants + 1) if participants % d == 0 and d <= max(1, fitting)
    )


def batches(
    key: Array, real: Bool[Array, "chosen samples"], batch: int, epochs: int = 1
) -> Int[Array, "chosen steps batch"]:
    """Rows of each client's batches: every epoch all of its samples in a new random order.

    A client's own samples come first, so its batches are full but for the last one; what is left
    of them is padding, filled up with the index past the last sample.
    """
    chosen, samples = real.shape
    order = shuffled(key, jnp.broadcast_to(real[:, None], (chosen, epochs, samples)))
    missing = -samples % batch
    order = jnp.pad(order, ((0, 0), (0, 0), (0, missing)), constant_values=samples)
    return order.reshape(chosen, -1, batch)
