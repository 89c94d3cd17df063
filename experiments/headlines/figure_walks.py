"""Training with few messages: workers on elastic bands, and a model that walks on a graph."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.headlines.common import METRIC, chosen, compared, counting, fewer_errors, unlike
from experiments.headlines.figure_personal import ERROR
from experiments.measures import estimate, joined, last, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting, statistics

# --------------------------------------------------------------------------- settings

WORKERS = Setting("workers of (a)", 4, "the paper has 4 to 16")
IMAGES = Setting("images a worker", 500, "of all digits: workers are alike, as in the paper")
BATCH = Setting("images of a step", 20, "the paper has 128")
STEPS = Setting("steps of a worker", 960, "eight passes, after which errors hardly change")
PERIOD = Setting("communication period", 16, "steps between two messages; the paper has 1 to 64")
RATE = Setting("moving rate", 0.225, "0.9 over the number of workers, as in the paper")
TRIED = Setting(
    "step sizes of (a)",
    (0.03, 1.0),
    "four a method at first, further where the best is on the edge; chosen by the error at the end "
    "on five seeds of their own",
)
READ = Setting("steps that are read", 160, "the mean over the last")
CLIENTS = Setting("clients of (b)", 20, "of least squares, on a random graph of mean degree 4")
SAMPLES = Setting("samples a client of (b)", 20, "in 5 dimensions")
SPREAD = Setting("spread of the clients' models", 0.3, "of the common one's size")
MESSAGES = Setting("messages of a round of ATC", 80, "one a direction of each of the 40 edges")
ROUNDS = Setting("rounds of ATC", 100, "the walk has as many visits as ATC has messages")
DECREASE = Setting("power of the decreasing steps", 0.75, "theory has 1/2 to 1, both excluded")
WALKED = Setting("step sizes of (b), at first", (0.1, 1.0), "chosen as those of (a)")
SEEDS = Setting("seeds", 20, "at most")

EACH = "EASGD, in each step"
SELDOM = f"EASGD, in every {PERIOD.value}th step"
SERVED = "mini-batch SGD"
WALK = "Random walk"
GOSSIP = "ATC"
BITS = "bits"

# --------------------------------------------------------------------------- scenarios


def alike(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    return fl.Simulation(dealt(key, jnp.asarray(100.0), size), algorithm, metrics=[ERROR])


def on_graph(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    k_data, k_graph = jax.random.split(key)
    clients = CLIENTS.value
    mean_degree = MESSAGES.value / clients
    return fl.Simulation(
        problem=unlike(k_data, clients, SAMPLES.value, 5, SPREAD.value),
        network=fl.graphs.random_connected(k_graph, clients, mean_degree=mean_degree),
        algorithm=algorithm,
        metrics=[METRIC],
    )


# --------------------------------------------------------------------------- methods


def elastic(step_size: float, local_steps: int) -> A.Algorithm:
    settings: dict[str, Any] = {"batch": BATCH.value, "local_steps": local_steps}
    return A.EASGD(step_size, moving_rate=RATE.value, **settings)


def averaged(step_size: float, local_steps: int) -> A.Algorithm:
    """With one local step: descent along the mean of the workers' gradients."""
    return A.FedAvg(step_size, batch=BATCH.value, local_steps=local_steps)


def decreasing(method: Any, step_size: float, **settings: Any) -> A.Algorithm:
    return method(fl.schedules.PowerDecay(step_size, DECREASE.value), **settings)


