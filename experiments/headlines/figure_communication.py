"""Compressed messages to a server: exact limits, rates of theorems, error feedback, low rank."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import (
    DOUBLE,
    EXACT,
    LEVELS,
    METRIC,
    bound,
    final,
    first_below,
    in_the_median,
    late_gap,
    unlike,
)
from experiments.measures import (
    each_mean,
    joined,
    last,
    last_part,
    of_few,
    samples,
    scenario_key,
)
from fljax import algorithms as A
from fljax import plotting, statistics
from fljax.problems.batches import Uniform
from fljax.problems.solvers import smoothness, strong_convexity
from fljax.theory import compression

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "the papers have 10 to 100")
SAMPLES = Setting("samples a client", 40, "of least squares with a squared norm")
DIM = Setting("parameters", 20, "a compressor then leaves most of a message out")
SPREAD = Setting("spread of the clients' models", 1.0, "as far apart as from zero")
SCALES = Setting(
    "least standard deviation of a feature",
    0.01,
    "of the largest: the objective's least curvature is then that of the norm, which theorems need",
)
STRENGTH = Setting(
    "strength of the norm, in (a) and (b), and in (c) and (d)",
    (2.0, 0.1),
    "condition numbers near 10, and of hundreds where the promise is how rounds grow with them",
)
SENT = Setting("numbers of a compressed message", 4, "a fifth: omega = 4, alpha = 0.2")
ACCELERATED = Setting("numbers of a message in (d)", 10, "a half: omega = 1")
PLACES = Setting("rounds of (a) to (c)", 20000, "the slowest is exact then")
LONG = Setting("rounds of (d)", 20000, "DIANA is near a millionth then")
LEVEL = Setting("level of numbers of rounds and bits", -60.0, "dB: a millionth of the start")
FALLING = Setting(
    "step of (e)",
    (0.02, 0.5),
    "the first over the power of the round; gradients of single samples",
)
DECADES = Setting("rounds of (e)", 10000, "four decades")
NETWORK = Setting("hidden units of (f)", 32, "a matrix of 196 by 32 and one of 32 by 10")
TRAINING = Setting("step and batch of (f)", (0.1, 8), "of ten clients with unlike digits")
EPOCHS = Setting("rounds of (f)", 400, "the accuracy has nearly settled")
RANKS = Setting("ranks of PowerSGD", (1, 2, 4), "the paper has 1, 2 and 4", given=True)
LOCAL = Setting(
    "local steps of TAMUNA and Scaffnew",
    (2, 4, 8, 16, 32),
    "each has its best number of them; the root of the condition number is near 16",
)
PARTLY = Setting("TAMUNA's participants and copies", (10, 2), "half of the clients; the least")
SEEDS = Setting("seeds", 30, "at most")

RAND = fl.link.RandomK(SENT.value)
TOP = fl.link.TopK(SENT.value)
HALF = fl.link.RandomK(ACCELERATED.value)
OMEGA = RAND.variance(DIM.value)
ALPHA = TOP.contraction(DIM.value)

DESCENT = "gradient descent"
WITHOUT = "without differences"
FORGETS = "without memory"


# --------------------------------------------------------------------------- scenarios


def problem_of(key: Array, strength: float = STRENGTH.value[0]) -> fl.problems.Problem:
    scales = jnp.logspace(0, np.log10(SCALES.value), DIM.value)
    data = unlike(key, CLIENTS.value, SAMPLES.value, DIM.value, SPREAD.value, scales)
    norm = fl.problems.SquaredL2()
    return fl.problems.Problem(data.features, data.targets, data.loss, norm, strength)


def curvatures(problem: fl.problems.Problem) -> dict[str, Array]:
    """Smoothness of the mean objective, the root of the mean square and the largest of the
    clients', and the least curvature.
    """
    rows = problem.features.reshape(1, -1, problem.features.shape[-1])
    together = fl.problems.Problem(
        rows, problem.targets.reshape(1, -1), problem.loss, problem.regularizer, problem.strength
    )
    each = smoothness(problem)
    mean = smoothness(together)[0]
    return {
        "mean": mean,
        # Each is overestimated by some percent, so that its order may be lost.
        "root": jnp.maximum(mean, jnp.sqrt(jnp.mean(each**2))),
        "largest": jnp.maximum(mean, jnp.max(each)),
        "least": jnp.min(strong_convexity(problem)),
    }


def rate(name: str, problem: fl.problems.Problem) -> compression.CompressedRate:
    """The step size and the factor of a method's theorem."""
    of = curvatures(problem)
    count = CLIENTS.value
    if name == "EF21":
        return compression.ef21(of["mean"], ALPHA, of["least"], of["root"])
    if name == "DIANA":
        return compression.diana(of["largest"], OMEGA, count, of["least"])
    if name == "MARINA":
        return compression.marina(of["root"], OMEGA, count, convexity=of["least"])
    return compression.dasha(of["mean"], OMEGA, count, of["least"], of["root"])


