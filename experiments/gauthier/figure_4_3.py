"""Gauthier 2024, figure 4.3: PAO-Fed against existing methods (section 4.4.3)."""

import itertools
from collections.abc import Callable

import xarray as xr
from matplotlib.figure import Figure as Picture

from experiments import picture
from experiments.conventions import LITTLE, SAME, SLIGHTLY
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
from experiments.gauthier import chapter4 as ch4
from experiments.measures import joined
from fljax import plotting, statistics

SHARED = Setting(
    "loads: shared parameters of D = 200",
    (1, 4, 16, 64, 200),
    "32 to 6400 bits a message; Online-Fed has the fraction of clients that gives the same load",
)
PSO = Setting(
    "PSO-Fed: fraction of clients, m",
    (0.5, 8),
    "2 % of the load of Online-FedSGD, as the others in (a); the pair is not given",
)
SWEPT = Setting(
    "(e) step sizes of Online-FedSGD",
    (0.05, 0.1, 0.2, 0.4, 0.8),
    "from what the early match leaves it to twice the step of PAO-Fed",
)
PSO_FED = ch4.PSO_FED
ONLINE_FED = ch4.ONLINE_FED
#: With the step of PAO-Fed.
EQUAL, COMMON_STEP = (f"{name}, step {ch4.STEP.value:g}" for name in (ch4.FEDSGD, ONLINE_FED))
U1 = ch4.U1
U2 = "PAO-Fed-U2"
C1 = "PAO-Fed-C1"
C2 = ch4.C2
ROWS = (U1, C2, ONLINE_FED, COMMON_STEP)
#: Without and with potential stragglers.
IDEAL = "0 %"
REAL = "100 %"
#: The methods' colors; dashed with stragglers.
ENVIRONMENTS = {
    f"{name}, {stragglers}": {"color": look["color"], "marker": look["marker"], "linestyle": line}
    for name, look in ch4.LOOKS.items()
    for stragglers, line in ((IDEAL, "-"), (REAL, "--"))
}


def fraction_of(size: int) -> float:
    return size / ch4.DIM.value


def study(effort: Effort) -> Studies:
    loads = effort.thin(SHARED.value, 3) if effort.quick else SHARED.value
    loads = sorted({ch4.PORTION.value, ch4.DIM.value, *loads})
    least = ch4.PORTION.value
    full_model = ch4.DIM.value
    feds = {m: f"{ONLINE_FED} {m}" for m in loads}
    tunings = [ch4.stepped(name, ch4.online_fed(fraction_of(m))) for m, name in feds.items()]
    tunings.append(ch4.stepped(PSO_FED, ch4.pso(*PSO.value)))
    tuning = ch4.tune("tuning", ch4.DEFAULT, tunings, effort)
    fedsgd = ch4.stepped(ch4.FEDSGD, ch4.online_fed(1.0))
    ideal_tuning = ch4.tune("tuning-ideal", ch4.IDEAL, [fedsgd], effort)

    steps = {f"{ch4.FEDSGD} {step:g}": fedsgd.build(step) for step in SWEPT.value}
    methods = {
        U2: ch4.pao("U2"),
        C1: ch4.pao("C1"),
        PSO_FED: ch4.pso(*PSO.value)(ch4.chosen(tuning, PSO_FED)),
    }
    for m in loads:
        methods |= {f"{name} {m}": ch4.pao(name[-2:], m) for name in (U1, C2)}
        fed = ch4.online_fed(fraction_of(m))
        methods[feds[m]] = fed(ch4.chosen(tuning, feds[m]))
        methods[f"{COMMON_STEP} {m}"] = fed(ch4.STEP.value)
    results = ch4.study("real", ch4.DEFAULT, methods | steps, effort)
    ideal = {ch4.FEDSGD: fedsgd.build(ch4.chosen(ideal_tuning, ch4.FEDSGD))}
    ideal |= {"PAO-Fed-C": ch4.pao("C1"), "PAO-Fed-U": ch4.pao("U1")}
    perfect = ch4.study("ideal", ch4.IDEAL, ideal | steps, effort)

    # The source draws these curves twice; here they are one run.
    drawn = {U1: f"{U1} {least}", U2: U2, PSO_FED: PSO_FED, ONLINE_FED: feds[least]}
    drawn |= {ch4.FEDSGD: feds[full_model], EQUAL: f"{COMMON_STEP} {full_model}"}
    late = {C1: C1, C2: f"{C2} {least}", U1: drawn[U1], U2: U2, ch4.FEDSGD: feds[full_model]}
    return {
        "a": renamed(results, drawn),
        "b": by_load(results, loads),
        "c": joined(
            renamed(perfect, {f"{name}, {IDEAL}": name for name in ideal}),
            renamed(results, {f"{name}, {REAL}": stored for name, stored in late.items()}),
        ),
        "d": joined(
            by_step(perfect).expand_dims(stragglers=[IDEAL]),
            by_step(results).expand_dims(stragglers=[REAL]),
            axis="stragglers",
        ),
        "floor": ch4.floor(),
        "tuning": tuning,
        "tuning-ideal": ideal_tuning,
    }


