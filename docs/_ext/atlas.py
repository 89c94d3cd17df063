"""The atlas: decisions, a page a scenario, and all results in a table that the browser filters."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from pages import put, table
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from experiments.atlas import report
from experiments.atlas.analysis import COSTS, Row
from experiments.atlas.commands import SCENARIOS  # importing it declares them all
from experiments.atlas.running import read
from experiments.atlas.scenario import Scenario
from experiments.errors import UsageError
from fljax.algorithms import REGISTRY

FIGURES = Path(__file__).parents[2] / "figures" / "atlas"

WHO = {"server": "one server", "servers": "servers on a graph", "peers": "peers"}

ALL = """\
:hide-toc:

All results
===========

Every algorithm in every scenario that was run. Click on a column heading to sort, type words to
filter. Point at a rank for its simultaneous interval, at a value for its own.

"""


def hover(text: str, more: str) -> str:
    """A cell that shows more when it is pointed at."""
    return f":abbr:`{text} ({more})`"


def cells(scenario: Scenario, row: Row) -> list[str]:
    """A row of a scenario's table, with intervals that appear on hovering."""
    name = f":doc:`{row.label} </algorithms/{REGISTRY[row.label].__name__}>`"
    if row.remark:
        return ["", name, row.remark, *[""] * (len(report.HEAD) - 3)]
    texts = report.cells(scenario, row)
    estimate, first, last = row.rank or (1, 1, 1)
    mean, low, high = (report.formatted(scenario, end) for end in row.value)
    rank = hover(str(estimate), f"between {first} and {last}")
    return [rank, name, hover(mean.removesuffix(" dB"), f"{low} to {high}"), *texts[3:]]


def everything(ran: Sequence[report.Pages]) -> str:
    head = ["algorithm", "scenario", "who talks", "rank", "of", "last value", *COSTS, "slack"]
    rows = []
    for entry in ran:
        for row in entry.rows:
            rank, name, value, *rest = cells(entry.scenario, row)
            values = dict(zip(report.HEAD[3:], rest, strict=True))
            scenario = hover(entry.scenario.name, entry.scenario.title)
            costs = [values[of] for of in COSTS]
            count = str(len(entry.rows))
            where = WHO[entry.scenario.talks]
            rows.append([name, scenario, where, rank, count, value, *costs, values["slack"]])
    return ALL + table(head, rows, "browse") + "\n"


def page(entry: report.Pages) -> str:
    """A scenario's page: its description, the ranking, refused algorithms and the reasons."""
    rows = [cells(entry.scenario, row) for row in entry.rows]
    ranking = table(report.HEAD, rows, "browse")
    lines = [f"# {entry.scenario.title}", "", *report.about(entry.scenario), ""]
    lines += ["```{eval-rst}", ranking, "```", "", "## Refused", ""]
    return "\n".join([*lines, *report.refusals(entry.result["refused"])]) + "\n"


def write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "atlas"
    folder.mkdir(exist_ok=True)
    try:
        results = {name: read(name, FIGURES) for name in SCENARIOS}
    except UsageError as error:
        raise ExtensionError(f"the atlas: {error}") from None
    ran = report.read_all(results)
    if not ran:
        raise ExtensionError(f"the atlas has no results in {FIGURES}.")
    shutil.copyfile(FIGURES / "profiles.png", folder / "profiles.png")
    names = "\n".join(entry.scenario.name for entry in ran)
    more = "{doc}`All results in one table <all>`, to be sorted and filtered.\n"
    front = report.front(ran, results).replace(report.SHORT, f"{more}\n{report.SHORT}", 1)
    toctree = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\nall\n{names}\n```\n"
    put(folder / "index.md", f"{front}\n{toctree}")
    put(folder / "all.rst", everything(ran))
    for entry in ran:
        put(folder / f"{entry.scenario.name}.md", page(entry))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
