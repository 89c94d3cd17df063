"""FedRep: a common representation and personal heads, trained in turn (Collins et al. 2021)."""

import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import module, static
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.personalized.fedper import FedPer
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Cohort


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
      step_size: :math:`\mu` of both; an optimizer is reinitialized for each.
      personal: the parameters of the head.
      head_epochs: :math:`\tau\ge1`, the number of passes of the head.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> algorithm = fl.algorithms.FedRep(0.1, local_steps=1, personal=[0], head_epochs=5)
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, 3 of 4 parameters of 32 bits
      5760

    Reference:
      Collins et al. 2021, Algorithm 1.
    """

    head_epochs: int = static(default=1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        checks.count("head_epochs", self.head_epochs)

    def gradients_per_step(self, problem: object) -> float:
        return self.head_epochs + 1.0

    def _invite(self, now: Round, model: Float[Array, "clients dim"]) -> Cohort:
        return self.invite(now, model, draws=self.head_epochs + 1)

    def _train_participants(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], personal: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        shared, _ = self._split(now.problem)
        heads = cohort.over_sets(0, self.head_epochs)
        model = self._train_part(now, heads, start, personal)
        return self._train_part(now, cohort.over_sets(self.head_epochs, 1), model, shared)
