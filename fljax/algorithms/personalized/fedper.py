r"""Partial personalization: some parameters are shared, the others are personal to each client.

FedPer (Arivazhagan et al. 2019), LG-FedAvg (Liang et al. 2020), FedBN (Li et al. 2021), FedRep
(Collins et al. 2021) and FedBABU (Oh et al. 2022). The first three train all parameters together
and differ in the shared ones; FedRep trains the personal parameters before the shared ones, FedBABU
only after them.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import field, module
from fljax.algorithms.algorithm import algorithm, start_models
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging, Cohort
from fljax.graphs.federation import Network
from fljax.problems import Problem


def as_coordinates(name: str, chosen: object) -> str | tuple:
    """Return a choice of parameters (a pattern, a mask or indices) as a static argument."""
    if isinstance(chosen, str):
        return chosen
    plain = checks.plain(chosen)
    plain = np.asarray(plain if checks.is_real(plain) else None)
    if plain.ndim != 1 or (plain.size and plain.dtype.kind not in "biu"):
        raise TypeError(
            f"{name} must be a mask of the parameters or a list of their indices, got "
            f"{checks.shown(chosen)}."
        )
    return tuple(plain.tolist())


class FedPerState(NamedTuple):
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
    :math:`(\varphi^{(n)},h_k)`. The initial heads are from the problem
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

    def check(self, problem: Any, network: Network) -> None:
        super().check(problem, network)
        problem.coordinates(self.personal)

    def message_size_of(self, problem: Problem) -> int:
        return len(self._split(problem)[0])

    def _split(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the shared parameters, and of the personal ones."""
        is_personal = problem.coordinates(self.personal)
        return np.flatnonzero(~is_personal).astype(np.int32), np.flatnonzero(is_personal).astype(
            np.int32
        )

    def init(self, problem: Problem, network: Network) -> Any:
        start = start_models(problem)
        (shared, _) = self._split(problem)
        server = jnp.mean(start[:, shared], axis=0)
        return FedPerState(start.at[:, shared].set(server[None]), server)

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def step(self, state: PyTree, now: Round) -> Any:
        shared, personal = self._split(now.problem)
        cohort = self._invite(now, state.model)
        server = now.link.publish(state.server, cohort.active)
        start = cohort.participants.take(state.model).at[:, shared].set(server[None])
        local = self._train_participants(now, cohort, start, personal)
        server = self.collect(now, cohort, local[:, shared], server).move(server)
        model = cohort.participants.put(state.model, local).at[:, shared].set(server[None])
        return FedPerState(model, server)

    def _invite(self, now: Round, model: Float[Array, "clients dim"]) -> Cohort:
        return self.invite(now, model)

    def _train_participants(
        self, now: Round, cohort: Cohort, start: Float[Array, "chosen dim"], personal: np.ndarray
    ) -> Float[Array, "chosen dim"]:
        """Return the participants' models after their steps."""
        return self.learn(now, cohort, start).model

    def _train_part(
        self,
        now: Round,
        cohort: Cohort,
        model: Float[Array, "chosen dim"],
        indices: np.ndarray,
    ) -> Float[Array, "chosen dim"]:
        """Return the models after steps on the parameters at these indices only."""

        def whole(variables: Array, model: Array) -> Array:
            return model.at[:, indices].set(variables)

        def part_gradient(part: Problem, variables: Array, model: Array) -> Array:
            return part.gradient(whole(variables, model))[:, indices]

        learned = self.learn(
            now,
            cohort,
            model[:, indices],
            direction=part_gradient,
            context=model,
            layouts=[now.problem.layout.part(indices)],
            whole=whole,
        )
        return model.at[:, indices].set(learned.model)


@algorithm("LG-FedAvg", "liang2020", AVERAGED, {"LG-Fed": ""})
@module
class LGFedAvg(FedPer):
    r"""A personal representation at each client and a common head, trained together.

    The reverse of :class:`FedPer`: ``personal`` are the parameters of the representation
    :math:`\ell_k(\cdot;\theta_k^\ell)`, and only the parameters of the small model on top of it are
    sent. The paper's auxiliary losses of the representations (self-supervised, adversarial) would
    be part of the problem, and its experiments start from several rounds of federated averaging
    (:meth:`~fljax.problems.Problem.starting_at`).

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> algorithm = fl.algorithms.LGFedAvg(0.1, personal=[0, 1, 2])
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, 1 of 4 parameters of 32 bits
      1920

    Reference:
      Liang et al. 2020, Algorithm 1.
    """


@algorithm("FedBN", "li2021bn", AVERAGED)
@module
class FedBN(FedPer):
    r"""Federated averaging of all parameters except normalization layers, which are personal.

    It is :class:`FedPer` with the scales and offsets of normalization layers as ``personal``: if
    clients' inputs have different scales, each client keeps the parameters that remove them. By
    default these are all parameters of a network whose path names a normalization; the parameters
    of a linear prediction have no names, so that ``personal`` must specify them. Running statistics
    of batch normalization stay at the clients by the problem, ``Model(state="kept")``.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=6, samples=20, dim=4)
      >>> algorithm = fl.algorithms.FedBN(0.1, personal=[3])  # of a network, the default finds them
      >>> run = fl.run(fl.Simulation(problem, algorithm), rounds=10)
      >>> int(run.bits_up[-1])  # 10 rounds, 6 clients, 3 of 4 parameters of 32 bits
      5760

    Reference:
      Li et al. 2021, Algorithm 1.
    """

    personal: str | tuple = field(
        converter=partial(as_coordinates, "personal"),
        static=True,
        default="(?i)norm|(^|[/_.])bn",
        kw_only=True,
    )

    def check(self, problem: Any, network: Network) -> None:
        super().check(problem, network)
        if problem.mixes_samples and problem.state is None:
            raise ValueError(
                "FedBN leaves the running statistics of batch normalization at the clients, as the "
                "scales and offsets; make the problem with state='kept', or say which other policy "
                "is meant."
            )
