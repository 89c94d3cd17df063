"""FedRep: a common representation, and heads that are trained first (Collins et al. 2021)."""

from operator import itemgetter
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module, static
from fljax.algorithms.base import algorithm
from fljax.algorithms.personalized.fedper import FedPer
from fljax.algorithms.server.base import AVERAGED, Cohort
from fljax.rounds import Round

__all__ = ["FedRep"]


@algorithm("FedRep", "collins2021", AVERAGED)
@module
class FedRep(FedPer):
    r"""A common representation, and a head of each client's own that is trained first.

    A participant of round :math:`n` first fits its head to the representation it receives, then
    moves the representation under its new head:

    .. math::

        h_k &\leftarrow h_k-\mu\,\partial_hf_k(\varphi^{(n-1)},h_k)\quad\text{for }\tau
            \text{ passes},\\
        \varphi_k &\leftarrow \varphi_k-\mu\,\partial_\varphi f_k(\varphi_k,h_k)

    The server averages the :math:`\varphi_k`, as of :class:`FedPer`, whose arguments and messages
    it has. Each pass has as many steps as the representation, on batches of its own: with
    ``local_steps=1`` they are the paper's algorithm, :math:`\tau` steps of the head and one of the
    representation; with ``epochs=1`` and a ``batch`` its experiments, :math:`\tau` epochs and one.

    Args:
      step_size: :math:`\mu` of both; an optimizer begins anew with either.
      personal: the head.
      head_epochs: :math:`\tau\ge1`.

    Reference:
      Collins et al. 2021, Algorithm 1.
    """

    head_epochs: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.count("head_epochs", self.head_epochs)

    def _invited(self, now: Round) -> Cohort:
        return self.invite(now, draws=self.head_epochs + 1)

    def _trained(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], own: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        shared, _ = self._split(now.problem)
        draws, last = cohort.batch, None
        if draws is not None:
            draws, last = (jax.tree.map(itemgetter(at), draws) for at in (slice(-1), -1))

        def one(model: Array, batch: Any) -> tuple[Array, None]:
            return self._moved(now, cohort, model, own, batch), None

        model = jax.lax.scan(one, start, draws, length=self.head_epochs)[0]
        return self._moved(now, cohort, model, shared, last)
