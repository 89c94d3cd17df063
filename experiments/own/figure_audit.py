r"""The audit: an attacker's lower bound on epsilon against the claim of every private algorithm.

Each algorithm runs under its budget on two data sets that differ in one sample at two corners of
the domain (a trusted server's in all samples of one client), chosen so that a message moves by all
that its sensitivity allows, and
:func:`fljax.audit.two_worlds` bounds epsilon from below. A ratio near one says that the claim is
met and tight; above one the claim would be wrong.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.figure import Figure as Picture

import fljax as fl
from experiments import picture
from experiments.figure import (
    INFINITE,
    Claim,
    Effort,
    Estimate,
    Figure,
    Setting,
    Studies,
)
from fljax import audit, plotting
from fljax._core.module import module
from fljax.algorithms import (
    ATC,
    GFL,
    PADMM,
    PGFL,
    ZCDPNFL,
    Algorithm,
    ClusterFL,
    ConventionalFL,
    EpsilonDeltaNFL,
    FedAvg,
    GraphFedAvg,
    PGFLByGradient,
    ZCDPGradNFL,
)
from fljax.graphs import Graph
from fljax.graphs.federation import Federation
from fljax.privacy import ZCDP, ApproximateDP, CentralGaussian, Gap, Neighbors, PureDP
from fljax.privacy.notions import Release
from fljax.problems import LeastAbsoluteDeviation, LeastSquares, Problem, SquaredL2, Tasks
from fljax.results.dataset import provenance

# --------------------------------------------------------------------------- settings

CLIENTS = Setting("clients K", 4, "few: an attack on one client is none on the others")
SAMPLES = Setting("samples per client N", 4, "few: all that counts is the one that is replaced")
DIM = Setting("parameters D", 4, "enough for the l1 and the l2 norm to differ")
ROUNDS = Setting("rounds T", 5, "enough for a budget that is spread, and for history to matter")
RHO = Setting("zCDP budget", 0.5, "worlds one standard deviation apart")
DECAY = Setting("decay", 0.9, "so that rounds have different noise")
APPROXIMATE = Setting(
    "budget of (eps,delta)DP-NFL", (4.0, 1e-3), "0.8 a round: below one, as asked"
)
PURE = Setting("budget under Laplace noise", 3.0, "of the order of the others' tight epsilons")
DELTA = Setting(
    "delta of the audit",
    0.01,
    "a claim of zCDP holds at every delta; what is counted must happen often enough to be counted",
)
CONFIDENCE = Setting("confidence of each bound", 0.99, "one-sided; there is a dozen of them")
RUNS = Setting(
    "runs of each world, for each seed asked for",
    10_000,
    "a million by default. Of normal scores as far apart as these, audited alike, it shows 0.95 of "
    "epsilon for sure, 0.01 more or less; 400,000 show 0.92, 0.03 more or less",
)
FEWER_RUNS = Setting(
    "the same where the shape is not Gaussian, or a fault is planted",
    1000,
    "what is asked of those does not turn on tenths",
)
CANARIES = Setting("canaries of the one-run audit", 5000, "one client each")
CANARY_DELTA = Setting("delta of the one-run audit", 1e-5, "well below one over the canaries")
PENALTY = 0.5
STEP = 0.1

SOUND = "sound"
FAULTY = "fault"
SINGLE = "one run"


@module
class HalfNoise(ZCDP):
    """A planted fault: half the noise that the budget asks for."""

    gaussian_noise: ClassVar[bool] = True

    def release(
        self, plan: Any, sensitivity: Array, round: Array, rounds: int, dim: int
    ) -> Release:
        result = super().release(plan, sensitivity, round, rounds, dim)
        return result._replace(scale=result.scale / 2)


@module
class FactorForgotten(ZCDPGradNFL):
    """A planted fault: the sensitivity of a sample that goes away, where one is replaced."""

    def sensitivity(
        self, problem: Problem, network: Any, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        return super().sensitivity(problem, network, round, gap) / 2


class Case(NamedTuple):
    """A row: an algorithm with its mechanism, and its claim."""

    algorithm: Algorithm
    privacy: Any
    claim: str
    kind: str = SOUND

    @property
    def gaussian(self) -> bool:
        """Whether its noise is Gaussian."""
        return not isinstance(self.privacy, PureDP)

    @property
    def runs(self) -> int:
        """Runs of each world, for each requested seed."""
        return (RUNS if self.gaussian and self.kind == SOUND else FEWER_RUNS).value


def central() -> CentralGaussian:
    """The same budget for a whole client's data, by a trusted server's noise."""
    multiplier = float(np.sqrt(2 * ROUNDS.value / RHO.value))
    return CentralGaussian(multiplier, clip=STEP / 2, neighbors="replace")


def cases() -> dict[str, Case]:
    zcdp = ZCDP(RHO.value, DECAY.value)
    written = f"{RHO.value:g}-zCDP"
    epsilon, delta = APPROXIMATE.value
    sound = {
        "zCDP-NFL": ZCDPNFL(PENALTY, 0.5),
        "zCDP-grad-NFL": ZCDPGradNFL(STEP),
        "ATC": ATC(STEP),
        "FL": ConventionalFL(STEP),
        "GFL, gradient": GraphFedAvg(STEP),
        "P-ADMM": PADMM(PENALTY),
        "PGFL": PGFL(PENALTY, 0.3),
        "GFL": GFL(PENALTY),
        "ClusterFL": ClusterFL(PENALTY, 0.3),
    }
    return {
        **{name: Case(algorithm, zcdp, written) for name, algorithm in sound.items()},
        "(eps,delta)DP-NFL": Case(
            EpsilonDeltaNFL(PENALTY, 0.5),
            ApproximateDP(epsilon, delta),
            f"({epsilon:g}, {delta:g})-DP",
        ),
        "FL, Laplace": Case(ConventionalFL(STEP), PureDP(PURE.value), f"{PURE.value:g}-DP, pure"),
        "DP-FedAvg, client": Case(FedAvg(STEP), central(), written),
        "FL, one run": Case(ConventionalFL(STEP), zcdp, written, SINGLE),
        "half the noise": Case(
            ConventionalFL(STEP), HalfNoise(RHO.value, DECAY.value), written, FAULTY
        ),
        "factor 2 left out": Case(FactorForgotten(STEP), zcdp, written, FAULTY),
        "PGFL, by gradient": Case(
            PGFLByGradient(PENALTY, 0.3, clusters=2, warmup=2, step_size=0.5), zcdp, written
        ),
    }


# --------------------------------------------------------------------------- the worlds


def clipped_worlds(
    clients: int, attacked: Any = 0, neighbors: Neighbors = "replace"
) -> tuple[Problem, Problem]:
    """Worlds whose gradients have length one everywhere, in opposite directions."""
    problem = fl.problems.linear(
        jax.random.key(1),
        clients=clients,
        samples=SAMPLES.value,
        dim=DIM.value,
        loss=LeastAbsoluteDeviation(),
    ).clipped(1.0)
    return audit.corners(problem, attacked, radius=2.0, targets=(-1e4, 1e4), neighbors=neighbors)


def minimized_worlds() -> tuple[Problem, Problem]:
    """Worlds for exact minimizers, which cannot clip: with short features and a distant target the
    gradient of the squared loss hardly depends on the model, and its norm is just below one.
    """
    rng = np.random.default_rng(1)
    features = rng.normal(size=(CLIENTS.value, SAMPLES.value, DIM.value))
    features /= 100 * np.linalg.norm(features, axis=2, keepdims=True)
    targets = rng.choice([-1.0, 1.0], size=features.shape[:2])
    problem = Problem(features, targets, LeastSquares(), SquaredL2(), 0.5)
    return audit.corners(problem, radius=0.01, targets=(-49.5, 49.5))


def simulations(case: Case) -> tuple[fl.Simulation, Problem]:
    """World a, and the data of world b."""
    needs = type(case.algorithm).needs
    network = None
    single = case.kind == SINGLE
    clients = CANARIES.value if single else CLIENTS.value
    if needs.minimizer:
        a, b = minimized_worlds()
        tasks = Tasks(np.arange(clients) % 2, 2)
        a, b = (dataclasses.replace(p, tasks=tasks) for p in (a, b))
    elif isinstance(case.privacy, CentralGaussian):
        a, b = clipped_worlds(clients, neighbors="client")
    else:
        a, b = clipped_worlds(clients, range(clients) if single else 0)
    if needs.network is Graph:
        network = fl.graphs.ring(clients)
    elif needs.network is Federation:
        network = fl.federation.balanced(clients // 2, fl.graphs.complete(2))
    return fl.Simulation(a, case.algorithm, network, case.privacy), b


#: Where the trade-off curves are read.
ALARMS = np.linspace(0, 1, 101)


def row(name: str, seeds: int) -> xr.Dataset:
    """One case, audited."""
    case = cases()[name]
    key = fl.random_key([*cases()].index(name))  # noise of its own
    simulation, other = simulations(case)
    if case.kind == SINGLE:
        result = audit.one_run(
            *(simulation, other, ROUNDS.value),
            delta=CANARY_DELTA.value,
            confidence=CONFIDENCE.value,
            key=key,
        )
        more = {"shaped": np.nan, "apart": np.nan, "runs": 1}
        misses = np.full(len(ALARMS), np.nan)
    else:
        result = audit.two_worlds(
            *(simulation, other, ROUNDS.value, seeds),
            delta=DELTA.value,
            confidence=CONFIDENCE.value,
            key=key,
        )
        more = {"shaped": result.shaped, "apart": result.mu, "runs": seeds}
        alarms, missed = result.errors()
        misses = np.interp(ALARMS, alarms[::-1], missed[::-1])
    numbers = more | {
        "claimed": result.claimed,
        "bound": result.bound,
        "most": result.most,
        "delta": result.delta,
        "gradient_met": result.gradient_norm,
        "gradient_assumed": result.gradient_bound,
    }
    return xr.Dataset(
        {n: ("case", [v]) for n, v in numbers.items()} | {"misses": (("case", "alarms"), [misses])},
        {
            "case": [name],
            "claim": ("case", [case.claim]),
            "kind": ("case", [case.kind]),
            "gaussian": ("case", [case.gaussian]),
            "alarms": ALARMS,
        },
    )


def study(effort: Effort) -> Studies:
    rows = [row(name, case.runs * effort.seeds) for name, case in cases().items()]
    result = xr.concat(rows, "case")
    result.attrs |= provenance(dtype=str(jnp.result_type(float)))
    return {"all": result}


# --------------------------------------------------------------------------- readings


def ratios(studies: Studies, bound: str, kind: str, gaussian: bool = False) -> dict[str, Estimate]:
    data = studies["all"]
    return {
        str(name): Estimate.exact(float(case[bound] / case["claimed"]), "")
        for name in data["case"].values
        if (case := data.sel(case=name))["kind"] == kind
        and (not gaussian or case["gaussian"])
        and not np.isnan(case[bound])
    }


def faults_last(studies: Studies) -> xr.Dataset:
    """All cases, planted faults after the others."""
    data = studies["all"]
    return data.isel(case=np.argsort(data["kind"].values == FAULTY, kind="stable"))


def table(studies: Studies) -> list[dict[str, Any]]:
    """The rows of the README's table."""
    names = ("claimed", "bound", "shaped", "delta")
    rows = []
    data = faults_last(studies)
    for name in data["case"].values:
        case = data.sel(case=name)
        numbers = {n: float(f"{float(case[n]):.4g}") for n in names}
        finite = {n: None if np.isnan(v) else v for n, v in numbers.items()}
        gaussian = bool(case["gaussian"])
        if not gaussian:
            finite["shaped"] = None  # its assumption does not hold
        labels = {n: str(case[n].values) for n in ("case", "claim", "kind")}
        rows.append(labels | finite)
    return rows


