"""The assumptions behind a reported epsilon: which of them a run satisfies, and which not."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fljax._core.annotations import checked
from fljax.privacy.coverage import ledger_of, not_covered, private_runs
from fljax.privacy.discrete import least_delta

if TYPE_CHECKING:
    import xarray

#: Relative excess over a bound, due to single precision, at which it still counts as satisfied.
ROUNDING = 1e-5

#: Share of its sensitivity by which rounding may move a private message before a run is called
#: nominal: the zCDP parameter is then two hundredths above the stated one.
SWALLOWED = 0.01


def same(dataset: "xarray.Dataset", *names: str) -> list[np.ndarray]:
    """The values of some variables, of one shape: xarray's own arithmetic takes a hundred times as
    long for a few runs.
    """
    variables = [dataset[name] for name in names]
    if len({variable.dims for variable in variables}) > 1:
        import xarray as xr

        variables = xr.broadcast(*variables)
    return [variable.values for variable in variables]


def largest(values: np.ndarray) -> float:
    """The largest number; runs that are not there have NaN."""
    return float(np.fmax.reduce(np.ravel(values)))


def broken(dataset: "xarray.Dataset") -> dict[str, str]:
    """Reasons why privacy figures do not hold, by the assumption that does not hold."""
    reasons = {}
    if "promised_bound" in dataset:
        promised, bounds, nominal = same(dataset, "promised_bound", "gradient_bound", "nominal")
        if ((promised > bounds * (1 + ROUNDING)) & (nominal == 1)).any():
            norm = largest(dataset["gradient_norm"].values)
            bound = largest(bounds)
            holds = (
                "above it"
                if norm > bound * (1 + ROUNDING)
                else "within it, which says nothing of others"
            )
            reasons["bound"] = (
                f"nothing makes every data set keep the assumed gradient bound {bound:.3g}. The "
                f"data at hand met gradients up to {norm:.3g}, {holds}. problem.clipped(bound) "
                "makes it hold; so does Problem(feature_bound=...) with a loss of bounded slope."
            )
    if "rounding" in dataset and (most := largest(dataset["rounding"].values)) > SWALLOWED:
        reasons["precision"] = (
            f"rounding to {dataset.attrs.get('dtype', 'floats')} may move a message by {most:.2g} "
            f"of its sensitivity, more than {SWALLOWED:g}, and noise does not hide that. Run in "
            "double precision (`jax_enable_x64`), or keep models smaller."
            if math.isfinite(most)
            else "a message was not finite, or next to that, and no noise hides it. See `diverged`."
        )
    if dataset.attrs.get("callback") and ledger_of(dataset):
        reasons["stopping"] = (
            "a callback saw metrics and models that no budget covers and could end the study by "
            "them, which until= may not do either. Leave out callback=."
        )
    return reasons


def _gaussian_noise(dataset: "xarray.Dataset") -> str:
    """How Gaussian noise is drawn, and the delta below which no epsilon holds for it."""
    text = "Gaussian, rounded with the message to one grid"
    if "release_rho" not in dataset or "privacy_rho" not in dataset:
        return text
    rho, release_rho = (largest(dataset[name].values) for name in ("privacy_rho", "release_rho"))
    least = least_delta(rho, release_rho, dataset.attrs.get("dtype", "float32"))
    end = "no epsilon holds" if least == 1 else f"no epsilon holds at a delta below {least:.1g}"
    return f"{text}; its numbers end, so that {end}"


@checked
def assumptions(dataset: "xarray.Dataset") -> dict[str, str]:
    """Return the assumptions behind the privacy figures of results, and which do not hold.

    Args:
      dataset: of :func:`fljax.run` or :func:`fljax.sweep`, all of it or a part.

    Returns:
      A text for each assumption: ``bound`` (of gradients or updates), ``precision``, ``features``,
      ``neighbors``, ``arrivals``, ``noise``, ``generator``, ``seed`` (the source of the noise,
      which must be secret), ``runs`` (which other runs have the same noise), and where they apply
      ``tuning`` (a choice by private results, counted or not) and ``stopping`` (a callback
      that could end the study); the texts of assumptions that do not hold begin with ``NOMINAL``.
      Empty for results without privacy. The attribute ``privacy`` of a dataset contains the same as
      one text.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=9, dim=2).clipped(1),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5),
      ... )
      >>> stated = fl.privacy.assumptions(fl.run(simulation, rounds=3))
      >>> stated["bound"], stated["neighbors"]
      ('holds for every data set', 'replace')
    """
    ledger = ledger_of(dataset)
    if not ledger:
        return {}
    attributes = dataset[ledger[0]].attrs
    stated = {"bound": "holds for every data set"}
    if "rounding" in dataset:
        most = largest(dataset["rounding"].values)
        stated["precision"] = f"rounding moves no message by more than {most:.1g} sensitivities"
    if "unusable_samples" in dataset:
        bad = int(largest(dataset["unusable_samples"].values))
        stated["features"] = f"{bad} samples not finite, which count as zero" if bad else "finite"
    stated |= {name: attributes[name] for name in ("neighbors", "arrivals") if name in attributes}
    if "holders" in dataset and (most := int(largest(dataset["holders"].values))) > 1:
        stated["neighbors"] += (
            f", of one client's copy of a sample that several have: {most} at most, whose budgets "
            "add up for it"
        )
    if "gaussian_noise" in dataset:
        gaussian = np.ravel(dataset["gaussian_noise"].values)
        gaussian = gaussian[~np.isnan(gaussian)]  # of the runs that are there
        stated["noise"] = (
            _gaussian_noise(dataset)
            if gaussian.all()
            else f"{'not all' if gaussian.any() else 'not'} continuous Gaussian noise"
        )
    stated["generator"] = str(dataset.attrs.get("prng", "unknown"))
    stated |= _secrecy(dataset.attrs)
    for name in ("selection", "tuning"):
        if name in dataset.attrs:
            stated["tuning"] = str(dataset.attrs[name])
    return stated | {name: f"NOMINAL: {reason}" for name, reason in broken(dataset).items()}


def _secrecy(attributes: Mapping[Any, Any]) -> dict[str, str]:
    """What the noise follows from, and which other runs have the same noise."""
    origin = attributes.get("noise_seed", "")
    of_a_study = "independent_noise" in attributes
    if origin == "entropy":
        seed = "noise from the system's entropy, which nothing records"
    elif origin:
        seed = "noise from a noise seed, which is not recorded and must be secret"
    else:
        source = "root and the seeds, which are recorded with" if of_a_study else "the key of"
        seed = (
            f"must be secret: the noise follows from {source} these results, and against whoever "
            'knows or guesses them the budget means nothing; noise_seed="entropy" draws noise that '
            "nobody can draw again"
        )
    if attributes.get("independent_noise") or origin == "entropy":
        runs = "no other grid point or study has this noise"
    elif of_a_study:
        runs = (
            "a seed's noise is the same at all grid points and in other studies, and cancels in "
            "their differences: publish one run of each seed, or use independent_noise=True"
        )
    else:
        same = "noise seed and key" if origin else "key, which is 0 by default,"
        runs = (
            f"all runs with this {same} have the same noise, which cancels in their differences: "
            "publish one of them"
        )
    return {"seed": seed, "runs": runs}


def state(dataset: "xarray.Dataset") -> None:
    """Write the assumptions behind the privacy figures into results, see :func:`assumptions`, and
    what these figures do not cover, see :func:`not_covered`.
    """
    if not ledger_of(dataset):
        return
    if dataset.attrs.get("callback") and "nominal" in dataset:
        nominal = dataset["nominal"]
        # Missing runs stay missing: their ledger is NaN, as is that of runs without a budget.
        marked = nominal.where(~private_runs(dataset), 1).astype(nominal.dtype)
        dataset["nominal"] = marked.transpose(*nominal.dims).assign_attrs(nominal.attrs)
    dataset.attrs["privacy"] = _one_text(assumptions(dataset))
    dataset.attrs["not_covered"] = _one_text(not_covered(dataset))


def not_counted(dataset: "xarray.Dataset", choice: str) -> "xarray.Dataset":
    """Private results with the statement that a choice by private results precedes them, at a cost
    that their budget does not count; other results as they are.
    """
    if not ledger_of(dataset):
        return dataset
    stated = dataset.assign_attrs(tuning=f"tuning not counted: {choice}")
    state(stated)
    return stated


def _one_text(stated: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in stated.items())
