"""The best of the step sizes that were tried, and whether a further one should be."""

import xarray as xr


def best_step(values: xr.DataArray) -> float:
    """The step of the least mean over seeds; steps that were not tried have none."""
    mean = values.mean("seed")
    return float(mean["step"][int(mean.argmin("step"))])


def step_beyond(values: xr.DataArray) -> float | None:
    """The half or double of the best step if that is the smallest or largest that was tried."""
    tried = values.mean("seed").dropna("step")["step"]
    best = best_step(values)
    if best == float(tried[-1]):
        return 2 * best
    return best / 2 if best == float(tried[0]) else None
