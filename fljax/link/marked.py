"""A link that marks all outgoing values, so that a trace shows which private data they contain."""

from typing import TypeVar

from jaxtyping import Array

from fljax._core import taint
from fljax.link.round_link import Link
from fljax.privacy.discrete import PrivateNoise

T = TypeVar("T")


class Marked(Link):
    """Marks perturbed values as released and all other outgoing values as public, including the
    size of the noise and the privacy ledger (:mod:`fljax._core.taint`).
    """

    def _release_private(
        self,
        clean: Array,
        noise: PrivateNoise,
        sensitivity: Array,
        spent: dict[str, Array],
        clients: Array,
        sending: Array | None,
        rounding: Array,
        release_rho: Array | None = None,
    ) -> Array:
        parts = {"drawn": noise.drawn, "scale": noise.scale, "grid": noise.grid}
        noise = noise._replace(**taint.open_to_all(parts, "the size of the noise"))
        spent = taint.open_to_all(spent, "the privacy ledger")
        sending = taint.open_to_all(sending, "who sends a private message")
        release_rho = taint.open_to_all(release_rho, "the privacy ledger")
        released = super()._release_private(
            clean, noise, sensitivity, spent, clients, sending, rounding, release_rho
        )
        return taint.released(released)

    def _send_unprotected(self, value: T, what: str) -> T:
        return taint.open_to_all(value, what)
