"""Jung 2025: nodes that are late, FedRelax and FedGD under asynchrony (section 5.8)."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.measures import estimate, gap, joined, last
from fljax import plotting, statistics
from fljax.algorithms import FedGD, FedRelax
from fljax.graphs import Graph
from fljax.link import Fixed, Geometric, UniformDelay
from fljax.metrics.definitions import Metric, Snapshot
from fljax.participation.patterns import Bernoulli, Bounded
from fljax.problems import Problem
from fljax.theory import network_rates

NODES = Setting("nodes, mean degree", (10, 4), "not given; random and connected")
DATA = Setting("samples a node, parameters", (10, 2), "not given; each node's loss is convex")
COUPLING = Setting("alpha", 0.1, "not given; factors of FedRelax are between a half and one")
BOUNDS = Setting(
    "B", (1, 2, 5, 10), "not readable in Fig. 5.6; from hardly any delay to a long one"
)
FACTORS = Setting(
    "(d) alpha, B", ((0.01, 0.1, 1.0), 5), "by which the factor (133) is small, middle, near one"
)
DRAWN = Setting(
    "(e) kappa, B", ((0.5, 0.9), (1, 5, 10)), "not readable in Fig. 5.6; a small factor and a large"
)
PROBABILITY = Setting("probability of an update", 0.3, "of a node that may still rest; not given")
TOTAL = Setting(
    "total asynchrony",
    (0.3, 0.7, 20),
    "probability of an update, by which rests are unbounded; probability of one more event of "
    "delay, and the longest, which what would take longer takes: nothing is lost",
)
EVENTS = Setting("events", 300, "B = 10 comes to -100 dB or less")
STEEP = Setting(
    "FedGD's network, alpha",
    (10, 1.0),
    "all nodes joined, and coupled as strongly as their losses curve: late neighbors matter most",
)
PARTS = Setting(
    "FedGD's step", (0.4, 0.6, 0.8, 0.95), "over the limit of gradient descent without delays"
)
LATE = Setting(
    "FedGD's B",
    (0, 1, 2, 5, 10),
    "of every message, with all nodes in every event; 0 is without delays",
)
SHORT = Setting("events of FedGD", 80, "what grows is in the range of stored numbers")
MOST = Setting("seeds", 20, "at most")

ERROR = "worst_node"
RANDOM = "random"
WORST = "worst"
NEVER = "total"
BY_FACTOR = "factors"
#: Squared errors below this part of the first may be rounding.
CLEAR = 1e-20
#: A bound that is kept, but for rounding.
AT_MOST = (0.0, 1 + 1e-6)


def _worst(now: Snapshot) -> Array:
    assert now.optimum is not None
    return jnp.max(jnp.sum((now.model - now.optimum) ** 2, axis=1))


METRIC = Metric(ERROR, _worst, "squared error of the worst node", decibel=True, needs={"optimum"})

# --------------------------------------------------------------------------- scenarios


def instance(key: Array) -> tuple[Problem, Graph]:
    k_graph, k_data = jax.random.split(key)
    problem = fl.problems.least_squares(k_data, NODES.value[0], *DATA.value)
    return problem, fl.graphs.random_connected(k_graph, *NODES.value)


def relaxation(
    key: Array, scheme: str, bound: int, coupling: Array | float = COUPLING.value
) -> fl.Simulation:
    """FedRelax: activity and delays at random within the bound, the rarest and longest, or both
    without a bound.
    """
    problem, graph = instance(key)
    if scheme == RANDOM:
        activity = Bounded(bound, PROBABILITY.value)
        delays = UniformDelay(bound)
    elif scheme == WORST:
        activity = Bounded(bound, 0.0)
        delays = Fixed(bound)
    else:
        probability, more, longest = TOTAL.value
        activity = Bernoulli(probability)
        delays = Geometric(more, longest, beyond="clip")
    return fl.Simulation(
        problem,
        FedRelax(coupling),
        graph,
        participation=activity,
        delays=delays,
        metrics=[METRIC],
    )


def descent(key: Array, part: Array, bound: int) -> fl.Simulation:
    """FedGD with a part of the longest step that converges without delays.

    All nodes update in every event from models that are B events old: partial asynchrony's limit.
    """
    nodes, coupling = STEEP.value
    problem = fl.problems.least_squares(key, nodes, *DATA.value)
    graph = fl.graphs.complete(nodes)
    dense = coupling * jnp.kron(graph.laplacian_matrix(), jnp.eye(problem.dim))
    blocks = jax.scipy.linalg.block_diag(*problem.second_moment())
    limit = 1 / jnp.linalg.eigvalsh(blocks + dense)[-1]  # (85)
    return fl.Simulation(
        problem,
        FedGD(coupling, part * limit),
        graph,
        delays=Fixed(bound),
        metrics=[METRIC],
    )


@jax.jit
def contraction(key: Array, coupling: float) -> tuple[Array, Array]:
    """FedRelax's factor (133), the largest of the nodes', and the first error of the worst node."""
    problem, graph = instance(key)
    best = FedRelax(coupling).optimum(problem, graph)
    factor = jnp.max(network_rates.fedrelax_factors(problem, graph, coupling))
    return factor, jnp.max(jnp.sum(best**2, axis=1))


# --------------------------------------------------------------------------- study


def study(effort: Effort) -> Studies:
    seeds = min(effort.seeds, MOST.value)

    def run(delays: str, bound: int) -> xr.Dataset:
        def build(key: Array) -> fl.Simulation:
            return relaxation(key, delays, bound)

        build.__qualname__ = f"relaxation({delays!r}, {bound})"
        return effort.sweep(f"{delays}-{bound}", build, rounds=EVENTS.value, seeds=seeds)

    def steps(bound: int) -> xr.Dataset:
        def build(key: Array, part: Array) -> fl.Simulation:
            return descent(key, part, bound)

        build.__qualname__ = f"descent({bound})"
        grid = {"part": list(PARTS.value)}
        name = f"descent-{bound}"
        runs = effort.sweep(name, build, rounds=SHORT.value, seeds=seeds, grid=grid)
        return last(runs).assign(first=runs[ERROR].isel(round=0, drop=True))

    root = fl.random_key(0)
    keys = [jax.random.split(jax.random.fold_in(root, seed))[0] for seed in range(seeds)]
    factor, start = np.asarray([contraction(key, COUPLING.value) for key in keys], float).T
    parts = {}
    for delays in (RANDOM, WORST):
        runs = joined(*(run(delays, bound) for bound in BOUNDS.value), axis="bound")
        parts[delays] = with_bounds(runs.assign_coords(bound=list(BOUNDS.value)), factor, start)
    parts[NEVER] = run(NEVER, 0).assign(start=("seed", start))
    couplings, delay = FACTORS.value

    def coupled(key: Array, coupling: Array) -> fl.Simulation:
        return relaxation(key, RANDOM, delay, coupling)

    grid = {"coupling": list(couplings)}
    by_factor = effort.sweep("factors", coupled, rounds=EVENTS.value, seeds=seeds, grid=grid)
    factors = np.asarray([[contraction(key, a) for a in couplings] for key in keys], float)
    parts[BY_FACTOR] = by_factor.assign(
        factor=(("seed", "coupling"), factors[..., 0]),
        start=(("seed", "coupling"), factors[..., 1]),
    )
    parts[BY_FACTOR]["coupling"].attrs["long_name"] = r"coupling $\alpha$"
    late = joined(*map(steps, LATE.value), axis="bound").assign_coords(bound=list(LATE.value))
    late["part"].attrs["long_name"] = "step over the limit"
    for part in (*map(parts.get, (RANDOM, WORST)), late):
        part["bound"].attrs["long_name"] = "B"
    return parts | {"descent": late}


def with_bounds(runs: xr.Dataset, factor: np.ndarray, start: np.ndarray) -> xr.Dataset:
    """With (134), repaired and as printed, for squared errors."""
    events = runs.sizes["round"]
    bound_of = functools.partial(network_rates.asynchronous_bound, events=events)
    result = [[bound_of(float(f), delay=b) for b in BOUNDS.value] for f in factor]
    for name in ("repaired", "printed"):
        field = "bound" if name == "repaired" else name
        level = np.asarray(
            [[np.asarray(getattr(bounds, field))[1:] for bounds in row] for row in result]
        )
        runs[name] = (("seed", "bound", "round"), start[:, None, None] * level**2)
    return runs.assign(start=("seed", start), factor=("seed", factor))


# --------------------------------------------------------------------------- picture


def plot(studies: Studies) -> Picture:
    titles = ("random, within B", "rarest and latest", "totally asynchronous")
    titles += (f"by the factor (133), B = {FACTORS.value[1]}", "Figure 5.6", "FedGD")
    drawing, (*within, never, factors, family, steps) = picture.panels(titles, height=2.3)
    labels = {b: f"B = {b}" for b in BOUNDS.value}
    for ax, delays in zip(within, (RANDOM, WORST), strict=True):
        data = studies[delays]
        plotting.learning_curves(data, ERROR, "bound", ax, labels=labels)
        names = {"repaired": "(134), repaired", "printed": r"$\kappa^{t/(2B+1)}$, (134)"}
        for name, style in (("repaired", "-"), ("printed", (0, (1, 1.5)))):
            for bound in BOUNDS.value:
                level = statistics.decibels(data[name].sel(bound=bound).mean("seed").values)
                text = names[name] if bound == BOUNDS.value[0] else "_"
                picture.predicted_curve(ax, data["round"].values, level, text, linestyle=style)
        ax.set_ylim(-105, 12)
    plotting.learning_curves(studies[NEVER], ERROR, None, never, legend=False)
    never.set_ylim(-105, 12)
    data = studies[BY_FACTOR]
    labels = {a: rf"$\alpha$ = {a:g}" for a in FACTORS.value[0]}
    plotting.learning_curves(data, ERROR, "coupling", factors, labels=labels)
    for i, coupling in enumerate(FACTORS.value[0]):
        part = data.sel(coupling=coupling)
        exponent = 2 * data["round"].values / (2 * FACTORS.value[1] + 1)
        bound = part["start"].values[:, None] * part["factor"].values[:, None] ** exponent
        level = statistics.decibels(bound.mean(axis=0))
        text = r"$\kappa^{t/(2B+1)}$, (134)" if i == 0 else "_"
        picture.predicted_curve(factors, data["round"].values, level, text)
    factors.set_ylim(-105, 12)
    events = np.arange(101)
    for i, (kappa, bound) in enumerate(itertools.product(*DRAWN.value)):
        text = rf"$\kappa$ = {kappa:g}, B = {bound}"
        family.plot(events, kappa ** (events / (2 * bound + 1)), label=text, **picture.look(i))
    family.set(xlabel="update event t", ylabel=r"$\kappa^{t/(2B+1)}$", ylim=(0, 1))
    for ax in (*within, never, factors):
        ax.set_xlabel("update event")
        ax.set_ylabel("worst node's error [dB]")
    data = studies["descent"]
    for look, part in zip(plotting.LOOKS, PARTS.value, strict=False):
        at = data.sel(part=part)
        level = statistics.decibels((at[ERROR] / at["first"]).mean("seed").values)
        steps.plot(data["bound"], level, label=f"{part:g} of the limit", **look)
    steps.set(xlabel="B", ylabel=f"change in {SHORT.value} events [dB]", xticks=LATE.value)
    steps.axhline(0, color="#999999", linewidth=0.6)
    return picture.finish(drawing, "FedRelax and FedGD where nodes rest and hear what is old")


# --------------------------------------------------------------------------- claims


def largest(name: str) -> Measure:
    """The largest of all nodes' errors over a bound, at any event."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for delays in (RANDOM, WORST):
            for bound in BOUNDS.value:
                over = ratios(studies[delays].sel(bound=bound), name)
                result[f"{delays}, B = {bound}"] = Estimate.exact(float(over.max()), "")
        return result

    return measure


