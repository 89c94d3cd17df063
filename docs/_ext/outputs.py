"""Outputs of the pages' programs: stored by a command, shown by the build, which runs none of them.

    python docs/_ext/outputs.py [PAGE ...] [--all]

runs the programs of each page whose stored outputs are missing, or belong to other programs, and
stores the texts and pictures in ``docs/_outputs``, with the commit and the date.
"""

import argparse
import base64
import datetime
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import single_nb_execution
from myst_nb.core.read import is_myst_markdown_notebook, read_myst_markdown_notebook
from pages import with_palette
from traitlets.config import Config

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]

#: Seconds that one program may take.
LIMIT = 3600

#: Folders whose pages have no programs, or are written by the build.
GENERATED = ("_build", "_outputs", "algorithms", "atlas", "gallery", "reference")

#: Addresses in memory, which differ from run to run.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def pages(docs: Path = DOCS) -> dict[str, nbformat.NotebookNode]:
    """The pages with programs, as notebooks without outputs, by their names."""
    result = {}
    for path in sorted(docs.rglob("*.md")):
        name = path.relative_to(docs).with_suffix("")
        text = path.read_text(encoding="utf-8")
        if name.parts[0] not in GENERATED and is_myst_markdown_notebook(text):
            result[name.as_posix()] = read_myst_markdown_notebook(text, path=path)
    return result


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def stored(name: str, docs: Path = DOCS) -> nbformat.NotebookNode | None:
    path = docs / "_outputs" / f"{name}.json"
    return nbformat.read(path, as_version=4) if path.exists() else None


def lacking(name: str, page: nbformat.NotebookNode, docs: Path = DOCS) -> str | None:
    """Why the stored outputs of a page cannot be shown, and the remedy; or ``None``."""
    outputs = stored(name, docs)
    if outputs is None:
        why = "has no stored outputs"
    elif [c.source for c in code_cells(outputs)] != [c.source for c in code_cells(page)]:
        why = "has changed since its outputs were stored"
    else:
        return None
    return (
        f"{name} {why}; run its programs: python docs/_ext/outputs.py {name}, or build without "
        "outputs: FLJAX_DOCS=still."
    )


def filled(name: str, page: nbformat.NotebookNode, docs: Path = DOCS) -> nbformat.NotebookNode:
    """A page with its stored outputs, which must not be lacking."""
    runs = code_cells(stored(name, docs) or page)
    for cell, run in zip(code_cells(page), runs, strict=True):
        cell.outputs = run.outputs
        cell.execution_count = run.execution_count
    return page


def smaller(picture: str) -> str:
    """A plot in base64 with a palette."""
    return base64.b64encode(with_palette(base64.b64decode(picture))).decode()


def execute(name: str, page: nbformat.NotebookNode, docs: Path = DOCS) -> float:
    """Run a page's programs in an empty folder and store their outputs; the seconds that it took.

    Raises:
      SystemExit: a program raised an error, or took too long; nothing is stored.
    """
    from experiments.benchmarks.machine import commit
    from fljax import __version__
    from fljax._core.storage import replace_file

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as sockets:
        # The process that runs them is reached by files that no other user opens, not by a network.
        manager = {"transport": "ipc", "ip": f"{sockets}/kernel"}
        config = Config({"KernelManager": manager})
        result = single_nb_execution(page, folder, LIMIT, allow_errors=False, config=config)
    if result.err is not None:
        raise SystemExit(f"{name}: {result.exc_string}")
    for cell in code_cells(page):
        cell.metadata.pop("execution", None)
        cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]  # bars of progress
        for output in cell.outputs:
            texts = output if "text" in output else output.get("data", {})
            for kind in ("text", "text/plain"):
                if kind in texts:
                    texts[kind] = ADDRESS.sub("", texts[kind])
            if "image/png" in texts:
                texts["image/png"] = smaller(texts["image/png"])
    outputs = nbformat.v4.new_notebook(cells=code_cells(page))
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    outputs.metadata["fljax"] = {"version": __version__, "commit": commit(), "date": date}
    for number, cell in enumerate(outputs.cells):
        cell["id"] = str(number)  # the same in every run, for a short difference
    path = docs / "_outputs" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, nbformat.writes(outputs) + "\n")
    return result.time


def fill_cache(app: "Sphinx") -> None:
    """Put the stored outputs where the notebooks' parser looks for them before it runs a program.

    It is done before workers start, which would race to create the database.

    Raises:
      ExtensionError: the outputs of some page are not stored.
    """
    from sphinx.errors import ExtensionError

    if app.config.nb_execution_mode != "cache":
        return
    docs = Path(app.srcdir)
    notebooks = pages(docs)
    reasons = [lacking(name, page, docs) for name, page in notebooks.items()]
    if any(reasons):
        raise ExtensionError("\n".join(filter(None, reasons)))
    cache = get_cache(Path(app.outdir).parent / ".jupyter_cache")
    cache.clear_cache()
    for name, page in notebooks.items():
        bundle = CacheBundleIn(filled(name, page, docs), str(docs / f"{name}.md"))
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def note(app: "Sphinx", name: str, source: list[str]) -> None:
    """Have a page written again when its stored outputs change."""
    path = Path(app.srcdir) / "_outputs" / f"{name}.json"
    if path.exists():
        app.env.note_dependency(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="for example guides/privacy")
    parser.add_argument("--all", action="store_true", help="run pages with current outputs, too")
    options = parser.parse_args()
    available = pages()
    names = [name.removeprefix("docs/").removesuffix(".md") for name in options.pages]
    if unknown := [name for name in names if name not in available]:
        parser.error(
            f"no page with programs is called {', '.join(unknown)}; there are "
            f"{', '.join(available)}."
        )
    for name in names or available:
        if options.all or names or lacking(name, available[name]):
            print(f"{name} ...", end=" ", flush=True)
            print(f"{execute(name, available[name]):.0f} s", flush=True)


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", fill_cache)
    app.connect("source-read", note)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    main()