def with_theory(name: str, problem: fl.problems.Problem) -> A.Algorithm:
    """A method with the step size of its theorem."""
    if name in ("EF-SGD", FORGETS, "EF21-BC"):
        step = rate("EF21", problem).step_size
        if name == "EF21-BC":
            return A.EF21BC(step / 2, compression=TOP, downlink=TOP)
        return A.EFSGD(step, compression=TOP) if name == "EF-SGD" else A.FedAvg(step)
    if name == WITHOUT:
        step = rate("DIANA", problem).step_size
        return A.DIANA(step, compression=RAND, memory_step_size=0.0)
    if name == DESCENT:
        return A.FedAvg(1 / curvatures(problem)["mean"])
    of = rate(name, problem)
    build: dict[str, Callable[[], A.Algorithm]] = {
        "EF21": lambda: A.EF21(of.step_size, compression=TOP),
        "DIANA": lambda: A.DIANA(of.step_size, compression=RAND),
        "MARINA": lambda: A.MARINA(of.step_size, compression=RAND, probability=of.probability),
        "DASHA": lambda: A.DASHA(of.step_size, compression=RAND),
    }
    return build[name]()


def constant(key: Array, name: str) -> fl.Simulation:
    problem = problem_of(key)
    outside = TOP if name == FORGETS else None
    return fl.Simulation(problem, with_theory(name, problem), compression=outside, metrics=[METRIC])


def local(key: Array, name: str) -> fl.Simulation:
    """TAMUNA and Scaffnew with steps of the inverse of the largest curvature; the name ends with
    the number of local steps.
    """
    method, steps = name.split()
    problem = problem_of(key, STRENGTH.value[1])
    step = 1 / curvatures(problem)["largest"]
    participants, copies = PARTLY.value
    algorithm = (
        A.TAMUNA(step, participants, sparsity=copies, local_steps=int(steps))
        if method == "TAMUNA"
        else A.Scaffnew(step, 1 / int(steps))
    )
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


def accelerated(key: Array, name: str) -> fl.Simulation:
    problem = problem_of(key, STRENGTH.value[1])
    of = curvatures(problem)
    omega = HALF.variance(DIM.value)
    if name == "DIANA":
        step = compression.diana(of["largest"], omega, CLIENTS.value).step_size
        algorithm = A.DIANA(step, compression=HALF)
    else:
        numbers = compression.adiana(of["largest"], of["least"], omega, CLIENTS.value)
        algorithm = A.ADIANA(
            numbers.step_size,
            compression=HALF,
            convexity=of["least"],
            probability=numbers.probability,
        )
    return fl.Simulation(problem, algorithm, metrics=[METRIC])


def stochastic(key: Array, name: str) -> fl.Simulation:
    """Single samples and falling steps."""
    problem = unlike(key, CLIENTS.value, SAMPLES.value, DIM.value, SPREAD.value)
    initial, power = FALLING.value
    step = fl.schedules.PowerDecay(initial, power)
    single: dict[str, Any] = {"local_steps": 1, "batch": 1}
    if name == "EF-SGD":
        algorithm: A.Algorithm = A.EFSGD(step, compression=TOP, **single)
    else:
        algorithm = A.FedAvg(step, **single)
    outside = TOP if name == FORGETS else None
    return fl.Simulation(problem, algorithm, compression=outside, metrics=[METRIC])


