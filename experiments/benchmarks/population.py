"""Populations on disk: formats by random access, speed against memory, and what memory it takes.

    python -m experiments.benchmarks.population
        [formats | speed | memory | words | peers ...] [--folder FOLDER]

``formats`` reads cohorts of ten random clients of 10 to 500 samples from NumPy's files (fljax's
own), HDF5, Arrow and Zarr, as far as these are installed. ``speed`` runs FedAvg with a small
convolutional network, 10 of 3,550 clients a round, from memory and from disk, with the page cache
warm and dropped. ``memory`` runs SCAFFOLD over a million clients with 8 GB of data in a process
whose memory is limited to 2 GB. ``words`` runs FedAvg with a recurrent network of flax's over as
many users as Stack Overflow's data set has. ``peers`` runs FedAvg with a small convolutional
network over 3,550 clients of 10 to 500 images in fljax, pfl-research and FedJAX, each in an
environment of its own, in turns (``peers/turns.py``). The last two are run when they are named.
Data are drawn, and written to ``--folder`` (19 GB are needed), from where they are used again.
"""

import argparse
import io
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import fljax as fl
from experiments.benchmarks.machine import header
from experiments.benchmarks.peers import on_disk, turns
from fljax._core.storage import replace_file
from fljax.data import Population, write_population

#: Clients, cohort and rounds of ``speed``: FEMNIST's number of writers.
WRITERS = 3_550
COHORT = 10
ROUNDS = 40

#: Clients, samples, features and cohort of ``memory``: a million clients of 8 kB.
MANY = 1_000_000
FEATURES = 200
MANY_COHORT = 100
MANY_ROUNDS = 200

#: Number of held-out writers of ``peers``, and the brightness of its images relative to their
#: noise: chosen so that a model is good, but not perfect, after fifty rounds.
OTHERS = 20
CONTRAST = 0.6

#: Users of ``words``, as many as Stack Overflow's data set has, those held out, words, words of a
#: sentence, sentences of a user at most, and rounds.
USERS = 342_477
OTHER_USERS = 8
VOCABULARY = 10_000
LENGTH = 20
LONGEST = 128
WORD_ROUNDS = 10

LIMIT = 2 * 2**30  # bytes


def images(
    clients: int, least: int, most: int, classes: int = 10, contrast: float = 1.0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Clients with images whose labels are where they are bright."""
    rng = np.random.default_rng(0)
    patterns = np.float32(contrast) * rng.normal(size=(classes, 28, 28, 1)).astype("f4")
    for size in rng.integers(least, most + 1, clients):
        labels = rng.integers(0, classes, size).astype("i4")
        yield patterns[labels] + rng.normal(size=(size, 28, 28, 1)).astype("f4"), labels


def vectors(clients: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Clients with 5 to 15 samples of ten classes."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(10, FEATURES)).astype("f4")
    noise = rng.normal(size=(4096, FEATURES)).astype("f4")  # drawing all would take minutes
    for size in rng.integers(5, 16, clients):
        labels = rng.integers(0, 10, size).astype("i4")
        yield means[labels] + noise[rng.integers(0, len(noise), size)], labels


def stored_population(folder: Path, name: str, clients: Callable[[], Iterator[Any]]) -> Population:
    """The population, written if it is not there yet."""
    if not (folder / name).exists():
        began = time.perf_counter()
        written = write_population(folder / name, clients())
        size = sum(f.stat().st_size for f in (folder / name).iterdir()) / 1e9
        took = time.perf_counter() - began
        print(f"wrote {size:.2f} GB, {len(written):,} clients, in {took:.0f} s")
    return Population(folder / name)


def drop_cache(folder: Path) -> None:
    """Have the system forget the pages of a population's files."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# Formats ------------------------------------------------------------------------------------


def readers(population: Population, folder: Path) -> dict[str, tuple[Path, Callable[[int], Any]]]:
    """By format: where it is, and what reads one client."""
    sources: dict[str, Any] = {
        "npy and checksums (fljax)": (
            population.folder,
            population.__getitem__,
        )
    }
    starts = np.concatenate([[0], np.cumsum(population.sizes)])
    features = np.load(population.folder / "features.npy", mmap_mode="r")

    def mapped(k: int) -> np.ndarray:
        return np.array(features[starts[k] : starts[k + 1]])

    sources["npy, memory map"] = population.folder, mapped
    for write in (_hdf5, _arrow, _zarr):
        try:
            name, path, read = write(folder, features, starts)
        except ImportError as error:
            print(f"left out: {error.name} is not installed")
        else:
            sources[name] = path, read
    return sources


def _hdf5(folder: Path, features: np.ndarray, starts: np.ndarray) -> tuple[str, Path, Any]:
    import h5py

    path = folder / "formats-hdf5" / "all.h5"
    if not path.exists():
        path.parent.mkdir()
        with h5py.File(path, "w") as file:
            data = file.create_dataset("features", features.shape, "f4", chunks=(64, 28, 28, 1))
            for k in range(len(starts) - 1):
                data[starts[k] : starts[k + 1]] = features[starts[k] : starts[k + 1]]
    opened: Any = h5py.File(path)["features"]
    return "HDF5, chunks of 64", path.parent, lambda k: opened[starts[k] : starts[k + 1]]


def _arrow(folder: Path, features: np.ndarray, starts: np.ndarray) -> tuple[str, Path, Any]:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    path = folder / "formats-arrow" / "all.arrow"
    if not path.exists():
        path.parent.mkdir()
        kind = pa.schema([("features", pa.list_(pa.float32(), 784))])
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, kind) as file:
            for k in range(len(starts) - 1):
                flat = pa.array(features[starts[k] : starts[k + 1]].reshape(-1))
                rows = pa.FixedSizeListArray.from_arrays(flat, 784)
                file.write_batch(pa.record_batch([rows], schema=kind))
    file = pa.ipc.open_file(pa.memory_map(str(path)))

    def read(k: int) -> np.ndarray:
        return np.array(file.get_batch(k).column(0).flatten().to_numpy())

    return "Arrow, one batch a client", path.parent, read


