"""Helpers that write generated pages."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

#: Colors of a plot, at most.
COLORS = 128


def with_palette(png: bytes) -> bytes:
    """A plot as a PNG file with a palette, which takes a third of the bytes."""
    with Image.open(io.BytesIO(png)) as image:
        plot = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    saved = io.BytesIO()
    palette = plot.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    palette.save(saved, "PNG", optimize=True)
    return saved.getvalue()


def put(path: Path, text: str) -> None:
    """Write a page if its text changed, because Sphinx reads newer files again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def heading(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"


def index_entries(names: Iterable[str]) -> str:
    """Main entries of the index, which the search lists before all else."""
    return "\n".join([".. index::", *(f"   ! single: {name}" for name in names), ""])


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    """A table in reStructuredText, with the class that the style sheet and the script use."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :class: {kind}", ""]
    for row in [head, *rows]:
        for start, cell in zip(["   * -", *["     -"] * (len(row) - 1)], row, strict=True):
            lines.append(f"{start} {cell}".rstrip())
    return "\n".join(lines)


def hover(text: str, more: str) -> str:
    """A cell that shows more when it is pointed at."""
    return f":abbr:`{text} ({more})`"


def literal(text: str) -> str:
    """Text as code; empty if there is none."""
    return f"``{text}``" if text else ""
