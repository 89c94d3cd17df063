"""Jung 2025: gradient steps, exact and perturbed (chapter 4, Figures 4.2 and 4.3)."""

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.conventions import LITTLE, order
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.jung import solutions
from experiments.measures import estimate, gap, joined, samples
from fljax import plotting, statistics
from fljax.algorithms import OnlineFed
from fljax.optimization.descent import Extremes, rounds_needed
from fljax.theory import network_rates

SIZE = Setting("samples, parameters", (50, 5), "a linear regression whose errors fall within view")
STEPS = Setting("steps", 60, "the best rate then comes to the rounding of double precision")
RATES = Setting(
    "learning rates over the limit (85)",
    (0.001, 0.5, 1.05),
    "far too small, half of the limit, and just beyond it",
)
SWEPT = Setting(
    "(b) learning rates over the limit", tuple(np.linspace(0.05, 1.1, 22).tolist()), "and beyond it"
)
ACCURACIES = Setting("accuracies", (1e-2, 1e-4, 1e-6), "of (82), of the distance of the start")
SHAKEN = Setting("norm of a perturbation", 0.01, "of every step, over the distance of the start")
BITS = Setting("bits a number and step", (3, 4, 5, 6, 7, 8), "on average: what is shared out")
ROUNDINGS = Setting(
    "rounding of gradients",
    ("to the nearest", "at random"),
    "the exercise leaves it open; at random an entry is right on average",
)
SPENT = Setting("steps of a budget of bits", 30, "many times as many as it takes to forget a step")
STREAM = Setting(
    "Exercise 4.3: truth, variance of the noise", (1.0, 0.5), "one parameter, input N(0, 1)"
)
SEEN = Setting("samples of the stream", 2000, "two decades beyond the 5 of the schedules")
NODES = Setting("Exercise 4.4: nodes, degree", (20, 4), "not given; random and connected")
AVERAGED = Setting("steps of averaging", 400, "all networks are then at their own rate")
OVER = Setting(
    "(f) learning rates over 2 / lambda_n", tuple(np.linspace(0.1, 1.0, 19).tolist()), "up to it"
)

SMALL, GOOD, LARGE = (f"{rate:g} of the limit" for rate in RATES.value)
RANDOM = "random directions"
SLOWEST = "slowest direction"
LATE = "more bits later"
EVEN = "as many in each"
EARLY = "more bits earlier"
FAST = "1/(t + 5)"
SLOW = "1/√(t + 5)"
SCHEDULES = {FAST: lambda t: 1 / (t + 5), SLOW: lambda t: 1 / jnp.sqrt(t + 5)}
NEAREST, AT_RANDOM = ROUNDINGS.value
APART = "distance"
#: The step after which one factor remains, and the part of the start below which it is rounding.
SETTLED = 20
CLEAR = 1e-5

# --------------------------------------------------------------------------- one quadratic function


def quadratic(key: Array) -> tuple[Array, Array, Array, Extremes]:
    """Q, the minimizer, the eigenvectors of Q, and its extreme eigenvalues."""
    count, dim = SIZE.value
    k_features, k_labels = jax.random.split(key)
    x = jax.random.normal(k_features, (count, dim))
    y = jax.random.normal(k_labels, (count,))
    q = x.T @ x / count
    values, vectors = jnp.linalg.eigh(q)
    best = jnp.linalg.solve(q, x.T @ y / count)
    return q, best, vectors, Extremes(values[0], values[-1])


def descended(q: Array, best: Array, rate: Array, start: Array, shaken: Array) -> Array:
    """``[T, D]``: points less the minimizer after each step (87), perturbed by ``[T, D]``."""

    def step(w: Array, added: Array) -> tuple[Array, Array]:
        w = w - rate * 2 * (q @ (w - best)) + added
        return w, w - best

    return jax.lax.scan(step, start, shaken)[1]


def norms(points: Array) -> Array:
    return jnp.sqrt(jnp.sum(points**2, axis=-1))


