"""Rizk 2023, chapter 4: privacy, and local graph-homomorphic noise.

The chapter draws no such figure.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from scipy import stats

import fljax as fl
from experiments import picture
from experiments.conventions import SAME, Meaning
from experiments.figure import Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate
from experiments.rizk import chapter4 as ch4
from experiments.rizk import network as net
from fljax import plotting
from fljax._core.module import float_dtype
from fljax.audit import overheard
from fljax.link import GraphHomomorphic, LocalGraphHomomorphic, PerEdge, PerMessage
from fljax.results.dataset import provenance
from fljax.theory.multiagent_privacy import epsilon

VARIANCE = Setting("variance σ²", ch4.VARIANCE.value, "that of figure 4.4", given=True)
DRAWS = Setting("(a) draws of a seed", 4000, "the shape is of all of them, the variance by seed")
NETWORKS = Setting(
    "(b) networks", ("ring", "as in figure 4.4", "8-regular", "star"), "few neighbors and many"
)
OTHERS = Setting(
    "(c) eavesdroppers and neighbors",
    10,
    "of so many peers each, on all edges for one round: (4.34) is against whoever hears all that "
    "a peer says; the rest is known, as (4.32) conditions on it",
)
RATIOS = Setting(
    "(d) variances of the noise by that of the model",
    (0.01, 0.1, 1, 10, 100),
    "two decades either way",
)
PAIRS = Setting("(d) messages of a seed", 4000, "their correlation is within a few per cent")

PRINTED = "as printed, sqrt(2)/sigma"
CORRECTED = "corrected, sigma/sqrt(2)"
SCHEMES = {
    net.RANDOM: PerEdge(VARIANCE.value),
    net.HOMOMORPHIC: GraphHomomorphic(VARIANCE.value),
    net.LOCAL: LocalGraphHomomorphic(VARIANCE.value),
}
EAVESDROPPER = "eavesdropper"
NEIGHBOR = "one neighbor"
REST = "the rest"
ITSELF = "itself alone"
PLACES = np.linspace(0.005, 0.995, 67)


def graphs() -> dict[str, fl.graphs.Graph]:
    nodes = ch4.PEERS.value
    regular = fl.graphs.k_regular(fl.random_key(0), nodes, 8)
    networks = (fl.graphs.ring(nodes), ch4.world()[1], regular, fl.graphs.star(nodes))
    return dict(zip(NETWORKS.value, networks, strict=True))


def number_distribution(seeds: int) -> xr.Dataset:
    """The distribution of numbers that two peers agree on, relative to the intended one."""
    keys = [fl.random_key(seed) for seed in range(seeds)]
    ratio = np.stack([fl.contrib.log_ratio(key, (DRAWS.value,)) for key in keys])
    second = np.mean(ratio**2, axis=1)
    sigma = VARIANCE.value**0.5
    factors = {PRINTED: 2**0.5 / sigma, CORRECTED: sigma / 2**0.5}
    values = [factor**2 * second / VARIANCE.value for factor in factors.values()]
    return xr.Dataset(
        {
            "variance": (("constant", "seed"), np.stack(values)),
            "kurtosis": ("seed", np.mean(ratio**4, axis=1) / second**2),
            "quantile": ("place", np.quantile(ratio, PLACES)),
        },
        {"constant": list(factors), "place": PLACES},
        provenance(root=0, dtype=str(ratio.dtype)),
    )


def agreed() -> xr.Dataset:
    """Messages to agree on draws, of each peer, and the most that the source has."""
    counts = []
    most = []
    noise = SCHEMES[net.LOCAL]
    for graph in graphs().values():
        over = graph.mixing("metropolis")
        joined = np.asarray(over.matrix()) > 0
        sizes = joined.sum(axis=1)  # a peer is among its own neighbors
        counts.append(noise.agreements(over))
        most.append(sizes + (joined @ sizes - sizes) / 2)
    data = {"exchanged": np.stack(counts), "most": np.stack(most)}
    return xr.Dataset(
        {name: (("network", "peer"), value.astype(float)) for name, value in data.items()},
        {"network": list(NETWORKS.value)},
    )


def relative_epsilon() -> xr.Dataset:
    """The epsilon that holds against attackers in one round, over that of (4.34)."""
    over = ch4.world()[1].mixing("metropolis")
    joined = (np.asarray(over.matrix()) > 0) & ~np.eye(over.nodes, dtype=bool)
    printed = float(epsilon(np.ones(1), VARIANCE.value, copies=over.nodes)[0])

    def against(noise: fl.link.Noise, victim: int) -> list[list[float]]:
        neighbor = int(np.flatnonzero(joined[victim])[0])
        all_edges = overheard(noise, over, victim, eavesdropper=True)
        single_edge = overheard(noise, over, victim, neighbor)
        return [[ledger.epsilon, ledger.uninformed] for ledger in (all_edges, single_edge)]

    values = [[against(n, k) for k in range(OTHERS.value)] for n in SCHEMES.values()]
    axes = ("scheme", "peer", "attacker", "knows")
    return xr.Dataset(
        {"share": (axes, np.asarray(values) / printed)},
        {
            "scheme": list(SCHEMES),
            "attacker": [EAVESDROPPER, NEIGHBOR],
            "knows": [REST, ITSELF],
        },
    )


def information(seeds: int) -> xr.Dataset:
    """The mutual information of Gaussian models of variance one with their noisy messages."""
    result = np.zeros((seeds, len(RATIOS.value)))
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        model = rng.normal(size=PAIRS.value)
        for index, variance in enumerate(RATIOS.value):
            noise = PerMessage(variance, law="gaussian")
            drawn = noise.draw(fl.random_key(seed), (PAIRS.value, 1), float_dtype())
            received = model + np.asarray(drawn)[:, 0]
            result[seed, index] = -np.log(1 - np.corrcoef(model, received)[0, 1] ** 2) / 2
    return xr.Dataset(
        {"nats": (("seed", "variance"), result, {"long_name": "mutual information [nats]"})},
        {"variance": list(RATIOS.value)},
    )


def study(effort: Effort) -> Studies:
    return {
        "law": number_distribution(effort.seeds),
        "agreed": agreed(),
        "told": relative_epsilon(),
        "information": information(effort.seeds),
    }


def by_formula(variance: np.ndarray | float) -> np.ndarray:
    """(4.61), of models of variance one."""
    return np.log1p(1 / np.asarray(variance)) / 2


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("law of agreed numbers", "messages to agree", "epsilon of one message")
    titles += ("mutual information",)
    drawing, axes = picture.panels(titles, columns=2)
    expected = stats.laplace.ppf(PLACES)
    axes[0].plot(expected, studies["law"]["quantile"], **plotting.LOOKS[0] | net.DOTS)
    picture.predicted_curve(axes[0], expected, expected, "Laplace's law")
    axes[0].set(xlabel="quantiles of Laplace's law", ylabel="quantiles of ln(v/v')")
    for index, name in enumerate(NETWORKS.value):
        part = studies["agreed"].sel(network=name)
        look = plotting.LOOKS[index] | net.DOTS
        axes[1].plot(part["most"], part["exchanged"], label=name, **look)
    ends = np.asarray([1, float(studies["agreed"]["most"].max())])
    picture.predicted_curve(axes[1], ends, ends, "bound")
    axes[1].set(xscale="log", yscale="log", xlabel="bound of the source", ylabel="messages a round")
    draw_told(axes[2], studies["told"])
    data = studies["information"]
    axes[3].plot(data["variance"], data["nats"].mean("seed"), label="measured", **plotting.LOOKS[0])
    at = np.geomspace(min(RATIOS.value), max(RATIOS.value), 50)
    picture.predicted_curve(axes[3], at, by_formula(at), "(4.61)")
    axes[3].set(xscale="log", yscale="log", xlabel="σ² of the noise / σ² of the model")
    axes[3].set_ylabel("mutual information [nats]")
    return picture.finish(drawing, f"{data.sizes['seed']} seeds")


def draw_told(ax: Axes, data: xr.Dataset) -> None:
    """A mark for each peer; infinite epsilons are at the top."""
    top = 10.0
    for index, scheme in enumerate(data["scheme"].values):
        look = net.LOOKS[scheme] | net.DOTS
        for side, attacker in enumerate(data["attacker"].values):
            share = data["share"].sel(scheme=scheme, attacker=attacker, knows=REST).values
            at = side + 0.2 * (index - 1) + np.linspace(-0.06, 0.06, len(share))
            label = scheme if not side else "_"
            ax.plot(at, np.where(np.isfinite(share), share, top), label=label, **look)
    ax.axhline(1, color="#999999", linewidth=0.8)
    ax.set(yscale="log", xlim=(-0.5, 1.5), ylabel="measured / printed (4.34)")
    ax.set_xticks([0, 1], data["attacker"].values)
    ax.set_yticks([0.01, 0.1, 1, top], ["0.01", "0.1", "1", "∞"])


# --------------------------------------------------------------------------- claims


def variance_of(constant: str) -> Measure:
    """The variance of agreed numbers, in units of the wanted one."""
    return lambda studies: {
        constant: estimate(
            lambda a: a, studies["law"]["variance"].sel(constant=constant).values, unit="times"
        )
    }


def shape(studies: Studies) -> dict[str, Estimate]:
    return {"kurtosis": estimate(lambda a: a, studies["law"]["kurtosis"].values, unit="")}


def cost(studies: Studies) -> dict[str, Estimate]:
    """The largest number of messages over the bound, by network."""
    share = (studies["agreed"]["exchanged"] / studies["agreed"]["most"]).max("peer")
    return {
        str(name): Estimate.exact(float(share.sel(network=name)), "of the bound")
        for name in share["network"].values
    }


def finite(scheme: str, knows: str = REST) -> Measure:
    """The percentage of peers with a finite epsilon of at most (4.34)."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        share = studies["told"]["share"].sel(scheme=scheme, knows=knows)
        return {
            str(attacker): Estimate.exact(
                100 * float((share.sel(attacker=attacker) <= 1).mean()), "% of the peers"
            )
            for attacker in share["attacker"].values
        }

    return measure


