"""The import graph between the package's folders, counted and drawn.

``python docs/_ext/architecture.py [PACKAGE]`` prints the counts; the site's page on the
architecture shows the drawing.
"""

import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pages import put

if TYPE_CHECKING:  # its tests run where Sphinx is not installed
    from sphinx.application import Sphinx

#: Sizes of the drawing, in pixels.
BOX_WIDTH = 118
BOX_HEIGHT = 30
COLUMN_WIDTH = 138
ROW_HEIGHT = 74

#: The tip of an arrow, and how folders are written.
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#7a8699"/></marker></defs>'
)
FONT = 'font-family="sans-serif" font-size="13" text-anchor="middle"'


def modules(package: Path) -> dict[str, Path]:
    """Files of a package by the names of their modules."""
    result = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


def imported(path: Path, names: dict[str, Path], *, top_level: bool = False) -> Iterator[str]:
    """Modules of the package that a file imports, anywhere or by its top-level statements only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names or node.module in names:
                    yield inner if inner in names else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)


def folder_of(module: str) -> str:
    """The folder directly below the package, or the module itself if it is in none."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def arrows(package: Path) -> dict[str, set[str]]:
    """Which other folders each folder imports from, without the package's own two files."""
    names = modules(package)
    result: dict[str, set[str]] = {}
    for module, path in names.items():
        folder = folder_of(module)
        if folder not in ("", "__main__"):
            targets = {folder_of(other) for other in imported(path, names)} - {folder, ""}
            result.setdefault(folder, set()).update(targets)
    return result


def floors(graph: dict[str, set[str]]) -> list[list[str]]:
    """Folders from bottom to top: each stands above all that it imports from.

    Raises:
      ValueError: folders that import each other.
    """
    result: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(graph):
        floor = sorted(folder for folder in graph.keys() - placed if graph[folder] <= placed)
        if not floor:
            raise ValueError(
                f"folders import each other: {', '.join(sorted(graph.keys() - placed))}"
            )
        result.append(floor)
        placed.update(floor)
    return result


def direct(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that no path over other folders replaces."""
    reachable: dict[str, set[str]] = {}
    for floor in floors(graph):
        for folder in floor:
            below = graph[folder]
            reachable[folder] = below.union(*(reachable[other] for other in below))
    return [
        (folder, other)
        for folder, below in sorted(graph.items())
        for other in sorted(below)
        if not any(other in reachable[between] for between in below)
    ]


def _arrow(
    start: tuple[float, float], end: tuple[float, float], between: list[float], width: float
) -> str:
    """A path from box to box, around boxes with centers ``between`` on the floors in between."""
    x1, y1 = start
    x2, y2 = end
    y1 += BOX_HEIGHT / 2
    y2 -= BOX_HEIGHT / 2
    if not between:
        middle = (y1 + y2) / 2
        return f"M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"
    # Down into the gap below the first box, along a lane on the nearer side, and back in the
    # last gap, so that it crosses no box.
    gap = ROW_HEIGHT - BOX_HEIGHT
    side = -1 if x1 + x2 <= width else 1
    lane = side * (max(side * x for x in between) + BOX_WIDTH / 2 + 16)
    first = f"C{x1:.0f} {y1 + gap / 2:.0f} {lane:.0f} {y1 + gap / 2:.0f} {lane:.0f} {y1 + gap:.0f}"
    last = f"C{lane:.0f} {y2 - gap / 2:.0f} {x2:.0f} {y2 - gap / 2:.0f} {x2:.0f} {y2:.0f}"
    return f"M{x1:.0f} {y1:.0f}{first}V{y2 - gap:.0f}{last}"


def drawing(graph: dict[str, set[str]]) -> str:
    """An SVG picture, the lowest floor at the bottom."""
    levels = floors(graph)[::-1]
    width = COLUMN_WIDTH * (max(map(len, levels)) + 1)
    height = ROW_HEIGHT * len(levels)
    centers = {
        folder: (width * (column + 0.5) / len(level), ROW_HEIGHT * row + ROW_HEIGHT / 2)
        for row, level in enumerate(levels)
        for column, folder in enumerate(level)
    }
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        TIP,
    ]
    rows = {folder: row for row, level in enumerate(levels) for folder in level}
    for folder, other in direct(graph):
        between = [f for row in levels[rows[folder] + 1 : rows[other]] for f in row]
        path = _arrow(centers[folder], centers[other], [centers[f][0] for f in between], width)
        lines.append(f'<path d="{path}" fill="none" stroke="#7a8699" marker-end="url(#tip)"/>')
    for folder, (x, y) in centers.items():
        lines.append(
            f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y - BOX_HEIGHT / 2:.0f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" rx="5" fill="#e8f0fb" stroke="#2b5c9e"/>'
            f'<text x="{x:.0f}" y="{y + 4.5:.0f}" {FONT} fill="#16324f">'
            f"{escape(folder)}</text>"
        )
    return "\n".join([*lines, "</svg>\n"])


def counts(package: Path) -> dict[str, int]:
    """Folders, floors, arrows, loose modules at the root, and imports against the order."""
    graph = arrows(package)
    order = [folder for floor in floors(graph) for folder in floor]
    upward = [
        (folder, other)
        for folder, below in graph.items()
        for other in below
        if order.index(other) >= order.index(folder)
    ]
    files = {path.name for path in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    return {
        "folders": len(graph),
        "floors": len(floors(graph)),
        "arrows between folders": sum(map(len, graph.values())),
        "loose modules": len(files),
        "upward imports": len(upward),
    }


def write(app: "Sphinx") -> None:
    source = Path(app.srcdir)
    put(source / "_static" / "architecture.svg", drawing(arrows(source.parent / "fljax")))


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    root = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2] / "fljax"
    for name, count in counts(root).items():
        print(f"{name}: {count}")
