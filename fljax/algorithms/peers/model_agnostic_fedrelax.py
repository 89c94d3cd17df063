"""Model-agnostic FedRelax: neighbors coupled by their predictions (Jung 2025)."""

from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module, static
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.peers.networked_iteration import NEIGHBORS
from fljax.algorithms.predictions import OnTestSet, OnTestSetState
from fljax.algorithms.round import Round
from fljax.graphs import Graph
from fljax.problems import Problem
from fljax.problems.learners import Learners, as_learners
from fljax.problems.solvers import strong_convexity


@algorithm(
    "Model-agnostic FedRelax",
    ("abdurakhmanova2023", "jung2025"),
    Needs(absent=True, late=True, averages=True, minimizer=True, quadratic=True),
)
@module
class ModelAgnosticFedRelax(OnTestSet):
    r"""Every node fits a hypothesis to its data and to its neighbors' predictions.

    .. math::

        h_k\leftarrow\arg\min_hf_k(h)+\alpha\sum_{l\in\mathcal N_k}a_{kl}
            \frac1{m'}\sum_{j=1}^{m'}\big(h(x_j)-h_l(x_j)\big)^2

    With the squared error this is empirical risk minimization with the weights :math:`1/D_k` of a
    node's samples and :math:`\alpha d_k/m'` of the test set's points, whose pseudo-labels are the
    weighted mean of the neighbors' predictions: a message consists of :math:`m'` predictions only.

    Linear models, :math:`h_k(x)=w_k^\top\varphi_k(x)`, are computed for all nodes together, with
    the constant parts computed only once; if the minimizer is not unique, it is the one of least
    norm. Features that only one node has are columns of the problem, and of a test set per node, in
    which other nodes have zeros. A fixed point of the rounds minimizes

    .. math:: \sum_kf_k(w_k)+\frac\alpha{m'}\sum_{\{k,l\}}a_{kl}\|\Psi_kw_k-\Psi_lw_l\|^2

    with :math:`\Psi_k` the test set in node :math:`k`'s features. Learners are fitted on the host,
    by one process for all seeds in sequence; ``model`` contains their predictions at the test set,
    and ``learned`` fits the learners of a round again.

    Args:
      coupling: :math:`\alpha\ge0`.
      test_set: ``[m', D]``, or ``[K, m', D]`` with features of each node's own; by default the
        :math:`D` points :math:`\sqrt De_j`, on which the discrepancy of models is the squared
        distance of their parameters, so that the method is :class:`FedRelax`.
      pooled: whether a point has one pseudo-label, the mean of the neighbors' predictions, as (65)
        allows; otherwise it has one per neighbor, and the discrepancy (64) is the learners' own
        loss, with the neighbor's prediction as the label: classifiers agree on classes, which have
        no mean, and trees with the absolute error on medians. A neighbor that has not yet been
        available contributes nothing in the first round, and predictions of zero later.
      learners: learners instead of linear models: one for all nodes or one per node, with
        ``fit(features, targets, sample_weight=)`` and ``predict(features)``, such as
        scikit-learn's. A randomized learner needs its ``random_state`` for reproducible runs.

    Raises:
      TypeError: a learner without such methods, or whose ``fit`` takes no ``sample_weight``.
      ValueError: a test set or a number of learners that does not fit; an objective that is not
        quadratic; learners without a test set, or with initial models; linear models that are not
        pooled.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.ModelAgnosticFedRelax(
      ...         0.5, test_set=jax.random.normal(jax.random.key(1), (20, 2))
      ...     ),
      ...     metrics=["normalized_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=30).normalized_error[-1] < 1e-6)
      True

    Reference:
      Abdurakhmanova, SarcheshmehPour & Jung 2023; Jung 2025, Algorithm 12, (124), with (64)-(66).
    """

    coupling: Float[Array, ""] | float
    test_set: Annotated[Array, "points features"] | None = field(converter=as_given, default=None)
    learners: Learners | None = field(converter=as_learners, static=True, default=None)
    pooled: bool = static(default=True, kw_only=True)

    #: Messages that an unavailable node receives later.
    waiting: ClassVar[tuple[str, ...]] = ("received",)
    hears_itself: ClassVar[bool] = False
    combinations: ClassVar[Any] = (NEIGHBORS,)

    def validate(self) -> None:
        checks.nonnegative("coupling", self.coupling)
        self._validate()
        if not self.pooled and self.learners is None:
            raise ValueError(
                "pooled=False makes no difference for linear models with squared errors; leave it "
                "out, or give learners."
            )

    @property
    def one_by_one(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return not self.pooled

    def message_size(self, dim: int) -> int:
        return dim if self.test_set is None else self.test_set.shape[-2]

    def _label_weights(self, network: Graph) -> Float[Array, "clients ..."]:
        weights = network.degree if self.pooled else network.neighbor_table()[1]
        return jnp.asarray(self.coupling) * weights

    def init(self, problem: Problem, network: Graph) -> OnTestSetState:
        state = self._initial_state(problem, self._label_weights(network))
        if self.pooled:
            return state._replace(received=network.mixing(NEIGHBORS)(state.received))
        zero = jnp.zeros(
            (*self._label_weights(network).shape, state.received.shape[1]), problem.dtype
        )
        return state._replace(received=zero, labels=zero)

    def step(self, state: OnTestSetState, now: Round) -> OnTestSetState:
        label_weights = self._label_weights(now.network)
        if not self.pooled:
            label_weights = jnp.where(now.number > 1, label_weights, 0)
        state, predicted = self._fit(state, state.received, label_weights, now)
        _, inbox = now.link.exchange(predicted)
        if not self.pooled:
            return state._replace(received=inbox.messages(now.network))
        return state._replace(received=inbox.mean(over=now.network.mixing(NEIGHBORS)))

    def optimum(self, problem: Problem, network: Graph) -> Float[Array, "clients dim"]:
        """Return the solution of (66) for linear models, by conjugate gradients."""
        if self.learners is not None:
            raise ValueError(
                "the optimum is not known for learners; take metrics such as 'validation_error'."
            )
        points = self.points(problem)
        label_weights = self._label_weights(network)[:, None]
        size = points.shape[1]
        ridge = strong_convexity(problem)[:, None]

        def system(w: Array) -> Array:
            from_samples = (
                2 * problem.combination(problem.weights * problem.predictions(w)) + ridge * w
            )
            predicted = jnp.einsum("kmp,kp->km", points, w, precision=HIGHEST)
            disagreement = label_weights * predicted - jnp.asarray(
                self.coupling
            ) * network.neighbor_sum(predicted)
            return from_samples + 2 / size * jnp.einsum(
                "kmp,km->kp", points, disagreement, precision=HIGHEST
            )

        right = 2 * problem.correlation(problem.targets)
        tolerance = float(4 * jnp.finfo(problem.dtype).eps)
        most = min(20 * right.size, 20_000)
        return jax.scipy.sparse.linalg.cg(system, right, tol=tolerance, maxiter=most)[0]

    def learned(self, problem: Problem, network: Graph, labels: object) -> list[Any]:
        """Return the learners fitted to these pseudo-labels, one per node.

        Args:
          problem: the simulation's problem.
          network: the simulation's network.
          labels: ``[K, m']``, or ``[K, S, m']``, from a round in
            ``metrics.trajectory("labels", ("client", "point"))``.
        """
        return self._fitted_learners(problem, labels, self._label_weights(network))