def measured(key: Array) -> dict[str, Array]:
    """All measured quantities of one function."""
    k_function, k_shaken, k_round = jax.random.split(key, 3)
    q, best, vectors, ends = quadratic(k_function)
    zero = jnp.zeros_like(best)
    count = STEPS.value
    still = jnp.zeros((count, len(best)))
    first = norms(best)

    def height(rate: Array) -> Array:
        off = descended(q, best, rate * ends.step_limit, zero, still)
        return jnp.einsum("td,de,te->t", off, q, off) / (best @ q @ best)

    def falling(rate: Array) -> tuple[Array, Array]:
        """The factor of a late step from the worst start, and the largest over (81) from zero."""
        rate = rate * ends.step_limit
        worst = norms(descended(q, best, rate, best + vectors[:, 0] + vectors[:, -1], still))
        size = jnp.concatenate([first[None], norms(descended(q, best, rate, zero, still))])
        clear = size[:-1] > CLEAR * first
        ratio = jnp.where(clear, size[1:] / jnp.where(clear, size[:-1], 1), 0)
        return worst[SETTLED] / worst[SETTLED - 1], jnp.max(ratio) / ends.factor(rate)

    late, over = jax.lax.map(falling, jnp.asarray(SWEPT.value))
    goal = jnp.asarray(ACCURACIES.value)
    of_each = jnp.ones_like(goal)
    needed = rounds_needed(of_each, goal, ends.best_factor * of_each).astype(int)
    best_run = norms(descended(q, best, ends.best_step, zero, jnp.zeros((200, len(best)))))
    rate = ends.step_limit / 2
    drawn = jax.random.normal(k_shaken, still.shape)
    size = SHAKEN.value * first
    shaken = jnp.stack(
        [
            size * drawn / norms(drawn)[:, None],
            jnp.broadcast_to(size * vectors[:, 0], still.shape),
        ]
    )
    runs = jax.lax.map(lambda added: norms(descended(q, best, rate, best, added)), shaken)
    sizes = jnp.full(count, size)
    added = jax.random.uniform(k_round, (SPENT.value, len(best)))
    bounds = [
        network_rates.perturbed_bound(ends.factor(rate), 0.0, sizes, printed=printed)
        for printed in (False, True)
    ]
    return {
        "height": jax.lax.map(height, jnp.asarray(RATES.value)),
        "late": late,
        "factor": ends.factor(jnp.asarray(SWEPT.value) * ends.step_limit),
        "over": over,
        "best_rate": ends.best_step / ends.step_limit,
        "reached": best_run[needed - 1] / (goal * first),
        "needed": needed,
        "shaken": runs / first,
        "repaired": bounds[0] / first,
        "printed": bounds[1] / first,
        "quantized": jax.vmap(
            lambda noise: jax.vmap(lambda bits: quantized(q, best, ends, bits, noise))(budgets())
        )(jnp.stack([jnp.full(added.shape, 0.5), added])),
    }


def budgets() -> Array:
    """``[B * 3, T]``: bits of each step, of every mean; none has less than one."""
    share = np.linspace(-1, 1, SPENT.value)
    plans = []
    for mean in BITS.value:
        rising = mean + (mean - 1) * share
        plans += [rising, np.full(SPENT.value, mean), rising[::-1]]
    return jnp.asarray(np.stack(plans))


