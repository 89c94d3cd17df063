r"""Theory of PAO-Fed (Gauthier 2024, section 4.3), for small cases.

"The paper" is the one on which the chapter rests, Gauthier et al. 2023 (PAO-Fed); its section IV
and its appendices have the proofs.

The thesis writes one round of the algorithm as a random linear map of the *extended model*, the
stack of the server's model, the clients' models and the clients' models of previous rounds:

.. math::

    w_e^{(n+1)}=B_e^{(n)}\big(A_e^{(n)}w_e^{(n)}+\mu Z_e^{(n)}e_e^{(n)}\big)\tag{4.20}

:math:`A_e` merges received parameters into the clients' models, :math:`Z_ee_e` is their LMS step
and :math:`B_e` is the server's aggregation of the messages that arrive. From the first two moments
of these matrices follow the conditions on the step size, the learning curve and the steady state.

The printed matrices are off by one round and have three different sizes; the functions here compute
the form that reproduces the algorithm exactly (:func:`extended_matrices`), and each states its
repairs. The expectations are exact sums, not averages over draws: the thesis gives :math:`E[A_e]`,
and for :math:`E[B_e]`, :math:`\mathcal Q_A`, :math:`\mathcal Q_B` shows only that they are
right-stochastic.

Assumptions of the analysis (section 4.3.1): A1 features :math:`z_k` of stationary correlation
:math:`R_k`; A2 white Gaussian noise, independent of everything; A3 models independent of the
features of the round; A4 portions independent of each other and of everything else; A5 a step size
so small that its square can be neglected. Targets are linear, :math:`y=z^\top w^*+\eta`, and every
client has new data in every round. The analysis also uses unstated assumptions: that features are
independent between clients, and that availability, :math:`a_k^{(n)}`, and arrivals of messages,
:math:`b_{k,l}^{(n)}`, are independent of each other and between rounds. In the algorithm an
unavailable client sends no message that arrives without delay, and no message arrives twice; it
then learns more slowly than predicted. Its schedule of portions, which A4 replaces by random ones,
makes it learn faster. In both cases the steady state is close to the prediction.

:math:`\mathcal F` has :math:`(N_bD)^2` rows, so a case must be small. Everything is NumPy in
float64, outside compiled runs. Block operators :math:`\otimes_b`, bvec are replaced by the ordinary
ones, which differ by one permutation; :math:`\mathrm{vec}` is row-major.

Shapes: ``K`` clients, ``D`` parameters, ``L = l_max + 1`` delays, ``T`` rounds,
``N = 1 + K L`` models in the extended model.
"""

import dataclasses
import functools
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from jax.typing import ArrayLike
from jaxtyping import Float

from fljax._core import checks
from fljax._core.annotations import check_fields, checked

__all__ = [
    "Extended",
    "Instance",
    "expected_matrices",
    "extended_matrices",
    "mean_bound",
    "mean_matrix",
    "mean_radius",
    "mean_square_bound",
    "mean_square_matrix",
    "mean_square_radius",
    "noise_vector",
    "second_moments",
    "stable_step",
    "steady_state",
    "transient",
]

#: Largest size of the extended model; the number of rows of F is its square.
LARGEST = 300

#: Modes of convergence: in the mean or in the mean square.
Sense = Literal["mean", "mean square"]


# --------------------------------------------------------------------------- step-size bounds


@checked
def mean_bound(correlations: Float[np.ndarray, "clients dim dim"]) -> float:
    r"""The step size below which PAO-Fed converges in the mean, (4.22).

    .. math:: 0<\mu<\frac2{\max_{k,i}\lambda_i(R_k)}

    Theorem 4.1 says "if and only if" under A1-A4. The paper (section IV-A) argues only sufficiency,
    and only for the clients' part of the error; necessity is false: a client's parameter that the
    server overwrites from time to time may grow in between (:func:`stable_step`). The condition is
    sufficient if every :math:`R_k` is positive definite and some client can reach the server; both
    conditions are unstated.

    Args:
      correlations: ``[K, D, D]``, :math:`R_k=E[z_kz_k^\top]`.

    Raises:
      ValueError: not square matrices; not symmetric and positive semidefinite; all zero.

    Example:
      >>> import numpy as np, fljax as fl
      >>> float(fl.theory.pao_fed.mean_bound(np.stack([np.eye(2), 0.5 * np.eye(2)])))
      2.0
    """
    return 2 / _largest_eigenvalue(correlations)


