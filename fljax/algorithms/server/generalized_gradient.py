"""Generalized gradient steps from one hypothesis to the next (Jung 2025)."""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import as_given, field, module
from fljax.algorithms.algorithm import Needs, algorithm
from fljax.algorithms.predictions import OnTestSet, OnTestSetState
from fljax.algorithms.round import Round
from fljax.graphs.federation import Network
from fljax.problems import Problem
from fljax.problems.learners import Learners, as_learners


@algorithm(
    "Generalized gradient",
    "jung2025",
    Needs(None, absent=True, late=True, averages=True, minimizer=True, quadratic=True, uploads=()),
)
@module
class GeneralizedGradient(OnTestSet):
    r"""Gradient descent for hypotheses without parameters: each is regularized toward the last one.

    .. math::

        h_k\leftarrow\arg\min_hf_k(h)+\frac1{2\eta m'}\sum_{j=1}^{m'}
            \big(h(x_j)-h_k^{\mathrm{last}}(x_j)\big)^2

    starting from :math:`h=0`, each client independently; nothing is sent. With linear models and
    the default test set a step is the proximal step
    :math:`\arg\min_wf_k(w)+\tfrac1{2\eta}\|w-w_k\|^2`, and the iteration converges to the minimizer
    of :math:`f_k`.

    Args:
      step_size: :math:`\eta>0`.
      test_set: as in :class:`ModelAgnosticFedRelax`.
      learners: as in :class:`ModelAgnosticFedRelax`.

    Raises:
      TypeError, ValueError: as for :class:`ModelAgnosticFedRelax`.

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
      Jung 2025, Algorithm 3, (96).
    """

    step_size: Float[Array, ""] | float
    test_set: Annotated[Array, "points features"] | None = field(converter=as_given, default=None)
    learners: Learners | None = field(converter=as_learners, static=True, default=None)

    def validate(self) -> None:
        checks.positive("step_size", self.step_size)
        self._validate()

    def message_size(self, dim: int) -> int:
        return 0

    def _label_weights(self, problem: Problem) -> Float[Array, " clients"]:
        weight = 1 / (2 * jnp.asarray(self.step_size, problem.dtype))
        return jnp.broadcast_to(weight, (problem.clients,))

    def init(self, problem: Problem, network: Network) -> OnTestSetState:
        return self._initial_state(problem, self._label_weights(problem))

    def step(self, state: OnTestSetState, now: Round) -> OnTestSetState:
        new, predicted = self._fit(state, state.received, self._label_weights(now.problem), now)
        new = new._replace(received=predicted)

        def rested(new: Array, old: Array) -> Array:
            return jnp.where(now.available.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

        return jax.tree.map(rested, new, state)

    def learned(self, problem: Problem, labels: object) -> list[Any]:
        """Return the learners fitted to these pseudo-labels, one per client, as in
        :meth:`ModelAgnosticFedRelax.learned`.
        """
        return self._fitted_learners(problem, labels, self._label_weights(problem))
