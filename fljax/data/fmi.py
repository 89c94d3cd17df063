r"""Tomorrow's temperature at Finland's weather stations; each station is a node of a network.

A running example of Jung 2025: "data points represent the daily weather conditions around FMI
weather stations", labeled by "the maximum daytime temperature" (section 2.1), of stations that are
joined to their nearest neighbors on the Earth (section 3.3). The source specifies neither a file
nor the inputs. They are chosen here:

- *Samples.* One a station and target time: the temperature at it, from the ``lags`` steps
  before it (days; hours in the hourly records). A sample with a value missing among them is left
  out and counted (``missing``); nothing is filled in.
- *Test.* The last target times, the same of all stations: all training samples are older
  than the test samples. A test sample's inputs may reach back into the training days, as they would
  for a forecaster.
- *Stations*, in the order of their names. One without a training sample or without a test sample is
  left out and named (``dropped``): of the 194 with daily records one, which stops on the fourth of
  40 days; of the 207 with hourly records none or, with many lags, one or two that start late.
- *Scale.* Inputs and target to mean 0 and variance 1 over all stations' training samples together,
  so colder stations stay colder. The last feature is the constant 1: its weight expresses how much
  colder.

The files are extracts of the open data of the Finnish Meteorological Institute, license CC BY 4.0:
say "Finnish Meteorological Institute, open data, CC BY 4.0" wherever they are shown.

=================  ===========================================================================
``fmi_daily...``   extremes of 194 stations from 22 January to 2 March 2026, no day left out
``fmi_five_day``   of each of 192 stations ten windows of five days, and the extremes of the day
                   after; undated, so taken to be in order of time
``fmi_hourly``     207 stations, from 28 December 2023, 11:00, to 1 January 2024, 10:00
``fmi_stations``   where 445 stations are; two names occur twice
=================  ===========================================================================
"""

import csv
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.data.downloads import locate
from fljax.problems import LeastSquares, Problem, from_clients

FMI_FILES = {  # SHA-256
    "daily": (
        "fmi/fmi_daily_records.csv",
        "b8f9c49d66a71d155b10a27823a4b23fab0bc62c2b09c7b0711349b15d46a180",
    ),
    "five_day": (
        "fmi/fmi_five_day.csv",
        "b96b79f73b232c714ea6be585402fbc0d4891663e1d6f16d570ed291f3aeb336",
    ),
    "hourly": (
        "fmi/fmi_hourly.csv",
        "933843e9e575ca1d0ee5860ad32ee14bf24a78623910eab3e3b1d047792b8b93",
    ),
    "stations": (
        "fmi/fmi_stations.csv",
        "4efee47ff6f6d6262a3aeabe34d8f87762403d03103f43df34ca5600a5b8abf1",
    ),
}
FMI_HOW = (
    "It is an extract of the open data of the Finnish Meteorological Institute "
    "(en.ilmatieteenlaitos.fi/open-data, CC BY 4.0). No single address publishes it, so it is not "
    "downloaded; fljax.data.from_table makes a problem of records of your own."
)


def _parse_numbers(text: np.ndarray) -> np.ndarray:
    return np.where(text == "", "nan", text).astype(np.float64)


def _numbers(text: np.ndarray) -> np.ndarray:
    return np.array([np.fromstring(row.strip("[]"), sep=",") for row in text])


def _parse_times(unit: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda text: text.astype("datetime64[s]").astype(f"datetime64[{unit}]")


def _text(text: np.ndarray) -> np.ndarray:
    return text


#: The names given to each file's columns, and the functions that read their text.
COLUMNS: dict[str, dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]]] = {
    "daily": {
        "station": ("station", _text),
        "lat": ("latitude", _parse_numbers),
        "lon": ("longitude", _parse_numbers),
        "day": ("time", _parse_times("D")),
        "tmax": ("tmax", _parse_numbers),
        "tmin": ("tmin", _parse_numbers),
    },
    "five_day": {
        "Name": ("station", _text),
        "Latitude": ("latitude", _parse_numbers),
        "Longitude": ("longitude", _parse_numbers),
        "Tmax": ("tmax", _numbers),
        "Tmin": ("tmin", _numbers),
        "y_Tmax": ("next_tmax", _parse_numbers),
        "y_Tmin": ("next_tmin", _parse_numbers),
    },
    "hourly": {
        "name": ("station", _text),
        "Latitude": ("latitude", _parse_numbers),
        "Longitude": ("longitude", _parse_numbers),
        "Timestamp": ("time", _parse_times("h")),
        "temp": ("temp", _parse_numbers),
    },
    "stations": {
        "station_id": ("number", lambda text: text.astype(int)),
        "station": ("station", _text),
        "lat": ("latitude", _parse_numbers),
        "lon": ("longitude", _parse_numbers),
    },
}
#: The forecast variables and their inputs: the first is the target unless another is chosen.
VARIABLES = {"daily": ("tmax", "tmin"), "five_day": ("tmax", "tmin"), "hourly": ("temp",)}
TIME_UNITS = {"daily": "d", "five_day": "d", "hourly": "h"}
WINDOW = 5  # days of a row of the five-day records


