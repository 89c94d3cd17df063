"""Arguments of classes: descriptions, which base classes may have, defaults and ranges."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from sphinx.application import Sphinx

from fljax.algorithms import REGISTRY, Algorithm
from fljax.tuning.search import RANGES, SEARCHED_OPTIONS

#: A section of a docstring, with its indented lines.
SECTION = r"^{}:\n(?P<body>(?:(?:  .*)?\n)*)"
ARGUMENT = re.compile(r"^  (?P<names>\w+(?:, \w+)*): (?P<text>(?:.*\n)(?:(?:    .*)?\n)*)", re.M)
ELSEWHERE = re.compile(r"^Args and Raises: as (?:for|in|of)\s+:class:`~?(?P<path>[\w.]+)`", re.M)
REST = re.compile(
    r"^(?:For the other arguments see|Its arguments are documented in) .*(?:\n.+)*\n?", re.M
)

#: A number and a text with which a constructor is asked for its bounds and choices.
FAR = 1e9
UNKNOWN = "unknown"


def section(name: str, docstring: str) -> str:
    """The indented lines of a section of a docstring; empty without it."""
    match = re.search(SECTION.format(name), f"{docstring}\n", re.M)
    return match["body"] if match else ""


@functools.cache
def stated(cls: type) -> dict[str, str]:
    """The descriptions in the docstrings of a class and its bases, each on one line."""
    result: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docstring = inspect.cleandoc(vars(base).get("__doc__") or "")
        if other := ELSEWHERE.search(docstring):
            module = inspect.getmodule(base)
            named = vars(module).get(other["path"].rpartition(".")[2])
            result |= stated(named) if isinstance(named, type) else {}
        for entry in ARGUMENT.finditer(section("Args", docstring)):
            text = qualified(" ".join(entry["text"].split()), base)
            result |= dict.fromkeys(entry["names"].split(", "), text)
    return result


def qualified(text: str, cls: type) -> str:
    """Text with the full paths of names of a class and its module, for pages of other modules."""

    def full(reference: re.Match[str]) -> str:
        kind, name = reference.groups()
        if hasattr(cls, name):
            return f":{kind}:`~{cls.__module__}.{cls.__qualname__}.{name}`"
        is_global = hasattr(inspect.getmodule(cls), name)
        return f":{kind}:`~{cls.__module__}.{name}`" if is_global else reference[0]

    return re.sub(r":(\w+):`(\w+)`", full, text)


def names(cls: type) -> list[str]:
    """The arguments of a class's constructor, in its order."""
    try:
        return [*inspect.signature(cls).parameters]
    except (TypeError, ValueError):  # of a class without a signature
        return []


def default(cls: type, name: str) -> str:
    """An argument's default as it is written; empty if it is required."""
    value = inspect.signature(cls).parameters[name].default
    return "" if value is inspect.Parameter.empty else shown(value)


def shown(value: object) -> str:
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return repr(value)


def allowed(name: str, build: Callable[..., Any]) -> str:
    """The values that an argument may have, in the words of the errors for others.

    Args:
      name: of the argument.
      build: the constructor with valid values of all other arguments.
    """
    clauses: list[str] = []
    choices = ""
    called = f"{name}|step size" if name.endswith("step_size") else name
    for value in (-FAR, FAR, -int(FAR), UNKNOWN):
        try:
            build(**{name: value})
        except (TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            listed = re.search(rf"unknown [\w ]+ '{UNKNOWN}'; known: ([^.;]+)", text)
            bound = re.search(rf"\b(?:{called}) must be (.+?), got ", text)
            if listed:
                choices = f"one of {listed[1]}"
            elif bound and value != UNKNOWN:
                clauses.append(bound[1].removeprefix("finite and "))
    clauses = [
        clause for clause in dict.fromkeys(clauses) if not (choices and clause == "a string")
    ]
    text = ", ".join(filter(None, (*clauses, choices)))
    return re.sub(r"an (?:instance of )?(?:fljax|optax)[\w.]*\.(\w+)", r"\1", text)


def searched(cls: type[Algorithm], name: str) -> str:
    """The range that :func:`fljax.tune` starts from; empty if it does not search the argument."""
    options: Mapping[str, tuple] = SEARCHED_OPTIONS.get(cls.label, {})
    required = not default(cls, name) and name in RANGES
    if name not in options and not required:
        return ""
    low, high, *linear = options.get(name) or RANGES[name]
    return f"{low:g} to {high:g}" + ("" if linear else ", logarithmic")


def complete(app: Sphinx, kind: str, path: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let the documentation of a class describe all of its arguments, also its bases' ones.

    An algorithm's arguments are in the table of its page instead.
    """
    if kind != "class" or not isinstance(value, type):
        return
    text = "\n".join(lines) + "\n"
    descriptions = stated(value)
    described = [name for name in names(value) if name in descriptions]
    in_table = value in REGISTRY.values()
    body = section("Args", text)
    in_docstring = {
        name for entry in ARGUMENT.finditer(body) for name in entry["names"].split(", ")
    }
    if not described or (not in_table and in_docstring >= {*described}):
        return
    text = REST.sub("", text)
    text = re.sub(SECTION.format("Args"), "", text, count=1, flags=re.M)
    if not in_table:
        entries = "".join(f"  {name}: {descriptions[name]}\n" for name in described)
        head, mark, rest = _split_before_sections(text)
        text = f"{head.rstrip()}\n\nArgs:\n{entries}\n{mark}{rest}"
    lines[:] = text.split("\n")


def _split_before_sections(text: str) -> tuple[str, str, str]:
    """A docstring before and after the place of its arguments."""
    match = re.search(r"^(Raises|Returns|Guarantees|Example|Reference|Attributes):\n", text, re.M)
    return (text, "", "") if match is None else (text[: match.start()], "", text[match.start() :])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", complete, priority=400)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
