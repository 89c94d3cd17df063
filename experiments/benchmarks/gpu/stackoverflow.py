"""StackOverflow's shape: 342,477 users, 400 a round, a transformer of two million parameters.

All users' sentences are on the device, as small integers. How busy the device is comes from a
profile of a few rounds.
"""

from typing import Any

import fljax as fl
from experiments.benchmarks.gpu import rows
from experiments.benchmarks.gpu.rows import Row
from experiments.benchmarks.gpu.training import Training

VOCABULARY = 10_004
LENGTH = 20


def work(rehearse: bool) -> Training:
    network = fl.models.transformer(VOCABULARY, layers=4, longest=LENGTH)
    if rehearse:
        network = fl.models.transformer(50, width=8, layers=1, heads=2, longest=LENGTH)
    result = Training(
        network=network,
        sample=(LENGTH,),
        outputs=50 if rehearse else VOCABULARY,
        clients=342_477,
        per_round=400,
        samples=64,
        batch=16,
        step_size=0.3,
        rounds=2_000,
        record_every=10,
        test=2_000,
        tokens=True,
    )
    return result.small() if rehearse else result


def measure(seconds: float, rehearse: bool) -> dict[str, Any]:
    return rows.measured(work(rehearse), seconds, most_rounds=100, profiled=True)


ROWS = {"stackoverflow": Row("StackOverflow's shape, 100 rounds", 60, measure, training=work)}
