"""Where each setting of a study was written: in which line of a file, or on the command line."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fljax._core.nearest_names import nearest, question

#: The keys that lead to a setting, from the outside in; positions in a list are numbers.
SettingPath = tuple[str | int, ...]


class SettingPlaces:
    """Where settings were written.

    Args:
      name: of the file, for messages.
      lines: line numbers by path.
      overrides: the texts of the command line by path.
    """

    def __init__(
        self,
        name: str,
        lines: Mapping[SettingPath, int],
        overrides: Mapping[SettingPath, str] | None = None,
    ) -> None:
        self.name = name
        self._lines = dict(lines)
        self._overrides = dict(overrides or {})

    def of(self, path: SettingPath) -> str:
        """The place of a setting, or of the nearest setting around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self._overrides:
                return f"command line, {self._overrides[path[:length]]}"
            if path[:length] in self._lines:
                return f"{self.name}, line {self._lines[path[:length]]}"
        return self.name

    def error(self, path: SettingPath, text: str) -> ValueError:
        """The error of a setting, with its place."""
        return ValueError(f"{self.of(path)}: {text}")

    def check_keys(self, path: SettingPath, keys: Iterable[object], allowed: Sequence[str]) -> None:
        """Raise ``ValueError`` for the first key that is not allowed; suggest the nearest."""
        for key in keys:
            if key not in allowed:
                within = f" in {dotted(path)}" if path else ""
                suggestion = question(nearest(str(key), allowed)) or (
                    f"It has: {', '.join(allowed)}." if allowed else "It has no settings."
                )
                raise self.error((*path, str(key)), f"unknown key {key!r}{within}. {suggestion}")


def dotted(path: SettingPath) -> str:
    """A path as in an override: ``"grid.step_size"``."""
    return ".".join(map(str, path))


def parsed_yaml(path: Path) -> tuple[Any, dict[SettingPath, int]]:
    """The content of a YAML file as OmegaConf reads it, and the line of each setting.

    Raises:
      ValueError: no YAML, with the line; tabs are named.
    """
    import yaml
    from omegaconf import OmegaConf

    text = path.read_text(encoding="utf-8")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = OmegaConf.create(text) if text.strip() else OmegaConf.create({})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        number = 0 if mark is None else mark.line
        line = [*text.splitlines(), ""][number]
        indentation = line[: len(line) - len(line.lstrip())]
        if "\t" in indentation or "'\\t'" in str(error.problem):
            problem = "a tab; YAML is indented with spaces, replace it"
        else:
            problem = str(error.problem)
        raise ValueError(f"{path}, line {number + 1}: {problem}.") from None
    return content, dict(_lines_of(node, ()))


def _lines_of(node: Any, path: SettingPath) -> Iterator[tuple[SettingPath, int]]:
    """The lines of all settings within a node of YAML."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, key.value)
            yield inner, key.start_mark.line + 1
            yield from _lines_of(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            inner = (*path, position)
            yield inner, value.start_mark.line + 1
            yield from _lines_of(value, inner)
