"""Alternative texts of the plots that notebooks draw: the section, and the call that drew them."""

import re

from docutils import nodes
from sphinx.application import Sphinx

#: A call that draws.
DRAWS = re.compile(r"^.*(?:fl\.plotting\.\w+|\.draw|plt\.\w+)\(.*$", re.MULTILINE)


def describe(app: Sphinx, doctree: nodes.document) -> None:
    for cell in doctree.findall(lambda node: "cell" in _classes(node)):
        pictures = [image for image in cell.findall(nodes.image) if not image.get("alt")]
        code = next(cell.findall(nodes.literal_block), None)
        calls = DRAWS.findall(code.astext()) if code else []
        for number, image in enumerate(pictures):
            call = calls[number] if number < len(calls) else ""
            by = f", by {call.split('#')[0].strip().rstrip(';')}" if call else ""
            image["alt"] = f"Plot: {_title(cell)}{by}"


def _classes(node: nodes.Node) -> list[str]:
    return node.get("classes", []) if isinstance(node, nodes.Element) else []


def _title(node: nodes.Node) -> str:
    section = node.parent
    while not isinstance(section, nodes.section):
        section = section.parent
    return section[section.first_child_matching_class(nodes.title) or 0].astext()


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
