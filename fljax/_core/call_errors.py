"""The call to write instead of one whose arguments do not fit a constructor."""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence

#: Names that other libraries and papers use for arguments of algorithms.
OTHER_NAMES = {
    "lr": "step_size",
    "learning_rate": "step_size",
    "eta": "step_size",
    "mu": "attraction",
    "rho": "penalty",
    "local_epochs": "epochs",
    "batch_size": "batch",
}


def remedy(
    name: str,
    signature: inspect.Signature,
    arguments: Sequence[object],
    named: Mapping[str, object],
    value_text: Callable[[object], str] = repr,
) -> str:
    """The call that a wrong one probably meant, as "write ...".

    In it ``...`` stands for values that are not known. Values by position that have no argument, or
    an optional one, belong to the missing arguments if there are as many of both: the 1.0 of
    ``FedProx(0.1, 1.0)`` is its attraction. For a name that is like no argument, the text lists
    all arguments.

    Args:
      name: of the class.
      signature: of its constructor, without ``self``.
      arguments: of the wrong call, by position.
      named: the same by name.
      value_text: the text of a value.

    Example:
      >>> def prox(step_size, clients_per_round=None, *, attraction): ...
      >>> signature = inspect.signature(prox)
      >>> remedy("FedProx", signature, [0.1, 1.0], {"clients_per_round": 10})
      'write FedProx(0.1, clients_per_round=10, attraction=1.0)'
      >>> remedy("FedProx", signature, [], {"lr": 0.1, "mu": 1.0})
      'write FedProx(step_size=0.1, attraction=1.0)'
      >>> remedy("FedProx", signature, [0.1], {"color": "red"})
      'it takes step_size, clients_per_round, attraction'
    """
    parameters = signature.parameters
    only_named = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    positional = [n for n in parameters if n not in only_named]
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]

    by_position = dict(zip(positional, arguments, strict=False))
    by_name = {n: value for n, value in named.items() if n in parameters}
    for wrong in named.keys() - by_name.keys():
        free = [n for n in parameters if n not in by_position and n not in by_name]
        near = _nearest_argument(wrong, free)
        if near is None:
            return f"it takes {', '.join(parameters) or 'no arguments'}"
        by_name[near] = named[wrong]

    surplus = arguments[len(positional) :]
    loose = [by_position.pop(n) for n in positional if n in by_position and n in by_name]
    loose += surplus
    missing = [n for n in required if n not in by_position and n not in by_name]
    optional = [n for n in by_position if n not in required]
    if not loose and len(optional) == len(missing):
        loose = [by_position.pop(n) for n in optional]
    if len(loose) == len(missing):
        by_name |= dict(zip(missing, loose, strict=True))
        missing = []
    elif surplus and not missing:  # they belong to some of the arguments that have only a name
        missing = [n for n in only_named if n not in by_name]

    texts = []
    is_plain = True
    for n in parameters:
        # An optional value has its name, so that a reader sees which argument it was taken for.
        is_plain &= n in by_position and n in required
        if is_plain:
            texts.append(value_text(by_position[n]))
        elif n in missing:
            texts.append(f"{n}=...")
        elif n in by_position or n in by_name:
            texts.append(f"{n}={value_text((by_position | by_name)[n])}")
    return f"write {name}({', '.join(texts)})"


def _nearest_argument(name: str, arguments: Sequence[str]) -> str | None:
    """The argument that was probably meant by a name that is none; ``None`` if no one is near."""
    if OTHER_NAMES.get(name) in arguments:
        return OTHER_NAMES[name]
    return next(iter(difflib.get_close_matches(name, arguments, 1)), None)
