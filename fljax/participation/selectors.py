r"""Participation: availability of clients, arrival of data, selection of clients by the server.

A *pattern* determines which clients are active in each round. The same patterns serve as the
clients' availability (``Simulation(participation=...)``) and as the arrival of their data
(:mod:`fljax.streams`); a client is *available* where it is active in both, since a client without
new data has nothing to contribute (Gauthier 2024, section 4.4.1). A *selector* chooses the clients
that take part. All draws have random keys of their own (:data:`fljax._core.prng.PURPOSES`), so that
all algorithms have the same participants under the same seed.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fljax._core import checks
from fljax._core.cohort_rows import Rows, rows_of
from fljax._core.module import as_given, field, float_dtype, module, static
from fljax._core.prng import bernoulli, rate_drawn
from fljax._core.random_subsets import shuffled, subset, systematic
from fljax.participation.patterns import (
    check_probability_field,
    field_as_array,
)

#: Which clients are available in a round.
Available: TypeAlias = Bool[Array, " clients"]


class Participants(NamedTuple):
    """The clients that take part in a round."""

    clients: Array | None  # [M] client numbers; None for all K
    here: Array  # [M] which of these rows take part; none of these clients twice
    #: [M] ``1 / (K p)`` where clients were drawn with unequal probabilities ``p``: the mean of the
    #: messages of these M clients with these weights (and not divided by the sum of the weights,
    #: which depends on the draw) is an unbiased estimate of the mean over all clients; None where
    #: all weights are 1
    weights: Array | None = None

    @property
    def numbers(self) -> Int[Array, " chosen"]:
        """The number of the client of each row."""
        if self.clients is None:
            return jnp.arange(len(self.here), dtype=jnp.int32)
        return self.clients

    def unbiased(
        self, available: Bool[Array, " clients"], counts: Float[Array, " clients"]
    ) -> Float[Array, " chosen"] | None:
        r"""Return the weights with which the participants' sum is an unbiased mean over all.

        .. math:: \omega_k=\frac{c_k}{Mp_k\sum_{l\text{ available}}c_l}

        In expectation over the draw, :math:`\sum_k\omega_kx_k` is the mean of all available
        clients' :math:`x_k`; the sum of the weights is one in expectation, but not in each round.

        Args:
          available: ``[K]``.
          counts: ``[K]``, the weight of each client in that mean.

        Returns:
          ``[M]``, or None where the probabilities are equal and a plain mean of the participants is
          sufficient.
        """
        if self.weights is None:
            return None
        everyone = jnp.sum(jnp.where(available, counts, 0))
        share = self.take(counts) / jnp.where(everyone > 0, everyone, 1)
        factor = len(available) / len(self.here)
        return factor * share * self.weights.astype(counts.dtype)

    def take(self, rows: object) -> Any:
        """Return the participants' rows of ``[K, ...]`` arrays."""
        if self.clients is None:
            return rows
        return jax.tree.map(lambda a: rows_of(a, self.clients), rows)

    def of(self, problem: Any) -> Any:
        """Return the problem of the participants."""
        return problem if self.clients is None else problem.take(self.clients)

    def put(self, old: Array | Rows, new: Array) -> Any:
        """Return ``[K, ...]`` with the participants' rows replaced."""
        if isinstance(old, Rows):
            active = self.here.reshape((-1,) + (1,) * (new.ndim - 1))
            return old.changed(lambda rows: jnp.where(active, new, rows))
        if self.clients is None:
            return jnp.where(self.here.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)
        return old.at[jnp.where(self.here, self.clients, len(old))].set(new, mode="drop")


class _Law(NamedTuple):
    rate: Array | float
    separation: int = 1
    sampling: Literal["poisson", "drawn"] | None = None


_SEPARATION_HINT = "A client takes part at most once in as many rounds as the separation."


