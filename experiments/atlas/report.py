"""The atlas's pages: decisions in words and numbers, a ranking a scenario, profiles over all."""

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from experiments.atlas import analysis
from experiments.atlas.analysis import COSTS, Result, Row
from experiments.atlas.convex import CONDITION
from experiments.atlas.scenario import SCENARIOS, Scenario
from experiments.picture import print_style
from fljax import statistics
from fljax._core.storage import replace_file
from fljax.algorithms import REGISTRY
from fljax.metrics.definitions import METRICS
from fljax.plotting.house_style import look_of

#: How many algorithms a sentence names, and how many a picture draws.
NAMED = 6
DRAWN = 8

#: Kinds of scenarios that share a profile, and the titles of their panels. Clusters of peers and
#: of servers' clients are single scenarios without a profile.
KINDS = {
    "server": "one server, one model",
    "peers": "peers, one model",
    "personal server": "one server, models of clients' own",
}

TITLE = "# Which algorithm, for which problem?"

RULE = """\
Every registered algorithm ran in every scenario that its needs admit. All were tuned by one rule,
that of `fl.tune` with its default ranges ({tuning_seeds} seeds of their own, {points} candidates
for each number; extensions beyond an edge: {extensions}, refinements: {refinements}), and then ran
on {seeds} fresh seeds.{limit} Ranks are by the mean of the last value; their intervals hold
together at 95 % within a scenario (`fl.statistics.ranks`). An algorithm whose interval begins at 1
is the best or cannot be told from it. Errors more than {resolved:.0f} dB below a scenario's target
are rounding of single precision, and count as equal. Under a privacy budget the tuning itself costs
privacy, which is not counted.
"""

DECISIONS = """\
## Decisions

For each problem: the best algorithm (mean of the last value, its rank with the simultaneous
interval), those that cannot be told from it, who needs the fewest rounds, bits and gradients until
the target (medians), and whose choice of numbers matters least.
"""

SHORT = """\
## In short

In how many scenarios of each kind an algorithm is the best or cannot be told from the best (its
rank's interval begins at 1):
"""

PROFILES = """\
## Over all scenarios

Performance profiles (Dolan and Moré 2002) over all seeds of all scenarios of a kind: the share of
instances in which an algorithm reaches the target, with at most so many times the rounds of the
best. A scenario that refuses an algorithm counts as one that it does not solve. The score is the
mean of a profile between the factors 1 and {factor:g} on a logarithmic scale. *Slack* is the median
over scenarios of the decades within which the most delicate number may lie for a result within 1 dB
of the best: 0 means that the best candidate alone is so good. *Inside* is the share of scenarios in
which the chosen values are not on the edge of all that were tried.

![Performance profiles](profiles.png)
"""

SLACK = """\
Slack: the decades within which the most delicate number may lie for a result within 1 dB of the
best; "edge": the chosen value is on the edge of all that were tried.
"""

NEWER = (
    "Registered after these results were made, and missing where they would be admitted or refused:"
)

MISSING = """\
## Not run

These scenarios are declared, and `python -m experiments.atlas run NAME` runs them:
"""


#: Kinds of problems in the summary: their description, and a test for scenarios.
PROBLEMS: dict[str, Callable[[Scenario], bool]] = {
    "alike clients of one server": lambda case: case.talks == "server" and unlike(case, 0, 0),
    "mildly unlike clients of one server": lambda case: (
        case.talks == "server" and unlike(case, 0.1, 1)
    ),
    "strongly unlike clients of one server": lambda case: (
        case.talks == "server" and unlike(case, 1)
    ),
    "a tenth of the clients, or absent ones": lambda case: "participation" in case.axes,
    "badly conditioned": lambda case: case.axes.get("condition", 1) == CONDITION["badly"],
    "few bits": lambda case: "compression" in case.axes,
    "attackers": lambda case: "attack" in case.axes,
    "privacy": lambda case: "privacy" in case.axes,
    "skewed labels (Dirichlet 0.1 and 1)": lambda case: (
        float(case.axes.get("concentration", 9)) <= 1
    ),
    "peers on a fixed graph without failures": lambda case: (
        case.talks == "peers" and {*case.axes} == {"graph", "dissimilarity"}
    ),
    "peers with lossy, late or sleeping neighbors": lambda case: "link" in case.axes,
    "clusters, a model for each": lambda case: "clusters" in case.axes,
    "models around a common one, each client's own": lambda case: "own share" in case.axes,
    "streams": lambda case: case.axes.get("data") == "a stream",
}


