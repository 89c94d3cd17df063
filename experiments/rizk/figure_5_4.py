"""Rizk 2023, section 5.2: communication against privacy, at one error."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import NullFormatter

import fljax as fl
from experiments import conventions as words
from experiments import measures, picture
from experiments.figure import (
    INFINITE,
    Claim,
    Effort,
    Estimate,
    Figure,
    Measure,
    Setting,
    Studies,
)
from experiments.measures import samples
from experiments.rizk import chapter5 as ch5
from experiments.rizk import data
from experiments.rizk import network as net
from fljax import audit, plotting
from fljax.algorithms import ATC, FedAvg
from fljax.link import (
    GraphHomomorphic,
    LocalGraphHomomorphic,
    Noise,
    PerMessage,
    SecureAggregation,
    UploadNoise,
)
from fljax.link.compression import WORD
from fljax.privacy import accounting
from fljax.theory import multiagent as theory

AGENTS = Setting("agents K", 10, "as in rizk-5.1")
SAMPLES = Setting("samples of an agent N", 500, "one of so many is to be hidden")
TARGET = Setting("mean-square deviation to reach", 0.01, "20 dB below a model's parameter")
STEPS = Setting(
    "step sizes mu", (0.01, 0.02, 0.05, 0.1, 0.2, 0.3), "of each scheme the best at each number"
)
ROUNDS = Setting("rounds, at most", 200, "beyond which no scheme gains")
DELTA = Setting("delta", 1e-5, "of Gaussian noise, in each number")
SHOWN = Setting("rounds of the runs and of (c)", 60, "at the best steps of so many rounds")
MASK = Setting("variance of local masks, (c)", 1.0, "of no account for the error")
KEYS = Setting(
    "what pairs agree by",
    "one vector a pair and round",
    "of the local masks, (4.60); and of sums, for which seeds suffice",
)
ASSUMED = Setting(
    "assumptions of every epsilon",
    "a sample's gradient is never longer than where all start and at the optimum",
    "one sample is another one, and those who listen hear all that is sent and know all other "
    "data. A gradient is affine in the model, so between these two it is no longer; off the line "
    "noise may take it further, and clipping there would make it a guarantee",
)

NONE = "no noise"
INDEPENDENT = "independent"
HOMOMORPHIC = "homomorphic"
LOCAL = "local homomorphic"
SUMS = "secure sums, central noise"
SCHEMES = (NONE, INDEPENDENT, HOMOMORPHIC, LOCAL, SUMS)
NOISY = (INDEPENDENT, HOMOMORPHIC, SUMS)
INDIVIDUAL = "individual"
CENTROID = "centroid"


@net.drawn_once
def problem() -> fl.problems.Problem:
    return data.regression(
        fl.random_key(5),
        AGENTS.value,
        SAMPLES.value,
        ch5.DIM.value,
        ch5.RHO.value,
        eigenvalues=ch5.EIGENVALUES.value,
        noise=ch5.NOISE.value,
    )


@net.drawn_once
def graph() -> fl.graphs.Graph:
    return fl.graphs.k_regular(fl.random_key(6), AGENTS.value, 4)


NOISES: Mapping[str, type[Noise]] = {INDEPENDENT: PerMessage, HOMOMORPHIC: GraphHomomorphic}


def scenario(
    key: Array, scheme: str, step_size: Array | float, variance: Array | float
) -> fl.Simulation:
    """A scheme's noise on full gradients' steps."""
    metrics = [ch5.METRIC, net.METRICS[0]]
    if scheme == SUMS:
        return fl.Simulation(
            problem(),
            FedAvg(step_size),
            upload_noise=UploadNoise(variance, law="gaussian"),
            metrics=metrics[:1],
        )
    noise = NOISES[scheme](variance, law="gaussian") if scheme in NOISES else None
    return fl.Simulation(problem(), ATC(step_size), graph(), noise=noise, metrics=metrics)


# --------------------------------------------------------------------------- privacy


@functools.cache
def gradient_bound() -> float:
    """The longest gradient of a sample at the start and at the optimum."""
    regression = problem()
    dim = ch5.DIM.value
    ends = jnp.stack([jnp.zeros(dim), fl.problems.optimum(regression)])
    return max(
        float(jnp.max(regression.sample_gradient_norm(jnp.broadcast_to(w, (AGENTS.value, dim)))))
        for w in ends
    )


def moved(scheme: str, rounds: int) -> np.ndarray:
    r"""How far a victim's messages move by round, over :math:`2\mu C/N`.

    Receivers continue from the noisy message. A share of the victim's own, noiseless move remains
    in its later messages: its self-weight under independent draws, all of it if it subtracts its
    own draw, nothing if it restarts from a server's model. A gradient step on a convex loss does
    not move two models apart.
    """
    self_weight = float(np.max(np.asarray(graph().mixing().self_weight)))
    share = {INDEPENDENT: self_weight, HOMOMORPHIC: 1.0, SUMS: 0.0}[scheme]
    return np.cumsum(share ** np.arange(rounds))


def deviations(scheme: str) -> float:
    """The exact ``mu`` of one message that moves by one, under noise of unit variance."""
    if scheme == SUMS:
        settings = {"upload_noise": UploadNoise(1.0, law="gaussian"), "dim": 1}
        masks = SecureAggregation(range=1.0)  # hides perfectly with any range
        return audit.overheard_upload(AGENTS.value, 0, masks=masks, **settings).mu
    noise = NOISES[scheme](1.0, law="gaussian")
    return audit.overheard(noise, graph().mixing(), 0, eavesdropper=True).mu


def epsilon(scheme: str, step_size: float, rounds: int, variance: float) -> float:
    r"""Of all rounds, by adaptive composition of Gaussian mechanisms: they are together
    :math:`\sqrt{\sum\mu_j^2}`-GDP (Dong, Roth & Su 2022).
    """
    change = 2 * step_size * gradient_bound() / SAMPLES.value
    mu = change * deviations(scheme) * np.linalg.norm(moved(scheme, rounds)) / math.sqrt(variance)
    return float(accounting.zcdp_epsilon(mu**2 / 2, DELTA.value, "gaussian"))


# --------------------------------------------------------------------------- communication


def bits(scheme: str) -> tuple[float, float]:
    """A round's bits of an agent: of messages, as a run counts them, and to agree on masks."""
    plain = INDEPENDENT if scheme in (NONE, LOCAL) else scheme
    single_round = fl.run(scenario(fl.random_key(0), plain, 0.1, 1.0), rounds=1).isel(round=-1)
    sent = float(single_round["bits_up"] + single_round["bits_down"]) / AGENTS.value
    word = WORD * ch5.DIM.value
    if scheme == SUMS:
        return sent, word * (AGENTS.value - 1)
    if scheme == LOCAL:
        return sent, word * float(agreements().mean())
    return sent, 0.0


