r"""Salinity of the sea off California: the CalCOFI bottle data, cut into streams of clients.

The source learns "the salinity level", "linked in a nonlinear manner to the other available
parameters", from 80,000 samples that it distributes "progressively and unevenly to the 256 clients"
(Gauthier 2024, section 4.4.4, figure 4.4). It does not specify which samples and inputs are used,
how they are scaled, or how they are distributed. All of that is chosen here:

- *Rows.* Those with every value present (674,217 of 851,493), whichever inputs are used, so that
  studies with other inputs see the same water. From them, in the order of the next point, evenly
  spaced ones: the whole survey (1949-2020, all stations, all depths) in miniature and no draw.
- *Clients.* Rows are sorted by station (the cell of the survey's grid of lines across the shore and
  stations along them) and by time, and cut into contiguous chunks: a client is a stretch of sea,
  and much-visited cells are several clients in successive years. That makes them non-IID in every
  input and in the target. Within a client rows are in order of time, as a stream must be.
- *Sizes.* In the proportions 1 : 2 : 3 : 4 of the synthetic groups (section 4.4.1): the first
  quarter of the clients has 125 samples each, the next 250, 375 and 500, 80,000 in all. Chunks are
  given to clients in an order shuffled once and for all, so that size says nothing about place.
- *Inputs.* Longitude, latitude, depth, temperature and oxygen saturation, all that the rows hold
  but the date and what follows from it. With them linear least squares explains 82 % of the
  target's variance over all clients' samples and 200 random Fourier features of bandwidth 2 explain
  92 %, as in the held-out rows: a floor of about -11 dB. Date and quarter add less than
  1 % to the linear fit and take from the features.
- *Scale.* Inputs and target to mean 0 and variance 1 over all clients' training samples.
- *Test.* Rows that no client has, evenly spaced in the same order, scaled like the training data.
  Depths have a long tail: of 1,000 rows, one from 4,400 m can make half of a good model's error.

The file is ``calcofi/cc_bottle.npz``, an extract of the official bottle database: California
Cooperative Oceanic Fisheries Investigations, 1949-2020, CC BY 4.0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.module import float_dtype
from fljax.data.downloads import locate
from fljax.problems import LeastSquares, Problem, from_clients

FILE = "calcofi/cc_bottle.npz"
SHA256 = "514c7e2b6af353811735d1d472c56d7d9fe39242502cd0ba525bb0982fd72d2b"
HOW = (
    "It is an extract of the CalCOFI bottle database (calcofi.org, bottle and cast tables of "
    "1949-2020, CC BY 4.0): arrays lon, lat, days_since_1970, quarter, depth_m, sta_dpos, t_degc, "
    "salinity and o2sat, one entry a bottle, NaN where nothing was measured. No single address "
    "publishes it, so it is not downloaded."
)

INPUTS = ("lon", "lat", "depth_m", "t_degc", "o2sat")
KNOWN_INPUTS = (*INPUTS, "days_since_1970", "quarter", "sta_dpos")
TARGET = "salinity"
PROPORTIONS = (1, 2, 3, 4)
SHUFFLE_SEED = 0  # which client gets which chunk


class CalCOFI(NamedTuple):
    """The clients' data and their test data; ``L`` inputs."""

    problem: Problem  # features [K, N, L], targets [K, N]: squared loss, no regularizer
    sizes: np.ndarray  # [K]  samples of each client
    test_inputs: np.ndarray  # [T, L]
    test_targets: np.ndarray  # [T]
    inputs: tuple[str, ...]  # L names
    mean: np.ndarray  # [L + 1]  of the inputs and, last, of the target, in their units
    deviation: np.ndarray  # [L + 1]  their deviations


