"""Messages to servers (collected, averaged, or summed by a trusted server), and from servers.

A collection has three steps (:meth:`ServerMessages.collect`). *Encode*: messages are computed,
perturbed, compressed and replaced by attackers', by a function that is called group by group
(:mod:`fljax.link.sender_groups`). *Schedule*: each message gets a lag, or is lost. *Combine*: the
server adds messages up by lag and takes the sums that arrive now, or aggregates single messages.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from fljax._core.linalg import clipped_rows, rounding_distance
from fljax._core.numerics import HIGHEST
from fljax.graphs import Combination
from fljax.graphs.federation import Federation
from fljax.link.compression import WORD, Compressor
from fljax.link.delays import DelayLaw, Fixed, Line
from fljax.link.inbox import Inbox
from fljax.link.outgoing import ROUNDINGS, OutgoingMessages, first_rows
from fljax.link.sender_groups import (
    Accumulators,
    IndexFunction,
    MessageFunction,
    add_in_groups,
    sum_over_senders,
    sum_rounding,
)
from fljax.link.uploads import Agreed, Masked
from fljax.participation.selectors import Participants
from fljax.privacy.discrete import PrivateNoise


class Arrived(NamedTuple):
    r"""Sums of the arrivals of a round: :math:`\sum_i a_iS_iw_i` and :math:`\sum_ia_iS_i`."""

    total: Array  # [D], or [P, D] of each server
    share: Array  # [D] or [P, D]
    #: [] or [P]  sum of the weights of all messages that arrive; a trusted server does not tell
    weight: Array | None = None

    @property
    def any(self) -> Bool[Array, ""]:
        """Whether anything arrived."""
        return jnp.any(self.share > 0)

    def move(self, model: Float[Array, "*servers dim"]) -> Float[Array, "*servers dim"]:
        r"""Return :math:`w+\sum_ia_iS_i(w_i-w)`; the model itself where nothing arrived."""
        return model + self.total - self.share * model


class _Addresses(NamedTuple):
    """Where the messages of a collection go: to whose model, and to which of its parameters."""

    model: Array  # [D], or [P, D]  the servers' models, from which messages are differences
    servers: Array  # [K]  each client's server
    of_row: Array  # [M]  each row's server
    parameters: Callable[[Array], Array | None]  # of the messages of some rows; None: all

    @property
    def one_server(self) -> bool:
        return self.model.ndim == 1

    def model_of(self, rows: Array) -> Float[Array, "#group dim"]:
        """The models of these rows' servers."""
        return self.model[None] if self.one_server else self.model[self.of_row[rows]]

    def references(self, rows: Array) -> Float[Array, "#group numbers"]:
        """The servers' values of the parameters that these rows' messages hold."""
        parameters = self.parameters(rows)
        if parameters is None:
            return self.model_of(rows)
        if self.one_server:
            return self.model[parameters]
        return self.model[self.of_row[rows][:, None], parameters]

    def completed(self, rows: Array, messages: Array) -> Float[Array, "group dim"]:
        """Messages as models: with the server's values of the parameters that they do not hold."""
        parameters = self.parameters(rows)
        if parameters is None:
            return messages
        models = jnp.broadcast_to(self.model_of(rows), (len(rows), self.model.shape[-1]))
        return models.at[jnp.arange(len(rows))[:, None], parameters].set(messages)

    def held(self, rows: Array, models: Array) -> Float[Array, "group numbers"]:
        """The parameters of these rows' models that their messages hold."""
        parameters = self.parameters(rows)
        return models[rows] if parameters is None else models[rows[:, None], parameters]


