"""Files of models: trained parameters under the names of their network."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fljax._core import checks
from fljax._core.annotations import checked
from fljax._core.storage import replace_file, writing
from fljax._core.version import __version__
from fljax.models.architecture import Layout

#: The ending of files; any other path is the folder of a checkpoint.
SUFFIX = ".safetensors"

#: The name of the only parameter of a model without a network: its row of numbers.
ROW = "model"

#: Names in the message of a file that does not fit, at most.
MAX_NAMES = 5


@checked
def save(
    models: Any,  # Dataset | Float[Array, "*clients dim"]
    path: str | os.PathLike,
    problem: Any,  # Problem
    *,
    best: str | None = None,
    client: int | None = None,
) -> Path:
    """Write models to a safetensors file, or to an Orbax checkpoint, for use in other programs.

    Each parameter has the name that the network gives it, ``"params/Dense_0/kernel"``, and its
    shape; with a first axis for clients if their models differ. A model without a network is one
    row named ``"model"``. If only some parameters are trained, the file has these
    (:attr:`Model.layout <fljax.problems.Model.layout>`). A network's state, such as running means,
    is not part of it. Privacy budgets are not checked: :func:`fljax.save` with ``release=True``
    writes the models that a study may publish.

    Safetensors needs the library of that name, ``pip install 'fljax[files]'``, and Orbax comes with
    flax, ``pip install 'fljax[networks]'``.

    Args:
      models: ``[D]`` or ``[K, D]``; or results of a study with ``keep_models=True``: its
        models at the end.
      path: a file whose name ends in ``.safetensors``; with another ending, the folder of a
        checkpoint. An existing one is replaced.
      problem: whose models they are, or another one with the same network.
      best: of results of several runs, take the run whose last value of this metric is best and
        that did not diverge.
      client: take the model of this client alone; otherwise all models, once if they are equal.

    Raises:
      ImportError: the library is not installed.
      OSError: the folder is missing or not writable.
      TypeError, ValueError: models of another shape; results without models, or of several runs; an
        unknown metric.

    Example:
      >>> import jax, fljax as fl
      >>> def scenario(key, step_size, start=None):
      ...     problem = fl.problems.ridge(key, clients=4, samples=9, dim=2)
      ...     problem = problem if start is None else problem.starting_at(start)
      ...     return fl.Simulation(problem, fl.algorithms.FedAvg(step_size),
      ...                          metrics=["normalized_error"])
      >>> grid = {"step_size": [0.01, 0.1]}
      >>> results = fl.sweep(scenario, grid=grid, seeds=3, rounds=20, keep_models=True)
      >>> problem = scenario(jax.random.key(0), 0.1).problem
      >>> path = getfixture("tmp_path") / "best.safetensors"
      >>> path = fl.models.save(results, path, problem, best="normalized_error")
      >>> start = fl.models.load(path, problem)
      >>> start.shape
      (2,)
      >>> more = fl.sweep(lambda key: scenario(key, 0.1, start), seeds=3, rounds=20)
    """
    path = Path(path)
    layout = _layout_of(problem)
    if hasattr(models, "data_vars"):
        models = _models_of(models, best)
    elif best is not None:
        raise ValueError("best= selects a run of results; models are given without it.")
    rows = np.asarray(checks.array("models", models))
    if rows.ndim not in (1, 2) or rows.shape[-1] != layout.dim:
        raise ValueError(
            f"models must be [{layout.dim}] or [clients, {layout.dim}] for this problem, got shape "
            f"{rows.shape}."
        )
    if client is not None:
        checks.count("client", client, at_least=0)
        if rows.ndim == 1 or client >= len(rows):
            raise ValueError(f"client must be one of the models' {rows.shape[:-1]}, got {client}.")
        rows = rows[client]
    if rows.ndim == 2 and (rows == rows[0]).all():
        rows = rows[0]
    pieces = np.split(rows, np.cumsum(layout.sizes)[:-1], axis=-1)
    parameters = {
        name: np.ascontiguousarray(piece.reshape(*rows.shape[:-1], *shape))
        for name, piece, shape in zip(_names(layout), pieces, layout.shapes, strict=True)
    }
    if path.suffix != SUFFIX:
        return _save_checkpoint(path, parameters)
    _require("safetensors", "files")
    from safetensors.numpy import save as to_bytes

    return replace_file(path, to_bytes(parameters, {"fljax": __version__}))


@checked
def load(
    path: str | os.PathLike,
    problem: Any,  # Problem
    *,
    client: int | None = None,
) -> Float[Array, "*clients dim"]:
    """Read models from a file or checkpoint of :func:`save`, to start another study from them.

    Files of other libraries are read as well if they have the same names, with dots or slashes, and
    shapes. ``problem.starting_at(models)`` starts from them.

    Args:
      path: of the file or checkpoint.
      problem: for whose network the models are.
      client: take the model of this client alone.

    Returns:
      ``[D]``, one model for all clients; or ``[K, D]``.

    Raises:
      FileNotFoundError: no such file or folder.
      ImportError: the library is not installed.
      ValueError: no models in it; parameters that are missing, that the network does not have, or
        that have another shape (named); models of another number of clients.

    Example:
      >>> import jax, jax.numpy as jnp, fljax as fl
      >>> problem = fl.problems.ridge(jax.random.key(0), clients=4, samples=9, dim=2)
      >>> models = jnp.arange(8.0).reshape(4, 2)
      >>> path = fl.models.save(models, getfixture("tmp_path") / "all.safetensors", problem)
      >>> fl.models.load(path, problem).shape, fl.models.load(path, problem, client=3).tolist()
      ((4, 2), [6.0, 7.0])
    """
    path = Path(path)
    layout = _layout_of(problem)
    if client is not None:
        checks.count("client", client, at_least=0)
    if not path.exists():
        raise FileNotFoundError(f"no models in {path}; fljax.models.save writes them.")
    stored = _load_checkpoint(path) if path.is_dir() else _load_file(path)
    names = _names(layout)
    stored = _renamed(stored, names)
    listed = {
        "lacks": [name for name in names if name not in stored],
        "has, unlike the network,": [name for name in stored if name not in names],
    }
    for problem_text, wrong in listed.items():
        if wrong:
            more = f" and {len(wrong) - MAX_NAMES} more" if len(wrong) > MAX_NAMES else ""
            raise ValueError(
                f"{path} {problem_text} the parameters {', '.join(wrong[:MAX_NAMES])}{more}; it "
                "must be of the same network."
            )
    shapes = dict(zip(names, layout.shapes, strict=True))
    clients = {_clients_in(path, name, stored[name].shape, shapes[name]) for name in names}
    if len(clients) > 1:
        raise ValueError(f"{path} has some parameters with an axis for clients, and some without.")
    count = clients.pop()
    leading = () if count is None else (count,)
    rows = np.concatenate([stored[name].reshape(*leading, -1) for name in names], axis=-1)
    if client is not None:
        if count is None or client >= count:
            raise ValueError(
                f"client must be one of the {count or 1} clients of {path}, got {client}; a file "
                "with one model has no clients."
            )
        rows = rows[client]
    elif count is not None and count != problem.clients:
        raise ValueError(
            f"{path} has the models of {count} clients, and the problem {problem.clients}; take "
            "one with client=."
        )
    checks.finite(f"the models of {path.name}", rows)
    return jnp.asarray(rows, problem.dtype)


def _layout_of(problem: Any) -> Layout:
    """The layout of a problem's models."""
    for name in ("dim", "clients", "dtype"):
        if not hasattr(problem, name):
            raise TypeError(
                f"problem must be a problem of fljax, whose models they are, got "
                f"{checks.shown(problem)}."
            )
    return getattr(problem, "layout", None) or Layout.of_row(problem.dim)


