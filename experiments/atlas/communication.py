"""Compressed messages with the methods that theory has for them: bits until a target."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

import fljax as fl
from experiments.atlas.convex import DISSIMILARITY, logistic_data
from experiments.atlas.labels import skewed
from experiments.atlas.links import with_parts
from experiments.atlas.scenario import COSTS_OF_MESSAGES, COSTS_OF_UPLOADS, Rule, Scenario
from fljax.link import Quantize, RandomK, TopK

CLIENTS = 20
DIM = 64
#: Ratio of the largest to the least variance of a feature; a factor of all features, with which
#: good step sizes are near one; and the factor of the squared norm. The condition number of the
#: objective is about 100.
CONDITION = 4.0
SCALE = 4.0
STRENGTH = 0.048
LIKENESS = "mildly unlike"
LOCAL_STEPS = 5
#: Bits of a number, and the number of whole models for which a client has bits.
NUMBER = 32
MODELS = 24
#: Records of a run, about.
RECORDS = 100
#: Runs are so much longer than the bits need on average where a method draws when all is sent; a
#: run that has still sent fewer is read at its end.
MARGIN = 1.2
#: Numbers of a model that are sent: the largest, with their places, or drawn ones.
KEPT = 4
DRAWN = 5
#: Bits of a number that is rounded at random.
ROUNDED = 3
#: Clients that send each number of TAMUNA's models.
SENDERS = 4
#: Share of rounds in which Scaffnew's clients send models.
COMMUNICATING = 0.2


@jax.jit
def _data(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    features, labels = logistic_data(key, CONDITION, DISSIMILARITY[LIKENESS], CLIENTS, DIM)
    return SCALE * features, labels


def convex(key: jax.Array) -> fl.problems.Problem:
    """Regularized logistic regression, of more parameters than in other scenarios."""
    features, labels = _data(key)
    penalty = fl.problems.SquaredL2()
    return fl.problems.Problem(features, labels, fl.problems.Logistic(), penalty, STRENGTH)


def rule(
    words: str,
    bits: float,
    round_bits: float,
    more: Mapping[str, Any] | None = None,
    margin: float = 1.0,
    **given: Any,
) -> Rule:
    """A rule with as many rounds as are needed to send these bits.

    Args:
      words: the rule's.
      bits: that all clients may send together.
      round_bits: bits that they send in a round, on average.
      more: parts of the simulation.
      margin: how many times the bits are sent on average.
      given: arguments of the algorithm.
    """
    needed = math.ceil(margin * bits / round_bits)
    record_every = max(needed // RECORDS, 1)
    rounds = math.ceil(needed / record_every) * record_every
    return Rule(words, None, rounds, record_every, given, more or {})


WHOLE = "clients send whole models"
LARGEST = "clients send the largest numbers, with their places"
DRAWN_WORDS = "clients send numbers that are drawn"
ROUNDED_WORDS = f"clients send numbers of {ROUNDED} bits, rounded at random"


def at_server(
    dim: int, bits: float, kept: int, drawn: int, participants: int | None = None
) -> dict[str, Rule]:
    """Methods of one server. With a contractive compressor they send the largest numbers, with an
    unbiased one drawn or rounded numbers.

    Args:
      dim: parameters of a model.
      bits: that all clients may send together.
      kept: how many numbers are the largest.
      drawn: how many numbers are drawn.
      participants: of a round, all by default.
    """
    count = participants or CLIENTS
    participation: dict[str, Any] = (
        {} if participants is None else {"clients_per_round": participants}
    )
    whole_bits = count * NUMBER * dim
    largest = TopK(kept)
    random = RandomK(drawn)
    quantizer = Quantize(ROUNDED)
    random_bits = count * random.bits(dim)
    # The usual probability of full gradients, with which they are as many numbers as the others.
    probability = drawn / dim * count / CLIENTS
    full_bits = CLIENTS * NUMBER * dim
    return {
        "FedAvg (one step)": rule(
            f"{WHOLE}, after one step", bits, whole_bits, local_steps=1, **participation
        ),
        "FedAvg (five steps)": rule(
            f"{WHOLE}, after five local steps",
            bits,
            whole_bits,
            local_steps=LOCAL_STEPS,
            **participation,
        ),
        "FedAvg (rounded)": rule(
            f"{ROUNDED_WORDS}, of an update after one step, and nothing corrects the errors",
            bits,
            count * quantizer.bits(dim),
            {"compression": quantizer},
            local_steps=1,
            **participation,
        ),
        "EF21": rule(
            LARGEST, bits, count * largest.bits(dim), compression=largest, **participation
        ),
        "EF-SGD": rule(
            LARGEST,
            bits,
            count * largest.bits(dim),
            compression=largest,
            local_steps=1,
            **participation,
        ),
        "DIANA (drawn)": rule(DRAWN_WORDS, bits, random_bits, compression=random, **participation),
        "DIANA (rounded)": rule(
            ROUNDED_WORDS, bits, count * quantizer.bits(dim), compression=quantizer, **participation
        ),
        "MARINA": rule(
            f"{DRAWN_WORDS}, at times all",
            bits,
            (1 - probability) * random_bits + probability * full_bits,
            margin=MARGIN,
            compression=random,
            probability=probability,
            **participation,
        ),
    }


def only_all(dim: int, bits: float, kept: int, drawn: int) -> dict[str, Rule]:
    """Methods in whose rounds all clients take part."""
    random = RandomK(drawn)
    return {
        "EF21-BC": rule(
            f"{LARGEST}, and so does the server",
            bits,
            CLIENTS * TopK(kept).bits(dim),
            compression=TopK(kept),
            downlink=TopK(kept),
        ),
        "DASHA": rule(DRAWN_WORDS, bits, CLIENTS * random.bits(dim), compression=random),
    }


def tamuna(bits: float, dim: int, participants: int, senders: int) -> Rule:
    """After local steps each number is sent by a few of the participants."""
    return rule(
        f"each number is sent by {senders} of {participants} clients, after five local steps",
        bits,
        senders * NUMBER * dim,
        sparsity=senders,
        local_steps=LOCAL_STEPS,
        clients_per_round=participants,
    )


THEORY = (
    "Uploads are the slow part of federated learning. Compressed gradients alone stop short of the "
    "optimum where clients differ, and the methods here have a theory of how to go on "
)
#: The normalized error is a sum over clients: this is a relative error of each of -15 dB.
TARGET = CLIENTS * 3e-2
BITS = float(MODELS * CLIENTS * NUMBER * DIM)

Scenario(
    "few-bits-convex",
    "Bits until a target with one server, logistic regression",
    THEORY + "(Mishchenko et al. 2019; Richtarik et al. 2021; Gorbunov et al. 2021).",
    "Logistic regression of 64 parameters; clients of one server may send few bits",
    partial(with_parts, more={}, make=convex),
    "normalized_error",
    target=TARGET,
    rounds=MODELS,
    axes={"problem": "logistic regression", "dissimilarity": DISSIMILARITY[LIKENESS]},
    given={},
    bits=BITS,
    costs=COSTS_OF_UPLOADS,
    rules=at_server(DIM, BITS, KEPT, DRAWN)
    | only_all(DIM, BITS, KEPT, DRAWN)
    | {
        "ADIANA": rule(
            f"{DRAWN_WORDS}, twice in a round",
            BITS,
            2 * CLIENTS * RandomK(DRAWN).bits(DIM),
            compression=RandomK(DRAWN),
            convexity=STRENGTH,
        ),
        "CANITA": rule(
            f"{DRAWN_WORDS}, twice in a round",
            BITS,
            2 * CLIENTS * RandomK(DRAWN).bits(DIM),
            compression=RandomK(DRAWN),
        ),
        "Scaffnew": rule(
            f"{WHOLE}, in one of five rounds on average",
            BITS,
            COMMUNICATING * CLIENTS * NUMBER * DIM,
            margin=MARGIN,
            probability=COMMUNICATING,
        ),
        "TAMUNA": tamuna(BITS, DIM, CLIENTS, SENDERS),
    },
)

#: Clients of a round where the server draws them, and the rounds in which they send whole models.
PARTICIPANTS = CLIENTS // 4
BITS_OF_SOME = float(60 * PARTICIPANTS * NUMBER * DIM)

Scenario(
    "few-bits-some",
    "Bits until a target with one server that draws a quarter of the clients",
    "Servers reach a part of their clients, whose compressed differences then have the error of "
    "who is drawn besides that of what is sent (Gorbunov et al. 2021, PP-MARINA; Fatkhullin et al. "
    "2021, EF21-PP; Condat et al. 2023).",
    "Logistic regression of 64 parameters; a quarter of the clients of one server take part, and "
    "may send few bits",
    partial(with_parts, more={}, make=convex),
    "normalized_error",
    target=TARGET,
    rounds=60,
    axes={"problem": "logistic regression", "participation": PARTICIPANTS / CLIENTS},
    given={},
    bits=BITS_OF_SOME,
    costs=COSTS_OF_UPLOADS,
    rules=at_server(DIM, BITS_OF_SOME, KEPT, DRAWN, PARTICIPANTS)
    | {
        "SCAFFOLD": rule(
            f"{WHOLE}, and a control variate, after five local steps",
            BITS_OF_SOME,
            2 * PARTICIPANTS * NUMBER * DIM,
            local_steps=LOCAL_STEPS,
            clients_per_round=PARTICIPANTS,
        ),
        "TAMUNA": tamuna(BITS_OF_SOME, DIM, PARTICIPANTS, 2),
    },
)

HIDDEN = 8
FEATURES = 22
#: Parameters of the network of two layers, and the rounds in which clients send whole models.
NETWORK = (FEATURES + 1) * HIDDEN + (HIDDEN + 1) * 2
CONCENTRATION = 1.0
BITS_OF_NETWORK = float(16 * CLIENTS * NUMBER * NETWORK)
RANK = 1
#: Numbers of the factors of both matrices, and biases.
FACTORS = (FEATURES + 2 * HIDDEN + 2) * RANK + HIDDEN + 2

_network = partial(skewed, data="ijcnn1", network=True, concentration=CONCENTRATION, hidden=HIDDEN)

Scenario(
    "few-bits-network",
    "Bits until a target with one server, a network of two layers",
    "Objectives that are not convex are what MARINA, EF21 and DASHA have rates for, and matrices "
    "of parameters are what PowerSGD makes short (Vogels et al. 2019; Gorbunov et al. 2021; Tyurin "
    "and Richtarik 2023).",
    "ijcnn1 with a network of two layers; clients of one server, labels skewed by Dirichlet "
    f"{CONCENTRATION:g}, may send few bits",
    _network,
    "test_error",
    target=0.26,
    rounds=16,
    axes={
        "data": "ijcnn1",
        "model": "a network of two layers",
        "concentration": CONCENTRATION,
    },
    given={},
    bits=BITS_OF_NETWORK,
    costs=COSTS_OF_UPLOADS,
    rules=at_server(NETWORK, BITS_OF_NETWORK, 12, 16)
    | only_all(NETWORK, BITS_OF_NETWORK, 12, 16)
    | {
        "PowerSGD": rule(
            "clients send factors of rank one of each matrix",
            BITS_OF_NETWORK,
            CLIENTS * NUMBER * FACTORS,
            rank=RANK,
        )
    },
    tuning_parts=partial(_network, validated=True),
)

#: The peers' grid; its messages of a round, in both directions of each edge; and the bits of 60
#: rounds of whole models.
ROWS = 4
GRID = fl.graphs.grid(ROWS, CLIENTS // ROWS)
MESSAGES = int(np.sum(GRID.adjacency > 0))
BITS_OF_PEERS = float(60 * MESSAGES * NUMBER * DIM)
#: More numbers than at a server: with fewer, gossip by differences is stable for some seeds only at
#: the consensus step sizes that are the fastest for others.
KEPT_BY_PEERS = 8


def among_peers(key: jax.Array) -> dict[str, Any]:
    """The same logistic regression of peers on a grid."""
    return {"problem": convex(key), "network": GRID}


def by_peers() -> dict[str, Rule]:
    """Methods among peers: each sends its message to all of its neighbors."""
    model_bits = MESSAGES * NUMBER * DIM
    largest = TopK(KEPT_BY_PEERS)
    quantizer = Quantize(ROUNDED)
    largest_bits = MESSAGES * largest.bits(DIM)
    rounded_bits = MESSAGES * quantizer.bits(DIM)
    return {
        "ATC": rule("peers send models", BITS_OF_PEERS, model_bits),
        "NIDS": rule("peers send models", BITS_OF_PEERS, model_bits),
        "ATC tracking": rule("peers send a model and a tracker", BITS_OF_PEERS, 2 * model_bits),
        "DeTAG": rule(
            "peers send a model and a tracker twice in a round", BITS_OF_PEERS, 4 * model_bits
        ),
        "ATC (rounded)": rule(
            f"peers send models in numbers of {ROUNDED} bits, and nothing corrects the errors",
            BITS_OF_PEERS,
            rounded_bits,
            {"compression": quantizer},
        ),
        "Choco-SGD": rule(
            "peers send the largest numbers of a difference, with their places",
            BITS_OF_PEERS,
            largest_bits,
            compression=largest,
        ),
        **{
            label: rule(
                "peers send the largest numbers of two differences, with their places",
                BITS_OF_PEERS,
                2 * largest_bits,
                compression=largest,
            )
            for label in ("BEER", "MoTEF")
        },
        **{
            label: rule(
                f"peers send a difference in numbers of {ROUNDED} bits, rounded at random",
                BITS_OF_PEERS,
                rounded_bits,
                compression=quantizer,
            )
            for label in ("LEAD", "CEDAS")
        },
    }


Scenario(
    "few-bits-peers",
    "Bits until a target among peers",
    "Compressed gossip stops short of the optimum unless what is compressed vanishes there "
    "(Koloskova et al. 2019; Zhao et al. 2022, BEER; Liu et al. 2021, LEAD).",
    "Logistic regression of 64 parameters; mildly unlike peers on a grid may send few bits",
    among_peers,
    "normalized_error",
    target=CLIENTS * 8e-2,
    rounds=60,
    axes={"graph": "grid", "dissimilarity": DISSIMILARITY[LIKENESS]},
    talks="peers",
    given={},
    bits=BITS_OF_PEERS,
    costs=COSTS_OF_MESSAGES,
    rules=by_peers(),
)
