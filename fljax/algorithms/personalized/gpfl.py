r"""GPFL: global and personalized features of one body, by embeddings of classes and a conditional
valve (Zhang et al. 2023).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fljax._core import checks
from fljax._core.module import module, replace
from fljax._core.numerics import HIGHEST
from fljax.algorithms.algorithm import algorithm, representation_width, start_models
from fljax.algorithms.network_states import check_represented_once
from fljax.algorithms.round import Round
from fljax.algorithms.server.server_algorithm import AVERAGED, Averaging
from fljax.graphs.federation import Network
from fljax.models import Layout
from fljax.optimization.optimizers import Optimizer, check_optimizer
from fljax.problems import NoRegularizer, Problem, Reading, Softmax
from fljax.problems.streams import Stream

#: What layer normalization adds to a variance, as in PyTorch.
VARIANCE_FLOOR = 1e-5


class GPFLState(NamedTuple):
    """State of the clients and the server between rounds."""

    model: Array  # [K, D]  (theta, phi_k), without the valve between body and head
    body: Array  # [body]  theta
    modules: Array  # [S]  the embeddings e and the valve V


@algorithm(
    "GPFL",
    "zhang2023gpfl",
    dataclasses.replace(AVERAGED, classes=True, representation=True),
)
@module
class GPFL(Averaging):
    r"""A common body whose representations a conditional valve turns into two kinds of features.

    All share a body :math:`\theta`, an embedding :math:`e_c\in\mathbb R^R` of each class, and a
    valve :math:`V`, which makes of a vector :math:`z` the factors :math:`\gamma_V(z)` and offsets
    :math:`\beta_V(z)` of a representation :math:`r_\theta(x)\in\mathbb R^R`; client :math:`k` has a
    head :math:`\varphi_k`. A participant of round :math:`n`, with the share :math:`\hat p_k(c)` of
    class :math:`c` among its samples, receives :math:`\theta,e,V`, remembers the received
    embeddings as :math:`\hat e`, and has global and personalized features of a sample,

    .. math::

        f^G=\sigma\big((\gamma_V(g)+1)\odot r_\theta(x)+\beta_V(g)\big),\qquad
        f^P=\sigma\big((\gamma_V(p_k)+1)\odot r_\theta(x)+\beta_V(p_k)\big),\qquad
        g=\frac1C\sum_c\hat e_c,\quad p_k=\sum_c\hat p_k(c)\,\hat e_c

    with the rectifier :math:`\sigma`. Both :math:`\gamma_V` and :math:`\beta_V` are a layer of
    :math:`R` units with a rectifier and layer normalization. Local steps start from the received
    :math:`\theta,e,V` and :math:`\varphi_k`, and are along the gradient of

    .. math::

        \ell\big(\varphi_k(f^P),y\big)
        -\log\frac{e^{\cos(f^G,e_y)}}{\sum_ce^{\cos(f^G,e_c)}}
        +\lambda\big\|f^G-\hat e_y\big\|
        +\frac\mu2\big(\|e\|^2+\|V\|^2\big)

    the personalized task, the *angle-level* and the *magnitude-level guidance*. The server
    averages :math:`\theta`, :math:`e` and :math:`V` as in :class:`~fljax.algorithms.FedAvg`; heads
    stay with their clients. A message has the numbers of the body and
    :math:`CR+2(R^2+3R)` more, in both directions.

    A client predicts by :math:`\varphi_k(f^P)`: held-out metrics and ``train_error`` are of these
    predictions. All others are of the network :math:`(\theta,\varphi_k)` without the valve, which
    is not trained to predict. A regularizer acts on body and head. At first embeddings are standard
    normal and the valve's layers uniform in :math:`\pm1/\sqrt R`, drawn from a fixed key. Running
    statistics are part of the body.

    Sources differ. In the paper the valve also reads the representation; here, as in the authors'
    code, its inputs are :math:`g` and :math:`p_k` alone. In that code the inputs are of the
    embeddings that a client had before the server's last average, and zero in the first round, and
    the magnitude-level guidance is the root of the sum of squares over a batch, where here it is
    the mean of the samples' distances.

    Args:
      step_size: of everything that is trained, as in :class:`~fljax.algorithms.FedAvg`, which also
        has the other arguments. The authors weigh clients by ``"samples"``.
      guidance: :math:`\lambda\ge0`; the authors' is 0.01 for small networks and 0.0001 for
        ResNet-18.
      weight_decay: :math:`\mu\ge0`; the authors' is 0.1 for small networks of images, and 0 for
        ResNet-18.

    Raises:
      ValueError: a negative guidance or decay, a loss that is not
        :class:`~fljax.problems.Softmax`, a network that does not define its representation
        (:func:`fljax.models.headed`), statistics that clients keep while they have held-out data in
        common; as for FedAvg.

    Example:
      >>> import jax, fljax as fl
      >>> data = fl.problems.softmax(jax.random.key(0), clients=4, samples=20, dim=6, classes=3)
      >>> network = fl.models.mlp(3, hidden=[16])
      >>> simulation = fl.Simulation(
      ...     problem=fl.problems.Model.of(data, network, jax.random.key(1)),
      ...     algorithm=fl.algorithms.GPFL(0.1, epochs=5),
      ...     metrics=["train_error"],
      ... )
      >>> error = fl.run(simulation, rounds=20).train_error.mean("client")
      >>> bool(error[-1] < error[0])
      True

    Reference:
      Zhang, Hua, Wang, Song, Xue, Ma, Cao and Guan 2023.
    """

    guidance: Float[Array, ""] | float = dataclasses.field(default=0.01, kw_only=True)
    weight_decay: Float[Array, ""] | float = dataclasses.field(default=0.1, kw_only=True)

    def validate(self) -> None:
        super().validate()
        for name in ("guidance", "weight_decay"):
            checks.nonnegative(name, getattr(self, name))

    def check(self, problem: Problem | Stream, network: Network) -> None:
        super().check(problem, network)
        assert isinstance(problem, Problem)
        check_represented_once("GPFL", problem)
        if isinstance(self.step_size, Optimizer):
            check_optimizer(self.step_size, _layout(problem))

    def message_size_of(self, problem: Problem) -> int:
        return len(problem.body_and_head()[0]) + _layout(problem).dim

    def exchanged(self, problem: Any) -> tuple[int, int] | None:
        return self.message_size_of(problem), self.message_size_of(problem)

    def init(self, problem: Problem, network: Network) -> GPFLState:
        start = start_models(problem)
        body = problem.body_and_head()[0]
        common = jnp.mean(start[:, body], axis=0)
        modules = _first_modules(_layout(problem), problem.dtype)
        return GPFLState(start.at[:, body].set(common[None]), common, modules)

    def step(self, state: GPFLState, now: Round) -> GPFLState:
        cohort = self.invite(now, state.model)
        participants = cohort.participants
        dim = now.problem.dim
        body = now.problem.body_and_head()[0]
        layout = _layout(now.problem)
        server = jnp.concatenate([state.body, state.modules])
        received = now.link.publish(server, cohort.active)
        embeddings = layout.parameters(received[len(body) :])["embeddings"]
        personal = _personal_inputs(participants.of(now.problem), embeddings)

        def gradients(part: Problem, variables: Array, personal: Array) -> Array:
            return self._gradients(part, variables, embeddings, personal)

        heads = participants.take(state.model)
        start = jnp.concatenate(
            [
                heads.at[:, body].set(received[None, : len(body)]),
                jnp.broadcast_to(received[len(body) :], (len(heads), layout.dim)),
            ],
            axis=1,
        )
        layouts = now.problem.layout, layout
        learned = self.learn(
            now,
            cohort,
            start,
            direction=gradients,
            context=personal,
            layouts=layouts,
            whole=lambda variables, personal: variables[:, :dim],
        ).model

        message = jnp.concatenate([learned[:, body], learned[:, dim:]], axis=1)
        server = self.collect(now, cohort, message, received).move(received)
        common, modules = jnp.split(server, [len(body)])
        model = participants.put(state.model, learned[:, :dim]).at[:, body].set(common[None])
        return GPFLState(model, common, modules)

    def _gradients(
        self,
        part: Problem,
        variables: Float[Array, "chosen numbers"],
        embeddings: Float[Array, "classes width"],
        personal: Float[Array, "chosen width"],
    ) -> Float[Array, "chosen numbers"]:
        """The gradients by the models, and by the embeddings and the valve; ``embeddings`` are the
        received ones.
        """
        dim = part.dim
        layout = _layout(part)

        def losses(samples: Reading, row: Array, personal: Array) -> Array:
            model = row[:dim]
            modules = layout.parameters(row[dim:])
            labels = samples.targets.astype(jnp.int32)
            representation = samples.representation(model)
            features = _features(modules, representation, personal)
            guided = _features(modules, representation, jnp.mean(embeddings, axis=0))
            cosines = _cosines(guided, modules["embeddings"])
            log_shares = jax.nn.log_softmax(cosines, axis=1)
            angle = -jnp.take_along_axis(log_shares, labels[:, None], axis=1)[:, 0]
            magnitude = _lengths(guided - embeddings[labels])
            return samples.losses(samples.head(model, features)) + angle + self.guidance * magnitude

        unregularized = replace(part, regularizer=NoRegularizer())
        gradient = unregularized.gradient_of(losses, variables, personal)
        penalty = part.regularizer_gradient(variables[:, :dim])
        decay = self.weight_decay * variables[:, dim:]
        return gradient + jnp.concatenate([penalty, decay], axis=1)

    def predictor(self, state: GPFLState, problem: Problem) -> Callable[[Problem], Array]:
        modules = _layout(problem).parameters(state.modules)
        personal = _personal_inputs(problem, modules["embeddings"])
        models = state.model

        def predict(data: Problem) -> Float[Array, "clients samples classes"]:
            # Bodies are equal, so that common data are represented once.
            representation = data.representations(models[: data.clients])
            representation = jnp.broadcast_to(
                representation, (len(models), *representation.shape[1:])
            )
            features = jax.vmap(_features, (None, 0, 0))(modules, representation, personal)
            return jax.vmap(data.head)(models, features)

        return predict


def _layout(problem: Problem) -> Layout:
    """The layout of the embeddings and the valve, in a problem or its shapes."""
    assert isinstance(problem.loss, Softmax)
    width = representation_width(problem)
    part = {"bias": (width,), "kernel": (width, width), "offset": (width,), "scale": (width,)}
    shapes = {"embeddings": (problem.loss.classes, width), "factor": part, "offset": part}
    flat, structure = jax.tree_util.tree_flatten_with_path(
        shapes, is_leaf=lambda leaf: isinstance(leaf, tuple)
    )
    paths = tuple("/".join(key.key for key in path) for path, _ in flat)
    return Layout(structure, tuple(shape for _, shape in flat), paths)


def _first_modules(layout: Layout, dtype: np.dtype) -> Float[Array, " numbers"]:
    """The embeddings and the valve of before the first round."""
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), len(layout.shapes))
    parts = []
    for key, path, shape in zip(keys, layout.paths, layout.shapes, strict=True):
        bound = shape[-1] ** -0.5
        if path == "embeddings":
            part = jax.random.normal(key, shape, dtype)
        elif path.endswith(("kernel", "bias")):
            part = jax.random.uniform(key, shape, dtype, -bound, bound)
        else:
            part = jnp.full(shape, 1 if path.endswith("scale") else 0, dtype)
        parts.append(part.reshape(-1))
    return jnp.concatenate(parts)


def _personal_inputs(
    problem: Problem, embeddings: Float[Array, "classes width"]
) -> Float[Array, "clients width"]:
    """``p_k``; zero for a client without samples."""
    counts = problem.class_counts().astype(embeddings.dtype)
    shares = counts / jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)
    return jnp.matmul(shares, embeddings, precision=HIGHEST)


def _features(
    modules: PyTree,
    representation: Float[Array, "samples width"],
    condition: Float[Array, " width"],
) -> Float[Array, "samples width"]:
    """The features of samples that the valve makes for an input."""
    factor = _normalized_layer(modules["factor"], condition)
    offset = _normalized_layer(modules["offset"], condition)
    return jax.nn.relu((factor + 1)[None] * representation + offset[None])


def _normalized_layer(layer: PyTree, inputs: Float[Array, " width"]) -> Float[Array, " width"]:
    """Rectified units with layer normalization."""
    units = jax.nn.relu(jnp.matmul(inputs, layer["kernel"], precision=HIGHEST) + layer["bias"])
    centered = units - jnp.mean(units)
    deviation = jnp.sqrt(jnp.mean(centered**2) + VARIANCE_FLOOR)
    return layer["scale"] * centered / deviation + layer["offset"]


def _lengths(vectors: Float[Array, "rows width"]) -> Float[Array, " rows"]:
    """Euclidean norms, whose gradient at zero is zero."""
    squares = jnp.sum(vectors**2, axis=1)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def _cosines(
    features: Float[Array, "samples width"], embeddings: Float[Array, "classes width"]
) -> Float[Array, "samples classes"]:
    """The cosines of all pairs; constant zero where a vector is zero."""
    lengths = _lengths(features)[:, None] * _lengths(embeddings)[None]
    products = jnp.matmul(features, embeddings.T, precision=HIGHEST)
    return jnp.where(lengths > 0, products / jnp.where(lengths > 0, lengths, 1), 0)