@checked
def mean_square_bound(correlations: Float[np.ndarray, "clients dim dim"]) -> float:
    r"""The step size below which PAO-Fed is stable in the mean square, (4.31).

    .. math:: 0<\mu<\frac1{\max_{k,i}\lambda_i(R_k)}

    Theorem 4.2 says "if and only if" under A1-A5. Necessity is not argued, and is false. The
    argument for sufficiency (the paper, section IV-B) has two gaps: :math:`R_e` is zero on the
    server, so the norm of :math:`I-\mu I\otimes R_e-\mu R_e\otimes I` is one and not less, and the
    norms of :math:`\mathcal Q_A,\mathcal Q_B` exceed one (:func:`second_moments`); no case is known
    in which the conclusion fails for the recursion under A5. But A5 drops the term that limits the
    step size. For the exact recursion the bound is neither necessary nor sufficient: features with
    :math:`\|z\|^2=\nu` are stable up to about :math:`2/\nu`, which is twice this bound if all their
    power is in one direction and far below it if it is spread over many; Gaussian features are
    stable up to less (:func:`stable_step`).

    Args:
      correlations: ``[K, D, D]``, :math:`R_k`.

    Raises:
      ValueError: as for :func:`mean_bound`.

    Example:
      >>> import numpy as np, fljax as fl
      >>> float(fl.theory.pao_fed.mean_square_bound(np.stack([np.eye(2), 0.5 * np.eye(2)])))
      1.0
    """
    return 1 / _largest_eigenvalue(correlations)


def _largest_eigenvalue(correlations: np.ndarray) -> float:
    largest = float(np.linalg.eigvalsh(_correlations(correlations)).max())
    if largest <= 0:
        raise ValueError("all correlations are zero; no step size is too large, and none helps.")
    return largest


def _correlations(value: object) -> np.ndarray:
    matrices = np.asarray(value, np.float64)
    if matrices.ndim != 3 or matrices.shape[1] != matrices.shape[2] or not matrices.size:
        raise ValueError(f"correlations must be [clients, dim, dim], got shape {matrices.shape}.")
    checks.finite("correlations", matrices)
    scale = 1e-10 * np.abs(matrices).max()
    if np.abs(matrices - matrices.mT).max() > scale:
        raise ValueError("correlations must be symmetric matrices.")
    if np.linalg.eigvalsh(matrices).min() < -scale:
        raise ValueError("correlations must be positive semidefinite matrices.")
    return matrices


# --------------------------------------------------------------------------- the analyzed instance


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    r"""A small case of PAO-Fed as modeled in its analysis: every round is drawn independently.

    The selection matrices are windows of ``portion`` successive parameters whose start is uniformly
    distributed and which wrap around at the end; ``coordinated`` clients share one window. Each
    message of client ``k`` arrives ``l`` rounds late with probability :math:`p_k\pi_l`.

    Args:
      correlations: ``[K, D, D]``, :math:`R_k`.
      noise_variances: ``[K]``, :math:`\sigma^2_{\eta,k}`.
      participation: ``[K]``, :math:`p_k`.
      delays: ``[L]``, :math:`\pi_l`; the remaining probability is that of loss.
      weights: ``[L]``, :math:`\alpha_l`.
      portion: :math:`m`.
      step_size: :math:`\mu`.
      coordinated: whether all clients share the same portion.
      fourth_moments: ``[K, D, D, D, D]``, :math:`E[z_az_bz_cz_d]`; of Gaussian features if
        not given.

    Raises:
      ValueError: a shape that does not match, a value outside its range, an extended model of more
        than :data:`LARGEST` numbers.

    Example:
      >>> case = Instance(
      ...     correlations=np.stack([np.eye(2), 0.5 * np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.16]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> mean_radius(case) < 1
      True
      >>> 0 < steady_state(case, small_steps=True) < steady_state(case)
      True
    """

    correlations: Float[np.ndarray, "clients dim dim"]
    noise_variances: Float[np.ndarray, " clients"]
    participation: Float[np.ndarray, " clients"]
    delays: Float[np.ndarray, " delays"]
    weights: Float[np.ndarray, " delays"]
    portion: int
    step_size: float
    coordinated: bool = False
    fourth_moments: Float[np.ndarray, "clients dim dim dim dim"] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "correlations", _correlations(self.correlations))
        clients, dim = self.correlations.shape[:2]
        late = np.size(self.delays)
        for name, size, upper in (
            ("noise_variances", clients, None),
            ("participation", clients, 1),
            ("delays", late, 1),
            ("weights", late, 1),
        ):
            values = np.asarray(getattr(self, name), np.float64)
            if values.shape != (size,) or not size:
                raise ValueError(f"{name} must have shape ({max(size, 1)},), got {values.shape}.")
            checks.interval(name, values, at_least=0, at_most=upper)
            object.__setattr__(self, name, values)
        checks.interval("the sum of delays", self.delays.sum(), at_most=1 + 1e-12)
        checks.positive("step_size", self.step_size)
        checks.count("portion", self.portion)
        if self.portion > dim:
            raise ValueError(f"portion must be <= dim = {dim}, got {self.portion}.")
        if self.fourth_moments is not None:
            fourth = np.asarray(self.fourth_moments, np.float64)
            if fourth.shape != (clients, *4 * (dim,)):
                raise ValueError(
                    f"fourth_moments must be [clients, dim, dim, dim, dim], got {fourth.shape}."
                )
            object.__setattr__(self, "fourth_moments", fourth)
        if self.models * dim > LARGEST:
            raise ValueError(
                f"the extended model has {self.models} models of {dim} parameters, more than "
                f"{LARGEST} numbers; F has the square of it as rows. Take fewer clients, "
                "parameters or delays."
            )

    @property
    def clients(self) -> int:
        return self.correlations.shape[0]

    @property
    def dim(self) -> int:
        return self.correlations.shape[1]

    @property
    def models(self) -> int:
        """``N``, the number of models in the extended model."""
        return 1 + self.clients * self.delays.size

    def at(self, step_size: float) -> "Instance":
        """The same case with another step size."""
        return dataclasses.replace(self, step_size=step_size)


