"""The algorithms that each figure runs, found in its source.

From a figure's ``study``, through every function and constant of the experiments that it names, to
the classes of :mod:`fljax.algorithms` that are named there.
"""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from fljax.algorithms import REGISTRY

NAMES = {cls.__name__ for cls in REGISTRY.values()}


@cache
def _definitions(path: str) -> dict[str, list[ast.AST]]:
    """The top-level statements of a file by the names that they define."""
    result: dict[str, list[ast.AST]] = {}
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments"):
            for alias in node.names:
                result.setdefault(alias.asname or alias.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        result.setdefault(name.id, []).append(node)
    return result


def _named(module: ModuleType, name: str, node: ast.AST) -> Iterator[tuple[ModuleType, str]]:
    """The names that a name's definition uses: in its module, or in another of the experiments."""
    if isinstance(node, ast.ImportFrom):
        first = next(a.name for a in node.names if name in (a.asname, a.name))
        yield importlib.import_module(node.module or ""), first
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield module, part.id
        elif isinstance(part, ast.Attribute):
            name = part.value.id if isinstance(part.value, ast.Name) else ""
            owner = getattr(module, name, None)
            if not (isinstance(owner, ModuleType) and owner.__name__.startswith("experiments")):
                owner = module
            yield owner, part.attr


def algorithms(module: ModuleType, start: str) -> set[str]:
    """The classes that are reached from one name of a module."""
    visited = {(module.__name__, start)}
    pending = [(module, start)]
    while pending:
        current, name = pending.pop()
        for node in _definitions(current.__file__ or "").get(name, []):
            for other in _named(current, name, node):
                key = (other[0].__name__, other[1])
                if key not in visited:
                    visited.add(key)
                    pending.append(other)
    return {name for _, name in visited if name in NAMES}


@cache
def algorithms_of_figures() -> dict[str, set[str]]:
    from experiments.commands import MODULES

    result = {}
    for name in MODULES:
        module = importlib.import_module(name)
        study = getattr(module.FIGURE.study, "__name__", "")
        start = study if study in _definitions(module.__file__ or "") else "FIGURE"
        result[module.FIGURE.name] = algorithms(module, start)
    return result


def figures_of_algorithms() -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for figure, names in sorted(algorithms_of_figures().items()):
        for name in names:
            result.setdefault(name, []).append(figure)
    return result
