"""Plan: every legal way to treat a range of layers as one (the menu), and for every other range the reason why not.

In: a `Trace`, `Rules` and a method. Out: a `Plan` of candidates and rejections.
Guarantees: every candidate can be rewritten and merged exactly; every range start..end is either a candidate's or rejected
with a reason; the same trace gives the same plan, keys included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from layermerge.arguments import checked
from layermerge.conv import ConvSpec
from layermerge.errors import PlanError
from layermerge.planning.candidate import Candidate
from layermerge.planning.knapsack import NOTHING, Choice, Knapsack, Options, Refusal
from layermerge.planning.lossless import loses_nothing
from layermerge.planning.ranges import PathWalk, Span, span, why_illegal, why_no_range
from layermerge.planning.replacing import with_replacements
from layermerge.planning.rules import Rules
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.structure import Layer, Step, Structure
from layermerge.tracing.trace import Trace


@dataclass(frozen=True)
class Rejection:
    """A range that no candidate covers, and the rule that forbids it."""

    start: int
    end: int
    reason: str
    topological: bool = False
    """Whether its layers do not follow each other at all; otherwise they do, and a rule keeps them apart."""


@dataclass(frozen=True)
class Plan:
    """All candidates over the layers of one network."""

    layers: tuple[Layer, ...]
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    rules: Rules
    method: str
    network: str
    """The fingerprint of the network it belongs to."""
    _by_key: dict[str, Candidate] = field(init=False, repr=False, compare=False)
    _singles: dict[tuple[int, bool], Candidate] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_key", {candidate.key: candidate for candidate in self.candidates})
        alone = (candidate for candidate in self.candidates if candidate.end - candidate.start == 1)
        singles = (candidate for candidate in alone if candidate.replaced is None)
        object.__setattr__(self, "_singles", {(single.start, bool(single.kept)): single for single in singles})

    def __contains__(self, candidate: object) -> bool:
        return isinstance(candidate, Candidate) and self._by_key.get(candidate.key) == candidate

    @checked(PlanError)
    def __getitem__(self, key: str) -> Candidate:
        try:
            return self._by_key[key]
        except KeyError:
            raise PlanError(f"the plan has no candidate '{key}'; it has {len(self.candidates)} others") from None

    @checked(PlanError)
    def single(self, index: int, *, kept: bool) -> Candidate | None:
        """The candidate that leaves one layer as it is, or drops it; None if the plan has none."""
        return self._singles.get((index, kept))

    def require_network(self, structure: Structure) -> None:
        """Refuses a network that this plan does not belong to."""
        if fingerprint(structure) != self.network:
            raise PlanError("the plan belongs to another network than the trace; plan this one: layermerge.plan(trace)")

    @property
    def entries(self) -> tuple[Candidate, ...]:
        """The candidates that tables count and measure: all that are not fixed."""
        return tuple(candidate for candidate in self.candidates if not candidate.fixed)


def _layermerge(candidate: Candidate, layer: Layer, rules: Rules) -> bool:
    if candidate.spec is not None or candidate.replaced or rules.identities == "all":
        return True
    return candidate.end - candidate.start == 1 and layer.after_resize


def _depth(candidate: Candidate, _layer: Layer, _rules: Rules) -> bool:
    return candidate.kept == candidate.layers


def _layeronly(candidate: Candidate, _layer: Layer, _rules: Rules) -> bool:
    return candidate.end - candidate.start == 1


METHODS: dict[str, Callable[[Candidate, Layer, Rules], bool]] = {
    "layermerge": _layermerge,
    "depth": _depth,
    "layeronly": _layeronly,
}
"""Which candidates a method chooses from, given the candidate, its first layer and the rules."""


@checked(PlanError)
def plan(trace: Trace, rules: Rules | None = None, method: str = "layermerge") -> Plan:
    """Lists every legal way to remove and merge the network's convolutions.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> [candidate.key for candidate in plan(trace(net, torch.randn(2, 3, 16, 16))).candidates]
    ['0-1:3x3g1', '0-2:3x3g1', '0-2:5x5g1', '1-2:identity', '1-2:3x3g1']

    `method` is `layermerge` (all candidates), `depth` (merge only: every conv kept) or `layeronly` (no merging).
    """
    rules = rules or Rules()
    if method not in METHODS:
        raise PlanError(f"unknown method '{method}'; choose one of {', '.join(METHODS)}")
    structure = trace.structure
    menu = _Menu(structure, rules)
    menu.require_a_choice()
    options = menu.options()
    found = (
        candidate
        for (start, end), choices in sorted(options.items())
        for candidate in menu.candidates(start, end, choices)
    )
    offered = with_replacements(structure, rules, found, menu.pinned)
    spans = {(candidate.start, candidate.end) for candidate in offered} | options.keys()
    candidates = [
        candidate for candidate in offered if METHODS[method](candidate, structure.layers[candidate.start], rules)
    ]
    count = len(structure.layers)
    rejections = [
        Rejection(start, end, menu.reasons[start, end])
        if (start, end) in menu.reasons
        else Rejection(start, end, why_no_range(structure, start, end), topological=True)
        for start in range(count)
        for end in range(start + 1, count + 1)
        if (start, end) not in spans
    ]
    return Plan(structure.layers, tuple(candidates), tuple(rejections), rules, method, fingerprint(structure))


class _Menu:
    """Collects the options of every range, and the reasons of those that have none."""

    def __init__(self, structure: Structure, rules: Rules) -> None:
        self.structure = structure
        self.layers = structure.layers
        self.rules = rules
        self.fixed = rules.fixed(structure)
        self.pinned = rules.pinned(structure) | self.fixed
        self.knapsack = Knapsack(structure, rules)
        self.reasons: dict[Span, str] = {}
        self.lossless: set[Span] = set()

    def require_a_choice(self) -> None:
        if (self.rules.pin or self.rules.exclude) and len(self.pinned) == len(self.layers):
            raise PlanError("every layer is pinned or excluded, so there is nothing to choose; pin fewer")

    def options(self) -> dict[Span, Options]:
        found: dict[Span, Options] = {}
        # Outer paths come first: where a range can be read both ways, the outer reading fuses more.
        for walk in map(PathWalk.of, self.structure.paths):
            for first in range(len(walk.items)):
                self._from(walk, first, found)
        if self.rules.identities == "all":
            self._drop_branches(found)
        for reached in found:
            self.reasons.pop(reached, None)
        return found

    def _drop_branches(self, found: dict[Span, Options]) -> None:
        """A branch beside a shortcut without a conv may go whole, whatever it holds: the shortcut has the shape."""
        for block in self.structure.blocks:
            if block.shortcut is None and self.pinned.isdisjoint(range(block.start, block.end)):
                nothing = ConvSpec.identity(block.channels), False
                found.setdefault((block.start, block.end), {}).setdefault(nothing, NOTHING)

    def _from(self, walk: PathWalk, first: int, found: dict[Span, Options]) -> None:
        """All ranges that start with item `first` of a path."""
        start = span(self.structure, walk.items[first])[0]
        options: Options | Refusal = self.knapsack.start(self.structure.channels_into(walk.items[first]))
        steps: list[Step] = []
        for position in range(first, len(walk.items)):
            item = walk.items[position]
            end = span(self.structure, item)[1]
            inner = walk.before[position] if position > first else ()
            steps += [*inner, item]
            reason = why_illegal(self.structure, tuple(steps))
            if not isinstance(options, Refusal):  # a refusal holds for every longer range too
                refusal = self._ruled_out(walk, first, position, start, end)
                options = refusal or self.knapsack.extend(options, inner, item)
            offers = options if isinstance(options, Refusal) else self.knapsack.offers(options)
            if isinstance(offers, Refusal):
                self.reasons.setdefault((start, end), reason or offers.reason)
            elif reason:
                self.reasons.setdefault((start, end), reason)
            elif (start, end) not in found:
                found[start, end] = offers
                if self.rules.free_fusions and loses_nothing(self.structure, tuple(steps)):
                    self.lossless.add((start, end))

    def _ruled_out(self, walk: PathWalk, first: int, position: int, start: int, end: int) -> Refusal | None:
        """What the user's rules say against a range of more than one layer."""
        if end - start == 1:
            return None
        for index in range(start, end):
            if index in self.pinned:
                how = "outside the table" if index in self.fixed else "pinned"
                return Refusal(f"'{self.layers[index].name}' is {how}")
        return self._stopped_by_stride(walk, first, position) if self.rules.stop_after_stride else None

    def _stopped_by_stride(self, walk: PathWalk, first: int, position: int) -> Refusal | None:
        """The authors never cross the point after a strided conv, or after the 1x1 that directly follows it."""
        way = [index for item in walk.items[: position + 1] for index in self.structure.layers_of((item,))]
        start = way.index(span(self.structure, walk.items[first])[0])
        for place, index in enumerate(way[:-1]):
            pointwise_next = self.layers[way[place + 1]].spec.kernel == (1, 1)
            last = place + 1 if pointwise_next else place
            if self.layers[index].spec.strided and start <= last < len(way) - 1:
                return Refusal(f"the paper's boundary after the strided conv '{self.layers[index].name}'")
        return None

    def candidates(self, start: int, end: int, options: Options) -> list[Candidate]:
        """The best choice for each merged kernel and number of groups, smaller kernels first."""
        best: dict[tuple[int, int, int], tuple[Choice, ConvSpec | None]] = {}
        for (spec, any_kept), choice in options.items():
            if not any_kept and (start in self.pinned):
                continue
            geometry = (*spec.kernel, spec.groups) if any_kept else (0, 0, 0)
            if geometry not in best or choice > best[geometry][0]:
                best[geometry] = choice, spec if any_kept else None
        names = tuple(layer.name for layer in self.layers[start:end])
        found = []
        for _, (choice, merged) in sorted(best.items(), key=lambda entry: entry[0]):
            kept = tuple(name for index, name in enumerate(names, start) if choice.kept >> index & 1)
            free = (start, end) in self.lossless and kept == names
            found.append(Candidate(start, end, names, kept, merged, fixed=start in self.fixed, free=free))
        return found
