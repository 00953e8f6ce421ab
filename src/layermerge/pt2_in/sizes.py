"""Sizes that a `.pt2` file takes: its inputs' shapes, and its conditions on them, as checks of the network that is read.

Conditions are text, which torch would evaluate. Here they are parsed, and refused unless they are arithmetic on sizes.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, fx
from torch.fx.node import has_side_effect

from layermerge.errors import ArtifactError, InputError

_SYMBOL = re.compile(r"Symbol\('([A-Za-z_][A-Za-z0-9_]*)'(?:, [a-z_]+=(?:True|False))*\)|([A-Za-z_][A-Za-z0-9_]*)")
_SMALLEST = 2
"""What torch takes for the smallest of every free size; networks run on 1 as well."""
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": max, "min": min}
_LONGEST = 10_000


@dataclass(frozen=True)
class FreeSize:
    """A size that is free, by its symbol: the same in all places that name it, and within bounds."""

    symbol: str
    low: int
    high: int | None


def axes_of(meta: dict[str, Any], ranges: Mapping[str, Any], place: str) -> tuple[int | FreeSize, ...]:
    """The shape of an input: whole numbers, and symbols for what is free."""
    found: list[int | FreeSize] = []
    for size in meta["sizes"]:
        if "as_int" in size:
            found.append(int(size["as_int"]))
            continue
        symbol = _SYMBOL.fullmatch(size["as_expr"]["expr_str"])
        if symbol is None:
            raise ArtifactError(
                f"{place} takes inputs of sizes that depend on each other; export it with sizes that do not"
            )
        name = symbol[1] or symbol[2]
        bounds = ranges.get(name) or {}
        low, high = bounds.get("min_val") or 0, bounds.get("max_val")
        found.append(FreeSize(name, int(low) if low > _SMALLEST else 1, None if high is None else int(high)))
    return tuple(found)


@has_side_effect
def require_sizes(values: Sequence[Any], names: Sequence[str], shapes: Sequence[Any], conditions: Sequence[str]) -> Any:
    """Refuses inputs whose free sizes do not agree with each other, or that break a condition of the file."""
    if any(isinstance(value, fx.Proxy) for value in values):
        proxy = next(value for value in values if isinstance(value, fx.Proxy))
        return proxy.tracer.create_proxy("call_function", require_sizes, (values, names, shapes, conditions), {})
    known: dict[str, int] = {}
    for value, name, axes in zip(values, names, shapes, strict=True):
        for number, axis in enumerate(axes):
            if axis is None:
                continue
            symbol, low, high = axis
            size = value.shape[number]
            if known.setdefault(symbol, size) != size or size < low or (high is not None and size > high):
                raise InputError(
                    f"input '{name}' has size {size} in place {number}, which the network was not exported for; "
                    "give all inputs the sizes that they were exported with"
                )
    inputs = dict(zip(names, values, strict=True))
    for condition in conditions:
        if not Condition.parse(condition, tuple(inputs)).holds(inputs):
            raise InputError(
                f"inputs of {', '.join('x'.join(map(str, value.shape)) for value in values)} are not what the network was "
                f"exported for: {condition[:120]}; resize them"
            )
    return None


@dataclass(frozen=True)
class Condition:
    """Arithmetic on sizes, as the file writes it; nothing else is accepted."""

    tree: ast.expr

    @staticmethod
    @cache
    def parse(text: str, names: tuple[str, ...]) -> Condition:
        """Raises a ValueError where the text is anything but arithmetic on the sizes of these inputs."""
        if len(text) > _LONGEST:
            raise ValueError("a condition on sizes is too long")
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"'{text[:60]}' is not a condition on sizes") from None
        _require_arithmetic(tree, names)
        return Condition(tree)

    def holds(self, inputs: Mapping[str, Tensor]) -> bool:
        return bool(_value(self.tree, inputs))


def _require_arithmetic(node: ast.expr, names: Sequence[str]) -> None:
    if _size_of(node, names) is not None:
        return
    match node:
        case ast.Constant(value=int()):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            inner = [operand]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            inner = [left, *others]
        case ast.BoolOp(values=inner):
            pass
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as inner, keywords=[]) if name in _FUNCTIONS:
            pass
        case _:
            raise ValueError(f"'{ast.unparse(node)[:60]}' is not arithmetic on sizes")
    for each in inner:
        _require_arithmetic(each, names)


def _size_of(node: ast.expr, names: Sequence[str]) -> tuple[str, int] | None:
    """`L['x'].size()[2]`: which input, and which of its sizes."""
    match node:
        case ast.Subscript(
            value=ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str(name))), attr="size"
                ),
                args=[],
                keywords=[],
            ),
            slice=ast.Constant(value=int(number)),
        ) if name in names:
            return name, number
    return None


def _value(node: ast.expr, inputs: Mapping[str, Tensor]) -> Any:
    if (size := _size_of(node, list(inputs))) is not None:
        return inputs[size[0]].shape[size[1]]
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, inputs), _value(right, inputs))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_value(operand, inputs))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name]([_value(each, inputs) for each in args])
        case ast.BoolOp(op=op, values=values):
            answers = (bool(_value(each, inputs)) for each in values)
            return all(answers) if isinstance(op, ast.And) else any(answers)
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [_value(each, inputs) for each in (left, *others)]
            return all(_OPERATORS[type(op)](*sides[at : at + 2]) for at, op in enumerate(ops))
    raise AssertionError("conditions are parsed before they are asked")
