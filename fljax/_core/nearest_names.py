"""Names that were probably meant by one that does not exist."""

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any


def same_form(name: str, names: Iterable[str]) -> list[str]:
    """The names that equal this one up to case and punctuation."""
    return [candidate for candidate in names if _form(candidate) == _form(name)]


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names that equal this one up to case and punctuation; else the most similar one.

    Example:
      >>> nearest("dpsgd", ["D-PSGD", "DP-SGD", "DGD"])
      ['D-PSGD', 'DP-SGD']
      >>> nearest("small_wrld", ["ring", "small_world"])
      ['small_world']
      >>> nearest("figure-3.7", ["figure-6.3", "figure-3.1"])  # of equals, the one that begins so
      ['figure-3.1']
    """
    names = list(names)
    form = _form(name)
    similar = difflib.get_close_matches(form, map(_form, names), max(len(names), 1))
    closest = max(similar, key=lambda other: _likeness(other, form), default=None)
    return same_form(name, names) or [n for n in names if _form(n) == closest]


def _likeness(first: str, second: str) -> tuple[float, int]:
    """How similar two names are: the share of common letters, then the length of a common start."""
    differs = [a != b for a, b in zip(first, second, strict=False)]
    return difflib.SequenceMatcher(None, first, second).ratio(), [*differs, True].index(True)


def _form(name: str) -> str:
    """The letters and digits of a name, in one case."""
    return re.sub(r"[\W_]", "", name).casefold()


def question(names: Iterable[str]) -> str:
    """Ask whether one of these was meant, in quotes; empty without any."""
    quoted = [repr(name) for name in dict.fromkeys(names)]
    return f"Did you mean {' or '.join(quoted)}?" if quoted else ""


def attribute_error(module: str, name: str, near: Iterable[str]) -> AttributeError:
    """The error of a module without this attribute, with the nearest names that it has."""
    text = f"module {module!r} has no attribute {name!r}"
    suggestion = question(near)
    return AttributeError(f"{text}. {suggestion}" if suggestion else text)


def suggest_names(module: ModuleType, renamed: Mapping[str, str] | None = None) -> None:
    """Let the error of a name that a module has not suggest the nearest of its public names.

    The module gets a ``__getattr__``, which Python calls for missing names alone. It is assigned
    here and not defined in the module, since static checkers accept any name of one that has it.

    Args:
      module: a module with ``__all__``.
      renamed: public names of the last minor version, with today's: they work, with a warning.
    """
    renamed = renamed or {}

    def missing(name: str) -> Any:
        if name in renamed:
            warnings.warn(
                f"{module.__name__}.{name} is {module.__name__}.{renamed[name]} now; the next "
                "minor version has the new name alone.",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(module, renamed[name])
        # Python and its tools ask every module for names such as __path__ and __wrapped__.
        near = [] if name.startswith("__") else nearest(name, module.__all__)
        raise attribute_error(module.__name__, name, near)

    module.__getattr__ = missing
