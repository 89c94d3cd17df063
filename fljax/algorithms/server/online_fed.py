r"""Online federated learning with a server: Online-FedSGD, Online-Fed."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Everyone, Selector
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream

#: How the server averages messages of different delays.
AGGREGATIONS = ("pooled", "per delay")


class OnlineFedState(NamedTuple):
    """State of Online-Fed between rounds."""

    model: Array  # [D]  the server's w


@algorithm(
    "Online-Fed",
    ("mcmahan2017", "gauthier2023pao"),
    Needs(
        None,
        data="stream",
        absent=True,
        late=True,
        averages=True,
        uploads=("models", "updates"),
        masked=True,
    ),
    {"Online-FedSGD": "with all clients scheduled"},
)
@module
class OnlineFed(Algorithm):
    r"""A stochastic gradient step of the scheduled clients, then the mean of the arriving models.

    .. math::

        w_k^{(n+1)}=w^{(n)}+\mu z_k^{(n)}e_k^{(n)},\quad
        e_k^{(n)}=y_k^{(n)}-w^{(n)\top}z_k^{(n)},\quad
        w^{(n+1)}=\frac1{|\mathcal K_n|}\sum_{k\in\mathcal K_n}w_k^{(n+1)}

    With all clients scheduled it is Online-FedSGD. A participant is scheduled *and* available; if
    nothing arrives the model is unchanged.

    The source leaves open how delayed models are averaged. ``aggregation="pooled"`` is (6) with
    the set of arrivals instead of :math:`\mathcal K_n`. ``"per delay"`` is (4.13)-(4.14) of PAO-Fed
    with whole models and :math:`\alpha_l=1`: of the messages arriving in a round only the freshest
    class is used.

    Args:
      step_size: :math:`\mu`, a schedule or a number, > 0; see :func:`lms`.
      selector: the server's choice among available clients; all of them by default.
      aggregation: as above.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=6, samples=5, dim=4)
      >>> problem = fl.streams.Replay(data)
      >>> algorithm = fl.algorithms.OnlineFed(0.1, fl.participation.Subset(2))
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=5)
      >>> int(run.bits_up[-1])  # 5 rounds, 2 scheduled clients, 4 numbers of 32 bits
      1280

    Reference:
      McMahan et al. 2017, Algorithm 1, with one step on the newest sample; Gauthier et al. 2023
      (PAO-Fed), (4)-(6).
    """

    step_size: Schedule = field(converter=as_schedule)
    selector: Selector = Everyone()
    aggregation: str = static(default="pooled")

    def validate(self) -> None:
        checks.choice("aggregation", self.aggregation, AGGREGATIONS)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.selector

    def init(self, problem: Problem | Stream, network: Network) -> OnlineFedState:
        self.selector.check(problem.clients)
        return OnlineFedState(server_start(problem))

    stability = "1 / max eigenvalue, Gauthier 2024, Theorem 4.2, (4.31), or the mean square's"

    def step_bound(
        self,
        problem: Problem | Stream,
        network: Network,
        moments: FeatureMoments | None,
    ) -> Array | None:
        """The smaller of the bound of Theorem 4.2, (4.31), and that of the mean square, of as many
        clients as a round averages for certain.
        """
        if moments is None:
            return None
        return moments.step_bound(self._averaged(problem.clients) if moments.always else 1)

    def _averaged(self, clients: int) -> int:
        """Of how many clients a round averages the models, if all are available."""
        law = self.selector.law(clients)
        if law is None or not checks.is_concrete(law.rate):
            return 1
        rate = float(law.rate)
        return round(rate * clients) if rate == 1 or law.sampling == "drawn" else 1

    def step(self, state: OnlineFedState, now: Round) -> OnlineFedState:
        participants = now.choose(self.selector, state.model)
        server = now.link.publish(state.model, participants.here)
        clients = participants.numbers
        step_size = self.step_size(now.number)

        def messages(rows: Array) -> Float[Array, "group dim"]:
            part = now.problem.take(clients[rows]).mapped()
            return lms(part, jnp.broadcast_to(server, (len(rows), part.dim)), step_size)

        per_delay = self.aggregation == "per delay"
        arrived = now.link.collect(
            messages,
            participants.here,
            server,
            weights=participants.unbiased(
                now.available, jnp.ones(now.problem.clients, server.dtype)
            ),
            normalized=participants.weights is None,
            per_delay=per_delay,
            clients=participants.clients,
            step_size=step_size,
        )
        return OnlineFedState(arrived.move(server))


def lms(
    problem: Problem, model: Float[Array, "clients dim"], step_size: Array
) -> Float[Array, "clients dim"]:
    r"""Take one step of least mean squares, :math:`w+\mu ze`, at every client with a new sample.

    In this literature the step is along half the gradient of the squared error, (4.9); for another
    loss it is half the gradient too. A client without a sample keeps its model.
    """
    has_sample = jnp.any(problem.weights > 0, axis=1)[:, None]
    return model - jnp.where(has_sample, step_size / 2 * problem.gradient(model), 0)
