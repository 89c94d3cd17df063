"""The gallery: a page a figure, and an index with thumbnails that the browser filters."""

from pathlib import Path

import uses
from pages import put, table, with_palette
from PIL import Image
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from experiments import report
from experiments.commands import in_order
from experiments.records import Broken, first_edition, read_record
from fljax.algorithms import REGISTRY

#: Where results are, and how wide a thumbnail is, of how many colors.
FIGURES = Path(__file__).parents[2] / "figures"
WIDTH = 240
COLORS = 64

#: What the figures' names begin with.
DOCUMENTS = {
    "gauthier": "Gauthier's thesis",
    "rizk": "Rizk's thesis",
    "jung": "Jung's book",
    "headline": "The algorithms' papers",
    "field": "papers of the field",
}

HEAD = """\
:hide-toc:

Gallery
=======

{count} figures: reproductions of the literature's and some of our own. The claims of each source
are judged on simulation results with 95 % intervals. The last two columns count the source's claims
that hold, and those that hold among the claims tested under a condition that the source does not
state. The programs are in the repository, in ``experiments``, and not in the installed package.
Claims that do not hold are reported as such, with the reason where we know it. See
:doc:`what each algorithm promises <headlines>`, :doc:`how claims are judged <judging>` and
:doc:`what changed since the first edition <changes>`.

"""

#: A thumbnail in a cell of the index.
IMAGE = """\
.. image:: thumbnails/{name}.png
          :alt: {title}
          :target: {name}.html"""

LABELS = {cls.__name__: label for label, cls in REGISTRY.items()}


def document(name: str) -> str:
    return "ours" if name in report.OWN else DOCUMENTS[name.split("-")[0]]


def outcome(record: report.Record) -> str:
    """The verdicts of the source's own claims in three words."""
    texts = [
        report.short_verdict(claim)
        for claim in record["claims"]
        if claim["kind"] in ("source", "conditional")
    ]
    if not texts:
        return "none judged"
    return (
        "all hold" if {*texts} == {"holds"} else "some hold" if "holds" in texts else "none holds"
    )


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "gallery"
    (folder / "thumbnails").mkdir(parents=True, exist_ok=True)
    try:
        records = [read_record(figure, FIGURES) for figure in in_order()]
    except Broken as error:
        raise ExtensionError(f"the gallery lacks a figure: {error}") from None
    used = uses.algorithms_of_figures()
    rows = []
    for record in records:
        name = record["name"]
        small = folder / "thumbnails" / f"{name}.png"
        for make, source, path in (
            (of_few_colors, FIGURES / f"{name}.png", folder / f"{name}.png"),
            (thumbnail, FIGURES / f"{name}.png", small),
        ):
            if stale(path, source):
                make(source, path)
        algorithms = sorted(used[name])
        text = report.page(record)
        links = ", ".join(f"{{doc}}`{LABELS[a]} </algorithms/{a}>`" for a in algorithms)
        picture = f"![{record['title']}]({name}.png)\n"
        put(
            folder / f"{name}.md",
            text.replace(picture, f"{picture}\nAlgorithms: {links}.\n" if links else picture),
        )
        rows.append(
            [
                IMAGE.format(**record),
                f":doc:`{name} <{name}>`",
                record["title"],
                document(name),
                ", ".join(LABELS[a] for a in algorithms),
                outcome(record),
                *(report.tally(record["claims"], kind) for kind in ("source", "conditional")),
            ]
        )
    put(folder / "changes.md", report.changes(records, first_edition()))
    put(folder / "headlines.md", report.headlines(records))
    head = ["picture", "figure", "shows", "document", "algorithms", "claims", "the source's"]
    entries = "\n".join(f"   {record['name']}" for record in records)
    put(
        folder / "index.rst",
        HEAD.format(count=len(records))
        + table([*head, "conditional"], rows, "browse gallery")
        + "\n\n.. toctree::\n   :hidden:\n   :maxdepth: 1\n\n   judging\n   headlines"
        + f"\n{entries}\n   changes\n",
    )
    text = "\n".join(
        ["# How claims are judged", "", report.INTRODUCTION, "", *report.conventions()]
    )
    put(folder / "judging.md", text + "\n")


def of_few_colors(source: Path, path: Path) -> None:
    path.write_bytes(with_palette(source.read_bytes()))


def stale(path: Path, source: Path) -> bool:
    return not path.exists() or path.stat().st_mtime < source.stat().st_mtime


def thumbnail(path: Path, to: Path) -> None:
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((WIDTH, 2 * WIDTH))
        small.quantize(COLORS, dither=Image.Dither.NONE).save(to, optimize=True)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
