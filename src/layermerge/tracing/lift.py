"""Lift: the captured graph as a module again, under the user's own names.

In: the user's model and its capture. Out: a `LiftedModule`: the user's module tree (same `state_dict` keys, in the same
order) driven by the captured graph, each conv, norm, activation, dropout and linear a module of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from layermerge.errors import TraceError
from layermerge.tracing.capture import Capture
from layermerge.tracing.file_interface import FileInterface, file_interface_of
from layermerge.tracing.input_checks import takes_free_size
from layermerge.tracing.module_plans import ModulePlan, has_state_or_children, plan_modules
from layermerge.tracing.operators import Role


class LiftedModule(fx.GraphModule):
    """A graph module that keeps the whole module tree it was given, whether the graph calls all of it or not."""

    file_interface: FileInterface | None = None
    """Of the file that the network was read from, if it was."""

    def _get_name(self) -> str:
        # GraphModule gives every instance a class of its own; users know the one behind it.
        return next(kind.__name__ for kind in type(self).__mro__ if kind.__name__ != "GraphModuleImpl")

    @property
    def free_size(self) -> bool:
        """Whether it takes images of any height and width."""
        return takes_free_size(self.graph)

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self._tensors()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        floats = (tensor.dtype for tensor in self._tensors() if tensor.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def _tensors(self) -> Iterator[Tensor]:
        """Parameters first; a network whose convs were all removed may have buffers alone."""
        return chain(self.parameters(), self.buffers())

    def __deepcopy__(self, memo: dict[int, Any]) -> LiftedModule:
        # GraphModule's own copy drops every module that the graph does not call, and with it state_dict keys.
        return clone_as(type(self), self, memo)


_Kind = TypeVar("_Kind", bound=LiftedModule)


def clone_as(kind: type[_Kind], module: LiftedModule, memo: dict[int, Any] | None = None) -> _Kind:
    """A deep copy of a lifted module, as one of its kinds; `memo` may name tensors to share instead of copying."""
    memo = {} if memo is None else memo
    copied: _Kind = kind.__new__(kind)
    memo[id(module)] = copied
    own = {"_graph", "_in_spec", "_out_spec"}
    copied.__dict__.update(
        {key: copy.deepcopy(value, memo) for key, value in module.__dict__.items() if key not in own}
    )
    copied.graph = copy_graph(module._graph)
    return copied


def copy_graph(graph: fx.Graph) -> fx.Graph:
    """A copy with the same node names and roles; the calling convention, which nobody changes, is shared."""
    copied = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        twins[node] = copied.node_copy(node, twins.__getitem__)
    copied.set_codegen(graph._codegen)
    return copied


def lift(model: nn.Module, capture: Capture) -> LiftedModule:
    """Builds the lifted module; its tensors are copies of the model's."""
    graph = copy_graph(capture.graph)
    plans = plan_modules(graph, model, capture)
    lifted = LiftedModule(nn.Module(), fx.Graph())
    lifted.file_interface = file_interface_of(model)
    modules = {plan.path: plan.module for plan in plans.values()}
    _grow_tree(lifted, model, modules)
    for path, module in modules.items():
        lifted.set_submodule(path, module)
    for name, constant in capture.constants.items():
        lifted.register_buffer(name, constant, persistent=False)
    _call_modules(graph, plans)
    _follow_the_weights(graph, model)
    _return_plain_containers(graph)
    lifted.graph = graph
    lifted.graph.eliminate_dead_code()
    lifted.graph.lint()
    lifted.recompile()
    lifted.train(model.training)
    return lifted


def _return_plain_containers(graph: fx.Graph) -> None:
    """Where the model is itself an fx graph, export notes fx's own immutable lists and dicts as what it returns."""

    def plain(value: Any) -> Any:
        if isinstance(value, immutable_dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, immutable_list):
            return [plain(item) for item in value]
        return tuple(map(plain, value)) if type(value) is tuple else value

    codegen: Any = graph._codegen
    spec = codegen.pytree_info.out_spec
    returned = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    info = codegen.pytree_info._replace(out_spec=pytree.tree_structure(plain(returned)))
    graph.set_codegen(type(codegen)(info))


