"""A link on which what leaves is marked, so that it can be told what that depends on."""

from typing import TypeVar

from jaxtyping import Array

from fljax import _taint
from fljax.link.link import Link
from fljax.privacy.discrete import PrivateNoise

__all__ = ["Marked"]

T = TypeVar("T")


class Marked(Link):
    """Marks perturbed values as released, and all else that leaves as open to everybody: also how
    large the noise is and what the ledger says (:mod:`fljax._taint`).
    """

    def _leave(
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
        noise = noise._replace(**_taint.open_to_all(parts, "the size of the noise"))
        spent = _taint.open_to_all(spent, "the privacy ledger")
        sending = _taint.open_to_all(sending, "who sends a private message")
        release_rho = _taint.open_to_all(release_rho, "the privacy ledger")
        said = super()._leave(
            clean, noise, sensitivity, spent, clients, sending, rounding, release_rho
        )
        return _taint.released(said)

    def _open(self, value: T, what: str) -> T:
        return _taint.open_to_all(value, what)
