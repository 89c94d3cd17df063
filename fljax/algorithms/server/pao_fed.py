r"""Partial-sharing-based asynchronous online federated learning (Gauthier 2024, Algorithm 3)."""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.online_fed import AGGREGATIONS, lms
from fljax.graphs.federation import Network
from fljax.link import Circular, Sharing
from fljax.optimization.schedules import Schedule, StepSize, as_schedule
from fljax.participation.selectors import Everyone, Selector
from fljax.problems import Problem
from fljax.problems.streams import FeatureMoments, Stream

#: What available clients receive of the server's model.
RECEIVED = ("portion", "all")


class PAOFedState(NamedTuple):
    """State of PAO-Fed between rounds."""

    model: Array  # [D]  the server's w
    local: Array  # [K, D]  w_k


@algorithm(
    "PAO-Fed",
    ("gauthier2023pao", "gauthier2024"),
    Needs(None, data="stream", absent=True, late=True, averages=True),
)
@module
class PAOFed(Algorithm):
    r"""Partial-sharing online learning: clients exchange portions of their models with the server.

    An available client merges the portion :math:`M_k^{(n)}` of the server's model into its own,
    learns from its new sample, and sends the portion :math:`S_k^{(n)}` of the result; a client that
    has a sample but is not available also learns, (4.9)-(4.12):

    .. math::

        v_k=M_k^{(n)}w^{(n)}+(I-M_k^{(n)})w_k^{(n)}\ \text{or}\ w_k^{(n)},\qquad
        w_k^{(n+1)}=v_k+\mu z_k^{(n)}(y_k^{(n)}-v_k^\top z_k^{(n)})

    The server averages the deviations in each class :math:`\mathcal C_l` of messages delayed by
    :math:`l`, and weights the classes, (4.13)-(4.14):

    .. math::

        w^{(n+1)}=w^{(n)}+\sum_l\frac{\alpha_l}{|\mathcal C_l^{(n)}|}\sum_{k\in\mathcal C_l^{(n)}}
            S_k^{(n-l)}\big(w_k^{(n+1-l)}-w^{(n)}\big)

    If several classes contain the same parameter in a round only the freshest changes it (the
    paper, below (15); the thesis omits the rule, but (4.21) is right-stochastic only with it). An
    overridden message still counts in :math:`|\mathcal C_l|`.

    Args:
      step_size: :math:`\mu`, a schedule or a number, > 0.
      sharing: the portions; :class:`~fljax.link.Circular` with ``size`` :math:`m`, coordinated (C)
        or uncoordinated (U).
      send_next: whether a client sends the portion that it receives next,
        :math:`S_k^{(n)}=M_k^{(n+1)}` (variants 1 and 2), which it has refined longest; otherwise
        the one just received (variant 0).
      discount: :math:`\alpha_l=\mathrm{discount}^l`, in [0, 1]: 1 for variants 0 and 1, 0.2 for
        variant 2; or :math:`\alpha_l` itself, one entry for each lag of the delay law.
      received: ``"portion"``, or ``"all"``: :math:`M_k=I`, figure 4.6(a).
      autonomous: whether clients learn while they are unavailable.
      freshest: whether the rule above applies; without it every class is used and the total weight
        on a parameter may exceed one.
      aggregation: ``"per delay"`` as above, or ``"pooled"``: one average over all arriving
        messages.
      selector: the server's choice among available clients; all of them by default.

    Raises:
      ValueError: a portion that does not fit the model, a discount outside [0, 1].

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=6, samples=5, dim=4)
      >>> problem = fl.streams.Replay(data)
      >>> algorithm = fl.algorithms.PAOFed(0.1, fl.link.Circular(2))
      >>> simulation = fl.Simulation(problem, algorithm, delays=fl.link.Geometric(0.2, longest=3))
      >>> int(fl.run(simulation, rounds=5).bits_up[-1])  # 5 rounds, 6 clients, 2 of 4 numbers
      1920

    Reference:
      Gauthier et al. 2023 (PAO-Fed), Algorithm 1; Gauthier 2024, Algorithm 3, (4.5)-(4.14).
    """

    step_size: Schedule = field(converter=as_schedule)
    sharing: Sharing = Circular(4)
    send_next: Bool[Array, ""] | bool = True
    discount: Float[Array, " *lags"] | float = 1.0
    received: str = static(default="portion")
    autonomous: bool = static(default=True)
    freshest: bool = static(default=True)
    aggregation: str = static(default="per delay")
    selector: Selector = Everyone()

    #: name -> coordinated, send_next, discount; section 4.4.2.
    VARIANTS: ClassVar[dict[str, tuple[bool, bool, float]]] = {
        "C0": (True, False, 1.0),
        "U0": (False, False, 1.0),
        "C1": (True, True, 1.0),
        "U1": (False, True, 1.0),
        "C2": (True, True, 0.2),
        "U2": (False, True, 0.2),
    }

    @classmethod
    def variant(cls, name: str, step_size: StepSize, size: int = 4, **changes: Any) -> "PAOFed":
        """Return PAO-Fed-C0, U0, C1, U1, C2 or U2 of the source, all one compiled program.

        Raises:
          ValueError: another name.
        """
        checks.choice("variant", name, cls.VARIANTS)
        coordinated, send_next, discount = cls.VARIANTS[name]
        sharing = Circular(size, coordinated)
        settings = {"send_next": send_next, "discount": discount} | changes
        return cls(step_size, sharing, **settings)

    def validate(self) -> None:
        if isinstance(self.discount, list | tuple):
            object.__setattr__(self, "discount", np.asarray(self.discount))
        checks.interval("discount", self.discount, at_least=0, at_most=1)
        checks.choice("received", self.received, RECEIVED)
        checks.choice("aggregation", self.aggregation, AGGREGATIONS)

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return self.selector

    def init(self, problem: Problem | Stream, network: Network) -> PAOFedState:
        self.sharing.check(problem.dim)
        self.selector.check(problem.clients)
        return PAOFedState(server_start(problem), start_models(problem))

    stability = "1 / max eigenvalue, Gauthier 2024, Theorem 4.2, (4.31), or the mean square's"

    def step_bound(
        self,
        problem: Problem | Stream,
        network: Network,
        moments: FeatureMoments | None,
    ) -> Array | None:
        """The smaller of the bound of Theorem 4.2, (4.31), and that of one client's mean square:
        what clients do not share, they do not average.
        """
        return None if moments is None else moments.step_bound()

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.sharing.size, self.sharing.size if self.received == "portion" else problem.dim

    def step(self, state: PAOFedState, now: Round) -> PAOFedState:
        problem = now.problem
        link = now.link
        participants = now.choose(self.selector, state.model)
        active = participants.put(jnp.zeros(problem.clients, bool), participants.here)
        everyone = jnp.arange(problem.clients, dtype=jnp.int32)
        dim = problem.dim
        size = self.sharing.size
        portions = link.common_key("sharing")
        next_round = now.number + jnp.asarray(self.send_next, jnp.int32)

        received = active[:, None]
        if self.received == "portion":
            received = received & self.sharing.mask(portions, now.number, everyone, dim)
        server = link.publish(state.model, active, size if self.received == "portion" else None)
        merged = jnp.where(received, server[None], state.local)
        local = lms(problem.mapped(), merged, self.step_size(now.number))
        if not self.autonomous:
            local = jnp.where(active[:, None], local, state.local)

        def sent(rows: Array) -> Array:
            return self.sharing.indices(portions, next_round, rows, dim)

        weights = participants.unbiased(now.available, jnp.ones(problem.clients, server.dtype))
        if weights is not None:
            weights = participants.put(jnp.zeros(problem.clients, server.dtype), weights)
        arrived = link.collect(
            lambda rows: local[rows[:, None], sent(rows)],
            active,
            server,
            at=sent,
            weights=weights,
            normalized=weights is None,
            discount=self.discount,
            per_delay=self.aggregation == "per delay",
            freshest=self.freshest,
        )
        return PAOFedState(arrived.move(server), local)


