"""The base class of algorithms, their requirements, and the registry of all of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.graphs.federation import Network
from fljax.participation.selectors import Law, declares
from fljax.privacy import Gap
from fljax.privacy.mechanism import Scope
from fljax.problems import Model, Problem, Softmax
from fljax.problems import optimum as centralized
from fljax.problems.streams import FeatureMoments, Stream

#: The networks that clients may have, if there are several.
NETWORKS = ("one", "nested", "different", "any")


@dataclass(frozen=True)
class Needs:
    """What an algorithm requires and supports, as data that a simulation is checked against.

    Attributes:
      network: the network it runs on: :class:`~fljax.graphs.Graph` of clients,
        :class:`~fljax.federation.Federation` of servers, or ``None`` for one server of all clients.
      data: ``"fixed"``, all data from the start; ``"stream"``, data that arrive round by round;
        ``"any"``, both.
      privacy: the places of noise under which it has a private form: ``"message"``, ``"server"``
        and ``"gradient"``, the scopes of mechanisms (:class:`fljax.privacy.Mechanism`).
      budget: quantities that a mechanism must account for, such as ``("epsilon", "delta")``.
      absent: whether it supports unavailable clients.
      late: whether it supports delayed messages and stale copies.
      averages: whether it combines messages by a mean, which a robust aggregator may replace.
      changing: whether the graph may change from round to round.
      directed: whether links may be directed, with weights that are not symmetric.
      complete: whether any two clients must be able to communicate.
      compressed: whether its messages may be compressed (not if it compresses them by its own
        rule).
      smooth: whether it requires a smooth loss and a smooth regularizer.
      minimizer: whether it minimizes a client's objective exactly, without gradients
        to clip.
      quadratic: whether it requires a quadratic objective.
      validation: whether it requires validation data at each client.
      classes: whether it reads the logits of classes, so that the loss must be
        :class:`~fljax.problems.Softmax`.
      representation: whether it reads the representation of a sample before the last layer, which a
        network must then define (:func:`fljax.models.headed`).
      uploads: to which part of clients' messages to a server noise may be added: ``"models"``, the
        message itself; ``"updates"``, an update within it, if the step states the step size that
        multiplies it there.
      trains: whether clients take steps of training (``self.learn``), in which a network may draw
        random numbers, as dropout does, or be normalized by the batch.
      compares_samples: whether it compares gradients of the same samples at several models, as
        variance reduction does, which rests on samples whose gradients are functions of the model.
      networks: which networks clients may have, if there are several: ``"one"``, all the same;
        ``"nested"``, parts of the widest one (:func:`fljax.models.nested`); ``"different"``
        (:func:`fljax.models.several`); ``"any"`` of these.
      adapters: whether it trains adapters of low rank (:func:`fljax.models.lora`).
      masked: whether the server, and everything else in the step, uses clients' messages only
        through one sum over all participants, so that pairwise masks may hide them.
      hierarchical: whether it uses the servers above the clients' own
        (:class:`~fljax.graphs.Tree`).
      asynchronous: whether it runs on a clock of single arrivals
        (:class:`~fljax.clock.Asynchronous`), where participants start from an older model.

    Example:
      >>> import fljax as fl
      >>> fl.algorithms.ZCDPNFL.needs.privacy, fl.algorithms.FedAvg.needs.network
      (('message',), None)
      >>> fl.algorithms.Needs(averages=True, trains=True).data  # the default
      'fixed'
    """

    network: type | None = Graph
    data: str = "fixed"
    privacy: tuple[Scope, ...] = ()
    budget: tuple[str, ...] = ()
    absent: bool = False
    late: bool = False
    averages: bool = False
    changing: bool = False
    directed: bool = False
    complete: bool = False
    compressed: bool = True
    smooth: bool = False
    minimizer: bool = False
    quadratic: bool = False
    validation: bool = False
    classes: bool = False
    representation: bool = False
    uploads: tuple[str, ...] = ("models",)
    masked: bool = False
    trains: bool = False
    compares_samples: bool = False
    networks: str = "one"
    adapters: bool = False
    hierarchical: bool = False
    asynchronous: bool = False

    def __post_init__(self) -> None:
        for scope in self.privacy:
            if not isinstance(scope, str):
                raise TypeError(
                    "privacy names the places of noise under which an algorithm runs, as "
                    f'privacy=("message",); got {checks.shown(scope)}.'
                )
            checks.choice("privacy", scope, get_args(Scope))
        checks.choice("networks", self.networks, NETWORKS)


#: Methods and properties of an algorithm that do not decide which samples are in a batch.
_NOT_DRAWING = frozenset(
    {
        *("check", "validate", "init", "sampling", "selection", "step_size", "combinations"),
        *(
            "uploads",
            "has_start",
            "one_by_one",
            "has_personal_networks",
            "common_models",
            "walks",
            "optimum",
            "weights",
            "step_bound",
            "released",
            "counts_work",
            "gradients_per_step",
        ),
        *("message_size", "message_size_of", "exchanged", "work", "sensitivity", "predictor"),
    }
)


class Algorithm:
    """Base class of all algorithms: a pure init/step pair over an explicit state.

    A state is a named tuple whose field ``model`` holds the models that metrics evaluate:
    ``[K, D]``, or ``[D]`` for one model shared by all clients. Rounds are numbered from 1.

    To write your own algorithm, subclass it with the decorator :func:`fljax.module`, whose fields
    are the parameters; all features of a simulation that its ``needs`` allow (privacy, losses,
    aggregation, ...) apply to it without further code.

    Attributes:
      label: its name in the literature; by default the name of the class.
      reference: a key of ``references.bib``, or several: the work that introduced it first, then
        the ones that the implementation follows; see :func:`fljax.citation`.
      needs: its requirements and supported features.
      waiting: fields of the state that hold a peer's received data. Messages sent to it while it is
        unavailable are kept there; all other fields of an unavailable peer keep their values.
      hears_itself: whether a peer's own message is among the messages that it combines.
      one_by_one: whether peers process individual messages (``inbox.messages``) rather than their
        mean, which an aggregator would replace.
      step_size: the step size, a schedule, a number or an optimizer; ``None`` for an algorithm
        without one. Its value in the first round is compared with :meth:`step_bound`.
      selection: the selector of the participants; ``None`` if the algorithm has none, and
        therefore no privacy accounting for a trusted server.
      combinations: the combination weights of peers' messages, rules or matrices, as far as they
        are known before the run; an entry ``None`` stands for no exchange.
      uploads: to which part of clients' messages to a server noise may be added, overriding its
        ``needs``.
      has_start: whether it defines the initial models itself.
      has_personal_networks: whether clients train personal models in addition to the common one,
        and metrics evaluate these; networks then have a state for each of both models
        (``now.personal_networks``).
      common_models: how many models a server trains, each of participants of its own; networks
        then have a state for each (``now.networks.among``).
      counts_work: whether :meth:`work` and :meth:`gradients_per_step` count the computation of
        every round, which a clock needs to know.
      walks: how many models go from peer to peer (``now.clock.go_on_at``); ``None``: each peer has
        its own.
      stability: a short description of the bound :meth:`step_bound` and its source.

    Example:
      Diffusion learning in a sweep, under privacy, over links that fail, with a median:

      >>> import jax, fljax as fl
      >>> from typing import NamedTuple
      >>> class State(NamedTuple):
      ...     model: jax.Array  # [K, D]  the message of client k
      ...     mixed: jax.Array  # [K, D]  the combination of the messages received
      >>> @fl.module
      ... class Diffusion(fl.algorithms.Algorithm):
      ...     # a number or a schedule
      ...     step_size: fl.schedules.Schedule = fl.field(converter=fl.schedules.as_schedule)
      ...     needs = fl.algorithms.Needs(privacy=("message",), averages=True)
      ...
      ...     def init(self, problem, network):
      ...         start = fl.algorithms.start_models(problem)
      ...         return State(start, start)
      ...
      ...     def step(self, state, now):
      ...         gradient = now.problem.gradient(state.mixed)
      ...         now.witness_at(state.mixed)
      ...         step = self.step_size(now.number)
      ...         sent, inbox = now.link.exchange(state.mixed - step * gradient)
      ...         return State(sent, inbox.mean(over=now.network.mixing()))
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
    reference: ClassVar[str | tuple[str, ...] | None] = None
    needs: ClassVar[Needs]
    waiting: ClassVar[tuple[str, ...]] = ()
    hears_itself: ClassVar[bool] = True
    stability: ClassVar[str] = ""
    counts_work: ClassVar[bool] = True

    # Defaults of fields or properties that a subclass may define.
    step_size: Any = None  # Schedule, Optimizer or number
    selection: Any = None  # Selector
    combinations: Any = ()  # of Mixing, Combination and None
    uploads: Any = None  # tuple[str, ...]
    has_start: Any = False
    one_by_one: Any = False
    has_personal_networks: Any = False
    common_models: Any = 1  # int
    walks: Any = None  # int

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.label = cls.__name__
        inherits = cls.sampling is not Algorithm.sampling
        if inherits and not declares(cls, "sampling", _NOT_DRAWING):
            cls.sampling = Algorithm.sampling

    def check(self, problem: Any, network: Any) -> None:
        """Raise ``ValueError`` if the parameters do not fit the clients or their network."""

    @checks.required
    def init(self, problem: Any, network: Any) -> Any:
        """The state before the first round."""
        raise NotImplementedError

    @checks.required
    def step(self, state: PyTree, now: Round) -> Any:
        """One round of every client."""
        raise NotImplementedError

    def optimum(self, problem: Problem, network: Any) -> Float[Array, "*clients dim"]:
        """Return the reference solution of error metrics: the centralized solution, ``[D]``, or
        ``[K, D]`` for algorithms whose clients learn models of their own.
        """
        return centralized(problem)

    def weights(self, problem: Problem | Stream) -> Float[Array, " clients"] | None:
        """Return the weight of each client's mean loss in the objective that is minimized, up to a
        common factor; ``None`` for equal weights. It is the problem's weight unless the algorithm
        was given another.
        """
        return problem.importance

    def sampling(self, problem: Any) -> Law | None:
        """Return how the batch of a step is sampled, at the client with the fewest samples;
        ``None`` if unspecified, in which case :class:`~fljax.privacy.NoisyGradients` has no privacy
        accounting.

        A law with a separation guarantees that many of a client's own steps between two batches
        with the same sample: :meth:`fljax.link.Link.descend` passes the number of the step to
        ``draw``. What that costs, or a strategy of the noise, depends on how many steps a client
        takes in a round; the number is the field or property ``local_steps``.

        The law is that of the class that declares it: a subclass that overrides ``step``, or
        another method by which batches are drawn, has none unless it declares its own
        (``return super().sampling(problem)`` where it is the same).
        """
        return None

    def step_bound(
        self, problem: Problem | Stream, network: Any, moments: FeatureMoments | None
    ) -> Array | None:
        r"""Return the largest step size that theory allows (:attr:`stability`), or ``None`` without
        one.

        Args:
          problem: the simulation's problem.
          network: the simulation's network, if it is the same in all rounds.
          moments: for a stream, of its features.
        """
        return None

    def message_size(self, dim: int) -> int:
        """Return how many numbers a message between peers contains, by default as many as a model;
        zero if nothing is ever sent.
        """
        return dim

    def message_size_of(self, problem: Any) -> int:
        """Return :meth:`message_size` for this problem; override it if the number of entries sent
        depends on the problem.
        """
        return self.message_size(problem.dim)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        """Return how many numbers a participant sends to a server in a round, and how many it
        receives; ``None`` if that differs between rounds or participants.

        A clock needs it before the round to determine who answers in time. By default they are a
        message (:meth:`message_size_of`) and a model.
        """
        return self.message_size_of(problem), problem.dim

    def work(self, problem: Any) -> tuple[Int[Array, " clients"], Int[Array, " clients"]]:
        """Return how many local steps each client takes in a round, and how many sample gradients
        they evaluate; a clock multiplies them by its seconds.

        By default as many steps as ``local_steps`` says, or one, on batches of the size that
        ``batches`` or ``batch`` says, or on all samples. Override it if a round computes something
        else.
        """
        samples = jnp.sum(jnp.asarray(problem.weights) > 0, axis=1, dtype=jnp.int32)
        steps = getattr(self, "local_steps", None)
        steps = jnp.broadcast_to(
            jnp.asarray(1 if steps is None else steps, jnp.int32), samples.shape
        )
        size = getattr(getattr(self, "batches", None), "size", None) or getattr(self, "batch", None)
        return steps, steps * (samples if size is None else jnp.asarray(size, jnp.int32))

    def gradients_per_step(self, problem: Any) -> Float[Array, " clients"] | float:
        """Return how many gradients of each of its samples a local step (:meth:`work`) takes, one
        number or ``[K]``: a clock's seconds of a step are the seconds of one gradient.

        Override it for an algorithm that evaluates several, passes on further batches included.
        """
        return 1.0

    def predictor(self, state: PyTree, problem: Any) -> Callable[[Problem], Array] | None:
        """Return the function by which clients predict, if they do not by one model each.

        Metrics of held-out and of training data then score its predictions: of data with a row for
        each client, or one row for all, it returns ``[K, N, ...]``, a row for each client.

        Args:
          state: the state after the round.
          problem: the clients' training data.
        """
        return None

    def released(self, state: PyTree, problem: Any, network: Any) -> Float[Array, "*clients dim"]:
        """Return the models that the network may observe: the perturbed messages, or what follows
        from them.
        """
        raise NotImplementedError(
            checks.missing_method_message(type(self), "released", "the models that may be seen")
        )

    def sensitivity(
        self, problem: Problem, network: Any, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the sensitivity of each client's message to neighboring data, in Euclidean norm.

        It is conditional on all earlier messages: private variables of a client (momentum, a
        tracker, a warm start) depend on its data of all rounds so far and count toward it,
        whichever rounds the client was available in. A mean loss gradient changes by at most
        ``gap.gradient`` if it is evaluated at a model that is a function of earlier messages, and
        by at most ``gap.anywhere`` otherwise; the privacy notion defines which data sets are
        neighbors.

        Args:
          problem: the clients' data; the result may depend on their sizes only.
          network: the simulation's network.
          round: 1, 2, ..., possibly traced.
          gap: sensitivity of the clients' mean gradients, from
            :meth:`Gap.of(privacy, problem) <fljax.privacy.Gap.of>`.

        Returns:
          ``[K]``.
        """
        raise NotImplementedError(
            checks.missing_method_message(
                type(self), "sensitivity", "what neighboring data can move"
            )
        )


class ReleasesModel:
    """Mixin of algorithms whose released model is the server's model in the state."""

    def released(self, state: PyTree, problem: Problem | Stream, network: Network) -> Any:
        """The server's model; over a population its servers', as their clients'."""
        return state.model


class Synonym(NamedTuple):
    """What another name of a registered algorithm, or of a special case of it, stands for."""

    label: str
    how: str  # how its arguments are to be chosen; empty if they are free


#: The registered algorithms by their names in the literature.
REGISTRY: dict[str, type[Algorithm]] = {}

#: Names of these, and of their special cases, in other papers and libraries: all that
#: ``algorithm(also=...)`` declares. Suggestions, tuning and the documentation read this one table.
SYNONYMS: dict[str, Synonym] = {}


def meanings() -> dict[str, Synonym]:
    """What every name of a registered algorithm stands for: labels, other names, and classes."""
    named = {label: Synonym(label, "") for label in REGISTRY} | SYNONYMS
    for label, cls in REGISTRY.items():
        named.setdefault(cls.__name__, Synonym(label, ""))
    return named


def _check_unused(label: str, names: Iterable[str]) -> None:
    """Raise ``ValueError`` if one of an algorithm's names is another algorithm's already."""
    for name in names:
        meaning = meanings().get(name)
        if meaning is not None and meaning.label != label:
            raise ValueError(
                f"{name!r} cannot be a name of {label}: it is one of {meaning.label}; leave it out."
            )


T = TypeVar("T", bound=type[Algorithm])


@checked
def algorithm(
    label: str,
    reference: str | tuple[str, ...],
    needs: Needs,
    also: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[T], T]:
    """Register a class as the algorithm that the literature calls ``label``.

    Args:
      label: its name.
      reference: a key of ``references.bib``, or several, as of :class:`Algorithm`.
      needs: its requirements and supported features.
      also: names in other papers and libraries of it and of its special cases, each with how
        the arguments are to be chosen, such as ``"with batches="``; empty if they are free.

    Raises:
      ValueError: no reference; a name of another algorithm.

    Example:
      What it records in a class:

      >>> import fljax as fl
      >>> fl.algorithms.EXTRA.label, fl.algorithms.EXTRA.reference
      ('EXTRA', 'shi2015')
    """
    if not reference:
        raise ValueError(f"reference must be a key or several, got {checks.shown(reference)}.")

    def register(cls: T) -> T:
        _check_unused(label, (label, *also))
        cls.label = label
        cls.reference = reference
        cls.needs = needs
        REGISTRY[label] = cls
        SYNONYMS.update({name: Synonym(label, how) for name, how in also.items()})
        return cls

    return register


def start_models(problem: Problem | Stream) -> Float[Array, "clients dim"]:
    """Return the initial models of the clients: zero, as in the literature, or
    :meth:`~fljax.problems.Problem.starting_at`.

    Every client knows the initial models of all others before the first round, and no message is
    counted for them.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=5, dim=3)
      >>> fl.algorithms.start_models(problem.starting_at(jnp.array([1.0, 0.0, 2.0]))).tolist()
      [[1.0, 0.0, 2.0], [1.0, 0.0, 2.0]]
    """
    start = jnp.zeros((), problem.dtype) if problem.initial is None else problem.initial
    start = jnp.asarray(start, problem.dtype)
    return jnp.broadcast_to(start, (problem.clients, problem.dim))


def server_start(problem: Problem | Stream) -> Float[Array, " dim"]:
    """Return the initial model of a server of all clients: the clients' common one, or the mean of
    theirs.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=2, samples=5, dim=3)
      >>> fl.algorithms.server_start(problem).tolist()
      [0.0, 0.0, 0.0]
      >>> moved = problem.starting_at(jnp.array([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]]))
      >>> fl.algorithms.server_start(moved).tolist()
      [2.0, 0.0, 0.0]
    """
    start = start_models(problem)
    initial = problem.initial
    return start[0] if initial is None or np.ndim(initial) == 1 else jnp.mean(start, axis=0)


def parameter_shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arrays whose numbers a model has, one after the other."""
    if isinstance(problem.loss, Softmax) and not isinstance(problem, Model):
        return ((problem.loss.classes, problem.dim // problem.loss.classes),)
    return problem.layout.shapes


def representation_width(problem: Problem) -> int:
    """Return how many numbers a model's head reads of a sample, for a problem or its shapes."""

    def read(shape: Problem) -> Array:
        return shape.representations(start_models(shape))

    return jax.eval_shape(read, problem).shape[2]
