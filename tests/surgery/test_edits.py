"""The list of edits, from a structure written by hand: no graph, no weights."""

from __future__ import annotations

import pytest

from layermerge.conv import ConvSpec
from layermerge.errors import PlanError
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
    StopPadding,
    edits,
)
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import Block, BlockStep, ConvStep, Layer, Operation, OpStep, Structure

SPEC = ConvSpec(4, 4, (3, 3), padding=(1, 1, 1, 1))
MAP = (4, 8, 8)


def structure() -> Structure:
    """stem, bn, then a block of c1, norm (statistical) or relu, c2 with a skip; behind it conv `last`.

    x -> stem -> bn -> (c1 -> act -> c2) + -> last -> output
    """
    layers = tuple(Layer(name, SPEC, MAP, MAP, 1.0, name) for name in ("stem", "c1", "c2", "last"))
    act = OpStep("act", Role.ACTIVATION, "'act'", MAP, "act")
    body = (ConvStep(1), act, ConvStep(2))
    block = Block("block", 1, 3, None, body, (), "add", None, 4)
    chain = (ConvStep(0), OpStep("bn", Role.NORM, "'bn'", MAP, "bn"), BlockStep(0), ConvStep(3))
    flow = {
        "x": (Role.BARRIER, None, ("stem",)),
        "stem": (Role.CONV, "x", ("bn",)),
        "bn": (Role.NORM, "stem", ("c1", "add")),
        "c1": (Role.CONV, "bn", ("act",)),
        "act": (Role.ACTIVATION, "c1", ("c2",)),
        "c2": (Role.CONV, "act", ("add",)),
        "add": (Role.ADD, "c2", ("last",)),
        "last": (Role.CONV, "add", ("output",)),
        "output": (Role.BARRIER, "last", ()),
    }
    operations = {
        name: Operation(name, role, name, source, readers, role is Role.CONV)
        for name, (role, source, readers) in flow.items()
    }
    return Structure(layers, (block,), (chain,), ("the input",), operations)


NETWORK = structure()
NAMES = tuple(layer.name for layer in NETWORK.layers)


def reading(start: int, end: int, *kept: str) -> Reading:
    """Of the layers start..end-1 with these kept; the geometry that a candidate says plays no part in reading it."""
    return read(NETWORK, Candidate(start, end, NAMES[start:end], kept, SPEC if kept else None))


def listed(*readings: Reading, add_activation: bool = True) -> list[Edit]:
    """The edits of these, every other layer untouched."""
    covered = {index for one in readings for index in range(one.candidate.start, one.candidate.end)}
    rest = [read(NETWORK, untouched(NETWORK, index)) for index in range(len(NAMES)) if index not in covered]
    remains = Remains.without(NETWORK, {index for one in readings for index in one.candidate.removed})
    return list(edits(remains, [*readings, *rest], add_activation=add_activation))


def test_nothing_chosen_only_names_the_regions() -> None:
    assert listed() == [Join(("stem", "bn"), 0), Join(("c1",), 1), Join(("c2",), 2), Join(("last",), 3)]


def test_a_fused_block_pads_once_crops_its_skip_and_gets_its_activation_back() -> None:
    assert listed(reading(0, 3, "stem", "c1", "c2")) == [
        Pad(("stem",), (3, 3, 3, 3), 0),
        Crop(("add",), (2, 2, 2, 2), 0, beside="c2"),
        StopPadding("stem"),
        StopPadding("c1"),
        StopPadding("c2"),
        Remove("act"),
        Join(("stem", "bn", "c1", "c2", "add"), 0),
        Join(("last",), 1),
        AddActivation("act", "add"),
    ]


def test_a_block_alone_pads_what_body_and_skip_both_read_and_crops_the_skip() -> None:
    found = listed(reading(1, 3, "c1", "c2"), add_activation=False)
    assert found[:2] == [Pad(("c1", "add"), (2, 2, 2, 2), 0), Crop(("add",), (2, 2, 2, 2), 0, beside="c2")]
    assert not [edit for edit in found if isinstance(edit, AddActivation)]


@pytest.mark.parametrize("chosen", [[(1, 3)], [(1, 2), (2, 3)]], ids=["by one candidate", "by two"])
def test_an_emptied_body_goes_as_a_whole_and_nothing_of_it_twice(chosen: list[tuple[int, int]]) -> None:
    assert listed(*(reading(*one) for one in chosen)) == [
        LeaveShortcut("add", ("c1", "act", "c2")),
        Join(("stem", "bn"), 0),
        Join(("last",), 1),
    ]


def test_a_conv_that_goes_takes_its_norm_along() -> None:
    assert listed(reading(0, 1)) == [
        Remove("stem"),
        Remove("bn"),
        Join(("c1",), 0),
        Join(("c2",), 1),
        Join(("last",), 2),
    ]


def test_no_activation_comes_back_at_the_networks_output() -> None:
    whole = listed(reading(0, 4, "stem", "c1", "c2", "last"))
    assert not [edit for edit in whole if isinstance(edit, AddActivation)]


def test_what_follows_is_given_for_the_candidate_alone() -> None:
    assert [one.name for one in reading(2, 3, "c2").follow] == ["add"]
    assert [one.name for one in reading(1, 2, "c1").follow] == ["act"]
    assert [one.name for one in reading(0, 3, "stem", "c1", "c2").follow] == ["act"]
    assert [
        one.name for one in reading(0, 3, "stem").follow
    ] == []  # an emptied body loses no activation of the range's
    assert reading(1, 3).follow == ()


def test_a_statistical_norm_moves_behind_its_range() -> None:
    norm = OpStep("norm", Role.STAT_NORM, "'norm'", MAP, "norm")
    flow = ("x", "a", "norm", "b", "output")
    roles = (Role.BARRIER, Role.CONV, Role.STAT_NORM, Role.CONV, Role.BARRIER)
    operations = {
        name: Operation(
            name, role, name, flow[place - 1] if place else None, flow[place + 1 : place + 2], role is Role.CONV
        )
        for place, (name, role) in enumerate(zip(flow, roles, strict=True))
    }
    layers = tuple(Layer(name, SPEC, MAP, MAP, 1.0, name) for name in "ab")
    network = Structure(layers, (), ((ConvStep(0), norm, ConvStep(1)),), ("the input",), operations)
    both = read(network, Candidate(0, 2, ("a", "b"), ("a", "b"), SPEC))
    assert (both.moved, both.end, [one.name for one in both.follow]) == ("norm", "b", ["norm"])
    assert list(edits(Remains.without(network, ()), [both], add_activation=True)) == [
        Pad(("a",), (2, 2, 2, 2), 0),
        StopPadding("a"),
        StopPadding("b"),
        MoveNorm("norm", "b"),
        Join(("a", "b"), 0),
    ]
    emptied = read(network, Candidate(0, 2, ("a", "b"), (), None))
    removed = [Remove("a"), Remove("b")]
    assert list(edits(Remains.without(network, (0, 1)), [emptied], add_activation=True)) == removed  # the norm stays


def test_a_range_that_is_none_cannot_be_read() -> None:
    with pytest.raises(PlanError, match="only a part of block 'block'"):
        reading(0, 2, "stem", "c1")
