"""The programs of README and of the site's guides and tutorials, as a reader finds them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ["README", "docs/start", "docs/theory", "docs/faq", "docs/coding-agents"] + [
    f"docs/{kind}/{page.stem}"
    for kind in ("guides", "tutorials")
    for page in ROOT.glob(f"docs/{kind}/*.md")
]


class Program(NamedTuple):
    """A block of Python below a heading."""

    heading: str
    code: str


def text(page: str) -> str:
    return (ROOT / f"{page}.md").read_text(encoding="utf-8")


def programs(page: str) -> list[Program]:
    """The programs of a page in order: cells that the site runs, and code that is only shown."""
    source = text(page)
    blocks = re.finditer(r"^```(?:\{code-cell\} ipython3|python)\n(.+?)^```", source, re.S | re.M)
    return [
        Program(re.findall(r"^#+ ([^\n]+)", source[: block.start()], re.M)[-1], block[1])
        for block in blocks
    ]


def program(page: str, heading: str = "") -> str:
    """All of a page below a heading, as one program."""
    parts = [p.code for p in programs(page) if heading in ("", p.heading)]
    assert parts, f"{page} has no program below {heading!r}"
    return "\n".join(parts)
