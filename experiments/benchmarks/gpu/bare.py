"""The work of a :class:`Training` as one would write it in JAX for nothing else.

One program: participants drawn, their batches shuffled and gathered, local steps of all of them
side by side under one ``vmap``, the average by samples, rounds as a scan. Nothing is checked,
counted or recorded, and models are not judged: it is the limit that fljax is held against.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.benchmarks.gpu.cards import PRECISIONS
from experiments.benchmarks.gpu.convolutions import over_clients
from experiments.benchmarks.gpu.training import Samples, Training


def local_epochs(training: Training) -> Callable[..., Any]:
    """``(most, model, features [N, ...], targets [N, ...], size, key) -> model`` of one client,
    with the number of steps that the client with the most takes, if they differ.
    """
    compute = PRECISIONS[training.precision]
    matrices = "highest" if compute is None else "default"

    def cast(tree: Any) -> Any:
        if compute is None:
            return tree
        is_float = lambda a: jnp.issubdtype(a.dtype, jnp.floating)  # noqa: E731
        return jax.tree.map(lambda a: a.astype(compute) if is_float(a) else a, tree)

    def loss(
        parameters: Any, state: Any, x: Any, y: Any, real: Any, key: Any
    ) -> tuple[jax.Array, Any]:
        with jax.default_matmul_precision(matrices):
            scores, state = training.network.train(cast(parameters), state, cast(x), key)
        scores = scores.astype(jnp.float32)
        values = optax.softmax_cross_entropy_with_integer_labels(scores, y.astype(jnp.int32))
        values = values.reshape(len(values), -1).mean(axis=1)
        return jnp.sum(jnp.where(real, values, 0)) / jnp.maximum(jnp.sum(real), 1), state

    def train(most: Any, model: Any, features: Any, targets: Any, size: Any, key: Any) -> Any:
        samples = features.shape[0]
        a_pass = -(-samples // training.batch)
        k_order, k_steps = jax.random.split(key)
        rank = jax.random.uniform(k_order, (training.epochs, samples))
        rank = jnp.where(jnp.arange(samples) < size, rank, 2.0)  # padding comes last
        order = jnp.argsort(rank, axis=1)
        order = jnp.pad(order, ((0, 0), (0, a_pass * training.batch - samples)))

        def step(number: Any, model: Any) -> Any:
            first = (number % a_pass) * training.batch
            rows = jax.lax.dynamic_slice(order, (number // a_pass, first), (1, training.batch))[0]
            real = first + jnp.arange(training.batch) < size
            key = jax.random.fold_in(k_steps, number)
            gradient, state = jax.grad(loss, has_aux=True)(
                *model, features[rows], targets[rows], real, key
            )
            parameters = jax.tree.map(
                lambda w, g: w - training.step_size * g.astype(w.dtype), model[0], gradient
            )
            return parameters, state

        return jax.lax.fori_loop(0, training.epochs * a_pass if most is None else most, step, model)

    return train


def averaging(training: Training, data: Samples) -> tuple[Any, Callable[..., Any]]:
    """The model at the start, and a compiled program: model and key to the model after
    ``record_every`` rounds.
    """
    stand_in = jnp.zeros((1, *training.sample), data.features.dtype)
    key = jax.random.key(0)
    model = training.network.init(key, stand_in), training.network.init_state(key, stand_in)
    train = local_epochs(training)
    # Clients of one size need no loop whose length is found on the way.
    equal = bool((data.sizes == data.features.shape[1]).all())

    def one_round(data: tuple[Any, ...], model: Any, key: Any) -> tuple[Any, None]:
        features, targets, sizes = data
        k_clients, k_batches = jax.random.split(key)
        chosen = jax.random.permutation(k_clients, training.clients)[: training.per_round]
        keys = jax.random.split(k_batches, training.per_round)
        counts = sizes[chosen]
        most = None if equal or training.epochs > 1 else -(-jnp.max(counts) // training.batch)
        arrays = features[chosen], targets[chosen], counts, keys
        trained = over_clients(functools.partial(train, most), model, arrays)
        weights = counts / jnp.sum(counts)
        return jax.tree.map(lambda a: jnp.tensordot(weights.astype(a.dtype), a, 1), trained), None

    @jax.jit
    def rounds(model: Any, key: Any, *data: Any) -> Any:
        keys = jax.random.split(key, training.record_every)
        return jax.lax.scan(lambda model, key: one_round(data, model, key), model, keys)[0]

    arrays = (*map(jnp.asarray, data[:2]), jnp.asarray(data.sizes, jnp.int32))
    program = rounds.lower(model, key, *arrays).compile()
    return model, lambda model, key: program(model, key, *arrays)
