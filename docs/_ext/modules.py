"""The reference: a page for each topic, which begins with a table of its public names."""

import functools
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from headings import HEADINGS
from pages import heading, put, table
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
    "fljax.algorithms": "Parts of algorithms",
    "fljax.batches": "Batches",
    "fljax.optimizers": "Optimizers",
    "fljax.descent": "Gradient descent",
    "fljax.schedules": "Schedules",
    "fljax.participation": "Participation",
    "fljax.clock": "Clock",
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
    "fljax.track": "Trackers",
    "fljax.executors": "Executors",
    "fljax.study_files": "Studies as files",
    "fljax.theory": "Theory",
    "fljax.contrib": "Contributed: exercises and single figures",
}

#: The sections of the first page; a public name that is in none of them fails the build.
SECTIONS = {
    "Simulate, sweep, compare and tune": ("Simulation", "run", "sweep", "compare", "tune"),
    "Plan, store and load studies": ("plan", "Plan", "save", "load", "merge", "Interrupted"),
    "Results of tuning and comparisons": (
        *("best", "table", "report", "Tuned", "Comparison", "PrivateTuning"),
    ),
    "Inspect a run": ("view", "decisions", "citation"),
    "Write parts of your own": ("module", "field", "static", "random_key"),
    "Errors and warnings": (
        *("AssumptionWarning", "DivergenceWarning", "MetricWarning", "DamageWarning"),
        *("OtherStudyError", "StoreError", "WorkerError"),
    ),
}

#: The heading of a module's constants and types.
CONSTANTS = "Constants and types"

#: The introduction of the page for authors of algorithms.
SHARED = """
Base classes from which an algorithm of your own may inherit its parameters and the parts of its
step. Their parameters are described on the pages of all algorithms that have them.

"""

#: Characters of a heading, at most.
WIDEST = 50

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
    """Names by heading, in the order of the files that define them."""
    if module.__name__ == "fljax":
        listed = [name for section in SECTIONS.values() for name in section]
        if lacking := {*names(module)} ^ {*listed}:
            raise ExtensionError(f"SECTIONS and fljax.__all__ differ: {sorted(lacking)}.")
        return {title: list(section) for title, section in SECTIONS.items()}
    files: dict[str, list[str]] = {}
    for name in names(module):
        file = getattr(getattr(module, name), "__module__", module.__name__)
        files.setdefault(file if file.startswith("fljax") else module.__name__, []).append(name)
    constants = files.pop(module.__name__, []) if hasattr(module, "__path__") else []
    result: dict[str, list[str]] = {}
    for file, members in sorted(files.items()):
        result.setdefault(title_of(file), []).extend(members)
    return result | ({CONSTANTS: constants} if constants else {})


@functools.cache
def public() -> set[type]:
    """All classes with a page or an entry of their own."""
    from fljax.algorithms import REGISTRY

    paths = list(MODULES)
    for path in paths:  # the list grows in the loop
        paths += subjects(path)
    modules = map(pkgutil.resolve_name, paths)
    values = [getattr(module, name) for module in modules for name in names(module)]
    return {value for value in values if inspect.isclass(value)} | {*REGISTRY.values()}


@functools.cache
def shared() -> list[type]:
    """Classes without a public name that public ones inherit arguments or methods from."""
    bases = {base for cls in public() for base in cls.__mro__[1:]} - public()
    result = (b for b in bases if b.__module__.startswith("fljax") and b.__name__[0] != "_")
    return sorted(result, key=lambda base: (base.__module__, base.__name__))


def for_authors() -> list[type]:
    """The shared classes that algorithms inherit from."""
    from fljax.algorithms import Algorithm

    return [base for base in shared() if issubclass(base, Algorithm)]


def documented(path: str, cls: type) -> str:
    """The directive for a class.

    Its bases are shown where they are public, and methods of bases that are not are documented as
    its own.
    """
    lines = [f".. autoclass:: {path}"]
    if any(base in public() for base in cls.__bases__):
        lines.append("   :show-inheritance:")
    hidden = [base for base in cls.__mro__[1:] if base in shared() and base not in for_authors()]
    if hidden:
        stops = [base.__name__ for base in cls.__mro__[1:] if base not in hidden]
        lines.append(f"   :inherited-members: {', '.join(stops)}")
    return "\n".join(lines) + "\n"


