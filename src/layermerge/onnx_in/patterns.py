"""Activations that exporters write out: put together again, so that each is one call, as it was in the network.

In: the nodes of a file and its constants of one value. Out: the same nodes, those of a pattern replaced by one. A new form is a
row: nested operators over `X`, which stands for one and the same map wherever it occurs, and numbers for constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

X = "x"
"""The map that a pattern is a function of."""
_DEFAULTS = {"alpha": 0.2, "beta": 0.5}
"""Of HardSigmoid, where a file leaves them out."""
_EITHER_WAY = {"Add", "Mul"}


@dataclass(frozen=True)
class _Op:
    """An operator over parts of a pattern; `attributes` have to be near these."""

    kind: str
    parts: tuple[Any, ...]
    attributes: Mapping[str, float] | None = None


def _op(kind: str, *parts: Any, **attributes: float) -> _Op:
    return _Op(kind, parts, attributes)


_RELU6 = _op("Clip", _op("Add", X, 3.0), 0.0, 6.0)
_SIXTH = _op("HardSigmoid", X, alpha=1 / 6, beta=0.5)
_BELL = _op("Add", _op("Erf", _op("Div", X, math.sqrt(2))), 1.0)
_BELL_BY_PRODUCT = _op("Add", _op("Erf", _op("Mul", X, math.sqrt(0.5))), 1.0)
PATTERNS: tuple[tuple[str, _Op], ...] = (
    ("Swish", _op("Mul", X, _op("Sigmoid", X))),
    ("Mish", _op("Mul", X, _op("Tanh", _op("Softplus", X)))),
    ("HardSwish", _op("Mul", X, _SIXTH)),
    ("HardSwish", _op("Div", _op("Mul", X, _RELU6), 6.0)),
    ("HardSwish", _op("Mul", _op("Mul", X, _RELU6), 1 / 6)),
    ("HardSwish", _op("Mul", X, _op("Div", _RELU6, 6.0))),
    ("HardSwish", _op("Mul", X, _op("Mul", _RELU6, 1 / 6))),
    *(
        ("Gelu", form)
        for bell in (_BELL, _BELL_BY_PRODUCT)
        for form in (
            _op("Mul", _op("Mul", X, bell), 0.5),
            _op("Mul", _op("Mul", X, 0.5), bell),
            _op("Mul", X, _op("Mul", bell, 0.5)),
        )
    ),
)


@dataclass(frozen=True)
class Found:
    """A pattern in a file: what it is, the map it is of, and the nodes it stands for, the last giving the result."""

    kind: str
    source: str
    nodes: tuple[int, ...]


def find_patterns(nodes: Sequence[Any], numbers: Mapping[str, float], results: Sequence[str]) -> dict[int, Found]:
    """By the index of the last node. Nothing but the pattern itself may read what is computed within it."""
    givers = {name: index for index, node in enumerate(nodes) for name in node.output}
    readers = Counter([*(name for node in nodes for name in node.input), *results])
    taken, found = set[int](), dict[int, Found]()
    for last in range(len(nodes) - 1, -1, -1):
        for kind, pattern in PATTERNS:
            match = _Match(nodes, numbers, givers)
            if last in taken or not match.fits(pattern, nodes[last].output[0]) or taken.intersection(match.inside):
                continue
            inner = [node for node in set(match.inside) if node != last]
            within = Counter(name for index in set(match.inside) for name in nodes[index].input)
            if match.source and all(readers[nodes[node].output[0]] == within[nodes[node].output[0]] for node in inner):
                found[last] = Found(kind, match.source, (*sorted(inner), last))
                taken.update(match.inside)
                break
    return found


class _Match:
    """One try of a pattern at one place."""

    def __init__(self, nodes: Sequence[Any], numbers: Mapping[str, float], givers: Mapping[str, int]) -> None:
        self.nodes, self.numbers, self.givers = nodes, numbers, givers
        self.source, self.inside = "", list[int]()

    def fits(self, pattern: Any, name: str) -> bool:
        if pattern == X:
            self.source = self.source or name
            return self.source == name and name not in self.numbers
        if not isinstance(pattern, _Op):
            return name in self.numbers and math.isclose(self.numbers[name], pattern, rel_tol=1e-5, abs_tol=1e-7)
        index = self.givers.get(name)
        if index is None or self.nodes[index].op_type != pattern.kind:
            return False
        node = self.nodes[index]
        given = _DEFAULTS | {each.name: each.f for each in node.attribute}
        attributes = pattern.attributes or {}
        if not all(math.isclose(given[key], value, rel_tol=1e-5) for key, value in attributes.items()):
            return False
        orders = [pattern.parts, pattern.parts[::-1]] if pattern.kind in _EITHER_WAY else [pattern.parts]
        for parts in orders:
            before = self.source, list(self.inside)
            self.inside.append(index)
            inputs = list(node.input)
            if len(parts) == len(inputs) and all(map(self.fits, parts, inputs)):
                return True
            self.source, self.inside = before
        return False
