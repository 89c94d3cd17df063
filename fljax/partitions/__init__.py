"""Partitions: how the rows of a data set are distributed over clients, drawn from a random key.

A rule such as :class:`Dirichlet` draws a :class:`Partition` inside a scenario, another one for each
seed; its numbers may be axes of a grid. A partition is an order of the rows with offsets, without
copies of the data; a :class:`Shift` changes what each client sees of its rows. The problems that
are made of them are in :mod:`fljax.problems`, and rules for data that are read from files in
:mod:`fljax.data`. Read :mod:`~fljax.partitions.partitioner` first.

Shapes: ``N`` rows, ``K`` clients, ``C`` classes.
"""

from fljax.partitions.columns import ByColumn, ById
from fljax.partitions.heterogeneity import Heterogeneity, heterogeneity
from fljax.partitions.labels import (
    Dirichlet,
    EqualDirichlet,
    LabelsPerClient,
    Shards,
    SortedByLabel,
)
from fljax.partitions.mixtures import AtLeast, AtMost, Mixed, similar
from fljax.partitions.overlap import Shared
from fljax.partitions.partitioner import Partition, Partitioner, Pool
from fljax.partitions.shifts import (
    FeatureNoise,
    LabelNoise,
    OwnedSamples,
    PermutedFeatures,
    PermutedLabels,
    Rotation,
    Shift,
    Style,
)
from fljax.partitions.sizes import IID, DirichletSizes, LogNormalSizes, PowerLawSizes

__all__ = [
    "IID",
    "AtLeast",
    "AtMost",
    "ByColumn",
    "ById",
    "Dirichlet",
    "DirichletSizes",
    "EqualDirichlet",
    "FeatureNoise",
    "Heterogeneity",
    "LabelNoise",
    "LabelsPerClient",
    "LogNormalSizes",
    "Mixed",
    "OwnedSamples",
    "Partition",
    "Partitioner",
    "PermutedFeatures",
    "PermutedLabels",
    "Pool",
    "PowerLawSizes",
    "Rotation",
    "Shards",
    "Shared",
    "Shift",
    "SortedByLabel",
    "Style",
    "heterogeneity",
    "similar",
]
