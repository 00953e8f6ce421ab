"""The plan as JSON and as a summary: what each field says, and that fixed candidates are told apart."""

from __future__ import annotations

import json

import layermerge as lm
import zoo
from layermerge.planning.listing import plan_document, summary


def test_fields_of_the_document_are_those_of_the_plan() -> None:
    plan = lm.plan(zoo.traced("inverted"))
    document = plan_document(plan)
    assert json.loads(json.dumps(document)) == document
    assert document["layers"][1] == {
        "name": "a.dw",
        "kernel": [3, 3],
        "stride": [1, 1],
        "groups": 8,
        "irreducible": False,
    }
    by_key = {entry["key"]: entry for entry in document["candidates"]}
    assert list(by_key) == [candidate.key for candidate in plan.candidates]
    layers = ["a.pw", "a.dw", "a.pl"]
    whole = {"start": 0, "end": 3, "layers": layers, "kept": layers, "kernel": [3, 3], "stride": [1, 1], "groups": 1}
    assert by_key["0-3:3x3g1"] == {"key": "0-3:3x3g1", **whole, "fixed": False, "free": False, "replaced": None}
    emptied = by_key["1-2:identity"]
    assert (emptied["kept"], emptied["kernel"], emptied["stride"], emptied["groups"]) == ([], None, None, None)
    assert [(one["start"], one["end"], one["reason"]) for one in document["rejections"]] == [
        (one.start, one.end, one.reason) for one in plan.rejections
    ]


def test_fixed_candidates_are_listed_and_counted_apart() -> None:
    plan = lm.plan(zoo.traced("basic"), lm.Rules(exclude=("a.*",)))
    document = plan_document(plan)
    assert document["counts"] == {"candidates": len(plan.entries), "fixed": 2}
    assert [entry["layers"] for entry in document["candidates"] if entry["fixed"]] == [["a.c1"], ["a.c2"]]
    assert "2 more are fixed" in str(summary(plan, 2))
    assert "fixed" not in str(summary(lm.plan(zoo.traced("basic")), 2))