def _zarr(folder: Path, features: np.ndarray, starts: np.ndarray) -> tuple[str, Path, Any]:
    import zarr  # pyright: ignore[reportMissingImports]

    path = folder / "formats-zarr"
    if not path.exists():
        data = zarr.create_array(
            path, shape=features.shape, dtype="f4", chunks=(64, 28, 28, 1), compressors=None
        )
        for start in range(0, len(features), 64 * 256):
            data[start : start + 64 * 256] = features[start : start + 64 * 256]
    opened: Any = zarr.open_array(path, mode="r")
    return "Zarr, chunks of 64", path, lambda k: opened[starts[k] : starts[k + 1]]


def formats(folder: Path) -> None:
    """Milliseconds for a cohort of ten, each client once."""
    population = stored_population(folder, "images-500", lambda: images(400, 10, 500))
    cohorts = np.random.default_rng(1).permutation(len(population)).reshape(-1, 10)
    print(f"\n{population}\n\n| format | cold (ms a cohort of 10) | warm |\n|---|---|---|")
    for name, (path, read) in readers(population, folder).items():
        times = []
        for cold in (True, False):
            if cold:
                for part in [path, *(p for p in path.rglob("*") if p.is_dir())]:
                    drop_cache(part) if all(p.is_file() for p in part.iterdir()) else None
            began = time.perf_counter()
            for cohort in cohorts:
                for client in cohort.tolist():
                    read(client)
            times.append((time.perf_counter() - began) / len(cohorts) * 1e3)
        print(f"| {name} | {times[0]:.1f} | {times[1]:.1f} |", flush=True)


# Speed --------------------------------------------------------------------------------------


def learner() -> fl.algorithms.FedAvg:
    return fl.algorithms.FedAvg(0.05, clients_per_round=COHORT, epochs=1, batch=20)


def speed(folder: Path) -> None:
    """Seconds for the same rounds, and the accuracies reached."""
    population = stored_population(folder, "images-100", lambda: images(WRITERS, 10, 100))
    network = fl.models.cnn(10, channels=[8, 16], hidden=[64])
    key = jax.random.key(0)
    loss = fl.problems.Softmax(10)
    test = population[0]
    disk = fl.problems.Model.from_population(population, network, key, loss, test=test)
    data = [population[k] for k in range(len(population))]
    memory = fl.problems.Model.from_clients(network, key, data, loss, test=[test])
    del data

    def run(problem: Any, cold: bool = False) -> tuple[float, float]:
        simulation = fl.Simulation(problem, learner(), metrics=["accuracy"])
        if cold:
            drop_cache(population.folder)
        began = time.perf_counter()
        result = fl.run(simulation, rounds=ROUNDS, record_every=ROUNDS)
        return time.perf_counter() - began, float(result.accuracy[-1])

    ways = {
        "from memory": lambda: run(memory),
        "from disk, warm": lambda: run(disk),
        "from disk, cold": lambda: run(disk, cold=True),
    }
    for reader in ways.values():
        reader()  # compiled
    times: dict[str, list[float]] = {name: [] for name in ways}
    accuracy = {}
    for _ in range(3):  # in turns: a machine's speed drifts
        for name, reader in ways.items():
            took, accuracy[name] = reader()
            times[name].append(took)
    size = sum(f.stat().st_size for f in population.folder.iterdir()) / 1e9
    print(f"\n{population}, {size:.2f} GB, {COHORT} a round, {ROUNDS} rounds\n")
    print(
        "| | seconds, best of 3 | rounds a second | of memory | accuracy |\n|---|---|---|---|---|"
    )
    first = min(times["from memory"])
    for name, took in times.items():
        best = min(took)
        print(
            f"| {name} | {best:.2f} | {ROUNDS / best:.1f} | {first / best:.2f} | "
            f"{accuracy[name]:.3f} |"
        )


