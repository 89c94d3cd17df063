"""The tables of README and of the page on speed, from the stored results of the benchmarks.

    python -m experiments.benchmarks.tables

rewrites what stands between ``<!-- benchmark: NAME -->`` and ``<!-- end benchmark -->`` there. No
number of these tables is typed: to change one, run its benchmark with ``--out`` and then this.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.benchmarks.gpu import table as gpu
from experiments.benchmarks.peers.measure import STUDY
from experiments.benchmarks.peers.run import JUDGES, brief
from experiments.benchmarks.peers.workloads import WORKLOADS
from experiments.errors import UsageError, exit_code
from experiments.report import markdown
from fljax._core.storage import replace_file

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

#: The files with tables.
PAGES = (ROOT / "README.md", ROOT / "docs" / "speed.md")

#: How each stored result is measured again.
COMMANDS = {
    "stored/montecarlo.json": "python -m experiments.benchmarks.montecarlo admm descent --out",
    "stored/montecarlo-softmax.json": "python -m experiments.benchmarks.montecarlo softmax --out",
    "stored/platforms.json": "python -m experiments.benchmarks.platforms --out",
    "stored/gpu-lowered.json": "python -m experiments.benchmarks.gpu lower --out",
    "peers/results.json": "python -m experiments.benchmarks.peers.run --out",
    "peers/networks.json": (
        "python -m experiments.benchmarks.peers.run --workloads cnn mlp --seeds 1 --out"
    ),
}

#: Sides of the comparison with other simulators, in the order of the columns.
SIDES = {
    "fljax": "fljax",
    "numpy-clients": "NumPy, over clients",
    "decent-bench": "decent-bench",
    "pfl": "pfl-research",
    "fedlab": "FedLab",
    "fluke": "fluke",
    "flower": "Flower",
}
STUDIES = {
    "least_squares": "FedAvg, least squares",
    "softmax": "FedAvg, softmax",
    "dgd": "decentralized gradient descent",
}

BLOCK = re.compile(
    r"(?<=<!-- benchmark: )(?P<name>[^\n]*?)(?P<open> -->\n).*?(?P<close>\n<!-- end benchmark -->)",
    re.DOTALL,
)


def read(name: str) -> dict[str, Any]:
    """A stored result.

    Raises:
      UsageError: there is none.
    """
    path = HERE / name
    if not path.exists():
        raise UsageError(
            f"no stored result {path.relative_to(ROOT)}; measure it: {COMMANDS[name]} "
            f"{path.relative_to(ROOT)}."
        )
    return json.loads(path.read_text(encoding="utf-8"))


def conditions(machine: str, date: str) -> str:
    """Commit, date, versions and device, from the lines above a benchmark."""
    commit = re.search(r"commit (\S+)", machine)
    versions = re.search(r"python (\S+), jax (\S+), numpy (\S+)", machine)
    device = re.search(r"device (.+)", machine)
    python, jax, numpy = versions.groups() if versions else ("?", "?", "?")
    return (
        f"{device[1] if device else 'unknown device'}; Python {python}, JAX {jax}, NumPy {numpy}; "
        f"commit {commit[1] if commit else 'unknown'}, {date}"
    )


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def times(seconds: float, ours: float) -> str:
    return f"{brief(seconds)} s ({brief(seconds / ours)}x)"


def against_numpy() -> list[str]:
    """Studies of many seeds in fljax and in NumPy: a table for each machine."""
    lines = []
    for name in ("stored/montecarlo.json", "stored/montecarlo-softmax.json"):
        report = read(name)
        rows = []
        for study in report["studies"]:
            ours, alone, *rivals = study["rows"]
            best = min(rivals, key=lambda rival: rival["seconds"])
            loop = next(rival for rival in rivals if "client by client" in rival["side"])
            form = best["side"].removeprefix("NumPy, ")
            rows.append(
                [
                    f"{study['title']}, {study['rounds']} rounds, {study['seeds']} seeds",
                    f"{brief(ours['seconds'])} s",
                    f"{study['compile_seconds']:.1f} s",
                    times(alone["seconds"], ours["seconds"]),
                    times(loop["seconds"], ours["seconds"]),
                    f"{times(best['seconds'], ours['seconds'])}: {form}",
                ]
            )
        head = ["study", "fljax", "compiling", "fljax, one core", "NumPy, client by client"]
        lines += [f"{conditions(report['machine'], report['date'])}.", ""]
        lines += [*markdown([*head, "NumPy, its best variant"], rows), ""]
    return lines[:-1]


def by_workload(report: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Measured rows of the comparison with other simulators, by workload and side."""
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["results"]:
        if "seconds" in row:
            result.setdefault(row["workload"], {})[row["peer"]] = row
    return result


def simulators(unit: str) -> list[str]:
    """The same studies in other simulators, in ``unit`` of each row's fields."""
    report = read("peers/results.json")
    measured = by_workload(report)
    rows = []
    for workload, title in STUDIES.items():
        ours = measured[workload]["fljax"][unit]
        cells = [title]
        for side in SIDES:
            row = measured[workload].get(side)
            cell = "" if row is None else times(row[unit], ours)
            cells.append(f"{brief(ours)} s" if side == "fljax" else cell)
        rows.append(cells)
    many = unit == "study_seconds"
    seeds = f"{STUDY} seeds, others scaled from {report['seeds']}" if many else "one run"
    return [
        *markdown([f"study, {seeds}", *SIDES.values()], rows),
        "",
        f"{conditions(report['machine'], report['date'])}.",
    ]


