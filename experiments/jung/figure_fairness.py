"""Jung 2025: a sensitive feature that training data are balanced in (section 8.5, Figure 8.4), and
fairness to clients.
"""

import itertools

import jax
import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate, joined, last, samples
from fljax import fairness, plotting
from fljax.algorithms import AFL, Algorithm, FedAvg, QFedAvg
from fljax.problems import Logistic, Problem

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients", 10, "(a) to (c); not given")
SAMPLES = Setting("samples a client, to learn from and held out", 100, "not given")
BIAS = Setting(
    "bias of past decisions",
    (0.0, 0.5, 1.0, 2.0),
    "what the sensitive feature (-1 or 1) adds to a score that two features add 1 each to, from "
    "nothing to as much as both",
)
PROXY = Setting(
    "proxy",
    (0.0, 1.0),
    "what the sensitive feature adds to the first of the two features: none, and one deviation",
)
STEP = Setting("step size", 1.0, "of one gradient step; curvatures are below one")
ROUNDS = Setting("rounds of (a) to (c)", 300, "the flip's effect is then below a hundredth")
SENSITIVE = 3  # the column, after a constant and two features

FEW = Setting("clients of the minority", 4, "(d) to (f): a fifth")
MANY = 20
APART = Setting(
    "angle between the truths of minority and majority", 90, "degrees: one model cannot suit both"
)
LENGTH = Setting("length of a truth", 4.0, "nine of ten labels can be told")
DIM = Setting("parameters", 5, "(d) to (f)")
LONG = Setting("rounds of (d) to (f)", 500, "all curves are flat by then")
FAIRNESS = Setting("q of q-FedAvg", 5.0, "the largest but one of Li et al. 2020")
ASCENT = Setting("step size of AFL's mixture", 0.05, "of the order of that of the model")
SEEDS = Setting("seeds", 50, "at most")

AS_IS = "as it is"
FLIPPED = "flipped copies"
DRAWN = "drawn copies"
FORMS = (AS_IS, FLIPPED, DRAWN)
WORST = "client_accuracy_worst_10"
SPREAD = "client_accuracy_deviation"
PARITY = "demographic_parity_difference"


# --------------------------------------------------------------------------- scenarios


def decided(key: Array, bias: Array, proxy: Array, fair: bool) -> tuple[Array, Array]:
    """Features, and labels of past decisions; or without their bias."""
    k_sensitive, k_features, k_labels = jax.random.split(key, 3)
    shape = (CLIENTS.value, SAMPLES.value)
    sensitive = jax.random.rademacher(k_sensitive, shape).astype(jnp.result_type(float))
    first, second = jax.random.normal(k_features, (2, *shape))
    first = first + proxy * sensitive
    score = first + second + (0 if fair else bias) * sensitive
    y = jnp.where(score + jax.random.logistic(k_labels, shape) > 0, 1.0, -1.0)
    return jnp.stack([jnp.ones(shape), first, second, sensitive], axis=2), y


def loans(key: Array, bias: Array, proxy: Array, form: str) -> fl.Simulation:
    """One model of decisions, judged by labels without the bias."""
    k_data, k_test, k_draws = jax.random.split(key, 3)
    problem = Problem(*decided(k_data, bias, proxy, fair=False), Logistic())
    if form != AS_IS:
        draws = k_draws if form == DRAWN else None
        problem = fairness.augmented(problem, SENSITIVE, draws)
    metrics = [
        "accuracy",
        fairness.flip_effect(SENSITIVE),
        fairness.parity_difference("positive_rate", SENSITIVE, (-1, 1)),
    ]
    problem = problem.with_test(*decided(k_test, bias, proxy, fair=True))
    return fl.Simulation(problem, FedAvg(STEP.value), metrics=metrics)


def unlike(key: Array) -> Problem:
    """A minority of clients whose labels follow another truth."""
    k_truth, k_data = jax.random.split(key)
    directions, _ = jnp.linalg.qr(jax.random.normal(k_truth, (DIM.value, 2)))
    angle = jnp.where(jnp.arange(MANY) < FEW.value, jnp.deg2rad(APART.value * 1.0), 0)
    truth = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1) @ directions.T
    k_features, k_labels = jax.random.split(k_data)
    x = jax.random.normal(k_features, (MANY, 2 * SAMPLES.value, DIM.value))
    score = LENGTH.value * jnp.einsum("knp,kp->kn", x, truth)
    y = jnp.where(score + jax.random.logistic(k_labels, score.shape) > 0, 1.0, -1.0)
    half = SAMPLES.value
    return Problem(x[:, :half], y[:, :half], Logistic()).with_test(x[:, half:], y[:, half:])


PLAIN = "FedAvg"
SOFT = "q-FedAvg"
AGNOSTIC = "AFL"
ALGORITHMS = {
    PLAIN: FedAvg(STEP.value),
    SOFT: QFedAvg(STEP.value, fairness=FAIRNESS.value),
    AGNOSTIC: AFL(STEP.value, mixture_step_size=ASCENT.value),
}


