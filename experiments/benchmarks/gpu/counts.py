"""What limits a round: flops of the traced program, kernels and bytes of the compiled one.

Loops are counted with their iterations. A loop whose length is decided while the program runs is
counted as often as the caller says; on a GPU the host reads the outcome of its condition before
every iteration and after the last, and waits for it.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

#: Bytes of a number, by the name of its type in HLO.
WIDTHS = {"pred": 1, "s4": 1, "u4": 1, "bf16": 2, "f16": 2, "token": 0, "opaque": 0}

#: Instructions that launch no kernel: they name, group or reinterpret arrays.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("while", "call", "conditional", "partition-id", "replica-id", "opt-barrier"),
    *("copy-done", "async-done", "async-update", "add-dependency", "domain"),
}

#: Instructions that read a part of their first operand.
PARTIAL = {"dynamic-slice", "gather", "slice"}

_SHAPE = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-~]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s*(ROOT )?%?([\w.\-~]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_TRIPS = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)"?\}')
_CALLED = re.compile(r"(body|to_apply|calls|called_computations=\{)=?%?([\w.\-~]+)")


class Count(NamedTuple):
    """Sums over a program."""

    kernels: float = 0.0  # launched
    bytes: float = 0.0  # read and written by them
    waits: float = 0.0  # conditions of loops whose length is decided on the way
    callbacks: float = 0.0  # of the host, infeeds and outfeeds included

    def times(self, factor: float) -> "Count":
        return Count(*(factor * value for value in self))

    def plus(self, other: "Count") -> "Count":
        return Count(*(a + b for a, b in zip(self, other, strict=True)))


class Instruction(NamedTuple):
    """One line of a computation."""

    root: bool
    name: str
    shape: str
    operation: str
    operands: list[str]
    rest: str  # the attributes


def array_bytes(shape: str) -> int:
    """The bytes of all arrays in a shape's text."""
    total = 0
    for kind, sizes in _SHAPE.findall(shape):
        width = WIDTHS.get(kind)
        if width is None:
            digits = re.search(r"\d+", kind)
            width = int(digits[0]) // 8 if digits else 0
        total += width * math.prod(int(size) for size in sizes.split(",") if size)
    return total


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The instructions of each computation of an HLO module by name, and the name of the first."""
    result: dict[str, list[Instruction]] = {}
    entry = ""
    current: list[Instruction] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = result.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif match := _LINE.match(line):
            inside, rest = _split(match[5])
            # Operands may be written with their shapes, whose layouts have braces.
            names = re.findall(r"%([\w.\-~]+)", inside) or re.findall(r"[\w.\-~]+", inside)
            current.append(Instruction(bool(match[1]), match[2], match[3], match[4], names, rest))
    return result, entry


def _split(text: str) -> tuple[str, str]:
    """What is within the parenthesis that is open at the start, and what follows it."""
    depth = 1
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[:position], text[position + 1 :]
    return text, ""


def count(text: str, iterations: float = 1.0) -> Count:
    """Kernels, bytes and synchronizations of a compiled program.

    Args:
      text: the optimized HLO of a compiled program.
      iterations: of each loop whose length is decided while the program runs.
    """
    parts, entry = computations(text)
    known: dict[str, Count] = {}

    def total(name: str) -> Count:
        if name not in known:
            shapes = {each.name: each.shape for each in parts.get(name, [])}
            known[name] = Count()
            for instruction in parts.get(name, []):
                known[name] = known[name].plus(of_instruction(instruction, shapes))
        return known[name]

    def of_instruction(instruction: Instruction, shapes: dict[str, str]) -> Count:
        operation = instruction.operation
        called = dict(_CALLED.findall(instruction.rest))
        if operation == "while":
            trips = _TRIPS.search(instruction.rest)
            once = total(called["body"])
            if trips:
                return once.times(int(trips[1]))
            return once.times(iterations).plus(Count(waits=iterations + 1))
        if operation == "conditional":
            names = re.findall(r"%([\w.\-~]+)", instruction.rest.partition("metadata")[0])
            branches = [total(name) for name in names if name in parts]
            return max(branches, default=Count(), key=lambda branch: branch.bytes)
        if operation == "call":
            return total(called["to_apply"])
        if operation in FREE:
            return Count()
        target = re.search(r'custom_call_target="([^"]*)"', instruction.rest)
        is_host = operation in ("infeed", "outfeed", "send", "recv") or (
            target is not None and "callback" in target[1]
        )
        fused = parts.get(called.get("calls", ""), []) if operation == "fusion" else []
        moved = _moved(instruction, shapes, fused)
        return Count(kernels=1, bytes=moved, callbacks=float(is_host))

    return total(entry)


def _moved(instruction: Instruction, shapes: dict[str, str], fused: list[Instruction]) -> float:
    """The bytes that one kernel reads and writes; of an array that it reads in part, that part."""
    result = array_bytes(instruction.shape)
    operands: list[float] = [array_bytes(shapes.get(name, "")) for name in instruction.operands]
    operation = instruction.operation
    if operation in PARTIAL and operands:
        return 2 * result + sum(operands[1:])
    if operation == "dynamic-update-slice":
        return 2 * operands[1]
    if not fused:
        return result + sum(operands)
    sizes = {each.name: array_bytes(each.shape) for each in fused}
    for each in fused:
        if each.operation != "parameter":
            continue
        number = int(each.operands[0]) if each.operands else 0
        users = [user for user in fused if each.name in user.operands]
        if number < len(operands) and users:
            parts = [_read(each.name, user, sizes) for user in users]
            operands[number] = min(operands[number], sum(parts))
    for each in fused:
        if each.root and each.operation == "dynamic-update-slice":
            result = sizes[each.operands[1]]
    return result + sum(operands)


def _read(name: str, user: Instruction, sizes: dict[str, int]) -> float:
    """How much of an array an instruction within a fusion reads."""
    is_first = user.operands[0] == name
    if user.operation in PARTIAL and is_first:
        return sizes[user.name]
    if user.operation == "dynamic-update-slice" and is_first:
        return 0  # written in place
    return sizes[name]


def flops(function: Callable[..., Any], *arguments: Any, iterations: float = 1.0) -> float:
    """The flops of a function's matrix products and convolutions, two for a multiplication and sum.

    Args:
      function: traceable by JAX.
      arguments: of the function.
      iterations: of each loop whose length is decided while the program runs.
    """
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr, iterations)


def _flops(jaxpr: Any, iterations: float) -> float:
    return sum(_of_equation(equation, iterations) for equation in jaxpr.eqns)


def _of_equation(equation: Any, iterations: float) -> float:
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2.0 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * equation.outvars[0].aval.size * kernel.size / outputs
    inner = [_flops(program, iterations) for program in _programs(equation.params)]
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "while":
        return iterations * sum(inner)
    return max(inner, default=0.0) if name == "cond" else sum(inner)


def _programs(params: dict[str, Any]) -> Iterator[Any]:
    """The programs within an equation's parameters."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            program = getattr(each, "jaxpr", each)
            if hasattr(program, "eqns"):
                yield program


def donated(text: str) -> int:
    """How many of a compiled program's results take the memory of its arguments."""
    head = text.partition("\n")[0]
    return len(re.findall(r"(?:may|must)-alias", head))
