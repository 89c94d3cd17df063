"""What an algorithm can be combined with: the library's own comparison of its needs with parts."""

import re
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax.numpy as jnp
from settings import CLIENTS, simulation_of

import fljax as fl
from fljax.algorithms import Algorithm, Needs
from fljax.graphs import Graph
from fljax.simulation.compatibility import PARTS, unmet


class Part(NamedTuple):
    """A part of a simulation, with its argument and an example of it."""

    name: str
    argument: str
    example: Any

    @property
    def field(self) -> str:
        return self.argument.partition("=")[0]


@cache
def parts(needs: Needs) -> tuple[Part, ...]:
    """The parts that some algorithms can be combined with and others not, with an example that fits
    the needs.
    """
    attackers = jnp.arange(CLIENTS) < 1
    ring = fl.graphs.ring(CLIENTS)
    budget = fl.privacy.ApproximateDP(1.0, 1e-5) if needs.budget else fl.privacy.ZCDP(1.0)
    devices = fl.clock.Devices(seconds_per_step=1.0)
    uploads = fl.link.UploadNoise(0.1, on=(*needs.uploads, "models")[0])
    return (
        Part("absent clients", "participation=", fl.participation.Bernoulli(0.9)),
        Part("late messages", "delays=", fl.link.Fixed(1)),
        Part("lost messages", "losses=", fl.link.Independent(0.1)),
        Part("compressed messages", "compression=", fl.link.TopK(1)),
        Part("Byzantine attackers", "attack=", fl.attacks.SignFlip(attackers)),
        Part("a robust aggregator", "aggregation=", fl.aggregation.Median()),
        Part("privacy by noise on messages", f"privacy={type(budget).__name__}", budget),
        Part(
            "privacy by noise of a trusted server",
            "privacy=CentralGaussian",
            fl.privacy.CentralGaussian(1.0),
        ),
        Part(
            "privacy by noise on gradients",
            "privacy=NoisyGradients",
            fl.privacy.NoisyGradients(1.0),
        ),
        Part("masks on uploads", "masks=", fl.link.SecureAggregation(8.0)),
        Part("noise on uploads", "upload_noise=", uploads),
        Part("noise between peers or servers", "noise=", fl.link.PerMessage(0.1)),
        Part("a clock of single arrivals", "clock=Asynchronous", fl.clock.Asynchronous(devices)),
        Part("a graph that changes", "network=", fl.graphs.GraphSchedule([ring, ring])),
    )


def refusal(cls: type[Algorithm], part: Part) -> str:
    """Why the algorithm cannot be combined with a part; empty if it can."""
    simulation = simulation_of(cls)
    if part.field == "network" and cls.needs.network is not Graph:
        return "has no graph of peers."
    values = {name: getattr(simulation, name) for name in (*PARTS, "honest_only")}
    combination: Any = SimpleNamespace(**values | {part.field: part.example})
    reasons = (text for text, elsewhere in unmet(cls.needs, combination) if elsewhere)
    return next(reasons, "")


def short(reason: str) -> str:
    """A reason without what to do instead."""
    text = re.split(r"; |, got |: ", reason)[0].rstrip(".")
    return f"no: it {text}"
