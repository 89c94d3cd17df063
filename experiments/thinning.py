"""What is stored of a figure's studies: what is said of them needs no more."""

from collections.abc import Sequence

import numpy as np
import xarray as xr

from experiments import report
from experiments.figure import Effort, Figure, Studies
from experiments.records import kept, plain, record
from fljax.records import TRAFFIC

#: Of a single run's metrics, from the fewest with which no picture changes to what single
#: precision has.
BITS = range(6, 24, 4)


def thinned(figure: Figure, studies: Studies, effort: Effort) -> Studies:
    """The studies in single precision, every metric with the fewest bits that leave the gallery's
    words as they are, every verdict and printed number among them; without the counts of
    communication that the figure does not keep.

    Raises:
      Broken: the figure reads what it does not keep.
    """

    def said(found: Studies) -> str:
        with kept(figure):
            return report.page(plain(record(figure, found, effort, 0)))

    found = {name: slim(study, figure.keep) for name, study in studies.items()}
    words = said(found)
    for name, study in found.items():
        for metric in filter(of_runs, study.data_vars.values()):
            for bits in BITS:
                fewer = {name: found[name].assign({metric.name: rounded(metric, bits)})}
                if said(found | fewer) == words:
                    found = found | fewer
                    break
    return found


def slim(study: xr.Dataset, keep: Sequence[str]) -> xr.Dataset:
    """A study in single precision, without the counts of communication that are not kept."""
    study = study.drop_vars([name for name in TRAFFIC if name in study and name not in keep])
    for name in [*study.data_vars]:
        study[name] = study[name].astype(narrow(study[name]), keep_attrs=True)
    return study


def narrow(values: xr.DataArray) -> np.dtype:
    """Half as wide a type, where it has room for the counts."""
    if values.dtype == np.float64:
        return np.dtype(np.float32)
    if values.dtype == np.int64 and abs(values).max() <= np.iinfo(np.int32).max:
        return np.dtype(np.int32)
    return values.dtype


def of_runs(values: xr.DataArray) -> bool:
    """Whether it is a number of every run and round."""
    return {"seed", "round"} <= {*values.dims} and values.dtype == np.float32


def rounded(metric: xr.DataArray, bits: int) -> xr.DataArray:
    """A metric with so many bits; the last round, which most claims read, is as it was."""
    last = metric["round"] == metric["round"][-1]
    return metric.where(last, fewer_bits(metric.values, bits))


def fewer_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Numbers to the nearest with so many bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)