class Weather(NamedTuple):
    """Training and test data of each of ``K`` stations; ``P`` features."""

    problem: Problem  # features [K, N, P], targets [K, N]: squared loss; its test of each station
    names: tuple[str, ...]  # [K]
    coordinates: np.ndarray  # [K, 2]  latitude and longitude in degrees
    features: tuple[str, ...]  # [P]  such as "tmax, 1 d before"; the last is "1"
    target: str
    mean: np.ndarray  # [P]  in degrees Celsius, of the features but the last and of the target
    deviation: np.ndarray  # [P]  deviations, in kelvin
    dropped: Mapping[str, str]  # the stations left out, and why
    missing: int  # samples of the stations kept that lack a value

    def kelvin(self, error: Any) -> Any:
        """The root of a mean-square error, such as the metric ``test_error``, in kelvin."""
        return self.deviation[-1] * error**0.5


@checked
def fmi_records(records: str) -> dict[str, np.ndarray]:
    """The rows of one of the files, unchanged, column by column.

    Args:
      records: ``"daily"``, ``"five_day"``, ``"hourly"`` or ``"stations"``.

    Returns:
      ``station`` (its name), ``latitude`` and ``longitude`` in degrees, all ``[n]``, and

      - of the daily records ``time`` (a day), ``tmax`` and ``tmin`` in degrees Celsius,
      - of the hourly records ``time`` (an hour, in no order) and ``temp``,
      - of the windows ``tmax`` and ``tmin`` of five days, ``[n, 5]``, ``next_tmax``, ``next_tmin``,
      - of the stations ``number``.

      NaN where nothing was recorded. :func:`~fljax.data.from_table` takes columns such as these.

    Raises:
      ValueError: unknown records, a file with another checksum.
      FileNotFoundError: ``FLJAX_DATA`` does not hold the file; explains how to get it.
    """
    checks.choice("records", records, FMI_FILES)
    path = locate(*FMI_FILES[records], FMI_HOW)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        name: read(np.array([row[column] for row in rows]))
        for column, (name, read) in COLUMNS[records].items()
    }


