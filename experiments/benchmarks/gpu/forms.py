"""Which form of several clients' local steps is fastest on this card, for each network."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from experiments.benchmarks.gpu import blazefl, convolutions, flute, pfl_cifar10
from experiments.benchmarks.gpu.rows import Row, bare_rate
from experiments.benchmarks.gpu.training import Training

#: By the prefix of rows' names whose networks have convolutions.
NETWORKS: dict[str, Callable[[bool], Training]] = {
    "pfl-cifar10": pfl_cifar10.work,
    "flute-femnist": flute.femnist,
    "flute-cifar100": flute.cifar100,
    "blazefl-lenet": lambda rehearse: blazefl.work(
        blazefl.LENET, blazefl.LENET, "float32", None, rehearse
    ),
}


def measure(seconds: float, rehearse: bool) -> dict[str, Any]:
    """Rounds a second of the bare loop in each form, on few clients' data, and the fastest form."""
    rates: dict[str, dict[str, float]] = {}
    each = seconds / len(NETWORKS) / len(convolutions.FORMS)
    began = time.perf_counter()
    for name, work in NETWORKS.items():
        if time.perf_counter() - began > seconds:
            break  # the networks that are left keep the groups
        training = work(rehearse)
        # As many clients as take part: the others' data play no role.
        training = dataclasses.replace(
            training, clients=training.per_round, spread=0.0, record_every=1, rounds=20, draw=None
        )
        data = training.data()
        rates[name] = {}
        for form in convolutions.FORMS:
            with convolutions.in_form(form):
                rates[name][form], _ = bare_rate(training, data, each)
    fastest = {name: max(forms, key=lambda form: forms[form]) for name, forms in rates.items()}
    return {"data": "drawn images", "precision": "float32", "rates": rates, "fastest": fastest}


def of_row(name: str, fastest: dict[str, str]) -> str:
    """The form for a row, by the measured rates."""
    found = (form for prefix, form in fastest.items() if name.startswith(prefix))
    return next(found, "grouped")


ROWS = {"convolutions": Row("forms of convolutions", 50, measure)}
