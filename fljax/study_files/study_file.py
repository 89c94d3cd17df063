"""The settings of a study in a file: those of :func:`fljax.sweep`, and a few more."""

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import jax
import xarray as xr

from fljax import track
from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.module import static
from fljax._core.user_code import UsageError, scenario_of
from fljax.executors.by_name import ENGINES, executor_of
from fljax.study import Plan, plan, save, sweep
from fljax.study_files.named_parts import FIELDS, built, part_of, scenario_from_parts
from fljax.study_files.setting_places import (
    SettingPath,
    SettingPlaces,
    parsed_yaml,
)

#: Arguments of :func:`fljax.sweep` that a file does not have as they are in a program.
IN_PROGRAMS = ("callback", "executor")

#: The arguments of :func:`fljax.sweep` that a file may have.
SWEEP = tuple(name for name in inspect.signature(sweep).parameters if name not in IN_PROGRAMS)

#: Further settings, with their descriptions.
FURTHER = {
    "executor": "the engine whose workers compute the study; see fljax.executors.",
    "static": "maps each axis of structure (sizes, switches) to its values; see fljax.static.",
    "out": "the results are written to this netCDF file.",
    "x64": "whether numbers are in double precision.",
}

#: All settings of a file.
SETTINGS = (*SWEEP, *FURTHER)

#: The trackers by name.
TRACKERS: dict[str, Callable[..., Any]] = {
    "csv": track.csv,
    "mlflow": track.mlflow,
    "tensorboard": track.tensorboard,
    "wandb": track.wandb,
}


