"""The link of one round: every message of an algorithm goes over it.

What happens to a message has one order that nobody can get wrong. *Out*: it is perturbed, masked,
compressed, counted; a client that does not follow the protocol says something else. *Along*: it is
lost, or late, or not listened to. *In*: the receiver combines what it hears, by a weighted mean or
an aggregator of its own. Each stage is a part of the simulation, so an algorithm carries no code
for it: peers :meth:`~Link.exchange` messages and find them in their :class:`~fljax.link.Inbox`;
clients of a server :meth:`~Link.collect` theirs towards it, or :meth:`~Link.send` and
:meth:`~Link.mean` them, and hear what it publishes. A link lives for one round inside the traced
step; what it counted and what is still on its way is read from it when the step is done.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fljax import _check
from fljax._linalg import clipped_rows
from fljax._memory import on_cpu
from fljax._numerics import HIGHEST, key_of, made_finite, rounded_off
from fljax.aggregation import Aggregator
from fljax.attacks import Attack
from fljax.federation import Federation
from fljax.graphs import Combination, Graph, Relearned
from fljax.link.compression import WORD, Compressor
from fljax.link.delays import DelayLaw, Fixed, Line, empty_line
from fljax.link.inbox import Inbox
from fljax.link.losses import Losses, of_edges
from fljax.link.noise import Noise
from fljax.link.traffic import Traffic, wide
from fljax.link.uploads import SecureAggregation, UploadNoise
from fljax.participation import Participants
from fljax.privacy import CentralGaussian, NoisyGradients, Notion
from fljax.privacy.discrete import on_grid

__all__ = ["Arrived", "Link", "Memory", "Stages", "begin"]

T = TypeVar("T")

#: On a CPU the messages of so many senders are made together; with few clients there at a time,
#: what the others would have sent is not computed. An accelerator makes all of them at once.
GROUP = 32


class Stages(NamedTuple):
    """What may happen to messages, in this order; the parts of a simulation."""

    privacy: Any = None  # a notion, or a mechanism at the server or on gradients
    compression: Compressor | None = None
    attack: Attack | None = None
    losses: Losses | None = None
    delays: DelayLaw | None = None
    aggregation: Aggregator | None = None
    noise: Noise | None = None  # between peers, or between servers
    upload_noise: UploadNoise | None = None  # of clients towards servers
    masks: SecureAggregation | None = None  # that they share
    learned: Relearned | None = None  # to whom peers listen


class Memory(NamedTuple):
    """What a link remembers from round to round; ``None`` where nobody asks for it."""

    line: Line | None = None  # what is on its way to a server
    past: Array | None = None  # [B, K, D]  what peers said in the last rounds, a ring
    losses: Any = None  # of the law of losses, for each table of edges
    mechanism: Any = None  # of a trusted server


def begin(
    stages: Stages, network: Any, key: Array, said: Float[Array, "clients dim"], asleep: bool
) -> Memory:
    """Before the first round.

    Args:
      stages: of the simulation.
      network: a graph for peers; anything else for clients of servers.
      key: of round 0.
      said: what all know of all clients before: where they start.
      asleep: whether peers may be absent.
    """
    peers, line, past, losses = isinstance(network, Graph), None, None, None
    (clients, dim), dtype, law = said.shape, said.dtype, stages.delays
    if law is not None and not peers:
        line = empty_line(law, dim, dtype)
    if peers and (law is not None or asleep):
        bound = 1 if law is None else law.lags[-1] + 1
        past = jnp.broadcast_to(said, (bound, clients, dim))
    if stages.losses is not None:
        key = key_of(key, "losses")
        losses = [
            stages.losses.begin(uniform)
            for uniform in _uniforms(stages.losses, key, network, clients, dtype)
        ]
    mechanism = None
    if isinstance(stages.privacy, CentralGaussian):
        mechanism = stages.privacy.begin(dim, dtype)
    return Memory(line, past, losses, mechanism)


def _uniforms(losses: Losses, key: Array, network: Any, clients: int, dtype: Any) -> list[Array]:
    """A uniform number of every edge: of each table of a graph, or of each client's way up."""
    if not isinstance(network, Graph):
        return [jax.random.uniform(key, (clients,), dtype)]
    everyone = jnp.arange(clients, dtype=jnp.int32)
    return [
        of_edges(key, part.nodes[:, None], part.of_neighbors(everyone), losses.symmetric, dtype)
        for part in network.entries.parts
    ]


def receivers_of(network: Any, clients: int) -> Int[Array, " clients"]:
    """To how many receivers each client's message goes: its neighbors, or its server."""
    return jnp.ones(clients, jnp.int32) if network is None else network.neighbor_counts()


class Arrived(NamedTuple):
    r"""What reaches the server in a round: :math:`\sum_i a_iS_iw_i` and :math:`\sum_ia_iS_i`."""

    total: Array  # [D]
    share: Array  # [D]
    #: []  weights of all messages that arrive, summed; a trusted server does not tell
    weight: Array | None = None

    @property
    def any(self) -> Bool[Array, ""]:
        """Whether anything arrived."""
        return jnp.any(self.share > 0)

    def move(self, model: Float[Array, " dim"]) -> Float[Array, " dim"]:
        r""":math:`w+\sum_ia_iS_i(w_i-w)`; the model itself where nothing arrived."""
        return model + self.total - self.share * model


