"""Places: where a compressed network differs from its original, and what the original computes there.

In: the graphs of both. Out: a `Place` for every conv region and linear layer whose input or own layers have changed, in the
order in which they run. Regions that compute what they always did are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import fx, nn

from layermerge.calibration.walk import Walk, region_order
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.surgery.sites import Site, find_site
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import main_input

Counterparts = dict[fx.Node, fx.Node]
"""For nodes of a compressed network that compute what the original computes: the original's node."""


@dataclass(frozen=True)
class Place:
    """A conv region, or a linear layer, to be fitted."""

    start: fx.Node
    """The first of its nodes: all before it is final when it is fitted."""
    source: fx.Node
    shifts: dict[str, fx.Node]
    target: fx.Node
    """Of the original: what is to be computed, behind the residual add where that is `joins`."""
    region: int | None
    """None for a linear layer."""
    joins: fx.Node | None = None
    """What a residual add behind it adds, where that is known before it."""
    activation: str | None = None
    """The module that is applied to the sum, or to the output."""
    added: bool = False
    """Whether the original has no activation there: `rewrite` put one that its range had lost."""
    scalable: bool = False
    """Whether everything behind an added activation is fitted to whatever scale it gets."""
    norm: str | None = None
    """The statistical norm that moved behind the region."""


def unchanged(student: RewrittenModule, teacher: LiftedModule) -> Counterparts:
    """What computes the same in both networks, by structure; weights are taken to be the same."""
    theirs = {node.name: node for node in teacher.graph.nodes}
    regions = student.surgery.regions
    same: Counterparts = {}
    for node in region_order(student.graph):
        number = node.meta.get("region")
        if number is not None:
            site = find_site(student.graph, number)
            if node is site.end and not regions[number].changes:
                first, last = _range_ends(student, number)
                read = {main_input(theirs[first]): site.source}
                read |= {_joining(theirs[name]): shift for name, shift in site.shifts.items()}
                if all(same.get(mine) is original for original, mine in read.items()):
                    same[node] = theirs[last]
            continue
        twin = theirs.get(node.name)
        if twin is None or (twin.op, twin.target) != (node.op, node.target) or node.op == "output":
            continue
        mine = [same.get(source) for source in node.all_input_nodes]
        if None not in mine and mine == twin.all_input_nodes:
            same[node] = twin
    return same


def _range_ends(student: RewrittenModule, number: int) -> tuple[str, str]:
    """The nodes that read the range's input and give its output in the original."""
    surgery = student.surgery
    first, *others = surgery.structure.nodes_of(surgery.regions[number].steps)
    return first, others[-1] if others else first


def _joining(shift: fx.Node) -> fx.Node:
    return next(arg for arg in shift.all_input_nodes if arg is not main_input(shift))


def find_places(student: RewrittenModule, teacher: LiftedModule, walk: Walk) -> Iterator[Place]:
    """All that is to be fitted, in order. Each is looked up in the graph as it is by then: those before it may be condensed."""
    same = unchanged(student, teacher)
    theirs = {node.name: node for node in teacher.graph.nodes}
    seen: set[int] = set()
    for node in walk.order:
        number = node.meta.get("region")
        if number is not None and number not in seen:
            seen.add(number)
            site = find_site(student.graph, number)
            if site.end not in same:
                yield _region(student, theirs, walk, number, site)
        elif number is None and _is_linear(student, node) and node not in same and node.name in theirs:
            source = node.args[0]
            assert isinstance(source, fx.Node)
            yield Place(node, source, {}, theirs[node.name], None)


def _is_linear(student: RewrittenModule, node: fx.Node) -> bool:
    linear = student.get_submodule(str(node.target)) if node.op == "call_module" else None
    if not isinstance(linear, nn.Linear) or linear.bias is None:
        return False
    calls = [one for one in student.graph.nodes if one.op == "call_module" and one.target == node.target]
    return len(calls) == 1 and len(node.args) == 1


def _region(student: RewrittenModule, theirs: dict[str, fx.Node], walk: Walk, number: int, site: Site) -> Place:
    first = next(node for node in walk.order if node.meta.get("region") == number)
    place = Place(first, site.source, site.shifts, theirs[_range_ends(student, number)[1]], number)
    reader, end = _only_reader(site.end), site.end
    if reader is None:
        return place
    if reader.meta["role"] is Role.STAT_NORM and student.surgery.regions[number].moved:
        return replace(place, norm=str(reader.target))
    if reader.meta["role"] is Role.ADD and reader.name in theirs and "region" not in reader.meta:
        other = next((arg for arg in reader.all_input_nodes if arg is not end), None)
        if other is not None and walk.index[other] < walk.index[first]:
            end, place = reader, replace(place, joins=other, target=theirs[reader.name])
    behind = _only_reader(end)
    if behind is None or behind.op != "call_module" or behind.meta["role"] is not Role.ACTIVATION:
        return place
    twin = theirs.get(behind.name)
    if twin is not None and place.target in twin.all_input_nodes:
        # A stand-in maps what the original's activation gives to the nearest that it can give itself.
        target = twin if student.surgery.regions[number].replaced else place.target
        return replace(place, activation=str(behind.target), target=target)
    convolved = ["region" in reader.meta for reader in behind.users]
    if not all(found or reader.meta["role"] is Role.ADD for reader, found in zip(behind.users, convolved, strict=True)):
        return place
    return replace(place, activation=str(behind.target), added=True, scalable=all(convolved))


def _only_reader(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