def directive(module: str, name: str, value: Any) -> str:
    if inspect.isclass(value):
        return documented(f"{module}.{name}", value)
    if callable(value):
        return f".. autofunction:: {module}.{name}\n"
    return f".. py:data:: {name}\n\n" + textwrap.indent(comment(module, name), "   ") + "\n"


def comment(module: str, name: str) -> str:
    """The description of a constant."""
    description = comments(module).get(name)
    if description is None:
        raise ExtensionError(
            f"{module}.{name} has no comment that begins with #: and says what it is."
        )
    return description


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


def title_of(name: str) -> str:
    """The heading of a module's file: from the table, or the beginning of its docstring."""
    text = inspect.getdoc(pkgutil.resolve_name(name)) or name
    beginning = text.split("\n\n")[0].replace("\n", " ").split(":")[0].rstrip(".")
    title = HEADINGS.get(name.removeprefix("fljax."), beginning)
    if len(title) > WIDEST:
        raise ExtensionError(
            f"the docstring of {name} begins with more than {WIDEST} characters, which are no "
            "heading of the reference; begin it with a title and a colon, or add one to "
            "docs/_ext/headings.py."
        )
    return title


def plain(text: str) -> str:
    """Text without references, which resolve only where they are written."""
    return re.sub(r":\w+:`(?:~[\w.]*?)?([\w.]+)`(?!`)", r"``\1``", text)


def summary(module: str, name: str) -> str:
    """The first sentence of a name's description."""
    value = getattr(pkgutil.resolve_name(module), name)
    is_documented = inspect.isclass(value) or callable(value)
    text = (inspect.getdoc(value) or "") if is_documented else comment(module, name)
    text = " ".join(text.split("\n\n")[0].split())
    math = re.sub(r":math:`[^`]*`", lambda formula: "x" * len(formula[0]), text)
    end = re.search(r"[.:](?= [A-Z`]|$)", math)
    return plain(text[: end.start()] if end else text)


def reference(path: str, name: str) -> str:
    """A link to a name's description."""
    value = getattr(pkgutil.resolve_name(path), name)
    kind = "class" if inspect.isclass(value) else "func" if callable(value) else "data"
    return f":{kind}:`{name} <{path}.{name}>`"


def overview(path: str, parts: dict[str, list[str]]) -> str:
    """The table of a page's names, with their groups where there are several."""
    several = len(parts) > 1
    rows = [
        [reference(path, name), summary(path, name), *([title] if several else [])]
        for title, members in parts.items()
        for name in members
    ]
    head = ["name", "what it is", *(["topic"] if several else [])]
    return f"{table(head, rows, 'overview')}\n\n" if rows else ""


#: Parts of a package's docstring that guide through its files.
GUIDES = (
    r"\s*\(:(?:mod|data):`~?fljax[^)]*\)",
    r"; read\s+:mod:`[^`]*` first",
    r"Read\s+:mod:`[^`]*`(?: first[^.]*)?\.",
)


def introduction(package: ModuleType) -> str:
    """A module's docstring, without the sentences that guide through its files."""
    text = inspect.getdoc(package) or ""
    for guide in GUIDES:
        text = re.sub(guide, "", text)
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if "fljax._core" in paragraph:
            sentences = re.split(r"(?<=\.)\s+(?=[A-Z:`*])", paragraph)
            paragraph = " ".join(s for s in sentences if "fljax._core" not in s)
        if ":mod:`~" not in paragraph:
            paragraphs.append(paragraph.strip())
    return "\n\n".join(paragraphs) + "\n\n"


def members(module: str, names: list[str]) -> str:
    return "\n".join(directive(module, n, getattr(pkgutil.resolve_name(module), n)) for n in names)


def subjects(module: str) -> list[str]:
    """Public paths of a module's submodules without their own title, for example the theory's."""
    package = pkgutil.resolve_name(module)
    paths = [f"{module}.{n}" for n in package.__all__ if inspect.ismodule(getattr(package, n))]
    return [path for path in paths if path not in MODULES]


