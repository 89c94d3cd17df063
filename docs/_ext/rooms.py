"""The reference: every public name on the page of its room, in groups as its files are."""

import functools
import importlib
import inspect
import pkgutil
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from pages import heading, put
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.pycode import ModuleAnalyzer

#: The rooms in the order of a study, and what each holds.
ROOMS = {
    "fljax": "Simulations and studies",
    "fljax.problems": "Problems",
    "fljax.data": "Data",
    "fljax.streams": "Streams",
    "fljax.models": "Networks",
    "fljax.graphs": "Graphs",
    "fljax.federation": "Servers and their clients",
    "fljax.algorithms": "Algorithms, and what they are made of",
    "fljax.batches": "Batches",
    "fljax.optimizers": "Optimizers",
    "fljax.descent": "Gradient descent",
    "fljax.schedules": "Schedules",
    "fljax.participation": "Participation",
    "fljax.link": "The link",
    "fljax.aggregation": "Aggregation",
    "fljax.attacks": "Attacks",
    "fljax.privacy": "Privacy",
    "fljax.privacy.accounting": "Privacy accounting",
    "fljax.privacy.matrices": "Matrix mechanisms",
    "fljax.audit": "Audits",
    "fljax.metrics": "Metrics",
    "fljax.fairness": "Fairness",
    "fljax.monitoring": "Monitoring",
    "fljax.clustering": "Clustering",
    "fljax.statistics": "Statistics",
    "fljax.plotting": "Plots",
    "fljax.theory": "Theory",
}

#: What the page of base classes begins with.
SHARED = """
Arguments and methods that several classes have in common are documented here. These classes are
not meant to be used by themselves.

"""

#: Names on one page, at most; a larger room has a page a file.
PAGE = 45


def names(room: ModuleType) -> list[str]:
    """Its public names, without the rooms in it and what has a page of its own."""
    from fljax.algorithms import REGISTRY

    elsewhere = {cls.__name__ for cls in REGISTRY.values()}
    return [
        name
        for name in room.__all__
        if not isinstance(getattr(room, name), ModuleType)
        and not (room.__name__ == "fljax.algorithms" and name in elsewhere)
    ]


def groups(room: ModuleType) -> dict[str, list[str]]:
    """Names by the file that defines them, in the order of the files."""
    result: dict[str, list[str]] = {}
    for name in names(room):
        result.setdefault(getattr(getattr(room, name), "__module__", room.__name__), []).append(
            name
        )
    return dict(sorted(result.items()))


@functools.cache
def shared() -> list[type]:
    """Classes without a public name that public ones inherit arguments or methods from."""
    from fljax.algorithms import REGISTRY

    rooms = list(ROOMS)
    for room in rooms:  # which grows
        rooms += subjects(importlib.import_module(room))
    modules = map(importlib.import_module, rooms)
    public = [getattr(module, name) for module in modules for name in names(module)]
    public = [value for value in public if inspect.isclass(value)] + list(REGISTRY.values())
    bases = {base for cls in public for base in cls.__mro__[1:]} - set(public)
    result = (b for b in bases if b.__module__.startswith("fljax") and b.__name__[0] != "_")
    return sorted(result, key=lambda base: (base.__module__, base.__name__))


def documented(path: str, cls: type) -> str:
    """The directive for a class, with its bases where those are shared with others."""
    inherits = any(base in shared() for base in cls.__mro__[1:])
    return f".. autoclass:: {path}\n" + "   :show-inheritance:\n" * inherits


def directive(room: str, name: str, value: Any) -> str:
    if inspect.isclass(value):
        return documented(f"{room}.{name}", value)
    if callable(value):
        return f".. autofunction:: {room}.{name}\n"
    words = comments(room).get(name)
    if words is None:
        raise ExtensionError(
            f"{room}.{name} has no comment that begins with #: and says what it is."
        )
    return f".. py:data:: {name}\n\n" + textwrap.indent(words, "   ") + "\n"


@functools.cache
def comments(room: str) -> dict[str, str]:
    """What is said of constants in a room's files."""
    package = importlib.import_module(room)
    inside = [f"{room}.{m.name}" for m in pkgutil.iter_modules(getattr(package, "__path__", []))]
    result = {}
    for module in [*inside, room]:
        documented = ModuleAnalyzer.for_module(module).find_attr_docs()
        result |= {name: "\n".join(lines) for (cls, name), lines in documented.items() if not cls}
    return result


def first_line(name: str) -> str:
    """What a module is, as its docstring begins."""
    text = inspect.getdoc(importlib.import_module(name)) or name
    return text.split("\n\n")[0].replace("\n", " ").split(":")[0].rstrip(".")


def members(room: str, names: list[str]) -> str:
    return "\n".join(directive(room, n, getattr(importlib.import_module(room), n)) for n in names)


def subjects(room: ModuleType) -> list[str]:
    """Rooms inside of it that have no title of their own, such as those of the theory."""
    inside = (value for value in map(room.__dict__.get, room.__all__) if inspect.ismodule(value))
    return [m.__name__ for m in inside if m.__name__ not in ROOMS]


def contents(room: str, title: str) -> dict[str, str]:
    """A room's source pages: its own, and one a subject, or a file of a large room, below it."""
    package = importlib.import_module(room)
    called = "fl" if room == "fljax" else room.replace("fljax", "fl", 1)
    text = heading(f"{title}: ``{called}``") + f"\n.. py:module:: {room}\n\n"
    text += f"{inspect.getdoc(package) or ''}\n\n"
    below: dict[str, str] = {}
    for subject in subjects(package):
        below |= contents(subject, first_line(subject))
    parts = groups(package)
    if sum(map(len, parts.values())) > PAGE:
        for module in [module for module in parts if module != room]:
            words = f"\n.. py:currentmodule:: {room}\n\n{members(room, parts.pop(module))}"
            below[module] = heading(first_line(module)) + words
    if below:
        text += ".. toctree::\n   :maxdepth: 1\n\n"
        text += "\n".join(f"   {page}" for page in below) + "\n\n"
    for module, names in parts.items():
        text += heading(first_line(module), "-") + "\n" if len(parts) > 1 else ""
        text += members(room, names) + "\n"
    return below | {room: text}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for room, title in ROOMS.items():
        for page, text in contents(room, title).items():
            put(folder / f"{page}.rst", text)
    bases = (documented(f"{base.__module__}.{base.__name__}", base) for base in shared())
    put(folder / "bases.rst", heading("Base classes") + SHARED + "\n".join(bases))
    entries = "\n".join(f"   {room}" for room in (*ROOMS, "bases"))
    put(
        folder / "index.rst",
        f"{heading('Reference')}\nEvery public name, with ``import fljax as fl``.\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n{entries}\n",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
