"""Rizk 2023, section 5.2: costs and gains of personalization under privacy."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

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
from fljax import plotting, statistics
from fljax._core.module import float_dtype
from fljax._core.numerics import HIGHEST
from fljax._core.prng import normal
from fljax.algorithms import Algorithm, Ditto, FedAvg, FineTunedFedAvg, LocalOnly
from fljax.link import UploadNoise
from fljax.privacy import accounting
from fljax.problems import LeastSquares, Problem, SquaredL2

AGENTS = Setting("agents K", 20, "all take part in every round")
SAMPLES = Setting("samples of an agent N", 20, "so few that others' are worth something")
TEST = Setting("held-out samples", 100, "of each agent, their responses without noise")
DIM = Setting("parameters M", 5, "of which an agent's samples alone tell roughly")
NOISE = Setting("variance of the responses' noise", 0.25, "a fourth of a feature's")
UNLIKE = Setting(
    "deviation of an agent's own model from the common one",
    (0.0, 0.1, 0.3, 1.0),
    "in each parameter, of which the common model's are standard normal",
)
VARIANCES = Setting(
    "variance of the noise on uploaded models", (0.0, 0.01, 0.1, 1.0), "epsilon falls by its root"
)
STEP = Setting("step size mu", 0.1, "personal steps too")
ROUNDS = Setting("iterations", 100, "of which the first half is enough without noise")
CLIP = Setting(
    "longest gradient of a sample C", 10.0, "clipped there, which epsilon rests on; seldom met"
)
ATTRACTION = Setting("attraction of Ditto", (0.1, 1.0), "little and much beside curvatures near 2")
TUNING = Setting("tuning steps of FedAvg-FT", 5, "from the server's model, on all own samples")
STRENGTH = Setting("regularizer of an agent", 0.001, "as in chapter 2")
DELTA = Setting("delta", 1e-5, "of all epsilons")

LOCAL = "local only"
GLOBAL = "one global model"
TUNED = "FedAvg-FT"
DITTO = {f"Ditto, {value:g}": value for value in ATTRACTION.value}
PERSONAL = (TUNED, *DITTO)
METRIC = "test_error"


def methods() -> Mapping[str, Algorithm]:
    step = STEP.value
    solver = FedAvg(step)
    return {
        LOCAL: LocalOnly(step),
        GLOBAL: solver,
        TUNED: FineTunedFedAvg(solver, step, TUNING.value),
    } | {name: Ditto(solver, step, value) for name, value in DITTO.items()}


def problem(key: Array, unlike: Array | float) -> Problem:
    """Least squares with a model for each agent and clipped gradients."""
    common, agent_key, rows, held_out, errors = jax.random.split(key, 5)
    dtype = float_dtype()
    agents = AGENTS.value
    dim = DIM.value
    models = normal(common, (1, dim), dtype) + jnp.asarray(unlike, dtype) * normal(
        agent_key, (agents, dim), dtype
    )
    features = normal(rows, (agents, SAMPLES.value, dim), dtype)
    test = normal(held_out, (agents, TEST.value, dim), dtype)

    def responses(features: Array) -> Array:
        return jnp.einsum("knp,kp->kn", features, models, precision=HIGHEST)

    noise = jnp.sqrt(jnp.asarray(NOISE.value, dtype)) * normal(
        errors, (agents, SAMPLES.value), dtype
    )
    data = Problem(
        features,
        responses(features) + noise,
        LeastSquares(),
        SquaredL2(),
        STRENGTH.value * agents,
    )
    return data.with_test(test, responses(test)).clipped(CLIP.value)


def scenario(
    key: Array, algorithm: Algorithm, unlike: Array | float, variance: Array | float
) -> fl.Simulation:
    """One run; local learning sends nothing and needs no noise."""
    noise = None if isinstance(algorithm, LocalOnly) else UploadNoise(variance, law="gaussian")
    return fl.Simulation(problem(key, unlike), algorithm, upload_noise=noise, metrics=[METRIC])


def study(effort: Effort) -> Studies:
    axes = {"unlike": list(UNLIKE.value), "variance": list(VARIANCES.value)}
    result = effort.sweep(
        "study",
        scenario,
        rounds=ROUNDS.value,
        seeds=effort.seeds,
        grid={"algorithm": methods()} | axes,
        record_every=ROUNDS.value,
    )
    return {"study": result.isel(round=-1, drop=True)[[METRIC, "scalars", "diverged"]]}


def epsilon(variance: float, secure: bool) -> float:
    r"""Epsilon of one sample over all rounds, against observers of all uploads or of their sums.

    A full gradient's step from a published model moves by :math:`2\mu C/N`; :math:`T` rounds of
    independent Gaussian noise multiply it by :math:`\sqrt T`. In a sum of all agents' messages
    the noise of all hides each. Personal models are not sent.
    """
    if variance == 0:
        return INFINITE
    agents = AGENTS.value if secure else 1
    change = 2 * STEP.value * CLIP.value / SAMPLES.value
    mu = change * math.sqrt(ROUNDS.value / (variance * agents))
    return float(accounting.zcdp_epsilon(mu**2 / 2, DELTA.value, "gaussian"))


# --------------------------------------------------------------------------- the claims


def _case(unlike: float, variance: float) -> str:
    spent = epsilon(variance, secure=True)
    noise_text = "no noise" if math.isinf(spent) else f"ε = {spent:.2g} in sums"
    return f"unlike {unlike:g}, {noise_text}"


def gain_of_the_best(over: str, unders: tuple[str, ...], variances: tuple[float, ...]) -> Measure:
    """How far one method is above the best of others, dB, where agents are unlike, by how much they
    are and the noise.
    """

    def measure(studies: Studies) -> dict[str, Estimate]:
        level = studies["study"][METRIC].mean("seed").sel(algorithm=[*unders])
        best = level.idxmin("algorithm")
        every = gains(over, unders, variances)(studies)
        return {
            name: every[name]
            for unlike in level["unlike"].values
            if unlike > 0
            for v in variances
            for under in [best.sel(unlike=unlike, variance=v).item()]
            for name in [f"{over} above {under}, {_case(unlike, v)}"]
        }

    return measure


def gains(over: str, unders: tuple[str, ...], variances: tuple[float, ...]) -> Measure:
    """How far one method is above others, dB, over how unlike agents are and the noise."""

    def measure(studies: Studies) -> dict[str, Estimate]:
        data = studies["study"]
        return {
            f"{over} above {under}, {_case(unlike, v)}": measures.gap(
                *(
                    samples(data, {"algorithm": m, "unlike": unlike, "variance": v}, METRIC)
                    for m in (over, under)
                )
            )
            for under in unders
            for unlike in data["unlike"].values
            for v in variances
        }

    return measure


def softened(studies: Studies) -> dict[str, Estimate]:
    """How much more a global model loses by noise than a personal one, dB."""
    data = studies["study"]
    (silent, *_, loud) = VARIANCES.value
    result = {}
    for name in PERSONAL:
        for unlike in data["unlike"].values:
            parts = [
                samples(data, {"algorithm": m, "unlike": unlike, "variance": v}, METRIC)
                for m in (GLOBAL, name)
                for v in (loud, silent)
            ]
            result[f"{name}, unlike {unlike:g}"] = measures.estimate(
                lambda a, b, c, d: statistics.decibels(a / b / (c / d)), *parts
            )
    return result


def sent(studies: Studies) -> dict[str, Estimate]:
    """Numbers that a method sends relative to the global one, per cent."""
    counts = studies["study"]["scalars"].mean(["seed", "unlike", "variance"])
    share = 100 * counts / counts.sel(algorithm=GLOBAL)
    return {name: Estimate.exact(float(share.sel(algorithm=name)), "%") for name in PERSONAL}


def winners(studies: Studies) -> str:
    """Who is best where."""
    level = studies["study"][METRIC].mean("seed")
    best = level.idxmin("algorithm")
    return "Best: " + "; ".join(
        f"{_case(float(unlike), float(v))}: {best.sel(unlike=unlike, variance=v).item()}"
        for v in best["variance"].values
        for unlike in best["unlike"].values
    )


# --------------------------------------------------------------------------- the picture


def plot(studies: Studies) -> Picture:
    level = studies["study"][METRIC].mean("seed")
    silent, _, middle, loud = VARIANCES.value
    titles = ["no noise"]
    for variance in (middle, loud):
        spent = epsilon(variance, secure=False)
        less = epsilon(variance, secure=True)
        titles.append(f"ε = {spent:.2g}, in sums {less:.2g}")
    drawing, axes = picture.panels(titles, sharey=True)
    for ax, variance in zip(axes, (silent, middle, loud), strict=True):
        _curves(ax, level.sel(variance=variance))
    seeds = studies["study"].sizes["seed"]
    heading = f"{AGENTS.value} agents of {SAMPLES.value} samples; means of {seeds} seeds"
    return picture.finish(drawing, heading)


def _curves(ax: Axes, level: xr.DataArray) -> None:
    at = np.arange(level.sizes["unlike"])
    for index, name in enumerate(level["algorithm"].values):
        ax.plot(
            at,
            statistics.decibels(level.sel(algorithm=name).values),
            label=str(name),
            **plotting.LOOKS[index],
        )
    ax.set_xticks(at, [f"{value:g}" for value in level["unlike"].values])
    ax.set(xlabel="deviation of own models", ylabel="excess test error [dB]")


FIGURE = Figure(
    name="rizk-5.5",
    title="Private personalization",
    source="Rizk 2023, section 5.2, its second question",
    caption="Held-out error of each agent's model, over that of its own true one, by how unlike "
    "agents are and how much noise is on what they send: Gaussian on uploaded models. Epsilons "
    "are of one sample, of all rounds together: against those who hear the uploads, and against "
    "those who hear their sums. Personal models stay with their agents. All curves ours.",
    study=study,
    plot=plot,
    claims=[
        Claim(
            "personalization-helps",
            "customizing the global model to local requirements might help improve performance",
            "section 5.2",
            gain_of_the_best(GLOBAL, PERSONAL, (0.0, 0.1)),
            *words.BETTER.db,
            condition="by how unlike agents are, without noise and with some",
            note=winners,
            changed="Local requirements differ where agents do, so that identical ones are left "
            "out; and that some customizing might help asks for the best of three.",
        ),
        Claim(
            "personalization-beats-learning-alone",
            "so does what agents have in common: a personal model is better than one of own data",
            "ours, on section 5.2",
            gains(LOCAL, PERSONAL, (0.0, 0.1)),
            *words.BETTER.db,
            ours=True,
            note=winners,
        ),
        Claim(
            "softens-noise",
            "a personal model loses less by the noise of the uploads than the global one",
            "ours, on section 5.2",
            softened,
            *words.BETTER.db,
            ours=True,
        ),
        Claim(
            "leaks-no-more",
            "introducing personalization could leak personal information: of these methods, whose "
            "personal models stay, it costs no more epsilon than the global model",
            "section 5.2",
            sent,
            (100, 100),
            "numbers that are sent, each of which is perturbed, per cent of the global model's",
            construction="what is sent is the solver's, and noise is on all of it",
        ),
    ],
    settings=(
        *(AGENTS, SAMPLES, TEST, DIM, NOISE, UNLIKE, VARIANCES, STEP, ROUNDS, CLIP),
        *(ATTRACTION, TUNING, STRENGTH, DELTA),
    ),
    keep=["scalars"],
)
