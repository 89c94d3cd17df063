"""What ends a command of the figures; light, so that ``--help`` needs nothing else."""


class UsageError(Exception):
    """What the user asked for cannot be done; one line."""
