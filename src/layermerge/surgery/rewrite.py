"""Rewrite: the network with chosen candidates applied, still trainable and not yet merged.

In: a `Trace` and candidates. Out: a `RewrittenModule` in which each candidate's range computes, in many layers, exactly
what one conv can compute: its activations gone, its removed convs gone with their norms, all its padding at its input.
Guarantees: parameters that survive keep their names; layers that no candidate covers stay as they are; the trace is not
changed. Scoring one candidate and applying the final solution are this same function. The result is checked (see `wiring`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.nn import functional as F

from layermerge.arguments import checked
from layermerge.errors import PlanError, SurgeryError
from layermerge.planning.candidate import Candidate
from layermerge.planning.reading import Reading, read, untouched
from layermerge.planning.remains import Remains
from layermerge.surgery.edits import (
    AddActivation,
    Crop,
    Edit,
    Join,
    LeaveShortcut,
    MoveNorm,
    Pad,
    Remove,
    ReplaceActivation,
    ReplaceGate,
    StopPadding,
    edits,
)
from layermerge.surgery.mean_gates import fold_gates, gate_values, set_means
from layermerge.surgery.wiring import require_sound, require_unchanged
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule, clone_as, drop_unused
from layermerge.tracing.operators import Role, build_stand_in
from layermerge.tracing.structure import Gate, Structure, main_input
from layermerge.tracing.trace import Trace

FitForm = Literal["kernel", "mixing", "affine"]
"""What calibration fitted of a range: its whole kernel, a 1x1 after it, or a scale and a shift per channel."""


@dataclass(frozen=True)
class FittedRange:
    """Layers start..end-1, whose one conv has been fitted and is no longer the product of theirs."""

    start: int
    end: int
    form: FitForm


@dataclass(frozen=True)
class Origin:
    """The network that another was rewritten from, where this process has it; sent to another process, it is forgotten."""

    module: LiftedModule | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Origin, ()


@dataclass(frozen=True)
class Surgery:
    """What was done to a network, enough to merge it; its own tensors are not part of it."""

    structure: Structure
    candidates: tuple[Candidate, ...]
    regions: tuple[Reading, ...]
    """What merges into one conv each; the nodes of a region carry its number under `meta["region"]`."""
    kept: frozenset[int]
    inputs: Inputs
    added_activations: bool
    origin: Origin = Origin()
    fits: tuple[FittedRange, ...] = ()
    """What calibration changed; such a region is one conv, with a batch norm where the network has any."""

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Those that were replaced by their mean."""
        found = (self.structure.gate(one.start, one.end) for one in self.candidates if one.replaced == "gate")
        return tuple(gate for gate in found if gate is not None)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Surgery:
        return self


class RewrittenModule(LiftedModule):
    """A network after `rewrite`: trains, copies and moves like any module; `surgery` says what was done to it."""

    surgery: Surgery


@checked(SurgeryError)
def rewrite(trace: Trace, candidates: Iterable[Candidate], *, add_activation: bool = True) -> RewrittenModule:
    """Applies candidates to a copy of the traced network, ready for fine-tuning.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> traced = trace(net, torch.randn(2, 3, 16, 16))
    >>> sorted(rewrite(traced, [plan(traced)["0-2:3x3g1"]]).state_dict())
    ['0.bias', '0.weight']

    `add_activation` puts the last lost activation after a merged range where two convs would otherwise meet without one,
    as in networks with linear bottlenecks.
    """
    chosen = tuple(sorted(candidates, key=lambda candidate: candidate.start))
    structure = trace.structure
    _require_fit(structure, chosen)
    covered = {index for candidate in chosen for index in range(candidate.start, candidate.end)}
    rest = [untouched(structure, index) for index in range(len(structure.layers)) if index not in covered]
    readings = fold_gates(structure, [_read(structure, candidate) for candidate in (*chosen, *rest)])
    remains = Remains.without(structure, {index for candidate in chosen for index in candidate.removed})
    module = clone_as(RewrittenModule, trace.module)
    surgeon = _Surgeon(module)
    for edit in edits(remains, readings, add_activation=add_activation):
        surgeon.apply(edit)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    regions = _living(module.graph, [reading for reading in readings if reading.candidate.kept])
    origin = Origin(trace.module)
    module.surgery = Surgery(structure, chosen, regions, remains.kept, trace.inputs, add_activation, origin)
    gates = module.surgery.gates
    require_sound(module, trace.module, regions, {gate.product for gate in gates})
    drop_unused(module)
    module.recompile()
    if gates:
        values = gate_values(trace.module, gates, trace.inputs)
        set_means(module, structure, dict(zip(gates, values, strict=True)))
    if any(candidate.free for candidate in chosen) and not any(candidate.changes for candidate in chosen):
        require_unchanged(module, trace.module, trace.inputs)
    return module


def _living(graph: fx.Graph, regions: list[Reading]) -> tuple[Reading, ...]:
    """The regions that anything still reads, renumbered: a dropped branch may have been the only reader of another."""
    members = [node for node in graph.nodes if "region" in node.meta]
    numbers = sorted({node.meta["region"] for node in members})
    for node in members:
        node.meta["region"] = numbers.index(node.meta["region"])
    return tuple(regions[number] for number in numbers)


