r"""pFedMe with gradient steps instead of exact minimizers (Dinh, Tran and Nguyen 2020)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import Optimizer
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.problems import Problem


class PFedMeByGradientState(NamedTuple):
    """State of pFedMe by gradient between rounds."""

    model: Array  # [K, D]  the personal theta_k
    server: Array  # [D]  the global w


@algorithm("pFedMe, by gradient", "dinh2020", AVERAGED)
@module
class PFedMeByGradient(Averaging):
    r"""pFedMe, whose clients approach their personal models by gradient steps on a batch.

    It is the form in which the paper's experiments are run, and the one for networks; in
    :class:`~fljax.algorithms.PFedMe` the personal models are exact minimizers. A participant of
    round :math:`n` starts from :math:`w_k=\theta_k=w^{(n-1)}`. In each of its local steps it draws
    a batch, on which it repeats ``personal_steps`` times

    .. math:: \theta_k \leftarrow \theta_k-\gamma\big(f_k'(\theta_k)+\lambda(\theta_k-w_k)\big)

    and then moves :math:`w_k\leftarrow w_k-\eta\lambda(w_k-\theta_k)`. The server receives the
    participants' :math:`w_k`, and

    .. math:: w^{(n)} = (1-\beta)w^{(n-1)}+\beta\,\frac{\sum_{k\in S}q_kw_k}{\sum_{k\in S}q_k}

    The personal steps are stable for :math:`\gamma(L+\lambda)<2`, with :math:`L` the largest
    curvature of :math:`f_k`. Metrics evaluate the last :math:`\theta_k`; clients that do not
    participate keep it.

    Sources differ. The paper leaves open where the personal steps start; in the authors' program,
    as here, at the received model, and in later local steps where the last ones ended. In the paper
    all clients compute in every round and the server receives from some of them; the others'
    :math:`w_k` are lost, so that here only participants compute, which changes no server's model.
    The program adds a weight decay of 0.001 to the personal steps of every network; here it is a
    regularizer of the problem.

    Args:
      step_size: :math:`\eta`, a schedule of the round or a number, > 0; :math:`\eta\lambda\le1`
        keeps :math:`w_k` between its last value and :math:`\theta_k`. The other arguments are as in
        :class:`~fljax.algorithms.FedAvg`: the number of local steps is that of its epochs and
        batches, and clients have equal weights by default, as in the paper.
      attraction: :math:`\lambda>0`.
      personal_step_size: :math:`\gamma`, a schedule of the round or a number, > 0.
      personal_steps: :math:`K\ge1`; the paper's is 5.
      server_step_size: :math:`\beta>0`; the paper's experiments use 1 and more.

    Raises:
      ValueError: an attraction or a server's step size that is not positive, a local optimizer; as
        for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.PFedMeByGradient(
      ...         0.1, attraction=1.0, personal_step_size=0.3, epochs=5
      ...     ),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Dinh et al. 2020, Algorithm 1 and section 5.
    """

    attraction: Float[Array, ""] | float = field(kw_only=True)
    personal_step_size: Schedule = field(converter=as_schedule, kw_only=True)
    personal_steps: int = static(default=5, kw_only=True)
    server_step_size: Float[Array, ""] | float = field(default=1.0, kw_only=True)

    def validate(self) -> None:
        super().validate()
        if isinstance(self.step_size, Optimizer):
            raise ValueError(
                "step_size= is of the moves of pFedMe's local models toward the personal ones, "
                "which are no gradient steps: give a number or a schedule, not an optimizer."
            )
        checks.positive("attraction", self.attraction)
        checks.count("personal_steps", self.personal_steps)
        checks.positive("server_step_size", self.server_step_size)

    def gradients_per_step(self, problem: object) -> float:
        return float(self.personal_steps)

    def init(self, problem: Problem, network: Network) -> PFedMeByGradientState:
        return PFedMeByGradientState(start_models(problem), server_start(problem))

    def step(self, state: PFedMeByGradientState, now: Round) -> PFedMeByGradientState:
        cohort = self.invite(now, state.model)
        dim = now.problem.dim
        server = now.link.publish(state.server, cohort.active)
        rate = self.size(now.number) * self.attraction
        personal_step = self.personal_step_size(now.number)

        def moves(part: Problem, pair: Array, context: PyTree) -> Array:
            """How far both models of each participant move in a local step, negated."""
            local = pair[:, :dim]

            def personal_move(_: Array, personal: Array) -> Array:
                proximal = self.attraction * (personal - local)
                return personal - personal_step * (part.gradient(personal) + proximal)

            before = pair[:, dim:]
            personal = jax.lax.fori_loop(0, self.personal_steps, personal_move, before)
            return jnp.concatenate([rate * (local - personal), before - personal], axis=1)

        both = self.learn(
            now,
            cohort,
            jnp.concatenate([server, server]),
            step=jnp.ones((), server.dtype),
            direction=moves,
            layouts=[now.problem.layout] * 2,
            whole=lambda pair, context: pair[:, dim:],
        ).model
        mean = self.collect(now, cohort, both[:, :dim], server).move(server)
        model = cohort.participants.put(state.model, both[:, dim:])
        return PFedMeByGradientState(model, server + self.server_step_size * (mean - server))
