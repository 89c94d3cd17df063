"""Local steps with rows in pieces: the numbers of whole rows, and no row is joined in a step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core

import fljax as fl
from fljax._core.gradient_counts import evaluations
from fljax._core.split_rows import cut, in_pieces, joined
from fljax.algorithms.local_steps import learn
from fljax.participation.selectors import Participants
from fljax.problems.batches import Shuffled
from fljax.simulation import running
from tests.support import small_network as small

SIZES = (2, 6, 1, 3)
DIM = sum(SIZES)


def layered(row):
    """The gradient of a network that is split by layers."""

    def loss(row):
        bias, kernel, scale, last = jnp.split(row, np.cumsum(SIZES)[:-1])
        x = (
            jnp.tanh(jnp.array([[1.0, -2.0, 0.5]]) @ kernel.reshape(3, 2) + bias[None])
            * scale[None]
        )
        return jnp.sum((x @ jnp.ones((2, 3)) * last[None]) ** 2)

    return jax.grad(loss)(row)


def gradients(rows):
    return layered(rows[0])[None] if len(rows) == 1 else jax.vmap(layered)(rows)


START = jnp.linspace(-1, 1, DIM)
STEPS = {
    "gradient": lambda w: w - 0.1 * gradients(w),
    "attracted": lambda w: w - 0.1 * (gradients(w) + 0.3 * (w - START[None])),
    "one size each": lambda w: w - jnp.linspace(1, 2, len(w))[:, None] * gradients(w) / 9,
    "some kept": lambda w: jnp.where(w > 0, w - 0.1 * gradients(w), w),
    "norm": lambda w: w - 0.1 * gradients(w + w / jnp.linalg.norm(w, axis=1, keepdims=True)),
    "sorted": lambda w: jnp.sort(w, axis=1) - 0.1 * gradients(w[:, ::-1]),
    "some numbers": lambda w: w.at[:, 3:7].multiply(0.5),
    "layer by layer": lambda w: jnp.concatenate([w[:, :2] * 2, w[:, 2:]], axis=1),
    "of all others": lambda w: w - jnp.mean(w, axis=0, keepdims=True) + w @ jnp.eye(DIM),
    "calls": lambda w: jax.jit(jnp.square)(w) + jax.nn.relu(w) + jax.lax.cond(
        w[0, 0] > 0, jnp.sin, jnp.cos, w
    ),
}  # fmt: skip


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_on_split_rows_equals_that_on_joined_rows(name, clients):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(clients, DIM)))

    def step(carry, number):
        rows, _, count = carry
        return STEPS[name](rows) + number, rows, count + 1

    carry = rows, jnp.zeros_like(rows), jnp.zeros(clients, jnp.int32)
    moved = jax.jit(lambda carry: joined(in_pieces(step, SIZES)(cut(carry, SIZES), jnp.ones(()))))(
        carry
    )
    for ours, plain in zip(moved, jax.jit(step)(carry, jnp.ones(())), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12)
        assert ours.dtype == plain.dtype


def whole_rows(program, dim, within=False):
    """The operations in the loop of steps that make a row, or cut one."""
    primitives = []
    for equation in program.eqns:
        name = equation.primitive.name
        ends = [v.aval.shape[-1:] for v in (*equation.invars, *equation.outvars)]
        if within and name in ("concatenate", "split") and (dim,) in ends:
            primitives.append(name)
        for part in jax.tree.leaves(list(equation.params.values())):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                inner = getattr(part, "jaxpr", part)
                primitives += whole_rows(inner, dim, within or name == "while")
    return primitives


DIRECTIONS = {
    "gradient": lambda part, model, extra: part.gradient(model),
    "corrected": lambda part, model, extra: part.gradient(model) - extra + 0.1 * (model - extra),
    "twice": lambda part, model, extra: part.gradient(model - 0.1 * part.gradient(model)),
}


@pytest.mark.parametrize("rule", ["size", "adam"])
@pytest.mark.parametrize("name", DIRECTIONS)
def test_no_row_is_joined_in_a_step_of_a_network(name, rule):
    problem = small.problem()
    participants = Participants(jnp.arange(3, dtype=jnp.int32), jnp.ones(3, bool))
    step = (
        jnp.asarray(0.1)
        if rule == "size"
        else fl.optimizers.from_optax(optax.adam, learning_rate=0.1)
    )

    def steps(start, extra):
        real = problem.weights > 0
        batch = Shuffled(2).draw(jax.random.key(0), real, participants.numbers, 4)
        return learn(
            problem, participants, start, step, 4, batch, direction=DIRECTIONS[name], context=extra
        ).model

    start = jnp.linspace(0, 1, 3 * problem.dim).reshape(3, -1)
    program = jax.make_jaxpr(steps)(start, start / 2)
    assert whole_rows(program.jaxpr, problem.dim) == []


def test_evaluations_are_counted_once():
    problem = small.problem()
    steps = 3
    algorithm = fl.algorithms.FedAvg(0.1, local_steps=steps)
    _, counts = running.evaluations(lambda key: fl.Simulation(problem, algorithm), 2)
    assert counts.gradients == steps * problem.clients * problem.samples
    assert (
        evaluations(problem.gradient, jnp.zeros((3, problem.dim))).gradients == 3 * problem.samples
    )
