"""The architecture: imports point one way, and the page and its drawing follow the sources."""

import ast
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


#: The package's folders from top to bottom: each imports only from those after it.
FOLDERS = (
    *("study_files", "contrib", "tuning", "audit", "theory", "study", "executors", "track"),
    *("plotting", "simulation", "results", "metrics", "algorithms", "clock", "link", "data"),
    *("privacy", "problems", "optimization", "models", "partitions", "graphs", "participation"),
    "_core",
)


#: Modules that are subclasses of an optional library's, which is imported when they are used.
OF_LIBRARIES = {"fljax.models.flax_modules"}


@pytest.fixture(scope="module")
def architecture():
    """The site's module that draws the import graph."""
    folder = str(ROOT / "docs" / "_ext")
    sys.path.insert(0, folder)  # for its import of the helpers of generated pages
    spec = importlib.util.spec_from_file_location("architecture", f"{folder}/architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(folder)
    return module


@pytest.fixture(scope="module")
def files(architecture):
    """The package's files by module."""
    return architecture.modules(ROOT / "fljax")


@pytest.fixture(scope="module")
def imports(architecture, files):
    """The modules of the package that each module imports."""
    return {name: {*architecture.imported(path, files)} for name, path in files.items()}


def test_imports_form_no_cycle_and_are_at_the_top_of_files(architecture, files, imports):
    above = {"fljax", "fljax.__main__"}
    arrows = {}
    for name in files.keys() - above:
        top_level = {*architecture.imported(files[name], files, top_level=True)}
        assert imports[name] - OF_LIBRARIES == top_level, f"{name} imports fljax in a function"
        arrows[name] = imports[name] - {name}
    for _ in files:
        free = {name for name, others in arrows.items() if not others & arrows.keys()}
        arrows = {name: others for name, others in arrows.items() if name not in free}
    assert not arrows


def test_simulations_do_not_import_studies(architecture, imports):
    for name, others in imports.items():
        if architecture.folder_of(name) not in ("", "__main__", "study", "study_files", "tuning"):
            assert not any(other.startswith("fljax.study") for other in others), name


def test_folders_import_downwards_only(architecture, imports):
    for name, others in imports.items():
        folder = architecture.folder_of(name)
        if folder not in ("", "__main__"):
            below = FOLDERS[FOLDERS.index(folder) :]
            for other in others:
                assert architecture.folder_of(other) in below, f"{name} imports {other}"


def test_every_module_is_in_a_folder_and_has_a_unique_name(files):
    assert {path.name for path in (ROOT / "fljax").glob("*.py")} == {"__init__.py", "__main__.py"}
    names = Counter(name.rpartition(".")[2] for name in files)
    assert not {name for name, count in names.items() if count > 1}


def test_classes_of_the_package_have_names_of_their_own(files):
    modules = {}
    for name, path in files.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(name)
    assert not {name: places for name, places in modules.items() if len(places) > 1}


#: Tests of the experiments and of the site, which shows them.
ABOUT_EXPERIMENTS = {"experiments", "site"}


def test_the_library_and_its_tests_import_nothing_from_experiments():
    pattern = re.compile(r"^\s*(?:from|import) experiments\b", re.MULTILINE)
    scanned = [*(ROOT / "fljax").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    assert len(scanned) > 400
    for path in scanned:
        if path.relative_to(ROOT).parts[1] not in ABOUT_EXPERIMENTS:
            assert not pattern.search(path.read_text(encoding="utf-8")), path


def test_every_file_on_the_page_exists():
    named = re.findall(r"`(\w+(?:/\w+)+\.py)`", PAGE)
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_the_page_lists_every_folder():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(FOLDERS)


def test_folders_stand_above_what_they_import_from(architecture):
    graph = architecture.arrows(ROOT / "fljax")
    counts = architecture.counts(ROOT / "fljax")
    assert counts["folders"] == len(graph) == len(FOLDERS)
    assert counts["loose modules"] == counts["upward imports"] == 0
    seen = set()
    for floor in architecture.floors(graph):
        assert all(graph[folder] <= seen for folder in floor)
        seen.update(floor)


def test_the_drawing_has_every_folder_and_every_arrow_that_no_path_replaces(architecture):
    graph = {"top": {"middle", "bottom"}, "middle": {"bottom"}, "bottom": set()}
    assert architecture.direct(graph) == [("middle", "bottom"), ("top", "middle")]
    picture = architecture.drawing(graph)
    assert picture.count("<path d=") == 1 + 2  # the arrows' tip, too
    assert all(f">{folder}</text>" in picture for folder in graph)


def test_folders_that_import_each_other_are_named(architecture):
    with pytest.raises(ValueError, match="import each other: one, other"):
        architecture.floors({"one": {"other"}, "other": {"one"}})
