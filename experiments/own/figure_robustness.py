r"""Attackers against aggregators: four algorithms, five attacks, six ways to combine messages.

The error is that of honest clients alone, the mean over them of

.. math:: \|w_k-w_k^\star\|^2/\|w_k^\star\|^2,

where :math:`w_k^\star` is client ``k``'s limit without attackers: the minimizer :math:`w_H` of the
sum of the *honest* clients' objectives; for Ditto that of :math:`f_k(v)+\frac\lambda2\|v-w_H\|^2`.
It is computed in closed form for every set of attackers, from clean data. The attackers are drawn
independently for each seed, and the set grows with the share. Points differ only in traced numbers,
so an algorithm with an aggregator is one compiled program for all attacks, shares and seeds.
Ditto's common model equals FedAvg's in every run, so both are read from one run.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Key
from matplotlib.figure import Figure as Picture
from scipy import stats

import fljax as fl
from experiments import conventions, measures, picture
from experiments.attackers import OneOf
from experiments.conventions import Meaning
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from fljax import attacks, plotting, statistics
from fljax._core.linalg import spd_solve
from fljax._core.module import float_dtype, replace
from fljax._core.numerics import HIGHEST
from fljax._core.random_subsets import shuffled
from fljax.algorithms import Algorithm, Ditto, FedAvg, GraphFedAvg, ZCDPGradNFL
from fljax.algorithms.personalized.ditto import DittoState
from fljax.link.aggregation import (
    Aggregator,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
)
from fljax.metrics.definitions import Metric, Snapshot
from fljax.problems import LeastSquares, Problem, Tasks, optimum

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 30, "each share below is a whole number of them")
SAMPLES = Setting("samples per client N", 20, "twice the parameters: each client has a minimizer")
DIM = Setting("parameters D", 10, "enough for directions to matter, few enough for one study")
SPREAD = Setting(
    "spread of the clients' models",
    0.3,
    "w_k = w + 0.3 N(0, I), w ~ N(0, I): a client's own model is about 10 dB below zero error of "
    "the common one, so clients must learn together and yet say different things",
)
NOISE = Setting("noise variance", 0.1, "as in the other synthetic figures; features are N(0, I)")
ROUNDS = Setting(
    "rounds", 100, "undisturbed, the slowest direction shrinks by 0.86 a round: to below -60 dB"
)
SEEDS = Setting(
    "seeds at most",
    50,
    "intervals of an order or of a rise by decibels are a decibel wide with them; what more would "
    "decide is said to be undecided",
)
LOCAL = Setting(
    "local steps E of FedAvg, GFL and Ditto", 5, "so that clients drift apart in a round"
)
STEP = Setting(
    "step sizes",
    0.1,
    "over the local steps of a round together, 0.02 each; 0.05 among peers and 0.1 of Ditto's "
    "personal models. Curvatures go up to about 6: each is a third or less of what is stable for "
    "every client, so that an unstable curve is the work of attackers. Tuned for nobody",
)
PEER_STEP = 0.05
PERSONAL_STEP = 0.1
ATTRACTION = Setting("Ditto's attraction lambda", 2.0, "the mean curvature: halfway between both")
SERVERS = Setting("servers of GFL", 3, "of 10 clients each, all linked")
DEGREE = Setting(
    "neighbors of a peer",
    14,
    "a random regular graph of each seed: 15 messages with one's own, of which Krum can reckon "
    "with the same share of attackers as elsewhere",
)
SHARES = Setting(
    "shares of attackers", (0.0, 0.1, 0.2, 0.3, 0.4, 0.6), "up to and beyond the half of all"
)
RECKONED = Setting(
    "share of attackers reckoned with",
    0.3,
    "trimmed mean cuts it off at each end and Krum's f is it, of the messages of one receiver: 9 "
    "of 30, 3 of 10, 4 of 15. A receiver does not know the true one",
)
RADIUS = Setting(
    "radius of clipping",
    0.2,
    "about the length of an honest change near the end: clients' models are 0.95 apart, and a "
    "round makes up for a fifth of it",
)
FLIP = Setting("scale of the sign flip", 4.0, "a fifth of attackers cancels the honest change")
LOUD = Setting("deviation of the large noise", 10.0, "ten times that of a model's coordinates")
MANIPULATION = Setting(
    "scale of the inner-product manipulation", 0.5, "small: among the honest changes, not beyond"
)

LARGEST = Setting(
    "largest error",
    40,
    "dB; a run that ends worse, or beyond what a number can hold, is lost and counts as this, or "
    "one seed's explosion would be the mean of all",
)

MEAN = "mean"
MEDIAN = "median"
TRIMMED = "trimmed mean"
GEOMETRIC = "geometric median"
KRUM = "multi-Krum"
CLIPPING = "centered clipping"
AGGREGATORS = (MEAN, MEDIAN, TRIMMED, GEOMETRIC, KRUM, CLIPPING)
ROBUST = AGGREGATORS[1:]

FLIPPED = "sign flip"
NOISY = "large noise"
LITTLE = "a little is enough"
MANIPULATED = "inner product"
POISONED = "poisoned labels"
#: Those that replace messages, by name.
ON_MESSAGES = {
    FLIPPED: lambda attackers: attacks.SignFlip(attackers, FLIP.value),
    NOISY: lambda attackers: attacks.LargeNoise(attackers, LOUD.value),
    LITTLE: attacks.ALittleIsEnough,
    MANIPULATED: lambda attackers: attacks.InnerProductManipulation(attackers, MANIPULATION.value),
}
ATTACKS = (*ON_MESSAGES, POISONED)


class Topology(NamedTuple):
    """An algorithm, and how many messages one receiver combines in it."""

    title: str
    algorithm: Algorithm
    messages: int


def topologies() -> dict[str, Topology]:
    """The algorithms by the letter of their row."""
    fedavg = FedAvg(STEP.value / LOCAL.value, epochs=LOCAL.value)
    ditto = Ditto(fedavg, PERSONAL_STEP, ATTRACTION.value)
    cell = CLIENTS.value // SERVERS.value
    return {
        "a": Topology("FedAvg", fedavg, CLIENTS.value),
        "b": Topology("GFL, gradient", GraphFedAvg(STEP.value, LOCAL.value), cell),
        "c": Topology("gradient, peers", ZCDPGradNFL(PEER_STEP), DEGREE.value + 1),
        "d": Topology("Ditto", ditto, CLIENTS.value),
    }


def aggregators(messages: int, reckoned: float = RECKONED.value) -> dict[str, Aggregator | None]:
    """All aggregators for ``messages`` messages at a receiver and this share of attackers.

    Raises:
      ValueError: an aggregator has no guarantee for this number of messages.
    """
    count = int(np.floor(reckoned * messages + 1e-9))
    result: dict[str, Aggregator | None] = {
        MEAN: None,
        MEDIAN: Median(),
        TRIMMED: TrimmedMean(count=count),
        GEOMETRIC: GeometricMedian(),
        KRUM: Krum(count, max(messages - count - 2, 1)),
        CLIPPING: CenteredClipping(RADIUS.value),
    }
    for aggregator in result.values():
        if aggregator is not None:
            aggregator.check(messages)
    return result


def refused() -> str:
    """The shares of attackers that aggregators refuse, by the library's own checks."""
    sentences = []
    for setting in topologies().values():
        for share in SHARES.value:
            try:
                aggregators(setting.messages, share)
            except ValueError as error:
                sentences.append(f"{setting.title} at {share:g} ({str(error).split()[0]})")
    return ", ".join(sentences)


