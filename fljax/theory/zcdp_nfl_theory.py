r"""Theory of private networked ADMM (Gauthier 2024, section 3.3), evaluated along runs.

The thesis stacks all models into a vector of length :math:`KP` and all operators into Kronecker
products with :math:`I_P`; here models stay ``[K, D]`` and an operator is the ``[K, K]`` matrix that
acts on their rows, which is the same map. With :math:`W,\widetilde W,\Xi` the stacks of
:math:`w_k,\tilde w_k,\xi_k`, inner products and norms are Frobenius, and
:math:`\langle x,y\rangle_L=\langle x,Ly\rangle`.

Several statements of section 3.3 cannot be taken literally. The functions here compute the version
that follows from the algorithm by convexity alone; each states its repairs and, if instructive,
also computes the printed form. Appendices are those of the paper on which the chapter rests,
Gauthier et al. 2023 (zCDP-NFL).

Shapes: ``K`` clients, ``D`` parameters, ``R`` rounds of a transcript, ``T = R - 1`` the horizon
that it can evaluate (an inequality for round ``n`` involves round ``n + 1``).
"""

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.csgraph
from jaxtyping import Array, Float, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.certified_bounds import on_host
from fljax._core.numerics import HIGHEST
from fljax._core.prng import as_key
from fljax.algorithms import ZCDPNFL
from fljax.graphs import Graph, Varying
from fljax.link import Link
from fljax.privacy import ZCDP, Gap, Notion
from fljax.problems import Problem
from fljax.simulation.scan import begin, make_round, noise_plan, prepare
from fljax.simulation.scenario import Simulation

__all__ = [
    "Arcs",
    "Operators",
    "Sides",
    "TheoremTwoBound",
    "Transcript",
    "arcs",
    "convergence_rate",
    "ergodic_gap",
    "lemma_two",
    "noise_constant",
    "operators",
    "privacy_accuracy_bound",
    "theorem_two_bound",
    "transcript",
]

# --------------------------------------------------------------------------- operators


class Operators(NamedTuple):
    """The network operators of the analysis, as matrices that act on the rows of a stack."""

    signless: Array  # [K, K]  L_+ = diag(d) + A
    laplacian: Array  # [K, K]  L_- = diag(d) - A
    degree: Array  # [K, K]  M = (L_+ + L_-) / 2 = diag(d)
    root: Array  # [K, K]  Q = sqrt(L_- / 2), symmetric positive semidefinite
    phi_min: Array  # []  smallest non-zero singular value of L_-
    phi_max: Array  # []  largest singular value of L_-
    phi_max_signless: Array  # []  largest singular value of L_+


@checked
def operators(network: Graph) -> Operators:
    r"""The matrices of section 3.3.3, from (3.14) on, for a graph.

    The null space of :math:`L_-\otimes I_P` is that of :math:`Q\otimes I_P`: all stacks with equal
    rows, of dimension :math:`P` and not one as printed there. :math:`L_+` is singular exactly
    if the graph is bipartite.

    Example:
      >>> import fljax as fl
      >>> of = operators(fl.graphs.complete(4))
      >>> round(float(of.phi_min), 4), round(float(of.phi_max_signless), 4)
      (4.0, 6.0)
    """
    adjacency = network.dense()
    square = jax.ShapeDtypeStruct(adjacency.shape, adjacency.dtype)
    number = jax.ShapeDtypeStruct((), adjacency.dtype)
    shapes = (square,) * 4 + (number,) * 3
    compute = functools.partial(_operators, dtype=np.dtype(adjacency.dtype))
    return Operators(*on_host(compute, shapes, adjacency))


