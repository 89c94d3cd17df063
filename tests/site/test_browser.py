"""The site in a real browser: tables, search, pictures and mathematics, wide and narrow."""

import functools
import http.server
import io
import re
import shutil
import threading
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import fljax as fl

pytestmark = pytest.mark.slow

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    pytest.importorskip("selenium")
    if not (CHROMIUM and DRIVER):
        warnings.warn("THE SITE WAS NOT LOOKED AT: there is no chromium here.", stacklevel=1)
        pytest.skip("NOT RUN: neither chromium nor chromedriver is on the path")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
        *("disable-background-networking", "disable-component-update", "disable-sync"),
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser, address):
    """Open a page at a width; afterwards nothing was wrong on the console."""

    def go(page, width=1280):
        # A window has a least width, which is more than that of a telephone.
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        browser.get(f"{address}/{page}")
        return browser

    browser.get_log("browser")
    yield go
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def wait(browser, script, seconds=20):
    """Wait until a script returns something true, and return that."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds).until(lambda b: b.execute_script(script))


VISIBLE = "return [...document.querySelectorAll('table.browse tbody tr')].filter(r => !r.hidden)"
NAMES = VISIBLE + ".map(r => r.cells[0].textContent.trim())"


def test_the_table_of_algorithms_filters_and_sorts(visit):
    page = visit("algorithms/index.html")
    every = page.execute_script(NAMES)
    bar = "document.querySelector('.browse-bar')"
    page.find_element("css selector", ".browse-bar input[type=search]").send_keys("gauthier nfl")
    fewer = f"; return few.length < {len(every)} && few"  # keys arrive in their own time
    few = wait(page, NAMES.replace("return", "const few =") + fewer)
    assert {"zCDP-NFL", "(eps,delta)DP-NFL"} <= {*few} < {*every}
    page.find_element("css selector", ".browse-bar input[type=search]").clear()
    page.execute_script(
        f"{bar}.querySelector('input[type=search]').dispatchEvent(new Event('input'))"
    )
    box = "//label[contains(., 'private')]/input"
    page.find_element("xpath", box).click()
    private = page.execute_script(NAMES)
    assert "zCDP-NFL" in private
    assert "SCAFFOLD" not in private
    page.execute_script(
        f"const menu = {bar}.querySelector('select'); menu.value = 'peers';"
        "menu.dispatchEvent(new Event('change'))"
    )
    assert {"zCDP-NFL", "P-ADMM"} <= {*page.execute_script(NAMES)} < {*private}
    page.find_element("css selector", "table.browse th button").click()
    up = page.execute_script(NAMES)
    assert up == sorted(up, key=str.lower)
    page.find_element("css selector", "table.browse th button").click()
    assert page.execute_script(NAMES) == up[::-1]


def test_the_atlas_sorts_numbers_by_their_value(visit):
    page = visit("atlas/all.html")
    heading = "//table[contains(@class, 'browse')]//th[contains(., 'last value')]//button"
    page.find_element("xpath", heading).click()
    cells = page.execute_script(VISIBLE + ".map(r => r.cells[5].textContent.trim())")
    values = [float(text) for text in cells if re.fullmatch(r"-?[0-9.]+", text)]
    assert min(values) < 0 < max(values)
    assert values == sorted(values)


def test_three_questions_lead_to_one_recommendation(visit):
    page = visit("atlas/index.html")
    chosen = {
        "who talks to whom": "one server, one model",
        "what goes wrong": "clients are strongly unlike",
        "what is scarce": "trials for tuning",
    }
    for question, answer in chosen.items():
        page.execute_script(
            "const menu = [...document.querySelectorAll('.browse-bar select')]"
            ".find(s => s.getAttribute('aria-label') === arguments[0]);"
            "menu.value = arguments[1]; menu.dispatchEvent(new Event('change'))",
            question,
            answer,
        )
    shown = page.execute_script(
        "return [...document.querySelector('table.browse').tBodies[0].rows]"
        ".filter(r => !r.hidden).map(r => r.cells[3].textContent)"
    )
    assert len(shown) == 1
    assert shown[0].strip() in {cls.label for cls in fl.algorithms.REGISTRY.values()}


@pytest.mark.parametrize("width", [1280, 400])
def test_the_gallery_filters_by_verdict_and_shows_every_picture(visit, width):
    page = visit("gallery/index.html", width)
    total = len(page.execute_script(NAMES))
    page.execute_script("document.querySelectorAll('table img').forEach(i => i.loading = 'eager')")
    assert wait(
        page, "return [...document.querySelectorAll('table img')].every(i => i.naturalWidth > 0)"
    )
    page.execute_script(
        "const menu = [...document.querySelectorAll('.browse-bar select')]"
        ".find(s => s.getAttribute('aria-label') === 'claims');"
        "menu.value = 'all hold'; menu.dispatchEvent(new Event('change'))"
    )
    assert 0 < len(page.execute_script(NAMES)) < total


#: Pixels by which a page is wider than its viewport, and by which an element is wider than its
#: frame (such elements would scroll separately).
BEYOND = (
    "return Math.max(...['html', '.content'].map(name => document.querySelector(name))"
    ".map(part => part.scrollWidth - part.clientWidth))"
)
ACCESSIBLE = Path(__file__).with_name("accessible.js").read_text(encoding="utf-8")
KINDS = (
    *("index", "start", "ideas", "speed", "changelog", "contributing", "genindex"),
    *("guides/privacy", "guides/unreliable", "tutorials/peers", "tutorials/streams"),
    *("algorithms/index", "algorithms/FedAvg", "algorithms/FedAMP"),
    *("atlas/index", "atlas/all", "atlas/peers-ring"),
    *("gallery/index", "gallery/gauthier-5.1", "reference/fljax", "reference/fljax.link"),
)


@pytest.mark.parametrize("name", KINDS)
def test_tables_and_formulas_scroll_and_the_page_does_not(visit, name):
    page = visit(f"{name}.html", width=390)
    if page.find_elements("css selector", ".math"):
        wait(page, "return document.querySelectorAll('mjx-container').length")
    assert page.execute_script("return innerWidth") == 390
    assert page.execute_script(BEYOND) <= 0
    page.execute_script(
        "const box = document.createElement('div'); box.textContent = 'wide';"
        "box.style.width = '500px'; document.querySelector('article').append(box)"
    )
    assert page.execute_script(BEYOND) > 0  # it would be seen


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_displays_of_results_fit_a_page_and_are_readable(visit, theme):
    """As in the guides, whether or not their programs ran when this site was built."""
    problem = fl.problems.ridge(jax.random.key(0), clients=30, samples=5, dim=2)
    network = fl.graphs.ring(30)
    simulation = fl.Simulation(problem, fl.algorithms.ATC(0.1), network, metrics=["train_error"])
    results = fl.sweep(lambda key: simulation, seeds=2, rounds=40)
    page = visit("start.html", width=390)
    page.execute_script(f"document.body.dataset.theme = '{theme}'")
    for displayed in (results, results.train_error, simulation):
        page.execute_script(
            "const cell = document.createElement('div'); cell.className = 'cell_output';"
            "cell.innerHTML = arguments[0]; document.querySelector('article').append(cell)",
            displayed._repr_html_(),
        )
    assert page.execute_script(BEYOND) <= 0
    assert page.execute_script(ACCESSIBLE) == [[], [], []]


#: Pairs of menus that cover each other, and words of a table's heads that are broken.
CROWDED = """
const boxes = [...document.querySelectorAll(".updatemenu-header, .updatemenu-button")]
  .map((part) => part.getBoundingClientRect());
