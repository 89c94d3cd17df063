"""The cost of a store, and of resuming after a kill.

    python -m experiments.benchmarks.resume [--seeds 4000]

One study (zCDP-NFL on ridge, 50 clients, 200 rounds, every round recorded) without a store, with
one, killed half way and run again in a new process, and read back whole. Compiling is stated apart.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fljax as fl
from experiments.benchmarks.machine import header
from experiments.benchmarks.montecarlo import ROUNDS, private_admm


def timed(seeds: int, store: str | None, kill_at: float) -> dict[str, float]:
    """Seconds of one study in this process, which ends itself at the share ``kill_at`` of it."""

    def watch(so_far) -> None:
        done = int(so_far["done"].sum()) if "done" in so_far else seeds
        if done >= kill_at * seeds:
            print(json.dumps({"seconds": time.perf_counter() - began, "done": done}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    planned = fl.plan(private_admm, rounds=ROUNDS, seeds=seeds)  # compiles
    began = time.perf_counter()
    callback = watch if kill_at < 1 else None
    study = fl.sweep(private_admm, rounds=ROUNDS, seeds=seeds, store=store, callback=callback)
    compiled = float(study.attrs["compile_seconds"])
    seconds = time.perf_counter() - began - compiled
    return {"seconds": seconds, "compiled": compiled + planned.compile_seconds}


def child(seeds: int, store: Path | None, kill_at: float = 1.0) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "experiments.benchmarks.resume", "--child"]
    command += [str(seeds), str(store or ""), str(kill_at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4000)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        seeds, store, kill_at = options.child
        print(json.dumps(timed(int(seeds), store or None, float(kill_at))))
        return
    print(header())
    print(
        f"\nzCDP-NFL on ridge, {options.seeds} seeds of {ROUNDS} rounds; seconds, compiling apart"
    )
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        plain = min(child(options.seeds, None)["seconds"] for _ in range(2))
        stored = min(child(options.seeds, base / f"kept{i}")["seconds"] for i in range(2))
        first = child(options.seeds, base / "cut", 0.5)
        rest = child(options.seeds, base / "cut")
        read = child(options.seeds, base / "cut")
        size = sum(path.stat().st_size for path in (base / "cut").glob("*.npz"))
    seconds = first["seconds"] + rest["seconds"]
    print(f"without a store            {plain:7.2f}")
    print(f"with a store               {stored:7.2f}  ({(stored / plain - 1) * 100:+.1f} %)")
    print(
        f"killed at {first['done']:.0f} runs, resumed {seconds:7.2f}  "
        f"({(seconds / stored - 1) * 100:+.1f} % of the uninterrupted one, lost blocks included; "
        f"compiled again in {rest['compiled']:.1f})"
    )
    print(f"read back whole            {read['seconds']:7.2f}  ({size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
