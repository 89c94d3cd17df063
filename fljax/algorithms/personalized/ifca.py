r"""IFCA: iterative federated clustering with a model per cluster (Ghosh et al. 2020)."""

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm
from fljax.algorithms.local_steps import check_full, gradient_in_training, learn
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import Drawn, Selector, everyone_or
from fljax.problems import Problem

#: What the server averages.
AVERAGES = ("models", "gradients")


class IFCAState(NamedTuple):
    """State of IFCA between rounds."""

    model: Array  # [K, D]  of the cluster that fits each client best
    models: Array  # [Q, D]  the server's theta_q
    choice: Array  # [K]  the cluster of least loss, of these models


@algorithm(
    "IFCA",
    "ghosh2020",
    Needs(None, absent=True, uploads=("models", "updates"), trains=True),
    {"Iterative federated clustering": ""},
)
@module
class IFCA(Algorithm):
    r"""Iterative federated clustering: estimate clients' clusters and train one model per cluster.

    In round :math:`n` the server draws a set :math:`S` of clients and sends them all
    :math:`\theta_1,\dots,\theta_Q`. Each selects the model with the smallest loss on its data,
    :math:`\hat q_k=\arg\min_qf_k(\theta_q)`, and with ``average="models"`` takes ``local_steps``
    from it, :math:`w_k\leftarrow w_k-\gamma f_k'(w_k)`; otherwise it computes one gradient. The
    server sets

    .. math::

        \theta_q=\frac{\sum_{k\in S:\hat q_k=q}w_k}{|\{k\in S:\hat q_k=q\}|}
        \qquad\text{or}\qquad
        \theta_q\leftarrow\theta_q-\frac\gamma{|S|}\sum_{k\in S:\hat q_k=q}f_k'(\theta_q)

    A model that no client selects is unchanged. :math:`S` contains available clients only. The
    paper divides gradients by the number of all clients, which is the same with full participation.
    A message is one model; the cluster index sent with it, :math:`\log_2Q` bits, is not counted.
    Metrics evaluate the model that each client, participating or not, would select at the end of
    the round: one more evaluation of :math:`Q` losses, which is also the next round's estimate.
    Each model has running statistics of its own, averaged over its participants as its parameters
    are, and is evaluated with them; a client that keeps its statistics (``Model(state="kept")``)
    evaluates all models with its own. The authors' networks have none.

    Args:
      step_size: :math:`\gamma`, a schedule of the round or a number, > 0.
      clusters: :math:`Q\ge1`.
      local_steps: :math:`\tau\ge1` gradient steps of a participant, on all of its samples.
      average: ``"models"`` (option II of the paper) or ``"gradients"`` (option I).
      clients_per_round: :math:`|S|`, the number of participants; all clients by default.
      start: ``[Q, D]``, the server's initial models. They must differ, otherwise clients cannot
        distinguish them. By default :func:`random_start` from a fixed key, the same in every run;
        use one from the scenario's own key if every seed should have its own. For networks it must
        be given; their own start is not used.

    Raises:
      ValueError: more participants than clients; several local steps with gradient averaging; a
        start of another shape or with equal models.

    Example:
      >>> import numpy as np, fljax as fl
      >>> X = np.random.default_rng(0).normal(size=(6, 20, 2))
      >>> signs = np.array([1, 1, 1, -1, -1, -1])
      >>> data = list(zip(X, X.sum(axis=2) * signs[:, None]))
      >>> problem = fl.problems.from_clients(data, fl.problems.LeastSquares())
      >>> start = np.array([[0.1, 0.1], [-0.1, -0.1]])
      >>> algorithm = fl.algorithms.IFCA(0.2, clusters=2, start=start)
      >>> simulation = fl.Simulation(problem, algorithm, metrics=["train_error"])
      >>> bool(fl.run(simulation, rounds=100).train_error.max("client")[-1] < 1e-6)
      True

    Reference:
      Ghosh et al. 2020, Algorithm 1.
    """

    step_size: Schedule = field(converter=as_schedule)
    clusters: int = static()
    local_steps: int = static(default=1)
    average: str = static(default="models")
    clients_per_round: int | None = static(default=None)
    start: Annotated[Array, "clusters dim"] | None = field(converter=as_given, default=None)

    def validate(self) -> None:
        checks.count("clusters", self.clusters)
        checks.count("local_steps", self.local_steps)
        checks.choice("average", self.average, AVERAGES)
        if self.average == "gradients" and self.local_steps > 1:
            raise ValueError(
                f"local_steps must be 1 where gradients are averaged, got {self.local_steps}; "
                'average="models" takes several.'
            )
        if self.clients_per_round is not None:
            checks.count("clients_per_round", self.clients_per_round)
        if self.start is not None:
            object.__setattr__(self, "start", checked_start(self.start, self.clusters, "cluster"))

    @property
    def has_start(self) -> bool:
        return self.start is not None

    @property
    def uploads(self) -> tuple[str, ...] | None:
        return ("updates",) if self.average == "gradients" else None

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(Drawn, self.clients_per_round)

    @property
    def has_personal_networks(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Yes, since clients' models are of different clusters."""
        return True

    @property
    def common_models(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One of each cluster."""
        return self.clusters

    def check(self, problem: Problem, network: Network) -> None:
        if problem.mixes_samples:  # a step is on all samples
            check_full(None, problem)

    def init(self, problem: Problem, network: Network) -> IFCAState:
        self.selection.check(problem.clients)
        models = first_models("IFCA", problem, self.start, self.clusters, "cluster")
        return _assigned(problem, models, ())

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return problem.dim, self.clusters * problem.dim

    def step(self, state: IFCAState, now: Round) -> IFCAState:
        step_size = self.step_size(now.number)
        problem: Any = now.problem
        participants = now.choose(self.selection, state.model)
        server = now.link.publish(state.models.reshape(-1), participants.here)
        choice = participants.take(state.choice)
        chosen = server.reshape(state.models.shape)[choice]
        networks = now.networks
        networks.among(choice)
        if self.average == "models":
            training = networks.of(participants)
            learned = learn(
                problem, participants, chosen, step_size, self.local_steps, training=training
            )
            networks.trained(participants, None, learned.state)
            message = learned.model
            reference = server
        else:
            part = participants.of(problem)
            message = gradient_in_training(now, part, chosen, participants=participants)
            reference = jnp.zeros_like(server)
        multiple = step_size if self.average == "models" else 1

        # A message goes to its cluster's place among the models, one after the other.
        indices = choice[:, None] * problem.dim + jnp.arange(problem.dim, dtype=jnp.int32)[None]
        arrived = now.link.collect(
            message,
            participants.here,
            reference,
            at=indices,
            clients=participants.numbers,
            step_size=multiple,
        )
        if self.average == "models":
            present = arrived.share > 0
            models = jnp.where(
                present, arrived.total / jnp.where(present, arrived.share, 1), server
            )
        else:
            models = server - step_size * arrived.total
        is_kept = problem.state_policy == "kept"
        states = () if is_kept else networks.after
        if is_kept:
            problem = problem.with_state(networks.after)
        after = _assigned(problem, models.reshape(state.models.shape), states)
        of_clients = networks.after if is_kept else jax.tree.map(lambda a: a[after.choice], states)
        now.personal_networks.assign(of_clients)
        return after


def _assigned(problem: Any, models: Float[Array, "clusters dim"], states: PyTree) -> IFCAState:
    """Return the state of these models, with each client assigned to the one of smallest loss.

    Args:
      problem: of all clients.
      models: of the clusters.
      states: ``[Q, ...]`` each, of the models' networks; ``()`` for those of the problem.
    """
    everyone = (problem.clients, problem.dim)

    def losses_of(model: Array, state: PyTree) -> Float[Array, " clients"]:
        part = problem
        if jax.tree.leaves(state):
            part = problem.with_state(jax.tree.map(lambda a: a[None], state))
        return part.objective(jnp.broadcast_to(model, everyone))

    losses = jax.vmap(losses_of)(models, states)
    choice: Int[Array, " clients"] = jnp.argmin(losses, axis=0).astype(jnp.int32)
    return IFCAState(models[choice], models, choice)


def checked_start(start: Any, count: int, of: str) -> Any:
    """Return the initial models as an array, one of each cluster or component.

    Args:
      start: ``[Q, D]``.
      count: ``Q``.
      of: what there is a model of, as errors call it.

    Raises:
      ValueError: another shape, numbers that are not finite, equal models.
    """
    start = checks.array("start", start)
    if np.ndim(start) != 2 or np.shape(start)[0] != count:
        raise ValueError(
            f"start must be [{count}, parameters], one model a {of}, got shape {np.shape(start)}."
        )
    checks.finite("start", start)
    checks.check_when_concrete(partial(_check_different, count), start)
    return np.asarray(start, np.float64) if checks.is_concrete(start) else start


def _check_different(count: int, start: object) -> None:
    if len(np.unique(np.asarray(start), axis=0)) < count:
        raise ValueError(
            "start holds equal models, which no client can tell apart; "
            "fljax.algorithms.personalized.ifca.random_start draws different ones."
        )


def first_models(
    label: str, problem: Problem, start: Any, count: int, of: str
) -> Float[Array, "models dim"]:
    """Return the initial models: as given, or, for linear predictions, drawn from a fixed key.

    Args:
      label: of the algorithm, for errors.
      problem: the problem, whose own start is not used.
      start: ``[Q, D]``, as checked, or ``None``.
      count: ``Q``.
      of: what there is a model of, as errors call it.

    Raises:
      ValueError: a start of the problem's own; models of another length.
    """
    if problem.initial is not None and (problem.linear or start is None):
        drawn = (
            "such as jax.numpy.stack([problem.initialized(key).initial for key in "
            f"jax.random.split(jax.random.key(0), {count})])."
        )
        remedy = "leave out starting_at(), and " * problem.linear
        remedy += f"give {label} start=[{of}s, dim]" + ("." if problem.linear else f", {drawn}")
        raise ValueError(
            f"{label} starts from one model for each {of}, and not from the problem's start: "
            + remedy
        )
    if start is None:
        key = jax.random.key(0, impl="threefry2x32")
        models = random_start(key, count, problem.dim)
    else:
        models = jnp.asarray(start)
    if models.shape[1] != problem.dim:
        raise ValueError(
            f"start must hold models of the problem's {problem.dim} parameters, got "
            f"{models.shape[1]}."
        )
    return models.astype(problem.dtype)


def random_start(
    key: Array, clusters: int, dim: int, deviation: Array | float = 1.0
) -> Float[Array, "clusters dim"]:
    """Return different initial models: independent normal numbers of zero mean.

    Args:
      key: a random key, consumed.
      clusters: number of models.
      dim: number of parameters of each.
      deviation: their standard deviation; a suitable value is the scale of the distances between
        the clusters' solutions.
    """
    return deviation * jax.random.normal(key, (clusters, dim))
