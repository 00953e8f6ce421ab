"""Writes: in-place operators, through views or not, as operators that give a new tensor.

In: a captured graph whose nodes know the memory of their values. Out: a graph in which every value is what it is from the
start; only buffers are written to, as the model itself does. Nothing could otherwise be put between a feature map and its
reader without asking who writes to it meanwhile.

A write replaces the tensor that owns the memory. All that reads this memory afterwards, under whatever name, reads the new
tensor, through the same views. The caller's own tensors are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from layermerge.errors import TraceError
from layermerge.tracing.aliases import View, arguments_by_name, as_data, looking_at, views_back, written_arguments
from layermerge.tracing.nested import is_frozen
from layermerge.tracing.operators import operator_name


def in_place_write(
    base: Tensor, views: Sequence[View], write: Callable[..., Any], target: str, arguments: Mapping[str, Any]
) -> Tensor:
    """A copy of `base` after an in-place operator wrote to a view of it; `target` is the argument that it writes to."""
    copied = base.clone(memory_format=torch.contiguous_format)  # views of the capture ask for these strides
    part: Any = copied
    for view in views:
        if isinstance(view, int):
            part = part[view]
        else:
            look, args, kwargs = view
            part = look(part, *args, **kwargs)
    write(**{target: part, **arguments})
    return copied


def make_functional(graph: fx.Graph, parameters: Collection[str]) -> None:
    """Replaces all in-place operators; buffers get the last value that was written to them, parameters are never written to."""
    buffers: dict[fx.Node, fx.Node] = {}  # by the node that holds the value written last
    for node in list(graph.nodes):
        written = written_arguments(node)
        if not written:
            continue
        owners = [views_back(part)[0] if isinstance(part, fx.Node) else None for part in written]
        for owner in owners:
            if owner is not None and owner.op == "get_attr" and owner.target in parameters:
                raise TraceError(
                    f"forward() writes to parameter '{owner.target}' with {operator_name(node.target)}, so its gradients are "
                    "not those of what it computes; compute a new tensor from it instead"
                )
        (owner, *others) = owners
        if torch.Tag.inplace_view in node.target.tags:
            node.target = _twin(node)  # another shape for the same memory: a view like any other
        elif owner is not None and not others:
            is_state = owner.op == "get_attr" or owner in buffers
            latest = _Write(graph, node, written[0], is_state=is_state).replace()
            if is_state:
                buffers[latest] = buffers.pop(owner, owner)
        elif any(one is None or one.op != "get_attr" for one in owners):
            raise TraceError(
                f"{operator_name(node.target)} writes to several tensors at once, which cannot be traced; "
                "write to one at a time"
            )
    for latest, buffer in buffers.items():
        _write_back(graph, latest, buffer)
    graph.eliminate_dead_code()


def _write_back(graph: fx.Graph, value: fx.Node, buffer: fx.Node) -> None:
    with graph.inserting_after(value):
        detached = graph.call_function(torch.ops.aten.detach.default, (value,))
    with graph.inserting_after(detached):
        copied = graph.call_function(torch.ops.aten.copy_.default, (buffer, detached))
    detached.meta, copied.meta = dict(value.meta), dict(value.meta)


class _Write:
    """One in-place operator, what it writes to, and who would see it."""

    def __init__(self, graph: fx.Graph, node: fx.Node, target: fx.Node, *, is_state: bool) -> None:
        self.graph, self.node, self.target, self.is_state = graph, node, target, is_state
        self.base, self.views = self._owner()
        # Under no_grad a tensor from outside keeps its gradients as if it had not been written to.
        self.unseen = is_frozen(node) and not is_frozen(self.base)
        self.copies: dict[fx.Node, fx.Node] = {}

    def _owner(self) -> tuple[fx.Node, list[fx.Node]]:
        """The tensor to replace, and the views from it to what is written. A detached tensor has gradients of its own, so it
        is that one, unless what it was detached from is read again."""
        base, views = views_back(self.target)
        for place in reversed(range(len(views)) if not self.is_state else ()):
            if operator_name(views[place].target) == "detach":
                apart = looking_at(base) - looking_at(views[place])
                if not any(self._is_later(user) for alias in apart for user in alias.users):
                    return views[place], views[place + 1 :]
        return base, views

    def _is_later(self, user: fx.Node) -> bool:
        return self.node < user

    def replace(self) -> fx.Node:
        """Puts an operator that writes to nothing in the place of this one; returns what holds the base's value from now on."""
        if self._writes_itself():
            self.node.replace_all_uses_with(self.target)
            self.graph.erase_node(self.node)
            return self.base
        aliases = [alias for alias in sorted(looking_at(self.base)) if alias < self.node]
        is_read = self.is_state or any(self._is_later(user) for alias in aliases for user in alias.users)
        twin = None if self.unseen else _twin(self.node)
        if twin is not None and not (is_read and self.views):
            self.node.target = twin
            if self.views:
                return self.base  # nothing looks at it again
            written = self.copies[self.base] = self.node
        else:
            written = self.copies[self.base] = self._insert_write()
            self.node.replace_all_uses_with(self._again(self.target))
            self.graph.erase_node(self.node)
        for alias in aliases:
            for reader in [user for user in alias.users if written < user and user not in self.copies.values()]:
                reader.replace_input_with(alias, self._again(alias))
        return written

    def _writes_itself(self) -> bool:
        """`y[:, :2] += z` adds in place and then copies the result to where it is."""
        if operator_name(self.node.target) != "copy" or not isinstance(source := self.node.args[1], fx.Node):
            return False
        base, views = views_back(source)
        mine = views_back(self.target)
        return base is mine[0] and list(map(as_data, views)) == list(map(as_data, mine[1]))

    def _insert_write(self) -> fx.Node:
        views = [as_data(view) for view in self.views]
        if self.unseen:
            views.insert(0, (torch.ops.aten.detach.default, (), {}))
        given = arguments_by_name(self.node)
        slots = self.node.target._schema.arguments  # type: ignore[union-attr]
        slot = next(slot.name for slot in slots if slot.is_write)
        others = {name: value for name, value in given.items() if name != slot}
        with self.graph.inserting_before(self.node):
            arguments: Any = (self.base, views, self.node.target, slot, others)
            written = self.graph.call_function(in_place_write, arguments)
        written.meta = {**self.base.meta, "nn_module_stack": self.node.meta.get("nn_module_stack")}
        return written

    def _again(self, alias: fx.Node) -> fx.Node:
        """The view that `alias` is, of the new tensor."""
        if alias not in self.copies:
            source = self._again(alias.args[0])  # type: ignore[arg-type]
            with self.graph.inserting_after(source):
                again = self.graph.node_copy(alias, lambda arg: source if arg is alias.args[0] else arg)
            self.copies[alias] = again
        return self.copies[alias]


def _twin(node: fx.Node) -> torch._ops.OpOverload | None:
    """The operator that computes the same and writes to nothing; None where torch has none of the same signature."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    namespace, name = target._schema.name.split("::")
    if not name.endswith("_") or name.endswith("__"):
        return None
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    found = getattr(packet, target._overloadname, None) if packet is not None else None
    return found if found is not None and not found._schema.is_mutable else None
