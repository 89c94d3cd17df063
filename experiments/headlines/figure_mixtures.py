"""Clients' data as mixtures of distributions, in clusters, and remembered sample by sample."""

import dataclasses
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
from experiments.headlines import figure_personal as personal
from experiments.headlines.common import built, chosen, compared, fewer_errors, ranked
from experiments.headlines.figure_personal import ALONE, COMMON, TUNED
from experiments.measures import estimate, last, samples
from experiments.own.figure_models import Size, dealt
from fljax import algorithms as A
from fljax import plotting
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import Logistic, Problem
from fljax.problems.clustering import adjusted_rand

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients of (a)", 300, "as in the paper, all in every round")
COMPONENTS = Setting("distributions of (a)", 3, "linear, of labels that agree in half of the box")
DIM = Setting("features of (a)", 150, "uniform in [-1, 1]")
SHARES = Setting("concentration of a client's shares of the distributions", 0.4, "the paper's")
SIZES = Setting(
    "samples a client of (a)",
    (50, 1000),
    "50 and a log-normal number (mean 4 and deviation 2 of its logarithm) more, 1000 at most",
)
TEST = Setting("test samples a client of (a)", 200, "the paper has 5,000, which change no mean")
BATCH = Setting("samples of a batch of (a)", 128, "one pass a round")
ROUNDS = Setting("rounds of (a)", 200, "the paper's")
STEPS = Setting(
    "step sizes of (a)",
    (0.01, 10.0),
    "four a method at first, further where the best is on the edge; chosen by the error at the end "
    "on a seed of its own. The paper's are 0.3 at most and decrease, too short for FedEM from here",
)
THRESHOLDS = Setting("thresholds of CFL in (a)", (0.4, 1.6), "the authors' program's")
END = Setting("rounds that are read", 20, "the mean over the last, of (a)")
SEEDS_OF_MIXTURES = Setting("seeds of (a)", 5, "differences are ten times their deviation")

GROUPS = Setting("clusters of (b)", 4, "five clients each; digits have other labels in each")
MEMBERS = Setting("clients of (b)", 20, "all in every round")
IMAGES = Setting("images a client of (b)", 100, "half of them held out, all ten digits")
STANDSTILL = Setting(
    "mean threshold of CFL in (b)",
    (0.1, 0.2, 0.4),
    "of an update's norm, all tried; the threshold of a client's update is four times as large, as "
    "in the authors' program",
)
ROUNDS_OF_CLUSTERS = Setting("rounds of (b)", 150, "the last halving is long over")

NEIGHBORS = Setting("neighbors of kNN-Per", 10, "the paper's")
MIXED = Setting(
    "share of the neighbors in kNN-Per", (0.25, 0.5, 0.75), "all tried, as in the paper"
)
ENVELOPE = Setting("attraction and steps of pFedMe", (15.0, 5), "the paper's for MNIST")
INNER = Setting("personal steps' sizes of pFedMe", (0.03, 0.1), "both tried; 0.13 is unstable")
OUTER = Setting("step sizes of pFedMe", (0.001, 0.06), "above a fifteenth models overshoot")
SEEDS = Setting("seeds of (b) and (c)", 20, "at most")

ERROR = personal.ERROR
FEDEM = "FedEM"
CLUSTERED = "CFL"


# --------------------------------------------------------------------------- scenarios


def mixture(key: Array, algorithm: A.Algorithm, clients: int, dim: int) -> fl.Simulation:
    """The synthetic data of Marfoq et al. 2021, section 4.

    A sample is of one of the distributions, and each has a linear rule with a little noise.
    """
    k_rules, k_shares, k_sizes, k_train, k_test = jax.random.split(key, 5)
    rules = jax.random.uniform(k_rules, (COMPONENTS.value, dim), minval=-1.0)
    concentrations = jnp.full(COMPONENTS.value, SHARES.value)
    shares = jax.random.dirichlet(k_shares, concentrations, (clients,))

    def drawn(key: Array, count: int) -> tuple[Array, Array]:
        k_component, k_features, k_noise = jax.random.split(key, 3)
        shape = clients, count
        component = jax.random.categorical(k_component, jnp.log(shares)[:, None], shape=shape)
        features = jax.random.uniform(k_features, (*shape, dim), minval=-1.0)
        of_rules = jnp.einsum("knd,md->knm", features, rules)
        score = jnp.take_along_axis(of_rules, component[..., None], axis=2)[..., 0]
        noise = 0.1 * jax.random.normal(k_noise, shape)
        return features, jnp.where(score + noise > 0, 1.0, -1.0)

    least, most = SIZES.value
    sizes = least + jnp.exp(4 + 2 * jax.random.normal(k_sizes, (clients,))).astype(jnp.int32)
    sizes = jnp.minimum(sizes, most)
    weights = (jnp.arange(most)[None] < sizes[:, None]) / sizes[:, None]
    test = Problem(*drawn(k_test, TEST.value), Logistic())
    problem = Problem(*drawn(k_train, most), Logistic(), weights=weights, test=test)
    return fl.Simulation(problem, algorithm, metrics=[ERROR])


