"""Running a simulation: :func:`run` runs it once, :func:`view` gives access to a single round,
:func:`unperturbed` lists what leaves it without noise.
"""

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fljax import _check, _evaluations, _taint, requirements
from fljax._arguments import checked
from fljax._evaluations import Evaluations
from fljax._generator import as_key, name_of
from fljax._module import replace
from fljax._programs import Kept
from fljax._sampling_laws import check_sampling
from fljax.algorithms import Algorithm
from fljax.cohorts import run_cohorts
from fljax.decisions import decided, recorded
from fljax.engine import (
    Carry,
    begin,
    check_length,
    check_metrics,
    check_rounds,
    look,
    prepare,
    stepped,
    trace,
)
from fljax.link.marked import Marked
from fljax.privacy import promises
from fljax.privacy.secrets import origin_of, secret_of, with_secret
from fljax.problems import Problem
from fljax.problems.population import OnDisk
from fljax.records import COUNTS, assemble, describe, joined, provenance, warn
from fljax.rounds import Round
from fljax.simulation import Simulation

if TYPE_CHECKING:
    import xarray

__all__ = ["check_perturbed", "evaluations", "run", "unperturbed", "view"]


@checked
def run(
    simulation: Simulation,
    rounds: int,
    key: Key[Array, ""] | int = 0,
    record_every: int = 1,
    generator: str | None = None,
    store: str | os.PathLike | None = None,
    shard_over: str | None = None,
    noise_seed: int | str | None = None,
) -> "xarray.Dataset":
    """Run a simulation once.

    A second run with different numbers (a new key, new data of the same shape, another penalty)
    reuses the compiled program.

    Args:
      simulation: the simulation to run.
      rounds: number of iterations, >= 1.
      key: key of all randomness of the run; an integer seeds the generator.
      record_every: number of rounds between records of the metrics; must divide ``rounds``.
      generator: random number generator for an integer key, by default the library's own, as in
        :func:`fljax.sweep`; a key of :func:`jax.random.key` keeps its own.
      store: for a population on disk, a folder in which the run is kept: run again after it was
        killed, it goes on from its last checkpoint, seconds before. Processes that share the run
        share the folder too; the first of them writes it.
      shard_over: for a population on disk, ``"clients"``: each round's participants are shared out
        over all devices of all processes of ``jax.distributed``, as many on each, and a process
        reads the samples of its own. By default one device computes all of them.
      noise_seed: a secret that is folded into the key and never recorded, so that nobody can draw
        the noise again who knows the key (which is 0 by default): ``"entropy"``, which is forgotten
        after the run, or an integer >= 2**63 of your own, such as ``secrets.randbits(128)``, with
        which the run can be repeated.

    Returns:
      A dataset over ``round`` with the metrics, the privacy ledger and the traffic, the final
      models as ``model`` over ``client`` and ``parameter`` (of a population on disk the server's,
      over ``parameter``), the privacy loss of each client, and the provenance as attributes. Of a
      population's evaluated clients metrics are over ``client``, their numbers, and the privacy
      loss of all clients is over ``population``.

    Raises:
      OtherStudyError: a store of another run; it is a ``ValueError``.
      TypeError, ValueError: invalid arguments, as documented in their classes; a store without a
        population; participants that cannot be shared out evenly; a noise seed
        that could be guessed, or entropy for a run that is kept or shared by processes.
      StoreError: a store that is in use or cannot be read, or that not all processes see.
    """
    _check.outside("fljax.run")
    check_rounds(rounds, record_every)
    if shard_over is not None:
        _check.choice("shard_over", shard_over, ("clients",))
    jax.eval_shape(lambda: check_length(simulation, rounds))
    check_perturbed(simulation, rounds)
    check_sampling(simulation, rounds)
    secret = secret_of(noise_seed, stored=store is not None)
    key = as_key(key, generator)
    if secret:
        key = with_secret(key, secret)
    axes: tuple[str, ...] = ("client", "parameter")
    if isinstance(simulation.problem, OnDisk):
        shared = shard_over is not None
        records, model = run_cohorts(simulation, key, rounds, record_every, store, shared)
        axes = ("parameter",)
    elif store is not None:
        raise ValueError(
            "store= keeps a run over a population on disk; a run from memory is kept by "
            "fljax.sweep(scenario, seeds=1, store=...)."
        )
    elif shard_over is not None:
        raise ValueError(
            "shard_over= shares out the participants of a population on disk; the clients of a run "
            'from memory are shared out by fljax.sweep(scenario, seeds=1, shard_over="clients").'
        )
    else:
        records, model = _run(
            simulation,
            jax.random.key_data(key),
            generator=jax.random.key_impl(key),
            rounds=rounds,
            record_every=record_every,
        )
    host = {name: np.asarray(value) for name, value in records.items()}
    host |= {name: np.cumsum(joined(host[name])) for name in COUNTS}
    said = describe(simulation.metrics, [simulation.privacy])
    coordinates = {}
    if isinstance(simulation.problem, OnDisk) and simulation.problem.evaluated:
        coordinates = {"client": list(simulation.problem.evaluated)}
    dataset = assemble(host, (), coordinates, rounds, record_every, said)
    if model is not None:
        dataset["model"] = (axes, np.asarray(model))
    dataset.attrs |= provenance(
        dtype=str(simulation.problem.dtype),
        prng=name_of(key),
        rounds=rounds,
        decisions=recorded([decided(simulation)]),
    )
    if secret:
        dataset.attrs["noise_seed"] = origin_of(noise_seed)
    promises.state(dataset)
    warn(dataset, [(simulation, True)])
    return dataset