# Memory -------------------------------------------------------------------------------------


def limited(folder: Path) -> None:
    """The run of ``memory``, in a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    population = Population(folder / "vectors")
    network = fl.models.mlp(10, hidden=[32])
    problem = fl.problems.Model.from_population(
        population, network, jax.random.key(0), fl.problems.Softmax(10), test=population[0]
    )
    algorithm = fl.algorithms.SCAFFOLD(0.1, clients_per_round=MANY_COHORT, local_steps=5, batch=5)
    simulation = fl.Simulation(problem, algorithm, metrics=["accuracy"])
    before = on_disk.resident()
    with tempfile.TemporaryDirectory(dir=folder) as store:
        fl.run(simulation, rounds=2, record_every=2, store=Path(store) / "first")
        began = time.perf_counter()
        result = fl.run(
            simulation, rounds=MANY_ROUNDS, record_every=MANY_ROUNDS, store=Path(store) / "run"
        )
        took = time.perf_counter() - began
    numbers = {
        "clients": len(population),
        "parameters": problem.dim,
        "seconds": took,
        "accuracy": float(result.accuracy[-1]),
        "before": before,
        "resident": on_disk.resident(),
    }
    print(json.dumps(numbers))


def in_a_process(part: str, folder: Path) -> dict[str, Any]:
    """The output of a part that runs in its own process."""
    command = [sys.executable, "-m", "experiments.benchmarks.population", part]
    command += ["--folder", str(folder)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{part} failed:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def memory(folder: Path) -> None:
    """Time and memory of a million clients, with 2 GB for each process."""
    population = stored_population(folder, "vectors", lambda: vectors(MANY))
    size = sum(f.stat().st_size for f in population.folder.iterdir())
    numbers = in_a_process("limited", folder)
    print(f"\n{population}, {size / 1e9:.2f} GB, {MANY_COHORT} a round, {MANY_ROUNDS} rounds")
    print(
        f"SCAFFOLD, {numbers['parameters']:,} parameters: {numbers['seconds']:.1f} s "
        f"({MANY_ROUNDS / numbers['seconds']:.0f} rounds a second), accuracy "
        f"{numbers['accuracy']:.2f}; resident at most {numbers['resident'] / 1e9:.2f} GB, "
        f"{numbers['before'] / 1e9:.2f} GB of it before the run; limit {LIMIT / 1e9:.2f} GB"
    )


# Words --------------------------------------------------------------------------------------


def sentences(users: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Users with 16 to 128 sentences, and each word's next one: with probability 1/2 its
    most likely successor, otherwise a word drawn by frequency.
    """
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, VOCABULARY + 1)
    drawn = rng.choice(VOCABULARY, 2**22, p=frequency / frequency.sum()).astype("i2")
    follower = rng.choice(drawn, VOCABULARY)
    sizes = rng.integers(16, LONGEST + 1, users)
    for first in range(0, users, 1000):  # word by word, for many users in one array
        ends = np.cumsum(sizes[first : first + 1000])
        tokens = drawn[rng.integers(0, len(drawn), (ends[-1], LENGTH + 1), np.int32)]
        follows = rng.integers(0, 2, (ends[-1], LENGTH), np.int8) == 1
        for t in range(LENGTH):
            likely = follower[tokens[:, t]]
            tokens[:, t + 1] = np.where(follows[:, t], likely, tokens[:, t + 1])
        for user in np.split(tokens, ends[:-1]):
            yield user[:, :-1], user[:, 1:]


