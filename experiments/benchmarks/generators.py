"""Random number generators: normal draws of every client inside a scan, alone and under vmap.

python -m experiments.benchmarks.generators
"""

import jax
import jax.numpy as jnp

from experiments.benchmarks.machine import best_of, header

GENERATORS = ("threefry2x32", "threefry4x32", "philox2x32", "philox4x32")
CLIENTS, DIM, ROUNDS = 50, 8, 200


def draws(key, rounds: int = ROUNDS):
    """The sum over rounds of one run's noise."""

    def add(total, round):
        return total + jax.random.normal(jax.random.fold_in(key, round), (CLIENTS, DIM)), None

    return jax.lax.scan(add, jnp.zeros((CLIENTS, DIM)), jnp.arange(rounds))[0]


def main() -> None:
    print(header())
    print(f"\nnanoseconds per normal number, {CLIENTS} x {DIM} a round\n{'':14s} one run  16 runs")
    for name in GENERATORS:
        keys = jax.random.split(jax.random.key(0, impl=name), 16)
        one, many = jax.jit(draws), jax.jit(jax.vmap(draws))
        one(keys[0]).block_until_ready()
        many(keys).block_until_ready()
        numbers = ROUNDS * CLIENTS * DIM
        alone = best_of(lambda one=one, keys=keys: one(keys[0]), 5) / numbers
        batched = best_of(lambda many=many, keys=keys: many(keys), 5) / numbers / 16
        print(f"{name:14s} {alone * 1e9:7.2f}  {batched * 1e9:7.2f}")


if __name__ == "__main__":
    main()