const cover = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
const pairs = boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => cover(a, b)));
const heads = [...document.querySelectorAll("th button")].filter((head) => {
  const range = document.createRange();
  range.selectNodeContents(head);
  const lines = new Set([...range.getClientRects()].map((line) => line.top)).size;
  return lines > head.textContent.split(" ").length;
});
return [boxes.length, pairs.length, heads.map((head) => head.textContent)];
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2)

    def scenario(_, algorithm):
        return fl.Simulation(problem, algorithm, metrics=["objective"])

    methods = {
        name: (getattr(fl.algorithms, name), {"step_size": [0.01, 0.1]})
        for name in ("FedAvg", "SCAFFOLD")
    }
    study = {"rounds": 4, "seeds": 2, "tuning_seeds": 1, "refinements": 0, "extensions": 0}
    compared = fl.compare(scenario, methods, metric="objective", **study)
    return fl.report(compared, tmp_path_factory.mktemp("report") / "study.html")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_report_has_room_for_its_menus_and_words(browser, report, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(report.as_uri())
    wait(browser, "return document.querySelector('.updatemenu-button')")
    menus, covered, broken = browser.execute_script(CROWDED)
    assert menus == 6  # of metrics, of horizontal axes, two scales of each axis
    assert (covered, broken) == (0, [])


def test_search_finds_a_page(visit):
    page = visit("search.html?q=GilbertElliott")
    links = wait(page, "return [...document.querySelectorAll('ul.search a')].map(a => a.href)")
    assert any("fljax.link" in link for link in links)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_mathematics_is_set_in_both_themes(visit, theme):
    page = visit("algorithms/FedAvg.html")
    page.execute_script(f"document.body.dataset.theme = '{theme}'")
    assert wait(page, "return document.querySelectorAll('mjx-container').length") > 5
    assert not page.execute_script("return document.querySelectorAll('mjx-merror').length")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("icon", [".nav-overlay-icon", ".theme-toggle-header"])
def test_icons_have_the_color_of_text(visit, icon, theme):
    page = visit("start.html", width=400)
    page.execute_script(f"document.body.dataset.theme = '{theme}'")
    shown = Image.open(io.BytesIO(page.find_element("css selector", icon).screenshot_as_png))
    gray = np.asarray(shown.convert("L"), float)
    background = gray[0, 0]
    drawn = np.abs(gray - background) > 80
    assert 0.02 < drawn.mean() < 0.5
    assert (gray[drawn] > background).all() == (theme == "dark")


def test_the_start_page_leads_everywhere(visit):
    page = visit("index.html", 400)
    links = page.execute_script("return [...document.querySelectorAll('a')].map(a => a.href)")
    for goal in ("start", "algorithms/index", "gallery/index", "reference/index"):
        assert any(link.endswith(f"{goal}.html") for link in links)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [
        *("index", "start", "ideas", "guides/privacy", "algorithms/index", "algorithms/FedAvg"),
        *("gallery/index", "gallery/gauthier-5.1", "reference/fljax.link"),
    ],
)
def test_pages_are_readable_and_usable_by_everyone(visit, name, theme):
    """Contrast of WCAG AA, no heading skipped, controls with a name that the keyboard reaches."""
    page = visit(f"{name}.html")
    page.execute_script(f"document.body.dataset.theme = '{theme}'")
    faint, skipped, controls = page.execute_script(ACCESSIBLE)
    assert (faint, skipped, controls) == ([], [], [])


@pytest.mark.parametrize(
    ("harm", "part"),
    [
        ("document.querySelector('article p').style.color = '#999'", 0),
        ("document.querySelector('h2').outerHTML = '<h4>deep</h4>'", 1),
        ("document.querySelector('article').append(document.createElement('select'))", 2),
        ("document.querySelector('article p a[href]').tabIndex = -1", 2),
    ],
)
def test_inaccessible_pages_are_detected(visit, harm, part):
    page = visit("start.html")
    page.execute_script("document.body.dataset.theme = 'light'")
    page.execute_script(harm)
    assert page.execute_script(ACCESSIBLE)[part]
