"""Whether private data reaches anything public without noise, found by tracing one round."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fljax._core import checks, taint
from fljax._core.annotations import checked
from fljax._core.module import replace
from fljax._core.prng import as_key
from fljax.algorithms import Algorithm
from fljax.algorithms.network_states import states_after
from fljax.link.marked import Marked
from fljax.problems import Problem
from fljax.simulation import compatibility
from fljax.simulation.run_state import Carry
from fljax.simulation.scan import begin, make_round, prepare, step_algorithm
from fljax.simulation.scenario import Simulation

if TYPE_CHECKING:
    pass


@checked
def unperturbed(simulation: Simulation, rounds: int = 2) -> list[str]:
    """Return the names of what leaves a private simulation's clients, or its trusted server,
    without having been perturbed; empty if there is none.

    The program of a run is traced from the samples (features, targets, and values computed from
    them) to all outputs: messages, their senders, what servers publish and pass on, released
    models, the size of the noise, the ledger; and to all functions of the host that it calls
    (``jax.debug.callback``, ``jax.debug.print``, ``io_callback``, ``jax.pure_callback``), which may
    keep their arguments. Sample weights, participation and the network are
    public. The analysis does not determine whose data a message depends on, nor how strongly: the
    sensitivity is declared by the algorithm (:func:`fljax.audit.worst_neighbors` puts it to the
    test). :func:`fljax.run` and :func:`fljax.sweep` make this check of user-defined algorithms and
    stages.

    Args:
      simulation: a simulation with a privacy budget.
      rounds: number of rounds of the run; dependence through the state is found for any number.

    Raises:
      ValueError: a simulation without privacy.

    Example:
      >>> import dataclasses, jax, fljax as fl
      >>> @fl.module
      ... class Loose(fl.algorithms.ConventionalFL):
      ...     def step(self, state, now):
      ...         state = super().step(state, now)
      ...         now.link.publish(now.problem.features[0, 0])
      ...         return state
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=4, samples=5, dim=2).clipped(1),
      ...     algorithm=fl.algorithms.ConventionalFL(0.1),
      ...     privacy=fl.privacy.ZCDP(total_rho=0.5, gradient_bound=1.0),
      ... )
      >>> fl.audit.unperturbed(simulation)
      []
      >>> fl.audit.unperturbed(dataclasses.replace(simulation, algorithm=Loose(0.1)))
      ['what a server publishes']
    """
    if simulation.privacy is None:
        raise ValueError(
            "no message is perturbed: the simulation runs without privacy; give it privacy=, such "
            "as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    checks.count("rounds", rounds)

    def run_rounds(simulation: Simulation) -> Any:
        marked = simulation
        if not marked.problem.online:
            marked = replace(marked, problem=_with_private_samples(marked.fixed_problem))
        prepared = prepare(marked, rounds)
        key = as_key(0)
        algorithm = marked.algorithm
        network = compatibility.network_at_start(prepared.network)

        def run_marked_round(carry: Carry, round: Array) -> tuple[Carry, None]:
            now, stream, availability = make_round(
                marked, prepared, key, carry, round, rounds, Marked
            )
            if marked.problem.online:
                now.problem = _with_private_samples(now.problem)
            after = carry._replace(state=step_algorithm(marked, carry.state, now), stream=stream)
            if type(algorithm).released is not Algorithm.released:
                models = algorithm.released(after.state, prepared.problem, network)
                taint.open_to_all(models, "released models")
            changes = {"availability": availability, "memory": now.link.memory}
            return after._replace(networks=states_after(now), **changes), None

        numbers = jnp.arange(1, rounds + 1, dtype=jnp.int32)
        return jax.lax.scan(run_marked_round, begin(marked, prepared, key), numbers)[0]

    return taint.exits(run_rounds, simulation)


def check_perturbed(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where a user-defined algorithm or stage releases private data without
    noise. (Those of the library are checked by its tests.)
    """
    parts = (simulation.algorithm, *simulation.stages)
    if simulation.privacy is None or all(map(_of_the_library, parts)):
        return
    if names := unperturbed(simulation, rounds):
        raise ValueError(
            f"under {type(simulation.privacy).__name__} everything that leaves a client must be "
            f"perturbed, but {type(simulation.algorithm).__name__} releases values that depend on "
            f"clients' samples without noise: {', '.join(names)}. Compute them from what "
            "link.send, exchange, collect or descend returned, or leave out privacy=."
        )


def _of_the_library(part: object) -> bool:
    return part is None or compatibility.of_the_library(part)


def _with_private_samples(problem: Problem) -> Problem:
    """The problem with its samples, held-out ones too, marked as private."""
    samples = {name: getattr(problem, name) for name in ("features", "targets", "statistics")}
    test = None if problem.test is None else _with_private_samples(problem.test)
    return replace(problem, test=test, **taint.private(samples))
