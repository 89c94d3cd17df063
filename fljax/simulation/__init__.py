"""One run: its definition, its check, its rounds and its results.

:mod:`~fljax.simulation.scenario` defines :class:`~fljax.Simulation` and is the file to read first;
:mod:`~fljax.simulation.compatibility` compares the needs of an algorithm with the parts of a
simulation. :mod:`~fljax.simulation.scan` compiles the rounds, :mod:`~fljax.simulation.running` runs
them once (``fl.run``, ``fl.view``), and :mod:`~fljax.simulation.population_run` does so over a
population on disk, with the states of its clients in
:mod:`~fljax.simulation.client_states` and its checkpoints in
:mod:`~fljax.simulation.checkpoints`. Runs over many seeds and grid points are :mod:`fljax.study`.
"""
