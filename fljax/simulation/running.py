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
from jaxtyping import Array, Key, PyTree

from fljax._core import checks, gradient_counts
from fljax._core.annotations import checked
from fljax._core.compilation_cache import PersistentJit
from fljax._core.gradient_counts import Evaluations
from fljax._core.prng import as_key, name_of
from fljax.algorithms.round import Round
from fljax.metrics.names import COUNTS
from fljax.privacy import promises
from fljax.privacy.secrets import origin_of, secret_of, with_secret
from fljax.problems.population_problem import OnDisk
from fljax.results.dataset import assemble, describe, provenance, to_int64
from fljax.results.warnings import warn
from fljax.simulation.decisions import decided, recorded
from fljax.simulation.leaks import check_perturbed
from fljax.simulation.population_run import first_step, run_cohorts
from fljax.simulation.run_state import Carry, Prepared
from fljax.simulation.sampling_checks import check_sampling
from fljax.simulation.scan import (
    begin,
    check_length,
    check_metrics,
    check_rounds,
    make_round,
    prepare,
    trace,
)
from fljax.simulation.scenario import Simulation

if TYPE_CHECKING:
    import xarray


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
      noise_seed: a secret that is folded into the key and never recorded, so that knowing the
        key (which is 0 by default) is not enough to draw the noise again:
        ``"entropy"``, which is forgotten after the run, or an integer >= 2**63 of your own, such
        as ``secrets.randbits(128)``, with which the run can be repeated.

    Returns:
      A dataset over ``round`` with the metrics, the privacy ledger and the traffic, the final
      models as ``model`` over ``client`` and ``parameter`` (of a population on disk the server's,
      over ``parameter``), the privacy loss of each client, and the provenance as attributes. For a
      population, metrics are over ``client``, the numbers of the evaluated clients, and the privacy
      loss of all clients is over ``population``.

    Raises:
      OtherStudyError: a store of another run; it is a ``ValueError``.
      TypeError, ValueError: invalid arguments, as documented in their classes; a store without a
        population; participants that cannot be shared out evenly; a noise seed
        that could be guessed, or entropy for a run that is kept or shared by processes.
      StoreError: a store that is in use or cannot be read, or that not all processes see.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(0.1, clients_per_round=3),
      ...     metrics=["normalized_error"],
      ... )
      >>> results = fl.run(simulation, rounds=20, key=1, record_every=10)
      >>> results["round"].values.tolist(), results["model"].shape
      ([10, 20], (6, 2))
    """
    checks.outside("fljax.run")
    check_rounds(rounds, record_every)
    if shard_over is not None:
        checks.choice("shard_over", shard_over, ("clients",))
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
        of_servers = model is not None and model.ndim == 2
        axes = ("server", "parameter") if of_servers else ("parameter",)
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
    host |= {name: np.cumsum(to_int64(host[name])) for name in COUNTS}
    described = describe(simulation.metrics, [simulation.privacy])
    coordinates = {}
    if isinstance(simulation.problem, OnDisk) and simulation.problem.evaluated:
        coordinates = {"client": list(simulation.problem.evaluated)}
    dataset = assemble(host, (), coordinates, rounds, record_every, described)
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


@functools.partial(PersistentJit, static=("generator", "rounds", "record_every"))
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
    checks.count("round", round)
    checks.count("rounds", rounds)
    rounds = max(round, rounds)
    prepared = prepare(simulation, rounds)
    key = as_key(key)
    carry = begin(simulation, prepared, key)
    return make_round(simulation, prepared, key, carry, jnp.asarray(round, jnp.int32), rounds)[0]


def evaluations(
    simulation: Callable[[Array], Simulation], rounds: int
) -> tuple[Evaluations, Evaluations]:
    """The numbers of sample gradients and proximal steps that all clients evaluate before the first
    round, and in each.

    They are counted in the traced program of a round: a batch has one gradient per sample,
    and the gradients of absent clients and of empty samples of padding count as well. NaN where
    the number is not fixed, as in a solver that stops at a tolerance.

    Args:
      simulation: from a key.
      rounds: number of rounds of a run.
    """

    def built(key: Array) -> tuple[Simulation, Prepared]:
        return (it := simulation(key)), prepare(it, rounds)

    def stepped_once(it: Simulation, prepared: Prepared, key: Array, carry: Carry) -> PyTree:
        now = make_round(it, prepared, key, carry, jnp.ones((), jnp.int32), rounds)[0]
        return it.algorithm.step(carry.state, now)

    key = as_key(0)
    on_disk = []
    jax.eval_shape(lambda key: on_disk.append(simulation(key).problem.on_disk), key)
    if any(on_disk):
        before, until_first = (
            gradient_counts.evaluations(
                lambda key, is_begun=is_begun: first_step(simulation(key), key, rounds, is_begun),
                key,
            )
            for is_begun in (False, True)
        )
        return before, Evaluations(*(b - a for a, b in zip(before, until_first, strict=True)))
    arguments = *jax.eval_shape(built, key), key
    carry = jax.eval_shape(begin, *arguments)
    before = gradient_counts.evaluations(begin, *arguments)
    return before, gradient_counts.evaluations(stepped_once, *arguments, carry)