def _operators(adjacency: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """The fields of :class:`Operators`, in double precision and rounded last: in single precision a
    path of some hundred nodes has eigenvalues that rounding makes zero.
    """
    adjacency = np.asarray(adjacency, np.float64)
    degree = np.diag(adjacency.sum(1))
    laplacian = degree - adjacency
    signless = degree + adjacency
    values, vectors = np.linalg.eigh(laplacian)
    components, _ = scipy.sparse.csgraph.connected_components(adjacency != 0, directed=False)
    values[:components] = 0  # exactly as many are zero, which are of the order of rounding
    root = np.sqrt(values / 2)
    fields = (
        *(signless, laplacian, degree, (vectors * root) @ vectors.T),
        np.min(values[components:], initial=np.inf),
        values[-1],
        np.linalg.eigvalsh(signless)[-1],
    )
    return tuple(np.asarray(part, dtype) for part in fields)


class Arcs(NamedTuple):
    """End nodes of every directed arc; each undirected edge is two arcs."""

    source: Array  # [2E, K]  A_1
    target: Array  # [2E, K]  A_2

    @property
    def plus(self) -> Float[Array, "clients arcs"]:
        r""":math:`H_+=A_1^\top+A_2^\top`, so :math:`L_+=\tfrac12H_+H_+^\top`."""
        return self.source.T + self.target.T

    @property
    def minus(self) -> Float[Array, "clients arcs"]:
        r""":math:`H_-=A_1^\top-A_2^\top`, so :math:`L_-=\tfrac12H_-H_-^\top`."""
        return self.source.T - self.target.T


@checked
def arcs(network: Graph) -> Arcs:
    """The arc matrices of (3.14) (concrete graphs only); a weight enters by its square root.

    Example:
      >>> import fljax as fl
      >>> arcs = fl.theory.zcdp_nfl.arcs(fl.graphs.path(3))
      >>> arcs.source.argmax(axis=1).tolist(), arcs.target.argmax(axis=1).tolist()
      ([0, 1, 1, 2], [1, 2, 0, 1])
    """
    low, high = network.edges.T
    root = np.sqrt(np.concatenate([network.edge_weights()] * 2))
    rows = np.arange(len(root))
    ends = np.zeros((2, len(root), network.nodes), root.dtype)
    ends[0, rows, np.concatenate([low, high])] = root
    ends[1, rows, np.concatenate([high, low])] = root
    return Arcs(jnp.asarray(ends[0]), jnp.asarray(ends[1]))


@checked
def noise_constant(
    operators: Operators, penalty: Float[Array, ""] | float, dim: int = 1
) -> Float[Array, ""]:
    r"""Factor of the noise power in (3.21).

    .. math:: \alpha_\xi=4\rho P\,\frac{\Phi_{\max}(L_-)^2+\Phi_{\max}(L_+)^2}{\Phi_{\min}(L_-)}

    Args:
      operators: the operators of the network.
      penalty: :math:`\rho`.
      dim: :math:`P`; the value one omits this factor, for noise given by its total norm.

    Example:
      With the eigenvalues 4 of :math:`L_-` and up to 6 of :math:`L_+`:

      >>> import fljax as fl
      >>> operators = fl.theory.zcdp_nfl.operators(fl.graphs.complete(4))
      >>> constant = fl.theory.zcdp_nfl.noise_constant(operators, penalty=1.0, dim=2)
      >>> round(float(constant), 2)  # 4 * 2 * (4^2 + 6^2) / 4
      104.0
    """
    checks.nonnegative("penalty", penalty)
    checks.count("dim", dim)
    largest = operators.phi_max**2 + operators.phi_max_signless**2
    return 4 * penalty * dim * largest / operators.phi_min


# --------------------------------------------------------------------------- transcripts


class Transcript(NamedTuple):
    """Models and messages of the clients in a run; rounds 0, 1, ..., R on the first axis.

    An eavesdropper, and the honest but curious neighbor of every client, observes ``sent`` and
    nothing else (sections 2.4 and 2.4.2). ``model`` and ``noise`` must remain private.
    """

    model: Array  # [R+1, K, D]  w_k
    sent: Array  # [R+1, K, D]  w~_k, the public part
    dual: Array | None  # [R+1, K, D]  gamma_k; None if the algorithm has no dual

    @property
    def noise(self) -> Float[Array, "rounds clients dim"]:
        r""":math:`\xi_k^{(n)}=\tilde w_k^{(n)}-w_k^{(n)}`, zero in round 0."""
        return self.sent - self.model

    @property
    def horizon(self) -> int:
        """``T``, the last round that has a successor."""
        return self.sent.shape[0] - 2


class _WithGivenNoise(Link):
    """A round's link that adds given noise to messages, as it is: no budget places it on a grid."""

    def __init__(self, noise: Float[Array, "clients dim"], *of_the_round: Any) -> None:
        super().__init__(*of_the_round)
        self._given = noise

    @property
    def private(self) -> bool:
        """Messages are perturbed, whatever the simulation's own mechanism is."""
        return True

    def _perturb_messages(
        self,
        notion: Notion | None,
        message: Array,
        clients: Array,
        sending: Array | None,
        rounding: Array | None,
    ) -> Array:
        return message + self._given[clients].astype(message.dtype)


@checked
def transcript(
    simulation: Simulation,
    key: Key[Array, ""] | int,
    rounds: int,
    noise: Float[Array, "rounds clients dim"] | None = None,
) -> Transcript:
    """Run a simulation and record every round, as :func:`fljax.run` computes it up to rounding.

    Args:
      simulation: a simulation of an algorithm on a graph whose state includes the messages
        ``sent``.
      key: PRNG key of the run's noise, as for :func:`fljax.run`.
      rounds: ``R >= 1``. To evaluate a horizon ``T``, record ``T + 1`` rounds.
      noise: ``[R, K, D]``, added to the messages instead of the privacy mechanism's draws.

    Raises:
      TypeError: an algorithm whose state does not hold the models that clients sent each other.
      ValueError: noise of the wrong shape.

    Example:
      >>> import jax, fljax as fl
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...     network=fl.graphs.ring(5),
      ...     algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...     privacy=fl.privacy.ZCDP(total_rho=1.0),
      ... )
      >>> transcript(simulation, 0, rounds=20).sent.shape
      (21, 5, 2)
    """
    checks.count("rounds", rounds)
    shape = (rounds, simulation.problem.clients, simulation.problem.dim)
    if noise is not None and jnp.shape(noise) != shape:
        raise ValueError(f"noise must be [rounds, clients, dim] = {shape}, got {jnp.shape(noise)}.")
    return _record(simulation, as_key(key), noise, rounds=rounds)


def _transcribe(simulation: Simulation, key: Array, noise: Array | None, rounds: int) -> Transcript:
    algorithm = simulation.algorithm
    prepared = prepare(simulation, rounds)
    start = begin(simulation, prepared, key)
    sent = getattr(start.state, "sent", None)
    exchanges_models = isinstance(simulation.network, Graph | Varying) and sent is not None
    if not exchanges_models or sent.shape != start.state.model.shape:
        raise TypeError(
            f"{type(algorithm).label} keeps no models that clients sent to each other, which is "
            "what a transcript holds; take ZCDPNFL, ZCDPGradNFL or NetworkedADMM."
        )

    def transcript(state) -> Transcript:
        return Transcript(state.model, state.sent, getattr(state, "dual", None))

    def one_round(carry, inputs):
        ordinal, injected = inputs
        linked = Link if injected is None else functools.partial(_WithGivenNoise, injected)
        now, _, _ = make_round(simulation, prepared, key, carry, ordinal, rounds, linked)
        state = algorithm.step(carry.state, now)
        return carry._replace(state=state), transcript(state)

    ordinals = jnp.arange(1, rounds + 1, dtype=jnp.int32)
    first = transcript(start.state)
    _, rest = jax.lax.scan(one_round, start, (ordinals, noise))
    return jax.tree.map(lambda first, rows: jnp.concatenate([first[None], rows]), first, rest)


_record = jax.jit(_transcribe, static_argnames=("rounds",))


# --------------------------------------------------------------------------- convergence


class Sides(NamedTuple):
    """The two sides of an inequality for every round ``n = 1, ..., T``."""

    left: Array  # [T]
    right: Array  # [T]

    @property
    def slack(self) -> Float[Array, " rounds"]:
        """Right minus left, non-negative where the inequality holds."""
        return self.right - self.left


class _Terms(NamedTuple):
    """Common terms of Lemma II and Theorem II, ``[T]`` each, without the telescoping part."""

    disagreement: Array  # -||Q W~n||^2
    inertia: Array  # -||W~n - W~(n-1)||^2 in L_+/2
    coupling: Array  # -2 <Q W~n, Q W~(n+1)>
    momentum: Array  # <W~n - w*, L_+(2 W~n - W~(n-1) - W~(n+1))>
    proximal: Array  # <W~n - w*, W~n - W(n+1)> / (rho eta)
    noise: Array  # <W~n - w*, 2M xi(n+1)>


def _check_model(name: str, value: Array, shape: tuple[int, ...]) -> None:
    if np.shape(value) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {np.shape(value)}.")
    checks.finite(name, value)


@checked
def lemma_two(
    simulation: Simulation,
    transcript: Transcript,
    optimum: Float[Array, " dim"],
    multiplier: Float[Array, "clients dim"] | None = None,
    as_printed: bool = False,
) -> Sides:
    r"""Both sides of Lemma II (3.19), repaired, in every round of one run.

    For any :math:`r` and with :math:`q^{(n)}=(r^{(n)},\widetilde W^{(n)})`, :math:`q^*=(r,w^*)`,
    :math:`G=\mathrm{diag}(\rho I,\rho L_+/2)`,

    .. math::

        \frac{f(\widetilde W^{(n)})-f(w^*)}\rho&+\langle\widetilde W^{(n)},2Qr\rangle\le
        \tfrac1\rho\big(\|q^{(n-1)}-q^*\|_G^2-\|q^{(n)}-q^*\|_G^2\big)
        -\|Q\widetilde W^{(n)}\|^2-\|\widetilde W^{(n)}-\widetilde W^{(n-1)}\|^2_{L_+/2} \\
        &-2\langle Q\widetilde W^{(n)},Q\widetilde W^{(n+1)}\rangle
        +\langle\widetilde W^{(n)}-w^*,
        L_+(2\widetilde W^{(n)}-\widetilde W^{(n-1)}-\widetilde W^{(n+1)})\rangle \\
        &+\langle\widetilde W^{(n)}-w^*,2M\Xi^{(n+1)}\rangle
        +\frac1{\rho\eta^{(n+1)}}\langle\widetilde W^{(n)}-w^*,\widetilde W^{(n)}-W^{(n+1)}\rangle

    holds for every realization of the noise; it requires only convexity, and the slack is
    :math:`1/\rho` times the distance by which the tangent at :math:`\widetilde W^{(n)}` lies below
    :math:`f` at :math:`w^*`. Repairs:

    * the noise term
      :math:`\frac{4(\Phi_{\max}(L_-)^2+\Phi_{\max}(L_+)^2)}{\Phi_{\min}(L_-)} \|\Xi^{(n+1)}\|^2`
      absorbs the inner product by means of :math:`\|Q\,\cdot\|^2\ge\frac{\Phi_{\min}}2\|\cdot\|^2`,
      which fails on the null space of :math:`L_-` (appendix D), and of Young's inequality without
      its squares; there are runs for which the printed inequality is false. In expectation the
      inner product is zero and no constant is needed, since :math:`\Xi^{(n+1)}` is independent of
      the rounds before;
    * :math:`\hat f'` is taken at :math:`W^{(n+1)}`, as (3.18) has it, not at
      :math:`\widetilde W^{(n+1)}` (appendix D), so the last term holds :math:`W^{(n+1)}`;
    * its factor :math:`\frac2\rho D` reads :math:`\frac2\rho D^2=1/(\rho\eta)`.

    Args:
      simulation: a simulation of :class:`~fljax.algorithms.ZCDPNFL` whose problem does not clip.
      transcript: from :func:`transcript`, with ``R >= 2`` rounds.
      optimum: :math:`w^*`, from :func:`fljax.problems.optimum`.
      multiplier: :math:`r`; zero if not given.
      as_printed: the right-hand side of (3.19) with its noise term and with
        :math:`\widetilde W^{(n+1)}` in the last term, but :math:`D^2`.

    Raises:
      TypeError: an unsupported algorithm.
      ValueError: a problem that clips, whose gradients are not subgradients of its objective.

    Example:
      >>> import jax, fljax as fl
      >>> theory = fl.theory.zcdp_nfl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2)
      >>> algorithm = fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5)
      >>> simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(5))
      >>> run = theory.transcript(simulation, 0, rounds=20)
      >>> sides = theory.lemma_two(simulation, run, fl.problems.optimum(problem))
      >>> bool((sides.left <= sides.right + 1e-3).all())
      True
    """
    _check_model("optimum", optimum, (simulation.problem.dim,))
    if multiplier is not None:
        _check_model("multiplier", multiplier, (simulation.problem.clients, simulation.problem.dim))
    algorithm, operators = _setting(simulation)
    messages = transcript.sent
    multiplier = jnp.zeros_like(messages[0]) if multiplier is None else multiplier
    values = _objective(simulation.fixed_problem, messages[1:-1]) - _objective(
        simulation.fixed_problem, optimum
    )
    left = values / algorithm.penalty
    left = left + 2 * _dot(messages[1:-1], _apply(operators.root, multiplier)[None])

    anchored = _accumulated(operators, transcript)[:-1] - multiplier[None]
    distance = _dot(anchored, anchored) + _energy(operators, messages[:-1] - optimum[None, None])
    terms = _terms(simulation, transcript, optimum, as_printed)
    return Sides(left, -jnp.diff(distance) + sum(terms))


class TheoremTwoBound(NamedTuple):
    """Theorem II at horizon ``T``: the gap, and the terms that add up to its bound."""

    gap: Array  # []  f(W^) - f(w*) at the ergodic average; may be negative
    start: Array  # []  (1/T) ||q(0) - q*||_G^2
    end: Array  # []  -(1/T) ||q(T) - q*||_G^2
    disagreement: Array  # []  -(rho/T) sum ||Q W~n||^2
    inertia: Array  # []  -(rho/T) sum ||W~n - W~(n-1)||^2 in L_+/2
    coupling: Array  # []  -(rho/T) sum 2 <Q W~n, Q W~(n+1)>
    momentum: Array  # []  (rho/T) sum <W~n - w*, L_+(2 W~n - W~(n-1) - W~(n+1))>
    proximal: Array  # []  (1/T) sum <W~n - w*, W~n - W(n+1)> / eta
    noise: Array  # []  as chosen

    @property
    def bound(self) -> Float[Array, ""]:
        """The sum of all terms, an upper bound of ``gap``."""
        return sum(self[1:], jnp.zeros_like(self.gap))


@checked
def theorem_two_bound(
    simulation: Simulation,
    transcript: Transcript,
    optimum: Float[Array, " dim"],
    noise: Literal["realized", "expected", "printed"] = "realized",
) -> TheoremTwoBound:
    r"""Theorem II (3.20), repaired and evaluated on one run of ``T + 1`` rounds.

    :math:`\frac\rho T\sum_{n=1}^T` of Lemma II at :math:`r=0`, which Jensen's inequality turns into
    a bound on :math:`f(\widehat W^{(T)})-f(w^*)`, :math:`\widehat
    W^{(T)}=\frac1T\sum_{n=1}^T\widetilde W^{(n)}`. Repairs, in addition to
    :func:`lemma_two`'s:

    * the last norm of (3.20) and (E.2) is that of :math:`L_+/2` (it comes from
      :math:`\frac1\rho\|q^{(0)}-q^*\|_G^2`), not of :math:`L_-` as printed, which would be zero at
      the usual start for any distance of the optimum. The printed bound can then be false:
      noiseless ridge regression has runs with a positive gap and a negative bound;
    * the sum of the momentum terms is left as it is. The thesis sums it by parts, and in that
      :math:`\frac1T\langle\widetilde W^{(1)},L_+(\widetilde W^{(1)}-\widetilde W^{(0)})\rangle`
      lacks a factor :math:`\rho`, and :math:`-\frac\rho T\langle\widetilde W^{(T+1)},
      L_+(\widetilde W^{(T+1)}-\widetilde W^{(T)})\rangle`, whose sign is undetermined, is missing;
    * the objective is summed at :math:`\widetilde W^{(n)}` as in (E.1), not at
      :math:`\widetilde W^{(n+1)}` as in (E.2);
    * ``end`` and ``disagreement``, both non-positive, are kept; the thesis drops them.

    The gap is *not* positive in general, as the text below (3.20) has it: :math:`\widehat W` is not
    consensual and may lie below the constrained optimum. :func:`ergodic_gap` evaluates the mean
    model.

    Args:
      simulation: as for :func:`lemma_two`.
      transcript: as for :func:`lemma_two`, with ``T + 1`` rounds.
      optimum: as for :func:`lemma_two`.
      noise: the term for the perturbation:

        * ``"realized"``: its inner product in this run; the bound then holds for this run;
        * ``"expected"``: zero, the mean of the former; the bound holds on average over noise
          seeds (``vmap`` over keys, mean of ``bound`` against mean of ``gap``);
        * ``"printed"``: :math:`\frac{\alpha_\xi}{PT}\sum_n\|\Xi^{(n+1)}\|^2` of (E.1), whose
          mean is at most (3.20)'s term. Also valid on average, being non-negative, only looser.

    Example:
      >>> import jax, fljax as fl
      >>> theory = fl.theory.zcdp_nfl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2)
      >>> algorithm = fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5)
      >>> simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(5))
      >>> run = theory.transcript(simulation, 0, rounds=20)
      >>> bound = theory.theorem_two_bound(simulation, run, fl.problems.optimum(problem))
      >>> bool(bound.gap <= sum(bound[1:]))
      True

    Reference:
      Gauthier 2024, Theorem II (3.20); Gauthier et al. 2023 (zCDP-NFL), appendix E.
    """
    _check_model("optimum", optimum, (simulation.problem.dim,))
    checks.choice("noise", noise, ("realized", "expected", "printed"))
    algorithm, operators = _setting(simulation)
    messages = transcript.sent
    horizon = transcript.horizon
    share = algorithm.penalty / horizon
    scaled = {
        name: share * jnp.sum(value)
        for name, value in _terms(simulation, transcript, optimum)._asdict().items()
    }
    if noise == "expected":
        scaled["noise"] = jnp.zeros_like(scaled["noise"])
    if noise == "printed":
        power = jnp.sum(transcript.noise[2:] ** 2)
        scaled["noise"] = noise_constant(operators, algorithm.penalty) / horizon * power
    sums = _accumulated(operators, transcript)
    average = jnp.mean(messages[1:-1], axis=0)

    def distance(n: int) -> Array:
        return _dot(sums[n], sums[n]) + _energy(operators, messages[n] - optimum[None])

    problem = simulation.fixed_problem
    return TheoremTwoBound(
        gap=_objective(problem, average) - _objective(problem, optimum),
        start=share * distance(0),
        end=-share * distance(horizon),
        **scaled,
    )


@checked
def ergodic_gap(
    simulation: Simulation,
    transcript: Transcript,
    optimum: Float[Array, " dim"],
    consensual: bool = True,
) -> Float[Array, " rounds"]:
    r"""Objective gap :math:`f(\widehat W^{(n)})-f(w^*)` of the averages over rounds ``1..n``;
    ``[R]``.

    Args:
      simulation: a simulation of any algorithm that :func:`transcript` supports.
      transcript: the transcript of that simulation.
      optimum: :math:`w^*`.
      consensual: whether to evaluate the mean over clients of :math:`\widehat W`, a feasible point,
        so that the gap is never negative. If false, :math:`\widehat W` itself, as in Theorem II.

    Example:
      >>> import jax, fljax as fl
      >>> theory = fl.theory.zcdp_nfl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2)
      >>> algorithm = fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5)
      >>> simulation = fl.Simulation(problem, algorithm, fl.graphs.ring(5))
      >>> run = theory.transcript(simulation, 0, rounds=50)
      >>> gap = theory.ergodic_gap(simulation, run, fl.problems.optimum(problem))
      >>> bool(gap[-1] < 0.1 * gap[0])
      True
    """
    _check_model("optimum", optimum, (simulation.problem.dim,))
    messages = transcript.sent[1:]
    ordinals = jnp.arange(1, messages.shape[0] + 1, dtype=messages.dtype)[:, None, None]
    averages = jnp.cumsum(messages, axis=0) / ordinals
    if consensual:
        averages = jnp.broadcast_to(jnp.mean(averages, axis=1, keepdims=True), averages.shape)
    problem = simulation.fixed_problem
    return _objective(problem, averages) - _objective(problem, optimum)


@checked
def convergence_rate(gap: Float[Array, " rounds"], first: int | None = None) -> Float[Array, ""]:
    r"""The slope of :math:`\log` gap over :math:`\log n` by least squares: -1 for O(1/n).

    Theorem IV claims O(1/n) under an Assumption 4 that contradicts Assumption 3:
    :math:`\sum_n1/\eta^{(n)}` cannot converge while :math:`\eta^{(n)}\to0`. This function is
    intended for step sizes :math:`\propto n^{-1/2}`, for which the rate is observed and not proven
    (for nonsmooth objectives no subgradient oracle guarantees it).

    Args:
      gap: ``[R]``, positive, for rounds ``1, ..., R``.
      first: the first round of the fit; by default the second half is used.

    Example:
      >>> import jax.numpy as jnp
      >>> round(float(convergence_rate(5.0 / jnp.arange(1.0, 101.0))), 3)
      -1.0
    """
    checks.finite("gap", gap)
    gap = jnp.asarray(gap)
    rounds = gap.shape[0]
    first = rounds // 2 + 1 if first is None else first
    if not 1 <= first < rounds:
        raise ValueError(f"first must be in [1, {rounds - 1}] to fit a line, got {first}.")
    across = jnp.log(jnp.arange(first, rounds + 1, dtype=gap.dtype))
    log_gap = jnp.log(gap[first - 1 :])
    centered = across - jnp.mean(across)
    return jnp.sum(centered * log_gap) / jnp.sum(centered**2)


# --------------------------------------------------------------------------- privacy


@checked
def privacy_accuracy_bound(
    simulation: Simulation,
    rounds: int,
    constant: Float[Array, ""] | float = 0.0,
    as_printed: bool = False,
) -> Float[Array, ""]:
    r"""The cost of privacy in accuracy, (3.22).

    .. math::

        \mathbb E[f(\widehat W^{(T)})-f(w^*)]\le\frac\alpha T
        +\frac{\alpha_\xi}T\,\frac{\sum_k\sigma_k^2(1)}{1-\zeta},\qquad
        \sigma_k^2(1)=\frac{\Delta_k^2(1)}{2\phi_k^{(1)}}

    with :math:`\alpha_\xi` from :func:`noise_constant`. It grows as :math:`\phi^{(1)}` falls and as
    :math:`\zeta\to1` at fixed :math:`\phi^{(1)}`. Printed as :math:`\sigma^2(0)` and
    :math:`\Delta(0)`, they are interpreted as of round 1, the first with messages
    (:math:`\eta^{(0)}` does not exist). The step from (3.20) needs
    :math:`\sigma_k^2(n+1)\le\zeta\sigma_k^2(n)`, which both schedules of
    :class:`~fljax.privacy.ZCDP` satisfy if the step size never grows.

    :math:`\alpha` is called a constant in :math:`T` and in the noise below (3.21), but collects
    terms of the trajectory, which depends on both; :func:`theorem_two_bound` gives its value for a
    run (``T * (bound - noise)``). If the problem clips, the result is not a bound.

    Args:
      simulation: a simulation of :class:`~fljax.algorithms.ZCDPNFL` with
        :class:`~fljax.privacy.ZCDP`.
      rounds: :math:`T`, over which the budget is distributed.
      constant: :math:`\alpha`.
      as_printed: whether to divide the noise term by ``K`` as (3.23) does. That does not follow
        from (3.22) with equal :math:`\phi_k^{(1)}`, where the sum over clients stays a sum (section
        3.3.6).

    Raises:
      TypeError: an unsupported privacy notion, or none.

    Example:
      Half of the budget costs twice the error:

      >>> import jax, fljax as fl
      >>> def bound(total_rho):
      ...     simulation = fl.Simulation(
      ...         problem=fl.problems.ridge(jax.random.key(0), clients=5, samples=10, dim=2),
      ...         network=fl.graphs.ring(5),
      ...         algorithm=fl.algorithms.ZCDPNFL(penalty=1.0, step_size=0.5),
      ...         privacy=fl.privacy.ZCDP(total_rho, decay=0.9),
      ...     )
      ...     return fl.theory.zcdp_nfl.privacy_accuracy_bound(simulation, rounds=20)
      >>> round(float(bound(0.5) / bound(1.0)), 3)
      2.0

    Reference:
      Gauthier 2024, (3.21)-(3.23).
    """
    algorithm, operators = _setting(simulation)
    privacy = simulation.privacy
    if not isinstance(privacy, ZCDP):
        raise TypeError(
            "the trade-off is between accuracy and a zCDP budget; pass privacy=fljax.privacy.ZCDP, "
            f"got {type(privacy).__name__}."
        )
    checks.count("rounds", rounds)
    checks.interval("constant", constant)
    problem = simulation.fixed_problem
    first = jnp.asarray(1, jnp.int32)
    sensitivity = algorithm.sensitivity(
        problem, _network(simulation), first, Gap.of(privacy, problem)
    )
    plan = noise_plan(simulation, rounds)
    scale = privacy.release(plan, sensitivity, first, rounds, problem.dim).scale
    total = jnp.sum(scale**2) / (1 - privacy.decay)
    if as_printed:
        total = total / problem.clients
    return (constant + noise_constant(operators, algorithm.penalty, problem.dim) * total) / rounds


# --------------------------------------------------------------------------- shared


def _network(simulation: Simulation) -> Graph:
    assert isinstance(
        simulation.network, Graph
    )  # Simulation refuses a networked algorithm without one
    return simulation.network


def _setting(simulation: Simulation) -> tuple[ZCDPNFL, Operators]:
    if not isinstance(simulation.algorithm, ZCDPNFL):
        raise TypeError(
            "this is the theory of fljax.algorithms.ZCDPNFL, got a simulation of "
            f"{type(simulation.algorithm).__name__}."
        )
    return simulation.algorithm, operators(_network(simulation).require_connected())


def _dual(transcript: Transcript) -> Array:
    assert transcript.dual is not None  # every transcript of ZCDPNFL has it
    return transcript.dual


def _apply(matrix: Array, stack: Array) -> Array:
    """``(matrix kron I_D) stack`` for ``[..., K, D]``."""
    return jnp.einsum("kl,...ld->...kd", matrix, stack, precision=HIGHEST)


def _dot(left: Array, right: Array) -> Array:
    """Frobenius inner products of ``[..., K, D]``."""
    return jnp.sum(left * right, axis=(-2, -1))


def _energy(operators: Operators, stack: Array) -> Array:
    r""":math:`\|\cdot\|^2_{L_+/2}`."""
    return _dot(stack, _apply(operators.signless, stack)) / 2


def _objective(problem: Problem, models: Array) -> Array:
    r""":math:`f(W)=\sum_kf_k(w_k)` of ``[..., K, D]``, or of one ``[D]`` for all clients."""
    models = jnp.asarray(models)
    if models.shape[-1] != problem.dim:
        raise ValueError(
            f"a model must have the {problem.dim} parameters of the problem, got shape "
            f"{models.shape}."
        )
    if models.ndim == 1:
        models = jnp.broadcast_to(models, (problem.clients, problem.dim))
    value = jnp.vectorize(lambda w: jnp.sum(problem.objective(w)), signature="(k,d)->()")
    return value(models)


def _accumulated(operators: Operators, transcript: Transcript) -> Array:
    r""":math:`r^{(n)}=\sum_{s\le n}Q\widetilde W^{(s)}`, ``[R+1, K, D]``."""
    return jnp.cumsum(_apply(operators.root, transcript.sent), axis=0)


def _step_sizes(simulation: Simulation, transcript: Transcript) -> Array:
    r""":math:`\eta^{(n)}` of rounds ``1, ..., R``, ``[R, 1, 1]``."""
    assert isinstance(simulation.algorithm, ZCDPNFL)
    ordinals = jnp.arange(1, transcript.sent.shape[0], dtype=jnp.int32)
    schedule = simulation.algorithm.step_size
    return jax.vmap(schedule)(ordinals)[:, None, None]  # pyright: ignore[reportArgumentType, reportCallIssue]


def _terms(
    simulation: Simulation,
    transcript: Transcript,
    optimum: Float[Array, " dim"],
    as_printed: bool = False,
) -> _Terms:
    if simulation.fixed_problem.clip is not None:
        raise ValueError(
            "clipped gradients are not subgradients of the objective, so convexity says nothing "
            "about them; use the problem without clip."
        )
    algorithm, operators = _setting(simulation)
    before = transcript.sent[:-2]
    now = transcript.sent[1:-1]
    after = transcript.sent[2:]
    noise = transcript.noise[2:]
    error = now - optimum[None, None]
    rooted = _apply(operators.root, transcript.sent)
    coupling = -2 * _dot(rooted[1:-1], rooted[2:])
    disagreement = -_dot(rooted[1:-1], rooted[1:-1])
    target = after if as_printed else transcript.model[2:]
    steps = _step_sizes(simulation, transcript)[1:]
    perturbation = _dot(error, 2 * _apply(operators.degree, noise))
    if as_printed:
        disagreement = jnp.zeros_like(disagreement)
        perturbation = noise_constant(operators, 1.0) * _dot(noise, noise)
    return _Terms(
        disagreement=disagreement,
        inertia=-_energy(operators, now - before),
        coupling=coupling,
        momentum=_dot(error, _apply(operators.signless, 2 * now - before - after)),
        proximal=_dot(error, (now - target) / steps) / algorithm.penalty,
        noise=perturbation,
    )