REFUSED = Setting(
    "shares that the library refuses to reckon with",
    refused(),
    "Krum needs 2f + 3 messages at every receiver, trimming by a count 2b + 1; of 10 in a cell, "
    "Krum can reckon with 3, hence the 0.3 above",
)

# --------------------------------------------------------------------------- the scenario


def on_messages(attackers: Array, number: Array | int) -> OneOf:
    """The attack on messages of this number."""
    return OneOf(attackers, number, tuple(make(attackers) for make in ON_MESSAGES.values()))


def _error(models: Array, targets: Array) -> Array:
    """The mean error of the honest clients; attackers have NaN targets."""
    honest = jnp.isfinite(targets[:, 0])
    targets = jnp.where(honest[:, None], targets, 1)
    error = jnp.sum((models - targets) ** 2, axis=1) / jnp.sum(targets**2, axis=1)
    return jnp.sum(jnp.where(honest, error, 0)) / jnp.sum(honest, dtype=error.dtype)


def _common_error(now: Snapshot) -> Array:
    models = now.state.shared.model[None] if isinstance(now.state, DittoState) else now.model
    return _error(models, now.problem.tasks.truth)


def _personal_error(now: Snapshot) -> Array:
    return _error(now.model, personal_models(now.problem, now.problem.tasks.truth))


