"""Models of clients' own, on digits of which each client has a few: who gains over one for all."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.headlines.common import unlike
from experiments.measures import estimate, last, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting
from fljax.clustering import adjusted_rand
from fljax.metrics import Metric, Snapshot

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "all take part in every round")
SAMPLES = Setting(
    "images a client", 60, "half of them held out; so few that clients need others"
)
CONCENTRATION = Setting("concentration of the digits", 0.1, "a client has two or three that count")
WIDTH = Setting("hidden width", 32, "a fully connected network on images of 14 x 14 pixels")
LOCAL = Setting("local steps", 5, "on all images of a client")
ROUNDS = Setting("rounds", 60, "accuracies rise little after 40")
TRIED = Setting(
    "step sizes",
    (0.03, 3.0),
    "four a method at first, further where the best is on the edge; chosen by the error at the end "
    "on five seeds of their own",
)
COUPLED = Setting("attraction of Ditto and pFedMe", (0.1, 1.0), "the ends of what their papers try")
SEEDS = Setting("seeds", 20, "at most")
CLUSTERS = Setting("clusters of (c)", 3, "ten clients each, of least squares")
SPREAD = Setting("spread of the clusters' models", 1.0, "as far from the common one as that from 0")
FOUND = Setting("rounds of (c)", 60, "clusters no longer change")

HEAD, BODY = "layer_1", "layer_0"
COMMON, TUNED = "FedAvg", "FedAvg-FT"
_LOCAL: dict[str, Any] = {"local_steps": LOCAL.value}
_PULLS = list(COUPLED.value)


def averaged(step_size: float) -> A.FedAvg:
    return A.FedAvg(step_size, **_LOCAL)


def ditto(step_size: float, attraction: float) -> A.Algorithm:
    solver = averaged(step_size)
    return A.Ditto(solver, step_size, attraction=attraction, personal_steps=LOCAL.value)


def babu(step_size: float) -> A.Algorithm:
    given = {"tuning_step_size": step_size, "tuning_steps": LOCAL.value}
    return A.FedBABU(step_size, personal=HEAD, **given, **_LOCAL)


_STEP = {"step_size": TRIED.value}

#: What makes a method of numbers, what is searched, and where it is promised to be better.
METHODS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Ditto": (
        ditto,
        _STEP | {"attraction": _PULLS},
        "Li et al. 2021, abstract",
    ),
    "APFL": (
        lambda step_size: A.APFL(step_size, **_LOCAL),
        _STEP,
        "Deng, Kamani and Mahdavi 2020, abstract",
    ),
    "FedPer": (
        lambda step_size: A.FedPer(step_size, personal=HEAD, **_LOCAL),
        _STEP,
        "Arivazhagan et al. 2019, abstract",
    ),
    "LG-FedAvg": (
        lambda step_size: A.LGFedAvg(step_size, personal=BODY, **_LOCAL),
        _STEP,
        "Liang et al. 2020, abstract",
    ),
    "FedRep": (
        lambda step_size: A.FedRep(step_size, personal=HEAD, head_epochs=LOCAL.value, **_LOCAL),
        _STEP,
        "Collins et al. 2021, abstract",
    ),
    "FedBABU": (babu, _STEP, "Oh, Kim and Yun 2022, abstract"),
    "FedALA": (
        lambda step_size: A.FedALA(step_size, **_LOCAL),
        _STEP,
        "Zhang et al. 2023, abstract",
    ),
    "Per-FedAvg": (
        lambda step_size: A.PerFedAvg(step_size, personal_step_size=step_size, **_LOCAL),
        _STEP,
        "Fallah, Mokhtari and Ozdaglar 2020, abstract",
    ),
    "SuPerFed": (
        lambda step_size: A.SuPerFed(step_size, attraction=0.01, orthogonality=1.0, **_LOCAL),
        _STEP,
        "Hahn, Jeong and Lee 2022, abstract",
    ),
}
ALONE = "Local only"
BASELINES = {
    COMMON: (averaged, _STEP),
    TUNED: (
        lambda step_size: A.FineTunedFedAvg(averaged(step_size), step_size, LOCAL.value),
        _STEP,
    ),
    ALONE: (lambda step_size: A.LocalOnly(step_size, **_LOCAL), _STEP),
}
SEARCHED = BASELINES | {name: parts[:2] for name, parts in METHODS.items()}


# --------------------------------------------------------------------------- scenarios


def digits(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """Every client is tested on held-out digits of its own."""
    k_data, k_test = jax.random.split(key)
    dealt_out = dealt(k_data, jnp.asarray(CONCENTRATION.value), size)
    problem = dataclasses.replace(dealt_out, test=None).split(k_test, test=0.5)
    return fl.Simulation(problem, algorithm, metrics=["error_rate"])


def _agreement(now: Snapshot) -> Array:
    """Of the clusters with the true ones: the Rand index adjusted for chance."""
    return adjusted_rand(now.state.choice, jnp.arange(now.problem.clients) % CLUSTERS.value)


AGREEMENT = Metric("agreement", _agreement, "adjusted Rand index", bounds=(-0.5, 1.0))


def clustered(key: Array, algorithm: A.Algorithm) -> fl.Simulation:
    clusters, members = CLUSTERS.value, 10
    apart = unlike(key, clusters, 20 * members, 5, SPREAD.value)

    def rows(all_of: Array) -> Array:  # client k is of cluster k mod Q
        parts = all_of.reshape(clusters, members, 20, *all_of.shape[2:])
        return parts.swapaxes(0, 1).reshape(clusters * members, *parts.shape[2:])

    problem = fl.problems.Problem(rows(apart.features), rows(apart.targets), apart.loss)
    return fl.Simulation(problem, algorithm, metrics=[AGREEMENT])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    clients, rounds = (6, 10) if effort.quick else (CLIENTS.value, ROUNDS.value)
    network = fl.models.mlp(10, (4 if effort.quick else WIDTH.value,))
    size = Size(images, clients, clients, SAMPLES.value, rounds, network, 10)
    seeds = min(effort.seeds, SEEDS.value)
    compared = fl.compare(
        functools.partial(digits, size=size),
        SEARCHED,
        metric="error_rate",
        rounds=rounds,
        seeds=seeds,
        tuning_seeds=min(seeds, 5),
        points=3 if effort.quick else 4,
        refinements=0,
        extensions=0 if effort.quick else 1,
        record_every=2,
        store=None if effort.store is None else effort.store / "digits",
    )
    found = effort.sweep(
        "clusters",
        clustered,
        rounds=FOUND.value,
        seeds=seeds,
        grid={"algorithm": {"IFCA": A.IFCA(0.1, clusters=CLUSTERS.value, **_LOCAL)}},
    )
    results = compared.results[["error_rate", "diverged"]]
    chosen = [str(values) for values in compared.tuned.chosen.values()]
    results = results.assign_coords(chosen=("algorithm", chosen))
    return {"digits": results, "clusters": found}


def tuning(studies: Studies) -> list[dict[str, Any]]:
    data = studies["digits"]
    return [
        {"method": f"{name}: {chosen}", "chosen": False}
        for name, chosen in zip(data["algorithm"].values, data["chosen"].values, strict=True)
    ]


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    drawing, axes = picture.panels(("digits", "after all rounds", "IFCA"), columns=3, height=2.6)
    data = studies["digits"]
    plotting.learning_curves(data, "error_rate", ax=axes[0])
    numbers = fl.statistics.summary(last(data), "error_rate")
    order = np.argsort(numbers["mean"].values)
    names, mean = data["algorithm"].values[order], numbers["mean"].values[order]
    reach = [mean - numbers["low"].values[order], numbers["high"].values[order] - mean]
    axes[1].errorbar(
        mean, np.arange(len(names)), xerr=reach, fmt="o", markersize=3, color="#333333"
    )
    axes[1].set_yticks(np.arange(len(names)), names)
    axes[1].invert_yaxis()
    axes[1].set_xlabel("error rate")
    plotting.learning_curves(studies["clusters"], AGREEMENT.name, ax=axes[2])
    return picture.finish(drawing, "Models of clients' own")


# --------------------------------------------------------------------------- claims


def fewer_errors(over: str, *under: str) -> Measure:
    """By how many points less of the held-out images are misclassified."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last(studies["digits"])
        return {
            f"{over} above {name}": estimate(
                lambda a, b: 100 * (a - b),
                samples(data, over, "error_rate"),
                samples(data, name, "error_rate"),
                unit="points",
            )
            for name in under
        }

    return measure


