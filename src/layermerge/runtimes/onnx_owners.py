"""Owners: which conv every operator of an ONNX file belongs to, by the names that runtimes give it in their profiles.

Runtimes name what they run after a node of the file, or after the value that it gives, with a suffix of their own
(`_nchwc`, `/WithoutBiases`, `_token_7`). Of an INT8 file, a conv's weights stand behind what turns integers into numbers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "Softmax")
_MOVES = ("Concat", "Resize", "Upsample", "Flatten", "Transpose", "Slice", "Split", "Squeeze", "Unsqueeze", "Gather")
_BARRIERS = frozenset((*_POOLS, *_MOVES, "Gemm", "MatMul", "Shape", "Expand"))
"""Operators that belong to no conv, whatever they read."""
_NUMBERED = re.compile(r"_token_\d+$")
_SUFFIXES = ("_nchwc", "/WithoutBiases", "_original", "/fused", "/Conv")


def owners_of(path: Path) -> dict[str, str]:
    """The module of the conv that a node or a value belongs to, by its name."""
    import onnx

    graph: Any = onnx.load(str(path), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    integers = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    convs: list[str] = []
    owner_of_value: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in graph.node:
        weight = integers.get(node.input[1], node.input[1]) if node.op_type == "Conv" else None
        if weight in weights:
            owner: str | None = (conv := str(weight).removesuffix("_quantized").removesuffix(".weight"))
            convs.append(conv)
        elif node.op_type in _BARRIERS or node.op_type == "Conv":
            owner = None
        else:
            # Of an add the branch that was computed last: its other operand is the shortcut.
            known = [owner_of_value[name] for name in node.input if name in owner_of_value]
            owner = max(known, key=convs.index, default=None)
        if owner is not None:
            for name in (node.name, *node.output):
                found[name] = owner
            owner_of_value.update(dict.fromkeys(node.output, owner))
    return found


def owner_named(owners: dict[str, str], name: str) -> str | None:
    """The owner of what a runtime calls by this name."""
    if name in owners:
        return owners[name]
    if plain := _NUMBERED.sub("", name) if _NUMBERED.search(name) else "":
        return owner_named(owners, plain)
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and (found := owner_named(owners, name.removesuffix(suffix))):
            return found
    return None
