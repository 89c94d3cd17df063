"""The tree of all pages beside each page, resolved once.

Sphinx resolves it anew for every page, which was two thirds of a build's time.
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
    """The tree as the root page sees it, from which that of any other is written."""

    def __init__(self, html: str):
        self.between: list[str] = []  # what stands before each part, and after the last
        self.parts: list[re.Match[str]] = []
        self.places: dict[str, set[int]] = {}  # of a page: its parts, and all around them
        around: list[int] = []  # lists and entries by turns, down to the present entry
        first, end = None, 0
        for number, part in enumerate(PART.finditer(html)):
            self.between.append(html[end : part.start()])
            self.parts.append(part)
            end = part.end()
            if part["to"] is None:
                first = number
                continue
            above = 2 * int(part["level"]) - 2
            mine = around[above : above + 1] if first is None else [first]
            around, first = [*around[:above], *mine, number], None
            self.places.setdefault(part["to"], set()).update(around)
        self.between.append(html[end:])

    def seen_from(self, page: str) -> str:
        """The tree with links relative to a page, which is marked, as is all that it is in."""
        here, written = self.places.get(page, set()), []
        for number, (before, part) in enumerate(zip(self.between, self.parts, strict=False)):
            written.append(before)
            current = number in here
            if part["to"] is None:
                written.append('<ul class="current">' if current else "<ul>")
                continue
            own = part["to"] == page
            to = "#" if own else relative_uri(page, part["to"])
            written.append(
                f'<li class="toctree-l{part["level"]}{" current" if current else ""}">'
                f'<a class="{"current " if own else ""}reference internal" href="{to}">'
            )
        return "".join([*written, self.between[-1]])


class Trees:
    """What pages ask for, by the options they ask with."""

    def __init__(self) -> None:
        self.known: dict[tuple, Tree] = {}

    def give(
        self, app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any
    ) -> None:
        builder = app.builder
        if not isinstance(builder, StandaloneHTMLBuilder) or "toctree" not in context:
            return
        whole = context["toctree"]

        def toctree(**options: Any) -> str:
            if options.get("collapse", True):  # what is closed depends on the page
                return whole(**options)
            asked = tuple(sorted(options.items()))
            if asked not in self.known:
                root = app.config.root_doc
                tree = global_toctree_for_doc(app.env, root, builder, tags=app.tags, **options)
                self.known[asked] = Tree(builder.render_partial(tree)["fragment"])
            return self.known[asked].seen_from(builder.get_target_uri(name))

        context["toctree"] = toctree


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("html-page-context", Trees().give, priority=400)  # before the theme reads it
    return {"parallel_read_safe": True, "parallel_write_safe": True}
