r"""Gossip of compressed differences from copies known to all neighbors (Choco-SGD)."""

from typing import NamedTuple

from jaxtyping import Array

from fljax._core.module import module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.peers.peer_algorithm import Compressing, weights_on
from fljax.algorithms.round import Round
from fljax.graphs import Combination, Graph
from fljax.problems import Problem
from fljax.problems.streams import Stream


class ChocoSGDState(NamedTuple):
    """State of Choco-SGD between rounds."""

    model: Array  # [K, D]  w_k
    public: Array  # [K, D]  v_k, the neighbors' copy of client k's model
    mixed: Array  # [K, D]  sum_l a_kl v_l
    mixing: Combination  # the symmetric weights


@algorithm("Choco-SGD", "koloskova2019", Needs(data="any", trains=True, compressed=False))
@module
class ChocoSGD(Compressing):
    r"""Decentralized SGD with compressed differences from public copies of the models (Choco-SGD).

    .. math::

        \hat w_k&=w_k^{(n-1)}-\mu^{(n)}f_k'(w_k^{(n-1)}) \\
        v_k&\leftarrow v_k+Q(\hat w_k-v_k)\qquad Q(\cdot)\text{ sent to all neighbors} \\
        w_k^{(n)}&=\hat w_k+\gamma\sum_{l\in\mathcal N_k}a_{kl}(v_l-v_k)

    Neighbors' copies need not be stored individually: client :math:`k` stores
    :math:`\sum_la_{kl}v_l`. Without compression and with :math:`\gamma=1` it is
    :class:`~fljax.algorithms.ATC`. The mean of all models changes by gradients only, and the models
    reach consensus if :math:`Q` is a contraction, :math:`E\|Q(v)-v\|^2\le(1-\delta)\|v\|^2` (top-k,
    scaled signs, quantization to enough bits), for sufficiently small :math:`\gamma`. Copies start
    at the initial models, which all know. A lost message leaves a permanent error in the sums.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      compression: :math:`Q`, an :class:`fljax.link.Compressor`.
      consensus_step_size: :math:`\gamma`, in (0, 1].
      mixing: the weights :math:`a_{kl}`, as in :class:`Consensus`, symmetric.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      TypeError: a compression of another type.
      ValueError: a step size outside its range, a compression that does not fit the models, weights
        that are not symmetric or do not fit the graph, batches that cannot be drawn.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=10, dim=8),
      ...     network=fl.graphs.ring(6),
      ...     algorithm=fl.algorithms.ChocoSGD(
      ...         0.01, compression=fl.link.TopK(2), consensus_step_size=0.3
      ...     ),
      ... )
      >>> int(fl.run(simulation, rounds=5).bits_up[-1])  # 12 messages of 2 numbers and places
      4200

    Reference:
      Koloskova, Stich and Jaggi 2019, Algorithm 2.
    """

    def init(self, problem: Problem | Stream, network: Graph) -> ChocoSGDState:
        start = start_models(problem)
        mixing = weights_on(self.mixing, network)
        return ChocoSGDState(start, start, mixing(start), mixing)

    def step(self, state: ChocoSGDState, now: Round) -> ChocoSGDState:
        moved = state.model - self.step_size(now.number) * self._step_gradient(now, state.model)
        sent, inbox = now.link.exchange(moved - state.public, compression=self.compression)
        public = state.public + sent
        mixed = state.mixed + inbox.mean(state.mixing)
        return ChocoSGDState(
            moved + self.consensus_step_size * (mixed - public), public, mixed, state.mixing
        )
