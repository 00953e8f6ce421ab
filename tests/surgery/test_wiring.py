"""The check that rewrite makes of its own graph: it passes for every network of the tests, and fails when edits are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import layermerge as lm
from layermerge.errors import SurgeryError
from layermerge.planning import knapsack, plan, reading
from layermerge.surgery import rewrite as rewriting
from layermerge.surgery.edits import Crop, Edit, Join, MoveNorm, Pad, StopPadding, edits
from layermerge.tracing.operators import Role
from layermerge.tracing.trace import Trace
from zoo_blocks import Basic
from zoo_registry import conv, random_tensor

Change = Callable[[list[Edit]], list[Edit]]


def without(kind: type[Edit]) -> Change:
    return lambda listed: [edit for edit in listed if not isinstance(edit, kind)]


def without_one_pixel(listed: list[Edit]) -> list[Edit]:
    return [replace(edit, sides=(1, *edit.sides[1:])) if isinstance(edit, Pad) else edit for edit in listed]


def without_the_last_node(listed: list[Edit]) -> list[Edit]:
    return [replace(edit, nodes=edit.nodes[:-1]) if isinstance(edit, Join) else edit for edit in listed]


def all_in_one_region(listed: list[Edit]) -> list[Edit]:
    return [replace(edit, region=0) if isinstance(edit, Join) else edit for edit in listed]


def edit_otherwise(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    monkeypatch.setattr(rewriting, "edits", lambda *given, **how: iter(change(list(edits(*given, **how)))))


@pytest.fixture(scope="module")
def residual() -> Trace:
    torch.manual_seed(0)
    return lm.trace(nn.Sequential(conv(3, 4), Basic(4, 4), conv(4, 4)), random_tensor(2, 3, 9, 9))


def stem_and_block(traced: Trace) -> lm.Candidate:
    """The stem and the whole block as one conv: it pads, crops its skip, and stops every conv from padding."""
    return next(one for one in lm.plan(traced).candidates if one.layers == one.kept and one.end - one.start == 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(Pad), "'_1_relu_1' would read maps of shapes .*3, 3.* instead of .*9, 9"),
        (without_one_pixel, "'_1_relu_1' would read maps of shapes .*7, 9.* instead of .*9, 9"),
        (without(Crop), "maps of different shapes meet in 'add'"),
        (without(StopPadding), "'0' still pads a map inside it"),
        (without_the_last_node, "inside it is read from outside"),
        (all_in_one_region, "region 0 reads 2 feature maps, so it is not one conv"),
    ],
)
def test_wrong_edits_are_refused(
    residual: Trace, monkeypatch: pytest.MonkeyPatch, change: Change, message: str
) -> None:
    chosen = [stem_and_block(residual)]
    lm.rewrite(residual, chosen)
    edit_otherwise(monkeypatch, change)
    with pytest.raises(SurgeryError, match=message):
        lm.rewrite(residual, chosen)


def test_a_norm_left_inside_a_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(conv(3, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 4))
    traced = lm.trace(model, random_tensor(2, 3, 9, 9))
    edit_otherwise(monkeypatch, without(MoveNorm))
    with pytest.raises(SurgeryError, match="region 0 reads 2 feature maps"):
        lm.rewrite(traced, [lm.plan(traced)["0-2:5x5g1"]])


def test_a_range_that_would_lose_its_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no rule kept an emptied range from losing the padding inside it."""
    model = nn.Sequential(conv(3, 3), nn.ZeroPad2d(1), nn.BatchNorm2d(3), conv(3, 3), nn.ReLU(), conv(3, 4))
    traced = lm.trace(model, random_tensor(2, 3, 9, 9))
    assert "0-2:identity" not in {candidate.key for candidate in lm.plan(traced).candidates}
    for module in (knapsack, reading):
        monkeypatch.setattr(module, "emptied", lambda _spec: None)
    with pytest.raises(SurgeryError, match="the candidates cannot be applied together: '_4' would read maps of shapes"):
        lm.rewrite(traced, [lm.plan(traced)["0-2:identity"]])


def written_between(traced: Trace) -> None:
    """As if the network set a part of the map behind its first activation to zero before the next conv reads it."""
    graph = traced.module.graph
    source = next(node for node in graph.nodes if node.meta["role"] is Role.ACTIVATION)
    with graph.inserting_after(source):
        part = graph.call_function(torch.ops.aten.slice.Tensor, (source, 1, 0, 2))
    with graph.inserting_after(part):
        write = graph.call_function(torch.ops.aten.fill_.Scalar, (part, 0.0))
    for node in (part, write):
        node.meta = {**source.meta, "role": Role.BARRIER, "operator": "fill"}


def test_a_write_between_a_range_and_its_padding_is_refused() -> None:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 4))
    traced = lm.trace(model, random_tensor(2, 3, 9, 9))
    written_between(traced)
    menu = lm.plan(traced)
    lm.rewrite(traced, [menu["0-1:3x3g1"], menu["1-2:identity"]])
    with pytest.raises(SurgeryError, match=r"candidate 1-3:5x5g1 cannot be applied here: .* is written to in place"):
        lm.rewrite(traced, [menu["1-3:5x5g1"]])


def test_candidates_that_should_lose_nothing_must_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), conv(4, 4, 1))
    traced = lm.trace(model, random_tensor(2, 3, 9, 9))
    menu = lm.plan(traced)
    lm.rewrite(traced, [candidate for candidate in menu.candidates if candidate.free])
    monkeypatch.setattr(plan, "loses_nothing", lambda *_: True)
    wrong = next(one for one in lm.plan(traced).candidates if one.layers == one.kept == ("0", "2"))
    with pytest.raises(
        SurgeryError, match=r"candidates that should lose nothing change output 0 by .*free_fusions=False"
    ):
        lm.rewrite(traced, [wrong])