def networks() -> list[str]:
    """Training of networks, one run: seconds and the final error."""
    report = read("peers/networks.json")
    measured = by_workload(report)
    sides = {side: row["version"] for rows in measured.values() for side, row in rows.items()}
    names = {**SIDES, "fljax-devices": "fljax, a device for each core", "bare": "a loop in JAX"}
    rows = []
    for side, version in sides.items():
        cells = [f"{names.get(side, side)} {version}"]
        for workload in ("cnn", "mlp"):
            row = measured[workload].get(side)
            ours = measured[workload]["fljax"]
            judge = next(measured[workload][peer] for peer in JUDGES if peer in measured[workload])
            agrees = row and WORKLOADS[workload].agrees(row["error"], judge["error"])
            cells += (
                [
                    times(row["seconds"], ours["seconds"]),
                    f"{row['error']:.4f}" + " *" * (not agrees),
                ]
                if row
                else ["", ""]
            )
        rows.append(cells)
    head = ["one run", "convolutional network", "test error", "two layers", "test error"]
    note = "`*`: the error differs from that of the loop in JAX by more than other seeds' do."
    return [*markdown(head, rows), "", f"{conditions(report['machine'], report['date'])}. {note}"]


def pairs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each study's row on the CPU, and that on the accelerator; only studies that both finished."""
    rows = read("stored/platforms.json")["rows"]
    both = zip(rows[::2], rows[1::2], strict=True)
    return [(cpu, gpu) for cpu, gpu in both if "seconds" in cpu and "seconds" in gpu]


def platforms() -> list[str]:
    """The same studies on a CPU and on the accelerator of its host."""
    report = read("stored/platforms.json")
    rows = [
        [
            f"{cpu['study']}, {counted(cpu['seeds'], 'seed')}, {counted(cpu['rounds'], 'round')}",
            f"{brief(cpu['seconds'])} s",
            f"{brief(gpu['seconds'])} s",
            f"{brief(cpu['seconds'] / gpu['seconds'])}x",
            f"{gpu['compile_seconds']:.1f} s",
            f"{gpu['off_by']:.0e}",
        ]
        for cpu, gpu in pairs()
    ]
    head = ["study", "CPU", "GPU", "faster", "compiling for the GPU", "errors differ by"]
    machines = report["machines"]
    return [
        *markdown(head, rows),
        "",
        f"CPU: {conditions(machines['cpu'], report['date'])}.",
        f"GPU: {conditions(machines['cuda'], report['date'])}.",
    ]


def platforms_range() -> list[str]:
    """A sentence: how much less time the accelerator took."""
    ratios = [cpu["seconds"] / gpu["seconds"] for cpu, gpu in pairs()]
    machines = read("stored/platforms.json")["machines"]
    gpu = re.search(r"device (.+) \(", machines["cuda"])
    cores = re.search(r"(\d+) cores", machines["cpu"])
    shares = f"from 1/{min(ratios):.0f} to 1/{max(ratios):.0f}"
    host = f"the {cores[1] if cores else ''} CPU cores of its host"
    text = f"An {gpu[1] if gpu else 'accelerator'} took {shares} of the time of {host}"
    return [f"{text}, in {len(ratios)} studies ([table](docs/speed.md#on-a-gpu))."]


def gpu_rows() -> list[str]:
    """The field's workloads on one GPU, if they were measured; else their programs' counts."""
    if (HERE / "stored" / "gpu.json").exists():
        return gpu.table(read("stored/gpu.json"))
    report = read("stored/gpu-lowered.json")
    cells = [gpu.lowered_cells(row) for row in report["rows"]]
    card = report["rows"][0]["card"]
    note = f"Least seconds: at the peak of arithmetic of an {card} in the row's precision."
    return [
        *markdown(gpu.LOWERED_HEAD, cells),
        "",
        f"{note} {report['machine'].splitlines()[1]}, {report['date']}.",
        "",
        "Published by others, on their hardware:",
        "",
        *markdown(
            ["row", "who", "figure", "hardware", "source"],
            gpu.published([row["row"] for row in report["rows"]]),
        ),
    ]


BLOCKS: dict[str, Callable[[], list[str]]] = {
    "numpy": against_numpy,
    "simulators": lambda: simulators("study_seconds"),
    "simulators, one run": lambda: simulators("seconds"),
    "networks": networks,
    "platforms": platforms,
    "platforms, range": platforms_range,
    "gpu": gpu_rows,
}


def filled(text: str, page: str) -> str:
    """A page's text with its tables as of the stored results.

    Raises:
      UsageError: a marker names no table, or a stored result is missing.
    """

    def block(match: re.Match[str]) -> str:
        if match["name"] not in BLOCKS:
            raise UsageError(
                f"{page} asks for the table {match['name']!r}; there are {', '.join(BLOCKS)}."
            )
        return "".join(
            [match["name"], match["open"], "\n".join(BLOCKS[match["name"]]()), match["close"]]
        )

    return BLOCK.sub(block, text)


def main() -> int:
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = filled(old, path.name)
        if new != old:
            replace_file(path, new)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