def images(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    pictures, digits = fl.data.mnist_sample()[1:3]
    pool = pictures.reshape(len(pictures), -1) / 255, digits, fl.problems.Softmax(10)
    problem = fl.problems.Model.from_pool(
        fl.models.mlp(10, [NETWORK.value]),
        key,
        *pool,
        fl.partitions.EqualDirichlet(0.3),
        clients=10,
        held_out=0.2,
    )
    return fl.Simulation(problem, algorithm, metrics=["accuracy"])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)

    def run(part: str, scenario: Any, names: tuple[str, ...], rounds: int, every: int) -> Any:
        """The methods side by side; each is a program of its own."""
        rounds = min(rounds, 400) if effort.quick else rounds

        def of(name: str) -> xr.Dataset:
            settings = {"rounds": rounds, "seeds": seeds, "record_every": every}
            return effort.sweep(f"{part}-{name}", bound(scenario, name), **settings)

        return joined(*map(of, names)).assign_coords(algorithm=list(names))

    step, batch = TRAINING.value
    small = Uniform(batch)
    trained = {"SGD": A.FedAvg(step, local_steps=1, batch=batch)}
    trained |= {f"rank {r}": A.PowerSGD(step, rank=r, batches=small) for r in RANKS.value}
    return {
        "biased": run("biased", constant, ("EF-SGD", "EF21", "EF21-BC"), PLACES.value, 20),
        "unbiased": run(
            "unbiased",
            constant,
            (WITHOUT, "DIANA", "MARINA", "DASHA", DESCENT),
            PLACES.value,
            20,
        ),
        "local": run(
            "local",
            local,
            tuple(f"{m} {steps}" for m in ("TAMUNA", "Scaffnew") for steps in LOCAL.value),
            PLACES.value,
            20,
        ),
        "accelerated": run("accelerated", accelerated, ("DIANA", "ADIANA"), LONG.value, 50),
        "stochastic": run("stochastic", stochastic, ("SGD", "EF-SGD", FORGETS), DECADES.value, 10),
        "images": effort.sweep(
            "images",
            images,
            rounds=40 if effort.quick else EPOCHS.value,
            seeds=min(seeds, 20),
            grid={"algorithm": trained},
            record_every=10,
        ),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "the largest numbers",
        "random numbers",
        "local steps and some clients",
        "badly conditioned",
        "single samples, falling steps",
        "factors of low rank",
    )
    drawing, axes = picture.panels(titles, columns=3, height=2.4)
    names = ("biased", "unbiased", "local", "accelerated", "stochastic")
    for ax, name in zip(axes, names, strict=False):
        x = "bits_up" if name in ("unbiased", "local") else "round"
        data = studies[name]
        if name == "local":
            best = [best_steps(studies, method) for method in ("TAMUNA", "Scaffnew")]
            data = data.sel(algorithm=best)
        plotting.learning_curves(data, METRIC, x=x, ax=ax)
    for ax in axes[1:3]:
        ax.set_xscale("log")
    plotting.learning_curves(studies["images"], "accuracy", x="bits_up", ax=axes[5])
    axes[5].set_xscale("log")
    return picture.finish(drawing, "Compressed messages to a server")


# --------------------------------------------------------------------------- claims

INSTANCE = "regularized least squares of twenty clients that differ, steps of the theorems"


def nats(first: float, second: float) -> float:
    """The natural logarithm of a ratio that is given in dB."""
    return (first - second) * np.log(10) / 10


