"""Module plans: which calls of a captured graph become modules, which modules, and under what names.

In: the captured graph and the user's model. Out: a plan a call; the role of every node is noted under `meta["role"]`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from layermerge.tracing.capture import Capture
from layermerge.tracing.constants import ancestors, is_constant, mark_constants
from layermerge.tracing.hand_written import Function, hand_written
from layermerge.tracing.names import fresh_name, names_in
from layermerge.tracing.operators import Operator, Role, bind, classify, operator_name


@dataclass(frozen=True)
class ModulePlan:
    """A call that becomes a module: under what name, which module, and what it is called with."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def plan_modules(graph: fx.Graph, model: nn.Module, capture: Capture) -> dict[fx.Node, ModulePlan]:
    """Decides for every call whether it becomes a module. Notes each node's role, and which nodes are constant."""
    mark_constants(graph)
    rows: dict[fx.Node, Operator | None] = {}
    for node in graph.nodes:
        node.meta["role"] = Role.BARRIER
        if node.op == "call_function":
            role, rows[node] = classify(node)
            node.meta["operator"] = operator_name(node.target)
            node.meta["role"] = Role.BARRIER if node.meta["constant"] else role
    planner = _Planner(model, capture, list(rows))
    nameless = [node for node, row in rows.items() if node.meta["role"] is Role.ACTIVATION and row and not row.build]
    written = hand_written(rows, nameless)
    inside = {call for function in written.values() for call in function.calls}
    plans: dict[fx.Node, ModulePlan] = {}
    for node, row in rows.items():
        if node in written:
            plans[node] = planner.plan_function(written[node])
        elif node not in inside and (plan := planner.plan(node, row)) is not None:
            plans[node] = plan
    for node in rows:
        if node.meta["role"] is Role.CONV and node not in plans:
            node.meta["role"] = Role.BARRIER  # its weight depends on the input
    for node, plan in plans.items():
        if _shares_tensors(node):
            node.meta["role"], node.meta["shared"] = Role.BARRIER, plan.path
    return plans


def _shares_tensors(node: fx.Node) -> bool:
    """Whether another call reads the tensors that this one owns, or any tensor that they are computed from."""
    own = ancestors(
        arg for arg in node.args[1:] if isinstance(arg, fx.Node) and (arg.op == "get_attr" or is_constant(arg))
    )
    return any(user is not node and user not in own for tensor in own for user in tensor.users)


def has_state_or_children(module: nn.Module) -> bool:
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(True for _ in module.children()) or any(tensor is not None for tensor in tensors)


class _Planner:
    def __init__(self, model: nn.Module, capture: Capture, calls: list[fx.Node]) -> None:
        self.model = model
        self.train_only = capture.train_only
        self.built: dict[str, nn.Module] = {}
        self.taken = names_in(model) | set(capture.constants)
        self.calls = Counter(node.meta["owner"] for node in calls)

    def plan(self, node: fx.Node, row: Operator | None) -> ModulePlan | None:
        owner, source = node.meta["owner"], node.args[0] if node.args else None
        if owner in self.train_only:
            node.meta["role"], idle = Role.DROPOUT, self.train_only[owner]
            module = self.built.setdefault(owner, copy.deepcopy(self.model.get_submodule(owner)))
            return ModulePlan(owner, module, (source, *idle.args), idle.kwargs)
        if row is None or row.build is None:
            return None
        call = bind(node)
        tensors = {name: call[name] for name in row.owns if call.arguments.get(name) is not None}
        if not tensors:
            return ModulePlan(self._fresh_name(node), row.build(call), (source,))
        if path := self._owned_path(tensors):
            return ModulePlan(path, self.built.setdefault(path, self._with_settings(path, row.build(call))), (source,))
        if row.build_computed is None or not all(map(is_constant, tensors.values())):
            return None
        passed = (call.arguments.get(name) for name in row.owns)
        return ModulePlan(self._fresh_name(node), row.build_computed(call), (source, *passed))

    def plan_function(self, function: Function) -> ModulePlan:
        """An activation written by hand, as one module."""
        if function.joins:
            function.calls[-1].meta.update(role=Role.ACTIVATION, operator="activation")
        return ModulePlan(self._fresh_name(*function.calls), function.as_module(), (function.source,))

    def _owned_path(self, tensors: Mapping[str, Any]) -> str | None:
        """The module whose own tensors these are, all of them; None where they come from elsewhere."""
        paths = set()
        for name, tensor in tensors.items():
            if not isinstance(tensor, fx.Node) or tensor.op != "get_attr":
                return None
            path, _, attribute = str(tensor.target).rpartition(".")
            if attribute != name:
                return None
            paths.add(path)
        if len(paths) != 1:
            return None
        (path,) = paths
        owner = self.model.get_submodule(path)
        owned = {name for name, tensor in (*owner._parameters.items(), *owner._buffers.items()) if tensor is not None}
        return path if path and owned - {"num_batches_tracked"} == set(tensors) else None

    def _with_settings(self, path: str, module: nn.Module) -> nn.Module:
        """Takes over what the eval graph does not show: a BatchNorm's momentum (None in training means a running mean)."""
        original = self.model.get_submodule(path)
        if hasattr(module, "momentum") and hasattr(original, "momentum"):
            module.momentum = original.momentum
        return module

    def _fresh_name(self, *calls: fx.Node) -> str:
        """The user's own name where the calls are a whole module of theirs; otherwise `owner.operator`, numbered."""
        owner, operator = calls[-1].meta["owner"], calls[-1].meta["operator"]
        whole = all(call.meta["owner"] == owner for call in calls) and self.calls[owner] == len(calls)
        if owner and whole and not has_state_or_children(self.model.get_submodule(owner)):
            return str(owner)
        return fresh_name(f"{owner}.{operator}" if owner else operator, self.taken)
