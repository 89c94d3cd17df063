"""Participation, clients' amounts of work, and compressed or delayed messages to a server."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

import fljax as fl
from experiments.atlas.convex import CLIENTS, DISSIMILARITY, ROUNDS, TARGET, squares
from experiments.atlas.scenario import LOCAL_STEPS, Scenario


def with_parts(
    key: jax.Array, more: Mapping[str, Any], make: Callable[..., Any] = squares, **given: Any
) -> dict[str, Any]:
    """A problem, and other parts of the simulation that are the same in all runs."""
    return {"problem": make(key, **given), **more}


TENTH = {"local_steps": LOCAL_STEPS, "clients_per_round": CLIENTS // 10}
NO_CHOICE = "does not let the server choose a tenth of the clients"

for _likeness in DISSIMILARITY:
    Scenario(
        f"tenth-{_likeness.split()[0]}",
        f"A tenth of {_likeness} clients takes part",
        "Servers of many clients reach few of them in a round (McMahan et al. 2017 take a tenth); "
        "who is drawn is noise that grows with the clients' dissimilarity.",
        f"Least squares; {_likeness} clients of one server, a tenth take part",
        partial(with_parts, more={}, likeness=_likeness),
        "normalized_error",
        target=TARGET,
        rounds=2 * ROUNDS,
        axes={"dissimilarity": DISSIMILARITY[_likeness], "participation": 0.1},
        given=TENTH,
        chosen={"clients_per_round": NO_CHOICE},
        record_every=4,
    )

#: Local steps of each client: 1 to 9, about five on average.
UNEQUAL = tuple(int(k % (2 * LOCAL_STEPS - 1)) + 1 for k in range(CLIENTS))

Scenario(
    "unequal-work",
    "Clients take 1 to 9 local steps",
    "Devices differ in speed; clients that take more steps pull the average toward their own "
    "optimum (objective inconsistency, Wang et al. 2020).",
    "Least squares; strongly unlike clients of one server, each with its own number of steps",
    partial(with_parts, more={}, likeness="strongly unlike"),
    "normalized_error",
    target=TARGET,
    rounds=ROUNDS,
    axes={"dissimilarity": DISSIMILARITY["strongly unlike"], "work": "1 to 9 steps"},
    given={"local_steps": UNEQUAL},
    chosen={"local_steps": "has no number of local steps of each client"},
)

ABSENT = fl.participation.Markov(fail=0.1, recover=0.1)

Scenario(
    "absent",
    "Clients are absent for ten rounds at a time",
    "Devices come and go in spells: a two-state Markov chain of each client, away half of the "
    "time (Ribero et al. 2022), which the server does not choose.",
    "Least squares; strongly unlike clients of one server that are away half of the time",
    partial(with_parts, more={"participation": ABSENT}, likeness="strongly unlike"),
    "normalized_error",
    target=TARGET,
    rounds=2 * ROUNDS,
    axes={"dissimilarity": DISSIMILARITY["strongly unlike"], "participation": "away half"},
    record_every=4,
)

LATE = fl.link.Geometric(delta=0.5, longest=5, beyond="clip")

Scenario(
    "late",
    "Half of all messages are late, by up to five rounds",
    "Stragglers: messages arrive after the model has moved on, as asynchronous methods assume "
    "(Xie et al. 2019; Nguyen et al. 2022).",
    "Least squares; mildly unlike clients of one server whose messages are late",
    partial(with_parts, more={"delays": LATE}),
    "normalized_error",
    target=TARGET,
    rounds=2 * ROUNDS,
    axes={"delays": "geometric, half late"},
    record_every=4,
)

#: Parameters of a compressed model, and the bits that a client may send in total.
WIDE = 64
ALLOWANCE = 20_000
COMPRESSORS: dict[str, tuple[str, fl.link.Compressor | None]] = {
    "none": ("whole models", None),
    "sign": ("signs", fl.link.Sign()),
    "random": ("5 of 64 numbers, drawn", fl.link.RandomK(5)),
    "top": ("the 4 largest of 64 numbers", fl.link.TopK(4)),
    "quantized": ("numbers of 4 bits", fl.link.Quantize(4)),
}


def rounds_within(compressor: fl.link.Compressor | None) -> int:
    """An even number of rounds with one message of a model each, within the allowance."""
    bits = 32 * WIDE if compressor is None else compressor.bits(WIDE)
    return ALLOWANCE // bits // 2 * 2


for _name, (_words, _compressor) in COMPRESSORS.items():
    Scenario(
        f"bits-{_name}",
        f"Clients send {_words}: {ALLOWANCE // 1000} kbit each in all",
        "Compressors are comparable at equal bits alone: each gets as many rounds as its messages "
        "of one model have room for in the same allowance (Bernstein et al. 2018 for signs, "
        "Stich et al. 2018 for the largest, Alistarh et al. 2017 for quantized numbers).",
        f"Least squares; mildly unlike clients of one server may send few bits: {_words}",
        partial(
            with_parts,
            more={} if _compressor is None else {"compression": _compressor},
            dim=WIDE,
        ),
        "normalized_error",
        target=CLIENTS * 1e-2,
        rounds=rounds_within(_compressor),
        axes={"compression": _words, "bits": ALLOWANCE},
        given={"local_steps": LOCAL_STEPS}
        | ({} if _compressor is None else {"compression": _compressor}),
    )
