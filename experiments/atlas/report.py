"""The atlas's pages: recommendations, a ranking a scenario, profiles over all."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.atlas import analysis, decisions, pictures
from experiments.atlas.analysis import Result, Row
from experiments.atlas.decisions import SCARCE, WHO, Page, kind_of, quoted
from experiments.atlas.scenario import SCENARIOS, Scenario, algorithm_of
from experiments.report import markdown
from fljax import statistics
from fljax.algorithms import REGISTRY
from fljax.metrics.definitions import METRICS

#: How many algorithms a cell names.
NAMED = 3

TITLE = "# Which algorithm, for which problem?"

QUESTIONS = """\
Answer three questions: who talks to whom, what goes wrong, and what is scarce. Each answer is what
the results below recommend, with its margin over the next algorithm.
"""

RULE = """\
## How this was computed

Every registered algorithm ran in every scenario that its needs admit. All were tuned by one rule,
that of `fl.tune` on seeds of their own, and then ran on fresh seeds. Each question is tuned for
itself: the numbers that are the best for the last value are not those that reach a target in the
fewest rounds, bits or gradients. Ranks are by the mean of the last value; their intervals hold
together at 95 % within a scenario (`fl.statistics.ranks`), and an algorithm whose interval begins
at 1 is *among the best*: it is the best or cannot be told from it. Costs are medians over seeds
until the target; "X needs 2 times as many" compares geometric means over scenarios. Algorithms with
equal runs are one entry with all their names. Errors more than {resolved:.0f} dB below a scenario's
target are rounding of single precision, and count as equal. Where all runs of a scenario are
evaluated on one test set, numbers are chosen on a validation set. Under a privacy budget the tuning
itself costs privacy, which is not counted. On a clock a few methods are compared at equal seconds,
some of them by several rules for when a round ends; the name then says the rule, and they are tuned
for the seconds to the target and for the last value. With few bits, too, a few methods are compared
when their clients have sent equally many: "bits up" are those that clients send, "bits" those of
both directions. Below a cloud "distant bits" go to and from the cloud, or from edge to edge.
"""

OLDER = """\
{count} of these scenarios have results from before each question was tuned for itself: numbers were
tuned for the last value alone, options with a default were not tuned{tested}. Their costs are left
out, and they count in no statement about costs.
"""

PROFILES = """\
## Over all scenarios of a kind

Left: performance profiles (Dolan and Moré 2002) over all seeds of all scenarios: the share of
instances in which an algorithm reaches the target, with at most so many times the rounds of the
best, on a clock the seconds, with few bits or below a cloud the bits. A scenario that refuses an
algorithm counts as one that it does not solve. Right: each algorithm's rounds, seconds or bits, as
a multiple of the least (geometric mean over the scenarios whose target it reaches), and its place
by the last value (mean over the scenarios that admit it; 0 is the first); those that no other beats
in both have names. Algorithms that reach fewer than half of the targets are left out there.

The score is the mean of a profile between the factors 1 and {factor:g} on a logarithmic scale.
*Slack* is the median over scenarios of the decades within which the most delicate number may lie
for a result within 1 dB of the best: 0 means that the best candidate alone is so good. *Inside* is
the share of scenarios in which the chosen values are not on the edge of all that were tried.
"""

SLACK = """\
Slack: the decades within which the most delicate number may lie for a result within 1 dB of the
best; "edge": a chosen value is on the edge of all that were tried.
"""

ON_A_CLOCK = """\
The methods differ in when a round ends. A round lasts as long, and costs as many bits and
gradients, for all numbers among which a method is tuned. Bits and gradients are all that clients
are asked for, also of work that is stopped or arrives too late.
"""

FEW_BITS = """\
Each method has as many rounds as there is room for in the bits that all clients together may send;
on average, where it draws when whole models are sent. Bits up are those that clients send, and bits
those of both directions. What clients send in a round does not depend on the numbers that are
tuned.
"""

BELOW_A_CLOUD = """\
A round has as many local steps for all. Distant bits go to and from the cloud, or from edge to
edge; bits between clients and edges, and between edges and regions, are not distant. Without edges
all are.
"""

UNTUNED = (
    "These results are from before each question was tuned for itself: numbers were tuned for the "
    "last value alone, and costs are left out."
)

TEST_SET = "They were chosen on the test set that evaluates them."

NEWER = (
    "Registered after these results were made, and missing where they would be admitted or refused:"
)

PICTURE = "Profiles, and {cost} against the last value"

MISSING = """\
## Not run

These scenarios are declared, and `python -m experiments.atlas run NAME` runs them:
"""


def pages(results: Mapping[str, Result | None], folder: Path) -> dict[str, str]:
    """The text of every page by its file's name; the pictures are written to the folder."""
    ran = decisions.read_all(results, SCENARIOS)
    drawn = pictures.draw(ran, folder)
    return {"README.md": front(ran, results, drawn)} | {
        f"{page.scenario.name}.md": scenario_page(page) for page in ran
    }


