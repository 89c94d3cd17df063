"""``fl.sweep``: a scenario over seeds and a grid."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import jax
import xarray as xr

from fljax._core import checks
from fljax._core.annotations import check, rule_of
from fljax._core.prng import GENERATOR
from fljax._core.storage import named
from fljax.results.warnings import warn
from fljax.study.distribution import check_executor, open_run
from fljax.study.grid import Scenario
from fljax.study.request import Request, Study, parse_shard
from fljax.study.tracking import Tracking, trackers_of


def sweep(
    scenario: Scenario,
    *,
    rounds: int,
    seeds: int | Sequence[int] = 1,
    grid: Mapping[str, Any] | None = None,
    record_every: int = 1,
    root: int = 0,
    generator: str = GENERATOR,
    block: int | None = None,
    workers: int | None = None,
    keep_models: bool = False,
    independent_noise: bool = False,
    noise_seed: int | str | None = None,
    shard_over: str = "seeds",
    store: str | PathLike | None = None,
    keep_state: bool = True,
    shard: str | tuple[int, int] | None = None,
    executor: Any = None,  # concurrent.futures.Executor | None
    segment: int | None = None,
    until: Mapping[str, float] | None = None,
    callback: Callable[[xr.Dataset], None] | None = None,
    track: Any = None,  # Tracker | Sequence[Tracker] | None
    progress: bool | None = None,
) -> xr.Dataset:
    """Run a scenario for every seed and grid point.

    Numbers of the grid are traced: a grid of twenty of them costs one compilation. Grid values
    of another structure (another algorithm, a size, a string) are compiled one by one; mark sizes
    with :func:`static`. A value may be any pytree, such as an algorithm object; values that
    differ in numbers only share a program.

    With a ``store``, finished runs are on disk within seconds. A killed study that is run again
    resumes where it stopped; a finished one that is run again with more seeds, rounds or grid
    points computes only the new ones. In several processes joined by ``jax.distributed`` each
    computes its share, and all return everything.

    Over a population on disk all grid points of a seed advance together, and a cohort is read once
    for all points with the same participants. Each run is that of :func:`run` with the simulation
    and the key of its point and seed.

    Args:
      scenario: ``(key, **point) -> Simulation``, pure.
      rounds: number of iterations of every run.
      seeds: number of Monte-Carlo seeds, or a list of them (``range(100, 200)`` continues a study).
      grid: maps each axis name to a list of values, or to a dict of labels and values; all
        combinations are run.
      record_every: number of rounds between records of the metrics; must divide ``rounds``.
      root: the root seed. Run ``s`` depends on ``root`` and ``s`` alone.
      generator: the generator of all random numbers; part of a store's identity. Instead of the
        library's own it can be one of JAX's, ``"philox4x32"`` or ``"threefry2x32"``.
      block: number of seeds per block; by default the size that :func:`plan` measured to be
        fastest, else one that fits the cache (CPU) or memory (accelerator), distributed evenly over
        the workers. It changes results by no more than floating-point reassociation. With a given
        block size, a study of at least that many seeds to which seeds are added later gives bit for
        bit the results of a study that had all seeds from the start.
      workers: number of blocks computed concurrently; by default the available cores on a CPU, else
        1. Runs of about a millisecond in all are one block, computed in the calling thread.
      keep_models: also return every run's final models, ``[..., seed, client, parameter]``, of a
        population the server's, ``[..., seed, parameter]``, and the privacy loss of every client.
      independent_noise: draw the noise (and participants, delays, losses) independently at each
        grid point, and also independently of any other study of the scenario (another algorithm,
        budget, data or number of rounds; since a computation is identified by its program, also
        other metrics or versions). By default a seed draws the same noise at all points and in all
        studies. This makes their differences precise, but two private runs of one seed must then
        not both be published: their difference cancels the noise, although either ledger states its
        cost.
      noise_seed: a secret that the noise (and participants, delays, losses) of every run depends on
        besides ``root``, seed and grid point, and that is never recorded, so that the noise cannot
        be drawn again from the results; implies ``independent_noise``. ``"entropy"`` is
        forgotten after the study; an integer >= 2**63 of your own, such as
        ``secrets.randbits(128)``, repeats and resumes it.
      shard_over: the axis that is distributed over several devices: ``"seeds"``, where each device
        runs its own blocks; or, for one very large network, its ``"clients"``, mixing included
        (their number, of a population that of a round's participants, must be a multiple of the
        number of devices of all processes).
      store: a folder in which the study is kept.
      keep_state: also store the state of every run, so that more rounds can be added.
      shard: ``"i/n"``: compute only the i-th of n parts, into the store; :func:`merge` joins
        them.
      executor: a ``concurrent.futures.Executor`` whose workers compute the study: a
        ``ProcessPoolExecutor`` that spawns, ``client.get_executor()`` of Dask, those of
        ``mpi4py.futures`` and loky, or one of :mod:`fljax.executors`. It needs a store in a folder
        that all workers see. Each task is a piece of the study, of whole blocks as this process
        would compute them, so that results are bit for bit the same on machines of the same kind. A
        task whose worker is lost is handed out again, and continues from the piece's last
        checkpoint. ``workers`` is then also the number of blocks that a worker computes
        concurrently.
      segment: number of rounds between checkpoints of a run; by default only long runs have
        checkpoints.
      until: maps metrics to tolerances: a block ends once each of its runs has diverged or has
        every metric at or below its tolerance, or at or above it where larger is better, as of an
        accuracy (checked after each segment, by default a tenth of the run). A run that ended early
        keeps its model, so its later records repeat the last one and count no traffic; ``stopped``
        gives the round. On a clock, ``"seconds"`` is a limit: a run also ends once it has taken
        that many, whatever its metrics are.
      callback: called with the dataset so far, every few seconds. It sees metrics that no budget
        covers and can end the study by an exception, so that private runs are then nominal
        (:func:`fljax.privacy.assumptions`).
      track: a tracker of :mod:`fljax.track`, or a list of them: they show the curves while the
        study runs, and keep its settings, table and pictures. They see metrics that no budget
        covers, as files of results do, and cannot end the study. One that fails is given up, with
        one warning.
      progress: by default a progress bar on a terminal and in notebooks, elsewhere a line per
        minute; ``False`` shows nothing.

    Returns:
      A dataset over the grid's axes, ``seed`` and ``round``, with the provenance as attributes. If
      it is incomplete (a shard), ``done`` marks the finished runs, and all other values of the
      remaining runs are NaN.

    Raises:
      TypeError, ValueError: invalid parts of a simulation that the scenario builds, with the grid
        point named, raised before anything is compiled; a store for a study that calls Python code
        on the host that cannot be identified (it holds a lock or a file).
      OtherStudyError: a store that holds another study; it is a ``ValueError``.
      StoreError: a store that cannot be written or is in use.
      WorkerError: workers of the executor that lack the scenario's module, have other versions of
        fljax or JAX, do not see the store, or are lost again and again.
      ImportError: the library of a tracker is not installed.
      MemoryError: a single run that does not fit; results that do not fit, before anything is
        computed.
      Interrupted: on Ctrl-C; it holds the finished runs.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, penalty):
      ...     k_graph, k_data = jax.random.split(key)
      ...     return fl.Simulation(
      ...         problem=fl.problems.ridge(k_data, clients=6, samples=10, dim=2),
      ...         network=fl.graphs.random_connected(k_graph, nodes=6, mean_degree=3),
      ...         algorithm=fl.algorithms.NetworkedADMM(penalty),
      ...         metrics=["normalized_error"])
      >>> study = fl.sweep(scenario, rounds=20, seeds=3, grid={"penalty": [0.5, 1.0]})
      >>> dict(study.sizes)
      {'penalty': 2, 'seed': 3, 'round': 20}
    """
    checks.outside("fljax.sweep")
    check("store", store, rule_of(str | PathLike | None))
    if store is not None:
        named(store)
    check("callback", callback, rule_of(Callable | None))
    checks.switch("keep_state", keep_state)
    if progress is not None:
        checks.switch("progress", progress)
    trackers = trackers_of(track)
    study = Study.of(
        Request(
            scenario=scenario,
            rounds=rounds,
            seeds=seeds,
            grid=grid,
            record_every=record_every,
            root=root,
            generator=generator,
            block=block,
            workers=workers,
            keep_models=keep_models,
            independent_noise=independent_noise,
            noise_seed=noise_seed,
            shard_over=shard_over,
            segment=segment,
            until=until,
            retrace=store is not None,
        )
    )
    if executor is not None:
        check_executor(executor, study.request, store, shard)
        if study.on_disk:
            raise ValueError(
                "a study over a population on disk reads a cohort once for all grid points, in one "
                "process; leave executor= out, or divide the seeds by shard=."
            )
    part, parts = (0, 1) if shard is None else parse_shard(shard)
    processes = jax.process_count()
    if shard is not None:
        if store is None:
            raise ValueError("a shard needs a store to leave its runs in; pass store=.")
        if processes > 1:
            raise ValueError("processes joined by jax.distributed share a study by themselves.")
    if processes > 1 and shard_over == "seeds":
        part = jax.process_index()
        parts = processes
    with open_run(
        executor,
        study,
        store,
        keep_state,
        part,
        parts,
        shard is not None,
        callback,
        # Each process computes some of the runs; the first one has all of them at the end.
        Tracking(trackers if jax.process_index() == 0 else []),
        progress,
    ) as run:
        run.execute()
        dataset = run.finish()
    warn(dataset, study.built)
    return dataset
