r"""Graph federated learning by gradient steps (Rizk 2023, section 3.2)."""

from functools import partial
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.module import field, module, static
from fljax.algorithms.algorithm import Algorithm, Needs, algorithm, server_start
from fljax.algorithms.local_steps import (
    check_full,
    counts_of,
    descend_from,
    descent_gap,
    draw_batches,
    learn,
)
from fljax.algorithms.round import Round
from fljax.graphs.federation import Federation
from fljax.optimization.schedules import Schedule, as_schedule
from fljax.participation.selectors import PerServer, Selector, everyone_or
from fljax.privacy import Gap
from fljax.problems import Problem
from fljax.problems.batches import Batches, Counts, check_per_client, per_client
from fljax.problems.streams import Stream


class GraphFedAvgState(NamedTuple):
    """State of GraphFedAvg between rounds."""

    model: Array  # [K, D]  the model of each client's server
    server: Array  # [S, D]  w_p


@algorithm(
    "GFL, gradient",
    ("rizk2021", "rizk2023"),
    Needs(
        Federation,
        privacy=("message",),
        absent=True,
        trains=True,
        averages=True,
        uploads=("models", "updates"),
        masked=True,
    ),
)
@module
class GraphFedAvg(Algorithm):
    r"""Federated averaging at every server, then a combination of neighboring servers' models.

    .. math::

        w_{p,k,0} &= w_{p,i-1},\qquad
        w_{p,k,e} = w_{p,k,e-1}-\frac\mu E f_{p,k}'(w_{p,k,e-1}),\quad e=1..E \\
        \psi_{p,i} &= \frac1{|\mathcal L_{p,i}|}\sum_{k\in\mathcal L_{p,i}}\tilde w_{p,k,E},\qquad
        w_{p,i} = \sum_{m\in\mathcal N_p}a_{pm}\psi_{m,i}

    with full local gradients, or on batches; :math:`a` are Metropolis weights, symmetric and
    doubly stochastic as the source requires. A server without participants sends its last model. In
    the private form clients perturb their messages, as in :class:`PGFL` (Gauthier 2024, section
    5.4), instead of the source's noise between servers.

    Args:
      step_size: :math:`\mu`, a schedule of the round or a number, > 0.
      local_steps: :math:`E\ge1`, one number or :math:`E_k` for each client.
      clients_per_server: as in :class:`PGFL`.
      batches: the batch of each step (:mod:`fljax.batches`); all of a client's samples by default.

    Raises:
      ValueError: more clients per round than a server has; batches under a privacy budget, whose
        accounting is for all samples.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=12, samples=20, dim=2)
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> algorithm = fl.algorithms.GraphFedAvg(0.1)
      >>> simulation = fl.Simulation(problem, algorithm, servers, metrics=["normalized_error"])
      >>> bool(fl.run(simulation, rounds=200).normalized_error[-1] < 0.05)
      True

    Reference:
      Rizk & Sayed 2021; Rizk 2023, (3.3)-(3.8).
    """

    step_size: Schedule = field(converter=as_schedule)
    local_steps: Counts = field(
        converter=partial(per_client, "local_steps"), static=True, default=1
    )
    clients_per_server: int | None = static(default=None)
    batches: Batches | None = None

    def validate(self) -> None:
        if self.clients_per_server is not None:
            checks.count("clients_per_server", self.clients_per_server)

    def check(self, problem: Problem | Stream, network: Federation) -> None:
        if problem.mixes_samples:
            check_full(self.batches, cast(Problem, problem))

    @property
    def selection(self) -> Selector:
        """The selector of the participants."""
        return everyone_or(PerServer, self.clients_per_server)

    def init(self, problem: Problem, network: Federation) -> GraphFedAvgState:
        self.selection.check(problem.clients, network)
        check_per_client("local_steps", self.local_steps, problem.clients)
        if self.batches is not None:
            self.batches.check(problem)
        server = jnp.tile(server_start(problem), (network.servers, 1))
        return GraphFedAvgState(network.of_clients(server), server)

    def step(self, state: GraphFedAvgState, now: Round) -> GraphFedAvgState:
        problem = now.problem
        network = now.network
        link = now.link
        participants = now.choose(self.selection)
        home = jnp.asarray(network.server, jnp.int32)
        counts = counts_of(self.local_steps, participants)
        longest = int(np.max(self.local_steps))
        step_size = self.step_size(now.number)
        length = step_size / counts.astype(problem.dtype)
        start = link.publish(state.server, participants.here)[participants.take(home)]
        rounding = None
        if link.private:  # refuses batches
            model, norm, rounding = descend_from(
                participants.of(problem), start, length, longest, counts
            )
            now.witness(jnp.where(participants.here, norm, 0))
        else:
            learned = learn(
                problem,
                participants,
                start,
                length,
                longest,
                draw_batches(self.batches, now, participants, longest),
                counts,
                training=now.networks.of(participants),
            )
            now.networks.trained(participants, None, learned.state)
            model = learned.model
        messages = link.send(
            model,
            clients=participants.clients,
            sending=participants.here,
            step_size=step_size,
            rounding=rounding,
        )

        cell = jnp.zeros(len(messages), jnp.int32)
        mean, present = link.cell_means(messages, cell, 1, participants, state.server[:, None])
        psi = jnp.where(present[:, 0] > 0, mean[:, 0], state.server)
        server = psi
        if network.graph is not None:
            server = link.combine(psi, network.graph.mixing("metropolis"))
        return GraphFedAvgState(network.of_clients(server), server)

    def released(self, state: GraphFedAvgState, problem: Problem, network: Federation) -> Any:
        """Return the servers' models."""
        return state.model

    def sensitivity(
        self, problem: Problem, network: Federation, round: Array, gap: Gap
    ) -> Float[Array, " clients"]:
        """See :func:`~fljax.algorithms.local_steps.descent_gap`."""
        if self.batches is not None:
            raise ValueError(
                "the privacy loss of messages is accounted for only if steps use all samples; "
                "leave out batches= or privacy=."
            )
        step_size = self.step_size(round) / jnp.asarray(self.local_steps, problem.dtype)
        return descent_gap(problem, step_size, self.local_steps, gap)
