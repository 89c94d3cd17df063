"""What a run records, by name: its label and unit, where it came from, and what to be warned of.

Of one run or of a whole study, it becomes a dataset in the same way.
"""

import datetime
import functools
import hashlib
import platform
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jaxlib.version
import numpy as np

from fljax._version import __version__
from fljax.privacy.promises import broken, same

if TYPE_CHECKING:
    import xarray

__all__ = [
    "BOUNDS",
    "COMPUTED",
    "COUNTS",
    "EFFORTS",
    "PER_CLIENT",
    "PER_RUN",
    "RESERVED",
    "TRAFFIC",
    "AssumptionWarning",
    "DivergenceWarning",
    "MetricWarning",
    "assemble",
    "code_version",
    "describe",
    "joined",
    "labeled",
    "provenance",
    "warn",
]

#: Attributes of a metric that has a least or a greatest value.
BOUNDS = ("least", "greatest")

#: Counted from record to record as ``[high, low]``, see `fljax.engine`.
COUNTS = ("messages", "scalars", "bits_up", "bits_down")

#: What can be read as the communication so far: the counts, and the bits of both directions.
TRAFFIC = (*COUNTS, "bits")

#: What clients compute, counted in the program of a round.
COMPUTED = ("gradients", "proximal")

#: What curves can be drawn against besides rounds and seconds.
EFFORTS = (*TRAFFIC, *COMPUTED)

#: Recorded once a run instead of once a record.
PER_RUN = (
    *("diverged", "gradient_norm", "gradient_bound", "promised_bound", "nominal", "exact_model"),
    *("rounding", "release_rho", "unusable_samples", "gaussian_noise", "clipped"),
    "connected",
    "same_objective",
    *("first_step", "step_bound"),
    *("noise_multiplier", "sampling_rate", "drawn_from", "update_clip"),
)

#: Of every client, once a run: its own ledger, where final models are kept.
PER_CLIENT = ("client_rho", "client_epsilon", "client_delta", "client_releases")

#: Names that axes and metrics must not have: those of every result's axes and variables, and
#: keywords of xarray's ``sel``, which a dimension of that name hides.
RESERVED = (
    *("seed", "round", "client", "parameter", "method", "tolerance", "drop"),
    *("model", "done", "stopped", *PER_RUN, *PER_CLIENT, *EFFORTS),
)

_DESCRIPTIONS = {
    "messages": ("point-to-point messages sent so far, all clients", "messages"),
    "scalars": ("real numbers in them so far", "scalars"),
    "bits": ("bits sent so far, both directions", "bit"),
    "bits_up": ("bits sent by clients so far", "bit"),
    "bits_down": ("bits sent by servers so far", "bit"),
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
}


class DivergenceWarning(UserWarning):
    """Some runs became non-finite."""


class MetricWarning(UserWarning):
    """A metric is NaN or infinite in runs whose models are finite."""


class AssumptionWarning(UserWarning):
    """An assumption behind a printed guarantee did not hold in some runs."""


def assemble(
    records: Mapping[str, np.ndarray],
    dims: Sequence[str],
    coords: Mapping[str, Any],
    rounds: int,
    record_every: int,
    metrics: Mapping[str, Mapping[str, Any]],
) -> "xarray.Dataset":
    """A dataset over ``dims`` (and ``round``) of what :func:`fljax.engine.trace` recorded, with
    the counts :func:`joined` and summed over the rounds so far.
    """
    import xarray as xr  # a third of a second: where a dataset is made

    variables, records = {}, dict(records)
    # Metrics may be of some clients alone, which are named then.
    all_clients = "population" if "client" in coords else "client"
    spent = [value[..., -1] for name, value in records.items() if name.startswith("privacy_")]
    for name in {"nominal", "exact_model", "gaussian_noise"} & records.keys():
        # Of runs without privacy none of them, nor of those that are not there yet.
        records[name] = records[name] & ~np.all(np.isnan(spent), axis=0)
    if {"bits_up", "bits_down"} <= records.keys():
        records["bits"] = _sum_of(records["bits_up"], records["bits_down"])
    for name, value in records.items():
        attrs = dict(metrics.get(name, labeled(name)))
        axes = (*dims,) if name in PER_RUN else (*dims, "round", *attrs.pop("dims", ()))
        axes = (*dims, all_clients) if name in PER_CLIENT else axes
        variables[name] = (axes, value, attrs)
    every = np.arange(record_every, rounds + 1, record_every)
    return xr.Dataset(variables, coords={**coords, "round": every})


def joined(counts: np.ndarray) -> np.ndarray:
    """Counts, ``[...]``, of which a program has the high and the low half, ``[..., 2]``."""
    return (counts[..., 0].astype(np.int64) << 31) + counts[..., 1]


def _sum_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """``one + other``; of one run, where all of either are views of one run's (no copies)."""
    if one.ndim > 1 and not any(one.strides[:-1] + other.strides[:-1]):
        first = (0,) * (one.ndim - 1)
        return np.broadcast_to(one[first] + other[first], one.shape)
    return one + other


