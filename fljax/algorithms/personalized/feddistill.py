r"""FedDistill: mean logits of each class instead of models (Jeong et al. 2018)."""

from jaxtyping import Array, Float

from fljax._core.module import module
from fljax.algorithms.algorithm import algorithm
from fljax.algorithms.personalized.fedproto import OF_MEANS, ClassMeans
from fljax.problems import Problem, Reading


@algorithm("FedDistill", "jeong2018", OF_MEANS, {"Federated distillation": "", "FD": ""})
@module
class FedDistill(ClassMeans):
    r"""Clients with models of their own share the mean logits of each class.

    With the logits :math:`z=h(x;w)\in\mathbb R^C`, a participant of round :math:`n` takes local
    steps from its own model along the gradient of

    .. math::

        \frac1{D_k}\sum_j\Big(\ell(x_{k,j},y_{k,j};w_k)
            +\frac\lambda C\big\|h(x_{k,j};w_k)-\bar z_{y_{k,j}}^{(n-1)}\big\|^2\Big),\qquad
        \bar z_c^{(n)}=\frac{\sum_{k\in S}\sum_{j:y_{k,j}=c}h(x_{k,j};w_k)}
            {\sum_{k\in S}n_{k,c}}

    and sends its sums of logits and its :math:`n_{k,c}`. A message has :math:`C(C+1)` numbers,
    regardless of the network. Unknown classes and absent clients are treated as in
    :class:`~fljax.algorithms.FedProto`, whose form for logits this is.
    :math:`\lambda=0` is :class:`~fljax.algorithms.LocalOnly`.

    This is the form in which other papers compare with it, with a mean-square distance of logits.
    In the source the distance is the cross-entropy of the softmax, its means are over the steps of
    a round, and a client leaves its own out of the mean of all.

    Args:
      step_size: :math:`\mu`, as in
        :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`, which also has the other
        arguments.
      attraction: :math:`\lambda\ge0`.

    Raises:
      ValueError: a negative attraction, a loss that is not :class:`~fljax.problems.Softmax`.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> simulation = fl.Simulation(data, fl.algorithms.FedDistill(0.1, attraction=0.5, epochs=5))
      >>> run = fl.run(simulation, rounds=10)
      >>> int(run.bits_up[-1]) == 10 * 4 * 3 * (3 + 1) * 32  # rounds, clients, means, bits
      True

    Reference:
      Jeong et al. 2018, Algorithm 1, federated distillation.
    """

    def validate(self) -> None:
        super().validate()

    def values_and_logits(
        self, samples: Reading, model: Float[Array, " dim"]
    ) -> tuple[Array, Array]:
        logits = samples.predictions(model)
        return logits, logits

    def sample_values(self, problem: Problem, models: Float[Array, "clients dim"]) -> Array:
        return problem.predictions(models)