# --------------------------------------------------------------------------- extended model


class Extended(NamedTuple):
    """The matrices of one round; rows and columns are models times parameters."""

    merge: np.ndarray  # [N D, N D]  A_e
    collect: np.ndarray  # [N D, N D]  B_e


@checked
def extended_matrices(
    available: np.ndarray,
    received: np.ndarray,
    sent: np.ndarray,
    arrives: np.ndarray,
    weights: np.ndarray,
    as_printed: bool = False,
) -> Extended:
    r""":math:`A_e^{(n)}` and :math:`B_e^{(n)}` of (4.16)-(4.21) for the draws of one round.

    The extended model consists of :math:`N=1+K(l_{\max}+1)` models, in this order:

    .. math::

        w^{(n)},\{w_k^{(n)}\}_k,\{w_k^{(n)}\}_k,\{w_k^{(n-1)}\}_k,\dots,\{w_k^{(n-l_{\max}+1)}\}_k.

    Repairs of the printed form:

    * after the clients' step the first group of models holds :math:`w_k^{(n+1)}` and the second
      :math:`w_k^{(n)}`, so a message that took :math:`l` rounds, :math:`w_k^{(n+1-l)}` (4.13), is
      in group :math:`l+1`. (4.21) puts a zero block at group 2 and :math:`B_l` at group
      :math:`l+2`, which delays each late message by one additional round; ``as_printed`` gives this
      form, with the additional group that (4.15) then requires;
    * :math:`N` is printed as :math:`1+K(l_{\max}+2)` (4.15), :math:`(K+1)l_{\max}+1` (4.18) and as
      above (the paper, appendix B);
    * :math:`S_k^{(n-l)}` is its part that remains after the conflict rule: if messages of several
      ages contain the same parameter, only the most recent ones are used (the paper, below (15)).
      Without it :math:`B_e` has negative entries, and is not right-stochastic as Appendix B has it.

    Args:
      available: ``[K]``, :math:`a_k^{(n)}`.
      received: ``[K, D]``, the diagonals of :math:`M_k^{(n)}`.
      sent: ``[L, K, D]``, the diagonals of :math:`S_k^{(n-l)}`.
      arrives: ``[L, K]``, :math:`b_{k,l}^{(n)}`.
      weights: ``[L]``, :math:`\alpha_l`.
      as_printed: whether to include the zero block column of (4.21).

    Raises:
      ValueError: shapes that do not match each other, indicators other than zero and one, weights
        outside of 0 to 1.

    Example:
      The only client is available and its whole model arrives at once: it replaces the server's.

      >>> import numpy as np, fljax as fl
      >>> merge, collect = fl.theory.pao_fed.extended_matrices(
      ...     available=np.array([1.0]),
      ...     received=np.ones((1, 1)),
      ...     sent=np.ones((1, 1, 1)),
      ...     arrives=np.ones((1, 1)),
      ...     weights=np.ones(1),
      ... )
      >>> merge.tolist(), collect.tolist()
      ([[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]])
    """
    checks.interval("weights", weights, at_least=0, at_most=1)
    delays, clients, dim = _shaped("sent", sent, 3)
    for name, value, shape in (
        ("available", available, (clients,)),
        ("received", received, (clients, dim)),
        ("arrives", arrives, (delays, clients)),
        ("weights", weights, (delays,)),
    ):
        if np.shape(value) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {np.shape(value)}.")
    for name, value in (
        ("available", available),
        ("received", received),
        ("sent", sent),
        ("arrives", arrives),
    ):
        checks.interval(name, value, at_least=0, at_most=1)
        if not np.isin(np.asarray(value), (0, 1)).all():
            raise ValueError(
                f"{name} must be booleans, or zeros and ones, got {checks.shown(value)}."
            )
    groups = delays + as_printed
    models = 1 + clients * groups
    diagonal = np.arange(1, clients + 1)

    # Parameters do not mix, so each has an [N, N] matrix of its own.
    merge = np.tile(np.eye(models), (dim, 1, 1))
    taken = (np.asarray(available)[:, None] * np.asarray(received)).T.astype(float)
    merge[:, diagonal, 0] = taken
    merge[:, diagonal, diagonal] = 1 - taken

    gains = _gains(np.asarray(sent, bool), np.asarray(arrives, bool), np.asarray(weights))
    if as_printed:
        gains = np.insert(gains, 1, 0, axis=0)
    collect = np.tile(_shift(clients, groups), (dim, 1, 1))
    collect[:, 0, 1:] = gains.reshape(groups * clients, dim).T
    collect[:, 0, 0] = 1 - collect[:, 0, 1:].sum(axis=1)
    return Extended(_spread(merge), _spread(collect))


