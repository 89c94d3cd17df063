r"""Noise of clients on what they send to their server, by a variance and not by a budget.

Of a model, :math:`\tfrac1L\sum_k(w_k+g_k)`, or of an update,
:math:`w-\mu\tfrac1L\sum_k(\psi_k+g_k)` (Rizk 2023, section 2.5): the second is the first with the
noise :math:`-\mu g_k`, so what it leaves in the server's model shrinks with the step size, where
that of the first grows.
"""

import jax
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module, static
from fljax.link.noise import Perturbation

__all__ = ["UPLOADS", "UploadNoise"]

#: What clients send to a server.
UPLOADS = ("models", "updates")


@module
class UploadNoise(Perturbation):
    r"""One draw of every client that sends, in every round.

    It is added before a message is compressed, and goes with it wherever the link takes it. A
    message that holds some of a model's parameters only has noise on those.

    Args:
      variance: :math:`\sigma_g^2`.
      law: ``"laplace"``, of scale :math:`\sigma_g/\sqrt2`, or ``"gaussian"``.
      per: ``"coordinate"``, each of which has this variance, or ``"vector"``, whose squared length
        has this mean.
      on: ``"models"``, the message as it is, or ``"updates"``: on :math:`\psi_k` where the message
        is :math:`w-\mu\psi_k`, or on the message itself where it is an update.

    Raises:
      ValueError: as of :class:`~fljax.link.Noise`; something else to be on.

    Reference:
      Rizk 2023, (2.56)-(2.60), lines 854-872; (3.7), line 1480.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=8, samples=10, dim=2),
      ...     algorithm=fl.algorithms.FedAvg(step_size=0.1, clients_per_round=4),
      ...     upload_noise=fl.link.UploadNoise(0.02, on="updates"),
      ... )
      >>> fl.run(simulation, rounds=5).sizes["round"]
      5
    """

    on: str = static(default="models")

    def validate(self) -> None:
        super().validate()
        _check.choice("on", self.on, UPLOADS)

    def onto(
        self,
        keys: Array,
        message: Float[Array, "senders numbers"],
        step_size: Array | float | None,
    ) -> Float[Array, "senders numbers"]:
        """The messages with their noise.

        Args:
          keys: ``[M]``, of each sender.
          message: ``[M, ...]``.
          step_size: by which an update is multiplied in it.

        Raises:
          ValueError: noise on updates in messages that say nothing of them.
        """
        drawn = jax.vmap(lambda key: self.draw(key, message.shape[1:], message.dtype))(keys)
        if self.on == "models":
            return message + drawn
        if step_size is None:
            raise ValueError(
                "noise on updates needs the step size by which a message multiplies them; let the "
                "step pass step_size= to now.link.collect or send, or take on='models'."
            )
        return message - step_size * drawn
