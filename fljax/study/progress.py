"""Progress of a study: one bar on a terminal or in a notebook, a line per minute elsewhere."""

import contextlib
import logging
import sys
import time
import warnings

from tqdm import TqdmWarning

with warnings.catch_warnings():  # tqdm warns in notebooks without widgets
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

log = logging.getLogger("fljax")

#: Without a bar, seconds between lines.
LINE_SECONDS = 60.0

#: Seconds between refreshes of the bar, so that its clock advances between blocks.
TICK_SECONDS = 1.0


class Progress:
    """Display of the progress of a running study.

    Args:
      total: number of rounds of all its runs.
      initial: number of rounds that are in the store.
      is_visible: ``False`` shows nothing.
    """

    def __init__(self, total: int, initial: int, is_visible: bool) -> None:
        self.is_visible = is_visible
        self.state = "compiling"
        self.began = self.last_report = time.monotonic()
        self.compute_start: float | None = None
        self.bar = tqdm(
            total=total,
            initial=initial,
            unit="round",
            unit_scale=True,
            smoothing=0.0,
            desc=self.state,
            disable=not (is_visible and (sys.stderr.isatty() or _in_notebook())),
        )
        self.done = initial
        self._first = initial
        self._closing = contextlib.ExitStack()
        if not self.bar.disable:
            loggers: list[logging.Logger] = [logging.root, *([log] if log.handlers else [])]
            self._closing.enter_context(logging_redirect_tqdm(loggers))  # lines go above the bar

    def close(self) -> None:
        """End the display; the bar stays visible."""
        self.bar.close()
        self._closing.close()

    def start(self) -> None:
        """Note the start of the computation; compile time does not count in estimates."""
        if self.compute_start is None:
            self.compute_start = time.monotonic()
            self.bar.unpause()
            self.bar.set_description_str("")

    def advance(self, rounds: int, state: str) -> None:
        """Add finished rounds, with a description of the progress."""
        self.done = self.done + rounds
        self.state = state
        self.bar.update(rounds)
        self.bar.set_postfix_str(state)
        self.update()

    @property
    def patience(self) -> float:
        """Seconds until the next report."""
        return max(0.0, self.last_report + self._interval - time.monotonic())

    @property
    def _interval(self) -> float:
        return LINE_SECONDS if self.bar.disable else TICK_SECONDS

    def update(self) -> None:
        """Report the progress, if it is time to."""
        if self.patience:
            return
        self.last_report = time.monotonic()
        if not self.bar.disable:
            self.bar.refresh()
        elif log.isEnabledFor(logging.INFO):
            log.info(self._line())
        elif self.is_visible:
            print(f"fljax: {self._line()}", file=sys.stderr, flush=True)

    def _line(self) -> str:
        now = time.monotonic()
        computed = self.done - self._first
        text = f"{self.done / self.bar.total:.0%} done after {_interval(now - self.began)}"
        if self.compute_start is not None and computed:
            remaining = (now - self.compute_start) * (self.bar.total - self.done) / computed
            text += f", about {_interval(remaining)} to go"
        return f"{text} ({self.state})"

    def write(self, text: str) -> None:
        """Print a message immediately, even if the progress is not visible."""
        tqdm.write(f"fljax: {text}", file=sys.stderr)
        sys.stderr.flush()


def _interval(seconds: float) -> str:
    return tqdm.format_interval(round(seconds))


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
