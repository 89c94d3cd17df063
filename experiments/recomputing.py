"""Compare recomputed numbers with the stored ones."""

from typing import NamedTuple

import numpy as np
import xarray as xr

from experiments.figure import Studies

#: Numbers agree to this share of themselves: stored metrics have as few as six bits.
RELATIVE = 0.02

#: Or to this share of the standard deviation over seeds: training magnifies the roundings of
#: another compiler, at most to the differences between seeds.
OF_SPREAD = 0.1

#: Means of seeds agree to so many standard errors of their difference.
ERRORS = 4.0

#: The smallest share of a variable's numbers that must agree; runs near a threshold may differ.
SHARE = 0.98


class Comparison(NamedTuple):
    """Lines of text, one for each variable."""

    differs: list[str]  # variables whose numbers disagree
    draws: list[str]  # variables with other draws, whose means agree

    def lines(self) -> list[str]:
        """The text of a command that compares; none where all numbers are the stored ones."""
        differs = [f"  DIFFERS: {line}" for line in self.differs]
        return differs + [f"  other draws, means agree: {line}" for line in self.draws]


def verdict(differs: bool) -> str:
    """The last line of a command that compares."""
    return "the code of today computes other numbers" if differs else "stored and computed agree"


def compared(stored: Studies, computed: Studies) -> Comparison:
    """Compare studies of some of the stored seeds with the stored ones.

    A later version may draw different numbers from a seed; then means over seeds must agree.
    Parameters chosen by such draws may differ as well, and so may their scores.

    Args:
      stored: the studies as they are in the gallery, of all seeds.
      computed: the same studies of some of these seeds.
    """
    differs = [f"{name}: not computed any more" for name in stored if name not in computed]
    draws = []
    for name, study in computed.items():
        if name not in stored:
            differs.append(f"{name}: not stored")
            continue
        before = stored[name]
        # Of parameters' scores only means over the seeds of tuning are stored.
        is_random = "tuning" in name or any("seed" in v.dims for v in before.data_vars.values())
        for variable in before.data_vars:
            if variable not in study:
                differs.append(f"{name}, {variable}: not computed any more")
                continue
            structure, numbers, means = _differences(before[variable], study[variable])
            if structure or means or (numbers and not is_random):
                differs.append(f"{name}, {variable}: {structure or means or numbers}")
            elif numbers:
                draws.append(f"{name}, {variable}: {numbers}")
    return Comparison(differs, draws)


def _differences(stored: xr.DataArray, computed: xr.DataArray) -> tuple[str, str, str]:
    """What differs in the structure, in the numbers and in their means over seeds; empty texts
    where nothing does.
    """
    if stored.dtype.kind not in "biuf":
        return "", "", ""
    if {*stored.dims} != {*computed.dims}:
        return f"axes {computed.dims} instead of {stored.dims}", "", ""
    stored = stored.astype(float)
    computed = computed.astype(float).transpose(*stored.dims)
    common = stored
    if "seed" in stored.dims:
        shared = [s for s in computed["seed"].values if s in stored["seed"].values]
        if not shared:
            return "no seed is among the stored ones", "", ""
        common, computed = (part.sel(seed=shared) for part in (stored, computed))
    if common.sizes != computed.sizes:
        return f"sizes {dict(computed.sizes)} instead of {dict(common.sizes)}", "", ""
    for axis in stored.dims:
        if not _same_labels(common[axis], computed[axis]):
            return f"other labels of the axis {axis}", "", ""
    if "seed" not in stored.dims:
        return "", _disagreement(common.values, computed.values, 0.0), ""
    with np.errstate(all="ignore"):
        spread = stored.std("seed")
        tolerated = (OF_SPREAD * spread).broadcast_like(common).transpose(*common.dims)
        numbers = _disagreement(common.values, computed.values, tolerated.values)
        if not numbers:
            return "", "", ""
        error = spread * np.sqrt(1 / computed.sizes["seed"] + 1 / stored.sizes["seed"])
        before, now = (part.mean("seed").values for part in (stored, computed))
    disagreement = _disagreement(before, now, ERRORS * error.values)
    return "", numbers, disagreement and f"of means over seeds {disagreement}"


def _disagreement(before: np.ndarray, now: np.ndarray, tolerated: np.ndarray | float) -> str:
    """How many numbers differ by more than the tolerance, and the largest difference."""
    with np.errstate(invalid="ignore"):
        error = np.abs(now - before)
        agrees = error <= np.fmax(RELATIVE * np.abs(before), tolerated)
    agrees |= (now == before) | (np.isnan(now) & np.isnan(before))
    share = float(np.mean(agrees)) if agrees.size else 1.0
    if share >= SHARE:
        return ""
    size = np.where(agrees, -1.0, np.nan_to_num(error, nan=np.inf))
    most = np.unravel_index(np.argmax(size), size.shape)
    return (
        f"{100 * (1 - share):.3g} % differ, such as {now[most]:.4g}, stored as {before[most]:.4g}"
    )


def _same_labels(stored: xr.DataArray, computed: xr.DataArray) -> bool:
    if stored.dtype.kind in "iuf" and computed.dtype.kind in "iuf":
        return np.allclose(stored.values, computed.values, rtol=1e-5, atol=0)
    return bool(np.all(stored.values == computed.values))
