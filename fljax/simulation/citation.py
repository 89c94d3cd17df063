"""The references of a simulation, as BibTeX."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from importlib import resources

from fljax import algorithms, clock, privacy
from fljax._core import checks
from fljax.link import aggregation, attacks
from fljax.privacy import ZCDP, ApproximateDP
from fljax.simulation.scenario import Simulation

_PRIVACY = {ZCDP: ("bun2016",), ApproximateDP: ("dwork2014",)}

#: Public modules whose classes state references.
_MODULES = (algorithms, privacy, aggregation, attacks, clock)


@functools.cache
def _entries() -> dict[str, str]:
    text = resources.files("fljax").joinpath("references.bib").read_text("utf-8")
    return {m[1]: m[0] for m in re.finditer(r"@\w+\{(\w+),.*?^\}", text, re.S | re.M)}


def citation(subject: Simulation | type | object | str) -> str:
    """BibTeX of the sources of a run: its algorithm, its privacy notion, and its other parts.

    Args:
      subject: a :class:`~fljax.Simulation`; results of :func:`fljax.run` or :func:`fljax.sweep`,
        in which classes of your own are only named, in a comment; an algorithm, aggregator or
        attack (class or instance); or a key of ``references.bib``. The class attribute
        ``reference`` of a part is such a key, or a tuple of keys: the work that introduced it
        first, then the ones that the implementation follows. Instead of a key, a part of your own
        may state an entry of BibTeX.

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
        keys = [*_references(subject.algorithm), *_PRIVACY.get(type(subject.privacy), ())]
        parts = (getattr(subject, field.name) for field in dataclasses.fields(subject))  # pyright: ignore[reportArgumentType]
        keys += [key for part in parts for key in _class_references(part)]
    elif record := getattr(subject, "attrs", {}).get("decisions"):
        keys = [*_recorded(json.loads(record))]
    elif isinstance(subject, str):
        keys = [subject]
    else:
        keys = _references(subject)
    return "\n\n".join(_entry(key) for key in dict.fromkeys(keys))


def _recorded(decisions: dict[str, list[str]]) -> Iterator[str]:
    """The references of the classes in the record of a study's parts, the algorithms' first.

    An algorithm that is not the library's gives a comment with its name.
    """
    for part in dict.fromkeys(("algorithm", "privacy", *decisions)):
        for name in (re.match(r"\w*", text)[0] for text in decisions.get(part, ())):
            cls = next((vars(module)[name] for module in _MODULES if name in vars(module)), None)
            references = _class_references(cls)
            yield from references
            if part == "algorithm" and not references:
                yield f"% {name}: its class states its reference, which results do not hold."
            yield from _PRIVACY.get(cls, ())


def _class_references(part: object) -> tuple[str, ...]:
    """The class attribute; the field of an instance would be something else."""
    value = getattr(part if isinstance(part, type) else type(part), "reference", None)
    keys = value if isinstance(value, tuple) else (value,)
    texts = tuple(key for key in keys if isinstance(key, str))
    return texts if len(texts) == len(keys) else ()


def _references(part: object) -> tuple[str, ...]:
    if references := _class_references(part):
        return references
    name = part.__name__ if isinstance(part, type) else type(part).__name__
    if hasattr(part, "reference"):
        raise TypeError(
            f"{name} states no reference; give its class the attribute `reference`, a key of "
            "references.bib, an entry of BibTeX or a tuple of these."
        )
    raise TypeError(f"nothing to cite for {checks.shown(part)}; pass a simulation or an algorithm.")


def _entry(reference: str) -> str:
    if reference.lstrip().startswith(("@", "%")):
        return reference.strip()
    checks.choice("reference", reference, _entries())
    return _entries()[reference]