GOSSIPING = {
    GOSSIP: functools.partial(decreasing, A.ATC),
    "CTA": functools.partial(decreasing, A.CTA),
}
WALKING = {
    WALK: functools.partial(decreasing, A.RandomWalk),
    f"{WALK}, four models": functools.partial(decreasing, A.RandomWalk, walks=4),
}


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    seeds = min(effort.seeds, SEEDS.value)
    network = fl.models.mlp(10, (4 if effort.quick else 32,))
    steps = 64 if effort.quick else STEPS.value
    tried = {"step_size": TRIED.value}

    def trained(name: str, methods: Any, local_steps: int) -> xr.Dataset:
        """The methods with their rounds counted in steps."""
        rounds = steps // local_steps
        count = 40 if effort.quick else IMAGES.value
        size = Size(images, WORKERS.value, WORKERS.value, count, rounds, network, 10)
        data = compared(
            effort,
            name,
            functools.partial(alike, size=size),
            methods,
            metric=ERROR,
            rounds=rounds,
            seeds=seeds,
            record_every=32 // local_steps,
        )
        return counting(data, local_steps)

    def shared(name: str, methods: Any, messages: int) -> xr.Dataset:
        """The methods with as many messages each."""
        rounds = (10 if effort.quick else ROUNDS.value) * MESSAGES.value // messages
        data = compared(
            effort,
            name,
            on_graph,
            {of: (build, {"step_size": WALKED.value}) for of, build in methods.items()},
            metric=METRIC,
            rounds=rounds,
            seeds=seeds,
            record_every=2 * MESSAGES.value // messages,
            also=(BITS,),
        )
        return counting(data, messages)

    def both(names: tuple[str, str], local_steps: int) -> dict[str, Any]:
        builders = (functools.partial(of, local_steps=local_steps) for of in (elastic, averaged))
        return {name: (build, tried) for name, build in zip(names, builders, strict=True)}

    in_each = both((EACH, SERVED), 1)
    seldom = both((SELDOM, f"FedAvg, {PERIOD.value} local steps"), PERIOD.value)
    return {
        "workers": joined(trained("each", in_each, 1), trained("seldom", seldom, PERIOD.value)),
        "graph": joined(shared("gossip", GOSSIPING, MESSAGES.value), shared("walk", WALKING, 1)),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("four workers", "a random graph")
    drawing, axes = picture.panels(titles, columns=2, height=2.4)
    plotting.learning_curves(studies["workers"], ERROR, ax=axes[0])
    axes[0].set_xlabel("steps of a worker")
    axes[0].set_ylim(top=0.3)
    plotting.learning_curves(studies["graph"], METRIC, x=BITS, ax=axes[1])
    axes[1].set_xscale("log")
    return picture.finish(drawing, "Training with few messages")


# --------------------------------------------------------------------------- claims


def below_gossip(studies: Studies) -> dict[str, Estimate]:
    """How far the error of ATC is above that of the walk after as many messages, dB."""
    ends = [samples(last(studies["graph"]), method, METRIC) for method in (GOSSIP, WALK)]

    def difference(gossip: Any, walk: Any) -> Any:
        return statistics.decibels(gossip) - statistics.decibels(walk)

    return {f"{GOSSIP} above {WALK}": estimate(difference, *ends)}


ALIKE = "digits of four workers, a small network"
fewer = functools.partial(fewer_errors, metric=ERROR, rounds=READ.value)

FIGURE = Figure(
    name="headline-walks",
    title="Training with few messages: elastic averages and a walking model",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Four workers with data of one kind, whose models and the server's attract each "
    "other; records are of the server's model after as many steps of each worker. (b) Least "
    "squares of clients that differ, on a random graph: one model walks, or all clients send "
    "theirs to all neighbors in each round (ATC, CTA), by the bits that all clients send.",
    study=study,
    plot=plot,
    tuning=chosen("workers", "graph"),
    keep=(BITS,),
    claims=[
        Claim(
            "easgd-is-communication-efficient",
            "elastic averaging in every sixteenth step errs within half a point of that in each",
            'Zhang, Choromanska and LeCun 2015, abstract ("very communication efficient") and '
            "section 5",
            fewer("workers", EACH, SELDOM),
            (-0.5, INFINITE),
            condition=ALIKE,
            note="The synchronous form; the paper's experiments are asynchronous. What is as good "
            "is read as half a point.",
        ),
        Claim(
            "easgd-is-as-good-as-mini-batches",
            "and within half a point of mini-batch descent, whose workers send in each step",
            "Zhang, Choromanska and LeCun 2015; this comparison is ours",
            fewer("workers", SERVED, SELDOM),
            (-0.5, INFINITE),
            condition=ALIKE,
            ours=True,
        ),
        Claim(
            "walking-saves-communication",
            "a walking model has a smaller error than gossip after as many messages",
            "Ayache and El Rouayheb 2021, abstract",
            below_gossip,
            (0, INFINITE),
            condition="least squares of twenty clients on a random graph, steps that decrease",
        ),
    ],
    settings=[
        *(WORKERS, IMAGES, BATCH, STEPS, PERIOD, RATE, TRIED, READ, CLIENTS, SAMPLES, SPREAD),
        *(MESSAGES, ROUNDS, DECREASE, WALKED, SEEDS),
    ],
)
