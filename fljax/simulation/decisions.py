"""A trace of decisions: the choices behind results, with their times (Jung 2025, 8.4)."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fljax._core import checks
from fljax.metrics.names import RESERVED
from fljax.simulation.scenario import Simulation

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: Attributes of results that also determine the numbers.
_ATTRIBUTES = ("rounds", "dtype", "prng", "fljax", "code", "jax", "device")


def decided(simulation: Simulation) -> dict[str, str]:
    """Each part of a simulation, in one line; random arrays are shown by their shapes."""
    parts = {
        field.name: getattr(simulation, field.name)
        for field in dataclasses.fields(simulation)  # pyright: ignore[reportArgumentType]
    }
    parts["metrics"] = tuple(metric.name for metric in simulation.metrics)
    chosen = {name: part for name, part in parts.items() if part is not None and part is not False}
    return {name: " ".join(repr(part).split()) for name, part in chosen.items()}


def recorded(choices: Iterable[Mapping[str, str]]) -> str:
    """The choices of several simulations of a study, as an attribute with each version of a part
    once.
    """
    every = list(choices)
    names = dict.fromkeys(name for choice in every for name in choice)
    versions = {n: list(dict.fromkeys(choice[n] for choice in every if n in choice)) for n in names}
    return json.dumps(versions)


def decisions(*results: "xr.Dataset") -> "pd.DataFrame":
    """Return the choices behind results in order of time, each as its changes from the previous
    one.

    Args:
      results: from :func:`fljax.run`, :func:`fljax.sweep` or :func:`fljax.load`. For a sweep, a
        number of its grid is shown by its value at the first point, in addition to the grid itself.

    Returns:
      A table with the columns ``time``, ``choice`` and ``value``; ``value`` is empty for a part
      that was removed. It prints as text and can be written with ``to_csv`` or ``to_markdown``.

    Raises:
      ValueError: no results, or results without a record of decisions.

    Example:
      >>> import jax, fljax as fl
      >>> def run(coupling):
      ...     simulation = fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2),
      ...         network=fl.graphs.ring(4),
      ...         algorithm=fl.algorithms.FedRelax(coupling),
      ...     )
      ...     return fl.run(simulation, rounds=3)
      >>> trace = decisions(run(0.5), run(2.0))
      >>> trace[["choice", "value"]].iloc[-1].tolist()
      ['algorithm', 'FedRelax(coupling=2.0)']

    Reference:
      Jung 2025, section 8.4, traceability.
    """
    import pandas as pd

    if not results:
        raise ValueError("give results of fl.run or fl.sweep, got none.")
    rows = []
    before = {}
    for dataset in sorted(results, key=_time):
        now = _choices(dataset)
        changed = [n for n in {**before, **now} if before.get(n, "") != now.get(n, "")]
        rows += [(_time(dataset), name, now.get(name, "")) for name in changed]
        before = now
    return pd.DataFrame(rows, columns=["time", "choice", "value"])


def _time(dataset: "xr.Dataset") -> str:
    attrs = getattr(dataset, "attrs", {})
    if "created" not in attrs or "decisions" not in attrs:
        raise ValueError(
            "what was decided is in the attributes of results of fl.run and fl.sweep, and "
            f"{checks.shown(dataset)} lacks them; keep attributes "
            "(xr.set_options(keep_attrs=True))."
        )
    return attrs["created"]


def _choices(dataset: "xr.Dataset") -> dict[str, str]:
    parts = json.loads(dataset.attrs["decisions"])
    choices = {name: " | ".join(texts) for name, texts in parts.items()}
    axes = [name for name in dataset.dims if name not in RESERVED and name in dataset.coords]
    choices |= {f"grid: {axis}": _listed(dataset[axis].values) for axis in axes}
    if "seed" in dataset.sizes:
        choices["seeds"] = str(dataset.sizes["seed"])
    attrs = dataset.attrs
    return choices | {name: str(attrs[name]) for name in _ATTRIBUTES if name in attrs}


def _listed(values: np.ndarray) -> str:
    return ", ".join(map(str, values))