def _grow_tree(lifted: nn.Module, model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """The user's module tree with copies of its tensors, in the user's order."""
    persistent = set(model.state_dict(keep_vars=True))
    memo: dict[int, Any] = {}
    for path, original in model.named_modules(remove_duplicate=False):
        copied = modules.get(path, nn.Module()) if path else lifted
        if path:
            lifted.set_submodule(path, copied)
        for table, kept in ((copied._parameters, original._parameters), (copied._buffers, original._buffers)):
            for name in set(table) - set(kept):
                table[name] = None
        for name, parameter in original._parameters.items():
            copied.register_parameter(name, copy.deepcopy(parameter, memo))
        for name, buffer in original._buffers.items():
            key = f"{path}.{name}" if path else name
            copied.register_buffer(name, copy.deepcopy(buffer, memo), persistent=key in persistent or buffer is None)
        copied.training = original.training


def _call_modules(graph: fx.Graph, plans: dict[fx.Node, ModulePlan]) -> None:
    calls: dict[fx.Node, fx.Node] = {}
    for node, plan in plans.items():
        args, kwargs = fx.map_arg((plan.args, dict(plan.kwargs)), lambda arg: calls.get(arg, arg))
        with graph.inserting_before(node):
            call = calls[node] = graph.call_module(plan.path, args, kwargs)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def _follow_the_weights(graph: fx.Graph, model: nn.Module) -> None:
    """Casts and factories fixed to the traced dtype or device follow the module's parameters instead.

    Otherwise a module traced in float32 on the CPU could not be moved to float64 or to a GPU.
    """
    name, parameter = next(iter(model.named_parameters()), (None, None))
    if name is None or parameter is None:
        return
    users = [node for node in graph.nodes if node.op == "call_function" and _mentions(node, parameter)]
    if not users:
        return
    with graph.inserting_before(next(iter(graph.nodes))):
        anchor = graph.get_attr(name)
        dtype = graph.call_function(getattr, (anchor, "dtype"))
        device = graph.call_function(getattr, (anchor, "device"))
    for new in (anchor, dtype, device):
        new.meta = {"shape": None, "owner": "", "role": Role.BARRIER, "operator": "getattr"}

    def follow(value: Any) -> Any:
        if isinstance(value, torch.dtype) and value == parameter.dtype:
            return dtype
        return device if isinstance(value, torch.device) and value == parameter.device else value

    for node in users:
        node.args = tuple(follow(value) for value in node.args)
        node.kwargs = {key: follow(value) for key, value in node.kwargs.items()}


def _mentions(node: fx.Node, parameter: Tensor) -> bool:
    values = (*node.args, *node.kwargs.values())
    return any(
        (isinstance(value, torch.dtype) and value == parameter.dtype)
        or (isinstance(value, torch.device) and value == parameter.device)
        for value in values
    )


def require_convs(lifted: LiftedModule, name: str) -> None:
    shapes = [node.meta["shape"] for node in lifted.graph.nodes if node.meta["role"] is Role.CONV]
    if any(len(shape) != 4 for shape in shapes):
        raise TraceError(
            f"{name} was given inputs without a batch dimension; pass for instance torch.randn(2, 3, 224, 224)"
        )
    if not shapes:
        raise TraceError(
            f"{name} calls no 2-d convolution with weights of its own, so there is nothing to remove or merge; "
            "layermerge compresses convolutional networks"
        )


def drop_unused(lifted: LiftedModule) -> None:
    """Removes every module and tensor that the graph does not use; what holds used modules stays as a plain container."""
    called = {str(node.target) for node in lifted.graph.nodes if node.op == "call_module"}
    read = {str(node.target) for node in lifted.graph.nodes if node.op == "get_attr"}

    def prune(module: nn.Module, path: str) -> nn.Module | None:
        prefix = f"{path}." if path else ""
        for name, child in list(module._modules.items()):
            kept = None if child is None else prune(child, prefix + name)
            if kept is None:
                del module._modules[name]
            else:
                module._modules[name] = kept
        if path in called:
            return module
        for table in (module._parameters, module._buffers):
            for name in [name for name in table if prefix + name not in read]:
                del table[name]
        if not path or not has_state_or_children(module):
            return None if path else module
        container = nn.Module()
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"):
            container.__dict__[part] = module.__dict__[part]
        return container

    prune(lifted, "")
