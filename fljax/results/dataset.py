"""Records as a dataset: the label and unit of each variable, and the provenance as attributes.

Records of one run and of a whole study become a dataset in the same way.
"""

import datetime
import functools
import hashlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jaxlib.version
import numpy as np

from fljax._core.version import PACKAGE, __version__
from fljax.metrics.names import (
    BOUNDS,
    PER_CLASS,
    PER_CLIENT,
    PER_RUN,
    PER_STATISTIC,
)

if TYPE_CHECKING:
    import xarray

_DESCRIPTIONS = {
    "messages": ("point-to-point messages sent so far, all clients", "messages"),
    "scalars": ("real numbers in them so far", "scalars"),
    "bits": ("bits sent so far, all clients, both directions", "bit"),
    "bits_up": ("bits sent by all clients so far", "bit"),
    "bits_down": ("bits sent by servers to all clients so far", "bit"),
    "privacy_rho": ("zCDP parameter spent so far, worst client", "rho"),
    "privacy_epsilon": ("epsilon spent so far, basic composition, worst client", "epsilon"),
    "client_rho": ("zCDP parameter that the client spent", "rho"),
    "client_epsilon": ("epsilon that the client spent, basic composition", "epsilon"),
    "client_delta": ("delta that the client spent, basic composition", "delta"),
    "privacy_delta": ("delta spent so far, basic composition, worst client", "delta"),
    "diverged": ("first round with a non-finite model, 0 if none", "round"),
    "gradients": ("sample gradients evaluated so far, all clients", "gradients"),
    "proximal": ("proximal steps taken so far, all clients", "steps"),
    "gradient_norm": ("largest per-sample loss gradient met in the run", "norm"),
    "gradient_bound": ("bound on it that the privacy guarantee assumes", "norm"),
    "promised_bound": ("bound on it that holds for every data set", "norm"),
    "nominal": ("whether the privacy figures are no guarantee", "1"),
    "rounding": ("how far rounding may move a private message, in its sensitivity", "1"),
    "release_rho": ("largest zCDP parameter of a single release", "1"),
    "clipped": ("largest share of a round's masked numbers beyond the masks' range", "1"),
    "gaussian_noise": ("whether all noise of the budget is continuous Gaussian noise", "1"),
    "unusable_samples": ("samples without finite features, which count as zero", "samples"),
    "first_step": ("step size of the first round", "1"),
    "step_bound": ("largest step size of the theory, at most", "1"),
    "exact_model": ("whether models and metrics are of what no budget covers", "1"),
    "same_objective": ("whether errors are measured from what is minimized", "1"),
    "connected": ("whether the graph is connected", "1"),
    "privacy_releases": ("sampled Gaussian releases so far, most affected client", "releases"),
    "client_releases": ("sampled Gaussian releases that could meet the client", "releases"),
    "noise_multiplier": ("standard deviation of the noise on a sum, in clips", "1"),
    "sampling_rate": ("share sampled in secret, 1 if none is or no theorem covers it", "1"),
    "drawn_from": ("records of which a fixed number was drawn, 0 for independent draws", "1"),
    "update_clip": ("largest norm of an update at the end", "norm"),
    "client_samples": ("samples of the client", "samples"),
    "label_distance": ("half the difference of clients' shares of labels from all clients'", "1"),
    "effective_classes": ("exponential of the entropy of a client's labels", "classes"),
    "size_variation": ("standard deviation of clients' sizes divided by their mean", "1"),
    "label_counts": ("samples of the client with the label", "samples"),
    "network_state": ("state of the networks at the end, such as running means", "1"),
    "client_network_state": ("state of the client's network at the end", "1"),
    "holders": ("largest number of clients that have a sample", "clients"),
    "seconds": ("time", "s"),
    "joules": ("energy of all clients so far", "J"),
    "in_time": ("messages that arrived before the clock ended their round", "messages"),
    "stood_still": ("whether no client would ever have been available again", "1"),
    "miscounted": ("whether messages had other lengths than the clock expected", "1"),
    "fastest_seconds": ("round of the fastest client, without variation", "s"),
    "client_busy_seconds": ("time in which the client computed or communicated", "s"),
    "client_idle_seconds": ("time in which it did not", "s"),
    "client_joules": ("energy of the client", "J"),
    "largest_share": ("share of all samples that the largest client has", "1"),
}


