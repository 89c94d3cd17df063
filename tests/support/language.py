"""How much of a Python tree is written in words that its field does not use.

A thermometer: a text with a low figure may still be unclear, and a listed word may be right in its
place. ``python -m tests.support.language [FOLDER ...]`` prints the figures and the worst files.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Names that do not tell what a value is.
VAGUE_NAMES = frozenset(
    re.findall(
        r"\w+",
        "said heard told asked known kept own given who here there mine slope pull law around "
        "place room whole turn turns alike apart beside one ones words met seen held made found "
        "some both each others owed fresh bare going lied like tell busy along ahead "
        "way reached shown spoken",
    )
)

#: Phrases that make a reader stop.
IDIOMS = re.compile(
    r"\bwhat (is|are|it|they|has|have|was|were|a|an|the|each|does|do|all|no)\b(?![^.]*\?)"
    r"|\bthose (that|who|of)\b|\bof which\b|\bnobody\b|\bis no\b|\bare no\b|\bwhatever\b"
    r"|\bso many\b|\blikewise\b|\bat once\b|\bbeside\b|\balike\b|\banew\b"
    r"|\bwho (is|are|has|have|does|do|takes?|says?|sends?|learns?)\b|\bin the place of\b"
    r"|\bby (itself|themselves)\b|\bof (one|his|her) own\b|(?:^|[.;:] )Of [a-z]+\b|\bis told\b"
    r"|\bsays? (what|which|so|how)\b|\bthat there (is|are)\b",
    re.MULTILINE,
)


class Counts(NamedTuple):
    """Counts of one file, or summed over several."""

    local_names: int
    vague_names: int
    words: int
    idioms: int
    assignments: int
    parallel_assignments: int

    @property
    def figures(self) -> tuple[float, float, float]:
        """Vague names in percent, idioms per 1,000 words, parallel assignments in percent."""
        return (
            100 * self.vague_names / max(self.local_names, 1),
            1000 * self.idioms / max(self.words, 1),
            100 * self.parallel_assignments / max(self.assignments, 1),
        )


def prose(source: str, tree: ast.AST) -> Iterator[str]:
    """Docstrings and comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)) is not None:
            yield text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        directive = token.string.startswith(("#!", "# noqa", "# pyright", "# type"))
        if token.type == tokenize.COMMENT and not directive:
            yield token.string.lstrip("#: ")


def local_names(tree: ast.AST) -> Iterator[str]:
    """Local variables and parameters, once a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = node.args
            names = {
                argument.arg
                for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            }
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    names.add(inner.id)
            yield from names - {"self", "cls"}


def measured(path: Path) -> Counts:
    """The counts of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    names = list(local_names(tree))
    text = "\n".join(prose(source, tree))
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    parallel = [
        node
        for node in assignments
        if isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and len(node.value.elts) > 1
    ]
    return Counts(
        len(names),
        sum(name.strip("_") in VAGUE_NAMES for name in names),
        len(text.split()),
        len(IDIOMS.findall(text)),
        len(assignments),
        len(parallel),
    )


def files(folder: Path) -> dict[Path, Counts]:
    """The counts of each Python file of a folder."""
    return {path: measured(path) for path in sorted(folder.rglob("*.py"))}


def total(counts: dict[Path, Counts]) -> Counts:
    """The sums over files."""
    return Counts(*map(sum, zip(*counts.values(), strict=True)))


def main() -> None:
    for argument in sys.argv[1:] or ["fljax", "experiments", "tests", "docs/_ext"]:
        counts = files(Path(argument))
        rows = sorted(counts.items(), key=lambda row: -row[1].vague_names - row[1].idioms)
        for label, row in [(argument, total(counts)), *((f"  {p}", c) for p, c in rows[:20])]:
            names, idioms, parallel = row.figures
            print(
                f"{label}: names {names:.1f} %, idioms {idioms:.1f} per 1,000 words, "
                f"parallel {parallel:.1f} %"
            )


if __name__ == "__main__":
    main()