def quantized(q: Array, best: Array, ends: Extremes, bits: Array, added: Array) -> Array:
    """The squared error where gradients are rounded to ``2^bits`` levels, over that of the start.

    The spacing of levels follows from the largest entry of the first gradient. Adding a half
    before rounding down rounds to the nearest level; adding a uniform number rounds without bias.
    """
    widest = jnp.max(jnp.abs(2 * q @ best))

    def step(w: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        bit, more = inputs
        level = 2 * widest / 2**bit
        gradient = level * jnp.floor(2 * q @ (w - best) / level + more)
        return w - ends.best_step * gradient, None

    off = jax.lax.scan(step, jnp.zeros_like(best), (bits, added))[0] - best
    return (off @ off) / (best @ best)


# --------------------------------------------------------------------------- averaging


def averaged(key: Array) -> dict[str, Array]:
    """Exercise 4.4: how fast numbers come to their mean by every rate."""
    k_graph, k_numbers = jax.random.split(key)
    graph = fl.graphs.random_connected(k_graph, *NODES.value)
    laplacian = graph.laplacian_matrix()
    ends = network_rates.consensus_extremes(graph)
    numbers = jax.random.normal(k_numbers, (graph.nodes,))
    mean = jnp.mean(numbers)

    _, vectors = jnp.linalg.eigh(laplacian)
    worst = mean + vectors[:, 1] + vectors[:, -1]

    def distances(rate: Array, start: Array) -> Array:
        def step(u: Array, _: None) -> tuple[Array, Array]:
            u = u - rate * laplacian @ u
            return u, norms(u - mean)

        return jax.lax.scan(step, start, length=AVERAGED.value)[1]

    def factor(rate: Array) -> Array:
        size = distances(rate, worst)
        return size[SETTLED] / size[SETTLED - 1]

    rates = jnp.asarray(OVER.value) * ends.step_limit
    left = distances(ends.best_step, numbers)[-1] ** 2 / jnp.sum((numbers - mean) ** 2)
    return {"factor": jax.lax.map(factor, rates), "said": ends.factor(rates), "left": left}


# --------------------------------------------------------------------------- study

_DISTANCE = fl.metrics.Metric(
    APART, lambda now: jnp.sum((now.model[0] - STREAM.value[0]) ** 2), "excess risk", decibel=True
)


def online(effort: Effort) -> xr.Dataset:
    """Exercise 4.3, and the exact mean of the excess risk by its recursion."""
    truth, noise = STREAM.value
    stream = fl.streams.Linear(np.ones((1, 1, 1)), np.array([truth]), np.array([noise]))
    parts = []
    for name, schedule in SCHEDULES.items():

        def build(key: Array, schedule=schedule) -> fl.Simulation:
            twice = OnlineFed(lambda n: 2 * schedule(n))  # its own step has no 2
            return fl.Simulation(stream, twice, metrics=[_DISTANCE])

        build.__qualname__ = f"online({name})"
        run = effort.sweep(
            name.replace("/", " over "), build, rounds=SEEN.value, seeds=effort.seeds
        )
        rate = np.asarray([schedule(t) for t in run["round"].values], float)
        error = truth**2
        exact = []
        for eta in rate:
            error = (1 - 4 * eta + 12 * eta**2) * error + 4 * eta**2 * noise
            exact.append(error)
        parts.append(run[[APART, "diverged"]].assign(exact=("round", exact)))
    return joined(*parts, axis="schedule").assign_coords(schedule=[*SCHEDULES])


def study(effort: Effort) -> Studies:
    keys, _ = solutions.seeds(effort)
    result = solutions.solved(measured, keys)
    plans = result["quantized"].reshape(len(keys), 2, len(BITS.value), 3)
    names = {
        "height": (("rate", "step"), "f over its minimum", True),
        "late": (("swept",), "factor of a step", False),
        "factor": (("swept",), "contraction factor (81)", False),
        "over": (("swept",), "largest factor of a step over (81)", False),
        "best_rate": ((), "best rate over the limit", False),
        "reached": (("accuracy",), "distance after the steps of (82) over the accuracy", False),
        "needed": (("accuracy",), "steps of (82)", False),
        "shaken": (("kind", "step"), "distance", False),
        "repaired": (("step",), "bound", False),
        "printed": (("step",), "bound (88)", False),
        "quantized": (("rounding", "mean_bits", "plan"), "squared error", True),
    }
    axes = {
        "rate": [SMALL, GOOD, LARGE],
        "swept": [*SWEPT.value],
        "accuracy": [*ACCURACIES.value],
        "kind": [RANDOM, SLOWEST],
        "mean_bits": [*BITS.value],
        "rounding": [NEAREST, AT_RANDOM],
        "plan": [LATE, EVEN, EARLY],
        "step": list(range(1, STEPS.value + 1)),
    }
    labels = {"mean_bits": "bits a number and step, on average"}
    descents = solutions.dataset(result | {"quantized": plans}, names, axes, labels)
    of_graphs = solutions.solved(averaged, keys)
    names = {
        "factor": (("rate",), "factor of a step", False),
        "said": (("rate",), "factor by the eigenvalues", False),
        "left": ((), "squared distance from the mean", True),
    }
    averages = solutions.dataset(of_graphs, names, {"rate": [*OVER.value]})
    return {"descents": descents, "averages": averages, "online": online(effort)}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "learning rates, Figure 4.2",
        "contraction, Figure 4.3",
        "perturbed steps",
        "bits, Exercise 4.6",
        "online, Exercise 4.3",
        "averaging, Exercise 4.4",
    )
    drawing, (rates, factor, shaken, bits, online_, average) = picture.panels(titles, height=2.2)
    data = studies["descents"]
    for i, rate in enumerate((SMALL, GOOD, LARGE)):
        level = statistics.decibels(data["height"].sel(rate=rate).mean("seed").values)
        rates.plot(data["step"], level, label=rate, **picture.look(i))
    rates.set(xlabel="step", ylabel="f above its minimum [dB]", ylim=(-150, 20))
    _band(factor, data, "swept", "late", "measured, worst start", 0)
    curve = data["factor"].mean("seed").values
    picture.predicted_curve(factor, data["swept"].values, curve, "(81), mean")
    at = float(data["best_rate"].mean())
    factor.axvline(
        at, color="#333333", linewidth=0.8, linestyle="--", label=f"(83), mean: {at:.2g}"
    )
    factor.axhline(1, color="#999999", linewidth=0.6)
    factor.set(xlabel="learning rate over the limit (85)", ylabel="factor of a step")
    for i, kind in enumerate((RANDOM, SLOWEST)):
        _band(shaken, data.sel(kind=kind), "step", "shaken", kind, i)
    for name, text, line in (
        ("repaired", "(88), repaired", (0, (6, 2))),
        ("printed", "(88), printed", (0, (1, 1.5))),
    ):
        curve = data[name].mean("seed").values
        picture.predicted_curve(shaken, data["step"].values, curve, text, linestyle=line)
    shaken.set(xlabel="step", ylabel="distance over that of 0")
    for index, plan in enumerate((LATE, EVEN, EARLY)):
        look = {key: plotting.LOOKS[index][key] for key in ("color", "marker")}
        for rounding, line, text in ((AT_RANDOM, "-", plan), (NEAREST, "--", "_")):
            part = data["quantized"].sel(plan=plan, rounding=rounding)
            level = statistics.decibels(part.mean("seed").values)
            bits.plot(part["mean_bits"], level, label=text, linestyle=line, **look)
    bits.plot([], [], "k--", label=f"rounded {NEAREST}")
    bits.set(xlabel="bits a number and step, on average", ylabel="squared error [dB]")
    stream = studies["online"]
    plotting.learning_curves(stream, APART, "schedule", online_)
    for i, name in enumerate(SCHEDULES):
        level = statistics.decibels(stream["exact"].sel(schedule=name).values)
        text = "exact mean" if i == 0 else "_"
        picture.predicted_curve(online_, stream["round"].values, level, text)
    online_.set(xscale="log", xlabel="sample t", ylabel="excess risk [dB]")
    data = studies["averages"]
    _band(average, data, "rate", "factor", "measured", 0)
    curve = data["said"].mean("seed").values
    picture.predicted_curve(average, data["rate"].values, curve, "by eigenvalues, mean")
    average.set(xlabel=r"learning rate over $2/\lambda_n$", ylabel="factor of a step")
    return picture.finish(drawing, "Gradient steps on functions, networks and streams")


