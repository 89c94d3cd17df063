"""Records of all private releases of a run, before and after noise.

A :class:`Tap` is a link that records what leaves. Several simulations run side by side with the
messages of the first one: so an attacker knows the message that each data set would send next in
*this* history.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from fljax.algorithms.network_states import states_after
from fljax.link import Link
from fljax.privacy.discrete import PrivateNoise
from fljax.simulation.run_state import Carry, Prepared
from fljax.simulation.scan import begin, make_round, reported_gradient_norm, step_algorithm
from fljax.simulation.scenario import Simulation

#: Runs are computed in batches whose models together hold about this many numbers.
BATCH_NUMBERS = 1 << 20


class Releases(NamedTuple):
    """The ``L`` successive releases of a round; zero for clients that send nothing.

    A trusted server releases one row instead of ``K``.
    """

    clean: Array  # [L, K, D]  before noise
    sent: Array  # [L, K, D]  after noise
    sensitivity: Array  # [L, K]
    rows: Array  # [L, M, D]  after noise, in the order of the link's rows, to be replayed


class Tap(Link):
    """A link that records all private releases before and after noise: clients' messages, a
    trusted server's sums, or the gradient of each step that a client takes.

    With ``replayed``, the releases of another simulation in the same round, it sends those instead
    of the simulation's: so both have the same history, and differ only in the next
    clean message.
    """

    def __init__(self, *args: Any, replayed: list[Releases] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._replayed = replayed
        self._step: Array | None = None  # index of the local step, within a client
        self.releases: list[Releases] = []

    @property
    def joined(self) -> Releases:
        """All releases of the round in their order, by client."""
        releases = [release._replace(rows=release.sent) for release in self.releases]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), *releases)

    def _release_private(
        self,
        clean: Array,
        noise: PrivateNoise,
        sensitivity: Array,
        spent: dict[str, Array],
        clients: Array,
        sending: Array | None,
        rounding: Array,
        release_rho: Array | None = None,
    ) -> Float[Array, "rows numbers"]:
        arguments = (clean, noise, sensitivity, spent, clients, sending, rounding, release_rho)
        sent = super()._release_private(*arguments)
        if self._replayed is not None:
            replayed = self._replayed[len(self.releases)].rows
            sent = replayed[0] if self._step is None else replayed[self._step]
        rows = 1 if self._stages.scope == "server" else self._clients
        destination = clients if sending is None else jnp.where(sending, clients, rows)  # dropped
        silence = jnp.zeros((rows, clean.shape[1]), clean.dtype)
        moves = (
            jnp.zeros(rows, clean.dtype)
            .at[destination]
            .set(sensitivity.astype(clean.dtype), mode="drop")
        )
        stored = (silence.at[destination].set(part, mode="drop") for part in (clean, sent))
        self.releases.append(Releases(*(a[None] for a in (*stored, moves, sent))))
        return sent

    def _nested_link(self, step: Array) -> Link:
        inner = super()._nested_link(step)
        assert isinstance(inner, Tap)
        inner._step, inner.releases = step, list(self.releases)
        return inner

    def _step_record(self) -> tuple[PyTree, Releases]:
        return super()._step_record(), jax.tree.map(lambda a: a[0], self.releases[-1])

    def _merge_records(self, step_records: tuple[PyTree, Releases]) -> None:
        ledger, releases = step_records
        super()._merge_records(ledger)
        self.releases.append(releases)


#: Statistics of each release, [T, ...]; the costs booked, [rounds, K]; the largest gradient norm of
#: each round.
Recorded = tuple[dict[str, Array], dict[str, Array], Array]


def record_statistics(
    simulations: tuple[Simulation, ...],
    ready: tuple[Prepared, ...],
    key: Array,
    rounds: int,
    summarize: Callable[..., dict[str, Array]],
) -> Recorded:
    """Run the first simulation, and the others with the messages that it sent.

    ``summarize`` gets a release and each simulation's messages without noise, ``[K, D]`` each, for
    every release: one a round, or one for each local step.
    """

    def summarize_round(releases: list[Releases]) -> dict[str, Array]:
        return jax.vmap(summarize)(releases[0].sent, *(release.clean for release in releases))

    values, spent, norm = record_rounds(simulations, ready, key, rounds, summarize_round)
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), values), spent, norm


def record_rounds(
    simulations: tuple[Simulation, ...],
    ready: tuple[Prepared, ...],
    key: Array,
    rounds: int,
    summarize: Callable[[list[Releases]], Any],
) -> tuple[Any, dict[str, Array], Array]:
    """As :func:`record_statistics`; ``summarize`` gets each simulation's releases of a round."""

    def one_round(carries: tuple[Carry, ...], round: Array) -> tuple[tuple[Carry, ...], Recorded]:
        after = []
        taps = []
        norms = [jnp.zeros(())]
        for simulation, prepared, carry in zip(simulations, ready, carries, strict=True):
            linked = functools.partial(Tap, replayed=taps[0].releases if taps else None)
            now, _, availability = make_round(
                simulation, prepared, key, carry, round, rounds, linked
            )
            state = step_algorithm(simulation, carry.state, now)
            tap = now.link
            assert isinstance(tap, Tap)
            if not tap.releases:
                raise ValueError(
                    f"{type(simulation.algorithm).__name__} sent no message in a round; there is "
                    "nothing to audit."
                )
            if simulation.privacy.scope == "message":
                norms.append(reported_gradient_norm(simulation.algorithm, now))
            taps.append(tap)
            changes = {"state": state, "availability": availability, "memory": tap.memory}
            after.append(carry._replace(networks=states_after(now), **changes))
        norm = jnp.max(jnp.stack([norm.astype(jnp.result_type(float)) for norm in norms]))
        return tuple(after), (summarize([tap.joined for tap in taps]), taps[0].spent, norm)

    start = tuple(begin(s, r, key) for s, r in zip(simulations, ready, strict=True))
    return jax.lax.scan(one_round, start, jnp.arange(1, rounds + 1, dtype=jnp.int32))[1]
