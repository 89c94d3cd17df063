"""Clients with different networks: other layers, or parts of one network; and distillation."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Figure, Setting, Studies
from experiments.headlines.common import built, chosen, compared, fewer_errors, ranked
from experiments.headlines.figure_personal import ALONE, COMMON, ERROR, STEPS, TRIED
from experiments.own.figure_models import Size, dealt
from experiments.pixels import halved
from fljax import algorithms as A
from fljax.data.images import Images
from fljax.models import Architecture

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 20, "all take part in every round of (a) and (c)")
SAMPLES = Setting("images a client", 60, "of MNIST; in (a) half of them are held out")
ROUNDS = Setting("rounds", 60, "in (a) and (c) of five steps on all images of a client")
END = Setting("rounds that are read", 10, "the mean over the last")
HIDDEN = Setting(
    "hidden widths of the networks of (a)",
    ((32,), (64,), (16, 16), ()),
    "five clients each; the last is a softmax regression",
)
ALL_DIGITS = Setting("concentration of the digits of (a) and (c)", 100.0, "all, in equal numbers")
PUBLIC = Setting("public images", 500, "of MNIST's training images, without labels")
DISCUSSED = Setting("public images of a round of FedMD", 100, "one step on all of them")
DISTANCE = Setting("distance from the consensus in FedMD", "absolute", "of the authors' program")
FEW_DIGITS = Setting("concentration of the digits of (b)", 0.1, "mostly two or three digits each")
DISTILLED = Setting("steps of FedDF's distillation", 50, "on 64 public images each")
ADAM = Setting(
    "step sizes of the distillation",
    (0.0001, 0.001),
    "Adam's, falling by a cosine; both tried, the paper's is the second",
)
LOCAL = Setting("local steps of (b)", 20, "on all images; the paper's are 20 and 40 passes")
CHOSEN = Setting("participants of a round of (b)", 8, "of twenty, as in the paper")
WIDTHS = Setting("hidden widths of (c)", (32, 4), "a part of an eighth")
SEEDS = Setting("seeds", 20, "at most")

CONSENSUS = "FedMD"
ENSEMBLE = "FedDF"
MIXED = "HeteroFL, half of the clients wide"
NARROW = "FedAvg, all narrow"
WIDE = "FedAvg, all wide"
ORDERED = "FjORD, narrow part"
CUT = "FedAvg, narrow part"

_STEP: dict[str, Any] = {"step_size": TRIED.value}
OF_ROUND: dict[str, Any] = {"local_steps": LOCAL.value, "clients_per_round": CHOSEN.value}


# --------------------------------------------------------------------------- scenarios


class Held(NamedTuple):
    """An algorithm, which networks clients have, and which one is evaluated."""

    algorithm: A.Algorithm
    networks: tuple[int, ...]  # of clients in turn
    evaluated: int


def of_kinds(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    """Clients in turn have one of the networks, and test it on images of their own."""
    k_data, k_test = jax.random.split(key)
    images = dealt(k_data, jnp.asarray(ALL_DIGITS.value), size)
    problem = dataclasses.replace(images, test=None).split(k_test, test=0.5)
    numbers = jnp.arange(size.clients) % len(HIDDEN.value)
    return fl.Simulation(problem.assigning(numbers), algorithm, metrics=[ERROR])


def of_few_digits(key: Array, algorithm: A.Algorithm, size: Size) -> fl.Simulation:
    problem = dealt(key, jnp.asarray(FEW_DIGITS.value), size)
    return fl.Simulation(problem, algorithm, metrics=[ERROR])


def of_widths(key: Array, algorithm: Held, size: Size) -> fl.Simulation:
    """Clients in turn have a network or a part of it."""
    numbers = jnp.asarray(algorithm.networks)[jnp.arange(size.clients) % len(algorithm.networks)]
    images = dealt(key, jnp.asarray(ALL_DIGITS.value), size)
    problem = images.assigning(numbers, evaluated=algorithm.evaluated)
    return fl.Simulation(problem, algorithm.algorithm, metrics=[ERROR])


# --------------------------------------------------------------------------- methods


def consenting(images: Callable[[], Images]) -> Callable[[float], A.Algorithm]:
    settings: dict[str, Any] = {"public_samples": DISCUSSED.value, "distance": DISTANCE.value}
    return built(A.FedMD, public=public(images), **settings, **STEPS)


def falling_adam(learning_rate: float) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(learning_rate, DISTILLED.value))


def distilling(images: Callable[[], Images]) -> Callable[..., A.Algorithm]:
    settings: dict[str, Any] = {"distillation_steps": DISTILLED.value, "public_batch": 64}

    def build(step_size: float, learning_rate: float) -> A.Algorithm:
        optimizer = fl.optimizers.from_optax(falling_adam, learning_rate=learning_rate)
        return A.FedDF(
            step_size,
            public=public(images),
            distillation_step_size=optimizer,
            **settings,
            **OF_ROUND,
        )

    return build


def public(images: Callable[[], Images]) -> Array:
    return jnp.asarray(halved(images().train_images[: PUBLIC.value]))


def holding(
    method: type[A.HeteroFL | A.FjORD], networks: tuple[int, ...], evaluated: int
) -> tuple[Callable[[float], Held], dict[str, Any]]:
    def build(step_size: float) -> Held:
        return Held(method(step_size, **STEPS), networks, evaluated)

    return build, _STEP


OF_WIDTHS = {
    MIXED: holding(A.HeteroFL, (0, 1), 0),
    NARROW: holding(A.HeteroFL, (1,), 1),
    WIDE: holding(A.HeteroFL, (0,), 0),
    ORDERED: holding(A.FjORD, (0,), 1),
    CUT: holding(A.HeteroFL, (0,), 1),
}


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    images = fl.data.mnist_sample if effort.quick else fl.data.mnist
    clients, rounds = (8, 10) if effort.quick else (CLIENTS.value, ROUNDS.value)
    seeds = min(effort.seeds, SEEDS.value)

    def run(name: str, scenario: Any, methods: Any, network: Architecture) -> xr.Dataset:
        size = Size(images, clients, clients, SAMPLES.value, rounds, network, 10)
        return compared(
            effort,
            name,
            functools.partial(scenario, size=size),
            methods,
            metric=ERROR,
            rounds=rounds,
            seeds=seeds,
        )

    kinds = fl.models.several([fl.models.mlp(10, hidden) for hidden in HIDDEN.value])
    alone = built(A.LocalOnly, **STEPS), _STEP
    averaged = built(A.FedAvg, **OF_ROUND), _STEP
    distilled = distilling(images), _STEP | {"learning_rate": list(ADAM.value)}
    widest = fl.models.mlp(10, WIDTHS.value[:1])
    widths = fl.models.nested([fl.models.mlp(10, (width,)) for width in WIDTHS.value])
    return {
        "kinds": run(
            "kinds", of_kinds, {ALONE: alone, CONSENSUS: (consenting(images), _STEP)}, kinds
        ),
        "distilled": run(
            "distilled",
            of_few_digits,
            {COMMON: averaged, ENSEMBLE: distilled},
            widest,
        ),
        "widths": run("widths", of_widths, OF_WIDTHS, widths),
    }


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("four kinds of networks", "distillation at the server", "parts of a network")
    drawing, axes = picture.panels(titles, columns=3, height=2.4)
    fl.plotting.learning_curves(studies["kinds"], ERROR, ax=axes[0])
    fl.plotting.learning_curves(studies["distilled"], ERROR, ax=axes[1])
    ranked(axes[2], studies["widths"], ERROR, END.value)
    return picture.finish(drawing, "Clients with different networks")


# --------------------------------------------------------------------------- claims

fewer = functools.partial(fewer_errors, metric=ERROR, rounds=END.value)
KINDS = "digits of twenty clients with thirty images each, four kinds of small networks"
PARTS = "digits of twenty clients, a hidden layer of 32 units and of 4"

FIGURE = Figure(
    name="headline-networks",
    title="Clients with different networks, and distillation by public images",
    source="the papers of the algorithms, cited at each claim",
    caption="(a) Clients whose networks have other layers discuss their predictions of public "
    "images in FedMD, or learn alone. (b) Clients with few digits each: FedDF distills all "
    "clients' predictions of public images into the server's network. (c) Networks of two widths, "
    "of which the narrow one is a part of the wide one: which is trained, and which is evaluated.",
    study=study,
    plot=plot,
    tuning=chosen("kinds", "distilled", "widths"),
    claims=[
        Claim(
            "fedmd-beats-learning-alone",
            "clients with networks of their own err less with FedMD than alone",
            "Li and Wang 2019, abstract",
            fewer("kinds", ALONE, CONSENSUS),
            (0, INFINITE),
            condition=KINDS,
            note="In the paper all clients first train on public images with labels; here they "
            "begin at random.",
        ),
        Claim(
            "feddf-beats-fedavg",
            "with an ensemble's distillation the server errs less after as many rounds than FedAvg",
            "Lin et al. 2020, abstract",
            fewer("distilled", COMMON, ENSEMBLE),
            (0, INFINITE),
            condition="digits of twenty clients, mostly two or three each, a small network",
            note="The parameters of so small a network average well, and the ensemble of clients "
            "that know few digits each teaches it no more.",
        ),
        Claim(
            "heterofl-beats-the-narrow-network",
            "with a wide network at half of the clients and its narrow part at the others, the "
            "wide one errs less than the narrow one of all",
            "Diao, Ding and Tarokh 2021, section 4 and Figure 2",
            fewer("widths", NARROW, MIXED),
            (0, INFINITE),
            condition=PARTS,
        ),
        Claim(
            "fjord-extracts-a-narrow-network",
            "a narrow part of a network that is trained with ordered dropout errs less than that "
            "of one trained without, and needs no further training",
            "Horvath et al. 2021, abstract",
            fewer("widths", CUT, ORDERED),
            (0, INFINITE),
            condition=PARTS,
        ),
        Claim(
            "fjord-is-as-good-as-narrow",
            "and is within a point of a narrow network that is trained by itself",
            "Horvath et al. 2021; this comparison is ours",
            fewer("widths", NARROW, ORDERED),
            (-1, INFINITE),
            condition=PARTS,
            ours=True,
        ),
    ],
    settings=[
        *(CLIENTS, SAMPLES, ROUNDS, END, HIDDEN, ALL_DIGITS, PUBLIC, DISCUSSED, DISTANCE),
        *(FEW_DIGITS, LOCAL, CHOSEN, DISTILLED, ADAM, WIDTHS, TRIED, SEEDS),
    ],
)