def _band(ax: Axes, data: xr.Dataset, axis: str, name: str, text: str, index: int) -> None:
    numbers = statistics.summary(data, name)
    look = picture.look(index)
    ax.plot(data[axis], numbers["mean"], label=text, **look)
    ends = numbers["low"], numbers["high"]
    ax.fill_between(data[axis], *ends, color=look["color"], alpha=0.2, linewidth=0)


# --------------------------------------------------------------------------- claims


def last_height(rate: str) -> Measure:
    """How far f is above its minimum after all steps, over that at the start, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        height = studies["descents"]["height"].sel(rate=rate).isel(step=-1).values
        return {rate: estimate(statistics.decibels, height)}

    return measure


def fallen(studies: Studies) -> dict[str, Estimate]:
    """By how much f above its minimum falls with the smallest rate, dB."""
    height = studies["descents"]["height"].sel(rate=SMALL).isel(step=-1).values
    return {SMALL: estimate(lambda a: -statistics.decibels(a), height)}


def largest(name: str, axis: str, below: float = INFINITE) -> Measure:
    """The largest of all functions, by a value of an axis."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = studies["descents"][name].max("seed")
        return {
            f"{at:g}": Estimate.exact(float(result.sel({axis: at})), "")
            for at in result[axis].values
            if at < below
        }

    return measure


