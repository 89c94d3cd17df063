"""The trackers of a running study: each has a thread, and none can stop or delay the study."""

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import xarray as xr

from fljax._core import checks
from fljax.results.tracker import Session, Tracker, TrackerWarning

#: Share of the time of a study that the updates of a tracker may take.
MAX_SHARE = 0.1

#: Seconds that a finished study waits for a tracker to send the last results.
PATIENCE_SECONDS = 120.0


def trackers_of(track: Any) -> list[Tracker]:
    """The trackers of the argument ``track``, each ready to work.

    Raises:
      TypeError: neither a tracker nor a list of them.
      ImportError, ValueError: a tracker that cannot work here, by :meth:`Tracker.check`.
    """
    is_list = isinstance(track, Sequence) and not isinstance(track, str)
    trackers: list[Any] = [] if track is None else list(track) if is_list else [track]
    for tracker in trackers:
        if not isinstance(tracker, Tracker):
            raise TypeError(
                "track must be a tracker of fljax.track, such as fljax.track.csv('folder'), or a "
                f"list of them, got {checks.shown(tracker)}."
            )
        tracker.check()
    return trackers


class Tracking:
    """All trackers of one study."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = [_TrackerThread(tracker) for tracker in trackers]

    def __bool__(self) -> bool:
        """Whether there is a tracker."""
        return bool(self._trackers)

    def begin(self, results: xr.Dataset) -> None:
        """Start all sessions."""
        for tracker in self._trackers:
            tracker.begin(results)

    def update(self, results: xr.Dataset) -> None:
        """Pass the metrics so far to all trackers that are ready for them."""
        ready = [tracker for tracker in self._trackers if tracker.is_ready]
        if not ready:
            return
        tracked = [
            name
            for name, variable in results.data_vars.items()
            if "decibel" in variable.attrs or name in ("diverged", "done")
        ]
        # A copy, since the study fills the same arrays while the trackers read them.
        results = results[tracked].copy(deep=True)
        for tracker in ready:
            tracker.update(results)

    def end(self, results: xr.Dataset, state: str) -> None:
        """Pass the last results to all trackers, and wait until they are sent."""
        for tracker in self._trackers:
            tracker.send_last(results, state)
        for tracker in self._trackers:
            tracker.close()


class _TrackerThread:
    """One tracker, whose session runs in a thread: a slow server must not delay the study."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.thread = ThreadPoolExecutor(1, f"fljax-track-{type(tracker).__name__}")
        self.session: Session | None = None
        self.job: Future | None = None
        self.has_failed = False
        self._ready_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether the last job is done, and long enough ago that jobs take little of the time.

        A later update has all that an earlier one has, so updates may be left out.
        """
        is_done = self.job is not None and self.job.done()
        return is_done and not self.has_failed and time.monotonic() >= self._ready_at

    def begin(self, results: xr.Dataset) -> None:
        def start() -> None:
            self.session = self.tracker.start(results)

        self._submit(start)

    def update(self, results: xr.Dataset) -> None:
        def update() -> None:
            began = time.monotonic()
            self.session.update(results)
            ended = time.monotonic()
            self._ready_at = ended + (ended - began) / MAX_SHARE

        self._submit(update)

    def send_last(self, results: xr.Dataset, state: str) -> None:
        if self.has_failed or not self._is_done():
            return
        pictures = {}
        try:
            if "diverged" in results:  # otherwise there is nothing to draw
                pictures = self.tracker.pictures(results)
        except Exception as error:
            self._warn(f"could not draw the results ({_described(error)}); it gets the rest.")
        self._submit(lambda: self.session.end(results, state, pictures))

    def close(self) -> None:
        if self._is_done():
            self._check_last_job()
        self.thread.shutdown(wait=False)

    def _is_done(self) -> bool:
        """Wait for the last job; whether it ended in time."""
        if self.has_failed or self.job is None:
            return False
        try:
            self.job.exception(PATIENCE_SECONDS)
        except FutureTimeoutError:
            self.has_failed = True
            self._warn(f"did not answer within {PATIENCE_SECONDS:.0f} s; it may lack some rounds.")
            return False
        return True

    def _submit(self, call: Callable[[], None]) -> None:
        self._check_last_job()
        if not self.has_failed:
            self.job = self.thread.submit(call)

    def _check_last_job(self) -> None:
        """Give up the tracker if its last job raised an error; warn of the first one."""
        if self.has_failed or self.job is None:
            return
        error = self.job.exception()
        if error is not None:
            self.has_failed = True
            self._warn(f"failed ({_described(error)}); the study continues without it.")

    def _warn(self, text: str) -> None:
        name = type(self.tracker).__name__
        warnings.warn(f"the tracker {name} {text}", TrackerWarning, stacklevel=2)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
