"""Rules: what may merge with what. Each rule returns None, or a reason that a user can read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, get_args

from layermerge.arguments import READ_INSIDE, checked
from layermerge.conv import ConvSpec
from layermerge.errors import PlanError
from layermerge.tracing.structure import Structure

Patterns = Annotated[tuple[str, ...], READ_INSIDE]
"""Names of layers, or globs: a single one, or any iterable of them."""

Replaceable = Literal["activations", "gates"]
_REPLACEABLE: tuple[Replaceable, ...] = get_args(Replaceable)


@checked(PlanError)
@dataclass(frozen=True)
class Rules:
    """What the plan may offer. `Rules()` is ours; `Rules.paper()` reproduces the authors' own tables.

    `pin` leaves layers (by name or glob) as they are: neither removed nor merged. `exclude` also takes them out of the
    tables: their candidates are `fixed`, that is, neither counted nor measured one by one.
    """

    max_kernel: int | None = 21
    """The largest side of a merged kernel; a layer's own kernel may be larger."""
    pin: Patterns = ()
    exclude: Patterns = ()
    identities: Literal["all", "after_resize"] = "all"
    """Which ranges may be emptied: all that can, or only convs right after a resize."""
    stop_after_stride: bool = False
    """End every range after a strided conv, or after the 1x1 that directly follows it, even if what follows is removed."""
    fix_ends: bool = False
    """Leave out a strided first conv, and a last conv that is not in a residual block."""
    fix_shortcuts: bool = False
    free_fusions: bool = True
    """Recognise merges that lose nothing: no importance is measured for them, latency alone decides."""
    rule_out_slow: bool = True
    """Do not measure the importance of merges that latency already shows not to pay."""
    replace: Annotated[tuple[Replaceable, ...], READ_INSIDE] = ()
    """What may be replaced, not only removed: `activations` by cheaper ones (SiLU, GELU, Hardswish, Mish by ReLU), `gates`
    (squeeze-excite) by their mean over the images, which folds into a conv."""

    def __post_init__(self) -> None:
        if self.max_kernel is not None and self.max_kernel < 1:
            raise PlanError(f"max_kernel is {self.max_kernel}; give a whole number of at least 1, or None for no bound")
        for field in ("pin", "exclude"):
            given = getattr(self, field)
            patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
            if not all(isinstance(pattern, str) for pattern in patterns):
                raise PlanError(
                    f"{field} is {given!r}; it must be a layer's name, a glob such as 'layer4.*', or several"
                )
            object.__setattr__(self, field, patterns)
        named = (self.replace,) if isinstance(self.replace, str) else self.replace
        known = tuple(named) if isinstance(named, Iterable) else (named,)
        if not all(name in _REPLACEABLE for name in known):
            raise PlanError(f"replace is {self.replace!r}; give 'activations', 'gates', or both")
        object.__setattr__(self, "replace", tuple(name for name in _REPLACEABLE if name in known))

    @staticmethod
    @checked(PlanError)
    def paper(*, pin: Patterns = (), exclude: Patterns = ()) -> Rules:
        """The authors' rules: their stride boundary, their layers outside the table, their few identities."""
        return Rules(
            max_kernel=None,
            pin=pin,
            exclude=exclude,
            identities="after_resize",
            stop_after_stride=True,
            fix_ends=True,
            fix_shortcuts=True,
            free_fusions=False,
            rule_out_slow=False,
        )

    def pinned(self, structure: Structure) -> frozenset[int]:
        return _matching(self.pin, structure, "pin")

    def fixed(self, structure: Structure) -> frozenset[int]:
        """Layers outside the table."""
        fixed = set(_matching(self.exclude, structure, "exclude"))
        if self.fix_shortcuts:
            fixed.update(block.shortcut for block in structure.blocks if block.shortcut is not None)
        if self.fix_ends and structure.layers[0].spec.strided:
            fixed.add(0)
        last = len(structure.layers) - 1
        if self.fix_ends and not any(block.start <= last < block.end for block in structure.blocks):
            fixed.add(last)
        return frozenset(fixed)

    def too_large(self, spec: ConvSpec) -> str | None:
        if self.max_kernel is not None and max(spec.kernel) > self.max_kernel:
            return f"the merged kernel would be {spec.kernel[0]}x{spec.kernel[1]}, above max_kernel={self.max_kernel}"
        return None


def _matching(patterns: tuple[str, ...], structure: Structure, option: str) -> frozenset[int]:
    names = [layer.name for layer in structure.layers]
    found: set[int] = set()
    for pattern in patterns:
        hits = {index for index, name in enumerate(names) if name == pattern or fnmatchcase(name, pattern)}
        if not hits:
            close = [f"{pattern}.*"] if any(name.startswith(f"{pattern}.") for name in names) else []
            close += difflib.get_close_matches(pattern, names, n=2)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the first layers are {names[:3]}"
            raise PlanError(f"{option} '{pattern}' matches no layer; {hint}")
        found |= hits
    return frozenset(found)


def in_series(first: ConvSpec, second: ConvSpec) -> str | None:
    """Whether two kept convs, one after the other, merge into one of reasonable cost."""
    for before, after in ((first.height, second.height), (first.width, second.width)):
        if before.stride > 1 and after.kernel > 1:
            return f"a kept {second} conv follows a strided one; only 1x1 convs may"
        dilated = max(before.dilation if before.kernel > 1 else 1, after.dilation if after.kernel > 1 else 1) > 1
        if dilated and before.kernel > 1 and after.kernel > 1:
            return "a dilated conv merges only with 1x1 neighbours"
    return None


def emptied(spec: ConvSpec) -> str | None:
    """Whether a range of which no conv is kept leaves the map that it reads as it is."""
    if any(spec.padding):
        return "no conv would be left to take over the zero padding inside it, so that its output would be smaller"
    return None


def side_by_side(body: ConvSpec, shortcut: ConvSpec) -> str | None:
    """Whether a block's body and shortcut, as one conv each, fuse into one kernel."""
    for own, other in ((body.height, shortcut.height), (body.width, shortcut.width)):
        if own.stride != other.stride:
            return f"body and shortcut of the block stride differently ({body} and {shortcut})"
        steps = {axis.dilation for axis in (own, other) if axis.kernel > 1}
        if steps - {1} and (len(steps) > 1 or (own.front - other.front) % max(steps)):
            return "a dilated body does not line up with its shortcut"
    return None