class Law(_Law):
    """The sampling law of a selector or of an algorithm's batches, for any data, as returned by
    :meth:`Selector.law` and :meth:`~fljax.algorithms.Algorithm.sampling`.

    Privacy accounting relies on it: under ``"poisson"`` and ``"drawn"`` the reported epsilon is
    amplified by the sampling. A class declares the law of its own draws. A subclass that overrides
    a method by which they are made (``choose``, for instance) does not inherit the law and has to
    declare one itself; ``return super().law(clients)`` states that it is the same. Before a run
    with a budget, laws declared outside of the library are compared with a few thousand draws.

    Args:
      rate: the average share of all clients that takes part, in (0, 1].
      separation: the smallest number of rounds between two participations of a client; or of a
        client's own steps between two batches with the same sample.
      sampling: ``"poisson"`` or ``"drawn"`` (:mod:`fljax.privacy.accounting`): clients are drawn at
        random, independently in each round; ``None``: they are not. With a separation above one
        round, each client is drawn only in the rounds of its turn, which are that far apart.

    Raises:
      TypeError, ValueError: numbers outside their ranges, an unknown sampling, a number of drawn
        clients with a separation above one round.
    """

    __slots__ = ()

    def __new__(
        cls,
        rate: Array | float,
        separation: int = 1,
        sampling: Literal["poisson", "drawn"] | None = None,
    ) -> "Law":
        checks.interval("rate", rate, above=0, at_most=1)
        checks.count("separation", separation)
        if sampling is not None:
            checks.choice("sampling", sampling, ("poisson", "drawn"))
            if separation > 1 and sampling == "drawn":
                raise ValueError(
                    f"a client drawn anew in every round may be drawn in two in a row, got "
                    f"separation={separation} beside sampling={sampling!r}; leave one of them out."
                )
            if separation > 1:
                at_most = 1 / separation * (1 + 1e-6)  # up to rounding
                checks.interval("rate", rate, above=0, at_most=at_most, hint=_SEPARATION_HINT)
        return super().__new__(cls, rate, separation, sampling)

    @property
    def rate_of_turn(self) -> Array | float:
        """The average share in the rounds in which it is a client's turn, rounded up."""
        if self.separation == 1:
            return self.rate
        upwards = 1 + 4 * jnp.finfo(jnp.result_type(float)).eps
        return jnp.minimum(self.rate * self.separation * upwards, 1.0)


#: Methods that a subclass may override without a new law: they do not change the draws.
_NOT_DRAWING = frozenset({"check", "validate", "most", "law"})


