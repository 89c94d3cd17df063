"""The reach of an attack: the models that differ from the same run without it."""

import dataclasses

import xarray as xr
from jaxtyping import Array, Key

from fljax._core import checks
from fljax._core.annotations import checked
from fljax.metrics.definitions import trajectory
from fljax.simulation.running import run
from fljax.simulation.scenario import Simulation


@checked
def reach(
    attacked: Simulation, clean: Simulation, rounds: int, key: Key[Array, ""] | int = 0
) -> xr.Dataset:
    """Return the round in which an attack reaches each client, with the same draws as without it.

    Messages travel one hop per round, so an attack needs as many rounds as there are hops, plus one
    for the attacker's own step.

    Args:
      attacked: the simulation with the attack, on messages, data, losses or edges.
      clean: the same simulation without the attack.
      rounds: of both runs.
      key: of both runs.

    Returns:
      ``distance`` over ``round`` and ``client``, the distance of each model from that of the clean
      run; ``reached`` over ``round``, the number of clients whose models differ at all; ``arrival``
      over ``client``, the first round in which its model differs, zero where it never does.

    Raises:
      ValueError: two simulations with different numbers of clients or parameters.

    Example:
      >>> import jax, fljax as fl
      >>> problem = fl.problems.least_squares(jax.random.key(0), clients=6, samples=9, dim=2)
      >>> parts = {"network": fl.graphs.path(6), "algorithm": fl.algorithms.FedGD(coupling=0.5)}
      >>> poisoned = fl.attacks.poison_labels(problem, fl.attacks.first(1, 6))
      >>> found = reach(fl.Simulation(poisoned, **parts), fl.Simulation(problem, **parts), rounds=8)
      >>> found.arrival.values.tolist()
      [1, 2, 3, 4, 5, 6]

    Reference:
      Jung 2025, section 10.1 and figure 10.3.
    """
    shapes = [(s.problem.clients, s.problem.dim) for s in (attacked, clean)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"both runs must have the same numbers of clients and parameters, got {shapes[0]} and "
            f"{shapes[1]}."
        )
    checks.count("rounds", rounds)
    metric = trajectory()
    attacked_models, clean_models = (
        run(dataclasses.replace(part, metrics=(metric,)), rounds, key)[metric.name]
        for part in (attacked, clean)
    )
    distance = ((attacked_models - clean_models) ** 2).sum("parameter") ** 0.5
    differs = distance > 0
    arrival = differs["round"].where(differs).min("round").fillna(0).astype(int)
    return xr.Dataset({"distance": distance, "reached": differs.sum("client"), "arrival": arrival})
