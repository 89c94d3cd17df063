"""How many seeds to batch, and how many batches to keep in flight.

python -m experiments.benchmarks.blocks [--seeds 96]
"""

import argparse

import fljax as fl
from experiments.benchmarks.machine import header
from experiments.benchmarks.montecarlo import ROUNDS, federated_descent, private_admm


def main() -> None:
    parser = argparse.ArgumentParser(description="Seeds per block and blocks in flight.")
    parser.add_argument("--seeds", type=int, default=96)
    seeds = parser.parse_args().seeds
    print(header())
    for scenario in (private_admm, federated_descent):
        print(
            f"\n{scenario.__name__}: microseconds per round and seed\nblock   1 worker  2 workers"
        )
        for block in (1, 2, 4, 8, 16, 32, 96):
            row = []
            for workers in (1, 2):
                seconds = min(
                    fl.sweep(
                        scenario,
                        rounds=ROUNDS,
                        seeds=seeds,
                        record_every=ROUNDS,
                        block=block,
                        workers=workers,
                    ).attrs["run_seconds"]
                    for _ in range(3)
                )
                row.append(seconds / seeds / ROUNDS * 1e6)
            print(f"{block:5d} {row[0]:10.2f} {row[1]:10.2f}", flush=True)


if __name__ == "__main__":
    main()
