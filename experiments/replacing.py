"""Read ``--set NAME=VALUE``: which number of a figure's settings it replaces, and by what."""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.errors import UsageError
from experiments.figure import REGISTRY, REPLACED, Figure, Replaced, Setting
from fljax._core.nearest_names import nearest, question, same_form


def replacements(figure: Figure, requests: Sequence[str]) -> dict[str, Replaced]:
    """The numbers that requests ``NAME=VALUE`` replace, by the declarations of their settings.

    Args:
      figure: whose settings they name.
      requests: as typed. A name is that of a setting, or some of its words that no other has.

    Raises:
      UsageError: no such setting or several of them, a setting that is not a number, a value of
        another kind, the published value, or a setting that is named twice.
    """
    result: dict[str, Replaced] = {}
    for request in requests:
        name, equals, text = (part.strip() for part in request.partition("="))
        if not (name and equals and text):
            raise UsageError(f"--set takes NAME=VALUE, such as penalty=2, got {request!r}.")
        setting = _setting(figure, name)
        value = _value(setting, text)
        if value == setting.value:
            raise UsageError(f"{setting.name!r} of {figure.name} is {text} as published.")
        if setting.declaration in result:
            raise UsageError(f"--set replaces {setting.name!r} twice; give it once.")
        result[setting.declaration] = Replaced(setting.name, setting.value, value)
    return result


def applied(figure: Figure) -> list[Replaced]:
    """The numbers of the figure's settings that this process replaces.

    Raises:
      UsageError: a setting follows from another one that is replaced, so that it was not found.
    """
    result = [setting.replaced for setting in figure.settings if setting.replaced is not None]
    if lost := [replaced for replaced in REPLACED.values() if replaced not in result]:
        names = ", ".join(repr(replaced.name) for replaced in lost)
        raise UsageError(
            f"{names} of {figure.name} follows from another number; replace one of them."
        )
    return result


def described(replaced: Iterable[Replaced]) -> str:
    """Which numbers are not the published ones, in words; empty for none."""
    return "; ".join(
        f"{name} is {_text(value)} (published: {_text(published)})"
        for name, published, value in replaced
    )


def of_record(record: Mapping[str, Any]) -> list[Replaced]:
    """The numbers that the results of a record replace."""
    return [Replaced(**replaced) for replaced in record.get("replaced", [])]


def options(replaced: Iterable[Replaced]) -> str:
    """The options of a command that replaces these numbers, each after a space."""
    return "".join(f' --set "{name}={_text(value)}"' for name, _, value in replaced)


def folder_name(figure: str, requests: Sequence[str]) -> str:
    """A folder's name for the results of a figure with the numbers of these requests."""
    name = re.sub(r"[^\w.=+-]+", "-", "-".join((figure, *requests)))
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


#: The longest name of a folder, in characters.
MAX_NAME = 100


def _text(value: object) -> str:
    return ",".join(map(_text, value)) if isinstance(value, tuple | list) else f"{value:.12g}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numeric(value: object) -> bool:
    """Whether a setting's value is a number or a list of numbers."""
    return _is_number(value) or (isinstance(value, tuple) and all(map(_is_number, value)))


def _named(settings: Iterable[Setting], name: str) -> list[Setting]:
    """The settings with a name, or else those with all its words in theirs."""
    settings = list(settings)
    exact = same_form(name, (setting.name for setting in settings))
    searched = _words(name)
    return [s for s in settings if s.name in exact] or [
        s for s in settings if searched and searched <= _words(s.name)
    ]


def _words(name: str) -> set[str]:
    return {*re.findall(r"\w+", name.casefold())}


def _setting(figure: Figure, name: str) -> Setting:
    """The one setting of a figure that a name means."""
    means = _named(figure.settings, name)
    if len(means) == 1:
        return means[0]
    if means:
        names = ", ".join(repr(setting.name) for setting in means)
        same = len({setting.name for setting in means}) == 1
        remedy = "which cannot be told apart" if same else "give more words of one"
        raise UsageError(f"{name!r} names several settings of {figure.name}: {names}; {remedy}.")
    figures = [f.name for f in REGISTRY.values() if same_form(name, (s.name for s in f.settings))]
    if figures:
        raise UsageError(
            f"{name!r} is no setting of {figure.name}, but of {', '.join(sorted(figures))}."
        )
    suggestion = question(_nearest(figure, name))
    command = f"python -m experiments list {figure.name} shows all."
    raise UsageError(
        " ".join(filter(None, (f"unknown setting {name!r} of {figure.name}.", suggestion, command)))
    )


def _nearest(figure: Figure, name: str) -> list[str]:
    """Names of settings that are similar to a name, or have a word that is."""
    names = [setting.name for setting in figure.settings]
    if near := nearest(name, names):
        return near
    similar = {*nearest(name, sorted({word for n in names for word in _words(n)}))}
    return [n for n in names if similar & _words(n)]


def _value(setting: Setting, text: str) -> int | float | tuple[int | float, ...]:
    """The value of a request, of the kind that the setting has."""
    published = setting.value
    if not _is_numeric(published):
        raise UsageError(f"{setting.name!r} is {published!r}: only numbers can be replaced.")
    if _is_number(published):
        return _number(setting.name, published, text)
    parts = text.split(",")
    if len(parts) != len(published):
        wanted = f"{len(published)} numbers, such as {_text(published)}"
        raise UsageError(f"{setting.name!r} takes {wanted}, got {text!r}.")
    return tuple(_number(setting.name, p, t) for p, t in zip(published, parts, strict=True))


def _number(name: str, published: int | float, text: str) -> int | float:
    """A finite number from text, an integer where the published one is."""
    kind = type(published)
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        wanted = "an integer" if kind is int else "a finite number"
        raise UsageError(f"{name!r} is {wanted}, such as {_text(published)}, got {text.strip()!r}.")
    return value
