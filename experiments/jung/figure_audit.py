"""Jung 2025: what trained attackers and curious peers find (section 9.2, exercises 9.1 to 9.4)."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from scipy import spatial

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, samples
from fljax import contrib, plotting, statistics
from fljax.privacy import accounting

EPSILONS = Setting("claimed epsilon", (0.25, 0.5, 1.0, 2.0, 4.0), "from strong to weak")
DELTA = Setting("delta", 1e-5, "of Gaussian noise; usual")
TRIALS = Setting("releases of an audit", 4000, "half train the attacker, half test it")
FAULT = Setting("planted fault", 0.5, "of the noise that is due")
CONFIDENCE = Setting("confidence", 0.95, "of a verdict: one right mechanism in 20 may be accused")
STATIONS = Setting("(c), (d) stations", 100, "among whom Alice's is found")
OWN = Setting("(c), (d) samples, parameters of a station", (10, 3), "D = 3: four exchanges")
STEP = Setting("(c), (d) step size, alpha a", (0.05, 0.5), "stable; known to Bob")
EXCHANGES = Setting("exchanges", (1, 2, 3, 4, 5, 6, 8, 12, 20), "around D + 1, and many")
SHARED = Setting("deviation of (190)", (0.0, 1e-3, 1e-1), "none, little, of the size of models")
ROUNDS = Setting("(e) rounds", (1, 3, 10, 30, 100, 300), "until models settle")
COUPLINGS = Setting("(e) alpha", (0.1, 1.0, 10.0), "decades")
BUDGET = Setting("(e) epsilon of all rounds", 1.0, "a usual budget")
RECORDS = Setting(
    "(f) data",
    "Finnish Meteorological Institute, open data, CC BY 4.0",
    "the stations of the source: four days by the hour, 207 stations",
)
SUBSETS = Setting(
    "(f) records that are told", (250, 1000, 4000, 16_000), "up to all but the tested"
)
BLURS = Setting("(f) noise on temperatures, K", (0.0, 2.0, 5.0, 10.0), "up to the weather's spread")
TESTED = Setting("(f) records to be placed", 3000, "held out")
NEAREST = Setting("(f) nearest records", (20, 3.0), "k, hours a kelvin: chosen on other records")

JUDGED = Setting("epsilon at which a fault is to be found", (1.0, 2.0), "the middle of (b)")
MOST = Setting("seeds", 40, "at most: an audit has its own many releases")

LAPLACE = "Laplace"
RESPONSE = "randomized response"
GAUSSIAN = "Gaussian, by its curve"
MECHANISMS = (LAPLACE, RESPONSE, GAUSSIAN)
RIGHT = "right"
FAULTY = "half the noise"
NOISES = {RIGHT: 1.0, FAULTY: FAULT.value}


# --------------------------------------------------------------------------- audits


def laplace(key: Array, data: tuple[Array, Array]) -> Array:
    value, scale = data
    return fl.privacy.laplace_release(key, value[None], scale, 1.0)


def response(key: Array, data: tuple[Array, Array]) -> Array:
    value, probability = data
    return fl.contrib.randomized_labels(key, value[None], jnp.array([0.0, 1.0]), probability)


def gaussian(key: Array, data: tuple[Array, Array]) -> Array:
    value, sigma = data
    return value[None] + sigma * jax.random.normal(key, (1,))


def mechanism(
    name: str, epsilon: float, noise: float
) -> tuple[Callable, float, tuple[float, float]]:
    """The release, its noise, and the claim on trial: epsilon, delta."""
    if name == LAPLACE:
        return laplace, noise / epsilon, (epsilon, 0.0)
    if name == RESPONSE:
        probability = float(accounting.randomized_response_probability(epsilon, 2))
        return response, noise * probability, (epsilon, 0.0)
    rho = float(accounting.zcdp_rho(epsilon, DELTA.value, "gaussian"))
    curve = (0.0, float(accounting.zcdp_delta(rho, 0.0, "gaussian")))
    return gaussian, noise * float(accounting.gaussian_sigma(1.0, rho)), curve


def audited(seed: int) -> dict[str, np.ndarray]:
    """Accuracy and verdict by mechanism, epsilon and whether it is right."""
    shape = (len(MECHANISMS), len(EPSILONS.value), len(NOISES))
    outcome = {name: np.zeros(shape) for name in ("accuracy", "accused")}
    for number, at in enumerate(np.ndindex(shape)):
        noise = [*NOISES.values()][at[2]]
        release, amount, claim = mechanism(MECHANISMS[at[0]], EPSILONS.value[at[1]], noise)
        worlds = [(np.asarray(value), np.asarray(amount)) for value in (0.0, 1.0)]
        result = contrib.trained_attack(
            release,
            *worlds,
            epsilon=claim[0],
            delta=claim[1],
            trials=TRIALS.value,
            key=jax.random.fold_in(fl.random_key(seed), number),
            confidence=CONFIDENCE.value,
        )
        outcome["accuracy"][at] = result.accuracy
        outcome["accused"][at] = result.broken
    return outcome


def allowed(name: str, epsilon: float) -> float:
    return float(contrib.most_accurate(*mechanism(name, epsilon, 1.0)[2]))


# --------------------------------------------------------------------------- exercise 9.1


def queried(seed: int) -> dict[str, np.ndarray]:
    """The error of Bob's estimate of Alice's loss, and whether it identifies her."""
    size, dim = OWN.value
    step, coupling = STEP.value
    key = fl.random_key(seed)
    problem = fl.problems.least_squares(key, STATIONS.value, size, dim)
    rng = np.random.default_rng([3, seed])
    alice = int(rng.integers(STATIONS.value))
    quadratic = np.asarray(problem.second_moment(), np.float64)[alice]
    linear = -2 * np.asarray(problem.correlation(problem.targets), np.float64)[alice]
    shape = (len(SHARED.value), len(EXCHANGES.value))
    result = {"off": np.zeros(shape), "identified": np.zeros(shape)}
    sent = rng.normal(size=(EXCHANGES.value[-1], dim))
    models = [np.zeros(dim)]
    for message in sent:
        gradient = 2 * quadratic @ models[-1] + linear + 2 * coupling * (models[-1] - message)
        models.append(models[-1] - step * gradient)
    noise = rng.normal(size=(len(models), dim))
    for at in np.ndindex(shape):
        count = EXCHANGES.value[at[1]]
        received = (np.array(models) + SHARED.value[at[0]] * noise)[: count + 1]
        recovered = contrib.queried_loss(received, sent[:count], step, coupling)
        off = np.linalg.norm(recovered.second_moment - quadratic) / np.linalg.norm(quadratic)
        result["off"][at] = np.log10(max(off, 1e-17))
        result["identified"][at] = contrib.matched_client(problem, *recovered[:2]) == alice
    return result


# --------------------------------------------------------------------------- (190)


def budgeted(seed: int) -> dict[str, np.ndarray]:
    """log10 of the noise for the budget, mean over clients, by coupling and rounds."""
    size, dim = OWN.value
    key_data, key_graph = jax.random.split(fl.random_key(seed))
    problem = fl.problems.least_squares(key_data, 20, size, dim)
    graph = fl.graphs.random_connected(key_graph, 20, 4)
    # A stable step for every coupling is one for the largest.
    largest = fl.theory.network_rates.largest_bound(problem, graph, COUPLINGS.value[-1])
    step = 0.5 / float(largest.spectral)

    def sigma(coupling: float, keeps: bool) -> list[float]:
        rounds = ROUNDS.value[-1]
        result = contrib.sharing_noise(
            *(problem, graph, coupling, step, rounds, 1.0, BUDGET.value, DELTA.value, keeps)
        )
        # For fewer rounds, the noise scales with the sensitivities of these rounds.
        total = np.sqrt(np.cumsum(np.asarray(result.sensitivity) ** 2, axis=1))
        per_horizon = np.asarray(result.sigma)[:, None] * total / total[:, -1:]
        return [float(per_horizon[:, t - 1].mean()) for t in ROUNDS.value]

    with_own_model = [sigma(coupling, True) for coupling in COUPLINGS.value]
    return {"noise": np.log10([*with_own_model, sigma(COUPLINGS.value[0], False)])}


# --------------------------------------------------------------------------- exercises 9.3, 9.4


@functools.cache
def weather() -> tuple[np.ndarray, np.ndarray]:
    """Hour and temperature of all records, and their position in km."""
    records = fl.data.fmi_records("hourly")
    hour = (records["time"] - records["time"].min()).astype("timedelta64[h]").astype(float)
    latitude = records["latitude"]
    longitude = records["longitude"]
    east = np.cos(np.deg2rad(latitude.mean())) * longitude
    position = 111.2 * np.stack([latitude, east], axis=1)
    return np.stack([hour / NEAREST.value[1], records["temp"]], axis=1), position


def placed(seed: int) -> dict[str, np.ndarray]:
    """The error of located records, km, by the number of disclosed others and by their noise."""
    observed, position = weather()
    order = np.random.default_rng([4, seed]).permutation(len(observed))
    tested = order[: TESTED.value]
    rest = order[TESTED.value :]
    subset_key, noise_key = jax.random.split(fl.random_key(seed))
    remaining = jnp.asarray(observed[rest]), jnp.asarray(position[rest])
    result = np.zeros((len(BLURS.value), len(SUBSETS.value)))
    for at in np.ndindex(result.shape):
        count = min(SUBSETS.value[at[1]], len(rest))
        disclosed, where = fl.contrib.subsample(subset_key, *remaining, count=count)
        hour, heat = fl.contrib.noisy_inputs(
            noise_key, disclosed[:, :1], disclosed[:, 1], 0.0, BLURS.value[at[0]]
        )
        tree = spatial.KDTree(np.column_stack([hour, heat]))
        near = tree.query(observed[tested], NEAREST.value[0])[1]
        result[at] = away(np.asarray(where)[near].mean(axis=1), position[tested])
    blind = away(position[rest].mean(axis=0), position[tested])
    return {"distance": result, "blind": np.asarray(blind)}


def away(guess: np.ndarray, position: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum((guess - position) ** 2, axis=-1))))


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    result = [
        audited(seed) | queried(seed) | budgeted(seed) | placed(seed)
        for seed in range(min(effort.seeds, MOST.value))
    ]
    stacked = {name: np.stack([run[name] for run in result]) for name in result[0]}
    labels = [f"alpha = {coupling:g}, own model kept" for coupling in COUPLINGS.value]
    coords = {
        "mechanism": list(MECHANISMS),
        "epsilon": list(EPSILONS.value),
        "noise_of": list(NOISES),
        "deviation": list(SHARED.value),
        "exchanges": list(EXCHANGES.value),
        "rule": [*labels, "shared model kept"],
        "rounds": list(ROUNDS.value),
        "blur": list(BLURS.value),
        "told": list(SUBSETS.value),
    }
    audits = ("mechanism", "epsilon", "noise_of")
    names = {
        "accuracy": (audits, "accuracy", False),
        "accused": (audits, "accused", False),
        "off": (("deviation", "exchanges"), "log10 of the relative error of Q", False),
        "identified": (("deviation", "exchanges"), "station found", False),
        "noise": (("rule", "rounds"), "log10 of sigma", False),
        "distance": (("blur", "told"), "error [km]", False),
        "blind": ((), "error of the mean place [km]", False),
    }
    return {"found": solutions.dataset(stacked, names, coords)}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    data = studies["found"]
    titles = (
        "trained attacker",
        "accused, lines as in (a)",
        "9.1: Bob's error",
        "9.1: Alice's station found",
        f"noise of (190), epsilon = {BUDGET.value:g}",
        "9.3, 9.4: place from temperature",
    )
    drawing, (accuracy, accused, off, result, noise, position) = picture.panels(titles, height=2.3)
    for i, name in enumerate(MECHANISMS):
        bounds = [allowed(name, epsilon) for epsilon in EPSILONS.value]
        if name != RESPONSE:
            text = "allowed" if name == LAPLACE else "_"
            picture.predicted_curve(accuracy, np.asarray(EPSILONS.value), np.asarray(bounds), text)
        for noise_of, filled in ((RIGHT, plotting.LOOKS[i]["color"]), (FAULTY, "white")):
            part = data.sel(mechanism=name, noise_of=noise_of)
            look = plotting.LOOKS[i] | {"markerfacecolor": filled}
            _band(accuracy, part, "accuracy", "epsilon", f"{name}, {noise_of}", look)
            _band(accused, part, "accused", "epsilon", "_", look, 100.0)
    picture.theory(accused, 100 * (1 - CONFIDENCE.value), "accepted", " %")
    accuracy.set(xscale="log", xlabel=r"claimed $\epsilon$", ylabel="right guesses")
    accused.set(xscale="log", xlabel=r"claimed $\epsilon$")
    accused.set(ylabel="of the audits [%]", ylim=(-3, 103))
    for ax in (accuracy, accused):
        ax.set_xticks(EPSILONS.value, [f"{epsilon:g}" for epsilon in EPSILONS.value])
        ax.minorticks_off()
    for i, deviation in enumerate(SHARED.value):
        part = data.sel(deviation=deviation)
        text = f"noise {deviation:g}"
        _band(off, part, "off", "exchanges", text, plotting.LOOKS[i])
        _band(result, part, "identified", "exchanges", text, plotting.LOOKS[i], 100.0)
    for ax in (off, result):
        ax.axvline(OWN.value[1] + 1, **picture.THIN, label="D + 1")
        ax.set(xscale="log", xlabel="exchanges")
        ax.set_xticks((1, 2, 4, 8, 20), ("1", "2", "4", "8", "20"))
        ax.minorticks_off()
    off.set(ylabel="log10 of relative error of Q")
    result.set(ylabel="of the seeds [%]", ylim=(-3, 103))
    for look, rule in zip(plotting.LOOKS, data["rule"].values, strict=False):
        numbers = statistics.summary(data.sel(rule=rule), "noise")
        noise.plot(data["rounds"], 10 ** numbers["mean"], label=rule, **look)
        ends = 10 ** numbers["low"], 10 ** numbers["high"]
        noise.fill_between(data["rounds"], *ends, color=look["color"], alpha=0.2, linewidth=0)
    noise.set(xscale="log", yscale="log", xlabel="rounds", ylabel=r"$\sigma$")
    for i, blur in enumerate(BLURS.value):
        text = f"noise {blur:g} K" if blur else "no noise"
        _band(position, data.sel(blur=blur), "distance", "told", text, plotting.LOOKS[i])
    picture.theory(position, float(data["blind"].mean()), "without temperature", " km")
    position.set(xscale="log", xlabel="records that are told", ylabel="error [km]")
    note = f"mean of {data.sizes['seed']} runs each, bands: 95 % confidence"
    return picture.finish(drawing, f"What attackers find\n{note}")


def _band(
    ax: Axes,
    data: xr.Dataset,
    name: str,
    axis: str,
    text: str,
    look: dict[str, Any],
    scale: float = 1.0,
) -> None:
    numbers = scale * statistics.summary(data, name)
    ax.plot(data[axis], numbers["mean"], label=text, **look)
    ends = numbers["low"], numbers["high"]
    ax.fill_between(data[axis], *ends, color=look["color"], alpha=0.2, linewidth=0)


# --------------------------------------------------------------------------- claims


def audits(
    name: str,
    noise_of: str,
    below: bool = False,
    epsilons: Sequence[float] = EPSILONS.value,
) -> Measure:
    """An audit's result by mechanism and epsilon; ``below``: how far it is below the allowed."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for mechanism_ in MECHANISMS:
            for epsilon in epsilons:
                where = {"mechanism": mechanism_, "epsilon": epsilon, "noise_of": noise_of}
                value = samples(studies["found"], where, name)
                most = allowed(mechanism_, epsilon) if below else 0.0
                sign = -1 if below else 1
                result[f"{mechanism_}, epsilon = {epsilon:g}"] = estimate(
                    lambda a, most=most, sign=sign: most + sign * a, value, unit=""
                )
        return result

    return measure


