"""Comparison of declared sampling laws with draws, before a privacy budget is granted.

The epsilon of a sampled mechanism is amplified: it is computed from the law that a selector
(:meth:`~fljax.participation.Selector.law`) or an algorithm
(:meth:`~fljax.algorithms.Algorithm.sampling`) declares of its draws. A user-defined class may
declare a wrong law, so some thousands of its draws are compared with the law here, on the host and
before the run is compiled. A declared law that passes is not proved; a law that fails is refuted,
since the tests have a level of :data:`LEVEL`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from fljax._core import checks
from fljax._core.module import replace
from fljax.graphs.federation import Network
from fljax.link import Link
from fljax.participation.selectors import Law, Participants, Selector
from fljax.problems import Problem
from fljax.simulation import compatibility
from fljax.simulation.scan import begin, make_round, prepare
from fljax.simulation.scenario import Simulation

#: Probability with which a correct law is refuted, at most, by each family of tests.
LEVEL = 1e-9

#: Least and largest number of draws that are compared with a law.
DRAWS = (256, 4096)

#: Largest number of entries of a table of draws (clients or samples by draws): 16 MiB of bytes.
ENTRIES = 1 << 24

#: Number of successive rounds in which the separation of a client's participations is checked.
SUCCESSIVE = 256

#: Number of clients or samples whose draws are compared in pairs.
PAIRED = 64

#: Number of clients whose batches are compared.
BATCHED = 8

#: Number of rounds of a user's algorithm that are computed together.
SIDE_BY_SIDE = 64


def check_sampling(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where draws of a user-defined selector or algorithm refute the sampling
    law that it declares to a privacy budget.

    Checked are a trusted server's participants, as the selector chooses them and as they are in the
    first round of a user-defined algorithm; and the batches that a user-defined algorithm passes to
    :meth:`~fljax.link.Link.descend` under noisy gradients. Batches whose features were changed
    cannot be recognized, and how draws depend on the state of later rounds is not seen.

    Args:
      simulation: whose numbers may be traced by a sweep, which checks them once they are known.
      rounds: of the run.
    """
    scope = None if simulation.privacy is None else simulation.privacy.scope
    algorithm = simulation.algorithm
    user_defined = not compatibility.of_the_library(algorithm)
    if scope == "server":
        selector = algorithm.selection
        if not compatibility.of_the_library(selector):
            _once_concrete(
                functools.partial(_check_selector, simulation.problem.clients, rounds),
                (selector, network_of_selector(simulation)),
            )
        if user_defined and not simulation.problem.on_disk:
            _once_concrete(
                functools.partial(_check_senders, rounds),
                _without_traced_data(replace(simulation, metrics=())),
            )
    elif user_defined and scope == "gradient" and not simulation.problem.online:
        _once_concrete(
            functools.partial(_check_batches, rounds),
            _without_traced_data(replace(simulation, metrics=())),
        )


def _once_concrete(check: Callable[[Any], None], tree: PyTree) -> None:
    """Check a part of a simulation now, or once a sweep has computed its numbers."""
    leaves, structure = jax.tree.flatten(tree)

    def rebuilt(*values: object) -> None:
        # The check may run while a scenario is traced, but computes with concrete numbers.
        with jax.ensure_compile_time_eval():
            check(jax.tree.unflatten(structure, values))

    checks.check_when_concrete(rebuilt, *leaves)


def network_of_selector(simulation: Simulation) -> Any:
    if type(simulation.algorithm).needs.network is None:
        return None
    return compatibility.network_at_start(simulation.network)


def _without_traced_data(simulation: Simulation) -> Simulation:
    """The simulation with zeros for samples that a sweep draws: no law may depend on them."""
    problem = simulation.problem
    if problem.online:
        return simulation

    def concrete(leaf: Array) -> Array | np.ndarray:
        return leaf if checks.is_concrete(leaf) else np.zeros(leaf.shape, leaf.dtype)

    names = ("features", "targets", "test", "statistics")
    data = {name: jax.tree.map(concrete, getattr(problem, name)) for name in names}
    return replace(simulation, problem=replace(problem, **data))