def next_word() -> Any:
    """A small embedding, a recurrent layer, and a score for every word at every place."""
    from flax import linen as nn

    class NextWord(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embedded = nn.Embed(VOCABULARY, 32)(tokens)
            return nn.Dense(VOCABULARY)(nn.RNN(nn.GRUCell(64))(embedded))

    return fl.models.linen(NextWord())


def likeliest(scores: jax.Array, tokens: jax.Array) -> jax.Array:
    """Whether the best score is the word's."""
    return scores.argmax(-1) == tokens


def alone(folder: Path) -> None:
    """The run of ``words``, in a process of its own."""
    population = Population(folder / "words")
    held_out = np.load(folder / "words.npz")
    loss = fl.problems.FunctionLoss(
        optax.softmax_cross_entropy_with_integer_labels, right=likeliest
    )
    problem = fl.problems.Model.from_population(
        population,
        next_word(),
        jax.random.key(0),
        loss,
        test=(held_out["features"], held_out["targets"]),
    )
    algorithm = fl.algorithms.FedAvg(0.5, clients_per_round=50, batch=16, weighting="samples")
    simulation = fl.Simulation(problem, algorithm, metrics=["accuracy"])
    before = on_disk.resident()
    took: list[float] = []
    for key in range(2):  # the first compiles
        began = time.perf_counter()
        result = fl.run(simulation, rounds=WORD_ROUNDS, key=key, record_every=WORD_ROUNDS // 2)
        took.append(time.perf_counter() - began)
    numbers = {
        "parameters": problem.dim,
        "seconds": took[1] / WORD_ROUNDS,
        "compiled": took[0] - took[1],
        "accuracy": result.accuracy.values.tolist(),
        "before": before,
        "resident": on_disk.resident(),
    }
    print(json.dumps(numbers))


def next_words(folder: Path) -> None:
    """Next words over as many users as Stack Overflow's data set has."""
    drawn = sentences(USERS + OTHER_USERS)
    held_out = folder / "words.npz"
    if not held_out.exists():
        shutil.rmtree(folder / "words", ignore_errors=True)
    population = stored_population(folder, "words", lambda: itertools.islice(drawn, USERS))
    if not held_out.exists():
        _save(held_out, drawn)
    size = sum(f.stat().st_size for f in population.folder.iterdir())
    numbers = in_a_process("alone", folder)
    accuracy = " and ".join(f"{a:.3f}" for a in numbers["accuracy"])
    print(
        f"\n{population}, {size / 1e9:.2f} GB\nFedAvg, {numbers['parameters']:,} parameters, 50 a "
        f"round: {numbers['seconds']:.2f} s a round, accuracy {accuracy} after {WORD_ROUNDS // 2} "
        f"and {WORD_ROUNDS} rounds; resident at most {numbers['resident'] / 1e9:.2f} GB, "
        f"{numbers['before'] / 1e9:.2f} GB of it before the run"
    )


# Other simulators ---------------------------------------------------------------------------


def writers(folder: Path) -> Population:
    """The clients that all simulators learn from; test images are written next to them."""
    held_out = folder / on_disk.HELD_OUT
    drawn = images(WRITERS + OTHERS, 10, 500, on_disk.OnDisk().classes, CONTRAST)
    if not held_out.exists():  # they come last
        shutil.rmtree(folder / "writers", ignore_errors=True)
    population = stored_population(folder, "writers", lambda: itertools.islice(drawn, WRITERS))
    if not held_out.exists():
        _save(held_out, drawn)
    return population


def _save(path: Path, clients: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
    """The samples of clients in one file, which appears under its name when it is whole."""
    features, targets = (np.concatenate(part) for part in zip(*clients, strict=True))
    content = io.BytesIO()
    np.savez(content, features=features, targets=targets)
    replace_file(path, content.getvalue())


def peers(folder: Path, only: Sequence[str], repeats: int, rounds: int, environments: Path) -> None:
    """Federated averaging over the same files in other simulators."""
    population = writers(folder)
    print(f"\n{population}, {COHORT} a round, batches of {on_disk.OnDisk.batch}\n", flush=True)
    rows = turns.measured(population.folder, only, repeats, rounds, environments)
    replace_file(folder / "peers.json", json.dumps(rows, indent=1) + "\n")
    print(turns.table(rows))


PARTS = {"formats": formats, "speed": speed, "memory": memory, "words": next_words}
INNER = {"limited": limited, "alone": alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*PARTS, "peers", *INNER]
    parser.add_argument("parts", nargs="*", choices=[*names, []], metavar="PART")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "populations")
    peer_names = [name for name in turns.SIDES if name != turns.FLJAX]
    parser.add_argument(
        "--only", nargs="+", choices=peer_names, default=peer_names, help="of the peers"
    )
    parser.add_argument("--turns", type=int, default=7, help="runs of each peer")
    parser.add_argument("--rounds", type=int, default=on_disk.OnDisk.rounds, help="of a run")
    parser.add_argument("--environments", type=Path, default=turns.ENVIRONMENTS)
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"argument --turns: at least one, got {options.turns}")
    if options.rounds < 2:
        parser.error(
            f"argument --rounds: at least two (pfl's first is not counted), got {options.rounds}"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    if len(options.parts) == 1 and (inner := INNER.get(options.parts[0])):
        return inner(options.folder)
    print(header())
    for part in options.parts or ["formats", "speed", "memory"]:
        if part == "peers":
            peers(options.folder, options.only, options.turns, options.rounds, options.environments)
        else:
            PARTS[part](options.folder)
    return None


if __name__ == "__main__":
    main()