def ratios(data: xr.Dataset, name: str) -> np.ndarray:
    """``[S, events]``: worst errors over a bound; zero where they may be rounding."""
    error, bound = (data[n].transpose("seed", "round").values for n in (ERROR, name))
    clear = error > CLEAR * data["start"].values[:, None]
    return np.sqrt(np.where(clear, error / np.where(clear, bound, 1), 0))


def violations(studies: Studies) -> str:
    shares = []
    for delays in (RANDOM, WORST):
        for bound in BOUNDS.value:
            over = ratios(studies[delays].sel(bound=bound), "printed") > 1
            shares.append(f"{delays} with B = {bound}: {100 * np.mean(over):.1f} %")
    return (
        "Until each node has updated, nobody need be nearer: the bound holds only at the ends of "
        "every 2B + 1 events. Events at which it is exceeded, " + ", ".join(shares) + "."
    )


def arrives(*laws: str) -> Measure:
    """The last error of the worst node over that of the start, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for delays in laws:
            data = last(studies[delays])
            cases = {delays: data} if delays == NEVER else {}
            if delays != NEVER:
                cases = {f"{delays}, B = {b}": data.sel(bound=b) for b in BOUNDS.value}
            for name, part in cases.items():
                result[name] = estimate(
                    lambda a, b: statistics.decibels(a / b),
                    part[ERROR].values,
                    part["start"].values,
                )
        return result

    return measure


def slower(studies: Studies) -> dict[str, Estimate]:
    """How far the last error of one B is above that of the next smaller one."""
    result = {}
    for delays in (RANDOM, WORST):
        data = studies[delays].isel(round=MIDDLE - 1)
        for less, more in zip(BOUNDS.value, BOUNDS.value[1:], strict=False):
            pair = (data[ERROR].sel(bound=b).values for b in (more, less))
            result[f"{delays}, B = {more} above {less}"] = estimate(
                lambda a, b: statistics.decibels(a / b), *pair
            )
    return result


def slower_with_larger_factors(studies: Studies) -> dict[str, Estimate]:
    """How far the error of one coupling is above that of the next smaller one."""
    data = studies[BY_FACTOR].isel(round=MIDDLE - 1)
    relative = data[ERROR] / data["start"]
    result = {}
    for less, more in itertools.pairwise(FACTORS.value[0]):
        kappa = [float(data["factor"].sel(coupling=a).mean()) for a in (more, less)]
        result[f"mean kappa {kappa[0]:.2g} above {kappa[1]:.2g}"] = gap(
            *(relative.sel(coupling=a).values for a in (more, less))
        )
    return result


#: When errors of different delays are compared: none is rounding yet.
MIDDLE = 20


def growth(part: float, *bounds: int) -> Measure:
    """The last error of FedGD over the first, dB."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        result = {}
        for bound in bounds:
            data = studies["descent"].sel(part=part, bound=bound)
            result[f"step {part:g}, B = {bound}"] = estimate(
                lambda a, b: statistics.decibels(a / b), data[ERROR].values, data["first"].values
            )
        return result

    return measure