def unlike(scenario: Scenario, least: float, most: float = math.inf) -> bool:
    """Whether the clients' dissimilarity is in this range; False without that axis."""
    return least <= float(scenario.axes.get("dissimilarity", math.nan)) <= most


class Pages(NamedTuple):
    """A scenario, its result and the rows of its table."""

    scenario: Scenario
    result: Result
    rows: list[Row]


def kind_of(scenario: Scenario) -> str:
    return f"personal {scenario.talks}" if scenario.personal else scenario.talks


def read_all(results: Mapping[str, Result | None]) -> list[Pages]:
    """The scenarios that were run, in the order of their declaration."""
    return [
        Pages(scenario, result, analysis.table(scenario, result))
        for name, scenario in SCENARIOS.items()
        if (result := results.get(name)) is not None
    ]


def pages(results: Mapping[str, Result | None], folder: Path) -> dict[str, str]:
    """The text of every page by its file's name; the picture is written to the folder."""
    ran = read_all(results)
    draw([page.scenario for page in ran], results, folder / "profiles.png")
    return {"README.md": front(ran, results)} | {
        f"{page.scenario.name}.md": scenario_page(page) for page in ran
    }


def front(ran: Sequence[Pages], results: Mapping[str, Result | None]) -> str:
    """The decision page."""
    missing = [page for name, page in SCENARIOS.items() if results.get(name) is None]
    efforts = {tuple(sorted(page.result["effort"].items())) for page in ran}
    rules = [rule(dict(effort)) for effort in efforts]
    hours = sum(m["seconds"] for page in ran for m in page.result["methods"].values()) / 3600
    many = sum(len(page.rows) for page in ran)
    count = (
        f"{len(ran)} of {len(SCENARIOS)} scenarios were run, {many} pairs of an algorithm and a "
        f"scenario in {hours:.1f} hours: of a processor's time in newer results, of the clock on a "
        "machine that did other work besides in older ones.\n"
    )
    later = sorted({label for page in ran for label in newer(page)}, key=str.lower)
    since = [f"{NEWER} {', '.join(map(quoted, later))}.\n"] if later else []
    lines = [
        TITLE,
        "",
        *rules,
        count,
        *since,
        SHORT,
        *summary(ran),
        "",
        DECISIONS,
        *(decision(page) for page in ran),
    ]
    lines += ["", PROFILES.format(factor=analysis.FACTOR), *profile_tables(ran, results)]
    if missing:
        lines += [MISSING, *(f"- `{page.name}`: {page.title}" for page in missing)]
    return "\n".join(lines) + "\n"


def newer(page: Pages) -> list[str]:
    """Registered algorithms that a result neither has nor refuses."""
    covered = {row.label for row in page.rows} | page.result["refused"].keys()
    return [label for label in REGISTRY if label not in covered]


def rule(effort: dict[str, Any]) -> str:
    """A paragraph on how results of this effort were computed."""
    most = effort["methods"]
    limit = f" In this quick run a scenario has {most} algorithms at most." if most else ""
    resolved = -10 * math.log10(analysis.RESOLVED)
    return RULE.format(**effort, limit=limit, resolved=resolved)


def summary(ran: Sequence[Pages]) -> list[str]:
    """For each kind of problem, how often each algorithm is among the best, most frequent first."""
    lines = []
    for kind, belongs in PROBLEMS.items():
        those = [page for page in ran if belongs(page.scenario)]
        counts = Counter(row.label for page in those for row in analysis.best(page.rows))
        if not counts:
            continue
        names = [f"{quoted(label)} {count}" for label, count in counts.most_common(NAMED)]
        plural = "scenario" + "s" * (len(those) > 1)
        lines.append(f"- **{kind}** ({len(those)} {plural}): {', '.join(names)}.")
    return lines