def _names(layout: Layout) -> list[str]:
    return [path or ROW for path in layout.paths]


def _models_of(results: Any, best: str | None) -> Any:
    """The models of one run of a study's results, ``[K, D]``."""
    if "model" not in results:
        raise ValueError("the results have no models; run the study with keep_models=True.")
    if best is not None:
        metrics = [name for name, v in results.data_vars.items() if "decibel" in v.attrs]
        checks.choice("metric", best, metrics)
        values = results[best]
        values = values.isel(round=-1) if "round" in values.dims else values
        axes = [axis for axis in values.dims if axis in results["model"].dims]
        if len(axes) < values.ndim:
            raise ValueError(f"{best!r} has several values for each run, over {values.dims}.")
        is_larger_better = bool(values.attrs.get("larger_is_better", 0))
        diverged = results["diverged"]
        numbers = np.where(diverged == 0, values.transpose(*diverged.dims), np.nan)
        if np.isnan(numbers).all():
            raise ValueError(f"no run has a finite {best!r} at its end; there is no best model.")
        position = np.nanargmax(numbers) if is_larger_better else np.nanargmin(numbers)
        chosen = np.unravel_index(int(position), numbers.shape)
        results = results.isel(dict(zip(diverged.dims, map(int, chosen), strict=True)))
    model = results["model"]
    runs = {axis: size for axis, size in model.sizes.items() if axis not in ("client", "parameter")}
    if any(size > 1 for size in runs.values()):
        named = ", ".join(f"{axis} {size}" for axis, size in runs.items())
        raise ValueError(
            f"these are the models of several runs ({named}); select one, such as "
            "results.isel(seed=0), or pass best= with a metric."
        )
    model = model.isel(dict.fromkeys(runs, 0))
    return model.transpose("client", "parameter").values


