r"""FedFomo: each client weighs others' models by what they do for it (Zhang et al. 2021)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import Needs, algorithm, start_models
from fljax.algorithms.server.base import Cohort, LocalLearning
from fljax.participation import subset
from fljax.problems import Problem
from fljax.rounds import Round

__all__ = ["FedFomo", "State"]


class State(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  theta_k
    known: Array  # [K, D]  what the server knows of each trained model
    affinity: Array  # [K, K]  P, the shares of all rounds together


@algorithm("FedFomo", "zhang2021fomo", Needs(None, absent=True))
@module
class FedFomo(LocalLearning):
    r"""Personalized models that move toward others' as far as these lower the client's own loss.

    A participant of the round takes its local steps from :math:`\theta_k` to :math:`\hat\theta_k`
    and sends the result. The server keeps what it knows of all clients' trained models, and lets
    each participant download some of others. Of these and of its own it takes

    .. math::

        \omega_{k,l}=\max\Big(\frac{F_k(\theta_k)-F_k(\hat\theta_l)}
            {\|\hat\theta_l-\theta_k\|},0\Big),\qquad
        \theta_k\leftarrow\theta_k+
            \frac{\sum_l\omega_{k,l}(\hat\theta_l-\theta_k)}{\sum_l\omega_{k,l}}

    so that each model counts by the slope of the objective toward it. Where none is better, the
    client's own included, it stays at :math:`\theta_k`. :math:`F_k` is the
    objective on the client's validation data (``problem.tasks.validation``,
    :class:`~fljax.problems.Tasks`) if the problem has them, else on its samples. Metrics evaluate
    the :math:`\theta_k`; clients that do not participate keep theirs.

    With ``downloads`` the server keeps the sums :math:`P_{k,l}` of the shares
    :math:`\omega_{k,l}/\sum_l\omega_{k,l}`, which participants tell it, and sends the models of the
    largest :math:`P_{k,l}`, equal ones in random order; with a probability of ``exploration`` those
    of clients drawn uniformly. Individual models are used and stored, so secure summation is not
    possible. Where all clients always have the same model this is
    :class:`~fljax.algorithms.LocalOnly`.

    Sources differ. As in the paper, the loss and the distance are those of the model before
    the local steps, and the client's own trained model is one of the candidates. PFLlib compares
    with the trained model, which is then no candidate, on the batches that it was trained on.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.server.base.LocalLearning`, which also
        has the other arguments. Clients minimize their mean losses, whatever their weights.
      downloads: of how many others a participant receives the models, >= 1; of all by default.
      exploration: the probability with which they are drawn, in [0, 1]; the paper's is 0.3.

    Raises:
      ValueError: no downloads, or more than there are other clients; a probability outside [0, 1];
        as for :class:`~fljax.algorithms.server.base.LocalLearning`.

    Example:
      Clients find those that are like them:

      >>> import jax, numpy as np, fljax as fl
      >>> rng = np.random.default_rng(0)
      >>> X = rng.normal(size=(6, 20, 2))
      >>> targets = np.stack([X[k] @ ([3, 0] if k < 3 else [0, 3]) for k in range(6)])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.from_clients(list(zip(X, targets)), fl.problems.LeastSquares()),
      ...     algorithm=fl.algorithms.FedFomo(0.1, downloads=3),
      ... )
      >>> results = fl.sweep(lambda key: simulation, seeds=1, rounds=50, keep_models=True)
      >>> models = results.model[0]
      >>> [float(abs(models[0] - models[k]).max().round(1)) for k in (1, 3)]
      [0.0, 3.0]

    Reference:
      Zhang et al. 2021, equations 3 and 4 and Algorithm 1.
    """

    downloads: int | None = static(default=None, kw_only=True)
    exploration: Float[Array, ""] | float = dataclasses.field(default=0.3, kw_only=True)

    def validate(self) -> None:
        super().validate()
        if self.downloads is not None:
            _check.count("downloads", self.downloads)
        _check.interval("exploration", self.exploration, at_least=0, at_most=1)

    def check(self, problem: Any, network: Any) -> None:
        super().check(problem, network)
        if self.downloads is not None and self.downloads >= problem.clients:
            raise ValueError(
                f"downloads must be at most the {problem.clients - 1} other clients, got "
                f"{self.downloads}; leave it out to receive the models of all of them."
            )

    def own(self, problem: Problem) -> Problem:
        return problem.unweighted()

    def init(self, problem: Problem, network: Any) -> State:
        start = start_models(problem)
        return State(start, start, jnp.zeros((problem.clients,) * 2, problem.dtype))

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now, state.model)
        who, dim = cohort.who, now.problem.dim
        before, affinity = who.take((state.model, state.affinity))
        local = self.learn(now, cohort, before).model
        said = now.link.send(local, clients=who.numbers, sending=cohort.here)
        known = now.link.known(who.put(state.known, said), state.known)

        others = self._others(now, cohort, affinity)
        count = others.shape[1]
        there = now.link.publish(known, cohort.here, size=count * dim)
        value = self._objective(now.problem, cohort)
        reference = value(before)

        def weigh(total: Array, model: Array) -> tuple[Array, Array]:
            """The sum with one more model of each participant, and the model's weights."""
            away = model - before
            distance = jnp.sqrt(jnp.sum(away**2, axis=1))
            gain = (reference - value(model)) / jnp.where(distance > 0, distance, 1)
            weight = jnp.where(distance > 0, jnp.maximum(gain, 0), 0)
            return total + weight[:, None] * away, weight

        total, mine = weigh(jnp.zeros_like(before), local)
        total, theirs = jax.lax.scan(lambda total, of: weigh(total, there[of]), total, others.T)
        sums = mine + jnp.sum(theirs, axis=0)
        sums = jnp.where(sums > 0, sums, 1)
        shares = theirs.T / sums[:, None]
        if self.downloads is not None:
            shares = now.link.tell(shares, cohort.here)
        rows = jnp.arange(len(shares), dtype=jnp.int32)[:, None]
        affinity = who.put(state.affinity, affinity.at[rows, others].add(shares))
        return State(who.put(state.model, before + total / sums[:, None]), known, affinity)

    def _others(
        self, now: Round, cohort: Cohort, affinity: Float[Array, "chosen clients"]
    ) -> Int[Array, "chosen downloads"]:
        """Return whose models each participant receives."""
        clients, numbers = affinity.shape[1], cohort.who.numbers
        if self.downloads is None:
            further = 1 + jnp.arange(clients - 1, dtype=jnp.int32)
            return (numbers[:, None] + further[None]) % clients

        def drawn(client: Array) -> tuple[Array, Array]:
            key = jax.random.fold_in(now.key("algorithm"), client)
            order = subset(jax.random.fold_in(key, 0), clients, clients)
            uniform = jax.random.uniform(jax.random.fold_in(key, 1), (), affinity.dtype)
            return order, uniform < self.exploration

        order, explores = jax.vmap(drawn)(numbers)
        liked = jnp.where(explores[:, None], 0, affinity)
        liked = jnp.where(jnp.arange(clients, dtype=jnp.int32)[None] == numbers[:, None], -1, liked)
        best = jnp.argsort(-jnp.take_along_axis(liked, order, axis=1), axis=1, stable=True)
        return jnp.take_along_axis(order, best, axis=1)[:, : self.downloads]

    def _objective(self, problem: Problem, cohort: Cohort) -> Any:
        """Return the function of the participants' models that these are compared by."""
        own, tasks = self.own(problem), problem.tasks
        if tasks is None or tasks.validation is None:
            return cohort.who.of(own).objective
        held_out, regularizer = cohort.who.of(tasks.validation), own.regularizer
        share = jnp.broadcast_to(own.share, (problem.clients,))
        share = cohort.who.take(share)
        return lambda model: held_out.mean_loss(model) + share * regularizer.value(model)
