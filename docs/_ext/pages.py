"""Helpers that write generated pages."""

from collections.abc import Iterable, Sequence
from pathlib import Path


def put(path: Path, text: str) -> None:
    """Write a page if its text changed, because Sphinx reads newer files again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    """A table in reStructuredText, with the class that the style sheet and the script use."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :class: {kind}", ""]
    for row in [head, *rows]:
        for start, cell in zip(["   * -", *["     -"] * (len(row) - 1)], row, strict=True):
            lines.append(f"{start} {cell}".rstrip())
    return "\n".join(lines)
