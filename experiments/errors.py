"""How a command of the figures ends; light, so that ``--help`` needs nothing else."""

import os
import sys
from collections.abc import Callable


class UsageError(Exception):
    """What the user asked for cannot be done; one line."""


def exit_code(command: Callable[[], int]) -> int:
    """Of a command: its own, 2 if the request was wrong, 130 after Ctrl-C, 141 if nobody reads on
    what it prints, as of ``list | head``.
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still held
        return 141
    return code
