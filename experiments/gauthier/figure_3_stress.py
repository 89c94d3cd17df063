"""Where the ranking of Gauthier 2024, chapter 3, changes: real bounds, small budgets, other steps.

Panels: (a), (b) error after 200 iterations when the gradient bound truly holds, every method tuned
for every budget separately; (c) the effect of the penalty on the contest with P-ADMM.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Setting, Studies
from experiments.gauthier import chapter3 as ch3
from experiments.tuning import means, seeds
from fljax import plotting, statistics
from fljax._core.module import module

BUDGETS = Setting(
    "epsilons of (a), (b)", (1.0, 3.0, 10.0, 30.0, 100.0), "down to budgets worth the name"
)
PENALTIES = Setting("penalties of (c)", (0.3, 1.0, 3.0, 10.0), "both sides of the tuned one")
TUNED = Setting(
    "tuning of (a), (b)",
    "least final error",
    "each method at each budget chooses step, penalty and zeta for its own least mean error after "
    "200 iterations on the tuning seeds: the strongest comparator that we can build",
)

CONSTANT, ROOT, VANISHING = (f"zCDP-grad-NFL, {step} step" for step in ("constant", "1/√n", "1/n"))
SHORT = {f"zCDP-grad-NFL, {step} step": f"gradient, {step}" for step in ("constant", "1/√n", "1/n")}
#: The chapter's looks; the intermediate step has one that no other method of the picture uses.
LOOKS = ch3.LOOKS | {
    SHORT[CONSTANT]: ch3.LOOKS[ch3.GRADIENT],
    SHORT[ROOT]: ch3.LOOKS[ch3.DYNAMIC],
    SHORT[VANISHING]: ch3.LOOKS[ch3.VANISHING],
}
POWERS = {CONSTANT: 0.0, ROOT: 0.5, VANISHING: 1.0}
DECAYS = (0.96, 0.98, 0.99, 0.998)
# In a wider grid no smaller step and no larger penalty was ever the best; a step of 10 was.
OUR_PENALTIES = (1.0, 3.0, 10.0, 30.0)
OUR_STEPS = (0.3, 1.0, 3.0, 10.0, 30.0)
STEPS = {
    CONSTANT: (0.003, 0.01, 0.02, 0.05, 0.1),
    ROOT: (0.02, 0.05, 0.1, 0.25, 0.6),
    VANISHING: (0.1, 0.3, 0.7, 1.5, 3.0),
}
CONTESTS = {
    "elastic": ("elastic net", ch3.CLIP_SQUARED.value),
    "lad": ("least absolute deviation", ch3.CLIP_ABSOLUTE.value),
}


@module
class Case:
    """One method at one budget: tuned methods differ from budget to budget."""

    method: ch3.Method
    budget: Float[Array, ""] | float


@functools.cache
def paired(objective: str, clip: float) -> Callable[..., fl.Simulation]:
    """The common scenario with method and budget in one axis."""
    inner = ch3.scenario(objective, clip)

    def build(key: Array, case: Case) -> fl.Simulation:
        return inner(key, case.budget, case.method)

    build.__qualname__ = f"paired({objective!r}, clip={clip})"
    return build


@functools.cache
def penalized(objective: str) -> Callable[..., fl.Simulation]:
    """The common scenario with the penalty as an axis."""
    inner = ch3.scenario(objective)

    def build(key: Array, penalty: Array, budget: Array, algorithm: ch3.Method) -> fl.Simulation:
        changed = dataclasses.replace(algorithm.algorithm, penalty=penalty)
        return inner(key, budget, dataclasses.replace(algorithm, algorithm=changed))

    build.__qualname__ = f"penalized({objective!r})"
    return build


# --------------------------------------------------------------------------- the study


def candidates(effort: Effort) -> list[tuple[str, dict[str, float], ch3.Method]]:
    """``(method, parameters, contestant)`` of everything that is tried."""
    decays = effort.thin(DECAYS, 2)
    result: list[tuple[str, dict[str, float], ch3.Method]] = []
    for penalty, step, decay in itertools.product(
        effort.thin(OUR_PENALTIES, 2), effort.thin(OUR_STEPS, 2), decays
    ):
        parameters = {"penalty": penalty, "step": step, "power": 0.5, "decay": decay}
        result.append((ch3.OURS, parameters, ch3.Method(ch3.proposed(penalty, step), decay)))
    for name, power in POWERS.items():
        for step, decay in itertools.product(effort.thin(STEPS[name], 2), decays):
            parameters = {"penalty": np.nan, "step": step, "power": power, "decay": decay}
            result.append((name, parameters, ch3.Method(ch3.subgradient(step, power), decay)))
    return result


def tune(objective: str, clip: float, budgets: list[float], effort: Effort) -> xr.Dataset:
    """Final mean error of every candidate at every budget, on the tuning seeds."""
    tried = candidates(effort)
    count = ch3.tuning_seeds(effort)
    results = effort.sweep(
        f"{objective}-tuning",
        ch3.scenario(objective, clip),
        rounds=ch3.ROUNDS.value,
        record_every=ch3.ROUNDS.value,
        seeds=seeds(count),
        grid={"budget": budgets, "algorithm": {str(i): m for i, (_, _, m) in enumerate(tried)}},
    ).isel(round=-1, drop=True)
    final = means(results, ch3.METRIC)
    parameters = {
        name: ("candidate", np.asarray([p[name] for _, p, _ in tried]))
        for name in ("penalty", "step", "power", "decay")
    }
    return xr.Dataset(
        {"final": (("budget", "candidate"), final.transpose("budget", "algorithm").values)},
        coords={"budget": budgets, "tuned": ("candidate", [n for n, _, _ in tried]), **parameters},
        attrs=results.attrs | {"tuning_seeds": count},
    )


def chosen(tuning: xr.Dataset, method: str, budget: float) -> int:
    """Position of the candidate with the least error."""
    final = tuning["final"].sel(budget=budget).values
    return int(np.where(tuning["tuned"].values == method, final, np.inf).argmin())


def contest(name: str, effort: Effort) -> dict[str, xr.Dataset]:
    objective, clip = CONTESTS[name]
    budgets = effort.thin(BUDGETS.value)
    tuning = tune(objective, clip, budgets, effort)
    tried = candidates(effort)
    methods = (ch3.OURS, *POWERS)
    cases = {
        f"{method} {budget:g}": Case(tried[chosen(tuning, method, budget)][2], budget)
        for method in methods
        for budget in budgets
    }
    flat = effort.sweep(
        objective,
        paired(objective, clip),
        rounds=ch3.ROUNDS.value,
        record_every=ch3.ROUNDS.value,
        seeds=effort.seeds,
        grid={"case": cases},
    )
    rows = [
        xr.concat([flat.sel(case=f"{m} {b:g}", drop=True) for m in methods], "algorithm")
        for b in budgets
    ]
    grid = xr.concat(rows, "budget").assign_coords(budget=budgets, algorithm=list(methods))
    return {name: ch3.describe(grid), f"{name}-tuning": tuning}


def study(effort: Effort) -> Studies:
    penalties = effort.sweep(
        "penalty",
        penalized("ridge"),
        rounds=ch3.ROUNDS.value,
        record_every=ch3.ROUNDS.value,
        seeds=effort.seeds,
        grid={
            "penalty": effort.thin(PENALTIES.value),
            "budget": [ch3.CURVE_BUDGET.value],
            "algorithm": {
                ch3.OURS: ch3.Method(ch3.proposed()),
                ch3.PADMM: ch3.Method(fl.algorithms.PADMM(1.0)),
            },
        },
    )
    penalties["penalty"].attrs["long_name"] = "penalty rho"
    return {**contest("elastic", effort), **contest("lad", effort), "penalty": penalties}


def tuning_table(studies: Studies) -> list[dict[str, Any]]:
    """What each method chose at each budget."""
    rows = []
    for name, (objective, _) in CONTESTS.items():
        tuning = studies[f"{name}-tuning"]
        methods = dict.fromkeys(tuning["tuned"].values.tolist())
        for method, budget in itertools.product(methods, tuning["budget"].values):
            at = chosen(tuning, method, budget)
            row = {"objective": objective, "method": method, "budget": float(budget)}
            row |= {
                p: float(tuning[p].values[at])
                for p in ("penalty", "step", "decay")
                if np.isfinite(tuning[p].values[at])
            }
            row["final_error"] = float(tuning["final"].sel(budget=budget).values[at])
            rows.append(row | {"chosen": True})
    return rows


def plot(studies: Studies) -> Picture:
    titles = [f"{objective}, c₁ = {clip:g}" for objective, clip in CONTESTS.values()]
    titles.append(f"ridge, c₁ = {ch3.BOUND.value:g} nominal, ε = {ch3.CURVE_BUDGET.value:g}")
    drawing, axes = picture.panels(titles, height=2.4)
    for ax, name in zip(axes, CONTESTS, strict=False):
        plotting.trade_off(studies[name], ax=ax, labels=SHORT)
        picture.recolor(ax, LOOKS)
        picture.medians(ax, studies[name], ch3.METRIC)
    plotting.trade_off(studies["penalty"], x="penalty", ax=axes[2])
    picture.recolor(axes[2], LOOKS)
    picture.medians(axes[2], studies["penalty"], ch3.METRIC)
    ch3.seeds_alone(axes)
    return picture.finish(
        drawing,
        f"Error after {ch3.ROUNDS.value} iterations, thin: medians; in (a), (b) the bound is "
        "enforced and every method is tuned at every ε",
    )


# --------------------------------------------------------------------------- the claims


def bound_holds(studies: Studies) -> dict[str, Estimate]:
    """The largest gradient norm of all runs as a share of the bound."""
    result = {}
    for name, (objective, _) in CONTESTS.items():
        share = float((studies[name]["gradient_norm"] / studies[name]["gradient_bound"]).max())
        result[objective] = Estimate.exact(share, "of the bound")
    return result


def padmm_over_ours(studies: Studies) -> dict[str, Estimate]:
    data = studies["penalty"]
    return {
        f"rho = {rho:g}": ch3.ratio(
            data, {"algorithm": ch3.PADMM, "penalty": rho}, {"algorithm": ch3.OURS, "penalty": rho}
        )
        for rho in data["penalty"].values
    }


def padmm_over_ours_at_best(studies: Studies) -> dict[str, Estimate]:
    """Each with the penalty of its own least mean error."""
    data = studies["penalty"]
    mean = statistics.summary(data, ch3.METRIC)["mean"].squeeze(drop=True)
    best = {
        name: float(data["penalty"].values[mean.sel(algorithm=name).values.argmin()])
        for name in (ch3.PADMM, ch3.OURS)
    }
    label = f"P-ADMM at rho = {best[ch3.PADMM]:g}, zCDP-NFL at {best[ch3.OURS]:g}"
    over, under = ({"algorithm": name, "penalty": rho} for name, rho in best.items())
    return {label: ch3.ratio(data, over, under)}


def against(name: str, comparator: str) -> Claim:
    step = comparator.split(", ")[1]
    objective, clip = CONTESTS[name]
    return Claim(
        f"{name}-beats-{step.replace(' ', '-').replace('√', 'sqrt-').replace('/', '-over-')}",
        f"{objective}: zCDP-NFL is more accurate than zCDP-grad-NFL with a {step}",
        "sections 3.1 and 3.5",
        ch3.beats(name, comparator),
        (0, INFINITE),
        "the gradient bound enforced, every method tuned at every budget",
        ours=True,
        note=f"With a real bound the noise is {clip:g} times that of c1 = 1. Our reading: the dual "
        "variables of zCDP-NFL add up the noise of all messages, and a penalty or step that keeps "
        "it small is slow; a subgradient step scales its own noise down with it.",
    )


FIGURE = Figure(
    name="gauthier-3.stress",
    title="Where the ranking changes: enforced bounds, small budgets, other steps and penalties",
    source="ours, on the claims of Gauthier 2024, chapter 3",
    caption="The published comparison rests on a gradient bound that its own data break, on a "
    "subgradient step that matches an early learning curve, and on a penalty. Here the bound is "
    "enforced by per-sample clipping, all methods are tuned for the final error, and the penalty "
    "is varied. Two leaks stay outside the account, for all methods alike: lambda1 of the elastic "
    "net is computed from the data and taken as public, as in the source, and tuning on other "
    "data sets of the same kind is free. No level of the error "
    "is predicted, only of the ergodic gap (gauthier-3.theory).",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "bound-holds",
            "the gradient bound of Assumption 1 holds in every run",
            "Assumption 1",
            bound_holds,
            (0, 1 + 1e-5),
            construction="every per-sample gradient is clipped to it: this checks the code",
            changed="Counted as true by construction, which it is.",
        ),
        *(against(name, comparator) for name in CONTESTS for comparator in POWERS),
        Claim(
            "beats-padmm-at-every-penalty",
            "ridge: zCDP-NFL is more accurate than P-ADMM",
            "section 3.4.3",
            padmm_over_ours,
            (0, INFINITE),
            "the same penalty for both, at four penalties; the source shows one",
            ours=True,
            note="With a large penalty the vanishing step slows zCDP-NFL down before it arrives; "
            "P-ADMM's exact step does not suffer from it.",
        ),
        Claim(
            "beats-padmm-at-best-penalty",
            "ridge: zCDP-NFL is more accurate than P-ADMM when each has its best penalty",
            "section 3.4.3",
            padmm_over_ours_at_best,
            (0, INFINITE),
            "penalties chosen for the final error among four, not for a similar start",
            ours=True,
            note="A large penalty starts slowly and ends well with P-ADMM: the published order "
            "depends on the protocol that matches the early learning curves.",
        ),
    ],
    settings=(
        *(s for s in ch3.COMMON if s not in (ch3.EARLY, ch3.PENALTY)),
        *(BUDGETS, ch3.CLIP_SQUARED, ch3.CLIP_ABSOLUTE, TUNED, PENALTIES, ch3.STEP),
    ),
    tuning=tuning_table,
)
