"""Cross-references of docstrings: by any path that Python finds, to where the name is public.

A docstring names things as its module sees them, :class:`~fljax.problems.problem.Problem` for
instance; the reference has them under their public names. What Python does not find is a broken
reference, and fails the build.
"""

import functools
import importlib.util
import pkgutil
import re
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

#: The beginning of a block of source, with viewcode's link to its documentation.
BACK = re.compile(
    r'(?P<before><div class="viewcode-block" id="(?P<name>[^"]+)">\n'
    r'<a class="viewcode-back" href="(?:\.\./)*(?P<page>[^"#]+)\.html)#[^"]*"'
)

#: Marks that change nothing: names, operators, punctuation and blanks of highlighted source have
#: the color of text; a docstring of several lines needs one mark, and literals none for each word.
PLAIN = re.compile(r'<span class="[nopw]">([^<]*)</span>')
LINE = re.compile(r'</span>\n<span class="sd">')
WORD = re.compile(r'<span class="pre">([^<]*)</span>')


def lookup(path: str) -> tuple[Any, Any] | None:
    """The object at a dotted path and its owner, or ``None``."""
    try:
        owner = None
        value = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        head, _, last = path.rpartition(".")
        try:
            owner = pkgutil.resolve_name(head) if head else None
        except (ImportError, AttributeError, ValueError):
            return None
        # A field without a default is not an attribute of its class.
        if last not in getattr(owner, "__annotations__", {}):
            return None
        value = None
    return owner, value


@functools.cache
def objects(env: BuildEnvironment) -> dict[int, str]:
    """Documented names by the identity of their object."""
    names: dict[int, str] = {}
    for name in env.domaindata["py"]["objects"]:
        _, value = lookup(name) or (None, None)
        if value is not None and not isinstance(value, str | int | float | tuple):
            names.setdefault(id(value), name)
    return names


def elsewhere(target: str) -> bool:
    """Whether a target names a shape in a signature, or an object of another library."""
    head, *rest = target.split(".")
    return target.startswith("'") or (bool(rest) and head not in ("self",) and _installed(head))


def _installed(name: str) -> bool:
    return name.isidentifier() and importlib.util.find_spec(name) is not None


def places(node: pending_xref) -> list[str]:
    """Where a name may be looked up: as the docstring's class and module see it, and its bases'."""
    module = node.get("py:module")
    cls = node.get("py:class")
    result = [f"{module}.{cls}"] if module and cls else []
    written = re.search(
        r"docstring of ([\w.]+)", str(node.source or getattr(node.parent, "source", ""))
    )
    owner = lookup(written[1]) if written else None
    for pair in (lookup(result[0]) if result else None, owner):
        value = next((v for v in reversed(pair or ()) if hasattr(v, "__module__")), None)
        if value is not None:
            result += [base.__module__ for base in getattr(value, "__mro__", (value, object))[:-1]]
    return [*result, *([module] if module else []), "fljax", ""]


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node
) -> nodes.Node | None:
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    if not target.startswith("fljax") and elsewhere(target):
        return content
    for start in places(node):
        path = f"{start}.{target}" if start else target
        result = lookup(path)
        if result is None:
            continue
        name = objects(env).get(id(result[1])) if result[1] is not None else None
        if name is None and path in env.domaindata["py"]["objects"]:
            name = path
        if name is None:  # it exists but has no page: plain text
            return content
        entry = env.domaindata["py"]["objects"][name]
        return make_refnode(
            app.builder, node["refdoc"], entry.docname, entry.node_id, content, name
        )
    return None


def back(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.Node | None
) -> None:
    """Correct links from a source to its documentation, on the page that shows it.

    A file's names may be on two pages, and viewcode links all of them to the first page. Marks
    that change nothing are left out: they were half of such a page.
    """
    if "body" in context:
        context["body"] = PLAIN.sub(r"\1", WORD.sub(r"\1", context["body"]))
    if not pagename.startswith("_modules/"):
        return
    python_objects = app.env.domaindata["py"]["objects"].items()

    def anchored(link: re.Match[str]) -> str:
        before = link["before"]
        page = link["page"]
        name = link["name"]
        links = [
            (len(path), entry.node_id)
            for path, entry in python_objects
            if entry.docname == page and path.endswith(f".{name}")
        ]
        return f'{before}#{min(links)[1]}"' if links else link[0]

    body = BACK.sub(anchored, context["body"])
    context["body"] = LINE.sub("\n", body)


def skip(app: Sphinx, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Skip named tuples' fields, which are under ``Attributes``; and properties whose docstring
    is their type's.
    """
    wordless = isinstance(value, property) and value.__doc__ is None
    return True if wordless or type(value).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skip)
    app.connect("html-page-context", back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