def contents(path: str, title: str) -> dict[str, str]:
    """The source pages of a module: one, and those for its subjects or, if large, its topics."""
    package = pkgutil.resolve_name(path)
    called = "fl" if path == "fljax" else path.replace("fljax", "fl", 1)
    text = heading(f"{title}: ``{called}``") + f"\n.. py:module:: {path}\n\n"
    text += introduction(package)
    below: dict[str, str] = {}
    for subject in subjects(path):
        below |= contents(subject, title_of(pkgutil.resolve_name(subject).__name__))
    parts = groups(package)
    text += overview(path, parts)
    if path != "fljax" and sum(map(len, parts.values())) > PAGE:
        for topic in [topic for topic in parts if topic != CONSTANTS]:
            names = parts.pop(topic)
            page = f"{path}.{page_name(path, names)}"
            below[page] = (
                f"{heading(topic)}\n.. py:currentmodule:: {path}\n\n"
                f"{overview(path, {topic: names})}{members(path, names)}"
            )
    if below:
        text += ".. toctree::\n   :maxdepth: 1\n\n"
        text += "\n".join(f"   {page}" for page in below) + "\n\n"
    for topic, names in parts.items():
        text += heading(topic, "-") + "\n" if len(parts) > 1 or below else ""
        text += members(path, names) + "\n"
    return below | {path: text}


def page_name(path: str, names: list[str]) -> str:
    """The name of a topic's page: that of the file that defines its names."""
    return getattr(pkgutil.resolve_name(path), names[0]).__module__.rpartition(".")[2]


def start() -> str:
    """The first page: what every study begins with, then all topics."""
    first = next(iter(SECTIONS.values()))
    rows = [[reference("fljax", name), summary("fljax", name)] for name in first]
    topics = []
    for path, title in MODULES.items():
        sentence = (inspect.getdoc(pkgutil.resolve_name(path)) or "").split("\n\n")[0]
        sentence = plain(" ".join(sentence.split())).rstrip(".")
        topics.append(
            [f":doc:`{title} <{path}>`", f"``{path.replace('fljax', 'fl', 1)}``", sentence]
        )
    topics.append([":doc:`Base classes for algorithms <bases>`", "", "for authors of algorithms"])
    topics.append([":doc:`Algorithms </algorithms/index>`", "``fl.algorithms``", "a page for each"])
    entries = "\n".join(f"   {path}" for path in (*MODULES, "bases"))
    return (
        f"{heading('Reference')}\nEvery public name, with ``import fljax as fl``. "
        "Most studies need these:\n\n"
        f"{table(['name', 'what it is'], rows, 'overview')}\n\n"
        f"{table(['topic', 'module', 'what it has'], topics, 'overview')}\n\n"
        f".. toctree::\n   :hidden:\n   :maxdepth: 1\n\n{entries}\n"
    )


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference"
    folder.mkdir(exist_ok=True)
    pages = {"index": start()}
    for path, title in MODULES.items():
        pages |= contents(path, title)
    bases = (f".. autoclass:: {base.__module__}.{base.__name__}\n" for base in for_authors())
    pages["bases"] = heading("Base classes for algorithms") + SHARED + "\n".join(bases)
    for page, text in pages.items():
        put(folder / f"{page}.rst", text)
    for path in folder.glob("*.rst"):  # pages of earlier names
        if path.stem not in pages:
            path.unlink()


def public_bases(app: Sphinx, name: str, value: type, options: Any, bases: list[type]) -> None:
    """Show no base class that users cannot import."""
    bases[:] = [base for base in bases if base in public()]


def readable(
    app: Sphinx, kind: str, name: str, value: Any, options: Any, signature: str | None, result: Any
) -> tuple[str | None, Any] | None:
    """Write defaults that are classes, functions or missing by their names; a protocol, which is
    not constructed, has no signature.
    """
    if getattr(value, "_is_protocol", False):
        return "", None
    if signature is None:
        return None
    text = re.sub(r"<dataclasses\._MISSING_TYPE object>", "...", signature)
    text = re.sub(r"<(?:class '|function )(?:[\w.]*\.)?(\w+)'?(?: at 0x\w+)?>", r"\1", text)
    return text, result


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    app.connect("autodoc-process-bases", public_bases)
    app.connect("autodoc-process-signature", readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