def shared(key: Array, algorithm: Algorithm) -> fl.Simulation:
    metrics = [
        "client_accuracy",
        "accuracy",
        fairness.worst("client_accuracy", 0.1),
        fairness.spread("client_accuracy"),
    ]
    return fl.Simulation(unlike(key), algorithm, metrics=metrics)


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, SEEDS.value)

    def run(form: str) -> xr.Dataset:
        def build(key: Array, bias: Array, proxy: Array) -> fl.Simulation:
            return loans(key, bias, proxy, form)

        build.__qualname__ = f"loans({form})"
        result = effort.sweep(
            f"loans-{FORMS.index(form)}",
            build,
            rounds=ROUNDS.value,
            seeds=seeds,
            grid={"bias": list(BIAS.value), "proxy": list(PROXY.value)},
            record_every=ROUNDS.value,
        )
        return last(result)

    result = joined(*map(run, FORMS), axis="data").assign_coords(data=list(FORMS))
    result["bias"].attrs["long_name"] = "bias of past decisions"
    result["data"].attrs["long_name"] = "training data"
    clients = effort.sweep(
        "clients",
        shared,
        rounds=LONG.value,
        seeds=seeds,
        grid={"algorithm": ALGORITHMS},
        record_every=10,
    )
    return {"feature": result, "clients": clients}


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("what a flip changes", "who is favored", "accuracy without the bias")
    titles += ("clients of one model", "the worst tenth", "spread over clients")
    drawing, axes = picture.panels(titles, height=2.1)
    for ax, metric in zip(axes[:3], ("flip_effect", PARITY, "accuracy"), strict=True):
        data = studies["feature"].sel(proxy=PROXY.value[0])
        plotting.trade_off(data, "bias", metric, "data", ax)
        if metric != "flip_effect":
            without_proxy = studies["feature"].sel(proxy=PROXY.value[1], data=FLIPPED)
            mean = without_proxy[metric].mean("seed")
            picture.predicted_curve(ax, mean["bias"].values, mean.values, "flipped, with a proxy")
    clients = studies["clients"]
    plotting.by_client(clients, ax=axes[3])
    for ax, metric in zip(axes[4:], (WORST, SPREAD), strict=True):
        plotting.learning_curves(clients, metric, ax=ax)
    labels = {0: "change of a score", 1: "groups' difference", 4: "accuracy", 5: "deviation"}
    for index, label in labels.items():
        axes[index].set_ylabel(label)
    return picture.finish(
        drawing, "A sensitive feature, (a) to (c); a minority of clients", legend_width=0.95
    )


# --------------------------------------------------------------------------- claims


def differences(
    metric: str, over: str, under: str, proxy: float = PROXY.value[0], least: float = 0.5
) -> Measure:
    """The difference of a metric between two forms of the training data, by the bias."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["feature"].sel(proxy=proxy)
        return {
            f"bias {bias:g}": estimate(
                lambda a, b: a - b,
                samples(data, {"data": over, "bias": bias}, metric),
                samples(data, {"data": under, "bias": bias}, metric),
                unit="",
            )
            for bias in data["bias"].values
            if bias >= least
        }

    return measure


def levels(metric: str, form: str, proxy: float = PROXY.value[0], least: float = 0) -> Measure:
    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["feature"].sel(proxy=proxy)
        return {
            f"bias {bias:g}": estimate(
                lambda a: a, samples(data, {"data": form, "bias": bias}, metric), unit=""
            )
            for bias in data["bias"].values
            if bias >= least
        }

    return measure


def rises(studies: Studies) -> dict[str, Estimate]:
    """By how much more a flip changes at the next bias."""
    data = studies["feature"].sel(proxy=PROXY.value[0])
    return {
        f"bias {more:g} above {less:g}": estimate(
            lambda a, b: a - b,
            samples(data, {"data": AS_IS, "bias": more}, "flip_effect"),
            samples(data, {"data": AS_IS, "bias": less}, "flip_effect"),
            unit="",
        )
        for less, more in itertools.pairwise(data["bias"].values)
    }


def carried(studies: Studies) -> dict[str, Estimate]:
    """By how much more groups differ with a bias than without, of flipped copies with a proxy."""
    data = studies["feature"].sel(proxy=PROXY.value[1], data=FLIPPED)
    return {
        f"bias {bias:g} above none": estimate(
            lambda a, b: a - b,
            samples(data, {"bias": bias}, PARITY),
            samples(data, {"bias": BIAS.value[0]}, PARITY),
            unit="",
        )
        for bias in data["bias"].values[1:]
    }


def metric_gain(metric: str, over: str | None = None, under: str | None = None) -> Measure:
    """How far a metric of fair methods ends above FedAvg's, or one method's above another's."""
    pairs = [(over, under)] if over and under else [(SOFT, PLAIN), (AGNOSTIC, PLAIN)]

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = last(studies["clients"])
        return {
            f"{over} above {other}": estimate(
                lambda a, b: a - b,
                samples(data, over, metric),
                samples(data, other, metric),
                unit="",
            )
            for over, other in pairs
        }

    return measure


