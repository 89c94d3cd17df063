"""When to take an algorithm and when another one, in two sentences computed from the results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.atlas import analysis, decisions
from experiments.atlas.analysis import Row
from experiments.atlas.decisions import SCARCE, WHO, Advice, Page, quoted
from experiments.atlas.methods import PRIVATE_VARIANTS
from experiments.atlas.scenario import algorithm_of
from fljax.metrics.definitions import METRICS

#: The standard scenario of each kind of network: clients are mildly unlike, nothing goes wrong.
STANDARD = {
    "server": "squares-well-mildly",
    "peers": "peers-mildly",
    "timed server": "clock-heavy",
    "timed peers": "clock-peers",
    "compressing server": "few-bits-convex",
    "compressing peers": "few-bits-peers",
    "servers": "edges-alike",
    "personal server": "own-mildly",
    "personal peers": "clusters-peers",
    "personal servers": "clusters-servers",
}

#: How many groups of scenarios a sentence names.
NAMED = 3

#: A last value so far behind the best, in dB, has grown without bound.
GREW = 100.0


class Group(NamedTuple):
    """The scenarios of a kind in which the same goes wrong, as far as an algorithm ran in them."""

    kind: str
    trouble: str
    runs: list[tuple[Page, Row]]
    winner: Advice | None  # the recommendation for the best last value
    scarce: list[str]  # where the algorithm is the recommendation, the keys of SCARCE
    rules: list[str]  # its labels with the rules that are the best or recommended

    @property
    def best(self) -> int:
        """The scenarios in which the algorithm is among the best."""
        return sum(row in analysis.best(page.rows) for page, row in self.runs)

    @property
    def place(self) -> float:
        """The mean place by the last value, from 0 for the first to 1 for the last."""
        return float(np.mean([place_of(page, row) for page, row in self.runs]))


def names_of(row: Row) -> tuple[str, ...]:
    """The algorithms of a row, without their rules."""
    return tuple(map(algorithm_of, (row.label, *row.equals)))


def row_of(page: Page, label: str) -> Row | None:
    """An algorithm's row in a scenario, also if it is listed under another name; that of its best
    rule.
    """
    return next((row for row in page.rows if label in names_of(row)), None)


def place_of(page: Page, row: Row) -> float:
    return page.rows.index(row) / max(len(page.rows) - 1, 1)


def runs_of(pages: Sequence[Page], label: str) -> list[tuple[Page, Row]]:
    """The scenarios in which an algorithm ran; those with a budget for a private variant, which is
    another algorithm without one.
    """
    if label in PRIVATE_VARIANTS:
        pages = [page for page in pages if "privacy" in page.scenario.axes]
    rows = ((page, row_of(page, label)) for page in pages)
    return [(page, row) for page, row in rows if row is not None]


def groups_of(pages: Sequence[Page], label: str) -> list[Group]:
    """The groups of scenarios in which an algorithm ran, those where it is often the best first."""
    advice: dict[tuple[str, str], dict[str, Advice]] = {}
    for kind, trouble, scarce, choice, _ in decisions.all_advice(pages):
        if choice is not None:
            advice.setdefault((kind, trouble), {})[scarce] = choice
    result = []
    for (kind, trouble), members in decisions.groups(pages).items():
        if not (runs := runs_of(members, label)):
            continue
        same = set().union(*(names_of(row) for _, row in runs))
        choices = advice.get((kind, trouble), {})
        scarce = [name for name, choice in choices.items() if algorithm_of(choice.label) in same]
        chosen = [row.label for page, row in runs if row in analysis.best(page.rows)]
        chosen += [choices[name].label for name in scarce]
        rules = [name for name in dict.fromkeys(chosen) if name != algorithm_of(name)]
        result.append(Group(kind, trouble, runs, choices.get("final"), scarce, rules))
    return sorted(result, key=lambda group: (-group.best / len(group.runs), -len(group.scarce)))


def behind(group: Group) -> str:
    """How far an algorithm is behind the best of the scenarios: the median, by unit."""
    distances: dict[str, list[float]] = {}
    for page, row in group.runs:
        is_decibel = METRICS[page.scenario.metric].decibel
        distance = row.value[0] - page.rows[0].value[0]
        if not row.remark:
            distances.setdefault("dB" if is_decibel else "points", []).append(
                distance if is_decibel else 100 * distance
            )
    medians = {unit: float(np.median(values)) for unit, values in distances.items()}
    if medians.get("dB", 0) > GREW:
        return "its error grew without bound"
    clauses = [f"{median:.1f} {unit}" for unit, median in medians.items()]
    lost = sum(bool(row.remark) for _, row in group.runs)
    text = f"{' and '.join(clauses)} behind the best" if clauses else ""
    diverged = f"diverged in {lost} of {len(group.runs)}" if lost else ""
    return ", ".join(filter(None, (text, diverged)))


def _listed(items: Sequence[str]) -> str:
    *most, last = items
    return f"{'; '.join(most)}; and {last}" if most else last


def _by_kind(groups: Sequence[Group], texts: Sequence[str]) -> str:
    """Texts about groups, after the kind of network that they have in common."""
    kinds: dict[str, list[str]] = {}
    for group, text in zip(groups, texts, strict=True):
        kinds.setdefault(WHO[group.kind], []).append(f"*{group.trouble}* ({text})")
    return "; ".join(f"with {kind}, for {_listed(parts)}" for kind, parts in kinds.items())


def _merit(group: Group) -> str:
    """Why an algorithm is one to take there."""
    count = f"among the best in {group.best} of {len(group.runs)}" if group.best else ""
    costs = [SCARCE[name] for name in group.scarce if name != "final"]
    chosen = ["for the last value"] if "final" in group.scarce else []
    chosen += [f"if {' or '.join(costs)} are scarce"] if costs else []
    recommended = f"recommended {' and '.join(chosen)}" if chosen else ""
    rules = f"as {' or '.join(group.rules)}" if group.rules else ""
    return ", ".join(filter(None, (count, recommended, rules)))


def take(pages: Sequence[Page], label: str) -> str:
    """A sentence: in which scenarios an algorithm is the one to take."""
    groups = groups_of(pages, label)
    good = [group for group in groups if group.best or group.scarce]
    # Where it is the recommendation comes first, then where it is most often the best.
    good = sorted(good, key=lambda group: (-len(group.scarce), -group.best / len(group.runs)))
    if good:
        first = good[:NAMED]
        return f"Take it {_by_kind(first, [_merit(group) for group in first])}."
    runs = runs_of(pages, label)
    page, row = min(runs, key=lambda run: place_of(*run))
    position = page.rows.index(row) + 1
    where = "its one scenario" if len(runs) == 1 else f"any of its {len(runs)} scenarios"
    return (
        f"It was not among the best in {where}; it came nearest in *{page.scenario.title}*, place "
        f"{position} of {len(page.rows)}."
    )


def leave(pages: Sequence[Page], label: str) -> str:
    """A sentence: in which scenarios another algorithm is the one to take."""
    groups = [group for group in groups_of(pages, label) if not group.best and not group.scarce]
    worst = sorted(groups, key=lambda group: -group.place)[:NAMED]
    if not worst:
        return "In no group of scenarios was it always beaten."
    texts = []
    for group in worst:
        other = f"take {quoted(group.winner.label)}" if group.winner else ""
        texts.append(", ".join(filter(None, (behind(group), other))))
    return f"Take another one {_by_kind(worst, texts)}."


def untried(pages: Sequence[Page], label: str) -> str:
    """Why no scenario ran an algorithm: the most common reason besides its network."""
    reasons = Counter(
        why
        for page in pages
        for name, why in page.result["refused"].items()
        if name == label and not why.startswith(("runs on", "ends with"))
    )
    why = f": it {reasons.most_common(1)[0][0].rstrip('.')}" if reasons else ""
    return f"No scenario of the atlas runs it{why}."


def sentences(pages: Sequence[Page], label: str) -> list[str]:
    """When to take an algorithm, and when another one."""
    if not runs_of(pages, label):
        return [untried(pages, label)]
    return [take(pages, label), leave(pages, label)]


def standard(pages: Sequence[Page], label: str) -> Page | None:
    """The scenario of an algorithm's picture: a standard one, or the first in which it ran."""
    runs: Mapping[str, Page] = {page.scenario.name: page for page, _ in runs_of(pages, label)}
    chosen = next((name for name in STANDARD.values() if name in runs), next(iter(runs), None))
    return None if chosen is None else runs[chosen]
