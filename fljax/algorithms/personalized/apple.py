r"""APPLE: each client learns how much of every other's model it uses (Luo and Wu 2022)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import Averaging, check_no_optimizer
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class APPLEState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the personal models
    core: Array  # [K, D]  c_k
    known: Array  # [K, D]  the server's copy of each core model
    relation: Array  # [K, K]  p_k, a client's in its row


@algorithm("APPLE", "luo2022", Needs(None, absent=True, trains=True))
@module
class APPLE(Averaging):
    r"""Personal models are combinations of all clients' core models, with weights that are learned.

    Client :math:`k` has a core model :math:`c_k`, which it sends, and a directed relationship
    vector :math:`p_k\in\mathbb R^K`, which it keeps. A participant of round :math:`n` receives
    the server's copies of the others' core models, and takes steps, on the same batches, on the
    loss of its personal model :math:`w_k` with a pull toward equal treatment of all,

    .. math::

        w_k=\sum_lp_{k,l}c_l,\qquad
        F_k(c_k,p_k)=f_k(w_k)+\lambda_n\frac\mu2\|p_k-p_0\|^2

    along its gradients by its own core model and by its vector,

    .. math::

        c_k\leftarrow c_k-\eta_1p_{k,k}f_k'(w_k),\qquad
        p_{k,l}\leftarrow p_{k,l}-\eta_2\big(\langle f_k'(w_k),c_l\rangle
            +\lambda_n\mu(p_{k,l}-p_{0,l})\big)

    and sends :math:`c_k`. In :math:`p_0`, with which all begin, clients have the shares of their
    weights, so that first the personal models are an average of all. The pull is annealed,

    .. math:: \lambda_n=\tfrac12\Big(1+\cos\frac{n\pi}L\Big)\text{ for }n<L,\qquad 0\text{ from }L

    and with it the focus moves from the common parts to a client's own objective. Metrics
    evaluate the :math:`w_k` that clients had at the end of their last participation, of the core
    models that they received then; clients that do not participate keep all that is theirs.

    A participant receives the core models of all others, so that a round costs :math:`K` models for
    each; the paper also limits how many are downloaded. Individual models are used and stored, so
    secure summation is not possible. Nothing bounds :math:`p_k`, whose entries may be negative and
    need not sum to one.

    Running statistics are those of the personal models and take no part in the combinations: in
    PFLlib clients keep them (``Model(state="kept")``); otherwise the server averages them.

    Sources differ. The gradients are of the objective, as in the paper. PFLlib takes the mean
    over parameters instead of the inner product, and core models take steps :math:`K` times as
    long, without which their first ones are :math:`p_{0,k}` times as long as federated averaging's.

    Args:
      step_size: :math:`\eta_1`, a number or a schedule; as in :class:`~fljax.algorithms.FedAvg`,
        which also has the other arguments. The ``weighting`` is that of :math:`p_0`, the paper's
        ``"samples"``; the clients' objectives are not weighted.
      relationship_step_size: :math:`\eta_2`, a schedule of the round or a number, > 0.
      attraction: :math:`\mu\ge0`.
      annealing: :math:`L\ge1`, the number of rounds until the pull has gone.

    Raises:
      ValueError: a negative attraction, no annealing, an optimizer as step size (there are two);
        as for FedAvg.

    Example:
      Clients find similar ones:

      >>> import jax, numpy as np, fljax as fl
      >>> rng = np.random.default_rng(0)
      >>> X = rng.normal(size=(6, 20, 2))
      >>> targets = np.stack([X[k] @ ([3, 0] if k < 3 else [0, 3]) for k in range(6)])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.from_clients(list(zip(X, targets)), fl.problems.LeastSquares()),
      ...     algorithm=fl.algorithms.APPLE(0.3, relationship_step_size=0.01, annealing=10),
      ... )
      >>> results = fl.sweep(lambda key: simulation, seeds=1, rounds=100, keep_models=True)
      >>> models = results.model[0]
      >>> [float(abs(models[0] - models[k]).max().round(1)) for k in (1, 3)]
      [0.0, 3.0]

    Reference:
      Luo and Wu 2022, Algorithm 1, with the cosine schedule of its loss.
    """

    relationship_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    attraction: Float[Array, ""] | float = dataclasses.field(default=0.1, kw_only=True)
    annealing: int = static(default=100, kw_only=True)

    def validate(self) -> None:
        super().validate()
        check_no_optimizer(self)
        checks.nonnegative("attraction", self.attraction)
        checks.count("annealing", self.annealing)

    def init(self, problem: Problem, network: Network) -> APPLEState:
        start = start_models(problem)
        clients = problem.clients
        relation = jnp.broadcast_to(self._initial_relation(problem), (clients, clients))
        return APPLEState(jnp.matmul(relation, start, precision=HIGHEST), start, start, relation)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return None

    def step(self, state: APPLEState, now: Round) -> APPLEState:
        cohort = self.invite(now, state.model)
        dim = now.problem.dim
        clients = now.problem.clients
        participants = cohort.participants
        initial_relation = self._initial_relation(now.problem)[None]
        core, relation = participants.take((state.core, state.relation))
        cores = now.link.publish(state.known, cohort.active, size=(clients - 1) * dim)
        is_own = participants.numbers[:, None] == jnp.arange(clients, dtype=jnp.int32)[None]
        size = self.size(now.number)
        rate = self.relationship_step_size(now.number)
        progress = jnp.minimum(now.number, self.annealing).astype(core.dtype) / self.annealing
        strength = self.attraction * (1 + jnp.cos(jnp.pi * progress)) / 2

        def personal(variables: Array, is_own: Array) -> Array:
            return _personal_models(variables[:, :dim], variables[:, dim:], cores, is_own)

        # Core models and relations are trained as one row of variables, with their step sizes in
        # the gradient and a unit step.
        def gradients(part: Problem, variables: Array, is_own: Array) -> Array:
            core = variables[:, :dim]
            relation = variables[:, dim:]
            gradient = part.gradient(personal(variables, is_own))
            by_core = _own_weight(is_own, relation) * gradient
            along_core = jnp.sum(gradient * core, axis=1, keepdims=True)
            along_others = jnp.matmul(gradient, cores.T, precision=HIGHEST)
            by_relation = jnp.where(is_own, along_core, along_others) + strength * (
                relation - initial_relation
            )
            return jnp.concatenate([size * by_core, rate * by_relation], axis=1)

        start = jnp.concatenate([core, relation], axis=1)
        unit_step = jnp.ones((), core.dtype)
        learned = self.learn(
            now,
            cohort,
            start,
            step=unit_step,
            direction=gradients,
            context=is_own,
            whole=personal,
        ).model
        core = learned[:, :dim]
        relation = learned[:, dim:]
        sent = now.link.send(core, clients=participants.numbers, sending=cohort.active)
        return APPLEState(
            participants.put(state.model, _personal_models(core, relation, cores, is_own)),
            participants.put(state.core, core),
            now.link.stored(participants.put(state.known, sent), state.known),
            participants.put(state.relation, relation),
        )

    def _initial_relation(self, problem: Problem) -> Float[Array, " clients"]:
        r""":math:`p_0`."""
        weights = self.server_weights(problem)
        weights = jnp.ones(problem.clients, problem.dtype) if weights is None else weights
        return weights / jnp.sum(weights)


def _own_weight(
    is_own: Bool[Array, "some clients"], relation: Float[Array, "some clients"]
) -> Array:
    """What clients have of their own core models, ``[some, 1]``."""
    return jnp.sum(jnp.where(is_own, relation, 0), axis=1, keepdims=True)


def _personal_models(
    core: Float[Array, "some dim"],
    relation: Float[Array, "some clients"],
    cores: Float[Array, "clients dim"],
    is_own: Bool[Array, "some clients"],
) -> Float[Array, "some dim"]:
    """The personal models, from the clients' own core models and the received ones."""
    from_others = jnp.matmul(jnp.where(is_own, 0, relation), cores, precision=HIGHEST)
    return _own_weight(is_own, relation) * core + from_others
