"""Records as text: the output of the command line, and the gallery's pages."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.conventions import WORDS
from experiments.figure import VERDICTS, Estimate, word_of
from experiments.promises import BY_OTHERS, HEADLINES
from experiments.records import PRIVACY
from experiments.replacing import described, of_record, options
from fljax.algorithms import REGISTRY as ALGORITHMS

Record = Mapping[str, Any]

#: The kinds of claims, and how the gallery calls them.
KINDS = {
    "source": "the source's",
    "conditional": "conditional",
    "ours": "our own",
    "by construction": "by construction",
}

#: Figures that are in no document.
OWN = ("audit", "gauthier-3.stress", "models", "robustness")

INTRODUCTION = """\
Written by `python -m experiments report`; do not edit. `python -m experiments run NAME` computes a
figure again, `python -m experiments check` judges every claim again on the stored results.

A claim holds if the whole 95 % interval (paired bootstrap over seeds) of every case lies in the
accepted range (🟢), and does not hold if that of some case is outside (🔴). It is undecided (🟡) if
intervals straddle the border and none is outside; then it says how many seeds would decide it, if
means stay as they are and intervals shrink by the square root of the number of seeds. Four kinds
are counted apart: what the *source* says, as it says it; the same *under a condition* of ours,
which is named; what *we* say and no source does; and what is true *by construction*, which checks
the code and is no evidence. dB are 10 log10 of a mean over seeds; positive means that the error of
the method named first (in chapter 3, of the comparator) is above that of the other (of zCDP-NFL).

Words mean the same in all figures, on the axis on which the source draws:"""


#: A color for each word of a verdict.
COLORS: dict[str, str] = dict(zip(VERDICTS, ("🟢", "🔴", "🟡"), strict=True))

#: An undecided claim that needs more than this is said to need more than is affordable: its value
#: is on the border of what is accepted.
AFFORDABLE_SEEDS = 100_000

#: On the index page.
PAGES = """\
A page a figure, with its picture, claims, settings and provenance. Times are as recorded, for some
figures on a machine that was shared.
[What changed](CHANGES.md) since the first edition has a page of its own, and so has
[what each algorithm promises](HEADLINES.md)."""

#: On the page of promises.
PROMISES = """\
The main promise of each algorithm's paper, judged as all claims are. A verdict is on the figure's
own problem, whose settings are on its page."""

#: Above the table of claims that are not the algorithm's own.
OTHERS = """\
Of these algorithms only a claim of others is judged yet, who compare methods of their own with
them."""

#: On a figure's page.
AGAIN = """\
`python -m experiments run {again}` reproduces it, which took {time} when it was recorded;
`python -m experiments draw {name} --pdf FOLDER` draws it for a paper."""

#: On the page of a figure that was computed with other numbers.
REPLACED = """\
**Not as published:** {numbers}. The claims below are of the published figure, measured with these
numbers."""


def conventions() -> list[str]:
    """The meaning of the sources' words, as a table."""
    rows = [
        (", ".join(word.words), *(m.convention.split(": ")[1] for m in word[1:])) for word in WORDS
    ]
    return markdown(("words", "dB", "on a linear axis", "rates of error or accuracy"), rows)


def _estimate(case: Record) -> str:
    value, low, high = (math.nan if case[k] is None else case[k] for k in ("value", "low", "high"))
    # JSON has neither NaN nor infinity: one missing end is that of an open interval.
    if math.isnan(low) != math.isnan(high):
        low, high = (-math.inf, high) if math.isnan(low) else (low, math.inf)
    return str(Estimate(value, low, high, case["unit"]))


def short_verdict(claim: Record) -> str:
    return word_of(claim["holds"], claim["decided"])


def verdict(claim: Record) -> str:
    """The word, and of an undecided claim how many seeds would decide it."""
    return short_verdict(claim) + _deciding(claim)


def in_color(claim: Record) -> str:
    """The verdict with the color of its word."""
    word = short_verdict(claim)
    return f"{COLORS[word]} **{word}**{_deciding(claim)}"


def _deciding(claim: Record) -> str:
    """How many seeds would decide an undecided claim, in parentheses; empty for the others."""
    if short_verdict(claim) != "undecided":
        return ""
    seeds = claim.get("deciding_seeds")
    if seeds is None:
        return " (more seeds of this size would not decide it)"
    if seeds > AFFORDABLE_SEEDS:
        return " (no affordable number of seeds would decide it)"
    return f" (about {_rounded(seeds)} seeds would decide it)"


