"""The contribution pages as a reader follows them: files, changes of files, and commands."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "contributing"

#: A fenced block: its language and its text.
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: The first line of a block that is a whole file, or changes of a file.
TITLE = re.compile(r"(?:#|%|//) (new file|change): (\S+)\n")


class Change(NamedTuple):
    """A place in a file: the lines before, and the lines that replace them."""

    path: str
    before: str
    after: str


class Page(NamedTuple):
    """What a page tells its reader to do."""

    new_files: dict[str, str]
    changes: list[Change]
    commands: str

    @property
    def touched(self) -> set[str]:
        """The files that a reader writes or changes by hand."""
        return {*self.new_files, *(change.path for change in self.changes)}


def parsed(text: str) -> Page:
    """The page as instructions.

    A block that begins with ``# new file: PATH`` is that file. A ``diff`` block that begins with
    ``# change: PATH`` changes a file: lines with ``+`` are added, lines with ``-`` removed, and
    the others, which begin with a space, show the place; ``@@`` separates places. ``sh`` blocks
    are commands.
    """
    new_files = {}
    changes = []
    commands = []
    for language, block in BLOCK.findall(text):
        if language == "sh":
            commands.append(block)
        elif title := TITLE.match(block):
            kind, path = title.groups()
            content = block[title.end() :]
            if kind == "new file":
                new_files[path] = content
            else:
                changes += [
                    Change(path, _side(part, "- "), _side(part, "+ "))
                    for part in re.split(r"^@@.*\n", content, flags=re.MULTILINE)
                    if part.strip()
                ]
    return Page(new_files, changes, "".join(commands))


def _side(part: str, signs: str) -> str:
    """The lines with one of these signs, without it; an empty line needs none."""
    lines = [line or " " for line in part.splitlines()]
    unknown = [line for line in lines if line[0] not in "+- "]
    assert not unknown, f"lines of a change begin with '+', '-' or a space, unlike {unknown[0]!r}"
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in signs)


def changed(text: str, change: Change) -> str:
    """A file's text with a change made.

    Raises:
      AssertionError: its place is not in the file, or is there more than once.
    """
    # A lookahead, since one place may end with the newline before the next.
    count = len(re.findall(f"(?={re.escape(chr(10) + change.before)})", f"\n{text}"))
    assert count == 1, f"{change.path} has this place {count} times:\n{change.before}"
    return f"\n{text}".replace(f"\n{change.before}", f"\n{change.after}")[1:]


def written(page: Page, root: Path) -> dict[str, str]:
    """The page's new files and changed files of a tree, by path; nothing is written."""
    result = dict(page.new_files)
    for change in page.changes:
        text = result.get(change.path) or (root / change.path).read_text(encoding="utf-8")
        result[change.path] = changed(text, change)
    return result