def front(
    ran: Sequence[Page], results: Mapping[str, Result | None], drawn: Mapping[str, str]
) -> str:
    """The decision page."""
    lines = [TITLE, "", QUESTIONS, *recommendations(ran), "## Scenarios", ""]
    for costs, members in by_costs(ran).items():
        lines += [*markdown(scenario_head(costs), [scenario_cells(page) for page in members]), ""]
    lines += [profiles()] if drawn else []
    for kind, rows in scores(ran, drawn).items():
        costs = pictures.with_costs(ran, kind)[0].scenario.costs
        lines += picture_of(kind, drawn[kind], costs[0])
        lines += [*markdown(scores_head(costs), rows), ""]
    lines += [*method(ran), ""]
    missing = [page for name, page in SCENARIOS.items() if results.get(name) is None]
    if missing:
        lines += [MISSING, *(f"- `{page.name}`: {page.title}" for page in missing)]
    return "\n".join(lines).rstrip() + "\n"


def recommendations(ran: Sequence[Page]) -> list[str]:
    """A table for each kind of network: what goes wrong, and the choice by scarce quantity."""
    given: dict[str, dict[str, list[str]]] = {}
    for kind, trouble, _, advice, members in decisions.all_advice(ran):
        cells = given.setdefault(kind, {}).setdefault(trouble, [f"{trouble} ({len(members)})"])
        cells.append(f"**{advice.label}**: {advice.margin}" if advice else "")
    lines = []
    for kind, rows in given.items():
        lines += [f"### {WHO[kind].capitalize()}", ""]
        scarce = decisions.scarce_in(next(p.scenario for p in ran if kind_of(p.scenario) == kind))
        head = ["what goes wrong (scenarios)", *(f"scarce: {SCARCE[name]}" for name in scarce)]
        lines += [*markdown(head, list(rows.values())), ""]
    return lines


def scenario_head(costs: Sequence[str]) -> tuple[str, ...]:
    """The columns of the table of all scenarios in which these are counted."""
    return "scenario", "best last value", "not told from it", *(f"fewest {c}" for c in costs)


def by_costs(ran: Sequence[Page]) -> dict[tuple[str, ...], list[Page]]:
    """The scenarios by the quantities that are counted in them, without a clock first."""
    members: dict[tuple[str, ...], list[Page]] = {}
    for page in ran:
        members.setdefault(page.scenario.costs, []).append(page)
    return members


def scenario_cells(page: Page) -> list[str]:
    """A scenario's row in the table of all of them."""
    name = f"[{page.scenario.title}]({page.scenario.name}.md)"
    first = analysis.best(page.rows)
    if not first:
        return [name, "none has a rank", *[""] * (1 + len(page.scenario.costs))]
    best = f"{quoted(first[0].label)} ({value(page.scenario, first[0])})"
    costs = []
    for cost in page.scenario.costs:
        labels, least = analysis.least(page.rows, cost)
        if labels:
            costs.append(f"{named(labels)} ({number(least)})")
        else:
            costs.append("none arrives" if analysis.has_costs(page.result) else "")
    return [name, best, named([row.label for row in first[1:]]), *costs]


def method(ran: Sequence[Page]) -> list[str]:
    """How the results were computed."""
    lines = [RULE.format(resolved=-10 * math.log10(analysis.RESOLVED)), *efforts(ran), ""]
    older = [page for page in ran if not analysis.has_costs(page.result)]
    if older:
        tests = [page.scenario.name for page in older if page.scenario.tuning_parts is not None]
        tested = f", and in {len(tests)} of them they were chosen on the test set" if tests else ""
        lines.append(OLDER.format(count=len(older), tested=tested))
    hours = sum(m["seconds"] for page in ran for m in page.result["methods"].values()) / 3600
    runs = sum(len(page.result["methods"]) for page in ran)
    distinct = sum(len(page.rows) for page in ran)
    lines.append(
        f"{len(ran)} of {len(SCENARIOS)} scenarios were run, {runs} pairs of an algorithm and a "
        f"scenario, {distinct} of them with different runs, in {hours:.1f} hours of a processor.\n"
    )
    if later := sorted({label for page in ran for label in newer(page)}, key=str.lower):
        lines.append(f"{NEWER} {', '.join(map(quoted, later))}.\n")
    return lines


def newer(page: Page) -> list[str]:
    """Registered algorithms that a result neither has nor refuses."""
    covered = {*map(algorithm_of, page.result["methods"]), *page.result["refused"]}
    return [label for label in REGISTRY if label not in covered]


def efforts(ran: Sequence[Page]) -> list[str]:
    """How much was computed, and in how many scenarios."""
    counts = Counter(tuple(page.result["effort"].items()) for page in ran)
    lines = []
    for effort, count in counts.most_common():
        size = dict(effort)
        limit = f", at most {size['methods']} algorithms" if size["methods"] else ""
        lines.append(
            f"- {count} scenarios: {size['tuning_seeds']} seeds of tuning, {size['points']} "
            f"candidates for each number, at most {size['extensions']} extensions beyond an edge, "
            f"refined {size['refinements']} times; {size['seeds']} fresh seeds{limit}."
        )
    return lines