def _rounded(count: int) -> str:
    """A whole number to two digits, upward."""
    unit = 10 ** max(len(str(count)) - 2, 0)
    return f"{-(-count // unit) * unit:,}"


def tally(claims: Iterable[Record], kind: str) -> str:
    """How many claims of a kind hold, of how many, and how many are undecided."""
    ours = [claim for claim in claims if claim["kind"] == kind]
    if not ours:
        return ""
    undecided = sum(not (c["holds"] or c["decided"]) for c in ours)
    counted = f"{sum(c['holds'] for c in ours)} of {len(ours)}"
    return counted + (f", {undecided} undecided" if undecided else "")


def claims_lines(claims: Iterable[Record]) -> list[str]:
    """Each claim with its verdict, then each case's number with its interval."""
    lines = []
    for claim in claims:
        lines.append(f"[{verdict(claim)}] {claim['text']} ({claim['source']})")
        if claim["condition"]:
            lines.append(f"    under: {claim['condition']}")
        if claim["kind"] == "ours":
            lines.append("    our own")
        if claim["construction"]:
            lines.append(f"    by construction: {claim['construction']}")
        for name, case in claim["cases"].items():
            mark = "" if case["holds"] else "  <- fails"
            lines.append(f"    {name}: {_estimate(case)}, accepted {claim['accepted']}{mark}")
        if claim["note"]:
            lines.append(f"    why: {claim['note']}")
    return lines


def tuning_lines(record: Record) -> list[str]:
    """The chosen parameters and the rules of the choice."""
    lines = []
    for row in record["tuning"]:
        if not row["chosen"]:
            continue
        if "numbers" in row:
            lines.append(f"{row['method']}: {row['numbers']}")
        elif "rule" in row:
            tried = sum(r["method"] == row["method"] for r in record["tuning"])
            rule = "early learning curve" if row["rule"] == "early" else "least final error"
            lines.append(
                f"{row['method']}: {row['parameter']} = {row['value']:g} of {tried} candidates "
                f"({rule}, score {row['score']:.3g})"
            )
        else:
            chosen = ", ".join(
                f"{k} = {row[k]:g}" for k in ("penalty", "step", "decay") if k in row
            )
            lines.append(
                f"{row['objective']}, ε = {row['budget']:g}, {row['method']}: {chosen} "
                f"(error {row['final_error']:.3g})"
            )
    return lines


def privacy_lines(record: Record) -> list[str]:
    """The privacy that every method spent at every budget; panels of the same runs once."""
    lines = []
    for (method, bound), rows in _privacy_by_method(record).items():
        parts = [f"zCDP {_slashes(rows, 'rho')}"]
        if rows[0]["epsilon_composed"] is not None:
            parts.append(f"ε = {_slashes(rows, 'epsilon_composed')} by composition of its rounds")
        parts.append(f"ε = {_slashes(rows, 'epsilon_corollary')} by the Corollary")
        parts.append(f"{_slashes(rows, 'epsilon_tight')} tight (δ = {rows[0]['delta']:g})")
        norm = max(r["largest_gradient"] for r in rows)
        verdict = "held" if all(r["bound_held"] for r in rows) else "BROKEN"
        parts.append(f"bound c1 = {bound:g} {verdict}: largest gradient {norm:.4g}")
        lines.append(f"{method}: {', '.join(parts)}")
    return lines


def _slashes(rows: Sequence[Record], key: str) -> str:
    """The distinct numbers of a column, in order."""
    return " / ".join(dict.fromkeys(f"{r[key]:.4g}" for r in rows))