def _shaped(name: str, value: ArrayLike, ndim: int) -> tuple[int, ...]:
    shape = np.shape(value)
    if len(shape) != ndim or 0 in shape:
        raise ValueError(f"{name} must have {ndim} axes, none of them empty, got shape {shape}.")
    return shape


def _gains(sent: np.ndarray, arrives: np.ndarray, weights: np.ndarray) -> np.ndarray:
    r"""``[L, K, D]``: :math:`\alpha_lb_{k,l}S_k^{(n-l)}/|\mathcal C_l|`, most recent first."""
    applied = sent & arrives[:, :, None]
    covered = (
        np.cumsum(applied.any(axis=1), axis=0) - applied.any(axis=1) > 0
    )  # by fresher messages
    share = weights / np.maximum(arrives.sum(axis=1), 1)
    return share[:, None, None] * (applied & ~covered[:, None])


def _shift(clients: int, groups: int) -> np.ndarray:
    """The rows of ``B_e`` except the first: the first group is kept and all groups shift by one."""
    models = 1 + clients * groups
    matrix = np.zeros((models, models))
    rows = np.arange(1, models)
    matrix[rows, np.where(rows <= clients, rows, rows - clients)] = 1
    return matrix


def _spread(matrices: np.ndarray) -> np.ndarray:
    """One matrix over models times parameters from an ``[N, N]`` matrix per parameter."""
    dim, models = matrices.shape[:2]
    blocks = np.zeros((models, dim, models, dim))
    blocks[:, np.arange(dim), :, np.arange(dim)] = matrices
    return blocks.reshape(models * dim, models * dim)


# --------------------------------------------------------------------------- moments of A_e, B_e


def _window(instance: Instance) -> tuple[float, np.ndarray]:
    """Probability that a window contains a parameter, and ``[D, D]`` that it contains two."""
    start, entry = np.indices((instance.dim, instance.dim))
    inside = (entry - start) % instance.dim < instance.portion
    return instance.portion / instance.dim, inside.T.astype(float) @ inside / instance.dim


class _Class(NamedTuple):
    """Moments of the messages of one delay; gains before the conflict rule."""

    gain: np.ndarray  # [K]  E[g_k(i)]
    square: np.ndarray  # [K, K, D, D]  E[g_k(i) g_j(j)]
    alone: np.ndarray  # [K, D, D]  E[g_k(i); no message has j]
    free: float  # P(no message has i)
    both_free: np.ndarray  # [D, D]  P(no message has i or j)


def _class(instance: Instance, delay: int) -> _Class:
    covered, both_covered = _window(instance)
    arrives = instance.participation * instance.delays[delay]
    weight = instance.weights[delay]
    clients = range(instance.clients)

    def sizes(*present: int) -> tuple[np.ndarray, np.ndarray]:
        """Sizes of the class, and the probability of each with these clients in it."""
        laws = ([1 - r, r] for k, r in enumerate(arrives) if k not in present)
        probabilities = functools.reduce(np.convolve, laws, np.ones(1))
        return len(present) + np.arange(probabilities.size), probabilities * np.prod(
            arrives[list(present)]
        )

    def missed(probability: object, messages: np.ndarray) -> Any:
        """Probability that none of the messages has a property that each lacks with this
        probability.
        """
        return probability ** (np.minimum(messages, 1) if instance.coordinated else messages)

    size, probabilities = sizes()
    uncovered = float(probabilities @ missed(1 - covered, size))
    both_free = missed((1 - 2 * covered + both_covered)[:, :, None], size) @ probabilities
    gain = np.zeros(len(clients))
    alone = np.zeros((len(clients), *both_covered.shape))
    square = np.zeros((len(clients), *alone.shape))
    for k in clients:
        size, probabilities = sizes(k)
        gain[k] = weight * covered * (probabilities @ (1 / size))
        others_miss = np.ones_like(size) if instance.coordinated else (1 - covered) ** (size - 1.0)
        alone[k] = weight * (covered - both_covered) * (probabilities @ (others_miss / size))
        for j in clients:
            size, probabilities = sizes(*{k, j})
            jointly = both_covered if k == j or instance.coordinated else covered**2
            square[k, j] = weight**2 * jointly * (probabilities @ (1 / size**2))
    return _Class(gain, square, alone, uncovered, both_free)


