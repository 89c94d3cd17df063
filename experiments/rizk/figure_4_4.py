"""Rizk 2023, figure 4.4: four schemes of noise under three strategies (section 4.4.1)."""

import functools
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
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
from experiments.measures import joined
from experiments.rizk import chapter4 as ch4
from experiments.rizk import network as net
from experiments.rizk.network import HOMOMORPHIC, LOCAL, NONE, RANDOM
from fljax import plotting, statistics

SCHEMES = (NONE, RANDOM, HOMOMORPHIC)
ATC = "ATC"
EVERY = 10

CROSSING = Setting(
    "(g), (h) step sizes of the runs", (0.025, 0.1, 0.4), "around the crossover; 10 seeds, ATC"
)
PREDICTED = Setting(
    "(g), (h) step sizes of theory",
    (0.003, 0.006, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.4),
    "down to where the crossover is in every network",
)
GRAPHS = Setting(
    "(g) networks", ("ring", "as drawn", "8-regular"), "2, about 4 and 8 neighbors of everybody"
)
FEW = 10


def graphs() -> dict[str, fl.graphs.Graph]:
    """In one form, for one program."""
    nodes = ch4.PEERS.value
    ring = fl.graphs.ring(nodes).as_form("padded", max_degree=ch4.WIDTH)
    regular = fl.graphs.k_regular(fl.random_key(0), nodes, 8, form="padded")
    return dict(zip(GRAPHS.value, (ring, ch4.world()[1], regular), strict=True))


def study(effort: Effort) -> Studies:
    everywhere = graphs()
    _, drawn, _ = GRAPHS.value
    strategies = {name: ch4.strategy(name) for name in ch4.STRATEGIES}
    asked = {"rounds": ch4.ROUNDS.value, "record_every": EVERY}
    result = net.study(
        "study",
        effort,
        ch4.scenario,
        [ch4.VARIANCE.value],
        (RANDOM, HOMOMORPHIC, LOCAL),
        {
            "strategy": strategies,
            "step_size": [ch4.STEP.value],
            "graph": {drawn: everywhere[drawn]},
        },
        seeds=ch4.SEEDS.value,
        **asked,
    )
    crossing = net.study(
        "crossing",
        effort,
        ch4.scenario,
        [ch4.VARIANCE.value],
        grid={
            "strategy": {ATC: strategies[ATC]},
            "step_size": list(CROSSING.value),
            "graph": everywhere,
        },
        seeds=FEW,
        **asked,
    )
    crossing = net.noise_parts(crossing).squeeze(["variance", "strategy"], drop=True)

    def theory(name: str, **axes: Any) -> xr.Dataset:
        build = functools.partial(ch4.scenario, strategy=strategies[name])
        result = net.predicted(build, SCHEMES, variance=[ch4.VARIANCE.value], **axes)
        return result.squeeze("variance", drop=True)

    orders = theory(ATC, step_size=PREDICTED.value, graph=everywhere)
    one = {"step_size": [ch4.STEP.value], "graph": {drawn: everywhere[drawn]}}
    levels = [
        orders.sel(step_size=[ch4.STEP.value], graph=[drawn])
        if name == ATC
        else theory(name, **one)
        for name in strategies
    ]
    apart = _apart(result)
    single = ["variance", "step_size", "graph"]
    for part in (crossing, orders):
        part["step_size"].attrs["long_name"] = "step size μ"
    curvature = fl.theory.multiagent.hessian(ch4.world()[0])
    orders.attrs["curvature"] = float(np.trace(curvature) / len(curvature))
    return {
        "a": net.curves(result).squeeze(single, drop=True),
        "masks": apart.squeeze(single, drop=True),
        "crossing": crossing,
        "orders": orders,
        "theory": joined(*levels, axis="strategy")
        .assign_coords(strategy=list(strategies))
        .squeeze(["step_size", "graph"], drop=True),
    }


def _apart(data: xr.Dataset) -> xr.Dataset:
    """The largest entry by which models under local noise are off those without, of the largest."""
    models = data[net.MODELS]
    over = ["round", "node", "parameter"]
    silent = models.sel(scheme=NONE, drop=True)
    off = abs(models.sel(scheme=LOCAL, drop=True) - silent).max(over) / abs(silent).max(over)
    return data[["diverged"]].sel(scheme=LOCAL, drop=True).assign({APART: off})


APART = "largest_difference"


