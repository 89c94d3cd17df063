"""The words of the sources: the figures of :mod:`tests.support.language` stay low."""

from pathlib import Path

import pytest

from tests.support.language import files, measured, total

ROOT = Path(__file__).parents[1]

#: Vague names in percent, idioms per 1,000 words, parallel assignments in percent, at most. A word
#: of the lists that is right in its place stays, and is counted.
LIMITS = (1.0, 1.0, 1.0)


@pytest.mark.parametrize("folder", ["fljax", "experiments", "tests", "docs/_ext"])
def test_the_tree_has_few_vague_names_and_idioms(folder):
    figures = total(files(ROOT / folder)).figures
    assert all(figure <= limit for figure, limit in zip(figures, LIMITS, strict=True)), figures


def test_vague_names_idioms_and_parallel_assignments_are_counted(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        '"""What is sent, of which nobody knows."""\n'
        "def f(said, message):\n    kept, total = said, message\n    return lambda own: own\n"
    )
    counts = measured(path)
    assert (counts.local_names, counts.vague_names) == (5, 3)
    assert (counts.words, counts.idioms) == (7, 2)
    assert (counts.assignments, counts.parallel_assignments) == (1, 1)
