"""What the import hook of the tests checks each function of fljax with."""

import collections.abc
import functools
import operator
import sys
import threading
import types
import typing
import warnings

import jax
import jaxtyping
import numpy as np
from beartype import BeartypeConf, beartype

__all__ = ["checked"]

CONF = BeartypeConf(is_pep484_tower=True)  # an int is a float
NUMPY = {
    jax.Array: jax.Array | np.ndarray | np.generic,
    float: float | np.floating | np.integer,
    int: int | np.integer,
}


class CatchWarnings(warnings.catch_warnings):
    """In the main thread alone.

    beartype catches warnings while it decorates, which it does in the threads of a sweep, too.
    These come and go side by side, leave the state of one to another, and a test that waits for a
    warning in the main thread now and then did not hear of it.
    """

    def __enter__(self):
        self.main = threading.current_thread() is threading.main_thread()
        return super().__enter__() if self.main else []

    def __exit__(self, *problem):
        if self.main:
            super().__exit__(*problem)


for name, module in [*sys.modules.items()]:
    if name.startswith("beartype.") and "catch_warnings" in vars(module):
        module.catch_warnings = CatchWarnings


def with_numpy(hint):
    """The annotation with NumPy's arrays and numbers wherever it has JAX's and Python's.

    The methods of a class are decorated one by one, where ``Self`` has no meaning to beartype.
    """
    if hint is typing.Self:
        return typing.Any
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return hint.dtype[NUMPY.get(hint.array_type, hint.array_type), hint.dim_str]
    if hint in NUMPY:
        return NUMPY[hint]
    origin = typing.get_origin(hint)
    inside = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(with_numpy, inside))
    if origin in (tuple, list, dict, collections.abc.Sequence) and inside:
        return origin[tuple(map(with_numpy, inside))]
    return hint


def checked(function):
    """``function`` with checked calls; constructors are returned unchanged."""
    if function.__name__ == "__init__":
        return function
    function.__annotations__ = {n: with_numpy(h) for n, h in function.__annotations__.items()}
    return beartype(conf=CONF)(function)