@algorithm(
    "PSO-Fed",
    ("gogineni2022", "gauthier2024"),
    Needs(None, data="stream", absent=True, late=True, averages=True),
)
@module
class PSOFed(PAOFed):
    r"""Partial-sharing online learning with client scheduling, designed for full availability.

    .. math::

        w^{(n+1)}=\frac1{|\mathcal S_n|}\sum_{k\in\mathcal S_n}
            \big[M_k^{(n+1)}w_k^{(n+1)}+(I-M_k^{(n+1)})w^{(n)}\big]

    It is PAO-Fed with a selector and equal weights of all arriving messages in one average. The
    source gives no equations; these are from its reference. If clients are unavailable, the
    scheduled and available ones participate.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.least_squares(jax.random.key(0), clients=6, samples=5, dim=4)
      >>> problem = fl.streams.Replay(data)
      >>> selector = fl.participation.Subset(2)
      >>> algorithm = fl.algorithms.PSOFed(0.1, fl.link.Circular(2), selector=selector)
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=5)
      >>> int(run.bits_up[-1])  # 5 rounds, 2 scheduled clients, 2 of 4 numbers of 32 bits
      640

    Reference:
      Gogineni et al. 2022; Gauthier 2024, sections 4.4.3 and 4.4.5, figure 4.3.
    """

    aggregation: str = static(default="pooled")
