"""One word, one meaning: names in signatures, and what became of those of before."""

import inspect
import re
import types
from pathlib import Path

import pytest

import fljax as fl

ROOT = Path(__file__).parents[1]

BRITISH = re.compile(
    r"(optim|regular|normal|minim|general|initial|factor|linear|central|personal|quant|winsor)"
    r"is(e|ed|er|ers|ation)(_|$|[A-Z])|neighbour|colour|centre|centred|behaviour|labelled"
)
#: Steps of a length, and counts of them.
LENGTH, COUNT = re.compile(r"(^|_)step_size$"), re.compile(r"(^|_)(steps|epochs)$")
#: Of whom a word of several meanings may be an argument.
MEANINGS = {
    "coupling": "networks of models: FedGD, FedRelax, GTVMin and what is proved of them",
    "mixing": "peers' combination weights",
}


def signatures():
    """``name, parameters`` of all that is public, by its dotted name."""
    result, left = {}, [("fljax", fl)]
    while left:
        place, room = left.pop()
        for name in getattr(room, "__all__", ()):
            value = getattr(room, name)
            if isinstance(value, types.ModuleType):
                if value.__name__.startswith("fljax."):
                    left.append((f"{place}.{name}", value))
            elif callable(value):
                try:
                    result[f"{place}.{name}"] = list(inspect.signature(value).parameters)
                except ValueError:  # of a class of NumPy's or of Python's
                    continue
    return result


SIGNATURES = signatures()
ALGORITHMS = [f"fljax.algorithms.{cls.__name__}" for cls in fl.algorithms.REGISTRY.values()]


def test_names_are_spelled_as_in_the_rest_of_the_ecosystem():
    wrong = [name for name in SIGNATURES if BRITISH.search(name)]
    wrong += [f"{n}({p}=)" for n, given in SIGNATURES.items() for p in given if BRITISH.search(p)]
    assert not wrong


@pytest.mark.parametrize("name", ALGORITHMS)
def test_lengths_and_counts_of_steps_have_one_form(name):
    for given in SIGNATURES[name]:
        if "step" in given:
            assert LENGTH.search(given) or COUNT.search(given), given
        assert given not in ("scheduler", "rate", "local_rounds", "steps")


def test_weights_of_peers_and_couplings_of_models_have_a_word_each():
    def who(word):
        return {name.split(".")[-1] for name in ALGORITHMS if word in SIGNATURES[name]}

    needs = {cls.__name__: cls.needs for cls in fl.algorithms.REGISTRY.values()}
    assert all(needs[name].network is fl.graphs.Graph for name in who("mixing"))
    assert who("coupling") == {"FedGD", "FedRelax", "ModelAgnosticFedRelax", "NetworkedFedSGD"}


def test_the_glossary_has_the_words_of_signatures():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    glossary = text[text.index("## Words") :].split("\n## ")[0] + text[text.index("## Words") :]
    for word in ("step_size", "local_steps", "epochs", "selector", "mixing", "coupling", "batches"):
        assert f"`{word}`" in glossary, word


@pytest.mark.parametrize(
    ("make", "new"),
    [
        (lambda: fl.algorithms.FedAvg(0.1, scheduler=None), "'scheduler', which is now 'selector'"),
        (lambda: fl.algorithms.FedAvg(0.1, normalised=True), "now 'normalized'"),
        (lambda: fl.algorithms.SCAFFOLD(0.1, server_step=1.0), "now 'server_step_size'"),
        (lambda: fl.algorithms.APFL(0.1, mixing=0.5), "now 'interpolation'"),
        (lambda: fl.algorithms.FedAsync(0.1, mixing=0.5), "now 'server_step_size'"),
        (lambda: fl.algorithms.PFedMe(0.1, 1.0, local_rounds=2), "now 'local_steps'"),
        (lambda: fl.algorithms.NIDS(0.1, coupling=1.0), "now 'consensus_step_size'"),
        (lambda: fl.algorithms.FedDPSGD(0.1, steps=2), "now 'local_steps'"),
        (lambda: fl.problems.from_clients([], None, regulariser=None), "now 'regularizer'"),
    ],
)
def test_old_arguments_say_the_new_one(make, new):
    with pytest.raises(TypeError, match=f"unexpected keyword argument .*{new}"):
        make()


def test_an_argument_that_never_was_is_python_s_own_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        fl.algorithms.FedAvg(0.1, foo=1)