def _privacy_by_method(record: Record) -> dict[tuple[str, float], list[Record]]:
    groups: dict[tuple[str, float], dict[tuple, Record]] = {}
    for panel, study in record["privacy"].items():
        for row in study:
            method = row.get("algorithm", f"panel {panel}")
            group = groups.setdefault((method, row["gradient_bound"]), {})
            # Panels that show the same runs have the same values on all axes, and spent the same.
            axes = [v for k, v in row.items() if k not in (*PRIVACY, "algorithm")]
            group[(*axes, row["rho"])] = row
    return {key: [rows[at] for at in sorted(rows)] for key, rows in groups.items()}


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a table."""

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"

    return [line(head), line(["---"] * len(head)), *map(line, rows)]


def _bounds(record: Record) -> str:
    """One sentence on whether the budgets are guarantees."""
    rows = [row for group in _privacy_by_method(record).values() for row in group]
    broken = [r for r in rows if not r["bound_held"]]
    if not rows:
        return ""
    if not broken:
        return "The assumed gradient bound held in every run: the budgets are guarantees."
    worst = max(r["largest_gradient"] for r in broken)
    return (
        f"**Nominal budgets.** In {len(broken)} of {len(rows)} cases per-sample gradients exceed "
        f"the assumed bound (up to {worst:.3g}): their ε is not a guarantee."
    )


def page(record: Record) -> str:
    """The page of a figure."""
    claims = record["claims"]
    seeds = " or ".join(map(str, record["seeds"]))
    runs = f" {seeds} seeds." if seeds else ""
    counts = "; ".join(
        f"{KINDS[kind]}: {count}" for kind in KINDS if (count := tally(claims, kind))
    )
    lost = sum(a for a, _ in record["diverged"].values())
    replaced = of_record(record)
    lines = [
        f"# {record['name']}: {record['title']}",
        "",
        f"Source: {record['source']}. Claims that hold: **{counts}**.{runs}",
        "",
        f"![{record['title']}]({record['name']}.png)",
        "",
        AGAIN.format(
            **record, again=record["name"] + options(replaced), time=_time(record["seconds"])
        ),
        "",
        *((REPLACED.format(numbers=described(replaced)), "") if replaced else ()),
        f"{record['caption']} {_bounds(record)}".strip(),
        "",
    ]
    if lost:
        parts = [f"{a} of {n} in ({name})" for name, (a, n) in record["diverged"].items() if a]
        treated = record.get("diverged_runs", "left out of all means")
        lines += [f"Diverged runs, {treated}: {', '.join(parts)}.", ""]
    rows = []
    for claim in claims:
        text = claim["text"]
        if claim["kind"] == "ours":
            text += " *(our own)*"
        if claim["condition"]:
            text += f" *(under: {claim['condition']})*"
        if claim["construction"]:
            text += f" *(by construction: {claim['construction']})*"
        numbers = "<br>".join(
            f"{name}: {_estimate(case)}{'' if case['holds'] else ' ✗'}"
            for name, case in claim["cases"].items()
        )
        wanted = claim["accepted"] + (f" ({claim['convention']})" if claim["convention"] else "")
        outcome = in_color(claim) + (f"<br>{claim['note']}" if claim["note"] else "")
        rows.append((text, claim["source"], numbers, wanted, outcome))
    lines += markdown(("claim", "source", "measured, 95 % interval", "accepted", "verdict"), rows)
    lines += ["", "## Settings", ""]
    rows = [
        (s["name"], value_text(s["value"]), "source" if s["given"] else "chosen", s["why"])
        for s in record["settings"]
    ]
    lines += [*markdown(("setting", "value", "from", "where or why"), rows), ""]
    for heading, result in (
        (_tuning_heading(record), tuning_lines(record)),
        ("Privacy spent", privacy_lines(record)),
    ):
        if result:
            lines += [f"## {heading}", "", *(f"- {line}" for line in result), ""]
    provenance = record["provenance"]
    keys = (
        "fljax",
        "commit",
        "code",
        "jax",
        "numpy",
        "python",
        "platform",
        "dtype",
        "prng",
        "created",
    )
    lines += [
        "## Provenance",
        "",
        ", ".join(f"{k} {provenance[k]}" for k in keys if k in provenance)
        + f"; {record['seconds']:g} s. Results: "
        + ", ".join(f"`{f}`" for f in record["files"])
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _tuning_heading(record: Record) -> str:
    separate = record.get("tuning_is_separate")
    if separate is None:
        return "Tuning"
    return f"Tuning, on {'other seeds than' if separate else 'some of'} those that are judged"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def value_text(value: Any) -> str:
    """A setting's value on the page of its figure."""
    if isinstance(value, list | tuple):
        return ", ".join(value_text(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary(records: Sequence[Record]) -> list[str]:
    """A table of how many of the literature's claims hold, by kind, for the project's README."""
    claims = [claim for r in records if r["name"] not in OWN for claim in r["claims"]]
    rows = []
    for kind, name in KINDS.items():
        result = [short_verdict(claim) for claim in claims if claim["kind"] == kind]
        counts = (result.count(word) for word in ("holds", "does not hold", "undecided"))
        rows.append((name, len(result), *counts))
    return markdown(("claims", "all", "hold", "do not hold", "undecided"), rows)


def index(records: Sequence[Record]) -> str:
    """The folder's README: the rules of counting, and every figure with its tallied claims."""
    literature = [r for r in records if r["name"] not in OWN]
    rows = [
        (
            f"[{r['name']}]({r['name']}.md)",
            r["title"],
            *(tally(r["claims"], kind) for kind in KINDS),
            _time(r["seconds"]),
        )
        for r in records
    ]
    for name, result in (("**the literature**", literature), ("**all**", records)):
        claims = [claim for r in result for claim in r["claims"]]
        total_seconds = sum(r["seconds"] for r in result)
        rows.append((name, "", *(tally(claims, kind) for kind in KINDS), _time(total_seconds)))
    lines = [
        "# Figures",
        "",
        INTRODUCTION,
        "",
        *conventions(),
        "",
        PAGES,
        "",
        *markdown(
            ("figure", "shows", *(f"{kind} claims" for kind in KINDS.values()), "time"), rows
        ),
    ]
    return "\n".join(lines) + "\n"


def changes(records: Sequence[Record], before: Mapping[str, Mapping[str, str]]) -> str:
    """The claims whose verdict differs from the first edition, and the reasons.

    Args:
      records: of the figures.
      before: the verdicts of the first edition, by figure and claim.
    """
    rows = []
    for record in records:
        previous = before.get(record["name"], {})
        for claim in record["claims"]:
            now = short_verdict(claim)
            then = previous.get(claim["name"], "not judged")
            if claim["changed"] or (now != then and previous):
                why = claim["changed"] or "the same measure on new draws"
                rows.append((record["name"], claim["text"], claim["kind"], then, now, why))
    lines = [
        "# What changed since the first edition",
        "",
        "Every claim of the first edition's figures that is new, or judged otherwise than there.",
        "",
        *markdown(("figure", "claim", "kind", "then", "now", "what changed and why"), rows),
    ]
    return "\n".join(lines) + "\n"


def headlines(records: Sequence[Record]) -> str:
    """Each algorithm's headline, and the verdict."""
    claims = {(r["name"], claim["name"]): claim for r in records for claim in r["claims"]}
    promised = []
    by_others = []
    for name, (figure, claim) in sorted(HEADLINES.items(), key=lambda row: row[0].lower()):
        if (entry := claims.get((figure, claim))) is None:
            continue
        cases = sorted(entry["cases"].items(), key=lambda case: case[1]["holds"])
        case, estimate = cases[0]  # one that fails, if any
        more = f" (one of {len(cases)} cases)" if len(cases) > 1 else ""
        measured = f"{case}: {_estimate(estimate)}{more}"
        where = f"[{figure}]({figure}.md)"
        rows = by_others if name in BY_OTHERS else promised
        rows.append((name, entry["text"], entry["source"], in_color(entry), measured, where))
    columns = ("algorithm", "promise", "source", "verdict", "measured", "figure")
    lines = [
        "# What each algorithm promises",
        "",
        PROMISES,
        "",
        *markdown(columns, promised),
    ]
    if by_others:
        columns = ("algorithm", "claim", *columns[2:])
        lines += ["", "## What others say of them", "", OTHERS, "", *markdown(columns, by_others)]
    if rest := sorted(ALGORITHMS.keys() - HEADLINES.keys(), key=str.lower):
        lines += ["", f"Not judged yet: {', '.join(rest)}."]
    return "\n".join(lines) + "\n"


def pages(records: Sequence[Record], before: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The gallery's files: an index, a page a figure, what changed, and promises by algorithm."""
    return {
        "README.md": index(records),
        "CHANGES.md": changes(records, before),
        "HEADLINES.md": headlines(records),
        **{f"{record['name']}.md": page(record) for record in records},
    }