def renamed(data: xr.Dataset, names: dict[str, str]) -> xr.Dataset:
    """Some methods under other names, new to old."""
    return data.sel(algorithm=[*names.values()]).assign_coords(algorithm=[*names])


def by_load(data: xr.Dataset, loads: list[int]) -> xr.Dataset:
    """The steady state over algorithm and load."""
    tail = ch4.late(data)
    rows = [
        tail.sel(algorithm=[f"{name} {m}" for m in loads])
        .assign_coords(algorithm=[ch4.WORD * m for m in loads])
        .rename(algorithm="load")
        for name in ROWS
    ]
    result = joined(*rows).assign_coords(algorithm=[*ROWS])
    result["load"].attrs["long_name"] = "load of a client a round (bit)"
    return result


def by_step(data: xr.Dataset) -> xr.Dataset:
    """The steady state of Online-FedSGD over its step size."""
    names = {f"{ch4.FEDSGD} {step:g}": step for step in SWEPT.value}
    tail = ch4.late(data).sel(algorithm=[*names])
    result = tail.assign_coords(algorithm=[*names.values()]).rename(algorithm="step")
    result["step"].attrs["long_name"] = "step size of Online-FedSGD"
    return result


def plot(studies: Studies) -> Picture:
    titles = (
        "learning curves",
        "steady state and load",
        "0 and 100 % stragglers",
        "distances in (a)",
        "steady state and step",
        "distances in (c)",
    )
    drawing, (a, b, c, d, e, f) = picture.panels(titles)
    floor = studies["floor"]
    ch4.show_curves(studies["a"], a, floor)
    ch4.show_distances(studies["a"], U1, d)
    plotting.trade_off(studies["b"], "load", ch4.METRIC, ax=b)
    picture.recolor(b, ch4.LOOKS)
    ch4.show_floor(floor, b)
    reference = f"{ch4.FEDSGD}, {IDEAL}"
    names = (reference, f"PAO-Fed-C, {IDEAL}", f"PAO-Fed-U, {IDEAL}", f"{C2}, {REAL}")
    compared = studies["c"].sel(algorithm=[*names, f"{ch4.FEDSGD}, {REAL}"])
    ch4.show_curves(compared, c)
    ch4.show_distances(compared, reference, f)
    for ax in (c, f):
        picture.recolor(ax, ENVIRONMENTS)
    ch4.show_floor(floor, c)
    f.set_ylabel(f"above {ch4.FEDSGD} [dB]")
    for ax in (d, f):
        ax.set_ylim(-3, 4)
    labels = {s: f"Online-FedSGD, {s} stragglers" for s in (IDEAL, REAL)}
    plotting.trade_off(studies["d"], "step", ch4.METRIC, ax=e, labels=labels)
    picture.recolor(e, {labels[s]: ENVIRONMENTS[f"{ch4.FEDSGD}, {s}"] for s in labels})
    for name in (f"PAO-Fed-C, {IDEAL}", f"{U1}, {REAL}"):
        level = float(ch4.late(studies["c"])[ch4.METRIC].sel(algorithm=name).mean())
        look = ENVIRONMENTS[name] | {"marker": "", "linewidth": 0.8}
        e.axhline(statistics.decibels(level), label=name, **look)
    ch4.show_floor(floor, e)
    return picture.finish(
        drawing, "Step sizes of the comparators from PAO-Fed-U1's early learning curve"
    )