def markdown(record: dict[str, Any]) -> str:
    """The README's table from the stored record."""
    head = "audited | claim | δ | tight ε | ε found, by counts | ratio | by Gaussian fit | ratio"
    lines = [f"| {head} |", "|" + " --- |" * 8]
    for row in record["table"]:
        fault = " *(planted fault)*" if row["kind"] == FAULTY else ""
        cells = [row["case"] + fault, row["claim"], f"{row['delta']:g}", f"{row['claimed']:.2f}"]
        for result in (row["bound"], row["shaped"]):
            valid = result is not None
            cells += [f"{result:.2f}", f"{result / row['claimed']:.2f}"] if valid else ["", ""]
        lines.append(f"| {' | '.join(cells)} |".replace("  ", " "))
    return "\n".join(lines)


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    data = faults_last(studies)
    blue, red, green = (look["color"] for look in plotting.LOOKS[:3])
    titles = ("epsilon, claimed and found", "what the attacker takes for what")
    drawing, (left, right) = picture.panels(titles, 2, 2.7, width_ratios=[1.35, 1])
    position = np.arange(data.sizes["case"])[::-1]
    left.barh(position, data["claimed"], color="#dddddd", label="claimed (tight)")
    left.plot(data["bound"], position, "o", color=blue, label="found by counts")
    fit = data["shaped"].where(data["gaussian"] & (data["kind"] != SINGLE))
    left.plot(fit, position, "D", color=green, mfc="none", label="found if Gaussian")
    left.set_yticks(position, [str(name) for name in data["case"].values])
    for label, kind in zip(left.get_yticklabels(), data["kind"].values, strict=True):
        if kind == FAULTY:
            label.set_color(red)
    left.set_xlabel(f"epsilon at delta = {DELTA.value:g} (one run: {CANARY_DELTA.value:g})")
    left.set_ylabel("audited (planted faults in red)")
    left.grid(axis="y", visible=False)
    share = np.linspace(1e-6, 1 - 1e-6, 400)
    claimed = audit.gaussian_misses(float(np.sqrt(2 * RHO.value)), share)
    right.plot(share, 1 - share, color="#999999", lw=0.8, label="blind guessing")
    # The curves of sound claims coincide: each is drawn within the one before.
    for name, width, color in (
        ("FL", 4.5, "#a6cee3"),
        ("zCDP-NFL", 2.5, blue),
        ("P-ADMM", 1, green),
    ):
        curve = data["misses"].sel(case=name)
        right.plot(data["alarms"], curve, color=color, lw=width, label=name)
    faulty = data["misses"].sel(case="half the noise")
    right.plot(data["alarms"], faulty, color=red, label="half the noise")
    picture.predicted_curve(right, share, claimed, "claim: not below", color="#000000")
    right.set_xlabel("false alarms: world a taken for b")
    right.set_ylabel("misses: world b taken for a")
    return picture.finish(drawing)


