"""Listing: a plan as JSON, and in one sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import TypeAdapter

from layermerge.conv import ConvSpec
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan

_AS_JSON = TypeAdapter(Candidate)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data; kernel and stride are [height, width], null for an identity."""
    layers = [{"name": layer.name, **_geometry(layer.spec), "irreducible": layer.irreducible} for layer in plan.layers]
    candidates = [
        {
            "key": candidate.key,
            **_AS_JSON.dump_python(candidate, mode="json", exclude={"spec"}),
            **_geometry(candidate.spec),
        }
        for candidate in plan.candidates
    ]
    rejections = [{"start": one.start, "end": one.end, "reason": one.reason} for one in plan.rejections]
    # Fixed candidates are listed, but no table counts them.
    counts = {"candidates": len(plan.entries), "fixed": len(plan.candidates) - len(plan.entries)}
    facts = {"layers": layers, "candidates": candidates, "rejections": rejections}
    return {"method": plan.method, "counts": counts, **facts}


def _geometry(spec: ConvSpec | None) -> dict[str, Any]:
    shape = (None, None, None) if spec is None else (list(spec.kernel), list(spec.stride), spec.groups)
    return dict(zip(("kernel", "stride", "groups"), shape, strict=True))


def summary(plan: Plan, blocks: int) -> str:
    """What there is, and what keeps ranges off the menu most often."""
    ranges = {(candidate.start, candidate.end) for candidate in plan.entries}
    emptied = sum(candidate.spec is None and not candidate.replaced for candidate in plan.entries)
    free = sum(candidate.free and not candidate.replaced for candidate in plan.entries)
    replacing = Counter(candidate.replaced for candidate in plan.entries if candidate.replaced)
    replaced = "".join(f", {count} replace the {what}" for what, count in sorted(replacing.items()))
    kinds = Counter(like(rejection.reason) for rejection in plan.rejections)
    common = "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(3))
    fixed = len(plan.candidates) - len(plan.entries)
    beside = f"; {fixed} more are fixed: always taken, outside the tables" if fixed else ""
    rejected = f"{len(plan.rejections)} ranges rejected{f': {common}' if common else ''}"
    return (
        f"{len(plan.layers)} layers, {blocks} residual blocks. {len(plan.entries)} candidates over {len(ranges)} ranges "
        f"({emptied} remove all they cover, {free} merge and lose nothing{replaced}{beside}). {rejected}."
    )


def like(reason: str) -> str:
    """A reason without the names in it, so that like ones can be counted together."""
    return " ".join("..." if part.startswith("'") else part for part in reason.split())