def improves_with_load(which: str) -> Measure:
    """The gain from each load to the next."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["b"]
        return {
            f"{less} → {more} bit": ch4.direct_gap(
                data, {"algorithm": which, "load": less}, {"algorithm": which, "load": more}
            )
            for less, more in itertools.pairwise(data["load"].values)
        }

    return measure


def span(studies: Studies, names: tuple[str, ...] = (U1, C2)) -> dict[str, Estimate]:
    """The gap from the best to the worst load."""
    data = studies["b"]
    result: dict[str, Estimate] = {}
    for name in names:
        mean = data[ch4.METRIC].sel(algorithm=name).mean("seed")
        best, worst = data["load"].values[[mean.values.argmin(), mean.values.argmax()]]
        result[f"{name}, {worst} above {best} bit"] = ch4.direct_gap(
            data, {"algorithm": name, "load": worst}, {"algorithm": name, "load": best}
        )
    return result


def gap_at_load(studies: Studies) -> dict[str, Estimate]:
    """How far panel (b) is above panel (a) at the loads of its methods."""
    late = ch4.late(studies["a"])
    least, full = (ch4.WORD * m for m in (ch4.PORTION.value, ch4.DIM.value))
    result = {}
    for name, row, load in (
        (U1, U1, least),
        (ONLINE_FED, ONLINE_FED, least),
        (ch4.FEDSGD, ONLINE_FED, full),
    ):
        pairs = joined(
            renamed(studies["b"].sel(load=load, drop=True), {"here": row}),
            renamed(late, {"there": name}),
        )
        result[f"{name}, {load} bit"] = ch4.direct_gap(pairs, "here", "there")
    return result


def over_steps(stragglers: str, ours: str) -> Measure:
    """How far one of ours is above Online-FedSGD at each of its steps."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        mixed = renamed(ch4.late(studies["c"]), {ours: f"{ours}, {stragglers}"})
        steps = studies["d"].sel(stragglers=stragglers, drop=True)
        result = {}
        for step in steps["step"].values:
            other = steps.sel(step=step, drop=True).expand_dims(algorithm=[ch4.FEDSGD])
            result[f"{ours} above step {step:g}"] = ch4.direct_gap(
                joined(mixed, other), ours, ch4.FEDSGD
            )
        return result

    return measure


def where_it_holds(measure: Measure, accept: tuple[float, float]) -> Callable[[Studies], str]:
    def note(studies: Studies) -> str:
        low, high = accept
        cases = measure(studies)
        steps = [name for name, e in cases.items() if low <= e.low and e.high <= high]
        steps = [name.rpartition(" ")[2] for name in steps]
        matched = {
            s: ch4.chosen(studies[name], method)
            for s, name, method in (
                (REAL, "tuning", f"{ONLINE_FED} {ch4.DIM.value}"),
                (IDEAL, "tuning-ideal", ch4.FEDSGD),
            )
        }
        text = f"It holds at the steps {', '.join(steps)}" if steps else "It holds at none"
        return (
            f"{text}. The early match leaves Online-FedSGD a step of {matched[REAL]:g} "
            f"({matched[IDEAL]:g} without stragglers), PAO-Fed has {ch4.STEP.value:g}."
        )

    return note


def steps_fall(studies: Studies) -> str:
    """A note: the step of each load."""
    tuning = studies["tuning"]
    loads = studies["b"]["load"].values // ch4.WORD
    steps = [ch4.chosen(tuning, f"{ONLINE_FED} {m}") for m in loads]
    text = ", ".join(
        f"{step:g} at {ch4.WORD * m} bit" for step, m in zip(steps, loads, strict=True)
    )
    return (
        f"Each load has the step that matches the early curve ({text}), and where that step falls "
        "it can cost more than the load gains."
    )


def other_span(studies: Studies) -> str:
    (other,) = span(studies, (ONLINE_FED,)).values()
    return (
        "More than “very little” over a factor of 200 in the load, but less than Online-Fed's "
        f"{other}."
    )


COMPARABLE = LITTLE.db.when("“comparable or better”")
REAL_STEPS = over_steps(REAL, U1)
IDEAL_STEPS = over_steps(IDEAL, "PAO-Fed-C")


