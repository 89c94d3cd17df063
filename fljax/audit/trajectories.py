r"""Twin trajectories: one simulation on two data sets, with the same draws.

The source of noisy multi-agent learning bounds the distance between two trajectories (Rizk 2023,
sections 2.5, 3.4 and 4.2; :mod:`fljax.theory.multiagent_privacy`): the same algorithm, samples,
batches and noise, and another data set at one agent. Here both are run, and the distances are
measured: of models, and of the messages themselves, which the source replaces by models.
"""

import functools
import math
import warnings
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from fljax import _check
from fljax._arguments import checked
from fljax._generator import as_key, name_of
from fljax._module import module, replace
from fljax.audit.guessing import AT_ONCE, _neighboring
from fljax.engine import begin, check_length, check_rounds, look, prepare, stepped
from fljax.federation import Federation
from fljax.graphs import Combination, Varying
from fljax.link import Link, Noise, PerEdge
from fljax.problems import Problem, optimum
from fljax.records import DivergenceWarning, provenance
from fljax.simulation import Simulation
from fljax.theory import multiagent_privacy as theory

__all__ = ["twins", "within"]

NORMS = ("l1", "l2")
HISTORIES = ("own", "same")


# Listening ---------------------------------------------------------------------------------------


@module
class _Replayed(Noise):
    """Noise with which nodes say what was said in another world: what they have to say is off by
    ``gap``, and their draws make up for it.
    """

    base: Any = None
    gap: Any = None

    def said(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        said, cancelled = self.base.said(key, message)
        return said + self.gap, None if cancelled is None else cancelled + self.gap

    def over_edges(
        self, key: Array, receiver: Array, senders: Array, weights: Array, dim: int
    ) -> Array | None:
        return self.base.over_edges(key, receiver, senders, weights, dim)

    def delivered(
        self, key: Array, receiver: Array, senders: Array, weights: Array, messages: Array
    ) -> Array:
        return self.base.delivered(key, receiver, senders, weights, messages)

    @property
    def cancels(self) -> Literal["", "network", "receiver"]:
        return self.base.cancels


class _Upload(NamedTuple):
    """What clients tell their server, ``[K, D]``; zero where they say nothing."""

    message: Array
    sent: Array  # [K]
    update: Array | None  # by how much the message is off the model that they got, per step


class _Ear(Link):
    """A link that keeps what is said before any noise, and lets a world say what another said."""

    def __init__(self, *args: Any, told: "_Ear | None" = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._first, self._inside = told, False
        self._start: Array | None = None
        self.messages: list[Array] = []  # between peers, or between servers
        self.uploads: list[_Upload] = []

    def exchange(self, message: Array, **more: Any) -> tuple[Array, Any]:
        self._note(message)
        self._inside = True
        exchanged = super().exchange(message, **more)
        self._inside = False
        return exchanged

    def combine(self, models: Array, over: Combination) -> Array:
        self._note(models)
        return super().combine(models, over)

    def _note(self, message: Array) -> None:
        if self._first is not None and self._stages.noise is not None:
            noise = getattr(self._stages.noise, "base", self._stages.noise)
            gap = self._first.messages[len(self.messages)] - message
            replayed = _Replayed(noise.variance, base=noise, gap=gap)
            self._stages = self._stages._replace(noise=replayed)
        self.messages.append(message)

    def publish(self, message: Array, *given: Any, **more: Any) -> Array:
        self._start = message
        return super().publish(message, *given, **more)

    def send(self, message: Array, *given: Any, **more: Any) -> Array:
        if self._inside:
            return super().send(message, *given, **more)
        clients, sending = more.get("clients"), more.get("sending")
        clients = jnp.arange(len(message), dtype=jnp.int32) if clients is None else clients
        sending = jnp.ones(len(clients), bool) if sending is None else sending
        message = self._upload(message, clients, sending, more.get("step_size"))
        return super().send(message, *given, **more)

    def collect(self, message: Any, senders: Array, around: Array, **more: Any) -> Any:
        if more.get("at") is not None:
            raise ValueError(
                "twins can only be compared by whole messages, but this algorithm sends parts of "
                "them."
            )
        clients = more.get("clients")
        clients = jnp.arange(len(senders), dtype=jnp.int32) if clients is None else clients
        if callable(message):
            message = message(jnp.arange(len(senders), dtype=jnp.int32))
        message = self._upload(message, clients, senders, more.get("step_size"))
        return super().collect(message, senders, around, **more)

    def _upload(self, message: Array, clients: Array, sending: Array, step_size: Any) -> Array:
        place = jnp.where(sending, clients, self._clients)
        silence = jnp.zeros((self._clients, message.shape[1]), message.dtype)
        update = None
        if step_size is not None and self._start is not None:
            start = jnp.atleast_2d(self._start)
            if isinstance(self._network, Federation):
                start = start[jnp.asarray(self._network.server, jnp.int32)[clients]]
            update = silence.at[place].set((start - message) / step_size, mode="drop")
        sent = jnp.zeros(self._clients, bool).at[place].set(True, mode="drop")
        table = silence.at[place].set(message, mode="drop")
        if self._first is not None and self._stages.upload_noise is not None:
            told = self._first.uploads[len(self.uploads)]
            message = jnp.where(told.sent[clients][:, None], told.message[clients], message)
        self.uploads.append(_Upload(table, sent, update))
        return message


def _models(state: Any) -> Array:
    """``[P, D]``: of the servers where there are some, of the peers else."""
    model = getattr(state, "server", state.model)
    return model.reshape(-1, model.shape[-1])


def _lengths(change: Array) -> Array:
    """``[2, ...]``: by both norms."""
    return jnp.stack([jnp.sum(jnp.abs(change), axis=-1), jnp.sqrt(jnp.sum(change**2, axis=-1))])


def _parted(one: _Ear, two: _Ear) -> dict[str, Array]:
    """How far apart what is said is in two worlds, ``[2, nodes]`` each, summed over a round."""
    distances: dict[str, Array] = {}
    if one.messages:
        pairs = zip(one.messages, two.messages, strict=True)
        distances["message"] = sum(_lengths(b - a) for a, b in pairs)  # pyright: ignore[reportArgumentType]
    for a, b in zip(one.uploads, two.uploads, strict=True):
        for name, x, y in (("upload", a.message, b.message), ("update", a.update, b.update)):
            if x is not None and y is not None:
                # Who speaks in one world only has told which it is.
                distance = jnp.where((a.sent == b.sent)[None], _lengths(y - x), jnp.inf)
                distances[name] = distances.get(name, 0) + distance  # pyright: ignore[reportOperatorIssue]
    return distances


@functools.partial(jax.jit, static_argnames=("rounds", "batch", "replayed"))
def _run(
    worlds: tuple[Simulation, Simulation],
    keys: Array,
    rounds: int,
    batch: int,
    replayed: bool,
) -> tuple[dict[str, Any], Array]:
    """``[S, T, ...]`` each, and how far the optima are apart."""
    ready = tuple(prepare(world, rounds) for world in worlds)
    optima = tuple(optimum(world.problem) for world in worlds)
    order = (0, 1, 1) if replayed else (0, 1)

    def run(key: Array) -> dict[str, Any]:
        def one_round(carries: Any, round: Array) -> tuple[Any, dict[str, Any]]:
            after, ears = [], []
            for place, which in enumerate(order):
                linked = functools.partial(_Ear, told=ears[0] if place == 2 else None)
                carry = carries[place]
                now, stream, there = look(
                    worlds[which], ready[which], key, carry, round, rounds, linked
                )
                state = stepped(worlds[which], carry.state, now)
                assert isinstance(now.link, _Ear)
                ears.append(now.link)
                memory = now.link.memory
                after.append(
                    carry._replace(state=state, stream=stream, availability=there, memory=memory)
                )
            models = [_models(carry.state) for carry in after[:2]]
            errors = [_far(m - o[None]) for m, o in zip(models, optima, strict=True)]
            kept: dict[str, Any] = {"deviation": _far(models[1] - models[0])}
            kept |= {"error": errors[0], "other_error": errors[1]}
            parted = [_parted(ears[0], ear) for ear in ears[1:]]
            both = {name: jnp.stack([p[name] for p in parted]) for name in parted[0]}
            return tuple(after), kept | both

        start = tuple(begin(worlds[which], ready[which], key) for which in order)
        return jax.lax.scan(one_round, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]

    return jax.lax.map(run, keys, batch_size=batch), _far(optima[1] - optima[0])


def _far(change: Array) -> Array:
    return jnp.sqrt(jnp.sum(change**2))


# The twins ---------------------------------------------------------------------------------------


@checked
def twins(
    simulation: Simulation,
    neighbor: Problem,
    rounds: int,
    seeds: int = 100,
    *,
    key: Array | int = 0,
) -> xr.Dataset:
    r"""Return the distances between models and messages when one agent's data differ.

    Both data sets are run with the same keys: the same clients and batches are drawn, and the same
    noise. This is the coupling in the source's theorems. Privacy requires another comparison, that
    of the next messages *after the same earlier messages*: so the second data set is run a third
    time, in the history of the first, where its agents send the messages of the first run and their
    noise compensates for the difference.

    Args:
      simulation: with the first data set; its metrics are not used.
      neighbor: the second data set, in which any samples of one client differ.
      rounds: of every run, >= 1.
      seeds: number of runs.
      key: of all runs; an integer seeds the default generator.

    Returns:
      A dataset over ``seed`` and ``round``, without units except those of the models:

      * ``deviation``: :math:`\Delta(i)=\|w_i-w_i'\|`, of the servers' models, or of all peers'
        together; ``error`` and ``other_error``, :math:`\|\tilde w_i\|` in either world, and
        ``optima``, :math:`\|w^o-w'^o\|`; ``nodes`` in the attributes is :math:`P`.
      * ``message_change`` over ``node``: the distance between the messages of peers, or of servers
        to each other, before noise; ``upload_change`` and ``update_change`` over ``client``, of
        clients to a server, as models and as updates. Each by ``norm``, and by ``history``: each
        world's ``"own"``, or the ``"same"``, where there is noise to compensate for the difference.
        Infinite where a client sends in one world only.
      * under Laplace noise ``epsilon`` by ``history``, of all messages with noise up to a round,
        counting each copy with a draw of its own; ``epsilon_heard`` of those that one ``node``
        hears from others; and ``epsilon_printed``, what the source derives from ``deviation``:
        (2.69), (3.58), (4.34). Not where noise cancels at receivers: no epsilon is finite there.

    Raises:
      TypeError: no simulation, or no problem.
      ValueError: a budget, which has its own accounting; data sets that differ in more than one
        client; messages in parts.

    Guarantees:
      None. ``epsilon`` in the same history is the largest privacy loss that the noise allows for
      *these* data along *these* trajectories; for a quadratic problem in which only targets differ,
      without random batches, it is the same for all trajectories, and is exactly the epsilon of
      this pair against whoever hears all messages. Nothing follows for other pairs. The values in
      their own histories, and ``epsilon_printed``, are those of the source.

    Example:
      For updates that clients share, the printed value is too small: it uses the distance between
      the server's models for the distance between the updates.

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2)
      >>> _, other = fl.audit.corners(problem, client=0, radius=2.0, neighbors="client")
      >>> simulation = fl.Simulation(
      ...     problem=problem,
      ...     algorithm=fl.algorithms.FedAvg(step_size=0.1),
      ...     upload_noise=fl.link.UploadNoise(0.1, on="updates"),
      ... )
      >>> compared = twins(simulation, other, rounds=10, seeds=8)
      >>> bool((compared.epsilon.sel(history="same") > 2 * compared.epsilon_printed).all())
      True
    """
    if simulation.privacy is not None:
        raise ValueError(
            "twins are for noise without a budget (noise= or upload_noise=): leave out privacy=, "
            "or audit the budget with fljax.audit.two_worlds."
        )
    check_rounds(rounds, 1)
    _check.count("seeds", seeds)
    (client,) = _neighboring(simulation.problem, neighbor, "client")
    simulation = replace(simulation, metrics=())
    jax.eval_shape(lambda: check_length(simulation, rounds))
    worlds = simulation, replace(simulation, problem=neighbor)
    size = 3 * simulation.problem.clients * simulation.problem.dim
    key = as_key(key)
    noisy = simulation.noise is not None or simulation.upload_noise is not None
    replayed = noisy and not (
        simulation.noise is not None and simulation.noise.cancels == "receiver"
    )
    results, optima = _run(
        worlds,
        jax.random.split(key, seeds),
        rounds,
        max(1, min(seeds, AT_ONCE // size)),
        replayed,
    )
    if not np.isfinite(optima):
        raise ValueError(
            "one of the data sets has no optimum to measure errors from, as where a model "
            "separates the labels; give the problem a regularizer, such as SquaredL2()."
        )
    host = {name: np.asarray(value, np.float64) for name, value in results.items()}
    variables: dict[str, Any] = {
        "deviation": (("seed", "round"), host["deviation"], _said("distance of the models")),
        "error": (("seed", "round"), host["error"], _said("distance to the optimum")),
        "other_error": (
            ("seed", "round"),
            host["other_error"],
            _said("distance to the other optimum, with the other data"),
        ),
        "optima": ((), float(optima), _said("distance of the optima")),
    }
    for name, axis in (("message", "node"), ("upload", "client"), ("update", "client")):
        if name in host:
            axes = ("history", "norm", "seed", "round", axis)
            value = np.moveaxis(host[name], (2, 3), (0, 1))
            variables[f"{name}_change"] = (axes, value, _said(f"distance of the {name}s"))
    nodes = _nodes(simulation)
    known = xr.Dataset(
        variables,
        coords={
            "history": list(HISTORIES[: 1 + replayed]),
            "norm": list(NORMS),
            "round": np.arange(1, rounds + 1),
        },
        attrs={"nodes": nodes, "changed_client": int(client)}
        | provenance(dtype=str(simulation.problem.dtype), prng=name_of(key), rounds=rounds),
    )
    lost = int((~np.isfinite(host["deviation"])).any(axis=1).sum())
    if lost:
        warnings.warn(
            f"{lost} of {seeds} pairs of runs diverged and have no distances; take a smaller step.",
            DivergenceWarning,
            stacklevel=2,
        )
    return known.assign(_epsilons(simulation, known))


def _said(label: str) -> dict[str, str]:
    return {"long_name": label, "units": "1"}


def _nodes(simulation: Simulation) -> int:
    if simulation.among_peers:
        return simulation.problem.clients
    return simulation.network.servers if isinstance(simulation.network, Federation) else 1


def _epsilons(simulation: Simulation, results: xr.Dataset) -> dict[str, Any]:
    """Of Laplace noise, as the source has it and from the messages themselves."""
    noise, uploads = simulation.noise, simulation.upload_noise
    kinds = [part for part in (noise, uploads) if part is not None and float(part.variance) > 0]
    masked = noise is not None and noise.cancels == "receiver"
    if not kinds or masked or any(p.law != "laplace" for p in kinds):
        return {}
    dim, nodes = simulation.problem.dim, results.attrs["nodes"]

    def moved(name: str, part: Any) -> Any:
        """In scales of the noise, added up over the rounds."""
        variance = float(part.variance) / (dim if part.per == "vector" else 1)
        return results[f"{name}_change"].sel(norm="l1", drop=True).cumsum("round") * math.sqrt(
            2 / variance
        )

    deviation, copies = results["deviation"].values, 1
    if simulation.among_peers:  # (4.34): from 0, where both are the same, to i - 1
        deviation, copies = np.pad(deviation, ((0, 0), (1, 0)))[:, :-1], nodes
    printed = theory.epsilon(deviation, float(kinds[0].variance), copies=copies)
    more = {"epsilon_printed": (("seed", "round"), printed, _said("epsilon as printed"))}
    total: Any = 0
    if uploads in kinds:
        total = total + moved("update" if uploads.on == "updates" else "upload", uploads).sum(
            "client"
        )  # pyright: ignore[reportOptionalMemberAccess]
    graph = simulation.network
    graph = graph.graph if isinstance(graph, Federation) else graph
    if noise in kinds and graph is not None and not isinstance(graph, Varying):
        joined = np.asarray(graph.dense()) > 0
        copies = joined.sum(axis=0) if isinstance(noise, PerEdge) else np.ones(nodes)
        each = moved("message", noise)
        total = total + (each * xr.DataArray(copies, dims="node")).sum("node")
        heard = each.values @ joined.T
        more["epsilon_heard"] = (each.dims, heard, _said("epsilon of what a node hears"))
    if not isinstance(total, int):
        more["epsilon"] = (total.dims, total.values, _said("epsilon of all messages"))
    return more


@checked
def within(results: xr.Dataset, error: float, other_error: float) -> xr.Dataset:
    r"""Return how often :math:`\Delta(i)` was within its bound, and the promised frequency.

    Args:
      results: of :func:`twins`.
      error: :math:`B > 0`.
      other_error: :math:`B' > 0`.

    Returns:
      A dataset over ``round``: the ``fraction`` of runs within
      :func:`~fljax.theory.multiagent_privacy.deviation_bound` (an attribute), the fraction of runs
      within it in ``all_rounds`` so far, and the probability that
      :func:`~fljax.theory.multiagent_privacy.bound_probability` promises by each rule
      (``promised_printed``, ``promised_union``, ``promised_all_rounds``), with the measured mean
      squares of the errors in place of the source's bounds on them.

    Example:
      >>> each = ("seed", "round"), np.array([[0.2], [0.4], [1.6], [0.1]])
      >>> parts = {"deviation": each, "error": each, "other_error": each, "optima": 0.5}
      >>> compared = within(xr.Dataset(parts, attrs={"nodes": 1}), 0.5, 0.5)
      >>> float(compared.fraction[0]), float(compared.promised_printed[0])
      (0.75, 0.0)
    """
    if "deviation" not in results or "nodes" not in results.attrs:
        raise ValueError("results must be what fljax.audit.twins returned, got another dataset.")
    bound = float(
        theory.deviation_bound(error, other_error, float(results["optima"]), results.attrs["nodes"])
    )
    inside = results["deviation"].transpose("seed", "round").values <= bound
    one, two = ((results[name] ** 2).mean("seed").values for name in ("error", "other_error"))
    variables = {"fraction": inside, "all_rounds": np.logical_and.accumulate(inside, axis=1)}
    variables = {name: ("round", value.mean(axis=0)) for name, value in variables.items()}
    for rule in theory.RULES:
        name = f"promised_{rule.replace(' ', '_')}"
        variables[name] = ("round", theory.bound_probability(one, two, error, other_error, rule))
    known = xr.Dataset(variables, coords={"round": results["round"]}, attrs={"bound": bound})
    for name in known.data_vars:
        known[name].attrs = _said(str(name).replace("_", " "))
    return known