def describe(metrics: Iterable[Any], budgets: Iterable[Any] = ()) -> dict[str, dict[str, Any]]:
    """What a dataset says of its metrics and of what was spent of its budgets, by name."""
    said: dict[str, dict[str, Any]] = {
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
            said[name] = labeled(name) | {
                "neighbors": ", ".join(sorted(neighbors)),
                "arrivals": ", ".join(sorted(arrivals[entry])),
            }
    return said


def labeled(name: str) -> dict[str, Any]:
    """Attributes of a variable that is no metric."""
    label, unit = _DESCRIPTIONS.get(name, (name, "1"))
    return {"long_name": label, "units": unit}


def provenance(**extra: Any) -> dict[str, Any]:
    """What is needed to know how numbers came about, as flat attributes."""
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
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def versions_in_use() -> str:
    """The versions of all code that computes: a store of other ones does not go on."""
    return f"{code_version()}, jax {jax.__version__}, jaxlib {jaxlib.version.__version__}"


def warn(dataset: "xarray.Dataset", built: Sequence[tuple[Any, Any]] = ()) -> None:
    """Say what a reader of the numbers must know: divergence, broken assumptions, cut graphs.

    Args:
      dataset: the results.
      built: the simulations behind them, or their shapes, and at which grid points each is: a
        ``DataArray`` or ``True``; without them nothing is said of metrics and silence.
    """
    if "diverged" not in dataset:
        return  # no run is there
    where = dataset["diverged"].values
    diverged, size = int((where > 0).sum()), int(np.isfinite(where).sum())
    if diverged:
        warnings.warn(
            f"{diverged} of {size} runs diverged (first at round {where[where > 0].min()}); "
            "they are kept, marked in `diverged`, and left out of plotted means. A smaller step, "
            "a larger penalty or a larger budget usually mends it.",
            DivergenceWarning,
            stacklevel=3,
        )

    def among_whole(runs: Any, where: Any) -> int:
        """How many runs at some points are such, of those that are done and did not diverge."""
        whole = (dataset["diverged"] == 0) & dataset.get("done", True)
        return int((runs & whole & where).sum())

    bad, silent = Counter(), 0
    for simulation, where in built:
        for metric in simulation.metrics:
            if np.isfinite(dataset[metric.name].values).all():
                continue  # as usual, and seen in a tenth of the time
            if not (metric.needs_noise or metric.needs_drift):  # NaN where nobody takes part
                finite = np.isfinite(dataset[metric.name]).all(("round", *metric.dims))
                bad[metric] += among_whole(~finite, where)
        speaks = simulation.algorithm.message_size_of(simulation.problem)
        if speaks and not (dataset["messages"].values[..., -1] > 0).all():
            silent += among_whole(dataset["messages"].isel(round=-1) == 0, where)
    if names := [metric for metric, count in bad.items() if count]:
        optimum = (
            "A centralized optimum that is zero, or that does not exist (separable data without "
            "a regularizer), makes errors so. "
        )
        warnings.warn(
            "metrics are NaN or infinite in runs whose models are finite: "
            f"{', '.join(f'{metric.name!r} in {bad[metric]}' for metric in names)} of "
            f"{size} runs. {optimum if any(m.needs_optimum for m in names) else ''}Look "
            "for a division by zero or an overflow.",
            MetricWarning,
            stacklevel=3,
        )
    if silent:
        warnings.warn(
            f"no message was sent in {silent} of {size} runs: nobody took part in any "
            "round, or nobody has a neighbor. Look at participation=, the data's arrivals and "
            "the network.",
            AssumptionWarning,
            stacklevel=3,
        )
    if "nominal" in dataset and (nominal := int(np.nansum(dataset["nominal"].values))):
        why = " ".join(broken(dataset).values())
        warnings.warn(
            f"the privacy figures of {nominal} of {size} private runs are "
            f"nominal, not a guarantee: {why}",
            AssumptionWarning,
            stacklevel=3,
        )
    if "unusable_samples" in dataset and (dataset["unusable_samples"].values > 0).any():
        warnings.warn(
            f"up to {int(dataset['unusable_samples'].max())} samples have features that are not "
            "finite once mapped, and count as zero. Look at the feature map.",
            AssumptionWarning,
            stacklevel=3,
        )
    if "clipped" in dataset and (dataset["clipped"].values > 0).any():
        warnings.warn(
            f"up to {float(dataset['clipped'].max()):.2g} of the numbers in a round's masked "
            "messages were beyond the range of the masks and were clipped to it, so that sums are "
            "not those of the messages. Take a larger fljax.link.SecureAggregation(range=).",
            AssumptionWarning,
            stacklevel=3,
        )
    if "step_bound" in dataset:
        first, bound = same(dataset, "first_step", "step_bound")
        over = first > bound
        if over.any():
            sources = {simulation.algorithm.stability for simulation, _ in built} - {""}
            source = f", {'; '.join(sorted(sources))}," if sources else ""
            warnings.warn(
                f"{int(over.sum())} of {size} runs have a step size up to "
                f"{float(dataset['first_step'].max()):.3g}, above the bound "
                f"{float(dataset['step_bound'].min()):.3g}{source} of what is known to be stable: "
                "their errors may not settle. Take a smaller step.",
                AssumptionWarning,
                stacklevel=3,
            )
    if "same_objective" in dataset and not dataset["same_objective"].values.all():
        other = ~dataset["same_objective"]
        warnings.warn(
            f"in {int(other.sum())} of {other.size} runs errors are measured from the optimum of "
            "another objective than the algorithm minimizes, and will not vanish: its weighting= "
            "gives clients other weights than the problem has. Leave it out; for samples that "
            'count alike take problem.weighing("samples").',
            AssumptionWarning,
            stacklevel=3,
        )
    if "connected" in dataset and not dataset["connected"].values.all():
        cut = dataset["connected"] == 0
        for simulation, where in built:
            if simulation.allow_disconnected:
                cut &= np.logical_not(where)
        if cut.any():
            warnings.warn(
                f"{int(cut.sum())} of {size} runs had a disconnected graph; their clients "
                "cannot agree. Use random_connected, a larger edge probability, or "
                "allow_disconnected=True where that is meant.",
                AssumptionWarning,
                stacklevel=3,
            )
