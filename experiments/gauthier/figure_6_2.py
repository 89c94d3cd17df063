"""Gauthier 2024, figure 6.2: learned parameters (lines 1744-1756; P7 figure 2)."""

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments.figure import INFINITE, Claim, Effort, Estimate, Figure, Measure, Setting, Studies
from experiments.gauthier import chapter6 as ch6
from experiments.measures import gap, joined, last, last_part, samples
from fljax import plotting, statistics
from fljax.algorithms import NPFLRL, DeterministicPolicyGradient

RATES = Setting(
    "other delta_DPG",
    (1e-5, 1e-4, 1e-3, 1e-2),
    "two decades around the source's, which is the same as other scales of the data",
)
CAPS = Setting(
    "cap of DPG's step",
    (ch6.longest_probe(), ch6.longest_probe(ch6.EPOCHS.value)),
    "not in the source: the longest step that SAC can make in an epoch, delta_SAC nu_SAC / 2",
)

(FIXED, _), LEARNED = ch6.fixed(ch6.START.value), list(ch6.learned())
FREE = [f"{name}, unclipped" for name in LEARNED]
CAPPED = [f"{name}, capped" for name in (ch6.DPG, ch6.BATCH_DPG)]


def study(effort: Effort) -> Studies:
    methods = dict([ch6.fixed(ch6.START.value)]) | ch6.learned()
    methods |= dict(zip(FREE, ch6.learned(clip=False).values(), strict=True))
    one, batch = CAPS.value
    capped = ch6.gradient(cap=one), ch6.gradient(ch6.EPOCHS.value, batch)
    methods |= dict(zip(CAPPED, capped, strict=True))
    found = ch6.study("study", methods, effort)
    return {
        "a": found.sel(algorithm=[FIXED, *LEARNED]),
        "b": found.sel(algorithm=FREE),
        "c": found.sel(algorithm=CAPPED),
        "d": rates(effort),
    }


def by_rate(key: Array, rate: Array, cap: Array) -> fl.Simulation:
    policy = DeterministicPolicyGradient(rate, cap)
    algorithm = NPFLRL(ch6.PENALTY.value, policy, ch6.START.value)
    return ch6.scenario((ch6.NMSD,))(key, algorithm)


def rates(effort: Effort) -> xr.Dataset:
    """NPFL-RL (DPG) at other rates, with and without a cap, at the last iteration."""
    found = effort.sweep(
        "rates",
        by_rate,
        rounds=ch6.ROUNDS.value,
        seeds=effort.seeds,
        grid={"rate": effort.thin(RATES.value), "cap": [INFINITE, CAPS.value[0]]},
        record_every=ch6.ROUNDS.value,
    )
    found["rate"].attrs["long_name"] = "rate δ of NPFL-RL (DPG)"
    return found.isel(round=-1)


def plot(studies: Studies) -> Picture:
    source, free, capped = studies["a"], studies["b"], studies["c"]
    picture, panels = plt.subplots(2, 2, figsize=(11, 8))
    (a, b), (c, d) = panels
    plotting.learning_curves(source, ch6.NMSD, ax=a)
    a.set_title("(a) as in the source, τ clipped to [0, 1]")
    plotting.learning_curves(joined(source.sel(algorithm=[FIXED]), free), ch6.NMSD, ax=b)
    b.set_title("(b) nothing keeps τ in [0, 1]")
    same = source.sel(algorithm=[FIXED, ch6.SAC, ch6.BATCH_SAC])
    plotting.learning_curves(joined(same, capped), ch6.NMSD, ax=c)
    c.set_title("(c) steps of DPG no longer than SAC's")
    labels = {INFINITE: "any step", CAPS.value[0]: f"steps ≤ {CAPS.value[0]:g}"}
    plotting.trade_off(studies["d"], "rate", ch6.NMSD, ax=d, labels=labels, legend=False)
    for name, look in ((FIXED, ":"), (ch6.SAC, "-.")):
        level = samples(last(source), name, ch6.NMSD).mean()
        d.axhline(statistics.decibels(level), color="#555555", linestyle=look, label=name)
    d.legend(loc="best")
    d.set_title(f"(d) after {ch6.ROUNDS.value} iterations")
    return picture


# --------------------------------------------------------------------------- claims


def same_start(studies: Studies) -> dict[str, Estimate]:
    """Mean distance of each early learning curve from that of the fixed parameter, dB."""
    return {name: ch6.early_distance(studies["a"], name, FIXED) for name in LEARNED}


def randomness(*pairs: tuple[str, str]) -> Measure:
    """How much rougher the learning curves (in dB) of the first of each pair are, seed by seed."""

    def curve(studies: Studies, name: str) -> np.ndarray:
        return statistics.decibels(samples(last_part(2)(studies["a"]), name, ch6.NMSD))

    return lambda studies: {
        f"{one} over {other}": ch6.rougher(curve(studies, one), curve(studies, other))
        for one, other in pairs
    }


def clipping(studies: Studies) -> dict[str, Estimate]:
    """How far each unclipped variant is above the clipped one."""
    together = joined(studies["a"], studies["b"])
    return {name: ch6.gap(together, free, name) for name, free in zip(LEARNED, FREE, strict=True)}