def assemble(
    records: Mapping[str, np.ndarray],
    dims: Sequence[str],
    coords: Mapping[str, Any],
    rounds: int,
    record_every: int,
    metrics: Mapping[str, Mapping[str, Any]],
) -> "xarray.Dataset":
    """A dataset over ``dims`` and ``round`` of the records of :func:`fljax.simulation.scan.trace`.

    Counts are :func:`to_int64` already, and summed over the rounds so far.
    """
    import xarray as xr  # imported here, since it takes a third of a second

    variables = {}
    records = dict(records)
    # Metrics of some clients have these as coordinate `client`; the ledger is of all clients.
    all_clients = "population" if "client" in coords else "client"
    spent = [value[..., -1] for name, value in records.items() if name.startswith("privacy_")]
    for name in {"nominal", "exact_model", "gaussian_noise"} & records.keys():
        # False for runs without privacy, and for runs that are not computed yet: NaN was spent.
        records[name] = records[name] & ~np.all(np.isnan(spent), axis=0)
    if {"bits_up", "bits_down"} <= records.keys():
        records["bits"] = _sum_of(records["bits_up"], records["bits_down"])
    for name, value in records.items():
        attrs = dict(metrics.get(name, labeled(name)))
        axes = (*dims,) if name in PER_RUN else (*dims, "round", *attrs.pop("dims", ()))
        axes = (*dims, all_clients) if name in PER_CLIENT else axes
        axes = (*dims, all_clients, "class") if name in PER_CLASS else axes
        if name in PER_STATISTIC:
            of_clients = [all_clients] if name.startswith("client_") else []
            axes = (*dims, *of_clients, "statistic")
        variables[name] = (axes, value, attrs)
    every = np.arange(record_every, rounds + 1, record_every)
    return xr.Dataset(variables, coords={**coords, "round": every})


def to_int64(counts: np.ndarray) -> np.ndarray:
    """Counts as 64-bit integers, ``[...]``, from their high and low halves, ``[..., 2]``.

    Compiled programs count in halves, since JAX has no 64-bit integers by default.
    """
    return (counts[..., 0].astype(np.int64) << 31) + counts[..., 1]


def _sum_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a + b``; computed once where both are views of a single run that all others repeat."""
    if a.ndim > 1 and not any(a.strides[:-1] + b.strides[:-1]):
        run = (0,) * (a.ndim - 1)
        return np.broadcast_to(a[run] + b[run], a.shape)
    return a + b


def describe(metrics: Iterable[Any], budgets: Iterable[Any] = ()) -> dict[str, dict[str, Any]]:
    """The attributes of the variables of metrics and of spent budgets, by name."""
    attrs: dict[str, dict[str, Any]] = {
        m.name: {"long_name": m.label, "units": "1", "decibel": int(m.decibel)}
        | ({"dims": list(m.dims)} if m.dims else {})
        | {end: b for end, b in zip(BOUNDS, m.bounds, strict=True) if np.isfinite(b)}
        | ({"larger_is_better": 1} if m.larger_is_better else {})
        for m in metrics
    }
    relations: dict[str, set[str]] = {}
    arrivals: dict[str, set[str]] = {}
    for budget in budgets:
        for entry in () if budget is None else type(budget).ledger:
            relations.setdefault(entry, set()).add(budget.neighbors)
            arrivals.setdefault(entry, set()).add(getattr(budget, "arrivals", "public"))
    for entry, neighbors in relations.items():
        for name in (f"privacy_{entry}", f"client_{entry}"):
            attrs[name] = labeled(name) | {
                "neighbors": ", ".join(sorted(neighbors)),
                "arrivals": ", ".join(sorted(arrivals[entry])),
            }
    return attrs


def labeled(name: str) -> dict[str, Any]:
    """Attributes of a variable other than a metric."""
    label, unit = _DESCRIPTIONS.get(name, (name, "1"))
    return {"long_name": label, "units": unit}


def provenance(**extra: object) -> dict[str, Any]:
    """The versions, device and settings that numbers depend on, as flat attributes."""
    device = jax.devices()[0]
    return {
        "fljax": __version__,
        "cite": "fljax.citation(simulation)",
        "code": code_version(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "platform": device.platform,
        "device": device.device_kind,
        "device_count": jax.device_count(),
        "machine": platform.machine(),
        "x64": int(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "matmul_precision": "highest",
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **extra,
    }


@functools.cache
def code_version() -> str:
    """A digest of the package's own source: the same numbers can be expected of the same code."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions_in_use() -> str:
    """The versions of all code that computes: a store of other versions is not continued."""
    return f"{code_version()}, jax {jax.__version__}, jaxlib {jaxlib.version.__version__}"
