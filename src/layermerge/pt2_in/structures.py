"""Structures of a `.pt2` file: how inputs and outputs are put together of tensors, as plain containers.

A class that the original returned is not imported because a file names it: what has keys becomes a dict, all else a tuple.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

_DEEPEST = 50


def structure_of(text: str) -> pytree.TreeSpec:
    """From what `torch.utils._pytree` writes; it is read here, since its own reader looks types up by name."""
    _version, described = json.loads(text)
    return pytree.tree_structure(_container(described, 0))


def _container(described: dict[str, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("inputs or outputs are nested too deeply")
    kind, context = described["type"], described["context"]
    if kind is None:
        return 0
    parts = [_container(each, depth + 1) for each in described["children_spec"]]
    if kind == "builtins.list":
        return parts
    keys = list(_keys(context))
    return (
        dict(zip(keys, parts, strict=True))
        if kind == "builtins.dict" or (keys and len(keys) == len(parts))
        else tuple(parts)
    )


def _keys(context: Any) -> Iterator[str]:
    """Names of the parts, where there are any: a list of them, or one inside of a list."""
    read = json.loads(context) if isinstance(context, str) else context
    if isinstance(read, list):
        for each in read:
            if isinstance(each, str):
                yield each
            else:
                yield from _keys(each)
