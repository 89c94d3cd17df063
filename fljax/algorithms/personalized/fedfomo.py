r"""FedFomo: each client weighs others' models by their benefit to it (Zhang et al. 2021)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import module, static
from fljax._core.random_subsets import subset
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Cohort, LocalLearning
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.streams import Stream


class FedFomoState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  theta_k
    known: Array  # [K, D]  the server's copy of each trained model
    affinity: Array  # [K, K]  P, the shares of all rounds together


@algorithm("FedFomo", "zhang2021fomo", Needs(None, absent=True, trains=True))
@module
class FedFomo(LocalLearning):
    r"""Personalized models that move toward others' as far as these lower the client's own loss.

    A participant of the round takes its local steps from :math:`\theta_k` to :math:`\hat\theta_k`
    and sends the result. The server keeps copies of all clients' trained models, and lets
    each participant download some of others. From these and its own it computes

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

    Sources differ. As in the paper, the loss and the distance refer to the model before
    the local steps, and the client's own trained model is one of the candidates. PFLlib compares
    with the trained model, which is then no candidate, on the batches that it was trained on.

    Args:
      step_size: :math:`\mu`, as in
        :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`, which also has the other
        arguments. Clients minimize their mean losses, regardless of their weights.
      downloads: of how many others a participant receives the models, >= 1; of all by default.
      exploration: the probability with which they are drawn, in [0, 1]; the paper's is 0.3.

    Raises:
      ValueError: no downloads, or more than there are other clients; a probability outside [0, 1];
        as for :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`.

    Example:
      Clients find similar ones:

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
            checks.count("downloads", self.downloads)
        checks.interval("exploration", self.exploration, at_least=0, at_most=1)

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        if self.downloads is not None and self.downloads >= problem.clients:
            raise ValueError(
                f"downloads must be at most the {problem.clients - 1} other clients, got "
                f"{self.downloads}; leave it out to receive the models of all of them."
            )

    def local_problem(self, problem: Problem) -> Problem:
        return problem.unweighted()

    def init(self, problem: Problem, network: Network) -> FedFomoState:
        start = start_models(problem)
        return FedFomoState(start, start, jnp.zeros((problem.clients,) * 2, problem.dtype))

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: FedFomoState, now: Round) -> FedFomoState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        dim = now.problem.dim
        before, affinity = participants.take((state.model, state.affinity))
        local = self.learn(now, cohort, before).model
        sent = now.link.send(local, clients=participants.numbers, sending=cohort.active)
        stored = now.link.stored(participants.put(state.known, sent), state.known)

        candidates = self._downloads(now, cohort, affinity)
        count = candidates.shape[1]
        downloaded = now.link.publish(stored, cohort.active, size=count * dim)
        value = self._objective(now.problem, cohort)
        reference = value(before)

        def weigh(total: Array, model: Array) -> tuple[Array, Array]:
            """The sum with one more model of each participant, and the model's weights."""
            difference = model - before
            distance = jnp.sqrt(jnp.sum(difference**2, axis=1))
            gain = (reference - value(model)) / jnp.where(distance > 0, distance, 1)
            weight = jnp.where(distance > 0, jnp.maximum(gain, 0), 0)
            return total + weight[:, None] * difference, weight

        total, own_weight = weigh(jnp.zeros_like(before), local)
        total, weights = jax.lax.scan(
            lambda total, of: weigh(total, downloaded[of]), total, candidates.T
        )
        sums = own_weight + jnp.sum(weights, axis=0)
        sums = jnp.where(sums > 0, sums, 1)
        shares = weights.T / sums[:, None]
        if self.downloads is not None:
            shares = now.link.tell(shares, cohort.active)
        rows = jnp.arange(len(shares), dtype=jnp.int32)[:, None]
        affinity = participants.put(state.affinity, affinity.at[rows, candidates].add(shares))
        return FedFomoState(
            participants.put(state.model, before + total / sums[:, None]), stored, affinity
        )

    def _downloads(
        self, now: Round, cohort: Cohort, affinity: Float[Array, "chosen clients"]
    ) -> Int[Array, "chosen downloads"]:
        """Return whose models each participant receives."""
        clients = affinity.shape[1]
        numbers = cohort.participants.numbers
        if self.downloads is None:
            offsets = 1 + jnp.arange(clients - 1, dtype=jnp.int32)
            return (numbers[:, None] + offsets[None]) % clients

        def random_order(client: Array) -> tuple[Array, Array]:
            key = jax.random.fold_in(now.key("algorithm"), client)
            order = subset(jax.random.fold_in(key, 0), clients, clients)
            uniform = jax.random.uniform(jax.random.fold_in(key, 1), (), affinity.dtype)
            return order, uniform < self.exploration

        order, explores = jax.vmap(random_order)(numbers)
        scores = jnp.where(explores[:, None], 0, affinity)
        scores = jnp.where(
            jnp.arange(clients, dtype=jnp.int32)[None] == numbers[:, None], -1, scores
        )
        best = jnp.argsort(-jnp.take_along_axis(scores, order, axis=1), axis=1, stable=True)
        return jnp.take_along_axis(order, best, axis=1)[:, : self.downloads]

    def _objective(self, problem: Problem, cohort: Cohort) -> Any:
        """Return the function of the participants' models that these are compared by."""
        local = self.local_problem(problem)
        tasks = problem.tasks
        if tasks is None or tasks.validation is None:
            return cohort.participants.of(local).objective
        held_out = cohort.participants.of(tasks.validation)
        regularizer = local.regularizer
        share = jnp.broadcast_to(local.share, (problem.clients,))
        share = cohort.participants.take(share)
        return lambda model: held_out.mean_loss(model) + share * regularizer.value(model)
