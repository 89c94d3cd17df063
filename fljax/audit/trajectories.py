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
from jaxtyping import Array, PyTree

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import module, replace
from fljax._core.prng import as_key, name_of
from fljax.algorithms.network_states import states_after
from fljax.audit.neighbors import differing_clients
from fljax.audit.tap import BATCH_NUMBERS
from fljax.graphs import Combination, Varying
from fljax.graphs.federation import Federation
from fljax.link import Link, Noise, PerEdge, UploadNoise
from fljax.link.sender_groups import MessageFunction
from fljax.link.server_messages import Arrived
from fljax.problems import Problem, optimum
from fljax.results.dataset import provenance
from fljax.results.warnings import DivergenceWarning
from fljax.simulation.run_state import Carry
from fljax.simulation.scan import (
    begin,
    check_length,
    check_rounds,
    make_round,
    prepare,
    step_algorithm,
)
from fljax.simulation.scenario import Simulation
from fljax.theory import multiagent_privacy as theory

NORMS = ("l1", "l2")
HISTORIES = ("own", "same")


# Listening ---------------------------------------------------------------------------------------


@module
class _Replayed(Noise):
    """Noise with which nodes send the messages of another world: their draws are equal to
    that world's plus ``gap``, the distance between the clean messages of both.
    """

    base: Noise | None = None
    gap: Any = None

    def perturb(self, key: Array, message: Array) -> tuple[Array, Array | None]:
        sent, cancelled = self.base.perturb(key, message)
        return sent + self.gap, None if cancelled is None else cancelled + self.gap

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
    """Messages of clients to their server, ``[K, D]``; zero where a client sends nothing."""

    message: Array
    sent: Array  # [K]  whether the client sends
    update: Array | None  # (received model - message) / step size


