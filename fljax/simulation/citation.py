"""The references of a simulation, as BibTeX."""

import dataclasses
import functools
import re
from importlib import resources
from typing import Any

from fljax._core import checks
from fljax.privacy import ZCDP, ApproximateDP
from fljax.simulation.scenario import Simulation

_PRIVACY = {ZCDP: ("bun2016",), ApproximateDP: ("dwork2014",)}


@functools.cache
def _entries() -> dict[str, str]:
    text = resources.files("fljax").joinpath("references.bib").read_text("utf-8")
    return {m[1]: m[0] for m in re.finditer(r"@\w+\{(\w+),.*?^\}", text, re.S | re.M)}


def citation(subject: Simulation | type | object | str) -> str:
    """BibTeX of the sources of a run: its algorithm, its privacy notion, and its other parts.

    Args:
      subject: a :class:`~fljax.Simulation`; an algorithm, aggregator or attack (class or
        instance); or a key of ``references.bib``. The class attribute ``reference`` of a part is
        such a key; of one of your own, also an entry of BibTeX.

    Raises:
      TypeError: something that has no reference.
      ValueError: an unknown key.

    Example:
      >>> import fljax as fl
      >>> print(fl.citation(fl.algorithms.ZCDPGradNFL).splitlines()[0])
      @article{nedic2009,
      >>> class Mine(fl.algorithms.Algorithm):
      ...     reference = "@misc{me, title = {Mine}}"
      >>> print(fl.citation(Mine))
      @misc{me, title = {Mine}}
    """
    if isinstance(subject, Simulation):
        keys = [_reference(subject.algorithm), *_PRIVACY.get(type(subject.privacy), ())]
        parts = (getattr(subject, field.name) for field in dataclasses.fields(subject))  # pyright: ignore[reportArgumentType]
        keys += [key for part in parts if isinstance(key := _class_reference(part), str)]
    elif isinstance(subject, str):
        keys = [subject]
    else:
        keys = [_reference(subject)]
    return "\n\n".join(_entry(key) for key in dict.fromkeys(keys))


def _class_reference(part: object) -> Any:
    """The class attribute; the field of an instance would be something else."""
    return getattr(part if isinstance(part, type) else type(part), "reference", None)


def _reference(part: object) -> str:
    reference = _class_reference(part)
    if isinstance(reference, str):
        return reference
    name = part.__name__ if isinstance(part, type) else type(part).__name__
    if hasattr(part, "reference"):
        raise TypeError(
            f"{name} states no reference; give its class the attribute `reference`, a key of "
            "references.bib or an entry of BibTeX."
        )
    raise TypeError(f"nothing to cite for {checks.shown(part)}; pass a simulation or an algorithm.")


def _entry(reference: str) -> str:
    if reference.lstrip().startswith("@"):
        return reference.strip()
    checks.choice("reference", reference, _entries())
    return _entries()[reference]