class Link:
    """One round's messages.

    Args:
      key: of this round; consumed.
      round: 1, 2, ..., possibly traced.
      rounds: of the whole run.
      clients: ``K``.
      network: the graph of the clients, the federation they belong to, or ``None``: one server.
      stages: what happens to messages; nothing by default.
      memory: from the round before, see :func:`begin`.
      available: ``[K]``, which clients are there in this round; ``None`` for all.
      plan: what ``privacy.plan`` returned at the start of the run.
      sensitivity: of this round's message, asked for only where it is perturbed.
      root: the run's key; needed where rounds share a draw.
      receivers: ``[K]``, to how many each client's message goes; by default what
        :func:`receivers_of` finds.
    """

    def __init__(
        self,
        key: Array,
        round: Array | int,
        rounds: int,
        clients: int,
        network: Any = None,
        stages: Stages = Stages(),  # noqa: B008 (immutable)
        memory: Memory = Memory(),  # noqa: B008 (immutable)
        available: Bool[Array, " clients"] | None = None,
        plan: Any = None,
        sensitivity: Callable[[], Float[Array, " clients"]] | None = None,
        root: Array | None = None,
        receivers: Int[Array, " clients"] | None = None,
    ) -> None:
        self._key = key
        self._root = root
        self._round = jnp.asarray(round)
        self._rounds = rounds
        self._clients = clients
        self._network = network
        self._stages = stages
        self._receivers = receivers_of(network, clients) if receivers is None else receivers
        self._plan = plan
        self._sensitivity = sensitivity
        self._everyone = available is None
        self.available = jnp.ones(clients, bool) if available is None else available
        self.memory = memory
        self.spent: dict[str, Array] = {}
        #: []  how far rounding may move what left, in its sensitivity; infinite if not finite
        self.rounding = jnp.zeros(())
        self.traffic = Traffic.none()
        #: [K] how private messages stand to their noise, as powers; NaN where none was sent
        self.signal_to_noise: Array | None = None
        self._sent = 0  # messages of a client so far
        self._working: list[Array] | None = None  # drawn once a round
        self._inboxes: list[Inbox] = []
        self._used: set[str] = set()  # which noise was on a message

    @property
    def private(self) -> bool:
        """Whether messages are perturbed."""
        return self._scope == "message"

    @property
    def _scope(self) -> str | None:
        """Where noise is added: to messages, at the server, or to gradients."""
        privacy = self._stages.privacy
        return None if privacy is None else getattr(privacy, "scope", "message")

    @property
    def exact(self) -> bool:
        """Whether receivers hear at once what all clients sent, as they sent it, so that an
        aggregate may be computed as one.
        """
        return not self.private and self.whole

    @property
    def whole(self) -> bool:
        """Whether all clients take part, what they send arrives at once, perturbed or not, and is
        averaged.
        """
        return (
            self._everyone
            and self._scope != "server"
            and all(part is None for part in self._stages[1:])
        )

    def key(self, purpose: str) -> Array:
        """The round's key for a draw of this purpose, one of ``fljax._numerics.PURPOSES``.

        It depends on the run's key and the round alone: under one seed all algorithms meet the
        same participants.
        """
        return key_of(self._key, purpose)

    def common_key(self, purpose: str) -> Array:
        """A key that is the same in all rounds, for what one round must know of another."""
        if self._root is None:
            raise ValueError(f"draws for {purpose} that rounds share need the run's key, root=.")
        return key_of(jax.random.fold_in(self._root, 0), purpose)  # rounds count from 1

    # Out ---------------------------------------------------------------------------------------

    def send(
        self,
        message: Float[Array, "senders dim"],
        around: Float[Array, " dim"] | None = None,
        clients: Int[Array, " senders"] | None = None,
        sending: Bool[Array, " senders"] | None = None,
        *,
        step_size: Array | float | None = None,
        receivers: Int[Array, " clients"] | None = None,
        compression: Compressor | None = None,
    ) -> Float[Array, "senders dim"]:
        """Perturb, compress and count one message of every client; returns what is said.

        The same noisy vector goes to all receivers of a client, so it costs privacy once, and a
        client that does not send spends nothing. Compressing it afterwards costs none.

        Args:
          message: ``[M, D]``.
          around: ``[D]``, public: what differences are compressed from; zero by default.
          clients: ``[M]``, whose rows these are, none twice among those who send (a budget books
            each row); all of them, in order, by default.
          sending: ``[M]``, which of the rows are sent; all by default.
          step_size: by which an update is multiplied in a message; see :meth:`collect`.
          receivers: ``[K]``, to how many each client's message goes, by default all its neighbors,
            or its server.
          compression: the algorithm's own, in place of the simulation's.

        Raises:
          ValueError: a private message of unknown sensitivity; a second one in the same round,
            which no noise schedule provides for; a client known to have two rows.
        """
        self._sent += 1
        if clients is None:
            clients = jnp.arange(message.shape[0], dtype=jnp.int32)
        if sending is None:
            sending = jnp.ones(clients.shape, bool)
        _check_once(clients, sending)
        if receivers is None:
            receivers = self._receivers
        else:
            sending = sending & (receivers[clients] > 0)
        compression = compression or self._stages.compression
        messages = jnp.sum(jnp.where(sending, receivers[clients], 0))
        self._count_sent(messages, message.shape[1], compression)
        if self._scope == "server":
            raise ValueError(
                "a trusted server perturbs the sum of what it collects, and not messages; let the "
                "step collect them (now.link.collect), or take a budget for messages (ZCDP)."
            )
        sending = self._open(sending, "who sends a message")
        if self.private:
            message = self._perturb(self._stages.privacy, message, clients, sending)
        else:
            message = self._open(message, "a message")
        message = self._noisy(message, clients, step_size)
        if self._stages.masks is not None:
            message = message + self._masks(clients, sending, message.shape[1], message.dtype)
        if around is None:
            around = jnp.zeros(message.shape[1:], message.dtype)
        around = around[None]
        message = self._compressed(message, clients, around, compression)
        return self._attacked(message, clients, sending, around)

    def _perturb(
        self, notion: Notion, message: Array, clients: Array, sending: Array
    ) -> Float[Array, "senders dim"]:
        if self._sensitivity is None:
            raise ValueError(
                "a private round needs the sensitivity of its message; run an algorithm that "
                "gives none without privacy."
            )
        if self.spent:
            raise ValueError(
                "an algorithm sent a second private message in one round; the budget's schedule "
                "provides for one. Join the two into one message."
            )
        sensitivity = self._sensitivity()
        release = notion.release(
            self._plan, sensitivity, self._round, self._rounds, message.shape[1]
        )
        times = jnp.zeros(sensitivity.shape, jnp.int32).at[clients].add(sending.astype(jnp.int32))
        spent = {
            name: jnp.where(times > 0, value * times.astype(value.dtype), 0)
            for name, value in release.spent.items()
        }
        noise = notion.draw(self._key, message.shape, message.dtype, self._round, clients)
        scale = release.scale[clients][:, None]
        if release.grid is None:
            noise, grid = scale * noise, None
        else:
            grid = release.grid[clients][:, None]
        ratio = jnp.mean((message / scale) ** 2, axis=1) / release.variance
        missing = jnp.full(sensitivity.shape, jnp.nan, message.dtype)
        at = jnp.where(sending, clients, len(missing))
        self.signal_to_noise = missing.at[at].set(ratio, mode="drop")
        return self._leave(message, noise, sensitivity[clients], spent, clients, sending, grid)

    def _leave(
        self,
        clean: Float[Array, "rows numbers"],
        noise: Shaped[Array, "rows numbers"],
        sensitivity: Float[Array, " rows"],
        spent: dict[str, Array],
        clients: Int[Array, " rows"],
        sending: Bool[Array, " rows"],
        grid: Float[Array, "rows 1"] | None = None,
    ) -> Float[Array, "rows numbers"]:
        """The one place where what depends on private data leaves: perturbed, counted and booked.

        A number that overflows leaves as the largest one, which keeps the distance between two
        neighbors' messages; one that is none leaves as zero, and no guarantee is left then.

        Args:
          clean: a client's message, the server's sum, or clients' gradients in a step.
          noise: as large as they get it, or in steps of the grid.
          sensitivity: of each row.
          spent: what this costs, ``[K]`` each.
          clients: whose rows these are.
          sending: which of the rows leave.
          grid: that rows are rounded to, for noise in whole steps.
        """
        for name, value in spent.items():
            self.spent[name] = self.spent[name] + value if name in self.spent else value
        exposed = sending & (sensitivity > 0)  # others' messages depend on nobody's data
        moved = jnp.max(jnp.where(exposed, rounded_off(clean) / sensitivity, 0))
        self.rounding = jnp.maximum(self.rounding, moved.astype(self.rounding.dtype))
        clean = made_finite(clean)
        if grid is not None:
            return on_grid(clean, noise, grid)
        return clean + noise

    def _open(self, value: T, what: str) -> T:
        """What leaves as it is, and must not depend on private data; a listener may look at it.

        Args:
          value: an array, or several.
          what: it is.
        """
        return value

    def _noisy(
        self, message: Array, clients: Array, step_size: Array | float | None
    ) -> Float[Array, "senders numbers"]:
        noise = self._stages.upload_noise
        if noise is None:
            return message
        self._used.add("upload_noise")
        return noise.onto(self._keys("uploads", clients), message, step_size)

    def _masks(
        self, clients: Array, sending: Array, dim: int, dtype: Any
    ) -> Float[Array, "senders dim"]:
        """Of the clients that send to the same server, in a sum of weights one."""
        masks, network = self._stages.masks, self._network
        assert masks is not None
        self._used.add("masks")
        server, most = jnp.zeros_like(clients), len(clients)
        if isinstance(network, Federation):
            server = jnp.asarray(network.server, jnp.int32)[clients]
            most = min(most, int(network.sizes.max()))
        key = jax.random.fold_in(self.key("masks"), self._sent)
        return masks.masks(key, clients, server, sending, most, dim, dtype)

    def _compressed(
        self,
        message: Float[Array, "senders numbers"],
        senders: Int[Array, " senders"],
        around: Float[Array, "#senders numbers"],
        compression: Compressor | None,
    ) -> Float[Array, "senders numbers"]:
        if compression is None:
            return message
        keys = self._keys("compression", senders)
        return around + compression.compress(keys, message - around)

    def _attacked(
        self, message: Array, clients: Array, sending: Array, around: Array
    ) -> Float[Array, "senders numbers"]:
        attack = self._stages.attack
        if attack is None:
            return message
        attacking = jnp.asarray(attack.attackers)[clients] & sending
        return attack.say(self._keys("attack", clients), message, attacking, sending, around)

    def _keys(self, purpose: str, clients: Int[Array, " some"]) -> Array:
        """A key of each client, whichever row it stands in."""
        key = self.key(purpose)
        if self._sent > 1:
            key = jax.random.fold_in(key, self._clients + self._sent)  # beyond all clients
        return jax.vmap(lambda k: jax.random.fold_in(key, k))(clients)

    # Within a client ----------------------------------------------------------------------------

    def descend(
        self,
        steps: int,
        participants: Participants,
        start: Float[Array, "chosen dim"],
        draw: Callable[[Array], tuple[Any, Float[Array, " chosen"]]],
        move: Callable[[Array, Array], Array],
    ) -> Float[Array, "chosen dim"]:
        """The participants' models after so many steps, each along the gradient of a batch of its
        own, perturbed where the budget is spent on gradients.

        Args:
          steps: of each participant, in this round.
          participants: who takes them.
          start: ``[M, D]``, that everybody may know.
          draw: of a key the batches of a step, a problem of these clients, and the largest weight
            that a sample of each can have in it, ``[M]``.
          move: of models and gradients, ``[M, D]`` each, the next models.
        """
        key, mechanism = self.key("gradients"), self._stages.privacy

        def one(model: Array, step: Array) -> tuple[Array, Any]:
            k_batch, k_noise = jax.random.split(jax.random.fold_in(key, step))
            batch, share = draw(k_batch)
            if not isinstance(mechanism, NoisyGradients):
                return move(model, batch.gradient(model)), None
            inner = self._within(step)
            slope = inner._slope(mechanism, k_noise, batch, model, share, participants)
            return move(model, slope), inner._told()

        model, told = jax.lax.scan(one, start, jnp.arange(steps, dtype=jnp.int32))
        if told is not None:
            self._hear(told)
        return model

    def _slope(
        self,
        mechanism: NoisyGradients,
        key: Array,
        batch: Any,
        model: Array,
        share: Array,
        participants: Participants,
    ) -> Float[Array, "chosen dim"]:
        """The gradients of one step, as they leave the data."""
        clients, here = participants.numbers, participants.here
        times = jnp.zeros(self._clients, jnp.int32).at[clients].add(here.astype(jnp.int32))
        spent = mechanism.spent(times, model.dtype)
        noise = mechanism.noise(key, model, share)
        sensitivity = mechanism.sensitivity(share)
        clean = mechanism.gradient(batch, model, share)
        return self._leave(clean, noise, sensitivity, spent, clients, here)

    def _within(self, step: Array) -> "Link":
        """A link for one of several steps in a round: what leaves in it is added up afterwards."""
        inner = copy.copy(self)
        inner.spent, inner.rounding = {}, jnp.zeros(())
        return inner

    def _told(self) -> Any:
        """What a step has to tell of what left in it."""
        return self.spent, self.rounding

    def _hear(self, told: Any) -> None:
        """Add up what the steps of a round told, ``[steps, ...]`` each."""
        spent, rounding = told
        for name, value in spent.items():
            self.spent[name] = self.spent.get(name, 0) + jnp.sum(value, axis=0)
        self.rounding = jnp.maximum(self.rounding, jnp.max(rounding))

    # Along -------------------------------------------------------------------------------------

    def _works(self) -> list[Bool[Array, "..."]] | None:
        """Which edges, or ways up to the server, work in this round."""
        losses = self._stages.losses
        if losses is None or self._working is not None:
            return self._working
        uniform = _uniforms(
            losses, self.key("losses"), self._network, self._clients, jnp.result_type(float)
        )
        both = [losses.draw(s, u) for s, u in zip(self.memory.losses, uniform, strict=True)]
        self.memory = self.memory._replace(losses=[state for state, _ in both])
        self._working = [works for _, works in both]
        return self._working

    def _ages(self, bound: int) -> list[Int[Array, "rows slots"]] | None:
        """How old the copy is that is heard over each edge; ``bound``: none."""
        law, works = self._stages.delays, self._works()
        if law is None and works is None:
            return None
        assert isinstance(self._network, Graph)
        ages, everyone = [], jnp.arange(self._clients, dtype=jnp.int32)
        for number, part in enumerate(self._network.entries.parts):
            if law is None:
                age = jnp.zeros(part.weights.shape, jnp.int32)
            else:
                key = jax.random.fold_in(self.key("delays"), number)
                edges = part.nodes[:, None], part.of_neighbors(everyone)
                lag = law.over(key, self._round, *jnp.broadcast_arrays(*edges))
                age = jnp.asarray(np.append(law.lags, bound), jnp.int32)[lag]
            ages.append(age if works is None else jnp.where(works[number], age, bound))
        return ages

    def _chosen(
        self, past: Array, said: Array, newest: Array | int, ages: list[Array] | None, bound: int
    ) -> list[Int[Array, "rows slots"]]:
        """The same ages, and none of who is heard but not listened to."""
        learned, network = self._stages.learned, self._network
        assert learned is not None
        (part,) = network.entries.parts
        everyone = jnp.arange(self._clients, dtype=jnp.int32)
        senders = jnp.broadcast_to(part.of_neighbors(everyone), part.weights.shape)
        age = jnp.zeros(part.weights.shape, jnp.int32) if ages is None else ages[0]
        at = ((newest - age) % bound) * self._clients + senders
        apart = part.distances(past.reshape(-1, said.shape[1]), said, at)
        apart = jnp.where(age < bound, apart, jnp.inf)
        return [jnp.where(learned.kept(part, apart), age, bound)]

    # In: peers -----------------------------------------------------------------------------------

    def exchange(
        self,
        message: Float[Array, "clients dim"],
        *,
        receivers: Int[Array, " clients"] | None = None,
        compression: Compressor | None = None,
    ) -> tuple[Array, Inbox]:
        """Send one message of every client to its neighbors.

        A client that is absent says nothing; its neighbors keep what it said last.

        Args:
          message: ``[K, D]``.
          receivers: ``[K]``, to how many of its neighbors each client's message goes, all by
            default: what is counted. Let nobody else combine it: the weights of who hears nothing
            from it are zero.
          compression: the algorithm's own, in place of the simulation's.

        Returns:
          What each client said, ``[K, D]``, as it was perturbed and compressed, and the inbox of
          what its neighbors hear. A second message of the same round goes over the same links,
          working or not, and draws its compression for itself.

        Raises:
          ValueError: as :meth:`send`; absent clients where nobody remembers what they said; a
            second message in a round, or one of another size, where what is said is remembered.
        """
        past, newest = self.memory.past, 0
        if past is not None and self._sent:
            raise ValueError(
                "an algorithm exchanged a second message in one round, and of each peer one is "
                "remembered for the rounds in which it is late or absent. Join the two into one "
                "message, [clients, 2 * dim], and let the algorithm's message_size say so; or "
                "leave out delays= and participation=."
            )
        if past is not None and message.shape[1] != past.shape[2]:
            raise ValueError(
                f"a message has {message.shape[1]} numbers, and {past.shape[2]} are remembered of "
                "each peer; let the algorithm's message_size say how many there are."
            )
        if past is None and not self._everyone:
            raise ValueError(
                "absent peers need a memory of what they said last; begin the link with "
                "fljax.link.begin(..., asleep=True)."
            )
        clean = self.send(
            message,
            sending=None if self._everyone else self.available,
            receivers=receivers,
            compression=compression,
        )
        said, cancelled, added = clean, None, None
        if self._stages.noise is not None:
            self._used.add("noise")
            key = jax.random.fold_in(self.key("noise"), self._sent)
            said, cancelled = self._stages.noise.said(key, clean)
            added = self._stages.noise, key
        bound = 1 if past is None else past.shape[0]
        if past is not None:
            newest = self._round % bound
            if not self._everyone:
                before = past[(self._round - 1) % bound]
                said = jnp.where(self.available[:, None], said, before)
            past = past.at[newest].set(said)
            self.memory = self.memory._replace(past=past)
        ages = self._ages(bound)
        if self._stages.learned is not None:
            ages = self._chosen(said if past is None else past, said, newest, ages, bound)
        inbox = Inbox(
            self._network,
            said,
            past if ages is not None else None,
            newest if ages is not None else 0,
            ages,
            self._stages.aggregation,
            None if self._stages.noise is None else clean,
            cancelled,
            added,
        )
        self._inboxes.append(inbox)
        return said, inbox

    def finish(self, algorithm: str) -> None:
        """Raise ``TypeError`` where a stage had nothing to do: a budget or noise without a message;
        failing links, late messages or an aggregator where nobody read what was heard.
        """
        stages = self._stages
        given = {"losses": stages.losses, "delays": stages.delays}
        given |= {"aggregation": stages.aggregation, "network": stages.learned}
        if stages.privacy is not None and not self.spent:
            raise TypeError(
                f"{algorithm}.step sends no message in a round, so there is nothing private to "
                "account for; let it exchange or send one, or leave out privacy=."
            )
        for name in ("noise", "upload_noise", "masks"):
            if getattr(stages, name) is not None and name not in self._used:
                raise TypeError(
                    f"{algorithm}.step sends no message that {name}= is for; let peers exchange "
                    "theirs, servers combine them and clients send or collect them, all by "
                    f"now.link, or leave out {name}=."
                )
        useless = [f"{name}=" for name, part in given.items() if part is not None]
        if useless and self._inboxes and not any(inbox.read for inbox in self._inboxes):
            raise TypeError(
                f"{algorithm}.step reads none of its inboxes, so {' and '.join(useless)} would do "
                "nothing. Combine what was heard by inbox.mean(over=now.network.mixing()) or "
                "inbox.sum(), and not what was said by the network itself."
            )

    # In: servers ---------------------------------------------------------------------------------

    def mean(
        self, said: Float[Array, "clients dim"], around: Float[Array, " dim"]
    ) -> Float[Array, " dim"]:
        """The server's mean of what those said that are there, or what the aggregator makes of it.

        Args:
          said: ``[K, D]``, what :meth:`send` returned.
          around: ``[D]``, what the server has; it stays where nothing arrives.
        """
        if self._everyone and self._stages.losses is None and self._stages.aggregation is None:
            return jnp.mean(said, axis=0)
        one = jnp.zeros(len(said), jnp.int32)
        who = Participants(None, self.available)
        mean, present = self._cells(said, one, 1, who, around[None])
        return jnp.where(present[0] > 0, mean[0], around)

    def known(
        self, said: Float[Array, "clients dim"], before: Float[Array, "clients dim"]
    ) -> Float[Array, "clients dim"]:
        """What a server that remembers its clients' last messages knows of each after this round.

        Args:
          said: ``[K, D]``, what :meth:`send` returned.
          before: ``[K, D]``, what it knew; it stays of a client whose message does not arrive.
        """
        here, works = self.available, self._works()
        if works is not None:
            here = here & works[0]
        return jnp.where(here[:, None], said, before)

    def cell_means(
        self,
        said: Float[Array, "chosen dim"],
        cluster: Int[Array, " chosen"],
        clusters: int,
        participants: Participants,
        around: Float[Array, "servers clusters dim"],
    ) -> tuple[Float[Array, "servers clusters dim"], Float[Array, "servers clusters 1"]]:
        """At each server the mean of what its participants of a cluster said, zero where there is
        none, and whether there is one (1 or 0); an aggregator takes the place of the mean.

        Args:
          said: ``[M, D]``, what :meth:`send` returned, or what a server computes from it.
          cluster: ``[M]``.
          clusters: ``Q``.
          participants: whose rows these are.
          around: ``[P, Q, D]``, what the servers have.
        """
        network = self._network
        assert isinstance(network, Federation)
        server = participants.take(jnp.asarray(network.server, jnp.int32))
        cells = network.servers * clusters
        mean, present = self._cells(
            said, server * clusters + cluster, cells, participants, around.reshape(cells, -1)
        )
        shape = (network.servers, clusters, -1)
        return mean.reshape(shape), present.reshape(shape)

    def _cells(
        self, said: Array, cell: Array, cells: int, who: Participants, around: Array
    ) -> tuple[Float[Array, "cells dim"], Float[Array, "cells 1"]]:
        here, works = who.here, self._works()
        if works is not None:
            here = here & who.take(works[0])
        aggregator = self._stages.aggregation
        if aggregator is None:
            cell = jnp.where(here, cell, cells)  # dropped
            ones = jnp.ones((len(cell), 1), said.dtype)
            total, count = (jax.ops.segment_sum(a, cell, cells) for a in (said, ones))
            return total / jnp.maximum(count, 1), (count > 0).astype(said.dtype)
        numbers = jnp.arange(cells, dtype=jnp.int32)[:, None]
        inside = ((cell[None] == numbers) & here[None]).astype(said.dtype)

        def one(given: tuple[Array, Array]) -> Array:
            weights, around = given
            return aggregator.combine(said[None], weights[None], around[None])[0]

        present = (jnp.sum(inside, axis=1, keepdims=True) > 0).astype(said.dtype)
        return present * jax.lax.map(one, (inside, around)), present

    def collect(
        self,
        messages: Callable[[Int[Array, " group"]], Array | tuple[Array, Array]],
        senders: Bool[Array, " senders"],
        around: Float[Array, " dim"],
        *,
        size: int | None = None,
        weights: Float[Array, " senders"] | None = None,
        discount: Array | float | Callable[[Array], Array] = 1.0,
        normalized: bool = True,
        per_delay: bool = False,
        freshest: bool = True,
        compression: Compressor | None = None,
        clients: Int[Array, " senders"] | None = None,
        step_size: Array | float | None = None,
    ) -> Arrived:
        r"""Send clients' messages to the server through delays; returns what arrives now.

        Message :math:`i` of client :math:`k`, sent :math:`l` rounds ago, gets the weight
        :math:`a_i=\alpha_l\omega_k/\sum\omega`, the sum over all messages that arrive in the round
        (the average of P4 (6) over the arrivals); or, ``per_delay``, over those that took
        :math:`l` rounds too, so that each class of equally delayed messages is averaged on its own
        (Gauthier 2024, (4.13)-(4.14)).

        Args:
          messages: maps some rows of ``senders`` to their messages ``[group, D]``, or, where a
            message holds only some parameters, to values and parameters, ``[group, size]`` each.
          senders: ``[M]``, who sends.
          around: ``[D]``, what both ends know, from which differences are compressed: the
            server's model, or zero for messages that are no models.
          size: parameters in a message, if not all.
          weights: :math:`\omega_k`, one by default.
          normalized: whether weights are divided by their sum; if not,
            :math:`a_i=\alpha_l\omega_k`, for weights that know of all clients and not of those
            alone whose messages arrive, and what adds up are differences from what ``around`` was
            when they were sent.
          discount: :math:`\alpha_l=\mathrm{discount}^l`; or :math:`\alpha` itself, one entry for
            each of the delay law's lags, or a function of them.
          per_delay: as above.
          freshest: per delay, only the freshest of several classes that change the same parameter
            in one round counts for it (P4, line 2596); else all of them do.
          compression: the algorithm's own, in place of the simulation's.
          clients: ``[M]``, whose rows these are, none twice among those who send (of one that is, a
            trusted server takes the first row); all of them, in order, by default.
          step_size: :math:`\mu` where a message is :math:`w-\mu\psi` of an update :math:`\psi`, one
            where it is an update itself; asked for only where noise is on updates.

        Raises:
          ValueError: where messages are perturbed at their senders; under a trusted server's
            mechanism where what it sums is not bounded (weights, parts of a model); a discount
            with another number of lags; a client known to have two rows.
        """
        if self.private:
            raise ValueError("what is collected is not perturbed; a private round must send.")
        self._sent += 1
        law, works = self._stages.delays or Fixed(0), self._works()
        compression = compression or self._stages.compression
        (dim,), dtype = around.shape, around.dtype
        if clients is None:
            clients = jnp.arange(len(senders), dtype=jnp.int32)
        _check_once(clients, senders)
        senders = self._open(senders, "who sends to a server")
        if self._scope == "server":
            senders = _once(clients, senders, self._clients)
        else:
            weights = weights if weights is None else self._open(weights, "weights of messages")
            messages = self._opened(messages)
        if self._stages.upload_noise is not None:
            messages = self._with_noise(messages, clients, step_size)
        if self._stages.masks is not None:
            messages = self._masked(messages, clients, senders, around, size, weights)
        numbers = dim if size is None else size
        if compression is not None:
            compression.check(numbers)
        bits = WORD * numbers if compression is None else compression.bits(numbers)
        sent = jnp.sum(senders, dtype=jnp.int32)
        self._count(sent, numbers, up=bits)

        lag = law.draw(self.key("delays"), self._round, len(self.available))[clients]
        if works is not None:
            lag = jnp.where(works[0][clients], lag, len(law.lags))  # lost
        if self._stages.attack is not None:
            messages = self._all(messages, clients, senders, around, compression)
            compression = None
        arriving = senders & (lag < len(law.lags))
        if self._scope == "server":
            if size is not None or weights is not None:
                raise ValueError(
                    "a trusted server's mechanism bounds what one client adds to a plain sum of "
                    "whole models; weigh all clients alike and send all parameters."
                )
            return self._perturbed_sum(messages, senders, arriving, around, clients, compression)
        if self._stages.aggregation is not None:
            return self._aggregated(messages, arriving, clients, around, weights, compression)
        weight = senders.astype(dtype) if weights is None else jnp.where(senders, weights, 0)
        classes = np.arange(len(law.lags), dtype=np.int32)[:, None]
        of_class = jnp.where(lag[None] == classes, weight[None], 0)
        count = jnp.sum(of_class, axis=1)

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            """The group's messages on top of the sums of each lag, ``[lags, D]``."""
            (total, share), who = sums, clients[group]
            message = messages(group)
            if isinstance(message, tuple):
                values, at = message
                values = self._compressed(values, who, around[at], compression)
                values = values if normalized else values - around[at]
                own = jnp.broadcast_to(jnp.where(real, weight[group], 0)[:, None], at.shape)
                entries = (lag[group][:, None], at)
                total = total.at[entries].add(own * values, mode="drop")
                share = share.at[entries].add(own, mode="drop")
            else:
                message = self._compressed(message, who, around[None], compression)
                message = message if normalized else message - around[None]
                own = jnp.where(real[None], of_class[:, group], 0)
                total = total + jnp.matmul(own, message, precision=HIGHEST)
                share = share + jnp.sum(own, axis=1, keepdims=True)
            return total, share

        zero = jnp.zeros((len(law.lags), dim), dtype)
        total, share = _in_groups(add, senders, (zero, zero))

        lags = np.asarray(law.lags)
        late = jnp.asarray(lags, dtype)
        alpha = jnp.asarray(discount(late) if callable(discount) else discount, dtype)
        if alpha.ndim and alpha.shape != lags.shape:
            raise ValueError(
                f"discount must be one number or one for each of the {len(lags)} lags of the delay "
                f"law, got {alpha.shape[0]}."
            )
        if alpha.ndim == 0:
            alpha = alpha**late
        apart = per_delay and normalized
        scale = alpha / jnp.where(count > 0, count, 1) if apart else alpha
        now = Line(scale[:, None] * total, scale[:, None] * share, count)
        if self.memory.line is not None:
            now = Line(*(law.placed(entry) for entry in now))
            waiting = self.memory.line
            if per_delay and freshest:
                # A class sent later arrives fresher: it takes the place of what waits there.
                covered = law.placed(share) > 0
                total, share = (jnp.where(covered, 0, entry) for entry in waiting[:2])
                waiting = Line(total, share, waiting.weight)
            now = Line(*(old + new for old, new in zip(waiting, now, strict=True)))
            line = Line(*(jnp.concatenate([e[1:], jnp.zeros_like(e[:1])]) for e in now))
            self.memory = self.memory._replace(line=line)
        total, share, weight = (entry[0] for entry in now)
        if not normalized:
            # A late model that counts for more than one would throw the server's back and beyond.
            total = total + share * around
        together = normalized and not per_delay
        heard = jnp.where(weight > 0, weight, 1) if together else jnp.ones_like(weight)
        return Arrived(total / heard, share / heard, weight)

    def _opened(self, messages: Callable[[Array], Any]) -> Callable[[Array], Any]:
        return lambda group: self._open(messages(group), "a message to a server")

    def _with_noise(
        self, messages: Callable[[Array], Any], clients: Array, step_size: Array | float | None
    ) -> Callable[[Array], Any]:
        def noisy(group: Array) -> Any:
            message = messages(group)
            if not isinstance(message, tuple):
                return self._noisy(message, clients[group], step_size)
            values, at = message
            return self._noisy(values, clients[group], step_size), at

        return noisy

    def _masked(
        self,
        messages: Callable[[Array], Any],
        clients: Array,
        senders: Array,
        around: Array,
        size: int | None,
        weights: Array | None,
    ) -> Callable[[Array], Any]:
        if size is not None:
            raise ValueError(
                "masks cancel in a sum of whole messages, and these hold some parameters each; "
                "leave out masks=."
            )
        masks = self._masks(clients, senders, around.shape[0], around.dtype)
        if weights is not None:
            masks = masks / jnp.where(weights > 0, weights, 1)[:, None]
        return lambda group: messages(group) + masks[group]

    def _all(
        self,
        messages: Callable[[Array], Any],
        clients: Array,
        senders: Array,
        around: Array,
        compression: Compressor | None,
    ) -> Callable[[Array], Any]:
        """All messages as they are said under an attack, which may look at them together."""
        message = messages(jnp.arange(len(senders), dtype=jnp.int32))
        values, at = message if isinstance(message, tuple) else (message, None)
        known = around[None] if at is None else around[at]
        values = self._compressed(values, clients, known, compression)
        values = self._attacked(values, clients, senders, known)
        return lambda group: values[group] if at is None else (values[group], at[group])

    def _perturbed_sum(
        self,
        messages: Callable[[Array], Any],
        senders: Array,
        arriving: Array,
        around: Array,
        clients: Array,
        compression: Compressor | None,
    ) -> Arrived:
        """What a trusted server publishes in the place of a mean."""
        mechanism, state = self._stages.privacy, self.memory.mechanism
        if self.spent:
            raise ValueError(
                "an algorithm collected twice in one round, and the budget's account knows of one "
                "release. Join the two messages into one."
            )
        assert isinstance(mechanism, CentralGaussian)
        zero = jnp.zeros((), around.dtype)

        def add(group: Array, real: Array, sums: Any) -> Any:
            total, within, count = sums
            message = self._compressed(messages(group), clients[group], around[None], compression)
            change, kept = clipped_rows(message - around[None], state.clip)
            here = real.astype(around.dtype)
            total = total + jnp.matmul(here, change, precision=HIGHEST)
            # Who changes nothing is not counted, as one who is not there: neighbors to each other.
            counted = jnp.where(jnp.any(change != 0, axis=1), here, 0)
            return total, within + jnp.sum(jnp.where(kept, counted, 0)), count + jnp.sum(counted)

        sums = _in_groups(add, arriving, (jnp.zeros_like(around), zero, zero))
        release = mechanism.release(self._plan, state, self.key("server"), *sums)
        took_part = jnp.zeros(len(self.available), bool).at[clients].max(senders)
        only = jnp.zeros(1, jnp.int32)
        said = self._leave(
            release.clean[None],
            release.noise[None],
            release.sensitivity[None],
            mechanism.spent(took_part, around.dtype),
            only,
            only == 0,
        )
        mean, state = mechanism.after(self._plan, state, release, said[0])
        self.memory = self.memory._replace(mechanism=state)
        return Arrived(around + mean, jnp.ones_like(around))

    def _aggregated(
        self,
        messages: Callable[[Array], Any],
        arriving: Array,
        clients: Array,
        around: Array,
        weights: Array | None,
        compression: Compressor | None,
    ) -> Arrived:
        aggregator = self._stages.aggregation
        assert aggregator is not None
        message = messages(jnp.arange(len(arriving), dtype=jnp.int32))
        message = self._compressed(message, clients, around[None], compression)
        weight = jnp.ones(len(arriving), around.dtype) if weights is None else weights
        weight = jnp.where(arriving, weight, 0)
        total = aggregator.combine(message[None], weight[None], around[None])[0]
        any_arrives = jnp.any(weight > 0)
        return Arrived(
            jnp.where(any_arrives, total, 0),
            jnp.broadcast_to(any_arrives, around.shape).astype(around.dtype),
            jnp.sum(weight),
        )

    # Down ----------------------------------------------------------------------------------------

    def publish(
        self,
        message: Float[Array, "*servers dim"],
        receivers: Bool[Array, "..."] | None = None,
        size: int | None = None,
    ) -> Float[Array, "*servers dim"]:
        """Count one message of the server to every available client, or to the given ones.

        What is computed from perturbed messages is private already and gets no noise; nothing is
        delayed on this way (P4, line 2556).

        Args:
          message: ``[D]``; of several servers ``[P, D]`` or ``[P, Q, D]``.
          receivers: a mask of who gets it.
          size: of its numbers that are sent to each; all by default.
        """
        sent = jnp.sum(self.available if receivers is None else receivers, dtype=jnp.int32)
        numbers = message.shape[-1] if size is None else size
        self._count(sent, numbers, down=WORD * numbers)
        return self._open(message, "what a server publishes")

    def count(self, dim: int) -> None:
        """Count one message of ``dim`` numbers from every client to each of its receivers.

        For messages that nothing happens to (:attr:`exact`) and that need not exist one by one.
        """
        self._count_sent(jnp.sum(self._receivers), dim, self._stages.compression)

    def _count_sent(self, messages: Array, dim: int, compression: Compressor | None) -> None:
        bits = WORD * dim if compression is None else compression.bits(dim)
        self._count(messages.astype(jnp.int32), dim, up=bits)

    def relay(self, numbers: int) -> None:
        """Count one message of so many numbers from every server to each of its neighbors.

        What servers pass on is computed from messages that were perturbed already.
        """
        network = self._network
        assert isinstance(network, Federation)
        if network.graph is not None:
            messages = jnp.sum(network.graph.neighbor_counts(), dtype=jnp.int32)
            self._count(messages, numbers, down=WORD * numbers)

    def combine(
        self, models: Float[Array, "servers dim"], over: Combination
    ) -> Float[Array, "servers dim"]:
        """What servers make of each other's models, with the noise between them; counted.

        Args:
          models: ``[P, D]``, of each server.
          over: a combination of the servers' graph.
        """
        network = self._network
        assert isinstance(network, Federation)
        assert network.graph is not None
        self.relay(models.shape[1])
        models = self._open(models, "what servers tell each other")
        noise = self._stages.noise
        if noise is None:
            return over(models)
        self._used.add("noise")
        key = self.key("noise")
        said, cancelled = noise.said(key, models)
        inbox = Inbox(network.graph, said, own=models, cancelled=cancelled, noise=(noise, key))
        return inbox.mean(over)

    def _count(self, messages: Array, numbers: int, up: int = 0, down: int = 0) -> None:
        new = Traffic(*(wide(messages, times) for times in (1, numbers, up, down)))
        self.traffic = self.traffic.plus(new)


