"""Shared by the figures of solved (not simulated) instances of Jung 2025: seeds, data sets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

import fljax as fl
from experiments.figure import Effort
from fljax.problems import Problem
from fljax.results.dataset import provenance

#: Measured variables: axes besides the seed, name for readers, whether it is read in dB.
Variables = Mapping[str, tuple[tuple[str, ...], str, bool]]


def seeds(effort: Effort) -> tuple[Array, Array]:
    """Keys of the runs, and of the tuning runs."""
    keys = jax.random.split(fl.random_key(0), effort.seeds + effort.tuning_seeds)
    return keys[: effort.seeds], keys[effort.seeds :]


def scenario_keys(count: int) -> Array:
    """The keys that :func:`fljax.sweep` passes to a scenario for the first seeds, ``[S]``."""
    keys = jax.vmap(lambda seed: jax.random.fold_in(fl.random_key(0), seed))(jnp.arange(count))
    return jax.vmap(jax.random.split)(keys)[:, 0]


def solved(of: Callable[[Array], dict[str, Array]], keys: Array) -> dict[str, np.ndarray]:
    """The results of a traceable function for every key, in a loop: ``[S, ...]`` each."""
    return jax.tree.map(np.asarray, jax.jit(lambda all_: jax.lax.map(of, all_))(keys))


def pooled(problem: Problem, group: Array) -> Array:
    """``[K, D]``: for each client the minimizer of its group's sum of objectives."""
    together = (group[:, None] == group[None]).astype(problem.dtype)
    moments = jnp.einsum("kl,lpq->kpq", together, problem.second_moment())
    right = jnp.einsum("kl,lp->kp", together, problem.correlation(problem.targets))
    return jnp.linalg.solve(moments, right[..., None])[..., 0]


def dataset(
    results: Mapping[str, np.ndarray],
    variables: Variables,
    coords: Mapping[str, Sequence[Any]],
    labels: Mapping[str, str] | None = None,
) -> xr.Dataset:
    """Arrays ``[S, ...]`` in the form of a simulation's study, for reading, drawing and storing.

    Args:
      results: arrays by the name of a variable.
      variables: the variables to include.
      coords: of the axes besides the seed.
      labels: of axes, for readers.
    """
    stored = {
        name: (
            ("seed", *axes),
            results[name],
            {"long_name": label, "units": "1", "decibel": int(db)},
        )
        for name, (axes, label, db) in variables.items()
    }
    data = xr.Dataset(
        stored,
        {"seed": np.arange(len(next(iter(results.values())))), **coords},
        provenance(root=0, dtype=str(jnp.result_type(float))),
    )
    for axis, label in (labels or {}).items():
        data[axis].attrs["long_name"] = label
    return data
