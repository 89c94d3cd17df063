"""Names of before 0.1: refused, with those of today."""

import importlib

import pytest

from fljax import _renamed

OLD = [(module, name) for module, names in _renamed.ATTRIBUTES.items() for name in names]


@pytest.mark.parametrize(("module", "name"), OLD)
def test_an_old_attribute_is_refused_with_its_new_name(module, name):
    new = _renamed.ATTRIBUTES[module][name]
    with pytest.raises(AttributeError) as refused:
        getattr(importlib.import_module(module), name)
    assert str(refused.value) == f"{module}.{name} is now {new}."


def test_what_left_a_module_is_where_the_error_says():
    for new in _renamed.ATTRIBUTES["fljax.simulation"].values():
        room, _, name = new.rpartition(".")
        assert name in importlib.import_module(room).__all__


def test_a_name_that_never_was_is_only_missing():
    with pytest.raises(AttributeError, match=r"^module 'fljax.simulation' has no attribute 'no'$"):
        _renamed.lookup("fljax.simulation")("no")
