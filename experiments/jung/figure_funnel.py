"""Jung 2025: features that reveal little private information (section 9.3, figures 9.4, 9.5)."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, samples
from fljax import plotting, statistics
from fljax.contrib import GaussianFunnel, Tradeoff

NOISE = Setting("deviation of the noise in s and y", 0.2, "with which the numbers are the printed")
RECORDS = Setting("samples", 1000, "of (184) and of the sweep; the source gives none")
ANGLES = Setting("angles of the sweep, degrees", tuple(range(0, 181, 3)), "all directions")
PRINTED = {0: (1.63, 0.11), 45: (0.33, 1.03), 60: (0.14, 1.68), 75: (0.03, 1.33), 90: (0.0, 0.75)}
CELLS = Setting("levels of x1, x2, s, y", (3, 2, 2, 2), "6 values of x: all maps can be looked at")
COUNTED = Setting("samples of the table", 200_000, "so many that counts are nearly probabilities")
LEVELS = Setting("levels of I(y;z)", tuple(np.linspace(0, 1, 21).tolist()), "shares of I(x;y)")
DAYS = Setting("days by the hour", 30, "exercise 9.5: April, 720 rows", given=True)
SIZES = Setting("(e) samples of the map", (24, 48, 96, 192, 384, 720), "up to the month")
WITHIN = Setting("printed numbers within", 0.015, "they are rounded to 0.005")

FEATURES = ("lowest", "highest", "humidity", "wind", "gust", "rain", "pressure", "dew", "sight")
#: Further columns of the table: the day, and x11, which is private.
HOUR = 10
ATTACKERS = ("linear", "with squares")


# --------------------------------------------------------------------------- data


def variables(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, s and y of figure 9.4: s = x1 + noise, y = x1 / 2 + x2 + noise."""
    rng = np.random.default_rng([1, seed])
    x = rng.normal(size=(count, 2))
    noise = NOISE.value * rng.normal(size=(2, count))
    return x, x[:, 0] + noise[0], x @ [0.5, 1.0] + noise[1]


def exact() -> GaussianFunnel:
    """The funnel with the variables' true covariances."""
    extra = NOISE.value**2
    return GaussianFunnel(
        np.eye(2), np.array([1.0, 0]), np.array([0.5, 1]), 1 + extra, 1.25 + extra
    )


