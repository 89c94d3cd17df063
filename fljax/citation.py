"""What to cite for a simulation."""

import functools
import re
from importlib import resources

from fljax import _check
from fljax.privacy import ZCDP, ApproximateDP
from fljax.simulation import Simulation

_PRIVACY = {ZCDP: ("bun2016",), ApproximateDP: ("dwork2014",)}


@functools.cache
def _entries() -> dict[str, str]:
    text = resources.files("fljax").joinpath("references.bib").read_text("utf-8")
    return {m[1]: m[0] for m in re.finditer(r"@\w+\{(\w+),.*?^\}", text, re.S | re.M)}


def citation(subject: Simulation | type | object | str) -> str:
    """BibTeX of what a run rests on: its algorithm, and its privacy notion if it has one.

    Args:
      subject: a :class:`~fljax.Simulation`, an algorithm (class or instance) or a key of
        ``references.bib``.

    Raises:
      TypeError: something that has no reference.
      ValueError: an unknown key.

    Example:
      >>> import fljax as fl
      >>> print(fl.citation(fl.algorithms.ZCDPGradNFL).splitlines()[0])
      @article{nedic2009,
    """
    if isinstance(subject, Simulation):
        keys = [type(subject.algorithm).reference, *_PRIVACY.get(type(subject.privacy), ())]
    elif isinstance(subject, str):
        keys = [subject]
    elif isinstance(reference := getattr(subject, "reference", None), str):
        keys = [reference]
    else:
        raise TypeError(f"nothing to cite for {subject!r}; pass a simulation or an algorithm.")
    for key in keys:
        _check.choice("reference", key, _entries())
    return "\n\n".join(_entries()[key] for key in keys)
