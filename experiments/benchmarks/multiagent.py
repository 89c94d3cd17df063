"""Importance sampling and noise between peers (Rizk 2023), in fljax and in NumPy.

Figure 2.1: 300 clients of 100 samples; six clients a round take one to five steps on one to ten
samples each; federated averaging and three rules of importance sampling. Figure 4.4: 30 peers
adapt, then combine, on single samples, without noise and with three kinds of it. Both sides have
the same data (and network), drawn once, and draw clients, batches and noise for themselves; the
error is recorded every tenth round. Everything from the data to the errors is timed, compilation
apart.
"""

import argparse
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from threadpoolctl import threadpool_limits

import fljax as fl
from experiments.benchmarks import numpy_multiagent as rival
from experiments.benchmarks.machine import best_of, header
from fljax.algorithms import ATC, Algorithm, FedAvg, ISFedAvg
from fljax.link import GraphHomomorphic, LocalGraphHomomorphic, Noise, PerEdge
from fljax.problems.batches import Uniform
from fljax.study.block_sizes import cores

CLIENTS = 300
PEERS = 30
SAMPLES = 100
DIM = 2
DRAWN = 6
MOST_SAMPLES = 10
MOST_STEPS = 5
RECORD_EVERY = 10
#: Runs that NumPy takes side by side: of 1, 5, 20 and 100 the fastest, by rule.
TOGETHER = {"full": 1}


class Method(NamedTuple):
    """One line of the table."""

    scenario: Callable[..., fl.Simulation]
    given: dict[str, Any]  # its arguments besides the problem
    best: Callable[..., np.ndarray]  # (runs, rounds, seed, every) -> [runs, records]
    plain: Callable[..., np.ndarray]
    together: int  # runs of the best form


def problem(clients: int, strength: float, spread: float) -> fl.problems.Problem:
    """Least squares of one model, the noise's deviation log-normal over clients."""
    rng = np.random.default_rng(clients)
    features = rng.standard_normal((clients, SAMPLES, DIM), np.float32) * np.float32(0.7)
    deviation = np.exp(spread * rng.standard_normal((clients, 1))) / 10
    targets = features @ rng.standard_normal(DIM) + deviation * rng.standard_normal(
        (clients, SAMPLES)
    )
    return fl.problems.Problem(
        features,
        targets.astype(np.float32),
        fl.problems.LeastSquares(),
        fl.problems.SquaredL2(),
        strength * clients,
    )


def federated(key: jax.Array, problem: fl.problems.Problem, algorithm: Algorithm) -> fl.Simulation:
    """A run of figure 2.1."""
    return fl.Simulation(problem, algorithm, metrics=["mean_square_deviation"])


def among_peers(
    key: jax.Array, problem: fl.problems.Problem, network: fl.graphs.Graph, noise: Noise | None
) -> fl.Simulation:
    """A run of figure 4.4."""
    algorithm = ATC(0.4, batches=Uniform(1))
    return fl.Simulation(
        problem, algorithm, network, noise=noise, metrics=["mean_square_deviation"]
    )