# Participants ------------------------------------------------------------------------------------


class _Draws(NamedTuple):
    """Which units were drawn, and in which draws each of them could be."""

    taken: np.ndarray  # [draws, units]  how often
    possible: np.ndarray  # [draws, units]


def _check_selector(clients: int, rounds: int, selector_and_network: tuple[Selector, Any]) -> None:
    selector, network = selector_and_network
    name = f"{type(selector).__name__}.law"
    scheme = selector.law(clients)
    if scheme is None:
        return
    _check_turns(name, scheme, "choose by fljax.participation.Cyclic(cohorts, fraction)")
    if scheme.sampling is None:
        if scheme.separation > 1:
            _check_separation(selector, network, scheme, clients, rounds)
        return
    number = int(np.clip(ENTRIES // clients, *DRAWS)) // 4 * 4
    rng = np.random.default_rng(0)
    # Four parts of the draws: the first round, the last round, random rounds, and random rounds in
    # which some clients are not available.
    spread = rng.integers(1, rounds + 1, number)
    part = np.repeat(np.arange(4), number // 4)
    number_of = np.where(part == 0, 1, np.where(part == 1, rounds, spread)).astype(np.int32)
    available = (part < 3)[:, None] | (rng.random((number, clients)) < 0.7)
    taken = np.asarray(_participations(selector, network, jax.random.key(0), number_of, available))
    parts = {
        "in the first round": part == 0,
        f"in round {rounds}": part == 1,
        "in all rounds": part < 3,
        "where some clients are absent": part == 3,
    }
    for where, rows in parts.items():
        draws = _Draws(taken[rows], available[rows])
        if text := disagreement(scheme, draws, "client"):
            raise ValueError(_refutation(name, scheme, f"{text} {where}", "choose"))


@jax.jit
def _participations(
    selector: Selector,
    network: Network,
    key: Array,
    rounds: Int[Array, " draws"],
    available: Bool[Array, "draws clients"],
) -> Int[Array, "draws clients"]:
    """How often each client takes part in each of some independent draws."""

    def draw_participants(arguments: tuple[Array, Array, Array]) -> Array:
        key, number, available = arguments
        return _counts(selector.choose(key, available, network, number), available.shape[0])

    keys = jax.random.split(key, len(rounds))
    return jax.lax.map(draw_participants, (keys, rounds, available), batch_size=SIDE_BY_SIDE)


def _check_turns(name: str, scheme: Law, instead: str) -> None:
    """Raise ``ValueError`` for draws by turns, whose groups a comparison would have to know."""
    if scheme.sampling is not None and scheme.separation > 1:
        raise ValueError(
            f"{name} declares random draws by turns (sampling={scheme.sampling!r} beside "
            f"separation={scheme.separation}), which are accounted for where the library draws "
            f"them; {instead}, or declare sampling=None."
        )


def _counts(participants: Participants, clients: int) -> Int[Array, " clients"]:
    none = jnp.zeros(clients, jnp.int32)
    return none.at[participants.numbers].add(participants.here.astype(jnp.int32), mode="drop")


def _check_separation(
    selector: Selector,
    network: Network,
    scheme: Law,
    clients: int,
    rounds: int,
) -> None:
    """Raise ``ValueError`` where a client takes part again sooner than the law says."""
    length = min(rounds, max(SUCCESSIVE, 2 * scheme.separation))
    rng = np.random.default_rng(0)
    for share in (1.0, 0.7):  # of the clients that are available
        available = rng.random((length, clients)) < share
        numbers = np.arange(1, length + 1, dtype=np.int32)
        key = jax.random.key(1)
        taken = np.asarray(_participations(selector, network, key, numbers, available)) > 0
        for client in range(clients):
            gap = _least_gap(taken[:, client])
            if gap < scheme.separation:
                raise ValueError(
                    f"{type(selector).__name__}.law declares that {scheme.separation} rounds lie "
                    f"between two participations of a client, but client {client} takes part "
                    f"{gap} rounds after another. Declare the separation that 'choose' has."
                )


def _least_gap(taken: np.ndarray) -> int:
    """The least distance of two draws that take a unit."""
    return int(np.min(np.diff(np.flatnonzero(taken)), initial=np.iinfo(np.int32).max))


def _check_senders(rounds: int, simulation: Simulation) -> None:
    """Compare the clients that a user's algorithm collects from with its selector's law."""
    algorithm = simulation.algorithm
    clients = simulation.problem.clients
    assert isinstance(algorithm.selection, Selector)
    scheme = algorithm.selection.law(clients)
    if scheme is None or scheme.sampling is None:
        return
    # Under secret arrivals all clients pay for each round, whether or not they take part.
    simulation = replace(simulation, privacy=replace(simulation.privacy, arrivals="public"))
    number = int(np.clip(ENTRIES // clients, *DRAWS))
    taken = np.asarray(_released_clients(simulation, jax.random.key(0), rounds, number)).astype(int)
    # Absent clients and those without new data take part less often than they are drawn.
    always = simulation.participation is None and not simulation.problem.online
    draws = _Draws(taken, np.ones(taken.shape, bool))
    if text := disagreement(scheme, draws, "client", at_most=not always):
        name = f"{type(algorithm).__name__}.selection"
        raise ValueError(_refutation(name, scheme, f"{text} in a round", "step"))


@functools.partial(jax.jit, static_argnames=("rounds", "number"))
def _released_clients(
    simulation: Simulation, key: Array, rounds: int, number: int
) -> Bool[Array, "draws clients"]:
    """Which clients a trusted server's release contains, in independent first rounds.

    The program returns nothing else, so that the compiler removes the rest of the step.
    """
    ready = prepare(simulation, rounds)

    def run_first_round(key: Array) -> Array:
        carry = begin(simulation, ready, key)
        now = make_round(simulation, ready, key, carry, jnp.ones((), jnp.int32), rounds)[0]
        simulation.algorithm.step(carry.state, now)
        spent = now.link.spent.get("rho", jnp.zeros(simulation.problem.clients))
        return jnp.broadcast_to(spent > 0, (simulation.problem.clients,))

    return jax.lax.map(run_first_round, jax.random.split(key, number), batch_size=SIDE_BY_SIDE)


# Batches -----------------------------------------------------------------------------------------


class _BatchTap(Link):
    """A link that keeps the batches of local steps and takes none of the steps."""

    def __init__(self, *args: Any, batch_key: Array, step: Array, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._batch_key = batch_key
        self._step = step  # the index of each client's local step
        self.batches: list[tuple[Participants, Any]] = []

    def descend(
        self,
        steps: int,
        participants: Participants,
        start: Array,
        draw: Callable[[Array, Array], tuple[Any, Array]],
        move: Callable[[Array, Array], Array],
    ) -> Array:
        key = jax.random.fold_in(self._batch_key, len(self.batches))
        step = jnp.broadcast_to(self._step, participants.here.shape)
        self.batches.append((participants, draw(key, step)[0]))
        return start


def _check_batches(rounds: int, simulation: Simulation) -> None:
    """Compare the batches of a user's algorithm with the law that it declares of them."""
    algorithm = simulation.algorithm
    problem = simulation.fixed_problem
    scheme = algorithm.sampling(problem)
    if scheme is None or (scheme.sampling is None and scheme.separation == 1):
        return
    _check_turns(f"{type(algorithm).__name__}.sampling", scheme, "run FedDPSGD(turns=...)")
    if not _can_number_samples(problem):
        return
    real = np.asarray(problem.weights) > 0
    counts = real.sum(axis=1)
    spaced = np.linspace(0, problem.clients - 1, min(BATCHED - 1, problem.clients))
    clients = np.unique([*spaced.astype(int), int(np.argmin(np.where(counts, counts, np.inf)))])
    number = int(np.clip(ENTRIES // (len(clients) * real.shape[1]), DRAWS[0] // 4, DRAWS[1]))
    if scheme.sampling is None:
        number = max(SUCCESSIVE, 2 * scheme.separation)
    taken, present, recognized = map(
        np.asarray,
        _batches(simulation, jax.random.key(0), clients.astype(np.int32), rounds, number),
    )
    if not recognized.all():
        return
    for row, client in enumerate(clients):
        samples = real[client]
        if scheme.sampling is None:
            for sample in np.flatnonzero(samples):
                gap = _least_gap(taken[:, row, sample])
                if gap < scheme.separation:
                    raise ValueError(
                        f"{type(algorithm).__name__}.sampling declares that {scheme.separation} "
                        f"steps lie between two batches with the same sample, but sample {sample} "
                        f"of client {client} is in one {gap} steps after another. Declare the "
                        "separation that its batches have."
                    )
            continue
        draws = taken[present[:, row], row][:, samples].astype(int)
        if not draws.size:
            continue
        of_client = scheme
        if scheme.sampling == "drawn":  # a client with more samples draws a smaller share of them
            share = min(float(draws[0].sum() / samples.sum()), float(scheme.rate))
            if share == 0:
                continue
            of_client = Law(share, sampling="drawn")
        if text := disagreement(of_client, _Draws(draws, np.ones(draws.shape, bool)), "sample"):
            name = f"{type(algorithm).__name__}.sampling"
            text = f"{text} in a step of client {client}"
            raise ValueError(_refutation(name, scheme, text, "step"))


def _can_number_samples(problem: Problem) -> bool:
    """Whether the numbers of a client's samples fit into its features."""
    dtype = np.dtype(problem.features.dtype)
    samples = jnp.shape(problem.weights)[1]
    if jnp.issubdtype(dtype, jnp.floating):
        return samples < 2 ** (jnp.finfo(dtype).nmant + 1)
    return dtype.kind in "iu" and samples <= np.iinfo(dtype).max


@functools.partial(jax.jit, static_argnames=("rounds", "number"))
def _batches(
    simulation: Simulation, key: Array, clients: Int[Array, " some"], rounds: int, number: int
) -> tuple[Array, Array, Array]:
    """``[draws, some, N]``, how often each sample of some clients is in a batch of steps 0, 1, ...;
    ``[draws, some]``, whether the client draws one; and ``[draws]``, whether all samples were
    recognized.

    Each sample carries its number in its features: which samples are drawn must not depend on
    data.
    """
    problem = simulation.fixed_problem
    if problem.feature_map is not None:
        problem = problem.mapped()
    shape = jnp.shape(problem.features)
    sample_numbers = jnp.arange(1, shape[1] + 1).astype(problem.features.dtype)
    numbers = jnp.broadcast_to(sample_numbers.reshape(1, -1, *(1,) * (len(shape) - 2)), shape)
    problem = replace(problem, features=numbers, feature_bound=None, statistics=None)
    simulation = replace(simulation, problem=problem)
    ready = prepare(simulation, rounds)
    row_of = jnp.full(problem.clients, len(clients), jnp.int32)
    row_of = row_of.at[clients].set(jnp.arange(len(clients), dtype=jnp.int32))

    def draw_batches(key_and_step: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        key, step = key_and_step
        carry = begin(simulation, ready, key)
        batch_key = jax.random.fold_in(key, 1)
        linked = functools.partial(_BatchTap, batch_key=batch_key, step=step)
        now = make_round(simulation, ready, key, carry, jnp.ones((), jnp.int32), rounds, linked)[0]
        simulation.algorithm.step(carry.state, now)
        assert isinstance(now.link, _BatchTap)
        taken = jnp.zeros((len(clients), shape[1]), jnp.int32)
        present = jnp.zeros(len(clients), bool)
        recognized = jnp.ones((), bool)
        for participants, batch in now.link.batches[:1]:
            weights = jnp.asarray(batch.weights)
            label = batch.features.reshape(*weights.shape, -1)[..., 0]
            index = label.astype(jnp.int32) - 1
            inside = (index >= 0) & (index < shape[1]) & (label == (index + 1).astype(label.dtype))
            weighs = weights > 0
            recognized = jnp.all(inside | ~weighs)
            rows = jnp.where(participants.here, row_of[participants.numbers], len(clients))
            taken = taken.at[rows[:, None], index].add(weighs.astype(jnp.int32), mode="drop")
            present = present.at[rows].set(True, mode="drop")
        return taken.astype(jnp.uint8), present, recognized

    arguments = jax.random.split(key, number), jnp.arange(number, dtype=jnp.int32)
    return jax.lax.map(draw_batches, arguments, batch_size=SIDE_BY_SIDE)


# Tests of draws ----------------------------------------------------------------------------------


def disagreement(scheme: Law, draws: _Draws, unit: str, at_most: bool = False) -> str:
    """Return how independent draws refute a law, in words; an empty text if they do not.

    Exact binomial tests compare how often each unit is drawn, and how often each of some pairs are
    drawn together; numbers of units in a draw are compared where the law fixes them.

    Args:
      scheme: with random sampling.
      draws: ``[draws, units]`` each.
      unit: name of a column, ``"client"`` or ``"sample"``.
      at_most: whether units may be drawn less often than the law says.
    """
    taken, possible = draws
    number, units = taken.shape
    rate = float(scheme.rate)
    complete = possible.all(axis=1)
    if taken.max(initial=0) > 1:
        return f"it takes one {unit} twice"
    taken = taken > 0
    if np.any(taken & ~possible):
        return f"it takes a {unit} that is not available"
    if scheme.sampling == "drawn" and not at_most and complete.any():
        sizes = taken[complete].sum(axis=1)
        if np.any(np.abs(sizes - rate * units) > 1e-3):
            return (
                f"it takes between {sizes.min()} and {sizes.max()} of {units} {unit}s, and not "
                f"always {rate * units:g}"
            )
    times = taken.sum(axis=0)
    of = possible.sum(axis=0)
    value = _tail(times, of, rate, at_most)
    worst = int(np.argmin(value))
    if value[worst] < LEVEL / units:
        return f"it takes {unit} {worst} in {times[worst]} of {of[worst]} draws"
    if at_most or units < 2:
        return ""
    # Units that are drawn together more often than independent ones reveal each other.
    subset = np.unique(np.linspace(0, units - 1, min(units, PAIRED)).astype(int))
    together = taken[:, subset].astype(float).T @ taken[:, subset].astype(float)
    possible_pairs = possible[:, subset].astype(float)
    size = round(rate * units)
    pair_rate = (
        rate**2 if scheme.sampling == "poisson" else size * (size - 1) / (units * (units - 1))
    )
    first, second = np.triu_indices(len(subset), 1)
    value = _tail(
        together[first, second],
        (possible_pairs.T @ possible_pairs)[first, second],
        pair_rate,
        at_most,
    )
    worst = int(np.argmin(value))
    if value[worst] < LEVEL / len(value):
        return (
            f"it takes {unit}s {subset[first[worst]]} and {subset[second[worst]]} together in "
            f"{together[first, second][worst]:.0f} of {number} draws, where the law would in "
            f"{pair_rate * number:.3g},"
        )
    return ""


def _tail(times: np.ndarray, of: np.ndarray, rate: float, at_most: bool) -> np.ndarray:
    """Binomial p-values, one-sided or two-sided."""
    from scipy import stats  # takes long to import, and only a user's own laws are tested

    above = stats.binom.sf(times - 1, of, min(rate, 1.0))
    if at_most:
        return above
    return np.minimum(1, 2 * np.minimum(above, stats.binom.cdf(times, of, min(rate, 1.0))))


def _refutation(name: str, scheme: Law, text: str, method: str) -> str:
    how = "each independently (poisson)" if scheme.sampling == "poisson" else "as many in each draw"
    return (
        f"{name} declares a share of {float(scheme.rate):.4g}, {how}, by which privacy would be "
        f"amplified, but {text}. Declare the law that '{method}' has, with sampling=None where it "
        "is neither, or draw by that law."
    )