FIGURE = Figure(
    name="jung-asynchronous",
    title="FedRelax and FedGD under asynchrony",
    source="Jung 2025, section 5.8, Fig. 5.6",
    caption="Errors of the worst node against update events. (a) nodes update at random, at least "
    "once in B events, on what is up to B events old; (b) as rarely and late as B allows; (c) "
    "rests without a bound; (d) as (a), by the coupling, on which the factor (133) depends. Thin "
    "lines are (134) with that factor of each network: full where repaired, dotted as printed. (e) "
    "the factor that Figure 5.6 draws. (f) FedGD on a complete network, all nodes in every event "
    "on what is B events old.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "bound-as-printed",
            "errors are at most kappa^(t/(2B+1)) of the first",
            "(134), section 5.8",
            largest("printed"),
            AT_MOST,
            "the worst node's error over the bound, at every event of every run",
            note=violations,
        ),
        Claim(
            "bound-repaired",
            "errors are at most kappa^floor((t+B)/(2B)) of the first",
            "(134), section 5.8",
            largest("repaired"),
            AT_MOST,
            "likewise",
            condition="the exponent is rounded down, and that of one update and one delay a B",
            ours=True,
        ),
        Claim(
            "total-asynchrony-converges",
            "totally asynchronous pseudo-contractions converge to the solution",
            "section 5.8",
            arrives(NEVER),
            (-INFINITE, -60),
            "60 dB below the start after all events, and falling",
            condition="delays are cut at their longest; rests are not",
        ),
        Claim(
            "partial-asynchrony-converges",
            "FedRelax converges to GTVMin's solution for any B",
            "section 5.8",
            arrives(RANDOM, WORST),
            (-INFINITE, -60),
            "likewise",
        ),
        Claim(
            "smaller-delays-are-faster",
            "smaller delay bounds lead to faster convergence",
            "section 5.8",
            slower,
            (0, INFINITE),
            f"the error after {MIDDLE} events is above that of the next smaller B",
        ),
        Claim(
            "smaller-factors-are-faster",
            "smaller contraction factors lead to faster convergence",
            "(133), (134), section 5.8",
            slower_with_larger_factors,
            (0, INFINITE),
            f"the error after {MIDDLE} events, over the first, is above that of the next smaller "
            "factor, by alpha",
        ),
        Claim(
            "short-steps-for-any-delay",
            "a partially asynchronous algorithm can converge for any B",
            "section 5.8",
            growth(PARTS.value[0], *LATE.value),
            (-INFINITE, 0),
            "FedGD with a short step: the error after all events is below that of the first",
            condition="FedGD on a complete network as the operator",
        ),
        Claim(
            "some-only-for-small-delays",
            "others converge only if B is small enough: without delays this one does",
            "section 5.8",
            growth(PARTS.value[-1], 0),
            (-INFINITE, 0),
            "likewise, FedGD close to the limit of gradient descent",
            condition="FedGD on a complete network as the operator",
        ),
        Claim(
            "some-diverge-with-delays",
            "others converge only if B is small enough: with delays this one diverges",
            "section 5.8",
            growth(PARTS.value[-1], *LATE.value[1:]),
            (20, INFINITE),
            "the same step: 20 dB above the first error after all events",
            condition="FedGD on a complete network as the operator",
        ),
    ],
    settings=(
        *(NODES, DATA, COUPLING, BOUNDS, FACTORS, DRAWN, PROBABILITY, TOTAL),
        *(EVENTS, STEEP, PARTS, LATE, SHORT, MOST),
    ),
    double=True,
)