@checked
def fmi(
    records: str = "daily",
    target: str | None = None,
    lags: int = 3,
    test: float = 0.25,
    train: int | None = None,
) -> Weather:
    """A forecast at each weather station of Finland, from its most recent temperatures.

    The same call gives the same data; see the module's docstring for the choices and their reasons.

    Args:
      records: ``"daily"``: tomorrow's extremes, from the last days' extremes; ``"hourly"``: the
        next hour's temperature; ``"five_day"``: as the first, for ten separate days of another
        winter.
      target: ``"tmax"`` (the default) or ``"tmin"``; for the hourly records ``"temp"``.
      lags: number of past steps on which a forecast is based, with all measurements of each; for
        ``"five_day"`` up to 5.
      test: the share of the target times, counted from the last, to hold out, in (0, 1).
      train: number of target times before these that are used for training, counted from the last;
        by default all. With few of them, stations benefit from cooperation.

    Returns:
      The stations' problem, without a regularizer, and its description. Nearby stations are joined
      by ``fl.graphs.nearest_neighbors(data.coordinates, 3, metric="geodesic")``.

    Raises:
      ValueError: unknown records or target, more lags than available, no time left for training or
        testing, a file with another checksum.
      FileNotFoundError: ``FLJAX_DATA`` does not hold the file; explains how to get it.
    """
    checks.choice("records", records, VARIABLES)
    measured = VARIABLES[records]
    target = measured[0] if target is None else target
    checks.choice("target", target, measured)
    checks.count("lags", lags)
    checks.interval("test", test, above=0, below=1, hint="It is the share that is held out.")
    if train is not None:
        checks.count("train", train)

    table = fmi_records(records)
    names, first, station = np.unique(table["station"], return_index=True, return_inverse=True)
    windows = _five_day if records == "five_day" else _windows
    inputs, answers = windows(table, station, measured, target, lags)  # [K, T, P - 1], [K, T]
    times = answers.shape[1]
    held_out = round(test * times)
    learnt = times - held_out if train is None else train
    if not 1 <= held_out <= times - learnt or learnt < 1:
        raise ValueError(
            f"test={test:g} and {'all' if train is None else train} training times do not fit the "
            f"{times} target times that {lags} lags leave of the {records} records."
        )
    begin = times - held_out - learnt
    cut = times - held_out
    complete = np.isfinite(inputs).all(axis=2) & np.isfinite(answers)
    parts = {"training": complete[:, begin:cut], "test": complete[:, cut:]}
    lacks = {part: real.sum(axis=1) == 0 for part, real in parts.items()}
    dropped = {
        str(names[k]): " and ".join(f"no {part} sample" for part in lacks if lacks[part][k])
        for k in np.flatnonzero(lacks["training"] | lacks["test"])
    }
    usable = np.flatnonzero(~(lacks["training"] | lacks["test"]))

    learning = np.concatenate([inputs, answers[..., None]], axis=2)
    pool = learning[usable, begin:cut][parts["training"][usable]]
    mean = pool.mean(axis=0)
    deviation = pool.std(axis=0)
    scaled = (learning - mean) / deviation

    def samples(times: slice) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = [scaled[k, times][complete[k, times]] for k in usable]
        return [(np.append(r[:, :-1], np.ones((len(r), 1)), axis=1), r[:, -1]) for r in rows]

    ago = [f"{lag} {TIME_UNITS[records]} before" for lag in range(1, lags + 1)]
    return Weather(
        problem=from_clients(
            samples(slice(begin, cut)), LeastSquares(), strength=0.0, test=samples(slice(cut, None))
        ),
        names=tuple(map(str, names[usable])),
        coordinates=np.stack([table["latitude"], table["longitude"]], axis=1)[first][usable],
        features=(*(f"{name}, {when}" for when in ago for name in measured), "1"),
        target=target,
        mean=mean,
        deviation=deviation,
        dropped=dropped,
        missing=int((~complete[usable, begin:]).sum()),
    )


def _windows(
    table: Mapping[str, np.ndarray],
    station: np.ndarray,
    measured: tuple[str, ...],
    target: str,
    lags: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and answers of every station at every time that enough times precede."""
    step = (table["time"] - table["time"].min()).astype(int)
    times = step.max() + 1
    if lags >= times:
        raise ValueError(f"lags must be below the {times} times of the records, got {lags}.")
    values = np.full((station.max() + 1, times, len(measured)), np.nan)
    values[station, step] = np.stack([table[name] for name in measured], axis=1)
    past = [values[:, lags - lag : times - lag] for lag in range(1, lags + 1)]
    return np.concatenate(past, axis=2), values[:, lags:, measured.index(target)]


def _five_day(
    table: Mapping[str, np.ndarray],
    station: np.ndarray,
    measured: tuple[str, ...],
    target: str,
    lags: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Likewise of the windows, the first of a station at time zero."""
    if lags > WINDOW:
        raise ValueError(f"lags must be at most {WINDOW}, the days of a window, got {lags}.")
    order = np.argsort(station, kind="stable")
    sizes = np.bincount(station)
    time = np.empty_like(station)
    time[order] = np.concatenate([np.arange(size) for size in sizes])
    inputs = np.full((len(sizes), sizes.max(), lags, len(measured)), np.nan)
    latest = [table[name][:, ::-1][:, :lags] for name in measured]
    inputs[station, time] = np.stack(latest, axis=2)
    answers = np.full(inputs.shape[:2], np.nan)
    answers[station, time] = table[f"next_{target}"]
    return inputs.reshape(*inputs.shape[:2], -1), answers
