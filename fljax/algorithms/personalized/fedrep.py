"""FedRep: a common representation and personal heads, trained in turn (Collins et al. 2021)."""

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
    r"""A common representation and a personal head at each client that is trained first.

    A participant of round :math:`n` first fits its head to the received representation, then
    updates the representation with its new head:

    .. math::

        h_k &\leftarrow h_k-\mu\,\partial_hf_k(\varphi^{(n-1)},h_k)\quad\text{for }\tau
            \text{ passes},\\
        \varphi_k &\leftarrow \varphi_k-\mu\,\partial_\varphi f_k(\varphi_k,h_k)

    The server averages the :math:`\varphi_k`, as in :class:`FedPer`, whose arguments and messages
    it has. Each pass has as many steps as the representation, on separate batches:
    ``local_steps=1`` is the paper's algorithm, :math:`\tau` steps of the head and one of the
    representation; ``epochs=1`` with a ``batch`` is the setting of its experiments, :math:`\tau`
    epochs of the head and one of the representation.

    Args:
      step_size: :math:`\mu` of both; an optimizer is initialized anew for each.
      personal: the parameters of the head.
      head_epochs: :math:`\tau\ge1`, the number of passes of the head.

    Reference:
      Collins et al. 2021, Algorithm 1.
    """

    head_epochs: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        _check.count("head_epochs", self.head_epochs)

    def _invited(self, now: Round, model: Float[Array, "clients dim"]) -> Cohort:
        return self.invite(now, model, draws=self.head_epochs + 1)

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
