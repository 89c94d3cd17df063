"""The example of a study file."""

from fljax._core.annotations import checked

#: The file that ``python -m fljax init`` writes.
EXAMPLE = """\
# yaml-language-server: $schema=SCHEMA
#
# A study of fljax. Run it:            python -m fljax run NAME
# with other settings:                 python -m fljax run NAME rounds=200 "grid.penalty=[1, 2]"
# or see first what it would take:     python -m fljax plan NAME

# One run: a function (key, **axes) -> fljax.Simulation in a file or module,
#   scenario: my_study.py:scenario
# or its parts by name. Each has the arguments that it has in Python, without the random key.
scenario:
  problem: {name: ridge, clients: 20, samples: 10, dim: 4}
  network: {name: random_connected, nodes: "${scenario.problem.clients}", mean_degree: 4}
  algorithm: {name: NetworkedADMM}  # its penalty is an axis of the grid
  metrics: [normalized_error, consensus_error]
  # privacy: {name: ZCDP, total_rho: 0.5}
  # participation: {name: Bernoulli, probability: 0.5}
  # compression: {name: TopK, count: 2}

# All combinations of these values are run. An axis gives the argument of its name to the parts
# that lack it; elsewhere write $axis. Whole parts are an axis, too:
#   algorithm: {ADMM: {name: NetworkedADMM, penalty: 1.0}, EXTRA: {name: EXTRA, step_size: 0.1}}
grid:
  penalty: [0.3, 1.0, 3.0]
# Sizes and switches, each of which is compiled for itself:
# static:
#   mean_degree: [3, 6]

rounds: 50
seeds: 20             # Monte-Carlo runs of each grid point
# record_every: 10    # rounds between records
# x64: true           # double precision

# store: results      # a folder; a study that was killed continues from it
# executor: {name: processes, workers: 4}   # or dask, ray, submitit, mpi; it needs a store
# out: results.nc     # for fljax.load
# track: {name: csv, folder: tracked}   # or tensorboard, wandb, mlflow; a list for several
"""


@checked
def example(name: str = "study.yaml", schema: str = "study.schema.json") -> str:
    """The text of a commented study file, ready to run.

    Args:
      name: of the file, in its comments.
      schema: the file of the schema for editors, relative to it.

    Example:
      >>> import fljax as fl
      >>> print(fl.study_files.example("first.yaml").splitlines()[2])
      # A study of fljax. Run it:            python -m fljax run first.yaml
    """
    return EXAMPLE.replace("SCHEMA", schema).replace("NAME", name)
