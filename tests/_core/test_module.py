"""Parts as dataclasses: their constructors and that they stay as they are."""

import copy
import dataclasses
import inspect
import pickle
import re

import jax
import pytest

import fljax as fl

pytestmark = pytest.mark.core


def doubled(value):
    return 2.0 * value


@fl.module
class Part:
    """A class with every kind of field."""

    size: float
    twice: float = fl.field(converter=doubled, default=1.0)
    notes: tuple = fl.static(default_factory=lambda: (3.0,))
    flag: bool = fl.static(default=False, kw_only=True)
    fixed: float = dataclasses.field(default=7.0, init=False)

    def validate(self):
        if self.size < 0:
            raise ValueError("negative")


class Unmarked(Part):
    """A class that is not a module."""


class Own(Part):
    def __init__(self):
        super().__init__(5.0, flag=True)


def test_fields_are_arguments_in_their_order_those_by_name_last():
    part = Part(1.0, 2.0, flag=True)
    assert (float(part.size), float(part.twice), part.flag) == (1.0, 4.0, True)
    assert Part(1.0).notes == (3.0,)
    assert Part(1.0, notes=(4.0,)).notes == (4.0,)
    assert float(Part(1.0).fixed) == 7.0
    assert (float(Own().size), Own().flag) == (5.0, True)
    signature = inspect.signature(Part)
    assert [*signature.parameters] == ["size", "twice", "notes", "flag"]
    assert signature.parameters["flag"].kind is inspect.Parameter.KEYWORD_ONLY
    assert str(signature.parameters["notes"]).endswith("= <factory>")
    assert len(jax.tree.leaves(Part(1.0))) == 3


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        ((), {}, "Part() missing a required argument: 'size'"),
        ((1.0, 2.0, (), True), {}, "Part() too many positional arguments"),
        ((1.0,), {"size": 2.0}, "Part() multiple values for argument 'size'"),
        ((1.0,), {"foo": 2.0}, "Part() got an unexpected keyword argument 'foo'"),
        ((1.0,), {"fixed": 2.0}, "Part() got an unexpected keyword argument 'fixed'"),
    ],
)
def test_wrong_arguments_are_named(arguments, named, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        Part(*arguments, **named)


def test_a_required_field_after_an_optional_one_is_refused():
    with pytest.raises(TypeError, match="non-default argument 'second' follows default"):

        @fl.module
        class Wrong:
            first: float = 1.0
            second: float


def test_a_part_is_immutable():
    for part in (Part(1.0), Unmarked(1.0), Own()):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'size'"):
            part.size = 2.0
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'size'"):
            del part.size
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'more'"):
        Part(1.0).more = 2.0
    noted = Unmarked(1.0)
    noted.more = 2.0  # as a subclass of any frozen dataclass
    assert vars(noted)["more"] == 2.0
    delattr(noted, "more")
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(Part(1.0), size=-1.0, twice=1.0)


def test_parts_go_with_dataclasses_that_python_froze():
    @dataclasses.dataclass(frozen=True)
    class Base:
        first: float = 1.0

    @fl.module
    class Child(Base):
        second: float = 2.0

    @fl.module
    class Grandchild(Child):
        third: float = 3.0

    part = Grandchild(4.0, third=5.0)
    assert [float(leaf) for leaf in jax.tree.leaves(part)] == [4.0, 2.0, 5.0]
    for name in ("first", "second", "third"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, 0.0)
    with pytest.raises(TypeError, match="Cannot overwrite attribute __setattr__"):

        @fl.module
        class Wrong:
            first: float = 1.0

            def __setattr__(self, name, value): ...


def test_parts_are_copied_and_pickled():
    for other in (
        copy.copy(Part(2.0)),
        copy.deepcopy(Part(2.0)),
        pickle.loads(pickle.dumps(Part(2.0))),
    ):
        assert [float(leaf) for leaf in jax.tree.leaves(other.size)] == [2.0]
        assert type(other) is Part
