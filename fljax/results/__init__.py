"""Finished runs as datasets, means with intervals, tables and warnings.

:mod:`~fljax.results.dataset` makes a labeled dataset of recorded arrays and is the file to read
first; :mod:`~fljax.results.statistics`, :mod:`~fljax.results.tables` and
:mod:`~fljax.results.monitoring` are the public ``fl.statistics``, ``fl.table`` and
``fl.monitoring``. Nothing here runs a simulation or writes a file; files of studies are written by
:mod:`fljax.study.saving`.
"""
