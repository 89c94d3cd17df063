"""The atlas: recommendations, a page a scenario, and all results in a table that is filtered."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pages import put, table
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from experiments.atlas import decisions, report
from experiments.atlas.analysis import Row
from experiments.atlas.commands import SCENARIOS  # importing it declares them all
from experiments.atlas.decisions import SCARCE, WHO, Page
from experiments.atlas.pictures import pictures_in
from experiments.atlas.running import read
from experiments.atlas.scenario import Scenario
from experiments.errors import UsageError
from fljax.algorithms import REGISTRY

FIGURES = Path(__file__).parents[2] / "figures" / "atlas"

ALL = """\
:hide-toc:

All results
===========

Every algorithm in every scenario that was run. Click on a column heading to sort, type words to
filter. Point at a rank for its simultaneous interval, at a value for its own.

"""

MORE = "{doc}`All results in one table <all>`, to be sorted and filtered.\n"


def hover(text: str, more: str) -> str:
    """A cell that shows more when it is pointed at."""
    return f":abbr:`{text} ({more})`"


def linked(label: str) -> str:
    return f":doc:`{label} </algorithms/{REGISTRY[label].__name__}>`"


def cells(scenario: Scenario, row: Row) -> list[str]:
    """A row of a scenario's table, with intervals that appear on hovering."""
    name = " = ".join(map(linked, (row.label, *row.equals)))
    if row.remark:
        return ["", name, row.remark, *[""] * (len(report.HEAD) - 3)]
    texts = report.cells(scenario, row)
    estimate, first, last = row.rank or (1, 1, 1)
    mean, low, high = (report.formatted(scenario, end) for end in row.value)
    rank = hover(str(estimate), f"between {first} and {last}")
    return [rank, name, hover(mean.removesuffix(" dB"), f"{low} to {high}"), *texts[3:]]


def everything(ran: Sequence[Page]) -> str:
    """All columns of all scenarios' tables."""
    head = ["algorithm", "scenario", "who", "rank", "of", "last value", *report.HEAD[3:]]
    rows = []
    for page in ran:
        scenario = hover(page.scenario.name, page.scenario.title)
        who = WHO[decisions.kind_of(page.scenario)]
        for row in page.rows:
            rank, name, value, *rest = cells(page.scenario, row)
            rows.append([name, scenario, who, rank, str(len(page.rows)), value, *rest])
    return ALL + table(head, rows, "browse decide") + "\n"


def answers(ran: Sequence[Page]) -> str:
    """The recommendations as one table, which the browser filters by the three questions."""
    head = ["who talks to whom", "what goes wrong", "what is scarce", "take", "margin", "scenarios"]
    rows = [
        [
            WHO[kind],
            trouble,
            SCARCE[scarce],
            linked(advice.label),
            advice.margin,
            ", ".join(f":doc:`{name} <{name}>`" for name in (p.scenario.name for p in members)),
        ]
        for kind, trouble, scarce, advice, members in decisions.all_advice(ran)
        if advice is not None
    ]
    return table(head, rows, "browse decide")


def scenarios(ran: Sequence[Page]) -> str:
    """The best of every scenario."""
    rows = [
        [f":doc:`{page.scenario.title} <{page.scenario.name}>`", *report.scenario_cells(page)[1:]]
        for page in ran
    ]
    return table(report.SCENARIO_HEAD, rows, "browse")


def in_page(text: str) -> list[str]:
    return ["```{eval-rst}", text, "```", ""]


def index(ran: Sequence[Page], drawn: Mapping[str, str]) -> str:
    """The start: three questions, then the evidence."""
    lines = [report.TITLE, "", report.QUESTIONS, *in_page(answers(ran)), MORE]
    lines += ["## Scenarios", "", *in_page(scenarios(ran))]
    lines += [report.profiles()]
    for kind, rows in report.scores(ran, drawn).items():
        lines += [
            *report.picture_of(kind, drawn[kind]),
            *in_page(table(report.SCORES, rows, "browse")),
        ]
    return "\n".join([*lines, *report.method(ran)]) + "\n"


def page_of(page: Page) -> str:
    """A scenario's page: its description, the ranking, refused algorithms and the reasons."""
    ranking = table(report.HEAD, [cells(page.scenario, row) for row in page.rows], "browse")
    lines = [f"# {page.scenario.title}", "", *report.about(page), "", *in_page(ranking)]
    lines += ["## Refused", "", *report.refusals(page.result["refused"])]
    return "\n".join(lines) + "\n"


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "atlas"
    folder.mkdir(exist_ok=True)
    try:
        results = {name: read(name, FIGURES) for name in SCENARIOS}
    except UsageError as error:
        raise ExtensionError(f"the atlas: {error}") from None
    ran = decisions.read_all(results, SCENARIOS)
    if not ran:
        raise ExtensionError(f"the atlas has no results in {FIGURES}.")
    drawn = pictures_in(FIGURES)
    for picture in drawn.values():
        shutil.copyfile(FIGURES / picture, folder / picture)
    names = "\n".join(page.scenario.name for page in ran)
    toctree = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\nall\n{names}\n```\n"
    put(folder / "index.md", f"{index(ran, drawn)}\n{toctree}")
    put(folder / "all.rst", everything(ran))
    for page in ran:
        put(folder / f"{page.scenario.name}.md", page_of(page))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
