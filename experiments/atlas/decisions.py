"""Three questions (who talks to whom, what goes wrong, what is scarce), and the algorithms that the
results recommend for each answer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.atlas import analysis
from experiments.atlas.analysis import Result, Row
from experiments.atlas.convex import CONDITION
from experiments.atlas.scenario import ALL_COSTS, Scenario
from fljax.metrics.definitions import METRICS


class Page(NamedTuple):
    """A scenario, its result and the rows of its table."""

    scenario: Scenario
    result: Result
    rows: list[Row]


#: Who talks to whom, and whose models are wanted.
WHO = {
    "server": "one server, one model",
    "peers": "peers, one model",
    "timed server": "one server, on a clock",
    "timed peers": "peers, on a clock",
    "compressing server": "one server, few bits",
    "compressing peers": "peers, few bits",
    "servers": "edges below a cloud, one model",
    "personal server": "one server, models of clients' own",
    "personal peers": "peers, models of their own",
    "personal servers": "servers on a graph, models of clusters",
}

#: Axes of scenarios in which clients differ and nothing else goes wrong.
PLAIN = {"problem", "condition", "dissimilarity", "graph"}


def unlike(scenario: Scenario, least: float, most: float = math.inf) -> bool:
    """Whether the clients' dissimilarity is in this range and nothing else goes wrong."""
    at = float(scenario.axes.get("dissimilarity", math.nan))
    return scenario.axes.keys() <= PLAIN and least <= at <= most


#: What goes wrong, with a test for scenarios.
TROUBLES: dict[str, Callable[[Scenario], bool]] = {
    "nothing: clients are alike": lambda case: unlike(case, 0, 0),
    "clients are mildly unlike": lambda case: unlike(case, 0.1, 1),
    "clients are strongly unlike": lambda case: unlike(case, 1),
    "bad conditioning": lambda case: case.axes.get("condition", 1) == CONDITION["badly"],
    "skewed labels": lambda case: float(case.axes.get("concentration", math.inf)) <= 1,
    "labels spread evenly": lambda case: float(case.axes.get("concentration", 0)) > 1,
    "clients are tasks of their own": lambda case: bool(
        case.axes.keys() & {"clusters", "own share"}
    ),
    "few take part, or come and go": lambda case: (
        "participation" in case.axes or case.axes.get("link") == "absent"
    ),
    "clients work unequally": lambda case: "work" in case.axes,
    "late messages": lambda case: "delays" in case.axes or case.axes.get("link") == "late",
    "lost messages": lambda case: case.axes.get("link") == "lossy",
    "short messages": lambda case: "compression" in case.axes,
    "attackers": lambda case: "attack" in case.axes,
    "a privacy budget": lambda case: "privacy" in case.axes,
    "clients are equally fast": lambda case: case.axes.get("clock") == "equal speeds",
    "a few clients are very slow": lambda case: case.axes.get("clock") == "heavy-tailed speeds",
    "clients are there at night": lambda case: case.axes.get("clock") == "time of day",
    "slow links that fail": lambda case: case.axes.get("clock") == "poor links",
    "edges are alike, clients are not": lambda case: (
        case.axes.get("edges") == "alike" and "participation" not in case.axes
    ),
    "edges are unlike": lambda case: case.axes.get("edges") == "unlike",
    "more than two levels": lambda case: "levels" in case.axes,
    "samples arrive one by one": lambda case: case.axes.get("data") == "a stream",
}

#: What is scarce: by its name in the results, in words.
SCARCE = {
    "final": "nothing (best last value)",
    **{cost: cost for cost in ALL_COSTS},
    "tuning": "trials for tuning",
}


#: Differences of last values, in dB or points of an error rate, that round to zero.
LEVEL = 0.05


class Advice(NamedTuple):
    """An algorithm for one answer to each question, and the evidence."""

    label: str
    margin: str


def kind_of(scenario: Scenario) -> str:
    """Who talks to whom, a key of :data:`WHO`."""
    if scenario.seconds is not None:
        return f"timed {scenario.talks}"
    if scenario.bits is not None:
        return f"compressing {scenario.talks}"
    return f"personal {scenario.talks}" if scenario.personal else scenario.talks


def scarce_in(scenario: Scenario) -> list[str]:
    """What may be scarce in a scenario, keys of :data:`SCARCE`."""
    return ["final", *scenario.costs, "tuning"]


def groups(pages: Sequence[Page]) -> dict[tuple[str, str], list[Page]]:
    """The scenarios of each kind in which the same goes wrong."""
    members = {
        (kind, trouble): [p for p in pages if kind_of(p.scenario) == kind and applies(p.scenario)]
        for kind in WHO
        for trouble, applies in TROUBLES.items()
    }
    return {key: pages_of_key for key, pages_of_key in members.items() if pages_of_key}


def advice(pages: Sequence[Page], scarce: str) -> Advice | None:
    """The recommendation for some scenarios; ``None`` where no result answers the question."""
    if scarce == "final":
        return _by_end(pages)
    return _by_slack(pages) if scarce == "tuning" else _by_cost(pages, scarce)