def agreements() -> np.ndarray:
    """Messages of each agent in a round, by which local masks are agreed on."""
    return LocalGraphHomomorphic(MASK.value).agreements(graph().mixing())


# --------------------------------------------------------------------------- the fronts


class Front(NamedTuple):
    """The least epsilon of a scheme and an error by the number of rounds, and its parameters."""

    epsilon: np.ndarray  # [T]
    step: np.ndarray  # [T]
    variance: np.ndarray  # [T]


def front(scheme: str, error: str) -> Front:
    """The front of a scheme.

    Deviations are affine in the variance, so the largest variance that meets the target is the
    margin without noise divided by the cost of unit variance.
    """

    @jax.jit
    def curve(step: Array, variance: Array) -> Array:
        learning = theory.learning_curve(
            scenario(fl.random_key(0), scheme, step, variance), ROUNDS.value
        )
        return getattr(learning, error)

    best = Front(*(np.full(ROUNDS.value, math.inf) for _ in Front._fields))
    for step in STEPS.value:
        silent, noisy = (np.asarray(curve(jnp.asarray(step), jnp.asarray(v))) for v in (0.0, 1.0))
        allowed = (TARGET.value - silent) / (noisy - silent)
        for n in np.flatnonzero(allowed > 0):
            spent = epsilon(scheme, step, int(n) + 1, allowed[n])
            if spent < best.epsilon[n]:
                best.epsilon[n], best.step[n], best.variance[n] = spent, step, allowed[n]
    return best


