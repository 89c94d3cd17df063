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
    """A row of a scenario's table with its intervals behind what it shows."""
    name = f":doc:`{row.label} </algorithms/{REGISTRY[row.label].__name__}>`"
    if row.remark:
        return ["", name, row.remark, *[""] * (len(report.HEAD) - 3)]
    whole = report.cells(scenario, row)
    place, first, last = row.rank or (1, 1, 1)
    mean, low, high = (report.shown(scenario, end) for end in row.value)
    rank = hover(str(place), f"between {first} and {last}")
    return [rank, name, hover(mean.removesuffix(" dB"), f"{low} to {high}"), *whole[3:]]


def everything(ran: Sequence[report.Pages]) -> str:
    head = ["algorithm", "scenario", "who talks", "rank", "of", "last value", *COSTS, "slack"]
    rows = []
    for one in ran:
        for row in one.rows:
            rank, name, value, *others = cells(one.scenario, row)
            known = dict(zip(report.HEAD[3:], others, strict=True))
            scenario = hover(one.scenario.name, one.scenario.title)
            costs = [known[of] for of in COSTS]
            count = str(len(one.rows))
            where = WHO[one.scenario.talks]
            rows.append([name, scenario, where, rank, count, value, *costs, known["slack"]])
    return ALL + table(head, rows, "browse") + "\n"


def page(one: report.Pages) -> str:
    """A scenario's page: what it is, its ranking, who is refused and why."""
    rows = [cells(one.scenario, row) for row in one.rows]
    ranking = table(report.HEAD, rows, "browse")
    lines = [f"# {one.scenario.title}", "", *report.about(one.scenario), ""]
    lines += ["```{eval-rst}", ranking, "```", "", "## Refused", ""]
    return "\n".join([*lines, *report.refusals(one.result["refused"])]) + "\n"


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
    names = "\n".join(one.scenario.name for one in ran)
    more = "{doc}`All results in one table <all>`, to be sorted and filtered.\n"
    front = report.front(ran, results).replace(report.SHORT, f"{more}\n{report.SHORT}", 1)
    toctree = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\nall\n{names}\n```\n"
    put(folder / "index.md", f"{front}\n{toctree}")
    put(folder / "all.rst", everything(ran))
    for one in ran:
        put(folder / f"{one.scenario.name}.md", page(one))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
