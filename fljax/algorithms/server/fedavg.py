r"""Federated averaging: a few clients a round, local epochs in batches (McMahan et al. 2017)."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array

from fljax._module import module, static
from fljax.algorithms.base import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.server.base import AVERAGED_PRIVATELY, Averaging
from fljax.optimizers import Optimizer
from fljax.problems import Problem
from fljax.rounds import Round
from fljax.streams import Stream

__all__ = ["FedAvg", "State"]


class State(NamedTuple):
    """What FedAvg keeps from round to round."""

    model: Array  # [D]  the server's w
    memory: Any = ()  # [K, ...] each: of the clients' optimizers, if they keep it


@algorithm(
    "FedAvg",
    "mcmahan2017",
    AVERAGED_PRIVATELY,
)
@module
class FedAvg(ReleasesModel, Averaging):
    r"""Local stochastic gradient descent from the server's model, then a weighted average.

    In round :math:`n` the server draws a set :math:`S` of clients uniformly without replacement.
    Each of them starts from :math:`w^{(n-1)}`, cuts its samples, newly shuffled in every epoch,
    into batches and descends along the mean gradient of one after the other:

    .. math::

        w_k \leftarrow w_k-\mu\Big(\frac1{|b|}\sum_{j\in b}\ell'(x_{k,j},y_{k,j};w_k)
            +\frac\lambda K R'(w_k)\Big),\qquad
        w^{(n)} = \sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}w_k

    The weights :math:`q_k` are the problem's: one each, or :math:`D_k` as in the paper after
    :meth:`problem.weighing("samples") <fljax.problems.Problem.weighing>`. One step on all samples
    (``epochs=1``, no ``batch``) is the paper's FedSGD; :class:`NetworkedFedSGD` is that of peers.

    A client's last batch is the smaller one where ``batch`` does not divide :math:`D_k`; a client
    with fewer batches than another is done earlier. Another law of ``batches`` draws each of
    :math:`E_k` steps' anew; ``normalized``, a step is :math:`\mu/E_k` long, and a client's update
    its mean gradient however many steps it took (Rizk 2023, (1.30), where the original's optimum
    depends on who takes how many). A drawn client that is not available neither
    receives nor sends; with delays, the average is over the models that arrive in the round. Under
    unequal probabilities :math:`p_k` it is on average what it is with all clients,

    .. math:: w^{(n)}=w^{(n-1)}+\frac1{|S|}\sum_{k\in S}\frac{q_k}{p_k\sum_lq_l}(w_k-w^{(n-1)})

    the sum over all that are available: where the probabilities are the shares of the weights, all
    participants count alike.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0; or an optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own) in its place.
      clients_per_round: :math:`|S|`; all clients by default.
      epochs: passes of a participant over its samples a round, >= 1.
      batch: samples a step; all of a client's by default.
      weighting: ``"samples"`` or ``"equal"``, other weights than the problem's, as of
        :class:`~fljax.algorithms.server.base.Averaging`.
      selector: another :class:`~fljax.participation.Selector` in the place of
        ``clients_per_round``: clients drawn with unequal probabilities, each by chance, in turns.
      batches: another law of the batches (:mod:`fljax.batches`) in the place of ``batch``.
      local_steps: :math:`E_k`, gradient steps of a participant, one number or one of each client,
        in the place of ``epochs``. Of shuffled batches (``batch``) those of nothing, where a client
        waits for one with more of them, count; other laws have none.
      normalized: whether steps are divided by a client's number of them.
      keeps_optimizer: whether each client keeps what its optimizer remembers from one round that
        it takes part in to the next, ``K`` memories in all; else it begins anew in every round.

    Raises:
      ValueError: as of :class:`~fljax.algorithms.server.base.LocalLearning`; ``normalized`` with
        an optimizer, ``keeps_optimizer`` without.

    Reference:
      McMahan et al. 2017, Algorithm 1; Rizk 2023, (1.26)-(1.31).
    """

    normalized: bool = static(default=False)
    keeps_optimizer: bool = static(default=False)

    def validate(self) -> None:
        super().validate()
        if self.keeps_optimizer and not isinstance(self.step_size, Optimizer):
            raise ValueError(
                "keeps_optimizer is for an optimizer, and step_size is a number or a schedule; "
                "give step_size=fljax.optimizers.from_optax(...), or leave it out."
            )
        if self.normalized and isinstance(self.step_size, Optimizer):
            raise ValueError("normalized divides a step size, which an optimizer has not.")

    def init(self, problem: Problem | Stream, network: Any) -> State:
        memory: Any = ()
        if self.keeps_optimizer:
            assert isinstance(self.step_size, Optimizer)
            memory = self.step_size.init(start_models(problem))
        return State(server_start(problem), memory)

    def step(self, state: State, now: Round) -> State:
        cohort = self.invite(now)
        server = now.link.publish(state.model, cohort.here)
        step = None
        if self.normalized:
            step = self.size(now.number) / cohort.counts.astype(now.problem.dtype)
        memory = cohort.who.take(state.memory) if self.keeps_optimizer else None
        learned = self.learn(now, cohort, server, step=step, memory=memory)
        arrived = self.collect(now, cohort, learned.model, server)
        memory = state.memory
        if self.keeps_optimizer:
            memory = jax.tree.map(cohort.who.put, memory, learned.memory)
        return State(arrived.move(server), memory)
