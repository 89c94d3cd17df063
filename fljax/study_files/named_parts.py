"""Parts of a simulation by name: ``{name: FedAvg, step_size: 0.1}``."""

import dataclasses
import functools
import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import jax

from fljax import (
    algorithms,
    data,
    graphs,
    link,
    metrics,
    models,
    participation,
    partitions,
    privacy,
    problems,
)
from fljax._core.nearest_names import nearest, question
from fljax._core.user_code import UsageError, scenario_of
from fljax.graphs import federation
from fljax.link import aggregation, attacks
from fljax.optimization import optimizers, schedules
from fljax.problems import batches, streams
from fljax.simulation.scenario import Simulation
from fljax.study_files.setting_places import SettingPath, SettingPlaces, dotted

#: Where the name of a part is looked up, by the setting that it is the value of.
NAMESPACES: dict[str, tuple[ModuleType, ...]] = {
    "problem": (problems, streams),
    "algorithm": (algorithms,),
    "network": (graphs, federation),
    "metrics": (metrics,),
    "privacy": (privacy,),
    "participation": (participation,),
    "delays": (link,),
    "compression": (link,),
    "attack": (attacks,),
    "losses": (link,),
    "aggregation": (aggregation,),
    "noise": (link,),
    "upload_noise": (link,),
    "masks": (link,),
    "batches": (batches,),
    "selector": (participation,),
    "step_size": (schedules, optimizers),
    "loss": (problems,),
    "regularizer": (problems,),
}

#: Modules for names with a dot, ``schedules.PowerDecay``.
MODULES: dict[str, ModuleType] = {
    "aggregation": aggregation,
    "algorithms": algorithms,
    "attacks": attacks,
    "batches": batches,
    "data": data,
    "federation": federation,
    "graphs": graphs,
    "link": link,
    "metrics": metrics,
    "models": models,
    "optimizers": optimizers,
    "participation": participation,
    "partitions": partitions,
    "privacy": privacy,
    "problems": problems,
    "schedules": schedules,
    "streams": streams,
}

#: The parts of a simulation.
FIELDS = tuple(field.name for field in dataclasses.fields(Simulation))

#: What a value that takes its numbers from an axis of the grid begins with: ``$penalty``.
AXIS_MARK = "$"