def decision(page: Pages) -> str:
    """A list entry: the recommended algorithms for this scenario."""
    begin = f"- **{page.scenario.when}** ([table]({page.scenario.name}.md)): "
    first = analysis.best(page.rows)
    if not first:
        return begin + "no algorithm has a rank."
    top = first[0]
    runners_up = [row.label for row in first[1:]]
    low, high = top.rank[1:] if top.rank else (1, 1)
    rank = f"rank 1, between {low} and {high} of {len(page.rows)}"
    phrases = [f"*{quoted(top.label)}* ({value(page.scenario, top)}; {rank})"]
    if runners_up:
        phrases.append(f"not told from it: {named(runners_up)}")
    for of in COSTS:
        labels, cost = analysis.least(page.rows, of)
        if labels:
            phrases.append(
                f"fewest {of} to {target(page.scenario)}: {named(labels)} ({number(cost)})"
            )
    if all(not analysis.least(page.rows, of)[0] for of in COSTS):
        phrases.append(f"none reaches {target(page.scenario)} in half of its runs")
    easy = [row for row in first if not math.isnan(row.slack)]
    if easy:
        widest = max(easy, key=lambda row: row.slack)
        phrases.append(
            f"of these the easiest to tune: {quoted(widest.label)} ({widest.slack:.1f} decades)"
        )
    return begin + "; ".join(phrases) + "."


