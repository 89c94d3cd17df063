"""The field's workloads on one GPU, next to a bare JAX loop and others' published numbers.

    python -m experiments.benchmarks.gpu run [ROW ...] --seconds 600 [--out FILE.json]
    python -m experiments.benchmarks.gpu run [ROW ...] --rehearse
    python -m experiments.benchmarks.gpu lower [ROW ...] [--out FILE.json]
    python -m experiments.benchmarks.gpu report [FILE.json]
    python -m experiments.benchmarks.gpu trace FOLDER

``run`` measures row after row until the time is up, and writes the file after each: a run
that is cut loses one row, and the same command goes on with the rows that are missing.
``--rehearse`` is the same program on small numbers, for a machine without a GPU. ``lower`` lowers
the rows' programs of full size for CUDA, where no GPU is needed, and counts. ``report`` prints the
table of a file; ``trace`` summarizes a trace of :mod:`jax.profiler`.
"""

import argparse
import datetime
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

# Rows that start other processes leave memory to them. Set before JAX starts.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax

import fljax as fl
from experiments.benchmarks.gpu import cards, lowered, table, traces
from experiments.benchmarks.machine import commit, header
from experiments.errors import UsageError, exit_code
from experiments.report import markdown
from fljax._core.storage import replace_file

HERE = Path(__file__).parent
STORED = HERE.parent / "stored" / "gpu.json"
REHEARSAL = HERE.parent / "stored" / "gpu-rehearsal.json"


def positive(text: str) -> float:
    """A number of seconds.

    Raises:
      argparse.ArgumentTypeError: it is not positive, or no number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"seconds must be a positive number, got {text}")
    return value


def begun(path: Path, names: list[str], rehearse: bool) -> dict[str, Any]:
    """The report in a file that was begun on this kind of device, or a new one.

    Raises:
      UsageError: the file has other measurements.
    """
    kind = jax.devices()[0].device_kind
    if not path.exists():
        return {
            "machine": header(),
            "device_kind": kind,
            "driver": cards.driver(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "rehearsed": rehearse,
            "asked": names,
            "rows": [],
        }
    report = json.loads(path.read_text(encoding="utf-8"))
    if (report.get("device_kind"), report.get("rehearsed")) != (kind, rehearse):
        raise UsageError(
            f"{path} has measurements of {report.get('device_kind')!r}, rehearsed: "
            f"{report.get('rehearsed')}; give another file, or delete this one."
        )
    report["asked"] = [name for name in table.ROWS if name in {*report["asked"], *names}]
    return report


def run(names: list[str], seconds: float, rehearse: bool, path: Path) -> dict[str, Any]:
    """Measure the rows that a file has not got, within a time; return the whole report."""
    ends = time.perf_counter() + seconds
    report = begun(path, table.known(names), rehearse)
    for name in report["asked"]:
        done = {row["row"]: row for row in report["rows"]}
        if name in done:
            continue
        if (left := ends - time.perf_counter()) <= 0:
            break
        fastest = done.get("convolutions", {}).get("fastest", {})
        row = table.measured(name, left, rehearse, fastest)
        report["rows"].append(row)
        replace_file(path, json.dumps(report, indent=1) + "\n")
        print(f"{name}: {row['row_seconds']:.0f} s{_ending(row)}", file=sys.stderr, flush=True)
    return report


def lower(names: list[str], path: Path | None) -> int:
    """Lower the programs of rows that a file has not got for CUDA, and write the counts."""
    report: dict[str, Any] = {
        "machine": f"commit {commit()}\njax {jax.__version__}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "rows": [],
    }
    if path is not None and path.exists():
        report = json.loads(path.read_text(encoding="utf-8"))
    done = [row["row"] for row in report["rows"]]
    wanted = [name for name in lowered.names() if not names or name in table.known(names)]
    for name in wanted:
        if name in done:
            continue
        report["rows"].append(lowered.measured(name))
        print("\n".join(markdown(table.LOWERED_HEAD, [table.lowered_cells(report["rows"][-1])])))
        if path is not None:
            replace_file(path, json.dumps(report, indent=1) + "\n")
    return 0


def _ending(row: dict[str, Any]) -> str:
    return f", failed: {row['failed']}" if "failed" in row else ""


def shown(report: dict[str, Any]) -> str:
    """The report as text."""
    known = cards.card(report["device_kind"])
    peaks = "not in the table of peaks" if known is None else _peaks(known)
    lines = [
        report["machine"],
        f"driver {report['driver']}, {report['device_kind']}: {peaks}",
        f"date {report['date']}",
        "",
        *table.table(report),
    ]
    return "\n".join(lines)


def _peaks(card: cards.Card) -> str:
    rates = ", ".join(f"{name} {getattr(card, name) / 1e12:g} Tflop/s" for name in cards.PRECISIONS)
    return f"{card.bandwidth / 1e12:g} TB/s, {rates} (data sheet)"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0], prog="gpu")
    parts = result.add_subparsers(dest="part", required=True)
    measure = parts.add_parser("run", help="measure the rows")
    measure.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(table.ROWS)}")
    measure.add_argument("--seconds", type=positive, default=600.0, help="of all rows together")
    measure.add_argument("--rehearse", action="store_true", help="small, on any device")
    measure.add_argument("--out", type=Path, help="the file; by default among the stored results")
    lowering = parts.add_parser("lower", help="lower the programs of full size for CUDA")
    lowering.add_argument("rows", nargs="*", metavar="ROW")
    lowering.add_argument("--out", type=Path, help="also write the counts to this file")
    report = parts.add_parser("report", help="print the table of a file")
    report.add_argument("file", nargs="?", type=Path, default=STORED)
    trace = parts.add_parser("trace", help="summarize a trace of jax.profiler")
    trace.add_argument("folder", type=Path)
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.part == "trace":
        try:
            summary = traces.summarized(options.folder)
        except ValueError as error:
            raise UsageError(str(error)) from error
        print("\n".join(traces.lines(summary)))
        return 0
    if options.part == "report":
        if not options.file.exists():
            raise UsageError(
                f"no measurements in {options.file}; make them: python -m "
                "experiments.benchmarks.gpu run --seconds 600."
            )
        print(shown(json.loads(options.file.read_text(encoding="utf-8"))))
        return 0
    table.known(options.rows)
    if options.part == "lower":
        warnings.simplefilter("ignore", fl.AssumptionWarning)
        return lower(options.rows, options.out)
    if not options.rehearse and jax.default_backend() == "cpu":
        raise UsageError(
            "the rows are for a GPU, and JAX finds none; --rehearse runs them in small on a CPU."
        )
    warnings.simplefilter("ignore", fl.AssumptionWarning)  # only times matter
    path = options.out or (REHEARSAL if options.rehearse else STORED)
    print(shown(run(options.rows, options.seconds, options.rehearse, path)))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