@dataclasses.dataclass(frozen=True)
class NamedPart:
    """A function or class with the values of its arguments, which may be parts as well."""

    make: Callable[..., Any]
    arguments: dict[str, Any]
    path: SettingPath

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that a setting may give, by name; all but a random key."""
        return parameters_of(self.make)

    def build(self, key: Any, axes: Mapping[str, Any], places: SettingPlaces) -> Any:
        """The part, with the values of a grid point.

        A part that draws random numbers gets a key of its own from that of the run, by the position
        in the file: adding another part changes no draw.
        """
        values = {name: _built(value, key, axes, places) for name, value in self.arguments.items()}
        if _takes_key(self.make):
            if key is None:
                raise places.error(
                    self.path,
                    f"{dotted(self.path)} draws random numbers, so it cannot be a value of the "
                    "grid; make it a part of the scenario.",
                )
            values["key"] = jax.random.fold_in(key, zlib.crc32(dotted(self.path).encode()))
        try:
            return self.make(**values)
        except (TypeError, ValueError) as error:
            argument = str(error).partition(" ")[0]
            path = (*self.path, argument) if argument in self.arguments else self.path
            error.add_note(f"({places.of(path)})")
            raise


def parameters_of(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function that a setting may give."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: parameter
        for name, parameter in inspect.signature(make).parameters.items()
        if parameter.kind not in kinds and not (name == "key" and _takes_key(make))
    }


def takes_more(make: Callable[..., Any]) -> bool:
    """Whether a function takes arguments that its signature does not name."""
    parameters = inspect.signature(make).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _takes_key(make: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(make).parameters), "") == "key"


def makers(setting: str) -> dict[str, Callable[..., Any]]:
    """The functions and classes that can be named as the value of a setting."""
    result = {}
    for module in NAMESPACES.get(setting, ()):
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and not name.startswith("as_"):
                result.setdefault(name, value)
    return result


def part_of(value: Any, path: SettingPath, places: SettingPlaces) -> Any:
    """The value of a setting with its parts, whose names and arguments are checked.

    Raises:
      ValueError: an unknown name or argument, a missing argument; with the place and the nearest
        valid name.
    """
    if isinstance(value, list):
        return [part_of(entry, (*path, i), places) for i, entry in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if "name" not in value:
        return {key: part_of(entry, (*path, key), places) for key, entry in value.items()}
    make = _maker(value["name"], path, places)
    settings = {name: entry for name, entry in value.items() if name != "name"}
    parameters = parameters_of(make)
    if not takes_more(make):
        places.check_keys(path, settings, [*parameters])
    lacking = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in settings
    ]
    arguments = {name: part_of(entry, (*path, name), places) for name, entry in settings.items()}
    part = NamedPart(make, arguments, path)
    # An axis of the grid may give them; the caller knows which axes there are.
    return dataclasses.replace(
        part, arguments=arguments | {name: AXIS_MARK + name for name in lacking}
    )


def _maker(name: Any, path: SettingPath, places: SettingPlaces) -> Callable[..., Any]:
    """The function or class of a name."""
    name_path = (*path, "name")
    if not isinstance(name, str):
        raise places.error(name_path, f"name must be the name of a part, got {name!r}.")
    if ":" in name:
        try:
            return scenario_of(name)
        except UsageError as error:
            raise places.error(name_path, str(error)) from None
    module_name, dot, last = name.rpartition(".")
    if dot:
        module = MODULES.get(module_name)
        if module is None:
            suggestion = question(nearest(module_name, MODULES))
            raise places.error(
                name_path, f"no module {module_name!r} of fljax. {suggestion}".strip()
            )
        choices = {n: getattr(module, n) for n in module.__all__ if callable(getattr(module, n))}
    else:
        setting = next((str(step) for step in reversed(path) if step in NAMESPACES), "")
        choices = makers(setting)
    if last not in choices:
        suggestion = question(nearest(last, choices))
        where = f"fljax.{module_name}" if dot else "the library for this setting"
        if not choices:
            suggestion = "Write it with its module, such as schedules.PowerDecay."
        raise places.error(name_path, f"no {last!r} in {where}. {suggestion}".strip())
    return choices[last]


def parts_in(value: Any) -> Iterator[NamedPart]:
    """All parts in a value, the outer ones first."""
    if isinstance(value, NamedPart):
        yield value
        yield from parts_in(list(value.arguments.values()))
    elif isinstance(value, Mapping):
        yield from parts_in(list(value.values()))
    elif isinstance(value, list):
        for entry in value:
            yield from parts_in(entry)


def references_in(value: Any, path: SettingPath = ()) -> Iterator[tuple[str, SettingPath]]:
    """The axes that a value refers to, with the path of each reference."""
    if isinstance(value, NamedPart):
        yield from references_in(value.arguments, value.path)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from references_in(entry, (*path, key))
    elif isinstance(value, list):
        for position, entry in enumerate(value):
            yield from references_in(entry, (*path, position))
    elif isinstance(value, str) and value.startswith(AXIS_MARK):
        yield value.removeprefix(AXIS_MARK), path


def _built(value: Any, key: Any, axes: Mapping[str, Any], places: SettingPlaces) -> Any:
    """A value with its parts built and its references replaced."""
    if isinstance(value, NamedPart):
        return value.build(key, axes, places)
    if isinstance(value, Mapping):
        return {name: _built(entry, key, axes, places) for name, entry in value.items()}
    if isinstance(value, list):
        return [_built(entry, key, axes, places) for entry in value]
    if isinstance(value, str) and value.startswith(AXIS_MARK):
        return axes[value.removeprefix(AXIS_MARK)]
    return value


def built(value: Any, places: SettingPlaces) -> Any:
    """A value of the grid with its parts built; these cannot draw random numbers."""
    return _built(value, None, {}, places)


def scenario_from_parts(
    parts: dict[str, Any], axes: Mapping[str, SettingPath], places: SettingPlaces, name: str
) -> Callable[..., Simulation]:
    """The scenario of parts, one for each field of :class:`fljax.Simulation`.

    An axis replaces the part of its name; or the values ``$axis`` and missing arguments of its
    name; or else the argument of its name of the only part that has one.

    Args:
      parts: by field.
      axes: the axes of the grid, with their paths.
      places: of the settings.
      name: of the scenario.

    Raises:
      ValueError: an axis that no part or several parts could take, a value that is missing.
    """
    settings: dict[str, Any] = dict(parts)
    references = {axis for axis, _ in references_in(settings, ("scenario",))}
    for axis, setting_path in axes.items():
        if axis in FIELDS:
            settings[axis] = AXIS_MARK + axis
        elif axis not in references:
            _refer(settings, axis, setting_path, places)
    for axis, path in references_in(settings, ("scenario",)):
        if axis not in axes:
            text = f"{dotted(path)} is missing"
            if path and path[-1] != axis:
                text = f"{dotted(path)} refers to the axis {axis!r}, which the grid does not have"
            raise places.error(path, f"{text}; give it a value, or an axis {axis!r} of the grid.")

    # Not a function within this one: it is sent to workers of an executor.
    scenario = functools.partial(_simulation_of_parts, settings, places)
    scenario.__name__ = name  # pyright: ignore[reportAttributeAccessIssue]
    scenario.__qualname__ = name  # pyright: ignore[reportAttributeAccessIssue]
    return scenario


def _simulation_of_parts(
    settings: Mapping[str, Any], places: SettingPlaces, key: Any, /, **point: Any
) -> Simulation:
    """A scenario: the simulation of the parts of a file at a point of the grid."""
    values = {name: _built(value, key, point, places) for name, value in settings.items()}
    return Simulation(**values)


def _refer(settings: dict[str, Any], axis: str, path: SettingPath, places: SettingPlaces) -> None:
    """Let the only part that takes an argument of this name refer to the axis."""
    parts = [*parts_in(settings)]
    takers = [part for part in parts if axis in part.parameters]
    if len(takers) == 1:
        takers[0].arguments[axis] = AXIS_MARK + axis
        return
    if takers:
        named = ", ".join(dotted((*part.path, axis)) for part in takers)
        text = f"the axis {axis!r} could be any of {named}; write {axis}: ${axis} where it belongs."
    else:
        arguments = [argument for part in parts for argument in part.parameters]
        suggestion = question(nearest(axis, [*FIELDS, *arguments]))
        text = f"no part of the scenario takes {axis!r}. {suggestion}".strip()
    raise places.error(path, text)