def station(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Exercise 9.5: a month's eleven features ``[hours, 11]`` and temperature ``[hours]``.

    A synthetic table: readings follow the hour of the day and a slow drift of the weather; the day
    and the hour are columns as well. The real table is not available.
    """
    rng = np.random.default_rng([2, seed])
    time = np.arange(24 * DAYS.value)
    hour = time % 24
    day = 1 + time // 24
    sun = np.cos(2 * np.pi * (hour - 15) / 24)
    slow = np.convolve(rng.normal(size=len(time) + 71), np.ones(72) / np.sqrt(72), "valid")
    temperature = 4 + 0.1 * day + 3 * sun + 2 * slow + 0.4 * rng.normal(size=len(time))
    lowest, highest = (temperature + side * rng.gamma(2.0, 0.2, len(time)) for side in (-1, 1))
    humidity = 75 - 4 * (temperature - 5) + 5 * rng.normal(size=len(time))
    wind = 6 + np.abs(rng.normal(size=len(time))) + 1.5 * sun
    gust = 1.3 * wind + rng.gamma(2.0, 0.4, len(time))
    rain = rng.gamma(0.3, 0.5, len(time))
    pressure = 1013 + 6 * np.roll(slow, 40) + 0.3 * rng.normal(size=len(time))
    dew = temperature - (100 - humidity) / 5
    sight = 30 - 0.2 * humidity + 3 * rng.normal(size=len(time))
    readings = (lowest, highest, humidity, wind, gust, rain, pressure, dew, sight)
    return np.column_stack([*readings, day, hour]), temperature


def explained(features: np.ndarray, target: np.ndarray) -> float:
    """R^2 in sample, of the best linear prediction with an intercept."""
    data = jnp.asarray(features), jnp.asarray(target)
    error = fl.contrib.reconstruction_error(*data, center=True)
    return 1 - float(error) / float(np.var(target))


def with_squares(features: np.ndarray) -> np.ndarray:
    """Features with their pairwise products."""
    pairs = itertools.combinations_with_replacement(range(features.shape[1]), 2)
    return np.column_stack([features, *(features[:, i] * features[:, j] for i, j in pairs)])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = range(effort.seeds)
    result = [swept(seed) | hidden(seed) for seed in seeds]
    stacked = {name: np.stack([run[name] for run in result]) for name in result[0]}
    coords = {
        "angle": list(ANGLES.value),
        "case": ["before", "after", "x1 hidden"],
        "size": list(SIZES.value),
        "attacker": list(ATTACKERS),
    }
    names = {
        "private": (("angle",), "I(s;z)", False),
        "useful": (("angle",), "I(y;z)", False),
        "chosen": ((), "angle of (184)", False),
        "hour": (("case",), "R^2 of the hour", False),
        "temperature": (("case",), "R^2 of the temperature", False),
        "fresh": (("size", "attacker"), "R^2 of the hour on other days", False),
    }
    return {"samples": solutions.dataset(stacked, names, coords), "curves": curves(effort)}


def swept(seed: int) -> dict[str, np.ndarray]:
    """The informations of each direction in a sample, and the direction chosen by (184)."""
    x, s, y = variables(seed, RECORDS.value)
    funnel = GaussianFunnel.of_samples(x, s, y)
    informations = np.array([funnel.informations(direction(angle)) for angle in ANGLES.value])
    hidden_s = fl.contrib.private_map(jnp.asarray(x), jnp.asarray(s), center=True)
    left = np.asarray(hidden_s)[:, 0]
    angle = np.degrees(np.arctan2(left[1], left[0])) % 180
    return {"private": informations[:, 0], "useful": informations[:, 1], "chosen": angle}


def direction(degrees: float) -> np.ndarray:
    return np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])


def hidden(seed: int) -> dict[str, np.ndarray]:
    """Exercise 9.5, with the remaining information for other days and for other attackers."""
    table, temperature = station(seed)
    x = (table - table.mean(0)) / table.std(0)
    hour = x[:, HOUR]
    maps = [np.asarray(fl.contrib.private_map(x, x[:, column])) for column in (HOUR, 0)]
    cases = (x, x @ maps[0], x @ maps[1])
    other = station(seed + 1_000_000)[0]
    scaled = (other - table.mean(0)) / table.std(0)
    left = []
    for size in SIZES.value:
        near = x[:size]
        of_few = np.asarray(fl.contrib.private_map(near, near[:, HOUR], center=True))
        z = scaled @ of_few
        left.append([explained(z, scaled[:, HOUR]), explained(with_squares(z), scaled[:, HOUR])])
    return {
        "hour": np.array([explained(z, hour) for z in cases]),
        "temperature": np.array([explained(z, temperature) for z in cases]),
        "fresh": np.array(left),
    }


def table() -> np.ndarray:
    """``[S, X, Y]`` of the variables of figure 9.4 in few cells."""
    x, s, y = variables(0, COUNTED.value)
    first, second, of_s, of_y = CELLS.value
    cells = np.column_stack(
        [fl.contrib.quantized(x[:, 0], first), fl.contrib.quantized(x[:, 1], second)]
    )
    return fl.contrib.joint_table(
        fl.contrib.quantized(s, of_s), cells, fl.contrib.quantized(y, of_y)
    )


def partitions(size: int) -> Iterator[list[int]]:
    """All maps of ``size`` values, up to a renaming of the images."""
    for labels in itertools.product(range(size), repeat=size):
        if all(label <= max(labels[:i], default=-1) + 1 for i, label in enumerate(labels)):
            yield list(labels)


def curves(effort: Effort) -> xr.Dataset:
    """Curves of the exact Gaussian funnel and of the table: attained, least and most; no seeds."""
    funnel = exact()
    counts = table()
    below = fl.contrib.privacy_funnel(counts)
    above = fl.contrib.privacy_funnel(counts.transpose(2, 1, 0))
    shares = np.asarray(LEVELS.value)
    with_s = counts.sum(2)
    with_y = counts.sum(0).T
    funnels = [
        (
            fl.contrib.mutual_information(with_s @ channel),
            fl.contrib.mutual_information(with_y @ channel),
        )
        for channel in (np.eye(counts.shape[1])[labels] for labels in partitions(counts.shape[1]))
    ]
    result = {
        "least": [at(below, share * below.useful[-1]) for share in shares],
        "gaussian": [funnel.at(share * funnel.most).private for share in shares],
        "map_private": [private for private, _ in funnels],
        "map_useful": [useful for _, useful in funnels],
        "map_least": [at(below, min(useful, below.useful[-1])) for _, useful in funnels],
        "told": [below.useful[-1], funnel.most],
        "below_y": below.useful,
        "below_s": below.private,
        "above_s": above.useful,
        "above_y": above.private,
    }
    axes = {"least": "share", "gaussian": "share", "told": "limit"}
    axes |= {f"{side}_{name}": f"corner_{side}" for side in ("below", "above") for name in "sy"}
    variables = {
        name: ((axes.get(name, "map"),), np.asarray(values)) for name, values in result.items()
    }
    return xr.Dataset(
        variables, {"share": shares, "limit": ["y", "gaussian"]}, solutions.provenance(root=0)
    )


def at(curve: Tradeoff, level: float) -> float:
    return curve.at(level).private


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    data = studies["samples"]
    lines = studies["curves"]
    titles = (
        "information by direction",
        "directions, and the closed form",
        "maps of six values",
        "exercise 9.5, the month itself",
        "exercise 9.5, another month",
        "direction that (184) leaves",
    )
    drawing, (sweep, trade, discrete, month, other, chosen) = picture.panels(titles, height=2.3)
    funnel = exact()
    true = np.array([funnel.informations(direction(angle)) for angle in ANGLES.value])
    for column, (name, text) in enumerate((("private", "I(s;z)"), ("useful", "I(y;z)"))):
        look = plotting.LOOKS[1 - column] | {"linestyle": "", "markersize": 1.8}
        _band(sweep, data, name, "angle", text, look)
        exactly = "exact" if column else "_"
        picture.predicted_curve(sweep, np.asarray(ANGLES.value), true[:, column], exactly)
    sweep.set(xlabel="angle of f [degrees]", ylabel="nats")
    blue, red, green = (look["color"] for look in plotting.LOOKS[:3])
    trade.plot(true[:, 1], true[:, 0], ".", color=blue, label="directions of the sweep")
    levels = lines["share"] * lines["told"].sel(limit="gaussian")
    trade.plot(levels, lines["gaussian"], color=red, label="least at each I(y;z)")
    free = funnel.at(0.0)
    trade.plot(free.useful, free.private, "D", color=green, label="(184)", zorder=5)
    trade.set(xlabel="I(y;z) [nats]", ylabel="I(s;z) [nats]")
    outline = [
        np.concatenate([lines[f"below_{name}"].values, lines[f"above_{name}"].values[::-1]])
        for name in "ys"
    ]
    discrete.fill(*outline, color=blue, alpha=0.2, linewidth=0, label="attained by random maps")
    discrete.plot(lines["below_y"], lines["below_s"], color=red, label="privacy funnel")
    discrete.plot(
        lines["map_useful"], lines["map_private"], ".", ms=2.5, color="k", label="203 fixed maps"
    )
    discrete.set(xlabel="I(y;z) [nats]", ylabel="I(s;z) [nats]")
    places = np.arange(3)
    for shift, name, color in ((-0.2, "hour", red), (0.2, "temperature", blue)):
        numbers = statistics.summary(data, name)
        month.bar(places + shift, numbers["mean"], 0.4, color=color, label=name)
        ends = np.abs(
            np.stack([numbers["mean"] - numbers["low"], numbers["high"] - numbers["mean"]])
        )
        month.errorbar(places + shift, numbers["mean"], ends, fmt="none", color="k", lw=0.8)
    month.set_xticks(places, ["all", "no x11", "no x1"])
    month.set(ylabel=r"$R^2$ in sample", ylim=(0, 1.05))
    for look, attacker in zip(plotting.LOOKS, ATTACKERS, strict=False):
        _band(other, data.sel(attacker=attacker), "fresh", "size", attacker, look)
    other.set(
        xlabel="hours that the map is from", ylabel=r"$R^2$ of the hour", ylim=(0, 1), xscale="log"
    )
    other.set_xticks(SIZES.value, [str(size) for size in SIZES.value])
    other.minorticks_off()
    chosen.hist(
        data["chosen"].values, np.arange(86.0, 94.1, 0.5).tolist(), color=green, label="samples"
    )
    chosen.axvline(90, **picture.THIN, label="exact: 90")
    chosen.set(xlabel="angle [degrees]", ylabel="seeds")
    note = f"mean of {data.sizes['seed']} samples each, bands: 95 % confidence"
    return picture.finish(drawing, f"What features tell of s that are to tell of y\n{note}")


def _band(
    ax: Axes, data: xr.Dataset, name: str, axis: str, text: str, look: dict[str, Any]
) -> None:
    numbers = statistics.summary(data, name)
    ax.plot(data[axis], numbers["mean"], label=text, **look)
    ends = numbers["low"], numbers["high"]
    ax.fill_between(data[axis], *ends, color=look["color"], alpha=0.2, linewidth=0)


# --------------------------------------------------------------------------- claims


def printed(studies: Studies) -> dict[str, Estimate]:
    """The distance of samples' informations from the derived numbers."""
    result = {}
    for angle, numbers in PRINTED.items():
        for name, number in zip(("private", "useful"), numbers, strict=True):
            value = samples(studies["samples"], {"angle": angle}, name)
            result[f"{angle} degrees, {name}"] = estimate(
                lambda a, n=number: a - n, value, unit="nats"
            )
    return result


def of(name: str, **where: object) -> Callable[[Studies], dict[str, Estimate]]:
    """The mean over seeds."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        value = samples(studies["samples"], where, name)
        return {", ".join(map(str, where.values())) or name: estimate(lambda a: a, value, unit="")}

    return measure


def above_sweep(studies: Studies) -> dict[str, Estimate]:
    """How far the directions of the sweep are above the closed form, at least."""
    funnel = exact()
    informations = [funnel.informations(direction(angle)) for angle in ANGLES.value]
    gaps = [private - funnel.at(useful).private for private, useful in informations]
    return {"least": Estimate.exact(min(gaps), "nats")}


def above_curve(studies: Studies) -> dict[str, Estimate]:
    """How far fixed maps are above the funnel's curve, at least."""
    lines = studies["curves"]
    return {
        "least": Estimate.exact(float((lines["map_private"] - lines["map_least"]).min()), "nats")
    }


def chance_helps(studies: Studies) -> dict[str, Estimate]:
    """The largest excess of the best fixed map's information on s over the funnel."""
    lines = studies["curves"]
    levels = lines["share"] * lines["told"].sel(limit="y")
    fixed = lines["map_private"].where(lines["map_useful"] >= levels - 1e-9).min("map")
    return {"most": Estimate.exact(float((fixed - lines["least"]).max()), "nats")}


def rises(studies: Studies) -> dict[str, Estimate]:
    """The least rise of the trade-off curves from one level to the next."""
    lines = studies["curves"]
    return {
        name: Estimate.exact(float(np.diff(lines[name]).min()), "nats")
        for name in ("least", "gaussian")
    }


FIGURE = Figure(
    name="jung-funnel",
    title="Features that tell little of what is private",
    source="Jung 2025, section 9.3, figures 9.4 and 9.5, exercise 9.5",
    caption="(a), (b): s = x1 + noise, y = x1/2 + x2 + noise, z along a direction f. (c): the same "
    "variables in few cells, with every fixed map, and the region that random ones attain. (d), "
    "(e): exercise 9.5 on a synthetic month of a weather station, since its eleven features are "
    "not among our records; the hour, x11, is to be hidden (step 3 prints x1). "
    "None of it is differential privacy: information is an average, and the linear map hides "
    "the hour from linear predictions alone.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "numbers-of-figure-9.4",
            "information by direction at 0, 45, 60, 75 and 90 degrees",
            "figures 9.4 and 9.5 (numbers derived)",
            printed,
            (-WITHIN.value, WITHIN.value),
            f"within {WITHIN.value:g} nats of the numbers of the extract",
            condition=f"noise of deviation {NOISE.value:g}, {RECORDS.value} samples",
            ours=True,
        ),
        Claim(
            "direction-of-184",
            "the private linear map leaves the direction of about 90 degrees",
            "(184), figure 9.5",
            of("chosen"),
            (89.5, 90.5),
            "the mean angle; one instance gave 89.8",
            condition=f"{RECORDS.value} samples",
            ours=True,
        ),
        Claim(
            "no-direction-is-better",
            "no direction tells less of s at its I(y;z) than the closed form",
            "(183)",
            above_sweep,
            (-1e-9, INFINITE),
            "the least gap, of rounding at most",
            condition="jointly Gaussian",
            ours=True,
        ),
        Claim(
            "no-map-is-better",
            "no fixed map of discrete features is below the funnel's curve",
            "(183)",
            above_curve,
            (-1e-4, INFINITE),
            "the least gap of all 203 maps; the curve is computed to 1e-4",
            condition="six values of x",
            ours=True,
        ),
        Claim(
            "chance-helps",
            "random maps tell less of s than the best fixed one",
            "(183)",
            chance_helps,
            (1e-3, INFINITE),
            "at the level where it matters most, by more than the curve's accuracy",
            condition="six values of x",
            ours=True,
        ),
        Claim(
            "a-trade-off",
            "the more z is to tell of y, the more it tells of s",
            "figure 9.4",
            rises,
            (-1e-9, INFINITE),
            "from level to level, of the least I(s;z)",
            construction="the set of maps that tell enough shrinks with the level",
        ),
        Claim(
            "the-hour-is-hidden",
            "the hour cannot be predicted linearly from the mapped features",
            "exercise 9.5, (184)",
            of("hour", case="after"),
            (-1e-9, 1e-9),
            "R^2 in sample is zero but for rounding",
            condition="a synthetic table; x11 and not x1, as step 3 prints",
        ),
        Claim(
            "temperature-stays",
            "the temperature can still be predicted",
            "exercise 9.5",
            of("temperature", case="after"),
            (0.5, 1),
            "R^2 in sample above one half",
            condition="a synthetic table",
        ),
        Claim(
            "x1-is-the-wrong-column",
            "hiding x1, as step 3 prints, leaves the hour where it is",
            "exercise 9.5, step 3",
            of("hour", case="x1 hidden"),
            (0.5, 1),
            "R^2 in sample above one half",
            condition="a synthetic table",
            ours=True,
        ),
        Claim(
            "squares-tell",
            "what is not linear is not protected",
            "section 9.3",
            of("fresh", size=SIZES.value[-1], attacker=ATTACKERS[1]),
            (0.1, 1),
            "R^2 of the hour above 0.1 with squares and products of features",
            condition="a synthetic table, the map of the month before",
            ours=True,
        ),
    ],
    settings=(NOISE, RECORDS, ANGLES, CELLS, COUNTED, LEVELS, DAYS, SIZES, WITHIN),
)
