"""Personal models for clients with few digits each: the gain over one model for all."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.headlines.common import built, chosen, compared, fewer_errors, ranked, unlike
from experiments.measures import estimate, joined, last, of_few, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting
from fljax.algorithms.personalized.ifca import random_start
from fljax.metrics.definitions import Metric, Snapshot
from fljax.models import Architecture
from fljax.problems.clustering import adjusted_rand

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "all take part in every round")
SAMPLES = Setting("images a client", 60, "half of them held out; so few that clients need others")
CONCENTRATION = Setting("concentration of the digits", 0.1, "a client has two or three that count")
WIDTH = Setting("hidden width", 32, "a fully connected network on images of 14 x 14 pixels")
LOCAL = Setting("local steps", 5, "on all images of a client")
ROUNDS = Setting("rounds", 60, "accuracies rise little after 40")
END = Setting("rounds that are read", 10, "the mean over the last")
TRIED = Setting(
    "step sizes",
    (0.03, 3.0),
    "four a method at first, further where the best is on the edge; chosen by the error at the end "
    "on five seeds of their own",
)
PULLS = Setting(
    "attraction of Ditto, FedProto, FedDistill and FedPAC",
    (0.1, 1.0),
    "the ends of what their papers try",
)
ENVELOPE = Setting(
    "attraction and inner steps of pFedMe",
    (15.0, 10),
    "the paper's own for MNIST, of which ten steps are enough that its models hardly change",
)
REACHES = Setting(
    "scale of FedAMP",
    (1.0, 10.0, 100.0),
    "squared distances of models are of this order; its steps are as large as keep averages convex",
)
RELATING = Setting(
    "steps of the weights of APPLE",
    (0.001, 0.01),
    "the paper's and ten times as long; its pull toward equal weights, of 0.1, is gone after a "
    "fifth of the rounds, and its other steps are as long in the models that are judged as those "
    "of the other methods, which divides them by the number of clients",
)
SEEDS = Setting("seeds", 20, "at most")
CONTRASTS = Setting(
    "contrast of a client's images, FedBN",
    (0.3, 3.0),
    "log-uniform, and a brightness of -1 to 1: clients whose inputs differ, and not their labels",
)
CLUSTERS = Setting("clusters of (d)", 3, "ten clients each, of least squares")
SPREAD = Setting("spread of the clusters' models", 1.0, "as far from the common one as that from 0")
FOUND = Setting("rounds of (d)", 60, "clusters no longer change")
STARTS = Setting(
    "starts of IFCA",
    10,
    "at random; judged is the one of least training loss at the end, as a user can tell",
)

PIXELS = 14 * 14
HEAD = "layer_1"
BODY = "layer_0"
ERROR = "error_rate"
SENT = "bits_up"
COMMON = "FedAvg"
TUNED = "FedAvg-FT"
ALONE = "Local only"
STEPS: dict[str, Any] = {"local_steps": LOCAL.value}
_STEP: dict[str, Any] = {"step_size": TRIED.value}
_PULLED: dict[str, Any] = _STEP | {"attraction": list(PULLS.value)}


averaged = built(A.FedAvg, **STEPS)


def ditto(step_size: float, attraction: float) -> A.Algorithm:
    solver = averaged(step_size)
    return A.Ditto(solver, step_size, attraction=attraction, personal_steps=LOCAL.value)


def babu(step_size: float) -> A.Algorithm:
    settings = {"tuning_step_size": step_size, "tuning_steps": LOCAL.value}
    return A.FedBABU(step_size, personal=HEAD, **settings, **STEPS)


def envelope(step_size: float) -> A.Algorithm:
    attraction, inner = ENVELOPE.value
    return A.PFedMe(step_size, attraction=attraction, inner_iterations=inner, **STEPS)


def attentive(step_size: float, scale: float) -> A.Algorithm:
    weight = scale / CLIENTS.value
    return A.FedAMP(step_size, attraction=weight, attention_step_size=weight, scale=scale, **STEPS)


def combined(step_size: float, relationship_step_size: float) -> A.Algorithm:
    """The initial share of a client's own model is ``1/K``."""
    settings = {"relationship_step_size": relationship_step_size, "annealing": ROUNDS.value // 5}
    return A.APPLE(CLIENTS.value * step_size, **settings, **STEPS)


#: For each method, its constructor, the searched numbers, and the source of its promise.
METHODS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "Ditto": (ditto, _PULLED, "Li et al. 2021 (Ditto), abstract"),
    "APFL": (
        built(A.APFL, **STEPS),
        _STEP,
        "Deng, Kamani and Mahdavi 2020, abstract",
    ),
    "FedPer": (
        built(A.FedPer, personal=HEAD, **STEPS),
        _STEP,
        "Arivazhagan et al. 2019, abstract",
    ),
    "LG-FedAvg": (
        built(A.LGFedAvg, personal=BODY, **STEPS),
        _STEP,
        "Liang et al. 2020, abstract",
    ),
    "FedRep": (
        built(A.FedRep, personal=HEAD, head_epochs=LOCAL.value, **STEPS),
        _STEP,
        "Collins et al. 2021, abstract",
    ),
    "FedBABU": (babu, _STEP, "Oh, Kim and Yun 2022, abstract"),
    "FedALA": (
        built(A.FedALA, **STEPS),
        _STEP,
        "Zhang et al. 2023, abstract",
    ),
    "FedAMP": (
        attentive,
        _STEP | {"scale": list(REACHES.value)},
        "Huang et al. 2021, abstract",
    ),
    "Per-FedAvg": (
        lambda step_size: A.PerFedAvg(step_size, personal_step_size=step_size, **STEPS),
        _STEP,
        "Fallah, Mokhtari and Ozdaglar 2020, abstract",
    ),
    "SuPerFed": (
        built(A.SuPerFed, attraction=0.01, orthogonality=1.0, **STEPS),
        _STEP,
        "Hahn, Jeong and Lee 2022, abstract",
    ),
    "FedROD": (
        built(A.FedROD, **STEPS),
        _STEP,
        "Chen and Chao 2022, abstract",
    ),
    "FedPHP": (
        built(A.FedPHP, warmup=ROUNDS.value, **STEPS),
        _STEP,
        "Li et al. 2021 (FedPHP), abstract",
    ),
    "FedFomo": (
        built(A.FedFomo, **STEPS),
        _STEP,
        "Zhang et al. 2021 (FedFomo), abstract",
    ),
    "APPLE": (
        combined,
        _STEP | {"relationship_step_size": list(RELATING.value)},
        "Luo and Wu 2022, abstract",
    ),
    "FedPAC": (
        built(A.FedPAC, head_epochs=1, **STEPS),
        _PULLED,
        "Xu, Tong and Huang 2023, abstract",
    ),
    "FedKD": (
        built(A.FedKD, warmup=ROUNDS.value, **STEPS),
        _STEP,
        "Wu et al. 2022, abstract",
    ),
    "FML": (built(A.FML, **STEPS), _STEP, "Shen et al. 2020, abstract"),
    "FedProto": (
        built(A.FedProto, **STEPS),
        _PULLED,
        "Tan et al. 2022, abstract",
    ),
    "FedDistill": (
        built(A.FedDistill, **STEPS),
        _PULLED,
        "Jeong et al. 2018, abstract",
    ),
}