BY_FLIP = "judged by what a flip of the sensitive feature changes"
INSTANCE = "a minority of a fifth of the clients, whose truth is at a right angle to the others'"

FIGURE = Figure(
    name="jung-fairness",
    title="Fairness towards a sensitive feature, and between clients",
    source="Jung 2025, section 8.5 and Figure 8.4",
    caption="(a) to (c) one model of past decisions in which a sensitive feature, -1 or 1, counts "
    "as much as the bias says. FedAvg trains it on the data as they are, or with a copy of each "
    "sample whose sensitive feature is flipped, or drawn anew; it is judged on labels without the "
    "bias: how far its score moves when the feature is flipped, by how much more of one group it "
    "favors, and how often it is right. Dots: where another feature is a proxy of the sensitive "
    "one, flipped copies. (d) to (f) one model of twenty clients, of which a fifth have labels "
    "that follow another truth.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "bias-is-learned",
            "training on biased decisions enforces the bias: the larger it is, the more does a "
            "flip of the sensitive feature change",
            "section 8.5",
            rises,
            (0, INFINITE),
            condition=BY_FLIP,
        ),
        Claim(
            "flipped-copies-cure",
            "with copies whose sensitive feature is flipped it changes nothing",
            "section 8.5, Figure 8.4",
            levels("flip_effect", FLIPPED),
            (-0.01, 0.01),
            "less than 0.01 of a score",
            condition="a linear model; the feature is coded by -1 and 1",
        ),
        Claim(
            "drawn-copies-lessen",
            "one copy whose feature is drawn anew lessens what a flip changes",
            "section 8.5",
            differences("flip_effect", DRAWN, AS_IS),
            (-INFINITE, 0),
            condition=BY_FLIP,
        ),
        Claim(
            "drawn-copies-leave-half",
            "but leaves part of it, as the original keeps what it says",
            "section 8.5, Figure 8.4",
            levels("flip_effect", DRAWN, least=0.5),
            (0.05, INFINITE),
            "0.05 of a score or more",
            ours=True,
        ),
        Claim(
            "groups-are-treated-alike",
            "and both groups are favored as often as each other",
            "section 8.5",
            levels(PARITY, FLIPPED),
            (0, 0.06),
            "the difference of two shares of 500 samples each is 0.025 on average by chance",
            condition="judged by how often each group is favored",
        ),
        Claim(
            "accuracy-gains",
            "a model without the bias is right more often, where labels are judged without it",
            "section 8.5",
            differences("accuracy", FLIPPED, AS_IS),
            (0, INFINITE),
            ours=True,
        ),
        Claim(
            "proxies-stay",
            "a feature that mirrors the sensitive one carries the bias on: groups are then favored "
            "the more unlike each other, flipped copies or not, the larger it is",
            "section 8.5: 'any features that mainly reflect' it",
            carried,
            (0, INFINITE),
            "the difference of groups above that without bias, which the proxy makes of itself",
            condition="a proxy that is not itself modified",
        ),
        Claim(
            "worst-tenth-gains",
            "the worst tenth of the clients gains by q-FedAvg and by AFL",
            "Li et al. 2020, Table 1, and Mohri et al. 2019, Table 1; section 8.5 has no method",
            metric_gain(WORST),
            (0, INFINITE),
            condition=INSTANCE,
        ),
        Claim(
            "spread-shrinks",
            "accuracies of clients differ less",
            "Li et al. 2020, Table 1; section 8.5 has no method",
            metric_gain(SPREAD),
            (-INFINITE, 0),
            condition=INSTANCE,
        ),
        Claim(
            "worst-is-best-served-by-afl",
            "AFL, which minimizes the worst, does more for the worst tenth than q-FedAvg",
            "section 8.5; Mohri et al. 2019, (4)",
            metric_gain(WORST, AGNOSTIC, SOFT),
            (0, INFINITE),
            condition=f"q = {FAIRNESS.value:g}; a larger q comes nearer to AFL",
            ours=True,
            note="AFL minimizes the largest loss of a client on its training data, q-FedAvg a "
            "smooth form of it; in the accuracy on held-out data they are about level here.",
        ),
        Claim(
            "mean-pays",
            "the mean accuracy pays for it",
            "section 8.5; Li et al. 2020 find it about as high",
            metric_gain("accuracy"),
            (-INFINITE, 0),
            condition="a minority whose truth is unlike the majority's",
            ours=True,
        ),
    ],
    settings=(
        *(CLIENTS, SAMPLES, BIAS, PROXY, STEP, ROUNDS, FEW, APART, LENGTH, DIM, LONG),
        *(FAIRNESS, ASCENT, SEEDS),
    ),
)