class _Server(NamedTuple):
    """Moments of the first row of ``B_e``: weights of all models in a parameter of the next."""

    mean: np.ndarray  # [N]
    second: np.ndarray  # [N, N, D, D]  E[c(i) c(j)']


def _server(instance: Instance) -> _Server:
    """Exact moments: delay classes are independent, and each applies if no more recent one does."""
    delays = instance.delays.size
    clients = instance.clients
    dim = instance.dim
    classes = [_class(instance, delay) for delay in range(delays)]
    mean = np.zeros((delays, clients))
    second = np.zeros((delays, clients, delays, clients, dim, dim))
    uncovered = 1.0
    both_free = np.ones((dim, dim))  # of all fresher classes
    for age, delay_class in enumerate(classes):
        mean[age] = uncovered * delay_class.gain
        second[age, :, age] = both_free * delay_class.square
        alone = both_free * delay_class.alone
        for older in range(age + 1, delays):
            mixed = alone[:, None] * classes[older].gain[:, None, None]  # [K, K, D, D]
            second[age, :, older] = mixed
            second[older, :, age] = np.moveaxis(mixed, (0, 1), (1, 0)).mT
            alone = alone * classes[older].free
        uncovered = uncovered * delay_class.free
        both_free = both_free * delay_class.both_free

    # The server's own weight is one minus the others' sum.
    mean = mean.ravel()
    second = second.reshape(mean.size, mean.size, dim, dim)
    cross = mean[:, None, None] - second.sum(axis=1)  # [N-1, D, D]  E[c(i) c_0(j)]
    second_moments = np.empty((mean.size + 1, mean.size + 1, dim, dim))
    second_moments[1:, 1:] = second
    second_moments[1:, 0] = cross
    second_moments[0, 1:] = cross.mT
    second_moments[0, 0] = 1 - 2 * mean.sum() + second.sum(axis=(0, 1))
    return _Server(np.concatenate([[1 - mean.sum()], mean]), second_moments)


def _expected(instance: Instance, mean: np.ndarray) -> Extended:
    """The expectations over models, ``[N, N]``, which are equal for all parameters."""
    merge = np.eye(instance.models)
    diagonal = np.arange(1, instance.clients + 1)
    merge[diagonal, 0] = instance.participation * _window(instance)[0]
    merge[diagonal, diagonal] -= merge[diagonal, 0]
    collect = _shift(instance.clients, instance.delays.size)
    collect[0] = mean
    return Extended(merge, collect)


@checked
def expected_matrices(instance: Instance) -> Extended:
    r""":math:`E[A_e]` and :math:`E[B_e]`, each ``[N D, N D]`` (the paper, appendix A).

    :math:`E[a_kM_k]=p_k\frac mDI`. For :math:`E[B_e]` the appendix states only that its rows sum to
    one (the sum must start at :math:`l=0`); its value is

    .. math::

        E[B_l^{(k)}]=\alpha_l\frac mDE\Big[\frac{b_{k,l}}{|\mathcal C_l|}\Big]
        \prod_{r<l}P(\text{no message of class }r\text{ has the parameter})\;I,

    where the product is due to the conflict rule.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> merge, collect = theory.expected_matrices(case)
      >>> merge.shape, bool(np.allclose(collect.sum(axis=1), 1))  # five models of two parameters
      ((10, 10), True)
    """
    parts = _expected(instance, _server(instance).mean)
    return Extended(*(np.kron(matrix, np.eye(instance.dim)) for matrix in parts))


