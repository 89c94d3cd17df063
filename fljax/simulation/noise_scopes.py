"""What a run does for its privacy mechanism, by the scope that the mechanism declares.

A mechanism says by its class attribute ``scope`` where its noise is added: to the messages of
clients, at a trusted server, or to the gradients of clients. The rest of a run asks the entry of
:data:`SCOPES` and knows no single mechanism, so that a new one needs no change here.
"""

import abc
import functools
import math
import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fljax._core import checks
from fljax._core.memory import check_fits
from fljax._core.numerics import representable_sensitivity
from fljax.graphs.federation import Federation
from fljax.privacy import Gap, GradientMechanism, Notion, ServerMechanism, promises
from fljax.problems import Problem
from fljax.results.warnings import AssumptionWarning
from fljax.simulation.run_state import Carry, Prepared
from fljax.simulation.scenario import Simulation

#: The standard deviation of noise may fall by this number of powers of ten over a run without a
#: warning: beyond, messages of the first rounds hold nothing but noise.
MOST_DECADES = 3.0


class ScopeOfNoise(abc.ABC):
    """What is different between mechanisms whose noise is added in different places.

    Attributes:
      rests_on_gradients: whether the guarantee assumes a bound on gradients, so that a run records
        the largest one that it met.
    """

    rests_on_gradients: bool = False

    def check(self, simulation: Simulation, rounds: int) -> None:  # noqa: B027 (most need none)
        """Raise an error where the mechanism does not fit a run of this length."""

    @abc.abstractmethod
    def plan(self, simulation: Simulation, rounds: int) -> Any:
        """The constants of the noise for the whole run."""

    def counts_steps(self, simulation: Simulation) -> bool:
        """Whether noise depends on the number of a client's own local steps."""
        return False

    @abc.abstractmethod
    def outcome(self, simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
        """The quantities that a run reports about the mechanism at its end."""


class OnMessages(ScopeOfNoise):
    """Every message of a client is perturbed (:mod:`fljax.privacy.notions`)."""

    rests_on_gradients = True

    def check(self, simulation: Simulation, rounds: int) -> None:
        check = getattr(simulation.privacy, "check", None)
        if check is not None:
            check(simulation.algorithm.message_size_of(simulation.problem), rounds)
        decay = getattr(simulation.privacy, "variance_decay", None)
        if decay is not None:
            warn_of_spread = functools.partial(_warn_of_spread, rounds=rounds)
            checks.check_when_concrete(warn_of_spread, decay)

    def plan(self, simulation: Simulation, rounds: int) -> Any:
        sensitivity = functools.partial(message_sensitivity, simulation, simulation.fixed_problem)
        return cast(Notion, simulation.privacy).plan(sensitivity, rounds)

    def outcome(self, simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
        bound = jnp.asarray(cast(Notion, simulation.privacy).gradient_bound)
        promised = prepared.problem.promised_bound()
        return {
            "gradient_norm": carry.gradient_norm,
            "gradient_bound": bound,
            "promised_bound": promised,
            "nominal": promised > bound * (1 + promises.ROUNDING),
        }


class AtServer(ScopeOfNoise):
    """A trusted server perturbs its sum (:mod:`fljax.privacy.central`); of several servers each
    perturbs that of its own clients, with constants of its own.
    """

    def plan(self, simulation: Simulation, rounds: int) -> Any:
        mechanism = cast(ServerMechanism, simulation.privacy)
        selector = simulation.algorithm.selection
        if (servers := _trusted_servers(simulation)) is None:
            return mechanism.plan(selector, simulation.problem.clients, rounds)
        sizes = servers.sizes.tolist()
        plans = {size: mechanism.plan(selector, size, rounds) for size in {*sizes}}
        return jax.tree.map(lambda *of_each: jnp.stack(of_each), *(plans[size] for size in sizes))

    def outcome(self, simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
        clients = simulation.problem.clients
        sampling = simulation.algorithm.selection.law(clients)
        mechanism = cast(ServerMechanism, simulation.privacy)
        plan = prepared.plan
        if _trusted_servers(simulation) is not None:  # what a client pays is the same at all
            plan = jax.tree.map(lambda of_each: of_each[0], plan)
        outcomes = mechanism.sampled(plan, sampling, clients)
        return outcomes | {"update_clip": jnp.max(carry.memory.mechanism.clip)}


def _trusted_servers(simulation: Simulation) -> Federation | None:
    """The servers that each perturb a sum; ``None`` where there is one for all clients."""
    if type(simulation.algorithm).needs.network is not Federation:
        return None
    assert isinstance(simulation.network, Federation)
    return simulation.network


class OnGradients(ScopeOfNoise):
    """Clients perturb their gradients (:mod:`fljax.privacy.gradients`)."""

    def check(self, simulation: Simulation, rounds: int) -> None:
        problem = simulation.problem
        mechanism = cast(GradientMechanism, simulation.privacy)
        state = jax.eval_shape(lambda: mechanism.begin(problem.dim, problem.dtype, 1))
        check_fits(
            "what clients keep of a strategy between their steps",
            problem.clients,
            sum(leaf.size for leaf in jax.tree.leaves(state)),
            entry_bytes=problem.dtype.itemsize,
            mend="take one of fewer bands, or of a few buffers (BufferedToeplitz)",
        )

    def plan(self, simulation: Simulation, rounds: int) -> Any:
        algorithm = simulation.algorithm
        mechanism = cast(GradientMechanism, simulation.privacy)
        mechanism.check(simulation.fixed_problem)
        steps = getattr(algorithm, "local_steps", None)
        return mechanism.plan(algorithm.sampling(simulation.problem), steps, rounds)

    def counts_steps(self, simulation: Simulation) -> bool:
        return cast(GradientMechanism, simulation.privacy).counts_steps

    def outcome(self, simulation: Simulation, prepared: Prepared, carry: Carry) -> dict[str, Array]:
        sampling = simulation.algorithm.sampling(simulation.problem)
        assert sampling is not None  # a plan exists only for a declared law
        records = jnp.min(cast(Problem, simulation.problem).sample_counts())
        return cast(GradientMechanism, simulation.privacy).sampled(prepared.plan, sampling, records)


#: By the names that mechanisms declare.
SCOPES: dict[str, ScopeOfNoise] = {
    "message": OnMessages(),
    "server": AtServer(),
    "gradient": OnGradients(),
}


def scope_of(simulation: Simulation) -> ScopeOfNoise | None:
    """Where the noise of a simulation's mechanism is added; ``None`` without one."""
    return None if simulation.privacy is None else SCOPES[simulation.privacy.scope]


def _warn_of_spread(decay: Array | float, *, rounds: int) -> None:
    """Warn where the noise of the first round is far above that of the last."""
    steps = rounds - 1
    # In logarithms, since the ratio itself overflows in long runs.
    decades = -0.5 * steps * math.log10(float(decay))
    if decades > MOST_DECADES:
        warnings.warn(
            f"with decay={float(decay):.6g} the noise of the first of {rounds} rounds is "
            f"10^{decades:.3g} times that of the last, and at first drowns all messages. Leave "
            "decay out (the same noise in every round, for any number of rounds), or take "
            f"decay={0.01 ** (1 / steps):.6g}, with which it falls to a tenth over this run.",
            AssumptionWarning,
            stacklevel=2,
        )


def message_sensitivity(simulation: Simulation, problem: Problem, round: Array) -> Array:
    """The sensitivity of each client's message to neighboring data, ``[K]``.

    Args:
      simulation: under a mechanism on messages.
      problem: of the round.
      round: 1, 2, ..., possibly traced.

    Raises:
      TypeError: an algorithm that returns other than one number of each client.
    """
    privacy = cast(Notion, simulation.privacy)
    algorithm = simulation.algorithm

    def by(gap: Gap) -> Array:
        return algorithm.sensitivity(problem, simulation.network, round, gap)

    moved = by(Gap.of(privacy, problem))
    if np.shape(moved) != (problem.clients,):
        raise TypeError(
            f"{type(algorithm).__name__}.sensitivity must return one number of each of the "
            f"{problem.clients} clients, got {checks.shown(moved)}."
        )
    moved = jnp.asarray(moved)
    # With a bound this large no product with a step size underflows: where the sensitivity is zero
    # even so, the message depends on no data and needs no noise.
    large = float(jnp.finfo(moved.dtype).tiny) ** -0.75
    return representable_sensitivity(moved, by(Gap.of(privacy, problem, bound=large)) > 0)
