"""Aliases: which nodes of a captured graph share memory, and which operators write to it.

The memory of a node's value is that of the tensor under `meta["val"]`, which the capture keeps there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

View = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]] | int
"""A view as data: the operator, and its arguments after the tensor that it looks at; a number takes one of several views."""


def written_arguments(node: fx.Node) -> list[Any]:
    """The arguments that the node's operator writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    given = arguments_by_name(node)
    slots = node.target._schema.arguments
    return [given[slot.name] for slot in slots if slot.is_write and given.get(slot.name) is not None]


def arguments_by_name(node: fx.Node) -> dict[str, Any]:
    """The arguments that a call of an operator gives, by their names in its schema."""
    slots = node.target._schema.arguments  # type: ignore[union-attr]
    return {**{slot.name: value for slot, value in zip(slots, node.args, strict=False)}, **node.kwargs}


def views_back(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """The node that owns the memory that this one looks at, and the views on the way to it, the node itself last."""
    views: list[fx.Node] = []
    while is_view(node) and isinstance(source := node.args[0], fx.Node):
        views.insert(0, node)
        node = source
    return node, views


def looking_at(node: fx.Node) -> set[fx.Node]:
    """The node and all views of it."""
    found, waiting = set[fx.Node](), [node]
    while waiting:
        alias = waiting.pop()
        found.add(alias)
        waiting += [user for user in alias.users if user not in found and user.args[0] is alias and is_view(user)]
    return found


def is_view(node: fx.Node) -> bool:
    """Whether the node's value shares the memory of its first argument; `reshape` and the like do so at times."""
    target, source = node.target, node.args[0] if node.args else None
    if node.op != "call_function" or not isinstance(source, fx.Node):
        return False
    if target is operator.getitem:
        return is_view(source)
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    if all(result.alias_info is None for result in target._schema.returns):
        return False
    mine, its = _memory(node), _memory(source)
    return mine is None or its is None or mine == its


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    first = next(iter(value), None) if isinstance(value, (tuple, list)) else value
    return first.untyped_storage()._cdata if isinstance(first, Tensor) else None


def as_data(view: fx.Node) -> View:
    if view.target is operator.getitem:
        place = view.args[1]
        assert isinstance(place, int)
        return place
    assert callable(view.target)
    return view.target, tuple(view.args[1:]), dict(view.kwargs)
