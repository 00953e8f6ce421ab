"""Merged equals rewritten: at the outputs and at every feature map both still have, whatever was chosen."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, fx, nn

import layermerge as lm
import zoo
from agreement import call, differences, feature_differences, features, tensors, to_double, worst
from layermerge.errors import SurgeryError
from layermerge.surgery import affines, kernels
from solutions import random_solution
from zoo_registry import conv, image

pytestmark = pytest.mark.filterwarnings("ignore:not part of the traced network")
EXACT = 1e-10
ROUNDED = 1e-5

FEW, MORE = range(6), range(6, 20)
every_solution = pytest.mark.parametrize(
    ("name", "seeds"),
    [
        *(pytest.param(name, FEW, id=name) for name in zoo.ZOO),
        *(pytest.param(name, MORE, id=f"{name}-more", marks=pytest.mark.slow) for name in zoo.ZOO),
    ],
)
"""Six random solutions of each network, and fourteen more in the sweep."""


@dataclass(frozen=True)
class Case:
    """A random solution of a zoo network, rewritten (in train mode for every second one) and merged."""

    solution: tuple[lm.Candidate, ...]
    rewritten: fx.GraphModule
    merged: fx.GraphModule

    @property
    def keys(self) -> list[str]:
        return [candidate.key for candidate in self.solution]


def solutions(name: str, seeds: range) -> list[tuple[lm.Candidate, ...]]:
    menu = lm.plan(zoo.traced(name))
    return [random_solution(menu, random.Random(seed)) for seed in seeds]


@cache
def cases(name: str, seeds: range) -> list[Case]:
    traced = zoo.traced(name)
    found = []
    for seed, solution in zip(seeds, solutions(name, seeds), strict=True):
        rewritten = lm.rewrite(traced, solution).train(seed % 2 == 0)
        found.append(Case(solution, rewritten, lm.merge(rewritten)))
    return found


def modules_called(module: fx.GraphModule) -> dict[str, nn.Module]:
    called = [str(node.target) for node in module.graph.nodes if node.op == "call_module"]
    return {name: module.get_submodule(name) for name in called}


def convs(module: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.Conv2d)}


# -- the same numbers


@every_solution
def test_merged_equals_rewritten_in_float64(name: str, seeds: range) -> None:
    for case in cases(name, seeds):
        rewritten = copy.deepcopy(case.rewritten).double().eval()
        inputs = to_double(zoo.ZOO[name].inputs(3))
        found = differences(rewritten, lm.merge(rewritten), inputs)
        assert max(found.values()) <= EXACT, (case.keys, found)


@every_solution
def test_merged_equals_rewritten_in_float32(name: str, seeds: range) -> None:
    for case in cases(name, seeds):
        rewritten = copy.deepcopy(case.rewritten).eval()
        inputs = zoo.ZOO[name].inputs(3)
        narrow = features(rewritten, inputs)
        found = feature_differences(rewritten, narrow, case.merged, features(case.merged, inputs))
        wide = copy.deepcopy(rewritten).double()
        own = feature_differences(wide, features(wide, to_double(inputs)), rewritten, narrow)
        for place, difference in found.items():
            assert difference <= max(ROUNDED, 10 * own[place]), (case.keys, place, difference, own[place])


@every_solution
def test_calling_the_modules_gives_the_same_as_running_their_graphs(name: str, seeds: range) -> None:
    for case in cases(name, seeds)[:3]:
        inputs = zoo.ZOO[name].inputs(2)
        with torch.no_grad():
            expected = call(copy.deepcopy(case.rewritten).eval(), inputs)
            actual = call(case.merged, inputs)
        assert type(actual) is type(expected)
        assert worst(expected, actual) <= ROUNDED
        assert all(output.isfinite().all() and output.std() > 1e-4 for output in tensors(actual))


@pytest.mark.parametrize("size", [(15, 23), (9, 31), (3, 7)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "name", ["basic", "inverted", "explicit_same_padding", "concat_branches", "rep_branches", "dilated", "asymmetric"]
)
def test_odd_and_oblong_inputs(name: str, size: tuple[int, int]) -> None:
    inputs = image(4 if name == "inverted" else 3, *size)(2)
    traced = lm.trace(zoo.build(name).double(), inputs.double())
    menu = lm.plan(traced)
    for seed in range(2):
        solution = random_solution(menu, random.Random(seed))
        rewritten = lm.rewrite(traced, solution).eval()
        assert max(differences(rewritten, lm.merge(rewritten), inputs.double()).values()) <= EXACT


def test_the_solutions_differ_and_change_about_half() -> None:
    chosen = [solution for name in zoo.ZOO for solution in solutions(name, FEW)]
    changed = sum(not candidate.untouched for solution in chosen for candidate in solution)
    total = sum(len(solution) for solution in chosen)
    assert 0.35 < changed / total < 0.65
    assert all(len(set(solutions(name, FEW))) == len(FEW) for name in ("unet", "basic", "inverted"))


# -- what is left


@every_solution
def test_nothing_removed_is_left_in_graph_or_tree(name: str, seeds: range) -> None:
    for case in cases(name, seeds):
        tree = {path for path, _ in case.merged.named_modules()}
        for candidate in case.solution:
            gone = set(candidate.layers) - set(candidate.kept)
            assert not gone & tree, case.keys
        called = modules_called(case.merged)
        leaves = {path for path, part in case.merged.named_modules() if path and not list(part.children())}
        assert {path for path in leaves if path not in called} <= _containers(case.merged), case.keys
        assert not any(isinstance(part, nn.Identity) for part in called.values())


def _containers(module: nn.Module) -> set[str]:
    """Plain holders of tensors that the graph reads directly."""
    return {path for path, part in module.named_modules() if type(part) is nn.Module}


@every_solution
def test_no_norm_with_fixed_statistics_follows_a_conv(name: str, seeds: range) -> None:
    for case in cases(name, seeds):
        parts = dict(case.merged.named_modules())
        for node in case.merged.graph.nodes:
            part = parts.get(str(node.target)) if node.op == "call_module" else None
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None:
                source = node.args[0]
                alone = source.op == "call_module" and len(source.users) == 1
                assert not alone or not isinstance(parts[source.target], nn.Conv2d), case.keys


@every_solution
def test_one_conv_for_each_candidate_that_keeps_any(name: str, seeds: range) -> None:
    traced = zoo.traced(name)
    layers = {layer.name for layer in traced.layers}
    others = {path for path in modules_called(traced.module) if path in convs(traced.module)} - layers
    for case in cases(name, seeds):
        expected = sum(bool(candidate.kept) for candidate in case.solution) + len(others)
        found = convs(case.merged)
        carriers = {path for path in found if path not in convs(traced.module)}
        assert len(found) - len(carriers) == expected, case.keys
        for path in carriers:
            assert "time" in name or name == "unet", path
            assert found[path].kernel_size == (1, 1)
            assert found[path].bias is None


@every_solution
def test_merged_convs_have_the_geometry_that_the_plan_names(name: str, seeds: range) -> None:
    for case in cases(name, seeds):
        found = convs(case.merged)
        for candidate in case.solution:
            if candidate.spec is None:
                continue
            (conv_,) = [found[path] for path in candidate.kept if path in found]
            spec = candidate.spec
            assert (conv_.in_channels, conv_.out_channels) == (spec.in_channels, spec.out_channels)
            assert (conv_.kernel_size, conv_.stride) == (spec.kernel, spec.stride)
            assert (conv_.dilation, conv_.groups) == (spec.dilation, spec.groups)


def test_depthwise_after_depthwise_stays_depthwise() -> None:
    traced = zoo.traced("depthwise_chain")
    whole = lm.plan(traced)["0-3:7x7g4"]
    assert whole.kept == whole.layers
    (merged,) = convs(lm.merge(lm.rewrite(traced, [whole]))).values()
    assert (merged.groups, merged.weight.shape) == (4, (4, 1, 7, 7))


# -- what merge does not touch


@pytest.mark.parametrize("name", ["plain", "inverted", "unet", "norms_of_every_kind"])
@pytest.mark.parametrize("training", [True, False])
def test_the_rewritten_module_is_left_as_it_was(name: str, training: bool) -> None:
    traced = zoo.traced(name)
    rewritten = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(2))).train(training)
    next(rewritten.children()).train(not training)
    state = {key: tensor.clone() for key, tensor in rewritten.state_dict().items()}
    modes = {path: part.training for path, part in rewritten.named_modules()}
    tensors_before = {key: id(parameter) for key, parameter in rewritten.named_parameters()}
    code = rewritten.code
    merged = lm.merge(rewritten)
    assert list(rewritten.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[key]) for key, tensor in rewritten.state_dict().items())
    assert {path: part.training for path, part in rewritten.named_modules()} == modes
    assert {key: id(parameter) for key, parameter in rewritten.named_parameters()} == tensors_before
    assert rewritten.code == code
    assert not any(part.training for part in merged.modules())


@pytest.mark.parametrize("name", ["plain", "unet"])
def test_the_merged_module_owns_its_tensors(name: str) -> None:
    traced = zoo.traced(name)
    rewritten = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(2)))
    merged = lm.merge(rewritten)
    before = {key: tensor.clone() for key, tensor in merged.state_dict().items()}
    with torch.no_grad():
        for tensor in (*rewritten.parameters(), *rewritten.buffers()):
            tensor.add_(1)
    assert all(torch.equal(tensor, before[key]) for key, tensor in merged.state_dict().items())


def test_frozen_parameters_and_half_precision_survive() -> None:
    traced = zoo.traced("basic")
    rewritten = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(1))).to(torch.bfloat16)
    merged = lm.merge(rewritten)
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.bfloat16}


def test_a_network_that_lost_all_its_weights_still_merges() -> None:
    """Two shape-keeping convs, both removed: nothing with a weight is left, and the network is the identity."""
    traced = lm.trace(nn.Sequential(conv(3, 3), nn.ReLU(), conv(3, 3)), torch.randn(2, 3, 8, 8))
    menu = lm.plan(traced)
    merged = lm.merge(lm.rewrite(traced, [menu["0-1:identity"], menu["1-2:identity"]]))
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(merged(x), x.relu())


def test_merge_takes_only_what_rewrite_returns() -> None:
    for module in (nn.Conv2d(3, 3, 1), zoo.traced("plain").module, lm.merge(lm.rewrite(zoo.traced("plain"), []))):
        with pytest.raises(SurgeryError, match=r"^merge takes what rewrite returns, not \w+; call layermerge.rewrite"):
            lm.merge(module)


# -- controls: the check can fail


def two_padded_convs() -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(4)
    return conv(3, 4).double(), conv(4, 4).double()


def test_without_moving_the_padding_the_difference_is_large() -> None:
    first, second = two_padded_convs()
    assert first.bias is not None
    assert second.bias is not None
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    kernel = torch.zeros(4, 3, 5, 5, dtype=torch.float64)
    bias = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for out in range(4):
            bias[out] = second.bias[out] + (second.weight[out].sum((1, 2)) * first.bias).sum()
            for y in range(3):
                for z in range(3):
                    taps = (second.weight[out, :, y, z].view(4, 1, 1, 1) * first.weight).sum(0)
                    kernel[out, :, y : y + 3, z : z + 3] += taps
        merged = nn.functional.conv2d(x, kernel, bias, padding=2)
        assert worst(second(first(x)), merged) > 1e-3
        moved = nn.functional.pad(x, (2, 2, 2, 2))
        moved = nn.functional.conv2d(moved, first.weight, first.bias)
        assert worst(nn.functional.conv2d(moved, second.weight, second.bias), merged) < 1e-12


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = zoo.traced("plain")
    rewritten = lm.rewrite(traced, [lm.plan(traced)["0-2:5x5g1"]])
    lm.merge(rewritten)
    then = kernels.Kernel.then

    def askew(self: kernels.Kernel, after: kernels.Kernel) -> kernels.Kernel:
        right = then(self, after)
        return kernels.Kernel(right.weight + 1e-3, right.bias, right.spec, right.shifts)

    monkeypatch.setattr(kernels.Kernel, "then", askew)
    with pytest.raises(SurgeryError, match=r"^merged and unmerged differ by .* in float64 at .*0-2:5x5g1") as caught:
        lm.merge(rewritten)
    assert str(caught.value).endswith("nothing was merged")
    assert "\n" not in str(caught.value)


def test_a_norm_folded_with_another_eps_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's eps is 1e-3; folding it with the usual 1e-5 is wrong by more than one per cent."""
    torch.manual_seed(0)
    model = nn.Sequential(conv(3, 4, bias=False), nn.BatchNorm2d(4, eps=1e-3), nn.ReLU(), conv(4, 4))
    nn.init.uniform_(model[1].running_var, 0.001, 0.01)  # type: ignore[arg-type]
    rewritten = lm.rewrite(lm.trace(model, torch.randn(2, 3, 8, 8)), [])
    lm.merge(rewritten)

    def fixed_eps(mean: Tensor, variance: Tensor, _eps: float, *affine: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.norm_as_affine(mean, variance, 1e-5, *affine)

    monkeypatch.setattr(affines, "norm_as_affine", fixed_eps)
    with pytest.raises(SurgeryError, match=r"^merged and unmerged differ by") as caught:
        lm.merge(rewritten)
    difference = float(str(caught.value).split("differ by ")[1].split()[0])
    assert difference > 1e-2


@pytest.mark.parametrize(
    ("tensor", "value", "match"),
    [
        ("0.weight", float("nan"), r"^'0.weight' holds NaN or infinite values"),
        ("3.bias", float("inf"), r"^'3.bias' holds NaN or infinite values"),
        ("1.running_mean", float("nan"), r"^'1.running_mean' holds NaN or infinite values"),
        ("1.running_var", -1.0, r"^the weights of candidate 0-1:3x3g1 multiply to NaN"),
    ],
)
def test_weights_that_are_not_finite_are_refused(tensor: str, value: float, match: str) -> None:
    """NaN would equal NaN in the check."""
    model = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(), conv(4, 4))
    rewritten = lm.rewrite(lm.trace(model, torch.randn(2, 3, 8, 8)), [])
    with torch.no_grad():
        rewritten.state_dict()[tensor].view(-1)[0] = value
    with pytest.raises(SurgeryError, match=match) as caught:
        lm.merge(rewritten)
    assert "\n" not in str(caught.value)


