"""Parts shared by the audits by guessing: report, checks of arguments, floors of noise levels."""

import dataclasses
from typing import Any

import jax
import numpy as np

from fljax._core import checks
from fljax.graphs.federation import Federation
from fljax.privacy.ledger import claimed_epsilon
from fljax.privacy.notions import is_gaussian
from fljax.privacy.promises import ROUNDING
from fljax.simulation.scan import check_length, check_rounds
from fljax.simulation.scenario import Simulation

#: Floor of a variance, in squared standard deviations, for noise that may be known entirely.
MIN_VARIANCE = 1e-9


def distinct_texts(first: float, second: float, digits: int = 3) -> tuple[str, str]:
    """Return two numbers as texts, with enough digits that different numbers look different."""
    for precision in range(digits, 18):
        texts = f"{first:.{precision}g}", f"{second:.{precision}g}"
        if texts[0] != texts[1] or first == second:
            return texts
    return repr(first), repr(second)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of an audit.

    Attributes:
      ledger: the privacy loss that the run states for the attacked client; the largest of several.
        With ``rho`` it has ``gaussian_noise``, whether all noise is continuous Gaussian noise.
      delta: at which epsilon is compared.
      confidence: of the bound.
      bound: the lower bound on epsilon.
      most: the bound if the attacker was never wrong.
      gradient_norm: the largest norm of a per-sample gradient in the run.
      gradient_bound: the bound on it that the claim assumes.
    """

    ledger: dict[str, float]
    delta: float
    confidence: float
    bound: float
    most: float
    gradient_norm: float
    gradient_bound: float

    @property
    def claimed(self) -> float:
        """The tight epsilon of the claim, see :func:`claimed_epsilon`."""
        return claimed_epsilon(self.ledger, self.delta)

    @property
    def broken(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.bound > self.claimed

    @property
    def ratio(self) -> float:
        """The ratio of the bound to the claim."""
        return self.bound / self.claimed

    @property
    def verdict(self) -> str:
        """The result as a sentence."""
        bound, claimed = distinct_texts(self.bound, self.claimed)
        verdict = (
            f"{'BROKEN' if self.broken else 'not broken'}: epsilon is at least {bound} "
            f"({self.confidence:.0%} confidence), {claimed} is claimed, at delta={self.delta:g}."
        )
        if self.most < self.claimed:
            verdict += (
                f" So few trials could show {self.most:.3g} at most: take more, or a larger delta."
            )
        if self.gradient_norm > self.gradient_bound * (1 + ROUNDING):
            verdict += (
                f" Gradients of norm {self.gradient_norm:.3g} were met and at most "
                f"{self.gradient_bound:.3g} is assumed: on these data the claim is nominal."
            )
        return verdict


def validated(
    simulation: Simulation, rounds: int, delta: float, confidence: float
) -> tuple[Simulation, Any]:
    """Validate an audit; return the simulation without metrics, and its budget."""
    if simulation.privacy is None:
        raise ValueError(
            "there is no claim to audit: the simulation runs without privacy; give it privacy=, "
            "such as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    check_one_sum(simulation)
    check_rounds(rounds, 1)
    checks.interval("delta", delta, above=0, below=1, hint="It is the claim's, or a larger one.")
    checks.interval("confidence", confidence, above=0, below=1, hint="0.95 is usual.")
    jax.eval_shape(lambda: check_length(simulation, rounds))
    return dataclasses.replace(simulation, metrics=()), simulation.privacy


def check_one_sum(simulation: Simulation) -> None:
    """Raise ``ValueError`` where several servers perturb a sum each, which no audit records."""
    several = type(simulation.algorithm).needs.network is Federation
    if several and simulation.privacy.scope == "server":
        raise ValueError(
            "audits are of one trusted server, and each server of this network perturbs a sum; "
            "audit one of them, by fljax.algorithms.FedAvg on the data of its clients."
        )


def with_noise_kind(spent: dict[str, float], privacy: object) -> dict[str, float]:
    """A ledger with the kind of noise, which decides how zCDP is converted to epsilon."""
    if "rho" not in spent:
        return spent
    return spent | {"gaussian_noise": float(is_gaussian(type(privacy)))}


def noise_floor(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Return a noise level that can be divided by: at least a tiny part of the signal."""
    return np.maximum(noise, 1e-12 * signal + 1e-300)
