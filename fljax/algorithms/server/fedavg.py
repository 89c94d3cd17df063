r"""Federated averaging: a few clients per round, local epochs in batches (McMahan et al. 2017)."""

from typing import NamedTuple

import jax
from jaxtyping import Array, PyTree

from fljax._core.module import module, static
from fljax.algorithms.algorithm import ReleasesModel, algorithm, server_start, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import PRIVATELY_AT_ARRIVAL, Averaging
from fljax.graphs.federation import Network
from fljax.optimization.optimizers import Optimizer
from fljax.problems import Problem
from fljax.problems.streams import Stream


class FedAvgState(NamedTuple):
    """State of FedAvg between rounds."""

    model: Array  # [D]  the server's w
    memory: PyTree = ()  # [K, ...] each: of the clients' optimizers, if they keep it


@algorithm(
    "FedAvg",
    "mcmahan2017",
    PRIVATELY_AT_ARRIVAL,
    {
        "Federated averaging": "",
        "FedIT": "on a network of fljax.models.lora",
        "FedSGD": "with one local step on all samples",
        "Local SGD": "with local_steps= and batch=",
        "DP-FedAvg": "under privacy=fljax.privacy.CentralGaussian(...)",
        "DP-FedSGD": "with one local step, under privacy=fljax.privacy.CentralGaussian(...)",
        "DP-FTRL": "under privacy=fljax.privacy.CentralGaussian(strategy=...)",
    },
)
@module
class FedAvg(ReleasesModel, Averaging):
    r"""Local stochastic gradient descent from the server's model, then a weighted average.

    In round :math:`n` the server draws a set :math:`S` of clients uniformly without replacement.
    Each of them starts from :math:`w^{(n-1)}`, splits its samples, reshuffled in every epoch, into
    batches and takes a gradient step on each batch in turn:

    .. math::

        w_k \leftarrow w_k-\mu\Big(\frac1{|b|}\sum_{j\in b}\ell'(x_{k,j},y_{k,j};w_k)
            +\frac\lambda K R'(w_k)\Big),\qquad
        w^{(n)} = \sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}w_k

    The weights :math:`q_k` are the problem's: one each, or :math:`D_k` as in the paper after
    :meth:`problem.weighing("samples") <fljax.problems.Problem.weighing>`. One step on all samples
    (``epochs=1``, no ``batch``) is the paper's FedSGD; :class:`NetworkedFedSGD` is its counterpart
    on a network of peers.

    A client's last batch is smaller if ``batch`` does not divide :math:`D_k`; a client with fewer
    batches than another takes fewer steps. Another law of ``batches`` draws a new batch for each
    of the :math:`E_k` steps. If ``normalized``, the step size is :math:`\mu/E_k`, so that a
    client's update is its mean gradient however many steps it takes (Rizk 2023, (1.30); the fixed
    point of the original depends on the numbers of steps). A drawn client that is not available
    neither receives nor sends; with delays, the average is over the models that arrive in the
    round. With unequal probabilities :math:`p_k` the update is an unbiased estimate of that with
    all clients,

    .. math:: w^{(n)}=w^{(n-1)}+\frac1{|S|}\sum_{k\in S}\frac{q_k}{p_k\sum_lq_l}(w_k-w^{(n-1)})

    where :math:`l` runs over all available clients: if the probabilities are proportional to the
    weights, all participants have equal weights.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0; or an optimizer
        (:func:`fljax.optimizers.from_optax`, or optax's own) instead.
      clients_per_round: :math:`|S|`; all clients by default.
      epochs: passes of a participant over its samples per round, >= 1.
      batch: samples per step; all of a client's by default.
      weighting: ``"samples"`` or ``"equal"``, other weights than the problem's, as in
        :class:`~fljax.algorithms.server.server_algorithm.Averaging`.
      selector: another :class:`~fljax.participation.Selector` instead of ``clients_per_round``:
        clients drawn with unequal probabilities, independently of each other, or in turns.
      batches: another law of the batches (:mod:`fljax.batches`) instead of ``batch``.
      local_steps: :math:`E_k`, gradient steps of a participant, one number or one per client,
        instead of ``epochs``. With shuffled batches (``batch``), the empty batches of a client that
        has fewer batches than another are counted as steps; other laws have no empty batches.
      normalized: whether the step size is divided by the client's number of steps.
      keeps_optimizer: whether each client keeps its optimizer's state from one of its
        participations to the next (``K`` states in memory); otherwise it is reinitialized in
        every round.

    Raises:
      ValueError: as for :class:`~fljax.algorithms.server.server_algorithm.LocalLearning`;
        ``normalized`` with an optimizer, ``keeps_optimizer`` without.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=2)
      >>> algorithm = fl.algorithms.FedAvg(0.05, clients_per_round=3, epochs=2, batch=5)
      >>> run = fl.run(fl.Simulation(problem, algorithm, metrics=["objective"]), rounds=20)
      >>> int(run.bits_up[-1])  # 20 rounds, 3 participants, 2 numbers of 32 bits
      3840
      >>> bool(run.objective[-1] < run.objective[0])
      True

    Reference:
      McMahan et al. 2017, Algorithm 1. See also Rizk 2023, (1.26)-(1.31).
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
            raise ValueError(
                "normalized=True divides by the step size, which an optimizer does not have; leave "
                "out one of them."
            )

    def init(self, problem: Problem | Stream, network: Network) -> FedAvgState:
        memory: PyTree = ()
        if self.keeps_optimizer:
            assert isinstance(self.step_size, Optimizer)
            memory = self.step_size.init(start_models(problem), [problem.layout])
        return FedAvgState(server_start(problem), memory)

    def step(self, state: FedAvgState, now: Round) -> FedAvgState:
        cohort = self.invite(now, state.model)
        server = now.link.publish(state.model, cohort.active)
        step = None
        if self.normalized:
            step = self.size(now.number) / cohort.counts.astype(now.problem.dtype)
        memory = cohort.participants.take(state.memory) if self.keeps_optimizer else None
        start = self.starts(now, server)
        learned = self.learn(now, cohort, start, step=step, memory=memory)
        models = self.as_updates(learned.model, start, server)
        arrived = self.collect(now, cohort, models, server)
        memory = state.memory
        if self.keeps_optimizer:
            memory = jax.tree.map(cohort.participants.put, memory, learned.memory)
        return FedAvgState(arrived.move(server), memory)