def _require_fit(structure: Structure, candidates: tuple[Candidate, ...]) -> None:
    names = tuple(layer.name for layer in structure.layers)
    for candidate in candidates:
        if not 0 <= candidate.start < candidate.end <= len(names):
            raise SurgeryError(
                f"candidate {candidate.key} lies outside the network's {len(names)} layers; it belongs to another model"
            )
        if names[candidate.start : candidate.end] != candidate.layers:
            raise SurgeryError(
                f"candidate {candidate.key} covers '{candidate.layers[0]}'.. but this network has "
                f"'{names[candidate.start]}'.. there; it belongs to another model"
            )
        if not set(candidate.kept) <= set(candidate.layers):
            raise SurgeryError(f"candidate {candidate.key} keeps layers that it does not cover: {candidate.kept}")
    for before, after in pairwise(candidates):
        if after.start < before.end:
            raise SurgeryError(
                f"candidates {before.key} and {after.key} overlap at '{names[after.start]}'; choose one of them"
            )


def _read(structure: Structure, candidate: Candidate) -> Reading:
    try:
        reading = read(structure, candidate)
    except PlanError as error:
        raise SurgeryError(f"candidate {candidate.key} is not legal here: {error}") from error
    if (reading.spec if candidate.kept else None) != candidate.spec:
        raise SurgeryError(
            f"candidate {candidate.key} says {candidate.spec}, but its layers merge to {reading.spec}; plan again"
        )
    return reading


class _Surgeon:
    """Edits the graph of a copy in place, so that what survives keeps its name."""

    def __init__(self, module: LiftedModule) -> None:
        self.module = module
        self.graph = module.graph
        self.nodes: dict[str, fx.Node] = {node.name: node for node in self.graph.nodes}

    def apply(self, edit: Edit) -> None:
        match edit:
            case LeaveShortcut(add, body):
                self._leave_the_shortcut(self.nodes[add], [self.nodes[name] for name in body])
            case Pad(readers, (top, bottom, left, right), region):
                source = self._shared_input(readers)
                with self.graph.inserting_after(source):
                    padded = self.graph.call_function(F.pad, (source, [left, right, top, bottom]))
                self._read_instead(readers, source, padded, {"operator": "pad", "region": region})
            case Crop(readers, (top, bottom, left, right), region, beside):
                source = self._shared_input(readers, beside)
                window: Any = (Ellipsis, slice(top, -bottom or None), slice(left, -right or None))
                with self.graph.inserting_after(source):
                    cropped = self.graph.call_function(operator.getitem, (source, window))
                self._read_instead(readers, source, cropped, {"operator": "crop", "region": region})
            case StopPadding(layer):
                conv = self.module.get_submodule(layer)
                assert isinstance(conv, nn.Conv2d)
                conv.padding = (0, 0)
            case Remove(name):
                node = self.nodes[name]
                node.replace_all_uses_with(main_input(node))
                self.graph.erase_node(node)
            case MoveNorm(name, behind):
                self._move_norm(self.nodes[name], self.nodes[behind])
            case Join(names, region):
                for name in names:
                    self.nodes[name].meta["region"] = region
            case AddActivation(module, behind):
                self._add_activation(module, self.nodes[behind])
            case ReplaceActivation(module, stand_in):
                self.module.set_submodule(module, build_stand_in(stand_in).train(self.module.training))
            case ReplaceGate(gate, parameter):
                self._replace_gate(gate, parameter)

    def _leave_the_shortcut(self, add: fx.Node, body: list[fx.Node]) -> None:
        (shortcut,) = [arg for arg in add.args if isinstance(arg, fx.Node) and arg not in body]
        add.replace_all_uses_with(shortcut)
        for node in (add, *reversed(body)):
            self.graph.erase_node(node)

    def _shared_input(self, readers: tuple[str, ...], beside: str | None = None) -> fx.Node:
        """The feature map that all of them read; an add reads two, of which it is the one not `beside`."""
        if beside is not None:
            inputs = [arg for arg in self.nodes[readers[0]].args if isinstance(arg, fx.Node)]
            return next(arg for arg in inputs if arg is not self.nodes[beside])
        nodes = [self.nodes[name] for name in readers]
        return next(main_input(node) for node in nodes if node.meta["role"] is not Role.ADD)

    def _read_instead(self, readers: tuple[str, ...], source: fx.Node, new: fx.Node, notes: dict[str, Any]) -> None:
        new.meta = {**source.meta, "role": Role.PAD, **notes}
        for name in readers:
            self.nodes[name].replace_input_with(source, new)

    def _move_norm(self, norm: fx.Node, behind: fx.Node) -> None:
        source = main_input(norm)
        norm.replace_all_uses_with(source)
        readers = [user for user in behind.users if user is not norm]
        behind.append(norm)
        norm.replace_input_with(source, behind)
        for reader in readers:
            reader.replace_input_with(behind, norm)

    def _replace_gate(self, gate: Gate, parameter: str) -> None:
        product, value = self.nodes[gate.product], self.nodes[gate.value]
        owner, _, name = parameter.rpartition(".")
        values = torch.ones(1, gate.shape[0], 1, 1, device=self.module.device, dtype=self.module.dtype)
        self.module.get_submodule(owner).register_parameter(name, nn.Parameter(values))
        with self.graph.inserting_before(product):
            mean = self.graph.get_attr(parameter)
        notes = {"role": Role.BARRIER, "operator": "get_attr", "constant": True, "shape": tuple(values.shape)}
        mean.meta = {"owner": owner, **notes}
        product.replace_input_with(value, mean)
        product.meta["role"] = Role.NORM

    def _add_activation(self, module: str, behind: fx.Node) -> None:
        with self.graph.inserting_after(behind):
            activation = self.graph.call_module(module, (behind,))
        activation.meta = {**behind.meta, "role": Role.ACTIVATION, "operator": "activation"}
        activation.meta.pop("region", None)
        behind.replace_all_uses_with(activation, lambda user: user is not activation)
