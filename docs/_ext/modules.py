"""The reference: every public name on the page of its module, grouped by file."""

import functools
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

#: The modules with a page, in the order in which a study uses them, and their titles.
MODULES = {
    "fljax": "Simulations and studies",
    "fljax.problems": "Problems",
    "fljax.data": "Data",
    "fljax.partitions": "Partitions of data over clients",
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
    "fljax.contrib": "Contributed: exercises and single figures",
}

#: The introduction of the page of base classes.
SHARED = """
Arguments and methods that several classes have in common are documented here. These classes are
not meant to be used by themselves.

"""

#: Names on one page, at most; a larger module has a page for each file.
PAGE = 45


def names(module: ModuleType) -> list[str]:
    """A module's public names, without modules in it and classes that have their own page."""
    from fljax.algorithms import REGISTRY

    elsewhere = {cls.__name__ for cls in REGISTRY.values()}
    return [
        name
        for name in module.__all__
        if not isinstance(getattr(module, name), ModuleType)
        and not (module.__name__ == "fljax.algorithms" and name in elsewhere)
    ]


def groups(module: ModuleType) -> dict[str, list[str]]:
    """Names by the file that defines them, in the order of the files."""
    result: dict[str, list[str]] = {}
    for name in names(module):
        result.setdefault(getattr(getattr(module, name), "__module__", module.__name__), []).append(
            name
        )
    return dict(sorted(result.items()))


@functools.cache
def shared() -> list[type]:
    """Classes without a public name that public ones inherit arguments or methods from."""
    from fljax.algorithms import REGISTRY

    paths = list(MODULES)
    for path in paths:  # the list grows in the loop
        paths += subjects(path)
    modules = map(pkgutil.resolve_name, paths)
    public = [getattr(module, name) for module in modules for name in names(module)]
    public = [value for value in public if inspect.isclass(value)] + list(REGISTRY.values())
    bases = {base for cls in public for base in cls.__mro__[1:]} - set(public)
    result = (b for b in bases if b.__module__.startswith("fljax") and b.__name__[0] != "_")
    return sorted(result, key=lambda base: (base.__module__, base.__name__))


def documented(path: str, cls: type) -> str:
    """The directive for a class, with its bases where those are shared with others."""
    inherits = any(base in shared() for base in cls.__mro__[1:])
    return f".. autoclass:: {path}\n" + "   :show-inheritance:\n" * inherits


def directive(module: str, name: str, value: Any) -> str:
    if inspect.isclass(value):
        return documented(f"{module}.{name}", value)
    if callable(value):
        return f".. autofunction:: {module}.{name}\n"
    description = comments(module).get(name)
    if description is None:
        raise ExtensionError(
            f"{module}.{name} has no comment that begins with #: and says what it is."
        )
    return f".. py:data:: {name}\n\n" + textwrap.indent(description, "   ") + "\n"


@functools.cache
def comments(path: str) -> dict[str, str]:
    """The comments on constants in the files of a module."""
    package = pkgutil.resolve_name(path)
    name = package.__name__
    inside = [f"{name}.{m.name}" for m in pkgutil.iter_modules(getattr(package, "__path__", []))]
    result = {}
    for module in [*inside, name]:
        documented = ModuleAnalyzer.for_module(module).find_attr_docs()
        result |= {name: "\n".join(lines) for (cls, name), lines in documented.items() if not cls}
    return result


def first_line(name: str) -> str:
    """A module's subject, from the first line of its docstring."""
    text = inspect.getdoc(pkgutil.resolve_name(name)) or name
    return text.split("\n\n")[0].replace("\n", " ").split(":")[0].rstrip(".")


def members(module: str, names: list[str]) -> str:
    return "\n".join(directive(module, n, getattr(pkgutil.resolve_name(module), n)) for n in names)


def subjects(module: str) -> list[str]:
    """Public paths of a module's submodules without their own title, for example the theory's."""
    package = pkgutil.resolve_name(module)
    paths = [f"{module}.{n}" for n in package.__all__ if inspect.ismodule(getattr(package, n))]
    return [path for path in paths if path not in MODULES]


def contents(path: str, title: str) -> dict[str, str]:
    """A module's source pages: its own, and pages of its subjects or, if it is large, its files."""
    package = pkgutil.resolve_name(path)
    called = "fl" if path == "fljax" else path.replace("fljax", "fl", 1)
    text = heading(f"{title}: ``{called}``") + f"\n.. py:module:: {path}\n\n"
    text += f"{inspect.getdoc(package) or ''}\n\n"
    below: dict[str, str] = {}
    for subject in subjects(path):
        below |= contents(subject, first_line(subject))
    parts = groups(package)
    if sum(map(len, parts.values())) > PAGE:
        for module in [module for module in parts if module != package.__name__]:
            listing = f"\n.. py:currentmodule:: {path}\n\n{members(path, parts.pop(module))}"
            below[module] = heading(first_line(module)) + listing
    if below:
        text += ".. toctree::\n   :maxdepth: 1\n\n"
        text += "\n".join(f"   {page}" for page in below) + "\n\n"
    for module, names in parts.items():
        text += heading(first_line(module), "-") + "\n" if len(parts) > 1 else ""
        text += members(path, names) + "\n"
    return below | {path: text}


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    for path, title in MODULES.items():
        for page, text in contents(path, title).items():
            put(folder / f"{page}.rst", text)
    bases = (documented(f"{base.__module__}.{base.__name__}", base) for base in shared())
    put(folder / "bases.rst", heading("Base classes") + SHARED + "\n".join(bases))
    entries = "\n".join(f"   {path}" for path in (*MODULES, "bases"))
    put(
        folder / "index.rst",
        f"{heading('Reference')}\nEvery public name, with ``import fljax as fl``.\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n{entries}\n",
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
