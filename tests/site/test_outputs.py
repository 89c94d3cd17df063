"""The stored outputs belong to the programs of the site's pages."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site.conftest import ROOT

PAGE = """\
---
file_format: mystnb
kernelspec:
  name: python3
---

# A page

```{code-cell} ipython3
import sys

print("bars", file=sys.stderr)
print("one", object())
```
"""


@pytest.fixture
def outputs(monkeypatch):
    pytest.importorskip("myst_nb", reason='the site needs pip install ".[docs]"')
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module("outputs")


@pytest.fixture
def docs(tmp_path):
    """A folder with one page that has a program."""
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "page.md").write_text(PAGE)
    (tmp_path / "plain.md").write_text("# No program\n")
    return tmp_path


def store(outputs, docs, *texts):
    """Store outputs as if the page had these programs."""
    nbformat = pytest.importorskip("nbformat")
    cells = [
        nbformat.v4.new_code_cell(text, outputs=[nbformat.v4.new_output("stream", text="one\n")])
        for text in texts
    ]
    path = docs / "_outputs" / "guides" / "page.json"
    path.parent.mkdir(parents=True)
    path.write_text(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))


def test_the_outputs_of_every_page_are_stored(outputs):
    lacking = {name: outputs.lacking(name, page) for name, page in outputs.pages().items()}
    assert len(lacking) > 20
    assert {name: why for name, why in lacking.items() if why} == {}


def test_stored_outputs_name_no_folder_of_a_machine(outputs):
    for path in (ROOT / "docs" / "_outputs").rglob("*.json"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = json.dumps([o for o in cell["outputs"] if "image/png" not in o.get("data", {})])
            assert "/tmp/" not in text, path
            assert "/home/" not in text, path


def test_lines_of_outputs_fit_a_page(outputs):
    for path in (ROOT / "docs" / "_outputs").rglob("*.json"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell["outputs"]:
                data = output.get("data", {})
                shown_otherwise = {"text/html", "text/markdown"} & data.keys()
                plain = data.get("text/plain", output.get("text", ""))
                text = "" if shown_otherwise else plain
                lines = "".join(text).splitlines()
                assert max(map(len, lines), default=0) <= 200, (path.name, max(lines, key=len))


def test_a_page_has_the_outputs_that_are_stored_for_its_program(outputs, docs):
    (page,) = outputs.pages(docs).values()
    store(outputs, docs, page.cells[-1].source)
    filled = outputs.filled("guides/page", page, docs)
    assert filled.cells[-1].outputs[0]["text"] == "one\n"


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((), "guides/page has no stored outputs"),
        (("print(2)",), "guides/page has changed since its outputs were stored"),
    ],
)
def test_a_page_without_its_output_fails_the_build_with_the_command(outputs, docs, texts, why):
    from sphinx.errors import ExtensionError

    if texts:
        store(outputs, docs, *texts)
    config = type("Config", (), {"nb_execution_mode": "cache"})
    app = type("App", (), {"srcdir": docs, "outdir": docs / "_build", "config": config})
    remedy = r"; run its programs: python docs/_ext/outputs\.py guides/page, or build without"
    with pytest.raises(ExtensionError, match=f"{why}{remedy}.*FLJAX_DOCS=still"):
        outputs.fill_cache(app)


def test_a_site_without_outputs_asks_for_none(outputs, docs):
    config = type("Config", (), {"nb_execution_mode": "off"})
    app = type("App", (), {"srcdir": docs, "outdir": docs / "_build", "config": config})
    outputs.fill_cache(app)
    assert not (docs / ".jupyter_cache").exists()


def test_a_page_that_does_not_exist_is_refused_before_a_program_runs(outputs, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["outputs.py", "guides/privcy"])
    with pytest.raises(SystemExit):
        outputs.main()
    text = capsys.readouterr().err
    assert "no page with programs is called guides/privcy; there are " in text
    assert "guides/privacy" in text


@pytest.fixture
def run(outputs, docs):
    """Run the command for the folder, in a process with the standard library's ``site`` module."""
    (docs / "_ext").mkdir()
    for name in ("outputs.py", "pages.py"):
        shutil.copy(Path(outputs.__file__).with_name(name), docs / "_ext")

    def command(*arguments):
        return subprocess.run(
            [sys.executable, str(docs / "_ext" / "outputs.py"), *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )

    return command


@pytest.mark.slow
def test_programs_are_run_once_and_their_outputs_stored(outputs, docs, run):
    first = run()
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("guides/page ... ")
    assert "WARNING" not in first.stderr
    (page,) = outputs.pages(docs).values()
    filled = outputs.filled("guides/page", page, docs)
    assert [o["text"] for o in filled.cells[-1].outputs] == ["one <object object>\n"]
    about = outputs.stored("guides/page", docs).metadata["fljax"]
    assert {*about} == {"version", "commit", "date"}
    assert run().stdout == ""
    assert run("--all").stdout.startswith("guides/page ... ")


@pytest.mark.slow
def test_a_program_that_fails_stores_nothing(outputs, docs, run):
    path = docs / "guides" / "page.md"
    path.write_text(PAGE.replace('print("one", object())', "1 / 0"))
    failed = run("guides/page")
    assert failed.returncode == 1
    assert "guides/page: " in failed.stderr
    assert "ZeroDivisionError" in failed.stderr
    assert outputs.stored("guides/page", docs) is None