class _RecordingLink(Link):
    """A link that records all messages before noise; with ``first_world``, it sends that world's.

    So the second world can be run in the history of the first.
    """

    def __init__(
        self, *args: Any, first_world: "_RecordingLink | None" = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._first = first_world
        self._inside = False
        self._start: Array | None = None
        self.messages: list[Array] = []  # between peers, or between servers
        self.uploads: list[_Upload] = []

    def exchange(self, message: Array, **more: Any) -> tuple[Array, Any]:
        self._record_message(message)
        self._inside = True
        exchanged = super().exchange(message, **more)
        self._inside = False
        return exchanged

    def combine(self, models: Array, over: Combination) -> Array:
        self._record_message(models)
        return super().combine(models, over)

    def _record_message(self, message: Array) -> None:
        if self._first is not None and self._stages.noise is not None:
            noise = getattr(self._stages.noise, "base", self._stages.noise)
            gap = self._first.messages[len(self.messages)] - message
            replayed = _Replayed(noise.variance, base=noise, gap=gap)
            self._stages = self._stages._replace(noise=replayed)
        self.messages.append(message)

    def publish(self, message: Array, *arguments: Any, **more: Any) -> Array:
        self._start = message
        return super().publish(message, *arguments, **more)

    def send(self, message: Array, *arguments: Any, **more: Any) -> Array:
        if self._inside:
            return super().send(message, *arguments, **more)
        clients = more.get("clients")
        sending = more.get("sending")
        clients = jnp.arange(len(message), dtype=jnp.int32) if clients is None else clients
        sending = jnp.ones(len(clients), bool) if sending is None else sending
        message = self._upload(message, clients, sending, more.get("step_size"))
        return super().send(message, *arguments, **more)

    def collect(
        self, message: Array | MessageFunction, senders: Array, reference: Array, **more: Any
    ) -> Arrived:
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
        return super().collect(message, senders, reference, **more)

    def _upload(
        self, message: Array, clients: Array, sending: Array, step_size: Array | float | None
    ) -> Array:
        destination = jnp.where(sending, clients, self._clients)
        silence = jnp.zeros((self._clients, message.shape[1]), message.dtype)
        update = None
        if step_size is not None and self._start is not None:
            start = jnp.atleast_2d(self._start)
            if isinstance(self._network, Federation):
                start = start[jnp.asarray(self._network.server, jnp.int32)[clients]]
            update = silence.at[destination].set((start - message) / step_size, mode="drop")
        sent = jnp.zeros(self._clients, bool).at[destination].set(True, mode="drop")
        table = silence.at[destination].set(message, mode="drop")
        if self._first is not None and self._stages.upload_noise is not None:
            replayed = self._first.uploads[len(self.uploads)]
            message = jnp.where(replayed.sent[clients][:, None], replayed.message[clients], message)
        self.uploads.append(_Upload(table, sent, update))
        return message


def _models(state: PyTree) -> Array:
    """The models of the servers, or of the peers where there are none: ``[P, D]``."""
    model = getattr(state, "server", state.model)
    return model.reshape(-1, model.shape[-1])


def _norms(change: Array) -> Array:
    """The l1 and l2 norm, ``[2, ...]``."""
    return jnp.stack([jnp.sum(jnp.abs(change), axis=-1), jnp.sqrt(jnp.sum(change**2, axis=-1))])


def _distances(first: _RecordingLink, second: _RecordingLink) -> dict[str, Array]:
    """Distances between the messages of two worlds, ``[2, nodes]`` each, summed over a round."""
    distances: dict[str, Array] = {}
    if first.messages:
        pairs = zip(first.messages, second.messages, strict=True)
        distances["message"] = sum(_norms(b - a) for a, b in pairs)  # pyright: ignore[reportArgumentType]
    for a, b in zip(first.uploads, second.uploads, strict=True):
        for name, x, y in (("upload", a.message, b.message), ("update", a.update, b.update)):
            if x is not None and y is not None:
                # A client that sends in one world only reveals which world it is.
                distance = jnp.where((a.sent == b.sent)[None], _norms(y - x), jnp.inf)
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
    """The records of all runs, ``[S, T, ...]`` each, and the distance between the optima.

    With ``replayed`` the second world is run twice: on its own, and in the history of the first.
    """
    ready = tuple(prepare(world, rounds) for world in worlds)
    optima = tuple(optimum(world.fixed_problem) for world in worlds)
    order = (0, 1, 1) if replayed else (0, 1)

    def run(key: Array) -> dict[str, Any]:
        def one_round(
            carries: tuple[Carry, ...], round: Array
        ) -> tuple[tuple[Carry, ...], dict[str, Array]]:
            after = []
            links = []
            for index, which in enumerate(order):
                linked = functools.partial(
                    _RecordingLink, first_world=links[0] if index == 2 else None
                )
                carry = carries[index]
                now, stream, availability = make_round(
                    worlds[which], ready[which], key, carry, round, rounds, linked
                )
                state = step_algorithm(worlds[which], carry.state, now)
                assert isinstance(now.link, _RecordingLink)
                links.append(now.link)
                after.append(
                    carry._replace(
                        state=state,
                        stream=stream,
                        availability=availability,
                        memory=now.link.memory,
                        networks=states_after(now),
                    )
                )
            models = [_models(carry.state) for carry in after[:2]]
            errors = [_distance(m - o[None]) for m, o in zip(models, optima, strict=True)]
            recorded: dict[str, Any] = {"deviation": _distance(models[1] - models[0])}
            recorded |= {"error": errors[0], "other_error": errors[1]}
            by_history = [_distances(links[0], link) for link in links[1:]]
            distances = {name: jnp.stack([p[name] for p in by_history]) for name in by_history[0]}
            return tuple(after), recorded | distances

        start = tuple(begin(worlds[which], ready[which], key) for which in order)
        return jax.lax.scan(one_round, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]

    return jax.lax.map(run, keys, batch_size=batch), _distance(optima[1] - optima[0])


def _distance(change: Array) -> Array:
    """The Frobenius norm."""
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
      A dataset over ``seed`` and ``round``, in the units of the models:

      * ``deviation``: :math:`\Delta(i)=\|w_i-w_i'\|`, of the servers' models, or of all peers'
        together; ``error`` and ``other_error``, :math:`\|\tilde w_i\|` in either world, and
        ``optima``, :math:`\|w^o-w'^o\|`; ``nodes`` in the attributes is :math:`P`.
      * ``message_change`` over ``node``: the distance between the messages of peers, or of servers
        to each other, before noise; ``upload_change`` and ``update_change`` over ``client``, of
        clients to a server, as models and as updates. Each by ``norm``, and by ``history``: each
        world's ``"own"``, or the ``"same"``, where there is noise to compensate for the difference.
        Infinite where a client sends in one world only.
      * under Laplace noise ``epsilon`` by ``history``, of all messages with noise up to a round,
        counting separately each copy with an independent draw; ``epsilon_heard`` of the messages
        that one ``node`` receives; and ``epsilon_printed``, the source's value, derived from
        ``deviation``: (2.69), (3.58), (4.34). Missing where noise cancels at receivers, as no
        epsilon is finite there.

    Raises:
      TypeError: no simulation, or no problem.
      ValueError: a budget, which has its own accounting; data sets that differ in more than one
        client; messages in parts.

    Guarantees:
      None. ``epsilon`` in the same history is the largest privacy loss that the noise allows for
      *these* data along *these* trajectories; for a quadratic problem in which only targets differ,
      without random batches, it is the same for all trajectories, and is exactly the epsilon of
      this pair against whoever hears all messages. Nothing follows for other pairs. The values in
      their own histories, and ``epsilon_printed``, are the source's.

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
    checks.count("seeds", seeds)
    (client,) = differing_clients(simulation.problem, neighbor, "client")
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
        max(1, min(seeds, BATCH_NUMBERS // size)),
        replayed,
    )
    if not np.isfinite(optima):
        raise ValueError(
            "one of the data sets has no optimum to measure errors from, as where a model "
            "separates the labels; give the problem a regularizer, such as SquaredL2()."
        )
    host = {name: np.asarray(value, np.float64) for name, value in results.items()}
    variables: dict[str, Any] = {
        "deviation": (("seed", "round"), host["deviation"], _labeled("distance of the models")),
        "error": (("seed", "round"), host["error"], _labeled("distance to the optimum")),
        "other_error": (
            ("seed", "round"),
            host["other_error"],
            _labeled("distance to the other optimum, with the other data"),
        ),
        "optima": ((), float(optima), _labeled("distance of the optima")),
    }
    for name, axis in (("message", "node"), ("upload", "client"), ("update", "client")):
        if name in host:
            axes = ("history", "norm", "seed", "round", axis)
            value = np.moveaxis(host[name], (2, 3), (0, 1))
            variables[f"{name}_change"] = (axes, value, _labeled(f"distance of the {name}s"))
    nodes = _nodes(simulation)
    dataset = xr.Dataset(
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
    return dataset.assign(_epsilons(simulation, dataset))


def _labeled(label: str) -> dict[str, str]:
    """Attributes of a variable without unit."""
    return {"long_name": label, "units": "1"}


def _nodes(simulation: Simulation) -> int:
    """The number of peers or servers, ``P``."""
    if simulation.among_peers:
        return simulation.problem.clients
    return simulation.network.servers if isinstance(simulation.network, Federation) else 1


def _epsilons(simulation: Simulation, results: xr.Dataset) -> dict[str, Any]:
    """Epsilons of Laplace noise: the source's formula, and from the messages themselves."""
    noise = simulation.noise
    uploads = simulation.upload_noise
    kinds = [part for part in (noise, uploads) if part is not None and float(part.variance) > 0]
    masked = noise is not None and noise.cancels == "receiver"
    if not kinds or masked or any(p.law != "laplace" for p in kinds):
        return {}
    dim = simulation.problem.dim
    nodes = results.attrs["nodes"]

    def in_scales(name: str, part: Noise | UploadNoise) -> xr.DataArray:
        """Changes of messages in scales of the noise, summed over rounds."""
        variance = float(part.variance) / (dim if part.per == "vector" else 1)
        return results[f"{name}_change"].sel(norm="l1", drop=True).cumsum("round") * math.sqrt(
            2 / variance
        )

    deviation = results["deviation"].values
    copies = 1
    if simulation.among_peers:  # (4.34): from 0, where both are the same, to i - 1
        deviation = np.pad(deviation, ((0, 0), (1, 0)))[:, :-1]
        copies = nodes
    printed = theory.epsilon(deviation, float(kinds[0].variance), copies=copies)
    more: dict[str, Any] = {
        "epsilon_printed": (("seed", "round"), printed, _labeled("epsilon as printed"))
    }
    total: xr.DataArray | int = 0
    if uploads in kinds:
        total = total + in_scales("update" if uploads.on == "updates" else "upload", uploads).sum(
            "client"
        )  # pyright: ignore[reportOptionalMemberAccess]
    graph = simulation.network
    graph = graph.graph if isinstance(graph, Federation) else graph
    if noise in kinds and graph is not None and not isinstance(graph, Varying):
        joined = np.asarray(graph.dense()) > 0
        copies = joined.sum(axis=0) if isinstance(noise, PerEdge) else np.ones(nodes)
        scales = in_scales("message", noise)
        total = total + (scales * xr.DataArray(copies, dims="node")).sum("node")
        observed = scales.values @ joined.T
        more["epsilon_heard"] = (scales.dims, observed, _labeled("epsilon of what a node hears"))
    if not isinstance(total, int):
        more["epsilon"] = (total.dims, total.values, _labeled("epsilon of all messages"))
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
      :func:`~fljax.theory.multiagent_privacy.neighbor_deviation_bound` (an attribute), the fraction
      of runs within it in ``all_rounds`` so far, and the probability that
      :func:`~fljax.theory.multiagent_privacy.bound_probability` promises by each rule
      (``promised_printed``, ``promised_union``, ``promised_all_rounds``), with the measured mean
      squares of the errors in place of the source's bounds on them.

    Raises:
      ValueError: other results, or results of several pairs of data sets joined.

    Example:
      >>> each = ("seed", "round"), np.array([[0.2], [0.4], [1.6], [0.1]])
      >>> parts = {"deviation": each, "error": each, "other_error": each, "optima": 0.5}
      >>> compared = within(xr.Dataset(parts, attrs={"nodes": 1}), 0.5, 0.5)
      >>> float(compared.fraction[0]), float(compared.promised_printed[0])
      (0.75, 0.0)
    """
    if "deviation" not in results or "nodes" not in results.attrs:
        raise ValueError("results must be what fljax.audit.twins returned, got another dataset.")
    axes = {"seed", "round"}
    if set(results["deviation"].dims) != axes or results["deviation"].dtype.kind not in "fiu":
        raise ValueError(
            "results must be what fljax.audit.twins returned, real numbers over seed and round, "
            f"got {checks.shown(results['deviation'].values)} over {results['deviation'].dims}."
        )
    optima = np.unique(results["optima"])  # joined results hold one of each
    rounds = results["round"].values
    if len(optima) != 1 or np.any(np.diff(rounds) <= 0):
        raise ValueError(
            "results must be of one pair of data sets, each round once, got distances of optima "
            f"{optima.tolist()} and {len(rounds)} rounds of which {len(np.unique(rounds))} differ; "
            'join results of the same data sets, such as with xarray.concat(parts, "seed").'
        )
    bound = float(
        theory.neighbor_deviation_bound(
            error, other_error, float(optima[0]), results.attrs["nodes"]
        )
    )
    inside = results["deviation"].transpose("seed", "round").values <= bound
    squares, other_squares = (
        (results[name] ** 2).mean("seed").values for name in ("error", "other_error")
    )
    variables = {"fraction": inside, "all_rounds": np.logical_and.accumulate(inside, axis=1)}
    variables = {name: ("round", value.mean(axis=0)) for name, value in variables.items()}
    for rule in theory.RULES:
        name = f"promised_{rule.replace(' ', '_')}"
        variables[name] = (
            "round",
            theory.bound_probability(squares, other_squares, error, other_error, rule),
        )
    frequencies = xr.Dataset(variables, coords={"round": results["round"]}, attrs={"bound": bound})
    for name in frequencies.data_vars:
        frequencies[name].attrs = _labeled(str(name).replace("_", " "))
    return frequencies