class Selector:
    """The choice of the clients that take part in a round; subclass it to define your own.

    A :class:`Law` is that of the class that declares it: a subclass that overrides ``choose``, or
    anything else by which clients are drawn, has no law unless it declares its own.

    Example:
      >>> import fljax as fl
      >>> @fl.module
      ... class First(fl.participation.Fraction):
      ...     def choose(self, key, available, network, round=1):
      ...         who = super().choose(key, available, network, round)
      ...         return who._replace(here=who.here.at[0].set(available[0]))
      >>> fl.participation.Fraction(0.1).law(10).sampling, First(0.1).law(10)
      ('poisson', None)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.law is not Selector.law and not declares(cls, "law", _NOT_DRAWING):
            cls.law = Selector.law

    def check(self, clients: int, network: object = None) -> None:
        """Raise ``ValueError`` unless the selector fits a network of this size."""

    @checks.required
    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        """Return the participants of a round, available clients only.

        Args:
          key: consumed.
          available: ``[K]``.
          network: of the simulation.
          round: 1, 2, ...
        """
        raise NotImplementedError

    def most(self, clients: int) -> int:
        """Return the largest number of participants among ``clients`` clients of a server."""
        return clients

    def law(self, clients: int) -> "Law | None":
        """Return what privacy accounting may assume of the choice; ``None``: nothing."""
        return None


def declares(cls: type, method: str, unrelated: frozenset[str]) -> bool:
    """Whether ``method`` of a class was declared for the class's own code.

    It was not where a subclass of the declaring class overrides an inherited method or property
    that may change it: the declaration was made for other code.

    Args:
      cls: the class.
      method: name of the declaration, ``"law"`` for instance.
      unrelated: names of methods that do not change the declared behavior.
    """
    order = cls.__mro__
    for position, owner in enumerate(order):
        if method in vars(owner):
            return True
        for name, value in vars(owner).items():
            special = name.startswith("__") and name != "__getattribute__"
            changes_behavior = callable(value) or hasattr(value, "__get__")
            if special or name in unrelated or not changes_behavior:
                continue
            if any(name in vars(base) for base in order[position + 1 :]):
                return False
    return True


@module
class Everyone(Selector):
    """All available clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> available = jnp.array([True, False, True])
      >>> who = fl.participation.Everyone().choose(jax.random.key(0), available, None)
      >>> who.here.tolist()
      [True, False, True]
    """

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        return Participants(None, available)

    def law(self, clients: int) -> Law:
        return Law(1.0)


@module
class Cyclic(Selector):
    r"""Cohorts in turn: client ``k`` takes part in round ``n`` if ``n - 1 = k`` modulo ``cohorts``.

    With a fraction each client whose turn it is takes part with this probability, independently
    (cyclic Poisson sampling, :func:`fljax.privacy.accounting.cyclic_poisson_epsilon`).

    Args:
      cohorts: >= 1.
      fraction: in [0, 1], of those whose turn it is; all of them by default.

    Raises:
      ValueError: more cohorts than clients, a fraction outside [0, 1].

    Example:
      >>> Cyclic(10).law(100), Cyclic(10, fraction=0.25).law(100).sampling
      (Law(rate=0.1, separation=10, sampling=None), 'poisson')
    """

    cohorts: int = static()
    fraction: Float[Array, ""] | float | None = None

    def validate(self) -> None:
        checks.count("cohorts", self.cohorts)
        if self.fraction is not None:
            check_probability_field(self, "fraction")

    def check(self, clients: int, network: object = None) -> None:
        check_subset("cohorts", self.cohorts, clients)

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        per_cohort = -(-len(available) // self.cohorts)
        offset = (jnp.asarray(round, jnp.int32) - 1) % self.cohorts
        clients = offset + self.cohorts * jnp.arange(per_cohort, dtype=jnp.int32)
        real = clients < len(available)
        clients = jnp.where(real, clients, 0)
        active = real & available[clients]
        if self.fraction is not None:
            active = active & bernoulli(key, active.shape, self.fraction)
        return Participants(clients, active)

    def law(self, clients: int) -> Law:
        if self.fraction is None:
            return Law(1 / self.cohorts, self.cohorts)
        if self.cohorts == 1:
            return Law(rate_drawn(self.fraction), sampling="poisson")
        return Law(rate_drawn(self.fraction) / self.cohorts, self.cohorts, sampling="poisson")


@module
class Fraction(Selector):
    r"""Each available client takes part with probability ``fraction``, independently.

    The probability is exact, also where it is small: it is that of :meth:`law`, the fraction in the
    precision in use, rounded down to a multiple of :math:`2^{-64}`.

    Args:
      fraction: :math:`c\in[0,1]`; below :math:`2^{-64}` no client ever takes part.

    Raises:
      ValueError: a fraction outside [0, 1].

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> who = fl.participation.Fraction(0.1).choose(jax.random.key(0), jnp.ones(1000, bool), None)
      >>> 60 < int(who.here.sum()) < 140  # 100 in the mean
      True
      >>> fl.participation.Fraction(0.1).law(1000).sampling
      'poisson'
    """

    fraction: Float[Array, ""] | float

    def validate(self) -> None:
        check_probability_field(self, "fraction")

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        return Participants(None, available & bernoulli(key, available.shape, self.fraction))

    def law(self, clients: int) -> Law:
        return Law(rate_drawn(self.fraction), sampling="poisson")


@module
class _Counted(Selector):
    """A given number of clients."""

    #: Name of the count in algorithms that take a number instead of a selector.
    argument: ClassVar[str] = "count"

    count: int = static()

    def validate(self) -> None:
        checks.count("count", self.count)

    def check(self, clients: int, network: object = None) -> None:
        check_subset(self.argument, self.count, clients)

    def most(self, clients: int) -> int:
        return min(self.count, clients)


@module
class Subset(_Counted):
    """``count`` available clients, drawn uniformly without replacement; all if they are fewer.

    (:class:`Drawn` draws from all clients, whether they are available or not.)

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the number of clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> selector, key = fl.participation.Subset(2), jax.random.key(0)
      >>> int(selector.choose(key, jnp.ones(5, bool), None).here.sum())
      2
      >>> available = jnp.array([True, False, False, False, False])  # fewer than two
      >>> int(selector.choose(key, available, None).here.sum())
      1
    """

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        chosen = shuffled(key, available[None], self.count)[0]
        return Participants(None, available & jnp.zeros_like(available).at[chosen].set(True))


@module
class Drawn(_Counted):
    """``count`` of all clients, drawn uniformly without replacement; drawn clients that are absent
    do not take part.

    So the draw does not depend on anything else, which privacy accounting may use. (:class:`Subset`
    draws from the available clients.)

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the number of clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> who = fl.participation.Drawn(2).choose(jax.random.key(0), jnp.zeros(4, bool), None)
      >>> who.here.tolist()  # two are drawn, of which none is available
      [False, False]
      >>> fl.participation.Drawn(2).law(4).rate, fl.participation.Drawn(2).law(4).sampling
      (0.5, 'drawn')
    """

    argument = "clients_per_round"

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        chosen = subset(key, available.shape[0], self.count)
        return Participants(chosen, available[chosen])

    def law(self, clients: int) -> Law:
        return Law(self.count / clients, sampling="drawn")


@module
class Unequal(_Counted):
    r"""``count`` of all clients without replacement, unequal probabilities (Hartley and Rao 1962).

    Clients in random order are placed on a line of length ``count``, client :math:`k` on a segment
    of length :math:`L p_k`; those whose segments contain one of the points
    :math:`u, u+1, \dots, u+L-1`, with a single uniform :math:`u`, take part. So client :math:`k`
    has exactly the inclusion probability :math:`L p_k`. Drawn clients that are absent do not take
    part.

    The server moves its model by :math:`\frac1L\sum_k\frac1{Kp_k}(w_k-w)`, which in expectation is
    its step with all clients; divided by the sum of the weights instead, it would minimize another
    objective. Such a step may go beyond :math:`w_k`, the more so the more rarely a client is drawn.
    An aggregator of the simulation has weights of its own, or none, and a rule that is not linear
    in the messages (that of q-FedAvg or FedExP, a vote of signs) still depends on which clients are
    drawn together.

    Args:
      count: :math:`L\ge 1`.
      probability: :math:`p_k`, ``[K]``: the probability of each client in one of the ``count``
        draws, with sum 1 and at most :math:`1/L` each, so that no client is drawn twice.

    Raises:
      ValueError: not one probability per client, probabilities that do not sum to 1, or are not
        within (0, 1/L].

    Reference:
      Rizk 2023, section 2.4.3, (2.55), with the random order of the original method: without it
      some pairs of clients are never drawn together.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> selector = Unequal(2, [0.5, 0.25, 0.125, 0.125])
      >>> who = selector.choose(jax.random.key(0), jnp.ones(4, bool), None)
      >>> 0 in who.clients.tolist()  # half of two draws: in every round
      True
      >>> (who.weights * selector.probability[who.clients]).tolist()  # 1 / K
      [0.25, 0.25]
    """

    probability: Annotated[Array, " clients"] = field(converter=as_given)

    def validate(self) -> None:
        super().validate()
        field_as_array(self, "probability")
        p = self.probability
        checks.interval(
            "probabilities",
            p,
            above=0,
            at_most=(1 + 1e-6) / self.count,
            hint=f"Beyond 1/{self.count} a client would be drawn twice among {self.count}.",
        )
        checks.check_when_concrete(self._check_sum, p)

    @staticmethod
    def _check_sum(probability: Array) -> None:
        total = float(np.sum(probability))
        if abs(total - 1) > 1e-5:
            raise ValueError(
                f"probabilities must sum to 1, got {total:g}; divide them by their sum."
            )

    def check(self, clients: int, network: object = None) -> None:
        if np.shape(self.probability) != (clients,):
            raise ValueError(
                f"probabilities must be one for each of the {clients} clients, got the shape "
                f"{np.shape(self.probability)}."
            )

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        p = jnp.asarray(self.probability)
        chosen = systematic(key, p, self.count, self.count)
        return Participants(chosen, available[chosen], 1 / (len(p) * p[chosen]))


class ByLoss(Selector):
    """A choice by the losses of the current model; subclass it to define your own.

    Some clients, the candidates, evaluate the model on their samples and tell the server their
    losses, by which it chooses. The choice depends on the samples and the losses are told as they
    are, so that no guarantee of privacy covers it.

    Example:
      All available clients are asked, and those above the median loss chosen:

      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> @fl.module
      ... class AboveMedian(fl.participation.ByLoss):
      ...     def ask(self, key, available, samples):
      ...         return fl.participation.Participants(None, available)
      ...     def chosen(self, key, candidates, losses, samples):
      ...         harder = losses > jnp.median(losses)
      ...         return candidates._replace(here=candidates.here & harder)
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=20, samples=10, dim=2)
      >>> algorithm = fl.algorithms.FedAvg(0.1, selector=AboveMedian())
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=1)
      >>> int(run.bits_up[-1])  # 20 losses, and 10 models of 2 numbers, of 32 bits each
      1280
    """

    @checks.required
    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        """Return the candidates of a round, available clients only.

        Args:
          key: consumed.
          available: ``[K]``.
          samples: ``[K]``, how many each client has.
        """
        raise NotImplementedError

    @checks.required
    def chosen(
        self,
        key: Array,
        candidates: Participants,
        losses: Float[Array, " candidates"],
        samples: Int[Array, " candidates"],
    ) -> Participants:
        """Return the participants, given the loss and the number of samples of each candidate.

        Args:
          key: consumed.
          candidates: the clients whose losses are known.
          losses: of each, the mean over its samples.
          samples: of each, how many it has.
        """
        raise NotImplementedError

    def check(self, clients: int, network: object = None) -> None:
        if network is not None:
            raise ValueError(
                f"{type(self).__name__} compares losses of one server's model, and the simulation "
                "has several servers; take fljax.participation.PerServer."
            )
        super().check(clients, network)

    def choose(
        self, key: Array, available: Available, network: object, round: Array | int = 1
    ) -> Participants:
        raise TypeError(
            f"{type(self).__name__} chooses by losses, which a round knows: now.choose(selector, "
            "model)."
        )


@module
class PowerOfChoice(ByLoss, _Counted):
    r"""The ``count`` randomly drawn candidates whose loss of the current model is largest.

    In every round ``candidates`` of the available clients are drawn without replacement, with
    probabilities in proportion to their numbers of samples. They receive the server's model and
    tell it their losses :math:`f_k(w)`, and those with the largest ones take part (with algorithms
    whose clients have their own models, the losses are of these models).

    The choice is biased to clients whom the model fits badly: training is faster the larger the
    share of candidates, but converges to a neighborhood of the minimizer only, whose size grows
    with it. With as many candidates as participants it is a draw by share alone. In the source all
    participants have equal weights at the server, which is ``weighting="equal"`` of
    :class:`~fljax.algorithms.FedAvg` (its default unless the problem has weights).

    Attackers tell their true losses. Privacy accounting does not cover it.

    Args:
      count: :math:`m`, the participants of a round, >= 1.
      candidates: :math:`d`, at least ``count``.

    Raises:
      ValueError: a count below 1, fewer candidates than participants, more than there are clients;
        several servers.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=20, samples=10, dim=3)
      >>> selector = fl.participation.PowerOfChoice(4, candidates=8)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1, selector=selector))
      >>> int(fl.run(simulation, rounds=1).scalars[-1])  # models to 8 and from 4, losses of 8
      44

    Reference:
      Cho, Wang & Joshi 2022, section 4.
    """

    candidates: int = static(kw_only=True)
    reference = "cho2022"

    def validate(self) -> None:
        super().validate()
        checks.count("candidates", self.candidates)
        if self.candidates < self.count:
            raise ValueError(
                f"candidates must be at least the {self.count} that take part, got "
                f"{self.candidates}."
            )

    def check(self, clients: int, network: object = None) -> None:
        super().check(clients, network)
        check_subset("candidates", self.candidates, clients)

    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        # The largest of log p plus Gumbel numbers are a draw without replacement by p.
        has_samples = available & (samples > 0)
        dtype = float_dtype()
        score = jnp.log(jnp.maximum(samples, 1).astype(dtype)) + jax.random.gumbel(
            key, samples.shape, dtype
        )
        score, drawn = jax.lax.top_k(jnp.where(has_samples, score, -jnp.inf), self.candidates)
        return Participants(drawn.astype(jnp.int32), score > -jnp.inf)

    def chosen(
        self,
        key: Array,
        candidates: Participants,
        losses: Float[Array, " candidates"],
        samples: Int[Array, " candidates"],
    ) -> Participants:
        losses = jnp.where(candidates.here, losses, -jnp.inf)
        best = jax.lax.top_k(losses, self.count)[1]
        return Participants(candidates.numbers[best], candidates.here[best])


@module
class ActiveSampling(ByLoss, _Counted):
    r"""``count`` clients, the more probable the larger the loss of the current model on their data.

    All available clients receive the server's model and tell it the value
    :math:`v_k=\sqrt{N_k}f_k(w)` of their data. The :math:`\lfloor\alpha_1K'\rfloor` smallest
    values of the :math:`K'` available clients become :math:`-\infty`, as far as enough are left;
    all but :math:`\lfloor\alpha_3L\rfloor` of the :math:`L` participants are drawn without
    replacement with probabilities in proportion to :math:`e^{\alpha_2v_k}`, the others uniformly
    from the rest, so that no client is left out for good.

    In the source a client's value is of the last round in which it took part, which saves the
    messages of all others; here all values are of the current model. Attackers tell their true
    losses. Privacy accounting does not cover it.

    Args:
      count: :math:`L`, the participants of a round, >= 1.
      sharpness: :math:`\alpha_2\ge0`.
      dropped: :math:`\alpha_1`, in [0, 1).
      uniform: :math:`\alpha_3`, in [0, 1].

    Raises:
      ValueError: a count below 1 or above the number of clients, a number out of its range; several
        servers.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=20, samples=10, dim=3)
      >>> selector = fl.participation.ActiveSampling(4, sharpness=0.1)
      >>> simulation = fl.Simulation(problem, fl.algorithms.FedAvg(0.1, selector=selector))
      >>> int(fl.run(simulation, rounds=1).scalars[-1])  # models to 20 and from 4, losses of 20
      92

    Reference:
      Goetz et al. 2019, Algorithm 1 and section 3.
    """

    sharpness: Float[Array, ""] | float = 0.01
    dropped: float = static(default=0.75)
    uniform: float = static(default=0.1)
    reference = "goetz2019"

    def validate(self) -> None:
        super().validate()
        checks.nonnegative("sharpness", self.sharpness)
        checks.interval("dropped", self.dropped, at_least=0, below=1)
        checks.interval("uniform", self.uniform, at_least=0, at_most=1)

    def ask(
        self, key: Array, available: Bool[Array, " clients"], samples: Int[Array, " clients"]
    ) -> Participants:
        return Participants(None, available & (samples > 0))

    def chosen(
        self,
        key: Array,
        candidates: Participants,
        losses: Float[Array, " candidates"],
        samples: Int[Array, " candidates"],
    ) -> Participants:
        k_values, k_rest = jax.random.split(key)
        active = candidates.here
        never = -jnp.inf
        value = jnp.where(active, jnp.sqrt(samples.astype(losses.dtype)) * losses, jnp.inf)
        # The small term makes a product that should be a whole number round down to it.
        uniform_count = int(self.uniform * self.count + 1e-6)
        active_count = jnp.sum(active, dtype=losses.dtype)
        dropped_count = jnp.minimum(
            jnp.floor(self.dropped * active_count + 1e-5),
            active_count - (self.count - uniform_count),
        )
        rank = jnp.argsort(jnp.argsort(value)).astype(losses.dtype)
        retained = active & (rank >= dropped_count)
        # The largest of these sums are a draw without replacement by exp(sharpness * value).
        gumbel = jax.random.gumbel(k_values, value.shape, losses.dtype)
        score = jnp.where(retained, self.sharpness * jnp.where(retained, value, 0) + gumbel, never)
        best = jax.lax.top_k(score, self.count - uniform_count)[1]
        remaining = active & jnp.ones_like(active).at[best].set(~retained[best])
        any_order = jax.random.uniform(k_rest, value.shape, losses.dtype)
        rest = jax.lax.top_k(jnp.where(remaining, any_order, never), uniform_count)[1]
        drawn = jnp.concatenate([retained[best], remaining[rest]])
        return Participants(candidates.numbers[jnp.concatenate([best, rest])], drawn)


@module
class PerServer(_Counted):
    """``count`` available clients of each server, drawn uniformly without replacement; all of them
    where fewer are available.

    Args:
      count: >= 1.

    Raises:
      ValueError: a count below 1 or above the clients of some server, no servers.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> servers = fl.federation.balanced(4, fl.graphs.path(3))
      >>> selector = fl.participation.PerServer(2)
      >>> who = selector.choose(jax.random.key(0), jnp.ones(12, bool), servers)
      >>> [servers.server[client] for client in who.clients.tolist()]
      [0, 0, 1, 1, 2, 2]
    """

    argument = "clients_per_server"

    def check(self, clients: int, network: object = None) -> None:
        sizes = getattr(network, "sizes", None)
        if sizes is None:
            raise ValueError(
                "PerServer chooses among the clients of each server, and the simulation has no "
                "servers with clients of their own; give it "
                "network=fljax.federation.balanced(...), or take fljax.participation.Subset."
            )
        if self.count > sizes.min():
            raise ValueError(
                f"{self.argument} must be at most the {sizes.min()} clients of server "
                f"{sizes.argmin()}, got {self.count}."
            )

    def choose(
        self, key: Array, available: Available, network: Any, round: Array | int = 1
    ) -> Participants:
        members, real = network.members
        active = jnp.asarray(real) & available[members]
        order = shuffled(key, active, self.count)
        clients, active = (
            jnp.take_along_axis(a, order, axis=1) for a in (jnp.asarray(members), active)
        )
        return Participants(clients.reshape(-1), active.reshape(-1))


def everyone_or(selector: type[_Counted], count: int | None) -> Selector:
    """Return :class:`Everyone` for the count ``None``, otherwise ``selector(count)``.

    Example:
      >>> import fljax as fl
      >>> fl.participation.everyone_or(fl.participation.Subset, 5).count
      5
      >>> fl.participation.everyone_or(fl.participation.Subset, None)
      Everyone()
    """
    if count is None:
        return Everyone()
    checks.count(selector.argument, count)
    return selector(count)


def check_subset(name: str, count: int, clients: int) -> None:
    """Raise ``ValueError`` for more than all clients."""
    if count > clients:
        raise ValueError(
            f"{name} must be at most the {clients} clients of the problem, got {count}."
        )
