r"""Decentralized strategies: consensus, CTA and ATC diffusion, and their general form.

They differ in when neighbors' models are combined: before, during or after the gradient step.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from fljax._core.module import field, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.local_steps import gradient_in_training
from fljax.algorithms.peers.peer_algorithm import Weights, as_weights, check_weights, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems.streams import Stream


class DiffusionState(NamedTuple):
    """State of a decentralized strategy between rounds."""

    model: Array  # [K, D]  w_k
    weights: tuple[Combination | None, ...]  # of the first graph: before, beside, after


@module
class _Strategy(Descending):
    """One gradient step of each peer between combinations of neighbors' models; the weights before,
    during and after the step are its :attr:`combinations`.
    """

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        for rule in self.combinations:
            if rule is not None:
                check_weights(rule, network)

    def init(self, problem: Problem | Stream, network: Graph) -> DiffusionState:
        weights = tuple(_weights_on(rule, network) for rule in self.combinations)
        return DiffusionState(start_models(problem), weights)

    def step(self, state: DiffusionState, now: Round) -> DiffusionState:
        weights = state.weights
        if now.changing:
            weights = tuple(_weights_on(rule, now.network) for rule in self.combinations)
        before, during, after = weights

        def combined(models: Array, weights: Combination | None) -> Array:
            return models if weights is None else now.link.exchange(models)[1].mean(weights)

        point = combined(state.model, before)
        part = self._step_problem(now)
        now.witness_at(point, part)
        gradient = gradient_in_training(now, part, point)
        model = combined(point, during) - self.step_size(now.number) * gradient
        model = combined(model, after)
        return DiffusionState(jnp.where(now.available[:, None], model, state.model), state.weights)


def _weights_on(rule: Weights | None, network: Graph) -> Combination | None:
    return None if rule is None else weights_on(rule, network)


class _Private(_Strategy):
    """Base class of strategies whose message is a function of earlier messages and one gradient."""

    def released(self, state: DiffusionState, problem: Problem | Stream, network: Graph) -> Array:
        """Return the clients' combinations of the messages."""
        return state.model

    def sensitivity(
        self, problem: Problem, network: Graph, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        r"""Return the gradient's sensitivity times :math:`\mu^{(n)}`."""
        if self.batches is not None:
            raise ValueError(
                "the privacy loss of messages is accounted for only if steps use all samples; "
                "leave out batches= or privacy=."
            )
        return gap.gradient * self.step_size(round)


@algorithm(
    "Consensus",
    ("nedic2009", "lian2017", "rizk2023"),
    Needs(
        data="any", trains=True, absent=True, late=True, averages=True, changing=True, directed=True
    ),
    {
        "Decentralized gradient descent": "",
        "Distributed subgradient method": "",
        "Decentralized SGD": "with batches=",
        "DGD": "",
        "D-PSGD": "with batches=",
        "DSGD": "with batches=",
    },
)
@module
class Consensus(_Strategy):
    r"""Consensus: a combination of neighbors' models plus a gradient step at the own model.

    .. math:: w_k^{(n)}=\sum_{l\in\mathcal N_k}a_{lk}w_l^{(n-1)}-\mu f_k'(w_k^{(n-1)})

    Optimization knows it as decentralized gradient descent (DGD; Nedić & Ozdaglar 2009; Yuan, Ling
    & Yin 2016), ``fl.algorithms.DGD``, with doubly stochastic weights; with ``batches`` it is
    D-PSGD (Lian et al. 2017), whose stochastic gradients are at the models before the combination.
    With a constant step size it converges to a neighborhood of the minimizer whose size is
    proportional to the step size; :class:`EXTRA` and related methods converge to the minimizer
    itself.

    It requires smaller step sizes for stability than diffusion. Under a privacy budget it would
    carry over an unperturbed model that was never sent: :class:`ZCDPGradNFL` is the strategy whose
    gradient is evaluated at the perturbed model.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      mixing: the weights :math:`a_{lk}`: a rule by name, a :class:`~fljax.graphs.Mixing`, or a
        :class:`~fljax.graphs.Combination` of any stochastic matrix.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: an unknown rule; weights that do not fit the graph.

    Example:
      >>> import fljax as fl
      >>> fl.algorithms.DGD is fl.algorithms.Consensus
      True
      >>> d_psgd = fl.algorithms.Consensus(0.1, batches=fl.batches.Uniform(1))

    Reference:
      Nedić & Ozdaglar 2009, (3); Lian et al. 2017, Algorithm 1 (D-PSGD); Rizk 2023, (1.32)-(1.33).
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return None, self.mixing, None


#: The name of :class:`Consensus` in optimization, decentralized gradient descent.
DGD = Consensus


@algorithm(
    "CTA",
    ("lopes2008", "chen2012", "rizk2023"),
    Needs(
        data="any", trains=True, absent=True, late=True, averages=True, changing=True, directed=True
    ),
    {"Combine-then-adapt": "", "CTA diffusion LMS": "on a stream"},
)
@module
class CTA(_Strategy):
    r"""Combine, then adapt: a gradient step from the combination of the neighbors' models.

    .. math::

        \psi_k=\sum_{l\in\mathcal N_k}a_{lk}w_l^{(n-1)},\qquad
        w_k^{(n)}=\psi_k-\mu f_k'(\psi_k)

    Args and Raises: as for :class:`Consensus`.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> simulation = fl.Simulation(problem, fl.algorithms.CTA(0.05), fl.graphs.ring(6))
      >>> int(fl.run(simulation, rounds=10).bits_up[-1])  # 10 rounds, 12 directed edges, 2 numbers
      7680

    Reference:
      Lopes & Sayed 2008, for least mean squares; Chen & Sayed 2012, for other objectives; Rizk
      2023, (1.34)-(1.35).
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return self.mixing, None, None


@algorithm(
    "ATC",
    ("cattivelli2010", "chen2012", "rizk2023"),
    Needs(
        data="any",
        trains=True,
        privacy=("message",),
        absent=True,
        late=True,
        averages=True,
        changing=True,
        directed=True,
    ),
    {
        "Adapt-then-combine": "",
        "ATC diffusion LMS": "on a stream",
        "EL-Oracle": "on fl.graphs.DrawnGraphs of random regular graphs",
        "MATCHA": "on fl.graphs.matcha(graph, budget)",
    },
)
@module
class ATC(_Private):
    r"""Adapt, then combine: a gradient step of each peer, then a combination of neighbors' results.

    .. math::

        \psi_k=w_k^{(n-1)}-\mu f_k'(w_k^{(n-1)}),\qquad
        w_k^{(n)}=\sum_{l\in\mathcal N_k}a_{lk}\psi_l

    Under a privacy budget a client combines the perturbed form of its own message, so that its next
    message is a function of earlier messages and one gradient.

    Args and Raises: as for :class:`Consensus`.

    Example:
      Combined after the step, the models are nearer to the minimizer than combined before it:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> def error(algorithm):
      ...     simulation = fl.Simulation(
      ...         problem, algorithm, network=fl.graphs.ring(6), metrics=["normalized_error"]
      ...     )
      ...     return fl.run(simulation, rounds=300).normalized_error[-1]
      >>> bool(error(fl.algorithms.ATC(0.1)) < error(fl.algorithms.CTA(0.1)))
      True

    Reference:
      Cattivelli & Sayed 2010, for least mean squares; Chen & Sayed 2012, for other objectives; Rizk
      2023, (1.36)-(1.37).
    """

    mixing: Weights = field(converter=partial(as_weights, "mixing"), default="metropolis")

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return None, None, self.mixing


@algorithm(
    "Diffusion, general",
    ("tu2012", "rizk2023"),
    Needs(data="any", trains=True, averages=True, changing=True, directed=True),
)
@module
class Diffusion(_Strategy):
    r"""General diffusion, with combinations before, beside and after the gradient step.

    .. math::

        \phi_k=\sum_la_{1,lk}w_l^{(n-1)},\qquad
        \psi_k=\sum_la_{0,lk}\phi_l-\mu f_k'(\phi_k),\qquad
        w_k^{(n)}=\sum_la_{2,lk}\psi_l

    With weights ``None`` nothing is exchanged. For small steps it converges to the minimizer of
    :math:`\sum_kp_kf_k` with :math:`p=A_2q`, :math:`q` the Perron vector of :math:`A_1A_0A_2`; in
    each of the three strategies :math:`p` is that of :math:`A`. (The source has :math:`q` instead
    of :math:`p`, (4.91), which is the same if all matrices are doubly stochastic.)

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      before: :math:`A_1`; weights as in :class:`Consensus`, or ``None``.
      beside: :math:`A_0`, in the same form.
      after: :math:`A_2`, in the same form.
      batches: as in :class:`Consensus`.

    Raises:
      ValueError: no weights at all, an unknown rule; weights that do not fit the graph.

    Example:
      With weights after the step only it is :class:`ATC`:

      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> def models(algorithm):
      ...     simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(6))
      ...     return fl.run(simulation, rounds=10)["model"]
      >>> general = fl.algorithms.Diffusion(0.1, after=fl.graphs.Mixing("metropolis"))
      >>> bool(abs(models(general) - models(fl.algorithms.ATC(0.1))).max() < 1e-6)
      True

    Reference:
      Tu & Sayed 2012, for least mean squares; Rizk 2023, (1.38)-(1.40), and (4.21)-(4.23).
    """

    before: Weights | None = field(converter=partial(as_weights, "before"), default=None)
    beside: Weights | None = field(converter=partial(as_weights, "beside"), default=None)
    after: Weights | None = field(converter=partial(as_weights, "after"), default=None)

    def validate(self) -> None:
        if all(rule is None for rule in self.combinations):
            raise ValueError(
                "no peer would receive anything: give weights before, beside or after the step."
            )

    @property
    def combinations(self) -> tuple[Weights | None, ...]:
        return self.before, self.beside, self.after