class ServerMessages(OutgoingMessages):
    """The messages to one or several servers, and from them."""

    @property
    def exact(self) -> bool:
        """Whether receivers get the messages of all clients without delay and unchanged, so that an
        aggregate may be computed directly.
        """
        return not self.private and self.whole

    @property
    def whole(self) -> bool:
        """Whether all clients take part, and their messages, perturbed or not, arrive without
        delay and are averaged.
        """
        return (
            self._everyone
            and self._stages.scope != "server"
            and all(part is None for part in self._stages[1:])
        )

    # Up ------------------------------------------------------------------------------------------

    def average(
        self,
        learn: Callable[[Int[Array, " group"] | None], Any],
        reference: Float[Array, " dim"],
        *,
        at_once: Callable[[], Float[Array, " dim"]] | None = None,
        step_size: Array | float | None = None,
    ) -> Float[Array, " dim"]:
        """Return the mean of the clients' models, computed as cheaply as the stages allow.

        Args:
          learn: function from client numbers to their models; or, from ``None``, to the models of
            all clients and their ``rounding`` as of :meth:`send`. The models are sent, perturbed if
            there is a budget.
          reference: ``[D]``, the server's model; it is kept where nothing arrives.
          at_once: computes the mean directly, where this costs less than single models: used
            where no stage changes them.
          step_size: as of :meth:`collect`.
        """
        if at_once is not None and self.exact:
            self._count_sent(jnp.sum(self._receivers), len(reference), None)
            return at_once()
        if self.whole or self.private:
            models, rounding = learn(None)
            sent = self.send(
                models,
                reference,
                sending=None if self._everyone else self.available,
                step_size=step_size,
                rounding=rounding,
            )
            return self.mean(sent, reference)
        # Only available clients compute, and the average is over the messages that arrive.
        return self.collect(learn, self.available, reference, step_size=step_size).move(reference)

    def collect(
        self,
        message: Float[Array, "senders numbers"] | MessageFunction,
        senders: Bool[Array, " senders"],
        reference: Float[Array, "*servers dim"],
        *,
        at: Int[Array, "senders numbers"] | IndexFunction | None = None,
        weights: Float[Array, " senders"] | None = None,
        discount: Array | float | Callable[[Array], Array] = 1.0,
        normalized: bool = True,
        per_delay: bool = False,
        freshest: bool = True,
        compression: Compressor | None = None,
        clients: Int[Array, " senders"] | None = None,
        step_size: Array | float | None = None,
        numbers: Int[Array, " senders"] | None = None,
        factors: Float[Array, " senders"] | None = None,
    ) -> Arrived:
        r"""Send clients' messages to their server through delays; return what arrives now.

        Message :math:`i` of client :math:`k`, sent :math:`l` rounds ago, has the weight
        :math:`a_i=\alpha_l\omega_k/\sum\omega`, the sum over all messages that arrive in the round
        (the average of Gauthier et al. 2023 (PAO-Fed), (6), over the arrivals); or, ``per_delay``,
        only over those with the delay :math:`l`, so that each class of equally delayed messages is
        averaged separately (Gauthier 2024, (4.13)-(4.14)). An aggregator combines all messages that
        arrive in the round, at most one per client, late or not: a few late ones have no majority.
        For parameters that a message does not hold the aggregator uses the server's own, and a late
        message's deviation from these is multiplied by :math:`\alpha_l`.

        Args:
          message: ``[M, D]``; or, where it is expensive to compute, a function from some rows to
            their messages, ``[group, D]``: on a CPU it is called for the senders only, in groups.
          senders: ``[M]``, which rows are sent.
          reference: ``[D]``, known to both ends, differences from it are compressed: the
            server's model, or zero for messages that are not models. For several servers
            ``[P, D]``: clients send to their own, and sums are over its clients.
          at: ``[M, size]``, which parameters a message holds, if not all: then the message is
            ``[M, size]`` too; or a function of some rows.
          weights: :math:`\omega_k`, one by default.
          normalized: whether weights are divided by their sum; if not,
            :math:`a_i=\alpha_l\omega_k`, for weights that are normalized over all clients and not
            only over the arrivals, and the sum is over differences from ``reference`` at the time
            of sending.
          discount: :math:`\alpha_l=\mathrm{discount}^l`; or :math:`\alpha` itself, one entry for
            each of the delay law's lags, or a function of them.
          per_delay: as above.
          freshest: with ``per_delay``, if several classes change the same parameter in one round,
            only the freshest is used for it (Gauthier et al. 2023 (PAO-Fed), section III-C);
            otherwise all of them are.
          compression: the algorithm's own, in place of the simulation's.
          clients: ``[M]``, the clients of the rows, each at most once among the senders (for a
            client with several, a trusted server uses the first row); all of them, in order, by
            default.
          step_size: :math:`\mu` where a message is :math:`w-\mu\psi` of an update :math:`\psi`, one
            where it is an update itself; used only where noise is on updates.
          numbers: ``[M]``, how many numbers each message has, where fewer than in its row suffice
            and their count depends on the data; the traffic counts them.
          factors: ``[M]``, by which the server multiplies the difference of each message from
            ``reference``, for messages that are based on old models.

        Raises:
          ValueError: where messages are perturbed at their senders; under a trusted server's
            mechanism where its summands are not bounded (weights, parts of a model); a discount
            with another number of lags; a client known to have two rows.
        """
        self._check_collected(at, weights, numbers)
        self._sent += 1
        delays = self._stages.delays or Fixed(0)
        works = self._working_links()
        compression = compression or self._stages.compression
        trusted = self._stages.scope == "server"

        # Encode
        rows = jnp.arange(len(senders), dtype=jnp.int32)
        clients = rows if clients is None else clients
        addresses = self._addresses(clients, reference, at)
        first = jax.eval_shape(addresses.parameters, rows[:1])
        length = reference.shape[-1] if first is None else first.shape[1]
        if compression is not None:
            compression.check(length)
        senders = self._of_existing_clients(clients, senders)
        senders = self._send_unprotected(senders, "who sends to a server")
        if trusted:
            senders = first_rows(clients, senders, self._clients)
        senders = self._without_lone_senders(clients, senders, compression)
        self._sending.append((clients, senders, 1))
        if weights is not None:
            weights = self._send_unprotected(weights, "weights of messages")
        if numbers is None:
            sent = jnp.sum(senders, dtype=jnp.int32)
            self._count_sent(sent, length, compression, reference.dtype)
        else:
            numbers = self._send_unprotected(numbers, "how many numbers messages have")
            self._count_varying(senders, numbers, up=WORD)
        agreed = self._agree_on_masks(clients, senders, reference.shape[-1], reference.dtype)

        def encode(rows: Array) -> Array:
            values = message(rows) if callable(message) else message[rows]
            if not trusted:
                values = self._send_unprotected(values, "a message to a server")
            return self._encode(
                values, clients[rows], addresses.references(rows), compression, step_size
            )

        if agreed is not None:
            # No message is late under masks.
            alpha = _discounts(discount, delays, reference.dtype)[0]
            return self._masked_sum(encode, senders, agreed, reference, weights, alpha, normalized)
        sent_rows = self._with_attack(encode, rows, clients, senders, addresses)
        if factors is not None:
            sent_rows = _discounted(sent_rows, factors, addresses)

        # Schedule
        lag = delays.draw(self.key("delays"), self._round, self._clients)[clients]
        if works is not None:
            lag = jnp.where(works[0][clients], lag, len(delays.lags))  # lost
        arriving = senders & (lag < len(delays.lags))

        # Combine
        if trusted:
            return self._release_sum(sent_rows, senders, arriving, addresses, clients)
        alpha = _discounts(discount, delays, reference.dtype)
        if self._stages.aggregation is None:
            weight = jnp.where(senders, 1 if weights is None else weights, 0)
            weight = weight.astype(reference.dtype)
            return self._sum_arrivals(
                sent_rows,
                senders,
                weight,
                lag,
                delays,
                addresses,
                alpha,
                normalized=normalized,
                per_delay=per_delay,
                freshest=freshest,
            )
        if self._stages.delays is None:
            models = addresses.completed(rows, sent_rows(rows))
            return self._aggregate(models, arriving, reference, addresses.of_row, weights)
        if weights is not None:
            raise ValueError(
                "late messages that an aggregator combines count alike; leave out delays=, "
                "aggregation= or what gives clients weights."
            )
        return self._aggregate_late(sent_rows, senders, lag, delays, addresses, clients, alpha)

    def _check_collected(self, at: object, weights: object, numbers: object) -> None:
        """Raise ``ValueError`` for settings under which messages cannot be collected."""
        if self.private:
            raise ValueError(
                "collected messages are not perturbed; in a private round clients must send them "
                "(link.send)."
            )
        if self._stages.scope == "server" and not (at is None and weights is None):
            raise ValueError(
                "a trusted server's mechanism bounds what one client adds to a plain sum of "
                "whole models; weigh all clients alike and send all parameters."
            )
        if self._stages.masks is not None and not (at is None and numbers is None):
            raise ValueError(
                "masks cancel in a sum of whole messages, and these hold some parameters each; "
                "leave out masks=."
            )

    def _addresses(
        self, clients: Array, model: Array, at: Array | IndexFunction | None
    ) -> _Addresses:
        """The servers and parameters that rows of messages go to; ``at`` as of :meth:`collect`."""
        servers = jnp.zeros(self._clients, jnp.int32)
        if model.ndim > 1:
            assert isinstance(self._network, Federation)
            servers = jnp.asarray(self._network.server, jnp.int32)

        def parameters(rows: Array) -> Array | None:
            if at is None:
                return None
            indices = at(rows) if callable(at) else at[rows]
            return self._send_unprotected(indices, "a message to a server")

        return _Addresses(model, servers, servers[clients], parameters)

    def _with_attack(
        self,
        encode: MessageFunction,
        rows: Array,
        clients: Array,
        senders: Array,
        addresses: _Addresses,
    ) -> MessageFunction:
        """The messages that are sent: attackers' depend on all honest ones, so that under an attack
        all of them are computed together.
        """
        if self._stages.attack is None:
            return encode
        honest = addresses.completed(rows, encode(rows))
        models = self._apply_attack(honest, clients, senders, addresses.model_of(rows))
        return lambda rows: addresses.held(rows, models)

    def _sum_arrivals(
        self,
        message: MessageFunction,
        senders: Array,
        weight: Array,
        lag: Array,
        delays: DelayLaw,
        addresses: _Addresses,
        alpha: Array,
        *,
        normalized: bool,
        per_delay: bool,
        freshest: bool,
    ) -> Arrived:
        """The weighted sums of the messages that arrive at each server now."""
        model = addresses.model
        count = 1 if addresses.one_server else len(model)
        sums = Accumulators(count, addresses.of_row, model.shape[-1], addresses.parameters)
        start = None if normalized else model
        sent = self._sums_by_lag(message, senders, weight, lag, delays, sums, start)
        alpha = alpha[:, None]
        if per_delay and normalized:
            alpha = alpha / jnp.where(sent.weight > 0, sent.weight, 1)
        due = self._arrivals(sent, alpha, delays, covers=per_delay and freshest)
        total, share = (part.reshape(model.shape) for part in due[:2])
        weight = due.weight.reshape(model.shape[:-1])
        if not normalized:
            # The sums are of differences from the server's model at the time of sending. Adding the
            # shares of today's model makes `Arrived.move` add the differences to it. (With a sum of
            # shares above one, models instead of differences would overshoot.)
            total = total + share * model
        elif not per_delay:
            nonzero = jnp.where(weight > 0, weight, 1)[..., None]
            total = total / nonzero
            share = share / nonzero
        return Arrived(total, share, weight)

    def _aggregate_late(
        self,
        message: MessageFunction,
        senders: Array,
        lag: Array,
        delays: DelayLaw,
        addresses: _Addresses,
        clients: Array,
        alpha: Array,
    ) -> Arrived:
        """The aggregate of the messages that arrive now, at most one of each client.

        Single messages must be stored until they arrive: each client has an accumulator of its own.
        """
        model = addresses.model
        dim = model.shape[-1]
        single = Accumulators(self._clients, clients, dim, addresses.parameters)
        weight = senders.astype(model.dtype)
        sent = self._sums_by_lag(message, senders, weight, lag, delays, single)
        due = self._arrivals(sent, alpha[:, None], delays, covers=True)
        total, share = (part.reshape(-1, dim) for part in due[:2])
        models = total + (1 - share) * (
            model[None] if addresses.one_server else model[addresses.servers]
        )
        return self._aggregate(models, due.weight > 0, model, addresses.servers)

    def _masked_sum(
        self,
        message: MessageFunction,
        senders: Array,
        agreed: Agreed,
        model: Float[Array, "*servers dim"],
        weights: Array | None,
        alpha: Array,
        normalized: bool,
    ) -> Arrived:
        r"""The sums that servers decode from masked messages; single ones stay hidden.

        A client encodes :math:`\omega_k(w_k-w)/\max_l\omega_l`, so that weights make no number
        larger; the server knows the weights and multiplies by the largest one.
        """
        protocol = self._stages.masks
        one_server = model.ndim == 1
        dtype = model.dtype
        dim = model.shape[-1]
        models = model.reshape(-1, dim)
        equal = jnp.ones(senders.shape, dtype)
        weight = jnp.where(senders, equal if weights is None else weights.astype(dtype), 0)
        largest = jnp.max(jnp.abs(weight))
        largest = jnp.where(largest > 0, largest, 1)
        word = agreed.masks.dtype

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            total, clipped = sums
            server = agreed.server[group]
            change = message(group) - (model[None] if one_server else models[server])
            values = (weight[group] / largest)[:, None] * change
            integers, beyond = self._mask_values(values, agreed.masks[group], agreed.most)
            arrived = (real & agreed.summed[group])[:, None]
            added = jnp.where(arrived, integers, word.type(0))
            total = total + protocol.sums(added, server, agreed.servers)
            beyond = jnp.sum(beyond & real[:, None], dtype=clipped.dtype)
            return total, clipped + beyond

        zero = jnp.zeros((agreed.servers, dim), word)
        total, clipped = sum_over_senders(add, senders, (zero, jnp.zeros_like(self.clipped)))
        self._record_clipped(clipped, senders, dim)
        change = alpha * largest * protocol.decode(total, agreed.most, dtype)
        arrived = jnp.where(agreed.summed, weight, 0)
        arrived = jax.ops.segment_sum(arrived, agreed.server, agreed.servers)
        share = alpha * arrived
        if normalized:
            nonzero = jnp.where(arrived > 0, arrived, 1)
            change = change / nonzero[:, None]
            share = share / nonzero
        share = jnp.broadcast_to(share[:, None], models.shape)
        total = change + share * models
        weight = arrived.reshape(model.shape[:-1])
        return Arrived(total.reshape(model.shape), share.reshape(model.shape), weight)

    def _sums_by_lag(
        self,
        message: MessageFunction,
        senders: Array,
        weight: Array,
        lag: Array,
        delays: DelayLaw,
        accumulators: Accumulators,
        start: Array | None = None,
    ) -> Line:
        """The sums of this round's messages by lag and accumulator; of their differences from
        ``start``, if it is given.
        """
        lags = np.arange(len(delays.lags), dtype=np.int32)[:, None]
        weight_by_lag = jnp.where(lag[None] == lags, weight[None], 0)
        weight_sums = accumulators.weight_sums(weight_by_lag)
        row = jnp.zeros(1, jnp.int32)
        rows_are_whole = jax.eval_shape(accumulators.parameters, row) is None

        def add(group: Array, real: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            """Add the group's messages to the sums, ``[lags, number * D]``."""
            total, share = sums
            values = message(group)
            indices = accumulators.indices(group)
            if start is not None:
                values = values - (start[None] if indices is None else start.reshape(-1)[indices])
            if indices is None:  # whole messages into one sum: a product of matrices
                by_lag = jnp.where(real[None], weight_by_lag[:, group], 0)
                return total + jnp.matmul(by_lag, values, precision=HIGHEST), share
            weights = jnp.where(real, weight[group], 0)[:, None]
            if rows_are_whole:  # a row at a time, not a number at a time
                return accumulators.added_to(total, lag[group], group, weights * values), share
            spread = jnp.broadcast_to(weights, indices.shape)
            entries = (lag[group][:, None], indices)  # a lost message has no row: it is dropped
            total = total.at[entries].add(spread * values, mode="drop")
            return total, share.at[entries].add(spread, mode="drop")

        size = accumulators.number * accumulators.dim
        zero = jnp.zeros((len(delays.lags), size), weight.dtype)
        # Whole messages have one weight for all of their numbers, so no table of shares is summed.
        share = jnp.repeat(weight_sums, accumulators.dim, axis=1) if rows_are_whole else zero
        total, share = sum_over_senders(add, senders, (zero, share))
        return Line(total, share, weight_sums)

    def _arrivals(self, sent: Line, alpha: Array, delays: DelayLaw, covers: bool) -> Line:
        """The sums that arrive now, sent in this round or before; the delay line moves on.

        If this round's messages ``cover`` earlier ones, they replace them on the parameters that
        they hold, if both arrive at the same time.
        """
        if alpha.shape[1] > 1:  # from accumulators to their parameters
            alpha = jnp.repeat(alpha, sent.total.shape[1] // alpha.shape[1], axis=1)
        now = Line(alpha * sent.total, alpha * sent.share, sent.weight)
        waiting = self.memory.line
        if waiting is not None:
            now = Line(*(delays.placed(entry) for entry in now))
            if covers:
                covered = delays.placed(sent.share) > 0
                total, share = (jnp.where(covered, 0, entry) for entry in waiting[:2])
                waiting = Line(total, share, waiting.weight)
            now = Line(*(old + new for old, new in zip(waiting, now, strict=True)))
            line = Line(*(jnp.concatenate([e[1:], jnp.zeros_like(e[:1])]) for e in now))
            self.memory = self.memory._replace(line=line)
        return Line(*(entry[0] for entry in now))

    def _release_sum(
        self,
        message: MessageFunction,
        senders: Array,
        arriving: Array,
        addresses: _Addresses,
        clients: Array,
    ) -> Arrived:
        """The perturbed sums that trusted servers publish instead of means, one sum each.

        Their sensitivity and noise are enlarged by the bound on the rounding error of the sum. Of
        several servers each has a mechanism of its own; a client is in the sum of one of them.
        """
        mechanism = self._stages.privacy
        state = self.memory.mechanism
        plan = self._plan
        key = self.key("server")
        if self.spent:
            raise ValueError(
                "an algorithm collected twice in one round, and the budget's account knows of one "
                "release. Join the two messages into one."
            )
        model = addresses.model
        one_server = addresses.one_server
        of_each = (lambda function, *_: function) if one_server else jax.vmap
        first = (plan, state) if one_server else jax.tree.map(lambda a: a[0], (plan, state))
        servers = jnp.arange(1 if one_server else len(model), dtype=jnp.int32)
        keys = key if one_server else jax.vmap(jax.random.fold_in, (None, 0))(key, servers)
        zero = jnp.zeros(model.shape[:-1], model.dtype)
        no_change = jnp.zeros_like(model)

        def add(group: Array, real: Array, sums: PyTree) -> Any:
            total, rest, within, count = sums
            clip = state.clip if one_server else state.clip[addresses.of_row[group]]
            change, unclipped = clipped_rows(message(group) - addresses.model_of(group), clip)
            # A client that changes nothing is not counted, like an absent one: the two are
            # neighbors.
            nonzero = jnp.any(change != 0, axis=1)
            weight = real.astype(model.dtype)
            if not one_server:
                at_server = addresses.of_row[group][None] == servers[:, None]
                weight = jnp.where(at_server, weight[None], 0)
            total, rest = of_each(add_in_groups, (0, 0, 0, None))(total, rest, weight, change)
            counted = jnp.where(nonzero if one_server else nonzero[None], weight, 0)
            unclipped = unclipped if one_server else unclipped[None]
            within = within + jnp.sum(jnp.where(unclipped, counted, 0), axis=-1)
            return total, rest, within, count + jnp.sum(counted, axis=-1)

        total, _, within, count = sum_over_senders(
            add, arriving, (no_change, no_change, zero, zero)
        )
        release = of_each(mechanism.release)(plan, state, keys, total, within, count)
        took_part = jnp.zeros(len(self.available), bool).at[clients].max(senders)
        # The mechanism's noise has one row for each server.
        clean = release.clean.reshape(len(servers), -1)
        drawn = release.noise.drawn.reshape(clean.shape)
        scale = release.noise.scale.reshape(-1)
        inexact = 1 + sum_rounding(len(senders), model.dtype) / mechanism.moved
        releases = release.noise.releases
        if not one_server:  # the same for all servers
            releases = jnp.max(releases).astype(model.dtype)
        noise = PrivateNoise(drawn, inexact * scale, releases=releases)
        sum_said = self._release_private(
            clean,
            noise,
            inexact * release.sensitivity.reshape(-1),
            mechanism.spent(*first, took_part, model.dtype),
            servers,
            None,
            ROUNDINGS * rounding_distance(clean) + release.rounding.reshape(-1),
            mechanism.release_rho(first[0]),
        )
        sum_said = sum_said[0] if one_server else sum_said
        mean, state = of_each(mechanism.after, (0, 0, 0, 0, None))(
            plan, state, release, sum_said, took_part
        )
        self.memory = self.memory._replace(mechanism=state)
        return Arrived(model + mean, jnp.ones_like(model))

    def _aggregate(
        self,
        models: Float[Array, "rows dim"],
        received: Bool[Array, " rows"],
        model: Float[Array, "*servers dim"],
        server_of_row: Int[Array, " rows"],
        weights: Float[Array, " rows"] | None = None,
    ) -> Arrived:
        """The aggregate of the models that each server receives."""
        aggregator = self._stages.aggregation
        assert aggregator is not None
        weight = jnp.where(received, 1 if weights is None else weights, 0).astype(model.dtype)

        def aggregate(number_and_reference: tuple[Array, Array]) -> tuple[Array, Array]:
            number, reference = number_and_reference
            received_weights = jnp.where(server_of_row == number, weight, 0)
            result = aggregator.of_one_receiver(models, received_weights, reference)
            return result, jnp.sum(received_weights)

        rows = model.reshape(-1, model.shape[-1])
        numbers = jnp.arange(len(rows), dtype=jnp.int32)
        total, weight = jax.lax.map(aggregate, (numbers, rows))
        total = total.reshape(model.shape)
        weight = weight.reshape(model.shape[:-1])
        share = jnp.broadcast_to(weight[..., None] > 0, model.shape)
        return Arrived(jnp.where(share, total, 0), share.astype(model.dtype), weight)

    # After sending ------------------------------------------------------------------------------

    def mean(
        self, sent: Float[Array, "clients dim"] | Masked, reference: Float[Array, " dim"]
    ) -> Float[Array, " dim"]:
        """Return the server's mean, or its aggregate, of the messages of available clients.

        Args:
          sent: ``[K, D]``, what :meth:`send` returned.
          reference: ``[D]``, the server's vector; it is kept where nothing arrives.
        """
        if isinstance(sent, Masked):
            means, count = sent.means()
            return jnp.where(count[0] > 0, means[0], reference)
        if self._everyone and self._stages.losses is None and self._stages.aggregation is None:
            return jnp.mean(sent, axis=0)
        cell = jnp.zeros(len(sent), jnp.int32)
        participants = Participants(None, self.available)
        mean, present = self._cell_means(sent, cell, 1, len(sent), participants, reference[None])
        return jnp.where(present[0] > 0, mean[0], reference)

    def stored(
        self, sent: Float[Array, "clients dim"], before: Float[Array, "clients dim"]
    ) -> Float[Array, "clients dim"]:
        """Return each client's last message at a server that stores them, after this round.

        Args:
          sent: ``[K, D]``, what :meth:`send` returned.
          before: ``[K, D]``, the stored messages; they stay for clients whose message does not
            arrive.

        Raises:
          ValueError: masked messages, which a server cannot read.
        """
        if isinstance(sent, Masked):
            raise ValueError(
                "a server that stores single messages cannot do so under masks=; leave them out."
            )
        arrived = self.available
        works = self._working_links()
        if works is not None:
            arrived = arrived & works[0]
        return jnp.where(arrived[:, None], sent, before)

    def arrived(self, participants: Participants) -> Bool[Array, " chosen"]:
        """Return which participants' messages of this round arrive at their server."""
        works = self._working_links()
        if works is None:
            return participants.here
        return participants.here & participants.take(works[0])

    def cell_means(
        self,
        sent: Float[Array, "chosen dim"] | Masked,
        cluster: Int[Array, " chosen"],
        clusters: int,
        participants: Participants,
        reference: Float[Array, "servers clusters dim"],
    ) -> tuple[Float[Array, "servers clusters dim"], Float[Array, "servers clusters 1"]]:
        """Return each server's mean of the messages of its participants of each cluster, zero where
        there is none, and whether there is one (1 or 0); an aggregator replaces the mean.

        Args:
          sent: ``[M, D]``, as :meth:`send` returned it, or computed from that by a server.
          cluster: ``[M]``.
          clusters: ``Q``.
          participants: the participants of the rows.
          reference: ``[P, Q, D]``, the vectors of the servers.

        Raises:
          ValueError: several clusters of masked messages, which are one sum at each server.
        """
        network = self._network
        assert isinstance(network, Federation)
        if isinstance(sent, Masked):
            if clusters > 1:
                raise ValueError(
                    f"masks cancel in the sum of a server's messages, not in each of {clusters} "
                    "clusters; leave out masks=."
                )
            means, count = sent.means()
            present = (count > 0).astype(means.dtype)
            return means[:, None], present[:, None, None]
        server = participants.take(jnp.asarray(network.server, jnp.int32))
        cells = network.servers * clusters
        cell = server * clusters + cluster
        most = min(len(sent), int(network.sizes.max()))
        mean, present = self._cell_means(
            sent, cell, cells, most, participants, reference.reshape(cells, -1)
        )
        shape = (network.servers, clusters, -1)
        return mean.reshape(shape), present.reshape(shape)

    def _cell_means(
        self,
        messages: Array,
        cell: Array,
        cells: int,
        largest: int,
        participants: Participants,
        references: Array,
    ) -> tuple[Float[Array, "cells dim"], Float[Array, "cells 1"]]:
        """The mean, or the aggregate, of at most ``largest`` messages of each cell."""
        arrived = self.arrived(participants)
        aggregator = self._stages.aggregation
        if aggregator is None:
            cell = jnp.where(arrived, cell, cells)  # not in a cell: dropped
            unit = jnp.ones((len(cell), 1), messages.dtype)
            total, count = (jax.ops.segment_sum(a, cell, cells) for a in (messages, unit))
            return total / jnp.maximum(count, 1), (count > 0).astype(messages.dtype)
        numbers = jnp.arange(cells, dtype=jnp.int32)[:, None]
        inside = ((cell[None] == numbers) & arrived[None]).astype(messages.dtype)

        def aggregate(arguments: tuple[Array, Array, Array]) -> Array:
            weights, rows, reference = arguments
            return aggregator.of_one_receiver(messages[rows], weights, reference)

        present = (jnp.sum(inside, axis=1, keepdims=True) > 0).astype(messages.dtype)
        weights, rows = jax.lax.top_k(inside, largest)  # those inside first, in their order
        return present * jax.lax.map(aggregate, (weights, rows, references)), present

    # Down ----------------------------------------------------------------------------------------

    def publish(
        self,
        message: Float[Array, "*servers dim"],
        receivers: Bool[Array, "..."] | None = None,
        size: int | Int[Array, " receivers"] | None = None,
        compression: Compressor | None = None,
    ) -> Float[Array, "*servers dim"]:
        """Count one message of the server to every available client, or to the given ones; return
        the message as they receive it.

        A message computed from perturbed messages is already private and gets no noise; messages
        from the server are not delayed (Gauthier et al. 2023 (PAO-Fed), section III-B).

        Args:
          message: ``[D]``; of several servers ``[P, D]`` or ``[P, Q, D]``.
          receivers: a mask of the receivers.
          size: how many numbers are sent to each, or ``[...]``, to each of ``receivers``; all of
            the message by default.
          compression: of the message, ``[D]``, by the algorithm; none by default.
        """
        receivers = self.available if receivers is None else receivers
        if compression is not None:
            bits = compression.bits(message.shape[-1])
            self._count(jnp.sum(receivers, dtype=jnp.int32), message.shape[-1], down=bits)
            server = jnp.full(1, self._clients, jnp.int32)  # a number that no client has
            message = compression.compress(self._keys("compression", server), message[None])[0]
            return self._send_unprotected(message, "what a server publishes")
        if isinstance(size, jax.Array):
            size = self._send_unprotected(size, "how many numbers a server publishes")
            self._count_varying(receivers, size, down=WORD)
        else:
            numbers = message.shape[-1] if size is None else size
            self._count(jnp.sum(receivers, dtype=jnp.int32), numbers, down=WORD * numbers)
        return self._send_unprotected(message, "what a server publishes")

    def count_received(self, clients: Int[Array, ""], numbers: int) -> None:
        """Count the messages of a server to clients that have failed since and answer nothing."""
        self._count(clients, numbers, down=WORD * numbers)

    def tell(
        self, values: Float[Array, "clients ..."], sending: Bool[Array, " clients"]
    ) -> Float[Array, "clients ..."]:
        """Count one number, or several, of each of these clients to the server, which receives it
        without delay, unperturbed, and from attackers unchanged.
        """
        numbers = values.shape[1] if values.ndim > 1 else 1
        self._count(jnp.sum(sending, dtype=jnp.int32), numbers, up=WORD * numbers)
        return self._send_unprotected(values, "a number that clients tell a server")

    def relay(self, numbers: int) -> None:
        """Count one message of ``numbers`` numbers from every server to each of its neighbors.

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
        models = self._send_unprotected(models, "what servers tell each other")
        noise = self._stages.noise
        if noise is None:
            return over(models)
        self._used.add("noise")
        key = self.key("noise")
        noisy, cancelled = noise.perturb(key, models)
        kept_models = noise.own_part(key, models)
        inbox = Inbox(
            network.graph, noisy, own_vectors=kept_models, cancelled=cancelled, noise=(noise, key)
        )
        return inbox.mean(over)


def _discounted(
    message: MessageFunction, factors: Float[Array, " senders"], addresses: _Addresses
) -> MessageFunction:
    """The messages with their differences from the server's model multiplied by these factors."""

    def discounted(rows: Array) -> Array:
        references = addresses.references(rows)
        factor = factors[rows].astype(references.dtype)[:, None]
        return references + factor * (message(rows) - references)

    return discounted


def _discounts(
    discount: Array | float | Callable[[Array], Array], delays: DelayLaw, dtype: DTypeLike
) -> Float[Array, "*lags"]:
    """The factor of each of the law's lags."""
    late = jnp.asarray(delays.lags, dtype)
    alpha = jnp.asarray(discount(late) if callable(discount) else discount, dtype)
    if alpha.ndim and alpha.shape != late.shape:
        raise ValueError(
            f"discount must be one number or one for each of the {len(late)} lags of the delay "
            f"law, got {alpha.shape[0]}."
        )
    return alpha if alpha.ndim else alpha**late
