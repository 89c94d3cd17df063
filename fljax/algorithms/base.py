"""What every algorithm is, what it needs, and the table of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._arguments import checked
from fljax.graphs import Graph
from fljax.participation import Law
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems import optimum as centralized
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = [
    "REGISTRY",
    "Algorithm",
    "Needs",
    "ReleasesModel",
    "algorithm",
    "server_start",
    "start_models",
]


@dataclass(frozen=True)
class Needs:
    """What an algorithm runs on and copes with, as data: compared with a simulation in one place.

    Attributes:
      network: what it runs on: :class:`~fljax.graphs.Graph` of clients,
        :class:`~fljax.federation.Federation` of servers, or ``None`` for a server of all clients.
      data: ``"fixed"``, all at once; ``"stream"``, as they arrive; ``"any"``.
      privacy: the notions that it may run under.
      absent: whether it copes with absent clients.
      late: whether it copes with messages that arrive later, or as stale copies.
      averages: whether it combines messages by a mean, which an aggregator may replace.
      changing: whether the graph may be another one in every round.
      directed: whether peers may hear each other in one direction only, by weights that are not
        symmetric.
      compressed: whether its messages may be compressed (not if it does so by its own rule).
      smooth: whether it needs a smooth loss and regularizer.
      minimizer: whether it minimizes a client's objective exactly, in which clipping has no place.
      quadratic: whether it needs a quadratic objective.
      validation: whether it needs validation data of each client.
      uploads: on what of clients' messages to a server noise may be: ``"models"``, the message;
        ``"updates"``, where the step says by which step size one is multiplied in it.
      masked: whether a server, and all else in the step, takes no more of clients' messages than
        one sum over all who take part, so that pairwise masks may hide them.
    """

    network: type | None = Graph
    data: str = "fixed"
    privacy: tuple[type, ...] = ()
    absent: bool = False
    late: bool = False
    averages: bool = False
    changing: bool = False
    directed: bool = False
    compressed: bool = True
    smooth: bool = False
    minimizer: bool = False
    quadratic: bool = False
    validation: bool = False
    uploads: tuple[str, ...] = ("models",)
    masked: bool = False


class Algorithm:
    """A pure init/step pair over an explicit state; what is common to all of them.

    A state is a named tuple whose field ``model`` holds the models that are judged: ``[K, D]``,
    or ``[D]`` for one model shared by all. Rounds are numbered from 1.

    Subclass it, with :func:`fljax.module` for its numbers, for one of your own; it meets every
    stage that its ``needs`` allow, without a line of code for them.

    Attributes:
      label: its name in the literature, by default that of the class.
      reference: key into ``references.bib``.
      needs: what it runs on and copes with.
      waiting: fields of the state that hold what a peer hears. What is said while it is absent
        waits for it there; all else that is its own stays as it was.
      hears_itself: whether a peer's own message is among those that it combines.
      one_by_one: whether peers look at single messages (``inbox.messages``), and not at their mean,
        which an aggregator would replace.
      step_size: how long a step is, a schedule, a number or an optimizer; ``None`` of one that
        takes no steps. Its first is held against :meth:`step_bound`.
      selection: who takes part, a selector; ``None`` of one that does not say, which a trusted
        server has no account for.
      combinations: the weights by which peers combine what they hear, a rule or a matrix, as far as
        they are known before the run; ``None`` among them is no exchange.
      uploads: on what of clients' messages to a server noise may be, in the place of what its
        ``needs`` say.
      has_start: whether it brings the first models itself.
      stability: what :meth:`step_bound` is, and from where, in a few words.

    Example:
      Diffusion learning in a sweep, under privacy, over links that fail, with a median:

      >>> import jax, fljax as fl
      >>> from typing import Any, NamedTuple
      >>> class State(NamedTuple):
      ...     model: Any  # [K, D]  what client k said
      ...     mixed: Any  # [K, D]  what it makes of what it heard
      >>> @fl.module
      ... class Diffusion(fl.algorithms.Algorithm):
      ...     # a number or a schedule
      ...     step_size: fl.schedules.Schedule = fl.field(converter=fl.schedules.as_schedule)
      ...     needs = fl.algorithms.Needs(privacy=(fl.privacy.ZCDP,), averages=True)
      ...
      ...     def init(self, problem, network):
      ...         start = fl.algorithms.start_models(problem)
      ...         return State(start, start)
      ...
      ...     def step(self, state, now):
      ...         slope = now.problem.gradient(state.mixed)
      ...         now.witness(now.problem.sample_gradient_norm(state.mixed))
      ...         step = self.step_size(now.number)
      ...         said, inbox = now.link.exchange(state.mixed - step * slope)
      ...         return State(said, inbox.mean(over=now.network.mixing()))
      ...
      ...     def sensitivity(self, problem, network, round, gap):
      ...         return gap.gradient * self.step_size(round)
      >>> def scenario(key, budget):
      ...     problem = fl.problems.ridge(key, clients=6, samples=20, dim=2)
      ...     return fl.Simulation(
      ...         problem=problem.clipped(1.0),
      ...         network=fl.graphs.complete(6),
      ...         algorithm=Diffusion(step_size=0.1),
      ...         privacy=fl.privacy.ZCDP(total_rho=budget, gradient_bound=1.0),
      ...         losses=fl.link.Independent(0.1),
      ...         aggregation=fl.aggregation.Median(),
      ...         metrics=["consensus_error"],
      ...     )
      >>> results = fl.sweep(scenario, grid={"budget": [1.0, 10.0]}, seeds=2, rounds=20)
      >>> dict(results.consensus_error.sizes)
      {'budget': 2, 'seed': 2, 'round': 20}
    """

    label: ClassVar[str] = "an algorithm"
    reference: ClassVar[str | None] = None
    needs: ClassVar[Needs]
    waiting: ClassVar[tuple[str, ...]] = ()
    hears_itself: ClassVar[bool] = True
    stability: ClassVar[str] = ""

    # Fields or properties of a subclass; what none of its own has keeps these.
    step_size: Any = None  # Schedule, Optimizer or number
    selection: Any = None  # Selector
    combinations: Any = ()  # of Mixing, Combination and None
    uploads: Any = None  # tuple[str, ...]
    has_start: Any = False
    one_by_one: Any = False

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__

    def check(self, problem: Any, network: Any) -> None:
        """Raise ``ValueError`` where its numbers do not fit the clients or their network."""

    @_check.required
    def init(self, problem: Any, network: Any) -> Any:
        """The state before the first round."""
        raise NotImplementedError

    @_check.required
    def step(self, state: Any, now: Round) -> Any:
        """One round of every client."""
        raise NotImplementedError

    def optimum(self, problem: Problem, network: Any) -> Float[Array, "*clients dim"]:
        """What metrics measure its errors from: the centralized solution, ``[D]``, unless the
        algorithm's clients are to learn models of their own, ``[K, D]``.
        """
        return centralized(problem)

    def weights(self, problem: Any) -> Float[Array, " clients"] | None:
        """How much each client's mean loss counts in the objective that is minimized, up to a
        common factor; ``None``: all alike. It is the problem's, unless the algorithm was asked for
        another.
        """
        return problem.importance

    def sampling(self, problem: Any) -> Law | None:
        """How samples get into a step's batch, at the client with the fewest; ``None`` of one that
        does not say, which :class:`~fljax.privacy.NoisyGradients` have no account for.
        """
        return None

    def step_bound(
        self, problem: Problem | Stream, network: Any, curvature: Array | None
    ) -> Array | None:
        r"""The largest step size that theory allows (:attr:`stability`); ``None`` without one.

        Args:
          problem: of the simulation.
          network: of the simulation, where it is the same in all rounds.
          curvature: of a stream, the largest eigenvalue of its features' second moment.
        """
        return None

    def message_size(self, dim: int) -> int:
        """How many numbers a message among peers has: those of a model, unless it says
        otherwise; none if nothing is ever sent.
        """
        return dim

    def message_size_of(self, problem: Any) -> int:
        """The same of this problem's models, for who asks it which of their numbers are sent."""
        return self.message_size(problem.dim)

    def released(self, state: Any, problem: Any, network: Any) -> Float[Array, "*clients dim"]:
        """The models that the network may see: what was sent, perturbed, or follows from that."""
        raise NotImplementedError(
            _check.lacks(type(self), "released", "the models that may be seen")
        )

    def sensitivity(
        self, problem: Problem, network: Any, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""How far neighboring data can move each client's message, in Euclidean norm.

        Given all that was said before: what a client keeps to itself (momentum, a tracker, a warm
        start) depends on its data of all rounds so far, and counts, whichever rounds an algorithm
        that copes with absence was there for. A mean loss gradient moves by
        ``gap.gradient`` at most if it is taken at a model that follows from what was said, and by
        ``gap.anywhere`` else; which data are neighbors is the notion's affair.

        Args:
          problem: the clients' data; what it returns may depend on their sizes alone.
          network: of the simulation.
          round: 1, 2, ..., possibly traced.
          gap: of the clients' mean gradients; :meth:`Gap.of(privacy, problem)
            <fljax.privacy.Gap.of>` makes it.

        Returns:
          ``[K]``.
        """
        raise NotImplementedError(
            _check.lacks(type(self), "sensitivity", "what neighboring data can move")
        )


class ReleasesModel:
    """What the network may see of an algorithm whose state's model is the server's."""

    def released(self, state: Any, problem: Any, network: Any) -> Float[Array, "*clients dim"]:
        """The server's model."""
        return state.model


#: The registered algorithms by their names in the literature.
REGISTRY: dict[str, type[Algorithm]] = {}

T = TypeVar("T", bound=type[Algorithm])


@checked
def algorithm(label: str, reference: str, needs: Needs) -> Callable[[T], T]:
    """Register a class as the algorithm that the literature calls ``label``."""

    def register(cls: T) -> T:
        cls.label, cls.reference, cls.needs = label, reference, needs
        REGISTRY[label] = cls
        return cls

    return register


def start_models(problem: Problem | Stream) -> Float[Array, "clients dim"]:
    """Where clients start: at zero, as in the literature, or where
    :meth:`~fljax.problems.Problem.starting_at` says.

    All know it of all before the first round, and no message is counted for it.
    """
    start = jnp.zeros((), problem.dtype) if problem.initial is None else problem.initial
    start = jnp.asarray(start, problem.dtype)
    return jnp.broadcast_to(start, (problem.clients, problem.dim))


def server_start(problem: Problem | Stream) -> Float[Array, " dim"]:
    """Where a server of all clients starts: where they do, or at the mean of it."""
    start, given = start_models(problem), problem.initial
    return start[0] if given is None or np.ndim(given) == 1 else jnp.mean(start, axis=0)