@dataclasses.dataclass(frozen=True)
class StudyFile:
    """The settings of a study, made by :func:`read`; their names are checked.

    Attributes:
      settings: as they are in the file, with overrides.
      places: where each was written, for messages.
      folder: where files of scenarios are looked for first.
    """

    settings: dict[str, Any]
    places: SettingPlaces = dataclasses.field(repr=False)
    folder: Path

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of :func:`fljax.sweep`.

        Raises:
          ValueError: a scenario that cannot be imported, parts that do not fit the grid.
        """
        settings = self.settings
        grid = {name: self._axis("grid", name) for name in settings.get("grid") or {}}
        fixed = {name: self._axis("static", name) for name in settings.get("static") or {}}
        for name in grid.keys() & fixed.keys():
            raise self.places.error(("static", name), f"{name} is in the grid, too; leave one out.")
        grid |= {name: static(values) for name, values in fixed.items()}
        result = {name: settings[name] for name in SWEEP if name in settings}
        axes = {name: ("static" if name in fixed else "grid", name) for name in grid}
        result |= {"scenario": self._scenario(axes), "grid": grid}
        if settings.get("track") is not None:
            result["track"] = self._trackers(settings["track"])
        if settings.get("executor") is not None:
            self._check_executor()
        return result

    @property
    def out(self) -> Path | None:
        """The file for the results."""
        out = self.settings.get("out")
        return None if out is None else Path(out)

    def sweep(self) -> xr.Dataset:
        """Run the study, and write its results if the file asks for it.

        ``x64: true`` sets JAX's option, which stays set.

        Raises:
          TypeError, ValueError, OSError: as :func:`fljax.sweep` and :func:`fljax.save`, with the
            place of the setting.
        """
        with self._executor() as executor:
            results = self._placed(functools.partial(sweep, executor=executor))
        if self.out is not None:
            save(results, self.out)
        return results

    def plan(self, measure: bool = False) -> Plan:
        """How the study would be run; see :func:`fljax.plan`."""
        return self._placed(functools.partial(plan, measure=measure))

    def _placed(self, function: Callable[..., Any]) -> Any:
        """Call a function with the arguments that it has; an error that begins with the name of a
        setting gets its place.
        """
        if self.settings.get("x64"):
            jax.config.update("jax_enable_x64", True)
        parameters = inspect.signature(function).parameters
        try:
            return function(**{n: v for n, v in self.arguments.items() if n in parameters})
        except (TypeError, ValueError) as error:
            name = str(error).partition(" ")[0].removesuffix("=")
            if name in self.settings:
                error.add_note(f"({self.places.of((name,))})")
            raise

    def _axis(self, kind: str, name: str) -> Any:
        """The values of an axis, with parts built."""
        values = self.settings[kind][name]
        path = (kind, name)
        if not isinstance(values, list | Mapping):
            raise self.places.error(
                path,
                f"the axis {name!r} must be a list of values or a mapping of labels to values, "
                f"got {values!r}; for one value write [{values}].",
            )
        return built(part_of(values, path, self.places), self.places)

    def _scenario(self, axes: Mapping[str, SettingPath]) -> Callable[..., Any]:
        scenario = self.settings["scenario"]
        if isinstance(scenario, Mapping):
            parts = {
                name: part_of(_as_part(value, name), ("scenario", name), self.places)
                for name, value in scenario.items()
            }
            name = Path(self.places.name).stem
            return scenario_from_parts(parts, axes, self.places, name)
        text = str(scenario)
        if ":" not in text and not text.endswith(".py"):
            module, _, name = text.rpartition(".")
            text = f"{module}:{name}"
        source, _, name = text.rpartition(":")
        if source.endswith(".py") and (self.folder / source).is_file():
            text = f"{self.folder / source}:{name}"
        try:
            return scenario_of(text)
        except UsageError as error:
            raise self.places.error(("scenario",), str(error)) from None

    def _trackers(self, value: Any) -> list[Any]:
        """The trackers of the setting ``track``: one, or a list."""
        entries = value if isinstance(value, list) else [value]
        trackers = []
        for position, entry in enumerate(entries):
            path = ("track", position) if isinstance(value, list) else ("track",)
            kind, settings = self._named(entry, path, "tracker", TRACKERS)
            parameters = inspect.signature(TRACKERS[kind]).parameters
            # `name` is that of the tracker here; that of the study is its `study_name`.
            names = ["study_name" if name == "name" else name for name in parameters]
            self.places.check_keys(path, settings, names)
            if "study_name" in settings:
                settings["name"] = settings.pop("study_name")
            try:
                trackers.append(TRACKERS[kind](**settings))
            except (ImportError, TypeError, ValueError) as error:
                raise self.places.error(path, str(error)) from None
        return trackers

    def _named(
        self, entry: Any, path: SettingPath, kind: str, choices: Mapping[str, object]
    ) -> tuple[str, dict[str, Any]]:
        """The name of a tracker or an engine, which may stand alone, and its settings."""
        settings = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        name = settings.pop("name", None)
        try:
            checks.choice(kind, name, choices)
        except (TypeError, ValueError) as error:
            raise self.places.error((*path, "name"), str(error)) from None
        return name, settings

    @contextlib.contextmanager
    def _executor(self) -> Iterator[Executor | None]:
        """The executor that the file names, at work until the study is done; ``None`` without."""
        entry = self.settings.get("executor")
        if entry is None:
            yield None
            return
        self._check_executor()
        try:
            executor = executor_of(entry)
        except (ImportError, ValueError) as error:
            raise self.places.error(("executor",), str(error)) from None
        with executor:
            yield executor

    def _check_executor(self) -> None:
        """Raise ``ValueError`` for an unknown engine or argument, or without a store."""
        path = ("executor",)
        name, settings = self._named(self.settings["executor"], path, "executor", ENGINES)
        self.places.check_keys(path, settings, [*inspect.signature(ENGINES[name]).parameters])
        if self.settings.get("store") is None:
            raise self.places.error(
                path, "an executor needs a store, a folder that all of its workers see."
            )


@checked
def read(source: str | os.PathLike | Mapping[str, Any], overrides: Sequence[str] = ()) -> StudyFile:
    """Read the settings of a study from a YAML file, or from a configuration of OmegaConf or Hydra.

    A file has the arguments of :func:`fljax.sweep` by name, and ``static`` (axes of structure),
    ``out`` (a file for the results) and ``x64``; its ``executor`` is the name of an engine, or
    ``{name: processes, workers: 4}`` (:func:`fljax.executors.executor_of`). The ``scenario`` is a
    function, ``"file.py:name"`` or ``"package.module:name"``, or a part for each field of
    :class:`fljax.Simulation`, such as ``algorithm: {name: FedAvg, step_size: 0.1}``. An axis
    of the grid gives the argument of its name to the parts that have no value for it, or else to
    the only part that has such an argument; ``$axis`` marks further places. Values may refer to
    others by OmegaConf's ``${scenario.problem.clients}``. It needs OmegaConf:
    ``pip install 'fljax[files]'``.

    Args:
      source: the file, or a mapping.
      overrides: settings that replace the file's, ``"grid.step_size=[0.01,0.1]"``.

    Raises:
      FileNotFoundError: no such file.
      ImportError: OmegaConf is not installed.
      ValueError: no YAML, an unknown key or name (with file, line and the nearest valid one), an
        override without a value.

    Example:
      >>> import fljax as fl
      >>> path = getfixture("tmp_path") / "study.yaml"
      >>> _ = path.write_text('''
      ... scenario:
      ...   problem: {name: ridge, clients: 6, samples: 10, dim: 2}
      ...   network: {name: ring, nodes: 6}
      ...   algorithm: {name: NetworkedADMM}
      ...   metrics: [normalized_error]
      ... grid: {penalty: [0.5, 1.0]}
      ... rounds: 20
      ... ''')
      >>> results = fl.study_files.read(path, ["seeds=3", "grid.penalty=[1.0]"]).sweep()
      >>> dict(results.sizes)
      {'penalty': 1, 'seed': 3, 'round': 20}
    """
    if importlib.util.find_spec("omegaconf") is None:
        raise ImportError(
            "study files need OmegaConf, which is not installed; pip install 'fljax[files]'."
        )
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    lines: dict[SettingPath, int] = {}
    if isinstance(source, Mapping):
        name = "settings"
        folder = Path()
        content = OmegaConf.create(dict(source)) if isinstance(source, dict) else source
    else:
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"no study file {path}; `python -m fljax init` writes one.")
        name = str(path)
        folder = path.parent
        content, lines = parsed_yaml(path)
    texts: dict[SettingPath, str] = {}
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not (key and equals):
            raise ValueError(f"an override is KEY=VALUE, such as rounds=100, got {text!r}.")
        texts[tuple(key.split("."))] = text
    places = SettingPlaces(name, lines, texts)
    if not OmegaConf.is_dict(content):
        raise places.error((), "a study file has settings by name, such as rounds: 100.")
    try:
        merged = OmegaConf.merge(content, OmegaConf.from_dotlist(list(overrides)))
        settings = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        path = tuple(str(getattr(error, "full_key", "") or "").split("."))
        raise places.error(path, f"{str(error).splitlines()[0]}.") from None
    assert isinstance(settings, dict)
    settings = {str(name): value for name, value in settings.items()}
    _check_settings(settings, places)
    return StudyFile(settings, places, folder)


def _check_settings(settings: dict[Any, Any], places: SettingPlaces) -> None:
    """Raise ``ValueError`` for unknown keys, missing settings, and settings of another kind."""
    places.check_keys((), settings, SETTINGS)
    for name in ("scenario", "rounds"):
        if settings.get(name) is None:
            raise places.error((), f"{name} is missing.")
    for name in ("grid", "static", "until"):
        value = settings.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise places.error((name,), f"{name} has values by name, got {value!r}.")
    scenario = settings["scenario"]
    if isinstance(scenario, Mapping):
        places.check_keys(("scenario",), scenario, FIELDS)
        for name in ("problem", "algorithm"):
            if name not in scenario and name not in {**(settings.get("grid") or {})}:
                raise places.error(("scenario",), f"scenario.{name} is missing.")
        for name, value in scenario.items():
            part_of(_as_part(value, name), ("scenario", name), places)
    elif not isinstance(scenario, str):
        raise places.error(
            ("scenario",), f"scenario is FILE.py:NAME, module:NAME or parts, got {scenario!r}."
        )
    for kind in ("grid", "static"):
        for name, value in (settings.get(kind) or {}).items():
            part_of(value, (kind, name), places)
    _check_number(settings, places)


def _check_number(settings: dict[str, Any], places: SettingPlaces) -> None:
    if not checks.is_whole(settings["rounds"]):
        raise places.error(("rounds",), f"rounds must be an integer, got {settings['rounds']!r}.")
    if not isinstance(settings.get("x64", False), bool):
        raise places.error(("x64",), f"x64 must be true or false, got {settings['x64']!r}.")


def _as_part(value: Any, name: str) -> Any:
    """A part by its name alone as one with a name; texts of other fields stay texts."""
    is_text = isinstance(value, str) and not value.startswith("$")
    return {"name": value} if is_text and name not in ("metrics", "model") else value
