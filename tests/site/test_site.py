"""The site is whole: no warning, no dead link, every public name, nothing from elsewhere."""

import dataclasses
import html
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import fljax as fl
from experiments.atlas import decisions
from experiments.atlas.analysis import names_of_runs
from experiments.atlas.scenario import algorithm_of
from experiments.figure import REGISTRY
from fljax.algorithms.algorithm import SYNONYMS, meanings
from fljax.tuning.search import RANGES
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


#: Bytes of the whole site, a fourth of which are the pages of the package's sources.
SITE = 45e6


def test_the_site_is_small_and_has_nothing_of_its_build(site):
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < SITE
    assert not [path for path in sizes if path.suffix in (".doctree", ".pickle")]


def test_the_questions_of_readers_order_the_pages(site):
    front = (site / "index.html").read_text(encoding="utf-8")
    tree = front.partition('<div class="sidebar-tree">')[2].partition("</div>")[0]
    assert re.findall('caption-text">([^<]+)<', tree) == [
        *("Get started", "Tutorials", "How-to guides", "Choose an algorithm", "Gallery"),
        *("Reference", "Explanation", "Development"),
    ]
    links = re.findall(r'href="([^"]+)"', tree)
    assert links.index("guides/coming-from.html") < links.index("tutorials/index.html")
    assert {"releases.html", "changelog.html", "contributing.html"} <= {*links}


def test_the_logo_of_each_theme_is_there(site):
    front = (site / "index.html").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        assert f"_static/logo-{theme}.svg" in front
        picture = (site / "_static" / f"logo-{theme}.svg").read_text(encoding="utf-8")
        assert "prefers-color-scheme" not in picture


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
        assert f"draw {name} --pdf" in page
        assert page.count("<tr") > len(figure.claims)


#: The sections of an algorithm's page.
SECTIONS = (
    *("When to use it", "Definition", "Parameters", "Example", "Cost per round"),
    *("Combined with", "Figures", "Cite"),
)


def tables_of(page, kind):
    """The texts of the cells of a page's tables of a class, row by row."""
    result = []
    for table in re.findall(rf'<table class="[^"]*\b{kind}\b[^"]*">.*?</table>', page, re.S):
        rows = re.findall(r"<tr.*?</tr>", table, re.S)
        result.append([[text_of(cell) for cell in CELL.findall(row)] for row in rows])
    return result


CELL = re.compile(r"<t[hd].*?</t[hd]>", re.S)


def text_of(markup):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


@pytest.mark.parametrize("cls", fl.algorithms.REGISTRY.values(), ids=lambda cls: cls.__name__)
def test_a_page_of_an_algorithm_has_all_of_its_parameters_and_sections(site, cls):
    page = (site / "algorithms" / f"{cls.__name__}.html").read_text(encoding="utf-8")
    headings = [text_of(h).rstrip("¶") for h in re.findall(r"<h2>.*?</h2>", page, re.S)]
    assert headings == list(SECTIONS)
    ((head, *rows),) = tables_of(page, "parameters")
    assert head == ["argument", "meaning", "default", "values", "range of fl.tune"]
    by_name = {name: rest for name, *rest in rows}
    assert {*by_name} == {field.name for field in dataclasses.fields(cls)}
    for name, (meaning, default, values, searched) in by_name.items():
        assert meaning, name
        required = inspect.signature(cls).parameters[name].default is inspect.Parameter.empty
        assert (default == "required") == required, name
        if required and name in RANGES:
            low, high, *_ = RANGES[name]
            assert searched.startswith(f"{low:g} to {high:g}"), name
        if name == "step_size":
            assert values == "> 0"
    for other in SYNONYMS:
        if SYNONYMS[other].label == cls.label:
            assert f"<strong>{other}</strong>" in page


