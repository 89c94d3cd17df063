r"""Models of which some parameters are shared, and the others every client's own.

FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020), FedBN (Li et al. 2021), FedRep
(Collins et al. 2021) and FedBABU (Oh et al. 2022). The first three train all parameters together
and differ in what is shared; FedRep trains a client's own before the others, FedBABU only after
them.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax import _check
from fljax._module import field, module
from fljax.algorithms.base import algorithm, start_models
from fljax.algorithms.server.base import AVERAGED, Averaging, Cohort
from fljax.problems import Problem
from fljax.rounds import Round

__all__ = ["FedBN", "FedPer", "LGFedAvg", "State", "as_coordinates"]


def as_coordinates(name: str, chosen: Any) -> str | tuple:
    """What says which parameters, as a static argument: a pattern, a mask or indices."""
    if isinstance(chosen, str):
        return chosen
    given = np.asarray(chosen)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "biu"):
        raise TypeError(
            f"{name} must be a mask of the parameters or a list of their indices, got "
            f"{_check.shown(chosen)}."
        )
    return tuple(given.tolist())


class State(NamedTuple):
    """What clients and server keep from round to round."""

    model: Array  # [K, D]  of each client its own parameters, and the server's
    server: Array  # [shared]


@algorithm("FedPer", "arivazhagan2019", AVERAGED)
@module
class FedPer(Averaging):
    r"""A common body, and a head of each client's own, trained together.

    Of a model :math:`(\varphi,h_k)` the server has :math:`\varphi`. A participant of round
    :math:`n` descends from :math:`(\varphi^{(n-1)},h_k)` as in federated averaging, along all of
    its parameters' gradients, keeps :math:`h_k` and sends :math:`\varphi_k`:

    .. math::

        (\varphi_k,h_k) \leftarrow (\varphi_k,h_k)-\mu f_k'(\varphi_k,h_k),\qquad
        \varphi^{(n)}=\sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}\varphi_k

    A message has the shared parameters only, in both directions, and costs their bits. Who does not
    take part keeps :math:`h_k`. Judged is each client's :math:`(\varphi^{(n)},h_k)`. Heads start
    where the problem says (:meth:`~fljax.problems.Problem.starting_at`, one of each client, or one
    for all).

    Args:
      step_size: :math:`\mu`, as of :class:`~fljax.algorithms.FedAvg`, which the other arguments are
        of too.
      personal: which parameters are a client's own, as
        :meth:`problem.coordinates <fljax.problems.Problem.coordinates>` takes it: a mask, indices,
        or of a network a regular expression for the paths of its parameters.

    Raises:
      TypeError, ValueError: parameters that the problem has not; as of FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4),
      ...     algorithm=fl.algorithms.FedPer(0.1, personal=[0]),
      ... )
      >>> run = fl.run(simulation, rounds=10)
      >>> int(run.bits_up[-1]) == 10 * 6 * 3 * 32  # rounds, clients, parameters, bits
      True

    Reference:
      Arivazhagan et al. 2019, Algorithms 1 and 2.
    """

    personal: str | tuple = field(
        converter=partial(as_coordinates, "personal"), static=True, kw_only=True
    )

    def validate(self) -> None:
        super().validate()

    def check(self, problem: Any, network: Any) -> None:
        super().check(problem, network)
        problem.coordinates(self.personal)

    def message_size_of(self, problem: Problem) -> int:
        return len(self._split(problem)[0])

    def _split(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """The places of what is shared, and of what is not."""
        own = problem.coordinates(self.personal)
        return np.flatnonzero(~own).astype(np.int32), np.flatnonzero(own).astype(np.int32)

    def init(self, problem: Problem, network: Any) -> Any:
        start, (shared, _) = start_models(problem), self._split(problem)
        server = jnp.mean(start[:, shared], axis=0)
        return State(start.at[:, shared].set(server[None]), server)

    def step(self, state: Any, now: Round) -> Any:
        shared, own = self._split(now.problem)
        cohort = self._invited(now)
        server = now.link.publish(state.server, cohort.here)
        start = cohort.who.take(state.model).at[:, shared].set(server[None])
        local = self._trained(now, cohort, start, own)
        server = self.collect(now, cohort, local[:, shared], server).move(server)
        model = cohort.who.put(state.model, local).at[:, shared].set(server[None])
        return State(model, server)

    def _invited(self, now: Round) -> Cohort:
        return self.invite(now)

    def _trained(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], own: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        """The participants' models after their steps."""
        return self.learn(now, cohort, start).model

    def _moved(
        self,
        now: Round,
        cohort: Cohort,
        model: Float[Array, "chosen dim"],
        places: np.ndarray,
        batch: Any = None,
    ) -> Float[Array, "chosen dim"]:
        """After steps of the parameters at these places, the others at rest."""

        def along(part: Problem, some: Array, model: Array) -> Array:
            return part.gradient(model.at[:, places].set(some))[:, places]

        learned = self.learn(
            now, cohort, model[:, places], batch=batch, direction=along, given=model
        )
        return model.at[:, places].set(learned.model)


@algorithm("LG-FedAvg", "liang2020", AVERAGED)
@module
class LGFedAvg(FedPer):
    r"""A representation of each client's own, and a common head, trained together.

    :class:`FedPer` the other way round: ``personal`` are the parameters of the representation
    :math:`\ell_k(\cdot;\theta_k^\ell)`, and only those of the small model on top of it travel. The
    paper's auxiliary losses of the representations (self-supervised, adversarial) are those of a
    problem, and its experiments start from some rounds of federated averaging
    (:meth:`~fljax.problems.Problem.starting_at`).

    Reference:
      Liang et al. 2020, Algorithm 1.
    """


@algorithm("FedBN", "li2021bn", AVERAGED)
@module
class FedBN(FedPer):
    r"""Federated averaging of all but the normalization layers, which stay with their clients.

    :class:`FedPer` with the scales and offsets of normalization as ``personal``: where clients'
    inputs are on scales of their own, each keeps what takes them off. By default all parameters of
    a network whose path names a normalization; those of a linear prediction have no names, so
    ``personal`` must say which.

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    personal: str | tuple = field(
        converter=partial(as_coordinates, "personal"),
        static=True,
        default="(?i)norm|(^|[/_.])bn",
        kw_only=True,
    )