def found_clusters(studies: Studies) -> dict[str, Estimate]:
    data = last(studies["clusters"])
    agreement = samples(data, "IFCA", AGREEMENT.name)
    return {"IFCA": estimate(lambda a: a, agreement, unit="")}


INSTANCE = "digits of twenty clients, of two or three each, a small network"


def promises() -> list[Claim]:
    result = []
    for name, (_, _, source) in METHODS.items():
        slug = name.lower().replace(" ", "-")
        result += [
            Claim(
                f"{slug}-beats-one-model",
                f"{name} errs less than one model for all clients",
                source,
                fewer_errors(COMMON, name),
                (0, INFINITE),
                condition=INSTANCE,
            ),
            Claim(
                f"{slug}-beats-fine-tuning",
                f"and less than that model after fine tuning: {name}",
                f"{source}; the comparison with fine tuning is ours",
                fewer_errors(TUNED, name),
                (0, INFINITE),
                ours=True,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-personal",
    title="Models of clients' own against one model for all",
    source="the papers of the algorithms, cited at each claim",
    caption="(a), (b) Clients with few digits each, tested on held-out images of their own; every "
    "method with its own step size, chosen on other seeds. FedAvg has one model for all, FedAvg-FT "
    "takes five further steps from it, and Local only never communicates. (c) IFCA on least "
    "squares of three clusters of clients: how well its clusters agree with the true ones.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "fine-tuning-beats-one-model",
            "a few steps on a client's own data make the common model better there",
            "Yu, Bagdasaryan and Shmatikov 2020, abstract",
            fewer_errors(COMMON, TUNED),
            (0, INFINITE),
            condition=INSTANCE,
        ),
        *promises(),
        Claim(
            "ifca-finds-the-clusters",
            "IFCA finds the clusters of the clients, started at random",
            "Ghosh et al. 2020, abstract and Theorem 1 (for a start that is near enough)",
            found_clusters,
            (0.99, INFINITE),
            "an adjusted Rand index of 0.99 or more in the mean over seeds",
            condition="least squares of three clusters of ten clients",
        ),
    ],
    settings=[
        *(CLIENTS, SAMPLES, CONCENTRATION, WIDTH, LOCAL, ROUNDS, TRIED, COUPLED, SEEDS),
        *(CLUSTERS, SPREAD, FOUND),
    ],
)