@checked
def second_moments(instance: Instance) -> tuple[sp.csr_array, sp.csr_array]:
    r""":math:`\mathcal Q_A=E[A_e\otimes A_e]` and :math:`\mathcal Q_B=E[B_e\otimes B_e]`, (4.27).

    Both are sparse, ``[(N D)^2, (N D)^2]``, non-negative and with rows that sum to one (Appendix
    B). The proof of Theorem 4.2 concludes that their block maximum norm is one, which would require
    blocks that are multiples of the identity: the probability that two parameters are drawn
    together depends on their distance, and the norm is above one.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> first, second = theory.second_moments(case)
      >>> bool(np.allclose(first.sum(axis=1), 1)), bool(np.allclose(second.sum(axis=1), 1))
      (True, True)
    """
    clients = instance.clients
    models = instance.models
    dim = instance.dim
    server = _server(instance)
    merge, collect = _expected(instance, server.mean)
    covered, both_covered = _window(instance)

    take = instance.participation * covered
    covariance = np.zeros((clients, clients, dim, dim))  # of a_k M_k(i) and a_j M_j(j)
    if instance.coordinated:
        covariance += np.outer(instance.participation, instance.participation)[:, :, None, None]
        covariance *= both_covered - covered**2
    diagonal = np.arange(clients)
    covariance[diagonal, diagonal] = (
        instance.participation[:, None, None] * both_covered - take[:, None, None] ** 2
    )

    eye = np.eye(models)
    rows = eye[:, 1 : clients + 1]
    pulls = eye[0] - eye[1 : clients + 1]  # row k + 1 is pulled to 0
    rows = _kron(rows, rows)
    pulls = _kron(pulls, pulls)
    merges = _kron(merge, merge)
    collects = _kron(collect, collect)
    first = []
    second = []
    for i, j in np.ndindex(dim, dim):
        first.append(merges + rows * covariance[:, :, i, j].ravel() @ pulls)
        top = server.second[:, :, i, j] - np.outer(server.mean, server.mean)
        second.append(collects + _kron(np.eye(models**2, 1), top.reshape(1, -1)))
    return _paired(first, dim), _paired(second, dim)


