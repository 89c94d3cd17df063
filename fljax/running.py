"""Running a simulation: :func:`run` runs it once, :func:`view` looks into one of its rounds,
:func:`unperturbed` follows what leaves it.
"""

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fljax import _check, _taint, requirements
from fljax._arguments import checked
from fljax._generator import as_key, name_of
from fljax._module import replace
from fljax.algorithms import Algorithm
from fljax.decisions import decided, recorded
from fljax.engine import (
    Carry,
    begin,
    check_length,
    check_metrics,
    check_rounds,
    look,
    prepare,
    stepped,
    trace,
)
from fljax.link.marked import Marked
from fljax.privacy import promises
from fljax.problems import Problem
from fljax.records import COUNTS, assemble, describe, joined, provenance, warn
from fljax.rounds import Round
from fljax.simulation import Simulation

if TYPE_CHECKING:
    import xarray

__all__ = ["check_perturbed", "run", "unperturbed", "view"]


@checked
def run(
    simulation: Simulation,
    rounds: int,
    key: Key[Array, ""] | int = 0,
    record_every: int = 1,
    generator: str | None = None,
) -> "xarray.Dataset":
    """Run a simulation once.

    A second run with other numbers in it (a new key, new data of the same shape, another penalty)
    reuses the compiled program.

    Args:
      simulation: what to run.
      rounds: how many iterations, >= 1.
      key: of the run's noise; an integer seeds the generator.
      record_every: measure after every so many rounds; must divide ``rounds``.
      generator: of an integer key, by default the house's, as of :func:`fljax.sweep`; a key of
        :func:`jax.random.key` keeps its own.

    Returns:
      A dataset over ``round`` with the metrics, the privacy ledger and the traffic, the final
      models as ``model`` over ``client`` and ``parameter``, what each client spent, and the
      provenance as attributes.

    Raises:
      TypeError, ValueError: as said by the arguments' own checks.
    """
    check_rounds(rounds, record_every)
    jax.eval_shape(lambda: check_length(simulation, rounds))
    check_perturbed(simulation, rounds)
    key = as_key(key, generator)
    records, model = _run(simulation, key, rounds, record_every)
    host = {name: np.asarray(value) for name, value in records.items()}
    host |= {name: np.cumsum(joined(host[name])) for name in COUNTS}
    said = describe(simulation.metrics, [simulation.privacy])
    dataset = assemble(host, (), {}, rounds, record_every, said)
    dataset["model"] = (("client", "parameter"), np.asarray(model))
    dataset.attrs |= provenance(
        dtype=str(simulation.problem.dtype),
        prng=name_of(key),
        rounds=rounds,
        decisions=recorded([decided(simulation)]),
    )
    promises.state(dataset)
    warn(dataset, [(simulation, True)])
    return dataset


@functools.partial(jax.jit, static_argnames=("rounds", "record_every"))
def _run(simulation: Simulation, key: Array, rounds: int, record_every: int) -> Any:
    """:func:`trace`, whose metrics are looked at before anything is compiled."""
    records, model = trace(simulation, key, rounds, record_every)
    check_metrics(simulation, records, rounds // record_every)
    return records, model


@checked
def view(
    simulation: Simulation, key: Key[Array, ""] | int = 0, round: int = 1, rounds: int = 1
) -> Round:
    """One round as an algorithm sees it: to call a step at a prompt, or in a test.

    Args:
      simulation: whose round; what a run remembers from the rounds before is as in the first.
      key: of the run, as of :func:`run`.
      round: 1, 2, ...
      rounds: of the whole run, at least ``round``.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ... )
      >>> now = fl.view(simulation)
      >>> state = simulation.algorithm.init(now.problem, now.network)
      >>> simulation.algorithm.step(state, now).model.shape
      (5, 2)
    """
    _check.count("round", round)
    _check.count("rounds", rounds)
    rounds = max(round, rounds)
    prepared, key = prepare(simulation, rounds), as_key(key)
    carry = begin(simulation, prepared, key)
    return look(simulation, prepared, key, carry, jnp.asarray(round, jnp.int32), rounds)[0]


@checked
def unperturbed(simulation: Simulation, rounds: int = 2) -> list[str]:
    """What leaves a private simulation's clients, or its trusted server, without having been
    perturbed, by name; empty if nothing does.

    The program of a run is followed from the samples (features, targets, what is computed of them)
    to all that leaves: messages, who sends them, what servers publish and pass on, released models,
    the size of the noise, the ledger. What a sample weighs, who is there and the network are
    public. It is not told whose data a message depends on, nor how much: the sensitivity is the
    algorithm's word (:func:`fljax.audit.worst_neighbors` puts it to the test).
    :func:`fljax.run` and :func:`fljax.sweep` ask this of algorithms and stages of your own.

    Args:
      simulation: under a budget.
      rounds: of the run; what a state carries on is found whatever their number.

    Raises:
      ValueError: no privacy.

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
            "nothing is perturbed for a budget's sake: the simulation runs without privacy; give "
            "it privacy=, such as fljax.privacy.ZCDP(total_rho=1.0)."
        )
    _check.count("rounds", rounds)

    def whole(simulation: Simulation) -> Any:
        given = simulation
        if not given.problem.online:
            given = replace(given, problem=_marked(given.problem))
        prepared, key = prepare(given, rounds), as_key(0)
        algorithm, network = given.algorithm, requirements.shown(prepared.network)

        def one(carry: Carry, round: Array) -> tuple[Carry, None]:
            now, stream, availability = look(given, prepared, key, carry, round, rounds, Marked)
            if given.problem.online:
                now.problem = _marked(now.problem)
            after = carry._replace(state=stepped(given, carry.state, now), stream=stream)
            if type(algorithm).released is not Algorithm.released:
                models = algorithm.released(after.state, prepared.problem, network)
                _taint.open_to_all(models, "released models")
            return after._replace(availability=availability, memory=now.link.memory), None

        turns = jnp.arange(1, rounds + 1, dtype=jnp.int32)
        return jax.lax.scan(one, begin(given, prepared, key), turns)[0]

    return _taint.exits(whole, simulation)


def check_perturbed(simulation: Simulation, rounds: int) -> None:
    """Raise ``ValueError`` where an algorithm or stage of a user's own lets private data leave
    without noise. (Those of the library are held to this by its tests.)
    """
    parts = (simulation.algorithm, *simulation.stages)
    if simulation.privacy is None or all(_of_the_library(part) for part in parts):
        return
    if names := unperturbed(simulation, rounds):
        raise ValueError(
            f"under {type(simulation.privacy).__name__} all that leaves must have been perturbed, "
            f"and {type(simulation.algorithm).__name__} lets out what depends on clients' samples "
            f"and on no noise: {', '.join(names)}. Compute it from what link.send, exchange, "
            "collect or descend returned, or leave out privacy=."
        )


def _of_the_library(part: Any) -> bool:
    return part is None or type(part).__module__.partition(".")[0] == __package__


def _marked(problem: Problem) -> Problem:
    """With samples, held-out ones too, that are marked as private."""
    own = {name: getattr(problem, name) for name in ("features", "targets", "statistics")}
    test = None if problem.test is None else _marked(problem.test)
    return replace(problem, test=test, **_taint.private(own))