def accusation_rates(studies: Studies) -> dict[str, Estimate]:
    """The share of accusations over all audits of a right mechanism, which are independent."""
    accused = studies["found"]["accused"].sel(noise_of=RIGHT)
    return {
        name: estimate(lambda a: a, accused.sel(mechanism=name).mean("epsilon").values, unit="")
        for name in MECHANISMS
    }


def of(name: str, **where: object) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        value = samples(studies["found"], where, name)
        return {
            ", ".join(f"{k} = {v}" for k, v in where.items()): estimate(lambda a: a, value, unit="")
        }

    return measure


def steps(name: str, axis: str, sign: int, **where: object) -> Measure:
    """The change from one value on an axis to the next, for all other coordinates or some."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["found"][[name]].sel(where)
        rest = [d for d in data[name].dims if d not in ("seed", axis)]
        result = {}
        for labels in np.ndindex(*(data.sizes[d] for d in rest)):
            chosen = {str(d): data[d].values[i] for d, i in zip(rest, labels, strict=True)}
            places = data[axis].values
            for before, after in itertools.pairwise(places):
                pair = [samples(data, chosen | {axis: value}, name) for value in (after, before)]
                text = ", ".join(map(str, chosen.values()))
                result[f"{text}{'; ' if text else ''}{axis} {before} to {after}"] = estimate(
                    lambda a, b: sign * (a - b), *pair, unit=""
                )
        return result

    return measure


FIGURE = Figure(
    name="jung-audit",
    title="What trained attackers and curious peers find",
    source="Jung 2025, section 9.2, (190), exercises 9.1, 9.3 and 9.4",
    caption="(a), (b): a logistic regression is trained on releases of two neighboring data sets. "
    "It is to find a mechanism that adds half of its noise, and may accuse a right one as rarely "
    "as its confidence says; randomized response is exactly as private as is claimed. Of Gaussian "
    "noise the claim at epsilon zero is on trial: that at delta = 1e-5 allows so much that half of "
    "the noise is not seen by guesses. (c), (d): Bob sends messages that he chose and hears "
    "Alice's models, under the noise of (190). (e): what a budget over all rounds calls for, if "
    f"labels differ by one. (f): {RECORDS.value}; a record is placed where those of like hour and "
    "temperature are.",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "right-mechanisms-keep-the-threshold",
            "no attacker is right more often than (e^eps + delta) / (1 + e^eps)",
            "(180), section 9.2 (threshold derived)",
            audits("accuracy", RIGHT, below=True),
            (-0.01, 1),
            "mean accuracy at most 0.01 above: randomized response attains it",
            condition="three mechanisms, a logistic regression",
        ),
        Claim(
            "a-fault-is-found",
            "an attacker who is right more often refutes the claim: half of the noise is found",
            "section 9.2, how to be sure",
            audits("accused", FAULTY, epsilons=JUDGED.value),
            (0.5, 1),
            "in more than half of the audits at epsilon 1 and 2",
            condition=f"{TRIALS.value} releases; at other epsilons they may be too few, see (b)",
        ),
        Claim(
            "a-fault-is-found-at-all",
            "half of the noise is found at every epsilon",
            "section 9.2, how to be sure",
            audits("accused", FAULTY),
            (0.5, 1),
            "in more than half of the audits",
            condition=f"{TRIALS.value} releases",
            note="At a small epsilon the two data sets are told apart a little more often than by "
            "a coin, with the noise or with half of it, and so many releases do not show the "
            "difference. That an attacker finds nothing says nothing.",
        ),
        Claim(
            "right-mechanisms-are-accused-rarely",
            "a right mechanism is accused as rarely as the confidence says",
            "section 9.2, how to be sure (exact binomial)",
            accusation_rates,
            (0, 1 - CONFIDENCE.value),
            "at most 5 %, all epsilons together",
            ours=True,
        ),
        Claim(
            "d-plus-one-exchanges",
            "D + 1 exchanges give Alice's loss",
            "exercise 9.1, (129), (130)",
            of("off", deviation=0.0, exchanges=OWN.value[1] + 1),
            (-INFINITE, -9),
            "a relative error below 1e-9 on average; 1e-16 in one instance",
            condition="her step size and the weight of the edge are known",
            ours=True,
        ),
        Claim(
            "fewer-exchanges-do-not",
            "D exchanges do not",
            "exercise 9.1",
            of("off", deviation=0.0, exchanges=OWN.value[1]),
            (-3, 1),
            "a relative error above 1e-3 on average",
            condition="no other knowledge",
            ours=True,
        ),
        Claim(
            "her-station-is-found",
            "then her station is found among all",
            "exercise 9.1",
            of("identified", deviation=0.0, exchanges=OWN.value[1] + 1),
            (0.999, 1.001),
            "in every run",
            condition=f"{STATIONS.value} stations of different data",
            ours=True,
        ),
        Claim(
            "noise-hides-it",
            "noise on what she shares hides it",
            "(190)",
            of("identified", deviation=SHARED.value[-1], exchanges=OWN.value[1] + 1),
            (0, 0.2),
            "found in fewer than one run of five",
            condition=f"a deviation of {SHARED.value[-1]:g}, D + 1 exchanges",
        ),
        Claim(
            "rounds-cost-noise",
            "the more rounds, the more noise for the same budget",
            "(190), composition",
            steps("noise", "rounds", 1),
            (0, INFINITE),
            "log10 of sigma rises with rounds",
            construction="a budget is shared among the rounds",
        ),
        Claim(
            "coupling-saves-noise",
            "coupled more strongly, a model forgets faster and needs less noise",
            "section 10.3, (190)",
            steps(
                "noise",
                "rule",
                -1,
                rounds=ROUNDS.value[-1],
                rule=[f"alpha = {coupling:g}, own model kept" for coupling in COUPLINGS.value],
            ),
            (0, INFINITE),
            f"log10 of sigma over {ROUNDS.value[-1]} rounds falls with alpha",
            condition="a client steps from its own model, without noise, and the step is the same",
            ours=True,
        ),
        Claim(
            "temperature-tells-the-place",
            "time and temperature tell where a record is from",
            "exercise 9.3",
            lambda studies: {
                "all records": estimate(
                    lambda a, b: b - a,
                    samples(studies["found"], {"blur": 0.0, "told": SUBSETS.value[-1]}, "distance"),
                    samples(studies["found"], {}, "blind"),
                    unit="km",
                )
            },
            (50, INFINITE),
            "at least 50 km nearer than the mean of all places",
            condition="nearest records, four days",
            ours=True,
        ),
        Claim(
            "fewer-records-tell-less",
            "with fewer records the error rises",
            "exercise 9.4",
            steps("distance", "told", -1, blur=0.0),
            (0, INFINITE),
            "km from subset to subset, without noise",
            condition="nearest records",
            ours=True,
        ),
        Claim(
            "noisy-records-tell-less",
            "with more noise the error rises",
            "exercise 9.4",
            steps("distance", "blur", 1),
            (0, INFINITE),
            "km from noise to noise, whatever the subset",
            condition="nearest records",
            ours=True,
        ),
    ],
    settings=(
        *(EPSILONS, DELTA, TRIALS, FAULT, CONFIDENCE, STATIONS, OWN, STEP, EXCHANGES, SHARED),
        *(JUDGED, MOST, ROUNDS, COUPLINGS, BUDGET, RECORDS, SUBSETS, BLURS, TESTED, NEAREST),
    ),
)
