"""``llms.txt`` and ``llms-full.txt``: the site in plain text, for programs that write programs.

The first is a list of pages in the form that llmstxt.org proposes, with links relative to it; the
second has every public name with its arguments, its first sentence and its tested example.
"""

import inspect
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modules
import settings
from algorithms import ordered
from pages import put
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

#: Pages that are not in the first list, by the beginning of their names: parts of the others.
PARTS = ("algorithms/", "atlas/", "gallery/", "reference/", "_modules/", "contents")

#: The introduction of both files.
HEAD = """\
# fljax {version}

> Federated, networked and private learning as one compiled array program, in JAX: clients, seeds
> and hyperparameters are array axes.

{rules}
"""


def short(value: Any) -> str:
    """A class or function with its parameters' names and defaults, without types."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<dataclasses\._MISSING_TYPE object[^>]*>", "...", text)
    return re.sub(r"<(?:class '|function )?(?:[\w.]*\.)?(\w+)'?[^>]*>", r"\1", text)


def example(value: Any) -> str:
    """The example of a docstring, which the tests run."""
    parts = re.split(r"^Example:\n", inspect.getdoc(value) or "", maxsplit=1, flags=re.M)
    if len(parts) < 2:
        return ""
    block = re.match(r"(?:(?: .*)?\n?)*", parts[1])
    return textwrap.dedent(block[0] if block else "").strip()


def rules(docs: Path) -> str:
    """The list of rules on the page for agents, with names in place of references."""
    text = (docs / "coding-agents.md").read_text(encoding="utf-8")
    listed = re.search(r"^- .*?(?=^## )", text, re.S | re.M)
    return re.sub(r"\{\w+\}`~?([^`<]+)`", r"`\1`", listed[0] if listed else "").strip()


def sections(app: Sphinx) -> Iterator[tuple[str, list[str]]]:
    """The headings of the first list and their entries."""
    titles = app.env.titles
    pages = [page for page in titles if not page.startswith(PARTS) and page != "index"]
    yield "Pages", [f"- [{titles[page].astext()}]({page}.html)" for page in sorted(pages)]
    topics = []
    for path, title in modules.MODULES.items():
        sentence = (inspect.getdoc(pkgutil.resolve_name(path)) or "").split("\n\n")[0]
        sentence = modules.plain(" ".join(sentence.split()))
        topics.append(f"- [{path}: {title}](reference/{path}.html): {sentence}")
    yield "Reference", topics
    yield (
        "Algorithms",
        [
            f"- [fl.algorithms.{cls.__name__} ({cls.label})](algorithms/{cls.__name__}.html): "
            f"{modules.summary('fljax.algorithms', cls.__name__)}"
            for cls in ordered()
        ],
    )
    collections = {"atlas/index": "Choose an algorithm", "gallery/index": "Gallery"}
    yield "Optional", [f"- [{title}]({page}.html)" for page, title in collections.items()]


def entries() -> Iterator[str]:
    """Every public name with its arguments, a sentence, and its example."""
    paths = [*modules.MODULES]
    for path in paths:  # the list grows in the loop
        paths += modules.subjects(path)
    for path in paths:
        module = pkgutil.resolve_name(path)
        yield f"## {path}"
        for name in modules.names(module):
            value = getattr(module, name)
            is_code = inspect.isclass(value) or callable(value)
            text = f"{path}.{name}{short(value) if is_code else ''}\n{modules.summary(path, name)}."
            code = example(value) if is_code else ""
            yield "\n".join(filter(None, (text, code)))
    yield "## fljax.algorithms: the algorithms"
    for cls in ordered():
        name = f"fljax.algorithms.{cls.__name__}"
        sentence = modules.summary("fljax.algorithms", cls.__name__)
        yield f"{name}{short(cls)}\n{cls.label}. {sentence}.\n{settings.setting(cls).strip()}"


def write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    head = HEAD.format(version=app.config.release, rules=rules(Path(app.srcdir)))
    listed = "\n\n".join(
        "\n".join((f"## {title}\n", *lines)) for title, lines in sections(app) if lines
    )
    folder = Path(app.outdir)
    put(folder / "llms.txt", f"{head}\n{listed}\n")
    full = "\n\n".join(entries())
    put(folder / "llms-full.txt", f"{head}\n{full}\n")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