def capping(over: str) -> Measure:
    """How far ``over`` is above DPG with capped steps."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        together = joined(studies["a"], studies["c"])
        return {f"{over} above {name}": ch6.gap(together, over, name) for name in CAPPED}

    return measure


def uncapped(studies: Studies) -> dict[str, Estimate]:
    """How far DPG is above SAC at the last iteration, at every rate."""
    data = studies["d"].sel(cap=INFINITE)
    under = samples(last(studies["a"]), ch6.SAC, ch6.NMSD)
    return {
        f"δ = {rate:g}": gap(samples(data, {"rate": rate}, ch6.NMSD), under)
        for rate in data["rate"].values
    }


FIGURE = Figure(
    name="gauthier-6.2",
    title="Networked personalised learning with learned inter-cluster parameters",
    source="Gauthier 2024, figure 6.2 (P7, figure 2)",
    caption="All rates and widths are the source's. SAC moves by the sign of a difference, so its "
    "steps do not depend on the data's scale; DPG moves by a derivative that grows with its "
    "square, which the source does not give: (d) shows other rates. Each epoch of the batch "
    "variants costs as much as the single one of the others.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "starts-faster",
            "every NPFL-RL learns faster at first than NPFL with τ = 0.05",
            "line 1756",
            ch6.gaps("a", *((FIXED, name) for name in LEARNED), measure=ch6.early_gap),
            (0, INFINITE),
            f"mean distance in dB over the first {ch6.EARLY.value} iterations",
        ),
        Claim(
            "ends-better",
            "every NPFL-RL ends more accurate than NPFL with τ = 0.05",
            "line 1756",
            ch6.gaps("a", *((FIXED, name) for name in LEARNED)),
            (0, INFINITE),
            note="SAC does, DPG does not. The 12 % of clients without a neighbour of their cluster "
            "need a τ close to 0, where the derivative is steepest: an uncapped step jumps across, "
            "and where τ is large the derivative is too flat to return. On 40 other seeds they "
            "end at a median of 0.28 under DPG, 0.02 under SAC and 0.015 under capped DPG, with "
            "an NMSD of 0.102, 0.063 and 0.061 (0.091 at τ = 0.05); of the other clients DPG "
            "lowers it by half a dB.",
        ),
        Claim(
            "same-start",
            "the algorithms are tuned to have the same initial convergence rate",
            "line 1730",
            same_start,
            (-INFINITE, 1),
            f"“same”: within 1 dB of NPFL on average over the first {ch6.EARLY.value} iterations",
            note="NPFL-BRL (DPG) is faster by 0.9 dB. All methods share the penalty and the rates "
            "are the source's: nothing is left to tune.",
        ),
        Claim(
            "probe-beats-gradient",
            "NPFL-RL (SAC) is more accurate than NPFL-RL (DPG)",
            "line 1756",
            ch6.gaps("a", (ch6.DPG, ch6.SAC)),
            (0, INFINITE),
        ),
        Claim(
            "probe-is-random",
            "the convergence of NPFL-RL (SAC) is more random than that of the others",
            "line 1756",
            randomness((ch6.SAC, ch6.DPG), (ch6.SAC, FIXED)),
            (0, INFINITE),
            "mean square of the second differences of a seed's curve in dB, second half of the run",
        ),
        Claim(
            "batch-calms-probe",
            "batch learning attenuates the randomness of SAC",
            "line 1756",
            randomness((ch6.SAC, ch6.BATCH_SAC)),
            (0, INFINITE),
            "as above",
        ),
        Claim(
            "batch-helps-gradient",
            "batch learning makes DPG more accurate",
            "line 1756",
            ch6.gaps("a", (ch6.DPG, ch6.BATCH_DPG)),
            (0, INFINITE),
            note="By little: both stop far from their best for the same clients, see above; with "
            "capped steps the batch variant is ahead by 1.2 dB.",
        ),
        Claim(
            "clipping-is-needed",
            "parameters that may leave [0, 1] end less accurate than clipped ones",
            "lines 1701-1708",
            clipping,
            (0, INFINITE),
            condition="the source has no rule that keeps a parameter in its interval",
            note="SAC needs it by many dB: parameters below 0 make primal systems singular. DPG, "
            "whose steps vanish with its slope, loses half a dB.",
        ),
        Claim(
            "ends-better-capped",
            "DPG ends more accurate than NPFL with τ = 0.05",
            "line 1756",
            capping(FIXED),
            (0, INFINITE),
            condition="steps are capped at those of SAC, our addition",
            note="What DPG lacks at the source's rates is a bound on its steps.",
        ),
        Claim(
            "no-rate-helps",
            "SAC is more accurate than DPG at other rates, too",
            "line 1756",
            uncapped,
            (0, INFINITE),
            condition="the other rates are our addition",
            note="A rate small enough for the steep clients leaves the others at their start.",
        ),
    ],
    settings=(*ch6.COMMON, *ch6.LEARNED, RATES, CAPS),
)
