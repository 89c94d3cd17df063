"""The interface of trackers, which show a study while it runs.

The trackers themselves are in :mod:`fljax.track`. They draw pictures and tabulate means, so they
import more than a study does; the study needs this interface alone.
"""

import xarray as xr

from fljax._core import checks


class TrackerWarning(UserWarning):
    """A tracker failed; the study continues without it."""


class Session:
    """One study at a tracker, from its first round to its last.

    All methods of a session are called in one thread, one after the other. An exception ends the
    session and not the study.
    """

    @checks.required
    def update(self, results: xr.Dataset) -> None:
        """Show the new rounds of the results so far."""
        raise NotImplementedError

    @checks.required
    def end(self, results: xr.Dataset, state: str, pictures: dict[str, bytes]) -> None:
        """Show the last results, and close.

        Args:
          results: of the study, incomplete unless it is finished.
          state: ``"finished"``, ``"interrupted"`` by Ctrl-C, or ``"failed"``.
          pictures: of :meth:`Tracker.pictures`.
        """
        raise NotImplementedError


class Tracker:
    """Where a study is shown while it runs, and kept afterwards."""

    @checks.required
    def check(self) -> None:
        """Raise an error if the tracker cannot work here; called before anything is compiled.

        Raises:
          ImportError: its library is not installed (the extra is named).
          ValueError: settings or a login are missing.
        """
        raise NotImplementedError

    @checks.required
    def start(self, results: xr.Dataset) -> Session:
        """Begin to show a study, before its first block is computed."""
        raise NotImplementedError

    def pictures(self, results: xr.Dataset) -> dict[str, bytes]:
        """Pictures of the last results by name, as PNG files.

        Called in the thread of the study, since plotting libraries require the main thread.
        """
        return {}
