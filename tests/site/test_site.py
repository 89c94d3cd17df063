"""The site is whole: no warning, no dead link, every public name, nothing from elsewhere."""

import importlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import fljax as fl
from experiments.atlas.analysis import names_of_runs
from experiments.figure import REGISTRY
from tests.site.conftest import ROOT
from tests.support.guides import programs

pytestmark = pytest.mark.slow

#: Bytes of a page without its pictures; the list of all pages takes a fifth of them. Pages of
#: source code are as long as the source.
LARGEST = 330_000
#: The lists of all results and of all names, which may have three times as much.
LONG = ("atlas/all.html", "genindex.html")

#: The file name of a picture, used as alternative text where no description was written.
FILE = re.compile(r"\.(png|svg|jpe?g|gif|webp|pdf)$", re.IGNORECASE)


class Page(HTMLParser):
    """What a page links to, loads and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links = []
        self.loads = []
        self.anchors = {""}
        self.pictures = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in ("script", "img", "link", "iframe", "source"):
            self.loads += [attributes[name] for name in ("src", "href") if attributes.get(name)]
        if tag == "img":
            self.pictures.append(attributes)


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_link_and_anchor_is_there(pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            target, _, anchor = link.partition("#")
            goal = (path.parent / unquote(target)).resolve() if target else path
            if not goal.exists() or (goal in pages and unquote(anchor) not in pages[goal].anchors):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_programs_are_not_loaded_from_other_folders(pages):
    for path, page in pages.items():
        for source in page.loads:
            assert not re.match(r"(https?:)?//", source), f"{path}: {source}"
            if not source.startswith(("data:", "#")):
                local = (path.parent / unquote(source.partition("?")[0])).resolve()
                assert local.exists(), f"{path}: {source}"


def test_every_picture_has_a_description(pages):
    for path, page in pages.items():
        for picture in page.pictures:
            alternative = picture.get("alt", "").strip()
            assert alternative, f"{path}: {picture.get('src')}"
            assert not FILE.search(alternative), f"{path}: {alternative}"


@pytest.mark.parametrize("name", ["figure.png", "../_images/abc.svg", "abc-1.JPEG"])
def test_a_file_name_is_not_a_description(name):
    assert FILE.search(name)
    assert not FILE.search("Plot: Rounds, and bits, by fl.plotting.learning_curves(results)")


def test_tutorials_are_there_as_notebooks(site, pages):
    nbformat = pytest.importorskip("nbformat")
    for source in (ROOT / "docs" / "tutorials").glob("*.md"):
        name = source.stem
        if name == "index":
            continue
        page = pages[site / "tutorials" / f"{name}.html"]
        (link,) = (link for link in page.links if link.endswith(f"/{name}.ipynb"))
        notebook = nbformat.read(page.path.parent / link, as_version=4)
        nbformat.validate(notebook)
        code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        for program in programs(f"docs/tutorials/{name}"):
            assert program.code.strip() in code


def test_pages_are_light(site, pages):
    heavy = {
        path.relative_to(site).as_posix(): path.stat().st_size
        for path in pages
        if path.stat().st_size > LARGEST * (1 + 2 * path.as_posix().endswith(LONG))
        and "_modules" not in path.parts
    }
    assert heavy == {}


def test_every_public_name_is_in_the_reference(site):
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    documented = {name for kind in inventory.data for name in inventory.data[kind]}
    queue = [("fljax", fl)]  # with the names by which users reach them
    lacking = []
    while queue:
        path, package = queue.pop()
        for name in package.__all__:
            value = getattr(package, name)
            if isinstance(value, ModuleType):
                queue.append((f"{path}.{name}", value))
            elif f"{path}.{name}" not in documented:
                lacking.append(f"{path}.{name}")
    assert lacking == []


def test_every_algorithm_and_figure_is_in_its_table_and_has_a_page(site):
    table = (site / "algorithms" / "index.html").read_text(encoding="utf-8")
    for cls in fl.algorithms.REGISTRY.values():
        assert f'href="{cls.__name__}.html"' in table
        page = (site / "algorithms" / f"{cls.__name__}.html").read_text(encoding="utf-8")
        assert f'id="fljax.algorithms.{cls.__name__}"' in page
    index = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    for name, figure in REGISTRY.items():
        assert f'href="{name}.html"' in index
        page = (site / "gallery" / f"{name}.html").read_text(encoding="utf-8")
        assert f"{name}.pdf" in page
        assert page.count("<tr") > len(figure.claims)


def test_every_scenario_of_the_atlas_that_was_run_has_a_page_and_its_rows(site):
    front = (site / "atlas" / "index.html").read_text(encoding="utf-8")
    every = (site / "atlas" / "all.html").read_text(encoding="utf-8")
    stored = [*(ROOT / "figures" / "atlas").glob("*.json")]
    assert stored
    count = 1  # the heading
    for path in stored:
        result = json.loads(path.read_text(encoding="utf-8"))
        rows = len(names_of_runs(result))
        page = (site / "atlas" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert page.count("<tr") == rows + 1
        assert page.count('<abbr title="between') <= rows
        assert all(
            f"algorithms/{fl.algorithms.REGISTRY[label].__name__}.html" in page
            for label in result["methods"]
        )
        assert f'href="{path.stem}.html"' in front
        assert all(why.rstrip(".").split()[0] in page for why in result["refused"].values())
        count += rows
    assert every.count("<tr") == count


def test_the_atlas_begins_with_three_questions_and_has_little_prose(site):
    front = (site / "atlas" / "index.html").read_text(encoding="utf-8")
    head = front.partition("<thead>")[2].partition("</thead>")[0]
    for question in ("who talks to whom", "what goes wrong", "what is scarce", "take", "margin"):
        assert question in head
    before = front.partition("<h1>")[2].partition("<table")[0]
    assert len(re.sub("<[^>]+>", "", before)) < 400
    for picture in (ROOT / "figures" / "atlas").glob("*.png"):
        assert f"_images/{picture.name}" in front


def test_the_site_can_be_searched(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "gilbertelliott" in index.lower()


@pytest.fixture
def extension(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module


def test_a_figure_without_results_fails_the_build_with_its_name(extension, monkeypatch, tmp_path):
    gallery = extension("gallery")
    monkeypatch.setattr(gallery, "FIGURES", tmp_path)
    app = type("App", (), {"srcdir": str(tmp_path)})
    with pytest.raises(Exception, match=r"the gallery lacks a figure: .*audit\.json"):
        gallery.write(app)


def test_an_algorithm_without_a_wing_fails_the_build_with_its_name(extension):
    algorithms = extension("algorithms")

    class Stray(fl.algorithms.Algorithm):
        label = "Stray"

    with pytest.raises(Exception, match="Stray is in no wing"):
        algorithms.wing(Stray)


def test_a_constant_without_a_description_fails_the_build(extension):
    modules = extension("modules")
    with pytest.raises(Exception, match=r"fljax\.metrics\.NOTHING has no comment"):
        modules.directive("fljax.metrics", "NOTHING", 3)


def test_a_docstring_with_a_broken_reference_fails_the_build(extension, tmp_path):
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxWarning

    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text(
        "extensions = ['sphinx.ext.autodoc', 'references']\nnitpicky = True\n"
    )
    (source / "broken_words.py").write_text('"""See :func:`fljax.problems.nothing`."""\n')
    (source / "index.rst").write_text("Words\n=====\n\n.. automodule:: broken_words\n")
    sys.path.insert(0, str(source))
    try:
        app = Sphinx(
            *map(str, (source, source, tmp_path / "out", tmp_path / "trees")),
            buildername="html",
            warningiserror=True,
            exception_on_warning=True,
            status=None,
        )
        with pytest.raises(SphinxWarning, match=r"fljax\.problems\.nothing"):
            app.build()
    finally:
        sys.path.remove(str(source))


def test_the_sidebar_of_a_page_equals_sphinx(extension, tmp_path):
    from sphinx.application import Sphinx

    extension("navigation")
    source = tmp_path / "source"
    (source / "part").mkdir(parents=True)
    tree = "{}\n=====\n\n.. toctree::\n   :hidden:\n   :caption: {}\n\n   {}\n"
    pages = {
        "index": tree.format("Index", "One", "first\n   part/index\n   out <https://fljax.test>")
        + tree.partition("=\n\n")[2].format("Two", "last\n   part/deep"),
        "part/index": tree.format("Part", "Its", "deep\n   other"),
        "part/deep": tree.format("Deep", "Its", "/part/deepest"),
        **dict.fromkeys(("first", "last", "part/other", "part/deepest"), "Page\n=====\n"),
    }
    for name, text in pages.items():
        (source / f"{name}.rst").write_text(text)
    built = []
    for name, extensions in {"own": ["navigation"], "theirs": []}.items():
        Sphinx(
            str(source),
            None,
            *map(str, (tmp_path / name, tmp_path / f"{name}-trees")),
            buildername="html",
            confoverrides={"html_theme": "furo", "extensions": extensions},
            status=None,
            warning=None,
        ).build()
        built.append({page: (tmp_path / name / f"{page}.html").read_text() for page in pages})
    ours, theirs = built
    assert ours == theirs
    assert ours["part/deepest"].count("current-page") == 1
    marked = re.findall(r'<li class="toctree-l\d current', ours["part/deepest"])
    assert len(marked) == 5  # it is in a page that is in the tree twice


def test_which_figure_runs_which_algorithm_is_read_off_its_program(extension):
    used = extension("uses").algorithms_of_figures()
    assert used.keys() == REGISTRY.keys()
    assert used["gauthier-6.2"] == {"NPFL", "NPFLRL"}
    assert {"AFL", "FedAvg", "QFedAvg"} <= used["jung-fairness"]
    assert "PADMM" not in used["gauthier-3.2"]