def best_is_best(studies: Studies) -> dict[str, Estimate]:
    """The least factor of all swept rates less that of (83), of each function."""
    data = studies["descents"]
    ratio = (1 / data["best_rate"] - 1).values  # of the smallest eigenvalue to the largest
    best = (1 - ratio) / (1 + ratio)
    least = data["late"].transpose("seed", "swept").values.min(axis=1)
    return {"least of the sweep": Estimate.exact(float((least - best).min()), "")}


def over_bound(name: str) -> Measure:
    """The largest distance over the bound, of all steps of all functions."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["descents"]
        ratio = (data["shaken"] / data[name]).max(["seed", "step"])
        return {
            kind: Estimate.exact(float(ratio.sel(kind=kind)), "") for kind in ratio["kind"].values
        }

    return measure


def bits_above(over: str, under: str) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["descents"]["quantized"]
        return {
            f"{mean} bits, rounded {rounding}": gap(
                *(data.sel(mean_bits=mean, plan=p, rounding=rounding).values for p in (over, under))
            )
            for rounding in (AT_RANDOM, NEAREST)
            for mean in BITS.value
        }

    return measure


def decay(name: str) -> Measure:
    """The slope of the logarithms of the exact mean over the last decade of samples."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["online"].sel(schedule=name)
        t = 5 + data["round"].values
        late = t >= t[-1] / 10
        exponent, _ = np.polyfit(np.log(t[late]), np.log(data["exact"].values[late]), deg=1)
        return {name: Estimate.exact(float(exponent), "")}

    return measure


def within_bound(studies: Studies) -> dict[str, Estimate]:
    """The mean excess risk over 8 (|w|^2 + noise) times the schedule, where it is largest."""
    truth, noise = STREAM.value
    result = {}
    data = studies["online"]
    for name, schedule in SCHEDULES.items():
        bound = 8 * (truth**2 + noise) * np.asarray([schedule(t) for t in data["round"].values])
        ratio = data["exact"].sel(schedule=name).values / bound
        at = int(ratio.argmax())
        runs = samples(data, {"schedule": name}, APART)[:, at] / bound[at]
        result[f"{name}, t = {at + 1}"] = estimate(lambda a: a, runs, unit="")
    return result


def averages(name: str) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["averages"]
        if name == "left":
            return {"best rate": estimate(statistics.decibels, data["left"].values)}
        difference = abs(data["factor"] - data["said"]).max("seed")
        return {
            f"{at:.2g} of the limit": Estimate.exact(float(difference.sel(rate=at)), "")
            for at in OVER.value
        }

    return measure