def test_parameters_have_the_bounds_of_their_checks(site):
    def row(algorithm, name):
        page = (site / "algorithms" / f"{algorithm}.html").read_text(encoding="utf-8")
        (rows,) = tables_of(page, "parameters")
        return next(cells[2:] for cells in rows if cells[0] == name)

    assert row("FedAdam", "decay") == ["0.99", ">= 0 and < 1", ""]
    assert row("FedAdam", "momentum") == ["0.9", ">= 0 and < 1", ""]
    assert row("FedAvg", "weighting") == ["None", "one of samples, equal", ""]
    assert row("FedAvgM", "momentum") == ["0.9", ">= 0 and < 1", "0 to 0.99"]
    assert row("Scaffnew", "probability") == ["required", "> 0 and <= 1", "0.01 to 1, logarithmic"]


def test_costs_and_combinations_are_those_of_the_library(site):
    def tables(algorithm):
        page = (site / "algorithms" / f"{algorithm}.html").read_text(encoding="utf-8")
        costs, combinations = (tables_of(page, kind)[0] for kind in ("costs", "combinations"))
        return {c[0]: c[1:] for c in costs}, {c[0]: c[-1] for c in combinations}

    costs, combined = tables("SCAFFOLD")
    assert costs["numbers in them"] == ["4,000", "4 D"]
    assert costs["gradients of samples"] == ["200", "N"]
    assert combined["masks on uploads"] == "yes"
    assert combined["privacy by noise on gradients"].startswith("no: it does not run under")
    costs, combined = tables("ATC")
    assert costs["messages"] == ["20", "2"]
    assert "bits that servers send" not in costs
    assert combined["a robust aggregator"] == combined["a graph that changes"] == "yes"
    assert combined["masks on uploads"].startswith("no: it has no server")
    assert tables("ZCDPNFL")[1]["absent clients"] == "no: it has no rule for absent clients"


def test_the_table_of_algorithms_has_other_names_and_properties(site):
    page = (site / "algorithms" / "index.html").read_text(encoding="utf-8")
    ((head, *rows),) = tables_of(page, "browse")
    for property_ in ("stochastic", "private", "Byzantine", "directed", "personalized"):
        assert property_ in head
    names = {row[0]: row[1].split(", ") for row in rows}
    for name, (label, _) in meanings().items():
        assert name in (label, *names[label])
    stochastic = {row[0]: row[head.index("stochastic")] for row in rows}
    assert stochastic["GT-SAGA"] == stochastic["FedAvg"] == stochastic["PAO-Fed"] == "yes"
    assert stochastic["ADMM"] == stochastic["DANE"] == ""


