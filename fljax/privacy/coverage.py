"""What a privacy budget covers of the results of a run.

A budget covers the messages of a run, or a trusted server's publications, and all that is computed
from these and from public quantities. Results hold more: metrics and diagnostics computed from the
protected data, and numbers from which the noise can be drawn again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fljax._core.annotations import checked

if TYPE_CHECKING:
    import xarray

#: Variables that depend on the scenario's public settings alone, or that the mechanism itself
#: releases with noise (``update_clip``).
_PUBLIC = frozenset(
    (
        *("gradient_bound", "promised_bound", "nominal", "exact_model", "gaussian_noise"),
        *("release_rho", "noise_multiplier", "sampling_rate", "drawn_from", "update_clip"),
        *("same_objective", "connected", "done", "gradients", "proximal"),
        *("privacy_rho", "privacy_epsilon", "privacy_delta", "privacy_releases"),
        *("client_rho", "client_epsilon", "client_delta", "client_releases"),
        *("messages", "scalars", "bits", "bits_up", "bits_down"),
    )
)

#: Variables that tell who was sampled: amplification by sampling requires that they are secret.
_OF_THE_SAMPLE = frozenset(
    ("privacy_rho", "client_rho", "messages", "scalars", "bits", "bits_up", "bits_down")
)

#: Reasons, by variable, where they are not "a metric".
_REASONS = {
    "gradient_norm": "largest gradient of the data",
    "step_bound": "computed from the data",
    "first_step": "may be computed from the data",
    **dict.fromkeys(
        (
            *("unusable_samples", "client_samples", "label_counts", "holders"),
            *("label_distance", "effective_classes", "size_variation", "largest_share"),
        ),
        "counted in the data",
    ),
    **dict.fromkeys(("network_state", "client_network_state"), "computed from the data"),
    "rounding": "measured on messages before noise",
    "clipped": "counted in messages before masks",
    "diverged": "read from exact models",
    "stopped": "decided by metrics",
    "seconds": "a duration, which may depend on the data",
}

#: Attributes that a release keeps. Others may depend on the data: durations, and digests of the
#: program, which contains the arrays that a scenario refers to.
KEPT_ATTRIBUTES = (
    *("fljax", "cite", "code", "python", "jax", "jaxlib", "numpy", "platform", "device"),
    *("device_count", "machine", "x64", "matmul_precision", "created", "dtype", "prng", "rounds"),
    *("record_every", "keep_models", "independent_noise", "noise_seed", "scenario", "callback"),
    "selection",
)


def ledger_of(dataset: "xarray.Dataset") -> list[str]:
    """The variables of a privacy ledger in which some run has a value: missing runs,
    and runs without a budget, have NaN.
    """
    names = [str(name) for name in dataset.data_vars if str(name).startswith("privacy_")]
    return names if any(np.isfinite(dataset[name].values).any() for name in names) else []


def private_runs(dataset: "xarray.Dataset") -> Any:
    """Whether each run has a privacy ledger."""
    private = False
    for name in ledger_of(dataset):
        finite: Any = np.isfinite(dataset[name])
        private = private | (finite.any("round") if "round" in finite.dims else finite)
    return private


def has(dataset: "xarray.Dataset", name: str, test: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether a variable is there and some of its values pass a test."""
    return name in dataset and bool(test(dataset[name].values).any())


@checked
def not_covered(dataset: "xarray.Dataset") -> dict[str, str]:
    """Return what in results their privacy budget does not cover, with the reasons.

    A metric counts as not covered, since it is computed from data, their optimum or exact models;
    :func:`fljax.save` takes the names of metrics that depend on released models and public
    data alone. The attribute ``not_covered`` of a dataset contains the same as one text.

    Args:
      dataset: of :func:`fljax.run` or :func:`fljax.sweep`, all of it or a part.

    Returns:
      A reason for each variable, coordinate or attribute; empty for results without privacy.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5),
      ...     metrics=["objective"],
      ... )
      >>> for name, why in not_covered(fl.run(simulation, rounds=3)).items():
      ...     print(f"{name}: {why}")
      diverged: read from exact models
      gradient_norm: largest gradient of the data
      objective: a metric of exact models
      rounding: measured on messages before noise
      unusable_samples: counted in the data
      model: exact
      decisions: may describe the data
    """
    if not ledger_of(dataset):
        return {}
    exact = has(dataset, "exact_model", lambda values: values == 1)
    sampled = has(dataset, "sampling_rate", lambda rate: rate < 1)
    uncovered = {}
    for name in map(str, dataset.data_vars):
        if name == "model":
            if exact:
                uncovered[name] = "exact"
        elif name not in _PUBLIC:
            metric = f"a metric of {'exact' if exact else 'released'} models"
            uncovered[name] = _REASONS.get(name, metric)
        elif sampled and name in _OF_THE_SAMPLE:
            uncovered[name] = "tells who was sampled in secret"
    if "noise_seed" not in dataset.attrs and "root" in dataset.attrs:
        uncovered |= dict.fromkeys(("root", "seed"), "the noise follows from it")
    elif "root" in dataset.attrs:
        uncovered |= dict.fromkeys(("root", "seed"), "the data may follow from it")
    about = {
        "scenario_hash": "a digest of the program and the arrays in it",
        "decisions": "may describe the data",
        "run_seconds": "a duration, which may depend on the data",
    }
    return uncovered | {name: reason for name, reason in about.items() if name in dataset.attrs}
