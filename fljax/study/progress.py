"""Progress of a study: one bar on a terminal or in a notebook, a line per minute elsewhere."""

import contextlib
import logging
import sys
import time
import warnings
from typing import Any

from tqdm import TqdmWarning

with warnings.catch_warnings():  # in a notebook without widgets, where the bar is one of text
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

__all__ = ["Progress"]

log = logging.getLogger("fljax")

#: Where there is no bar, a line is written after so long.
LINE_SECONDS = 60.0

#: A bar's clock goes on after so long, whether or not a block has finished.
TICK_SECONDS = 1.0


class Progress:
    """Display of the progress of a running study.

    Args:
      total: number of rounds of all its runs.
      initial: number of rounds that were already done.
      shown: ``False`` shows nothing.
    """

    def __init__(self, total: int, initial: int, shown: bool) -> None:
        self.shown, self.state = shown, "compiling"
        self.began = self.told = time.monotonic()
        self.computing: float | None = None  # since when
        self.bar = tqdm(
            total=total,
            initial=initial,
            unit="round",
            unit_scale=True,
            smoothing=0.0,
            desc=self.state,
            disable=not (shown and (sys.stderr.isatty() or _in_notebook())),
        )
        self.done, self._first = initial, initial
        self._closing = contextlib.ExitStack()
        if not self.bar.disable:
            loggers: Any = [logging.root, *([log] if log.handlers else [])]
            self._closing.enter_context(logging_redirect_tqdm(loggers))  # lines go above the bar

    def close(self) -> None:
        """Leave the bar as it is."""
        self.bar.close()
        self._closing.close()

    def start(self) -> None:
        """Start the computation: time spent compiling is not used to estimate the time left."""
        if self.computing is None:
            self.computing = time.monotonic()
            self.bar.unpause()
            self.bar.set_description_str("")

    def advance(self, rounds: int, state: str) -> None:
        """Add finished rounds, with a description of the progress."""
        self.done, self.state = self.done + rounds, state
        self.bar.update(rounds)
        self.bar.set_postfix_str(state)
        self.tell()

    @property
    def patience(self) -> float:
        """Seconds until the next message."""
        return max(0.0, self.told + self._interval - time.monotonic())

    @property
    def _interval(self) -> float:
        return LINE_SECONDS if self.bar.disable else TICK_SECONDS

    def tell(self) -> None:
        """Report the progress, if it is time to."""
        if self.patience:
            return
        self.told = time.monotonic()
        if not self.bar.disable:
            self.bar.refresh()
        elif log.isEnabledFor(logging.INFO):
            log.info(self._line())
        elif self.shown:
            print(f"fljax: {self._line()}", file=sys.stderr, flush=True)

    def _line(self) -> str:
        now, more = time.monotonic(), self.done - self._first
        text = f"{self.done / self.bar.total:.0%} done after {_interval(now - self.began)}"
        if self.computing is not None and more:
            left = (now - self.computing) * (self.bar.total - self.done) / more
            text += f", about {_interval(left)} to go"
        return f"{text} ({self.state})"

    def say(self, text: str) -> None:
        """Print a message at once, whatever is shown."""
        tqdm.write(f"fljax: {text}", file=sys.stderr)
        sys.stderr.flush()


def _interval(seconds: float) -> str:
    return tqdm.format_interval(round(seconds))


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