def by_tables_js(script, *arguments):
    """What a script prints that has the functions of ``tables.js``; its arguments are
    ``process.argv[2]`` and following.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("NOT RUN: node is not on the path")
    start = """
    const read = require("fs").readFileSync, vm = require("vm");
    global.document = { querySelectorAll: () => [] };
    vm.runInThisContext(read(process.argv[1], "utf8"));
    """
    path = str(ROOT / "docs" / "_static" / "tables.js")
    command = [node, "-e", start + script, path, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_filters_find_properties_and_names_without_hyphens():
    script = """
    const cell = (textContent, title) => ({
      textContent, querySelectorAll: () => (title ? [{ title }] : []),
    });
    const row = { cells: [cell("Consensus"), cell("D-PSGD"), cell("yes"), cell("")] };
    const heads = [cell("name"), cell("also"), cell("Byzantine", "robust"), cell("directed")];
    console.log(wordsOf(row, heads));
    """
    words = by_tables_js(script).split()
    assert {"consensus", "d-psgd", "dpsgd", "byzantine", "robust"} <= {*words}
    assert "directed" not in words


def test_each_of_the_three_questions_has_a_menu_of_its_answers():
    # The answers grow with the atlas, and a column of too many or too long ones has no menu. The
    # browser's test would see that, but only where there is a browser and the site was built.
    answers = {
        "who talks to whom": [*decisions.WHO.values()],
        "what goes wrong": [*decisions.TROUBLES],
        "what is scarce": [*decisions.SCARCE.values()],
    }
    script = """
    const table = { classList: { contains: (name) => name === "decide" } };
    const answers = Object.values(JSON.parse(process.argv[2]));
    const menus = answers.map((texts) => choices(
      table, texts.map((textContent) => ({ cells: [{ textContent }] })), 0
    ));
    console.log(JSON.stringify(menus));
    """
    menus = json.loads(by_tables_js(script, json.dumps(answers)))
    assert menus == [sorted(texts) for texts in answers.values()]


#: What tells how Python holds a value, and nothing to a reader.
NOISE = re.compile(
    r"_MISSING_TYPE|&lt;(?:function|class|object)\b|jaxlib\.|_jax\.|ClassVar|"
    r"\bfljax(?:\.\w+)*\._\w+|Bases: [^<]*<[^>]*>[^<]*<[^>]*>_"
)


def test_the_reference_is_of_public_names_and_without_noise(site):
    pages = [*(site / "reference").glob("*.html"), *(site / "algorithms").glob("*.html")]
    assert len(pages) > 150
    for path in pages:
        article = (
            path.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        )
        text = re.sub(r"<pre>.*?</pre>", "", article, flags=re.S)
        text = html.unescape(re.sub(r"<[^>]+>", "", text))
        assert not NOISE.search(text.replace("<", "&lt;")), (path.name, NOISE.search(text))
        assert "Bases: _" not in text, path.name


def test_the_reference_begins_with_summaries(site):
    start = (site / "reference" / "index.html").read_text(encoding="utf-8")
    first, topics = tables_of(start, "overview")
    assert [row[0] for row in first] == ["name", "Simulation", "run", "sweep", "compare", "tune"]
    assert all(all(row) for row in first)
    assert len(topics) > 25
    for path in (site / "reference").glob("fljax*.html"):
        article = path.read_text(encoding="utf-8").partition("<article")[2]
        before, entry, _ = article.partition('<dl class="py')
        if not entry:
            continue
        assert "overview" in before, path.name
        for heading in re.findall(r"<h[123]>(.*?)</h[123]>", article, re.S):
            assert len(text_of(heading)) <= 70, (path.name, text_of(heading))
            assert "typing" not in text_of(heading)


def test_a_public_name_without_a_section_fails_the_build(extension, monkeypatch):
    modules = extension("modules")
    monkeypatch.setattr(fl, "__all__", [*fl.__all__, "nothing"])
    monkeypatch.setattr(fl, "nothing", len, raising=False)
    with pytest.raises(Exception, match=r"SECTIONS and fljax\.__all__ differ: \['nothing'\]"):
        modules.groups(fl)


def test_an_argument_without_a_standard_value_fails_the_build_with_its_name(extension):
    settings = extension("settings")
    with pytest.raises(Exception, match=r"the standard setting has no value of novelty; add one"):
        settings.argument("novelty")
    assert settings.argument("penalty") == "1"


def test_a_long_heading_fails_the_build(extension, monkeypatch):
    modules = extension("modules")
    monkeypatch.setattr(fl.batches, "__doc__", f"{'Long ' * 20}: more.")
    monkeypatch.setattr(modules, "HEADINGS", {})
    with pytest.raises(Exception, match="begins with more than 50 characters"):
        modules.title_of(fl.batches.__name__)


@pytest.mark.parametrize("label", ["FedAvg", "SCAFFOLD", "ATC", "PGFL", "Online-Fed", "Gossip SGD"])
def test_an_algorithm_costs_in_a_run_what_its_page_says(extension, label):
    settings = extension("settings")
    cls = fl.algorithms.REGISTRY[label]
    counted = settings.count(settings.simulation_of(cls))
    names = {}
    rounds = 200 if counted.is_random else 3
    program = settings.program(cls)
    exec(program.replace("rounds=20", f"rounds={min(rounds, settings.SAMPLES)}"), names)
    results = names["results"]
    run_rounds = results.sizes["round"]
    for counts, name in (("messages", "messages"), ("scalars", "numbers")):
        mean = float(results[counts][-1]) / run_rounds
        expected = getattr(counted.cost, name)
        assert mean == pytest.approx(expected, rel=0.3 if counted.is_random else 1e-12), name
    assert counted.is_random == (label == "Gossip SGD")


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
            f"algorithms/{fl.algorithms.REGISTRY[algorithm_of(label)].__name__}.html" in page
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
    profiles = (site / "atlas" / "profiles.html").read_text(encoding="utf-8")
    for picture in (ROOT / "figures" / "atlas").glob("*.png"):
        assert f"_images/{picture.name}" in profiles


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


def test_the_sidebar_of_a_page_equals_sphinx(extension, tmp_path, monkeypatch):
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
    (tmp_path / "closed_by_sphinx.py").write_text(
        "def close(app, name, template, context, doctree):\n"
        "    full = context['toctree']\n"
        "    context['toctree'] = lambda **options: full(**options | {'collapse': True})\n"
        "def setup(app):\n"
        "    app.connect('html-page-context', close, priority=400)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    built = []
    for name, extensions in {"own": ["navigation"], "theirs": ["closed_by_sphinx"]}.items():
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


def test_of_a_long_list_the_sidebar_has_the_entry_of_the_page(extension, monkeypatch):
    navigation = extension("navigation")
    entry = '<li class="toctree-l{}"><a class="reference internal" href="{}">{}</a>{}</li>'
    inner = "".join(entry.format(2, f"all/{n}.html", n, "\n") for n in range(9))
    outer = [
        entry.format(1, "all/index.html", "All", f"\n<ul>\n{inner}</ul>\n"),
        entry.format(1, "last.html", "Last", ""),
    ]
    html = f"<ul>\n{''.join(outer)}</ul>\n"
    monkeypatch.setattr(navigation, "LONGEST", 8)
    tree = navigation.Tree(html)

    def pages(page):
        return re.findall('href="([^"]*)"', tree.seen_from(page))

    assert pages("last.html") == ["all/index.html", "#"]
    assert pages("all/index.html") == ["#", "../last.html"]
    assert pages("all/5.html") == ["index.html", "#", "../last.html"]
    for page in ("last.html", "all/5.html"):
        shown = tree.seen_from(page)
        for tag in ("li", "ul"):
            assert shown.count(f"<{tag}") == shown.count(f"</{tag}>")
    monkeypatch.setattr(navigation, "LONGEST", 9)
    assert len(pages("all/5.html")) == 11


@pytest.mark.parametrize(
    ("picture", "message"),
    [("<svg/>", "no colors for the dark theme"), (None, r"the themes' logo is missing: logo\.svg")],
)
def test_a_logo_for_a_missing_theme_fails_the_build(extension, tmp_path, picture, message):
    logos = extension("logos")
    (tmp_path / "_static").mkdir()
    if picture:
        (tmp_path / "_static" / "logo.svg").write_text(picture)
    with pytest.raises(Exception, match=message):
        logos.write(type("App", (), {"srcdir": str(tmp_path)}))


def test_which_figure_runs_which_algorithm_is_read_off_its_program(extension):
    used = extension("uses").algorithms_of_figures()
    assert used.keys() == REGISTRY.keys()
    assert used["gauthier-6.2"] == {"NPFL", "NPFLRL"}
    assert {"AFL", "FedAvg", "QFedAvg"} <= used["jung-fairness"]
    assert "PADMM" not in used["gauthier-3.2"]


def test_the_plain_text_for_programs_lists_pages_names_and_examples(site):
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    title, summary = listed.splitlines()[0], listed.splitlines()[2]
    assert title.startswith("# fljax ")
    assert summary.startswith("> Federated")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", listed, re.M)
    assert [link for link in links if not (site / link).is_file()] == []
    assert {"guides/privacy.html", "reference/fljax.html", "algorithms/FedAvg.html"} <= {*links}
    for cls in fl.algorithms.REGISTRY.values():
        assert f"fl.algorithms.{cls.__name__} (" in listed
    full = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert "{" not in full.split("## fljax\n")[0]  # references are names
    assert "\nfljax.sweep(scenario, " in full
    code = inspect.getdoc(fl.sweep).split("Example:\n")[1].strip().splitlines()
    assert all(line.strip() in full for line in code)
    for name in fl.__all__:
        value = getattr(fl, name)
        if callable(value):
            assert f"\nfljax.{name}" in full, name
    assert not re.search(r" at 0x|_MISSING_TYPE|jaxtyping|ArrayLike\[", full)
