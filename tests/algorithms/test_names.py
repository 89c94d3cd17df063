"""The names of algorithms: labels, classes, and names in other papers and libraries."""

import re

import pytest

import fljax as fl
from fljax._core.nearest_names import same_form
from fljax.algorithms import REGISTRY
from fljax.algorithms.algorithm import SYNONYMS, Needs, algorithm, meanings
from fljax.tuning.search import space_of

pytestmark = pytest.mark.core

#: Two names of different algorithms that differ by a hyphen alone.
ALMOST_EQUAL = {"DP-SGD", "D-PSGD"}


@pytest.mark.parametrize("name", sorted(meanings()))
def test_every_name_stands_for_exactly_one_algorithm(name):
    label = meanings()[name].label
    assert label in REGISTRY
    spellings = {other: meanings()[other].label for other in same_form(name, meanings())}
    if name not in ALMOST_EQUAL:
        assert {*spellings.values()} == {label}, spellings
    for module in (fl, fl.algorithms):
        if name in module.__all__ or name == "DGD":
            continue
        with pytest.raises(AttributeError, match=re.escape(REGISTRY[label].__name__)):
            getattr(module, name)


@pytest.mark.parametrize("name", sorted(SYNONYMS))
def test_tuning_accepts_a_name_or_says_how_its_arguments_are_chosen(name):
    label, how = SYNONYMS[name]
    if how:
        with pytest.raises(ValueError, match=re.escape(f"{name} is fljax.algorithms.")):
            space_of(name)
        return
    try:
        cls, _ = space_of(name)
    except ValueError as error:  # arguments that no default range is known for
        assert "must be given" in str(error)  # noqa: PT017
    else:
        assert cls is REGISTRY[label]


@pytest.mark.parametrize(
    ("label", "also", "text"),
    [
        ("New", {"DSGD": ""}, "'DSGD' cannot be a name of New: it is one of Consensus"),
        ("New", {"FedAvg": ""}, "'FedAvg' cannot be a name of New: it is one of FedAvg"),
        ("SONATA", {}, "'SONATA' cannot be a name of SONATA: it is one of ATC tracking"),
        ("NetworkedADMM", {}, "'NetworkedADMM' cannot be a name of NetworkedADMM: it is one of"),
    ],
)
def test_a_name_of_another_algorithm_is_refused(label, also, text):
    before = dict(REGISTRY), dict(SYNONYMS)
    with pytest.raises(ValueError, match=re.escape(text)):
        algorithm(label, "mcmahan2017", Needs(), also)(type("New", (fl.algorithms.Algorithm,), {}))
    assert before == (REGISTRY, SYNONYMS)