# --------------------------------------------------------------------------- the figure

OURS = "this library"


def rarely(studies: Studies) -> str:
    """Why the bounds by counting stay below the bounds by fitting."""
    counted, fitted = (ratios(studies, n, SOUND, True).values() for n in ("bound", "shaped"))
    least = [min(e.value for e in result) for result in (counted, fitted)]
    return (
        "Counting rare events costs: the smaller the claim, the more runs it takes to see most of "
        f"it. The least of these ratios is {least[0]:.3f}; the fit, which uses all runs, finds "
        f"{least[1]:.3f} or more."
    )


FIGURE = Figure(
    name="audit",
    title="What an attacker finds of the privacy that is claimed",
    source="this library; the attacks of Nasr et al. 2023 and Steinke et al. 2023",
    caption="Lower bounds on epsilon from what the attacked client sends in two worlds, beside the "
    "tight epsilon of the claim; beside them how often either world is taken for the other. "
    "“By counts” holds whatever the noise; “if Gaussian” assumes normal scores.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "no-bound-above-its-claim",
            "no private algorithm leaks more than it claims",
            OURS,
            lambda studies: ratios(studies, "bound", SOUND) | ratios(studies, "bound", SINGLE),
            (0, 1),
            "the lower bound by counts over the tight epsilon is at most one",
            ours=True,
        ),
        Claim(
            "gaussian-claims-are-tight",
            "the attack finds nearly all of what a Gaussian mechanism claims",
            OURS,
            lambda studies: ratios(studies, "bound", SOUND, True),
            (0.9, 1),
            "the lower bound by counts is 0.9 of the tight epsilon or more",
            note=rarely,
            ours=True,
        ),
        Claim(
            "gaussian-claims-are-tight-by-their-shape",
            "the same by the Gaussian fit of the scores",
            OURS,
            lambda studies: ratios(studies, "shaped", SOUND, True),
            (0.9, 1),
            "the lower bound by the fit is 0.9 of the tight epsilon or more, and not above it",
            ours=True,
        ),
        Claim(
            "planted-faults-are-caught",
            "half the noise, or a factor of two left out of the sensitivity, does not pass",
            OURS,
            lambda studies: ratios(studies, "bound", FAULTY),
            (1.0001, INFINITE),
            "the lower bound by counts is above the claim",
            ours=True,
        ),
        Claim(
            "one-run-finds-less",
            "a single run with many canaries finds a part of the claim only",
            "Steinke et al. 2023",
            lambda studies: ratios(studies, "bound", SINGLE),
            (0.1, 0.9),
            "between a tenth and nine tenths of it",
            "ours: this mechanism, and so many canaries",
            note="A bound from one run's guesses lies below the claim however many canaries there "
            "are, and by how much depends on the noise and on their number.",
            changed="The same measure, counted as conditional: the paper names no such share.",
        ),
    ],
    settings=(
        *(CLIENTS, SAMPLES, DIM, ROUNDS, RHO, DECAY, APPROXIMATE, PURE),
        *(DELTA, CONFIDENCE, RUNS, FEWER_RUNS, CANARIES, CANARY_DELTA),
    ),
    table=table,
)