def _times_best(pages: Sequence[Page]) -> dict[str, int]:
    """In how many scenarios an algorithm cannot be told from the best, most often first; among
    equal ones the better by its mean place is first.
    """
    best: dict[str, int] = {}
    places: dict[str, list[float]] = {}
    for page in pages:
        for row in analysis.best(page.rows):
            best[row.label] = best.get(row.label, 0) + 1
        for place, row in enumerate(page.rows):
            places.setdefault(row.label, []).append(place / len(page.rows))
    ordered = sorted(best, key=lambda label: (-best[label], np.mean(places[label])))
    return {label: best[label] for label in ordered}


def _by_end(pages: Sequence[Page]) -> Advice | None:
    """The algorithm that is the best, or not told from it, in the most scenarios."""
    best = _times_best(pages)
    if not best:
        return None
    label, *others = best
    clauses = [f"among the best in {best[label]} of {len(pages)}", *_ahead(pages, label)]
    if others:
        clauses.append(f"next: {quoted(others[0])} ({best[others[0]]})")
    return Advice(label, ", ".join(clauses))


def _ahead(pages: Sequence[Page], label: str) -> list[str]:
    """How far an algorithm's last value is ahead of the best other's, the median over scenarios:
    for errors with a dB scale, and for those without.
    """
    leads: dict[str, list[float]] = {"dB": [], "points": []}
    for page in pages:
        ends = {row.label: row.value[0] for row in page.rows if not row.remark}
        rivals = [end for name, end in ends.items() if name != label]
        if label in ends and rivals:
            difference = min(rivals) - ends[label]
            is_decibel = METRICS[page.scenario.metric].decibel
            leads["dB" if is_decibel else "points"].append(difference * (1 if is_decibel else 100))
    clauses = []
    for unit, differences in leads.items():
        if not differences:
            continue
        median = float(np.median(differences))
        if abs(median) < LEVEL:
            clauses.append(f"level with the best other in {unit}")
        else:
            side = "ahead of" if median > 0 else "behind"
            clauses.append(f"{abs(median):.1f} {unit} {side} the best other")
    return clauses


def _by_cost(pages: Sequence[Page], cost: str) -> Advice | None:
    """The algorithm that reaches the target in the most scenarios, and of these the one with the
    least cost: by the geometric mean of its multiples of the scenario's least.
    """
    counted = [page for page in pages if analysis.has_costs(page.result)]
    multiples: dict[str, list[float]] = {}
    for page in counted:
        _, least = analysis.least(page.rows, cost)
        for row in page.rows:
            if math.isfinite(row.cost[cost]):
                multiples.setdefault(row.label, []).append(row.cost[cost] / least)
    if not multiples:
        return None
    mean = {label: float(np.exp(np.mean(np.log(ratios)))) for label, ratios in multiples.items()}
    ordered = sorted(mean, key=lambda label: (-len(multiples[label]), mean[label]))
    label = ordered[0]
    arrivals = len(multiples[label])
    clauses = []
    if len(counted) < len(pages):
        clauses.append(f"of {len(pages)} scenarios {len(counted)} were tuned for it")
    if arrivals < len(counted):
        clauses.append(f"arrives in {arrivals} of {len(counted)}")
    rivals = [name for name in ordered[1:] if len(multiples[name]) == arrivals]
    if rivals:
        times = f"{mean[rivals[0]] / mean[label]:.2g}"
        much = "as many" if times == "1" else f"{times} times as many"
        clauses.append(f"{quoted(rivals[0])} needs {much}")
    else:
        clauses.append("no other arrives as often")
    return Advice(label, ", ".join(clauses))


def _by_slack(pages: Sequence[Page]) -> Advice | None:
    """Among the algorithms that are most often the best, the one whose numbers matter least."""
    best = _times_best(pages)
    most = max(best.values(), default=0)
    slack = {
        label: [
            row.slack
            for page in pages
            for row in page.rows
            if row.label == label and not math.isnan(row.slack)
        ]
        for label, count in best.items()
        if count == most
    }
    medians = {label: float(np.median(values)) for label, values in slack.items() if values}
    if not medians:
        return None
    label = max(medians, key=medians.__getitem__)
    return Advice(label, f"{medians[label]:.1f} decades within 1 dB of its best")


def quoted(label: str) -> str:
    """A name, quoted if it contains a comma and would look like two names in a list."""
    return f"'{label}'" if "," in label else label


def all_advice(pages: Sequence[Page]) -> list[tuple[str, str, str, Advice | None, list[Page]]]:
    """For every kind, trouble and scarce thing the recommendation and the scenarios behind it."""
    return [
        (kind, trouble, scarce, advice(members, scarce), members)
        for (kind, trouble), members in groups(pages).items()
        for scarce in scarce_in(members[0].scenario)
    ]


def read_all(results: Mapping[str, Any], scenarios: Mapping[str, Scenario]) -> list[Page]:
    """The scenarios that were run, in the order of their declaration."""
    return [
        Page(scenario, result, analysis.table(scenario, result))
        for name, scenario in scenarios.items()
        if (result := results.get(name)) is not None
    ]
