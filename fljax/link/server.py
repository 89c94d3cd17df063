"""Messages to servers (collected, averaged, or summed by a trusted server), and from servers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._linalg import CLIP_ROUNDINGS, accumulated, clipped_rows, rounded_off
from fljax._memory import on_cpu
from fljax._numerics import HIGHEST
from fljax.federation import Federation
from fljax.graphs import Combination
from fljax.link.compression import WORD, Compressor
from fljax.link.delays import DelayLaw, Fixed, Line
from fljax.link.inbox import Inbox
from fljax.link.out import ROUNDINGS, Out, first_rows
from fljax.link.uploads import Agreed, Masked
from fljax.participation import Participants
from fljax.privacy import CentralGaussian

__all__ = ["GROUP", "Arrived", "Server"]

#: On a CPU the messages of so many senders are made together; with few clients there at a time,
#: what the others would have sent is not computed. An accelerator makes all of them at once.
GROUP = 32

#: Makes the messages of some rows, and says which parameters they hold.
Making = Callable[[Int[Array, " group"]], Float[Array, "group numbers"]]
Placing = Callable[[Int[Array, " group"]], Int[Array, "group numbers"]]


class Arrived(NamedTuple):
    r"""Sums of the arrivals of a round: :math:`\sum_i a_iS_iw_i` and :math:`\sum_ia_iS_i`."""

    total: Array  # [D], or [P, D] of each server
    share: Array  # likewise
    #: [] or [P]  sum of the weights of all messages that arrive; a trusted server does not tell
    weight: Array | None = None

    @property
    def any(self) -> Bool[Array, ""]:
        """Whether anything arrived."""
        return jnp.any(self.share > 0)

    def move(self, model: Float[Array, "*servers dim"]) -> Float[Array, "*servers dim"]:
        r"""Return :math:`w+\sum_ia_iS_i(w_i-w)`; the model itself where nothing arrived."""
        return model + self.total - self.share * model


class Boxes(NamedTuple):
    """Whose sums messages go into: those of their servers, or of each client its own. The boxes'
    parameters stand end to end.
    """

    number: int
    of: Array  # [M]  the box of each message
    dim: int
    held: Callable[[Array], Array | None]  # which parameters messages hold; None: all

    def place(self, rows: Int[Array, " group"]) -> Int[Array, "group numbers"] | None:
        """Where the numbers of these messages go; ``None`` of whole ones into one box."""
        held = self.held(rows)
        if self.number == 1:
            return held
        held = jnp.arange(self.dim, dtype=jnp.int32)[None] if held is None else held
        return held + self.dim * self.of[rows][:, None]

    def sums(self, values: Float[Array, "lags messages"]) -> Float[Array, "lags boxes"]:
        """Of each lag, and each box."""
        if self.number == 1:
            return jnp.sum(values, axis=1, keepdims=True)
        return jnp.zeros((len(values), self.number), values.dtype).at[:, self.of].add(values)


class Server(Out):
    """The messages to one or several servers, and from them."""

    @property
    def exact(self) -> bool:
        """Whether receivers get the messages of all clients at once and unchanged, so that an
        aggregate may be computed directly.
        """
        return not self.private and self.whole

    @property
    def whole(self) -> bool:
        """Whether all clients take part, and their messages, perturbed or not, arrive at once and
        are averaged.
        """
        return (
            self._everyone
            and self._scope != "server"
            and all(part is None for part in self._stages[1:])
        )

    # Up ------------------------------------------------------------------------------------------

    def average(
        self,
        learn: Callable[[Int[Array, " group"] | None], Any],
        around: Float[Array, " dim"],
        *,
        at_once: Callable[[], Float[Array, " dim"]] | None = None,
        step_size: Array | float | None = None,
    ) -> Float[Array, " dim"]:
        """Return the mean of the clients' models, computed in the cheapest way.

        Args:
          learn: function from client numbers to their models; or, from ``None``, to those of all
            clients and what :meth:`send` takes as their ``rounding``. The models are sent,
            perturbed if there is a budget.
          around: ``[D]``, the server's model; it is kept where nothing arrives.
          at_once: computes the mean itself, where this costs less than single models: used where
            no stage changes these.
          step_size: as of :meth:`collect`.
        """
        if at_once is not None and self.exact:
            self._count_sent(jnp.sum(self._receivers), len(around), None)
            return at_once()
        if self.whole or self.private:
            models, rounding = learn(None)
            said = self.send(
                models,
                around,
                sending=None if self._everyone else self.available,
                step_size=step_size,
                rounding=rounding,
            )
            return self.mean(said, around)
        # Only those who are there compute, and the average is over what arrives.
        return self.collect(learn, self.available, around, step_size=step_size).move(around)

    def collect(
        self,
        message: Float[Array, "senders numbers"] | Making,
        senders: Bool[Array, " senders"],
        around: Float[Array, "*servers dim"],
        *,
        at: Int[Array, "senders numbers"] | Placing | None = None,
        weights: Float[Array, " senders"] | None = None,
        discount: Array | float | Callable[[Array], Array] = 1.0,
        normalized: bool = True,
        per_delay: bool = False,
        freshest: bool = True,
        compression: Compressor | None = None,
        clients: Int[Array, " senders"] | None = None,
        step_size: Array | float | None = None,
        numbers: Int[Array, " senders"] | None = None,
    ) -> Arrived:
        r"""Send clients' messages to their server through delays; return what arrives now.

        Message :math:`i` of client :math:`k`, sent :math:`l` rounds ago, has the weight
        :math:`a_i=\alpha_l\omega_k/\sum\omega`, the sum over all messages that arrive in the round
        (the average of P4 (6) over the arrivals); or, ``per_delay``, only over those with the delay
        :math:`l`, so that each class of equally delayed messages is averaged separately
        (Gauthier 2024, (4.13)-(4.14)). An aggregator combines all messages that arrive in the
        round, at most one per client, whatever their delay: a few late ones have no majority. For
        parameters that a message does not hold the aggregator uses the server's own, and a late
        message's deviation from these is multiplied by :math:`\alpha_l`.

        Args:
          message: ``[M, D]``; or, where it is expensive to compute, a function from some rows to
            their messages, ``[group, D]``: on a CPU it is called for the senders, in groups.
          senders: ``[M]``, which rows are sent.
          around: ``[D]``, known to both ends, differences from it are compressed: the
            server's model, or zero for messages that are no models. For several servers
            ``[P, D]``: clients send to their own, and sums are over its clients.
          at: ``[M, size]``, which parameters a message holds, if not all: then the message is
            ``[M, size]`` too; or a function of some rows.
          weights: :math:`\omega_k`, one by default.
          normalized: whether weights are divided by their sum; if not,
            :math:`a_i=\alpha_l\omega_k`, for weights that are normalized over all clients and not
            only over the arrivals, and the sum is over differences from ``around`` at the time of
            sending.
          discount: :math:`\alpha_l=\mathrm{discount}^l`; or :math:`\alpha` itself, one entry for
            each of the delay law's lags, or a function of them.
          per_delay: as above.
          freshest: with ``per_delay``, if several classes change the same parameter in one round,
            only the freshest is used for it (P4, section III-C); otherwise all of them are.
          compression: the algorithm's own, in place of the simulation's.
          clients: ``[M]``, the clients of the rows, each at most once among those who send (for a
            client with several, a trusted server uses the first row); all of them, in order, by
            default.
          step_size: :math:`\mu` where a message is :math:`w-\mu\psi` of an update :math:`\psi`, one
            where it is an update itself; used only where noise is on updates.
          numbers: ``[M]``, how many numbers each message has, where it is said by fewer than there
            are in its row and their count depends on the data; they are counted in the place of the
            row's.

        Raises:
          ValueError: where messages are perturbed at their senders; under a trusted server's
            mechanism where its summands are not bounded (weights, parts of a model); a discount
            with another number of lags; a client known to have two rows.
        """
        if self.private:
            raise ValueError(
                "collected messages are not perturbed; in a private round clients must send them "
                "(link.send)."
            )
        trusted = self._scope == "server"
        if trusted and not (at is None and weights is None):
            raise ValueError(
                "a trusted server's mechanism bounds what one client adds to a plain sum of "
                "whole models; weigh all clients alike and send all parameters."
            )
        if self._stages.masks is not None and not (at is None and numbers is None):
            raise ValueError(
                "masks cancel in a sum of whole messages, and these hold some parameters each; "
                "leave out masks=."
            )
        self._sent += 1
        law, works = self._stages.delays or Fixed(0), self._works()
        compression = compression or self._stages.compression
        everyone, dim = jnp.arange(len(senders), dtype=jnp.int32), around.shape[-1]
        clients = everyone if clients is None else clients
        one_server, server = around.ndim == 1, jnp.zeros(self._clients, jnp.int32)
        if not one_server:
            assert isinstance(self._network, Federation)
            server = jnp.asarray(self._network.server, jnp.int32)
        home = server[clients]

        def held(rows: Array) -> Array | None:
            """Which parameters messages hold; ``None``: all."""
            if at is None:
                return None
            return self._open(at(rows) if callable(at) else at[rows], "a message to a server")

        one = jax.eval_shape(held, everyone[:1])
        length = dim if one is None else one.shape[1]
        if compression is not None:
            compression.check(length)
        senders = self._open(self._of_clients(clients, senders), "who sends to a server")
        if trusted:
            senders = first_rows(clients, senders, self._clients)
        senders = self._in_company(clients, senders, compression)
        weights = None if weights is None else self._open(weights, "weights of messages")
        if numbers is None:
            sent = jnp.sum(senders, dtype=jnp.int32)
            self._count_sent(sent, length, compression, around.dtype)
        else:
            numbers = self._open(numbers, "how many numbers messages have")
            self._count_varying(senders, numbers, up=WORD)
        agreed = self._masks(clients, senders, dim, around.dtype)

        def base(rows: Array) -> Array:
            return around[None] if one_server else around[home[rows]]

        def known(rows: Array) -> Array:
            kept = held(rows)
            if kept is None:
                return base(rows)
            return around[kept] if one_server else around[home[rows][:, None], kept]

        def encoded(rows: Array) -> Array:
            made = message(rows) if callable(message) else message[rows]
            if not trusted:
                made = self._open(made, "a message to a server")
            return self._encoded(made, clients[rows], known(rows), compression, step_size)

        def whole(rows: Array, messages: Array) -> Array:
            """Models: with what both ends know in the place of what messages do not hold."""
            kept = held(rows)
            if kept is None:
                return messages
            models = jnp.broadcast_to(base(rows), (len(rows), dim))
            return models.at[jnp.arange(len(rows))[:, None], kept].set(messages)

        if agreed is not None:
            alpha = _discounts(discount, law, around.dtype)[0]  # nothing is late
            return self._masked_sum(encoded, senders, agreed, around, weights, alpha, normalized)
        said: Making = encoded
        if self._stages.attack is not None:  # which may look at all messages together
            honest = whole(everyone, encoded(everyone))
            attacked = self._attacked(honest, clients, senders, base(everyone))

            def lied(rows: Array) -> Array:
                kept = held(rows)
                return attacked[rows] if kept is None else attacked[rows[:, None], kept]

            said = lied
        lag = law.draw(self.key("delays"), self._round, self._clients)[clients]
        if works is not None:
            lag = jnp.where(works[0][clients], lag, len(law.lags))  # lost
        arriving = senders & (lag < len(law.lags))
        if trusted:
            return self._perturbed_sum(said, senders, arriving, around, clients)
        alpha = _discounts(discount, law, around.dtype)
        if self._stages.aggregation is not None:
            if self._stages.delays is None:
                models = whole(everyone, said(everyone))
                return self._aggregated(models, arriving, around, home, weights)
            if weights is not None:
                raise ValueError(
                    "late messages that an aggregator combines count alike; leave out delays=, "
                    "aggregation= or what gives clients weights."
                )
            single = Boxes(self._clients, clients, dim, held)
            sent = self._of_lags(said, senders, senders.astype(around.dtype), lag, law, single)
            due = self._due(sent, alpha[:, None], law, covers=True)
            total, share = (part.reshape(-1, dim) for part in due[:2])
            models = total + (1 - share) * (around[None] if one_server else around[server])
            return self._aggregated(models, due.weight > 0, around, server)
        weight = jnp.where(senders, 1 if weights is None else weights, 0).astype(around.dtype)
        boxes = Boxes(1 if one_server else len(around), home, dim, held)
        start = None if normalized else around
        sent = self._of_lags(said, senders, weight, lag, law, boxes, start)
        alpha = alpha[:, None]
        if per_delay and normalized:
            alpha = alpha / jnp.where(sent.weight > 0, sent.weight, 1)
        due = self._due(sent, alpha, law, covers=per_delay and freshest)
        total, share = (part.reshape(around.shape) for part in due[:2])
        weight = due.weight.reshape(around.shape[:-1])
        if not normalized:
            # A late model that counts for more than one would throw the server's back and beyond.
            total = total + share * around
        elif not per_delay:
            heard = jnp.where(weight > 0, weight, 1)[..., None]
            total, share = total / heard, share / heard
        return Arrived(total, share, weight)

    def _masked_sum(
        self,
        message: Making,
        senders: Array,
        agreed: Agreed,
        around: Float[Array, "*servers dim"],
        weights: Array | None,
        alpha: Array,
        normalized: bool,
    ) -> Arrived:
        r"""The sums that servers decode from masked messages, and of these nothing else.

        A client encodes :math:`\omega_k(w_k-w)/\max_l\omega_l`, so that weights make no number
        larger; the server knows the weights and multiplies by the largest one.
        """
        protocol = self._stages.masks
        one_server, dtype, dim = around.ndim == 1, around.dtype, around.shape[-1]
        start = around.reshape(-1, dim)
        ones = jnp.ones(senders.shape, dtype)
        weight = jnp.where(senders, ones if weights is None else weights.astype(dtype), 0)
        largest = jnp.max(jnp.abs(weight))
        largest = jnp.where(largest > 0, largest, 1)
        word = agreed.masks.dtype

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            total, clipped = sums
            server = agreed.server[group]
            change = message(group) - (around[None] if one_server else start[server])
            values = (weight[group] / largest)[:, None] * change
            words, beyond = self._hidden(values, agreed.masks[group], agreed.most)
            arrived = (real & agreed.summed[group])[:, None]
            sent = jnp.where(arrived, words, word.type(0))
            total = total + protocol.sums(sent, server, agreed.servers)
            beyond = jnp.sum(beyond & real[:, None], dtype=clipped.dtype)
            return total, clipped + beyond

        zero = jnp.zeros((agreed.servers, dim), word)
        total, clipped = _in_groups(add, senders, (zero, jnp.zeros_like(self.clipped)))
        self._note_clipped(clipped, senders, dim)
        change = alpha * largest * protocol.decode(total, agreed.most, dtype)
        arrived = jnp.where(agreed.summed, weight, 0)
        arrived = jax.ops.segment_sum(arrived, agreed.server, agreed.servers)
        share = alpha * arrived
        if normalized:
            known = jnp.where(arrived > 0, arrived, 1)
            change, share = change / known[:, None], share / known
        share = jnp.broadcast_to(share[:, None], start.shape)
        total = change + share * start
        weight = arrived.reshape(around.shape[:-1])
        return Arrived(total.reshape(around.shape), share.reshape(around.shape), weight)

    def _of_lags(
        self,
        said: Making,
        senders: Array,
        weight: Array,
        lag: Array,
        law: DelayLaw,
        boxes: Boxes,
        start: Array | None = None,
    ) -> Line:
        """The sums of what is sent in this round, of each of the law's lags and each box; of
        changes from a start, if there is one.
        """
        classes = np.arange(len(law.lags), dtype=np.int32)[:, None]
        of_class = jnp.where(lag[None] == classes, weight[None], 0)

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            """The group's messages on top of the sums, ``[lags, boxes * D]``."""
            (total, share), message, placed = sums, said(group), boxes.place(group)
            if start is not None:
                message = message - (start[None] if placed is None else start.reshape(-1)[placed])
            if placed is not None:
                own = jnp.broadcast_to(jnp.where(real, weight[group], 0)[:, None], placed.shape)
                entries = (lag[group][:, None], placed)
                total = total.at[entries].add(own * message, mode="drop")
                return total, share.at[entries].add(own, mode="drop")
            own = jnp.where(real[None], of_class[:, group], 0)
            total = total + jnp.matmul(own, message, precision=HIGHEST)
            return total, share + jnp.sum(own, axis=1, keepdims=True)

        zero = jnp.zeros((len(law.lags), boxes.number * boxes.dim), weight.dtype)
        total, share = _in_groups(add, senders, (zero, zero))
        return Line(total, share, boxes.sums(of_class))

    def _due(self, sent: Line, alpha: Array, law: DelayLaw, covers: bool) -> Line:
        """What arrives now, of what is sent and of what was on its way; of one parameter what is
        sent later takes the place of what was sent before and arrives with it, if it ``covers``.
        """
        if alpha.shape[1] > 1:  # of each box, to each of its parameters
            alpha = jnp.repeat(alpha, sent.total.shape[1] // alpha.shape[1], axis=1)
        now = Line(alpha * sent.total, alpha * sent.share, sent.weight)
        waiting = self.memory.line
        if waiting is not None:
            now = Line(*(law.placed(entry) for entry in now))
            if covers:
                covered = law.placed(sent.share) > 0
                total, share = (jnp.where(covered, 0, entry) for entry in waiting[:2])
                waiting = Line(total, share, waiting.weight)
            now = Line(*(old + new for old, new in zip(waiting, now, strict=True)))
            line = Line(*(jnp.concatenate([e[1:], jnp.zeros_like(e[:1])]) for e in now))
            self.memory = self.memory._replace(line=line)
        return Line(*(entry[0] for entry in now))

    def _perturbed_sum(
        self,
        said: Making,
        senders: Array,
        arriving: Array,
        around: Array,
        clients: Array,
    ) -> Arrived:
        """The perturbed sum that a trusted server publishes in place of a mean."""
        mechanism, state = self._stages.privacy, self.memory.mechanism
        if self.spent:
            raise ValueError(
                "an algorithm collected twice in one round, and the budget's account knows of one "
                "release. Join the two messages into one."
            )
        assert isinstance(mechanism, CentralGaussian)
        zero, none = jnp.zeros((), around.dtype), jnp.zeros_like(around)

        def add(group: Array, real: Array, sums: Any) -> Any:
            total, rest, within, count = sums
            change, kept = clipped_rows(said(group) - around[None], state.clip)
            here = real.astype(around.dtype)
            total, rest = _add_in_groups(total, rest, here, change)
            # A client that changes nothing is not counted, like an absent one: the two are
            # neighbors.
            counted = jnp.where(jnp.any(change != 0, axis=1), here, 0)
            within = within + jnp.sum(jnp.where(kept, counted, 0))
            return total, rest, within, count + jnp.sum(counted)

        total, _, within, count = _in_groups(add, arriving, (none, none, zero, zero))
        release = mechanism.release(self._plan, state, self.key("server"), total, within, count)
        took_part = jnp.zeros(len(self.available), bool).at[clients].max(senders)
        only = jnp.zeros(1, jnp.int32)
        clean = release.clean[None]
        inexact = 1 + sum_rounding(len(senders), around.dtype) / mechanism.moved
        noise = release.noise._replace(scale=inexact * release.noise.scale)
        sum_said = self._leave(
            clean,
            noise,
            inexact * release.sensitivity[None],
            mechanism.spent(self._plan, state, took_part, around.dtype),
            only,
            None,
            ROUNDINGS * rounded_off(clean) + release.rounding,
            mechanism.release_rho(self._plan),
        )
        mean, state = mechanism.after(self._plan, state, release, sum_said[0], took_part)
        self.memory = self.memory._replace(mechanism=state)
        return Arrived(around + mean, jnp.ones_like(around))

    def _aggregated(
        self,
        models: Float[Array, "rows dim"],
        heard: Bool[Array, " rows"],
        around: Float[Array, "*servers dim"],
        home: Int[Array, " rows"],
        weights: Float[Array, " rows"] | None = None,
    ) -> Arrived:
        """The aggregate of the models that each server receives."""
        aggregator = self._stages.aggregation
        assert aggregator is not None
        weight = jnp.where(heard, 1 if weights is None else weights, 0).astype(around.dtype)

        def one(given: tuple[Array, Array]) -> tuple[Array, Array]:
            number, around = given
            own = jnp.where(home == number, weight, 0)
            return aggregator.of_one_receiver(models, own, around), jnp.sum(own)

        rows = around.reshape(-1, around.shape[-1])
        numbers = jnp.arange(len(rows), dtype=jnp.int32)
        total, weight = jax.lax.map(one, (numbers, rows))
        total, weight = total.reshape(around.shape), weight.reshape(around.shape[:-1])
        share = jnp.broadcast_to(weight[..., None] > 0, around.shape)
        return Arrived(jnp.where(share, total, 0), share.astype(around.dtype), weight)

    # Of what was sent ----------------------------------------------------------------------------

    def mean(
        self, said: Float[Array, "clients dim"] | Masked, around: Float[Array, " dim"]
    ) -> Float[Array, " dim"]:
        """Return the server's mean, or its aggregate, of the messages of available clients.

        Args:
          said: ``[K, D]``, what :meth:`send` returned.
          around: ``[D]``, the server's vector; it is kept where nothing arrives.
        """
        if isinstance(said, Masked):
            means, count = said.means()
            return jnp.where(count[0] > 0, means[0], around)
        if self._everyone and self._stages.losses is None and self._stages.aggregation is None:
            return jnp.mean(said, axis=0)
        one = jnp.zeros(len(said), jnp.int32)
        who = Participants(None, self.available)
        mean, present = self._cells(said, one, 1, len(said), who, around[None])
        return jnp.where(present[0] > 0, mean[0], around)

    def known(
        self, said: Float[Array, "clients dim"], before: Float[Array, "clients dim"]
    ) -> Float[Array, "clients dim"]:
        """Return each client's last message at a server that stores them, after this round.

        Args:
          said: ``[K, D]``, what :meth:`send` returned.
          before: ``[K, D]``, the stored messages; those of clients whose message does not arrive
            are kept.

        Raises:
          ValueError: masked messages, of which a server knows none.
        """
        if isinstance(said, Masked):
            raise ValueError(
                "a server that stores single messages cannot do so under masks=; leave them out."
            )
        here, works = self.available, self._works()
        if works is not None:
            here = here & works[0]
        return jnp.where(here[:, None], said, before)

    def cell_means(
        self,
        said: Float[Array, "chosen dim"] | Masked,
        cluster: Int[Array, " chosen"],
        clusters: int,
        participants: Participants,
        around: Float[Array, "servers clusters dim"],
    ) -> tuple[Float[Array, "servers clusters dim"], Float[Array, "servers clusters 1"]]:
        """Return each server's mean of the messages of its participants of each cluster, zero where
        there is none, and whether there is one (1 or 0); an aggregator replaces the mean.

        Args:
          said: ``[M, D]``, what :meth:`send` returned, or what a server computes from it.
          cluster: ``[M]``.
          clusters: ``Q``.
          participants: the participants of the rows.
          around: ``[P, Q, D]``, the vectors of the servers.

        Raises:
          ValueError: several clusters of masked messages, which are one sum at each server.
        """
        network = self._network
        assert isinstance(network, Federation)
        if isinstance(said, Masked):
            if clusters > 1:
                raise ValueError(
                    f"masks cancel in the sum of a server's messages, not in each of {clusters} "
                    "clusters; leave out masks=."
                )
            means, count = said.means()
            present = (count > 0).astype(means.dtype)
            return means[:, None], present[:, None, None]
        server = participants.take(jnp.asarray(network.server, jnp.int32))
        cells = network.servers * clusters
        cell, most = server * clusters + cluster, min(len(said), int(network.sizes.max()))
        mean, present = self._cells(
            said, cell, cells, most, participants, around.reshape(cells, -1)
        )
        shape = (network.servers, clusters, -1)
        return mean.reshape(shape), present.reshape(shape)

    def _cells(
        self, said: Array, cell: Array, cells: int, most: int, who: Participants, around: Array
    ) -> tuple[Float[Array, "cells dim"], Float[Array, "cells 1"]]:
        """The mean, or the aggregate, of at most ``most`` messages of each cell."""
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

        def one(given: tuple[Array, Array, Array]) -> Array:
            weights, rows, around = given
            return aggregator.of_one_receiver(said[rows], weights, around)

        present = (jnp.sum(inside, axis=1, keepdims=True) > 0).astype(said.dtype)
        weights, rows = jax.lax.top_k(inside, most)  # those inside, in their order, and others
        return present * jax.lax.map(one, (weights, rows, around)), present

    # Down ----------------------------------------------------------------------------------------

    def publish(
        self,
        message: Float[Array, "*servers dim"],
        receivers: Bool[Array, "..."] | None = None,
        size: int | Int[Array, " receivers"] | None = None,
    ) -> Float[Array, "*servers dim"]:
        """Count one message of the server to every available client, or to the given ones.

        A message computed from perturbed messages is already private and gets no noise; messages
        from the server are not delayed (P4, section III-B).

        Args:
          message: ``[D]``; of several servers ``[P, D]`` or ``[P, Q, D]``.
          receivers: a mask of the receivers.
          size: how many numbers are sent to each, or ``[...]``, to each of ``receivers``; all of
            the message by default.
        """
        receivers = self.available if receivers is None else receivers
        if isinstance(size, jax.Array):
            size = self._open(size, "how many numbers a server publishes")
            self._count_varying(receivers, size, down=WORD)
        else:
            numbers = message.shape[-1] if size is None else size
            self._count(jnp.sum(receivers, dtype=jnp.int32), numbers, down=WORD * numbers)
        return self._open(message, "what a server publishes")

    def tell(
        self, values: Float[Array, "clients ..."], sending: Bool[Array, " clients"]
    ) -> Float[Array, "clients ..."]:
        """Count one number, or several, of each of these clients to the server, which it gets as it
        is: at once, unperturbed, and from attackers too.
        """
        numbers = values.shape[1] if values.ndim > 1 else 1
        self._count(jnp.sum(sending, dtype=jnp.int32), numbers, up=WORD * numbers)
        return self._open(values, "a number that clients tell a server")

    def relay(self, numbers: int) -> None:
        """Count one message of so many numbers from every server to each of its neighbors.

        These messages are computed from messages that were perturbed already.
        """
        network = self._network
        assert isinstance(network, Federation)
        if network.graph is not None:
            messages = jnp.sum(network.graph.neighbor_counts(), dtype=jnp.int32)
            self._count(messages, numbers, down=WORD * numbers)

    def combine(
        self, models: Float[Array, "servers dim"], over: Combination
    ) -> Float[Array, "servers dim"]:
        """Return the servers' combinations of each other's models, with the noise between servers;
        the messages are counted.

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
        own = noise.kept(key, models)
        inbox = Inbox(network.graph, said, own=own, cancelled=cancelled, noise=(noise, key))
        return inbox.mean(over)


def _discounts(
    discount: Array | float | Callable[[Array], Array], law: DelayLaw, dtype: Any
) -> Float[Array, "*lags"]:
    """Of each of the law's lags."""
    late = jnp.asarray(law.lags, dtype)
    alpha = jnp.asarray(discount(late) if callable(discount) else discount, dtype)
    if alpha.ndim and alpha.shape != late.shape:
        raise ValueError(
            f"discount must be one number or one for each of the {len(late)} lags of the delay "
            f"law, got {alpha.shape[0]}."
        )
    return alpha if alpha.ndim else alpha**late


def _add_in_groups(
    total: Float[Array, " dim"],
    rest: Float[Array, " dim"],
    weights: Float[Array, " rows"],
    rows: Float[Array, "rows dim"],
) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """Weighted rows on top of a sum with twice the digits, :data:`GROUP` rows at a time."""
    groups = -(-len(weights) // GROUP)
    if groups <= 1:
        return accumulated(total, rest, jnp.matmul(weights, rows, precision=HIGHEST))
    more = groups * GROUP - len(weights)
    weights = jnp.pad(weights, (0, more)).reshape(groups, GROUP)
    rows = jnp.pad(rows, ((0, more), (0, 0))).reshape(groups, GROUP, rows.shape[1])
    parts = jnp.einsum("gr,grd->gd", weights, rows, precision=HIGHEST)

    def one(sums: tuple[Array, Array], part: Array) -> tuple[tuple[Array, Array], None]:
        return accumulated(*sums, part), None

    return jax.lax.scan(one, (total, rest), parts)[0]


def sum_rounding(senders: int, dtype: Any) -> float:
    r"""How far apart rounding may move the sums of clipped updates of two neighbors, in clips,
    besides their exact distance.

    With :math:`u` the unit roundoff: the norm of a clipped row exceeds the clip by at most
    ``CLIP_ROUNDINGS`` times :math:`u`. A row is part of one sum of at most :math:`G=32` rows, whose
    partial sums, of at most :math:`G` clips, are rounded in either world in at most :math:`G`
    additions, :math:`2G^2u`. Sums of groups without that row are the same to the last bit. They
    are added up with twice the digits: a partial sum of :math:`jG` clips is rounded by at most
    :math:`2u^2jG` in either world, so :math:`2u^2K^2/G` in all for :math:`K` senders. The rounding
    of the final sum, which is as long as the data make it, is measured.

    Args:
      senders: :math:`K`.
      dtype: of the updates.
    """
    unit = float(jnp.finfo(dtype).eps) / 2
    once = CLIP_ROUNDINGS + 2 * GROUP**2
    return once * unit + 2 * unit**2 * senders**2 / GROUP


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
