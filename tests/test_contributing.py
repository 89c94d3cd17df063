"""The contribution pages are literally true: each is followed in a copy of the tree."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.contributing import FOLDER, ROOT, parsed, written

PAGES = {path.stem: parsed(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.md")}

#: The most files that a reader changes, those that a page's commands write counted as well.
MOST_TOUCHES = {"algorithm": 6, "privacy-mechanism": 4}

#: Folders that tests, tools and quick figures write to.
CACHES = {"__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache", "quick"}


def test_there_is_a_page_for_everything_that_people_add():
    assert PAGES.keys() == {
        *("algorithm", "metric", "attack-or-aggregator", "data-set", "privacy-mechanism"),
        *("network-or-loss", "figure", "scenario"),
    }


def test_every_page_is_linked_and_in_the_navigation():
    links = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    navigation = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    for name in PAGES:
        assert f"](docs/contributing/{name}.md)" in links
        assert re.search(rf"^contributing/{name}$", navigation, re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_the_changes_of_a_page_apply_to_the_sources(name):
    page = PAGES[name]
    assert page.touched
    assert page.commands
    assert not [path for path in page.new_files if (ROOT / path).exists()]
    for path, text in written(page, ROOT).items():
        if path.endswith(".py"):
            ast.parse(text, path)
    assert len(page.touched) <= MOST_TOUCHES.get(name, 8)


def test_a_change_needs_its_place_once():
    text = "# change: a.py\n one\n-two\n+three\n"
    page = parsed(f"```diff\n{text}```\n")
    assert written(page, _Files({"a.py": "one\ntwo\nfour\n"})) == {"a.py": "one\nthree\nfour\n"}
    with pytest.raises(AssertionError, match=r"a\.py has this place 2 times"):
        written(page, _Files({"a.py": "one\ntwo\none\ntwo\n"}))
    several = parsed(f"```diff\n{text}@@\n four\n+five\n```\n")
    assert [change.after for change in several.changes] == ["one\nthree\n", "four\nfive\n"]


class _Files(dict):
    """Files in memory, by path, read as those of a folder are."""

    def __truediv__(self, path):
        return _Text(self[path])


class _Text(str):
    def read_text(self, encoding):
        return str(self)


@pytest.fixture
def tree(tmp_path):
    """A copy of the tree, of files that version control knows where there is one."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]
    if listed.returncode or not paths:  # an unpacked source distribution
        files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        paths = [str(path) for path in files if not CACHES.intersection(path.parts)]
    for path in paths:
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    return tmp_path


def contents(tree):
    """The bytes of every file of a tree, without caches."""
    paths = [path for path in tree.rglob("*") if path.is_file()]
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in paths
        if not CACHES.intersection(path.relative_to(tree).parts)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_reader_who_follows_a_page_succeeds(name, tree):
    """Its files are written, its changes made and its commands run, by the sources in the copy."""
    before = contents(tree)
    for path, text in written(PAGES[name], tree).items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text, encoding="utf-8")
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": str(tree), "PATH": programs}
    environment.pop("PYTEST_ADDOPTS", None)
    script = ["bash", "-euo", "pipefail", "-x", "-c", PAGES[name].commands]
    done = subprocess.run(
        script, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    after = contents(tree)
    touched = {path for path in after if before.get(path) != after[path]}
    assert PAGES[name].touched <= touched
    assert len(touched) <= MOST_TOUCHES.get(name, 8), sorted(touched)
