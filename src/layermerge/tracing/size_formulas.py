"""Size formulas: a size that torch knows as a formula, written into a graph as arithmetic on the sizes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._sympy.interp import _run_sympy_handler
from torch.utils._sympy.reference import PythonReferenceAnalysis

from layermerge.errors import TraceError

Side = tuple[fx.Node, int]
"""An input, and one of its dimensions."""


class _Arithmetic(PythonReferenceAnalysis):
    """What each operation of a formula is in a graph; torch's own writes those that round as sympy's."""

    @staticmethod
    def truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def ceil_to_int(x: fx.Proxy, _dtype: torch.dtype) -> fx.Proxy:
        return _call(math.ceil, x)

    @staticmethod
    def floor_to_int(x: fx.Proxy, _dtype: torch.dtype) -> fx.Proxy:
        return _call(math.floor, x)

    @staticmethod
    def trunc_to_int(x: fx.Proxy, _dtype: torch.dtype) -> fx.Proxy:
        return _call(math.trunc, x)


def _call(function: Callable[..., Any], x: fx.Proxy) -> fx.Proxy:
    return x.tracer.create_proxy("call_function", function, (x,), {})


class FormulaWriter:
    """Writes formulas at the graph's insertion point, which moves forward only: what is written already is used again."""

    def __init__(self, graph: fx.Graph, sides: dict[sympy.Symbol, Side], free_sizes: Iterable[sympy.Symbol]) -> None:
        self.graph, self.sides, self.free_sizes = graph, sides, frozenset(free_sizes)
        places = {symbol: sides[symbol] for symbol in self.free_sizes}
        self.traced = {symbol: image.meta["val"].shape[side].node.hint for symbol, (image, side) in places.items()}
        self.tracer = GraphAppendingTracer(graph)
        self.written: dict[sympy.Basic, Any] = {}

    def covers(self, symbols: Iterable[sympy.Symbol]) -> bool:
        """Whether these are all sizes of inputs."""
        return self.sides.keys() >= set(symbols)

    def read(self, image: fx.Node, side: int) -> fx.Proxy:
        return fx.Proxy(self.graph.call_function(torch.ops.aten.sym_size.int, (image, side)), self.tracer)

    def write(self, formula: sympy.Basic) -> Any:
        """The formula's value as a proxy, which notes its value at the traced size unless that follows the batch."""
        if formula not in self.written:
            self.written[formula] = written = self._computed(formula)
            value = formula.xreplace(self.traced)
            if isinstance(written, fx.Proxy) and isinstance(value, sympy.Integer):
                written.node.meta["val"] = int(value)
        return self.written[formula]

    def _computed(self, formula: sympy.Basic) -> Any:
        if formula in self.sides:
            return self.read(*self.sides[formula])
        if isinstance(formula, sympy.Number):
            return int(formula) if formula.is_integer else float(formula)
        parts = [self.write(part) for part in formula.args]
        try:
            return _run_sympy_handler(_Arithmetic, parts, formula)  # type: ignore[no-untyped-call]
        except Exception as error:  # whatever sympy makes of a proxy
            raise TraceError(
                f"free_size: a size is computed as {str(formula)[:80]}, which cannot be written into a graph; "
                "compute sizes in whole numbers, or trace without free_size"
            ) from error
