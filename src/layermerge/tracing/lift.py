"""Lift: the captured graph as a module again, under the user's own names.

In: the user's model and its capture. Out: a `LiftedModule`: the user's module tree (same `state_dict` keys, in the same
order) driven by the captured graph, each conv, norm, activation, dropout and linear a module of its own.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from layermerge.errors import TraceError
from layermerge.tracing.capture import Capture, TrainOnly
from layermerge.tracing.operators import Operator, Role, bind, classify, operator_name


class LiftedModule(fx.GraphModule):
    """A graph module that keeps the whole module tree it was given, whether the graph calls all of it or not."""

    def _get_name(self) -> str:
        # GraphModule gives every instance a class of its own; users know the one behind it.
        return next(kind.__name__ for kind in type(self).__mro__ if kind.__name__ != "GraphModuleImpl")

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        return next((parameter.dtype for parameter in self.parameters()), torch.get_default_dtype())

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
    plans = _plan_modules(graph, model, capture)
    lifted = LiftedModule(nn.Module(), fx.Graph())
    _grow_tree(lifted, model, dict(plans.values()))
    for path, module in plans.values():
        lifted.set_submodule(path, module)
    for name, constant in capture.constants.items():
        lifted.register_buffer(name, constant, persistent=False)
    for node in list(graph.nodes):
        if node in plans:
            _call_module(graph, node, plans[node][0], capture.train_only.get(plans[node][0]))
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


def _plan_modules(graph: fx.Graph, model: nn.Module, capture: Capture) -> dict[fx.Node, tuple[str, nn.Module]]:
    """Decides for every call whether it becomes a module, which, and under what name. Notes each node's role."""
    plans: dict[fx.Node, tuple[str, nn.Module]] = {}
    shared: dict[str, nn.Module] = {}
    taken = {name for name, _ in model.named_modules()} | {name for name, _ in model.named_parameters()}
    taken |= {name for name, _ in model.named_buffers()}
    free = {name for name, module in model.named_modules() if name and not _has_state_or_children(module)}
    calls = Counter(node.meta["owner"] for node in graph.nodes if node.op == "call_function")
    for node in graph.nodes:
        if node.op != "call_function":
            node.meta["role"] = Role.BARRIER
            continue
        owner = node.meta["owner"]
        role, row = classify(node)
        node.meta["role"], node.meta["operator"] = role, operator_name(node.target)
        if owner in capture.train_only:
            plans[node] = owner, shared.setdefault(owner, copy.deepcopy(model.get_submodule(owner)))
            node.meta["role"] = Role.DROPOUT
        elif row is not None and row.build is not None:
            path = _owned_path(node, row, model)
            if path is not None and row.owns:
                plans[node] = path, shared.setdefault(path, _with_settings_of(model, path, row.build(bind(node))))
            elif not row.owns:
                whole = owner in free and calls[owner] == 1
                plans[node] = _fresh_name(owner, operator_name(node.target), whole, taken), row.build(bind(node))
        if role is Role.CONV and node not in plans:
            node.meta["role"] = Role.BARRIER  # its weight is computed (weight norm, standardisation), not stored
    for node, (path, _module) in plans.items():
        weights = [arg for arg in node.args[1:] if isinstance(arg, fx.Node) and arg.op == "get_attr"]
        if any(len(weight.users) > 1 for weight in weights):
            node.meta["role"], node.meta["shared"] = Role.BARRIER, path
    return plans


def _has_state_or_children(module: nn.Module) -> bool:
    return any(True for _ in module.children()) or bool(module._parameters) or bool(module._buffers)


def _owned_path(node: fx.Node, row: Operator, model: nn.Module) -> str | None:
    """The module whose own tensors this call uses, and no others; None where they come from elsewhere."""
    call, paths = bind(node), set()
    for name in row.owns:
        tensor = call.arguments.get(name)
        if tensor is None:
            continue
        if not isinstance(tensor, fx.Node) or tensor.op != "get_attr":
            return None
        path, _, attribute = str(tensor.target).rpartition(".")
        if attribute != name:
            return None
        paths.add(path)
    if len(paths) != 1:
        return None
    (path,) = paths
    owner = model.get_submodule(path)
    owned = {name for name, tensor in (*owner._parameters.items(), *owner._buffers.items()) if tensor is not None}
    used = {name for name in row.owns if call.arguments.get(name) is not None}
    return path if path and owned - {"num_batches_tracked"} == used else None


def _with_settings_of(model: nn.Module, path: str, module: nn.Module) -> nn.Module:
    """Takes over what the eval graph does not show: a BatchNorm's momentum (None in training means a running mean)."""
    original = model.get_submodule(path)
    if hasattr(module, "momentum") and hasattr(original, "momentum"):
        module.momentum = original.momentum
    return module


def _fresh_name(owner: str, operator: str, whole: bool, taken: set[str]) -> str:
    """The user's own name where the call is a whole module of theirs; otherwise `owner.operator`, numbered."""
    if whole:
        return owner
    base = f"{owner}.{operator}" if owner else operator
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name


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


def _call_module(graph: fx.Graph, node: fx.Node, path: str, train_only: TrainOnly | None) -> None:
    args, kwargs = (train_only.args, dict(train_only.kwargs)) if train_only else ((), {})
    with graph.inserting_before(node):
        call = graph.call_module(path, (node.args[0], *args), kwargs)
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
        if not path or not _has_state_or_children(module):
            return None if path else module
        container = nn.Module()
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"):
            container.__dict__[part] = module.__dict__[part]
        return container

    prune(lifted, "")
