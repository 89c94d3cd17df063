"""The rows: all of them by name, in the order in which they are run; their table."""

import time
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks.gpu import (
    blazefl,
    flute,
    forms,
    ghost_clipping,
    ours,
    pfl_cifar10,
    simulators,
    stackoverflow,
)
from experiments.benchmarks.gpu.convolutions import in_form
from experiments.benchmarks.gpu.rows import Published, Row
from experiments.benchmarks.peers.run import brief
from experiments.errors import UsageError
from experiments.report import markdown

#: What the targets are about comes first: a run that is cut short loses the last rows.
ROWS: dict[str, Row] = {
    **forms.ROWS,
    "pfl-cifar10": pfl_cifar10.ROWS["pfl-cifar10"],
    **{name: flute.ROWS[name] for name in ("flute-femnist", "flute-mnist")},
    "blazefl-lenet": blazefl.ROWS["blazefl-lenet"],
    **ours.ROWS,
    **ghost_clipping.ROWS,
    **stackoverflow.ROWS,
    **pfl_cifar10.ROWS,
    **flute.ROWS,
    **blazefl.ROWS,
    **simulators.ROWS,
}


def known(names: Sequence[str]) -> list[str]:
    """The rows of these names, or all; in the table's order.

    Raises:
      UsageError: a name that no row has.
    """
    if unknown := [name for name in names if name not in ROWS]:
        raise UsageError(
            f"there is no row {', '.join(map(repr, unknown))}; there are {', '.join(ROWS)}."
        )
    return [name for name in ROWS if not names or name in names]


def measured(name: str, seconds: float, rehearse: bool, fastest: dict[str, str]) -> dict[str, Any]:
    """One row; if it fails, the reason."""
    row = ROWS[name]
    form = forms.of_row(name, fastest)
    began = time.perf_counter()
    result: dict[str, Any] = {"row": name, "title": row.title, "form": form}
    try:
        with in_form(form):
            result |= row.measure(min(row.seconds, seconds), rehearse)
    except Exception as error:  # the other rows are still measured
        result["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return result | {"row_seconds": time.perf_counter() - began}


HEAD = [
    *("row", "seconds", "compiling", "rounds a second", "of the bare loop", "accuracy or error"),
    *("precision", "kernels a step", "waits a round", "Gflop a round", "MB a round"),
    "share of the roofline",
]


def table(report: dict[str, Any]) -> list[str]:
    """The rows of a report, then what others have published."""
    lines = []
    notes = []
    for row in report["rows"]:
        if "failed" in row or "seconds" not in row:
            notes.append(f"- {row['title']}: {_note(row)}.")
            continue
        lines.append(_cells(row))
        notes += [f"- {row['title']}: {text}." for text in _remarks(row)]
    if left := [name for name in report["asked"] if name not in _done(report)]:
        notes.append(f"- Not done in time: {', '.join(left)}.")
    rehearsed = ["A rehearsal: small sizes on a CPU, whose times mean nothing.", ""]
    return [
        *(rehearsed if report["rehearsed"] else []),
        *markdown(HEAD, lines),
        "",
        *notes,
        *_published_part(_done(report)),
    ]


def _published_part(names: Sequence[str]) -> list[str]:
    """The table of others' numbers, if there are any for these rows."""
    cells = published(names)
    if not cells:
        return []
    head = ["row", "who", "figure", "hardware", "source"]
    return ["", "Published by others, on their hardware:", "", *markdown(head, cells)]


def _done(report: dict[str, Any]) -> list[str]:
    return [row["row"] for row in report["rows"]]


def published(names: Sequence[str]) -> list[list[str]]:
    """Others' numbers for these rows; rows of one comparison share them."""
    cells: list[list[str]] = []
    seen: set[Published] = set()
    for name in names:
        for number in ROWS[name].published:
            if number not in seen:
                seen.add(number)
                cells.append([ROWS[name].title, *number])
    return cells


def _cells(row: dict[str, Any]) -> list[str]:
    def cell(name: str, factor: float = 1.0, ending: str = "") -> str:
        value = row.get(name)
        return "" if value is None else f"{brief(factor * value)}{ending}"

    score = row.get("accuracy", row.get("error"))
    share = row.get("roofline")
    return [
        row["title"],
        cell("seconds", ending=" s" + " *" * bool(row.get("scaled"))),
        cell("compile_seconds", ending=" s"),
        cell("rounds_per_second"),
        cell("of_bare", ending="x"),
        "" if score is None else f"{score:.4g}",
        row["precision"],
        cell("kernels_per_step"),
        cell("waits_per_round"),
        cell("flops_per_round", 1e-9),
        cell("bytes_per_round", 1e-6),
        "" if share is None else f"{share:.0%}",
    ]


LOWERED_HEAD = [
    *("row", "Gflop a round", "least seconds of a run", "kernels a step"),
    *("loops of unknown length a round", "calls of the host"),
]


def lowered_cells(row: dict[str, Any]) -> list[str]:
    """A row of the counts without a GPU."""
    return [
        f"{row['title']}, {row['rounds']:,} rounds",
        brief(row["flops_per_round"] / 1e9),
        f"{brief(row['least_seconds'])} s",
        f"{row['kernels_per_step']:.0f}",
        f"{row['open_loops_per_round']:.3g}",
        f"{row['callbacks']:.0f}",
    ]


def _remarks(row: dict[str, Any]) -> list[str]:
    """Remarks of a row."""
    result = []
    if row.get("data", "").startswith("drawn") and "accuracy" in row:
        result.append(f"{row['data']}, so that its accuracy compares with this table's alone")
    if row.get("scaled"):
        result.append(f"* {row['rounds_done']:,} of {row['rounds']:,} rounds, scaled")
    if row["form"] != "grouped":
        result.append(f"convolutions {row['form']}, the fastest on this device")
    if "busy" in row:
        result.append(f"the device is busy {row['busy']:.0%} of the time")
    if "jax_privacy_seconds" in row:
        ratio = row["jax_privacy_seconds"] / row["seconds"]
        result.append(
            f"jax_privacy takes {brief(ratio)} times as long, "
            f"results differ by {row['differs_by']:.0e}"
        )
    return result + ([row["note"]] if "note" in row else [])


def _note(row: dict[str, Any]) -> str:
    """The note of a row without a time."""
    if "rates" in row:
        texts = []
        for name, rates in row["rates"].items():
            each = ", ".join(f"{form} {brief(rate)}" for form, rate in rates.items())
            texts.append(f"{name}: {each}")
        return "rounds a second of one round's clients: " + "; ".join(texts)
    if "sides" in row:
        return "; ".join(
            f"{side} {brief(numbers['seconds'])} s"
            if "seconds" in numbers
            else f"{side}: {numbers.get('note', 'failed')}"
            for side, numbers in row["sides"].items()
        )
    return row.get("failed") or row.get("note") or "nothing"
