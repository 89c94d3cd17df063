"""Studies as files: arguments of :func:`fljax.sweep` in YAML, with overrides as on a command line.

:func:`read` reads a file; :mod:`~fljax.study_files.study_file` says which settings it has and is
the file to read first. :mod:`~fljax.study_files.named_parts` builds simulations from parts by name,
:mod:`~fljax.study_files.setting_places` reports mistakes by file and line, and
:mod:`~fljax.study_files.editor_schema` describes all settings for editors. The command line is
``python -m fljax run study.yaml``; ``python -m fljax init`` writes an example.
"""

from fljax.study_files.editor_schema import schema
from fljax.study_files.example_file import example
from fljax.study_files.study_file import StudyFile, read

__all__ = ["StudyFile", "example", "read", "schema"]
