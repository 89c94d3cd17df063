"""The navigation tree in the sidebar of each page, resolved once.

Sphinx resolves it again for every page, which was two thirds of a build's time.
"""

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.util.osutil import relative_uri

#: The beginning of a list, or of an entry with the page that it links to.
PART = re.compile(
    r'<ul>|<li class="toctree-l(?P<level>\d+)">'
    r'<a class="reference internal" href="(?P<to>[^"]*)">'
)


class Tree:
    """The tree with links relative to the root page, from which every other page's is written."""

    def __init__(self, html: str):
        self.between: list[str] = []  # the text before each part, and after the last
        self.parts: list[re.Match[str]] = []
        self.places: dict[str, set[int]] = {}  # by page: its parts, and the parts that contain them
        enclosing: list[int] = []  # alternating lists and entries, down to the current entry
        first = None
        end = 0
        for number, part in enumerate(PART.finditer(html)):
            self.between.append(html[end : part.start()])
            self.parts.append(part)
            end = part.end()
            if part["to"] is None:
                first = number
                continue
            above = 2 * int(part["level"]) - 2
            container = enclosing[above : above + 1] if first is None else [first]
            enclosing = [*enclosing[:above], *container, number]
            first = None
            self.places.setdefault(part["to"], set()).update(enclosing)
        self.between.append(html[end:])

    def seen_from(self, page: str) -> str:
        """The tree with links relative to a page; the page and its ancestors are marked."""
        ancestors = self.places.get(page, set())
        written = []
        for number, (before, part) in enumerate(zip(self.between, self.parts, strict=False)):
            written.append(before)
            current = number in ancestors
            if part["to"] is None:
                written.append('<ul class="current">' if current else "<ul>")
                continue
            is_current = part["to"] == page
            to = "#" if is_current else relative_uri(page, part["to"])
            written.append(
                f'<li class="toctree-l{part["level"]}{" current" if current else ""}">'
                f'<a class="{"current " if is_current else ""}reference internal" href="{to}">'
            )
        return "".join([*written, self.between[-1]])


class Trees:
    """Navigation trees by the options with which pages request them."""

    def __init__(self) -> None:
        self.trees: dict[tuple, Tree] = {}

    def give(
        self, app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any
    ) -> None:
        builder = app.builder
        if not isinstance(builder, StandaloneHTMLBuilder) or "toctree" not in context:
            return
        original = context["toctree"]

        def toctree(**options: Any) -> str:
            if options.get("collapse", True):  # closed branches depend on the page
                return original(**options)
            key = tuple(sorted(options.items()))
            if key not in self.trees:
                root = app.config.root_doc
                tree = global_toctree_for_doc(app.env, root, builder, tags=app.tags, **options)
                self.trees[key] = Tree(builder.render_partial(tree)["fragment"])
            return self.trees[key].seen_from(builder.get_target_uri(name))

        context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", Trees().give, priority=400)  # before the theme reads it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
