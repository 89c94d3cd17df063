r"""Stochastic gradient push: push-sum on directed graphs."""

from typing import Annotated, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fljax._core import checks
from fljax._core.module import as_given, field, float_dtype, module
from fljax.algorithms.algorithm import Needs, algorithm, start_models
from fljax.algorithms.descending import Descending
from fljax.algorithms.round import Round
from fljax.graphs import Graph, neighbor_tables, spectra
from fljax.graphs.undirected import of_entries
from fljax.problems import Problem
from fljax.problems.streams import Stream


class SGPState(NamedTuple):
    """State of push-sum between rounds."""

    model: Array  # [K, D]  w_k = v_k / u_k
    pushed: Array  # [K, D + 1]  v_k and its weight u_k


@algorithm(
    "SGP",
    ("nedic2016", "assran2019"),
    Needs(data="any", trains=True, changing=True, directed=True),
    {"Stochastic gradient push": "with batches=", "Subgradient-push": ""},
)
@module
class SGP(Descending):
    r"""Stochastic gradient push on directed graphs (SGP).

    .. math::

        \hat v_k=v_k-\mu^{(n)}f_k'(w_k),\qquad
        v_k\leftarrow\sum_lp_{kl}\hat v_l,\qquad u_k\leftarrow\sum_lp_{kl}u_l,\qquad
        w_k^{(n)}=v_k/u_k

    with :math:`u_k=1` initially. Client :math:`l` sends the shares :math:`p_{kl}` and keeps the
    remainder: *columns* sum to one. Rows need not sum to one, which would require clients to know
    their in-neighbors: without gradients all :math:`w_k` nevertheless converge to the mean of the
    initial models, and with decaying step sizes to the optimum. A message is :math:`\hat v_k` and
    :math:`u_k`, :math:`D+1` numbers.

    A graph's edges are undirected; ``shares`` of zero in one direction make them directed.

    Args:
      step_size: :math:`\mu^{(n)}`, a schedule of the round or a number, > 0.
      shares: ``[K, K]``, the share :math:`p_{kl}` that ``l`` sends to ``k``: non-negative, with
        columns of sum one, on edges of the network and the diagonal; by default equal shares for
        the client itself and all its neighbors in the round. Nothing is sent over an edge that is
        missing in a round.
      batches: the batches of the steps (:mod:`fljax.batches`); all of a client's samples by
        default.

    Raises:
      ValueError: shares of another shape, with columns that do not sum to one, outside the edges,
        or of a directed graph that is not strongly connected.

    Example:
      A directed ring:

      >>> import jax, numpy as np, fljax as fl
      >>> around = (np.eye(5) + np.roll(np.eye(5), 1, axis=0)) / 2
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.SGP(fl.schedules.PowerDecay(0.2, 0.8), shares=around),
      ... )
      >>> int(fl.run(simulation, rounds=4).messages[-1])
      20

    Reference:
      Nedić & Olshevsky 2016; Assran et al. 2019, Algorithm 1.
    """

    shares: Annotated[Array, "clients clients"] | None = field(
        converter=as_given, default=None, kw_only=True
    )

    def validate(self) -> None:
        if self.shares is None:
            return
        shares = checks.filled("shares", self.shares, axes=2)
        object.__setattr__(self, "shares", shares.astype(float_dtype()))
        rows, columns = self.shares.shape
        if rows != columns:
            raise ValueError(f"shares must be square, [K, K], got {rows} rows of {columns}.")

        def check_stochastic(shares: object) -> None:
            shares = np.asarray(shares, np.float64)
            hint = "p_kl is what l gives to k; transpose it"
            spectra.check_stochastic("the matrix of shares", shares, 0, hint)
            spectra.check_primitive("the matrix of shares", shares, "or take other shares.")

        checks.check_when_concrete(check_stochastic, self.shares)

    def check(self, problem: Problem | Stream, network: Graph) -> None:
        super().check(problem, network)
        if self.shares is None:
            return
        if len(self.shares) != network.nodes:
            raise ValueError(
                f"shares are for {len(self.shares)} nodes, but the network has {network.nodes}."
            )

        def check_edges(shares: object, *_: object) -> None:
            used = (np.asarray(shares) > 0) & ~np.eye(network.nodes, dtype=bool)
            without_edge = np.argwhere(used & (np.asarray(network.dense()) == 0))
            if len(without_edge):
                k, giver = without_edge[0]
                raise ValueError(
                    f"shares must be zero except on edges of the network, but node {giver} gives "
                    f"to node {k}, which is no neighbor; add the edge, or make the share zero."
                )

        checks.check_when_concrete(check_edges, self.shares, network.degree)

    def message_size(self, dim: int) -> int:
        """Return the size of a model and its weight."""
        return dim + 1

    def init(self, problem: Problem | Stream, network: Graph) -> SGPState:
        start = start_models(problem)
        return SGPState(start, jnp.concatenate([start, jnp.ones_like(start[:, :1])], axis=1))

    def step(self, state: SGPState, now: Round) -> SGPState:
        change = self.step_size(now.number) * self._step_gradient(now, state.model)
        message = state.pushed.at[:, :-1].add(-change)
        taken, kept_share, receivers = self._sharing(now.network)
        sent, inbox = now.link.exchange(message, receivers=receivers)
        pushed = inbox.sum(over=taken) + kept_share[:, None].astype(sent.dtype) * sent
        return SGPState(pushed[:, :-1] / pushed[:, -1:], pushed)

    def _sharing(self, network: Graph) -> tuple[Graph, Float[Array, " K"], Int[Array, " K"]]:
        """Return each node's shares from its neighbors, the share that it keeps, and its number of
        receivers.
        """
        parts = network.entries.parts
        everyone = jnp.arange(network.nodes, dtype=jnp.int32)
        taken = []
        sent = []
        for part in parts:
            edge = part.weights > 0
            nodes = part.nodes[:, None]
            neighbors = part.of_neighbors(everyone)
            if self.shares is None:
                share = 1 / (1 + network.neighbor_counts().astype(part.weights.dtype))
                from_neighbor = part.of_neighbors(share)
                to_neighbor = share.at[nodes].get(mode="clip")
            else:
                shares = jnp.asarray(self.shares)
                from_neighbor = shares.at[nodes, neighbors].get(mode="clip")
                to_neighbor = shares.at[neighbors, nodes].get(mode="clip")
            for numbers, shares in ((taken, from_neighbor), (sent, to_neighbor)):
                numbers.append(jnp.where(edge, shares, 0).astype(part.weights.dtype))
        entries = network.entries.with_weights(taken)
        sent_in_total = neighbor_tables.add_rows(parts, [jnp.sum(rows, axis=1) for rows in sent])
        receivers = [jnp.sum(rows > 0, axis=1, dtype=jnp.int32) for rows in sent]
        return (
            of_entries(entries, entries.row_sums()),
            1 - sent_in_total,
            neighbor_tables.add_rows(parts, receivers),
        )