#: The error of the common model against the honest clients' solution, in the problem's tasks.
ERROR = Metric(
    "honest_error", _common_error, "error of honest clients", decibel=True, needs={"tasks.truth"}
)
#: The error of Ditto's personal models.
PERSONAL = Metric(
    "personal_error", _personal_error, ERROR.label, decibel=True, needs={"tasks.truth"}
)
METRIC = ERROR.name


def clean_problem(key: Key[Array, ""]) -> Problem:
    """All clients' clean data."""
    keys = jax.random.split(key, 4)
    dtype = float_dtype()
    clients = CLIENTS.value
    samples = SAMPLES.value
    dim = DIM.value
    common = jax.random.normal(keys[0], (1, dim), dtype)
    truth = common + SPREAD.value * jax.random.normal(keys[1], (clients, dim), dtype)
    features = jax.random.normal(keys[2], (clients, samples, dim), dtype)
    noise = np.sqrt(NOISE.value) * jax.random.normal(keys[3], (clients, samples), dtype)
    clean = jnp.einsum("knp,kp->kn", features, truth, precision=HIGHEST)
    return Problem(features, clean + noise, LeastSquares())


def honest_model(
    problem: Problem, attackers: Bool[Array, " clients"]
) -> Float[Array, "clients dim"]:
    """The honest clients' common solution in each of their rows; NaN in attackers' rows."""
    weights = jnp.where(attackers[:, None], 0, problem.weights)
    # ``replace`` skips the check that would refuse clients without weight.
    common = optimum(replace(problem, weights=weights))
    return jnp.where(attackers[:, None], jnp.nan, common[None])


def personal_models(
    problem: Problem, common: Float[Array, "clients dim"]
) -> Float[Array, "clients dim"]:
    """The limits of Ditto's personal models for a given common model."""
    shift = ATTRACTION.value * jnp.eye(problem.dim, dtype=problem.dtype)[None]
    moment = 2 * problem.correlation(problem.targets) + ATTRACTION.value * common
    return jax.vmap(spd_solve)(2 * problem.second_moment() + shift, moment)


