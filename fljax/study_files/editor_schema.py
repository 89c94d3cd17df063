"""A JSON schema of study files, generated from signatures, for editors that complete and check."""

import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fljax.executors.by_name import ENGINES
from fljax.simulation.scenario import Simulation
from fljax.study import sweep
from fljax.study_files.named_parts import (
    AXIS_MARK,
    FIELDS,
    NAMESPACES,
    makers,
    parameters_of,
    takes_more,
)
from fljax.study_files.study_file import FURTHER, SWEEP, TRACKERS

#: Types of JSON by Python's.
_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}

#: A setting that is an axis of values.
_AXIS = {"type": "string", "pattern": f"^\\{AXIS_MARK}[A-Za-z_]\\w*$"}

#: A reference to another setting by OmegaConf.
_REFERENCE = {"type": "string", "pattern": r"\$\{.+\}"}

#: A part of any name, with any arguments: for settings whose names are not listed.
_ANY_PART = {"type": "object", "properties": {"name": {"type": "string"}}}


def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of study files, from the signatures of this version.

    Editors with a language server for YAML use it for completion and checks if the first line of a
    file is ``# yaml-language-server: $schema=study.schema.json``; ``python -m fljax init`` writes
    both files.

    Example:
      >>> import fljax as fl
      >>> settings = fl.study_files.schema()["properties"]
      >>> settings["rounds"]["type"], settings["rounds"]["description"]
      ('integer', 'number of iterations of every run.')
    """
    described = _described(sweep)
    properties = {
        name: _of_parameter(parameter) | _description(described.get(name))
        for name, parameter in inspect.signature(sweep).parameters.items()
        if name in SWEEP
    }
    tracker = _named(TRACKERS, {"name": "study_name"})
    axes = {"type": ["object", "null"], "additionalProperties": {"type": ["array", "object"]}}
    properties |= {
        "scenario": {"anyOf": [{"type": "string"}, _scenario()]}
        | _description("a function, FILE.py:NAME or module:NAME, or a part for each setting."),
        "rounds": {"type": "integer", "minimum": 1} | _description(described["rounds"]),
        "seeds": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}
        | _description(described["seeds"]),
        "grid": axes | _description(described["grid"]),
        "static": axes | _description(FURTHER["static"]),
        "out": {"type": "string"} | _description(FURTHER["out"]),
        "x64": {"type": "boolean"} | _description(FURTHER["x64"]),
        "track": {"anyOf": [tracker, {"type": "array", "items": tracker}]}
        | _description(described["track"]),
        "executor": _named(ENGINES) | _description(FURTHER["executor"]),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of fljax",
        "type": "object",
        "required": ["scenario", "rounds"],
        "additionalProperties": False,
        "properties": properties,
        "$defs": {f"{setting}_part": _parts(makers(setting)) for setting in NAMESPACES},
    }


def _scenario() -> dict[str, Any]:
    """The schema of a scenario by parts."""
    described = _described(Simulation)
    properties = {}
    for name, parameter in inspect.signature(Simulation).parameters.items():
        part = {"$ref": f"#/$defs/{name}_part"}
        if name == "metrics":
            entry: dict[str, Any] = {"anyOf": [{"type": "string"}, part]}
            value: dict[str, Any] = {"type": "array", "items": entry}
        elif name in NAMESPACES:
            value = {"anyOf": [part, {"type": ["string", "null"]}]}
        else:
            value = _of_parameter(parameter)
        properties[name] = value | _description(described.get(name))
    assert properties.keys() == {*FIELDS}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _parts(functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """The schema of a part with one of these names; a name with a module has any arguments."""
    other = {"type": "string", "pattern": "[.:]"}
    parts = [_part(name, make) for name, make in functions.items()]
    return {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"anyOf": [{"enum": [*functions]}, other]}},
        "allOf": [
            {"if": {"properties": {"name": {"const": part["properties"]["name"]["const"]}}}}
            | {"then": part}
            for part in parts
        ],
    }


def _part(
    name: str, make: Callable[..., Any], renamed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The schema of a function or class with its arguments."""
    described = _described(make)
    parameters = {
        (renamed or {}).get(parameter, parameter): _argument(parameter, details)
        | _description(described.get(parameter))
        for parameter, details in parameters_of(make).items()
    }
    first_line = (inspect.getdoc(make) or "").partition("\n")[0]
    return {
        "properties": {**parameters, "name": {"const": name}},
        "additionalProperties": takes_more(make),
    } | _description(first_line)


def _argument(name: str, parameter: inspect.Parameter) -> dict[str, Any]:
    """The schema of an argument of a part: its type, another part, an axis or a reference."""
    value = _of_parameter(parameter)
    if not value:
        return value
    part = {"$ref": f"#/$defs/{name}_part"} if name in NAMESPACES else _ANY_PART
    return {"anyOf": [value, part, _AXIS, _REFERENCE]}


def _named(
    functions: Mapping[str, Callable[..., Any]], renamed: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The schema of a tracker or an engine: its name alone, or with its arguments."""
    parts = [_part(name, make, renamed) for name, make in functions.items()]
    with_arguments = {"type": "object", "required": ["name"], "anyOf": parts}
    return {"anyOf": [{"enum": [*functions]}, with_arguments]}


def _of_parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    """The schema of a parameter; empty, which allows anything, unless its type is plain."""
    annotation = parameter.annotation
    value = {} if isinstance(annotation, str) else _of_annotation(annotation)
    default = parameter.default
    if value and isinstance(default, bool | int | float | str):
        value["default"] = default
    return value


def _of_annotation(annotation: Any) -> dict[str, Any]:
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return {"enum": [*typing.get_args(annotation)]}
    if origin in (types.UnionType, typing.Union):
        kinds = [_of_annotation(kind) for kind in typing.get_args(annotation)]
        return {"anyOf": kinds} if all(kinds) else {}
    if origin in (list, tuple, Sequence) or annotation in (list, tuple):
        return {"type": "array"}
    if origin in (dict, Mapping):
        return {"type": "object"}
    return {}


def _description(text: str | None) -> dict[str, str]:
    """The first sentence of a description, as plain text."""
    if not text:
        return {}
    sentence = re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(";")
    plain = re.sub(r":\w+:`~?(?:[^`<]*<)?([^`>]*)>?`", r"\1", sentence)
    return {"description": plain.replace("``", "")}


def _described(make: Callable[..., Any]) -> dict[str, str]:
    """The descriptions of arguments in a docstring, by name."""
    _, _, arguments = (inspect.getdoc(make) or "").partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", arguments)[0]
    entries = re.split(r"^(?=\w+: )", textwrap.dedent(block), flags=re.MULTILINE)
    split = (entry.partition(": ") for entry in entries if entry.strip())
    return {name: " ".join(text.split()) for name, _, text in split}