def _load_file(path: Path) -> dict[str, np.ndarray]:
    """The parameters of a safetensors file."""
    _require("safetensors", "files")
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    try:
        return from_bytes(path.read_bytes())
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is no readable safetensors file: {error}.") from None


def _save_checkpoint(path: Path, parameters: Mapping[str, np.ndarray]) -> Path:
    """Write a checkpoint, whose tree has the parts of the names as keys."""
    _require("orbax", "networks")
    import orbax.checkpoint

    if path.exists() and not (path / "_CHECKPOINT_METADATA").exists():
        raise FileExistsError(
            f"{path} is no checkpoint and is not replaced; give another name, or one that ends in "
            f"{SUFFIX}."
        )
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *outer, last = name.split("/")
        inner = tree
        for step in outer:
            inner = inner.setdefault(step, {})
        inner[last] = value
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}; create it first.")
    # Written under another name and then moved: the old file stays until the new one is complete.
    with writing(path.parent), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(folder, "new").absolute(), tree)
        if path.exists():
            shutil.rmtree(path)
        os.replace(Path(folder, "new"), path)
    return path


def _load_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """The parameters of a checkpoint."""
    _require("orbax", "networks")
    import orbax.checkpoint

    if not (path / "_CHECKPOINT_METADATA").exists():
        raise ValueError(f"{path} is a folder and no checkpoint; name a file or a checkpoint.")
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(path.absolute())
    result = {}

    def flatten(tree: Any, name: str) -> None:
        if isinstance(tree, Mapping):
            for key, value in tree.items():
                flatten(value, f"{name}/{key}" if name else str(key))
        else:
            result[name] = np.asarray(tree)

    flatten(tree, "")
    return result


def _renamed(stored: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    """Stored parameters with the network's names, if these differ in dots and slashes only."""
    if stored.keys() == {*names}:
        return stored
    with_slashes = {name.replace(".", "/"): value for name, value in stored.items()}
    return with_slashes if with_slashes.keys() == {*names} else stored


def _clients_in(
    path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> int | None:
    """The length of a parameter's axis for clients; ``None`` without one."""
    if shape == expected:
        return None
    if shape[1:] == expected and len(shape) == len(expected) + 1:
        return shape[0]
    raise ValueError(
        f"{path} has {name} with shape {shape}, and the network has it with {expected} (or with an "
        "axis for clients before it); it must be of the same network."
    )


def _require(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ImportError(
            f"these files of models need {module}, which is not installed; "
            f"pip install 'fljax[{extra}]'."
        )
