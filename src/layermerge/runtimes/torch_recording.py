"""torch's passes, operator by operator.

torch runs an operator when it is called, so the clock around each call says what `torch.profiler` would, without the
microseconds that its events add to each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx, nn

from layermerge.runtimes.recording import Operator, Recording
from layermerge.tracing.operators import Role


class TorchRecording(Recording):
    """Runs a graph node by node and times each call."""

    def __init__(
        self, graph: fx.GraphModule, inputs: Sequence[Any], running: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.graph, self.inputs, self.running = graph, inputs, running
        self.clock = _Timed(graph)
        self.owners = _owners(graph)
        self.found: list[Sequence[Operator]] = []

    def __call__(self) -> None:
        self.clock.taken = []
        with self.running(), torch.inference_mode():
            self.clock.run(*self.inputs)
        self.found.append([Operator(self.owners.get(node), conv, ms) for node, conv, ms in self.clock.taken])

    def passes(self) -> list[Sequence[Operator]]:
        return self.found


class _Timed(fx.Interpreter):
    """Notes how long each node took, and whether it is a conv."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.taken: list[tuple[fx.Node, bool, float]] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in ("call_module", "call_function", "call_method"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        run = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        start = time.perf_counter()
        found = run(*args, **kwargs) if run else getattr(self, n.op)(n.target, args, kwargs)
        self.taken.append((n, isinstance(run, nn.Conv2d), (time.perf_counter() - start) * 1e3))
        return found


def _owners(graph: fx.GraphModule) -> dict[fx.Node, str]:
    """The conv that every node is or follows."""
    found: dict[fx.Node, str] = {}
    for node in graph.graph.nodes:
        if node.op == "call_module" and isinstance(graph.get_submodule(str(node.target)), nn.Conv2d):
            found[node] = str(node.target)
        elif node.meta.get("role") is not Role.BARRIER and node.op.startswith("call"):
            # Of an add the branch that was computed last: its other operand is the shortcut.
            known = [found[source] for source in node.all_input_nodes if source in found]
            if known:
                found[node] = known[-1]
    return found
