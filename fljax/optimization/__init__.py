"""Step sizes, optimizers and gradient descent, independent of federated learning.

:mod:`~fljax.optimization.schedules` are step sizes over rounds and the file to read first;
:mod:`~fljax.optimization.optimizers` adapts optax, and :mod:`~fljax.optimization.descent` (imported
when it is first used) runs gradient descent on any function. Updates of clients and servers are in
:mod:`fljax.algorithms`.
"""
