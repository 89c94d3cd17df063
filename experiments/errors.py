"""Exit codes of the commands; without heavy imports, so that ``--help`` is fast."""

import os
import sys
from collections.abc import Callable


class UsageError(Exception):
    """A request that cannot be met; the message is one line."""


def exit_code(command: Callable[[], int]) -> int:
    """A command's exit code: its own, 2 for a wrong request, 130 after Ctrl-C, 141 if the reader of
    its output is gone, as in ``list | head``.
    """
    try:
        code = command()
        sys.stdout.flush()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(stop or "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered output
        return 141
    return code
