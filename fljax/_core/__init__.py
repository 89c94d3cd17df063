"""Parts that know nothing of learning: pytree classes, checks, random numbers, small linear
algebra, devices, memory, files, and interpreters of traced programs.

Everything else in fljax may import from here, and nothing here imports anything else of it. Read
:mod:`~fljax._core.module` first: all configuration objects are made by its decorator.
"""
