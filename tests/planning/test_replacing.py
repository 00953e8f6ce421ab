"""Candidates that replace: offered where the rules ask for them, for what has a stand-in or is a gate, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
import replaceable
import zoo
from layermerge.errors import PlanError
from layermerge.planning.listing import plan_document, summary
from layermerge.planning.reading import read
from layermerge.tracing.operators import TABLE, build_stand_in
from replaceable import ACTIVATIONS, BOTH, GATES, Activated, Gates, SqueezeExcite
from zoo_registry import conv, random_tensor


def replacing(menu: lm.Plan) -> list[str]:
    return [candidate.key for candidate in menu.candidates if candidate.replaced]


# -- the rule


def test_nothing_is_replaced_unless_the_rules_say_so() -> None:
    assert lm.Rules().replace == lm.Rules.paper().replace == ()
    for kind in (Activated, Gates):
        _, trace = replaceable.traced(kind)
        off, on = lm.plan(trace), lm.plan(trace, BOTH)
        assert not replacing(off)
        assert tuple(candidate for candidate in on.candidates if not candidate.replaced) == off.candidates
        assert off.network == on.network
        assert off.rejections == on.rejections


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("activations", ("activations",)),
        (["gates"], ("gates",)),
        (("gates", "activations"), ("activations", "gates")),
        (frozenset({"gates", "activations"}), ("activations", "gates")),
        ((), ()),
    ],
)
def test_the_rule_takes_one_name_or_several_in_any_order(given: Any, kept: tuple[str, ...]) -> None:
    assert lm.Rules(replace=given).replace == kept


@pytest.mark.parametrize("given", ["convs", ("activations", "norms"), 3, None, [["gates"]], "gate"])
def test_names_that_are_not_known_are_refused(given: Any) -> None:
    with pytest.raises(PlanError, match=r"^replace is .*; give 'activations', 'gates', or both$"):
        lm.Rules(replace=given)


# -- activations


def test_every_range_has_a_variant_with_the_activation_behind_it_replaced() -> None:
    _, trace = replaceable.traced(Activated)
    menu = lm.plan(trace, lm.Rules(replace="activations"))  # type: ignore[arg-type]
    kept = [candidate for candidate in menu.candidates if candidate.kept and not candidate.replaced]
    assert replacing(menu) == [f"{candidate.key}:activation" for candidate in kept]
    for key in replacing(menu):
        candidate = menu[key]
        assert candidate.changes
        assert not candidate.untouched
        assert candidate.unreplaced in menu
    behind = {key: read(trace.structure, menu[key]).replaced for key in ACTIVATIONS}
    assert {key: one and one.module for key, one in behind.items()} == ACTIVATIONS
    assert menu.single(0, kept=True) == menu["0-1:3x3g1"]


def test_a_lost_activation_that_comes_back_may_be_replaced() -> None:
    _, trace = replaceable.traced(replaceable.Linear)
    found = replacing(lm.plan(trace, BOTH))
    # Behind the whole network nothing comes back, and behind `f` alone no activation stood.
    assert found == ["0-1:1x1g1:activation", "0-2:1x1g1:activation", "0-2:3x3g1:activation"]


@pytest.mark.parametrize("kind", [nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.PReLU, nn.ELU])
def test_other_activations_have_no_stand_in(kind: type[nn.Module]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), kind(), nn.Conv2d(4, 4, 3), kind())
    assert not replacing(lm.plan(lm.trace(net, random_tensor(2, 3, 9, 9)), BOTH))


def test_a_stand_in_comes_near_and_gives_the_nearest_that_it_can() -> None:
    """What calibration relies on: of all that the stand-in gives, its value at y is the nearest to y."""
    x = torch.linspace(-8, 8, 401, dtype=torch.float64)
    rows = {name: row for name, row in TABLE.items() if row.stand_in}
    assert rows.keys() == {"silu", "gelu", "hardswish", "mish"}
    for name, row in rows.items():
        assert row.stand_in is not None
        stand_in = build_stand_in(row.stand_in)
        given, reached = getattr(F, name)(x), stand_in(x)
        assert (given - reached).abs().max() < 0.4
        nearest = (given[:, None] - reached).abs().min(1).values
        torch.testing.assert_close((given - stand_in(given)).abs(), nearest, rtol=0, atol=0.03)


def test_pinned_and_excluded_layers_keep_their_activation() -> None:
    _, trace = replaceable.traced(Activated)
    for rules in (lm.Rules(replace=BOTH.replace, pin=("a", "b")), lm.Rules(replace=BOTH.replace, exclude=("a", "b"))):
        starts = {candidate.start for candidate in lm.plan(trace, rules).candidates if candidate.replaced}
        assert starts == {2, 3}


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("depth", {"0-1:3x3g1:activation", "0-3:5x5g1:activation", "0-4:7x7g1:activation"}),
        ("layeronly", {"0-1:3x3g1:activation"}),
    ],
)
def test_methods_choose_among_variants_as_among_the_rest(method: str, keys: set[str]) -> None:
    _, trace = replaceable.traced(Activated)
    assert {key for key in replacing(lm.plan(trace, BOTH, method)) if key.startswith("0-")} == keys


# -- gates


def test_gates_are_found_where_layers_compute_them() -> None:
    _, trace = replaceable.traced(Gates)
    menu = lm.plan(trace, lm.Rules(replace=("gates",)))
    assert replacing(menu) == list(GATES)
    for key, name in GATES.items():
        assert menu[key].layers == (f"{name}.reduce", f"{name}.grow")
        assert menu[key].kept == ()
    assert not replacing(lm.plan(trace, lm.Rules(replace=("gates",), pin=("*.grow",))))
    assert replacing(lm.plan(trace, lm.Rules(replace=("gates",), identities="after_resize"))) == list(GATES)
    assert not replacing(lm.plan(trace, BOTH, "depth"))[0].endswith("gate")
    assert zoo.traced("squeeze_excite").structure.gates


class NoGate(nn.Module):
    """Products that are no gates that could be replaced: `kind` says why."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem, self.gate, self.last = conv(3, 8), SqueezeExcite(8), conv(8, 4)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.stem(x))
        match self.kind:
            case "another map":
                value = self.gate.value(torch.tanh(self.stem(x[:, :3])))
                x = F.relu(x)
            case "read elsewhere":
                value = self.gate.value(x)
                return self.last(x * value), value
            case "no layers":
                value = torch.sigmoid(self.linear(x.mean((2, 3))))[:, :, None, None]
            case "one value":
                value = self.gate.value(x).mean(1, keepdim=True)
            case "a pixel":
                x = x.mean((2, 3), keepdim=True)
                value = self.gate.value(x)
            case _:
                value = self.gate.value(x) + x.amax((2, 3), keepdim=True) * x[:, :, :1, :1]
        return self.last(x * value)


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("kind", ["another map", "read elsewhere", "no layers", "one value", "a pixel"])
def test_what_is_no_gate_is_not_offered(kind: str) -> None:
    torch.manual_seed(0)
    trace = lm.trace(NoGate(kind).eval(), random_tensor(2, 3, 8, 8))
    assert trace.structure.gates == ()


@pytest.mark.filterwarnings("ignore:not part of the traced network")
def test_a_gate_may_be_computed_in_any_way() -> None:
    torch.manual_seed(0)
    trace = lm.trace(NoGate("any").eval(), random_tensor(2, 3, 8, 8))
    assert [(gate.start, gate.end) for gate in trace.structure.gates] == [(1, 3)]


# -- what is told


def test_the_listing_counts_and_names_what_is_replaced() -> None:
    _, trace = replaceable.traced(Gates)
    menu = lm.plan(trace, BOTH)
    document = plan_document(menu)
    assert json.loads(json.dumps(document)) == document
    told = {entry["key"]: entry["replaced"] for entry in document["candidates"] if entry["replaced"]}
    assert told == {key: menu[key].replaced for key in replacing(menu)}
    activations = sum(kind == "activation" for kind in told.values())
    assert f", {activations} replace the activation, 3 replace the gate" in str(summary(menu, 1))
    assert "replace" not in str(summary(lm.plan(trace), 1))