#: Methods that never send a model: they promise to save communication and to beat learning alone.
SILENT = ("FedProto", "FedDistill")
BASELINES = {
    COMMON: (averaged, _STEP),
    TUNED: (
        lambda step_size: A.FineTunedFedAvg(averaged(step_size), step_size, LOCAL.value),
        _STEP,
    ),
    ALONE: (built(A.LocalOnly, **STEPS), _STEP),
}
SEARCHED = BASELINES | {name: parts[:2] for name, parts in METHODS.items()}
LINEAR = {
    COMMON: (averaged, _STEP),
    TUNED: BASELINES[TUNED],
    "pFedMe": (envelope, _STEP),
}
NORMALIZED = {
    COMMON: (averaged, _STEP),
    "FedBN": (built(A.FedBN, **STEPS), _STEP),
}


# --------------------------------------------------------------------------- scenarios


def digits(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """Every client is tested on held-out digits of its own."""
    k_data, k_test = jax.random.split(key)
    dealt_out = dealt(k_data, jnp.asarray(CONCENTRATION.value), size)
    problem = dataclasses.replace(dealt_out, test=None).split(k_test, test=0.5)
    return fl.Simulation(problem, algorithm, metrics=[ERROR])


def softmax(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """The same digits with softmax regression, where pFedMe's inner minimizers are exact."""
    k_data, k_test = jax.random.split(key)
    images = dealt(k_data, jnp.asarray(CONCENTRATION.value), size)
    pixels = images.features.reshape(*images.features.shape[:2], PIXELS)
    problem = fl.problems.Problem(pixels, images.targets, images.loss)
    return fl.Simulation(problem.split(k_test, test=0.5), algorithm, metrics=[ERROR])


def _start(width: int, key: Array) -> dict[str, Any]:
    k_in, k_out = jax.random.split(key)
    into = jnp.sqrt(2 / PIXELS) * jax.random.normal(k_in, (PIXELS, width))
    out = jnp.sqrt(1 / width) * jax.random.normal(k_out, (width, 10))
    norm = {"scale": jnp.ones(width), "offset": jnp.zeros(width)}
    return {"into": into, "norm": norm, "out": out, "bias": jnp.zeros(10)}


def _outputs(parameters: dict[str, Any], images: Array) -> Array:
    """Hidden units are normalized over the samples at hand, which are all of a client's here."""
    hidden = images.reshape(len(images), PIXELS) @ parameters["into"]
    away = hidden - jnp.mean(hidden, axis=0, keepdims=True)
    units = away / jnp.sqrt(jnp.mean(away**2, axis=0, keepdims=True) + 1e-5)
    scale = parameters["norm"]["scale"]
    offset = parameters["norm"]["offset"]
    return jax.nn.relu(scale[None] * units + offset[None]) @ parameters["out"] + parameters["bias"]


@functools.cache
def normalized(width: int) -> Architecture:
    """A hidden layer with batch normalization."""
    return fl.models.plain(functools.partial(_start, width), _outputs)


def contrasted(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """Clients' images differ in contrast and brightness; label distributions are the same."""
    k_data, k_test, k_contrast, k_light = jax.random.split(key, 4)
    reference = dataclasses.replace(dealt(k_data, jnp.asarray(100.0), size), test=None)
    shape = (size.clients, 1, 1, 1)
    low, high = map(math.log, CONTRASTS.value)
    contrast = jnp.exp(jax.random.uniform(k_contrast, shape, minval=low, maxval=high))
    light = jax.random.uniform(k_light, shape, minval=-1.0, maxval=1.0)
    problem = dataclasses.replace(reference, features=contrast * reference.features + light)
    return fl.Simulation(problem.split(k_test, test=0.5), algorithm, metrics=[ERROR])


def _agreement(now: Snapshot) -> Array:
    """The agreement of the clusters with the true ones, one if they are the same."""
    return adjusted_rand(now.state.choice, jnp.arange(now.problem.clients) % CLUSTERS.value)


#: The runs that are stored; the last one is judged.
IFCA_RUNS = ("IFCA, one start", "IFCA, best of its starts")

AGREEMENT = Metric("agreement", _agreement, "adjusted Rand index", bounds=(-0.5, 1.0))


def clustered(key: Array, start: Array) -> fl.Simulation:
    """IFCA on clients of clusters, from the random models of this number."""
    clusters = CLUSTERS.value
    members = 10
    distant = unlike(key, clusters, 20 * members, 5, SPREAD.value)

    def rows(all_of: Array) -> Array:  # client k is of cluster k mod Q
        parts = all_of.reshape(clusters, members, 20, *all_of.shape[2:])
        return parts.swapaxes(0, 1).reshape(clusters * members, *parts.shape[2:])

    problem = fl.problems.Problem(rows(distant.features), rows(distant.targets), distant.loss)
    models = random_start(jax.random.fold_in(key, start), clusters, problem.dim)
    algorithm = A.IFCA(0.1, clusters=clusters, start=models, **STEPS)
    return fl.Simulation(problem, algorithm, metrics=[AGREEMENT, "train_error"])


def restarted(effort: Effort, seeds: int) -> xr.Dataset:
    """The runs of IFCA from its first start, and for each seed the one of least training loss."""
    starts = effort.sweep(
        "clusters",
        clustered,
        rounds=FOUND.value,
        seeds=seeds,
        grid={"start": range(2 if effort.quick else STARTS.value)},
    )
    best = last(starts)["train_error"].mean("client").argmin("start").drop_vars("round")
    runs = [starts.isel(start=0), starts.isel(start=best)]
    of_each = [run.drop_vars("start", errors="ignore") for run in runs]
    return joined(*of_each).assign_coords(algorithm=[*IFCA_RUNS])


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    clients, rounds = (6, 10) if effort.quick else (CLIENTS.value, ROUNDS.value)
    width = 4 if effort.quick else WIDTH.value
    seeds = min(effort.seeds, SEEDS.value)
    settings: dict[str, Any] = {"metric": ERROR, "rounds": rounds, "seeds": seeds}

    def run(
        name: str, scenario: Any, methods: Any, network: Architecture, also: tuple[str, ...] = ()
    ) -> xr.Dataset:
        size = Size(images, clients, clients, SAMPLES.value, rounds, network, 10)
        built = functools.partial(scenario, size=size)
        return compared(effort, name, built, methods, also=also, **settings)

    return {
        "digits": run("digits", digits, SEARCHED, fl.models.mlp(10, (width,)), (SENT,)),
        "linear": run("linear", softmax, LINEAR, fl.models.mlp(10, (width,))),
        "contrasts": run("contrasts", contrasted, NORMALIZED, normalized(width)),
        "clusters": restarted(effort, seeds),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = (
        "one model, and several",
        "at the end, paired by seed",
        "unlike contrasts",
        "IFCA",
        "softmax regression",
    )
    drawing, axes = picture.panels(titles, columns=3, height=3.2)
    data = studies["digits"]
    drawn = [*BASELINES, "Ditto", "FedPer", "FedAMP"]
    plotting.learning_curves(data.sel(algorithm=drawn), ERROR, ax=axes[0])
    ranked(axes[1], data, ERROR, END.value, above="Local only")
    plotting.learning_curves(studies["contrasts"], ERROR, ax=axes[2])
    plotting.learning_curves(studies["clusters"], AGREEMENT.name, ax=axes[3])
    plotting.learning_curves(studies["linear"], ERROR, ax=axes[4])
    return picture.finish(drawing, "Models of clients' own")


# --------------------------------------------------------------------------- claims

DIGITS = "digits of twenty clients, of two or three each"
INSTANCE = f"{DIGITS}, a small network"
fewer = functools.partial(fewer_errors, metric=ERROR, rounds=END.value)


def found_clusters(studies: Studies) -> dict[str, Estimate]:
    agreement = samples(last(studies["clusters"]), IFCA_RUNS[1], AGREEMENT.name)
    return {IFCA_RUNS[1]: estimate(lambda a: a, agreement, unit="")}


def from_one_start(studies: Studies) -> str:
    agreement = samples(last(studies["clusters"]), IFCA_RUNS[0], AGREEMENT.name)
    return (
        f"From one start the mean index is {np.mean(agreement):.2f}: where one model is nearest to "
        "clients of two clusters, it does not always part them again."
    )


def communication_saved(studies: Studies) -> dict[str, Estimate]:
    """How many times the bits that clients send, in as many rounds."""
    data = last(studies["digits"])
    sent = [samples(data, name, SENT).astype(float) for name in (COMMON, "FedKD")]
    return {"FedAvg over FedKD": of_few(lambda a, b: a / b, *sent, unit="times")}


PLAIN = (
    "With thirty images to train on, what one model has learned of all clients' digits is worth "
    "most, and a few steps from it are enough; what shares less of the network learns less of them."
)


CHANGED = (
    "That it is better than one model for all says nothing of what it communicates: learning alone "
    "is, too. It must be better than both."
)


def promises(methods: Mapping[str, tuple[Any, Any, str]]) -> list[Claim]:
    """The claims of methods of the study ``digits``, from the sources of their promises."""
    result = []
    for name, (_, _, source) in methods.items():
        slug = name.lower().replace(",", "").replace(" ", "-")
        other, called = (ALONE, "learning alone") if name in SILENT else (COMMON, "one model")
        whom = "clients who learn alone"
        if name not in SILENT:
            whom = f"one model for all clients, and than {whom}"
        result += [
            Claim(
                f"{slug}-beats-{called.replace(' ', '-')}",
                f"{name} errs less than {whom}",
                source,
                fewer("digits", [*dict.fromkeys((other, ALONE))], name),
                (0, INFINITE),
                condition=INSTANCE,
                changed="" if name in SILENT else CHANGED,
            ),
            Claim(
                f"{slug}-beats-fine-tuning",
                f"{name} errs less than one model after fine tuning",
                f"{source}; this comparison is ours",
                fewer("digits", TUNED, name),
                (0, INFINITE),
                ours=True,
                note=PLAIN,
            ),
        ]
    return result


FIGURE = Figure(
    name="headline-personal",
    title="Models of clients' own against one model for all",
    source="the papers of the algorithms, cited at each claim",
    caption="(a), (b) Clients with few digits each, tested on held-out images of their own; every "
    "method with its own step size, chosen on other seeds. FedAvg has one model for all, FedAvg-FT "
    "takes five further steps from it, and Local only never communicates. (c) Clients whose images "
    "differ in contrast and brightness; FedBN keeps what normalizes them at the client. (d) IFCA "
    "on least squares of three clusters: how well its clusters agree with the true ones. "
    "(e) As in (a), with softmax regression, for which pFedMe is written.",
    study=study,
    plot=plot,
    tuning=chosen("digits", "linear", "contrasts"),
    keep=(SENT,),
    claims=[
        Claim(
            "fine-tuning-beats-one-model",
            "a few steps on a client's own data make the common model better there",
            "Yu, Bagdasaryan and Shmatikov 2020, abstract",
            fewer("digits", COMMON, TUNED),
            (0, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "one-model-is-worse-than-none",
            "where clients are this unlike, one model for all serves many worse than one of their "
            "own data",
            "Yu, Bagdasaryan and Shmatikov 2020, abstract",
            fewer("digits", COMMON, ALONE),
            (0, INFINITE),
            condition=INSTANCE,
        ),
        *promises(METHODS),
        Claim(
            "fedkd-saves-communication",
            "FedKD's clients send less than those of federated averaging",
            "Wu et al. 2022, abstract",
            communication_saved,
            (1, INFINITE),
            condition=f"{INSTANCE}, of which mentor and mentee are, so that only what the "
            "compression of updates saves is counted",
        ),
        Claim(
            "pfedme-beats-one-model",
            "pFedMe errs less than one model for all clients",
            "Dinh et al. 2020, abstract",
            fewer("linear", COMMON, "pFedMe"),
            (0, INFINITE),
            condition=f"{DIGITS}, softmax regression",
        ),
        Claim(
            "pfedme-beats-fine-tuning",
            "pFedMe errs less than one model after fine tuning",
            "Dinh et al. 2020, abstract; this comparison is ours",
            fewer("linear", TUNED, "pFedMe"),
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "fedbn-beats-one-model",
            "where clients' inputs differ, and not their labels, FedBN errs less than FedAvg",
            "Li et al. 2021 (FedBN), abstract",
            fewer("contrasts", COMMON, "FedBN"),
            (0, INFINITE),
            condition="digits of unlike contrasts, hidden units normalized by the samples at hand",
            note="Normalized by the samples at hand, inputs of another contrast are alike for both "
            "methods. In the paper FedAvg shares running statistics as well, which are those of no "
            "client, and a network here has no such state. What FedBN keeps is learned from thirty "
            "images alone.",
        ),
        Claim(
            "ifca-finds-the-clusters",
            "IFCA finds the clusters of the clients, started at random",
            "Ghosh et al. 2020, abstract and Theorem 1 (for a start that is near enough)",
            found_clusters,
            (0.99, INFINITE),
            "an adjusted Rand index of 0.99 or more in the mean over seeds",
            condition="least squares of three clusters of ten clients",
            note=from_one_start,
            changed="Judged is the best of ten starts by training loss, as in the paper; one start "
            "was before.",
        ),
    ],
    settings=[
        *(CLIENTS, SAMPLES, CONCENTRATION, WIDTH, LOCAL, ROUNDS, END, TRIED, PULLS, ENVELOPE),
        *(REACHES, RELATING, SEEDS, CONTRASTS, CLUSTERS, SPREAD, FOUND, STARTS),
    ],
)