def build(
    key: Key[Array, ""],
    attack: Array,
    share: Array,
    aggregator: Aggregator | None,
    algorithm: Algorithm,
) -> fl.Simulation:
    """One point: the attackers, their attack, the aggregator and the algorithm."""
    data_key, attacker_key, network_key = jax.random.split(key, 3)
    clean = clean_problem(data_key)
    network = None
    rank = shuffled(attacker_key, jnp.ones((1, CLIENTS.value), bool))[0]
    attackers = rank < jnp.round(share * CLIENTS.value).astype(jnp.int32)
    tasks = Tasks(np.arange(CLIENTS.value), CLIENTS.value, honest_model(clean, attackers))
    by_label = jnp.equal(attack, ATTACKS.index(POISONED))
    problem = attacks.poison_labels(clean, attackers & by_label)
    if isinstance(algorithm, GraphFedAvg):
        servers = fl.graphs.complete(SERVERS.value)
        network = fl.federation.balanced(CLIENTS.value // SERVERS.value, servers)
    elif isinstance(algorithm, ZCDPGradNFL):
        # As a table of neighbors: a receiver sorts its messages, not one slot for each client.
        network = fl.graphs.k_regular(network_key, CLIENTS.value, DEGREE.value, form="padded")
    return fl.Simulation(
        problem=dataclasses.replace(problem, tasks=tasks),
        algorithm=algorithm,
        network=network,
        metrics=(ERROR, PERSONAL) if isinstance(algorithm, Ditto) else (ERROR,),
        attack=on_messages(attackers & ~by_label, jnp.minimum(attack, len(ON_MESSAGES) - 1)),
        aggregation=aggregator,
    )


def row(
    name: str,
    effort: Effort,
    combined: Sequence[str] = AGGREGATORS,
    shares: Sequence[float] = SHARES.value,
    rounds: int = ROUNDS.value,
) -> xr.Dataset:
    """One algorithm against all attacks, after the last round."""
    setting = topologies()[name]
    all_of = aggregators(setting.messages)
    # Without attackers all attacks are one.
    points = [*dict.fromkeys((a if s else 0, s) for a in range(len(ATTACKS)) for s in shares)]

    def scenario(key: Array, point: Array, aggregator: Aggregator | None):
        attack, share = (jnp.asarray(column)[point] for column in zip(*points, strict=True))
        return build(key, attack, share, aggregator, setting.algorithm)

    scenario.__qualname__ = f"robustness({setting.title!r})"
    result = effort.sweep(
        name,
        scenario,
        rounds=rounds,
        record_every=rounds,
        seeds=min(effort.seeds, SEEDS.value),
        grid={
            "aggregator": {other: all_of[other] for other in combined},
            "point": {f"{ATTACKS[a]} {s:g}": number for number, (a, s) in enumerate(points)},
        },
    ).isel(round=-1)
    at = [[points.index((a if s else 0, s)) for s in shares] for a in range(len(ATTACKS))]
    places_of = xr.DataArray(
        at, dims=("attack", "share"), coords={"attack": [*ATTACKS], "share": [*shares]}
    )
    result = result.isel(point=places_of).drop_vars("point")
    result["share"].attrs["long_name"] = "share of attackers"
    return lost(result)


def lost(results: xr.Dataset) -> xr.Dataset:
    """Diverged runs get an infinite error; no run is left out."""
    errors = {ERROR.name, PERSONAL.name} & set(results)
    counted = {n: results[n].where(results["diverged"] == 0, np.inf) for n in errors}
    return results.assign(counted).drop_vars("diverged")


def study(effort: Effort) -> Studies:
    shares = (0.0, 0.2, 0.3, 0.4, 0.6) if effort.quick else SHARES.value
    server, peers, attacked_peers = (row(name, effort, shares=shares) for name in "bcd")
    common = attacked_peers.drop_vars(PERSONAL.name)
    personal = attacked_peers.drop_vars(METRIC).rename({PERSONAL.name: METRIC})
    return {"a": common, "b": server, "c": peers, "d": personal}


# --------------------------------------------------------------------------- the picture

#: dB; values above the upper end are off the scale.
SCALE = (-54, 12)


def capped(data: xr.Dataset) -> xr.Dataset:
    """The study with errors clipped at the largest that counts."""
    finite = data[METRIC].clip(max=10 ** (LARGEST.value / 10), keep_attrs=True)
    return data.assign({METRIC: finite})


def plot(studies: Studies) -> Picture:
    """A row an algorithm, a column an attack."""
    drawing, panels = plt.subplots(
        len(studies),
        len(ATTACKS),
        figsize=(picture.PAGE, 1.6 * len(studies)),
        sharex=True,
        sharey=True,
    )
    for axes, (name, setting) in zip(panels, topologies().items(), strict=True):
        for ax, attack in zip(axes, ATTACKS, strict=True):
            data = capped(studies[name].sel(attack=attack))
            plotting.trade_off(data, "share", METRIC, "aggregator", ax)
            ax.axvline(0.5, color="#999999", lw=0.8, ls=":", zorder=0)
            ax.set(xlabel="", ylabel="", ylim=SCALE, xticks=(0, 0.2, 0.4, 0.6))
        axes[0].set_ylabel(f"({name}) {setting.title}\nerror [dB]")
    for ax, attack in zip(panels[0], ATTACKS, strict=True):
        ax.set_title(attack)
    for ax in panels[-1]:
        ax.set_xlabel("share of attackers")
    note = "error of honest clients; what leaves the top is larger; dotted: half are attackers"
    return picture.finish(drawing, note)


# --------------------------------------------------------------------------- the claims

#: The error of learning from a client's own data: the clean error of its true model is close.
ALONE = -10.0
USELESS = Meaning(
    (ALONE, INFINITE), f"“not tolerated”: above {ALONE:g} dB, where a client's own true model is"
)
NEAR = Meaning(
    (-INFINITE, -18),
    f"“near”: below -18 dB, 1.6 % of the energy, where clients' own models are at {ALONE:g} dB",
)
DEFEATED = Meaning((6, INFINITE), "“defeats”: 6 dB and more above the error without attackers")


def errors(studies: Studies, name: str, aggregator: str, attack: str, share: float) -> np.ndarray:
    """``[S]``, of one point."""
    which = {"aggregator": aggregator, "attack": attack, "share": share}
    return measures.samples(capped(studies[name]), which, METRIC)


#: A row, an aggregator, an attack and a share.
Point = tuple[str, str, str, float]


def level(point: Point, studies: Studies) -> Estimate:
    """The error there, dB."""
    return measures.estimate(statistics.decibels, errors(studies, *point))


def gap(over: Point, under: Point, studies: Studies) -> Estimate:
    """How far the error at one point is above that at another, dB, paired by seed."""
    return measures.gap(errors(studies, *over), errors(studies, *under))


def levels(points: Mapping[str, Point]) -> Measure:
    return lambda studies: {name: level(point, studies) for name, point in points.items()}


def gaps(pairs: Mapping[str, tuple[Point, Point]]) -> Measure:
    return lambda studies: {name: gap(*pair, studies) for name, pair in pairs.items()}


def mean_above(rows: str, rivals: Sequence[str], attack: str, share: float) -> Measure:
    """How far the mean's error is above its rivals', in some rows."""
    return gaps(
        {
            f"({name}) mean above {other}": (
                (name, MEAN, attack, share),
                (name, other, attack, share),
            )
            for name in rows
            for other in rivals
        }
    )


def rise(rows: str, rivals: Sequence[str], attack: str, share: float) -> Measure:
    """By how much attackers raise the error over that without any."""
    return gaps(
        {
            f"({name}) {other}": ((name, other, attack, share), (name, other, attack, 0.0))
            for name in rows
            for other in rivals
        }
    )


def worst(share: float) -> Measure:
    """The error under the attack that is worst for each aggregator in each row."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for name, other in itertools.product(studies, AGGREGATORS):
            tried = {a: level((name, other, a, share), studies) for a in ATTACKS}
            attack = max(tried, key=lambda a: tried[a].value)
            result[f"({name}) {other}, {attack}"] = tried[attack]
        return result

    return measure


OURS = "this library"
EACH = "abcd"
COMMON_MODEL = "abc"
UNLIKE = "ours: clients of unlike data; the paper's are alike"
NOW_CONDITIONAL = "The same measure, counted as conditional: "


def overrun() -> float:
    """The probability that, with a fifth of attackers, a cell has more than its receiver cuts."""
    cell = CLIENTS.value // SERVERS.value
    liars = round(0.2 * CLIENTS.value)
    cut = int(RECKONED.value * cell)
    # No two cells can have this many attackers in the same run.
    return SERVERS.value * float(stats.hypergeom.sf(cut, CLIENTS.value, liars, cell))


def pulled(studies: Studies) -> str:
    """The cost of noise for the geometric median, and for the median."""
    cost = rise("a", [GEOMETRIC, MEDIAN], NOISY, RECKONED.value)(studies)
    far, cut = (f"{e.value:.1f} dB" for e in cost.values())
    return (
        f"It costs the geometric median {far} and the median {cut}. Our reading: a far message "
        "pulls the geometric median as hard as a near one, and the pulls of attackers in random "
        "directions do not cancel; the others cut them off."
    )


def evened(studies: Studies) -> str:
    """How much worse than one server cells and peers are."""
    above = SMALL_GROUPS(studies).items()
    cells, peers = (
        " and ".join(f"{e.value:.1f}" for name, e in above if name.startswith(f"({row})"))
        for row in "bc"
    )
    return (
        f"Cells are {cells} dB above, peers {peers} dB. Our reading: only some neighborhoods have "
        "a majority of attackers, each errs in its own way, and combining with neighbors who "
        "heard others evens much of it out."
    )


#: The gaps of small groups above one server.
SMALL_GROUPS = gaps(
    {
        f"({n}) above (a), {o}": ((n, o, FLIPPED, 0.4), ("a", o, FLIPPED, 0.4))
        for n in "bc"
        for o in (MEDIAN, GEOMETRIC)
    }
)

FIGURE = Figure(
    name="robustness",
    title="What attackers do to four algorithms, by aggregator",
    source="ours; claims of the papers that introduced the aggregators and attacks",
    caption="Columns are attacks, rows algorithms: (a) FedAvg with one server; (b) graph federated "
    "learning, three linked servers of ten clients; (c) gradient descent among peers "
    "(zCDP-grad-NFL without privacy); (d) Ditto, judged by its personal models. The error is of "
    "honest clients, against what they find alone with clean data, relative to its energy. The "
    "aggregator takes the place of the mean of clients' messages; the three servers still combine "
    "their own models by weights, so one cell with a majority of attackers reaches all. "
    "Attackers are drawn among all clients, not per cell or neighborhood. In (a) and (d) a lie is "
    "about the change of the server's model, which both ends know; in (b) and (c) the library has "
    "no such reference and the lie is about the model itself, so a flipped sign or a small "
    "inner-product manipulation hurts the mean far more there than in (a). At most "
    f"{SEEDS.value} seeds, which tell curves apart that differ by a decibel or two.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "little-lost-without-attackers",
            "without attackers every robust aggregator comes near what the mean finds",
            "Yin et al. 2018; Blanchard et al. 2017; Pillutla et al. 2022",
            levels({f"({n}) {o}": (n, o, FLIPPED, 0.0) for n in EACH for o in AGGREGATORS}),
            *NEAR,
            "ours: clients of unlike data; the papers assume like ones",
            note="How much is lost follows from how unlike the clients are: the middle of "
            "different minimizers is not their mean.",
        ),
        Claim(
            "mean-is-best-without-attackers",
            "without attackers no robust aggregator is as good as the mean, where clients differ",
            OURS,
            gaps(
                {
                    f"({n}) {o} above mean": ((n, o, FLIPPED, 0.0), (n, MEAN, FLIPPED, 0.0))
                    for n in EACH
                    for o in ROBUST
                }
            ),
            (0, INFINITE),
            ours=True,
            note="The mean of the changes leads to the optimum of the sum; any other middle is "
            "biased where clients differ.",
            changed="The same measure; it is a statement of this library's, under no further "
            "condition.",
        ),
        Claim(
            "mean-tolerates-nobody",
            "no linear combination tolerates even a few attackers who say anything",
            "Blanchard et al. 2017",
            levels({f"({n}) {MEAN}": (n, MEAN, NOISY, 0.1) for n in EACH}),
            *USELESS.when("large noise of a tenth of the clients"),
            "ours: noise, and so loud",
            note="What noise costs the mean grows with its energy.",
            changed="By its error, as what is tolerated is everywhere here, before by what it "
            "loses, 20 dB; conditional: how much is lost is set by the noise that we chose.",
        ),
        Claim(
            "robust-against-sign-flip",
            "median, trimmed mean and geometric median are far better than the mean with a fifth "
            "of attackers that flip signs",
            "Yin et al. 2018; Pillutla et al. 2022",
            mean_above(EACH, [MEDIAN, TRIMMED, GEOMETRIC], FLIPPED, 0.2),
            *conventions.SIGNIFICANTLY.db,
            "ours: this scale, and attackers drawn among all clients",
            changed="“Far” is significantly, 3 dB and more in all documents now, before 10 dB.",
            note="A trimmed mean in (b) cuts off what the library lets it reckon with in a cell. "
            f"More meet in some cell in {100 * overrun():.0f} % of the draws, and that cell's "
            "server passes them on to the others.",
        ),
        Claim(
            "noise-is-harmless",
            "large noise of up to the reckoned share hardly touches median, geometric median, "
            "trimmed mean and multi-Krum at one server",
            "Yin et al. 2018; Pillutla et al. 2022; Blanchard et al. 2017",
            rise("a", [MEDIAN, TRIMMED, GEOMETRIC, KRUM], NOISY, 0.3),
            *conventions.LITTLE.db.when("above the error without attackers, at 30 %"),
            "ours: this noise; clients of unlike data",
            note=pulled,
            changed="“Hardly” is at most 1 dB more, as what does not hinder is in all documents, "
            "before 3 dB; conditional: the papers bound the harm, and for clients of like data.",
        ),
        Claim(
            "trimming-holds-to-its-cut",
            "the trimmed mean tolerates as many attackers as it cuts off at each end",
            "Yin et al. 2018",
            levels({f"(a) {attack}": ("a", TRIMMED, attack, RECKONED.value) for attack in ATTACKS}),
            (-INFINITE, ALONE),
            f"“tolerates”: an error below {ALONE:g} dB, that of a client's own true model",
            UNLIKE,
            note="What is cut off is bounded; what passes for honest may still shift the mean by "
            "the honest spread.",
            changed=NOW_CONDITIONAL + "the paper's clients are alike.",
        ),
        Claim(
            "trimming-fails-beyond-its-cut",
            "and no more: of 40 % that flip signs, some are left in its mean",
            "Yin et al. 2018",
            gaps(
                {
                    f"({n}) 0.4 above 0.3": ((n, TRIMMED, FLIPPED, 0.4), (n, TRIMMED, FLIPPED, 0.3))
                    for n in "ad"
                }
            ),
            *conventions.SIGNIFICANTLY.db.when("above the error at its cut"),
            "ours: flips at this scale",
            note="What is left of the lies in the mean is as long as they are.",
            changed=NOW_CONDITIONAL + "the paper says up to where it works, not how it fails.",
        ),
        Claim(
            "a-little-defeats-the-robust",
            "lies hidden in the honest spread pass trimmed mean and Krum: 40 % of attackers raise "
            "their error by 6 dB and more",
            "Baruch et al. 2019",
            rise("abc", [MEDIAN, TRIMMED, GEOMETRIC, KRUM], LITTLE, 0.4),
            *DEFEATED,
            condition="ours: convex, clients of unlike data; median and geometric median too",
            note="Lies within the honest spread are kept by rules that drop what is far out; how "
            "far they shift depends on that spread.",
        ),
        Claim(
            "a-little-is-met-best-by-the-mean",
            "against a little-is-enough the mean, which defends nothing, does better than median, "
            "trimmed mean, geometric median and Krum",
            "Baruch et al. 2019, experiments",
            gaps(
                {
                    f"({n}) {o} above mean": ((n, o, LITTLE, 0.4), (n, MEAN, LITTLE, 0.4))
                    for n in COMMON_MODEL
                    for o in (MEDIAN, TRIMMED, GEOMETRIC, KRUM)
                }
            ),
            (0, INFINITE),
            condition="ours: at 40 % of attackers",
            note="The mean dilutes a lie by the honest share; rules that pick from the middle "
            "take it whole.",
        ),
        Claim(
            "small-manipulation-breaks-median-and-krum",
            "a small manipulation of the inner product defeats Krum and the median",
            "Xie et al. 2020",
            rise("abc", [MEDIAN, KRUM], MANIPULATED, 0.4),
            *DEFEATED.when("at 40 %"),
            "ours: convex, clients of unlike data, this scale",
            note="A lie among the honest changes is one that rules which pick from the middle may "
            "choose.",
            changed=NOW_CONDITIONAL + "the paper trains networks on like data.",
        ),
        Claim(
            "small-manipulation-hardly-slows-the-mean",
            "it does not defeat the mean of changes, whose fixed point it leaves where it is",
            OURS,
            rise("a", [MEAN], MANIPULATED, 0.4),
            (-INFINITE, 6),
            "at most 6 dB at 40 %",
            construction="the lie is a multiple of the honest changes' mean, against it and "
            "smaller: the mean of all vanishes where that does, and only takes longer to get there",
            note="The mean's step is shorter, and it has not arrived in these rounds.",
            changed="The same measure, counted as true by construction: the fixed point is the "
            "same for algebra's sake.",
        ),
        Claim(
            "clipping-bounds-the-harm",
            "centered clipping bounds what each attacker does in a round: up to 10 % of them raise "
            "no error above -18 dB, whatever they say",
            "Karimireddy et al. 2021",
            levels({f"({n}) {a}": (n, CLIPPING, a, 0.1) for n in EACH for a in ATTACKS}),
            *NEAR.when("a tenth is what their proof reaches"),
            "ours: without momentum, one radius for all",
            note="Each attacker moves a receiver by at most the radius a round, and the honest "
            "ones pull back.",
        ),
        Claim(
            "labels-poison-the-mean",
            "wrong labels of a fifth of the clients spoil the mean, and robust aggregation repairs "
            "most of it",
            "Tolpegin et al. 2020; Pillutla et al. 2022",
            mean_above(EACH, [MEDIAN, TRIMMED, GEOMETRIC], POISONED, 0.2),
            *conventions.SIGNIFICANTLY.db.when("more than half of the error"),
            "ours: least squares, whose labels change their sign",
            note="How much is repaired is bounded by what the aggregator loses without attackers.",
            changed=NOW_CONDITIONAL + "the papers poison classifiers.",
        ),
        Claim(
            "small-groups-break-first",
            "receivers of few messages break at lower shares: 40 % of sign flips, which the median "
            "of all clients stands, break the median of a cell or a neighborhood",
            "He et al. 2022",
            SMALL_GROUPS,
            *conventions.SIGNIFICANTLY.db,
            "ours: attackers drawn among all clients, so a cell may hold a majority of them",
            note=evened,
        ),
        Claim(
            "personal-models-are-safer",
            "Ditto's personal models suffer less from attackers than the common model",
            "Li et al. 2021",
            gaps(
                {
                    f"(a) above (d), mean, {a}, {s:g}": (("a", MEAN, a, s), ("d", MEAN, a, s))
                    for a in (NOISY, POISONED)
                    for s in (0.1, 0.2)
                }
            ),
            *conventions.SIGNIFICANTLY.db.when("with the mean as in the paper"),
            "ours: each against what it would be without attackers",
            note="A personal model holds on to its client's data and follows the common one only "
            "in part.",
        ),
        Claim(
            "nobody-tolerates-a-majority",
            "no aggregator tolerates more than half of attackers: under some attack each is "
            "useless at 60 %",
            "Yin et al. 2018; Blanchard et al. 2017; Pillutla et al. 2022",
            worst(0.6),
            *USELESS,
        ),
    ],
    settings=(
        *(
            CLIENTS,
            SAMPLES,
            DIM,
            SPREAD,
            NOISE,
            ROUNDS,
            SEEDS,
            LOCAL,
            STEP,
            ATTRACTION,
            SERVERS,
            DEGREE,
        ),
        *(SHARES, RECKONED, REFUSED, RADIUS, FLIP, LOUD, MANIPULATION, LARGEST),
    ),
)