def named(labels: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    rest = len(labels) - NAMED
    return ", ".join(map(quoted, labels[:NAMED])) + (f" and {rest} more" if rest > 0 else "")


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
    """A row of a scenario's table, as :func:`head` names its columns."""
    mean, low, high = (formatted(scenario, end) for end in row.value)
    name = " = ".join((row.label, *row.equals))
    if row.remark:
        return ["", name, row.remark, *[""] * (len(head(scenario.costs)) - 3)]
    rank, first, last = row.rank or (1, 1, 1)
    chosen = ", ".join(f"{k}={v:.3g}" for k, v in row.chosen.items())
    return [
        f"{rank} ({first} to {last})",
        name,
        f"{mean} ({low} to {high})",
        *("" if math.isnan(row.cost[of]) else number(row.cost[of]) for of in scenario.costs),
        chosen,
        "" if math.isnan(row.slack) else f"{row.slack:.1f}",
        str(row.tried) + ("" if row.interior else ", edge"),
        str(row.diverged or ""),
    ]


def head(costs: Sequence[str]) -> tuple[str, ...]:
    """The columns of a scenario's table."""
    return "rank", "algorithm", "last value", *costs, "tuned", "slack", "tried", "diverged"


def about(page: Page) -> list[str]:
    """A scenario's description in lines of Markdown."""
    scenario = page.scenario
    axes = ", ".join(f"{name}: {at}" for name, at in scenario.axes.items())
    label = METRICS[scenario.metric].label
    *counted, _ = scenario.costs  # the last are gradients
    tuned = "each of them" if scenario.seconds is None else "the seconds"
    text = (
        f"Axes: {axes}. Metric: {label} {end_of(scenario)}. {', '.join(counted).capitalize()} and "
        f"sample gradients of all clients are counted until it is {target(scenario)} (medians over "
        f"seeds), with numbers that were tuned for {tuned}."
    )
    lines = [scenario.reason, "", text, "", *rules(scenario), SLACK.rstrip()]
    if not analysis.has_costs(page.result):
        tested = f" {TEST_SET}" if scenario.tuning_parts is not None else ""
        lines += ["", UNTUNED + tested]
    return lines


def end_of(scenario: Scenario) -> str:
    """When a scenario's last values are read, in words."""
    if scenario.seconds is not None:
        return f"after {scenario.seconds:.10g} seconds"
    if scenario.bits is not None:
        return f"after {scenario.bits:.3g} bits of clients"
    return f"after {scenario.rounds} rounds"


def rules(scenario: Scenario) -> list[str]:
    """The methods of a scenario that compares some alone, and how each of them runs."""
    if not scenario.rules:
        return []
    methods: dict[str, list[str]] = {}
    for label, rule in scenario.rules.items():
        methods.setdefault(rule.words, []).append(label)
    lines = [f"- {', '.join(map(quoted, labels))}: {words}." for words, labels in methods.items()]
    if scenario.seconds is not None:
        text = ON_A_CLOCK
    elif scenario.bits is not None:
        text = FEW_BITS
    else:
        text = BELOW_A_CLOUD
    return [text.rstrip(), "", *lines, ""]


def scenario_page(page: Page) -> str:
    lines = [f"# {page.scenario.title}", "", *about(page), ""]
    lines += markdown(head(page.scenario.costs), [cells(page.scenario, row) for row in page.rows])
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


def profiles() -> str:
    return PROFILES.format(factor=analysis.FACTOR)


def picture_of(kind: str, picture: str, cost: str) -> list[str]:
    """The heading and the picture of a kind of network, in which a cost is drawn."""
    return [f"### {WHO[kind].capitalize()}", "", f"![{PICTURE.format(cost=cost)}]({picture})", ""]


def scores_head(costs: Sequence[str]) -> tuple[str, ...]:
    """The columns of the table of scores."""
    return (
        *("algorithm", "runs in", "best", "within 2", "within 10", "ever"),
        *(f"score, {of}" for of in costs),
        *("slack", "inside"),
    )


def scores(ran: Sequence[Page], drawn: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """For each kind of network that has a picture a table of all algorithms, the best first."""
    tables = {}
    for kind in drawn:
        members = pictures.with_costs(ran, kind)
        costs = members[0].scenario.costs
        first = costs[0]
        shares = {of: statistics.profile(analysis.costs(members, of)) for of in costs}
        score = {of: analysis.scores(shares[of]) for of in costs}
        labels = score[first]["algorithm"].values[np.argsort(-score[first].values)]
        tables[kind] = []
        for label in map(str, labels):
            runs = [row for page in members for row in page.rows if row.label == label]
            slack = [row.slack for row in runs if not math.isnan(row.slack)]
            tables[kind].append(
                [
                    label,
                    f"{len(runs)} of {len(members)}",
                    *(f"{analysis.within(shares[first], label, f):.2f}" for f in (1, 2, 10)),
                    f"{float(shares[first].sel(algorithm=label)[-1]):.2f}",
                    *(f"{float(score[of].sel(algorithm=label)):.2f}" for of in costs),
                    f"{np.median(slack):.1f}" if slack else "",
                    f"{np.mean([row.interior for row in runs]):.2f}",
                ]
            )
    return tables