def one_round(scheme: str, step_size: float, variance: float) -> tuple[float, float]:
    """Epsilon of one message against attackers who know all other messages, and who know none."""
    settings = {
        "change": 2 * step_size * gradient_bound() / SAMPLES.value,
        "delta": DELTA.value,
        "dim": ch5.DIM.value,
    }
    if scheme == SUMS:
        masks = SecureAggregation(range=1.0)
        noise = UploadNoise(variance, law="gaussian")
        leak = audit.overheard_upload(AGENTS.value, 0, upload_noise=noise, masks=masks, **settings)
    else:
        kind = {LOCAL: LocalGraphHomomorphic, NONE: None, **NOISES}[scheme]
        noise = None if kind is None else kind(variance, law="gaussian")
        over = graph().mixing()
        leak = audit.overheard(noise, over, 0, eavesdropper=True, **settings)
    return leak.epsilon, leak.uninformed


def study(effort: Effort) -> Studies:
    fronts = {(s, e): front(s, e) for s in NOISY for e in (INDIVIDUAL, CENTROID)}
    silent = front_without_noise()
    last = SHOWN.value - 1
    levels = []
    rounds = np.arange(1, ROUNDS.value + 1)
    for scheme in NOISY:
        best = fronts[scheme, INDIVIDUAL]
        point = {"step_size": [best.step[last]], "variance": [best.variance[last]]}
        run = effort.sweep(
            scheme,
            scenario,
            rounds=SHOWN.value,
            seeds=effort.seeds,
            grid={"scheme": [scheme]} | point,
            record_every=SHOWN.value,
        )
        levels.append(run[[ch5.METRIC, "diverged"]].squeeze(["step_size", "variance"], drop=True))
    points = {
        s: (fronts[s, INDIVIDUAL].step[last], fronts[s, INDIVIDUAL].variance[last]) for s in NOISY
    }
    points |= dict.fromkeys((NONE, LOCAL), (STEPS.value[-1], MASK.value))
    parts = [
        [np.stack([getattr(fronts[s, e], part) for e in (INDIVIDUAL, CENTROID)]) for s in NOISY]
        for part in Front._fields
    ]
    dims = ["scheme", "error", "round"]
    axes = {"scheme": list(NOISY), "error": [INDIVIDUAL, CENTROID], "round": rounds}
    sent = np.array([bits(s) for s in SCHEMES])
    once = np.array([one_round(s, *map(float, points[s])) for s in SCHEMES])
    runs: Any = xr.concat(levels, "scheme", combine_attrs="override").isel(round=-1)
    return {
        "fronts": xr.Dataset(
            {name: (dims, np.stack(p)) for name, p in zip(Front._fields, parts, strict=True)}, axes
        ),
        "bits": xr.Dataset(
            {
                "plain": ("scheme", sent[:, 0]),
                "masks": ("scheme", sent[:, 1]),
                "informed": ("scheme", once[:, 0]),
                "uninformed": ("scheme", once[:, 1]),
                "doubled": ((), one_round(LOCAL, STEPS.value[-1], 4 * MASK.value)[1]),
                "rounds": ((), silent),
                "bound": ((), gradient_bound()),
                "agreements": ("agent", agreements()),
                "agreements_bound": ("agent", agreement_bounds()),
            },
            {"scheme": list(SCHEMES)},
        ),
        "runs": runs,
    }


def front_without_noise() -> int:
    """The first round in which the target is reached without noise, at the best step."""
    axes = {"scheme": [NONE], "step_size": STEPS.value, "variance": [0.0]}
    level = ch5.predicted(scenario, axes, ch5.on_the_way(ROUNDS.value))[ch5.METRIC]
    at_target = (level <= TARGET.value).any(["scheme", "step_size", "variance"])
    return int(level["round"].values[np.argmax(at_target.values)])


def agreement_bounds() -> np.ndarray:
    """The source's, for each agent: its neighbors, itself among them, and half of each one's."""
    hears = np.asarray(graph().mixing().matrix()) > 0
    size = hears.sum(axis=1)
    return size + (hears @ size - size) / 2


# --------------------------------------------------------------------------- the claims


