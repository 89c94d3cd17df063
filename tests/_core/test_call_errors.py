"""Errors of wrong calls show the call to write."""

import ast
import dataclasses
import inspect
import re

import numpy as np
import pytest

import fljax as fl

pytestmark = pytest.mark.core

#: All classes that ``fl.module`` made in these namespaces.
PARTS = {
    cls
    for namespace in (
        *(fl.algorithms, fl.aggregation, fl.attacks, fl.link, fl.participation, fl.privacy),
        *(fl.schedules, fl.optimizers, fl.problems, fl.batches, fl.graphs),
    )
    for cls in map(namespace.__dict__.get, dir(namespace))
    if dataclasses.is_dataclass(cls) and not cls.__dataclass_params__.init
} | {*fl.algorithms.REGISTRY.values()}


assert len(PARTS) > 200


def message_of(cls, *arguments, **named):
    with pytest.raises(TypeError) as caught:
        cls(*arguments, **named)
    return str(caught.value)


def wrong_calls(signature):
    """Calls with too many values, the same argument twice, none, and a misspelt name."""
    names = [*signature.parameters]
    positional = [n for n, p in signature.parameters.items() if p.kind is not p.KEYWORD_ONLY]
    required = [n for n, p in signature.parameters.items() if p.default is p.empty]
    yield [0.5] * (len(positional) + 1), {}
    if positional:
        yield [0.5], {positional[0]: 0.25}
        yield [0.5] * len(positional), {positional[-1]: 0.25}
    if required:
        yield [], {}
        yield [], {required[0] + "s": 0.5}
    yield [], dict.fromkeys(required[1:], 0.5) | {names[0] + "_": 0.5}


@pytest.mark.parametrize("cls", sorted(PARTS, key=lambda cls: (cls.__name__, cls.__module__)))
def test_every_part_shows_a_call_that_fits_its_constructor(cls):
    signature = inspect.signature(cls)
    if not signature.parameters:
        assert message_of(cls, 1).startswith(f"{cls.__name__}() too many positional arguments")
        return
    for arguments, named in wrong_calls(signature):
        with pytest.raises(TypeError):
            signature.bind(*arguments, **named)
        text = message_of(cls, *arguments, **named)
        written = re.search(r"; write (.+)\.$", text)
        assert written, text
        call = ast.parse(written[1], mode="eval").body
        assert ast.unparse(call.func) == cls.__name__
        keywords = {word.arg: word.value for word in call.keywords}
        assert len(keywords) == len(call.keywords)
        signature.bind(*call.args, **keywords)


@pytest.mark.parametrize(
    ("name", "arguments", "named", "call"),
    [
        ("FedProx", (0.1, 1.0), {}, "FedProx(0.1, attraction=1.0)"),
        (
            *("FedProx", (0.1, 1.0), {"clients_per_round": 10}),
            "FedProx(0.1, clients_per_round=10, attraction=1.0)",
        ),
        (
            *("FedProx", (0.1, 10, 1.0), {}),
            "FedProx(0.1, clients_per_round=10, epochs=1.0, attraction=...)",
        ),
        ("FedProx", (0.1,), {"mu": 1.0}, "FedProx(0.1, attraction=1.0)"),
        ("FedAvg", (), {"lr": 0.1}, "FedAvg(step_size=0.1)"),
        ("FedAvg", (0.1, 10), {"clients_per_round": 5}, "FedAvg(0.1, clients_per_round=5)"),
        ("FedAvg", (0.1,), {"epoch": 5}, "FedAvg(0.1, epochs=5)"),
        ("FedDyn", (0.1, 0.01), {}, "FedDyn(0.1, attraction=0.01)"),
        ("Ditto", (fl.algorithms.FedAvg(0.1), 0.1), {}, None),
        ("ZCDPNFL", (1.0,), {}, "ZCDPNFL(1.0, step_size=...)"),
        ("SharingADMM", (1.0, 2.0), {}, "SharingADMM(1.0)"),
        ("Scaffnew", (0.1, 0.5, 8), {}, "Scaffnew(0.1, 0.5, batches=...)"),
        ("PFedMe", (0.1, 15.0), {"attraction": 1.0}, "PFedMe(0.1, attraction=1.0)"),
    ],
)
def test_the_call_keeps_the_values_that_were_meant(name, arguments, named, call):
    text = message_of(getattr(fl.algorithms, name), *arguments, **named)
    if call is None:
        call = "Ditto(FedAvg(step_size=Constant(value=0.1)), 0.1, attraction=...)"
    assert text.endswith(f"; write {call}.")


def test_long_values_and_arrays_are_short_in_the_call():
    text = message_of(fl.algorithms.FedProx, np.ones((3, 4)), "x" * 100)
    assert text.endswith("; write FedProx(float64[3,4], attraction=...).")


def test_a_name_that_is_like_no_argument_gets_them_all():
    text = message_of(fl.participation.Drawn, 2, color="red")
    names = ", ".join(inspect.signature(fl.participation.Drawn).parameters)
    assert text.endswith(f"unexpected keyword argument 'color'; it takes {names}.")
