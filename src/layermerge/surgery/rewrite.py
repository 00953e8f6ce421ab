"""Rewrite: the network with chosen candidates applied, still trainable and not yet merged.

In: a `Trace` and candidates. Out: a `RewrittenModule` in which each candidate's range computes, in many layers, exactly
what one conv can compute: its activations gone, its removed convs gone with their norms, all its padding at its input.
Guarantees: parameters that survive keep their names; layers that no candidate covers stay as they are; the trace is not
changed. Scoring one candidate and applying the final solution are this same function.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx, nn
from torch.nn import functional as F

from layermerge.conv import ConvSpec, Sides
from layermerge.errors import PlanError, SurgeryError
from layermerge.planning.geometry import Reading, block_spec, branch_spec, is_emptied, read_range
from layermerge.planning.plan import Candidate
from layermerge.surgery.activations import add_activations
from layermerge.tracing.capture import Inputs
from layermerge.tracing.lift import LiftedModule, clone_as, drop_unused
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import Block, BlockStep, ConvStep, DataPath, OpStep, Step, Structure, main_input
from layermerge.tracing.trace import Trace


@dataclass(frozen=True)
class Region:
    """A candidate in the rewritten graph: path steps that compute one conv, foldable operators behind them included.

    Its nodes carry the region's number under `meta["region"]`.
    """

    candidate: Candidate
    steps: DataPath
    lost: str | None
    """The last activation that the range lost, by module name; None where it lost none."""


@dataclass(frozen=True)
class Surgery:
    """What was done to a network, enough to merge it; tensors are not part of it."""

    structure: Structure
    candidates: tuple[Candidate, ...]
    regions: tuple[Region, ...]
    kept: frozenset[int]
    inputs: Inputs
    added_activations: bool

    def __deepcopy__(self, _memo: dict[int, Any]) -> Surgery:
        return self


class RewrittenModule(LiftedModule):
    """A network after `rewrite`: trains, copies and moves like any module; `surgery` says what was done to it."""

    surgery: Surgery


def rewrite(trace: Trace, candidates: Iterable[Candidate], *, add_activation: bool = True) -> RewrittenModule:
    """Applies candidates to a copy of the traced network, ready for fine-tuning.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> traced = trace(net, torch.randn(2, 3, 16, 16))
    >>> sorted(rewrite(traced, [plan(traced)["0-2:3x3g1"]]).state_dict())
    ['0.bias', '0.weight']

    `add_activation` puts the last lost activation behind a merged range where otherwise two convs would meet without one,
    as in networks with linear bottlenecks.
    """
    chosen = tuple(sorted(candidates, key=lambda candidate: candidate.start))
    structure = trace.structure
    _require_fit(structure, chosen)
    module = clone_as(RewrittenModule, trace.module)
    surgeon = _Surgeon(module, structure, chosen)
    surgeon.operate()
    regions = tuple(surgeon.regions)
    module.surgery = Surgery(structure, chosen, regions, frozenset(surgeon.kept), trace.inputs, add_activation)
    if add_activation:
        add_activations(module.graph, [(surgeon.ends[region], region.lost) for region in regions if region.lost])
    module.graph.eliminate_dead_code()
    module.graph.lint()
    drop_unused(module)
    module.recompile()
    return module


def _require_fit(structure: Structure, candidates: tuple[Candidate, ...]) -> None:
    names = tuple(layer.name for layer in structure.layers)
    for candidate in candidates:
        if not 0 <= candidate.start < candidate.end <= len(names):
            raise SurgeryError(
                f"candidate {candidate.key} lies outside the network's {len(names)} layers; it is of another model"
            )
        if names[candidate.start : candidate.end] != candidate.layers:
            raise SurgeryError(
                f"candidate {candidate.key} covers '{candidate.layers[0]}'.. but this network has "
                f"'{names[candidate.start]}'.. there; it is of another model"
            )
        if not set(candidate.kept) <= set(candidate.layers):
            raise SurgeryError(f"candidate {candidate.key} keeps layers that it does not cover: {candidate.kept}")
    for before, after in pairwise(candidates):
        if after.start < before.end:
            raise SurgeryError(
                f"candidates {before.key} and {after.key} overlap at '{names[after.start]}'; choose one of them"
            )


class _Surgeon:
    """Edits the graph of a copy in place, so that what survives keeps its name."""

    def __init__(self, module: LiftedModule, structure: Structure, candidates: tuple[Candidate, ...]) -> None:
        self.module = module
        self.graph = module.graph
        self.structure = structure
        self.candidates = candidates
        self.nodes = {node.name: node for node in self.graph.nodes}
        self.number = {layer.name: index for index, layer in enumerate(structure.layers)}
        covered = {index for candidate in candidates for index in range(candidate.start, candidate.end)}
        self.kept = set(range(len(structure.layers))) - covered
        self.kept |= {self.number[name] for candidate in candidates for name in candidate.kept}
        self.regions: list[Region] = []
        self.ends: dict[Region, fx.Node] = {}

    def operate(self) -> None:
        candidates = [*self.candidates, *self._untouched_rest()]
        readings = [self._read(candidate) for candidate in candidates]
        for block in self.structure.blocks:
            if block.add in self.nodes and is_emptied(self.structure, block, self.kept):
                self._leave_the_shortcut(block)
        for candidate, (reading, spec) in zip(candidates, readings, strict=True):
            self._apply(candidate, reading, spec)

    def _untouched_rest(self) -> list[Candidate]:
        """Layers that no candidate covers stay as they are, each a range of its own."""
        covered = {index for candidate in self.candidates for index in range(candidate.start, candidate.end)}
        rest = [index for index in range(len(self.structure.layers)) if index not in covered]
        specs = {index: read_range(self.structure, index, index + 1, {index})[1] for index in rest}
        names = {index: (self.structure.layers[index].name,) for index in rest}
        return [Candidate(index, index + 1, names[index], names[index], specs[index]) for index in rest]

    def _read(self, candidate: Candidate) -> tuple[Reading, ConvSpec]:
        kept = {self.number[name] for name in candidate.kept}
        try:
            reading, spec = read_range(self.structure, candidate.start, candidate.end, kept)
        except PlanError as error:
            raise SurgeryError(f"candidate {candidate.key} is not legal here: {error}") from error
        if (spec if kept else None) != candidate.spec:
            raise SurgeryError(
                f"candidate {candidate.key} says {candidate.spec}, but its layers merge to {spec}; plan again"
            )
        return reading, spec

    # -- one candidate

    def _apply(self, candidate: Candidate, reading: Reading, spec: ConvSpec) -> None:
        steps = self._with_foldable_tail(reading)
        number = len(self.regions)
        moved: fx.Node | None = None
        lost = None
        if not candidate.untouched:
            if candidate.kept:
                self._move_padding(reading.steps, spec, number)
            lost = self._strip(reading.steps)
            self._strip_norms_behind(reading)
            moved = self._take_last_norm(reading.steps, stays=not candidate.kept)
        if not candidate.kept:
            return
        members = [self.nodes[name] for name in self._names(steps) if name in self.nodes]
        members = [member for member in members if member is not moved]
        for member in members:
            member.meta["region"] = number
        region = Region(candidate, steps, lost if lost and self._fits(lost, spec.out_channels) else None)
        self.regions.append(region)
        self.ends[region] = self._put_behind(members[-1], moved) if moved is not None else members[-1]

    def _fits(self, activation: str, channels: int) -> bool:
        """Whether an activation can stand behind so many channels; a PReLU has weights that may not."""
        return all(weight.numel() in (1, channels) for weight in self.module.get_submodule(activation).parameters())

    def _with_foldable_tail(self, reading: Reading) -> DataPath:
        """The range and the norms and scalars right behind it, which fold into its conv."""
        tail: list[Step] = []
        for step in reading.behind:
            if not isinstance(step, OpStep) or step.role not in (Role.NORM, Role.SCALE, Role.DROPOUT):
                break
            tail.append(step)
        while tail and isinstance(tail[-1], OpStep) and tail[-1].role is Role.DROPOUT:
            tail.pop()
        return (*reading.steps, *tail)

    def _names(self, steps: DataPath) -> list[str]:
        """All node names of the steps, in execution order."""
        names: list[str] = []
        for step in steps:
            if isinstance(step, ConvStep):
                layer = self.structure.layers[step.layer]
                names += [*layer.pads, layer.node]
            elif isinstance(step, OpStep):
                names.append(step.node)
            else:
                block = self.structure.blocks[step.block]
                names += [*self._names(block.bypass), *self._names(block.body), block.add]
        return names

    # -- padding and crops

    def _entries(self, steps: DataPath) -> list[fx.Node]:
        """The nodes that read the input of these steps, as they stand before anything is stripped."""
        if not steps:
            return []
        step = steps[0]
        if isinstance(step, BlockStep):
            block = self.structure.blocks[step.block]
            branches = [self._entries(branch) or [self.nodes[block.add]] for branch in self._branches(block)]
            return [node for branch in branches for node in branch]
        if isinstance(step, OpStep):
            return [self.nodes[step.node]]
        layer = self.structure.layers[step.layer]
        return [self.nodes[(*layer.pads, layer.node)[0]]]

    def _branches(self, block: Block) -> list[DataPath]:
        """What is left of a block: both branches, or the shortcut alone."""
        return [block.bypass] if block.add not in self.nodes else [block.body, block.bypass]

    def _first_steps(self, steps: DataPath) -> DataPath:
        """The steps from the first one that still computes: an emptied identity block is no step."""
        for position, step in enumerate(steps):
            if isinstance(step, BlockStep):
                block = self.structure.blocks[step.block]
                if block.add not in self.nodes:
                    rest = self._first_steps(block.bypass)
                    if not rest:
                        continue
                    return (*rest, *steps[position + 1 :])
            return steps[position:]
        return ()

    def _move_padding(self, steps: DataPath, spec: ConvSpec, number: int) -> None:
        """Pads once at the range's input; the convs inside pad no more; shortcuts inside are cropped to match."""
        entry_steps = self._first_steps(steps)
        if not entry_steps:
            return
        self._insert_before(self._entries(entry_steps), spec.padding, number, crop=False)
        self._crop_branches(steps, number)
        for index in self.structure.layers_of(steps):
            name = self.structure.layers[index].name
            if index in self.kept:
                conv = self.module.get_submodule(name)
                assert isinstance(conv, nn.Conv2d)
                conv.padding = (0, 0)

    def _crop_branches(self, steps: DataPath, number: int) -> None:
        for step in steps:
            if not isinstance(step, BlockStep):
                continue
            block = self.structure.blocks[step.block]
            whole = block_spec(self.structure, block, self.kept).padding
            for branch in self._branches(block):
                own = branch_spec(self.structure, block, branch, self.kept).padding
                top, bottom, left, right = (total - part for total, part in zip(whole, own, strict=True))
                entry = self._first_steps(branch)
                readers = self._entries(entry) if entry else [self.nodes[block.add]] if block.add in self.nodes else []
                if readers:
                    self._insert_before(readers, (top, bottom, left, right), number, crop=True, fork=block)
                self._crop_branches(branch, number)

    def _insert_before(
        self, readers: list[fx.Node], sides: Sides, number: int, *, crop: bool, fork: Block | None = None
    ) -> None:
        """Pads or crops the one feature map that `readers` share, for them alone."""
        if not any(sides):
            return
        source = self._shared_input(readers, fork)
        top, bottom, left, right = sides
        with self.graph.inserting_after(source):
            if crop:
                window: Any = (Ellipsis, slice(top, -bottom or None), slice(left, -right or None))
                new = self.graph.call_function(operator.getitem, (source, window))
            else:
                new = self.graph.call_function(F.pad, (source, [left, right, top, bottom]))
        new.meta = {**source.meta, "role": Role.PAD, "operator": "crop" if crop else "pad", "region": number}
        for reader in readers:
            reader.replace_input_with(source, new)

    def _shared_input(self, readers: list[fx.Node], fork: Block | None) -> fx.Node:
        sources = [main_input(reader) for reader in readers if reader.meta["role"] is not Role.ADD]
        if sources:
            return sources[0]
        assert fork is not None
        # Only the add itself reads the fork here: its operand that the body does not end in.
        body_end = self._end_of(fork.body)
        add = readers[0]
        return next(arg for arg in add.args if isinstance(arg, fx.Node) and arg is not body_end)

    def _end_of(self, path: DataPath) -> fx.Node | None:
        alive = [self.nodes[name] for name in self._names(path) if name in self.nodes]
        return alive[-1] if alive else None

    # -- what goes

    def _strip(self, steps: DataPath) -> str | None:
        """Removes activations, padding, removed convs and their norms from the inside of a range."""
        lost, dropping = None, False
        for step in steps:
            if isinstance(step, ConvStep):
                layer = self.structure.layers[step.layer]
                dropping = step.layer not in self.kept
                for name in (*layer.pads, *((layer.node,) if dropping else ())):
                    self._remove(name)
            elif isinstance(step, BlockStep):
                block = self.structure.blocks[step.block]
                for branch in self._branches(block):
                    lost = self._strip(branch) or lost
                dropping = False
            elif step.role is Role.ACTIVATION:
                lost = step.module or lost
                dropping = False
                self._remove(step.node)
            elif step.role is Role.PAD or (step.role is Role.NORM and dropping):
                self._remove(step.node)
            elif step.role is not Role.DROPOUT:
                dropping = False
        return lost

    def _strip_norms_behind(self, reading: Reading) -> None:
        last = reading.steps[-1]
        if not isinstance(last, ConvStep) or last.layer in self.kept:
            return
        for step in reading.behind:
            if isinstance(step, OpStep) and step.role is Role.NORM:
                self._remove(step.node)
            elif not isinstance(step, OpStep) or step.role is not Role.DROPOUT:
                break

    def _remove(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is not None:
            node.replace_all_uses_with(main_input(node))
            self.graph.erase_node(node)

    def _leave_the_shortcut(self, block: Block) -> None:
        """An emptied body goes with all it holds: the block becomes its shortcut, x and not 2x."""
        add = self.nodes[block.add]
        body_names = self._names(block.body)
        ends = {self.nodes[name] for name in body_names if name in self.nodes}
        remains = [arg for arg in add.args if isinstance(arg, fx.Node) and arg not in ends]
        add.replace_all_uses_with(remains[0])
        for name in (block.add, *reversed(body_names)):
            if name in self.nodes:
                self.graph.erase_node(self.nodes.pop(name))

    # -- statistical norms move behind the range

    def _take_last_norm(self, steps: DataPath, *, stays: bool) -> fx.Node | None:
        """Takes the statistical norms out of a range; the last of them is to stand behind it, with its weights.

        Where no conv is left in the range, the last norm stands behind it already: it stays.
        """
        norms = [step.node for step in steps if isinstance(step, OpStep) and step.role is Role.STAT_NORM]
        norms = [name for name in norms if name in self.nodes]
        for name in norms[:-1]:
            self._remove(name)
        if stays or not norms:
            return None
        last: fx.Node = self.nodes[norms[-1]]
        last.replace_all_uses_with(main_input(last))
        return last

    def _put_behind(self, end: fx.Node, norm: fx.Node) -> fx.Node:
        readers = [user for user in end.users if user is not norm]
        end.append(norm)
        norm.args = (end,)
        for reader in readers:
            reader.replace_input_with(end, norm)
        return norm
