"""What generated pages are written with."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def put(path: Path, text: str) -> None:
    """Write a page if it changed: Sphinx reads again what is newer."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    """A table in reStructuredText, of a class that style and script know."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :class: {kind}", ""]
    for row in [head, *rows]:
        for start, cell in zip(["   * -", *["     -"] * (len(row) - 1)], row, strict=True):
            lines.append(f"{start} {cell}".rstrip())
    return "\n".join(lines)
