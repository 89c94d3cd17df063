"""Reduce a figure's studies for storage, without changing a word of the gallery."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from experiments import report
from experiments.figure import Claim, Effort, Figure, Studies
from experiments.records import claim_record, explain_unstored, plain, record
from fljax.metrics.names import TIMES, TRAFFIC

#: Mantissa bits that are tried for a run's metrics: from the fewest that leave pictures unchanged
#: to single precision.
BITS = range(6, 24, 4)


def thinned(figure: Figure, studies: Studies, effort: Effort) -> Studies:
    """The studies in single precision, every metric with the fewest bits that leave the gallery's
    words, verdicts and printed numbers unchanged; without the counts of communication that the
    figure does not store.

    Raises:
      Broken: the figure reads a count that it does not store.
    """
    stored = {name: in_single_precision(study, figure.keep) for name, study in studies.items()}
    gallery = GalleryText(figure, effort, stored)
    metrics = [
        (name, v.name)
        for name, s in stored.items()
        for v in s.data_vars.values()
        # Rounded times could decrease from record to record.
        if is_per_round(v) and v.name not in TIMES
    ]
    groups = [metrics] if metrics else []
    # Metrics are tried in groups, halved on failure: most of them need only the fewest bits.
    while groups:
        group = groups.pop()
        for bits in BITS if len(group) == 1 else BITS[:1]:
            fewer = {**stored}
            for name, metric in group:
                fewer[name] = fewer[name].assign({metric: rounded(stored[name][metric], bits)})
            if gallery.is_unchanged(fewer, {name for name, _ in group}):
                stored = fewer
                break
        else:
            if len(group) > 1:
                half = len(group) // 2
                groups += [group[half:], group[:half]]
    return stored


class GalleryText:
    """The gallery's text on a figure: for each claim, and (key ``None``) for everything else."""

    def __init__(self, figure: Figure, effort: Effort, studies: Studies) -> None:
        self.figure = figure
        self.effort = effort
        self.rest = self.record(studies)
        #: For each part, its text and the studies it reads. The part whose text changed last comes
        #: first, because it is the likeliest to change again.
        self.parts: dict[Claim | None, tuple[str, set[str]]] = {}
        for claim in figure.claims:
            read = RecordingStudies(studies)
            self.parts[claim] = self.text_of(claim, read), read.names
        self.parts[None] = report.page(plain(self.rest)), {*studies}

    def record(self, studies: Studies) -> dict[str, Any]:
        with explain_unstored(self.figure):
            return record(self.figure, studies, self.effort, 0, claims=())

    def text_of(self, part: Claim | None, studies: Studies) -> str:
        if part is None:
            return report.page(plain(self.record(studies)))
        with explain_unstored(self.figure):
            claims = [claim_record(part, part.judge(studies))]
        return report.page(plain(self.rest | {"claims": claims}))

    def is_unchanged(self, studies: Studies, changed: set[str]) -> bool:
        """Whether the text is unchanged for studies, where the named ones are changed."""
        for part, (text, names) in self.parts.items():
            if changed & names and self.text_of(part, studies) != text:
                self.parts = {part: self.parts[part]} | self.parts
                return False
        return True


class RecordingStudies(Mapping[str, xr.Dataset]):
    """Studies that record which names are read."""

    def __init__(self, studies: Studies) -> None:
        self.studies, self.names = studies, set[str]()

    def __getitem__(self, name: str) -> xr.Dataset:
        self.names.add(name)
        return self.studies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.studies)

    def __len__(self) -> int:
        return len(self.studies)


def in_single_precision(study: xr.Dataset, keep: Sequence[str]) -> xr.Dataset:
    """A study in single precision, without the counts of communication that are not stored."""
    study = study.drop_vars([name for name in TRAFFIC if name in study and name not in keep])
    for name in [*study.data_vars]:
        study[name] = study[name].astype(half_width_type(study[name]), keep_attrs=True)
    return study


def half_width_type(values: xr.DataArray) -> np.dtype:
    """The type of half the width, if the values fit."""
    if values.dtype == np.float64:
        return np.dtype(np.float32)
    if values.dtype == np.int64 and abs(values).max() <= np.iinfo(np.int32).max:
        return np.dtype(np.int32)
    return values.dtype


def is_per_round(values: xr.DataArray) -> bool:
    """Whether a variable has a value for every run and round."""
    return {"seed", "round"} <= {*values.dims} and values.dtype == np.float32


def rounded(metric: xr.DataArray, bits: int) -> xr.DataArray:
    """A metric rounded to ``bits`` bits, except the last round, which most claims read."""
    last = metric["round"] == metric["round"][-1]
    return metric.where(last, fewer_bits(metric.values, bits))


def fewer_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Numbers rounded to ``bits`` bits of the mantissa."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)
