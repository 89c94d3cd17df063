"""Rows of the table: what one is, and how it is measured."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

from experiments.benchmarks.gpu import bare, cards, counts, traces
from experiments.benchmarks.gpu.training import Samples, Training
from fljax._core import compilation_cache
from fljax._core.devices import traced_for
from fljax._core.prng import random_key
from fljax.simulation.scan import begin
from fljax.study.batched_program import Program, _lift_large_constants
from fljax.study.batched_program import program as cached_program

#: The part of a row's time that goes to the bare loop.
BESIDE = 0.25

#: The seed of the runs in fljax.
SEED = 1


class Published(NamedTuple):
    """A number of others, as they published it."""

    who: str
    figure: str
    hardware: str
    source: str


class Row(NamedTuple):
    """One row: ``measure(seconds, rehearse)`` returns its numbers."""

    title: str
    seconds: float  # budget on a card
    measure: Callable[[float, bool], dict[str, Any]]
    published: tuple[Published, ...] = ()
    training: Callable[[bool], Training] | None = None  # whether it is rehearsed, to the work


class Measured(NamedTuple):
    """A run, or a part of one."""

    rounds: int  # done
    seconds: float
    seconds_per_round: float  # after the first record, which loads kernels
    compile_seconds: float
    accuracy: float
    text: str  # of the compiled program of `record_every` rounds
    flops: float  # of a round
    argument_bytes: int
    temporary_bytes: int
    donated: int  # arrays
    model: np.ndarray  # [D]  at the end


def training_row(
    title: str,
    seconds: float,
    training: Callable[[bool], Training],
    published: tuple[Published, ...] = (),
    most_rounds: int | None = None,
) -> Row:
    """A row of federated averaging, with the bare loop next to it.

    Args:
      title: of the row.
      seconds: its budget.
      training: whether it is rehearsed, to the work.
      published: numbers of others.
      most_rounds: of a row that measures a rate, and not a run.
    """

    def measure(seconds: float, rehearse: bool) -> dict[str, Any]:
        return measured(training(rehearse), seconds, None if rehearse else most_rounds)

    return Row(title, seconds, measure, published, training)


def measured(
    training: Training, seconds: float, most_rounds: int | None = None, profiled: bool = False
) -> dict[str, Any]:
    """The numbers of a row: fljax, the bare loop, and what limits a round; if it is profiled, how
    busy the device is.
    """
    data = training.data()
    segments = Segments(training, data)
    ours = run(training, segments, (1 - BESIDE) * seconds, most_rounds)
    busy = {"busy": busy_share(segments)} if profiled else {}
    beside, beside_compile = bare_rate(training, data, BESIDE * seconds)
    return (
        numbers(training, data, ours)
        | busy
        | {
            "bare_rounds_per_second": beside,
            "bare_compile_seconds": beside_compile,
            "of_bare": 1 / ours.seconds_per_round / beside,
        }
    )


def numbers(training: Training, data: Samples, ours: Measured) -> dict[str, Any]:
    """The numbers of fljax alone."""
    steps = training.steps
    limits = counts.count(ours.text, training.iterations)
    of_round = limits.times(1 / training.record_every)
    kind = jax.devices()[0].device_kind
    a_round = ours.seconds_per_round
    return {
        "parameters": len(ours.model),
        "data": data.source,
        "precision": training.precision,
        "rounds": training.rounds,
        "rounds_done": ours.rounds,
        "seconds": ours.seconds + a_round * (training.rounds - ours.rounds),
        "scaled": ours.rounds < training.rounds,
        "rounds_per_second": 1 / a_round,
        "compile_seconds": ours.compile_seconds,
        "accuracy": ours.accuracy,
        "flops_per_round": ours.flops,
        "bytes_per_round": of_round.bytes,
        "kernels_per_step": of_round.kernels / steps,
        "waits_per_round": of_round.waits,
        "callbacks": limits.callbacks,
        "donated_arrays": ours.donated,
        "argument_bytes": ours.argument_bytes,
        "temporary_bytes": ours.temporary_bytes,
        "roofline": cards.share(kind, a_round, ours.flops, of_round.bytes, training.precision),
    }


def start_of(training: Training, data: Samples) -> Callable[..., Any]:
    """``key -> carry``: the state before the first round."""
    program = Program(training.scenario(data), training.rounds, training.record_every, False)

    def start(key: jax.Array) -> Any:
        simulation, prepared = program.prepared_simulation(key, {})
        return begin(simulation, prepared, jax.random.split(key)[1])

    return start


def segment_of(training: Training, data: Samples) -> Callable[..., Any]:
    """``(key, carry, done) -> (carry, accuracy)``: the rounds of one record."""
    program = Program(training.scenario(data), training.rounds, training.record_every, False)

    def segment(key: jax.Array, carry: Any, done: jax.Array) -> Any:
        output = program.run_segment(key, {}, carry, done, 1)
        return output.carry, output.records[training.metric.name]

    return segment


class Segments:
    """A run in fljax in segments of one record each: the program of :func:`fljax.sweep`."""

    def __init__(self, training: Training, data: Samples) -> None:
        self.every = training.record_every
        self.key = jax.random.fold_in(random_key(0), SEED)  # as in a study
        self.segment = segment_of(training, data)
        start = start_of(training, data)
        began = time.perf_counter()
        self.start = compiled(start, (self.key,))
        self.carry_shape = jax.eval_shape(start, self.key)
        arguments = self.key, self.carry_shape, np.int32(0)
        self.program = compiled(self.segment, arguments, donate=(1,))
        self.compile_seconds = time.perf_counter() - began
        self.text: str = self.program.program.as_text()

    def flops(self, steps: float) -> float:
        """Count the flops of a round, as it is traced for a GPU."""
        arguments = self.key, self.carry_shape, np.int32(0)

        def afresh(*arguments: Any) -> Any:  # JAX remembers traces for other platforms
            return self.segment(*arguments)

        with traced_for("cuda"):
            return counts.flops(afresh, *arguments, iterations=steps) / self.every


class Executable(NamedTuple):
    """A compiled function whose large constants are arguments, on the device once."""

    program: Any
    large: tuple[jax.Array, ...]

    def __call__(self, *arguments: Any) -> Any:
        return self.program(*arguments, *self.large)


def compiled(
    function: Callable[..., Any], arguments: tuple, donate: tuple[int, ...] = ()
) -> Executable:
    """A function for arguments like these, some of them donated."""
    lifted, large, _ = _lift_large_constants(function, arguments)
    program = jax.jit(lifted, donate_argnums=donate).lower(*arguments, *large).compile()
    return Executable(program, tuple(map(jax.numpy.asarray, large)))


def run(
    training: Training, segments: Segments, seconds: float, most_rounds: int | None = None
) -> Measured:
    """A run in fljax until its end, or until the time is up; one record at least.

    A segment is started before the one before it is awaited, so that the device always has work.
    """
    rounds = min(training.rounds, most_rounds or training.rounds)
    carry = jax.block_until_ready(segments.start(segments.key))
    done = 0
    accuracy: Any = np.nan
    first = 0.0
    began = time.perf_counter()
    while done < rounds and (done == 0 or time.perf_counter() - began < seconds):
        previous = accuracy
        carry, accuracy = segments.program(segments.key, carry, np.int32(done))
        done += training.record_every
        jax.block_until_ready(previous)
        if done == 2 * training.record_every:
            first = time.perf_counter() - began
    jax.block_until_ready(accuracy)
    elapsed = time.perf_counter() - began
    memory = segments.program.program.memory_analysis()
    return Measured(
        done,
        elapsed,
        (elapsed - first) / (done - training.record_every * bool(first)),
        segments.compile_seconds,
        float(np.mean(np.asarray(accuracy))),
        segments.text,
        segments.flops(training.steps),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        counts.donated(segments.text),
        np.asarray(carry.state.model),
    )


def busy_share(segments: Segments) -> float:
    """The share of the time of one record's rounds in which the device computes."""
    carry = jax.block_until_ready(segments.start(segments.key))
    carry, _ = jax.block_until_ready(segments.program(segments.key, carry, np.int32(0)))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            after = segments.program(segments.key, carry, np.int32(segments.every))
            jax.block_until_ready(after)
        return traces.summarized(Path(folder)).busy


def bare_rate(training: Training, data: Samples, seconds: float) -> tuple[float, float]:
    """Rounds a second of the bare loop, and the seconds of compiling it."""
    began = time.perf_counter()
    model, program = bare.averaging(training, data)
    compile_seconds = time.perf_counter() - began
    model = jax.block_until_ready(program(model, jax.random.key(0)))
    calls = 0
    began = time.perf_counter()
    while calls == 0 or time.perf_counter() - began < seconds - compile_seconds:
        calls += 1
        model = jax.block_until_ready(program(model, jax.random.key(calls)))
        if calls * training.record_every >= training.rounds:
            break
    return calls * training.record_every / (time.perf_counter() - began), compile_seconds


@contextlib.contextmanager
def recorded() -> Iterator[list[Any]]:
    """The programs that studies compile or load within: all that they need, as the programs of an
    earlier row, which may have the same shapes, are forgotten first.
    """
    cached_program.cache_clear()
    jax.clear_caches()
    programs: list[Any] = []
    original = compilation_cache.compile_or_load

    def keep(*arguments: Any) -> Any:
        programs.append(original(*arguments))
        return programs[-1]

    with mock.patch.object(compilation_cache, "compile_or_load", keep):
        yield programs
