"""The navigation tree in the sidebar of each page, closed but for the branch of the page.

It is resolved once; Sphinx resolves it again for every page, which was two thirds of a build's
time. With all branches open the tree was half of the bytes of the site. A list of a hundred pages
would hide all else in the sidebar; of a long list only the entry of the page is there.
"""

import re
from collections import Counter
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment.adapters.toctree import global_toctree_for_doc
from sphinx.util.osutil import relative_uri

#: The beginning or the end of a list, or the beginning of an entry with the page that it links to.
PART = re.compile(
    r'\n?<ul>|</ul>\n?|<li class="toctree-l(?P<level>\d+)">'
    r'<a class="reference internal" href="(?P<to>[^"]*)">'
)

#: Entries that a list may have to be shown.
LONGEST = 40


class Tree:
    """The tree with links relative to the root page, from which every other page's is written."""

    def __init__(self, html: str):
        self.between: list[str] = []  # the text before each part, and after the last
        self.parts: list[re.Match[str]] = []
        self.places: dict[str, set[int]] = {}  # by page: its parts, and the parts that contain them
        self.above: dict[int, int] = {}  # by list, its entry; by entry, its list
        self.lengths: Counter[int] = Counter()  # by list
        enclosing: list[int] = []  # alternating lists and entries, down to the current entry
        end = 0
        for number, part in enumerate(PART.finditer(html)):
            self.between.append(html[end : part.start()])
            self.parts.append(part)
            end = part.end()
            if "<ul>" in part[0]:
                if enclosing:
                    self.above[number] = enclosing[-1]
                enclosing = [*enclosing, number]
                continue
            enclosing = enclosing[: (len(enclosing) - 1) // 2 * 2 + 1]  # without a last entry
            if "</ul>" in part[0]:
                enclosing = enclosing[:-1]
            else:
                self.above[number] = enclosing[-1]
                self.lengths[enclosing[-1]] += 1
                enclosing = [*enclosing, number]
                self.places.setdefault(part["to"], set()).update(enclosing)
        self.between.append(html[end:])

    def seen_from(self, page: str) -> str:
        """The tree with links relative to a page, which is marked as its ancestors are; only lists
        below these are there.
        """
        ancestors = self.places.get(page, set())
        long = {number for number, length in self.lengths.items() if length > LONGEST}
        written = []
        closed = 0  # depth inside a list that is left out
        skipped = False  # inside an entry that is left out
        for number, (before, part) in enumerate(zip(self.between, self.parts, strict=False)):
            if not closed and not skipped:
                written.append(before)
            current = number in ancestors
            if "<ul>" in part[0]:
                is_open = current or self.above.get(number, -1) in {-1, *ancestors}
                if closed or not is_open or (number in long and not current):
                    closed += 1
                else:
                    marked = '<ul class="current">' if current else "<ul>"
                    written.append(part[0].replace("<ul>", marked))
            elif closed:
                closed -= "</ul>" in part[0]
            elif "</ul>" in part[0]:
                skipped = False
                written.append(part[0])
            elif skipped := self.above[number] in long and not current:
                pass
            else:
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
