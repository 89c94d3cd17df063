"""fljax and its peers: each in its own environment, on the same workloads, in one command.

    python -m experiments.benchmarks.peers.run [--only pfl flower] [--seeds 3] [--out FILE.json]

A virtual environment is made for every peer from ``requirements/<peer>.txt`` (kept for the next
time), each workload runs there in its own process with a time limit, and a table is written
along with the numbers. A peer that fails loses only its row.
"""

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.peers.measure import STUDY
from experiments.benchmarks.peers.workloads import WORKLOADS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True)
class Side:
    """One row of the comparison.

    Attributes:
      module: the module of this package that measures it.
      requirements: its environment; this interpreter's own if empty.
      python: version of Python the environment needs.
      arguments: further ones for the module.
      repeats: the minimal number of runs for each seed, for runs that take milliseconds.
    """

    module: str
    requirements: str = ""
    python: str = "3.11"
    arguments: tuple[str, ...] = ()
    repeats: int = 1


HEADINGS = (
    "side",
    "one run",
    "start-up",
    f"{STUDY} seeds",
    "start-up",
    "one run / fljax",
    f"{STUDY} seeds / fljax",
    "final error",
    "equal",
)

#: The sides whose final errors are the reference.
JUDGES = ("numpy-loop", "bare")

SIDES = {
    "fljax": Side("fljax_side", repeats=3),
    "fljax-devices": Side("fljax_side", arguments=("--devices",), repeats=3),
    "numpy-clients": Side("numpy_side", arguments=("--form", "clients"), repeats=3),
    "numpy-loop": Side("numpy_side", arguments=("--form", "loop"), repeats=3),
    "bare": Side("bare_side", repeats=3),
    "fedjax": Side("fedjax_peer", "fedjax"),
    "decent-bench": Side("decent_bench_peer", "decent_bench", "3.13"),
    "pfl": Side("pfl_peer", "pfl"),
    "fluke": Side("fluke_peer", "fluke"),
    "fedlab": Side("fedlab_peer", "fedlab"),
    "flower": Side("flower_peer", "flower"),
}


def interpreter(side: Side, folder: Path, pythons: dict[str, str]) -> str:
    """The Python of a side, in an environment that is made if it is missing or out of date.

    Raises:
      RuntimeError: no Python of the version it needs, or an installation that failed.
    """
    if not side.requirements:
        return sys.executable
    from fljax._core.storage import replace_file

    wanted = HERE / "requirements" / f"{side.requirements}.txt"
    home = folder / side.requirements
    python = home / "bin" / "python"
    installed = home / "installed.txt"
    if installed.is_file() and installed.read_text() == wanted.read_text():
        return str(python)
    if not (base := pythons.get(side.python)):
        raise RuntimeError(f"needs Python {side.python}, not found on PATH")
    print(f"making the environment {home}", file=sys.stderr)
    for command in (
        [base, "-m", "venv", "--clear", str(home)],
        [str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted)],
    ):
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"did not install: {last_line(done.stderr)}")
    replace_file(installed, wanted.read_text())
    return str(python)


def measured(
    name: str, workload: str, python: str, seeds: int, repeats: int, limit: float
) -> dict[str, Any]:
    """The line that one side prints for one workload, or a line with the reason for its absence."""
    side = SIDES[name]
    command = [python, "-W", "ignore", "-m", f"{__package__}.{side.module}", workload]
    command += ["--seeds", str(seeds), "--repeats", str(max(repeats, side.repeats))]
    process = subprocess.Popen(
        [*command, *side.arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    failed = {"peer": name, "workload": workload}
    try:
        output, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return failed | {"note": f"stopped after {limit:.0f} s"}
    if process.returncode:
        return failed | {"note": f"failed: {last_line(complaint)}"}
    return json.loads(output.splitlines()[-1]) | {"peer": name}


def last_line(text: str) -> str:
    """The last line of a failed command's output, shortened."""
    return (text.strip().splitlines() or ["without a word"])[-1][:200]


def document(report: dict[str, Any]) -> str:
    """The machine, and the tables of its measurements."""
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    workloads = dict.fromkeys(line["workload"].replace("_", " ") for line in report["results"])
    return (
        f"# Beside other simulators: {', '.join(workloads)}\n\n"
        f"```text\n{report['machine']}\nload when begun: {load}\n```\n\n"
        "`*`: scaled from a few seeds.\n\n"
        f"{table(report['results'])}"
    )


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Markdown: a table for each workload, and notes below it."""
    parts = []
    for workload in WORKLOADS:
        rows = [line for line in lines if line["workload"] == workload]
        if not rows:
            continue
        ours = next((r for r in rows if r["peer"] == "fljax" and "seconds" in r), None)
        judge = next((r for r in rows if r["peer"] in JUDGES and "seconds" in r), None)
        parts += [
            f"## {workload}",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|---" * len(HEADINGS) + "|",
        ]
        parts += [row(line, ours, judge) for line in rows if "seconds" in line]
        notes = [f"- {label(line)}: {line['note']}." for line in rows if line["note"]]
        parts += ["", *notes, ""] if notes else [""]
    return "\n".join(parts)


def row(line: dict[str, Any], ours: dict[str, Any] | None, judge: dict[str, Any] | None) -> str:
    """One side's cells."""
    cells = [label(line)]
    for name in ("seconds", "startup_seconds", "study_seconds", "study_startup_seconds"):
        scaled = name.startswith("study") and line["study_measured"] < STUDY and line[name]
        cells.append(f"{brief(line[name])} s" + " *" * bool(scaled))
    for name in ("seconds", "study_seconds"):
        cells.append(f"{brief(line[name] / ours[name])}x" if ours else "")
    cells.append(f"{line['error']:.3e}")
    equal = judge and WORKLOADS[line["workload"]].agrees(line["error"], judge["error"])
    cells.append(("yes" if equal else "NO") if judge else "")
    return f"| {' | '.join(cells)} |"


def brief(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def label(line: dict[str, Any]) -> str:
    return f"{line['peer']} {line.get('version', '')}".strip()


def main() -> None:
    from experiments.benchmarks.machine import header
    from fljax._core.storage import replace_file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--seeds", type=int, default=3, help="seeds that each side runs")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, the best counts")
    parser.add_argument("--limit", type=float, default=1800, help="seconds a process may take")
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    default = Path.home() / ".cache" / "fljax" / "peers"
    parser.add_argument("--environments", type=Path, default=default)
    parser.add_argument("--python311", default=shutil.which("python3.11"))
    parser.add_argument("--python313", default=shutil.which("python3.13"))
    options = parser.parse_args()
    pythons = {"3.11": options.python311, "3.13": options.python313}
    report = {
        "machine": header(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": os.getloadavg(),
        "seeds": options.seeds,
        "results": [],
    }
    for name in options.only:
        try:
            python = interpreter(SIDES[name], options.environments, pythons)
            problem = ""
        except RuntimeError as error:
            python = ""
            problem = str(error)
        for workload in options.workloads:
            if problem:
                line = {"peer": name, "workload": workload, "note": problem}
            else:
                line = measured(
                    name, workload, python, options.seeds, options.repeats, options.limit
                )
            print(json.dumps(line), file=sys.stderr, flush=True)
            report["results"].append(line)
            replace_file(options.out, json.dumps(report, indent=1) + "\n")
            replace_file(options.out.with_suffix(".md"), document(report))
    print(document(report))


if __name__ == "__main__":
    main()