def test_an_infinite_buffer_outside_of_every_conv_is_no_obstacle() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv(3, 4)
            self.register_buffer("mask", torch.zeros(64, 64).masked_fill(torch.ones(64, 64).triu(1).bool(), -torch.inf))

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x).flatten(2)
            return torch.softmax(y.transpose(1, 2) @ y + self.mask, -1)

    lm.merge(lm.rewrite(lm.trace(Masked(), torch.randn(2, 3, 8, 8)), []))


class _Quantised(nn.Module):
    """Makes float32 of its map whatever its weights are, as autoencoders do that store their latent in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.third = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        stored = self.first(x).sigmoid().mul(255).round().byte()
        result: Tensor = self.third(self.second(stored / 255.0).relu())
        return result


def test_networks_that_fix_a_dtype_inside_are_merged() -> None:
    x = torch.randn(2, 3, 12, 12)
    traced = lm.trace(_Quantised().eval(), x)
    rewritten = lm.rewrite(traced, [lm.plan(traced)["1-3:3x3g1"]]).eval()
    assert differences(rewritten, lm.merge(rewritten), x)["output"] <= ROUNDED
    rewritten.double()
    assert differences(rewritten, lm.merge(rewritten), x.double())["output"] <= EXACT


class _ReadByABranch(nn.Module):
    """What `beside` computes of its own input is read by a residual branch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.beside, self.last = conv(3, 4), conv(4, 4), conv(3, 4), conv(4, 4)

    def forward(self, x: Tensor, hint: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = x + self.body(x * self.beside(hint).mean((2, 3), keepdim=True))
        result: Tensor = self.last(x.relu())
        return result


def test_a_conv_goes_with_the_branch_that_alone_reads_it() -> None:
    model, inputs = _ReadByABranch().double().eval(), tuple(torch.randn(2, 3, 9, 9).double() for _ in range(2))
    traced = lm.trace(model, inputs)
    (dropped,) = [one for one in lm.plan(traced).candidates if one.layers == ("body",) and not one.kept]
    rewritten = lm.rewrite(traced, [dropped]).eval()
    merged = lm.merge(rewritten)
    assert {name.split(".")[0] for name in merged.state_dict()} == {"first", "last"}
    expected = model.last(model.first(inputs[0]).relu().relu())
    assert max(worst(expected, call(net, inputs)) for net in (rewritten, merged)) <= EXACT