def calcofi(
    clients: int = 256,
    samples: int = 80_000,
    inputs: Sequence[str] = INPUTS,
    proportions: Sequence[int] = PROPORTIONS,
    test: int = 2000,
) -> CalCOFI:
    """Salinity from the other properties of a water sample, as streams of uneven length.

    The same call gives the same data; see the module's docstring for the choices and their reasons.
    Feature maps such as :func:`~fljax.data.random_fourier` are applied by the user of the streams.

    Args:
      clients: ``K``, a multiple of the number of proportions.
      samples: total number of samples of all clients.
      inputs: names of parameters, without repetition.
      proportions: relative sizes of the same number of groups of consecutive clients, integers >=
        1.
      test: ``T`` held-out rows.

    Raises:
      ValueError: an unknown or repeated input, a constant column, groups that do not divide the
        clients, sizes that are not integers, more rows than available, a file with another
        checksum.
      FileNotFoundError: ``FLJAX_DATA`` does not hold the file; the message explains how to get it.
    """
    sizes = _sizes(clients, samples, proportions)
    checks.count("test", test)
    inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    for name in inputs:
        checks.choice("input", name, KNOWN_INPUTS)
    if not inputs or len(set(inputs)) < len(inputs):
        raise ValueError(f"inputs must be one or more different names, got {inputs}.")

    with np.load(locate(FILE, SHA256, HOW)) as file:
        bottles = {name: file[name] for name in file.files}
    complete = np.flatnonzero(np.all([np.isfinite(a) for a in bottles.values()], axis=0))
    if samples + test > len(complete):
        raise ValueError(
            f"samples + test must be at most the {len(complete)} complete rows, got {samples} + "
            f"{test}."
        )
    day = bottles["days_since_1970"]
    cell = _station(bottles["lon"][complete], bottles["lat"][complete])
    rows = complete[np.lexsort((day[complete], *cell))]  # stable: a cast's depths stay in order
    rows = rows[_even_indices(samples + test, len(rows))]
    held_out = _even_indices(test, samples + test)
    test_rows = rows[held_out]
    rows = np.delete(rows, held_out)

    table = np.stack([bottles[name] for name in (*inputs, TARGET)], axis=1).astype(np.float64)
    mean = table[rows].mean(0)
    deviation = table[rows].std(0)
    for name, span in zip((*inputs, TARGET), np.ptp(table[rows], axis=0), strict=True):
        if span == 0:
            raise ValueError(f"{name} is the same in all {samples} samples and cannot be scaled.")
    table = (table - mean) / deviation

    order = np.random.default_rng(SHUFFLE_SEED).permutation(clients)
    chunks = np.split(rows, np.cumsum(sizes[order])[:-1])
    chunks = [chunks[i] for i in np.argsort(order)]  # client by client
    chunks = [chunk[np.argsort(day[chunk], kind="stable")] for chunk in chunks]
    return CalCOFI(
        problem=from_clients(
            [(table[chunk, :-1], table[chunk, -1]) for chunk in chunks],
            LeastSquares(),
            strength=0.0,
        ),
        sizes=sizes,
        test_inputs=table[test_rows, :-1].astype(float_dtype()),
        test_targets=table[test_rows, -1].astype(float_dtype()),
        inputs=inputs,
        mean=mean,
        deviation=deviation,
    )


def _sizes(clients: int, samples: int, proportions: Sequence[int]) -> np.ndarray:
    """``[K]``, the number of samples of each client."""
    checks.count("clients", clients)
    checks.count("samples", samples)
    for proportion in proportions:
        checks.count("proportions", proportion)
    if not len(proportions) or clients % len(proportions):
        raise ValueError(
            f"{clients} clients cannot be cut into {len(proportions)} groups of the same size, one "
            "a proportion."
        )
    parts = np.repeat(np.asarray(proportions), clients // len(proportions))
    if samples % parts.sum():
        raise ValueError(
            f"{samples} samples cannot be shared by {clients} clients in the proportions "
            f"{tuple(proportions)}; take a multiple of {parts.sum()}."
        )
    return parts * (samples // parts.sum())


def _even_indices(count: int, total: int) -> np.ndarray:
    """``count`` indices below ``total`` at the centers of as many equal stretches."""
    return (2 * np.arange(count) + 1) * total // (2 * count)


def _station(lon: np.ndarray, lat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell of the survey's grid, station before line, as ``np.lexsort`` wants its keys.

    Lines run seawards at 30 degrees south of west from the shore and count southwards, 12 nautical
    miles to the unit; stations count seawards, 4 miles to the unit; line 80 meets station 60 at
    34.15 N, 121.15 W (Eber and Hewitt, CalCOFI Reports 20, 1979). On a tangent plane, which is off
    by a few units far away: cells of the survey's usual spacing, 3 1/3 lines by 10 stations, need
    no more.
    """
    north = lat.astype(np.float64) - 34.15
    east = (lon.astype(np.float64) + 121.15) * np.cos(np.deg2rad(34.15))
    sin = np.sin(np.pi / 6)
    cos = np.cos(np.pi / 6)
    line = 80 + 5 * (sin * east - cos * north)
    station = 60 - 15 * (cos * east + sin * north)
    return np.rint(station / 10), np.rint(line * 3 / 10)