def plot(studies: Studies) -> Picture:
    data, theory, orders = studies["a"], studies["theory"], studies["orders"]
    strategies = data["strategy"].values
    titles = [f"centroid, {name}" for name in strategies]
    titles += [f"models, {name}" for name in strategies]
    titles += ["homomorphic above random", "noise alone, centroid", "the network"]
    drawing, axes = picture.panels(titles)
    for row, metric in enumerate((net.CENTROID, net.INDIVIDUAL)):
        for ax, name in zip(axes[3 * row :], strategies, strict=False):
            plotting.learning_curves(data.sel(strategy=name, drop=True), metric, "scheme", ax)
            for scheme in SCHEMES:
                level = float(theory[metric].sel(strategy=name, scheme=scheme))
                picture.theory(ax, float(statistics.decibels(level)), f"theory, {scheme}")
            picture.fade(ax)
    _crossing(axes[6], orders, studies["crossing"])
    drawn = GRAPHS.value[1]
    noise = studies["crossing"].sel(graph=drawn, drop=True)
    plotting.trade_off(noise, "step_size", net.CENTROID_NOISE, "scheme", axes[7])
    centroid = orders[net.CENTROID].sel(graph=drawn)
    for scheme in (RANDOM, HOMOMORPHIC):
        part = statistics.decibels((centroid.sel(scheme=scheme) - centroid.sel(scheme=NONE)).values)
        first = "theory" if scheme == RANDOM else "_"
        picture.predicted_curve(axes[7], orders["step_size"].values, part, first)
    title = axes[8].get_title()
    plotting.draw_graph(ch4.world()[1], ax=axes[8])
    axes[8].set_title(title)
    return picture.finish(drawing, f"μ = {ch4.STEP.value:g}, σ² = {ch4.VARIANCE.value:g}")


def _crossing(ax: Axes, orders: xr.Dataset, runs: xr.Dataset) -> None:
    """How far homomorphic noise in single models is above random noise, and by theory."""
    for place, name in enumerate(orders["graph"].values):
        level = _noise(orders.sel(graph=name))
        look = {key: plotting.LOOKS[place][key] for key in ("color", "linestyle")}
        ax.plot(orders["step_size"], level, label=f"theory, {name}", linewidth=0.8, **look)
        mean = runs[net.INDIVIDUAL_NOISE].sel(graph=name).mean("seed")
        gap = statistics.decibels(mean.sel(scheme=HOMOMORPHIC) / mean.sel(scheme=RANDOM))
        ax.plot(runs["step_size"], gap, plotting.LOOKS[place]["marker"], color=look["color"])
    ax.axhline(0, color="#999999", linewidth=0.8)
    ax.set(xscale="log", xlabel="step size μ", ylabel="difference [dB]")


def _noise(orders: xr.Dataset) -> np.ndarray:
    """The same by theory, of the noise alone."""
    level = orders[net.INDIVIDUAL]
    over, under = (level.sel(scheme=s) - level.sel(scheme=NONE) for s in (HOMOMORPHIC, RANDOM))
    return np.asarray(statistics.decibels((over / under).values))


# --------------------------------------------------------------------------- claims


def each(metric: str, *names: tuple[str, str]) -> Measure:
    """How far schemes are apart in the steady state of each strategy."""
    cases = {
        f"{strategy}, {case}": pair
        for strategy in ch4.STRATEGIES
        for case, pair in net.pairs(*names, strategy=strategy).items()
    }
    return net.gaps("a", metric, cases)


def rounding(studies: Studies) -> dict[str, Estimate]:
    """How far local noise is off, of the largest entry of a model, in single precision."""
    worst = studies["masks"][APART].max("seed")
    return {
        str(name): Estimate.exact(1e6 * float(worst.sel(strategy=name)), "millionths")
        for name in worst["strategy"].values
    }