def _paired(matrices: list[sp.csr_array], dim: int) -> sp.csr_array:
    """One matrix on ``vec`` of ``[ND, ND]`` from ``[N^2, N^2]`` matrices per parameter pair."""
    models = math.isqrt(matrices[0].shape[0])
    size = models * dim
    parts = []
    for (i, j), matrix in zip(np.ndindex(dim, dim), matrices, strict=True):
        entries = sp.coo_array(matrix)
        rows, columns = (
            (index // models * dim + i) * size + index % models * dim + j
            for index in entries.coords
        )
        parts.append((entries.data, rows, columns))
    values, rows, columns = map(np.concatenate, zip(*parts, strict=True))
    matrix = sp.csr_array((values, (rows, columns)), shape=(size**2, size**2))
    matrix.eliminate_zeros()
    return matrix


# --------------------------------------------------------------------------- in the mean


def _in_blocks(instance: Instance, blocks: np.ndarray) -> np.ndarray:
    """``blockdiag(0, blocks, 0)`` with one block per client."""
    clients = instance.clients
    models = instance.models
    dim = instance.dim
    matrix = np.zeros((models, dim, models, dim))
    diagonal = np.arange(1, clients + 1)
    matrix[diagonal, :, diagonal] = blocks
    return matrix.reshape(models * dim, models * dim)


@checked
def mean_matrix(instance: Instance) -> Float[np.ndarray, "size size"]:
    r""":math:`E[B_e](I-\mu R_e)E[A_e]`, which propagates the mean error, (24) of the paper.

    :math:`R_e=\mathrm{blockdiag}\{0,R_1,\dots,R_K,0\}`, the zero of all later groups last (the
    paper prints :math:`R_1` twice).

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> theory.mean_matrix(case).shape  # five models of two parameters
      (10, 10)
    """
    merge, collect = expected_matrices(instance)
    step = np.eye(len(merge)) - instance.step_size * _in_blocks(instance, instance.correlations)
    return collect @ step @ merge


@checked
def mean_radius(instance: Instance) -> float:
    """The spectral radius of :func:`mean_matrix`; below one for convergence in the mean.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> 0.9 < theory.mean_radius(case) < 1
      True
    """
    return float(np.abs(np.linalg.eigvals(mean_matrix(instance))).max())


def _start(instance: Instance, optimum: ArrayLike) -> np.ndarray:
    optimum = np.asarray(optimum, np.float64)
    if optimum.shape != (instance.dim,):
        raise ValueError(f"optimum must have shape ({instance.dim},), got {optimum.shape}.")
    return np.tile(optimum, instance.models)


# --------------------------------------------------------------------------- in the mean square


#: A dense or a sparse matrix.
Matrix: TypeAlias = np.ndarray | sp.sparray | sp.spmatrix


def _kron(left: Matrix, right: Matrix) -> sp.csr_array:
    """The Kronecker product of matrices made sparse first, as SciPy rejects two dense ones."""
    return sp.csr_array(sp.kron(sp.csr_array(left), sp.csr_array(right)))


def _step_moment(instance: Instance, small_steps: bool) -> sp.csr_array:
    r""":math:`E[(I-\mu ZZ^\top)\otimes(I-\mu ZZ^\top)]`, or without its last term."""
    correlation = sp.csr_array(_in_blocks(instance, instance.correlations))
    eye = sp.eye_array(correlation.shape[0], format="csr")
    step = instance.step_size
    linear = _kron(eye, correlation) + _kron(correlation, eye)
    moment = _kron(eye, eye) - step * linear
    if small_steps:
        return sp.csr_array(moment)

    # Clients' features are independent, so that only the fourth moments of one client's
    # features differ from the product of correlations.
    models = instance.models
    dim = instance.dim
    r = instance.correlations
    fourth = instance.fourth_moments
    crossed = np.einsum("kac,kbd->kabcd", r, r) + np.einsum("kad,kbc->kabcd", r, r)
    if fourth is not None:
        crossed = fourth - np.einsum("kab,kcd->kabcd", r, r)
    # E[(zz' x zz')] takes (b, d) to (a, c): rows (a, c), columns (b, d).
    k, a, b, c, d = np.indices(crossed.shape).reshape(5, -1)
    rows = ((k + 1) * dim + a) * models * dim + (k + 1) * dim + c
    columns = ((k + 1) * dim + b) * models * dim + (k + 1) * dim + d
    extra = sp.csr_array((crossed.ravel(), (rows, columns)), shape=moment.shape)
    return sp.csr_array(moment + step**2 * (_kron(correlation, correlation) + extra))


@checked
def mean_square_matrix(instance: Instance, small_steps: bool = False) -> sp.csr_array:
    r""":math:`\mathcal F`, sparse ``[(N D)^2, (N D)^2]``; :math:`\sigma'=\mathcal F^\top\sigma`.

    .. math::

        \mathcal F=\mathcal Q_B\big(I-\mu I\otimes R_e-\mu R_e\otimes I
        +\mu^2E[ZZ^\top\otimes ZZ^\top]\big)\mathcal Q_A

    so that :math:`E\|\tilde w_e^{(n+1)}\|^2_\Sigma=E\|\tilde w_e^{(n)}\|^2_{\Sigma'}
    +\mu^2h^\top\sigma`, (4.30).

    Args:
      instance: the case.
      small_steps: whether to omit the term in :math:`\mu^2`, as the thesis does under A5 (section
        4.3.2). With this term the recursion is exact under A1-A4 and the independence that the
        analysis uses.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> theory.mean_square_matrix(case).shape  # pairs of ten parameters
      (100, 100)
    """
    merge, collect = second_moments(instance)
    return sp.csr_array(collect @ _step_moment(instance, small_steps) @ merge)


@checked
def noise_vector(instance: Instance) -> Float[np.ndarray, " size"]:
    r""":math:`h=\mathcal Q_B\mathrm{vec}\,E[\Phi]`, (4.29), ``[(N D)^2]``.

    :math:`E[\Phi]=\mathrm{blockdiag}\{0,\sigma^2_{\eta,1}R_1,\dots,\sigma^2_{\eta,K}R_K,0\}`.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> theory.noise_vector(case).shape  # pairs of ten parameters
      (100,)
    """
    blocks = instance.noise_variances[:, None, None] * instance.correlations
    return second_moments(instance)[1] @ _in_blocks(instance, blocks).ravel()


def _server_weight(instance: Instance) -> np.ndarray:
    """``s``: the identity on the server's block."""
    size = instance.models * instance.dim
    return np.diag(np.arange(size) < instance.dim).astype(float).ravel()


@checked
def mean_square_radius(instance: Instance, small_steps: bool = False) -> float:
    r"""The spectral radius :math:`\rho(\mathcal F)`; below one for stability in the mean square.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> theory.mean_radius(case) ** 2 < theory.mean_square_radius(case) < 1
      True
    """
    return _radius(mean_square_matrix(instance, small_steps))


def _radius(matrix: sp.csr_array) -> float:
    if matrix.shape[0] <= 400:  # too small for Krylov spaces to be smaller
        return float(np.abs(np.linalg.eigvals(matrix.toarray())).max())
    # A start of its own would make the result differ from call to call.
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])
    values = spla.eigs(matrix, k=1, ncv=60, v0=start, return_eigenvectors=False)
    return float(np.abs(values).max())


