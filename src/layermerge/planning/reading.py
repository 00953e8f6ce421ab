"""Reading: a candidate on its network: what it covers, what goes, what moves, what is lost, and what follows.

In: a structure and a candidate, from a plan or from a file. Out: a `Reading`, or a `PlanError` that names the rule broken.
`rewrite` does what a reading says; the latency table times what it says will run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from layermerge.conv import ConvSpec
from layermerge.errors import PlanError
from layermerge.planning.candidate import Candidate
from layermerge.planning.flow import Flow
from layermerge.planning.ranges import span, why_illegal, why_no_range
from layermerge.planning.remains import Remains
from layermerge.planning.rules import emptied
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import DataPath, Gate, Operation, OpStep, Structure

_FOLDS = (Role.NORM, Role.SCALE, Role.DROPOUT)


@dataclass(frozen=True)
class Reading:
    """A candidate's range as a piece of one path, and what becomes of it; nodes are given by name."""

    candidate: Candidate
    steps: DataPath
    """Its layers and blocks, the operators between them, and the norms and scalars right after them, which fold into its conv.
    None where it is a whole residual body that goes, which need not be a path."""
    spec: ConvSpec
    """What its kept layers merge to; the identity where none is."""
    removed: tuple[str, ...]
    """The nodes that go one by one; an emptied body goes as a whole."""
    moved: str | None
    """The statistical norm that moves to the end of the range."""
    lost: Operation | None
    """The last activation that the range loses, where it could follow the range."""
    end: str | None
    """The node that gives the range's output, the moved norm aside; None where no conv is left."""
    follow: tuple[Operation, ...]
    """What runs after its conv up to the next conv, barrier or fork, in the network with this candidate alone.
    Where no conv is left, what it leaves behind in its place: an activation, an add."""
    replaced: Operation | None = None
    """Of what follows: the activation that its stand-in replaces."""
    gate: Gate | None = None
    """The gate that its mean replaces."""
    folds: bool = False
    """Whether the mean of a gate next to it is one of its steps."""

    @property
    def changes(self) -> bool:
        """Whether its own layers compute something else than they did."""
        return self.candidate.changes or self.folds

    @property
    def gone(self) -> tuple[str, ...]:
        """The nodes that leave their place one by one, those that compute a gate included."""
        return (*self.removed, *((self.moved,) if self.moved else ()), *(self.gate.nodes if self.gate else ()))


def read(structure: Structure, candidate: Candidate) -> Reading:
    """Reads a candidate; outer readings, which fuse more, come first."""
    if candidate.replaced == "gate":
        return _read_gate(structure, candidate)
    if not candidate.kept and (block := structure.branch(candidate.start, candidate.end)):
        flow = Flow(structure, frozenset((*structure.nodes_of(block.body), block.add)))
        left = tuple(flow.behind(block.add))
        return Reading(candidate, (), ConvSpec.identity(block.channels), (), None, None, None, left)
    if candidate.replaced and not candidate.kept:
        raise PlanError("nothing of it is kept, so that no activation of its own follows")
    remains = Remains.without(structure, candidate.removed)
    steps, spec = _steps(remains, candidate.start, candidate.end)
    bodies = {name for add, body in remains.emptied_blocks().items() for name in (add, *body)}
    removed: tuple[str, ...] = ()
    moved = lost = None
    if not candidate.keeps_layer:
        norms = [step.node for step in steps if isinstance(step, OpStep) and step.role is Role.STAT_NORM]
        removed = (*remains.stripped(steps), *norms[:-1])
        moved = norms[-1] if norms and candidate.kept else None
        lost = _lost(structure, removed, spec.out_channels) if candidate.kept else None
    gone = frozenset((*removed, *bodies, *((moved,) if moved else ())))
    nodes = list(structure.nodes_of(steps))
    end = [name for name in nodes if name not in gone][-1] if candidate.kept else None
    follow = _follow(Flow(structure, gone), end or nodes[-1], moved, lost)
    replaced = _replaceable(follow)
    if candidate.replaced and replaced is None:
        raise PlanError("no activation that another could stand in for follows it")
    return Reading(candidate, steps, spec, removed, moved, lost, end, follow, replaced if candidate.replaced else None)


def _read_gate(structure: Structure, candidate: Candidate) -> Reading:
    gate = structure.gate(candidate.start, candidate.end)
    if gate is None or candidate.kept:
        raise PlanError("its layers compute no gate, or some of them are kept")
    return Reading(candidate, (), ConvSpec.identity(gate.shape[0]), (), None, None, None, (), gate=gate)


def replaces_activation(structure: Structure, candidate: Candidate) -> bool:
    """Whether the activation after a candidate has a stand-in."""
    return bool(candidate.kept) and _replaceable(read(structure, candidate).follow) is not None


def _replaceable(follow: Iterable[Operation]) -> Operation | None:
    """The first activation, if another may stand in for it."""
    first = next((operation for operation in follow if operation.role is Role.ACTIVATION), None)
    return first if first is not None and first.stand_in else None


def untouched(structure: Structure, index: int) -> Candidate:
    """The candidate that leaves a layer as it is."""
    names = (structure.layers[index].name,)
    return Candidate(index, index + 1, names, names, _steps(Remains.without(structure, ()), index, index + 1)[1])


def _steps(remains: Remains, start: int, end: int) -> tuple[DataPath, ConvSpec]:
    """How a range lies on its path, what folds into it included, and what it merges to."""
    structure = remains.structure
    refusal: str | None = None
    for path in structure.paths:
        spans = [None if isinstance(step, OpStep) else span(structure, step) for step in path]
        first = next((place for place, one in enumerate(spans) if one and one[0] == start), None)
        last = next((place for place, one in enumerate(spans) if one and one[1] == end), None)
        if first is None or last is None or last < first:
            continue
        steps = path[first : last + 1]
        refusal = why_illegal(structure, steps)
        if refusal is None:
            try:
                spec = remains.spec(steps, structure.channels_into(steps[0]))
            except PlanError as error:
                refusal = str(error)
            else:
                refusal = None if remains.any_kept(steps) else emptied(spec)
            if refusal is None:
                return (*steps, *_foldable_tail(path[last + 1 :])), spec
    raise PlanError(refusal or why_no_range(structure, start, end))


def _foldable_tail(path: DataPath) -> DataPath:
    count = last = 0
    while count < len(path) and isinstance(step := path[count], OpStep) and step.role in _FOLDS:
        count += 1
        last = last if step.role is Role.DROPOUT else count
    return path[:last]


def _lost(structure: Structure, removed: Iterable[str], channels: int) -> Operation | None:
    """The last activation that goes; of a formula that ends in a square (StarReLU), what comes before: after every block, a
    square would have what is handed on grow beyond all numbers.
    """
    operations = [structure.operations[name] for name in removed]
    activations = [one for one in operations if one.role is Role.ACTIVATION and one.module]
    mild = [one for one in activations if not one.steep]
    last = next(reversed(mild or activations), None)
    return last if last is not None and last.channels in (None, channels) else None


def _follow(flow: Flow, end: str, moved: str | None, lost: Operation | None) -> tuple[Operation, ...]:
    place = flow.needs_activation(end, ()) if lost else None
    added = [lost] if lost and place else []
    found = [flow.structure.operations[moved]] if moved else []
    found += added if place == end else []
    for operation in flow.behind(end):
        found += [operation, *(added if place == operation.name else [])]
    return tuple(found)