def nats(studies: Studies) -> dict[str, Estimate]:
    """The mutual information over that of (4.61)."""
    data = studies["information"]["nats"]
    return {
        f"σ² ratio {v:g}": estimate(
            lambda a, v=v: a / by_formula(v), data.sel(variance=v).values, unit="times"
        )
        for v in data["variance"].values
    }


EXPOSED = (
    "A peer's message to a receiver is masked by draws that cancel in the receiver's sum: against "
    "who knows the other summands no epsilon is finite. (4.32) takes messages to be independent, "
    "which masks are not."
)
ALL_PEERS = Meaning((100, 100), "of all of them")

FIGURE = Figure(
    name="rizk-4.theory",
    title="What local noise hides, from whom, and at what cost",
    source="Rizk 2023, section 4.3.4",
    caption="(a) numbers that two peers agree on by (4.58) and (4.59), against the law that they "
    "should have. (b) messages that a peer sends in a round for pairs to agree, and the most that "
    "the source has for it. (c) the smallest epsilon that holds of one round's message, by "
    "fljax.audit.overheard, over that of (4.34); ∞: what is said can be computed. (d) mutual "
    "information of Gaussian messages.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "agreed-numbers-are-laplace",
            "the logarithm of the ratio of two such numbers is Laplacian",
            "section 4.3.4, Definition 4.2, appendix 4.E",
            shape,
            (5.5, 6.5),
            "kurtosis: that of Laplace's law is 6; the quantiles are in (a)",
            changed="New: a statement of the source that no claim was about.",
        ),
        Claim(
            "agreed-numbers-have-the-variance",
            "the noise (4.60) has the variance σ²",
            "section 4.3.4, (4.60), Lap(0, sigma/sqrt(2))",
            variance_of(PRINTED),
            *SAME.factor,
            note="A number of Laplace's law with scale one has the variance 2, so that "
            "sqrt(2)/sigma of it has 4/σ², and not σ². In appendix 4.E, (4.114), sigma/sqrt(2) is "
            "taken for the rate of what is meant as its scale.",
            changed="New: a statement of the source that no claim was about.",
        ),
        Claim(
            "agreed-numbers-have-the-variance-if-corrected",
            "the noise (4.60) has the variance σ²",
            "section 4.3.4, (4.60), Lap(0, sigma/sqrt(2))",
            variance_of(CORRECTED),
            *SAME.factor,
            condition="with sigma/sqrt(2) in the place of sqrt(2)/sigma",
            changed="New, as above.",
        ),
        *(
            Claim(
                f"{name}-is-private",
                f"under {scheme} perturbations the algorithm is private with the epsilon of (4.34)",
                where,
                finite(scheme),
                *ALL_PEERS,
                condition="the first round, in which (4.34) is sqrt(2) P/sigma times how far a "
                "message moves",
                note=note,
                changed="New: a theorem of the source that no claim was about.",
            )
            for name, scheme, where, note in (
                ("random", net.RANDOM, "section 4.3.2, (4.32)-(4.34)", ""),
                ("homomorphic", net.HOMOMORPHIC, "section 4.3.3, (4.34)", ""),
                (
                    "local",
                    net.LOCAL,
                    "Theorem 4.3",
                    EXPOSED,
                ),
            )
        ),
        Claim(
            "local-hides-from-others",
            "under local perturbations it is private against who knows no message but its own",
            "section 4.3.4 has no such condition",
            finite(net.LOCAL, ITSELF),
            *ALL_PEERS,
            ours=True,
            note="Who hears all edges adds up what partners say to one receiver, and so gets every "
            "receiver's sum.",
            changed="New.",
        ),
        Claim(
            "messages-to-agree",
            "to agree costs a peer at most |N_k| and half of its neighbors' neighborhoods",
            "section 4.3.4, after Theorem 4.3",
            cost,
            (0, 1),
            "a peer is among its own neighbors",
            changed="New: a statement of the source that no claim was about.",
        ),
        Claim(
            "mutual-information",
            "the mutual information of a Gaussian message with its noise is that of (4.61)",
            "section 4.3.4, (4.61)",
            nats,
            *SAME.factor,
            changed="New: a statement of the source that no claim was about.",
        ),
    ],
    settings=(VARIANCE, DRAWS, NETWORKS, OTHERS, RATIOS, PAIRS, ch4.DEGREE, net.MIXING),
)
