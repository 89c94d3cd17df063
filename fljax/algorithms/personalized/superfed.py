r"""SuPerFed: a low-loss line between global and personal models (Hahn, Jeong, Lee 2022)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.personalized.apfl import mixed
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.problems import Problem


class SuPerFedState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  the mixtures that are judged
    personal: Array  # [K, D]  w_k^l
    server: Array  # [D]  w^g


@algorithm(
    "SuPerFed",
    "hahn2022",
    AVERAGED,
)
@module
class SuPerFed(Averaging):
    r"""Training of a global and a personal model at a random interpolation of both in each step.

    A participant of round :math:`n` starts from :math:`w_k^f=w^g` and from its own last
    :math:`w_k^l`. In each step it draws :math:`\lambda` uniformly from [0, 1] and takes a gradient
    step on both, at :math:`\bar w=(1-\lambda)w_k^f+\lambda w_k^l`, for the objective

    .. math::

        f_k(\bar w)+\frac\rho2\|w_k^f-w^g\|^2+\nu\cos^2(w_k^f,w_k^l)

    The server averages the :math:`w_k^f`; :math:`w_k^l` is never sent. In the first ``warmup``
    rounds :math:`\lambda=0`, without an angle term, and :math:`w_k^l` is fixed, which is federated
    averaging, or FedProx. Metrics evaluate mixtures with the server's new model, with a given
    :math:`\lambda`; the paper evaluates several and takes the best.

    The two models should be different: with different
    :func:`start_models <fljax.algorithms.start_models>` of the clients
    (:meth:`~fljax.problems.Problem.starting_at`) the personal models start there, and the server at
    their mean. An angle with a zero model is defined as a right angle. This
    is the paper's model mixing, one :math:`\lambda` for all parameters; layer mixing draws one per
    layer.

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments; an optimizer updates :math:`(w_k^f,w_k^l)` jointly.
      attraction: :math:`\rho\ge0`, the weight of the proximal term to the server's model.
      orthogonality: :math:`\nu\ge0`, the weight of the angle term.
      warmup: rounds before personal models are trained, >= 0.
      interpolation: :math:`\lambda\in[0,1]` of the evaluated mixtures.

    Raises:
      ValueError: an interpolation outside [0, 1]; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     algorithm=fl.algorithms.SuPerFed(0.1, orthogonality=1.0, warmup=5),
      ...     metrics=["objective"],
      ... )
      >>> run = fl.run(simulation, rounds=20)
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      Hahn et al. 2022, Algorithm 1, with model mixing.
    """

    attraction: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)
    orthogonality: Float[Array, ""] | float = dataclasses.field(default=0.0, kw_only=True)
    warmup: int = static(default=0, kw_only=True)
    interpolation: Float[Array, ""] | float = dataclasses.field(default=0.5, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("attraction", self.attraction)
        checks.nonnegative("orthogonality", self.orthogonality)
        checks.count("warmup", self.warmup, at_least=0)
        checks.interval("interpolation", self.interpolation, at_least=0, at_most=1)

    def init(self, problem: Problem, network: Network) -> SuPerFedState:
        personal = start_models(problem)
        server = server_start(problem)
        return SuPerFedState(self._evaluated(personal, server), personal, server)

    def _evaluated(self, personal: Array, server: Array) -> Float[Array, "clients dim"]:
        share = jnp.broadcast_to(jnp.asarray(self.interpolation, server.dtype), (len(personal),))
        return mixed(share, personal, server[None])

    def step(self, state: SuPerFedState, now: Round) -> SuPerFedState:
        cohort = self.invite(now, state.model)
        dim = now.problem.dim
        participants = cohort.participants
        two = now.number > self.warmup
        server = now.link.publish(state.server, cohort.active)
        personal = participants.take(state.personal)
        key = now.key("algorithm")
        steps = (cohort.longest,)

        def draws(client: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(key, client), steps, server.dtype)

        shares = jnp.where(two, jax.vmap(draws)(participants.numbers), 0)

        def pair_gradient(part: Problem, pair: Array, context: PyTree) -> Array:
            _, share = context
            common = pair[:, :dim]
            personal = pair[:, dim:]
            gradient = part.gradient(mixed(share, personal, common))
            repulsion = jnp.where(two, self.orthogonality, 0) * angle_gradient(common, personal)
            share = share[:, None]
            common = (1 - share) * gradient + self.attraction * (common - server[None])
            personal = share * gradient
            return jnp.concatenate([common, personal], axis=1) + repulsion

        pair = jnp.concatenate([jnp.broadcast_to(server, personal.shape), personal], axis=1)
        pair = self.learn(
            now,
            cohort,
            pair,
            direction=pair_gradient,
            per_step=shares,
            layouts=[now.problem.layout] * 2,
        ).model
        server = self.collect(now, cohort, pair[:, :dim], server).move(server)
        personal = participants.put(state.personal, pair[:, dim:])
        return SuPerFedState(self._evaluated(personal, server), personal, server)


def angle_gradient(
    a: Float[Array, "some dim"], b: Float[Array, "some dim"]
) -> Float[Array, "some two_dim"]:
    r"""Return the gradient of :math:`\cos^2(a,b)` in both, concatenated; zero if one of them is
    zero.
    """
    product = jnp.sum(a * b, axis=1, keepdims=True)
    squares = jnp.sum(a**2, axis=1, keepdims=True), jnp.sum(b**2, axis=1, keepdims=True)
    denominator = squares[0] * squares[1]
    factor = jnp.where(denominator > 0, 2 * product / jnp.where(denominator > 0, denominator, 1), 0)
    ratios = [product / jnp.where(square > 0, square, 1) for square in squares]
    return factor * jnp.concatenate([b - ratios[0] * a, a - ratios[1] * b], axis=1)