def least(studies: Studies, scheme: str, error: str, within: float) -> float:
    """The least epsilon of a scheme within a number of bits of an agent."""
    sent = studies["bits"].sel(scheme=scheme)
    round_bits = float(sent["plain"] + sent["masks"])
    fronts = studies["fronts"]["epsilon"].sel(scheme=scheme, error=error)
    return float(fronts.values[: int(within // round_bits)].min(initial=math.inf))


def over(above: str, under: str, error: str) -> Measure:
    """Epsilon of one scheme over another's, at the bits of some numbers of the first's rounds."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        sent = studies["bits"].sel(scheme=above)
        round_bits = float(sent["plain"] + sent["masks"])
        result = {}
        for rounds in (SHOWN.value // 2, SHOWN.value, ROUNDS.value):
            first, second = (least(studies, s, error, rounds * round_bits) for s in (above, under))
            case = f"{error}, {above} over {under}, {rounds * round_bits / 1e3:.3g} kbit"
            result[case] = Estimate.exact(first / second, "times")
        return result

    return measure


def at_the_target(studies: Studies) -> dict[str, Estimate]:
    """How far runs are above the target, dB."""
    result = {}
    for scheme in NOISY:
        runs = samples(studies["runs"], {"scheme": scheme}, ch5.METRIC)
        result[scheme] = measures.gap(runs, np.full(len(runs), TARGET.value))
    return result


def traded(studies: Studies) -> dict[str, Estimate]:
    """By how much another variance of masks changes epsilon, at the same bits."""
    data = studies["bits"]
    before = float(data["uninformed"].sel(scheme=LOCAL))
    return {"four times the variance": Estimate.exact(float(data["doubled"]) / before, "times")}


def price(studies: Studies) -> str:
    data = studies["bits"].sel(scheme=LOCAL)
    times = float((data["plain"] + data["masks"]) / data["plain"])
    return (
        f"The price is paid once: {times:.2f} times the bits of no noise, whatever the masks' "
        "variance, and then epsilon is as small as one likes against attackers who know no other "
        "message; against those who know them it is infinite at any price."
    )


def mask_messages(studies: Studies) -> dict[str, Estimate]:
    """Messages that agree on masks, of the source's bound, per cent."""
    data = studies["bits"]
    share = 100 * float((data["agreements"] / data["agreements_bound"]).max())
    return {"the largest of all agents": Estimate.exact(share, "%")}


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    drawing, axes = picture.panels(
        ("individual error", "error of the centroid", "one round, (a)'s noise"), height=2.8
    )
    sent = studies["bits"]
    for ax, error in zip(axes, (INDIVIDUAL, CENTROID), strict=False):
        for scheme in NOISY:
            data = studies["fronts"].sel(scheme=scheme, error=error)
            look = _look(scheme)
            round_bits = float((sent["plain"] + sent["masks"]).sel(scheme=scheme))
            spent = data["round"].values * round_bits / 1e3
            exact = data["epsilon"].where(data["epsilon"] < INFINITE).values
            best = np.fmin.accumulate(exact)
            ax.plot(spent, best, label=scheme, **look)
            if error == INDIVIDUAL:  # of exactly so many rounds, which the runs have
                ax.plot(spent, exact, color=look["color"], linewidth=0.6, alpha=0.7)
        for scheme in (NONE, LOCAL):
            round_bits = float((sent["plain"] + sent["masks"]).sel(scheme=scheme))
            text = f"{scheme}: ε = ∞"
            ax.axvline(float(sent["rounds"]) * round_bits / 1e3, label=text, **_look(scheme))
        ax.set(xscale="log", yscale="log", xlabel="kbit of an agent", ylabel="ε of all rounds")
        ax.yaxis.set(major_formatter="{x:g}", minor_formatter=NullFormatter())
    axes[1].set_ylim(0.5, 10)
    for scheme in NOISY:
        data = studies["fronts"].sel(scheme=scheme, error=INDIVIDUAL, round=SHOWN.value)
        round_bits = float((sent["plain"] + sent["masks"]).sel(scheme=scheme))
        at = SHOWN.value * round_bits / 1e3
        axes[0].plot(at, float(data["epsilon"]), "x", color=_look(scheme)["color"])
    _once(axes[2], sent)
    return picture.finish(
        drawing, f"at a mean-square deviation of {TARGET.value:g}, δ = {DELTA.value:g}"
    )


def _look(scheme: str) -> dict[str, Any]:
    look = plotting.LOOKS[SCHEMES.index(scheme)]
    return {key: look[key] for key in ("color", "linestyle")}


def _once(ax: Axes, sent: xr.Dataset) -> None:
    """Epsilon of one message against attackers who know all others, and who know none."""
    values = [v for name in ("informed", "uninformed") for v in sent[name].values]
    finite = [v for v in values if 0 < v < INFINITE]
    bottom = min(finite) / 10
    top = 10 * max(finite)
    for number, scheme in enumerate(SCHEMES):
        look = {"color": _look(scheme)["color"], "markersize": 5}
        for name, face in (("informed", None), ("uninformed", "white")):
            value = float(sent[name].sel(scheme=scheme))
            at = min(max(value, bottom), top)
            ax.plot(number, at, "o", markerfacecolor=face or look["color"], **look)
            if value == 0:
                ax.annotate("0", (number, at), (4, 2), textcoords="offset points")
            if math.isinf(value) and name == "informed":
                ax.annotate("∞", (number, top), (4, 2), textcoords="offset points")
    ax.set(yscale="log", ylim=(bottom / 3, 3 * top), ylabel="ε of a message")
    names = [scheme.replace(", ", ",\n").replace("local ", "local\n") for scheme in SCHEMES]
    ax.set_xticks(range(len(SCHEMES)), names, rotation=40, ha="right", rotation_mode="anchor")


FIGURE = Figure(
    name="rizk-5.4",
    title="Communication against privacy, at one error",
    source="Rizk 2023, section 5.2, its first question",
    caption="The least epsilon of a run that reaches one error, against the bits that an agent "
    "sends and gets, by scheme: exact moments tell what noise the error leaves room for, the audit "
    "what an attacker can tell of a message, composition what of all rounds. Attackers hear "
    "everything that is sent and know all other data. Vertical lines: the first round in which "
    "the error is reached where no epsilon is finite. Thin lines in (a): of exactly so many "
    "rounds, where a front has the best number up to it; crosses on them: runs of "
    f"{SHOWN.value} rounds. (c): filled, attackers who know all other messages; open, who know "
    "none. All curves ours.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "utility-is-free",
            "noise that cancels cancels the trade-off of utility and privacy",
            "section 5.2",
            lambda studies: {
                "noise left in a mean": Estimate.exact(
                    float(
                        theory.noise_covariance(graph().mixing(), LocalGraphHomomorphic(1.0)).sum()
                    ),
                    "",
                )
            },
            (0, 0),
            construction="masks cancel in every receiver's weighted sum",
        ),
        Claim(
            "communication-for-privacy",
            "it replaces that by a trade-off of communication and privacy",
            "section 5.2",
            traded,
            (0.99, 1.01),
            "another epsilon takes other bits",
            condition="one round, attackers who know no other message",
            note=price,
        ),
        Claim(
            "agreements-within-the-bound",
            "the communication of an agent increases by at most |N_1| + sum |N_k| / 2",
            "section 4.3.4",
            mask_messages,
            (0, 100),
            "messages to agree on masks, per cent of the bound",
        ),
        Claim(
            "sums-are-cheapest",
            "at the same bits and error, noise in secure sums leaves less epsilon than independent "
            "noise of peers",
            "ours, on section 5.2",
            over(SUMS, INDEPENDENT, INDIVIDUAL),
            (0, 1),
            ours=True,
        ),
        Claim(
            "homomorphic-costs-privacy",
            "homomorphic noise, which spares the centroid, leaves more epsilon than independent "
            "noise at the same error of all models: its sender takes it off itself, and every "
            "later message tells of the earlier ones",
            "ours, on section 5.2",
            over(HOMOMORPHIC, INDEPENDENT, INDIVIDUAL),
            (1, INFINITE),
            ours=True,
        ),
        Claim(
            "homomorphic-spares-the-centroid",
            "at the same error of the centroid it leaves less",
            "ours, on section 5.2",
            over(HOMOMORPHIC, INDEPENDENT, CENTROID),
            (0, 1),
            ours=True,
        ),
        Claim(
            "runs-reach-the-error",
            "runs with the noise of the fronts reach the error",
            "ours, fljax.theory.multiagent",
            at_the_target,
            *words.SAME.db,
            ours=True,
        ),
    ],
    settings=(
        *(AGENTS, SAMPLES, ch5.DIM, ch5.RHO, ch5.EIGENVALUES, ch5.NOISE, TARGET, STEPS, ROUNDS),
        *(DELTA, SHOWN, MASK, KEYS, ASSUMED),
    ),
    double=True,
)