@checked
def transient(
    instance: Instance,
    optimum: Float[np.ndarray, " dim"],
    rounds: int,
    small_steps: bool = False,
) -> Float[np.ndarray, " rounds"]:
    r"""The learning curve :math:`E\|w^*-w^{(n)}\|^2` of the server's model, (4.33), ``[T+1]``.

    From a start at zero, with :math:`\sigma_0=s` and :math:`\sigma_{n+1}=\mathcal F^\top\sigma_n`
    it is :math:`\mathrm{vec}(w_e^*w_e^{*\top})^\top\sigma_n+\mu^2h^\top\sum_{j<n}\sigma_j`, as
    (35) of the paper; (4.32) lacks the square on its second norm.

    Args:
      instance: the case.
      optimum: ``[D]``, :math:`w^*`.
      rounds: ``T``.
      small_steps: as in :func:`mean_square_matrix`.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> curve = theory.transient(case, np.ones(2), rounds=400)
      >>> round(float(curve[0]), 6), bool(np.isclose(curve[-1], theory.steady_state(case)))
      (2.0, True)
    """
    checks.finite("optimum", optimum)
    checks.count("rounds", rounds)
    error = _start(instance, optimum)
    backwards = sp.csr_array(mean_square_matrix(instance, small_steps).T)
    first = np.outer(error, error).ravel()
    noise = instance.step_size**2 * noise_vector(instance)
    weight = _server_weight(instance)
    gathered = 0.0
    curve = []
    for _ in range(rounds + 1):
        curve.append(first @ weight + gathered)
        gathered += noise @ weight
        weight = backwards @ weight
    return np.array(curve)


@checked
def steady_state(instance: Instance, small_steps: bool = False) -> float:
    r"""Steady-state mean-square deviation of the server's model, (4.34).

    .. math:: \mathrm{MSD}_\infty=\mu^2h^\top(I-\mathcal F^\top)^{-1}s

    Args:
      instance: the case.
      small_steps: as in :func:`mean_square_matrix`; it underestimates the deviation.

    Raises:
      ValueError: :math:`\rho(\mathcal F)\ge1`, for which the deviation grows without bound and
        (4.34) is meaningless.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> 4e-4 < theory.steady_state(case) < 5e-4
      True
    """
    matrix = mean_square_matrix(instance, small_steps)
    radius = _radius(matrix)
    if radius >= 1:
        raise ValueError(
            "the mean-square deviation has no steady state: the spectral radius of F is "
            f"{radius:.6g} at step size {instance.step_size:g}. Take a smaller one."
        )
    system = sp.csc_array(sp.eye_array(matrix.shape[0]) - matrix.T)
    weight = spla.spsolve(system, _server_weight(instance))
    return float(instance.step_size**2 * noise_vector(instance) @ weight)


# --------------------------------------------------------------------------- the largest step


@checked
def stable_step(
    instance: Instance, sense: Sense, small_steps: bool = False, tolerance: float = 1e-6
) -> float:
    """The step size at which the spectral radius reaches one, by bisection.

    For comparison with :func:`mean_bound` and :func:`mean_square_bound`. The radius is assumed to
    cross one only once between the last stable and the first unstable step size found by doubling.

    Args:
      instance: the case; its own step size does not matter.
      sense: ``"mean"`` or ``"mean square"``.
      small_steps: as in :func:`mean_square_matrix`; without effect on the mean.
      tolerance: relative tolerance of the result.

    Raises:
      ValueError: an unknown sense; no stable step size, for example if no message ever reaches the
        server or if a correlation matrix is singular.

    Example:
      >>> import numpy as np, fljax as fl
      >>> theory = fl.theory.pao_fed
      >>> case = theory.Instance(
      ...     correlations=np.stack([np.eye(2), np.eye(2)]),
      ...     noise_variances=np.array([0.01, 0.01]),
      ...     participation=np.array([0.9, 0.5]),
      ...     delays=np.array([0.8, 0.2]),
      ...     weights=np.array([1.0, 0.2]),
      ...     portion=1,
      ...     step_size=0.05,
      ... )
      >>> step = theory.stable_step(case, "mean")
      >>> theory.mean_bound(case.correlations) < step < 2.5  # the bound is not necessary
      True
    """
    checks.choice("sense", sense, ("mean", "mean square"))
    checks.interval("tolerance", tolerance, at_least=1e-12, below=1)

    def radius(step: float) -> float:
        case = instance.at(step)
        return mean_radius(case) if sense == "mean" else mean_square_radius(case, small_steps)

    low = mean_square_bound(instance.correlations) / instance.dim
    for _ in range(20):
        if radius(low) < 1 - 1e-9:
            break
        low /= 2
    else:
        raise ValueError(
            f"no step size is stable in the {sense}: does some client reach the server, and is "
            "every correlation positive definite?"
        )
    high = 2 * low
    while radius(high) < 1:
        low = high
        high = 2 * high
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)
    return low