@cache
def methods() -> dict[str, Method]:
    """By name."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, MOST_SAMPLES + 1, CLIENTS)
    steps = rng.integers(1, MOST_STEPS + 1, CLIENTS)
    strength = 0.001
    floor = 1e-3
    data = problem(CLIENTS, strength, spread=1.0)
    setting = rival.Federated(
        np.asarray(data.features),
        np.asarray(data.targets),
        sizes,
        steps,
        DRAWN,
        0.01,
        strength,
        floor,
        np.asarray(fl.problems.optimum(data)),
    )
    batch = tuple(sizes.tolist())
    longest = tuple(steps.tolist())
    result = {}
    for name, rule in {"FedAvg": None, "ISFedAvg, optimal": "optimal", "ISFedAvg, full": "full",
                       "ISFedAvg, sampled": "sampled"}.items():  # fmt: skip
        algorithm = (
            ISFedAvg(0.01, DRAWN, batch, longest, rule, floor=floor)
            if rule
            else FedAvg(
                0.01,
                DRAWN,
                batches=Uniform(batch, replacement=True),
                local_steps=longest,
                normalized=True,
            )
        )
        result[name] = Method(
            federated,
            {"problem": data, "algorithm": algorithm},
            partial(rival.federated_best, setting, rule),
            partial(rival.federated_plain, setting, rule),
            TOGETHER.get(rule or "", 100),
        )
    variance = 0.01
    strength = 0.01
    data = problem(PEERS, strength, spread=0.5)
    network = fl.graphs.random_connected(fl.random_key(1), PEERS, mean_degree=4)
    peers = rival.Peers(
        np.asarray(data.features),
        np.asarray(data.targets),
        np.asarray(network.mixing().matrix()),
        0.4,
        strength,
        variance,
        np.asarray(fl.problems.optimum(data)),
    )
    noises = {
        "none": None,
        "edge": PerEdge(variance),
        "homomorphic": GraphHomomorphic(variance),
        "local": LocalGraphHomomorphic(variance),
    }
    for name, noise in noises.items():
        result[f"ATC, noise {name}"] = Method(
            among_peers,
            {"problem": data, "network": network, "noise": noise},
            partial(rival.peers_best, peers, name),
            partial(rival.peers_plain, peers, name),
            100,
        )
    return result


def study(method: Method, seeds: int, rounds: int, **more: Any) -> np.ndarray:
    """``[seeds, records]`` squared distances to the optimum."""
    results = fl.sweep(
        method.scenario,
        seeds=seeds,
        rounds=rounds,
        grid={name: {"given": value} for name, value in method.given.items()},
        record_every=RECORD_EVERY,
        progress=False,
        **more,
    )
    errors = results.mean_square_deviation.squeeze(drop=True)
    return errors.transpose("seed", "round").values


def best(method: Method, runs: int, rounds: int) -> np.ndarray:
    """NumPy's, as many runs side by side as is fastest."""
    firsts = range(0, runs, method.together)
    return np.concatenate(
        [
            method.best(min(method.together, runs - first), rounds, 1 + first, RECORD_EVERY)
            for first in firsts
        ]
    )


def compare(seeds: int, few: int, rounds: int) -> list[str]:
    """A line for each method."""
    head = ("fljax", "one core", "NumPy, best", "NumPy, plain", "error", "best's", "plain's")
    lines = [
        f"{rounds} rounds, us a round and run; {seeds} runs, NumPy's plain form {few}",
        f"{'method':24s}" + "".join(f"{h:>16s}" for h in head),
    ]
    for name, method in methods().items():
        ours = study(method, seeds, rounds)
        all_cores = best_of(lambda m=method: study(m, seeds, rounds)) / seeds
        study(method, seeds, rounds, workers=1)
        alone = best_of(lambda m=method: study(m, seeds, rounds, workers=1)) / seeds
        theirs = ours
        times = []
        for threads in sorted({1, cores()}):
            with threadpool_limits(threads, user_api="blas"):
                theirs = best(method, seeds, rounds)
                times.append(best_of(lambda m=method: best(m, seeds, rounds), 2) / seeds)
        plain = partial(method.plain, few, rounds, 0, RECORD_EVERY)
        errors = plain()
        slow = best_of(plain, 1) / few
        row = np.array([all_cores, alone, min(times), slow]) / rounds * 1e6
        lines.append(_line(name, row, *(_level(e) for e in (ours, theirs, errors))))
        print(lines[-1], flush=True)
    return lines


def _level(errors: np.ndarray) -> str:
    """The mean error over the last half of the rounds, dB, with its standard error over runs."""
    run_means = errors[:, errors.shape[1] // 2 :].mean(1)
    spread = (
        run_means.std(ddof=1) / len(run_means) ** 0.5 / run_means.mean()
        if len(run_means) > 1
        else np.nan
    )
    return f"{10 * np.log10(run_means.mean()):.2f}({10 / np.log(10) * spread:.2f})"


def _line(name: str, row: np.ndarray, *errors: str) -> str:
    all_cores, alone, theirs, plain = row
    cells = (
        f"{all_cores:.1f}",
        f"{alone:.1f}",
        f"{theirs:.1f} ({theirs / all_cores:.1f}x)",
        f"{plain:.0f} ({plain / all_cores:.0f}x)",
        *errors,
    )
    return f"{name:24s}" + "".join(f"{c:>16s}" for c in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--plain-seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    print(header())
    compare(options.seeds, options.plain_seeds, options.rounds)


if __name__ == "__main__":
    main()
