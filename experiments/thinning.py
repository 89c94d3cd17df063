"""What is stored of a figure's studies: what is said of them needs no more."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments import report
from experiments.figure import Claim, Effort, Figure, Studies
from experiments.records import claim_record, kept, plain, record
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
    found = {name: slim(study, figure.keep) for name, study in studies.items()}
    words = Words(figure, effort, found)
    metrics = [
        (name, v.name) for name, s in found.items() for v in s.data_vars.values() if of_runs(v)
    ]
    groups = [metrics] if metrics else []
    while groups:  # those that can do with the fewest bits are mostly found many at a time
        group = groups.pop()
        for bits in BITS if len(group) == 1 else BITS[:1]:
            fewer = {**found}
            for name, metric in group:
                fewer[name] = fewer[name].assign({metric: rounded(found[name][metric], bits)})
            if words.same(fewer, {name for name, _ in group}):
                found = fewer
                break
        else:
            if len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
    return found


class Words:
    """What the gallery says of a figure: of each claim, and (``None``) of all else."""

    def __init__(self, figure: Figure, effort: Effort, studies: Studies) -> None:
        self.figure, self.effort = figure, effort
        self.rest = self.record(studies)
        #: By part, what is said, and of which studies. What was said otherwise comes first: it is
        #: the likeliest to be so again.
        self.parts: dict[Claim | None, tuple[str, set[str]]] = {}
        for claim in figure.claims:
            read = Read(studies)
            self.parts[claim] = self.said(claim, read), read.names
        self.parts[None] = report.page(plain(self.rest)), {*studies}

    def record(self, studies: Studies) -> dict[str, Any]:
        with kept(self.figure):
            return record(self.figure, studies, self.effort, 0, claims=())

    def said(self, part: Claim | None, studies: Studies) -> str:
        if part is None:
            return report.page(plain(self.record(studies)))
        with kept(self.figure):
            claims = [claim_record(part, part.judge(studies))]
        return report.page(plain(self.rest | {"claims": claims}))

    def same(self, studies: Studies, changed: set[str]) -> bool:
        """Whether all is said as at first, of studies of which some are changed."""
        for part, (text, names) in self.parts.items():
            if changed & names and self.said(part, studies) != text:
                self.parts = {part: self.parts[part]} | self.parts
                return False
        return True


class Read(Mapping[str, xr.Dataset]):
    """Studies, and which of them are read."""

    def __init__(self, studies: Studies) -> None:
        self.studies, self.names = studies, set[str]()

    def __getitem__(self, name: str) -> xr.Dataset:
        self.names.add(name)
        return self.studies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.studies)

    def __len__(self) -> int:
        return len(self.studies)


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
