r"""Federated learning networks: fixed-point iterations on own models and neighbors' means.

Generalized total variation minimization (GTVMin) gives every node :math:`k` a model of its own and
couples the models of neighbors,

.. math:: \min_{w_1,\dots,w_K}\ \sum_kf_k(w_k)+\alpha\sum_{\{k,l\}\in\mathcal E}a_{kl}\|w_k-w_l\|^2,

and its distributed algorithms are fixed-point iterations
:math:`w_k\leftarrow\mathcal F_k(w_1,\dots,w_K)` (Jung 2025, (125)-(127)) that depend on other nodes
only through the weighted mean of neighbors. They differ in the operator: a gradient step
(:class:`FedGD`), a step along a gradient estimate (:class:`NetworkedFedSGD`), the exact minimizer
given the neighbors (:class:`FedRelax`).

The operators do not depend on time. A node that is unavailable, receives stale copies or loses a
message (``Simulation(participation=..., delays=..., losses=...)``) applies the same operator to its
current information, which is the asynchronous form (128)-(130): its own model is current, its
neighbors' models are the latest that it received.
"""

from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import replace
from fljax.algorithms.algorithm import Algorithm, Needs, start_models
from fljax.algorithms.round import Round
from fljax.graphs import Graph, Mixing
from fljax.problems import GTVMin, Problem
from fljax.problems.streams import Stream

#: The mean of neighbors' messages, weighted by edges.
NEIGHBORS = Mixing("neighbors")


class NetworkState(NamedTuple):
    """State of the nodes between rounds."""

    model: Array  # [K, D]  w_k
    received: PyTree  # [K, D]  the weighted mean of its neighbors' messages, as it reached k
    degree: Array  # [K]  the weights of the edges that these came over, summed
    kept: PyTree  # constants that the operator computes from the data


class NetworkedIteration(Algorithm):
    r"""Unified form: every node applies an operator to its model and its neighbors' mean.

    .. math::

        w_k^{(n)}=\mathcal F_k\big(w_k^{(n-1)},h_k^{(n-1)}\big),\qquad
        h_k^{(n)}=\frac1{d_k}\sum_{l\in\mathcal N_k}a_{kl}w_l^{(n)},\quad d_k=\sum_la_{kl}

    A round updates, then shares; the initial models are known to all. Unavailable nodes keep their
    models, and messages that neighbors send meanwhile are stored for them. For a node without
    neighbors the neighbors' mean is its own model. For a method of your own define
    :meth:`operator`, and :meth:`prepared` for quantities computed once; it then supports delayed,
    lost, compressed, falsified and robustly combined messages like the methods here.

    Example:
      A gradient step from the neighbors' mean:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class Averaging(fl.algorithms.NetworkedIteration):
      ...     step_size: float
      ...
      ...     def operator(self, state, now):
      ...         return state.received - self.step_size * now.problem.gradient(state.received)
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2),
      ...     network=fl.graphs.complete(6),
      ...     algorithm=Averaging(0.05),
      ...     participation=fl.participation.Bernoulli(0.8),
      ...     delays=fl.link.Geometric(0.3, 2),
      ...     metrics=["consensus_error"],
      ... )
      >>> bool(fl.run(simulation, rounds=50).consensus_error[-1] < 0.1)
      True

    Reference:
      Jung 2025, (125)-(129).
    """

    needs = Needs(data="any", absent=True, late=True, averages=True, changing=True)
    waiting: ClassVar[tuple[str, ...]] = ("received", "degree")
    hears_itself: ClassVar[bool] = False
    combinations: ClassVar[Any] = (NEIGHBORS,)

    @checks.required
    def operator(self, state: NetworkState, now: Round) -> Float[Array, "clients dim"]:
        """Return the new models of all nodes."""
        raise NotImplementedError

    def prepared(self, problem: Problem | Stream, network: Graph) -> Any:
        """Return constants of the state, computed from the data and the first network."""
        return None

    def init(self, problem: Problem | Stream, network: Graph) -> NetworkState:
        start = start_models(problem)
        received = network.mixing(NEIGHBORS)(start)
        return NetworkState(start, received, network.degree, self.prepared(problem, network))

    def step(self, state: NetworkState, now: Round) -> NetworkState:
        model = self.operator(state, now)
        _, inbox = now.link.exchange(model)
        received = inbox.mean(over=now.network.mixing(NEIGHBORS))
        return NetworkState(model, received, now.network.degree, state.kept)


class Coupled(NetworkedIteration):
    """Base class of methods for generalized total variation minimization (squared differences)."""

    coupling: Array

    def validate(self) -> None:
        checks.nonnegative("coupling", checks.filled("coupling", self.coupling))
        if np.ndim(self.coupling) > 1:
            raise ValueError(
                "coupling must be one number, or one for each parameter, got "
                f"{checks.shown(self.coupling)}."
            )

    def check(self, problem: Problem, network: Graph) -> None:
        if np.shape(self.coupling) not in ((), (problem.dim,)):
            raise ValueError(
                f"coupling must be one number, or one for each of the {problem.dim} parameters of "
                f"a model, got shape {np.shape(self.coupling)}."
            )

    def optimum(self, problem: Problem, network: Graph) -> Float[Array, "clients dim"]:
        """Return the solution of GTVMin, one model per node."""
        problem = replace(problem, clip=None)
        return GTVMin(problem, network, jnp.asarray(self.coupling, problem.dtype)).solve()

    def _coupling_weights(self, degree: Float[Array, " clients"]) -> Float[Array, "clients parts"]:
        r"""Return :math:`2\alpha d_k`, for each parameter if their couplings differ."""
        coupling = jnp.atleast_1d(jnp.asarray(self.coupling, degree.dtype))
        return 2 * degree[:, None] * coupling[None]
