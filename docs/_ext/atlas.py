"""The atlas: recommendations, a page a scenario, and all results in a table that is filtered."""

import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pages import hover, put, table
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from experiments.atlas import decisions, report
from experiments.atlas.analysis import Row
from experiments.atlas.commands import SCENARIOS  # importing it declares them all
from experiments.atlas.decisions import SCARCE, WHO, Page
from experiments.atlas.pictures import pictures_in, with_costs
from experiments.atlas.running import read
from experiments.atlas.scenario import ALL_COSTS, Scenario, algorithm_of
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

MORE = """\
{doc}`All results in one table <all>`, to be sorted and filtered; {doc}`performance profiles and
scores <profiles>` of all algorithms over the scenarios of a kind.
"""


def linked(label: str) -> str:
    return f":doc:`{label} </algorithms/{REGISTRY[algorithm_of(label)].__name__}>`"


def cells(scenario: Scenario, row: Row) -> list[str]:
    """A row of a scenario's table, with intervals that appear on hovering."""
    name = " = ".join(map(linked, (row.label, *row.equals)))
    if row.remark:
        return ["", name, row.remark, *[""] * (len(report.head(scenario.costs)) - 3)]
    texts = report.cells(scenario, row)
    estimate, first, last = row.rank or (1, 1, 1)
    mean, low, high = (report.formatted(scenario, end) for end in row.value)
    rank = hover(str(estimate), f"between {first} and {last}")
    return [rank, name, hover(mean.removesuffix(" dB"), f"{low} to {high}"), *texts[3:]]


def everything(ran: Sequence[Page]) -> str:
    """All columns of all scenarios' tables."""
    # What is not counted in a scenario is blank there.
    head = ["algorithm", "scenario", "who", "rank", "of", "last value", *report.head(ALL_COSTS)[3:]]
    rows = []
    for page in ran:
        scenario = hover(page.scenario.name, page.scenario.title)
        who = WHO[decisions.kind_of(page.scenario)]
        for row in page.rows:
            rank, name, value, *rest = cells(page.scenario, row)
            counted = dict(zip(page.scenario.costs, rest, strict=False))
            rest = [*(counted.get(of, "") for of in ALL_COSTS), *rest[len(counted) :]]
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


def scenarios(ran: Sequence[Page]) -> list[str]:
    """The best of every scenario, in a table for each list of what is counted."""
    lines = []
    for costs, members in report.by_costs(ran).items():
        rows = [
            [f":doc:`{p.scenario.title} <{p.scenario.name}>`", *report.scenario_cells(p)[1:]]
            for p in members
        ]
        lines += in_page(table(report.scenario_head(costs), rows, "browse"))
    return lines


def in_page(text: str) -> list[str]:
    return ["```{eval-rst}", text, "```", ""]


def index(ran: Sequence[Page]) -> str:
    """The start: three questions, then the scenarios on which the answers rest."""
    words = "! which algorithm, ! choose an algorithm, ! best algorithm, ! comparison of algorithms"
    lines = [report.TITLE, "", f"```{{index}} {words}\n```", "", report.QUESTIONS]
    lines += [*in_page(answers(ran)), MORE, "## Scenarios", "", *scenarios(ran)]
    return "\n".join([*lines, *report.method(ran)]) + "\n"


def profiles(ran: Sequence[Page], drawn: Mapping[str, str]) -> str:
    """All algorithms over the scenarios of a kind: a picture and a table for each kind."""
    heading, _, text = report.profiles().partition("\n")
    lines = [heading.removeprefix("#"), text]
    for kind, rows in report.scores(ran, drawn).items():
        costs = with_costs(ran, kind)[0].scenario.costs
        title, *picture = report.picture_of(kind, drawn[kind], costs[0])
        lines += [title.removeprefix("#"), *picture]
        lines += in_page(table(report.scores_head(costs), rows, "browse"))
    return "\n".join(lines) + "\n"


def page_of(page: Page) -> str:
    """A scenario's page: its description, the ranking, refused algorithms and the reasons."""
    ranking = table(
        report.head(page.scenario.costs), [cells(page.scenario, row) for row in page.rows], "browse"
    )
    lines = [f"# {page.scenario.title}", "", *report.about(page), "", *in_page(ranking)]
    lines += ["## Refused", "", *report.refusals(page.result["refused"])]
    return "\n".join(lines) + "\n"


@cache
def read_pages(figures: Path) -> list[Page]:
    """All scenarios with results in a folder."""
    try:
        results = {name: read(name, figures) for name in SCENARIOS}
    except UsageError as error:
        raise ExtensionError(f"the atlas: {error}") from None
    ran = decisions.read_all(results, SCENARIOS)
    if not ran:
        raise ExtensionError(f"the atlas has no results in {figures}.")
    return ran


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "atlas"
    folder.mkdir(exist_ok=True)
    ran = read_pages(FIGURES)
    drawn = pictures_in(FIGURES)
    for picture in drawn.values():
        shutil.copyfile(FIGURES / picture, folder / picture)
    names = "\n".join(page.scenario.name for page in ran)
    toctree = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\nall\nprofiles\n{names}\n```\n"
    put(folder / "index.md", f"{index(ran)}\n{toctree}")
    put(folder / "profiles.md", profiles(ran, drawn))
    put(folder / "all.rst", everything(ran))
    for page in ran:
        put(folder / f"{page.scenario.name}.md", page_of(page))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