FIGURE = Figure(
    name="gauthier-4.3",
    title="PAO-Fed against existing methods",
    source="Gauthier 2024, figure 4.3; Gauthier et al. 2023 (PAO-Fed), figure 3",
    caption="The protocol of section 4.4.1 sets the comparators' step sizes so that all start "
    "alike; Online-FedSGD with PAO-Fed's own step is shown beside it, because the order depends "
    "on it: (e) has its steady state at other steps. (d) and (f) are the curves above as "
    "distances. Dotted: the error of least squares on the features, which nothing linear in them "
    "can be below.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "subsampling-is-poor",
            "Online-Fed and PSO-Fed, which sub-sample the reduced pool, perform poorly",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("a", (ONLINE_FED, ch4.FEDSGD), (PSO_FED, ch4.FEDSGD)),
            (0, INFINITE),
            "worse than Online-FedSGD, which takes all that are available",
            note="PSO-Fed's clients learn on their own between their turns, as PAO-Fed's do, and "
            "that more than makes up for the sub-sampling.",
        ),
        Claim(
            "beats-fedsgd",
            "U1 and U2 outperform Online-FedSGD",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("a", (ch4.FEDSGD, U1), (ch4.FEDSGD, U2)),
            (0, INFINITE),
            "at the step sizes of the early match",
        ),
        Claim(
            "beats-fedsgd-at-equal-step",
            "U1 and U2 outperform Online-FedSGD",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("a", (EQUAL, U1), (EQUAL, U2)),
            (0, INFINITE),
            condition="Online-FedSGD with the same step size",
            note="With the same step Online-FedSGD converges much faster and ends lower: the "
            "claim rests on the protocol that slows it down to PAO-Fed's start.",
        ),
        Claim(
            "comparable-to-fedsgd-over-steps",
            "the performance of U1 is comparable to or better than that of Online-FedSGD",
            "section 4.4.3 on figure 4.3",
            REAL_STEPS,
            *COMPARABLE,
            condition="Online-FedSGD with any of several step sizes",
            note=where_it_holds(REAL_STEPS, COMPARABLE.accept),
            changed="New: at which steps of Online-FedSGD it is so.",
        ),
        Claim(
            "discount-helps",
            "U2 is better than U1",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("a", (U1, U2)),
            (0, INFINITE),
        ),
        Claim(
            "communication-saved",
            "PAO-Fed needs 98 % less communication than Online-FedSGD (also in the abstract)",
            "section 4.4.2",
            ch4.saving("a", U1, ch4.FEDSGD, ch4.EACH_WAY),
            (97.9, 98.1),
            construction="4 of 200 parameters go each way, whatever is learnt",
        ),
        Claim(
            "online-fed-improves-with-load",
            "Online-Fed improves monotonically with the load",
            "section 4.4.3 on figure 4.3",
            improves_with_load(ONLINE_FED),
            (0, INFINITE),
            note=steps_fall,
        ),
        Claim(
            "online-fed-improves-with-load-at-common-step",
            "Online-Fed improves monotonically with the load",
            "section 4.4.3 on figure 4.3",
            improves_with_load(COMMON_STEP),
            (0, INFINITE),
            condition="all loads with the step size of PAO-Fed",
            changed="New: without steps of its own for each load, whose candidates decide between "
            "neighboring loads.",
        ),
        Claim(
            "loads-meet-learning-curves",
            "at 128 and 6400 bit the errors are those of the learning curves",
            "section 4.4.3 on figure 4.3",
            gap_at_load,
            (-0.01, 0.01),
            construction="the same runs are shown in both",
            changed="New: the sentence was left out.",
        ),
        Claim(
            "pao-fed-hardly-varies",
            "PAO-Fed varies very little with the load",
            "section 4.4.3 on figure 4.3",
            span,
            *LITTLE.db.when("from the best to the worst load"),
            note=other_span,
        ),
        Claim(
            "coordinated-ideal",
            "without stragglers coordinated partial sharing is as good as no reduction",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("c", ("PAO-Fed-C, 0 %", f"{ch4.FEDSGD}, 0 %")),
            *SAME.db,
            note="It is better: the early match slows Online-FedSGD down, and its clients do not "
            "learn on their own.",
        ),
        Claim(
            "coordinated-ideal-over-steps",
            "without stragglers coordinated partial sharing is as good as no reduction",
            "section 4.4.3 on figure 4.3",
            IDEAL_STEPS,
            *SAME.db,
            condition="Online-FedSGD with any of several step sizes",
            note=where_it_holds(IDEAL_STEPS, SAME.db.accept),
            changed="New: at which steps of Online-FedSGD it is so.",
        ),
        Claim(
            "uncoordinated-ideal",
            "without stragglers uncoordinated partial sharing is slightly worse",
            "section 4.4.3 on figure 4.3",
            ch4.gaps("c", ("PAO-Fed-U, 0 %", "PAO-Fed-C, 0 %")),
            *SLIGHTLY.db,
        ),
        Claim(
            "c2-as-in-perfect-setting",
            "C2 with stragglers is almost similar to the algorithms in a perfect setting",
            "section 4.4.3 on figure 4.3",
            ch4.gaps(
                "c",
                (f"{C2}, 100 %", f"{ch4.FEDSGD}, 0 %"),
                (f"{C2}, 100 %", "PAO-Fed-C, 0 %"),
            ),
            *LITTLE.db.when("“almost similar”, and better than that is no worse"),
        ),
    ],
    settings=(*ch4.COMMON, *ch4.LEAST_SQUARES, SHARED, PSO, SWEPT),
    tuning=ch4.tuning_table,
    keep=(*ch4.EACH_WAY,),
)