def against_theorem(study: str, name: str) -> Measure:
    """The rate of the median run over that of the theorem: both are logarithms a round."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies[study]
        curves = statistics.decibels(samples(data, name, METRIC))
        rounds = data["round"].values
        start, end = (first_below(curves, level, rounds) for level in LEVELS[1:])
        with jax.enable_x64(True):
            factors = [
                float(rate(name, problem_of(scenario_key(int(seed)))).factor)
                for seed in data["seed"].values
            ]
        promised = -np.log(factors)
        ratio = nats(*LEVELS[1:]) / (end - start) / promised
        return {name: in_the_median(ratio)}

    return measure


def spent_bits(studies: Studies, study: str, name: str) -> np.ndarray:
    """``[S]``: bits that clients have sent until a method is at the level; NaN if it never is."""
    data = studies[study]
    curves = statistics.decibels(samples(data, name, METRIC))
    return first_below(
        curves, LEVEL.value, data["bits_up"].sel(algorithm=name).mean("seed").values.astype(float)
    )


def best_steps(studies: Studies, method: str) -> str:
    """The method with the number of local steps that needs the fewest bits in the median."""
    names = [f"{method} {steps}" for steps in LOCAL.value]
    medians = [np.median(spent_bits(studies, "local", name)) for name in names]
    return names[int(np.nanargmin(medians))] if np.isfinite(medians).any() else names[0]


def fewer_by_best(studies: Studies) -> dict[str, Estimate]:
    """How many times as many bits Scaffnew needs as TAMUNA, each with its best local steps."""
    two = [best_steps(studies, method) for method in ("Scaffnew", "TAMUNA")]
    over, under = (spent_bits(studies, "local", name) for name in two)
    return {" over ".join(two): in_the_median(over / under)}


def fewer(study: str, over: str, under: str, count: str) -> Measure:
    """How many times as many rounds or bits one needs as another to the level, in the median."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        def spent(name: str) -> np.ndarray:
            data = studies[study]
            if count == "bits_up":
                return spent_bits(studies, study, name)
            curves = statistics.decibels(samples(data, name, METRIC))
            return first_below(curves, LEVEL.value, data["round"].values)

        return {f"{over} over {under}": in_the_median(spent(over) / spent(under))}

    return measure


def compressed_only(studies: Studies) -> dict[str, Estimate]:
    """The bits of a round over the bits of compressed messages of all clients."""
    data = last(studies["unbiased"]).sel(algorithm="DASHA")
    bits = data["bits_up"].values.astype(float) / float(data["round"])
    whole = CLIENTS.value * RAND.bits(DIM.value)
    return {"DASHA": of_few(lambda mean: mean / whole, bits, unit="times")}


def as_accurate(studies: Studies) -> dict[str, Estimate]:
    """How many points of accuracy each rank is above uncompressed descent, late."""
    data = studies["images"]
    late = last_part(10)(data)

    def of(name: str) -> np.ndarray:
        return 100 * each_mean(samples(late, name, "accuracy"))

    names = [f"rank {r}" for r in RANKS.value if r > 1]
    plain = of("SGD")
    return {name: of_few(lambda a, b: a - b, of(name), plain, unit="points") for name in names}


def bits_of_a_round(studies: Studies) -> dict[str, Estimate]:
    bits = last(studies["images"])["bits_up"].mean("seed")
    ratio = float(bits.sel(algorithm="SGD") / bits.sel(algorithm="rank 2"))
    return {"SGD over rank 2": Estimate(ratio, ratio, ratio, "times")}


THEOREM = "at least the theorem's rate, between -80 and -160 dB in the median run"
THEOREMS = {
    "EF21": ("biased", "Richtarik, Sokolov and Fatkhullin 2021, Theorem 2"),
    "DIANA": ("unbiased", "Horvath et al. 2023; Mishchenko et al. 2019, abstract"),
    "MARINA": ("unbiased", "Gorbunov et al. 2021, Theorem 2.2"),
    "DASHA": (
        "unbiased",
        "Tyurin and Richtarik 2023, section I; the step is derived from its recursions",
    ),
}