def named(labels: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    rest = len(labels) - NAMED
    return ", ".join(map(quoted, labels[:NAMED])) + (f" and {rest} more" if rest > 0 else "")


def quoted(label: str) -> str:
    """A name, quoted if it contains a comma and would look like two names in a list."""
    return f"'{label}'" if "," in label else label


def number(cost: float) -> str:
    if math.isinf(cost):
        return "never"
    return "unknown" if math.isnan(cost) else f"{cost:.3g}" if cost < 1e4 else f"{cost:.1e}"


def formatted(scenario: Scenario, mean: float) -> str:
    unit = " dB" if METRICS[scenario.metric].decibel else ""
    return f"{mean:.1f}{unit}" if unit else f"{mean:.3f}"


def value(scenario: Scenario, row: Row) -> str:
    return formatted(scenario, row.value[0])


def target(scenario: Scenario) -> str:
    decibel = METRICS[scenario.metric].decibel
    level = statistics.decibels(scenario.target) if decibel else scenario.target
    return formatted(scenario, float(level))


def cells(scenario: Scenario, row: Row) -> list[str]:
    """A row of a scenario's table, as :data:`HEAD` names its columns."""
    mean, low, high = (formatted(scenario, end) for end in row.value)
    if row.remark:
        return ["", row.label, row.remark, *[""] * 7]
    rank, first, last = row.rank or (1, 1, 1)
    chosen = ", ".join(f"{k}={v:.3g}" for k, v in row.chosen.items())
    return [
        f"{rank} ({first} to {last})",
        row.label,
        f"{mean} ({low} to {high})",
        *(number(row.cost[of]) for of in COSTS),
        chosen,
        "" if math.isnan(row.slack) else f"{row.slack:.1f}",
        str(row.tried) + ("" if row.interior else ", edge"),
        str(row.diverged or ""),
    ]


HEAD = ("rank", "algorithm", "last value", *COSTS, "tuned", "slack", "tried", "diverged")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def about(scenario: Scenario) -> list[str]:
    """A scenario's description in lines of Markdown."""
    axes = ", ".join(f"{name}: {at}" for name, at in scenario.axes.items())
    label = METRICS[scenario.metric].label
    counted = (
        f"Axes: {axes}. Metric: {label} after {scenario.rounds} rounds. Rounds, bits and sample "
        f"gradients of all clients are counted until it is {target(scenario)} (medians over seeds)."
    )
    return [scenario.reason, "", counted, "", SLACK.rstrip()]


def scenario_page(page: Pages) -> str:
    lines = [f"# {page.scenario.title}", "", *about(page.scenario), ""]
    lines += markdown(HEAD, [cells(page.scenario, row) for row in page.rows])
    lines += ["", "## Refused", "", *refusals(page.result["refused"])]
    if later := newer(page):
        lines += ["", f"{NEWER} {', '.join(map(quoted, later))}."]
    return "\n".join(lines) + "\n"


def refusals(refused: Mapping[str, str]) -> list[str]:
    """The refused algorithms, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for label, why in refused.items():
        reasons.setdefault(why, []).append(label)
    many_first = sorted(reasons.items(), key=lambda pair: -len(pair[1]))
    return [f"- {', '.join(map(quoted, labels))}: {why}" for why, labels in many_first]


def by_kind(ran: Sequence[Pages]) -> dict[str, list[Pages]]:
    kinds = {kind: [page for page in ran if kind_of(page.scenario) == kind] for kind in KINDS}
    return {kind: those for kind, those in kinds.items() if those}


def profile_tables(ran: Sequence[Pages], results: Mapping[str, Result | None]) -> list[str]:
    lines = []
    for kind, those in by_kind(ran).items():
        scenarios = [page.scenario for page in those]
        shares = {of: statistics.profile(analysis.costs(scenarios, results, of)) for of in COSTS}
        score = {of: analysis.scores(shares[of]) for of in COSTS}
        labels = score["rounds"]["algorithm"].values[np.argsort(-score["rounds"].values)]
        rows = []
        for label in map(str, labels):
            runs = [row for page in those for row in page.rows if row.label == label]
            slack = [row.slack for row in runs if not math.isnan(row.slack)]
            rows.append(
                [
                    label,
                    f"{len(runs)} of {len(those)}",
                    *(f"{analysis.within(shares['rounds'], label, f):.2f}" for f in (1, 2, 10)),
                    f"{float(shares['rounds'].sel(algorithm=label)[-1]):.2f}",
                    *(f"{float(score[of].sel(algorithm=label)):.2f}" for of in COSTS),
                    f"{np.median(slack):.1f}" if slack else "",
                    f"{np.mean([row.interior for row in runs]):.2f}",
                ]
            )
        head = ["algorithm", "runs in", "best", "within 2", "within 10", "ever"]
        head += [f"score, {of}" for of in COSTS]
        lines += [f"### {KINDS[kind].capitalize()}", ""]
        lines += [*markdown([*head, "slack", "inside"], rows), ""]
    return lines


def draw(scenarios: Sequence[Scenario], results: Mapping[str, Result | None], path: Path) -> None:
    """The profiles of the best algorithms of every kind."""
    kinds = {kind: [s for s in scenarios if kind_of(s) == kind] for kind in KINDS}
    kinds = {kind: those for kind, those in kinds.items() if those}
    with print_style():
        picture, row = plt.subplots(
            1, len(kinds), figsize=(3.2 * len(kinds), 4.2), squeeze=False, layout="constrained"
        )
        for ax, (kind, those) in zip(row[0], kinds.items(), strict=True):
            panel(ax, kind, analysis.costs(those, results, "rounds"))
        content = io.BytesIO()
        picture.savefig(content, format="png", dpi=150)
        replace_file(path, content.getvalue())
    plt.close(picture)


def panel(ax: Any, kind: str, cost: Any) -> None:
    shares = statistics.profile(cost)
    score = analysis.scores(shares)
    order = np.argsort(-score.values)[:DRAWN]
    top = score["algorithm"].values[order[score.values[order] > 0]]
    factors = shares["factor"].values
    for index, label in enumerate(top):
        share = shares.sel(algorithm=label).values
        ends = np.append(factors[factors < analysis.FACTOR], analysis.FACTOR)
        heights = share[: len(ends) - 1]
        look = {k: v for k, v in look_of(index).items() if k in ("color", "linestyle")}
        ax.step(ends, np.append(heights, heights[-1]), where="post", label=str(label), **look)
    ax.set(
        title=f"{KINDS[kind]}\n{cost.sizes['instance']} instances",
        xlabel="rounds, as a multiple of the least",
        xscale="log",
        xlim=(1, analysis.FACTOR),
        ylim=(0, 1.02),
    )
    ax.set_xticks([1, 2, 5, 10], ["1", "2", "5", "10"])
    ax.minorticks_off()
    if ax.get_subplotspec().is_first_col():
        ax.set_ylabel("share of instances")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, frameon=False)
