"""Every mechanism has its promise, its premises, and for every premise code and a test."""

import ast
import importlib
from pathlib import Path

import pytest

import fljax as fl
from fljax.link import SecureAggregation
from fljax.privacy import premises
from fljax.privacy.notions import Notion

ROOT = Path(__file__).parents[2]


def test_every_mechanism_has_a_promise():
    classes = {
        name
        for name in fl.privacy.__all__
        if isinstance(kind := getattr(fl.privacy, name), type)
        and (hasattr(kind, "ledger") or hasattr(kind, "scope"))
        and kind is not Notion
    }
    releases = {name for name in fl.privacy.__all__ if name.endswith("_release")}
    assert classes | releases | {SecureAggregation.__name__} == premises.PROMISES.keys()


def test_every_promise_is_of_premises_and_every_premise_of_a_promise():
    used = {name for promise in premises.PROMISES.values() for name in promise.premises}
    assert used == premises.PREMISES.keys()


@pytest.mark.parametrize("name", premises.PREMISES)
def test_a_premise_has_code_and_a_test(name):
    premise = premises.PREMISES[name]
    for path in premise.code:
        parts = path.split(".")
        for length in range(len(parts) - 1, 0, -1):
            try:
                target = importlib.import_module(".".join(parts[:length]))
            except ModuleNotFoundError:
                continue
            for part in parts[length:]:
                target = getattr(target, part)
            assert callable(target)
            break
    file, function = premise.test.split("::")
    tree = ast.parse((ROOT / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_guide_shows_them():
    guide = (ROOT / "docs/guides/privacy.md").read_text()
    in_guide = guide.split("<!-- premises -->\n")[1].split("<!-- end premises -->")[0]
    assert in_guide.strip() == premises.table()
