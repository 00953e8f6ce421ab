"""Wiring: a rewritten graph is what its candidates say. Checked immediately, each time, without computing a tensor.

Every region is one piece with one input and one output, pads at its input alone, and yields a map of the traced size.
Whatever stands outside regions reads maps of the shapes that it was traced with. Nothing is written to in place between a
region's first node and its last. What the rewritten weights compute is checked by `merge`, and here where the candidates
change nothing: then the network must compute what it computed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from layermerge.errors import SurgeryError
from layermerge.planning.reading import Reading
from layermerge.surgery.running import run
from layermerge.surgery.sites import Site, find_site
from layermerge.tracing.finder import conv_spec
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.operators import Role, Shape
from layermerge.tracing.outputs import relative_difference
from layermerge.tracing.structure import main_input

_EXACT = 1e-10
_SEED = 20240721


def require_sound(
    module: LiftedModule, traced: LiftedModule, regions: Sequence[Reading], replaced: Collection[str] = ()
) -> None:
    """Refuses a graph whose regions are not single convs in the place that they had; `replaced` read other values now."""
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    writes = [(order[node], written) for node in order for written in _written(node)]
    changed: dict[fx.Node, Reading] = {}
    for number, region in enumerate(regions):
        site = find_site(module.graph, number)
        _require_one_piece(site, region)
        if region.candidate.keeps_layer:
            continue
        changed.update(dict.fromkeys(site.members, region))
        first, last = order[site.members[0]], order[site.end]
        touched = {site.source, *site.members}
        if any(first < place < last and written in touched for place, written in writes):
            raise _broken(region, "a map that it reads or computes is written to in place while it is computed")
    _require_traced_shapes(module, traced, changed, replaced)


def require_unchanged(module: LiftedModule, traced: LiftedModule, inputs: Inputs) -> None:
    """Refuses a graph of candidates that lose nothing where it computes something else, in float64 and eval mode."""
    outputs = []
    for network in (traced, module):
        with evaluating(network), torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            outputs.append(run(network, inputs, {}, wide=True))
    for (key, expected), actual in zip(outputs[0].items(), outputs[1].values(), strict=True):
        if not (difference := relative_difference(expected, actual)) <= _EXACT:
            raise SurgeryError(
                f"candidates that should lose nothing change {key} by {difference:.1e}; report it, and plan with "
                "layermerge.Rules(free_fusions=False)"
            )


def _broken(region: Reading, what: str) -> SurgeryError:
    return SurgeryError(f"candidate {region.candidate.key} cannot be applied here: {what}; leave it out, and report it")


def _require_one_piece(site: Site, region: Reading) -> None:
    inside = set(site.members)
    for node in site.members[:-1]:
        if not node.users or not inside.issuperset(node.users):
            raise _broken(region, f"'{node.name}' inside it is read from outside, or not at all")


def _require_traced_shapes(
    module: LiftedModule, traced: LiftedModule, changed: dict[fx.Node, Reading], replaced: Collection[str]
) -> None:
    """Follows shapes through what has changed, as the nodes are now: whatever has not must read what it was traced with."""
    before = {node.name: node for node in traced.graph.nodes}
    moved = {region.moved for region in changed.values()}
    shapes: dict[fx.Node, Shape | None] = {}
    for node in module.graph.nodes:
        given = [shapes[one] for one in _read(node)]
        if region := changed.get(node):
            if node.meta["role"] is Role.ADD and len(set(given)) > 1:
                raise _broken(region, f"maps of different shapes meet in '{node.name}'")
            shapes[node] = _shape_behind(module, node, shapes[main_input(node)], region)
        elif node.op == "get_attr":
            shapes[node] = node.meta.get("shape")
        elif node.name in moved or node.name in replaced or node.name not in before:
            shapes[node] = shapes[main_input(node)]
        else:
            shapes[node] = node.meta.get("shape")
            wanted = [one.meta.get("shape") for one in _read(before[node.name])]
            if given != wanted:
                raise SurgeryError(
                    f"the candidates cannot be applied together: '{node.name}' would read maps of shapes {given} instead "
                    f"of {wanted}; choose others, and report it"
                )


def _read(node: fx.Node) -> list[fx.Node]:
    """What a call reads, argument by argument."""
    leaves = pytree.tree_leaves((node.args, dict(node.kwargs)))
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _shape_behind(module: LiftedModule, node: fx.Node, shape: Shape | None, region: Reading) -> Shape | None:
    """What the node makes of a map of this shape; where sizes are free, what it made of it before."""
    assert shape is not None
    batch, channels, height, width = shape
    if height is None or width is None:
        return node.meta["shape"]  # type: ignore[no-any-return]
    how: Any = node.args[-1]
    if node.meta["operator"] == "pad":
        left, right, top, bottom = how
        return batch, channels, height + top + bottom, width + left + right
    if node.meta["operator"] == "crop":
        _, rows, columns = how
        return batch, channels, len(range(height)[rows]), len(range(width)[columns])
    if node.meta["role"] is not Role.CONV:
        return shape
    conv = module.get_submodule(str(node.target))
    assert isinstance(conv, nn.Conv2d)
    spec = conv_spec(conv)
    if any(spec.padding):
        raise _broken(region, f"'{node.target}' still pads a map inside it")
    return batch, spec.out_channels, *spec.output_size(height, width)


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The maps that a call writes to in place, found through views of them."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    for slot, value in zip(node.target._schema.arguments, node.args, strict=False):
        if slot.alias_info is not None and slot.alias_info.is_write:
            while isinstance(value, fx.Node):
                yield value
                value = _viewed(value)


def _viewed(node: fx.Node) -> fx.Node | None:
    """What a view is of; None where the node has memory of its own."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    pairs = zip(node.target._schema.arguments, node.args, strict=False)
    return next((arg for slot, arg in pairs if slot.alias_info is not None and isinstance(arg, fx.Node)), None)