FIGURE = Figure(
    name="jung-descent",
    title="Gradient steps: learning rates, perturbations, bits",
    source="Jung 2025, chapter 4, Figures 4.2 and 4.3, Exercises 4.3, 4.4 and 4.6",
    caption="(a) to (d) gradient descent (77) on the training error of a linear regression that is "
    "drawn with every seed. (a) three learning rates. (b) the factor by which a step brings the "
    "solution nearer, and (81). (c) from the solution with a perturbation of a hundredth of its "
    "norm in every step (87), in random directions or in that which contracts least, and the "
    "bound (88). (d) the error after 30 steps whose gradients are rounded to so many bits on "
    "average: right on average, or, dashed, to the nearest. (e) online descent on a stream of "
    "samples, and its exact mean. (f) averaging over a random network (101).",
    study=study,
    plot=plot,
    double=True,
    claims=[
        Claim(
            "too-large-overshoots",
            "if the learning rate is too large, iterates diverge from the optimum",
            "section 4.2, Figure 4.2",
            last_height(LARGE),
            (0, INFINITE),
            f"{LARGE}: f above its minimum after all steps over that at the start",
        ),
        Claim(
            "too-small-is-negligible",
            "if it is too small, steps make negligible progress within a budget of them",
            "section 4.2, Figure 4.2",
            fallen,
            *LITTLE.db.when(f"{SMALL}: by how much f above its minimum falls in all steps"),
        ),
        Claim(
            "contraction",
            "every gradient step brings the solution nearer by (81)",
            "(80), (81), section 4.3",
            largest("over", "swept"),
            (0, 1 + 1e-9),
            "the largest factor of a step over (81), of all functions",
        ),
        Claim(
            "best-rate",
            "the learning rate (83) has the smallest factor",
            "(83), section 4.3",
            best_is_best,
            (-0.01, INFINITE),
            f"no rate of the sweep has a smaller one in step {SETTLED} from the worst start, up to "
            "a hundredth, since beside it two eigenvalues are at work",
        ),
        Claim(
            "steps-needed",
            "(82) steps ensure the accuracy",
            "(82), section 4.3",
            largest("reached", "accuracy"),
            (0, 1 + 1e-9),
            "the largest distance after them over the accuracy, at the rate (83)",
        ),
        Claim(
            "perturbed-as-printed",
            "(88) bounds the distance after any number of perturbed steps",
            "(88), section 4.4",
            over_bound("printed"),
            (0, 1 + 1e-9),
            "the largest distance over the bound, of all steps of all functions",
            note="The last perturbation is not multiplied by the factor yet: the exponent is to "
            "be one less.",
        ),
        Claim(
            "perturbed-repaired",
            "and does with exponents smaller by one",
            "(88), section 4.4",
            over_bound("repaired"),
            (0, 1 + 1e-9),
            "likewise",
            ours=True,
        ),
        Claim(
            "bits-late",
            "bits are better spent on late gradients than evenly",
            "Exercise 4.6, which asks",
            bits_above(EVEN, LATE),
            (0, INFINITE),
            "the error where all steps have as many above that where they rise, dB",
            ours=True,
        ),
        Claim(
            "bits-not-early",
            "and better evenly than on early ones",
            "Exercise 4.6, which asks",
            bits_above(EARLY, EVEN),
            (0, INFINITE),
            "the error where they fall above that where all steps have as many, dB",
            ours=True,
            note=f"Rounded {NEAREST}, a coarse late gradient is zero, and the step does nothing: "
            "what the early ones reached stays. Only rounding that is right on average perturbs "
            "each step as (88) has it.",
        ),
        Claim(
            "online-bounds",
            "the excess risk is at most 8 (|w|² + noise) times the learning rate",
            "Exercise 4.3, which asks for bounds",
            within_bound,
            (0, 1),
            "where the exact mean comes nearest to the bound",
            ours=True,
        ),
        Claim(
            "online-fast",
            "with 1/(t + 5) it falls as 1/t",
            "Exercise 4.3, which asks for bounds",
            decay(FAST),
            *order(-1).when("of the exact mean, over the last decade of samples"),
            ours=True,
        ),
        Claim(
            "online-slow",
            "with 1/√(t + 5) as its root",
            "Exercise 4.3, which asks for bounds",
            decay(SLOW),
            *order(-0.5).when("of the exact mean, over the last decade of samples"),
            ours=True,
        ),
        Claim(
            "limit-is-the-average",
            "(101) comes to the average of the numbers at all nodes",
            "Exercise 4.4, which asks for the limit",
            averages("left"),
            (-INFINITE, -60),
            f"60 dB nearer after {AVERAGED.value} steps at the rate 2/(λ₂ + λₙ)",
            ours=True,
        ),
        Claim(
            "averaging-factor",
            "but for the mean, which it keeps, it contracts by the extreme eigenvalues of the "
            "Laplacian",
            "Exercise 4.4, which asks for a contraction",
            averages("factor"),
            (0, 0.02),
            "the largest distance of a late step's factor from max |1 - ηλ|, of all networks",
            ours=True,
        ),
    ],
    settings=(
        *(
            SIZE,
            STEPS,
            RATES,
            SWEPT,
            ACCURACIES,
            SHAKEN,
            BITS,
            ROUNDINGS,
            SPENT,
            STREAM,
            SEEN,
            NODES,
        ),
        *(AVERAGED, OVER),
    ),
)