def orders(*schemes: str) -> Measure:
    """The power of the step size with which the noise in the centroid grows."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["crossing"]
        return {
            f"{scheme}, {name}": net.slope(
                data, net.CENTROID_NOISE, "step_size", scheme=scheme, graph=name
            )
            for scheme in schemes
            for name in data["graph"].values
        }

    return measure


def crossover(studies: Studies) -> str:
    """Where, by theory, homomorphic noise turns to be the better one."""
    data, places = studies["orders"], []
    for name in data["graph"].values:
        level, steps = _noise(data.sel(graph=name)), np.log(data["step_size"].values)
        places.append(f"{name} {np.exp(np.interp(0, level, steps)):.2g}")
    return (
        "A node that takes its own draw off hears more noise than one to whom independent draws "
        "average out; only where these have time to add up in the centroid is it the other way "
        f"round. By theory (g) that is below a step of ({', '.join(places)}) in these networks, "
        f"at eigenvalues of the Hessian near {data.attrs['curvature']:.2g}."
    )


def not_so_close(studies: Studies) -> str:
    return (
        "The noise cancels in the centroid, and yet single-sample gradients, taken at models that "
        "it drives apart, are louder: O(mu) as in (h), but not small beside the gradient noise "
        f"without it ({each(net.CENTROID, (RANDOM, NONE))(studies)['ATC, random above none']} "
        "under the random scheme)."
    )


FIGURE = Figure(
    name="rizk-4.4",
    title="Four schemes of noise under consensus and diffusion",
    source="Rizk 2023, figure 4.4",
    caption="30 peers, single-sample gradients. The masks of local noise are drawn and summed; "
    "that nothing is left of them is measured. (g) and (h), ours, have the noise alone, of runs of "
    "the same seed with and without it: (g) where homomorphic noise is the larger one in single "
    "models (above 0 dB), by network and step size; (h) its order in the centroid, 1/μ under "
    "random and μ under homomorphic noise, for which Theorem 4.2 has O(1). (i) is the network, "
    "figure 4.3 of the source.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "random-is-higher",
            "the centroid's MSD under random perturbations is significantly higher than under "
            "homomorphic ones",
            "section 4.4.1 on figure 4.4",
            each(net.CENTROID, (RANDOM, HOMOMORPHIC)),
            (net.SIGNIFICANTLY, INFINITE),
            net.SIGNIFICANT,
        ),
        Claim(
            "homomorphic-is-close",
            "the centroid's MSD under homomorphic perturbations is close to that without",
            "section 4.4.1 on figure 4.4",
            each(net.CENTROID, (HOMOMORPHIC, NONE)),
            net.CLOSE,
            net.NEAR,
            note=not_so_close,
        ),
        Claim(
            "models-decay-less",
            "the individual MSD under homomorphic perturbations does not decay as much as under "
            "random ones",
            "section 4.4.1 on figure 4.4",
            each(net.INDIVIDUAL, (RANDOM, HOMOMORPHIC)),
            (0, INFINITE),
            note=crossover,
        ),
        Claim(
            "models-decay-less-at-small-steps",
            "it does not at a small step, in a sparse network",
            "section 4.4.1 on figure 4.4",
            lambda studies: {
                "ring, step 0.025": net.gap(
                    studies["crossing"].sel(graph="ring", step_size=min(CROSSING.value)),
                    {"scheme": RANDOM},
                    {"scheme": HOMOMORPHIC},
                    net.INDIVIDUAL_NOISE,
                )
            },
            (0, INFINITE),
            condition="a ring, and a sixteenth of the source's step; the noise alone",
        ),
        Claim(
            "local-follows",
            "local perturbations do not affect the MSD: it follows that without",
            "section 4.4.1 on figure 4.4",
            each(net.INDIVIDUAL, (LOCAL, NONE)),
            (-0.01, 0.01),
            "within 0.01 dB",
            construction="masks cancel in every receiver's weighted sum",
        ),
        Claim(
            "local-same-trajectory",
            "the algorithm follows the same trajectory as the one without noise",
            "section 4.3.4",
            rounding,
            (-INFINITE, 10),
            "the largest difference of any entry in any round, of the largest entry: rounding",
            construction="masks cancel in every receiver's weighted sum",
        ),
        Claim(
            "random-order",
            "the noise in the centroid is O(1/mu) under random perturbations",
            "Theorem 4.1, (4.48)",
            orders(RANDOM),
            (-1.2, -0.8),
            "slope of the logarithms",
        ),
        Claim(
            "homomorphic-order",
            "under homomorphic perturbations it is O(1)",
            "Theorem 4.2, (4.54)",
            orders(HOMOMORPHIC),
            (-0.2, 0.2),
            "slope of the logarithms: none",
            note=lambda studies: (
                "It is O(mu), better than the theorem's bound, which Jensen's inequality makes "
                "loose: "
                + "; ".join(f"{name} {e}" for name, e in orders(HOMOMORPHIC)(studies).items())
                + "."
            ),
        ),
        net.agreement(
            "a",
            {"centroid": net.CENTROID, "models": net.INDIVIDUAL},
            {
                f"{strategy}, {scheme}": {"strategy": strategy, "scheme": scheme}
                for strategy in ch4.STRATEGIES
                for scheme in SCHEMES
            },
        ),
    ],
    settings=(
        *ch4.COMMON,
        ch4.STEP,
        ch4.VARIANCE,
        ch4.ROUNDS,
        ch4.SEEDS,
        *(CROSSING, PREDICTED, GRAPHS),
    ),
)
