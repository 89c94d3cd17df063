r"""Partial personalization: some parameters are shared, the others are personal to each client.

FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020), FedBN (Li et al. 2021), FedRep
(Collins et al. 2021) and FedBABU (Oh et al. 2022). The first three train all parameters together
and differ in what is shared; FedRep trains the personal parameters before the shared ones, FedBABU
only after them.
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
    """Return a choice of parameters (a pattern, a mask or indices) as a static argument."""
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
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  of each client its own parameters, and the server's
    server: Array  # [shared]


@algorithm("FedPer", "arivazhagan2019", AVERAGED)
@module
class FedPer(Averaging):
    r"""A common body and a personal head at each client, trained together.

    The server stores the part :math:`\varphi` of a model :math:`(\varphi,h_k)`. A participant of
    round :math:`n` takes gradient steps from :math:`(\varphi^{(n-1)},h_k)` as in federated
    averaging, on all of its parameters, keeps :math:`h_k` and sends :math:`\varphi_k`:

    .. math::

        (\varphi_k,h_k) \leftarrow (\varphi_k,h_k)-\mu f_k'(\varphi_k,h_k),\qquad
        \varphi^{(n)}=\sum_{k\in S}\frac{q_k}{\sum_{l\in S}q_l}\varphi_k

    A message contains the shared parameters only, in both directions, and costs their bits. Clients
    that do not participate keep :math:`h_k`. Metrics evaluate each client's
    :math:`(\varphi^{(n)},h_k)`. The initial heads are those of the problem
    (:meth:`~fljax.problems.Problem.starting_at`, one per client, or one for all).

    Args:
      step_size: :math:`\mu`, as in :class:`~fljax.algorithms.FedAvg`, which also has the other
        arguments.
      personal: which parameters are personal, as
        :meth:`problem.coordinates <fljax.problems.Problem.coordinates>` accepts it: a mask,
        indices, or, for a network, a regular expression for the paths of its parameters.

    Raises:
      TypeError, ValueError: parameters that the problem does not have; as for FedAvg.

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
        """Return the indices of the shared parameters, and of the personal ones."""
        own = problem.coordinates(self.personal)
        return np.flatnonzero(~own).astype(np.int32), np.flatnonzero(own).astype(np.int32)

    def init(self, problem: Problem, network: Any) -> Any:
        start, (shared, _) = start_models(problem), self._split(problem)
        server = jnp.mean(start[:, shared], axis=0)
        return State(start.at[:, shared].set(server[None]), server)

    def step(self, state: Any, now: Round) -> Any:
        shared, own = self._split(now.problem)
        cohort = self._invited(now, state.model)
        server = now.link.publish(state.server, cohort.here)
        start = cohort.who.take(state.model).at[:, shared].set(server[None])
        local = self._trained(now, cohort, start, own)
        server = self.collect(now, cohort, local[:, shared], server).move(server)
        model = cohort.who.put(state.model, local).at[:, shared].set(server[None])
        return State(model, server)

    def _invited(self, now: Round, model: Float[Array, "clients dim"]) -> Cohort:
        return self.invite(now, model)

    def _trained(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], own: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        """Return the participants' models after their steps."""
        return self.learn(now, cohort, start).model

    def _moved(
        self,
        now: Round,
        cohort: Cohort,
        model: Float[Array, "chosen dim"],
        places: np.ndarray,
        batch: Any = None,
    ) -> Float[Array, "chosen dim"]:
        """Return the models after steps on the parameters at these indices only."""

        def along(part: Problem, some: Array, model: Array) -> Array:
            return part.gradient(model.at[:, places].set(some))[:, places]

        learned = self.learn(
            now,
            cohort,
            model[:, places],
            batch=batch,
            direction=along,
            given=model,
            layouts=[now.problem.layout.part(places)],
        )
        return model.at[:, places].set(learned.model)


@algorithm("LG-FedAvg", "liang2020", AVERAGED)
@module
class LGFedAvg(FedPer):
    r"""A personal representation at each client and a common head, trained together.

    The reverse of :class:`FedPer`: ``personal`` are the parameters of the representation
    :math:`\ell_k(\cdot;\theta_k^\ell)`, and only those of the small model on top of it are sent.
    The paper's auxiliary losses of the representations (self-supervised, adversarial) would be part
    of the problem, and its experiments start from several rounds of federated averaging
    (:meth:`~fljax.problems.Problem.starting_at`).

    Reference:
      Liang et al. 2020, Algorithm 1.
    """


@algorithm("FedBN", "li2021bn", AVERAGED)
@module
class FedBN(FedPer):
    r"""Federated averaging of all parameters except normalization layers, which are personal.

    It is :class:`FedPer` with the scales and offsets of normalization layers as ``personal``: if
    clients' inputs have different scales, each client keeps the parameters that remove them. By
    default these are all parameters of a network whose path names a normalization; those of a
    linear prediction have no names, so that ``personal`` must specify them.

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    personal: str | tuple = field(
        converter=partial(as_coordinates, "personal"),
        static=True,
        default="(?i)norm|(^|[/_.])bn",
        kw_only=True,
    )
