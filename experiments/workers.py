"""Figures and scenarios of the atlas, computed by the workers of an executor.

A task is a whole figure or scenario, which keeps what it has computed in a folder of its own: where
its worker is lost, another one goes on from there. Workers import this package, and find all
folders under the same paths as the process that hands out.
"""

import contextlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, as_completed
from typing import NamedTuple

import fljax as fl
from experiments.errors import UsageError
from fljax.__main__ import one_line

#: How often a task is handed out whose worker is lost.
ATTEMPTS = 4


class Output(NamedTuple):
    """The text that a task has printed, and its error."""

    text: str
    error: Exception | None


def captured(compute: Callable[[str], None], name: str) -> Output:
    """The output of a task as one text: lines of parallel tasks would mix."""
    error = None
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            compute(name)
        except Exception as raised:
            error = raised
    return Output(text.getvalue(), error)


def executor_of(description: str) -> Executor:
    """The executor that a command line names.

    Raises:
      UsageError: an unknown engine or argument; its library is not installed.
    """
    try:
        return fl.executors.executor_of(description)
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise UsageError(one_line(error)) from None


def hand_out(
    executor: Executor,
    compute: Callable[[str], None],
    names: Sequence[str],
    remedy: str = "goes on from what is stored.",
) -> None:
    """Compute tasks by an executor, and print the output of each as it ends.

    Args:
      executor: of ``concurrent.futures``.
      compute: called by a worker with the name of a task.
      names: of the tasks.
      remedy: the effect of the same command after workers were lost, for the message.

    Raises:
      UsageError: the executor takes no tasks any more, or lost one :data:`ATTEMPTS` times.
      Exception: of a task; tasks that have not begun are cancelled.
    """
    attempts = dict.fromkeys(names, 0)
    running: dict[Future[Output], str] = {}
    waiting = list(names)
    try:
        while waiting or running:
            for name in waiting:
                attempts[name] += 1
                running[_submitted(executor, compute, name, remedy)] = name
            done = next(as_completed(running))
            name = running.pop(done)
            lost = CancelledError() if done.cancelled() else done.exception()
            waiting = [] if lost is None else [name]
            if lost is None:
                text, error = done.result()
                print(text, end="", flush=True)
                if error is not None:
                    raise error
            elif attempts[name] == ATTEMPTS:
                raise UsageError(
                    f"{name} was lost {ATTEMPTS} times by the executor's workers "
                    f"({_described(lost)}), perhaps for memory; the same command {remedy}"
                )
    finally:
        for future in running:
            future.cancel()


def _submitted(
    executor: Executor, compute: Callable[[str], None], name: str, remedy: str
) -> Future[Output]:
    try:
        return executor.submit(captured, compute, name)
    except RuntimeError as error:  # also of a pool one of whose processes was killed
        raise UsageError(
            f"the executor takes no tasks any more ({_described(error)}), perhaps since a worker "
            f"was killed for memory; the same command {remedy}"
        ) from None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}".removesuffix(": ").rstrip(".")