def _check_once(clients: Array, sending: Array) -> None:
    """Raise ``ValueError`` where a client is known to send two messages as one."""
    if not (_check.is_concrete(clients) and _check.is_concrete(sending)):
        return
    numbers, times = np.unique(np.asarray(clients)[np.asarray(sending)], return_counts=True)
    if np.any(times > 1):
        raise ValueError(
            f"client {numbers[np.argmax(times)]} sends {times.max()} rows of one message; give "
            "each client one row (clients=), and join what it has to say into it."
        )


def _once(
    clients: Int[Array, " senders"], sending: Bool[Array, " senders"], count: int
) -> Bool[Array, " senders"]:
    """Which rows are sent, of a client that has several only the first: a trusted server bounds
    what one client adds to its sum.
    """
    rows = jnp.arange(len(clients), dtype=jnp.int32)
    first = jnp.full(count, len(clients), jnp.int32)
    first = first.at[jnp.where(sending, clients, count)].min(rows, mode="drop")
    return sending & (first[clients] == rows)


def _in_groups(
    add: Callable[[Array, Array, Any], Any], senders: Bool[Array, " senders"], sums: Any
) -> Any:
    """``add(rows, which of them send, sums)`` over all senders, on a CPU group by group."""
    rows = jnp.arange(senders.shape[0], dtype=jnp.int32)
    if senders.shape[0] <= GROUP or not on_cpu():
        return add(rows, senders, sums)
    rank = jnp.cumsum(senders, dtype=jnp.int32)
    room = -(-senders.shape[0] // GROUP) * GROUP
    order = jnp.zeros(room, jnp.int32).at[jnp.where(senders, rank - 1, room)].set(rows, mode="drop")

    def one(group: Array, sums: Any) -> Any:
        first = GROUP * group
        chosen = jax.lax.dynamic_slice(order, (first,), (GROUP,))
        return add(chosen, first + jnp.arange(GROUP, dtype=jnp.int32) < rank[-1], sums)

    return jax.lax.fori_loop(0, (rank[-1] + GROUP - 1) // GROUP, one, sums)
