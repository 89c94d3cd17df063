r"""Model-agnostic learning: nodes whose models differ tell each other predictions.

Where parameters cannot be compared, predictions can: on a test set without labels that all know,
:math:`x_1,\dots,x_{m'}`, two models are as far apart as

.. math:: \frac1{m'}\sum_j\big(h_k(x_j)-h_l(x_j)\big)^2

(Jung 2025, (65)). :class:`ModelAgnosticFedRelax` couples neighbors by it and minimizes (66);
:class:`GeneralizedGradient` steps by it from one hypothesis to the next, each node for itself. In
both a step is plain empirical risk minimization on more data, a node's samples and the test set
with pseudo-labels, so that any learner will do: models linear in features of each node's own, all
of them as one array program, or learners on the host with the interface of scikit-learn.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import module, replace, static
from fljax._numerics import HIGHEST
from fljax.algorithms.base import Algorithm, Needs, algorithm, start_models
from fljax.algorithms.networked_iteration import NEIGHBORS
from fljax.graphs import Graph
from fljax.problems import NoRegularizer, Problem
from fljax.problems.learners import as_learners
from fljax.problems.solvers import response, strong_convexity
from fljax.rounds import Round

__all__ = ["GeneralizedGradient", "ModelAgnosticFedRelax", "State"]


class Regression(NamedTuple):
    """How linear models follow from pseudo-labels, constant over a run."""

    base: Array  # [K, D]  by the node's own samples
    gain: Array  # [K, D, m']  by each pseudo-label


class State(NamedTuple):
    """What nodes keep from round to round."""

    model: Array  # [K, D]  w_k; of learners [K, m'], what they predict at the test set
    heard: Array  # [K, m']  the weighted mean of what its neighbors predict there
    labels: Array  # [K, m']  the pseudo-labels that the model was fitted to
    kept: Regression | None  # of linear models
    fitted: Array | None = None  # [K, N]  what learners predict at their own samples
    held_out: Array | None = None  # [K, T]  and at their held-out data


class _OnTestSet(Algorithm):
    """What both algorithms do: fit to samples and to pseudo-labels of the test set."""

    test_set: Any
    learners: Any

    def _validate(self) -> None:
        if self.test_set is not None:
            points = _check.filled("test_set", self.test_set)
            if np.ndim(points) not in (2, 3):
                raise ValueError(
                    "test_set must be points of shape [points, features], or of each client, "
                    f"[clients, points, features], got shape {np.shape(points)}."
                )
            _check.finite("test_set", points)
            object.__setattr__(self, "test_set", points)
        if self.learners is not None:
            object.__setattr__(self, "learners", as_learners(self.learners))
            if self.test_set is None:
                raise ValueError(
                    "learners are compared by what they predict; give a test_set, "
                    "[points, features]."
                )

    def check(self, problem: Problem, network: Any) -> None:
        if problem.loss.outputs > 1:
            raise ValueError(f"{self.label} is for models with one prediction a sample.")
        shape = np.shape(self.test_set)
        width = problem.dim
        if self.test_set is not None and (
            shape[-1] != width or (len(shape) == 3 and shape[0] != problem.clients)
        ):
            raise ValueError(
                f"test_set must have shape [points, {width}], or [{problem.clients}, points, "
                f"{width}] with one of each client, got {shape}; of a problem with a feature map "
                "it is of the map's values."
            )
        if self.learners is not None and problem.initial is not None:
            raise ValueError(
                "learners have no parameters to start at, and begin by predicting zero; leave out "
                "starting_at(), or learners=."
            )
        if self.learners is not None and not isinstance(problem.regularizer, NoRegularizer):
            raise ValueError(
                "learners have penalties of their own, and know nothing of the problem's "
                f"{type(problem.regularizer).__name__}; leave it out."
            )
        if self.learners is not None and len(self.learners) not in (1, problem.clients):
            raise ValueError(
                f"learners must be one for all or one of each of the {problem.clients} clients, "
                f"got {len(self.learners)}."
            )

    def points(self, problem: Problem) -> Float[Array, "clients points features"]:
        """The test set of each client."""
        if self.test_set is None:
            found = problem.dim**0.5 * jnp.eye(problem.dim, dtype=problem.dtype)
        else:
            found = jnp.asarray(self.test_set, problem.dtype)
        return jnp.broadcast_to(found, (problem.clients, *found.shape[-2:]))

    def _regression(self, problem: Problem, pull: Array) -> Regression:
        points = self.points(problem)
        size = points.shape[1]
        shares = jnp.broadcast_to(pull[:, None] / size, points.shape[:2])
        whole = replace(
            problem,
            features=jnp.concatenate([problem.design, points], axis=1),
            targets=jnp.concatenate([problem.targets, jnp.zeros_like(shares)], axis=1),
            weights=jnp.concatenate([problem.weights, shares], axis=1),
            feature_map=None,
            statistics=None,
        )
        each = response(whole)
        own = each[:, :, : problem.samples]
        base = jnp.einsum("kpn,kn->kp", own, problem.targets, precision=HIGHEST)
        return Regression(base, each[:, :, problem.samples :])

    def _begun(self, problem: Problem, pull: Array) -> State:
        """Nodes that predict as the start does, zero where it is zero."""
        model, points = start_models(problem), self.points(problem)
        if self.learners is not None:
            nothing = jnp.zeros(points.shape[:2], problem.dtype)
            held = problem.test
            rows = (problem.clients, held.features.shape[1]) if held is not None else None
            return State(
                nothing,
                nothing,
                nothing,
                None,
                jnp.zeros((problem.clients, problem.samples), problem.dtype),
                None if rows is None else jnp.zeros(rows, problem.dtype),
            )
        said = jnp.einsum("kmp,kp->km", points, model, precision=HIGHEST)
        return State(model, said, said, self._regression(problem, pull))

    def _fit(self, state: State, labels: Array, pull: Array, now: Round) -> tuple[State, Array]:
        """The state with models fitted to these pseudo-labels, and what they predict there."""
        points = self.points(now.problem)
        if self.learners is not None:
            said, fitted, held = self.learners.predictions(
                now.problem, points, labels, pull, now.available
            )
            return State(said, state.heard, labels, None, fitted, held), said
        assert state.kept is not None
        model = state.kept.base + jnp.einsum(
            "kpm,km->kp", state.kept.gain, labels, precision=HIGHEST
        )
        said = jnp.einsum("kmp,kp->km", points, model, precision=HIGHEST)
        return state._replace(model=model, labels=labels), said

    def _learned(self, problem: Problem, labels: Any, pull: Array) -> list[Any]:
        if self.learners is None:
            raise ValueError(f"this {type(self).__name__} has linear models, and no learners.")
        labels = _check.array("labels", labels)
        wanted = (problem.clients, np.shape(self.test_set)[-2])
        if np.shape(labels) != wanted:
            raise ValueError(f"labels must have shape {wanted}, got {np.shape(labels)}.")
        return self.learners.fitted(problem.mapped(), self.points(problem), labels, pull)


@algorithm(
    "Model-agnostic FedRelax",
    "jung2025",
    Needs(absent=True, late=True, averages=True, minimizer=True, quadratic=True),
)
@module
class ModelAgnosticFedRelax(_OnTestSet):
    r"""Every node takes the best hypothesis for its data and its neighbors' predictions.

    .. math::

        h_k\leftarrow\arg\min_hf_k(h)+\alpha\sum_{l\in\mathcal N_k}a_{kl}
            \frac1{m'}\sum_{j=1}^{m'}\big(h(x_j)-h_l(x_j)\big)^2

    Of the squared error this is empirical risk minimization with the weights :math:`1/D_k` of a
    node's samples and :math:`\alpha d_k/m'` of the test set's points, whose pseudo-labels are the
    weighted mean of the neighbors' predictions: all that is ever sent is :math:`m'` predictions.

    Linear models, :math:`h_k(x)=w_k^\top\varphi_k(x)`, are solved for all nodes at once, with what
    does not change computed once; of several that are as good the least in norm. Features of a
    node's own go into the problem, and into a test set of each node's, as columns that others have
    zeros in. Where rounds end they minimize

    .. math:: \sum_kf_k(w_k)+\frac\alpha{m'}\sum_{\{k,l\}}a_{kl}\|\Psi_kw_k-\Psi_lw_l\|^2

    with :math:`\Psi_k` the test set in node :math:`k`'s features. Learners are fitted on the host,
    by one process for all seeds one after the other; ``model`` is what they predict at the test
    set, and ``learned`` fits those of a round again.

    Args:
      coupling: :math:`\alpha\ge0`.
      test_set: ``[m', D]``, or ``[K, m', D]`` in features of each node's own; by default the
        :math:`D` points :math:`\sqrt De_j`, on which models are as far apart as their parameters,
        and this is :class:`FedRelax`.
      learners: in place of linear models: one for all or one of each node, with
        ``fit(features, targets, sample_weight=)`` and ``predict(features)``, such as
        scikit-learn's. A random one needs its ``random_state`` for runs that repeat.

    Raises:
      TypeError: a learner without such methods, or whose ``fit`` takes no ``sample_weight``.
      ValueError: a test set or a number of learners that does not fit; an objective that is not
        quadratic; learners without a test set, or with models to start at.

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
      Jung 2025, Algorithm 12, (124), lines 1980-2004, with (64)-(66), lines 912-930.
    """

    coupling: Float[Array, ""] | float
    test_set: Any = None
    learners: Any = static(default=None)

    #: What was said meanwhile waits for who is absent.
    waiting: ClassVar[tuple[str, ...]] = ("heard",)
    hears_itself: ClassVar[bool] = False
    combinations: ClassVar[Any] = (NEIGHBORS,)

    def validate(self) -> None:
        _check.nonnegative("coupling", self.coupling)
        self._validate()

    def message_size(self, dim: int) -> int:
        return dim if self.test_set is None else np.shape(self.test_set)[-2]

    def _pull(self, network: Graph) -> Float[Array, " clients"]:
        return jnp.asarray(self.coupling) * network.degree

    def init(self, problem: Problem, network: Graph) -> State:
        state = self._begun(problem, self._pull(network))
        return state._replace(heard=network.mixing(NEIGHBORS)(state.heard))

    def step(self, state: State, now: Round) -> State:
        state, said = self._fit(state, state.heard, self._pull(now.network), now)
        _, inbox = now.link.exchange(said)
        return state._replace(heard=inbox.mean(over=now.network.mixing(NEIGHBORS)))

    def optimum(self, problem: Problem, network: Graph) -> Float[Array, "clients dim"]:
        """The solution of (66), of linear models, by conjugate gradients."""
        if self.learners is not None:
            raise ValueError(
                "of learners no optimum is known; take metrics such as 'validation_error'."
            )
        points = self.points(problem)
        pull, size = self._pull(network)[:, None], points.shape[1]
        ridge = strong_convexity(problem)[:, None]

        def system(w: Array) -> Array:
            own = 2 * problem.combination(problem.weights * problem.predictions(w)) + ridge * w
            said = jnp.einsum("kmp,kp->km", points, w, precision=HIGHEST)
            apart = pull * said - jnp.asarray(self.coupling) * network.neighbor_sum(said)
            return own + 2 / size * jnp.einsum("kmp,km->kp", points, apart, precision=HIGHEST)

        right = 2 * problem.correlation(problem.targets)
        tolerance = float(4 * jnp.finfo(problem.dtype).eps)
        most = min(20 * right.size, 20_000)
        return jax.scipy.sparse.linalg.cg(system, right, tol=tolerance, maxiter=most)[0]

    def learned(self, problem: Problem, network: Graph, labels: Any) -> list[Any]:
        """The learners fitted to these pseudo-labels, one of each node.

        Args:
          problem: of the simulation.
          network: likewise.
          labels: ``[K, m']``, a round's of ``metrics.trajectory("labels", ("client", "point"))``.
        """
        return self._learned(problem, labels, self._pull(network))


@algorithm(
    "Generalized gradient",
    "jung2025",
    Needs(None, absent=True, late=True, averages=True, minimizer=True, quadratic=True, uploads=()),
)
@module
class GeneralizedGradient(_OnTestSet):
    r"""Gradient descent without parameters: each client's next hypothesis is near its last one.

    .. math::

        h_k\leftarrow\arg\min_hf_k(h)+\frac1{2\eta m'}\sum_{j=1}^{m'}
            \big(h(x_j)-h_k^{\mathrm{last}}(x_j)\big)^2

    from :math:`h=0`, each client for itself; nothing is sent. With linear models and the default
    test set a step is the proximal step :math:`\arg\min_wf_k(w)+\tfrac1{2\eta}\|w-w_k\|^2`, and
    steps lead to the minimizer of :math:`f_k`.

    Args:
      step_size: :math:`\eta>0`.
      test_set: as of :class:`ModelAgnosticFedRelax`.
      learners: likewise.

    Raises:
      TypeError, ValueError: as :class:`ModelAgnosticFedRelax`.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=3, samples=9, dim=2)
      >>> simulation = fl.Simulation(
      ...     problem, fl.algorithms.GeneralizedGradient(5.0), metrics="train_error"
      ... )
      >>> run = fl.run(simulation, rounds=60)
      >>> bool(jnp.allclose(run.model.values, fl.problems.train(problem), atol=1e-3))
      True

    Reference:
      Jung 2025, Algorithm 3, (96), lines 1338-1384.
    """

    step_size: Float[Array, ""] | float
    test_set: Any = None
    learners: Any = static(default=None)

    def validate(self) -> None:
        _check.positive("step_size", self.step_size)
        self._validate()

    def message_size(self, dim: int) -> int:
        return 0

    def _pull(self, problem: Problem) -> Float[Array, " clients"]:
        each = 1 / (2 * jnp.asarray(self.step_size, problem.dtype))
        return jnp.broadcast_to(each, (problem.clients,))

    def init(self, problem: Problem, network: Any) -> State:
        return self._begun(problem, self._pull(problem))

    def step(self, state: State, now: Round) -> State:
        new, said = self._fit(state, state.heard, self._pull(now.problem), now)
        new = new._replace(heard=said)

        def rested(new: Array, old: Array) -> Array:
            return jnp.where(now.available.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

        return jax.tree.map(rested, new, state)

    def learned(self, problem: Problem, labels: Any) -> list[Any]:
        """The learners fitted to these pseudo-labels, one of each client, as of
        :meth:`ModelAgnosticFedRelax.learned`.
        """
        return self._learned(problem, labels, self._pull(problem))