def _agreement(now: Snapshot) -> Array:
    """The agreement of the clusters with the true ones, zero for an algorithm without clusters."""
    clients = jnp.arange(now.problem.clients, dtype=jnp.int32)
    found = getattr(now.state, "cluster", jnp.zeros_like(clients))
    return adjusted_rand(found, clients % GROUPS.value)


AGREEMENT = Metric("agreement", _agreement, "adjusted Rand index", bounds=(-0.5, 1.0))


def relabeled(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """In each cluster digits have labels of its own, in an order that is drawn."""
    k_data, k_test, k_orders = jax.random.split(key, 3)
    of_all = dealt(k_data, jnp.asarray(100.0), size)
    orders = jax.vmap(lambda k: jax.random.permutation(k, 10))(
        jax.random.split(k_orders, GROUPS.value)
    )
    own_order = orders[jnp.arange(size.clients) % GROUPS.value]
    labels = jnp.take_along_axis(own_order, of_all.targets.astype(jnp.int32), axis=1)
    problem = dataclasses.replace(of_all, targets=labels.astype(of_all.targets.dtype), test=None)
    return fl.Simulation(problem.split(k_test, test=0.5), algorithm, metrics=[ERROR, AGREEMENT])


# --------------------------------------------------------------------------- methods

_LOCAL: dict[str, Any] = {"batch": BATCH.value, "epochs": 1, "weighting": "samples"}
_TRIED: dict[str, Any] = {"step_size": STEPS.value}

#: Steps of a pass over the most samples that a client has.
PASS = 8

averaged = built(A.FedAvg, **_LOCAL)


def tuned_there(step_size: float) -> A.Algorithm:
    """As many steps on all of a client's samples after the common training: FedAvg+ there."""
    return A.FineTunedFedAvg(averaged(step_size), step_size, PASS)


OF_MIXTURES = {
    COMMON: (averaged, _TRIED),
    TUNED: (tuned_there, _TRIED),
    ALONE: (built(A.LocalOnly, local_steps=PASS), _TRIED),
    CLUSTERED: (
        built(
            A.CFL,
            clusters=8,
            mean_threshold=THRESHOLDS.value[0],
            client_threshold=THRESHOLDS.value[1],
            **_LOCAL,
        ),
        _TRIED,
    ),
    FEDEM: (built(A.FedEM, components=COMPONENTS.value, **_LOCAL), _TRIED),
}


def halving(step_size: float, mean_threshold: float) -> A.Algorithm:
    return A.CFL(
        step_size,
        clusters=GROUPS.value,
        mean_threshold=mean_threshold,
        client_threshold=4 * mean_threshold,
        **personal.STEPS,
    )


OF_CLUSTERS = personal.BASELINES | {
    CLUSTERED: (
        halving,
        {"step_size": personal.TRIED.value, "mean_threshold": list(STANDSTILL.value)},
    )
}


def remembering(step_size: float, interpolation: float) -> A.Algorithm:
    solver = personal.averaged(step_size)
    return A.KNNPer(solver, neighbors=NEIGHBORS.value, interpolation=interpolation)


def stepped(step_size: float, personal_step_size: float) -> A.Algorithm:
    attraction, steps = ENVELOPE.value
    return A.PFedMeByGradient(
        step_size,
        attraction=attraction,
        personal_step_size=personal_step_size,
        personal_steps=steps,
        **personal.STEPS,
    )


#: For each method of (c), its constructor, the searched numbers, and the source of its promise.
METHODS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "kNN-Per": (
        remembering,
        {"step_size": personal.TRIED.value, "interpolation": list(MIXED.value)},
        "Marfoq et al. 2022, abstract",
    ),
    "pFedMe, by gradient": (
        stepped,
        {"step_size": OUTER.value, "personal_step_size": list(INNER.value)},
        "Dinh et al. 2020, abstract",
    ),
}
OF_DIGITS = personal.BASELINES | {name: parts[:2] for name, parts in METHODS.items()}


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    seeds = min(effort.seeds, SEEDS.value)
    width = 4 if effort.quick else personal.WIDTH.value
    network = fl.models.mlp(10, (width,))

    def of_digits(name: str, scenario: Any, methods: Any, clients: int, images_each: int) -> Any:
        rounds = personal.ROUNDS.value if name == "digits" else ROUNDS_OF_CLUSTERS.value
        rounds = 10 if effort.quick else rounds
        clients = 8 if effort.quick else clients
        size = Size(images, clients, clients, images_each, rounds, network, 10)
        return compared(
            effort,
            name,
            functools.partial(scenario, size=size),
            methods,
            also=() if name == "digits" else (AGREEMENT.name,),
            metric=ERROR,
            rounds=rounds,
            seeds=seeds,
        )

    few = 10 if effort.quick else CLIENTS.value
    scenario = functools.partial(mixture, clients=few, dim=5 if effort.quick else DIM.value)
    mixtures: xr.Dataset = compared(
        effort,
        "mixtures",
        scenario,
        OF_MIXTURES,
        metric=ERROR,
        rounds=10 if effort.quick else ROUNDS.value,
        seeds=min(seeds, SEEDS_OF_MIXTURES.value),
        tuning_seeds=1,
        record_every=5,
    )
    return {
        "mixtures": mixtures,
        "clusters": of_digits("clusters", relabeled, OF_CLUSTERS, MEMBERS.value, IMAGES.value),
        "digits": of_digits(
            "digits", personal.digits, OF_DIGITS, personal.CLIENTS.value, personal.SAMPLES.value
        ),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("mixtures of three distributions", "labels of four clusters", "digits, at the end")
    drawing, axes = picture.panels(titles, columns=3, height=2.6)
    plotting.learning_curves(studies["mixtures"], ERROR, ax=axes[0])
    plotting.learning_curves(studies["clusters"], ERROR, ax=axes[1])
    ranked(axes[2], studies["digits"], ERROR, personal.END.value, above=ALONE)
    axes[2].set_xlabel(f"points above {ALONE}")
    return picture.finish(drawing, "Mixtures, clusters and memories")


# --------------------------------------------------------------------------- claims


fewer = functools.partial(fewer_errors, metric=ERROR)


def found_clusters(studies: Studies) -> dict[str, Estimate]:
    agreement = samples(last(studies["clusters"]), CLUSTERED, AGREEMENT.name)
    return {CLUSTERED: estimate(lambda a: a, agreement, unit="")}


RELABELED = "digits with labels of their own in each of four clusters, a small network"

FIGURE = Figure(
    name="headline-mixtures",
    title="Mixtures of distributions, clusters, and clients' own samples",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) The synthetic data of FedEM's paper: a client's samples are of three linear "
    "distributions in shares of its own. FedAvg-FT takes eight more steps on a client's own "
    "samples, CFL halves clusters, Local only never communicates. (b) Four clusters of clients "
    "whose digits have other labels. (c) Clients with few digits each, as in headline-personal.",
    study=study,
    plot=plot,
    tuning=chosen("mixtures", "clusters", "digits"),
    keep=(AGREEMENT.name,),
    claims=[
        Claim(
            "fedem-errs-least",
            "where clients' data are mixtures of common distributions, FedEM errs less than "
            "learning alone, one model, one model after fine tuning, and clustered learning",
            "Marfoq et al. 2021, abstract and Table 2 (synthetic)",
            fewer("mixtures", (ALONE, COMMON, TUNED, CLUSTERED), FEDEM, rounds=END.value),
            (0, INFINITE),
            condition="constant step sizes, two hundred test samples a client",
        ),
        Claim(
            "cfl-beats-one-model",
            "where clients' distributions contradict each other, clustered federated learning errs "
            "less than one model for all",
            "Sattler, Müller and Samek 2021, abstract",
            fewer("clusters", COMMON, CLUSTERED, rounds=personal.END.value),
            (0, INFINITE),
            condition=RELABELED,
        ),
        Claim(
            "cfl-beats-learning-alone",
            "and less than clients that learn alone",
            "Sattler, Müller and Samek 2021; this comparison is ours",
            fewer("clusters", ALONE, CLUSTERED, rounds=personal.END.value),
            (0, INFINITE),
            condition=RELABELED,
            ours=True,
        ),
        Claim(
            "cfl-finds-the-clusters",
            "CFL finds the clusters of the clients, without their number of members",
            "Sattler, Müller and Samek 2021, abstract (guarantees on the clusters)",
            found_clusters,
            (0.99, INFINITE),
            "an adjusted Rand index of 0.99 or more in the mean over seeds",
            condition=RELABELED,
        ),
        *personal.promises(METHODS),
    ],
    settings=[
        *(CLIENTS, COMPONENTS, DIM, SHARES, SIZES, TEST, BATCH, ROUNDS, STEPS, THRESHOLDS, END),
        *(SEEDS_OF_MIXTURES, GROUPS, MEMBERS, IMAGES, STANDSTILL, ROUNDS_OF_CLUSTERS),
        *(NEIGHBORS, MIXED, ENVELOPE, INNER, OUTER, SEEDS),
    ],
)