@functools.partial(Kept, static=("generator", "rounds", "record_every"))
def _run(
    simulation: Simulation, key: Array, *, generator: Any, rounds: int, record_every: int
) -> Any:
    """:func:`trace`, with the metrics checked before anything is compiled.

    Args:
      simulation: the simulation.
      key: data of the key.
      generator: that the key is of.
      rounds: number of rounds.
      record_every: rounds between records.
    """
    key = jax.random.wrap_key_data(key, impl=generator)
    records, model = trace(simulation, key, rounds, record_every)
    check_metrics(simulation, records, rounds // record_every)
    return records, model


@checked
def view(
    simulation: Simulation, key: Key[Array, ""] | int = 0, round: int = 1, rounds: int = 1
) -> Round:
    """Return one round as an algorithm sees it, to call a step interactively or in a test.

    Args:
      simulation: the simulation; state carried over from earlier rounds is as in the first.
      key: key of the run, as in :func:`run`.
      round: index of the round, from 1.
      rounds: number of rounds of the whole run, at least ``round``.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ... )
      >>> now = fl.view(simulation)
      >>> state = simulation.algorithm.init(now.problem, now.network)
      >>> simulation.algorithm.step(state, now).model.shape
      (5, 2)
    """
    _check.count("round", round)
    _check.count("rounds", rounds)
    rounds = max(round, rounds)
    prepared, key = prepare(simulation, rounds), as_key(key)
    carry = begin(simulation, prepared, key)
    return look(simulation, prepared, key, carry, jnp.asarray(round, jnp.int32), rounds)[0]


def evaluations(
    simulation: Callable[[Array], Simulation], rounds: int
) -> tuple[Evaluations, Evaluations]:
    """The numbers of sample gradients and proximal steps that all clients evaluate before the first
    round, and in each.

    They are counted in the traced program of a round: the gradients of a batch are as many as it
    has samples, those of a client that is absent or padded with empty samples count as well. NaN
    where the number is not fixed, as in a solver that stops at a tolerance.

    Args:
      simulation: from a key.
      rounds: number of rounds of a run.
    """

    def built(key: Array) -> tuple[Simulation, Any]:
        return (it := simulation(key)), prepare(it, rounds)

    def stepped_once(it: Simulation, prepared: Any, key: Array, carry: Carry) -> Any:
        now = look(it, prepared, key, carry, jnp.ones((), jnp.int32), rounds)[0]
        return it.algorithm.step(carry.state, now)

    key = as_key(0)
    given = *jax.eval_shape(built, key), key
    carry = jax.eval_shape(begin, *given)
    before = _evaluations.evaluations(begin, *given)
    return before, _evaluations.evaluations(stepped_once, *given, carry)


@checked
def unperturbed(simulation: Simulation, rounds: int = 2) -> list[str]:
    """Return the names of what leaves a private simulation's clients, or its trusted server,
    without having been perturbed; empty if there is none.

    The program of a run is traced from the samples (features, targets, and values computed from
    them) to all outputs: messages, their senders, what servers publish and pass on, released
    models, the size of the noise, the ledger; and to all functions of the host that it calls
    (``jax.debug.callback``, ``jax.debug.print``, ``io_callback``, ``jax.pure_callback``), which may
    keep what they are given. Sample weights, participation and the network are
    public. The analysis does not determine whose data a message depends on, nor how strongly: the
    sensitivity is declared by the algorithm (:func:`fljax.audit.worst_neighbors` puts it to the
    test). :func:`fljax.run` and :func:`fljax.sweep` make this check of user-defined algorithms and
    stages.

    Args:
      simulation: a simulation with a privacy budget.
      rounds: number of rounds of the run; dependence through the state is found for any number.

    Raises:
      ValueError: a simulation without privacy.

    Example:
      >>> import dataclasses, jax, fljax as fl
      >>> @fl.module
      ... class Loose(fl.algorithms.ConventionalFL):
      ...     def step(self, state, now):
      ...         state = super().step(state, now)
      ...         now.link.publish(now.problem.features[0, 0])
      ...         return state
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1),
      ...     algorithm=fl.algorithms.ConventionalFL(0.1),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> fl.audit.unperturbed(simulation)
      []
      >>> fl.audit.unperturbed(dataclasses.replace(simulation, algorithm=Loose(0.1)))
      ['what a server publishes']
    """
    if simulation.privacy is None:
        raise ValueError(
            "no message is perturbed: the simulation runs without privacy; give it privacy=, such "
            "as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    _check.count("rounds", rounds)

    def whole(simulation: Simulation) -> Any:
        given = simulation
        if not given.problem.online:
            given = replace(given, problem=_marked(given.problem))
        prepared, key = prepare(given, rounds), as_key(0)
        algorithm, network = given.algorithm, requirements.shown(prepared.network)

        def one(carry: Carry, round: Array) -> tuple[Carry, None]:
            now, stream, availability = look(given, prepared, key, carry, round, rounds, Marked)
            if given.problem.online:
                now.problem = _marked(now.problem)
            after = carry._replace(state=stepped(given, carry.state, now), stream=stream)
            if type(algorithm).released is not Algorithm.released:
                models = algorithm.released(after.state, prepared.problem, network)
                _taint.open_to_all(models, "released models")
            return after._replace(availability=availability, memory=now.link.memory), None

        turns = jnp.arange(1, rounds + 1, dtype=jnp.int32)
        return jax.lax.scan(one, begin(given, prepared, key), turns)[0]

    return _taint.exits(whole, simulation)


def check_perturbed(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where a user-defined algorithm or stage releases private data without
    noise. (Those of the library are checked by its tests.)
    """
    parts = (simulation.algorithm, *simulation.stages)
    if simulation.privacy is None or all(map(_of_the_library, parts)):
        return
    if names := unperturbed(simulation, rounds):
        raise ValueError(
            f"under {type(simulation.privacy).__name__} everything that leaves a client must be "
            f"perturbed, but {type(simulation.algorithm).__name__} releases values that depend on "
            f"clients' samples without noise: {', '.join(names)}. Compute them from what "
            "link.send, exchange, collect or descend returned, or leave out privacy=."
        )


def _of_the_library(part: Any) -> bool:
    return part is None or requirements.of_the_library(part)


def _marked(problem: Problem) -> Problem:
    """The problem with its samples, held-out ones too, marked as private."""
    own = {name: getattr(problem, name) for name in ("features", "targets", "statistics")}
    test = None if problem.test is None else _marked(problem.test)
    return replace(problem, test=test, **_taint.private(own))