def of_theorems() -> list[Claim]:
    result = []
    for name, (part, source) in THEOREMS.items():
        slug = name.lower()
        result += [
            Claim(
                f"{slug}-is-exact",
                f"{name} reaches the exact minimizer at a constant step size",
                source,
                final(part, name),
                (-INFINITE, EXACT),
                DOUBLE,
                condition=INSTANCE,
            ),
            Claim(
                f"{slug}-has-the-rate-of-its-theorem",
                f"{name} converges linearly, as fast as its theorem says or faster",
                source,
                against_theorem(part, name),
                (1, INFINITE),
                THEOREM,
                condition=INSTANCE,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-communication",
    title="Compressed messages to a server",
    source="the papers of the algorithms, cited at each claim",
    caption="Clients that differ, regularized least squares, steps of the theorems: (a) the "
    "largest numbers of each message, (b) random ones, against the bits that clients send, (c) "
    "several local steps, each with its best number of them, with half of the clients (TAMUNA) and "
    "all of them (Scaffnew). (d) "
    "Acceleration where the condition number is large. (e) Gradients of single samples and "
    "falling steps, the largest numbers with and without error feedback, and all of them. (f) A "
    "network on images, its matrices whole or as factors of low rank.",
    study=study,
    plot=plot,
    claims=[
        *of_theorems(),
        Claim(
            "compression-alone-stops-short",
            "compressed gradients without learned differences do not reach it",
            "Mishchenko et al. 2019, abstract",
            final("unbiased", WITHOUT),
            (-60, INFINITE),
            "above -60 dB",
            condition=INSTANCE,
        ),
        Claim(
            "error-feedback-stops-short",
            "at a constant step classical error feedback does not reach it where clients differ",
            "Richtarik, Sokolov and Fatkhullin 2021, section 1",
            late_gap("biased", "EF-SGD", "EF21", 10),
            (60, INFINITE),
            "60 dB or more above EF21",
            condition=INSTANCE,
        ),
        Claim(
            "ef21-bc-is-exact",
            "EF21 with compressed messages of the server, too, reaches the exact minimizer",
            "Fatkhullin et al. 2021, EF21-BC",
            final("biased", "EF21-BC"),
            (-INFINITE, EXACT),
            DOUBLE,
            condition=f"{INSTANCE}, of EF21-BC half of EF21's",
        ),
        Claim(
            "marina-saves-bits",
            "MARINA needs fewer bits than gradient descent",
            "Gorbunov et al. 2021, section 1",
            fewer("unbiased", DESCENT, "MARINA", "bits_up"),
            (1, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "dasha-sends-compressed-vectors-only",
            "DASHA never sends a whole gradient",
            "Tyurin and Richtarik 2023, abstract",
            compressed_only,
            (0, 1),
            "bits of a round over those of compressed messages of all clients",
            condition=INSTANCE,
            construction="its step has no other message",
        ),
        Claim(
            "adiana-is-faster",
            "ADIANA needs fewer rounds than DIANA where the condition number is large",
            "Li et al. 2020, abstract",
            fewer("accelerated", "DIANA", "ADIANA", "round"),
            (1, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "tamuna-is-exact",
            "TAMUNA reaches the exact minimizer with half of the clients in a round",
            "Condat et al. 2023, abstract",
            lambda studies: final("local", best_steps(studies, "TAMUNA"))(studies),
            (-INFINITE, EXACT),
            DOUBLE,
            condition="the best number of local steps, a condition number of hundreds",
        ),
        Claim(
            "tamuna-saves-bits",
            "TAMUNA needs fewer bits than Scaffnew, which has local steps alone",
            "Condat et al. 2023, abstract",
            fewer_by_best,
            (1, INFINITE),
            condition="each with its best number of local steps, a condition number of hundreds",
        ),
        Claim(
            "error-feedback-has-the-rate-of-sgd",
            "with error feedback compressed stochastic gradients converge as uncompressed ones do",
            "Stich, Cordonnier and Jaggi 2018, abstract",
            late_gap("stochastic", "EF-SGD", "SGD", 10),
            (-INFINITE, 1),
            "at most 1 dB above, over the last tenth of the rounds",
            condition="least squares of twenty clients that differ",
        ),
        Claim(
            "memory-is-needed",
            "and without memory they are worse",
            "Stich, Cordonnier and Jaggi 2018; Karimireddy et al. 2019, abstract",
            late_gap("stochastic", FORGETS, "SGD", 10),
            (0, INFINITE),
            condition="least squares of twenty clients that differ",
        ),
        Claim(
            "powersgd-is-as-accurate",
            "PowerSGD is as accurate as uncompressed SGD from rank 2 on",
            "Vogels, Karimireddy and Jaggi 2019, abstract: test performance on par with SGD",
            as_accurate,
            (-1, INFINITE),
            "at most one point below",
            condition="a network with 32 hidden units on a sample of MNIST",
        ),
        Claim(
            "powersgd-saves-bits",
            "and sends far fewer bits",
            "Vogels, Karimireddy and Jaggi 2019, abstract",
            bits_of_a_round,
            (2, INFINITE),
            "half or less",
            condition="a network with 32 hidden units, at rank 2",
        ),
    ],
    settings=[
        *(CLIENTS, SAMPLES, DIM, SPREAD, SCALES, STRENGTH, SENT, ACCELERATED, PLACES, LONG, LEVEL),
        *(FALLING, DECADES, NETWORK, TRAINING, EPOCHS, RANKS, LOCAL, PARTLY, SEEDS),
    ],
    keep=("bits_up",),
    double=True,
)
